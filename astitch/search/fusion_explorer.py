"""Scope -> Scopes: which ops share a kernel, by cost (PAI V2's explorer), beside the exhaustive search.

The best patterns that start at a vertex are made of the best patterns of its consumers, so it is visited after them;
remote patterns have a virtual producer of everything.  A beam picks disjoint patterns with the best sum of gains; what
it picked becomes the vertices of the next round.  The last partitions are ranked by a latency that the caller gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from astitch.device.gpu import Gpu
from astitch.graph.ir import Graph, Node
from astitch.search.patterns import (
    CircularPatterns,
    FusionGraph,
    Pattern,
    Penalty,
    add_vertices,
    contract,
    each_vertex,
    join_patterns,
    join_single_readers,
    make_fusion_graph,
    make_pattern,
    repeated_ops,
    to_bits,
)
from astitch.search.xla_fusions import Proposal, propose_each
from astitch.stitch_scope import Refusal, Scope, Scopes, make_scope

TOP = 3
"""Patterns kept of each producer (k of the paper)."""

WIDTH = 3
"""Partitions kept by the beam, and ranked by the latency in the end, unless the caller asks for fewer."""

XLA_MARGIN = 0.95
"""XLA's fusions are taken instead of the explorer's partitions only if they take less by this share."""

XLA_WIDTH = 1
"""The same for partitions that are joined from XLA's fusions."""

MOST_JOINED = 12
"""Parts of which each two neighbours are joined and planned."""

FIRST_STATEMENTS, GROWTH = 64, 4
"""Patterns of the first round are at most this long, those of each later round this many times longer.  So close
neighbours are joined before anything fills a kernel up to its limit."""

ROUNDS = 8
"""Most rounds without such a limit."""

MAX_STATEMENTS = 1500
"""Code beyond this is not put into one kernel."""

Latency = Callable[[Scopes], float]
"""The time of all kernels of some Scopes, in us."""


Cover = Sequence[Sequence[str]]
"""The ops of parts, in an order in which they can run; an op may be in several."""

_Key = frozenset[frozenset[str]]
"""What tells two partitions apart."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pattern and its gain over a kernel for each of its vertices, in us."""

    pattern: Pattern
    gain_us: float

    @property
    def rank(self) -> tuple[float, int, int]:
        """The best first; among equals the smallest, then the one of the earliest vertices."""
        return -self.gain_us, self.pattern.size, self.pattern.vertices


@dataclass(frozen=True, slots=True)
class Partition:
    """gain_us: over a kernel for each op.  fusion: its vertices are the kernels."""

    gain_us: float
    fusion: FusionGraph


@dataclass(frozen=True, slots=True)
class Exploration:
    """partitions: the best first.  joins: patterns that were put together on the way."""

    partitions: tuple[Partition, ...]
    joins: int


@dataclass(frozen=True, slots=True)
class LengthPenalty:
    """The default penalty: global barriers, and no kernel of more than `max_statements`.  one_level: nor of several
    levels."""

    gpu: Gpu
    max_statements: float
    one_level: bool = False

    def __call__(self, pattern: Pattern) -> float:
        if pattern.statements > self.max_statements and pattern.size > 1:
            return math.inf
        if self.one_level and pattern.levels.bit_count() > 1:
            return math.inf
        return pattern.global_barriers * self.gpu.barrier_us

    def forbids(self, a: Pattern, b: Pattern) -> bool:
        """Is every pattern that holds both forbidden?  They have no vertex in common."""
        if a.statements + b.statements > self.max_statements:
            return True
        return self.one_level and (a.levels | b.levels).bit_count() > 1


def estimate_penalty(gpu: Gpu, max_statements: int = MAX_STATEMENTS) -> LengthPenalty:
    """The default penalty."""
    return LengthPenalty(gpu, max_statements)


# ---- patterns ----------------------------------------------------------------------------------------


