"""What integers and truth values lie between, whatever the parameters are: intervals, proved from the ops alone.

The idea: a small vector of indices has an interval for each element, as each dimension of an array has its own limits;
a larger array has one for all.  Bounds are Python's integers, so that they do not wrap: a result that its type might
not hold may be anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    CompareAttrs,
    ConstantAttrs,
    DimensionsAttrs,
    DType,
    IotaAttrs,
    Literal,
    Node,
)
from astitch.graph.ops import OPS
from astitch.rewrite.draft import Draft, become
from astitch.rewrite.reduction_rules import combiner_op

MOST_ELEMENTS = 64
"""A larger array has one interval for all of its elements: no vector of indices has as many."""

MOST_READ = 65536
"""A constant with more elements may hold anything: to read it takes longer than knowing it is worth."""

Bounds = Any
"""An array of Python's integers."""


def _least(x: Bounds, y: Bounds) -> Bounds:
    return np.minimum(np.asarray(x, object), np.asarray(y, object))


def _most(x: Bounds, y: Bounds) -> Bounds:
    return np.maximum(np.asarray(x, object), np.asarray(y, object))


def _where(condition: Any, x: Bounds, y: Bounds) -> Bounds:
    """NumPy alone would make a float of 2**63 or -1."""
    return np.where(condition, np.asarray(x, object), np.asarray(y, object))


@dataclass(frozen=True, slots=True)
class Range:
    """low <= x <= high, both ends included.

    low, high: of the value's shape, an interval for each element; or of rank 0, one for all.
    """

    low: Bounds
    high: Bounds

    @staticmethod
    def of(low: Bounds, high: Bounds) -> Range:
        return Range(np.asarray(low, object), np.asarray(high, object))

    @property
    def whole(self) -> Range:
        """One interval that holds every element."""
        return self if self.low.ndim == 0 else Range.of(self.low.min(), self.high.max())

    @property
    def is_known(self) -> bool:
        """Is there one value that each element must have?"""
        return bool(np.all(self.low == self.high))

    def join(self, other: Range) -> Range:
        return Range.of(_least(self.low, other.low), _most(self.high, other.high))

    def spread(self, shape: tuple[int, ...]) -> Range:
        return Range(np.broadcast_to(self.low, shape), np.broadcast_to(self.high, shape))


Finder = Callable[[Node, Sequence[Node], Sequence[Range]], Range]
"""(node, its operands, what they lie between) -> what the node lies between, were its type wide enough."""


def has_range(node: Node) -> bool:
    """Is it an array of integers or truth values, and not empty?"""
    if not isinstance(node.type, ArrayType) or node.type.size == 0:
        return False
    return node.dtype.is_integer or node.dtype is DType.PRED


def range_of_type(dtype: DType) -> Range:
    """All that a type holds; of types without a range, nothing that may be relied on."""
    if not dtype.is_integer:
        return Range.of(0, 1)
    limits = np.iinfo(dtype.numpy)
    return Range.of(int(limits.min), int(limits.max))


def find_range(draft: Draft, name: str) -> Range:
    """What an integer or truth value lies between.  The draft keeps what was found."""
    pending = [] if name in draft.ranges else [name]
    while pending:
        node = draft[pending[-1]]
        waiting = [o for o in _list_read(node) if o not in draft.ranges]
        if waiting:
            pending += waiting
        else:
            draft.ranges[pending.pop()] = _find_from_operands(node, draft)
    return draft.ranges[name]


def find_range_of_new(node: Node, draft: Draft) -> Range:
    """The same of a node that is not in the draft yet."""
    for operand in _list_read(node):
        find_range(draft, operand)
    return _find_from_operands(node, draft)


def _list_read(node: Node) -> Sequence[str]:
    """The operands of which it is asked what they lie between."""
    return node.operands if has_range(node) and _FINDERS.get(node.op) else ()


