"""Reads HLO: takes a serialized HloModuleProto or HLO text, hands on the entry's Graph.

`call` and `fusion` are inlined; tuples vanish: the importer follows a value through tuple, get-tuple-element, copy and
bitcast to the node that computes it.  Only nodes with several results keep get-tuple-element projections.

A module may come from anywhere.  Before it is read, its ids are found unique and its size with all
calls unfolded within MOST_VALUES; each instruction keeps the rule of its op (check.py) and has the
shape that it declares.  What does not is MalformedHlo and names computation, instruction and field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from astitch.errors import MalformedHlo, UnsupportedOp
from astitch.graph.check import check_node
from astitch.graph.collectives import COLLECTIVES
from astitch.graph.ir import (
    ArrayType,
    Attrs,
    BroadcastAttrs,
    CompareAttrs,
    ConditionalAttrs,
    ConstantAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    Literal,
    NoAttrs,
    Node,
    ParameterAttrs,
    TransposeAttrs,
    TupleType,
    Type,
)
from astitch.graph.ops import OPS
from astitch.graph.ops.rules import BrokenRule, Part
from astitch.graph.ops.windows import Running
from astitch.hlo import schema
from astitch.hlo.literal import read_literal
from astitch.hlo.opaque import (
    Origin,
    asks_accuracy,
    carry_instruction,
    find_ordered,
    is_dynamic,
    is_read,
    outline_dynamic_shapes,
    refuse_effects,
    why_carried,
)
from astitch.hlo.parsing import parse_module, shorten_ids
from astitch.hlo.scan import add_running, find_running_op
from astitch.hlo.schema import decode
from astitch.hlo.shapes import (
    WRITE_AGAIN,
    TypeTree,
    as_array,
    element_types,
    layout_order,
    leaf_types,
    read_type,
    result_type,
    show_shape,
    unsupported_type,
    where_of,
)
from astitch.hlo.sizes import check_calls, check_ids


def import_hlo(data: bytes | str, *, trusted: bool = False) -> Graph:
    """The Graph of an HLO module's entry computation.

    data: a serialized HloModuleProto or HloProto, or HLO text (str or bytes), which jaxlib's parser
    reads.  trusted: JAX, TensorFlow or hlo/export.py have written it in this process; of other
    modules XLA reads the instructions that only it knows in a process of its own first.
    Raises MalformedHlo, UnsupportedOp, UnsupportedType, DynamicShape.
    """
    module = parse_module(data)
    shorten_ids(module)
    return _Module(module, Origin.PROCESS if trusted else Origin.ANYONE).import_entry()


def import_from_compiler(
    module: Any, kept: Mapping[tuple[int, int], str] = MappingProxyType({})
) -> Graph:
    """The Graph of a module that XLA hands over while it compiles, and takes back.

    module: an HloModuleProto.  Communication, callbacks and calls of others become opaque ops with an effect.
    kept: what else stays as it stands: the ids of a computation and of an instruction in it, each with the reason.
    So do the orders of effects (tokens, control dependencies), and what lies in the host's memory.
    Raises UnsupportedOp for an order that no op can say, and what import_hlo raises.
    """
    return _Module(module, Origin.COMPILER, kept).import_entry()


def read_part(hlo: bytes) -> Graph:
    """The Graph of a part of a program that hlo/export.py wrote; what it calls and communicates stays in it."""
    return import_from_compiler(schema.HloModuleProto.FromString(hlo))


def serialize_module(data: bytes | str) -> bytes:
    """The module as a serialized HloModuleProto, whatever form it was given in.  Raises MalformedHlo."""
    return bytes(parse_module(data).SerializeToString())


def find_source(module: Any, metadata: Any) -> str:
    """`file:line` of the user's program, or an empty string.

    module: an HloModuleProto.  metadata: of one of its instructions.
    """
    if metadata.source_file:
        return f"{decode(metadata.source_file)}:{metadata.source_line}"
    index = module.stack_frame_index
    if not 0 < metadata.stack_frame_id <= len(index.stack_frames):
        return ""
    location_id = index.stack_frames[metadata.stack_frame_id - 1].file_location_id
    if not 0 < location_id <= len(index.file_locations):
        return ""
    location = index.file_locations[location_id - 1]
    if not 0 < location.file_name_id <= len(index.file_names):
        return ""
    return f"{decode(index.file_names[location.file_name_id - 1])}:{location.line}"


# ---- message -> Graph ----------------------------------------------------------------------------

# What an instruction stands for: a node's name, one result of a node with several, or a tuple of
# values.


@dataclass(frozen=True, slots=True)
class _Result:
    """Result `index` of the multi-result node `node`; projected when somebody reads it."""

    node: str
    index: int


_Value: TypeAlias = "str | _Result | tuple[_Value, ...]"


def _flatten(value: _Value) -> list[str | _Result]:
    if isinstance(value, tuple):
        return [leaf for element in value for leaf in _flatten(element)]
    return [value]


def _results_of(node: str, type_: TypeTree, result: Type | None = None) -> _Value:
    """What a node gives, in the structure of its type in the module.  result: its type in the graph."""
    count = len(leaf_types(type_))
    single = not isinstance(result or result_type(type_), TupleType)
    leaves = [node] if single else [_Result(node, i) for i in range(count)]
    return _unflatten(type_, iter(leaves))


def _unflatten(type_: TypeTree, leaves: Iterator[str | _Result]) -> _Value:
    if isinstance(type_, tuple):
        return tuple(_unflatten(element, leaves) for element in type_)
    return next(leaves)


@dataclass(slots=True)
class _Frame:
    """A computation being read: the entry or a region, or a call that is being inlined into it."""

    computation: Any
    arguments: Sequence[_Value] | None  # of an inlined call; None: parameters become nodes
    values: dict[int, _Value] = field(default_factory=dict)
    shapes: dict[int, Any] = field(
        default_factory=dict
    )  # of the instructions read, for their layouts
    position: int = 0
    calls: Any = None  # the call instruction in the frame below


class _Module:
    """The computations of a module by id, and the regions already imported."""

    def __init__(
        self,
        proto: Any,
        origin: Origin,
        kept: Mapping[tuple[int, int], str] = MappingProxyType({}),
    ) -> None:
        self.proto, self.origin, self.kept = proto, origin, kept
        self.name = decode(proto.name)
        check_ids(proto, self.name)
        self.ordered = find_ordered(proto) if origin is Origin.COMPILER else {}
        # Each is called by one instruction, which stays a call.
        self.outlined = outline_dynamic_shapes(proto)
        self.computations = {c.id: c for c in proto.computations} | self.outlined
        self.regions: dict[int, Graph] = {}

    def import_entry(self) -> Graph:
        entry = self.computations.get(self.proto.entry_computation_id)
        if entry is None:
            raise MalformedHlo(
                f"HLO module {self.name}: it has no entry computation (id "
                f"{self.proto.entry_computation_id}, name "
                f"{decode(self.proto.entry_computation_name)!r}); the dump is incomplete, write it "
                "again"
            )
        check_calls(entry, self.computations)
        return _Reader(self, entry).read(self.proto.input_output_alias)

    def find_computation(self, id_: int, where: str) -> Any:
        if id_ not in self.computations:
            raise MalformedHlo(
                f"{where}: it calls computation id {id_}, which the module does not have"
            )
        return self.computations[id_]

    def import_region(self, id_: int, where: str) -> Graph:
        """The Graph of a called computation, made once however many instructions call it."""
        if id_ not in self.regions:
            self.regions[id_] = _Reader(self, self.find_computation(id_, where)).read()
        return self.regions[id_]

    def why_carried(self, computation: Any, instruction: Any) -> str:
        """Why an instruction of the compiler's module stays as it stands; nothing: the empty string."""
        if self.origin is not Origin.COMPILER or instruction.opcode in _STRUCTURE:
            return ""
        return self.ordered.get((computation.id, instruction.id)) or why_carried(instruction)


