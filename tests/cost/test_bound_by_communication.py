"""Whether collectives take longer than what can run beside them."""

from __future__ import annotations

import pytest

from astitch.cost.bound_by_communication import is_bound_by_communication
from astitch.device.gpu import preset
from astitch.graph.ir import Graph, OpaqueAttrs
from tests.graphs import GraphBuilder

H100 = preset("h100")

ROWS = "bf16[8192,4096]"
"""67 MB: 149 us at 450 GB/s."""


def send(g: GraphBuilder, value: str, opcode: str = "all-reduce", to: str = "") -> str:
    attrs = OpaqueAttrs(opcode, "", b"", (None,), has_effect=True)
    return g.op("opaque", to or g.array(value), value, attrs=attrs)


def is_bound(graph: Graph) -> bool:
    outside = {n.name for n in graph if n.op in ("opaque", "dot", "while")}
    return is_bound_by_communication(graph, outside, H100)


def test_a_chain_with_nothing_beside_it_is_as_long_as_its_collectives():
    g = GraphBuilder()
    x = send(g, g.op("tanh", ROWS, g.parameter(ROWS)))
    assert is_bound(g.build(send(g, g.op("tanh", ROWS, x))))


@pytest.mark.parametrize(("width", "bound"), [(256, True), (16384, False)])
def test_a_product_that_waits_for_none_is_beside(width, bound):
    g = GraphBuilder()
    received = send(g, g.op("tanh", ROWS, g.parameter(ROWS)))
    left, right = g.parameter(ROWS, "left"), g.parameter(f"bf16[4096,{width}]", "right")
    product = g.dot(left, right, (1,), (0,))
    assert is_bound(g.build(received, product)) == bound


def test_what_a_collective_waits_for_is_not_beside():
    g = GraphBuilder()
    left, right = g.parameter("bf16[8192,4096]", "left"), g.parameter("bf16[4096,16384]", "right")
    assert is_bound(g.build(send(g, g.dot(left, right, (1,), (0,)))))


@pytest.mark.parametrize(("count", "bound"), [(1, True), (40, False)])
def test_of_what_kernels_do_only_their_traffic_counts(count, bound):
    """22 us for each array that is read or written."""
    g = GraphBuilder()
    received = send(g, g.op("tanh", ROWS, g.parameter(ROWS)))
    results = []
    for number in range(count):
        value = g.parameter(ROWS, f"x{number}")
        for _ in range(20):
            value = g.op("negate", ROWS, value)
        results.append(value)
    assert is_bound(g.build(received, *results)) == bound


def test_what_a_device_gathers_is_partly_its_own():
    """7 of 8 parts are sent: 131 us, beside 134 us of products."""

    def make(opcode: str, given: str, made: str) -> Graph:
        g = GraphBuilder()
        received = send(g, g.op("tanh", given, g.parameter(given)), opcode, made)
        left, right = g.parameter(ROWS, "left"), g.parameter("bf16[4096,1980]", "right")
        return g.build(received, g.dot(left, right, (1,), (0,)))

    part = "bf16[1024,4096]"
    assert not is_bound(make("all-gather", part, ROWS))
    assert not is_bound(make("reduce-scatter", ROWS, part))
    assert is_bound(make("all-reduce", ROWS, ROWS))


def test_without_collectives_there_is_nothing_to_wait_for():
    g = GraphBuilder()
    assert not is_bound(g.build(g.op("tanh", ROWS, g.parameter(ROWS))))
