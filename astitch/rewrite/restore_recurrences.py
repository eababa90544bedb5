"""Graph -> Graph: linear recurrences that programs wrote out as trees, as the running reductions that they are.

`associative_scan` of h[t] = a[t] * h[t - 1] + b[t] combines neighbours, then their results, and weaves the levels
together: log2(T) kernels each way, whose values are all in memory.  The gradient is the same tree turned around.

A tree is told by what it computes, not by how it is written.  Its ops add, multiply, cut and weave along one dimension,
so each result is a polynomial of what the tree reads.  Evaluated at random points of a finite field, two different
polynomials agree with a chance of their degree over the size of the field (Schwartz 1980, Zippel 1979).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DType,
    Graph,
    IotaAttrs,
    Node,
    PadAttrs,
    SliceAttrs,
)
from astitch.graph.ops import OPS, monoid_of
from astitch.graph.ops.windows import Running
from astitch.graph.recurrences import TYPES
from astitch.rewrite.decays import find_decays
from astitch.rewrite.draft import Draft, Log, is_zero, read_splat
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.finite_field import (
    EVALUATED,
    PRIME,
    Vector,
    grow,
    is_in_field,
    move_on,
    raise_to,
    run_recurrences,
    to_field,
)
from astitch.rewrite.running_reductions import put_recurrence, put_running
from astitch.rewrite.simplify import rewrite_graph
from astitch.rewrite.whole_reads import list_numbers, read_alike, read_wholes

LANES = (2, 3)
"""Elements along each summed dimension, at each of two points: all are alike, and what they are summed to is not."""

LEAST_STEPS = 8
"""A shorter tree is a kernel's to compute as it stands."""

MOST_TERMS = 64
"""Terms of a sum that is a tree.  A program that adds sums of sums may have 2^n of them."""

MOST_LEAVES = 6
"""Arrays that a tree reads: a, b, and what comes back for the results."""

MOST_NUMBERS, NUMBERS_TOGETHER = 1 << 25, 1 << 22
"""Numbers of all recurrences that a tree is compared with, and of those that are evaluated side by side."""

ONE_STEP = NONE = -1


def restore_recurrences(graph: Graph, log: Log | None = None) -> Graph:
    """The same function but for the order of sums and products; the same graph without such trees.

    graph: in simplest form.  `log` hears of each result of a tree.
    """
    heard: Log = log or (lambda rule, node: None)
    woven = _find_weaving(graph)
    if not woven:
        return graph
    whole = read_alike(graph, {*woven.values()})
    weaving = _find_weaving(whole)
    whole = read_wholes(whole, {*weaving.values()})
    found = dict(_find_results(whole, weaving))
    _drop_wasted(whole, found)
    if not found:
        return graph

    def change(node: Node, draft: Draft, values: Mapping[str, str]) -> str | None:
        result = found.get(node.name)
        if result is None:
            return None
        heard("restore_recurrence", node.name)
        return _Put(result, DraftOps(node, draft), values).put()

    return rewrite_graph(whole, heard, change)


# ---- trees -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Read:
    """An array as a tree reads it.

    places: of each dimension, which of the tree's it is: one of the result's, or from its rank on one that is summed;
    NONE: it has a single element.
    along: the dimension along which the tree runs; ONE_STEP: left out, there is one step; None: the array is the same
    at each step.
    """

    name: str
    places: tuple[int, ...]
    along: int | None


@dataclass(slots=True)
class _Tree:
    """A sum of woven arrays, `end`, and what it is made of.

    dimension: of the result, along which the tree runs.  terms: of the sum, those that ops of trees give.  others: the
    other terms.  nodes: from what is read to the terms, each as it is read.  leaves: what the tree reads.
    summed: place of each dimension that is summed on the way, by its extent and how many others are before it.  Those
    of single elements do not count: reshapes drop them.
    repeated: what is the same at each step, where a single step does not show it.  padded: arrays of all steps that are
    paddings of what is no tree: what flows back from a slice of the states.
    decay: a number that is the factor at each step; decays: its powers in the tree, by name.
    """

    end: str
    dimension: int
    terms: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    nodes: dict[str, _Read] = field(default_factory=dict)
    leaves: dict[str, _Read] = field(default_factory=dict)
    summed: dict[tuple[int, int], int] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)
    padded: set[str] = field(default_factory=set)
    decay: str = ""
    decays: dict[str, int] = field(default_factory=dict)


