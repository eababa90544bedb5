"""What was measured, as values: rows in JSON files, merged, printed as tables and geometric means.

A row is one case in one run: peers are only ever compared within a row.  Merging files replaces a row by the newer one
of the same case, whole.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 2
"""1, which is read as well, had GPU times by clocks of the host and by events."""


@dataclass(frozen=True, slots=True)
class Run:
    """One invocation: where and with what.  date: ISO 8601, UTC.  The limits are those of timing.Limits.  clock: of the
    GPU times, "profiler" or (once) "host".  gap_us: see spans.measure_gap.
    """

    date: str
    gpu: str
    driver: str
    versions: Mapping[str, str]
    copy_gbs: float
    l2_copy_gbs: float
    fma_gflops: float
    clock: str = "host"
    gap_us: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One case.  Keys of the mappings: astitch, astitch.jit and the peers.

    run: its date.  wall_us: pipelined, a call.  gpu_us: the host's time hidden, gaps between kernels in it; kernel_us:
    the kernels alone; launches: how many (see spans.GpuTime).  errors: largest difference from the
    reference over the reference's largest element.  reference: "float64" or "xla".  other_steps: ops that
    XLA computed between astitch's kernels.  notes: why a peer, or astitch, is missing.
    """

    pattern: str
    size: str
    dtype: str
    title: str
    run: str
    traffic_bytes: int
    flops: int = 0
    kernels: int = 0
    barriers: int = 0
    other_steps: Sequence[str] = ()
    wall_us: Mapping[str, float] = field(default_factory=dict)
    gpu_us: Mapping[str, float] = field(default_factory=dict)
    kernel_us: Mapping[str, float] = field(default_factory=dict)
    launches: Mapping[str, float] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    reference: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.pattern}|{self.size}|{self.dtype}|{self.title}"

    def speedup_over_xla(self, clock: str) -> float | None:
        """XLA's time, the better of its two, over astitch's."""
        return self._speedup(clock, ("xla", "xla-donated"))

    def speedup_over_best(self, clock: str) -> float | None:
        """The best peer's time over astitch's.  clock: "wall_us", "gpu_us" or "kernel_us"."""
        return self._speedup(clock, None)

    def best_peer(self, clock: str) -> str | None:
        times = self._peer_times(clock, None)
        return min(times, key=lambda name: times[name]) if times else None

    def _speedup(self, clock: str, among: Sequence[str] | None) -> float | None:
        ours = getattr(self, clock).get("astitch")
        times = self._peer_times(clock, among)
        return min(times.values()) / ours if ours and times else None

    def _peer_times(self, clock: str, among: Sequence[str] | None) -> dict[str, float]:
        times: Mapping[str, float] = getattr(self, clock)
        return {
            name: us
            for name, us in times.items()
            if not name.startswith("astitch") and us > 0 and (among is None or name in among)
        }


@dataclass(frozen=True, slots=True)
class Results:
    """runs by date, rows by key."""

    runs: Mapping[str, Run]
    rows: Mapping[str, Row]

    def merge(self, other: Results) -> Results:
        """Both; of two rows of one case the one of the later run."""
        rows = dict(self.rows)
        for key, row in other.rows.items():
            if key not in rows or rows[key].run <= row.run:
                rows[key] = row
        used = {row.run for row in rows.values()}
        runs = {d: run for d, run in {**self.runs, **other.runs}.items() if d in used}
        return Results(runs, rows)


NOTHING = Results({}, {})


def load_results(path: Path) -> Results:
    """Raises ValueError for a file that is not of this program's."""
    data = json.loads(path.read_text())
    if not isinstance(data, dict) or data.get("schema") not in (1, SCHEMA):
        raise ValueError(f"{path} holds no results of benchmarks.kernels (schema {SCHEMA})")
    runs = {date: Run(**run) for date, run in data["runs"].items()}
    return Results(runs, {key: Row(**row) for key, row in data["rows"].items()})


