"""Instructions that astitch hands on to XLA as they stand: takes the messages of a module, hands on OpaqueAttrs.

Some instructions have an opcode without a row in graph/ops, an element type that no kernel has, or a computation with
dynamic shapes.  Each becomes one op whose attributes are the instruction itself, with the computations that it calls.
Values of dynamic shape stay inside such an op: what they connect is put into a computation of its own first
(outline_dynamic_shapes).
"""

from __future__ import annotations

import enum
import functools
import heapq
import importlib.util
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from astitch.errors import MalformedHlo, UnsupportedOp
from astitch.graph.collectives import COLLECTIVES, COMBINED
from astitch.graph.ir import OpaqueAttrs, Tree
from astitch.graph.ops import OPS
from astitch.graph.ops.other import HINT, LATENCY
from astitch.hlo import schema
from astitch.hlo.device_groups import read_groups
from astitch.hlo.host_memory import InstructionKey, find_host_memory
from astitch.hlo.schema import decode
from astitch.hlo.shapes import where_of
from astitch.hlo.stablehlo import ends_process, find_foreign, to_stablehlo

_WITHOUT_ROW = frozenset(
    "add-dependency after-all bitcast domain fusion get-dimension-size opt-barrier scan "
    "set-dimension-size tuple".split()
)
"""What astitch reads beside the ops of its table: each becomes none, one or several nodes."""


def is_read(opcode: str) -> bool:
    """Whether astitch reads instructions of the opcode, in HLO's spelling."""
    return opcode in _WITHOUT_ROW or (opcode in OPS and opcode != "opaque")


SPEAKS = frozenset(
    "all-gather all-gather-done all-gather-start all-reduce all-reduce-done all-reduce-start all-to-all async-done "
    "async-start async-update collective-broadcast collective-permute collective-permute-done "
    "collective-permute-start copy-done copy-start infeed outfeed partition-id ragged-all-to-all recv recv-done "
    "reduce-scatter replica-id send send-done".split()
)
"""Opcodes that speak to the host or to other devices, or that only mean something beside another.  No pass may leave
them out, repeat them or move them."""

DEVICE_NUMBERS = frozenset({"partition-id", "replica-id"})
"""Opcodes that only say which device this is."""


class Origin(enum.Enum):
    """Who wrote a module: anyone, this process, or XLA's compiler."""

    ANYONE = enum.auto()
    PROCESS = enum.auto()  # JAX, TensorFlow or hlo/export.py in this process
    COMPILER = (
        enum.auto()
    )  # XLA while it compiles; it goes back there, effects and communication with it


_OPCODE = re.compile(rb"[a-z0-9-]{1,64}")


def discard_unread_fields(module: Any) -> None:
    """Clears the fields of an HloModuleProto that astitch has no name for, except in instructions that it hands on."""
    kept = [
        (instruction, _copy(instruction))
        for computation in module.computations
        for instruction in computation.instructions
        if not is_read(decode(instruction.opcode))
    ]
    module.DiscardUnknownFields()
    for instruction, whole in kept:
        instruction.CopyFrom(whole)


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


# ---- one instruction ---------------------------------------------------------------------------------------------


def carry_instruction(
    instruction: Any,
    operand_shapes: Sequence[Any],
    computations: Mapping[int, Any],
    reason: str,
    where: str,
    *,
    origin: Origin,
    is_ordered: bool = False,
    waits: int = 0,
) -> OpaqueAttrs:
    """The attributes of the op that an instruction becomes.

    instruction: an HloInstructionProto.  operand_shapes: ShapeProtos.  computations: of the module, by id.  reason: why
    no kernel computes it.  is_ordered: nobody may leave it out, repeat it or merge it.  waits: see OpaqueAttrs.
    Raises UnsupportedOp where JAX, which runs it, is missing or does not take it.  Raises it
    too for what speaks to the host or to other devices, except in a module of the compiler's; MalformedHlo for calls
    that never end or lead nowhere, and where XLA ends the process that reads the instruction.
    """
    kept = _strip(instruction)
    if not _OPCODE.fullmatch(instruction.opcode):
        raise MalformedHlo(f"{where}: no opcode of HLO's is spelled {decode(instruction.opcode)!r}")
    found: dict[int, Any] = {}
    for number in instruction.called_computation_ids:
        _collect(number, computations, found, where)
    inside = [instruction, *(i for c in found.values() for i in c.instructions)]
    if origin is not Origin.COMPILER:
        for inner in inside:
            refuse_effects(inner, where)
    numbers = {id_: number for number, id_ in enumerate(found)}
    kept.called_computation_ids[:] = [numbers[i] for i in instruction.called_computation_ids]
    called = [_rename(computation, numbers) for computation in found.values()]
    attrs = OpaqueAttrs(
        decode(instruction.opcode),
        reason,
        bytes(kept.SerializeToString(deterministic=True)),
        tuple(tree_of(shape) for shape in operand_shapes),
        tuple(called),
        is_ordered or any(map(_may_have_effect, inside)),
        any(decode(inner.opcode) in COLLECTIVES for inner in inside[1:]),
        waits,
        find_kin(kept, list(found.values())),
    )
    if origin is not Origin.COMPILER:
        trusted = origin is Origin.PROCESS
        _refuse_what_xla_does_not_take(attrs, operand_shapes, where, trusted=trusted)
    return attrs


