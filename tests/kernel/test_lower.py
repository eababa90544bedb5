"""Lowering: what is loaded how often, where values stay, which guards and barriers a kernel has."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from graphs import GraphBuilder

from astitch.compile import compile_graph, compile_hlo
from astitch.device.gpu import preset
from astitch.device.schedule import DEFAULT, Keep, Schedule
from astitch.emit_cuda import emit_cuda
from astitch.errors import IllegalProduct
from astitch.graph.ir import DType, Graph
from astitch.graph.ops import monoid_of
from astitch.graph.reference import run_graph
from astitch.graph.storage import storage_name
from astitch.kernel import kernel_ir as k
from astitch.kernel.lower import MAX_POINTERS
from astitch.kernel.reducers import make_reducer
from astitch.mapping.stitch_scheme import ReductionScope
from astitch.run.emulate import Order
from astitch.run.host_engine import HostEngine
from astitch.scope.remote_stitch import stitch_remotely
from astitch.search.build_program import build_program
from astitch.search.check_plan import check_plan
from astitch.search.plan import Plan, plan_scope
from astitch.toolchain.nvrtc import compile_cuda
from tests.hlo_runner import lower
from tests.scopes import find_scopes
from tests.small_gpu import assert_close, by_jax, few_sms, find_statements, plan_for


def plan(graph: Graph, gpu: str = "h100", schedule: Schedule | None = None) -> Plan:
    (scope,) = stitch_remotely(find_scopes(graph)).scopes
    found = plan_scope(graph, scope, preset(gpu), schedule)
    assert found is not None
    return check_plan(found)


def loads_of(kernel: k.Kernel, source: str) -> int:
    """Statements that read the array of a graph value."""
    (name,) = [p.name for p in kernel.parameters if p.source == source]
    found = [s for kind in (k.Load, k.LoadVector) for s in find_statements(kernel.body, kind)]
    return sum(s.array == name for s in found)


def count(kernel: k.Kernel, kind: type[k.Statement]) -> int:
    return len(find_statements(kernel.body, kind))


def softmax(rows: int, cols: int, dtype: str = "f32") -> Graph:
    g = GraphBuilder()
    shape = (rows, cols)
    x = g.parameter(f"{dtype}[{rows},{cols}]", "x")
    largest = g.reduce(x, (1,), "maximum", name="largest")
    e = g.same("exponential", g.same("subtract", x, g.broadcast(largest, shape, (0,))), name="e")
    total = g.reduce(e, (1,), "add", name="total")
    return g.build(g.same("divide", e, g.broadcast(total, shape, (0,)), name="y"))


# ---- value cache and index cache


def test_two_reduces_and_an_output_load_their_input_once() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[1024,512]", "x")
    total = g.reduce(x, (1,), "add", name="total")
    squares = g.reduce(g.same("multiply", x, x), (1,), "add", name="squares")
    both = g.same("add", total, squares)
    y = g.same("multiply", x, g.broadcast(both, (1024, 512), (0,)), name="y")
    found = plan(g.build(y))
    assert len(found.arrangement.loops) == 1
    assert loads_of(found.kernel, "x") == 1
    assert found.kernel.reads_bytes == found.kernel.writes_bytes == 1024 * 512 * 4


def test_one_index_serves_every_array_of_its_shape() -> None:
    g = GraphBuilder()
    a, b, c = (g.parameter("f32[64,100,8]", n) for n in "abc")
    s = g.reduce(g.same("add", g.same("multiply", a, b), c), (2,), "add")
    text = emit_cuda(plan(g.build(s)).kernel)
    assert len(re.findall(r"const int at\w* = ", text)) == 1


def test_a_value_of_a_row_is_loaded_outside_the_columns() -> None:
    g = GraphBuilder()
    x, scale = g.parameter("f32[4096,2048]", "x"), g.parameter("f32[4096]", "scale")
    wide = g.broadcast(g.same("negate", scale), (4096, 2048), (0,))
    kernel = plan(g.build(g.reduce(g.same("multiply", x, wide), (1,), "add"))).kernel
    (section,) = [s for s in kernel.body if isinstance(s, k.Section)]
    (loop,) = [s for s in section.body if isinstance(s, k.TaskLoop)]
    (scale_name,) = [p.name for p in kernel.parameters if p.source == "scale"]
    assert any(isinstance(s, k.Load) and s.array == scale_name for s in loop.body)
    calls = [s.expr for s in loop.body if isinstance(s, k.Value)]
    assert [e.op for e in calls if isinstance(e, k.Call)] == ["negate"]


def test_a_value_read_twice_is_computed_once() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[4096]")
    t = g.same("tanh", x)
    text = emit_cuda(plan(g.build(g.same("multiply", t, t), g.same("add", t, x))).kernel)
    assert text.count("hlo_tanh") == 1


# ---- residency


def test_a_short_row_stays_in_registers() -> None:
    kernel = plan(softmax(1024, 1024)).kernel
    assert loads_of(kernel, "x") == 1
    assert count(kernel, k.Keep) > 0
    assert all(s.reducer is not None for s in kernel.slots)
    assert emit_cuda(kernel).count("hlo_exp") == 1


def test_a_long_row_stays_in_shared_memory() -> None:
    found = plan(softmax(1024, 40_000))
    assert loads_of(found.kernel, "x") == 1
    assert count(found.kernel, k.Keep) == 0
    (kept,) = [s for s in found.kernel.slots if s.dtype is not None]
    assert kept.bytes >= 40_000 * 4
    assert kept.dtype is DType.F32


def test_a_narrow_row_is_kept_in_its_own_type() -> None:
    kernel = plan(softmax(1024, 80_000, "bf16")).kernel
    assert loads_of(kernel, "x") == 1
    (kept,) = [s for s in kernel.slots if s.dtype is not None]
    assert kept.dtype is DType.BF16


def test_a_row_that_fits_nowhere_is_read_again() -> None:
    found = plan(softmax(300, 100_000), schedule=Schedule(split=1))
    assert loads_of(found.kernel, "x") == 3
    assert all(s.reducer is not None for s in found.kernel.slots)
    (note,) = found.notes
    assert note.endswith("do not fit on chip: read again")


def test_a_row_that_fits_no_block_stays_with_a_block_group() -> None:
    found = plan(softmax(60, 100_000), schedule=DEFAULT)
    (loop,) = found.arrangement.loops
    assert loop.mapping.cooperative
    assert loads_of(found.kernel, "x") <= 1  # none but through a circular buffer
    assert found.kernel.block_groups * loop.mapping.parts == found.kernel.grid
    assert found.kernel.global_barriers == 0


@pytest.mark.parametrize(
    ("rows", "cols", "dtype", "tolerance"),
    [
        (3, 37, "f32", 1e-5),
        (70, 256, "f32", 1e-5),
        (9, 3000, "bf16", 3e-2),
        (17, 9000, "f32", 1e-5),
        (17, 60_000, "f32", 1e-5),
        (2, 9001, "f32", 1e-5),
    ],
)
def test_residency_does_not_change_the_result(
    rows: int, cols: int, dtype: str, tolerance: float
) -> None:
    graph = softmax(rows, cols, dtype)
    x = np.random.default_rng(4).standard_normal((rows, cols)).astype(DType(dtype).numpy)
    program = compile_graph(graph, preset("host")).program
    assert len(program.kernels) == 1
    (y,) = HostEngine(program).run([x])
    expected = run_graph(graph, [x])[0].astype(np.float64)
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=tolerance, atol=1e-9)


# ---- guards


def column_guards(graph: Graph) -> int:
    return count(plan(graph).kernel, k.If)


def negated(*shape: int) -> Graph:
    g = GraphBuilder()
    extents = ",".join(map(str, shape))
    return g.build(g.same("negate", g.parameter(f"f32[{extents}]")))


def test_there_is_no_guard_where_sizes_divide() -> None:
    assert column_guards(negated(1 << 16)) == 0
    assert column_guards(negated((1 << 16) + 4)) == 1
    assert column_guards(softmax(1024, 1024)) == 0
    assert column_guards(softmax(1024, 1000)) == 3


def test_packed_rows_are_guarded_only_where_some_are_missing() -> None:
    whole, ragged = (emit_cuda(plan(softmax(rows, 32)).kernel) for rows in (1 << 16, (1 << 16) + 3))
    assert "outer_raw" not in whole
    assert "const int outer = clamped(outer_raw, 65538);" in ragged
    assert "if (outer_raw < 65539)" in ragged


def test_a_pad_reads_only_what_is_there() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[30,30]", "x")
    graph = g.build(g.same("negate", g.pad(x, g.constant(5.0, "f32"), (1, 2), (1, 2))))
    text = emit_cuda(plan(graph).kernel)
    assert re.search(r"if \(.*>= 0 && .* < 30", text)
    assert "5.0f" in text


# ---- sizes


def test_more_than_two_billion_elements_are_counted_in_long_long() -> None:
    narrow, wide = plan(negated(1 << 29)).kernel, plan(negated(3_000_000_000)).kernel
    assert (narrow.wide_index, wide.wide_index) == (False, True)
    text = emit_cuda(wide)
    assert "const long long col = " in text
    assert list(compile_cuda(text, "sm_90").kernels) == ["stitch_0"]


def long_sum(count: int) -> Graph:
    """One output of `count` parameters, added in pairs of pairs."""
    g = GraphBuilder()
    terms = [g.parameter("f32[8]") for _ in range(count)]
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        terms = [g.same("add", x, y) for x, y in pairs] + terms[len(terms) // 2 * 2 :]
    return g.build(*terms)


def test_many_pointers_go_through_a_table() -> None:
    graph = long_sum(MAX_POINTERS)
    program = compile_graph(graph, preset("host")).program
    (kernel,) = program.kernels
    assert kernel.pointer_table
    assert "unsigned char* const* pointers" in kernel.source
    assert "pointers[500]" in kernel.source
    arguments = [np.arange(8, dtype=np.float32) + number for number in range(MAX_POINTERS)]
    (result,) = HostEngine(program, check=True).run(arguments)
    np.testing.assert_array_equal(result, np.sum(arguments, 0))


def test_few_pointers_do_not() -> None:
    assert not plan(long_sum(MAX_POINTERS - 2)).kernel.pointer_table


def test_kernels_of_one_level_start_where_the_last_one_ended() -> None:
    g = GraphBuilder()
    outputs = [g.same("negate", g.parameter(f"f32[{n}]")) for n in (4096, 8192, 1000)]
    kernel = plan(g.build(*outputs)).kernel
    sections = [s for s in kernel.body if isinstance(s, k.Section)]
    tasks = [s.body[0].tasks for s in sections if isinstance(s.body[0], k.TaskLoop)]
    assert kernel.grid == sum(tasks)
    assert [s.offset for s in sections] == [0, tasks[0], tasks[0] + tasks[1]]


# ---- barriers


def test_barriers_say_why() -> None:
    g = GraphBuilder()
    x, y = g.parameter("f32[128,2048]"), g.parameter("f32[2048,128]")
    total = g.reduce(x, (1,), "add", name="total")
    graph = g.build(g.same("add", y, g.broadcast(total, (2048, 128), (1,))))
    kernel = plan(graph).kernel
    barriers = [s for s in kernel.body if isinstance(s, k.Barrier)]
    assert barriers == [k.Barrier("global", "Global: %total before level 1")]
    assert kernel.block_barriers == 0  # `total` is reduced through shared memory, but not Regional


def repeated_columns(rows: int, cols: int) -> Graph:
    """Eight states a thread in a task loop that every block walks several times."""
    g = GraphBuilder()
    x = g.parameter(f"f32[{rows},{cols}]")
    column = g.reduce(g.convert(x, "bf16"), (0,), "add", name="column")
    largest = g.reduce(column, (0,), "maximum", name="largest")
    z = g.same("negate", g.parameter(f"bf16[{rows},{cols}]"))
    other = g.reduce(z, (0,), "add", name="other")
    spread = g.broadcast(largest, (cols,), ())
    return g.build(g.same("add", other, g.same("multiply", column, spread)))


def test_a_reduction_in_turns_does_not_run_into_the_next_task() -> None:
    graph = repeated_columns(64, 8192)
    check_plan(plan(graph, "host"))
    rng = np.random.default_rng(6)
    x = rng.integers(-1, 2, (64, 8192))
    arguments = [x.astype(np.float32), x.astype(ml_dtypes.bfloat16)]
    program = compile_graph(graph, preset("host")).program
    (result,) = HostEngine(program, check=True).run(arguments)
    assert result.tobytes() == run_graph(graph, arguments)[0].tobytes()


# ---- reducers and names


@pytest.mark.parametrize(
    ("dtype", "op", "state", "identity"),
    [
        ("f32", "add", DType.F32, 0),
        ("bf16", "add", DType.F32, 0),
        ("f16", "multiply", DType.F32, 1),
        ("bf16", "maximum", DType.BF16, -np.inf),
        ("f64", "minimum", DType.F64, np.inf),
        ("s8", "maximum", DType.S8, -128),
        ("u32", "minimum", DType.U32, 0xFFFFFFFF),
        ("pred", "and", DType.PRED, True),
        ("pred", "or", DType.PRED, False),
        ("s32", "and", DType.S32, -1),
    ],
)
def test_identities(dtype: str, op: str, state: DType, identity: object) -> None:
    g = GraphBuilder()
    name = g.reduce(g.parameter(f"{dtype}[4]"), (0,), op)
    reducer = make_reducer(g.build(name), name, 3)
    assert reducer.number == 3
    assert reducer.fields == (state,)
    assert reducer.identity[0].numpy() == np.asarray(identity).astype(state.numpy)


def test_a_combiner_of_its_own_starts_from_the_init_values() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[4,6]")
    best = g.arg_max(x, g.iota("s32[4,6]", 1), (1,), name="best")
    graph = g.build(g.element(best, 0, "v"), g.element(best, 1, "i"))
    assert monoid_of(graph["best"].regions[0]) is None
    reducer = make_reducer(graph, "best", 0)
    assert reducer.fields == (DType.F32, DType.S32)
    assert [v.numpy().item() for v in reducer.identity] == [float("-inf"), 0]
    assert reducer.state_bytes == 8
    assert storage_name(graph, "i") == "best#1"


def test_state_sizes_are_those_of_the_compiler() -> None:
    def size(*fields: DType) -> int:
        g = GraphBuilder()
        return k.Reducer(0, fields, g.build(), ()).state_bytes

    assert size(DType.BF16) == 4
    assert size(DType.F64, DType.S8) == 16
    assert size(DType.S8, DType.S8, DType.S16) == 4
    assert size(DType.S8, DType.F64, DType.S8) == 24


NASTY = ["if", "x", "x", "min", "task", "9lives", "a.b/c", "naïve*/", "tx", "p_x", "__", "p p"]


def test_names_of_the_module_become_identifiers() -> None:
    g = GraphBuilder()
    values = []
    for number, name in enumerate(NASTY):
        x = g.parameter("f32[40]", f"{name}{'.' * number}")
        values.append(g.same("add", x, values[-1] if values else x, name=f"{name}:{number}\\\n\"'"))
    graph = g.build(*values)
    kernel = plan(graph, "host").kernel
    assert len(kernel.parameters) == 2 * len(NASTY)
    x = np.ones(40, np.float32)
    program = compile_graph(graph, preset("host")).program
    results = HostEngine(program, check=True).run([x] * len(NASTY))
    assert [r[0] for r in results] == [n + 2 for n in range(len(NASTY))]
    assert list(compile_cuda(emit_cuda(kernel), "sm_90").kernels) == ["stitch_0"]


# ---- what stays on chip across a barrier of the grid


def centred_columns(rows: int, cols: int, dtype: str = "f32") -> Graph:
    g = GraphBuilder()
    x = g.parameter(f"{dtype}[{rows},{cols}]", "x")
    total = g.reduce(g.convert(x, "f32"), (0,), "add", name="total")
    mean = g.same("multiply", total, g.splat(1 / rows, f"f32[{cols}]"))
    y = g.same("subtract", g.convert(x, "f32"), g.broadcast(mean, (rows, cols), (1,)))
    return g.build(g.convert(y, dtype, name="y"))


def count_carried(found: Plan) -> tuple[int, int]:
    """(steps of a thread that stay in shared memory, all of its steps)"""
    notes = [n for n in found.notes if "stay in shared memory for loop" in n]
    steps = found.arrangement.loops[0].mapping.row_steps
    match = re.search(r"(\d+) steps of (\d+)", " ".join(notes))
    return (int(match[1]), int(match[2])) if match else (steps if notes else 0, steps)


@pytest.mark.parametrize(
    ("rows", "part"),
    [(25_088, "all"), (50_000, "most"), (150_000, "nothing")],
)
def test_what_fits_is_loaded_once_across_a_barrier_of_the_grid(rows: int, part: str) -> None:
    found = plan(centred_columns(rows, 256))
    kept, steps = count_carried(found)
    assert found.kernel.global_barriers
    assert {"all": kept == steps, "most": steps <= 2 * kept < 2 * steps, "nothing": not kept}[part]
    nothing = plan(centred_columns(rows, 256), schedule=Schedule(keep=Keep.NOTHING))
    assert count_carried(nothing)[0] == 0
    if part == "all":
        assert loads_of(nothing.kernel, "x") == 2 * loads_of(found.kernel, "x")


@pytest.mark.parametrize(
    ("rows", "dtype", "sms"),
    [(3000, "f32", 4), (4501, "bf16", 4), (6001, "bf16", 4), (6300, "f32", 8)],
)
def test_what_stays_across_a_barrier_is_what_was_loaded(rows: int, dtype: str, sms: int) -> None:
    graph = centred_columns(rows, 64, dtype)
    compiled = compile_graph(graph, few_sms(sms))
    assert any("stay in shared memory for loop" in note for p in compiled.plans for note in p.notes)
    x = np.random.default_rng(0).standard_normal((rows, 64)).astype(DType(dtype).numpy)
    (got,) = HostEngine(compiled.program, check=True).run([x])
    (want,) = run_graph(graph, [x])
    close = 1e-5 if dtype == "f32" else 0.02
    np.testing.assert_allclose(got.astype("f4"), want.astype("f4"), rtol=close, atol=close)


def test_what_stays_of_several_columns_is_taken_in_their_order() -> None:
    """Behind the barrier a long nest begins at its end; each vector lies where its own step put it."""
    g = GraphBuilder()
    x = g.parameter("f32[40,2,6000]", "x")
    total = g.reduce(x, (0, 2), "add")
    graph = g.build(g.same("subtract", x, g.broadcast(total, (40, 2, 6000), (1,))))
    gpu = few_sms(8)
    scopes = stitch_remotely(find_scopes(graph))
    found = plan_scope(graph, scopes.scopes[0], gpu, Schedule(split=5))
    assert found is not None
    steps = found.arrangement.loops[0].mapping.col_steps
    assert steps > 1 and count_carried(found)[0] > 1
    program = build_program(graph, scopes, [check_plan(found)])
    given = np.random.default_rng(0).standard_normal((40, 2, 6000)).astype("f4")
    (got,) = HostEngine(program, check=True).run([given])
    (want,) = run_graph(graph, [given])
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(("groups", "sms"), [(2, 8), (40, 4)])
def test_what_stayed_across_a_barrier_is_read_before_its_memory_is_written(
    groups: int, sms: int
) -> None:
    """Beside the loop that takes it from shared memory another one of the level needs some of its own."""
    g = GraphBuilder()
    shape = (groups, 64, 64)
    x, z = g.parameter("f32[6300,64]", "x"), g.parameter(f"f32[{groups},64,64]")
    total = g.reduce(x, (0,), "add")
    centred = g.same("subtract", x, g.broadcast(total, (6300, 64), (1,)))
    scaled = g.same("multiply", z, g.broadcast(total, shape, (1,)))
    sums = g.reduce(scaled, (1, 2), "add")
    graph = g.build(centred, sums, g.same("add", scaled, g.broadcast(sums, shape, (0,))))
    compiled = compile_graph(graph, few_sms(sms))
    assert any(count_carried(found)[0] for found in compiled.plans)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(n).astype("f4") for n in ((6300, 64), shape)]
    results = HostEngine(compiled.program, check=True).run(given)
    for got, want in zip(results, run_graph(graph, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=np.abs(want).max() * 1e-4)


def test_rows_split_over_blocks_are_tested_in_the_last_tile_only() -> None:
    found = plan(centred_columns(25_088, 256))
    switches = [s for s in find_statements(found.kernel.body, k.Switch) if len(s.cases) == 2]
    whole = [s.cases[0] for s in switches if "row_tile" in str(s.cases[0].guards)]
    assert len(whole) == 2, "one where rows are summed and one behind the barrier"
    rows = [g for case in whole for s in find_statements(case.body, k.If) for g in s.guards]
    assert not [g for g in rows if "'row'" in str(g)]


def test_each_tile_of_rows_has_a_sum_that_is_complete_in_a_task() -> None:
    """The sum of the sums of columns, computed again by each block that works on some of the rows."""
    g = GraphBuilder()
    shape = (20_000, 64)
    x, z = g.parameter("f32[20000,64]"), g.parameter("f32[40,64]")
    totals = [g.reduce(g.reduce(part, (0,), "add"), (0,), "add") for part in (x, z)]
    whole = g.same("add", *totals)
    below = g.same("subtract", z, g.broadcast(whole, (40, 64), ()))
    graph = g.build(
        g.same("subtract", x, g.broadcast(whole, shape, ())), below, g.reduce(below, (1,), "add")
    )
    compiled = compile_graph(graph, few_sms(4))
    arranged = [p.arrangement for p in compiled.plans]
    mixed = [
        place.root.name
        for a in arranged
        for place in a.placements.values()
        if a.loops[place.loop].mapping.row_tiles > 1
        and place.reduction_scope is ReductionScope.TASK
        and not set(place.root.space.atoms) & set(a.loops[place.loop].mapping.row)
    ]
    assert mixed, "a sum of columns alone, in a loop of several tiles of rows"
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(n).astype("f4") for n in (shape, (40, 64))]
    results = HostEngine(compiled.program, check=True).run(given)
    for got, want in zip(results, run_graph(graph, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-2)


# ---- arrays in two orders


def add_transposed(shape: tuple[int, ...], permutation: tuple[int, ...], dtype: str) -> Graph:
    """A sum beside an array in another order, and the sum of everything."""
    g = GraphBuilder()
    x = g.parameter(f"{dtype}[{','.join(map(str, shape))}]", "x")
    other = [shape[permutation.index(d)] for d in range(len(shape))]
    y = g.transpose(
        g.parameter(f"{dtype}[{','.join(map(str, other))}]", "y"), permutation, name="turned"
    )
    total = g.same("add", x, y, name="added")
    everything = g.reduce(g.convert(total, "f32"), range(len(shape)), "add", name="everything")
    return g.build(total, everything)


@pytest.mark.parametrize(
    ("shape", "permutation"),
    [
        ((1024, 2048), (1, 0)),
        ((8, 128, 12, 64), (0, 3, 1, 2)),
        ((256, 24, 64), (2, 1, 0)),
        ((6, 1024, 256), (0, 2, 1)),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_warp_reads_whole_sectors_in_either_order(
    shape: tuple[int, ...], permutation: tuple[int, ...], dtype: str
) -> None:
    found = plan(add_transposed(shape, permutation, dtype))
    names = {p.name: p.source for p in found.kernel.parameters}
    accesses = [a for a in found.work.accesses if names[a.array] in ("x", "y", "added")]
    assert len(accesses) >= 3
    for access in accesses:
        assert access.sector_bytes <= 1.2 * access.bytes, names[access.array]


def test_a_warp_writes_whole_sectors_in_either_order() -> None:
    g = GraphBuilder()
    x = g.same("tanh", g.parameter("f32[1024,2048]", "x"), name="straight")
    found = plan(g.build(x, g.transpose(x, (1, 0), name="turned")))
    stored = [a for a in found.work.accesses if a.write]
    assert len(stored) == 2
    assert all(access.sector_bytes == access.bytes for access in stored)


@pytest.mark.parametrize(
    ("shape", "permutation"),
    [
        ((61, 77), (1, 0)),
        ((3, 40, 5, 24), (0, 3, 1, 2)),
        ((7, 9, 50), (2, 1, 0)),
        ((2, 90), (1, 0)),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_arrays_in_two_orders_are_added(
    shape: tuple[int, ...], permutation: tuple[int, ...], dtype: str
) -> None:
    graph = add_transposed(shape, permutation, dtype)
    x, y = (
        np.random.default_rng(n).standard_normal(graph[name].array.shape).astype(DType(dtype).numpy)
        for n, name in enumerate(graph.parameters)
    )
    for gpu in (preset("h100"), few_sms(1)):
        got = HostEngine(compile_graph(graph, gpu).program, check=True).run([x, y])
        for a, b in zip(got, run_graph(graph, [x, y]), strict=True):
            np.testing.assert_allclose(a.astype("f4"), b.astype("f4"), rtol=1e-3, atol=1e-3)


def flow_on(x: jax.Array) -> jax.Array:
    """Steps that read fluxes of their neighbours: each waits for the one before."""
    for _ in range(4):
        flux = jnp.tanh(x * jnp.roll(x, 1, 0)) * jnp.exp(-jnp.square(jnp.roll(x, 1, 1) - x))
        x = x + 0.1 * (flux - jnp.roll(flux, -1, 0) + jnp.roll(flux, 1, 1))
    return x


@pytest.mark.parametrize(
    ("dtype", "size"), [(np.float32, (33, 65)), (ml_dtypes.bfloat16, (40, 288))]
)
def test_much_scratch_takes_over_what_is_no_longer_read(
    size: tuple[int, int], dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astitch.kernel.lower.MUCH_SCRATCH", 0)
    x = np.random.default_rng(0).standard_normal(size).astype(dtype)
    planned = plan_for(few_sms(4), flow_on, x, schedule=DEFAULT)
    (plan,) = planned.plans
    held = sum(array.type.bytes for array in plan.kernel.scratch)
    assert plan.kernel.global_barriers > 3
    assert plan.kernel.scratch_bytes < held
    want = by_jax(flow_on, x)
    for order in Order:
        got = planned.engine(order=order).run([x])
        assert_close(got, want, 0.1 if dtype is ml_dtypes.bfloat16 else 1e-5)
    # One barrier earlier, and a block reads what another has written over.
    swapped = replace(plan.kernel, scratch=tuple(replace(s, offset=0) for s in plan.kernel.scratch))
    with pytest.raises(IllegalProduct, match="which is in use"):
        check_plan(replace(plan, kernel=swapped))


def test_little_scratch_lies_side_by_side() -> None:
    x = np.zeros((40, 96), np.float32)
    (plan,) = plan_for(few_sms(4), flow_on, x, schedule=DEFAULT).plans
    ends = [s.offset + s.type.bytes for s in plan.kernel.scratch]
    assert ends == sorted(ends) and plan.kernel.scratch_bytes >= sum(
        s.type.bytes for s in plan.kernel.scratch
    )


def write_waves(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What a sine's layer adds up for its frequencies."""
    return (x * jnp.cos(x * w)).sum(0), (x * jnp.sin(x * w)).sum(0)


