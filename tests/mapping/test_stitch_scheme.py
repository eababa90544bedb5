"""Stitching schemes: where each kept value lives, the passive check, joined loops, split reduces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphs import GraphBuilder
from hypothesis import given, settings
from strategies import random_graphs

from astitch.compile import compile_graph, compile_hlo
from astitch.device.gpu import preset
from astitch.device.schedule import DEFAULT, Schedule
from astitch.dominant import choose_dominants
from astitch.graph import index as ix
from astitch.graph.index import Symbol
from astitch.graph.ir import Graph
from astitch.graph.ops.access import Index
from astitch.hlo_import import import_hlo
from astitch.mapping.roots import Root, RootKind
from astitch.mapping.stitch_scheme import (
    MAX_INLINE_PARTIALS,
    Arrangement,
    ReductionScope,
    Scheme,
    choose_schemes,
    combine_name,
    find_reduction_scope,
    shared_elements,
    why_not_block_local,
)
from astitch.run.host_engine import HostEngine
from astitch.scope.remote_stitch import stitch_remotely
from astitch.tiling.space import Mapping, NotTaken, Space, size_of
from tests.hlo_runner import lower, run_xla
from tests.scopes import find_scopes
from tests.small_gpu import few_sms


def arrange(
    graph: Graph,
    *,
    gpu: str = "h100",
    block: int = 512,
    wave: int = 264,
    demoted: frozenset[str] = frozenset(),
    schedule: Schedule = DEFAULT,
) -> Arrangement:
    (scope,) = stitch_remotely(find_scopes(graph)).scopes
    groups = choose_dominants(graph, scope)
    return choose_schemes(graph, groups, preset(gpu), block, wave, demoted, schedule)


def schemes(arrangement: Arrangement) -> dict[str, str]:
    return {n: p.scheme.value for n, p in arrangement.placements.items()}


def where(arrangement: Arrangement) -> dict[str, tuple[int, int, int]]:
    """(level, loop, phase) of each root."""
    return {
        n: (arrangement.loops[p.loop].level, p.loop, p.phase)
        for n, p in arrangement.placements.items()
    }


def softmax(rows: int, cols: int) -> Graph:
    g = GraphBuilder()
    shape = (rows, cols)
    x = g.parameter(f"f32[{rows},{cols}]", "x")
    largest = g.reduce(x, (1,), "maximum", name="largest")
    e = g.same("exponential", g.same("subtract", x, g.broadcast(largest, shape, (0,))), name="e")
    total = g.reduce(e, (1,), "add", name="total")
    return g.build(g.same("divide", e, g.broadcast(total, shape, (0,)), name="y"))


def test_softmax_is_one_loop_of_three_phases() -> None:
    arrangement = arrange(softmax(1024, 1024))
    assert where(arrangement) == {"largest": (0, 0, 0), "total": (0, 0, 1), "y": (0, 0, 2)}
    assert schemes(arrangement) == {
        "largest": "regional",
        "total": "regional",
        "y": "independent",
    }
    assert arrangement.levels == 1
    assert [p.stored for p in arrangement.placements.values()] == [False, False, True]


@pytest.mark.parametrize("rows", [(16, 64), (4, 16, 16), (64, 16, 1)])
def test_softmax_whose_rows_are_folded_on_the_way_is_one_loop(rows: tuple[int, ...]) -> None:
    """The largest elements are of the array as a matrix, all else is of the array with its dimensions."""
    g = GraphBuilder()
    shape = (*rows, 1024)
    x = g.parameter("f32[1024,1024]", "x")
    largest = g.reduce(x, (1,), "maximum", name="largest")
    folded = g.reshape(largest, rows)
    outer = tuple(range(len(rows)))
    apart = g.same("subtract", g.reshape(x, shape), g.broadcast(folded, shape, outer))
    e = g.same("exponential", apart, name="e")
    total = g.reduce(e, (len(rows),), "add", name="total")
    y = g.same("divide", e, g.broadcast(total, shape, outer), name="y")
    arrangement = arrange(g.build(y))
    assert where(arrangement) == {"largest": (0, 0, 0), "total": (0, 0, 1), "y": (0, 0, 2)}
    assert schemes(arrangement)["largest"] == "regional"


def test_softmax_of_few_long_rows_meets_at_global_barriers() -> None:
    arrangement = arrange(softmax(2, 1 << 23))
    places = arrangement.placements
    for name in ("largest", "total"):
        assert places[name].reduction_scope is not ReductionScope.TASK
        assert places[name].scheme is Scheme.GLOBAL
        assert "partials in scratch" in places[name].reason
    assert arrangement.levels > 2
    assert places["y"].scheme is Scheme.INDEPENDENT


def test_softmax_of_rows_that_fit_a_block_group_is_one_loop() -> None:
    """Its blocks meet in each task, twice; no barrier joins the grid."""
    arrangement = arrange(softmax(60, 100_000))
    assert where(arrangement) == {"largest": (0, 0, 0), "total": (0, 0, 1), "y": (0, 0, 2)}
    assert (arrangement.levels, arrangement.cooperative) == (1, True)
    parts = arrangement.loops[0].mapping.parts
    assert arrangement.group_blocks == parts > 1
    for name in ("largest", "total"):
        place = arrangement.placements[name]
        assert (place.reduction_scope, place.partials, place.in_task) == (
            ReductionScope.BLOCK_GROUP,
            parts,
            True,
        )
        assert (place.scheme, place.stored, place.inline) == (Scheme.GLOBAL, False, False)
        assert place.reason == (
            f"split over the {parts} blocks of a block group: they exchange their parts"
        )


def softmax_of_columns(rows: int, cols: int) -> Graph:
    g = GraphBuilder()
    x = g.parameter(f"f32[{rows},{cols}]")
    largest = g.broadcast(g.reduce(x, (0,), "maximum", name="largest"), (rows, cols), (1,))
    e = g.same("exponential", g.same("subtract", x, largest))
    total = g.broadcast(g.reduce(e, (0,), "add", name="total"), (rows, cols), (1,))
    return g.build(g.same("divide", e, total, name="y"))


def test_columns_that_are_needed_again_are_one_loop() -> None:
    """Its block groups are of row tiles, and exchange a part for each column."""
    arrangement = arrange(softmax_of_columns(8192, 256))
    assert where(arrangement) == {"largest": (0, 0, 0), "total": (0, 0, 1), "y": (0, 0, 2)}
    assert (arrangement.levels, arrangement.cooperative) == (1, True)
    mapping = arrangement.loops[0].mapping
    assert mapping.rows_last and mapping.col_tiles > 1
    assert arrangement.group_blocks == mapping.parts == mapping.row_tiles > 1
    for name in ("largest", "total"):
        place = arrangement.placements[name]
        assert (place.reduction_scope, place.partials, place.in_task) == (
            ReductionScope.BLOCK_GROUP,
            mapping.parts,
            True,
        )


def test_a_kernel_has_block_groups_of_one_size() -> None:
    g = GraphBuilder()
    outputs = []
    for number, (rows, cols) in enumerate(((4, 60_000), (16, 60_000), (4, 150_000))):
        x = g.parameter(f"f32[{rows},{cols}]")
        total = g.reduce(x, (1,), "add", name=f"total{number}")
        outputs.append(g.same("subtract", x, g.broadcast(total, (rows, cols), (0,))))
    arrangement = arrange(g.build(*outputs))
    sizes = {loop.mapping.parts for loop in arrangement.loops if loop.mapping.cooperative}
    assert len(sizes) == 1
    assert arrangement.group_blocks == sizes.pop()


def test_an_element_wise_group_joins_the_loop_of_its_producer() -> None:
    """Proactive adaptation: `next` could have flat tiles of its own, but then `total` would be Global."""
    g = GraphBuilder()
    x, y = g.parameter("f32[4096,256]"), g.parameter("f32[4096]")
    total = g.reduce(x, (1,), "add", name="total")
    graph = g.build(g.same("tanh", g.same("add", total, y), name="next"))
    arrangement = arrange(graph)
    assert where(arrangement) == {"total": (0, 0, 0), "next": (0, 0, 1)}
    assert schemes(arrangement) == {"total": "regional", "next": "independent"}


def scaled(x: Any, y: Any) -> Any:
    """A statistic of one array, for the elements of another."""
    return y * jax.nn.sigmoid(x.mean(-1, keepdims=True))


def scaled_beside_softmax(x: Any, y: Any) -> Any:
    return scaled(x, y) + jax.nn.softmax(y * 2)


def shaded(x: Any, y: Any) -> Any:
    """Two norms, and a product of the rows, for the elements of both."""
    x, y = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in (x, y))
    return (x * y).sum(-1, keepdims=True) * (1 - y)


def corrected(x: Any, y: Any) -> Any:
    """The statistics of both arrays, each for the other."""
    return x - y.max(-1, keepdims=True), y * x.std(-1, keepdims=True)


def scaled_by_both(x: Any, y: Any) -> Any:
    """A sum of statistics of two arrays, for the elements of one of them: no other op connects their columns."""
    return x * (x.mean(-1, keepdims=True) + y.max(-1, keepdims=True))


ROW_PROGRAMS = [scaled, scaled_beside_softmax, shaded, corrected, scaled_by_both]


@pytest.mark.parametrize("fn", ROW_PROGRAMS)
@pytest.mark.parametrize("shape", [(4096, 256), (16, 500, 384), (300_000, 3), (50_000, 4)])
def test_rows_of_several_arrays_stay_in_their_blocks(fn: Any, shape: tuple[int, ...]) -> None:
    args = jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct(shape, jnp.float32)
    (plan,) = compile_hlo(lower(fn, *args), gpu=preset("h100")).plans
    assert (plan.arrangement.levels, len(plan.arrangement.loops)) == (1, 1)


@pytest.mark.parametrize("fn", ROW_PROGRAMS)
@pytest.mark.parametrize("shape", [(37, 96), (3, 5, 65), (1000, 3)])
def test_rows_of_several_arrays_have_their_values(fn: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(shape).astype(np.float32) for _ in range(2)]
    module = lower(fn, *args)
    results = HostEngine(compile_hlo(module).program, check=True).run(args)
    for result, expected in zip(results, run_xla(module, args), strict=True):
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-6)


def test_rows_of_other_lengths_have_loops_of_their_own() -> None:
    args = [jax.ShapeDtypeStruct((4096, n), jnp.float32) for n in (512, 256)]
    graph = import_hlo(lower(scaled, *args))
    assert len(arrange(graph).loops) == 2


def test_outputs_of_other_arrays_are_accessed_as_widely_as_the_first() -> None:
    """What is f32 only between load and store does not narrow the accesses to bf16."""
    g = GraphBuilder()
    scale, outputs = g.same("negate", g.parameter("f32[64]")), []
    for columns in (1024, 512):
        x = g.convert(g.parameter(f"bf16[64,{columns}]"), "f32")
        factor = g.broadcast(scale, (64, columns), (0,))
        outputs.append(g.convert(g.same("multiply", x, factor), "bf16"))
    arrangement = arrange(g.build(*outputs))
    assert len(arrangement.groups.groups) == 1
    assert [loop.mapping.vector for loop in arrangement.loops] == [8, 8]


def test_a_kept_value_read_at_its_own_index_is_local() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[4096]")
    a = g.same("negate", x, name="a")
    arrangement = arrange(g.build(a, g.same("abs", a, name="b")))
    assert schemes(arrangement) == {"a": "local", "b": "independent"}
    assert where(arrangement) == {"a": (0, 0, 0), "b": (0, 0, 0)}
    assert arrangement.placements["a"].reason == "its readers stand at the same index"
    assert arrangement.placements["a"].stored


def transposed(rows: int, cols: int) -> Graph:
    g = GraphBuilder()
    x = g.parameter(f"f32[{rows},{cols}]")
    total = g.reduce(x, (1,), "add", name="total")
    y = g.parameter(f"f32[{cols},{rows}]")
    return g.build(g.same("add", y, g.broadcast(total, (cols, rows), (1,)), name="y"))


def test_a_value_that_other_blocks_read_is_global() -> None:
    arrangement = arrange(transposed(512, 512))
    assert schemes(arrangement) == {"total": "global", "y": "independent"}
    assert where(arrangement) == {"total": (0, 0, 0), "y": (1, 1, 0)}
    assert arrangement.placements["total"].reason == "its readers run in another task loop"
    assert arrangement.placements["total"].stored
    assert arrangement.levels == 2


def mirrored() -> Graph:
    g = GraphBuilder()
    x = g.parameter("f32[64,1024]", "x")
    largest = g.reduce(x, (1,), "maximum", name="largest")
    e = g.same("subtract", x, g.broadcast(largest, (64, 1024), (0,)), name="e")
    return g.build(e, g.same("multiply", e, g.reverse(e, (1,)), name="y"))


def test_a_value_that_other_threads_of_the_block_read_is_in_shared_memory() -> None:
    arrangement = arrange(mirrored())
    place = arrangement.placements["e"]
    assert place.scheme is Scheme.REGIONAL
    assert place.shared
    assert where(arrangement) == {"largest": (0, 0, 0), "e": (0, 0, 1), "y": (0, 0, 2)}
    mapping = arrangement.loops[0].mapping
    assert shared_elements(place, mapping) == 1024 * mapping.outer_threads


def test_a_demoted_value_goes_through_global_memory() -> None:
    arrangement = arrange(mirrored(), demoted=frozenset({"e"}))
    place = arrangement.placements["e"]
    assert (place.scheme, place.shared, place.stored) == (Scheme.GLOBAL, False, True)
    assert where(arrangement)["y"][0] == 1
    # Readers at the same index keep their register: demoting `largest` changes nothing.
    same = arrange(mirrored(), demoted=frozenset({"largest"}))
    assert schemes(same) == schemes(arrange(mirrored()))


def test_layer_norm_backward_accumulates_columns_while_it_walks_rows() -> None:
    g = GraphBuilder()
    rows, cols = 4096, 512
    x, dy = g.parameter(f"f32[{rows},{cols}]", "x"), g.parameter(f"f32[{rows},{cols}]", "dy")
    product = g.same("multiply", x, dy)
    row = g.reduce(product, (1,), "add", name="row")
    column = g.reduce(product, (0,), "add", name="column")
    y = g.same("subtract", dy, g.broadcast(row, (rows, cols), (0,)), name="y")
    arrangement = arrange(g.build(column, y))
    places = arrangement.placements
    assert places["column"].reduction_scope is ReductionScope.LOOP
    assert places["column"].loop == places["row"].loop == places["y"].loop == 0
    assert places["column"].partials == min(264, arrangement.loops[0].mapping.tasks)
    combine = places[combine_name("column")]
    assert combine.root.kind is RootKind.COMBINE
    assert arrangement.loops[combine.loop].level == 1
    assert combine.scheme is Scheme.INDEPENDENT
    assert combine.stored
    assert not places["column"].stored
    assert arrangement.levels == 2


def few_long_rows(rows: int, cols: int) -> Graph:
    g = GraphBuilder()
    x = g.parameter(f"f32[{rows},{cols}]", "x")
    total = g.reduce(x, (1,), "add", name="total")
    return g.build(g.same("subtract", x, g.broadcast(total, (rows, cols), (0,)), name="y"))


def test_few_partials_are_added_by_their_readers() -> None:
    arrangement = arrange(few_long_rows(64, 30_000), schedule=Schedule(split=2))
    place = arrangement.placements["total"]
    assert place.reduction_scope is ReductionScope.TILE
    assert 1 < place.partials <= MAX_INLINE_PARTIALS
    assert place.inline
    assert combine_name("total") not in arrangement.placements
    assert where(arrangement)["y"][0] == 1


def test_many_partials_get_a_loop_of_their_own() -> None:
    arrangement = arrange(few_long_rows(2, 1 << 23))
    place = arrangement.placements["total"]
    assert place.partials > MAX_INLINE_PARTIALS
    assert not place.inline
    levels = {n: level for n, (level, _, _) in where(arrangement).items()}
    assert levels == {"total": 0, combine_name("total"): 1, "y": 2}
    combine = arrangement.placements[combine_name("total")]
    assert combine.reason == f"adds {place.partials} partials in a fixed order"
    assert combine.scheme is Scheme.GLOBAL


def test_a_split_output_is_combined_once() -> None:
    g = GraphBuilder()
    graph = g.build(g.reduce(g.parameter("f32[64,30000]"), (1,), "add", name="total"))
    arrangement = arrange(graph, schedule=Schedule(split=2))
    assert not arrangement.placements["total"].inline
    assert arrangement.placements[combine_name("total")].stored
    assert arrangement.levels == 2


def correlate_spins(x: Any) -> Any:
    """Of each pair of neighbours, from the four sums over all others."""
    p = jnp.abs(x) ** 2
    total = 0.0
    for q in range(p.ndim - 1):
        m = p.sum(tuple(d for d in range(p.ndim) if d not in (q, q + 1)))
        total = total + m[0, 0] + m[1, 1] - m[0, 1] - m[1, 0]
    return total


def correlate_by_reshapes(x: Any) -> Any:
    found = []
    for q in range(x.ndim - 1):
        m = (x * x).reshape(1 << q, 2, 2, -1).sum((0, 3))
        found.append(m[0, 0] * m[1, 1] + 2 * m[::-1][0, 1] * m[1, 0])
    return jnp.stack(found).sum()


def swap_neighbours(x: Any) -> Any:
    """Rows of sums beside their mirror images."""
    sums = [jnp.cos(x).sum(tuple(range(2, x.ndim))), jnp.cos(x).sum((0, *range(3, x.ndim)))]
    return sum(s - s.T + s[::-1, ::-1] for s in sums), sum(map(jnp.trace, sums))


@pytest.mark.parametrize("fn", [correlate_spins, correlate_by_reshapes, swap_neighbours])
@pytest.mark.parametrize("dimensions", [9, 13])
def test_sums_of_partials_are_read_at_any_index(fn: Any, dimensions: int) -> None:
    x = np.random.default_rng(0).standard_normal((2,) * dimensions, np.float32)
    data = lower(fn, x)
    for gpu in ("h100", "host"):
        compile_hlo(data, gpu=preset(gpu))
    program = compile_hlo(data, gpu=few_sms(4)).program
    got = HostEngine(program).run([x])
    for a, b in zip(got, run_xla(data, [x]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=5e-2)


def test_a_reduce_does_not_join_a_loop_that_would_split_it_for_nothing() -> None:
    """A column sum in flat tiles would leave one partial for each of thousands of tasks."""
    g = GraphBuilder()
    x = g.parameter("f32[100000,64]", "x")
    flat = g.same("negate", x, name="flat")
    column = g.reduce(x, (0,), "add", name="column")
    arrangement = arrange(g.build(flat, column))
    place = arrangement.placements["column"]
    assert place.partials <= 264


def test_an_arrangement_prints_its_levels() -> None:
    lines = str(arrange(transposed(512, 512))).splitlines()
    assert lines[0] == "arrangement of stitch_0: 1 global barriers"
    assert lines[1].startswith("  level 0, loop 0: outer 512 / ")
    assert lines[2] == "    phase 0: %total reduce, global: its readers run in another task loop"
    assert lines[3].startswith("  level 1, loop 1: ")
    assert (
        lines[4]
        == "    phase 0: %y pointwise, independent: an output that no op of the kernel reads"
    )


# ---- the passive check and the reduction scope, by hand

A, B = Symbol("a", 8), Symbol("b", 16)
A_INDEX, B_INDEX = ix.of_symbol(A), ix.of_symbol(B)
WHOLE = Mapping((A,), (), (B,), 1, 1, 16, 1, 1, 16)
TILED = Mapping((A,), (), (B,), 1, 1, 8, 1, 1, 8)
C = Symbol("c", 4)
COOPERATIVE_ROW = Mapping((A,), (), (B,), 1, 1, 8, 1, 1, 8, cooperative=True)
COOPERATIVE_GROUP = Mapping(
    (A,), (B,), (C,), 2, 4, 4, 1, 4, 4, packed_inside=True, cooperative=True
)
COOPERATIVE_COLUMN = replace(COOPERATIVE_GROUP, packed_inside=False, rows_last=True)
KEPT = Root(
    "kept",
    RootKind.POINTWISE,
    Space((A, B), frozenset(), 4),
    (A_INDEX, B_INDEX),
    (A_INDEX, B_INDEX),
)
BACKWARDS = ix.offset(ix.scale(B_INDEX, -1), 15)
OTHER_ROW = ix.offset(ix.scale(A_INDEX, -1), 7)


@pytest.mark.parametrize(
    ("mapping", "index", "reason"),
    [
        (WHOLE, (A_INDEX, B_INDEX), None),
        (TILED, (A_INDEX, B_INDEX), None),
        (WHOLE, (A_INDEX, BACKWARDS), None),
        (WHOLE, (A_INDEX, ix.constant(3)), None),
        (TILED, (A_INDEX, BACKWARDS), "it is read at another index and a block holds only a tile of it"),
        (WHOLE, (OTHER_ROW, B_INDEX), "a reader needs elements that other blocks compute"),
        (WHOLE, (ix.constant(0), B_INDEX), "a reader needs elements that other blocks compute"),
        (WHOLE, (A_INDEX, A_INDEX), "a reader needs elements that other blocks compute"),
    ],
)  # fmt: skip
def test_the_passive_check(mapping: Mapping, index: Index, reason: str | None) -> None:
    assert why_not_block_local(KEPT, mapping, index) == reason


def reduce_root(*reduced: Symbol) -> Root:
    return Root("r", RootKind.REDUCE, Space((A, B), frozenset(reduced), 4), (A_INDEX, B_INDEX), ())


def group_root(*reduced: Symbol) -> Root:
    index = (A_INDEX, B_INDEX, ix.of_symbol(C))
    return Root("r", RootKind.REDUCE, Space((A, B, C), frozenset(reduced), 4), index, ())


@pytest.mark.parametrize(
    ("mapping", "root", "reduction_scope"),
    [
        (WHOLE, reduce_root(B), (ReductionScope.TASK, 1)),
        (TILED, reduce_root(B), (ReductionScope.TILE, 2)),
        (WHOLE, reduce_root(A), (ReductionScope.LOOP, None)),
        (WHOLE, reduce_root(A, B), (ReductionScope.LOOP, None)),
        (TILED, reduce_root(A), (ReductionScope.TILE, 8)),
        (Mapping((A,), (), (B,), 8, 1, 16, 1, 1, 16), reduce_root(A), (ReductionScope.TASK, 1)),
        (Mapping((), (A,), (B,), 1, 2, 16, 1, 2, 16), reduce_root(A), (ReductionScope.LOOP, None)),
        (Mapping((), (A,), (B,), 1, 2, 8, 1, 2, 8), reduce_root(A), (ReductionScope.TILE, 4)),
        (WHOLE, KEPT, (ReductionScope.TASK, 1)),
        (COOPERATIVE_ROW, reduce_root(B), (ReductionScope.BLOCK_GROUP, 2)),
        (COOPERATIVE_ROW, reduce_root(A), (ReductionScope.TILE, 8)),
        (COOPERATIVE_ROW, KEPT, (ReductionScope.TASK, 1)),
        (COOPERATIVE_GROUP, group_root(B, C), (ReductionScope.BLOCK_GROUP, 4)),
        (COOPERATIVE_GROUP, group_root(B), (ReductionScope.TILE, 4)),  # every column has a sum of its own
        (COOPERATIVE_GROUP, group_root(C), (ReductionScope.TASK, 1)),
        (COOPERATIVE_COLUMN, group_root(B), (ReductionScope.BLOCK_GROUP, 4)),
        (replace(COOPERATIVE_COLUMN, col_tile=2), group_root(B), (ReductionScope.BLOCK_GROUP, 4)),
        (COOPERATIVE_COLUMN, group_root(B, C), (ReductionScope.TILE, 4)),  # a sum over the columns too is another
        (COOPERATIVE_COLUMN, group_root(C), (ReductionScope.TASK, 1)),
        (replace(COOPERATIVE_COLUMN, col_tile=2), group_root(C), (ReductionScope.TILE, 2)),
        (COOPERATIVE_COLUMN, group_root(A), (ReductionScope.TILE, 4)),
    ],
)  # fmt: skip
def test_where_a_reduce_is_complete(
    mapping: Mapping, root: Root, reduction_scope: tuple[ReductionScope, int | None]
) -> None:
    assert find_reduction_scope(root, mapping) == reduction_scope


# ---- every graph


@settings(max_examples=80, deadline=None, derandomize=True)
@given(random_graphs(14))
def test_levels_follow_the_data(graph: Graph) -> None:
    for scope in stitch_remotely(find_scopes(graph)).scopes:
        groups = choose_dominants(graph, scope)
        arrangement = choose_schemes(graph, groups, preset("host"), 64, 4)
        names = set(arrangement.placements)
        kept = {c.name for c in groups.candidates}
        assert {combine_name(n) for n in kept} | kept >= names >= kept
        levels = [loop.level for loop in arrangement.loops]
        assert levels == sorted(levels)
        assert set(levels) == set(range(arrangement.levels))
        for place in arrangement.placements.values():
            if place.scheme is Scheme.LOCAL:
                assert place.root.kind is RootKind.POINTWISE and not place.shared
            if place.scheme is Scheme.GLOBAL and place.reduction_scope is ReductionScope.TASK:
                assert place.stored


def test_a_column_sum_of_few_long_rows_reads_again_what_its_partials_would_outweigh() -> None:
    """A loss over a large vocabulary: 132 blocks with a partial for each of 60,000 columns would exchange more than the
    rows hold.  Of many short rows the partials are few."""

    def norm_and_columns(rows: int, columns: int) -> Arrangement:
        g = GraphBuilder()
        x = g.parameter(f"f32[{rows},{columns}]", "x")
        total = g.reduce(x, (1,), "add", name="total")
        y = g.same("multiply", x, g.broadcast(total, (rows, columns), (0,)), name="y")
        return arrange(g.build(y, g.reduce(y, (0,), "add", name="columns")))

    long, short = norm_and_columns(160, 60_000), norm_and_columns(100_000, 512)
    assert short.placements["columns"].reduction_scope is ReductionScope.LOOP
    assert long.placements["columns"].reduction_scope is not ReductionScope.LOOP
    assert long.loops[long.placements["columns"].loop].level > 0


def test_a_small_sum_after_a_tall_one_is_one_block_s() -> None:
    """The sum of squares of a bias gradient: its operand is complete behind a barrier, and partials would take
    another."""
    g = GraphBuilder()
    x = g.parameter("f32[100000,512]", "x")
    columns = g.reduce(x, (0,), "add", name="columns")
    squares = g.same("multiply", columns, columns, name="squares")
    arrangement = arrange(g.build(columns, g.reduce(squares, (0,), "add", name="norm")))
    place = arrangement.placements["norm"]
    assert (place.reduction_scope, place.partials) == (ReductionScope.TASK, 1)
    assert arrangement.levels == 3  # partials of the columns, the columns, their norm


def test_what_is_made_of_a_sum_needs_no_barrier_more() -> None:
    """The square root of a norm is taken where the partials are added."""
    g = GraphBuilder()
    x = g.parameter("f32[4096,4096]", "x")
    total = g.reduce(g.same("multiply", x, x), (0, 1), "add", name="total")
    arrangement = arrange(g.build(g.same("sqrt", total, name="norm")))
    assert arrangement.levels == 2
    norm, combine = (arrangement.placements[n] for n in ("norm", combine_name("total")))
    assert norm.loop == combine.loop and norm.phase > combine.phase


@pytest.mark.parametrize(("columns", "vector"), [(1028, 4), (1031, 1), (1032, 4), (1030, 2)])
def test_accesses_suit_the_rows_of_a_slice(columns: int, vector: int) -> None:
    """Rows of 1031 that are cut to 1028 begin anywhere; rows of 1032 at multiples of 4."""
    g = GraphBuilder()
    x = g.parameter(f"f32[999,{columns}]", "x")
    cut = g.slice(x, (0, columns - 1028), (999, columns))
    arrangement = arrange(g.build(g.same("tanh", cut, name="y")))
    assert [loop.mapping.vector for loop in arrangement.loops] == [vector]


def test_whole_arrays_are_accessed_as_vectors_whatever_their_rows() -> None:
    """Eight rows of 1003 are 8024 elements; where a row matters by itself, its elements stand alone."""
    g = GraphBuilder()
    x, y = (g.parameter("f32[8,1003]", name) for name in "xy")
    two = g.splat(2.0, "f32[8,1003]")
    flat = g.build(g.same("add", g.same("multiply", g.same("tanh", x), y), two))
    assert [loop.mapping.vector for loop in arrange(flat).loops] == [4]
    g = GraphBuilder()
    x, row = g.parameter("f32[8,1003]", "x"), g.parameter("f32[1003]", "row")
    by_row = g.build(g.same("add", g.same("tanh", x), g.broadcast(row, (8, 1003), (1,))))
    assert [loop.mapping.vector for loop in arrange(by_row).loops] == [1]
    g = GraphBuilder()
    x, numbers = g.parameter("f32[8,1003]", "x"), g.iota("f32[8,1003]", 1)
    assert [m.mapping.vector for m in arrange(g.build(g.same("add", x, numbers))).loops] == [1]


def test_what_waits_for_another_group_walks_no_dimension_that_its_own_has_summed() -> None:
    """The sum over 8 stands a level before what reads it and the running sum."""

    def fn(x: jax.Array, i: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jnp.sum(x, 0) + jnp.cumsum(u, 0)[i]
        return y, jnp.tanh(y)

    shapes = (((8, 4096, 64), np.float32), ((4096,), np.int32), ((512, 64), np.float32))
    module = lower(fn, *(np.zeros(shape, dtype) for shape, dtype in shapes))
    (plan,) = compile_graph(import_hlo(module), preset("h100")).plans
    first, *_, last = plan.arrangement.loops
    assert (first.level, size_of(first.mapping.row)) == (0, 8)
    assert (last.level, size_of(last.mapping.row)) == (1, 1)


def update_rows(x: jax.Array, n: int) -> jax.Array:
    return jax.lax.dynamic_update_slice(jnp.tanh(x), x[:2] * 2, (n, 0)) + 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: jnp.pad(jnp.tanh(x), ((0, 1), (0, 0)), constant_values=7) * 2,
        lambda x, n: jnp.concatenate([x * 2, jnp.ones((5, 6))]) + 1,
        lambda x, n: jnp.concatenate([jnp.full((3, 6), n), jnp.full((4, 6), 2 * n)]) * x,
        lambda x, n: jax.vjp(lambda x: jnp.tanh(x)[:5], x)[1](x[2:])[0],
        update_rows,
    ],
)
def test_vectors_cross_no_rows_of_one_operand_or_another(fn: Any) -> None:
    """A vector of 4 in rows of 6 would ask for its first element only."""
    arguments = [np.random.default_rng(0).standard_normal((7, 6), np.float32), np.int32(3)]
    module = lower(fn, *arguments, keep_unused=True)
    found = HostEngine(compile_hlo(module).program, check=True).run(arguments)
    for got, want in zip(found, run_xla(module, arguments), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_row_repeated_shares_no_loop_whose_vectors_cross_rows() -> None:
    """Rows of 6: vectors of 4 go through `x` as a whole, but not through `slope`, of which each row is one copy."""

    def fn(x: jax.Array, slope: jax.Array, h: jax.Array) -> tuple[jax.Array, ...]:
        steep = jnp.where(x > 0, x, slope * x)
        q, s = jnp.broadcast_to(steep[:, None], (4, 6, 6)), jnp.transpose(h, (1, 0, 2))
        both = jnp.concatenate([q, s, q - s, q * s], 2)
        return both, x > 0, jnp.broadcast_to(slope, (4, 6)), q, s

    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(shape, np.float32) for shape in ((4, 6), (6,), (6, 4, 6))]
    module = lower(fn, *arguments)
    program = compile_hlo(module).program
    found = HostEngine(program, check=True).run(arguments)
    for got, want in zip(found, run_xla(module, arguments), strict=True):
        np.testing.assert_array_equal(got, want)


# ---- block groups of one kernel


def two_softmaxes(columns: int, others: int) -> Graph:
    """60 rows each, minus their largest."""
    g = GraphBuilder()
    outputs = []
    for number, cols in enumerate((columns, others)):
        x = g.parameter(f"f32[60,{cols}]", f"x{number}")
        largest = g.broadcast(g.reduce(x, (1,), "maximum"), (60, cols), (0,))
        outputs.append(g.same("subtract", x, largest))
    return g.build(*outputs)


def test_block_groups_of_one_kernel_have_as_many_blocks() -> None:
    """A loop whose block groups would be of another size leaves partial results instead, and says why."""
    alike = arrange(two_softmaxes(100_000, 100_000))
    assert [loop.mapping.parts for loop in alike.loops if loop.mapping.cooperative] == [13, 13]
    other = arrange(two_softmaxes(100_000, 60_000))
    mappings = {loop.mapping.col_size: loop.mapping for loop in other.loops}
    assert (
        mappings[100_000].strategy == "cooperative row reduction" and mappings[100_000].cooperative
    )
    found = mappings[60_000]
    assert not found.cooperative
    assert found.strategy == "partial results of the tiles of a cooperative row reduction"
    assert found.not_taken[-1] == NotTaken(
        "cooperative row reduction",
        "its block groups would have 8 blocks, others of the kernel have 13",
    )
