"""What one turn of a loop does, in stages: each product of whole rows begins one.

Takes a Loop and its Axes, hands on Steps.  The idea: a thread owns a few (row, unit) pairs and computes all parts of
them, so element-wise work is local; only the left sides of products cross units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from astitch.graph.ir import (
    BroadcastAttrs,
    DimensionAttrs,
    IotaAttrs,
    Node,
    PadAttrs,
    SliceAttrs,
    TransposeAttrs,
)
from astitch.graph.ops import OPS, Cost, Kind
from astitch.loops.analysis import Carried, Loop, Place, Stack
from astitch.loops.axes import Axes, Axis, Form, Product

MOST_PREFETCHED = 16
"""The most parts of stacks that a thread prefetches for the next turn, in registers."""


MOST_PARTS = 256
"""The most parts of a value that a turn hands on: a thread has as many registers."""


class NoPlan(Exception):
    """Why a loop has no plan."""


HEAVY_CYCLES, LIGHT_CYCLES, LOOKUP_CYCLES = 6, 0.3, 4
"""Cycles of an SM for an op of a warp: what a special function takes besides, any op, and, by kernels of an H200, the
reads of 32 places."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a value: of its columns those from number * units on; the value itself where it has no columns.

    small: it is held for small columns, by every block, not for units.
    """

    name: str
    number: int
    small: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """A value that comes from memory: an invariant, the first of a carried state, or in each turn a slice of a stack.

    state: which of the loop's state.  small: see Part.
    """

    name: str
    state: int
    place: Place | None
    small: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    """Parts of which every block of a group gets whole rows before the products of `stage`.

    carried: they are a state's, told at the end of the turn before; else this turn computes them before the stage.
    """

    stage: int
    carried: bool
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Multiply:
    """A product of a stage.  left: for each of its k parts the number of the Moved and the place in it.

    own: the k parts themselves, which a product to or from small columns takes from its own block.  first, parts: which
    parts of the result somebody needs.
    """

    product: Product
    stage: int
    left: tuple[tuple[int, int], ...]
    own: tuple[Part, ...]
    first: int
    parts: int

    @property
    def results(self) -> list[Part]:
        """The parts of the result that somebody needs."""
        name, small = self.product.name, self.product.form is Form.COLLECT
        return [Part(name, self.first + i, small) for i in range(self.parts)]


@dataclass(frozen=True, slots=True)
class Steps:
    """What one turn does, for a thread's pairs.

    loaded, stacked: parts that a pair reads at all, and in each turn; small_loaded: the same of small columns.
    products: by whole rows.  crossings: those to and from small columns.  computed: by stage, the parts of element-wise
    ops and sums that are computed before its products.  stages: how many products follow each other.  heavy: special
    functions of a pair.  lookups: the table of each lookup of a pair.  waits: how many of them follow each other.
    """

    reads: tuple[Read, ...]
    loaded: int
    stacked: int
    small_loaded: int
    moved: tuple[Moved, ...]
    products: tuple[Multiply, ...]
    crossings: tuple[Multiply, ...]
    computed: tuple[tuple[Part, ...], ...]
    heavy: int
    lookups: tuple[str, ...] = ()
    waits: int = 0

    @property
    def stages(self) -> int:
        return len(self.computed) - 1

    @property
    def prefetches_stacks(self) -> bool:
        """Does a turn prefetch what the next one reads of stacks?"""
        return self.stacked <= MOST_PREFETCHED

    @property
    def cycles(self) -> float:
        """Of an SM, for the element-wise ops of one warp."""
        light = LIGHT_CYCLES * sum(map(len, self.computed))
        return HEAVY_CYCLES * self.heavy + light + LOOKUP_CYCLES * len(self.lookups)

    @property
    def shape(self) -> tuple[object, ...]:
        """What decides how the steps are cut: everything but names."""
        return (
            (self.loaded, self.stacked, self.small_loaded, self.heavy),
            (tuple(map(self.lookups.index, self.lookups)), self.waits),
            tuple((m.stage, m.carried, len(m.parts)) for m in self.moved),
            tuple((m.stage, m.left, m.parts) for m in self.products),
            tuple((m.stage, m.product.form, len(m.own), m.parts) for m in self.crossings),
            tuple(map(len, self.computed)),
        )


def count_parts(loop: Loop, axes: Axes, name: str) -> int:
    """Parts of a value: 1 where it has no columns."""
    if name not in axes.of:
        return 1
    column = axes.dimension(name, Axis.COLUMN)
    return 1 if column is None else loop.body[name].shape[column] // axes.units


def is_small(loop: Loop, axes: Axes, name: str) -> bool:
    """Is a value held for small columns: has it some, or is it made of sums over them?"""
    pending, seen = [name], set[str]()
    while pending:
        name = pending.pop()
        if name in seen or name not in axes.of or Axis.COLUMN in axes.of[name]:
            continue
        seen.add(name)
        if Axis.SMALL in axes.of[name]:
            return True
        node = loop.body[name]
        if name not in loop.slices and name not in axes.products:
            pending += node.operands
    return False


def is_shift(axes: Axes, node: Node) -> bool:
    """Does an op move small columns?"""
    if isinstance(node.attrs, PadAttrs):
        return True
    if not isinstance(node.attrs, SliceAttrs):
        return False
    small = axes.dimension(node.name, Axis.SMALL)
    return small is not None and node.attrs.starts[small] > 0


class Resolver:
    """Where a part of a value really comes from, behind the ops that only move."""

    def __init__(self, loop: Loop, axes: Axes) -> None:
        self.loop, self.axes, self.body = loop, axes, loop.body

    def resolve(self, name: str, number: int, small: bool = False) -> Part:
        """The op, read or constant that a part is a part of.  small: where a value without columns is wanted."""
        while True:
            if (constant := self.find_constant(name)) is not None:
                return constant
            axes = self.axes.of.get(name, ())
            small = Axis.SMALL in axes or (small and Axis.COLUMN not in axes)
            if name in self.axes.of and self.axes.dimension(name, Axis.COLUMN) is None:
                number = 0
            node = self.body[name]
            match node.attrs:
                case SliceAttrs(starts) if is_shift(self.axes, node):
                    return Part(name, number, small)
                case SliceAttrs(starts):
                    # A single column of several has no dimension of columns itself.
                    source = self.axes.dimension(node.operands[0], Axis.COLUMN)
                    if source is not None:
                        number += starts[source] // self.axes.units
                    name = node.operands[0]
                case DimensionAttrs():
                    for operand in node.operands:
                        parts = count_parts(self.loop, self.axes, operand)
                        if number < parts:
                            name = operand
                            break
                        number -= parts
                case BroadcastAttrs() | TransposeAttrs():
                    name = node.operands[0]
                case _ if OPS[node.op].keeps_order:
                    name = node.operands[0]
                case _:
                    return Part(name, number, small)

    def parts_of(self, name: str) -> list[Part]:
        """All parts of a value, behind the ops that only move."""
        count = count_parts(self.loop, self.axes, name)
        small = is_small(self.loop, self.axes, name)
        return [self.resolve(name, i, small) for i in range(count)]

    def find_constant(self, name: str) -> Part | None:
        """The constant or integer behind the ops that repeat it; None where there is none."""
        if name not in self.loop.integers and name not in self.body.embedded:
            return None
        while name not in self.loop.integers and self.body[name].operands:
            name = self.body[name].operands[0]
        counts = isinstance(self.body[name].attrs, IotaAttrs)
        return None if counts and name not in self.loop.integers else Part(name, 0)


class Scheduler:
    """Puts the ops of a body into stages."""

    def __init__(self, loop: Loop, axes: Axes, used: Sequence[int]) -> None:
        self.loop, self.axes, self.body, self.used = loop, axes, loop.body, used
        resolver = Resolver(loop, axes)
        self.resolve, self.parts_of = resolver.resolve, resolver.parts_of
        self.roles = dict(zip(self.body.parameters, loop.roles, strict=True))
        self.stages: dict[Part, int] = {}
        self.reads: dict[tuple[str, bool], Read] = {}

    def stage_of(self, part: Part) -> int:
        """How many stages of products must be over before a part is there."""
        pending = [part]
        while pending:
            needed = [p for p in self.needs(pending[-1]) if p not in self.stages]
            if needed:
                pending += reversed(needed)
            else:
                last = pending.pop()
                before = max((self.stages[p] for p in self.needs(last)), default=0)
                self.stages[last] = before + (last.name in self.axes.products)
        return self.stages[part]

    def needs(self, part: Part) -> list[Part]:
        """The parts that must be there before one is.  Counts it as read where memory has it.  Raises NoPlan."""
        node = self.body[part.name]
        if part.name in self.loop.integers or (not node.operands and not node.is_parameter):
            return []
        if part.name in self.roles or part.name in self.loop.slices:
            self.add_read(node, part.small)
            return []
        if part.name in self.axes.products:
            product = self.axes.products[part.name]
            if part.small != (product.form is Form.COLLECT):
                raise NoPlan(
                    f"%{node.name} has no columns, and is wanted for units and for small columns"
                )
            return self.parts_of(product.left)
        if OPS[node.op].is_reduce and not part.small:
            raise NoPlan(f"%{node.name} is a sum over small columns, and is wanted for units")
        if self.is_computed(node):
            return self.operands_of(part)
        raise NoPlan(f"%{node.name} is a {node.op}")

    def is_computed(self, node: Node) -> bool:
        """Does each thread compute its parts from parts?"""
        plain = OPS[node.op].kind in (Kind.ELEMENTWISE, Kind.REDUCE)
        return plain or is_shift(self.axes, node) or node.name in self.axes.lookups

    def operands_of(self, part: Part) -> list[Part]:
        """What a part is computed from."""
        lookup = self.axes.lookups.get(part.name)
        operands = (lookup.places,) if lookup else self.body[part.name].operands
        return [self.resolve(o, part.number, part.small) for o in operands]

    def count_waits(self, parts: Sequence[Part]) -> int:
        """How many lookups of a turn wait for each other.  parts: what is computed, in order."""
        depth: dict[Part, int] = {}
        for part in parts:
            before = max((depth.get(p, 0) for p in self.operands_of(part)), default=0)
            depth[part] = before + (part.name in self.axes.lookups)
        return max(depth.values(), default=0)

    def add_read(self, node: Node, small: bool) -> None:
        """Count a value as read from memory.  Raises NoPlan."""
        if node.name in self.loop.slices:
            state, place = self.body.parameters.index(node.operands[0]), self.loop.slices[node.name]
            self.reads[node.name, small] = Read(node.name, state, place, small)
        else:
            role = self.roles[node.name]
            if isinstance(role, Stack):
                raise NoPlan(f"%{node.name} is read as a whole and written in slices")
            if isinstance(role, Carried) and small != is_small(self.loop, self.axes, role.value):
                raise NoPlan(f"%{node.name} is handed on for units and wanted for small columns")
            state = self.body.parameters.index(node.name)
            self.reads[node.name, small] = Read(node.name, state, None, small)

    def schedule(self) -> Steps:
        """The stages.  Raises NoPlan."""
        lookups = self.axes.lookups
        values = [
            role.value
            for role in self.loop.roles
            if isinstance(role, Carried | Stack) and role.value in self.axes.live
        ]
        for name in values:
            if (count := count_parts(self.loop, self.axes, name)) > MOST_PARTS:
                raise NoPlan(f"%{name} has {count} parts for each thread")
        results = [part for name in values for part in self.parts_of(name)]
        for part in results:
            self.stage_of(part)
        made = {part.name for part in self.stages}
        products = [p for n, p in self.axes.products.items() if n in made]
        last = max(self.stages[part] for part in self.stages)
        computed: list[list[Part]] = [[] for _ in range(last + 1)]
        order = {name: i for i, name in enumerate(self.body.nodes)}
        for part in sorted(self.stages, key=lambda p: (order[p.name], p.number, p.small)):
            node = self.body[part.name]
            if self.is_computed(node) and part.name not in self.loop.integers:
                computed[self.stages[part]].append(part)
        moved, multiplies = self.move([p for p in products if p.form is Form.ROWS])
        crossings = [self.multiply(p, ()) for p in products if p.form is not Form.ROWS]
        heavy = sum(
            OPS[self.body[p.name].op].cost is Cost.HEAVY for stage in computed for p in stage
        )
        in_order = [part for stage in computed for part in stage]
        looked_up = [lookups[p.name].table for p in in_order if p.name in lookups]
        reads = tuple(self.reads.values())
        counts = {r: count_parts(self.loop, self.axes, r.name) for r in reads}
        return Steps(
            reads,
            sum(count for read, count in counts.items() if not read.small),
            sum(count for read, count in counts.items() if read.place),
            sum(count for read, count in counts.items() if read.small),
            moved,
            multiplies,
            tuple(crossings),
            tuple(map(tuple, computed)),
            heavy,
            tuple(looked_up),
            self.count_waits(in_order),
        )

    def move(self, products: Sequence[Product]) -> tuple[tuple[Moved, ...], tuple[Multiply, ...]]:
        """The rows that blocks tell each other for products, and those products by stage."""
        groups: dict[tuple[int, bool], dict[Part, None]] = {}
        keys: dict[Part, tuple[int, bool]] = {}
        for product in products:
            for part in self.parts_of(product.left):
                carried = isinstance(self.roles.get(part.name), Carried)
                if carried:
                    self.check_handed_on(part)
                key = 0 if carried else self.stages[part], carried
                groups.setdefault(key, {})[part] = None
                keys[part] = key
        numbers = {key: i for i, key in enumerate(sorted(groups, key=lambda k: (k[0], not k[1])))}
        moved = tuple(Moved(*key, tuple(groups[key])) for key in numbers)
        multiplies = []
        for product in products:
            parts = self.parts_of(product.left)
            left = tuple((numbers[keys[p]], moved[numbers[keys[p]]].parts.index(p)) for p in parts)
            multiplies.append(self.multiply(product, left))
        return moved, tuple(sorted(multiplies, key=lambda m: m.stage))

    def multiply(self, product: Product, left: tuple[tuple[int, int], ...]) -> Multiply:
        """A product in its stage.  left: see Multiply."""
        made = {p.number: s - 1 for p, s in self.stages.items() if p.name == product.name}
        first, count = min(made), max(made) - min(made) + 1
        own = tuple(self.parts_of(product.left))
        return Multiply(product, made[first], left, own, first, count)

    def check_handed_on(self, part: Part) -> None:
        """A state that blocks tell each other must wait for a product: two buffers are enough only then."""
        role = self.roles[part.name]
        assert isinstance(role, Carried)
        if self.stage_of(self.resolve(role.value, part.number)) == 0:
            raise NoPlan(f"%{part.name} is a side of a product, and its next value waits for none")
