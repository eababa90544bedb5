"""Groups -> Arrangement: task loops in levels, and a stitching scheme for every kept value (paper section 4.2-4.3).

Each root (dominant or sub-dominant) is placed in a task loop whose threads can compute it.  Its readers
decide its scheme:

    Independent  nobody in the kernel reads it
    Local        its readers stand at the same index in the same thread: a register
    Regional     its readers run in the same task of the same block: shuffles or shared memory, block barrier
    Global       any other reader: global scratch and a global barrier between the levels of writer and reader

The passive check is `why_not_block_local`; the proactive adaptation is that a root without a mapping of its
own (element-wise groups) first tries the loops of its producers, and a reduce those whose results are read with its
own (docs/decisions/0053).
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field, replace
from operator import attrgetter

from astitch.device.gpu import Gpu
from astitch.device.schedule import DEFAULT, Schedule
from astitch.dominant import Group, Groups
from astitch.graph import index as ix
from astitch.graph.dimensions import Dimensions
from astitch.graph.index import Symbol
from astitch.graph.ir import Graph
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.access import Index, Read
from astitch.mapping.roots import Reads, Root, RootKind, RootReads, reduce_behind
from astitch.system.forks import cached_property
from astitch.thread_mapping import map_space, why_not_aligned
from astitch.tiling.scans import why_not_in_order
from astitch.tiling.space import Mapping, NotTaken, Space, size_of

ONE_BLOCK_ELEMENTS = 1 << 14
"""Elements that one block sums in less time than a barrier of the grid takes."""

PARTIAL_BYTES, FEW_PARTIAL_BYTES = 4, 1 << 20
"""Bytes of a partial result, where sums are of f32; and bytes of all partials below which their number does not
matter."""

MOST_IDLE = 0.125
"""The share of the GPU's blocks that may stay idle because they fill no whole block group, while others have more than
a task each.  A block group spares its own loop a reading; that is not worth a longer time for the loops beside it."""

MAX_WAVES = 8
"""How often a scope is arranged for fewer blocks, so that they are whole block groups: one time nearly always."""

MAX_INLINE_PARTIALS = 32
"""A reader adds up to this many partials of a split reduce itself; more get a task loop of their own."""


class Scheme(enum.Enum):
    INDEPENDENT = "independent"
    LOCAL = "local"
    REGIONAL = "regional"
    GLOBAL = "global"


class ReductionScope(enum.Enum):
    """Over what a reduce is complete."""

    TASK = "task"  # complete in every task that reads it
    BLOCK_GROUP = "block group"  # the same, once the block group has met in the task
    LOOP = "loop"  # registers accumulate over all tasks of a block: one partial for each block
    TILE = "tile"  # each task leaves a partial


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how a root is computed.

    loop: number of its task loop.  phase: its turn in the task.  reduction_scope and partials: see ReductionScope;
    partials is how many partial results each element of the result has (1 if complete in a task).  inline: readers add
    the partials.
    stored: written to global memory (an output or scratch).  shared: kept in shared memory for block-local readers
    at other indices.  reason: why this scheme.
    """

    root: Root
    loop: int
    phase: int
    reduction_scope: ReductionScope
    partials: int
    inline: bool
    scheme: Scheme
    stored: bool
    shared: bool
    reason: str

    @property
    def in_task(self) -> bool:
        """Is it complete within a task?"""
        return self.reduction_scope in (ReductionScope.TASK, ReductionScope.BLOCK_GROUP)


@dataclass(frozen=True, slots=True)
class TaskLoop:
    """One pass of all blocks over the tasks of a mapping.  level: how many global barriers come before it."""

    number: int
    level: int
    mapping: Mapping


