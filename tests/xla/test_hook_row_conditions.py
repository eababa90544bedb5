"""Whiles that turn as long as any row asks, through XLA's hook: one kernel, each row of which turns by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.ahead_of_time import needs_hook
from tests.hook_evaluation import Hooked, stitch_through_hook

pytestmark = needs_hook

RNG = np.random.default_rng(0)


def uniform(*shape: int, low: float = 0.0, high: float = 1.0, dtype: Any = np.float32) -> Any:
    return RNG.uniform(low, high, shape).astype(dtype)


def kepler(mean: Any, eccentricity: Any) -> Any:
    """Newton's method for one orbit, and how many steps it took."""

    def turn(state: Any) -> Any:
        e, _, n = state
        step = (e - eccentricity * jnp.sin(e) - mean) / (1 - eccentricity * jnp.cos(e))
        return e - step, step, n + 1

    start = (mean, jnp.ones(()), 0)
    return lax.while_loop(lambda s: (jnp.abs(s[1]) > 1e-6) & (s[2] < 50), turn, start)[::2]


def integrate(y: Any, mu: Any) -> Any:
    """An adaptive method of two stages for one oscillator."""

    def slope(y: Any) -> Any:
        return jnp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])

    def turn(state: Any) -> Any:
        t, y, h = state
        h = jnp.minimum(h, 1.0 - t)
        one = slope(y)
        two = slope(y + h * one)
        error = jnp.max(jnp.abs(h * (two - one))) / 2e-3
        taken = error < 1
        new = jnp.where(taken, y + h / 2 * (one + two), y)
        return jnp.where(taken, t + h, t), new, h * jnp.clip(0.9 / jnp.sqrt(error), 0.2, 4.0)

    return lax.while_loop(lambda s: s[0] < 1.0, turn, (0.0, y, 0.05))[1]


def arithmetic_geometric(a: Any, b: Any) -> Any:
    def turn(state: Any) -> Any:
        return (state[0] + state[1]) / 2, jnp.sqrt(state[0] * state[1])

    return lax.while_loop(lambda s: jnp.abs(s[0] - s[1]) > 1e-5, turn, (a, b))


def dominant(matrix: Any) -> Any:
    """The power method for one matrix."""

    def turn(state: Any) -> Any:
        v = matrix @ state[0]
        return v / jnp.linalg.norm(v), state[0]

    def asks(state: Any) -> Any:
        return jnp.max(jnp.abs(state[0] - state[1])) > 1e-3

    return lax.while_loop(asks, turn, (jnp.ones(4) / 2, jnp.zeros(4)))[0]


def reject(key: Any) -> Any:
    """A normal number by rejection."""

    def turn(state: Any) -> Any:
        key, one, other = jax.random.split(state[0], 3)
        x = jax.random.uniform(one) * 6 - 3
        return key, x, jax.random.uniform(other) < jnp.exp(-x * x / 2)

    return lax.while_loop(lambda s: ~s[2], turn, (key, 0.0, False))[1]


def divisor(a: Any, b: Any) -> Any:
    return lax.while_loop(lambda s: s[1] != 0, lambda s: (s[1], s[0] % s[1]), (a, b))[0]


def escape(c: Any) -> Any:
    """Mandelbrot's set: rows that are still in are counted, up to 40 turns."""

    def turn(state: Any) -> Any:
        z, n, live, i = state
        z = jnp.where(live, z * z + c, z)
        live = live & (z.real**2 + z.imag**2 < 4)
        return z, n + live, live, i + 1

    start = (jnp.zeros_like(c), jnp.zeros(c.shape, jnp.int32), jnp.ones(c.shape, bool), 0)
    return lax.while_loop(lambda s: jnp.any(s[2]) & (s[3] < 40), turn, start)[1]


def settle(x: Any) -> Any:
    """The turn in which a row is done is the loop's own count."""

    def turn(state: Any) -> Any:
        x, done, when, i = state
        x = jnp.where(done[:, None], x, 0.5 * x + 0.1 * jnp.tanh(x[:, ::-1]))
        now = ~done & (jnp.sum(x * x, 1) < 0.5)
        return x, done | now, jnp.where(now, i, when), i + 1

    start = (x, jnp.zeros(len(x), bool), jnp.full(len(x), -1), 0)
    return lax.while_loop(lambda s: ~jnp.all(s[1]) & (s[3] < 30), turn, start)[:3]


