"""Numbers of a report as people read them; the terminal and the page share these words."""

from __future__ import annotations

from pathlib import Path

from astitch.profiling.report import COPY, MEASURED, MEMORY, PRODUCT, Kernel, Report, Side, Spread

UNKNOWN = "–"
"""What was not measured or is not known."""

SIDE_NAMES = {"xla": "XLA", "astitch": "astitch"}

KIND_NAMES = {
    MEMORY: "memory-intensive",
    PRODUCT: "compute-intensive",
    COPY: "memcpy and memset",
}

SHORT_NAMES = {MEMORY: "memory", PRODUCT: "compute", COPY: "copy"}
"""The same where there is little room."""

OVERHEAD = "overhead"


def format_us(us: float | None) -> str:
    """Three digits: 0.83 µs, 12.4 µs, 1.25 ms."""
    if us is None:
        return UNKNOWN
    if us >= 999.5:
        return f"{us / 1e3:.{2 if us < 9995 else 1 if us < 99950 else 0}f} ms"
    return f"{us:.{2 if us < 9.995 else 1 if us < 99.95 else 0}f} µs"


def format_bytes(size: float | None) -> str:
    if size is None:
        return UNKNOWN
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            value = size / scale
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return f"{size:.0f} B"


def format_count(count: float | None) -> str:
    if count is None:
        return UNKNOWN
    return f"{count:,.0f}" if abs(count - round(count)) < 0.005 else f"{count:,.1f}"


def format_ops(count: int) -> str:
    return "1 op" if count == 1 else f"{count} ops"


def format_percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}"


def format_ratio(theirs: float | None, ours: float | None) -> str:
    """How many times as much XLA has."""
    return f"{theirs / ours:.2f}×" if theirs and ours else UNKNOWN


def format_seconds(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else f"{seconds:.2f} s"


def name_basis(report: Report) -> str:
    """What the times of a report are."""
    if report.measured:
        l2 = "the L2 flushed before each call" if report.machine.l2 == "flushed" else "the L2 warm"
        clock = report.machine.clocks.get("SM clock")
        at = f" at {clock:,.0f} MHz" if clock else ""
        return f"measured on {report.machine.gpu}{at}, {l2}"
    return f"nothing was run: speed of light and projected latency for the preset {report.machine.preset}"


def split_time(report: Report, side: Side) -> dict[str, float | None]:
    """A call by class of kernel and what is left of it: measured, else the least it can take, its launches apart."""
    if side.basis == MEASURED:
        parts: dict[str, float | None] = {kind: side.kernel_us(kind) for kind in KIND_NAMES}
        return {**parts, OVERHEAD: side.overhead_us}
    parts = {}
    launch_us = report.machine.launch_us
    for kind in KIND_NAMES:
        us, count = side.bound_us(kind), side.count(kind)
        known = us is not None and count is not None
        parts[kind] = max(us - count * launch_us, 0.0) if known else None  # type: ignore[operator]
    launches = side.launches
    return {**parts, OVERHEAD: None if launches is None else launches * launch_us}


def format_spread(spread: Spread | None) -> str:
    """The median, and in brackets the extremes."""
    if spread is None:
        return UNKNOWN
    return f"{format_us(spread.median)} [{spread.low:.0f}–{spread.high:.0f}]"


def describe_split(side: Side) -> str:
    return "measured" if side.basis == MEASURED else "speed of light"


def rank_kernels(side: Side, most: int) -> list[Kernel]:
    """Those that take longest."""
    return sorted(side.kernels, key=lambda kernel: -(kernel.time_us or 0.0))[:most]


def shorten_path(source: str) -> str:
    """Relative to where the command was started, if it lies below."""
    here = f"{Path.cwd()}/"
    return source.removeprefix(here)
