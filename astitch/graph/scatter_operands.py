"""Graph -> per scatter, the ops that XLA computes as it scatters.

A scatter that a kernel gives its updates makes the kernel store them, and loads them again.  XLA computes in its kernel
that scatters whatever each update takes.  So what a scatter is given is a minimum cut between memory and the scatter: a
cut through a value costs its load, and its store where kernels do not store it in any case.  An op that kernels compute
for others too costs what it executes.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from astitch.graph.edit import find_later
from astitch.graph.ir import DimensionAttrs, Graph, Node, ScatterAttrs, TransposeAttrs
from astitch.graph.ops import OPS, Kind
from astitch.graph.stitchable import why_not_stitchable
from astitch.graph.storage import stored_value

STORED = 2
"""A value that a kernel stores for a scatter alone is stored, and takes memory meanwhile: it counts as so many loads
more than the scatter's own."""

DEAR = 8
"""STORED where values stored for scatters exceed MOST_KEPT, as where each corner has an index and a weight."""

MOST_KEPT = 0.05
"""Up to this share of the bytes that a program may take, STORED is the price."""

FLOPS_PER_BYTE = 4
"""Operations that take as long as a byte of traffic: a scatter has nothing else to do while it waits for memory."""

SHORT_ROW = 4
"""The longest row that is summed again for each update.  Distances in space are sums of three."""

SHORT_SUM = 16
"""The longest sum that XLA computes for each update if only the scatter needs it, as plain XLA does: messages of a
graph's edges in a basis.  A kernel would store what the sum gives."""

MOST_REPEATED = 64
"""Ops that are computed again for one scatter."""

WRITTEN = 2
"""Loads that an array costs that goes through memory: it is stored and loaded."""

MEMORY, SCATTER, ARRAY = "memory", "scatter", "array"


def choose_scatter_operands(
    graph: Graph, left: Collection[str], most_bytes: float = math.inf
) -> Mapping[str, set[str]]:
    """By scatter, the ops that XLA computes for it.

    left: ops that XLA computes in any case.  most_bytes: what the program may take beside its arguments.
    """
    scatters = [
        n for n in graph if isinstance(n.attrs, ScatterAttrs) and why_not_stitchable(graph, n)
    ]
    if not scatters:
        return {}
    names = {scatter.name for scatter in scatters}
    cones = {scatter.name: _Cone(graph, scatter, names, left) for scatter in scatters}
    chosen = _choose_all(cones, STORED)
    if math.isinf(most_bytes) or _count_stored(graph, chosen, cones) <= MOST_KEPT * most_bytes:
        return chosen
    dear = _choose_all(cones, DEAR)
    return min(chosen, dear, key=lambda found: _count_stored(graph, found, cones))


def _choose_all(cones: Mapping[str, _Cone], price: int) -> dict[str, set[str]]:
    """price: of a byte that is stored for scatters, see STORED."""
    shared = Counter(name for cone in cones.values() for name in cone.times)
    stored: set[str] = set()  # for scatters looked at before
    chosen: dict[str, set[str]] = {}
    for name, cone in cones.items():
        members = chosen[name] = cone.choose(shared, stored, price)
        stored |= cone.list_read(members)
    return chosen


def _count_stored(graph: Graph, chosen: Mapping[str, set[str]], cones: Mapping[str, _Cone]) -> int:
    """The bytes that kernels store for scatters alone."""
    stored: set[str] = set()
    for name, cone in cones.items():
        read = cone.list_read(chosen[name])
        stored |= {stored_value(graph, o) for o in read if cone.is_stored_alone(o)}
    return sum(graph[name].array.bytes for name in stored)


