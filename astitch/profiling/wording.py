"""Numbers of a report as people read them; the terminal and the page share these words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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

ABOVE_LIGHT = (
    "above 100 %: data came from the L2, or more was read than written, which is faster than the copy "
    "that the speed of light is reckoned with"
)
"""What a share of the speed of light beyond 1 means."""

COUNTED = "Counts of one call; of kernels with more launches than were counted, as often the median launch"
"""What hardware counters are of."""

NUMBERED = re.compile(r"((loop_|input_)?(fusion|call|computation)[._]?)?\d*")
"""Names of XLA's that tell nothing."""

HEAD = 14
"""Long names that begin with the same so many characters are told apart by what follows."""


def format_us(us: float | None) -> str:
    """Three digits: 0.83 µs, 12.4 µs, 1.25 ms; ≈ 0 µs below 5 ns."""
    if us is None:
        return UNKNOWN
    if us == 0:
        return "0 µs"
    if 0 < us < 0.005:
        return "≈ 0 µs"
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


def format_setting(name: str, value: float) -> str:
    """A clock in MHz, or what its name says in brackets: power limit (W)."""
    return f"{value:,.0f}" if name.endswith(")") else f"{value:,.0f} MHz"


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
    """The `most` kernels that take longest."""
    return sorted(side.kernels, key=lambda kernel: -(kernel.time_us or 0.0))[:most]


def label_kernels(kernels: Iterable[Kernel], most: int) -> dict[str, str]:
    """A label of at most `most` characters for each kernel, by its name; no two are alike."""
    told = {kernel.name: describe_name(kernel) for kernel in kernels}
    short = shorten_names(list(told.values()), most)
    return {name: short[text] for name, text in told.items()}


def describe_name(kernel: Kernel) -> str:
    """A kernel's name, of a library's C++ without its namespaces; where it is a number only, the ops that it came from
    too."""
    if not NUMBERED.fullmatch(kernel.name):
        head, angle, arguments = kernel.name.removeprefix("void ").partition("<")
        return head.rpartition("::")[2] + angle + arguments
    ops = dict.fromkeys(source.rpartition("/")[2].rpartition(" ")[2] for source in kernel.source)
    return f"{kernel.name} {', '.join(ops)}" if ops else kernel.name


def shorten_names(names: Sequence[str], most: int) -> dict[str, str]:
    """Each name in `most` characters.  Long names that begin alike keep their beginning and the words that are not in
    all of them; those that are alike even then are numbered."""
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        if len(name) > most:
            alike.setdefault(name[:HEAD], []).append(name)
    shown: dict[str, str] = {}
    for group in alike.values():
        for name, apart in zip(group, _find_differences(group), strict=True):
            kept = apart[: most // 2]
            shown[name] = f"{name[: most - 1 - len(kept)]}…{kept}"
    taken: set[str] = {name for name in names if name not in shown}
    for name, text in shown.items():
        number = 1
        while shown[name] in taken:
            number += 1
            shown[name] = f"{text[: most - 1 - len(str(number))]}#{number}"
        taken.add(shown[name])
    return {name: shown.get(name, name) for name in names}


def _find_differences(names: Sequence[str]) -> list[str]:
    """For each name the words that tell it apart, without the beginning that these words have in common.  A single name
    gives the number at its end."""
    if len(names) == 1:
        found = re.search(r"[._]?\d+$", names[0])
        return [found[0] if found else ""]
    words = [re.split(r"_|(?<=\W)", name) for name in names]
    common = set(words[0]).intersection(*words[1:])
    rows = [[word for word in row if word not in common] for row in words]
    apart = [""] * len(names)
    for most in range(1, max(map(len, rows)) + 1):
        apart = ["_".join(row[:most]) for row in rows]
        if len(set(apart)) == len(apart):
            break
    letters = re.match(r"\D*", apart[0])
    start = letters[0] if letters and all(text.startswith(letters[0]) for text in apart) else ""
    return [text.removeprefix(start) for text in apart]


def shorten_path(source: str) -> str:
    """Relative to where the command was started, if it lies below."""
    here = f"{Path.cwd()}/"
    return source.removeprefix(here)
