"""The benchmark: memory-bound patterns by astitch and its peers, in one run on one GPU.

`python -m benchmarks.kernels [NAME ...] --json FILE` measures and merges into FILE; `--report FILE ...` prints the
tables and draws the plots without a GPU; `--patterns` lists what there is.  `--prepare N` compiles everything in N
processes first, which is most of the time.  The suite in pieces: repeat `--json FILE --resume --seconds 500`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import gc
import importlib.metadata
import math
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from astitch.errors import EngineUnavailable
from astitch.graph.ir import Graph
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.windows import find_running
from astitch.profiling.kernel_trace import NothingRecorded
from astitch.profiling.timing import Runner, measure_wall
from astitch.run.executor import import_cupy
from benchmarks import peers, prepare
from benchmarks.device_timing import measure_gap, measure_gpu, split_times
from benchmarks.patterns import DTYPES, PATTERNS, SIZES, Case, choose_cases
from benchmarks.results import (
    HEADER,
    LEGEND,
    NOTHING,
    Results,
    Row,
    Run,
    describe,
    format_means,
    format_results,
    format_row,
    format_run,
    load_results,
    save_results,
)
from benchmarks.timing import measure_limits

MOST_FLOAT64_BYTES = 8 << 30
"""The reference computes in f64 up to this size of its arguments, and up to MOST_FLOAT64_ARGUMENTS of them."""

MOST_FLOAT64_ARGUMENTS = 200


CLOCK_S = 0.35
"""A clock begins no further batch of a case after this many seconds, once it has three."""


# ---- what a case costs -------------------------------------------------------------------------------------------


def count_flops(graph: Graph) -> int:
    """Operations by astitch's op table (an exponential counts 20): element-wise ops and reductions."""
    total = 0
    for node in graph:
        row = OPS[node.op]
        if row.kind is Kind.ELEMENTWISE:
            total += row.flops * node.array.size
        elif row.kind is Kind.REDUCE or find_running(node) is not None:
            operand = graph[node.operands[0]].array
            total += operand.size * max(1, count_flops(node.regions[0]))
    return total


# ---- right and wrong ---------------------------------------------------------------------------------------------