_CHANNEL_ID = 26
"""The field of HloInstructionProto by which each collective has a number of its own."""


def find_kin(instruction: Any, called: Sequence[Any]) -> str:
    """What two collectives must have in common so that XLA's combiners make one of them; "" for other instructions.

    These are opcode, reduction with its element type, and the groups of devices.  instruction: stripped.  called: the
    computations that it calls.  Fields without a name in hlo/schema.py say which devices take part.
    """
    opcode = decode(instruction.opcode)
    if opcode not in COMBINED or schema.ELEMENT_TYPES.get(instruction.shape.element_type) is None:
        return ""
    reductions = [[decode(i.opcode) for i in computation.instructions] for computation in called]
    if any(len(opcodes) != _LEAST_REDUCTION for opcodes in reductions):
        return ""
    # XLA sends arrays of several types together, unless it adds them up.
    reduced = instruction.shape.element_type if reductions else 0
    fields = sorted(map(_show_field, UnknownFieldSet(instruction)))
    return repr((opcode, reduced, reductions, fields))


def _show_field(field: Any) -> str:
    """A field without a name, the same for all spellings of a meaning that XLA's combiners know."""
    number, data = field.field_number, field.data
    if number == _CHANNEL_ID:
        return f"{number}"
    groups = read_groups(number, data) if isinstance(data, bytes) else None
    return f"groups {groups}" if groups else f"{number} {_plain(data)}"


_LEAST_REDUCTION = 3
"""Two parameters and an op: XLA combines no other reductions."""


def _plain(data: Any) -> Any:
    """A field's value; of a group of fields their values."""
    if isinstance(data, UnknownFieldSet):
        return [(u.field_number, _plain(u.data)) for u in data]
    return data


def _may_have_effect(instruction: Any) -> bool:
    opcode = decode(instruction.opcode)
    orders = instruction.opcode in _ORDERS
    return orders or opcode == "custom-call" or (opcode in SPEAKS and opcode not in DEVICE_NUMBERS)


def refuse_effects(instruction: Any, where: str) -> None:
    """Raises UnsupportedOp for what does more than compute its result: nothing says when, or in which process."""
    opcode = decode(instruction.opcode)
    if opcode in SPEAKS:
        raise UnsupportedOp(
            f"{where}: no entry for '{opcode}' in astitch/graph/ops\n  rewrite the program "
            "without it, or run it through XLA"
        )
    if opcode != "custom-call":
        return
    target = decode(instruction.custom_call_target)
    if "python" in target and "callback" in target:
        raise UnsupportedOp(
            f"{where}: custom-call to {target!r} calls a Python function (jax.pure_callback, "
            "io_callback, jax.debug.print ...), which is not in the module\n  take it out of the "
            "function, or run the function through XLA"
        )
    if instruction.custom_call_has_side_effect:
        raise UnsupportedOp(
            f"{where}: custom-call to {target!r} has a side effect, which astitch might leave out or "
            "repeat\n  take it out of the function, or run the function through XLA"
        )


def why_carried(instruction: Any) -> str:
    """Why an instruction of the compiler's module stays as it is, though astitch knows its opcode; nothing: "".

    It has an effect or orders effects, or remarks to passes of XLA's that are still to come.
    """
    if instruction.opcode in _ORDERS:
        return "it orders effects"
    opcode, target = decode(instruction.opcode), decode(instruction.custom_call_target)
    calls_host = "python" in target and "callback" in target
    if opcode == "custom-call" and (calls_host or instruction.custom_call_has_side_effect):
        return f"a call of {target!r} with effects"
    keys = {decode(entry.key) for entry in instruction.frontend_attributes.map}
    remarks = keys - _OF_OURS - _OF_PARTITIONER
    if decode(LATENCY) in keys:  # what tells its time is of a module with kernels
        remarks.discard(decode(HINT))
    if remarks and opcode not in _STRUCTURE:
        return f"remarks to XLA ({', '.join(sorted(remarks))})"
    return ""


