"""Keys and values that are one layer of an array: Tensor -> the array, and which layer of it.

A loop over layers holds the caches of all of them.  A turn reads a slice, changes a row of it, and writes the row into
the array too (loops/update_stacks.py).  Behind that the slice is a layer of the array.
"""

from __future__ import annotations

from dataclasses import dataclass

from astitch.attention.operands import Tensor
from astitch.graph.ir import Graph, Node
from astitch.graph.ops import OPS
from astitch.loops.analysis import is_slice_update
from astitch.rewrite.product_weights import Layer, find_layer


@dataclass(frozen=True, slots=True)
class Layered:
    """array: its name; behind its first dimension it has those of the tensor, or one of extent 1 less."""

    array: str
    layer: Layer


def find_layered(graph: Graph, tensor: Tensor) -> Layered | None:
    """None where the tensor is no layer, or one that may be overwritten before it is read."""
    node = graph[tensor.name]
    if is_slice_update(node):
        source = _skip_reshapes(graph, node.operands[0])
        layer = find_layer(graph, source)
        if layer is None:
            return None
        users = (graph[user] for user in graph.users[source.operands[0]])
        written = (u for u in users if _writes_row(graph, u, source.operands[0], layer, node))
        array = next(written, None)
        return Layered(array.name, layer) if array else None
    layer = find_layer(graph, node)
    if layer is None or any(_writes_into(graph[u], node) for u in graph.users[node.operands[0]]):
        return None
    return Layered(node.operands[0], layer)


def _writes_into(user: Node, layer: Node) -> bool:
    """Does an op write into the array of a layer, in place if it can?"""
    return OPS[user.op].writes_into and user.operands[0] == layer.operands[0]


def _writes_row(graph: Graph, node: Node, array: str, layer: Layer, update: Node) -> bool:
    """Is an update of the array that of its layer?"""
    if not is_slice_update(node) or node.operands[0] != array:
        return False
    number, *starts = node.operands[2:]
    if number != layer.number or starts != list(update.operands[2:]):
        return False
    row = _skip_reshapes(graph, node.operands[1])
    if row.name == _skip_reshapes(graph, update.operands[1]).name:
        return row.array.size == graph[update.operands[1]].array.size
    # What was written into the layer, read from there.
    return row.operands[:1] == (update.name,) and list(row.operands[1:]) == starts


def _skip_reshapes(graph: Graph, name: str) -> Node:
    node = graph[name]
    while OPS[node.op].is_view:
        node = graph[node.operands[0]]
    return node
