"""Scope -> the fusions that XLA would make of its ops, roughly: what a stitch op must not be slower than.

XLA gives a producer to all its readers where that projects faster (PriorityFusion): each of them computes it again.  A
reduction is the end of a fusion, but for what follows it at its own places.  Then fusions that read the same
array, or of which one reads the other, become one with several results.  The prices here are light: traffic, operations
and launches.  What the kernels of these fusions take is projected as of other parts of a scope.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import islice

from astitch.cost.projected_latency import COLD_CODE_US, KEPT_BY_L2
from astitch.cost.speed_of_light import count_flops
from astitch.device.gpu import Gpu
from astitch.graph.dimensions import array_of, is_embedded
from astitch.graph.ir import DimensionsAttrs, Graph, Node, TransposeAttrs
from astitch.graph.ops import OPS, Kind
from astitch.graph.running import is_running
from astitch.search.patterns import (
    FusionGraph,
    Value,
    each_vertex,
    make_fusion_graph,
    repeated_ops,
)
from astitch.stitch_scope import Scope

MOST_OPERANDS = 96
"""Arrays that a fusion of XLA's reads and writes at most (MaxOperandsAndOutputsPerFusion)."""

LEAST_TURNED = 16
"""Rows and columns from which on XLA transposes in tiles of shared memory (kMinDimensionToTransposeTiled)."""

MOST_COPIES = 24
"""How often a fusion may compute one element of an op, per element of its result (XLA bounds its code alike)."""

MOST_VERTICES = 128
"""Ops of a fusion, beyond which XLA does not look at it either (its code would be too large)."""

INDEX_FLOPS = 32
"""Operations of a read at another place than the result's own: its index, whether it is outside, the wait for it.
With 2 to 16 the fusions of an associative scan's gradient project 1.3 to 18 times slower, with 64 or 128 up to 1.3."""

READING_FACTOR = 1.15
"""Reads that no write is paired with are faster than a copy, at most by this factor."""

EFFORT = 1_000_000
"""Visits of vertices, about 2 us each, beyond which no fusions are proposed.  An optimizer's 900 ops take 18,000, the
gradient of an associative scan of 10 levels 260,000, of logarithms 430,000."""

DEAR = 2.5
"""So many times counts a kernel that its readers may spare, where memory is short.  By 4 the readers grow too long to
be looked at in a multigrid solver."""

MOST_REORDERED = 400
"""Ops of a scope whose fusions are joined in both orders.  To draft the kernels of one proposal more takes seconds for
larger ones: an Euler solver of 2,400 ops compiled in 39 s with both, in 30 with one."""


@dataclass(frozen=True, slots=True)
class Edge:
    """What a vertex reads.  value: its number in the FusionGraph, producer: its vertex or -1.
    each: elements read for one of the vertex's own.  moved: at other places.  shifted: not only as a broadcast's.
    bytes: of an element."""

    value: int
    producer: int
    each: float
    moved: bool
    shifted: bool
    bytes: int


@dataclass(frozen=True, slots=True)
class Vertex:
    """size, shape: of its result; a reduction walks over an array of shape `walked`, and over its dimensions `along`.
    flops: for each element.  ends: no reader may compute it again, as a reduction.
    shifts: does it only have what it reads at other places?  turns: does it read columns as rows?"""

    size: int
    shape: tuple[int, ...]
    walked: tuple[int, ...]
    along: tuple[int, ...]
    flops: float
    ends: bool
    shifts: bool
    turns: bool
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """fusions: each a bit set of vertices, in an order in which they can run; a vertex may be in several.
    least_us: what their kernels take at least, all together."""

    fusions: tuple[int, ...]
    least_us: float


