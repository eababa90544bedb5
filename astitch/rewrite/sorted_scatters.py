"""Graph -> Graph: scatters whose indices are said to be sorted as reductions of each row over its own updates.

Neighbours in memory go to the same row, so XLA's threads wait for each other.  Nothing needs sorting here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from astitch.graph.ir import DType, Graph, Node, ScatterAttrs
from astitch.graph.ops import monoid_of, neutral_element
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.expand import add_column
from astitch.rewrite.native_scatters import is_own_form
from astitch.rewrite.scatter_rows import count_named, scatters_rows
from astitch.rewrite.simplify import rewrite_graph
from astitch.rewrite.sorted_rows import MOST_UPDATES, SortedRows

LEAST_IN_ORDER, LEAST_UPDATES, LEAST_NATIVE = 2, 4, 16
"""Updates for each row: where the order counts; else; and where a GPU combines in one instruction, in the scatter's own
type, and threads of one warp have elements of one update.  A row masks as many places as it has updates, and more."""

WARP = 32
"""Elements of a row from which no two threads of a warp meet."""


def reduce_sorted_rows(graph: Graph, log: Log | None = None, *, in_order: bool = False) -> Graph:
    """The same function but for the order in which scatters combine; sums of 16-bit floats are rounded once.

    in_order: else the scatter would be sorted.
    """
    heard: Log = log or (lambda rule, node: None)
    if not any(isinstance(n.attrs, ScatterAttrs) and n.attrs.indices_are_sorted for n in graph):
        return graph

    def change(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        word = _find_word(node, draft, in_order=in_order)
        if word is None:
            return None
        heard("reduce_sorted_rows", node.name)
        return _Sorted([node], draft).put(word)

    return rewrite_graph(graph, heard, change)


def _find_word(node: Node, draft: Draft, *, in_order: bool) -> DType | None:
    """The 32-bit type in which the scatter is computed; None: it stays."""
    a = node.attrs
    if not isinstance(a, ScatterAttrs) or len(node.operands) != 3:
        return None
    x, _, updates = (draft[o].array for o in node.operands)
    if a.unique_indices or not a.indices_are_sorted or a.scatter_dims_to_operand_dims != (0,):
        return None
    if a.input_batching_dims or not scatters_rows(node, x, updates):
        return None
    row = max(math.prod(node.shape[count_named(node) :]), 1)
    is_apart = row >= WARP and is_own_form(node)
    least = LEAST_IN_ORDER if in_order else LEAST_NATIVE if is_apart else LEAST_UPDATES
    count = updates.size // row
    if count < least * (node.array.size // row) or count > MOST_UPDATES:
        return None
    word = WORDS.get(node.dtype)
    op = monoid_of(node.regions[0])
    return word if word and op and neutral_element(op, word) is not None else None


WORDS: Mapping[DType, DType] = {
    DType.F16: DType.F32,
    DType.BF16: DType.F32,
    DType.F32: DType.F32,
    DType.S8: DType.S32,
    DType.S16: DType.S32,
    DType.S32: DType.S32,
    DType.U8: DType.U32,
    DType.U16: DType.U32,
    DType.U32: DType.U32,
}
"""By element type, the type of half of a word of the scan, in which updates are combined."""


class _Sorted(SortedRows):
    """One scatter whose indices are sorted."""

    def put(self, word: DType) -> str:
        """The name of the result."""
        node = self.origin
        op = monoid_of(node.regions[0])
        assert op is not None
        updates = self.convert(self.flatten_updates(node), word)
        found = self.combine_rows(self._number_places(), updates, op, None)
        x = self.convert(self.reshape(node.operands[0], (self.rows, *self.row)), word)
        both = self.convert(self.both(op, x, found), node.dtype)
        return self.reshape(both, node.shape)

    def _number_places(self) -> str:
        """s32, in order too.  Whatever is no row may stay as it is, if 32 bits hold it."""
        count = (self.count,)
        column = self.reshape(add_column(self.origin, self.draft, 0), count)
        dtype = self.draft[column].dtype
        limits, most = np.iinfo(dtype.numpy), np.iinfo(DType.S32.numpy)
        if limits.max > most.max:
            column = self.both("minimum", column, self.splat(self.rows, dtype, count))
        if limits.min < most.min:
            column = self.both("maximum", column, self.splat(-1, dtype, count))
        return self.convert(column, DType.S32)
