"""The benchmark of whole models: the paper's five workloads, inference and training, by XLA and astitch in one process.

`python -m benchmarks.models [NAME ...] --json FILE` measures and merges into FILE, entry by entry (in pieces:
`--resume --seconds 500`); `--report FILE` prints it; `--size tiny --check` only compares results, also without a GPU.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from astitch.api import engines
from astitch.api.stages import CompiledForXla
from astitch.profiling.kernel_trace import MEMORY, record_kernels
from astitch.profiling.report import KINDS
from astitch.profiling.stitched import plan_bytes
from astitch.profiling.timing import Runner, choose_calls, measure_wall, time_batch
from benchmarks import kernels, peers
from benchmarks.results import Run, describe, format_run, geometric_mean
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.adam import State, start_training

SCHEMA = "models 1"
SIDES = ("xla", "astitch")
MODES = ("infer", "train")

PARAMETER_KEY = 1
BATCH_KEY = 2

SLOW_US = 2e6
"""A call that takes longer is timed alone, a few times, in place of in turns."""

HOST_CALLS = 20
TRACE_US = 20_000.0
"""Work under the profiler."""

COMPARE_SECONDS = 120.0
"""A comparison of training steps that takes longer stops early, with a note."""

CHECK_OPTIONS: Mapping[str, Any] = {"xla_backend_optimization_level": 0}
"""For XLA where only results are compared, on the CPU: compiles in a third of the time."""

MOST_ERROR = 1e-3
"""What --check allows, of outputs and of each step's loss."""


# ---- entries -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """workload: name in WORKLOADS.  mode: "infer" or "train".  size: name in its SIZES."""

    workload: str
    mode: str
    size: str

    @property
    def key(self) -> str:
        return f"{self.workload}/{self.mode}/{self.size}"

    @property
    def module(self) -> ModuleType:
        return WORKLOADS[self.workload]


def list_entries(size: str) -> list[Entry]:
    """The ten of a size; for "full" also inference in the other sizes that a workload has."""
    entries = [Entry(name, mode, size) for name in WORKLOADS for mode in MODES]
    if size == "full":
        for name, module in WORKLOADS.items():
            others = [other for other in module.SIZES if other not in ("tiny", "full")]
            entries += [Entry(name, "infer", other) for other in others]
    return entries


def choose_entries(names: Sequence[str], size: str) -> list[Entry]:
    """Those whose key contains one of the names; all without names."""
    return [e for e in list_entries(size) if not names or any(name in e.key for name in names)]


@dataclass(frozen=True, slots=True)
class Task:
    """An entry with its arguments: fn(first, batch).  In training `first` is the state, which fn hands on.

    first: NumPy arrays, so that each side has a copy of its own to overwrite.  batch: on the device.
    """

    fn: Callable[..., Any]
    first: Any
    batch: Any
    trains: bool


def make_task(entry: Entry) -> Task:
    """The same arguments in every process."""
    module = entry.module
    size = module.SIZES[entry.size]
    parameters = module.make_parameters(PARAMETER_KEY, size)
    batch = module.make_batch(BATCH_KEY, size)
    trains = entry.mode == "train"
    first = start_training(parameters) if trains else parameters
    fn = module.train_step if trains else module.infer
    return Task(fn, first, jax.device_put(batch), trains)


