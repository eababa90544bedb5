"""Graph -> Graph: reductions of a few elements are written out, element by element, where that saves a loop.

The distance of two points is a sum of three squares.  All distances of n points are n * n such sums, whose terms are
computed from 3 * n numbers.  Reduced, they have an iteration space of n * n * 3, and what follows an array to read.
Written out they are element-wise values, computed where they are read.  That pays where further reductions read them.
To be stored they are summed faster as rows, whose elements are loaded together.

The maximum of each pair of a row, and a norm of the maxima, are two reductions of other rows: two loops, and all maxima
in memory between them.  Written out the maxima are values of the norm's loop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from astitch.graph.dimensions import is_uniform
from astitch.graph.ir import ArrayType, DimensionsAttrs, DType, Graph, Node
from astitch.graph.ops import OPS, Kind, monoid_of
from astitch.graph.ops.arrays import array_types
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.narrow_reductions import is_neutral
from astitch.rewrite.simplify import rewrite_graph

FEW = 8
"""Elements that are few."""

FEW_BESIDE = 4
"""Elements of four bytes, side by side in memory, that are few: each is read with a stride of so many.  Of two bytes
half as many: a warp asks for as many bytes at a time."""

LONG = 64
"""Elements of a reduction that are many."""

LEAST_SHARED = 8
"""Times that each element in memory is needed, at least.  Needed less often, it is read faster in rows of vectors."""


def write_out_short_reductions(graph: Graph, log: Log | None = None) -> Graph:
    """The same function but for the sign of a zero; a reduction by one op with a neutral start is that op on slices.

    graph: simplified.  `log` hears of every reduction that is written out.
    """
    heard: Log = log or (lambda rule, node: None)
    short = {node.name for node in graph if _is_short(graph, node)}
    if not short:
        return graph

    def write_out(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if node.name not in short:
            return None
        heard("write_out_reduction", node.name)
        return _put_elements(draft, node)

    return rewrite_graph(graph, heard, write_out)


def _is_short(graph: Graph, node: Node) -> bool:
    if not OPS[node.op].is_reduce or len(node.operands) != 2:
        return False
    if not isinstance(node.type, ArrayType) or not node.array.size:
        return False
    assert isinstance(node.attrs, DimensionsAttrs)
    operand = graph[node.operands[0]].array
    elements = math.prod(operand.shape[d] for d in node.attrs.dimensions)
    monoid = monoid_of(node.regions[0])
    if not 1 < elements <= FEW or monoid is None or not is_neutral(graph, node.operands[1], monoid):
        return False
    if _is_nowhere_in_memory(graph, node.operands[0]):
        return _ends_in_reductions(graph, node.name)
    return _meets_rows(graph, node) and elements <= _count_few(graph, node)


def _count_few(graph: Graph, node: Node) -> int:
    """Elements that are few where they lie in memory."""
    assert isinstance(node.attrs, DimensionsAttrs)
    operand = graph[node.operands[0]]
    if len(operand.shape) - 1 in node.attrs.dimensions:
        stored = graph[operand.operands[0]] if OPS[operand.op].is_conversion else operand
        return FEW_BESIDE * min(stored.dtype.bytes, 4) // 4
    reduced = {*node.attrs.dimensions}
    for other in (graph[user] for user in graph.users[operand.name]):
        if OPS[other.op].is_reduce and isinstance(other.attrs, DimensionsAttrs):
            if reduced < {*other.attrs.dimensions}:
                return 1  # beside a sum of all of them the array is read in any case, and this is one loop with it
    return FEW


def _meets_rows(graph: Graph, node: Node) -> bool:
    """Is what it gives reduced again, over rows of many, with no array between them?"""
    rank = len(node.shape)
    stored = node.name in graph.outputs
    waiting, seen = [node.name] if rank > 1 and not stored else [], {node.name}
    while waiting:
        for name in graph.users[waiting.pop()]:
            user = graph[name]
            if name in seen:
                continue
            seen.add(name)
            if OPS[user.op].is_reduce:
                assert isinstance(user.attrs, DimensionsAttrs)
                reduced = math.prod(graph[user.operands[0]].shape[d] for d in user.attrs.dimensions)
                if user.attrs.dimensions == (rank - 1,) and reduced >= LONG:
                    return True
            elif OPS[user.op].kind is Kind.ELEMENTWISE and user.array.size == node.array.size:
                waiting.append(name)
    return False


def _is_nowhere_in_memory(graph: Graph, name: str) -> bool:
    """Is it computed from arrays that are all much smaller?"""
    size = graph[name].array.size
    waiting, seen = [name], {name}
    while waiting:
        node = graph[waiting.pop()]
        if is_uniform(graph, node.name) or node.array.size * LEAST_SHARED <= size:
            continue
        if not _is_seen_through(node):
            return False
        waiting += [o for o in node.operands if o not in seen]
        seen.update(node.operands)
    return True


def _ends_in_reductions(graph: Graph, name: str) -> bool:
    """Is it never stored, since reductions are all that needs it in the end?"""
    waiting, seen = [name], {name}
    while waiting:
        at = waiting.pop()
        if at in graph.outputs:
            return False
        for user in graph.users[at]:
            if user in seen:
                continue
            if OPS[graph[user].op].is_reduce:
                if not _is_long(graph, graph[user], at):
                    return False
                continue
            if not _is_seen_through(graph[user]):
                return False
            waiting.append(user)
            seen.add(user)
    return True


def _is_long(graph: Graph, reduce: Node, operand: str) -> bool:
    """Is what it stores far smaller than what it reads?"""
    stored, *_ = array_types(reduce)
    return stored.size * FEW < graph[operand].array.size


def _is_seen_through(node: Node) -> bool:
    """Is an element computed from elements of the operands, with no array between them?"""
    kind = OPS[node.op].kind
    if kind is Kind.INDEX:
        return len(node.operands) == 1
    return kind in (Kind.ELEMENTWISE, Kind.BROADCAST)


def _put_elements(draft: Draft, node: Node) -> str:
    """The elements in order, combined two by two; f16 and bf16 in f32, and rounded once."""
    assert isinstance(node.attrs, DimensionsAttrs)
    ops, dtype, array = DraftOps(node, draft), node.dtype, draft[node.operands[0]].array
    op = monoid_of(node.regions[0])
    assert op is not None
    wide = DType.F32 if dtype.is_float and dtype.bytes < 4 else dtype
    reduced = sorted(node.attrs.dimensions)
    total = ""
    for place in itertools.product(*(range(array.shape[d]) for d in reduced)):
        starts, limits = [0] * len(array.shape), list(array.shape)
        for d, at in zip(reduced, place, strict=True):
            starts[d], limits[d] = at, at + 1
        element = ops.reshape(ops.cut(node.operands[0], starts, limits), node.shape)
        element = ops.convert(element, wide)
        total = ops.both(op, total, element) if total else element
    return ops.convert(total, dtype)
