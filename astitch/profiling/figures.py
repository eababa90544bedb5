"""A Report -> pictures as inline SVG: stacked bars, the roofline, the timeline and the graph of the stitched program.

Everything is drawn here, so a page without its script, or on paper, still shows it; the script adds tips and keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise

from astitch.profiling.report import MEMORY, PROJECTED, Ablation, Event, Kernel, Report, Side, Step
from astitch.profiling.wording import (
    KIND_NAMES,
    OVERHEAD,
    SIDE_NAMES,
    describe_split,
    format_bytes,
    format_count,
    format_percent,
    format_us,
    shorten_names,
    split_time,
)

PARTS = (*KIND_NAMES, OVERHEAD)


def part_name(part: str, report: Report) -> str:
    if part == OVERHEAD:
        return "overhead" if report.measured else "launches"
    return KIND_NAMES[part]


# ---- stacked bars ------------------------------------------------------------------------------------------------

BAR_WIDTH, BAR_HEIGHT, BAR_LEFT, BAR_RIGHT = 960, 30, 130, 90


def draw_split(report: Report) -> str:
    """The time of a call by class, one bar for each side."""
    bars = [(SIDE_NAMES[s.name], describe_split(s), split_time(report, s)) for s in report.sides]
    if not report.measured and report.astitch.projected_us is not None:
        # The stitched kernels as projected, launches included; the others at their speed of light.
        split = dict(bars[1][2])
        launch_us = report.machine.launch_us
        stitched = report.astitch.stitched
        light = sum((k.bound_us or 0.0) - k.launches * launch_us for k in stitched)
        split[MEMORY] = (split[MEMORY] or 0.0) - light + report.astitch.projected_us
        split[OVERHEAD] = (split[OVERHEAD] or 0.0) - sum(k.launches for k in stitched) * launch_us
        bars.append(("astitch", PROJECTED, split))
    known = [sum(us or 0.0 for us in split.values()) for _, _, split in bars]
    scale = (BAR_WIDTH - BAR_LEFT - BAR_RIGHT) / max([*known, 1e-9])
    row = BAR_HEIGHT + 22
    height = row * len(bars) + 8
    out = [_open_svg(BAR_WIDTH, height, "Time of a call by class of kernel")]
    for number, (name, what, split) in enumerate(bars):
        y = number * row + 10
        faint = " faint" if what == PROJECTED else ""
        out.append(_text(0, y + 13, name, "label strong"))
        out.append(_text(0, y + 28, what, "label small"))
        if all(us is None for us in split.values()):
            out.append(_text(BAR_LEFT, y + 20, "not known", "label"))
            continue
        x = float(BAR_LEFT)
        for part in PARTS:
            us = split[part] or 0.0
            width = us * scale
            if width <= 0:
                continue
            tip = f"{name}: {part_name(part, report)} {format_us(us)} ({what})"
            out.append(
                f'<rect class="part {part}{faint}" x="{x:.1f}" y="{y}" width="{max(width, 0.6):.1f}" '
                f'height="{BAR_HEIGHT}" '
                f"{_tip(tip)}/>"
            )
            if width > 58:
                out.append(_text(x + width / 2, y + 20, format_us(us), "inbar", anchor="middle"))
            x += width
        out.append(_text(x + 8, y + 20, format_us(known[number]), "label strong"))
    return "".join([*out, "</svg>"])


def draw_ablation(rows: Sequence[Ablation]) -> str:
    """Time of the memory-intensive part with only so much of the compiler."""
    times = [row.us for row in rows if row.us is not None]
    if not times:
        return ""
    left, right, step = 170, 190, 34
    scale = (BAR_WIDTH - left - right) / max(*times, 1e-9)  # no kernel at all: no time
    out = [_open_svg(BAR_WIDTH, step * len(rows) + 6, "Ablation")]
    for number, row in enumerate(rows):
        y = number * step + 4
        out.append(_text(0, y + 17, row.name, "label"))
        shown = f"{format_count(row.kernels)} kernels"
        if row.us is None:
            out.append(_text(left, y + 17, f"{shown}, time not known", "label small"))
            continue
        width = max(row.us * scale, 1.0)
        tip = f"{row.name}: {format_us(row.us)} {row.basis}, {shown}. {row.note}"
        out.append(
            f'<rect class="part memory" x="{left}" y="{y}" width="{width:.1f}" height="24" {_tip(tip)}/>'
        )
        out.append(_text(left + width + 8, y + 17, f"{format_us(row.us)} · {shown}", "label"))
    return "".join([*out, "</svg>"])


# ---- roofline ----------------------------------------------------------------------------------------------------

PLOT_WIDTH, PLOT_HEIGHT = 960, 460
MOST_DECADES = 7
"""The most decades of the axis upwards: a kernel of three operations lies on its lower edge."""

MARGIN = {"left": 66, "right": 24, "top": 18, "bottom": 48}


def draw_roofline(report: Report) -> str:
    """Operations a byte against operations a second, a dot for each memory-intensive kernel whose time is known."""
    dots = list(_find_dots(report))
    if not dots:
        return ""
    machine = report.machine
    flops = machine.fp32_gflops / 2  # one operation a lane and clock, as the speed of light has it
    ridge = flops / machine.peak_gbs
    xs = [x for _, _, x, _ in dots]
    ys = [y for _, _, _, y in dots]
    x_low, x_high = (
        10 ** math.floor(math.log10(min(*xs, ridge) / 2)),
        10 ** math.ceil(math.log10(max(*xs, ridge) * 2)),
    )
    y_low = 10 ** math.floor(math.log10(min(ys) / 1.5))
    y_high = 10 ** math.ceil(math.log10(flops * 1.2))
    y_low = max(y_low, y_high / 10**MOST_DECADES)
    inner_width = PLOT_WIDTH - MARGIN["left"] - MARGIN["right"]
    inner_height = PLOT_HEIGHT - MARGIN["top"] - MARGIN["bottom"]

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log10(x / x_low) / math.log10(x_high / x_low)
        up = math.log10(max(y, y_low) / y_low) / math.log10(y_high / y_low)
        return MARGIN["left"] + across * inner_width, MARGIN["top"] + (1 - up) * inner_height

    out = [_open_svg(PLOT_WIDTH, PLOT_HEIGHT, "Roofline of the memory-intensive kernels", "plot")]
    for x in _decades(x_low, x_high):
        px, bottom = place(x, y_low)
        out.append(
            f'<line class="grid" x1="{px:.1f}" y1="{MARGIN["top"]}" x2="{px:.1f}" y2="{bottom:.1f}"/>'
        )
        out.append(_text(px, bottom + 18, _power(x), "label small", anchor="middle"))
    for y in _decades(y_low, y_high):
        left, py = place(x_low, y)
        out.append(
            f'<line class="grid" x1="{left:.1f}" y1="{py:.1f}" x2="{PLOT_WIDTH - MARGIN["right"]}" y2="{py:.1f}"/>'
        )
        out.append(_text(left - 8, py + 4, _power(y), "label small", anchor="end"))
    start = max(x_low, y_low / machine.peak_gbs)
    roof = [place(start, start * machine.peak_gbs), place(ridge, flops), place(x_high, flops)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in roof)
    out.append(f'<polyline class="roof" points="{points}"/>')
    room = [x_low, *sorted(x for x in xs if x < ridge), ridge]
    left, right = max(pairwise(room), key=lambda gap: gap[1] / gap[0])  # where no dot hides it
    at = math.sqrt(max(left, start) * right)
    middle = place(at, at * machine.peak_gbs)
    angle = -math.degrees(math.atan2(roof[0][1] - roof[1][1], roof[1][0] - roof[0][0]))
    label = f"memory: {machine.peak_gbs:,.0f} GB/s"
    out.append(
        f'<text class="label small" text-anchor="middle" '
        f'transform="translate({middle[0]:.1f},{middle[1] - 8:.1f}) rotate({angle:.1f})">{label}</text>'
    )
    out.append(
        _text(
            roof[2][0],
            roof[2][1] - 8,
            f"fp32: {flops / 1e3:,.1f} TFLOP/s",
            "label small",
            anchor="end",
        )
    )
    out.append(
        _text(
            PLOT_WIDTH / 2,
            PLOT_HEIGHT - 8,
            "operations a byte of least traffic",
            "label small",
            anchor="middle",
        )
    )
    out.append(
        f'<text class="label small" text-anchor="middle" transform="translate(14,{PLOT_HEIGHT / 2}) rotate(-90)">'
        "1e9 operations a second</text>"
    )
    for side, kernel, x, y in dots:
        px, py = place(x, y)
        tip = describe_dot(side, kernel)
        out.append(
            f'<circle class="dot {side.name}" cx="{px:.1f}" cy="{py:.1f}" r="6.5" tabindex="0" role="img" {_tip(tip)}/>'
        )
    return "".join([*out, "</svg>"])


def _find_dots(report: Report) -> Iterator[tuple[Side, Kernel, float, float]]:
    """(side, kernel, operations a byte, 1e9 operations a second)."""
    for side in report.sides:
        for kernel in side.kernels:
            us = kernel.us if kernel.us is not None else kernel.projected_us
            traffic = kernel.traffic_bytes
            if kernel.kind == MEMORY and us and traffic and kernel.flops:
                yield side, kernel, kernel.flops / traffic, kernel.flops / us / 1e3


def describe_dot(side: Side, kernel: Kernel) -> str:
    us = kernel.us if kernel.us is not None else kernel.projected_us
    how = "measured" if kernel.us is not None else "projected"
    return (
        f"{SIDE_NAMES[side.name]} {kernel.name}: {format_us(us)} {how}, speed of light {format_us(kernel.bound_us)} "
        f"({format_percent(kernel.light_share)} reached), limited by {kernel.limit or 'unknown'}, "
        f"{format_bytes(kernel.traffic_bytes)}"
    )


def _decades(low: float, high: float) -> Iterator[float]:
    value = low
    while value <= high * 1.001:
        yield value
        value *= 10


def _power(value: float) -> str:
    if 0.01 <= value < 10000:
        return f"{value:g}"
    exponent = round(math.log10(value))
    return f"1e{exponent}"


# ---- timeline ----------------------------------------------------------------------------------------------------

LANE, LANE_GAP = 40, 26

LEAST_WIDTH = 2.0
"""The least width that is drawn: narrower launches are drawn together."""


def draw_timeline(report: Report) -> str:
    """Kernels of a call one after the other, both sides on one axis."""
    lanes = [(side, side.timeline) for side in report.sides if side.timeline]
    if not lanes:
        return ""
    end = max(e.start_us + e.us for _, events in lanes for e in events)
    left, right = 8, 8
    scale = (PLOT_WIDTH - left - right) / max(end, 1e-9)
    height = (LANE + LANE_GAP) * len(lanes) + 30
    out = [_open_svg(PLOT_WIDTH, height, "Timeline of the kernels of one call", "timeline")]
    bottom = height - 26
    for tick in _ticks(end):
        x = left + tick * scale
        out.append(f'<line class="grid" x1="{x:.1f}" y1="6" x2="{x:.1f}" y2="{bottom}"/>')
        anchor = "start" if tick == 0 else "middle" if x < PLOT_WIDTH - 40 else "end"
        out.append(
            _text(x, height - 8, format_us(tick) if tick else "0", "label small", anchor=anchor)
        )
    for number, (side, events) in enumerate(lanes):
        y = number * (LANE + LANE_GAP) + 20
        total = max(e.start_us + e.us for e in events)
        out.append(
            _text(
                left,
                y - 5,
                f"{SIDE_NAMES[side.name]}: {len(events)} launches, {format_us(total)}",
                "label small lifted",
            )
        )
        told = (
            f"{SIDE_NAMES[side.name]}, {len(events)} launches; arrow keys go from one to the next"
        )
        out.append(f'<g class="lane" tabindex="0" role="group" aria-label="{told}">')
        for run in join_short(events, LEAST_WIDTH / scale):
            out.append(_draw_run(run, left, y, scale))
        out.append("</g>")
    return "".join([*out, "</svg>"])


def draw_memory(report: Report) -> str:
    """Device memory in use over one call, a curve for each side, and what each compiler planned."""
    sides = [side for side in report.sides if side.memory.points]
    if not sides:
        return ""
    left, right, top, bottom = 76, 120, 12, 30
    height = 240
    most = max(max(side.memory.peak or 0, side.planned_bytes or 0) for side in sides)
    across, up = PLOT_WIDTH - left - right, height - top - bottom
    scale = up / max(most, 1)
    out = [_open_svg(PLOT_WIDTH, height, "Device memory over one call")]
    for share in (0.0, 0.5, 1.0):
        y = top + up * (1 - share)
        out.append(
            f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{left + across}" y2="{y:.1f}"/>'
        )
        label = format_bytes(round(most * share)) if share else "0"
        out.append(_text(left - 8, y + 4, label, "label small", anchor="end"))
    for text, x, anchor in (("first kernel", left, "start"), ("last", left + across, "end")):
        out.append(_text(x, height - 8, text, "label small", anchor=anchor))
    labels: list[float] = []
    for side in sides:
        memory, name = side.memory, SIDE_NAMES[side.name]
        wide = across / len(memory.points)
        corners = [
            f"{left + wide * (number + step):.1f},{top + up - points * scale:.1f}"
            for number, points in enumerate(memory.points)
            for step in (0, 1)
        ]
        tip = _tip(f"{name}: at most {format_bytes(memory.peak)}, at {memory.peak_at}")
        told = f'class="curve {side.name}" tabindex="0" role="img" {tip}'
        out.append(f'<polyline {told} points="{" ".join(corners)}"/>')
        if side.planned_bytes:
            y = top + up - side.planned_bytes * scale
            line = f'x1="{left}" y1="{y:.1f}" x2="{left + across}" y2="{y:.1f}"'
            out.append(f'<line class="planned {side.name}" {line}/>')
        y = top + up - (memory.peak or 0) * scale + 4
        while any(abs(y - other) < LINE for other in labels):
            y += 1
        labels.append(y)
        shown = f"{name} {format_bytes(memory.peak)}"
        out.append(_text(left + across + 8, y, shown, f"label small {side.name}"))
    return "".join([*out, "</svg>"])


LINE = 15
"""Between two lines of small text."""


def join_short(events: Sequence[Event], us: float) -> Iterator[list[Event]]:
    """Events that are drawn as one: neighbours that lie in a stroke of the pen.  us: what a stroke covers."""
    run: list[Event] = []
    for event in events:
        if run and event.start_us + event.us - run[0].start_us > us:
            yield run
            run = []
        run.append(event)
    if run:
        yield run


def _draw_run(run: Sequence[Event], left: float, y: float, scale: float) -> str:
    """One event as a box; of several each class as high as its share of their time, the rest being gaps."""
    start, end = run[0].start_us, max(e.start_us + e.us for e in run)
    x, width = left + start * scale, max((end - start) * scale, LEAST_WIDTH)
    by_kind: dict[str, float] = {}
    for event in run:
        by_kind[event.kind] = by_kind.get(event.kind, 0.0) + event.us
    if len(run) == 1:
        tip = f"{run[0].name}: {format_us(run[0].us)}, from {format_us(start)}, {KIND_NAMES[run[0].kind]}"
    else:
        parts = ", ".join(f"{KIND_NAMES[k]} {format_us(us)}" for k, us in by_kind.items())
        tip = f"{len(run)} launches in {format_us(end - start)}, from {format_us(start)}: {parts}"
    thin = "" if width > 3 else " thin"
    out, bottom = [f'<g class="event{thin}" {_tip(tip)}>'], y + LANE
    for kind in KIND_NAMES:
        height = LANE * by_kind.get(kind, 0.0) / max(end - start, 1e-9)
        if height:
            bottom -= height
            out.append(
                f'<rect class="part {kind}" x="{x:.1f}" y="{bottom:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
            )
    return "".join([*out, "</g>"])


def _ticks(end: float) -> Iterator[float]:
    raw = end / 8
    power = 10 ** math.floor(math.log10(max(raw, 1e-9)))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    value = 0.0
    while value <= end:
        yield value
        value += step


# ---- the stitched program ----------------------------------------------------------------------------------------

BOX, BOX_HEIGHT, ACROSS, DOWN, MOST_IN_ROW = 196, 48, 16, 34, 3


def draw_program(steps: Sequence[Step], kernels: Mapping[str, Kernel]) -> str:
    """Steps as boxes, those of one depth side by side, an arrow from who writes to who reads."""
    if not steps:
        return ""
    rows = arrange_rows(steps)
    most = max(map(len, rows))
    width = most * (BOX + ACROSS) + ACROSS
    height = len(rows) * (BOX_HEIGHT + DOWN) + DOWN
    place: dict[int, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        start = (width - len(row) * (BOX + ACROSS) + ACROSS) / 2
        for column, step in enumerate(row):
            place[step.number] = (
                start + column * (BOX + ACROSS),
                DOWN / 2 + number * (BOX_HEIGHT + DOWN),
            )
    label = "The stitched program: arrow keys walk, Enter opens, Escape closes"
    out = [_open_svg(width, height, label, "program", role="group", fixed=True)]
    for step in steps:
        x, y = place[step.number]
        for read in step.reads:
            from_x, from_y = place[read]
            x1, y1, x2, y2 = from_x + BOX / 2, from_y + BOX_HEIGHT, x + BOX / 2, y - 4
            bend = max((y2 - y1) / 2, 14)
            out.append(
                f'<path class="edge" data-from="{read}" data-to="{step.number}" '
                f'd="M{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + bend:.0f} {x2:.0f},{y2 - bend:.0f} {x2:.0f},{y2:.0f}"/>'
            )
    names = shorten_names([step.name for step in steps], 23)
    for step in steps:
        x, y = place[step.number]
        opens = step.kind == "kernel" and step.name in kernels
        state = f' aria-expanded="false" aria-controls="{panel_id(step.name)}"' if opens else ""
        described = escape(f"step {step.number}, {step.kind} {step.name}: {step.label}", quote=True)
        first = 0 if step.number == 0 else -1
        role = "button" if opens else "img"
        out.append(
            f'<g class="step {step.kind}" tabindex="{first}" role="{role}" '
            f'data-step="{step.number}" data-row="{_row_of(rows, step)}" aria-label="{described}"{state} '
            f'transform="translate({x:.0f},{y:.0f})">'
        )
        radius = 8 if step.kind == "kernel" else 22
        out.append(f'<rect width="{BOX}" height="{BOX_HEIGHT}" rx="{radius}"/>')
        out.append(_text(BOX / 2, 20, names[step.name], "name", anchor="middle"))
        out.append(_text(BOX / 2, 37, _shorten(step.label, 29), "label small", anchor="middle"))
        out.append(f"<title>{described}</title></g>")
    return "".join([*out, "</svg>"])


def arrange_rows(steps: Sequence[Step]) -> list[list[Step]]:
    """Steps by their depth, neighbours of their producers; wide depths take several rows."""
    depth: dict[int, int] = {}
    for step in steps:
        depth[step.number] = max((depth[n] + 1 for n in step.reads), default=0)
    levels: dict[int, list[Step]] = {}
    for step in steps:
        levels.setdefault(depth[step.number], []).append(step)
    column: dict[int, float] = {}
    rows: list[list[Step]] = []
    for level in sorted(levels):
        ordered = sorted(levels[level], key=lambda s: (_mean(column[n] for n in s.reads), s.number))
        for first in range(0, len(ordered), MOST_IN_ROW):
            row = ordered[first : first + MOST_IN_ROW]
            rows.append(row)
            for index, step in enumerate(row):
                column[step.number] = index - (len(row) - 1) / 2
    return rows


def _row_of(rows: Sequence[Sequence[Step]], step: Step) -> int:
    return next(number for number, row in enumerate(rows) if step in row)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def panel_id(name: str) -> str:
    """The HTML id of the part of the page that shows a kernel."""
    return "kernel-" + "".join(c if c.isalnum() else "-" for c in name)


# ---- SVG ---------------------------------------------------------------------------------------------------------


def _open_svg(
    width: float,
    height: float,
    label: str,
    kind: str = "",
    *,
    role: str = "group",
    fixed: bool = False,
) -> str:
    size = f' width="{width:.0f}" height="{height:.0f}"' if fixed else ""
    return (
        f'<svg class="figure {kind}" viewBox="0 0 {width:.0f} {height:.0f}"{size} role="{role}" '
        f'aria-label="{escape(label, quote=True)}">'
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str = "start") -> str:
    at = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{at}>{escape(text)}</text>'


def _tip(text: str) -> str:
    told = escape(text, quote=True)
    return f'data-tip aria-label="{told}"'


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