@dataclass(frozen=True)
class Arrangement:
    """loops in order of level; placements by root name (a combine is `NAME#combine`)."""

    graph: Graph
    groups: Groups
    dimensions: Dimensions
    block: int
    wave: int
    loops: tuple[TaskLoop, ...]
    placements: MappingType[str, Placement]

    @cached_property
    def inside(self) -> frozenset[str]:
        """The ops of the scope."""
        return frozenset(self.groups.scope.members)

    @cached_property
    def places(self) -> MappingType[int, tuple[Placement, ...]]:
        """The placements of each loop, by its number, in order."""
        found: dict[int, list[Placement]] = {loop.number: [] for loop in self.loops}
        for place in self.placements.values():
            found[place.loop].append(place)
        return {number: tuple(places) for number, places in found.items()}

    @cached_property
    def levels(self) -> int:
        return max((loop.level for loop in self.loops), default=-1) + 1

    @property
    def group_blocks(self) -> int:
        """The members of a block group, 1 without block groups; the grid is a multiple of this."""
        return math.lcm(*(loop.mapping.parts for loop in self.loops if loop.mapping.cooperative))

    @property
    def cooperative(self) -> bool:
        """Do blocks wait for each other?"""
        return self.levels > 1 or self.group_blocks > 1

    def __str__(self) -> str:
        lines = [f"arrangement of {self.groups.scope.name}: {self.levels - 1} global barriers"]
        for loop in self.loops:
            lines.append(f"  level {loop.level}, loop {loop.number}: {loop.mapping}")
            for place in self.places[loop.number]:
                lines.append(
                    f"    phase {place.phase}: %{place.root.name} {place.root.kind.value}, "
                    f"{place.scheme.value}: {place.reason}"
                )
        return "\n".join(lines)


def combine_name(name: str) -> str:
    return f"{name}#combine"


def find_reduction_scope(root: Root, mapping: Mapping) -> tuple[ReductionScope, int | None]:
    """Where a reduce is complete, and how many partials an element has (None: one for each block)."""
    if root.kind in (RootKind.POINTWISE, RootKind.RUNNING):
        return ReductionScope.TASK, 1
    here = frozenset(root.space.atoms)

    def status(axis: tuple[Symbol, ...]) -> tuple[bool, bool]:
        inside = [a for a in axis if a in here]
        reduced = bool(inside) and inside[0] in root.space.reduced
        return reduced, bool(inside) and not reduced

    tiles = {
        "outer": (status(mapping.outer), mapping.outer_tiles),
        "row": (status(mapping.row), mapping.row_tiles),
        "col": (status(mapping.col), mapping.col_tiles),
    }
    spanned = [count for (reduced, _), count in tiles.values() if reduced and count > 1]
    if not spanned:
        return ReductionScope.TASK, 1
    # An outer row that is kept exists inside a task only, also where all rows are one tile.
    outer_kept = tiles["outer"][0][1] and mapping.outer_size > 1
    (row_reduced, row_kept), (_, col_kept) = tiles["row"][0], tiles["col"][0]
    # The tiles of a block group are those along what it reduces.
    meets = row_reduced and col_kept if mapping.rows_last else not row_kept and not col_kept
    if mapping.cooperative and meets and not tiles["outer"][0][0]:
        return ReductionScope.BLOCK_GROUP, mapping.parts
    if outer_kept or any(kept and count > 1 for (_, kept), count in tiles.values()):
        parts = 1
        for count in spanned:
            parts *= count
        return ReductionScope.TILE, parts
    return ReductionScope.LOOP, None


def why_not_hosted(root: Root, mapping: Mapping) -> str | None:
    """None when the threads of a mapping can compute the root, else the reason."""
    why = why_not_aligned(root.space, mapping)
    if why is None and root.kind is RootKind.RUNNING:
        return why_not_in_order(root.space, mapping)
    if why is None and mapping.abreast > 1 and root.kind is not RootKind.POINTWISE:
        return "it would leave a partial for each block and round"
    return why


@dataclass
class _Loop:
    """A task loop under construction."""

    number: int
    level: int
    mapping: Mapping
    roots: list[str] = field(default_factory=list)


@dataclass
class _Draft:
    """A placement under construction."""

    root: Root
    loop: _Loop
    reduction_scope: ReductionScope
    partials: int
    available: int  # the first level at which other loops can read it
    inline: bool = False
    depends: dict[str, bool] = field(
        default_factory=dict
    )  # root read in the same task -> at its own index
    readers: int = 0
    global_reason: str = ""
    apart: str = ""  # why it has a loop of its own
    shared: bool = False


