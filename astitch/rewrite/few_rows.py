"""Graph -> Graph: scatters to few rows as reductions over all updates.

Many updates meet in each of few rows, so XLA's threads wait for each other.  Here each row goes through all updates
and takes in those that are its own: nothing meets, the order is fixed, and what comes before and after is stitched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from astitch.graph.ir import (
    ConstantAttrs,
    DimensionsAttrs,
    DType,
    Graph,
    IotaAttrs,
    Literal,
    Node,
    ScatterAttrs,
)
from astitch.graph.ops import monoid_of, neutral_element
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import Region
from astitch.rewrite.native_scatters import is_native
from astitch.rewrite.scatter_order import adds_floats
from astitch.rewrite.scatter_rows import ScatteredRows, count_named, scatters_rows
from astitch.rewrite.simplify import rewrite_graph

LEAST_UPDATES = 64
"""Updates for each row from which most threads of a scatter meet."""

FEW, FEW_ELEMENTS = 16, 1024
"""Rows, and elements of all of them.  An H100 adds 21 million f32 to 512 elements in 416 us, 32 million to 3 million
elements in 92 us.  For each row a kernel reads all updates again, from the L2: 0.3 ps an element by projection."""

FEW_SCALARS = 128
"""Elements of all rows below which more rows are few."""

FEW_WAITING = 64
"""Rows where the GPU has no instruction for what is combined."""

LANES = 4
"""Rows that one thread compares an update with, at least where there are as many."""

FEW_BESIDE_A_SORT, MOST_PAIRS = 128, 1 << 25
"""Rows, and pairs of a row and an element of an update, that a kernel compares in less time than a sort takes."""


def reduce_few_rows(graph: Graph, log: Log | None = None, *, in_order: bool = False) -> Graph:
    """The same function but for the order in which scatters combine; sums of 16-bit floats are rounded once.

    in_order: else the scatter would be sorted.
    """
    heard: Log = log or (lambda rule, node: None)
    if not any(isinstance(node.attrs, ScatterAttrs) for node in graph):
        return graph

    def change(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if not _is_taken(node, draft, in_order=in_order):
            return None
        heard("reduce_few_rows", node.name)
        return _FewRows([node], draft).put()

    return rewrite_graph(graph, heard, change)


def _is_taken(node: Node, draft: Draft, *, in_order: bool) -> bool:
    a = node.attrs
    if not isinstance(a, ScatterAttrs) or len(node.operands) != 3 or a.unique_indices:
        return False
    x, _, updates = (draft[o].array for o in node.operands)
    op = monoid_of(node.regions[0])
    if op is None or node.dtype.is_complex or neutral_element(op, node.dtype) is None:
        return False
    if not scatters_rows(node, x, updates):
        return False
    row = max(math.prod(node.shape[count_named(node) :]), 1)
    rows, count = node.array.size // row, updates.size // row
    if in_order and adds_floats(node):
        most = FEW_BESIDE_A_SORT if rows * updates.size <= MOST_PAIRS else FEW
        return rows <= most
    if count < LEAST_UPDATES * rows:
        return False
    few = rows <= FEW and rows * row <= FEW_ELEMENTS
    few |= rows * row <= FEW_SCALARS
    return few or (rows <= FEW_WAITING and not is_native(op, node.dtype))


class _FewRows(ScatteredRows):
    """One scatter.  The rows come last, as neighbours of one thread: it reads an update once for several of them."""

    def put(self) -> str:
        """The name of the result."""
        op, dtype = monoid_of(self.origin.regions[0]), self.origin.dtype
        assert op is not None
        wide = DType.F32 if dtype.is_narrow_float else dtype
        rows = self.rows if self.rows < LANES else -(-self.rows // LANES) * LANES
        shape = (self.count, *self.row, rows)
        last = len(shape) - 1
        pairs = (self.count, rows)
        place = self.broadcast(self.number_places(self.origin, rows), pairs, (0,))
        number = self.add("iota", DType.S32, pairs, (), IotaAttrs(1))
        is_own = self.compare("EQ", place, number)
        if self.row:
            is_own = self.broadcast(is_own, shape, (0, last))
        updates = self.convert(self.flatten_updates(self.origin), wide)
        updates = self.broadcast(updates, shape, range(last))
        neutral = neutral_element(op, wide)
        assert neutral is not None
        literal = ConstantAttrs(Literal.of(np.asarray(neutral)))
        init = self.add("constant", wide, (), (), literal)
        region = Region(wide)
        combine = region.end("combine", region.op(op, wide, ("a", "b")))
        operands = (self.select(is_own, updates, self.spread(init, shape)), init)
        found = self.add("reduce", wide, shape[1:], operands, DimensionsAttrs((0,)), (combine,))
        if rows > self.rows:
            found = self.cut(found, [0] * last, (*self.row, self.rows))
        if self.row:
            found = self.transpose(found, (last - 1, *range(last - 1)))
        x = self.convert(self.reshape(self.origin.operands[0], (self.rows, *self.row)), wide)
        both = self.convert(self.both(op, x, found), dtype)
        return self.reshape(both, self.origin.shape)
