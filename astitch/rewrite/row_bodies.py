"""Members of a row-region -> its body: the same ops on arrays that have one dimension of rows, in a good order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from astitch.device.gpu import Gpu
from astitch.graph.edit import free_name, keep_live_nodes, sort_nodes
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
    GatherAttrs,
    Graph,
    IotaAttrs,
    NoAttrs,
    Node,
    ParameterAttrs,
    RowRegionAttrs,
    SliceAttrs,
)
from astitch.graph.ops import OPS
from astitch.rewrite.draft import read_splat
from astitch.rewrite.draft_ops import number_zero, write_addition
from astitch.rewrite.row_ops import RowOps, list_whole
from astitch.tile.row_rates import count_parts


@dataclass(frozen=True)
class RowRegion:
    """members: in the graph's order.  body: what they compute, of parameters and outputs as the op wants them.

    given: what the parameters are outside; beside: those of them that are computed for the region alone.
    stored, summed: the members that are results, in the order of the outputs.
    """

    members: tuple[Node, ...]
    given: tuple[str, ...]
    beside: tuple[Node, ...]
    stored: tuple[str, ...]
    summed: tuple[str, ...]
    body: Graph
    attrs: RowRegionAttrs


@dataclass
class RegionFormer:
    """Makes the body of a region out of its members."""

    at: RowOps
    members: Sequence[str]
    gpu: Gpu
    nodes: dict[str, Node] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    """Parameters of the body, and what they are outside."""
    beside: dict[str, Node] = field(default_factory=dict)
    """What is computed outside for the region alone."""

    def __post_init__(self) -> None:
        self._inside = frozenset(self.members)

    def form(self) -> RowRegion:
        graph, at, outputs = self.at.graph, self.at, set(self.at.graph.outputs)
        for name in self.members:
            self.add(graph[name])
        ends = [
            n
            for n in self.members
            if n in outputs or any(user not in self._inside for user in graph.users[n])
        ]
        summed = tuple(n for n in ends if at.is_sum(graph[n]))
        stored = tuple(n for n in ends if n not in summed)
        region_outputs = (*stored, *summed)
        live = keep_live_nodes(self.nodes, region_outputs)
        parameters = tuple(inner for inner in self.given if inner in live)
        given = tuple(self.given[inner] for inner in parameters)
        for number, name in enumerate(parameters):
            live[name] = replace(live[name], attrs=ParameterAttrs(number))
        body = Graph("rows", _order(live, parameters, summed), parameters, region_outputs)
        parts = count_parts(at.rows, self.gpu) if summed else 1
        attrs = RowRegionAttrs(at.rows, len(summed), parts)
        beside = tuple(node for name, node in self.beside.items() if name in given)
        members = tuple(graph[n] for n in self.members)
        return RowRegion(members, given, beside, stored, summed, body, attrs)

    def _read(self, name: str) -> str:
        """The name in the body of a value of the graph."""
        if name in self.nodes:
            return name
        node = self.beside.get(name) or self.at.graph[name]
        if name not in self.beside and self.at.is_source(node):
            self.add(node)
            return name
        if isinstance(node.attrs, ConstantAttrs) and node.array.size == 1 and node.array.rank < 2:
            literal = replace(node.attrs.value, shape=()) if node.shape else node.attrs.value
            self.nodes[name] = replace(
                node, type=ArrayType(node.dtype, ()), attrs=ConstantAttrs(literal)
            )
            return name
        shape = self.at.view_array(node.array)
        if shape is None:
            shape = () if node.array.rank == 1 and node.array.size == 1 else node.shape
        return self._give(name, f"{name}.read", ArrayType(node.dtype, shape))

    def _read_whole(self, name: str) -> str:
        """The name of a matrix that has no rows, though it may have as many numbers as there are rows."""
        return self._give(name, f"{name}.whole", self.at.graph[name].array)

    def _give(self, name: str, inner: str, array: ArrayType) -> str:
        if inner not in self.given:
            self.given[inner] = name
            self.nodes[inner] = Node(inner, "parameter", array, (), ParameterAttrs(0))
        return inner

    def add(self, node: Node) -> None:
        at = self.at
        if node.name in self.nodes:
            return
        if isinstance(node.attrs, DimensionAttrs):
            node = replace(node, operands=tuple(self._join_pieces(node)))
        elif form := _FORMS.get(node.op):
            node = form(self, node)
        is_sum = at.is_sum(at.graph[node.name])
        whole = () if is_sum else list_whole(node)
        operands = tuple(
            self._read_whole(o) if o in whole and at.graph[o].array.rank == 2 else self._read(o)
            for o in node.operands
        )
        if isinstance(node.attrs, GatherAttrs):
            operands = (operands[0], self._put_numbers(node, operands[1]))
        view = None if is_sum else at.view(node.name)
        shape = node.shape if view is None else view
        node = replace(node, operands=operands, type=ArrayType(node.dtype, shape))
        if isinstance(node.attrs, DotAttrs) and any(self.nodes[o].array.rank < 2 for o in operands):
            self._add_vector_product(node)
            return
        self.nodes[node.name] = replace(node, attrs=self._change(node, is_sum=is_sum))

    def has(self, name: str) -> bool:
        """Is it a member?"""
        return name in self._inside

    def _put_numbers(self, origin: Node, name: str) -> str:
        """Numbers of one for each row, without a second dimension."""
        array = self.nodes[name].array
        if array.rank == 1:
            return name
        return self._put(origin, "reshape", array.dtype, (self.at.rows,), (name,))

    def _join_pieces(self, node: Node) -> Iterator[str]:
        """The pieces of a concatenation; those from outside that lie side by side are one."""
        graph = self.at.graph
        for inside, names in groupby(node.operands, lambda name: name in self._inside):
            pieces = tuple(names)
            if inside or len(pieces) == 1:
                yield from pieces
                continue
            width = sum(graph[name].shape[-1] for name in pieces)
            array = ArrayType(node.dtype, (*graph[pieces[0]].shape[:-1], width))
            name = f"{node.name}.beside.{len(self.beside)}"
            self.beside[name] = replace(node, name=name, type=array, operands=pieces)
            yield name

    def _change(self, node: Node, *, is_sum: bool) -> Attrs:
        """The attributes of an op on arrays that have one dimension of rows."""
        a = node.attrs
        match a:
            case BroadcastAttrs():
                given = self.nodes[node.operands[0]].shape
                if not given:
                    return BroadcastAttrs(())
                return BroadcastAttrs((0,) if given[0] == self.at.rows else (1,))
            case IotaAttrs():
                last = self.at.graph[node.name].array.rank - 1
                return IotaAttrs(len(node.shape) - 1 if a.dimension == last else 0)
            case SliceAttrs():
                return SliceAttrs((0, a.starts[-1]), (self.at.rows, a.limits[-1]), (1, 1))
            case DimensionAttrs():
                return DimensionAttrs(1)
            case GatherAttrs():
                return GatherAttrs((1,), (0,), (0,), 1, (1, node.shape[1]))
            case DotAttrs():
                places = ((0,), (0,)) if is_sum else ((1,), a.rhs_contracting)
                return replace(a, lhs_contracting=places[0], rhs_contracting=places[1])
            case DimensionsAttrs():
                inner = self.nodes[node.operands[0]].array.rank
                if not node.shape:
                    return DimensionsAttrs(tuple(range(inner)))
                return DimensionsAttrs((0,) if is_sum else (1,))
        return a

    def _add_vector_product(self, node: Node) -> None:
        """Rows with one column, or a number of each row with a matrix of rows: multiplied and added in f32."""
        x, y = (self.nodes[o] for o in node.operands)
        matrix, dtype = x if x.array.rank == 2 else y, DType.F32
        factors = []
        for value in (x, y):
            name = value.name
            if value.array.rank < 2:
                places = () if not value.shape else (0,) if value.shape[0] == self.at.rows else (1,)
                attrs = BroadcastAttrs(places)
                name = self._put(node, "broadcast", value.dtype, matrix.shape, (name,), attrs)
            if value.dtype is not dtype:
                name = self._put(node, "convert", dtype, matrix.shape, (name,))
            factors.append(name)
        product = self._put(node, "multiply", dtype, matrix.shape, tuple(factors))
        zero = self._put(node, "constant", dtype, (), (), number_zero(dtype))
        is_sum = node.shape[:1] != (self.at.rows,)
        total = replace(
            node,
            op="reduce",
            type=ArrayType(dtype, node.shape),
            operands=(product, zero),
            attrs=DimensionsAttrs((0 if is_sum else 1,)),
            regions=(write_addition(dtype),),
        )
        if not is_sum and node.dtype is not dtype:
            name = self._free_name(f"{node.name}.total")
            self.nodes[name] = replace(total, name=name)
            total = replace(node, op="convert", operands=(name,), attrs=NoAttrs())
        self.nodes[node.name] = total

    def _free_name(self, name: str) -> str:
        """One that no other member will want."""
        return free_name(name, {*self.nodes, *self.at.graph.nodes})

    def _put(
        self,
        origin: Node,
        op: str,
        dtype: DType,
        shape: tuple[int, ...],
        operands: tuple[str, ...],
        attrs: Attrs = NoAttrs(),
    ) -> str:
        name = self._free_name(f"{origin.name}.{op}")
        self.nodes[name] = Node(name, op, ArrayType(dtype, shape), operands, attrs)
        return name


def _order(
    nodes: dict[str, Node], parameters: Sequence[str], summed: Sequence[str]
) -> dict[str, Node]:
    """The nodes with the parameters first, and each other one as late as it may be; sums as soon as they may be.

    So few values are kept at a time.
    """
    ordered = {name: nodes[name] for name in parameters}
    waiting = {name: nodes[name] for name in summed}
    for name, node in nodes.items():
        if name in waiting or not _is_anchor(node):
            continue
        ordered = sort_nodes(nodes, [name], ordered)
        for ready in [n for n, s in waiting.items() if all(o in ordered for o in s.operands)]:
            ordered[ready] = waiting.pop(ready)
    return sort_nodes(nodes, [*nodes], ordered)


def _is_anchor(node: Node) -> bool:
    return isinstance(node.attrs, DotAttrs) or OPS[node.op].is_reduce


# ---- other forms of an op


def _read_maximum(former: RegionFormer, node: Node) -> Node:
    """x > 0 reads max(x, 0) in place of x, which need not be kept beside it."""
    graph = former.at.graph
    x, zero = node.operands
    assert isinstance(node.attrs, CompareAttrs)
    if node.attrs.direction != "GT" or not graph[x].dtype.is_float or read_splat(graph, zero) != 0:
        return node
    for user in graph.users[x]:
        other = graph[user]
        if other.op == "maximum" and former.has(user) and zero in other.operands:
            former.add(other)
            return replace(node, operands=(user, zero))
    return node


def _join_logistic(former: RegionFormer, node: Node) -> Node:
    """1 / (1 + exp(-x)) of 16 bits as one op, which is rounded once."""
    graph = former.at.graph
    one, total = node.operands
    if not node.dtype.is_narrow_float or read_splat(graph, one) != 1 or graph[total].op != "add":
        return node
    terms = [o for o in graph[total].operands if read_splat(graph, o) != 1]
    if len(terms) != 1:
        return node
    power = graph[terms[0]]
    if power.op != "exponential" or graph[power.operands[0]].op != "negate":
        return node
    chain = (total, power.name, power.operands[0])
    if not all(len(graph.users[name]) == 1 and former.has(name) for name in chain):
        return node
    return replace(node, op="logistic", operands=graph[power.operands[0]].operands)


_FORMS: Mapping[str, Callable[[RegionFormer, Node], Node]] = {
    "compare": _read_maximum,
    "divide": _join_logistic,
}
