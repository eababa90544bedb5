"""Sections of a kernel -> their text, once for all that are equal but for their arrays and numbers of tasks.

An optimizer does the same to each tensor.  Its kernel has a section for each, and the CUDA compiler takes as long as
the text is.  So equal sections are printed once.  Where all blocks walk over the tasks of each, a loop takes one
section after the other.  Where a block has at most one task of each, it looks up whose task it has.  Each block does
the same tasks as before, so that no result changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from astitch.kernel import kernel_ir as k
from astitch.kernel.visit_statements import find_own_names, list_statements

LONG_KERNEL = 500
"""Statements from which on a kernel is worth a look: the CUDA compiler takes half a second for them."""

TAKEN_OVER = "the next sections take over the shared memory"
"""Why there is a barrier."""

LEAST_EQUAL = 3
"""Equal sections that share a text.  What chooses their arrays is some lines of text for each."""

LEAST_SAVED = 60
"""Statements that a stretch of sections must be shorter by."""

LINES_OF_A_CHOICE = 4
"""Statements that the choice of a section's arrays is as long as."""

_WORD = re.compile(r"[A-Za-z_]\w*")
_ALIAS = re.compile(r" *const [\w ]+ (\w+) = (\w+);")
_OWN = re.compile(r"[A-Za-z]\w*_\d+")
"""A name that declarations.py makes: nothing of the device library is called so."""


def is_long(kernel: k.Kernel) -> bool:
    """Is the text of a kernel worth the work of making it shorter?"""
    return sum(1 for _ in list_statements(kernel.body)) >= LONG_KERNEL


# ---- which sections may change places ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stretch:
    """Sections that may change places, and the barriers between them.  parted: there is one."""

    statements: tuple[k.Statement, ...]

    @property
    def sections(self) -> tuple[k.Section, ...]:
        return tuple(s for s in self.statements if isinstance(s, k.Section))

    @property
    def parted(self) -> bool:
        return len(self.sections) < len(self.statements)


def find_stretches(kernel: k.Kernel) -> Iterator[Stretch | k.Statement]:
    """The body of a kernel, in order.

    Sections of a level wait for none of each other, so that they may change places.  Not so those that hand shared
    memory on to a later one.
    """
    kept = {slot.name for slot in kernel.slots if slot.first[0] != slot.last[0]}
    run: list[k.Statement] = []
    for statement in kernel.body:
        moves = isinstance(statement, k.Section) and not (kept and _names(statement) & kept)
        if moves or (run and isinstance(statement, k.Barrier) and statement.level == "block"):
            run.append(statement)
            continue
        yield from _close(run)
        run = []
        yield statement
    yield from _close(run)


def _close(run: Sequence[k.Statement]) -> Iterator[Stretch | k.Statement]:
    """A run of sections and barriers as a stretch, and the barriers behind its last section."""
    end = len(run)
    while end and not isinstance(run[end - 1], k.Section):
        end -= 1
    if end:
        yield Stretch(tuple(run[:end]))
    yield from run[end:]


def _names(section: k.Section) -> set[str]:
    return {name for s in list_statements(section.body) for name in find_own_names(s)}


def meets(section: k.Section) -> bool:
    """Do blocks wait for others of their group in a section?  All blocks come by such sections in one order, the
    kernel's: else two could wait for each other."""
    return any(
        isinstance(s, k.Publish | k.Collect | k.Meeting) for s in list_statements(section.body)
    )


def takes_one(section: k.Section) -> bool:
    """Has a block at most one task of a section, and nothing to do or to wait for in it otherwise?"""
    last = section.body[-1] if section.body else None
    return isinstance(last, k.TaskLoop) and last.once and not meets(section)


def count_tasks(section: k.Section) -> int:
    """The tasks of a section; 0 without a task loop."""
    return next((s.tasks for s in section.body if isinstance(s, k.TaskLoop)), 0)