class _Reader:
    """Imports one computation, with the calls in it inlined, into one Graph."""

    def __init__(self, module: _Module, computation: Any) -> None:
        self.module = module
        self.name = decode(computation.name)
        self.computation = computation
        self.nodes: dict[str, Node] = {}
        self.parameters: dict[int, list[str]] = {}  # parameter number -> one node for each leaf
        self.parameter_shapes: dict[int, Any] = {}
        self.projections: dict[_Result, str] = {}
        self.suffix: dict[str, int] = {}
        self.where = f"HLO computation {self.name}"  # and the instruction being read, for messages

    def read(self, alias: Any = None) -> Graph:
        root = self._read_frames()
        numbers = sorted(self.parameters)
        if numbers != list(range(len(numbers))):
            raise MalformedHlo(
                f"HLO computation {self.name}: parameters are numbered {numbers}, not 0, 1, 2 ..."
            )
        parameters = [name for number in numbers for name in self.parameters[number]]
        for index, name in enumerate(parameters):
            node = self.nodes[name]
            self.nodes[name] = Node(
                name,
                node.op,
                node.type,
                attrs=ParameterAttrs(index),
                op_name=node.op_name,
                source=node.source,
            )
        outputs = tuple(self._name_of(leaf) for leaf in _flatten(root))
        aliases = self._read_aliases(alias, root) if alias is not None else ()
        return Graph(self.name, self.nodes, tuple(parameters), outputs, aliases)

    def _read_frames(self) -> _Value:
        """Reads a computation with its calls; a stack of our own: they may nest deep."""
        stack = [_Frame(self.computation, None)]
        while True:
            frame = stack[-1]
            instructions = frame.computation.instructions
            if frame.position < len(instructions):
                instruction = instructions[frame.position]
                frame.position += 1
                opcode = instruction.opcode
                frame.shapes[instruction.id] = instruction.shape
                self.where = where_of(frame.computation, instruction)
                if opcode in (b"call", b"fusion") and not self._is_kept(frame, instruction):
                    callee = self.module.find_computation(
                        _only(instruction.called_computation_ids, self.where), self.where
                    )
                    arguments = [
                        self._operand(frame, instruction, i)
                        for i in range(len(instruction.operand_ids))
                    ]
                    stack.append(_Frame(callee, arguments, calls=instruction))
                else:
                    value = self._read_instruction(frame, instruction)
                    self._keep(frame, instruction, value)
                continue
            stack.pop()
            if frame.computation.root_id not in frame.values:
                raise MalformedHlo(
                    f"HLO computation {decode(frame.computation.name)}: its root, instruction id "
                    f"{frame.computation.root_id}, is missing; the dump is incomplete, write it "
                    "again"
                )
            result = frame.values[frame.computation.root_id]
            if not stack:
                return result
            assert frame.calls is not None
            self.where = where_of(stack[-1].computation, frame.calls)
            self._keep(stack[-1], frame.calls, result)

    def _keep(self, frame: _Frame, instruction: Any, value: _Value) -> None:
        """Remembers the value that an instruction stands for; it has the instruction's declared shape.

        So what is read never has more arrays than the shapes in the module.
        """
        if not self._has_shape(value, instruction.shape):
            raise MalformedHlo(
                f"{self.where}, field shape: it declares {show_shape(instruction.shape)}, which is "
                f"not what its operands give; {WRITE_AGAIN}"
            )
        frame.values[instruction.id] = value

    def _has_shape(self, value: _Value, shape: Any) -> bool:
        if isinstance(value, tuple):
            element = schema.ELEMENT_TYPES.get(shape.element_type)
            return (
                element in ("tuple", "token")
                and len(value) == len(shape.tuple_shapes)
                and all(map(self._has_shape, value, shape.tuple_shapes))
            )
        type_ = self._type_of(value)
        return (
            schema.ELEMENT_TYPES.get(shape.element_type) == type_.dtype.value
            and tuple(shape.dimensions) == type_.shape
        )

    def _type_of(self, leaf: str | _Result) -> ArrayType:
        if isinstance(leaf, str):
            return self.nodes[leaf].array
        type_ = self.nodes[leaf.node].type
        assert isinstance(type_, TupleType)
        return type_.elements[leaf.index]

    def _is_kept(self, frame: _Frame, instruction: Any) -> bool:
        """Is a call an op, and not what it calls?"""
        if self.module.why_carried(frame.computation, instruction):
            return True
        return any(i in self.module.outlined for i in instruction.called_computation_ids)

    def _operand(self, frame: _Frame, instruction: Any, index: int) -> _Value:
        if index >= len(instruction.operand_ids):
            raise MalformedHlo(
                f"{where_of(frame.computation, instruction)}: {decode(instruction.opcode)} has "
                f"{len(instruction.operand_ids)} operands, operand {index} is missing"
            )
        id_ = instruction.operand_ids[index]
        if id_ not in frame.values:
            raise MalformedHlo(
                f"{where_of(frame.computation, instruction)}: operand {index} is instruction id {id_}, "
                "which no earlier instruction has; the dump is damaged, write it again"
            )
        return frame.values[id_]

    def _name_of(self, leaf: str | _Result) -> str:
        """The node of a value; a result gets its projection when first read."""
        if isinstance(leaf, str):
            return leaf
        if leaf not in self.projections:
            self._project(leaf, f"{leaf.node}.{leaf.index}", "", "")
        return self.projections[leaf]

    def _project(self, leaf: _Result, name: str, op_name: str, source: str) -> None:
        type_ = self.nodes[leaf.node].type
        assert isinstance(type_, TupleType)
        self.projections[leaf] = self._add(
            name,
            "get-tuple-element",
            type_.elements[leaf.index],
            (leaf.node,),
            GetTupleElementAttrs(leaf.index),
            op_name=op_name,
            source=source,
        )

    def _add(
        self,
        name: str,
        op: str,
        type_: Type,
        operands: tuple[str, ...] = (),
        attrs: Attrs = NoAttrs(),
        regions: tuple[Graph, ...] = (),
        op_name: str = "",
        source: str = "",
    ) -> str:
        """Adds a node under a name that is unique in the graph; returns the name.

        Names keep letters, digits, `.`, `_` and `-`: later stages make names of their own with other signs.
        """
        name = _UNUSUAL.sub("_", name)
        unique = name or op
        while unique in self.nodes:
            self.suffix[name] = self.suffix.get(name, 0) + 1
            unique = f"{name or op}.{self.suffix[name]}"
        node = Node(unique, op, type_, operands, attrs, regions, op_name, source)
        try:
            check_node(node, [self.nodes[o].type for o in operands])
        except BrokenRule as fault:
            field_ = _FIELDS[fault.part] or OPS[op].attributes.field
            raise MalformedHlo(f"{self.where}, field {field_}: {fault}; {WRITE_AGAIN}") from None
        self.nodes[unique] = node
        return unique

    def _read_instruction(self, frame: _Frame, instruction: Any) -> _Value:
        """What an instruction other than a call stands for; adds the node it needs."""
        opcode = _OPCODES.get(instruction.opcode, decode(instruction.opcode))
        name = decode(instruction.name)
        where = self.where
        number: int = instruction.parameter_number
        if opcode == "parameter" and frame.arguments is not None:
            if not 0 <= number < len(frame.arguments):
                raise MalformedHlo(
                    f"{where}: the call passes {len(frame.arguments)} arguments, not enough for it"
                )
            return frame.arguments[number]
        if opcode == "tuple":
            return tuple(
                self._operand(frame, instruction, i) for i in range(len(instruction.operand_ids))
            )
        if opcode == "get-tuple-element":
            return self._read_projection(frame, instruction, name, where)
        if reason := self.module.why_carried(frame.computation, instruction):
            return self._read_opaque(frame, instruction, reason, name, where)
        if opcode in ("copy", "add-dependency", "domain"):
            return self._operand(frame, instruction, 0)
        if opcode == "after-all":
            return ()  # a token: an order for effects, and there are none
        if opcode == "custom-call" and instruction.custom_call_target == b"Sharding":
            return self._operand(frame, instruction, 0)  # a remark to the partitioner
        if self.module.origin is not Origin.COMPILER and opcode == "custom-call":
            refuse_effects(instruction, where)
        if opcode == "set-dimension-size" and not is_dynamic(instruction.shape):
            return self._operand(frame, instruction, 0)  # to the whole dimension
        if reason := self._why_opaque(frame, instruction, opcode):
            return self._read_opaque(frame, instruction, reason, name, where)
        type_ = read_type(instruction.shape, where)
        op_name = decode(instruction.metadata.op_name)
        source = find_source(self.module.proto, instruction.metadata)

        def add(
            op: str,
            type_: Type,
            operands: Sequence[str] = (),
            attrs: Attrs = NoAttrs(),
            suffix: str = "",
        ) -> str:
            return self._add(name + suffix, op, type_, tuple(operands), attrs, (), op_name, source)

        if opcode == "parameter":
            leaves = leaf_types(type_)
            suffixes = [f".{i}" for i in range(len(leaves))] if isinstance(type_, tuple) else [""]
            names = [
                add("parameter", leaf, attrs=ParameterAttrs(0), suffix=s)
                for leaf, s in zip(leaves, suffixes, strict=True)
            ]
            if number in self.parameters:
                raise MalformedHlo(f"{where}: there is a second parameter {number}")
            self.parameters[number] = names
            self.parameter_shapes[number] = type_
            return _unflatten(type_, iter(names))
        if opcode == "constant":
            return self._read_constant(instruction.literal, type_, name, op_name, source, where)
        operands = [
            self._name_of(leaf)
            for i in range(len(instruction.operand_ids))
            for leaf in _flatten(self._operand(frame, instruction, i))
        ]
        if opcode == "get-dimension-size":
            size = self._read_size(instruction, operands)
            return add(
                "constant",
                as_array(type_, where),
                attrs=ConstantAttrs(Literal.of(np.asarray(size, np.int32))),
            )
        if opcode == "bitcast":
            return self._read_bitcast(
                frame, instruction, operands, as_array(type_, where), where, add
            )
        if opcode == "optimization-barrier":
            self._expect_operands(instruction, operands, len(leaf_types(type_)))
            return self._read_barrier(operands, type_, add)
        if opcode == "scan":
            return self._read_scan(instruction, operands, type_, name, where, op_name, source)
        for position in _SPREAD.get(opcode, ()):
            if position < len(operands):
                operands[position] = self._spread(
                    operands[position], as_array(type_, where), add, f".operand{position}"
                )
        attrs = self._read_attrs(frame, instruction, opcode, where)
        # XLA of jaxlib 0.12 says it of all other types, too, which have no other order.
        if isinstance(attrs, CompareAttrs):
            self._expect_operands(instruction, operands, 2)
            is_float = self.nodes[operands[0]].array.dtype.is_float
            attrs = replace(attrs, total_order=attrs.total_order and is_float)
        called = list(instruction.called_computation_ids)
        if is_loop := opcode == "while":
            called.reverse()  # XLA stores the body first
        regions = tuple(self.module.import_region(id_, where) for id_ in called)
        # A while has a tuple also of one state: passes over loops go by their states.
        result = TupleType(tuple(leaf_types(type_))) if is_loop else result_type(type_)
        node = self._add(name, opcode, result, tuple(operands), attrs, regions, op_name, source)
        return _results_of(node, type_, result)

    def _read_barrier(
        self, operands: Sequence[str], type_: TypeTree, add: Callable[..., str]
    ) -> _Value:
        """A barrier hands on all that it is given: as one op, so that nothing behind it goes ahead of any of that."""
        if not leaf_types(type_):
            return _unflatten(type_, iter(()))
        return _results_of(add("optimization-barrier", result_type(type_), operands), type_)

    def _why_opaque(self, frame: _Frame, instruction: Any, opcode: str) -> str:
        """Why an instruction is only handed on to XLA; nothing: the empty string."""
        if kept := self.module.kept.get((frame.computation.id, instruction.id)):
            return kept
        if asks_accuracy(instruction):
            return "it asks for an accuracy of its own (result_accuracy)"
        if opcode in ("call", "fusion"):
            inner = self.module.outlined[instruction.called_computation_ids[0]].instructions
            found = {decode(i.opcode) for i in inner if is_dynamic(i.shape)}
            return f"shapes that only the run tells ({', '.join(sorted(found))})"
        if opcode in COLLECTIVES:
            return "communication between devices"
        if not is_read(decode(instruction.opcode)):
            return f"astitch does not know '{opcode}'"
        if opcode in _HANDS_ON:
            return ""
        shapes = [instruction.shape, *(frame.shapes.get(i) for i in instruction.operand_ids)]
        for element in (e for s in shapes if s is not None for e in element_types(s)):
            if element == "token" and self.module.origin is not Origin.COMPILER:
                # What orders effects has been read or refused before.
                raise unsupported_type(element, self.where)
            if element in _OPAQUE:
                return f"element type {element} has no emitted form"
        return ""

    def _read_opaque(
        self, frame: _Frame, instruction: Any, reason: str, name: str, where: str
    ) -> _Value:
        """An op that is the instruction itself: see hlo/opaque.py."""
        if self.module.origin is not Origin.COMPILER:
            refuse_effects(instruction, where)
        type_ = read_type(instruction.shape, where)
        values = [self._operand(frame, instruction, i) for i in range(len(instruction.operand_ids))]
        shapes = [frame.shapes[id_] for id_ in instruction.operand_ids]
        for value, shape in zip(values, shapes, strict=True):
            if len(leaf_types(read_type(shape, where))) != len(_flatten(value)):
                raise MalformedHlo(f"{where}: an operand has not the shape that it is given")
        waits = list(_list_predecessors(frame, instruction, where))
        attrs = carry_instruction(
            instruction,
            shapes,
            self.module.computations,
            reason,
            where,
            origin=self.module.origin,
            is_ordered=(frame.computation.id, instruction.id) in self.module.ordered,
            waits=len(waits),
        )
        leaves = [leaf for value in values for leaf in _flatten(value)]
        operands = tuple(map(self._name_of, (*leaves, *waits)))
        result, metadata = result_type(type_), instruction.metadata
        source = find_source(self.module.proto, metadata)
        node = self._add(
            name, "opaque", result, operands, attrs, (), decode(metadata.op_name), source
        )
        return _results_of(node, type_)

    def _expect_operands(self, instruction: Any, operands: Sequence[str], count: int) -> None:
        """Raises MalformedHlo unless there are `count` operands; for ops that are read before check_node counts
        them."""
        if len(operands) != count:
            raise MalformedHlo(
                f"{self.where}, field operand_ids: {decode(instruction.opcode)} has "
                f"{len(operands)} operands, {count} were expected; {WRITE_AGAIN}"
            )

    def _read_size(self, instruction: Any, operands: Sequence[str]) -> int:
        self._expect_operands(instruction, operands, 1)
        array = self.nodes[operands[0]].array
        if len(instruction.dimensions) != 1 or instruction.dimensions[0] not in range(array.rank):
            raise MalformedHlo(
                f"{self.where}, field dimensions: {list(instruction.dimensions)} is not one "
                f"dimension of {array}; {WRITE_AGAIN}"
            )
        return array.shape[int(instruction.dimensions[0])]

    def _read_scan(
        self,
        instruction: Any,
        operands: Sequence[str],
        type_: TypeTree,
        name: str,
        where: str,
        op_name: str,
        source: str,
    ) -> _Value:
        """A running sum or product as the reduce-window over all that came before: what JAX lowers jnp.cumsum to.
        Of the general scan only that form: one input, one carry, which is also the result and starts neutral."""
        leaves = leaf_types(type_)
        regions = [
            self.module.import_region(id_, where) for id_ in instruction.called_computation_ids
        ]
        op = find_running_op(regions, self.nodes.__getitem__, operands, len(leaves))
        if op is None:
            raise UnsupportedOp(
                f"{where}: of scan only running sums and products are supported\n"
                "  rewrite it with jax.lax.scan, or run it through XLA"
            )
        running = Running(int(instruction.dimensions[0]), instruction.is_reverse)
        add = partial(self._add, op_name=op_name, source=source)
        results = add_running(op, operands[0], leaves[0], leaves[1], running, name, add)
        return _unflatten(type_, iter(results))

    def _read_projection(self, frame: _Frame, instruction: Any, name: str, where: str) -> _Value:
        value = self._operand(frame, instruction, 0)
        if not isinstance(value, tuple) or not 0 <= instruction.tuple_index < len(value):
            what = f"a tuple of {len(value)}" if isinstance(value, tuple) else "an array"
            raise MalformedHlo(
                f"{where}: get-tuple-element takes element {instruction.tuple_index} of {what}"
            )
        index: int = instruction.tuple_index
        leaf = value[index]
        if isinstance(leaf, _Result) and leaf not in self.projections:
            metadata = instruction.metadata
            self._project(
                leaf, name, decode(metadata.op_name), find_source(self.module.proto, metadata)
            )
        return leaf

    def _read_constant(
        self, literal: Any, type_: TypeTree, name: str, op_name: str, source: str, where: str
    ) -> _Value:
        if isinstance(type_, tuple):
            if len(literal.tuple_literals) != len(type_):
                raise MalformedHlo(
                    f"{where}: the literal has {len(literal.tuple_literals)} of {len(type_)} "
                    "elements"
                )
            return tuple(
                self._read_constant(element, t, f"{name}.{i}", op_name, source, where)
                for i, (element, t) in enumerate(zip(literal.tuple_literals, type_, strict=True))
            )
        value = ConstantAttrs(read_literal(literal, type_, where))
        return self._add(name, "constant", type_, attrs=value, op_name=op_name, source=source)

    def _spread(self, operand: str, result: ArrayType, add: Callable[..., str], suffix: str) -> str:
        """The operand; a scalar as an array of the result's shape."""
        scalar = self.nodes[operand].array
        if scalar.rank or not result.rank:
            return operand
        spread = ArrayType(scalar.dtype, result.shape)
        return add("broadcast", spread, (operand,), BroadcastAttrs(()), suffix)

    def _read_bitcast(
        self,
        frame: _Frame,
        instruction: Any,
        operands: Sequence[str],
        type_: ArrayType,
        where: str,
        add: Callable[..., str],
    ) -> str:
        """A bitcast keeps memory: a reshape of the elements in the order of the layouts."""
        self._expect_operands(instruction, operands, 1)
        operand = self.nodes[operands[0]].array
        if operand.dtype is not type_.dtype or operand.size != type_.size:
            raise UnsupportedOp(
                f"{where}: bitcast of {operand} to {type_}: only one that keeps the elements is "
                "supported\n  dump the module before optimisation"
            )
        before = layout_order(frame.shapes[instruction.operand_ids[0]], where)
        after = layout_order(instruction.shape, where)
        value = operands[0]
        if before != tuple(range(operand.rank)):
            physical = ArrayType(operand.dtype, tuple(operand.shape[d] for d in before))
            value = add("transpose", physical, (value,), TransposeAttrs(before))
        physical = ArrayType(type_.dtype, tuple(type_.shape[d] for d in after))
        value = add("reshape", physical, (value,))
        if after != tuple(range(type_.rank)):
            inverse = tuple(after.index(d) for d in range(type_.rank))
            value = add("transpose", type_, (value,), TransposeAttrs(inverse))
        return value

    def _read_attrs(self, frame: _Frame, instruction: Any, opcode: str, where: str) -> Attrs:
        if opcode == "conditional":
            counts = [
                len(_flatten(self._operand(frame, instruction, i)))
                for i in range(1, len(instruction.operand_ids))
            ]
            return ConditionalAttrs(tuple(counts))
        try:
            return OPS[opcode].attributes.read(instruction)
        except (IndexError, KeyError) as error:
            field_ = OPS[opcode].attributes.field
            raise MalformedHlo(
                f"{where}, field {field_}: {opcode} lacks an attribute, or has an unknown value "
                f"({error}); {WRITE_AGAIN}"
            ) from error

    def _read_aliases(self, alias: Any, root: _Value) -> tuple[tuple[int, int], ...]:
        first_leaf = {}
        count = 0
        for number in sorted(self.parameters):
            first_leaf[number] = count
            count += len(self.parameters[number])
        pairs = []
        outputs = _number_leaves(root)
        inside = {number: _number_leaves(s) for number, s in self.parameter_shapes.items()}
        for entry in alias.entries:
            output = outputs.get(tuple(entry.output_shape_index))
            leaves = inside.get(entry.parameter_number, {})
            inner = leaves.get(tuple(entry.parameter_shape_index))
            if output is None or inner is None:
                raise MalformedHlo(
                    f"HLO module {self.module.name}: input_output_alias pairs output "
                    f"{list(entry.output_shape_index)} with parameter {entry.parameter_number} "
                    f"{list(entry.parameter_shape_index)}: one does not exist"
                )
            pairs.append((output, first_leaf[entry.parameter_number] + inner))
        return tuple(pairs)


