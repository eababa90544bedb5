"""What is sent late is computed as it is sent, from the narrower array that memory holds."""

from __future__ import annotations

import pytest

from astitch.graph.fallback_operands import find_fallback_operands
from astitch.graph.ir import Graph, OpaqueAttrs
from tests.graphs import GraphBuilder

SIDE = 1024
WIDE, NARROW = f"f32[{SIDE},{SIDE}]", f"bf16[{SIDE},{SIDE}]"


def exchange(g: GraphBuilder, opcode: str, value: str, name: str) -> str:
    attrs = OpaqueAttrs(opcode, "it exchanges data", b"", (None,), has_effect=True)
    return g.op("opaque", g.array(value), value, attrs=attrs, name=name)


def softmax(
    *,
    opcode: str = "all-to-all",
    products: int = 6,
    source: str = NARROW,
    computed: str = "exponential",
    is_result: bool = False,
    is_shared: bool = True,
) -> Graph:
    """Shares of each row; what they are shares of is sent, and read behind a chain of products.

    source: the type of the scores.  computed: of which function.  is_result, is_shared: is that read otherwise too?
    """
    g = GraphBuilder()
    w = g.parameter(source, "w")
    scores = g.dot(g.parameter(source, "x"), w, (1,), (0,), name="scores")
    wide = g.op("convert", WIDE, scores, name="wide") if source != WIDE else scores
    value = g.op(computed, WIDE, wide, name="value") if computed else wide
    flat = g.op("reshape", f"f32[2,{SIDE // 2},{SIDE}]", value, name="flat")
    received = exchange(g, opcode, flat, "received")
    y = g.op("convert", source, value, name="y") if is_shared else g.parameter(source)
    for _ in range(products):
        y = g.dot(y, w, (1,), (0,))
    back = g.op("reshape", WIDE, received)
    out = g.op("add", WIDE, g.op("convert", WIDE, y) if source != WIDE else y, back)
    return g.build(*([out, value] if is_result else [out]))


@pytest.mark.parametrize("opcode", ["all-to-all", "all-gather", "collective-permute"])
def test_what_is_sent_late_is_computed_once_more(opcode):
    graph = softmax(opcode=opcode)
    found = find_fallback_operands(graph, ())
    assert found.products == dict.fromkeys(["wide.operand", "value.operand", "flat"], "received")
    assert found.graph["flat"].operands == ("value.operand",)
    assert found.graph["value.operand"].operands == ("wide.operand",)
    assert found.graph["wide.operand"].operands == ("scores",)
    assert found.graph["y"].operands == ("value",)


@pytest.mark.parametrize(
    "case",
    [
        {"products": 1},  # it is sent at once
        {"source": WIDE},  # what it comes from is as large
        {"computed": ""},  # XLA would send what it is converted from
        {"is_result": True},  # memory holds it anyway
        {"is_shared": False},  # it is computed for the collective alone
    ],
)
def test_else_a_kernel_hands_it_over(case):
    graph = softmax(**case)
    found = find_fallback_operands(graph, ())
    assert (found.graph, found.products) == (graph, {})


@pytest.mark.parametrize("is_donated", [False, True])
def test_a_donated_array_is_not_read_late(is_donated):
    """A result may have taken over its memory by then."""
    g = GraphBuilder()
    x, w = g.parameter(NARROW, "x"), g.parameter(NARROW, "w")
    value = g.op("exponential", WIDE, g.op("convert", WIDE, x), name="value")
    received = exchange(g, "all-to-all", value, "received")
    y = new = g.op("convert", NARROW, value)
    for _ in range(6):
        y = g.dot(y, w, (1,), (0,))
    out = g.op("add", WIDE, g.op("convert", WIDE, y), received)
    graph = g.build(new, out, aliases=[(0, 0)] if is_donated else [])
    assert ("value.operand" in find_fallback_operands(graph, ()).products) != is_donated


def test_a_mask_of_places_is_computed_with_it():
    g = GraphBuilder()
    w, places = g.parameter(NARROW, "w"), f"s32[{SIDE},{SIDE}]"
    scores = g.convert(g.dot(g.parameter(NARROW, "x"), w, (1,), (0,), name="scores"), "f32")
    mask = g.compare("GE", g.iota(places, 0), g.iota(places, 1), name="mask")
    masked = g.op("select", WIDE, mask, scores, g.splat(-1e9, WIDE))
    most = g.broadcast(g.reduce(masked, (1,), "maximum", name="most"), (SIDE, SIDE), (0,))
    value = g.op("exponential", WIDE, g.op("subtract", WIDE, masked, most), name="value")
    received = exchange(g, "all-to-all", value, "received")
    y = g.op("convert", NARROW, value)
    for _ in range(6):
        y = g.dot(y, w, (1,), (0,))
    graph = g.build(g.op("add", WIDE, g.op("convert", WIDE, y), received))
    found = find_fallback_operands(graph, ())
    read = {o for n in found.products for o in found.graph[n].operands} - set(found.products)
    assert {o for o in read if not found.graph[o].is_constant} == {"scores", "most"}
    assert "mask.operand" in found.products
