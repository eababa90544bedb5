"""Stitch scopes and remote stitching: what shares a kernel, what must not, and the reasons given."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import GraphBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from astitch import stitch_scope
from astitch.graph.collectives import find_awaited, find_scattered
from astitch.graph.dimensions import is_embedded
from astitch.graph.ir import (
    CholeskyAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DynamicSliceAttrs,
    Graph,
    IotaAttrs,
    OpaqueAttrs,
    SliceAttrs,
    SortAttrs,
    TupleType,
)
from astitch.graph.ops import OPS, Kind
from astitch.scope import remote_stitch
from astitch.scope.remote_stitch import stitch_remotely
from astitch.stitch_scope import Left, Scopes, choose_stages
from tests.scopes import find_scopes

SQUARE = "f32[16,16]"


def members(scopes: Scopes) -> list[tuple[str, ...]]:
    return [scope.members for scope in scopes.scopes]


def test_what_is_connected_is_one_scope() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[8,128]", "x")
    total = g.reduce(x, (1,), "add", name="total")
    spread = g.broadcast(total, (8, 128), (0,), "spread")
    graph = g.build(g.same("subtract", x, spread, name="centred"), total)
    (scope,) = find_scopes(graph).scopes
    assert scope.members == ("total", "spread", "centred")
    assert scope.inputs == ("x",)
    assert scope.outputs == ("total", "centred")
    assert scope.stage == 0
    assert str(scope) == "scope stitch_0 (stage 0): 3 ops, 1 inputs, outputs %total, %centred"


def test_a_product_stays_outside_and_cuts_the_scope() -> None:
    g = GraphBuilder()
    x = g.parameter(SQUARE, "x")
    a = g.same("negate", x, name="a")
    d = g.dot(a, x, (1,), (0,), name="d")
    graph = g.build(g.same("tanh", d, name="b"))
    scopes = find_scopes(graph)
    assert members(scopes) == [("a",), ("b",)]
    assert [s.stage for s in scopes.scopes] == [0, 1]
    assert [str(r) for r in scopes.outside] == [
        "not stitched: %d: compute-intensive: a library call"
    ]
    assert scopes.refusals == ()


def cycle_graph() -> Graph:
    """a -> dot -> b and a -> b."""
    g = GraphBuilder()
    x = g.parameter(SQUARE, "x")
    a = g.same("negate", x, name="a")
    d = g.dot(a, x, (1,), (0,), name="d")
    return g.build(g.same("add", d, a, name="b"))


def test_a_cycle_through_a_product_is_refused() -> None:
    scopes = find_scopes(cycle_graph())
    assert members(scopes) == [("a",), ("b",)]
    assert [str(r) for r in scopes.refusals] == [
        "not stitched: %a -> %b: one kernel for both would close a cycle through %d (dot)"
    ]
    assert str(scopes).splitlines()[-1] == str(scopes.refusals[0])


def test_a_cycle_is_refused_over_any_distance() -> None:
    g = GraphBuilder()
    x = g.parameter(SQUARE, "x")
    a = g.same("negate", x, name="a")
    d = g.dot(g.same("tanh", a, name="before"), x, (1,), (0,), name="d")
    after = g.same("sqrt", g.dot(d, d, (1,), (0,), name="dd"), name="after")
    scopes = find_scopes(g.build(g.same("add", a, after, name="b")))
    assert members(scopes) == [("a", "before"), ("after", "b")]
    (refusal,) = scopes.refusals
    assert (refusal.producer, refusal.consumer) == ("a", "b")
    assert refusal.reason.endswith("close a cycle through %d (dot)")


def test_an_op_on_a_parameter_moves_to_its_reader() -> None:
    g = GraphBuilder()
    x, bias = g.parameter(SQUARE, "x"), g.parameter("f32[16]", "bias")
    scaled = g.same("negate", bias, name="scaled")
    spread = g.broadcast(scaled, (16, 16), (1,), "spread")
    d = g.dot(x, x, (1,), (0,), name="d")
    graph = g.build(g.same("add", d, spread, name="y"))
    scopes = find_scopes(graph)
    assert members(scopes) == [("scaled", "spread", "y")]
    assert scopes.scopes[0].stage == 1
    assert scopes.scopes[0].inputs == ("bias", "d")


def test_a_result_stays_with_an_operand_that_stays_behind() -> None:
    """Both would be stored, and one needs to be.  The number repeated that it reads is no later either."""
    g = GraphBuilder()
    x, y = g.parameter("f32[512,512]", "x"), g.parameter("f32[512,512]", "y")
    a, b = g.dot(x, y, (1,), (0,), name="a"), g.dot(y, x, (1,), (0,), name="b")
    turned = [g.transpose(d, (1, 0)) for d in (a, b)]
    total = g.same("add", *turned, name="total")
    half = g.splat(0.5, "f32[512,512]", name="half")
    result = g.same("multiply", total, half, name="result")
    late = g.dot(g.dot(a, b, (1,), (0,)), x, (1,), (0,), name="late")
    stage = choose_stages(Left(g.build(result, late))).stage
    assert stage["late"] == 3
    assert stage["total"] == stage["result"] == 1
    assert stage["half"] <= stage["result"]


@pytest.mark.parametrize("has_kernel", [False, True])
def test_what_stores_as_much_as_it_reads_moves_to_a_kernel_alone(has_kernel: bool) -> None:
    """Halves are computed early and read late, put together, by a product."""
    g = GraphBuilder()
    x = g.parameter(SQUARE, "x")
    t = g.same("tanh", x, name="t")
    cuts = [SliceAttrs((i, 0), (i + 8, 16), (1, 1)) for i in (0, 8)]
    halves = [g.op("slice", "f32[8,16]", t, attrs=cut) for cut in cuts]
    a, b = g.same("multiply", *halves, name="a"), g.same("subtract", *halves, name="b")
    c = g.op("concatenate", SQUARE, a, b, attrs=DimensionAttrs(0), name="c")
    d = g.dot(x, x, (1,), (0,), name="d")
    e = g.dot(d, d, (1,), (0,), name="e")
    results = [g.reduce(t, (1,), "add"), g.dot(c, e, (1,), (0,))]
    if has_kernel:
        results.append(g.same("tanh", e))
    stage = choose_stages(Left(g.build(*results))).stage
    assert stage["a"] == stage["b"] == 0
    assert stage["c"] == (2 if has_kernel else 0)


def test_a_reduce_of_what_the_early_scope_computes_does_not_move() -> None:
    """Moving it would store the large value instead of the small one."""
    g = GraphBuilder()
    x = g.parameter(SQUARE, "x")
    a = g.same("tanh", x, name="a")
    total = g.reduce(a, (1,), "add", name="total")
    d = g.dot(g.same("negate", a, name="before"), x, (1,), (0,), name="d")
    spread = g.broadcast(total, (16, 16), (0,), "spread")
    scopes = find_scopes(g.build(g.same("add", d, spread, name="y")))
    assert members(scopes) == [("a", "total", "before"), ("spread", "y")]
    assert [str(r) for r in scopes.refusals] == [
        "not stitched: %total -> %spread: they run 1 library or other steps apart, and moving "
        "%total later would keep more bytes in memory"
    ]


def test_a_tuple_valued_reduce_keeps_its_projections() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[8,16]", "x")
    best = g.arg_max(x, g.iota("s32[8,16]", 1), (1,), name="best")
    largest, where = g.element(best, 0, "largest"), g.element(best, 1, "where")
    w = g.parameter("f32[8,8]", "w")
    d = g.reduce(g.dot(w, w, (1,), (0,), name="d"), (1,), "add", name="rows")
    graph = g.build(g.same("add", d, largest, name="y"), where)
    stages = {m: s.stage for s in find_scopes(graph).scopes for m in s.members}
    assert stages["best"] == stages["largest"] == stages["where"]


def sorted_graph() -> Graph:
    g = GraphBuilder()
    x = g.parameter("f32[16]", "x")
    region = GraphBuilder("less")
    a, b = region.parameter("f32[]"), region.parameter("f32[]")
    y = g.op(
        "sort", "f32[16]", x, attrs=SortAttrs(0, True), name="y",
        regions=[region.build(region.compare("LT", a, b))],
    )  # fmt: skip
    return g.build(y)


def complex_graph() -> Graph:
    g = GraphBuilder()
    x = g.parameter("c64[16]", "x")
    return g.build(g.same("floor", x, name="y"))


def nested_region_graph() -> Graph:
    g = GraphBuilder()
    region = GraphBuilder("odd")
    a, b = region.parameter("f32[]"), region.parameter("f32[]")
    row = region.broadcast(a, (3,), ())
    inner = region.reduce(row, (0,), "add", init=b, name="inner")
    zero = g.constant(0.0, "f32")
    y = g.op(
        "reduce", "f32[]", g.parameter("f32[4]"), zero, attrs=DimensionsAttrs((0,)),
        regions=[region.build(inner)], name="y",
    )  # fmt: skip
    return g.build(y)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (sorted_graph(), "'sort' has no emitted form"),
        (complex_graph(), "'floor' of complex numbers has no emitted form"),
        (
            nested_region_graph(),
            "its region holds %broadcast.2 = broadcast, which is not a scalar element-wise op",
        ),
    ],
)
def test_why_an_op_stays_outside(graph: Graph, reason: str) -> None:
    scopes = find_scopes(graph)
    assert scopes.scopes == ()
    assert str(scopes.outside[0]) == f"not stitched: %y: {reason}"


def test_scalar_constants_belong_to_their_readers() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[4]", "x")
    table = g.constant([1.0, 2.0, 3.0, 4.0], "f32", name="table")
    y = g.same("add", g.same("multiply", x, g.splat(2.0, "f32[4]"), name="m"), table, name="y")
    (scope,) = find_scopes(g.build(y)).scopes
    assert scope.inputs == ("x", "table")


# ---- remote stitching


def independent_graph(count: int) -> Graph:
    g = GraphBuilder()
    results = [g.same("negate", g.parameter(f"f32[{8 + i}]")) for i in range(count)]
    return g.build(*results)


def test_independent_scopes_become_one() -> None:
    scopes = find_scopes(independent_graph(5))
    assert len(scopes.scopes) == 5
    (merged,) = stitch_remotely(scopes).scopes
    assert len(merged.members) == len(merged.outputs) == 5
    assert len(merged.inputs) == 5


def test_scopes_of_different_stages_stay_apart() -> None:
    scopes = stitch_remotely(find_scopes(cycle_graph()))
    assert members(scopes) == [("a",), ("b",)]
    assert [s.name for s in scopes.scopes] == ["stitch_0", "stitch_1"]


@pytest.mark.parametrize("again", [False, True], ids=["only there", "read early too"])
def test_ops_move_to_a_late_reader_with_what_only_they_need(again: bool) -> None:
    """Sums of parts in f32 are larger than their result in bf16, so that neither op moves alone."""
    g = GraphBuilder()
    x, w = g.parameter("f32[8,128]", "x"), g.parameter("f32[128,128]", "w")
    parts = [g.dot(x, w, (1,), (0,), name=f"part{i}") for i in range(2)]
    late = g.dot(g.dot(x, w, (1,), (0,), name="first"), w, (1,), (0,), name="late")
    total = g.op("add", "f32[8,128]", *parts, name="total")
    narrow = g.convert(total, "bf16", name="narrow")
    result = g.op("multiply", "bf16[8,128]", narrow, g.convert(late, "bf16"), name="result")
    early = [g.dot(total, w, (1,), (0,), name="early")] if again else []
    *others, last = members(find_scopes(g.build(result, *early)))
    assert {"narrow", "result"} <= {*last}
    assert others == ([("total",)] if again else [])


def test_a_loops_counter_parts_no_kernel() -> None:
    """Nothing follows what XLA computes for it.  Rows are put together in the kernel that computes them."""
    g = GraphBuilder()
    x, i = g.parameter("f32[2,8]"), g.parameter("s32[]")
    y = g.op("exponential", "f32[2,8]", x)
    rows = [g.slice(y, (row, 0), (row + 1, 8)) for row in (1, 0)]
    turned = g.concatenate(rows, 0)
    counter = g.op("add", "s32[]", i, i)
    graph = g.build(counter, turned)
    scopes = stitch_scope.find_scopes(choose_stages(Left(graph, {counter: "XLA's"})))
    assert members(scopes) == [(y, *rows, turned)]


def test_remote_stitching_stops_at_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_stitch, "MAX_OPS", 2)
    scopes = stitch_remotely(find_scopes(independent_graph(5)))
    assert [len(s.members) for s in scopes.scopes] == [2, 2, 1]
    assert [s.name for s in scopes.scopes] == ["stitch_0", "stitch_1", "stitch_2"]
    assert {r.reason for r in scopes.refusals} == {
        "remote stitching would make a kernel of more than 2 ops"
    }
    assert len(scopes.refusals) == 2


# ---- every graph


@st.composite
def graphs_with_products(draw: st.DrawFn) -> Graph:
    """A DAG of square matrices: element-wise ops, row sums repeated, iotas, products, sorts."""
    g = GraphBuilder()
    values = [g.parameter("f32[4,4]") for _ in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(1, 14))):
        recent = st.sampled_from(values[-5:])
        x, y = draw(recent), draw(recent)
        match draw(st.integers(0, 6)):
            case 0 | 1:
                values.append(g.same("add", x, y))
            case 2:
                values.append(g.same("tanh", x))
            case 3:
                values.append(g.broadcast(g.reduce(x, (1,), "maximum"), (4, 4), (0,)))
            case 4:
                values.append(g.same("multiply", x, g.convert(g.iota("s32[4,4]", 0), "f32")))
            case 5:
                values.append(g.reshape(g.reshape(x, (16,)), (4, 4)))
            case _:
                values.append(g.dot(x, y, (1,), (0,)))
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    return g.build(*outputs)


def check_order(graph: Graph, scopes: Scopes) -> None:
    """Outside ops of a stage, then its stitch ops, stage by stage: everything is there when it is read."""
    outside = {refusal.producer for refusal in scopes.outside}
    home: dict[str, str] = {}
    for scope in scopes.scopes:
        for member in scope.members:
            assert member not in home, f"%{member} is in {home[member]} and {scope.name}"
            home[member] = scope.name
    stage: dict[str, int] = {}
    for scope in scopes.scopes:
        stage.update(dict.fromkeys(scope.members, scope.stage))
    for node in graph:
        kind = OPS[node.op].kind
        if kind is Kind.SOURCE and node.op != "iota":
            assert node.name not in home
            continue
        if is_embedded(graph, node.name) and node.name not in home:
            continue
        assert (node.name in home) != (node.name in outside)
        for operand in node.operands:
            if node.name in outside:
                if operand in home or operand in outside:
                    assert stage[operand] < _outside_stage(graph, scopes, node.name)
            elif is_embedded(graph, operand):
                continue
            elif operand in home and home[operand] != home[node.name]:
                assert stage[operand] < stage[node.name]
            elif operand in outside:
                assert _outside_stage(graph, scopes, operand) <= stage[node.name]
        if node.name in outside:
            stage[node.name] = _outside_stage(graph, scopes, node.name)
    for scope in scopes.scopes:
        inside = set(scope.members)
        read = {o for m in scope.members for o in graph[m].operands} - inside
        embedded = {o for o in read if is_embedded(graph, o)}
        assert set(scope.inputs) == read - embedded
        needed = {
            m
            for m in scope.members
            if m in graph.outputs or any(u not in inside for u in graph.users[m])
        }
        assert set(scope.outputs) == {m for m in needed if not isinstance(graph[m].type, TupleType)}


def _outside_stage(graph: Graph, scopes: Scopes, name: str) -> int:
    """The number of outside ops on the longest path that ends with this one."""
    outside = {refusal.producer for refusal in scopes.outside}
    depth: dict[str, int] = {}
    for node in graph:
        depth[node.name] = max((depth[o] for o in node.operands), default=0) + (
            node.name in outside
        )
        if node.name == name:
            break
    return depth[name]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(graphs_with_products())
def test_the_stages_are_an_order_in_which_nothing_is_missing(graph: Graph) -> None:
    scopes = find_scopes(graph)
    check_order(graph, scopes)
    check_order(graph, stitch_remotely(scopes))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(graphs_with_products())
def test_neighbours_of_one_stage_share_a_kernel(graph: Graph) -> None:
    scopes = find_scopes(graph)
    home = {m: s for s in scopes.scopes for m in s.members}
    refused = {(r.producer, r.consumer) for r in scopes.refusals}
    for node in graph:
        for operand in node.operands:
            if node.name in home and operand in home:
                apart = home[node.name] is not home[operand]
                assert apart == ((operand, node.name) in refused)
    merged = stitch_remotely(scopes).scopes
    assert len({s.stage for s in merged}) == len(merged)


@pytest.mark.parametrize("kind", ["iota", "broadcast"])
def test_a_reshape_of_a_value_that_its_index_tells_has_somebody_who_writes_it(kind):
    """As an output, and as the operand of an op that is not stitched."""
    g = GraphBuilder()
    value = g.op("iota", "f32[4]", attrs=IotaAttrs(0)) if kind == "iota" else g.splat(1, "f32[4]")
    view = g.reshape(value, (2, 2))
    factor = g.op("cholesky", "f32[2,2]", view, attrs=CholeskyAttrs(True))
    for output in (view, factor):
        scopes = find_scopes(g.build(output))
        assert [scope.outputs for scope in scopes.scopes] == [(value,)]


def test_a_reshape_of_complex_numbers_is_no_step() -> None:
    g = GraphBuilder()
    view = g.reshape(g.parameter("c64[6]"), (2, 3))
    assert find_scopes(g.build(view)).outside == ()


def all_reduce(g: GraphBuilder, value: str, name: str) -> str:
    attrs = OpaqueAttrs("all-reduce", "", b"", (None,), has_effect=True)
    return g.op("opaque", g.array(value), value, attrs=attrs, name=name)


def layers_with_sums(count: int) -> Graph:
    """A chain of layers, after each a sum over the devices that an update reads."""
    g = GraphBuilder()
    x = g.parameter("f32[64,256]", "x")
    updates = []
    for layer in range(count):
        x = g.op("tanh", "f32[64,256]", x, name=f"layer.{layer}")
        squared = g.op("multiply", "f32[64,256]", x, x, name=f"square.{layer}")
        total = all_reduce(g, squared, f"sum.{layer}")  # large, so that it is cut from the layer
        updates.append(g.op("negate", "f32[64,256]", total, name=f"update.{layer}"))
    return g.build(x, *updates)


@pytest.mark.parametrize("again", [False, True])
def test_a_collective_waits_for_no_op_of_a_kernel_that_it_does_not_read(again):
    graph = layers_with_sums(4)
    found = stitch_remotely(find_scopes(graph, again=again))
    awaited = find_awaited(graph)
    for scope in found.scopes:
        assert len({awaited[name] for name in scope.members if name in awaited}) == 1, str(scope)
    # Each layer but the last is two kernels, since its sum waits for no later layer.
    assert len(found.scopes) == 8
    reasons = [str(refusal) for refusal in found.refusals]
    assert (
        "not stitched: %layer.0 -> %layer.1: %sum.0 can start before %layer.1 is computed"
        in reasons
    )


def test_a_slice_behind_an_all_reduce_is_left_with_its_offset():
    g = GraphBuilder()
    x = g.parameter("f32[64,256]", "x")
    number = g.op("opaque", "u32[]", attrs=OpaqueAttrs("partition-id", "", b""), name="number")
    offset = g.op("convert", "s32[]", number, name="offset")
    summed = all_reduce(g, x, "sum")
    flat = g.op("reshape", "f32[128,128]", summed, name="flat")
    zero = g.constant(np.int32(0), name="zero")
    attrs = DynamicSliceAttrs((64, 128))
    part = g.op("dynamic-slice", "f32[64,128]", flat, offset, zero, attrs=attrs, name="part")
    other = g.op(
        "dynamic-slice", "f32[64,128]", x, offset, zero, attrs=DynamicSliceAttrs((64, 128))
    )
    graph = g.build(g.op("negate", "f32[64,128]", part), other)
    reason = "XLA communicates only the part that it reads of %sum"
    assert find_scattered(graph) == dict.fromkeys(["part", "flat", "offset"], reason)
