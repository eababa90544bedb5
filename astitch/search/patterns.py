"""Scope -> FusionGraph: the vertices that may share a kernel, the values between them, and what sharing saves.

A vertex is what every kernel keeps together; broadcasts, reshapes and conversions to wider types are none, each kernel
that reads one repeats it.
A Pattern is a set of vertices with what is known of it; two patterns are joined by adding the vertices of the smaller
one by one, so that a search over patterns stays near linear.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from astitch.cost.speed_of_light import count_needed
from astitch.device.gpu import Gpu
from astitch.graph.dimensions import array_of, is_embedded
from astitch.graph.ir import ArrayType, DimensionsAttrs, Graph, Node
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.windows import find_running
from astitch.graph.storage import storage_name, storage_type, stored_value
from astitch.stitch_scope import Scope

REDUCE_STATEMENTS, TRAFFIC_STATEMENTS = 12, 4
"""Statements that a reduce, and a value read from or written to memory, add to a kernel (an op: 1)."""

MOST_REPEATED = 16
"""Ops of single elements that each block may compute for itself: a learning rate, no norm over hundreds of arrays."""

BARRIERS_PER_LEVEL = 1
"""Global barriers that a kernel saves by leaving out the readers of a reduction over many blocks.  The one between the
partials and their sum stays."""

MAX_CLOSED = 32
"""A pattern that would be cyclic takes in the vertices on the path that leaves it, up to this many, or is dropped."""

LOCAL_ROW = 1024
"""Elements that one block reduces whatever the number of rows."""


@dataclass(frozen=True, slots=True)
class Value:
    """What a vertex leaves for others.  producer: its vertex, or -1 for an input of the scope.  bytes: to write it.
    read_bytes: what one kernel reads of it.  readers: bit set of vertices.  escapes: needed outside of the scope.
    buffer: its storage name."""

    producer: int
    bytes: int
    read_bytes: int
    readers: int
    escapes: bool
    buffer: str


@dataclass(frozen=True)
class FusionGraph:
    """Vertices in topological order; a set of vertices is an int with bit v for vertex v.

    members: the ops of each vertex.  consumers: vertices that read it.  above, below: all that it depends on, all that
    depend on it.  reads, makes: numbers of values.  launches: 0 for a vertex of views, which needs no kernel.
    statements: size of its code.  levels: bit set, how many reductions over many blocks come before.
    """

    members: tuple[tuple[str, ...], ...]
    consumers: tuple[tuple[int, ...], ...]
    above: tuple[int, ...]
    below: tuple[int, ...]
    values: tuple[Value, ...]
    reads: tuple[tuple[int, ...], ...]
    makes: tuple[tuple[int, ...], ...]
    launches: tuple[int, ...]
    statements: tuple[int, ...]
    levels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.members)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A set of vertices that no path leaves and enters again, and what one kernel for it is.

    vertices, above, below, levels: bit sets.  saved_bytes: traffic that a kernel for each vertex would have more.
    launches: kernels that those would be.  ops: members.  statements: size of the code.
    """

    vertices: int
    above: int
    below: int
    saved_bytes: int
    launches: int
    ops: int
    statements: int
    levels: int

    @property
    def size(self) -> int:
        return self.vertices.bit_count()

    @property
    def global_barriers(self) -> int:
        """Estimated from the levels that it spans."""
        return BARRIERS_PER_LEVEL * max(self.levels.bit_count() - 1, 0)


Penalty = Callable[[Pattern], float]
"""What one kernel costs beyond its traffic and its launch, in us; infinite for one that must not be made."""


def each_vertex(vertices: int) -> Iterator[int]:
    """The numbers in a bit set, in order."""
    while vertices:
        lowest = vertices & -vertices
        yield lowest.bit_length() - 1
        vertices ^= lowest


def to_bits(numbers: Iterable[int]) -> int:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


def make_pattern(fusion: FusionGraph, vertex: int) -> Pattern:
    """The pattern of one vertex."""
    return Pattern(
        1 << vertex,
        fusion.above[vertex],
        fusion.below[vertex],
        0,
        fusion.launches[vertex],
        len(fusion.members[vertex]),
        fusion.statements[vertex],
        fusion.levels[vertex],
    )