def count_folded(kernel: k.Kernel) -> int:
    """About how many statements of a kernel the CUDA compiler gets, at most.

    Kernels whose blocks meet in groups count in full.  Several in the place of a long one were projected faster, by up
    to a tenth.
    """
    whole = sum(1 for _ in list_statements(kernel.body))
    if whole < LONG_KERNEL or kernel.block_groups:
        return whole
    total = 0
    for part in find_stretches(kernel):
        if not isinstance(part, Stretch):
            total += sum(1 for _ in list_statements((part,)))
            continue
        alike: dict[str, list[int]] = {}  # the statements of sections of a form
        for section in part.sections:
            count = sum(1 for _ in list_statements(section.body)) + 1
            alike.setdefault(_sketch(section), []).append(count)
        apart = sum(map(sum, alike.values()))
        folded = sum(
            counts[0] + LINES_OF_A_CHOICE * len(counts)
            if len(counts) >= LEAST_EQUAL
            else sum(counts)
            for counts in alike.values()
        )
        total += folded if apart - folded >= LEAST_SAVED else apart
    return total


_STRETCHED = re.compile(r"(extent|tasks)=\d+")
"""What may differ where the text does not: how far an index goes, unless it is a loop's or a guard's."""

_QUOTED = re.compile(r"'([^']*)'")


def _sketch(section: k.Section) -> str:
    """What the text of a section follows from, with its names numbered in the order of appearance."""
    threads = (section.outer_threads, section.row_threads, section.col_threads)
    numbers: dict[str, int] = {}
    shown = _STRETCHED.sub(r"\1", repr((threads, section.body)))
    return _QUOTED.sub(lambda found: str(numbers.setdefault(found[1], len(numbers))), shown)


# ---- which are equal --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """A section as text in which `first` is the block's first task and `tasks` their number.

    arrays: those of the kernel that it names, in the order of appearance.  form: the text with all that it declares,
    and these arrays, numbered in the order of appearance.
    """

    section: k.Section
    lines: tuple[str, ...]
    arrays: tuple[str, ...]
    form: str

    @property
    def tasks(self) -> int:
        return count_tasks(self.section)


class Reader:
    """Reads texts of sections of one kernel.

    kinds: the C++ types of what its arrays have.  slots: its buffers in shared memory, each with what two must have in
    common to stand for each other.  shared: names that all of its sections may read.
    """

    def __init__(self, kernel: k.Kernel, kinds: Mapping[str, str]) -> None:
        self.kinds = kinds
        self.slots = {s.name: f"{s.dtype} {s.reducer} {s.offset} {s.count}" for s in kernel.slots}
        common = (s for s in kernel.body if isinstance(s, k.Common))
        self.shared = {
            n for c in common for s in list_statements(c.body) for n in find_own_names(s)
        }

    def read(self, section: k.Section, lines: Iterable[str]) -> Text:
        """The text of a section, given its lines, of which the first is its title's."""
        lines = tuple(lines)
        # A section that has a shared value under a name of its own is equal to the one that first had the value.
        aliases = {line: found for line in lines if (found := self.read_alias(line))}
        numbers = dict(aliases.values())
        arrays: list[str] = []

        def number(found: re.Match[str]) -> str:
            word = found[0]
            if (known := numbers.get(word)) is not None:
                return known
            if (kind := self.kinds.get(word)) is not None:
                numbers[word] = f"<{kind} {len(arrays)}>"
                arrays.append(word)
            elif (slot := self.slots.get(word)) is not None:
                numbers[word] = f"<slot {slot}>"
            else:
                own = _OWN.fullmatch(word) and word not in self.shared
                numbers[word] = f"<{len(numbers)}>" if own else word
            return numbers[word]

        form = _WORD.sub(number, "\n".join(line for line in lines[1:] if line not in aliases))
        return Text(section, lines, tuple(arrays), form)

    def read_alias(self, line: str) -> tuple[str, str] | None:
        """The name that a line gives to a shared value, and the value's own."""
        found = _ALIAS.fullmatch(line)
        return (found[1], found[2]) if found and found[2] in self.shared else None


