"""What happened in this process, for those who run it: an event for each compile, fallback and tune, and counters.

Takes events as they come.  Hands them on as lines of JSON, to the logger `astitch.events` and to the file that
ASTITCH_LOG names, and counts them: `astitch.status()` and `astitch.metrics()` show the counters.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import warnings
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime

from astitch import options
from astitch.system.forks import ForkLock

log = logging.getLogger("astitch.events")

COUNTERS = {
    "astitch_compiles_total": "Programs that astitch compiled, by what came of them.",
    "astitch_compile_seconds_total": "Seconds that astitch took for them.",
    "astitch_kernels_total": "Stitched kernels in them.",
    "astitch_fallbacks_total": "Programs, or parts of programs, that XLA computes in astitch's place, by cause.",
    "astitch_tunes_total": "Stitch ops whose plans were measured on the GPU.",
    "astitch_checks_failed_total": "Calls whose results differed from those of XLA's own version.",
}
"""Their names in Prometheus' text format, and what they count."""

_counts: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
_lock = ForkLock()


class LogWarning(RuntimeWarning):
    """ASTITCH_LOG names a file that cannot be written."""


def note_compile(
    program: str, *, outcome: str, kernels: int, seconds: float, **details: object
) -> None:
    """A program was compiled.  outcome: "stitched", "kept" (an earlier process made it), "left" (XLA computes it)."""
    _count("astitch_compiles_total", outcome=outcome)
    _count("astitch_compile_seconds_total", seconds)
    _count("astitch_kernels_total", kernels)
    _tell(
        "compile",
        program=program,
        outcome=outcome,
        kernels=kernels,
        seconds=round(seconds, 4),
        **details,
    )


def note_plain() -> None:
    """A program in which nothing is worth a kernel, as every eager op: it is counted, and no event."""
    _count("astitch_compiles_total", outcome="plain")


def note_fallback(program: str, *, cause: str, reason: str, **details: object) -> None:
    """XLA computes a program, or a part of one.  cause: "unsupported", "fault" or "xla" (which refused kernels)."""
    _count("astitch_fallbacks_total", cause=cause)
    _tell("fallback", program=program, cause=cause, reason=reason, **details)


def note_tune(kernel: str, *, plans: int, us: float, default_us: float) -> None:
    """Plans of a stitch op were measured.  us: of the fastest; default_us: of the rules'."""
    _count("astitch_tunes_total")
    _tell("tune", kernel=kernel, plans=plans, us=round(us, 2), default_us=round(default_us, 2))


def note_mismatch(program: str, what: str) -> None:
    """A checked call differed from XLA's own version."""
    _count("astitch_checks_failed_total")
    _tell("check", program=program, difference=what)


def read_counters() -> dict[str, float]:
    """The counters by name and labels, as in Prometheus' text format; those that never rose are 0."""
    with _lock:
        counts = dict(_counts)
    shown = {name + _show_labels(labels): value for (name, labels), value in counts.items()}
    named = {name for name, _ in counts}
    return {**{name: 0.0 for name in COUNTERS if name not in named}, **shown}


def metrics() -> str:
    """The counters of this process in Prometheus' text format, for a page that Prometheus reads."""
    values = read_counters()
    lines = []
    for name, what in COUNTERS.items():
        lines += [f"# HELP {name} {what}", f"# TYPE {name} counter"]
        mine = (key for key in values if key.partition("{")[0] == name)
        lines += [f"{key} {values[key]:.10g}" for key in sorted(mine)]
    return "\n".join([*lines, ""])


def _show_labels(labels: tuple[tuple[str, str], ...]) -> str:
    """Their values are words of this file, so that nothing is to be escaped."""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""


def _count(name: str, by: float = 1, **labels: str) -> None:
    assert name in COUNTERS, name
    with _lock:
        _counts[name, tuple(sorted(labels.items()))] += by


def _tell(event: str, **details: object) -> None:
    """Logs an event; what it says costs nothing where nobody listens."""
    target = options.log_file()
    if not target and not log.isEnabledFor(logging.INFO):
        return
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    begin = {"time": now, "event": event, "host": socket.gethostname(), "pid": os.getpid()}
    line = json.dumps({**begin, **_given(details)})
    log.info("%s", line)
    if target:
        _write(target, line)


def _given(details: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in details.items() if value not in (None, "", [])}


def _write(target: str, line: str) -> None:
    """One write for each line, so that lines of several processes do not mix."""
    if target == "stderr":
        print(line, file=sys.stderr, flush=True)
        return
    try:
        file = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)
    except OSError as error:
        warnings.warn(
            f"astitch: events are not written: {error}\n  ASTITCH_LOG names a file, or stderr",
            LogWarning,
            stacklevel=4,
        )
