"""Graph -> Graph: sums of products written out, and products merged, as the products that they were.

Before its hook XLA's simplifier writes a matrix times a vector out as a multiplication and a sum.  It makes one product
of two that share an operand (DotMerger).  A loop is one kernel only where its products are known as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from astitch.graph.edit import free_name, keep_live_nodes
from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    ConstantAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    DType,
    Graph,
    Node,
    SliceAttrs,
    TransposeAttrs,
)
from astitch.graph.ops import OPS
from astitch.rewrite.draft import Draft, ascends
from astitch.rewrite.simplify import rewrite_graph

EXACT = ("HIGHEST", "HIGHEST")
"""The sum was in f32, so the product is, too: no library may multiply in TF32."""


def restore_dots(graph: Graph) -> Graph:
    """The graph with the products in it restored, in simplest form; the same graph without any.

    reduce_add(multiply(broadcast(v), m)) -> dot(v, m), where v and m share a batch.
    multiply(broadcast(v), broadcast(w)) -> dot(v, w) without a sum, where each has a dimension of its own.
    """
    found: dict[str, tuple[Dot, tuple[int, ...]]] = {}
    for node in graph:
        found |= _find_dots(graph, node)
    if not found:
        return graph

    def change(node: Node, draft: Draft, values: Mapping[str, str]) -> str | None:
        if node.name not in found:
            return None
        dot, summed = found[node.name]
        product = dot.add(node, draft, values)
        if not summed:
            return product
        attrs = DimensionsAttrs(summed)
        return draft.put(replace(node, operands=(product, node.operands[1]), attrs=attrs))

    return rewrite_graph(graph, lambda rule, name: None, change)


@dataclass(frozen=True, slots=True)
class Dot:
    """A product that stands written out.

    operands: in the graph where it stands.  order: what its dimensions become in the place of what was written out.
    """

    operands: tuple[str, str]
    attrs: DotAttrs
    type: ArrayType
    order: tuple[int, ...]

    def add(self, origin: Node, draft: Draft, values: Mapping[str, str]) -> str:
        """Puts it into a draft; its value there."""
        left, right = (values[o] for o in self.operands)
        product = draft.add(origin, "dot", self.type, (left, right), self.attrs)
        if ascends(self.order):
            return product
        turned = ArrayType(self.type.dtype, tuple(self.type.shape[d] for d in self.order))
        return draft.add(origin, "transpose", turned, (product,), TransposeAttrs(self.order))


# ---- merged products -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive pieces of a concatenation, which some slices of a product are made of.

    start: of the first piece, along the concatenated dimension.
    """

    pieces: tuple[str, ...]
    start: int
    extent: int


def split_merged_dots(graph: Graph) -> Graph:
    """slice(dot(x, concatenate(y, z))) -> dot(x, y), where each slice is of one of them; the same graph without any."""
    for node in list(graph):
        if isinstance(node.attrs, DotAttrs):
            graph = _split_dot(graph, node) or graph
    return graph


def _split_dot(graph: Graph, dot: Node) -> Graph | None:
    assert isinstance(dot.attrs, DotAttrs)
    a = dot.attrs
    users = [graph[name] for name in graph.users[dot.name]]
    if dot.name in graph.outputs or not all(isinstance(u.attrs, SliceAttrs) for u in users):
        return None
    before = len(a.lhs_batch)
    for side, (contracting, batch) in enumerate(
        ((a.lhs_contracting, a.lhs_batch), (a.rhs_contracting, a.rhs_batch))
    ):
        joined = graph[dot.operands[side]]
        free = [d for d in range(joined.array.rank) if d not in (*contracting, *batch)]
        if isinstance(joined.attrs, DimensionAttrs) and joined.attrs.dimension in free:
            along = before + free.index(joined.attrs.dimension)
            parts = [_find_part(graph, joined, user, along) for user in users]
            if len(set(parts)) > 1 and _are_apart(set(parts)):
                return _take_apart(
                    graph, dot, side, along, dict(zip(graph.users[dot.name], parts, strict=True))
                )
        before += len(free)
    return None