def _find_weaving(graph: Graph) -> dict[str, int]:
    """The dimension along which values are spread, with zeros between or beside them, and sums of such values.

    What is added to a sum that nothing else reads counts as a term of it.
    """
    found: dict[str, int] = {}
    for node in graph:
        if isinstance(node.attrs, PadAttrs):
            padded = zip(node.attrs.low, node.attrs.high, node.attrs.interior, strict=True)
            moved = [d for d, edges in enumerate(padded) if any(edges)]
            if len(moved) == 1 and is_zero(graph, node.operands[1]):
                found[node.name] = moved[0]
        elif OPS[node.op].combiner is np.add:
            known = [o for o in node.operands if o in found]
            alone = len(known) == 1 and graph.users[known[0]] == (node.name,)
            if len({found[o] for o in known}) == 1 and (len(known) == 2 or alone):
                found[node.name] = found[known[0]]
    return found


def _is_pad(node: Node) -> bool:
    return isinstance(node.attrs, PadAttrs)


def _is_end(graph: Graph, name: str, weaving: Mapping[str, int]) -> bool:
    """Does something read the sum that is no part of a longer sum?  A padding that no sum takes in is none."""
    return name in graph.outputs or any(
        user not in weaving or (_is_pad(graph[user]) and _is_end(graph, user, weaving))
        for user in graph.users[name]
    )


def _collect(graph: Graph, end: str, dimension: int, weaving: Mapping[str, int]) -> _Tree | None:
    """The tree behind a sum; None where no term is one, or where it reads too much."""
    terms = list(itertools.islice(_list_terms(graph, end, weaving), MOST_TERMS + 1))
    if len(terms) > MOST_TERMS:
        return None
    tree = _Tree(end, dimension)
    places = tuple(range(graph[end].array.rank))
    seen: dict[str, _Read] = {}
    waiting, stopped = list(terms), set[str]()
    while waiting:
        term, known = waiting.pop(), len(tree.repeated) + len(tree.padded)
        start = _make_read(tree, graph, term, places, dimension)
        found = _trace(graph, start, seen, tree, weaving, stopped)
        if not waiting:
            tree.repeated |= {n for n in stopped if n in seen and seen[n].along is None}
        if len(tree.repeated) + len(tree.padded) > known:  # something was read otherwise until now
            tree = _Tree(end, dimension, repeated=tree.repeated, padded=tree.padded)
            seen, waiting, stopped = {}, list(terms), set()
        elif found is None:
            tree.others.append(term)
        else:
            tree.terms.append(term)
            seen |= found
    tree.leaves = {n: r for n, r in seen.items() if _is_leaf(graph, r, tree, weaving)}
    powers = _find_powers(graph, tree.leaves)
    tree.leaves = {name: read for name, read in tree.leaves.items() if name not in powers}
    if decays := find_decays(graph, seen):
        tree.decay, tree.decays = decays
        tree.leaves[tree.decay] = _Read(tree.decay, (), None)
    if not 0 < len(tree.leaves) <= MOST_LEAVES:
        return None
    seen |= {name: _Read(name, (), None) for name in powers}
    tree.nodes = {n: seen[n] for n in graph.nodes if n in seen and n not in tree.leaves}
    return tree


def _list_terms(graph: Graph, end: str, weaving: Mapping[str, int]) -> Iterator[str]:
    """The terms of a sum, each as often as it is added."""
    waiting = [end]
    while waiting:
        name = waiting.pop()
        if name in weaving and not _is_pad(graph[name]):
            waiting += graph[name].operands
        else:
            yield name


