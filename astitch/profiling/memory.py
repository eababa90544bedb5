"""XLA's scheduled module, or a program of ours -> the device memory in use over one call.

Takes the order in which things run, hands on bytes at each of them.  A value takes memory from what makes it to the
last that reads it; views, and what is written over an operand, take none of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from astitch.hlo.schema import HloModuleProto
from astitch.profiling.report import Memory
from astitch.profiling.stitched import split_views
from astitch.profiling.xla_kernels import count_bytes
from astitch.program.steps import KernelStep, Program, Space

MOST_POINTS = 400
"""Of a curve; of neighbouring points the highest stays."""

VIEWS = frozenset("bitcast opt-barrier domain add-dependency while".split())
"""Opcodes whose result lies where their first operand does; a loop's state is one."""


@dataclass(slots=True, eq=False)
class _Buffer:
    """first, last: places at which it is in use.  is_argument: of the computation.  is_kept: not to be written over."""

    bytes: int
    first: int
    last: int
    is_argument: bool = False
    is_kept: bool = False


@dataclass(slots=True)
class _Timeline:
    """The buffers of one computation.  names: of what runs, in order.  inside: bytes of what each calls, meanwhile."""

    names: Sequence[str]
    is_entry: bool = True
    buffers: list[_Buffer] = field(default_factory=list)
    inside: dict[int, int] = field(default_factory=dict)

    def curve(self) -> list[int]:
        """Bytes at each place."""
        changes = [0] * (len(self.names) + 1)
        for buffer in self.buffers:
            changes[buffer.first] += buffer.bytes
            changes[buffer.last + 1] -= buffer.bytes
        found, now = [], 0
        for place in range(len(self.names)):
            now += changes[place]
            found.append(now + self.inside.get(place, 0))
        return found

    def sum_up(self) -> Memory:
        """The curve with few points, and where it is highest."""
        curve = self.curve()
        if not curve:
            return Memory()
        peak = max(range(len(curve)), key=lambda place: curve[place])
        width = -(-len(curve) // MOST_POINTS)
        points = (max(curve[at : at + width]) for at in range(0, len(curve), width))
        return Memory(tuple(points), self.names[peak], len(curve))


def trace_program(program: Program) -> Memory:
    """Of a program that CuPy launches: arguments, constants and results all the time, the others while in use."""
    names = [
        step.kernel.name if isinstance(step, KernelStep) else str(getattr(step, "name", "library"))
        for step in program.steps
    ]
    timeline = _Timeline(names)
    used: dict[str, list[int]] = {}
    for place, step in enumerate(program.steps):
        for views in split_views(step):
            for view in views:
                used.setdefault(view.buffer, []).append(place)
    for name, buffer in program.buffers.items():
        if buffer.space in (Space.PARAMETER, Space.CONSTANT, Space.OUTPUT):
            timeline.buffers.append(_Buffer(buffer.type.bytes, 0, len(names) - 1))
        elif name in used:
            timeline.buffers.append(_Buffer(buffer.type.bytes, used[name][0], used[name][-1]))
    return timeline.sum_up() if names else Memory()


def trace_module(module: bytes) -> Memory:
    """Of a serialized HloModuleProto, optimized and scheduled."""
    return _Reader(HloModuleProto.FromString(module)).read().sum_up()


class _Reader:
    """Reads the computations of a module in the order in which they run."""

    def __init__(self, proto: Any) -> None:
        self.proto = proto
        self.computations: Mapping[int, Any] = {c.id: c for c in proto.computations}
        self.orders: Mapping[int, Sequence[int]] = {
            s.computation_id: s.sequence.instruction_ids for s in proto.schedule.sequences
        }
        self.peaks: dict[int, int] = {}

    def read(self) -> _Timeline:
        """The whole call: arguments and results are there all the time, a donated one once."""
        timeline, results = self._walk(self.proto.entry_computation_id)
        end = len(timeline.names) - 1
        donated = {tuple(e.output_shape_index) for e in self.proto.input_output_alias.entries}
        for buffer in timeline.buffers:
            if buffer.is_argument:
                buffer.first, buffer.last = 0, end
        for number, buffer in enumerate(results):
            if not buffer.is_argument:
                # XLA's runtime makes room for results before the call begins.
                buffer.first, buffer.last = 0, end
                if {(), (number,)} & donated:
                    buffer.bytes = 0
        return timeline

    def _walk(self, number: int) -> tuple[_Timeline, list[_Buffer]]:
        """A computation, and the buffers of its result."""
        computation = self.computations[number]
        by_id = {i.id: i for i in computation.instructions}
        order = list(self.orders.get(number, by_id))
        last = {used: place for place, i in enumerate(order) for used in by_id[i].operand_ids}
        is_entry = number == self.proto.entry_computation_id
        timeline = _Timeline([by_id[i].name.decode() for i in order], is_entry)
        held: dict[int, list[list[_Buffer]]] = {}
        for place, i in enumerate(order):
            made = self._hold(
                by_id[i], [held.get(n, []) for n in by_id[i].operand_ids], place, timeline
            )
            held[i] = made
            for buffer in _flatten(made):
                buffer.last = max(buffer.last, last.get(i, place))
            timeline.inside[place] = self._count_inside(by_id[i])
        return timeline, list(_flatten(held.get(computation.root_id, [])))

    def _hold(
        self, instruction: Any, operands: list[list[list[_Buffer]]], place: int, timeline: _Timeline
    ) -> list[list[_Buffer]]:
        """The buffers of an instruction's result, by the elements of its tuple; one element where it is none."""
        opcode = instruction.opcode.decode()
        if opcode in VIEWS:
            return operands[0] if operands else []
        if opcode.endswith(
            "-start"
        ):  # its operands are read until it is done, which makes the result
            return [list(_flatten([buffer for held in operands for buffer in held]))]
        if opcode == "tuple":
            return [list(_flatten(held)) for held in operands]
        if opcode == "get-tuple-element":
            whole = operands[0] if operands else []
            return [whole[instruction.tuple_index]] if instruction.tuple_index < len(whole) else []
        is_argument = opcode == "parameter"
        is_kept = is_argument and timeline.is_entry
        shape = instruction.shape
        made = []
        for part in shape.tuple_shapes or [shape]:
            size = 0 if opcode == "constant" else count_bytes(part)
            over = None if is_argument else _find_dying(operands, size, place)
            if over is None:
                over = _Buffer(size, place, place, is_argument, is_kept)
                timeline.buffers.append(over)
            made.append([over])
        return made

    def _count_inside(self, instruction: Any) -> int:
        """Bytes of temporaries of the computations that an instruction runs: of a loop's body, a branch, a call."""
        if instruction.opcode not in (b"while", b"conditional", b"call"):
            return 0
        return max((self._peak_of(n) for n in instruction.called_computation_ids), default=0)

    def _peak_of(self, number: int) -> int:
        if number not in self.peaks:
            timeline, _ = self._walk(number)
            for buffer in timeline.buffers:
                if buffer.is_argument:  # its caller's, and written over where it can be
                    buffer.bytes = 0
            self.peaks[number] = max(timeline.curve(), default=0)
        return self.peaks[number]


def _flatten(elements: Sequence[Sequence[_Buffer]]) -> Iterator[_Buffer]:
    for buffers in elements:
        yield from buffers


def _find_dying(operands: list[list[list[_Buffer]]], size: int, place: int) -> _Buffer | None:
    """A temporary of that size that nothing reads later: XLA writes results over such operands."""
    for held in operands:
        for buffer in _flatten(held):
            if buffer.last == place and not buffer.is_kept and buffer.bytes == size > 0:
                return buffer
    return None