_OF_PARTITIONER = frozenset({"num_batch_dims", "xla.sdy.sharding_rule"})
"""Remarks to a pass of XLA's that has run when a module comes to astitch."""

_OF_OURS = frozenset({"astitch", decode(LATENCY)})
_STRUCTURE = frozenset({"parameter", "constant", "tuple", "get-tuple-element"})


def asks_accuracy(instruction: Any) -> bool:
    """Does an instruction say how exact it must be?  Kernels have one accuracy for each function."""
    wanted = instruction.result_accuracy
    return bool(wanted.mode) or wanted.HasField("tolerance")


_ORDERS = frozenset({b"after-all", b"add-dependency"})


def find_ordered(module: Any) -> dict[InstructionKey, str]:
    """The instructions of the compiler's module whose place is fixed by more than their operands, with the reason.

    Control dependencies are between them, or their values lie in the host's memory.  module: an HloModuleProto.
    Raises UnsupportedOp where a control dependency leads to what is no op.
    """
    found = find_host_memory(module)
    for computation in module.computations:
        opcodes = {i.id: decode(i.opcode) for i in computation.instructions}
        for instruction in computation.instructions:
            before = instruction.control_predecessor_ids
            if before and opcodes[instruction.id] in _STRUCTURE:
                where = where_of(computation, instruction)
                raise UnsupportedOp(f"{where}: it has control dependencies and computes nothing")
            ends = [n for n in before if opcodes.get(n) not in (*_STRUCTURE, *_HOLDERS)]
            for number in (instruction.id, *ends) if before else ():
                found[computation.id, number] = "it has control dependencies"
    return found


_HOLDERS = ("while", "conditional", "call")
"""What others may wait for though astitch reads what is in it."""


def _strip(instruction: Any) -> Any:
    """The instruction without what names others or says where it came from."""
    kept = _copy(instruction)
    for field in ("id", "name", "metadata", "operand_ids", "control_predecessor_ids"):
        kept.ClearField(field)
    return kept


def _collect(
    number: int, computations: Mapping[int, Any], found: dict[int, Any], where: str
) -> None:
    """A computation and all that it calls, callees first."""
    opened: set[int] = set()
    stack = [number]
    while stack:
        id_ = stack[-1]
        if id_ in found:
            stack.pop()
            continue
        if id_ not in computations:
            raise MalformedHlo(
                f"{where}: it calls computation id {id_}, which the module does not have"
            )
        called = {
            i for inner in computations[id_].instructions for i in inner.called_computation_ids
        }
        missing = sorted(called - found.keys())
        if not missing:
            found[id_] = computations[id_]
        elif id_ in opened:
            raise MalformedHlo(
                f"{where}: a computation that it calls calls itself; HLO has no recursion"
            )
        opened.add(id_)
        stack += missing


def tree_of(shape: Any) -> Tree:
    """Of what arrays a ShapeProto is made."""
    if schema.ELEMENT_TYPES.get(shape.element_type) == "tuple":
        return tuple(tree_of(element) for element in shape.tuple_shapes)
    return None


def _refuse_what_xla_does_not_take(
    attrs: OpaqueAttrs, operand_shapes: Sequence[Any], where: str, *, trusted: bool
) -> None:
    """XLA gets our modules as StableHLO, into which not every instruction of HLO's goes back."""
    if importlib.util.find_spec("jax") is None:
        raise UnsupportedOp(
            f"{where}: only XLA computes it: {attrs.reason}\n  install astitch[jax]"
        )
    module = _write_module(attrs, tuple(bytes(s.SerializeToString()) for s in operand_shapes))
    if not trusted and _ends_process(module):
        raise MalformedHlo(
            f"{where}, field opcode: XLA ends the process that reads this {attrs.opcode}; the dump is "
            "damaged, write it again"
        )
    if refusal := _try_stablehlo(module):
        raise UnsupportedOp(
            f"{where}: only XLA computes it ({attrs.reason}), and it does not become StableHLO: {refusal}\n"
            "  run the whole program through XLA"
        )


