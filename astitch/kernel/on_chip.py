"""What of a task loop lies on chip: values kept across phases, vectors loaded early, and what loops share.

residency.py and prefetch.py choose it; values.py and loads.py read it where it lies.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from astitch.graph import index as ix
from astitch.graph.index import Linear, Symbol
from astitch.graph.ir import DType
from astitch.graph.ops.access import Within
from astitch.kernel import kernel_ir as k
from astitch.kernel.loop_nest import LoopNest
from astitch.kernel.nest import LANE, Depth, Key
from astitch.kernel.residency import Place, Residency
from astitch.tiling.space import Mapping

MAX_PREFETCHES, MAX_DELAY = 2, 3
"""The largest prefetch distance and the largest pipeline delay, in tasks."""

MAX_BUFFERS = MAX_PREFETCHES + MAX_DELAY
"""Tasks in a circular buffer.  A copy starts when the oldest task has left its place."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A value that stays on chip across the phases of a task.  raw: in its storage type; shared: not in registers."""

    name: str
    key: Key
    dtype: DType
    raw: bool
    shared: bool
    depth: Depth

    def count(self, m: Mapping) -> int:
        """Elements that one thread holds."""
        steps = m.row_steps if self.depth is Depth.ROW else m.row_steps * m.col_steps
        return steps * (m.vector if self.depth is Depth.LANE else 1)


@dataclass(frozen=True, slots=True)
class VectorLoad:
    """A vector that each step of a thread loads.  form: its position in the array `source`, over atoms."""

    key: Key
    source: str
    form: Linear
    dtype: DType


class Buffer(enum.Enum):
    """Where a vector lies when a task's turn comes, or when one of its later phases does."""

    FIRST_PHASE = "registers, loaded in the first phase"
    ONCE = "registers, loaded once: it is the same in every task"
    ONCE_SHARED = "shared memory, copied once"
    PREFETCHED = "registers, loaded while the task before is worked on"
    CIRCULAR = "a circular buffer in shared memory, copied while the task before is worked on"


@dataclass(frozen=True, slots=True)
class Prefetched:
    """A VectorLoad that is done before the turn of its task.  name: of the registers or the shared slot."""

    load: VectorLoad
    name: str
    buffer: Buffer

    def position(self, nest: LoopNest, turn: Linear) -> Linear:
        """The number of the vector at which the nest stands: of the thread's own, or in the buffer's place `turn`."""
        m, step = nest.mapping, nest.own_step()
        if self.buffer is Buffer.ONCE_SHARED:
            return nest.own_vector()
        if self.buffer is not Buffer.CIRCULAR:
            return step
        place = ix.scale(turn, m.row_steps * m.col_steps)
        return ix.add(
            ix.scale(ix.add(place, step), m.block), ix.of_symbol(Symbol("thread", m.block))
        )


def find_turn(m: Mapping) -> Linear:
    """The place of the nest's task in a circular buffer; rounds take two in turns."""
    if m.carried:
        return ix.modulo(ix.of_symbol(Symbol("round", m.rounds)), 2)
    return ix.of_symbol(Symbol("turn", MAX_BUFFERS))


