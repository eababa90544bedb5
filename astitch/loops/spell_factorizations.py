"""Factors of small matrices, and systems that they solve, number by number.

Takes a call and who writes the body, hands on the names of the result's numbers.  Pivots are found and rows exchanged
as LAPACK does, by comparisons and selects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from astitch.graph.factorizations import find_factorization
from astitch.graph.ir import (
    ArrayType,
    Attrs,
    CholeskyAttrs,
    CompareAttrs,
    DType,
    Graph,
    LuAttrs,
    Node,
    PivotsAttrs,
    TriangularSolveAttrs,
    TupleType,
)
from astitch.graph.ops.arrays import array_types
from astitch.loops.row_dimensions import NotSpelled

FACTORED = frozenset({DType.F32, DType.F64})
"""The types of such matrices."""


class Speller(Protocol):
    """Who writes a body number by number: see spell_out.py."""

    body: Graph
    rows: Mapping[str, tuple[int, ...]]

    def put(
        self, op: str, type_: ArrayType, operands: Sequence[str] = ..., attrs: Attrs = ...
    ) -> str: ...

    def put_constant(self, value: np.ndarray, dtype: DType) -> str: ...

    def repeat(self, name: str, shape: tuple[int, ...], dimensions: Sequence[int] = ...) -> str: ...

    def row_shape(self, name: str) -> tuple[int, ...]: ...

    def find(self, name: str) -> np.ndarray: ...

    def find_repeated(self, name: str, shape: tuple[int, ...]) -> np.ndarray: ...


def spell_factorization(speller: Speller, node: Node) -> np.ndarray | list[np.ndarray]:
    """The numbers of what a call gives, of several for a tuple.  Raises NotSpelled for types that it does not know."""
    known, (first, *_) = find_factorization(node), node.operands
    if isinstance(known, TriangularSolveAttrs):
        return _spell_solve(speller, node, known)
    dtype, numbers = speller.body[first].dtype, speller.find(first)
    ops = Arithmetic(speller, dtype, speller.row_shape(first))
    if isinstance(known, PivotsAttrs):
        count = array_types(node)[0].shape[-1]
        return _compute_each([numbers], 1, lambda k: [list_permutation(ops, k, count)])[0]
    if dtype not in FACTORED:
        raise NotSpelled(f"%{node.name} factorizes {speller.body[first].array}")
    if isinstance(known, LuAttrs):
        return _compute_each([numbers], 2, lambda a: factor_lu(ops, a))
    assert isinstance(known, CholeskyAttrs)
    if isinstance(node.type, TupleType):
        return _compute_each([numbers], 2, lambda a: factor_cholesky(ops, a, known.lower))
    return _compute_each([numbers], 2, lambda a: [factor_or_nan(ops, a, known.lower)])[0]


def _spell_solve(speller: Speller, node: Node, known: TriangularSolveAttrs) -> np.ndarray:
    if node.dtype not in FACTORED:
        raise NotSpelled(f"%{node.name} solves {node.array}")
    (matrix, right), rows = node.operands, speller.row_shape(node.name)
    own = [speller.rows[node.name].index(d) for d in speller.rows[matrix]]
    repeated = np.vectorize(lambda n: speller.repeat(n, rows, own), otypes=[object])
    ops = Arithmetic(speller, node.dtype, rows)
    both = [repeated(speller.find(matrix)), speller.find_repeated(right, rows)]
    return _compute_each(both, 2, lambda a, b: [solve(ops, a, b, known)])[0]


def _compute_each(
    operands: Sequence[np.ndarray],
    rank: int,
    compute: Callable[..., Sequence[np.ndarray | str]],
) -> list[np.ndarray]:
    """What a function makes of each matrix, or with rank 1 of each vector, of these arrays of numbers."""
    batch = operands[0].shape[: operands[0].ndim - rank]
    made = {index: compute(*(o[index] for o in operands)) for index in np.ndindex(batch)}
    first = next(iter(made.values()))
    results = [np.empty((*batch, *np.shape(np.asarray(r, object))), object) for r in first]
    for index, parts in made.items():
        for result, part in zip(results, parts, strict=True):
            result[index] = part
    return results


# ---- one matrix ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Ops on numbers of one type, each an array of so many rows."""

    writer: Speller
    dtype: DType
    rows: tuple[int, ...]

    def apply(self, op: str, *operands: str) -> str:
        return self.writer.put(op, ArrayType(self.dtype, self.rows), operands)

    def number(self, value: float) -> str:
        made = self.writer.put_constant(np.asarray(value), self.dtype)
        return self.writer.repeat(made, self.rows)

    def compare(self, a: str, direction: str, b: str) -> str:
        return self.writer.put(
            "compare", ArrayType(DType.PRED, self.rows), (a, b), CompareAttrs(direction)
        )

    def subtract_product(self, total: str, a: str, b: str) -> str:
        """total - a b"""
        return self.apply("subtract", total, self.apply("multiply", a, b))


