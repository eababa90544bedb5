"""Kernel -> Projection: how long a kernel will take on a device, without running it (PAI V2's second cost model).

cost = workload model / device model.  Two forms: throughput (the busiest of DRAM, L2, issue slots and the units) and
latency (rounds of tasks times the time of one task, which is Little's law when loads are what it waits for).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from astitch import kernel_ir as k
from astitch.gpu import Gpu
from astitch.nvrtc import Resources
from astitch.workload import Access, LoopWork, Unit, Workload, count_workload

PERSISTENT_SHARE = 0.95
"""Of the bandwidth that blocks with fixed tasks in a loop reach: SMs are not equally fast (H100: 94 to 96 %)."""

BLOCK_START_CYCLES = 600.0
"""From the end of a block to the first load of its successor, overlapped by the other blocks of the SM."""

L1_BYTES = 64 * 1024
"""Of an array that all blocks read, so much stays in an SM's L1 beside what streams through."""

SHARPNESS = 3.0
"""Throughput and latency forms add up as a norm of this order: near equal, neither hides the other wholly."""

SPILLED_TO_L2 = 0.5
"""Of spilled bytes: what the L1 does not hold until they are loaded again."""

SPILL_CYCLES = 12.0
"""What a spilled word adds to a thread's chain, beside its load and store."""


@dataclass(frozen=True, slots=True)
class LoopTime:
    """One task loop, in us.  throughput: by resource; latency_us: rounds times one task."""

    throughput: tuple[tuple[str, float], ...]
    latency_us: float
    task_us: float
    rounds: float

    @property
    def busiest(self) -> tuple[str, float]:
        return max(self.throughput, key=lambda item: item[1])

    @property
    def time_us(self) -> float:
        return _blend(self.busiest[1], self.latency_us)


@dataclass(frozen=True, slots=True)
class Projection:
    """What a kernel is projected to take.

    time_us: all of it.  loops: by task loop.  barriers_us, launch_us: at the grid and around the kernel.
    registers: of a thread, by the compiler or estimated.  blocks_per_sm: resident.  dram_bytes, l2_bytes: moved.
    inflight_bytes: asked for by the threads of an SM at once; needed_bytes: Little's law for the full bandwidth.
    """

    time_us: float
    loops: tuple[LoopTime, ...]
    barriers_us: float
    launch_us: float
    registers: int
    spill_bytes: int
    blocks_per_sm: int
    dram_bytes: float
    l2_bytes: float
    inflight_bytes: float
    needed_bytes: float
    compiled: bool

    def __str__(self) -> str:
        how = "compiled" if self.compiled else "estimated"
        lines = [
            f"projected {self.time_us:.1f} us: launch {self.launch_us:.1f}, barriers {self.barriers_us:.1f}",
            f"  {self.registers} registers ({how}), {self.spill_bytes} B spilled, {self.blocks_per_sm} blocks an SM",
            f"  DRAM {self.dram_bytes / 1e6:.2f} MB, L2 {self.l2_bytes / 1e6:.2f} MB",
            f"  in flight {self.inflight_bytes / 1024:.1f} KB an SM, {self.needed_bytes / 1024:.1f} KB hide latency",
        ]
        for number, loop in enumerate(self.loops):
            shares = ", ".join(
                f"{name} {us:.1f}" for name, us in sorted(loop.throughput, key=lambda i: -i[1])[:4]
            )
            lines.append(
                f"  loop {number}: {loop.time_us:.1f} us; throughput: {shares}; latency {loop.latency_us:.1f} = "
                f"{loop.rounds:.1f} rounds x {loop.task_us:.2f}"
            )
        return "\n".join(lines)


def _blend(a: float, b: float) -> float:
    longest = max(a, b)
    if longest <= 0:
        return 0.0
    return float(
        longest * ((a / longest) ** SHARPNESS + (b / longest) ** SHARPNESS) ** (1 / SHARPNESS)
    )


def miss_share(footprint_bytes: float, l2_bytes: int) -> float:
    """Of data that is read again after `footprint_bytes` of other data: the share that the L2 lost meanwhile."""
    return min(max((footprint_bytes / l2_bytes - 0.4) / 0.6, 0.0), 1.0)


