"""Scopes -> Scopes: stitch ops without data dependence share a kernel only as far as memory allows.

One kernel that takes a step of many tensors holds the operands and the results of all of them at once.  XLA finishes
one tensor after the other.  So where the peak of all stitch ops as they are is above that of the plain program, they
are cut into pieces that have no large value in common, and pieces are put together again while the peak stays below.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import networkx as nx

from astitch.device.gpu import Gpu
from astitch.graph.dimensions import is_embedded
from astitch.graph.ir import Graph
from astitch.search.fusion_explorer import make_parts, replace_scope
from astitch.search.patterns import (
    FusionGraph,
    Pattern,
    add_vertices,
    contract,
    each_vertex,
    make_fusion_graph,
    make_pattern,
    to_bits,
)
from astitch.search.peak_memory import (
    MemoryStep,
    MemorySteps,
    MemoryUse,
    estimate_plain_peak,
    find_apart,
    keeps_to,
    list_steps,
    schedule,
)
from astitch.stitch_scope import Refusal, Scope, Scopes

LARGE_BYTES = 64 << 10
"""Values from this size on keep what has them in common in one piece; smaller ones cost a kernel a load."""

PEAK_SHARE = 256
"""Nor does a value that is so many times smaller than the peak: what each particle of a sampler has, beside likelihoods
of all points.  Only large arrays are worth a kernel of their own."""

SMALL_SHARE = 8
"""A value keeps nothing together either where each of its readers makes so many times its bytes, as an identity matrix
for a batch."""

LEAST_PEAK = 1 << 20
"""A peak below it is not looked at."""

SHARE, MARGIN = 1.02, 1.05
"""How much more memory a program may take, arguments and all, than XLA alone is estimated to need; and than all pieces
apart would.  XLA takes 1 to 35 % more than its estimate: it joins fusions, too, and its scheduler looks at more."""

MOST_MARGIN_BYTES = 16 << 20
"""Above all pieces apart at most so many: a large program saves no more time by a few launches than a small one."""

MOST_VISITS = 80_000
"""Steps that are put in order, all trials together.  It takes two seconds."""


def bound_memory(scopes: Scopes, gpu: Gpu, plain: Graph, most_bytes: float = math.inf) -> Scopes:
    """The scopes, some of them in pieces, where that lowers the peak.

    plain: the program as XLA alone would get it.  most_bytes: what it may take beside its arguments, where somebody
    says so.  A program with barriers stays as it is: XLA keeps their order.
    """
    steps = list_steps(scopes)
    whole = schedule(steps).peak
    given = sum(plain[name].array.bytes for name in plain.parameters)
    is_small = whole <= given * (SHARE - 1) and whole <= most_bytes
    if whole < LEAST_PEAK or scopes.barriers or is_small:
        return scopes
    limit = min(most_of_memory(plain), most_bytes)
    if whole <= limit:
        return scopes
    search = _Search(scopes, gpu, steps, max(LARGE_BYTES, whole // PEAK_SHARE))
    groups = search.take_apart()
    apart = search.order(groups)[1].peak
    usual = max(limit, apart + min((MARGIN - 1) * (given + apart), MOST_MARGIN_BYTES))
    limit = max(limit, apart) if usual > most_bytes else usual
    return scopes if whole <= limit else search.divide(groups, limit)


def beside_arguments(plain: Graph, most_bytes: float) -> float:
    """What is left of the bytes that a program may take beside its arguments."""
    return most_bytes - sum(plain[name].array.bytes for name in plain.parameters)


def most_of_memory(plain: Graph) -> float:
    """The bytes beside its arguments that a program may take, where XLA alone is estimated to need so many."""
    given = sum(plain[name].array.bytes for name in plain.parameters)
    return SHARE * (given + estimate_plain_peak(plain)) - given


Groups = Mapping[str, Sequence[Sequence[int]]]
"""By scope, which of its pieces share a kernel; each group comes behind those that it waits for."""


class _Search:
    """Which pieces of the scopes share a kernel.

    pieces: by scope, a graph whose vertices are the pieces, in topological order.  large_bytes: see cut_scope.
    """

    def __init__(
        self, scopes: Scopes, gpu: Gpu, steps: MemorySteps, large_bytes: int = LARGE_BYTES
    ) -> None:
        self.scopes, self.steps = scopes, steps
        self.by_name = {scope.name: scope for scope in scopes.scopes}
        self.pieces: dict[str, FusionGraph] = {}
        for scope in scopes.scopes:
            fusion = cut_scope(scopes.graph, scope, gpu, large_bytes=large_bytes)
            if len(fusion) > 1:
                self.pieces[scope.name] = fusion
        self.left, self.fitted = MOST_VISITS, 1
        self.made: dict[tuple[str, tuple[int, ...]], tuple[MemoryStep, dict[str, int]]] = {}

    def take_apart(self) -> dict[str, list[list[int]]]:
        """Each piece alone."""
        return {name: [[v] for v in range(len(p))] for name, p in self.pieces.items()}

    def divide(self, groups: dict[str, list[list[int]]], limit: float) -> Scopes:
        """The scopes in groups of pieces.  groups: each piece alone.  limit: of the peak."""
        apart, use = self.order(groups)
        place = {apart.steps[number].name: at for at, number in enumerate(use.order)}
        for name in sorted(groups, key=lambda n: (-len(groups[n]), n)):
            single = [v for (v,) in groups[name]]
            ranked = sorted(single, key=lambda v: place[_step_name(name, v)])
            groups[name] = self.join(groups, name, ranked, limit)
        made, use = self.order(groups)
        return self.write(groups, made, use)

    def join(
        self, groups: dict[str, list[list[int]]], name: str, pieces: Sequence[int], limit: float
    ) -> list[list[int]]:
        """Few groups of a scope's pieces, in the order given: each as long as the limit allows."""
        done: list[list[int]] = []
        rest = list(pieces)
        while rest:
            fits, fails = 1, len(rest) + 1
            count = len(rest)  # all of them, else half as many as are known to be too many
            if self.left <= 0:  # as many as fitted last
                size = self.fitted
                return [*done, *(rest[i : i + size] for i in range(0, len(rest), size))]
            while fits < count < fails:
                joined = [*done, rest[:count], *([v] for v in rest[count:])]
                if self.fits({**groups, name: joined}, limit):
                    fits = count
                else:
                    fails = count
                count = (fits + fails) // 2
            self.fitted = fits
            done.append(rest[:fits])
            rest = rest[fits:]
        return done

    def fits(self, groups: Groups, limit: float) -> bool:
        """Is the peak of `order` at most the limit?"""
        made = self.list_divided(groups)
        self.left -= len(made.steps)
        return keeps_to(made, limit)

    def order(self, groups: Groups) -> tuple[MemorySteps, MemoryUse]:
        """The steps with groups of pieces in the place of scopes, and their order."""
        made = self.list_divided(groups)
        self.left -= len(made.steps)
        return made, schedule(made)

    def list_divided(self, groups: Groups) -> MemorySteps:
        found: list[MemoryStep] = []
        sizes = dict(self.steps.sizes)
        for step in self.steps.steps:
            if step.name in groups:
                fusion, scope = self.pieces[step.name], self.by_name[step.name]
                for group in groups[step.name]:
                    key = step.name, tuple(group)
                    if key not in self.made:
                        new: dict[str, int] = {}
                        one = _make_step(self.scopes.graph, fusion, scope, group, new)
                        self.made[key] = one, new
                    made, new = self.made[key]
                    found.append(made)
                    for buffer, size in new.items():
                        sizes.setdefault(buffer, size)
            else:
                found.append(step)
        return replace(self.steps, steps=tuple(found), sizes=sizes)

    def write(self, groups: Groups, made: MemorySteps, use: MemoryUse) -> Scopes:
        """The scopes in parts, with the order in which all steps run."""
        scopes = self.scopes
        place = {made.steps[number].name: at for at, number in enumerate(use.order)}
        turns = {step.name: place[step.name] for step in self.steps.steps if step.name in place}
        for name, found in groups.items():
            if len(found) < 2:
                turns[name] = place[_step_name(name, *found[0])]
                continue
            ordered = sorted(found, key=lambda g: place[_step_name(name, *g)])
            fusion = self.pieces[name]
            patterns = [_join_all(fusion, group) for group in ordered]
            parted = contract(fusion, patterns)
            parts = make_parts(scopes.graph, self.by_name[name], parted.members)
            refusals = _refuse(parts)
            scopes = replace_scope(scopes, name, replace(parts, refusals=refusals))
            group_of = {m: g for g in ordered for v in g for m in fusion.members[v]}
            for part, members in zip(parts.scopes, parted.members, strict=True):
                turns[part.name] = place[_step_name(name, *group_of[members[0]])]
        return replace(scopes, turns=turns)


