"""Attention as people write it: functions of q [batch, queries, heads, features], k, v and at times a mask or bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Function = Callable[..., Any]

BATCH, QUERIES, HEADS, FEATURES = 2, 24, 4, 16


def make_gradient(function: Callable[..., Any], count: int = 3) -> Callable[..., Any]:
    """The gradient of a sum of squares in q, k and v, or in so many arguments."""

    def loss(*arrays: Any) -> Any:
        return jnp.sum(function(*arrays).astype(jnp.float32) ** 2)

    return jax.grad(loss, argnums=tuple(range(count)))


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


GROUPS = HEADS // 2
"""Heads of k and v in SHARED."""

causal_attention = attend(lambda s: by_hand(jnp.where(causal(s), s, -1e9)))


def of_one_head(q: Any, k: Any, v: Any) -> Any:
    """[positions, features]."""
    scores = (q @ k.T).astype(jnp.float32) * 0.25
    return by_hand(jnp.where(causal(scores), scores, -1e9)).astype(q.dtype) @ v


def repeated(q: Any, *shared: Any) -> Any:
    return causal_attention(q, *(jnp.repeat(x, HEADS // GROUPS, 2) for x in shared))


def repeated_heads_first(q: Any, *shared: Any) -> Any:
    q, k, v = (x.swapaxes(1, 2) for x in (q, *shared))
    k, v = (jnp.repeat(x, HEADS // GROUPS, 1) for x in (k, v))
    return jax.vmap(jax.vmap(of_one_head))(q, k, v).swapaxes(1, 2)


def broadcast_and_reshaped(q: Any, *shared: Any) -> Any:
    batch, positions, groups, features = shared[0].shape
    five = (batch, positions, groups, HEADS // groups, features)
    wide = (jnp.broadcast_to(x[:, :, :, None], five).reshape(q.shape) for x in shared)
    return causal_attention(q, *wide)


def broadcast_in_five_dimensions(q: Any, *shared: Any) -> Any:
    batch, positions, groups, features = shared[0].shape
    five = (batch, positions, groups, HEADS // groups, features)
    k, v = (jnp.broadcast_to(x[:, :, :, None], five) for x in shared)
    scores = jnp.einsum("btgrf,bsgrf->bgrts", q.reshape(five), k).astype(jnp.float32) * 0.25
    p = by_hand(jnp.where(causal(scores), scores, -1e9)).astype(q.dtype)
    return jnp.einsum("bgrts,bsgrf->btgrf", p, v).reshape(q.shape)


def by_batched_products(q: Any, *shared: Any) -> Any:
    """Batch and heads are one dimension."""
    wide = (q, *(jnp.repeat(x, HEADS // GROUPS, 2) for x in shared))
    q, k, v = (x.swapaxes(1, 2).reshape(-1, x.shape[1], x.shape[3]) for x in wide)
    result = jax.vmap(of_one_head)(q, k, v)
    return result.reshape(-1, HEADS, *result.shape[1:]).swapaxes(1, 2)


def by_vmap_over_sharing_heads(q: Any, *shared: Any) -> Any:
    """in_axes=None for k and v."""
    sharing = jax.vmap(of_one_head, in_axes=(1, None, None), out_axes=1)
    grouped = q.reshape(*q.shape[:2], GROUPS, -1, q.shape[-1])
    return jax.vmap(jax.vmap(sharing, 1, 1))(grouped, *shared).reshape(q.shape)


def one_example_at_a_time(q: Any, *shared: Any) -> Any:
    return jax.vmap(lambda *x: repeated(*(y[None] for y in x))[0])(q, *shared)


def repeated_in_f32(q: Any, k: Any, v: Any) -> Any:
    """Rounded behind the repetition."""
    k = jnp.repeat(k.astype(jnp.float32) * 1.25, HEADS // GROUPS, 2).astype(q.dtype)
    return causal_attention(q, k, jnp.repeat(v, HEADS // GROUPS, 2))


def one_shared_head(q: Any, *shared: Any) -> Any:
    return causal_attention(q, *(jnp.broadcast_to(x[:, :, :1], q.shape) for x in shared))


def one_shared_head_by_vmap(q: Any, *shared: Any) -> Any:
    sharing = jax.vmap(of_one_head, in_axes=(1, None, None), out_axes=1)
    return jax.vmap(sharing)(q, *(x[:, :, 0] for x in shared))


SHARED: dict[str, tuple[Function, int]] = {
    "repeated": (repeated, GROUPS),
    "repeated_heads_first": (repeated_heads_first, GROUPS),
    "broadcast_and_reshaped": (broadcast_and_reshaped, GROUPS),
    "broadcast_in_five_dimensions": (broadcast_in_five_dimensions, GROUPS),
    "by_batched_products": (by_batched_products, GROUPS),
    "by_vmap_over_sharing_heads": (by_vmap_over_sharing_heads, GROUPS),
    "one_example_at_a_time": (one_example_at_a_time, GROUPS),
    "repeated_in_f32": (repeated_in_f32, GROUPS),
    "one_shared_head": (one_shared_head, 1),
    "one_shared_head_by_vmap": (one_shared_head_by_vmap, 1),
    "library": (lambda *x: jax.nn.dot_product_attention(*x, is_causal=True), GROUPS),
}
"""Functions of q and of k and v with GROUPS heads, with the heads of k and v that are read."""


def tiled(q: Any, *shared: Any) -> Any:
    """The library has no such order of heads."""
    return causal_attention(q, *(jnp.tile(x, (1, 1, HEADS // GROUPS, 1)) for x in shared))


def repeated_keys(q: Any, k: Any, v: Any) -> Any:
    """Values are of each head."""
    return causal_attention(
        q, jnp.repeat(k, HEADS // GROUPS, 2), jnp.concatenate([v, 2 * v], axis=2)
    )


def repeated_for_two(q: Any, k: Any, v: Any) -> Any:
    """What is repeated is read beside attention, so that its gradient is summed with another."""
    k, v = (jnp.repeat(x, HEADS // GROUPS, 2) for x in (k, v))
    return causal_attention(q, k, v) + k / 2


def repeated_over_the_batch(q: Any, *shared: Any) -> Any:
    """All examples have one k and v, so that its gradient is summed over them too."""
    wide = (jnp.repeat(x[0], HEADS // GROUPS, 1) for x in shared)
    return causal_attention(q, *(jnp.broadcast_to(x, q.shape) for x in wide))


PARTLY_SHARED: dict[str, tuple[Function, int, int]] = {
    "tiled": (tiled, HEADS, HEADS),
    "repeated_keys": (repeated_keys, HEADS, HEADS),
    "repeated_for_two": (repeated_for_two, GROUPS, HEADS),
    "repeated_over_the_batch": (repeated_over_the_batch, GROUPS, HEADS),
}
"""The same, with the heads of k and v that the forward pass and that the gradient reads."""


def dropped(q: Any, k: Any, v: Any) -> Any:
    """Dropout of probabilities by random bits of JAX's."""
    kept = jax.random.bernoulli(
        jax.random.key(3), 0.9, (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    )
    return attend(lambda s: jnp.where(kept, jax.nn.softmax(s, -1) / 0.9, 0))(q, k, v)


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


def of_constant_sink(scores: Any) -> Any:
    """With a score of 0 that no value belongs to."""
    return jnp.exp(scores) / (1 + jnp.exp(scores).sum(-1, keepdims=True))


SINK = np.array([0.5, -1.0, 2.0, 0.0])
"""A score more for each head, which no value belongs to."""


def as_column(sink: Any, scores: Any) -> Any:
    column = sink.astype(scores.dtype)[None, :, None, None]
    return jnp.broadcast_to(column, (*scores.shape[:3], 1))


def beside_scores(scores: Any, sink: Any) -> Any:
    """As GPT-OSS has it."""
    joined = jnp.concatenate([scores, as_column(sink, scores)], -1)
    return jax.nn.softmax(joined, -1)[..., :-1]


def before_scores(scores: Any, sink: Any) -> Any:
    joined = jnp.concatenate([as_column(sink, scores), scores], -1)
    return jax.nn.softmax(joined, -1)[..., 1:]


def in_the_sum(scores: Any, sink: Any) -> Any:
    most = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
    raised = jnp.exp(scores - most)
    total = raised.sum(-1, keepdims=True) + jnp.exp(sink[None, :, None, None] - most)
    return raised / total


def in_the_maximum(scores: Any, sink: Any) -> Any:
    sink = sink[None, :, None, None]
    most = jnp.maximum(scores.max(-1, keepdims=True), sink)
    raised = jnp.exp(scores - most)
    return raised / (raised.sum(-1, keepdims=True) + jnp.exp(sink - most))


def as_weight(scores: Any, sink: Any) -> Any:
    raised = jnp.exp(scores)
    return raised / (raised.sum(-1, keepdims=True) + jnp.exp(sink)[None, :, None, None])


SINKS: dict[str, Function] = {
    "beside_scores": beside_scores,
    "before_scores": before_scores,
    "in_the_sum": in_the_sum,
    "in_the_maximum": in_the_maximum,
    "as_weight": as_weight,
    "causal": lambda s, sink: beside_scores(jnp.where(causal(s), s, -1e9), sink),
    "causal_by_infinity": lambda s, sink: in_the_sum(jnp.where(causal(s), s, -jnp.inf), sink),
    "capped": lambda s, sink: beside_scores(3 * jnp.tanh(s / 3), sink),
}
"""Functions of scores and a sink."""


SEGMENTS = np.array([[0] * 9 + [1] * 8 + [2] * 7, [3] * 5 + [0] * 19], np.int32)
LENGTHS = np.array([QUERIES, 7], np.int32)


def rows_of(array: Any) -> Any:
    return array[:, None, :, None]


def columns_of(array: Any) -> Any:
    return array[:, None, None, :]


def in_segments(scores: Any, ids: Any) -> Any:
    return by_hand(jnp.where(rows_of(ids) == columns_of(ids), scores, -1e9))


def in_documents(scores: Any, ids: Any) -> Any:
    """Causal too, with finfo.min."""
    seen = causal(scores) & (rows_of(ids) == columns_of(ids))
    return jax.nn.softmax(jnp.where(seen, scores, jnp.finfo(scores.dtype).min), -1)


def in_documents_by_addition(scores: Any, ids: Any) -> Any:
    seen = causal(scores) & ~(rows_of(ids) != columns_of(ids))
    return jax.nn.softmax(scores + jnp.where(seen, 0.0, -1e9), -1)


def in_documents_that_are_padded(scores: Any, ids: Any) -> Any:
    """A segment of 0 is padding: rows without a score."""
    there = ids != 0
    seen = rows_of(ids) == columns_of(ids)
    seen = seen & rows_of(there) & columns_of(there) & causal(scores)
    return by_hand(jnp.where(seen, scores, -1e9))


def of_segments_left_out(scores: Any, ids: Any) -> Any:
    """By conditions of what is left out."""
    out = (rows_of(ids) != columns_of(ids)) | ~causal(scores)
    return by_hand(jnp.where(out, -1e9, scores))


def in_segments_by_infinity(scores: Any, ids: Any) -> Any:
    return in_the_sum_alone(jnp.where(rows_of(ids) == columns_of(ids), scores, -jnp.inf))


def in_the_sum_alone(scores: Any) -> Any:
    return jnp.exp(jax.nn.log_softmax(scores, -1))


def by_given_positions(scores: Any, ids: Any) -> Any:
    """As if the ids were positions: a query sees keys that are not behind it."""
    return by_hand(jnp.where(rows_of(ids) >= columns_of(ids), scores, -1e9))


def by_lengths(scores: Any, lengths: Any) -> Any:
    keys = jnp.arange(scores.shape[-1])
    return by_hand(jnp.where(keys < lengths[:, None, None, None], scores, -1e9))


def by_lengths_and_position(scores: Any, lengths: Any) -> Any:
    keys = jnp.arange(scores.shape[-1])
    seen = (keys < lengths[:, None, None, None]) & causal(scores)
    return by_hand(jnp.where(seen, scores, -1e9))


def behind_what_was_cached(scores: Any, lengths: Any) -> Any:
    """The first query stands behind so many keys."""
    queries = jnp.arange(scores.shape[-2])[:, None] + lengths[:, None, None, None]
    return by_hand(jnp.where(queries >= jnp.arange(scores.shape[-1]), scores, -1e9))


def padded_on_the_left(scores: Any, lengths: Any) -> Any:
    """Causal, with rows without a score."""
    keys = jnp.arange(scores.shape[-1])
    seen = (keys >= lengths[:, None, None, None] - 4) & causal(scores)
    return jax.nn.softmax(jnp.where(seen, scores, -1e9), -1)


def padded_in_a_window(scores: Any, lengths: Any) -> Any:
    distance = jnp.arange(scores.shape[-2])[:, None] - jnp.arange(scores.shape[-1])
    seen = (distance >= 0) & (distance < 5)
    seen = seen & (jnp.arange(scores.shape[-1]) < lengths[:, None, None, None])
    return by_hand(jnp.where(seen, scores, -1e9))


def of_two_wheres(scores: Any, ids: Any) -> Any:
    scores = jnp.where(causal(scores), scores, -1e9)
    return by_hand(jnp.where(rows_of(ids) == columns_of(ids), scores, -1e9))


VECTORS: dict[str, tuple[Function, np.ndarray, tuple[str, ...], bool]] = {
    "in_segments": (in_segments, SEGMENTS, ("EQ", "EQ"), False),
    "in_documents": (in_documents, SEGMENTS, ("EQ", "EQ"), True),
    "by_addition": (in_documents_by_addition, SEGMENTS, ("EQ", "EQ"), True),
    "that_are_padded": (
        in_documents_that_are_padded,
        SEGMENTS,
        ("mask", "mask", "EQ", "EQ"),
        True,
    ),
    "left_out": (of_segments_left_out, SEGMENTS, ("EQ", "EQ"), True),
    "by_infinity": (in_segments_by_infinity, SEGMENTS, ("EQ", "EQ"), False),
    "of_two_wheres": (of_two_wheres, SEGMENTS, ("EQ", "EQ"), True),
    "by_given_positions": (by_given_positions, SEGMENTS, ("GE", "GE"), False),
    "by_lengths": (by_lengths, LENGTHS, ("mask",), False),
    "by_lengths_and_position": (by_lengths_and_position, LENGTHS, ("mask",), True),
    "behind_what_was_cached": (behind_what_was_cached, LENGTHS, ("GE", "GE"), False),
    "padded_on_the_left": (padded_on_the_left, LENGTHS, ("mask",), True),
    "padded_in_a_window": (padded_in_a_window, LENGTHS, ("mask",), True),
}
"""Functions of scores and an array, with it, the arrays that a kernel reads, and whether a band is left."""


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
    "with_sink": attend(of_constant_sink),
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


KEPT = np.random.default_rng(2).random((BATCH, HEADS, QUERIES, QUERIES)) < 0.8


def of_flax(p: Any, kept: Any) -> Any:
    return p * (kept.astype(p.dtype) / 0.8)
