"""Caches of all layers in a loop, through XLA's hook: no second stack is planned, in whatever way a row is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.ahead_of_time import compile_ahead, hooked, needs_hook
from tests.hook_evaluation import put, stitch_through_hook

pytestmark = needs_hook

LAYERS, BATCH, WORDS, WIDTH = 4, 2, 512, 128
STACK = (LAYERS, BATCH, WORDS, WIDTH)


@pytest.fixture(autouse=True)
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the tests are large enough."""
    monkeypatch.setattr("astitch.loops.chosen_rows.LEAST_BYTES", 1 << 10)


def update(cache: Any, row: Any, place: Any) -> Any:
    return lax.dynamic_update_slice(cache, row[:, None], (0, place, 0))


def set_at(cache: Any, row: Any, place: Any) -> Any:
    return cache.at[:, place].set(row)


def set_rows(cache: Any, row: Any, place: Any) -> Any:
    """A place for each sequence."""
    return cache.at[jnp.arange(BATCH), place + jnp.arange(BATCH)].set(row)


def by_vmap(cache: Any, row: Any, place: Any) -> Any:
    def one(cache: Any, row: Any, place: Any) -> Any:
        return lax.dynamic_update_slice(cache, row[None], (place, 0))

    return jax.vmap(one)(cache, row, place + jnp.arange(BATCH))


def by_where(cache: Any, row: Any, place: Any) -> Any:
    return jnp.where((jnp.arange(WORDS) == place)[:, None], row[:, None], cache)


def rows_by_where(cache: Any, row: Any, place: Any) -> Any:
    """A place for each sequence."""
    others = jnp.arange(WORDS) != (place + jnp.arange(BATCH))[:, None]
    return jnp.where(others[..., None], cache, row[:, None])


WRITES = {
    "update": update,
    "at": set_at,
    "rows": set_rows,
    "vmap": by_vmap,
    "where": by_where,
    "rows by where": rows_by_where,
}


def layer(x: Any, cache: Any, place: Any, write: Callable[..., Any]) -> tuple[Any, Any]:
    cache = write(cache, jnp.tanh(x), place)
    scores = jnp.einsum("bd,bsd->bs", x, cache)
    scores = jnp.where(jnp.arange(WORDS) <= place, scores, -1e9)
    return x + jnp.einsum("bs,bsd->bd", jax.nn.softmax(scores), cache), cache


def scan(x: Any, caches: Any, place: Any, write: Callable[..., Any]) -> tuple[Any, Any]:
    return lax.scan(lambda x, cache: layer(x, cache, place, write), x, caches)


def fori(x: Any, caches: Any, place: Any, write: Callable[..., Any]) -> tuple[Any, Any]:
    def turn(i: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        x, caches = state
        x, cache = layer(x, caches[i], place, write)
        return x, caches.at[i].set(cache)

    return lax.fori_loop(0, LAYERS, turn, (x, caches))


def generate(x: Any, caches: Any, place: Any, write: Callable[..., Any]) -> tuple[Any, Any]:
    """Words in a `while`, layers in a scan."""

    def step(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        x, caches, place = state
        return *scan(x, caches, place, write), place + 1

    x, caches, _ = lax.while_loop(lambda s: s[2] < 9, step, (x, caches, place))
    return x, caches


LOOPS = {"scan": scan, "fori": fori, "generate": generate}


def draw() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.standard_normal((BATCH, WIDTH)).astype(np.float32)
    return x, random.standard_normal(STACK).astype(np.float32), np.asarray(5, np.int32)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_donated_stack_is_updated_where_it_lies(loop: str, write: str) -> None:
    def fn(x: Any, caches: Any, place: Any) -> Any:
        return LOOPS[loop](x, caches, place, WRITES[write])

    arguments = put(draw())
    plain = compile_ahead(fn, *arguments, donate_argnums=1).memory_analysis()
    with hooked() as seen:
        memory = compile_ahead(fn, *arguments, donate_argnums=1).memory_analysis()
    assert seen.stitchings
    assert memory.temp_size_in_bytes < 0.5 * 4 * np.prod(STACK)
    assert memory.temp_size_in_bytes <= plain.temp_size_in_bytes


@pytest.mark.parametrize("write", ["at", "where", "rows by where"])
@pytest.mark.parametrize("loop", LOOPS)
def test_values_are_those_of_the_plain_module(loop: str, write: str) -> None:
    def fn(x: Any, caches: Any, place: Any) -> Any:
        return LOOPS[loop](x, caches, place, WRITES[write])

    arguments = draw()
    for got, want in zip(
        stitch_through_hook(fn, *arguments).run(arguments), jax.jit(fn)(*arguments), strict=True
    ):
        np.testing.assert_allclose(got, np.asarray(want), rtol=2e-5, atol=2e-5)