@functools.lru_cache(maxsize=1024)
def _ends_process(module: bytes) -> bool:
    return ends_process(module)


@functools.lru_cache(maxsize=1024)
def _try_stablehlo(module: bytes) -> str:
    """XLA's words where a module does not become StableHLO; else the empty string."""
    try:
        foreign = find_foreign(to_stablehlo(module))
    except (RuntimeError, ValueError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]
    return f"it is {foreign}" if foreign else ""


@functools.lru_cache(maxsize=1024)
def _write_module(attrs: OpaqueAttrs, operand_shapes: tuple[bytes, ...]) -> bytes:
    """A serialized HloModuleProto of the one instruction."""
    module = schema.HloModuleProto(name=b"opaque", entry_computation_name=b"main")
    take_id = itertools.count(1).__next__
    called = add_computations(attrs, take_id, module.computations)
    entry = schema.HloComputationProto(name=b"main", id=take_id())
    for number, data in enumerate(operand_shapes):
        shape = schema.ShapeProto.FromString(data)
        name = f"operand.{number}".encode()
        entry.instructions.add(
            id=take_id(), name=name, opcode=b"parameter", shape=shape, parameter_number=number
        )
        entry.program_shape.parameters.append(shape)
        entry.program_shape.parameter_names.append(name)
    operands = [i.id for i in entry.instructions]
    instruction = entry.instructions.add()
    instruction.CopyFrom(restore_instruction(attrs, called))
    instruction.id, instruction.name = take_id(), b"result"
    instruction.operand_ids.extend(operands)
    entry.root_id = instruction.id
    entry.program_shape.result.CopyFrom(instruction.shape)
    module.computations.append(entry)
    module.entry_computation_id = entry.id
    module.host_program_shape.CopyFrom(entry.program_shape)
    return bytes(module.SerializeToString())


# ---- back into a module ------------------------------------------------------------------------------------------


def restore_instruction(attrs: OpaqueAttrs, called: Sequence[int]) -> Any:
    """The instruction without id, name and operands.  called: the ids of the computations that it carries."""
    instruction = schema.HloInstructionProto.FromString(attrs.instruction)
    instruction.called_computation_ids[:] = [called[i] for i in instruction.called_computation_ids]
    return instruction


def add_computations(
    attrs: OpaqueAttrs, take_id: Callable[[], int], computations: Any
) -> list[int]:
    """Appends the computations that the op carries, under ids of `take_id`; these, in their order.

    Their names are made unique by these ids.
    """
    added: list[int] = []
    for data in attrs.computations:
        computation = schema.HloComputationProto.FromString(data)
        computation.id = take_id()
        computation.name = b"carried.%d" % computation.id
        for instruction in computation.instructions:
            instruction.called_computation_ids[:] = [
                added[i] for i in instruction.called_computation_ids
            ]
        _renumber(computation, take_id)
        computations.append(computation)
        added.append(computation.id)
    return added


def _rename(computation: Any, numbers: Mapping[int, int]) -> bytes:
    """A computation by which equal ones are known: ids and names say nothing but the order.

    numbers: of the computations, by their ids in the module.
    """
    copy = _copy(computation)
    copy.id = numbers[computation.id]
    copy.name = b"carried.%d" % copy.id
    for instruction in copy.instructions:
        instruction.ClearField("metadata")
        called = [numbers[i] for i in instruction.called_computation_ids]
        instruction.called_computation_ids[:] = called
    _renumber(copy, itertools.count(1).__next__)
    return bytes(copy.SerializeToString(deterministic=True))


def _renumber(computation: Any, take_id: Callable[[], int]) -> None:
    """Gives the instructions ids of `take_id`, and names by them."""
    numbers = {instruction.id: take_id() for instruction in computation.instructions}
    for instruction in computation.instructions:
        instruction.id = numbers[instruction.id]
        instruction.name = b"%s.carried.%d" % (instruction.opcode, instruction.id)
        for field in ("operand_ids", "control_predecessor_ids"):
            own = getattr(instruction, field)
            own[:] = [numbers.get(i, 0) for i in own]
    computation.root_id = numbers.get(computation.root_id, 0)
    parameters = [i for i in computation.instructions if i.opcode == b"parameter"]
    parameters.sort(key=lambda i: i.parameter_number)
    computation.program_shape.parameter_names[:] = [i.name for i in parameters]


# ---- dynamic shapes ----------------------------------------------------------------------------------------------


