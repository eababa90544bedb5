"""The Report: everything that a profile found, as frozen values that go to JSON and come back.

Takes nothing of the compiler's, so that a saved report can be read, shown and compared anywhere.  None stands for what
was not measured or is not known: a figure is never made up.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from astitch.errors import AstitchError

SCHEMA = "astitch-profile 2"
"""Changes with the fields' meaning; a reader refuses what it does not know."""

READABLE = (SCHEMA, "astitch-profile 1")
"""1 had each event of a timeline as an object of its own."""

SCRIPT_SCHEMA = "astitch-profile script 1"
"""Of the reports of a script's programs, listed."""

MEMORY, PRODUCT, COPY = "memory", "product", "copy"
KINDS = (MEMORY, PRODUCT, COPY)
"""Memory-intensive kernels; matrix products and convolutions; memcpy and memset."""

MEASURED, PROJECTED = "measured", "projected"

SIDES = ("xla", "astitch")


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeated measurements, in us."""

    median: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True, slots=True)
class Group:
    """Ops of a stitched kernel that share a thread mapping.  members: each as HLO text.  mapping: of its dominant."""

    dominant: str
    sub_dominants: Sequence[str]
    members: Sequence[str]
    mapping: str


@dataclass(frozen=True, slots=True)
class Value:
    """A value that a stitched kernel keeps.  scheme: independent, local, regional or global.  loop: number of the task
    loop that computes it, level: how many barriers of the grid come before that.  reason: why this scheme."""

    name: str
    scheme: str
    loop: int
    level: int
    type: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stitch:
    """How a kernel of astitch's came about.

    barriers: why each barrier of the grid and of a block is there.  barrier_us: projected for those of the grid.
    schemes: how many values of each.  decisions: the schedule, the search, the launch.  cuda: the kernel's text.
    turns: of a loop that is this kernel, and of which the fields on groups, values and barriers tell nothing; 0 for a
    stitch op.
    """

    ops: int
    loops: int
    global_barriers: int
    block_barriers: int
    barrier_us: float
    schemes: Mapping[str, int]
    groups: Sequence[Group]
    values: Sequence[Value]
    barriers: Sequence[str]
    decisions: Sequence[str]
    cuda: str
    turns: int = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, or several launches of one name, in one call.

    kind: one of KINDS.  us: measured, all launches together.  projected_us: by the latency model.  bound_us: the speed
    of light, the least time for its bytes, arithmetic and launches.  limit: what takes most of that time.  read_bytes,
    written_bytes, flops: least work.  occupancy: share of an SM's threads that are resident.  sm_efficiency: share of
    the SMs' time with work.  source: lines and op names in the user's program.  counters: by Nsight Compute.
    ours: emitted by astitch; stitch says how, for a kernel of the program itself (one in a loop's body is none).
    """

    name: str
    kind: str
    launches: float
    us: float | None = None
    projected_us: float | None = None
    bound_us: float | None = None
    limit: str = ""
    read_bytes: int | None = None
    written_bytes: int | None = None
    flops: int | None = None
    grid: int | None = None
    block: int | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    spill_bytes: int | None = None
    occupancy: float | None = None
    sm_efficiency: float | None = None
    source: Sequence[str] = ()
    counters: Mapping[str, float] = field(default_factory=dict)
    ours: bool = False
    stitch: Stitch | None = None

    @property
    def time_us(self) -> float | None:
        """Measured, else projected, else the least it can take."""
        for us in (self.us, self.projected_us, self.bound_us):
            if us is not None:
                return us
        return None

    @property
    def traffic_bytes(self) -> int | None:
        if self.read_bytes is None or self.written_bytes is None:
            return None
        return self.read_bytes + self.written_bytes

    @property
    def light_share(self) -> float | None:
        """The share of the speed of light that it reaches; None where its time is not known."""
        us = self.us if self.us is not None else self.projected_us
        return self.bound_us / us if us and self.bound_us is not None else None


@dataclass(frozen=True, slots=True)
class Event:
    """One thing on the timeline of a call, in us from its start."""

    name: str
    kind: str
    start_us: float
    us: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Device memory in use over one call, in the order in which its kernels run: of values, packed without gaps.

    points: bytes, each the most of some neighbouring steps.  peak_at: what runs where it is highest.  steps: how many
    instructions or launches there are.
    """

    points: Sequence[int] = ()
    peak_at: str = ""
    steps: int = 0

    @property
    def peak(self) -> int | None:
        return max(self.points) if self.points else None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the stitched program.  kind: kernel, library, xla or reference.  reads: numbers of earlier steps."""

    number: int
    kind: str
    name: str
    label: str
    reads: Sequence[int]