class Search:
    """One round: candidates of every vertex, then the beam."""

    def __init__(
        self,
        fusion: FusionGraph,
        gpu: Gpu,
        penalty: Penalty,
        max_statements: float = math.inf,
        width: int = WIDTH,
    ) -> None:
        self.fusion, self.gpu, self.penalty = fusion, gpu, penalty
        self.max_statements, self.width = max_statements, width
        self.joins = 0
        self.alone = [make_pattern(fusion, v) for v in range(len(fusion))]
        self.alone_us = [penalty(p) for p in self.alone]
        self.costly = to_bits(v for v, paid in enumerate(self.alone_us) if paid)
        self.limited = False  # did max_statements forbid a pattern that the penalty does not?
        self.known: dict[int, Candidate] = {}
        self.candidates: list[list[Candidate]] = [[] for _ in self.alone]

    def rate(self, pattern: Pattern) -> Candidate:
        """f = saved memory time + saved launches - penalty."""
        if pattern.vertices not in self.known:
            paid = sum(self.alone_us[v] for v in each_vertex(pattern.vertices & self.costly))
            gain = pattern.saved_bytes / self.gpu.bandwidth_gbs / 1e3
            gain += max(pattern.launches - 1, 0) * self.gpu.launch_us
            if pattern.size > 1:
                extra = self.penalty(pattern)
                if pattern.statements > self.max_statements and math.isfinite(extra):
                    self.limited, extra = True, math.inf
                gain = gain - extra + paid if math.isfinite(extra) else -math.inf
            self.known[pattern.vertices] = Candidate(pattern, gain)
        return self.known[pattern.vertices]

    def join(self, a: Candidate, b: Candidate) -> Candidate | None:
        self.joins += 1
        apart = not a.pattern.vertices & b.pattern.vertices
        if apart and a.pattern.statements + b.pattern.statements > self.max_statements:
            self.limited = True
            return None
        if apart and isinstance(self.penalty, LengthPenalty):
            if self.penalty.forbids(a.pattern, b.pattern):
                return None  # before it is put together
        joined = join_patterns(self.fusion, a.pattern, b.pattern)
        return None if joined is None else self.rate(joined)

    def best(self, candidates: Sequence[Candidate | None]) -> list[Candidate]:
        """The TOP different ones that are worth something."""
        different = {c.pattern.vertices: c for c in candidates if c and c.gain_us > -math.inf}
        return sorted(different.values(), key=lambda c: c.rank)[:TOP]

    def reduce_patterns(self, top: Candidate, consumers: Sequence[int]) -> list[Candidate]:
        """The best patterns of `top` with none or one of the best patterns of each consumer (PatternReduction)."""
        if len(consumers) > 2:
            half = len(consumers) // 2
            left = self.reduce_patterns(top, consumers[:half])
            right = self.reduce_patterns(top, consumers[half:])
            return self.best([*left, *right, *(self.join(a, b) for a in left for b in right)])
        found = [top]
        for consumer in consumers:
            with_consumer = (self.join(a, b) for a in found for b in self.candidates[consumer])
            found += [c for c in with_consumer if c is not None]
        return self.best(found)

    def visit_producers(self) -> None:
        """candidates(v) for every vertex, consumers first."""
        for vertex in reversed(range(len(self.fusion))):
            top = self.rate(self.alone[vertex])
            self.candidates[vertex] = self.reduce_patterns(top, self.fusion.consumers[vertex])

    def visit_everything(self, first: int, last: int) -> Iterator[list[Candidate]]:
        """Remote patterns: the same reduction under virtual producers of first .. last and of its halves.

        Hands on the patterns of the whole range first, so that the beam sees them before their parts.
        """
        if last - first == 1:
            yield self.candidates[first]
            return
        half = (first + last) // 2
        left = list(self.visit_everything(first, half))
        right = list(self.visit_everything(half, last))
        pairs = (self.join(a, b) for a in left[0] for b in right[0])
        yield self.best([*left[0], *right[0], *pairs])
        yield from left
        yield from right

    # ---- the beam

    def pick_disjoint(self, remote: bool) -> list[tuple[float, tuple[Pattern, ...]]]:
        """The `width` best sets of disjoint patterns that do not depend on each other in a circle."""
        self.visit_producers()
        beam: list[tuple[float, int, tuple[Pattern, ...]]] = [(0.0, 0, ())]
        remotes = self.visit_everything(0, len(self.fusion)) if remote and self.alone else ()
        for options in remotes or self.candidates:
            worth = [c for c in options if c.gain_us > 0 and c.pattern.size > 1]
            more = [
                (gain + c.gain_us, covered | c.pattern.vertices, (*chosen, c.pattern))
                for gain, covered, chosen in beam
                for c in worth
                if not covered & c.pattern.vertices and not _closes_circle(c.pattern, chosen)
            ]
            if more:
                different = {tuple(sorted(p.vertices for p in s[2])): s for s in (*beam, *more)}
                beam = sorted(different.values(), key=lambda s: (-s[0], len(s[2]), s[1]))
                beam = beam[: self.width]
        return [(gain, chosen) for gain, _, chosen in beam]


