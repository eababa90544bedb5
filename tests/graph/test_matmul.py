"""Products in cuBLAS's form: every dot_general is a batch of matrix products, in types that cuBLAS has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astitch.graph.ir import ArrayType, DotAttrs, DType, Node
from astitch.graph.matmul import DotOperand, canonical_dot, choose_product_types
from astitch.graph.reference import eval_node

F32 = DType.F32


def reference_dot(attrs: DotAttrs, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """The dot_general of two integer-valued f64 arrays."""

    def free(rank: int, *taken: tuple[int, ...]) -> list[int]:
        return [d for d in range(rank) if all(d not in t for t in taken)]

    shape = (
        *(lhs.shape[d] for d in attrs.lhs_batch),
        *(lhs.shape[d] for d in free(lhs.ndim, attrs.lhs_batch, attrs.lhs_contracting)),
        *(rhs.shape[d] for d in free(rhs.ndim, attrs.rhs_batch, attrs.rhs_contracting)),
    )
    node = Node("dot", "dot", ArrayType(DType.F64, shape), ("lhs", "rhs"), attrs)
    return eval_node(node, [lhs, rhs])[0]


def read_operand(
    array: np.ndarray, operand: DotOperand, batch: int, rows: int, columns: int
) -> np.ndarray:
    """[batch, rows, columns] as cuBLAS reads the memory; fails where it would read outside or overlap rows."""
    if operand.permutation is not None:
        array = array.transpose(operand.permutation)
    memory = np.ascontiguousarray(array).reshape(-1)
    inner = rows if operand.transposed else columns
    assert operand.leading >= max(1, inner)
    b, i, j = np.ogrid[:batch, :rows, :columns]
    outer_index, inner_index = (j, i) if operand.transposed else (i, j)
    return memory[b * operand.stride + outer_index * operand.leading + inner_index]


def multiply_as_cublas(
    attrs: DotAttrs, lhs: np.ndarray, rhs: np.ndarray, contiguous_depth: bool = False
) -> np.ndarray:
    types = [ArrayType(DType.F64, a.shape) for a in (lhs, rhs)]
    dot = canonical_dot(attrs, types[0], types[1], contiguous_depth=contiguous_depth)
    if contiguous_depth:
        assert not dot.lhs.transposed
        assert dot.rhs.transposed
    a = read_operand(lhs, dot.lhs, dot.batch, dot.m, dot.k)
    b = read_operand(rhs, dot.rhs, dot.batch, dot.k, dot.n)
    return np.asarray(a @ b)


def count_up(*shape: int) -> np.ndarray:
    return np.arange(1.0, math.prod(shape) + 1).reshape(shape) % 11


@st.composite
def dots(draw: st.DrawFn) -> tuple[DotAttrs, tuple[int, ...], tuple[int, ...]]:
    """Any dot_general: up to two dimensions of each kind, of one to three elements, in any order."""
    extents = st.lists(st.integers(1, 3), max_size=2)
    batch, lhs_free, rhs_free, contracting = (draw(extents) for _ in range(4))

    def place(free: list[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The shape with its dimensions shuffled, and where batch and contracting ones went."""
        sizes = batch + contracting + free
        order = draw(st.permutations(range(len(sizes))))
        where = [order.index(i) for i in range(len(sizes))]
        shape = tuple(sizes[i] for i in order)
        return shape, tuple(where[: len(batch)]), tuple(where[len(batch) :][: len(contracting)])

    lhs_shape, lhs_batch, lhs_contracting = place(lhs_free)
    rhs_shape, rhs_batch, rhs_contracting = place(rhs_free)
    attrs = DotAttrs(lhs_contracting, rhs_contracting, lhs_batch, rhs_batch)
    return attrs, lhs_shape, rhs_shape


@given(dots())
def test_every_dot_general_is_a_batched_product(
    case: tuple[DotAttrs, tuple[int, ...], tuple[int, ...]],
) -> None:
    attrs, lhs_shape, rhs_shape = case
    lhs, rhs = count_up(*lhs_shape), count_up(*rhs_shape)
    want = reference_dot(attrs, lhs, rhs)
    for contiguous_depth in (False, True):
        got = multiply_as_cublas(attrs, lhs, rhs, contiguous_depth)
        np.testing.assert_array_equal(got.reshape(want.shape), want)