def split_operands(scatter: Node) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arrays that are scattered to; the places and the updates."""
    count = len(scatter.operands) // 2
    return scatter.operands[:count], scatter.operands[count:]


def is_stitched(graph: Graph, node: Node, left: Collection[str]) -> bool:
    """Does a kernel compute it?"""
    is_source = OPS[node.op].kind is Kind.SOURCE
    return not is_source and node.name not in left and why_not_stitchable(graph, node) is None


class _Cone:
    """The ops that could be computed as a scatter's updates are added.

    scatters: all that choose what they are given.
    alone: those that nothing but the scatter needs.  times: of each op how often it is computed for an update; also of
    what they read.
    """

    def __init__(
        self, graph: Graph, scatter: Node, scatters: Collection[str], left: Collection[str]
    ) -> None:
        self.graph, self.scatter, self.scatters, self.left = graph, scatter, scatters, left
        self.targets, self.given = split_operands(scatter)
        self.updates = max(graph[name].array.size for name in self.given[1:])
        self.order = graph.order
        self.lost = set(self.find_lost())
        self.places = {self.given[0]}  # and what they are computed from
        self.alone = self.find_alone()
        self.opened: set[str] = set()
        self.times = self.find_times()

    def find_lost(self) -> Iterator[str]:
        """The donated parameters whose memory a result may have taken over by then: XLA would copy them first."""
        if not self.graph.aliases:
            return
        later = find_later(self.graph, [self.scatter.name])
        for output, parameter in self.graph.aliases:
            if stored_value(self.graph, self.graph.outputs[output]) not in later:
                yield self.graph.parameters[parameter]

    def find_alone(self) -> set[str]:
        """What can be computed for each update by itself, and that only this scatter needs.

        An op is looked at again whenever one of its readers has become a member; the last one lets it in.
        """
        members: set[str] = set()
        waiting = list(self.given)
        while waiting:
            name = waiting.pop()
            node = self.graph[name]
            if name in members or self.is_needed(node) or not self.may_be_alone(node):
                continue
            if members.issuperset({*self.graph.users[name]} - {self.scatter.name}):
                members.add(name)
                waiting += node.operands
                if name in self.places:
                    self.places.update(node.operands)
        return members

    def find_times(self) -> dict[str, int]:
        near = self.find_near()
        times = dict.fromkeys(self.given, 1)
        queue = [(-self.order[name], name) for name in times]
        heapq.heapify(queue)
        while queue:
            _, name = heapq.heappop(queue)
            node = self.graph[name]
            if name not in near:
                continue
            self.opened.add(name)
            here = times[name] * _row_length(self.graph, node)
            for operand in dict.fromkeys(node.operands):
                if operand in self.graph.embedded:
                    continue
                if operand not in times:
                    heapq.heappush(queue, (-self.order[operand], operand))
                times[operand] = max(times.get(operand, 0), here)
        return times

    def find_near(self) -> set[str]:
        """The ops that may be computed for each update: as many as are wanted, those near the scatter first."""
        near: set[str] = set()
        left = MOST_REPEATED
        seen = set(self.given)
        waiting = deque(dict.fromkeys(self.given))
        while waiting:
            name = waiting.popleft()
            if name not in self.alone:
                if not left or not self.may_repeat(self.graph[name]):
                    continue
                left -= 1
            near.add(name)
            operands = [o for o in self.graph[name].operands if o not in self.graph.embedded]
            if name in self.places:
                self.places.update(operands)
            waiting += [o for o in dict.fromkeys(operands) if o not in seen]
            seen.update(operands)
        return near

    def is_needed(self, node: Node) -> bool:
        return node.name in {*self.targets, *self.graph.outputs} or node.name in self.left

    def is_by_update(self, node: Node) -> bool:
        """Does each element of the result come from one of each operand, found by its index?"""
        row = OPS[node.op]
        moves = row.kind is Kind.INDEX and not row.chooses
        # Columns of index vectors are put side by side: XLA reads each where it scatters.
        joins = node.name in self.places and row.chooses and isinstance(node.attrs, DimensionAttrs)
        by_element = moves or joins or row.kind in (Kind.ELEMENTWISE, Kind.BROADCAST)
        return by_element and why_not_stitchable(self.graph, node) is None

    def may_be_alone(self, node: Node) -> bool:
        """May XLA compute it, if only the scatter needs it?"""
        if self.is_by_update(node):
            return True
        if not 1 < _row_length(self.graph, node) <= SHORT_SUM:
            return False
        # A kernel that computes the terms for another reader adds them up on its way.
        terms = self.graph[node.operands[0]]
        is_alone = {*self.graph.users[terms.name]} == {node.name} and not self.is_needed(terms)
        # Of what several updates read each would compute the sum again.
        return is_alone and node.array.size >= self.updates

    def may_repeat(self, node: Node) -> bool:
        """May XLA compute it once more, whichever kernels need it too?"""
        if self.is_needed(node) or self.is_kept(node.name):
            return False
        if any(stored_value(self.graph, o) in self.lost for o in node.operands):
            return False
        if OPS[node.op].permutes and not OPS[node.op].is_view:
            return False  # elements that lie apart are read in whole sectors
        return self.is_by_update(node) or 1 < _row_length(self.graph, node) <= SHORT_ROW

    def is_kept(self, name: str) -> bool:
        """Is it read by others than kernels and scatters, and so in memory in any case?"""
        return any(
            not OPS[self.graph[r].op].is_view
            and not is_stitched(self.graph, self.graph[r], self.left)
            for r in self.graph.users[name]
            if r not in self.scatters
        )

    def list_read(self, members: Collection[str]) -> set[str]:
        """What a scatter reads that computes `members`."""
        read = {*self.given, *(o for name in members for o in self.graph[name].operands)}
        return {name for name in read.difference(members) if name not in self.graph.embedded}

    def is_stored_alone(self, name: str) -> bool:
        """Is a value that the scatter reads stored for scatters alone?"""
        base = stored_value(self.graph, name)
        in_memory = not is_stitched(self.graph, self.graph[base], self.left)
        return not (in_memory or self.is_needed(self.graph[name]) or self.is_kept(name))

    def choose(
        self, shared: Mapping[str, int], stored: Collection[str], stored_price: int
    ) -> set[str]:
        """The ops on the scatter's side of the cut.  shared: by value, how many scatters it could be stored for.
        stored: what is stored for others.  stored_price: see STORED."""

        def price(name: str) -> int:
            node = self.graph[name]
            if name in self.graph.embedded:
                return 0
            size = node.array.bytes
            loaded = min(size, size // node.array.size * self.times[name] * self.updates)
            if name in stored or not self.is_stored_alone(name):
                return loaded
            return loaded + stored_price * size // max(shared.get(name, 1), 1)

        network = nx.DiGraph()
        for name in self.times:
            if name not in self.opened:
                # Views of one array are loaded once.
                base = stored_value(self.graph, name)
                network.add_edge(MEMORY, (base, ARRAY), capacity=price(name))
                network.add_edge((base, ARRAY), (name, True))
                continue
            node = self.graph[name]
            # Of equal cuts the one farthest from the scatter: views of what is in memory are XLA's, too.
            network.add_edge((name, False), (name, True), capacity=price(name) + 1)
            network.add_edge(MEMORY, (name, False), capacity=self.effort(node))
            network.add_edges_from(
                ((o, True), (name, False)) for o in node.operands if o in self.times
            )
        network.add_edges_from(((name, True), SCATTER) for name in self.given)
        _, (_, needed) = nx.minimum_cut(network, MEMORY, SCATTER, flow_func=boykov_kolmogorov)
        members: set[str] = set()
        waiting = list(self.given)
        while waiting:
            name = waiting.pop()
            if name in self.opened and name not in members and (name, False) in needed:
                members.add(name)
                waiting += self.graph[name].operands
        return members

    def effort(self, node: Node) -> int:
        """What it costs to compute an op for all updates: nothing where no kernel does.

        XLA writes a transpose in a kernel of its own, and scatters from there.
        """
        row = OPS[node.op]
        if node.name in self.alone:
            return WRITTEN * node.array.bytes if _turns_rows(node) else 0
        flops = row.flops * (row.kind is Kind.ELEMENTWISE) + (row.kind is Kind.REDUCE)
        times = self.times[node.name] * _row_length(self.graph, node)
        return flops * times * self.updates // FLOPS_PER_BYTE


def _turns_rows(node: Node) -> bool:
    """Do elements that lie side by side lie apart in the operand?"""
    if not isinstance(node.attrs, TransposeAttrs) or OPS[node.op].is_view:
        return False
    order = [d for d, n in zip(node.attrs.permutation, node.shape, strict=True) if n > 1]
    return bool(order) and order[-1] != max(order)


def _row_length(graph: Graph, node: Node) -> int:
    """How many elements of its operand a sum of one array takes for each of its own; 1 of other ops."""
    if (
        OPS[node.op].kind is not Kind.REDUCE
        or len(node.operands) != 2
        or why_not_stitchable(graph, node)
    ):
        return 1
    return graph[node.operands[0]].array.size // max(node.array.size, 1)
