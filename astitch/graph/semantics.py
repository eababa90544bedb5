"""The NumPy meaning of ops without a region: takes a node and its operands, hands on its result.

XLA's semantics to the letter: integers wrap, conversions saturate, NaN propagates.  f16, bf16 and
f8 are computed in f32 and rounded once per op, f32 functions in f64: an oracle at least as accurate
as any backend.  Element-wise meanings also accept operands with more dimensions than the node says
(or scalars), so that the body of a reduce can be evaluated for whole arrays at once.  The table is
the `meaning` column of ops.py.
"""

# NumPy's stubs give Any for arithmetic on arrays of an unknown dtype, which is what all of this is.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from astitch.graph.ir import (
    ArrayType,
    BatchNormAttrs,
    BroadcastAttrs,
    CholeskyAttrs,
    CompareAttrs,
    ConstantAttrs,
    ConvolutionAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    DType,
    DynamicSliceAttrs,
    FftAttrs,
    GatherAttrs,
    IotaAttrs,
    Node,
    PadAttrs,
    ReducePrecisionAttrs,
    RngAttrs,
    RngBitGeneratorAttrs,
    SliceAttrs,
    TopKAttrs,
    TransposeAttrs,
    TriangularSolveAttrs,
    TupleType,
    WindowDimension,
)
from astitch.graph.random_bits import generate_philox_bits, generate_threefry_bits

Array = np.ndarray
Meaning = Callable[..., Array]

_NARROW = frozenset({DType.F16.numpy, DType.BF16.numpy, DType.F8E4M3FN.numpy, DType.F8E5M2.numpy})

_EIGHT_BITS = frozenset({DType.F8E4M3FN.numpy, DType.F8E5M2.numpy})

_T = TypeVar("_T")


def _attrs(node: Node, kind: type[_T]) -> _T:
    """The node's attributes, which the importer has built to fit its op."""
    assert isinstance(node.attrs, kind), f"%{node.name} = {node.op} has attributes {node.attrs}"
    return node.attrs


def widen(x: Array) -> Array:
    """The operand in the type that arithmetic is done in: f32 for narrower floats."""
    return x.astype(np.float32) if x.dtype in _NARROW else x


def widen_more(x: Array) -> Array:
    """The operand in the type of sums and functions: f64 for f32, c128 for c64."""
    if x.dtype == np.float32:
        return x.astype(np.float64)
    if x.dtype == np.complex64:
        return x.astype(np.complex128)
    return widen(x)


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


# ---- element-wise: arithmetic --------------------------------------------------------------------


def _is_integer(x: Array) -> bool:
    return x.dtype.kind in "iu"


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
    if not _is_integer(x):
        return x / y
    negated = (y == -1) if x.dtype.kind == "i" else np.False_
    safe = np.where((y == 0) | negated, np.ones_like(y), y)
    quotient = x // safe
    quotient = quotient + ((quotient * safe != x) & ((x < 0) != (safe < 0)))
    quotient = np.where(negated, -x if x.dtype.kind == "i" else x, quotient)
    return np.where(y == 0, ~np.zeros_like(x), quotient)


def _remainder(x: Array, y: Array) -> Array:
    """The sign is the dividend's; integers: x % 0 = x, INT_MIN % -1 = 0."""
    if not _is_integer(x):
        return np.fmod(x, y)
    trivial = (y == 0) | (y == -1) if x.dtype.kind == "i" else y == 0
    remainder = np.fmod(x, np.where(trivial, np.ones_like(y), y))
    return np.where(y == 0, x, remainder)


def _power(x: Array, y: Array) -> Array:
    """Integers: the power modulo 2^bits; a negative exponent gives 0 unless the base is 1 or -1.

    (XLA's CPU and GPU code looks at the six low bits of the exponent only, enough wherever nothing
    overflows.)  Complex: 0^y is 0 or 1 for a real y that is not negative, else NaN.
    """
    if x.dtype.kind == "c":
        of_zero = np.where(y.real > 0, 0.0, np.where(y.real == 0, 1.0, np.nan))
        of_zero = np.where(y.imag == 0, of_zero, np.nan)
        nowhere = np.where(np.isnan(of_zero), complex(np.nan, np.nan), of_zero)
        return np.where(x == 0, nowhere, np.power(np.where(x == 0, 1, x), y))
    if not _is_integer(x):
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
    """|INT_MIN| wraps; the result of a complex operand is real."""
    if x.dtype.kind == "c":
        return np.abs(widen_more(x)).astype(x.real.dtype)
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


