"""Pairs of instructions -> an HloComputationProto in which the second of each pair waits for the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import networkx as nx

from astitch.xla.instructions import set_instructions


def list_before(instruction: Any) -> list[int]:
    """The ids of the instructions for which one waits: its operands, and its control dependencies."""
    return [*instruction.operand_ids, *instruction.control_predecessor_ids]


def add_control_dependencies(entry: Any, pairs: Sequence[tuple[int, int]]) -> None:
    """Puts the instructions in an order in which each is behind those for which it waits, else as they are.

    pairs: of ids.  Raises NetworkXUnfeasible where instructions would wait for each other; then nothing has changed.
    """
    instructions = {i.id: i for i in entry.instructions}
    place = {number: at for at, number in enumerate(instructions)}
    waits = nx.DiGraph()
    waits.add_nodes_from(place.values())
    for i in entry.instructions:
        waits.add_edges_from((place[other], place[i.id]) for other in list_before(i))
    waits.add_edges_from((place[one], place[other]) for one, other in pairs)
    order = list(nx.lexicographical_topological_sort(waits))
    for one, other in pairs:
        instructions[other].control_predecessor_ids.append(one)
    placed = list(entry.instructions)
    set_instructions(entry, (placed[at] for at in order))
