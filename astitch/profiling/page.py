"""A Report -> one HTML page that needs nothing else: styles, script, pictures and the generated CUDA are all inside.

Whatever comes from a report (names in HLO files, paths, texts of errors) is escaped on its way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files

from astitch.profiling.figures import (
    PARTS,
    draw_ablation,
    draw_memory,
    draw_program,
    draw_roofline,
    draw_split,
    draw_timeline,
    panel_id,
    part_name,
)
from astitch.profiling.layers import tabulate_layers
from astitch.profiling.report import KINDS, MEMORY, Group, Kernel, Refusal, Report, Side, Stitch
from astitch.profiling.wording import (
    ABOVE_LIGHT,
    COUNTED,
    KIND_NAMES,
    SHORT_NAMES,
    SIDE_NAMES,
    UNKNOWN,
    format_bytes,
    format_count,
    format_ops,
    format_percent,
    format_ratio,
    format_seconds,
    format_setting,
    format_spread,
    format_us,
    label_kernels,
    name_basis,
    rank_kernels,
)

NAME_WIDTH = 30
"""The most characters of a kernel's name in the table; a tooltip shows the whole name."""

FIRST_REFUSALS = 12
"""Refusals that are not folded away."""

SCHEMES = {
    "independent": "nobody in the kernel reads it",
    "local": "stays in a register of the thread that made it",
    "regional": "goes through shuffles or shared memory of its block",
    "global": "goes through memory and a barrier of the grid",
}


def render_page(report: Report) -> str:
    """The whole page."""
    assets = files("astitch.profiling") / "assets"
    style = (assets / "page.css").read_text("utf-8")
    script = (assets / "page.js").read_text("utf-8")
    body = "\n".join(part for part in _list_parts(report) if part)
    inside = f"""\
<a class="skip" href="#main">Skip to the report</a>
{body}
<div id="tip" role="status" aria-live="polite" hidden></div>
<script>
{script}</script>
"""
    return render_document(f"{report.target}: XLA and astitch", style, inside)


def render_document(title: str, style: str, body: str) -> str:
    """A whole document of HTML.  title: plain text.  style, body: text of CSS and HTML, each with its last newline."""
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="astitch-profile">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
{body}</body>
</html>
"""


def render_frame(report: Report) -> str:
    """The page in a frame of its own, for notebooks."""
    page = escape(render_page(report), quote=True)
    title = escape(report.target, quote=True)
    return f'<iframe title="{title}" srcdoc="{page}" style="width:100%;height:900px;border:0"></iframe>'


def _list_parts(report: Report) -> Iterator[str]:
    sections = [(title, name, text) for title, name, text in _list_sections(report) if text]
    yield render_head(report, [(title, name) for title, name, _ in sections])
    yield '<main id="main">'
    yield render_cards(report)
    yield from (text for _, _, text in sections)
    yield "</main>"
    yield (
        "<footer>Keys: Tab reaches every figure; arrow keys walk the program and the timelines; "
        "Enter opens a stitch op, Escape closes it. Written by astitch-profile.</footer>"
    )


def _list_sections(report: Report) -> Iterator[tuple[str, str, str]]:
    """(what the head calls it, its id, its HTML: empty where there is nothing to show)."""
    yield "Time", "time", render_split(report)
    yield "Layers", "layers", render_layers(report)
    yield "Kernels", "kernels", render_kernels(report)
    yield "Counters", "counters", render_counters(report)
    picture = _scroll(draw_roofline(report))
    yield "Roofline", "roofline", _section("roofline", "Roofline", picture, _roofline_note(report))
    yield "Program", "program", render_program(report)
    note = (
        "One call under the profiler, which makes the gaps between short kernels longer. Where thousands of launches "
        "lie side by side, the height of a colour is its share of the time."
        if report.measured
        else "Nothing was run: kernels end to end, each its speed of light."
    )
    picture = _scroll(draw_timeline(report))
    yield "Timeline", "timeline", _section("timeline", "Timeline", picture, note)
    yield "Memory", "memory", render_memory(report)
    yield "Ablation", "ablation", render_ablation(report)
    yield "Refusals", "refusals", render_refusals(report)
    yield "Source", "source", render_excerpts(report)
    yield "Machine", "machine", render_machine(report)


def render_head(report: Report, sections: Sequence[tuple[str, str]]) -> str:
    """sections: (what to call it, its id) of what is on the page."""
    kind = "measured" if report.measured else "projected"
    basis = name_basis(report).removeprefix(f"{kind} ")
    links = "".join(f'<a href="#{name}">{title}</a>' for title, name in sections)
    share = "".join(f'<p class="share">{escape(line.strip())}</p>\n' for line in report.share)
    return f"""\
