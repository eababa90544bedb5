"""Directives: what the owner of a program decides in the compiler's place, one line each.

Takes lines, of the option stitch= and of the file that ASTITCH_STITCHES names.  Hands on Directives, which the passes
ask.  A directive names ops as explanations do: `%add.5` is the kernel, loop or attention that computes this op.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from astitch import options
from astitch.errors import InvalidOption

VERBS = {
    "together": "together %a %b: one kernel computes both",
    "apart": "apart %a %b: no kernel computes both",
    "at-most": "at-most N [%a]: so many ops a kernel, or the one that computes %a",
    "plan": "plan %a N: the plan of this number; 0 is the rules' own",
    "leave": "leave %a, leave all: XLA computes the stitch op",
    "leave-attention": "leave-attention [%a]: attention stays as it is written",
    "leave-loops": "leave-loops [%a]: XLA runs the loop",
    "keep": "keep %a: its kernel stays whole; no kernel, loop or attention is left to XLA for being slower",
    "split": "split %a: its kernel is split as the explorer proposes",
    "without": "without PASS: the pass is left out",
    "in-order": "in-order: scatters and gradients of attention add in a fixed order",
    "in-any-order": "in-any-order: they add as is fastest",
    "stitch-bodies": "stitch-bodies: bodies of loops that are not one kernel, and branches, get kernels too",
    "memory-limit": "memory-limit 8GB: more is computed again in place of being kept, until planned memory fits",
    "label": "label WORD: nothing; caches tell the programs apart",
}
"""The verbs and their forms."""

_COUNTS = {"together": (2, 0), "apart": (2, 0), "plan": (1, 1), "keep": (1, 0), "split": (1, 0)}
"""How many ops and numbers a verb takes, where that is one count."""


class DirectiveWarning(UserWarning):
    """A directive could not be followed."""


@dataclass(frozen=True, slots=True)
class Directive:
    """One line.  programs: a pattern of the names of those that it holds for.  ops: without %.  word: of `without` and
    `label`.  number: of `plan` and `at-most`, bytes of `memory-limit`.  is_named: was it given for this program alone?
    """

    verb: str
    ops: tuple[str, ...] = ()
    number: int = 0
    word: str = ""
    programs: str = "*"
    is_named: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        parts = [self.verb, self.word]
        ops = [f"%{op}" for op in self.ops]
        if self.verb in ("at-most", "memory-limit"):
            parts += [str(self.number), *ops]
        else:
            everything = "all" if self.verb == "leave" and not ops else ""
            parts += [*ops, everything, str(self.number) if self.verb == "plan" else ""]
        return " ".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class Directives:
    """Those of a program, or of all.  outcomes: what came of each by now, by its line; filled by the passes."""

    lines: tuple[Directive, ...] = ()
    outcomes: dict[str, str] = field(default_factory=dict, compare=False)

    def __iter__(self) -> Iterator[Directive]:
        return iter(self.lines)

    def __bool__(self) -> bool:
        return bool(self.lines)

    @property
    def text(self) -> str:
        """The same in one form, for keys of caches and marks."""
        lines, section = [], "*"
        for line in self.lines:
            if line.programs != section:
                section = line.programs
                lines.append(f"[{section}]")
            lines.append(str(line))
        return "\n".join(lines)

    def of(self, program: str) -> Directives:
        """Those that hold for a program, by its name."""
        lines = tuple(
            line if line.programs == "*" else replace(line, programs="*", is_named=True)
            for line in self.lines
            if fnmatch.fnmatchcase(program, line.programs)
        )
        return self if lines == self.lines else Directives(lines)

    def all(self, verb: str) -> list[Directive]:
        """Those of a verb."""
        return [line for line in self.lines if line.verb == verb]

    def note(self, directive: Directive, outcome: str) -> None:
        """What came of a directive; a success is not overwritten."""
        if self.outcomes.get(str(directive)) != FOLLOWED:
            self.outcomes[str(directive)] = outcome

    def names(self, verb: str, ops: Iterable[str], kernel: str = "") -> list[Directive]:
        """Those of a verb that name one of the ops, or the kernel.  They count as followed."""
        found = self.find(verb, ops, kernel)
        for line in found:
            self.note(line, FOLLOWED)
        return found

    def find(self, verb: str, ops: Iterable[str], kernel: str = "") -> list[Directive]:
        """The same, but what comes of them is noted by the caller."""
        return [line for line in self.all(verb) if line.ops and _names(line.ops[0], ops, kernel)]

    def covers(self, verb: str, ops: Iterable[str]) -> bool:
        """Is there one of a verb without ops, which holds for all, or one that names one of these?"""
        for line in self.all(verb):
            if not line.ops:
                self.note(line, FOLLOWED)
                return True
        return bool(self.names(verb, ops))

    @property
    def in_order(self) -> bool | None:
        """Are all sums to have a fixed order?  None: nobody says."""
        told = [line for line in self.lines if line.verb in ("in-order", "in-any-order")]
        for line in told:
            self.note(line, FOLLOWED)
        return told[-1].verb == "in-order" if told else None

    @property
    def memory_limit(self) -> int | None:
        """The bytes that the program is planned to take at most, arguments and results too.  None: nobody says."""
        told = self.all("memory-limit")
        for line in told:
            self.note(line, FOLLOWED)
        return told[-1].number if told else None

    @property
    def stitches_bodies(self) -> bool:
        """Are bodies of loops and branches to have kernels, whoever launches them?"""
        told = self.all("stitch-bodies")
        for line in told:
            self.note(line, FOLLOWED)
        return bool(told)

    @property
    def leaves_all_loops(self) -> bool:
        """Is XLA to run all loops?"""
        return any(not line.ops for line in self.all("leave-loops")) and self.covers(
            "leave-loops", ()
        )

    def list_outcomes(self) -> tuple[str, ...]:
        """A line for each directive: what came of it."""
        shown = []
        for line in self.lines:
            if line.verb == "label":
                continue
            nowhere = NOT_FOUND if line.is_named else ELSEWHERE
            shown.append(f"{line}: {self.outcomes.get(str(line), nowhere)}")
        return tuple(shown)


FOLLOWED = "followed"
NOT_FOUND = "not followed: nothing that it names is in the program"
ELSEWHERE = "nothing that it names is in this program"
NOTHING = Directives()


def _names(given: str, ops: Iterable[str], kernel: str) -> bool:
    return given == kernel or given in ops


def parse(text: str | Sequence[str], where: str) -> Directives:
    """Directives of lines.  `#` begins a comment; `[jit_step*]` a section for the programs of such names.

    `[*]` ends it.  where: for errors.  Raises InvalidOption.
    """
    lines = (
        text.splitlines() if isinstance(text, str) else [p for t in text for p in t.splitlines()]
    )
    section, found = "*", []
    for number, line in enumerate(lines, 1):
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if not words:
            continue
        if match := re.fullmatch(r"\[(.+)\]", " ".join(words)):
            section = match[1].strip()
            continue
        directive = _parse_line(words, section)
        if directive is None:
            forms = "\n  ".join(VERBS.values())
            raise InvalidOption(
                f"{where}, line {number}: {line.strip()!r} is no directive\n  {forms}"
            )
        found.append(directive)
    return Directives(tuple(dict.fromkeys(found)))


def _parse_line(words: Sequence[str], section: str) -> Directive | None:
    verb, *rest = words
    if verb in ("without", "label"):
        return Directive(verb, word=rest[0], programs=section) if len(rest) == 1 else None
    if verb == "memory-limit":
        size = read_bytes("".join(rest))
        return Directive(verb, number=size, programs=section) if size else None
    numbers = [int(word) for word in rest if word.isdecimal()]
    ops = tuple(word.removeprefix("%") for word in rest if not word.isdecimal())
    if verb in _COUNTS:
        fits = _COUNTS[verb] == (len(ops), len(numbers))
    elif verb == "at-most":
        fits = len(numbers) == 1 and numbers[0] > 0 and len(ops) < 2
    elif verb in ("in-order", "in-any-order", "stitch-bodies"):
        fits = not rest
    elif verb == "leave":
        fits = len(ops) == 1 and not numbers
        ops = () if ops == ("all",) else ops
    else:
        fits = verb in VERBS and len(ops) < 2 and not numbers
    number = numbers[0] if numbers else 0
    return Directive(verb, ops, number, programs=section) if fits else None


UNITS = {"": 1, "B": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {f"{unit}B": size for unit, size in UNITS.items() if size > 1}
UNITS |= {f"{unit}iB": 1 << 10 * power for power, unit in enumerate("KMGT", 1)}


def read_bytes(size: str | float) -> int | None:
    """A number of bytes, or one as text with a unit: "8GB", "7.5 GiB".  None: it is none."""
    match = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?) ?([A-Za-z]*)", str(size).strip())
    units = {unit.upper(): bytes_ for unit, bytes_ in UNITS.items()}
    if isinstance(size, bool) or match is None or match[2].upper() not in units:
        return None
    try:
        found = int(float(match[1]) * units[match[2].upper()])
    except (ValueError, OverflowError):
        return None
    return found if found > 0 else None


def read_directives(given: str = "", program: str = "") -> Directives:
    """Those of the file that ASTITCH_STITCHES names, and after them those of an option.

    given: the option's text.  program: the name of the only one that it was given for.
    Raises InvalidOption for a file that cannot be read, or that is no directives.
    """
    file = options.stitches_file()
    if file is None and not given:
        return NOTHING
    lines: list[Directive] = []
    if file is not None:
        lines += parse(_read_file(file), str(file))
    if given:
        told = parse(given, "stitch=")
        lines += (replace(line, is_named=True) for line in told) if program else told
    return Directives(tuple(dict.fromkeys(lines)))


def _read_file(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(
            f"environment: ASTITCH_STITCHES={str(file)!r} cannot be read: {error}\n"
            "  it names a file of directives (docs/directives.md)"
        ) from None


def warn_of_unfollowed(program: str, outcomes: Iterable[str]) -> None:
    """Warns of directives that could not be followed, and of what is nowhere in the program that it was given for.

    outcomes: see list_outcomes.
    """
    for line in outcomes:
        if ": not followed" in line:
            warnings.warn(f"astitch: {program}: {line}", DirectiveWarning, stacklevel=3)


def check_option(
    stitch: str | Sequence[str] | None,
    where: str,
    deterministic: bool | None = None,
    memory_limit: str | float | None = None,
) -> str:
    """The text of an option stitch=: lines, or a sequence of them.  Raises InvalidOption.

    deterministic, memory_limit: the options of these names, which are directives too.
    """
    text = parse(stitch or "", f"{where}: stitch=").text
    options_ = []
    if deterministic is not None:
        options_.append("in-order" if deterministic else "in-any-order")
    if memory_limit is not None:
        size = read_bytes(memory_limit)
        if size is None:
            raise InvalidOption(
                f"{where}: memory_limit={memory_limit!r} is not known\n  it is a number of bytes, or text as '8GB'"
            )
        options_.append(f"memory-limit {size}")
    return "\n".join([*([text, "[*]"] if text and options_ else [text][: bool(text)]), *options_])


def fingerprint(given: str = "") -> str:
    """A hash of all directives that hold, for the keys of caches; the empty string: there are none."""
    text = read_directives(given).text
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""
