"""What the planner knows of a device: a Gpu, from a preset or from the device that CuPy sees.

Takes a preset's name or a device number, hands on a frozen Gpu.  The idea: everything that differs
between generations is a number here, and residency is computed with CUDA's own occupancy rule.
"""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import Any

from astitch.device.cuda_driver import read_attributes
from astitch.errors import AstitchError

REGISTER_UNIT = 256
"""Registers are allocated to a warp in units of this many (cuda_occupancy.h, since Kepler)."""

SCHEDULERS = 4
"""Sub-partitions of an SM, each with its own quarter of the registers (same source)."""

ACCESS_BYTES = 16
"""The widest access of a kernel's thread: what the address of an argument must be a multiple of."""

MOST_BLOCKS = 2**31 - 1
"""The most blocks of one launch (CUDA C++ Programming Guide, technical specifications: x-dimension of a grid)."""

COPY_SHARE_OF_PEAK = 0.9
"""A copy reaches this share of the data sheet's bandwidth: measured 3,015 of 3,352 GB/s on an H100 and 4,300 of 4,800
on an H200; assumed for the devices that were not measured."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device, or the rule of one.

    Units are in the names: bytes, us (microseconds), ns, ghz; gbs is 1e9 bytes a second.

    arch: the architecture as NVRTC calls it, such as sm_90.
    shared_per_block_bytes: most dynamic + static shared memory of a block (opt-in).
    shared_reserved_bytes: taken by the driver for each block.  shared_unit_bytes: granularity of allocation.
    bandwidth_gbs: read plus written by a large copy.
    launch_us: one more kernel in a CUDA graph.  barrier_us: one barrier over the grid.
    link_gbs: that it sends to GPUs of the same host at most, while it receives as much.

    For projected_latency.py:
    barrier_block_us: what each block beyond one an SM adds to a barrier.
    l2_gbs: read from the L2 by all SMs.  dram_latency_ns, l2_latency_ns: of a load while others are on their way.
    special_lanes (ex2, rcp ...), conversion_lanes, shuffle_lanes, load_lanes (load/store unit), fp64_lanes,
    fp32_lanes_per_sm: threads that an SM serves in a clock.
    """

    name: str
    arch: str
    sms: int
    max_threads_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    shared_per_sm_bytes: int
    shared_per_block_bytes: int
    shared_reserved_bytes: int
    shared_unit_bytes: int
    l2_bytes: int
    bandwidth_gbs: float
    launch_us: float
    barrier_us: float
    link_gbs: float
    clock_ghz: float
    fp32_lanes_per_sm: int
    l2_gbs: float
    dram_latency_ns: float
    l2_latency_ns: float
    fp64_lanes: int
    conversion_lanes: int = 64
    special_lanes: int = 16
    shuffle_lanes: int = 32
    load_lanes: int = 32
    barrier_block_us: float = 0.0015
    warp_size: int = 32
    max_threads_per_block: int = 1024
    max_registers_per_thread: int = 255

    def barrier_cost_us(self, blocks: int) -> float:
        """One barrier over a grid of `blocks`."""
        return self.barrier_us + self.barrier_block_us * max(blocks - self.sms, 0)

    def stream_us(self, read_bytes: float, written_bytes: float) -> float:
        """The least time of traffic with DRAM.  Writes, and as many bytes of reads, run at the speed of a copy.  The
        other reads run at the data sheet's speed, since the memory need not turn round."""
        rest = abs(read_bytes - written_bytes)
        paired = read_bytes + written_bytes - rest
        return (paired + rest * COPY_SHARE_OF_PEAK) / self.bandwidth_gbs / 1e3

    @property
    def compute_capability(self) -> int:
        """Ten times CUDA's: 90 for an H100."""
        return int(self.arch.removeprefix("sm_"))

    @property
    def fp32_gflops(self) -> float:
        """Peak of fused multiply-adds, two operations each, 1e9 a second."""
        return self.sms * self.fp32_lanes_per_sm * 2 * self.clock_ghz

    def blocks_per_sm(self, block: int, registers: int, shared_bytes: int) -> int:
        """How many blocks fit an SM at once: CUDA's occupancy rule.  0: not even one can be launched.

        block: threads of a block.  registers: of a thread, as the compiler reports them.
        shared_bytes: static plus dynamic shared memory of a block, without what the driver reserves.
        """
        if not 0 < block <= self.max_threads_per_block or registers > self.max_registers_per_thread:
            return 0
        if shared_bytes > self.shared_per_block_bytes:
            return 0
        warps = -(-block // self.warp_size)
        by_threads = self.max_threads_per_sm // self.warp_size // warps
        warp_registers = _round_up(max(registers, 1) * self.warp_size, REGISTER_UNIT)
        if warp_registers * _round_up(warps, SCHEDULERS) > self.registers_per_sm:
            return 0
        by_registers = self.registers_per_sm // SCHEDULERS // warp_registers * SCHEDULERS // warps
        block_shared = _round_up(shared_bytes + self.shared_reserved_bytes, self.shared_unit_bytes)
        by_shared = (
            self.shared_per_sm_bytes // block_shared if block_shared else self.max_blocks_per_sm
        )
        return min(self.max_blocks_per_sm, by_threads, by_registers, by_shared)

    def wave(self, block: int, registers: int, shared_bytes: int) -> int:
        """Blocks that are resident on the whole device at once: the most that a global barrier may join."""
        return self.sms * self.blocks_per_sm(block, registers, shared_bytes)

    def max_registers(self, block: int, blocks_per_sm: int) -> int:
        """Most registers a thread may use so that `blocks_per_sm` blocks of `block` threads fit an SM.

        0: they never do.
        """
        step = REGISTER_UNIT // self.warp_size
        for registers in range(_round_up(self.max_registers_per_thread, step), 0, -step):
            bounded = min(registers, self.max_registers_per_thread)
            if self.blocks_per_sm(block, bounded, 0) >= blocks_per_sm:
                return bounded
        return 0


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


_KB = 1024
_MB = 1024 * 1024

# Sources.  Limits per SM and block: CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability", and cuda_occupancy.h for the units (256 bytes of shared memory on 7.x, 128 from 8.0 on,
# where the driver also reserves 1 KB a block).  SMs, L2, bandwidth, boost clock, fp32 lanes: NVIDIA's
# architecture whitepapers and data sheets (V100, Turing, A100, H100, H200, Blackwell).
# launch_us: 0.8 measured on an H100 inside a CUDA graph; assumed for the others.
# barrier_us: V100 2.6 is the AStitch paper's (2.5 to 2.7); H100 1.2 measured (1.0 to 1.4 at 132 x 1024
# threads; 2.0 for a launch with one barrier less 0.8 for the launch), assumed for H200 and B200; T4 and
# A100 lie between, not measured.  barrier_block_us: H100 1.2 us at 132 blocks, 1.45 at 264, 2.6 at 1056.
# link_gbs: the data sheets' NVLink, half of what they say for both directions; T4: PCIe 3.0 x16.
# Lanes an SM and clock: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions".
# l2_gbs and latencies: V100 and T4 from Jia et al., arXiv 1804.06826 and 1903.07486 (L2 2,155 and 1,270 GB/s); the
# others are assumed after published microbenchmarks and fitted to measured kernels on the H100 only.
# fmt: off
PRESETS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(  # Tesla V100 SXM2 16 GB, peak 900 GB/s
            name="v100", arch="sm_70", sms=80, max_threads_per_sm=2048, max_blocks_per_sm=32,
            registers_per_sm=65536, shared_per_sm_bytes=96 * _KB, shared_per_block_bytes=96 * _KB,
            shared_reserved_bytes=0, shared_unit_bytes=256, l2_bytes=6 * _MB,
            bandwidth_gbs=900 * COPY_SHARE_OF_PEAK, launch_us=0.8, barrier_us=2.6, link_gbs=150, clock_ghz=1.53,
            fp32_lanes_per_sm=64, l2_gbs=2155, dram_latency_ns=550, l2_latency_ns=190, fp64_lanes=32,
            conversion_lanes=16,
        ),
        Gpu(  # T4, peak 320 GB/s
            name="t4", arch="sm_75", sms=40, max_threads_per_sm=1024, max_blocks_per_sm=16,
            registers_per_sm=65536, shared_per_sm_bytes=64 * _KB, shared_per_block_bytes=64 * _KB,
            shared_reserved_bytes=0, shared_unit_bytes=256, l2_bytes=4 * _MB,
            bandwidth_gbs=320 * COPY_SHARE_OF_PEAK, launch_us=0.8, barrier_us=2.0, link_gbs=16, clock_ghz=1.59,
            fp32_lanes_per_sm=64, l2_gbs=1270, dram_latency_ns=550, l2_latency_ns=190, fp64_lanes=2,
            conversion_lanes=16, load_lanes=16,
        ),
        Gpu(  # A100 SXM4 80 GB, peak 2,039 GB/s
            name="a100", arch="sm_80", sms=108, max_threads_per_sm=2048, max_blocks_per_sm=32,
            registers_per_sm=65536, shared_per_sm_bytes=164 * _KB, shared_per_block_bytes=163 * _KB,
            shared_reserved_bytes=_KB, shared_unit_bytes=128, l2_bytes=40 * _MB,
            bandwidth_gbs=2039 * COPY_SHARE_OF_PEAK, launch_us=0.8, barrier_us=1.6, link_gbs=300, clock_ghz=1.41,
            fp32_lanes_per_sm=64, l2_gbs=4500, dram_latency_ns=600, l2_latency_ns=200, fp64_lanes=32,
        ),
        Gpu(  # H100 SXM5 80 GB HBM3; bandwidth: driver copy, measured; clock: measured under load
            name="h100", arch="sm_90", sms=132, max_threads_per_sm=2048, max_blocks_per_sm=32,
            registers_per_sm=65536, shared_per_sm_bytes=228 * _KB, shared_per_block_bytes=227 * _KB,
            shared_reserved_bytes=_KB, shared_unit_bytes=128, l2_bytes=50 * _MB,
            bandwidth_gbs=3015, launch_us=0.8, barrier_us=1.2, link_gbs=450, clock_ghz=1.98, fp32_lanes_per_sm=128,
            l2_gbs=6000, dram_latency_ns=450, l2_latency_ns=150, fp64_lanes=64,
        ),
        Gpu(  # H200 SXM5 141 GB HBM3e; bandwidth: copy, measured; L2: as the driver reports it
            name="h200", arch="sm_90", sms=132, max_threads_per_sm=2048, max_blocks_per_sm=32,
            registers_per_sm=65536, shared_per_sm_bytes=228 * _KB, shared_per_block_bytes=227 * _KB,
            shared_reserved_bytes=_KB, shared_unit_bytes=128, l2_bytes=60 * _MB,
            bandwidth_gbs=4300, launch_us=0.8, barrier_us=1.2, link_gbs=450, clock_ghz=1.98, fp32_lanes_per_sm=128,
            l2_gbs=6000, dram_latency_ns=450, l2_latency_ns=150, fp64_lanes=64,
        ),
        Gpu(  # B200 SXM 180 GB HBM3e, peak 8,000 GB/s
            name="b200", arch="sm_100", sms=148, max_threads_per_sm=2048, max_blocks_per_sm=32,
            registers_per_sm=65536, shared_per_sm_bytes=228 * _KB, shared_per_block_bytes=227 * _KB,
            shared_reserved_bytes=_KB, shared_unit_bytes=128, l2_bytes=126 * _MB,
            bandwidth_gbs=8000 * COPY_SHARE_OF_PEAK, launch_us=0.8, barrier_us=1.2, link_gbs=900, clock_ghz=1.965,
            fp32_lanes_per_sm=128, l2_gbs=8000, dram_latency_ns=750, l2_latency_ns=300, fp64_lanes=64,
        ),
    )
}
# fmt: on
# The emulated device: an H100 with few SMs, so that as many blocks as a global barrier may join are affordable.
PRESETS["host"] = dataclasses.replace(PRESETS["h100"], name="host", sms=8)