<header>
<div class="bar"><span class="mark">astitch<b>profile</b></span><nav aria-label="Sections">{links}</nav>
<button id="theme" type="button" aria-label="Change between light and dark">◐</button></div>
<h1>{escape(report.target)}</h1>
<p class="basis"><span class="badge {kind}">{kind}</span> {escape(basis)} · {escape(report.date)}</p>
{share}</header>"""


# ---- cards -------------------------------------------------------------------------------------------------------


def render_cards(report: Report) -> str:
    """The figures that one looks for first."""
    xla, ours = report.sides
    cards: list[str] = []
    if ours.wall:
        told = f"{format_spread(ours.wall)} of {_runs(ours)} batches"
        cards.append(_card("A call", xla.total_us, ours.total_us, format_us, told))
    what = "measured" if report.measured else "speed of light of the kernels"
    cards.append(
        _card(
            "Memory-intensive time" if report.measured else "Memory-intensive, least time",
            xla.kernel_us(MEMORY),
            ours.kernel_us(MEMORY),
            format_us,
            what,
        )
    )
    cards.append(
        _card(
            "Memory-intensive kernels",
            xla.count(MEMORY),
            ours.count(MEMORY),
            format_count,
            _tell_stitched(ours),
        )
    )
    share = report.light_share
    meter = ""
    if share is not None:
        filled = f'<span style="width:{min(share, 1) * 100:.1f}%"></span>'
        told = f"{format_percent(share)} of the speed of light"
        meter = f'<div class="meter" role="img" aria-label="{told}">{filled}</div>'
    how = "measured" if report.measured else "projected"
    above = f"; {ABOVE_LIGHT}" if share is not None and share > 1 else ""
    cards.append(
        f'<div class="card"><h3>Speed of light reached</h3><p class="figure-number">{format_percent(share)}</p>{meter}'
        f"<p class=note>stitched kernels, {how}{above}</p></div>"
    )
    cards.append(
        _card(
            "Device memory",
            xla.planned_bytes,
            ours.planned_bytes,
            format_bytes,
            "as each compiler planned it",
        )
    )
    cards.append(
        _card("Compile time", xla.compile_s, ours.compile_s, format_seconds, "the first time")
    )
    missing = "".join(
        f'<p class="warning">{SIDE_NAMES[s.name]}: {escape(s.missing)}</p>'
        for s in report.sides
        if s.missing
    )
    return f'<section class="cards" aria-label="Summary">{"".join(cards)}</section>{missing}'


def _tell_stitched(side: Side) -> str:
    """How many of the memory-intensive kernels are stitched ones."""
    stitched = sum(kernel.launches for kernel in side.stitched)
    if stitched >= (side.count(MEMORY) or 0):
        return "all of astitch's are stitched"
    return f"{format_count(stitched)} of astitch's are stitched, the others XLA's around them"


def _runs(side: Side) -> int:
    return side.wall.runs if side.wall else 0


def _card(title: str, theirs: float | None, ours: float | None, show: object, note: str) -> str:
    assert callable(show)
    chip = ""
    if theirs and ours:
        verdict = "even" if abs(theirs / ours - 1) < 0.01 else "good" if ours < theirs else "bad"
        chip = f'<span class="chip {verdict}">{format_ratio(theirs, ours)}</span>'
    return (
        f'<div class="card"><h3>{escape(title)}</h3><p class="figure-number">{escape(show(ours))}{chip}</p>'
        f'<p class="against">XLA {escape(show(theirs))}</p><p class="note">{escape(note)}</p></div>'
    )


# ---- sections ----------------------------------------------------------------------------------------------------


def _section(name: str, title: str, content: str, note: str = "") -> str:
    if not content:
        return ""
    told = f'<p class="note">{escape(note)}</p>' if note else ""
    head = f'<h2 id="{name}-title">{title}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}{told}{content}</section>'


def _scroll(content: str) -> str:
    """What is wider than a small screen moves under the finger; nothing stays nothing."""
    return f'<div class="scroll">{content}</div>' if content else ""


def render_split(report: Report) -> str:
    legend = "".join(
        f'<li><span class="swatch {part}"></span>{part_name(part, report)}</li>' for part in PARTS
    )
    note = (
        "Overhead is a call's time less that of its kernels."
        if report.measured
        else "Nothing was run. Speed of light: the least time for the bytes and the arithmetic of the kernels as each "
        "compiler cut them; the bars show launches apart, the table counts them in. Projected: astitch's latency model."
    )
    return _section(
        "time",
        "Where the time goes",
        f'<ul class="legend">{legend}</ul><div class="scroll">{draw_split(report)}</div>{_split_table(report)}',
        note,
    )


def _split_table(report: Report) -> str:
    """What the bars say, and the counts, as a table."""
    sides = [side for side in report.sides if not side.missing]
    rows = []
    for kind in KINDS:
        cells = "".join(
            f"<td>{format_count(s.count(kind))}</td><td>{format_us(s.kernel_us(kind))}</td>"
            for s in sides
        )
        ratio = format_ratio(report.xla.kernel_us(kind), report.astitch.kernel_us(kind))
        compared = f"<td>{ratio}</td>" if len(sides) > 1 else ""
        rows.append(f"<tr><th scope=row>{KIND_NAMES[kind]}</th>{cells}{compared}</tr>")
    barriers = report.astitch.barriers
    tail = (
        f'<p class="note">Barriers of the grid inside stitched kernels: {format_count(barriers)}, '
        f"projected {format_us(report.astitch.barrier_us)} together.</p>"
        if barriers
        else ""
    )
    return (
        f'<div class="scroll"><table class="plain"><thead><tr><th></th>{_name_columns(sides, report)}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{tail}"
    )


def _name_columns(sides: Sequence[Side], report: Report) -> str:
    """The heads of launches and time of each side, and of what both compare to."""
    time = "time" if report.measured else "speed of light"
    names = [f"{SIDE_NAMES[side.name]} {what}" for side in sides for what in ("launches", time)]
    names += ["XLA / astitch"] if len(sides) > 1 else []
    return "".join(f"<th>{name}</th>" for name in names)


FIRST_LAYERS = 12
"""Layers that are not folded away."""


def render_layers(report: Report) -> str:
    """Times by layer of the model; nothing where there is one only."""
    rows = tabulate_layers(report)
    if len(rows) < 2:
        return ""
    sides = [side for side in report.sides if side.kernels]
    head = (
        f"<thead><tr><th>layer</th>{_name_columns(sides, report)}<th>one kernel</th></tr></thead>"
    )
    cells = []
    for row in rows:
        shown = [row.name]
        for side in sides:
            shown += (
                [format_count(row.xla_launches), format_us(row.xla_us)]
                if side is report.xla
                else [format_count(row.astitch_launches), format_us(row.astitch_us)]
            )
        shown += [format_ratio(row.xla_us, row.astitch_us)] if len(sides) > 1 else []
        name, *numbers = (*shown, format_us(row.whole_us))
        listed = "".join(f"<td>{number}</td>" for number in numbers)
        cells.append(f"<tr><th scope=row>{escape(name)}</th>{listed}</tr>")

    def table(some: Sequence[str]) -> str:
        return _scroll(f'<table class="plain">{head}<tbody>{"".join(some)}</tbody></table>')

    more = cells[FIRST_LAYERS:]
    folded = _fold(f"{len(more)} more layers", table(more)) if more else ""
    note = (
        "By the scopes that ops are named after. A kernel with ops of several layers counts as a launch of each, and "
        "its time is divided by their ops. One kernel: the least that the layer would take if its stitch ops "
        "were one kernel; its products stay as they are."
    )
    return _section("layers", "Layers", table(cells[:FIRST_LAYERS]) + folded, note)


def _roofline_note(report: Report) -> str:
    note = (
        "Memory-intensive kernels; operations as the op table counts them (an exponential is 20)."
    )
    if not report.measured:
        note += " astitch's are where the latency model projects them; XLA's have no time without a GPU."
    return note


COLUMNS = (
    ("side", "side", "text"),
    ("kernel", "kernel", "text"),
    ("class", "class", "text"),
    ("launches", "n", "number"),
    ("time", "time", "number"),
    ("light", "speed of light", "number"),
    ("share", "% reached", "number"),
    ("limit", "limited by", "text"),
    ("traffic", "traffic", "number"),
    ("grid", "grid × block", "number"),
    ("registers", "registers", "number"),
    ("occupancy", "occupancy", "number"),
    ("efficiency", "SM efficiency", "number"),
)


def render_kernels(report: Report) -> str:
    """One row a kernel, sortable, with filters."""
    by = "time" if report.measured else "light"

    def weight(pair: tuple[Side, Kernel]) -> float:
        return -((pair[1].time_us if report.measured else pair[1].bound_us) or 0.0)

    rows = sorted(((s, kernel) for s in report.sides for kernel in s.kernels), key=weight)
    if not rows:
        return ""
    labels = {side.name: label_kernels(side.kernels, NAME_WIDTH) for side in report.sides}
    cells = [_kernel_cells(side, kernel, labels[side.name][kernel.name]) for side, kernel in rows]
    kept = [n for n in range(len(COLUMNS)) if any(row[n][1] not in (None, "") for row in cells)]
    heads = "".join(
        f'<th scope="col" class="{kind}" aria-sort="{"descending" if name == by else "none"}">'
        f'<button type="button" data-column="{number}" data-kind="{kind}">{title}</button></th>'
        for number, (name, title, kind) in enumerate(COLUMNS[n] for n in kept)
    )
    body = "".join(
        _kernel_row(side, kernel, [(COLUMNS[n][2], *row[n]) for n in kept])
        for (side, kernel), row in zip(rows, cells, strict=True)
    )
    filters = "".join(
        f'<button type="button" class="filter" data-filter="{key}" aria-pressed="true">{title}</button>'
        for key, title in (*SIDE_NAMES.items(), *KIND_NAMES.items())
        if any(key in (side.name, kernel.kind) for side, kernel in rows)
    )
    note = (
        f"Time: measured by CUPTI, all launches of a name together. Reached {ABOVE_LIGHT}."
        if report.measured
        else "Time: projected by astitch's latency model, which knows what stays in the L2 (more than 100 % then); "
        "XLA's kernels and products have only a speed of light."
    )
    return _section(
        "kernels",
        "Kernels",
        f'<div class="filters" role="group" aria-label="Which kernels">{filters}</div>'
        f'<div class="scroll"><table id="kernel-table"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        '<button type="button" class="filter" id="all-kernels" aria-expanded="false" hidden></button>',
        note,
    )


def _kernel_cells(side: Side, kernel: Kernel, label: str) -> list[tuple[str, object]]:
    """What each of COLUMNS shows of a kernel, and the value by which it is sorted; None where that is not known."""
    us = kernel.us if kernel.us is not None else kernel.projected_us
    share = kernel.light_share
    meter = UNKNOWN
    if share is not None:
        width = f"width:{min(share, 1) * 100:.0f}%"
        meter = (
            f'<span class="meter small"><span style="{width}"></span></span>{format_percent(share)}'
        )
    name = escape(label)
    if kernel.stitch:
        name = f'<button type="button" class="open" data-opens="{panel_id(kernel.name)}">{name}</button>'
    block = UNKNOWN if kernel.grid is None else f"{kernel.grid:,} × {kernel.block}"
    return [
        (f'<span class="side {side.name}">{SIDE_NAMES[side.name]}</span>', side.name),
        (name, kernel.name),
        (f'<span class="swatch {kernel.kind}"></span>{SHORT_NAMES[kernel.kind]}', kernel.kind),
        (format_count(kernel.launches), kernel.launches),
        (format_us(us), us),
        (format_us(kernel.bound_us), kernel.bound_us),
        (meter, share),
        (escape(kernel.limit or UNKNOWN), kernel.limit),
        (format_bytes(kernel.traffic_bytes), kernel.traffic_bytes),
        (block, kernel.grid),
        (_number(kernel.registers), kernel.registers),
        (format_percent(kernel.occupancy), kernel.occupancy),
        (format_percent(kernel.sm_efficiency), kernel.sm_efficiency),
    ]


def _kernel_row(side: Side, kernel: Kernel, cells: Iterable[tuple[str, str, object]]) -> str:
    """cells: the kind of a column, the text and the value of each."""
    shown = "".join(
        f'<td class="{kind}" data-v="{"" if value is None else escape(str(value), quote=True)}">{text}</td>'
        for kind, text, value in cells
    )
    title = escape("\n".join((kernel.name, *kernel.source[:6])), quote=True)
    return f'<tr data-side="{side.name}" data-class="{kernel.kind}" title="{title}">{shown}</tr>'


def render_counters(report: Report) -> str:
    """What Nsight Compute counted, a row for each kernel that it counted."""
    rows = [(s, k) for s in report.sides for k in rank_kernels(s, len(s.kernels)) if k.counters]
    names = list(dict.fromkeys(name for _, kernel in rows for name in kernel.counters))
    if not rows:
        return ""
    labels = {side.name: label_kernels(side.kernels, NAME_WIDTH) for side in report.sides}
    body = "".join(
        f'<tr title="{escape(kernel.name, quote=True)}">'
        f'<td><span class="side {side.name}">{SIDE_NAMES[side.name]}</span></td>'
        f"<td>{escape(labels[side.name][kernel.name])}</td><td>{format_us(kernel.us)}</td>"
        f"{''.join(f'<td>{_number(kernel.counters.get(name))}</td>' for name in names)}"
        f"<td>{format_percent(kernel.occupancy)}</td><td>{format_percent(kernel.sm_efficiency)}</td></tr>"
        for side, kernel in rows
    )
    heads = "".join(f"<th>{escape(name)}</th>" for name in names)
    return _section(
        "counters",
        "Hardware counters",
        '<div class="scroll"><table class="plain named"><thead><tr><th>side</th><th>kernel</th><th>time</th>'
        f"{heads}<th>achieved occupancy</th><th>SM efficiency</th></tr></thead><tbody>{body}</tbody></table></div>",
        f"The slowest kernels of each side under Nsight Compute, which replays each with the L2 as it finds it. "
        f"{COUNTED}; a transaction is 32 bytes.",
    )


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


# ---- the stitched program ----------------------------------------------------------------------------------------


def render_program(report: Report) -> str:
    kernels = {k.name: k for k in report.astitch.kernels if k.stitch}
    picture = draw_program(report.steps, kernels)
    if not picture:
        return ""
    panels = "".join(render_panel(kernel, twin) for kernel, twin in _find_twins(kernels.values()))
    legend = "".join(
        f'<li title="{meaning}"><span class="swatch {scheme}"></span>{scheme}</li>'
        for scheme, meaning in SCHEMES.items()
    )
    hint = "Choose a stitch op to see its groups, dominants, schemes, barriers and CUDA."
    return _section(
        "program",
        "The stitched program",
        f'<div class="split"><div class="scroll canvas">{picture}</div><div id="panels">'
        f'<p class="hint">{hint}</p>{panels}</div></div>'
        f'<ul class="legend">{legend}</ul>',
        "Boxes are steps in the order of what they read: stitch ops, library calls, and what is left to XLA.",
    )


def _find_twins(kernels: Iterable[Kernel]) -> Iterator[tuple[Kernel, Kernel | None]]:
    """Each stitched kernel, and the one before it whose text is the same but for names."""
    first: dict[str, Kernel] = {}
    for kernel in kernels:
        assert kernel.stitch is not None
        text = kernel.stitch.cuda.replace(kernel.name, "kernel")
        code = "\n".join(line for line in text.splitlines() if not line.startswith("//"))
        yield kernel, first.get(code)
        first.setdefault(code, kernel)


def render_panel(kernel: Kernel, twin: Kernel | None = None) -> str:
    """Everything about one stitched kernel.  twin: shown already, with the same text."""
    stitch = kernel.stitch
    assert stitch is not None
    us = kernel.us if kernel.us is not None else kernel.projected_us
    facts = [
        ("ops", f"{stitch.ops}"),
        ("time" if kernel.us is not None else "projected", format_us(us)),
        ("speed of light", f"{format_us(kernel.bound_us)} ({format_percent(kernel.light_share)})"),
        ("limited by", kernel.limit or UNKNOWN),
        (
            "reads, writes",
            f"{format_bytes(kernel.read_bytes)}, {format_bytes(kernel.written_bytes)}",
        ),
        ("grid × block", f"{kernel.grid} × {kernel.block}"),
        ("registers", _number(kernel.registers)),
        ("spilled", format_bytes(kernel.spill_bytes)),
        ("shared memory", format_bytes(kernel.shared_bytes)),
        ("turns of the loop", f"{stitch.turns}")
        if stitch.turns
        else (
            "barriers",
            f"{stitch.global_barriers} of the grid, {stitch.block_barriers} of a block",
        ),
    ]
    if stitch.global_barriers:
        facts.append(("barrier time", f"{format_us(stitch.barrier_us)} projected"))
    listed = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    source = "".join(f"<li><code>{escape(line)}</code></li>" for line in kernel.source)
    decisions = "".join(f"<li>{escape(line)}</li>" for line in stitch.decisions)
    counted = "".join(
        f"<li>{escape(name)}: {value:,.0f}</li>" for name, value in sorted(kernel.counters.items())
    )
    cuda = f'<pre class="code"><code>{highlight_cuda(stitch.cuda)}</code></pre>'
    if twin is not None:
        cuda = (
            f'<p>The same as of <button type="button" class="open" data-opens="{panel_id(twin.name)}">'
            f"{escape(twin.name)}</button>, but for names.</p>"
        )
    return f"""\
