"""The explorer: patterns and gains on graphs made by hand, legal partitions of every graph, and its cost."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from graphs import GraphBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_arguments, random_graphs

from astitch.device.gpu import Gpu, preset
from astitch.graph.check import check_graph
from astitch.graph.dimensions import is_embedded
from astitch.graph.ir import DType, Graph, TupleType
from astitch.graph.reference import run_graph
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine
from astitch.scope.remote_stitch import stitch_remotely
from astitch.search.build_program import build_program
from astitch.search.check_plan import check_plan
from astitch.search.fusion_explorer import (
    Cover,
    Exploration,
    Search,
    cover_as_xla,
    estimate_penalty,
    explore,
    explore_scope,
    make_parts,
    replace_scope,
)
from astitch.search.patterns import (
    MOST_REPEATED,
    CircularPatterns,
    FusionGraph,
    Pattern,
    Penalty,
    contract,
    join_patterns,
    join_single_readers,
    make_fusion_graph,
    make_pattern,
    repeated_ops,
)
from astitch.search.plan import Plan, plan_scope
from astitch.search.xla_fusions import Proposal
from astitch.stitch_scope import Scope, Scopes
from tests.scopes import find_scopes
from tests.whole.test_fuzz import wide_graphs

H100, HOST = preset("h100"), preset("host")
ROW = "f32[1000]"


def free(_: Pattern) -> float:
    return 0.0


def only_scope(graph: Graph) -> Scope:
    (scope,) = stitch_remotely(find_scopes(graph)).scopes
    return scope


def explore_scopes(scopes: Scopes, gpu: Gpu, penalty: Penalty | None = None) -> Scopes:
    """Every scope explored, in the order of `scopes`."""
    for scope in scopes.scopes:
        parts = explore_scope(scopes.graph, scope, gpu, penalty=penalty)
        scopes = replace_scope(scopes, scope.name, parts)
    return scopes


def fusion_of(graph: Graph) -> FusionGraph:
    return make_fusion_graph(graph, only_scope(graph), H100)


def vertex(fusion: FusionGraph, name: str) -> int:
    return next(v for v, names in enumerate(fusion.members) if name in names)


def names_of(fusion: FusionGraph, pattern: Pattern) -> set[str]:
    return {n for v in range(len(fusion)) if pattern.vertices >> v & 1 for n in fusion.members[v]}


def plan_all(scopes: Scopes) -> list[Plan]:
    """A legal plan for each scope that needs a kernel."""
    plans = [plan_scope(scopes.graph, scope, HOST) for scope in scopes.scopes]
    return [check_plan(plan) for plan in plans if plan is not None]


def partition_of(scopes: Scopes) -> list[tuple[str, ...]]:
    return [scope.members for scope in scopes.scopes]


# ---- vertices and gains


def diamond() -> Graph:
    """x -> a -> {b, c} -> d."""
    g = GraphBuilder()
    a = g.same("negate", g.parameter(ROW, "x"), name="a")
    b, c = g.same("tanh", a, name="b"), g.same("sqrt", a, name="c")
    return g.build(g.same("add", b, c, name="d"))


def test_views_projections_and_broadcasts_are_no_vertices_of_their_own() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[8,16]")
    best = g.arg_max(x, g.iota("s32[8,16]", 1), (1,), name="best")
    largest = g.element(best, 0, "largest")
    spread = g.broadcast(largest, (8, 16), (0,), "spread")
    centred = g.same("subtract", x, spread, name="centred")
    flat = g.reshape(centred, (128,), "flat")
    y = g.same("tanh", flat, name="y")
    graph = g.build(y, flat, g.element(best, 1, "where"))
    assert fusion_of(graph).members == (("best", "largest", "where"), ("centred", "flat"), ("y",))
    assert repeated_ops(graph, only_scope(graph)) == {"spread"}


@pytest.mark.parametrize("powers", [1, 40])
def test_few_ops_of_single_elements_are_repeated(powers: int) -> None:
    """A learning rate is; what is the last of many such ops is not, and neither is what is computed from a sum."""
    g = GraphBuilder()
    step, x = g.parameter("f32[]", "step"), g.parameter("f32[64,256]", "x")
    rate = step
    names = []
    for number in range(powers):
        rate = g.same("power", rate, step, name=f"rate{number}")
        names.append(rate)
    norm = g.same("sqrt", g.reduce(x, (0, 1), "add", name="sum"), name="norm")
    scaled = g.same("multiply", x, g.broadcast(rate, (64, 256), (), name="spread"), name="y")
    graph = g.build(g.same("divide", scaled, g.broadcast(norm, (64, 256), (), name="norms")))
    repeated = repeated_ops(graph, only_scope(graph))
    assert repeated == {"spread", "norms", *names[:MOST_REPEATED]}


@pytest.mark.parametrize(
    ("source", "wide", "is_repeated"),
    [("bf16", "f32", True), ("pred", "f32", True), ("s32", "f32", True), ("f32", "bf16", False)],
)
def test_each_part_converts_for_itself_what_takes_no_more_memory(
    source: str, wide: str, is_repeated: bool
) -> None:
    g = GraphBuilder()
    converted = g.convert(g.parameter(f"{source}[1000]", "x"), wide, name="converted")
    graph = g.build(g.same("tanh", converted, name="a"), g.same("sqrt", converted, name="b"))
    scope = only_scope(graph)
    assert repeated_ops(graph, scope) == ({"converted"} if is_repeated else set())
    fusion = fusion_of(graph)
    assert fusion.members[-2:] == (("a",), ("b",))
    assert len(fusion) == 3 - is_repeated
    parts = make_parts(graph, scope, fusion.members)
    (read,) = {name for part in parts.scopes[-2:] for name in part.inputs}
    assert read == ("x" if is_repeated else "converted")
    for result in (converted, g.reshape(converted, (10, 100))):  # somebody else needs it
        kept = g.build(*graph.outputs, result)
        assert repeated_ops(kept, only_scope(kept)) == set()


def test_what_a_pattern_saves_is_what_its_ops_need_not_write_and_read() -> None:
    fusion = fusion_of(diamond())
    a, b, c, d = (make_pattern(fusion, vertex(fusion, n)) for n in "abcd")
    both = join_patterns(fusion, a, b)
    assert both and both.saved_bytes == 4000  # one read of a; c still reads what is written
    siblings = join_patterns(fusion, b, c)
    assert siblings and siblings.saved_bytes == 4000  # a is read once for both
    three = join_patterns(fusion, siblings, a)
    assert three and three.saved_bytes == 12000
    everything = join_patterns(fusion, three, d)
    assert everything and everything.saved_bytes == 12000 + 16000
    assert everything.launches == 4


@settings(max_examples=60, deadline=None, derandomize=True)
@given(random_graphs(), st.randoms(use_true_random=False))
def test_a_pattern_is_the_same_in_whatever_order_it_is_joined(graph: Graph, order) -> None:  # type: ignore[no-untyped-def]
    for scope in stitch_remotely(find_scopes(graph)).scopes:
        fusion = make_fusion_graph(graph, scope, H100)
        found = set()
        for _ in range(3):
            pieces = [make_pattern(fusion, v) for v in range(len(fusion))]
            while len(pieces) > 1:
                order.shuffle(pieces)
                joined = join_patterns(fusion, pieces.pop(), pieces.pop())
                assert joined is not None
                kept = [p for p in pieces if p.vertices & ~joined.vertices]
                pieces = [*kept, joined]
            found.add(pieces[0])
        assert len(found) == 1
        assert found.pop().vertices == (1 << len(fusion)) - 1


def test_a_cyclic_pattern_takes_in_what_lies_between() -> None:
    fusion = fusion_of(diamond())
    a, d = (make_pattern(fusion, vertex(fusion, n)) for n in "ad")
    closed = join_patterns(fusion, a, d)
    assert closed and names_of(fusion, closed) == {"a", "b", "c", "d"}


def test_a_cyclic_pattern_with_too_much_in_between_is_dropped() -> None:
    g = GraphBuilder()
    first = g.same("negate", g.parameter(ROW), name="first")
    value = first
    for _ in range(40):
        value = g.same("tanh", value)
    fusion = fusion_of(g.build(g.same("add", first, value, name="last")))
    ends = (make_pattern(fusion, vertex(fusion, n)) for n in ("first", "last"))
    assert join_patterns(fusion, *ends) is None


def two_chains() -> Graph:
    """a -> b and c -> d."""
    g = GraphBuilder()
    x = g.parameter(ROW)
    b = g.same("tanh", g.same("negate", x, name="a"), name="b")
    d = g.same("tanh", g.same("abs", x, name="c"), name="d")
    return g.build(b, d)


def cross(fusion: FusionGraph) -> list[Pattern]:
    """{a, d} and {b, c} of two chains, each of which waits for the other."""
    a, b, c, d = (make_pattern(fusion, vertex(fusion, n)) for n in "abcd")
    found = [join_patterns(fusion, a, d), join_patterns(fusion, b, c)]
    return [pattern for pattern in found if pattern]


def test_contracting_a_circle_is_refused() -> None:
    """a -> b and c -> d, contracted as {a, d} and {b, c}."""
    fusion = fusion_of(two_chains())
    with pytest.raises(CircularPatterns, match="circle"):
        contract(fusion, cross(fusion))


def test_joins_that_would_wait_for_each_other_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """{a, d} and {b, c} can each be joined, not both; the explorer goes on with what it has."""
    fusion = fusion_of(two_chains())
    crossed = cross(fusion)
    pick = Search.pick_disjoint

    def pick_crossed(search: Search, remote: bool) -> list[tuple[float, list[Pattern]]]:
        own = [(gain, list(chosen)) for gain, chosen in pick(search, remote)]
        return [(1.0, crossed), *own] if len(search.fusion) == 4 else own

    monkeypatch.setattr(Search, "pick_disjoint", pick_crossed)
    (best, *_) = explore(fusion, H100, free).partitions
    assert len(best.fusion) == 1


def test_fusions_that_would_wait_for_each_other_give_no_cover() -> None:
    """The same as XLA's fusions, beside those in an order in which they can run."""
    graph = two_chains()
    scope, fusion = only_scope(graph), fusion_of(graph)

    def cover(*groups: str) -> list[Cover]:
        sets = (sum(1 << vertex(fusion, name) for name in group) for group in groups)
        return cover_as_xla(graph, scope, H100, (free,), fusion, Proposal(tuple(sets), 0.0))

    assert cover("ad", "bc") == []
    assert cover("ab", "cd")[0] == [["a", "b"], ["c", "d"]]


