"""`python -m astitch.bisect repro.py`: which stitch op, then which pass, makes a program wrong or slow.

Runs the script again and again with directives that leave ever other stitch ops to XLA.  A run is bad where the script
fails; where it prints other numbers than with XLA alone; or, with --slower, where the last number that it prints is so
many times that of XLA alone.  Where kernels are edited by hand (ASTITCH_OVERRIDE), it first asks whether these are to
blame.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from astitch import options
from astitch.pipeline import PASSES

TOLERANCE, SLOWER = 1e-3, 1.1
PLANS = 4
"""Plans of a stitch op that are tried where no pass is to blame."""

ALL_LEFT = "leave all", "leave-attention", "leave-loops"

_EDITED = re.compile(r"a hand-edited kernel runs: (.+)")

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf)\b")


@dataclass(frozen=True, slots=True)
class Part:
    """What can be left to XLA.  program: a pattern of names.  directive: what leaves it.  title: for people."""

    program: str
    directive: str
    title: str


@dataclass(frozen=True, slots=True)
class Run:
    """What a script did.  numbers: that it printed.  parts: the stitch ops in it, as far as it says.  edited: names of
    the files with hand-edited kernels that ran, likewise."""

    status: int
    numbers: tuple[float, ...]
    last_words: str
    parts: tuple[Part, ...]
    edited: tuple[str, ...] = ()


Judge = Callable[[Run], str]
"""Why a run is bad; the empty string: it is good."""


class Script:
    """A script that is run under directives.  edits: are hand-edited kernels used?"""

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        self.command, self.timeout_s, self.runs = list(command), timeout_s, 0
        self.edits = True

    def run(self, directives: Sequence[str]) -> Run:
        """Runs it once.  Raises subprocess.TimeoutExpired."""
        self.runs += 1
        own = options.stitches_file()
        with tempfile.TemporaryDirectory(prefix="astitch_bisect_") as folder:
            file, log = Path(folder) / "stitches", Path(folder) / "events"
            # Programs that were kept would tell nothing of their stitch ops.
            lines = [own.read_text("utf-8") if own else "", "[*]", f"label {uuid.uuid4().hex}"]
            file.write_text("\n".join([*lines, *directives, ""]), "utf-8")
            named = {"ASTITCH_STITCHES": str(file), "ASTITCH_LOG": str(log)}
            named["ASTITCH_OVERRIDE"] = _copy_edits(Path(folder)) if self.edits else ""
            ran = subprocess.run(
                self.command,
                env={**os.environ, **named},
                capture_output=True,
                text=True,
                timeout=self.timeout_s,
                check=False,
            )
            events = log.read_text("utf-8").splitlines() if log.exists() else []
        words = (ran.stderr.strip() or ran.stdout.strip()).splitlines()
        numbers = tuple(float(found) for found in _NUMBER.findall(ran.stdout))
        edited = tuple(dict.fromkeys(Path(n.strip()).name for n in _EDITED.findall(ran.stderr)))
        return Run(ran.returncode, numbers, words[-1] if words else "", _read_parts(events), edited)


def _copy_edits(folder: Path) -> str:
    """A copy of the folder of hand-edited kernels: a run under directives would add other plans' kernels to it.  The
    empty string where there is none."""
    given = options.override_dir()
    if given is None:
        return ""
    copy = folder / "kernels"
    copy.mkdir()
    for file in given.glob("*.cu"):
        shutil.copy(file, copy)
    return str(copy)


def _read_parts(events: Sequence[str]) -> tuple[Part, ...]:
    """The parts of what was compiled, in order."""
    found: dict[Part, None] = {}
    for line in events:
        event = json.loads(line)
        if event["event"] != "compile":
            continue
        program = re.sub(r"([*?[])", r"[\1]", event["program"])
        for name, op in event.get("stitch_ops", ()):
            title = f"{name} of {event['program']}, which computes %{op}"
            found[Part(program, f"leave %{op}", title)] = None
        for what in event.get("others", ()):
            found[Part(program, f"leave-{what}", f"{what} of {event['program']}")] = None
    return tuple(found)


def _list_passes() -> list[Part]:
    """The passes that can be left out."""
    return [Part("*", f"without {step.name}", step.name) for step in PASSES if step.if_it_fails]


def directives_of(parts: Sequence[Part]) -> list[str]:
    """Lines that leave parts to XLA."""
    return [line for part in parts for line in (f"[{part.program}]", part.directive)]


# ---- what is bad ---------------------------------------------------------------------------------


def judge_status(run: Run) -> str:
    return f"exit status {run.status}: {run.last_words}" if run.status else ""


def judge_numbers(plain: Run, tolerance: float) -> Judge:
    """Are the numbers those of XLA alone, to a part of the largest?"""

    def judge(run: Run) -> str:
        if failed := judge_status(run):
            return failed
        if len(run.numbers) != len(plain.numbers):
            return f"{len(run.numbers)} numbers, {len(plain.numbers)} by XLA alone"
        largest = max((abs(n) for n in plain.numbers if abs(n) < float("inf")), default=0.0)
        for ours, theirs in zip(run.numbers, plain.numbers, strict=True):
            same = ours == theirs or (ours != ours and theirs != theirs)
            if not same and not abs(ours - theirs) <= tolerance * largest:
                return f"prints {ours:g}, by XLA alone {theirs:g}"
        return ""

    return judge


def judge_time(plain: Run, factor: float) -> Judge:
    """Is the last number, a time, at most so many times XLA's?"""

    def judge(run: Run) -> str:
        if failed := judge_status(run):
            return failed
        if not run.numbers or run.numbers[-1] > factor * plain.numbers[-1]:
            ours = run.numbers[-1] if run.numbers else float("nan")
            return f"{ours:g}, by XLA alone {plain.numbers[-1]:g}"
        return ""

    return judge