<article class="panel" id="{panel_id(kernel.name)}" tabindex="-1" aria-label="{escape(kernel.name, quote=True)}" hidden>
<div class="panel-head"><h3>{escape(kernel.name)}</h3>
<button type="button" class="close" aria-label="Close {escape(kernel.name, quote=True)}">✕</button></div>
<dl>{listed}</dl>
{render_levels(stitch)}
{"".join(render_group(group, stitch) for group in stitch.groups)}
{_fold("Counters", f"<ul>{counted}</ul>") if counted else ""}
{_fold("Decisions", f"<ul>{decisions}</ul>")}
{_fold(f"Source lines ({len(kernel.source)})", f"<ul>{source}</ul>") if source else ""}
{_fold("Generated CUDA", cuda)}
</article>"""


def _fold(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>"


def render_levels(stitch: Stitch) -> str:
    """Task loops between the barriers of the grid, each with the values that it computes, coloured by scheme; nothing
    for a loop that is a kernel."""
    if stitch.turns:
        return ""
    dominants = {group.dominant for group in stitch.groups}
    grid_reasons = [b.removeprefix("global: ") for b in stitch.barriers if b.startswith("global: ")]
    block_reasons = [b.removeprefix("block: ") for b in stitch.barriers if b.startswith("block: ")]
    levels = sorted({value.level for value in stitch.values})
    out = ['<div class="levels">']
    for level in levels:
        if level:
            reason = grid_reasons[level - 1] if level <= len(grid_reasons) else ""
            out.append(f'<p class="barrier grid"><b>barrier of the grid</b> {escape(reason)}</p>')
        for loop in sorted({v.loop for v in stitch.values if v.level == level}):
            chips = "".join(
                f'<li class="value {v.scheme}" title="{escape(f"{v.type}: {v.reason}", quote=True)}">'
                f"{'<span class=crown title=dominant>★</span>' if v.name in dominants else ''}"
                f"{escape(v.name)}<small>{v.scheme}</small></li>"
                for v in stitch.values
                if v.level == level and v.loop == loop
            )
            out.append(
                f'<div class="loop"><h4>task loop {loop}</h4><ul class="values">{chips}</ul></div>'
            )
    out.append("</div>")
    if block_reasons:
        reasons = "".join(f"<li>{escape(reason)}</li>" for reason in block_reasons)
        out.append(_fold(f"Barriers of a block ({stitch.block_barriers})", f"<ul>{reasons}</ul>"))
    return "".join(out)


def render_group(group: Group, stitch: Stitch) -> str:
    schemes = {value.name: value.scheme for value in stitch.values}
    subs = ", ".join(group.sub_dominants) or "none"
    members = "".join(f"<li><code>{escape(member)}</code></li>" for member in group.members)
    scheme = schemes.get(group.dominant, "")
    return (
        f'<details class="group"><summary><span class="swatch {scheme}"></span>group of '
        f"<b>★ {escape(group.dominant)}</b>"
        f" · {format_ops(len(group.members))}</summary><p>sub-dominants: {escape(subs)}</p>"
        f"<p>mapping: {escape(group.mapping)}</p><ul class=members>{members}</ul></details>"
    )


COLOURED = frozenset("k kr kc nl kt nf nb mi mf mh s cpf c1 cm cp".split())
"""Pygments' classes that the style sheet colours.  A span around every other word would be most of the page."""


