"""Attention with a bias that is learned, as people write it: functions of q, k, v and an array that it follows from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.attention.spellings import (
    BATCH,
    BIAS,
    FEATURES,
    HEADS,
    KEPT,
    MASK,
    QUERIES,
    attend,
    by_hand,
    causal,
    lengths,
    of_flax,
)

LOWEST = float(np.finfo(np.float32).min)
WHOLE = np.stack([BIAS, -BIAS])
PAIR = np.stack([WHOLE, 2 * WHOLE[::-1]])
ROW = np.random.default_rng(1).standard_normal((BATCH, 1, 1, QUERIES))
PLACES = np.random.default_rng(2).standard_normal((QUERIES, HEADS, FEATURES))


def of_one_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return attend(lambda s: by_hand(s + bias))(q, k, v)


def of_library_with_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, bias=bias[None])


def of_buckets(q: Any, k: Any, v: Any, table: Any) -> Any:
    """Relative positions, as T5 learns them."""
    distance = jnp.arange(q.shape[1])[:, None] - jnp.arange(k.shape[1])
    bias = table[jnp.clip(distance, -4, 4) + 4].transpose(2, 0, 1)
    return attend(lambda s: jax.nn.softmax(s + bias[None].astype(s.dtype), -1))(q, k, v)


def heads_last(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """The bias lies as [queries, keys, heads], the scores as [heads, batch, ...]."""
    s = jnp.einsum("bqhd,bkhd->hbqk", q, k) / 4 + bias.transpose(2, 0, 1)[:, None]
    return jnp.einsum("hbqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)


def vmapped_with_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    def one(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return jax.nn.softmax(q @ k.T / 4 + bias, -1) @ v

    heads = jax.vmap(one, in_axes=(1, 1, 1, 0), out_axes=1)
    return jax.vmap(heads, in_axes=(0, 0, 0, None))(q, k, v, bias)


def causal_with_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return attend(lambda s: by_hand(jnp.where(causal(s), s + bias, -1e9)))(q, k, v)


def capped_with_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return attend(lambda s: by_hand(3 * jnp.tanh(s / 3) + bias))(q, k, v)


def dropped_with_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return attend(lambda s: of_flax(by_hand(s + bias), KEPT))(q, k, v)


def masked_with_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return attend(lambda s: by_hand(jnp.where(lengths(s, MASK), s + bias, -1e9)))(q, k, v)


def masked_before_the_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """A bias has a gradient also where all scores of a row are left out."""
    seen = lengths(jnp.zeros((1, QUERIES)), MASK & np.array([[False], [True]]))
    return attend(lambda s: by_hand(jnp.where(seen, s, -1e9) + bias))(q, k, v)


def scores_of_another_product(q: Any, k: Any, v: Any, places: Any) -> Any:
    """Transformer-XL: a bias of each query follows from its product with distances, turned by a row a row."""
    turned = jnp.einsum("bqhd,thd->bhqt", q, places)
    turned = jnp.pad(turned, [(0, 0)] * 3 + [(1, 0)])
    turned = turned.reshape(*turned.shape[:2], turned.shape[3], turned.shape[2])[:, :, 1:]
    turned = turned.reshape(*turned.shape[:2], q.shape[1], -1)[..., : k.shape[1]]
    return attend(lambda s: by_hand(s + turned))(q, k, v)


def masked_with_twice_the_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return attend(lambda s: by_hand(jnp.where(lengths(s, MASK), s + 2 * bias, -1e9)))(q, k, v)


def rows_of_one_batch(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """As long as a batch is one, a bias of each head is as large as the scores."""
    o = attend(lambda s: by_hand(s + bias[None]))(q[:1], k[:1], v[:1])
    return jnp.concatenate([o, jnp.zeros_like(q[1:])])


def scaled_with_its_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return attend(lambda s: by_hand((s + bias) / 3.3))(q, k, v)


def without_a_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return attend(lambda s: by_hand(s - 0.25 * bias))(q, k, v)


def of_two_layers(q: Any, k: Any, v: Any, bias: Any) -> Any:
    weigh = attend(lambda s: by_hand(s + bias))
    return weigh(weigh(q, k, v), k, v)


def joined_to_a_mask(q: Any, k: Any, v: Any, bias: Any) -> Any:
    low = jnp.where(MASK[:, None, None, :], 0.0, LOWEST)
    return attend(lambda s: by_hand(s + (bias + low)))(q, k, v)


def joined_for_two_layers(q: Any, k: Any, v: Any, bias: Any) -> Any:
    low = jnp.where(MASK[:, None, None, :], 0.0, LOWEST)
    return of_two_layers(q, k, v, low + bias)


def beside_numbers_of_keys(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """As a mask that is given as numbers: what they are is not known."""
    return attend(lambda s: by_hand(s + bias[:1] + ROW.astype(s.dtype)))(q, k, v)


def shifted_windows(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """What is added for each window varies along a part of the batch that shares the bias."""
    q, k, v = (jnp.concatenate([x * (1 - n / 9) for n in range(8)]) for x in (q, k, v))
    q, k, v = (jax.lax.optimization_barrier(x.swapaxes(1, 2)) for x in (q, k, v))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * 0.3 + bias
    parted = scores.reshape(-1, BATCH, *scores.shape[1:]) + WHOLE[:, :1]
    p = by_hand(parted.reshape(scores.shape)).astype(v.dtype)
    return jnp.einsum("bhqk,bhkd->bhqd", p, v)


def slopes(q: Any, k: Any, v: Any, slope: Any) -> Any:
    return of_one_bias(q, k, v, slope[:, None, None] * jnp.arange(k.shape[1]))


def of_pairs(q: Any, k: Any, v: Any, weights: Any) -> Any:
    """AlphaFold: a product of what is known of pairs gives the bias, and reads its gradient."""
    pairs = np.random.default_rng(3).standard_normal((BATCH, QUERIES, QUERIES, 8))
    bias = jnp.einsum("bqkc,ch->bhqk", jnp.asarray(pairs, q.dtype), weights)
    return attend(lambda s: by_hand(s + bias))(q, k, v)


def behind_a_tanh(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return attend(lambda s: by_hand(s - jnp.tanh(bias)))(q, k, v)


def beside_a_sink(q: Any, k: Any, v: Any, bias: Any) -> Any:
    def weigh(s: Any) -> Any:
        raised = jnp.exp((s + bias) / 2)
        return raised / (1 + raised.sum(-1, keepdims=True))

    return attend(weigh)(q, k, v)


def two_of_each_score(q: Any, k: Any, v: Any, pair: Any) -> Any:
    return attend(lambda s: by_hand((s + pair[0] + 0.5 * pair[1]) * 0.7))(q, k, v)


LEARNED: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "scaled": (scaled_with_its_bias, BIAS),
    "scaled, of each score": (scaled_with_its_bias, WHOLE),
    "joined to a mask": (joined_to_a_mask, BIAS),
    "beside numbers of keys": (beside_numbers_of_keys, WHOLE),
    "shifted windows": (shifted_windows, BIAS),
    "of pairs": (of_pairs, BIAS[0, :8, :HEADS]),
    "behind a tanh": (behind_a_tanh, WHOLE),
    "beside a sink": (beside_a_sink, BIAS),
    "two of each score": (two_of_each_score, PAIR),
    "a slope for each head": (slopes, BIAS[0, 0, :HEADS]),
    "of each key": (of_one_bias, BIAS[0, :1]),
    "of each score": (of_one_bias, WHOLE),
    "of each score, masked": (masked_with_twice_the_bias, WHOLE),
    "of another product": (scores_of_another_product, PLACES),
    "of one batch": (rows_of_one_batch, BIAS),
    "of each head": (of_one_bias, BIAS),
    "of all heads": (of_one_bias, BIAS[0]),
    "library": (of_library_with_bias, BIAS),
    "buckets": (of_buckets, BIAS[0, :9, :HEADS]),
    "heads last": (heads_last, BIAS.transpose(1, 2, 0)),
    "vmap": (vmapped_with_bias, BIAS),
    "causal": (causal_with_bias, BIAS),
    "capped": (capped_with_bias, BIAS),
    "dropout": (dropped_with_bias, BIAS),
    "masked": (masked_with_bias, BIAS),
    "masked before": (masked_before_the_bias, BIAS),
}
"""Functions of q, k, v and an array that a bias follows from, with it."""
