"""What benchmarks.products measured, as lines: a row of the table, means by group, and what misses its goal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.product_forms import Form, list_given
from benchmarks.results import geometric_mean

SHOWN = ("xla", "astitch", "torch", "compiled", "apart", "bf16")

PEERS = ("xla", "torch", "compiled", "apart")
"""Who computes the same; bf16 has other weights."""

GOAL = 0.97
"""Of the best peer."""

OVER_BF16: Mapping[str, float] = {"s8": 1.6, "s4": 2.5}
"""How much faster than the same form with weights in bf16, by any side."""

LEGEND = """\
us: the kernels of a call.  /best: the best peer's time over astitch's.  /bf16: the time with weights in bf16 over
astitch's.  %copy: bytes of all arguments over time, of the speed of a copy.  n: kernels of a call of XLA, astitch.
MB: temporary arrays of XLA, astitch.  Errors are from f64, norm over norm."""


@dataclass(slots=True)
class Row:
    """us, launches, slowest (us by kernel), errors and temporary_mb by side.  copy_gbs: 1e9 bytes a second."""

    form: Form
    us: dict[str, float] = field(default_factory=dict)
    launches: dict[str, float] = field(default_factory=dict)
    slowest: dict[str, Mapping[str, float]] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    temporary_mb: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    copy_gbs: float | None = None

    @property
    def best(self) -> str | None:
        """The fastest peer."""
        return min((s for s in PEERS if s in self.us), key=lambda s: self.us[s], default=None)

    @property
    def over_best(self) -> float | None:
        """The best peer's time over astitch's."""
        ours = self.us.get("astitch")
        return self.us[self.best] / ours if ours and self.best else None

    @property
    def share(self) -> float | None:
        """Of the copy's speed, in reading the arguments."""
        ours = self.us.get("astitch")
        if not ours or not self.copy_gbs:
            return None
        return sum(g.bytes for g in list_given(self.form)) / ours / 1e3 / self.copy_gbs


def find_over_bf16(row: Row, rows: Sequence[Row]) -> float | None:
    """The least time with weights in bf16, by any side, over astitch's; None for floats and where none is known."""
    form, ours = row.form, row.us.get("astitch")
    if form.dtype.split()[0] not in OVER_BF16 or not ours:
        return None
    twin = Form(form.kind, "bf16", form.rows, form.widths, form.experts)
    known = [us for other in rows if other.form == twin for s, us in other.us.items()]
    known += [row.us["bf16"]] if "bf16" in row.us else []
    return min(known) / ours if known else None


HEADER = (
    f"{'form':48}"
    + "".join(f" {side:>8}" for side in SHOWN)
    + f" | {'/best':>6} {'/bf16':>6} {'%copy':>6} {'n':>7} {'MB':>11} |"
    + "".join(f" {side:>8}" for side in SHOWN[:-1])
)


def format_row(row: Row) -> str:
    """One line of the table, and one for each note; a dash where nothing was measured."""
    times = "".join(f" {_number(row.us.get(s), 8, 2)}" for s in SHOWN)
    errors = "".join(
        f" {row.errors[s]:8.1e}" if s in row.errors else f" {'-':>8}" for s in SHOWN[:-1]
    )
    counts = "/".join(_number(row.launches.get(s), 0, 0) for s in ("xla", "astitch"))
    planned = "/".join(_number(row.temporary_mb.get(s), 0, 1) for s in ("xla", "astitch"))
    share = None if row.share is None else 100 * row.share
    line = (
        f"{row.form.name:48}{times} | {_number(row.over_best, 6, 2)} {_number(find_over_bf16(row, [row]), 6, 2)} "
        f"{_number(share, 6, 0)} {counts:>7} {planned:>11} |{errors}"
    )
    return "\n".join([line, *(f"    {side}: {note}" for side, note in row.notes.items())])


def _number(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def load_rows(path: Path) -> list[Row]:
    """From a file of benchmarks.products."""
    rows = []
    for data in json.loads(path.read_text()):
        form = Form(**{**data["form"], "widths": tuple(data["form"]["widths"])})
        rows.append(Row(**{**data, "form": form}))
    return rows


def summarize(rows: Sequence[Row]) -> Iterator[str]:
    """By group the least and the mean of the best peer's time over astitch's, the least beside bf16; all; misses."""
    yield ""
    yield f"{'group':28} {'rows':>5} {'least':>6} {'mean':>6} {'/bf16':>6}   best peer / astitch; the least beside bf16"
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.form.group, []).append(row)
    for name, group in [*sorted(groups.items()), ("all", list(rows))]:
        ratios = [row.over_best for row in group if row.over_best is not None]
        beside = [r for row in group if (r := find_over_bf16(row, rows)) is not None]
        yield (
            f"{name:28} {len(ratios):5} {_number(min(ratios, default=None), 6, 2)} "
            f"{_number(geometric_mean(ratios), 6, 2)} {_number(min(beside, default=None), 6, 2)}"
        )
    misses = [(row, said) for row in rows if (said := list(find_misses(row, rows)))]
    measured = sum(row.over_best is not None for row in rows)
    yield f"\nmisses: {len(misses)} of {measured}"
    for row, said in sorted(misses, key=lambda miss: miss[0].over_best or 0.0):
        yield f"  {row.form.name:48} {'; '.join(said)}"


def find_misses(row: Row, rows: Sequence[Row]) -> Iterator[str]:
    """What falls short of GOAL or OVER_BF16, or failed."""
    if "astitch" in row.notes:
        yield f"failed: {row.notes['astitch']}"
    if row.over_best is not None and row.over_best < GOAL:
        yield f"{row.over_best:.2f} of {row.best}: {row.us['astitch']:.1f} us for {row.us[row.best or '']:.1f}"
    ratio = find_over_bf16(row, rows)
    goal = OVER_BF16.get(row.form.dtype.split()[0])
    if ratio is not None and goal is not None and ratio < goal:
        yield f"{ratio:.2f} over bf16, not {goal}"
