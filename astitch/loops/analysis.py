"""What a `while` does: how often it turns, and what each part of its state is.

Takes a while node and the graph around it, hands on a Loop or the reason why it is none.  The idea: the parts of a
scan's state play few roles (counter, invariant, stack, carried value), which the body's use of them tells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from astitch.graph.edit import is_pure
from astitch.graph.ir import (
    ArrayType,
    CompareAttrs,
    ConstantAttrs,
    DynamicSliceAttrs,
    GetTupleElementAttrs,
    Graph,
    Literal,
    Node,
)
from astitch.graph.ops import OPS, is_slice_update
from astitch.graph.ops.arrays import array_types

UNKNOWN = "how often it turns is not known"
"""Why a loop is none whose turns are counted."""


@dataclass(frozen=True, slots=True)
class Affine:
    """An integer in turn t, counted from 0: scale * t + offset."""

    scale: int
    offset: int

    def at(self, turn: int) -> int:
        return self.scale * turn + self.offset


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a stack a turn reads or writes: along `dimension` at `index`, everything along the others."""

    dimension: int
    index: Affine


@dataclass(frozen=True, slots=True)
class Counter:
    """A state of the loop that counts turns."""

    value: Affine


@dataclass(frozen=True, slots=True)
class Invariant:
    """A state that every turn hands on as it is."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A state that the body computes anew: `value` is the node of the body."""

    value: str


@dataclass(frozen=True, slots=True)
class Stack:
    """A state of which each turn writes one slice, `value`; nobody reads it in the loop, and every slice is written."""

    value: str
    place: Place


Role = Counter | Invariant | Carried | Stack


@dataclass(frozen=True)
class Loop:
    """A while of `trips` turns.  roles: of each part of its state.  slices: the dynamic-slices of the body, which read
    invariants.  integers: the scalars of the body that are affine in the turn.  starts: the parts of the state that are
    one number everywhere before the first turn.  asked: the state that says which rows asked for a turn, if each turns
    as often as it asks for (row_conditions.py).  limited: trips are the most turns; else they are assumed.
    """

    node: Node
    trips: int
    roles: tuple[Role, ...]
    slices: Mapping[str, Place]
    integers: Mapping[str, Affine]
    starts: Mapping[int, Literal]
    asked: int | None = None
    limited: bool = True

    @property
    def body(self) -> Graph:
        return self.node.regions[1]

    @property
    def types(self) -> tuple[ArrayType, ...]:
        """The types of the state."""
        return array_types(self.node)


@dataclass(frozen=True, slots=True)
class LoopState:
    """One part of a while's state: the body's and the condition's parameter, what the body makes of it, its start."""

    parameter: str
    output: str
    type: ArrayType
    start: str


@dataclass(frozen=True, slots=True)
class LoopRefusal:
    """Why a loop is left as it is.

    is_choice: for its time or memory.  Then the directive keep makes it a kernel, if it can be one.
    """

    name: str
    reason: str
    is_choice: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        undo = f"\n    to reverse it: keep %{self.name}" if self.is_choice else ""
        return f"%{self.name}: the loop is not one kernel: {self.reason}{undo}"


@dataclass(frozen=True, slots=True)
class LoopKey:
    """What a while computes: its regions, the numbers that it starts with, which parts of its final state are read,
    which parts of its state start as the same array."""

    regions: tuple[Graph, ...]
    starts: tuple[tuple[int, Literal], ...]
    used: tuple[int, ...]
    shared: tuple[tuple[int, int], ...]


def loop_key(graph: Graph, node: Node) -> LoopKey:
    """The key of a while in its graph."""
    starts = find_starts(graph, node)
    shared = find_shared(node, starts)
    return LoopKey(node.regions, tuple(starts.items()), find_used(graph, node), shared)


def find_shared(node: Node, starts: Collection[int]) -> tuple[tuple[int, int], ...]:
    """Parts of a while's state that start as an array that one before them starts as, with that one."""
    first: dict[str, int] = {}
    places = [(i, o) for i, o in enumerate(node.operands) if i not in starts]
    return tuple((i, before) for i, o in places if (before := first.setdefault(o, i)) != i)


def find_used(graph: Graph, node: Node) -> tuple[int, ...]:
    """The parts of a while's final state that somebody reads."""
    projections = (graph[user].attrs for user in graph.users[node.name])
    return tuple(sorted({a.index for a in projections if isinstance(a, GetTupleElementAttrs)}))


