"""The host's time for one call, in steady state: jax.jit beside astitch.jit through XLA and through CuPy.

`python -m benchmarks.host_overhead [--json FILE]` on a GPU.  One function takes the tanh of the sum of its arguments,
64 numbers each, so the GPU has next to nothing to do; the other is small layers on each other, a product and a softmax
each.  So there are many launches, which CuPy makes one by one ("steps") or as a CUDA graph ("executor"). The engines
take turns, and what is told is the middle one of their rounds.
idle: the device has finished the call before; queued: the calls follow each other; kept: the same, and the caller keeps
the results of the last calls, so that addresses change.
"""

from __future__ import annotations

import argparse
import functools
import json
import operator
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import astitch
from astitch.errors import EngineUnavailable

ARGUMENTS = (1, 50, 400)
CALLS = 400
QUEUE = 20
"""Calls in flight: few enough that no queue of the driver's fills up, which the host would wait for."""

ROUNDS = 20
LAYERS, WIDTH = 16, 32

ENGINES = ("jax.jit", "xla", "executor", "steps")


@dataclass(frozen=True, slots=True)
class Overhead:
    """Microseconds of the host for a call, medians."""

    engine: str
    function: str
    arguments: int
    idle_us: float
    queued_us: float
    kept_us: float


def add_up(*arrays: jax.Array) -> jax.Array:
    """Of one array it is no copy, either."""
    return jax.numpy.tanh(functools.reduce(operator.add, arrays))


def stack_layers(x: jax.Array, *weights: jax.Array) -> jax.Array:
    for weight in weights:
        x = jax.nn.softmax(x @ weight) * WIDTH
    return x


def compile_for(engine: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function for an engine: "jax.jit", or one of astitch's.  Raises EngineUnavailable."""
    if engine == "jax.jit":
        return jax.jit(function)
    return astitch.jit(function, engine="executor" if engine == "steps" else engine)


@contextmanager
def graphs_for(engine: str) -> Iterator[None]:
    """Programs that are made inside have CUDA graphs, but for "steps"."""
    before = os.environ.get("ASTITCH_GRAPHS")
    os.environ["ASTITCH_GRAPHS"] = "0" if engine == "steps" else "1"
    try:
        yield
    finally:
        os.environ.pop("ASTITCH_GRAPHS")
        if before is not None:
            os.environ["ASTITCH_GRAPHS"] = before


def measure(fn: Callable[..., Any], arrays: Sequence[jax.Array], calls: int) -> list[float]:
    """Median microseconds of three calls.  One is on an idle device, one among QUEUE that follow each other, and one
    finds the results of those before kept."""
    for _ in range(3):
        jax.block_until_ready(fn(*arrays))
    idle = []
    for _ in range(calls):
        start = time.perf_counter()
        result = fn(*arrays)
        idle.append(time.perf_counter() - start)
        jax.block_until_ready(result)
    times = [statistics.median(idle)]
    for keeps in (False, True):
        queued = []
        for _ in range(max(calls // QUEUE, 1)):
            kept = []
            start = time.perf_counter()
            for _ in range(QUEUE):
                result = fn(*arrays)
                if keeps:
                    kept.append(result)
            queued.append((time.perf_counter() - start) / QUEUE)
            jax.block_until_ready(result)
        times.append(statistics.median(queued))
    return [1e6 * seconds for seconds in times]


def make_cases(counts: Sequence[int]) -> list[tuple[str, Callable[..., Any], list[jax.Array], Any]]:
    """Name, function, arguments and result of what is measured."""
    random = np.random.default_rng(0)
    cases: list[tuple[str, Callable[..., Any], list[jax.Array], Any]] = []
    for count in counts:
        arrays = [jax.device_put(random.normal(size=64).astype(np.float32)) for _ in range(count)]
        cases.append(
            ("sum", add_up, arrays, np.tanh(np.sum([np.asarray(a, "f8") for a in arrays], axis=0)))
        )
    x, *weights = (random.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(LAYERS + 1))
    # A softmax of large numbers is steep: products of few bits are another function.
    small = [jax.device_put(a) for a in (x, *(w / WIDTH for w in weights))]
    want = x.astype(np.float64)
    for weight in small[1:]:
        powers = np.exp(want @ np.asarray(weight, np.float64))
        want = WIDTH * powers / powers.sum(axis=1, keepdims=True)
    cases.append(("layers", stack_layers, small, want))
    return cases


def measure_all(
    engines: Sequence[str], counts: Sequence[int], calls: int
) -> tuple[list[Overhead], dict[str, str]]:
    """The rows, and why engines are missing."""
    rows, missing = [], {}
    for name, function, arrays, want in make_cases(counts):
        compiled: dict[str, Callable[..., Any]] = {}
        for engine in engines:
            if engine == "steps" and name != "layers":
                continue
            try:
                with graphs_for(engine):
                    fn = compile_for(engine, function)
                    np.testing.assert_allclose(np.asarray(fn(*arrays)), want, rtol=1e-2, atol=1e-2)
            except EngineUnavailable as error:
                missing[engine] = str(error).splitlines()[0]
            else:
                compiled[engine] = fn
        count = min(ROUNDS, calls)
        rounds = [
            {engine: measure(fn, arrays, -(-calls // count)) for engine, fn in compiled.items()}
            for _ in range(count)
        ]
        for engine in compiled:
            times = zip(*(found[engine] for found in rounds), strict=True)
            rows.append(Overhead(engine, name, len(arrays), *map(statistics.median, times)))
    return rows, missing


def format_table(rows: Sequence[Overhead], missing: dict[str, str]) -> str:
    """One line for each function, number of arguments and engine."""
    lines = [
        f"{'function':8}{'arguments':>10}  {'engine':10}{'idle us':>9}{'queued us':>11}{'kept us':>9}"
    ]
    lines += [
        f"{row.function:8}{row.arguments:10}  {row.engine:10}"
        f"{row.idle_us:9.1f}{row.queued_us:11.1f}{row.kept_us:9.1f}"
        for row in rows
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