def add_vertices(fusion: FusionGraph, pattern: Pattern, more: int) -> Pattern:
    """The pattern with the vertices of `more`, none of which it has; not checked for cycles."""
    inside, saved = pattern.vertices, pattern.saved_bytes
    above, below, levels = pattern.above, pattern.below, pattern.levels
    launches, ops, statements = pattern.launches, pattern.ops, pattern.statements
    for vertex in each_vertex(more):
        bit = 1 << vertex
        for number in fusion.reads[vertex]:
            value = fusion.values[number]
            shared = value.readers & inside
            if value.producer >= 0 and inside >> value.producer & 1:
                saved += value.read_bytes
                if not value.escapes and shared | bit == value.readers:
                    saved += value.bytes
            elif shared:
                saved += value.read_bytes
        for number in fusion.makes[vertex]:
            value = fusion.values[number]
            shared = value.readers & inside
            if shared:
                saved += value.read_bytes
                if not value.escapes and shared == value.readers:
                    saved += value.bytes
        inside |= bit
        above |= fusion.above[vertex]
        below |= fusion.below[vertex]
        levels |= fusion.levels[vertex]
        launches += fusion.launches[vertex]
        ops += len(fusion.members[vertex])
        statements += fusion.statements[vertex]
    return Pattern(inside, above, below, saved, launches, ops, statements, levels)


def join_patterns(fusion: FusionGraph, a: Pattern, b: Pattern) -> Pattern | None:
    """The smallest pattern that holds both; None if closing it takes too many vertices."""
    left, right = a.vertices & ~b.vertices, b.vertices & ~a.vertices
    if left.bit_count() < right.bit_count():
        a, right = b, left
    joined = add_vertices(fusion, a, right) if right else a
    between = joined.above & joined.below & ~joined.vertices
    if not between:
        return joined
    if between.bit_count() > MAX_CLOSED:
        return None
    return add_vertices(fusion, joined, between)


# ---- from a scope ------------------------------------------------------------------------------------


def repeated_ops(graph: Graph, scope: Scope) -> frozenset[str]:
    """Members that every kernel repeats for its own readers, and that nobody outside needs.

    Broadcasts, views and conversions to types as wide or wider: what they are made of takes no more memory.
    Single elements, by a few ops from what the scope reads: all blocks would wait for the one that has them.
    """
    kept = {*scope.outputs, *(stored_value(graph, output) for output in scope.outputs)}
    members = frozenset(scope.members)
    single: dict[str, frozenset[str]] = {}  # with the ops that it is computed by
    repeated: set[str] = set()
    for name in scope.members:
        node = graph[name]
        if name in kept or not graph.users[name] or is_embedded(graph, name):
            continue
        behind = _find_single_ops(node, single, members)
        if 0 < len(behind) <= MOST_REPEATED:
            single[name] = behind
        elif OPS[node.op].kind is not Kind.BROADCAST and not _takes_no_more(graph, node):
            continue
        repeated.add(name)
    return frozenset(repeated)


def _find_single_ops(
    node: Node, single: Mapping[str, frozenset[str]], members: Set[str]
) -> frozenset[str]:
    """The ops of single elements that compute a single element; none where other ops take part."""
    op = OPS[node.op]
    element_wise = op.kind is Kind.ELEMENTWISE or op.is_view
    if not element_wise or not isinstance(node.type, ArrayType) or node.type.size != 1:
        return frozenset()
    if any(o in members and o not in single for o in node.operands):
        return frozenset()
    return frozenset({node.name}).union(*(single[o] for o in node.operands if o in single))


def _takes_no_more(graph: Graph, node: Node) -> bool:
    """Is it a reshape, or a conversion, of what takes no more memory?"""
    if OPS[node.op].is_conversion:
        return graph[node.operands[0]].dtype.bytes <= node.dtype.bytes
    return OPS[node.op].is_view


