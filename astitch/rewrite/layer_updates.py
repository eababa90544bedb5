"""Graph -> Graph: an update of one layer of a stack writes the rows that are new, not the layer.

Caches of all layers are often one array.  A step takes a layer out of it, writes rows into that, and puts all of the
layer back: `caches.at[i].set(update(caches[i], rows, places))`.  That is an update of the stack at (i, places).  Loops
over layers have a pass of their own (loops/update_stacks.py).
"""

from __future__ import annotations

from dataclasses import replace

from astitch.graph.edit import free_name, keep_live_nodes, sort_nodes
from astitch.graph.ir import ArrayType, Graph, NoAttrs, Node
from astitch.graph.ops import is_slice_update
from astitch.graph.storage import stored_value
from astitch.rewrite.draft import is_zero, read_splat
from astitch.rewrite.product_weights import find_layer


def update_rows_of_layers(graph: Graph) -> Graph:
    """The same function; the graph itself where nothing changes.

    What else reads the layer with its new rows reads it from the stack behind the update.  So nobody reads the stack as
    it was, and XLA need not keep that.
    """
    nodes: dict[str, Node] = {}
    behind: dict[str, str] = {}  # of an update of a layer: the layer read behind that of the stack
    for node in graph:
        found = _find_rows(graph, node) if is_slice_update(node) else None
        if found is None:
            nodes[node.name] = node
            continue
        rows, places, update, source = found
        inner = node.array.rank - 1
        shape = (1, *graph[rows].shape[-inner:])
        name = free_name(f"{node.name}.rows", {*graph.nodes, *nodes})
        type_ = ArrayType(node.dtype, shape)
        nodes[name] = Node(
            name, "reshape", type_, (rows,), NoAttrs(), (), node.op_name, node.source
        )
        nodes[node.name] = replace(node, operands=(node.operands[0], name, *places))
        if update.name in graph.outputs:
            continue
        cut = free_name(f"{node.name}.layer", {*graph.nodes, *nodes})
        nodes[cut] = replace(source, name=cut, operands=(node.name, *source.operands[1:]))
        behind[update.name] = cut
        if update.shape != source.shape:
            behind[update.name] = free_name(f"{cut}.reshape", {*graph.nodes, *nodes})
            shaped = replace(update, op="reshape", operands=(cut,), attrs=NoAttrs())
            nodes[behind[update.name]] = replace(shaped, name=behind[update.name])
    if len(nodes) == len(graph.nodes):
        return graph
    nodes = {
        name: node.read(tuple(behind.get(o, o) for o in node.operands))
        for name, node in nodes.items()
    }
    return replace(graph, nodes=keep_live_nodes(sort_nodes(nodes, [*nodes], {}), graph.outputs))


def _find_rows(graph: Graph, node: Node) -> tuple[str, tuple[str, ...], Node, Node] | None:
    """(the rows that are new, where in the stack, the update of the layer, the slice that is the layer before), of an
    update by a whole layer of the same stack."""
    stack, value, first, *others = node.operands
    update, inner = graph[stored_value(graph, value)], node.shape[1:]
    if not is_slice_update(update) or update.shape not in (inner, (1, *inner)):
        return None
    if update.dtype is not node.dtype or graph[value].shape != (1, *inner):
        return None  # of other types rows are other bits
    if not all(is_zero(graph, o) for o in others):
        return None
    source = graph[stored_value(graph, update.operands[0])]
    layer = find_layer(graph, source)
    if layer is None or source.operands[0] != stack or not is_number(graph, first, layer.number):
        return None
    _, rows, *starts = update.operands
    places = starts[-len(inner) :]
    same = all(graph[place].dtype is graph[first].dtype for place in places)
    return (rows, (first, *places), update, source) if places and same else None


def is_number(graph: Graph, name: str, number: int | str) -> bool:
    """Is a value of a graph this number, or the value of this name?"""
    if isinstance(number, str):
        return name == number
    constant = read_splat(graph, name)
    return constant is not None and int(constant) == number
