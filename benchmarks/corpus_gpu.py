"""The corpus on one GPU, beside XLA: `python -m benchmarks.corpus_gpu [NAME ...]`.

Prints one line a program: kernels, other steps, the largest error against XLA relative to the largest element.  Then
microseconds of a call by astitch and by XLA, both with arguments on the device, launches included.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from astitch.compile import compile_hlo
from astitch.device.gpu import Gpu, from_device
from astitch.run.executor import GpuExecutor, import_cupy
from tests.programs import PROGRAMS, Program, load

REPEATS = 7
CALLS = 20


def measure_us(call: Callable[[], Any], wait: Callable[[Any], Any]) -> float:
    """Median over REPEATS of the time of a call, CALLS of them in flight, in microseconds."""
    wait(call())
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(CALLS):
            result = call()
        wait(result)
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    return statistics.median(times)


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference over the largest finite element; infinite where only one is finite."""
    kind = np.complex128 if want.dtype.kind == "c" else np.float64
    g, w = got.astype(kind), want.astype(kind)
    same = (g == w) | (np.isnan(g) & np.isnan(w))
    finite = np.isfinite(g) & np.isfinite(w)
    if not np.all(same | finite):
        return float("inf")
    largest = np.abs(w[finite]).max(initial=0.0)
    return float(np.abs(g - w)[finite & ~same].max(initial=0.0) / max(largest, 1e-30))


def measure_program(program: Program, gpu: Gpu) -> str:
    """One line of the table."""
    cupy = import_cupy()
    inputs = program.make_inputs(0)
    compiled = compile_hlo(load(program.name), gpu=gpu).program
    executor = GpuExecutor(compiled)
    device_inputs = [cupy.asarray(a) for a in inputs] if all_known(inputs) else inputs
    got = [array.to_numpy() for array in executor.run(inputs)]
    want = program.run_jax(inputs)
    error = max((relative_error(g, w) for g, w in zip(got, want, strict=True)), default=0.0)
    ours = measure_us(
        lambda: executor.run(device_inputs), lambda _: cupy.cuda.Device().synchronize()
    )
    with jax.enable_x64(program.x64):
        placed = [jax.device_put(a) for a in inputs]
        jitted = jax.jit(program.fn)
        xla = measure_us(lambda: jitted(*placed), jax.block_until_ready)
    others = len(compiled.steps) - len(compiled.kernels)
    return (
        f"{program.name:32} {len(compiled.kernels):7} {others:6} {error:9.1e} "
        f"{ours:9.1f} {xla:9.1f} {xla / ours:6.2f}"
    )


def all_known(inputs: list[np.ndarray]) -> bool:
    """CuPy has no narrow floats of ml_dtypes: such arguments are copied in each call."""
    return all(a.dtype.kind in "biufc" and a.dtype.isbuiltin == 1 for a in inputs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus_gpu", description=__doc__)
    parser.add_argument("names", nargs="*", help="programs of tests/programs.py (default: all)")
    names = parser.parse_args().names or list(PROGRAMS)
    gpu = from_device()
    print(f"{gpu.name}, jax {jax.__version__} on {jax.default_backend()}")
    print(
        f"{'program':32} {'kernels':>7} {'others':>6} {'error':>9} "
        f"{'astitch us':>9} {'XLA us':>9} {'x':>6}"
    )
    for name in names:
        print(measure_program(PROGRAMS[name], gpu), flush=True)


if __name__ == "__main__":
    main()