def make_fusion_graph(graph: Graph, scope: Scope, gpu: Gpu) -> FusionGraph:
    """The vertices of a scope: each op, but a reduce with its projections, and a value with its views, is one."""
    repeated = repeated_ops(graph, scope)
    ops = [name for name in scope.members if name not in repeated]
    views = frozenset(
        n for n in ops if OPS[graph[n].op].is_view and stored_value(graph, n) not in scope.members
    )
    vertex_of: dict[str, int] = {}
    members: list[list[str]] = []
    for name in ops:
        node = graph[name]
        projection = OPS[node.op].kind is Kind.PROJECTION
        base = node.operands[0] if projection else stored_value(graph, name)
        if base in vertex_of:
            vertex_of[name] = vertex_of[base]
        else:
            vertex_of[name] = len(members)
            members.append([])
        members[vertex_of[name]].append(name)
    escaping = {storage_name(graph, output) for output in scope.outputs}
    drafts: dict[str, _Draft] = {}
    edges: list[dict[int, None]] = [{} for _ in members]  # producers of each vertex
    levels = [0] * len(members)
    meets = [any(_meets_globally(graph[n], graph, gpu) for n in names) for names in members]
    for name in ops:
        node = graph[name]
        vertex = vertex_of[name]
        for number, operand in enumerate(node.operands):
            if is_embedded(graph, operand):
                continue
            needed = count_needed(graph, node, number, array_of(node).size)
            while operand in repeated:
                needed = count_needed(graph, graph[operand], 0, needed)
                operand = graph[operand].operands[0]
            if is_embedded(graph, operand) or vertex_of.get(operand) == vertex:
                continue
            if operand in vertex_of:
                producer = vertex_of[operand]
                edges[vertex][producer] = None
                levels[vertex] = max(levels[vertex], levels[producer] + meets[producer])
            stored = storage_name(graph, operand)
            owner = -1 if operand in views else vertex_of.get(operand, -1)
            draft = drafts.setdefault(stored, _Draft(owner, storage_type(graph, stored).bytes))
            draft.readers |= 1 << vertex
            element = storage_type(graph, stored).dtype.bytes
            draft.read_bytes = max(draft.read_bytes, min(needed * element, draft.bytes))
    for output in scope.outputs:
        if output not in views and not is_embedded(graph, output):
            stored = storage_name(graph, output)
            drafts.setdefault(stored, _Draft(vertex_of[output], storage_type(graph, stored).bytes))
    _move_to_readers(levels, edges, meets)
    statements = [sum(_count_statements(graph[n]) for n in names) for names in members]
    for stored, draft in drafts.items():
        if draft.producer < 0 and draft.readers:
            statements[next(each_vertex(draft.readers))] += TRAFFIC_STATEMENTS
        elif stored in escaping:
            statements[draft.producer] += TRAFFIC_STATEMENTS
    return _assemble(
        members,
        edges,
        [
            Value(d.producer, d.bytes, d.read_bytes, d.readers, stored in escaping, stored)
            for stored, d in drafts.items()
        ],
        [int(not views.issuperset(names)) for names in members],
        statements,
        [1 << level for level in levels],
    )


@dataclass(slots=True)
class _Draft:
    producer: int
    bytes: int
    readers: int = 0
    read_bytes: int = 0


def estimate_statements(graph: Graph, scope: Scope) -> int:
    """Length of the code of one kernel for the scope, without what it reads and writes."""
    return sum(_count_statements(graph[name]) for name in scope.members)


def _meets_globally(node: Node, graph: Graph, gpu: Gpu) -> bool:
    """A reduce whose readers in the same kernel wait for other blocks: over columns, or over few long rows."""
    if not OPS[node.op].is_reduce or not isinstance(node.attrs, DimensionsAttrs):
        return False
    source = array_of(graph[node.operands[0]])
    if source.size <= LOCAL_ROW:
        return False
    minor = max((d for d, extent in enumerate(source.shape) if extent != 1), default=-1)
    rows = max(array_of(node).size, 1)
    few_long_rows = rows < gpu.sms and source.size // rows > LOCAL_ROW
    return minor not in node.attrs.dimensions or few_long_rows


def _move_to_readers(
    levels: list[int], edges: Sequence[Iterable[int]], meets: Sequence[bool]
) -> None:
    """A vertex at which no blocks meet belongs to the level of its first reader: it can be computed there."""
    first_reader: dict[int, int] = {}
    for vertex in reversed(range(len(levels))):
        if not meets[vertex]:
            levels[vertex] = first_reader.get(vertex, levels[vertex])
        for producer in edges[vertex]:
            first_reader[producer] = min(first_reader.get(producer, levels[vertex]), levels[vertex])


def _count_statements(node: Node) -> int:
    kind = OPS[node.op].kind
    if kind is Kind.REDUCE or find_running(node) is not None:
        return REDUCE_STATEMENTS
    return int(kind not in (Kind.PROJECTION, Kind.SOURCE))


