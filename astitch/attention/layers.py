"""Keys and values that are one layer of an array: Node -> the array, and which layer of it.

A loop over layers holds the caches of all of them.  A turn reads a slice, changes a row of it, and writes the row into
the array too (loops/update_stacks.py).  Behind that the slice is a layer of the array.
"""

from __future__ import annotations

from dataclasses import dataclass

from astitch.graph.edit import waits_for
from astitch.graph.ir import DynamicSliceAttrs, Graph, Node
from astitch.graph.ops import OPS, is_slice_update
from astitch.graph.storage import stored_value
from astitch.rewrite.layer_updates import is_number
from astitch.rewrite.product_weights import Layer, find_layer


@dataclass(frozen=True, slots=True)
class Layered:
    """array: its name.  It is [layers, ...], and one layer of it has the elements of the node in their order."""

    array: str
    layer: Layer


def find_layered(graph: Graph, node: Node, reader: str) -> Layered | None:
    """None where the node is no layer, or one that may be overwritten before it is read.

    reader: the product that reads it last.
    """
    if is_slice_update(node):
        source = graph[stored_value(graph, node.operands[0])]
        layer = find_layer(graph, source)
        if layer is None or source.dtype is not node.dtype:
            return None
        users = (graph[user] for user in graph.users[source.operands[0]])
        written = (u for u in users if _writes_row(graph, u, source.operands[0], layer, node))
        array = next((u.name for u in written), "")
    else:
        layer = find_layer(graph, node)
        array = node.operands[0] if layer else ""
    if layer is None or not array or not _is_read_first(graph, array, reader):
        return None
    return Layered(array, layer)


def _is_read_first(graph: Graph, array: str, reader: str) -> bool:
    """Does whatever writes into an array, in place if it can, wait for its reader?"""
    users = (graph[user] for user in graph.users[array])
    writers = [
        user.name for user in users if OPS[user.op].writes_into and user.operands[0] == array
    ]
    return all(waits_for(graph, writer, reader) for writer in writers)


def _writes_row(graph: Graph, node: Node, array: str, layer: Layer, update: Node) -> bool:
    """Is an update of the array that of its layer?"""
    inner = node.shape[1:]
    if (
        not is_slice_update(node)
        or node.operands[0] != array
        or update.shape not in (inner, (1, *inner))
    ):
        return False
    number, *starts = node.operands[2:]
    places = list(update.operands[2:])[-len(starts) :]
    if not is_number(graph, number, layer.number) or starts != places:
        return False
    given, new = (graph[of.operands[1]] for of in (node, update))
    if given.shape[1:] != new.shape[-len(starts) :]:
        return False
    row = graph[stored_value(graph, given.name)]
    if row.name == stored_value(graph, new.name):
        return True
    # What was written into the layer, read from there.
    if not isinstance(row.attrs, DynamicSliceAttrs):
        return False
    where = list(row.operands[1:])[-len(starts) :]
    same = row.operands[:1] == (update.name,) and where == starts
    return same and row.shape[-len(starts) :] == new.shape[-len(starts) :]