class _Projector:
    def __init__(self, kernel: k.Kernel, gpu: Gpu, work: Workload, compiled: Resources | None):
        self.kernel, self.gpu, self.work, self.compiled = kernel, gpu, work, compiled
        self.registers, self.spill_bytes = self.count_registers()
        self.blocks_per_sm = max(
            gpu.blocks_per_sm(kernel.block, self.registers, kernel.shared_bytes), 1
        )
        self.resident = min(kernel.grid, gpu.sms * self.blocks_per_sm)
        # What the kernel before left in the L2, and what earlier loops of this one did.
        total = sum(self.unique_by_array(work.accesses).values())
        self.cold = miss_share(total, gpu.l2_bytes)
        self.footprints = [
            sum(self.unique_by_array([a for a in work.accesses if a.section == n]).values())
            for n in range(len(work.loops))
        ]

    def count_registers(self) -> tuple[int, int]:
        """(registers of a thread, bytes of a thread that do not fit in them)."""
        if self.compiled is not None:
            spilled = self.compiled.spill_store_bytes + self.compiled.spill_load_bytes
            return self.compiled.registers, spilled
        kernel, work = self.kernel, self.work
        # Without launch bounds the compiler still lets one block fit.
        most = self.gpu.max_registers(kernel.block, max(kernel.blocks_per_sm, 1))
        return min(work.registers, most), max(work.needed_registers - most, 0) * 8

    @staticmethod
    def unique_by_array(accesses: tuple[Access, ...] | list[Access]) -> dict[str, float]:
        found: dict[str, float] = {}
        for access in accesses:
            found[access.array] = max(found.get(access.array, 0.0), access.unique_bytes)
        return found

    def traffic(self, section: int, seen: dict[str, int]) -> tuple[float, float]:
        """(DRAM, L2) bytes of a loop.  seen: the loop in which each array was touched last."""
        gpu = self.gpu
        dram = l2 = 0.0
        mine = [a for a in self.work.accesses if a.section == section]
        tile = sum({a.array: a.task_bytes for a in mine}.values()) * self.resident
        touched: set[tuple[str, bool]] = set()
        for access in mine:
            sectors = access.sector_bytes
            if not access.write and access.range_bytes <= L1_BYTES:
                sectors = min(sectors, access.range_bytes * gpu.sms)
            l2 += sectors
            key = (access.array, access.write)
            if key in touched:  # again in the same task
                dram += access.unique_bytes * miss_share(tile, gpu.l2_bytes)
                continue
            touched.add(key)
            if access.write:
                dram += access.unique_bytes * self.cold
            elif access.array in seen:
                since = sum(self.footprints[seen[access.array] : section])
                dram += access.unique_bytes * miss_share(since, gpu.l2_bytes)
            else:
                dram += access.unique_bytes * self.cold
        for access in mine:
            seen[access.array] = section
        return dram, l2

    def busy(self, loop: LoopWork, unit: Unit) -> float:
        """Instructions of a unit on the busiest SM, of all its threads."""
        gpu, kernel = self.gpu, self.kernel
        tasks = loop.mix.get(unit, 0.0) * kernel.block * self.tasks_per_sm(loop)
        once = loop.once_mix.get(unit, 0.0) * kernel.block * math.ceil(kernel.grid / gpu.sms)
        return tasks + once

    def tasks_per_sm(self, loop: LoopWork) -> float:
        """Tasks of the busiest SM: whole ones where they are few, a little over the average where they are many."""
        sms = self.gpu.sms
        if loop.once and self.kernel.grid > self.resident:
            return loop.tasks / sms + 0.5
        rounds, rest = divmod(loop.tasks, max(self.resident, 1))
        return rounds * max(self.resident / sms, 1.0) + math.ceil(rest / sms)

    def project_loop(self, number: int, loop: LoopWork, seen: dict[str, int]) -> LoopTime:
        gpu, kernel = self.gpu, self.kernel
        clock = gpu.clock_ghz * 1e3  # cycles in a us
        dram, l2 = self.traffic(number, seen)
        l2 += SPILLED_TO_L2 * self.spill_bytes * kernel.block * loop.tasks
        self.dram_bytes += dram
        self.l2_bytes += l2
        fixed = not loop.once or kernel.grid <= self.resident
        bandwidth = gpu.bandwidth_gbs * 1e3 * (PERSISTENT_SHARE if fixed else 1.0)
        mine = [a for a in self.work.accesses if a.section == number]
        share = self.tasks_per_sm(loop) / max(loop.tasks, 1)  # of the work, on the busiest SM
        wavefronts = sum(a.wavefronts for a in mine) * share
        shared = self.busy(loop, Unit.SHARED)
        spilled = self.spill_bytes / 4 * kernel.block * self.tasks_per_sm(loop)
        lanes = {
            Unit.FP64: gpu.fp64_lanes,
            Unit.SPECIAL: gpu.special_lanes,
            Unit.CONVERSION: gpu.conversion_lanes,
            Unit.SHUFFLE: gpu.shuffle_lanes,
        }
        issued = sum(self.busy(loop, unit) for unit in Unit) + spilled
        throughput = [
            ("DRAM", dram / bandwidth),
            ("L2", l2 / (gpu.l2_gbs * 1e3)),
            ("issue", issued / (4 * gpu.warp_size) / clock),
            ("fp32", self.busy(loop, Unit.FP32) / gpu.fp32_lanes_per_sm / clock),
            (
                "load/store",
                (wavefronts + (shared + spilled) / gpu.load_lanes) / clock,
            ),
            *((unit.value, self.busy(loop, unit) / lanes[unit] / clock) for unit in lanes),
        ]
        task_us, rounds = self.task_time(loop, mine, seen)
        once_us = loop.once_cycles / clock
        return LoopTime(tuple(throughput), rounds * task_us + once_us, task_us, rounds)

    def task_time(
        self, loop: LoopWork, mine: list[Access], seen: dict[str, int]
    ) -> tuple[float, float]:
        """(us of one task, rounds of tasks).  The warps of an SM share its issue slots: throughput says that."""
        gpu, kernel = self.gpu, self.kernel
        clock = gpu.clock_ghz * 1e3
        first_ns = gpu.l2_latency_ns + self.cold * (gpu.dram_latency_ns - gpu.l2_latency_ns)
        memory_us = (loop.batches * first_ns + loop.rereads * gpu.l2_latency_ns) / 1e3
        chain_us = (loop.chain_cycles + self.spill_bytes / 4 * SPILL_CYCLES) / clock
        warps = self.blocks_per_sm * kernel.block / gpu.warp_size / 4
        # A scheduler issues for all its warps in turn: a barrier waits for the last of the block.
        chain_us *= max(1.0, min(warps, kernel.block / gpu.warp_size / 4) / 4)
        # Blocks of a team wait for the slowest of them, with nothing else to do.
        chain_us += loop.meetings * gpu.barrier_us
        task_us = max(memory_us, chain_us) if loop.prefetched else memory_us + chain_us
        if loop.once and kernel.grid > self.resident:
            rounds = loop.tasks / self.resident
            rounds = math.ceil(rounds) if rounds < 2 else rounds + 0.5
            return task_us + BLOCK_START_CYCLES / clock, rounds
        return task_us, float(math.ceil(loop.tasks / max(self.resident, 1)))

    def project(self) -> Projection:
        gpu, kernel, work = self.gpu, self.kernel, self.work
        self.dram_bytes = self.l2_bytes = 0.0
        seen: dict[str, int] = {}
        times = tuple(self.project_loop(n, loop, seen) for n, loop in enumerate(work.loops))
        barriers_us = kernel.global_barriers * gpu.barrier_cost_us(kernel.grid)
        start_us = gpu.launch_us + BLOCK_START_CYCLES / gpu.clock_ghz / 1e3
        inflight = max((loop.load_bytes for loop in work.loops), default=0.0)
        needed = gpu.bandwidth_gbs * gpu.dram_latency_ns / gpu.sms
        return Projection(
            start_us + barriers_us + sum(t.time_us for t in times),
            times,
            barriers_us,
            start_us,
            self.registers,
            self.spill_bytes,
            self.blocks_per_sm,
            self.dram_bytes,
            self.l2_bytes,
            inflight * kernel.block * min(self.blocks_per_sm, -(-self.resident // gpu.sms)),
            needed,
            self.compiled is not None,
        )


def project(
    kernel: k.Kernel, gpu: Gpu, compiled: Resources | None = None, work: Workload | None = None
) -> Projection:
    """The time of one launch of `kernel` on `gpu` among others in a CUDA graph, its inputs in the L2 where they fit.

    compiled: what the CUDA compiler says of it; without it registers are estimated.  work: count_workload(kernel), if
    it is known.
    """
    return _Projector(kernel, gpu, work or count_workload(kernel), compiled).project()
