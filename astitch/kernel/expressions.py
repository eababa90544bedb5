"""The expressions of a kernel: scalars in their compute types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from astitch.graph.index import Linear
from astitch.graph.ir import Attrs, DType, Literal
from astitch.graph.ops import OPS
from astitch.kernel.statement import Compute, Effect, Evaluate, Expression, Held, Use, UseOwn

EXACT = frozenset(op for op, row in OPS.items() if row.is_exact)
"""Ops whose result, computed in float from values of a narrower float type, is such a value already."""


@dataclass(frozen=True, slots=True)
class Name(Expression):
    """A variable of the emitted program."""

    name: str

    def effects(self) -> Iterator[Effect]:
        yield Use(self.name, Held.VALUE)


@dataclass(frozen=True, slots=True)
class Number(Expression):
    """A scalar constant."""

    value: Literal

    def effects(self) -> Iterator[Effect]:
        yield from ()


@dataclass(frozen=True, slots=True)
class Call(Expression):
    """An element-wise HLO op: result dtype, operands with their dtypes.

    shared_divisor: a quotient whose divisor is the same for many elements, so that its reciprocal is computed once.
    ends_narrow: 22 bits of an f32 function are enough (see precision.py).
    """

    op: str
    dtype: DType
    operands: tuple[Expr, ...]
    operand_dtypes: tuple[DType, ...]
    attrs: Attrs
    shared_divisor: bool = False
    ends_narrow: bool = False

    def effects(self) -> Iterator[Effect]:
        for operand in self.operands:
            yield Compute(operand)


@dataclass(frozen=True, slots=True)
class Position(Expression):
    """An index as a value of `dtype` (iota)."""

    form: Linear
    dtype: DType

    def effects(self) -> Iterator[Effect]:
        yield Evaluate(self.form)


@dataclass(frozen=True, slots=True)
class Lane(Expression):
    """One element of a vector variable, converted to its compute type."""

    vector: str
    dtype: DType

    def effects(self) -> Iterator[Effect]:
        yield Use("lane", Held.INTEGER)
        yield Use(self.vector, Held.VECTOR, self.dtype)


@dataclass(frozen=True, slots=True)
class Element(Expression):
    """array[position] of a kept array."""

    array: str
    position: Linear
    dtype: DType
    raw: bool  # kept in its storage type

    def effects(self) -> Iterator[Effect]:
        yield Evaluate(self.position)
        yield UseOwn(self.array, Held.KEPT)


@dataclass(frozen=True, slots=True)
class Field(Expression):
    """One field of a reduction state."""

    state: str
    position: Linear
    number: int

    def effects(self) -> Iterator[Effect]:
        yield Use(self.state, Held.STATE)
        yield Evaluate(self.position)


Expr = Name | Number | Call | Position | Lane | Element | Field
