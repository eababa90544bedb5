"""Rows whose numbers are computed apart, through XLA's hook: one kernel, nothing stored between, nothing copied."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.ahead_of_time import hooked, needs_hook
from tests.hook_evaluation import put, stitch_through_hook
from tests.xla.test_planned_memory import find_planned

pytestmark = needs_hook

ROWS = 40_003


def rotate(q: Any) -> Any:
    w, x, y, z = jnp.moveaxis(q / jnp.linalg.norm(q, axis=-1, keepdims=True), -1, 0)
    numbers = [
        *(1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        *(2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        *(2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    ]
    return jnp.stack(numbers, -1).reshape(-1, 3, 3)


def spread(q: Any, scale: Any) -> Any:
    root = rotate(q) * jnp.exp(scale)[:, None, :]
    return root @ root.mT


def descend(state: Any, moments: Any, wanted: Any) -> Any:
    """A step of momentum on ellipsoids."""

    def loss(state: Any) -> Any:
        return jnp.mean((spread(*state) - wanted) ** 2)

    value, slope = jax.value_and_grad(loss)(state)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, slope)
    return jax.tree.map(lambda s, m: s - 1e-2 * m, state, moments), moments, value


def make_arguments() -> Any:
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    state = (draw(ROWS, 4), 0.1 * draw(ROWS, 3))
    return state, jax.tree.map(np.zeros_like, state), draw(ROWS, 3, 3)


def test_values_are_those_of_jax() -> None:
    arguments = make_arguments()
    found = stitch_through_hook(descend, *arguments)
    got = found.run(jax.tree.leaves(arguments))
    assert found.kernels == 2  # the mean over rows
    for one, want in zip(got, jax.tree.leaves(jax.jit(descend)(*arguments)), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-3, atol=1e-5)


def test_donated_state_is_updated_where_it_lies() -> None:
    arguments = put(make_arguments())
    step = jax.jit(descend, donate_argnums=(0, 1))
    plain = step.lower(*arguments).compile()
    jax.clear_caches()
    with hooked() as seen:
        stitched = step.lower(*arguments).compile()
    assert " copy(" not in stitched.as_text()
    assert find_planned(stitched) <= 0.6 * find_planned(plain)
    (stitching,) = seen.stitchings
    assert stitching.compilation.share.value == 1