def propose_each(
    graph: Graph,
    scope: Scope,
    fusion: FusionGraph,
    gpu: Gpu,
    stored: Set[str] = frozenset(),
) -> tuple[Proposal, ...]:
    """The fusions that XLA would make, the same joined in another order, and those that end at what one kernel would
    store; of each, if there are several.

    fusion: make_fusion_graph of the scope.  stored: the ops whose values that kernel keeps in global memory.
    """
    found: dict[tuple[int, ...], Proposal] = {}
    prices: Prices = {}
    orders = 2 if len(scope.members) <= MOST_REORDERED else 1
    for ends in dict.fromkeys([frozenset[str](), frozenset(stored)]):
        for proposal in islice(propose(graph, scope, fusion, gpu, ends, prices=prices), orders):
            if len(proposal.fusions) > 1:
                found.setdefault(proposal.fusions, proposal)
    return tuple(found.values())


def propose_thrifty(graph: Graph, scope: Scope, gpu: Gpu) -> tuple[Proposal, ...]:
    """XLA's fusions if launches and memory were dearer: readers compute again what memory would hold.  None where it
    would take too long to find them, or they are one."""
    fusion = make_fusion_graph(graph, scope, gpu)
    found = islice(propose(graph, scope, fusion, gpu, dear=DEAR), 1)
    return tuple(proposal for proposal in found if len(proposal.fusions) > 1)


def propose(
    graph: Graph,
    scope: Scope,
    fusion: FusionGraph,
    gpu: Gpu,
    stored: Set[str] = frozenset(),
    dear: float = 1.0,
    prices: Prices | None = None,
) -> Iterator[Proposal]:
    """The fusions joined as XLA does, from the last value to the first; then in the order in which values are read.

    XLA's own order joins steps of a stencil with what they read, where the other leaves them apart.  Nothing where it
    would take too long to find them.  stored: ops that no reader computes again.  dear: so many times counts the kernel
    of a fusion that its readers may compute; above 1 where memory is short.  prices: those that searches share in which
    only `stored` and `dear` differ.
    """
    search = _Fusing(fusion, read_vertices(graph, scope, fusion), gpu, stored, dear, prices)
    try:
        search.give_to_readers()
        given = search.copy_state()
        for values in (sorted(fusion.values, key=_place, reverse=True), fusion.values):
            search.restore_state(given)
            search.join_neighbours(values)
            yield Proposal(search.in_order(), sum(map(search.least_us, search.inside)))
    except _TooLong:
        return


Prices = dict[tuple[int, int], tuple[float, float]]
"""Of vertices and those of them that are stored, as bit sets: us, and bytes read for the first time or written."""


class _TooLong(Exception):
    """More than EFFORT."""


def read_vertices(graph: Graph, scope: Scope, fusion: FusionGraph) -> tuple[Vertex, ...]:
    """What the search needs of each vertex."""
    home = {name: v for v, names in enumerate(fusion.members) for name in names}
    repeated = repeated_ops(graph, scope)
    numbers: dict[tuple[int, int], int] = {}  # (producer, reader) -> value
    inputs: dict[int, list[int]] = {}
    for number, value in enumerate(fusion.values):
        for reader in each_vertex(value.readers):
            if value.producer >= 0:
                numbers.setdefault((value.producer, reader), number)
            else:
                inputs.setdefault(reader, []).append(number)
    found = []
    for vertex, names in enumerate(fusion.members):
        node = _main_op(graph, names)
        edges: list[Edge] = []
        turns = _turns(graph, node)
        for reached in _list_read(graph, node, repeated):
            turns = turns or reached.turned
            producer = home.get(reached.name, -1)
            if producer == vertex or (producer, vertex) not in numbers:
                continue
            number = numbers[producer, vertex]
            size = array_of(graph[reached.name]).dtype.bytes
            edges.append(Edge(number, producer, reached.each, reached.moved, reached.shifted, size))
        for number in inputs.get(vertex, ()):
            value = fusion.values[number]
            each = value.read_bytes / max(array_of(node).size, 1)
            edges.append(Edge(number, -1, each, False, False, 1))
        found.append(_describe(graph, node, names, tuple(edges), turns))
    return tuple(found)


