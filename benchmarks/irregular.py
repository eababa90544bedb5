"""Irregular shapes: four ops on few long rows, many short rows, primes and unaligned slices, by astitch and XLA.

`python -m benchmarks.irregular [OP ...] --json FILE` measures and merges into FILE (in pieces: `--resume --seconds
500`; `--prepare N` compiles in N processes first); `--report FILE ...` prints the worst points and draws the heat map
of XLA's time over astitch's, without a GPU.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from astitch.profiling.timing import Runner
from benchmarks import kernels, peers, prepare
from benchmarks.device_timing import DeviceTimes, GpuTime, split_times
from benchmarks.patterns import F32, Argument, Built, Case
from benchmarks.results import (
    NOTHING,
    Results,
    Row,
    describe,
    format_means,
    format_run,
    load_results,
    save_results,
)

TURNS = 3
CALLS = 15
"""Of each program, in turns, in each so many calls."""

LONG_US = 300.0
LONG_CALLS = 5
"""Where a call takes longer, fewer."""

WORST = 20
TOGETHER = 40
"""Points in one recording of the profiler."""

MOST_ELEMENTS = 70_000_000
"""Of the pairs of primes."""

PRIMES = (7, 31, 127, 257, 521, 1021, 2053, 4099, 8209, 16411)
LONG = (1 << 20, 1_000_003, 2_500_009, 5_000_011, 10_000_000)
MANY = (1_000_003, 10_000_000)
SKIPS = tuple(itertools.product((0, 1, 2), (0, 1, 3, 5)))
"""Rows and columns cut off in front, in the program: x[1:, 3:]."""


# ---- points ------------------------------------------------------------------------------------------------------


def softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(x, -1)


def normalise_rows(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)


def column_sum(x: jax.Array) -> jax.Array:
    return x.sum(0)


def chain(x: jax.Array) -> jax.Array:
    return jnp.tanh(x * 1.5 + 0.5) * jax.nn.sigmoid(x) - x


OPS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    f.__name__: f for f in (softmax, normalise_rows, column_sum, chain)
}


@dataclass(frozen=True, slots=True)
class Point:
    """op on [rows, columns]; skip: what is cut off in front of a larger array first."""

    op: str
    group: str
    rows: int
    columns: int
    skip: tuple[int, int] = (0, 0)

    @property
    def title(self) -> str:
        shape = f"{self.rows}x{self.columns}"
        return f"{shape} at {self.skip[0]},{self.skip[1]}" if any(self.skip) else shape

    @property
    def place(self) -> tuple[int, int]:
        """Line and column of the heat map."""
        return self.skip if self.group == "slices" else (self.rows, self.columns)

    def case(self) -> Case:
        fn, (down, right) = OPS[self.op], self.skip

        def sliced(x: jax.Array) -> jax.Array:
            return fn(x[down:, right:])

        shape = (self.rows + down, self.columns + right)
        x = Argument(shape, F32, must_read_bytes=self.rows * self.columns * 4)
        built = Built(sliced if any(self.skip) else fn, (x,), title=self.title)
        return Case(self.op, self.group, "f32", shape, built)


GROUPS = ("long rows", "short rows", "primes", "slices")


def list_points(ops: Sequence[str] = tuple(OPS)) -> list[Point]:
    """Each op on each shape, group by group."""
    primes = [(r, c) for r in PRIMES for c in PRIMES if r * c <= MOST_ELEMENTS]
    points = []
    for op in ops:
        points += [Point(op, "long rows", r, c) for r in range(1, 11) for c in LONG]
        points += [Point(op, "short rows", r, c) for r in MANY for c in range(1, 34)]
        points += [Point(op, "primes", r, c) for r, c in primes]
        points += [Point(op, "slices", 1025 - a, 1031 - b, (a, b)) for a, b in SKIPS]
    return points


# ---- measuring ---------------------------------------------------------------------------------------------------


def make_source() -> Callable[[Case], jax.Array]:
    """Arguments without a compilation for each shape: the front of one array of normal numbers, cut by CuPy."""
    import cupy

    largest = max(math.prod(point.case().shape) for point in list_points())
    normal = jax.block_until_ready(jax.random.normal(jax.random.key(0), (largest,), F32))
    numbers = cupy.from_dlpack(normal)

    def draw(case: Case) -> jax.Array:
        view = numbers[: math.prod(case.shape)].reshape(case.shape)
        x: jax.Array = jax.dlpack.from_dlpack(view)
        return x

    return draw


def measure_point(
    case: Case,
    x: jax.Array,
    run: str,
    to_array: Callable[[Any], Any],
    spans: DeviceTimes,
    seconds: Counter[str],
) -> Row:
    """One row, which lacks the times until `spans` has been recorded; its error is against XLA's result.  to_array: a
    JAX array as one of CuPy or NumPy.  seconds: where the time goes, added to.
    """
    draft = draft_point(case, x, seconds)
    with draft.attempt("astitch"):
        draft.errors |= compare_with_xla(draft.runners, to_array)
    if draft.notes:
        del draft.runners[1:]
    with kernels.count_seconds(seconds, "calls"):
        calls = LONG_CALLS if case.traffic_bytes / 3e6 > LONG_US else CALLS
        for _ in range(TURNS):
            for runner in draft.runners:
                spans.run((case.key, runner.name), runner, calls)
    return Row(
        case.pattern,
        case.size,
        case.dtype,
        case.title,
        run,
        case.traffic_bytes,
        wall_us={},
        gpu_us={},
        errors=draft.errors,
        reference="xla",
        notes=draft.notes,
        **draft.astitch,
    )


def with_times(row: Row, times: Mapping[Hashable, GpuTime]) -> Row:
    """The row with what was recorded of it."""
    names = ("xla", "astitch")
    found = {n: times[row.key, n] for n in names if (row.key, n) in times}
    return replace(row, **split_times(found))


def draft_point(
    case: Case, x: jax.Array, seconds: Counter[str], with_xla: bool = True
) -> kernels.Draft:
    """XLA and, where it can, astitch: compiled and called once."""
    draft = kernels.Draft(seconds)
    if with_xla:
        with kernels.count_seconds(seconds, "xla"):
            draft.runners.append(_call_once(peers.prepare_xla(case, [x])))
    with draft.attempt("astitch"):
        compiled = peers.compile_astitch(case, [x])
        draft.astitch = kernels.describe_program(compiled)
        draft.runners.append(_call_once(peers.prepare_astitch(compiled, [x])[0]))
    return draft


def compare_with_xla(runners: Sequence[Runner], to_array: Callable[[Any], Any]) -> dict[str, float]:
    """Of each runner after XLA's, the first: the largest difference over XLA's largest element."""
    xla, *others = runners
    want = to_array(xla.call())
    errors = {}
    for runner in others:
        results = runner.call()
        runner.wait(results)
        got = to_array(runner.flatten(results)[0])
        errors[runner.name] = float(abs(got - want).max()) / max(float(abs(want).max()), 1e-30)
    return errors


def _call_once(runner: Runner) -> Runner:
    runner.wait(runner.call())
    return runner


def compile_point(point: Point, with_xla: bool) -> Mapping[str, str]:
    """What a process that prepares does for a point: fills the caches, hands on what failed."""
    case = point.case()
    try:
        x = jax.device_put(np.zeros(case.shape, np.float32))  # its values decide nothing
        return draft_point(case, x, Counter(), with_xla).notes
    finally:
        peers.release_memory()


def make_jobs(points: Sequence[Point], with_xla: bool) -> list[prepare.Job]:
    """The largest first, each with room for the argument, two results and what XLA keeps between its kernels."""
    ordered = sorted((math.prod(p.case().shape), number) for number, p in enumerate(points))
    return [
        prepare.Job(p.case().key, 4 * 4 * elements, functools.partial(compile_point, p, with_xla))
        for elements, p in ((elements, points[number]) for elements, number in reversed(ordered))
    ]


def measure_together(
    points: Sequence[Point],
    draw: Callable[[Case], jax.Array],
    run: str,
    seconds: Counter[str],
) -> list[Row]:
    """The rows of points in one recording of the profiler."""
    import cupy

    spans = DeviceTimes()
    rows: list[Row] = []

    def measure() -> None:
        for point in points:
            case = point.case()
            try:
                rows.append(measure_point(case, draw(case), run, cupy.from_dlpack, spans, seconds))
            except Exception as error:  # out of memory, say: the other points go on
                print(f"{case.key}: {describe(error)}", flush=True)
            with kernels.count_seconds(seconds, "release"):
                peers.release_memory()

    times = spans.record(measure)
    return [with_times(row, times) for row in rows]


def speedup(row: Row) -> float | None:
    """XLA's time over astitch's: of the GPU where it was measured, else of the wall."""
    on_gpu = row.speedup_over_xla("gpu_us")
    return row.speedup_over_xla("wall_us") if on_gpu is None else on_gpu


# ---- reporting ---------------------------------------------------------------------------------------------------


def format_point(row: Row) -> str:
    """One line: shape, GPU (else wall) microseconds of both, their ratio, GB/s by least traffic, error."""
    times = {**row.wall_us, **{name: us for name, us in row.gpu_us.items() if us > 0}}
    ours, ratio = times.get("astitch"), speedup(row)
    head = f"{row.pattern:15}{row.size:11}{row.title:>18}"
    if ours is None or ratio is None:
        return f"{head}  {row.notes.get('astitch', 'not measured')}"
    return (
        f"{head} {ours:9.1f} {times['xla']:9.1f} {ratio:6.2f} {row.traffic_bytes / ours / 1e3:6.0f} "
        f"{row.kernels:3}+{row.barriers} {row.errors['astitch']:7.0e}"
    )


POINT_HEADER = (
    f"{'op':15}{'group':11}{'shape':>18} {'astitch':>9} {'XLA us':>9} {'/XLA':>6} {'GB/s':>6} "
    f"{'kern':>5} {'error':>7}"
)


def format_report(results: Results, worst: int = WORST) -> str:
    """The worst points, what failed, geometric means."""
    rows = list(results.rows.values())
    ranked = sorted(
        (row for row in rows if speedup(row) is not None), key=lambda row: speedup(row) or 0.0
    )
    lines = [format_run(run) for run in results.runs.values()]
    lines += ["", f"the {min(worst, len(ranked))} worst of {len(rows)}", POINT_HEADER]
    lines += [format_point(row) for row in ranked[:worst]]
    return "\n".join([*lines, "", *format_means(rows)])


def draw_heat_map(results: Results, folder: Path) -> list[Path]:
    """irregular.png and .svg: a panel for each op and group; grey where nothing was measured."""
    from benchmarks.roofline import make_figure, save_figure

    ratios = {(row.pattern, row.size, row.title): speedup(row) for row in results.rows.values()}
    figure = make_figure(17, 11)
    panels = figure.subplots(len(OPS), len(GROUPS), squeeze=False, width_ratios=[1, 2.4, 1.6, 0.8])
    for op, line in zip(OPS, panels, strict=True):
        for group, axes in zip(GROUPS, line, strict=True):
            points = [point for point in list_points([op]) if point.group == group]
            down, right = (sorted({point.place[i] for point in points}) for i in range(2))
            values = [[math.nan] * len(right) for _ in down]
            for point in points:
                ratio = ratios.get((op, group, point.title))
                if ratio is not None:
                    at = down.index(point.place[0]), right.index(point.place[1])
                    values[at[0]][at[1]] = math.log2(ratio)
            axes.set_facecolor("0.8")
            image = axes.imshow(values, aspect="auto", cmap="RdBu", vmin=-2, vmax=2)
            axes.set_xticks(range(len(right)), right, fontsize=6, rotation=90)
            axes.set_yticks(range(len(down)), down, fontsize=6)
            axes.set_title(f"{op}, {group}", fontsize=8)
    bar = figure.colorbar(image, ax=panels, ticks=[-2, -1, 0, 1, 2], shrink=0.5)
    bar.ax.set_yticklabels(["1/4", "1/2", "1", "2", "4"])
    bar.set_label("XLA's time / astitch's (blue: astitch is faster; grey: not measured)")
    latest = max(results.runs.values(), key=lambda run: run.date)
    figure.suptitle(
        f"{latest.gpu}, {latest.date[:10]}: rows down, columns across; slices by offset"
    )
    return save_figure(figure, folder / "irregular")


# ---- the command line --------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.irregular", description=__doc__)
    parser.add_argument("ops", nargs="*", help=f"of {', '.join(OPS)} (default: all)")
    parser.add_argument("--groups", default=",".join(GROUPS), help=f"of {','.join(GROUPS)}")
    prepare.add_options(parser)
    parser.add_argument("--seconds", type=float, help="start no point after this many")
    parser.add_argument("--json", type=Path, help="merge the rows into this file")
    parser.add_argument(
        "--resume", action="store_true", help="leave out the points that the --json file has"
    )
    parser.add_argument(
        "--report", type=Path, nargs="+", metavar="FILE", help="print these files instead"
    )
    parser.add_argument("--worst", type=int, default=WORST, help="points that a report lists")
    parser.add_argument("--plots", type=Path, default=Path("docs"), help="folder of the heat map")
    options = parser.parse_args(arguments)
    if options.report:
        results = NOTHING
        for file in options.report:
            results = results.merge(load_results(file))
        print(
            format_report(results, options.worst),
            "",
            *draw_heat_map(results, options.plots),
            sep="\n",
        )
        return
    unknown = [op for op in options.ops if op not in OPS]
    if unknown:
        parser.error(f"{unknown[0]!r} is none of {', '.join(OPS)}")
    groups = options.groups.split(",")
    unknown = [group for group in groups if group not in GROUPS]
    if unknown:
        parser.error(f"{unknown[0]!r} is none of {', '.join(GROUPS)}")
    points = [p for p in list_points(options.ops or tuple(OPS)) if p.group in groups]
    if options.resume and options.json and options.json.exists():
        done = load_results(options.json).rows
        points = [point for point in points if point.case().key not in done]
    if options.dry:
        print(prepare.format_jobs(make_jobs(points, options.prepare_xla)))
        return
    measure_points(points, options)


def measure_points(points: Sequence[Point], options: argparse.Namespace) -> None:
    """Measures and prints some points at a time; saves after each lot and at the end, also of a failed run."""
    start = time.perf_counter()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    run = kernels.describe_machine()
    print(f"{format_run(run)}\n", flush=True)
    if options.prepare:
        jobs = make_jobs(points, options.prepare_xla)
        prepare.prepare(jobs, options.prepare, options.prepare_xla)
    print(POINT_HEADER, flush=True)
    draw = make_source()
    results = NOTHING
    seconds: Counter[str] = Counter()
    try:
        for first in range(0, len(points), TOGETHER):
            if options.seconds is not None and time.perf_counter() - start > options.seconds:
                print(f"{len(points) - first} points were not started: run again with --resume")
                break
            rows = measure_together(points[first : first + TOGETHER], draw, run.date, seconds)
            gc.freeze()  # what was imported is not looked through after each point
            results = results.merge(Results({run.date: run}, {row.key: row for row in rows}))
            print(*map(format_point, rows), sep="\n", flush=True)
            if options.json:
                save_results(options.json, results)
    finally:
        if options.json and results.rows:
            save_results(options.json, results)
    print(f"\n{format_report(results, options.worst)}")
    print(f"{len(results.rows)} points in {time.perf_counter() - start:.0f} s")
    print(kernels.format_seconds(seconds))


if __name__ == "__main__":
    main()
