"""Statements of reductions and scans: a thread's own states, and how threads combine theirs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from astitch.graph.index import Linear
from astitch.graph.ir import DType
from astitch.kernel.block_group_statements import Area
from astitch.kernel.expressions import Expr
from astitch.kernel.statement import (
    Compute,
    Define,
    Effect,
    Evaluate,
    Held,
    Read,
    Statement,
    Together,
    Use,
)

STRIDED_CHUNK = 4
"""States of a thread that are exchanged at once when a reduction runs across strided threads."""


@dataclass(frozen=True, slots=True)
class States(Statement):
    """Reducer::State name[count], each the identity."""

    name: str
    reducer: int
    count: int

    def effects(self) -> Iterator[Effect]:
        yield Define(self.name, Held.STATE)


@dataclass(frozen=True, slots=True)
class Accumulate(Statement):
    """state[position] = combine(state[position], {values})."""

    state: str
    position: Linear
    reducer: int
    values: tuple[Expr, ...]

    def effects(self) -> Iterator[Effect]:
        yield Use(self.state, Held.STATE)
        yield Evaluate(self.position)
        yield from map(Compute, self.values)


@dataclass(frozen=True, slots=True)
class AccumulateProduct(Statement):
    """state[position] += a * b, the product not rounded: a sum's own rounding is free anyway."""

    state: str
    position: Linear
    a: Expr
    b: Expr

    def effects(self) -> Iterator[Effect]:
        yield Use(self.state, Held.STATE)
        yield Evaluate(self.position)
        yield Compute(self.a)
        yield Compute(self.b)


@dataclass(frozen=True, slots=True)
class AccumulateElement(Statement):
    """Add one element to the state of a joint reduction (Reducer.joint)."""

    state: str
    position: Linear
    reducer: int
    value: Expr

    def effects(self) -> Iterator[Effect]:
        yield Use(self.state, Held.STATE)
        yield Evaluate(self.position)
        yield Compute(self.value)


@dataclass(frozen=True, slots=True)
class Batch(Statement):
    """T name[width]: elements that are added to a joint reduction at once."""

    name: str
    dtype: DType
    width: int

    def effects(self) -> Iterator[Effect]:
        yield Define(self.name, Held.BATCH, self.dtype, self.width)


@dataclass(frozen=True, slots=True)
class BatchSet(Statement):
    """name[lane] = expr."""

    name: str
    dtype: DType
    expr: Expr

    def effects(self) -> Iterator[Effect]:
        yield Use("lane", Held.INTEGER)
        yield Use(self.name, Held.BATCH, self.dtype)
        yield Compute(self.expr)


@dataclass(frozen=True, slots=True)
class AccumulateBatch(Statement):
    """Add the elements of a batch to the state of a joint reduction."""

    state: str
    position: Linear
    reducer: int
    batch: str

    def effects(self) -> Iterator[Effect]:
        yield Use(self.state, Held.STATE)
        yield Use(self.batch, Held.BATCH)
        yield Evaluate(self.position)


@dataclass(frozen=True, slots=True)
class AccumulateState(Statement):
    """state[position] = combine(state[position], partial loaded from one array for each field)."""

    state: str
    position: Linear
    reducer: int
    arrays: tuple[str, ...]
    at: Linear

    def effects(self) -> Iterator[Effect]:
        yield Use(self.state, Held.STATE)
        yield Evaluate(self.position)
        for array in self.arrays:
            yield Read(array, None, self.at)


@dataclass(frozen=True, slots=True)
class Part:
    """state[0 .. count) of one reduction.  slot: shared states for sets of threads that are not within one warp
    ("" when none is needed); parts of the same simple reducer with one slot and one state each are reduced together."""

    state: str
    count: int
    reducer: int
    slot: str


