"""Clocks: wall time of pipelined calls, GPU time of queued calls, and the limits of the GPU itself.

Takes Runners, hands on microseconds.  XLA's stream takes no events of ours, so one clock serves all: the wall time of a
batch of calls issued back to back, whose end is waited for once; runners take turns, so that drifts hit all alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from astitch.profiling.timing import Runner, choose_calls, take_turns, time_batch

QUEUE_US = 3000.0
"""Work of the calls that are queued for the GPU time."""

MARGIN = 1.5
"""The GPU is held back this much longer than the host needs to queue the calls."""


def measure_gpu(
    runners: Sequence[Runner],
    wall_us: dict[str, float],
    batches: int,
    budget_s: float = math.inf,
) -> dict[str, float]:
    """GPU microseconds of a call by runner, the host's time hidden: the median over batches.

    The GPU is kept busy while the host queues the calls, which then run without gaps.
    """
    times: dict[str, list[float]] = {r.name: [] for r in runners if r.time_queued is not None}
    for _ in take_turns(batches, budget_s):
        for runner in runners:
            if runner.time_queued is not None:
                us = wall_us[runner.name]
                calls = choose_calls(us, QUEUE_US, MOST_XLA_CALLS)
                times[runner.name].append(runner.time_queued(calls, us))
    return {name: statistics.median(row) for name, row in times.items()}


# ---- CuPy and torch: a kernel that waits, then the calls between two events -----------------------------------------

SPIN_NAME = "astitch_spin"

SPIN = r"""
extern "C" __global__ void astitch_spin(unsigned long long ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - start < ns);
}
"""

TORCH_CYCLES_PER_US = 2000
"""Of torch.cuda._sleep, at an SM clock of 2 GHz; at a lower clock the wait is longer."""


@cache
def _spin() -> Any:
    import cupy

    return cupy.RawKernel(SPIN, SPIN_NAME)


def hold_cupy(us: float = QUEUE_US) -> None:
    """Keeps CuPy's stream busy for that long."""
    import cupy

    _spin()((1,), (1,), (cupy.uint64(us * 1e3),))


def time_queued_cupy(call: Callable[[], Any], calls: int, host_us: float) -> float:
    import cupy

    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    hold_cupy(MARGIN * calls * host_us + 100)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) * 1e3 / calls


def time_queued_torch(call: Callable[[], Any], calls: int, host_us: float) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int((MARGIN * calls * host_us + 100) * TORCH_CYCLES_PER_US))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / calls


# ---- XLA: products before the calls, less the same products alone ----------------------------------------------------

MOST_XLA_CALLS = 20
"""XLA lets 32 programs be in flight; the products count too."""

MOST_PLUGS = 8


@cache
def _plug() -> tuple[Callable[[], Any], float]:
    """A program of products without input from the host, and its microseconds."""
    import jax
    import jax.numpy as jnp

    matrix = jnp.zeros((4096, 4096), jnp.bfloat16)

    def multiply(a: Any) -> Any:
        b = a
        for _ in range(16):
            b = a @ b
        return b

    products = jax.jit(multiply).lower(matrix).compile()

    def run() -> Any:
        return products(matrix)

    runner = Runner("plug", run, jax.block_until_ready, list)
    time_batch(runner, 1)
    return run, statistics.median(time_batch(runner, 1) for _ in range(5))


def hold_xla() -> None:
    """Keeps XLA's stream busy for some milliseconds."""
    plug, _ = _plug()
    plug()


def time_queued_xla(call: Callable[[], Any], calls: int, host_us: float) -> float:
    import jax

    plug, plug_us = _plug()
    plugs = max(1, min(MOST_PLUGS, round(MARGIN * calls * host_us / plug_us + 0.5)))

    def time_us(count: int) -> float:
        start = time.perf_counter()
        results = [plug() for _ in range(plugs)][-1]
        for _ in range(count):
            results = call()
        jax.block_until_ready(results)
        return (time.perf_counter() - start) * 1e6

    return max(0.0, time_us(calls) - time_us(0)) / calls


# ---- the GPU's limits --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """Measured: copies of 1 GiB and of 8 MiB (in the L2), bytes read plus written, 1e9 a second; f32 fused
    multiply-adds, two operations each, 1e9 a second.
    """

    copy_gbs: float
    l2_copy_gbs: float
    fma_gflops: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)


FMA = r"""
extern "C" __global__ void fma_chain(float* out, float a, int steps) {
    float x[8];
    for (int i = 0; i < 8; ++i) x[i] = a * i + threadIdx.x;
    for (int s = 0; s < steps; ++s) {
        #pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = fmaf(x[i], a, 0.5f);
    }
    float sum = 0;
    for (int i = 0; i < 8; ++i) sum += x[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
"""


def measure_limits() -> Limits:
    """By CuPy on the current device, each the median of 9 batches."""
    import cupy

    stream = cupy.cuda.Stream.null

    def median_us(call: Callable[[], Any], calls: int) -> float:
        call()
        return statistics.median(time_queued_cupy(call, calls, 20.0) for _ in range(9))

    def copy_gbs(count: int, calls: int) -> float:
        a, b = cupy.zeros(count, cupy.uint8), cupy.empty(count, cupy.uint8)
        us = median_us(lambda: b.data.copy_from_device_async(a.data, count, stream), calls)
        return 2 * count / us / 1e3

    blocks = 8 * cupy.cuda.Device().attributes["MultiProcessorCount"]
    threads, steps = 512, 4096
    chain = cupy.RawKernel(FMA, "fma_chain")
    out = cupy.empty(blocks * threads, cupy.float32)
    arguments = (out, cupy.float32(0.999), cupy.int32(steps))
    fma_us = median_us(lambda: chain((blocks,), (threads,), arguments), 3)
    operations = blocks * threads * steps * 8 * 2
    limits = Limits(copy_gbs(1 << 30, 5), copy_gbs(8 << 20, 100), operations / fma_us / 1e3)
    cupy.get_default_memory_pool().free_all_blocks()
    return limits