@dataclass(frozen=True, slots=True)
class Equal:
    """Texts of one form.  Of a single one nothing has to be chosen."""

    texts: tuple[Text, ...]

    @property
    def first(self) -> Text:
        return self.texts[0]

    @property
    def chosen(self) -> tuple[int, ...]:
        """The numbers of the arrays that are not the same in all texts."""
        columns = zip(*(text.arrays for text in self.texts), strict=True)
        return tuple(n for n, column in enumerate(columns) if len(set(column)) > 1)

    @property
    def tasks(self) -> int | None:
        """The number of tasks of each; None where they differ."""
        counts = {text.tasks for text in self.texts}
        return counts.pop() if len(counts) == 1 else None


def group_equal(texts: Iterable[Text]) -> tuple[Equal, ...]:
    """The texts by their forms, in the order of appearance; few of one form stand alone, and so does a section in which
    blocks meet."""
    found: dict[str, list[Text]] = {}
    for text in texts:
        form = f"{text.section.number}" if meets(text.section) else text.form
        found.setdefault(form, []).append(text)
    return tuple(
        equal
        for same in found.values()
        for equal in (
            [Equal(tuple(same))] if len(same) >= LEAST_EQUAL else [Equal((t,)) for t in same]
        )
    )


def count_saved(groups: Iterable[Equal]) -> int:
    """Statements that need not be printed."""
    return sum(
        (len(group.texts) - 1) * sum(1 for _ in list_statements(group.first.section.body))
        - len(group.texts) * LINES_OF_A_CHOICE
        for group in groups
        if len(group.texts) > 1
    )


# ---- their text -------------------------------------------------------------------------------------------------


class Chooser:
    """The text of what chooses one of several equal sections.

    kinds: as for Reader.  The variables `array0`, `array1`, ... hold what was chosen.  Forms share them: each has
    a register.
    """

    def __init__(self, equal: Equal, kinds: Mapping[str, str]) -> None:
        self.equal, self.kinds = equal, kinds

    def choose(self, text: Text) -> Iterator[str]:
        """The variables get the arrays of a text."""
        for place, number in enumerate(self.equal.chosen):
            yield f"{_variable(place)} = (unsigned char*){text.arrays[number]};"

    def body(self) -> Iterator[str]:
        """The lines of the section, for what was chosen."""
        first, names = self.equal.first, {}
        for place, number in enumerate(self.equal.chosen):
            array = first.arrays[number]
            names[array] = f"{array}_each"
            kind = self.kinds[array]
            yield f"{kind}* const {names[array]} = ({kind}*){_variable(place)};"
        for line in first.lines:
            yield _WORD.sub(lambda found: names.get(found[0], found[0]), line)


def _variable(place: int) -> str:
    return f"array{place}"


def declare_chosen(groups: Iterable[Equal]) -> Iterator[str]:
    """The variables for what is chosen of some of these."""
    most = max((len(group.chosen) for group in groups), default=0)
    if most:
        yield f"unsigned char {', '.join(f'*{_variable(place)}' for place in range(most))};"


def list_numbers(texts: Iterable[Text]) -> str:
    return ", ".join(str(text.section.number) for text in texts)


def indent(lines: Iterable[str], depth: int = 1) -> Iterator[str]:
    return ("  " * depth + line for line in lines)


