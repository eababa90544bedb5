"""The host's time for one call, in steady state: jax.jit beside astitch.jit through XLA and through CuPy.

`python -m benchmarks.host_overhead [--json FILE]` on a GPU.  The function adds up its arguments, 64 numbers each, so
the GPU has next to nothing to do.  idle: the device has finished the call before; queued: the calls follow each other.
"""

from __future__ import annotations

import argparse
import functools
import json
import operator
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import astitch
from astitch.errors import EngineUnavailable

ARGUMENTS = (1, 50, 400)
CALLS = 200
QUEUE = 20
"""Calls in flight: few enough that no queue of the driver's fills up, which the host would wait for."""

ENGINES = ("jax.jit", "xla", "executor")


@dataclass(frozen=True, slots=True)
class Overhead:
    """Microseconds of the host for a call, medians."""

    engine: str
    arguments: int
    idle_us: float
    queued_us: float


def add_up(*arrays: jax.Array) -> jax.Array:
    return functools.reduce(operator.add, arrays)


def compile_for(engine: str) -> Callable[..., Any]:
    """add_up for an engine: "jax.jit", or one of astitch's.  Raises EngineUnavailable."""
    if engine == "jax.jit":
        return jax.jit(add_up)
    return astitch.jit(add_up, engine=engine)


def measure(fn: Callable[..., Any], arrays: Sequence[jax.Array], calls: int) -> tuple[float, float]:
    """Median microseconds of a call on an idle device, and of one among QUEUE that follow each other."""
    for _ in range(3):
        jax.block_until_ready(fn(*arrays))
    idle = []
    for _ in range(calls):
        start = time.perf_counter()
        result = fn(*arrays)
        idle.append(time.perf_counter() - start)
        jax.block_until_ready(result)
    queued = []
    for _ in range(max(calls // QUEUE, 3)):
        start = time.perf_counter()
        for _ in range(QUEUE):
            result = fn(*arrays)
        queued.append((time.perf_counter() - start) / QUEUE)
        jax.block_until_ready(result)
    return statistics.median(idle) * 1e6, statistics.median(queued) * 1e6


def measure_all(
    engines: Sequence[str], counts: Sequence[int], calls: int
) -> tuple[list[Overhead], dict[str, str]]:
    """The rows, and why engines are missing."""
    rows, missing = [], {}
    random = np.random.default_rng(0)
    for count in counts:
        arrays = [jax.device_put(random.normal(size=64).astype(np.float32)) for _ in range(count)]
        want = np.sum([np.asarray(a, np.float64) for a in arrays], axis=0)
        for engine in engines:
            try:
                fn = compile_for(engine)
                np.testing.assert_allclose(np.asarray(fn(*arrays)), want, rtol=1e-3, atol=1e-3)
            except EngineUnavailable as error:
                missing[engine] = str(error).splitlines()[0]
                continue
            rows.append(Overhead(engine, count, *measure(fn, arrays, calls)))
    return rows, missing


def format_table(rows: Sequence[Overhead], missing: dict[str, str]) -> str:
    """One line for each engine and number of arguments."""
    lines = [f"{'arguments':>9}  {'engine':10}{'idle us':>9}{'queued us':>11}"]
    lines += [
        f"{row.arguments:9}  {row.engine:10}{row.idle_us:9.1f}{row.queued_us:11.1f}" for row in rows
    ]
    lines += [f"{engine}: {reason}" for engine, reason in missing.items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--arguments", type=int, nargs="+", default=ARGUMENTS)
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=(*ENGINES, "host"))
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args(arguments)
    rows, missing = measure_all(options.engines, options.arguments, options.calls)
    print(format_table(rows, missing))
    if options.json:
        device = jax.devices()[0].device_kind
        found = {"device": device, "jax": jax.__version__, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
