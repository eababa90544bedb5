"""Writes HLO: takes nodes of a Graph, hands on a serialized HloModuleProto.

The mirror of hlo_import.py.  A Graph is flat, and HLO sometimes wants one value: the state of a loop, the argument of a
branch, several outputs.  There tuples are made and taken apart again.  Arrays are row-major, names and ids unique.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from astitch.errors import IllegalProduct, UnsupportedOp
from astitch.graph.ir import (
    ArrayType,
    AttentionAttrs,
    Attrs,
    BroadcastAttrs,
    ConditionalAttrs,
    ConstantAttrs,
    ConvolutionAttrs,
    CustomCallAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    Literal,
    NoAttrs,
    Node,
    OpaqueAttrs,
    ParameterAttrs,
    Tree,
    TupleType,
    Type,
)
from astitch.graph.ops import OPS
from astitch.graph.ops.other import LATENCY
from astitch.graph.recurrences import joins_steps, write_out
from astitch.hlo import schema
from astitch.hlo.attention import render_attention
from astitch.hlo.gather import is_simplified, render_gather
from astitch.hlo.literal import write_literal
from astitch.hlo.narrow_product import render_narrow_product
from astitch.hlo.opaque import add_computations, restore_instruction, tree_of
from astitch.hlo.row_region import render_row_region
from astitch.hlo.shapes import TUPLE, as_array, read_type, write_shape, write_tuple_shape
from astitch.hlo.tile_call import TRITON
from astitch.hlo.tiled_attention import render_tiled_attention


@dataclass(frozen=True, slots=True)
class Exported:
    """A part of a graph as a module of its own.

    operands: the graph values that it reads, in the order of its parameters.  results: the graph values that it
    computes, in the order of its root tuple.
    """

    hlo: bytes
    operands: tuple[str, ...]
    results: tuple[str, ...]


def export_nodes(
    graph: Graph,
    names: Collection[str],
    results: Sequence[str],
    latency_ns: Callable[[Node], int] = lambda node: 0,
) -> Exported:
    """The nodes called `names` as a module whose parameters are the values they read from elsewhere.

    The projections of a chosen node with several results belong to it.  results: the values to hand back.
    latency_ns: what the calls tell that compute a node; 0: nothing.  Raises
    IllegalProduct for a name that the graph lacks or a result that the part does not compute.  Raises UnsupportedOp for
    an op that HLO does not have.
    """
    chosen = set(names)
    for node in graph:
        if isinstance(node.attrs, GetTupleElementAttrs) and node.operands[0] in chosen:
            chosen.add(node.name)
    unknown = sorted(chosen - set(graph.nodes))
    if unknown:
        raise IllegalProduct(f"graph {graph.name}: %{unknown[0]} is to be exported, but is no node")
    members = [node for node in graph if node.name in chosen]
    operands = tuple(dict.fromkeys(o for n in members for o in n.operands if o not in chosen))
    for name in results:
        if name not in chosen:
            raise IllegalProduct(f"graph {graph.name}: the part does not compute %{name}")
    builder = ModuleBuilder(graph.name)
    for operand in operands:
        builder.add_parameter(operand, graph[operand].array)
    for node in members:
        if isinstance(node.attrs, ParameterAttrs):
            raise IllegalProduct(
                f"graph {graph.name}: parameter %{node.name} cannot be part of what is exported"
            )
        builder.add_node(node, latency_ns(node))
    return Exported(builder.finish(results), operands, tuple(results))


def export_call(node: Node, operands: Sequence[ArrayType]) -> bytes:
    """One node as a module: its operands, of these types, are the parameters, its results the root tuple.

    Raises UnsupportedOp for an op that HLO does not have.
    """
    builder = ModuleBuilder(node.name)
    names = tuple(f"operand.{i}" for i in range(len(operands)))
    for name, type_ in zip(names, operands, strict=True):
        builder.add_parameter(name, type_)
    return builder.finish(builder.add_results(replace(node, name="call", operands=names)))


class ModuleBuilder:
    """Writes the entry computation of a module, one instruction after the other; values go by the nodes' names.

    late: XLA goes on with the module in the middle of its compilation, and simplifies no gather any more.
    """

    def __init__(self, name: str, *, late: bool = False) -> None:
        self._module = _Module(name, late=late)
        self._entry = _Computation(self._module, name)
        self._parameters = 0

    def add_parameter(self, name: str, type_: ArrayType) -> None:
        """The next parameter."""
        attrs = ParameterAttrs(self._parameters)
        self.add_node(Node(name, "parameter", type_, attrs=attrs))

    def add_node(self, node: Node, latency_ns: int = 0) -> None:
        """A node whose operands were added before.  Raises UnsupportedOp, IllegalProduct.

        latency_ns: of the custom calls that compute it, together; 0: as their attributes say.
        """
        self._parameters += node.op == "parameter"
        first = len(self._entry.proto.instructions)
        self._entry.add_node(node)
        if latency_ns:
            added = self._entry.proto.instructions[first:]
            calls = [i for i in added if i.opcode == b"custom-call"]
            for call in calls:
                told = b"%d" % (latency_ns // len(calls))
                call.frontend_attributes.map.add(key=LATENCY, value=told)

    def add_results(self, node: Node, latency_ns: int = 0) -> tuple[str, ...]:
        """The same; the names of the arrays that it gives: its own, or those of its elements if they are several."""
        self.add_node(node, latency_ns)
        if isinstance(node.type, ArrayType):
            return (node.name,)
        types = enumerate(node.type.elements)
        return tuple(self.add_projection(node.name, index, type_) for index, type_ in types)

    def add_projection(self, value: str, index: int, type_: ArrayType) -> str:
        """Element `index` of a tuple that was added before; its name, which no node of a Graph has."""
        name = f"{value}#{index}"
        attrs = GetTupleElementAttrs(index)
        self.add_node(Node(name, "get-tuple-element", type_, (value,), attrs))
        return name

    def finish(self, outputs: Sequence[str]) -> bytes:
        """The module, serialized; `outputs` become the root tuple."""
        self._entry.finish(outputs, as_tuple=True)
        return self._module.finish(self._entry)


# ---- module ------------------------------------------------------------------------------------------------------


class _Module:
    """The computations written so far, with ids and names that are unique in the module.  late: see ModuleBuilder."""

    def __init__(self, name: str, *, late: bool) -> None:
        self.late = late
        self.proto = schema.HloModuleProto(name=_clean(name).encode())
        self._ids = 0
        self._names: set[str] = set()
        self._suffix: dict[str, int] = {}
        self._regions: dict[tuple[int, bool, bool], tuple[int, Graph]] = {}

    def take_id(self) -> int:
        self._ids += 1
        return self._ids

    def take_name(self, wanted: str) -> bytes:
        name = unique = _clean(wanted)
        while unique in self._names:
            self._suffix[name] = self._suffix.get(name, 0) + 1
            unique = f"{name}.{self._suffix[name]}"
        self._names.add(unique)
        return unique.encode()

    def add_region(self, region: Graph, *, takes_tuple: bool, gives_tuple: bool) -> int:
        """The id of a region's computation, written once however many nodes call it."""
        key = id(region), takes_tuple, gives_tuple
        if key not in self._regions:
            computation = _Computation(self, region.name)
            if takes_tuple:
                computation.add_tuple_parameter(region)
            for node in region:
                if not (takes_tuple and node.op == "parameter"):
                    computation.add_node(node)
            computation.finish(region.outputs, as_tuple=gives_tuple)
            # The region is kept alive, so that its id stays its own.
            self._regions[key] = computation.write(), region
        return self._regions[key][0]

    def finish(self, entry: _Computation) -> bytes:
        self.proto.entry_computation_id = entry.write()
        self.proto.entry_computation_name = entry.proto.name
        self.proto.host_program_shape.CopyFrom(entry.proto.program_shape)
        return bytes(self.proto.SerializeToString(deterministic=True))


