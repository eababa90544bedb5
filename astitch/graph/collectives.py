"""Communication between devices: which ops of a Graph communicate, which they wait for, which XLA joins to them."""

from __future__ import annotations

from astitch.graph.ir import ArrayType, DynamicSliceAttrs, Graph, Node, OpaqueAttrs
from astitch.graph.ops import OPS

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


SLICED = frozenset({"all-reduce", "all-reduce-done"})
"""What XLA turns into a reduce-scatter where each device reads only its own part of the result."""


def find_scattered(graph: Graph) -> dict[str, str]:
    """The ops that XLA makes a part of a reduce-scatter, each with the reason: no kernel may compute them.

    These are the slices of all-reduced values, what stands between, and what computes the offsets from the device's
    number.
    """
    reasons: dict[str, str] = {}
    collective: dict[str, str] = {}  # by value, which it is, as it came or reshaped
    for node in graph:
        if isinstance(node.attrs, OpaqueAttrs) and node.attrs.opcode in SLICED:
            collective[node.name] = node.name
            continue
        source = collective.get(node.operands[0], "") if node.operands else ""
        if source and (OPS[node.op].is_view or OPS[node.op].is_conversion):
            collective[node.name] = source
        elif source and isinstance(node.attrs, DynamicSliceAttrs):
            reason = f"XLA makes a reduce-scatter of it and %{source}"
            reasons[node.name] = reason
            reasons.update(dict.fromkeys(_list_passed(graph, node.operands[0], source), reason))
            offsets = dict.fromkeys(_list_scalars(graph, node.operands[1:]), reason)
            reasons = offsets | reasons
    return reasons


def _list_passed(graph: Graph, name: str, source: str) -> list[str]:
    """From a value back to the collective that it comes from, which is not listed."""
    passed: list[str] = []
    while name != source:
        passed.append(name)
        name = graph[name].operands[0]
    return passed


def _list_scalars(graph: Graph, names: tuple[str, ...]) -> list[str]:
    """What offsets are computed from, small values all, without parameters, constants and the device's number."""
    found: dict[str, None] = {}
    pending = list(names)
    while pending:
        node = graph[pending.pop()]
        is_source = node.is_parameter or node.is_constant or isinstance(node.attrs, OpaqueAttrs)
        small = isinstance(node.type, ArrayType) and node.type.size <= _MOST_OFFSETS
        if node.name not in found and small and not is_source:
            found[node.name] = None
            pending += node.operands
    return list(found)


_MOST_OFFSETS = 4096
"""Elements of a table with a number for each device."""
