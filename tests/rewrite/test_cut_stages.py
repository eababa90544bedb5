"""Stages that collectives cut, and the small results that stay with what they read."""

from __future__ import annotations

import pytest

from astitch.graph.ir import Graph, OpaqueAttrs
from astitch.rewrite.cut_stages import cut_stages
from astitch.rewrite.recompute import recompute
from astitch.stitch_scope import Left, choose_stages
from tests.graphs import GraphBuilder


def send(g: GraphBuilder, value: str, name: str, kin: str = "") -> str:
    attrs = OpaqueAttrs("all-reduce", "", b"", (None,), has_effect=True, kin=kin)
    return g.op("opaque", g.array(value), value, attrs=attrs, name=name)


def cut(graph: Graph, *, bound: bool = False) -> dict[str, int]:
    """The stages of a graph whose ops outside are its collectives: one stage before them, one behind."""
    outside = {node.name for node in graph if node.op == "opaque"}
    return dict(cut_stages(graph, dict.fromkeys(graph.nodes, 0), outside, bound=bound))


def start(*, also: bool = False, to: str = "f32[256]") -> tuple[GraphBuilder, str]:
    """A value that is sent, and a sum that nobody waits for.  also: the sum reads another array."""
    g = GraphBuilder()
    x, y = g.parameter("f32[64,256]", "x"), g.parameter("f32[64,256]", "y")
    sent = g.op("tanh", "f32[64,256]", x, name="sent")
    send(g, sent, "received")
    squared = g.op("multiply", "f32[64,256]", x, y if also else sent, name="squared")
    total = g.reduce(squared, (0,) if to == "f32[256]" else (0, 1), "add", name="total")
    return g, total


@pytest.mark.parametrize("to", ["f32[256]", "f32[]"])
def test_a_sum_of_what_is_sent_is_computed_with_it(to):
    g, total = start(to=to)
    stage = cut(g.build("received", total))
    assert stage["total"] == stage["squared"] == stage["sent"]


def test_a_sum_that_reads_more_is_apart():
    g, total = start(also=True)
    stage = cut(g.build("received", total))
    assert stage["total"] == stage["squared"] > stage["sent"]


@pytest.mark.parametrize("awaited", [False, True])
def test_light_ops_are_repeated_only_for_what_no_collective_waits_for(awaited):
    g = GraphBuilder()
    x = g.parameter("f32[64,256]", "x")
    light = g.op("negate", "f32[64,256]", x, name="light")
    send(g, g.op("tanh", "f32[64,256]", x, name="sent"), "received")
    total = g.reduce(light, (0,), "add", name="total")
    send(g, light, "used")
    graph = g.build("received", "used", send(g, total, "totals") if awaited else total)
    stage = {name: int(name in ("sent", "total")) for name in graph.nodes}
    found = cut_stages(graph, stage, {n.name for n in graph if n.op == "opaque"})
    assert (found["total"] == found["sent"]) == (not awaited)


def test_a_large_result_is_apart():
    g, _ = start()
    stage = cut(g.build("received", "squared"))
    assert stage["squared"] > stage["sent"]


@pytest.mark.parametrize("other_first", [False, True])
def test_sums_that_share_an_op_leave_it_in_front_of_both(other_first):
    """One sum fits what is sent once, the other only what is sent twice; both read the same op."""
    g = GraphBuilder()
    x, y = g.parameter("f32[64,256]", "x"), g.parameter("f32[64,256]", "y")
    send(g, g.op("tanh", "f32[64,256]", x, name="once"), "received")
    twice = g.op("add", "f32[64,256]", x, y, name="twice")
    send(g, twice, "first")
    send(g, twice, "second")
    shared = g.op("negate", "f32[64,256]", x, name="shared")

    def sum_one() -> str:
        return g.reduce(shared, (0,), "add", name="one")

    def sum_other() -> str:
        return g.reduce(
            g.op("add", "f32[64,256]", shared, y, name="with_y"), (0,), "add", name="other"
        )

    made = [sum_one, sum_other]
    totals = [make() for make in (made[::-1] if other_first else made)]
    graph = g.build("received", "first", "second", *totals)
    stage = cut(graph)
    for node in graph:
        if node.op != "opaque":
            assert all(stage[o] <= stage[node.name] for o in node.operands), node.name


