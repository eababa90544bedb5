"""Takes the product of a stage; hands it on unchanged, or raises IllegalProduct around the fault.

The idea: an op's legality is a row in a table of rules, `infer_type(node, operand types)`, so a
stage may build any graph it likes and the first wrong node is named here, not five stages later.
The importer asks the same rules of each instruction: what breaks one there is the input's fault.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from astitch.errors import IllegalProduct
from astitch.graph.ir import (
    ArrayType,
    BatchNormAttrs,
    BroadcastAttrs,
    CholeskyAttrs,
    CompareAttrs,
    ConditionalAttrs,
    ConstantAttrs,
    ConvolutionAttrs,
    CustomCallAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    DType,
    DynamicSliceAttrs,
    FftAttrs,
    GatherAttrs,
    GetTupleElementAttrs,
    Graph,
    IotaAttrs,
    Node,
    PadAttrs,
    ParameterAttrs,
    ReducePrecisionAttrs,
    RngAttrs,
    RngBitGeneratorAttrs,
    RngStateAttrs,
    ScatterAttrs,
    SliceAttrs,
    SortAttrs,
    TopKAttrs,
    TransposeAttrs,
    TriangularSolveAttrs,
    TupleType,
    Type,
    WindowAttrs,
    WindowDimension,
)
from astitch.graph.ops import OPS, Kind

_LINES_AROUND = 3
A = TypeVar("A")


class Part(enum.Enum):
    """The part of a node that breaks its op's rule."""

    OPERANDS = "operands"
    ATTRIBUTES = "attributes"
    REGIONS = "regions"
    TYPE = "type"


class BrokenRule(IllegalProduct):
    """A node that breaks its op's rule: what is wrong, and in which part of the node."""

    def __init__(self, sentence: str, part: Part = Part.OPERANDS) -> None:
        super().__init__(sentence)
        self.part = part


def check_graph(graph: Graph) -> Graph:
    """The same graph, if it keeps the rules of ir.py and every op's rule below.

    Order is topological; operands, parameters and outputs exist; parameters are numbered; counts,
    types and regions fit the op.  Regions are checked too.  Raises IllegalProduct with the lines
    around the first fault.
    """
    _check_nodes(graph, {})
    return graph


def infer_type(node: Node, operand_types: Sequence[Type]) -> Type:
    """The type that the op's rule gives the node.

    What an op leaves open (the dtype of convert, dot or iota; the shape of broadcast or reshape;
    everything of custom-call) is taken from the node's own type, once that is found possible.
    Raises BrokenRule with a sentence where operands, attributes or regions break the rule.
    """
    _check_region_count(node)
    rule = _RULES.get(node.op)
    if rule is None:
        if node.op in OPS and OPS[node.op].kind is Kind.ELEMENTWISE:
            rule = _infer_same
        else:
            _require(node.op in OPS, f"there is no op {node.op!r} in astitch/graph/ops.py")
            return node.type
    return rule(node, operand_types)


def check_node(node: Node, operand_types: Sequence[Type]) -> None:
    """Raises BrokenRule where the node breaks its op's rule, or has another type than the rule gives it."""
    inferred = infer_type(node, operand_types)
    if inferred != node.type and _elements(inferred) != _elements(node.type):
        raise BrokenRule(f"the operands give {inferred}", Part.TYPE)


# ---- the graph as a whole


def _check_nodes(graph: Graph, checked: dict[int, Graph]) -> None:
    if id(graph) in checked:
        return
    checked[id(graph)] = graph  # keeps it alive, so that its id stays its own
    types: dict[str, Type] = {}
    for key, node in graph.nodes.items():
        try:
            if key != node.name:
                raise IllegalProduct(f"is stored under the name {key!r}")
            for operand in node.operands:
                if operand not in types:
                    late = operand in graph.nodes
                    what = "comes after its user" if late else "does not exist"
                    raise IllegalProduct(f"operand %{operand} {what}")
            _check_parameter(graph, node)
            check_node(node, [types[o] for o in node.operands])
        except IllegalProduct as fault:
            raise IllegalProduct(_show_fault(graph, node, str(fault))) from None
        for region in node.regions:
            _check_nodes(region, checked)
        types[node.name] = node.type
    _check_edges(graph)


def _check_parameter(graph: Graph, node: Node) -> None:
    if node.op != "parameter":
        return
    attrs = _attrs(node, ParameterAttrs)
    _require(isinstance(node.type, ArrayType), "a parameter is an array")
    _require(
        attrs.index in range(len(graph.parameters)) and graph.parameters[attrs.index] == node.name,
        f"the graph does not list it as parameter {attrs.index}",
    )


def _check_edges(graph: Graph) -> None:
    def refuse(sentence: str) -> None:
        raise IllegalProduct(f"graph {graph.name}: {sentence}{_ADVICE}")

    for i, name in enumerate(graph.parameters):
        if name not in graph.nodes or graph[name].op != "parameter":
            refuse(f"parameter {i}, %{name}, is not a parameter node")
        if graph.parameters.index(name) != i:
            refuse(f"%{name} is listed as parameter {graph.parameters.index(name)} and {i}")
    for i, name in enumerate(graph.outputs):
        if name not in graph.nodes:
            refuse(f"output {i}, %{name}, does not exist")
        if isinstance(graph[name].type, TupleType):
            refuse(f"output {i}, %{name}, is a tuple; outputs are arrays")
    for output, parameter in graph.aliases:
        if output not in range(len(graph.outputs)) or parameter not in range(len(graph.parameters)):
            refuse(f"alias of output {output} to parameter {parameter} names what does not exist")


