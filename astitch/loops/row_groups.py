"""Ops that compute something of each row by itself, put into a loop over rows that turns once.

A loop over rows that is one kernel has all numbers of a row in one thread (spell_out.py).  So what is computed of rows
of few numbers outside of loops can be written as such a loop.  Passes choose where a group begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from astitch.graph.collectives import communicates
from astitch.graph.edit import free_name, is_pure, keep_live_nodes, sort_nodes
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
from astitch.graph.storage import stored_value
from astitch.loops.analysis import Loop
from astitch.loops.flatten import Dimension, is_array
from astitch.loops.row_dimensions import NotSpelled, RowDimensions
from astitch.loops.row_numbers import MOST_NUMBERS

MOST_BESIDE = 32
"""Numbers of a row that an op of a group may read or make, if nothing is said of it.  Kernels of other forms read wide
rows better."""

MOST_MEMBERS = 400
"""Ops of a group: a compiler takes seconds for more."""

MOST_NODES = 12_000
"""Ops of a graph: its paths are kept as a square of bits."""


# ---- which ops -----------------------------------------------------------------------------------------------------


class Paths:
    """Which ops of a graph wait for which, as sets of bits.

    known: ops of constants only, which a kernel computes for itself.  all_known, seeds: sets of bits, the second of ops
    where groups may begin.  talking: ops that communicate.
    """

    def __init__(self, graph: Graph, is_seed: Callable[[Node], object]) -> None:
        self.bit = {node.name: 1 << i for i, node in enumerate(graph)}
        self.before, self.behind = dict[str, int](), dict[str, int]()
        for node in graph:
            found = 0
            for operand in node.operands:
                found |= self.before[operand] | self.bit[operand]
            self.before[node.name] = found
        for node in reversed(list(graph)):
            found = 0
            for user in graph.users[node.name]:
                found |= self.behind[user] | self.bit[user]
            self.behind[node.name] = found
        self.known = find_known(graph)
        self.all_known = self.join(self.known)
        self.seeds = self.join(node.name for node in graph if is_seed(node))
        self.talking = [node.name for node in graph if communicates(node)]

    def holds_back(self, before: int, behind: int) -> bool:
        """Would communication behind a group wait for some before it, for which it need not wait?"""
        heard = before & self.join(self.talking)
        return any(behind & self.bit[n] and heard & ~self.before[n] for n in self.talking)

    def join(self, names: Iterator[str] | Collection[str]) -> int:
        found = 0
        for name in names:
            found |= self.bit[name]
        return found


def find_known(graph: Graph) -> frozenset[str]:
    known: set[str] = set()
    kinds = (Kind.ELEMENTWISE, Kind.BROADCAST, Kind.SOURCE, Kind.INDEX)
    for node in graph:
        plain = OPS[node.op].kind in kinds and not node.is_parameter and is_pure(node)
        if plain and known.issuperset(node.operands):
            known.add(node.name)
    return frozenset(known)


class RowGroup:
    """Ops that compute something of each row by itself, around a seed.

    rows: a dimension of each class that has rows: those of the seed that are given, else all along which its elements
    do not meet.  most: numbers of a row that an op may read or make; of the seed, and of products if most_multiplied
    says so, other numbers.  before, behind: what the members wait for, and what waits for them.
    """

    def __init__(
        self,
        graph: Graph,
        paths: Paths,
        seed: Node,
        rows: Sequence[Dimension] | None = None,
        most: int = MOST_BESIDE,
        most_multiplied: int = MOST_NUMBERS,
    ) -> None:
        self.graph, self.paths, self.seed, self.given = graph, paths, seed, rows
        self.most, self.most_multiplied = most, most_multiplied
        once = Node(
            "rows", "while", TupleType(tuple(array_types(seed))), (), regions=(graph, graph)
        )
        loop = Loop(once, trips=1, roles=(), slices={}, integers={}, starts={})
        self.dimensions = RowDimensions(loop, graph.nodes)
        self.rows: tuple[Dimension, ...] = ()
        self.members: set[str] = set()
        self.bits = self.before = self.behind = 0

    def grow(self, only_between: bool) -> set[str]:
        """The ops; none where the seed itself cannot be one.  only_between: takes in other seeds, and what is between
        two of them."""
        if not self._take(self.seed):
            return set()
        while len(self.members) < MOST_MEMBERS:
            around = [n for n in self._list_around() if not only_between or self._is_between(n)]
            if not [node for node in around if self._take(node)]:
                break
        return self.members

    def _list_around(self) -> Iterator[Node]:
        """Neighbours of members.  A constant has none: who else reads it computes something else."""
        around: dict[str, None] = {}
        for name in sorted(self.members - self.paths.known, key=self.paths.bit.__getitem__):
            around.update(dict.fromkeys(self.graph.users[name]))
            around.update(dict.fromkeys(self.graph[name].operands))
        for name in around:
            if name not in self.members and name not in self.paths.known:
                yield self.graph[name]

    def _is_between(self, node: Node) -> bool:
        # A loop carries no tuples: a call that gives one brings what is read of it.
        paths = self.paths
        if paths.bit[node.name] & paths.seeds or isinstance(node.attrs, GetTupleElementAttrs):
            return True
        return bool(paths.before[node.name] & paths.seeds and paths.behind[node.name] & paths.seeds)

    def _take(self, node: Node) -> bool:
        """Adds an op, with what it needs of constants, if the rows stay apart and no path leaves the group and comes
        back."""
        if node.is_parameter or not is_pure(node):
            return False
        if any(o not in self.members and not is_array(self.graph[o]) for o in node.operands):
            return False
        paths = self.paths
        before = self.before | paths.before[node.name]
        behind = self.behind | paths.behind[node.name]
        bits = self.bits | paths.bit[node.name]
        if before & behind & ~bits & ~paths.all_known or paths.holds_back(before, behind):
            return False
        if not self.may_join(node):
            return False
        self.members |= {node.name, *(n.name for n in self.list_known(node))}
        self.before, self.behind, self.bits = before, behind, bits
        return True

    def adopt(self, members: Collection[str]) -> bool:
        """Takes in what a group of the same seed has elsewhere; False if that is no group here."""
        if not self.may_join(self.seed):
            return False
        self.members = set(members)
        try:
            for name in sorted(members, key=self.paths.bit.__getitem__):
                self.dimensions.visit(self.graph[name])
        except NotSpelled:
            return False
        others = self.members - self.paths.known - {self.seed.name}
        return all(self._holds([self.graph[name]]) for name in others)

    def may_join(self, node: Node) -> bool:
        """Do the rows stay apart with an op that computes something of them?  If so their dimensions are its, too."""
        dimensions, known = self.dimensions, self.list_known(node)
        saved = dict(dimensions.parent), set(dimensions.bound)
        try:
            for new in (*known, node):
                dimensions.visit(new)
            if self._holds([*known, node]):
                return True
        except NotSpelled:
            pass
        dimensions.parent, dimensions.bound = saved
        return False

    def list_known(self, node: Node) -> list[Node]:
        """The ops of constants that an op needs, operands first."""
        needed = set[str]()
        pending = [o for o in node.operands if o in self.paths.known]
        while pending:
            name = pending.pop()
            if name not in needed and name not in self.members:
                needed.add(name)
                pending += self.graph[name].operands
        return [self.graph[name] for name in sorted(needed, key=self.paths.bit.__getitem__)]

    def _holds(self, new: Sequence[Node]) -> bool:
        """Are the rows still apart, and have the values around the last of these ops few numbers of each?"""
        *known, node = new
        find, bound = self.dimensions.find, set(map(self.dimensions.find, self.dimensions.bound))
        around = [self.graph[o] for o in node.operands] + [node]
        if node is self.seed and self.given is not None:
            self.rows = tuple({find(key) for key in self.given})
        elif node is self.seed:
            arrays = [value for value in around if is_array(value)]
            keys = [(v.name, d) for v in arrays for d, extent in enumerate(v.shape) if extent > 1]
            self.rows = tuple({find(key) for key in keys} - bound)
        rows = set(map(find, self.rows))
        if len(rows) < len(self.rows) or not bound.isdisjoint(rows):
            return False
        most = self.most
        if node is self.seed or isinstance(node.attrs, DotAttrs):
            most = self.most_multiplied
        return all(
            self._count_numbers(value, rows) <= most
            for value in (*around, *known)
            if is_array(value)
        )

    def _count_numbers(self, node: Node, rows: Collection[Dimension]) -> int:
        find = self.dimensions.find
        return math.prod(n for d, n in enumerate(node.shape) if find((node.name, d)) not in rows)


# ---- the loop ------------------------------------------------------------------------------------------------------


def list_given(graph: Graph, group: Collection[str]) -> tuple[str, ...]:
    """What a group reads of others."""
    members = (node for node in graph if node.name in group)
    return tuple(dict.fromkeys(o for node in members for o in node.operands if o not in group))


def list_results(graph: Graph, group: Collection[str], known: Collection[str]) -> list[Node]:
    """The arrays of a group that others read."""
    return [
        node
        for node in graph
        if node.name in group
        and is_array(node)
        and node.name not in known
        and (node.name in graph.outputs or any(u not in group for u in graph.users[node.name]))
    ]


def cut_out(graph: Graph, group: Collection[str], known: Collection[str]) -> Graph:
    """The group as a graph, whose parameters are what it reads: a loop is planned there, however large the other is."""
    members = {node.name: node for node in graph if node.name in group}
    given = list_given(graph, group)
    nodes = {
        name: Node(name, "parameter", graph[name].type, attrs=ParameterAttrs(i))
        for i, name in enumerate(given)
    }
    outputs = tuple(node.name for node in list_results(graph, group, known))
    return Graph(graph.name, nodes | members, given, outputs)


def write_loop(graph: Graph, group: Collection[str], known: Collection[str]) -> tuple[Graph, str]:
    """The graph with these ops in a while that turns once, and its name.  Ops of constants are in both."""
    members = [node for node in graph if node.name in group]
    results, given = list_results(graph, group, known), list_given(graph, group)
    taken = {*graph.nodes}

    def name(hint: str) -> str:
        made = free_name(hint, taken)
        taken.add(made)
        return made

    counter, truth = ArrayType(DType.S32, ()), ArrayType(DType.PRED, ())
    types = [counter, *(graph[o].array for o in given), *(node.array for node in results)]
    states = [name("turn"), *given, *(name(f"{node.name}.before") for node in results)]
    parameters = [
        Node(state, "parameter", type_, attrs=ParameterAttrs(i))
        for i, (state, type_) in enumerate(zip(states, types, strict=True))
    ]
    one = Node(name("one"), "constant", counter, attrs=_number(1, counter.dtype))
    step = Node(name("next"), "add", counter, (states[0], one.name))
    outputs = (step.name, *given, *(node.name for node in results))
    body_nodes = {node.name: node for node in (*parameters, one, step, *members)}
    body = Graph("of_rows", keep_live_nodes(body_nodes, outputs), tuple(states), outputs)
    asked = Node(name("is_first"), "compare", truth, (states[0], one.name), CompareAttrs("LT"))
    condition_nodes = {node.name: node for node in (*parameters, one, asked)}
    condition = Graph("once", condition_nodes, tuple(states), (asked.name,))

    nodes = dict(graph.nodes)

    def add(hint: str, op: str, type_: ArrayType, **fields: object) -> str:
        node = Node(name(hint), op, type_, **fields)  # type: ignore[arg-type]
        nodes[node.name] = node
        return node.name

    starts = [add("zero", "constant", counter, attrs=_number(0, counter.dtype)), *given]
    overwritten = _find_overwritten(graph, group, results)
    for node in results:
        if overwritten.get(node.name) in given:
            starts.append(overwritten[node.name])
            continue
        scalar = ArrayType(node.dtype, ())
        zero = add("zero", "constant", scalar, attrs=_number(0, node.dtype))
        attrs = BroadcastAttrs(())
        is_scalar = not node.array.rank
        start = (
            zero
            if is_scalar
            else add("start", "broadcast", node.array, operands=(zero,), attrs=attrs)
        )
        starts.append(start)
    loop = Node(
        name("rows"), "while", TupleType(tuple(types)), tuple(starts), regions=(condition, body)
    )
    nodes[loop.name] = loop
    for place, node in enumerate(results, 1 + len(given)):
        projection = GetTupleElementAttrs(place)
        nodes[node.name] = Node(node.name, "get-tuple-element", node.type, (loop.name,), projection)
    effects = [n.name for n in graph if not is_pure(n)]
    first = {p: nodes[p] for p in graph.parameters}
    ordered = sort_nodes(nodes, (*effects, *graph.outputs), first)
    return Graph(graph.name, ordered, graph.parameters, graph.outputs, graph.aliases), loop.name


def _find_overwritten(
    graph: Graph, group: Collection[str], results: Sequence[Node]
) -> dict[str, str]:
    """By result, the array whose memory it gets, if only the group reads that: a donated parameter, else one that
    others computed.

    The loop starts with it, which says that its kernel may write where it read.
    """
    pairs = {graph.outputs[output]: graph.parameters[p] for output, p in graph.aliases}
    found = {
        result: parameter
        for result, parameter in pairs.items()
        if parameter not in graph.outputs and all(u in group for u in graph.users[parameter])
    }
    free = [o for o in list_given(graph, group) if _is_free(graph, group, o)]
    for node in results:
        if node.name in pairs:
            continue
        same = next((o for o in free if graph[o].type == node.type), None)
        if same is not None:
            free.remove(same)
            found[node.name] = same
    return found


def _is_free(graph: Graph, group: Collection[str], name: str) -> bool:
    """Is an array computed outside of a group, for the group alone?"""
    base = stored_value(graph, name)
    if OPS[graph[base].op].kind is Kind.SOURCE or base in graph.embedded:
        return False
    pending = [base]
    while pending:
        view = pending.pop()
        if view in graph.outputs:
            return False
        for user in graph.users[view]:
            if user in group and view == name:
                continue
            if user in group or not OPS[graph[user].op].is_view:
                return False
            pending.append(user)
    return True


def _number(value: int, dtype: DType) -> ConstantAttrs:
    return ConstantAttrs(Literal.of(np.asarray(value, dtype.numpy)))
