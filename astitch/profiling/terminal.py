"""A Report -> tables for the terminal, at most 100 columns wide; colours only where a person looks."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from astitch.profiling.compare import Comparison
from astitch.profiling.layers import LayerRow, tabulate_layers
from astitch.profiling.report import KINDS, MEMORY, Kernel, Report, Side
from astitch.profiling.wording import (
    ABOVE_LIGHT,
    KIND_NAMES,
    OVERHEAD,
    SIDE_NAMES,
    UNKNOWN,
    format_bytes,
    format_count,
    format_percent,
    format_ratio,
    format_seconds,
    format_spread,
    format_us,
    label_kernels,
    name_basis,
    rank_kernels,
    split_time,
)

WIDTH = 100

NAME_WIDTH = 24
"""The most characters of a kernel's name."""

MOST_REFUSALS = 8
"""Refusals that the terminal shows; the page and the JSON have all."""


def render_text(report: Report, width: int = WIDTH, kernels: int = 10) -> str:
    """Without colours.  kernels: how many of each side are listed."""
    out = io.StringIO()
    print_report(
        report,
        Console(file=out, width=width, no_color=True, highlight=False, markup=False),
        kernels,
    )
    return out.getvalue()


def print_report(report: Report, console: Console, kernels: int = 10) -> None:
    """The whole report."""
    console.print(Text(f"astitch-profile  {report.target}", style="bold"))
    console.print(Text(name_basis(report), style="dim"))
    for number, line in enumerate(report.share):
        console.print(Text(line, style="dim" if number else "bold"))
    console.print()
    console.print(tabulate_sides(report))
    for side in report.sides:
        if side.missing:
            console.print(Text(f"{SIDE_NAMES[side.name]}: {side.missing}", style="yellow"))
    console.print()
    for side in report.sides:
        if side.kernels and kernels:
            console.print(tabulate_kernels(side, kernels))
    if any((k.light_share or 0.0) > 1 for s in report.sides for k in rank_kernels(s, kernels)):
        console.print(Text(ABOVE_LIGHT, style="dim"))
    if any(kernel.counters for side in report.sides for kernel in side.kernels):
        console.print(tabulate_counters(report))
    layers = tabulate_layers(report)
    if kernels and len(layers) > 1:
        console.print(list_layers(report, layers[:kernels]))
    if report.ablation:
        console.print(tabulate_ablation(report))
    if report.refusals or report.outside or report.loops:
        console.print(list_decisions(report))
    for note in [
        *report.notes,
        *(f"{SIDE_NAMES[s.name]}: {n}" for s in report.sides for n in s.notes),
    ]:
        console.print(Text(f"note: {note}", style="dim"))


def make_table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )


def tabulate_sides(report: Report) -> Table:
    """One line for each thing that both sides have."""
    xla, ours = report.sides
    table = make_table("")
    table.add_column("")
    for name in ("XLA", "astitch", "XLA / astitch"):
        table.add_column(name, justify="right")

    def add(name: str, theirs: str, mine: str, ratio: str = "", style: str = "") -> None:
        table.add_row(name, theirs, mine, ratio, style=style)

    if report.measured:
        ratio = format_ratio(xla.total_us, ours.total_us)
        walls = format_spread(xla.wall), format_spread(ours.wall)
        add("a call, pipelined", walls[0], walls[1], ratio, "bold")
    split = [split_time(report, side) for side in report.sides]
    what = "" if report.measured else ", speed of light"
    for kind in (*KINDS, OVERHEAD):
        theirs, mine = split[0][kind], split[1][kind]
        name = KIND_NAMES.get(kind, OVERHEAD if report.measured else "launches, least time")
        bold = "bold" if kind == MEMORY else ""
        add(
            f"{name}{what if kind != OVERHEAD else ''}",
            format_us(theirs),
            format_us(mine),
            format_ratio(theirs, mine),
            bold,
        )
    if report.measured and ours.stitched_us is not None:
        add("stitched kernels", UNKNOWN, format_us(ours.stitched_us))
    add("stitched kernels, projected", UNKNOWN, format_us(ours.projected_us))
    for kind in KINDS:
        theirs, mine = xla.count(kind), ours.count(kind)
        add(
            f"launches, {KIND_NAMES[kind]}",
            format_count(theirs),
            format_count(mine),
            format_ratio(theirs, mine),
            "bold" if kind == MEMORY else "",
        )
    add(
        "barriers of the grid",
        "0" if not xla.missing else UNKNOWN,
        format_count(ours.barriers),
        f"{format_us(ours.barrier_us)} projected" if ours.barriers else "",
    )
    add("launches, stitched", "0", format_count(sum(k.launches for k in ours.stitched)))
    add("speed of light reached, stitched", UNKNOWN, format_percent(report.light_share))
    add("compile time", format_seconds(xla.compile_s), format_seconds(ours.compile_s))
    add("device memory, planned", format_bytes(xla.planned_bytes), format_bytes(ours.planned_bytes))
    return table