@dataclass(frozen=True, slots=True)
class Side:
    """XLA or astitch.

    missing: why there are no kernels; "" where there are.  basis: MEASURED or PROJECTED, of kernels and timeline.
    wall: a call, pipelined.  gpu: the kernels of a call.  planned_bytes: device memory as the compiler planned it.
    """

    name: str
    missing: str = ""
    basis: str = PROJECTED
    kernels: Sequence[Kernel] = ()
    timeline: Sequence[Event] = ()
    wall: Spread | None = None
    gpu: Spread | None = None
    compile_s: float | None = None
    planned_bytes: int | None = None
    notes: Sequence[str] = ()
    memory: Memory = Memory()

    def count(self, kind: str) -> float | None:
        """Launches of a class in one call."""
        if self.missing:
            return None
        return round(sum(k.launches for k in self.kernels if k.kind == kind), 2)

    @property
    def launches(self) -> float | None:
        return None if self.missing else round(sum(k.launches for k in self.kernels), 2)

    def kernel_us(self, kind: str) -> float | None:
        """Time of a class in one call: measured, else the least it can take."""
        return self._sum(kind, "us" if self.basis == MEASURED else "bound_us")

    @property
    def stitched(self) -> tuple[Kernel, ...]:
        """The kernels that astitch emitted; the others of its side are XLA's and libraries'."""
        return tuple(kernel for kernel in self.kernels if kernel.ours)

    @property
    def stitched_us(self) -> float | None:
        """Measured microseconds of the stitched kernels; None where none was measured."""
        found = [k.us for k in self.stitched if k.us is not None]
        return sum(found) if found else None

    @property
    def projected_us(self) -> float | None:
        """Microseconds of the stitched kernels by the latency model; None where there are none."""
        found = [k.projected_us for k in self.stitched if k.projected_us is not None]
        return sum(found) if found else None

    def bound_us(self, kind: str) -> float | None:
        """The speed of light of the kernels as they are cut."""
        return self._sum(kind, "bound_us")

    def _sum(self, kind: str, field_name: str) -> float | None:
        found = [getattr(k, field_name) for k in self.kernels if k.kind == kind]
        if self.missing or any(us is None for us in found):
            return None
        return float(sum(found))

    @property
    def total_us(self) -> float | None:
        """A call: measured if it was, else what the kernels take at least."""
        if self.wall is not None:
            return self.wall.median
        return self.busy_us

    @property
    def busy_us(self) -> float | None:
        """Microseconds of all kernels in one call; None where one is unknown."""
        parts = [self.kernel_us(kind) for kind in KINDS]
        return None if None in parts else sum(us for us in parts if us is not None)

    @property
    def overhead_us(self) -> float | None:
        """A call less its kernels: launches and gaps.  None where calls were not timed."""
        busy = self.busy_us
        return None if self.wall is None or busy is None else max(self.wall.median - busy, 0.0)

    @property
    def barriers(self) -> float:
        """Global barriers in one call."""
        found = (k.stitch.global_barriers * k.launches for k in self.kernels if k.stitch)
        return round(sum(found), 2)

    @property
    def barrier_us(self) -> float:
        """Projected for the barriers of the grid in one call."""
        return sum(k.stitch.barrier_us * k.launches for k in self.kernels if k.stitch)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was not stitched.  producer, consumer: equal where one op is refused as such.  sources: of both,
    a line of the user's program or its op_name."""

    producer: str
    consumer: str
    reason: str
    sources: Sequence[str]


