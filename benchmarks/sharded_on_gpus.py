"""Programs over several GPUs as users write them (benchmarks.sharded_programs), timed alone and with astitch.enable().

`python -m benchmarks.sharded_on_gpus [NAME ...]` prints a row for each program: microseconds of a call by jax.jit and
with kernels, planned memory of one device in MB, and the largest difference of a result, norm over norm.  Arguments are
small random numbers; where these give NaN, as for an optimizer's second moments, all are positive.  Nothing is donated,
so that calls can be repeated.  Programs are compiled beside each other.  Wants two GPUs of one host or more, and JAX
0.11.2.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from astitch.profiling.timing import Runner, time_turns
from benchmarks.modern_gpu import find_error, list_floats
from benchmarks.results import describe
from benchmarks.several_gpus import WAYS, count_planned
from benchmarks.sharded_programs import PROGRAMS, Sharded

HEAD = f"{'program':22} {'plain us':>9} {'ours us':>9} {'ratio':>6} {'plain MB':>9} {'ours MB':>9} {'apart':>8}"


@dataclass(frozen=True, slots=True)
class Row:
    """One program.  Pairs are of jax.jit and of astitch.

    us: median wall time of a call.  planned_mb: of one device.  apart: of floats, the largest norm of a difference over
    the norm of jax.jit's result; infinite where there is a NaN.
    """

    program: str
    us: tuple[float, float]
    planned_mb: tuple[float, float]
    apart: float

    def __str__(self) -> str:
        plain, stitched = self.us
        return (
            f"{self.program:22} {plain:9.0f} {stitched:9.0f} {plain / stitched:6.3f} "
            f"{self.planned_mb[0]:9.1f} {self.planned_mb[1]:9.1f} {self.apart:8.1e}"
        )


def compile_program(program: Sharded, way: str) -> Any:
    """way: one of WAYS."""
    import jax

    import astitch

    # A function of its own: what is compiled for one way is no answer for the other.
    @functools.wraps(program.fn)
    def fn(*arguments: Any) -> Any:
        return program.fn(*arguments)

    options = {} if program.results is None else {"out_shardings": program.results}
    with astitch.enabled() if way == "stitched" else astitch.disabled():
        return jax.jit(fn, **options).lower(*program.arguments).compile()


def draw_arguments(program: Sharded, *, signed: bool) -> Any:
    """Small random numbers on the devices; integers are below 8, and a count is 1."""
    import jax

    random = np.random.default_rng(0)

    def draw(a: Any) -> Any:
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            return jax.device_put(jax.random.key(0), a.sharding)
        if jax.dtypes.issubdtype(a.dtype, np.integer):
            values = random.integers(0, 8, a.shape) if a.shape else np.ones(())
        else:
            values = 0.02 * random.standard_normal(a.shape)
            values = values if signed else abs(values)
        return jax.device_put(values.astype(a.dtype), a.sharding)

    return jax.tree.map(draw, program.arguments)


def measure(name: str, program: Sharded, compiled: Sequence[Any], options: Any) -> Row:
    """compiled: for each of WAYS."""
    import jax

    arguments = draw_arguments(program, signed=True)
    results = [fn(*arguments) for fn in compiled]
    if any(np.isnan(a).any() for a in list_floats(results[0])):
        arguments = draw_arguments(program, signed=False)
        results = [fn(*arguments) for fn in compiled]
    runners = [
        Runner(way, functools.partial(fn, *arguments), jax.block_until_ready, list)
        for way, fn in zip(WAYS, compiled, strict=True)
    ]
    times = time_turns(runners, options.batches, options.budget)
    plain, stitched = (statistics.median(times[way]) for way in WAYS)
    one, other = map(count_planned, compiled)
    return Row(name, (plain, stitched), (one, other), find_error(results[1], results[0]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded_on_gpus")
    parser.add_argument("names", nargs="*", help="whose name contains one of these; or all")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--batches", type=int, default=15, help="of calls that are timed")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds to time one program")
    parser.add_argument("--workers", type=int, default=8, help="programs compiled at once")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    devices = jax.devices()[: options.gpus]
    if len(devices) < options.gpus:
        raise SystemExit(f"{len(devices)} devices are here; --gpus {options.gpus} wants more")
    names = [n for n in PROGRAMS if not options.names or any(part in n for part in options.names)]
    programs = {name: PROGRAMS[name](devices) for name in names}
    start = time.perf_counter()
    with ThreadPoolExecutor(options.workers) as pool:
        found = {
            (name, way): pool.submit(compile_program, programs[name], way)
            for name in names
            for way in WAYS
        }
        compiled = {key: future.exception() or future.result() for key, future in found.items()}
    print(f"{len(devices)} x {devices[0].device_kind}, jax {jax.__version__}")
    print(f"compiled in {time.perf_counter() - start:.0f} s\n{HEAD}", flush=True)
    for name in names:
        pair = [compiled[name, way] for way in WAYS]
        errors = [error for error in pair if isinstance(error, BaseException)]
        row = None if errors else measure(name, programs[name], pair, options)
        print(row or f"{name:22} {describe(errors[0])}", flush=True)


if __name__ == "__main__":
    main()
