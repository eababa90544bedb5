"""Row residency: TaskLoop -> which values of a task stay on chip from phase to phase.

What a later phase needs again stays in registers if the unrolled steps of a thread fit its budget.  Else it stays in
shared memory, at slots of the thread's own, which need no barrier.  Else it is read and computed again.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from astitch.graph import index as ix
from astitch.graph.dimensions import array_of, is_embedded
from astitch.graph.ir import DType, Graph
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.access import Index, Read
from astitch.graph.propagation import access
from astitch.graph.storage import storage_name
from astitch.kernel.nest import Depth, Key, depth_of_index
from astitch.mapping.roots import RootKind, reduce_behind, root_starts
from astitch.mapping.stitch_scheme import Arrangement, TaskLoop
from astitch.tiling.space import Mapping as TaskMapping

MAX_UNROLLED_STEPS = 16
"""A nest of at most this many (row, column) steps is unrolled, so that kept values can be registers."""


CARRIED_SHARE, CARRIED_BYTES = 2, 32 * 1024
"""The least that stays in shared memory across a barrier of the grid: one step in so many, and so many bytes a block.
Less of a long loop is slower than none (H100, fp8 quantisation f32 8192x16384, 13 steps of 249: 409 us beside 395;
batch-norm f32 64x56x56x256, 10 of 96: 218 beside 216), and less data is in the L1 at its second reading."""


class Place(enum.Enum):
    REGISTERS = "registers"
    SHARED = "shared memory"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Held:
    """A value that stays on chip.  raw: in its storage type (a load, a narrow float), else in its compute type."""

    key: Key
    raw: bool
    depth: Depth


@dataclass(frozen=True, slots=True)
class Residency:
    """place: where `values` stay.  reason: for people, '' when there is nothing to keep."""

    place: Place
    values: tuple[Held, ...]
    reason: str


@dataclass
class _Demand:
    """What one phase asks for, given what earlier phases computed."""

    found: dict[Key, bool] = field(default_factory=dict)  # computed here: is it a load?
    hits: dict[Key, None] = field(default_factory=dict)  # computed before


@dataclass(frozen=True, slots=True)
class _Span:
    """A value in a cut: whether it is a load, the phase that computes it and the last one that reads it."""

    leaf: bool
    first: int
    last: int


_Cut = Mapping[Key, _Span]


class _Analysis:
    def __init__(self, arrangement: Arrangement, loop: TaskLoop):
        self.graph: Graph = arrangement.graph
        self.placements = arrangement.placements
        self.loop, self.mapping = loop, loop.mapping
        self.inside = arrangement.inside
        self.places = arrangement.places[loop.number]
        self.phases = max((p.phase for p in self.places), default=0) + 1
        self.elements = self.mapping.row_steps * self.mapping.col_steps

    def is_element(self, index: Index) -> bool:
        """Does the index vary within a task?  Otherwise the value is computed once for a task anyway."""
        inner = frozenset((*self.mapping.row, *self.mapping.col))
        return any(s in inner for form in index for s in ix.symbols(form))

    def varies_with_task(self, key: Key) -> bool:
        """Does the index move on from task to task?  gamma[column] of a row mapping does not."""
        m = self.mapping
        still = {*(() if m.row_tiles > 1 else m.row), *(() if m.col_tiles > 1 else m.col)}
        return any(s not in still for form in key[1] for s in ix.symbols(form))

    def step_bytes(self, key: Key, leaf: bool) -> int:
        """Bytes that one step of a thread keeps of a value."""
        size = self.graph[key[0]].dtype.bytes
        width = self.mapping.vector if depth_of_index(self.mapping, key[1]) is Depth.LANE else 1
        return (size if leaf or self.is_narrow(key) else max(size, 4)) * width

    def is_narrow(self, key: Key) -> bool:
        """A rounded f16 or bf16 value: its storage type holds it exactly, in half a register."""
        return self.graph[key[0]].dtype in (DType.F16, DType.BF16)

    def demand(self, phase: int, available: Mapping[Key, bool], *, leaves_only: bool) -> _Demand:
        """The element values that a phase computes, stopping at what is available."""
        result = _Demand()
        seen: set[Key] = set()
        stack: list[tuple[Read, str]] = [
            (read, p.root.name if p.root.kind is RootKind.POINTWISE else "")
            for p in self.places
            if p.phase == phase
            for read in root_starts(self.graph, p.root)
        ]
        while stack:
            read, own = stack.pop()
            key: Key = (read.operand, read.index)
            if key in seen or not self.is_element(read.index):
                continue
            seen.add(key)
            match self.is_load(read, own):
                case True:
                    if key in available:
                        result.hits[key] = None
                    else:
                        result.found[key] = True
                    continue
                case None:
                    continue
            node = self.graph[read.operand]
            opened = access(self.graph, node, read.index)
            computes = OPS[node.op].kind not in (Kind.INDEX, Kind.BROADCAST)
            chooses = len(opened.choices) > 1
            if key in available and (chooses or (computes and not leaves_only)):
                result.hits[key] = None
                continue
            if computes or chooses:
                result.found[key] = False
            stack.extend((r, own) for choice in opened.choices for r in choice.reads)
        return result

    def loads(self, phase: int) -> dict[Key, bool]:
        """What a phase loads if nothing is kept.  True: in a branch of a choice."""
        found: dict[Key, bool] = {}
        seen: set[tuple[Key, bool]] = set()
        stack = [
            (read, p.root.name if p.root.kind is RootKind.POINTWISE else "", False)
            for p in self.places
            if p.phase == phase
            for read in root_starts(self.graph, p.root)
        ]
        while stack:
            read, own, chosen = stack.pop()
            key: Key = (read.operand, read.index)
            if (key, chosen) in seen or not self.is_element(read.index):
                continue
            seen.add((key, chosen))
            match self.is_load(read, own):
                case True:
                    found[key] = chosen or found.get(key, False)
                case False:
                    choices = access(self.graph, self.graph[read.operand], read.index).choices
                    chosen = chosen or len(choices) > 1
                    reads = [r for choice in choices for r in choice.reads]
                    stack.extend((r, own, chosen) for r in reversed(reads))
        return found

    def is_load(self, read: Read, own: str) -> bool | None:
        """True: read from memory.  False: computed from its operands.  None: costs nothing or is kept elsewhere."""
        if is_embedded(self.graph, read.operand):
            return None
        if read.operand not in self.inside:
            return True
        place = self.placements.get(reduce_behind(self.graph, read.operand)[0])
        if place is None or place.root.name == own:
            return False
        if place.loop == self.loop.number and place.in_task:
            own_index = read.index == place.root.result_index
            in_thread = place.root.kind is RootKind.POINTWISE and own_index
            return False if in_thread else None  # a state or a shared buffer
        return None if place.inline else True

    def cut(self, *, leaves_only: bool) -> _Cut:
        """The values to keep: what later phases ask for first, or the loads below that."""
        available: dict[Key, bool] = {}
        computed: dict[Key, int] = {}
        spans: dict[Key, _Span] = {}
        for phase in range(self.phases):
            demand = self.demand(phase, available, leaves_only=leaves_only)
            for key in demand.hits:
                spans[key] = _Span(available[key], computed[key], phase)
            available.update(demand.found)
            for key in demand.found:
                computed.setdefault(key, phase)
        return spans

    def peak_bytes(self, cut: _Cut) -> int:
        """The most bytes that a thread keeps across any border between phases."""
        borders = range(self.phases - 1)
        sums = (
            sum(
                self.step_bytes(key, s.leaf) for key, s in cut.items() if s.first <= border < s.last
            )
            for border in borders
        )
        return max(sums, default=0) * self.elements


def find_streams(arrangement: Arrangement, loop: TaskLoop) -> frozenset[str]:
    """The inputs from outside the kernel, as large as the loop, that it reads."""
    analysis = _Analysis(arrangement, loop)
    m = loop.mapping
    size = m.outer_size * m.row_size * m.col_size
    found: set[str] = set()
    for phase in range(analysis.phases):
        for (name, _), leaf in analysis.demand(phase, {}, leaves_only=True).found.items():
            outside = leaf and name not in analysis.inside
            if outside and array_of(analysis.graph[name]).size >= size:
                found.add(name)
    return frozenset(found)


def find_late_loads(arrangement: Arrangement, loop: TaskLoop) -> tuple[Key, ...]:
    """What only phases after the first load, never in a branch of a choice."""
    analysis = _Analysis(arrangement, loop)
    first = analysis.loads(0)
    later: dict[Key, bool] = {}
    for phase in range(1, analysis.phases):
        for key, chosen in analysis.loads(phase).items():
            later[key] = chosen or later.get(key, False)
    return tuple(key for key, chosen in later.items() if not chosen and key not in first)


@dataclass(frozen=True, slots=True)
class Carried:
    """Values that stay in shared memory from one task loop to another behind a global barrier.

    first, last: numbers of the loops.  keys: what both load.  steps: so many of a thread's steps along its rows (its
    columns, where it has one row) stay, as many as fit.  bytes: of a block.
    """

    first: int
    last: int
    keys: tuple[Key, ...]
    steps: int
    bytes: int


def find_carried(
    arrangement: Arrangement, offsets: Sequence[int], grid: int, shared_bytes: int
) -> tuple[Carried, ...]:
    """Where a block has the same one task in two loops, a vector of an input that both load need not be loaded twice.

    offsets: by loop, the block that has its first task.  shared_bytes: shared memory of a block for all of them.
    """
    found: list[Carried] = []
    taken: set[int] = set()
    # At level 0 nothing is walked over backward.  Its loops by where and how a block works on its one task.
    firsts: dict[tuple[int, TaskMapping], list[TaskLoop]] = {}
    for loop in arrangement.loops:
        m = loop.mapping
        plain = m.vector > 1 and not m.carried and not m.cooperative
        if loop.level == 0 and plain and m.tasks <= grid:
            firsts.setdefault((offsets[loop.number], replace(m, reason="")), []).append(loop)
    for last in arrangement.loops if firsts else ():
        if last.level == 0 or not all(
            p.root.kind is RootKind.POINTWISE and p.phase == 0
            for p in arrangement.places[last.number]
        ):
            continue
        for first in firsts.get((offsets[last.number], replace(last.mapping, reason="")), ()):
            m = first.mapping
            if first.number in taken:
                continue
            keys = _find_common(arrangement, first, last)
            steps = m.walked_steps
            others = m.row_steps * m.col_steps // steps
            types = [arrangement.graph[name].dtype for name, _ in keys]
            step_bytes = sum(t.bytes for t in types) * m.vector * others * m.block
            kept = min(steps, shared_bytes // step_bytes) if keys else 0
            if kept * CARRIED_SHARE >= steps and kept * step_bytes >= CARRIED_BYTES:
                found.append(Carried(first.number, last.number, keys, kept, kept * step_bytes))
                shared_bytes -= kept * step_bytes
                taken.add(first.number)
                break
    return tuple(found)


def _find_common(arrangement: Arrangement, first: TaskLoop, last: TaskLoop) -> tuple[Key, ...]:
    """The large inputs that both loops load at the same place, in no branch of a choice."""
    streams = find_streams(arrangement, first) & find_streams(arrangement, last)
    before, again = (_Analysis(arrangement, loop).loads(0) for loop in (first, last))

    def find_place(key: Key) -> tuple[str, ix.Linear]:
        name, index = key
        shape = array_of(arrangement.graph[name]).shape
        return storage_name(arrangement.graph, name), ix.linearize(index, shape)

    # What is read by two names is loaded by one of them, which need not be the one that is asked for here.
    places = Counter(find_place(key) for key in {**before, **again})
    return tuple(
        key
        for key, chosen in again.items()
        if key[0] in streams and key in before and not chosen and not before[key]
        if places[find_place(key)] == 1
    )


def choose_residency(
    arrangement: Arrangement, loop: TaskLoop, registers: int, shared_bytes: int
) -> Residency:
    """Where the values that several phases of a loop need stay.

    registers: 32-bit registers of a thread for kept values.  shared_bytes: shared memory of a block for them.
    Two cuts through the expressions are compared, the values that later phases ask for first and the loads below
    them; the one with fewer bytes is kept.
    """
    analysis = _Analysis(arrangement, loop)
    nothing = Residency(Place.MEMORY, (), "")
    if analysis.phases < 2:
        return nothing
    front, leaves = analysis.cut(leaves_only=False), analysis.cut(leaves_only=True)
    if not front:
        return nothing
    unrolled = analysis.elements <= MAX_UNROLLED_STEPS
    # What is the same for every task comes from the caches anyway: it is the first that need not stay.
    moving = {key: span for key, span in leaves.items() if analysis.varies_with_task(key)}
    for cut in (*sorted((front, leaves), key=analysis.peak_bytes), moving):
        peak = analysis.peak_bytes(cut)
        if unrolled and cut and peak <= registers * 4:
            return Residency(
                Place.REGISTERS,
                _hold(analysis, cut, raw=False),
                f"{peak} B a thread stay in registers",
            )
    tile = sum(analysis.step_bytes(key, True) for key in moving) * analysis.elements
    total = tile * loop.mapping.block
    if 0 < total <= shared_bytes:
        return Residency(
            Place.SHARED,
            _hold(analysis, moving, raw=True),
            f"{total} B a block stay in shared memory",
        )
    return Residency(Place.MEMORY, (), f"{tile} B a thread do not fit on chip: read again")


def _hold(analysis: _Analysis, cut: _Cut, *, raw: bool) -> tuple[Held, ...]:
    return tuple(
        Held(
            key,
            raw or span.leaf or analysis.is_narrow(key),
            depth_of_index(analysis.mapping, key[1]),
        )
        for key, span in cut.items()
    )