@dataclass(frozen=True, slots=True)
class ReduceAcross(Statement):
    """Combine the states of independent reductions over threads; every thread of a set gets the totals.

    A set is `threads` threads, `stride` apart.  stride 1: consecutive threads (a row), and all parts share one block
    barrier; else: threads that own the same columns.  butterfly: the lanes of a warp together combine the states of a
    set's warps, or of a set that is `stride` apart.  Else each thread combines them alone.  alone: only the first warp
    needs the totals.
    """

    parts: tuple[Part, ...]
    threads: int
    stride: int
    butterfly: bool = False
    alone: bool = False

    def effects(self) -> Iterator[Effect]:
        for part in self.parts:
            yield Together(f"{part.state} is reduced across threads where not all of them come by")
            yield Use(part.state, Held.STATE)


@dataclass(frozen=True, slots=True)
class Handover:
    """The members of a block group scan a row, or the columns of a block, together.  This block's total is part number
    `part` of result `element`, or of those from it on.  All threads get what the parts before it have, through two
    shared states of `slot` for each."""

    area: Area
    element: Linear
    part: Linear
    slot: str


@dataclass(frozen=True, slots=True)
class ScanAcross(Statement):
    """Combine each of the states of a set of threads with all before it, in order; backward: with all after it.

    A thread has steps x width states.  `threads` consecutive threads share a row, whose order is (step, thread, number
    within the width); or with columns, threads that are `stride` apart share `width` columns, each in the order
    (thread, step).  slot: shared states, "" where count_scanned needs none.  carry: states with what came before, one
    for each row or column, to which the set's total is added; "" where nothing does.  handover: None: see there.
    """

    state: str
    steps: int
    width: int
    reducer: int
    threads: int
    stride: int
    slot: str
    backward: bool
    carry: str = ""
    columns: bool = False
    handover: Handover | None = None

    @property
    def count(self) -> int:
        """States of a thread."""
        return self.steps * self.width

    def effects(self) -> Iterator[Effect]:
        yield Together(f"{self.state} is scanned across threads where not all of them come by")
        yield Use(self.state, Held.STATE)
        if self.carry:
            yield Use(self.carry, Held.STATE)
        if self.handover is not None:
            yield Evaluate(self.handover.element)
            yield Evaluate(self.handover.part)


@dataclass(frozen=True, slots=True)
class SortAcross(Statement):
    """Sort the states of the threads that share a row, the least first, in the order of ScanAcross.

    A thread has steps x width states.  slot: shared states, "" where a row has no more threads than a warp.
    """

    state: str
    steps: int
    width: int
    reducer: int
    threads: int
    slot: str

    @property
    def count(self) -> int:
        """States of a thread."""
        return self.steps * self.width

    @property
    def padded(self) -> int:
        """States that it sorts: a power of two."""
        return (1 << (self.steps - 1).bit_length()) * self.width

    def effects(self) -> Iterator[Effect]:
        yield Together(f"{self.state} is sorted across threads where not all of them come by")
        yield Use(self.state, Held.STATE)


SORTED_CHUNK = 4
"""States of a thread that are exchanged at once when a row's threads are several warps."""


def count_sorted(step: SortAcross, block: int) -> int:
    """Shared states that a block exchanges in a sort."""
    return block * min(step.padded, SORTED_CHUNK) if step.threads > 32 else 0


def count_handed(step: ScanAcross) -> int:
    """Shared states through which a Handover comes."""
    return 2 * step.width * step.stride if step.columns else 2


def count_scanned(step: ScanAcross, block: int) -> int:
    """Shared states that a block exchanges in a scan."""
    if step.columns:
        line = max(step.stride, 32)
        spans = step.threads * step.stride > line
        return block // line * step.stride * step.width if spans else 0
    return step.steps * (block // 32) if step.threads > 32 else 0


def count_lines(block: int, stride: int) -> int:
    """States that a block exchanges for each state of its threads when it combines over threads `stride` apart.  The
    lanes of a warp that hold several of a set have combined theirs.  One place of each line is free, so that those of
    one column lie in different banks."""
    return block // max(stride, 32) * (stride + 1)


@dataclass(frozen=True, slots=True)
class Finish(Statement):
    """state[0 .. count) = combine(init, state): the init value of a reduce, applied once."""

    state: str
    count: int
    reducer: int
    inits: tuple[Expr, ...]

    def effects(self) -> Iterator[Effect]:
        yield Use(self.state, Held.STATE)
        yield from map(Compute, self.inits)