_ADVICE = "\n  the stage that handed on this graph has a bug; print its input and report both"


def _show_fault(graph: Graph, node: Node, sentence: str) -> str:
    names = list(graph.nodes)
    at = next(i for i, name in enumerate(names) if graph.nodes[name] is node)
    lines = [
        f"  {'>' if i == at else ' '} {graph.nodes[names[i]]}"
        for i in range(max(0, at - _LINES_AROUND), min(len(names), at + _LINES_AROUND + 1))
    ]
    return f"graph {graph.name}, %{node.name}: {sentence}\n" + "\n".join(lines) + _ADVICE


# ---- words shared by the rules


def _require(condition: bool, sentence: str, part: Part = Part.ATTRIBUTES) -> None:
    """Where the sentence would show types, which takes long, rules test the condition themselves."""
    if not condition:
        raise BrokenRule(sentence, part)


def _require_operands(condition: bool, sentence: str) -> None:
    _require(condition, sentence, Part.OPERANDS)


def _attrs(node: Node, kind: type[A]) -> A:
    if not isinstance(node.attrs, kind):
        raise BrokenRule(
            f"{node.op} needs {kind.__name__}, not {type(node.attrs).__name__}", Part.ATTRIBUTES
        )
    return node.attrs


def _elements(type: Type) -> tuple[ArrayType, ...]:
    return type.elements if isinstance(type, TupleType) else (type,)


def _result(types: Sequence[ArrayType]) -> Type:
    return types[0] if len(types) == 1 else TupleType(tuple(types))


def _arrays(types: Sequence[Type], count: int | None = None) -> list[ArrayType]:
    arrays = []
    for i, type in enumerate(types):
        if isinstance(type, TupleType):
            raise BrokenRule(f"operand {i} is a tuple, {type}")
        arrays.append(type)
    if count is not None and len(arrays) != count:
        raise BrokenRule(f"has {len(arrays)} operands, the op takes {count}")
    return arrays


def _array(node: Node) -> ArrayType:
    if isinstance(node.type, TupleType):
        raise BrokenRule(f"{node.op} has one result, not {node.type}")
    return node.type


def _check_distinct(what: str, dimensions: Sequence[int], rank: int) -> None:
    _require(
        len(set(dimensions)) == len(dimensions) and all(0 <= d < rank for d in dimensions),
        f"{what} {tuple(dimensions)} are not distinct dimensions of rank {rank}",
    )


def _check_index(types: Sequence[ArrayType]) -> None:
    for i, type in enumerate(types):
        if type.shape or not type.dtype.is_integer:
            raise BrokenRule(f"index {i} is {type}, not an integer scalar")


_REGIONS = {"while": 2, "select-and-scatter": 2} | dict.fromkeys(
    ("reduce", "reduce-window", "scatter", "sort", "map", "call"), 1
)


def _check_region_count(node: Node) -> None:
    """A conditional may have any number, each checked by its rule; what a custom-call calls nobody here knows."""
    if node.op in ("conditional", "custom-call"):
        return
    count = _REGIONS.get(node.op, 0)
    if len(node.regions) != count:
        raise BrokenRule(
            f"{node.op} needs {count} regions, it has {len(node.regions)}", Part.REGIONS
        )


def _check_region(
    node: Node, at: int, parameters: Sequence[ArrayType], results: Sequence[ArrayType]
) -> None:
    """Region `at` takes `parameters` and returns `results`."""
    region = node.regions[at]
    for what, names, expected in (
        ("takes", region.parameters, parameters),
        ("returns", region.outputs, results),
    ):
        for name in names:
            if name not in region.nodes:
                raise BrokenRule(
                    f"region {region.name} {what} %{name}, a node it lacks", Part.REGIONS
                )
        found = [region[name].type for name in names]
        if found != list(expected):
            raise BrokenRule(
                f"region {region.name} {what} ({', '.join(map(str, found))}), "
                f"not ({', '.join(map(str, expected))})",
                Part.REGIONS,
            )


def _without(shape: Sequence[int], dropped: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for i, n in enumerate(shape) if i not in dropped)


# ---- sources


def _infer_parameter(node: Node, operands: Sequence[Type]) -> Type:
    _arrays(operands, 0)
    return node.type


def _infer_constant(node: Node, operands: Sequence[Type]) -> Type:
    _arrays(operands, 0)
    literal = _attrs(node, ConstantAttrs).value
    return ArrayType(literal.dtype, literal.shape)


def _infer_iota(node: Node, operands: Sequence[Type]) -> Type:
    _arrays(operands, 0)
    result = _array(node)
    _check_distinct("iota dimension", (_attrs(node, IotaAttrs).dimension,), result.rank)
    _require(result.dtype is not DType.PRED, "iota of pred has no meaning")
    return result


# ---- element-wise


_BINARY = frozenset(
    "add subtract multiply mulhi divide remainder maximum minimum power atan2 and or xor "
    "shift-left shift-right-arithmetic shift-right-logical".split()
)
_BITS = frozenset("and or xor not popcnt count-leading-zeros".split())
_INTEGERS = frozenset(
    "shift-left shift-right-arithmetic shift-right-logical popcnt count-leading-zeros mulhi".split()
)
_NOT_PRED = frozenset("subtract divide remainder power atan2 negate abs sign".split())
_ANY_NUMBER = frozenset("add multiply maximum minimum copy".split())


