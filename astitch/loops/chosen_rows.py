"""Graph -> Graph: `where` at one place of a cache writes the row that is new, not the cache.

    where(arange(n) == place, new, cache)      one place for all, or one for each sequence

A step of decoding may write its caches so, also ring buffers.  All of the cache would be read and written.  It is a
scatter of rows, which drops places outside as the comparison does.  XLA computes scatters where the array lies: of a
loop's state, of a slice of a stack (loops/update_stacks.py), of a donated argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astitch.graph.edit import free_name, keep_live_nodes, sort_nodes
from astitch.graph.ir import (
    ArrayType,
    Attrs,
    BroadcastAttrs,
    CompareAttrs,
    DimensionAttrs,
    DynamicSliceAttrs,
    Graph,
    IotaAttrs,
    NoAttrs,
    Node,
    ParameterAttrs,
    ScatterAttrs,
    TransposeAttrs,
)
from astitch.graph.ops import OPS, is_slice_update
from astitch.graph.storage import is_result, list_readers, stored_value
from astitch.loops.update_stacks import simplify_body
from astitch.rewrite.draft import squeeze

LEAST_BYTES = 4 << 20
"""Of a cache.  A smaller one is written again in less time than the launch of an update takes: an estimate."""

LEAST_ROWS = 8
"""Of a cache, along the dimension that places are of.  Of fewer a kernel writes all in about the time of one."""


def write_chosen_rows(
    graph: Graph,
    updates: Callable[[Graph], Mapping[str, str]],
    is_kernel: Callable[[Graph, Node], bool],
) -> Graph:
    """The same function, in nested loops too; the graph itself where nothing changes.

    updates: what XLA computes in the memory of the parameters of a graph.  is_kernel: will a while be one kernel, which
    keeps its state on chip?
    """
    nodes: dict[str, Node] = {}
    for node in graph:
        if OPS[node.op].is_loop:
            condition, body = node.regions
            inner = _write_in_body(graph, node, is_kernel)
            if inner is not body and not is_kernel(graph, node):
                node = replace(node, regions=(condition, inner))
        nodes[node.name] = node
    if any(nodes[name] is not node for name, node in graph.nodes.items()):
        graph = replace(graph, nodes=nodes)
    names = {stored_value(graph, output) for output in graph.outputs}
    found = [c for name in names if (c := find_chosen(graph, name))]
    if not found:
        return graph
    in_place = updates(_put(graph, found))
    return _put(graph, [c for c in found if c.select.name in in_place])


def _write_in_body(graph: Graph, node: Node, is_kernel: Callable[[Graph, Node], bool]) -> Graph:
    """The body of a loop, whose state and stacks XLA updates in place."""
    body = node.regions[1]
    made = write_chosen_rows(body, lambda graph: {}, is_kernel)
    if not any(_read_select(made, inner) for inner in made if inner.op == "select"):
        return made
    # A slice is put back where it is within the stack: the bounds of counters say where that is always.
    simple = simplify_body(graph, node, made)
    found = list(_find_in_state(simple))
    return _put(simple, found) if found else made


def _find_in_state(body: Graph) -> Iterator[Chosen]:
    """Rows of an array of the state, and of a slice that goes into a stack."""
    for parameter, output in zip(body.parameters, body.outputs, strict=True):
        written = body[output]
        stacked = is_slice_update(written) and written.operands[0] == parameter
        chosen = find_chosen(body, stored_value(body, written.operands[1] if stacked else output))
        if chosen is None:
            continue
        old = body[chosen.old]
        if isinstance(old.attrs, DynamicSliceAttrs) if stacked else old.name == parameter:
            yield chosen


# ---- what is written, and where


@dataclass(frozen=True, slots=True)
class Part:
    """A value of which an array is a broadcast.  dimensions: of the array, for each of the value's; None for one
    element."""

    value: Node
    dimensions: tuple[int | None, ...]

    @property
    def along(self) -> tuple[int, ...]:
        return tuple(d for d in self.dimensions if d is not None)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A `select` that writes rows.  dimension: that places are of.  old: what holds the cache."""

    select: Node
    dimension: int
    place: Part
    row: Part
    old: str


def find_chosen(graph: Graph, name: str) -> Chosen | None:
    """How a value writes rows of the cache that it alone reads; None: it does not."""
    chosen = _read_select(graph, graph[name])
    return chosen if chosen and _reads_alone(graph, chosen.old, name) else None


def _read_select(graph: Graph, select: Node) -> Chosen | None:
    """How a value writes rows; None: it does not."""
    if select.op != "select" or select.array.bytes < LEAST_BYTES:
        return None
    predicate, new, old = select.operands
    if graph[predicate].shape != select.shape:
        return None
    compare = strip(graph, predicate, range(select.array.rank))
    attrs = compare.value.attrs
    if not isinstance(attrs, CompareAttrs) or attrs.direction not in ("EQ", "NE"):
        return None
    if attrs.direction == "NE":
        new, old = old, new
    numbers, place = (strip(graph, o, compare.dimensions) for o in compare.value.operands)
    if not isinstance(numbers.value.attrs, IotaAttrs):
        numbers, place = place, numbers
    if not isinstance(numbers.value.attrs, IotaAttrs) or not place.value.dtype.is_integer:
        return None
    dimension = numbers.dimensions[numbers.value.attrs.dimension]
    row = strip(graph, new, range(select.array.rank))
    if dimension is None or select.shape[dimension] < LEAST_ROWS:
        return None
    if np.iinfo(place.value.dtype.numpy).max < select.shape[dimension] - 1:
        return None  # the numbers begin anew
    if not all(_is_along(part, dimension) for part in (place, row)):
        return None
    return Chosen(select, dimension, place, row, stored_value(graph, old))


