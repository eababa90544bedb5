"""Graph -> which of its ops XLA computes in the memory of a parameter: updates of a loop's state, of donated caches.

A kernel would write the whole array, of which such an op changes a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astitch.graph.dimensions import array_of
from astitch.graph.ir import GetTupleElementAttrs, Graph, Node
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import storage_name, stored_value
from astitch.xla.memory_reuse import match_donated

LEAST_UPDATED_BYTES = 256 << 10
"""A smaller donated array is written again in less time than the launch of its update takes: an estimate."""

UPDATED_OF = 2
"""At most one element in so many is updated in place.  Of more a kernel writes the whole array in less time."""


def find_state_updates(graph: Graph) -> dict[str, str]:
    """The updates of a region's parameters, with the reason."""
    updates = (node.name for node in _list_held(graph) if OPS[node.op].writes_into)
    return dict.fromkeys(updates, "XLA updates the loop's state in place")


def find_turned_states(graph: Graph) -> dict[str, str]:
    """The transposes of a region's parameters, updated or not, that products alone read, with the reason.

    XLA chooses the order in which a loop carries its state, but for a custom call's operands.
    """
    held = {node.name for node in _list_held(graph)}.union(graph.parameters)
    turned = (
        node.name
        for node in graph
        if OPS[node.op].permutes and node.operands[0] in held and _is_for_products(graph, node)
    )
    return dict.fromkeys(turned, "XLA carries the state as the product reads it")


def _list_held(graph: Graph) -> Iterator[Node]:
    """The views and updates of what is in a parameter's memory."""
    held = set(graph.parameters)
    for node in graph:
        row = OPS[node.op]
        if node.operands and node.operands[0] in held and (row.is_view or row.writes_into):
            held.add(node.name)
            yield node


def _is_for_products(graph: Graph, node: Node) -> bool:
    """Do products alone read a value?"""
    if node.name in graph.outputs:
        return False
    users = [graph[name] for name in graph.users[node.name]]
    return all(
        _is_for_products(graph, user) if OPS[user.op].is_view else OPS[user.op].kind is Kind.COMPUTE
        for user in users
    )


def find_donated_updates(graph: Graph, donated: Sequence[bool]) -> dict[str, str]:
    """The updates of donated parameters whose memory a result takes over, with the reason.

    Between the parameter and the result there are updates alone, of small parts.  XLA copies the array first if
    something reads the old one that cannot run before.
    """
    found: dict[str, str] = {}
    heirs = match_donated(graph, donated)
    for output in graph.outputs:
        parameter = heirs.get(storage_name(graph, output), "")
        chain: list[str] = []
        name = stored_value(graph, output)
        while name != parameter:
            node = graph[name]
            if not _is_small_update(graph, node):
                break
            chain.append(name)
            name = stored_value(graph, node.operands[0])
        else:
            found |= dict.fromkeys(chain, "XLA updates a donated argument in place")
    return found


def find_carried_transposes(graph: Graph, donated: Sequence[bool]) -> dict[str, str]:
    """The transposes of donated parameters that a loop carries, and those back to the results, with the reason.

    One kernel for all would hold each array twice; see order_transposes.py.
    """
    given = {name for name, may in zip(graph.parameters, donated, strict=True) if may}
    turned: set[str] = set()
    for node in graph:
        if not OPS[node.op].permutes or OPS[node.op].is_view:
            continue
        operand = graph[node.operands[0]]
        users = [graph[name] for name in graph.users[node.name]]
        if operand.name in given and users and all(OPS[user.op].is_loop for user in users):
            turned.add(node.name)
        elif isinstance(operand.attrs, GetTupleElementAttrs) and not users:
            loop = graph[operand.operands[0]]
            carried = OPS[loop.op].is_loop and loop.operands[operand.attrs.index] in turned
            if carried and node.name in graph.outputs:
                turned.add(node.name)
    return dict.fromkeys(turned, "XLA transposes what a loop carries where a donated argument was")


def _is_small_update(graph: Graph, node: Node) -> bool:
    if not OPS[node.op].writes_into or len(node.operands) < 3:
        return False
    array = array_of(node)
    written = graph[node.operands[-1 if node.regions else 1]].array
    return array.bytes >= LEAST_UPDATED_BYTES and written.bytes * UPDATED_OF <= array.bytes
