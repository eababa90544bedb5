"""Graph -> Graph: factorizations of many small matrices, with the ops around them, become loops of one turn.

A library's call for matrices of 4 x 4 takes longer for its launches than for its work, and reads and writes memory
before and after each step.
"""

from __future__ import annotations

import math

from astitch.graph.factorizations import find_factorization
from astitch.graph.ir import Graph, Node, PivotsAttrs
from astitch.loops.part_products import part_small_products
from astitch.loops.plan import LoopPlan, LoopPlanner
from astitch.loops.row_groups import MOST_BESIDE, MOST_NODES, Paths, RowGroup, write_loop
from astitch.rewrite.batched_gathers import batch_gathers


def loop_over_matrices(graph: Graph, planner: LoopPlanner, notes: list[str]) -> Graph:
    """The same function; the graph itself where it has no such matrices, or no kernel for them.

    notes: hears why a factorization stays a library's.
    """
    if len(graph) > MOST_NODES or not any(find_factorization(node) for node in graph):
        return graph
    made, tried = part_small_products(batch_gathers(graph)), set[str]()
    is_changed = False
    while True:
        seed = next((n for n in made if n.name not in tried and find_factorization(n)), None)
        if seed is None:
            return made if is_changed else graph
        tried.add(seed.name)
        paths, reason = Paths(made, find_factorization), "its matrices are too large for a thread"
        for only_between in (False, True):
            most = max(MOST_BESIDE, _count_numbers(made, seed))
            group = RowGroup(made, paths, seed, most=most).grow(only_between)
            if not group:
                continue
            looped, name = write_loop(made, group, paths.known)
            plan = planner.plan(looped, looped[name])
            if isinstance(plan, LoopPlan):
                made, is_changed = looped, True
                break
            reason = plan.reason.rpartition("row by row: ")[2]
        else:
            notes.append(f"%{seed.name} stays a library's: {reason}")


def _count_numbers(graph: Graph, node: Node) -> int:
    """Numbers of a factorization's matrix."""
    if isinstance(find_factorization(node), PivotsAttrs):
        return 0
    return math.prod(graph[node.operands[0]].shape[-2:])