def _assemble(
    members: Sequence[Sequence[str]],
    edges: Sequence[Iterable[int]],
    values: Sequence[Value],
    launches: Sequence[int],
    statements: Sequence[int],
    levels: Sequence[int],
) -> FusionGraph:
    """The graph of vertices given in topological order.  edges: the producers of each."""
    above: list[int] = []
    consumers: list[list[int]] = [[] for _ in members]
    for vertex, producers in enumerate(edges):
        closure = 0
        for producer in producers:
            consumers[producer].append(vertex)
            closure |= above[producer] | 1 << producer
        above.append(closure)
    below = [0] * len(members)
    for vertex in reversed(range(len(members))):
        for consumer in consumers[vertex]:
            below[vertex] |= below[consumer] | 1 << consumer
    reads: list[list[int]] = [[] for _ in members]
    makes: list[list[int]] = [[] for _ in members]
    for number, value in enumerate(values):
        if value.producer >= 0:
            makes[value.producer].append(number)
        for vertex in each_vertex(value.readers):
            reads[vertex].append(number)
    return FusionGraph(
        tuple(map(tuple, members)),
        tuple(map(tuple, consumers)),
        tuple(above),
        tuple(below),
        tuple(values),
        tuple(map(tuple, reads)),
        tuple(map(tuple, makes)),
        tuple(launches),
        tuple(statements),
        tuple(levels),
    )


def join_single_readers(fusion: FusionGraph, max_statements: int) -> FusionGraph:
    """The graph in which a vertex with a single reader is part of that reader, up to a length.

    That saves a store and a load and keeps nothing apart; only a reduction over many blocks is left alone.
    """
    group_of = list(range(len(fusion)))
    lengths = list(fusion.statements)
    groups = [1 << vertex for vertex in group_of]
    for vertex in reversed(range(len(fusion))):
        escapes = any(fusion.values[number].escapes for number in fusion.makes[vertex])
        if escapes or len(fusion.consumers[vertex]) != 1:
            continue
        consumer = fusion.consumers[vertex][0]
        group = group_of[consumer]
        same_level = fusion.levels[vertex] == fusion.levels[consumer]
        if same_level and lengths[group] + lengths[vertex] <= max_statements:
            group_of[vertex] = group
            groups[group] |= 1 << vertex
            lengths[group] += lengths[vertex]
    joined = [
        add_vertices(fusion, make_pattern(fusion, group), groups[group] & ~(1 << group))
        for group in sorted(set(group_of))
        if groups[group].bit_count() > 1
    ]
    return contract(fusion, joined)


class CircularPatterns(ValueError):
    """Patterns of which each waits for another, so that none can be the first kernel."""


def contract(fusion: FusionGraph, patterns: Sequence[Pattern]) -> FusionGraph:
    """The graph with each of the (disjoint) patterns as one vertex.

    Raises CircularPatterns where they depend on each other in a circle.
    """
    group_of = [-1] * len(fusion)
    groups = [p.vertices for p in patterns]
    for number, group in enumerate(groups):
        for vertex in each_vertex(group):
            group_of[vertex] = number
    for vertex in range(len(fusion)):
        if group_of[vertex] < 0:
            group_of[vertex] = len(groups)
            groups.append(1 << vertex)
    successors: list[dict[int, None]] = [{} for _ in groups]
    waits = [0] * len(groups)
    for vertex, consumers in enumerate(fusion.consumers):
        mine = group_of[vertex]
        for consumer in consumers:
            other = group_of[consumer]
            if other != mine and other not in successors[mine]:
                successors[mine][other] = None
                waits[other] += 1
    first = [next(each_vertex(group)) for group in groups]
    ready = [(first[g], g) for g in range(len(groups)) if not waits[g]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, group = heapq.heappop(ready)
        order.append(group)
        for other in successors[group]:
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(ready, (first[other], other))
    if len(order) < len(groups):
        raise CircularPatterns("the patterns depend on each other in a circle")
    place = {group: number for number, group in enumerate(order)}
    edges: list[dict[int, None]] = [{} for _ in order]
    for group, others in enumerate(successors):
        for other in others:
            edges[place[other]][place[group]] = None
    values = []
    for value in fusion.values:
        producer = place[group_of[value.producer]] if value.producer >= 0 else -1
        readers = to_bits(place[group_of[v]] for v in each_vertex(value.readers))
        if producer >= 0:
            readers &= ~(1 << producer)
        if readers or value.escapes:
            values.append(
                Value(  # as replace would make it: this is the innermost loop of the search
                    producer, value.bytes, value.read_bytes, readers, value.escapes, value.buffer
                )
            )
    inner = [list(each_vertex(groups[group])) for group in order]
    levels = [0] * len(order)
    for number, vertices in enumerate(inner):
        for vertex in vertices:
            levels[number] |= fusion.levels[vertex]
    return _assemble(
        [[name for v in vertices for name in fusion.members[v]] for vertices in inner],
        edges,
        values,
        [min(sum(fusion.launches[v] for v in vertices), 1) for vertices in inner],
        [sum(fusion.statements[v] for v in vertices) for vertices in inner],
        levels,
    )
