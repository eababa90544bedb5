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


def exchange(g: GraphBuilder, value: str, name: str, kin: str = "") -> str:
    attrs = OpaqueAttrs("all-reduce", "", b"", (None,), has_effect=True, kin=kin)
    return g.op("opaque", g.array(value), value, attrs=attrs, name=name)


def layer(*, communicates: bool, together: bool = False, affine: bool = True) -> Graph:
    """An affine value is multiplied; its gradient and that of the factor wait for a product behind it.

    together: all of them are sent at once, and something else is sent apart.  affine: else it is a square.
    """
    g = GraphBuilder()
    x, factor = g.parameter(SHAPE, "x"), g.parameter("f32[64]", "factor")
    w = g.parameter("f32[64,64]", "w")
    centred = g.op("tanh", SHAPE, x, name="centred")
    gain = g.broadcast(factor, (512, 64), (1,), name="gain")
    y = g.op("multiply", SHAPE, centred, gain if affine else centred, name="y")
    out = g.dot(y, w, (1,), (0,), name="out")
    behind = g.dot(out, w, (1,), (0,), name="behind")
    late = g.dot(y, behind, (0,), (0,), name="late")
    product = g.op("multiply", SHAPE, centred, behind, name="product")
    total = g.reduce(product, (0,), "add", name="total")
    below = g.op("multiply", SHAPE, product, gain, name="below")
    if together:
        late, total, below = (exchange(g, n, f"sent.{n}", "f32") for n in (late, total, below))
        other = g.parameter(SHAPE, "other")
        apart = exchange(g, g.op("tanh", SHAPE, other), "apart", "max")
        return g.build(late, total, below, apart, g.op("negate", SHAPE, other))
    if communicates:
        below = exchange(g, below, "sent")
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


@pytest.mark.parametrize("affine", [True, False])
def test_where_all_is_sent_together_xla_must_compute_the_operand_with_the_product(affine):
    """Else an op of its own makes XLA's scheduler run the product late."""
    staged = stage(layer(communicates=True, together=True, affine=affine))
    assert staged.parts
    assert give_operands(staged).graph["late"].operands[0] == ("y" if affine else "y.operand")


@pytest.mark.parametrize(("wide", "again"), [("f32", False), ("bf16", True)])
def test_what_comes_from_a_wider_array_is_kept(wide, again):
    """XLA would compute it by a kernel of its own, and the product would read as much as before."""
    g = GraphBuilder()
    narrow, shape = "bf16[512,64]", f"{wide}[512,64]"
    w = g.parameter("bf16[64,64]", "w")
    centred = g.op("tanh", shape, g.parameter(shape, "x"), name="centred")
    op = "convert" if wide == "f32" else "negate"
    y = g.op(op, narrow, centred, name="y")
    behind = g.dot(g.dot(y, w, (1,), (0,)), w, (1,), (0,), name="behind")
    late = g.dot(y, behind, (0,), (0,), name="late")
    spread = g.op("convert", shape, behind) if wide == "f32" else behind
    below = exchange(g, g.op("multiply", shape, centred, spread, name="below"), "sent")
    given = give_operands(stage(g.build(late, below)))
    assert given.graph["late"].operands[0] == ("y.operand" if again else "y")


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