def _find_from_operands(node: Node, draft: Draft) -> Range:
    """The ranges of what the node reads are known."""
    of_type = range_of_type(node.dtype if isinstance(node.type, ArrayType) else DType.PRED)
    find = _FINDERS.get(node.op) if has_range(node) else None
    if find is None:
        return of_type
    operands = [draft[o] for o in node.operands]
    found = find(node, operands, [draft.ranges[o] for o in node.operands])
    if node.array.size > MOST_ELEMENTS:
        found = found.whole
    fits = (of_type.low <= found.low) & (found.high <= of_type.high)
    return Range.of(_where(fits, found.low, of_type.low), _where(fits, found.high, of_type.high))


# ---- the rules


def decide_by_range(node: Node, draft: Draft) -> Node | str | None:
    """f(x) -> c, where whatever x is all elements are c: 0 <= clamp(0, i, n) is true"""
    if not has_range(node):
        return None
    found = find_range_of_new(node, draft).whole
    if not found.is_known:
        return None
    value = ConstantAttrs(Literal.of(np.asarray(found.low, node.dtype.numpy)))
    if node.shape == ():
        return become(node, "constant", (), value)
    name = draft.add(node, "constant", ArrayType(node.dtype, ()), (), value)
    return become(node, "broadcast", (name,), BroadcastAttrs(()))


def drop_wide_bounds(node: Node, draft: Draft) -> Node | str | None:
    """clamp(a, x, b), maximum(a, x), minimum(x, b) -> x, where x lies between a and b in any case"""
    if not has_range(node):
        return None
    ranges = [find_range(draft, o) for o in node.operands]
    for at in (1,) if len(ranges) == 3 else (0, 1):
        if _STAYS[node.op](ranges[at], ranges[:at] + ranges[at + 1 :]):
            return node.operands[at]
    return None


_STAYS: dict[str, Callable[[Range, Sequence[Range]], bool]] = {
    "clamp": lambda x, others: _is_below(others[0], x) and _is_below(x, others[-1]),
    "maximum": lambda x, others: all(_is_below(other, x) for other in others),
    "minimum": lambda x, others: all(_is_below(x, other) for other in others),
}


def _is_below(x: Range, y: Range) -> bool:
    return bool(np.all(x.high <= y.low))


# ---- sources and movements


