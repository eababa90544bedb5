"""Which ops XLA computes as it scatters: astitch leaves them, so that no kernel writes the updates for it to read."""

from __future__ import annotations

from collections.abc import Collection

from astitch.graph.ir import Graph, Node, ScatterAttrs
from astitch.graph.ops import OPS, Kind
from astitch.graph.stitchable import why_not_stitchable


def find_scatter_operands(graph: Graph, left: Collection[str]) -> dict[str, str]:
    """The ops that only give a scatter its updates and places, by name, each with the reason to leave it.

    left: ops that XLA computes in any case.  An op is taken if one scatter alone reads it, through others of its kind.
    They stay with the kernels where these would have to store as many bytes for them as the updates have.
    """
    found: dict[str, str] = {}
    for node in graph:
        if isinstance(node.attrs, ScatterAttrs) and why_not_stitchable(graph, node):
            members = _find_members(graph, node, left)
            if members and _stored_bytes(graph, members, left) < _given_bytes(graph, node, members):
                reason = f"XLA computes it as it scatters to %{node.name}"
                found |= dict.fromkeys(members, reason)
    return found


def _split(scatter: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arrays that are scattered to; the places and the updates."""
    count = len(scatter.operands) // 2
    return scatter.operands[:count], scatter.operands[count:]


def _find_members(graph: Graph, scatter: Node, left: Collection[str]) -> set[str]:
    """What can be computed for each update by itself, and that only this scatter needs.

    An op is looked at again whenever one of its readers has become a member; the last one lets it in.
    """
    targets, given = _split(scatter)
    members: set[str] = set()
    waiting = list(given)
    while waiting:
        name = waiting.pop()
        needed = name in targets or name in graph.outputs or name in left
        if name in members or needed or not _is_by_element(graph, graph[name]):
            continue
        if members.issuperset({*graph.users[name]} - {scatter.name}):
            members.add(name)
            waiting += graph[name].operands
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
    _, given = _split(scatter)
    return sum(graph[o].array.bytes for o in given if o in members)
