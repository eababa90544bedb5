"""The least bytes, operations and time of a set of ops: counted by hand, and on every small graph."""

from __future__ import annotations

import pytest
from graphs import GraphBuilder
from hypothesis import given, settings
from strategies import random_graphs

from astitch.cost.speed_of_light import Work, measure_work
from astitch.device.gpu import preset
from astitch.graph.ir import ArrayType, DynamicSliceAttrs, GatherAttrs, Graph
from astitch.graph.ops import OPS
from astitch.scope.remote_stitch import stitch_remotely
from tests.scopes import find_scopes

H100 = preset("h100")


def work_of(graph: Graph) -> Work:
    """The work of the graph's one scope."""
    (scope,) = stitch_remotely(find_scopes(graph)).scopes
    return measure_work(graph, scope.members)


def test_an_input_is_read_once_and_an_output_written_once() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[8,128]")
    total = g.reduce(x, (1,), "add")
    centred = g.same("subtract", x, g.broadcast(total, (8, 128), (0,)))
    assert work_of(g.build(centred)) == Work(8 * 128 * 4, 8 * 128 * 4, 8 * 128 * 2)
    assert work_of(g.build(centred, total)) == Work(8 * 128 * 4, 8 * 128 * 4 + 8 * 4, 8 * 128 * 2)


def test_a_transcendental_counts_as_the_op_table_says() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[100]")
    work = work_of(g.build(g.same("add", g.same("tanh", x), x)))
    assert work.flops == 100 * (OPS["tanh"].flops + OPS["add"].flops)
    assert OPS["tanh"].flops > OPS["add"].flops


def test_of_an_input_only_the_part_that_is_read_counts() -> None:
    g = GraphBuilder()
    x, bias = g.parameter("f32[64,96]"), g.parameter("f32[64,32]")
    middle = g.slice(x, (0, 32), (64, 64), (1, 1))
    assert work_of(g.build(g.same("add", middle, bias))).read_bytes == 2 * 64 * 32 * 4
    first, last = g.slice(x, (0, 0), (64, 32), (1, 1)), g.slice(x, (0, 64), (64, 96), (1, 1))
    both = g.same("add", first, last)
    assert work_of(g.build(both)).read_bytes == 2 * 64 * 32 * 4
    assert work_of(g.build(g.same("add", both, middle))).read_bytes == 64 * 96 * 4
    everything = g.same("negate", x)
    assert work_of(g.build(everything, middle)).read_bytes == 64 * 96 * 4


def test_what_nobody_needs_is_neither_read_nor_computed() -> None:
    """tanh of a whole matrix of which one row is kept."""
    g = GraphBuilder()
    x = g.parameter("f32[64,32]")
    row = g.slice(g.same("tanh", x), (3, 0), (4, 32), (1, 1))
    assert work_of(g.build(row)) == Work(32 * 4, 32 * 4, 32 * OPS["tanh"].flops)


def test_a_gather_reads_its_rows_and_all_of_its_indices() -> None:
    g = GraphBuilder()
    table, rows = g.parameter("f32[30000,64]"), g.parameter("s32[16,1]")
    attrs = GatherAttrs((1,), (0,), (0,), 1, (1, 64))
    embedded = g.op("gather", "f32[16,64]", table, rows, attrs=attrs)
    assert work_of(g.build(embedded)) == Work(16 * 64 * 4 + 16 * 4, 16 * 64 * 4, 0)


def test_an_update_reads_what_it_does_not_replace() -> None:
    g = GraphBuilder()
    x, update, at = g.parameter("f32[100]"), g.parameter("f32[30]"), g.parameter("s32[]")
    y = g.op("dynamic-update-slice", "f32[100]", x, update, at)
    assert work_of(g.build(y)) == Work(70 * 4 + 30 * 4 + 4, 400, 0)


def test_a_dynamic_slice_reads_its_window() -> None:
    g = GraphBuilder()
    x, at = g.parameter("f32[100]"), g.parameter("s32[]")
    y = g.op("dynamic-slice", "f32[10]", x, at, attrs=DynamicSliceAttrs((10,)))
    assert work_of(g.build(y)) == Work(40 + 4, 40, 0)


def test_a_reshape_and_a_repeated_constant_cost_nothing() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[8,16]")
    flat = g.reshape(x, (128,))
    y = g.same("add", flat, g.splat(1.0, "f32[128]"))
    assert work_of(g.build(y, g.same("negate", x))) == Work(512, 1024, 256)


def test_both_results_of_a_reduce_are_written() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[8,16]")
    best = g.arg_max(x, g.iota("s32[8,16]", 1), (1,))
    work = work_of(g.build(g.element(best, 0), g.element(best, 1)))
    assert (work.read_bytes, work.written_bytes) == (8 * 16 * 4, 8 * 4 + 8 * 4)
    assert work.flops > 8 * 16


def test_the_time_is_the_longer_of_bytes_and_arithmetic_and_the_launches() -> None:
    copy = Work(3_015_000_000, 0, 1)
    assert copy.bound_us(H100) == pytest.approx(1e3 + H100.launch_us)
    busy = Work(4, 4, 132 * 128 * 1_980_000, launches=3)
    assert busy.bound_us(H100) == pytest.approx(1e3 + 3 * H100.launch_us)
    assert str(busy) == "reads 4 B, writes 4 B, 33454080000 flops, 3 launches"


@settings(max_examples=100, deadline=None, derandomize=True)
@given(random_graphs())
def test_work_never_exceeds_what_the_ops_read_and_write_one_by_one(graph: Graph) -> None:
    for scope in stitch_remotely(find_scopes(graph)).scopes:
        whole = measure_work(graph, scope.members)
        reads = sum(_bytes(graph, name) for name in scope.inputs)
        writes = sum(_bytes(graph, name) for name in scope.outputs)
        assert 0 <= whole.read_bytes <= reads
        assert 0 <= whole.written_bytes <= writes
        apart = [measure_work(graph, [name]) for name in scope.members]
        assert whole.flops <= sum(work.flops for work in apart)


def _bytes(graph: Graph, name: str) -> int:
    type = graph[name].type
    return type.bytes if isinstance(type, ArrayType) else sum(t.bytes for t in type.elements)
