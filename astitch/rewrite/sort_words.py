"""A sort or topk as words: whole numbers of the order of its elements, of which no two are equal.

The key of an element stands in a word's upper half, in its lower half a count of the elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from astitch.graph.ir import (
    ConstantAttrs,
    DType,
    Graph,
    Literal,
    Node,
    SortAttrs,
    TopKAttrs,
)
from astitch.rewrite.draft import Draft
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.sort_orders import Order, is_flipped, read_expression, read_order

POSITION_BITS = 32
"""A word: the key in its upper half, below it how many elements stand behind this one."""

_KEYS = (
    DType.PRED,
    DType.S8,
    DType.S16,
    DType.S32,
    DType.U8,
    DType.U16,
    DType.U32,
    DType.F16,
    DType.BF16,
    DType.F32,
)


class SortWords(DraftOps):
    """A sort or topk.  Its operand that is compared has the shape of the first one.

    most_columns: elements of a row."""

    most_columns: ClassVar[int]

    def __init__(self, origin: Node, draft: Draft) -> None:
        super().__init__(origin, draft)
        array = draft[origin.operands[0]].array
        a = origin.attrs
        self.shape = array.shape
        self.dimension = a.dimension if isinstance(a, SortAttrs) else array.rank - 1
        self.columns = self.shape[self.dimension]

    def read(self) -> Order | None:
        """None where the op stays."""
        a = self.origin.attrs
        if not 1 < self.columns <= self.most_columns:
            return None
        if isinstance(a, TopKAttrs):
            order: Order | None = Order(0, "", a.largest, total=True)
        else:
            order = read_order(self.origin, self.draft)
        if order is None:
            return None
        return order if self._key_dtype(order) in _KEYS else None

    def cut_to(self, x: str, shape: Sequence[int]) -> str:
        """The first rows and columns."""
        return x if self.draft[x].shape == tuple(shape) else self.cut(x, [0] * len(shape), shape)

    def _key_dtype(self, order: Order) -> DType:
        if order.key:
            return self.origin.regions[0][order.key].dtype
        return self.draft[self.origin.operands[order.operand]].dtype

    def is_told(self, order: Order) -> bool:
        """Does its key tell the compared value?"""
        if not order.key:
            return True
        expression = read_expression(self.origin.regions[0], order.key)
        if len(expression) > 1:
            return is_flipped(expression)
        dtype = self.draft[self.origin.operands[order.operand]].dtype
        return not dtype.is_float or order.total  # else -0 counts as 0

    def decode(self, word: str, order: Order) -> str | None:
        """The compared value itself, where its key tells it."""
        if not self.is_told(order):
            return None
        dtype = self.draft[self.origin.operands[order.operand]].dtype
        shape = self.draft[word].shape
        shift = self.splat(POSITION_BITS, DType.S64, shape)
        key = self.convert(self.both("shift-right-arithmetic", word, shift), DType.S32)
        if not order.descending:
            key = self.add("not", DType.S32, shape, (key,))
        if order.key:
            expression = read_expression(self.origin.regions[0], order.key)
            if len(expression) > 1:
                return self.bitcast(self.flip(key), dtype)
        if dtype.is_float:
            return self.convert(self.bitcast(self.flip(key), DType.F32), dtype)
        if dtype is DType.U32:
            sign = self.fill(np.asarray(-(1 << 31), np.int32), shape)
            return self.bitcast(self.both("xor", key, sign), dtype)
        return self.convert(key, dtype)

    def lift_key(self, order: Order) -> str:
        """What is compared, of all elements."""
        operand = self.origin.operands[order.operand]
        if not order.key:
            return operand
        region = self.origin.regions[0]
        alone = Graph(region.name, region.nodes, region.parameters, (order.key,))
        return self.lift(
            alone, [self.origin.operands[n // 2] for n in range(len(region.parameters))]
        )

    def order_bits(self, key: str, order: Order) -> str:
        """s32 of the same order.  A NaN is the largest or the smallest, by its sign; -0 is 0 unless the order is
        total."""
        dtype, shape = self.draft[key].dtype, self.shape
        if dtype.is_float:
            key = self.convert(key, DType.F32)
            if not order.total:
                zero = self.splat(0, DType.F32, shape)
                key = self.select(self.compare("EQ", key, zero), zero, key)
            return self.flip(self.bitcast(key, DType.S32))
        if dtype is DType.U32:
            sign = self.fill(np.asarray(-(1 << 31), np.int32), shape)
            return self.both("xor", self.bitcast(key, DType.S32), sign)
        return self.convert(key, DType.S32)

    def flip(self, bits: str) -> str:
        """All but the sign, where it is set: floats as integers, and back."""
        shape = self.draft[bits].shape
        sign = self.both("shift-right-arithmetic", bits, self.splat(31, DType.S32, shape))
        rest = self.fill(np.asarray((1 << 31) - 1, np.int32), shape)
        return self.both("xor", bits, self.both("and", sign, rest))

    def bitcast(self, x: str, dtype: DType) -> str:
        if self.draft[x].dtype is dtype:
            return x
        return self.add("bitcast-convert", dtype, self.draft[x].shape, (x,))

    def fill(self, value: np.ndarray, shape: tuple[int, ...]) -> str:
        literal = ConstantAttrs(Literal.of(value))
        return self.spread(self.add("constant", DType.of(value.dtype), (), (), literal), shape)