def _constant(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    assert isinstance(node.attrs, ConstantAttrs)
    if node.array.size > MOST_READ:
        return range_of_type(node.dtype)
    value = node.attrs.value.numpy()
    if value.size > MOST_ELEMENTS:
        return Range.of(int(value.min()), int(value.max()))
    value = value.astype(np.int64) if value.dtype == np.bool_ else value
    return Range.of(value.astype(object), value.astype(object))


def _iota(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    assert isinstance(node.attrs, IotaAttrs)
    d = node.attrs.dimension
    if node.array.size > MOST_ELEMENTS:
        return Range.of(0, node.shape[d] - 1)
    along = np.arange(node.shape[d]).astype(object)
    value = along.reshape([-1 if i == d else 1 for i in range(len(node.shape))])
    return Range(value, value).spread(node.shape)


def _move(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    """Each element is one of the operands': the op moves both ends."""
    meaning = OPS[node.op].meaning
    small = all(o.array.size <= MOST_ELEMENTS for o in (node, *operands))
    if not small or meaning is None or all(r.low.ndim == 0 for r in ranges):
        found = ranges[0].whole
        for other in ranges[1:]:
            found = found.join(other.whole)
        return found
    spread = [r.spread(o.shape) for r, o in zip(ranges, operands, strict=True)]
    return Range.of(
        meaning(node, *(r.low for r in spread)), meaning(node, *(r.high for r in spread))
    )


def _choose_from_first(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    return ranges[0].whole


def _update(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    return ranges[0].whole.join(ranges[1].whole)


# ---- element-wise ops


def _add(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    x, y = ranges
    return Range.of(x.low + y.low, x.high + y.high)


def _subtract(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    x, y = ranges
    return Range.of(x.low - y.high, x.high - y.low)


def _span_corners(meaning: Callable[[Bounds, Bounds], Bounds], x: Range, y: Range) -> Range:
    """Of what is monotone in each operand while the other stands still."""
    corners = [meaning(a, b) for a in (x.low, x.high) for b in (y.low, y.high)]
    low, high = corners[0], corners[0]
    for corner in corners[1:]:
        low, high = _least(low, corner), _most(high, corner)
    return Range.of(low, high)


def _multiply(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    return _span_corners(lambda a, b: a * b, *ranges)


def _divide(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    """Towards zero, by what is positive."""
    x, y = ranges
    if np.any(y.low <= 0):
        return range_of_type(node.dtype)
    return _span_corners(lambda a, b: _where(a < 0, -(-a // b), a // b), x, y)


def _remainder(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    """It has the sign of the dividend, and is less than the divisor, which is positive."""
    x, y = ranges
    if np.any(y.low <= 0):
        return range_of_type(node.dtype)
    stays = (x.low >= 0) & (x.high < y.low)
    low = _where(stays, x.low, _least(0, _most(x.low, 1 - y.high)))
    return Range.of(low, _most(0, _least(x.high, y.high - 1)))


def _negate(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    return Range.of(-ranges[0].high, -ranges[0].low)


def _abs(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    """Of the least number it does not fit."""
    (x,) = ranges
    high = _most(-x.low, x.high)
    return Range.of(_most(0, _most(x.low, -x.high)), high)


def _sign(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    (x,) = ranges
    return Range.of(_most(-1, _least(x.low, 1)), _most(-1, _least(x.high, 1)))


def _maximum(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    x, y = ranges
    return Range.of(_most(x.low, y.low), _most(x.high, y.high))


def _minimum(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    x, y = ranges
    return Range.of(_least(x.low, y.low), _least(x.high, y.high))


def _clamp(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    """minimum(maximum(least, x), most)"""
    least, x, most = ranges
    return _minimum(node, operands, (_maximum(node, operands, (least, x)), most))


def _select(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    condition, x, y = ranges
    either = x.join(y)
    low = _where(condition.low == 1, x.low, _where(condition.high == 0, y.low, either.low))
    high = _where(condition.low == 1, x.high, _where(condition.high == 0, y.high, either.high))
    return Range.of(low, high)


def _compare(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    assert isinstance(node.attrs, CompareAttrs)
    if not has_range(operands[0]):
        return Range.of(0, 1)
    x, y = ranges
    holds, fails = _DECIDED[node.attrs.direction](x, y)
    return Range.of(_where(holds, 1, 0), _where(fails, 0, 1))


_DECIDED: dict[str, Callable[[Range, Range], tuple[Any, Any]]] = {
    "LT": lambda x, y: (x.high < y.low, x.low >= y.high),
    "LE": lambda x, y: (x.high <= y.low, x.low > y.high),
    "GT": lambda x, y: (x.low > y.high, x.high <= y.low),
    "GE": lambda x, y: (x.low >= y.high, x.high < y.low),
    "EQ": lambda x, y: (_are_same(x, y), _are_apart(x, y)),
    "NE": lambda x, y: (_are_apart(x, y), _are_same(x, y)),
}
"""By direction: (must it hold, must it fail) for each pair of elements."""


def _are_same(x: Range, y: Range) -> Any:
    return (x.low == y.high) & (x.high == y.low)


def _are_apart(x: Range, y: Range) -> Any:
    return (x.high < y.low) | (x.low > y.high)


def _and(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    """Of what is not negative: no more than either."""
    x, y = ranges
    if node.dtype is DType.PRED:
        return _minimum(node, operands, ranges)
    most = range_of_type(node.dtype)
    high = _least(_where(x.low >= 0, x.high, most.high), _where(y.low >= 0, y.high, most.high))
    return Range.of(_where((x.low >= 0) | (y.low >= 0), 0, most.low), high)


def _or(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    """Of what is not negative: no less than either, and of no more bits."""
    x, y = ranges
    if node.dtype is DType.PRED:
        return _maximum(node, operands, ranges)
    if np.any(x.low < 0) or np.any(y.low < 0):
        return range_of_type(node.dtype)
    bits = int(max(np.max(x.high), np.max(y.high))).bit_length()
    return Range.of(_most(x.low, y.low), (1 << bits) - 1)


def _not(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    of_type = range_of_type(node.dtype)
    both = of_type.low + of_type.high  # of a number and its complement
    return Range.of(both - ranges[0].high, both - ranges[0].low)


def _shift_right(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    """Of what is not negative, by less than its bits."""
    x, by = ranges
    too_far = np.any(by.low < 0) or np.any(by.high >= 8 * node.dtype.bytes)
    if too_far or np.any(x.low < 0):
        return range_of_type(node.dtype)
    return _span_corners(lambda a, b: a >> b, x, by)


def _shift_right_arithmetic(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    """It takes the highest bit for a sign, of unsigned numbers too."""
    if np.any(ranges[0].high >> (8 * node.dtype.bytes - 1)):
        return range_of_type(node.dtype)
    return _shift_right(node, operands, ranges)


def _count_bits(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    return Range.of(0, 8 * node.dtype.bytes)


def _convert(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    if not has_range(operands[0]):
        return range_of_type(node.dtype)
    (x,) = ranges
    if node.dtype is not DType.PRED:
        return x
    zero = (x.low == 0) & (x.high == 0)
    return Range.of(_where((x.low > 0) | (x.high < 0), 1, 0), _where(zero, 0, 1))


# ---- reductions


def _reduce(node: Node, operands: Sequence[Node], ranges: Sequence[Range]) -> Range:
    """Of a maximum, a minimum or a sum both ends are reduced; a truth value is a number."""
    assert isinstance(node.attrs, DimensionsAttrs)
    combiner = combiner_op(node.regions[0])
    if combiner is None or len(operands) != 2 or operands[0].dtype is not node.dtype:
        return range_of_type(node.dtype)
    if node.dtype is DType.PRED:
        combiner = {"and": "minimum", "or": "maximum"}.get(combiner, combiner)
        if combiner == "add":
            return range_of_type(node.dtype)
    x, start = ranges
    axes = node.attrs.dimensions
    count = operands[0].array.size // node.array.size
    if combiner == "add" and x.low.ndim == 0:
        return Range.of(start.low + count * x.low, start.high + count * x.high)
    combine = _COMBINERS.get(combiner)
    if combine is None:
        return range_of_type(node.dtype)
    ends = (e if e.ndim == 0 else combine.reduce(e, axis=axes) for e in (x.low, x.high))
    low, high = (np.asarray(e, object) for e in ends)
    return Range.of(combine(start.low, low), combine(start.high, high))


_COMBINERS: dict[str, Any] = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}


_FINDERS: dict[str, Finder] = {
    "constant": _constant,
    "iota": _iota,
    "broadcast": _move,
    "reshape": _move,
    "transpose": _move,
    "slice": _move,
    "reverse": _move,
    "pad": _move,
    "concatenate": _move,
    "copy": _move,
    "dynamic-slice": _choose_from_first,
    "gather": _choose_from_first,
    "dynamic-update-slice": _update,
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "remainder": _remainder,
    "negate": _negate,
    "abs": _abs,
    "sign": _sign,
    "maximum": _maximum,
    "minimum": _minimum,
    "clamp": _clamp,
    "select": _select,
    "compare": _compare,
    "and": _and,
    "or": _or,
    "not": _not,
    "shift-right-logical": _shift_right,
    "shift-right-arithmetic": _shift_right_arithmetic,
    "popcnt": _count_bits,
    "count-leading-zeros": _count_bits,
    "convert": _convert,
    "reduce": _reduce,
}
"""The ops of which something is known."""
