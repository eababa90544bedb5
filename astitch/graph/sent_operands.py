"""Graph -> per collective, the ops that XLA computes as it lays out what is sent.

XLA sends late what is received late.  A kernel that computes such an operand for others, as the exponentials of a
softmax, would store it, and memory would hold it until then.  Alone XLA keeps the narrower array that it comes from,
and computes the operand where it writes it in the order in which it is sent.  So the collective has ops of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from astitch.graph.collectives import communicates, widens_before
from astitch.graph.dimensions import array_of
from astitch.graph.edit import find_later
from astitch.graph.ir import ArrayType, Graph, Node, OpaqueAttrs
from astitch.graph.ops import OPS, Kind
from astitch.graph.stitchable import why_not_stitchable
from astitch.graph.storage import stored_value

LEAST_BYTES = 1 << 20
"""The least size of an operand that is computed for a collective alone."""

MOST_SHARE = 0.6
"""The most bytes of what an operand is computed from, as a share of its own: half as wide numbers, and some of rows."""

LATE = 4
"""A collective whose result is first read more than so many library calls or collectives later is sent late."""

MOST_OPS = 32
"""Ops that are computed again for one operand."""


def choose_sent_operands(graph: Graph, left: Collection[str]) -> Mapping[str, set[str]]:
    """By collective, the ops that XLA computes for it; those with none are left out.

    left: ops that XLA computes in any case.
    """
    if not any(map(communicates, graph)):
        return {}
    search = _Search(graph, left)
    found = {node.name: search.choose(node) for node in graph if search.is_late(node)}
    return {name: members for name, members in found.items() if members}


class _Search:
    """earliest, latest: how many library calls and collectives come before an op, at the least and at the most."""

    def __init__(self, graph: Graph, left: Collection[str]) -> None:
        self.graph, self.left = graph, left
        self.outside = {
            node.name
            for node in graph
            if OPS[node.op].kind is not Kind.SOURCE
            and not OPS[node.op].is_view
            and why_not_stitchable(graph, node) is not None
        }
        self.earliest: dict[str, int] = {}
        for node in graph:
            before = (self.earliest[o] + (o in self.outside) for o in node.operands)
            self.earliest[node.name] = max(before, default=0)
        last = max(self.earliest.values(), default=0)
        self.latest: dict[str, int] = {}
        for node in reversed(list(graph)):
            behind = (self.latest[u] for u in graph.users[node.name])
            self.latest[node.name] = min(behind, default=last) - (node.name in self.outside)

    def is_late(self, node: Node) -> bool:
        is_one = isinstance(node.attrs, OpaqueAttrs) and communicates(node)
        return is_one and self.latest[node.name] - self.earliest[node.name] > LATE

    def choose(self, collective: Node) -> set[str]:
        """The ops that are computed for a collective of one operand."""
        if len(collective.operands) != 1:
            return set()
        (operand,) = collective.operands
        base, views = operand, set[str]()
        while OPS[self.graph[base].op].is_view:
            views.add(base)
            (base,) = self.graph[base].operands
        size = self.bytes_of(base)
        if size < LEAST_BYTES or not self.is_shared(base, {*views, collective.name}):
            return set()
        members, read = self.open(base)
        if not members or sum(map(self.bytes_of, read)) > MOST_SHARE * size:
            return set()
        if read & self.find_lost(collective.name) or widens_before(self.graph, operand):
            return set()
        return members | views

    def open(self, base: str) -> tuple[set[str], set[str]]:
        """The ops from what memory holds anyway to a value, and what they read; nothing where they are too many."""
        members, read, pending = set[str](), set[str](), [base]
        while pending:
            name = pending.pop()
            if name in members:
                continue
            if name != base and not self.may_repeat(name) and name not in self.graph.embedded:
                read.add(stored_value(self.graph, name))
                continue
            node = self.graph[name]
            if not node.is_constant:
                members.add(name)
                pending += node.operands
            if len(members) > MOST_OPS:
                return set(), set()
        return members, read

    def may_repeat(self, name: str) -> bool:
        node = self.graph[name]
        kind = OPS[node.op].kind
        light = kind in (Kind.ELEMENTWISE, Kind.BROADCAST) or OPS[node.op].is_view
        return light and not self.is_in_memory(name)

    def is_shared(self, base: str, own: Collection[str]) -> bool:
        """Does a kernel compute an element-wise value that others read too, all of them kernels?"""
        is_light = OPS[self.graph[base].op].kind is Kind.ELEMENTWISE
        return (
            is_light
            and not self.is_in_memory(base, own)
            and any(user not in own for user in self.graph.users[base])
        )

    def is_in_memory(self, name: str, own: Collection[str] = ()) -> bool:
        """Is a value stored anyway?  own: readers that do not count."""
        if name in self.outside or name in self.left or name in self.graph.outputs:
            return True
        if OPS[self.graph[name].op].kind is Kind.SOURCE:
            return name not in self.graph.embedded
        readers = (u for u in self.graph.users[name] if u not in own)
        return any(
            self.is_in_memory(u, own) if OPS[self.graph[u].op].is_view else u in self.outside
            for u in readers
        )

    def find_lost(self, collective: str) -> set[str]:
        """The donated parameters whose memory a result may have taken over by then."""
        graph = self.graph
        later = find_later(graph, [collective]) if graph.aliases else set[str]()
        return {
            graph.parameters[parameter]
            for output, parameter in graph.aliases
            if stored_value(graph, graph.outputs[output]) not in later
        }

    def bytes_of(self, name: str) -> int:
        node = self.graph[name]
        return array_of(node).bytes if isinstance(node.type, ArrayType) else 0