def _main_op(graph: Graph, names: Iterable[str]) -> Node:
    """The op of a vertex beside its projections and views."""
    nodes = [graph[name] for name in names]
    for node in nodes:
        if OPS[node.op].kind is not Kind.PROJECTION and not OPS[node.op].is_view:
            return node
    return nodes[0]


def _turns(graph: Graph, node: Node) -> bool:
    """Is it a transpose for which XLA has tiles in shared memory: of other columns, and not of a few?"""
    if not isinstance(node.attrs, TransposeAttrs):
        return False
    source, last = array_of(graph[node.operands[0]]), node.attrs.permutation[-1]
    if last == source.rank - 1:
        return False
    return min(source.shape[last], source.shape[-1]) >= LEAST_TURNED


def _describe(
    graph: Graph, node: Node, names: Iterable[str], edges: tuple[Edge, ...], turns: bool
) -> Vertex:
    array = array_of(node)
    op = OPS[node.op]
    walked = array.shape
    along = tuple(node.attrs.dimensions) if isinstance(node.attrs, DimensionsAttrs) else ()
    flops = float(count_flops(node))
    if op.is_reduce:
        source = array_of(graph[node.operands[0]])
        walked = source.shape
        flops *= source.size / max(array.size, 1)
    flops += INDEX_FLOPS * op.reindexes
    ends = op.is_reduce or op.kind is Kind.OTHER or any(is_running(graph, n) for n in names)
    return Vertex(array.size, array.shape, walked, along, flops, ends, op.reindexes, turns, edges)


@dataclass(frozen=True, slots=True)
class _Reached:
    name: str
    each: float
    moved: bool
    shifted: bool
    turned: bool


def _list_read(graph: Graph, node: Node, repeated: Set[str]) -> Iterator[_Reached]:
    """What an op reads, behind the ops that every kernel repeats."""
    waiting = [_Reached(node.name, 1.0, False, False, False)]
    while waiting:
        at = waiting.pop()
        reader = graph[at.name]
        row = OPS[reader.op]
        size = max(array_of(reader).size, 1)
        for number, operand in enumerate(reader.operands):
            if is_embedded(graph, operand):
                continue
            sizes = [array_of(graph[o]).size for o in reader.operands]
            each = 1.0 if row.is_broadcast else row.needed(size, sizes, size, number) / size
            if row.chooses:
                each = min(each, sizes[number] / size)
            moved = at.moved or row.reindexes or row.is_broadcast
            turned = at.turned or _turns(graph, reader)
            shifted = at.shifted or row.reindexes
            reached = _Reached(operand, at.each * each, moved, shifted, turned)
            if operand in repeated:
                waiting.append(reached)
            else:
                yield reached


def _place(value: Value) -> float:
    """When a value is computed; what a scope reads comes right before its first reader."""
    first = next(each_vertex(value.readers), 0)
    return value.producer if value.producer >= 0 else first - 0.5


def find_least_us(moved: float, gpu: Gpu) -> float:
    """What no kernel that moves so many bytes stays below.  Few are in the L2, as projections take them to be."""
    in_l2 = moved <= KEPT_BY_L2 * gpu.l2_bytes
    speed = gpu.l2_gbs if in_l2 else gpu.bandwidth_gbs * READING_FACTOR
    return moved / speed / 1e3 + gpu.launch_us + COLD_CODE_US


@dataclass(frozen=True, slots=True)
class _State:
    """The fusions of a search at some time; see _Fusing."""

    inside: dict[int, int]
    results: dict[int, int]
    reads: dict[int, set[int]]
    readers: dict[int, set[int]]


