"""Parameters whose elements lie in pieces: where each access begins, and which cannot be spread."""

from __future__ import annotations

import pytest

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.errors import IllegalProduct
from astitch.graph import index as ix
from astitch.kernel import kernel_ir as k
from astitch.kernel.in_place import find_uses
from astitch.kernel.pieces import spread_parameter
from tests.graphs import GraphBuilder


def kernel_of(*shape: int) -> k.Kernel:
    g = GraphBuilder()
    extents = ",".join(map(str, shape))
    graph = g.build(g.same("tanh", g.parameter(f"f32[{extents}]")))
    (plan,) = compile_graph(graph, preset("h100")).plans
    return plan.kernel


def list_positions(kernel: k.Kernel, number: int) -> list[ix.Linear]:
    name = kernel.arguments[number].name
    return [use[-1].statement.position for use in find_uses(kernel.body, {name})[name]]


@pytest.mark.parametrize(("run", "step"), [(64, 4096), (256, 256), (8, 24)])
def test_each_run_begins_a_step_behind_the_one_before(run: int, step: int) -> None:
    kernel = kernel_of(32, 64)
    (number,) = (i for i, a in enumerate(kernel.arguments) if a.written)
    moved = spread_parameter(kernel, number, run, step)
    for before, after in zip(
        list_positions(kernel, number), list_positions(moved, number), strict=True
    ):
        for seed in range(50):
            values = {s: seed * 37 % s.extent for s in ix.symbols(before)}
            at = ix.evaluate(before, values)
            assert ix.evaluate(after, values) == at // run * step + at % run
    assert list_positions(moved, 1 - number) == list_positions(kernel, 1 - number)


def test_no_vector_reaches_over_the_end_of_a_run() -> None:
    kernel = kernel_of(32, 64)
    (number,) = (i for i, a in enumerate(kernel.arguments) if a.written)
    with pytest.raises(IllegalProduct, match="reach over pieces of 6 elements"):
        spread_parameter(kernel, number, 6, 24)
