"""Visitors of statements: each reads what statements say of themselves and knows none by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from astitch.graph.index import symbols
from astitch.kernel.expressions import Name
from astitch.kernel.statement import (
    Body,
    Compute,
    Define,
    Effect,
    Evaluate,
    Expression,
    Held,
    Read,
    Statement,
    Use,
    UseOwn,
    Write,
)

S = TypeVar("S", bound=Statement)


def list_statements(body: Iterable[Statement]) -> Iterator[Statement]:
    """The statements of a body and those inside of them."""
    for statement in body:
        yield statement
        for inside in statement.bodies:
            yield from list_statements(inside)


def list_effects(part: Statement | Expression) -> Iterator[Effect]:
    """What a statement or an expression does itself; a Body stands for the statements inside."""
    for effect in part.effects():
        yield effect
        if isinstance(effect, Compute):
            yield from list_effects(effect.expr)
        elif isinstance(effect, Body) and effect.result is not None:
            yield from list_effects(effect.result)


def find_read(*statements: Statement) -> set[str]:
    """Names of the scalars that the statements read, and those inside of them."""
    return {name for s in list_statements(statements) for name in find_own_read(s)}


def find_own_read(statement: Statement) -> set[str]:
    """Names of the scalars that the statement reads itself."""
    return {e.name for e in list_effects(statement) if isinstance(e, Use) and e.held is Held.VALUE}


def find_own_names(statement: Statement) -> set[str]:
    """Names of all variables, indices and arrays that the statement defines, reads or writes itself."""
    found: set[str] = set()
    for effect in list_effects(statement):
        match effect:
            case Define() | Use() | UseOwn():
                found.add(effect.name)
            case Evaluate(form):
                found.update(symbol.name for symbol in symbols(form))
            case Read() | Write():
                found.add(effect.array)
                found.update(symbol.name for symbol in symbols(effect.position))
    return found


def find_written(statements: Iterable[Statement]) -> set[str]:
    """Names of the arrays that the statements store to, and those inside of them."""
    effects = (e for s in list_statements(statements) for e in list_effects(s))
    return {e.array for e in effects if isinstance(e, Write)}


def rename_read(statement: S, names: Mapping[str, str]) -> S:
    """The statement with other names for the scalars that it reads itself."""
    return replace(statement, **_rename_fields(statement, names))


def _rename_fields(part: Statement | Expression, names: Mapping[str, str]) -> dict[str, Any]:
    return {f.name: _rename(getattr(part, f.name), names) for f in fields(part)}


def _rename(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, Name):
        return Name(names.get(value.name, value.name))
    if isinstance(value, tuple):
        return tuple(_rename(part, names) for part in value)
    if isinstance(value, Expression):
        return replace(value, **_rename_fields(value, names))
    return value


def rewrite_statements(
    body: Iterable[Statement], rewrite: Callable[[Statement], Statement]
) -> tuple[Statement, ...]:
    """The body with each statement rewritten, those inside of others too."""

    def within(statement: Statement) -> Statement:
        if not statement.bodies:
            return statement
        return statement.with_bodies(rewrite_statements(b, rewrite) for b in statement.bodies)

    return tuple(within(rewrite(statement)) for statement in body)