def compute_reference(case: Case, arguments: Sequence[jax.Array]) -> tuple[list[jax.Array], str]:
    """The case's own function in f64 on the same device; XLA's result where that is too large."""

    def reference(
        *arguments: jax.Array,
    ) -> Any:  # of a name of its own: no peer's program in the cache
        return case.fn(*arguments)

    floats = [a for a in arguments if jnp.issubdtype(a.dtype, jnp.floating)]
    size = sum(a.size * 8 for a in floats)
    if size > MOST_FLOAT64_BYTES or len(arguments) > MOST_FLOAT64_ARGUMENTS:
        return jax.tree.leaves(jax.jit(reference)(*arguments)), "xla"
    with jax.enable_x64(True):
        wide = [
            a.astype(jnp.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a for a in arguments
        ]
        return jax.tree.leaves(jax.jit(reference)(*wide)), "float64"


@jax.jit
def _largest(got: jax.Array, want: jax.Array) -> tuple[jax.Array, jax.Array]:
    got, want = got.astype(jnp.float64), want.astype(jnp.float64)
    return jnp.abs(got - want).max(initial=0), jnp.abs(want).max(initial=0)


def relative_error(got: Sequence[jax.Array], want: Sequence[jax.Array]) -> float:
    """The largest difference of a result over the largest element of it; infinite where either has a NaN."""
    worst = 0.0
    with jax.enable_x64(True):
        for g, w in zip(got, want, strict=True):
            difference, largest = (float(x) for x in _largest(g, w))
            ratio = difference / max(largest, 1e-30)
            worst = max(worst, ratio if ratio == ratio else float("inf"))
    return worst


# ---- measuring ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Draft:
    """A row while it is measured.  seconds: where the time goes, summed over rows."""

    seconds: Counter[str]
    notes: dict[str, str] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    astitch: dict[str, Any] = field(default_factory=dict)
    runners: list[Runner] = field(default_factory=list)
    reference: str = ""

    @contextlib.contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Counts the block's seconds under the name; what it raises becomes a note."""
        with count_seconds(self.seconds, name):
            try:
                yield
            except Exception as error:  # what astitch or a peer cannot do is a result
                self.notes[name] = describe(error)


@contextlib.contextmanager
def count_seconds(seconds: Counter[str], name: str) -> Iterator[None]:
    """Adds the block's wall time to `name`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] += time.perf_counter() - start  # type: ignore[assignment]


def measure_case(
    case: Case,
    chosen: Sequence[str],
    run: str,
    batches: int,
    seconds: Counter[str] | None = None,
) -> Row:
    """One row.  What a peer cannot do becomes a note; nothing is raised for it.  seconds: added to."""
    draft = draft_row(case, chosen, Counter() if seconds is None else seconds)
    with count_seconds(draft.seconds, "clocks"):
        wall_us = measure_wall(draft.runners, batches, CLOCK_S)
        try:
            times, late = measure_gpu(draft.runners, wall_us, batches, CLOCK_S)
        except NothingRecorded as error:
            times, late = {}, {"GPU time": describe(error)}
    return Row(
        case.pattern,
        case.size,
        case.dtype,
        case.title,
        run,
        case.traffic_bytes,
        wall_us=wall_us,
        errors=draft.errors,
        reference=draft.reference,
        notes={**late, **draft.notes},
        **split_times(times),
        **draft.astitch,
    )


def draft_row(case: Case, chosen: Sequence[str], seconds: Counter[str]) -> Draft:
    """All of a row but the clocks: each peer compiled, called once and compared."""
    draft = Draft(seconds)
    with count_seconds(seconds, "arguments"):
        arguments = jax.block_until_ready(case.make_arguments())
    with count_seconds(seconds, "reference"):
        reference, draft.reference = compute_reference(case, arguments)
    with draft.attempt("astitch"):
        compiled = peers.compile_astitch(case, arguments)
        draft.astitch = describe_program(compiled)
        for runner in peers.prepare_astitch(compiled, arguments):
            _accept(draft, case, runner, reference)
    for name in chosen:
        with draft.attempt(name):
            _accept(draft, case, peers.prepare_runner(name, case, arguments), reference)
    return draft


def compile_case(pattern: str, size: str, dtype: str, chosen: Sequence[str]) -> Mapping[str, str]:
    """What a process that prepares does for a case: fills the caches, hands on what failed."""
    (case,) = [p.case(size, dtype) for p in PATTERNS if p.name == pattern]
    try:
        notes = draft_row(case, chosen, Counter()).notes
    finally:
        peers.release_memory()
    return {peer: n for peer, n in notes.items() if not n.startswith("NotMeasured")}


def make_jobs(cases: Sequence[Case], chosen: Sequence[str]) -> list[prepare.Job]:
    """What takes longest first: many arguments are large programs; then large arrays."""
    ordered = sorted(cases, key=lambda c: (len(c.arguments), peak_bytes(c)), reverse=True)
    return [
        prepare.Job(
            case.key,
            peak_bytes(case),
            functools.partial(compile_case, case.pattern, case.size, case.dtype, tuple(chosen)),
        )
        for case in ordered
    ]


def peak_bytes(case: Case) -> int:
    """An upper estimate of the device memory of a case.  The f64 computation counts twice for what it keeps between its
    kernels; beside it are the arguments and the results of four peers.
    """
    arrays = [*(argument.spec for argument in case.arguments), *case.results]
    elements = sum(math.prod(a.shape) for a in arrays)
    own = sum(math.prod(a.shape) * np.dtype(a.dtype).itemsize for a in arrays)
    return 2 * 8 * elements + 4 * own


def describe_program(compiled: Any) -> dict[str, Any]:
    """The row's fields that say what astitch made of a case."""
    program = compiled.program
    return {
        "flops": count_flops(compiled.compilation.graph),
        "kernels": len(program.kernels),
        "barriers": sum(kernel.global_barriers for kernel in program.kernels),
        "other_steps": peers.list_other_ops(program),
    }


def _accept(draft: Draft, case: Case, runner: Runner, reference: Sequence[jax.Array]) -> None:
    """One call, compared; from then on the runner takes part."""
    results = runner.call()
    runner.wait(results)
    alike = runner.name.startswith(("astitch", "xla")) or not case.built.random
    if alike:
        draft.errors[runner.name] = relative_error(runner.flatten(results), reference)
    draft.runners.append(runner)


def describe_machine() -> Run:
    """The GPU that CuPy sees, measured, and the versions of what is installed.  Ends the program without one."""
    try:
        cupy = import_cupy()
    except EngineUnavailable as error:
        raise SystemExit(str(error)) from None
    limits = measure_limits()
    device = cupy.cuda.Device()
    name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
    versions = {}
    for package in ("jax", "torch", "liger-kernel", "cupy-cuda13x", "cupy-cuda12x", "numpy"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        gap_us = measure_gap()
    except NothingRecorded as error:
        gap_us = {}
        print(f"GPU times are left out: {error}")
    return Run(
        date,
        name,
        read_driver_version(),
        versions,
        limits.copy_gbs,
        limits.l2_copy_gbs,
        limits.fma_gflops,
        "profiler",
        gap_us,
    )


def read_driver_version() -> str:
    """As nvidia-smi says it; "unknown" without one."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


# ---- the command line --------------------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels",
        description="Memory-bound patterns by astitch, XLA, torch.compile and Liger on one GPU.",
    )
    parser.add_argument("names", nargs="*", help="only patterns whose name contains one of these")
    parser.add_argument("--sizes", default=",".join(SIZES), help="of tiny,small,medium,full")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="of f32,bf16")
    parser.add_argument(
        "--peers",
        default=",".join(peers.DEFAULT_PEERS),
        help=f"of {','.join(peers.PEERS)}; '' for none",
    )
    prepare.add_options(parser)
    parser.add_argument("--quick", action="store_true", help="3 batches instead of 9")
    parser.add_argument("--seconds", type=float, help="start no case after this many")
    parser.add_argument("--json", type=Path, help="merge the rows into this file, after each case")
    parser.add_argument(
        "--resume", action="store_true", help="leave out the cases that the --json file has"
    )
    parser.add_argument(
        "--report", type=Path, nargs="+", metavar="FILE", help="print these files instead"
    )
    parser.add_argument("--plots", type=Path, default=Path("docs"), help="folder of the plots")
    parser.add_argument("--patterns", action="store_true", help="list the patterns and stop")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.patterns:
        print(list_patterns())
        return
    if options.report:
        report(options.report, options.plots)
        return
    chosen = _split(parser, options.peers, peers.PEERS)
    sizes = _split(parser, options.sizes, ("tiny", *SIZES))
    cases = choose_cases(tuple(options.names), sizes, _split(parser, options.dtypes, tuple(DTYPES)))
    if not cases:
        parser.error("no pattern of that name: --patterns lists them")
    if options.resume and options.json and options.json.exists():
        done = load_results(options.json).rows
        cases = [case for case in cases if case.key not in done]
    if options.dry:
        print(prepare.format_jobs(make_jobs(cases, chosen)))
        return
    measure_cases(cases, chosen, options)


def _split(parser: argparse.ArgumentParser, text: str, known: Sequence[str]) -> tuple[str, ...]:
    words = tuple(word for word in text.split(",") if word)
    for word in words:
        if word not in known:
            parser.error(f"{word!r} is none of {', '.join(known)}")
    return words


def measure_cases(cases: Sequence[Case], chosen: Sequence[str], options: Any) -> None:
    """Measures, prints and saves case by case."""
    start = time.perf_counter()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # peers share the device
    for peer, lack in peers.missing_packages(chosen).items():
        print(f"{peer} is left out: {lack}")
        chosen = [name for name in chosen if name != peer]
    run = describe_machine()
    print(f"{format_run(run)}\n", flush=True)
    if options.prepare:
        prepared = [name for name in chosen if options.prepare_xla or name not in peers.XLA_PEERS]
        prepare.prepare(make_jobs(cases, prepared), options.prepare, options.prepare_xla)
    print(f"{LEGEND}\n\n{HEADER}", flush=True)
    results = NOTHING
    seconds: Counter[str] = Counter()
    for number, case in enumerate(cases):
        if options.seconds is not None and time.perf_counter() - start > options.seconds:
            print(f"{len(cases) - number} cases were not started: run again with --resume")
            break
        try:
            row = measure_case(case, chosen, run.date, 3 if options.quick else 9, seconds)
        except Exception as error:  # out of memory, say: the other cases go on
            print(f"{case.key}: {describe(error)}", flush=True)
            continue
        finally:
            with count_seconds(seconds, "release"):
                peers.release_memory()
                if number == 0:
                    gc.freeze()  # what was imported is not looked through after each case
        results = results.merge(Results({run.date: run}, {row.key: row}))
        print(format_row(row, run.copy_gbs), flush=True)
        if options.json:
            save_results(options.json, results)
    print("", *format_means(list(results.rows.values())), sep="\n")
    print(f"{len(results.rows)} cases in {time.perf_counter() - start:.0f} s")
    print(format_seconds(seconds))


def format_seconds(seconds: Mapping[str, float]) -> str:
    """Where the time of measuring went: the largest first."""
    spent = sorted(seconds, key=lambda name: seconds[name], reverse=True)
    return "seconds: " + ", ".join(f"{name} {seconds[name]:.1f}" for name in spent)


def list_patterns() -> str:
    """Each pattern with its sizes and least traffic in f32."""
    lines = []
    for pattern in PATTERNS:
        lines.append(f"{pattern.name}: {pattern.about}")
        for size in SIZES:
            case = pattern.case(size, "f32")
            lines.append(f"    {size:7} {case.title:24} {case.traffic_bytes / 1e6:10.2f} MB")
    return "\n".join(lines)


def report(files: Sequence[Path], folder: Path) -> None:
    """Prints the merged files and draws the plots into the folder."""
    from benchmarks.roofline import draw_plots

    results = NOTHING
    for file in files:
        results = results.merge(load_results(file))
    print(format_results(results))
    print()
    for path in draw_plots(results, folder):
        print(path)


if __name__ == "__main__":
    main()
