"""An HloModuleProto -> the same whose loops take two turns in one, so that XLA copies nothing from turn to turn.

A turn that reads an array of its state at shifted places cannot write the new one where the old one lies.  XLA writes
it elsewhere and copies it back.  Of two turns the second writes where the first one read: double buffering.  What is
handed on from one part of the state to the next, as the two last steps of a wave, takes as many turns as it has parts.
Turns that are left over are behind the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astitch.device.gpu import Gpu
from astitch.graph.collectives import COLLECTIVES
from astitch.graph.ir import ArrayType, Literal
from astitch.hlo.literal import read_literal, write_literal
from astitch.hlo.schema import decode
from astitch.hlo.shapes import read_type
from astitch.xla.instructions import (
    ELEMENTWISE,
    count_bytes,
    find_base,
    is_kernel,
    set_instructions,
)

MOST_INSTRUCTIONS = 1200
"""Of a turn.  XLA compiles it several times."""

LEAST_GAIN_US, GAIN_OF_INSTRUCTION_US = 20.0, 0.5
"""Of all turns, and for each instruction of one.  Below, to compile more is not worth it: an estimate."""

TURNS, LEAST_TURNS = (2, 3, 4), 4
"""How many may be one, and of how many in all."""

COPY_US = 1.5
"""Of a copy in a loop, beside the time of its bytes."""

FUSED = ELEMENTWISE | frozenset(b"bitcast reshape broadcast copy".split())
"""What reads its operands at the place of the result's element, and XLA fuses."""

SHIFTED = frozenset(b"slice concatenate pad reverse transpose gather dynamic-slice".split())
"""What XLA fuses too, and reads them elsewhere."""

HELD = frozenset(
    b"while conditional call infeed outfeed send recv rng rng-get-and-update-state async-start".split()
)
"""What a turn may not have: computations of its own, or an effect."""


