"""Loops over rows that each have small matrices of their own, spelled as users spell them: one kernel each, through
XLA's hook, where XLA has merged their products."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.graph.ir import ArrayType
from tests.ahead_of_time import needs_hook
from tests.hook_evaluation import Hooked, stitch_through_hook

pytestmark = needs_hook

TURNS = 5


def step(x: Any, p: Any, y: Any, f: Any, h: Any) -> tuple[Any, Any]:
    """A Kalman filter's step for one row: two numbers of four are seen."""
    x, p = f @ x, f @ p @ f.T + 0.01 * jnp.eye(4, dtype=x.dtype)
    s = h @ p @ h.T + 0.1 * jnp.eye(2, dtype=x.dtype)
    det = s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]
    inverse = jnp.stack([jnp.stack([s[1, 1], -s[0, 1]]), jnp.stack([-s[1, 0], s[0, 0]])]) / det
    gain = p @ h.T @ inverse
    return x + gain @ (y - h @ x), p - gain @ h @ p


def by_fori(x: Any, p: Any, y: Any, f: Any, h: Any, *, axis: int = 0) -> Any:
    def turn(t: Any, state: Any) -> Any:
        x, p, seen = state
        now = lax.dynamic_index_in_dim(y, t, axis, keepdims=False)
        x, p = jax.vmap(step, (0, 0, 0, None, None))(x, p, now, f, h)
        return x, p, lax.dynamic_update_index_in_dim(seen, x, t, axis)

    shape = (*y.shape[:2], 4)
    return lax.fori_loop(0, TURNS, turn, (x, p, jnp.zeros(shape, x.dtype)))


def by_scan_of_vmap(x: Any, p: Any, y: Any, f: Any, h: Any) -> Any:
    def turn(state: Any, now: Any) -> Any:
        state = jax.vmap(step, (0, 0, 0, None, None))(*state, now, f, h)
        return state, state[0]

    return lax.scan(turn, (x, p), y)


def by_vmap_of_scan(x: Any, p: Any, y: Any, f: Any, h: Any) -> Any:
    def one(x: Any, p: Any, y: Any) -> Any:
        def turn(state: Any, now: Any) -> Any:
            state = step(*state, now, f, h)
            return state, state[0]

        return lax.scan(turn, (x, p), y)

    return jax.vmap(one, (0, 0, 1))(x, p, y)


def by_einsum(x: Any, p: Any, y: Any, f: Any, h: Any) -> Any:
    """A filter of another gain: products written out, a counter in a while."""

    def turn(state: Any) -> Any:
        t, x, p = state
        x = jnp.einsum("ij,nj->ni", f, x)
        p = jnp.einsum("ij,njk,lk->nil", f, p, f) + 0.01 * jnp.eye(4, dtype=x.dtype)
        error = y[t] - jnp.einsum("ij,nj->ni", h, x)
        gain = jnp.einsum("nij,kj->nik", p, h) / (1 + jnp.einsum("nii->n", p)[:, None, None])
        x = x + jnp.einsum("nij,nj->ni", gain, error)
        return t + 1, x, p - jnp.einsum("nij,jk,nkl->nil", gain, h, p)

    return lax.while_loop(lambda state: state[0] < TURNS, turn, (0, x, p))[1:]


SPELLINGS: dict[str, Callable[..., Any]] = {
    "fori": by_fori,
    "fori_batch_major": partial(by_fori, axis=1),
    "scan_of_vmap": by_scan_of_vmap,
    "vmap_of_scan": by_vmap_of_scan,
    "einsum": by_einsum,
}


