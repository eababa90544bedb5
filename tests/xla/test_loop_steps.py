"""Loops as steps of a program, for engines that launch kernels themselves: values, what is left in fallbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.loops.plan import LoopPlanner
from astitch.pipeline import Target
from astitch.program.steps import FallbackStep, KernelStep
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine
from astitch.show.compilation import Compilation
from astitch.xla.loop_steps import fold_ends, take_loops
from tests.hlo_runner import lower

H100 = preset("h100")
TIME, BATCH, WIDTH = 6, 4, 16


def draw(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32) / 2


def compile_loops(fn: Callable[..., Any], *args: Any) -> Compilation:
    planner = LoopPlanner(H100)
    return take_loops(
        compile_graph(import_hlo(lower(fn, *args)), H100, Target(loops=planner)), planner
    )


def run_cell(start: Any, x: Any, w: Any) -> tuple[Any, Any]:
    def step(state: tuple[Any, Any], now: Any) -> tuple[tuple[Any, Any], Any]:
        h, count = state
        h = jnp.tanh(h @ w + now)
        return (h, count + 1), h * 2

    (last, count), all_ = lax.scan(step, (start, 0), x)
    return last + count, all_


def once(x: Any, w: Any) -> Any:
    return run_cell(jnp.zeros((BATCH, WIDTH)), x, w)


def with_fallbacks_around(x: Any, w: Any) -> Any:
    """Sorted before and after; a counter is read."""
    last, all_ = run_cell(jnp.sort(x[0]), x, w)
    return jnp.sort(last), jnp.sort(all_, axis=0)[0], jnp.sort(x[1])


def one_after_the_other(x: Any, w: Any) -> Any:
    last, all_ = run_cell(jnp.zeros((BATCH, WIDTH)), x, w)
    return run_cell(jnp.sort(last), jnp.sort(all_), w)


def gradients(x: Any, w: Any) -> Any:
    return jax.grad(lambda x, w: (once(x, w)[1] ** 2).sum(), (0, 1))(x, w)


@pytest.mark.parametrize(
    "fn, loops",
    [(once, 1), (with_fallbacks_around, 1), (one_after_the_other, 2), (gradients, 2)],
)
def test_loops_become_kernels(fn: Callable[..., Any], loops: int) -> None:
    args = draw(TIME, BATCH, WIDTH), draw(WIDTH, WIDTH)
    compilation = compile_loops(fn, *args)
    program = compilation.program
    kernels = [s.kernel.name for s in program.steps if isinstance(s, KernelStep)]
    assert sum(name.startswith("loop_") for name in kernels) == loops, compilation.loops
    for step in program.steps:
        if isinstance(step, FallbackStep):
            assert all(node.op != "while" for node in import_hlo(step.hlo))
    found = HostEngine(program, check=True).run(args)
    wanted = jax.tree.leaves(fn(*args))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def limited(x: Any, w: Any) -> Any:
    """As TensorFlow writes loops: a limit besides, a stack of numbers, a second loop of as many turns."""
    x = jnp.asarray(x)

    def turn(state: Any) -> Any:
        limit, i, h, turns = state
        h = jnp.tanh(h @ w + x[i])
        return limit + 1, i + 1, h, lax.dynamic_update_slice(turns, (3 * i)[None], (i,))

    start = (0, 0, jnp.zeros((BATCH, WIDTH)), jnp.zeros(TIME, jnp.int32))
    _, count, h, turns = lax.while_loop(lambda s: (s[0] < TIME + 3) & (s[1] < TIME), turn, start)
    again = lax.while_loop(
        lambda s: s[0] < count, lambda s: (s[0] + 1, jnp.sin(s[1] @ w)), (0, jnp.sort(h))
    )
    return again[1], turns, count


def test_what_is_known_after_a_loop_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "astitch.xla.plan_turns.MOST_NODES", 0
    )  # else both loops turn by themselves
    args = draw(TIME, BATCH, WIDTH), draw(WIDTH, WIDTH)
    graph = simplify(import_hlo(lower(limited, *args)))
    planner = LoopPlanner(H100)
    plain = take_loops(compile_graph(graph, H100, Target(loops=planner)), planner)
    assert any("numbers that the turn decides" in note for note in plain.loops), plain.loops
    assert any("how often it turns" in note for note in plain.loops), plain.loops
    compilation = take_loops(compile_graph(fold_ends(graph), H100, Target(loops=planner)), planner)
    names = [kernel.name for kernel in compilation.program.kernels]
    assert sum(name.startswith("loop_") for name in names) == 2, compilation.loops
    for program in (plain.program, compilation.program):
        found = HostEngine(program, check=True).run(args)
        for ours, theirs in zip(found, limited(*args), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_what_a_counter_that_wraps_around_leaves_is_not_folded() -> None:
    """After 100 comes -56, so two turns do not end this loop, as they would if its counter had no bounds."""

    def wrapping(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        start = jnp.int8(0), jnp.int32(0)
        _, turns = lax.while_loop(
            lambda s: s[0] < 120, lambda s: (s[0] + jnp.int8(100), s[1] + 1), start
        )
        return turns, x + turns

    x = draw(8)
    graph = simplify(import_hlo(lower(wrapping, x)))
    folded = fold_ends(graph)
    for ours, theirs in zip(run_graph(folded, [x]), run_graph(graph, [x]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_loop_that_is_no_kernel_stays_where_it_is() -> None:
    def shrink(x: Any) -> Any:
        return lax.while_loop(lambda y: jnp.sum(y) > 1.0, lambda y: jnp.abs(jnp.fft.fft(y)) / 20, x)

    x = np.abs(draw(8))
    compilation = compile_loops(shrink, x)
    (step,) = (s for s in compilation.program.steps if isinstance(s, FallbackStep))
    assert any(node.op == "while" for node in import_hlo(step.hlo))
    (found,) = HostEngine(compilation.program).run([x])
    np.testing.assert_allclose(found, shrink(x), rtol=1e-5)