def why_not_block_local(producer: Root, mapping: Mapping, index: Index) -> str | None:
    """Passive check: None when a reader at `index` finds the producer's element in its own task."""
    if index == producer.result_index:
        return None
    if mapping.row_tiles > 1 or mapping.col_tiles > 1:
        return "it is read at another index and a block holds only a tile of it"
    outer = frozenset(mapping.outer)
    for mine, theirs in zip(producer.result_index, index, strict=True):
        touches = any(s in outer for s in ix.symbols(mine) | ix.symbols(theirs))
        if touches and mine != theirs:
            return "a reader needs elements that other blocks compute"
    return None


class _Arranger:
    """Places the roots of one scope, in topological order."""

    def __init__(
        self,
        known: RootReads,
        gpu: Gpu,
        block: int,
        wave: int,
        demoted: frozenset[str],
        schedule: Schedule,
        *,
        may_cooperate: bool = True,
    ):
        self.demoted, self.schedule, self.may_cooperate = demoted, schedule, may_cooperate
        self.known, self.graph, self.groups = known, known.graph, known.groups
        self.gpu, self.block, self.wave = gpu, block, wave
        self.group_blocks = 0
        self.loops: list[_Loop] = []
        self.loops_of_group: dict[int, dict[int, _Loop]] = {}
        self.loops_reading: dict[str, dict[int, _Loop]] = {}
        self.loops_walking: dict[Symbol, dict[int, _Loop]] = {}
        self.drafts: dict[str, _Draft] = {}
        self.mapping_of: dict[str, Mapping] = {}
        self.group_of: dict[str, int] = {}
        for number, group in enumerate(known.groups.groups):
            for name in group.roots:
                self.group_of[name] = number

    # -- placing ---------------------------------------------------------------------------------------------

    def group_mapping(self, root: Root) -> Mapping:
        """The mapping of the root's group, or its own if the group's threads cannot compute it."""
        group = self.groups.groups[self.group_of[root.name]]
        if group.dominant not in self.mapping_of:
            self.mapping_of[group.dominant] = self.map_space(self.known.space_of(group))
        mapping = self.mapping_of[group.dominant]
        if (
            why_not_hosted(root, mapping) is None
            and not self.partials_outweigh(root, mapping)
            and not self.is_better_apart(root, group, mapping)
        ):
            return mapping
        return self.map_alone(root)

    def map_alone(self, root: Root) -> Mapping:
        """The mapping of a root without its group."""
        if root.kind is not RootKind.POINTWISE:
            return self.map_space(root.space)
        group = self.groups.groups[self.group_of[root.name]]
        alone = replace(group, dominant=root.name, sub_dominants=())
        return self.map_space(self.known.space_of(alone))

    def walks_too_far(self, root: Root, mapping: Mapping) -> bool:
        """Would a new loop with the mapping of the root's group walk along needless dimensions?  Those are dimensions
        of neither the root nor what the group has yet to place.  So it is for what waits for another group beside the
        sums of its own, which stand in a loop before it."""
        walked = {*mapping.outer, *mapping.row, *mapping.col} - set(root.space.atoms)
        if not walked or root.kind is not RootKind.POINTWISE:
            return False
        group = self.groups.groups[self.group_of[root.name]]
        waiting = (self.known.root_of(n) for n in group.roots if n not in self.drafts)
        return not any(walked & set(other.space.atoms) for other in waiting)

    def is_better_apart(self, root: Root, group: Group, mapping: Mapping) -> bool:
        """A sum over all tasks that the group's dominant waits for.  Nothing stays on chip from the one to the other,
        and threads that own columns leave fewer partials."""
        if (
            root.kind is not RootKind.REDUCE
            or find_reduction_scope(root, mapping)[0] is not ReductionScope.LOOP
        ):
            return False
        return self.known.is_needed(root.name, group)

    def partials_outweigh(self, root: Root, mapping: Mapping) -> bool:
        """Would the blocks write and read more partials of a sum over all tasks than another reading of its operand
        is?"""
        if (
            root.kind is not RootKind.REDUCE
            or find_reduction_scope(root, mapping)[0] is not ReductionScope.LOOP
        ):
            return False
        blocks = min(self.wave, mapping.tasks)
        exchanged = 2 * blocks * size_of(root.space.kept) * PARTIAL_BYTES
        operand = size_of(root.space.atoms) * root.space.element_bytes
        return exchanged > max(operand, FEW_PARTIAL_BYTES)

    def is_for_one_block(self, root: Root, mapping: Mapping) -> bool:
        """A sum of few elements that all tasks of a new loop would share: one block sums it without another barrier."""
        if (
            root.kind is not RootKind.REDUCE
            or find_reduction_scope(root, mapping)[0] is not ReductionScope.LOOP
        ):
            return False
        axes = (*mapping.outer, *mapping.row, *mapping.col)
        return size_of(root.space.atoms) <= ONE_BLOCK_ELEMENTS and len(root.space.atoms) < len(axes)

    def map_space(self, space: Space) -> Mapping:
        """The mapping of a space; block groups of one kernel all have the same number of blocks."""
        mapping = map_space(space, self.gpu, self.block, self.wave, self.schedule)
        if not mapping.cooperative:
            return mapping
        if self.may_cooperate:
            self.group_blocks = self.group_blocks or mapping.parts
            if mapping.parts == self.group_blocks:
                return mapping
        why = "blocks that are no whole block group would stay idle"
        if self.may_cooperate:
            why = f"its block groups would have {mapping.parts} blocks, others of the kernel have {self.group_blocks}"
        refused = NotTaken(mapping.strategy, why)
        if space.running:  # its tiles are as without a block group
            mapping = map_space(space, self.gpu, self.block, 1, self.schedule)
            before = tuple(n for n in mapping.not_taken if n.strategy != refused.strategy)
            return replace(mapping, not_taken=(refused, *before))
        strategy = f"partial results of the tiles of a {mapping.strategy}"
        not_taken = (*mapping.not_taken, refused)
        return replace(mapping, cooperative=False, strategy=strategy, not_taken=not_taken)

    def most_tasks_beside_groups(self) -> int:
        """The most tasks of any level that belong to loops without block groups."""
        by_level: Counter[int] = Counter()
        for loop in self.loops:
            by_level[loop.level] += 0 if loop.mapping.cooperative else loop.mapping.tasks
        return max(by_level.values(), default=0)

    def why_not_local(self, draft: _Draft, index: Index) -> str | None:
        if draft.root.name in self.demoted and index != draft.root.result_index:
            return "its shared buffer was demoted: it did not fit"
        if draft.root.kind is RootKind.COMBINE and index != draft.root.result_index:
            return "a sum of partials has no shared buffer"
        return why_not_block_local(draft.root, draft.loop.mapping, index)

    def level_in(self, loop: _Loop, latest: Sequence[Read]) -> int:
        """The first level at which `loop` could host a reader of what others read.

        latest: the reads, those first that the other loops can read last.  The sum of partials is there for them when
        the root is.
        """
        for read in latest:
            draft = self.drafts[self.computed_in(loop, read.operand)]
            same = draft.loop is loop and draft.reduction_scope in (
                ReductionScope.TASK,
                ReductionScope.BLOCK_GROUP,
            )
            if not same or self.why_not_local(draft, read.index) is not None:
                return draft.available
        return 0

    def computed_in(self, loop: _Loop, name: str) -> str:
        """The draft of a root for readers in `loop`: where that adds its partials, the sum itself."""
        combine = self.drafts.get(combine_name(name))
        return combine_name(name) if combine is not None and combine.loop is loop else name

    def available(self, read: Read) -> int:
        """The first level at which other loops can read it."""
        return self.drafts[read.operand].available

    def place(self, root: Root) -> None:
        """Puts a root into the first loop that can compute it, or into a new one."""
        known = self.known.reads_of(root)
        apart = ""
        latest = sorted(known.roots, key=self.available, reverse=True)
        for loop in self.related_loops(root, known):
            why = self.why_not_in(root, known, loop)
            if why is not None:
                apart = apart or why
                continue
            if not self.keeps_its_parallelism(root, loop):
                continue
            if self.level_in(loop, latest) <= loop.level:
                self.join(root, loop, known.roots, known.arrays)
                return
        self.join(root, self.open_loop(root, known), known.roots, known.arrays)
        self.drafts[root.name].apart = apart

    def related_loops(self, root: Root, known: Reads) -> list[_Loop]:
        """The loops of the root's group, of what it reads, of others that read the same arrays, and of rows that a
        later root needs beside its own, in order.

        Those that do not walk over its dimensions cannot compute it and are left out, but for a running reduction,
        which says why it has a loop of its own.
        """
        related = [
            self.loops_of_group.get(self.group_of[root.name], {}),
            {(loop := self.drafts[r.operand].loop).number: loop for r in known.roots},
            *(self.loops_reading.get(array, {}) for array in known.arrays),
        ]
        if root.kind is RootKind.REDUCE:
            related.append(self.loops_beside(root))
        if root.kind is RootKind.POINTWISE:
            combines = [self.drafts.get(combine_name(r.operand)) for r in known.roots]
            related.append({c.loop.number: c.loop for c in combines if c is not None})
        found: dict[int, _Loop] = {}
        if root.kind is RootKind.RUNNING or not root.space.atoms:
            for loops in related:
                found |= loops
        else:
            walking = min((self.loops_walking.get(a, {}) for a in root.space.atoms), key=len)
            if len(walking) < sum(map(len, related)):
                related = [{n: walking[n] for n in walking if any(n in one for one in related)}]
            for loops in related:
                found |= {n: loop for n, loop in loops.items() if n in walking}
        return sorted(found.values(), key=attrgetter("level", "number"))

    def loops_beside(self, root: Root) -> dict[int, _Loop]:
        """The loops of reductions that walk over the same dimensions, where some root reads both and fits there: it
        finds both in its block."""
        atoms = set(root.space.atoms)
        found: dict[int, _Loop] = {}
        for reader in self.known.readers.get(root.name, ()):
            if atoms.isdisjoint(reader.space.atoms):
                continue
            for read in self.known.reads_of(reader).roots:
                draft = self.drafts.get(read.operand)
                if draft is None or draft.loop.number in found:
                    continue
                mapping = draft.loop.mapping
                walked = {*mapping.outer, *mapping.row, *mapping.col}
                if walked == atoms and why_not_hosted(reader, mapping) is None:
                    found[draft.loop.number] = draft.loop
        return found

    def why_not_in(self, root: Root, known: Reads, loop: _Loop) -> str | None:
        """None when the threads of a loop can compute the root from what it reads, else the reason."""
        why = why_not_hosted(root, loop.mapping)
        if why is None and known.uneven and loop.mapping.crosses_rows:
            return "the loop's vectors cross rows, which do not follow each other in what it reads"
        return why

    def open_loop(self, root: Root, known: Reads) -> _Loop:
        """A new loop for the root, after all that it reads."""
        mapping = self.group_mapping(root)
        if self.is_for_one_block(root, mapping):
            mapping = self.map_space(root.space)
        elif self.walks_too_far(root, mapping):
            mapping = self.map_alone(root)
        level = max((self.drafts[r.operand].available for r in known.roots), default=0)
        return self.add_loop(level, mapping)

    def add_loop(self, level: int, mapping: Mapping) -> _Loop:
        loop = _Loop(len(self.loops), level, mapping)
        self.loops.append(loop)
        for atom in (*mapping.outer, *mapping.row, *mapping.col):
            self.loops_walking.setdefault(atom, {})[loop.number] = loop
        return loop

    def keeps_its_parallelism(self, root: Root, loop: _Loop) -> bool:
        """A reduce may join a loop unless its result then becomes one partial for each of many tasks, or more partials
        than it sums."""
        if root.kind is not RootKind.REDUCE:
            return True
        reduction_scope, partials = find_reduction_scope(root, loop.mapping)
        own_scope, _ = find_reduction_scope(root, self.group_mapping(root))
        if reduction_scope is ReductionScope.BLOCK_GROUP:
            return own_scope is not ReductionScope.TASK
        if reduction_scope is ReductionScope.TILE:
            return (
                own_scope is not ReductionScope.TASK
                and partials is not None
                and partials <= self.wave
            )
        return not self.partials_outweigh(root, loop.mapping)

    def join(self, root: Root, loop: _Loop, reads: Sequence[Read], arrays: Iterable[str]) -> None:
        reduction_scope, partials = find_reduction_scope(root, loop.mapping)
        blocks = min(self.wave, loop.mapping.tasks)
        count = blocks if partials is None else partials
        draft = _Draft(root, loop, reduction_scope, count, loop.level + 1)
        loop.roots.append(root.name)
        self.loops_of_group.setdefault(self.group_of[root.name], {})[loop.number] = loop
        for array in arrays:
            self.loops_reading.setdefault(array, {})[loop.number] = loop
        for read in reads:
            key = self.computed_in(loop, read.operand)
            self.drafts[read.operand].readers += 1
            producer = self.drafts[key]
            if producer.loop is not loop:
                producer.global_reason = (
                    producer.global_reason or "its readers run in another task loop"
                )
            elif producer.reduction_scope not in (ReductionScope.TASK, ReductionScope.BLOCK_GROUP):
                producer.global_reason = (
                    producer.global_reason or "its reduction spans several tasks"
                )
            else:
                why = self.why_not_local(producer, read.index)
                if why is not None:
                    producer.global_reason = producer.global_reason or why
                    continue
                own = read.index == producer.root.result_index
                draft.depends[key] = draft.depends.get(key, True) and own
                producer.shared |= not own
        self.drafts[root.name] = draft
        if reduction_scope not in (ReductionScope.TASK, ReductionScope.BLOCK_GROUP):
            self.add_combine(draft)

    def add_combine(self, draft: _Draft) -> None:
        """The second half of a split reduce: fixed-order sum of the partials, after a global barrier."""
        kept = draft.root.space.kept
        if (
            draft.reduction_scope is ReductionScope.TILE
            and draft.partials <= MAX_INLINE_PARTIALS
            and self.read_per_task(draft)
        ):
            draft.inline = True
            return
        part = Symbol(f"{draft.root.name}#part", draft.partials)
        # As if its elements were wide: one column a thread spreads the few columns over more blocks.
        space = Space((part, *kept), frozenset({part}), 16)
        at = ix.of_symbol(part) if draft.partials > 1 else ix.ZERO
        index = (at, *draft.root.result_index)
        root = Root(draft.root.name, RootKind.COMBINE, space, index, draft.root.result_index)
        whole = replace(self.schedule, split=1)  # never split again
        mapping = map_space(space, self.gpu, self.block, 1, whole)
        loop = self.add_loop(draft.loop.level + 1, mapping)
        combine = _Draft(root, loop, ReductionScope.TASK, 1, loop.level + 1)
        loop.roots.append(combine_name(draft.root.name))
        self.drafts[combine_name(draft.root.name)] = combine
        draft.available = loop.level + 1

    def read_per_task(self, draft: _Draft) -> bool:
        """Every reader needs at most one element of the result for each task, so adding partials there is cheap."""
        if draft.root.name in self.known.outputs:
            return False
        fields = [
            n
            for n in self.graph.users[draft.root.name]
            if OPS[self.graph[n].op].kind is Kind.PROJECTION
        ]
        if any(f in self.groups.scope.outputs for f in fields):
            return False
        outer = frozenset(draft.loop.mapping.outer)
        return all(s in outer for form in draft.root.result_index for s in ix.symbols(form))

    # -- result ----------------------------------------------------------------------------------------------

    def phases(self, loop: _Loop) -> dict[str, int]:
        phase: dict[str, int] = {}
        for name in loop.roots:
            draft = self.drafts[name]
            after = [
                phase[d] + (self.drafts[d].root.kind is not RootKind.POINTWISE or not own)
                for d, own in draft.depends.items()
            ]
            phase[name] = max(after, default=0)
        return phase

    def finish(self) -> Arrangement:
        produced = {reduce_behind(self.graph, o)[0] for o in self.known.outputs}
        # Loop numbers follow levels, so that the kernel's sections are in order.
        ordered = sorted(self.loops, key=attrgetter("level", "number"))
        for number, loop in enumerate(ordered):
            loop.number = number
        placements: dict[str, Placement] = {}
        for loop in ordered:
            phases = self.phases(loop)
            for key in loop.roots:
                draft = self.drafts[key]
                placements[key] = self.placement(draft, phases[key], produced)
        loops = tuple(TaskLoop(loop.number, loop.level, loop.mapping) for loop in ordered)
        return Arrangement(
            self.graph, self.groups, self.known.dimensions, self.block, self.wave, loops, placements
        )

    def placement(self, draft: _Draft, phase: int, produced: set[str]) -> Placement:
        """Where and how a root is computed.  produced: the roots that the kernel returns."""
        scheme, reason = self.choose_scheme(draft)
        if draft.root.kind is RootKind.COMBINE:
            stored, shared = True, False
        elif draft.reduction_scope not in (ReductionScope.TASK, ReductionScope.BLOCK_GROUP):
            stored, shared = False, False  # partials in scratch, which the combine adds
        else:
            stored = draft.root.name in produced or bool(draft.global_reason)
            shared = draft.shared
        return Placement(
            draft.root,
            draft.loop.number,
            phase,
            draft.reduction_scope,
            draft.partials,
            draft.inline,
            scheme,
            stored,
            shared,
            reason,
        )

    def choose_scheme(self, draft: _Draft) -> tuple[Scheme, str]:
        """The scheme of a root, and why."""
        root = draft.root
        if root.kind is RootKind.COMBINE:
            readers = self.drafts[root.name].readers
            partials = self.drafts[root.name].partials
            scheme = Scheme.GLOBAL if readers else Scheme.INDEPENDENT
            return scheme, f"adds {partials} partials in a fixed order"
        if draft.reduction_scope not in (ReductionScope.TASK, ReductionScope.BLOCK_GROUP):
            where = "tasks" if draft.reduction_scope is ReductionScope.TILE else "blocks"
            return Scheme.GLOBAL, f"split over {draft.partials} {where}: partials in scratch"
        if not draft.readers:
            scheme, reason = Scheme.INDEPENDENT, "an output that no op of the kernel reads"
        elif draft.global_reason:
            scheme, reason = Scheme.GLOBAL, draft.global_reason
        elif root.kind in (RootKind.POINTWISE, RootKind.RUNNING) and not draft.shared:
            scheme, reason = Scheme.LOCAL, "its readers stand at the same index"
        elif draft.reduction_scope is ReductionScope.BLOCK_GROUP:
            scheme = Scheme.GLOBAL
            reason = f"split over the {draft.partials} blocks of a block group: they exchange their parts"
        else:
            scheme, reason = Scheme.REGIONAL, "each block reads just the elements that it computed"
        if root.kind is RootKind.RUNNING and draft.apart:
            reason += f"; in a loop of its own: {draft.apart}"
        return scheme, reason


