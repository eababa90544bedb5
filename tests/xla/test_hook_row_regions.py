"""Networks of few features through XLA's hook: one kernel, less memory, values of the plain module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from astitch.hlo.tile_call import TRITON
from tests.ahead_of_time import compile_ahead, hooked, needs_hook
from tests.hook_evaluation import put, stitch_through_hook

pytestmark = needs_hook

ROWS, FEATURES = 65536, 64
RNG = np.random.default_rng(0)
Layers = list[tuple[Any, Any]]


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def draw_layers(dtype: Any = np.float32, count: int = 3) -> Layers:
    shape = (FEATURES, FEATURES)
    return [((normal(*shape) / 8).astype(dtype), normal(FEATURES, dtype=dtype))] * count


def network(ps: Layers, x: Any) -> Any:
    for w, b in ps:
        x = jax.nn.relu(x @ w + b)
    return x


def gated(ps: Layers, x: Any) -> Any:
    for w, b in ps:
        x = x * jax.nn.silu(x @ w + b)
    return x


def step(ps: Layers, x: Any) -> Any:
    def loss(ps: Layers) -> Any:
        return jnp.mean(jnp.square(network(ps, x)).astype(jnp.float32))

    grads = jax.grad(loss)(ps)
    return jax.tree.map(lambda p, g: p - 0.1 * g.astype(p.dtype), ps, grads)


def in_a_loop(ps: Layers, x: Any) -> Any:
    return lax.fori_loop(0, 4, lambda _, ps: step(ps, x), ps)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "network": network,
    "images": lambda ps, x: network(ps, x.reshape(16, -1, FEATURES)).mean(1),
    "vmap": lambda ps, x: jax.vmap(lambda row: network(ps, row))(x),
    "gated": gated,
    "training": step,
    "training in a loop": in_a_loop,
}


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_networks_are_kernels_that_take_less_memory(name: str, dtype: Any) -> None:
    fn = PROGRAMS[name]
    arguments = put((draw_layers(dtype), normal(ROWS, FEATURES, dtype=dtype)))
    plain = compile_ahead(fn, *arguments)
    with hooked() as seen:
        stitched = compile_ahead(fn, *arguments)
    assert seen.stitchings and TRITON in stitched.as_text()
    before, after = (c.memory_analysis().temp_size_in_bytes for c in (plain, stitched))
    assert after <= 1.02 * before


@pytest.mark.parametrize("name", ["network", "training"])
def test_values_are_those_of_the_plain_module(name: str) -> None:
    ps, x = draw_layers(count=2), normal(ROWS, FEATURES)
    hooked_program = stitch_through_hook(PROGRAMS[name], ps, x)
    found = hooked_program.run([*jax.tree.leaves(ps), x])
    for got, want in zip(found, jax.tree.leaves(jax.jit(PROGRAMS[name])(ps, x)), strict=True):
        assert np.linalg.norm(got - want) <= 1e-3 * np.linalg.norm(want)


def test_it_is_left_out_where_attention_is() -> None:
    arguments = put((draw_layers(), normal(ROWS, FEATURES)))
    with hooked(attention=False):
        assert TRITON not in compile_ahead(network, *arguments).as_text()
