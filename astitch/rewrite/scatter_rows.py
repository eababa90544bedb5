"""A scatter of rows as a list of updates, each with the row that it goes to: for rules that write scatters anew."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    ConstantAttrs,
    DimensionsAttrs,
    DType,
    IotaAttrs,
    Literal,
    Node,
    ScatterAttrs,
)
from astitch.graph.ops import neutral_element
from astitch.rewrite.draft import Draft
from astitch.rewrite.draft_ops import DraftOps, Region
from astitch.rewrite.expand import add_column


def count_named(node: Node) -> int:
    """The leading dimensions that are indexed or batches."""
    assert isinstance(node.attrs, ScatterAttrs)
    return len(node.attrs.scatter_dims_to_operand_dims) + len(node.attrs.input_batching_dims)


def scatters_rows(node: Node, x: ArrayType, updates: ArrayType) -> bool:
    """Does each index vector name an element, or a row with all that lies in it?  Rows have numbers of 32 bits.

    x, updates: what is scattered to, and what.
    """
    a = node.attrs
    if not isinstance(a, ScatterAttrs) or len(node.operands) != 3:
        return False
    shape = node.shape
    named = sorted((*a.scatter_dims_to_operand_dims, *a.input_batching_dims))
    no_window = sorted((*a.inserted_window_dims, *a.input_batching_dims))
    leading = named == list(range(len(named))) == no_window
    whole = tuple(updates.shape[d] for d in sorted(a.update_window_dims)) == shape[len(named) :]
    if not named or not leading or not whole:
        return False
    if not x.dtype == updates.dtype == node.dtype:
        return False
    rows = math.prod(shape[: len(named)])
    count = updates.size // max(math.prod(shape[len(named) :]), 1)
    # Places and positions are s32; each update that goes nowhere has a place of its own behind all others (of several
    # scatters that are one sum it may be a negative one, where nothing is written either).
    return count > 1 and 0 < rows < (1 << 31) - count


class ScatteredRows(DraftOps):
    """Some scatters, one into the other.  The leading dimensions that are indexed or batches count as one: rows, of
    `count` updates of `row` elements each.  parts: the one that is computed first comes first."""

    def __init__(self, parts: Sequence[Node], draft: Draft) -> None:
        super().__init__(parts[-1], draft)
        self.parts = parts
        named = count_named(self.origin)
        self.row = self.origin.shape[named:]
        self.rows = math.prod(self.origin.shape[:named])
        self.count = sum(map(self.count_of, parts))

    def count_of(self, part: Node) -> int:
        return self.draft[part.operands[2]].array.size // math.prod(self.row)

    def number_places(self, part: Node, nowhere: int) -> str:
        """s32: the row that each update of a scatter goes to, `nowhere` where there is none."""
        a = part.attrs
        assert isinstance(a, ScatterAttrs)
        count = (self.count_of(part),)
        tests: list[str] = []
        terms: list[str] = []
        stride = 1
        for d in reversed(range(count_named(part))):
            extent = part.shape[d]
            if d in a.input_batching_dims:
                column = self.number_batches(part, d)
            else:
                number = a.scatter_dims_to_operand_dims.index(d)
                column = self.reshape(add_column(part, self.draft, number), count)
                known = self.draft[column].dtype
                limits = np.iinfo(known.numpy)
                if limits.max >= extent:
                    tests.append(self.compare("LT", column, self.splat(extent, known, count)))
                if limits.min < 0:
                    tests.append(self.compare("GE", column, self.splat(0, known, count)))
            step = self.splat(stride, DType.S32, count)
            terms.append(self.both("multiply", self.convert(column, DType.S32), step))
            stride *= extent
        place = functools.reduce(lambda x, y: self.both("add", x, y), terms)
        if not tests:  # the type of the indices holds no other
            return place
        inside = functools.reduce(lambda x, y: self.both("and", x, y), tests)
        return self.select(inside, place, self.splat(nowhere, DType.S32, count))

    def number_batches(self, part: Node, d: int) -> str:
        """s32: where along a batching dimension of the result each update belongs."""
        a = part.attrs
        assert isinstance(a, ScatterAttrs)
        home = a.scatter_indices_batching_dims[a.input_batching_dims.index(d)]
        vector = a.index_vector_dim
        indices = self.draft[part.operands[1]].shape
        shape = tuple(n for i, n in enumerate(indices) if i != vector)
        numbers = self.add("iota", DType.S32, shape, (), IotaAttrs(home - (vector < home)))
        return self.reshape(numbers, (self.count_of(part),))

    def flatten_updates(self, part: Node) -> str:
        """[count, row ...]"""
        assert isinstance(part.attrs, ScatterAttrs)
        updates, windows = part.operands[2], part.attrs.update_window_dims
        shape = self.draft[updates].shape
        order = (*(d for d in range(len(shape)) if d not in windows), *windows)
        if order != tuple(range(len(shape))):
            updates = self.transpose(updates, order)
        return self.reshape(updates, (self.count_of(part), *self.row))

    def neutral(self, op: str, dtype: DType) -> str:
        """The number that changes nothing, of an op that has one."""
        value = neutral_element(op, dtype)
        assert value is not None
        return self.add("constant", dtype, (), (), ConstantAttrs(Literal.of(np.asarray(value))))

    def combine(self, terms: str, op: str, unit: str) -> str:
        """[n, row ...]: terms [n, k, row ...] along the second dimension.  unit: the neutral number."""
        array = self.draft[terms].array
        region = Region(array.dtype)
        combine = region.end("combine", region.op(op, array.dtype, ("a", "b")))
        shape = (array.shape[0], *array.shape[2:])
        attrs = DimensionsAttrs((1,))
        return self.add("reduce", array.dtype, shape, (terms, unit), attrs, (combine,))
