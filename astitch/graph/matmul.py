"""DotAttrs -> a batched matrix product as cuBLAS takes it: which operand lies how, in which types.

Takes a dot's attributes and the types of its arrays, hands on a CanonicalDot and ProductTypes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from astitch.graph.ir import ArrayType, DotAttrs, DType

ALIGNED = 8
"""Elements of 16 bits in 16 bytes: libraries are fastest where extents are multiples of it."""


@dataclass(frozen=True, slots=True)
class DotOperand:
    """One operand of a batched product, a matrix for each batch index.

    permutation: copy the operand transposed so before the product (None: it is used where it lies).
    transposed: the matrix is stored with its rows along the unit stride (column-major).
    leading: elements between rows (columns when transposed).  stride: elements between batches.
    """

    permutation: tuple[int, ...] | None
    transposed: bool
    leading: int
    stride: int


@dataclass(frozen=True, slots=True)
class CanonicalDot:
    """lhs [batch, m, k] x rhs [batch, k, n] -> row-major [batch, m, n]; both operands as DotOperand says."""

    batch: int
    m: int
    n: int
    k: int
    lhs: DotOperand
    rhs: DotOperand


def canonical_dot(
    attrs: DotAttrs, lhs: ArrayType, rhs: ArrayType, *, contiguous_depth: bool = False
) -> CanonicalDot:
    """The batched matrix product that a dot_general of two row-major arrays is.

    contiguous_depth: both operands have k along the unit stride, if need be as copies.  Tensor cores have no other form
    for types of 8 bits.
    """
    # The order of the contracting dimensions is free, so the left operand's own serves it best.
    pairs = sorted(zip(attrs.lhs_contracting, attrs.rhs_contracting, strict=True))
    lhs_contracting = tuple(pair[0] for pair in pairs)
    rhs_contracting = tuple(pair[1] for pair in pairs)
    lhs_free = free_dimensions(lhs.rank, attrs.lhs_batch, lhs_contracting)
    rhs_free = free_dimensions(rhs.rank, attrs.rhs_batch, rhs_contracting)
    left = _place_operand(lhs.shape, attrs.lhs_batch, lhs_free, lhs_contracting)
    right = _place_operand(rhs.shape, attrs.rhs_batch, rhs_contracting, rhs_free)
    if contiguous_depth:
        if left.transposed:
            left = _copy_operand(lhs.shape, attrs.lhs_batch, lhs_free, lhs_contracting)
        if not right.transposed:
            copied = _copy_operand(rhs.shape, attrs.rhs_batch, rhs_free, rhs_contracting)
            right = replace(copied, transposed=True)
    return CanonicalDot(
        batch=_product(lhs.shape, attrs.lhs_batch),
        m=_product(lhs.shape, lhs_free),
        n=_product(rhs.shape, rhs_free),
        k=_product(lhs.shape, lhs_contracting),
        lhs=left,
        rhs=right,
    )


def free_dimensions(rank: int, *taken: Sequence[int]) -> tuple[int, ...]:
    """The dimensions that are in none of these."""
    used = {d for dimensions in taken for d in dimensions}
    return tuple(d for d in range(rank) if d not in used)


def label_product(
    attrs: DotAttrs, lhs_rank: int, rhs_rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of both operands the label of each dimension: its place in the result, or what is summed, from its rank on."""
    batch, summed = len(attrs.lhs_batch), len(attrs.lhs_contracting)
    rank = lhs_rank + rhs_rank - batch - 2 * summed
    free = itertools.count(batch)

    def label(rank_of: int, batches: Sequence[int], contracting: Sequence[int]) -> tuple[int, ...]:
        known = {d: n for n, d in enumerate(batches)}
        known |= {d: rank + n for n, d in enumerate(contracting)}
        return tuple(known[d] if d in known else next(free) for d in range(rank_of))

    left = label(lhs_rank, attrs.lhs_batch, attrs.lhs_contracting)
    return left, label(rhs_rank, attrs.rhs_batch, attrs.rhs_contracting)


def _product(shape: Sequence[int], dimensions: Sequence[int]) -> int:
    return int(np.prod([shape[d] for d in dimensions], dtype=np.int64))


def _place_operand(
    shape: Sequence[int], batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]
) -> DotOperand:
    """The matrix [rows, columns] for each index of `batch`, where it lies.  Each of the three must have one stride, and
    the rows or the columns must be contiguous; else after a copy into the order batch, rows, columns.
    """
    strides = [int(np.prod(shape[d + 1 :], dtype=np.int64)) for d in range(len(shape))]
    found = [_stride_of(shape, strides, group) for group in (batch, rows, columns)]
    row_count, column_count = _product(shape, rows), _product(shape, columns)
    stride, row_stride, column_stride = found
    if stride is not None and row_stride is not None and column_stride is not None:
        # A dimension of one element has no stride of its own: any will do.
        row_stride = row_stride or (column_count if column_stride <= 1 else 1)
        column_stride = column_stride or (row_count if row_stride == 1 else 1)
        if column_stride == 1 and row_stride >= column_count:
            return DotOperand(None, False, max(row_stride, 1), stride)
        if row_stride == 1 and column_stride >= row_count:
            return DotOperand(None, True, max(column_stride, 1), stride)
    return _copy_operand(shape, batch, rows, columns)


