"""Scope -> Plan: how one stitch op becomes one kernel, with every decision and its reason.

Runs the stages from dominants to the kernel: with small blocks, again with large ones where rows are long or blocks
must meet; then less is kept in shared memory, and Regional buffers are demoted, until the kernel fits the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from astitch import kernel_ir as k
from astitch.dominant import choose_dominants
from astitch.errors import IllegalProduct
from astitch.gpu import Gpu
from astitch.ir import Graph
from astitch.launch_config import ASSUMED_REGISTERS, LaunchConfig, configure_launch
from astitch.lower import REGISTERS_FOR_CODE, lower
from astitch.shared_memory import place_shared
from astitch.stitch_scheme import Arrangement, choose_schemes, shared_elements
from astitch.stitch_scope import Scope

SMALL_BLOCK, LARGE_BLOCK = 256, 512
"""Threads in a block: large where rows are long or blocks must meet at a global barrier (fewer blocks, cheaper
barrier), small otherwise."""

LONG_ROW = 2048
"""Columns from which a row is worth a large block."""


@dataclass(frozen=True, slots=True)
class Plan:
    """scope: the ops.  arrangement: loops, levels and schemes.  launch: residency.  kernel: the statements.
    notes: decisions that are not visible elsewhere, such as demotions."""

    scope: Scope
    arrangement: Arrangement
    launch: LaunchConfig
    kernel: k.Kernel
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            str(self.scope),
            str(self.arrangement.groups),
            str(self.arrangement),
            f"  launch: {self.launch.reason}",
        ]
        return "\n".join([*lines, *(f"  note: {n}" for n in self.notes)])


def _grid(arrangement: Arrangement) -> int:
    """As many blocks as there are tasks side by side; with global barriers no more than fit at once."""
    tasks: dict[int, int] = {}
    for loop in arrangement.loops:
        tasks[loop.level] = tasks.get(loop.level, 0) + loop.mapping.tasks
    most = max(tasks.values(), default=1)
    return max(min(most, arrangement.wave) if arrangement.levels > 1 else most, 1)


def _shared_limit(gpu: Gpu, blocks_per_sm: int) -> int:
    """Shared memory of one block if `blocks_per_sm` are to fit an SM, in bytes."""
    share = gpu.shared_per_sm_bytes // blocks_per_sm - gpu.shared_reserved_bytes
    return min(share // gpu.shared_unit_bytes * gpu.shared_unit_bytes, gpu.shared_per_block_bytes)


def _lower_to_fit(
    arrangement: Arrangement, name: str, gpu: Gpu, launch: LaunchConfig
) -> tuple[k.Kernel, tuple[str, ...]]:
    """The kernel, with as much kept in shared memory as fits beside its other slots."""
    cooperative = arrangement.levels > 1
    limit = _shared_limit(gpu, launch.blocks_per_sm if cooperative else 1)
    keep_registers = (launch.registers if cooperative else ASSUMED_REGISTERS) - REGISTERS_FOR_CODE
    kernel: k.Kernel | None = None
    notes: tuple[str, ...] = ()
    for keep_shared in (limit - 8192, limit // 2, 0):
        kernel, notes = lower(
            arrangement,
            name,
            grid=_grid(arrangement),
            blocks_per_sm=launch.blocks_per_sm if cooperative else 0,
            keep_registers=keep_registers,
            keep_shared_bytes=max(keep_shared, 0),
        )
        slots, total = place_shared(kernel.slots)
        kernel = replace(kernel, slots=slots, shared_bytes=total)
        if total <= limit:
            break
    assert kernel is not None
    return kernel, notes


def plan_scope(graph: Graph, scope: Scope, gpu: Gpu) -> Plan | None:
    """The plan of a scope; None when it holds only aliases (reshapes), which need no kernel."""
    groups = choose_dominants(graph, scope)
    if not groups.groups:
        return None
    block = SMALL_BLOCK
    launch = configure_launch(gpu, block)
    arrangement = choose_schemes(graph, groups, gpu, block, launch.wave)
    long_rows = any(
        loop.mapping.col_size >= LONG_ROW and loop.mapping.outer for loop in arrangement.loops
    )
    if arrangement.levels > 1 or long_rows:
        block = LARGE_BLOCK
        launch = configure_launch(gpu, block)
        arrangement = choose_schemes(graph, groups, gpu, block, launch.wave)
    notes: tuple[str, ...] = ()
    demoted: frozenset[str] = frozenset()
    while True:
        kernel, lowering_notes = _lower_to_fit(arrangement, scope.name, gpu, launch)
        limit = _shared_limit(gpu, launch.blocks_per_sm if arrangement.levels > 1 else 1)
        if kernel.shared_bytes <= limit:
            return Plan(scope, arrangement, launch, kernel, (*notes, *lowering_notes))
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
        arrangement = choose_schemes(graph, groups, gpu, block, launch.wave, demoted)
