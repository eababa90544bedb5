"""HloModuleProto -> in which order its entry transposes what a loop carries: memory holds one array twice, not all.

Behind the transpose of a donated argument nothing is in its memory until its result is written, and XLA puts there what
lives no longer than that.  The arrays are transposed one after the other in front of the loop, and back in reverse
order: each but the first finds room in the one before.  XLA orders instructions by control dependencies.
"""

from __future__ import annotations

import contextlib
import math
from itertools import pairwise
from typing import Any

import networkx as nx

from astitch.xla.control_dependencies import add_control_dependencies


def order_transposes(entry: Any) -> None:
    """Adds control dependencies to an HloComputationProto whose root is a tuple, and puts its instructions in order."""
    instructions = {i.id: i for i in entry.instructions}
    chained: set[int] = set()  # of equal transposes one stands for all, also in several loops
    pairs: list[tuple[int, int]] = []
    for loop in entry.instructions:
        if loop.opcode != b"while":
            continue
        before, after = _find_transposes(instructions, entry.root_id, loop)
        order = sorted(before, key=lambda n: (-math.prod(before[n].shape.dimensions), n))
        first = dict.fromkeys(before[number].id for number in order)
        last = dict.fromkeys(after[n].id for n in reversed(order) if n in after)
        for chain in (first, last):
            pairs += pairwise(number for number in chain if number not in chained)
            chained.update(chain)
    if not pairs:
        return
    with contextlib.suppress(nx.NetworkXUnfeasible):  # they wait for each other
        add_control_dependencies(entry, pairs)


def _find_transposes(
    instructions: dict[int, Any], root: int, loop: Any
) -> tuple[dict[int, Any], dict[int, Any]]:
    """By the number in a loop's state: the transposes of parameters in front of it, and those behind it that only the
    root reads."""
    state = instructions[loop.operand_ids[0]]
    before: dict[int, Any] = {}
    if state.opcode == b"tuple":
        for number, operand in enumerate(state.operand_ids):
            made = instructions[operand]
            if _is_transpose_of(instructions, made, b"parameter"):
                before[number] = made
    users: dict[int, list[Any]] = {}
    for instruction in instructions.values():
        for operand in instruction.operand_ids:
            users.setdefault(operand, []).append(instruction)
    after: dict[int, Any] = {}
    for part in users.get(loop.id, []):
        for made in users.get(part.id, []) if part.opcode == b"get-tuple-element" else []:
            if made.opcode == b"transpose" and [u.id for u in users.get(made.id, [])] == [root]:
                after[part.tuple_index] = made
    return before, after


def _is_transpose_of(instructions: dict[int, Any], made: Any, opcode: bytes) -> bool:
    read = instructions[made.operand_ids[0]] if made.operand_ids else None
    return made.opcode == b"transpose" and read is not None and bool(read.opcode == opcode)