@dataclass(slots=True)
class _Value:
    """An instruction: its id and what it computes.

    projected: its elements, as far as somebody read them.  source: the tuple of which it is such an element.
    whole: what a flat tuple holds the arrays of; None: itself.
    """

    id: int
    shape: Any
    projected: dict[int, _Value] = field(default_factory=dict)
    source: _Value | None = None
    whole: _Value | None = None


class _Computation:
    """One computation being written: the entry or a region."""

    def __init__(self, module: _Module, name: str) -> None:
        self.module = module
        self.name = name
        self.proto = schema.HloComputationProto()
        self.values: dict[str, _Value] = {}
        self.handed_on: set[int] = set()  # tuples that an op was given whole, by their ids

    def add_tuple_parameter(self, region: Graph) -> None:
        """The one parameter of a loop's or branch's computation, taken apart into the region's parameters."""
        types = [region[name].array for name in region.parameters]
        instruction = self._start("state", "parameter", write_tuple_shape(types))
        instruction.parameter_number = 0
        state = self._end(instruction)
        for index, name in enumerate(region.parameters):
            self.values[name] = self._project(state, index, name)

    def add_node(self, node: Node) -> None:
        if node.op not in OPS:
            raise UnsupportedOp(
                f"graph {self.name}, %{node.name} = {node.op}: HLO has no such op\n"
                "  export the graph before the stage that makes it"
            )
        if node.name in self.values:
            raise IllegalProduct(f"graph {self.name}: there is a second %{node.name}")
        operands = [self._find(node, name) for name in node.operands]
        match node.op:
            case "get-tuple-element":
                assert isinstance(node.attrs, GetTupleElementAttrs)
                value = self._project(operands[0], node.attrs.index, node.name, node)
            case "while":
                value = self._add_loop(node, operands)
            case "conditional":
                value = self._add_branches(node, operands)
            case "optimization-barrier" if isinstance(node.type, TupleType):
                value = self._add(node, node.type, [self._tuple(operands, f"{node.name}.operands")])
            case "convolution":
                value = self._add_convolution(node, operands)
            case "opaque":
                value = self._add_opaque(node, operands)
            case "mulhi":
                value = self._add_parts(node, _render_upper_half(node), operands)
            case "gather" if self.module.late:
                value = self._add_gather(node, operands)
            case "attention" | "attention-gradient":
                value = self._add_attention(node, operands)
            case "narrow-product":
                types = [as_array(read_type(v.shape, node.name), node.name) for v in operands]
                value = self._add(render_narrow_product(node, types), node.type, operands)
            case "row-region":
                value = self._add_row_region(node, operands)
            case "reduce-window" if joins_steps(node):
                value = self._add_recurrence(node)
            case _:
                value = self._add(node, node.type, operands)
        self.values[node.name] = value

    def finish(self, outputs: Sequence[str], *, as_tuple: bool) -> None:
        """Makes the root: the output itself, or a tuple of the outputs."""
        try:
            values = [self.values[name] for name in outputs]
        except KeyError as error:
            raise IllegalProduct(
                f"graph {self.name}: there is no output %{error.args[0]}"
            ) from None
        root = self._tuple(values, "tuple") if as_tuple or len(values) != 1 else values[0]
        self.proto.root_id = root.id
        self._drop_unread_elements()
        self.proto.program_shape.result.CopyFrom(root.shape)

    def _drop_unread_elements(self) -> None:
        """Of tuples that were handed on whole: nothing but its end may read the start of an exchange."""
        parts = set(self.handed_on)
        for i in self.proto.instructions:
            if i.opcode in (b"get-tuple-element", b"tuple") and parts.intersection(i.operand_ids):
                parts.add(i.id)
        read = {self.proto.root_id}
        for i in reversed(self.proto.instructions if self.handed_on else ()):
            if i.id in read or i.id not in parts - self.handed_on:
                read.update(i.operand_ids)
            else:
                self.proto.instructions.remove(i)

    def write(self) -> int:
        """Adds the computation to the module; its id."""
        proto = self.proto
        proto.name = self.module.take_name(self.name)
        proto.id = self.module.take_id()
        parameters = [i for i in proto.instructions if i.opcode == b"parameter"]
        parameters.sort(key=lambda i: i.parameter_number)
        proto.program_shape.parameters.extend(i.shape for i in parameters)
        proto.program_shape.parameter_names.extend(i.name for i in parameters)
        self.module.proto.computations.append(proto)
        return int(proto.id)

    def _find(self, node: Node, name: str) -> _Value:
        try:
            return self.values[name]
        except KeyError:
            raise IllegalProduct(
                f"graph {self.name}, %{node.name}: operand %{name} was not added before it"
            ) from None

    def _start(self, name: str, opcode: str, shape: Any, node: Node | None = None) -> Any:
        """An instruction without operands and attributes."""
        instruction = self.proto.instructions.add(
            id=self.module.take_id(),
            name=self.module.take_name(name),
            opcode=_OPCODES.get(opcode, opcode).encode(),
            shape=shape,
        )
        if node is not None:
            _write_metadata(instruction, node)
        return instruction

    def _end(self, instruction: Any, operands: Sequence[_Value] = ()) -> _Value:
        instruction.operand_ids.extend(v.id for v in operands)
        return _Value(instruction.id, instruction.shape)

    def _tuple(self, values: Sequence[_Value], name: str) -> _Value:
        shape = schema.ShapeProto(element_type=TUPLE)
        shape.tuple_shapes.extend(v.shape for v in values)
        return self._end(self._start(name, "tuple", shape), values)

    def _project(self, value: _Value, index: int, name: str, node: Node | None = None) -> _Value:
        """Element `index` of a tuple: one instruction, however many nodes ask for it."""
        if index not in value.projected:
            shape = value.shape.tuple_shapes[index]
            instruction = self._start(name, "get-tuple-element", shape, node)
            instruction.tuple_index = index
            value.projected[index] = self._end(instruction, [value])
            value.projected[index].source = value
        return value.projected[index]

    def _add(self, node: Node, type_: Type, operands: Sequence[_Value]) -> _Value:
        instruction = self._start(node.name, node.op, write_shape(type_), node)
        for region in node.regions:
            called = self.module.add_region(region, takes_tuple=False, gives_tuple=False)
            instruction.called_computation_ids.append(called)
        if isinstance(node.attrs, ConstantAttrs):
            instruction.literal.CopyFrom(write_literal(node.attrs.value))
        OPS[node.op].attributes.write(instruction, node.attrs)
        if isinstance(node.attrs, CustomCallAttrs):
            _write_layouts(instruction, node.attrs, [v.shape for v in operands])
        return self._end(instruction, operands)

    def _add_convolution(self, node: Node, operands: Sequence[_Value]) -> _Value:
        """A convolution; XLA knows the gradient in an image by an op that reverses the kernel."""
        attrs = node.attrs
        assert isinstance(attrs, ConvolutionAttrs)
        directions = {w.reversed for w in attrs.window if w.size > 1}
        if directions != {True}:
            return self._add(node, node.type, operands)
        image, kernel = operands
        reverse = self._start(f"{node.name}.reverse", "reverse", kernel.shape, node)
        reverse.dimensions.extend(attrs.kernel_spatial)
        window = tuple(replace(w, reversed=False) for w in attrs.window)
        plain = replace(node, attrs=replace(attrs, window=window))
        return self._add(plain, plain.type, [image, self._end(reverse, [kernel])])

    def _add_recurrence(self, node: Node) -> _Value:
        """A linear recurrence, written out."""
        assert isinstance(node.type, TupleType)
        steps, results = write_out(node, node.type.elements[0])
        for step in steps:
            self.add_node(step)
        return self._tuple([self.values[name] for name in results], node.name)

    def _add_opaque(self, node: Node, operands: Sequence[_Value]) -> _Value:
        """The instruction as it was read, with tuples where it takes or gives some."""
        attrs = node.attrs
        assert isinstance(attrs, OpaqueAttrs)
        called = add_computations(attrs, self.module.take_id, self.module.proto.computations)
        arrays = iter(operands[: len(operands) - attrs.waits])
        given = [self._build_tree(tree, arrays, node.name) for tree in attrs.operands]
        instruction = self.proto.instructions.add()
        instruction.CopyFrom(restore_instruction(attrs, called))
        instruction.id = self.module.take_id()
        instruction.name = self.module.take_name(node.name)
        _write_metadata(instruction, node)
        for before in operands[len(operands) - attrs.waits :]:
            number = (before.source or before).id
            if number not in instruction.control_predecessor_ids:
                instruction.control_predecessor_ids.append(number)
        value = self._end(instruction, given)
        inner = [shape.element_type for shape in value.shape.tuple_shapes]
        if isinstance(node.type, TupleType) and TUPLE not in inner:
            return value
        leaves = self._take_apart(value, node.name)
        if isinstance(node.type, ArrayType):
            return leaves[0]
        flat = self._tuple(leaves, f"{node.name}.flat")
        flat.whole = value
        return flat

    def _build_tree(self, tree: Tree, arrays: Iterator[_Value], name: str) -> _Value:
        if tree is None:
            return next(arrays)
        leaves = [next(arrays) for _ in range(_count_leaves(tree))]
        if whole := _find_whole(leaves, tree):
            self.handed_on.add(whole.id)
            return whole
        arrays = iter(leaves)
        elements = [self._build_tree(element, arrays, name) for element in tree]
        return self._tuple(elements, f"{name}.operand")

    def _take_apart(self, value: _Value, name: str) -> list[_Value]:
        """The arrays of a tuple, from tuples in it too."""
        if value.shape.element_type != TUPLE:
            return [value]
        count = len(value.shape.tuple_shapes)
        parts = [self._project(value, index, f"{name}.{index}") for index in range(count)]
        return [leaf for part in parts for leaf in self._take_apart(part, name)]

    def _add_parts(self, node: Node, parts: Sequence[Node], operands: Sequence[_Value]) -> _Value:
        """A node by other ops, the last of which has its name."""
        values = dict(zip(node.operands, operands, strict=True))
        for part in parts:
            values[part.name] = self._add(part, part.type, [values[o] for o in part.operands])
        return values[node.name]

    def _add_gather(self, node: Node, operands: Sequence[_Value]) -> _Value:
        types = [as_array(read_type(v.shape, node.name), node.name) for v in operands]
        if is_simplified(node, types[1]):
            return self._add(node, node.type, operands)
        return self._add_parts(node, render_gather(node, types), operands)

    def _add_attention(self, node: Node, operands: Sequence[_Value]) -> _Value:
        """Calls of cuDNN's or of our own kernels, with the results in the order that the node gives."""
        types = [as_array(read_type(v.shape, node.name), node.name) for v in operands]
        values = dict(zip(node.operands, operands, strict=True))
        assert isinstance(node.attrs, AttentionAttrs)
        render = render_tiled_attention if node.attrs.tiles else render_attention
        parts, names = render(node, types)
        for part in parts:
            given = [values[o] for o in part.operands]
            if isinstance(part.attrs, GetTupleElementAttrs):
                values[part.name] = self._project(given[0], part.attrs.index, part.name, part)
            else:
                values[part.name] = self._add(part, part.type, given)
        return self._tuple([values[name] for name in names], node.name)

    def _add_row_region(self, node: Node, operands: Sequence[_Value]) -> _Value:
        call = render_row_region(node)
        value = self._add(call, call.type, operands)
        return value if isinstance(call.type, TupleType) else self._tuple([value], node.name)

    def _add_loop(self, node: Node, operands: Sequence[_Value]) -> _Value:
        """A while over the tuple of its state."""
        condition, body = node.regions
        state = self._tuple(operands, f"{node.name}.init")
        called = [
            self.module.add_region(body, takes_tuple=True, gives_tuple=True),
            self.module.add_region(condition, takes_tuple=True, gives_tuple=False),
        ]
        instruction = self._start(node.name, "while", state.shape, node)
        instruction.called_computation_ids.extend(called)  # XLA stores the body first
        return self._end(instruction, [state])

    def _add_branches(self, node: Node, operands: Sequence[_Value]) -> _Value:
        """A conditional; each branch takes one tuple."""
        assert isinstance(node.attrs, ConditionalAttrs)
        given = [operands[0]]
        called = []
        start = 1
        several = isinstance(node.type, TupleType)
        for region, count in zip(node.regions, node.attrs.operand_counts, strict=True):
            argument = operands[start : start + count]
            given.append(self._tuple(argument, f"{node.name}.argument"))
            start += count
            called.append(self.module.add_region(region, takes_tuple=True, gives_tuple=several))
        instruction = self._start(node.name, "conditional", write_shape(node.type), node)
        instruction.called_computation_ids.extend(called)
        return self._end(instruction, given)