# ---- rows --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One entry in one run.  Keys of the outer mappings: "xla", "astitch".

    wall_us: a step, pipelined.  gpu_us, kernels: of a step by class of kernel.  host_us: until a call returns, when
    the GPU is idle; queued_us: when calls wait in its queue.  compile_s: the first call, tracing, compiling and running
    once.  planned_bytes: device memory of arguments, results and temporaries as the compiler planned it.
    output_error: the largest difference of a result over its largest element.  loss_errors: relative, by step.
    gradient_error, update_error: norm of the difference over the norm, of all first-step gradients (as clipped) and
    weight changes together.  program: astitch's steps by kind, global barriers, and by op how many no kernel of
    its own and no library computes.
    """

    workload: str
    mode: str
    size: str
    run: str
    wall_us: Mapping[str, float] = field(default_factory=dict)
    gpu_us: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    kernels: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    slowest: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    host_us: Mapping[str, float] = field(default_factory=dict)
    queued_us: Mapping[str, float] = field(default_factory=dict)
    compile_s: Mapping[str, float] = field(default_factory=dict)
    planned_bytes: Mapping[str, int] = field(default_factory=dict)
    program: Mapping[str, Any] = field(default_factory=dict)
    output_error: float | None = None
    loss_errors: Sequence[float] = ()
    gradient_error: float | None = None
    update_error: float | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.workload}/{self.mode}/{self.size}"

    @property
    def largest_error(self) -> float | None:
        """Of the outputs and the losses; None if nothing was compared."""
        found = [*self.loss_errors, *([] if self.output_error is None else [self.output_error])]
        return max(found, default=None)

    def over_xla(self, values: Callable[[ModelRow, str], float | None]) -> float | None:
        """XLA's value over astitch's."""
        theirs, ours = (values(self, side) for side in SIDES)
        return theirs / ours if theirs and ours else None


def load_rows(path: Path) -> tuple[dict[str, Run], dict[str, ModelRow]]:
    """(runs by date, rows by key).  Raises ValueError for a file that is not of this program's."""
    data = json.loads(path.read_text())
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"{path} holds no results of benchmarks.models (schema {SCHEMA!r})")
    runs = {date: Run(**run) for date, run in data["runs"].items()}
    return runs, {key: ModelRow(**row) for key, row in data["rows"].items()}