def find_starts(graph: Graph, node: Node) -> dict[int, Literal]:
    """The operands of a while that are a scalar constant repeated, by their numbers."""
    found: dict[int, Literal] = {}
    for number, operand in enumerate(node.operands):
        source = graph[operand]
        while _repeats(source):
            source = graph[source.operands[0]]
        if isinstance(source.attrs, ConstantAttrs) and source.array.size == 1:
            value = source.attrs.value
            found[number] = Literal(value.dtype, (), value.data)
    return found


def refuse_effects(node: Node, inside: Iterable[Node]) -> LoopRefusal | None:
    """The refusal of a while in which one of these ops may do more than give a value; None where none does."""
    for inner in inside:
        if not is_pure(inner):
            reason = f"%{inner.name} is a {inner.op}, which may do more than give a value"
            return LoopRefusal(node.name, reason)
    return None


def analyse_loop(graph: Graph, node: Node, *, carries: bool = False) -> Loop | LoopRefusal:
    """The roles of a while's state.  graph: where the while stands.  carries: an array that a turn writes to in some
    other way than slice by slice is carried like others; else that is refused.
    """
    condition, body = node.regions
    if (refused := refuse_effects(node, body)) is not None:
        return refused
    starts = find_counters(graph, node)
    trips = _count_trips(condition, starts)
    if trips is None:
        return LoopRefusal(node.name, UNKNOWN)
    types = array_types(node)
    if (index := find_overflow(types, starts, trips)) is not None:
        return LoopRefusal(node.name, f"%{body.parameters[index]} counts beyond its type")
    given = {body.parameters[i]: value for i, value in starts.items()}
    integers = find_integers(body, given, trips)
    slices: dict[str, Place] = {}
    for inner in body:
        if isinstance(inner.attrs, DynamicSliceAttrs):
            operand = inner.operands[0]
            kept = operand in body.parameters and body.outputs[_number(body, operand)] == operand
            place = find_place(body, inner, inner.operands[1:], inner.shape, integers, trips)
            if kept and place is not None:
                slices[inner.name] = place
    roles: list[Role] = []
    for index, (name, output) in enumerate(zip(body.parameters, body.outputs, strict=True)):
        if index in starts and starts[index].scale:
            roles.append(Counter(starts[index]))
        elif output == name:
            roles.append(Invariant())
        elif (stack := _find_stack(body, name, output, integers, trips)) is not None:
            roles.append(stack)
        elif is_slice_update(body[output]) and not carries:
            return LoopRefusal(
                node.name, f"what %{output} writes is not one slice of a stack a turn"
            )
        else:
            roles.append(Carried(output))
    return Loop(node, trips, tuple(roles), slices, integers, find_starts(graph, node))


def find_numbered_stack(loop: Loop, used: Collection[int]) -> str | None:
    """A stack that somebody reads of numbers that the turn decides: no kernel of a loop writes one."""
    for index in used:
        role = loop.roles[index]
        if isinstance(role, Stack) and role.value in loop.integers:
            return role.value
    return None


def find_counters(graph: Graph, node: Node) -> dict[int, Affine]:
    """The integers of a while's state that start at a known one and change by the same number in each turn."""
    body = node.regions[1]
    known = {i: v for i, o in enumerate(node.operands) if (v := integer_of(graph, o)) is not None}
    found: dict[int, Affine] = {}
    for index, name in enumerate(body.parameters):
        step = _find_step(body, name, body.outputs[index])
        if step is not None and index in known:
            found[index] = Affine(step, known[index])
        elif body.outputs[index] == name and index in known:
            found[index] = Affine(0, known[index])
    return found


def find_ends(graph: Graph, node: Node) -> dict[int, np.ndarray]:
    """The parts of a while's state that are known after it, by their numbers.  They are its counters, and stacks whose
    slices are numbers that the turn decides.  Nothing where its turns are not known.  Nothing either where a counter
    leaves its type: it starts again then, and may be what the turns are counted by."""
    turns = count_turns(graph, node)
    if turns is None:
        return {}
    trips, counters = turns
    types = array_types(node)
    ends = {
        index: np.full(types[index].shape, counter.at(trips), types[index].dtype.numpy)
        for index, counter in counters.items()
    }
    loop = analyse_loop(graph, node)
    if isinstance(loop, Loop):
        for index, role in enumerate(loop.roles):
            if isinstance(role, Stack) and role.value in loop.integers:
                if trips != types[index].size or trips > MOST_LISTED_TURNS:
                    continue
                places = [role.place.index.at(turn) for turn in range(trips)]
                if sorted(places) == list(range(types[index].size)):
                    end = np.empty(types[index].size, types[index].dtype.numpy)
                    end[places] = [loop.integers[role.value].at(turn) for turn in range(trips)]
                    ends[index] = end.reshape(types[index].shape)
    return ends


