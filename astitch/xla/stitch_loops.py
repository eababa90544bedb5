"""The loops of a program that run as one kernel each.

Takes a Compilation, hands on the kernels of the whiles that XLA was to run, by what the whiles compute.  Every other
while has a reason.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

from astitch.graph.ir import Graph, Node
from astitch.graph.ops import OPS
from astitch.hlo_import import read_part
from astitch.loops.analysis import LoopKey, LoopRefusal, count_turns, loop_key
from astitch.loops.emit import LoopKernel, emit_loop
from astitch.loops.emit_turns import TurnsPlan
from astitch.loops.plan import LoopPlan, LoopPlanner
from astitch.program.steps import FallbackStep
from astitch.rewrite.barriers import open_barriers
from astitch.show.compilation import Compilation
from astitch.xla.plan_turns import estimate_turn, plan_turns


@lru_cache(maxsize=64)
def read_fallback(hlo: bytes) -> Graph:
    """The graph of a fallback, which is looked at several times: for its loops, in notes, to be written down."""
    return read_part(hlo)


def find_loops(
    compilation: Compilation, planner: LoopPlanner | None = None, prefix: str = ""
) -> tuple[dict[LoopKey, LoopKernel], tuple[str, ...]]:
    """The loops that are worth a kernel, and notes on all.  planner: the one of the compilation.  prefix: begins the
    names of the kernels."""
    planner = planner or LoopPlanner(compilation.gpu)
    found: dict[LoopKey, LoopKernel] = {}
    notes: list[str] = []
    for step in compilation.program.steps:
        if not isinstance(step, FallbackStep):
            continue
        graph = read_fallback(step.hlo)
        for node in graph:
            if not OPS[node.op].is_loop or not graph.users[node.name]:
                continue
            key = loop_key(graph, node)
            if key in found:
                planner.note_kept(node.name, None)
                notes.append(f"%{node.name}: the same loop as {found[key].kernel.name}")
                continue
            plan = _plan(compilation, planner, graph, node)
            if not isinstance(plan, LoopRefusal):
                kernel = planner.faults.attempt(
                    partial(emit_loop, plan, f"{prefix}{name_loop(len(found))}"),
                    lambda: None,
                    stage="emit a loop",
                    subject=f"%{node.name}",
                    cost="XLA runs the loop",
                )
                if kernel is None:
                    reason = "an error inside astitch while it was emitted"
                    planner.note_kept(node.name, LoopRefusal(node.name, reason))
                    notes.append(f"%{node.name}: {reason}")
                    continue
                planner.note_kept(node.name, None)
                found[key] = kernel
                notes.append(f"{found[key].kernel.name} = {plan}")
            else:
                planner.note_kept(node.name, plan)
                notes.append(str(plan))
    return found, tuple(notes)


def _plan(
    compilation: Compilation, planner: LoopPlanner, graph: Graph, node: Node
) -> LoopPlan | TurnsPlan | LoopRefusal:
    """The plan of a loop as a kernel of its own, or one whose turn is a kernel; or why there is neither."""
    own = planner.plan(graph, node)
    if planner.leaves(node.name) or (isinstance(own, LoopPlan) and own.is_faster):
        return own
    key, kept = loop_key(graph, node), planner.keeps(node.name)

    def plan() -> TurnsPlan | LoopRefusal:
        inside = tuple(open_barriers(region).graph for region in node.regions)
        counted = count_turns(graph, node) is not None
        now_us = estimate_turn(compilation, graph, node, counted)
        opened = replace(node, regions=inside)
        return plan_turns(graph, opened, key.used, compilation.gpu, now_us, planner.faults, kept)

    found = planner.turns.get((key, kept))
    if found is None:
        found = planner.turns[key, kept] = planner.faults.attempt(
            plan,
            lambda: LoopRefusal(node.name, "an error inside astitch while its turn was planned"),
            stage="plan a turn",
            subject=f"%{node.name}",
            cost="XLA runs the loop",
        )
    if isinstance(own, LoopPlan):
        return own if isinstance(found, LoopRefusal) or own.us <= found.us else found
    if isinstance(found, LoopRefusal):
        reason = f"{own.reason}; turn by turn: {found.reason}"
        return LoopRefusal(node.name, reason, is_choice=own.is_choice or found.is_choice)
    return found


def name_loop(number: int) -> str:
    """The name of a loop's kernel. number: among the program's loops that are one kernel."""
    return f"loop_{number}"
