"""Graph -> Graph: products laid out so that the kernels around them need no copy.

XLA multiplies what shares an operand at once and cuts the result apart; behind a kernel of ours each cut is a copy, and
so is each transpose that a library asks for.  Written out before ops are stitched both are part of the kernels that
read or write the values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from astitch.graph.dimensions import is_embedded
from astitch.graph.ir import (
    ArrayType,
    DimensionAttrs,
    DotAttrs,
    Graph,
    NoAttrs,
    Node,
    SliceAttrs,
    TransposeAttrs,
)
from astitch.graph.ops import OPS, Kind
from astitch.graph.stitchable import is_computed
from astitch.rewrite.draft import Draft, Log, is_run
from astitch.rewrite.orientation import orient_products
from astitch.rewrite.simplify import rewrite_graph

MERGED_BYTES = 32 << 20
"""Operands and result of a product, beyond which it fills a GPU by itself.  XLA's limit for one of those that it merges
(xla_gpu_dot_merger_threshold_mb); ours is for all."""


def arrange_products(graph: Graph, log: Log | None = None) -> Graph:
    """The same function; `log` hears of every product that is merged with others, gets a transposed operand or is
    turned.

    graph: simplified.
    """
    heard: Log = log or (lambda rule, node: None)
    merged = _merge(graph, _find_shared(graph), heard)
    return orient_products(_transpose_operands(merged, heard), heard)


# ---- products that share an operand ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shared:
    """Products of one operand.  side: of the operands that differ, 0 or 1.  leading: is the contracted dimension of
    those their first, else the last?  dots: in the graph's order."""

    side: int
    leading: bool
    dots: tuple[Node, ...]


def _find_shared(graph: Graph) -> list[_Shared]:
    groups: dict[tuple[int, bool, tuple[object, ...]], list[Node]] = {}
    order = {node.name: number for number, node in enumerate(_parameters_first(graph))}
    for node in graph:
        for side in (0, 1):
            key = _sharing(graph, node, side)
            if key is None:
                continue
            together = groups.setdefault((side, *key), [])
            # What the others are multiplied by must be there before the first of them.
            if not together or order[node.operands[side]] < order[together[0].name]:
                together.append(node)
    found: list[_Shared] = []
    taken: set[str] = set()
    for (side, leading, _), dots in groups.items():
        left = tuple(dot for dot in dots if dot.name not in taken)
        if len({dot.operands[side] for dot in left}) == len(left) > 1:
            found.append(_Shared(side, leading, left))
            taken.update(dot.name for dot in left)
    return found


def _parameters_first(graph: Graph) -> list[Node]:
    return sorted(graph, key=lambda node: not node.is_parameter)


def _sharing(graph: Graph, node: Node, side: int) -> tuple[bool, tuple[object, ...]] | None:
    """What products must have in common to be one: the place of the contracted dimension in the operands of `side`,
    and the rest; None for one that stays alone."""
    attrs = node.attrs
    if not isinstance(attrs, DotAttrs) or attrs.lhs_batch or len(attrs.lhs_contracting) != 1:
        return None
    other = graph[node.operands[side]].array
    (contracted,) = attrs.rhs_contracting if side else attrs.lhs_contracting
    if contracted not in (0, other.rank - 1) or other.rank < 2:
        return None
    arrays = [node.array, *(graph[o].array for o in node.operands)]
    if sum(a.bytes for a in arrays) > MERGED_BYTES or node.name in graph.outputs:
        return None
    # A cut that no kernel reads would be a copy.
    if not all(_is_read_by_kernel(graph, user) for user in graph.users[node.name]):
        return None
    shared = attrs.lhs_contracting if side else attrs.rhs_contracting
    common = (node.operands[1 - side], shared, attrs.precision, attrs.algorithm)
    return contracted == 0, (*common, node.dtype, other.dtype, other.shape[contracted])


def _is_read_by_kernel(graph: Graph, name: str) -> bool:
    """Is the op, or what it only moves elements for, computed by a kernel of ours?"""
    node = graph[name]
    while OPS[node.op].kind is Kind.INDEX and node.name not in graph.outputs:
        users = graph.users[node.name]
        if len(users) != 1:
            return False
        node = graph[users[0]]
    return is_computed(graph, node)


def _merge(graph: Graph, groups: Sequence[_Shared], log: Log) -> Graph:
    if not groups:
        return graph
    group_of = {dot.name: group for group in groups for dot in group.dots}
    products: dict[str, str] = {}  # the merged product, by the first of its dots

    def merge(node: Node, draft: Draft, values: Mapping[str, str]) -> str | None:
        group = group_of.get(node.name)
        if group is None:
            return None
        first = group.dots[0].name
        if node.name == first:
            log("merge_products", first)
            products[first] = _put_merged(draft, node, group, values)
        return _put_part(draft, node, group, products[first], graph)

    return rewrite_graph(graph, log, merge, _parameters_first(graph))