def choose_schemes(
    graph: Graph,
    groups: Groups,
    gpu: Gpu,
    block: int,
    wave: int,
    demoted: frozenset[str] = frozenset(),
    schedule: Schedule = DEFAULT,
    known: RootReads | None = None,
) -> Arrangement:
    """Place every root of the scope.

    block: threads in a block.  wave: blocks resident at once.  demoted: roots that get no shared buffer.  known:
    RootReads(graph, groups), for those who arrange a scope several times.
    """
    known = known or RootReads(graph, groups)

    def arrange(blocks: int, *, may_cooperate: bool = True) -> _Arranger:
        arranger = _Arranger(
            known, gpu, block, blocks, demoted, schedule, may_cooperate=may_cooperate
        )
        for candidate in groups.candidates:
            arranger.place(known.root_of(candidate.name))
        return arranger

    blocks = wave
    for _ in range(MAX_WAVES):
        arranger = arrange(blocks)
        idle = blocks % max(arranger.group_blocks, 1)
        if not idle:
            return arranger.finish()
        if idle > blocks * MOST_IDLE and arranger.most_tasks_beside_groups() > blocks - idle:
            break
        blocks -= idle  # blocks that are no whole block group take no part, and leave no partials
        if not blocks:
            break
    return arrange(wave, may_cooperate=False).finish()


def shared_elements(place: Placement, mapping: Mapping) -> int:
    """Elements of a shared buffer that holds a root's results of one task."""
    outer = frozenset(mapping.outer)
    inner = [a for a in place.root.result_atoms if a not in outer]
    return mapping.outer_threads * size_of(inner)
