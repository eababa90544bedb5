"""optimization-barrier: what jax.checkpoint computes again stays two, is late, and costs nothing inside of kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.compile import compile_hlo
from astitch.device.gpu import preset
from astitch.graph.check import check_graph
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.loops.plan import LoopPlan, LoopPlanner, hoist_planned
from astitch.profiling import xla_ahead
from astitch.profiling.xla_ahead import AheadOfTime, Compiled
from astitch.program.steps import FallbackStep, LibraryStep
from astitch.rewrite.barriers import is_held, open_barriers
from astitch.rewrite.expand import expand
from astitch.rewrite.products import arrange_products
from astitch.rewrite.reassociate import reassociate
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine
from astitch.show.compilation import Compilation
from astitch.xla.compile_module import compile_for_xla
from tests.hlo_runner import lower
from tests.scopes import find_scopes

pytestmark = pytest.mark.usefixtures("sorts_left")

H100 = preset("h100")
RNG = np.random.default_rng(0)
LAYERS = 4


def normal(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / 16).astype(np.float32)


def block(w: Any, x: Any) -> Any:
    return jax.nn.gelu(x @ w[0]) @ w[1] + x


def chain(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(ws: Any, x: Any) -> Any:
        for w in ws:
            x = f(w, x)
        return jnp.sum(x**2)

    return run


def scanned(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(ws: Any, x: Any) -> Any:
        return jnp.sum(lax.scan(lambda x, w: (f(w, x), None), x, ws)[0] ** 2)

    return run


def weights(layers: int = LAYERS, width: int = 64) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(normal(width, 4 * width), normal(4 * width, width)) for _ in range(layers)]


def stacked(ws: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, ...]:
    return tuple(np.stack(arrays) for arrays in zip(*ws, strict=True))


def outer(w: Any, x: Any) -> Any:
    """Checkpoints inside of one."""
    for layer in w:
        x = jax.checkpoint(block)(layer, x)
    return x


def pairs(ws: list[Any]) -> list[Any]:
    return list(zip(ws[::2], ws[1::2], strict=True))


def list_graphs(graph: Graph) -> Iterator[Graph]:
    yield graph
    for node in graph:
        for region in node.regions:
            yield from list_graphs(region)


def count_ops(hlo: bytes | str, op: str) -> int:
    return sum(node.op == op for graph in list_graphs(import_hlo(hlo)) for node in graph)


def count_products(compilation: Compilation) -> int:
    """Those of libraries, and those in what is left to XLA."""
    steps = compilation.program.steps
    fallbacks = sum(count_ops(s.hlo, "dot") for s in steps if isinstance(s, FallbackStep))
    return fallbacks + sum(isinstance(step, LibraryStep) for step in steps)


policies = jax.checkpoint_policies
# What is differentiated, its weights, and how many products are computed again.
CHECKPOINTED: dict[str, tuple[Callable[..., Any], Any, int]] = {
    "layers": (chain(jax.checkpoint(block)), weights(), LAYERS),
    "nothing_saveable": (
        chain(jax.checkpoint(block, policy=policies.nothing_saveable)),
        weights(),
        LAYERS,
    ),
    "dots_saveable": (chain(jax.checkpoint(block, policy=policies.dots_saveable)), weights(), 0),
    # The outer one computes the first block of a pair again and half of the second, the inner ones half of each.
    "nested": (chain(jax.checkpoint(outer)), pairs(weights()), LAYERS // 2 * 4),
    "scan": (scanned(jax.checkpoint(block)), stacked(weights()), 1),
}
PLAIN = {"scan": (scanned(block), stacked(weights()))}


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_products_behind_a_barrier_are_computed_again(name: str) -> None:
    function, ws, again = CHECKPOINTED[name]
    x = normal(128, 64)
    hlo = lower(jax.grad(function), ws, x)
    compilation = compile_hlo(hlo)
    assert count_products(compilation) == count_ops(hlo, "dot")
    plain, ws = PLAIN.get(name, (chain(block), weights()))
    once = compile_hlo(lower(jax.grad(plain), ws, x))
    assert count_products(compilation) == count_products(once) + again


@pytest.mark.parametrize("name", ["layers", "scan"])
def test_results_are_those_of_xla(name: str) -> None:
    function, ws, _ = CHECKPOINTED[name]
    x = normal(128, 64)
    compilation = compile_hlo(lower(jax.grad(function), ws, x))
    found = HostEngine(compilation.program).run([*jax.tree.leaves(ws), x])
    wanted = jax.tree.leaves(jax.jit(jax.grad(function))(ws, x))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_what_is_computed_again_is_late_and_what_it_replaces_is_freed() -> None:
    ws, x = weights(8), normal(256, 64)
    compilation = compile_hlo(lower(jax.grad(chain(jax.checkpoint(block))), ws, x))
    products = [s for s in compilation.program.steps if isinstance(s, LibraryStep)]
    behind = [number for number, step in enumerate(products) if step.operands[0].behind]
    # Two of a layer forward, four backward and one again, but for x: what is behind follows all that are forward.
    assert len(products) == 8 * 7 - 1 and min(behind) == 16
    once = compile_hlo(lower(jax.grad(chain(block)), ws, x))
    hidden = 256 * 256 * 4
    saved = once.program.arena_bytes - compilation.program.arena_bytes
    assert saved >= 8 * hidden


# ---- merging ---------------------------------------------------------------------------------------------------


def twice(x: Any, w: Any) -> Any:
    """A product, and the same behind a barrier, of which each op has its like in front of it."""
    again, w2 = lax.optimization_barrier((x, w))
    return jnp.exp(x @ w).sum(), jnp.exp(again @ w2).sum()


def test_no_rewriting_crosses_a_barrier() -> None:
    graph = import_hlo(lower(twice, normal(64, 64), normal(64, 64)))
    for stage in (simplify, expand, reassociate, arrange_products):
        graph = check_graph(stage(graph))
        ops = Counter(node.op for node in graph)
        assert ops["dot"] == ops["exponential"] == ops["reduce"] == 2, stage
    assert ops["optimization-barrier"] == 1


def test_two_barriers_of_one_value_stay_two() -> None:
    def fn(x: Any) -> Any:
        one, other = lax.optimization_barrier(x), lax.optimization_barrier(x)
        return jnp.sin(one), jnp.sin(other)

    graph = simplify(import_hlo(lower(fn, normal(8, 8))))
    assert Counter(node.op for node in graph)["sine"] == 2


def test_a_barrier_that_nobody_is_behind_goes() -> None:
    graph = simplify(
        import_hlo(
            lower(
                lambda x: lax.optimization_barrier((x, x * 2))[0] * 0 + x, np.ones((4,), np.int32)
            )
        )
    )
    assert not any(is_held(graph, node) for node in graph)


def test_opening_barriers_keeps_what_they_wait_for() -> None:
    def fn(x: Any, y: Any) -> Any:
        one, _ = lax.optimization_barrier((x, jnp.sort(y)[0]))  # only to be later
        other, same = lax.optimization_barrier((one, y))
        return other @ other, jnp.sin(same)

    graph = check_graph(simplify(import_hlo(lower(fn, normal(8, 8), normal(8)))))
    opened = open_barriers(graph)
    check_graph(opened.graph)
    first, second = opened.barriers
    # Nobody reads the sorted array: the barrier waits for what it is sorted from.
    assert {held.value for held in first.waits} == set(graph.parameters)
    assert first.reads == frozenset()
    assert {(held.value, held.behind) for held in second.waits} == {
        (graph.parameters[0], first.name),
        (graph.parameters[1], ""),
    }
    values = [normal(8, 8), normal(8)]
    for one, other in zip(run_graph(graph, values), run_graph(opened.graph, values), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_stage_does_not_compute_again_what_a_barrier_keeps() -> None:
    def fn(x: Any, w: Any, v: Any, *, keep: bool) -> Any:
        p = x @ w
        y = jnp.abs(p) * 2 + 1
        late = ((p @ v) * y.sum(-1, keepdims=True)) @ v.T
        if keep:
            y, late = lax.optimization_barrier((y, late))
        return y * late

    arguments = normal(512, 64), normal(64, 1024), normal(1024, 64)
    plain, held = (
        find_scopes(simplify(import_hlo(lower(partial(fn, keep=keep), *arguments))))
        for keep in (False, True)
    )
    assert plain.recomputed and not held.recomputed
    (kept,) = held.barriers[0].waits[:1]
    assert any(kept.value in scope.outputs for scope in held.scopes if scope.stage == 1)


# ---- kernels ---------------------------------------------------------------------------------------------------


def norm(x: Any, *, held: bool) -> Any:
    y = jnp.exp(x * 2)
    if held:
        x, y = lax.optimization_barrier((x, y))
    return y / y.sum(-1, keepdims=True) + x


def test_within_a_kernel_a_barrier_costs_nothing() -> None:
    plain, held = (
        compile_hlo(lower(partial(norm, held=held), normal(64, 128)), gpu=H100).program.kernels
        for held in (False, True)
    )
    assert len(plain) == len(held) == 1
    assert held[0].source == plain[0].source


def test_products_read_through_a_barrier_what_is_in_memory() -> None:
    def fn(x: Any, w: Any) -> Any:
        x, w = lax.optimization_barrier((x, w))
        return lax.optimization_barrier(x @ w)

    program = compile_hlo(lower(fn, normal(64, 64), normal(64, 64))).program
    (step,) = program.steps
    assert isinstance(step, LibraryStep) and program.outputs[0].buffer == step.results[0].buffer
    assert [view.buffer for view in step.operands] == [view.buffer for view in program.parameters]


def test_what_xla_computes_alone_keeps_its_barriers() -> None:
    def fn(x: Any) -> Any:
        return jnp.sort(x), jnp.sort(lax.optimization_barrier(x))

    program = compile_hlo(lower(fn, normal(64))).program
    steps = [step for step in program.steps if isinstance(step, FallbackStep)]
    assert sum(count_ops(step.hlo, "sort") for step in steps) == 2
    assert sum(count_ops(step.hlo, "optimization-barrier") for step in steps) == 1


# ---- loops -----------------------------------------------------------------------------------------------------


def test_a_loop_of_one_kernel_computes_again_and_makes_no_stack_of_it() -> None:
    def loss(w: Any, z: Any, h: Any) -> Any:
        @jax.checkpoint
        def turn(h: Any, z: Any) -> Any:
            h = jnp.tanh(z + h @ w)
            return h, h

        return (lax.scan(turn, h, z)[1] ** 2).sum()

    shapes = (64, 64), (20, 8, 64), (8, 64)
    arguments = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    graph = simplify(import_hlo(lower(jax.grad(loss), *arguments)))
    planner = LoopPlanner(H100)
    hoisted = hoist_planned(graph, planner)
    loops = [node for node in hoisted if node.op == "while"]
    assert len(loops) == 2
    for node in loops:
        plan = planner.plan(hoisted, node)
        assert isinstance(plan, LoopPlan), plan
    (backward,) = (
        n for n in loops if any(m.op == "tanh" and n is not loops[0] for m in n.regions[1])
    )
    assert Counter(node.op for node in backward.regions[1])["dot"] == 2  # the forward one is there
    assert not any(node.op == "tanh" for node in hoisted)


# ---- the module that XLA gets ----------------------------------------------------------------------------------


def export(function: Callable[..., Any], *arguments: Any) -> bytes:
    return compile_for_xla(import_hlo(lower(function, *arguments)), H100)[1]


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_xla_gets_the_barriers(name: str) -> None:
    function, ws, _ = CHECKPOINTED[name]
    hlo = lower(jax.grad(function), ws, normal(128, 64))
    module = compile_for_xla(import_hlo(hlo), H100)[1]
    assert count_ops(module, "dot") == count_ops(hlo, "dot")
    nodes = [node for graph in list_graphs(import_hlo(module)) for node in graph]
    barriers = [node for node in nodes if node.op == "optimization-barrier"]
    # Each waits for the weights, for what was saved and for the gradient.
    assert len(barriers) >= count_ops(hlo, "optimization-barrier") > 0
    assert all(len(node.operands) >= 3 for node in barriers)


def test_a_barrier_waits_for_what_a_kernel_computes_beside_what_is_behind_it() -> None:
    def fn(x: Any, y: Any, w: Any) -> Any:
        late = jnp.exp(jnp.sin(y @ w) @ w)  # of the kernel that also reads behind the barrier
        x, w, late = lax.optimization_barrier((x, w, late))
        return x @ w, (jnp.tanh(late) + x) @ w

    graph = import_hlo(export(fn, *(normal(128, 128) for _ in range(3))))
    check_graph(graph)
    (first, *_) = (node for node in graph if node.op == "optimization-barrier")
    products = [node.name for node in graph if node.op == "dot"]
    assert products[1] in first.operands


WIDTH, ROWS = 128, 8192
"""Of layers whose hidden values have 16 MiB, as many as a result needs to take over memory (LEAST_BYTES_AGAIN)."""

PLANNED: dict[str, tuple[Callable[..., Any], Any]] = {
    "layers": (chain(jax.checkpoint(block)), weights(8, WIDTH)),
    "nested": (chain(jax.checkpoint(outer)), pairs(weights(LAYERS, WIDTH))),
    "scan": (scanned(jax.checkpoint(block)), stacked(weights(LAYERS, WIDTH))),
}


def start_xla(function: Callable[..., Any], ws: Any) -> list[AheadOfTime]:
    """XLA's compiler at a module, and at the one with our kernels."""
    hlo = lower(jax.grad(function), ws, jax.ShapeDtypeStruct((ROWS, WIDTH), np.float32))
    modules = hlo, compile_for_xla(import_hlo(hlo), H100)[1]
    return [AheadOfTime(module, H100, {}) for module in modules]


def wait_for_bytes(started: AheadOfTime) -> int:
    """What XLA planned."""
    found = started.result()
    assert isinstance(found, Compiled), found
    assert found.planned_bytes
    return found.planned_bytes


@pytest.mark.skipif(
    xla_ahead.find_plugin() is None, reason="XLA's compiler for NVIDIA GPUs is not installed"
)
@pytest.mark.parametrize("name", PLANNED)
def test_memory_is_planned_as_xla_plans_it(name: str) -> None:
    function, ws = PLANNED[name]
    once = start_xla(chain(block), ws) if name == "layers" else []
    xla, ours = map(wait_for_bytes, start_xla(function, ws))
    assert abs(ours - xla) <= 0.05 * xla
    if once:
        xla_once, ours_once = map(wait_for_bytes, once)
        assert abs(ours_once - xla_once) <= 0.05 * xla_once
        assert xla < 0.5 * xla_once
