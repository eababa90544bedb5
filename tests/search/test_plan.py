"""Plans: the paper's golden example, the choice of blocks, demotion of shared memory."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from graphs import GraphBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_graphs

from astitch.compile import compile_graph
from astitch.device.gpu import Gpu, preset
from astitch.device.schedule import Schedule
from astitch.errors import IllegalProduct
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.mapping.stitch_scheme import Scheme
from astitch.rewrite.expand import expand
from astitch.rewrite.reassociate import reassociate
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine
from astitch.scope.remote_stitch import stitch_remotely
from astitch.search.check_plan import check_plan
from astitch.search.plan import LARGE_BLOCK, SMALL_BLOCK, Plan, plan_scope
from tests.large_shapes import load
from tests.scopes import find_scopes


def plan(graph: Graph, gpu: str | Gpu = "h100", schedule: Schedule | None = None) -> Plan:
    """The plan of a graph that is one scope, checked."""
    (scope,) = stitch_remotely(find_scopes(graph)).scopes
    found = plan_scope(graph, scope, preset(gpu) if isinstance(gpu, str) else gpu, schedule)
    assert found is not None
    return check_plan(found)


def golden(rows: int, cols: int) -> Graph:
    """Figures 7 and 9 of the AStitch paper, with its names."""
    g = GraphBuilder("golden")
    pr1, pr2 = g.parameter(f"f32[{rows},{cols}]", "Pr.1"), g.parameter(f"f32[{rows}]", "Pr.2")
    pr3 = g.parameter(f"f32[{rows},{rows}]", "Pr.3")
    b1 = g.broadcast(pr2, (rows, cols), (0,), "B.1")
    r1 = g.reduce(g.same("add", pr1, b1, name="A.1"), (1,), "add", name="R.1")
    d1 = g.same("divide", r1, pr2, name="D.1")
    pw1 = g.same("power", d1, g.splat(2.0, f"f32[{rows}]", "two"), name="Pw.1")
    b2 = g.broadcast(pw1, (rows, rows), (1,), "B.2")
    r2 = g.reduce(g.same("divide", pr3, b2, name="D.2"), (1,), "add", name="R.2")
    b3 = g.broadcast(r2, (rows, rows), (1,), "B.3")
    return g.build(g.same("multiply", b2, b3, name="M.1"))


@pytest.mark.parametrize("gpu", ["h100", "v100"])
def test_the_golden_example_of_the_paper(gpu: str) -> None:
    found = plan(golden(128, 2048), gpu)
    groups = found.arrangement.groups.groups
    assert [(g.dominant, g.sub_dominants) for g in groups] == [
        ("R.1", ("Pw.1",)),
        ("R.2", ("M.1",)),
    ]
    schemes = {name: place.scheme for name, place in found.arrangement.placements.items()}
    assert schemes == {
        "R.1": Scheme.REGIONAL,
        "Pw.1": Scheme.GLOBAL,
        "R.2": Scheme.GLOBAL,
        "M.1": Scheme.INDEPENDENT,
    }
    # Everything else is Local: it has no placement, and lives in the registers of who needs it.
    local = {"A.1", "B.1", "D.1", "B.2", "D.2", "B.3"}
    assert local <= set(found.scope.members)
    assert {s.source for s in found.kernel.scratch} == {"Pw.1", "R.2"}
    assert found.kernel.global_barriers == 2
    assert found.kernel.block_barriers == 1


@pytest.mark.parametrize("shape", [(64, 128), (512, 1024), (1000, 300), (4096, 4096)])
def test_the_golden_example_at_other_shapes(shape: tuple[int, int]) -> None:
    """The schemes stay; a row within a warp needs no block barrier, packed tasks need one more."""
    found = plan(golden(*shape))
    assert found.arrangement.placements["R.1"].scheme is Scheme.REGIONAL
    assert found.kernel.global_barriers == 2
    assert (found.kernel.block_barriers == 0) == (shape == (64, 128))


def test_the_golden_example_computes_the_right_thing() -> None:
    graph = golden(70, 190)
    rng = np.random.default_rng(1)
    arguments = [rng.uniform(0.5, 1.5, graph[p].shape).astype(np.float32) for p in graph.parameters]
    program = compile_graph(graph, preset("host")).program
    assert len(program.kernels) == 1
    (result,) = HostEngine(program, check=True).run(arguments)
    np.testing.assert_allclose(result, run_graph(graph, arguments)[0], rtol=1e-5)


def test_a_plan_prints_every_decision() -> None:
    text = str(plan(golden(128, 2048)))
    assert "dominant %R.1, sub-dominants %Pw.1" in text
    assert "%R.1 reduce, regional: each block reads just the elements that it computed" in text
    assert "%Pw.1 pointwise, global: its readers run in another task loop" in text
    assert "launch: assumed 64 registers: 2 blocks of 512 threads an SM" in text


def test_only_views_need_no_kernel() -> None:
    g = GraphBuilder()
    graph = g.build(g.reshape(g.parameter("f32[8,16]"), (128,)))
    (scope,) = find_scopes(graph).scopes
    assert plan_scope(graph, scope, preset("h100")) is None


def row_sums(rows: int, cols: int) -> Graph:
    g = GraphBuilder()
    return g.build(g.reduce(g.parameter(f"f32[{rows},{cols}]"), (1,), "add"))


def test_blocks_are_large_for_long_rows_and_global_barriers() -> None:
    g = GraphBuilder()
    flat = g.build(g.same("negate", g.parameter("f32[1048576]")))
    assert plan(flat).kernel.block == SMALL_BLOCK
    assert plan(row_sums(4096, 512)).kernel.block == SMALL_BLOCK
    assert plan(row_sums(4096, 2048)).kernel.block == LARGE_BLOCK
    split = plan(row_sums(4, 1 << 20))
    assert split.kernel.block == LARGE_BLOCK
    assert split.kernel.cooperative


@pytest.mark.parametrize(
    ("rows", "cols", "block", "grid"),
    [
        (64, 512, 128, 64),
        (128, 512, 128, 128),
        (264, 512, 256, 132),
        (60, 100, 32, 60),
        (20, 1000, 256, 20),
    ],
)
def test_rows_are_packed_into_blocks_only_where_all_sms_have_some(
    rows: int, cols: int, block: int, grid: int
) -> None:
    kernel = plan(row_sums(rows, cols)).kernel
    assert (kernel.block, kernel.grid) == (block, grid)


def test_without_a_barrier_the_grid_is_free_and_with_one_it_is_a_wave() -> None:
    free = plan(row_sums(100_000, 512)).kernel
    assert free.global_barriers == 0
    assert free.blocks_per_sm == 0
    assert free.grid > preset("h100").sms * 4
    bound = plan(golden(4096, 4096))
    assert bound.kernel.grid == bound.launch.wave == 264
    assert bound.kernel.blocks_per_sm == 2


# ---- demotion


def mirrored_rows(rows: int, cols: int) -> Graph:
    """Each row is read from the other end by other threads of its block: Regional, in shared memory."""
    g = GraphBuilder()
    x = g.parameter(f"f32[{rows},{cols}]", "x")
    largest = g.reduce(x, (1,), "maximum", name="largest")
    e = g.same("subtract", x, g.broadcast(largest, (rows, cols), (0,)), name="e")
    return g.build(e, g.same("multiply", e, g.reverse(e, (1,)), name="y"))


def small_gpu(shared_bytes: int) -> Gpu:
    host = preset("host")
    per_sm = 2 * (shared_bytes + host.shared_reserved_bytes)
    return dataclasses.replace(
        host, shared_per_sm_bytes=per_sm, shared_per_block_bytes=shared_bytes
    )


def test_a_regional_buffer_is_demoted_where_it_does_not_fit() -> None:
    roomy, tight = (plan(mirrored_rows(48, 2048), gpu) for gpu in ("host", small_gpu(6144)))
    place = roomy.arrangement.placements["e"]
    assert (place.scheme, place.shared) == (Scheme.REGIONAL, True)
    assert not any("demoted" in note for note in roomy.notes)
    assert roomy.kernel.global_barriers == 0
    assert roomy.kernel.shared_bytes > 6144
    place = tight.arrangement.placements["e"]
    assert (place.scheme, place.shared, place.stored) == (Scheme.GLOBAL, False, True)
    assert tight.kernel.global_barriers == 1
    assert tight.kernel.shared_bytes <= 6144
    assert (
        f"%e demoted from Regional to Global: {roomy.kernel.shared_bytes} B shared, 6144 B fit"
        in tight.notes
    )


@pytest.mark.parametrize("gpu", [preset("host"), small_gpu(6144)], ids=["regional", "demoted"])
def test_a_demoted_buffer_computes_the_same(gpu: Gpu) -> None:
    program = compile_graph(mirrored_rows(20, 2048), gpu).program
    assert len(program.kernels) == 1
    assert program.kernels[0].global_barriers == (gpu != preset("host"))
    x = np.random.default_rng(2).standard_normal((20, 2048), np.float32)
    e, y = HostEngine(program, check=True).run([x])
    np.testing.assert_array_equal(e, x - x.max(1, keepdims=True))
    np.testing.assert_array_equal(y, e * e[:, ::-1])


def test_what_never_fits_is_an_error() -> None:
    with pytest.raises(
        IllegalProduct, match="B of shared memory where 0 B fit, and nothing to demote"
    ):
        plan(row_sums(64, 2048), small_gpu(0), Schedule(block=256))


def test_less_is_launched_where_nothing_can_be_demoted() -> None:
    """A block of one warp exchanges nothing."""
    small = plan(row_sums(64, 2048), small_gpu(0))
    assert (small.kernel.block, small.kernel.shared_bytes) == (32, 0)
    assert any(note.startswith("blocks of 32: ") for note in small.notes)


def test_an_sm_holds_fewer_blocks_where_they_do_not_find_their_memory() -> None:
    graph = import_hlo(load("batch_norm_of_small_images"))
    found = plan(reassociate(expand(simplify(graph))), "t4", Schedule())
    assert found.kernel.cooperative and found.launch.blocks_per_sm == 1
    assert any(note.startswith("1 blocks an SM: ") for note in found.notes)


# ---- every graph


def random_matrices(seed: int, rows: int, cols: int) -> Graph:
    """A DAG of matrices: repeated row, column and full sums, reversed, transposed and stacked pieces."""
    choice = random.Random(seed)
    g = GraphBuilder()
    shape = (rows, cols)
    dtype = choice.choice(["f32", "bf16", "f64"])
    values = [g.parameter(f"{dtype}[{rows},{cols}]") for _ in range(2)]

    def sums(x: str, dimensions: tuple[int, ...], kept: tuple[int, ...]) -> str:
        total = g.reduce(x, dimensions, choice.choice(["add", "maximum"]))
        return g.broadcast(g.same("tanh", total), shape, kept)

    for _ in range(choice.randint(2, 9)):
        x, y = choice.choice(values[-4:]), choice.choice(values[-4:])
        made = choice.choice(
            [
                lambda x, y: g.same("add", x, y),
                lambda x, y: g.same("multiply", x, y),
                lambda x, y: g.same("tanh", x),
                lambda x, y: sums(x, (1,), (0,)),
                lambda x, y: sums(x, (0,), (1,)),
                lambda x, y: sums(x, (0, 1), ()),
                lambda x, y: g.reverse(x, (1,)),
                lambda x, y: g.reverse(x, (0,)),
                lambda x, y: g.reshape(g.transpose(g.reshape(x, (cols, rows)), (1, 0)), shape),
                lambda x, y: g.concatenate(
                    [g.slice(x, (rows // 2, 0), shape), g.slice(y, (0, 0), (rows // 2, cols))], 0
                ),
            ]
        )
        values.append(made(x, y))
    return g.build(values[-1], choice.choice(values[2:]))


ONE_SM = dataclasses.replace(preset("host"), sms=1)
"""So few blocks that every task loop repeats."""


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**6),
    st.sampled_from((1, 2, 7, 64, 100, 1000, 5000)),
    st.sampled_from((1, 3, 8, 33, 128, 1000, 4096, 50_000)),
    st.sampled_from(("h100", "v100", "t4", "host")),
)
def test_plans_of_random_matrices_are_legal(seed: int, rows: int, cols: int, gpu: str) -> None:
    graph = simplify(random_matrices(seed, rows, cols))
    for scope in stitch_remotely(find_scopes(graph)).scopes:
        for device in (preset(gpu), ONE_SM):
            found = plan_scope(graph, scope, device)
            if found is not None:
                check_plan(found)


@pytest.mark.parametrize("seed", range(12))
def test_repeating_task_loops_compute_the_right_thing(seed: int) -> None:
    rows, cols = [(7, 1000), (1000, 8), (100, 128), (64, 33)][seed % 4]
    graph = random_matrices(seed, rows, cols)
    rng = np.random.default_rng(seed)
    arguments = [
        (rng.integers(-8, 9, (rows, cols)) / 8).astype(graph[p].dtype.numpy)
        for p in graph.parameters
    ]
    results = HostEngine(compile_graph(graph, ONE_SM).program, check=True).run(arguments)
    for result, expected in zip(results, run_graph(graph, arguments), strict=True):
        narrow = expected.dtype.itemsize == 2
        wanted = expected.astype(np.float64)
        allowed = (6e-2 if narrow else 1e-4) * max(float(np.abs(wanted).max()), 1e-30)
        np.testing.assert_allclose(result.astype(np.float64), wanted, rtol=0, atol=allowed)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(random_graphs(14))
def test_plans_of_random_graphs_are_legal(graph: Graph) -> None:
    simple = simplify(graph)
    for scope in stitch_remotely(find_scopes(simple)).scopes:
        for gpu in ("host", "v100"):
            found = plan_scope(simple, scope, preset(gpu))
            if found is not None:
                check_plan(found)


@pytest.mark.parametrize("gpu", ["t4", "v100", "h100"])
def test_many_column_sums_of_one_loop_share_their_exchange(gpu: str) -> None:
    g = GraphBuilder()
    value = g.parameter("f32[100000,512]", "x")
    sums = []
    for _ in range(40):
        value = g.same("sine", value)
        sums.append(g.reduce(value, (0,), "add"))
    found = plan(g.build(*sums), gpu)
    assert found.kernel.shared_bytes <= preset(gpu).shared_per_block_bytes


def test_a_chain_of_ops_may_be_longer_than_pythons_stack() -> None:
    g = GraphBuilder()
    value = g.parameter("f32[64,256]", "x")
    for _ in range(1500):
        value = g.same("sine", value)
    assert len(plan(g.build(value)).scope.members) == 1500