class OnChip:
    """What of one task loop lies on chip.

    kept: what stays across the phases of a task; filled: what of it an earlier phase put there; kept_whole: what of it
    are vectors, not single lanes.  prefetched: by array and position.  first_fetched: are the loads for later phases on
    their way?  keeps_for_later, kept_before: slots by value, of so many first steps (carried_steps), that stay in
    shared memory across a global barrier.  taken_before: by vector, what is read instead of its load.
    """

    def __init__(self, nest: LoopNest) -> None:
        self.nest, self.mapping = nest, nest.mapping
        self.kept: dict[Key, Kept] = {}
        self.filled: set[Key] = set()
        self.kept_whole: set[Key] = set()
        self.prefetched: dict[tuple[str, Linear], Prefetched] = {}
        self.first_fetched = False
        self.keeps_for_later: dict[Key, str] = {}
        self.kept_before: dict[Key, str] = {}
        self.carried_steps = 0
        self.taken_before: dict[str, k.TakeVector] = {}

    # -- kept across phases ------------------------------------------------------------------------------------

    def keep(self, residency: Residency, *, delayed: bool) -> None:
        """Declare what stays on chip across the phases of a task.  delayed: later phases work for another task."""
        staged = {p.load.key for p in self.prefetched.values()}  # these are on chip anyway
        keys = [h.key for h in residency.values]
        declarations, number = self.nest.declarations, self.nest.loop.number
        if residency.reason and not (keys and staged.issuperset(keys)):
            declarations.notes.append(f"loop {number}: {residency.reason}")
        shared = residency.place is Place.SHARED
        for held in residency.values:
            if held.key in staged or delayed:
                continue
            dtype = self.nest.graph[held.key[0]].dtype
            name = declarations.fresh(f"{held.key[0]}_kept")
            kept = Kept(name, held.key, dtype, held.raw, shared, held.depth)
            self.kept[held.key] = kept
            if shared:
                count = kept.count(self.mapping) * self.mapping.block
                span = ((number, 0), (number, self.nest.phases))
                declarations.add_slot(name, dtype, None, count, dtype.bytes, *span)

    def declare_registers(self) -> Iterator[k.Statement]:
        """The registers of kept values, before the task loop."""
        m = self.mapping
        for kept in self.kept.values():
            if kept.shared:
                continue
            if kept.key in self.kept_whole:
                yield k.PrefetchRegisters(
                    kept.name, kept.dtype, m.vector, m.row_steps * m.col_steps
                )
            else:
                yield k.Keep(kept.name, kept.dtype, kept.count(m), kept.raw)

    def fill(self) -> None:
        """Count what the phase computed as filled."""
        depths = (Depth.TASK, Depth.ROW, Depth.COLUMN, Depth.LANE)
        frames = [self.nest.frames[depth] for depth in depths]
        self.filled |= {key for key in self.kept if any(key in frame.cache for frame in frames)}

    def take(self, kept: Kept) -> tuple[k.Expr, Depth]:
        """A kept value, from where an earlier phase put it."""
        key, nest = kept.key, self.nest
        shared = kept.shared and kept.depth is Depth.LANE and self.mapping.vector > 1
        if shared or key in self.kept_whole:
            vector = nest.fresh(f"{key[0]}_v")
            width = self.mapping.vector
            at = nest.own_vector() if kept.shared else nest.own_step()
            nest.emit(Depth.COLUMN, k.TakeVector(vector, kept.dtype, kept.name, at, width))
            return nest.define(key, kept.dtype, k.Lane(vector, kept.dtype), Depth.LANE)
        element = k.Element(kept.name, self.kept_position(kept), kept.dtype, kept.raw)
        return nest.define(key, kept.dtype, element, kept.depth)

    def put(self, kept: Kept, expr: k.Expr) -> None:
        """Keep an element that was just computed."""
        position = self.kept_position(kept)
        self.nest.emit(kept.depth, k.KeepSet(kept.name, position, kept.dtype, expr, kept.raw))

    def put_vector(self, key: Key, load: k.LoadVector) -> None:
        """Keep a vector that was just loaded, if its value is to stay in registers."""
        kept = self.kept.get(key)
        if kept is not None and not kept.shared and kept.depth is Depth.LANE:
            at, width = self.nest.own_step(), self.mapping.vector
            keep = k.KeepVector(kept.name, at, load.dtype, load.name, width)
            self.nest.emit(Depth.COLUMN, keep)
            self.kept_whole.add(key)

    def kept_position(self, kept: Kept) -> Linear:
        """The place of the nest's current element among the kept elements of a value."""
        m = self.mapping
        steps = self.nest.own_step()
        if kept.depth is Depth.ROW:
            steps = ix.of_symbol(Symbol("k", m.row_steps))
        width = m.vector if kept.depth is Depth.LANE else 1
        if kept.shared:
            steps = ix.add(ix.scale(steps, m.block), ix.of_symbol(Symbol("thread", m.block)))
        form = ix.scale(steps, width)
        return ix.add(form, ix.of_symbol(LANE)) if width > 1 else form

    # -- kept across loops -------------------------------------------------------------------------------------

    def carry_over(self, key: Key, load: k.LoadVector) -> None:
        """Keep a vector for a task loop behind a global barrier, or remember where an earlier one kept it."""
        at, width = self.nest.own_vector(), self.mapping.vector
        if slot := self.keeps_for_later.get(key):
            keep: k.Statement = k.KeepVector(slot, at, load.dtype, load.name, width)
            if self.carried_steps < self.mapping.walked_steps:
                inside = Within(ix.of_symbol(self.nest.step_symbol), 0, self.carried_steps)
                keep = k.If((inside,), (keep,))
            self.nest.emit(Depth.COLUMN, keep)
        elif slot := self.kept_before.get(key):
            taken = k.TakeVector(load.name, load.dtype, slot, at, width)
            self.taken_before[load.name] = taken
