"""Several reports, or two of one target, as one page: the programs of a script, and what changed since a base."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from astitch.profiling.compare import Change, Comparison
from astitch.profiling.page import render_document, render_frame
from astitch.profiling.report import MEMORY, Report
from astitch.profiling.wording import UNKNOWN, format_count, format_us


def render_programs(title: str, reports: Sequence[Report]) -> str:
    """A page with a row for each report, and below it their own pages, folded."""
    head = ("program", "XLA", "astitch", "launches, XLA", "launches, astitch", "stitched")
    rows = (_program_row(number, report) for number, report in enumerate(reports))
    table = _table(head, rows)
    pages = "\n".join(
        f'<details id="program-{number}">'
        f"<summary>{escape(report.target)}</summary>{render_frame(report)}</details>"
        for number, report in enumerate(reports)
    )
    basis = (
        "measured"
        if reports and reports[0].measured
        else "speed of light of memory-intensive kernels"
    )
    note = f"Times: {basis}. The largest program first."
    return _page(title, f"<p>{escape(note)}</p>{table}{pages}")


def _program_row(number: int, report: Report) -> tuple[str, ...]:
    times = [side.total_us if report.measured else side.kernel_us(MEMORY) for side in report.sides]
    counts = [side.count(MEMORY) for side in report.sides]
    share = report.share[0] if report.share else UNKNOWN
    link = f'<a href="#program-{number}">{escape(report.target)}</a>'
    shown = [*(format_us(us) for us in times), *(format_count(n) for n in counts)]
    return (link, *map(escape, shown), escape(share))


def render_comparison(base: Report, report: Report, comparison: Comparison) -> str:
    """A page of what changed since a base, with both reports' pages below it."""
    changed = sorted(
        comparison.changes, key=lambda change: (not change.regressed, -abs(change.share))
    )
    head = ("figure", "base", "now", "change")
    table = _table(head, map(_change_row, changed))
    count = len(comparison.regressions)
    verdict = f"{count} regressions" if count else "no regression"
    notes = "".join(f"<li>{escape(note)}</li>" for note in comparison.notes)
    listed = f"<ul>{notes}</ul>" if notes else ""
    pages = "".join(
        f"<details><summary>{name}: {escape(one.target)}, {escape(one.date)}</summary>{render_frame(one)}</details>"
        for name, one in (("base", base), ("now", report))
    )
    body = f"<p><b>{verdict}</b> since {escape(comparison.base)}</p>{listed}{table}{pages}"
    return _page(f"{report.target}: what changed", body)


def _change_row(change: Change) -> tuple[str, ...]:
    style = "bad" if change.regressed else "good" if change.share < 0 else ""
    share = f'<span class="{style}">{change.share:+.1%}</span>'
    return escape(change.what), escape(change.before), escape(change.after), share


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


STYLE = """
main { padding-bottom: 3rem; }
td, th { text-align: left; padding: 0.3rem 1rem 0.3rem 0; border-bottom: 1px solid var(--line); }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
details { margin: 1rem 0; } summary { cursor: pointer; padding: 0.4rem 0; font-weight: 600; }
"""


def _page(title: str, body: str) -> str:
    style = (files("astitch.profiling") / "assets" / "page.css").read_text("utf-8")
    inside = f"""\
<main id="main">
<h1>{escape(title)}</h1>
{body}
</main>
<script>
addEventListener("hashchange", () => {{ const d = document.querySelector(location.hash); if (d) d.open = true; }});
</script>
"""
    return render_document(title, style + STYLE, inside)