@dataclass(frozen=True, slots=True)
class Ablation:
    """The memory-intensive part with only so much of the compiler: launches and us in one call.  basis: as in Side."""

    name: str
    kernels: float | None
    us: float | None
    barriers: int
    basis: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """The device, and how it was measured.

    gpu: as the driver or the preset calls it.  preset: the limits that were assumed.  peak_gbs: of a large copy.
    fp32_gflops: multiply-adds, two operations each.  launch_us: of one more kernel.  clocks: in MHz, while it was
    measured.  l2: "warm", "flushed" or "": not measured.
    """

    gpu: str
    preset: str
    sms: int
    peak_gbs: float
    fp32_gflops: float
    launch_us: float
    driver: str = ""
    clocks: Mapping[str, float] = field(default_factory=dict)
    l2: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """XLA and astitch on one target.

    target: as it was asked for.  date: ISO 8601, UTC.  engine: "static" where nothing was run.  light_us: the speed of
    light of astitch's program.  share: how much of the memory-intensive time is stitched, as projected, and what is
    left.  steps: of the stitched program.  outside: what no kernel and no library computes.
    splits: stitch ops that were looked at twice.  loops: which are one kernel, and why others are not.
    whole_us: of each layer of the model its part of its stitch ops' speed of light, were these one kernel.
    excerpts: the lines of the user's program around those that refusals name, by "FILE:LINE".
    """

    target: str
    date: str
    engine: str
    machine: Machine
    xla: Side
    astitch: Side
    share: Sequence[str] = ()
    steps: Sequence[Step] = ()
    ablation: Sequence[Ablation] = ()
    refusals: Sequence[Refusal] = ()
    outside: Sequence[str] = ()
    splits: Sequence[str] = ()
    loops: Sequence[str] = ()
    stage_s: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    whole_us: Mapping[str, float] = field(default_factory=dict)
    excerpts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    schema: str = SCHEMA

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.xla, self.astitch

    @property
    def measured(self) -> bool:
        return self.astitch.basis == MEASURED

    @property
    def light_share(self) -> float | None:
        """The share of the speed of light that the stitched kernels reach together."""
        stitched = self.astitch.stitched
        shares = [(k.bound_us, k.us if self.measured else k.projected_us) for k in stitched]
        known = [(bound, us) for bound, us in shares if bound is not None and us]
        return sum(bound for bound, _ in known) / sum(us for _, us in known) if known else None

    def to_dict(self) -> dict[str, Any]:
        """What `--json` writes: plain dictionaries, lists, numbers and strings."""
        plain: dict[str, Any] = _plain(asdict(self))
        for side in SIDES:
            plain[side]["timeline"] = _write_columns(getattr(self, side).timeline)
        return plain

    def to_html(self) -> str:
        """One page that needs nothing else."""
        from astitch.profiling.page import render_page

        return render_page(self)

    def to_text(self, width: int = 100, kernels: int = 10) -> str:
        """What the terminal shows, without colours."""
        from astitch.profiling.terminal import render_text

        return render_text(self, width, kernels)

    def _repr_html_(self) -> str:
        """For notebooks: the page in a frame of its own, so that its styles stay inside."""
        from astitch.profiling.page import render_frame

        return render_frame(self)

    def __str__(self) -> str:
        return self.to_text()

    @classmethod
    def from_dict(cls, data: Any, where: str = "report") -> Report:
        """The inverse of to_dict.  Raises AstitchError for what is none, or of another schema.  where: for messages."""
        found = data.get("schema") if isinstance(data, dict) else None
        if found == SCRIPT_SCHEMA:
            raise AstitchError(
                f"{where} holds the reports of several programs\n  --programs 1 saves that of the largest alone"
            )
        if found not in READABLE:
            what = f"has the schema {found!r}" if found else "is no report of astitch-profile"
            raise AstitchError(
                f"{where} {what}\n  this version reads {SCHEMA!r}: save it again with --json"
            )
        try:
            sides = {s: _read_columns(data[s]) for s in SIDES} if found == SCHEMA else {}
            report = _build(cls, {**data, **sides, "schema": SCHEMA})
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise AstitchError(
                f"{where} is damaged: {error}\n  save it again with --json"
            ) from None
        assert isinstance(report, cls)
        return report

    @classmethod
    def load(cls, path: Path) -> Report:
        """A file that `--json` wrote.  Raises AstitchError."""
        try:
            data = json.loads(path.read_text("utf-8"))
        except OSError as error:
            raise AstitchError(
                f"{path}: {error.strerror}\n  give a file that --json wrote"
            ) from None
        except ValueError as error:
            raise AstitchError(
                f"{path}: not JSON: {error}\n  give a file that --json wrote"
            ) from None
        return cls.from_dict(data, str(path))


def spread_of(times: Sequence[float]) -> Spread:
    """Median and extremes of at least one time."""
    ordered = sorted(times)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Spread(median, ordered[0], ordered[-1], len(ordered))


def _write_columns(events: Sequence[Event]) -> dict[str, list[Any]]:
    """A timeline with each name once: thousands of launches have few names.  Times to a nanosecond."""
    rows = {(event.name, event.kind): None for event in events}
    number = {row: i for i, row in enumerate(rows)}
    return {
        "names": [name for name, _ in rows],
        "kinds": [kind for _, kind in rows],
        "row": [number[event.name, event.kind] for event in events],
        "start_us": [round(event.start_us, 3) for event in events],
        "us": [round(event.us, 3) for event in events],
    }


def _read_columns(side: Mapping[str, Any]) -> dict[str, Any]:
    """A side with its timeline as events.  Raises KeyError, TypeError, ValueError, IndexError."""
    found = side["timeline"]
    events = [
        {"name": found["names"][row], "kind": found["kinds"][row], "start_us": start, "us": us}
        for row, start, us in zip(found["row"], found["start_us"], found["us"], strict=True)
    ]
    return {**side, "timeline": events}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _build(kind: Any, data: Any) -> Any:
    """A value of an annotated type from plain JSON.  Raises TypeError, ValueError, KeyError."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        known = {f.name for f in fields(kind)}
        return typing.cast(Any, kind)(
            **{name: _build(hints[name], inner) for name, inner in data.items() if name in known}
        )
    if origin in (types.UnionType, typing.Union):
        if data is None and type(None) in arguments:
            return None
        return _build(next(a for a in arguments if a is not type(None)), data)
    if origin is Sequence:
        if not isinstance(data, list):
            raise TypeError(f"a list was expected, {data!r} was found")
        return tuple(_build(arguments[0], inner) for inner in data)
    if origin is Mapping:
        return {key: _build(arguments[1], inner) for key, inner in data.items()}
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, kind):
        raise TypeError(f"{kind.__name__} was expected, {data!r} was found")
    return data
