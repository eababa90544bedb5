"""What became of TensorFlow's functions: compiled, run, left to XLA or to TensorFlow, and why.

Takes what the compiler and the shim note, hands on a Report that prints as a table.
"""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from html import escape
from typing import Any

from astitch.errors import EngineUnavailable
from astitch.events import note_compile, note_fallback
from astitch.show.compilation import Compilation
from tf_addon.shim_library import FAILED_ITSELF, OP_BY_OP, STITCHED, XLA

MOST_FUNCTIONS = 1000
"""Functions that a report has: a process may make new ones for weeks."""

MOST_ROWS = 100
"""Signatures of a function that a report has, and reasons."""

OWNERS = {XLA: "XLA", OP_BY_OP: "TensorFlow, op by op", FAILED_ITSELF: "the function"}
"""Who runs what astitch does not, by the shim's outcome."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """One signature of a function as astitch compiled it.  seconds: of planning and of compiling its kernels.

    kept: an earlier process had planned it.  stitched_us, left_us: projected memory-intensive time of a call, in
    kernels and outside of them.  compile: what `compilation` calls; a copy from another process has none.
    """

    signature: str
    kernels: int
    library_calls: int
    other_steps: int
    seconds: float
    kept: bool
    stitched_us: float
    left_us: float
    compile: Callable[[], Compilation] | None = field(repr=False, compare=False)

    @property
    def compilation(self) -> Compilation:
        """The Compilation of a program; a kept program is compiled again for it.  Raises EngineUnavailable in another
        process than that of the program."""
        if self.compile is None:
            raise EngineUnavailable(
                f"tf_addon.report: {self.signature} was compiled by another process\n"
                "  call explain() there and write down what it gives"
            )
        return self.compile()

    def __reduce__(self) -> tuple[Any, ...]:
        plain = (getattr(self, each.name) for each in fields(self) if each.name != "compile")
        return Compiled, (*plain, None)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why signatures of a function are not astitch's, and who runs them."""

    reason: str
    owner: str
    signatures: int