MOST_LISTED_TURNS = 1 << 16
"""Turns of a loop that are looked at one by one while it is compiled."""


def count_turns(graph: Graph, node: Node) -> tuple[int, dict[int, Affine]] | None:
    """How often a while turns, and the parts of its state that count; None where that is not known, or a counter leaves
    its type."""
    counters = find_counters(graph, node)
    trips = _count_trips(node.regions[0], counters)
    if trips is None or find_overflow(array_types(node), counters, trips) is not None:
        return None
    return trips, counters


def find_overflow(
    types: Sequence[ArrayType], counters: Mapping[int, Affine], trips: int
) -> int | None:
    """A counter that does not fit its type at the first turn or after the last."""
    for index, value in counters.items():
        if not all(_fits(types[index], value.at(turn)) for turn in (0, trips)):
            return index
    return None


def _number(body: Graph, parameter: str) -> int:
    return body.parameters.index(parameter)


def _repeats(node: Node) -> bool:
    """Does the op repeat its operand's elements, or hand them on in their order?"""
    return OPS[node.op].keeps_order or OPS[node.op].is_broadcast


def integer_of(graph: Graph, name: str) -> int | None:
    """The value of an integer constant of one element."""
    node = graph[name]
    while _repeats(node):
        node = graph[node.operands[0]]
    if not isinstance(node.attrs, ConstantAttrs) or not node.array.dtype.is_integer:
        return None
    return int(node.attrs.value.numpy().reshape(-1)[0]) if node.array.size == 1 else None


def _find_step(body: Graph, parameter: str, output: str) -> int | None:
    """What a turn adds to a scalar of the state, if it adds or takes away a constant."""
    node = body[output]
    sign = OPS[node.op].addend_sign
    if not sign or node.array.rank:
        return None
    one, other = node.operands
    if sign > 0 and one != parameter:
        one, other = other, one
    step = integer_of(body, other)
    if one != parameter or step is None:
        return None
    return sign * step


def _count_trips(condition: Graph, starts: Mapping[int, Affine]) -> int | None:
    """How often a condition holds: it compares counters with numbers."""
    given = {condition.parameters[i]: value for i, value in starts.items()}
    return count_turns_while(condition, condition.outputs[0], given)


