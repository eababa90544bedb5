"""TaskLoop -> Section: a task loop phase by phase, around the values that values.py places.

A task loop becomes the indices of the task and its phases.  Each phase has three parts: values that a task needs once,
the nest of loops over a thread's elements, and reductions across threads and blocks.  Who does what:

- loop_nest.py: the statements and known values by nest depth, which all others share.
- values.py, choices.py, loads.py: the value of an op at an index.
- prefetch.py, on_chip.py: what is loaded before its turn, and what stays on chip.
- element_loops.py, guards.py, task_indices.py: the loops over elements, their bounds, and which thread stores.
- accumulation.py, states.py: what each step adds to a reduce.
- thread_exchange.py, scans.py, block_group.py: reductions across threads, tiles and cooperating blocks.
- stores.py, results.py, shared_buffers.py: where results go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from astitch.device.schedule import DEFAULT, Schedule
from astitch.kernel import kernel_ir as k
from astitch.kernel.accumulation import Accumulation
from astitch.kernel.block_group import BlockGroup
from astitch.kernel.declarations import Declarations
from astitch.kernel.element_loops import ElementLoops
from astitch.kernel.loop_nest import Frame, LoopNest
from astitch.kernel.nest import Depth, Key
from astitch.kernel.on_chip import OnChip, VectorLoad
from astitch.kernel.prefetch import Budget, Prefetch
from astitch.kernel.residency import choose_residency
from astitch.kernel.results import Results
from astitch.kernel.scans import Scans
from astitch.kernel.shared_buffers import SharedBuffers
from astitch.kernel.states import States, count_states
from astitch.kernel.stores import Stores
from astitch.kernel.task_indices import index_task, number_partial, wrap_rounds
from astitch.kernel.thread_exchange import ThreadExchange
from astitch.kernel.values import Values
from astitch.mapping.roots import RootKind
from astitch.mapping.stitch_scheme import Placement, ReductionScope, TaskLoop


class LoopLowering:
    """Lowers one task loop.

    grid: blocks.  offset: see Section.  budget: what the loop may keep on chip.  backward: see ElementLoops.
    after_meeting: what a delayed block does for an earlier task, once the cooperating blocks have met.
    """

    def __init__(
        self,
        declarations: Declarations,
        loop: TaskLoop,
        *,
        grid: int,
        offset: int,
        budget: Budget,
        schedule: Schedule = DEFAULT,
        backward: bool = False,
    ):
        nest = self.nest = LoopNest(declarations, loop)
        self.declarations, self.loop, self.mapping = declarations, loop, loop.mapping
        self.grid, self.offset, self.schedule, self.budget = grid, offset, schedule, budget
        self.on_chip = OnChip(nest)
        self.states = States(declarations, loop.mapping)
        buffers = SharedBuffers(nest)
        self.values = Values(nest, self.on_chip, self.states, buffers)
        self.loops = ElementLoops(nest, self.on_chip, backward=backward)
        self.prefetch = Prefetch(
            nest, self.on_chip, self.loops, budget, grid=grid, schedule=schedule
        )
        self.exchange = ThreadExchange(nest, self.states)
        self.scans = Scans(nest, self.states, self.exchange)
        self.group = BlockGroup(nest, self.loops, self.states, self.exchange)
        self.accumulation = Accumulation(nest, self.values, self.states)
        self.stores = Stores(nest, self.values, buffers)
        self.results = Results(nest, self.loops, self.values, self.states, self.stores)
        self.after_meeting: list[k.Statement] = []

    def carry(self, steps: int, slots: Mapping[Key, str], *, keeps: bool) -> None:
        """Share the first `steps` steps of some vectors with another task loop, across a global barrier.

        slots: by value.  keeps: this loop leaves the vectors there; else an earlier loop did.
        """
        self.on_chip.carried_steps = steps
        if keeps:
            self.on_chip.keeps_for_later = dict(slots)
        else:
            self.on_chip.kept_before = dict(slots)

    def lower(self) -> k.Section:
        """The whole loop."""
        m = self.mapping
        self.prefetch.choose(self.find_loads)
        fetch_first, fetch_next, fetch_last = self.prefetch.emit()
        across = [p for p in self.nest.places if p.reduction_scope is ReductionScope.LOOP]
        states, body = self.lower_body(across)
        before = [*self.on_chip.declare_registers(), *states]
        if self.must_wait_for_next():
            reason = "the next task writes the shared memory that this one still reads"
            ends = self.after_meeting if self.prefetch.delay else body
            ends.append(k.Barrier("block", reason))
        if m.carried:
            fetches = tuple(self.prefetch.round_fetches)
            body = wrap_rounds(m, tuple(body), tuple(self.scans.carried), fetches)
        body = [*index_task(m), *fetch_next, *body]
        buffers, delay = self.prefetch.buffers, self.prefetch.delay
        if delay:
            current = k.Current(m.tasks, tuple(body))
            after_meeting = (*index_task(m), *self.after_meeting)
            body = [current, k.Previous(buffers, after_meeting, delay), *fetch_last]
        loop = k.TaskLoop(
            m.tasks, self.prefetch.once, tuple(body), 0 if m.carried else buffers, delay
        )
        # Accumulators of blocks without a task hold identities; they only keep the barriers inside uniform.
        after: list[k.Statement] = list(self.exchange.reduce_across(across))
        for place in across:
            after += self.results.store_loop_partials(place)
        for_all_tasks = self.nest.frames[Depth.KERNEL].statements
        return k.Section(
            self.loop.number,
            str(m),
            self.offset,
            m.outer_threads,
            m.row_threads,
            m.col_threads,
            (*for_all_tasks, *before, *fetch_first, loop, *after),
            m.packed_inside,
        )

    def find_loads(self) -> list[VectorLoad]:
        """The vectors that the loop loads if it loads nothing early, by a trial."""
        trial = LoopLowering(
            self.declarations.copy(),
            self.loop,
            grid=self.grid,
            offset=self.offset,
            budget=replace(self.budget),
            schedule=self.schedule,
            backward=self.loops.backward,
        )
        trial.lower_body([p for p in trial.nest.places if p.reduction_scope is ReductionScope.LOOP])
        return list(trial.values.loads.found.values())

    def must_wait_for_next(self) -> bool:
        """Does a task end with a barrier?

        The next task starts on the slots of the first set; a Regional buffer is read until the end of the task.
        """
        if self.prefetch.once and not self.mapping.carried:
            return False
        if self.exchange.latest == 0:
            return True
        # A delayed turn has at least the barrier of its meeting, or one in its place.
        return not self.prefetch.delay and any(p.shared for p in self.nest.places)

    # -- phases ------------------------------------------------------------------------------------------------

    def lower_body(self, across: list[Placement]) -> tuple[list[k.Statement], list[k.Statement]]:
        """(states of the sums over all tasks, the phases of a task one after the other).  across: those sums."""
        self.keep_values()
        states = [self.states.declare(place) for place in across]
        body: list[k.Statement] = []
        for phase in range(self.nest.phases):
            statements = self.lower_phase(phase)
            if self.prefetch.delay and phase > 0:
                self.after_meeting += statements
            else:
                body += statements
        return states, body

    def keep_values(self) -> None:
        """Choose what stays on chip across the phases of a task."""
        running = [p for p in self.nest.places if p.root.kind is RootKind.RUNNING]
        taken = sum(
            count_states(self.mapping, p)
            * (self.declarations.reducer(p.root.name).state_bytes // 4)
            for p in running
        )
        registers = max(self.budget.registers - taken, 0)
        residency = choose_residency(
            self.declarations.arrangement, self.loop, registers, self.budget.shared_bytes
        )
        self.on_chip.keep(residency, delayed=self.prefetch.delay > 0)

    def lower_phase(self, phase: int) -> list[k.Statement]:
        """What a task does between two barriers of its reduces."""
        roots = self.nest.phase_roots(phase)
        complete = [
            p
            for p in roots
            if p.root.kind is not RootKind.POINTWISE
            and p.reduction_scope is not ReductionScope.LOOP
        ]
        before = [self.states.declare(place) for place in complete]
        self.nest.frames[Depth.TASK].statements = []
        nest = self.lower_nest(phase, roots)
        task = self.nest.frames[Depth.TASK].statements
        result = [*self.entry_barrier(phase), *before, *task, *nest]
        running = [place for place in complete if place.root.kind is RootKind.RUNNING]
        result += self.exchange.reduce_across([p for p in complete if p not in running])
        result += [self.scans.scan_across(place) for place in running]
        group = [place for place in complete if place.reduction_scope is ReductionScope.BLOCK_GROUP]
        for place in group:
            result += self.results.store_partials(place, number_partial(self.mapping, place))
        then = result
        if group and self.prefetch.delay:
            self.nest.frames[Depth.TASK] = Frame()  # the rest works for the task before
            then = self.after_meeting
        if group:
            then += self.group.gather(group, self.prefetch.delay)
        for place in complete:
            then += self.results.complete(place)
        return result

    def lower_nest(self, phase: int, roots: list[Placement]) -> list[k.Statement]:
        """The loops over a thread's elements."""
        self.loops.choose_way(roots)
        self.nest.clear_elements()
        for place in roots:
            if place.root.kind is RootKind.POINTWISE:
                self.stores.lower_pointwise(place)
            else:
                self.accumulation.lower(place)
        if phase == 0:
            self.prefetch.fetch_for_later()
        nest = self.loops.build()
        self.loops.leave_way()
        self.on_chip.fill()
        return nest

    def entry_barrier(self, phase: int) -> Iterator[k.Statement]:
        """Shared buffers that an earlier phase filled are read from here on."""
        ready = [p for p in self.nest.places if p.shared and p.phase == phase - 1]
        if ready:
            names = ", ".join("%" + p.root.name for p in ready)
            yield k.Barrier("block", f"Regional: {names} is read by other threads of the block")