@dataclass(slots=True)
class _Loop:
    """A while whose turns are counted.

    outer: the computation in which it stands.  parts: of the body's state, by the ids of their get-tuple-elements, with
    their numbers.  counter: the one of them that is compared with `bound`, a constant.  step: what a turn adds to it.
    """

    outer: Any
    node: Any
    body: Any
    parts: dict[int, int]
    counter: int
    step: int
    trips: int
    bound: Any
    by_id: dict[int, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.by_id = {i.id: i for i in self.body.instructions}

    @property
    def root(self) -> Any:
        """The tuple of the state after a turn."""
        return self.by_id[self.body.root_id]

    @property
    def turn(self) -> list[Any]:
        """What a turn computes."""
        held = {*self.parts, self.body.root_id}
        return [i for i in self.body.instructions if i.id not in held and i.opcode != b"parameter"]


@dataclass(frozen=True, slots=True)
class Doubled:
    """A loop that takes several turns in one.  name: of the while.  copies: arrays that XLA copied in each turn."""

    name: str
    turns: int
    copies: int

    def __str__(self) -> str:
        arrays = "an array" if self.copies == 1 else f"{self.copies} arrays"
        return f"%{self.name}: {self.turns} turns are one; XLA would copy {arrays} in each turn"


def double_buffer(
    module: Any, gpu: Gpu, leaves: Callable[[str], bool] = lambda name: False
) -> list[Doubled]:
    """Changes the loops of a module that are faster so.

    module: an HloModuleProto whose kernels say in whose memory they write.  gpu: whose memory the copies go through.
    leaves: is a loop to stay as it is?  Given its name.
    """
    computations = {c.id: c for c in module.computations}
    calls = Counter(
        n for c in module.computations for i in c.instructions for n in i.called_computation_ids
    )
    found = []
    for outer in module.computations:
        for number in [i.id for i in outer.instructions if i.opcode == b"while"]:
            node = next(i for i in outer.instructions if i.id == number)
            own = all(calls[n] == 1 for n in node.called_computation_ids)
            loop = _read_loop(outer, node, computations) if own else None
            if loop is None:
                continue
            copied = _list_copied(loop)
            name, turns = decode(node.name), _choose_turns(loop, copied)
            if turns > 1 and _is_worth(loop, copied, gpu) and not leaves(name):
                _change(loop, copied, turns)
                found.append(Doubled(name, turns, len(copied)))
    return found


def _is_worth(loop: _Loop, copied: Collection[int], gpu: Gpu) -> bool:
    """Do the copies of all turns take long enough?"""
    sizes = [count_bytes(loop.by_id[loop.root.operand_ids[n]]) for n in copied]
    us = loop.trips * sum(COPY_US + 2e-3 * size / gpu.bandwidth_gbs for size in sizes)
    return us >= max(LEAST_GAIN_US, GAIN_OF_INSTRUCTION_US * len(loop.turn))


def _choose_turns(loop: _Loop, copied: Collection[int]) -> int:
    """How many turns leave the fewest copies; of equal ones the fewest; 1: no number leaves fewer than one turn."""
    if not copied or loop.trips < LEAST_TURNS:
        return 1
    sources = [loop.parts.get(find_base(loop.by_id, o)) for o in loop.root.operand_ids]
    left = {1: len(copied)}
    for turns in TURNS:
        left[turns] = sum(_is_moved(sources, n, turns) for n in copied)
    return min(left, key=lambda turns: (left[turns], turns))


def _is_moved(sources: Sequence[int | None], number: int, turns: int) -> bool:
    """Is a part of the state what another one was, so many turns before?  sources: the same of one turn."""
    at = number
    for _ in range(turns):
        before = sources[at]
        if before is None:
            return False
        at = before
    return at != number


# ---- what a loop is


def _read_loop(outer: Any, node: Any, computations: Mapping[int, Any]) -> _Loop | None:
    """None where it cannot be two turns at a time."""
    # XLA stores the body first.
    body, condition = (computations[n] for n in node.called_computation_ids)
    if len(body.instructions) > MOST_INSTRUCTIONS or any(map(_is_held, body.instructions)):
        return None
    if node.backend_config or any(node.id in i.control_predecessor_ids for i in outer.instructions):
        return None  # somebody has counted its turns, or waits for it
    parameter = next(i for i in body.instructions if i.opcode == b"parameter")
    readers = [i for i in body.instructions if parameter.id in i.operand_ids]
    root = next(i for i in body.instructions if i.id == body.root_id)
    if root.opcode != b"tuple" or any(i.opcode != b"get-tuple-element" for i in readers):
        return None
    parts = {i.id: i.tuple_index for i in readers}
    counted = _count(outer, node, body, condition, parts)
    return _Loop(outer, node, body, parts, *counted) if counted else None


def _is_held(instruction: Any) -> bool:
    """Does it hold a turn together: computations of its own, an effect, an order?"""
    return bool(
        instruction.opcode in HELD
        or decode(instruction.opcode) in COLLECTIVES
        or instruction.custom_call_has_side_effect
        or instruction.control_predecessor_ids
    )


def _count(
    outer: Any, node: Any, body: Any, condition: Any, parts: Mapping[int, int]
) -> tuple[int, int, int, Any] | None:
    """(counter, step, trips, bound) of a loop that compares a counter with a constant."""
    tested = {i.id: i for i in condition.instructions}
    test = tested[condition.root_id]
    if test.opcode != b"compare":
        return None
    left, bound = (tested[n] for n in test.operand_ids)
    direction = decode(test.comparison_direction)
    if left.opcode != b"get-tuple-element" or bound.opcode != b"constant":
        return None
    counter = left.tuple_index
    by_id = {i.id: i for i in body.instructions}
    moved = by_id[by_id[body.root_id].operand_ids[counter]]
    if moved.opcode != b"add":
        return None
    read = [n for n in moved.operand_ids if parts.get(n) == counter]
    added = [by_id[n] for n in moved.operand_ids if by_id[n].opcode == b"constant"]
    outside = {i.id: i for i in outer.instructions}
    given = outside[node.operand_ids[0]]
    start = outside[given.operand_ids[counter]] if given.opcode == b"tuple" else given
    if len(read) != 1 or len(added) != 1 or start.opcode != b"constant":
        return None
    first, step, last = map(_read_integer, (start, added[0], bound))
    if first is None or step is None or last is None:
        return None
    trips = _count_trips(first, step, last, direction)
    return (counter, step, trips, bound) if trips else None


def _count_trips(first: int, step: int, last: int, direction: str) -> int:
    """How often a loop turns whose counter goes up and is less than a bound; 0 for others."""
    if direction == "LE":
        last += 1
    if step <= 0 or direction not in ("LT", "LE"):
        return 0
    return max(0, -(-(last - first) // step))


def _read_integer(constant: Any) -> int | None:
    type_ = read_type(constant.shape, "a counter")
    if not isinstance(type_, ArrayType) or type_.shape or not type_.dtype.is_integer:
        return None
    return int(read_literal(constant.literal, type_, "a counter").numpy())


# ---- what XLA copies


def _list_copied(loop: _Loop) -> list[int]:
    """The numbers of the parts of the state that XLA copies in each turn."""
    return [n for n, output in enumerate(loop.root.operand_ids) if _is_copied(loop, n, output)]


def _is_copied(loop: _Loop, number: int, output: int) -> bool:
    made, element = _find_made(loop, output)
    if made.id in loop.parts:
        return loop.parts[made.id] != number
    if is_kernel(made):
        reads = {at for at, n in enumerate(made.operand_ids) if _is_part(loop, n, number)}
        over = {
            a.operand_index
            for a in made.output_operand_aliasing
            if list(a.output_shape_index) in ([element], [])
        }
        return bool(reads) and not reads & over
    return _reads_elsewhere(loop, made.id, number)


def _find_made(loop: _Loop, output: int) -> tuple[Any, int]:
    """(what computes a value of a turn, which of its results that is); a part of the state is itself."""
    made = loop.by_id[find_base(loop.by_id, output)]
    if made.opcode != b"get-tuple-element" or made.id in loop.parts:
        return made, 0
    return loop.by_id[made.operand_ids[0]], made.tuple_index


def _is_part(loop: _Loop, name: int, number: int) -> bool:
    return loop.parts.get(find_base(loop.by_id, name)) == number


def _reads_elsewhere(loop: _Loop, start: int, number: int) -> bool:
    """Does a fusion that ends in an instruction read a part of the state at other places than it writes?"""
    pending, seen = [(start, False)], set[tuple[int, bool]]()
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        seen.add(at)
        name, shifted = at
        made = loop.by_id[name]
        if name in loop.parts:
            if shifted and loop.parts[name] == number:
                return True
        elif made.opcode in FUSED:
            pending += ((o, shifted) for o in made.operand_ids)
        elif made.opcode in SHIFTED:
            pending += ((o, True) for o in made.operand_ids)
    return False


# ---- two turns


def _change(loop: _Loop, copied: Collection[int], turns: int) -> None:
    """The loop with a body of several turns, and those that are left over behind it."""
    if rest := loop.trips % turns:
        _add_last_turns(loop, rest)
    writer, root, meetings = _Writer(loop.body, b".turn"), loop.root, _list_meetings(loop.turn)
    computed = [n for n in copied if not _is_given(loop, root.operand_ids[n])]
    now: dict[int, int] = {}
    for _ in range(turns - 1):
        state = [now.get(o, o) for o in root.operand_ids]
        for number in computed:
            # XLA would compute the turn again in the next one.
            state[number] = writer.bar(state[number])
        given = {part: state[number] for part, number in loop.parts.items()}
        if meetings:
            last = meetings[-1].token
            given[_first_token(meetings)] = now.get(last, last)
        now = writer.repeat(loop.turn, given)
    state = [now.get(o, o) for o in root.operand_ids]
    counter = next(part for part, number in loop.parts.items() if number == loop.counter)
    # As one addition, by which XLA counts the turns.
    state[loop.counter] = writer.add_number(counter, turns * loop.step)
    root.operand_ids[:] = state
    instructions = [*(i for i in loop.body.instructions if i.id != root.id), *writer.made, root]
    set_instructions(loop.body, instructions)


def _add_last_turns(loop: _Loop, count: int) -> None:
    """Puts the last turns behind the loop, which tests as many earlier."""
    bound = _read_integer(loop.bound)
    assert bound is not None
    _write_integer(loop.bound, bound - count * loop.step)
    outer, node = loop.outer, loop.node
    writer = _Writer(outer, b".last")
    place = [i.id for i in outer.instructions].index(node.id)
    meetings = _list_meetings(loop.turn)
    before = _list_meetings(outer.instructions[:place])
    behind = _list_meetings(outer.instructions)[len(before) :]
    token = before[-1].token if before else None
    state = {n: writer.project(node, loop.by_id[part]) for part, n in loop.parts.items()}
    after: list[int] = []
    for _ in range(count):
        given = {part: state[n] for part, n in loop.parts.items()}
        if meetings and token is not None:
            given[_first_token(meetings)] = token
        now = writer.repeat(loop.turn, given, anew=True)
        token = now[meetings[-1].token] if meetings else None
        after = [now[o] for o in loop.root.operand_ids]
        state = dict(enumerate(after))
    if behind and token is not None:
        behind[0].kernel.operand_ids[behind[0].operand] = token
    whole = writer.collect(node, after)
    moved = {
        i.id: after[i.tuple_index]
        for i in outer.instructions
        if i.opcode == b"get-tuple-element" and list(i.operand_ids) == [node.id]
    }
    moved[node.id] = whole
    ordered = []
    for i in outer.instructions:
        if i.id in moved and i.id != node.id:
            continue
        i.operand_ids[:] = [moved.get(o, o) for o in i.operand_ids]
        ordered.append(i)
        if i.id == node.id:
            ordered += writer.made
    outer.root_id = moved.get(outer.root_id, outer.root_id)
    set_instructions(outer, ordered)


def _is_given(loop: _Loop, output: int) -> bool:
    """Is a part of the new state a kernel's result, or a part of the old one?"""
    made, _ = _find_made(loop, output)
    return made.id in loop.parts or is_kernel(made)


def _first_token(meetings: Sequence[_Meeting]) -> int:
    """The id of what the first of the kernels takes."""
    return int(meetings[0].kernel.operand_ids[meetings[0].operand])


@dataclass(frozen=True, slots=True)
class _Meeting:
    """A kernel whose blocks wait for each other.  operand: the place of the token that it takes.  token: the id of the
    one that it hands on."""

    kernel: Any
    operand: int
    token: int


def _list_meetings(instructions: Iterable[Any]) -> list[_Meeting]:
    """Such kernels, in the order in which they run one by one."""
    held, waiting, found = set[int](), dict[int, tuple[Any, int]](), list[_Meeting]()
    for i in instructions:
        if i.opcode == b"constant" and i.name.split(b".")[0] == b"token":
            held.add(i.id)
        elif is_kernel(i):
            taken = [at for at, o in enumerate(i.operand_ids) if o in held]
            if taken:
                waiting[i.id] = i, taken[0]
        elif i.opcode == b"get-tuple-element" and i.operand_ids[0] in waiting:
            kernel, operand = waiting[i.operand_ids[0]]
            if i.tuple_index == len(kernel.shape.tuple_shapes) - 1:
                held.add(i.id)
                found.append(_Meeting(kernel, operand, i.id))
    return found


class _Writer:
    """Writes instructions for a computation.  made: those, each after its operands.  suffix: ends their names."""

    def __init__(self, computation: Any, suffix: bytes) -> None:
        self.suffix = suffix
        self.by_id = {i.id: i for i in computation.instructions}
        self.free = 1 + max(self.by_id)
        self.made: list[Any] = []

    def put(self, made: Any, name: bytes) -> int:
        """The id that an instruction gets."""
        made.id, made.name = self.free, b"%s%s.%d" % (name, self.suffix, self.free & 0xFFFFFFFF)
        self.by_id[made.id] = made
        self.made.append(made)
        self.free += 1
        return int(made.id)

    def add(self, like: Any, opcode: bytes, operands: Sequence[int]) -> int:
        """An instruction of the type and the origin of another."""
        made = type(like)(opcode=opcode, shape=like.shape, metadata=like.metadata)
        made.operand_ids.extend(operands)
        return self.put(made, like.name)

    def bar(self, value: int) -> int:
        """A value behind a barrier."""
        return self.add(self.by_id[value], b"opt-barrier", [value])

    def project(self, loop: Any, part: Any) -> int:
        """A part of what a loop gives.  part: the same of its body's parameter."""
        made = self.add(part, b"get-tuple-element", [loop.id])
        self.by_id[made].tuple_index = part.tuple_index
        return made

    def collect(self, loop: Any, parts: Sequence[int]) -> int:
        """What a loop gives, of its parts."""
        return self.add(loop, b"tuple", parts)

    def add_number(self, value: int, number: int) -> int:
        """A scalar and a number added."""
        like = self.by_id[value]
        constant = self.add(like, b"constant", [])
        _write_integer(self.by_id[constant], number)
        return self.add(like, b"add", [value, constant])

    def repeat(
        self, turn: Sequence[Any], given: Mapping[int, int], *, anew: bool = False
    ) -> dict[int, int]:
        """What a turn computes, of other values, by the ids of the turn.  given: these values.

        What is the same then is not computed again, unless anew says that it is not there.
        """
        now = dict(given)
        for i in turn:
            operands = [now.get(o, o) for o in i.operand_ids]
            if i.id not in now and (anew or operands != list(i.operand_ids)):
                copy = type(i).FromString(i.SerializeToString())
                copy.operand_ids[:] = operands
                now[i.id] = self.put(copy, i.name)
        return now


def _write_integer(constant: Any, number: int) -> None:
    type_ = read_type(constant.shape, "a counter")
    assert isinstance(type_, ArrayType)
    literal = Literal.of(np.asarray(number, type_.dtype.numpy))
    constant.literal.CopyFrom(write_literal(literal))
