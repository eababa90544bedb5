"""Steps of decoding through XLA's hook, compiled for an H100: caches are read once, and turned nowhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import SingleDeviceSharding

from tests.ahead_of_time import compile_ahead, devices, hooked, needs_hook

pytestmark = needs_hook

BATCH, WORDS, HEADS, GROUPS, FEATURES, LAYERS = 8, 1024, 16, 4, 64, 3
WIDTH = HEADS * FEATURES
BF16 = jnp.bfloat16


def array(*shape: int, dtype: Any = BF16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(devices()[0]))


def attend(q: Any, k: Any, v: Any, place: Any) -> Any:
    """q: [batch, words, heads, features].  k, v: [batch, all words, fewer heads, features]."""
    batch, words, heads, features = q.shape
    groups = k.shape[2]
    q = q.reshape(batch, words, groups, heads // groups, features)
    scores = jnp.einsum("bqgrd,btgd->bgrqt", q, k).astype(jnp.float32) * features**-0.5
    seen = jnp.arange(k.shape[1]) <= (place + jnp.arange(words))[:, None]
    p = jax.nn.softmax(jnp.where(seen, scores, -1e30), -1).astype(q.dtype)
    return jnp.einsum("bgrqt,btgd->bqgrd", p, v).reshape(batch, words, heads * features)


def step(caches: Any, weights: Any, x: Any, place: Any) -> Any:
    """One layer after the other, each with caches of its own."""
    new = []
    for (k, v), w in zip(caches, weights, strict=True):
        q, own_k, own_v = jnp.split(x @ w, [WIDTH, (w.shape[1] + WIDTH) // 2], -1)
        rows = (*x.shape[:2], -1, FEATURES)
        k = lax.dynamic_update_slice(k, own_k.reshape(rows), (0, place, 0, 0))
        v = lax.dynamic_update_slice(v, own_v.reshape(rows), (0, place, 0, 0))
        x = x + attend(q.reshape(rows), k, v, place)
        new.append((k, v))
    return new, x


def scan(caches: Any, weights: Any, x: Any, place: Any) -> Any:
    """The layers in a loop, their caches in two arrays."""

    def layer(x: Any, given: Any) -> Any:
        (caches,), x = step([given[0]], [given[1]], x, place)
        return x, caches

    x, caches = lax.scan(layer, x, (caches, weights))
    return caches, x


def put_back(caches: Any, weights: Any, x: Any, place: Any) -> Any:
    """The layers one after the other, their caches in two arrays."""
    ks, vs = caches
    for number, w in enumerate(weights):
        ((k, v),), x = step([(ks[number], vs[number])], [w], x, place)
        ks, vs = ks.at[number].set(k), vs.at[number].set(v)
    return (ks, vs), x


def make_arguments(function: Callable[..., Any], heads: int, words: int) -> tuple[Any, ...]:
    shape = (BATCH, WORDS, heads, FEATURES)
    columns = WIDTH + 2 * heads * FEATURES
    if function is step:
        caches: Any = [(array(*shape), array(*shape)) for _ in range(LAYERS)]
    else:
        caches = (array(LAYERS, *shape), array(LAYERS, *shape))
    weights: Any = [array(WIDTH, columns) for _ in range(LAYERS)]
    if function is scan:
        weights = array(LAYERS, WIDTH, columns)
    return caches, weights, array(BATCH, words, WIDTH), array(dtype=jnp.int32)


CASES = {
    "groups": (step, GROUPS, 1),
    "one head each": (step, HEADS, 1),
    "drafted words": (step, GROUPS, 5),
    "layers in a loop": (scan, GROUPS, 1),
    "layers of a stack": (put_back, GROUPS, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_caches_are_read_once(name: str) -> None:
    function, heads, words = CASES[name]
    given = make_arguments(function, heads, words)
    plain = compile_ahead(function, *given, donate_argnums=0)
    with hooked():
        compiled = compile_ahead(function, *given, donate_argnums=0)
    text = compiled.as_text()
    calls = 1 if function is scan else LAYERS
    assert len(re.findall(r'name = (?:\\22|")attention_join', text)) == calls
    memory, before = (c.memory_analysis() for c in (compiled, plain))
    assert memory.temp_size_in_bytes <= 1.02 * before.temp_size_in_bytes
    assert memory.alias_size_in_bytes == before.alias_size_in_bytes
    whole = f"bf16[{BATCH},{heads},{WORDS},{FEATURES}]"
    assert f"{whole}{{3,2,1,0}} fusion" not in text and f"{whole}{{3,2,1,0}} transpose" not in text


PAGE = 64


def read_integers(q: Any, caches: Any, place: Any) -> Any:
    """A row is quantized and written, then the integers are scaled."""
    new = []
    for numbers, scales in caches:
        row = jnp.ones((BATCH, 1, GROUPS, FEATURES), BF16) * q[:, :, :GROUPS]
        of_row = jnp.max(jnp.abs(row), -1) / 127
        narrow = jnp.round(row / of_row[..., None]).astype(jnp.int8)
        numbers = lax.dynamic_update_slice(numbers, narrow, (0, place, 0, 0))
        new.append((numbers, lax.dynamic_update_slice(scales, of_row, (0, place, 0))))
    k, v = (numbers.astype(BF16) * scales[..., None] for numbers, scales in new)
    return new, attend(q, k, v, place)


def read_late_scales(q: Any, caches: Any, place: Any) -> Any:
    (k, of_k), (v, of_v) = caches
    of_k, of_v = (s.swapaxes(1, 2)[:, :, None].astype(jnp.float32) for s in (of_k, of_v))
    q = q.reshape(BATCH, GROUPS, -1, FEATURES)
    whole = {"preferred_element_type": jnp.float32}
    scores = jnp.einsum("bgrd,btgd->bgrt", q, k.astype(BF16), **whole) * of_k * FEATURES**-0.5
    p = jax.nn.softmax(jnp.where(jnp.arange(WORDS) <= place, scores, -1e30), -1) * of_v
    return caches, jnp.einsum("bgrt,btgd->bgrd", p.astype(BF16), v.astype(BF16))


def read_pages(q: Any, caches: Any, place: Any) -> Any:
    *pages, table = caches
    shape = BATCH, WORDS, GROUPS, FEATURES
    return caches, attend(q, *(x[table].reshape(shape) for x in pages), place)


def make_integers() -> list[Any]:
    shape = BATCH, WORDS, GROUPS
    return [(array(*shape, FEATURES, dtype=jnp.int8), array(*shape)) for _ in "kv"]


def make_pages() -> list[Any]:
    table = array(BATCH, WORDS // PAGE, dtype=jnp.int32)
    return [*(array(300, PAGE, GROUPS, FEATURES) for _ in "kv"), table]


@pytest.mark.parametrize(
    ("function", "make_caches"),
    [(read_integers, make_integers), (read_late_scales, make_integers), (read_pages, make_pages)],
)
def test_integers_and_pages_are_read_as_they_lie(
    function: Callable[..., Any], make_caches: Callable[[], list[Any]]
) -> None:
    given = array(BATCH, 1, HEADS, FEATURES), make_caches(), array(dtype=jnp.int32)
    with hooked():
        compiled = compile_ahead(function, *given, donate_argnums=1)
    assert len(re.findall(r'name = (?:\\22|")attention_join', compiled.as_text())) == 1
    # What a cache in 16 bits would take is not there.
    whole = BATCH * WORDS * GROUPS * FEATURES * 2
    assert compiled.memory_analysis().temp_size_in_bytes < whole