def arguments_for(name: str, rows: int, dtype: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    square = rng.standard_normal((rows, 4, 4)) / 4
    shape = (rows, TURNS, 2) if name == "fori_batch_major" else (TURNS, rows, 2)
    arrays = (
        rng.standard_normal((rows, 4)),
        square @ square.swapaxes(1, 2) + np.eye(4),
        rng.standard_normal(shape),
        np.eye(4) + 0.1 * np.eye(4, k=2),
        np.eye(2, 4) + 0.1,
    )
    return [np.asarray(a, dtype) for a in arrays]


def has_threads_of_rows(hooked: Hooked) -> bool:
    """Is the loop one kernel, each row of which has a lane of a warp?"""
    assert hooked.stitching
    found = re.search(
        r"turns in one kernel .*, 32 rows a group", hooked.stitching.compilation.explain()
    )
    return found is not None


@pytest.mark.parametrize("rows", [48, 250])
@pytest.mark.parametrize("name", SPELLINGS)
def test_a_filter_for_each_row_is_one_kernel(name: str, rows: int) -> None:
    fn, arguments = SPELLINGS[name], arguments_for(name, rows, np.float32)
    hooked = stitch_through_hook(fn, *arguments)
    assert has_threads_of_rows(hooked)
    wanted = jax.tree.leaves(jax.jit(fn)(*arguments))
    for got, want in zip(hooked.run(arguments), wanted, strict=True):
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("name", ["fori", "vmap_of_scan"])
def test_in_half_precision(name: str) -> None:
    fn, arguments = SPELLINGS[name], arguments_for(name, 48, jnp.bfloat16)
    hooked = stitch_through_hook(fn, *arguments)
    assert has_threads_of_rows(hooked)
    exact = [np.asarray(a, np.float32) for a in arguments]
    wanted = jax.tree.leaves(jax.jit(fn)(*exact))
    for got, want in zip(hooked.run(arguments), wanted, strict=True):
        apart = np.abs(got.reshape(want.shape).astype(np.float32) - want)
        assert apart.max() < 0.05 * np.abs(want).max()


# ---- stacks as they lie outside ----------------------------------------------------------------------------------


def forward(chances: Any, seen: Any, *, reverse: bool = False) -> Any:
    """A hidden Markov model's forward pass for one row."""

    def turn(state: Any, now: Any) -> Any:
        state = (state @ chances) * now
        state = state / state.sum()
        return state, state

    start = jnp.full(chances.shape[0], 1 / chances.shape[0], seen.dtype)
    return lax.scan(turn, start, seen, reverse=reverse)[1]


def spun(axis: Any, pushed: Any) -> Any:
    """Rotations of a body: a turn gives the third column of a matrix."""

    def turn(rotation: Any, push: Any) -> Any:
        x, y, z = axis * push
        rate = jnp.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
        rotation = rotation @ (jnp.eye(3, dtype=axis.dtype) + 0.1 * rate)
        return rotation, rotation @ jnp.array([0, 0, 1], axis.dtype)

    return lax.scan(turn, jnp.eye(3, dtype=axis.dtype), pushed)[1]


def uniform(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(1).uniform(0.1, 1, shape).astype(dtype)


GIVEN: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "one_batch": (jax.vmap(forward), (uniform(300, 4, 4), uniform(300, 6, 4))),
    "backwards": (
        jax.vmap(partial(forward, reverse=True)),
        (uniform(300, 8, 8), uniform(300, 7, 8)),
    ),
    "two_batches": (jax.vmap(jax.vmap(forward)), (uniform(5, 70, 4, 4), uniform(5, 70, 6, 4))),
    "half": (
        jax.vmap(forward),
        (uniform(300, 8, 8, dtype=jnp.bfloat16), uniform(300, 6, 8, dtype=jnp.bfloat16)),
    ),
    "matrices": (jax.vmap(spun), (uniform(300, 3), uniform(300, 6, 3))),
    "gradient": (
        jax.grad(lambda *a: jnp.square(jax.vmap(forward)(*a)).sum(), (0, 1)),
        (uniform(300, 4, 4), uniform(300, 6, 4)),
    ),
}


@pytest.mark.parametrize("name", GIVEN)
def test_stacks_are_read_and_written_as_they_lie(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astitch.loops.stack_order.LEAST_BYTES", 0)
    monkeypatch.setattr("astitch.loops.hoist.MOST_NEW_BYTES", 0)
    fn, arguments = GIVEN[name]
    hooked = stitch_through_hook(fn, *arguments)
    assert has_threads_of_rows(hooked)
    stacks = [a.size for a in arguments if a.ndim > 2 and a.shape[-2] != a.shape[-1]]
    moved = [n for n in hooked.graph if n.op in ("transpose", "copy") and n.array.size in stacks]
    assert not moved
    wanted = jax.tree.leaves(jax.jit(fn)(*arguments))
    largest = max(array.size for array in (*arguments, *wanted))
    types = [t for n in hooked.graph for t in getattr(n.type, "elements", (n.type,))]
    assert max(t.size for t in types if isinstance(t, ArrayType)) <= largest
    tolerance = 0.03 if name == "half" else 1e-4
    for got, want in zip(hooked.run(arguments), wanted, strict=True):
        given, exact = got.reshape(want.shape).astype(np.float32), want.astype(np.float32)
        np.testing.assert_allclose(given, exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("numbers", [1, 2])
def test_rows_of_few_bytes_are_transposed(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn would move a sector of 32 bytes for 4 or 8 of them: to transpose the array moves less."""
    monkeypatch.setattr("astitch.loops.stack_order.LEAST_BYTES", 0)

    def one(rate: Any, x: Any) -> Any:
        def turn(state: Any, now: Any) -> Any:
            state = jnp.sin(state * rate) + now
            return state, state

        return lax.scan(turn, jnp.zeros(numbers), x)[1]

    arguments = uniform(300, numbers), uniform(300, 6, numbers)
    hooked = stitch_through_hook(jax.vmap(one), *arguments)
    (want,) = jax.tree.leaves(jax.jit(jax.vmap(one))(*arguments))
    (got,) = hooked.run(arguments)
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5, atol=1e-5)
    assert hooked.kernels > 1


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_a_recurrent_layer_of_batches_in_front(
    reverse: bool, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras' order: [batch, turns, features] goes in and comes out."""
    monkeypatch.setattr("astitch.loops.stack_order.LEAST_BYTES", 0)

    def layer(x: Any, w: Any, u: Any) -> Any:
        def turn(h: Any, now: Any) -> Any:
            h = jnp.tanh(now @ w + h @ u)
            return h, h

        start = jnp.zeros((x.shape[0], u.shape[0]), x.dtype)
        last, every = lax.scan(turn, start, x.swapaxes(0, 1), reverse=reverse)
        return last, every.swapaxes(0, 1)

    arguments = uniform(12, 9, 16), uniform(16, 32) - 0.5, uniform(32, 32) / 4 - 0.1
    arguments = tuple(np.asarray(a, dtype) for a in arguments)
    hooked = stitch_through_hook(layer, *arguments)
    assert not any(node.op == "while" for node in hooked.graph)
    assert not any(
        n.op in ("transpose", "copy") and n.array.size == 12 * 9 * 32 for n in hooked.graph
    )
    exact = [np.asarray(a, np.float32) for a in arguments]
    wanted = jax.tree.leaves(jax.jit(layer)(*exact))
    tolerance = 1e-4 if dtype is np.float32 else 0.03
    for got, want in zip(hooked.run(arguments), wanted, strict=True):
        given = got.reshape(want.shape).astype(np.float32)
        np.testing.assert_allclose(given, want, rtol=tolerance, atol=tolerance)


# ---- many numbers a row -----------------------------------------------------------------------------------------


def slopes(y: Any, rates: Any) -> Any:
    a, b, c, d, e, g = y
    one, two, three = rates[0] * a * b, rates[1] * c * d, rates[2] * e * a
    four = rates[3] * g * b * b
    return jnp.stack([-one - three, -one - 2 * four, one - two, one - two + four, two - three, g])


def kinetics(y: Any, rates: Any) -> Any:
    """Six species by Rosenbrock's method, and what each of four rates changes: 144 numbers of a matrix a row."""

    def solve(rates: Any) -> Any:
        def turn(_: Any, y: Any) -> Any:
            matrix = jnp.eye(6) - 0.003 * jax.jacfwd(slopes)(y, rates)
            one = jnp.linalg.solve(matrix, slopes(y, rates))
            two = jnp.linalg.solve(matrix, slopes(y + 0.01 * one, rates) - 2 * one)
            return y + 0.01 * (1.5 * one + 0.5 * two)

        return lax.fori_loop(0, 6, turn, y)

    return solve(rates), jax.jacfwd(solve)(rates)


def exponents(x: Any, tangents: Any) -> Any:
    """A ring of 12 numbers and two tangents that are made orthogonal: sums in a turn that wait for each other."""

    def slope(x: Any) -> Any:
        return (jnp.roll(x, -1) - jnp.roll(x, 2)) * jnp.roll(x, 1) - x + 8.0

    def step(x: Any) -> Any:
        return x + 0.01 * slope(x + 0.005 * slope(x))

    def turn(state: Any, _: Any) -> Any:
        x, tangents, total = state
        first, other = jax.vmap(lambda v: jax.jvp(step, (x,), (v,))[1])(tangents)
        one = jnp.sqrt(first @ first)
        first = first / one
        other = other - (other @ first) * first
        two = jnp.sqrt(other @ other)
        grown = total + jnp.log(jnp.stack([one, two]))
        return (step(x), jnp.stack([first, other / two]), grown), None

    return lax.scan(turn, (x, tangents, jnp.zeros(2)), None, length=10)[0]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (kinetics, (uniform(48, 6), uniform(48, 4))),
        (exponents, (uniform(64, 12) * 3, uniform(64, 2, 12) - 0.5)),
    ],
)
def test_a_row_of_many_numbers_is_one_kernel(
    function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    function = jax.vmap(function)
    hooked = stitch_through_hook(function, *arguments)
    assert has_threads_of_rows(hooked)
    assert not any(node.op == "while" for node in hooked.graph)
    wanted = jax.tree.leaves(jax.jit(function)(*arguments))
    for got, want in zip(hooked.run(arguments), wanted, strict=True):
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=2e-4, atol=2e-4)
