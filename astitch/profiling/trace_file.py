"""A Report -> a file of trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

Takes the timelines of both sides, hands on JSON: a process for each side, a track for each class of kernel, and the
device memory in use as a counter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from astitch.profiling.report import KINDS, Kernel, Report, Side
from astitch.profiling.wording import KIND_NAMES, SIDE_NAMES, name_basis


def render_trace(report: Report) -> str:
    """The whole file.  Times are in us from the begin of a call; where nothing was run each is a speed of light."""
    events = [
        event for number, side in enumerate(report.sides, 1) for event in _list_events(number, side)
    ]
    about = {"target": report.target, "basis": name_basis(report), "date": report.date}
    trace = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}
    return json.dumps(trace, separators=(",", ":")) + "\n"


def _list_events(process: int, side: Side) -> Iterator[dict[str, Any]]:
    yield _name(process, 0, "process_name", SIDE_NAMES[side.name])
    for track, kind in enumerate(KINDS, 1):
        yield _name(process, track, "thread_name", KIND_NAMES[kind])
    tracks = {kind: track for track, kind in enumerate(KINDS, 1)}
    kernels = {kernel.name: kernel for kernel in side.kernels}
    for event in side.timeline:
        yield {
            "name": event.name,
            "cat": event.kind,
            "ph": "X",
            "ts": event.start_us,
            "dur": event.us,
            "pid": process,
            "tid": tracks.get(event.kind, 0),
            "args": _describe(kernels.get(event.name)),
        }
    end = max((event.start_us + event.us for event in side.timeline), default=0.0)
    points = side.memory.points
    for number, bytes_ in enumerate(points):
        yield {
            "name": "device memory",
            "ph": "C",
            "ts": end * number / len(points),
            "pid": process,
            "args": {"bytes": bytes_},
        }


def _name(process: int, track: int, what: str, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}


def _describe(kernel: Kernel | None) -> Mapping[str, Any]:
    """What is known of a kernel, where it is known."""
    if kernel is None:
        return {}
    known = {
        "speed of light, us": kernel.bound_us,
        "projected, us": kernel.projected_us,
        "limited by": kernel.limit,
        "read, bytes": kernel.read_bytes,
        "written, bytes": kernel.written_bytes,
        "grid": kernel.grid,
        "block": kernel.block,
        "ops": kernel.stitch.ops if kernel.stitch else None,
        "source": "; ".join(kernel.source[:4]),
    }
    return {name: value for name, value in known.items() if value not in (None, "")}
