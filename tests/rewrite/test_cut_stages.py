"""Stages that collectives cut, and the small results that stay with what they read."""

from __future__ import annotations

import pytest

from astitch.graph.ir import Graph, OpaqueAttrs
from astitch.rewrite.cut_stages import cut_stages
from tests.graphs import GraphBuilder


def send(g: GraphBuilder, value: str, name: str) -> str:
    attrs = OpaqueAttrs("all-reduce", "", b"", (None,), has_effect=True)
    return g.op("opaque", g.array(value), value, attrs=attrs, name=name)


def cut(graph: Graph) -> dict[str, int]:
    """The stages of a graph whose ops outside are its collectives: one stage before them, one behind."""
    outside = {node.name for node in graph if node.op == "opaque"}
    return dict(cut_stages(graph, dict.fromkeys(graph.nodes, 0), outside))


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