def _trace(
    graph: Graph,
    start: _Read,
    known: Mapping[str, _Read],
    tree: _Tree,
    weaving: Mapping[str, int],
    stopped: set[str],
) -> dict[str, _Read] | None:
    """What a term is made of, each as it is read; None where something in it is no op of a tree.

    known: what other terms are made of.  stopped: gets what is no op of a tree, where a single step of it is read.
    """
    seen: dict[str, _Read] = {}
    waiting = [(start, "")]
    while waiting:
        read, padded = waiting.pop()
        read = _turn(graph, read)
        before = known.get(read.name) or seen.get(read.name)
        if before:
            if read in (before, _turn_to(graph, before, read.along)):
                continue
            if before.places == read.places and {before.along, read.along} == {None, ONE_STEP}:
                tree.repeated.add(read.name)
            return None  # it is read in two ways
        seen[read.name] = read
        node = graph[read.name]
        if not isinstance(node.type, ArrayType) or not _is_held(node.dtype, graph[tree.end].dtype):
            return None
        if read_splat(graph, read.name) is not None or _is_leaf(graph, read, tree, weaving):
            continue
        if read.along is None or not _acts_along(graph, node, read.along):
            if padded:
                tree.padded.add(padded)
            if read.along == ONE_STEP:
                stopped.add(read.name)
            return None
        if read.name != start.name and _is_padding(graph, read, tree):
            padded = read.name
        waiting += [(operand, padded) for operand in _list_operands(graph, node, read, tree)]
    return seen


def _is_padding(graph: Graph, read: _Read, tree: _Tree) -> bool:
    """Is it of all steps, and nothing but zeros beside its operand?"""
    node, d = graph[read.name], read.along
    if not isinstance(node.attrs, PadAttrs) or d is None or d == ONE_STEP:
        return False
    return node.shape[d] == graph[tree.end].shape[tree.dimension] and not any(node.attrs.interior)


def _turn(graph: Graph, read: _Read) -> _Read:
    """The same read of a single step, along the dimension that a slice or padding moves.

    Of several dimensions of single elements a reshape does not tell which one is the step.
    """
    node, d = graph[read.name], read.along
    if d is None or d == ONE_STEP or node.array.shape[d] != 1:
        return read
    match node.attrs:
        case SliceAttrs():
            source = graph[node.operands[0]].shape
            moved = [e for e, extent in enumerate(node.shape) if extent != source[e]]
        case PadAttrs(low, high, interior):
            edges = enumerate(zip(low, high, interior, strict=True))
            moved = [e for e, edge in edges if any(edge)]
        case _:
            return read
    return _turn_to(graph, read, moved[0]) if len(moved) == 1 else read


def _turn_to(graph: Graph, read: _Read, along: int | None) -> _Read:
    """The same read of a single step along another dimension of a single element; of others the read as it is."""
    shape, places = graph[read.name].array.shape, list(read.places)
    if any(d is None or d == ONE_STEP or shape[d] != 1 for d in (read.along, along)):
        return read
    assert read.along is not None and along is not None
    places[read.along], places[along] = places[along], places[read.along]
    return _Read(read.name, tuple(places), along)


def _is_leaf(graph: Graph, read: _Read, tree: _Tree, weaving: Mapping[str, int]) -> bool:
    """Is it no op of the tree: of all steps and not woven, or the same at each of them?"""
    if read_splat(graph, read.name) is not None:
        return False
    steps, d = graph[tree.end].shape[tree.dimension], read.along
    if d is None:
        return True
    node = graph[read.name]
    if isinstance(node.attrs, BroadcastAttrs) and d not in node.attrs.dimensions:
        return False  # its operand is one, wherever it is repeated
    whole = d != ONE_STEP and node.shape[d] == steps
    return whole and (weaving.get(read.name) != d or read.name in tree.padded)


def _make_read(
    tree: _Tree, graph: Graph, name: str, places: Sequence[int], along: int | None
) -> _Read:
    if along == ONE_STEP and name in tree.repeated:
        along = None
    shape = graph[name].shape
    own = (NONE if shape[d] == 1 and d != along else place for d, place in enumerate(places))
    return _Read(name, tuple(own), along)


