"""Small matrices through XLA's hook: no library is called, in and outside of loops, and values are those of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import linalg as scipy_linalg

from astitch.graph.factorizations import find_factorization
from astitch.graph.ir import Graph
from tests.ahead_of_time import needs_hook
from tests.hook_evaluation import stitch_through_hook

pytestmark = needs_hook

ROWS = 40


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def definite(n: int) -> np.ndarray:
    root = normal(ROWS, n, n)
    return root @ root.swapaxes(1, 2) + n * np.eye(n, dtype=np.float32)


def kalman(x: Any, p: Any, seen: Any) -> Any:
    """An extended filter, whose gain solves a system in each turn."""

    def turn(state: Any, seen: Any) -> Any:
        x, p = state
        f = jnp.eye(6) + 0.1 * jnp.sin(x)[:, None]
        x, p = f @ x, f @ p @ f.T + 0.1 * jnp.eye(6)
        h = jnp.ones((3, 6)) * jnp.cos(x)
        gain = jnp.linalg.solve(h @ p @ h.T + jnp.eye(3), h @ p).T
        x = x + gain @ (seen - h @ x)
        return (x, p - gain @ h @ p), x

    return lax.scan(turn, (x, p), seen)[1]


def until_small(x: Any) -> Any:
    """Newton's steps, until all rows are near."""

    def loss(x: Any) -> Any:
        return jnp.sum(x**4) + jnp.sum(x) ** 2

    def turn(state: Any) -> Any:
        x, _, count = state
        matrix = jax.vmap(jax.hessian(loss))(x) + jnp.eye(3)
        step = jnp.linalg.solve(matrix, jax.vmap(jax.grad(loss))(x)[..., None])[..., 0]
        return x - step, step, count + 1

    def go_on(state: Any) -> Any:
        return (jnp.abs(state[1]).max() > 1e-3) & (state[2] < 50)

    return lax.while_loop(go_on, turn, (x, x, 0))[0]


def gaussians(mean: Any, scale: Any, turn: Any, x: Any) -> Any:
    """Densities of ellipsoids, each with a rotation of its own."""
    w, a, b, c = jnp.moveaxis(turn / jnp.linalg.norm(turn, axis=-1, keepdims=True), -1, 0)
    rows = (
        (1 - 2 * (b * b + c * c), 2 * (a * b - w * c), 2 * (a * c + w * b)),
        (2 * (a * b + w * c), 1 - 2 * (a * a + c * c), 2 * (b * c - w * a)),
        (2 * (a * c - w * b), 2 * (b * c + w * a), 1 - 2 * (a * a + b * b)),
    )
    root = jnp.stack([jnp.stack(row, -1) for row in rows], -2) * jnp.exp(scale)[:, None, :]
    inverse = jnp.linalg.inv(root @ root.swapaxes(-1, -2) + 1e-2 * jnp.eye(3))
    d = x - mean
    return jnp.exp(-0.5 * jnp.einsum("bi,bij,bj->b", d, inverse, d))


def gradient(mean: Any, scale: Any, turn: Any, x: Any) -> Any:
    return jax.grad(lambda *a: gaussians(*a, x).sum(), (0, 1, 2))(mean, scale, turn)


def likelihood(m: Any, p: Any, seen: Any) -> Any:
    """A filter by Cholesky and triangular solves."""

    def turn(state: Any, seen: Any) -> Any:
        m, p = state
        root = jnp.linalg.cholesky(p[:2, :2] + jnp.eye(2))
        error = seen - m[:2]
        z = scipy_linalg.solve_triangular(root, error, lower=True)
        gain = scipy_linalg.cho_solve((root, True), p[:2]).T
        log = -0.5 * z @ z - jnp.log(jnp.diag(root)).sum()
        return (m + gain @ error, p - gain @ p[:2] + 0.1 * jnp.eye(4)), log

    return lax.scan(turn, (m, p), seen)[1].sum()


Program = tuple[Callable[..., Any], tuple[np.ndarray, ...], int]
"""A function, its arguments, the kernels."""

PROGRAMS: dict[str, Program] = {
    "inverse": (jnp.linalg.inv, (definite(4),), 1),
    "solve": (jnp.linalg.solve, (definite(6), normal(ROWS, 6, 2)), 1),
    "a triangle alone": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        (definite(4), normal(ROWS, 4, 2)),
        1,
    ),
    "filters": (jax.vmap(kalman), (normal(ROWS, 6), definite(6), normal(ROWS, 5, 3)), 3),
    "one filter": (kalman, (normal(6), definite(6)[0], normal(5, 3)), 1),
    "until all are near": (until_small, (normal(ROWS, 3),), 1),
    "ellipsoids": (
        gaussians,
        (normal(ROWS, 3), normal(ROWS, 3), normal(ROWS, 4), normal(ROWS, 3)),
        1,
    ),
    "their gradient": (
        gradient,
        (normal(ROWS, 3), normal(ROWS, 3), normal(ROWS, 4), normal(ROWS, 3)),
        1,
    ),
    "gradient of a likelihood": (
        jax.grad(lambda *a: jax.vmap(likelihood)(*a).sum(), (0, 1)),
        (normal(ROWS, 4), definite(4), normal(ROWS, 5, 2)),
        3,
    ),
}


def list_factorizations(graph: Graph) -> list[str]:
    inner = [
        name for node in graph for region in node.regions for name in list_factorizations(region)
    ]
    return [*inner, *(node.name for node in graph if find_factorization(node))]


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_library_is_called(name: str) -> None:
    fn, arguments, most = PROGRAMS[name]
    hooked = stitch_through_hook(fn, *arguments)
    assert 1 <= hooked.kernels <= most and not list_factorizations(hooked.graph)
    wanted = jax.tree.leaves(jax.jit(fn)(*arguments))
    for got, want in zip(hooked.run(arguments), wanted, strict=True):
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=2e-3, atol=2e-3)


def test_large_matrices_stay_a_librarys() -> None:
    hooked = stitch_through_hook(jnp.linalg.inv, normal(ROWS, 9, 9))
    assert len(list_factorizations(hooked.graph)) == 4
    assert hooked.stitching
    assert "its matrices are too large for a thread" in hooked.stitching.compilation.explain()