def save_results(path: Path, results: Results) -> None:
    """Merged into what the file holds, replaced at once so that a killed run leaves a whole file."""
    if path.exists():
        results = load_results(path).merge(results)
    data = {
        "schema": SCHEMA,
        "runs": {date: asdict(run) for date, run in sorted(results.runs.items())},
        "rows": {key: asdict(row) for key, row in results.rows.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(data, indent=1))
    partial.replace(path)


# ---- tables ------------------------------------------------------------------------------------------------------

HEADER = (
    f"{'pattern':23}{'size':7}{'dtype':5} {'shape':>20} {'astitch':>8} {'.jit':>8} {'XLA':>8} "
    f"{'torch':>8} {'Liger':>8} {'/best':>6} {'/XLA':>6} {'GB/s':>6} {'%copy':>6} {'kern':>5} "
    f"{'error':>7} | {'astitch':>8} {'XLA':>8} {'n':>4} {'torch':>8} {'Liger':>8} {'/best':>6} {'/XLA':>6} "
    f"{'k/best':>6} {'%copy':>6}"
)
LEGEND = """\
us a call: left of the bar wall time of pipelined calls, right of it GPU time by the device's own clock: from the first
kernel's start to the last one's end, gaps between kernels in it, the host's time hidden; n: XLA's launches; k/best: the
same ratio of the kernels' time alone.  astitch: the program on device arrays; .jit: through astitch.jit, results as JAX
arrays.  XLA: d where donating its state is faster.
/best, /XLA: the best peer's, XLA's time over astitch's.  GB/s: least possible traffic over time; %copy: of the
device-to-device copy.  kern: kernels + global barriers, * with steps of XLA.  error: largest difference
from a float64 computation (x: from XLA's result) over its largest element."""


def format_row(row: Row, copy_gbs: float) -> str:
    """One line of the table; a dash where nothing was measured."""
    wall, gpu = row.wall_us, row.gpu_us
    ours = wall.get("astitch")
    gbs = row.traffic_bytes / ours / 1e3 if ours else None
    share = 100 * gbs / copy_gbs if gbs else None
    gpu_us = gpu.get("astitch")
    on_gpu = 100 * row.traffic_bytes / gpu_us / 1e3 / copy_gbs if gpu_us else None
    xla_us, donated = _best_xla(wall)
    xla = _number(xla_us, 8 - donated, 1) + "d" * donated
    kernels = f"{row.kernels}+{row.barriers}{'*' if row.other_steps else ''}" if ours else "-"
    error = row.errors.get("astitch")
    shown = "-" if error is None else f"{error:.0e}{'x' if row.reference == 'xla' else ''}"
    line = (
        f"{row.pattern:23}{row.size:7}{row.dtype:5} {row.title:>20} {_number(ours, 8, 1)} "
        f"{_number(wall.get('astitch.jit'), 8, 1)} {xla} {_number(_best_torch(wall), 8, 1)} "
        f"{_number(wall.get('liger'), 8, 1)} {_number(row.speedup_over_best('wall_us'), 6, 2)} "
        f"{_number(row.speedup_over_xla('wall_us'), 6, 2)} {_number(gbs, 6, 0)} {_number(share, 6, 1)} "
        f"{kernels:>5} {shown:>7} | {_number(gpu.get('astitch'), 8, 1)} "
        f"{_number(_best_xla(gpu)[0], 8, 1)} {_number(row.launches.get('xla'), 4, 0)} "
        f"{_number(_best_torch(gpu), 8, 1)} {_number(gpu.get('liger'), 8, 1)} "
        f"{_number(row.speedup_over_best('gpu_us'), 6, 2)} {_number(row.speedup_over_xla('gpu_us'), 6, 2)} "
        f"{_number(row.speedup_over_best('kernel_us'), 6, 2)} {_number(on_gpu, 6, 1)}"
    )
    # That a peer has no such function is no failure of it.
    failed = {
        name: note
        for name, note in row.notes.items()
        if name == "astitch" or not note.startswith("NotMeasured")
    }
    return "\n".join([line, *(f"    {name}: {note}" for name, note in failed.items())])


def _number(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def _best_xla(times: Mapping[str, float]) -> tuple[float | None, bool]:
    """XLA's better time, and whether it is the one with donation."""
    plain, donated = times.get("xla"), times.get("xla-donated")
    if donated is not None and (plain is None or donated < plain):
        return donated, True
    return plain, False


def _best_torch(times: Mapping[str, float]) -> float | None:
    known = [times[name] for name in ("torch", "torch-max") if name in times]
    return min(known, default=None)


def format_results(results: Results) -> str:
    """Runs, table and geometric means."""
    lines = [format_run(run) for run in results.runs.values()]
    lines += ["", LEGEND, "", HEADER]
    for row in results.rows.values():
        lines.append(format_row(row, results.runs[row.run].copy_gbs))
    return "\n".join([*lines, "", *format_means(list(results.rows.values()))])


def format_run(run: Run) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return (
        f"{run.date}  {run.gpu}, driver {run.driver}; {versions}; copy {run.copy_gbs:.0f} GB/s, "
        f"in the L2 {run.l2_copy_gbs:.0f} GB/s, f32 {run.fma_gflops / 1e3:.1f} TFLOP/s; GPU times by {run.clock}"
        + "".join(f", gap by {name} {us:.2f} us" for name, us in run.gap_us.items())
    )


def format_means(rows: Sequence[Row]) -> list[str]:
    """Geometric means of the speedups, of all rows, by size and by dtype; then what is not in them, and why."""
    groups: list[tuple[str, list[Row]]] = [("all", list(rows))]
    for name in ("size", "dtype"):
        for value in dict.fromkeys(getattr(row, name) for row in rows):
            groups.append((value, [row for row in rows if getattr(row, name) == value]))
    ratios: tuple[tuple[str, Callable[[Row], float | None]], ...] = (
        ("wall/best", lambda row: row.speedup_over_best("wall_us")),
        ("wall/XLA", lambda row: row.speedup_over_xla("wall_us")),
        ("GPU/best", lambda row: row.speedup_over_best("gpu_us")),
        ("GPU/XLA", lambda row: row.speedup_over_xla("gpu_us")),
        ("k/best", lambda row: row.speedup_over_best("kernel_us")),
        ("k/XLA", lambda row: row.speedup_over_xla("kernel_us")),
    )
    lines = [
        f"{'geometric mean of':18}" + "".join(f"{name:>10} {'slower':>9}" for name, _ in ratios)
    ]
    for name, group in groups:
        cells = ""
        for _, ratio in ratios:
            values = [value for value in map(ratio, group) if value is not None]
            mean = geometric_mean(values)
            slower = f"{sum(value < 1 for value in values)}/{len(values)}"
            cells += f"{_number(mean, 10, 3)} {slower:>9}"
        lines.append(f"{name + f' ({len(group)})':18}{cells}")
    absent = [row for row in rows if "astitch" not in {**row.wall_us, **row.gpu_us}]
    if absent:
        lines.append(f"not in the means: {len(absent)} cases that astitch did not run")
        lines += [f"  {row.key}: {row.notes.get('astitch', 'not measured')}" for row in absent]
    wrong = [
        f"  {row.key}: {name} {error:.1e}"
        for row in rows
        for name, error in row.errors.items()
        if not error <= tolerance(row)
    ]
    if wrong:
        lines += ["results that differ from the reference by more than rounding explains:", *wrong]
    return lines


def tolerance(row: Row) -> float:
    """The error that rounding explains: a few units of the dtype's last place; one step for e4m3."""
    if row.pattern.endswith("_f8"):
        return 2**-3
    return 2e-4 if row.dtype == "f32" else 3e-2


def geometric_mean(values: Iterable[float]) -> float | None:
    """None of no values."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else None


def describe(value: Any, most: int = 200) -> str:
    """An exception in one line."""
    text = " ".join(f"{type(value).__name__}: {value}".split())
    return text if len(text) <= most else text[: most - 3] + "..."