# ---- element-wise: bits --------------------------------------------------------------------------


def _bits_of(dtype: np.dtype) -> int:
    return dtype.itemsize * 8


def _unsigned(x: Array) -> Array:
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def _shift(shift: Callable[[Array, Array], Array], x: Array, count: Array, beyond: Array) -> Array:
    """A count that is negative or reaches the width shifts all bits out."""
    inside = _unsigned(count) < _bits_of(x.dtype)
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
    shifted = _shift(np.right_shift, _unsigned(x), _unsigned(count), np.zeros_like(_unsigned(x)))
    return np.asarray(shifted).view(x.dtype)


def _mulhi(x: Array, y: Array) -> Array:
    """The upper half of the product of two integers."""
    bits = _bits_of(x.dtype)
    if bits < 64:
        wide = np.dtype(f"{x.dtype.kind}{2 * x.dtype.itemsize}")
        return np.asarray((x.astype(wide) * y.astype(wide)) >> wide.type(bits)).astype(x.dtype)
    a, b = _unsigned(x), _unsigned(y)
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    (high_a, low_a), (high_b, low_b) = ((v >> half, v & mask) for v in (a, b))
    middle = high_a * low_b + (low_a * low_b >> half)
    other = low_a * high_b + (middle & mask)
    product = high_a * high_b + (middle >> half) + (other >> half)
    if x.dtype.kind == "i":  # a negative number counts 2^64 too much as an unsigned one
        product = product - np.where(x < 0, b, 0) - np.where(y < 0, a, 0)
    return np.asarray(product).astype(np.uint64).view(x.dtype)


def _popcnt(x: Array) -> Array:
    return np.bitwise_count(_unsigned(x)).astype(x.dtype)


def _count_leading_zeros(x: Array) -> Array:
    bits = np.array(_unsigned(x))
    width = _bits_of(x.dtype)
    for step in (1, 2, 4, 8, 16, 32):
        if step < width:
            bits |= bits >> bits.dtype.type(step)
    return (width - np.bitwise_count(bits).astype(np.int64)).astype(x.dtype)


def _total_order_key(x: Array) -> Array:
    """Integers in the order -NaN < -inf < ... < -0 < +0 < ... < inf < NaN."""
    if x.dtype.kind in "iub":
        return x
    signed = np.ascontiguousarray(x).reshape(x.shape).view(np.dtype(f"i{x.dtype.itemsize}"))
    return signed ^ ((signed >> (_bits_of(x.dtype) - 1)) & np.iinfo(signed.dtype).max)