def collatz(n: Any) -> Any:
    def turn(state: Any) -> Any:
        n, count = state
        live = n != 1
        step = jnp.where(n % 2 == 0, n // 2, 3 * n + 1)
        return jnp.where(live, step, n), jnp.where(live, count + 1, count)

    return lax.while_loop(lambda s: jnp.any(s[0] != 1), turn, (n, jnp.zeros_like(n)))[1]


def halve(x: Any) -> Any:
    """A while of one state."""
    half = x.dtype.type(0.5)
    return lax.while_loop(lambda s: jnp.any(s > 1), lambda s: jnp.where(s > 1, s * half, s), x)


def implicit(x: Any, forces: Any) -> Any:
    """Newton's method in each step of a scan."""

    def step(x: Any, force: Any) -> Any:
        def turn(state: Any) -> Any:
            y, asks = state
            new = jnp.where(asks, y - (y**3 + y - x - force) / (3 * y * y + 1), y)
            return new, asks & (jnp.abs(new - y) > 1e-5)

        y, _ = lax.while_loop(lambda s: jnp.any(s[1]), turn, (x, jnp.ones(x.shape, bool)))
        return y, y.sum()

    return lax.scan(step, x, forces)


def repeat(x: Any, y: Any, turns: Any) -> Any:
    """How often it turns is an argument."""

    def turn(i: Any, state: Any) -> Any:
        x, y = state
        return x * 0.99 + 0.1 * jnp.sin(y) * i, y + 0.01 * x

    return lax.fori_loop(0, turns, turn, (x, y))


def until(y: Any, mu: Any) -> Any:
    """Steps up to a time."""

    def slope(y: Any) -> Any:
        return jnp.stack([y[:, 1], mu * (1 - y[:, 0] ** 2) * y[:, 1] - y[:, 0]], 1)

    def turn(state: Any) -> Any:
        t, y = state
        return t + 0.01, y + 0.01 * slope(y + 0.005 * slope(y))

    return lax.while_loop(lambda s: s[0] < 0.1, turn, (0.0, y))


def propagate(p: Any, f: Any, turns: Any) -> Any:
    return lax.fori_loop(0, turns, lambda _, p: f @ p @ f.T + 0.01 * jnp.eye(4), p)


def flagged(x: Any, h: Any) -> Any:
    """A truth of the state says when it ends; half a step more in each turn."""

    def turn(state: Any) -> Any:
        x, h, _ = state
        return x - h * jnp.tanh(x), h * 0.7, h > 0.05

    return lax.while_loop(lambda s: s[2], turn, (x, h, True))[:2]


SQUARE = RNG.normal(size=(64, 4, 4)).astype(np.float32)

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "vmap": (jax.vmap(kepler), (uniform(300, high=6), uniform(300, high=0.9))),
    "vmap, vectors": (jax.vmap(integrate), (uniform(33, 2, low=-2, high=2), uniform(33, high=3))),
    "vmap of vmap": (
        jax.vmap(jax.vmap(arithmetic_geometric)),
        (uniform(8, 40, low=0.1), uniform(8, 40, low=0.1)),
    ),
    "vmap, matrices": (jax.vmap(dominant), (SQUARE @ SQUARE.swapaxes(1, 2),)),
    "vmap, random": (jax.vmap(reject), (np.asarray(jax.random.split(jax.random.PRNGKey(0), 64)),)),
    "vmap, integers": (
        jax.vmap(divisor),
        (RNG.integers(1, 5000, 80, np.int32), RNG.integers(1, 5000, 80, np.int32)),
    ),
    "complex numbers, a limit": (
        escape,
        ((uniform(9, 31, low=-2) + 1j * uniform(9, 31, low=-1)).astype(np.complex64),),
    ),
    "not all done": (settle, (uniform(96, 3, low=-4, high=4),)),
    "any of a formula": (collatz, (RNG.integers(1, 999, 128, np.int32),)),
    "one state": (halve, (uniform(64, high=900),)),
    "half precision": (halve, (uniform(64, high=900, dtype=np.float16),)),
    "in a scan": (implicit, (uniform(64, low=-1), uniform(5, low=-1))),
    "no row asks": (halve, (uniform(64),)),
    "up to an argument": (repeat, (uniform(300), uniform(300), np.int32(7))),
    "up to an argument, never": (repeat, (uniform(300), uniform(300), np.int32(-2))),
    "up to a time": (until, (uniform(64, 2), uniform(64))),
    "matrices up to an argument": (
        jax.vmap(propagate, (0, 0, None)),
        (SQUARE[:48], SQUARE[:48] / 3, np.int32(5)),
    ),
    "a truth of the state": (flagged, (uniform(9, 40, low=-2), np.float32(0.9))),
}


def turns_by_rows(hooked: Hooked) -> bool:
    assert hooked.stitching
    return "as many turns as each row asks for" in hooked.stitching.compilation.explain()


