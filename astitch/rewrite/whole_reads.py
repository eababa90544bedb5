"""Arrays that are another one with numbers before or behind it: (1, x[0], x[1], ..), over which an exclusive scan runs.

In simplest form a tree of such a scan cuts most steps out of x itself, so that it reads two arrays, and has the number
for the first step.  Here it reads one array again, of which some elements are known.  Likewise a compiler turns slices
round in place of the array, and gives powers of a factor a shape of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np

from astitch.graph.edit import sort_nodes
from astitch.graph.ir import (
    Attrs,
    DimensionAttrs,
    DimensionsAttrs,
    Graph,
    Node,
    PadAttrs,
    SliceAttrs,
)
from astitch.graph.ops import OPS
from astitch.rewrite.draft import Draft, read_splat
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.finite_field import is_in_field
from astitch.rewrite.simplify import rewrite_graph

Part = tuple[str, int, int]
"""What is repeated or joined, its first place along a dimension, and the place behind its last."""


def read_wholes(graph: Graph, dimensions: Collection[int]) -> Graph:
    """The same function, in which slices of x are slices of what is x and numbers; the same graph without any.

    dimensions: those along which numbers stand beside x.  All else in such an array is x, so it waits for no slice.
    """
    changed = {
        node.name: node
        for whole in graph
        for dimension in dimensions
        for node in _read(graph, whole, dimension)
    }
    if not changed:
        return graph
    nodes = sort_nodes({**graph.nodes, **changed}, [*graph.nodes], {})
    return Graph(graph.name, nodes, graph.parameters, graph.outputs, graph.aliases)


def list_numbers(
    graph: Graph, name: str, dimension: int | None
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Where along a dimension an array holds numbers of the finite field: first place, the place behind, the number."""
    if dimension is not None:
        for part, start, stop in _list_parts(graph, graph[name], dimension):
            number = read_splat(graph, part)
            if number is not None and is_in_field(number):
                yield start, stop, number


def _list_parts(graph: Graph, whole: Node, dimension: int) -> Iterator[Part]:
    """What an array is made of, one after the other along a dimension; nothing where it is no such array."""
    match whole.attrs:
        case DimensionAttrs(along) if along == dimension and OPS[whole.op].chooses:
            start = 0
            for part in whole.operands:
                stop = start + graph[part].shape[dimension]
                yield part, start, stop
                start = stop
        case PadAttrs(low, high, interior) if not any(interior) and min(*low, *high) == 0:
            edges = zip(low, high, strict=True)
            if [d for d, edge in enumerate(edges) if any(edge)] == [dimension]:
                x, number = whole.operands
                before, behind = low[dimension], whole.shape[dimension] - high[dimension]
                yield number, 0, before
                yield x, before, behind
                yield number, behind, whole.shape[dimension]


def _read(graph: Graph, whole: Node, dimension: int) -> Iterator[Node]:
    """The slices of its only part that is no number; zeros around it are a tree's own."""
    parts = [*_list_parts(graph, whole, dimension)]
    numbers = {part: read_splat(graph, part) for part, _, _ in parts}
    others = [(part, start) for part, start, _ in parts if numbers[part] is None]
    if len(others) != 1 or not all(numbers[part] != 0 for part, _, _ in parts):
        return
    ((part, start),) = others
    for user in graph.users[part]:
        node = graph[user]
        if isinstance(node.attrs, SliceAttrs):
            starts, limits = [*node.attrs.starts], [*node.attrs.limits]
            starts[dimension] += start
            limits[dimension] += start
            attrs = replace(node.attrs, starts=tuple(starts), limits=tuple(limits))
            yield replace(node, operands=(whole.name,), attrs=attrs)


# ---- what is read in several ways -----------------------------------------------------------------------------