def _list_operands(graph: Graph, node: Node, read: _Read, tree: _Tree) -> Iterator[_Read]:
    """How a tree reads the operands of one of its ops.  read: how it reads the op."""
    match node.attrs:
        case BroadcastAttrs(dimensions):
            along = dimensions.index(read.along) if read.along in dimensions else None
            if along is None and (read.along == ONE_STEP or node.shape[read.along or 0] == 1):
                along = ONE_STEP
            yield _make_read(
                tree, graph, node.operands[0], [read.places[d] for d in dimensions], along
            )
        case DimensionsAttrs(reduced) if OPS[node.op].is_reduce:
            shape, kept, places = graph[node.operands[0]].shape, iter(read.places), []
            rank = graph[tree.end].array.rank
            assert read.along is not None
            along = [d for d in range(len(shape)) if d not in reduced][read.along]
            for d, extent in enumerate(shape):
                before = sum(shape[i] != 1 for i in range(d) if i != along)
                new = rank + len(tree.summed)
                own = tree.summed.setdefault((before, extent), new) if d in reduced else next(kept)
                places.append(own)
            yield _make_read(tree, graph, node.operands[0], places, along)
        case _ if OPS[node.op].is_view:
            source = graph[node.operands[0]].shape
            pairs = _pair_dimensions(node.shape, source, read.along)
            places = [NONE] * len(source)
            for own, d in pairs.items():
                places[d] = read.places[own]
            along = None
            if read.along is not None:
                along = pairs.get(read.along, ONE_STEP)
            if along == ONE_STEP:
                along = _find_step(tree, graph, source)
                if along != ONE_STEP:
                    places[along] = tree.dimension
            yield _make_read(tree, graph, node.operands[0], places, along)
        case _:
            count = EVALUATED[node.op].operands or len(node.operands)
            for name in node.operands[:count]:
                yield _make_read(tree, graph, name, read.places, read.along)


def _find_step(tree: _Tree, graph: Graph, shape: tuple[int, ...]) -> int:
    """Which dimension of a single element is the one step, of which a reshape left it out."""
    single = [d for d, extent in enumerate(shape) if extent == 1]
    own = tree.dimension
    if len(shape) == graph[tree.end].array.rank and own in single:
        return own
    return single[0] if single else ONE_STEP


def _pair_dimensions(
    shape: tuple[int, ...], source: tuple[int, ...], along: int | None
) -> dict[int, int]:
    """Which dimensions of a reshape are which of its operand, where others are of single elements; else none.

    along: one that is paired also where it has a single element; where it may be several, that at its place.
    """
    own, others = ([d for d, extent in enumerate(s) if extent != 1] for s in (shape, source))
    if [shape[d] for d in own] != [source[d] for d in others]:
        return {}
    pairs = dict(zip(own, others, strict=True))
    if along is not None and along != ONE_STEP and shape[along] == 1:
        before = sum(d < along for d in own)
        least = others[before - 1] + 1 if before else 0
        most = others[before] if before < len(others) else len(source)
        if least < most:
            pairs[along] = min(max(along, least), most - 1)
    return pairs


def _acts_along(graph: Graph, node: Node, dimension: int) -> bool:
    """Is it an op of a tree, which leaves other dimensions as they are, repeats them or sums them up?"""
    if EVALUATED.get(node.op) is None:
        return False
    if OPS[node.op].is_view:
        source = graph[node.operands[0]].shape
        one = dimension == ONE_STEP or node.shape[dimension] == 1
        pairs = _pair_dimensions(node.shape, source, dimension)
        alike = math.prod(node.shape) == 1 or bool(pairs)
        return alike and (one or dimension in pairs)
    match node.attrs:
        case SliceAttrs(starts, _, strides):
            source = graph[node.operands[0]].shape
            others = (d for d in range(len(source)) if d != dimension)
            return all((starts[d], strides[d], node.shape[d]) == (0, 1, source[d]) for d in others)
        case PadAttrs(low, high, interior):
            edges = enumerate(zip(low, high, interior, strict=True))
            moved = any(any(edge) for d, edge in edges if d != dimension)
            number = read_splat(graph, node.operands[1])
            return not moved and number is not None and is_in_field(number)
        case DimensionAttrs(along):
            return along == dimension
        case DimensionsAttrs(dimensions) if OPS[node.op].is_reduce:
            single = len(node.operands) == 2 and is_zero(graph, node.operands[1])
            return single and monoid_of(node.regions[0]) == "add" and dimension != ONE_STEP
        case DimensionsAttrs(dimensions):
            return dimensions == (dimension,)
    return True


def _find_powers(graph: Graph, leaves: Mapping[str, _Read]) -> set[str]:
    """Products of what is the same at each step: of a factor repeated XLA makes powers before it repeats them."""
    repeated = {name for name, read in leaves.items() if read.along is None}
    if len(repeated) < 2:
        return set()
    found: set[str] = set()
    for name in (n for n in graph.nodes if n in repeated):
        waiting, inner = [name], set[str]()
        while waiting:
            node = graph[waiting.pop()]
            if node.name in found or (node.name in repeated and node.name != name):
                continue
            if OPS[node.op].combiner is not np.multiply:
                break
            inner.add(node.name)
            waiting += node.operands
        else:
            found |= inner
    return found