def save_row(path: Path, run: Run, row: ModelRow) -> None:
    """Put into what the file holds, in place of an older row of the entry; replaced at once."""
    runs, rows = load_rows(path) if path.exists() else ({}, {})
    rows[row.key] = row
    used = {r.run for r in rows.values()}
    runs = {date: r for date, r in {**runs, run.date: run}.items() if date in used}
    data = {
        "schema": SCHEMA,
        "runs": {date: asdict(r) for date, r in sorted(runs.items())},
        "rows": {key: asdict(r) for key, r in rows.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(data, indent=1))
    partial.replace(path)


# ---- the two sides -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Side:
    """XLA or astitch on one task.  step: fn(first, batch), which may take over the memory of `first`."""

    name: str
    step: Callable[..., Any]
    wait: Callable[[Any], object]
    compile_s: float = 0.0


def prepare_side(name: str, task: Task, *, check: bool) -> Side:
    """Compiled; the first call was made."""
    donate = (0,) if task.trains else ()
    wait: Callable[[Any], object] = jax.block_until_ready
    step: Callable[..., Any]
    if name == "astitch":
        import astitch

        step = astitch.jit(task.fn, donate_argnums=donate)
        if step.engine != "host":
            wait = wait_for_cupy
    elif check:
        lowered = jax.jit(task.fn, donate_argnums=donate).lower(task.first, task.batch)
        on_cpu = jax.default_backend() == "cpu"
        step = lowered.compile(compiler_options=dict(CHECK_OPTIONS) if on_cpu else None)
    else:
        step = jax.jit(task.fn, donate_argnums=donate)
    side = Side(name, step, wait)
    first = place_first(task)
    start = time.perf_counter()
    wait(step(first, task.batch))
    side.compile_s = time.perf_counter() - start
    return side


def wait_for_cupy(results: Any) -> None:
    """astitch's results are JAX arrays whose memory CuPy's stream fills; what JAX adds to them runs on its own."""
    import cupy

    cupy.cuda.get_current_stream().synchronize()
    jax.block_until_ready(results)


def place_first(task: Task) -> Any:
    """A new copy of the state, or the parameters, on the device."""
    placed = jax.device_put(task.first, may_alias=False)
    jax.block_until_ready(placed)
    return placed


def make_runner(side: Side, task: Task) -> Runner:
    """Calls that each train on from where the last one came to, or infer again."""
    first = place_first(task)

    def call() -> Any:
        nonlocal first
        if not task.trains:
            return side.step(first, task.batch)
        first, loss = side.step(first, task.batch)
        return loss

    return Runner(side.name, call, side.wait, jax.tree.leaves)


def compile_again(side: Side, task: Task) -> Any:
    """The compiled function as a value, its kernels out of the caches on disk."""
    return side.step.lower(task.first, task.batch).compile()


def describe_xla(compiled: Any) -> dict[str, Any]:
    """The row's field."""
    return {"planned_bytes": count_planned_bytes(compiled.memory_analysis())}


def count_planned_bytes(stats: Any) -> int:
    """Of XLA's buffers; what is donated counts once."""
    used = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    return int(used - stats.alias_size_in_bytes)


def describe_astitch(compiled: Any) -> dict[str, Any]:
    """The row's fields."""
    program = compiled.program
    inside_xla = isinstance(compiled, CompiledForXla)
    return {
        "planned_bytes": count_planned_bytes(compiled.memory_analysis())
        if inside_xla
        else plan_bytes(program),
        "program": {
            "steps": dict(collections.Counter(type(step).__name__ for step in program.steps)),
            "barriers": sum(kernel.global_barriers for kernel in program.kernels),
            "outside": dict(collections.Counter(op.op for op in program.outside)),
        },
    }


# ---- right and wrong ---------------------------------------------------------------------------------------------


def compare_outputs(sides: Mapping[str, Side], task: Task) -> dict[str, Any]:
    """The row's field for inference."""
    results = {}
    for name, side in sides.items():
        results[name] = side.step(place_first(task), task.batch)
        side.wait(results[name])
    got, want = (jax.tree.leaves(results[name]) for name in ("astitch", "xla"))
    return {"output_error": kernels.relative_error(got, want)}


def compare_training(
    sides: Mapping[str, Side], task: Task, steps: int, seconds: float = COMPARE_SECONDS
) -> dict[str, Any]:
    """The row's fields for training: both sides from the same state, each on its own for `steps` steps."""
    states = {name: place_first(task) for name in sides}
    fields: dict[str, Any] = {}
    errors: list[float] = []
    start = time.perf_counter()
    while len(errors) < steps and (not errors or time.perf_counter() - start < seconds):
        losses = {}
        for name, side in sides.items():
            states[name], loss = side.step(states[name], task.batch)
            side.wait(loss)
            losses[name] = float(loss)
        difference = abs(losses["astitch"] - losses["xla"]) / max(abs(losses["xla"]), 1e-30)
        errors.append(difference if difference == difference else float("inf"))
        if len(errors) == 1:
            fields |= compare_states(states["astitch"], states["xla"], task.first)
    fields["loss_errors"] = errors
    if len(errors) < steps:
        fields["notes"] = {"training": f"{len(errors)} of {steps} steps in {seconds:.0f} s"}
    return fields


def compare_states(got: State, want: State, before: State) -> dict[str, float]:
    """After the first step.  Over all weights together.  Some gradients are nothing but rounding (of what a softmax or
    a norm ignores): each would differ by its own size, and Adam makes whole steps of them.
    """

    def changes(state: State) -> list[np.ndarray]:
        pairs = zip(
            jax.tree.leaves(state.parameters.weights),
            jax.tree.leaves(before.parameters.weights),
            strict=True,
        )
        return [np.asarray(after) - first for after, first in pairs]

    return {
        # Adam's mean after one step is the gradient, scaled.
        "gradient_error": norm_error(jax.tree.leaves(got.mean), jax.tree.leaves(want.mean)),
        "update_error": norm_error(changes(got), changes(want)),
    }


def norm_error(got: Sequence[Any], want: Sequence[Any]) -> float:
    """Norm of the difference over the norm of what is wanted; infinite where there is a NaN."""

    def norm(arrays: Iterable[np.ndarray]) -> float:
        return math.sqrt(sum(float(np.square(a, dtype=np.float64).sum()) for a in arrays))

    wanted = [np.asarray(w) for w in want]
    difference = norm(np.asarray(g) - w for g, w in zip(got, wanted, strict=True))
    ratio = difference / max(norm(wanted), 1e-30)
    return ratio if ratio == ratio else float("inf")


# ---- measuring ---------------------------------------------------------------------------------------------------


def measure_entry(entry: Entry, options: argparse.Namespace, date: str) -> ModelRow:
    """One row.  What fails becomes a note; nothing is raised for it."""
    task = make_task(entry)
    fields: dict[str, Any] = {"notes": {}}

    @contextmanager
    def noting(what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # an entry that one side cannot do is a result
            fields["notes"][what] = describe(error)

    sides: dict[str, Side] = {}
    for name in SIDES:
        with noting(name):
            sides[name] = prepare_side(name, task, check=options.check)
    if len(sides) == len(SIDES):
        with noting("comparison"):
            found = (
                compare_training(sides, task, options.steps)
                if task.trains
                else compare_outputs(sides, task)
            )
            fields["notes"] |= found.pop("notes", {})
            fields |= found
    if not options.check:
        fields |= measure_times(sides, task, options.batches, noting)
    return ModelRow(entry.workload, entry.mode, entry.size, date, **fields)


def measure_times(
    sides: Mapping[str, Side], task: Task, batches: int, noting: Callable[[str], Any]
) -> dict[str, Any]:
    """The row's fields in us, s and bytes, of the sides that there are."""
    wall_us: dict[str, float] = {}
    fields: dict[str, Any] = {
        "compile_s": {name: side.compile_s for name, side in sides.items()},
        "wall_us": wall_us,
    }
    for name in ("gpu_us", "kernels", "slowest", "host_us", "queued_us", "planned_bytes"):
        fields[name] = {}
    runners = {}
    for name, side in sides.items():
        with noting(f"{name}, first calls"):
            runner = make_runner(side, task)
            time_batch(runner, 1)
            wall_us[name] = time_batch(runner, 1)
            runners[name] = runner
    in_turns = [runner for name, runner in runners.items() if wall_us[name] <= SLOW_US]
    with noting("wall time"):
        wall_us |= measure_wall(in_turns, batches)
    for name, runner in runners.items():
        with noting(f"{name}, host time"):
            calls = HOST_CALLS if wall_us[name] <= SLOW_US else 1
            fields["host_us"][name] = time_host(runner, calls)
            fields["queued_us"][name] = time_queueing(runner, calls)
        with noting(f"{name}, kernels"):
            calls = choose_calls(wall_us[name], TRACE_US, HOST_CALLS)
            found = record_kernels(lambda n, runner=runner: time_batch(runner, n), calls)  # type: ignore[misc]
            fields["gpu_us"][name] = found.us
            fields["kernels"][name] = found.count
            fields["slowest"][name] = found.slowest
        with noting(f"{name}, memory"):
            describe_side = describe_astitch if name == "astitch" else describe_xla
            found_fields = describe_side(compile_again(sides[name], task))
            fields["planned_bytes"][name] = found_fields.pop("planned_bytes")
            fields |= found_fields
    return fields


def time_host(runner: Runner, calls: int) -> float:
    """Microseconds until a call returns, the GPU idle before it: the median."""
    times = []
    with runner.within():
        for _ in range(calls):
            start = time.perf_counter()
            results = runner.call()
            times.append((time.perf_counter() - start) * 1e6)
            runner.wait(results)
    return sorted(times)[len(times) // 2]


def time_queueing(runner: Runner, calls: int) -> float:
    """Microseconds of a call among calls that are issued back to back, without the wait at the end."""
    with runner.within():
        start = time.perf_counter()
        for _ in range(calls):
            results = runner.call()
        us = (time.perf_counter() - start) / calls * 1e6
    runner.wait(results)
    return us


# ---- tables ------------------------------------------------------------------------------------------------------

HEADER = (
    f"{'entry':32} {'XLA':>9} {'astitch':>9} {'/XLA':>6} | {'XLA mem/prod/copy':>20} {'astitch':>20} {'/XLA':>6} "
    f"| {'XLA kernels':>15} {'astitch':>15} | {'host XLA':>13} {'astitch':>13} | {'compile s':>11} | {'MB':>11} "
    f"| {'error':>7} {'grad':>7}"
)
LEGEND = """\
us a step: pipelined, wall time | GPU time of memory-intensive kernels / products and convolutions / copies, and XLA's
memory-intensive time over astitch's | launches of each | host's time for a call, GPU idle / calls in its queue | first
call | memory as planned | largest error of outputs or of a step's loss, * beyond 1e-3; error of the gradient's norm."""


def memory_us(row: ModelRow, side: str) -> float | None:
    return row.gpu_us.get(side, {}).get(MEMORY)


def total_gpu_us(row: ModelRow, side: str) -> float | None:
    times = row.gpu_us.get(side)
    return sum(times.values()) if times else None


def memory_kernels(row: ModelRow, side: str) -> float | None:
    return row.kernels.get(side, {}).get(MEMORY)


def wall_us(row: ModelRow, side: str) -> float | None:
    return row.wall_us.get(side)


RATIOS: Mapping[str, Callable[[ModelRow, str], float | None]] = {
    "wall": wall_us,
    "GPU": total_gpu_us,
    "GPU mem": memory_us,
    "mem kernels": memory_kernels,
}


def format_row(row: ModelRow) -> str:
    """One line of the table, and one for each note."""

    def pair(values: Mapping[str, float], scale: float = 1.0) -> str:
        return "/".join(_number(values.get(side), scale) for side in SIDES)

    def triple(values: Mapping[str, Mapping[str, float]], side: str) -> str:
        return "/".join(_number(values.get(side, {}).get(kind)) for kind in KINDS)

    def host(side: str) -> str:
        return f"{_number(row.host_us.get(side))}/{_number(row.queued_us.get(side))}"

    error = row.largest_error
    shown = "-" if error is None else f"{error:.0e}{'' if error <= MOST_ERROR else '*'}"
    gradient = "-" if row.gradient_error is None else f"{row.gradient_error:.0e}"
    times = " ".join(f"{_number(row.wall_us.get(side)):>9}" for side in SIDES)
    line = (
        f"{row.key:32} {times} {_ratio(row.over_xla(wall_us))} | {triple(row.gpu_us, 'xla'):>20} "
        f"{triple(row.gpu_us, 'astitch'):>20} {_ratio(row.over_xla(memory_us))} | {triple(row.kernels, 'xla'):>15} "
        f"{triple(row.kernels, 'astitch'):>15} | {host('xla'):>13} {host('astitch'):>13} | "
        f"{pair(row.compile_s):>11} | {pair(row.planned_bytes, 1e-6):>11} | {shown:>7} {gradient:>7}"
    )
    outside = row.program.get("outside", {})
    others = ", ".join(f"{count} {op}" for op, count in outside.items())
    notes = {**row.notes, **({"outside of astitch's kernels": others} if others else {})}
    return "\n".join([line, *(f"    {name}: {note}" for name, note in notes.items())])


def _number(value: float | None, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value * scale:.0f}"


def _ratio(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.2f'):>6}"


def format_means(rows: Sequence[ModelRow]) -> list[str]:
    """Geometric means of XLA's value over astitch's: by size all, inference, training."""
    lines = [f"{'geometric mean of XLA / astitch':38}" + "".join(f"{name:>16}" for name in RATIOS)]
    for size in dict.fromkeys(row.size for row in rows):
        for mode in ("", *MODES):
            group = [r for r in rows if r.size == size and mode in ("", r.mode)]
            cells = ""
            for values in RATIOS.values():
                ratios = [x for x in (row.over_xla(values) for row in group) if x is not None]
                mean = geometric_mean(ratios)
                cells += f"{'-' if mean is None else f'{mean:.3f} ({len(ratios)})':>16}"
            if group:
                title = f"{size} {mode or 'all'} ({len(group)})"
                lines.append(f"{title:38}{cells}")
    wrong = [row for row in rows if row.largest_error is not None and not is_right(row)]
    if wrong:
        lines.append("results that differ by more than rounding explains:")
        lines += [f"  {row.key}: {row.largest_error:.1e}" for row in wrong]
    return lines


def is_right(row: ModelRow) -> bool:
    """Compared, and within MOST_ERROR."""
    return row.largest_error is not None and row.largest_error <= MOST_ERROR


# ---- the command line --------------------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.models",
        description="Inference and training steps of five models by XLA and astitch on one GPU.",
    )
    parser.add_argument("names", nargs="*", help="only entries whose name contains one of these")
    parser.add_argument("--size", choices=("tiny", "full"), default="full")
    parser.add_argument("--check", action="store_true", help="compare results, measure nothing")
    parser.add_argument("--steps", type=int, default=20, help="training steps that are compared")
    parser.add_argument("--precision", help="of products, as jax_default_matmul_precision has it")
    parser.add_argument("--batches", type=int, default=9, help="of calls, for the wall time")
    parser.add_argument(
        "--engine",
        choices=("gpu", "host"),
        help="of astitch's side; else the GPU's where there is one",
    )
    parser.add_argument("--seconds", type=float, help="start no entry after this many")
    parser.add_argument("--json", type=Path, help="put the rows into this file, after each entry")
    parser.add_argument("--resume", action="store_true", help="leave out entries that it has")
    parser.add_argument("--report", type=Path, metavar="FILE", help="print this file instead")
    parser.add_argument("--list", action="store_true", help="list the entries and stop")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Exits with 1 where --check found an entry that fails or differs."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.report:
        print_report(*load_rows(options.report))
        return
    entries = choose_entries(options.names, options.size)
    if not entries:
        parser.error("no entry of that name: --list lists them")
    if options.list:
        print(*(entry.key for entry in entries), sep="\n")
        return
    if options.resume and options.json and options.json.exists():
        done = load_rows(options.json)[1]
        entries = [entry for entry in entries if entry.key not in done]
    if options.engine:
        engines.DEFAULT = options.engine
    if options.precision:
        jax.config.update("jax_default_matmul_precision", options.precision)
    if options.check:
        check_entries(entries, options)
    else:
        measure_entries(entries, options)


def check_entries(entries: Sequence[Entry], options: argparse.Namespace) -> None:
    failed = []
    for entry in entries:
        row = measure_entry(entry, options, "")
        error = row.largest_error
        shown = "nothing compared" if error is None else f"largest error {error:.1e}"
        print(f"{entry.key}: {shown}", flush=True)
        for name, note in row.notes.items():
            print(f"    {name}: {note}")
        if not is_right(row):
            failed.append(entry.key)
    if failed:
        raise SystemExit(f"differ or fail: {', '.join(failed)}")


def measure_entries(entries: Sequence[Entry], options: argparse.Namespace) -> None:
    """Measures, prints and saves entry by entry."""
    start = time.perf_counter()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # both sides share the device
    run = kernels.describe_machine()
    print(f"{format_run(run)}\n\n{LEGEND}\n\n{HEADER}", flush=True)
    rows = []
    with use_empty_caches():
        for number, entry in enumerate(entries):
            if options.seconds is not None and time.perf_counter() - start > options.seconds:
                print(f"{len(entries) - number} entries were not started: run again with --resume")
                break
            try:
                row = measure_entry(entry, options, run.date)
            except Exception as error:  # out of memory, say: the other entries go on
                print(f"{entry.key}: {describe(error)}", flush=True)
                continue
            finally:
                peers.release_memory()
            rows.append(row)
            print(format_row(row), flush=True)
            if options.json:
                save_row(options.json, run, row)
    print("", *format_means(rows), sep="\n")
    print(f"{len(rows)} entries in {time.perf_counter() - start:.0f} s")


@contextmanager
def use_empty_caches() -> Iterator[None]:
    """Both compilers' caches on disk in a new folder: first calls are cold, and compiling again is quick."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        settings = {
            "jax_compilation_cache_dir": f"{folder}/xla",
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }
        for name, value in settings.items():
            stack.callback(jax.config.update, name, getattr(jax.config, name))
            jax.config.update(name, value)
        # JAX opens its cache once: it must look at the setting anew, now and afterwards.
        reset_cache()
        stack.callback(reset_cache)
        before = os.environ.get("ASTITCH_CACHE_DIR")
        os.environ["ASTITCH_CACHE_DIR"] = f"{folder}/astitch"
        try:
            yield
        finally:
            if before is None:
                del os.environ["ASTITCH_CACHE_DIR"]
            else:
                os.environ["ASTITCH_CACHE_DIR"] = before


def print_report(runs: Mapping[str, Run], rows: Mapping[str, ModelRow]) -> None:
    print(*(format_run(run) for run in runs.values()), "", LEGEND, "", HEADER, sep="\n")
    print(*(format_row(row) for row in rows.values()), sep="\n")
    print("", *format_means(list(rows.values())), sep="\n")


if __name__ == "__main__":
    main()
