"""Decoding that evicts the entry of a cache with the lowest score: no program copies a donated cache."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import astitch
from astitch.device.gpu import preset
from benchmarks.modern_ahead import compile_ahead, read_side
from benchmarks.modern_programs.program import Program
from tests.ahead_of_time import GPU, devices, needs_hook

pytestmark = needs_hook

BATCH, HEADS, WORDS, SIZE = 8, 16, 2048, 128
CACHE = BATCH, HEADS, WORDS, SIZE

Put = Callable[[Any, Any, Any], Any]


def put_by_scatter(cache: Any, place: Any, new: Any) -> Any:
    return cache.at[jnp.arange(BATCH), :, place].set(new)


def put_by_slices(cache: Any, place: Any, new: Any) -> Any:
    def put(cache: Any, place: Any, new: Any) -> Any:
        return jax.lax.dynamic_update_slice(cache, new[:, None], (0, place, 0))

    return jax.vmap(put)(cache, place, new)


def put_by_where(cache: Any, place: Any, new: Any) -> Any:
    hot = jax.nn.one_hot(place, WORDS, dtype=bool)
    return jnp.where(hot[:, None, :, None], new[:, :, None], cache)


def attend(q: Any, keys: Any, values: Any) -> tuple[Any, Any]:
    scores = jnp.einsum("bhd,bhnd->bhn", q, keys).astype(jnp.float32) / math.sqrt(SIZE)
    p = jax.nn.softmax(scores, -1)
    return jnp.einsum("bhn,bhnd->bhd", p.astype(values.dtype), values), p.sum(1)


def evict_first(put: Put) -> Callable[..., Any]:
    """The new entry takes the place of the one with the lowest score, then it is attended to."""

    def step(keys: Any, values: Any, scores: Any, q: Any, key: Any, value: Any) -> Any:
        place = jnp.argmin(scores, -1)
        keys, values = put(keys, place, key), put(values, place, value)
        found, added = attend(q, keys, values)
        return keys, values, scores.at[jnp.arange(BATCH), place].set(0.0) + added, found

    return step


def evict_beside(put: Put) -> Callable[..., Any]:
    """Attention reads the old caches, and does not wait for the scores that say what goes."""

    def step(keys: Any, values: Any, scores: Any, q: Any, key: Any, value: Any) -> Any:
        place = jnp.argmin(scores, -1)
        found, added = attend(q, keys, values)
        return put(keys, place, key), put(values, place, value), scores + added, found

    return step


def merge(put: Put) -> Callable[..., Any]:
    """The entry with the lowest score is averaged with the new one."""

    def step(keys: Any, values: Any, scores: Any, q: Any, key: Any, value: Any) -> Any:
        found, added = attend(q, keys, values)
        place = jnp.argmin(scores + added, -1)
        old = (cache[jnp.arange(BATCH), :, place] for cache in (keys, values))
        new = [(a + b) / 2 for a, b in zip(old, (key, value), strict=True)]
        keys, values = put(keys, place, new[0]), put(values, place, new[1])
        return keys, values, scores + added, found

    return step


def compile_step(step: Callable[..., Any], *, stitches: bool) -> Any:
    from jax.sharding import SingleDeviceSharding

    place = SingleDeviceSharding(devices()[0])

    def shaped(shape: tuple[int, ...], dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

    row = shaped((BATCH, HEADS, SIZE))
    given = shaped(CACHE), shaped(CACHE), shaped((BATCH, WORDS), jnp.float32), row, row, row
    with astitch.enabled(gpu=GPU) if stitches else nullcontext():
        traced = jax.jit(step, donate_argnums=(0, 1, 2)).trace(*given)
        return traced.lower(lowering_platforms=("cuda",)).compile()


def count_copies(text: str) -> int:
    """Copies of a cache, alone or in a fusion."""
    cache = ",".join(map(str, CACHE))
    return len(re.findall(rf"= \(?bf16\[{cache}\][^=]* copy(?:-start)?\(", text))


@pytest.mark.parametrize("make", [evict_first, evict_beside, merge])
@pytest.mark.parametrize("put", [put_by_scatter, put_by_slices, put_by_where])
def test_no_cache_is_copied(make: Callable[[Put], Callable[..., Any]], put: Put) -> None:
    plain, ours = (compile_step(make(put), stitches=stitches) for stitches in (False, True))
    assert count_copies(plain.as_text()) == 0
    assert count_copies(ours.as_text()) == 0
    assert "__gpu$xla.gpu.ptx" in ours.as_text()
    planned = [c.memory_analysis().temp_size_in_bytes for c in (plain, ours)]
    assert planned[1] <= 1.02 * planned[0]


def test_the_benchmark_counts_copies() -> None:
    """A reversed array cannot be written where it was."""
    size = 1 << 22
    program = Program(lambda x: (x[::-1] * 2,), lambda: (jnp.zeros(size),), carried=1)
    side = read_side(compile_ahead(program), None, 1.0)
    assert side.copies == 1
    assert side.copied_ms > 8e-6 * size / preset(GPU).bandwidth_gbs
