"""Element-wise ops: result[i] = f(operands[i]).

Meanings follow XLA: integers wrap, conversions saturate, NaN propagates.  They accept operands with more dimensions
than the node says, or scalars.  So the body of a reduce can be evaluated for whole arrays at once.
"""

# NumPy's stubs give Any for arithmetic on arrays of an unknown dtype, which is what all of this is.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from astitch.graph import index as ix
from astitch.graph.ir import ArrayType, CompareAttrs, DType, Graph, Node, ReducePrecisionAttrs, Type
from astitch.graph.ops.access import Access, Choice, Index, Read
from astitch.graph.ops.arrays import (
    Array,
    bits_of,
    convert,
    is_integer,
    reciprocal_root,
    total_order_key,
    unsigned,
    widen,
    widen_more,
)
from astitch.graph.ops.hlo_fields import NO_ATTRIBUTES, TEXT, Attributes, Field, Form
from astitch.graph.ops.neutral import (
    all_bits,
    has_bits,
    largest_value,
    least_value,
    neutral_of_sum,
    neutral_one,
    neutral_zero,
    no_bits,
)
from astitch.graph.ops.row import (
    Cost,
    Kind,
    Meaning,
    Neutral,
    Op,
    Rule,
    Shape,
    need_proportion,
    share_equal_shapes,
)
from astitch.graph.ops.rules import (
    PART_TYPES,
    WHOLE_TYPES,
    BrokenRule,
    array_of_result,
    arrays_of,
    attrs_of,
    require,
    require_operands,
)


def _is_number(dtype: DType) -> bool:
    return dtype is not DType.PRED


def _is_integer(dtype: DType) -> bool:
    return dtype.is_integer


def _is_inexact(dtype: DType) -> bool:
    return dtype.is_float or dtype.is_complex


def _is_any(dtype: DType) -> bool:
    return True


def _same_type(arity: int, is_legal: Callable[[DType], bool]) -> Rule:
    """The rule that every operand and the result have one type, whose element type is legal."""

    def rule(node: Node, operands: Sequence[Type]) -> Type:
        arrays = arrays_of(operands, arity)
        for i, array in enumerate(arrays[1:], 1):
            if array != arrays[0]:
                raise BrokenRule(f"operand 0 is {arrays[0]}, operand {i} is {array}")
        dtype = arrays[0].dtype
        require_operands(is_legal(dtype), f"{node.op} of {dtype.value} has no meaning")
        return arrays[0]

    return rule


