"""Graph -> Graph: rows whose numbers are computed apart and put together become loops of one turn.

`jnp.stack([x * y, y * z, ...], -1)` has a formula for each number of a row: a rotation, a basis, a state of physics.
A kernel with a thread for each element computes in each warp all formulas, and each again what it shares with the
others.  With a thread for each row a formula is computed once, with the ops around it (row_groups.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from functools import partial

from astitch.device.gpu import Gpu
from astitch.graph.ir import DimensionAttrs, Graph, Node, PadAttrs, TransposeAttrs
from astitch.graph.ops import OPS, Kind
from astitch.loops.analysis import LoopRefusal
from astitch.loops.flatten import Dimension, is_array
from astitch.loops.handed_on import STITCHED, Found, hand_on_less
from astitch.loops.part_products import part_small_products
from astitch.loops.plan import LoopPlan, LoopPlanner
from astitch.loops.row_groups import (
    MOST_BESIDE,
    MOST_NODES,
    Paths,
    RowGroup,
    cut_out,
    find_known,
    list_given,
    list_results,
    write_loop,
)
from astitch.loops.row_numbers import MOST_NUMBERS
from astitch.rewrite.batched_gathers import batch_gathers

LEAST_THREADS = 4096
"""Rows of a group: fewer leave most of a device without work."""

MOST_TOGETHER = 4
"""Numbers of a piece, in the mean: neighbours in a warp that compute the same."""

GAIN = 0.97
"""The share of the other kernels' time that a group may take: where memory decides both are the same."""

LOOK_UP_CYCLES = 8
"""Of an SM, for a warp whose threads read places far from each other."""


def loop_over_joined_rows(graph: Graph, planner: LoopPlanner) -> Graph:
    """The same function; the graph itself where no rows are put together, or kernels on elements are as fast."""
    if len(graph) > MOST_NODES or not any(_find_rows(graph, node) for node in graph):
        return graph
    plain, tried = part_small_products(batch_gathers(graph)), set[str]()
    made, groups = plain, list[Found]()
    while found := _find_group(made, planner, tried):
        groups.append(found)
        made = _write(made, [found])
    if not groups:
        return graph
    if any(not plain.nodes.keys() >= group.members for group in groups):
        return made  # a group has an op of another's loop
    less, again = hand_on_less(plain, groups, partial(_is_no_slower, planner))
    return made if less is plain else _write(less, again)


def _write(graph: Graph, groups: Iterable[Found]) -> Graph:
    """The graph with the groups as loops."""
    for group in groups:
        known = find_known(graph)
        if list_results(graph, group.members, known):
            graph = write_loop(graph, group.members, known)[0]
    return graph


def _find_group(graph: Graph, planner: LoopPlanner, tried: set[str]) -> Found | None:
    """One group more, around a seed that was not tried; None where no seed has one.

    Rows of constants only are no seeds: a loop would have no results, since kernels compute them for themselves.
    """
    rows = {node.name: found for node in graph if (found := _find_rows(graph, node))}
    if tried.issuperset(rows):
        return None
    paths = Paths(graph, lambda node: node.name in rows)
    tried |= paths.known
    for seed in rows:
        if seed in tried:
            continue
        tried.add(seed)
        last: set[str] = set()
        for most in (MOST_NUMBERS, MOST_BESIDE):
            group = RowGroup(graph, paths, graph[seed], rows[seed], most, most).grow(False)
            if not group or group == last:
                continue
            last = group
            extent = math.prod(graph[name].shape[d] for name, d in rows[seed])
            if _is_faster(graph, group, paths.known, extent, planner):
                tried |= group
                return Found(frozenset(group), seed, rows[seed], most)
        tried |= last
    return None


def _is_faster(
    graph: Graph, group: set[str], known: Collection[str], rows: int, planner: LoopPlanner
) -> bool:
    """Has a group a kernel that takes less time than kernels on elements?"""
    plan = _plan(graph, group, known, planner)
    if not isinstance(plan, LoopPlan):
        return False
    crossing = _project_crossing(graph, group, known, planner.gpu)
    gathers = _project_gathers(graph, group, known, rows, planner.gpu)
    return plan.us + crossing < GAIN * (plan.xla_us + gathers)


def _plan(
    graph: Graph, group: Collection[str], known: Collection[str], planner: LoopPlanner
) -> LoopPlan | LoopRefusal:
    looped, name = write_loop(cut_out(graph, group, known), group, known)
    return planner.plan(looped, looped[name])


