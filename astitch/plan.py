"""Scope -> Plan: how one stitch op becomes one kernel, with every decision and its reason.

Runs the stages from dominants to the kernel: with small blocks, again with large ones where rows are long or blocks
must meet; then less is kept in shared memory, and Regional buffers are demoted, until the kernel fits the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from astitch import kernel_ir as k
from astitch.dominant import Groups, choose_dominants
from astitch.errors import IllegalProduct
from astitch.gpu import Gpu
from astitch.ir import Graph
from astitch.launch_config import ASSUMED_REGISTERS, LaunchConfig, configure_launch
from astitch.lower import REGISTERS_FOR_CODE, lower
from astitch.schedule import DEFAULT, Keep, Schedule
from astitch.shared_memory import place_shared
from astitch.stitch_scheme import Arrangement, RootKind, choose_schemes, shared_elements
from astitch.stitch_scope import Scope
from astitch.thread_mapping import Mapping

SMALL_BLOCK, LARGE_BLOCK = 256, 512
"""Threads in a block: large where rows are long or blocks must meet at a global barrier (fewer blocks, cheaper
barrier), small otherwise."""

LONG_ROW = 2048
"""Columns from which a row is worth a large block."""


@dataclass(frozen=True, slots=True)
class Plan:
    """scope: the ops.  schedule: what was chosen over the rules.  arrangement: loops, levels and schemes.
    launch: residency.  kernel: the statements.  notes: decisions that are not visible elsewhere, such as demotions."""

    scope: Scope
    schedule: Schedule
    arrangement: Arrangement
    launch: LaunchConfig
    kernel: k.Kernel
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            str(self.scope),
            str(self.arrangement.groups),
            str(self.arrangement),
            f"  schedule: {self.schedule}",
            f"  launch: {self.launch.reason}",
        ]
        return "\n".join([*lines, *(f"  note: {n}" for n in self.notes)])


def _grid(arrangement: Arrangement, schedule: Schedule) -> int:
    """As many blocks as there are tasks side by side; with global barriers no more than fit at once."""
    tasks: dict[int, int] = {}
    for loop in arrangement.loops:
        tasks[loop.level] = tasks.get(loop.level, 0) + loop.mapping.tasks
    most = max(tasks.values(), default=1)
    bounded = arrangement.levels > 1 or schedule.persistent
    return max(min(most, arrangement.wave) if bounded else most, 1)


def _shared_limit(gpu: Gpu, blocks_per_sm: int) -> int:
    """Shared memory of one block if `blocks_per_sm` are to fit an SM, in bytes."""
    share = gpu.shared_per_sm_bytes // blocks_per_sm - gpu.shared_reserved_bytes
    return min(share // gpu.shared_unit_bytes * gpu.shared_unit_bytes, gpu.shared_per_block_bytes)


def _bounds_blocks(arrangement: Arrangement, schedule: Schedule) -> bool:
    """Does the launch promise how many blocks an SM holds?"""
    return arrangement.levels > 1 or schedule.blocks_per_sm is not None


def _lower_to_fit(
    arrangement: Arrangement, name: str, gpu: Gpu, launch: LaunchConfig, schedule: Schedule
) -> tuple[k.Kernel, tuple[str, ...]]:
    """The kernel, with as much kept in shared memory as fits beside its other slots."""
    bounded = _bounds_blocks(arrangement, schedule)
    limit = _shared_limit(gpu, launch.blocks_per_sm if bounded else 1)
    keep_registers = (launch.registers if bounded else ASSUMED_REGISTERS) - REGISTERS_FOR_CODE
    if schedule.keep is not Keep.REGISTERS:
        keep_registers = 0
    budgets = (0,) if schedule.keep is Keep.NOTHING else (limit - 8192, limit // 2, 0)
    kernel: k.Kernel | None = None
    notes: tuple[str, ...] = ()
    for keep_shared in budgets:
        kernel, notes = lower(
            arrangement,
            name,
            grid=_grid(arrangement, schedule),
            blocks_per_sm=launch.blocks_per_sm if bounded else 0,
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


def _arrange(
    graph: Graph, groups: Groups, gpu: Gpu, schedule: Schedule
) -> tuple[LaunchConfig, Arrangement]:
    """Task loops and schemes: with the schedule's block, or with small ones first and large ones where they pay."""

    def arrange(block: int) -> tuple[LaunchConfig, Arrangement]:
        launch = configure_launch(gpu, block, blocks_per_sm=schedule.blocks_per_sm)
        return launch, choose_schemes(graph, groups, gpu, block, launch.wave, schedule=schedule)

    if schedule.block is not None:
        return arrange(schedule.block)
    launch, arrangement = arrange(SMALL_BLOCK)
    long_rows = any(
        loop.mapping.col_size >= LONG_ROW and loop.mapping.outer for loop in arrangement.loops
    )
    return arrange(LARGE_BLOCK) if arrangement.levels > 1 or long_rows else (launch, arrangement)


