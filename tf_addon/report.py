"""What became of TensorFlow's functions: compiled, run, left to XLA or to TensorFlow, and why.

Takes what the compiler and the shim note, hands on a Report that prints as a table.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from astitch.compile import Compilation
from tf_addon.launch_table import count_steps
from tf_addon.shim_library import OP_BY_OP, STITCHED, XLA

OWNERS = {XLA: "XLA", OP_BY_OP: "TensorFlow, op by op"}
"""Who runs what astitch does not, by the shim's outcome."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """One signature of a function as astitch compiled it.  seconds: of planning and of compiling its kernels."""

    signature: str
    kernels: int
    library_calls: int
    other_steps: int
    seconds: float
    compilation: Compilation = field(repr=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why signatures of a function are not astitch's, and who runs them."""

    reason: str
    owner: str
    signatures: int


@dataclass(frozen=True, slots=True)
class FunctionReport:
    """A function on a device.  name: as TensorFlow has it.  runs: calls, by who ran them."""

    name: str
    device: str
    compiled: tuple[Compiled, ...]
    refused: tuple[Refused, ...]
    stitched_runs: int
    xla_runs: int
    op_by_op_runs: int

    @property
    def title(self) -> str:
        """What the user called it, and which part of it this is."""
        return title_of(self.name)

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
    """What became of every function that had to be compiled since the last reset."""

    functions: tuple[FunctionReport, ...]

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
        head = f"{'function':36} {'device':7} {'compiles':>8} {'kernels':>8} {'library':>8} {'other':>6} {'runs':>8} {'XLA':>6} {'TF':>6}"
        lines = [head]
        for f in self.functions:
            sums = [
                sum(getattr(c, what) for c in f.compiled)
                for what in ("kernels", "library_calls", "other_steps")
            ]
            kernels, library, other = sums
            lines.append(
                f"{f.title[:36]:36} {_short_device(f.device):7} {len(f.compiled):8} {kernels:8} {library:8} {other:6} "
                f"{f.stitched_runs:8} {f.xla_runs:6} {f.op_by_op_runs:6}"
            )
        for f in self.functions:
            for refused in f.refused:
                reason = "\n    ".join(refused.reason.strip().splitlines())
                lines.append(f"{f.title}: left to {refused.owner}: {reason}")
        return "\n".join(lines)


_PARTS = {"forward": " (forward)", "backward": " (backward)", "inference": ""}


def title_of(name: str) -> str:
    """What a user calls a function: `__backward_step_17` -> `step (backward)`."""
    match = re.fullmatch(r"_*(?:(inference|forward|backward)_)?(.+?)_\d+", name)
    if match is None:
        return name
    part = _PARTS[match[1]] if match[1] else ""
    return re.sub(r"^_*(?:inference|forward|backward)_", "", match[2]).strip("_") + part


def _short_device(device: str) -> str:
    return (
        device.rsplit(":", 2)[-2].lower() + ":" + device.rsplit(":", 1)[-1]
        if ":" in device
        else device
    )


class Records:
    """Notes of all threads, by function and device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiled: dict[tuple[str, str], list[Compiled]] = {}
        self._refused: dict[tuple[str, str], dict[tuple[str, int], int]] = {}

    def note_compiled(
        self, function: str, device: str, compilation: Compilation, seconds: float
    ) -> None:
        """One more signature is astitch's."""
        program = compilation.program
        signature = f"({', '.join(str(view.type) for view in program.parameters)})"
        row = Compiled(signature, *count_steps(program), seconds, compilation)
        with self._lock:
            self._compiled.setdefault((function, device), []).append(row)

    def note_refused(self, function: str, device: str, reason: str, outcome: int) -> None:
        """One more signature is somebody else's."""
        with self._lock:
            reasons = self._refused.setdefault((function, device), {})
            reasons[reason, outcome] = reasons.get((reason, outcome), 0) + 1

    def clear(self) -> None:
        """Forget what was noted."""
        with self._lock:
            self._compiled.clear()
            self._refused.clear()

    def make_report(self, count_runs: Callable[[str, str, int], int]) -> Report:
        """count_runs: of a function, on a device, with an outcome."""
        with self._lock:
            keys = list(dict.fromkeys([*self._compiled, *self._refused]))
            compiled = {key: tuple(self._compiled.get(key, ())) for key in keys}
            refused = {
                key: tuple(
                    Refused(reason, OWNERS[outcome], count)
                    for (reason, outcome), count in self._refused.get(key, {}).items()
                )
                for key in keys
            }
        return Report(
            tuple(
                FunctionReport(
                    *key,
                    compiled[key],
                    refused[key],
                    *(count_runs(*key, outcome) for outcome in (STITCHED, XLA, OP_BY_OP)),
                )
                for key in keys
            )
        )
