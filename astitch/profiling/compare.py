"""Two reports of one target -> what became slower: for a person, and by the exit status for continuous integration.

Measured times are only compared where both spreads are apart, so that noise is no regression.  Counts of what was
compiled are exact; those of traced calls are means, to which the tolerance applies as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from astitch.errors import AstitchError
from astitch.profiling.report import KINDS, MEMORY, Kernel, Report, Spread
from astitch.profiling.wording import KIND_NAMES, format_bytes, format_count, format_us


@dataclass(frozen=True, slots=True)
class Change:
    """One figure.  before, after: as people read them.  share: after over before, less 1.  regressed: beyond the
    tolerance, and beyond the noise where there is any."""

    what: str
    before: str
    after: str
    share: float
    regressed: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """changes: of astitch's side, the whole call first, then kernels.  notes: what makes the two hard to compare."""

    base: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    @property
    def regressions(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.regressed)


def compare_reports(base: Report, report: Report, tolerance: float) -> Comparison:
    """tolerance: a share, 0.05 being 5 %.  Raises AstitchError for what cannot be compared."""
    if base.measured != report.measured:
        kinds = ["measured" if r.measured else "projected" for r in (base, report)]
        raise AstitchError(
            f"the base is {kinds[0]}, this report is {kinds[1]}\n  compare two that are alike: save the base again"
        )
    notes = [
        f"{what}: {before} in the base, {after} now"
        for what, before, after in (
            ("target", base.target, report.target),
            ("GPU", base.machine.gpu, report.machine.gpu),
            ("L2", base.machine.l2, report.machine.l2),
        )
        if before != after
    ]
    return Comparison(base.date, tuple(find_changes(base, report, tolerance)), tuple(notes))


def find_changes(base: Report, report: Report, tolerance: float) -> Iterator[Change]:
    """Figures of astitch's side that both reports have."""
    before, after = base.astitch, report.astitch
    if before.wall and after.wall:
        apart = after.wall.low > before.wall.high
        yield change_of("a call", before.wall.median, after.wall.median, tolerance, apart=apart)
    for kind in KINDS:
        yield from _compare(
            f"{KIND_NAMES[kind]}, {'measured' if report.measured else 'speed of light'}",
            before.kernel_us(kind),
            after.kernel_us(kind),
            tolerance,
            before.gpu,
            after.gpu,
        )
    projected = before.projected_us, after.projected_us
    yield from _compare("stitched kernels, projected", *projected, tolerance)
    for kind in KINDS:
        counts = before.count(kind), after.count(kind)
        if counts[0] is not None and counts[1] is not None:
            share = counts[1] / counts[0] - 1 if counts[0] else float(counts[1] > 0)
            more = share > (tolerance if report.measured else 0.0)
            shown = format_count(counts[0]), format_count(counts[1])
            yield Change(f"launches, {KIND_NAMES[kind]}", *shown, share, more)
    if before.planned_bytes and after.planned_bytes:
        share = after.planned_bytes / before.planned_bytes - 1
        shown = format_bytes(before.planned_bytes), format_bytes(after.planned_bytes)
        yield Change("device memory, planned", *shown, share, share > tolerance)
    known = {kernel.name: kernel for kernel in before.kernels}
    for kernel in after.kernels:
        if kernel.kind == MEMORY and kernel.name in known:
            yield from _compare_kernels(known[kernel.name], kernel, tolerance)


def _compare_kernels(before: Kernel, after: Kernel, tolerance: float) -> Iterator[Change]:
    for what, field_name in (("measured", "us"), ("projected", "projected_us")):
        old, new = getattr(before, field_name), getattr(after, field_name)
        if old is not None and new is not None:
            found = change_of(f"{after.name}, {what}", old, new, tolerance)
            if abs(found.share) > tolerance:
                yield found
            return


def _compare(
    what: str,
    before: float | None,
    after: float | None,
    tolerance: float,
    old: Spread | None = None,
    new: Spread | None = None,
) -> Iterator[Change]:
    if before is None or after is None or not (before or after):
        return
    apart = old is None or new is None or new.low > old.high
    yield change_of(what, before, after, tolerance, apart=apart)


def change_of(
    what: str, before: float, after: float, tolerance: float, *, apart: bool = True
) -> Change:
    """apart: the spreads do not overlap."""
    share = after / before - 1 if before else float(after > 0)
    return Change(what, format_us(before), format_us(after), share, share > tolerance and apart)
