"""Kernel statements -> the same, narrow values that are only stored left unrounded: the store rounds them.

A value of a narrow type is rounded where it is computed, and a store encodes it.  For f8 each rounding costs a
conversion, and rounding twice changes nothing.  So a value that only stores read stays the float that it is computed
as.  Of f16 and bf16 a vector is rounded at once, two elements in an instruction that also packs them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence, Set

from astitch.graph.ir import DType
from astitch.kernel import kernel_ir as k
from astitch.kernel.visit_statements import find_own_read, list_statements, rewrite_statements

F8 = frozenset({DType.F8E4M3FN, DType.F8E5M2})
F16 = frozenset({DType.F16, DType.BF16})

MOST_PACKED = 4
"""Vectors filled side by side, at most, whose lanes wait as floats: as f16 or bf16 they take half the registers."""

_STORES = k.StoreLane | k.Store | k.KeepSet
_OF_VECTOR = k.VectorVariable | k.StoreLane | k.StoreVector


def round_at_stores(body: tuple[k.Statement, ...]) -> tuple[k.Statement, ...]:
    """Value(x, f8, e); StoreLane(v, f8, x) -> Value(x, f32, e); StoreLane(v, f8, x), and the same of f16 and bf16 where
    only vectors are stored, then marked unrounded."""
    statements = tuple(list_statements(body))
    values = {s.name for s in statements if isinstance(s, k.Value) and s.dtype in F8}
    vectors = _find_packed(body, statements)
    values |= {s.expr.name for s in vectors.values() if isinstance(s.expr, k.Name)}
    if not values:
        return body
    values -= frozenset(_find_needed(statements, frozenset(vectors)))
    packed = frozenset(
        v for v, s in vectors.items() if isinstance(s.expr, k.Name) and s.expr.name in values
    )
    return _leave_unrounded(body, values, packed)


def _find_packed(
    body: Sequence[k.Statement], statements: Sequence[k.Statement]
) -> dict[str, k.StoreLane]:
    """Of each vector of f16 or bf16 that may be rounded at once, the store of a lane.  Pairs of values are rounded
    where they are computed.  A value that is exact already goes to memory with all of its bits, NaNs' too."""
    values = {s.name: s for s in statements if isinstance(s, k.Value) and s.dtype in F16}
    if not values:
        return {}
    groups = [vectors for vectors in _filled_together(body) if len(vectors) <= MOST_PACKED]
    pairs = {vector.name for vectors in groups for vector in vectors}
    lanes = [s for s in statements if isinstance(s, k.StoreLane) and s.dtype in F16]
    stores = Counter(s.vector for s in set(lanes))  # a nest may stand there twice, word for word
    return {
        s.vector: s
        for s in lanes
        if stores[s.vector] == 1 and s.vector in pairs and isinstance(s.expr, k.Name)
        if s.expr.name in values and _is_rounded(values[s.expr.name], s.dtype)
    }


def _filled_together(body: Sequence[k.Statement]) -> Iterator[list[k.VectorVariable]]:
    """The vectors of pairs that are filled side by side."""
    for inside in (body, *(b for s in list_statements(body) for b in s.bodies)):
        yield [s for s in inside if isinstance(s, k.VectorVariable) and s.width % 2 == 0]


def _is_rounded(value: k.Value, dtype: DType) -> bool:
    """Is a value computed as f32 and then rounded to the type that is stored?"""
    match value.expr:
        case k.Call("convert", _, _, (DType.F32,)):
            return value.dtype is dtype
        case k.Call(op):
            return value.dtype is dtype and op not in k.EXACT
    return False


def _find_needed(statements: Sequence[k.Statement], packed: Set[str]) -> Iterator[str]:
    """Names that statements read otherwise than to store them in memory of their own type.

    packed: vectors whose lanes are rounded when they are stored.
    """
    for statement in statements:
        if isinstance(statement, k.StoreLane) and statement.vector in packed:
            continue
        if (
            isinstance(statement, _STORES)
            and isinstance(statement.expr, k.Name)
            and statement.dtype in F8
        ):
            if isinstance(statement, k.KeepSet) and not statement.raw:
                yield statement.expr.name
            continue
        yield from find_own_read(statement)


def _leave_unrounded(
    body: Sequence[k.Statement], names: Set[str], packed: Set[str]
) -> tuple[k.Statement, ...]:
    def rewrite(statement: k.Statement) -> k.Statement:
        if isinstance(statement, k.Value) and statement.name in names:
            return _unrounded(statement)
        if isinstance(statement, _OF_VECTOR) and _vector_of(statement) in packed:
            return dataclasses.replace(statement, unrounded=True)
        return statement

    return rewrite_statements(body, rewrite)


def _vector_of(statement: k.VectorVariable | k.StoreLane | k.StoreVector) -> str:
    return statement.name if isinstance(statement, k.VectorVariable) else statement.vector


def _unrounded(value: k.Value) -> k.Value:
    """The value in f32, where only its own rounding is left out.  A conversion from f64 must round once, and bits that
    are read as f8 were never a float."""
    expr = value.expr
    match expr:
        case k.Call("convert", _, _, operand_dtypes) if DType.F64 not in operand_dtypes:
            expr = dataclasses.replace(expr, dtype=DType.F32)
        case k.Call("convert" | "bitcast-convert"):
            return value
        case k.Call() | k.Field():
            pass
        case _:
            return value
    return dataclasses.replace(value, dtype=DType.F32, expr=expr)
