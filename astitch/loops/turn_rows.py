"""Turns -> Turns of some rows only: where no element of one row meets another row's, each block has rows of its own.

Takes Turns of a batch, hands on those of a part of it, with where the parts lie.  The idea: a graph says nothing of how
long a dimension is, so the rows of a block are the same graph with a shorter dimension.  No block waits for another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from astitch.graph.edit import free_name
from astitch.graph.ir import (
    ArrayType,
    Attrs,
    BroadcastAttrs,
    ConstantAttrs,
    DType,
    DynamicSliceAttrs,
    GatherAttrs,
    Graph,
    IotaAttrs,
    Literal,
    NoAttrs,
    Node,
    ParameterAttrs,
    SliceAttrs,
    SortAttrs,
    TupleType,
)
from astitch.graph.ops import OPS
from astitch.loops.analysis import Invariant, Loop
from astitch.loops.flatten import Dimension
from astitch.loops.row_dimensions import NotSpelled, RowDimensions, counts_up
from astitch.loops.turns import Level, Turns

LEAST_ROWS = 2


@dataclass(frozen=True)
class _Class:
    """Dimensions that hold the rows.  of: by value, which one.  rows: how many there are."""

    of: Mapping[str, int]
    rows: int


def find_rows(turns: Turns) -> int:
    """How many rows a turn has that never meet; 1 where there are no such."""
    found = _find_class(turns)
    return found.rows if found else 1


def take_rows(turns: Turns, rows: int) -> Turns:
    """The turns of so many rows, a divisor of all of them."""
    found = _find_class(turns)
    assert found is not None and found.rows % rows == 0
    return _Cutter(turns, found, rows).cut()


class _Rows(RowDimensions):
    """RowDimensions of a turn."""

    def visit(self, node: Node) -> None:
        if not isinstance(node.attrs, SortAttrs):
            super().visit(node)
            return
        for operand in node.operands:
            for d in range(self.body[operand].array.rank):
                self.match((operand, d), (node.name, d), d == node.attrs.dimension)

    def list_classes(self) -> list[_Class]:
        """The dimensions whose elements never meet, the longest first."""
        for node in self.body:
            self.visit(node)
        for parameter, value in zip(self.body.parameters, self.body.outputs, strict=False):
            if value:
                for d in range(self.body[parameter].array.rank):
                    self.join((parameter, d), (value, d))
        bound = {self.find(key) for key in self.bound}
        classes: dict[Dimension, dict[str, int]] = {}
        extents: dict[Dimension, int] = {}
        dropped = set(bound)
        for node in self.body:
            shape = _shape_of(node)
            for d, extent in enumerate(shape):
                key = self.find((node.name, d))
                if extent <= 1 or key in dropped:
                    continue
                of = classes.setdefault(key, {})
                if extents.setdefault(key, extent) != extent or node.name in of:
                    dropped.add(key)
                of[node.name] = d
        return sorted(
            (_Class(of, extents[key]) for key, of in classes.items() if key not in dropped),
            key=lambda c: -c.rows,
        )


def _shape_of(node: Node) -> tuple[int, ...]:
    type_ = node.type.elements[0] if isinstance(node.type, TupleType) else node.type
    return type_.shape if isinstance(type_, ArrayType) else ()


def _find_class(turns: Turns) -> _Class | None:
    """The longest class of rows that lie one behind the other in all that a turn reads and writes."""
    graph = turns.graph
    made = dict(zip(turns.carried, graph.outputs, strict=False))
    # What a state becomes has its dimensions; others become nothing.
    outputs = tuple(made.get(n, "") for n in range(len(graph.parameters)))
    body = replace(graph, outputs=outputs)
    condition, _ = turns.loop.node.regions
    node = replace(turns.loop.node, regions=(condition, body))
    roles = tuple(Invariant() for _ in graph.parameters)
    loop = Loop(node, 0, roles, {}, {}, {})
    try:
        classes = _Rows(loop, {*graph.nodes}).list_classes()
    except NotSpelled:
        return None
    seen = {*graph.parameters, *graph.outputs}
    for found in classes:
        first = all(
            name not in found.of or math.prod(_shape_of(graph[name])[: found.of[name]]) == 1
            for name in seen
        )
        carried = (name in found.of for name in made.values())
        if found.rows >= LEAST_ROWS and first and any(carried) and _can_cut(graph, found):
            return found
    return None


def _can_cut(graph: Graph, found: _Class) -> bool:
    """Is every count of rows told by something that a block knows?"""
    for node in graph:
        d = found.of.get(node.name)
        if OPS[node.op].keeps_order and counts_up(graph, node) and d is not None:
            if math.prod(node.shape[:d]) != 1:
                return False
        elif OPS[node.op].keeps_order and (d is None) != (node.operands[0] not in found.of):
            return False
    return True


class _Cutter:
    """Writes a turn with fewer rows."""

    def __init__(self, turns: Turns, found: _Class, rows: int) -> None:
        self.turns, self.graph, self.found, self.rows = turns, turns.graph, found, rows
        self.nodes: dict[str, Node] = {}
        self.taken = {*self.graph.nodes}
        self.first = ""

    def cut(self) -> Turns:
        for node in self.graph:
            if _counts_rows(self.graph, self.found, node):
                self.count(node)
            else:
                self.nodes[node.name] = self.shorten(node)
        parameters = self.graph.parameters
        if self.first:
            parameters = (*parameters, self.first)
            attrs = ParameterAttrs(len(parameters) - 1)
            one = Node(self.first, "parameter", ArrayType(DType.S32, ()), attrs=attrs)
            self.nodes = {self.first: one, **self.nodes}
        graph = Graph(self.graph.name, self.nodes, parameters, self.graph.outputs)
        split = {
            number
            for number, name in enumerate(self.graph.parameters)
            if name in self.found.of and number < len(self.turns.loop.types)
        }
        first = len(self.turns.carried)
        split |= {
            state
            for state, name in zip(self.turns.stacks, self.graph.outputs[first:], strict=False)
            if name in self.found.of
        }
        cut = frozenset(name for name in self.turns.slices if name in self.found.of)
        level = Level(self.found.rows // self.rows, self.rows, frozenset(split), cut, self.first)
        return replace(self.turns, graph=graph, levels=(*self.turns.levels, level))

    def shorten(self, node: Node) -> Node:
        """The node with fewer rows."""
        if isinstance(node.type, TupleType):
            elements = tuple(self.shorten_type(node.name, t) for t in node.type.elements)
            return replace(node, type=TupleType(elements))
        type_ = self.shorten_type(node.name, node.array)
        d = self.found.of.get(node.name)
        attrs = node.attrs
        match attrs:
            case ConstantAttrs(value) if d is not None:
                numbers = value.numpy()
                attrs = ConstantAttrs(
                    Literal.of(np.ascontiguousarray(numbers.take(range(self.rows), d)))
                )
            case SliceAttrs(starts, limits, strides) if d is not None:
                limits = (*limits[:d], self.rows, *limits[d + 1 :])
                attrs = SliceAttrs(starts, limits, strides)
            case DynamicSliceAttrs():
                attrs = DynamicSliceAttrs(type_.shape)
            case GatherAttrs():
                attrs = self.shorten_windows(node, attrs)
        return replace(node, type=type_, attrs=attrs)

    def shorten_type(self, name: str, type_: object) -> ArrayType:
        assert isinstance(type_, ArrayType)
        d = self.found.of.get(name)
        if d is None:
            return type_
        return ArrayType(type_.dtype, (*type_.shape[:d], self.rows, *type_.shape[d + 1 :]))

    def shorten_windows(self, node: Node, attrs: GatherAttrs) -> GatherAttrs:
        """Whole windows of fewer rows."""
        d = self.found.of.get(node.operands[0])
        if d is None or d in (*attrs.collapsed_slice_dims, *attrs.operand_batching_dims):
            return attrs
        sizes = attrs.slice_sizes
        return replace(attrs, slice_sizes=(*sizes[:d], self.rows, *sizes[d + 1 :]))

    def put(
        self, hint: str, op: str, type_: ArrayType, operands: tuple[str, ...], attrs: Attrs
    ) -> str:
        name = free_name(hint, self.taken)
        self.taken.add(name)
        self.nodes[name] = Node(name, op, type_, operands, attrs)
        return name

    def count(self, node: Node) -> None:
        """The numbers of a block's rows, in place of those of all."""
        self.first = self.first or free_name("first_row", self.taken)
        self.taken.add(self.first)
        d = self.found.of[node.name]
        type_ = self.shorten_type(node.name, node.array)
        inner = 1 if isinstance(node.attrs, IotaAttrs) else math.prod(node.shape[d + 1 :])
        whole = ArrayType(DType.S32, type_.shape)
        if isinstance(node.attrs, IotaAttrs):
            own = self.put(f"{node.name}.own", "iota", whole, (), IotaAttrs(d))
        else:
            flat = ArrayType(DType.S32, (whole.size,))
            line = self.put(f"{node.name}.line", "iota", flat, (), IotaAttrs(0))
            own = self.put(f"{node.name}.own", "reshape", whole, (line,), NoAttrs())
        start = self.first
        if inner != 1:
            single = ArrayType(DType.S32, ())
            value = ConstantAttrs(Literal.of(np.asarray(inner, np.int32)))
            factor = self.put(f"{node.name}.inner", "constant", single, (), value)
            start = self.put(f"{node.name}.start", "multiply", single, (start, factor), NoAttrs())
        spread = self.put(f"{node.name}.rows", "broadcast", whole, (start,), BroadcastAttrs(()))
        if node.dtype is DType.S32:
            self.nodes[node.name] = Node(node.name, "add", whole, (spread, own))
            return
        both = self.put(f"{node.name}.both", "add", whole, (spread, own), NoAttrs())
        self.nodes[node.name] = Node(node.name, "convert", type_, (both,))


def _counts_rows(graph: Graph, found: _Class, node: Node) -> bool:
    """Are a value's elements the numbers of the rows?"""
    d = found.of.get(node.name)
    if d is None:
        return False
    if isinstance(node.attrs, IotaAttrs):
        return node.attrs.dimension == d
    return OPS[node.op].keeps_order and counts_up(graph, node)