@pytest.mark.parametrize(
    ("fn", "turns"),
    [
        (write_waves, "#pragma unroll 4"),  # of two ops, four lanes each: 32 copies
        (lambda x, w: ((x * jnp.exp(x * w)).sum(0), (x + w).sum(0)), "#pragma unroll"),
        (lambda x, w: (x.astype(int) % 7).sum(0), "#pragma unroll"),  # of integers
    ],
    ids=["waves", "exponentials", "integers"],
)
def test_rows_of_long_text_are_written_out_in_part(fn: Any, turns: str) -> None:
    x, w = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((65_536, 128), (128,)))
    (kernel,) = compile_hlo(lower(fn, x, w), gpu="h100").program.kernels
    lines = [line.strip() for line in kernel.source.splitlines()]
    at = next(i for i, line in enumerate(lines) if line.startswith("for (int k = 0; k < 16"))
    assert lines[at - 1] == turns


@pytest.mark.parametrize(("pieces", "turns"), [(24, "#pragma unroll 2"), (2, "#pragma unroll")])
def test_steps_over_many_pieces_are_written_out_in_part(pieces: int, turns: str) -> None:
    """The norm of gradients behind each other: each step has a case for each of them."""

    def norm(*arrays: Any) -> Any:
        joined = jnp.concatenate([a.ravel() for a in arrays])
        return jnp.sqrt(jnp.square(joined).sum()), jnp.isfinite(joined).all()

    array = jax.ShapeDtypeStruct((2_097_152,), jnp.float32)
    text = lower(norm, *[array] * pieces)
    (kernel,) = compile_hlo(text, gpu="h100").program.kernels
    lines = [line.strip() for line in kernel.source.splitlines()]
    at = next(i for i, line in enumerate(lines) if line.startswith("for (int l = 0"))
    assert lines[at - 1] == turns
