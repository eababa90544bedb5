"""Graph -> Graph: products that read and write matrices in the order in which the kernels around them work.

A library reads an operand as rows or as columns, and gives the result of swapped operands transposed, all at the same
speed.  So the order is free, and a kernel that would read or write across its own order asks for the other one: W·xᵀ
becomes x·Wᵀ where a norm over the features reads it.  Each array in memory lies along a *direction*, a class of loops
of find_dimensions.  Arrays that ops with the same loops read and write should lie along one direction.  Parameters,
results of the program and what other ops read stay; products turn until fewest bytes lie across.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from astitch.graph.dimensions import Dimensions, array_of, find_dimensions, is_embedded
from astitch.graph.index import Symbol
from astitch.graph.ir import (
    ArrayType,
    DotAttrs,
    Graph,
    Node,
    TransposeAttrs,
)
from astitch.graph.ops import OPS, Kind
from astitch.graph.stitchable import is_computed, why_not_stitchable
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.lift_transposes import Lift
from astitch.rewrite.movement_rules import group_dimensions
from astitch.rewrite.simplify import find_arranged_rules, rewrite_graph

LEAST_GAIN_BYTES = 256 << 10
"""Fewer bytes across are not worth another order."""

ACROSS_A_REDUCTION = 3.0
"""Bytes that lie across weigh so much more where a reduction is waited for: such loops have no tiles of two axes."""

MUCH_SMALLER = 8
"""A value with so many times fewer elements than its reader does not matter for the reader's order."""

FEW_RESULTS = 64
"""A product of so few rows or columns on the other side waits for the memory: its operand may lie either way."""

MOST_SEEN = 64
"""So many ops behind a reduction are searched for one of its size."""

SWEEPS = 4
"""How often all products are looked at; each look depends on what the others chose."""