def _find_part(graph: Graph, joined: Node, cut: Node, along: int) -> _Part:
    """The fewest pieces that hold what a slice of the product takes along a dimension."""
    assert isinstance(joined.attrs, DimensionAttrs) and isinstance(cut.attrs, SliceAttrs)
    first, end = cut.attrs.starts[along], cut.attrs.limits[along]
    extents = [graph[o].shape[joined.attrs.dimension] for o in joined.operands]
    starts = [0, *accumulate(extents)]
    held = [i for i, (a, b) in enumerate(pairwise(starts)) if a < end and first < b]
    pieces = tuple(joined.operands[i] for i in held)
    return _Part(pieces, starts[held[0]], sum(extents[i] for i in held))


def _are_apart(parts: Set[_Part]) -> bool:
    """Does no piece belong to two of them?"""
    ordered = sorted(parts, key=lambda part: part.start)
    return all(a.start + a.extent <= b.start for a, b in pairwise(ordered))


def _take_apart(
    graph: Graph, dot: Node, side: int, along: int, parts: Mapping[str, _Part]
) -> Graph:
    """The graph with a product of its own for each part."""
    taken = set(graph.nodes)
    nodes: dict[str, Node] = {}
    products: dict[_Part, Node] = {}
    for name, node in graph.nodes.items():
        if name == dot.name:
            for part in dict.fromkeys(parts.values()):
                made = _multiply_part(graph, dot, side, along, part, taken)
                nodes.update({n.name: n for n in made})
                products[part] = made[-1]
        elif name in parts:
            nodes[name] = _cut_part(node, along, parts[name], products[parts[name]])
        else:
            nodes[name] = node
    return replace(graph, nodes=keep_live_nodes(nodes, graph.outputs))


def _multiply_part(
    graph: Graph, dot: Node, side: int, along: int, part: _Part, taken: set[str]
) -> list[Node]:
    """A concatenation, where the part has several pieces, and the product of the part."""
    made: list[Node] = []
    joined = graph[dot.operands[side]]
    assert isinstance(joined.attrs, DimensionAttrs)
    operand = part.pieces[0]
    if len(part.pieces) > 1:
        operand = _take_name(f"{joined.name}.part", taken)
        type = _resize(joined.array, joined.attrs.dimension, part.extent)
        made.append(replace(joined, name=operand, type=type, operands=part.pieces))
    operands = list(dot.operands)
    operands[side] = operand
    type = _resize(dot.array, along, part.extent)
    name = _take_name(f"{dot.name}.part", taken)
    return [*made, replace(dot, name=name, type=type, operands=tuple(operands))]


def _take_name(name: str, taken: set[str]) -> str:
    unique = free_name(name, taken)
    taken.add(unique)
    return unique


def _cut_part(cut: Node, along: int, part: _Part, product: Node) -> Node:
    assert isinstance(cut.attrs, SliceAttrs)
    starts, limits = list(cut.attrs.starts), list(cut.attrs.limits)
    starts[along] -= part.start
    limits[along] -= part.start
    attrs = replace(cut.attrs, starts=tuple(starts), limits=tuple(limits))
    return replace(cut, operands=(product.name,), attrs=attrs)


def _resize(array: ArrayType, dimension: int, extent: int) -> ArrayType:
    shape = list(array.shape)
    shape[dimension] = extent
    return ArrayType(array.dtype, tuple(shape))


# ---- products written out ------------------------------------------------------------------------