def _closes_circle(pattern: Pattern, chosen: Sequence[Pattern]) -> bool:
    """Would a path leave the pattern, pass through chosen ones and come back?"""
    reached = pattern.below & ~pattern.vertices
    waiting = list(chosen)
    while True:
        entered = [p for p in waiting if p.vertices & reached]
        if not entered:
            return False
        for other in entered:
            reached |= other.below | other.vertices
        if reached & pattern.vertices:
            return True
        waiting = [p for p in waiting if not p.vertices & reached]


def explore(fusion: FusionGraph, gpu: Gpu, penalty: Penalty, width: int = WIDTH) -> Exploration:
    """The `width` best partitions of a graph of vertices, found from single ones and from whole levels."""

    def stay_in_level(pattern: Pattern) -> float:
        return penalty(pattern) if pattern.levels.bit_count() == 1 else math.inf

    if isinstance(penalty, LengthPenalty):
        within: Penalty = replace(penalty, one_level=True)
    else:
        within = stay_in_level
    single = Partition(0.0, fusion)
    (levels, *_), joins = _join_in_rounds(single, gpu, within, width)
    found: dict[_Key, Partition] = {}
    for start in (single, levels):
        frontier, effort = _join_in_rounds(start, gpu, penalty, width)
        joins += effort
        for partition in frontier:
            found.setdefault(_key_of(partition), partition)
    return Exploration(_best_partitions(found, width), joins)


def _join_in_rounds(
    start: Partition, gpu: Gpu, penalty: Penalty, width: int
) -> tuple[tuple[Partition, ...], int]:
    """The best partitions whose kernels are unions of those of `start`, and the joins tried.

    What depends on each other is joined first: sharing an input would only keep it apart.
    """
    frontier: tuple[Partition, ...] = (start,)
    joins = 0
    for remote in (False, True):
        settled: set[_Key] = set()
        for max_statements in _growing_limits(sum(start.fusion.statements)):
            if math.isinf(max_statements) and all(_key_of(p) in settled for p in frontier):
                break
            found: dict[_Key, Partition] = {}
            for before in frontier:
                key = _key_of(before)
                found.setdefault(key, before)
                if key in settled:
                    continue
                search = Search(before.fusion, gpu, penalty, max_statements, width)
                for gain, chosen in search.pick_disjoint(remote):
                    if not chosen:
                        continue
                    try:
                        fusion = contract(before.fusion, chosen)
                    except CircularPatterns:
                        continue  # each could be joined alone, all of them wait for each other
                    after = Partition(before.gain_us + gain, fusion)
                    found.setdefault(_key_of(after), after)
                joins += search.joins
                if not search.limited:  # a longer limit would find the same
                    settled.add(key)
            frontier = _best_partitions(found, width)
    return frontier, joins


def _growing_limits(total: int) -> Iterator[float]:
    """Lengths of the patterns of each round, and no limit in the last ones."""
    limit = FIRST_STATEMENTS
    while limit < total:
        yield limit
        limit *= GROWTH
    for _ in range(ROUNDS):
        yield math.inf


def _best_partitions(found: Mapping[_Key, Partition], width: int) -> tuple[Partition, ...]:
    ranked = sorted(found.values(), key=lambda p: (-p.gain_us, len(p.fusion), p.fusion.members))
    return tuple(ranked[:width])


def _key_of(partition: Partition) -> _Key:
    return frozenset(map(frozenset, partition.fusion.members))


# ---- from partitions to Scopes -----------------------------------------------------------------------


def explore_scope(
    graph: Graph,
    scope: Scope,
    gpu: Gpu,
    *,
    penalty: Penalty | None = None,
    latency: Latency | None = None,
    width: int = WIDTH,
) -> Scopes:
    """The scope as one or more stitch ops, in an order in which they can run.

    penalty: what a kernel costs beyond traffic and launch; default: estimate_penalty.  latency: ranks the last
    partitions, each as Scopes with the parts alone; default: the one with the largest gain.  width: of the beam; the
    time of a search grows with it.
    The graph of the result has a copy of what is repeated for every part beyond the first that reads it.
    Its refusals say of every two neighbouring parts why they are two.
    """
    penalty = penalty or estimate_penalty(gpu)
    proposals: tuple[Proposal, ...] = ()
    if latency is not None:
        proposals = propose_each(graph, scope, make_fusion_graph(graph, scope, gpu), gpu)
    cover = choose_cover(
        graph, scope, gpu, penalty, latency=latency, width=width, proposals=proposals
    )
    return divide_scope(graph, scope, gpu, penalty, cover)


