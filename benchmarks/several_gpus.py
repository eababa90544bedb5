"""Training steps of a Transformer over several GPUs, timed with jax.jit alone and with astitch.enable().

`python -m benchmarks.several_gpus` prints a row for each sharding: milliseconds a step, planned memory, collectives,
losses of 20 steps.  Each sharding has a process of its own, which is stopped when its time is over.  Wants two GPUs of
one host or more, and JAX 0.11.2.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from astitch.profiling.timing import Runner, time_turns

SHARDINGS = ("data", "fsdp", "tensor")
WAYS = ("plain", "stitched")
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")


@dataclass(frozen=True, slots=True)
class Row:
    """One sharding.  Pairs are of jax.jit and of astitch.

    step_ms: median wall time of a step.  planned_mb: of one device, what is donated counted once.  collectives: how
    many of each kind.  first, last: losses of the first and the last step.  apart: the largest difference of two losses
    of one step, as a part of the loss.  rounding: the same of jax.jit and jax.jit, from a state with one
    other weight.  compile_s: seconds.
    """

    sharding: str
    kernels: int
    step_ms: tuple[float, float]
    planned_mb: tuple[float, float]
    collectives: tuple[dict[str, int], dict[str, int]]
    first: tuple[float, float]
    last: tuple[float, float]
    apart: float
    rounding: float
    compile_s: tuple[float, float]
    device: str

    def __str__(self) -> str:
        plain, stitched = self.step_ms
        one, other = self.collectives
        numbers = " ".join(f"{n} {kind}" for kind, n in sorted(one.items()))
        same = (
            "as plain" if one == other else " ".join(f"{n} {k}" for k, n in sorted(other.items()))
        )
        return (
            f"{self.sharding:8} {self.kernels:7} {plain:9.3f} {stitched:9.3f} {plain / stitched:6.3f} "
            f"{self.planned_mb[0]:9.1f} {self.planned_mb[1]:9.1f} {self.first[0]:7.4f} {self.last[0]:8.5f} "
            f"{self.last[1]:8.5f} {self.apart:8.1e} {self.rounding:8.1e}  {numbers}; {same}"
        )


HEAD = (
    f"{'sharding':8} {'kernels':>7} {'plain ms':>9} {'ours ms':>9} {'ratio':>6} {'plain MB':>9} {'ours MB':>9} "
    f"{'loss 1':>7} {'plain':>8} {'ours':>8} {'apart':>8} {'rounding':>8}  collectives: plain; ours"
)


def count_planned(compiled: Any) -> float:
    """MB of arguments, results and temporaries of one device, what is donated counted once."""
    memory = compiled.memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return float(memory.argument_size_in_bytes + results + memory.temp_size_in_bytes) / 1e6


def count_kinds(compiled: Any) -> dict[str, int]:
    """How many collectives of each kind a program has, a start and its end counted once."""
    text = compiled.as_text()
    counts = {kind: text.count(f" {kind}(") + text.count(f" {kind}-start(") for kind in KINDS}
    return {kind: n for kind, n in counts.items() if n}


def measure(sharding: str, options: argparse.Namespace) -> Row:
    """In this process."""
    import jax

    import astitch
    from benchmarks.sharded_transformer import SIZES, make_training

    if len(jax.devices()) < options.gpus:
        raise SystemExit(f"{len(jax.devices())} devices are here; --gpus {options.gpus} wants more")
    training = make_training(
        jax.devices()[: options.gpus], sharding, SIZES[options.size], options.dtype
    )
    state, words = training.make_state(), jax.device_put(training.make_words(), training.place)
    compiled: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    for way in WAYS:
        start = time.perf_counter()
        jax.clear_caches()
        with astitch.enabled() if way == "stitched" else astitch.disabled():
            compiled[way] = training.jit().lower(*training.shape()).compile()
        seconds[way] = time.perf_counter() - start
        print(f"{sharding}: {way} compiled in {seconds[way]:.1f} s", flush=True)

    def put(given: Any) -> Any:
        return jax.device_put(given, training.shardings)

    def train(way: str, given: Any) -> list[float]:
        now, losses = put(given), []
        for _ in range(options.steps):
            now, value = compiled[way](now, words)
            losses.append(value)
        return [float(value) for value in losses]

    losses = {way: train(way, state) for way in WAYS}
    near = train("plain", change_one_weight(state))
    print(f"{sharding}: {losses}", flush=True)
    times = time_turns(
        [make_runner(way, compiled[way], put(state), words) for way in WAYS],
        options.batches,
        options.budget,
    )
    kernels = [p.kernels for p in astitch.report().programs if training.fn.__name__ in p.name]
    return Row(
        sharding,
        max(kernels, default=0),
        _pair(lambda way: statistics.median(times[way]) / 1e3),
        _pair(lambda way: count_planned(compiled[way])),
        (count_kinds(compiled["plain"]), count_kinds(compiled["stitched"])),
        _pair(lambda way: losses[way][0]),
        _pair(lambda way: losses[way][-1]),
        find_apart(losses["plain"], losses["stitched"]),
        find_apart(losses["plain"], near),
        _pair(lambda way: seconds[way]),
        f"{options.gpus} x {jax.devices()[0].device_kind}, jax {jax.__version__}",
    )


def _pair(of: Callable[[str], float]) -> tuple[float, float]:
    return of(WAYS[0]), of(WAYS[1])


def make_runner(way: str, compiled: Any, state: Any, words: Any) -> Runner:
    """Each call is a step that goes on from the last one."""
    import jax

    held = [state]

    def call() -> Any:
        held[0], value = compiled(held[0], words)
        return value

    return Runner(way, call, lambda value: jax.block_until_ready((value, held[0])), list)


def change_one_weight(state: Any) -> Any:
    """The same state but for one weight, changed by the last bit of a bfloat16."""
    weights, *rest = state
    words = weights["words"].copy()
    words[3, 0] *= 1 + 2**-7
    return {**weights, "words": words}, *rest


def find_apart(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) / abs(a) for a, b in zip(one, other, strict=True))


def measure_apart(sharding: str, arguments: Sequence[str], seconds: float) -> Row | str:
    """In a process of its own, or what became of that."""
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **os.environ}
    command = [sys.executable, "-m", "benchmarks.several_gpus", *arguments, "--alone", sharding]
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return f"stopped after {seconds:.0f} s: {' | '.join(output.splitlines()[-3:])}"
    lines = output.splitlines()
    if process.returncode or not lines:
        return f"exit status {process.returncode}: {chr(10).join(lines[-15:])}"
    print("\n".join(line for line in lines[:-1] if line.startswith(sharding)), flush=True)
    values = json.loads(lines[-1])
    return Row(**{f.name: values[f.name] for f in fields(Row)})


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.several_gpus")
    parser.add_argument("shardings", nargs="*", metavar="SHARDING", help=", ".join(SHARDINGS))
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--size", default="full", choices=("full", "tiny"))
    parser.add_argument("--dtype", default="bfloat16", help="of products")
    parser.add_argument("--steps", type=int, default=20, help="whose losses are compared")
    parser.add_argument("--batches", type=int, default=15, help="of steps that are timed")
    parser.add_argument("--budget", type=float, default=8.0, help="seconds to time one sharding")
    parser.add_argument("--seconds", type=float, default=230.0, help="for all shardings together")
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--alone", choices=SHARDINGS, help="measure this one in this process")
    options = parser.parse_args(given)
    if options.alone:
        print(json.dumps(asdict(measure(options.alone, options))))
        return
    wanted = options.shardings or SHARDINGS
    if unknown := sorted(set(wanted) - set(SHARDINGS)):
        parser.error(f"no such sharding: {', '.join(unknown)}")
    end = time.monotonic() + options.seconds
    rest = [a for a in given if a not in options.shardings]
    found: dict[str, Row | str] = {}
    for number, sharding in enumerate(wanted):
        share = (end - time.monotonic()) / (len(wanted) - number)
        found[sharding] = measure_apart(sharding, rest, share)
    rows = [row for row in found.values() if isinstance(row, Row)]
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    if rows:
        print(f"{rows[0].device}; {options.size}, {options.dtype}")
    print(HEAD)
    for sharding, row in found.items():
        print(row if isinstance(row, Row) else f"{sharding:8} {row}")


if __name__ == "__main__":
    main()