def _find_dots(graph: Graph, product: Node) -> dict[str, tuple[Dot, tuple[int, ...]]]:
    """What reads a multiplication, or itself, as a product: (the product, what is summed up behind it) by name."""
    if OPS[product.op].combiner is not np.multiply or product.dtype is not DType.F32:
        return {}
    users = [graph[name] for name in graph.users[product.name]]
    sums = {u.name: u.attrs.dimensions for u in users if isinstance(u.attrs, DimensionsAttrs)}
    if product.name in graph.outputs or len(sums) < len(users):
        outer = _read_outer(graph, product)
        return {product.name: (outer, ())} if outer else {}
    if not all(_adds(graph, user) for user in users):
        return {}
    for first in sums.values():
        dot = _read_dot(graph, product, first)
        if dot is None or not all(set(first) <= set(summed) for summed in sums.values()):
            continue
        kept = [d for d in range(product.array.rank) if d not in first]
        return {
            name: (dot, tuple(kept.index(d) for d in summed if d in kept))
            for name, summed in sums.items()
        }
    return {}


def _read_dot(graph: Graph, product: Node, summed: tuple[int, ...]) -> Dot | None:
    """The product that the sum of a multiplication over some dimensions is."""
    rank = product.array.rank
    kept = tuple(d for d in range(rank) if d not in summed)
    for vector, matrix in (product.operands, product.operands[::-1]):
        given = _read_spread(graph, vector)
        if not given or isinstance(graph[matrix].attrs, BroadcastAttrs):
            continue
        batch = tuple(d for d in given if d not in summed)
        free = tuple(d for d in range(rank) if d not in given)
        if not batch or not free or set(summed) - set(given) or kept != (*batch, *free):
            continue
        attrs = DotAttrs(
            lhs_contracting=tuple(given.index(d) for d in summed),
            rhs_contracting=summed,
            lhs_batch=tuple(given.index(d) for d in batch),
            rhs_batch=batch,
            precision=EXACT,
        )
        type = ArrayType(product.dtype, tuple(product.shape[d] for d in kept))
        operands = (graph[vector].operands[0], matrix)
        return Dot(operands, attrs, type, tuple(range(len(kept))))
    return None


def _read_outer(graph: Graph, product: Node) -> Dot | None:
    """The product without a sum that a multiplication of two broadcasts is."""
    left, right = (_read_spread(graph, o) for o in product.operands)
    if not left or not right:
        return None
    batch = tuple(d for d in left if d in right)
    rows = tuple(d for d in left if d not in right)
    columns = tuple(d for d in right if d not in left)
    own = (*batch, *rows, *columns)
    if not batch or not rows or not columns or len(own) < product.array.rank:
        return None
    attrs = DotAttrs(
        lhs_contracting=(),
        rhs_contracting=(),
        lhs_batch=tuple(left.index(d) for d in batch),
        rhs_batch=tuple(right.index(d) for d in batch),
        precision=EXACT,
    )
    type = ArrayType(product.dtype, tuple(product.shape[d] for d in own))
    order = tuple(own.index(d) for d in range(product.array.rank))
    first, second = (graph[o].operands[0] for o in product.operands)
    return Dot((first, second), attrs, type, order)


def _read_spread(graph: Graph, name: str) -> tuple[int, ...]:
    """The dimensions of a broadcast that its operand has, whole; none where it is no such broadcast."""
    node = graph[name]
    if not isinstance(node.attrs, BroadcastAttrs):
        return ()
    dimensions = node.attrs.dimensions
    whole = graph[node.operands[0]].shape == tuple(node.shape[d] for d in dimensions)
    return dimensions if whole and ascends(dimensions) else ()


def _adds(graph: Graph, node: Node) -> bool:
    """Is it a reduce of one array that adds, from zero?"""
    if not OPS[node.op].is_reduce or len(node.operands) != 2:
        return False
    start = graph[node.operands[1]].attrs
    if not isinstance(start, ConstantAttrs) or np.any(start.value.numpy()):
        return False
    (region,) = node.regions
    root = region[region.outputs[0]]
    return OPS[root.op].combiner is np.add and set(root.operands) == set(region.parameters)