def _copy_operand(
    shape: Sequence[int], batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]
) -> DotOperand:
    """The matrices [rows, columns] after a copy into that order."""
    width = _product(shape, columns)
    stride = _product(shape, rows) * width
    return DotOperand((*batch, *rows, *columns), False, max(width, 1), stride)


def _stride_of(shape: Sequence[int], strides: Sequence[int], group: Sequence[int]) -> int | None:
    """Elements between neighbours along the merged dimensions: 0 for one element, None if there is no such number."""
    wide = [d for d in group if shape[d] != 1]
    if any(strides[a] != strides[b] * shape[b] for a, b in pairwise(wide)):
        return None
    return strides[wide[-1]] if wide else 0


@dataclass(frozen=True, slots=True)
class ProductTypes:
    """What cuBLAS calls the types of operands, result and sum; scalar: NumPy's type of what the sum is scaled by.

    only_lt: cublasLt has this product, cublasGemmEx has not, and both want k contiguous.
    """

    lhs: str
    rhs: str
    result: str
    compute: str
    scalar: type[np.generic]
    only_lt: bool = False


def choose_product_types(
    attrs: DotAttrs, lhs: DType, rhs: DType, result: DType
) -> ProductTypes | None:
    """cuBLAS's types for a product, None where it has none (most integers, operands of two types).

    f16, bf16 and f8 are summed in f32, s8 in s32.  f32 may use TF32 unless an operand asks for HIGHEST, as XLA does.
    """
    if (lhs, rhs, result) in _NARROW_PRODUCTS:
        compute, scalar = ("CUBLAS_COMPUTE_32I", np.int32) if lhs is DType.S8 else _IN_F32
        return _name_types(lhs, rhs, result, compute, scalar, only_lt=True)
    if lhs is not rhs or result not in _RESULT_TYPES.get(lhs, ()):
        return None
    compute, scalar = _IN_F32
    if lhs in (DType.F64, DType.C128):
        compute = "CUBLAS_COMPUTE_64F"
    elif lhs in (DType.F32, DType.C64) and "HIGHEST" not in attrs.precision:
        compute = "CUBLAS_COMPUTE_32F_FAST_TF32"
    if lhs in (DType.F64, DType.C64, DType.C128):
        scalar = lhs.numpy.type
    return _name_types(lhs, rhs, result, compute, scalar)


def _name_types(
    lhs: DType,
    rhs: DType,
    result: DType,
    compute: str,
    scalar: type[np.generic],
    only_lt: bool = False,
) -> ProductTypes:
    names = [_CUBLAS_TYPE[dtype] for dtype in (lhs, rhs, result)]
    return ProductTypes(names[0], names[1], names[2], compute, scalar, only_lt)


_IN_F32: tuple[str, type[np.generic]] = ("CUBLAS_COMPUTE_32F", np.float32)

_CUBLAS_TYPE = {
    DType.S8: "CUDA_R_8I",
    DType.S32: "CUDA_R_32I",
    DType.F8E4M3FN: "CUDA_R_8F_E4M3",
    DType.F8E5M2: "CUDA_R_8F_E5M2",
    DType.F16: "CUDA_R_16F",
    DType.BF16: "CUDA_R_16BF",
    DType.F32: "CUDA_R_32F",
    DType.F64: "CUDA_R_64F",
    DType.C64: "CUDA_C_32F",
    DType.C128: "CUDA_C_64F",
}
_RESULT_TYPES = {
    DType.F16: (DType.F16, DType.F32),
    DType.BF16: (DType.BF16, DType.F32),
    DType.F32: (DType.F32,),
    DType.F64: (DType.F64,),
    DType.C64: (DType.C64,),
    DType.C128: (DType.C128,),
}
_NARROW_PRODUCTS = {
    (DType.S8, DType.S8, DType.S32),
    *(
        (lhs, rhs, result)
        for lhs in (DType.F8E4M3FN, DType.F8E5M2)
        for rhs in (DType.F8E4M3FN, DType.F8E5M2)
        for result in (DType.F32, DType.BF16, DType.F16)
        if DType.F8E4M3FN in (lhs, rhs)
    ),
}
"""Operands and result (cublasLtMatmul's table of types)."""