def tabulate_kernels(side: Side, most: int) -> Table:
    """The slowest kernels of a side."""
    shown = rank_kernels(side, most)
    measured = any(kernel.us is not None for kernel in shown)
    rest = len(side.kernels) - len(shown)
    title = f"{SIDE_NAMES[side.name]}: {len(side.kernels)} kernels" + (
        f", the {most} slowest" if rest > 0 else ""
    )
    table = make_table(title)
    table.add_column("kernel", no_wrap=True, overflow="ellipsis", max_width=NAME_WIDTH)
    labels = label_kernels(shown, NAME_WIDTH)
    rows = [_kernel_cells(kernel, measured) for kernel in shown]
    headings = [name for name in rows[0] if any(row[name] != UNKNOWN for row in rows)]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for kernel, row in zip(shown, rows, strict=True):
        table.add_row(
            Text(labels[kernel.name], overflow="ellipsis", no_wrap=True),
            *(row[heading] for heading in headings),
            style="" if kernel.kind == MEMORY else "dim",
        )
    return table


def _kernel_cells(kernel: Kernel, measured: bool) -> dict[str, str]:
    """What each column shows of a kernel; a column in which nothing is known is left out."""
    traffic = kernel.traffic_bytes
    return {
        "n": format_count(kernel.launches),
        "measured" if measured else "projected": format_us(
            kernel.us if measured else kernel.projected_us
        ),
        "light": format_us(kernel.bound_us),
        "%": format_percent(kernel.light_share),
        "limit": kernel.limit.removesuffix(" cores") or UNKNOWN,
        "MB": UNKNOWN if traffic is None else format_megabytes(traffic),
        "grid × block": UNKNOWN if kernel.grid is None else f"{kernel.grid}×{kernel.block}",
        "reg": UNKNOWN if kernel.registers is None else str(kernel.registers),
        "occ": format_percent(kernel.occupancy),
        "SM": format_percent(kernel.sm_efficiency),
    }


def format_megabytes(size: float) -> str:
    """Without the unit, which the column has."""
    return f"{size / 1e6:.{2 if size < 9.995e6 else 1 if size < 99.95e6 else 0}f}"


def list_layers(report: Report, layers: Sequence[LayerRow]) -> Table:
    """One line for each layer of the model."""
    table = make_table(f"Layers, {'measured' if report.measured else 'speed of light'}")
    table.add_column("layer", overflow="ellipsis", no_wrap=True, max_width=48)
    theirs, ours = (bool(side.kernels) for side in report.sides)
    both = theirs and ours
    headings = ("n", "XLA") * theirs + ("n", "astitch") * ours + ("XLA / astitch",) * both
    for heading in (*headings, "one kernel"):
        table.add_column(heading, justify="right")
    for row in layers:
        cells = [format_count(row.xla_launches), format_us(row.xla_us)] if theirs else []
        cells += [format_count(row.astitch_launches), format_us(row.astitch_us)] if ours else []
        cells += [format_ratio(row.xla_us, row.astitch_us)] if both else []
        table.add_row(row.name, *cells, format_us(row.whole_us))
    return table