def test_without_collectives_nothing_changes():
    g = GraphBuilder()
    y = g.op("tanh", "f32[64,256]", g.parameter("f32[64,256]"))
    graph = g.build(g.reduce(y, (0,), "add"))
    stages = {name: number for number, name in enumerate(graph.nodes)}
    assert cut_stages(graph, stages, ()) is stages


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("rows", [64, 32768])
def test_long_sums_run_beside_collectives_that_take_longest(rows, bound):
    g = GraphBuilder()
    x = g.parameter(f"f32[{rows},256]", "x")
    sent = g.op("tanh", f"f32[{rows},256]", x, name="sent")
    send(g, sent, "received")
    total = g.reduce(sent, (0,), "add", name="total")
    stage = cut(g.build("received", total), bound=bound)
    assert (stage["total"] > stage["sent"]) == (bound and rows > 64)


def update(
    g: GraphBuilder, name: str, shape: str, behind: str | None, rate: str, old: str = ""
) -> str:
    """A weight less its gradient, which devices exchange behind another collective's result."""
    gradient = g.parameter(shape, f"{name}_gradient")
    if behind is not None:
        gradient = g.op("add", shape, gradient, g.broadcast(behind, g.shape(gradient), ()))
    received = send(g, gradient, f"{name}_received")
    scaled = g.op(
        "multiply", shape, received, g.broadcast(rate, g.shape(gradient), ()), name=f"{name}_scaled"
    )
    weight = old or g.parameter(shape, f"{name}_weight")
    return g.op("subtract", shape, weight, scaled, name=name)


def cut_updates(one: str, other: str, *, shared: bool = False) -> dict[str, int]:
    """Of two updates, the second of which waits for more collectives."""
    g = GraphBuilder()
    rate = g.op("negate", "f32[]", g.parameter("f32[]", "rate"), name="rate_")
    first = update(g, "first", one, None, rate)
    total = send(g, g.reduce("first_received", tuple(range(one.count(",") + 1)), "add"), "total")
    second = update(g, "second", other, total, rate, "first_scaled" if shared else "")
    graph = g.build(first, second)
    stage = cut(graph)
    for node in graph:
        if node.op != "opaque":
            assert all(stage[o] <= stage[node.name] for o in node.operands), node.name
    return stage


LARGE, SMALL = "f32[1024,1024]", "f32[1024]"


def test_long_updates_wait_for_their_own_collectives_only():
    stage = cut_updates(LARGE, LARGE)
    assert stage["first"] == stage["first_scaled"] < stage["second"] == stage["second_scaled"]


def test_a_short_update_is_apart_from_a_long_one_that_waits_for_less():
    stage = cut_updates(LARGE, SMALL)
    assert stage["first"] < stage["second"]


@pytest.mark.parametrize("other", [LARGE, SMALL])
def test_a_short_update_waits_for_what_others_wait_for(other):
    stage = cut_updates(SMALL, other)
    assert stage["first"] == stage["second"]


def test_updates_that_share_an_array_have_one_kernel():
    stage = cut_updates(LARGE, LARGE, shared=True)
    assert stage["first"] == stage["second"]


@pytest.mark.parametrize("combined", [False, True])
def test_short_updates_are_apart_where_xla_combines_what_each_waits_for(combined):
    """One kernel would bring two groups together: XLA puts them together in the order in which they are reached."""
    g = GraphBuilder()
    updates = []
    for number, kin in enumerate(("f32", "f32", "max", "max")):
        given = g.parameter("f32[64]", f"given.{number}")
        sent = send(g, given, f"sent.{number}", kin if combined else "")
        updates.append(g.op("negate", "f32[64]", sent, name=f"update.{number}"))
    stage = cut(g.build(*updates))
    assert stage["update.0"] == stage["update.1"]
    assert stage["update.2"] == stage["update.3"]
    assert (stage["update.1"] == stage["update.2"]) == (not combined)


@pytest.mark.parametrize("communicates", [False, True])
def test_a_count_that_is_a_result_waits_for_no_collective(communicates):
    """It lies over the donated count, so that all updates read it: else they would wait for the first one's."""
    g = GraphBuilder()
    count = g.parameter("f32[]", "count")
    new = g.op("add", "f32[]", count, g.constant(1.0), name="new")
    spread = g.broadcast(new, (512, 512), name="spread")
    updates = []
    for number in range(2):
        w = g.parameter("f32[512,512]", f"w.{number}")
        grad = g.dot(w, w, (1,), (0,), name=f"grad.{number}")
        if communicates:
            grad = send(g, grad, f"sent.{number}")
        updates.append(g.op("multiply", "f32[512,512]", grad, spread, name=f"update.{number}"))
    graph = g.build(*updates, new, aliases=[(2, 0)])
    staged = recompute(choose_stages(Left(graph)))
    first = min(staged.stage[u] for u in updates)
    assert (staged.stage["new"] < first) == communicates
