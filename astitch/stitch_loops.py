"""The loops of a program that run as one kernel each.

Takes a Compilation, hands on the kernels of the whiles that XLA was to run, by what those compute, and why others have
none.
"""

from __future__ import annotations

from dataclasses import dataclass

from astitch.compile import Compilation
from astitch.emit_loop import LoopKernel, emit_loop
from astitch.hlo_import import import_hlo
from astitch.ir import Graph, Literal, Node
from astitch.loop_analysis import find_starts, find_used
from astitch.loop_plan import LoopPlan, plan_loop
from astitch.program import IslandStep


@dataclass(frozen=True, slots=True)
class LoopKey:
    """What a while computes: its regions, the numbers that it starts with, which parts of its final state are read."""

    regions: tuple[Graph, ...]
    starts: tuple[tuple[int, Literal], ...]
    used: tuple[int, ...]


def loop_key(graph: Graph, node: Node) -> LoopKey:
    """The key of a while in its graph."""
    starts = tuple(find_starts(graph, node).items())
    return LoopKey(node.regions, starts, find_used(graph, node))


def find_loops(
    compilation: Compilation,
) -> tuple[dict[LoopKey, LoopKernel], tuple[str, ...]]:
    """The loops that are worth a kernel, and notes on all."""
    found: dict[LoopKey, LoopKernel] = {}
    notes: list[str] = []
    for step in compilation.program.steps:
        if not isinstance(step, IslandStep):
            continue
        graph = import_hlo(step.hlo)
        for node in graph:
            if node.op != "while" or not graph.users[node.name]:
                continue
            key = loop_key(graph, node)
            if key in found:
                notes.append(f"%{node.name}: the same loop as {found[key].kernel.name}")
                continue
            plan = plan_loop(graph, node, key.used, compilation.gpu)
            if isinstance(plan, LoopPlan):
                found[key] = emit_loop(plan, f"loop_{len(found)}")
                notes.append(f"{found[key].kernel.name} = {plan}")
            else:
                notes.append(str(plan))
    return found, tuple(notes)