class _Fusing:
    """The search.  A fusion has a number; its vertices and its results are bit sets."""

    def __init__(
        self,
        fusion: FusionGraph,
        vertices: tuple[Vertex, ...],
        gpu: Gpu,
        stored: Set[str] = frozenset(),
        dear: float = 1.0,
        prices: Prices | None = None,
    ) -> None:
        self.fusion, self.vertices, self.gpu, self.dear = fusion, vertices, gpu, dear
        self.inside = {v: 1 << v for v in range(len(vertices))}
        self.results = dict(self.inside)
        self.escaping = {
            v for v, made in enumerate(fusion.makes) if any(fusion.values[n].escapes for n in made)
        }
        self.stored = {v for v, m in enumerate(fusion.members) if not stored.isdisjoint(m)}
        self.escaping |= self.stored
        self.reads: dict[int, set[int]] = {
            v: {e.producer for e in vertex.edges if e.producer >= 0}
            for v, vertex in enumerate(vertices)
        }
        self.readers: dict[int, set[int]] = {v: set() for v in self.inside}
        for v, producers in self.reads.items():
            for producer in producers:
                self.readers[producer].add(v)
        self.rows = [
            (
                float(vertex.size),
                vertex.flops,
                [
                    (
                        e.producer,
                        1 << e.producer if e.producer >= 0 else 0,
                        e.value,
                        e.each,
                        e.bytes,
                        e.moved,
                    )
                    for e in vertex.edges
                ],
                sum(fusion.values[n].bytes for n in made),
            )
            for vertex, made in zip(vertices, fusion.makes, strict=True)
        ]  # what `measure` asks of each vertex, which runs some 100,000 times
        self.asked: set[tuple[int, int]] = set()
        self.prices: Prices = {} if prices is None else prices
        self.gains: dict[int, dict[int, float]] = {}  # by producer and reader, while neither grows
        self.effort = 0

    # ---- prices

    def time_us(self, inside: int, results: int) -> float:
        """The speed of light of a fusion, in which each read beyond the first comes from the L2."""
        return self.measure_once(inside, results)[0]

    def least_us(self, f: int) -> float:
        """What no kernel for a fusion stays below."""
        return find_least_us(self.measure_once(self.inside[f], self.results[f])[1], self.gpu)

    def measure_once(self, inside: int, results: int) -> tuple[float, float]:
        """(time_us, bytes that are read for the first time or written)."""
        key = inside, results
        if key not in self.asked:
            self.asked.add(key)
            self.count_effort(inside.bit_count())
        if key not in self.prices:
            self.prices[key] = self.measure(inside, results)
        return self.prices[key]

    def count_effort(self, vertices: int) -> None:
        """Searches that share prices give up at the same place as alone."""
        if vertices <= MOST_VERTICES:
            self.effort += vertices
            if self.effort > EFFORT:
                raise _TooLong

    def measure(self, inside: int, results: int) -> tuple[float, float]:
        several = inside.bit_count()
        if several > MOST_VERTICES:
            return math.inf, math.inf
        same: dict[int, float] = {}  # evaluations at the place of the result, at other places
        other: dict[int, float] = {}
        read: dict[int, float] = {}
        flops = written = 0.0
        waiting = inside
        while waiting:  # readers first
            v = waiting.bit_length() - 1
            waiting ^= 1 << v
            size, of_each, edges, stored = self.rows[v]
            count = same.get(v, 0.0)
            if results >> v & 1:
                count = max(count, size)
                written += stored
            count += other.get(v, 0.0)
            if count > MOST_COPIES * size and several > 1:
                return math.inf, math.inf
            flops += of_each * count
            for producer, bit, value, each, width, moved in edges:
                if not inside & bit:
                    read[value] = read.get(value, 0.0) + count * each * width
                elif moved:
                    other[producer] = other.get(producer, 0.0) + count * each
                else:
                    same[producer] = max(same.get(producer, 0.0), count * each)
        if len(read) + results.bit_count() > MOST_OPERANDS:
            return math.inf, math.inf
        once = sum(min(b, self.fusion.values[n].read_bytes) for n, b in read.items())
        again = sum(read.values()) - once
        memory_us = (once + written) / self.gpu.bandwidth_gbs + again / self.gpu.l2_gbs
        compute_us = flops / (self.gpu.fp32_gflops / 2)
        light_us = max(memory_us, compute_us) / 1e3 + self.gpu.launch_us
        return light_us, once + written

    def now_us(self, f: int) -> float:
        return self.time_us(self.inside[f], self.results[f])

    # ---- producers into readers

    def may_give(self, f: int) -> bool:
        """May all readers of a fusion compute it, so that it is no kernel any more?"""
        readers = self.readers[f]
        if not readers or f in self.escaping:
            return False
        if not any(self.vertices[v].ends for v in each_vertex(self.inside[f])):
            return True
        if len(readers) > 1:
            return False
        (reader,) = readers
        return all(self.stands_behind(v, f) for v in each_vertex(self.inside[reader]))

    def stands_behind(self, v: int, f: int) -> bool:
        """Is a vertex a few operations at the places of a reduction's result?"""
        vertex = self.vertices[v]
        moved = any(edge.moved and edge.producer == f for edge in vertex.edges)
        return not vertex.ends and not moved and vertex.size == self.vertices[f].size

    def gain_us(self, f: int) -> float:
        """What it saves that the readers of a fusion compute it."""
        if not self.may_give(f):
            return 0.0
        gain = self.dear * self.now_us(f)
        known = self.gains.setdefault(f, {})
        for reader in self.readers[f]:
            if reader not in known:
                both = self.inside[reader] | self.inside[f]
                known[reader] = self.now_us(reader) - self.time_us(both, self.results[reader])
            gain += known[reader]
        return gain

    def give_to_readers(self) -> None:
        """PriorityFusion: the producer that saves most is given to its readers, until none saves anything."""
        versions = dict.fromkeys(self.inside, 0)
        queue: list[tuple[float, int, int]] = []

        def push(f: int) -> None:
            versions[f] += 1
            gain = self.gain_us(f)
            if gain > 0:
                heapq.heappush(queue, (-gain, f, versions[f]))

        for f in list(self.inside):
            push(f)
        while queue:
            _, f, version = heapq.heappop(queue)
            if f not in self.inside or version != versions[f]:
                continue
            changed = set(self.readers[f])
            self.give(f)
            for reader in list(changed):
                changed |= self.reads[reader]
            for other in sorted(changed):
                push(other)

    def give(self, f: int) -> None:
        for reader in self.readers[f]:
            self.gains.pop(reader, None)
            for producer in self.reads[reader]:
                self.gains.get(producer, {}).pop(reader, None)
            self.inside[reader] |= self.inside[f]
            self.reads[reader] |= self.reads[f]
            self.reads[reader].discard(f)
        for producer in self.reads[f]:
            self.readers[producer].discard(f)
            self.readers[producer] |= self.readers[f]
        for each in (self.inside, self.results, self.reads, self.readers):
            del each[f]

    # ---- fusions with several results

    def walked(self, f: int) -> tuple[int, ...]:
        """The shape of the loop of a fusion."""
        shapes = [self.vertices[v] for v in each_vertex(self.inside[f])]
        reductions = [v.walked for v in shapes if v.ends]
        return reductions[0] if reductions else self.vertices[f].shape

    def along(self, f: int) -> set[tuple[int, ...]]:
        """The dimensions that it reduces."""
        inside = [self.vertices[v] for v in each_vertex(self.inside[f])]
        return {vertex.along for vertex in inside if vertex.ends}

    def copy_state(self) -> _State:
        reads = {f: {*others} for f, others in self.reads.items()}
        readers = {f: {*others} for f, others in self.readers.items()}
        return _State(dict(self.inside), dict(self.results), reads, readers)

    def restore_state(self, state: _State) -> None:
        self.inside, self.results = dict(state.inside), dict(state.results)
        self.reads = {f: {*others} for f, others in state.reads.items()}
        self.readers = {f: {*others} for f, others in state.readers.items()}

    def join_neighbours(self, values: Iterable[Value]) -> None:
        """MultiOutputFusion: fusions of one loop that read one array, or of which one reads the other.

        In XLA, values that are computed late come first: an updated cache joins the reduction that reads it.  Else it
        would join the update of another cache, and the reduction would read it from memory.
        """
        for value in values:
            by_shape: dict[tuple[int, ...], list[int]] = {}
            made = value.producer if value.producer in self.inside else None
            readers = [f for f in self.inside if self.reads_value(f, value.producer, value.readers)]
            for f in [*([made] if made is not None else []), *sorted(readers)]:
                by_shape.setdefault(self.walked(f), []).append(f)
            for alike in by_shape.values():
                first = alike[0]
                for f in alike[1:]:
                    self.join(first, f)

    def reads_value(self, f: int, producer: int, readers: int) -> bool:
        if producer >= 0:
            return producer in self.reads[f]
        return bool(self.inside[f] & readers)

    def join(self, a: int, b: int) -> None:
        """One fusion with the results of both, where that saves something and closes no circle."""
        if self.leads(a, b) or self.leads(b, a):
            return
        if self.ends(a) and self.ends(b) and self.along(a) != self.along(b):
            return  # reductions over different dimensions
        if self.ends(a) != self.ends(b) and self.turns(b if self.ends(a) else a):
            return  # a kernel has the tiles of a transpose, or the threads of a reduction
        if b in self.reads[a] or (a in self.reads[b] and self.ends(a)):
            return  # a reduction's result is not known in its own fusion
        if self.reads_stored(a, b) or self.reads_stored(b, a):
            return
        inside = self.inside[a] | self.inside[b]
        results = self.results[a] | self.results[b]
        if self.now_us(a) + self.now_us(b) <= self.time_us(inside, results):
            return
        self.inside[a], self.results[a] = inside, results
        self.reads[a] = (self.reads[a] | self.reads[b]) - {a, b}
        self.readers[a] = (self.readers[a] | self.readers[b]) - {a, b}
        for producer in self.reads[b] - {a, b}:
            self.readers[producer].discard(b)
            self.readers[producer].add(a)
        for reader in self.readers[b] - {a, b}:
            self.reads[reader].discard(b)
            self.reads[reader].add(a)
        for each in (self.inside, self.results, self.reads, self.readers):
            del each[b]

    def reads_stored(self, reader: int, f: int) -> bool:
        """Does one fusion read at other places what another stores, so that one for both would compute it again?"""
        edges = (e for v in each_vertex(self.inside[reader]) for e in self.vertices[v].edges)
        return any(
            e.moved and e.producer in self.stored and self.inside[f] >> e.producer & 1
            for e in edges
        )

    def turns(self, f: int) -> bool:
        return any(self.vertices[v].turns for v in each_vertex(self.inside[f]))

    def ends(self, f: int) -> bool:
        return any(self.vertices[v].ends for v in each_vertex(self.inside[f]))

    def leads(self, a: int, b: int) -> bool:
        """Is there a way from a to b through others?"""
        waiting = [f for f in self.readers[a] if f != b]
        seen = set(waiting)
        while waiting:
            f = waiting.pop()
            self.effort += 1
            if f == b:
                return True
            more = self.readers[f] - seen
            seen |= more
            waiting += more
        return False

    def in_order(self) -> tuple[int, ...]:
        waits = {f: len(self.reads[f]) for f in self.inside}
        ready = [f for f, count in waits.items() if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            f = heapq.heappop(ready)
            order.append(self.inside[f])
            for reader in self.readers[f]:
                waits[reader] -= 1
                if not waits[reader]:
                    heapq.heappush(ready, reader)
        return tuple(order)
