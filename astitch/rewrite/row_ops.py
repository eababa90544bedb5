"""Graph + a number of rows -> which ops a kernel of our own computes row by row, or sums over all rows.

What is an array of rows depends on their number alone: [2, 2048, 64] has 4,096 rows of 64 columns, or 2 of many.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    CompareAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    DType,
    GatherAttrs,
    Graph,
    IotaAttrs,
    Node,
    SliceAttrs,
)
from astitch.graph.ops import OPS, Kind, monoid_of
from astitch.rewrite.draft import read_splat
from astitch.tile.elementwise import why_no_tile
from astitch.tile.row_rates import MOST_ELEMENTS

LEAST_ROWS = 4096
"""Fewer are a tile for less than a quarter of the SMs."""

MOST_COLUMNS = {DType.F32: 128, DType.BF16: 256, DType.F16: 256}
"""Of the result of a product, by the type of its factors."""

MOST_WIDTH = 256
"""Columns of any array of rows."""


def is_row_product(graph: Graph, node: Node) -> bool:
    """Many rows with a small matrix."""
    a = node.attrs
    if not isinstance(a, DotAttrs) or a.algorithm or a.lhs_batch:
        return False
    x, w = (graph[o].array for o in node.operands)
    if a.lhs_contracting != (x.rank - 1,) or w.rank not in (1, 2):
        return False
    if prod(x.shape[:-1]) < LEAST_ROWS:
        return False
    narrow = x.shape[-1] <= MOST_WIDTH
    if w.rank == 2:
        narrow = narrow and node.shape[-1] <= MOST_COLUMNS.get(x.dtype, 0)
    return narrow and _has_types(a, x, w, node.array)


def _has_types(a: DotAttrs, x: ArrayType, y: ArrayType, result: ArrayType) -> bool:
    if x.dtype is not y.dtype or x.dtype not in MOST_COLUMNS:
        return False
    if x.dtype is DType.F32 and set(a.precision) != {"DEFAULT"}:
        return False
    return result.dtype in (x.dtype, DType.F32)


def list_whole(node: Node) -> tuple[str, ...]:
    """The operands of which each row reads all, or any part."""
    if isinstance(node.attrs, DotAttrs):
        return node.operands[1:]
    return node.operands[:1] if isinstance(node.attrs, GatherAttrs) else ()


@dataclass
class RowOps:
    """The arrays of so many rows in a graph, and which ops on them a kernel has."""

    graph: Graph
    rows: int

    def view(self, name: str) -> tuple[int, ...] | None:
        """The shape of an array of rows: numbers, or a matrix; None for another array."""
        type_ = self.graph[name].type
        return self.view_array(type_) if isinstance(type_, ArrayType) else None

    def view_array(self, array: ArrayType) -> tuple[int, ...] | None:
        shape = array.shape
        if prod(shape) > MOST_ELEMENTS:
            return None
        if len(shape) > 1 and prod(shape[:-1]) == self.rows:
            return (self.rows, shape[-1]) if shape[-1] <= MOST_WIDTH else None
        return (self.rows,) if prod(shape) == self.rows and shape else None

    def is_source(self, node: Node) -> bool:
        """Is it made anew wherever it is read?"""
        view = self.view(node.name)
        if view is None:
            return False
        if isinstance(node.attrs, IotaAttrs):
            return node.dtype is DType.S32 and node.array.rank == len(view)
        return OPS[node.op].is_broadcast and self._spreads_whole(node, view)

    def _spreads_whole(self, node: Node, view: tuple[int, ...]) -> bool:
        given = self.graph[node.operands[0]]
        if given.dtype not in (*MOST_COLUMNS, DType.S32):
            return False
        if given.array.size == 1:
            return given.array.rank < 2
        assert isinstance(node.attrs, BroadcastAttrs)
        return len(view) == 2 and node.attrs.dimensions == (node.array.rank - 1,)

    def is_sum(self, node: Node) -> bool:
        """Is it a sum over all rows?"""
        if not isinstance(node.type, ArrayType) or not node.operands:
            return False
        x = self.view(node.operands[0])
        if isinstance(node.attrs, DotAttrs):
            a, y = node.attrs, self.view(node.operands[1])
            if x is None or y is None or a.algorithm or a.lhs_batch:
                return False
            given = [self.graph[o].array for o in node.operands]
            both = zip((x, y), given, (a.lhs_contracting, a.rhs_contracting), strict=True)
            fits = all(
                contracted == tuple(range(array.rank - (len(view) > 1)))
                for view, array, contracted in both
            )
            return fits and len(x) + len(y) > 2 and _has_types(a, given[0], given[1], node.array)
        if not self._adds(node) or x is None:
            return False
        assert isinstance(node.attrs, DimensionsAttrs)
        rank, reduced = self.graph[node.operands[0]].array.rank, {*node.attrs.dimensions}
        leading = set(range(rank - (len(x) > 1)))
        return reduced in (leading, set(range(rank)))

    def _adds(self, node: Node) -> bool:
        return self._reduces(node) == "add" and node.dtype in MOST_COLUMNS

    def _reduces(self, node: Node) -> str | None:
        """How it reduces; None where it begins with something else than nothing."""
        if not OPS[node.op].is_reduce or len(node.operands) != 2 or not node.dtype.is_float:
            return None
        start, monoid = read_splat(self.graph, node.operands[1]), monoid_of(node.regions[0])
        neutral = {"add": 0.0, "maximum": -np.inf, "minimum": np.inf}.get(str(monoid))
        return monoid if start is not None and neutral == float(start) else None

    def is_row_op(self, node: Node) -> bool:
        """Does a kernel compute it row by row?"""
        if not isinstance(node.type, ArrayType) or not node.operands:
            return False
        view = self.view(node.name)
        if view is None:
            return False
        a, given = node.attrs, [self.view(o) for o in node.operands]
        types = [self.graph[o].type for o in node.operands]
        match a:
            case DotAttrs():
                matrix = given[0] is not None and len(given[0]) == 2
                return matrix and is_row_product(self.graph, node)
            case BroadcastAttrs(dimensions=dimensions):
                leading = tuple(range(node.array.rank - 1))
                return len(view) == 2 and given[0] == (self.rows,) and dimensions == leading
            case SliceAttrs():
                return len(view) == 2 and given[0] is not None and self._cuts_columns(node)
            case GatherAttrs():
                return len(view) == 2 and self.looks_up(node)
            case DimensionAttrs(dimension=d):
                pieces = len(view) == 2 and d == node.array.rank - 1 and None not in given
                return pieces and len({t.dtype for t in types if isinstance(t, ArrayType)}) == 1
            case DimensionsAttrs(dimensions=dimensions):
                matrix = given[0] is not None and len(given[0]) == 2
                last = self.graph[node.operands[0]].array.rank - 1
                return matrix and dimensions == (last,) and self._reduces(node) is not None
            case CompareAttrs(total_order=True):
                return False
        if OPS[node.op].is_view:
            return given[0] is not None and self._is_same(given[0], view)
        if OPS[node.op].kind is not Kind.ELEMENTWISE or any(v != view for v in given):
            return False
        arrays = [t for t in types if isinstance(t, ArrayType)]
        return why_no_tile(node, arrays) is None

    def looks_up(self, node: Node) -> bool:
        """Is each row one of a matrix, by a number of that row?"""
        a = node.attrs
        if not isinstance(a, GatherAttrs) or a.operand_batching_dims:
            return False
        table, numbers = (self.graph[o].array for o in node.operands)
        if table.rank != 2 or table.dtype not in MOST_COLUMNS or numbers.dtype is not DType.S32:
            return False
        one_each = numbers.size == self.rows and a.start_index_map == (0,)
        rows = a.slice_sizes == (1, table.shape[1]) and table.size <= MOST_ELEMENTS
        return one_each and rows and a.offset_dims[-1:] == (node.array.rank - 1,)

    def _is_same(self, x: tuple[int, ...], y: tuple[int, ...]) -> bool:
        return x == y or {x, y} == {(self.rows,), (self.rows, 1)}

    def _cuts_columns(self, node: Node) -> bool:
        a, given = node.attrs, self.graph[node.operands[0]].array
        assert isinstance(a, SliceAttrs)
        whole = all(
            (start, limit) == (0, extent)
            for start, limit, extent in zip(a.starts[:-1], a.limits, given.shape, strict=False)
        )
        return whole and set(a.strides) == {1}