def highlight_cuda(text: str) -> str:
    """CUDA as coloured HTML; plain where Pygments is not installed."""
    try:
        from pygments import lex
        from pygments.lexers import CppLexer
        from pygments.token import STANDARD_TYPES
    except ImportError:
        return escape(text)
    parts = []
    for kind, words in lex(text, CppLexer()):
        name = STANDARD_TYPES.get(kind, "")
        shown = escape(words, quote=False)
        parts.append(f'<span class="{name}">{shown}</span>' if name in COLOURED else shown)
    return "".join(parts)


# ---- the rest ----------------------------------------------------------------------------------------------------


def render_ablation(report: Report) -> str:
    if not report.ablation:
        return ""
    rows = "".join(
        f"<tr><th scope=row>{escape(row.name)}</th><td>{format_count(row.kernels)}</td><td>{row.barriers}</td>"
        f"<td>{format_us(row.us)}</td><td>{row.basis if row.us is not None else ''}</td>"
        f"<td>{escape(row.note)}</td></tr>"
        for row in report.ablation
    )
    return _section(
        "ablation",
        "Ablation",
        f'<div class="scroll">{draw_ablation(report.ablation)}</div>'
        '<div class="scroll"><table class="plain prose"><thead><tr>'
        "<th></th><th>kernels</th><th>grid barriers</th><th>time</th><th></th><th></th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>",
        "The memory-intensive part with only so much of the compiler; each row has what the one above it has.",
    )


