"""Arrangement -> Kernel: strings the task loops of a kernel together with the barriers between them.

declarations.py has what the kernel declares, residency.py says what stays on chip, lower_loop.py lowers a task loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from astitch.device.gpu import ACCESS_BYTES
from astitch.device.schedule import DEFAULT, Schedule
from astitch.graph.ir import Graph
from astitch.graph.storage import storage_type
from astitch.kernel import kernel_ir as k
from astitch.kernel.common_values import share_values
from astitch.kernel.declarations import Declarations
from astitch.kernel.lower_loop import LoopLowering
from astitch.kernel.nest import Key
from astitch.kernel.prefetch import Budget
from astitch.kernel.residency import Carried, find_carried, find_streams
from astitch.kernel.store_rounding import round_at_stores
from astitch.kernel.visit_statements import find_own_names, list_statements
from astitch.mapping.stitch_scheme import Arrangement, Scheme
from astitch.program.arena import Lifetime, plan_arena
from astitch.tiling.space import LINE_BYTES, ceil_div

REGISTERS_FOR_CODE = 28
"""Registers that a kernel needs beside what it keeps: addresses, temporaries, accumulators."""

MUCH_SCRATCH, WORTH_SHARING = 1 << 20, 0.9
"""Bytes of scratch from which its arrays share memory, and the part of it that must be enough then."""

MAX_POINTERS = 500
"""Pointers that fit the 4 KB of kernel parameters; beyond it a kernel gets the address of a table of pointers."""


def _count_block_barriers(body: Sequence[k.Statement]) -> int:
    count = 0
    for statement in body:
        if isinstance(statement, k.Barrier) and statement.level == "block":
            count += 1
        elif isinstance(
            statement, k.Section | k.TaskLoop | k.Rounds | k.Current | k.Previous | k.Loop | k.If
        ):
            count += _count_block_barriers(statement.body)
    return count


def lower(
    arrangement: Arrangement,
    name: str,
    *,
    grid: int,
    blocks_per_sm: int,
    keep_registers: int,
    keep_shared_bytes: int,
    schedule: Schedule = DEFAULT,
) -> tuple[k.Kernel, tuple[str, ...]]:
    """The kernel of an arrangement, its shared slots not placed yet, and notes for people.

    grid: blocks.  blocks_per_sm: residency that the launch bounds ask for (0: none).  keep_registers: 32-bit registers
    a thread may keep across phases.  keep_shared_bytes: shared memory a block may use for that.  schedule: that of the
    arrangement.
    """
    declarations = Declarations(arrangement)
    body: list[k.Statement] = []
    offsets = _place_loops(arrangement, grid)
    carried = find_carried(arrangement, offsets, grid, keep_shared_bytes)
    slots_of = [_declare_carried(declarations, arrangement, c) for c in carried]
    level, shared_in_level = 0, False
    streams: dict[str, int] = {}  # large inputs -> the first level that reads them
    for loop in arrangement.loops:
        if loop.level != level:
            body += _global_barriers(arrangement, level, loop.level)
            level, shared_in_level = loop.level, False
        slots = len(declarations.slots)
        reads = find_streams(arrangement, loop) if arrangement.levels > 1 else frozenset()
        again = any(streams.setdefault(name, level) < level for name in reads)
        filled = sum(c.bytes for c in carried if c.first <= loop.number <= c.last)
        lowering = LoopLowering(
            declarations,
            loop,
            grid=grid,
            offset=offsets[loop.number],
            budget=Budget(keep_registers, keep_shared_bytes - filled),
            schedule=schedule,
            backward=again,
        )
        for c, named in zip(carried, slots_of, strict=True):
            if loop.number in (c.first, c.last):
                first = loop.number == c.first
                lowering.carry(c.steps, named, keeps=first)
        section = lowering.lower()
        holds = any(loop.number in (c.first, c.last) for c in carried)
        if holds or len(declarations.slots) > slots:
            if shared_in_level:
                body.append(k.Barrier("block", "the next task loop takes over the shared memory"))
            shared_in_level = True
        body.append(section)
    arrays = {p.name for p in declarations.parameters.values()}
    written = {p.name for p in declarations.parameters.values() if p.written}
    shared = share_values(body, arrays, grid, written)
    kernel = _assemble(declarations, name, grid, blocks_per_sm, shared)
    return kernel, tuple(declarations.notes)


def _place_loops(arrangement: Arrangement, grid: int) -> list[int]:
    """For each loop, the block that has its first task: loops of a level lie side by side."""
    offsets: list[int] = []
    level, offset = 0, 0
    for loop in arrangement.loops:
        if loop.level != level:
            level, offset = loop.level, 0
        offsets.append(offset % grid if arrangement.group_blocks == 1 else 0)
        offset += loop.mapping.tasks
    return offsets


def _declare_carried(
    declarations: Declarations, arrangement: Arrangement, carried: Carried
) -> dict[Key, str]:
    """The shared slots of what stays across a barrier, by value."""
    m = arrangement.loops[carried.first].mapping
    steps = m.walked_steps
    named: dict[Key, str] = {}
    for key in carried.keys:
        dtype = declarations.graph[key[0]].dtype
        named[key] = declarations.fresh(f"{key[0]}_carried")
        count = m.row_steps * m.col_steps // steps * carried.steps * m.vector * m.block
        span = ((carried.first, 0), (carried.last, 1))
        declarations.add_slot(named[key], dtype, None, count, dtype.bytes, *span)
    part = "" if carried.steps == steps else f", {carried.steps} steps of {steps}"
    declarations.notes.append(
        f"loop {carried.first}: {carried.bytes} B a block stay in shared memory for loop {carried.last}{part}"
    )
    return named


def _global_barriers(arrangement: Arrangement, level: int, to_level: int) -> list[k.Statement]:
    """One barrier for each level, with what waits for it."""
    waiting = [
        "%" + p.root.name
        for p in arrangement.placements.values()
        if p.scheme is Scheme.GLOBAL and arrangement.loops[p.loop].level < to_level
    ]
    reason = f"Global: {', '.join(waiting[-3:])} before level {to_level}"
    return [k.Barrier("global", reason)] * (to_level - level)


def _place_scratch(
    arrays: Sequence[k.Scratch], names: Mapping[str, str], body: Sequence[k.Statement]
) -> tuple[k.Scratch, ...]:
    """Scratch side by side: arrays smaller than a line of the caches share one, others begin with one.

    Much scratch takes over memory of what was read for the last time before a barrier of the grid.  names: of the
    arrays in the body; one that no statement names holds nothing.
    """
    placed: list[k.Scratch] = []
    end = 0
    for array in arrays:
        align = LINE_BYTES if array.type.bytes >= LINE_BYTES else ACCESS_BYTES
        offset = ceil_div(end, align) * align
        placed.append(replace(array, offset=offset))
        end = offset + array.type.bytes
    if end < MUCH_SCRATCH:
        return tuple(placed)
    used = _find_levels(body, {names[array.source]: array.source for array in arrays})
    lifetimes = [Lifetime(a.source, a.type.bytes, *used.get(a.source, (0, 0))) for a in arrays]
    offsets, total = plan_arena(lifetimes)
    if total > end * WORTH_SHARING:
        return tuple(placed)
    return tuple(replace(array, offset=offsets[array.source]) for array in arrays)


def _find_levels(
    body: Sequence[k.Statement], sources: Mapping[str, str]
) -> dict[str, tuple[int, int]]:
    """The first and the last level of a kernel at which each of these arrays is used, by source."""
    found: dict[str, tuple[int, int]] = {}
    level = 0
    for statement in body:
        level += isinstance(statement, k.Barrier) and statement.level == "global"
        for inside in list_statements((statement,)):
            for name in find_own_names(inside) & sources.keys():
                first, _ = found.get(sources[name], (level, level))
                found[sources[name]] = first, level
    return found


def _find_embedded_sizes(graph: Graph, members: Iterable[str]) -> list[int]:
    """Elements of the iotas and spread constants that members read; a small part of one may have large numbers."""
    left = [operand for member in members for operand in graph[member].operands]
    found: dict[str, int] = {}
    while left:
        name = left.pop()
        if name in graph.embedded and name not in found:
            found[name] = graph[name].array.size
            left += graph[name].operands
    return list(found.values())


def _assemble(
    declarations: Declarations,
    name: str,
    grid: int,
    blocks_per_sm: int,
    body: tuple[k.Statement, ...],
) -> k.Kernel:
    arrangement, graph = declarations.arrangement, declarations.graph
    members = arrangement.groups.scope.members
    scratch = declarations.scratch
    parameters = sorted(
        declarations.parameters.values(), key=lambda p: (p.source in scratch, p.written)
    )
    outside = [p for p in parameters if p.source not in scratch and not p.whole]
    inputs = [storage_type(graph, p.source) for p in outside if not p.written]
    outputs = [storage_type(graph, p.source) for p in outside if p.source in declarations.outputs]
    sizes = [t.size for t in (*inputs, *outputs, *(s.type for s in scratch.values()))]
    sizes += _find_embedded_sizes(graph, members)
    pointers = len(outside) + bool(scratch) + 1  # the barrier's
    sizes += [
        loop.mapping.tasks
        * loop.mapping.block
        * loop.mapping.elements_per_thread
        * loop.mapping.rounds
        for loop in arrangement.loops
    ]
    op_names = (graph[member].op_name for member in members)
    return k.Kernel(
        name=name,
        parameters=tuple(parameters),
        scratch=_place_scratch(
            tuple(scratch.values()), {p.source: p.name for p in parameters}, body
        ),
        reducers=tuple(declarations.reducers.values()),
        slots=tuple(declarations.slots),
        body=round_at_stores(body),
        grid=grid,
        block=arrangement.block,
        shared_bytes=0,
        blocks_per_sm=blocks_per_sm,
        global_barriers=arrangement.levels - 1,
        block_groups=grid // arrangement.group_blocks if arrangement.group_blocks > 1 else 0,
        tagged_words=declarations.tagged_words,
        block_barriers=declarations.block_barriers + _count_block_barriers(body),
        wide_index=max(sizes, default=0) >= 1 << 31,
        pointer_table=pointers > MAX_POINTERS,
        reads_bytes=sum(t.bytes for t in inputs),
        writes_bytes=sum(t.bytes for t in outputs),
        sources=tuple(dict.fromkeys(o for o in op_names if o)),
    )
