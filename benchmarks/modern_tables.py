"""Rows of benchmarks.modern -> the text of its two tables, and what stands below them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from astitch.profiling.report import KINDS
from benchmarks.modern_ahead import AheadRow
from benchmarks.modern_gpu import SIDES, GpuRow
from benchmarks.results import geometric_mean

LEAST = 0.98
"""A ratio below it is a miss, in memory too: 1.02 times as much."""

MOST_ERROR_RATIO = 2.0
"""An error of more than so many times XLA's is a miss."""


def list_misses(title: str, ratios: Mapping[str, float]) -> list[str]:
    """The geometric mean, and the rows on the wrong side, worst first."""
    mean = geometric_mean(list(ratios.values()))
    shown = "-" if mean is None else f"{mean:.3f}"
    worse = sorted((ratio, name) for name, ratio in ratios.items() if ratio < LEAST)
    told = ", ".join(f"{name} {ratio:.2f}" for ratio, name in worse) or "none"
    return [
        f"{title}: geometric mean of XLA / astitch {shown} of {len(ratios)} programs",
        f"  below {LEAST} ({len(worse)}): {told}",
    ]


# ---- compiled for a GPU that is not here ---------------------------------------------------------------------------

COLUMNS = {
    "light ms": ("light_ms", 2),
    "projected ms": ("projected_ms", 2),
    "copies ms": ("copied_ms", 3),
    "all light ms": ("all_light_ms", 2),
    "planned MB": ("planned_mb", 0),
}
"""Of the table, by their titles: the field of AheadSide and its digits."""

AHEAD_HEADER = (
    f"{'program':21} {'memory':>13} {'ours':>5} {'products':>13} | "
    + " | ".join(f"{title:>15} {'/':>5}" for title in COLUMNS)
    + f" | {'compile s':>9}"
)
AHEAD_LEGEND = """\
XLA / astitch of one call: launches of memory-intensive kernels, those of them that are astitch's, launches of products
and convolutions | memory-intensive kernels at the speed of light | as projected | copies of arrays at the speed of
light, which are in neither | all kernels at the speed of light | memory as planned: arguments, results and temporaries
| s to compile.  /: XLA's over astitch's; above 1 astitch needs less."""


def format_ahead(row: AheadRow) -> str:
    """One line of the table, and one for each note."""
    x, a = row.xla, row.astitch
    if x is None or a is None:
        return "\n".join([f"{row.name:21} failed", *(f"    {note}" for note in row.notes)])
    cells = []
    for field, digits in COLUMNS.values():
        theirs, ours = getattr(x, field), getattr(a, field)
        ratio = f"{theirs / ours:.2f}" if ours else "-"
        cells.append(f"{f'{theirs:.{digits}f} / {ours:.{digits}f}':>15} {ratio:>5}")
    line = (
        f"{row.name:21} {f'{x.memory:g} / {a.memory:g}':>13} {a.ours:5g} "
        f"{f'{x.products:g} / {a.products:g}':>13} | {' | '.join(cells)} | "
        f"{f'{x.compile_s:.0f} / {a.compile_s:.0f}':>9}"
    )
    return "\n".join([line, *(f"    {note}" for note in (*row.notes, *row.outside))])


def summarise_ahead(rows: Sequence[AheadRow]) -> list[str]:
    lines = []
    for title, (field, _) in COLUMNS.items():
        ratios = {}
        for row in rows:
            theirs, ours = (getattr(side, field, None) for side in (row.xla, row.astitch))
            if theirs and ours:
                ratios[row.name] = theirs / ours
        lines += list_misses(title, ratios)
    failed = [row.name for row in rows if not row.is_whole]
    return [*lines, f"failed ({len(failed)}): {', '.join(failed) or 'none'}"]


# ---- measured ----------------------------------------------------------------------------------------------------

GPU_HEADER = (
    f"{'program':21} {'side':5} {'us':>9} {'XLA/':>6} | {'GPU us':>23} | {'launches':>14} | {'host us':>13} "
    f"| {'first s':>7} | {'MB':>6} | {'error':>7} {'update':>7}"
)
GPU_LEGEND = """\
us a call, pipelined, and XLA's over it | GPU time of memory-intensive kernels / products and convolutions / copies |
launches of each | host's time for a call, GPU idle / calls in its queue | first call | memory as planned (torch: the
most allocated) | error against f64: of the worst result; of the change of what is carried, norm over norm.
xla: jax.jit.  jit: astitch.jit as the decorator.  hook: jax.jit within astitch.enabled().  torch: torch.compile."""


def format_gpu(row: GpuRow) -> str:
    """A line for each side, and one for each note."""
    lines = []
    for side in SIDES:
        if side not in row.compile_s:
            continue
        wall, theirs = row.wall_us.get(side), row.wall_us.get("xla")
        ratio = f"{theirs / wall:.2f}" if wall and theirs else "-"
        times = "/".join(show(row.gpu_us.get(side, {}).get(kind)) for kind in KINDS)
        counts = "/".join(show(row.kernels.get(side, {}).get(kind)) for kind in KINDS)
        host = f"{show(row.host_us.get(side))}/{show(row.queued_us.get(side))}"
        errors = [row.output_error.get(side), row.update_error.get(side)]
        shown = " ".join(f"{'-' if e is None else format(e, '.0e'):>7}" for e in errors)
        lines.append(
            f"{row.name:21} {side:5} {show(wall):>9} {ratio:>6} | {times:>23} | {counts:>14} | {host:>13} "
            f"| {row.compile_s[side]:7.1f} | {show(row.planned_mb.get(side)):>6} | {shown}"
        )
    if not lines:
        lines = [f"{row.name:21} failed"]
    return "\n".join([*lines, *(f"    {what}: {note}" for what, note in row.notes.items())])


def show(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def summarise_gpu(rows: Sequence[GpuRow]) -> list[str]:
    """Means and misses of each way through astitch; torch's ratio to it where torch took part."""
    values: dict[str, Callable[[GpuRow, str], Any]] = {
        "time": lambda row, side: row.wall_us.get(side),
        "memory": lambda row, side: row.planned_mb.get(side),
    }
    lines = []
    for side in ("hook", "jit"):
        for title, value in values.items():
            ratios = divide(rows, value, "xla", side)
            lines += list_misses(f"{title}, {side}", ratios)
    beside = divide(rows, values["time"], "torch", "hook")
    told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in beside.items())
    lines.append(f"torch.compile's time over the hook's: {told or 'not measured'}")
    for kind in ("output_error", "update_error"):
        wrong = [
            f"{row.name} {side} {errors[side]:.0e} (XLA {errors['xla']:.0e})"
            for row in rows
            for errors in [getattr(row, kind)]
            for side in ("jit", "hook")
            if side in errors and errors[side] > MOST_ERROR_RATIO * max(errors.get("xla", 0), 1e-12)
        ]
        what = kind.replace("_", " ")
        lines.append(
            f"{what} above {MOST_ERROR_RATIO:g} times XLA's ({len(wrong)}): {', '.join(wrong) or 'none'}"
        )
    failed = [row.name for row in rows if not row.is_whole]
    return [*lines, f"something failed ({len(failed)}): {', '.join(failed) or 'none'}"]


def divide(
    rows: Sequence[GpuRow], value: Callable[[GpuRow, str], Any], first: str, second: str
) -> dict[str, float]:
    pairs = {row.name: (value(row, first), value(row, second)) for row in rows}
    return {name: a / b for name, (a, b) in pairs.items() if a and b}
