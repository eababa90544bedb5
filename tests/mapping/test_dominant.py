"""Candidates, dominants and groups of a stitch scope."""

from __future__ import annotations

import pytest
from graphs import GraphBuilder
from hypothesis import given, settings
from strategies import random_graphs

from astitch import dominant
from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.dominant import Groups, choose_dominants, find_candidates, stored_value
from astitch.graph.ir import Graph
from astitch.graph.ops import OPS, Kind
from astitch.scope.remote_stitch import stitch_remotely
from tests.scopes import find_scopes


def groups_of(graph: Graph) -> Groups:
    (scope,) = stitch_remotely(find_scopes(graph)).scopes
    return choose_dominants(graph, scope)


def reasons(groups: Groups) -> dict[str, str]:
    return {c.name: c.reason for c in groups.candidates}


def shape_of_groups(groups: Groups) -> list[tuple[str, tuple[str, ...]]]:
    return [(g.dominant, g.sub_dominants) for g in groups.groups]


def softmax() -> Graph:
    g = GraphBuilder()
    x = g.parameter("f32[64,512]", "x")
    largest = g.reduce(x, (1,), "maximum", name="largest")
    shifted = g.same("subtract", x, g.broadcast(largest, (64, 512), (0,)), name="shifted")
    e = g.same("exponential", shifted, name="e")
    total = g.reduce(e, (1,), "add", name="total")
    return g.build(g.same("divide", e, g.broadcast(total, (64, 512), (0,)), name="y"))


def test_softmax_is_one_group() -> None:
    groups = groups_of(softmax())
    assert reasons(groups) == {
        "largest": "reduce",
        "total": "reduce",
        "y": "output of the stitch op",
    }
    assert shape_of_groups(groups) == [("largest", ("total", "y"))]
    assert set(groups.groups[0].members) == set(groups.scope.members)
    assert groups.groups[0].roots == ("largest", "total", "y")


def test_a_heavy_op_read_through_a_broadcast_is_kept() -> None:
    g = GraphBuilder()
    x, y = g.parameter("f32[2]"), g.parameter("f32[2,128]")
    light = g.same("negate", x, name="light")
    heavy = g.same("tanh", light, name="heavy")
    wide = g.broadcast(g.reshape(heavy, (2, 1, 1)), (2, 128, 1), (0, 1, 2), "wide")
    graph = g.build(g.same("add", g.reshape(wide, (2, 128)), y, name="sum"))
    found = reasons(groups_of(graph))
    assert found == {
        "heavy": "heavy element-wise op read through a broadcast",
        "sum": "output of the stitch op",
    }


@pytest.mark.parametrize(("features", "kept"), [(64, True), (8, False)])
def test_weights_of_a_softmax_that_are_repeated_often_are_kept(features: int, kept: bool) -> None:
    """Else each feature of what they weigh computes them again.  A row's own statistics stay local."""
    g = GraphBuilder()
    x, v = g.parameter("f32[64,512]", "x"), g.parameter(f"f32[64,512,{features}]", "v")
    largest = g.reduce(x, (1,), "maximum", name="largest")
    shifted = g.same("subtract", x, g.broadcast(largest, (64, 512), (0,)))
    e = g.same("exponential", shifted, name="e")
    half = g.same("multiply", e, g.broadcast(g.constant(0.5), (64, 512), ()), name="half")
    wide = g.broadcast(half, (64, 512, features), (0, 1))
    graph = g.build(g.reduce(g.same("multiply", wide, v), (1,), "add", name="sum"))
    found = reasons(groups_of(graph))
    assert set(found) == {"largest", "sum", *(["half"] if kept else [])}


def test_a_heavy_op_without_repetition_and_a_light_one_with_it_stay_local() -> None:
    g = GraphBuilder()
    x, y = g.parameter("f32[2]"), g.parameter("f32[2,128]")
    light = g.same("negate", x, name="light")
    heavy = g.same("tanh", y, name="heavy")
    graph = g.build(g.same("add", g.broadcast(light, (2, 128), (0,)), heavy, name="sum"))
    assert list(reasons(groups_of(graph))) == ["sum"]


