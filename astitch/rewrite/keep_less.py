"""Graph, stages -> Graph, stages: later stages compute again what a memory limit has no room to keep for them.

The backward half of a training step reads what its forward half computed, and memory holds it where the one ends and
the other begins.  What is kept there is a minimum cut between what cannot be computed again and what later stages read:
a cut through a value costs its bytes, times a price; an op that is computed again costs what it executes.  recompute.py
asks each stage for itself what saves traffic.  Here all stages behind the cut share what is kept, and a library's late
operand may be computed again too: its kernel stores it once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from astitch.graph.dimensions import is_embedded
from astitch.graph.edit import free_name, keep_live_nodes
from astitch.graph.ir import ArrayType, Graph, Node, TransposeAttrs
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import stored_value
from astitch.rewrite.recompute import LEAST_BYTES, Recomputed, Staged, Traffic

MOST_OPS = 40_000
"""Of a program in which a cut is looked for: beyond them a search takes minutes."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept behind a stage for later ones.  stage: its number.  bytes: the most of all stages."""

    stage: int
    bytes: int


def find_fullest(staged: Staged) -> Kept:
    """Behind which stage the most bytes are kept for later ones."""
    kept = _traffic_of(staged).list_kept(embedded=False)
    fullest = max(kept, key=lambda number: kept[number], default=0)
    return Kept(fullest, kept.get(fullest, 0))


@dataclass(frozen=True, slots=True)
class Price:
    """Of a byte that is kept, in bytes of traffic.

    of_first: of what stands first in the graph, which is kept longest.  of_rest: of all else.  share: of the ops, 0 to
    1, that stand first.
    """

    of_first: float
    of_rest: float
    share: float = 1


def keep_less(staged: Staged, behind: int, price: Price) -> Staged:
    """The same function; fewer bytes are kept behind a stage for later ones.

    behind: the number of the stage.
    """
    cut = _Cut(staged, behind, price)
    again = cut.choose()
    if not again:
        return staged
    graph, stage = _write(staged, again)
    notes = []
    for number, names in sorted(again.items()):
        ordered = sorted(names, key=cut.traffic.order.__getitem__)
        notes.append(Recomputed(number, tuple(ordered), 0, to_fit=True))
    found = replace(
        staged,
        graph=graph,
        stage=stage,
        recomputed=(*staged.recomputed, *notes),
        kept=staged.kept | cut.list_kept(again),
    )
    outside = {name: reason for name, reason in staged.outside.items() if name in graph.nodes}
    return replace(found, outside=outside)


def _traffic_of(staged: Staged) -> Traffic:
    return Traffic(staged.graph, staged.stage, {**staged.outside, **staged.held}, frozenset())


_KEPT, _LATER = "kept", "later"