@pytest.mark.parametrize(
    ("attrs", "lhs", "rhs", "want"),
    [
        # x @ w, and the two products of its gradient
        (DotAttrs((1,), (0,)), (5, 7), (7, 3), ((False, 7, 35), (False, 3, 21))),
        (DotAttrs((1,), (1,)), (5, 3), (7, 3), ((False, 3, 15), (True, 3, 21))),
        (DotAttrs((0,), (0,)), (5, 7), (5, 3), ((True, 7, 35), (False, 3, 15))),
        # a batched activation by a weight: its leading dimensions merge
        (DotAttrs((2,), (0,)), (2, 5, 7), (7, 3), ((False, 7, 70), (False, 3, 21))),
        # attention on [batch * seq, heads, depth]: the heads are a batch with a stride, no copy
        (DotAttrs((2,), (2,), (1,), (1,)), (5, 4, 8), (6, 4, 8), ((False, 32, 8), (True, 32, 8))),
        # matrix by vector
        (DotAttrs((1,), (0,)), (5, 7), (7,), ((False, 7, 0), (True, 7, 0))),
    ],
    ids=["x w", "dy w^T", "x^T dy", "merged rows", "strided heads", "vector"],
)
def test_products_of_networks_need_no_copy(
    attrs: DotAttrs, lhs: tuple[int, ...], rhs: tuple[int, ...], want: Any
) -> None:
    dot = canonical_dot(attrs, ArrayType(F32, lhs), ArrayType(F32, rhs))
    for operand, (transposed, leading, stride) in zip((dot.lhs, dot.rhs), want, strict=True):
        assert operand.permutation is None
        assert (operand.transposed, operand.leading) == (transposed, leading)
        if dot.batch > 1:
            assert operand.stride == stride


def test_an_operand_without_one_stride_is_copied() -> None:
    """Batch and sequence stay, heads are the batch: [batch, heads, seq, depth] by heads."""
    attrs = DotAttrs((0, 2), (0, 2), (1,), (1,))
    dot = canonical_dot(attrs, ArrayType(F32, (2, 4, 5, 8)), ArrayType(F32, (2, 4, 5, 8)))
    assert dot.lhs.permutation == (1, 3, 0, 2)
    assert dot.rhs.permutation == (1, 0, 2, 3)


def test_dots_without_elements() -> None:
    dot = canonical_dot(DotAttrs((1,), (0,)), ArrayType(F32, (5, 0)), ArrayType(F32, (0, 3)))
    assert (dot.batch, dot.m, dot.n, dot.k) == (1, 5, 3, 0)


@pytest.mark.parametrize(
    ("operand", "result", "precision", "want"),
    [
        (DType.F32, DType.F32, "DEFAULT", "CUBLAS_COMPUTE_32F_FAST_TF32"),
        (DType.F32, DType.F32, "HIGHEST", "CUBLAS_COMPUTE_32F"),
        (DType.BF16, DType.F32, "DEFAULT", "CUBLAS_COMPUTE_32F"),
        (DType.F16, DType.F16, "DEFAULT", "CUBLAS_COMPUTE_32F"),
        (DType.F64, DType.F64, "DEFAULT", "CUBLAS_COMPUTE_64F"),
        (DType.C128, DType.C128, "DEFAULT", "CUBLAS_COMPUTE_64F"),
    ],
)
def test_how_products_are_summed(operand: DType, result: DType, precision: str, want: str) -> None:
    attrs = DotAttrs((1,), (0,), precision=(precision, "DEFAULT"))
    types = choose_product_types(attrs, operand, operand, result)
    assert types is not None
    assert types.compute == want


@pytest.mark.parametrize(
    "types",
    [
        (DType.S32, DType.S32, DType.S32),
        (DType.BF16, DType.F32, DType.F32),
        (DType.F8E5M2, DType.F8E5M2, DType.F32),
        (DType.S8, DType.S8, DType.S8),
        (DType.F32, DType.F32, DType.F64),
    ],
    ids=str,
)
def test_products_that_cublas_has_not(types: tuple[DType, DType, DType]) -> None:
    assert choose_product_types(DotAttrs((1,), (0,)), *types) is None


@pytest.mark.parametrize(
    ("lhs", "rhs", "result", "compute"),
    [
        (DType.S8, DType.S8, DType.S32, "CUBLAS_COMPUTE_32I"),
        (DType.F8E4M3FN, DType.F8E4M3FN, DType.F32, "CUBLAS_COMPUTE_32F"),
        (DType.F8E4M3FN, DType.F8E5M2, DType.BF16, "CUBLAS_COMPUTE_32F"),
    ],
    ids=str,
)
def test_products_that_only_cublaslt_has(
    lhs: DType, rhs: DType, result: DType, compute: str
) -> None:
    types = choose_product_types(DotAttrs((1,), (0,)), lhs, rhs, result)
    assert types is not None
    assert types.only_lt
    assert types.compute == compute
