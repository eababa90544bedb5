"""Attention of few queries against a cache, in spellings of JAX; and arrays for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

BATCH, KEYS, HEADS, GROUPS, FEATURES = 2, 200, 4, 2, 16
SCALE = FEATURES**-0.5
F32, BF16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)


def draw(shape: tuple[int, ...], seed: int, dtype: np.dtype = F32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def softmax(scores: Any, dtype: Any) -> Any:
    return jax.nn.softmax(scores.astype(jnp.float32), -1).astype(dtype)


def one_head_each(q: Any, k: Any, v: Any, length: Any) -> Any:
    scores = jnp.einsum("bhd,bthd->bht", q, k) * SCALE
    seen = jnp.arange(KEYS)[None, None] <= length[:, None, None]
    return jnp.einsum("bht,bthd->bhd", softmax(jnp.where(seen, scores, -1e30), q.dtype), v)


def by_sums(q: Any, k: Any, v: Any, length: Any) -> Any:
    """As XLA writes products of one row."""
    scores = (q[:, None] * k).astype(jnp.float32).sum(-1).astype(q.dtype) * SCALE
    seen = jnp.arange(KEYS)[None, :, None] <= length[:, None, None]
    scores = jnp.where(seen, scores.astype(jnp.float32), -jnp.inf)
    p = jnp.exp(scores - scores.max(1, keepdims=True))
    p = (p / p.sum(1, keepdims=True)).astype(q.dtype)
    whole = jnp.swapaxes(p, 1, 2)[:, :, None] * jnp.transpose(v, (0, 2, 3, 1))
    return whole.astype(jnp.float32).sum(3).astype(q.dtype)


def heads_first(q: Any, k: Any, v: Any, length: Any) -> Any:
    k, v = (x.reshape(BATCH, HEADS, KEYS, FEATURES) for x in (k, v))
    scores = jnp.einsum("bhqd,bhtd->bhqt", q[:, :, None], k) * SCALE
    seen = jnp.arange(KEYS) <= length[:, None, None, None]
    return jnp.einsum("bhqt,bhtd->bhqd", softmax(jnp.where(seen, scores, -1e9), q.dtype), v)


def shared(q: Any, k: Any, v: Any, length: Any) -> Any:
    of_groups = q.reshape(BATCH, GROUPS, HEADS // GROUPS, FEATURES)
    scores = jnp.einsum("bgrd,btgd->bgrt", of_groups, k) * SCALE
    scores = jnp.where(jnp.arange(KEYS) <= length[0], scores, -1e9)
    return jnp.einsum("bgrt,btgd->bgrd", softmax(scores, q.dtype), v)


def repeated(q: Any, k: Any, v: Any, length: Any) -> Any:
    k, v = (jnp.repeat(x, HEADS // GROUPS, axis=2) for x in (k, v))
    scores = jnp.einsum("bqhd,bthd->bhqt", q[:, None], k) / jnp.sqrt(float(FEATURES)).astype(
        q.dtype
    )
    mask = jnp.where(jnp.arange(KEYS) <= length[:, None], 0.0, -1e9)
    scores = scores + mask.astype(q.dtype)[:, None, None]
    return jnp.einsum("bhqt,bthd->bqhd", softmax(scores, q.dtype), v)


def one_for_all(q: Any, k: Any, v: Any, length: Any) -> Any:
    k, v = k[:, :, 0], v[:, :, 0]
    scores = jnp.einsum("bhd,btd->bht", q, k, preferred_element_type=jnp.float32) * SCALE
    scores = jnp.where(jnp.arange(KEYS) <= length[0], scores, -jnp.inf)
    return jnp.einsum("bht,btd->bhd", softmax(scores, q.dtype), v)


def library(q: Any, k: Any, v: Any, length: Any) -> Any:
    seen = (jnp.arange(KEYS)[None] <= length[:, None])[:, None, None]
    return jax.nn.dot_product_attention(q[:, None], k, v, mask=seen)


def window(q: Any, k: Any, v: Any, length: Any) -> Any:
    scores = jnp.einsum("bhd,bthd->bht", q, k) * SCALE
    at = jnp.arange(KEYS)[None, None]
    seen = (at <= length[:, None, None]) & (at > length[:, None, None] - 50)
    return jnp.einsum("bht,bthd->bhd", softmax(jnp.where(seen, scores, -1e30), q.dtype), v)


def capped(q: Any, k: Any, v: Any, length: Any) -> Any:
    scores = 20 * jnp.tanh(jnp.einsum("bhd,bthd->bht", q, k) * SCALE / 20)
    seen = jnp.arange(KEYS)[None, None] <= length[:, None, None]
    return jnp.einsum("bht,bthd->bhd", softmax(jnp.where(seen, scores, -1e30), q.dtype), v)


def with_a_sink(q: Any, k: Any, v: Any, length: Any) -> Any:
    """A score more for each head, which no value belongs to."""
    of_groups = q.reshape(BATCH, GROUPS, HEADS // GROUPS, FEATURES)
    scores = jnp.einsum("bgrd,btgd->bgrt", of_groups, k).astype(jnp.float32) * SCALE
    scores = jnp.where(jnp.arange(KEYS) <= length[0], scores, -1e30)
    sinks = jnp.linspace(-1, 2, HEADS).reshape(1, GROUPS, HEADS // GROUPS, 1)
    sinks = jnp.broadcast_to(sinks, (*scores.shape[:3], 1))
    p = softmax(jnp.concatenate([scores, sinks], -1), q.dtype)[..., :-1]
    return jnp.einsum("bgrt,btgd->bgrd", p, v)


def several_words(q: Any, k: Any, v: Any, length: Any) -> Any:
    """Drafted words, each of which sees one more."""
    words = jnp.stack([q, q[::-1], 2 * q], 1)
    scores = jnp.einsum("bqhd,bthd->bhqt", words, k) * SCALE
    seen = jnp.arange(KEYS)[None, None] <= (length[:, None] + jnp.arange(3))[..., None]
    scores = jnp.where(seen[:, None], scores, -1e30)
    return jnp.einsum("bhqt,bthd->bqhd", softmax(scores, q.dtype), v)


def without_a_mask(q: Any, k: Any, v: Any, length: Any) -> Any:
    scores = jnp.einsum("bhd,bthd->bht", q, k) * SCALE
    return jnp.einsum("bht,bthd->bhd", softmax(scores, q.dtype), v)


def vmapped(q: Any, k: Any, v: Any, length: Any) -> Any:
    def one(q: Any, k: Any, v: Any, n: Any) -> Any:
        scores = jnp.where(jnp.arange(KEYS) <= n, k @ q * SCALE, -1e30)
        return softmax(scores, q.dtype) @ v

    return jax.vmap(jax.vmap(one, (0, 1, 1, None)))(q, k, v, length)


SPELLINGS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        one_head_each,
        by_sums,
        heads_first,
        shared,
        repeated,
        one_for_all,
        library,
        window,
        capped,
        with_a_sink,
        several_words,
        without_a_mask,
        vmapped,
    )
}


OF_GROUPS = {shared: GROUPS, repeated: GROUPS, library: GROUPS, with_a_sink: GROUPS, one_for_all: 1}
"""The heads of keys where there are fewer than of queries."""


def make(
    dtype: np.dtype, lengths: tuple[int, int] = (150, 3), heads: int = HEADS
) -> list[np.ndarray]:
    shape = (BATCH, KEYS, heads, FEATURES)
    q = draw((BATCH, HEADS, FEATURES), 0, dtype)
    return [q, draw(shape, 1, dtype), draw(shape, 2, dtype), np.array(lengths, np.int32)]


# ---- caches of 8 bits ------------------------------------------------------------------------------------------------


def scaled_in_16_bits(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same of caches of 8 bits, (integers, scales), a scale for each key and head."""

    def attend(q: Any, k: Any, v: Any, length: Any) -> Any:
        wide = (n.astype(q.dtype) * s[..., None].astype(q.dtype) for n, s in (k, v))
        return function(q, *wide, length)

    return attend