def _is_no_slower(
    planner: LoopPlanner,
    graph: Graph,
    group: Collection[str],
    before: Graph,
    group_before: Collection[str],
) -> bool:
    """Has a group that computes ops again a kernel that takes no longer than the one before, and what is stored for it
    alone?"""
    plan = _plan(graph, group, find_known(graph), planner)
    other = _plan(before, group_before, find_known(before), planner)
    if not isinstance(plan, LoopPlan) or not isinstance(other, LoopPlan):
        return False
    stored = _count_given(before, group_before) - _count_given(graph, group)
    return plan.us <= other.us + stored / (planner.gpu.bandwidth_gbs * 1e3)


def _count_given(graph: Graph, group: Collection[str]) -> int:
    return sum(graph[name].array.bytes for name in list_given(graph, group))


def _find_rows(graph: Graph, node: Node) -> tuple[Dimension, ...]:
    """The dimensions of rows of an op that puts few numbers together; none if it is another op."""
    if not is_array(node) or node.dtype.is_complex:
        return ()
    source = node
    if isinstance(node.attrs, TransposeAttrs):
        source = _find_concatenation(graph, graph[node.operands[0]])
    match source.attrs:
        case DimensionAttrs(dimension) if source.op == "concatenate":
            joined = [dimension]
            pieces = len(source.operands)
        case PadAttrs(low, high, interior):
            joined = [d for d in range(node.array.rank) if low[d] or high[d] or interior[d]]
            pieces = 2
        case _:
            return ()
    if isinstance(node.attrs, TransposeAttrs):
        joined = [node.attrs.permutation.index(d) for d in joined]
    first = _find_numbers(node.shape)
    numbers = math.prod(node.shape[first:])
    if not joined or min(joined) < first or numbers > MOST_TOGETHER * pieces:
        return ()
    if math.prod(node.shape[:first]) < LEAST_THREADS:
        return ()
    if not _is_computed(graph, node):
        return ()
    return tuple((node.name, d) for d in range(first) if node.shape[d] > 1)


def _find_concatenation(graph: Graph, node: Node) -> Node:
    """The concatenation from which element-wise ops compute a value; the value's op if there is none."""
    pending, seen = [node], {node.name}
    while pending:
        found = pending.pop()
        if found.op == "concatenate":
            return found
        if OPS[found.op].kind is Kind.ELEMENTWISE:
            new = [o for o in found.operands if o not in seen and is_array(graph[o])]
            new = [o for o in new if graph[o].shape == node.shape]
            seen.update(new)
            pending += [graph[o] for o in new]
    return node


def _find_numbers(shape: tuple[int, ...]) -> int:
    """The first of the last dimensions that together have few numbers."""
    first, numbers = len(shape), 1
    while first and numbers * shape[first - 1] <= MOST_BESIDE:
        first -= 1
        numbers *= shape[first]
    return first


def _is_computed(graph: Graph, node: Node) -> bool:
    """Is one of the pieces computed, and not a part of an array as it is?"""
    pending, seen = [node.name], set[str]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        kind = OPS[graph[name].op].kind
        if kind is Kind.ELEMENTWISE:
            return True
        if kind in (Kind.INDEX, Kind.BROADCAST):
            pending += graph[name].operands
    return False


def _project_crossing(graph: Graph, group: set[str], known: Collection[str], gpu: Gpu) -> float:
    """Microseconds for arrays between the group and ops that could be in one kernel with it: they are written and
    read, and the kernel becomes several."""
    given = (o for o in list_given(graph, group) if o not in known and _is_stitched(graph[o]))
    before = {o for o in given if o not in graph.outputs and group.issuperset(graph.users[o])}
    behind = {
        node.name
        for node in list_results(graph, group, known)
        if node.name not in graph.outputs
        and any(user not in group and _is_stitched(graph[user]) for user in graph.users[node.name])
    }
    moved = sum(graph[name].array.bytes for name in before | behind)
    launches = bool(before) + bool(behind)
    return 2 * moved / (gpu.bandwidth_gbs * 1e3) + launches * gpu.launch_us


def _project_gathers(
    graph: Graph, group: set[str], known: Collection[str], rows: int, gpu: Gpu
) -> float:
    """Microseconds that kernels on elements take for gathers in front of the group: each warp looks up all numbers of
    its rows for each formula, and each again."""
    gathered = (o for o in list_given(graph, group) if o not in known and _is_gathered(graph, o))
    looked_up = sum(graph[name].array.size for name in gathered)
    again = sum((node.array.size // rows) ** 2 for node in list_results(graph, group, known))
    return looked_up / 32 * again * LOOK_UP_CYCLES / gpu.sms / (gpu.clock_ghz * 1e3)


def _is_gathered(graph: Graph, name: str) -> bool:
    while OPS[graph[name].op].is_view:
        name = graph[name].operands[0]
    return graph[name].op == "gather"


def _is_stitched(node: Node) -> bool:
    return not node.is_parameter and OPS[node.op].kind in STITCHED
