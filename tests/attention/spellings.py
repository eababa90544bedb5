"""Attention as people write it: functions of q [batch, queries, heads, features], k, v and at times a mask or bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Function = Callable[..., Any]

BATCH, QUERIES, HEADS, FEATURES = 2, 24, 4, 16


def make_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of a sum of squares in q, k and v."""

    def loss(*arrays: Any) -> Any:
        return jnp.sum(function(*arrays).astype(jnp.float32) ** 2)

    return jax.grad(loss, argnums=(0, 1, 2))


def causal(scores: Any) -> Any:
    return jnp.tril(jnp.ones(scores.shape[-2:], bool))


def attend(probabilities: Function, scale: float = 0.25) -> Function:
    """Attention whose probabilities are a function of the scaled scores in f32."""

    def attention(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * scale
        return jnp.einsum("bhqk,bkhd->bqhd", probabilities(scores, *rest).astype(q.dtype), v)

    return attention


def by_hand(scores: Any) -> Any:
    exponentials = jnp.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def without_maximum(scores: Any) -> Any:
    exponentials = jnp.exp(scores)
    return exponentials * (1 / exponentials.sum(-1, keepdims=True))


def by_powers_of_two(scores: Any) -> Any:
    powers = jnp.exp2(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def in_a_window(scores: Any) -> Any:
    distance = jnp.arange(scores.shape[-2])[:, None] - jnp.arange(scores.shape[-1])
    seen = (distance >= 0) & (distance < 5)
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)


def heads_first(q: Any, k: Any, v: Any) -> Any:
    """[batch, heads, positions, features], all in the type of the operands."""
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[-1] ** -0.5)
    scores = jnp.where(causal(scores), scores, jnp.finfo(scores.dtype).min)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v).swapaxes(1, 2)


def keys_first(q: Any, k: Any, v: Any) -> Any:
    """k q^T, with the softmax over its rows."""
    scores = jnp.einsum("bkhd,bqhd->bhkq", k, q).astype(jnp.float32) * 0.3
    return jnp.einsum("bhkq,bkhd->bqhd", jax.nn.softmax(scores, -2).astype(q.dtype), v)