def is_dynamic(shape: Any) -> bool:
    """Has an array of the shape a dimension whose extent is only known at run time, below a bound?"""
    return any(shape.is_dynamic_dimension) or any(map(is_dynamic, shape.tuple_shapes))


def outline_dynamic_shapes(module: Any) -> dict[int, Any]:
    """Puts what values of dynamic shape connect into computations of their own, each called by one `call`.

    module: an HloModuleProto, which is changed.  Returns the computations that were made, by id; what such a call
    takes and gives is static.  A computation that takes or gives a dynamic shape itself stays as it is, as does one
    that is damaged.
    """
    made: dict[int, Any] = {}
    numbers = itertools.count(1 + max((c.id for c in module.computations), default=0))
    for computation in module.computations:
        if any(is_dynamic(i.shape) for i in computation.instructions):
            groups = _find_groups(computation.instructions, computation.root_id)
            if groups:
                _outline(computation, groups, numbers, made)
    return made


def _find_groups(instructions: Sequence[Any], root: int) -> list[list[int]]:
    """The places of the instructions that must stay together, in the order of the instructions; none where a
    parameter or the root is dynamic."""
    place = {instruction.id: n for n, instruction in enumerate(instructions)}
    reads: list[list[int]] = []
    for number, instruction in enumerate(instructions):
        operands = [place.get(id_, number) for id_ in instruction.operand_ids]
        outside = instruction.opcode == b"parameter" or instruction.id == root
        if any(o >= number for o in operands) or (outside and is_dynamic(instruction.shape)):
            return []
        reads.append(operands)
    if len(place) != len(instructions) or root not in place:
        return []
    dynamic = [is_dynamic(instruction.shape) for instruction in instructions]
    group = list(range(len(instructions)))

    def find(number: int) -> int:
        while group[number] != number:
            group[number] = group[group[number]]
            number = group[number]
        return number

    def join(numbers: Iterable[int]) -> None:
        first, *others = sorted({find(n) for n in numbers})
        for other in others:
            group[other] = first

    seeds = set()
    for number, operands in enumerate(reads):
        joined = [o for o in operands if dynamic[o]]
        if joined or dynamic[number]:
            seeds.add(number)
            join([number, *joined])
    # One call must not wait for what waits for it: whatever lies between its parts belongs to it.
    for cycle in _find_cycles(reads, [find(n) for n in range(len(reads))]):
        join(cycle)
    members: dict[int, list[int]] = {}
    for number in range(len(reads)):
        members.setdefault(find(number), []).append(number)
    roots = {find(number) for number in seeds}
    return [numbers for first, numbers in members.items() if first in roots]


def _find_cycles(reads: Sequence[Sequence[int]], group: Sequence[int]) -> list[list[int]]:
    """The sets of two and more groups that wait for each other, directly or through others (Kosaraju)."""
    before: dict[int, set[int]] = {}
    after: dict[int, set[int]] = {}
    for number, operands in enumerate(reads):
        mine = before.setdefault(group[number], set())
        mine.update(group[o] for o in operands if group[o] != group[number])
    for number, others in before.items():
        for other in others:
            after.setdefault(other, set()).add(number)
    seen: set[int] = set()
    finished = [number for start in before for number in _visit(start, before, seen)]
    seen = set()
    found = [_visit(start, after, seen) for start in reversed(finished)]
    return [cycle for cycle in found if len(cycle) > 1]


def _visit(start: int, edges: Mapping[int, Iterable[int]], seen: set[int]) -> list[int]:
    """What can be reached from `start` and was not seen before, each after what is reached through it."""
    left: list[int] = []
    stack = [] if start in seen else [(start, iter(edges.get(start, ())))]
    seen.add(start)
    while stack:
        number, rest = stack[-1]
        following = next((n for n in rest if n not in seen), None)
        if following is None:
            left.append(number)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(edges.get(following, ()))))
    return left


def _outline(
    computation: Any, groups: Sequence[Sequence[int]], numbers: Iterator[int], made: dict[int, Any]
) -> None:
    """Puts each group into a computation of its own.  numbers: the ids of these."""
    instructions = list(computation.instructions)
    ids = itertools.count(1 + max((i.id for i in instructions), default=0))
    inside = {number for group in groups for number in group}
    # What stands for an instruction: itself, or the call of its group and what takes its results apart.
    units: dict[int, list[Any]] = {n: [i] for n, i in enumerate(instructions) if n not in inside}
    for group in groups:
        taken, given = _edges(instructions, group, computation.root_id)
        if given:  # else nobody reads it
            number = next(numbers)
            made[number] = _make_computation(number, instructions, group, taken, given, ids)
            units[group[0]] = _make_call(made[number], instructions, group, taken, given, ids)
    order = _sort_units(units)
    del computation.instructions[:]
    computation.instructions.extend(order)