def tabulate_counters(report: Report) -> Table:
    """What Nsight Compute counted, of one call."""
    rows = [(s, k) for s in report.sides for k in rank_kernels(s, len(s.kernels)) if k.counters]
    names = list(dict.fromkeys(name for _, kernel in rows for name in kernel.counters))
    table = make_table("Hardware counters of one call")
    table.add_column("")
    table.add_column("kernel", no_wrap=True, overflow="ellipsis", max_width=NAME_WIDTH)
    labels = {side.name: label_kernels(side.kernels, NAME_WIDTH) for side in report.sides}
    for heading in (*names, "occ", "SM"):
        table.add_column(heading, justify="right")
    for side, kernel in rows:
        counted = (kernel.counters.get(name) for name in names)
        cells = [UNKNOWN if value is None else f"{value:,.0f}" for value in counted]
        shares = format_percent(kernel.occupancy), format_percent(kernel.sm_efficiency)
        table.add_row(SIDE_NAMES[side.name], Text(labels[side.name][kernel.name]), *cells, *shares)
    return table


def tabulate_ablation(report: Report) -> Table:
    """What each part of the compiler is worth."""
    table = make_table("Ablation: the memory-intensive part with only so much of the compiler")
    table.add_column("")
    for heading in ("kernels", "barriers", "time"):
        table.add_column(heading, justify="right")
    table.add_column("", style="dim")
    for row in report.ablation:
        us = format_us(row.us) + (
            " proj." if row.us is not None and row.basis == "projected" else ""
        )
        table.add_row(row.name, format_count(row.kernels), str(row.barriers), us, row.note)
    return table


def list_decisions(report: Report) -> Group:
    """Refusals with where they come from, and what is left to XLA."""
    lines: list[Padding | Text] = []
    if report.refusals:
        lines.append(
            Text(f"Refusals: why two stitch ops are two ({len(report.refusals)})", style="bold")
        )
    for refusal in report.refusals[:MOST_REFUSALS]:
        pair = " → ".join(dict.fromkeys((refusal.producer, refusal.consumer)))
        lines.append(Padding(Text(f"{pair}: {refusal.reason}"), (0, 0, 0, 2)))
        lines += [
            Padding(Text(source, style="dim"), (0, 0, 0, 4)) for source in refusal.sources[:2]
        ]
    if len(report.refusals) > MOST_REFUSALS:
        lines.append(
            Text(
                f"  {len(report.refusals) - MOST_REFUSALS} more with --html or --json", style="dim"
            )
        )
    for title, told in (("Left to XLA", report.outside), ("Loops", report.loops)):
        if told:
            lines.append(Text(f"{title} ({len(told)})", style="bold"))
            lines += [Padding(Text(line), (0, 0, 0, 2)) for line in told[:MOST_REFUSALS]]
    return Group(*lines, "")


def print_comparison(comparison: Comparison, console: Console) -> None:
    """What changed since the base, regressions marked."""
    table = make_table(f"Since the base of {comparison.base}")
    table.add_column("astitch")
    for heading in ("base", "now", "change"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for change in comparison.changes:
        style = "red" if change.regressed else "green" if change.share < -0.005 else ""
        verdict = "REGRESSION" if change.regressed else ""
        table.add_row(
            change.what, change.before, change.after, f"{change.share:+.1%}", verdict, style=style
        )
    console.print(table)
    for note in comparison.notes:
        console.print(Text(f"note: {note}", style="yellow"))
    count = len(comparison.regressions)
    console.print(Text(f"{count} regressions" if count else "no regression", style="bold"))
