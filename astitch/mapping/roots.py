"""Roots of a scope: the values that are computed once and kept, their iteration spaces, and what they read.

A root is a reduction, a running reduction, or an element-wise value that is kept for several readers.  What it reads
follows from the graph alone.  The space of a group's dominant also says what the whole group asks of its mapping.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, replace

from astitch.dominant import Group, Groups
from astitch.graph import index as ix
from astitch.graph.dimensions import (
    Atoms,
    Dimensions,
    array_of,
    find_dimensions,
    is_embedded,
    is_uniform,
)
from astitch.graph.index import Linear, Symbol
from astitch.graph.ir import DimensionsAttrs, GetTupleElementAttrs, Graph
from astitch.graph.ops import OPS, monoid_of
from astitch.graph.ops.access import Index, Read
from astitch.graph.ops.windows import find_running
from astitch.graph.propagation import walk_reads
from astitch.graph.running import is_running
from astitch.system.forks import cached_property
from astitch.tiling.space import MAX_ALIGNED, Space, size_of

ACROSS_SHARE = 4
"""The least part of a space that arrays of another order fill for that order to count.  What is padded or put beside
others does not fill all of it."""


MOST_IN_A_WORD = 8
"""Neighbours that share a word, at most: numbers of four bits."""

MOST_SUMS = 64
"""Sums that a thread holds, at most: as many as it has registers where an SM is half full.  Twelve products with eight
sums each spilled 12 KB a thread."""


class RootKind(enum.Enum):
    POINTWISE = "pointwise"
    REDUCE = "reduce"
    RUNNING = "running"  # every element combined with those before it
    COMBINE = "combine"  # adds the partials of a split reduce


@dataclass(frozen=True, slots=True)
class Root:
    """A value that is computed once and kept.

    name: the op.  space: what its threads walk over.  index: where its operands are read (a reduce: at the index
    of its operand; otherwise at its own).  result_index: the position of the result, in the same symbols.
    """

    name: str
    kind: RootKind
    space: Space
    index: Index
    result_index: Index

    @property
    def result_atoms(self) -> Atoms:
        """The atoms over which the result varies."""
        return self.space.atoms if self.kind is RootKind.RUNNING else self.space.kept


def reduce_behind(graph: Graph, name: str) -> tuple[str, int]:
    """(reduce, number of the result) for a reduce or a projection of one."""
    node = graph[name]
    if isinstance(node.attrs, GetTupleElementAttrs):
        return node.operands[0], node.attrs.index
    return name, 0


def make_root(graph: Graph, dimensions: Dimensions, name: str) -> Root:
    """The root of a reduce or of a kept element-wise value."""
    node = graph[name]
    operands = [array_of(graph[o]) for o in node.operands]
    if OPS[node.op].is_reduce and isinstance(node.attrs, DimensionsAttrs):
        source = node.operands[0]
        index = dimensions.canonical_index(source)
        gone = node.attrs.dimensions
        reduced = frozenset(a for d in gone for a in dimensions.atoms[source][d])
        inputs = operands[: len(operands) // 2]
        space = Space(dimensions.space(source), reduced, max(a.dtype.bytes for a in inputs))
        result = tuple(form for d, form in enumerate(index) if d not in gone)
        return Root(name, RootKind.REDUCE, space, index, result)
    running = find_running(node)
    if running is not None:
        # By its own dimensions: an operand that each reader writes out for itself shares none with it.
        index = dimensions.canonical_index(name)
        along = frozenset(dimensions.atoms[name][running.dimension])
        bytes_ = max(array_of(node).dtype.bytes, operands[0].dtype.bytes)
        order = "sorted" if running.sorts else "backward" if running.backward else "forward"
        parted = not running.sorts and monoid_of(node.regions[0]) is not None
        space = Space(dimensions.space(name), along, bytes_, running=order, parted=parted)
        return Root(name, RootKind.RUNNING, space, index, index)
    index = dimensions.canonical_index(name)
    widest = max(a.dtype.bytes for a in (array_of(node), *operands))
    return Root(
        name, RootKind.POINTWISE, Space(dimensions.space(name), frozenset(), widest), index, index
    )


def find_alignment(form: Linear, atoms: Atoms) -> int:
    """Elements of which the position is a multiple wherever the last atom is; 0: any.  What does not run along the last
    atom, element by element, is not accessed as vectors anyhow: 0."""
    if not atoms or form.coefficient(atoms[-1]) != 1:
        return 0
    found = form.constant
    for term, coefficient in form.terms:
        if term == atoms[-1]:
            continue
        inner = isinstance(term, Symbol) or atoms[-1] not in ix.symbols(term.dividend)
        found = math.gcd(found, coefficient if inner else 1)
    return found


def find_across(form: Linear, atoms: Atoms) -> Symbol | None:
    """The atom along which an array's elements are neighbours; None where the last atom's steps are shorter than two
    elements."""
    if not atoms or abs(form.coefficient(atoms[-1])) < 2:
        return None
    single = {term: abs(c) for term, c in form.terms if isinstance(term, Symbol)}
    return next((atom for atom in atoms if single.get(atom) == 1), None)


def root_starts(graph: Graph, root: Root) -> tuple[Read, ...]:
    """What the root's own computation needs first."""
    node = graph[root.name]
    if root.kind in (RootKind.REDUCE, RootKind.RUNNING):
        inputs = node.operands[: (len(node.operands) + 1) // 2]  # a sort has no init value
        return tuple(Read(o, root.index) for o in inputs)
    if root.kind is RootKind.POINTWISE:
        return (Read(root.name, root.index),)
    return ()


@dataclass(frozen=True, slots=True)
class Reads:
    """What the computation of a root reads.

    roots: other roots, each with the index.  arrays: those in memory, each with the number of elements of which its
    positions are multiples (find_alignment).  across: of those that lie along another atom than the last (find_across).
    repeated: those of which neighbours along the last atom read one element.
    uneven: some value is needed at another index than the root's own, or of rows of another length, or comes from one
    operand or another.
    """

    roots: tuple[Read, ...]
    arrays: MappingType[str, int]
    across: MappingType[str, Symbol]
    repeated: frozenset[str]
    uneven: bool


class RootReads:
    """The roots of a scope and what they read: no mapping changes that, so all arrangements of the scope share it."""

    def __init__(self, graph: Graph, groups: Groups) -> None:
        self.graph, self.groups = graph, groups
        self.dimensions = find_dimensions(graph, groups.scope.members, align_rows=True)
        self.inside = set(groups.scope.members)
        self.kept = {c.name for c in groups.candidates}
        self.outputs = groups.list_returned(graph)
        self._roots: dict[str, Root] = {}
        self._reads: dict[str, Reads] = {}
        self._spaces: dict[str, Space] = {}

    def root_of(self, name: str) -> Root:
        if name not in self._roots:
            self._roots[name] = make_root(self.graph, self.dimensions, name)
        return self._roots[name]

    def space_of(self, group: Group) -> Space:
        """The space of the group's dominant, with what the whole group asks of its mapping."""
        if group.dominant not in self._spaces:
            space = self.root_of(group.dominant).space
            flat = self.is_flat(group, space)
            self._spaces[group.dominant] = replace(
                space,
                held_words=self.held_words(group, space),
                again_words=self.words_read_again(group, space),
                arrays=self.count_arrays(group),
                across=self.find_across(group, space),
                element_bytes=self.element_bytes(group, space),
                awaited=self.is_awaited(group, space),
                flat=flat,
                aligned=MAX_ALIGNED if flat else self.widest_access(group, space),
            )
        return self._spaces[group.dominant]

    def stops(self, name: str) -> bool:
        embedded = is_embedded(self.graph, name)
        return embedded or name not in self.inside or self.kept_value(name) is not None

    def kept_value(self, name: str) -> str | None:
        if is_embedded(self.graph, name):
            return None
        reduce, _ = reduce_behind(self.graph, name)
        return reduce if reduce in self.kept else None

    @cached_property
    def readers(self) -> dict[str, list[Root]]:
        """By root, the roots that read it."""
        found: dict[str, list[Root]] = {}
        for candidate in self.groups.candidates:
            root = self.root_of(candidate.name)
            for name in dict.fromkeys(read.operand for read in self.reads_of(root).roots):
                found.setdefault(name, []).append(root)
        return found

    def reads_of(self, root: Root) -> Reads:
        if root.name not in self._reads:
            self._reads[root.name] = self.find_reads(root)
        return self._reads[root.name]

    def find_reads(self, root: Root) -> Reads:
        roots: list[Read] = []
        arrays: dict[str, int] = {}
        across: dict[str, Symbol] = {}
        repeated: set[str] = set()
        uneven = False
        starts = root_starts(self.graph, root)
        own = {root.name} if root.kind is RootKind.POINTWISE else set()
        own_rows = array_of(self.graph[root.name]).shape[1:]

        def visit(read: Read, stopped: bool) -> None:
            nonlocal uneven
            if not stopped and OPS[self.graph[read.operand].op].chooses:
                uneven = True  # a vector across rows may have some of either
            single = array_of(self.graph[read.operand]).size == 1
            if not single and not is_uniform(self.graph, read.operand):
                # The first rows of a larger array lie as those of the root do, its first columns do not.
                rows = array_of(self.graph[read.operand]).shape[1:]
                elsewhere = read.index != root.index or rows != own_rows
                uneven = uneven or elsewhere or is_embedded(self.graph, read.operand)
            if not stopped or read.operand in own:
                return
            value = self.kept_value(read.operand) if read.operand in self.inside else None
            if value is not None:
                roots.append(Read(value, read.index))
            elif self.is_array(read.operand):
                form = ix.linearize(read.index, array_of(self.graph[read.operand]).shape)
                found = find_alignment(form, root.space.atoms)
                arrays[read.operand] = math.gcd(arrays.get(read.operand, 0), found)
                if atom := find_across(form, root.space.atoms):
                    across[read.operand] = atom
                if root.space.atoms and root.space.atoms[-1] not in ix.symbols(form):
                    repeated.add(read.operand)

        walk_reads(self.graph, starts, lambda name: name not in own and self.stops(name), visit)
        return Reads(tuple(roots), arrays, across, frozenset(repeated), uneven)

    def is_array(self, name: str) -> bool:
        """An input of more than one element."""
        outside = name not in self.inside and not is_embedded(self.graph, name)
        return outside and array_of(self.graph[name]).size > 1

    def element_bytes(self, group: Group, space: Space) -> int:
        """The widest element among the arrays of the space's size that the group reads or writes.  So what is converted
        on the way to a reduce does not narrow the accesses.  Of a word that holds several elements, its share."""
        widest = 0
        last = space.atoms[-1].extent if space.atoms else 1
        for name in group.roots:
            root = self.root_of(name)
            reads = self.reads_of(root)
            # Running reductions are read from registers, almost always.
            others = (r.operand for r in reads.roots if not is_running(self.graph, r.operand))
            types = [array_of(self.graph[a]) for a in (*reads.arrays, *others)]
            if root.kind is RootKind.POINTWISE or name in self.outputs:
                types.append(array_of(self.graph[name]))
            sizes = [t.dtype.bytes for t in types if t.size >= size_of(space.atoms)]
            if last <= MOST_IN_A_WORD:
                words = (array_of(self.graph[a]) for a in reads.repeated)
                full = (w for w in words if w.size * last >= size_of(space.atoms))
                sizes += [max(w.dtype.bytes // last, 1) for w in full]
            widest = max(widest, *sizes, 0)
        return widest or space.element_bytes

    def widest_access(self, group: Group, space: Space) -> int:
        """Elements of an access: as many as are aligned, and whose sums a thread can hold, of all that the group adds
        up over other dimensions than the last."""
        aligned = self.aligned_elements(group, space)
        if not space.atoms or space.atoms[-1] in space.reduced:
            return aligned
        sums = sum(self.root_of(name).kind is RootKind.REDUCE for name in group.roots)
        while aligned > 1 and aligned * sums > MOST_SUMS:
            aligned //= 2
        return aligned

    def is_flat(self, group: Group, space: Space) -> bool:
        """Is all that the group does element-wise, on whole arrays of one shape?  Then rows are of no account."""
        roots = [self.root_of(name) for name in group.roots]
        return all(
            root.kind is RootKind.POINTWISE
            and root.space.atoms == space.atoms
            and not self.reads_of(root).uneven
            for root in roots
        )

    def is_awaited(self, group: Group, space: Space) -> bool:
        """Does a root of the space's size need what the group reduces?"""
        behind: set[str] = set()  # the reduces, and what is made of them
        for name in group.roots:  # in topological order
            root = self.root_of(name)
            needs = any(read.operand in behind for read in self.reads_of(root).roots)
            if needs and frozenset(root.space.atoms) >= frozenset(space.atoms):
                return True
            if needs or root.kind is RootKind.REDUCE:
                behind.add(name)
        return False

    def is_needed(self, name: str, group: Group) -> bool:
        """Does the group's dominant need the value of `name`, a root of the group?"""
        needed: set[str] = set()
        stack = [group.dominant]
        while stack:
            reads = self.reads_of(self.root_of(stack.pop())).roots
            new = {read.operand for read in reads} - needed
            needed |= new
            stack += new
        return name in needed

    def aligned_elements(self, group: Group, space: Space) -> int:
        """The widest access, in elements, that suits at least half of the bytes that the group reads: rows of a slice
        may begin anywhere."""
        read: dict[int, float] = {}
        for name in group.roots:
            for array, alignment in self.reads_of(self.root_of(name)).arrays.items():
                kind = array_of(self.graph[array])
                if kind.size >= size_of(space.atoms):
                    width = math.gcd(alignment, MAX_ALIGNED)
                    read[width] = read.get(width, 0.0) + kind.dtype.bytes
        half = sum(read.values()) / 2
        widths = [w for w in read if sum(b for other, b in read.items() if other >= w) >= half]
        return max(widths, default=MAX_ALIGNED)

    def find_across(self, group: Group, space: Space) -> Symbol | None:
        """The atom along which the most bytes lie that the group reads or returns across the last one."""
        moved: Counter[Symbol] = Counter()
        elements: Counter[Symbol] = Counter()
        for name in group.roots:
            root = self.root_of(name)
            arrays = dict(self.reads_of(root).across)
            if root.kind is RootKind.POINTWISE and name in self.outputs and root.space.atoms:
                arrays[name] = root.space.atoms[-1]
            for array, atom in arrays.items():
                if atom in space.atoms[:-1]:
                    moved[atom] += array_of(self.graph[array]).bytes
                    elements[atom] += array_of(self.graph[array]).size
        most = max(moved, key=moved.__getitem__, default=None)
        enough = most is not None and elements[most] * ACROSS_SHARE >= size_of(space.atoms)
        return most if enough else None

    def count_arrays(self, group: Group) -> int:
        roots = map(self.root_of, group.roots)
        return len({array for root in roots for array in self.reads_of(root).arrays})

    def words_read_again(self, group: Group, space: Space) -> float:
        """Words for each element of the space that more than one root of the group reads there."""
        roots = [self.root_of(name) for name in group.roots]
        there = [r for r in roots if frozenset(r.space.atoms) >= frozenset(space.atoms)]
        readers = Counter(array for root in there for array in self.reads_of(root).arrays)
        types = [array_of(self.graph[a]) for a, count in readers.items() if count > 1]
        return sum(t.dtype.bytes / 4 for t in types if t.size >= size_of(space.atoms))

    def held_words(self, group: Group, space: Space) -> float:
        """Words for each element of a row: inputs that several phases need, and sums over the rows."""
        kept = frozenset(space.kept)
        words = 0.0
        arrays: set[str] = set()
        row_reduces = 0
        for name in group.roots:
            root = self.root_of(name)
            arrays |= self.reads_of(root).arrays.keys()
            if root.kind is RootKind.REDUCE:
                row_reduces += root.space.reduced == space.reduced
                sums_rows = root.space.reduced & kept and not root.space.reduced & space.reduced
                words += 1 if sums_rows else 0
        if row_reduces and len(group.roots) > 1:
            types = [array_of(self.graph[a]) for a in arrays]
            inputs = sum(t.dtype.bytes / 4 for t in types if t.size >= size_of(space.atoms))
            # With sums over the rows a block has many tasks, and the loads of the next one are prefetched.
            words += 2 * inputs if words else inputs
        return words