def strip(graph: Graph, name: str, dimensions: Sequence[int | None]) -> Part:
    """What a value is a broadcast of, and views of that.  dimensions: of the array, for each of the value's."""
    node = graph[name]
    if isinstance(node.attrs, BroadcastAttrs):
        return strip(graph, node.operands[0], [dimensions[d] for d in node.attrs.dimensions])
    long = [d for d, extent in zip(dimensions, node.shape, strict=True) if extent > 1]
    if node.op == "reshape":
        extents = graph[node.operands[0]].shape
        if squeeze(extents) == squeeze(node.shape):
            left = iter(long)
            return strip(graph, node.operands[0], [next(left) if n > 1 else None for n in extents])
    left = iter(long)
    return Part(node, tuple(next(left) if n > 1 else None for n in node.shape))


def _is_along(part: Part, dimension: int) -> bool:
    """Is a part the same along the dimension of places, with its own in order?"""
    return dimension not in part.along and list(part.along) == sorted({*part.along})


def _reads_alone(graph: Graph, held: str, reader: str) -> bool:
    """Does one op alone read a value, as it is or in another shape?"""
    return not is_result(graph, held) and {*list_readers(graph, held)} == {reader}


# ---- as a scatter


def _put(graph: Graph, found: Collection[Chosen]) -> Graph:
    """The graph with these rows written by scatters; the graph itself where there are none."""
    if not found:
        return graph
    nodes = dict(graph.nodes)
    for chosen in found:
        _Scatter(nodes, chosen).put()
    return replace(graph, nodes=keep_live_nodes(sort_nodes(nodes, [*nodes], {}), graph.outputs))


class _Scatter:
    """Puts a scatter where a select was.  A leading dimension of one element, a layer's, is left out of it."""

    def __init__(self, nodes: dict[str, Node], chosen: Chosen) -> None:
        self.nodes, self.chosen = nodes, chosen
        self.lead = int(chosen.select.shape[0] == 1)
        self.shape = chosen.select.shape[self.lead :]

    def put(self) -> None:
        select, chosen = self.chosen.select, self.chosen
        at = chosen.dimension - self.lead
        batches = [d - self.lead for d in chosen.place.along]
        rest = [d for d in range(len(self.shape)) if d != at and d not in batches]
        attrs = ScatterAttrs(
            update_window_dims=tuple(range(len(batches), len(batches) + len(rest))),
            inserted_window_dims=tuple(sorted((*batches, at))),
            scatter_dims_to_operand_dims=(*batches, at),
            index_vector_dim=len(batches),
            indices_are_sorted=True,
            unique_indices=True,
        )
        array = ArrayType(select.dtype, self.shape)
        operands = (
            self.view(chosen.old, self.shape),
            self.place_indices(batches),
            self.order_rows(at, [*batches, *rest]),
        )
        regions = (_replace_old(select),)
        if not self.lead:
            self.nodes[select.name] = replace(
                select, op="scatter", operands=operands, attrs=attrs, regions=regions
            )
            return
        name = self.add("scatter", array, operands, attrs, regions)
        self.nodes[select.name] = replace(select, op="reshape", operands=(name,), attrs=NoAttrs())

    def place_indices(self, batches: Sequence[int]) -> str:
        """The index vectors: for each batch its own numbers and the place."""
        place = self.chosen.place.value
        extents = tuple(self.shape[d] for d in batches)
        column = ArrayType(place.dtype, (*extents, 1))
        places = self.view(place.name, column.shape)
        if not batches:
            return places
        numbers = [
            self.add("iota", column, (), IotaAttrs(number)) for number in range(len(batches))
        ]
        whole = ArrayType(place.dtype, (*extents, len(batches) + 1))
        return self.add("concatenate", whole, (*numbers, places), DimensionAttrs(len(batches)))

    def order_rows(self, at: int, order: Sequence[int]) -> str:
        """The new rows, with the array's dimensions but that of places in this order."""
        row, dtype = self.chosen.row, self.chosen.select.dtype
        kept = [d for d in range(len(self.shape)) if d != at]
        whole = ArrayType(dtype, tuple(self.shape[d] for d in kept))
        along = [d - self.lead for d in row.along]
        value = self.view(row.value.name, tuple(self.shape[d] for d in along))
        if along != kept:
            dimensions = tuple(kept.index(d) for d in along)
            value = self.add("broadcast", whole, (value,), BroadcastAttrs(dimensions))
        if list(order) == kept:
            return value
        turned = ArrayType(dtype, tuple(self.shape[d] for d in order))
        permutation = tuple(kept.index(d) for d in order)
        return self.add("transpose", turned, (value,), TransposeAttrs(permutation))

    def view(self, name: str, shape: tuple[int, ...]) -> str:
        array = self.nodes[name].array
        if array.shape == shape:
            return name
        return self.add("reshape", ArrayType(array.dtype, shape), (name,))

    def add(
        self,
        op: str,
        type_: ArrayType,
        operands: tuple[str, ...],
        attrs: Attrs = NoAttrs(),
        regions: tuple[Graph, ...] = (),
    ) -> str:
        origin = self.chosen.select
        name = free_name(f"{origin.name}.{op}", self.nodes)
        self.nodes[name] = Node(
            name, op, type_, operands, attrs, regions, origin.op_name, origin.source
        )
        return name


def _replace_old(select: Node) -> Graph:
    """The combination of a scatter that writes over what was there."""
    number = ArrayType(select.dtype, ())
    old, new = (
        Node(name, "parameter", number, attrs=ParameterAttrs(index))
        for index, name in enumerate(("old", "new"))
    )
    return Graph(f"{select.name}.new", {"old": old, "new": new}, ("old", "new"), ("new",))
