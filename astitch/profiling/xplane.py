"""A Report -> an XSpace of XLA's profiler, which TensorBoard's profile page (XProf) and `jax.profiler` read.

Takes the timelines of both sides, hands on the protobuf's bytes: a plane for each side, a line for each class of
kernel.  The messages are tsl/profiler/protobuf/xplane.proto; the few fields that are needed are written by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from astitch.profiling.report import KINDS, Report, Side
from astitch.profiling.wording import KIND_NAMES, SIDE_NAMES

PICOSECONDS = 1_000_000
"""In a microsecond."""


def render_xspace(report: Report) -> bytes:
    """The whole file.  Where nothing was run each time is a speed of light."""
    planes = [_render_plane(number, side) for number, side in enumerate(report.sides, 1)]
    return b"".join(_message(1, plane) for plane in planes)


def place_in(folder: Path, report: Report) -> Path:
    """Where TensorBoard looks for it in a folder of logs: a run is named by its time."""
    run = report.date.partition("+")[0].replace(":", "_").replace("-", "_")
    return folder / "plugins" / "profile" / run / "astitch.xplane.pb"


def _render_plane(number: int, side: Side) -> bytes:
    """XPlane: id 1, name 2, lines 3, event_metadata 4."""
    names = {name: i for i, name in enumerate(dict.fromkeys(e.name for e in side.timeline), 1)}
    # XProf knows devices by this name; which is which stands behind it.
    plane = [_number(1, number), _text(2, f"/device:GPU:{number - 1} {SIDE_NAMES[side.name]}")]
    for line, kind in enumerate(KINDS, 1):
        events = [
            _render_event(names[event.name], event.start_us, event.us)
            for event in side.timeline
            if event.kind == kind
        ]
        if events:
            plane.append(_message(3, _render_line(line, KIND_NAMES[kind], events)))
    for name, i in names.items():
        metadata = _number(1, i) + _text(2, name)
        plane.append(_message(4, _number(1, i) + _message(2, metadata)))
    return b"".join(plane)


def _render_line(number: int, name: str, events: Iterable[bytes]) -> bytes:
    """XLine: id 1, name 2, events 4, display_id 10."""
    inside = b"".join(_message(4, event) for event in events)
    return _number(1, number) + _text(2, name) + inside + _number(10, number)


def _render_event(name: int, start_us: float, us: float) -> bytes:
    """XEvent: metadata_id 1, offset_ps 2, duration_ps 3."""
    times = (round(start_us * PICOSECONDS), round(us * PICOSECONDS))
    return _number(1, name) + _number(2, times[0]) + _number(3, times[1])


# ---- protobuf's wire format --------------------------------------------------------------------------------------

_VARINT, _BYTES = 0, 2


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(content)) + content


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode())