def _find_whole(leaves: Sequence[_Value], tree: Tree) -> _Value | None:
    """The tuple that has just these arrays.  The end of an exchange must read its start itself, and no copy of it."""
    source = leaves[0].source if leaves else None
    if source is None or len(source.projected) != len(leaves):
        return None
    if any(source.projected.get(i) is not leaf for i, leaf in enumerate(leaves)):
        return None
    whole = source.whole or source
    return whole if tree_of(whole.shape) == tree else None


def _count_leaves(tree: Tree) -> int:
    return 1 if tree is None else sum(map(_count_leaves, tree))


# ---- pieces of the message ---------------------------------------------------------------------------------------

_OPCODES = {"optimization-barrier": "opt-barrier"}
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]")


def _clean(name: str) -> str:
    """The name in the letters that HLO text can hold."""
    return _UNUSUAL.sub("_", name) or "unnamed"


def _write_metadata(instruction: Any, node: Node) -> None:
    if node.op_name:
        instruction.metadata.op_name = node.op_name.encode()
    file, _, line = node.source.rpartition(":")
    if file and line.isdecimal():
        instruction.metadata.source_file = file.encode()
        instruction.metadata.source_line = int(line)


_TWICE = {
    DType.S8: DType.S16,
    DType.S16: DType.S32,
    DType.S32: DType.S64,
    DType.U8: DType.U16,
    DType.U16: DType.U32,
    DType.U32: DType.U64,
}
"""The integer types with one of twice the size."""


