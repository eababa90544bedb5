"""Scope -> Plan: how one stitch op becomes one kernel, with every decision and its reason.

Runs the stages from dominants to the kernel: with small blocks, again with large ones where rows are long or blocks
must meet; then less is kept in shared memory, and Regional buffers are demoted, until the kernel fits the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from astitch.cost.projected_latency import Projection, project
from astitch.cost.prune import bound_plan
from astitch.cost.speed_of_light import measure_work
from astitch.cost.workload import Workload, count_workload
from astitch.device.gpu import MOST_BLOCKS, Gpu
from astitch.device.schedule import DEFAULT, Keep, Schedule
from astitch.dominant import Groups, choose_dominants
from astitch.errors import IllegalProduct
from astitch.faults import FaultLog
from astitch.graph.ir import Graph
from astitch.graph.ops import OPS
from astitch.graph.storage import storage_type
from astitch.kernel import kernel_ir as k
from astitch.kernel.fold import count_folded
from astitch.kernel.in_place import find_uses, writes_where_it_read
from astitch.kernel.lower import REGISTERS_FOR_CODE, lower
from astitch.kernel.shared_memory import place_shared
from astitch.kernel.visit_statements import list_statements
from astitch.mapping.launch_config import ASSUMED_REGISTERS, LaunchConfig, configure_launch
from astitch.mapping.roots import RootKind, RootReads
from astitch.mapping.stitch_scheme import Arrangement, choose_schemes, shared_elements
from astitch.scope.structure import Structure, structure_of
from astitch.stitch_scope import Scope
from astitch.tiling.space import Mapping
from astitch.toolchain.nvrtc import Resources

SMALL_BLOCK, LARGE_BLOCK, TALL_BLOCK = 256, 512, 1024
"""Threads in a block.  LARGE where rows are long or blocks must meet at a global barrier: fewer blocks, cheaper
barrier.  TALL where an SM has one block and that many rows to walk over; SMALL otherwise."""

LONG_ROW = 2048
"""Columns from which a row is worth a large block."""


TALL_STEPS = 16
"""Rows of a thread of a small block, beyond which a block is tall."""

SEARCH_FROM_US, SEARCH_WHOLLY_FROM_US = 8.0, 25.0
"""Kernels that are projected to take less are left to the rules: launches and barriers are most of their time.  Those
between get half of the candidates."""

SEARCH_MARGIN = 0.05
"""A schedule is chosen over the rules' only if it is projected to take less by this share: projections err."""

DOUBTFUL_REGISTERS = 16
"""A kernel whose estimated registers come this near to its bound may spill: the compiler is asked."""

LIKELY_REGISTERS = 4
"""A kernel whose registers come this near to its bound, or beyond, most often spills (four of six in five training
steps).  So the next one in rank is compiled beside it."""

MOST_OBSERVED = 6
"""Kernels of one scope that are compiled until one is found that does not spill."""

LONG_CODE = 2400
"""Statements of one kernel, equal sections counted once: beyond it the CUDA compiler takes 10 s and more.  It is not
asked, and the kernel is split if that is worth it."""

CANDIDATES = 480
"""Ops times candidates that are lowered for a scope: 8 candidates for 60 ops, none beyond 240."""

MOST_CANDIDATES = 12


@dataclass(frozen=True, slots=True)
class Search:
    """How a plan was found; all 0 without search.

    considered: schedules.  pruned: those whose bound was worse than the best projection, never lowered.  lowered: those
    projected beside the rules' plan.  default_us, projected_us: of the rules' plan and of this one.
    """

    considered: int = 0
    pruned: int = 0
    lowered: int = 0
    default_us: float = 0.0
    projected_us: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.considered} schedules, {self.pruned} pruned, {self.lowered} lowered: projected "
            f"{self.projected_us:.1f} us, {self.default_us:.1f} us by the rules"
        )


NO_SEARCH = Search()

Decided = dict[Structure, tuple[Schedule, Search]]
"""The schedule that won for a structure, and how it was found."""