def _infer_same(node: Node, operands: Sequence[Type]) -> Type:
    """Every operand and the result have one type."""
    arrays = _arrays(operands, 2 if node.op in _BINARY else 1)
    for i, array in enumerate(arrays[1:], 1):
        if array != arrays[0]:
            raise BrokenRule(f"operand 0 is {arrays[0]}, operand {i} is {array}")
    dtype = arrays[0].dtype
    if node.op in _INTEGERS:
        legal = dtype.is_integer
    elif node.op in _BITS:
        legal = dtype.is_integer or dtype is DType.PRED
    elif node.op in _NOT_PRED:
        legal = dtype is not DType.PRED
    else:
        legal = node.op in _ANY_NUMBER or dtype.is_float or dtype.is_complex
    _require_operands(legal, f"{node.op} of {dtype.value} has no meaning")
    return arrays[0]


def _infer_abs(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = _arrays(operands, 1)
    _require_operands(x.dtype is not DType.PRED, "abs of pred has no meaning")
    return ArrayType(_PART.get(x.dtype, x.dtype), x.shape)


def _infer_barrier(node: Node, operands: Sequence[Type]) -> Type:
    """All operands, a tuple where they are several."""
    arrays = _arrays(operands)
    _require(len(arrays) > 0, "a barrier of nothing")
    return _result(arrays)


def _infer_is_finite(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = _arrays(operands, 1)
    _require_operands(x.dtype.is_float, f"is-finite of {x.dtype.value} has no meaning")
    return ArrayType(DType.PRED, x.shape)


def _infer_compare(node: Node, operands: Sequence[Type]) -> Type:
    x, y = _arrays(operands, 2)
    direction = _attrs(node, CompareAttrs).direction
    if x != y:
        raise BrokenRule(f"operand 0 is {x}, operand 1 is {y}")
    _require(direction in ("EQ", "NE", "LT", "LE", "GT", "GE"), f"unknown direction {direction!r}")
    return ArrayType(DType.PRED, x.shape)


def _infer_select(node: Node, operands: Sequence[Type]) -> Type:
    predicate, x, y = _arrays(operands, 3)
    if predicate != ArrayType(DType.PRED, x.shape):
        raise BrokenRule(f"operand 0 is {predicate}, not a pred of the shape of {x}")
    if x != y:
        raise BrokenRule(f"operand 1 is {x}, operand 2 is {y}")
    return x


def _infer_clamp(node: Node, operands: Sequence[Type]) -> Type:
    low, x, high = _arrays(operands, 3)
    _require_operands(low == x == high, f"operands are {low}, {x} and {high}, not of one type")
    return x


def _infer_convert(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = _arrays(operands, 1)
    return ArrayType(_array(node).dtype, x.shape)


def _infer_bitcast_convert(node: Node, operands: Sequence[Type]) -> Type:
    """Same size: same shape.  Smaller dtype: one more, last, dimension; larger: one less."""
    (x,) = _arrays(operands, 1)
    dtype = _array(node).dtype
    if x.dtype.bytes == dtype.bytes:
        return ArrayType(dtype, x.shape)
    if x.dtype.bytes > dtype.bytes:
        return ArrayType(dtype, (*x.shape, x.dtype.bytes // dtype.bytes))
    _require_operands(
        x.shape[-1:] == (dtype.bytes // x.dtype.bytes,),
        f"the last dimension of {x} does not hold one {dtype.value}",
    )
    return ArrayType(dtype, x.shape[:-1])


_PART = {DType.C64: DType.F32, DType.C128: DType.F64}
_WHOLE = {DType.F32: DType.C64, DType.F64: DType.C128}


def _infer_complex(node: Node, operands: Sequence[Type]) -> Type:
    x, y = _arrays(operands, 2)
    _require_operands(
        x == y and x.dtype in _WHOLE, f"operands are {x} and {y}, not both f32 or f64"
    )
    return ArrayType(_WHOLE[x.dtype], x.shape)


def _infer_part(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = _arrays(operands, 1)
    return ArrayType(_PART.get(x.dtype, x.dtype), x.shape)


# ---- broadcast and index maps


def _infer_broadcast(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = _arrays(operands, 1)
    result, dimensions = _array(node), _attrs(node, BroadcastAttrs).dimensions
    _check_distinct("dimensions", dimensions, result.rank)
    if len(dimensions) != x.rank:
        raise BrokenRule(f"{len(dimensions)} dimensions for an operand of {x}")
    for i, d in enumerate(dimensions):
        if x.shape[i] != result.shape[d]:
            raise BrokenRule(
                f"operand dimension {i} has {x.shape[i]} elements, result dimension {d} has "
                f"{result.shape[d]}"
            )
    return ArrayType(x.dtype, result.shape)


def _infer_reshape(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = _arrays(operands, 1)
    result = _array(node)
    if x.size != result.size:
        raise BrokenRule(f"{x} has {x.size} elements, the result {result.size}")
    return ArrayType(x.dtype, result.shape)


def _infer_transpose(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = _arrays(operands, 1)
    permutation = _attrs(node, TransposeAttrs).permutation
    _require(
        sorted(permutation) == list(range(x.rank)),
        f"{permutation} is no permutation of {x.rank} dimensions",
    )
    return ArrayType(x.dtype, tuple(x.shape[p] for p in permutation))


def _infer_slice(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = _arrays(operands, 1)
    a = _attrs(node, SliceAttrs)
    _require(
        len(a.starts) == len(a.limits) == len(a.strides) == x.rank,
        f"starts, limits and strides are not {x.rank} each",
    )
    for i, (start, limit, stride) in enumerate(zip(a.starts, a.limits, a.strides, strict=True)):
        if not (0 <= start <= limit <= x.shape[i] and stride >= 1):
            raise BrokenRule(f"[{start}:{limit}:{stride}] of dimension {i} of {x}")
    spans = zip(a.starts, a.limits, a.strides, strict=True)
    return ArrayType(x.dtype, tuple(-((start - limit) // stride) for start, limit, stride in spans))


def _infer_pad(node: Node, operands: Sequence[Type]) -> Type:
    x, value = _arrays(operands, 2)
    a = _attrs(node, PadAttrs)
    _require_operands(
        value == ArrayType(x.dtype, ()), f"the padding value is {value}, the operand {x}"
    )
    _require(
        len(a.low) == len(a.high) == len(a.interior) == x.rank,
        f"low, high and interior are not {x.rank} each",
    )
    _require(all(i >= 0 for i in a.interior), f"negative interior padding {a.interior}")
    shape = tuple(
        n + low + high + max(n - 1, 0) * between
        for n, low, high, between in zip(x.shape, a.low, a.high, a.interior, strict=True)
    )
    _require(all(n >= 0 for n in shape), f"padding leaves {shape}")
    return ArrayType(x.dtype, shape)


def _infer_concatenate(node: Node, operands: Sequence[Type]) -> Type:
    arrays = _arrays(operands)
    _require_operands(len(arrays) > 0, "concatenate of nothing")
    first, d = arrays[0], _attrs(node, DimensionAttrs).dimension
    _check_distinct("dimension", (d,), first.rank)
    for i, array in enumerate(arrays):
        fits = array.dtype == first.dtype and array.rank == first.rank
        _require(
            fits and _without(array.shape, (d,)) == _without(first.shape, (d,)),
            f"operand {i} is {array}, operand 0 is {first}: they differ beyond dimension {d}",
        )
    shape = list(first.shape)
    shape[d] = sum(array.shape[d] for array in arrays)
    return ArrayType(first.dtype, tuple(shape))


def _infer_reverse(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = _arrays(operands, 1)
    _check_distinct("dimensions", _attrs(node, DimensionsAttrs).dimensions, x.rank)
    return x


def _infer_dynamic_slice(node: Node, operands: Sequence[Type]) -> Type:
    _require_operands(len(operands) >= 1, "needs an operand")
    x, *indices = _arrays(operands)
    sizes = _attrs(node, DynamicSliceAttrs).sizes
    _require(len(indices) == len(sizes) == x.rank, f"indices and sizes are not {x.rank} each")
    _check_index(indices)
    fits = all(0 <= size <= n for size, n in zip(sizes, x.shape, strict=True))
    _require(fits, f"sizes {sizes} exceed {x}")
    return ArrayType(x.dtype, sizes)


def _infer_dynamic_update_slice(node: Node, operands: Sequence[Type]) -> Type:
    _require_operands(len(operands) >= 2, "needs an operand and an update")
    x, update, *indices = _arrays(operands)
    _require_operands(len(indices) == x.rank, f"{len(indices)} indices for {x}")
    _check_index(indices)
    _require_operands(
        update.dtype == x.dtype
        and update.rank == x.rank
        and all(m <= n for m, n in zip(update.shape, x.shape, strict=True)),
        f"the update {update} does not fit into {x}",
    )
    return x


def _infer_gather(node: Node, operands: Sequence[Type]) -> Type:
    x, indices = _arrays(operands, 2)
    a = _attrs(node, GatherAttrs)
    _require_operands(indices.dtype.is_integer, f"indices are {indices}")
    _require(
        0 <= a.index_vector_dim <= indices.rank,
        f"index_vector_dim {a.index_vector_dim} of indices {indices}",
    )
    _require(len(a.slice_sizes) == x.rank, f"{len(a.slice_sizes)} slice sizes for {x}")
    _check_distinct("start_index_map", a.start_index_map, x.rank)
    dropped = (*a.collapsed_slice_dims, *a.operand_batching_dims)
    _check_distinct("collapsed and batching dimensions", dropped, x.rank)
    for d, size in enumerate(a.slice_sizes):
        _require(0 <= size <= x.shape[d], f"slice size {size} of dimension {d} of {x}")
        _require(d not in dropped or size <= 1, f"collapsed dimension {d} has slice size {size}")
    vector = 1 if a.index_vector_dim == indices.rank else indices.shape[a.index_vector_dim]
    _require(
        vector == len(a.start_index_map),
        f"index vectors have {vector} elements, start_index_map {len(a.start_index_map)}",
    )
    _check_batching(
        x, a.operand_batching_dims, indices, a.start_indices_batching_dims, a.index_vector_dim
    )
    _check_distinct(
        "start_index_map and batching", (*a.start_index_map, *a.operand_batching_dims), x.rank
    )
    batch = list(_without(indices.shape, (a.index_vector_dim,)))
    window = list(_without(a.slice_sizes, dropped))
    rank = len(batch) + len(window)
    _check_distinct("offset_dims", a.offset_dims, rank)
    _require(len(a.offset_dims) == len(window), f"{len(a.offset_dims)} offset_dims for {window}")
    # Offset dimensions take the window in order, the others the batch.
    shape = tuple(window.pop(0) if d in a.offset_dims else batch.pop(0) for d in range(rank))
    return ArrayType(x.dtype, shape)


def _check_batching(
    x: ArrayType,
    dimensions: Sequence[int],
    indices: ArrayType,
    indices_dimensions: Sequence[int],
    index_vector_dim: int,
) -> None:
    """Batching dimensions of an operand and of its indices run side by side; x's are known to be dimensions of it."""
    _check_distinct(
        "batching and index_vector_dim", (*indices_dimensions, index_vector_dim), indices.rank + 1
    )
    _require(
        all(d < indices.rank for d in indices_dimensions)
        and [x.shape[d] for d in dimensions] == [indices.shape[d] for d in indices_dimensions],
        f"batching dimensions {dimensions} of {x} and {indices_dimensions} of {indices} differ",
    )


# ---- ops with regions


def _scalars(arrays: Sequence[ArrayType]) -> list[ArrayType]:
    return [ArrayType(a.dtype, ()) for a in arrays]


def _split_inits(node: Node, operands: Sequence[Type]) -> tuple[list[ArrayType], list[ArrayType]]:
    """(inputs, inits) of reduce and reduce-window, with its combiner checked."""
    arrays = _arrays(operands)
    _require_operands(
        len(arrays) >= 2 and len(arrays) % 2 == 0,
        f"has {len(arrays)} operands, needs as many initial values as inputs",
    )
    half = len(arrays) // 2
    inputs, inits = arrays[:half], arrays[half:]
    for i in range(half):
        _require_operands(inits[i].shape == (), f"initial value {i} is {inits[i]}, not a scalar")
        _require_operands(
            inputs[i].shape == inputs[0].shape, f"input {i} is {inputs[i]}, input 0 {inputs[0]}"
        )
    _check_region(node, 0, [*inits, *_scalars(inputs)], inits)
    return inputs, inits


def _infer_reduce(node: Node, operands: Sequence[Type]) -> Type:
    inputs, inits = _split_inits(node, operands)
    dimensions = _attrs(node, DimensionsAttrs).dimensions
    _check_distinct("dimensions", dimensions, inputs[0].rank)
    shape = _without(inputs[0].shape, dimensions)
    return _result([ArrayType(init.dtype, shape) for init in inits])


def _slide(n: int, w: WindowDimension) -> int:
    """How many positions the window has along a dimension of n elements."""
    _require(
        w.size >= 1 and w.stride >= 1 and w.window_dilation >= 1 and w.base_dilation >= 1,
        f"impossible window {w}",
    )
    base = ((n - 1) * w.base_dilation + 1 if n else 0) + w.padding_low + w.padding_high
    window = (w.size - 1) * w.window_dilation + 1
    return (base - window) // w.stride + 1 if base >= window else 0


def _infer_reduce_window(node: Node, operands: Sequence[Type]) -> Type:
    inputs, inits = _split_inits(node, operands)
    window = _attrs(node, WindowAttrs).window
    _require(len(window) == inputs[0].rank, f"a window of rank {len(window)} over {inputs[0]}")
    shape = tuple(_slide(n, w) for n, w in zip(inputs[0].shape, window, strict=True))
    return _result([ArrayType(init.dtype, shape) for init in inits])


def _infer_select_and_scatter(node: Node, operands: Sequence[Type]) -> Type:
    x, source, init = _arrays(operands, 3)
    window = _attrs(node, WindowAttrs).window
    _require(len(window) == x.rank, f"a window of rank {len(window)} over {x}")
    shape = tuple(_slide(n, w) for n, w in zip(x.shape, window, strict=True))
    _require_operands(
        source.shape == shape, f"the source is {source}, the window has {shape} positions"
    )
    _require_operands(
        init == ArrayType(x.dtype, ()), f"the initial value is {init}, the operand {x}"
    )
    scalar = _scalars([x])
    _check_region(node, 0, scalar * 2, [ArrayType(DType.PRED, ())])
    _check_region(node, 1, scalar * 2, scalar)
    return x


def _infer_scatter(node: Node, operands: Sequence[Type]) -> Type:
    arrays = _arrays(operands)
    a = _attrs(node, ScatterAttrs)
    _require_operands(len(arrays) >= 3 and len(arrays) % 2 == 1, f"has {len(arrays)} operands")
    half = len(arrays) // 2
    inputs, indices, updates = arrays[:half], arrays[half], arrays[half + 1 :]
    _require_operands(indices.dtype.is_integer, f"indices are {indices}")
    _require(
        0 <= a.index_vector_dim <= indices.rank,
        f"index_vector_dim {a.index_vector_dim} of indices {indices}",
    )
    vector = 1 if a.index_vector_dim == indices.rank else indices.shape[a.index_vector_dim]
    _require(
        vector == len(a.scatter_dims_to_operand_dims),
        f"index vectors have {vector} elements, scatter_dims_to_operand_dims {len(a.scatter_dims_to_operand_dims)}",
    )
    indexed = (*a.scatter_dims_to_operand_dims, *a.input_batching_dims)
    _check_distinct("scatter_dims_to_operand_dims and batching", indexed, inputs[0].rank)
    _check_batching(
        inputs[0],
        a.input_batching_dims,
        indices,
        a.scatter_indices_batching_dims,
        a.index_vector_dim,
    )
    for x, update in zip(inputs, updates, strict=True):
        _require_operands(x.shape == inputs[0].shape, f"inputs {inputs[0]} and {x} differ in shape")
        _check_distinct("update_window_dims", a.update_window_dims, update.rank)
        inserted = (*a.inserted_window_dims, *a.input_batching_dims)
        _check_distinct("inserted and batching dimensions", inserted, x.rank)
        window = [update.shape[d] for d in a.update_window_dims]
        room = _without(x.shape, inserted)
        _require(
            len(window) == len(room) and all(m <= n for m, n in zip(window, room, strict=True)),
            f"update windows {window} do not fit into {x}",
        )
        batch = _without(update.shape, a.update_window_dims)
        _require(
            batch == _without(indices.shape, (a.index_vector_dim,)),
            f"the updates {update} have batch {batch}, the indices are {indices}",
        )
    _check_region(node, 0, [*_scalars(inputs), *_scalars(updates)], _scalars(inputs))
    return _result(inputs)


def _infer_sort(node: Node, operands: Sequence[Type]) -> Type:
    arrays = _arrays(operands)
    _require_operands(len(arrays) > 0, "sort of nothing")
    _check_distinct("dimension", (_attrs(node, SortAttrs).dimension,), arrays[0].rank)
    for i, array in enumerate(arrays):
        _require_operands(
            array.shape == arrays[0].shape, f"operand {i} is {array}, operand 0 {arrays[0]}"
        )
    pairs = [s for s in _scalars(arrays) for _ in range(2)]
    _check_region(node, 0, pairs, [ArrayType(DType.PRED, ())])
    return _result(arrays)


def _infer_map(node: Node, operands: Sequence[Type]) -> Type:
    arrays = _arrays(operands)
    result = _array(node)
    for i, array in enumerate(arrays):
        _require_operands(
            array.shape == result.shape, f"operand {i} is {array}, the result {result}"
        )
    _check_region(node, 0, _scalars(arrays), _scalars([result]))
    return result


def _infer_while(node: Node, operands: Sequence[Type]) -> Type:
    state = _arrays(operands)
    _check_region(node, 0, state, [ArrayType(DType.PRED, ())])
    _check_region(node, 1, state, state)
    return _result(state) if state else TupleType(())


def _infer_conditional(node: Node, operands: Sequence[Type]) -> Type:
    _require_operands(len(operands) >= 1, "needs a selector")
    selector, *rest = _arrays(operands)
    counts = _attrs(node, ConditionalAttrs).operand_counts
    _require_operands(
        selector in (ArrayType(DType.PRED, ()), ArrayType(DType.S32, ())),
        f"the selector is {selector}, not pred[] or s32[]",
    )
    _require(
        selector.dtype is DType.S32 or len(counts) == 2, f"pred chooses of 2, not {len(counts)}"
    )
    _require(
        len(counts) == len(node.regions) and sum(counts) == len(rest),
        f"operand_counts {counts} for {len(node.regions)} branches and {len(rest)} operands",
    )
    at = 0
    for branch, count in enumerate(counts):
        _check_region(node, branch, rest[at : at + count], _elements(node.type))
        at += count
    return node.type


def _infer_call(node: Node, operands: Sequence[Type]) -> Type:
    _check_region(node, 0, _arrays(operands), _elements(node.type))
    return node.type


# ---- library calls and steps of their own


def _infer_dot(node: Node, operands: Sequence[Type]) -> Type:
    x, y = _arrays(operands, 2)
    a = _attrs(node, DotAttrs)
    _check_distinct("lhs dimensions", (*a.lhs_contracting, *a.lhs_batch), x.rank)
    _check_distinct("rhs dimensions", (*a.rhs_contracting, *a.rhs_batch), y.rank)
    for what, left, right in (
        ("contracting", a.lhs_contracting, a.rhs_contracting),
        ("batch", a.lhs_batch, a.rhs_batch),
    ):
        _require(
            [x.shape[d] for d in left] == [y.shape[d] for d in right],
            f"{what} dimensions {left} of {x} and {right} of {y} differ",
        )
    _check_precision(a.precision)
    shape = (
        *(x.shape[d] for d in a.lhs_batch),
        *_without(x.shape, (*a.lhs_contracting, *a.lhs_batch)),
        *_without(y.shape, (*a.rhs_contracting, *a.rhs_batch)),
    )
    return ArrayType(_array(node).dtype, shape)


def _check_precision(precision: Sequence[str]) -> None:
    _require(len(precision) == 2, f"{len(precision)} precisions, one for each factor was expected")


def _infer_convolution(node: Node, operands: Sequence[Type]) -> Type:
    x, kernel = _arrays(operands, 2)
    a = _attrs(node, ConvolutionAttrs)
    rank = len(a.window) + 2
    for what, dimensions, array in (
        ("input", (a.input_batch, a.input_feature, *a.input_spatial), x),
        ("kernel", (a.kernel_input_feature, a.kernel_output_feature, *a.kernel_spatial), kernel),
        ("output", (a.output_batch, a.output_feature, *a.output_spatial), _array(node)),
    ):
        _require(
            sorted(dimensions) == list(range(rank)) and array.rank == rank,
            f"{what} dimensions {dimensions} of {array} under a window of rank {len(a.window)}",
        )
    features = kernel.shape[a.kernel_input_feature]
    _require(
        x.shape[a.input_feature] == features * a.feature_group_count,
        f"{x.shape[a.input_feature]} input features in {a.feature_group_count} groups, the kernel "
        f"takes {features}",
    )
    for groups, extent, what in (
        (a.feature_group_count, kernel.shape[a.kernel_output_feature], "output features"),
        (a.batch_group_count, kernel.shape[a.kernel_output_feature], "output features"),
        (a.batch_group_count, x.shape[a.input_batch], "images"),
    ):
        _require(
            groups >= 1 and extent % groups == 0, f"{extent} {what} are not in {groups} groups"
        )
    _require(
        a.feature_group_count == 1 or a.batch_group_count == 1,
        f"{a.feature_group_count} groups of features and {a.batch_group_count} of images at once",
    )
    _check_precision(a.precision)
    shape = [0] * rank
    shape[a.output_batch] = x.shape[a.input_batch] // a.batch_group_count
    shape[a.output_feature] = kernel.shape[a.kernel_output_feature]
    for i, w in enumerate(a.window):
        size = kernel.shape[a.kernel_spatial[i]]
        _require(w.size == size, f"window dimension {i} has {w.size}, the kernel {size} elements")
        shape[a.output_spatial[i]] = _slide(x.shape[a.input_spatial[i]], w)
    return ArrayType(_array(node).dtype, tuple(shape))


def _infer_get_tuple_element(node: Node, operands: Sequence[Type]) -> Type:
    _require_operands(len(operands) == 1, f"has {len(operands)} operands, the op takes 1")
    elements, index = _elements(operands[0]), _attrs(node, GetTupleElementAttrs).index
    if not 0 <= index < len(elements):
        raise BrokenRule(f"element {index} of {operands[0]}")
    return elements[index]


def _infer_batch_norm(node: Node, operands: Sequence[Type]) -> Type:
    """training: (x, scale, offset) -> (y, mean, variance).
    inference: (x, scale, offset, mean, variance) -> y.
    grad: (x, scale, mean, variance, dy) -> (dx, dscale, doffset).
    """
    inference, training = node.op == "batch-norm-inference", node.op == "batch-norm-training"
    x, *rest = _arrays(operands, 3 if training else 5)
    feature_index = _attrs(node, BatchNormAttrs).feature_index
    _check_distinct("feature_index", (feature_index,), x.rank)
    features = x.shape[feature_index]
    vectors = rest if inference or training else rest[:-1]
    for i, vector in enumerate(vectors, 1):
        _require_operands(
            vector.shape == (features,), f"operand {i} is {vector}, {features} features"
        )
    if node.op == "batch-norm-grad":
        _require_operands(rest[-1].shape == x.shape, f"dy is {rest[-1]}, x is {x}")
    return x if inference else TupleType((x, vectors[0], vectors[0]))


def _infer_cholesky(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = _arrays(operands, 1)
    _attrs(node, CholeskyAttrs)
    _check_square(x)
    return x


def _infer_triangular_solve(node: Node, operands: Sequence[Type]) -> Type:
    a, b = _arrays(operands, 2)
    left = _attrs(node, TriangularSolveAttrs).left_side
    _check_square(a)
    if (
        b.dtype is not a.dtype
        or b.rank != a.rank
        or b.shape[:-2] != a.shape[:-2]
        or b.shape[-2 if left else -1] != a.shape[-1]
    ):
        raise BrokenRule(f"{a} and {b} are no system with its right-hand sides")
    return b


def _check_square(x: ArrayType) -> None:
    if x.rank < 2 or x.shape[-1] != x.shape[-2] or not (x.dtype.is_float or x.dtype.is_complex):
        raise BrokenRule(f"operand 0 is {x}, not square matrices of floats")


def _infer_fft(node: Node, operands: Sequence[Type]) -> Type:
    """The lengths are those of the last dimensions: of the operand, for IRFFT of the result.

    RFFT keeps n // 2 + 1 of the n elements of the last one, IRFFT takes as many.
    """
    (x,) = _arrays(operands, 1)
    a = _attrs(node, FftAttrs)
    rank = len(a.lengths)
    _require(
        1 <= rank <= min(3, x.rank) and all(n >= 0 for n in a.lengths),
        f"lengths {a.lengths} over {x}: one for each of the last dimensions, 1 to 3 of them",
    )
    half = (*a.lengths[:-1], a.lengths[-1] // 2 + 1 if a.lengths[-1] else 0)
    taken = half if a.kind == "IRFFT" else a.lengths
    if x.shape[-rank:] != taken:
        raise BrokenRule(
            f"{a.kind} of lengths {a.lengths} takes {taken}, the operand is {x}", Part.ATTRIBUTES
        )
    given = half if a.kind == "RFFT" else a.lengths
    types = {"RFFT": _WHOLE, "IRFFT": _PART}.get(a.kind, {c: c for c in _PART})
    _require_operands(x.dtype in types, f"{a.kind} of {x.dtype.value} has no meaning")
    return ArrayType(types[x.dtype], (*x.shape[:-rank], *given))


def _infer_topk(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = _arrays(operands, 1)
    k = _attrs(node, TopKAttrs).k
    _require_operands(x.rank >= 1 and not x.dtype.is_complex, f"topk of {x} has no meaning")
    _require(0 <= k <= x.shape[-1], f"the {k} first of {x.shape[-1]} elements")
    shape = (*x.shape[:-1], k)
    return TupleType((ArrayType(x.dtype, shape), ArrayType(DType.S32, shape)))


def _infer_rng(node: Node, operands: Sequence[Type]) -> Type:
    result = _array(node)
    scalar = ArrayType(result.dtype, ())
    if _arrays(operands, 2) != [scalar, scalar]:
        raise BrokenRule(f"operands are {operands[0]} and {operands[1]}, not both {scalar}")
    normal = _attrs(node, RngAttrs).distribution == "RNG_NORMAL"
    _require(
        result.dtype.is_float or (result.dtype.is_integer and not normal),
        f"{'normal' if normal else 'uniform'} numbers of {result.dtype.value} have no meaning",
        Part.TYPE,
    )
    return result


_STATES = (
    ArrayType(DType.U64, (2,)),
    ArrayType(DType.U64, (3,)),
    ArrayType(DType.U32, (4,)),
    ArrayType(DType.U32, (6,)),
)


def _infer_random_bits(node: Node, operands: Sequence[Type]) -> Type:
    """(the new state, the bits); Threefry has a state of two 64-bit words, Philox of two or three."""
    (state,) = _arrays(operands, 1)
    states = [t for t in _STATES if t.bytes == 16 or not _is_threefry(node)]
    if state not in states:
        raise BrokenRule(f"the state is {state}, not one of {', '.join(map(str, states))}")
    elements = _elements(node.type)
    _require(
        len(elements) == 2 and elements[1].dtype.is_integer,
        f"the result is {node.type}, not a state and integers",
        Part.TYPE,
    )
    return TupleType((state, elements[1]))


def _is_threefry(node: Node) -> bool:
    return _attrs(node, RngBitGeneratorAttrs).algorithm == "RNG_THREE_FRY"


def _infer_random_state(node: Node, operands: Sequence[Type]) -> Type:
    _arrays(operands, 0)
    _attrs(node, RngStateAttrs)
    return _array(node)


def _infer_reduce_precision(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = _arrays(operands, 1)
    a = _attrs(node, ReducePrecisionAttrs)
    _require_operands(x.dtype.is_float, f"reduce-precision of {x.dtype.value} has no meaning")
    _require(
        a.exponent_bits >= 1 and a.mantissa_bits >= 0,
        f"{a.exponent_bits} bits of exponent and {a.mantissa_bits} of mantissa make no float",
    )
    return x


def _infer_custom_call(node: Node, operands: Sequence[Type]) -> Type:
    """Any operands and results; layouts order the dimensions of each, aliases name a result and an operand."""
    arrays, results = _arrays(operands), _elements(node.type)
    a = _attrs(node, CustomCallAttrs)
    for what, types, layouts in (
        ("operand", arrays, a.operand_layouts),
        ("result", results, a.result_layouts),
    ):
        _require(
            not layouts or len(layouts) == len(types),
            f"{len(layouts)} {what} layouts for {len(types)} {what}s",
        )
        for i, (type_, layout) in enumerate(zip(types, layouts, strict=False)):
            _require(
                sorted(layout) == list(range(type_.rank)),
                f"the layout {layout} of {what} {i} does not order {type_.rank} dimensions",
            )
    for result, operand in a.aliases:
        _require(
            result in range(len(results)) and operand in range(len(arrays)),
            f"result {result} shares memory with operand {operand}: one does not exist",
        )
    return node.type


_Rule = Callable[[Node, Sequence[Type]], Type]
_RULES: Mapping[str, _Rule] = {
    "parameter": _infer_parameter,
    "optimization-barrier": _infer_barrier,
    "constant": _infer_constant,
    "iota": _infer_iota,
    "abs": _infer_abs,
    "is-finite": _infer_is_finite,
    "compare": _infer_compare,
    "select": _infer_select,
    "clamp": _infer_clamp,
    "convert": _infer_convert,
    "bitcast-convert": _infer_bitcast_convert,
    "complex": _infer_complex,
    "real": _infer_part,
    "imag": _infer_part,
    "broadcast": _infer_broadcast,
    "reshape": _infer_reshape,
    "transpose": _infer_transpose,
    "slice": _infer_slice,
    "pad": _infer_pad,
    "concatenate": _infer_concatenate,
    "reverse": _infer_reverse,
    "dynamic-slice": _infer_dynamic_slice,
    "dynamic-update-slice": _infer_dynamic_update_slice,
    "gather": _infer_gather,
    "reduce": _infer_reduce,
    "reduce-window": _infer_reduce_window,
    "select-and-scatter": _infer_select_and_scatter,
    "scatter": _infer_scatter,
    "sort": _infer_sort,
    "map": _infer_map,
    "while": _infer_while,
    "conditional": _infer_conditional,
    "call": _infer_call,
    "dot": _infer_dot,
    "convolution": _infer_convolution,
    "get-tuple-element": _infer_get_tuple_element,
    "batch-norm-training": _infer_batch_norm,
    "batch-norm-inference": _infer_batch_norm,
    "batch-norm-grad": _infer_batch_norm,
    "triangular-solve": _infer_triangular_solve,
    "cholesky": _infer_cholesky,
    "fft": _infer_fft,
    "topk": _infer_topk,
    "rng": _infer_rng,
    "rng-bit-generator": _infer_random_bits,
    "rng-get-and-update-state": _infer_random_state,
    "reduce-precision": _infer_reduce_precision,
    "custom-call": _infer_custom_call,
}
