"""Which ops XLA computes as it scatters: astitch leaves them, so that no kernel writes the updates for it to read."""

from __future__ import annotations

from collections.abc import Collection

from astitch.graph.ir import Graph, Node, ScatterAttrs
from astitch.graph.ops import OPS, Kind
from astitch.graph.stitchable import why_not_stitchable


def find_scattered(graph: Graph, left: Collection[str]) -> dict[str, str]:
    """The ops that only give a scatter its updates and places, by name, each with the reason to leave it.

    left: ops that XLA computes in any case.  An op is taken if one scatter alone reads it, through others of its kind.
    They stay with the kernels where these would have to store more for them than the updates.
    """
    found: dict[str, str] = {}
    for node in graph:
        if isinstance(node.attrs, ScatterAttrs) and why_not_stitchable(graph, node):
            members = _find_members(graph, node, left)
            if members and _stored_bytes(graph, members, left) < _given_bytes(graph, node, members):
                reason = f"XLA computes it as it scatters to %{node.name}"
                found |= dict.fromkeys(members, reason)
    return found


def _find_members(graph: Graph, scatter: Node, left: Collection[str]) -> set[str]:
    """What can be computed for each update by itself, and that only this scatter needs."""
    members: set[str] = set()
    count = len(scatter.operands) // 2  # of the arrays that are scattered to
    into, targets = set(scatter.operands[count:]), scatter.operands[:count]
    nodes = list(graph)
    end = next(n for n, node in enumerate(nodes) if node.name == scatter.name)
    for node in reversed(nodes[:end]):
        if node.name not in into or node.name in targets or node.name in graph.outputs:
            continue
        if node.name in left or not _is_by_element(graph, node):
            continue
        if members.issuperset({*graph.users[node.name]} - {scatter.name}):
            members.add(node.name)
            into.update(node.operands)
    return members


def _is_by_element(graph: Graph, node: Node) -> bool:
    """Does each element of the result come from one of each operand, found by its index?"""
    row = OPS[node.op]
    moves = row.kind is Kind.INDEX and not (row.permutes and not row.is_view) and not row.chooses
    by_element = moves or row.kind in (Kind.ELEMENTWISE, Kind.BROADCAST)
    return by_element and why_not_stitchable(graph, node) is None


def _stored_bytes(graph: Graph, members: set[str], left: Collection[str]) -> int:
    """Bytes that kernels would store for the members to read."""
    read = {o for name in members for o in graph[name].operands} - members
    return sum(
        graph[name].array.bytes
        for name in read
        if _is_stitched(graph, graph[name], left) and name not in graph.outputs
    )


def _is_stitched(graph: Graph, node: Node, left: Collection[str]) -> bool:
    is_source = OPS[node.op].kind is Kind.SOURCE
    return not is_source and node.name not in left and why_not_stitchable(graph, node) is None


def _given_bytes(graph: Graph, scatter: Node, members: set[str]) -> int:
    """Bytes of those operands of the scatter that the members give it."""
    given = scatter.operands[len(scatter.operands) // 2 :]
    return sum(graph[o].array.bytes for o in given if o in members)