@dataclass(frozen=True, slots=True)
class Plan:
    """scope: the ops.  schedule: what was chosen over the rules.  arrangement: loops, levels and schemes.
    launch: residency.  kernel: the statements.  work: what they execute and move.  notes: decisions that are not
    visible elsewhere, such as demotions.  search: how it was found."""

    scope: Scope
    schedule: Schedule
    arrangement: Arrangement
    launch: LaunchConfig
    kernel: k.Kernel
    work: Workload
    notes: tuple[str, ...]
    search: Search = NO_SEARCH

    @property
    def pruned(self) -> int:
        """Schedules that a bound ruled out before they were lowered."""
        return self.search.pruned

    def __str__(self) -> str:
        lines = [
            str(self.scope),
            str(self.arrangement.groups),
            str(self.arrangement),
            f"  schedule: {self.schedule}",
            *([f"  search: {self.search}"] if self.search.considered else []),
            f"  launch: {self.launch.reason}",
        ]
        return "\n".join([*lines, *(f"  note: {n}" for n in self.notes)])


def _grid(arrangement: Arrangement, schedule: Schedule) -> int:
    """The grid: as many blocks as there are tasks side by side and CUDA takes.  With global barriers, no more than fit
    at once."""
    tasks: dict[int, int] = {}
    for loop in arrangement.loops:
        tasks[loop.level] = tasks.get(loop.level, 0) + loop.mapping.tasks
    most = max(tasks.values(), default=1)
    if not (arrangement.cooperative or schedule.persistent):
        return max(min(most, MOST_BLOCKS), 1)
    parts = arrangement.group_blocks
    return max(min(most, arrangement.wave) // parts, 1) * parts


def _shared_limit(gpu: Gpu, blocks_per_sm: int) -> int:
    """Shared memory of one block if `blocks_per_sm` are to fit an SM, in bytes."""
    share = gpu.shared_per_sm_bytes // blocks_per_sm - gpu.shared_reserved_bytes
    return min(share // gpu.shared_unit_bytes * gpu.shared_unit_bytes, gpu.shared_per_block_bytes)


def _bounds_blocks(arrangement: Arrangement, schedule: Schedule) -> bool:
    """Does the launch promise how many blocks an SM holds?"""
    return arrangement.cooperative or schedule.blocks_per_sm is not None


def _count_resident(arrangement: Arrangement, launch: LaunchConfig, gpu: Gpu, grid: int) -> int:
    """The blocks that an SM holds of a reduction whose blocks are all resident anyway; 0 of another kernel.

    Without that promise the compiler leaves room for more: it takes 32 registers and has few loads under way.  A
    weighted sum of 2,048 rows of 64 numbers took 17.8 us on an H100, and takes 14.0 us.
    """
    groups, least = arrangement.groups.groups, -(-grid // gpu.sms)
    roots = (root for group in groups for root in group.roots)
    reduces = any(OPS[arrangement.graph[root].op].is_reduce for root in roots)
    if reduces and len(arrangement.loops) == 1 and least <= launch.blocks_per_sm:
        return least
    return 0


def _lower_to_fit(
    arrangement: Arrangement, name: str, gpu: Gpu, launch: LaunchConfig, schedule: Schedule
) -> tuple[k.Kernel, tuple[str, ...]]:
    """The kernel, with as much kept in shared memory as fits beside its other slots."""
    bounded = _bounds_blocks(arrangement, schedule)
    limit = _shared_limit(gpu, launch.blocks_per_sm if bounded else 1)
    keep_registers = (launch.registers if bounded else ASSUMED_REGISTERS) - REGISTERS_FOR_CODE
    if schedule.keep is not Keep.REGISTERS:
        keep_registers = 0
    nothing = schedule.keep is Keep.NOTHING
    budgets = (0,) if nothing else (limit - 8192, limit * 3 // 4, limit // 2, 0)
    kernel: k.Kernel | None = None
    notes: tuple[str, ...] = ()
    grid = _grid(arrangement, schedule)
    resident = launch.blocks_per_sm if bounded else _count_resident(arrangement, launch, gpu, grid)
    for keep_shared in budgets:
        kernel, notes = lower(
            arrangement,
            name,
            grid=grid,
            blocks_per_sm=resident,
            keep_registers=keep_registers,
            keep_shared_bytes=max(keep_shared, 0),
            schedule=schedule,
        )
        slots, total = place_shared(kernel.slots)
        kernel = replace(kernel, slots=slots, shared_bytes=total)
        if total <= limit:
            break
    assert kernel is not None
    return kernel, notes


def _choose_schemes(
    known: RootReads,
    gpu: Gpu,
    launch: LaunchConfig,
    schedule: Schedule,
    demoted: frozenset[str] = frozenset(),
) -> Arrangement:
    return choose_schemes(
        known.graph, known.groups, gpu, launch.block, launch.wave, demoted, schedule, known
    )


def _arrange(known: RootReads, gpu: Gpu, schedule: Schedule) -> tuple[LaunchConfig, Arrangement]:
    """Task loops and schemes: with the schedule's block, or with small ones first and large ones where they pay."""

    def arrange(block: int) -> tuple[LaunchConfig, Arrangement]:
        launch = configure_launch(gpu, block, blocks_per_sm=schedule.blocks_per_sm)
        return launch, _choose_schemes(known, gpu, launch, schedule)

    if schedule.block is not None:
        return arrange(schedule.block)
    launch, arrangement = arrange(SMALL_BLOCK)
    mappings = [loop.mapping for loop in arrangement.loops]
    if arrangement.cooperative or any(m.col_size >= LONG_ROW and m.outer for m in mappings):
        return arrange(LARGE_BLOCK)
    if all(m.tasks <= gpu.sms for m in mappings) and any(
        m.row_steps > TALL_STEPS for m in mappings
    ):
        # A block that reads less than whole lines of a row has that many more sums to exchange.
        wide = all(m.col_threads >= gpu.warp_size for m in mappings)
        return arrange(TALL_BLOCK if wide else LARGE_BLOCK)
    while launch.block > gpu.warp_size and _leaves_idle(arrangement, gpu):
        launch, arrangement = arrange(launch.block // 2)
    return launch, arrangement


def _leaves_idle(arrangement: Arrangement, gpu: Gpu) -> bool:
    """Do blocks take several rows each while half of the SMs have no block?"""
    mappings = [loop.mapping for loop in arrangement.loops]
    packed = all(m.outer_threads > 1 and not m.row for m in mappings)
    return packed and sum(m.tasks for m in mappings) * 2 <= gpu.sms


def enumerate_schedules(graph: Graph, scope: Scope, gpu: Gpu) -> tuple[Schedule, ...]:
    """Schedules worth comparing for a scope, tens of them, the default first; none for a scope without a kernel.

    Legal on the device as far as threads and registers go; two may still give the same kernel.
    """
    groups = choose_dominants(graph, scope)
    if not groups.groups:
        return ()
    _, arrangement = _arrange(RootReads(graph, groups), gpu, DEFAULT)
    return _schedules_for(arrangement, gpu)


def _schedules_for(arrangement: Arrangement, gpu: Gpu) -> tuple[Schedule, ...]:
    """The product of the choices that matter for what the arrangement holds."""
    mappings = [loop.mapping for loop in arrangement.loops]
    reduces = any(p.root.kind is not RootKind.POINTWISE for p in arrangement.placements.values())
    found: list[Schedule] = [DEFAULT]
    if not reduces:
        found += [
            Schedule(block=b, elementwise_steps=s) for s in (1, 2, 4) for b in (256, 128, 512)
        ]
        found += [Schedule(elementwise_steps=s, access_bytes=8) for s in (1, 2, 4)]
        found += [Schedule(block=b, elementwise_steps=1, access_bytes=4) for b in (128, 256)]
        found += [
            Schedule(block=b, blocks_per_sm=2048 // b, persistent=True, elementwise_steps=s)
            for b in (256, 512)
            for s in (1, 2)
        ]
        return _legal(found, gpu)
    blocks = (256, 512, 128, 1024)
    found += [Schedule(block=b) for b in blocks]
    # Residencies: threads on an SM by registers of a thread (40, 64, 128).
    found += [
        Schedule(block=b, blocks_per_sm=threads // b)
        for threads in (1024, 1536, 512, 2048)
        for b in (256, 512)
    ]
    rows = any(m.outer and not m.row for m in mappings)
    if rows:
        found += [Schedule(block=b, max_steps=s) for s in (4, 16) for b in (256, 512, 128)]
        found += [Schedule(block=b, access_bytes=n) for n in (8, 4) for b in (256, 512)]
    if any(p.phase for p in arrangement.placements.values()):
        found += [Schedule(block=b, keep=Keep.SHARED) for b in (256, 512, 1024)]
        found += [Schedule(block=b, keep=Keep.NOTHING) for b in (256, 512)]
    if arrangement.cooperative:
        found += [Schedule(prefetch=False), Schedule(block=512, blocks_per_sm=3, prefetch=False)]
        found.append(Schedule(block=1024, blocks_per_sm=1))
    else:
        found += [
            Schedule(block=b, blocks_per_sm=1024 // b, persistent=True) for b in (128, 256, 512)
        ]
    for parts in _splits(mappings, arrangement.wave):
        found += [Schedule(split=parts), Schedule(block=256, split=parts)]
        found.append(Schedule(block=1024, split=parts))
    return _legal(found, gpu)


def _splits(mappings: Sequence[Mapping], wave: int) -> tuple[int, ...]:
    """Parts of a row, or of the rows of a column reduction, that are worth comparing."""
    tasks = min(m.outer_tiles if not m.row else m.outer_tiles * m.col_tiles for m in mappings)
    if tasks >= 2 * wave:
        return ()
    fill = max(wave // max(tasks, 1), 1)
    return tuple(dict.fromkeys(parts for parts in (1, fill, fill // 2, 2 * fill, 2) if parts > 0))


def _legal(schedules: Iterable[Schedule], gpu: Gpu) -> tuple[Schedule, ...]:
    """The schedules whose blocks the device can hold, each once."""

    def fits(schedule: Schedule) -> bool:
        block = schedule.block or SMALL_BLOCK
        return gpu.blocks_per_sm(block, 1, 0) >= max(schedule.blocks_per_sm or 1, 1)

    return tuple(dict.fromkeys(s for s in schedules if fits(s)))


SPILLED_BYTES = 64
"""Bytes that a thread stores to and loads from its stack: less is not felt."""

OVER_SHARE = 0.9
"""The share of its time that pieces may take of an output that could lie over an argument: pieces cannot.  A guess: the
copy that they would cost is known only where it is known what is donated."""

WHOLE = Schedule(pieces=False)
"""The rules' schedule, but that outputs are written as wholes."""


def _plan_by_rules(graph: Graph, scope: Scope, gpu: Gpu) -> Plan | None:
    """The plan with the rules' schedule, whose outputs are written in pieces where that is no slower; None where the
    scope holds only aliases.  Raises IllegalProduct where no kernel fits the GPU."""
    groups = choose_dominants(graph, scope)
    if not groups.groups:
        return None
    if not groups.pieces:
        return plan_groups(graph, groups, gpu, DEFAULT)
    try:
        pieces = plan_groups(graph, groups, gpu, DEFAULT)
    except IllegalProduct:
        return _plan_schedule(graph, scope, gpu, WHOLE)
    try:
        whole = _plan_schedule(graph, scope, gpu, WHOLE)
    except IllegalProduct:
        return pieces
    pieces_us, whole_us = (project(p.kernel, gpu, work=p.work).time_us for p in (pieces, whole))
    wholes = {piece.whole for piece in groups.pieces.values()}
    share = OVER_SHARE if _may_lie_over(graph, whole.kernel, wholes) else 1.0
    return pieces if pieces_us <= share * whole_us else whole


def _may_lie_over(graph: Graph, kernel: k.Kernel, outputs: Collection[str]) -> bool:
    """Could a kernel without scratch write one of these outputs over an argument?  Where it could not XLA copies that
    one first."""
    if kernel.scratch:
        return False
    uses = find_uses(kernel.body, {p.name for p in kernel.arguments})
    return any(
        writes_where_it_read(old.name, new.name, uses)
        for new in kernel.arguments
        for old in kernel.arguments
        if new.source in outputs and not old.written
        if storage_type(graph, old.source).bytes == storage_type(graph, new.source).bytes
    )


def _plan_schedule(graph: Graph, scope: Scope, gpu: Gpu, schedule: Schedule) -> Plan:
    groups = choose_dominants(graph, scope, in_pieces=schedule.pieces)
    return plan_groups(graph, groups, gpu, schedule)


def _narrow(graph: Graph, scope: Scope, gpu: Gpu, spilling: Plan, observe: Observe | None) -> Plan:
    """A plan in place of one that spills: a thread computes fewer elements of each piece, or the output as a whole.

    A thread has all pieces of an element in registers at once.  19 of a lattice, four elements of each, spilled 3.8 KB
    of 64 registers; one of each 12 bytes.
    """
    for schedule in (*(replace(DEFAULT, access_bytes=n) for n in (8, 4)), WHOLE):
        with suppress(IllegalProduct):  # no kernel of this schedule fits
            plan = _plan_schedule(graph, scope, gpu, schedule)
            if _count_spilled(plan, gpu, observe) <= SPILLED_BYTES:
                return plan
    return spilling


Observe = Callable[[Plan], Resources | None]
"""What the CUDA compiler says of a plan's kernel; None where there is none."""

CompileEarly = Callable[[Plan], object]
"""Begins to ask the CUDA compiler of a plan in another thread, for `observe` to be told sooner."""


def plan_scope(
    graph: Graph,
    scope: Scope,
    gpu: Gpu,
    schedule: Schedule | None = None,
    *,
    observe: Observe | None = None,
    compile_early: CompileEarly = lambda plan: None,
    default: Plan | None = None,
) -> Plan | None:
    """The plan of a scope; None when it holds only aliases (reshapes), which need no kernel.

    schedule: the open choices; None compares the rules' schedule with others.  Another one wins if it is projected to
    be clearly faster.  It wins too if the compiler, asked through `observe`, says that the kernel before it in rank
    spills.
    compile_early: is given the plan that `observe` will likely be asked of next.
    default: the plan with the rules' schedule, if it is known.
    Raises IllegalProduct where no kernel fits the GPU.
    """
    if schedule is not None and schedule != DEFAULT:
        known = choose_dominants(graph, scope, in_pieces=schedule.pieces)
        return plan_groups(graph, known, gpu, schedule) if known.groups else None
    default = default or _plan_by_rules(graph, scope, gpu)
    if default is None or schedule is not None:
        return default
    pieces = default.arrangement.groups.pieces
    if pieces and _count_spilled(default, gpu, observe) > SPILLED_BYTES:
        default = _narrow(graph, scope, gpu, default, observe)
    budget = _budget(scope)
    if not budget:
        return default
    time_us = project(default.kernel, gpu, work=default.work).time_us
    if time_us < SEARCH_FROM_US and not _spills(default, gpu, observe):
        return default
    if SEARCH_FROM_US <= time_us < SEARCH_WHOLLY_FROM_US:
        budget = -(-budget // 2)
    ranked = rank_plans(graph, scope, gpu, budget=budget, default=default)
    wanted = _in_order(ranked, default)[:MOST_OBSERVED]
    if len(wanted) == 1:  # nothing to choose: whether it spills is asked by whoever may split it
        return wanted[0]
    first, second = wanted[:2]
    short = count_folded(first.kernel) <= LONG_CODE
    likely = short and _spare_registers(first, gpu) <= LIKELY_REGISTERS
    if likely and _spare_registers(second, gpu) <= DOUBTFUL_REGISTERS:
        compile_early(second)  # asked one after the other they would take twice as long
    for plan in wanted:
        if not _spills(plan, gpu, observe):
            return plan
    return wanted[0]


class Planner:
    """Plans the scopes of a program for one GPU, each once; what was decided for a structure is not searched again.

    observe: what the CUDA compiler says of a plan, or None.  compile_early: see plan_scope.
    faults: keeps the errors for which a scope is planned by the rules alone.  decided: what was decided before.
    """

    def __init__(
        self,
        gpu: Gpu,
        observe: Observe | None = None,
        compile_early: CompileEarly = lambda plan: None,
        faults: FaultLog | None = None,
        decided: Decided | None = None,
    ) -> None:
        self.gpu, self.observe, self.compile_early = gpu, observe, compile_early
        self.faults = faults or FaultLog()
        self._drafts: dict[tuple[Structure, Scope], Plan | None] = {}
        self._decided: Decided = {} if decided is None else decided

    def draft(self, graph: Graph, scope: Scope) -> Plan | None:
        """The plan with the rules' schedule.  Raises IllegalProduct where no kernel fits the GPU."""
        key = structure_of(graph, scope), scope
        if key not in self._drafts:
            self._drafts[key] = plan_scope(graph, scope, self.gpu, DEFAULT)
        return self._drafts[key]

    def plan(self, graph: Graph, scope: Scope) -> Plan | None:
        """What plan_scope finds.  Raises IllegalProduct where no kernel fits the GPU."""
        structure = structure_of(graph, scope)
        if structure in self._decided:
            schedule, search = self._decided[structure]
            same = schedule == DEFAULT
            plan = (
                self.draft(graph, scope) if same else plan_scope(graph, scope, self.gpu, schedule)
            )
            return plan and replace(plan, search=search)
        default = self.draft(graph, scope)
        if default is None:
            return None
        plan = self.faults.attempt(
            lambda: plan_scope(
                graph,
                scope,
                self.gpu,
                observe=self.observe,
                compile_early=self.compile_early,
                default=default,
            ),
            lambda: default,
            stage="plan",
            subject=str(scope),
            cost="no other plan than that by the rules is tried",
        )
        if plan is not None:
            self._decided[structure] = plan.schedule, plan.search
        return plan


def _in_order(ranked: Ranked, default: Plan) -> tuple[Plan, ...]:
    """Plans as they are wanted: those that are clearly faster than the rules', the rules', the others."""
    default_us = next(p.time_us for plan, p in ranked if plan.kernel == default.kernel)

    def preference(item: tuple[Plan, Projection]) -> int:
        plan, projection = item
        if projection.time_us < default_us * (1 - SEARCH_MARGIN):
            return 0
        return 1 if plan.kernel == default.kernel else 2

    return tuple(plan for plan, _ in sorted(ranked, key=preference))


def _spare_registers(plan: Plan, gpu: Gpu) -> int:
    """What the bound of a plan's kernel leaves over the estimate of a thread's registers; may be negative."""
    kernel, work = plan.kernel, plan.work
    bound = gpu.max_registers(kernel.block, max(kernel.blocks_per_sm, 1))
    return bound - max(work.registers, work.needed_registers)


def count_statements(body: Iterable[k.Statement]) -> int:
    """Statements of a kernel, those inside of others included."""
    return sum(1 for _ in list_statements(body))


def _spills(plan: Plan, gpu: Gpu, observe: Observe | None) -> bool:
    return _count_spilled(plan, gpu, observe) > 0


def _count_spilled(plan: Plan, gpu: Gpu, observe: Observe | None) -> int:
    """Bytes that a thread stores to and loads from its stack, as the compiler says.  It is asked only where the
    estimate is near the bound, and of no long kernel; else 0."""
    if observe is None or _spare_registers(plan, gpu) > DOUBTFUL_REGISTERS:
        return 0
    if count_folded(plan.kernel) > LONG_CODE:
        return 0
    used = observe(plan)
    return used.spill_store_bytes + used.spill_load_bytes if used else 0


def _budget(scope: Scope) -> int:
    """Candidates to lower: planning a scope takes time with its size."""
    budget = CANDIDATES // max(len(scope.members), 1)
    return min(budget, MOST_CANDIDATES) if budget > 1 else 0


Ranked = tuple[tuple[Plan, Projection], ...]


def rank_plans(
    graph: Graph,
    scope: Scope,
    gpu: Gpu,
    *,
    budget: int = MOST_CANDIDATES,
    default: Plan | None = None,
) -> Ranked:
    """Plans of a scope with their projections, the fastest first; of those with the same kernel one.

    budget: how many are lowered beside the default, of the first three times as many.  A candidate is lowered only if
    its bound is better than the best projection so far.  default: the plan with the rules' schedule, if it is known;
    the others write its outputs as it does, in pieces or as wholes.
    """
    groups = default.arrangement.groups if default else choose_dominants(graph, scope)
    known = RootReads(graph, groups)
    default = default or _plan_known(known, gpu, DEFAULT)
    schedules = [
        replace(schedule, pieces=default.schedule.pieces)
        for schedule in _schedules_for(default.arrangement, gpu)[: 3 * budget]
    ]
    work = measure_work(graph, scope.members)
    bounds: list[tuple[float, int, Schedule, LaunchConfig, Arrangement]] = []
    for number, schedule in enumerate(schedules):
        if schedule != default.schedule:
            launch, arrangement = _arrange(known, gpu, schedule)
            bound = bound_plan(arrangement, launch, schedule, gpu, work)
            bounds.append((bound.least_us, number, schedule, launch, arrangement))
    first = project(default.kernel, gpu, work=default.work)
    ranked: list[tuple[Plan, Projection]] = [(default, first)]
    best_us, pruned, lowered = first.time_us, 0, 0
    rules = DEFAULT.keep, DEFAULT.prefetch, DEFAULT.persistent, True
    tried: list[tuple[object, LaunchConfig, Arrangement]] = [
        (rules, default.launch, default.arrangement)
    ]
    for least_us, _, schedule, launch, arrangement in sorted(bounds, key=lambda b: b[:2]):
        if least_us >= best_us:
            pruned += 1
            continue
        if lowered == budget:
            continue
        lowered += 1
        # Beyond the arrangement and the launch, these are what a kernel depends on.
        same = schedule.keep, schedule.prefetch, schedule.persistent, schedule.blocks_per_sm is None
        if any(same == s and launch == at and _alike(arrangement, a) for s, at, a in tried):
            continue
        tried.append((same, launch, arrangement))
        try:
            plan = _plan_arranged(known, gpu, schedule, launch, arrangement)
        except IllegalProduct:
            continue  # no kernel of this schedule fits; the default does
        projection = project(plan.kernel, gpu, work=plan.work)
        best_us = min(best_us, projection.time_us)
        # Kernels are compared only where their projections agree: that takes as long as they are.
        if not any(other == projection and p.kernel == plan.kernel for p, other in ranked):
            ranked.append((plan, projection))
    found = Search(len(schedules), pruned, lowered, first.time_us)
    return tuple(
        (replace(plan, search=replace(found, projected_us=projection.time_us)), projection)
        for plan, projection in sorted(ranked, key=lambda item: item[1].time_us)
    )


def _alike(a: Arrangement, b: Arrangement) -> bool:
    """Are two arrangements of one scope the same?"""
    return a.block == b.block and a.loops == b.loops and a.placements == b.placements


def plan_groups(graph: Graph, groups: Groups, gpu: Gpu, schedule: Schedule) -> Plan:
    """The plan of a scope whose groups are known, with one schedule.  Raises IllegalProduct where no kernel fits."""
    return _plan_known(RootReads(graph, groups), gpu, schedule)


def _plan_known(known: RootReads, gpu: Gpu, schedule: Schedule) -> Plan:
    launch, arrangement = _arrange(known, gpu, schedule)
    return _plan_arranged(known, gpu, schedule, launch, arrangement)


def _plan_arranged(
    known: RootReads,
    gpu: Gpu,
    schedule: Schedule,
    launch: LaunchConfig,
    arrangement: Arrangement,
) -> Plan:
    """Lowers an arrangement; Regional buffers are demoted until the kernel fits, then it is launched with less."""
    scope = known.groups.scope
    notes: tuple[str, ...] = ()
    demoted: frozenset[str] = frozenset()
    while True:
        kernel, lowering_notes = _lower_to_fit(arrangement, scope.name, gpu, launch, schedule)
        bounded = _bounds_blocks(arrangement, schedule)
        limit = _shared_limit(gpu, launch.blocks_per_sm if bounded else 1)
        if kernel.shared_bytes <= limit:
            work = count_workload(kernel)
            notes = (*notes, *lowering_notes)
            return Plan(scope, schedule, arrangement, launch, kernel, work, notes)
        # Demotion (paper section 4.4): the largest Regional buffer goes to global scratch, one by one.
        regional = [p for p in arrangement.placements.values() if p.shared]
        if not regional:
            smaller = _ask_for_less(gpu, launch, schedule, bounded)
            if smaller is None:
                raise IllegalProduct(
                    f"{scope.name}: {kernel.shared_bytes} B of shared memory where {limit} B fit, and nothing to demote"
                )
            launch, note = smaller
            notes = (*notes, f"{note}: {kernel.shared_bytes} B shared, {limit} B fit")
            arrangement = _choose_schemes(known, gpu, launch, schedule, demoted)
            continue
        largest = max(
            regional,
            key=lambda p: (shared_elements(p, arrangement.loops[p.loop].mapping), p.root.name),
        )
        demoted |= {largest.root.name}
        notes = (
            *notes,
            f"%{largest.root.name} demoted from Regional to Global: {kernel.shared_bytes} B shared, {limit} B fit",
        )
        arrangement = _choose_schemes(known, gpu, launch, schedule, demoted)


def _ask_for_less(
    gpu: Gpu, launch: LaunchConfig, schedule: Schedule, bounded: bool
) -> tuple[LaunchConfig, str] | None:
    """A launch whose blocks find more shared memory or exchange less, and what it is; None where there is none.

    bounded: the launch promises how many blocks an SM holds.
    """
    if bounded and launch.blocks_per_sm > 1:
        fewer = launch.blocks_per_sm - 1
        return configure_launch(gpu, launch.block, blocks_per_sm=fewer), f"{fewer} blocks an SM"
    half = launch.block // 2
    if schedule.block is None and half >= gpu.warp_size:
        launch = configure_launch(gpu, half, blocks_per_sm=schedule.blocks_per_sm)
        return launch, f"blocks of {half}"
    return None
