"""What keeps the GPU back while calls are queued, and the limits of the GPU itself.

Takes microseconds, hands on for how many the GPU is busy; measures copies and multiply-adds by CUDA events.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from astitch.profiling.timing import Runner, time_batch

QUEUE_US = 3000.0
"""Work of the calls that are queued for the GPU time."""


# ---- CuPy and torch, on one stream: a kernel that waits ------------------------------------------------------------

SPIN_NAME = "astitch_spin"

SPIN = r"""
extern "C" __global__ void astitch_spin(unsigned long long ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - start < ns);
}
"""


@cache
def _spin() -> Any:
    import cupy

    return cupy.RawKernel(SPIN, SPIN_NAME)


def hold_cupy(us: float) -> float:
    """Keeps CuPy's stream, which is torch's as well, busy for that long."""
    import cupy

    _spin()((1,), (1,), (cupy.uint64(us * 1e3),))
    return us


def time_queued_cupy(call: Callable[[], Any], calls: int, host_us: float) -> float:
    """GPU microseconds of one of so many calls between two events.  host_us: what the host needs to queue one."""
    import cupy

    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    hold_cupy(1.5 * calls * host_us + 100)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) * 1e3 / calls


# ---- XLA: products ---------------------------------------------------------------------------------------------------

MOST_PLUGS = 8

PLUG_NAME = "astitch_plug"
"""In the name of XLA's program of products."""


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

    multiply.__name__ = PLUG_NAME
    products = jax.jit(multiply).lower(matrix).compile()

    def run() -> Any:
        return products(matrix)

    runner = Runner(PLUG_NAME, run, jax.block_until_ready, list)
    time_batch(runner, 1)
    return run, statistics.median(time_batch(runner, 1) for _ in range(5))


def hold_xla(us: float) -> float:
    """Keeps XLA's stream busy for that long, or for as long as MOST_PLUGS programs of products take."""
    plug, plug_us = _plug()
    plugs = max(1, min(MOST_PLUGS, math.ceil(us / plug_us)))
    for _ in range(plugs):
        plug()
    return plugs * plug_us


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