def _step_name(scope: str, *group: int) -> str:
    return f"{scope}/{min(group)}"


def _join_all(fusion: FusionGraph, vertices: Sequence[int]) -> Pattern:
    first, *others = vertices
    return add_vertices(fusion, make_pattern(fusion, first), to_bits(others))


def _make_step(
    graph: Graph, fusion: FusionGraph, scope: Scope, group: Sequence[int], sizes: dict[str, int]
) -> MemoryStep:
    """The step of some pieces.  sizes: gets the bytes of what pieces hand on to others."""
    inside = to_bits(group)
    reads: set[str] = set()
    writes: list[str] = []
    for vertex in group:
        for number in fusion.reads[vertex]:
            value = fusion.values[number]
            if value.producer < 0 or not inside >> value.producer & 1:
                reads.add(value.buffer)
        for number in fusion.makes[vertex]:
            value = fusion.values[number]
            if value.escapes or value.readers & ~inside:
                writes.append(value.buffer)
                if not value.escapes:
                    sizes.setdefault(value.buffer, value.bytes)
    members = [member for vertex in group for member in fusion.members[vertex]]
    # Pieces read no repeated number of each other's; an outside op waits for the kernel that stores its own.
    writes += [m for m in members if m in scope.outputs and is_embedded(graph, m)]
    name = _step_name(scope.name, *group)
    apart = find_apart(graph, members, reads, writes)
    return MemoryStep(name, frozenset(reads), tuple(writes), apart=apart, is_kernel=True)


