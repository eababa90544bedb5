"""Loops as XLA's simplifier wrote them, with their products as products again where that makes a loop one kernel."""

from __future__ import annotations

from dataclasses import replace

from astitch.graph.ir import Graph, Node
from astitch.graph.ops import OPS
from astitch.loops.hoist import hoist_loops
from astitch.loops.plan import LoopPlanner
from astitch.rewrite.restore_dots import restore_dots, split_merged_dots
from astitch.rewrite.simplify import simplify


def restore_loops(graph: Graph, planner: LoopPlanner) -> Graph:
    """The graph with the products in its loops restored, where that makes a loop one kernel; see restore_dots.

    Other loops stay as XLA wrote them: stitch ops of their bodies take the sums in, and merged products are faster.
    """
    changed: dict[str, Node] = {}
    for node in graph:
        if OPS[node.op].is_loop:
            condition, body = node.regions
            restored = split_merged_dots(restore_dots(body))
            if restored is not body:
                changed[node.name] = replace(node, regions=(condition, restored))
    if not changed:
        return graph
    made = _find_kernels(replace(graph, nodes={**graph.nodes, **changed}), planner)
    gained = made - _find_kernels(graph, planner)
    kept = {name: node for name, node in changed.items() if name in gained}
    return replace(graph, nodes={**graph.nodes, **kept}) if kept else graph


def _find_kernels(graph: Graph, planner: LoopPlanner) -> set[str]:
    """The loops that are one kernel, by name, once they do only what must wait for the turn before."""
    made = hoist_loops(simplify(graph), planner.is_kernel)
    return {plan.loop.node.name for plan in planner.find_plans(made)}
