"""TaskLoop -> Section: the nest of a task loop, phase by phase, around the values that values.py places.

A task loop becomes: indices of the task; then for each phase the values that a task needs once, the nest of row,
column and lane loops over a thread's elements, and the reductions across threads.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from astitch.device.schedule import DEFAULT, Schedule
from astitch.graph import index as ix
from astitch.graph.dimensions import array_of
from astitch.graph.index import Linear, Quotient, Symbol
from astitch.graph.ir import ArrayType, DType, GetTupleElementAttrs
from astitch.graph.joint_regions import MOMENTS
from astitch.graph.ops import monoid_of
from astitch.graph.propagation import Guard, Index, Within
from astitch.graph.storage import storage_name, storage_type
from astitch.kernel import kernel_ir as k
from astitch.kernel.declarations import Declarations
from astitch.kernel.nest import LANE, Key, Zone, at_first_lane
from astitch.kernel.residency import MAX_UNROLLED_STEPS, Place, choose_residency, find_late_loads
from astitch.kernel.values import (
    MAX_AHEAD,
    MAX_LAG,
    MAX_RING,
    Frame,
    Kept,
    Stage,
    Staged,
    Values,
    VectorLoad,
)
from astitch.mapping.stitch_scheme import (
    Placement,
    RootKind,
    Scheme,
    Span,
    TaskLoop,
    root_starts,
    shared_elements,
)
from astitch.thread_mapping import ceil_div

MAX_OWN_STATES = 16
"""States of other warps that each thread combines by itself; one that is no simple sum or extreme counts for four."""

MAX_TOGETHER = 4
"""Reductions of a row that share one butterfly."""

ROWS_AHEAD = 24
"""Elements that a thread of a column reduction loads before it adds the first: where rows do not fill its turns a
last turn alone would cost as much time as all others."""

MAX_AHEAD_BYTES = 32
"""What a thread loads of the next task into registers; more lies in shared memory."""


def steps_inside(size: int, minus_tile: Linear, thread: str, threads: int) -> Linear:
    """How many of the positions tile + step * threads + thread are below `size`, by step."""
    left = ix.add(
        ix.constant(size + threads - 1),
        minus_tile,
        ix.scale(ix.of_symbol(Symbol(thread, threads)), -1),
    )
    return ix.of_symbol(Quotient(left, threads)) if threads > 1 else left


def clamped(name: str, last: int) -> Linear:
    """The index `name`, at most `last`."""
    return ix.of_symbol(Symbol(f"clamped({name}, {last})", last + 1))


def guard_sums(body: Iterable[k.Statement], guard: Guard) -> Iterator[k.Statement]:
    """The body of a nest, of which only what it adds to sums stands behind a guard."""
    sums = (
        k.Accumulate,
        k.AccumulateProduct,
        k.AccumulateElement,
        k.AccumulateBatch,
        k.AccumulateState,
    )
    for statement in body:
        if isinstance(statement, k.Loop | k.If):
            yield replace(statement, body=tuple(guard_sums(statement.body, guard)))
        elif isinstance(statement, sums):
            yield k.If((guard,), (statement,))
        else:
            yield statement


class LoopLowering(Values):
    """Lowers one task loop.  grid: blocks.  offset: see Section.  keep_registers, keep_shared_bytes: see lower()."""

    def __init__(
        self,
        declarations: Declarations,
        loop: TaskLoop,
        *,
        grid: int,
        offset: int,
        keep_registers: int,
        keep_shared_bytes: int,
        schedule: Schedule = DEFAULT,
        backward: bool = False,
    ):
        super().__init__(declarations, loop)
        self.grid, self.offset, self.schedule = grid, offset, schedule
        # The end of what was read last is still in the L2: a second reading starts there.
        self.backward = backward
        self.keep_registers, self.keep_shared_bytes = keep_registers, keep_shared_bytes
        self.places = [p for p in self.placements.values() if p.loop == loop.number]
        self.unrolled = loop.mapping.row_steps * loop.mapping.col_steps <= MAX_UNROLLED_STEPS
        self.round_fetches: list[k.Statement] = []
        self.loop_states: list[k.Statement] = []
        self.ring, self.ahead, self.lag = 0, 1, 0
        self.after_meeting: list[k.Statement] = []
        self.carried_states: list[k.Statement] = []
        self.clamps = self.runs_ahead = self.in_whole_tile = False
        self.exchanges = 0
        self.exchange_slots: dict[tuple[int, int, int], str] = {}

    def phase_roots(self, phase: int) -> list[Placement]:
        return [p for p in self.places if p.phase == phase]

    @property
    def once(self) -> bool:
        """Every block has at most one task."""
        return self.mapping.tasks <= self.grid

    def stage_loads(self, phases: int) -> None:
        """Choose what the next task needs that is loaded ahead of its turn, and declare where it lies."""
        waits = phases > 1 if self.schedule.prefetch is None else self.schedule.prefetch
        if self.mapping.carried:
            waits = self.mapping.abreast > 1 and self.schedule.prefetch is not False
        elif self.once:
            self.stage_later_phases(phases)
            return
        if not waits or self.mapping.rounds == 1 < self.mapping.abreast:
            return
        trial = LoopLowering(
            self.declarations.copy(),
            self.loop,
            grid=self.grid,
            offset=self.offset,
            keep_registers=self.keep_registers,
            keep_shared_bytes=self.keep_shared_bytes,
            schedule=self.schedule,
            backward=self.backward,
        )
        trial.lower_body(phases)
        known = [v for v in trial.vector_loads.values() if self.is_known_from_task(v)]
        moving = [v for v in known if self.moves_with_task(v) and self.is_large(v)]
        # Single elements lie in a ring or nowhere.
        still = [v for v in known if not self.moves_with_task(v) and self.mapping.vector > 1]
        steps = self.mapping.row_steps * self.mapping.col_steps

        def bytes_of(loads: Sequence[VectorLoad]) -> int:
            """What a thread holds of them."""
            return sum(v.dtype.bytes for v in loads) * self.mapping.vector * steps

        ring_bytes = bytes_of(moving) * self.mapping.block  # of one task
        fitting = self.keep_shared_bytes // ring_bytes if moving else 0
        lags = self.may_lag() and fitting > MAX_AHEAD
        ahead = self.unrolled and bytes_of(moving) <= MAX_AHEAD_BYTES and not lags
        ahead = ahead and self.mapping.vector > 1
        if self.mapping.carried:
            if moving and fitting >= 2:
                self.ring = 2
                self.keep_shared_bytes -= 2 * ring_bytes
                why = f"{ring_bytes} B a block of the next round are copied ahead"
                self.stage(moving, Stage.RING, why, phases)
            return
        if self.unrolled and still:
            # What fills the registers first: sums over tasks, this task's vectors and the next one's.
            sums = [p for p in self.places if p.span is Span.LOOP]
            states = [self.declarations.reducer(p.root.name).state_bytes for p in sums]
            filled = sum(map(operator.mul, map(self.state_count, sums), states))
            filled += 2 * bytes_of(moving) if ahead else 0
            copy_bytes = bytes_of(still) * self.mapping.block
            if filled + bytes_of(still) <= self.keep_registers * 4:
                why = f"{bytes_of(still)} B a thread are loaded once"
                self.stage(still, Stage.STILL, why, phases)
            elif copy_bytes <= self.keep_shared_bytes:
                self.keep_shared_bytes -= copy_bytes
                why = f"{copy_bytes} B a block are copied to shared memory once"
                self.stage(still, Stage.STILL_SHARED, why, phases)
        if not moving:
            return
        if ahead:
            why = f"{bytes_of(moving)} B a thread of the next task are loaded ahead"
            self.stage(moving, Stage.AHEAD, why, phases)
        elif fitting >= 2:
            self.choose_ring(fitting, lags=lags)
            self.keep_shared_bytes -= self.ring * ring_bytes
            why = f"{self.ring} tasks of {ring_bytes} B a block lie in a ring, {self.ahead} on their way"
            why += f", blocks wait for a team {self.lag} tasks later" if self.lag else ""
            self.stage(moving, Stage.RING, why, phases)

    def stage_later_phases(self, phases: int) -> None:
        """Where every block has one task and all of them run at once, nothing hides what a later phase waits for its
        loads: the first phase issues them beside its own."""
        m, arrangement = self.mapping, self.declarations.arrangement
        alone = arrangement.levels == 1 and self.grid <= arrangement.wave
        if phases == 1 or not alone or not self.unrolled or m.row_size > 1 or m.vector == 1:
            return
        if self.schedule.prefetch is False or all(map(self.is_own_column, self.phase_roots(0))):
            return
        steps, left = m.col_steps, self.keep_registers * 4 // 2
        wanted = []
        for load in self.find_late_vectors():
            held = load.dtype.bytes * m.vector * steps
            if held <= left:
                wanted.append(load)
                left -= held
        if wanted:
            held = sum(v.dtype.bytes for v in wanted) * m.vector * steps
            self.keep_registers -= held // 4
            self.stage(
                wanted, Stage.FIRST, f"{held} B a thread are loaded in the first phase", phases
            )

    def find_late_vectors(self) -> list[VectorLoad]:
        """What only phases after the first load, at positions that do not depend on data."""
        other = self.for_another_task()  # what it spells is nowhere emitted
        found = []
        for key in find_late_loads(self.declarations.arrangement, self.loop):
            name, index = key
            if not self.is_input(name):
                continue
            form = ix.linearize(index, array_of(self.graph[name]).shape)
            load = VectorLoad(key, storage_name(self.graph, name), form, self.graph[name].dtype)
            if self.is_known_from_task(load) and other.is_vector(form):
                found.append(load)
        return found

    def choose_ring(self, fitting: int, *, lags: bool) -> None:
        """Places of the ring, of which `fitting` >= 2 fit.

        A lagging block starts a copy when its oldest task is done, at the end of a turn: that needs two on their way.
        """
        self.ring, self.ahead, self.lag = 2, 1, 0
        if lags:
            tasks = ceil_div(self.mapping.tasks, self.grid)  # of a block
            self.ahead = MAX_AHEAD
            self.lag = min(fitting - MAX_AHEAD, MAX_LAG, max(tasks - 1, 1))
            self.ring = self.ahead + self.lag

    def may_lag(self) -> bool:
        """Can what follows the meeting of a team wait until the next task's part is done?  It must need nothing of the
        first phase but the reductions that the team meets for, and what is in the ring."""
        first = [p.span is Span.TEAM for p in self.places if p.phase == 0]
        later = [p.span is Span.TEAM for p in self.places if p.phase > 0]
        return self.mapping.team and all(first) and not any(later)

    def stage(self, loads: Sequence[VectorLoad], stage: Stage, why: str, phases: int) -> None:
        self.declarations.notes.append(f"loop {self.loop.number}: {why}")
        m = self.mapping
        for load in loads:
            staged = Staged(load, self.fresh(f"{load.key[0]}_now"), stage)
            self.staged[load.source, load.form] = staged
            if stage in (Stage.RING, Stage.STILL_SHARED):
                count = (
                    (self.ring if stage is Stage.RING else 1)
                    * m.row_steps
                    * m.col_steps
                    * m.block
                    * m.vector
                )
                span = ((self.loop.number, 0), (self.loop.number, phases))
                self.declarations.add_slot(
                    staged.name, load.dtype, None, count, load.dtype.bytes, *span
                )

    def is_known_from_task(self, load: VectorLoad) -> bool:
        """An input whose position does not depend on data."""
        known = all(s in self.axis_of for s in ix.symbols(load.form))
        return self.is_input(load.key[0]) and known

    def is_large(self, load: VectorLoad) -> bool:
        m = self.mapping
        size = array_of(self.graph[load.key[0]]).size
        return size >= m.outer_size * m.row_size * m.col_size

    def moves_with_task(self, load: VectorLoad) -> bool:
        """Does its position differ from task to task?"""
        m = self.mapping
        still = {*(() if m.row_tiles > 1 else m.row), *(() if m.col_tiles > 1 else m.col)}
        return any(s not in still for s in ix.symbols(load.form))

    def prefetch(self) -> tuple[list[k.Statement], list[k.Statement], list[k.Statement]]:
        """(before the task loop, at the start of its body, at its end)."""
        if not self.staged:
            return [], [], []
        m = self.mapping
        width, steps = m.vector, m.row_steps * m.col_steps
        ahead: dict[str, str] = {}
        before: list[k.Statement] = []
        start: list[k.Statement] = []
        end: list[k.Statement] = []
        for staged in self.staged.values():
            ahead[staged.name] = staged.name
            if staged.stage in (Stage.STILL, Stage.AHEAD, Stage.FIRST):
                before.append(k.Ahead(staged.name, staged.load.dtype, width, steps))
            if staged.stage is Stage.AHEAD:
                ahead[staged.name] = self.fresh(f"{staged.load.key[0]}_ahead")
                before.append(k.Ahead(ahead[staged.name], staged.load.dtype, width, steps))
                start.append(k.Advance(staged.name, ahead[staged.name], steps))
        moving = [s for s in self.staged.values() if s.stage in (Stage.AHEAD, Stage.RING)]
        still = [s for s in self.staged.values() if s.stage in (Stage.STILL, Stage.STILL_SHARED)]
        if still:
            before += self.fetch(still, ahead)
        if any(s.stage is Stage.STILL_SHARED for s in still):
            before.append(k.CopyWait(None))
        if moving and m.carried:
            fetched = (self.own_tile, *self.fetch(moving, ahead))
            self.round_fetches = [
                k.FetchRound(first, "round", m.rounds, m.backward, fetched)
                for first in (True, False)
            ]
        elif moving:
            body = (*self.task_indices(), *self.fetch(moving, ahead))
            before += [
                k.Prefetch(True, m.tasks, body, number, self.ring) for number in range(self.ahead)
            ]
            fetch = k.Prefetch(False, m.tasks, body, self.ahead, self.ring)
            (end if self.lag else start).append(fetch)
        if any(s.stage is Stage.RING for s in moving) and not m.carried:
            start.append(k.CopyWait(self.ahead - 1 if self.lag else self.ahead))
        return before, start, end

    def fetch_for_later(self) -> None:
        """In the nest of the first phase, behind its own loads."""
        for staged in self.staged.values():
            if staged.stage is Stage.FIRST:
                load = staged.load
                array = self.declarations.array(load.source, load.dtype, read=True)
                base = at_first_lane(self.position(load.form)[0])
                fetch = k.Fetch(
                    staged.name, self.own_step(), load.dtype, array, base, self.mapping.vector
                )
                self.emit(Zone.COLUMN, fetch)
        self.first_fetched = True

    def fetch(self, wanted: Sequence[Staged], target: Mapping[str, str]) -> list[k.Statement]:
        """The nest that loads the vectors of a task to where they are staged.  target: by the name of a Staged."""
        fetcher = self.for_another_task()
        next_turn = ix.of_symbol(Symbol("next_turn", MAX_RING))
        if self.mapping.carried:
            next_turn = self.turn
        with fetcher.inner_frames():
            for staged in wanted:
                load = staged.load
                array = self.declarations.array(load.source, load.dtype, read=True)
                position, _ = fetcher.position(load.form)
                base = at_first_lane(position)
                at = fetcher.staged_position(staged, next_turn)
                name, width = target[staged.name], self.mapping.vector
                fetcher.emit(Zone.COLUMN, k.Fetch(name, at, load.dtype, array, base, width))
            nest = fetcher.nest()
        frames = fetcher.frames
        return [*frames[Zone.KERNEL].statements, *frames[Zone.TASK].statements, *nest]

    def for_another_task(self) -> LoopLowering:
        """To spell positions of a task that is not the current one: no zone holds anything yet."""
        return LoopLowering(
            self.declarations,
            self.loop,
            grid=self.grid,
            offset=self.offset,
            keep_registers=0,
            keep_shared_bytes=0,
            schedule=self.schedule,
            backward=self.backward,
        )

    def keep_values(self, phases: int) -> None:
        """Declare what stays on chip across the phases of a task."""
        running = [p for p in self.places if p.root.kind is RootKind.RUNNING]
        states = [self.declarations.reducer(p.root.name).state_bytes // 4 for p in running]
        taken = sum(map(operator.mul, map(self.state_count, running), states))
        registers = max(self.keep_registers - taken, 0)
        residency = choose_residency(
            self.declarations.arrangement, self.loop, registers, self.keep_shared_bytes
        )
        staged = {s.load.key for s in self.staged.values()}  # these are on chip anyway
        keys = [h.key for h in residency.values]
        if residency.reason and not (keys and staged.issuperset(keys)):
            self.declarations.notes.append(f"loop {self.loop.number}: {residency.reason}")
        shared = residency.place is Place.SHARED
        for held in residency.values:
            if held.key in staged or self.lag:
                continue
            dtype = self.graph[held.key[0]].dtype
            name = self.fresh(f"{held.key[0]}_kept")
            kept = Kept(name, held.key, dtype, held.raw, shared, held.zone)
            self.kept[held.key] = kept
            if shared:
                count = self.kept_count(kept) * self.mapping.block
                span = ((self.loop.number, 0), (self.loop.number, phases))
                self.declarations.add_slot(name, dtype, None, count, dtype.bytes, *span)

    def kept_count(self, kept: Kept) -> int:
        """Elements of a kept value that one thread holds."""
        m = self.mapping
        steps = m.row_steps if kept.zone is Zone.ROW else m.row_steps * m.col_steps
        return steps * (m.vector if kept.zone is Zone.LANE else 1)

    def lower(self) -> k.Section:
        m = self.mapping
        phases = max((p.phase for p in self.places), default=0) + 1
        self.stage_loads(phases)
        fetch_first, fetch_next, fetch_last = self.prefetch()
        body = self.lower_body(phases)
        across = [p for p in self.places if p.span is Span.LOOP]
        before: list[k.Statement] = [
            k.Ahead(kept.name, kept.dtype, m.vector, m.row_steps * m.col_steps)
            if kept.key in self.kept_whole
            else k.Keep(kept.name, kept.dtype, self.kept_count(kept), kept.raw)
            for kept in self.kept.values()
            if not kept.shared
        ]
        before += self.loop_states
        # An odd number of exchanges starts the next task on the slot that the last one used; a Regional buffer is read
        # until the end of the task.
        if self.lag:
            pass  # a turn has at least the barrier of its meeting, or one in its place
        elif (m.carried or not self.once) and (
            self.exchanges % 2 or any(p.shared for p in self.places)
        ):
            body.append(
                k.Barrier(
                    "block", "the next task writes the shared memory that this one still reads"
                )
            )
        if m.carried:
            body = self.rounds(body)
        body = [*self.task_indices(), *fetch_next, *body]
        if self.lag:
            current = k.Current(m.tasks, tuple(body))
            after_meeting = (*self.task_indices(), *self.after_meeting)
            body = [current, k.Previous(self.ring, after_meeting, self.lag), *fetch_last]
        loop = k.TaskLoop(m.tasks, self.once, tuple(body), 0 if m.carried else self.ring, self.lag)
        # Accumulators of blocks without a task hold identities; they only keep the barriers inside uniform.
        after: list[k.Statement] = list(self.reduce_across(across))
        for place in across:
            after += self.store_loop_partials(place)
        kernel_zone = self.frames[Zone.KERNEL].statements
        return k.Section(
            self.loop.number,
            str(m),
            self.offset,
            m.outer_threads,
            m.row_threads,
            m.col_threads,
            (*kernel_zone, *before, *fetch_first, loop, *after),
            m.packed_inside,
        )

    def lower_body(self, phases: int) -> list[k.Statement]:
        """The phases of a task, one after the other."""
        self.keep_values(phases)
        across = [p for p in self.places if p.span is Span.LOOP]
        self.loop_states = [self.declare_state(place) for place in across]
        body: list[k.Statement] = []
        for phase in range(phases):
            statements = self.lower_phase(phase)
            if self.lag and phase > 0:
                self.after_meeting += statements
            else:
                body += statements
        return body

    def rounds(self, body: Sequence[k.Statement]) -> list[k.Statement]:
        """The tiles of a task in order, around what is done for each."""
        m = self.mapping
        if m.abreast == 1:
            turn = k.Rounds(f"{m.carried}_tile", m.rounds, m.backward, tuple(body))
            return [*self.carried_states, turn]
        first: list[k.Statement] = self.round_fetches[:1]
        ahead = [*self.round_fetches[1:], k.CopyWait(1)] if first else []
        inside = (self.own_tile, *ahead, *body)
        turns = k.Rounds("round", m.rounds, m.backward, inside)
        return [*self.carried_states, *first, turns]

    @property
    def own_tile(self) -> k.Statement:
        """The tile of this block in a round of a team."""
        m = self.mapping
        turn = ix.of_symbol(Symbol("round", m.rounds))
        return k.Index(f"{m.carried}_tile", ix.add(ix.scale(turn, m.abreast), self.part))

    @property
    def part(self) -> Linear:
        """Which of the tiles abreast is this block's."""
        task = ix.of_symbol(Symbol("task", self.mapping.tasks))
        return ix.modulo(task, self.mapping.abreast)

    def task_indices(self) -> Iterator[k.Statement]:
        m = self.mapping
        row_tiles = m.abreast if m.carried == "row" else m.row_tiles
        col_tiles = m.abreast if m.carried == "col" else m.col_tiles
        tiles = row_tiles * col_tiles
        task = ix.of_symbol(Symbol("task", m.tasks))
        outer_tile = ix.divide(task, tiles)
        if m.outer_size > 1:
            if m.outer_threads > 1:
                to = ix.of_symbol(Symbol("to", m.outer_threads))
                raw = ix.add(ix.scale(outer_tile, m.outer_threads), to)
                if m.outer_size % m.outer_threads:
                    yield k.Index("outer_raw", raw)
                    yield k.Index(
                        "outer",
                        clamped("outer_raw", m.outer_size - 1),
                    )
                else:
                    yield k.Index("outer", raw)
            else:
                yield k.Index("outer", outer_tile)
        row_task, col_task = ix.divide(task, col_tiles), task
        if m.rows_last or m.carried == "row":
            row_task, col_task = task, ix.divide(task, row_tiles)
        if row_tiles > 1 and m.carried != "row":
            yield k.Index("row_tile", ix.modulo(row_task, row_tiles))
        if col_tiles > 1 and m.carried != "col":
            yield k.Index("col_tile", ix.modulo(col_task, col_tiles))

    @property
    def outer_guard(self) -> tuple[Guard, ...]:
        """Threads beyond the last packed row compute along with it but must not store or count."""
        m = self.mapping
        if m.outer_threads > 1 and m.outer_size == 1:
            return (Within(ix.of_symbol(Symbol("to", m.outer_threads)), 0, 1),)
        if m.outer_threads > 1 and m.outer_size % m.outer_threads:
            return (
                Within(
                    ix.of_symbol(Symbol("outer_raw", m.tasks * m.outer_threads)), 0, m.outer_size
                ),
            )
        return ()

    def leader_guard(
        self, *, row: bool, col: bool, in_nest: bool = False, in_each_tile: bool = False
    ) -> tuple[Guard, ...]:
        """One thread of those that stand at the same element: along axes that the value does not vary over.

        in_nest: the statement stands inside the row loop if it varies along the columns.  in_each_tile: one of each
        tile of rows, not of the first one alone.
        """
        m = self.mapping
        guards: list[Guard] = []
        if not col and m.col_threads > 1:
            guards.append(Within(ix.of_symbol(Symbol("tx", m.col_threads)), 0, 1))
        if in_nest and col and not row and m.row_size > 1:
            first = ix.of_symbol(Symbol("row", ix.UNBOUNDED))
            if in_each_tile and m.row_tiles > 1:
                tile = ix.of_symbol(Symbol("row_tile", m.row_tiles))
                first = ix.add(first, ix.scale(tile, -m.row_tile))
            guards.append(Within(first, 0, 1))
        elif not row and m.row_threads > 1:
            guards.append(Within(ix.of_symbol(Symbol("ty", m.row_threads)), 0, 1))
        return tuple(guards)

    def tile_guard(self, *, row: bool, col: bool) -> tuple[Guard, ...]:
        """One tile of those that would compute the same value."""
        m = self.mapping
        guards: list[Guard] = []
        if not row and m.row_tiles > 1:
            guards.append(Within(ix.of_symbol(Symbol("row_tile", m.row_tiles)), 0, 1))
        if not col and m.col_tiles > 1:
            guards.append(Within(ix.of_symbol(Symbol("col_tile", m.col_tiles)), 0, 1))
        return tuple(guards)

    def result_guard(self, place: Placement) -> tuple[Guard, ...]:
        """One thread of those that hold an element of a reduce's result."""
        row, col = self.kept_axes(place)
        leaders = self.leader_guard(row=row, col=col)
        if any(a in place.root.space.kept for a in self.mapping.outer):
            return (*self.outer_guard, *leaders)
        if self.mapping.outer_threads == 1:
            return leaders
        return (Within(ix.of_symbol(Symbol("to", self.mapping.outer_threads)), 0, 1), *leaders)

    @contextlib.contextmanager
    def inner_frames(self) -> Iterator[None]:
        """Fresh row, column and lane zones: nothing in them outlives the nest."""
        for zone in (Zone.ROW, Zone.COLUMN, Zone.LANE, Zone.AFTER):
            self.frames[zone] = Frame()
        yield

    def nest(self, *, row: bool = True) -> list[k.Statement]:
        """The loops over a thread's elements around what the inner zones hold.

        Where rows are split over blocks and only the last tile ends early, all others do without a test for each row:
        a branch around each load would have them wait for each other.
        """
        m = self.mapping
        nest = self.build_nest(row=row)
        whole = m.row_size // m.row_tile if m.row_tiles > 1 and m.row_steps > 1 else 0
        loads = [*self.frames[Zone.COLUMN].statements, *self.frames[Zone.LANE].statements]
        waits = any(isinstance(s, k.LoadVector | k.Load) for s in loads)
        if not (waits and row and whole and self.unrolled and self.row_bound is not None):
            return nest
        self.in_whole_tile = True
        inside = Within(ix.of_symbol(Symbol("row_tile", m.row_tiles)), 0, whole)
        cases = (k.If((inside,), tuple(self.build_nest(row=row))), k.If((), tuple(nest)))
        self.in_whole_tile = False
        return [k.Switch(cases)]

    def build_nest(self, *, row: bool) -> list[k.Statement]:
        m = self.mapping
        frames = self.frames
        lanes = frames[Zone.LANE].statements
        column = [*frames[Zone.COLUMN].statements]
        if lanes:
            column.append(k.Loop("lane", m.vector, True, tuple(lanes)))
        column += frames[Zone.AFTER].statements
        full = self.unrolled
        if any(isinstance(s, k.LoadVector) and s.name in self.taken_before for s in column):
            return self.nest_in_parts(column)
        inner: list[k.Statement] = [*frames[Zone.ROW].statements]
        if column:
            inner.append(
                self.loop_over("l", m.col_steps, self.col_bound, full, self.enter_column, column)
            )
        if not inner:
            return []
        if not row:
            return inner
        if self.runs_ahead:
            return list(self.rows_ahead(inner))
        return [self.loop_over("k", m.row_steps, self.row_bound, full, self.enter_row, inner)]

    def nest_in_parts(self, column: Sequence[k.Statement]) -> list[k.Statement]:
        """The steps whose vectors an earlier task loop kept, then all others."""
        taken = [
            self.taken_before.get(s.name, s) if isinstance(s, k.LoadVector) else s for s in column
        ]
        kept, rows, full = self.carried_steps, self.mapping.row_steps > 1, self.unrolled
        parts = [(taken, 0, kept), (column, kept, self.mapping.walked_steps - kept)]
        first_row = self.frames[Zone.ROW].statements

        def columns(body: Sequence[k.Statement]) -> k.Statement:
            steps, bound = self.mapping.col_steps, self.col_bound
            with self.forward():  # as the loop that kept them
                return self.loop_over("l", steps, bound, full, self.enter_column, [*body])

        if rows:
            return [self.steps_from([*first_row, columns(b)], at, n) for b, at, n in parts if n]
        inner = [*first_row, *(self.steps_from(b, at, n) for b, at, n in parts if n)]
        return [self.loop_over("k", 1, self.row_bound, full, self.enter_row, inner)]

    def steps_from(self, body: Sequence[k.Statement], first: int, count: int) -> k.Statement:
        """A loop over `count` steps from the step `first` on."""
        rows, full = self.mapping.row_steps > 1, self.unrolled
        enter = self.enter_row if rows else self.enter_column
        bound = self.row_bound if rows else self.col_bound
        early = bound is not None and not full
        step = self.step_of("turn", count, bound)
        with self.forward():
            inside = tuple(enter([*body], bound is not None and not early))
        index = k.Index(self.step_symbol.name, ix.offset(step, first))
        end = ix.offset(bound, -first) if bound is not None and early else None
        return k.Loop("turn", count, full, (index, *inside), end)

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Steps go by their numbers, also where the loop begins at the end."""
        backward, self.backward = self.backward, False
        yield
        self.backward = backward

    @staticmethod
    def loop_over(
        variable: str,
        count: int,
        bound: Linear | None,
        full: bool,
        enter: Callable[[list[k.Statement], bool], Iterator[k.Statement]],
        body: list[k.Statement],
    ) -> k.Statement:
        """A loop over steps, some of which may lie beyond the end: a guard in each, or where they are many, an earlier
        end of the loop, which leaves the loads free to run ahead."""
        if full or count == 1 or bound is None:
            return k.Loop(variable, count, full, tuple(enter(body, bound is not None)))
        return k.Loop(variable, count, False, tuple(enter(body, False)), bound)

    def step_of(self, variable: str, count: int, bound: Linear | None) -> Linear:
        """The step of a loop's turn: turn by turn, or from the end where the loop is long and reads again."""
        turn = ix.of_symbol(Symbol(variable, count))
        if not self.backward or self.unrolled:
            return turn
        last = ix.constant(count - 1)
        if bound is not None and (count > 1 or variable == "turn"):
            last = ix.offset(ix.of_symbol(Symbol(f"{variable}_end", count + 1)), -1)
        return ix.add(last, ix.scale(turn, -1))

    def rows_ahead(self, body: list[k.Statement]) -> Iterator[k.Statement]:
        """The loop over rows where all that it does is adding to sums: as many loads at once as there are registers
        for, the last ones too.  A last row that only some threads have is loaded by all and counted by those."""
        steps = self.mapping.row_steps
        parts = ceil_div(steps, max(ROWS_AHEAD // self.mapping.vector, k.PARTLY))
        together = ceil_div(steps, parts)
        turns = (parts - 1) * together
        inside = tuple(self.enter_row(body, False))
        if turns:
            yield k.Loop("k", turns, False, inside, None, together)
        cut = self.row_bound is not None
        if steps - turns - cut:
            step = k.Index("k", ix.offset(ix.of_symbol(Symbol("turn", steps)), turns))
            yield k.Loop("turn", steps - turns - cut, True, (step, *inside))
        if cut:
            last = k.Index("k", ix.constant(steps - 1))
            yield k.Loop("turn", 1, True, (last, *self.enter_last_row(body)))

    def enter_last_row(self, body: list[k.Statement]) -> Iterator[k.Statement]:
        m = self.mapping
        thread = ix.of_symbol(Symbol("ty", m.row_threads))
        step = ix.of_symbol(Symbol("k", m.row_steps))
        yield k.Index("row_raw", ix.add(ix.scale(step, m.row_threads), thread))
        yield k.Index("row", clamped("row_raw", m.row_size - 1))
        inside = Within(ix.of_symbol(Symbol("row_raw", ix.UNBOUNDED)), 0, m.row_size)
        yield from guard_sums(body, inside)

    @property
    def row_bound(self) -> Linear | None:
        """Steps over rows that lie inside; None where all do."""
        m = self.mapping
        tiles = m.rounds * m.abreast if m.carried == "row" else m.row_tiles
        if (
            self.in_whole_tile
            or m.row_size == 1
            or tiles * m.row_steps * m.row_threads <= m.row_size
        ):
            return None
        tile = ix.scale(ix.of_symbol(Symbol("row_tile", m.row_tiles)), -m.row_tile)
        return steps_inside(m.row_size, tile if m.row_tiles > 1 else ix.ZERO, "ty", m.row_threads)

    @property
    def col_bound(self) -> Linear | None:
        """Steps over the vectors of a row that lie inside; None where all do."""
        m = self.mapping
        tiles = m.rounds * m.abreast if m.carried == "col" else m.col_tiles
        if tiles * m.col_steps * m.col_threads * m.vector <= m.col_size:
            return None
        tile = ix.scale(ix.of_symbol(Symbol("col_tile", m.col_tiles)), -(m.col_tile // m.vector))
        vectors = ceil_div(m.col_size, m.vector)
        return steps_inside(vectors, tile if m.col_tiles > 1 else ix.ZERO, "tx", m.col_threads)

    def enter_row(self, body: list[k.Statement], guard: bool) -> Iterator[k.Statement]:
        m = self.mapping
        if m.row_size == 1:
            yield from body
            return
        step = self.step_of("k", m.row_steps, self.row_bound)
        thread = ix.of_symbol(Symbol("ty", m.row_threads))
        form = ix.add(ix.scale(step, m.row_threads), thread)
        if m.rows_together:
            form = ix.add(ix.scale(thread, m.row_steps), step)
        guards = []
        if m.row_tiles > 1:
            form = ix.add(form, ix.scale(ix.of_symbol(Symbol("row_tile", m.row_tiles)), m.row_tile))
        yield k.Index("row", form)
        if m.row_tile % m.row_threads and m.row_tiles > 1:
            raise AssertionError("a split row tile is a multiple of its threads")
        if guard:
            guards.append(Within(ix.of_symbol(Symbol("row", ix.UNBOUNDED)), 0, m.row_size))
        yield from self.guarded(tuple(guards), body)

    def enter_column(self, body: list[k.Statement], guard: bool) -> Iterator[k.Statement]:
        m = self.mapping
        step = self.step_of("l", m.col_steps, self.col_bound)
        form = ix.add(ix.scale(step, m.col_threads), ix.of_symbol(Symbol("tx", m.col_threads)))
        form = ix.scale(form, m.vector)
        if m.col_tiles > 1:
            form = ix.add(form, ix.scale(ix.of_symbol(Symbol("col_tile", m.col_tiles)), m.col_tile))
        guards = []
        if guard and self.clamps:
            yield k.Index("col_raw", form)
            yield k.Index("col", clamped("col_raw", m.col_size - m.vector))
        else:
            yield k.Index("col", form)
        if guard and not self.clamps:
            guards.append(Within(ix.of_symbol(Symbol("col", ix.UNBOUNDED)), 0, m.col_size))
        yield from self.guarded(tuple(guards), body)

    @staticmethod
    def guarded(guards: tuple[Guard, ...], body: Iterable[k.Statement]) -> Iterator[k.Statement]:
        statements = tuple(body)
        if not statements:
            return
        if guards:
            yield k.If(guards, statements)
        else:
            yield from statements

    # -- phases ------------------------------------------------------------------------------------------------

    def lower_phase(self, phase: int) -> list[k.Statement]:
        roots = self.phase_roots(phase)
        before: list[k.Statement] = []
        reduces = [p for p in roots if p.root.kind is not RootKind.POINTWISE]
        for place in reduces:
            if place.span is not Span.LOOP:
                before.append(self.declare_state(place))
        self.frames[Zone.TASK].statements = []
        self.clamps = all(map(self.is_own_column, roots)) and not self.staged
        self.runs_ahead = self.clamps and self.sums_rows(roots)
        with self.inner_frames():
            for place in roots:
                if place.root.kind is RootKind.POINTWISE:
                    self.lower_pointwise(place)
                else:
                    self.lower_accumulation(place)
            if phase == 0:
                self.fetch_for_later()
            nest = self.nest()
            self.clamps = self.runs_ahead = False
            self.filled |= {key for key in self.kept if self.was_computed(key)}
        task = self.frames[Zone.TASK].statements
        result: list[k.Statement] = [*self.entry_barrier(phase), *before, *task, *nest]
        complete = [place for place in reduces if place.span is not Span.LOOP]
        running = [place for place in complete if place.root.kind is RootKind.RUNNING]
        result += self.reduce_across([place for place in complete if place not in running])
        result += [self.scan_across(place) for place in running]
        team = [place for place in complete if place.span is Span.TEAM]
        for place in team:
            result += self.store_partials(place, self.tile_part(place))
        if team and self.lag:
            self.frames[Zone.TASK] = Frame()  # the rest works for the task before
            self.after_meeting += self.gather(team)
            for place in complete:
                self.after_meeting += self.complete(place)
            return result
        if team:
            result += self.gather(team)
        for place in complete:
            result += self.complete(place)
        return result

    def entry_barrier(self, phase: int) -> Iterator[k.Statement]:
        """Shared buffers that an earlier phase filled are read from here on."""
        ready = [p for p in self.places if p.shared and p.phase == phase - 1]
        if ready:
            names = ", ".join("%" + p.root.name for p in ready)
            yield k.Barrier("block", f"Regional: {names} is read by other threads of the block")

    def is_own_column(self, place: Placement) -> bool:
        """Does the nest only add to sums of a thread's own columns?  Beyond the last column it may then add the last
        one's elements to sums that nobody reads: without a branch around them the loads of many rows run ahead."""
        sums = place.root.kind not in (RootKind.POINTWISE, RootKind.RUNNING)
        return sums and self.kept_axes(place)[1]

    def sums_rows(self, roots: Sequence[Placement]) -> bool:
        """Is all that the nest does, row by row, adding to sums?"""
        m = self.mapping
        walks = m.row_size > 1 and m.row_tiles == 1 and m.col_steps == 1 and not m.rows_together
        walks = walks and not self.backward
        return walks and not any(self.kept_axes(place)[0] for place in roots)

    def was_computed(self, key: Key) -> bool:
        return any(
            key in self.frames[z].cache for z in (Zone.TASK, Zone.ROW, Zone.COLUMN, Zone.LANE)
        )

    def lower_pointwise(self, place: Placement) -> None:
        name = place.root.name
        previous, self.evaluating = self.evaluating, name
        expr, zone = self.value(name, place.root.index)
        self.evaluating = previous
        row, col = self.space_axes(place)
        leader = self.leader_guard(row=row, col=col, in_nest=True)
        guards = (*self.outer_guard, *leader)
        if place.stored:
            target = storage_name(self.graph, name)
            tile = self.tile_guard(row=row, col=col)
            self.store(
                target, place.root.result_index, expr, zone, (*guards, *tile), row=row, col=col
            )
        if place.shared:
            slot = self.shared_slot(place, 0)
            position, where = self.position(self.shared_position(place, place.root.result_index))
            position = self.with_packed_row(place, position)
            store = k.Store(slot, position, self.graph[name].dtype, expr)
            level = max(zone, where, Zone.TASK)
            leader = self.leader_guard(row=row, col=col, in_nest=True, in_each_tile=True)
            for statement in self.guarded(leader, (store,)):
                self.emit(level, statement)

    def shared_slot(self, place: Placement, number: int) -> str:
        key = f"{place.root.name}#{number}"
        if key not in self.slots_of:
            dtype = storage_type(self.graph, self.result_name(place.root.name, number)).dtype
            count = shared_elements(place, self.mapping)
            name = self.fresh(f"{place.root.name}_shared")
            last = max((p.phase for p in self.places), default=0) + 1
            self.declarations.add_slot(
                name,
                dtype,
                None,
                count,
                dtype.bytes,
                (self.loop.number, place.phase),
                (self.loop.number, last),
            )
            self.slots_of[key] = name
        return self.slots_of[key]

    def store(
        self,
        target: str,
        index: Index,
        expr: k.Expr,
        zone: Zone,
        guards: tuple[Guard, ...],
        *,
        row: bool,
        col: bool,
    ) -> None:
        """Write one element to memory, or a lane of a vector that is written at once."""
        array_type = storage_type(self.graph, target)
        array = self.declarations.array(target, array_type.dtype, write=True)
        base, _, _ = target.partition("#")
        form = ix.linearize(index, array_of(self.graph[base]).shape)
        if self.is_vector(form):
            position, _ = self.position(form)
            aligned = at_first_lane(position)
            vector = self.fresh(f"{target}_w")
            self.emit(Zone.COLUMN, k.VectorVariable(vector, array_type.dtype, self.mapping.vector))
            self.emit(Zone.LANE, k.StoreLane(vector, array_type.dtype, expr))
            whole = k.StoreVector(array, aligned, vector, array_type.dtype, self.mapping.vector)
            for statement in self.guarded(guards, (whole,)):
                self.emit(Zone.AFTER, statement)
            return
        position, where = self.position(form)
        lane_zone = Zone.LANE if self.mapping.vector > 1 else Zone.COLUMN
        level = lane_zone if col else Zone.ROW if row else Zone.TASK
        level = max(level, zone, where)
        for statement in self.guarded(guards, (k.Store(array, position, array_type.dtype, expr),)):
            self.emit(level, statement)

    def declare_state(self, place: Placement) -> k.Statement:
        reducer = self.declarations.reducer(place.root.name)
        name = self.fresh(f"{place.root.name}_state")
        self.states[place.root.name] = name
        return k.States(name, reducer.number, self.state_count(place))

    def lower_accumulation(self, place: Placement) -> None:
        root = place.root
        row, col = self.space_axes(place)
        outer_reduced = any(a in root.space.reduced for a in self.mapping.outer)
        guards = (
            *(self.outer_guard if outer_reduced or not self.mapping.outer else ()),
            *self.leader_guard(
                row=row, col=col, in_nest=True, in_each_tile=place.span is Span.TASK
            ),
            # Summed over all tasks it counts in one tile only; complete within a task, every tile has it.
            *(self.tile_guard(row=row, col=col) if place.span is Span.LOOP else ()),
        )
        reducer = self.declarations.reducer(root.name)
        state = self.states[root.name]
        position, _ = self.slot_position(place)
        lane_zone = Zone.LANE if self.mapping.vector > 1 else Zone.COLUMN
        zone = lane_zone if col else Zone.ROW if row else Zone.TASK
        statement: k.Statement
        if root.kind is RootKind.COMBINE:
            shape = array_of(self.graph[root.name]).shape
            elements = math.prod(shape)
            form = ix.add(ix.scale(root.index[0], elements), ix.linearize(root.result_index, shape))
            at, where = self.position(form)
            zone = max(zone, where)
            split = self.placements[root.name]
            arrays = self.declarations.partial_arrays(split, write=False)
            statement = k.AccumulateState(state, position, reducer.number, arrays, at)
        else:
            reads = root_starts(self.graph, root)
            values = [self.value(read.operand, read.index) for read in reads]
            zone = max(zone, *(z for _, z in values))
            if reducer.joint and self.lower_joint(reducer, state, position, values, zone, guards):
                return
            statement = k.Accumulate(state, position, reducer.number, tuple(e for e, _ in values))
            product = self.product_of(values[0]) if self.is_sum(reducer) else None
            if product is not None:
                statement = k.AccumulateProduct(state, position, *product)
        for guarded in self.guarded(guards, (statement,)):
            self.emit(zone, guarded)

    @staticmethod
    def is_sum(reducer: k.Reducer) -> bool:
        """A sum of f32 or f64, which a product may join without being rounded."""
        wide = reducer.fields[0] in (DType.F32, DType.F64)
        return wide and len(reducer.fields) == 1 and monoid_of(reducer.region) == "add"

    def product_of(self, value: tuple[k.Expr, Zone]) -> tuple[k.Expr, k.Expr] | None:
        """The factors of a value that was just computed as an f32 or f64 product."""
        expr, zone = value
        found = self.frames[zone].statements[-1:]
        match found:
            case [k.Value(name, DType.F32 | DType.F64, k.Call("multiply", _, (a, b)))]:
                return (a, b) if expr == k.Name(name) else None
        return None

    def lower_joint(
        self,
        reducer: k.Reducer,
        state: str,
        position: Linear,
        values: Sequence[tuple[k.Expr, Zone]],
        zone: Zone,
        guards: tuple[Guard, ...],
    ) -> bool:
        """Elements of a joint reduction go into its state by a shorter way than its region: the lanes of a vector at
        once, or one by one.  False where they are not the elements that reassociate.py makes."""
        numbers = [float(e.value.numpy()) for e, _ in values if isinstance(e, k.Number)]
        elements = [e for e, _ in values if not isinstance(e, k.Number)]
        expected = [1.0, 0.0, 0.0] if reducer.joint == MOMENTS else [1.0]
        if len(elements) != 1 or numbers != expected:
            return False
        (element,) = elements
        dtype = reducer.fields[0]
        whole = zone is Zone.LANE and LANE not in ix.symbols(position)
        if whole:
            batch = self.fresh(f"{state}_batch")
            self.emit(Zone.COLUMN, k.Batch(batch, dtype, self.mapping.vector))
            self.emit(Zone.LANE, k.BatchSet(batch, dtype, element))
            zone = Zone.AFTER
            statement: k.Statement = k.AccumulateBatch(state, position, reducer.number, batch)
        else:
            statement = k.AccumulateElement(state, position, reducer.number, element)
        for guarded in self.guarded(guards, (statement,)):
            self.emit(zone, guarded)
        return True

    def reduce_across(
        self, places: Sequence[Placement], *, publish: bool = True
    ) -> Iterator[k.Statement]:
        """Combine over threads; independent reductions of a row share their barriers.  publish: what a team reduces
        goes to the other blocks next, and no other thread needs it."""
        rounds = [self.thread_sets(place) for place in places]
        for turn in range(max(map(len, rounds), default=0)):
            sets: dict[tuple[int, int], list[Placement]] = {}
            for place, steps in zip(places, rounds, strict=True):
                if turn < len(steps):
                    sets.setdefault(steps[turn], []).append(place)
            for (threads, stride), together in sets.items():
                if stride == 1:
                    yield self.reduce_step(together, threads, stride, publish)
                else:  # these exchange whole columns: one after the other, in the same shared memory
                    for place in together:
                        yield self.reduce_step([place], threads, stride, publish)

    def scan_across(self, place: Placement) -> k.Statement:
        """A running reduction: in the threads that share a row or columns, from one to the next, and on from what the
        tiles before it carry along."""
        m, name = self.mapping, place.root.name
        reducer = self.declarations.reducer(name)
        columns = bool(m.row)
        width = m.col_steps * m.vector if columns else m.vector
        step = k.ScanAcross(
            self.states[name],
            m.row_steps if columns else m.col_steps,
            width,
            reducer.number,
            m.row_threads if columns else m.col_threads,
            m.col_threads if columns else 1,
            "",
            place.root.space.running == "backward",
            columns=columns,
        )
        shared = k.count_scanned(step, m.block)
        if shared:
            step = replace(step, slot=self.exchange_slot(reducer, shared, 0))
            self.exchanges += 1
            self.declarations.block_barriers += 1
        if m.carried:
            carry = self.fresh(f"{name}_carry")
            states = k.States(carry, reducer.number, width if columns else 1)
            self.carried_states.append(states)
            step = replace(step, carry=carry)
        if m.abreast > 1:
            step = replace(step, handover=self.handover(name, reducer, step))
        return step

    def handover(self, name: str, reducer: k.Reducer, step: k.ScanAcross) -> k.Handover:
        """To the other blocks of the team, in each round of each row or tile of columns."""
        m = self.mapping
        columns = step.stride * step.width if step.columns else 1
        groups = m.tasks // m.abreast
        results = groups * m.rounds * columns
        area = self.declarations.handover_area(name, results, m.abreast)
        group = ix.divide(ix.of_symbol(Symbol("task", m.tasks)), m.abreast)
        turn = ix.of_symbol(Symbol("round", m.rounds))
        if groups > 1:
            turn = ix.add(ix.scale(group, m.rounds), turn)
        slot = self.exchange_slot(reducer, k.count_handed(step), 0)
        self.exchanges += 1
        self.declarations.block_barriers += 1
        return k.Handover(area, ix.scale(turn, columns), self.part, slot)

    def thread_sets(self, place: Placement) -> list[tuple[int, int]]:
        """(threads, stride) of the sets to combine over, one after the other: the thread axes along which the result
        does not vary, minor axes first."""
        m = self.mapping
        row_kept, col_kept = self.kept_axes(place)
        outer_reduced = any(a in place.root.space.reduced for a in m.outer)
        axes = [
            (m.col_threads, not col_kept),
            (m.row_threads, not row_kept),
            (m.outer_threads, outer_reduced),
        ]
        if m.packed_inside:
            axes[1:] = axes[:0:-1]
        sets: list[tuple[int, int]] = []
        stride = 1
        position = 0
        while position < len(axes):
            size, reduced = axes[position]
            if not reduced or size == 1:
                stride *= size
                position += 1
                continue
            threads = 1
            while position < len(axes) and (axes[position][1] or axes[position][0] == 1):
                threads *= axes[position][0]
                position += 1
            sets.append((threads, stride))
            stride *= threads
        return sets

    def reduce_step(
        self, places: Sequence[Placement], threads: int, stride: int, publish: bool
    ) -> k.Statement:
        parts = []
        shared = threads * stride > 32
        together = self.reduced_together(places) if shared and stride == 1 else []
        for number, place in enumerate(places):
            reducer = self.declarations.reducer(place.root.name)
            count = self.state_count(place)
            slot = ""
            if place in together:
                states = len(together) * (self.mapping.block // 32)
                slot = self.exchange_slot(reducer, states, places.index(together[0]))
            elif shared:
                if stride == 1:
                    states = count * max(self.mapping.block // 32, 1)
                else:
                    lines = k.count_lines(self.mapping.block, stride)
                    states = min(count, k.STRIDED_CHUNK) * lines
                slot = self.exchange_slot(reducer, states, number)
            parts.append(k.Part(self.states[place.root.name], count, reducer.number, slot))
        if shared:
            self.exchanges += 1
            self.declarations.block_barriers += any(p.scheme is Scheme.REGIONAL for p in places)
        reducers = [self.declarations.reducer(p.root.name) for p in places]
        work = sum(
            p.count * (1 if r.commutative else 4) for p, r in zip(parts, reducers, strict=True)
        )
        if stride == 1:
            butterfly = work * (threads // 32) > MAX_OWN_STATES
        else:
            butterfly = (
                not reducers[0].commutative and 8 <= threads * stride // max(stride, 32) <= 32
            )
        alone = shared and publish and threads * stride == self.mapping.block
        alone = alone and self.first_warp_suffices(places, stride)
        return k.ReduceAcross(tuple(parts), threads, stride, butterfly, alone)

    def first_warp_suffices(self, places: Sequence[Placement], stride: int) -> bool:
        """Do only threads of the first warp need what the whole block combines, to hand it on?"""
        if all(place.span is Span.TEAM for place in places):
            return self.publishes_alone
        last = max(place.phase for place in self.places)
        for place in places:
            ends = place.span in (Span.TILE, Span.LOOP)
            ends |= place.span is Span.TASK and place.phase == last and not place.shared
            if not ends:
                return False
        return self.mapping.outer_threads == 1 and stride <= 32

    def reduced_together(self, places: Sequence[Placement]) -> list[Placement]:
        """The first reductions, up to four, of one simple kind with one state each; none if there is only one."""
        kinds: dict[int, list[Placement]] = {}
        for place in places:
            reducer = self.declarations.reducer(place.root.name)
            if reducer.commutative and self.state_count(place) == 1:
                kinds.setdefault(reducer.number, []).append(place)
        most = max(kinds.values(), key=len, default=[])
        return most[:MAX_TOGETHER] if len(most) > 1 else []

    def exchange_slot(self, reducer: k.Reducer, states: int, number: int) -> str:
        """Shared states for reduction `number` of an exchange between threads.

        The exchanges of a loop take two sets of slots in turns: the barrier of each keeps its successor's writes,
        which go to the other slots, behind the reads of the one before.
        """
        key = (reducer.number, self.exchanges % 2, number)
        if key not in self.exchange_slots:
            name = self.fresh(f"exchange_{reducer.number}_{key[1]}")
            self.exchange_slots[key] = name
            step = (self.loop.number, 0)
            self.declarations.add_slot(
                name, None, reducer.number, 0, reducer.state_bytes, step, step
            )
        name = self.exchange_slots[key]
        self.declarations.grow_slot(name, states, reducer.state_bytes)
        return name

    def complete(self, place: Placement) -> list[k.Statement]:
        """After the nest and the exchange between threads: the init value, then memory."""
        if place.span is Span.TILE:
            return self.store_partials(place, self.tile_part(place))
        result: list[k.Statement] = []
        state = self.states[place.root.name]
        self.frames[Zone.TASK].statements = result
        self.finish(Zone.TASK, place, state, self.state_count(place))
        row, col = self.kept_axes(place)
        guards = (*self.result_guard(place), *self.tile_guard(row=row, col=col))
        if place.stored or place.shared:
            with self.inner_frames():
                for number, name in self.wanted_results(place):
                    position, zone = self.slot_position(place)
                    dtype = storage_type(self.graph, name).dtype
                    variable = self.fresh(place.root.name)
                    self.emit(zone, k.Value(variable, dtype, k.Field(state, position, number)))
                    if place.stored:
                        self.store(
                            name,
                            place.root.result_index,
                            k.Name(variable),
                            zone,
                            guards,
                            row=row,
                            col=col,
                        )
                    if place.shared:
                        slot = self.shared_slot(place, number)
                        at, where = self.position(
                            self.shared_position(place, place.root.result_index)
                        )
                        store = k.Store(
                            slot, self.with_packed_row(place, at), dtype, k.Name(variable)
                        )
                        for s in self.guarded(self.leader_guard(row=row, col=col), (store,)):
                            self.emit(max(zone, where), s)
                self.frames[Zone.TASK].statements += self.nest(row=row)
        return self.frames[Zone.TASK].statements

    def wanted_results(self, place: Placement) -> list[tuple[int, str]]:
        """(field number, storage name) of the results that somebody reads."""
        name = place.root.name
        if isinstance(self.graph[name].type, ArrayType):
            return [(0, storage_name(self.graph, name))]
        numbers = {
            attrs.index
            for user in self.graph.users[name]
            if isinstance(attrs := self.graph[user].attrs, GetTupleElementAttrs)
        }
        return [(n, f"{name}#{n}") for n in sorted(numbers)]

    def tile_part(self, place: Placement) -> Linear:
        """The number of this task's partial among those of one result element."""
        m = self.mapping
        part = ix.ZERO
        axes = (
            ("outer", m.outer, m.outer_tiles),
            ("row", m.row, m.row_tiles),
            ("col", m.col, m.col_tiles),
        )
        for name, atoms, tiles in axes:
            if tiles > 1 and any(a in place.root.space.reduced for a in atoms):
                if name == "outer":
                    task = ix.of_symbol(Symbol("task", m.tasks))
                    number = ix.divide(task, m.tasks // m.outer_tiles)
                else:
                    number = ix.of_symbol(Symbol(f"{name}_tile", tiles))
                part = ix.add(ix.scale(part, tiles), number)
        return part

    @property
    def publishes_alone(self) -> bool:
        """Do all threads that publish something belong to the first warp?"""
        m = self.mapping
        if m.packed_inside or m.rows_last:  # those of the first row
            return m.outer_threads * m.col_threads <= 32
        return m.outer_threads == 1

    def gather(self, places: Sequence[Placement]) -> list[k.Statement]:
        """The parts of all blocks: for each row of the task a warp, whose lanes take some each and join them."""
        m = self.mapping
        if m.rows_last:
            return [s for place in places for s in self.gather_columns(place)]
        other = self.for_another_task()  # the warp's row is not the one at which its threads stand
        gathering: list[k.Statement] = []
        totals = []
        lane = ix.modulo(ix.of_symbol(Symbol("thread", m.block)), 32)
        for number, place in enumerate(places):
            gathering.append(self.declare_state(place))
            name = place.root.name
            shape = array_of(self.graph[name]).shape
            at, _ = other.position(ix.linearize(place.root.result_index, shape))
            reducer = self.declarations.reducer(name)
            found, area = self.states[name], self.declarations.area(place)
            gathering.append(k.Collect(area, at, found, ix.ZERO, reducer.number, 32, lane))
            part_of = k.Part(found, 1, reducer.number, "")
            gathering.append(k.ReduceAcross((part_of,), 32, 1))
            self.states[name] = self.fresh(f"{name}_total")
            slot = self.exchange_slot(reducer, m.outer_threads, number)
            totals.append(k.Total(found, self.states[name], reducer.number, slot))
        self.exchanges += 1
        frames = other.frames
        indices = [*frames[Zone.KERNEL].statements, *frames[Zone.TASK].statements]
        body = (*self.task_indices(), *indices, *gathering)
        return [k.Meeting(m.parts, self.lag, m.outer_threads, body, tuple(totals))]

    def gather_columns(self, place: Placement) -> list[k.Statement]:
        """The parts of a thread's own columns: the threads that share them take some each, then combine."""
        m = self.mapping
        name = place.root.name
        reducer, area = self.declarations.reducer(name), self.declarations.area(place)
        declared = self.declare_state(place)
        shape = array_of(self.graph[name]).shape
        self.frames[Zone.TASK].statements = []
        rank = ix.of_symbol(Symbol("ty", m.row_threads))
        with self.inner_frames():
            element, level = self.spell(ix.linearize(place.root.result_index, shape))
            slot, zone = self.slot_position(place)
            state = self.states[name]
            members = m.row_threads
            collect = k.Collect(area, element, state, slot, reducer.number, members, rank)
            self.emit(max(zone, level), collect)
            nest = self.nest(row=False)
        task = self.frames[Zone.TASK].statements
        return [declared, *task, *nest, *self.reduce_across([place], publish=False)]

    def store_loop_partials(self, place: Placement) -> list[k.Statement]:
        rank = ix.of_symbol(Symbol("first", place.partials))
        taking_part = Within(rank, 0, place.partials)
        self.frames[Zone.TASK].statements = []
        return [k.If((taking_part,), tuple(self.store_partials(place, rank)))]

    def store_partials(self, place: Placement, part: Linear) -> list[k.Statement]:
        """partials[part][result element] = state, by one thread of those that hold it; a team's are published."""
        name = place.root.name
        state = self.states[name]
        shape = array_of(self.graph[name]).shape
        row, _ = self.kept_axes(place)
        guards = self.result_guard(place)
        if place.span is not Span.LOOP:
            in_row, in_col = self.space_axes(place)
            guards += self.tile_guard(row=in_row, col=in_col)
        saved = self.frames[Zone.TASK].statements
        self.frames[Zone.TASK].statements = []
        with self.inner_frames():
            results = ix.linearize(place.root.result_index, shape)
            element = self.spell(results)[0]
            slot, zone = self.slot_position(place)
            level = max(zone, Zone.TASK)
            reducer = self.declarations.reducer(name)
            stores: list[k.Statement] = []
            if place.span is Span.TEAM:
                area = self.declarations.area(place)
                stores.append(k.Publish(area, element, part, state, slot, reducer.number))
            else:
                form = ix.add(ix.scale(part, math.prod(shape)), element)
                arrays = self.declarations.partial_arrays(place, write=True)
                width = self.mapping.vector
                whole = (
                    zone is Zone.LANE and math.prod(shape) % width == 0 and self.is_vector(results)
                )
                for number, (array, dtype) in enumerate(zip(arrays, reducer.fields, strict=True)):
                    field = k.Field(state, slot, number)
                    if not whole:
                        stores.append(k.Store(array, form, dtype, field))
                        continue
                    # One element at a time a warp would touch a sector of the memory for each of its threads.
                    vector = self.fresh(f"{array}_w")
                    self.emit(Zone.COLUMN, k.VectorVariable(vector, dtype, width))
                    self.emit(Zone.LANE, k.StoreLane(vector, dtype, field))
                    at_once = k.StoreVector(array, at_first_lane(form), vector, dtype, width)
                    for statement in self.guarded(guards, (at_once,)):
                        self.emit(Zone.AFTER, statement)
            for statement in self.guarded(guards, stores):
                self.emit(level, statement)
            nest = self.nest(row=row)
        result = [*self.frames[Zone.TASK].statements, *nest]
        self.frames[Zone.TASK].statements = saved
        return result
