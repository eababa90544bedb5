"""Graph -> Graph: a number that multiplies a product's operand multiplies the product.

A kernel would read an array that lies in memory, and write all of it again for the product.  Behind the product a
kernel has the result in registers.  Newton's steps of an optimizer are `(c * a) @ a + b * a`.
"""

from __future__ import annotations

from collections.abc import Mapping

from astitch.graph.ir import BroadcastAttrs, ConstantAttrs, DotAttrs, DType, Graph, Node
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import stored_value
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.simplify import rewrite_graph

SCALED = frozenset({DType.F32, DType.F64})
"""Types in which no sum is near the largest number, so that it may be scaled late."""

MOST = 2.0**16
"""Numbers beyond it, and parts of less than its inverse, may be there for the range of the sums."""

LARGER = 2
"""The product has at most so many times the bytes of the operand: it is multiplied in its place."""


def scale_products(graph: Graph, log: Log | None = None) -> Graph:
    """The same function but for rounding.  graph: simplified.  `log` hears of every product that is scaled."""
    heard: Log = log or (lambda rule, node: None)
    found = {
        node.name: sides
        for node in graph
        if isinstance(node.attrs, DotAttrs) and (sides := _find_sides(graph, node))
    }
    if not found:
        return graph

    def change(node: Node, draft: Draft, names: Mapping[str, str]) -> str | None:
        sides = found.get(node.name)
        if sides is None:
            return None
        heard("scale_product", node.name)
        operands = list(node.operands)
        factors = []
        for side, (source, factor) in sides.items():
            operands[side] = names[source]
            factors.append(names[factor])
        ops = DraftOps(node, draft)
        made = ops.add("dot", node.dtype, node.shape, tuple(operands), node.attrs)
        for factor in factors:
            made = ops.both("multiply", made, ops.spread(factor, node.shape))
        return made

    return rewrite_graph(graph, heard, change)


def _find_sides(graph: Graph, node: Node) -> dict[int, tuple[str, str]]:
    """By operand, what a number multiplies, and the number; nothing where a kernel would only have more to do."""
    if node.dtype not in SCALED or node.name in graph.outputs or not _ends_in_kernels(graph, node):
        return {}
    found = {}
    for side, operand in enumerate(node.operands):
        scaled = _find_scaled(graph, operand)
        if scaled and node.array.bytes <= LARGER * graph[operand].array.bytes:
            found[side] = scaled
    return found


def _ends_in_kernels(graph: Graph, node: Node) -> bool:
    """Is a product read by element-wise ops, which a kernel computes in any case?"""
    users = [graph[user] for user in graph.users[node.name]]
    return bool(users) and all(OPS[user.op].kind is Kind.ELEMENTWISE for user in users)


def _find_scaled(graph: Graph, name: str) -> tuple[str, str] | None:
    """What lies in memory and is multiplied by one number, and the number."""
    node = graph[name]
    if node.op != "multiply" or node.dtype not in SCALED:
        return None
    for factor, source in (node.operands, node.operands[::-1]):
        number = _find_number(graph, factor)
        base = graph[stored_value(graph, source)]
        if number and (base.is_parameter or OPS[base.op].kind is Kind.COMPUTE):
            return source, number
    return None


def _find_number(graph: Graph, name: str) -> str | None:
    """The number that a value repeats; not a constant of unusual size."""
    node = graph[name]
    if not isinstance(node.attrs, BroadcastAttrs) or node.attrs.dimensions:
        return None
    source = graph[node.operands[0]]
    if isinstance(source.attrs, ConstantAttrs):
        size = abs(float(source.attrs.value.numpy()))
        if not 1 / MOST <= size <= MOST:
            return None
    return source.name