def test_a_heavy_scalar_is_computed_by_every_thread() -> None:
    g = GraphBuilder()
    x, y = g.parameter("f32[]"), g.parameter("f32[128]")
    heavy = g.same("tanh", x, name="heavy")
    graph = g.build(g.same("add", g.broadcast(heavy, (128,)), y, name="sum"))
    assert list(reasons(groups_of(graph))) == ["sum"]


def test_a_reshape_output_is_another_view_of_its_operand() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[8,16]", "x")
    y = g.same("tanh", x, name="y")
    flat = g.reshape(g.reshape(y, (128,)), (16, 8), "flat")
    graph = g.build(flat)
    assert stored_value(graph, flat) == y
    assert stored_value(graph, x) == x
    assert reasons(groups_of(graph)) == {"y": "output of the stitch op"}


def test_only_reshapes_of_inputs_need_no_kernel() -> None:
    g = GraphBuilder()
    graph = g.build(g.reshape(g.parameter("f32[8,16]"), (128,)))
    groups = groups_of(graph)
    assert groups.candidates == ()
    assert groups.groups == ()


def recomputed(readers: int) -> Graph:
    """A value of 30 ops that several slices read."""
    g = GraphBuilder()
    value = g.parameter("f32[64]")
    for _ in range(30):
        value = g.same("tanh", value)
    value = g.same("negate", value, name="shared")
    pieces = [g.slice(value, (i,), (i + 32,)) for i in range(readers)]
    total = pieces[0]
    for piece in pieces[1:]:
        total = g.same("add", total, piece)
    return g.build(total)


def test_what_many_indices_would_recompute_is_kept() -> None:
    assert "shared" not in reasons(groups_of(recomputed(3)))
    assert reasons(groups_of(recomputed(4)))["shared"] == (
        "read at 4 indices, 31 ops would be recomputed for each"
    )


def test_the_limit_of_recomputation_is_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dominant, "MAX_RECOMPUTED_OPS", 62)
    graph = recomputed(2)
    (scope,) = find_scopes(graph).scopes
    assert "shared" not in {c.name for c in find_candidates(graph, scope)}
    monkeypatch.setattr(dominant, "MAX_RECOMPUTED_OPS", 61)
    assert "shared" in {c.name for c in find_candidates(graph, scope)}


def doubled(levels: int) -> Graph:
    """Each value is read by two ops at its own index, and these by slices, of even and of odd elements."""
    g = GraphBuilder()
    extent = 16 << levels
    value = g.parameter(f"f32[{extent}]")
    for _ in range(levels):
        left, right = g.same("sine", value), g.same("cosine", value)
        even, odd = (g.slice(x, (i,), (extent,), (2,)) for i, x in enumerate((left, right)))
        value, extent = g.same("add", even, odd), extent // 2
    return g.build(value)


def test_indices_of_two_readers_at_one_index_are_both_counted() -> None:
    """They double from level to level, up to a limit."""

    def count_sines(levels: int) -> int:
        kernel = compile_graph(doubled(levels), preset("h100")).program.steps[0].kernel
        return int(kernel.source.count("hlo_sin("))

    assert count_sines(6) == 2**6 - 1
    assert count_sines(7) <= 2**6


def interleaved(levels: int, extent: int = 64) -> Graph:
    """Each level puts the sum and the difference of two arrays side by side, as an inverse wavelet transform does."""
    g = GraphBuilder()
    value = g.parameter(f"f32[{extent},1]")
    for level in range(levels):
        detail = g.same("sine", g.parameter(f"f32[{extent << level},1]"))
        for _ in range(6):
            value = g.same("cosine", value)
        pair = (g.same("add", value, detail), g.same("subtract", value, detail))
        value = g.reshape(g.concatenate(pair, 1), (extent << level + 1, 1))
    return g.build(value)


