"""Single ops, for rules that write many in place of one.

Takes a Draft and the node that they stand for, hands on the names of their values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from astitch.graph.edit import keep_live_nodes
from astitch.graph.ir import (
    ArrayType,
    Attrs,
    BroadcastAttrs,
    CompareAttrs,
    ConstantAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DType,
    Graph,
    Literal,
    NoAttrs,
    Node,
    ParameterAttrs,
    SliceAttrs,
    TransposeAttrs,
    WindowDimension,
)
from astitch.rewrite.draft import Draft

UNROLLED_ELEMENTS = 64
"""A window of more elements is not written out."""


class DraftOps:
    """Puts ops into a draft.  origin: the node that they stand for, whose name begins theirs.

    Each method hands on the name of a value; x and y are names, of one type where an op has both.
    """

    def __init__(self, origin: Node, draft: Draft) -> None:
        self.origin, self.draft = origin, draft

    def add(
        self,
        op: str,
        dtype: DType,
        shape: Sequence[int],
        operands: tuple[str, ...] = (),
        attrs: Attrs = NoAttrs(),
        regions: tuple[Graph, ...] = (),
    ) -> str:
        type_ = ArrayType(dtype, tuple(shape))
        return self.draft.add(self.origin, op, type_, operands, attrs, regions)

    def both(self, op: str, x: str, y: str) -> str:
        return self.add(op, self.draft[x].dtype, self.draft[x].shape, (x, y))

    def negate(self, x: str) -> str:
        return self.add("negate", self.draft[x].dtype, self.draft[x].shape, (x,))

    def compare(self, direction: str, x: str, y: str) -> str:
        return self.add("compare", DType.PRED, self.draft[x].shape, (x, y), CompareAttrs(direction))

    def select(self, where: str, x: str, y: str) -> str:
        return self.add("select", self.draft[x].dtype, self.draft[x].shape, (where, x, y))

    def convert(self, x: str, dtype: DType) -> str:
        if self.draft[x].dtype is dtype:
            return x
        return self.add("convert", dtype, self.draft[x].shape, (x,))

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        return self.add("reshape", self.draft[x].dtype, shape, (x,))

    def transpose(self, x: str, permutation: Sequence[int]) -> str:
        shape = self.draft[x].shape
        attrs = TransposeAttrs(tuple(permutation))
        return self.add(
            "transpose", self.draft[x].dtype, [shape[d] for d in permutation], (x,), attrs
        )

    def broadcast(self, x: str, shape: Sequence[int], dimensions: Sequence[int]) -> str:
        """dimensions: of the result, for each of x."""
        attrs = BroadcastAttrs(tuple(dimensions))
        return self.add("broadcast", self.draft[x].dtype, shape, (x,), attrs)

    def cut(
        self,
        x: str,
        starts: Sequence[int],
        limits: Sequence[int],
        strides: Sequence[int] | None = None,
    ) -> str:
        """strides: None: each element."""
        strides = strides or (1,) * len(starts)
        attrs = SliceAttrs(tuple(starts), tuple(limits), tuple(strides))
        every = zip(starts, limits, strides, strict=True)
        shape = [-(-(limit - start) // stride) for start, limit, stride in every]
        return self.add("slice", self.draft[x].dtype, shape, (x,), attrs)

    def concatenate(self, pieces: Sequence[str], dimension: int) -> str:
        """One behind the other; of one piece itself."""
        if len(pieces) == 1:
            return pieces[0]
        first = self.draft[pieces[0]].array
        shape = list(first.shape)
        shape[dimension] = sum(self.draft[piece].shape[dimension] for piece in pieces)
        attrs = DimensionAttrs(dimension)
        return self.add("concatenate", first.dtype, shape, tuple(pieces), attrs)

    def sum(self, x: str, dimensions: Sequence[int]) -> str:
        array = self.draft[x].array
        shape = [extent for d, extent in enumerate(array.shape) if d not in dimensions]
        operands, attrs = (x, self.splat(0, array.dtype, ())), DimensionsAttrs(tuple(dimensions))
        return self.add(
            "reduce", array.dtype, shape, operands, attrs, (write_addition(array.dtype),)
        )

    def splat(self, value: float, dtype: DType, shape: Sequence[int]) -> str:
        """A number repeated."""
        literal = Literal.of(np.asarray(value, dtype.numpy))
        return self.spread(self.add("constant", dtype, (), (), ConstantAttrs(literal)), shape)

    def spread(self, scalar: str, shape: Sequence[int]) -> str:
        """A scalar repeated."""
        if not shape:
            return scalar
        return self.broadcast(scalar, shape, ())

    def lift(self, region: Graph, operands: Sequence[str]) -> str:
        """What a region of scalar element-wise ops makes of all elements of its operands at once."""
        shape = self.draft[operands[0]].shape
        values = dict(zip(region.parameters, operands, strict=True))
        for inner in keep_live_nodes(region.nodes, region.outputs).values():
            if isinstance(inner.attrs, ConstantAttrs):
                scalar = self.add("constant", inner.dtype, (), (), inner.attrs)
                values[inner.name] = self.spread(scalar, shape)
            elif not inner.is_parameter:
                found = tuple(values[o] for o in inner.operands)
                values[inner.name] = self.add(inner.op, inner.dtype, shape, found, inner.attrs)
        return values[region.outputs[0]]

    def inline(self, region: Graph, operands: Sequence[str], outputs: Sequence[str]) -> list[str]:
        """Some outputs of a region, given its parameters.  Only what they need is put."""
        values = dict(zip(region.parameters, operands, strict=True))
        for inner in keep_live_nodes(region.nodes, outputs).values():
            if not inner.is_parameter:
                name = self.draft.fresh(f"{self.origin.name}.{inner.name}")
                read = tuple(values[o] for o in inner.operands)
                values[inner.name] = self.draft.put(replace(inner, name=name, operands=read))
        return [values[output] for output in outputs]

    def slice_windows(
        self, padded: str, window: Sequence[WindowDimension], shape: Sequence[int]
    ) -> Iterator[tuple[tuple[int, ...], str]]:
        """For each element of a window, in order, its place in it and the elements that `shape` windows have there."""
        extents = self.draft[padded].shape
        strides = tuple(w.stride for w in window)
        for place in itertools.product(*(range(w.size) for w in window)):
            starts = tuple(
                w.window_dilation * (w.size - 1 - o if w.reversed else o)
                for o, w in zip(place, window, strict=True)
            )
            ends = zip(starts, strides, shape, extents, strict=True)
            limits = tuple(min(a + (n - 1) * s + 1, extent) for a, s, n, extent in ends)
            attrs = SliceAttrs(starts, limits, strides)
            yield place, self.add("slice", self.draft[padded].dtype, shape, (padded,), attrs)


class Region:
    """A region of two scalars, `a` and `b`, while it is written."""

    def __init__(self, dtype: DType) -> None:
        self.origins = {
            name: Node(name, "parameter", ArrayType(dtype, ()), (), ParameterAttrs(number))
            for number, name in enumerate(("a", "b"))
        }

    def op(self, op: str, dtype: DType, operands: tuple[str, ...], attrs: Attrs = NoAttrs()) -> str:
        """The name of a new node, a scalar."""
        name = f"{op}.{len(self.origins)}"
        self.origins[name] = Node(name, op, ArrayType(dtype, ()), operands, attrs)
        return name

    def end(self, name: str, result: str) -> Graph:
        return Graph(name, self.origins, ("a", "b"), (result,))


def number_zero(dtype: DType) -> ConstantAttrs:
    """Of a constant [] that is 0."""
    return ConstantAttrs(Literal.of(np.zeros((), dtype.numpy)))


def write_addition(dtype: DType) -> Graph:
    """a + b."""
    region = Region(dtype)
    return region.end("add", region.op("add", dtype, ("a", "b")))
