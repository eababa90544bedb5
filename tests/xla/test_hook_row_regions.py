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
from astitch.rewrite import row_regions
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


def pick(values: Any, numbers: Any) -> Any:
    return jnp.where(numbers[:, None] == jnp.arange(FEATURES), values, -1)


def of_conditions(h: Any) -> Any:
    inside = ((h > 0) & (h < 1)) | ~((h >= -1) ^ (h != 2)) | (h <= -3)
    return jnp.where(inside & (h[:, 3:4] > 0).reshape(-1)[:, None], h, 0)


OPS: dict[str, Callable[[Any], Any]] = {
    "functions": lambda h: jnp.log1p(abs(h)) + jnp.expm1(h) + jax.scipy.special.erf(h),
    "roots": lambda h: jnp.sqrt(abs(h)) / lax.rsqrt(1 + h * h) + jnp.log(1 + abs(h)),
    "steps": lambda h: jnp.floor(h) - jnp.ceil(2 * h),
    "clamp": lambda h: lax.clamp(jnp.full_like(h, -1), h, 0.5 + jnp.full_like(h, 1)),
    "conditions": of_conditions,
    "equal": lambda h: jnp.where(h == h.max(-1, keepdims=True), h, h.min(-1, keepdims=True)),
    "numbers": lambda h: pick(h, lax.iota(jnp.int32, ROWS) * 2 - 3),
    "columns": lambda h: jnp.concatenate([h[:, 3:20], 2 * h[:, :40], h[:, 57:]], -1),
    "views": lambda h: h * jnp.tanh(h[:, 3:4].reshape(-1))[:, None],
}


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", OPS)
def test_xla_compiles_the_ops(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_regions, "GAIN", np.inf)

    def fn(ps: Layers, x: Any) -> Any:
        (w, b), (v, c) = ps
        return OPS[name](x @ w + b) @ v + c

    arguments = put((draw_layers(dtype, 2), normal(ROWS, FEATURES, dtype=dtype)))
    with hooked():
        assert TRITON in compile_ahead(fn, *arguments).as_text()


def test_xla_compiles_conditions_and_integers_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_regions, "GAIN", np.inf)

    def fn(ps: Layers, x: Any, shown: Any, mask: Any, numbers: Any) -> Any:
        y = network(ps, x)
        kept = jnp.where(shown[:, None], y, 0) + numbers.astype(y.dtype)
        return kept, ~mask & (y > 0), jnp.where(y > 0, numbers, 2 * numbers), (y > 1).any(-1)

    shape, rows = (ROWS, FEATURES), np.zeros(ROWS, bool)
    more = rows, np.zeros(shape, bool), np.zeros(shape, np.int32)
    arguments = put((draw_layers(), normal(*shape), *more))
    with hooked():
        assert TRITON in compile_ahead(fn, *arguments).as_text()


@pytest.mark.parametrize("count", [4, 5, 6])
def test_ops_that_products_take_in_run_with_their_first_reader(count: int) -> None:
    """A step of few rows: its memory bounds the order, which names only what is stored."""
    arguments = put((draw_layers(count=count), normal(4096, FEATURES)))
    with hooked() as seen:
        compile_ahead(step, *arguments)
    assert seen.stitchings
