"""Kernel -> Projection: how long a kernel will take on a device, without running it (PAI V2's second cost model).

cost = workload model / device model.  Each level of a kernel has three times: of the memory (DRAM or
L2), of the busiest SM (issue slots and units), and of latency.  Latency is the longest chain of a block's tasks; where
loads are what it waits for, that is Little's law.  None hides the others wholly: a norm adds them up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astitch.cost.instructions import Unit
from astitch.cost.workload import (
    BASE_REGISTERS,
    LINE_BYTES,
    Access,
    LoopWork,
    Workload,
    count_workload,
    distinct_bytes,
)
from astitch.device.gpu import Gpu
from astitch.kernel import kernel_ir as k
from astitch.toolchain.nvrtc import Resources

PERSISTENT_SHARE = 0.92
"""Blocks with fixed tasks in a loop reach this share of the bandwidth: SMs are not equally fast (H100: 91 to 96 %)."""

BLOCK_START_CYCLES = 1050.0
"""Cycles from the end of a block to the first load of its successor; the SM's other blocks overlap them."""

COLD_CODE_US = 0.6
"""A kernel takes so much longer than an empty one until its first load: its code comes from memory."""

L1_BYTES = 64 * 1024
"""So many bytes of an array that all blocks read stay in an SM's L1, beside data that streams through."""

SHARPNESS = 10.0
"""DRAM and L2 add up as a norm of this order: near equal, neither hides the other wholly."""

OVERLAP_OF_ONE, OVERLAP_OF_MORE = 3.5, 0.32
"""The same for the memory and the units of an SM with one block, and for each block more: while one loads, another
works."""

HIDING_OF_ONE, HIDING_OF_MORE = 2.0, 0.85
"""The same for latency and throughput."""

BLOCKS_A_US = 13.5
"""An SM starts no more blocks in a us.  On an H100 kernels of 16,384 and 32,768 short blocks take 11.0 and 20.8 us."""

CROWDING_POWER = 2
"""What a long task of few blocks takes beyond the mean counts by the share of an SM's threads that are there, to this
power.  On an H100 a sum by 64 blocks beside 2,048 element-wise ones took 37 to 40 us with 512 threads an SM.  With
1,280 it took 53, with all 2,048 68."""

ISSUE_SHARE = 0.3
"""The share of a block's instructions whose issue adds to its chain; the others fill its waits."""

BARRIER_SKEW_US = 1.45
"""What waiting blocks lose beside the barrier itself, because they do not arrive at once."""

NEAR_CYCLES = 300.0
"""Cycles of a load of data that all tasks read.  It comes from the L2, since data that streams through fills the L1."""

WAITING_GROUP_SHARE = 0.84
"""Block groups that prefetch nothing while they meet reach this share of the memory's speed.  On an H100
softmax f32 16x1048576 reaches 0.72 to 0.87.  Instance-norm f32 32x64x64x512 reaches 0.75 with two blocks an SM, 0.82
with four."""

MEETING_BLOCK_US = 0.01
"""Each member of a block group adds so much to a meeting, beside reading its parts: it may be the last."""

MEETING_TURN_US = 0.4
"""Each block of an SM beyond the second adds so much: they take turns, and a block group waits for its slowest SM."""

LEAST_FREE_REGISTERS = 8
"""Registers for loads in flight, however few there are."""

SPILLS_OF_A_WORD = 4
"""Stores and loads of a word of a thread that has no register: once written, read by several phases."""

SPILL_CYCLES = 12.0
"""What a spilled word adds to a thread's chain, beside its load and store."""

ALL_BUT_LARGEST = 0.9
"""Loops that need less than this share of the registers of the largest do not spill before it."""

KEPT_BY_L2 = 0.43
"""The L2 keeps its data until other data of this share of its size has passed through it."""


PARTIAL_SHARE = 0.5
"""Sectors of which a warp wants no more than this share, one in each line, are partial ones.  Those that lie side by
side come from the L1, and are put together on their way to the L2."""

PARTIAL_READ = 1.4
"""A partial sector takes so many times as long to read.  On an H100 7.4 to 8 ps, for a 16th to a 4th of it, where 5.3
are counted."""

PARTIAL_WRITE, PARTIAL_WRITE_POWER = 6.75, 0.3
"""To write a partial sector takes so many times as long, times its share to this power: the L2 puts its parts together,
and where they come late DRAM is read and written for it.  On an H100 the sectors take 15 to 21 ps for a 16th, 16 to 24
for an 8th, 19 to 38 for a 4th, 26 to 36 for half of each."""