def preset(name: str) -> Gpu:
    """The Gpu of a preset: v100, t4, a100, h100, h200, b200 or host.  Raises AstitchError for another name."""
    try:
        return PRESETS[name]
    except KeyError:
        raise AstitchError(
            f"no GPU preset {name!r}\n  choose one of {', '.join(PRESETS)}, "
            "or call astitch.device.gpu.from_device() on a machine with a GPU"
        ) from None


# CUdevice_attribute of cuda.h.
_ATTRIBUTE = {
    "warp_size": 10,
    "clock_khz": 13,
    "sms": 16,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "max_threads_per_sm": 39,
    "max_threads_per_block": 1,
    "major": 75,
    "minor": 76,
    "shared_per_sm_bytes": 81,
    "registers_per_sm": 82,
    "shared_per_block_bytes": 97,
    "max_blocks_per_sm": 106,
    "shared_reserved_bytes": 111,
}


def from_device(device: int = 0, *, measure: bool = False) -> Gpu:
    """The Gpu of CUDA device number `device`, as the driver describes it.

    The limits are the device's own.  What no attribute says (measured bandwidth, launch and barrier cost) comes from
    the preset of the same device.  Without one it comes from the memory's data and the nearest preset.
    measure: time a copy for the bandwidth instead (0.1 s, 1 GiB of the device's memory), which needs CuPy.
    Raises AstitchError without the device.
    """
    try:
        has = read_attributes(device, _ATTRIBUTE)
    except AstitchError as error:
        raise AstitchError(
            f"CUDA device {device} cannot be asked: {error}\n"
            f"  check nvidia-smi, or name a preset: {', '.join(PRESETS)}"
        ) from None
    major, minor = has.pop("major"), has.pop("minor")
    clock_ghz = has.pop("clock_khz") / 1e6
    peak_gbs = 2 * has.pop("memory_clock_khz") * 1e3 * has.pop("memory_bus_bits") / 8 / 1e9
    copy_gbs = peak_gbs * COPY_SHARE_OF_PEAK
    arch = f"sm_{major}{minor}"
    relative = _nearest_preset(arch, has["sms"], copy_gbs)
    same = (relative.arch, relative.sms) == (arch, has["sms"]) and (
        abs(relative.bandwidth_gbs / copy_gbs - 1) < 0.1
    )
    bandwidth_gbs = relative.bandwidth_gbs if same else round(copy_gbs, 1)
    return dataclasses.replace(
        relative,
        name=relative.name if same else f"{arch}x{has['sms']}",
        arch=arch,
        shared_unit_bytes=256 if major < 8 else 128,
        bandwidth_gbs=round(measure_copy_gbs(device), 1) if measure else bandwidth_gbs,
        clock_ghz=clock_ghz,
        fp32_lanes_per_sm=64 if (major, minor) in ((7, 0), (7, 2), (7, 5), (8, 0)) else 128,
        **has,
    )


def measure_copy_gbs(device: int = 0) -> float:
    """Bytes read plus written by a copy of 512 MiB on a device, 1e9 a second: the best of five.  Needs CuPy."""
    cupy: Any = importlib.import_module("cupy")
    with cupy.cuda.Device(device):
        source = cupy.zeros(1 << 29, cupy.uint8)
        target = cupy.empty_like(source)
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        best_ms = float("inf")
        for _ in range(5):
            start.record()
            target.data.copy_from_device_async(source.data, source.nbytes)
            end.record()
            end.synchronize()
            best_ms = min(best_ms, float(cupy.cuda.get_elapsed_time(start, end)))
        return 2 * int(source.nbytes) / best_ms / 1e6


def _nearest_preset(arch: str, sms: int, copy_gbs: float) -> Gpu:
    """The preset most like a device: by architecture, then by SM count, then by bandwidth."""

    def distance(gpu: Gpu) -> tuple[int, int, float]:
        generation = abs(gpu.compute_capability - int(arch[3:]))
        return generation, abs(gpu.sms - sms), abs(gpu.bandwidth_gbs - copy_gbs)

    return min((gpu for gpu in PRESETS.values() if gpu.name != "host"), key=distance)