def orient_products(graph: Graph, log: Log) -> Graph:
    """The same function; `log` hears of each product that gives its result, and of each operand that is written, in
    another order."""
    dots = [node for node in graph if isinstance(node.attrs, DotAttrs)]
    members = [node.name for node in graph if _is_member(graph, node)]
    if not dots or not members:
        return graph
    turns = [*_find_results(graph, dots), *_find_operands(graph, dots)]
    if not turns:
        return graph
    groups = _Surroundings(graph, members, turns).find_groups()
    turned = _choose(groups, len(turns))
    results = {t.name: t for t, on in zip(turns, turned, strict=True) if on and t.is_result}
    operands = {t.name: t for t, on in zip(turns, turned, strict=True) if on and not t.is_result}
    if not results and not operands:
        return graph

    lift = Lift()

    def turn(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if not isinstance(node.attrs, DotAttrs):
            return lift.put(node, draft)
        read = graph[node.name].operands
        for side in (0, 1):
            if read[side] in operands:
                log("turn_operand", node.name)
                node = _with_turned_operand(draft, node, side, operands[read[side]])
        if node.name not in results:
            return draft.put(node)
        log("turn_product", node.name)
        return lift.note(draft, *_put_swapped(draft, node, results[node.name]))

    return rewrite_graph(graph, log, turn, rules=find_arranged_rules)


def _is_member(graph: Graph, node: Node) -> bool:
    """Is the op part of a kernel, if it is not written into its readers?"""
    kind = OPS[node.op].kind
    if kind not in (Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INDEX, Kind.REDUCE):
        return False
    return why_not_stitchable(graph, node) is None and not is_embedded(graph, node.name)


# ---- what may be turned ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """An array that may lie in two orders: a product's result, or an operand that a kernel writes.

    batch: dimensions that stay in front.  first: dimensions of the first of the two blocks that change places.
    """

    name: str
    is_result: bool
    batch: int
    first: int

    def order(self, rank: int) -> tuple[int, ...]:
        """Its dimensions with the blocks swapped."""
        start = self.batch + self.first
        return (*range(self.batch), *range(start, rank), *range(self.batch, start))


def _find_results(graph: Graph, dots: Sequence[Node]) -> Iterator[Turn]:
    """Results that kernels read, every one of their readers."""
    for dot in dots:
        attrs = dot.attrs
        assert isinstance(attrs, DotAttrs)
        batch = len(attrs.lhs_batch)
        left = graph[dot.operands[0]].array.rank - batch - len(attrs.lhs_contracting)
        turn = Turn(dot.name, True, batch, left)
        if _has_two_sides(dot.array, turn) and dot.name not in graph.outputs:
            if all(_is_read_in_kernels(graph, user) for user in graph.users[dot.name]):
                yield turn


def _is_read_in_kernels(graph: Graph, name: str) -> bool:
    """Do kernels compute all that reads the value, directly or through ops that move elements?"""
    waiting, seen = [name], {name}
    while waiting:
        node = graph[waiting.pop()]
        if OPS[node.op].kind is not Kind.INDEX:
            if not is_computed(graph, node):
                return False
        elif len(node.operands) > 1 and _is_written(graph, node):
            continue  # a kernel writes what is put together, whoever reads it
        elif node.name in graph.outputs or not graph.users[node.name]:
            return False
        else:
            waiting += [user for user in graph.users[node.name] if user not in seen]
            seen.update(graph.users[node.name])
    return True


def _find_operands(graph: Graph, dots: Sequence[Node]) -> Iterator[Turn]:
    """Operands that kernels write, where all products that read one see the same two blocks."""
    seen: dict[str, Turn | None] = {}
    for dot in dots:
        for side in (0, 1):
            name = dot.operands[side]
            turn = _blocks_of_operand(graph, dot, side)
            if name in seen and seen[name] != turn:
                turn = None
            seen[name] = turn
    for name, turn in seen.items():
        if turn is None or name in graph.outputs or not _is_written(graph, graph[name]):
            continue
        # What others read would be written in both orders.
        if all(isinstance(graph[user].attrs, DotAttrs) for user in graph.users[name]):
            yield turn


def _blocks_of_operand(graph: Graph, dot: Node, side: int) -> Turn | None:
    attrs = dot.attrs
    assert isinstance(attrs, DotAttrs)
    array = graph[dot.operands[side]].array
    contracting = attrs.rhs_contracting if side else attrs.lhs_contracting
    batch = attrs.rhs_batch if side else attrs.lhs_batch
    count = len(batch)
    free = [d for d in range(array.rank) if d not in (*batch, *contracting)]
    if [*batch] != [*range(count)]:
        return None
    if [*contracting, *free] == [*range(count, array.rank)]:
        first = len(contracting)
        # Tensor cores take 32-bit operands along the contracted dimension only; libraries turn others on the way.
        # Products in full precision use none: there an operand along it is the slower one.
        turns_well = array.dtype.bytes == 2 or "HIGHEST" not in attrs.precision
    elif [*free, *contracting] == [*range(count, array.rank)]:
        first = len(free)
        turns_well = array.dtype.bytes == 2 or _count_free(graph, dot, 1 - side) <= FEW_RESULTS
    else:
        return None
    turn = Turn(dot.operands[side], False, count, first)
    return turn if turns_well and _has_two_sides(array, turn) else None


def _count_free(graph: Graph, dot: Node, side: int) -> int:
    """How many rows or columns of the result an operand gives, of each matrix of a batch."""
    attrs = dot.attrs
    assert isinstance(attrs, DotAttrs)
    shape = graph[dot.operands[side]].array.shape
    contracting = attrs.rhs_contracting if side else attrs.lhs_contracting
    batch = attrs.rhs_batch if side else attrs.lhs_batch
    return math.prod(extent for d, extent in enumerate(shape) if d not in (*contracting, *batch))


def _has_two_sides(array: ArrayType, turn: Turn) -> bool:
    start = turn.batch + turn.first
    blocks = array.shape[turn.batch : start], array.shape[start:]
    return all(any(extent > 1 for extent in block) for block in blocks)


def _is_written(graph: Graph, node: Node) -> bool:
    """Does a kernel of ours compute the value, or a part of it?"""
    waiting, seen = [node.name], {node.name}
    while waiting:
        node = graph[waiting.pop()]
        if is_embedded(graph, node.name):
            continue
        if OPS[node.op].kind is Kind.INDEX:
            waiting += [operand for operand in node.operands if operand not in seen]
            seen.update(node.operands)
        elif is_computed(graph, node):
            return True
    return False


# ---- what lies beside what ---------------------------------------------------------------------------------------


T = TypeVar("T")


class _Sets(Generic[T]):
    """Disjoint sets of values."""

    def __init__(self) -> None:
        self._above: dict[T, T] = {}

    def root(self, value: T) -> T:
        """The value that stands for the set."""
        while (above := self._above.get(value, value)) != value:
            value = above
        return value

    def join(self, a: T, b: T) -> None:
        a, b = self.root(a), self.root(b)
        if a != b:
            self._above[a] = b


@dataclass(frozen=True, slots=True)
class _Array:
    """An array that ops of a group read or write.  along: its direction as it is, and turned.  turn: its number; None
    for one that stays."""

    bytes: int
    along: tuple[int, int]
    turn: int | None = None


@dataclass(slots=True)
class _Group:
    """Ops that are worked on in one order.

    reductions: (bytes, directions) of those whose result is waited for at full size.
    """

    arrays: dict[tuple[str, tuple[int, int]], _Array] = field(default_factory=dict)
    reductions: list[tuple[int, frozenset[int]]] = field(default_factory=list)


class _Surroundings:
    """What reads and writes the arrays that may be turned."""

    def __init__(self, graph: Graph, members: Sequence[str], turns: Sequence[Turn]) -> None:
        self.graph, self.members = graph, members
        self.inside = frozenset(members)
        self.dimensions: Dimensions = find_dimensions(graph, members)
        self.turns = turns
        self.number = {(turn.name, turn.is_result): n for n, turn in enumerate(turns)}
        self.parts: _Sets[Symbol] = _Sets()
        self.numbers: dict[Symbol, int] = {}
        self.loops: dict[str, frozenset[int]] = {}
        self.alike: _Sets[frozenset[int]] = _Sets()
        self.groups: dict[frozenset[int], _Group] = {}
        for name in members:
            self.join_parts(graph[name])
        for name in members:
            self.join_loops(graph[name])

    def join_parts(self, node: Node) -> None:
        """A part of a dimension runs in the direction of the whole."""
        if OPS[node.op].kind is not Kind.INDEX or OPS[node.op].permutes:
            return
        result = self.dimensions.atoms[node.name]
        for number, operand in enumerate(node.operands):
            source = self.dimensions.atoms.get(operand, ())
            if len(source) != len(result):
                continue
            shapes = array_of(self.graph[operand]).shape, array_of(node).shape
            shared = {d for d, _ in OPS[node.op].pairs(node, *shapes, number)}
            for d, (before, after) in enumerate(zip(source, result, strict=True)):
                if d not in shared and before and after:
                    self.parts.join(before[-1], after[-1])

    def join_loops(self, node: Node) -> None:
        """Ops with some of the loops of a reader are worked on beside it, if they are not much smaller."""
        if OPS[node.op].is_reduce:
            return
        own, size = self.loops_of(node.name), array_of(node).size
        for operand in node.operands:
            if operand in self.inside and array_of(self.graph[operand]).size * MUCH_SMALLER >= size:
                read = self.loops_of(operand)
                if len(own) > 1 and len(read) > 1 and (own <= read or read <= own):
                    self.alike.join(own, read)

    def direction(self, atom: Symbol) -> int:
        return self.numbers.setdefault(self.parts.root(atom), len(self.numbers))

    def loops_of(self, name: str) -> frozenset[int]:
        """The directions of a value's loops."""
        if name not in self.loops:
            self.loops[name] = frozenset(map(self.direction, self.dimensions.space(name)))
        return self.loops[name]

    def along(self, name: str, order: Iterable[int] | None = None) -> int | None:
        """The direction of the value's last dimension, in another order of its dimensions if one is given."""
        atoms = self.dimensions.atoms.get(name)
        if atoms is None:
            return None
        last = [a for d in (order or range(len(atoms))) for a in atoms[d]]
        return self.direction(last[-1]) if last else None

    def group_of(self, name: str) -> _Group | None:
        """The group of ops with the loops of a value; None for a value with one loop."""
        loops = self.loops_of(name)
        return self.groups.setdefault(self.alike.root(loops), _Group()) if len(loops) > 1 else None

    def find_groups(self) -> list[_Group]:
        for node in self.graph:
            if node.name in self.inside:
                self.add_reads(node)
                if OPS[node.op].is_reduce:
                    self.add_reduction(node)
            elif OPS[node.op].kind is not Kind.SOURCE:
                for operand in dict.fromkeys(node.operands):
                    self.add_write(operand)
        for name in dict.fromkeys(self.graph.outputs):
            self.add_write(name)
        return list(self.groups.values())

    def add_reads(self, node: Node) -> None:
        """What a member reads from memory, in the group of the value as its reader sees it."""
        for operand in node.operands:
            source = self.graph[operand]
            if operand in self.inside or is_embedded(self.graph, operand):
                continue
            if isinstance(source.type, ArrayType) and source.array.rank > 1:
                part = node.name if OPS[node.op].kind is Kind.INDEX else operand
                number = self.number.get((operand, True))
                self.add(operand, part, min(array_of(node).bytes, source.array.bytes), number)

    def add_write(self, name: str) -> None:
        """What a member writes for a reader that is none."""
        if name in self.inside and array_of(self.graph[name]).rank > 1:
            number = self.number.get((name, False))
            self.add(name, name, array_of(self.graph[name]).bytes, number)

    def add(self, name: str, part: str, bytes_: int, number: int | None) -> None:
        group, along = self.group_of(part), self.along(name)
        if group is None or along is None:
            return
        turned = along
        if number is not None:
            order = self.turns[number].order(array_of(self.graph[name]).rank)
            turned = self.along(name, order) or 0
        group.arrays[part, (along, turned)] = _Array(bytes_, (along, turned), number)

    def add_reduction(self, node: Node) -> None:
        source = node.operands[0]
        if source not in self.dimensions.atoms or not self.is_awaited(node.name, source):
            return
        group, kept = self.group_of(source), self.loops_of(node.name)
        if group is not None and kept:
            bytes_ = array_of(self.graph[source]).bytes
            group.reductions.append((bytes_, self.loops_of(source) - kept))

    def is_awaited(self, name: str, source: str) -> bool:
        """Is the result of a reduction needed for each of the elements that it reads?"""
        loops, size = self.loops_of(source), array_of(self.graph[source]).size
        waiting, seen = [name], {name}
        while waiting and len(seen) < MOST_SEEN:
            for user in self.graph.users[waiting.pop()]:
                if user in seen or user not in self.inside:
                    continue
                if array_of(self.graph[user]).size < size:
                    seen.add(user)
                    waiting.append(user)
                elif loops <= self.loops_of(user):
                    return True
        return False


# ---- which are turned --------------------------------------------------------------------------------------------


class _Balance:
    """Bytes of a group by direction, kept up to date as arrays turn, so that a cost does not walk the group."""

    def __init__(self, group: _Group) -> None:
        self._weight = ACROSS_A_REDUCTION if group.reductions else 1.0
        self._bytes: dict[int, float] = {}
        self._arrays: dict[int, int] = {}
        self._reduced: dict[int, int] = {}
        self.of_turn: dict[int, list[_Array]] = {}
        self.towards: dict[int, dict[_Array, None]] = {}
        for array in group.arrays.values():
            self._put(array, array.along[0])
            if array.turn is not None:
                self.of_turn.setdefault(array.turn, []).append(array)
                for direction in array.along:
                    self.towards.setdefault(direction, {})[array] = None
        self._all = sum(self._bytes.values()) + sum(bytes_ for bytes_, _ in group.reductions)
        for bytes_, directions in group.reductions:
            for direction in directions:
                self._reduced[direction] = self._reduced.get(direction, 0) + bytes_

    def _put(self, array: _Array, along: int, sign: int = 1) -> None:
        self._bytes[along] = self._bytes.get(along, 0.0) + sign * self._weight * array.bytes
        self._arrays[along] = self._arrays.get(along, 0) + sign

    def turn(self, number: int, before: bool) -> None:
        """An array lies in its other order from now on; before: whether it was turned."""
        for array in self.of_turn[number]:
            self._put(array, array.along[before], -1)
            self._put(array, array.along[not before])

    def cost(self) -> float:
        """Bytes that lie across the best direction, in the chosen orders."""
        along = [d for d, count in self._arrays.items() if count]
        return min(
            (self._all - self._bytes[d] - self._reduced.get(d, 0) for d in along), default=0.0
        )


def _choose(groups: Sequence[_Group], count: int) -> list[bool]:
    """For each array that may be turned, whether it is: arrays of a group together, then each for itself."""
    turned = [False] * count
    balances = [_Balance(group) for group in groups]
    of_turn: list[list[_Balance]] = [[] for _ in range(count)]
    for balance in balances:
        for number in sorted(balance.of_turn):
            of_turn[number].append(balance)

    def turn(changes: Sequence[int]) -> None:
        for number in changes:
            for balance in of_turn[number]:
                balance.turn(number, turned[number])
            turned[number] = not turned[number]

    def try_changes(changes: Sequence[int]) -> bool:
        near = {id(b): b for number in changes for b in of_turn[number]}.values()
        before = sum(balance.cost() for balance in near)
        turn(changes)
        if sum(balance.cost() for balance in near) <= before - LEAST_GAIN_BYTES:
            return True
        turn(changes)
        return False

    for _ in range(SWEEPS):
        changed = False
        for balance in balances:
            for direction, arrays in sorted(balance.towards.items()):
                changes = dict.fromkeys(
                    a.turn
                    for a in arrays
                    if a.turn is not None
                    and a.along[turned[a.turn]] != direction
                    and a.along[not turned[a.turn]] == direction
                )
                changed |= bool(changes) and try_changes([*changes])
        for number in range(count):
            changed |= try_changes([number])
        if not changed:
            break
    return turned


# ---- turned products ---------------------------------------------------------------------------------------------


def _put_swapped(draft: Draft, dot: Node, turn: Turn) -> tuple[str, str, tuple[int, ...]]:
    """The product of swapped operands: (itself transposed back, itself, the permutation)."""
    attrs, rank = dot.attrs, dot.array.rank
    assert isinstance(attrs, DotAttrs)
    order = turn.order(rank)
    shape = tuple(dot.shape[d] for d in order)
    swapped = replace(
        attrs,
        lhs_contracting=attrs.rhs_contracting,
        rhs_contracting=attrs.lhs_contracting,
        lhs_batch=attrs.rhs_batch,
        rhs_batch=attrs.lhs_batch,
    )
    operands = (dot.operands[1], dot.operands[0])
    product = draft.add(dot, "dot", ArrayType(dot.dtype, shape), operands, swapped)
    back = tuple(order.index(d) for d in range(rank))
    turned = replace(dot, op="transpose", operands=(product,), attrs=TransposeAttrs(back))
    return draft.put(turned), product, back


def _with_turned_operand(draft: Draft, dot: Node, side: int, turn: Turn) -> Node:
    """The product that reads an operand in its other order."""
    attrs, array = dot.attrs, draft[dot.operands[side]].array
    assert isinstance(attrs, DotAttrs)
    order = turn.order(array.rank)
    name = _put_turned(draft, dot, dot.operands[side], order)
    contracting = attrs.rhs_contracting if side else attrs.lhs_contracting
    moved = tuple(order.index(d) for d in contracting)
    operands = (dot.operands[0], name) if side else (name, dot.operands[1])
    if side:
        return replace(dot, operands=operands, attrs=replace(attrs, rhs_contracting=moved))
    return replace(dot, operands=operands, attrs=replace(attrs, lhs_contracting=moved))


def _put_turned(draft: Draft, origin: Node, name: str, order: Sequence[int]) -> str:
    """transpose(x, order); where x is a reshape that keeps the blocks apart, the transpose goes below it.

    So two products that read the same elements of one value, grouped in other ways, read the same array.
    """
    node = draft[name]
    shape = tuple(node.shape[d] for d in order)
    if OPS[node.op].is_view:
        below = draft[node.operands[0]]
        groups = group_dimensions(below.shape, node.shape)
        place = {d: position for position, d in enumerate(order)}
        moved = sorted(groups, key=lambda group: place[group[1][0]])
        if [d for d in order if node.shape[d] != 1] == [d for _, after in moved for d in after]:
            permutation = [d for before, _ in moved for d in before]
            permutation += [d for d, extent in enumerate(below.shape) if extent == 1]
            inner = ArrayType(below.dtype, tuple(below.shape[d] for d in permutation))
            attrs = TransposeAttrs(tuple(permutation))
            value = draft.add(origin, "transpose", inner, (below.name,), attrs)
            return draft.add(origin, "reshape", ArrayType(node.dtype, shape), (value,))
    attrs = TransposeAttrs(tuple(order))
    return draft.add(origin, "transpose", ArrayType(node.dtype, shape), (name,), attrs)