_COMPARISONS: dict[str, Callable[..., Array]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def meaning_of_compare(node: Node, x: Array, y: Array) -> Array:
    attrs = _attrs(node, CompareAttrs)
    prepare = _total_order_key if attrs.total_order else widen
    return np.asarray(_COMPARISONS[attrs.direction](prepare(x), prepare(y)))


def meaning_of_is_finite(node: Node, x: Array) -> Array:
    return np.asarray(np.isfinite(widen(x)))


# ---- element-wise: types -------------------------------------------------------------------------


def convert(x: Array, dtype: np.dtype) -> Array:
    """HLO convert: float to integer truncates, saturates, NaN gives 0; integers wrap."""
    if x.dtype == np.float64 and dtype in _EIGHT_BITS:
        x = _round_to_odd(x)
    if x.dtype == dtype:
        return x
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = x.real
    x = widen(x)
    if dtype == np.bool_:
        return x != 0
    if x.dtype.kind == "f" and dtype.kind in "iu":
        info = np.iinfo(dtype)
        below, above = x <= float(info.min), x >= float(info.max + 1)
        inside = np.where(below | above | np.isnan(x), np.zeros_like(x), x).astype(dtype)
        return np.where(below, dtype.type(info.min), np.where(above, dtype.type(info.max), inside))
    return x.astype(dtype)


def _round_to_odd(x: Array) -> Array:
    """f32 from f64 such that rounding it again, to fewer bits, is as rounding once.

    (XLA rounds f64 to f8 once; ml_dtypes goes through f32.)
    """
    near = x.astype(np.float32)
    toward = np.where(x > near, np.float32(np.inf), np.float32(-np.inf))
    even = (near.view(np.uint32) & 1) == 0
    inexact = (near.astype(np.float64) != x) & ~np.isnan(x)
    return np.where(inexact & even, np.nextafter(near, toward), near)


def meaning_of_convert(node: Node, x: Array) -> Array:
    return np.asarray(convert(x, node.dtype.numpy))


def meaning_of_bitcast_convert(node: Node, x: Array) -> Array:
    """To smaller elements: a new last dimension; to larger ones: the last one is consumed."""
    dtype = node.dtype.numpy
    x = np.asarray(x, order="C")
    if dtype.itemsize == x.dtype.itemsize:
        return x.view(dtype)
    if dtype.itemsize < x.dtype.itemsize:
        return x.reshape(*x.shape, 1).view(dtype)
    return x.view(dtype).reshape(x.shape[:-1])


def meaning_of_reduce_precision(node: Node, x: Array) -> Array:
    """Rounds to even; beyond the exponent range: infinity, or zero for a subnormal."""
    attrs = _attrs(node, ReducePrecisionAttrs)
    own_mantissa, own_exponent = _FLOAT_BITS[node.dtype]
    wide = np.asarray(widen(x), order="C")
    mantissa, exponent = (52, 11) if wide.dtype == np.float64 else (23, 8)
    bits = np.array(_unsigned(wide))
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


# ---- element-wise: functions ---------------------------------------------------------------------


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


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


# ---- sources and index maps ----------------------------------------------------------------------


def meaning_of_constant(node: Node) -> Array:
    return _attrs(node, ConstantAttrs).value.numpy()


def meaning_of_iota(node: Node) -> Array:
    dimension = _attrs(node, IotaAttrs).dimension
    counts = np.arange(node.shape[dimension]).reshape(
        [-1 if d == dimension else 1 for d in range(len(node.shape))]
    )
    return np.broadcast_to(counts, node.shape).astype(node.dtype.numpy)


def meaning_of_identity(node: Node, x: Array) -> Array:
    return x


def meaning_of_broadcast(node: Node, x: Array) -> Array:
    dimensions = _attrs(node, BroadcastAttrs).dimensions
    order = sorted(range(len(dimensions)), key=lambda i: dimensions[i])
    shape = [1] * len(node.shape)
    for i, d in enumerate(dimensions):
        shape[d] = x.shape[i]
    return np.broadcast_to(x.transpose(order).reshape(shape), node.shape)


def meaning_of_reshape(node: Node, x: Array) -> Array:
    return x.reshape(node.shape)


def meaning_of_transpose(node: Node, x: Array) -> Array:
    return x.transpose(_attrs(node, TransposeAttrs).permutation)


def meaning_of_slice(node: Node, x: Array) -> Array:
    a = _attrs(node, SliceAttrs)
    return x[tuple(slice(*t) for t in zip(a.starts, a.limits, a.strides, strict=True))]


def pad(
    x: Array, value: Array, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
) -> Array:
    """HLO pad: `interior` values between neighbours, then the edges; a negative edge cuts."""
    steps = [i + 1 for i in interior]
    spread = [
        max(0, (n - 1) * step + 1) if n else 0 for n, step in zip(x.shape, steps, strict=True)
    ]
    size = tuple(max(0, s + lo + hi) for s, lo, hi in zip(spread, low, high, strict=True))
    result = np.full(size, value, x.dtype)
    source, target = [], []
    for count, step, lo, n in zip(x.shape, steps, low, size, strict=True):
        # Element i goes to lo + i * step; what lies outside is never made room for.
        first = min(max(0, -(lo // step)), count)
        last = max(first, min(count, -((lo - n) // step)))
        source.append(slice(first, last))
        begin = lo + first * step
        target.append(
            slice(begin, begin + (last - first - 1) * step + 1, step)
            if first < last
            else slice(0, 0)
        )
    result[tuple(target)] = x[tuple(source)]
    return result


def meaning_of_pad(node: Node, x: Array, value: Array) -> Array:
    a = _attrs(node, PadAttrs)
    return pad(x, value, a.low, a.high, a.interior)


def meaning_of_concatenate(node: Node, *operands: Array) -> Array:
    return np.concatenate(operands, _attrs(node, DimensionAttrs).dimension)


def meaning_of_reverse(node: Node, x: Array) -> Array:
    return np.flip(x, _attrs(node, DimensionsAttrs).dimensions)


def _clamp_start(start: Array, last: int) -> Array:
    """Indices of any integer type, clamped into [0, last], as s64."""
    if start.dtype == np.uint64:
        start = np.minimum(start, np.uint64(last))
    return np.clip(start.astype(np.int64), 0, last)


def _window_at(x: Array, sizes: Sequence[int], starts: Sequence[Array]) -> tuple[slice, ...]:
    begins = [int(_clamp_start(s, n - k)) for s, n, k in zip(starts, x.shape, sizes, strict=True)]
    return tuple(slice(b, b + k) for b, k in zip(begins, sizes, strict=True))


def meaning_of_dynamic_slice(node: Node, x: Array, *starts: Array) -> Array:
    return x[_window_at(x, _attrs(node, DynamicSliceAttrs).sizes, starts)]


def meaning_of_dynamic_update_slice(node: Node, x: Array, update: Array, *starts: Array) -> Array:
    result = x.copy()
    result[_window_at(x, update.shape, starts)] = update
    return result


def index_vectors(indices: Array, index_vector_dim: int) -> Array:
    """The indices of a gather or scatter with the index vectors in the last dimension."""
    if index_vector_dim == indices.ndim:
        return indices[..., np.newaxis]
    return np.moveaxis(indices, index_vector_dim, -1)


def batch_positions(vectors: Array, batching_dim: int, index_vector_dim: int) -> Array:
    """For each index vector its coordinate along `batching_dim` of the indices."""
    axis = batching_dim - (batching_dim > index_vector_dim)
    batch = vectors.shape[:-1]
    return np.broadcast_to(
        np.arange(batch[axis]).reshape([-1 if d == axis else 1 for d in range(len(batch))]), batch
    )


def slide(x: Array, sizes: Sequence[int], *, writeable: bool = False) -> Array:
    """The window of `sizes` at each place, a view: NumPy cannot make one of f8e5m2, but of its bytes."""
    stored = x.view(np.uint8) if x.dtype in _EIGHT_BITS else x
    return sliding_window_view(stored, sizes, writeable=writeable).view(x.dtype)


def meaning_of_gather(node: Node, x: Array, indices: Array) -> Array:
    a = _attrs(node, GatherAttrs)
    if 0 in node.shape:
        return np.zeros(node.shape, x.dtype)
    vectors = index_vectors(indices, a.index_vector_dim)
    batch = vectors.shape[:-1]
    starts = [np.zeros(batch, np.int64) for _ in x.shape]
    for i, d in enumerate(a.start_index_map):
        starts[d] = _clamp_start(vectors[..., i], x.shape[d] - a.slice_sizes[d])
    for d, b in zip(a.operand_batching_dims, a.start_indices_batching_dims, strict=True):
        starts[d] = batch_positions(vectors, b, a.index_vector_dim)
    windows = slide(x, a.slice_sizes)[tuple(starts)] if x.ndim else np.broadcast_to(x, batch)
    dropped = set(a.collapsed_slice_dims) | set(a.operand_batching_dims)
    windows = windows.squeeze(tuple(len(batch) + d for d in sorted(dropped)))
    window_axes = iter(range(len(batch), windows.ndim))
    batch_axes = iter(range(len(batch)))
    return windows.transpose(
        [next(window_axes if d in a.offset_dims else batch_axes) for d in range(windows.ndim)]
    )


# ---- products ------------------------------------------------------------------------------------


def _widen_factors(x: Array, y: Array, result: np.dtype) -> tuple[Array, Array]:
    """Both factors in the type that the sum of products is computed in."""
    if x.dtype.kind in "iub" and result.kind in "iub":
        common = np.dtype(np.int64) if result == np.bool_ else result
        return x.astype(common), y.astype(common)
    wide = np.result_type(_wide_type(x), _wide_type(y))
    return widen(x).astype(wide), widen(y).astype(wide)


def _wide_type(x: Array) -> np.dtype:
    return widen_more(np.empty(0, x.dtype)).dtype


def meaning_of_dot(node: Node, x: Array, y: Array) -> Array:
    a = _attrs(node, DotAttrs)
    wide_x, wide_y = _widen_factors(x, y, node.dtype.numpy)
    x_free = [d for d in range(x.ndim) if d not in a.lhs_batch and d not in a.lhs_contracting]
    y_free = [d for d in range(y.ndim) if d not in a.rhs_batch and d not in a.rhs_contracting]
    batch = [x.shape[d] for d in a.lhs_batch]
    depth = math.prod(x.shape[d] for d in a.lhs_contracting)
    rows, columns = math.prod(x.shape[d] for d in x_free), math.prod(y.shape[d] for d in y_free)
    left = wide_x.transpose([*a.lhs_batch, *x_free, *a.lhs_contracting]).reshape(
        *batch, rows, depth
    )
    right = wide_y.transpose([*a.rhs_batch, *a.rhs_contracting, *y_free]).reshape(
        *batch, depth, columns
    )
    return convert(np.matmul(left, right).reshape(node.shape), node.dtype.numpy)


def meaning_of_convolution(node: Node, x: Array, kernel: Array) -> Array:
    """A product over features for each kernel position, or output position if fewer."""
    a = _attrs(node, ConvolutionAttrs)
    x, kernel = _widen_factors(x, kernel, node.dtype.numpy)
    groups = a.feature_group_count * a.batch_group_count
    # images: (group, batch, spatial ..., feature); kernel: (group, spatial ..., input feature,
    # output feature)
    images = x.transpose([a.input_batch, *a.input_spatial, a.input_feature])
    images = _dilate_and_pad(images, a.window)
    if a.batch_group_count > 1:
        images = images.reshape(groups, -1, *images.shape[1:])
    else:
        images = np.moveaxis(
            images.reshape(*images.shape[:-1], groups, images.shape[-1] // groups), -2, 0
        )
    kernel = kernel.transpose([*a.kernel_spatial, a.kernel_input_feature, a.kernel_output_feature])
    kernel = np.flip(kernel, tuple(i for i, w in enumerate(a.window) if w.reversed))
    kernel = np.moveaxis(
        kernel.reshape(*kernel.shape[:-1], groups, kernel.shape[-1] // groups), -2, 0
    )
    spatial = tuple(node.shape[d] for d in a.output_spatial)
    extents = tuple(w.size for w in a.window)
    batch, inputs, outputs = images.shape[1], kernel.shape[-2], kernel.shape[-1]
    result = np.zeros((groups, batch, *spatial, outputs), np.result_type(images, kernel))
    if 0 not in result.shape and math.prod(extents) <= math.prod(spatial):
        for k in np.ndindex(*extents):
            where = [
                slice(
                    i * w.window_dilation, i * w.window_dilation + (n - 1) * w.stride + 1, w.stride
                )
                for i, n, w in zip(k, spatial, a.window, strict=True)
            ]
            patch = images[(slice(None), slice(None), *where)].reshape(groups, -1, inputs)
            result += np.matmul(patch, kernel[(slice(None), *k)]).reshape(result.shape)
    elif 0 not in result.shape:
        flat_kernel = kernel.reshape(groups, -1, outputs)
        for o in np.ndindex(*spatial):
            where = [
                slice(
                    i * w.stride,
                    i * w.stride + (w.size - 1) * w.window_dilation + 1,
                    w.window_dilation,
                )
                for i, w in zip(o, a.window, strict=True)
            ]
            patch = images[(slice(None), slice(None), *where)].reshape(groups, batch, -1)
            result[(slice(None), slice(None), *o)] = np.matmul(patch, flat_kernel)
    merged = np.moveaxis(result, 0, -2).reshape(batch, *spatial, groups * outputs)
    order = [a.output_batch, *a.output_spatial, a.output_feature]
    return convert(merged.transpose([order.index(d) for d in range(len(order))]), node.dtype.numpy)


def _dilate_and_pad(images: Array, window: Sequence[WindowDimension]) -> Array:
    low = [0, *(w.padding_low for w in window), 0]
    high = [0, *(w.padding_high for w in window), 0]
    interior = [0, *(w.base_dilation - 1 for w in window), 0]
    return pad(images, np.zeros((), images.dtype), low, high, interior)


# ---- linear algebra, Fourier ---------------------------------------------------------------------


_TRANSFORMS: dict[str, Callable[..., Array]] = {
    "FFT": np.fft.fftn,
    "IFFT": np.fft.ifftn,
    "RFFT": np.fft.rfftn,
    "IRFFT": np.fft.irfftn,
}


def meaning_of_fft(node: Node, x: Array) -> Array:
    a = _attrs(node, FftAttrs)
    axes = tuple(range(x.ndim - len(a.lengths), x.ndim))
    wide = widen_more(x)
    if 0 in node.shape or 0 in x.shape:
        return np.zeros(node.shape, node.dtype.numpy)
    return _TRANSFORMS[a.kind](wide, a.lengths, axes).astype(node.dtype.numpy)


def _adjoint(x: Array) -> Array:
    return np.conj(np.swapaxes(x, -1, -2))


def meaning_of_cholesky(node: Node, x: Array) -> Array:
    """Reads one triangle; a matrix that is not positive definite gives NaN."""
    lower = _attrs(node, CholeskyAttrs).lower
    wide = widen_more(x)
    matrices = (np.tril(wide) if lower else _adjoint(np.triu(wide))).reshape(-1, *x.shape[-2:])
    factors = np.full(matrices.shape, np.nan, matrices.dtype)
    for i, matrix in enumerate(matrices):
        try:
            factors[i] = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            continue
    factors = factors.reshape(x.shape)
    return (factors if lower else _adjoint(factors)).astype(x.dtype)


def meaning_of_triangular_solve(node: Node, a: Array, b: Array) -> Array:
    """Substitution, so that a singular matrix gives infinities and not an error."""
    attrs = _attrs(node, TriangularSolveAttrs)
    lower = attrs.lower
    matrix, right = widen_more(a), widen_more(b).copy()
    matrix = np.tril(matrix) if lower else np.triu(matrix)
    if attrs.transpose_a != "NO_TRANSPOSE":
        matrix = (
            np.swapaxes(matrix, -1, -2) if attrs.transpose_a == "TRANSPOSE" else _adjoint(matrix)
        )
        lower = not lower
    if not attrs.left_side:  # x a = b is a' x' = b'
        matrix, right, lower = np.swapaxes(matrix, -1, -2), np.swapaxes(right, -1, -2), not lower
    n = matrix.shape[-1]
    solution = np.zeros_like(right)
    for row in range(n) if lower else reversed(range(n)):
        value = right[..., row, :] - np.matmul(matrix[..., row : row + 1, :], solution)[..., 0, :]
        if not attrs.unit_diagonal:
            value = value / matrix[..., row, row, np.newaxis]
        solution[..., row, :] = value
    return (solution if attrs.left_side else np.swapaxes(solution, -1, -2)).astype(b.dtype)


# ---- several results -----------------------------------------------------------------------------


def _array_types(node: Node) -> tuple[ArrayType, ...]:
    return node.type.elements if isinstance(node.type, TupleType) else (node.type,)


def meanings_of_topk(node: Node, x: Array) -> tuple[Array, ...]:
    """In total order, so that NaN is the largest; of equals the first comes first."""
    a = _attrs(node, TopKAttrs)
    key = _total_order_key(x)
    if key.dtype == np.bool_:
        key = key.astype(np.uint8)
    order = np.argsort(~key if a.largest else key, axis=-1, kind="stable")[..., : a.k]
    return np.take_along_axis(x, order, -1), order.astype(np.int32)


def meanings_of_rng_bit_generator(node: Node, state: Array) -> tuple[Array, ...]:
    """RNG_DEFAULT is Philox, as XLA's CPU and GPU have it.  The new state comes first."""
    algorithm = _attrs(node, RngBitGeneratorAttrs).algorithm
    result = _array_types(node)[-1]
    wide = np.asarray(state, order="C").view(np.uint64)
    size = result.dtype.bytes
    if algorithm == "RNG_THREE_FRY":
        new, bits = generate_threefry_bits(wide, result.shape, size)
    else:
        # With a state of two words (JAX's rbg keys) XLA takes the key for the high half of the
        # counter too.
        full = wide if wide.size == 3 else np.array([wide[0], wide[1], wide[0]])
        new, bits = generate_philox_bits(full, result.shape, size)
    unsigned = bits.astype(np.dtype(f"u{size}"))
    return new[: wide.size].view(state.dtype), np.asarray(unsigned, order="C").view(
        result.dtype.numpy
    )


def meaning_of_rng(node: Node, first: Array, second: Array) -> Array:
    """Any numbers of the distribution will do; here the same ones for the same name."""
    generator = np.random.default_rng(zlib.crc32(node.name.encode(errors="replace")))
    a, b = convert(first, np.dtype(np.float64)), convert(second, np.dtype(np.float64))
    if _attrs(node, RngAttrs).distribution == "RNG_NORMAL":
        return (a + b * generator.standard_normal(node.shape)).astype(node.dtype.numpy)
    if not node.dtype.is_float:
        return np.asarray(generator.integers(int(a), max(int(b), int(a) + 1), node.shape)).astype(
            node.dtype.numpy
        )
    return (a + (b - a) * generator.random(node.shape)).astype(node.dtype.numpy)


def _normalise(x: Array, mean: Array, variance: Array, a: BatchNormAttrs) -> tuple[Array, Array]:
    """(x - mean) / sqrt(variance + epsilon) and the reciprocal root, both with x's dimensions."""
    shape = [-1 if d == a.feature_index else 1 for d in range(x.ndim)]
    inverse = _rsqrt(variance.reshape(shape) + a.epsilon)
    return (x - mean.reshape(shape)) * inverse, inverse


def meanings_of_batch_norm_training(node: Node, *operands: Array) -> tuple[Array, ...]:
    """(normalised, mean, biased variance)."""
    a = _attrs(node, BatchNormAttrs)
    x, scale, offset = map(widen_more, operands)
    axes = tuple(d for d in range(x.ndim) if d != a.feature_index)
    mean, variance = x.mean(axes), x.var(axes)
    shape = [-1 if d == a.feature_index else 1 for d in range(x.ndim)]
    result = _normalise(x, mean, variance, a)[0] * scale.reshape(shape) + offset.reshape(shape)
    return tuple(
        r.astype(t.dtype.numpy)
        for r, t in zip((result, mean, variance), _array_types(node), strict=True)
    )


def meaning_of_batch_norm_inference(node: Node, *operands: Array) -> Array:
    a = _attrs(node, BatchNormAttrs)
    x, scale, offset, mean, variance = map(widen_more, operands)
    shape = [-1 if d == a.feature_index else 1 for d in range(x.ndim)]
    result = _normalise(x, mean, variance, a)[0] * scale.reshape(shape) + offset.reshape(shape)
    return result.astype(node.dtype.numpy)


def meanings_of_batch_norm_grad(node: Node, *operands: Array) -> tuple[Array, ...]:
    """(gradient of the operand, of scale, of offset)."""
    a = _attrs(node, BatchNormAttrs)
    x, scale, mean, variance, gradient = map(widen_more, operands)
    shape = [-1 if d == a.feature_index else 1 for d in range(x.ndim)]
    axes = tuple(d for d in range(x.ndim) if d != a.feature_index)
    count = x.size // max(1, x.shape[a.feature_index])
    normalised, inverse = _normalise(x, mean, variance, a)
    scale_gradient, offset_gradient = (gradient * normalised).sum(axes), gradient.sum(axes)
    centred = (
        gradient
        - (offset_gradient.reshape(shape) + normalised * scale_gradient.reshape(shape)) / count
    )
    results = (centred * inverse * scale.reshape(shape), scale_gradient, offset_gradient)
    return tuple(r.astype(t.dtype.numpy) for r, t in zip(results, _array_types(node), strict=True))


# ---- the table -----------------------------------------------------------------------------------

MEANINGS: dict[str, Meaning] = {
    "constant": meaning_of_constant,
    "iota": meaning_of_iota,
    "add": _arithmetic(np.add),
    "subtract": _arithmetic(_subtract),
    "multiply": _arithmetic(np.multiply),
    "mulhi": _plain(_mulhi),
    "maximum": _arithmetic(_maximum),
    "minimum": _arithmetic(_minimum),
    "negate": _arithmetic(np.negative),
    "abs": meaning_of_abs,
    "sign": _arithmetic(_sign),
    "floor": _arithmetic(np.floor),
    "ceil": _arithmetic(np.ceil),
    "round-nearest-even": _arithmetic(np.rint),
    "round-nearest-afz": _arithmetic(_round_half_away),
    "and": _plain(np.bitwise_and),
    "or": _plain(np.bitwise_or),
    "xor": _plain(np.bitwise_xor),
    "not": _plain(np.invert),
    "shift-left": _plain(_shift_left),
    "shift-right-arithmetic": _plain(_shift_right_arithmetic),
    "shift-right-logical": _plain(_shift_right_logical),
    "popcnt": _plain(_popcnt),
    "count-leading-zeros": _plain(_count_leading_zeros),
    "is-finite": meaning_of_is_finite,
    "compare": meaning_of_compare,
    "select": _plain(np.where),
    "clamp": meaning_of_clamp,
    "convert": meaning_of_convert,
    "bitcast-convert": meaning_of_bitcast_convert,
    "reduce-precision": meaning_of_reduce_precision,
    "copy": meaning_of_identity,
    "divide": _arithmetic(_divide),
    "remainder": _arithmetic(_remainder),
    "power": _function(_power),
    "atan2": _function(_atan2),
    "exponential": _function(np.exp),
    "exponential-minus-one": _function(np.expm1),
    "log": _function(np.log),
    "log-plus-one": _function(np.log1p),
    "logistic": _function(_logistic),
    "tanh": _function(np.tanh),
    "tan": _function(np.tan),
    "sine": _function(np.sin),
    "cosine": _function(np.cos),
    "sqrt": _function(np.sqrt),
    "rsqrt": _function(_rsqrt),
    "cbrt": _function(np.cbrt),
    "erf": _function(_erf),
    "acos": _function(np.arccos),
    "acosh": _function(np.arccosh),
    "asin": _function(np.arcsin),
    "asinh": _function(np.arcsinh),
    "atan": _function(np.arctan),
    "atanh": _function(np.arctanh),
    "cosh": _function(np.cosh),
    "sinh": _function(np.sinh),
    "complex": meaning_of_complex,
    "real": _plain(np.real),
    "imag": _plain(np.imag),
    "broadcast": meaning_of_broadcast,
    "reshape": meaning_of_reshape,
    "transpose": meaning_of_transpose,
    "slice": meaning_of_slice,
    "pad": meaning_of_pad,
    "concatenate": meaning_of_concatenate,
    "reverse": meaning_of_reverse,
    "dynamic-slice": meaning_of_dynamic_slice,
    "dynamic-update-slice": meaning_of_dynamic_update_slice,
    "gather": meaning_of_gather,
    "dot": meaning_of_dot,
    "convolution": meaning_of_convolution,
    "fft": meaning_of_fft,
    "cholesky": meaning_of_cholesky,
    "triangular-solve": meaning_of_triangular_solve,
    "rng": meaning_of_rng,
    "batch-norm-inference": meaning_of_batch_norm_inference,
}
