"""Graph, groups of rows -> groups that compute again what costs less than to be handed on.

A row group's kernel has the numbers of a row in one thread.  What it reads of other kernels lies in memory from the one
to the other, and a gradient reads much of what was computed forward.  So a group is given ops of its own, by a minimum
cut between what is in memory anyway and the group.  A cut through a value costs its load, and its store if nobody else
reads it from memory; an op that is computed again costs what it executes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from astitch.graph.dimensions import array_of
from astitch.graph.edit import free_name, keep_live_nodes
from astitch.graph.ir import GatherAttrs, Graph, Node
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import stored_value
from astitch.loops.flatten import Dimension, is_array
from astitch.loops.row_groups import (
    MOST_MEMBERS,
    Paths,
    RowGroup,
    find_known,
    list_given,
    list_results,
)

STORED = 2
"""A value that is stored for a group alone is written, and takes memory meanwhile: so many loads more than the group's
own."""

FLOPS_PER_BYTE = 4
"""Operations that take as long as a byte of traffic, as for stages (rewrite/recompute.py)."""

LEAST_GAIN = 1 << 20
"""Bytes that a group must save."""

STITCHED = frozenset({Kind.ELEMENTWISE, Kind.REDUCE, Kind.BROADCAST, Kind.INDEX})
"""Kinds of ops that a kernel computes: their results are in memory only if somebody needs them there."""

_MEMORY, _GROUP = "memory", "group"


@dataclass(frozen=True, slots=True)
class Found:
    """A row group: its ops, by name, and what it was grown from, see RowGroup."""

    members: frozenset[str]
    seed: str
    rows: tuple[Dimension, ...]
    most: int


IsPlanned = Callable[[Graph, Collection[str], Graph, Collection[str]], bool]
"""Asked for a graph with a group that computes ops again, and for the graph and the group as they were: is there a
kernel for the first that takes no longer than the other and what lies in memory for it?"""


def hand_on_less(
    graph: Graph, groups: Sequence[Found], is_planned: IsPlanned
) -> tuple[Graph, tuple[Found, ...]]:
    """The graph with copies of ops, and the groups with their copies; both as they are where nothing is gained.

    groups: of ops of this graph.  A group that comes later is looked at first: so less is asked of those before it.
    Kernels on elements behind a group, too, compute again what costs less than to be read.
    """
    done = list(groups)
    for group in groups:
        if again := _choose_for_others(graph, group, done):
            graph = _copy(graph, graph.nodes.keys() - _join(done), again)[0]
            done = _keep_live(done, graph)
    for number in _order_last_first(graph, done):
        group = done[number]
        again, known = _choose_for_group(graph, group, _join(done) - group.members)
        if not again:
            continue
        made, copies = _copy(graph, group.members, again)
        own = replace(group, members=(group.members | copies | known) & made.nodes.keys())
        if is_planned(made, own.members, graph, group.members):
            graph, done[number] = made, own
            done = _keep_live(done, graph)
    return graph, tuple(group for group in done if group.members)


def _join(groups: Sequence[Found]) -> frozenset[str]:
    return frozenset[str]().union(*(group.members for group in groups))


def _keep_live(groups: Sequence[Found], graph: Graph) -> list[Found]:
    return [replace(group, members=group.members & graph.nodes.keys()) for group in groups]


def _order_last_first(graph: Graph, groups: Sequence[Found]) -> list[int]:
    """The numbers of the groups, each in front of those that it waits for."""
    before = Paths(graph, lambda node: False).before

    def count_before(number: int) -> int:
        found = 0
        for name in groups[number].members:
            found |= before[name]
        return found.bit_count()

    return sorted(range(len(groups)), key=count_before, reverse=True)


def _grow_again(graph: Graph, group: Found) -> RowGroup | None:
    """The group's dimensions; None where its seed is gone."""
    if group.seed not in graph.nodes:
        return None
    paths = Paths(graph, lambda node: False)
    rows = RowGroup(graph, paths, graph[group.seed], group.rows, group.most, group.most)
    return rows if rows.adopt(group.members) else None