def _refuse(parts: Scopes) -> tuple[Refusal, ...]:
    """Why each part is not one with the part before it."""
    return tuple(
        Refusal(
            one.members[-1],
            other.members[0],
            f"one kernel for {one.name} and {other.name} would hold more in memory at once than XLA alone",
            "without bound_memory",
        )
        for one, other in itertools.pairwise(parts.scopes)
    )


def cut_scope(
    graph: Graph,
    scope: Scope,
    gpu: Gpu,
    *,
    by_results: bool = False,
    large_bytes: int = LARGE_BYTES,
) -> FusionGraph:
    """The pieces of a scope: what has a large value in common is one, and what would else wait for each other.

    by_results: what the scope reads is not counted as common.  large_bytes: the least size of a large value.
    """
    fusion = make_fusion_graph(graph, scope, gpu)
    parent = list(range(len(fusion)))

    def find(vertex: int) -> int:
        while parent[vertex] != vertex:
            parent[vertex] = parent[parent[vertex]]
            vertex = parent[vertex]
        return vertex

    for value in fusion.values:
        readers = [*each_vertex(value.readers)]
        least = min((_count_made(fusion, reader) for reader in readers), default=0)
        is_small = value.bytes < large_bytes or SMALL_SHARE * value.bytes <= least
        if is_small or (by_results and value.producer < 0):
            continue
        joined = [*readers, *([value.producer] if value.producer >= 0 else [])]
        for vertex in joined[1:]:
            parent[find(vertex)] = find(joined[0])
    waits = nx.DiGraph()
    waits.add_nodes_from(map(find, range(len(fusion))))
    for vertex, consumers in enumerate(fusion.consumers):
        waits.add_edges_from((find(vertex), find(consumer)) for consumer in consumers)
    joined_to: dict[int, list[int]] = {}
    for vertex in range(len(fusion)):
        joined_to.setdefault(find(vertex), []).append(vertex)
    patterns = []
    for circle in nx.strongly_connected_components(waits):
        vertices = sorted(vertex for first in circle for vertex in joined_to[first])
        patterns.append(_join_all(fusion, vertices))
    return contract(fusion, patterns)


def _count_made(fusion: FusionGraph, vertex: int) -> int:
    """The bytes of what a piece makes."""
    return sum(fusion.values[number].bytes for number in fusion.makes[vertex])
