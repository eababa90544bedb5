"""The order in which meeting kernels follow each other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.collectives import find_awaited
from astitch.graph.ir import OpaqueAttrs
from astitch.hlo_import import import_from_compiler, serialize_module
from astitch.program.steps import FallbackStep, KernelStep
from astitch.xla import order_meetings as ordering
from astitch.xla.hook import read_module
from astitch.xla.order_meetings import _count_before, _find_next, _order_kernels, _sort
from tests.graphs import GraphBuilder


@dataclass
class Kernel:
    """What order_steps asks of a kernel's step."""

    kernel: Any
    arguments: list[Any]
    written: list[int]


def exchange(g, value, name):
    attrs = OpaqueAttrs("all-reduce", "", b"", (None,), has_effect=True, kin="")
    return g.op("opaque", g.array(value), value, attrs=attrs, name=name)


def test_a_kernel_that_no_collective_waits_for_comes_last():
    assert _order_kernels({3: 0b111, 5: 0, 8: 0b11, 9: 0b1}, (7, 7, 7)) == [3, 8, 9, 5]


@pytest.mark.parametrize(
    ("ready", "order"),
    [
        ((5, 5, 5), [2, 1, 4, 7]),
        ((9, 8, 3), [1, 2, 7, 4]),
        ((3, 8, 9), [2, 4, 7, 1]),
        ((9, 3, 8), [2, 7, 1, 4]),
    ],
)
def test_kernels_of_different_collectives_follow_what_is_ready_first(ready, order):
    assert _order_kernels({1: 0b100, 2: 0b011, 4: 0b001, 7: 0b010}, ready) == order


@pytest.mark.parametrize("layers", [2, 3, 5])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_sums_of_all_layers_are_ready_last(layers, dtype):
    """One collective for the gains of all layers: a layer's own collective does not wait for them."""
    g, full = GraphBuilder(), f"{dtype}[64,64]"
    x, gains, weights, masks = g.parameter(full, "x"), [], [], {}
    for number in range(layers):
        x = g.op("tanh", full, x)
        gains.append(g.reduce(x, (0,), "add"))
        weights.append(
            exchange(g, g.reduce(g.op("exponential", full, x), (1,), "add"), f"w{number}")
        )
        masks |= {2 * number: 1 << layers, 2 * number + 1: 1 << number}
    attrs = OpaqueAttrs("all-reduce", "", b"", (None,) * layers, has_effect=True, kin="")
    together = g.op("opaque", f"{dtype}[{layers * 64}]", *gains, attrs=attrs, name="gains")
    graph = g.build(*weights, together)
    groups = ordering.find_combined(graph)
    ready = _count_before(graph)
    by_name = dict(zip((group[0] for group in groups), ready, strict=True))
    names = [f"w{number}" for number in range(layers)]
    assert sorted(by_name, key=by_name.__getitem__) == [*names, "gains"]
    order = _order_kernels(masks, [by_name[name] for name in (*names, "gains")])
    assert order == [*range(1, 2 * layers, 2), *range(0, 2 * layers, 2)]


@pytest.mark.parametrize("seed", range(20))
def test_no_collective_waits_for_a_kernel_that_fewer_wait_for(seed):
    rng = np.random.default_rng(seed)
    masks = {number: int(rng.integers(0, 16)) for number in range(12)}
    order = _order_kernels(masks, rng.integers(0, 9, 4).tolist())
    assert sorted(order) == list(masks)
    for first, second in combinations(order, 2):
        assert not (masks[first] | masks[second] == masks[second] != masks[first])


def test_steps_follow_what_they_read_and_stay_in_order_otherwise():
    assert _sort([set(), {3}, {0}, set(), {1}]) == [0, 2, 3, 1, 4]


TWO_SUMS = """HloModule two_sums
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY main {
  x = f32[512,512] parameter(0)
  y = f32[512,512] parameter(1)
  a = f32[512,512] exponential(x)
  b = f32[512,512] tanh(y)
  one = f32[512,512] all-reduce(a), replica_groups={{0,1}}, channel_id=1, use_global_device_ids=true, to_apply=add
  other = f32[512,512] all-reduce(b), replica_groups={{0,1}}, channel_id=2, use_global_device_ids=true, to_apply=add
  ROOT result = (f32[512,512], f32[512,512]) tuple(one, other)
}"""


def test_what_is_left_to_xla_beside_a_collective_is_not_one_step():
    """Else all of it would wait for each collective's operands, and no order of kernels would be free."""
    graph = import_from_compiler(read_module(serialize_module(TWO_SUMS)), {})
    steps = compile_graph(graph, preset("h100")).program.steps
    left = [step for step in steps if isinstance(step, FallbackStep)]
    assert [[op.name for op in step.ops] for step in left] == [["one"], ["other"]]
    assert all(len(step.operands) == 1 for step in left)


def test_a_sum_that_reads_a_small_one_leaves_the_others_their_order(monkeypatch):
    """`total` makes little of much, but waits for `stat`, of which no collective says when it comes."""
    full = "f32[1024,1024]"
    g = GraphBuilder()
    x, s = g.parameter(full, "x"), g.parameter(full, "s")
    a = g.op("tanh", full, x, name="a")
    one = exchange(g, a, "one")
    c = g.op("add", full, one, a, name="c")
    two = exchange(g, c, "two")
    stat = g.reduce(s, (0,), "add", name="stat")
    scaled = g.op("multiply", full, a, g.broadcast(stat, (1024, 1024), (1,)), name="scaled")
    graph = g.build(two, g.reduce(scaled, (0,), "add", name="total"))
    monkeypatch.setattr(ordering, "KernelStep", Kernel)

    def see(name):
        return SimpleNamespace(buffer=name, type=graph[name].type)

    def run(*names):
        kernel = SimpleNamespace(name=names[-1])
        return Kernel(kernel, [*map(see, names)], [len(names) - 1])

    sent = [SimpleNamespace(operands=[see(v)], results=[see(r)]) for v, r in ((a, one), (c, two))]
    steps = [
        run("s", "stat"),
        run("a", "stat", "total"),
        run("x", "a"),
        sent[0],
        run(one, a, "c"),
        sent[1],
    ]
    steps = [steps[2], *steps[:2], *steps[3:]]
    members = {"a": ["a"], "stat": ["stat"], "total": ["scaled", "total"], "c": ["c"]}
    ordered = ordering.order_steps(steps, graph, members, frozenset(members))
    names = [step.kernel.name for step in ordered if isinstance(step, Kernel)]
    assert names == ["a", "c", "stat", "total"]


def test_a_sum_that_no_collective_waits_for_comes_behind_the_next_one():
    """Last of all, it would keep in memory what it reads."""
    text = TWO_SUMS.replace("all-reduce(b)", "all-reduce(c)")
    text = text.replace("  other =", "  c = f32[512,512] add(one, b)\n  other =")
    total = (
        "zero = f32[] constant(0)\n  total = f32[] reduce(a, zero), dimensions={0,1}, to_apply=add"
    )
    result = "ROOT result = (f32[512,512], f32[]) tuple(other, total)"
    text = f"{text[: text.index('ROOT result')]}{total}\n  {result}\n}}"
    graph = import_from_compiler(read_module(serialize_module(text)), {})
    made = compile_graph(graph, preset("h100"))
    graph = made.scopes.graph
    awaited = find_awaited(graph)
    steps = {s.kernel.name: s for s in made.program.steps if isinstance(s, KernelStep)}
    (total,) = (p.kernel.name for p in made.plans if "total" in p.scope.members)
    assert _find_next(graph, awaited, steps[total], _count_before(graph)) == awaited["one"] != 0