# ---- values in the field -----------------------------------------------------------------------------------------


class _Point:
    """A point at which a tree, and what it may be, are evaluated.  lanes: elements of each summed dimension."""

    def __init__(self, graph: Graph, tree: _Tree, lanes: int) -> None:
        self.tree, self.lanes = tree, lanes
        self.rank = graph[tree.end].array.rank
        self.steps = graph[tree.end].shape[tree.dimension]
        random = np.random.default_rng(lanes)
        self.leaves: dict[_Read, Vector] = {}
        for read in tree.leaves.values():
            shape = (*self._lanes_of(read.places), 1 if read.along is None else self.steps)
            self.leaves[read] = random.integers(0, PRIME, shape, dtype=np.uint64)
            for start, stop, number in list_numbers(graph, read.name, read.along):
                self.leaves[read][..., start:stop] = to_field(number)
        self.terms = self._evaluate(graph)
        self.scans: dict[_Scan, Vector] = {}

    def _lanes_of(self, places: Collection[int]) -> tuple[int, ...]:
        extra = range(self.rank, self.rank + len(self.tree.summed))
        return tuple(self.lanes if place in places else 1 for place in extra)

    def _evaluate(self, graph: Graph) -> dict[str, Vector]:
        """The terms; none where the tree holds numbers that the field does not."""
        values: dict[str, Vector] = {n: self.leaves[r] for n, r in self.tree.leaves.items()}
        for name, read in self.tree.nodes.items():
            node, d = graph[name], max(read.along or 0, 0)
            number = read_splat(graph, name)
            if name in self.tree.decays:
                one = self.leaves[self.tree.leaves[self.tree.decay]]
                values[name] = raise_to(one, self.tree.decays[name])
                continue
            if number is not None:
                if not is_in_field(number):
                    return {}
                steps = node.shape[d] if node.array.rank else 1
                values[name] = np.full(
                    (1,) * len(self.tree.summed) + (steps,), to_field(number), np.uint64
                )
                continue
            meaning = EVALUATED[node.op]
            operands = node.operands[: meaning.operands or len(node.operands)]
            value = meaning.run(node, d, [values[o] for o in operands])
            if OPS[node.op].is_reduce:
                value = self._sum(value, read.places)
            elif _is_pad(node):
                outside = read_splat(graph, node.operands[1])
                assert outside is not None
                inside = meaning.run(node, d, [np.ones_like(values[operands[0]])])
                value = value + (1 - inside) * np.uint64(to_field(outside))
            if read.along is not None and read.along != ONE_STEP:  # else one element says it all
                value = np.broadcast_to(value, (*value.shape[:-1], node.shape[d]))
            values[name] = value
        alone = (*(1,) * len(self.tree.summed), self.steps)
        return {term: np.broadcast_to(values[term], alone) for term in self.tree.terms}

    def _sum(self, x: Vector, kept: Collection[int]) -> Vector:
        """The sum over all lanes but of the dimensions that are kept."""
        for axis in range(len(self.tree.summed)):
            if self.rank + axis not in kept:
                x = (
                    np.broadcast_to(x, grow(x.shape, axis, self.lanes)).sum(axis, keepdims=True)
                    % PRIME
                )
        return x

    def total(self, x: Vector) -> Vector:
        """What a form gives for the result, of which no lanes are left."""
        return self._sum(x, ())

    @property
    def numbers(self) -> int:
        """Of a recurrence."""
        return int(self.lanes ** len(self.tree.summed)) * self.steps

    def scan(self, scan: _Scan) -> Vector:
        if scan not in self.scans:
            self.run([scan])
        return self.scans[scan]

    def run(self, scans: Sequence[_Scan]) -> None:
        """Evaluates recurrences side by side."""
        lanes = (self.lanes,) * len(self.tree.summed)
        shape = (len(scans), *lanes, self.steps)
        factors, added = np.empty(shape, np.uint64), np.zeros(shape, np.uint64)
        for number, scan in enumerate(scans):
            turn = slice(None, None, -1 if scan.backward else 1)
            a = np.ones(1, np.uint64) if scan.a is None else self.leaves[scan.a]
            factors[number] = (move_on(a, scan.backward, 0) if scan.shifted else a)[..., turn]
            if scan.b is not None:
                b = self.leaves[scan.b]
                if scan.delayed:
                    b = move_on(np.broadcast_to(b, shape[1:]), scan.backward, 0)
                added[number] = b[..., turn]
        start = np.array([scan.start for scan in scans], np.uint64)
        states = run_recurrences(factors, added, start.reshape(-1, *(1,) * len(lanes)))
        for number, scan in enumerate(scans):
            self.scans[scan] = states[number][..., :: -1 if scan.backward else 1]