def by_vmap(q: Any, k: Any, v: Any) -> Any:
    def one(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(q @ k.T * 0.25, -1) @ v

    return jax.vmap(jax.vmap(one, in_axes=1, out_axes=1))(q, k, v)


def from_one_product(q: Any, k: Any, v: Any) -> Any:
    """q, k and v as parts of one array."""
    batch, positions = q.shape[:2]
    joined = jnp.concatenate([x.reshape(batch, positions, -1) for x in (q, k, v)], -1)
    parts = [x.reshape(q.shape) for x in jnp.split(joined, 3, -1)]
    return attend(lambda s: jax.nn.softmax(jnp.where(causal(s), s, -1e9), -1))(*parts)


def with_shared_heads(q: Any, k: Any, v: Any) -> Any:
    """Two heads of q for one of k and v, as a dimension of their own."""
    k, v = k[:, :, : HEADS // 2], v[:, :, : HEADS // 2]
    grouped = q.reshape(*q.shape[:2], HEADS // 2, 2, q.shape[-1])
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, k).astype(jnp.float32) * 0.25
    scores = jnp.where(causal(scores), scores, -1e9)
    p = jax.nn.softmax(scores, -1).astype(q.dtype)
    return jnp.einsum("bkgts,bskd->btkgd", p, v).reshape(q.shape)


def with_repeated_heads(q: Any, k: Any, v: Any) -> Any:
    k, v = (jnp.repeat(x[:, :, : HEADS // 2], 2, 2) for x in (k, v))
    return attend(lambda s: jax.nn.softmax(s, -1))(q, k, v)


def lengths(scores: Any, mask: Any) -> Any:
    return mask[:, None, None, : scores.shape[-1]]


MASK = np.arange(QUERIES) < np.array([[QUERIES], [7]])
BIAS = np.random.default_rng(1).standard_normal((HEADS, QUERIES, QUERIES))

PLAIN: dict[str, tuple[Function, str]] = {
    "softmax": (attend(lambda s: jax.nn.softmax(s, -1)), "all"),
    "log_softmax": (attend(lambda s: jnp.exp(jax.nn.log_softmax(s, -1))), "all"),
    "by_hand": (attend(by_hand), "all"),
    "without_maximum": (attend(without_maximum), "all"),
    "by_powers_of_two": (attend(by_powers_of_two), "all"),
    "by_vmap": (by_vmap, "all"),
    "keys_first": (keys_first, "all"),
    "with_repeated_heads": (with_repeated_heads, "all"),
    "library": (jax.nn.dot_product_attention, "all"),
    "where": (attend(lambda s: by_hand(jnp.where(causal(s), s, -1e9))), "causal"),
    "added": (attend(lambda s: by_hand(s + jnp.where(causal(s), 0, -1e9))), "causal"),
    "heads_first": (heads_first, "causal"),
    "from_one_product": (from_one_product, "causal"),
    "with_shared_heads": (with_shared_heads, "causal"),
    "window": (attend(in_a_window), "window"),
}
"""Functions of q, k and v, with the form of their mask."""

GIVEN: dict[str, tuple[Function, np.ndarray]] = {
    "mask": (attend(lambda s, m: by_hand(jnp.where(lengths(s, m), s, -1e9))), MASK),
    "added_mask": (
        attend(lambda s, m: by_hand(s + (1.0 - lengths(s, m).astype(jnp.float32)) * -1e9)),
        MASK,
    ),
    "mask_of_both": (
        attend(lambda s, m: by_hand(jnp.where(lengths(s, m) & causal(s), s, -1e9))),
        MASK,
    ),
    "bias": (attend(lambda s, b: by_hand(s + b.astype(jnp.float32))), BIAS),
}
"""Functions of q, k, v and an array, with it."""


def with_clipped_gradient(q: Any, k: Any, v: Any) -> Any:
    """Of which only the gradient differs from that of a softmax."""

    @jax.custom_vjp
    def clip(x: Any) -> Any:
        return x

    clip.defvjp(lambda x: (x, None), lambda _, dx: (jnp.clip(dx, -4, 4),))
    return attend(lambda s: jax.nn.softmax(clip(s), -1))(q, k, v)


def by_head(scores: Any) -> Any:
    """The first and the last head see all that is before, the others three positions."""
    distance = jnp.arange(scores.shape[-2])[:, None] - jnp.arange(scores.shape[-1])
    head = jnp.arange(HEADS)[:, None, None]
    seen = (distance >= 0) & ((head == 0) | (head == HEADS - 1) | (distance < 3))
    return by_hand(jnp.where(seen, scores, -1e9))


def to_eight_bits(scores: Any) -> Any:
    return by_hand(scores.astype(jnp.float8_e4m3fn).astype(jnp.float32))


def leaves_out_zeros(scores: Any, given: Any) -> Any:
    """A number of 0 leaves a score out."""
    number = jnp.where(lengths(scores, given), -1e9, 0.0)
    return by_hand(jnp.where(jnp.minimum(number, 0 * scores) < -1e6, scores, -1e9))


OTHERS: dict[str, Function] = {
    "clipped_far": attend(lambda s: by_hand(jnp.clip(s, -400, 400))),
    "to_eight_bits": attend(to_eight_bits),
    "one_far_bias": attend(lambda s: by_hand(s + 6.03 * jnp.eye(s.shape[-1]))),
    "clipped": attend(lambda s: jax.nn.softmax(jnp.clip(s, -50, 50), -1)),
    "threshold": attend(lambda s: (lambda p: jnp.where(p < 1e-6, 0, p))(by_hand(s))),
    "sigmoid": attend(jax.nn.sigmoid),
    "over_queries": attend(lambda s: jax.nn.softmax(s, -2)),
    "capped": attend(lambda s: jax.nn.softmax(30 * jnp.tanh(s / 30), -1)),
    "squared": attend(lambda s: jax.nn.softmax(s * s, -1)),
    "with_sink": attend(lambda s: jnp.exp(s) / (1 + jnp.exp(s).sum(-1, keepdims=True))),
    "linear": attend(lambda s: s / s.sum(-1, keepdims=True)),
    "rows_without_scores": attend(
        lambda s: jax.nn.softmax(
            jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool), -1), s, -jnp.inf), -1
        )
    ),
    "f32_bias": attend(lambda s: jax.nn.softmax(s + 0.1 * jnp.arange(s.shape[-1]), -1)),
}
"""What is no attention of the library's."""

OTHERS_GIVEN: dict[str, Function] = {
    "lower_by_data": attend(lambda s, m: by_hand(jnp.where(lengths(s, m), s, s - 1e4))),
    "leaves_out_zeros": attend(leaves_out_zeros),
}
"""The same of q, k, v and MASK."""
