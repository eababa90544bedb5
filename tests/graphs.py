"""Graphs written by hand: takes calls, hands on a Graph.

    g = GraphBuilder()
    x = g.parameter("f32[8,128]")
    s = g.reduce(x, (1,), "add")
    y = g.op("subtract", "f32[8,128]", x, g.broadcast(s, (8, 128), (0,)))
    graph = g.build(y)

A value is the name of its node.  A name is the opcode and a number unless `name=` says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    Attrs,
    BroadcastAttrs,
    CompareAttrs,
    ConstantAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    IotaAttrs,
    Literal,
    NoAttrs,
    Node,
    PadAttrs,
    ParameterAttrs,
    SliceAttrs,
    TransposeAttrs,
    TupleType,
    Type,
)


def parse_type(text: str) -> Type:
    """`f32[8,128]`, `pred[]` or `(f32[8], s32[8])` -> the Type."""
    text = text.strip()
    if text.startswith("("):
        return TupleType(tuple(_parse_array(t) for t in re.findall(r"\w+\[[\d,]*\]", text)))
    return _parse_array(text)


def _parse_array(text: str) -> ArrayType:
    match = re.fullmatch(r"(\w+)\[([\d,\s]*)\]", text)
    if not match:
        raise ValueError(f"{text!r} is no array type; write it as f32[8,128]")
    return ArrayType(DType(match[1]), tuple(int(d) for d in match[2].split(",") if d.strip()))


class GraphBuilder:
    """Collects nodes in the order of the calls; `build` freezes them into a Graph."""

    def __init__(self, name: str = "main") -> None:
        self.name = name
        self.nodes: dict[str, Node] = {}
        self.parameters: list[str] = []

    # ---- the two calls that suffice for every graph

    def op(
        self,
        op: str,
        type: str | Type,
        *operands: str,
        attrs: Attrs | None = None,
        regions: Sequence[Graph] = (),
        name: str = "",
        op_name: str = "",
        source: str = "",
    ) -> str:
        """Append one node and return its name."""
        name = name or f"{op}.{len(self.nodes)}"
        assert name not in self.nodes, f"two nodes are named {name}"
        self.nodes[name] = Node(
            name,
            op,
            parse_type(type) if isinstance(type, str) else type,
            operands,
            NoAttrs() if attrs is None else attrs,
            tuple(regions),
            op_name,
            source,
        )
        return name

    def build(self, *outputs: str, aliases: Sequence[tuple[int, int]] = ()) -> Graph:
        """The Graph whose results are `outputs`."""
        return Graph(self.name, self.nodes, tuple(self.parameters), outputs, tuple(aliases))

    # ---- what is known of a value

    def array(self, value: str) -> ArrayType:
        return self.nodes[value].array

    def shape(self, value: str) -> tuple[int, ...]:
        return self.array(value).shape

    # ---- sources

    def parameter(self, type: str | Type, name: str = "") -> str:
        index = len(self.parameters)
        value = self.op("parameter", type, attrs=ParameterAttrs(index), name=name or f"p{index}")
        self.parameters.append(value)
        return value

    def constant(self, value: object, dtype: str = "", name: str = "") -> str:
        """A constant from anything NumPy reads; `dtype` as HLO names it (default: NumPy's own)."""
        array = np.asarray(value, DType(dtype).numpy if dtype else None)
        literal = Literal.of(array)
        array_type = ArrayType(literal.dtype, literal.shape)
        return self.op("constant", array_type, attrs=ConstantAttrs(literal), name=name)

    def iota(self, type: str, dimension: int, name: str = "") -> str:
        return self.op("iota", type, attrs=IotaAttrs(dimension), name=name)

    # ---- ops whose type follows from the call

    def same(self, op: str, *operands: str, name: str = "") -> str:
        """An element-wise op whose result has the type of its last operand (also select)."""
        return self.op(op, self.array(operands[-1]), *operands, name=name)

    def convert(self, x: str, dtype: str, name: str = "") -> str:
        return self.op("convert", ArrayType(DType(dtype), self.shape(x)), x, name=name)

    def compare(self, direction: str, x: str, y: str, name: str = "") -> str:
        type = ArrayType(DType.PRED, self.shape(x))
        return self.op("compare", type, x, y, attrs=CompareAttrs(direction), name=name)

    def broadcast(
        self, x: str, shape: Sequence[int], dimensions: Sequence[int] = (), name: str = ""
    ) -> str:
        type = ArrayType(self.array(x).dtype, tuple(shape))
        return self.op("broadcast", type, x, attrs=BroadcastAttrs(tuple(dimensions)), name=name)

    def splat(self, value: float | bool, type: str, name: str = "") -> str:
        """A scalar constant broadcast to `type`."""
        array = parse_type(type)
        assert isinstance(array, ArrayType)
        return self.broadcast(self.constant(value, array.dtype.value), array.shape, (), name)

    def reshape(self, x: str, shape: Sequence[int], name: str = "") -> str:
        return self.op("reshape", ArrayType(self.array(x).dtype, tuple(shape)), x, name=name)

    def transpose(self, x: str, permutation: Sequence[int], name: str = "") -> str:
        shape = self.shape(x)
        type = ArrayType(self.array(x).dtype, tuple(shape[p] for p in permutation))
        return self.op("transpose", type, x, attrs=TransposeAttrs(tuple(permutation)), name=name)

    def slice(
        self,
        x: str,
        starts: Sequence[int],
        limits: Sequence[int],
        strides: Sequence[int] | None = None,
        name: str = "",
    ) -> str:
        strides = (1,) * len(starts) if strides is None else strides
        extents = tuple(
            max(0, -(-(limit - start) // stride))
            for start, limit, stride in zip(starts, limits, strides, strict=True)
        )
        attrs = SliceAttrs(tuple(starts), tuple(limits), tuple(strides))
        return self.op("slice", ArrayType(self.array(x).dtype, extents), x, attrs=attrs, name=name)

    def pad(
        self,
        x: str,
        value: str,
        low: Sequence[int],
        high: Sequence[int],
        interior: Sequence[int] | None = None,
        name: str = "",
    ) -> str:
        interior = (0,) * len(low) if interior is None else interior
        extents = tuple(
            n + before + after + max(n - 1, 0) * between
            for n, before, after, between in zip(self.shape(x), low, high, interior, strict=True)
        )
        attrs = PadAttrs(tuple(low), tuple(high), tuple(interior))
        type = ArrayType(self.array(x).dtype, extents)
        return self.op("pad", type, x, value, attrs=attrs, name=name)

    def concatenate(self, values: Sequence[str], dimension: int, name: str = "") -> str:
        shape = list(self.shape(values[0]))
        shape[dimension] = sum(self.shape(v)[dimension] for v in values)
        type = ArrayType(self.array(values[0]).dtype, tuple(shape))
        return self.op("concatenate", type, *values, attrs=DimensionAttrs(dimension), name=name)

    def reverse(self, x: str, dimensions: Sequence[int], name: str = "") -> str:
        attrs = DimensionsAttrs(tuple(dimensions))
        return self.op("reverse", self.array(x), x, attrs=attrs, name=name)

    def reduce(
        self, x: str, dimensions: Sequence[int], op: str, init: str | None = None, name: str = ""
    ) -> str:
        """Reduce with the combiner `op` (add, multiply, maximum, minimum, and, or).

        `init` is by default the value that frameworks write: 0, 1, the least, the greatest.
        """
        array = self.array(x)
        if init is None:
            init = self.constant(_usual_init(op, array.dtype), array.dtype.value)
        kept = tuple(n for i, n in enumerate(array.shape) if i not in dimensions)
        return self.op(
            "reduce",
            ArrayType(array.dtype, kept),
            x,
            init,
            attrs=DimensionsAttrs(tuple(dimensions)),
            regions=[combiner(op, array.dtype)],
            name=name,
        )

    def arg_max(self, x: str, indices: str, dimensions: Sequence[int], name: str = "") -> str:
        """The variadic reduce of JAX's argmax: (largest value, its least index), as a tuple."""
        array, index = self.array(x), self.array(indices)
        kept = tuple(n for i, n in enumerate(array.shape) if i not in dimensions)
        return self.op(
            "reduce",
            TupleType((ArrayType(array.dtype, kept), ArrayType(index.dtype, kept))),
            x,
            indices,
            self.constant(_usual_init("maximum", array.dtype), array.dtype.value),
            self.constant(0, index.dtype.value),
            attrs=DimensionsAttrs(tuple(dimensions)),
            regions=[arg_max_combiner(array.dtype, index.dtype)],
            name=name,
        )

    def element(self, x: str, index: int, name: str = "") -> str:
        """get-tuple-element"""
        type = self.nodes[x].type
        assert isinstance(type, TupleType)
        attrs = GetTupleElementAttrs(index)
        return self.op("get-tuple-element", type.elements[index], x, attrs=attrs, name=name)

    def dot(
        self,
        x: str,
        y: str,
        lhs_contracting: Sequence[int],
        rhs_contracting: Sequence[int],
        lhs_batch: Sequence[int] = (),
        rhs_batch: Sequence[int] = (),
        dtype: str = "",
        name: str = "",
    ) -> str:
        left, right = self.array(x), self.array(y)
        attrs = DotAttrs(
            tuple(lhs_contracting), tuple(rhs_contracting), tuple(lhs_batch), tuple(rhs_batch)
        )
        shape = [left.shape[i] for i in lhs_batch]
        shape += [n for i, n in enumerate(left.shape) if i not in (*lhs_contracting, *lhs_batch)]
        shape += [n for i, n in enumerate(right.shape) if i not in (*rhs_contracting, *rhs_batch)]
        type = ArrayType(DType(dtype) if dtype else left.dtype, tuple(shape))
        return self.op("dot", type, x, y, attrs=attrs, name=name)


def combiner(op: str, dtype: DType) -> Graph:
    """The region `a, b -> op(a, b)` on scalars."""
    g = GraphBuilder(f"{op}_{dtype.value}")
    scalar = ArrayType(dtype, ())
    a, b = g.parameter(scalar, "a"), g.parameter(scalar, "b")
    return g.build(g.op(op, scalar, a, b, name=op))


def arg_max_combiner(value: DType, index: DType) -> Graph:
    """(v, i), (w, j) -> the pair of the larger value (NaN is largest), of equals the first."""
    g = GraphBuilder(f"argmax_{value.value}_{index.value}")
    scalar, position = ArrayType(value, ()), ArrayType(index, ())
    v, i = g.parameter(scalar, "v"), g.parameter(position, "i")
    w, j = g.parameter(scalar, "w"), g.parameter(position, "j")
    larger = g.op("or", "pred[]", g.compare("GT", v, w), g.compare("NE", v, v))
    first = g.op("and", "pred[]", g.compare("EQ", v, w), g.compare("LT", i, j))
    keep_index = g.op("or", "pred[]", larger, first)
    return g.build(g.op("select", scalar, larger, v, w), g.op("select", position, keep_index, i, j))


def _usual_init(op: str, dtype: DType) -> object:
    if op in ("add", "or", "xor"):
        return 0
    if op == "multiply":
        return 1
    if op == "and":
        return True if dtype is DType.PRED else ~np.zeros((), dtype.numpy)
    if dtype is DType.PRED:
        return op == "minimum"
    if dtype.is_float:
        return float("-inf") if op == "maximum" else float("inf")
    info = np.iinfo(dtype.numpy)
    return info.min if op == "maximum" else info.max