# ---- what a tree may be ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scan:
    """h[t] = a[t] * h[t - 1] + b[t], or from the end backward.  Without a the running sum, without b the product.

    shifted: a is that of the step before; where it is the same at each step, that makes no difference.  What flows back
    through a scan to each b is a shifted one in the other direction.
    delayed: so is b, and the first one is zero.  What flows back from states of the step before.
    """

    a: _Read | None
    b: _Read | None
    backward: bool
    shifted: bool
    delayed: bool

    @property
    def start(self) -> int:
        """What stands before the first step."""
        return int(self.b is None)

    @property
    def scans(self) -> tuple[_Scan, ...]:
        return (self,)

    def evaluate(self, point: _Point) -> Vector:
        return point.total(point.scan(self))


@dataclass(frozen=True, slots=True)
class _Share:
    """flows[t] * h[t - 1]: what flows back to each a."""

    flows: _Scan
    states: _Scan

    @property
    def scans(self) -> tuple[_Scan, ...]:
        return (self.flows, self.states)

    def evaluate(self, point: _Point) -> Vector:
        before = move_on(point.scan(self.states), self.states.backward, self.states.start)
        return point.total(point.scan(self.flows) * before % PRIME)


@dataclass(frozen=True, slots=True)
class _Sum:
    """Of what flows back from h and from the running products."""

    first: _Share
    second: _Share

    @property
    def scans(self) -> tuple[_Scan, ...]:
        return (*self.first.scans, *self.second.scans)

    def evaluate(self, point: _Point) -> Vector:
        total: Vector = (self.first.evaluate(point) + self.second.evaluate(point)) % PRIME
        return total


_Form = _Scan | _Share | _Sum


@dataclass(frozen=True, slots=True)
class _Result:
    """order: the tree's dimensions, as the arrays of the form have them."""

    tree: _Tree
    form: _Form
    order: tuple[int, ...]


def _find_results(graph: Graph, weaving: Mapping[str, int]) -> Iterator[tuple[str, _Result]]:
    """The results of trees that are recurrences or their gradients, by name; the longest first.

    What is inside of one is no result of another.  Of a sum that is none, its terms may be.
    """
    order = {name: number for number, name in enumerate(graph.nodes)}

    def rank(name: str) -> tuple[int, int, str]:
        return -graph[name].shape[weaving[name]], -order[name], name

    ends = [rank(name) for name in weaving if _is_end(graph, name, weaving)]
    heapq.heapify(ends)
    inside, scans = set[str](), set[_Scan]()
    while ends:
        steps, _, name = heapq.heappop(ends)
        if name in inside or _is_pad(graph[name]) or -steps < LEAST_STEPS:
            continue
        result = _find_result(graph, name, weaving, scans)
        inside.add(name)
        if result:
            inside |= result.tree.nodes.keys()
            scans |= {*result.form.scans}
            yield name, result
        else:
            for operand in graph[name].operands:
                if operand in weaving:
                    heapq.heappush(ends, rank(operand))


def _find_result(
    graph: Graph, end: str, weaving: Mapping[str, int], made: Collection[_Scan]
) -> _Result | None:
    """made: scans of other results."""
    if _find_type(graph[end].dtype) is None:
        return None
    tree = _collect(graph, end, weaving[end], weaving)
    if tree is None:
        return None
    form = _find_form(graph, tree, made)
    if form is None:
        return None
    places = _find_order(graph, tree, form)
    return _Result(tree, form, places) if places else None


