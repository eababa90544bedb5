"""Which ops XLA computes as it scatters, sorts or sends: astitch leaves them, so that no kernel writes them for it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from astitch.graph.edit import free_name, keep_live_nodes
from astitch.graph.finished_products import Finished
from astitch.graph.ir import Graph, Node, ScatterAttrs, SortAttrs, WindowAttrs
from astitch.graph.scatter_operands import choose_scatter_operands, split_operands
from astitch.graph.sent_operands import choose_sent_operands
from astitch.graph.stitchable import why_not_stitchable

AS_ITS_OPERAND = "XLA computes it as an operand of %"
"""The reason to leave an op; the name of the scatter or sort follows."""

LARGE = 1 << 20
"""Bytes from which on two scatters should not share an array of zeros: to write it once for each costs a launch."""


def find_fallback_operands(
    graph: Graph, left: Collection[str], most_bytes: float = math.inf
) -> Finished:
    """The graph in which a scatter alone reads what gives it its updates and places, a sort or a reduction of windows
    the numbers that it reads, a collective that sends late what it sends; these ops, each with the op that reads them.

    left: ops that XLA computes in any case.  most_bytes: what the program may take beside its arguments.
    What others read too is there once more, if it is cheap: messages along the edges of a graph are gathered from its
    nodes, which are few.  See scatter_operands.py and sent_operands.py.
    """
    changed: dict[str, Node] = {}
    copies: dict[str, list[Node]] = {}  # by the op that they are copies of
    order = graph.order
    names = set(graph.nodes)
    found: dict[str, str] = {}
    chosen = choose_scatter_operands(graph, left, most_bytes)
    sent = choose_sent_operands(graph, left)
    for node in graph:
        if not why_not_stitchable(graph, node):
            continue
        if isinstance(node.attrs, ScatterAttrs):
            members = chosen[node.name]
            targets, given = split_operands(node)
            shared = (t for t in targets if _is_shared(graph, t))
            read = {
                *given,
                *shared,
                *(o for name in members for o in graph[name].operands),
            } - members
            members |= set[str]().union(*(_trace_embedded(graph, o, left) for o in read))
        elif isinstance(node.attrs, SortAttrs | WindowAttrs):
            members = set().union(*(_trace_embedded(graph, o, left) for o in node.operands))
        elif node.name in sent:
            members = sent[node.name]
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


def _is_shared(graph: Graph, target: str) -> bool:
    """Is it a large array of one number that others read, too?  A scatter adds in place: XLA would copy it."""
    is_large = graph[target].array.bytes >= LARGE
    return is_large and target in graph.embedded and len(graph.users[target]) > 1


def _trace_embedded(graph: Graph, name: str, left: Collection[str]) -> set[str]:
    """The ops of an iota or a number that is moved or repeated; none for other values."""
    traced: set[str] = set()
    while name in graph.embedded and name not in left and not graph[name].is_constant:
        traced.add(name)
        if not graph[name].operands:
            break
        (name,) = graph[name].operands
    return traced