def read_alike(graph: Graph, along: Collection[int]) -> Graph:
    """The same function, in which a tree reads each array in one way.

    along: the dimensions of steps.  What is cut along another one too is cut there first, at all steps.
    Slices that are turned round are slices of the whole array, turned round; so is the last step of such an array.
    Products that are read with dimensions of single elements less or more are made in that shape.  Else powers of a
    factor that is the same at each step have another shape than the factor.
    """
    turned = _find_turned(graph)
    made: dict[tuple[str, tuple[int, ...]], str] = {}

    def view(x: str, shape: tuple[int, ...], ops: DraftOps) -> str:
        if (x, shape) not in made:
            node = ops.draft[x]
            if _is_product(node):
                a, b = (view(o, shape, ops) for o in node.operands)
                made[x, shape] = ops.both("multiply", a, b)
            else:
                made[x, shape] = ops.reshape(x, shape)
        return made[x, shape]

    def change(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if _is_reverse(node):
            return _slice_turned(draft[node.operands[0]], node, draft)
        if isinstance(node.attrs, SliceAttrs):
            apart = _cut_apart(DraftOps(node, draft), node.operands[0], node.attrs, along)
            part = draft[apart] if apart else node
            dimensions = turned.get(graph[node.name].operands[0])
            if dimensions and _is_last_step(part, draft[part.operands[0]], dimensions):
                turn = replace(part, op="reverse", attrs=DimensionsAttrs(dimensions))
                return _slice_turned(part, turn, draft)
            return apart
        if OPS[node.op].keeps_order:
            product = draft[node.operands[0]]
            extents = [n for n in node.shape if n != 1]
            if _is_product(product) and [n for n in product.shape if n != 1] == extents:
                return view(product.name, node.shape, DraftOps(node, draft))
        return None

    return rewrite_graph(graph, lambda rule, node: None, change, rules=lambda op: ())


def _is_last_step(part: Node, whole: Node, dimensions: Collection[int]) -> bool:
    """With it the array begins that is turned round; else the array itself may be read besides."""
    assert isinstance(part.attrs, SliceAttrs)
    return all(part.attrs.starts[d] == whole.shape[d] - 1 for d in dimensions)


def _is_reverse(node: Node) -> bool:
    return isinstance(node.attrs, DimensionsAttrs) and OPS[node.op].reindexes


def _is_product(node: Node) -> bool:
    return OPS[node.op].combiner is np.multiply


def _find_turned(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Arrays of which slices are turned round, with the dimensions along which they are."""
    found: dict[str, tuple[int, ...]] = {}
    for node in graph:
        if _is_reverse(node):
            assert isinstance(node.attrs, DimensionsAttrs)
            part = graph[node.operands[0]]
            if isinstance(part.attrs, SliceAttrs):
                found[part.operands[0]] = node.attrs.dimensions
    return found


def _slice_turned(part: Node, node: Node, draft: Draft) -> str | None:
    """A slice of the array turned round, for the slice `part` that `node` turns round."""
    if not isinstance(part.attrs, SliceAttrs) or not isinstance(node.attrs, DimensionsAttrs):
        return None
    source = draft[part.operands[0]]
    starts, limits = [*part.attrs.starts], [*part.attrs.limits]
    for d in node.attrs.dimensions:
        last = starts[d] + (part.shape[d] - 1) * part.attrs.strides[d]
        starts[d], limits[d] = source.shape[d] - 1 - last, source.shape[d] - starts[d]
    ops = DraftOps(node, draft)
    whole = ops.add("reverse", node.dtype, source.shape, (source.name,), node.attrs)
    attrs = SliceAttrs(tuple(starts), tuple(limits), part.attrs.strides)
    return ops.add("slice", node.dtype, node.shape, (whole,), attrs)


def _cut_apart(ops: DraftOps, x: str, attrs: Attrs, along: Collection[int]) -> str | None:
    """A slice in two steps: of dimensions beside the steps, then of steps; None where one does."""
    assert isinstance(attrs, SliceAttrs)
    source, dtype = ops.draft[x].shape, ops.draft[x].dtype
    whole = [(0, n, 1) for n in source]
    edges = [*zip(attrs.starts, attrs.limits, attrs.strides, strict=True)]
    cut = {d for d in range(len(source)) if edges[d] != whole[d]}
    if not cut & {*along} or cut <= {*along}:
        return None
    for part in (cut - {*along}, cut & {*along}):
        own = [edges[d] if d in part else (0, n, 1) for d, n in enumerate(ops.draft[x].shape)]
        starts, limits, strides = (tuple(each) for each in zip(*own, strict=True))
        shape = [-(-(limit - start) // stride) for start, limit, stride in own]
        x = ops.add("slice", dtype, shape, (x,), SliceAttrs(starts, limits, strides))
    return x