def _put_merged(draft: Draft, first: Node, group: _Shared, values: Mapping[str, str]) -> str:
    """The product of all matrices beside each other."""
    attrs, side = first.attrs, group.side
    assert isinstance(attrs, DotAttrs)
    matrices, widths = [], []
    for dot in group.dots:
        array = draft[values[dot.operands[side]]].array
        depth = array.shape[0 if group.leading else -1]
        width = array.size // depth
        shape = (depth, width) if group.leading else (width, depth)
        operand = values[dot.operands[side]]
        matrices.append(draft.add(first, "reshape", ArrayType(array.dtype, shape), (operand,)))
        widths.append(width)
    along = 1 if group.leading else 0
    total = sum(widths)
    extents = (depth, total) if group.leading else (total, depth)
    joined = ArrayType(draft[matrices[0]].dtype, extents)
    side_by_side = draft.add(first, "concatenate", joined, tuple(matrices), DimensionAttrs(along))
    free = _free_shape(draft[first.operands[1 - side]], attrs, 1 - side)
    kept = (*free, total) if side else (total, *free)
    contracting = (1 - along,)
    if side:
        attrs = replace(attrs, rhs_contracting=contracting)
        operands = (first.operands[0], side_by_side)
    else:
        attrs = replace(attrs, lhs_contracting=contracting)
        operands = (side_by_side, first.operands[1])
    return draft.add(first, "dot", ArrayType(first.dtype, kept), operands, attrs)


def _put_part(draft: Draft, dot: Node, group: _Shared, product: str, graph: Graph) -> str:
    """The columns, or rows, of the merged product that are one dot's."""
    whole = draft[product].array
    along = whole.rank - 1 if group.side else 0
    start = 0
    for other in group.dots:
        shared = graph[other.operands[1 - group.side]]
        assert isinstance(other.attrs, DotAttrs)
        width = other.array.size // math.prod(_free_shape(shared, other.attrs, 1 - group.side))
        if other.name == dot.name:
            break
        start += width
    starts, limits = [0] * whole.rank, list(whole.shape)
    starts[along], limits[along] = start, start + width
    cut = SliceAttrs(tuple(starts), tuple(limits), (1,) * whole.rank)
    shape = [*whole.shape]
    shape[along] = width
    part = draft.add(dot, "slice", ArrayType(whole.dtype, tuple(shape)), (product,), cut)
    return draft.put(replace(dot, op="reshape", operands=(part,), attrs=NoAttrs()))


def _free_shape(node: Node, attrs: DotAttrs, side: int) -> tuple[int, ...]:
    """Extents of an operand's dimensions that the product keeps.  No batch dimensions."""
    gone = attrs.rhs_contracting if side else attrs.lhs_contracting
    return tuple(n for d, n in enumerate(node.shape) if d not in gone)


# ---- operands that no library reads as they are -------------------------------------------------------------------


def _transpose_operands(graph: Graph, log: Log) -> Graph:
    """Operands that a kernel computes are handed on as one strided batch of matrices."""
    wanted = {
        (node.name, side): order
        for node in graph
        if isinstance(node.attrs, DotAttrs)
        for side in (0, 1)
        if (order := _wanted_order(graph, node, side)) is not None
    }
    if not wanted:
        return graph

    def transpose(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        name = node.name
        for side in (0, 1):
            if (name, side) in wanted:
                log("transpose_operand", name)
                node = _with_transposed(draft, node, side, wanted[name, side])
        return draft.put(node)

    return rewrite_graph(graph, log, transpose)


def _wanted_order(graph: Graph, dot: Node, side: int) -> tuple[int, ...] | None:
    """The dimensions of an operand in an order that a library reads; None where they are, or where no kernel of ours
    writes the operand."""
    attrs = dot.attrs
    assert isinstance(attrs, DotAttrs)
    operand = graph[dot.operands[side]]
    contracting, batch = (
        (attrs.rhs_contracting, attrs.rhs_batch)
        if side
        else (attrs.lhs_contracting, attrs.lhs_batch)
    )
    rank = operand.array.rank
    free = [d for d in range(rank) if d not in (*contracting, *batch)]
    runs = all(map(is_run, (free, contracting, batch)))
    if (runs and rank - 1 not in batch) or not _is_written(graph, operand):
        return None
    # The contracted dimensions stay the inner ones if they are.
    inner = max(contracting, default=-1) > max(free, default=-1)
    rest = [*free, *contracting] if inner else [*contracting, *free]
    return (*batch, *rest)


def _is_written(graph: Graph, node: Node) -> bool:
    """Does a kernel of ours compute the value?"""
    while OPS[node.op].kind is Kind.INDEX:
        node = graph[node.operands[0]]
    return is_computed(graph, node) and not is_embedded(graph, node.name)


def _with_transposed(draft: Draft, dot: Node, side: int, order: tuple[int, ...]) -> Node:
    operand = draft[dot.operands[side]].array
    shape = tuple(operand.shape[d] for d in order)
    name = draft.add(
        dot,
        "transpose",
        ArrayType(operand.dtype, shape),
        (dot.operands[side],),
        TransposeAttrs(order),
    )
    place = {d: i for i, d in enumerate(order)}

    def moved(dimensions: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(place[d] for d in dimensions)

    attrs = dot.attrs
    assert isinstance(attrs, DotAttrs)
    if side:
        attrs = replace(
            attrs, rhs_contracting=moved(attrs.rhs_contracting), rhs_batch=moved(attrs.rhs_batch)
        )
        return replace(dot, operands=(dot.operands[0], name), attrs=attrs)
    attrs = replace(
        attrs, lhs_contracting=moved(attrs.lhs_contracting), lhs_batch=moved(attrs.lhs_batch)
    )
    return replace(dot, operands=(name, dot.operands[1]), attrs=attrs)