def render_turns(equal: Equal, kinds: Mapping[str, str], *, parted: bool) -> Iterator[str]:
    """A loop over equal sections, which all blocks take one after the other.  parted: by a barrier."""
    chooser = Chooser(equal, kinds)
    yield "#pragma unroll 1"
    yield f"for (int section = 0; section < {len(equal.texts)}; ++section) {{"
    yield from indent(declare_chosen([equal]))
    yield "  int offset;"
    if equal.tasks is None:
        yield "  int tasks;"
    else:
        yield f"  constexpr int tasks = {equal.tasks};"
    yield "  switch (section) {"
    for number, text in enumerate(equal.texts):
        yield f"    {f'case {number}' if number else 'default'}:"
        yield from indent(chooser.choose(text), 3)
        yield f"      offset = {text.section.offset};"
        if equal.tasks is None:
            yield f"      tasks = {text.tasks};"
        yield "      break;"
    yield "  }"
    yield "  const int first = blockIdx.x - offset + (blockIdx.x < offset ? gridDim.x : 0);"
    yield from indent(chooser.body())
    if parted:
        yield "  __syncthreads();  // the next section takes over the shared memory"
    yield "}"


@dataclass(frozen=True, slots=True)
class Place:
    """Places of a line that are the tasks of a section.  form: the number of its group."""

    start: int
    text: Text
    form: int

    @property
    def end(self) -> int:
        return self.start + self.text.tasks


def place_sections(groups: Sequence[Equal], grid: int) -> tuple[Place, ...]:
    """The tasks of sections side by side: place p is for block p % grid, which has that task anyway."""
    form = {text.section.number: n for n, group in enumerate(groups) for text in group.texts}
    texts = {text.section.number: text for group in groups for text in group.texts}
    places: list[Place] = []
    end = 0
    for number in sorted(texts):
        text = texts[number]
        start = end + (text.section.offset - end) % grid
        places.append(Place(start, text, form[number]))
        end = places[-1].end
    return tuple(places)


def render_line(
    groups: Sequence[Equal], kinds: Mapping[str, str], grid: int, *, parted: bool
) -> Iterator[str]:
    """Sections of which a block has one task at most: it looks up whose each of its places is.

    parted: two sections need a barrier between them.
    """
    choosers = [Chooser(group, kinds) for group in groups]
    places = place_sections(groups, grid)
    loops = places[-1].end > grid
    yield "{"
    inner = _render_places(groups, choosers, places, loops=loops, parted=parted)
    yield from indent(inner)
    yield "}"


def _render_places(
    groups: Sequence[Equal],
    choosers: Sequence[Chooser],
    places: Sequence[Place],
    *,
    loops: bool,
    parted: bool,
) -> Iterator[str]:
    if loops:
        yield "#pragma unroll 1"
        yield f"for (int place = blockIdx.x; place < {places[-1].end}; place += gridDim.x) {{"
    else:
        yield "const int place = blockIdx.x;"
        yield "{"
    yield from indent(declare_chosen(groups))
    differing = any(group.tasks is None for group in groups)
    if differing:
        yield "  int tasks_here = 0;"
    yield "  int form = -1, first = 0;"
    yield from indent(_search(places, groups, choosers))
    for number, (group, chooser) in enumerate(zip(groups, choosers, strict=True)):
        yield f"  {'} else ' if number else ''}if (form == {number}) {{"
        if group.tasks is None:
            yield "    const int tasks = tasks_here;"
        else:
            yield f"    constexpr int tasks = {group.tasks};"
        yield from indent(chooser.body(), 2)
    yield "  }"
    if parted:
        yield "  __syncthreads();  // the next section takes over the shared memory"
    yield "}"


def _search(
    places: Sequence[Place], groups: Sequence[Equal], choosers: Sequence[Chooser]
) -> Iterator[str]:
    """The section of a place, found by halves."""
    if len(places) > 1:
        middle = len(places) // 2
        yield f"if (place < {places[middle].start}) {{"
        yield from indent(_search(places[:middle], groups, choosers))
        yield "} else {"
        yield from indent(_search(places[middle:], groups, choosers))
        yield "}"
        return
    (place,) = places
    yield f"if (place >= {place.start} && place < {place.end}) {{"
    yield f"  form = {place.form};"
    yield f"  first = place - {place.start};"
    if groups[place.form].tasks is None:
        yield f"  tasks_here = {place.text.tasks};"
    yield from indent(choosers[place.form].choose(place.text))
    yield "}"