def render_memory(report: Report) -> str:
    """The curves of both sides, and the same in words."""
    rows = "".join(
        f"<tr><th scope=row>{SIDE_NAMES[side.name]}</th><td>{format_bytes(side.memory.peak)}</td>"
        f"<td>{format_bytes(side.planned_bytes)}</td><td>{escape(side.memory.peak_at)}</td></tr>"
        for side in report.sides
        if side.memory.points
    )
    if not rows:
        return ""
    head = (
        "<thead><tr><th></th><th>most in use</th><th>planned</th><th>at its peak</th></tr></thead>"
    )
    table = f'<table class="plain prose">{head}<tbody>{rows}</tbody></table>'
    return _section(
        "memory",
        "Memory over one call",
        f'<div class="scroll">{draw_memory(report)}</div>{_scroll(table)}',
        "Arguments, results and the values between kernels, in the order of each schedule. The curves count what is "
        "read later; the broken lines are what each compiler planned, some percent off.",
    )


def render_refusals(report: Report) -> str:
    if not (report.refusals or report.outside or report.splits or report.loops):
        return ""
    table = _refusal_table(report.refusals[:FIRST_REFUSALS], report) or "<p>None.</p>"
    if rest := report.refusals[FIRST_REFUSALS:]:
        table += _fold(f"{len(rest)} more", _refusal_table(rest, report))
    for title, lines in (
        ("Left to XLA", report.outside),
        ("Kernels with a symptom", report.splits),
        ("Loops", report.loops),
    ):
        if lines:
            listed = "".join(f"<li>{escape(line)}</li>" for line in lines)
            table += f"<h3>{title} ({len(lines)})</h3><ul>{listed}</ul>"
    return _section(
        "refusals", f"Refusals ({len(report.refusals)})", table, "Why two stitch ops are two."
    )


