"""Rules of simplify for constants and element-wise ops: exact ones only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from astitch.errors import UnsupportedOp
from astitch.graph.edit import is_pure
from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    CompareAttrs,
    ConstantAttrs,
    DType,
    IotaAttrs,
    Literal,
    Node,
    TupleType,
)
from astitch.graph.ops import OPS, WIDE_FLOATS, neutral_element
from astitch.graph.reference import eval_node
from astitch.rewrite.draft import (
    FOLD_RESULT_ELEMENTS,
    Draft,
    become,
    read_constant,
    read_splat,
    same_bits,
    squeeze,
)
from astitch.rewrite.reduction_rules import combiner_op


def fold_empty(node: Node, draft: Draft) -> Node | str | None:
    """f(...) : t[.., 0, ..] -> constant"""
    if isinstance(node.type, TupleType) or node.type.size > 0 or not is_pure(node):
        return None
    if node.dtype.is_opaque:
        return None
    return become(node, "constant", (), ConstantAttrs(Literal(node.dtype, node.shape, b"")))


def spread_splat_constant(node: Node, draft: Draft) -> Node | str | None:
    """constant [c, c, .. c] -> broadcast(constant c)"""
    assert isinstance(node.attrs, ConstantAttrs)
    literal = node.attrs.value
    if node.array.size <= 1:
        return None
    item = literal.data[: literal.dtype.bytes]
    if not literal.data.startswith(item * 2):
        return None  # most large constants end here, unread
    if literal.data != item * node.array.size:
        return None
    scalar = ConstantAttrs(Literal(literal.dtype, (), item))
    value = draft.add(node, "constant", ArrayType(node.dtype, ()), (), scalar)
    return become(node, "broadcast", (value,), BroadcastAttrs(()))


def fold_constants(node: Node, draft: Draft) -> Node | str | None:
    """f(constants) -> constant, while the result is small, and no loop in a combiner may go on for ever"""
    if isinstance(node.type, TupleType) or node.type.size > FOLD_RESULT_ELEMENTS:
        return None
    if any(inner.regions for region in node.regions for inner in region):
        return None
    operands = []
    for name in node.operands:
        value = read_constant(draft, name)
        if value is None:
            return None
        operands.append(value)
    return _evaluate(node, operands)


def fold_splats(node: Node, draft: Draft) -> Node | str | None:
    """f(broadcast(c), broadcast(d)) -> broadcast(f(c, d)) for element-wise f and constants c, d"""
    if node.shape == ():
        return None
    operands = []
    for name in node.operands:
        value = read_splat(draft, name)
        if value is None or draft[name].shape != node.shape:
            return None
        operands.append(value)
    scalar = _evaluate(replace(node, type=ArrayType(node.dtype, ())), operands)
    if scalar is None:
        return None
    value_name = draft.add(node, "constant", scalar.array, (), scalar.attrs)
    return become(node, "broadcast", (value_name,), BroadcastAttrs(()))


def _evaluate(node: Node, operands: Sequence[np.ndarray]) -> Node | None:
    """The constant that `node` is for these operands; None where the reference cannot say."""
    try:
        (value,) = eval_node(node, operands)
    except UnsupportedOp:
        return None
    return become(node, "constant", (), ConstantAttrs(Literal.of(value)))


def zero_short_iota(node: Node, draft: Draft) -> Node | str | None:
    """iota along a dimension of one element -> broadcast(0)"""
    assert isinstance(node.attrs, IotaAttrs)
    if node.shape[node.attrs.dimension] != 1:
        return None
    zero = Literal.of(np.zeros((), node.dtype.numpy))
    value = draft.add(node, "constant", ArrayType(node.dtype, ()), (), ConstantAttrs(zero))
    return become(node, "broadcast", (value,), BroadcastAttrs(()))


def drop_neutral_operand(node: Node, draft: Draft) -> Node | str | None:
    """x*1, x/1, x-0, x + -0.0, i+0, max(x, -inf), min(x, inf), x&~0, x|0, x^0, x<<0 -> x"""
    neutral = neutral_element(node.op, node.dtype)
    if neutral is None:
        return None
    sides = ((0, 1), (1, 0)) if OPS[node.op].is_commutative else ((0, 1),)
    for kept, dropped in sides:
        value = read_splat(draft, node.operands[dropped])
        if value is not None and same_bits(value, neutral):
            return node.operands[kept]
    return None


def drop_zero_beside_sum(node: Node, draft: Draft) -> Node | str | None:
    """0 + sum(x) -> sum(x): a sum that starts at 0.0 is never -0.0"""
    for kept, zero in (node.operands, node.operands[::-1]):
        value = read_splat(draft, zero)
        if value is None or not same_bits(value, np.zeros((), node.dtype.numpy)):
            continue
        total = draft[kept]
        while total.op in ("reshape", "broadcast", "transpose"):
            total = draft[total.operands[0]]
        if total.op != "reduce" or len(total.operands) != 2:
            continue
        start = read_splat(draft, total.operands[1])
        if combiner_op(total.regions[0]) == "add" and start is not None and same_bits(start, value):
            return kept
    return None


def take_absorbing_operand(node: Node, draft: Draft) -> Node | str | None:
    """i*0, i&0 -> 0;  i|~0 -> ~0, for integers and pred"""
    if not (node.dtype.is_integer or node.dtype is DType.PRED):
        return None
    zero = np.zeros((), node.dtype.numpy)
    absorbing = ~zero if node.op == "or" else zero
    for name in node.operands:
        value = read_splat(draft, name)
        if value is not None and same_bits(value, absorbing):
            return name
    return None


def merge_equal_operands(node: Node, draft: Draft) -> Node | str | None:
    """x&x, x|x, max(x, x), min(x, x) -> x"""
    return node.operands[0] if node.operands[0] == node.operands[1] else None


def cancel_involution(node: Node, draft: Draft) -> Node | str | None:
    """-(-x), ~(~x) -> x"""
    inner = draft[node.operands[0]]
    return inner.operands[0] if inner.op == node.op else None


def drop_copy(node: Node, draft: Draft) -> Node | str | None:
    """copy(x) -> x"""
    operand = node.operands[0]
    return operand if len(node.operands) == 1 and draft[operand].type == node.type else None


def choose_branch(node: Node, draft: Draft) -> Node | str | None:
    """select(true, x, y) -> x;  select(false, x, y) -> y;  select(p, x, x) -> x"""
    predicate, x, y = node.operands
    if x == y:
        return x
    value = read_splat(draft, predicate)
    if value is None:
        return None
    return x if value else y


def drop_identity(node: Node, draft: Draft) -> Node | str | None:
    """f(x : t) : t -> x, where f is a convert, bitcast-convert, reshape or slice"""
    operand = node.operands[0]
    return operand if draft[operand].type == node.type else None


def compare_random_bits(node: Node, draft: Draft) -> Node | str | None:
    """compare(f(bitcast-convert(k | bits >> s)), c) -> compare(bits, d), where f never falls: of a random number in
    [0, 1), as jax.random.bernoulli makes and compares it, the bits say as much"""
    assert isinstance(node.attrs, CompareAttrs)
    if node.attrs.total_order:
        return None
    for number, other in (node.operands, node.operands[::-1]):
        limit = read_splat(draft, other)
        found = _find_random_bits(draft, number) if limit is not None else None
        if limit is None or found is None or np.isnan(limit):
            continue
        direction = node.attrs.direction
        if number != node.operands[0]:
            direction = _MIRRORED.get(direction, direction)
        if direction in ("EQ", "NE"):
            continue
        unsigned = draft[found.bits].dtype.numpy
        beyond, shift = _first_beyond(found, limit, direction in ("LE", "GT")), found.shift
        if beyond << shift >= 1 << 8 * unsigned.itemsize:
            continue  # all are on one side: no probability
        constant = ConstantAttrs(Literal.of(np.array(beyond << shift, unsigned)))
        dtype = draft[found.bits].dtype
        value = draft.add(node, "constant", ArrayType(dtype, ()), (), constant)
        if node.shape != ():
            type_ = ArrayType(dtype, node.shape)
            value = draft.add(node, "broadcast", type_, (value,), BroadcastAttrs(()))
        way = CompareAttrs("LT" if direction in ("LT", "LE") else "GE")
        return become(node, "compare", (found.bits, value), way)
    return None


_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


_Step = tuple[Node, bool, np.ndarray]
"""An op on scalars, whether the number is its first operand, and the constant that is the other."""


@dataclass(frozen=True, slots=True)
class _RandomNumber:
    """A float made of unsigned bits: `high` | bits >> `shift`, seen as a float.  It goes through steps that never let
    it fall as the bits grow."""

    steps: tuple[_Step, ...]
    high: int
    shift: int
    bits: str


def _first_beyond(number: _RandomNumber, limit: np.ndarray, strictly: bool) -> int:
    """The least value of the shifted bits of which the number is `limit` or more, or more than that (strictly)."""
    size = limit.dtype.itemsize

    def is_beyond(upper: int) -> bool:
        value = np.array(number.high | upper, f"u{size}").view(limit.dtype)
        for step, first, constant in number.steps:
            (value,) = eval_node(step, (value, constant) if first else (constant, value))
        return bool(value > limit if strictly else value >= limit)

    return bisect_left(range(1 << (8 * size - number.shift)), True, key=is_beyond)


def _find_random_bits(draft: Draft, name: str) -> _RandomNumber | None:
    steps: list[_Step] = []
    node = draft[name]
    while (step := _find_rising_step(node, draft)) is not None:
        steps.append(step[0])
        node = draft[step[1]]
    if node.op != "bitcast-convert" or node.dtype not in _FLOAT_PRECISION_BITS:
        return None
    joined = draft[node.operands[0]]
    if joined.op != "or" or not joined.dtype.is_unsigned or joined.dtype.bytes != node.dtype.bytes:
        return None
    for part, other in (joined.operands, joined.operands[::-1]):
        shifted, high = draft[part], read_splat(draft, other)
        if shifted.op != "shift-right-logical" or high is None:
            continue
        shift = read_splat(draft, shifted.operands[1])
        mantissa = _FLOAT_PRECISION_BITS[node.dtype] - 1
        infinity = int(np.array(np.inf, node.dtype.numpy).view(joined.dtype.numpy))
        if shift is None or not 8 * node.dtype.bytes - mantissa <= shift < 8 * node.dtype.bytes:
            continue
        if int(high) % (1 << mantissa) == 0 and int(high) < infinity:
            return _RandomNumber(tuple(steps[::-1]), int(high), int(shift), shifted.operands[0])
    return None


def _find_rising_step(node: Node, draft: Draft) -> tuple[_Step, str] | None:
    """A step with a constant, and the operand that is none."""
    if node.op not in ("add", "subtract", "multiply", "maximum", "minimum"):
        return None
    for number, other in (node.operands, node.operands[::-1]):
        value = read_splat(draft, other)
        if value is None or read_splat(draft, number) is not None or not np.isfinite(value):
            continue
        first = number == node.operands[0]
        if (node.op == "subtract" and not first) or (node.op == "multiply" and not value > 0):
            continue
        return (replace(node, type=ArrayType(node.dtype, ())), first, value), number
    return None


def merge_converts(node: Node, draft: Draft) -> Node | str | None:
    """convert(convert(x : a) : b) : c -> convert(x) : c, if every value of a is one of b"""
    inner = draft[node.operands[0]]
    if inner.op != "convert":
        return None
    x = draft[inner.operands[0]]
    if not _is_exact(x.dtype, inner.dtype):
        return None
    # Integers wrap into integers, floats saturate: the way through a float is another function.
    wraps = x.dtype.is_integer and node.dtype.is_integer
    if wraps and inner.dtype.is_float and not _is_exact(x.dtype, node.dtype):
        return None
    return replace(node, operands=(x.name,))


_FLOAT_PRECISION_BITS = {DType.F16: 11, DType.BF16: 8, DType.F32: 24, DType.F64: 53}


_FLOAT_EXPONENT_BITS = {DType.F16: 5, DType.BF16: 8, DType.F32: 8, DType.F64: 11}


def _is_exact(source: DType, target: DType) -> bool:
    """Whether converting keeps every value."""
    if source is target:
        return True
    if source.is_complex or target.is_complex or target is DType.PRED:
        return False
    if source is DType.PRED:
        return target.is_integer or target in WIDE_FLOATS
    if source.is_integer:
        magnitude = 8 * source.bytes - source.is_signed
        if target.is_integer:
            holds_sign = target.is_signed or source.is_unsigned
            return holds_sign and magnitude <= 8 * target.bytes - target.is_signed
        return magnitude <= _FLOAT_PRECISION_BITS.get(target, 0)
    if source in WIDE_FLOATS and target in WIDE_FLOATS:
        return (
            _FLOAT_PRECISION_BITS[source] <= _FLOAT_PRECISION_BITS[target]
            and _FLOAT_EXPONENT_BITS[source] <= _FLOAT_EXPONENT_BITS[target]
        )
    return False


def merge_bitcast_converts(node: Node, draft: Draft) -> Node | str | None:
    """bitcast-convert(bitcast-convert(x)) -> bitcast-convert(x), all of one size"""
    inner = draft[node.operands[0]]
    if inner.op != "bitcast-convert":
        return None
    x = draft[inner.operands[0]]
    if not x.dtype.bytes == inner.dtype.bytes == node.dtype.bytes:
        return None
    return replace(node, operands=(x.name,))


def lift_reshape_over_elementwise(
    node: Node, draft: Draft, *, merges: bool = False
) -> Node | str | None:
    """f(reshape(x), reshape(y), broadcast(c)) -> reshape(f(x, y, broadcast(c)))

    for x and y of one shape, which differs from f's in dimensions of 1 only, and constant c.
    merges: it may be any shape.
    """
    shape: tuple[int, ...] | None = None
    for name in node.operands:
        operand = draft[name]
        if OPS[operand.op].is_view:
            below = draft[operand.operands[0]].shape
            if not merges and squeeze(below) != squeeze(node.shape):
                return None
            if shape not in (None, below):
                return None
            shape = below
        elif read_splat(draft, name) is None:
            return None
    if shape is None or any(draft[o].shape != node.shape for o in node.operands):
        return None
    operands = []
    for name in node.operands:
        operand = draft[name]
        if OPS[operand.op].is_view:
            operands.append(operand.operands[0])
        else:
            type = ArrayType(operand.dtype, shape)
            operands.append(draft.add(node, "reshape", type, (name,)))
    type = ArrayType(node.dtype, shape)
    value = draft.add(node, node.op, type, tuple(operands), node.attrs)
    return become(node, "reshape", (value,))