def _choose_for_group(
    graph: Graph, group: Found, others: Collection[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """The ops that a group computes again, and the ops of constants that these need.  others: ops of other groups."""
    nothing = frozenset[str](), frozenset[str]()
    rows = _grow_again(graph, group)
    if rows is None:
        return nothing
    free = rows.paths.known | graph.embedded
    wanted = [name for name in list_given(graph, group.members) if name not in free]
    network = _Network(graph, rows.may_join, group.members, others, free | group.members)
    names, saved = network.cut(wanted)
    if saved < LEAST_GAIN or len(names) > MOST_MEMBERS - len(group.members):
        return nothing
    return names, frozenset(n.name for name in names for n in rows.list_known(graph[name]))


def _choose_for_others(graph: Graph, group: Found, groups: Sequence[Found]) -> frozenset[str]:
    """The ops of a group that kernels on elements compute again in place of reading their results."""
    inside = _join(groups)
    others = {n.name for n in graph if n.name not in inside and OPS[n.op].kind in STITCHED}
    known = find_known(graph)

    def is_plain(node: Node) -> bool:
        # An element of what is put together has a formula of its own, see joined_rows.py.
        row = OPS[node.op]
        moves = row.kind is Kind.INDEX and not row.chooses
        return node.name in group.members and (
            moves or row.kind in (Kind.ELEMENTWISE, Kind.BROADCAST)
        )

    network = _Network(graph, is_plain, others, inside, known | graph.embedded)
    results = list_results(graph, group.members, known)
    wanted = [n.name for n in results if not others.isdisjoint(graph.users[n.name])]
    names, saved = network.cut(wanted)
    return names if saved >= LEAST_GAIN else frozenset()


class _Network:
    """What could be computed again for a group, and what that and the rest costs.

    Each value has a vertex (name, True), behind what it costs to read.  Those that could be computed again have a
    vertex (name, False) before it.
    members: what reads.  others: ops of groups, of which none is a member.  free: what costs nothing to read.
    """

    def __init__(
        self,
        graph: Graph,
        may_repeat: Callable[[Node], bool],
        members: Collection[str],
        others: Collection[str],
        free: Collection[str],
    ) -> None:
        self.graph, self.is_repeated, self.free = graph, may_repeat, free
        self.members, self.others = members, others
        self.order = graph.order
        self.edges = nx.DiGraph()

    def cut(self, wanted: Sequence[str]) -> tuple[frozenset[str], int]:
        """The ops to compute again, and the bytes saved.  wanted: what the group reads."""
        graph, network = self.graph, self.edges
        opened: list[str] = []
        # Nothing is worth more than it costs to read: what is left of that, where an op is behind others, at the best.
        left = {name: self.price(name) for name in wanted}
        queue = [(-self.order[name], name) for name in wanted]
        heapq.heapify(queue)
        while queue:
            _, name = heapq.heappop(queue)
            price, effort = self.price(name), self.effort(graph[name])
            if effort > left[name] or not self.may_repeat(graph[name]):
                network.add_edge(_MEMORY, (name, True), capacity=price)
                continue
            opened.append(name)
            network.add_edge((name, False), (name, True), capacity=price)
            network.add_edge(_MEMORY, (name, False), capacity=effort)
            for operand in dict.fromkeys(graph[name].operands):
                if operand in self.free:
                    continue
                network.add_edge((operand, True), (name, False))
                if operand not in left:
                    heapq.heappush(queue, (-self.order[operand], operand))
                worth = min(left[name] - effort, self.price(operand))
                left[operand] = max(left.get(operand, 0), worth)
        if not opened:
            return frozenset(), 0
        for name in wanted:
            network.add_edge((name, True), _GROUP)
        paid, (_, needed) = nx.minimum_cut(network, _MEMORY, _GROUP, flow_func=boykov_kolmogorov)
        names = frozenset(name for name in opened if (name, False) in needed)
        return names, sum(map(self.price, wanted)) - paid

    def price(self, name: str) -> int:
        """What it costs to read a value: bytes of traffic, and those of its store and of the memory meanwhile."""
        size = _count_bytes(self.graph, name)
        return size if self.is_kept(stored_value(self.graph, name)) else size * (1 + STORED)

    def is_kept(self, name: str) -> bool:
        """Is a value in memory, whatever the group reads?"""
        graph, pending = self.graph, [name]
        if OPS[graph[name].op].kind not in STITCHED or graph[name].is_parameter:
            return True
        seen = set(pending)
        while pending:
            value = pending.pop()
            if value in graph.outputs:
                return True
            for user in graph.users[value]:
                if OPS[graph[user].op].is_view:
                    if user not in seen:
                        seen.add(user)
                        pending.append(user)
                elif OPS[graph[user].op].kind not in STITCHED or self.is_apart(name, user):
                    return True
        return False

    def is_apart(self, name: str, user: str) -> bool:
        """Are a value and its reader in two kernels, whatever the group does?"""
        return user not in self.members and (user in self.others) != (name in self.others)

    def effort(self, node: Node) -> int:
        """The same for computing it once more."""
        row = OPS[node.op]
        if row.kind is Kind.REDUCE:
            sizes = (array_of(self.graph[o]).size for o in node.operands[: len(node.operands) // 2])
            return sum(sizes) // FLOPS_PER_BYTE
        flops = row.flops if row.kind is Kind.ELEMENTWISE else 0
        return flops * array_of(node).size // FLOPS_PER_BYTE

    def may_repeat(self, node: Node) -> bool:
        row = OPS[node.op]
        is_read = isinstance(node.attrs, GatherAttrs)
        return is_array(node) and row.kind in STITCHED and not is_read and self.is_repeated(node)


def _count_bytes(graph: Graph, name: str) -> int:
    node = graph[name]
    return node.array.bytes if is_array(node) else 0


def _copy(
    graph: Graph, members: Collection[str], again: Collection[str]
) -> tuple[Graph, frozenset[str]]:
    """The graph in which members read ops of their own, and the names of these."""
    taken, own = set(graph.nodes), dict[str, str]()
    nodes: dict[str, Node] = {}
    for node in graph:
        if node.name in members:
            node = replace(node, operands=tuple(own.get(o, o) for o in node.operands))
        nodes[node.name] = node
        if node.name in again:
            own[node.name] = free_name(f"{node.name}.again", taken)
            taken.add(own[node.name])
            operands = tuple(own.get(o, o) for o in node.operands)
            nodes[own[node.name]] = replace(node, name=own[node.name], operands=operands)
    live = keep_live_nodes(nodes, graph.outputs)
    made = Graph(graph.name, live, graph.parameters, graph.outputs, graph.aliases)
    return made, frozenset(own.values())
