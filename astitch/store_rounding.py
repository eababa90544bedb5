"""Kernel statements -> the same, f8 values that are only stored left unrounded: the store rounds them.

A value of a narrow type is rounded where it is computed, and a store encodes it.  For f8 each costs a conversion, and
rounding twice changes nothing, so a value that nothing but stores reads stays the float that it is computed as.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence, Set

from astitch import kernel_ir as k
from astitch.ir import DType

F8 = frozenset({DType.F8E4M3FN, DType.F8E5M2})

_STORES = k.StoreLane | k.Store | k.KeepSet
_BODIES = (
    k.Section
    | k.TaskLoop
    | k.Rounds
    | k.FetchRound
    | k.Current
    | k.Previous
    | k.Prefetch
    | k.Loop
    | k.If
)


def round_at_stores(body: tuple[k.Statement, ...]) -> tuple[k.Statement, ...]:
    """Value(x, f8, e); StoreLane(v, f8, x) -> Value(x, f32, e); StoreLane(v, f8, x)."""
    values = {s.name for s in _statements(body) if isinstance(s, k.Value) and s.dtype in F8}
    if not values:
        return body
    return _leave_unrounded(body, values - frozenset(_reads(body)))


def _statements(body: Sequence[k.Statement]) -> Iterator[k.Statement]:
    for statement in body:
        yield statement
        if isinstance(statement, _BODIES):
            yield from _statements(statement.body)
        elif isinstance(statement, k.Choose):
            for branch in statement.branches:
                yield from _statements(branch.body)


def _reads(part: object) -> Iterator[str]:
    """Names that a statement reads, but for those that it only stores in their own type's memory."""
    if isinstance(part, k.Name):
        yield part.name
    elif isinstance(part, tuple):
        for element in part:
            yield from _reads(element)
    elif isinstance(part, _STORES) and isinstance(part.expr, k.Name) and part.dtype in F8:
        if isinstance(part, k.KeepSet) and not part.raw:
            yield part.expr.name
    elif type(part).__module__ == k.__name__ and dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            yield from _reads(getattr(part, field.name))


def _leave_unrounded(body: Sequence[k.Statement], names: Set[str]) -> tuple[k.Statement, ...]:
    rewritten: list[k.Statement] = []
    for statement in body:
        if isinstance(statement, k.Value) and statement.name in names:
            rewritten.append(_unrounded(statement))
        elif isinstance(statement, _BODIES):
            inner = _leave_unrounded(statement.body, names)
            rewritten.append(dataclasses.replace(statement, body=inner))
        elif isinstance(statement, k.Choose):
            branches = tuple(
                dataclasses.replace(b, body=_leave_unrounded(b.body, names))
                for b in statement.branches
            )
            rewritten.append(dataclasses.replace(statement, branches=branches))
        else:
            rewritten.append(statement)
    return tuple(rewritten)


def _unrounded(value: k.Value) -> k.Value:
    """The value in f32, where only its own rounding is left out: a conversion from f64 must round once, and bits that
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