def factor_cholesky(ops: Arithmetic, a: np.ndarray, lower: bool) -> tuple[np.ndarray, str]:
    """The factor in one triangle, the other triangle as it was; and where a pivot is not positive (s32)."""
    whole = Arithmetic(ops.writer, DType.S32, ops.rows)
    made = (a if lower else a.T).copy()
    zero, where = ops.number(0.0), whole.number(0)
    n = len(made)
    fails = []
    for j in range(n):
        pivot = made[j, j]
        for k in range(j):
            pivot = ops.subtract_product(pivot, made[j, k], made[j, k])
        is_positive = ops.compare(pivot, "GT", zero)
        fails.append(ops.writer.put("not", ArrayType(DType.PRED, ops.rows), (is_positive,)))
        made[j, j] = ops.apply("sqrt", pivot)
        for i in range(j + 1, n):
            total = made[i, j]
            for k in range(j):
                total = ops.subtract_product(total, made[i, k], made[j, k])
            made[i, j] = ops.apply("divide", total, made[j, j])
    for j in reversed(range(n)):
        where = whole.apply("select", fails[j], whole.number(j + 1), where)
    return (made if lower else made.T), where


def factor_or_nan(ops: Arithmetic, a: np.ndarray, lower: bool) -> np.ndarray:
    """The factor, NaN where a pivot is not positive; zeros in the other triangle."""
    made, where = factor_cholesky(ops, a, lower)
    whole = Arithmetic(ops.writer, DType.S32, ops.rows)
    holds = whole.compare(where, "EQ", whole.number(0))
    zero, nan = ops.number(0.0), ops.number(np.nan)
    for i, j in np.ndindex(made.shape):
        inside = i >= j if lower else i <= j
        made[i, j] = ops.apply("select", holds, str(made[i, j]), nan) if inside else zero
    return made


def factor_lu(ops: Arithmetic, a: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    """Both factors in one matrix, the exchanges of rows (s32, from 1 on), and where a pivot is 0 (s32)."""
    whole = Arithmetic(ops.writer, DType.S32, ops.rows)
    made, zero, where = a.copy(), ops.number(0.0), whole.number(0)
    m, n = made.shape
    depth = min(m, n)
    exchanged = np.empty(depth, object)
    fails = []
    for j in range(depth):
        largest, at = ops.apply("abs", made[j, j]), whole.number(j + 1)
        for i in range(j + 1, m):
            size = ops.apply("abs", made[i, j])
            larger = ops.compare(size, "GT", largest)
            largest = ops.apply("select", larger, size, largest)
            at = whole.apply("select", larger, whole.number(i + 1), at)
        exchanged[j] = at
        for i in range(j + 1, m):
            chosen = whole.compare(at, "EQ", whole.number(i + 1))
            for k in range(n):
                one, other = made[j, k], made[i, k]
                # Row j is exchanged with at most one row, so that a later i finds it as it was or is not chosen.
                made[j, k] = ops.apply("select", chosen, other, one)
                made[i, k] = ops.apply("select", chosen, one, other)
        fails.append(ops.compare(made[j, j], "EQ", zero))
        for i in range(j + 1, m):
            # Below a pivot of 0 there are but zeros.
            factor = ops.apply("divide", made[i, j], made[j, j])
            made[i, j] = ops.apply("select", fails[j], made[i, j], factor)
            for k in range(j + 1, n):
                made[i, k] = ops.subtract_product(made[i, k], made[i, j], made[j, k])
    for j in reversed(range(depth)):
        where = whole.apply("select", fails[j], whole.number(j + 1), where)
    return made, exchanged, where


def list_permutation(ops: Arithmetic, exchanged: np.ndarray, count: int) -> np.ndarray:
    """The permutation of so many rows that exchanges (from 0 on) make, one after the other."""
    made = np.array([ops.number(i) for i in range(count)], object)
    for j, at in enumerate(exchanged):
        for i in range(j + 1, count):
            chosen = ops.compare(at, "EQ", ops.number(i))
            one, other = made[j], made[i]
            made[j] = ops.apply("select", chosen, other, one)
            made[i] = ops.apply("select", chosen, one, other)
    return made


def solve(ops: Arithmetic, a: np.ndarray, b: np.ndarray, attrs: TriangularSolveAttrs) -> np.ndarray:
    """x of op(a) x = b; of x op(a) = b where a is on the right side."""
    lower = attrs.lower
    if attrs.transpose_a != "NO_TRANSPOSE":
        a, lower = a.T, not lower
    if not attrs.left_side:  # x a = b is a' x' = b'
        a, b, lower = a.T, b.T, not lower
    made = b.copy()
    order = range(len(a)) if lower else range(len(a))[::-1]
    for place, i in enumerate(order):
        for column in range(b.shape[1]):
            total = b[i, column]
            for k in order[:place]:
                total = ops.subtract_product(total, a[i, k], made[k, column])
            known = attrs.unit_diagonal
            made[i, column] = total if known else ops.apply("divide", total, a[i, i])
    return made if attrs.left_side else made.T
