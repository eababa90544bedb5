"""Arrangement -> Bound: an upper limit of what a plan can reach, from its mappings and launch alone (DeepCuts).

PUL = GMRatio x SMRatio x WBRatio x COEF_r, a share of the speed of light.  A plan whose bound is worse than what
another is projected to take need not be lowered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from astitch.cost.speed_of_light import Work
from astitch.device.gpu import Gpu
from astitch.device.schedule import Keep, Schedule
from astitch.mapping.launch_config import LaunchConfig
from astitch.mapping.stitch_scheme import Arrangement, TaskLoop
from astitch.tiling.space import Mapping

SM_SHARE = 10.0
"""How many times its fair share of the memory's bandwidth one SM can draw while others are idle."""

LEAST_REGISTERS = 24
"""Fewer registers a thread are not worth a plan: everything spills."""


@dataclass(frozen=True, slots=True)
class Bound:
    """gm_ratio: bytes that must move over bytes that do, and whether enough SMs ask for them.  sm_ratio: what waiting
    within tasks leaves.  wb_ratio: blocks of the last wave.  coef: 0 where registers or threads do not fit.
    fixed_us: barriers.  light_us: speed of light without them."""

    gm_ratio: float
    sm_ratio: float
    wb_ratio: float
    coef: float
    fixed_us: float
    light_us: float

    @property
    def limit(self) -> float:
        """PUL: at most this share of the speed of light."""
        return self.gm_ratio * self.sm_ratio * self.wb_ratio * self.coef

    @property
    def least_us(self) -> float:
        """No less time than this; infinite where the plan does not fit."""
        return self.light_us / self.limit + self.fixed_us if self.limit else math.inf

    def __str__(self) -> str:
        return (
            f"at most {self.limit:.2f} of the speed of light (memory {self.gm_ratio:.2f}, waiting {self.sm_ratio:.2f}, "
            f"last wave {self.wb_ratio:.2f}, fits {self.coef:.0f}): at least {self.least_us:.1f} us"
        )


def _read_again(arrangement: Arrangement, schedule: Schedule) -> float:
    """Share of the inputs that the L2 gives once more at least: half where phases share inputs that are not kept."""
    main = _main_loop(arrangement)
    phases = {p.phase for p in arrangement.places[main.number]}
    return 0.5 if schedule.keep is Keep.NOTHING and len(phases) > 1 else 0.0


def _main_loop(arrangement: Arrangement) -> TaskLoop:
    """The task loop over the most elements."""
    return max(
        arrangement.loops,
        key=lambda loop: loop.mapping.outer_size * loop.mapping.row_size * loop.mapping.col_size,
    )


def _steps(mapping: Mapping) -> int:
    return mapping.row_steps * mapping.col_steps


def bound_plan(
    arrangement: Arrangement, launch: LaunchConfig, schedule: Schedule, gpu: Gpu, work: Work
) -> Bound:
    """The bound of a plan that is arranged but not lowered.  work: what its scope cannot do without."""
    main = _main_loop(arrangement)
    mapping = main.mapping
    cooperative = arrangement.cooperative
    # Residency at its best: as few registers as the compiler can do with.
    per_sm = gpu.blocks_per_sm(launch.block, LEAST_REGISTERS, 0)
    if cooperative or schedule.persistent:
        per_sm = min(per_sm, launch.blocks_per_sm)
    resident = max(min(mapping.tasks, gpu.sms * per_sm), 1)
    active = min(mapping.tasks, gpu.sms)
    fits = per_sm > 0 and launch.registers >= LEAST_REGISTERS
    # Data that fits the L2 is read from there: neither the copy's bandwidth nor its latency bounds that.
    warm = work.bytes < gpu.l2_bytes
    latency_ns = gpu.l2_latency_ns if warm else gpu.dram_latency_ns
    stream_us = gpu.stream_us(work.read_bytes, work.written_bytes)
    light_us = max(work.bytes / gpu.l2_gbs / 1e3 if warm else stream_us, 1e-3)
    l2_us = (work.bytes + _read_again(arrangement, schedule) * work.read_bytes) / gpu.l2_gbs / 1e3
    sm_share = min(1.0, active * SM_SHARE / gpu.sms)
    gm_ratio = sm_share * light_us / max(light_us, l2_us)
    # A task waits at least once for memory, each thread with all the loads of its part under way.
    rounds = mapping.tasks / resident
    if cooperative or schedule.persistent:
        rounds = math.ceil(rounds)
    steps = max(_steps(mapping) // 64, 1)
    waiting_us = rounds * steps * latency_ns / 1e3
    sm_ratio = min(1.0, light_us / gm_ratio / waiting_us)
    # Blocks of the last wave have the whole memory's bandwidth, but no SM draws more than SM_SHARE of its own.
    whole, rest = divmod(mapping.tasks, resident)
    last = rest / min(rest * SM_SHARE, resident) if rest and whole else 0.0
    wb_ratio = mapping.tasks / resident / (whole + max(last, rest / resident)) if whole else 1.0
    grid = min(max(loop.mapping.tasks for loop in arrangement.loops), arrangement.wave)
    barriers_us = (arrangement.levels - 1) * gpu.barrier_cost_us(grid)
    return Bound(
        gm_ratio,
        sm_ratio,
        min(wb_ratio, 1.0),
        1.0 if fits else 0.0,
        barriers_us,
        light_us,
    )