def _find_form(graph: Graph, tree: _Tree, made: Collection[_Scan]) -> _Form | None:
    """What a tree is.  Its terms are then those of the form, its others the rest."""
    points = [_Point(graph, tree, lanes) for lanes in LANES]
    scans = _list_scans(tree)
    first = points[0]
    if not first.terms or len(scans) * first.numbers > MOST_NUMBERS:
        return None
    together = max(NUMBERS_TOGETHER // first.numbers, 1)
    for number in range(0, len(scans), together):
        first.run(scans[number : number + together])
    edges = dict.fromkeys(term for term in tree.terms if not _is_woven(graph[term]))
    for left in (None, *edges):
        terms = [term for term in tree.terms if term != left]
        if not any(_is_woven(graph[term]) for term in terms):
            continue
        targets = [_add([point.terms[term] for term in terms]) for point in points]
        for form in _list_forms(scans, first, targets[0], made):
            found = zip(points, targets, strict=True)
            if all(np.array_equal(form.evaluate(point), target) for point, target in found):
                tree.others += [term for term in tree.terms if term == left]
                tree.terms = terms
                return form
    return None


def _is_woven(node: Node) -> bool:
    """Has it zeros between its elements?"""
    return isinstance(node.attrs, PadAttrs) and any(node.attrs.interior)


def _add(terms: Sequence[Vector]) -> Vector:
    total: Vector = np.asarray(np.sum(terms, 0, np.uint64) % PRIME)
    return total


def _list_scans(tree: _Tree) -> list[_Scan]:
    leaves = list(tree.leaves.values())
    either = (False, True)
    sums = [
        _Scan(None, b, backward, False, delayed)
        for delayed, b, backward in itertools.product(either, leaves, either)
    ]
    return sums + [
        _Scan(a, b, backward, shifted, delayed)
        for delayed, a, b in itertools.product(either, leaves, [None, *leaves])
        for backward, shifted in itertools.product(either, repeat=2)
        if a != b and not (shifted and (b is None or a.along is None))
        if not (delayed and b is None)
    ]


def _list_forms(
    scans: Sequence[_Scan], point: _Point, target: Vector, made: Collection[_Scan]
) -> Iterator[_Form]:
    """What a tree may be, the simplest first.  Of sums those that it is at a point."""
    yield from scans
    shares = [
        _Share(flows, states)
        for flows, states in itertools.product(scans, scans)
        if flows.a and flows.a == states.a and flows.backward is not states.backward
        if flows.b and flows.shifted is (flows.a.along is not None)
        if not (states.shifted or states.delayed) and flows.b != states.b
    ]
    shares.sort(key=lambda share: sum(scan not in made for scan in share.scans))
    yield from shares
    known = {share.evaluate(point).tobytes(): share for share in shares}
    for share in shares:
        rest = (target + PRIME - share.evaluate(point)) % PRIME
        if other := known.get(rest.tobytes()):
            yield _Sum(share, other)


def _find_order(graph: Graph, tree: _Tree, form: _Form) -> tuple[int, ...] | None:
    """The order of some array that the form reads and that has all dimensions: summed, they give the result's."""
    shape = graph[tree.end].shape
    own = [d for d, extent in enumerate(shape) if extent != 1 or d == tree.dimension]
    every = own + [place for (_, extent), place in tree.summed.items() if extent != 1]
    for scan in form.scans:
        for read in (scan.a, scan.b):
            places = tuple(place for place in read.places if place != NONE) if read else ()
            if sorted(places) == sorted(every):
                return places if [p for p in places if p in own] == own else None
    return None if tree.summed else tuple(every)


def _find_type(dtype: DType) -> DType | None:
    """The type in which a recurrence is computed."""
    if dtype.is_narrow_float:
        return DType.F32
    return dtype if dtype in TYPES else None


def _is_held(dtype: DType, result: DType) -> bool:
    """Does the type in which a recurrence is computed hold such numbers?

    Integers stay apart: they wrap around, and drop fractions.
    """
    wide = _find_type(result)
    number = dtype.is_float or dtype.is_complex
    return wide is not None and number and np.can_cast(dtype.numpy, wide.numpy)


def _drop_wasted(graph: Graph, found: dict[str, _Result]) -> None:
    """Drops results whose trees others need too: nothing would be spared."""
    while True:
        live = _find_live(graph, found) - found.keys()
        wasted = [
            name
            for name, result in found.items()
            if any(
                n in live and OPS[graph[n].op].combiner in (np.add, np.multiply)
                for n in result.tree.nodes
            )
        ]
        if not wasted:
            return
        for name in wasted:
            del found[name]


def _find_live(graph: Graph, found: Mapping[str, _Result]) -> set[str]:
    """What is computed where these results read their leaves alone."""
    live: set[str] = set()
    waiting = list(graph.outputs)
    while waiting:
        name = waiting.pop()
        if name not in live:
            live.add(name)
            result = found.get(name)
            if result is None:
                waiting += graph[name].operands
            else:
                waiting += [*result.tree.leaves, *result.tree.others]
    return live


# ---- how they are written ----------------------------------------------------------------------------------------


class _Put:
    """Writes the result of a tree.  values: of the graph's nodes in the draft."""

    def __init__(self, result: _Result, ops: DraftOps, values: Mapping[str, str]) -> None:
        self.result, self.ops, self.values = result, ops, values
        own = ops.origin.array
        extents = {place: extent for (_, extent), place in result.tree.summed.items()}
        self.shape = tuple(extents[p] if p in extents else own.shape[p] for p in result.order)
        self.along = result.order.index(result.tree.dimension)
        wide = _find_type(own.dtype)
        assert wide
        self.wide = wide

    def put(self) -> str:
        rank = self.ops.origin.array.rank
        value = self.put_form(self.result.form)
        summed = [d for d, place in enumerate(self.result.order) if place >= rank]
        if summed:
            value = self.ops.sum(value, summed)
        value = self.ops.convert(value, self.ops.origin.dtype)
        value = self.ops.reshape(value, self.ops.origin.shape)
        for other in self.result.tree.others:
            value = self.ops.both("add", value, self.values[other])
        return value

    def put_form(self, form: _Form) -> str:
        match form:
            case _Scan():
                return self.put_scan(form)
            case _Share(flows, states):
                before = self.move_on(self.put_scan(states), states.backward, states.start)
                return self.ops.both("multiply", self.put_scan(flows), before)
            case _Sum(first, second):
                return self.ops.both("add", self.put_form(first), self.put_form(second))

    def put_scan(self, scan: _Scan) -> str:
        running = Running(self.along, scan.backward)
        if scan.a is None:
            return put_running(self.ops, self.read_added(scan), running, "add", 0)
        a = self.read(scan.a)
        if scan.b is None and self.wide.is_complex:  # no number leaves each of them as it is
            zeros = self.ops.splat(0, self.wide, self.shape)
            return put_recurrence(self.ops, a, zeros, running, result=0)
        if scan.b is None:
            return put_running(self.ops, a, running, "multiply", 1)
        if scan.shifted:
            a = self.move_on(a, scan.backward, 0)
        elif scan.a.along is not None:
            a = self.clear_first(a, scan.backward)
        return put_recurrence(self.ops, a, self.read_added(scan), running)

    def read_added(self, scan: _Scan) -> str:
        assert scan.b
        b = self.read(scan.b)
        return self.move_on(b, scan.backward, 0) if scan.delayed else b

    def read(self, read: _Read) -> str:
        value = self.ops.convert(self.values[read.name], self.wide)
        if read.places == self.result.order:
            return value
        places = [self.result.order.index(place) for place in read.places if place != NONE]
        value = self.ops.reshape(value, [self.shape[d] for d in places])
        return self.ops.broadcast(value, self.shape, places)

    def clear_first(self, a: str, backward: bool) -> str:
        """The factors with a zero for the first one, which no tree reads: NaN there would reach each state."""
        place = self.shape[self.along] - 1 if backward else 0
        step = self.ops.add("iota", DType.S32, self.shape, (), IotaAttrs(self.along))
        first = self.ops.compare("EQ", step, self.ops.splat(place, DType.S32, self.shape))
        return self.ops.select(first, self.ops.splat(0, self.wide, self.shape), a)

    def move_on(self, x: str, backward: bool, start: int) -> str:
        """Each element where the next step is; the first step has `start`."""
        zeros = (0,) * len(self.shape)
        one = grow(zeros, self.along, 1)
        low, high = (zeros, one) if backward else (one, zeros)
        limits = [extent - cut for extent, cut in zip(self.shape, low, strict=True)]
        kept = self.ops.cut(x, high, limits)
        filled = self.ops.splat(start, self.wide, ())
        attrs = PadAttrs(low, high, zeros)
        return self.ops.add("pad", self.wide, self.shape, (kept, filled), attrs)
