"""Statements around statements, and barriers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Self

from astitch.graph.index import Linear
from astitch.graph.ir import DType
from astitch.graph.ops.access import Guard
from astitch.kernel.expressions import Expr
from astitch.kernel.statement import (
    NAMES_OF_A_TASK,
    Body,
    Define,
    Effect,
    Evaluate,
    Held,
    Nest,
    Statement,
    Synchronize,
    Together,
    evaluate_guards,
)

PARTLY = 8
"""Turns of a loop that is unrolled in part: independent loads that a thread has in flight."""


@dataclass(frozen=True, slots=True)
class Loop(Nest):
    """for (int variable = 0; variable < count; ++variable).  unroll: fully, or in part, `together` turns at once.
    bound: ends the loop earlier, so that its body needs no guard."""

    variable: str
    count: int
    unroll: bool
    body: tuple[Statement, ...]
    bound: Linear | None = None
    together: int = PARTLY

    def effects(self) -> Iterator[Effect]:
        if self.bound is not None:
            yield Evaluate(self.bound)
        end = () if self.bound is None else (f"{self.variable}_end",)
        yield Body(self.body, (self.variable, *end))


@dataclass(frozen=True, slots=True)
class If(Nest):
    guards: tuple[Guard, ...]
    body: tuple[Statement, ...]

    def effects(self) -> Iterator[Effect]:
        yield from evaluate_guards(self.guards)
        yield Body(self.body)


@dataclass(frozen=True, slots=True)
class Switch(Statement):
    """The body of the first case whose guards hold."""

    cases: tuple[If, ...]

    def effects(self) -> Iterator[Effect]:
        for case in self.cases:
            yield from evaluate_guards(case.guards)
            yield Body(case.body)

    @property
    def bodies(self) -> tuple[tuple[Statement, ...], ...]:
        """The cases, which are statements themselves."""
        return (self.cases,)

    def with_bodies(self, bodies: Iterable[tuple[Statement, ...]]) -> Self:
        (cases,) = bodies
        return replace(self, cases=tuple(case for case in cases if isinstance(case, If)))


@dataclass(frozen=True, slots=True)
class Choose(Statement):
    """T name; the first branch whose guards hold computes and assigns it."""

    name: str
    dtype: DType
    branches: tuple[Branch, ...]

    def effects(self) -> Iterator[Effect]:
        for branch in self.branches:
            yield from evaluate_guards(branch.guards)
            yield Body(branch.body, result=branch.result)
        yield Define(self.name, Held.VALUE, self.dtype)

    @property
    def bodies(self) -> tuple[tuple[Statement, ...], ...]:
        return tuple(branch.body for branch in self.branches)

    def with_bodies(self, bodies: Iterable[tuple[Statement, ...]]) -> Self:
        pairs = zip(self.branches, bodies, strict=True)
        return replace(self, branches=tuple(replace(b, body=body) for b, body in pairs))


@dataclass(frozen=True, slots=True)
class Branch:
    guards: tuple[Guard, ...]
    body: tuple[Statement, ...]
    result: Expr


@dataclass(frozen=True, slots=True)
class Rounds(Nest):
    """for (int variable = 0; variable < count; ++variable), or from the last to the first: tiles that a block works on
    in order.  All threads take part in each."""

    variable: str
    count: int
    backward: bool
    body: tuple[Statement, ...]

    def effects(self) -> Iterator[Effect]:
        yield Together(f"rounds over {self.variable} where not all threads come by")
        yield Body(self.body, (self.variable,), uniform=True, repeated=True)


@dataclass(frozen=True, slots=True)
class TaskLoop(Nest):
    """for (int task = first; task < tasks; task += blocks).

    once: every block has at most one task.
    buffers: tasks that a circular buffer in shared memory holds; 0: there is none.  `turn` is this task's place in it.
    delay: turns after the last task, for the body of Previous.
    """

    tasks: int
    once: bool
    body: tuple[Statement, ...]
    buffers: int = 0
    delay: int = 0

    def effects(self) -> Iterator[Effect]:
        yield Together("a task loop where not all threads come by")
        names = ("task", "turn") if self.buffers else ("task",)
        yield Body(self.body, names, uniform=True, repeated=not self.once)


@dataclass(frozen=True, slots=True)
class Current(Nest):
    """In a task loop with delay: the body for this turn's task, if there is one."""

    tasks: int
    body: tuple[Statement, ...]

    def effects(self) -> Iterator[Effect]:
        yield Together("a current task where not all threads come by")
        yield Body(self.body, uniform=True)


@dataclass(frozen=True, slots=True)
class Previous(Nest):
    """In a task loop with delay: the body for the task of `delay` turns before, if there was one.

    buffers: see TaskLoop.
    """

    buffers: int
    body: tuple[Statement, ...]
    delay: int = 1

    def effects(self) -> Iterator[Effect]:
        yield Together("a previous task where not all threads come by")
        yield Body(self.body, ("task", "turn"), uniform=True, hidden=NAMES_OF_A_TASK)


@dataclass(frozen=True, slots=True)
class Section(Nest):
    """One task loop with what comes before and after it.

    Its threads are numbered (to, ty, tx) in a block of outer_threads x row_threads x col_threads, or (ty, to, tx) if
    packed_inside; `first`, the first task of a block, starts `offset` blocks further on, so that the loops of a level
    spread over all blocks.
    """

    number: int
    title: str
    offset: int
    outer_threads: int
    row_threads: int
    col_threads: int
    body: tuple[Statement, ...]
    packed_inside: bool = False

    def effects(self) -> Iterator[Effect]:
        yield Body(self.body, ("thread", "tx", "ty", "to", "first"), uniform=True)


@dataclass(frozen=True, slots=True)
class Common(Nest):
    """Values that are the same in all threads and that several sections read: in scope until the kernel ends."""

    body: tuple[Statement, ...]

    def effects(self) -> Iterator[Effect]:
        yield Body(self.body, uniform=True)


@dataclass(frozen=True, slots=True)
class Barrier(Statement):
    """level: block or global."""

    level: str
    reason: str

    def effects(self) -> Iterator[Effect]:
        yield Together(f"a barrier where not all threads come by: {self.reason}")
        yield Synchronize()