def count_cosines(graph: Graph) -> int:
    kernel = compile_graph(graph, preset("h100")).program.steps[0].kernel
    return int(kernel.source.count("hlo_cos("))


def test_branches_of_an_interleaving_are_evaluations() -> None:
    """A warp goes through both; they would double from level to level."""
    reason = "read at 2 indices, 51 ops would be recomputed for each"
    assert reason in reasons(groups_of(interleaved(7))).values()
    assert count_cosines(interleaved(4)) < 6 * (2 + 4 + 8 + 16)


def test_a_branch_of_a_long_concatenation_is_one_evaluation() -> None:
    """As of random bits, whose halves are two results of one computation."""
    g = GraphBuilder()
    value = g.parameter("f32[1024]")
    for _ in range(60):
        value = g.same("tanh", value)
    halves = (g.same("sine", value), g.same("cosine", value))
    graph = g.build(g.concatenate(halves, 0))
    assert [*reasons(groups_of(graph)).values()] == ["output of the stitch op"]


def test_results_of_one_size_share_an_evaluation() -> None:
    g = GraphBuilder()
    value = g.parameter("f32[1024]")
    for _ in range(60):
        value = g.same("tanh", value)
    graph = g.build(g.same("sine", value), g.same("cosine", value))
    assert set(reasons(groups_of(graph)).values()) == {"output of the stitch op"}


def two_reduces(first: tuple[int, ...], second: tuple[int, ...]) -> Graph:
    g = GraphBuilder()
    x = g.same("tanh", g.parameter("f32[256,128]"))
    return g.build(
        g.reduce(x, first, "add", name="first"), g.reduce(x, second, "add", name="second")
    )


def test_rows_dominate_columns() -> None:
    assert shape_of_groups(groups_of(two_reduces((0,), (1,)))) == [("second", ("first",))]
    assert shape_of_groups(groups_of(two_reduces((1,), (0,)))) == [("first", ("second",))]


def test_a_reduce_dominates_larger_element_wise_ops() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[16]", "x")
    total = g.reduce(x, (0,), "add", name="total")
    wide = g.same("add", g.broadcast(x, (64, 16), (1,)), g.parameter("f32[64,16]"), name="wide")
    graph = g.build(total, g.same("tanh", wide, name="y"), g.same("negate", x, name="z"))
    # x is loaded once for `total` and `z`; `y` repeats it, which is another space.
    assert shape_of_groups(groups_of(graph)) == [("total", ("z",)), ("y", ())]


def test_groups_end_where_a_kept_value_is_repeated() -> None:
    g = GraphBuilder()
    x, y = g.parameter("f32[64,32]"), g.parameter("f32[16,64]")
    total = g.reduce(x, (1,), "add", name="total")
    wide = g.broadcast(total, (16, 64), (1,), "wide")
    groups = groups_of(g.build(g.same("multiply", wide, y, name="out")))
    assert shape_of_groups(groups) == [("total", ()), ("out", ())]
    assert [g.members for g in groups.groups] == [("total",), ("wide", "out")]
    assert str(groups).splitlines()[1:3] == [
        "  dominant %total, sub-dominants none, 1 ops",
        "  dominant %out, sub-dominants none, 2 ops",
    ]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(random_graphs(12))
def test_groups_of_random_graphs(graph: Graph) -> None:
    for scope in find_scopes(graph).scopes:
        groups = choose_dominants(graph, scope)
        kept = [c.name for c in groups.candidates]
        assert sorted(kept) == sorted(r for g in groups.groups for r in g.roots)
        assert {n for n in scope.members if graph[n].op == "reduce"} <= set(kept)
        for output in scope.outputs:
            stored = stored_value(graph, output)
            computed = OPS[graph[stored].op].kind is not Kind.PROJECTION
            assert stored not in scope.members or not computed or stored in kept
        members = [m for g in groups.groups for m in g.members]
        assert len(members) == len(set(members))
        for group in groups.groups:
            if any(graph[r].op == "reduce" for r in group.roots):
                assert graph[group.dominant].op == "reduce"
