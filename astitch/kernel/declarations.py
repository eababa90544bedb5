"""What a kernel declares: names, pointer parameters, scratch, reducers, shared slots.

Filled while the task loops are lowered; every name is unique in the kernel.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from astitch.graph.dimensions import array_of
from astitch.graph.ir import ArrayType, DType
from astitch.graph.precision import find_narrow_ends
from astitch.graph.storage import storage_name, storage_type
from astitch.kernel import kernel_ir as k
from astitch.kernel.reducers import make_reducer
from astitch.mapping.stitch_scheme import Arrangement, Placement

MAX_NAME = 48
"""Characters of an HLO name that go into a variable's name."""

_NUMBERED = re.compile(r"_[0-9]+$")


@functools.lru_cache(maxsize=1 << 14)
def _render_identifier(hint: str) -> str:
    """A C identifier close to a name: the same for many values of many candidates."""
    base = "".join(c if c.isascii() and c.isalnum() else "_" for c in hint).strip("_")
    base = base if base[:1].isalpha() else f"v_{base}".rstrip("_")
    return base if _NUMBERED.search(base) else f"{base}_0"


class Declarations:
    """The declarations of one kernel.  block_barriers, notes: what lowering the loops adds up.  tagged_words: see
    Kernel."""

    def __init__(self, arrangement: Arrangement):
        self.arrangement = arrangement
        self.graph = arrangement.graph
        self.inside = frozenset(arrangement.groups.scope.members)
        self.parameters: dict[str, k.Parameter] = {}
        self.scratch: dict[str, k.Scratch] = {}
        self.reducers: dict[object, k.Reducer] = {}
        self.reducer_of: dict[str, k.Reducer] = {}
        self.slots: list[k.Slot] = []
        self.areas: dict[str, k.Area] = {}
        self.taken: set[str] = set()
        self.numbers: dict[str, int] = {}
        self.block_barriers = 0
        self.tagged_words = 0
        self.notes: list[str] = []
        self.narrow_ends = find_narrow_ends(self.graph, arrangement.groups.scope.members)
        self.pieces = arrangement.groups.pieces
        self.outputs = {storage_name(self.graph, o) for o in arrangement.groups.scope.outputs}
        self.outputs |= self.pieces.keys()

    def copy(self) -> Declarations:
        """For a trial: what it declares does not reach the original."""
        other = object.__new__(Declarations)
        for name, value in vars(self).items():
            mutable = isinstance(value, dict | list | set)
            setattr(other, name, value.copy() if mutable else value)
        return other

    def fresh(self, hint: str) -> str:
        """A C identifier that no other variable has, close to the HLO name.

        It ends in _ and a digit, which no keyword, macro or function of the device library does.
        """
        name = base = _render_identifier(hint[:MAX_NAME])
        while name in self.taken:
            self.numbers[base] = self.numbers.get(base, 0) + 1
            name = f"{base}__{self.numbers[base]}"
        self.taken.add(name)
        return name

    def array(self, source: str, dtype: DType, *, read: bool = False, write: bool = False) -> str:
        known = self.parameters.get(source)
        if known is None:
            known = k.Parameter(self.fresh(f"p_{source}"), dtype, source, False, False)
            if piece := self.pieces.get(source):
                self.array(piece.whole, dtype)
                known = replace(known, whole=piece.whole, start=piece.start)
            inner = source.partition("#")[0] in self.inside
            if inner and source not in self.outputs:
                self.scratch[source] = k.Scratch(source, storage_type(self.graph, source))
            self.parameters[source] = known
        if (write and not known.written) or (read and not known.read):
            self.parameters[source] = replace(
                known, written=known.written or write, read=known.read or read
            )
            if known.whole:
                self.array(known.whole, dtype, read=read, write=write)
        return known.name

    def partial_arrays(self, place: Placement, *, write: bool) -> tuple[str, ...]:
        names = []
        size = array_of(self.graph[place.root.name]).size
        for number, dtype in enumerate(self.reducer(place.root.name).fields):
            source = f"{place.root.name}#partial{number}"
            if source not in self.parameters:
                self.parameters[source] = k.Parameter(
                    self.fresh(f"p_{source}"), dtype, source, False, False
                )
                self.scratch[source] = k.Scratch(source, ArrayType(dtype, (place.partials, size)))
            known = self.parameters[source]
            self.parameters[source] = replace(
                known, written=known.written or write, read=known.read or not write
            )
            names.append(known.name)
        return tuple(names)

    def area(self, place: Placement) -> k.Area:
        """Where a block group exchanges the parts of a reduce: one area for each reduce."""
        name = place.root.name
        if name not in self.areas:
            words, results = self.reducer(name).words, array_of(self.graph[name]).size
            mapping = self.arrangement.loops[place.loop].mapping
            self.areas[name] = self.reserve(results, place.partials, words, mapping.rows_last)
        return self.areas[name]

    def handover_area(self, name: str, results: int, parts: int) -> k.Area:
        """Where the members of a block group hand on their totals in a running reduction."""
        words = self.reducer(name).words
        return self.reserve(results, parts, words)

    def reserve(
        self, results: int, parts: int, words: int, elements_inside: bool = False
    ) -> k.Area:
        """The next tagged words; pairs of them begin at even ones."""
        start = self.tagged_words + self.tagged_words % 2 * (words > 1)
        self.tagged_words = start + results * parts * words
        return k.Area(start, results, parts, words, elements_inside)

    def reducer(self, root: str) -> k.Reducer:
        if root not in self.reducer_of:
            made = make_reducer(self.graph, root, len(self.reducers))
            key = (made.fields, made.region.key, made.identity)
            self.reducer_of[root] = self.reducers.setdefault(key, made)
        return self.reducer_of[root]

    def add_slot(
        self,
        name: str,
        dtype: DType | None,
        reducer: int | None,
        count: int,
        unit: int,
        first: tuple[int, int],
        last: tuple[int, int],
    ) -> None:
        self.slots.append(k.Slot(name, dtype, reducer, count, count * unit, first, last))

    def grow_slot(self, name: str, count: int, unit: int) -> None:
        """Make a slot hold at least `count` elements of `unit` bytes."""
        for number, slot in enumerate(self.slots):
            if slot.name == name and slot.count < count:
                self.slots[number] = replace(slot, count=count, bytes=count * unit)
