"""XLA's module -> the instructions whose values lie in the host's memory: no kernel computes them.

`MoveToHost` and `MoveToDevice` bound such values.  Behind the hook XLA follows them from one to the other, through
slices, reshapes and the states of loops, and gives the buffers on the way to the host.  So what lies on the way stays
as it stands, as does the broadcast that such a buffer starts from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from astitch.graph.ir import IN_HOST
from astitch.hlo.shapes import shape_leaves

TO_HOST, TO_DEVICE = b"MoveToHost", b"MoveToDevice"

PLACED = b"annotate_device_placement"
"""What JAX writes; XLA makes one of the two above of it, mostly before the hook."""

InstructionKey = tuple[int, int]
"""The ids of a computation and of an instruction in it."""

_Leaf = tuple[int, int, tuple[int, ...]]
"""An array: its computation, its instruction, its place in the instruction's tuples."""

_SAME = frozenset(
    b"add-dependency bitcast copy dynamic-slice dynamic-update-slice reshape slice transpose".split()
)
"""What hands a buffer on, or a part of it, as its first operand."""

_FILLS = frozenset({b"broadcast", b"iota"})
"""What a buffer in the host's memory may start from."""

_STRUCTURE = frozenset(
    b"call conditional constant get-tuple-element opt-barrier parameter tuple while".split()
)
"""What astitch reads whatever its values are."""


def find_host_memory(module: Any) -> dict[InstructionKey, str]:
    """The instructions that take or give a value in the host's memory, each with the reason why it stays.

    module: an HloModuleProto.
    """
    starts = list(_find_starts(module))
    return _Flow(module).follow(starts) if starts else {}


def _find_starts(module: Any) -> Iterator[_Leaf]:
    shapes = module.host_program_shape
    given = list(shapes.parameters)
    for computation in module.computations:
        is_entry = computation.id == module.entry_computation_id
        for _, path in _find_outside(shapes.result) if is_entry else ():
            yield computation.id, computation.root_id, path
        for instruction in computation.instructions:
            if is_entry and instruction.opcode == b"parameter":
                for shape in given[instruction.parameter_number : instruction.parameter_number + 1]:
                    for _, path in _find_outside(shape):
                        yield computation.id, instruction.id, path
            if instruction.custom_call_target == TO_HOST:
                yield computation.id, instruction.id, ()
            elif instruction.custom_call_target == TO_DEVICE:
                yield computation.id, instruction.operand_ids[0], ()
            elif instruction.custom_call_target == PLACED:  # either side may be the host's
                yield computation.id, instruction.id, ()
                yield computation.id, instruction.operand_ids[0], ()
            for _, path in _find_outside(instruction.shape):
                yield computation.id, instruction.id, path


def _find_outside(shape: Any) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """The arrays of a shape that do not lie in the device's memory."""
    return (found for found in shape_leaves(shape) if found[0].layout.memory_space)


