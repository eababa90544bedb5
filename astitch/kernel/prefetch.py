"""Prefetch: which vectors of a task loop are loaded before the turn of their task or phase, where to, and the copies.

A loop whose tasks wait, for other threads or blocks, loads the next task meanwhile: into registers, or into a circular
buffer in shared memory.  What is the same for every task is loaded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from astitch.device.schedule import Schedule
from astitch.graph import index as ix
from astitch.graph.dimensions import array_of
from astitch.graph.index import Symbol
from astitch.graph.storage import storage_name
from astitch.kernel import kernel_ir as k
from astitch.kernel.element_loops import ElementLoops
from astitch.kernel.loop_nest import LoopNest
from astitch.kernel.nest import Depth, at_first_lane
from astitch.kernel.on_chip import (
    MAX_BUFFERS,
    MAX_DELAY,
    MAX_PREFETCHES,
    Buffer,
    OnChip,
    Prefetched,
    VectorLoad,
    find_turn,
)
from astitch.kernel.residency import find_late_loads
from astitch.kernel.states import count_states
from astitch.kernel.task_indices import index_own_tile, index_task
from astitch.kernel.values import is_input
from astitch.mapping.stitch_scheme import ReductionScope
from astitch.tiling.space import ceil_div

MAX_PREFETCH_BYTES = 32
"""A thread prefetches at most so many bytes of the next task into registers.  More goes to shared memory."""


@dataclass
class Budget:
    """What a loop may still keep on chip.  registers: 32-bit, of a thread.  shared_bytes: of a block."""

    registers: int
    shared_bytes: int


class Prefetch:
    """Chooses and emits what one loop loads early.

    grid: blocks.
    buffers: tasks that the circular buffer holds.  distance: how many tasks early a vector is loaded.
    delay: tasks between a block's part and its meeting with the cooperating blocks.
    round_fetches: copies of the first round and of each next one.
    """

    def __init__(
        self,
        nest: LoopNest,
        on_chip: OnChip,
        loops: ElementLoops,
        budget: Budget,
        *,
        grid: int,
        schedule: Schedule,
    ) -> None:
        self.nest, self.on_chip, self.loops, self.budget = nest, on_chip, loops, budget
        self.declarations = nest.declarations
        self.graph, self.mapping = nest.graph, nest.mapping
        self.grid, self.schedule = grid, schedule
        self.buffers, self.distance, self.delay = 0, 1, 0
        self.round_fetches: list[k.Statement] = []

    @property
    def once(self) -> bool:
        """Every block has at most one task."""
        return self.mapping.tasks <= self.grid

    # -- choices -------------------------------------------------------------------------------------------------

    def choose(self, find_loads: Callable[[], Iterable[VectorLoad]]) -> None:
        """Choose what is loaded before its task's turn, and declare where it lies.

        find_loads: the vectors that the loop loads if it loads nothing early.
        """
        m = self.mapping
        waits = self.schedule.prefetch
        if waits is None:
            waits = self.nest.phases > 1
        if m.carried:
            waits = m.abreast > 1 and self.schedule.prefetch is not False
        elif self.once:
            self.choose_for_later_phases()
            return
        if not waits or m.rounds == 1 < m.abreast:
            return
        known = [v for v in find_loads() if self.is_known_from_task(v)]
        moving = [v for v in known if self.moves_with_task(v) and self.is_large(v)]
        if m.carried:
            self.choose_for_rounds(moving)
            return
        # Single elements lie in a circular buffer or nowhere.
        still = [v for v in known if not self.moves_with_task(v) and m.vector > 1]
        self.choose_for_tasks(moving, still)

    def count_bytes(self, loads: Sequence[VectorLoad]) -> int:
        """What a thread holds of the vectors of one task."""
        m = self.mapping
        return sum(v.dtype.bytes for v in loads) * m.vector * m.row_steps * m.col_steps

    def choose_for_rounds(self, moving: Sequence[VectorLoad]) -> None:
        """Copy the vectors of the next round while this one is worked on."""
        round_bytes = self.count_bytes(moving) * self.mapping.block
        if moving and self.budget.shared_bytes // round_bytes >= 2:
            self.buffers = 2
            self.budget.shared_bytes -= 2 * round_bytes
            why = f"{round_bytes} B a block of the next round are prefetched"
            self.add(moving, Buffer.CIRCULAR, why)

    def choose_for_tasks(self, moving: Sequence[VectorLoad], still: Sequence[VectorLoad]) -> None:
        """Load the vectors of the next task while this one is worked on, and once those that are always the same."""
        task_bytes = self.count_bytes(moving) * self.mapping.block
        fitting = self.budget.shared_bytes // task_bytes if moving else 0
        delayed = self.may_delay() and fitting > MAX_PREFETCHES
        in_registers = (
            self.loops.unrolled and self.count_bytes(moving) <= MAX_PREFETCH_BYTES and not delayed
        )
        in_registers = in_registers and self.mapping.vector > 1
        if self.loops.unrolled and still:
            self.choose_once(still, 2 * self.count_bytes(moving) if in_registers else 0)
        if not moving:
            return
        if in_registers:
            why = f"{self.count_bytes(moving)} B a thread of the next task are prefetched"
            self.add(moving, Buffer.PREFETCHED, why)
        elif fitting >= 2:
            self.choose_depth(fitting, delayed=delayed)
            self.budget.shared_bytes -= self.buffers * task_bytes
            why = f"{self.buffers} tasks of {task_bytes} B a block lie in a circular buffer"
            why += f", {self.distance} on their way"
            why += f", blocks wait for a block group {self.delay} tasks later" if self.delay else ""
            self.add(moving, Buffer.CIRCULAR, why)

    def choose_once(self, still: Sequence[VectorLoad], moving_bytes: int) -> None:
        """Load what is the same for every task once.  moving_bytes: of a thread, for this task and the next."""
        reducer = self.declarations.reducer
        sums = [p for p in self.nest.places if p.reduction_scope is ReductionScope.LOOP]
        filled = moving_bytes + sum(
            count_states(self.mapping, p) * reducer(p.root.name).state_bytes for p in sums
        )
        still_bytes = self.count_bytes(still)
        copy_bytes = still_bytes * self.mapping.block
        if filled + still_bytes <= self.budget.registers * 4:
            self.add(still, Buffer.ONCE, f"{still_bytes} B a thread are loaded once")
        elif copy_bytes <= self.budget.shared_bytes:
            self.budget.shared_bytes -= copy_bytes
            why = f"{copy_bytes} B a block are copied to shared memory once"
            self.add(still, Buffer.ONCE_SHARED, why)

    def choose_for_later_phases(self) -> None:
        """Let the first phase load for later ones too.

        Where every block has one task and all of them run at once, nothing hides that a later phase waits for its
        loads.
        """
        m, arrangement = self.mapping, self.declarations.arrangement
        alone = arrangement.levels == 1 and self.grid <= arrangement.wave
        if self.nest.phases == 1 or not alone or not self.loops.unrolled:
            return
        if m.row_size > 1 or m.vector == 1 or self.schedule.prefetch is False:
            return
        if all(map(self.loops.is_own_column, self.nest.phase_roots(0))):
            return
        left = self.budget.registers * 4 // 2
        wanted = []
        for load in self.find_late_vectors():
            held = load.dtype.bytes * m.vector * m.col_steps
            if held <= left:
                wanted.append(load)
                left -= held
        if wanted:
            held = sum(v.dtype.bytes for v in wanted) * m.vector * m.col_steps
            self.budget.registers -= held // 4
            why = f"{held} B a thread are loaded in the first phase"
            self.add(wanted, Buffer.FIRST_PHASE, why)

    def find_late_vectors(self) -> list[VectorLoad]:
        """What only phases after the first load, at positions that do not depend on data."""
        other = self.nest.for_another_task()  # what it renders is nowhere emitted
        found = []
        for key in find_late_loads(self.declarations.arrangement, self.nest.loop):
            name, index = key
            if not is_input(self.declarations, name):
                continue
            form = ix.linearize(index, array_of(self.graph[name]).shape)
            load = VectorLoad(key, storage_name(self.graph, name), form, self.graph[name].dtype)
            if self.is_known_from_task(load) and other.is_vector(form):
                found.append(load)
        return found

    def choose_depth(self, fitting: int, *, delayed: bool) -> None:
        """Places of the circular buffer, of which `fitting` >= 2 fit.

        A delayed block starts a copy when its oldest task is done, at the end of a turn: that needs two on their way.
        """
        self.buffers, self.distance, self.delay = 2, 1, 0
        if delayed:
            tasks = ceil_div(self.mapping.tasks, self.grid)  # of a block
            self.distance = MAX_PREFETCHES
            self.delay = min(fitting - MAX_PREFETCHES, MAX_DELAY, max(tasks - 1, 1))
            self.buffers = self.distance + self.delay

    def may_delay(self) -> bool:
        """Can what follows the meeting of cooperating blocks wait until the next task's part is done?

        It must need nothing of the first phase but the reductions that they meet for, and what is in the buffer.
        """
        first = [
            p.reduction_scope is ReductionScope.BLOCK_GROUP
            for p in self.nest.places
            if p.phase == 0
        ]
        later = [
            p.reduction_scope is ReductionScope.BLOCK_GROUP for p in self.nest.places if p.phase > 0
        ]
        return self.mapping.cooperative and all(first) and not any(later)

    def add(self, loads: Sequence[VectorLoad], buffer: Buffer, why: str) -> None:
        """Declare where vectors lie that are loaded early.  why: a note for people."""
        m, declarations, number = self.mapping, self.declarations, self.nest.loop.number
        declarations.notes.append(f"loop {number}: {why}")
        for load in loads:
            found = Prefetched(load, self.nest.fresh(f"{load.key[0]}_now"), buffer)
            self.on_chip.prefetched[load.source, load.form] = found
            if buffer in (Buffer.CIRCULAR, Buffer.ONCE_SHARED):
                tasks = self.buffers if buffer is Buffer.CIRCULAR else 1
                count = tasks * m.row_steps * m.col_steps * m.block * m.vector
                span = ((number, 0), (number, self.nest.phases))
                declarations.add_slot(found.name, load.dtype, None, count, load.dtype.bytes, *span)

    def is_known_from_task(self, load: VectorLoad) -> bool:
        """An input whose position does not depend on data."""
        known = all(s in self.nest.axis_of for s in ix.symbols(load.form))
        return is_input(self.declarations, load.key[0]) and known

    def is_large(self, load: VectorLoad) -> bool:
        m = self.mapping
        size = array_of(self.graph[load.key[0]]).size
        return size >= m.outer_size * m.row_size * m.col_size

    def moves_with_task(self, load: VectorLoad) -> bool:
        """Does its position differ from task to task?"""
        m = self.mapping
        still = {*(() if m.row_tiles > 1 else m.row), *(() if m.col_tiles > 1 else m.col)}
        return any(s not in still for s in ix.symbols(load.form))

    # -- copies --------------------------------------------------------------------------------------------------

    def emit(self) -> tuple[list[k.Statement], list[k.Statement], list[k.Statement]]:
        """(before the task loop, at the start of its body, at its end)."""
        if not self.on_chip.prefetched:
            return [], [], []
        m = self.mapping
        found = self.on_chip.prefetched.values()
        moving = [p for p in found if p.buffer in (Buffer.PREFETCHED, Buffer.CIRCULAR)]
        still = [p for p in found if p.buffer in (Buffer.ONCE, Buffer.ONCE_SHARED)]
        before, start, target = self.declare_registers()
        end: list[k.Statement] = []
        if still:
            before += self.fetch(still, target)
        if any(p.buffer is Buffer.ONCE_SHARED for p in still):
            before.append(k.CopyWait(None))
        if moving and m.carried:
            fetched = (index_own_tile(m), *self.fetch(moving, target))
            self.round_fetches = [
                k.FetchRound(first, "round", m.rounds, m.backward, fetched)
                for first in (True, False)
            ]
        elif moving:
            body = (*index_task(m), *self.fetch(moving, target))
            before += [
                k.Prefetch(True, m.tasks, body, number, self.buffers)
                for number in range(self.distance)
            ]
            fetch = k.Prefetch(False, m.tasks, body, self.distance, self.buffers)
            (end if self.delay else start).append(fetch)
        if any(p.buffer is Buffer.CIRCULAR for p in moving) and not m.carried:
            start.append(k.CopyWait(self.distance - 1 if self.delay else self.distance))
        return before, start, end

    def declare_registers(self) -> tuple[list[k.Statement], list[k.Statement], dict[str, str]]:
        """(before the task loop, at the start of its body, where each Prefetched is loaded to)."""
        width, steps = self.mapping.vector, self.mapping.row_steps * self.mapping.col_steps
        before: list[k.Statement] = []
        start: list[k.Statement] = []
        target: dict[str, str] = {}
        for found in self.on_chip.prefetched.values():
            target[found.name] = found.name
            if found.buffer in (Buffer.ONCE, Buffer.PREFETCHED, Buffer.FIRST_PHASE):
                before.append(k.PrefetchRegisters(found.name, found.load.dtype, width, steps))
            if found.buffer is Buffer.PREFETCHED:
                target[found.name] = self.nest.fresh(f"{found.load.key[0]}_ahead")
                before.append(
                    k.PrefetchRegisters(target[found.name], found.load.dtype, width, steps)
                )
                start.append(k.Advance(found.name, target[found.name], steps))
        return before, start, target

    def fetch_for_later(self) -> None:
        """Emits the loads of later phases into the nest of the first phase, behind its own loads."""
        nest = self.nest
        for found in self.on_chip.prefetched.values():
            if found.buffer is Buffer.FIRST_PHASE:
                load, width = found.load, self.mapping.vector
                array = nest.declarations.array(load.source, load.dtype, read=True)
                base = at_first_lane(nest.position(load.form)[0])
                fetch = k.Fetch(found.name, nest.own_step(), load.dtype, array, base, width)
                nest.emit(Depth.COLUMN, fetch)
        self.on_chip.first_fetched = True

    def fetch(self, wanted: Sequence[Prefetched], target: Mapping[str, str]) -> list[k.Statement]:
        """The nest that loads the vectors of a task to where they lie.  target: by the name of a Prefetched."""
        other = self.nest.for_another_task()
        next_turn = ix.of_symbol(Symbol("next_turn", MAX_BUFFERS))
        if self.mapping.carried:
            next_turn = find_turn(self.mapping)
        for found in wanted:
            load = found.load
            array = self.declarations.array(load.source, load.dtype, read=True)
            base = at_first_lane(other.position(load.form)[0])
            at = found.position(other, next_turn)
            name, width = target[found.name], self.mapping.vector
            other.emit(Depth.COLUMN, k.Fetch(name, at, load.dtype, array, base, width))
        nest = self.loops.for_another_task(other).build()
        return [*other.frames[Depth.KERNEL].statements, *other.frames[Depth.TASK].statements, *nest]