def _edges(
    instructions: Sequence[Any], group: Sequence[int], root: int
) -> tuple[list[Any], list[Any]]:
    """The instructions outside of the group that it reads, and its own that others read."""
    own = {instructions[number].id for number in group}
    by_id = {instruction.id: instruction for instruction in instructions}
    taken = dict.fromkeys(o for n in group for o in instructions[n].operand_ids if o not in own)
    read = {o for i in instructions if i.id not in own for o in i.operand_ids} | {root}
    return [by_id[id_] for id_ in taken], [
        instructions[n] for n in group if instructions[n].id in read
    ]


def _tuple_shape(instructions: Sequence[Any]) -> Any:
    shape = schema.ShapeProto(element_type=_TUPLE)
    shape.tuple_shapes.extend(i.shape for i in instructions)
    return shape


_TUPLE = next(number for number, name in schema.ELEMENT_TYPES.items() if name == "tuple")


def _make_computation(
    number: int,
    instructions: Sequence[Any],
    group: Sequence[int],
    taken: Sequence[Any],
    given: Sequence[Any],
    ids: Iterator[int],
) -> Any:
    """The group, its inputs as parameters, its results as the root."""
    made = schema.HloComputationProto(name=b"dynamic_shapes.%d" % number, id=number)
    for index, instruction in enumerate(taken):
        name = b"operand.%d" % index
        made.instructions.add(
            id=instruction.id,
            name=name,
            opcode=b"parameter",
            shape=instruction.shape,
            parameter_number=index,
        )
        made.program_shape.parameters.append(instruction.shape)
        made.program_shape.parameter_names.append(name)
    made.instructions.extend(instructions[n] for n in group)
    if len(given) == 1:
        made.root_id = given[0].id
        made.program_shape.result.CopyFrom(given[0].shape)
        return made
    root = made.instructions.add(id=next(ids), name=b"results", opcode=b"tuple")
    root.shape.CopyFrom(_tuple_shape(given))
    root.operand_ids.extend(i.id for i in given)
    made.root_id = root.id
    made.program_shape.result.CopyFrom(root.shape)
    return made


def _make_call(
    made: Any,
    instructions: Sequence[Any],
    group: Sequence[int],
    taken: Sequence[Any],
    given: Sequence[Any],
    ids: Iterator[int],
) -> list[Any]:
    """The call of a group, and its results under the ids that they had."""
    first = instructions[group[0]]
    call = schema.HloInstructionProto(
        name=first.name, opcode=b"call", called_computation_ids=[made.id]
    )
    call.metadata.CopyFrom(first.metadata)
    call.operand_ids.extend(i.id for i in taken)
    call.shape.CopyFrom(made.program_shape.result)
    if len(given) == 1:
        call.id = given[0].id
        return [call]
    call.id = next(ids)
    made_of = [call]
    for index, instruction in enumerate(given):
        part = schema.HloInstructionProto(
            id=instruction.id,
            name=instruction.name,
            opcode=b"get-tuple-element",
            shape=instruction.shape,
            tuple_index=index,
            operand_ids=[call.id],
        )
        part.metadata.CopyFrom(instruction.metadata)
        made_of.append(part)
    return made_of


def _sort_units(units: Mapping[int, Sequence[Any]]) -> list[Any]:
    """The instructions of all units, each unit after those that it reads, else in their order."""
    owner = {instruction.id: number for number, unit in units.items() for instruction in unit}
    waits = {
        number: {owner[o] for i in unit for o in i.operand_ids if o in owner} - {number}
        for number, unit in units.items()
    }
    readers: dict[int, list[int]] = {}
    for number, before in waits.items():
        for other in before:
            readers.setdefault(other, []).append(number)
    ready = [number for number, before in waits.items() if not before]
    heapq.heapify(ready)
    ordered: list[Any] = []
    while ready:
        number = heapq.heappop(ready)
        ordered += units[number]
        for reader in readers.get(number, ()):
            waits[reader].discard(number)
            if not waits[reader]:
                heapq.heappush(ready, reader)
    return ordered
