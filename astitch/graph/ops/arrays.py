"""The words of NumPy meanings: types that arithmetic is done in, conversions, windows, index vectors.

f16, bf16 and f8 are computed in f32 and rounded once per op; f32 functions in f64.  So the reference is at least as
accurate as any backend.
"""

# NumPy's stubs give Any for arithmetic on arrays of an unknown dtype, which is what all of this is.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from astitch.graph.ir import ArrayType, DType, Node, TupleType

Array = np.ndarray


_NARROW = frozenset({DType.F16.numpy, DType.BF16.numpy, DType.F8E4M3FN.numpy, DType.F8E5M2.numpy})


EIGHT_BITS = frozenset({DType.F8E4M3FN.numpy, DType.F8E5M2.numpy})


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


def bits_of(dtype: np.dtype) -> int:
    return dtype.itemsize * 8


def unsigned(x: Array) -> Array:
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def is_integer(x: Array) -> bool:
    return x.dtype.kind in "iu"


def total_order_key(x: Array) -> Array:
    """Integers in the order -NaN < -inf < ... < -0 < +0 < ... < inf < NaN."""
    if x.dtype.kind in "iub":
        return x
    signed = np.ascontiguousarray(x).reshape(x.shape).view(np.dtype(f"i{x.dtype.itemsize}"))
    return signed ^ ((signed >> (bits_of(x.dtype) - 1)) & np.iinfo(signed.dtype).max)


def convert(x: Array, dtype: np.dtype) -> Array:
    """HLO convert: float to integer truncates, saturates, NaN gives 0; integers wrap."""
    if x.dtype == np.float64 and dtype in EIGHT_BITS:
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


def reciprocal_root(x: Array) -> Array:
    return 1 / np.sqrt(x)


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


def clamp_start(start: Array, last: int) -> Array:
    """Indices of any integer type, clamped into [0, last], as s64."""
    if start.dtype == np.uint64:
        start = np.minimum(start, np.uint64(last))
    return np.clip(start.astype(np.int64), 0, last)


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
    stored = x.view(np.uint8) if x.dtype in EIGHT_BITS else x
    return sliding_window_view(stored, sizes, writeable=writeable).view(x.dtype)


def array_types(node: Node) -> tuple[ArrayType, ...]:
    """The types of a node's results; of a while, those of its state."""
    return node.type.elements if isinstance(node.type, TupleType) else (node.type,)
