"""Graph -> Graph: factorizations of many small matrices, with the ops around them, become loops of one turn.

A library's call for matrices of 4 x 4 takes longer for its launches than for its work, and reads and writes memory
before and after each step.  A loop over rows that is one kernel has all numbers of a row in one thread (spell_out.py).
So what is computed of each matrix by itself is written as such a loop, which turns once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astitch.graph.edit import free_name, is_pure, keep_live_nodes, sort_nodes
from astitch.graph.factorizations import find_factorization
from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    CompareAttrs,
    ConstantAttrs,
    DotAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    Literal,
    Node,
    ParameterAttrs,
    TupleType,
)
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.arrays import array_types
from astitch.loops.analysis import Loop, count_turns
from astitch.loops.flatten import Dimension, is_array
from astitch.loops.part_products import part_small_products
from astitch.loops.plan import LoopPlanner
from astitch.loops.row_dimensions import NotSpelled, RowDimensions
from astitch.loops.spell_out import MOST_NUMBERS
from astitch.rewrite.batched_gathers import batch_gathers

MOST_BESIDE = 32
"""Numbers of a row that an op around a factorization may read or make, if no matrix has more.  A kernel of another form
reads wide rows better."""

MOST_MEMBERS = 400
"""Ops of a group."""


def loop_over_matrices(graph: Graph, planner: LoopPlanner) -> Graph:
    """The same function; the graph itself where it has no such matrices, or no kernel for them."""
    if not any(find_factorization(node) for node in graph):
        return graph
    made, tried = part_small_products(batch_gathers(graph)), set[str]()
    changed = False
    while True:
        reach = _Reach(made)
        seed = next((n for n in made if n.name not in tried and find_factorization(n)), None)
        if seed is None:
            return made if changed else graph
        tried.add(seed.name)
        for grows in (True, False):
            group = _Group(made, reach, seed).grow(grows)
            if not group:
                continue
            looped = _write_loop(made, group)
            if planner.is_kernel(looped.graph, looped.graph[looped.name]):
                made, changed = looped.graph, True
                break


def turns_once(graph: Graph, node: Node) -> bool:
    """Is a node a loop of one turn, as they are made here?"""
    if not OPS[node.op].is_loop:
        return False
    counted = count_turns(graph, node)
    return counted is not None and counted[0] == 1


# ---- which ops -----------------------------------------------------------------------------------------------------


class _Reach:
    """Which ops of a graph wait for which, as sets of bits."""

    def __init__(self, graph: Graph) -> None:
        self.number = {node.name: i for i, node in enumerate(graph)}
        self.before, self.behind = dict[str, int](), dict[str, int]()
        for node in graph:
            bits = 0
            for operand in node.operands:
                bits |= self.before[operand] | 1 << self.number[operand]
            self.before[node.name] = bits
        for node in reversed(list(graph)):
            bits = 0
            for user in graph.users[node.name]:
                bits |= self.behind[user] | 1 << self.number[user]
            self.behind[node.name] = bits


class _Group:
    """Ops that compute something of each row by itself, around a factorization.

    known: ops of constants only, which a kernel computes for itself.
    """

    def __init__(self, graph: Graph, reach: _Reach, seed: Node) -> None:
        self.graph, self.reach, self.seed = graph, reach, seed
        self.known = _find_known(graph)
        loop = Loop(Node("rows", "while", seed.type, (), regions=(graph, graph)), 1, (), {}, {}, {})
        self.dimensions = RowDimensions(loop, graph.nodes)
        self.members: set[str] = set()
        self.bits = self.before = self.behind = 0
        self.seeds = sum(1 << reach.number[n.name] for n in graph if find_factorization(n))
        first = graph[seed.operands[0]]
        self.most = max(MOST_BESIDE, math.prod(first.shape[-2:]))
        self.rows: tuple[Dimension, ...] = ()

    def grow(self, grows: bool) -> set[str]:
        """The ops; none where the seed itself cannot be among them.  grows: takes in others than factorizations and
        what is between these."""
        if not self._take(self.seed):
            return set()
        while len(self.members) < MOST_MEMBERS:
            around = [n for n in self._list_around() if grows or self._is_between(n)]
            found = [node for node in around if self._take(node)]
            if not found:
                break
        return self.members

    def _is_between(self, node: Node) -> bool:
        """Is an op a factorization, or between two?"""
        if find_factorization(node):
            return True
        before, behind = self.reach.before[node.name], self.reach.behind[node.name]
        return bool(before & self.seeds and behind & self.seeds)

    def _list_around(self) -> Iterator[Node]:
        around: dict[str, None] = {}
        for name in [n for n in self.graph.nodes if n in self.members]:
            around.update(dict.fromkeys(self.graph.users[name]))
            around.update(dict.fromkeys(self.graph[name].operands))
        for name in around:
            if name not in self.members and name not in self.known:
                yield self.graph[name]

    def _take(self, node: Node) -> bool:
        """Adds an op, with what it needs of constants, if the rows stay apart and no path leaves the group and comes
        back."""
        if node.is_parameter or not is_pure(node) or len(self.members) >= MOST_MEMBERS:
            return False
        if any(o not in self.members and not is_array(self.graph[o]) for o in node.operands):
            return False
        before = self.before | self.reach.before[node.name]
        behind = self.behind | self.reach.behind[node.name]
        bits = self.bits | 1 << self.reach.number[node.name]
        known = self._list_known(node)
        between = before & behind & ~bits
        for name in self.known:
            between &= ~(1 << self.reach.number[name])
        if between:
            return False
        dimensions = self.dimensions
        saved = dict(dimensions.parent), set(dimensions.bound)
        try:
            for new in (*known, node):
                dimensions.visit(new)
            holds = self._holds(node, known)
        except NotSpelled:
            holds = False
        if not holds:
            dimensions.parent, dimensions.bound = saved
            return False
        self.members |= {node.name, *(n.name for n in known)}
        self.before, self.behind, self.bits = before, behind, bits
        return True

    def _list_known(self, node: Node) -> list[Node]:
        """The ops of constants that an op needs, operands first."""
        needed = set[str]()
        pending = [o for o in node.operands if o in self.known]
        while pending:
            name = pending.pop()
            if name not in needed and name not in self.members:
                needed.add(name)
                pending += self.graph[name].operands
        return [n for n in self.graph if n.name in needed]

    def _holds(self, node: Node, known: Sequence[Node]) -> bool:
        """Are the rows of the seed still apart, and have the values around an op few numbers of each?

        Its rows are all dimensions along which its elements do not meet."""
        find = self.dimensions.find
        bound = {find(key) for key in self.dimensions.bound}
        if node is self.seed:
            values = [self.graph[name] for name in (*node.operands, node.name)]
            keys = [(v.name, d) for v in values if is_array(v) for d, n in enumerate(v.shape) if n > 1]
            self.rows = tuple({find(key) for key in keys} - bound)
        rows = {find(key) for key in self.rows}
        if len(rows) < len(self.rows) or not bound.isdisjoint(rows):
            return False
        most = MOST_NUMBERS if isinstance(node.attrs, DotAttrs) or node is self.seed else self.most
        for name in (node.name, *node.operands, *(n.name for n in known)):
            value = self.graph[name]
            if not is_array(value):
                continue
            apart = [find((name, d)) in rows for d in range(value.array.rank)]
            numbers = math.prod(n for n, a in zip(value.shape, apart, strict=True) if not a)
            if numbers > most:
                return False
        return True


def _find_known(graph: Graph) -> frozenset[str]:
    """The ops of constants: no operand is computed from a parameter."""
    known: set[str] = set()
    kinds = (Kind.ELEMENTWISE, Kind.BROADCAST, Kind.SOURCE, Kind.INDEX)
    for node in graph:
        plain = OPS[node.op].kind in kinds and not node.is_parameter and is_pure(node)
        if plain and known.issuperset(node.operands):
            known.add(node.name)
    return frozenset(known)


# ---- the loop ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Looped:
    """name: of the loop."""

    graph: Graph
    name: str


def _write_loop(graph: Graph, group: Collection[str]) -> _Looped:
    """The graph with these ops in a while that turns once.  Ops of constants are in both."""
    members = [node for node in graph if node.name in group]
    known = _find_known(graph)
    results = [
        node
        for node in members
        if is_array(node)
        and node.name not in known
        and (node.name in graph.outputs or any(u not in group for u in graph.users[node.name]))
    ]
    given = list(
        dict.fromkeys(o for node in members for o in node.operands if o not in group)
    )
    taken = {*graph.nodes}

    def name(hint: str) -> str:
        made = free_name(hint, taken)
        taken.add(made)
        return made

    counter = ArrayType(DType.S32, ())
    types = [counter, *(graph[o].array for o in given), *(node.array for node in results)]
    parameters = [name("turn"), *given, *(name(f"{node.name}.before") for node in results)]
    parameter_nodes = {
        p: Node(p, "parameter", t, attrs=ParameterAttrs(i))
        for i, (p, t) in enumerate(zip(parameters, types, strict=True))
    }
    one = Node(name("one"), "constant", counter, attrs=_number(1, counter.dtype))
    step = Node(name("next"), "add", counter, (parameters[0], one.name))
    outputs = (step.name, *given, *(node.name for node in results))
    body_nodes = {**parameter_nodes, one.name: one, step.name: step}
    body_nodes.update({node.name: node for node in members})
    body = Graph("rows", keep_live_nodes(body_nodes, outputs), tuple(parameters), outputs)
    asked = Node(name("asked"), "compare", ArrayType(DType.PRED, ()), (parameters[0], one.name), CompareAttrs("LT"))
    condition = Graph(
        "once", {**parameter_nodes, one.name: one, asked.name: asked}, tuple(parameters), (asked.name,)
    )
    zero = Node(name("zero"), "constant", counter, attrs=_number(0, counter.dtype))
    nodes = {**graph.nodes, zero.name: zero}
    starts = []
    for node in results:
        scalar = Node(name("zero"), "constant", ArrayType(node.dtype, ()), attrs=_number(0, node.dtype))
        nodes[scalar.name] = scalar
        start = scalar
        if node.array.rank:
            start = Node(name("start"), "broadcast", node.array, (scalar.name,), BroadcastAttrs(()))
            nodes[start.name] = start
        starts.append(start.name)
    loop = Node(
        name("rows"),
        "while",
        TupleType(tuple(types)),
        (zero.name, *given, *starts),
        regions=(condition, body),
    )
    nodes[loop.name] = loop
    for place, node in enumerate(results, 1 + len(given)):
        nodes[node.name] = Node(
            node.name, "get-tuple-element", node.type, (loop.name,), GetTupleElementAttrs(place)
        )
    parameters_first = {p: nodes[p] for p in graph.parameters}
    effects = [n.name for n in graph if n.name not in group and not is_pure(n)]
    ordered = sort_nodes(nodes, (*effects, *graph.outputs), parameters_first)
    return _Looped(replace(graph, nodes=ordered), loop.name)


def _number(value: int, dtype: DType) -> ConstantAttrs:
    return ConstantAttrs(Literal.of(np.asarray(value, dtype.numpy)))
