"""Launch configuration of a kernel with global barriers: assume - relax - apply (paper section 4.5, step S5).

Assume a register count, which gives the number of blocks that are resident at once; relax it to the largest count
that keeps that number; apply it through __launch_bounds__, so that the compiler must keep the promise.
"""

from __future__ import annotations

from dataclasses import dataclass

from astitch.device.gpu import Gpu

ASSUMED_REGISTERS = 64
"""The paper assumes 32 registers and blocks of 1024 threads on a V100.  On an H100 two blocks of 512 threads with 64
registers each were measured faster for every pattern that reduces.  One block works while the other waits."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """block: threads.  blocks_per_sm: resident blocks on each SM.  registers: bound for one thread.
    wave: blocks resident on the device.  reason: for people."""

    block: int
    blocks_per_sm: int
    registers: int
    wave: int
    reason: str


def configure_launch(
    gpu: Gpu,
    block: int,
    shared_bytes: int = 0,
    assumed: int = ASSUMED_REGISTERS,
    blocks_per_sm: int | None = None,
) -> LaunchConfig:
    """The residency of blocks of `block` threads that use `shared_bytes` of shared memory each.

    blocks_per_sm: wanted instead of what the assumed registers give; fewer where registers or threads do not suffice.
    """
    if blocks_per_sm is None:
        blocks = max(gpu.blocks_per_sm(block, assumed, shared_bytes), 1)
        start = f"assumed {assumed} registers"
    else:
        blocks = max(min(blocks_per_sm, gpu.blocks_per_sm(block, 1, shared_bytes)), 1)
        start = f"{blocks_per_sm} blocks an SM wanted"
    registers = gpu.max_registers(block, blocks)
    reason = (
        f"{start}: {blocks} blocks of {block} threads an SM; relaxed to {registers} registers; "
        f"applied as launch bounds ({block}, {blocks}): {gpu.sms * blocks} blocks a wave"
    )
    return LaunchConfig(block, blocks, registers, gpu.sms * blocks, reason)
