"""Which instructions of XLA's module come from functions of astitch.jit: marks that JAX writes and XLA keeps.

Takes an HloModuleProto, hands on what is to stay as it is.  A mark is a frontend attribute of an instruction.  It
survives JAX's transformations; some instructions lose it, or never had one: broadcasts, loops, what XLA rewrites.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from astitch.graph.collectives import COLLECTIVES
from astitch.hlo.host_memory import InstructionKey
from astitch.hlo.schema import decode

MARK = "astitch"
"""The frontend attribute's name; its value says how the function is to be stitched."""

_FILLED = frozenset(
    b"bitcast broadcast concatenate convert copy iota opt-barrier pad reshape reverse select slice transpose".split()
)
"""What XLA moves, repeats or makes anew without a mark, and JAX's barrier in front of what is computed again."""

_STRUCTURE = frozenset(b"parameter constant tuple get-tuple-element".split())


def mark_of(instruction: Any) -> str:
    """The mark's value; the empty string without one."""
    for entry in instruction.frontend_attributes.map:
        if entry.key == MARK.encode():
            return decode(entry.value)
    return ""


def read_marks(module: Any) -> frozenset[str]:
    """The values of the marks in a module."""
    return frozenset(
        filter(None, (mark_of(i) for c in module.computations for i in c.instructions))
    )


def find_unmarked(module: Any) -> frozenset[InstructionKey]:
    """The instructions that no function of astitch.jit holds, with those between marked ones left out.

    A loop or conditional is marked if something in it is.  What other ops call is a part of them.
    """
    computations = {c.id: c for c in module.computations}
    marked = {c.id: _Marked(c) for c in module.computations}
    unmarked: set[InstructionKey] = set()
    of_others = {
        number
        for computation in computations.values()
        for instruction in computation.instructions
        if instruction.opcode not in _HOLDERS
        for number in instruction.called_computation_ids
    }
    for computation in computations.values():
        if computation.id in of_others:
            continue
        found = marked[computation.id]
        for instruction in computation.instructions:
            called = instruction.called_computation_ids
            if instruction.opcode in _HOLDERS and any(
                _holds_mark(i, computations, marked) for i in called
            ):
                found.ids.add(instruction.id)
        found.fill()
        unmarked |= {
            (computation.id, i.id)
            for i in computation.instructions
            if i.id not in found.ids and i.opcode not in _STRUCTURE
        }
    return frozenset(unmarked)


_HOLDERS = frozenset({b"while", b"conditional", b"call"})


class _Marked:
    """The marked instructions of one computation."""

    def __init__(self, computation: Any) -> None:
        self._instructions = list(computation.instructions)
        self.ids = {i.id for i in self._instructions if mark_of(i)}

    def fill(self) -> None:
        """Takes in what only marked ops read, or what lies between two of them."""
        users: dict[int, list[Any]] = {i.id: [] for i in self._instructions}
        for instruction in self._instructions:
            for operand in set(instruction.operand_ids):
                users.setdefault(operand, []).append(instruction)
        sources = {i.id for i in self._instructions if i.opcode in _STRUCTURE}
        for instruction in reversed(self._instructions):
            if self._is_hole(instruction):
                read = self._list_readers(instruction, users)
                if read and all(user.id in self.ids for user in read):
                    self.ids.add(instruction.id)
        for instruction in self._instructions:
            if instruction.id in self.ids or instruction.opcode.decode() in COLLECTIVES:
                continue
            operands = [o for o in instruction.operand_ids if o not in sources]
            between = operands and all(o in self.ids for o in operands)
            if between and any(user.id in self.ids for user in users[instruction.id]):
                self.ids.add(instruction.id)

    def _list_readers(self, instruction: Any, users: Mapping[int, list[Any]]) -> list[Any]:
        """What reads an instruction's results."""
        found: list[Any] = []
        for user in users[instruction.id]:
            is_part = user.opcode == b"get-tuple-element"
            found += self._list_readers(user, users) if is_part else [user]
        return found

    def _is_hole(self, instruction: Any) -> bool:
        return instruction.id not in self.ids and instruction.opcode in _FILLED


def _holds_mark(
    number: int, computations: Mapping[int, Any], marked: Mapping[int, _Marked]
) -> bool:
    return any(marked[i].ids for i in _reach(number, computations))


def _reach(number: int, computations: Mapping[int, Any]) -> Iterator[int]:
    """A computation and all that it calls."""
    pending, seen = [number], set[int]()
    while pending:
        current = pending.pop()
        if current in seen or current not in computations:
            continue
        seen.add(current)
        yield current
        for instruction in computations[current].instructions:
            pending += instruction.called_computation_ids