def scaled_in_f32(function: Callable[..., Any]) -> Callable[..., Any]:
    def attend(q: Any, k: Any, v: Any, length: Any) -> Any:
        wide = ((s[..., None] * n.astype(jnp.float32)).astype(q.dtype) for n, s in (k, v))
        return function(q, *wide, length)

    return attend


def scaled_late(q: Any, k: Any, v: Any, length: Any) -> Any:
    """Scales of keys belong to scores, those of values to probabilities."""
    of_groups = q.reshape(BATCH, GROUPS, HEADS // GROUPS, FEATURES)
    of_k, of_v = (jnp.swapaxes(s, 1, 2)[:, :, None] for _, s in (k, v))
    scores = jnp.einsum("bgrd,btgd->bgrt", of_groups, k[0].astype(q.dtype)) * SCALE * of_k
    p = softmax(jnp.where(jnp.arange(KEYS) <= length[0], scores, -1e9), q.dtype)
    return jnp.einsum("bgrt,btgd->bgrd", p * of_v, v[0].astype(q.dtype))


def scaled_late_in_f32(q: Any, k: Any, v: Any, length: Any) -> Any:
    of_groups = q.reshape(BATCH, GROUPS, HEADS // GROUPS, FEATURES)
    of_k, of_v = (jnp.swapaxes(s.astype(jnp.float32), 1, 2)[:, :, None] for _, s in (k, v))
    whole = {"preferred_element_type": jnp.float32}
    scores = jnp.einsum("bgrd,btgd->bgrt", of_groups, k[0].astype(q.dtype), **whole) * of_k
    scores = jnp.where(jnp.arange(KEYS) <= length[0], scores * SCALE, -jnp.inf)
    p = (jax.nn.softmax(scores, -1) * of_v).astype(q.dtype)
    return jnp.einsum("bgrt,btgd->bgrd", p, v[0].astype(q.dtype), **whole).astype(q.dtype)


def scaled_late_by_keys(q: Any, k: Any, v: Any, length: Any) -> Any:
    """Scores lie keys first, and each head has its own keys."""
    scores = jnp.einsum("bhd,bthd->bth", q, k[0].astype(q.dtype)) * k[1] * SCALE
    seen = jnp.arange(KEYS)[None, :, None] <= length[:, None, None]
    scores = jnp.where(seen, scores.astype(jnp.float32), -1e30)
    p = jax.nn.softmax(scores, 1).astype(q.dtype) * v[1]
    return jnp.einsum("bth,bthd->bhd", p, v[0].astype(q.dtype))


def scaled_early_and_late(q: Any, k: Any, v: Any, length: Any) -> Any:
    of_groups = q.reshape(BATCH, GROUPS, HEADS // GROUPS, FEATURES)
    wide = k[0].astype(q.dtype) * k[1][..., None]
    p = softmax(jnp.einsum("bgrd,btgd->bgrt", of_groups, wide) * SCALE, q.dtype)
    of_v = jnp.swapaxes(v[1], 1, 2)[:, :, None]
    return jnp.einsum("bgrt,btgd->bgrd", p * of_v, v[0].astype(q.dtype))


# ---- pages -----------------------------------------------------------------------------------------------------------

PAGE, PAGES = 8, 100
"""Positions of a page, and how many there are."""


def attend_to_groups(q: Any, k: Any, v: Any, length: Any) -> Any:
    of_groups = q.reshape(BATCH, GROUPS, HEADS // GROUPS, FEATURES)
    scores = jnp.einsum("bgrd,btgd->bgrt", of_groups, k) * SCALE
    p = softmax(jnp.where(jnp.arange(KEYS) <= length[0], scores, -1e9), q.dtype)
    return jnp.einsum("bgrt,btgd->bgrd", p, v)


def gather_pages(q: Any, k: Any, v: Any, table: Any, length: Any) -> Any:
    """A number behind the last page means that one."""
    shape = BATCH, KEYS, GROUPS, FEATURES
    return attend_to_groups(
        q, *(x.at[table].get(mode="clip").reshape(shape) for x in (k, v)), length
    )


def gather_by_default(q: Any, k: Any, v: Any, table: Any, length: Any) -> Any:
    shape = BATCH, KEYS, GROUPS, FEATURES
    return attend_to_groups(q, k[table].reshape(shape), v[table].reshape(shape), length)


def take_pages(q: Any, k: Any, v: Any, table: Any, length: Any) -> Any:
    """NaN where there is no such page."""
    shape = BATCH, KEYS, GROUPS, FEATURES
    return attend_to_groups(q, *(jnp.take(x, table, axis=0).reshape(shape) for x in (k, v)), length)


def pages_of_heads(q: Any, k: Any, v: Any, table: Any, length: Any) -> Any:
    """[heads, pages, positions, features]."""
    found = (jnp.take(x, table, axis=1, mode="clip").transpose(1, 2, 3, 0, 4) for x in (k, v))
    shape = BATCH, KEYS, GROUPS, FEATURES
    return attend_to_groups(q, *(x.reshape(shape) for x in found), length)


def pages_under_vmap(q: Any, k: Any, v: Any, table: Any, length: Any) -> Any:
    def one(q: Any, table: Any, n: Any) -> Any:
        found = (x.at[table].get(mode="clip").reshape(KEYS, GROUPS, FEATURES) for x in (k, v))
        own_k, own_v = found
        scores = jnp.einsum("grd,tgd->grt", q.reshape(GROUPS, -1, FEATURES), own_k) * SCALE
        p = softmax(jnp.where(jnp.arange(KEYS) <= n, scores, -1e9), q.dtype)
        return jnp.einsum("grt,tgd->grd", p, own_v)

    return jax.vmap(one)(q, table, length)


def positions_one_by_one(q: Any, k: Any, v: Any, table: Any, length: Any) -> Any:
    """Pages of one position."""
    return attend_to_groups(q, *(x.at[table].get(mode="clip") for x in (k, v)), length)


def pages_of_one_head(q: Any, k: Any, v: Any, table: Any, length: Any) -> Any:
    k, v = (x.at[table].get(mode="clip").reshape(BATCH, KEYS, FEATURES) for x in (k, v))
    scores = jnp.einsum("bhd,btd->bht", q, k) * SCALE
    p = softmax(jnp.where(jnp.arange(KEYS) <= length[0], scores, -1e9), q.dtype)
    return jnp.einsum("bht,btd->bhd", p, v)


PAGED: dict[Callable[..., Any], tuple[tuple[int, ...], bool]] = {
    gather_pages: ((PAGES, PAGE, GROUPS, FEATURES), True),
    gather_by_default: ((PAGES, PAGE, GROUPS, FEATURES), False),
    take_pages: ((PAGES, PAGE, GROUPS, FEATURES), False),
    pages_of_heads: ((GROUPS, PAGES, PAGE, FEATURES), True),
    pages_under_vmap: ((PAGES, PAGE, GROUPS, FEATURES), True),
    positions_one_by_one: ((PAGES, GROUPS, FEATURES), False),
    pages_of_one_head: ((PAGES, PAGE, FEATURES), True),
}
"""How the pages lie, and whether the table may have numbers of none."""


def make_pages(function: Callable[..., Any]) -> list[np.ndarray]:
    """q, the pages of keys and of values, the table, lengths."""
    shape, beyond = PAGED[function]
    q, *_, lengths = make(BF16)
    count = KEYS if function is positions_one_by_one else KEYS // PAGE
    bounds = (-3, PAGES + 3) if beyond else (0, PAGES)
    table = np.random.default_rng(3).integers(*bounds, (BATCH, count)).astype(np.int32)
    return [q, draw(shape, 1, BF16), draw(shape, 2, BF16), table, lengths]


LATE = {
    scaled_late: GROUPS,
    scaled_late_in_f32: GROUPS,
    scaled_late_by_keys: HEADS,
    scaled_early_and_late: GROUPS,
}
"""The heads of keys of each."""


def make_integers(
    heads: int, scales: tuple[int, ...] | None = None, dtype: np.dtype = BF16
) -> list[Any]:
    """q in bf16, (integers, scales) of keys and of values, lengths.  scales: their shape, one for each position and
    head where None."""
    q, *_, lengths = make(BF16)

    def make_one(seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        numbers = rng.integers(-127, 128, (BATCH, KEYS, heads, FEATURES)).astype(np.int8)
        shape = (BATCH, KEYS, heads) if scales is None else scales
        return numbers, rng.uniform(0.005, 0.03, shape).astype(dtype)

    return [q, make_one(1), make_one(2), lengths]
