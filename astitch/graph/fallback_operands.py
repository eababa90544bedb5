"""Which ops XLA computes as it scatters or sorts: astitch leaves them, so that no kernel writes them for it to read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from astitch.graph.edit import free_name, keep_live_nodes
from astitch.graph.finished_products import Finished
from astitch.graph.ir import DimensionAttrs, Graph, Node, ScatterAttrs, SortAttrs, WindowAttrs
from astitch.graph.ops import OPS, Kind
from astitch.graph.stitchable import why_not_stitchable
from astitch.graph.storage import stored_value

AS_ITS_OPERAND = "XLA computes it as an operand of %"
"""The reason to leave an op; the name of the scatter or sort follows."""

SMALL = 8
"""A value of so many times fewer bytes than the updates is stored: to read it again costs little."""

SAVED = 2
"""Kernels must store so many times fewer bytes where an op is computed for a scatter and for others."""

MOST_REPEATED = 24
"""Ops that are computed again."""


def find_fallback_operands(graph: Graph, left: Collection[str]) -> Finished:
    """The graph in which a scatter alone reads what gives it its updates and places, a sort or a reduction of windows
    the numbers that it reads; these ops, each with the op that reads them.

    left: ops that XLA computes in any case.  What others read too is there once more, if it is cheap: messages along
    the edges of a graph are gathered from its nodes, which are few.
    Ops stay with the kernels where these would have to store as many bytes for them as the updates have.
    """
    changed: dict[str, Node] = {}
    copies: dict[str, list[Node]] = {}  # by the op that they are copies of
    order = {name: number for number, name in enumerate(graph.nodes)}
    names = set(graph.nodes)
    found: dict[str, str] = {}
    for node in graph:
        if not why_not_stitchable(graph, node):
            continue
        if isinstance(node.attrs, ScatterAttrs):
            members = _choose_members(graph, node, left)
            _, given = _split(node)
            read = {*given, *(o for name in members for o in graph[name].operands)} - members
            members |= set[str]().union(*(_trace_embedded(graph, o, left) for o in read))
        elif isinstance(node.attrs, SortAttrs | WindowAttrs):
            members = set().union(*(_trace_embedded(graph, o, left) for o in node.operands))
        else:
            continue
        own: dict[str, str] = {}  # the names of copies
        for name in sorted(members, key=order.__getitem__, reverse=True):
            users = graph.users[name]
            if name in graph.outputs or any(
                u in own or u not in {*members, node.name} for u in users
            ):
                own[name] = free_name(f"{name}.operand", names)
                names.add(own[name])
        for name in (*members, node.name):
            operands = tuple(own.get(o, o) for o in graph[name].operands)
            copy = replace(graph[name], name=own.get(name, name), operands=operands)
            if name in own:
                copies.setdefault(name, []).append(copy)
            else:
                changed[name] = copy
        found |= {own.get(name, name): node.name for name in members}
    nodes: dict[str, Node] = {}
    for node in graph:
        nodes[node.name] = changed.get(node.name, node)
        nodes |= {copy.name: copy for copy in copies.get(node.name, ())}
    if not copies:
        return Finished(graph, found)
    return Finished(replace(graph, nodes=keep_live_nodes(nodes, graph.outputs)), found)


def _trace_embedded(graph: Graph, name: str, left: Collection[str]) -> set[str]:
    """The ops of an iota or a number that is moved or repeated; none for other values."""
    traced: set[str] = set()
    while name in graph.embedded and name not in left and not graph[name].is_constant:
        traced.add(name)
        if not graph[name].operands:
            break
        (name,) = graph[name].operands
    return traced


def _choose_members(graph: Graph, scatter: Node, left: Collection[str]) -> set[str]:
    alone = _find_members(graph, scatter, left)
    again = _find_repeated(graph, scatter, left) | alone
    for members, times in ((again, SAVED), (alone, 1)):
        stored = _stored_bytes(graph, members, left)
        if times * stored < _given_bytes(graph, scatter, members):
            return members
    return set()


def _find_repeated(graph: Graph, scatter: Node, left: Collection[str]) -> set[str]:
    """What gives the updates by cheap ops, whichever kernels read it too, down to values that are much smaller.

    What others than kernels read is stored anyway.  A donated parameter is not read again: XLA would copy it for the
    result that takes over its memory.
    """
    targets, given = _split(scatter)
    updates = given[1:]
    least = sum(graph[name].array.bytes for name in updates) / SMALL
    donated = {graph.parameters[number] for _, number in graph.aliases}

    def stays(node: Node) -> bool:
        readers = {*graph.users[node.name]} - {scatter.name}
        stored = node.name in graph.outputs or not all(
            OPS[graph[r].op].is_view or _is_stitched(graph, graph[r], left) for r in readers
        )
        kept = any(stored_value(graph, o) in donated for o in node.operands)
        return stored or kept or node.name in targets or node.name in left

    members: set[str] = set()
    waiting = list(updates)
    while waiting:
        node = graph[waiting.pop()]
        if node.name in members or not _is_by_element(graph, node) or stays(node):
            continue
        if node.array.bytes <= least or OPS[node.op].is_approximate:
            continue
        members.add(node.name)
        waiting += node.operands
    return members if len(members) <= MOST_REPEATED else set()


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
    places = {given[0]}  # and what they are computed from
    waiting = list(given)
    while waiting:
        name = waiting.pop()
        node = graph[name]
        needed = name in targets or name in graph.outputs or name in left
        is_taken = _is_by_element(graph, node) or (name in places and _joins(graph, node))
        if name in members or needed or not is_taken:
            continue
        if members.issuperset({*graph.users[name]} - {scatter.name}):
            members.add(name)
            waiting += node.operands
            if name in places:
                places.update(node.operands)
    return members


def _joins(graph: Graph, node: Node) -> bool:
    """Does it put arrays one behind the other, as the columns of index vectors?  XLA reads each where it scatters."""
    is_joined = OPS[node.op].chooses and isinstance(node.attrs, DimensionAttrs)
    return is_joined and why_not_stitchable(graph, node) is None


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