LONE_SECTOR_WRITE = 1.28
"""DRAM takes so many times as long for sectors that are written one in each line."""


@dataclass(frozen=True, slots=True)
class LevelTime:
    """The task loops between two barriers of the grid, in us.

    memory: DRAM and L2.  units: of the busiest SM.  latency_us: the longest of a block's chains of tasks, task_us one
    of them, of which it has `rounds`.  alone_us: of that, what the longest tasks of a few blocks have before them when
    the others have ended.  sharpness, hiding: how well the blocks of an SM overlap memory and units, throughput and
    latency.
    """

    memory: tuple[tuple[str, float], ...]
    units: tuple[tuple[str, float], ...]
    latency_us: float
    alone_us: float
    task_us: float
    rounds: float
    sharpness: float
    hiding: float

    @property
    def throughput(self) -> tuple[tuple[str, float], ...]:
        """All resources with the time that they are busy, the busiest first."""
        return tuple(sorted((*self.memory, *self.units), key=lambda item: -item[1]))

    @property
    def busiest(self) -> tuple[str, float]:
        return self.throughput[0]

    @property
    def time_us(self) -> float:
        memory = _blend([us for _, us in self.memory], SHARPNESS)
        busy = (memory, max(us for _, us in self.units))
        # Beside others the few get their share of the memory only.
        shared_us = self.latency_us - self.alone_us
        return _blend((_blend(busy, self.sharpness), shared_us), self.hiding) + self.alone_us


@dataclass(frozen=True, slots=True)
class Projection:
    """What a kernel is projected to take.

    time_us: all of it.  levels: between barriers of the grid.  barriers_us, launch_us: at the grid and around it all.
    registers: of a thread, by the compiler or estimated.  blocks_per_sm: resident.  dram_bytes, l2_bytes: moved.
    inflight_bytes: asked for by the threads of an SM at once; needed_bytes: Little's law for the full bandwidth.
    """

    time_us: float
    levels: tuple[LevelTime, ...]
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
        for number, level in enumerate(self.levels):
            shares = ", ".join(f"{name} {us:.1f}" for name, us in level.throughput[:4])
            lines.append(
                f"  level {number}: {level.time_us:.1f} us; throughput: {shares}; latency {level.latency_us:.1f} = "
                f"{level.rounds:.1f} rounds x {level.task_us:.2f}"
            )
        return "\n".join(lines)


def sector_price(access: Access) -> float:
    """How many times longer its sectors take in the L2 than sectors that a warp wants all of."""
    if access.sector_share > PARTIAL_SHARE or not access.lone_sectors:
        return 1.0
    if not access.write:
        return PARTIAL_READ
    return PARTIAL_WRITE * math.pow(access.sector_share, PARTIAL_WRITE_POWER)


def _blend(times: Sequence[float], order: float) -> float:
    longest = max(times)
    if longest <= 0:
        return 0.0
    return float(longest * sum((t / longest) ** order for t in times) ** (1 / order))


def miss_share(footprint_bytes: float, l2_bytes: int) -> float:
    """The share of data that the L2 lost when it is read again after `footprint_bytes` of other data."""
    return min(max((footprint_bytes / l2_bytes - KEPT_BY_L2) / (1 - KEPT_BY_L2), 0.0), 1.0)


def lost_backward(footprint_bytes: float, l2_bytes: int) -> float:
    """The same for data that is read again from its end: what was touched last is still there."""
    if footprint_bytes <= 0:
        return 0.0
    return max(1 - KEPT_BY_L2 * l2_bytes / footprint_bytes, 0.0)


