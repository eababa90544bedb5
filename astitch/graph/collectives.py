"""Communication between devices: which ops of a Graph communicate, and which ops wait for them."""

from __future__ import annotations

from astitch.graph.ir import Graph, Node, OpaqueAttrs

COLLECTIVES = frozenset(
    "all-gather all-gather-done all-gather-start all-reduce all-reduce-done all-reduce-start all-to-all "
    "collective-broadcast collective-permute collective-permute-done collective-permute-start "
    "ragged-all-to-all recv recv-done reduce-scatter send send-done".split()
)
"""Opcodes of HLO by which devices exchange data."""


def communicates(node: Node) -> bool:
    """Does the op, or one in its regions, exchange data with other devices?"""
    if isinstance(node.attrs, OpaqueAttrs):
        return node.attrs.opcode in COLLECTIVES
    return any(communicates(inner) for region in node.regions for inner in region)


def find_awaited(graph: Graph) -> dict[str, int]:
    """For each op the collectives that wait for it: an int with a bit for each, in the order of the graph."""
    bits = {n.name: 1 << i for i, n in enumerate(filter(communicates, graph))}
    awaited: dict[str, int] = {}
    for node in reversed(list(graph)):
        found = 0
        for user in graph.users[node.name]:
            found |= awaited[user] | bits.get(user, 0)
        awaited[node.name] = found
    return awaited