def count_turns_while(condition: Graph, name: str, given: Mapping[str, Affine]) -> int | None:
    """For how many turns, from the first on, a truth holds; of several (TensorFlow's loops have a limit besides) the
    one that ends first."""
    test = condition[name]
    while OPS[test.op].keeps_order:
        test = condition[test.operands[0]]
    if test.op == "and":
        counts = [count_turns_while(condition, operand, given) for operand in test.operands]
        known = [count for count in counts if count is not None]
        return min(known) if len(known) == len(counts) else None
    if not isinstance(test.attrs, CompareAttrs):
        return None
    sides: list[Affine] = []
    for operand in test.operands:
        number = integer_of(condition, operand)
        side = Affine(0, number) if number is not None else given.get(operand)
        if side is None:
            return None
        sides.append(side)
    left, right = sides
    direction = test.attrs.direction
    if direction in ("GT", "GE"):
        left, right, direction = right, left, {"GT": "LT", "GE": "LE"}[direction]
    # It holds while gap > 0.
    gap = right.offset - left.offset + (direction == "LE")
    closing = left.scale - right.scale
    if direction not in ("LT", "LE") or (gap > 0 and closing <= 0):
        return None
    return max(0, -(-gap // closing)) if gap > 0 else 0


def find_integers(body: Graph, given: Mapping[str, Affine], trips: int) -> dict[str, Affine]:
    """The integer scalars of a body that are affine in the turn.  given: those of its parameters."""
    found = dict(given)
    last = max(trips - 1, 0)
    truths: dict[str, bool] = {}
    for node in body:
        if not isinstance(node.type, ArrayType) or node.type.size != 1:
            continue
        if isinstance(node.attrs, ConstantAttrs):
            if node.type.dtype.is_integer:
                found[node.name] = Affine(0, int(node.attrs.value.numpy().reshape(-1)[0]))
            continue
        if node.op == "select" and node.operands[0] in truths:
            chosen = node.operands[1 if truths[node.operands[0]] else 2]
            if chosen in found:
                found[node.name] = found[chosen]
            continue
        if any(o not in found for o in node.operands) or not node.operands:
            continue
        values = [found[o] for o in node.operands]
        if isinstance(node.attrs, CompareAttrs):
            # Both sides are straight lines: what holds at both ends holds between them.
            direction = node.attrs.direction
            told = {_holds(direction, *(v.at(t) for v in values)) for t in (0, last)}
            if len(told) == 1 and direction not in ("EQ", "NE"):
                truths[node.name] = told.pop()
            continue
        bound = _BOUNDS.get(node.op)
        value = bound(*values, last) if bound else _apply(node, values)
        if value is None:
            continue
        if all(_fits(node.type, value.at(t)) for t in (0, last)):
            found[node.name] = value
    return found


def _apply(node: Node, values: Sequence[Affine]) -> Affine | None:
    """What an op makes of integers that are affine in the turn; None where that is not affine."""
    assert isinstance(node.type, ArrayType)
    row = OPS[node.op]
    if row.is_conversion or row.keeps_order:
        return values[0] if node.type.dtype.is_integer else None
    rule = _AFFINE.get(node.op)
    return rule(*values) if rule else None


def _multiply(a: Affine, b: Affine) -> Affine | None:
    if a.scale and b.scale:
        return None
    return Affine(a.scale * b.offset + a.offset * b.scale, a.offset * b.offset)


def _clamp(low: Affine, x: Affine, high: Affine, last: int) -> Affine | None:
    """x, where it lies within its bounds in the first turn and in the last one: all three are straight lines."""
    is_within = all(low.at(t) <= x.at(t) <= high.at(t) for t in (0, last))
    return x if is_within else None


_BOUNDS: Mapping[str, Callable[..., Affine | None]] = {"clamp": _clamp}
"""Ops whose result depends on the turns of the loop: the last argument is the last turn."""

_AFFINE: Mapping[str, Callable[..., Affine | None]] = {
    "add": lambda a, b: Affine(a.scale + b.scale, a.offset + b.offset),
    "subtract": lambda a, b: Affine(a.scale - b.scale, a.offset - b.offset),
    "negate": lambda a: Affine(-a.scale, -a.offset),
    "multiply": _multiply,
}


def _holds(direction: str, a: int, b: int) -> bool:
    comparisons = {"LT": a < b, "LE": a <= b, "GT": a > b, "GE": a >= b, "EQ": a == b, "NE": a != b}
    return comparisons[direction]


def _fits(type_: ArrayType, value: int) -> bool:
    """Does no wrap-around happen?"""
    bits = 8 * type_.dtype.bytes
    least: int = -(2 ** (bits - 1)) if type_.dtype.is_signed else 0
    return least <= value < least + int(2**bits)


def find_place(
    body: Graph,
    node: Node,
    indices: tuple[str, ...],
    sizes: tuple[int, ...],
    integers: Mapping[str, Affine],
    trips: int,
) -> Place | None:
    """Where a dynamic-slice or an update acts on a stack; None where it is not one slice at an index within bounds.

    sizes: of the slice.
    """
    shape = body[node.operands[0]].shape
    if any(index not in integers for index in indices):
        return None
    places = [integers[index] for index in indices]
    found: Place | None = None
    for dimension, (place, size, extent) in enumerate(zip(places, sizes, shape, strict=True)):
        if size == extent and found is not None:
            continue  # any start is clamped to 0
        if size == extent and (place.scale == 0 or extent > 1):
            continue
        ends = (place.at(0), place.at(max(trips - 1, 0)))
        if found is not None or size != 1 or min(ends) < 0 or max(ends) >= extent:
            return None
        found = Place(dimension, place)
    return found


def _find_stack(
    body: Graph, parameter: str, output: str, integers: Mapping[str, Affine], trips: int
) -> Stack | None:
    update = body[output]
    if not is_slice_update(update) or update.operands[0] != parameter:
        return None
    if body.users[parameter] != (output,) or body.users[output] or body.outputs.count(output) > 1:
        return None
    value = update.operands[1]
    place = find_place(body, update, update.operands[2:], body[value].shape, integers, trips)
    if place is None:
        return None
    whole = abs(place.index.scale) == 1 and update.shape[place.dimension] == trips
    return Stack(value, place) if whole else None