class _Projector:
    def __init__(self, kernel: k.Kernel, gpu: Gpu, work: Workload, compiled: Resources | None):
        self.kernel, self.gpu, self.work, self.compiled = kernel, gpu, work, compiled
        self.registers, self.spill_bytes, stack_bytes = self.count_registers()
        self.blocks_per_sm = max(
            gpu.blocks_per_sm(kernel.block, self.registers, kernel.shared_bytes), 1
        )
        self.resident = min(kernel.grid, gpu.sms * self.blocks_per_sm)
        threads = self.resident * kernel.block / (gpu.sms * gpu.max_threads_per_sm)
        self.crowding = min(threads, 1.0) ** CROWDING_POWER
        self.fixed = kernel.grid <= self.resident  # every block has its place and its tasks
        # What the kernel before left in the L2, and what earlier loops of this one did.
        total = sum(self.unique_by_array(work.accesses).values())
        self.cold = miss_share(total, gpu.l2_bytes)
        self.footprints = [
            sum(self.unique_by_array([a for a in work.accesses if a.section == n]).values())
            for n in range(len(work.loops))
        ]
        # Spilled words are of the thread's own stack: where do the stacks of all resident threads lie?
        stacks = float(stack_bytes * kernel.block * self.blocks_per_sm)
        l1_bytes = gpu.shared_per_sm_bytes - kernel.shared_bytes * self.blocks_per_sm
        # Stores go through it, loads hit it as far as it reaches.
        self.spill_to_l2 = (1 + max(1 - l1_bytes / stacks, 0.0)) / 2 if stacks else 0.0
        self.spill_to_dram = max(1 - gpu.l2_bytes / (stacks * gpu.sms), 0.0) if stacks else 0.0
        self.spilled_words = self.share_spills()

    def count_registers(self) -> tuple[int, int, int]:
        """(registers of a thread, bytes spilled and loaded again, bytes of its stack)."""
        if self.compiled is not None:
            used = self.compiled
            spilled = used.spill_store_bytes + used.spill_load_bytes
            return used.registers, spilled, min(used.stack_bytes, spilled) or spilled // 2
        kernel, work = self.kernel, self.work
        # Without launch bounds the compiler still lets one block fit.
        most = self.gpu.max_registers(kernel.block, max(kernel.blocks_per_sm, 1))
        missing = max(work.needed_registers - most, 0)
        return min(work.registers, most), missing * SPILLS_OF_A_WORD * 4, missing * 4

    def share_spills(self) -> tuple[float, ...]:
        """Words that a task of each loop stores and loads for want of registers.

        Loops share no registers, so a spilled word belongs to one of them; the compiler does not say to which.
        """
        needed = [loop.needed_registers for loop in self.work.loops]
        free = min(float(self.registers), ALL_BUT_LARGEST * max(needed, default=0.0))
        missing = [max(words - free, 0.0) for words in needed]
        total = self.spill_bytes / 4
        if self.compiled is None:
            return tuple(
                total * words / max(missing, default=1.0) if words else 0.0 for words in missing
            )
        return tuple(total * words / sum(missing) if words else 0.0 for words in missing)

    @staticmethod
    def unique_by_array(accesses: tuple[Access, ...] | list[Access]) -> dict[str, float]:
        found: dict[str, list[Access]] = {}
        for access in accesses:
            found.setdefault(access.array, []).append(access)
        return {array: distinct_bytes(each) for array, each in found.items()}

    def traffic(self, section: int, seen: dict[str, int]) -> tuple[float, float, float]:
        """(bytes read from DRAM, written to it, bytes of the L2) of a loop; bytes at a lower speed count as more.

        seen: the loop in which each array was touched last.
        """
        gpu = self.gpu
        read = written = l2 = 0.0
        mine = [a for a in self.work.accesses if a.section == section]
        # What passes through the L2 until a task reads something again: all that resident tasks read.
        tile = sum({a.array: a.task_bytes for a in mine if not a.write}.values()) * self.resident
        touched: dict[tuple[str, bool], list[Access]] = {}
        # Loads of parts of the same lines, as of points' coordinates, ask the L2 once.  One of the same part is of a
        # later pass, which asks again.
        loads: dict[tuple[str, int, float, int], float] = {}
        passes: Counter[tuple[str, float, float]] = Counter()
        for access in mine:
            sectors = access.sector_bytes
            if not access.write and access.range_bytes <= L1_BYTES:
                sectors = min(sectors, access.range_bytes * gpu.sms)
            sectors *= sector_price(access)
            if not access.write:
                same = access.array, access.start, access.sector_bytes
                line = (
                    access.array,
                    int(access.start // LINE_BYTES),
                    access.sector_bytes,
                    passes[same],
                )
                passes[same] += 1
                known = loads.get(line, 0.0)
                sectors, loads[line] = max(sectors - known, 0.0), max(sectors, known)
            l2 += sectors
            key = (access.array, access.write)
            before = touched.setdefault(key, [])
            new = distinct_bytes([*before, access]) - distinct_bytes(before)
            missed = min(max(new, 0.0), access.unique_bytes)
            again = access.unique_bytes - missed  # in the same task
            if not access.write and access.array in seen:
                since = sum(self.footprints[seen[access.array] : section])
                lost = lost_backward if access.backward else miss_share
                missed *= lost(since, gpu.l2_bytes)
            else:
                missed *= self.cold
            missed += again * miss_share(tile, gpu.l2_bytes)
            before.append(access)
            if access.write:
                written += missed * (LONE_SECTOR_WRITE if access.lone_sectors else 1.0)
            else:
                read += missed
        for access in mine:
            seen[access.array] = section
        return read, written, l2

    def tasks_by_block(self, loop: LoopWork) -> np.ndarray:
        """How many tasks of a loop each block has, blocks having fixed ones."""
        grid = self.kernel.grid
        place = (np.arange(grid) - loop.offset) % grid
        return np.asarray(loop.tasks // grid + (place < loop.tasks % grid))

    def by_sm(self, blocks: np.ndarray) -> np.ndarray:
        """What the blocks of each SM have together."""
        sm = np.arange(len(blocks)) % self.gpu.sms
        return np.bincount(sm, blocks.astype(np.float64), minlength=self.gpu.sms)

    def tasks_by_sm(self, loop: LoopWork) -> np.ndarray:
        """Tasks of each SM; where blocks come as others end, the busiest has a little more than the average."""
        sms = self.gpu.sms
        if self.fixed:
            return self.by_sm(self.tasks_by_block(loop))
        if loop.tasks < sms:
            return np.asarray(np.arange(sms) < loop.tasks, np.float64)
        return np.full(sms, loop.tasks / sms + 0.5)

    def project_level(self, sections: Sequence[int], seen: dict[str, int]) -> LevelTime:
        """The loops of one level, which run side by side where they are given to different blocks."""
        gpu, kernel = self.gpu, self.kernel
        clock = gpu.clock_ghz * 1e3  # cycles in a us
        lanes: dict[str, float] = {
            "issue": 4 * gpu.warp_size,
            "fp32": gpu.fp32_lanes_per_sm,
            "load/store": 1,
            Unit.FP64.value: gpu.fp64_lanes,
            Unit.SPECIAL.value: gpu.special_lanes,
            Unit.CONVERSION.value: gpu.conversion_lanes,
            Unit.SHUFFLE.value: gpu.shuffle_lanes,
        }
        used: dict[str, np.ndarray] = {name: np.zeros(gpu.sms) for name in lanes}
        blocks_by_sm = kernel.grid // gpu.sms + (np.arange(gpu.sms) < kernel.grid % gpu.sms) * 1.0
        chains = np.zeros(kernel.grid if self.fixed else 1)
        read = written = l2 = latency_us = longest_us = most_rounds = few_us = all_us = 0.0
        for section in sections:
            loop = self.work.loops[section]
            tasks = self.tasks_by_sm(loop)
            mine = [a for a in self.work.accesses if a.section == section]
            more_read, more_written, more_l2 = self.traffic(section, seen)
            spilled = self.spilled_words[section] * kernel.block  # words of one task
            spilled_bytes = spilled * 4 * loop.tasks * self.spill_to_l2
            read += more_read + spilled_bytes / 2 * self.spill_to_dram
            written += more_written + spilled_bytes / 2 * self.spill_to_dram
            l2 += more_l2 + spilled_bytes + loop.exchanged_bytes * loop.tasks
            wavefronts = sum(a.wavefronts for a in mine if a.in_task) / max(loop.tasks, 1)
            wavefronts += loop.exchanged_bytes / LINE_BYTES
            entering = tasks if loop.has_own_blocks(kernel.grid) else blocks_by_sm
            once = sum(a.wavefronts for a in mine if not a.in_task) / kernel.grid
            by_unit = {
                unit: loop.mix.get(unit, 0.0) * kernel.block * tasks
                + loop.once_mix.get(unit, 0.0) * kernel.block * entering
                for unit in Unit
            }
            used["issue"] += sum(by_unit.values()) + spilled * tasks
            used["fp32"] += by_unit[Unit.FP32]
            words = by_unit[Unit.SHARED] + spilled * tasks
            used["load/store"] += wavefronts * tasks + once * entering + words / gpu.load_lanes
            for unit in (Unit.FP64, Unit.SPECIAL, Unit.CONVERSION, Unit.SHUFFLE):
                used[unit.value] += by_unit[unit]
            task_us, once_us = self.task_time(loop, section, mine)
            if self.fixed:
                counts = self.tasks_by_block(loop)
                rounds = float(counts.max())
                chains += counts * task_us + once_us * (counts > 0)
            else:
                rounds = loop.tasks / self.resident
                rounds = math.ceil(rounds) if rounds < 2 else rounds + 0.5
                latency_us += rounds * (task_us + BLOCK_START_CYCLES / clock) + once_us
            all_us += loop.tasks * task_us
            if loop.tasks < self.resident:
                few_us = max(few_us, task_us)
            if rounds * task_us > most_rounds * longest_us:
                most_rounds, longest_us = rounds, task_us
        self.dram_bytes += read + written
        self.l2_bytes += l2
        dram_us = gpu.stream_us(read, written) / (PERSISTENT_SHARE if self.fixed else 1.0)
        used["block starts"] = np.zeros(gpu.sms) if self.fixed else blocks_by_sm
        lanes["block starts"] = BLOCKS_A_US / clock
        loops = [self.work.loops[number] for number in sections]
        if any(
            loop.meetings and not loop.prefetched and loop.tasks > kernel.grid for loop in loops
        ):
            dram_us /= WAITING_GROUP_SHARE
        return LevelTime(
            (("DRAM", dram_us), ("L2", l2 / (gpu.l2_gbs * 1e3))),
            tuple((name, float(used[name].max()) / lanes[name] / clock) for name in lanes),
            float(chains.max()) + latency_us,
            max(few_us - all_us / self.resident, 0.0) * self.crowding,
            longest_us,
            most_rounds,
            OVERLAP_OF_ONE + OVERLAP_OF_MORE * (self.blocks_per_sm - 1),
            HIDING_OF_ONE + HIDING_OF_MORE * (self.blocks_per_sm - 1),
        )

    def task_time(self, loop: LoopWork, section: int, mine: list[Access]) -> tuple[float, float]:
        """(us of one task, of what stands before and after the loop), of a block alone on its SM."""
        gpu, kernel = self.gpu, self.kernel
        clock = gpu.clock_ghz * 1e3
        first_ns = gpu.l2_latency_ns + self.cold * (gpu.dram_latency_ns - gpu.l2_latency_ns)
        # Loads that do not fit the registers wait for those before them.
        words = loop.load_bytes / 4
        free = max(self.registers - BASE_REGISTERS - loop.kept_words, LEAST_FREE_REGISTERS)
        turns = max(words / free, 1.0)
        memory_us = (loop.batches * first_ns + loop.rereads * gpu.l2_latency_ns) * turns / 1e3
        memory_us += loop.near * NEAR_CYCLES / clock
        # A scheduler issues for all warps of the block in turn.
        issued = sum(loop.mix.values()) * kernel.block / (4 * gpu.warp_size)
        chain = loop.chain_cycles + ISSUE_SHARE * issued
        chain += self.spilled_words[section] * SPILL_CYCLES
        # A block group waits for its slowest member, with nothing else to do.
        chain_us = chain / clock
        meeting_us = gpu.barrier_us + BARRIER_SKEW_US + MEETING_BLOCK_US * loop.group_blocks
        meeting_us += MEETING_TURN_US * max(self.blocks_per_sm - 2, 0)
        chain_us += loop.meetings * meeting_us
        task_us = max(memory_us, chain_us) if loop.prefetched else memory_us + chain_us
        return task_us, loop.once_cycles / clock + loop.once_batches * first_ns / 1e3

    def project(self) -> Projection:
        gpu, kernel, work = self.gpu, self.kernel, self.work
        self.dram_bytes = self.l2_bytes = 0.0
        seen: dict[str, int] = {}
        by_level: dict[int, list[int]] = {}
        for number, loop in enumerate(work.loops):
            by_level.setdefault(loop.level, []).append(number)
        levels = tuple(self.project_level(sections, seen) for sections in by_level.values())
        barrier_us = gpu.barrier_cost_us(kernel.grid) + BARRIER_SKEW_US
        barriers_us = kernel.global_barriers * barrier_us
        start_us = gpu.launch_us + COLD_CODE_US + BLOCK_START_CYCLES / gpu.clock_ghz / 1e3
        inflight = max((loop.load_bytes for loop in work.loops), default=0.0)
        needed = gpu.bandwidth_gbs * gpu.dram_latency_ns / gpu.sms
        return Projection(
            start_us + barriers_us + sum(t.time_us for t in levels),
            levels,
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
