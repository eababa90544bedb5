"""Graph -> Graph: scales of keys and values that stand behind their products stand in front of them again.

    (q k8) * s_k, (p * s_v) v8    ->    q (k8 * s_k), p (v8 * s_v)

k8 and v8 are integers of 8 bits.  So there is one form to look for, that of integers.py, and scores are those of plain
attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from astitch.attention.indices import varying_dimensions
from astitch.attention.integers import is_multiplication
from astitch.graph.edit import free_name, sort_nodes
from astitch.graph.ir import (
    ArrayType,
    Attrs,
    BroadcastAttrs,
    DotAttrs,
    DType,
    Graph,
    NoAttrs,
    Node,
    TransposeAttrs,
)
from astitch.graph.matmul import free_dimensions
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.attention import INTEGERS
from astitch.rewrite.draft import read_splat


@dataclass(frozen=True, slots=True)
class Moved:
    """A multiplication by scales.  node: its name.  value: what it multiplies.  product: of the integers.

    side: the operand of the product that is integers.  scales: a node's name.  dimensions: for each dimension of the
    scales, which one of that operand it is; -1: none, its extent is 1.
    """

    node: str
    value: str
    product: str
    side: int
    scales: str
    dimensions: tuple[int, ...]


def find_late_scales(graph: Graph) -> list[Moved]:
    """At most one for each product and each multiplication.  No product waits for itself where all are moved."""
    found: dict[str, Moved] = {}
    scales: dict[str, str] = {}
    order, in_order = graph.order, True
    for node in graph:
        side = _find_integers(graph, node)
        if side is None:
            continue
        moved = _find_behind(graph, node, side) or _find_before(graph, node, side)
        if moved is None or moved.node in found:
            continue
        is_before = order[moved.scales] < order[node.name]
        if (is_before and in_order) or not _waits(graph, moved.scales, node.name, scales):
            in_order = in_order and is_before
            found[moved.node] = moved
            scales[node.name] = moved.scales
    return list(found.values())


def _find_integers(graph: Graph, node: Node) -> int | None:
    """Which operand of a product is integers."""
    if not isinstance(node.attrs, DotAttrs):
        return None
    sides = (n for n, name in enumerate(node.operands) if _is_of_integers(graph, graph[name]))
    return next(sides, None)


def _waits(graph: Graph, name: str, product: str, scales: Mapping[str, str]) -> bool:
    """Does a node wait for a product, where others have scales in front of them?  scales: of these, by product."""
    pending, seen = [name], {name}
    while pending:
        reached = pending.pop()
        if reached == product:
            return True
        before = graph[reached].operands
        before = (*before, scales[reached]) if reached in scales else before
        new = [operand for operand in before if operand not in seen]
        seen.update(new)
        pending += new
    return False


def scale_early(graph: Graph, found: list[Moved]) -> Graph:
    """The same function but for rounding."""
    nodes = dict(graph.nodes)
    for moved in found:
        product, multiplied = nodes[moved.product], nodes[moved.node]
        operands = list(product.operands)
        operands[moved.side] = _multiply(nodes, operands[moved.side], moved)
        nodes[product.name] = replace(product, operands=tuple(operands))
        nodes[multiplied.name] = replace(
            multiplied, op="reshape", operands=(moved.value,), attrs=NoAttrs()
        )
    return replace(graph, nodes=sort_nodes(nodes, [*graph.nodes, *graph.outputs], {}))


def _multiply(nodes: dict[str, Node], factor: str, moved: Moved) -> str:
    """A factor times scales, in f32."""

    def add(op: str, value: str, shape: Sequence[int], attrs: Attrs = NoAttrs()) -> str:
        name = free_name(f"{factor}.scaled", nodes)
        dtype = DType.F32 if op == "convert" else nodes[value].dtype
        nodes[name] = Node(name, op, ArrayType(dtype, tuple(shape)), (value,), attrs)
        return name

    whole, at = nodes[factor].array, [d for d in moved.dimensions if d >= 0]
    order = tuple(sorted(range(len(at)), key=at.__getitem__))
    scales = add("reshape", moved.scales, [whole.shape[d] for d in at])
    scales = add("transpose", scales, [whole.shape[at[n]] for n in order], TransposeAttrs(order))
    scales = add("convert", scales, nodes[scales].shape)
    scales = add("broadcast", scales, whole.shape, BroadcastAttrs(tuple(sorted(at))))
    wide = add("convert", factor, whole.shape)
    product = free_name(f"{factor}.scaled", nodes)
    nodes[product] = Node(
        product, "multiply", ArrayType(DType.F32, whole.shape), (wide, scales), NoAttrs()
    )
    result = free_name(f"{factor}.scaled", nodes)
    nodes[result] = Node(result, "convert", whole, (product,), NoAttrs())
    return result


def _is_given(graph: Graph, name: str) -> bool:
    """Is a value an argument, moved and converted at most?"""
    node = graph[name]
    while True:
        row = OPS[node.op]
        if not (row.is_conversion or row.is_broadcast or row.permutes or _reshapes(node)):
            return node.is_parameter
        node = graph[node.operands[0]]


def _reshapes(node: Node) -> bool:
    return OPS[node.op].is_view and OPS[node.op].kind is Kind.INDEX


def _is_of_integers(graph: Graph, node: Node) -> bool:
    while True:
        if OPS[node.op].is_conversion:
            node = graph[node.operands[0]]
            if node.dtype in INTEGERS:
                return True
            if not node.dtype.is_float:
                return False
        elif OPS[node.op].permutes or _reshapes(node):
            node = graph[node.operands[0]]
        else:
            return False


def _find_behind(graph: Graph, product: Node, side: int) -> Moved | None:
    """Scales of a product's result, along dimensions that the integers have."""
    attrs = product.attrs
    assert isinstance(attrs, DotAttrs)
    batch, contracted = _dimensions_of(attrs, side)
    own = free_dimensions(graph[product.operands[side]].array.rank, batch, contracted)
    count = product.array.rank - len(batch)
    first = len(batch) + (count - len(own) if side else 0)
    theirs = dict(enumerate(batch)) | dict(enumerate(own, first))
    node, places = product, tuple(range(product.array.rank))
    while len(graph.users[node.name]) == 1 and node.name not in graph.outputs:
        before, node = node, graph[graph.users[node.name][0]]
        if isinstance(node.attrs, TransposeAttrs):
            places = tuple(places[d] for d in node.attrs.permutation)
        elif is_multiplication(node):
            other = next((o for o in node.operands if o != before.name), "")
            if not other:
                return None  # a square
            if read_splat(graph, other) is not None:
                continue
            known = {d: theirs[p] for d, p in enumerate(places) if p in theirs}
            return _read(graph, Moved(node.name, before.name, product.name, side, other, ()), known)
        elif not OPS[node.op].is_conversion:
            return None
    return None


