"""Statements that compute, load, keep and store elements, one by one or a vector at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from astitch.graph.index import Linear
from astitch.graph.ir import DType
from astitch.graph.ops.access import Guard
from astitch.kernel.expressions import Expr
from astitch.kernel.statement import (
    Compute,
    Define,
    Effect,
    Evaluate,
    Held,
    Read,
    Statement,
    Use,
    UseOwn,
    Write,
    evaluate_guards,
)


@dataclass(frozen=True, slots=True)
class Index(Statement):
    """const int name = form;"""

    name: str
    form: Linear

    def effects(self) -> Iterator[Effect]:
        yield Evaluate(self.form)
        yield Define(self.name, Held.INTEGER)


@dataclass(frozen=True, slots=True)
class ChooseIndex(Statement):
    """const int name = the form of the first case whose guards hold; the last has none."""

    name: str
    cases: tuple[tuple[tuple[Guard, ...], Linear], ...]

    def effects(self) -> Iterator[Effect]:
        for guards, form in self.cases:
            yield from evaluate_guards(guards)
            yield Evaluate(form)
        yield Define(self.name, Held.INTEGER)


@dataclass(frozen=True, slots=True)
class Start(Statement):
    """const int name = expr clamped to [0, limit]: a start index known at run time."""

    name: str
    expr: Expr
    dtype: DType
    limit: int

    def effects(self) -> Iterator[Effect]:
        yield Compute(self.expr)
        yield Define(self.name, Held.INTEGER)


@dataclass(frozen=True, slots=True)
class Value(Statement):
    """const T name = expr; rounded to `dtype`."""

    name: str
    dtype: DType
    expr: Expr

    def effects(self) -> Iterator[Effect]:
        yield Compute(self.expr)
        yield Define(self.name, Held.VALUE, self.dtype)


@dataclass(frozen=True, slots=True)
class Load(Statement):
    """const T name = array[position], converted to the compute type.  array: a parameter or a shared slot."""

    name: str
    dtype: DType
    array: str
    position: Linear

    def effects(self) -> Iterator[Effect]:
        yield Read(self.array, self.dtype, self.position)
        yield Define(self.name, Held.VALUE, self.dtype)


@dataclass(frozen=True, slots=True)
class LoadVector(Statement):
    """const Vec<T, width> name = the `width` elements at array + position (aligned).  guards: zeros where one of them
    does not hold, since nobody needs the elements."""

    name: str
    dtype: DType
    array: str
    position: Linear
    width: int
    guards: tuple[Guard, ...] = ()

    def effects(self) -> Iterator[Effect]:
        yield from evaluate_guards(self.guards)
        yield Read(self.array, self.dtype, self.position, self.width)
        yield Define(self.name, Held.VECTOR, self.dtype, self.width)


@dataclass(frozen=True, slots=True)
class VectorVariable(Statement):
    """Vec<T, width> name; filled lane by lane, stored at once.

    unrounded: the lanes of this vector wait as floats, which the store rounds, several in one instruction.
    """

    name: str
    dtype: DType
    width: int
    unrounded: bool = False

    def effects(self) -> Iterator[Effect]:
        yield Define(self.name, Held.VECTOR, self.dtype, self.width)


@dataclass(frozen=True, slots=True)
class StoreLane(Statement):
    """unrounded: see VectorVariable."""

    vector: str
    dtype: DType
    expr: Expr
    unrounded: bool = False

    def effects(self) -> Iterator[Effect]:
        yield Use("lane", Held.INTEGER)
        yield Use(self.vector, Held.VECTOR, self.dtype)
        yield Compute(self.expr)


@dataclass(frozen=True, slots=True)
class StoreVector(Statement):
    """unrounded: see VectorVariable."""

    array: str
    position: Linear
    vector: str
    dtype: DType
    width: int
    unrounded: bool = False

    def effects(self) -> Iterator[Effect]:
        yield Use(self.vector, Held.VECTOR, self.dtype, self.width)
        yield Write(self.array, self.dtype, self.position, self.width)


@dataclass(frozen=True, slots=True)
class Store(Statement):
    """array[position] = expr, converted to the storage type."""

    array: str
    position: Linear
    dtype: DType
    expr: Expr

    def effects(self) -> Iterator[Effect]:
        yield Compute(self.expr)
        yield Write(self.array, self.dtype, self.position)


@dataclass(frozen=True, slots=True)
class Keep(Statement):
    """T name[count]: values of a thread that live across phases, in registers.  raw: in the storage type."""

    name: str
    dtype: DType
    count: int
    raw: bool

    def effects(self) -> Iterator[Effect]:
        yield Define(self.name, Held.KEPT, self.dtype)


@dataclass(frozen=True, slots=True)
class KeepSet(Statement):
    """name[position] = expr, in registers or in a shared slot."""

    name: str
    position: Linear
    dtype: DType
    expr: Expr
    raw: bool

    def effects(self) -> Iterator[Effect]:
        yield Evaluate(self.position)
        yield Compute(self.expr)
        yield UseOwn(self.name, Held.KEPT)
