"""Along which dimensions of a loop's values no element meets another: those of rows.

Takes a Loop, hands on the dimensions of each value that hold rows.  The idea: dimensions that ops have in common are
one class.  What a product adds up, a reshape parts or a slice cuts is bound: such elements meet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from astitch.graph.factorizations import find_factorization
from astitch.graph.ir import (
    BroadcastAttrs,
    ConstantAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    GatherAttrs,
    Graph,
    IotaAttrs,
    Literal,
    Node,
    PadAttrs,
    PivotsAttrs,
    ScatterAttrs,
    SliceAttrs,
    SortAttrs,
    TransposeAttrs,
    TriangularSolveAttrs,
    WindowAttrs,
    WindowDimension,
)
from astitch.graph.matmul import free_dimensions, label_product
from astitch.graph.ops import OPS, Kind
from astitch.loops.analysis import Carried, Loop
from astitch.loops.flatten import Dimension, JoinedDimensions, is_array
from astitch.rewrite.movement_rules import group_dimensions

MOST_EXCHANGED = 8
"""Exchanges of rows as one permutation: a thread compares each with all rows behind it."""


class NotSpelled(Exception):
    """Why a loop's rows cannot be spelled out."""


class RowDimensions(JoinedDimensions):
    """bound: dimensions whose elements meet."""

    def __init__(self, loop: Loop, live: Collection[str]) -> None:
        super().__init__()
        self.loop, self.body, self.live = loop, loop.body, live
        self.bound: set[Dimension] = set()

    def bind(self, *keys: Dimension) -> None:
        self.bound.update(keys)

    def find_rows(self, least: int) -> Mapping[str, tuple[int, ...]]:
        """By value, the dimensions along which no element meets another, of at least so many; of the longest if all are
        shorter."""
        for node in self.body:
            if node.name in self.live and node.name not in self.loop.integers:
                self.visit(node)
        for parameter, role in zip(self.body.parameters, self.loop.roles, strict=True):
            if isinstance(role, Carried) and parameter in self.live and role.value in self.live:
                for d in range(self.body[parameter].array.rank):
                    self.join((parameter, d), (role.value, d))
        bound = {self.find(key) for key in self.bound}
        extents: dict[Dimension, int] = {}
        for node in self.body:
            if node.name in self.live and is_array(node):
                for d, extent in enumerate(node.shape):
                    key = self.find((node.name, d))
                    if extent > 1 and key not in bound:
                        if extents.setdefault(key, extent) != extent:
                            raise NotSpelled(f"dimension {d} of %{node.name} has two lengths")
        longest = max(extents.values(), default=1)
        kept = {key for key, extent in extents.items() if extent >= min(least, longest)}
        return {
            node.name: tuple(d for d in range(node.array.rank) if self.find((node.name, d)) in kept)
            for node in self.body
            if node.name in self.live and is_array(node)
        }

    def visit(self, node: Node) -> None:
        """The dimensions that an op has in common with its operands."""
        row = OPS[node.op]
        if row.kind is Kind.ELEMENTWISE:
            for operand in node.operands:
                if self.body[operand].array.rank == node.array.rank:
                    self.join_all(operand, node.name, range(node.array.rank))
            return
        visit = _VISITS.get(node.op)
        if visit is None:
            raise NotSpelled(f"%{node.name} is a {node.op}")
        visit(self, node)

    def join_all(self, one: str, other: str, dimensions: Sequence[int]) -> None:
        for d in dimensions:
            self.join((one, d), (other, d))

    def join_or_bind(self, one: str, other: str, meets: Callable[[int], bool]) -> None:
        """Joins the dimensions of two values in which elements keep their places."""
        for d in range(self.body[other].array.rank):
            self.match((one, d), (other, d), meets(d))

    def visit_source(self, node: Node) -> None:
        if isinstance(node.attrs, ConstantAttrs) and is_varied(node.attrs.value):
            self.bind(*((node.name, d) for d in range(node.array.rank)))

    def visit_broadcast(self, node: Node) -> None:
        assert isinstance(node.attrs, BroadcastAttrs)
        for i, d in enumerate(node.attrs.dimensions):
            self.join((node.operands[0], i), (node.name, d))

    def visit_transpose(self, node: Node) -> None:
        assert isinstance(node.attrs, TransposeAttrs)
        for d, i in enumerate(node.attrs.permutation):
            self.join((node.operands[0], i), (node.name, d))

    def visit_reshape(self, node: Node) -> None:
        source = node.operands[0]
        if counts_up(self.body, node):
            return
        for before, after in group_dimensions(self.body[source].shape, node.shape):
            if len(before) == len(after) == 1:
                self.join((source, before[0]), (node.name, after[0]))
            else:
                self.bind(*((source, d) for d in before), *((node.name, d) for d in after))

    def visit_cut(self, node: Node) -> None:
        """slice, pad, reverse."""
        self.join_or_bind(node.operands[0], node.name, lambda d: _moves(self.body, node, d))

    def visit_concatenate(self, node: Node) -> None:
        assert isinstance(node.attrs, DimensionAttrs)
        dimension = node.attrs.dimension
        for operand in node.operands:
            self.join_or_bind(operand, node.name, lambda d: d == dimension)

    def visit_dynamic_slice(self, node: Node) -> None:
        place = self.loop.slices.get(node.name)
        source = node.operands[0]
        if place is not None:
            others = [d for d in range(node.array.rank) if d != place.dimension]
            self.join_all(source, node.name, others)
            self.bind((source, place.dimension))
            return
        shape = self.body[source].shape
        self.join_or_bind(source, node.name, lambda d: node.shape[d] != shape[d])

    def visit_update(self, node: Node) -> None:
        target, update = node.operands[:2]
        shape = self.body[update].shape
        self.join_all(target, node.name, range(node.array.rank))
        self.join_or_bind(update, node.name, lambda d: node.shape[d] != shape[d])

    def visit_gather(self, node: Node) -> None:
        """Windows of a table: along rows they are whole, or each row has a table of its own."""
        attrs = node.attrs
        assert isinstance(attrs, GatherAttrs)
        source, indices = node.operands
        gone = (*attrs.collapsed_slice_dims, *attrs.operand_batching_dims)
        whole = free_dimensions(self.body[source].array.rank, gone)
        for d, at in zip(whole, attrs.offset_dims, strict=True):
            parted = attrs.slice_sizes[d] != self.body[source].shape[d]
            self.match((source, d), (node.name, at), parted)
        self.bind(*((source, d) for d in attrs.collapsed_slice_dims))
        self.bind((indices, attrs.index_vector_dim))
        places = free_dimensions(self.body[indices].array.rank, [attrs.index_vector_dim])
        for d, at in zip(places, free_dimensions(node.array.rank, attrs.offset_dims), strict=True):
            self.join((indices, d), (node.name, at))
        batches = zip(attrs.operand_batching_dims, attrs.start_indices_batching_dims, strict=True)
        for d, at in batches:
            self.join((source, d), (indices, at))

    def visit_scatter(self, node: Node) -> None:
        """Windows written among few numbers: along rows they are whole."""
        attrs = node.attrs
        assert isinstance(attrs, ScatterAttrs)
        if len(node.operands) != 3:
            raise NotSpelled(f"%{node.name} is a scatter of several values")
        target, indices, updates = node.operands
        self.join_all(target, node.name, range(node.array.rank))
        gone = (*attrs.inserted_window_dims, *attrs.input_batching_dims)
        whole = free_dimensions(node.array.rank, gone)
        shape = self.body[updates].shape
        for d, at in zip(whole, attrs.update_window_dims, strict=True):
            self.match((target, d), (updates, at), shape[at] != node.shape[d])
        self.bind(*((target, d) for d in attrs.inserted_window_dims))
        self.bind((indices, attrs.index_vector_dim))
        places = free_dimensions(self.body[indices].array.rank, [attrs.index_vector_dim])
        batches = dict(
            zip(attrs.scatter_indices_batching_dims, attrs.input_batching_dims, strict=True)
        )
        for d, at in zip(
            places, free_dimensions(len(shape), attrs.update_window_dims), strict=True
        ):
            self.join((indices, d), (updates, at))
            if d in batches:
                self.join((target, batches[d]), (indices, d))
            else:
                self.bind((indices, d))

    def match(self, one: Dimension, other: Dimension, meets: bool) -> None:
        """Joins two dimensions, or binds both."""
        if meets:
            self.bind(one, other)
        else:
            self.join(one, other)

    def visit_dot(self, node: Node) -> None:
        assert isinstance(node.attrs, DotAttrs)
        ranks = [self.body[operand].array.rank for operand in node.operands]
        both = label_product(node.attrs, *ranks)
        for operand, labels in zip(node.operands, both, strict=True):
            for d, label in enumerate(labels):
                if label < node.array.rank:
                    self.join((operand, d), (node.name, label))
                else:
                    self.bind((operand, d))

    def visit_reduce(self, node: Node) -> None:
        assert isinstance(node.attrs, DimensionsAttrs)
        for operand in node.operands[: len(node.operands) // 2]:
            rest = free_dimensions(self.body[operand].array.rank, node.attrs.dimensions)
            for i, d in enumerate(rest):
                self.join((operand, d), (node.name, i))
            self.bind(*((operand, d) for d in node.attrs.dimensions))

    def visit_window(self, node: Node) -> None:
        attrs = node.attrs
        assert isinstance(attrs, WindowAttrs)
        if len(node.operands) != 2:
            raise NotSpelled(f"%{node.name} is a reduce-window of several values")
        self.join_or_bind(
            node.operands[0], node.name, lambda d: attrs.window[d] != WindowDimension(1)
        )

    def visit_sort(self, node: Node) -> None:
        assert isinstance(node.attrs, SortAttrs)
        rank = self.body[node.operands[0]].array.rank
        for operand in node.operands:
            self.join_all(operand, node.name, range(rank))
        self.bind((node.name, node.attrs.dimension))

    def visit_factorization(self, node: Node) -> None:
        """The last dimensions of a matrix meet; other columns of right sides do not."""
        known = find_factorization(node)
        if known is None:
            raise NotSpelled(f"%{node.name} is a {node.op}")
        first = self.body[node.operands[0]].array
        batch = first.rank - (1 if isinstance(known, PivotsAttrs) else 2)
        if isinstance(known, PivotsAttrs) and first.shape[-1] > MOST_EXCHANGED:
            raise NotSpelled(f"%{node.name} is of {first.shape[-1]} exchanges")
        self.join_all(node.operands[0], node.name, range(batch))
        self.bind(*((node.operands[0], d) for d in range(batch, first.rank)))
        met = range(batch, batch + 2)
        if isinstance(known, TriangularSolveAttrs):
            self.join_all(node.operands[1], node.name, range(batch + 2))
            met = range(batch, batch + 1) if known.left_side else range(batch + 1, batch + 2)
        self.bind(*((node.name, d) for d in met))

    def visit_projection(self, node: Node) -> None:
        self.join_all(node.operands[0], node.name, range(node.array.rank))


_VISITS: Mapping[str, Callable[[RowDimensions, Node], None]] = {
    "parameter": RowDimensions.visit_source,
    "constant": RowDimensions.visit_source,
    "iota": RowDimensions.visit_source,
    "broadcast": RowDimensions.visit_broadcast,
    "transpose": RowDimensions.visit_transpose,
    "reshape": RowDimensions.visit_reshape,
    "slice": RowDimensions.visit_cut,
    "pad": RowDimensions.visit_cut,
    "reverse": RowDimensions.visit_cut,
    "concatenate": RowDimensions.visit_concatenate,
    "dynamic-slice": RowDimensions.visit_dynamic_slice,
    "dynamic-update-slice": RowDimensions.visit_update,
    "gather": RowDimensions.visit_gather,
    "scatter": RowDimensions.visit_scatter,
    "dot": RowDimensions.visit_dot,
    "reduce": RowDimensions.visit_reduce,
    "reduce-window": RowDimensions.visit_window,
    "get-tuple-element": RowDimensions.visit_projection,
    "sort": RowDimensions.visit_sort,
    "cholesky": RowDimensions.visit_factorization,
    "triangular-solve": RowDimensions.visit_factorization,
    "custom-call": RowDimensions.visit_factorization,
}


def counts_up(body: Graph, node: Node) -> bool:
    """Are a reshape's elements their numbers in order?"""
    source = body[node.operands[0]]
    return isinstance(source.attrs, IotaAttrs) and source.array.rank == 1 and node.dtype.is_integer


def is_varied(value: Literal) -> bool:
    """Has a constant several elements that differ?"""
    elements = value.numpy().reshape(-1)
    return elements[:1].tobytes() * len(elements) != elements.tobytes()


def _moves(body: Graph, node: Node, dimension: int) -> bool:
    """Does a slice, pad or reverse move elements along a dimension?"""
    match node.attrs:
        case SliceAttrs():
            return node.shape[dimension] != body[node.operands[0]].shape[dimension]
        case PadAttrs(low, high, interior):
            return any(padding[dimension] for padding in (low, high, interior))
        case DimensionsAttrs(dimensions):
            return dimension in dimensions
    raise AssertionError(node.op)