def _find_before(graph: Graph, product: Node, side: int) -> Moved | None:
    """Scales of the other factor, along dimensions that the integers have too."""
    attrs = product.attrs
    assert isinstance(attrs, DotAttrs)
    mine, its = _dimensions_of(attrs, 1 - side), _dimensions_of(attrs, side)
    theirs = dict(zip((*mine[0], *mine[1]), (*its[0], *its[1]), strict=True))
    node = graph[product.operands[1 - side]]
    places = tuple(range(node.array.rank))
    while len(graph.users[node.name]) == 1 and node.name not in graph.outputs:
        if is_multiplication(node):
            known = {d: theirs[p] for d, p in enumerate(places) if p in theirs}
            pairs = [node.operands, node.operands[::-1]]
            for value, other in sorted(pairs, key=lambda pair: not _is_given(graph, pair[1])):
                moved = Moved(node.name, value, product.name, side, other, ())
                if read := _read(graph, moved, known):
                    return read
            return None
        if isinstance(node.attrs, TransposeAttrs):
            inverse = sorted(range(len(places)), key=node.attrs.permutation.__getitem__)
            places = tuple(places[d] for d in inverse)
        elif not OPS[node.op].is_conversion:
            return None
        node = graph[node.operands[0]]
    return None


def _dimensions_of(attrs: DotAttrs, side: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(batch, contracted) dimensions of an operand."""
    if side:
        return attrs.rhs_batch, attrs.rhs_contracting
    return attrs.lhs_batch, attrs.lhs_contracting


def _read(graph: Graph, moved: Moved, known: Mapping[int, int]) -> Moved | None:
    """With the scales in front of their broadcast, if they vary along known dimensions alone.  known: the dimensions
    of the multiplication that the integers have, and which of theirs these are."""
    if not varying_dimensions(graph, moved.scales):
        return None
    node = graph[moved.scales]
    at: tuple[int, ...] = tuple(range(node.array.rank))
    while True:
        if isinstance(node.attrs, BroadcastAttrs):
            at = tuple(at[d] for d in node.attrs.dimensions)
        elif isinstance(node.attrs, TransposeAttrs):
            inverse = sorted(range(len(at)), key=node.attrs.permutation.__getitem__)
            at = tuple(at[d] for d in inverse)
        elif _reshapes(node):
            before = graph[node.operands[0]].shape
            if _drop_ones(before) != _drop_ones(node.shape):
                return None
            kept = (d for d, extent in zip(at, node.shape, strict=True) if extent > 1)
            at = tuple(next(kept) if extent > 1 else -1 for extent in before)
        elif not (OPS[node.op].is_conversion and graph[node.operands[0]].dtype.is_float):
            break
        node = graph[node.operands[0]]
    at = tuple(d if extent > 1 else -1 for d, extent in zip(at, node.shape, strict=True))
    if not node.dtype.is_float or any(d >= 0 and d not in known for d in at):
        return None
    return replace(moved, scales=node.name, dimensions=tuple(known.get(d, -1) for d in at))


def _drop_ones(shape: Sequence[int]) -> list[int]:
    return [extent for extent in shape if extent > 1]