@dataclass(frozen=True, slots=True)
class FunctionReport:
    """A function on a device.  name: as TensorFlow has it.  runs: calls, by who ran them.

    failed_runs: calls that end with an error of the function's own, a shape that does not fit for one.
    phase: of Keras' steps, train, test or predict.
    """

    name: str
    device: str
    compiled: tuple[Compiled, ...]
    refused: tuple[Refused, ...]
    stitched_runs: int
    xla_runs: int
    op_by_op_runs: int
    failed_runs: int = 0
    phase: str = ""

    @property
    def title(self) -> str:
        """What the user called it, and which part of it this is."""
        title = title_of(self.name)
        return f"{title} ({self.phase})" if self.phase else title

    @property
    def share(self) -> float | None:
        """How much of the projected memory-intensive time runs in kernels, 0 to 1; None where there is none."""
        return _share_of(self.compiled)

    def explain(self) -> str:
        """Kernels and refusals of each signature, as `astitch.compile_hlo(...).explain()` tells them."""
        parts = [
            f"{self.title}{one.signature}\n{one.compilation.explain()}" for one in self.compiled
        ]
        return "\n\n".join(
            [*parts, *(f"{self.title}: {r.owner}: {r.reason}" for r in self.refused)]
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What became of every function that had to be compiled since the last reset.

    notes: what astitch does not get, as functions and models that are not compiled, and what to do.
    """

    functions: tuple[FunctionReport, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON and for other processes; without what only this process can explain."""
        return {
            "compiles": self.compiles,
            "runs": self.runs,
            "fallbacks": self.fallbacks,
            "errors": self.errors,
            "compile_seconds": self.compile_seconds,
            "share": self.share,
            "functions": [_to_dict(function) for function in self.functions],
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """to_dict as JSON."""
        return json.dumps(self.to_dict())

    @property
    def compile_seconds(self) -> float:
        """That astitch took to plan and compile."""
        return sum(one.seconds for function in self.functions for one in function.compiled)

    @property
    def compiles(self) -> int:
        """Signatures that astitch compiled."""
        return sum(len(function.compiled) for function in self.functions)

    @property
    def runs(self) -> int:
        """Calls that ran through astitch."""
        return sum(function.stitched_runs for function in self.functions)

    @property
    def fallbacks(self) -> int:
        """Calls that XLA or TensorFlow ran instead."""
        return sum(function.xla_runs + function.op_by_op_runs for function in self.functions)

    @property
    def errors(self) -> int:
        """Calls that ended with an error of the function's own."""
        return sum(function.failed_runs for function in self.functions)

    @property
    def share(self) -> float | None:
        """How much of the projected memory-intensive time of all signatures runs in kernels, 0 to 1."""
        return _share_of([one for function in self.functions for one in function.compiled])

    def find(self, title: str) -> tuple[FunctionReport, ...]:
        """The functions that the user called so; forward and backward parts too."""
        return tuple(f for f in self.functions if f.title.split(" ")[0] == title)

    def __str__(self) -> str:
        columns = (
            *("compiles", "seconds", "kernels", "library", "other", "stitched"),
            *("runs", "by XLA", "by TF", "errors"),
        )
        head = f"{'function':36} {'device':7}" + "".join(f"{name:>9}" for name in columns)
        lines = [head if self.functions else "no function was compiled"]
        for f in self.functions:
            made = [(c.kernels, c.library_calls, c.other_steps) for c in f.compiled]
            sums = (sum(column) for column in zip(*made, strict=True)) if made else (0, 0, 0)
            runs = (f.stitched_runs, f.xla_runs, f.op_by_op_runs, f.failed_runs)
            cells = f"{len(made):9}{sum(c.seconds for c in f.compiled):9.1f}"
            cells += "".join(f"{number:9}" for number in sums) + f"{show_share(f.share):>9}"
            cells += "".join(f"{number:9}" for number in runs)
            lines.append(f"{f.title[:36]:36} {_short_device(f.device):7}{cells}")
        for f in self.functions:
            for refused in f.refused:
                reason = refused.reason.replace("\n", "\n    ")
                failed = refused.owner == OWNERS[FAILED_ITSELF]
                whose = "an error of its own" if failed else f"left to {refused.owner}"
                lines.append(f"{f.title}: {whose}: {reason}")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """For notebooks: what print shows."""
        return f"<pre>{escape(str(self))}</pre>"


def _to_dict(function: FunctionReport) -> dict[str, Any]:
    compiled = [{name: getattr(one, name) for name in _PLAIN_FIELDS} for one in function.compiled]
    refused = [asdict(one) for one in function.refused]
    runs = {
        "stitched": function.stitched_runs,
        "xla": function.xla_runs,
        "op_by_op": function.op_by_op_runs,
        "failed": function.failed_runs,
    }
    names = {name: getattr(function, name) for name in ("name", "title", "phase", "device")}
    values = {"share": function.share, "compiled": compiled, "refused": refused, "runs": runs}
    return {**names, **values}


_PLAIN_FIELDS = (
    *("signature", "kernels", "library_calls", "other_steps", "seconds", "kept"),
    *("stitched_us", "left_us"),
)


def _share_of(compiled: Sequence[Compiled]) -> float | None:
    stitched = sum(one.stitched_us for one in compiled)
    whole = stitched + sum(one.left_us for one in compiled)
    return stitched / whole if whole else None


def show_share(share: float | None) -> str:
    """`97 %`; `-` where there is no memory-intensive time."""
    return "-" if share is None else f"{100 * share:.0f} %"


_NAME = re.compile(r"__inference___(backward)_(.+?)_\d+_\d+|__(inference|forward)_(.+?)_\d+")


def title_of(name: str) -> str:
    """What a user calls a function: `__inference_step_3` -> `step`, `__forward_step_5` -> `step (forward)`."""
    match = _NAME.fullmatch(name)
    if match is None:
        return name
    part = match[1] or match[3]
    title = (match[2] or match[4]).strip("_")
    return title if part == "inference" else f"{title} ({part})"


def clean_reason(reason: str) -> str:
    """TensorFlow's words without the attributes behind a function's name and without what only its developers want."""
    lines = re.sub(r"\[_XlaMustCompile[^\]]*\]", "", reason).strip().splitlines()
    kept = (
        line.strip() for line in lines if not line.strip().startswith("tf2xla conversion failed")
    )
    return "\n".join(line for line in kept if line)


def _short_device(device: str) -> str:
    """`/job:localhost/replica:0/task:0/device:CPU:0` -> `cpu:0`."""
    return device.rpartition("device:")[2].lower()


def _make_room(known: dict[Any, Any], key: Any, most: int) -> None:
    """Forgets what was noted first where there is as much as may be."""
    if key not in known and len(known) >= most:
        del known[next(iter(known))]


class Records:
    """Notes of all threads, by function and device: of the latest MOST_FUNCTIONS, and MOST_ROWS of each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiled: dict[tuple[str, str], deque[Compiled]] = {}
        self._refused: dict[tuple[str, str], dict[tuple[str, int], int]] = {}
        self._runs: dict[tuple[str, str], dict[int, int]] = {}

    def note_compiled(self, function: str, device: str, row: Compiled) -> None:
        """One more signature is astitch's."""
        with self._lock:
            _make_room(self._compiled, (function, device), MOST_FUNCTIONS)
            rows = self._compiled.setdefault((function, device), deque(maxlen=MOST_ROWS))
            # A program that serves several call sites is one.
            new = all(known.compile is not row.compile for known in rows)
            if new:
                rows.append(row)
        if new:
            made = "stitched" if row.kernels else "left"
            note_compile(
                title_of(function),
                outcome="kept" if row.kept else made,
                kernels=row.kernels,
                seconds=row.seconds,
                engine="tensorflow",
                device=_short_device(device),
            )

    def note_refused(self, function: str, device: str, reason: str, outcome: int) -> None:
        """One more signature is somebody else's, or fails of itself."""
        reason = clean_reason(reason)
        with self._lock:
            _make_room(self._refused, (function, device), MOST_FUNCTIONS)
            reasons = self._refused.setdefault((function, device), {})
            _make_room(reasons, (reason, outcome), MOST_ROWS)
            reasons[reason, outcome] = reasons.get((reason, outcome), 0) + 1
        if outcome == FAILED_ITSELF:
            return
        note_fallback(
            title_of(function),
            cause="unsupported",
            reason=reason.partition("\n")[0],
            runs_by=OWNERS[outcome],
        )

    def note_run(self, function: str, device: str, outcome: int) -> None:
        """One more call that the shim does not count."""
        key = function, device
        with self._lock:
            _make_room(self._runs, key, MOST_FUNCTIONS)
            counts = self._runs.setdefault(key, {})
            counts[outcome] = counts.get(outcome, 0) + 1

    def clear(self) -> None:
        """Forget what was noted."""
        with self._lock:
            self._compiled.clear()
            self._refused.clear()
            self._runs.clear()

    def make_report(
        self,
        called: Iterable[tuple[str, str]],
        count_runs: Callable[[str, str, int], int],
        notes: tuple[str, ...] = (),
        phase_of: Callable[[str], str] = lambda function: "",
    ) -> Report:
        """called: functions that the shim ran, and their devices.  count_runs: of a function, on a device, with an
        outcome.  notes: see Report."""
        with self._lock:
            runs = {key: dict(counts) for key, counts in self._runs.items()}
            keys = list(dict.fromkeys([*self._compiled, *self._refused, *called, *runs]))
            compiled = {key: tuple(self._compiled.get(key, ())) for key in keys}
            refused = {
                key: tuple(
                    Refused(reason, OWNERS[outcome], count)
                    for (reason, outcome), count in self._refused.get(key, {}).items()
                )
                for key in keys
            }

        def make(key: tuple[str, str]) -> FunctionReport:
            stitched, xla, op_by_op, failed = (
                count_runs(*key, outcome) + runs.get(key, {}).get(outcome, 0)
                for outcome in (STITCHED, XLA, OP_BY_OP, FAILED_ITSELF)
            )
            both = compiled[key], refused[key]
            return FunctionReport(*key, *both, stitched, xla, op_by_op, failed, phase_of(key[0]))

        return Report(tuple(map(make, keys)), notes)
