"""Products that compute their operands again, where collectives cut stages."""

from __future__ import annotations

import numpy as np
import pytest

from astitch.graph.ir import Graph, OpaqueAttrs
from astitch.graph.reference import run_graph
from astitch.rewrite.operands import give_operands
from astitch.rewrite.recompute import Staged, recompute
from astitch.stitch_scope import Left, choose_stages
from tests.graphs import GraphBuilder

SHAPE = "f32[512,64]"


def layer(*, communicates: bool) -> Graph:
    """An affine value is multiplied; its gradient and that of the factor wait for a product behind it."""
    g = GraphBuilder()
    x, factor = g.parameter(SHAPE, "x"), g.parameter("f32[64]", "factor")
    w = g.parameter("f32[64,64]", "w")
    centred = g.op("tanh", SHAPE, x, name="centred")
    gain = g.broadcast(factor, (512, 64), (1,), name="gain")
    y = g.op("multiply", SHAPE, centred, gain, name="y")
    out = g.dot(y, w, (1,), (0,), name="out")
    behind = g.dot(out, w, (1,), (0,), name="behind")
    late = g.dot(y, behind, (0,), (0,), name="late")
    product = g.op("multiply", SHAPE, centred, behind, name="product")
    total = g.reduce(product, (0,), "add", name="total")
    below = g.op("multiply", SHAPE, product, gain, name="below")
    if communicates:
        attrs = OpaqueAttrs("all-reduce", "", b"", (None,), has_effect=True)
        below = g.op("opaque", g.array(below), below, attrs=attrs, name="sent")
    return g.build(late, total, below)


def stage(graph: Graph) -> Staged:
    return recompute(choose_stages(Left(graph)))


def test_a_late_product_computes_its_operand_again_where_a_collective_cuts_its_stage():
    staged = stage(layer(communicates=True))
    given = give_operands(staged)
    assert given.graph["late"].operands[0] == "y.operand"
    assert given.graph["out"].operands[0] == "y"
    assert given.outside["y.operand"] == "%late computes its operand, which is not kept"
    assert given.graph["y.operand"].operands == ("centred", "gain.operand")
    assert given.stage["y.operand"] == given.stage["late"]


def test_without_collectives_nothing_is_computed_again():
    staged = stage(layer(communicates=False))
    assert give_operands(staged) is staged


@pytest.mark.parametrize("kept", ["y", "late"])
def test_the_function_stays(kept):
    """The collective is left out, which the reference does not run."""
    graph = layer(communicates=True)
    outputs = (graph.outputs[0], graph.outputs[1], kept)
    given = give_operands(stage(graph)).graph
    rng = np.random.default_rng(0)
    values = [
        rng.standard_normal(graph[p].array.shape).astype(np.float32) for p in graph.parameters
    ]

    def run(found: Graph) -> list[np.ndarray]:
        nodes = {n.name: n for n in found if n.name != "sent"}
        return run_graph(Graph(found.name, nodes, found.parameters, outputs), values)

    for one, other in zip(run(given), run(graph), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
