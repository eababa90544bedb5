"""Whether a module may be read: its ids are unique, its calls end, and it is small enough with all calls unfolded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from astitch.errors import MalformedHlo
from astitch.hlo.schema import decode
from astitch.hlo.shapes import WRITE_AGAIN, where_of

MOST_VALUES = 1 << 20
"""The most arrays that the instructions of a module may read and give; each call counts as a copy of what it calls.
The largest training steps have some hundred times fewer.  Reading them takes some 1 KB of memory each."""


MOST_NESTED = 50
"""Regions within regions; stages go into them by recursion."""


# Opcodes that the proto spells otherwise than astitch.
_PASSING_ON = frozenset((b"tuple", b"get-tuple-element", b"copy", b"call", b"fusion"))


def check_ids(module: Any, name: str) -> None:
    """Each computation of the module and each instruction of a computation has an id of its own."""
    computations: set[int] = set()
    for computation in module.computations:
        if computation.id in computations:
            raise MalformedHlo(
                f"HLO module {name}: there is a second computation with id {computation.id}, "
                f"{decode(computation.name)}; {WRITE_AGAIN}"
            )
        computations.add(computation.id)
        instructions: set[int] = set()
        for instruction in computation.instructions:
            if instruction.id in instructions:
                raise MalformedHlo(
                    f"{where_of(computation, instruction)}, field id: there is a second instruction "
                    f"with id {instruction.id}; {WRITE_AGAIN}"
                )
            instructions.add(instruction.id)


def check_calls(entry: Any, computations: Mapping[int, Any]) -> None:
    """No computation calls itself, and with each call replaced by what it calls the entry stays within MOST_VALUES
    and MOST_NESTED.  Each computation is looked at once, so this takes time linear in the module's size."""
    known: dict[int, tuple[int, int]] = {}  # id: values, regions within regions
    path = [_Unfolding(entry, computations)]
    open_ = {entry.id}
    while path:
        caller = path[-1]
        if not caller.calls:
            known[caller.computation.id] = caller.values, caller.nesting
            open_.discard(path.pop().computation.id)
            continue
        callee, is_region = caller.calls[-1]
        if callee in open_:
            raise MalformedHlo(
                f"HLO computation {decode(computations[callee].name)} calls itself; HLO has no "
                "recursion"
            )
        if callee not in known:
            path.append(_Unfolding(computations[callee], computations))
            open_.add(callee)
            continue
        caller.calls.pop()
        caller.values += known[callee][0]
        caller.nesting = max(caller.nesting, known[callee][1] + is_region)
        where = f"HLO computation {decode(caller.computation.name)}"
        if caller.values > MOST_VALUES:
            raise MalformedHlo(
                f"{where}: with its calls unfolded it has more than {MOST_VALUES} values, the most "
                "that astitch reads\n  call less, or run the program through XLA"
            )
        if caller.nesting > MOST_NESTED:
            raise MalformedHlo(
                f"{where}: its regions nest deeper than {MOST_NESTED}, the most that astitch reads\n"
                "  flatten the loops and conditionals, or run the program through XLA"
            )


class _Unfolding:
    """A computation whose size is being found.  calls: those not yet added to it: (id, is it a region?)."""

    def __init__(self, computation: Any, computations: Mapping[int, Any]) -> None:
        self.computation = computation
        self.values = _count_values(computation)
        self.nesting = 0
        self.calls = [c for c in _calls_of(computation) if c[0] in computations]


def _calls_of(computation: Any) -> Iterator[tuple[int, bool]]:
    """(id of a called computation, is it a region?) in order."""
    for instruction in computation.instructions:
        is_region = instruction.opcode not in (b"call", b"fusion")
        for id_ in instruction.called_computation_ids:
            yield id_, is_region


def _count_values(computation: Any) -> int:
    """How many arrays a computation's instructions give, and how many they read.  Arrays that are just passed on do not
    count."""
    given = {i.id: _count_leaves(i.shape) for i in computation.instructions}
    count = sum(given.values()) + len(given)
    for instruction in computation.instructions:
        if instruction.opcode not in _PASSING_ON:
            count += sum(given.get(id_, 0) for id_ in instruction.operand_ids)
    return count


def _count_leaves(shape: Any) -> int:
    """The arrays of a shape; protobuf reads none nested deeper than 100."""
    return sum(map(_count_leaves, shape.tuple_shapes)) if shape.tuple_shapes else 1
