"""Graph -> Graph: reductions over many rows of few columns become reductions of wide rows.

Rows of 17 floats start at odd addresses.  A warp that gives each column a lane reads four bytes at a time, with half of
its lanes.  Rows that lie behind each other are one long row all the same.  So sum [q, m * C] over q, in accesses of 16
bytes, then the m sums of each column.  The order of a sum changes, as it does with any other mapping.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from astitch.device.gpu import ACCESS_BYTES
from astitch.graph.dimensions import is_embedded, is_uniform
from astitch.graph.ir import (
    ArrayType,
    ConstantAttrs,
    DimensionsAttrs,
    DType,
    Graph,
    NoAttrs,
    Node,
    SliceAttrs,
)
from astitch.graph.ops import OPS, Kind, monoid_of
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.simplify import rewrite_graph

WIDE_ELEMENTS = 2048
"""Elements of a wide row, at most: 16 tiles of 32 threads with 4 elements each."""

LEAST_BYTES = 40 << 20
"""Smaller arrays may lie in the L2, where one more barrier of the grid costs more than narrow accesses.  On an H100 28
MB take a quarter more time with it, 44 MB the same, 440 MB 7 % less, 680 MB 14 %."""

LEAST_WIDE_ROWS = 512
"""Wide rows that a sum needs at least, so that it is still split over blocks."""


FREE = frozenset({DType.F32, DType.F64, *(d for d in DType if d.is_integer), DType.PRED})
"""Types whose sums and extremes may be kept in between: not rounded, or so finely that the order is free."""


def reshape_narrow_reductions(graph: Graph, log: Log | None = None) -> Graph:
    """The same function; sums, products and extremes over the leading dimension of a narrow array are regrouped.

    graph: simplified.  `log` hears of every reduction that is widened.
    """
    heard: Log = log or (lambda rule, node: None)
    narrow = {node.name for node in graph if _is_narrow(graph, node)}
    if not narrow:
        return graph

    def regroup(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if node.name not in narrow:
            return None
        heard("reshape_narrow_reductions", node.name)
        return _widened(draft, node)

    return rewrite_graph(graph, heard, regroup)


def _is_narrow(graph: Graph, node: Node) -> bool:
    """A reduction over the leading dimensions of one large array that nothing else walks over, whose rows are no
    multiple of an access."""
    if (
        not OPS[node.op].is_reduce
        or len(node.operands) != 2
        or not isinstance(node.type, ArrayType)
    ):
        return False
    assert isinstance(node.attrs, DimensionsAttrs)
    array = graph[node.operands[0]].array
    reduced = sorted(node.attrs.dimensions)
    monoid = monoid_of(node.regions[0])
    if monoid is None or not is_neutral(graph, node.operands[1], monoid):
        return False
    if reduced != list(range(len(reduced))) or node.dtype not in FREE:
        return False
    columns = math.prod(array.shape[len(reduced) :])
    rows = array.size // max(columns, 1)
    large = array.bytes >= LEAST_BYTES and columns > 1
    odd = columns * array.dtype.bytes % ACCESS_BYTES != 0
    grouped = _grouped(array, columns)
    few = grouped > 0 and rows // grouped >= LEAST_WIDE_ROWS
    return large and odd and few and _is_walked_once(graph, node.operands[0])


def is_neutral(graph: Graph, name: str, monoid: str) -> bool:
    """Is the init value one that may be taken any number of times?"""
    attrs = graph[name].attrs
    if not isinstance(attrs, ConstantAttrs):
        return False
    value = attrs.value.numpy().reshape(())[()]
    dtype = value.dtype
    neutral: dict[str, object] = {"add": 0, "multiply": 1, "or": 0, "xor": 0}
    if dtype.kind in "biu":
        limits = np.iinfo(np.uint8 if dtype.kind == "b" else dtype)
        neutral |= {"maximum": limits.min, "minimum": limits.max, "and": ~dtype.type(0)}
    else:
        neutral |= {"maximum": -np.inf, "minimum": np.inf}
    return bool(value == neutral[monoid])


def _is_walked_once(graph: Graph, name: str) -> bool:
    """Is the value, with the element-wise ops that it is computed by, needed by this reduction alone?"""
    size = graph[name].array.size
    waiting = [name]
    while waiting:
        node = graph[waiting.pop()]
        if is_uniform(graph, node.name):
            continue
        if len(graph.users[node.name]) > 1 or node.name in graph.outputs:
            return False
        if node.array.size != size or is_embedded(graph, node.name):
            return False
        if OPS[node.op].kind is Kind.ELEMENTWISE:
            waiting.extend(node.operands)
        elif OPS[node.op].kind is Kind.BROADCAST:
            return False
    return True


def _grouped(array: ArrayType, columns: int) -> int:
    """Rows that make one wide row, a multiple of an access; 0 if rows are wide already."""
    access = max(ACCESS_BYTES // array.dtype.bytes, 1)
    rows = access // math.gcd(access, columns)
    return WIDE_ELEMENTS // (rows * columns) * rows


def _widened(draft: Draft, node: Node) -> str:
    """Wide rows first, then the sums of each column, with the rows that are left over."""
    array, columns = draft[node.operands[0]].array, node.array.size
    rows = array.size // columns
    grouped = _grouped(array, columns)
    wide, left = divmod(rows, grouped)

    def reduce(name: str, shape: tuple[int, ...]) -> str:
        operands, attrs = (name, node.operands[1]), DimensionsAttrs((0,))
        return draft.add(
            node, "reduce", ArrayType(node.dtype, shape), operands, attrs, node.regions
        )

    many = _rows_of(draft, node, node.operands[0], (0, wide * grouped), (wide, grouped * columns))
    sums = reduce(many, (grouped * columns,))
    matrix = draft.add(node, "reshape", ArrayType(node.dtype, (grouped, columns)), (sums,))
    total = reduce(matrix, (columns,))
    if left:
        rest = _rows_of(draft, node, node.operands[0], (wide * grouped, rows), (left, columns))
        monoid = monoid_of(node.regions[0])
        assert monoid is not None
        result = ArrayType(node.dtype, (columns,))
        total = draft.add(node, monoid, result, (total, reduce(rest, (columns,))))
    return draft.put(replace(node, op="reshape", operands=(total,), attrs=NoAttrs(), regions=()))


def _rows_of(
    draft: Draft, origin: Node, name: str, bounds: tuple[int, int], shape: tuple[int, int]
) -> str:
    """Rows first..last of a value as an array of `shape`, computed by the same element-wise ops."""
    node = draft[name]
    if OPS[node.op].is_broadcast:  # of a scalar
        return draft.add(
            origin, "broadcast", ArrayType(node.dtype, shape), node.operands, node.attrs
        )
    if OPS[node.op].kind is Kind.ELEMENTWISE:
        operands = tuple(_rows_of(draft, origin, o, bounds, shape) for o in node.operands)
        kind = ArrayType(node.dtype, shape)
        return draft.add(origin, node.op, kind, operands, node.attrs, node.regions)
    first, last = bounds
    columns = shape[0] * shape[1] // (last - first)
    rows = node.array.size // columns
    flat = draft.add(origin, "reshape", ArrayType(node.dtype, (rows, columns)), (name,))
    if last - first < rows:
        cut = SliceAttrs((first, 0), (last, columns), (1, 1))
        part = ArrayType(node.dtype, (last - first, columns))
        flat = draft.add(origin, "slice", part, (flat,), cut)
    return draft.add(origin, "reshape", ArrayType(node.dtype, shape), (flat,))