def _refusal_table(refusals: Sequence[Refusal], report: Report) -> str:
    rows = "".join(_refusal_row(refusal, report.excerpts) for refusal in refusals)
    return rows and (
        '<div class="scroll"><table class="plain prose wide"><thead><tr><th>from</th><th>to</th>'
        f"<th>why they are two</th><th>source</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _refusal_row(refusal: Refusal, excerpts: Mapping[str, Sequence[str]]) -> str:
    other = refusal.consumer if refusal.consumer != refusal.producer else ""
    sources = "<br>".join(_link_source(line, excerpts) for line in refusal.sources)
    return (
        f"<tr><td><code>{escape(refusal.producer)}</code></td><td><code>{escape(other)}</code></td>"
        f"<td>{escape(refusal.reason)}</td><td>{sources}</td></tr>"
    )


def _link_source(source: str, excerpts: Mapping[str, Sequence[str]]) -> str:
    """The place of an op: a link to its line where the page has it."""
    place, _, name = source.partition(" ")
    if place not in excerpts:
        return f"<code>{escape(source)}</code>"
    link = f'<a href="#{_anchor(place)}"><code>{escape(place)}</code></a>'
    return f"{link} <code>{escape(name)}</code>" if name else link


def _anchor(place: str) -> str:
    return escape("at-" + re.sub(r"[^\w.-]", "-", place), quote=True)


def render_excerpts(report: Report) -> str:
    """The lines of the user's program that refusals name."""
    blocks = []
    for place, lines in report.excerpts.items():
        line = place.rpartition(":")[2]
        shown = "\n".join(
            f'<span class="here">{escape(text)}</span>' if text.split()[0] == line else escape(text)
            for text in lines
        )
        blocks.append(
            f'<div class="excerpt" id="{_anchor(place)}"><h4><code>{escape(place)}</code></h4><pre>{shown}</pre></div>'
        )
    note = "The lines that refusals name, as they were when this page was written."
    return _section("source", "Source", "".join(blocks), note)


def render_machine(report: Report) -> str:
    machine = report.machine
    facts = [
        ("GPU", machine.gpu),
        ("limits of", machine.preset),
        ("SMs", str(machine.sms)),
        ("bandwidth of a copy", f"{machine.peak_gbs:,.0f} GB/s"),
        ("fp32 multiply-adds", f"{machine.fp32_gflops / 1e3:,.1f} TFLOP/s"),
        ("engine", report.engine),
        *((name, format_setting(name, value)) for name, value in machine.clocks.items()),
        *([("driver", machine.driver)] if machine.driver else []),
        *([("L2", machine.l2)] if machine.l2 else []),
        *machine.versions.items(),
    ]
    stages = [(name, format_seconds(seconds)) for name, seconds in report.stage_s.items()]
    folded = _fold(f"Stages of the compilation ({len(stages)})", _facts(stages)) if stages else ""
    notes = [*report.notes, *(f"{SIDE_NAMES[s.name]}: {n}" for s in report.sides for n in s.notes)]
    told = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return _section(
        "machine",
        "Machine and method",
        _facts(facts) + (f"<ul>{told}</ul>" if told else "") + folded,
    )


def _facts(pairs: Iterable[tuple[str, str]]) -> str:
    listed = "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(v)}</dd></div>" for n, v in pairs)
    return f'<dl class="facts">{listed}</dl>'