def _list_predecessors(frame: _Frame, instruction: Any, where: str) -> Iterator[str | _Result]:
    """The values that an instruction only waits for."""
    for number in instruction.control_predecessor_ids:
        if number not in frame.values:
            raise MalformedHlo(
                f"{where}, field control_predecessor_ids: no earlier instruction has id {number}; {WRITE_AGAIN}"
            )
        yield from _flatten(frame.values[number])


def _number_leaves(tree: Any) -> dict[tuple[int, ...], int]:
    """The position among the leaves of each, by its path."""
    found: dict[tuple[int, ...], int] = {}

    def visit(part: Any, path: tuple[int, ...]) -> None:
        if isinstance(part, tuple):
            for step, element in enumerate(part):
                visit(element, (*path, step))
        else:
            found[path] = len(found)

    visit(tree, ())
    return found


# ---- pieces of the message -----------------------------------------------------------------------


def _only(ids: Sequence[int], where: str) -> int:
    if len(ids) != 1:
        raise MalformedHlo(f"{where}: it calls {len(ids)} computations, one was expected")
    return ids[0]


_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]")
_OPCODES = {b"opt-barrier": "optimization-barrier"}

_SPREAD: Mapping[str, tuple[int, ...]] = {"clamp": (0, 2), "select": (0,)}
"""Operands that may be scalars where the result is an array: each then stands for an array of one value."""

_FIELDS: Mapping[Part, str] = {
    Part.OPERANDS: "operand_ids",
    Part.ATTRIBUTES: "",
    Part.REGIONS: "called_computation_ids",
    Part.TYPE: "shape",
}


_STRUCTURE = frozenset({b"parameter", b"constant"})

# What it says of values whatever their element type.
_HANDS_ON = frozenset({"parameter", "while", "conditional", "optimization-barrier"})
_OPAQUE = frozenset(dtype.value for dtype in DType if dtype.is_opaque)