# ---- the search ----------------------------------------------------------------------------------


def find_culprits(parts: Sequence[Part], is_bad: Callable[[Sequence[Part]], bool]) -> list[Part]:
    """The parts that must be left so that a run is good, few of them; all parts left make a good one.

    is_bad: of a run with these left.  Of ever shorter beginnings of the list the last part is a culprit.
    """
    culprits: list[Part] = []
    rest = list(parts)
    while is_bad(culprits):
        good, bad = len(rest), 0  # so many left in front: good; so many: bad
        while good - bad > 1:
            middle = (good + bad) // 2
            if is_bad([*culprits, *rest[:middle]]):
                bad = middle
            else:
                good = middle
        if not good:
            break
        culprits.append(rest[good - 1])
        rest = rest[: good - 1]
    return culprits


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.  Returns the exit status: 0 where a culprit was found, 1 where none was, 2 for a script that
    cannot be judged."""
    parser = argparse.ArgumentParser(
        prog="python -m astitch.bisect",
        description="Find the stitch op, then the pass, that makes a script's results differ or a program slow.",
        epilog="A run is bad where the script fails; else where it prints other numbers than with XLA alone.",
    )
    parser.add_argument(
        "--differs",
        type=float,
        default=TOLERANCE,
        metavar="PART",
        help=f"how far numbers may be from XLA's, of the largest ({TOLERANCE:g})",
    )
    parser.add_argument(
        "--slower",
        type=float,
        nargs="?",
        const=SLOWER,
        metavar="FACTOR",
        help=f"the last number is a time: bad above FACTOR ({SLOWER:g}) times XLA's",
    )
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one run (600)")
    parser.add_argument("script", help="a Python file")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    given = parser.parse_args(arguments)
    if not Path(given.script).is_file():
        parser.error(f"{given.script} is no file")
    return _Search(given).run()


class _Search:
    """The search for one script, which says what it does."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.script = Script([sys.executable, given.script, *given.args], given.timeout)
        self.judge: Judge = judge_status

    def try_with(self, directives: Sequence[str], what: str) -> tuple[Run, str]:
        """A run, and why it is bad."""
        run = self.script.run(directives)
        why = self.judge(run)
        print(f"run {self.script.runs}: {what}: {f'bad: {why}' if why else 'good'}", flush=True)
        return run, why

    def run(self) -> int:
        """Finds and prints the culprits."""
        given = self.given
        as_it_is = self.script.run([])
        plain = self.script.run([*ALL_LEFT, *(part.directive for part in _list_passes())])
        if plain.status:
            print(f"with XLA alone the script fails as well: {plain.last_words}")
            return 2
        if given.slower is not None:
            if not plain.numbers:
                print("the script prints no number; with --slower its last one is a time")
                return 2
            self.judge = judge_time(plain, given.slower)
        elif not as_it_is.status:
            self.judge = judge_numbers(plain, given.differs)
        why = self.judge(as_it_is)
        print(f"as it is: {f'bad: {why}' if why else 'good'}; with XLA alone: good")
        if not why:
            print("there is nothing to find")
            return 1
        parts = as_it_is.parts
        edited = self._find_edits(as_it_is)
        if not parts:
            print(
                "the script compiles nothing with astitch, or fails before: nothing can be left to XLA"
            )
            return 2
        programs = len({part.program for part in parts})
        print(f"{len(parts)} parts in {programs} programs can be left to XLA", flush=True)
        if self._is_bad(parts):
            print("it stays bad with every part left to XLA: a pass before the kernels is to blame")
            culprits: list[Part] = []
        else:
            culprits = find_culprits(parts, self._is_bad)
        if edited:
            self._conclude_edits(culprits, edited)
        else:
            self._conclude(culprits, self._find_pass())
        return 0

    def _find_edits(self, as_it_is: Run) -> Sequence[str]:
        """The files with hand-edited kernels, where the script is good without them; they are not used from now on
        where it is not.  Their plan is the pass's: without a pass they would not run, and it would seem to blame."""
        folder = options.override_dir()
        if folder is None or not any(folder.glob("*.cu")):
            return ()
        self.script.edits = False
        if self.try_with([], "without ASTITCH_OVERRIDE")[1]:
            return ()
        self.script.edits = True
        return [str(folder / name) for name in as_it_is.edited] or [f"one in {folder}"]

    def _conclude_edits(self, culprits: Sequence[Part], edited: Sequence[str]) -> None:
        print()
        for culprit in culprits:
            print(f"stitch op: {culprit.title}")
        print("the compiler is not to blame: without hand-edited kernels the script is good")
        for name in edited:
            print(f"edited by hand: {name}")
        print(f"({self.script.runs} runs)")

    def _is_bad(self, left: Sequence[Part]) -> bool:
        what = f"{len(left)} parts left" if len(left) != 1 else f"{left[0].title} left"
        return bool(self.try_with(directives_of(left), what)[1])

    def _find_pass(self) -> str:
        """The directive that leaves out the pass to blame; the empty string: none is."""
        passes = _list_passes()

        def is_bad(left: Sequence[Part]) -> bool:
            names = ", ".join(part.title for part in left) if len(left) < 3 else f"{len(left)}"
            return bool(self.try_with(directives_of(left), f"without passes: {names or 'none'}")[1])

        if is_bad(passes):
            return ""
        found = find_culprits(passes, is_bad)
        return found[-1].directive if found else ""

    def _find_plan(self, culprit: Part) -> str:
        """The directive that takes a plan with which a stitch op is good; the empty string: none of the first is."""
        op = culprit.directive.partition("%")[2]
        for number in range(PLANS if op else 0):
            line = f"plan %{op} {number}"
            if not self.try_with([f"[{culprit.program}]", line], line)[1]:
                return line
        return ""

    def _conclude(self, culprits: Sequence[Part], without: str) -> None:
        plan = self._find_plan(culprits[0]) if len(culprits) == 1 and not without else ""
        print()
        for culprit in culprits:
            print(f"stitch op: {culprit.title}")
        if without:
            print(f"pass: {without.removeprefix('without ')}")
        else:
            print("pass: none that can be left out; the plan or the text of the kernel is to blame")
        print("to go on, put one of these into a file, and its name into ASTITCH_STITCHES:")
        for culprit in culprits:
            print(f"  [{culprit.program}]\n  {culprit.directive}")
        if without:
            print(f"  {without}")
        if plan:
            print(f"  [{culprits[0].program}]\n  {plan}")
        if culprits:
            print(
                f"its text: ASTITCH_OVERRIDE=kernels python {self.given.script}, then see kernels/"
            )
        print(f"({self.script.runs} runs)")


if __name__ == "__main__":
    sys.exit(main())