class _Cut:
    """What is kept behind a stage, and what later stages compute again."""

    def __init__(self, staged: Staged, behind: int, price: Price) -> None:
        self.staged, self.graph, self.behind, self.price = staged, staged.graph, behind, price
        self.traffic = _traffic_of(staged)
        kept = [n for n in staged.graph.nodes if staged.stage[n] <= behind]
        self.first = frozenset(kept[: round(price.share * len(kept))])
        self.reads: dict[int, set[str]] = {}  # what later stages read, by stage
        self.stored: set[str] = set()  # what a library reads late
        self.heirs = {
            staged.graph.parameters[parameter]: stored_value(
                staged.graph, staged.graph.outputs[output]
            )
            for output, parameter in staged.graph.aliases
        }
        for number, name, is_library in self.list_reads():
            self.reads.setdefault(number, set()).add(name)
            if is_library:
                self.stored.add(name)

    def list_reads(self) -> Iterator[tuple[int, str, bool]]:
        """(a later stage, what it reads of what is kept, whether a library does)."""
        for node in self.graph:
            for operand in dict.fromkeys(node.operands):
                if is_embedded(self.graph, operand) or self.is_free(operand):
                    continue
                number = place_of(self.staged, node.name)
                if number is None or self.staged.stage[operand] > self.behind:
                    continue
                if number > self.behind:
                    yield number, operand, node.name in self.staged.outside

    def is_free(self, name: str) -> bool:
        """Does a value take no memory, or in any case?"""
        base = stored_value(self.graph, name)
        node = self.graph[base]
        kind = OPS[node.op].kind
        if kind is Kind.SOURCE or not isinstance(node.type, ArrayType):
            return True
        return base in self.graph.outputs

    def cost(self, name: str) -> int:
        base = stored_value(self.graph, name)
        lost = base in self.heirs and self.staged.stage[self.heirs[base]] < max(self.reads)
        if self.is_free(name) and not lost:
            return 0
        price = self.price.of_first if base in self.first else self.price.of_rest
        return round(price * self.traffic.bytes_of(name))

    def may_repeat(self, name: str) -> bool:
        turns = self.turns(self.graph[name]) and self.traffic.is_stitched(name)
        is_light = turns or self.traffic.may_repeat(name)
        return is_light and self.staged.stage[name] <= self.behind

    @staticmethod
    def turns(node: Node) -> bool:
        """Is it a transpose?  A factor that a product reads late may be one."""
        return isinstance(node.attrs, TransposeAttrs)

    def choose(self) -> dict[int, frozenset[str]]:
        """The ops that each later stage computes again."""
        wanted = set[str]().union(*self.reads.values())
        if not any(map(self.may_repeat, wanted)) or len(self.graph.nodes) > MOST_OPS:
            return {}
        network, opened = self.build(wanted)
        _, (_, needed) = nx.minimum_cut(network, _KEPT, _LATER, flow_func=boykov_kolmogorov)
        names = {name for name in opened if (name, False) in needed}
        again: dict[int, frozenset[str]] = {}
        for number, read in self.reads.items():
            pending = [name for name in read if name in names]
            found = set[str]()
            while pending:
                name = pending.pop()
                if name not in found:
                    found.add(name)
                    pending += (o for o in self.graph[name].operands if o in names)
            if found:
                again[number] = frozenset(found)
        return again

    def list_kept(self, again: Mapping[int, frozenset[str]]) -> frozenset[str]:
        """The values that later stages read.  again: what they compute again."""
        names = set[str]().union(*again.values())
        read = {o for name in names for o in self.graph[name].operands}.union(*self.reads.values())
        return frozenset(stored_value(self.graph, name) for name in read - names)

    def build(self, wanted: set[str]) -> tuple[nx.DiGraph, list[str]]:
        """The network, and the values that may be computed again: each has a vertex (name, False) behind its op and
        one (name, True) behind what it costs to keep."""
        network = nx.DiGraph()
        opened: list[str] = []
        pending, seen = sorted(wanted, key=self.traffic.order.__getitem__), set(wanted)
        network.add_node(_KEPT)
        for name in pending:
            network.add_edge((name, True), _LATER)
        while pending:
            name = pending.pop()
            node = self.graph[name]
            is_small = self.traffic.bytes_of(name) < LEAST_BYTES
            if is_small or self.is_free(name) or not self.may_repeat(name):
                network.add_edge(_KEPT, (name, True), capacity=self.cost(name))
                continue
            opened.append(name)
            if OPS[node.op].is_view:  # what it is a view of is kept
                network.add_edge((name, False), (name, True))
            else:
                network.add_edge((name, False), (name, True), capacity=self.cost(name))
            network.add_edge(_KEPT, (name, False), capacity=self.effort(node))
            for operand in dict.fromkeys(node.operands):
                if is_embedded(self.graph, operand):
                    continue
                network.add_edge((operand, True), (name, False))
                if operand not in seen:
                    seen.add(operand)
                    pending.append(operand)
        return network, opened

    def effort(self, node: Node) -> int:
        """What it costs to compute an op again, and to store it again for a library.  A transpose reads across."""
        size = self.traffic.bytes_of(node.name)
        again = size if node.name in self.stored else 0
        return self.traffic.effort(node) + again + (size if self.turns(node) else 0)


def place_of(staged: Staged, reader: str) -> int | None:
    """The stage that would compute what an op reads, if it is computed again; None: none would.

    What a library reads is stored by a stage before it.  Where collectives cut stages, the last of these is not known.
    """
    kind = OPS[staged.graph[reader].op].kind
    if kind is Kind.SOURCE or reader in staged.held or kind is Kind.BARRIER:
        return None
    if reader not in staged.outside:
        return staged.stage[reader]
    return None if staged.parts or reader in staged.products else staged.stage[reader] - 1


def _write(staged: Staged, again: Mapping[int, frozenset[str]]) -> tuple[Graph, Mapping[str, int]]:
    """The graph in which each stage has ops of its own for what it computes again, and the stages of its ops."""
    graph = staged.graph
    taken = set(graph.nodes)
    stages_of: dict[str, list[int]] = {}
    for number, names in sorted(again.items()):
        for name in names:
            stages_of.setdefault(name, []).append(number)
    own: dict[tuple[str, int], str] = {}
    for name in graph.nodes:
        for number in stages_of.get(name, ()):
            own[name, number] = free_name(f"{name}.again", taken)
            taken.add(own[name, number])
    nodes: dict[str, Node] = {}
    stage = dict(staged.stage)
    for node in graph:
        place = place_of(staged, node.name)
        operands = node.operands
        if place is not None:
            operands = tuple(own.get((o, place), o) for o in operands)
        nodes[node.name] = replace(node, operands=operands)
        for number in stages_of.get(node.name, ()):
            copied = tuple(own.get((o, number), o) for o in node.operands)
            name = own[node.name, number]
            nodes[name] = replace(node, name=name, operands=copied)
            stage[name] = number
    live = keep_live_nodes(nodes, graph.outputs)
    written = Graph(graph.name, live, graph.parameters, graph.outputs, graph.aliases)
    return written, {name: stage[name] for name in live}
