"""Graph -> Graph: sums of products written out, as the products of matrices and vectors that they are.

XLA's simplifier writes a matrix times a vector out as a multiplication and a sum, before its hook.  A loop is one
kernel only where its products are known as such.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from astitch.graph.edit import keep_live_nodes
from astitch.graph.ir import (
    BroadcastAttrs,
    ConstantAttrs,
    DimensionsAttrs,
    DotAttrs,
    DType,
    Graph,
    Node,
)
from astitch.graph.ops import OPS

EXACT = ("HIGHEST", "HIGHEST")
"""The sum was in f32, so the product is, too: no library may multiply in TF32."""


def restore_dots(graph: Graph) -> Graph:
    """reduce_add(multiply(broadcast(v), m)) -> dot(v, m), where v and m share a batch; the same graph without any."""
    found = {node.name: dot for node in graph if (dot := _find_dot(graph, node))}
    if not found:
        return graph
    nodes = {name: found.get(name, node) for name, node in graph.nodes.items()}
    return replace(graph, nodes=keep_live_nodes(nodes, graph.outputs))


def _find_dot(graph: Graph, node: Node) -> Node | None:
    """The product that a sum is, with its name and type."""
    if not isinstance(node.attrs, DimensionsAttrs) or not _adds(graph, node):
        return None
    product = graph[node.operands[0]]
    read_by_others = len(graph.users[product.name]) > 1 or product.name in graph.outputs
    if OPS[product.op].combiner is not np.multiply or read_by_others:
        return None
    summed = node.attrs.dimensions
    for vector, matrix in (product.operands, product.operands[::-1]):
        spread = graph[vector].attrs
        if not isinstance(spread, BroadcastAttrs) or isinstance(
            graph[matrix].attrs, BroadcastAttrs
        ):
            continue
        given = tuple(spread.dimensions)
        batch = tuple(d for d in given if d not in summed)
        rank = product.array.rank
        free = tuple(d for d in range(rank) if d not in given)
        kept = tuple(d for d in range(rank) if d not in summed)
        if not batch or not free or set(summed) - set(given) or kept != (*batch, *free):
            continue
        left = graph[graph[vector].operands[0]].array.shape
        if left != tuple(product.shape[d] for d in given):
            continue
        attrs = DotAttrs(
            lhs_contracting=tuple(given.index(d) for d in summed),
            rhs_contracting=summed,
            lhs_batch=tuple(given.index(d) for d in batch),
            rhs_batch=batch,
            precision=EXACT,
        )
        operands = (graph[vector].operands[0], matrix)
        return replace(node, op="dot", operands=operands, attrs=attrs, regions=())
    return None


def _adds(graph: Graph, node: Node) -> bool:
    """Is it a reduce of one f32 array that adds, from zero?"""
    if not OPS[node.op].is_reduce or len(node.operands) != 2 or node.dtype is not DType.F32:
        return False
    start = graph[node.operands[1]].attrs
    if not isinstance(start, ConstantAttrs) or np.any(start.value.numpy()):
        return False
    (region,) = node.regions
    root = region[region.outputs[0]]
    return OPS[root.op].combiner is np.add and set(root.operands) == set(region.parameters)