def enumerate_schedules(graph: Graph, scope: Scope, gpu: Gpu) -> tuple[Schedule, ...]:
    """Schedules worth comparing for a scope, tens of them, the default first; none for a scope without a kernel.

    Legal on the device as far as threads and registers go; two may still give the same kernel.
    """
    groups = choose_dominants(graph, scope)
    if not groups.groups:
        return ()
    _, arrangement = _arrange(graph, groups, gpu, DEFAULT)
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
        found += [Schedule(block=b, access_bytes=8) for b in (256, 512)]
    if any(p.phase for p in arrangement.placements.values()):
        found += [Schedule(block=b, keep=Keep.SHARED) for b in (256, 512, 1024)]
        found += [Schedule(block=b, keep=Keep.NOTHING) for b in (256, 512)]
    if arrangement.levels == 1:
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
    """Those whose blocks the device can hold, each once."""

    def fits(schedule: Schedule) -> bool:
        block = schedule.block or SMALL_BLOCK
        return gpu.blocks_per_sm(block, 1, 0) >= max(schedule.blocks_per_sm or 1, 1)

    return tuple(dict.fromkeys(s for s in schedules if fits(s)))


def plan_scope(
    graph: Graph, scope: Scope, gpu: Gpu, schedule: Schedule | None = None
) -> Plan | None:
    """The plan of a scope; None when it holds only aliases (reshapes), which need no kernel.

    schedule: the open choices; None leaves them to the rules.  Raises IllegalProduct where no kernel fits the GPU.
    """
    groups = choose_dominants(graph, scope)
    if not groups.groups:
        return None
    return plan_groups(graph, scope, groups, gpu, schedule or DEFAULT)


def plan_groups(graph: Graph, scope: Scope, groups: Groups, gpu: Gpu, schedule: Schedule) -> Plan:
    """The plan of a scope whose groups are known, with one schedule."""
    launch, arrangement = _arrange(graph, groups, gpu, schedule)
    notes: tuple[str, ...] = ()
    demoted: frozenset[str] = frozenset()
    while True:
        kernel, lowering_notes = _lower_to_fit(arrangement, scope.name, gpu, launch, schedule)
        bounded = _bounds_blocks(arrangement, schedule)
        limit = _shared_limit(gpu, launch.blocks_per_sm if bounded else 1)
        if kernel.shared_bytes <= limit:
            return Plan(scope, schedule, arrangement, launch, kernel, (*notes, *lowering_notes))
        # Demotion (paper section 4.4): the largest Regional buffer goes to global scratch, one by one.
        regional = [p for p in arrangement.placements.values() if p.shared]
        if not regional:
            raise IllegalProduct(
                f"{scope.name}: {kernel.shared_bytes} B of shared memory where {limit} B fit, and nothing to demote"
            )
        largest = max(
            regional,
            key=lambda p: (shared_elements(p, arrangement.loops[p.loop].mapping), p.root.name),
        )
        demoted |= {largest.root.name}
        notes = (
            *notes,
            f"%{largest.root.name} demoted from Regional to Global: {kernel.shared_bytes} B shared, {limit} B fit",
        )
        arrangement = choose_schemes(
            graph, groups, gpu, launch.block, launch.wave, demoted, schedule
        )
