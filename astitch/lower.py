"""Arrangement -> Kernel: strings the task loops of a kernel together with the barriers between them.

What each says is decided below: zones.py has the places in a nest, declarations.py what the kernel declares, values.py
puts each value in its zone, residency.py says what stays on chip, lower_loop.py builds the nest of a task loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from astitch import kernel_ir as k
from astitch.declarations import Declarations
from astitch.lower_loop import LoopLowering
from astitch.residency import find_streams
from astitch.schedule import DEFAULT, Schedule
from astitch.stitch_scheme import Arrangement, Scheme
from astitch.storage import storage_type
from astitch.store_rounding import round_at_stores

REGISTERS_FOR_CODE = 28
"""Registers that a kernel needs beside what it keeps: addresses, temporaries, accumulators."""

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
    level, offset, shared_in_level = 0, 0, False
    streams: dict[str, int] = {}  # large inputs -> the first level that reads them
    for loop in arrangement.loops:
        if loop.level != level:
            body += _global_barriers(arrangement, level, loop.level)
            level, offset, shared_in_level = loop.level, 0, False
        slots = len(declarations.slots)
        reads = find_streams(arrangement, loop) if arrangement.levels > 1 else frozenset()
        again = any(streams.setdefault(name, level) < level for name in reads)
        section = LoopLowering(
            declarations,
            loop,
            grid=grid,
            offset=offset % grid if arrangement.team_parts == 1 else 0,
            keep_registers=keep_registers,
            keep_shared_bytes=keep_shared_bytes,
            schedule=schedule,
            backward=again,
        ).lower()
        if len(declarations.slots) > slots:
            if shared_in_level:
                body.append(k.Barrier("block", "the next task loop takes over the shared memory"))
            shared_in_level = True
        body.append(section)
        offset += loop.mapping.tasks
    return _assemble(declarations, name, grid, blocks_per_sm, tuple(body)), tuple(
        declarations.notes
    )


def _global_barriers(arrangement: Arrangement, level: int, to_level: int) -> list[k.Statement]:
    """One barrier for each level, with what waits for it."""
    waiting = [
        "%" + p.root.name
        for p in arrangement.placements.values()
        if p.scheme is Scheme.GLOBAL and arrangement.loops[p.loop].level < to_level
    ]
    reason = f"Global: {', '.join(waiting[-3:])} before level {to_level}"
    return [k.Barrier("global", reason)] * (to_level - level)


def _assemble(
    declarations: Declarations,
    name: str,
    grid: int,
    blocks_per_sm: int,
    body: tuple[k.Statement, ...],
) -> k.Kernel:
    arrangement, graph = declarations.arrangement, declarations.graph
    scratch = declarations.scratch
    parameters = sorted(
        declarations.parameters.values(), key=lambda p: (p.source in scratch, p.written)
    )
    outside = [p for p in parameters if p.source not in scratch]
    inputs = [storage_type(graph, p.source) for p in outside if not p.written]
    outputs = [storage_type(graph, p.source) for p in outside if p.source in declarations.outputs]
    sizes = [t.size for t in (*inputs, *outputs, *(s.type for s in scratch.values()))]
    sizes += [
        loop.mapping.tasks
        * loop.mapping.block
        * loop.mapping.elements_per_thread
        * loop.mapping.rounds
        for loop in arrangement.loops
    ]
    op_names = (graph[member].op_name for member in arrangement.groups.scope.members)
    return k.Kernel(
        name=name,
        parameters=tuple(parameters),
        scratch=tuple(scratch.values()),
        reducers=tuple(declarations.reducers.values()),
        slots=tuple(declarations.slots),
        body=round_at_stores(body),
        grid=grid,
        block=arrangement.block,
        shared_bytes=0,
        blocks_per_sm=blocks_per_sm,
        global_barriers=arrangement.levels - 1,
        teams=grid // arrangement.team_parts if arrangement.team_parts > 1 else 0,
        tagged_words=declarations.tagged_words,
        block_barriers=declarations.block_barriers + _count_block_barriers(body),
        wide_index=max(sizes, default=0) >= 1 << 31,
        pointer_table=len(parameters) + 1 > MAX_POINTERS,
        reads_bytes=sum(t.bytes for t in inputs),
        writes_bytes=sum(t.bytes for t in outputs),
        sources=tuple(dict.fromkeys(o for o in op_names if o)),
    )