def _render_upper_half(node: Node) -> tuple[Node, ...]:
    """mulhi(x, y): the upper half of x * y in a type of twice the size; of 64 bits by products of halves.

    XLA before JAX 0.11 lacks it, and no XLA reads it back from HLO into StableHLO.
    """
    array, parts = node.array, list[Node]()

    def add(
        op: str, dtype: DType, *operands: str, attrs: Attrs = NoAttrs(), scalar: bool = False
    ) -> str:
        shape = () if scalar else array.shape
        name = f"{node.name}/{len(parts)}"
        type_ = ArrayType(dtype, shape)
        parts.append(
            Node(name, op, type_, operands, attrs, op_name=node.op_name, source=node.source)
        )
        return name

    def splat(value: int, dtype: DType) -> str:
        literal = ConstantAttrs(Literal.of(np.asarray(value, dtype.numpy)))
        return add(
            "broadcast",
            dtype,
            add("constant", dtype, attrs=literal, scalar=True),
            attrs=BroadcastAttrs(()),
        )

    x, y = node.operands
    if wide := _TWICE.get(array.dtype):
        product = add("multiply", wide, add("convert", wide, x), add("convert", wide, y))
        upper = add("shift-right-logical", wide, product, splat(8 * array.dtype.bytes, wide))
        result = add("convert", array.dtype, upper)
    else:
        word = DType.U64
        half, mask = splat(32, word), splat(0xFFFFFFFF, word)

        def both(op: str, a: str, b: str) -> str:
            return add(op, word, a, b)

        a, b = add("convert", word, x), add("convert", word, y)
        high_a, high_b = (both("shift-right-logical", v, half) for v in (a, b))
        low_a, low_b = (both("and", v, mask) for v in (a, b))
        lowest = both("shift-right-logical", both("multiply", low_a, low_b), half)
        middle = both("add", both("multiply", high_a, low_b), lowest)
        other = both("add", both("multiply", low_a, high_b), both("and", middle, mask))
        carried = both("add", *(both("shift-right-logical", v, half) for v in (middle, other)))
        result = both("add", both("multiply", high_a, high_b), carried)
        if array.dtype.is_signed:  # a negative number counts 2^64 too much as an unsigned one
            ones = splat(63, array.dtype)
            for value, factor in ((x, b), (y, a)):
                sign = add("shift-right-arithmetic", array.dtype, value, ones)
                excess = both("and", add("convert", word, sign), factor)
                result = both("subtract", result, excess)
        result = add("convert", array.dtype, result)
    assert parts[-1].name == result
    parts[-1] = replace(parts[-1], name=node.name)
    return tuple(parts)


def _write_layouts(i: Any, attrs: CustomCallAttrs, operands: Sequence[Any]) -> None:
    """The layouts that a custom call insists on, where it names any; of a tile program: row-major.

    Without them XLA lays out operands and results as their neighbours like them.
    """
    given, made = attrs.operand_layouts, attrs.result_layouts
    if not given and not made and attrs.target != TRITON:
        return
    i.constrain_layout = True
    i.operand_shapes_with_layout.extend(operands)
    results = i.shape.tuple_shapes if i.shape.element_type == TUPLE else [i.shape]
    for shapes, layouts in ((i.operand_shapes_with_layout, given), (results, made)):
        row_major = [range(len(shape.dimensions))[::-1] for shape in shapes]
        for shape, layout in zip(shapes, layouts or row_major, strict=True):
            shape.layout.minor_to_major[:] = layout
