"""Graph -> Graph: sums of products that XLA wrote in the place of products of one row are products again.

XLA's simplifier turns a product with one row into a multiplication and a sum: sum(broadcast(q) * k).  Attention of one
query against a cache is two of them, a layer of one word has some more.  Here they are products, so that there is one
form to look for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from astitch.graph.edit import free_name, keep_live_nodes
from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    DimensionsAttrs,
    DotAttrs,
    DType,
    Graph,
    Node,
    TransposeAttrs,
)
from astitch.graph.ops import OPS, monoid_of
from astitch.rewrite.draft import is_zero

FACTORS = (DType.F32, DType.BF16, DType.F16)
"""The types of the operands of products."""

FULL, DEFAULT = ("HIGHEST", "HIGHEST"), ("DEFAULT", "DEFAULT")
"""Precisions.  XLA multiplies and adds what are sums in f32."""

LEAST_NUMBERS = 1 << 18
"""Of the larger operand.  Smaller ones are no keys of which a kernel is made."""


@dataclass(frozen=True, slots=True)
class SumOfProducts:
    """A sum, as a product whose second operand is the larger one.  permutation: of the product's dimensions, which
    gives those of the sum."""

    product: Node
    permutation: tuple[int, ...]


def find_products(graph: Graph) -> dict[str, SumOfProducts]:
    """By the name of the sum."""
    found = {}
    for node in graph:
        parts = _find(graph, node)
        if parts:
            found[node.name] = parts.write(
                graph, node, free_name(f"{node.name}.product", graph.nodes)
            )
    return found


def write_products(graph: Graph, found: Mapping[str, SumOfProducts]) -> Graph:
    """These sums are transposed products."""
    if not found:
        return graph
    nodes: dict[str, Node] = {}
    for node in graph:
        if node.name in found:
            product, attrs = found[node.name].product, TransposeAttrs(found[node.name].permutation)
            nodes[product.name] = product
            node = replace(node, op="transpose", operands=(product.name,), attrs=attrs, regions=())
        nodes[node.name] = node
    return replace(graph, nodes=keep_live_nodes(nodes, graph.outputs))


@dataclass(frozen=True, slots=True)
class _Factor:
    """An operand of a multiplication, in front of its broadcast.  dimensions: where its own stand among those of the
    multiplication."""

    name: str
    dimensions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Sum:
    """sum(left * right) over `summed`.  left: what lacks a dimension."""

    left: _Factor
    right: _Factor
    summed: tuple[int, ...]

    def write(self, graph: Graph, node: Node, name: str) -> SumOfProducts:
        """node: the sum.  name: the product's."""
        left, right = self.left.dimensions, self.right.dimensions
        both = [d for d in left if d in right]
        batch = [d for d in both if d not in self.summed]
        free = [d for d in (*left, *right) if d not in both]
        order = [*batch, *free]
        kept = sorted(order)
        extents = dict(zip(kept, node.shape, strict=True))
        wide = graph[self.right.name].dtype is DType.F32
        attrs = DotAttrs(
            tuple(left.index(d) for d in self.summed),
            tuple(right.index(d) for d in self.summed),
            tuple(left.index(d) for d in batch),
            tuple(right.index(d) for d in batch),
            FULL if wide else DEFAULT,
        )
        shape = tuple(extents[d] for d in order)
        product = Node(
            name,
            "dot",
            ArrayType(node.dtype, shape),
            (self.left.name, self.right.name),
            attrs,
            (),
            node.op_name,
            node.source,
        )
        return SumOfProducts(product, tuple(order.index(d) for d in kept))


def _find(graph: Graph, node: Node) -> _Sum | None:
    a = node.attrs
    if not OPS[node.op].is_reduce or not isinstance(a, DimensionsAttrs) or len(a.dimensions) != 1:
        return None
    if len(node.operands) != 2 or not isinstance(node.type, ArrayType):
        return None
    if monoid_of(node.regions[0]) != "add" or not is_zero(graph, node.operands[1]):
        return None
    source = _skip_widening(graph, node.operands[0])
    if source.op != "multiply" or not {node.dtype, source.dtype} <= {*FACTORS}:
        return None
    factors = [_read_factor(graph, operand) for operand in source.operands]
    whole = set(range(source.array.rank))
    factors.sort(key=lambda factor: len(factor.dimensions))
    left, right = factors
    larger = graph[right.name].array
    if larger.dtype not in FACTORS or graph[left.name].dtype is not larger.dtype:
        return None
    if larger.size < LEAST_NUMBERS or len(left.dimensions) == len(whole):
        return None
    if {*left.dimensions, *right.dimensions} != whole:
        return None
    if not {*a.dimensions} <= {*left.dimensions} & {*right.dimensions}:
        return None
    return _Sum(left, right, a.dimensions)


def _skip_widening(graph: Graph, name: str) -> Node:
    """What a conversion to a wider type of float converts."""
    node = graph[name]
    while OPS[node.op].is_conversion:
        source = graph[node.operands[0]]
        if not source.dtype.is_float or source.dtype.bytes >= node.dtype.bytes:
            break
        node = source
    return node


def _read_factor(graph: Graph, name: str) -> _Factor:
    """Through conversions to a wider type, and one broadcast."""
    node = _skip_widening(graph, name)
    if not isinstance(node.attrs, BroadcastAttrs):
        return _Factor(node.name, tuple(range(node.array.rank)))
    dimensions = node.attrs.dimensions
    return _Factor(_skip_widening(graph, node.operands[0]).name, dimensions)