class _Flow:
    """Which arrays of a module share memory, through tuples, loops, branches and calls."""

    def __init__(self, module: Any) -> None:
        self._found: dict[InstructionKey, Any] = {}
        self._users: dict[InstructionKey, list[tuple[Any, int]]] = {}
        self._callers: dict[int, list[tuple[int, Any, int]]] = {}
        self._parameters: dict[int, dict[int, int]] = {}
        self._roots: dict[int, int] = {c.id: c.root_id for c in module.computations}
        for computation in module.computations:
            numbers = self._parameters[computation.id] = {}
            for instruction in computation.instructions:
                self._found[computation.id, instruction.id] = instruction
                if instruction.opcode == b"parameter":
                    numbers[instruction.parameter_number] = instruction.id
                for place, operand in enumerate(instruction.operand_ids):
                    users = self._users.setdefault((computation.id, operand), [])
                    users.append((instruction, place))
                for place, called in enumerate(instruction.called_computation_ids):
                    callers = self._callers.setdefault(called, [])
                    callers.append((computation.id, instruction, place))

    def follow(self, starts: list[_Leaf]) -> dict[InstructionKey, str]:
        """All that shares memory with the arrays, and what reads it."""
        kept: dict[InstructionKey, str] = {}
        seen, pending = set(starts), list(starts)
        while pending:
            leaf = pending.pop()
            if self._found[leaf[:2]].opcode in _FILLS:
                kept[leaf[:2]] = IN_HOST
                continue  # others may read it on the device: XLA makes it anew for the host
            self._keep(leaf, kept)
            for other in (*self._list_behind(leaf), *self._list_before(leaf)):
                if other not in seen and other[:2] in self._found:
                    seen.add(other)
                    pending.append(other)
        return kept

    def _keep(self, leaf: _Leaf, kept: dict[InstructionKey, str]) -> None:
        computation, number, _ = leaf
        opcode = self._found[computation, number].opcode
        if opcode in _SAME or opcode == b"custom-call":
            kept[computation, number] = IN_HOST
        for user, _ in self._users.get((computation, number), ()):
            if user.opcode not in _STRUCTURE:
                kept[computation, user.id] = IN_HOST

    def _list_behind(self, leaf: _Leaf) -> Iterator[_Leaf]:
        """The arrays that an array's readers make of its memory."""
        computation, number, path = leaf
        for user, place in self._users.get((computation, number), ()):
            if user.opcode == b"tuple":
                yield computation, user.id, (place, *path)
            elif user.opcode == b"get-tuple-element":
                if path[:1] == (user.tuple_index,):
                    yield computation, user.id, path[1:]
            elif user.opcode == b"while":
                yield computation, user.id, path
                yield from self._list_parameters(user.called_computation_ids, 0, path)
            elif user.opcode == b"conditional" and place:
                yield from self._list_parameters(
                    user.called_computation_ids[place - 1 : place], 0, path
                )
            elif user.opcode == b"call":
                yield from self._list_parameters(user.called_computation_ids, place, path)
            elif user.opcode == b"opt-barrier" or (
                user.opcode in _SAME and (not place or user.opcode == b"dynamic-update-slice")
            ):
                yield computation, user.id, path
        if self._roots[computation] == number:
            for caller, call, place in self._callers.get(computation, ()):
                if call.opcode in (b"conditional", b"call") or _is_body(call, place):
                    yield caller, call.id, path
                if _is_body(call, place):
                    yield from self._list_parameters(call.called_computation_ids, 0, path)

    def _list_before(self, leaf: _Leaf) -> Iterator[_Leaf]:
        """The arrays whose memory an array is made of."""
        computation, number, path = leaf
        instruction = self._found[computation, number]
        opcode, operands = instruction.opcode, instruction.operand_ids
        if opcode == b"tuple" and path:
            yield computation, operands[path[0]], path[1:]
        elif opcode == b"get-tuple-element":
            yield computation, operands[0], (instruction.tuple_index, *path)
        elif opcode in _SAME or opcode == b"opt-barrier":
            yield computation, operands[0], path
        elif opcode == b"while":
            yield computation, operands[0], path
            yield from self._list_roots(instruction.called_computation_ids[:1], path)
        elif opcode in (b"conditional", b"call"):
            yield from self._list_roots(instruction.called_computation_ids, path)
        elif opcode == b"parameter":
            for caller, call, place in self._callers.get(computation, ()):
                if call.opcode == b"while":
                    yield caller, call.operand_ids[0], path
                    yield from self._list_roots(call.called_computation_ids[:1], path)
                elif call.opcode == b"conditional":
                    yield caller, call.operand_ids[place + 1], path
                elif call.opcode == b"call":
                    yield caller, call.operand_ids[instruction.parameter_number], path

    def _list_parameters(self, called: Any, number: int, path: tuple[int, ...]) -> Iterator[_Leaf]:
        for id_ in called:
            parameter = self._parameters.get(id_, {}).get(number)
            if parameter is not None:
                yield id_, parameter, path

    def _list_roots(self, called: Any, path: tuple[int, ...]) -> Iterator[_Leaf]:
        for id_ in called:
            if id_ in self._roots:
                yield id_, self._roots[id_], path


def _is_body(call: Any, place: int) -> bool:
    """XLA stores a loop's body first."""
    return bool(call.opcode == b"while" and place == 0)