# ---- candidates


def test_the_best_patterns_of_a_producer_are_those_of_enumeration() -> None:
    """None or one of the best of each consumer, all combinations, the three best kept."""
    g = GraphBuilder()
    a = g.same("negate", g.parameter(ROW), name="a")
    sizes = {"b": 4000, "c": 3000, "d": 2000}
    outputs = [
        g.same("tanh", g.slice(a, (0,), (n // 4,), (1,), f"cut_{name}"), name=name)
        for name, n in sizes.items()
    ]
    fusion = fusion_of(g.build(a, *outputs))
    search = Search(fusion, H100, free)
    search.visit_producers()
    top = search.candidates[vertex(fusion, "a")]
    options = [[None, *search.candidates[vertex(fusion, f"cut_{n}")]] for n in sizes]
    every = []
    for chosen in product(*options):
        pattern = make_pattern(fusion, vertex(fusion, "a"))
        for branch in filter(None, chosen):
            pattern = join_patterns(fusion, pattern, branch.pattern) or pattern
        every.append(search.rate(pattern).gain_us)
    assert len(every) == 27
    assert [c.gain_us for c in top] == pytest.approx(sorted(every, reverse=True)[:3])
    assert len(top) == 3
    assert top[0].pattern.size == len(fusion)


def test_at_most_three_candidates_are_kept_and_the_producer_is_in_each() -> None:
    g = GraphBuilder()
    a = g.same("negate", g.parameter(ROW), name="a")
    fusion = fusion_of(g.build(*(g.same("tanh", g.same("abs", a)) for _ in range(9))))
    search = Search(fusion, H100, free)
    search.visit_producers()
    for number, candidates in enumerate(search.candidates):
        assert 1 <= len(candidates) <= 3
        assert all(c.pattern.vertices >> number & 1 for c in candidates)
        gains = [c.gain_us for c in candidates]
        assert gains == sorted(gains, reverse=True)


def test_a_pattern_with_an_infinite_penalty_is_never_kept() -> None:
    fusion = fusion_of(diamond())
    found = explore(fusion, H100, lambda p: math.inf if p.ops > 2 else 0.0)
    for partition in found.partitions:
        assert all(len(names) <= 2 for names in partition.fusion.members)
    assert (
        found.partitions[0].fusion.members == (("a",), ("b", "c"), ("d",))
        or len(found.partitions[0].fusion) == 2
    )


# ---- partitions


def test_everything_is_one_kernel_where_that_is_free() -> None:
    (best, *_) = explore(fusion_of(diamond()), H100, free).partitions
    assert len(best.fusion) == 1
    assert best.gain_us == pytest.approx(28000 / H100.bandwidth_gbs / 1e3 + 3 * H100.launch_us)


def test_a_narrow_beam_finds_one_partition_with_fewer_joins() -> None:
    fusion = fusion_of(statistics(100_000))
    penalty = estimate_penalty(H100, max_statements=40)
    wide, narrow = (explore(fusion, H100, penalty, width) for width in (3, 1))
    assert len(wide.partitions) == 3 and len(narrow.partitions) == 1
    assert narrow.joins < wide.joins
    assert all(s <= 40 for s in narrow.partitions[0].fusion.statements)


def test_remote_patterns_join_what_has_no_edge() -> None:
    g = GraphBuilder()
    outputs = [g.same("tanh", g.parameter(f"f32[{100 + i}]")) for i in range(20)]
    graph = g.build(*outputs)
    (part,) = explore_scope(graph, only_scope(graph), H100).scopes
    assert len(part.members) == 20
    limited = explore_scope(
        graph, only_scope(graph), H100, penalty=lambda p: math.inf if p.ops > 5 else 0.0
    )
    assert sorted(len(s.members) for s in limited.scopes) == [5, 5, 5, 5]


def statistics(rows: int) -> Graph:
    """Column means, then their deviations: four global barriers in one kernel."""
    g = GraphBuilder()
    shape = f"f32[{rows},48]"
    x = g.parameter(shape, "x")
    mean = g.reduce(x, (0,), "add", name="mean")
    centred = g.same("subtract", x, g.broadcast(mean, (rows, 48), (1,)), name="centred")
    squares = g.same("multiply", centred, centred, name="squares")
    variance = g.reduce(squares, (0,), "add", name="variance")
    scaled = g.same("divide", centred, g.broadcast(variance, (rows, 48), (1,)), name="scaled")
    return g.build(scaled)


def test_tiny_data_is_not_worth_global_barriers() -> None:
    graph = statistics(100)
    scopes = explore_scope(graph, only_scope(graph), H100)
    assert [{m for m in s.members if "broadcast" not in m} for s in scopes.scopes] == [
        {"mean"},
        {"centred", "squares", "variance"},
        {"scaled"},
    ]
    reasons = [str(r) for r in scopes.refusals]
    assert any("%mean -> %" in r and "is worth less: saves" in r for r in reasons), reasons


def test_large_data_is_worth_global_barriers() -> None:
    graph = statistics(1_000_000)
    assert len(explore_scope(graph, only_scope(graph), H100).scopes) == 1


def test_a_kernel_is_not_made_longer_than_the_limit() -> None:
    g = GraphBuilder()
    value = g.parameter(ROW)
    for _ in range(100):
        value = g.same("tanh", value)
    graph = g.build(value)
    scopes = explore_scope(
        graph, only_scope(graph), H100, penalty=estimate_penalty(H100, max_statements=40)
    )
    sizes = [len(s.members) for s in scopes.scopes]
    assert sum(sizes) == 100 and max(sizes) <= 40 and len(sizes) <= 5
    assert all("statements long" in r.reason for r in scopes.refusals)
    assert len(scopes.refusals) == len(sizes) - 1


def test_the_latency_decides_among_the_last_partitions() -> None:
    graph = diamond()
    seen: list[int] = []

    def latency(scopes: Scopes) -> float:
        seen.append(len(scopes.scopes))
        return -float(len(scopes.scopes))

    scopes = explore_scope(graph, only_scope(graph), H100, latency=latency)
    assert 1 < len(seen) <= 3
    assert len(scopes.scopes) == max(seen) > 1


def test_a_broadcast_is_repeated_in_each_part_that_reads_it() -> None:
    g = GraphBuilder()
    x, bias = g.parameter("f32[8,16]"), g.parameter("f32[16]")
    spread = g.broadcast(g.same("negate", bias, name="n"), (8, 16), (1,), "spread")
    y = g.same(
        "add", g.same("tanh", g.same("add", x, spread, name="a"), name="t"), spread, name="b"
    )
    graph = g.build(y)
    alone = make_parts(graph, only_scope(graph), fusion_of(graph).members)
    assert partition_of(alone) == [("n",), ("spread", "a"), ("t",), ("spread.3", "b")]
    assert alone.graph["b"].operands == ("t", "spread.3")
    assert alone.scopes[3].inputs == ("n", "t")
    check_graph(alone.graph)


# ---- every graph


@st.composite
def limits(draw: st.DrawFn) -> int:
    return draw(st.integers(1, 6))


def check_partition(before: Scopes, after: Scopes) -> None:
    """Every op is where it was, once; nothing is read before it is computed; copies are of broadcasts, views
    and single elements."""
    graph = check_graph(after.graph)
    originals = [m for s in after.scopes for m in s.members if m in before.graph.nodes]
    assert sorted(originals) == sorted(m for s in before.scopes for m in s.members)
    old_home = {m: s.name for s in before.scopes for m in s.members}
    copies = set(graph.nodes) - set(before.graph.nodes)
    assert all(graph[c].op in ("broadcast", "reshape") or graph[c].array.size == 1 for c in copies)
    home = {m: number for number, s in enumerate(after.scopes) for m in s.members}
    assert copies <= set(home)
    for number, scope in enumerate(after.scopes):
        inside = set(scope.members)
        owners = {old_home[m] for m in scope.members if m in old_home}
        assert len(owners) == 1
        position = {m: i for i, m in enumerate(scope.members)}
        for member in scope.members:
            for operand in graph[member].operands:
                if operand in inside:
                    assert position[operand] < position[member]
                elif not is_embedded(graph, operand):
                    assert operand in scope.inputs
                    if operand in home and after.scopes[home[operand]].stage == scope.stage:
                        assert home[operand] < number
            read_outside = any(u not in inside for u in graph.users[member])
            wanted = member in graph.outputs or read_outside
            if not isinstance(graph[member].type, TupleType):
                assert (member in scope.outputs) == wanted


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.one_of(random_graphs(), wide_graphs()), limits())
def test_partitions_are_legal(graph: Graph, limit: int) -> None:
    before = stitch_remotely(find_scopes(graph))
    for penalty in (None, lambda p: math.inf if p.ops > limit else 0.0):
        check_partition(before, explore_scopes(before, H100, penalty=penalty))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.one_of(random_graphs(), wide_graphs()), limits())
def test_partitions_plan_and_repeat(graph: Graph, limit: int) -> None:
    """Each part gets a legal plan, and a second exploration says the same."""
    before = stitch_remotely(find_scopes(simplify(graph)))
    first, second = (
        explore_scopes(before, HOST, penalty=lambda p: math.inf if p.ops > limit else 0.0)
        for _ in range(2)
    )
    assert str(first) == str(second)
    plan_all(first)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(random_graphs(max_ops=10), limits(), st.integers(0, 99))
def test_explored_programs_compute_the_same(graph: Graph, limit: int, drawn: int) -> None:
    before = stitch_remotely(find_scopes(simplify(graph)))
    after = explore_scopes(before, HOST, penalty=lambda p: math.inf if p.ops > limit else 0.0)
    program = build_program(after.graph, after, plan_all(after))
    arguments = random_arguments(graph, drawn)
    with np.errstate(all="ignore"):
        got, want = HostEngine(program).run(arguments), run_graph(graph, arguments)
    for g, w in zip(got, want, strict=True):
        if DType.of(w.dtype).is_float:
            digits = 1e-2 if w.dtype.itemsize == 2 else 1e-4
            np.testing.assert_allclose(
                g.astype(np.float64), w.astype(np.float64), rtol=digits, atol=digits
            )
        else:
            np.testing.assert_array_equal(g, w)


# ---- cost


def chains(count: int, length: int) -> Graph:
    """`count` chains that share an input, read their neighbour now and then, and end in sums."""
    g = GraphBuilder()
    x = g.parameter("f32[64,128]")
    rows = [g.same("tanh", x) for _ in range(count)]
    for step in range(length):
        for i in range(count):
            other = rows[(i + 1) % count] if step % 3 == 0 else x
            rows[i] = g.same("add", rows[i], other)
    return g.build(*(g.reduce(row, (1,), "add") for row in rows))


def effort(graph: Graph) -> tuple[FusionGraph, Exploration]:
    fusion = fusion_of(graph)
    return fusion, explore(fusion, H100, estimate_penalty(H100, max_statements=300))


def test_the_effort_is_near_linear() -> None:
    """Joins for each vertex and edge of graphs of 120 to 1,000 ops: a constant."""
    ratios = []
    for count in (10, 40, 84):
        fusion, found = effort(chains(count, 10))
        ratios.append(found.joins / (len(fusion) + sum(map(len, fusion.consumers))))
    assert len(fusion) >= 1000
    assert max(ratios) < 100
    assert ratios[-1] < 2 * ratios[0]


def test_a_fan_out_of_hundreds_stays_linear() -> None:
    g = GraphBuilder()
    scale = g.same("tanh", g.parameter("f32[4]"))
    outputs = [
        g.same("multiply", g.parameter(f"f32[4,{64 + i}]"), g.broadcast(scale, (4, 64 + i), (0,)))
        for i in range(500)
    ]
    fusion, found = effort(g.build(*outputs))
    assert len(fusion) == 501
    assert found.joins < 100 * (501 + 500)


# ---- before the first round


def test_what_one_vertex_reads_belongs_to_it() -> None:
    g = GraphBuilder()
    x = g.parameter(ROW)
    a = g.same("negate", x, name="a")
    shared = g.same("abs", a, name="shared")
    left = g.same("tanh", g.same("negate", shared, name="b"), name="left")
    right = g.same("sqrt", shared, name="right")
    fusion = fusion_of(g.build(left, right, g.same("sine", left, name="after")))
    joined = join_single_readers(fusion, 100)
    assert joined.members == (("a", "shared"), ("b", "left"), ("right",), ("after",))
    assert join_single_readers(fusion, 1).members == fusion.members


def test_a_reduction_over_many_blocks_keeps_apart_from_its_one_reader() -> None:
    graph = statistics(1_000_000)
    joined = join_single_readers(fusion_of(graph), 100)
    assert joined.members == (("mean",), ("centred",), ("squares", "variance"), ("scaled",))


def test_levels_follow_the_readers() -> None:
    """x / 2 is read only beside what has met: it is computed there."""
    g = GraphBuilder()
    x = g.parameter("f32[1000000,48]")
    half = g.same("multiply", x, g.splat(0.5, "f32[1000000,48]"), name="half")
    total = g.reduce(x, (0,), "add", name="total")
    spread = g.broadcast(total, (1000000, 48), (1,))
    graph = g.build(g.same("subtract", half, spread, name="y"))
    fusion = fusion_of(graph)
    levels = {names[0]: level for names, level in zip(fusion.members, fusion.levels, strict=True)}
    assert levels == {"half": 0b10, "total": 0b01, "y": 0b10}
    whole = make_pattern(fusion, 0)
    for number in range(1, len(fusion)):
        whole = join_patterns(fusion, whole, make_pattern(fusion, number)) or whole
    assert whole.global_barriers == 1
    assert make_pattern(fusion, 0).global_barriers == 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.one_of(random_graphs(), wide_graphs()))
def test_contraction_keeps_what_depends_on_what(graph: Graph) -> None:
    """Closures of the joined graph are those of the single vertices, and values inside vanish."""
    for scope in stitch_remotely(find_scopes(graph)).scopes:
        fusion = make_fusion_graph(graph, scope, H100)
        joined = join_single_readers(fusion, 100)
        assert sorted(n for names in joined.members for n in names) == sorted(
            n for names in fusion.members for n in names
        )
        home = {n: v for v, names in enumerate(joined.members) for n in names}
        for number, names in enumerate(fusion.members):
            for other, below in enumerate(fusion.members):
                if fusion.below[number] >> other & 1 and home[names[0]] != home[below[0]]:
                    assert joined.below[home[names[0]]] >> home[below[0]] & 1
        for value in joined.values:
            assert value.readers or value.escapes
            assert value.producer < 0 or not value.readers >> value.producer & 1
        for number, consumers in enumerate(joined.consumers):
            assert all(number < consumer for consumer in consumers)