def choose_cover(
    graph: Graph,
    scope: Scope,
    gpu: Gpu,
    penalty: Penalty,
    *,
    latency: Latency | None = None,
    width: int = WIDTH,
    proposals: Sequence[Proposal] = (),
) -> Cover:
    """The ops of the stitch ops of explore_scope.

    proposals: what XLA would make of the scope (propose_each), with a latency a start too.
    """
    fusion = make_fusion_graph(graph, scope, gpu)
    if len(fusion) < 2:
        return fusion.members
    shortest = join_single_readers(fusion, FIRST_STATEMENTS // 2)
    covers = [p.fusion.members for p in explore(shortest, gpu, penalty, width).partitions]
    if latency is None:
        return covers[0]
    best_us, best = _fastest(graph, scope, covers, latency)
    if proposals:
        others = _cover_as_each(graph, scope, gpu, (penalty,), fusion, proposals)
        other_us, other = _fastest(graph, scope, others, latency)
        if other_us < best_us * XLA_MARGIN:
            return join_neighbours(graph, scope, gpu, other, other_us, latency)[1]
    return best


def choose_xla_cover(
    graph: Graph,
    scope: Scope,
    gpu: Gpu,
    penalties: Sequence[Penalty],
    latency: Latency,
    proposals: Sequence[Proposal],
) -> Cover:
    """The same from XLA's fusions alone, joined under each of the penalties.

    Neighbours are joined from several starts: of each proposal from its fastest cover, and from the fastest under the
    first penalty.  What is faster at first may end slower.
    """
    fusion = make_fusion_graph(graph, scope, gpu)
    starts: dict[tuple[tuple[str, ...], ...], tuple[float, Cover]] = {}
    for proposal in proposals:
        for some in (penalties[:1], penalties):
            covers = cover_as_xla(graph, scope, gpu, some, fusion, proposal)
            us, cover = _fastest(graph, scope, covers, latency)
            starts.setdefault(tuple(map(tuple, cover)), (us, cover))
    joined = [join_neighbours(graph, scope, gpu, c, us, latency) for us, c in starts.values()]
    return min(joined, key=lambda found: found[0])[1]


def join_neighbours(
    graph: Graph, scope: Scope, gpu: Gpu, cover: Cover, us: float, latency: Latency
) -> tuple[float, Cover]:
    """The time and the cover, of which parts that read each other are joined as long as that projects faster.

    us: its time.  A search by estimated gains joins what fits; this one sees that a statistic of a row stays in its
    block, and where a part more would not.
    """
    while 2 < len(cover) <= MOST_JOINED and math.isfinite(us):
        parts, origins = _copy_parts(graph, scope, cover)
        try:
            fusion = graph_of_parts(parts, scope, gpu)[0]
        except CircularPatterns:
            break
        joined = [_members_of(other, scope, origins) for other in _join_each(fusion)]
        times = [latency(make_parts(graph, scope, other)) for other in joined]
        fastest = min(times, default=math.inf)
        if fastest >= us:
            break
        us, cover = fastest, joined[times.index(fastest)]
    return us, cover


def _join_each(fusion: FusionGraph) -> Iterator[FusionGraph]:
    """With each vertex joined with each of its readers, in turn."""
    for vertex, readers in enumerate(fusion.consumers):
        for reader in readers:
            pattern = join_patterns(
                fusion, make_pattern(fusion, vertex), make_pattern(fusion, reader)
            )
            if pattern is not None and pattern.size < len(fusion):
                try:
                    yield contract(fusion, [pattern])
                except CircularPatterns:
                    continue


def _members_of(fusion: FusionGraph, scope: Scope, origins: Mapping[str, str]) -> Cover:
    """The ops of the vertices, as the scope has them.  origins: of those that are copies."""
    place = {name: number for number, name in enumerate(scope.members)}
    return [
        sorted({origins.get(name, name) for name in names}, key=place.__getitem__)
        for names in fusion.members
    ]


def _fastest(
    graph: Graph, scope: Scope, covers: Sequence[Cover], latency: Latency
) -> tuple[float, Cover]:
    """The cover whose kernels take least, and their time; the whole scope where there is none."""
    times = [latency(make_parts(graph, scope, cover)) for cover in covers]
    best_us = min(times, default=math.inf)
    return best_us, covers[times.index(best_us)] if covers else [scope.members]


def _cover_as_each(
    graph: Graph,
    scope: Scope,
    gpu: Gpu,
    penalties: Sequence[Penalty],
    fusion: FusionGraph,
    proposals: Sequence[Proposal],
) -> list[Cover]:
    """cover_as_xla of all proposals."""
    found = (cover_as_xla(graph, scope, gpu, penalties, fusion, each) for each in proposals)
    return [cover for covers in found for cover in covers]


def cover_as_xla(
    graph: Graph,
    scope: Scope,
    gpu: Gpu,
    penalties: Sequence[Penalty],
    fusion: FusionGraph,
    proposal: Proposal,
) -> list[Cover]:
    """The fusions that XLA would make, and what may be joined of them under each penalty; nothing where it would make
    one, or where they would wait for each other as vertices.

    fusion: make_fusion_graph of the scope.
    """
    if len(proposal.fusions) < 2:
        return []
    plain = [[n for v in each_vertex(part) for n in fusion.members[v]] for part in proposal.fusions]
    parts, origins = _copy_parts(graph, scope, plain)
    covers: list[Cover] = [plain]
    try:
        start = Partition(0.0, graph_of_parts(parts, scope, gpu)[0])
    except CircularPatterns:
        return []  # XLA reads through a reshape of an input; here the part that has it gives it to the others
    for penalty in penalties:
        joined, _ = _join_in_rounds(start, gpu, penalty, XLA_WIDTH)
        for partition in joined:
            if 1 < len(partition.fusion) < len(start.fusion):
                covers.append(_members_of(partition.fusion, scope, origins))
    return covers


def make_xla_parts(
    graph: Graph, scope: Scope, gpu: Gpu, proposals: Sequence[Proposal]
) -> Scopes | None:
    """The fusions of the first proposal that is a cover as stitch ops; None where there is none."""
    if not proposals:
        return None
    fusion = make_fusion_graph(graph, scope, gpu)
    covers = _cover_as_each(graph, scope, gpu, (), fusion, proposals)
    return make_parts(graph, scope, covers[0]) if covers else None


def graph_of_parts(parts: Scopes, scope: Scope, gpu: Gpu) -> tuple[FusionGraph, Mapping[str, int]]:
    """The parts of a scope as vertices, and the vertex of each op but those that are repeated."""
    members = [name for part in parts.scopes for name in part.members]
    order = {name: number for number, name in enumerate(parts.graph.nodes)}
    whole = make_scope(parts.graph, scope.name, scope.stage, sorted(members, key=order.__getitem__))
    fusion = make_fusion_graph(parts.graph, whole, gpu)
    vertex_of = {name: v for v, names in enumerate(fusion.members) for name in names}
    groups = [to_bits({vertex_of[n] for n in p.members if n in vertex_of}) for p in parts.scopes]
    patterns = [
        add_vertices(fusion, make_pattern(fusion, first), group & ~(1 << first))
        for group in groups
        if group
        for first in [next(each_vertex(group))]
    ]
    contracted = contract(fusion, patterns)
    return contracted, {n: v for v, names in enumerate(contracted.members) for n in names}


def divide_scope(
    graph: Graph,
    scope: Scope,
    gpu: Gpu,
    penalty: Penalty,
    cover: Cover,
) -> Scopes:
    """What explore_scope returns.  cover: what choose_cover found, maybe in a graph before others were divided."""
    if len(cover) < 2:
        return Scopes(graph, (scope,), (), ())
    scopes = make_parts(graph, scope, cover)
    return replace(scopes, refusals=_refuse_neighbours(scopes, scope, gpu, penalty))


def make_parts(graph: Graph, scope: Scope, cover: Cover) -> Scopes:
    """One stitch op for each part of a cover; what is repeated (repeated_ops) in each that reads it.

    An op in several parts is computed by each; what others read and what leaves the scope is that of the first.
    """
    return _copy_parts(graph, scope, cover)[0]


def _copy_parts(graph: Graph, scope: Scope, cover: Cover) -> tuple[Scopes, Mapping[str, str]]:
    """make_parts, and what the copies in its graph are copies of."""
    homes: dict[str, set[int]] = {}
    for part, names in enumerate(cover):
        for name in names:
            homes.setdefault(name, set()).add(part)
    repeated = repeated_ops(graph, scope)
    for name in reversed(scope.members):
        if name in repeated:
            homes[name] = set().union(*(homes[user] for user in graph.users[name]))
    members: list[list[str]] = [[] for _ in cover]
    if all(len(parts) == 1 for parts in homes.values()):
        # Nothing is repeated: the graph stays, and with it what is known of it.
        for name in scope.members:
            members[min(homes[name])].append(name)
        repeating, origins = graph, dict[str, str]()
    else:
        repeating, origins = _repeat(graph, homes, members)
    if len(members) == 1:
        return Scopes(repeating, (scope,), (), ()), origins
    parts = tuple(
        make_scope(repeating, f"{scope.name}_{number}", scope.stage, names)
        for number, names in enumerate(members)
    )
    return Scopes(repeating, parts, (), ()), origins


def _repeat(
    graph: Graph, homes: Mapping[str, Collection[int]], members: Sequence[list[str]]
) -> tuple[Graph, dict[str, str]]:
    """The graph with a copy of each op for each other part that it is in; what the copies are copies of.

    homes: the parts of each op.  members: of each part, to be filled in.
    """
    copies: dict[tuple[str, int], str] = {}
    nodes: dict[str, Node] = {}
    for node in graph:
        if node.name not in homes:
            nodes[node.name] = node
            continue
        for number, part in enumerate(sorted(homes[node.name])):
            name = node.name
            if number:
                name = _fresh_name(graph, nodes, f"{name}.{part}")
                copies[node.name, part] = name
            operands = tuple(copies.get((o, part), o) for o in node.operands)
            changes = number or operands != node.operands
            nodes[name] = replace(node, name=name, operands=operands) if changes else node
            members[part].append(name)
    repeating = Graph(graph.name, nodes, graph.parameters, graph.outputs, graph.aliases)
    return repeating, {copy: name for (name, _), copy in copies.items()}


def _fresh_name(graph: Graph, nodes: dict[str, Node], name: str) -> str:
    while name in graph.nodes or name in nodes:
        name += "_"
    return name


def _refuse_neighbours(
    parts: Scopes, scope: Scope, gpu: Gpu, penalty: Penalty
) -> tuple[Refusal, ...]:
    """For every two parts of which one reads the other, why one kernel for both is worth less than two."""
    fusion, home = graph_of_parts(parts, scope, gpu)
    search = Search(fusion, gpu, penalty)
    refusals: dict[tuple[int, int], Refusal] = {}
    for part in parts.scopes:
        place = next((home[name] for name in part.members if name in home), -1)
        for name in part.inputs:
            producer = home.get(name, place)
            if place < 0 or producer == place or (producer, place) in refusals:
                continue
            reader = next(m for m in part.members if name in parts.graph[m].operands)
            reason = _why_apart(search, producer, place)
            refusals[producer, place] = Refusal(name, reader, reason, f"keep {scope.name}")
    return tuple(refusals[key] for key in sorted(refusals))


def _why_apart(search: Search, a: int, b: int) -> str:
    fusion = search.fusion
    both = add_vertices(fusion, search.alone[a], 1 << b)
    if both.above & both.below & ~both.vertices:
        return "explored: one kernel for both would close a cycle through a third"
    rated = search.rate(both)
    saved = both.saved_bytes / search.gpu.bandwidth_gbs / 1e3
    cost = search.penalty(both) - search.alone_us[a] - search.alone_us[b]
    if math.isinf(cost):
        return f"explored: one kernel for both would be {both.statements} statements long"
    verdict = (
        "is worth less" if rated.gain_us <= 0 else "was worth less than what they do with others"
    )
    return (
        f"explored: one kernel for both {verdict}: saves {saved:.2f} us of traffic and "
        f"{max(both.launches - 1, 0) * search.gpu.launch_us:.2f} us of launches, costs {cost:.2f} us"
    )


def replace_scope(scopes: Scopes, name: str, parts: Scopes) -> Scopes:
    """The Scopes with `parts` (of explore_scope, on the graph of `scopes`) in the place of the scope called `name`."""
    listed = [
        s for scope in scopes.scopes for s in (parts.scopes if scope.name == name else (scope,))
    ]
    refusals = (*scopes.refusals, *parts.refusals)
    return replace(scopes, graph=parts.graph, scopes=tuple(listed), refusals=refusals)
