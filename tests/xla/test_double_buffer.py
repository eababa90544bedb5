"""Loops that take several turns in one compute the same; XLA's compiler copies nothing in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.device.gpu import preset
from astitch.hlo import schema
from astitch.hlo.export import ModuleBuilder
from astitch.hlo_import import import_hlo
from astitch.xla import double_buffer as passes
from astitch.xla.double_buffer import double_buffer
from tests.hlo_runner import lower, run_xla

GPU = preset("h100")
State = Any


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small loops count as worth it."""
    monkeypatch.setattr(passes, "LEAST_GAIN_US", 0.0)
    monkeypatch.setattr(passes, "GAIN_OF_INSTRUCTION_US", 0.0)


def inline(fn: Callable[..., Any], *arguments: np.ndarray) -> bytes:
    """The module of a function without calls in it, as XLA's is when the hook is called."""
    graph = import_hlo(lower(fn, *arguments))
    builder = ModuleBuilder(graph.name)
    for node in graph:
        builder.add_node(node)
    return builder.finish(graph.outputs)


def shift(x: Any, by: int = 1) -> Any:
    return lax.concatenate([x[by:], x[:by]], 0)


def diffuse(x: Any) -> Any:
    return x + 0.1 * (shift(x) + shift(x, -1 % len(x)) - 2 * x)


def step_heat(i: Any, x: State) -> State:
    return diffuse(x)


def step_wave(i: Any, state: State) -> State:
    before, x = state
    return x, 2 * x - before + 0.1 * (shift(x) - x)


def step_of_three(i: Any, state: State) -> State:
    first, second, third = state
    return second, third, 0.5 * third + 0.3 * second + 0.2 * first + jnp.float32(0.01) * i


def step_of_four(i: Any, state: State) -> State:
    a, b, c, d = state
    return b, c, d, 0.5 * shift(d) + 0.25 * a


def step_swapped(i: Any, state: State) -> State:
    x, y = state
    return y, x * jnp.float32(0.9)


def step_mixed(i: Any, state: State) -> State:
    """A stencil, a stack of its means, an array that stays, and one that goes by element."""
    x, stack, fixed, count = state
    new = diffuse(x) * fixed
    return new, stack.at[i].set(new.mean()), fixed, count + jnp.sin(count) * i


def run_for(step: Callable[[Any, State], State], turns: int, first: int = 0) -> Callable[..., Any]:
    def run(*state: Any) -> Any:
        given = state if len(state) > 1 else state[0]
        return lax.fori_loop(first, first + turns, step, given)

    return run


def scan_rows(turns: int) -> Callable[..., Any]:
    def run(x: Any, rows: Any) -> Any:
        def turn(x: Any, row: Any) -> tuple[Any, Any]:
            new = diffuse(x) + row
            return new, new[::2]

        return lax.scan(turn, x, rows[:turns])

    return run


def nest(turns: int) -> Callable[..., Any]:
    """A loop in another."""

    def run(x: Any) -> Any:
        def turn(x: Any, _: None) -> tuple[Any, Any]:
            x = lax.fori_loop(0, turns, step_heat, x)
            return x, x.sum()

        return lax.scan(turn, x, None, length=5)

    return run


def draw(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape, np.float32) for shape in shapes]


LINE = (12,)
PROGRAMS: dict[str, tuple[Callable[[int], Callable[..., Any]], list[tuple[int, ...]], int]] = {
    "heat": (lambda n: run_for(step_heat, n), [LINE], 2),
    "counted from three": (lambda n: run_for(step_heat, n, 3), [LINE], 2),
    "wave": (lambda n: run_for(step_wave, n), [LINE] * 2, 2),
    "three": (lambda n: run_for(step_of_three, n), [LINE] * 3, 3),
    "four": (lambda n: run_for(step_of_four, n), [LINE] * 4, 4),
    "swapped": (lambda n: run_for(step_swapped, n), [LINE] * 2, 2),
    "mixed": (lambda n: run_for(step_mixed, n), [LINE, (20,), LINE, (3,)], 2),
    "rows": (scan_rows, [LINE, (12, 12)], 2),
    "nested": (nest, [LINE], 2),
}
"""Each with the shapes of its arguments, and how many turns are one."""


@pytest.mark.parametrize("turns", [4, 5, 7, 8, 11])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_the_same(name: str, turns: int) -> None:
    make, shapes, several = PROGRAMS[name]
    arguments = draw(*shapes)
    proto = inline(make(turns), *arguments)
    module = schema.HloModuleProto.FromString(proto)
    found = double_buffer(module, GPU)
    assert [loop.turns for loop in found] == [several]
    results = run_xla(module.SerializeToString(), arguments)
    for one, other in zip(results, run_xla(proto, arguments), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def count_turns(proto: bytes) -> list[Any]:
    return double_buffer(schema.HloModuleProto.FromString(proto), GPU)


def by_element(x: Any) -> Any:
    return lax.fori_loop(0, 8, lambda i, x: jnp.sin(x) + i, x)


def until_small(x: Any) -> Any:
    return lax.while_loop(lambda x: x.sum() > 1, diffuse, x)


def as_often_as_told(x: Any) -> Any:
    return lax.fori_loop(0, x[0].astype(jnp.int32), step_heat, x)


def branching(x: Any) -> Any:
    return lax.fori_loop(0, 8, lambda i, x: lax.cond(x[0] > 0, diffuse, jnp.sin, x), x)


def by_products(x: Any) -> Any:
    return lax.fori_loop(0, 8, lambda i, x: jnp.tanh(x @ jnp.ones((12, 12)) + x), x)


def three_turns(x: Any) -> Any:
    return lax.fori_loop(0, 3, step_heat, x)


@pytest.mark.parametrize(
    "fn", [by_element, until_small, as_often_as_told, branching, by_products, three_turns]
)
def test_loops_that_stay(fn: Callable[..., Any]) -> None:
    """XLA copies nothing in them, or nobody knows how often they turn, or a turn has branches."""
    assert not count_turns(inline(fn, *draw(LINE)))


def test_short_copies_are_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = inline(run_for(step_heat, 8), *draw(LINE))
    monkeypatch.setattr(passes, "LEAST_GAIN_US", 20.0)
    assert not count_turns(proto)
    large = inline(run_for(step_heat, 8), *draw((1 << 22,)))
    (loop,) = count_turns(large)
    assert (loop.turns, loop.copies) == (2, 1)


def test_loops_are_left_by_their_names() -> None:
    module = schema.HloModuleProto.FromString(inline(run_for(step_heat, 8), *draw(LINE)))
    before = module.SerializeToString()
    asked: list[str] = []
    assert not double_buffer(module, GPU, lambda name: not asked.append(name))
    assert len(asked) == 1 and "while" in asked[0]
    assert module.SerializeToString() == before
