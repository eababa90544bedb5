"""Statements that load elements before their task's or round's turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from astitch.graph.index import Linear
from astitch.graph.ir import DType
from astitch.kernel.element_statements import Index
from astitch.kernel.statement import (
    NAMES_OF_A_TASK,
    Body,
    Define,
    Effect,
    Evaluate,
    Held,
    Nest,
    Read,
    Statement,
    Together,
    Use,
    UseOwn,
)


@dataclass(frozen=True, slots=True)
class PrefetchRegisters(Statement):
    """The words of `count` vectors Vec<T, width> that a thread holds in registers: loaded before a task's turn, or kept
    from phase to phase."""

    name: str
    dtype: DType
    width: int
    count: int

    def effects(self) -> Iterator[Effect]:
        yield Define(self.name, Held.PREFETCHED, self.dtype, self.width)


@dataclass(frozen=True, slots=True)
class KeepVector(Statement):
    """target[at] = a vector variable.  target: PrefetchRegisters, or a shared slot; at counts vectors."""

    target: str
    at: Linear
    dtype: DType
    vector: str
    width: int

    def effects(self) -> Iterator[Effect]:
        yield Evaluate(self.at)
        yield UseOwn(self.target, Held.PREFETCHED, self.dtype)
        yield Use(self.vector, Held.VECTOR, self.dtype, self.width)


@dataclass(frozen=True, slots=True)
class Advance(Statement):
    """target[0 .. count) = source[0 .. count): the next task becomes this one."""

    target: str
    source: str
    count: int

    def effects(self) -> Iterator[Effect]:
        yield Use(self.target, Held.PREFETCHED)
        yield Use(self.source, Held.PREFETCHED)


@dataclass(frozen=True, slots=True)
class Prefetch(Nest):
    """The body for a later task of the block, if there is one.

    distance: with `first`, before the loop, the number of the block's task; else, in the loop, how many turns later
        the task's own turn is.
    buffers: see TaskLoop; `next_turn` is the task's place in it.
    """

    first: bool
    tasks: int
    body: tuple[Statement, ...]
    distance: int = 1
    buffers: int = 0

    def effects(self) -> Iterator[Effect]:
        yield Together("a prefetch where not all threads come by")
        yield Body(self.body, ("task", "next_turn"), hidden=NAMES_OF_A_TASK)


@dataclass(frozen=True, slots=True)
class Fetch(Statement):
    """target[at] = the `width` elements at array + position (aligned).

    target: PrefetchRegisters, or a shared slot, into which they are copied asynchronously; at counts vectors.
    """

    target: str
    at: Linear
    dtype: DType
    array: str
    position: Linear
    width: int

    def effects(self) -> Iterator[Effect]:
        yield Read(self.array, self.dtype, self.position, self.width)
        yield Evaluate(self.at)
        width = self.width if self.width != 1 else None
        yield UseOwn(self.target, Held.PREFETCHED, self.dtype, width)


@dataclass(frozen=True, slots=True)
class CopyWait(Statement):
    """Wait for all asynchronous copies of this thread but those of the last `pending` Prefetches.  None: wait also for
    those that no Prefetch holds."""

    pending: int | None

    def effects(self) -> Iterator[Effect]:
        yield from ()


@dataclass(frozen=True, slots=True)
class TakeVector(Statement):
    """const Vec<T, width> name = source[at]: what a Fetch brought."""

    name: str
    dtype: DType
    source: str
    at: Linear
    width: int

    def effects(self) -> Iterator[Effect]:
        yield Evaluate(self.at)
        yield UseOwn(self.source, Held.PREFETCHED, self.dtype)
        yield Define(self.name, Held.VECTOR, self.dtype, self.width)


@dataclass(frozen=True, slots=True)
class FetchRound(Nest):
    """The body for the round after this one, if there is one, or with `first` before them all for the first.

    variable, count, backward: see Rounds.  It copies into shared memory asynchronously.
    """

    first: bool
    variable: str
    count: int
    backward: bool
    body: tuple[Statement, ...]

    def effects(self) -> Iterator[Effect]:
        yield Together(f"a round of {self.variable} is fetched where not all come by")
        if not self.first:
            yield Use(self.variable, Held.INTEGER)
        # The body works on another tile than what stands around it.
        own = (s.name for s in self.body if isinstance(s, Index))
        yield Body(self.body, (self.variable,), hidden=(self.variable, *own))