@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_turn_by_themselves(name: str) -> None:
    function, arguments = PROGRAMS[name]
    hooked = stitch_through_hook(function, *arguments)
    assert turns_by_rows(hooked)
    wanted = jax.tree.leaves(jax.jit(function)(*arguments))
    for got, want in zip(hooked.run(arguments), wanted, strict=True):
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=2e-5, atol=2e-5)


def thaw(x: Any) -> Any:
    """Rows that are done go on as long as others do."""
    return lax.while_loop(lambda s: jnp.any(jnp.abs(s) > 1), lambda s: s * jnp.float32(0.7), x)


def count_all(x: Any) -> Any:
    """How often the slowest row turns is read."""

    def turn(state: Any) -> Any:
        return jnp.where(state[0] > 1, state[0] * 0.7, state[0]), state[1] + 1

    return lax.while_loop(lambda s: jnp.any(s[0] > 1) & (s[1] < 90), turn, (x, 0))


def add_to_all(x: Any) -> Any:
    """A row that is done gets what no integer would: a zero, which makes -0 to 0."""

    def turn(state: Any) -> Any:
        x, live = state
        return x + jnp.where(live, 1.0, 0.0), live & (x < 5)

    return lax.while_loop(lambda s: jnp.any(s[1]), turn, (x, jnp.ones(x.shape, bool)))[0]


def converge(x: Any) -> Any:
    """All rows say when it ends."""

    def turn(state: Any) -> Any:
        x, _ = state
        new = x * 0.5
        return new, jnp.sum(new * new) > 0.1

    return lax.while_loop(lambda s: s[1], turn, (x, True))[0]


def start_late(x: Any) -> Any:
    """A row asks from a turn on: it does not before."""
    start = jnp.arange(len(x)) % 7

    def turn(state: Any) -> Any:
        x, i = state
        return jnp.where(i >= start, x * 0.5 + 1, x), i + 1

    return lax.while_loop(lambda s: jnp.any(s[1] >= start) & (s[1] < 20), turn, (x, 0))[0]


def tighten(x: Any) -> Any:
    """What is asked for grows with the turns."""

    def asks(x: Any, i: Any) -> Any:
        return jnp.abs(x) > 1 - 0.1 * i

    def turn(state: Any) -> Any:
        x, i = state
        return jnp.where(asks(x, i), x * 0.9, x), i + 1

    return lax.while_loop(lambda s: jnp.any(asks(*s)) & (s[1] < 9), turn, (x, 0))[0]


def wrap(x: Any) -> Any:
    """A counter leaves its type."""

    def turn(state: Any) -> Any:
        x, live, i = state
        x = jnp.where(live, x * 0.99, x)
        return x, live & (x > 1), i + jnp.int8(10)

    start = (x, jnp.ones(x.shape, bool), jnp.int8(0))
    return lax.while_loop(lambda s: jnp.any(s[1]) & (s[2] < 125), turn, start)[0]


def join(x: Any) -> Any:
    """The condition joins two pieces to what the body joins three to: another formula of one shape."""

    def turn(state: Any) -> Any:
        a, b = state
        asks = jnp.concatenate([a, jnp.sin(a[:, :1]), b[:, 1:]], 1) > 1
        both = jnp.concatenate([a, b], 1)
        both = jnp.where(asks, both * 0.5, -jnp.abs(both))
        return both[:, :2], both[:, 2:]

    start = jnp.stack([x, x + 1], 1), jnp.stack([x + 2, x + 3], 1)
    return lax.while_loop(lambda s: jnp.any(jnp.concatenate(s, 1) > 1), turn, start)


def mix(x: Any) -> Any:
    """What asks chooses along rows of one state and along columns of another, which both read each other."""
    z, w = jnp.outer(x, x), jnp.outer(x, jnp.flip(x))

    def turn(state: Any) -> Any:
        z, w, asks, i = state
        z, w = jnp.where(asks[:, None], z * 0.5 + w, z), jnp.where(asks[None], w * 0.5 - z, w)
        return z, w, asks & (i < jnp.arange(len(x)) % 5), i + 1

    start = z, w, jnp.ones(x.shape, bool), 0
    return lax.while_loop(lambda s: jnp.any(s[2]) & (s[3] < 9), turn, start)[:2]


@pytest.mark.parametrize(
    "function", [thaw, count_all, add_to_all, converge, start_late, tighten, wrap, join, mix]
)
def test_rows_that_do_not_end_by_themselves(function: Callable[..., Any]) -> None:
    x = uniform(64, low=-9, high=9)
    hooked = stitch_through_hook(function, x)
    assert hooked.stitching is None or not turns_by_rows(hooked)
    wanted = jax.tree.leaves(jax.jit(function)(x))
    for got, want in zip(hooked.run([x]), wanted, strict=True):
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-6)
