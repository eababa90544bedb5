"""The plots: a roofline of every case and peer, and the speedups case by case.

Takes Results, hands on PNG and SVG files.  The roofs are those that the run measured on its GPU: copies in memory and
in the L2, f32 multiply-adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Results, Row, Run

COLOURS: Mapping[str, str] = {
    "astitch": "#0b6e4f",
    "xla": "#d1495b",
    "xla-donated": "#d1495b",
    "torch": "#edae49",
    "torch-max": "#edae49",
    "liger": "#30638e",
}
MARKERS: Mapping[str, str] = {"tiny": "v", "small": "^", "medium": "s", "full": "o"}


def draw_plots(results: Results, folder: Path) -> list[Path]:
    """roofline and speedups, each as PNG and SVG.  Raises ImportError without matplotlib, ValueError without rows."""
    rows = [row for row in results.rows.values() if row.wall_us]
    if not rows:
        raise ValueError("no measured rows to draw")
    latest = results.runs[max(row.run for row in rows)]
    return [
        *save_figure(draw_roofline(rows, latest), folder / "roofline"),
        *save_figure(draw_speedups(rows, latest), folder / "speedups"),
    ]


def save_figure(figure: Any, stem: Path) -> list[Path]:
    """stem.png and stem.svg; the same figure gives the same files."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    figure.savefig(paths[0], dpi=150, bbox_inches="tight")
    figure.savefig(paths[1], bbox_inches="tight", metadata={"Date": None})
    return paths


def make_figure(width: float, height: float) -> Any:
    """An empty figure, in inches, that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_roofline(rows: Sequence[Row], run: Run) -> Any:
    """Operations a byte of least traffic against operations a second; GPU time where it was measured."""
    figure = make_figure(12, 7)
    axes = figure.add_subplot()
    points = [(row.flops / row.traffic_bytes, row) for row in rows if row.flops]
    low = min((x for x, _ in points), default=0.1) / 2
    high = max((x for x, _ in points), default=10.0) * 4
    ridge = run.fma_gflops / run.copy_gbs
    high = max(high, 2 * ridge)
    for name, gbs, style in (
        ("device-to-device copy", run.copy_gbs, "-"),
        ("copy in the L2", run.l2_copy_gbs, "--"),
    ):
        knee = run.fma_gflops / gbs
        axes.plot(
            [low, knee, high],
            [low * gbs, run.fma_gflops, run.fma_gflops],
            style,
            color="0.35",
            label=f"{name}, {gbs:.0f} GB/s",
        )
    axes.annotate(
        f"f32 multiply-adds, {run.fma_gflops / 1e3:.1f} TFLOP/s",
        (high, run.fma_gflops),
        ha="right",
        va="bottom",
        fontsize=8,
    )
    for intensity, row in points:
        for peer, us in choose_times(row).items():
            ours = peer == "astitch"
            axes.plot(
                intensity,
                row.flops / us / 1e3,
                MARKERS.get(row.size, "o"),
                color=COLOURS.get(peer, "0.5"),
                markerfacecolor=COLOURS["astitch"] if ours else "none",
                markersize=6 if ours else 5,
                alpha=0.9 if ours else 0.6,
                zorder=3 if ours else 2,
            )
    _add_legend(axes, rows)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations a byte of least possible traffic (astitch's op table: exp = 20)")
    axes.set_ylabel("achieved, 1e9 operations a second")
    axes.set_title(f"{run.gpu}, {run.date[:10]}")
    axes.grid(True, which="both", alpha=0.2)
    return figure


def choose_times(row: Row) -> dict[str, float]:
    """Microseconds by peer: of the GPU where measured, else of the wall; without astitch.jit, the same kernels."""
    times = {**row.wall_us, **{name: us for name, us in row.gpu_us.items() if us > 0}}
    times.pop("astitch.jit", None)
    return times


def _add_legend(axes: Any, rows: Sequence[Row], *without: str) -> None:
    present = {peer for row in rows for peer in choose_times(row)} - set(without)
    for peer in (p for p in COLOURS if p in present):
        face = COLOURS[peer] if peer == "astitch" else "none"
        axes.plot([], [], "o", color=COLOURS[peer], markerfacecolor=face, label=peer)
    for size in (s for s in MARKERS if any(row.size == s for row in rows)):
        axes.plot([], [], MARKERS[size], color="0.3", markerfacecolor="none", label=size)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def draw_speedups(rows: Sequence[Row], run: Run) -> Any:
    """The best peer's GPU time over astitch's, one line a pattern: right of 1 astitch is faster."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    patterns = list(dict.fromkeys(row.pattern for row in rows))
    figure = make_figure(10, 1.5 + 0.32 * len(patterns))
    axes = figure.add_subplot()
    for row in rows:
        times = choose_times(row)
        ours = times.pop("astitch", None)
        if ours is None or not times:
            continue
        peer = min(times, key=lambda name: times[name])
        offset = 0.15 if row.dtype == "bf16" else -0.15
        axes.plot(
            times[peer] / ours,
            patterns.index(row.pattern) + offset,
            MARKERS.get(row.size, "o"),
            color=COLOURS.get(peer, "0.5"),
            markerfacecolor=COLOURS.get(peer, "0.5") if row.dtype == "bf16" else "none",
        )
    axes.axvline(1.0, color="0.35", linewidth=1)
    axes.set_yticks(range(len(patterns)), patterns, fontsize=8)
    axes.set_ylim(len(patterns) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.set_xlabel("best peer's time / astitch's (colour: which peer; filled: bf16, hollow: f32)")
    axes.set_title(f"{run.gpu}, {run.date[:10]}")
    axes.grid(True, axis="x", which="both", alpha=0.2)
    axes.xaxis.set_major_locator(LogLocator(2))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    _add_legend(axes, rows, "astitch")
    return figure
