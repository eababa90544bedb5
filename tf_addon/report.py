"""What became of TensorFlow's functions: compiled, run, left to XLA or to TensorFlow, and why.

Takes what the compiler and the shim note, hands on a Report that prints as a table.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from astitch.events import note_compile, note_fallback
from astitch.program.steps import Program
from astitch.show.compilation import Compilation
from tf_addon.launch_table import count_steps
from tf_addon.shim_library import OP_BY_OP, STITCHED, XLA

MOST_FUNCTIONS = 1000
"""Functions that a report has: a process may make new ones for weeks."""

OWNERS = {XLA: "XLA", OP_BY_OP: "TensorFlow, op by op"}
"""Who runs what astitch does not, by the shim's outcome."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """One signature of a function as astitch compiled it.  seconds: of planning and of compiling its kernels.

    kept: an earlier process had planned it.  compile: what `compilation` calls.
    """

    signature: str
    kernels: int
    library_calls: int
    other_steps: int
    seconds: float
    kept: bool
    compile: Callable[[], Compilation] = field(repr=False)

    @property
    def compilation(self) -> Compilation:
        """The Compilation of a program; a kept program is compiled again for it."""
        return self.compile()


@dataclass(frozen=True, slots=True)
class Refused:
    """Why signatures of a function are not astitch's, and who runs them."""

    reason: str
    owner: str
    signatures: int


@dataclass(frozen=True, slots=True)
class FunctionReport:
    """A function on a device.  name: as TensorFlow has it.  runs: calls, by who ran them.  phase: of Keras' steps,
    train, test or predict."""

    name: str
    device: str
    compiled: tuple[Compiled, ...]
    refused: tuple[Refused, ...]
    stitched_runs: int
    xla_runs: int
    op_by_op_runs: int
    phase: str = ""

    @property
    def title(self) -> str:
        """What the user called it, and which part of it this is."""
        title = title_of(self.name)
        return f"{title} ({self.phase})" if self.phase else title

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

    notes: what astitch does not get, as models that Keras does not compile, and what to do.
    """

    functions: tuple[FunctionReport, ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON and for other processes; without what only this process can explain."""
        return {
            "compiles": self.compiles,
            "runs": self.runs,
            "fallbacks": self.fallbacks,
            "compile_seconds": self.compile_seconds,
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

    def find(self, title: str) -> tuple[FunctionReport, ...]:
        """The functions that the user called so; forward and backward parts too."""
        return tuple(f for f in self.functions if f.title.split(" ")[0] == title)

    def __str__(self) -> str:
        columns = ("compiles", "seconds", "kernels", "library", "other", "runs", "by XLA", "by TF")
        head = f"{'function':36} {'device':7}" + "".join(f"{name:>9}" for name in columns)
        lines = [head]
        for f in self.functions:
            made = [(c.kernels, c.library_calls, c.other_steps) for c in f.compiled]
            sums = (sum(column) for column in zip(*made, strict=True)) if made else (0, 0, 0)
            runs = (f.stitched_runs, f.xla_runs, f.op_by_op_runs)
            seconds = f"{sum(c.seconds for c in f.compiled):9.1f}"
            cells = f"{len(made):9}{seconds}"
            cells += "".join(f"{number:9}" for number in (*sums, *runs))
            lines.append(f"{f.title[:36]:36} {_short_device(f.device):7}{cells}")
        for f in self.functions:
            for refused in f.refused:
                reason = refused.reason.replace("\n", "\n    ")
                lines.append(f"{f.title}: left to {refused.owner}: {reason}")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def _to_dict(function: FunctionReport) -> dict[str, Any]:
    compiled = [{name: getattr(one, name) for name in _PLAIN_FIELDS} for one in function.compiled]
    refused = [asdict(one) for one in function.refused]
    runs = {
        "stitched": function.stitched_runs,
        "xla": function.xla_runs,
        "op_by_op": function.op_by_op_runs,
    }
    names = {"name": function.name, "title": function.title, "device": function.device}
    return {**names, "compiled": compiled, "refused": refused, "runs": runs}


_PLAIN_FIELDS = "signature", "kernels", "library_calls", "other_steps", "seconds", "kept"

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


def _make_room(known: dict[tuple[str, str], Any], key: tuple[str, str]) -> None:
    """Forgets the function that was noted first where there are as many as may be."""
    if key not in known and len(known) >= MOST_FUNCTIONS:
        del known[next(iter(known))]


class Records:
    """Notes of all threads, by function and device: of the latest MOST_FUNCTIONS."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiled: dict[tuple[str, str], list[Compiled]] = {}
        self._refused: dict[tuple[str, str], dict[tuple[str, int], int]] = {}
        self._runs: dict[tuple[str, str, int], int] = {}

    def note_compiled(
        self,
        function: str,
        device: str,
        program: Program,
        compile: Callable[[], Compilation],
        seconds: float,
        *,
        kept: bool,
    ) -> None:
        """One more signature is astitch's."""
        signature = f"({', '.join(str(view.type) for view in program.parameters)})"
        row = Compiled(signature, *count_steps(program), seconds, kept, compile)
        with self._lock:
            _make_room(self._compiled, (function, device))
            rows = self._compiled.setdefault((function, device), [])
            # A program that serves several call sites is one.
            new = all(known.compile is not compile for known in rows)
            if new:
                rows.append(row)
        if new:
            note_compile(
                title_of(function),
                outcome="kept" if kept else "stitched" if row.kernels else "left",
                kernels=row.kernels,
                seconds=seconds,
                engine="tensorflow",
                device=_short_device(device),
            )

    def note_refused(self, function: str, device: str, reason: str, outcome: int) -> None:
        """One more signature is somebody else's."""
        reason = clean_reason(reason)
        with self._lock:
            _make_room(self._refused, (function, device))
            reasons = self._refused.setdefault((function, device), {})
            reasons[reason, outcome] = reasons.get((reason, outcome), 0) + 1
        note_fallback(
            title_of(function),
            cause="unsupported",
            reason=reason.partition("\n")[0],
            runs_by=OWNERS[outcome],
        )

    def note_run(self, function: str, device: str, outcome: int) -> None:
        """One more call that the shim does not count."""
        key = function, device, outcome
        with self._lock:
            self._runs[key] = self._runs.get(key, 0) + 1

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
            runs = dict(self._runs)
            own = [(function, device) for function, device, _ in runs]
            keys = list(dict.fromkeys([*self._compiled, *self._refused, *called, *own]))
            compiled = {key: tuple(self._compiled.get(key, ())) for key in keys}
            refused = {
                key: tuple(
                    Refused(reason, OWNERS[outcome], count)
                    for (reason, outcome), count in self._refused.get(key, {}).items()
                )
                for key in keys
            }

        def make(key: tuple[str, str]) -> FunctionReport:
            stitched, xla, op_by_op = (
                count_runs(*key, outcome) + runs.get((*key, outcome), 0)
                for outcome in (STITCHED, XLA, OP_BY_OP)
            )
            both = compiled[key], refused[key]
            return FunctionReport(*key, *both, stitched, xla, op_by_op, phase_of(key[0]))

        return Report(tuple(map(make, keys)), notes)