def _infer_abs(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = arrays_of(operands, 1)
    require_operands(x.dtype is not DType.PRED, "abs of pred has no meaning")
    return ArrayType(PART_TYPES.get(x.dtype, x.dtype), x.shape)


def _infer_is_finite(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = arrays_of(operands, 1)
    require_operands(x.dtype.is_float, f"is-finite of {x.dtype.value} has no meaning")
    return ArrayType(DType.PRED, x.shape)


def _infer_compare(node: Node, operands: Sequence[Type]) -> Type:
    x, y = arrays_of(operands, 2)
    direction = attrs_of(node, CompareAttrs).direction
    if x != y:
        raise BrokenRule(f"operand 0 is {x}, operand 1 is {y}")
    require(direction in ("EQ", "NE", "LT", "LE", "GT", "GE"), f"unknown direction {direction!r}")
    return ArrayType(DType.PRED, x.shape)


def _infer_select(node: Node, operands: Sequence[Type]) -> Type:
    predicate, x, y = arrays_of(operands, 3)
    if predicate != ArrayType(DType.PRED, x.shape):
        raise BrokenRule(f"operand 0 is {predicate}, not a pred of the shape of {x}")
    if x != y:
        raise BrokenRule(f"operand 1 is {x}, operand 2 is {y}")
    return x


def _infer_clamp(node: Node, operands: Sequence[Type]) -> Type:
    low, x, high = arrays_of(operands, 3)
    require_operands(low == x == high, f"operands are {low}, {x} and {high}, not of one type")
    return x


def _infer_convert(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = arrays_of(operands, 1)
    return ArrayType(array_of_result(node).dtype, x.shape)


def _infer_bitcast_convert(node: Node, operands: Sequence[Type]) -> Type:
    """Same size: same shape.  Smaller dtype: one more, last, dimension; larger: one less."""
    (x,) = arrays_of(operands, 1)
    dtype = array_of_result(node).dtype
    if x.dtype.bits == dtype.bits:
        return ArrayType(dtype, x.shape)
    if x.dtype.bits > dtype.bits:
        return ArrayType(dtype, (*x.shape, x.dtype.bits // dtype.bits))
    require_operands(
        x.shape[-1:] == (dtype.bits // x.dtype.bits,),
        f"the last dimension of {x} does not hold one {dtype.value}",
    )
    return ArrayType(dtype, x.shape[:-1])


def _infer_complex(node: Node, operands: Sequence[Type]) -> Type:
    x, y = arrays_of(operands, 2)
    require_operands(
        x == y and x.dtype in WHOLE_TYPES, f"operands are {x} and {y}, not both f32 or f64"
    )
    return ArrayType(WHOLE_TYPES[x.dtype], x.shape)


def _infer_part(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = arrays_of(operands, 1)
    return ArrayType(PART_TYPES.get(x.dtype, x.dtype), x.shape)


def _infer_reduce_precision(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = arrays_of(operands, 1)
    a = attrs_of(node, ReducePrecisionAttrs)
    require_operands(x.dtype.is_float, f"reduce-precision of {x.dtype.value} has no meaning")
    require(
        a.exponent_bits >= 1 and a.mantissa_bits >= 0,
        f"{a.exponent_bits} bits of exponent and {a.mantissa_bits} of mantissa make no float",
    )
    return x


def _arithmetic(function: Callable[..., Array]) -> Meaning:
    """A function that f32 computes exactly or correctly rounded: 16 bits then round once."""

    def meaning(node: Node, *operands: Array) -> Array:
        return np.asarray(function(*map(widen, operands))).astype(operands[0].dtype, copy=False)

    return meaning


def _function(function: Callable[..., Array]) -> Meaning:
    """A function computed with more digits than the result keeps."""

    def meaning(node: Node, *operands: Array) -> Array:
        return np.asarray(function(*map(widen_more, operands))).astype(
            operands[0].dtype, copy=False
        )

    return meaning


def _plain(function: Callable[..., Array]) -> Meaning:
    def meaning(node: Node, *operands: Array) -> Array:
        return np.asarray(function(*operands))

    return meaning


def _subtract(x: Array, y: Array) -> Array:
    return x ^ y if x.dtype == np.bool_ else x - y


def _maximum(x: Array, y: Array) -> Array:
    """NaN if either is; +0 is larger than -0."""
    result = np.maximum(x, y)
    return np.where((x == 0) & (y == 0), x + y, result) if x.dtype.kind == "f" else result


def _minimum(x: Array, y: Array) -> Array:
    """NaN if either is; -0 is smaller than +0."""
    result = np.minimum(x, y)
    return np.where((x == 0) & (y == 0), -(-x - y), result) if x.dtype.kind == "f" else result


def _divide(x: Array, y: Array) -> Array:
    """Integers: towards zero; x / 0 has all bits set, INT_MIN / -1 wraps to INT_MIN."""
    if not is_integer(x):
        return x / y
    negated = (y == -1) if x.dtype.kind == "i" else np.False_
    safe = np.where((y == 0) | negated, np.ones_like(y), y)
    quotient = x // safe
    quotient = quotient + ((quotient * safe != x) & ((x < 0) != (safe < 0)))
    quotient = np.where(negated, -x if x.dtype.kind == "i" else x, quotient)
    return np.where(y == 0, ~np.zeros_like(x), quotient)


def _remainder(x: Array, y: Array) -> Array:
    """The sign is the dividend's; integers: x % 0 = x, INT_MIN % -1 = 0."""
    if not is_integer(x):
        return np.fmod(x, y)
    trivial = (y == 0) | (y == -1) if x.dtype.kind == "i" else y == 0
    remainder = np.fmod(x, np.where(trivial, np.ones_like(y), y))
    return np.where(y == 0, x, remainder)


def _power(x: Array, y: Array) -> Array:
    """Integers: the power modulo 2^bits; a negative exponent gives 0 unless the base is 1 or -1.

    (XLA's CPU and GPU code looks at the six low bits of the exponent only.  That is enough wherever nothing overflows.)
    Complex: x^0 and 1^y are 1; 0^y is 0 or 1 for a real y that is not negative, else NaN.
    """
    if x.dtype.kind == "c":
        of_zero = np.where(y.real > 0, 0.0, np.where(y.real == 0, 1.0, np.nan))
        of_zero = np.where(y.imag == 0, of_zero, np.nan)
        nowhere = np.where(np.isnan(of_zero), complex(np.nan, np.nan), of_zero)
        of_others = np.where((y == 0) | (x == 1), 1, np.power(np.where(x == 0, 1, x), y))
        return np.where(x == 0, nowhere, of_others)
    if not is_integer(x):
        return np.power(x, y)
    result, base, exponent = np.ones_like(x * y), x, np.where(y < 0, np.zeros_like(y), y)
    while np.any(exponent > 0):
        result = np.where(exponent & 1, result * base, result)
        base, exponent = base * base, exponent >> 1
    if x.dtype.kind == "u":
        return result
    unit = np.where(
        x == -1, np.where(y & 1, -np.ones_like(x), np.ones_like(x)), np.where(x == 1, x, 0 * x)
    )
    return np.where(y < 0, unit, result)


def _atan2(y: Array, x: Array) -> Array:
    """Complex: -i log((x + iy) / sqrt(x^2 + y^2)), as XLA has it."""
    if y.dtype.kind == "c":
        return -1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y))
    return np.arctan2(y, x)


def meaning_of_abs(node: Node, x: Array) -> Array:
    """|INT_MIN| wraps; the result of a complex operand is real, and NaN where a part is."""
    if x.dtype.kind == "c":
        size = np.abs(widen_more(x)).astype(x.real.dtype)
        return np.where(np.isnan(x), size.dtype.type(np.nan), size)
    return np.asarray(np.abs(widen(x))).astype(x.dtype, copy=False)


def _sign(x: Array) -> Array:
    """NaN and both zeros are themselves; complex: x / |x|."""
    if x.dtype.kind == "c":
        magnitude = np.abs(x)
        return np.where(magnitude == 0, x, x / np.where(magnitude == 0, 1, magnitude))
    if x.dtype.kind == "f":
        return np.where((x == 0) | np.isnan(x), x, np.copysign(np.ones_like(x), x))
    return np.sign(x)


def _round_half_away(x: Array) -> Array:
    whole = np.trunc(x)
    return np.copysign(np.abs(whole) + (np.abs(x - whole) >= 0.5), x)


def meaning_of_clamp(node: Node, low: Array, x: Array, high: Array) -> Array:
    """min(max(x, low), high); NaN anywhere gives NaN."""
    return np.asarray(_minimum(_maximum(widen(x), widen(low)), widen(high))).astype(
        x.dtype, copy=False
    )


def _shift(shift: Callable[[Array, Array], Array], x: Array, count: Array, beyond: Array) -> Array:
    """A count that is negative or reaches the width shifts all bits out."""
    inside = unsigned(count) < bits_of(x.dtype)
    return np.where(inside, shift(x, np.where(inside, count, np.zeros_like(count))), beyond)


def _shift_left(x: Array, count: Array) -> Array:
    return _shift(np.left_shift, x, count, np.zeros_like(x))


def _shift_right_arithmetic(x: Array, count: Array) -> Array:
    signed = x.view(np.dtype(f"i{x.dtype.itemsize}"))
    shifted = _shift(
        np.right_shift,
        signed,
        count.view(signed.dtype),
        np.where(signed < 0, -1, 0).astype(signed.dtype),
    )
    return np.asarray(shifted).view(x.dtype)


def _shift_right_logical(x: Array, count: Array) -> Array:
    shifted = _shift(np.right_shift, unsigned(x), unsigned(count), np.zeros_like(unsigned(x)))
    return np.asarray(shifted).view(x.dtype)


def _mulhi(x: Array, y: Array) -> Array:
    """The upper half of the product of two integers."""
    bits = bits_of(x.dtype)
    if bits < 64:
        wide = np.dtype(f"{x.dtype.kind}{2 * x.dtype.itemsize}")
        return np.asarray((x.astype(wide) * y.astype(wide)) >> wide.type(bits)).astype(x.dtype)
    a, b = unsigned(x), unsigned(y)
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    (high_a, low_a), (high_b, low_b) = ((v >> half, v & mask) for v in (a, b))
    middle = high_a * low_b + (low_a * low_b >> half)
    other = low_a * high_b + (middle & mask)
    product = high_a * high_b + (middle >> half) + (other >> half)
    if x.dtype.kind == "i":  # a negative number counts 2^64 too much as an unsigned one
        product = product - np.where(x < 0, b, 0) - np.where(y < 0, a, 0)
    return np.asarray(product).astype(np.uint64).view(x.dtype)


def _popcnt(x: Array) -> Array:
    return np.bitwise_count(unsigned(x)).astype(x.dtype)


def _count_leading_zeros(x: Array) -> Array:
    bits = np.array(unsigned(x))
    width = bits_of(x.dtype)
    for step in (1, 2, 4, 8, 16, 32):
        if step < width:
            bits |= bits >> bits.dtype.type(step)
    return (width - np.bitwise_count(bits).astype(np.int64)).astype(x.dtype)


_COMPARISONS: dict[str, Callable[..., Array]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def meaning_of_compare(node: Node, x: Array, y: Array) -> Array:
    attrs = attrs_of(node, CompareAttrs)
    prepare = total_order_key if attrs.total_order else widen
    return np.asarray(_COMPARISONS[attrs.direction](prepare(x), prepare(y)))


def meaning_of_is_finite(node: Node, x: Array) -> Array:
    return np.asarray(np.isfinite(widen(x)))


def meaning_of_convert(node: Node, x: Array) -> Array:
    return np.asarray(convert(x, node.dtype.numpy))


def meaning_of_bitcast_convert(node: Node, x: Array) -> Array:
    """The bits of x as another type.  Smaller elements give a new last dimension; larger ones consume the last one.

    NumPy keeps a number of less than eight bits in a byte: the first one is the lowest of a packed byte.
    """
    dtype = node.dtype.numpy
    bits = DType.of(x.dtype).bits
    if bits < 8 <= node.dtype.bits:
        parts = np.asarray(x, order="C").view(np.uint8).reshape(*x.shape[:-1], -1, 8 // bits)
        places = np.arange(0, 8, bits, dtype=np.uint8)
        packed = np.bitwise_or.reduce((parts & (2**bits - 1)) << places, -1)
        return packed.view(dtype).reshape(x.shape[:-1])
    x = np.asarray(x, order="C")
    if dtype.itemsize == x.dtype.itemsize:
        return x.view(dtype)
    if dtype.itemsize < x.dtype.itemsize:
        return x.reshape(*x.shape, 1).view(dtype)
    return x.view(dtype).reshape(x.shape[:-1])


def meaning_of_reduce_precision(node: Node, x: Array) -> Array:
    """Rounds to even; beyond the exponent range: infinity, or zero for a subnormal."""
    attrs = attrs_of(node, ReducePrecisionAttrs)
    own_mantissa, own_exponent = _FLOAT_BITS[node.dtype]
    wide = np.asarray(widen(x), order="C")
    mantissa, exponent = (52, 11) if wide.dtype == np.float64 else (23, 8)
    bits = np.array(unsigned(wide))
    integer = bits.dtype.type
    dropped = mantissa - attrs.mantissa_bits
    if attrs.mantissa_bits < own_mantissa:
        last = (bits >> integer(dropped)) & integer(1)
        bits = (bits + integer((1 << (dropped - 1)) - 1) + last) & ~integer((1 << dropped) - 1)
    if attrs.exponent_bits < own_exponent:
        bias, kept_bias = (1 << (exponent - 1)) - 1, (1 << (attrs.exponent_bits - 1)) - 1
        sign = bits & integer(1 << (mantissa + exponent))
        infinity = integer(((1 << exponent) - 1) << mantissa)
        own = bits & infinity
        bits = np.where(own > integer((bias + kept_bias) << mantissa), sign | infinity, bits)
        bits = np.where(own <= integer((bias - kept_bias) << mantissa), sign, bits)
    result = np.where(np.isnan(wide), wide, np.asarray(bits, integer).view(wide.dtype))
    return result.astype(x.dtype, copy=False)


_FLOAT_BITS = {
    DType.F16: (10, 5),
    DType.BF16: (7, 8),
    DType.F32: (23, 8),
    DType.F64: (52, 11),
    DType.F8E4M3FN: (3, 4),
    DType.F8E5M2: (2, 5),
}


def meaning_of_complex(node: Node, real: Array, imag: Array) -> Array:
    result = np.empty(np.broadcast_shapes(real.shape, imag.shape), node.dtype.numpy)
    result.real, result.imag = real, imag
    return result


def _logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


_ERF_STEP = 1 / 32


_ERF_TERMS = 10


def _tabulate_erf() -> Array:
    """Taylor coefficients of erf around k/32 in [0, 6]: y' = c exp(-x^2), y'' = -2 x y' ..."""
    points = np.arange(int(6 / _ERF_STEP) + 1) * _ERF_STEP
    derivatives = [
        2 / math.sqrt(math.pi) * np.exp(-points * points)
    ]  # of erf, the first, second ...
    derivatives.append(-2 * points * derivatives[0])
    for n in range(1, _ERF_TERMS):
        derivatives.append(-2 * points * derivatives[n] - 2 * n * derivatives[n - 1])
    table = [np.array([math.erf(p) for p in points])]
    table += [d / math.factorial(n + 1) for n, d in enumerate(derivatives)]
    return np.array(table)


_ERF_TABLE = _tabulate_erf()


def _erf(x: Array) -> Array:
    """The error function to 1e-16: a Taylor expansion around the nearest k/32."""
    magnitude = np.minimum(np.abs(np.asarray(x, np.float64)), 6.0)
    nan = np.isnan(magnitude)
    nearest = np.rint(np.where(nan, 0.0, magnitude) / _ERF_STEP).astype(np.intp)
    offset = magnitude - nearest * _ERF_STEP
    result = _ERF_TABLE[-1][nearest]
    for coefficients in _ERF_TABLE[-2::-1]:
        result = result * offset + coefficients[nearest]
    return np.copysign(result, x)


def meaning_of_identity(node: Node, x: Array) -> Array:
    return x


def _bitcast_reads(graph: Graph, node: Node, index: Index) -> tuple[Read, ...]:
    """The operand at the same index; the element that a narrower one is a part of; or all parts of a wider one."""
    (operand,) = node.operands
    parts = node.dtype.bytes // graph[operand].dtype.bytes
    if parts > 1:
        return tuple(Read(operand, (*index, ix.constant(part))) for part in range(parts))
    return (Read(operand, index[: graph[operand].array.rank]),)


def _share_equal_extents(
    node: Node, source: Shape, target: Shape, number: int
) -> list[tuple[int, int]]:
    """A bitcast shares the dimensions before the one of parts, which only one of the two shapes may have."""
    return [(d, d) for d in range(min(len(source), len(target))) if source[d] == target[d]]


def _read_parts(graph: Graph, node: Node, index: Index) -> Access:
    return Access((Choice((), _bitcast_reads(graph, node, index)),))


def _read_total_order(instruction: Any, name: str) -> bool:
    # XLA of jaxlib 0.12 says it in a field of its own, before that it is a type of comparison.
    total = instruction.comparison_order == b"TOTAL"
    return total or instruction.comparison_type == b"TOTALORDER"


def _write_total_order(instruction: Any, name: str, is_total: bool) -> None:
    if is_total:  # else XLA takes the type's own
        instruction.comparison_type = b"TOTALORDER"  # until jaxlib 0.11
        instruction.comparison_order = b"TOTAL"


_COMPARE = Attributes(
    CompareAttrs,
    (
        Field("direction", "comparison_direction", TEXT),
        Field("total_order", "comparison_order", Form(_read_total_order, _write_total_order)),
    ),
)
_REDUCE_PRECISION = Attributes(
    ReducePrecisionAttrs,
    (Field("exponent_bits", "exponent_bits"), Field("mantissa_bits", "mantissa_bits")),
)


def light(
    cuda: str,
    meaning: Meaning,
    rule: Rule,
    *,
    flops: int = 1,
    neutral: Neutral | None = None,
    combiner: np.ufunc | None = None,
    attributes: Attributes = NO_ATTRIBUTES,
    is_commutative: bool = False,
    is_exact: bool = False,
    is_free: bool = False,
    is_conversion: bool = False,
    addend_sign: int = 0,
    carries_narrow: bool = False,
    negates: bool = False,
) -> Op:
    """An element-wise op of few instructions."""
    return Op(
        Kind.ELEMENTWISE,
        cuda=cuda,
        flops=flops,
        meaning=meaning,
        rule=rule,
        attributes=attributes,
        pairs=share_equal_shapes,
        neutral=neutral,
        combiner=combiner,
        is_commutative=is_commutative or combiner is not None,
        is_exact=is_exact,
        is_free=is_free,
        is_conversion=is_conversion,
        addend_sign=addend_sign,
        carries_narrow=carries_narrow,
        negates=negates,
    )


def heavy(
    function: str,
    meaning: Meaning,
    *,
    flops: int = 20,
    narrow: str = "",
    is_approximate: bool = False,
) -> Op:
    """A function of one float that takes many instructions."""
    cuda = f"{function}({{0}})"
    narrow_cuda = f"{narrow}<{{T}}>({{0}})" if narrow else ""
    row = _of_many_instructions(cuda, meaning, flops, 1, _is_inexact, narrow_cuda)
    return replace(row, is_approximate=is_approximate)


def heavy_binary(
    function: str,
    meaning: Meaning,
    *,
    flops: int,
    narrow: str = "",
    neutral: Neutral | None = None,
    carries_narrow: bool = False,
) -> Op:
    """A function of two numbers that takes many instructions."""
    cuda = f"{function}({{0}}, {{1}})"
    narrow_cuda = f"{narrow}<{{T}}>({{0}}, {{1}})" if narrow else ""
    row = _of_many_instructions(cuda, meaning, flops, 2, _is_number, narrow_cuda)
    return replace(row, neutral=neutral, carries_narrow=carries_narrow)


def _of_many_instructions(
    cuda: str,
    meaning: Meaning,
    flops: int,
    arity: int,
    is_legal: Callable[[DType], bool],
    narrow_cuda: str,
) -> Op:
    return Op(
        Kind.ELEMENTWISE,
        Cost.HEAVY,
        cuda,
        flops,
        narrow_cuda,
        meaning,
        _same_type(arity, is_legal),
        pairs=share_equal_shapes,
    )


def _arithmetic_row(
    name: str,
    function: Callable[..., Array],
    is_legal: Callable[[DType], bool],
    *,
    neutral: Neutral,
    combiner: np.ufunc | None = None,
    is_exact: bool = False,
    addend_sign: int = 0,
) -> Op:
    return light(
        f"hlo_{name}({{0}}, {{1}})",
        _arithmetic(function),
        _same_type(2, is_legal),
        neutral=neutral,
        combiner=combiner,
        is_exact=is_exact,
        addend_sign=addend_sign,
        carries_narrow=True,
    )


def _bits_row(
    name: str,
    function: Callable[..., Array],
    is_legal: Callable[[DType], bool],
    *,
    neutral: Neutral,
    combiner: np.ufunc | None = None,
) -> Op:
    return light(
        f"hlo_{name}({{0}}, {{1}})",
        _plain(function),
        _same_type(2, is_legal),
        neutral=neutral,
        combiner=combiner,
    )


def _float_row(name: str, function: Callable[..., Array], *, is_exact: bool = False) -> Op:
    return light(
        f"hlo_{name}({{0}})", _arithmetic(function), _same_type(1, _is_inexact), is_exact=is_exact
    )


_INTEGER_PAIR = _same_type(2, _is_integer)

_ROWS: dict[str, Op] = {
    "add": _arithmetic_row(
        "add", np.add, _is_any, neutral=neutral_of_sum, combiner=np.add, addend_sign=1
    ),
    "subtract": _arithmetic_row(
        "subtract", _subtract, _is_number, neutral=neutral_zero, addend_sign=-1
    ),
    "multiply": _arithmetic_row(
        "multiply", np.multiply, _is_any, neutral=neutral_one, combiner=np.multiply
    ),
    "mulhi": light("hlo_mulhi({0}, {1})", _plain(_mulhi), _INTEGER_PAIR, flops=2),
    "maximum": _arithmetic_row(
        "maximum", _maximum, _is_any, neutral=least_value, combiner=np.maximum, is_exact=True
    ),
    "minimum": _arithmetic_row(
        "minimum", _minimum, _is_any, neutral=largest_value, combiner=np.minimum, is_exact=True
    ),
    "negate": light(
        "hlo_negate({0})",
        _arithmetic(np.negative),
        _same_type(1, _is_number),
        is_exact=True,
        carries_narrow=True,
    ),
    "abs": light("hlo_abs({0})", meaning_of_abs, _infer_abs, is_exact=True),
    "sign": light("hlo_sign({0})", _arithmetic(_sign), _same_type(1, _is_number), is_exact=True),
    "floor": _float_row("floor", np.floor, is_exact=True),
    "ceil": _float_row("ceil", np.ceil, is_exact=True),
    "round-nearest-even": _float_row("round_nearest_even", np.rint, is_exact=True),
    "round-nearest-afz": _float_row("round_nearest_afz", _round_half_away, is_exact=True),
    "and": _bits_row("and", np.bitwise_and, has_bits, neutral=all_bits, combiner=np.bitwise_and),
    "or": _bits_row("or", np.bitwise_or, has_bits, neutral=no_bits, combiner=np.bitwise_or),
    "xor": _bits_row("xor", np.bitwise_xor, has_bits, neutral=no_bits, combiner=np.bitwise_xor),
    "not": light("hlo_not({0})", _plain(np.invert), _same_type(1, has_bits), negates=True),
    "shift-left": _bits_row("shift_left", _shift_left, _is_integer, neutral=no_bits),
    "shift-right-arithmetic": _bits_row(
        "shift_right_arithmetic", _shift_right_arithmetic, _is_integer, neutral=no_bits
    ),
    "shift-right-logical": _bits_row(
        "shift_right_logical", _shift_right_logical, _is_integer, neutral=no_bits
    ),
    "popcnt": light("hlo_popcnt({0})", _plain(_popcnt), _same_type(1, _is_integer)),
    "count-leading-zeros": light(
        "hlo_clz({0})", _plain(_count_leading_zeros), _same_type(1, _is_integer)
    ),
    "is-finite": light("hlo_is_finite({0})", meaning_of_is_finite, _infer_is_finite),
    # Rendered by direction, see emit_cuda.
    "compare": light("", meaning_of_compare, _infer_compare, attributes=_COMPARE),
    "select": light(
        "({0} ? {1} : {2})", _plain(np.where), _infer_select, is_exact=True, carries_narrow=True
    ),
    "clamp": light("hlo_clamp({0}, {1}, {2})", meaning_of_clamp, _infer_clamp, is_exact=True),
    # Rendered by the two types.
    "convert": light("", meaning_of_convert, _infer_convert, is_exact=True, is_conversion=True),
    # Rendered by the two types; between sizes a dimension of parts comes or goes.
    "bitcast-convert": Op(
        Kind.ELEMENTWISE,
        meaning=meaning_of_bitcast_convert,
        rule=_infer_bitcast_convert,
        pairs=_share_equal_extents,
        index_map=_read_parts,
        needed=need_proportion,
        is_exact=True,
        is_free=True,
        is_bitcast=True,
    ),
    "reduce-precision": light(
        "", meaning_of_reduce_precision, _infer_reduce_precision, attributes=_REDUCE_PRECISION
    ),
    "copy": replace(
        light("{0}", meaning_of_identity, _same_type(1, _is_any), is_exact=True, is_free=True),
        keeps_order=True,
    ),
    "divide": heavy_binary(
        "hlo_divide",
        _arithmetic(_divide),
        flops=8,
        narrow="narrow_divide",
        neutral=neutral_one,
        carries_narrow=True,
    ),
    "remainder": heavy_binary("hlo_remainder", _arithmetic(_remainder), flops=16),
    "power": heavy_binary("hlo_power", _function(_power), flops=40),
    "atan2": heavy_binary("hlo_atan2", _function(_atan2), flops=40),
    "exponential": heavy("hlo_exp", _function(np.exp), narrow="narrow_exp", is_approximate=True),
    "exponential-minus-one": heavy("hlo_expm1", _function(np.expm1)),
    "log": heavy("hlo_log", _function(np.log), narrow="narrow_log"),
    "log-plus-one": heavy("hlo_log1p", _function(np.log1p)),
    "logistic": heavy(
        "hlo_logistic", _function(_logistic), narrow="narrow_logistic", is_approximate=True
    ),
    "tanh": heavy("hlo_tanh", _function(np.tanh), narrow="narrow_tanh", is_approximate=True),
    "tan": heavy("hlo_tan", _function(np.tan)),
    "sine": heavy("hlo_sin", _function(np.sin)),
    "cosine": heavy("hlo_cos", _function(np.cos)),
    "sqrt": heavy("hlo_sqrt", _function(np.sqrt), flops=8),
    "rsqrt": heavy("hlo_rsqrt", _function(reciprocal_root), flops=4),
    "cbrt": heavy("hlo_cbrt", _function(np.cbrt)),
    "erf": heavy("hlo_erf", _function(_erf)),
    "acos": heavy("hlo_acos", _function(np.arccos)),
    "acosh": heavy("hlo_acosh", _function(np.arccosh)),
    "asin": heavy("hlo_asin", _function(np.arcsin)),
    "asinh": heavy("hlo_asinh", _function(np.arcsinh)),
    "atan": heavy("hlo_atan", _function(np.arctan)),
    "atanh": heavy("hlo_atanh", _function(np.arctanh)),
    "cosh": heavy("hlo_cosh", _function(np.cosh)),
    "sinh": heavy("hlo_sinh", _function(np.sinh)),
    "complex": light("hlo_complex({0}, {1})", meaning_of_complex, _infer_complex, flops=0),
    "real": light("hlo_real({0})", _plain(np.real), _infer_part, flops=0),
    "imag": light("hlo_imag({0})", _plain(np.imag), _infer_part, flops=0),
}

_OF_COMPLEX = frozenset(
    "abs add cbrt compare complex convert copy cosine divide exponential exponential-minus-one imag log log-plus-one "
    "logistic multiply negate power real rsqrt select sign sine sqrt subtract tan tanh".split()
)
"""Ops whose emitted form knows complex numbers too (cuda/complex.cuh)."""

_ON_TILES = frozenset(
    "abs add and cbrt ceil clamp compare convert cosine divide erf exponential exponential-minus-one floor log "
    "log-plus-one logistic maximum minimum multiply negate not or power reduce-precision remainder round-nearest-even "
    "rsqrt select sine sqrt subtract tan tanh xor".split()
)
"""Ops that XLA computes on the tiles of a product.  Seen with jax 0.12: not sign and is-finite."""

_LINEAR = frozenset("add convert divide multiply negate select subtract".split())
"""Sums and multiples of their operands."""

ROWS = {
    name: replace(
        row,
        takes_complex=name in _OF_COMPLEX,
        on_tiles=name in _ON_TILES,
        is_linear=name in _LINEAR,
    )
    for name, row in _ROWS.items()
}
