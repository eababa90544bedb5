"""BERT (Devlin et al., 2018): a post-norm Transformer encoder; training on masked words and next sentences.

Takes word and segment indices [batch, length], hands on the last hidden states and the next-sentence
log-probabilities; a training step is forward, backward, clipping by the global norm and AdamW.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.workloads.adam import Recipe, State, take_step
from benchmarks.workloads.layers import (
    Batch,
    Keys,
    Parameters,
    Weights,
    apply_dense,
    attend,
    cross_entropy,
    draw_attention,
    draw_dense,
    draw_frequent,
    draw_lengths,
    draw_norm,
    drop,
    mask_energies,
    mask_lengths,
    normalise_layer,
    split_keys,
)


@dataclass(frozen=True, slots=True)
class Size:
    """predictions: masked words of a sequence."""

    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    positions: int
    batch: int
    length: int
    predictions: int


SIZES: Mapping[str, Size] = {
    "tiny": Size(1, 16, 2, 32, 60, 12, 2, 10, 2),
    "full": Size(2, 768, 12, 3072, 30522, 512, 8, 128, 20),
    "12-layers-batch-1": Size(12, 768, 12, 3072, 30522, 512, 1, 128, 20),
    "12-layers-batch-32": Size(12, 768, 12, 3072, 30522, 512, 32, 128, 20),
}

EPSILON = 1e-12
DROPOUT = 0.1
DROPOUT_SEED = 17
SPECIAL = 5
"""Indices below it are no words: padding, unknown, CLS, SEP, MASK."""
CLS, SEP, MASK = 2, 3, 4

RECIPE = Recipe(
    lambda time: 1e-4 * jnp.minimum(1.0, time / 10.0), epsilon=1e-6, decay=0.01, most_norm=1.0
)


def make_parameters(key: int, size: Size) -> Parameters:
    random, width = np.random.default_rng(key), size.width

    def draw_table(rows: int) -> Any:
        return np.float32(0.02) * random.standard_normal((rows, width), np.float32)

    return Parameters(
        {
            "words": draw_table(size.vocabulary),
            "positions": draw_table(size.positions),
            "segments": draw_table(2),
            "norm": draw_norm(width),
            "layers": [
                {
                    "attention": draw_attention(random, width, size.heads),
                    "attention_norm": draw_norm(width),
                    "inner": draw_dense(random, width, size.inner),
                    "outer": draw_dense(random, size.inner, width),
                    "outer_norm": draw_norm(width),
                }
                for _ in range(size.layers)
            ],
            "pool": draw_dense(random, width, width),
            "next_sentence": draw_dense(random, width, 2),
            "transform": draw_dense(random, width, width),
            "transform_norm": draw_norm(width),
            "words_bias": {"bias": np.zeros(size.vocabulary, np.float32)},
        },
        {},
    )


def make_batch(key: int, size: Size) -> Batch:
    """Pairs of sentences `CLS a SEP b SEP`, padded; `predictions` words of each masked, none twice."""
    random, batch, length = np.random.default_rng(key), size.batch, size.length
    lengths = draw_lengths(random, batch, max(length // 2, size.predictions + 3), length)
    words = draw_frequent(random, (batch, length), SPECIAL, size.vocabulary)
    places, middle, last = np.arange(length), (lengths // 2)[:, None], (lengths - 1)[:, None]
    words[(places == middle) | (places == last)] = SEP
    words[places > last] = 0
    words[:, 0] = CLS
    # The places with the largest random numbers, among those that hold words.
    chances = np.where(words >= SPECIAL, random.random((batch, length)), -1.0)
    masked = np.sort(np.argsort(-chances, axis=1)[:, : size.predictions], axis=1)
    labels = np.take_along_axis(words, masked, 1)
    np.put_along_axis(words, masked, MASK, 1)
    return {
        "words": words,
        "segments": ((places > middle) & (places <= last)).astype(np.int32),
        "lengths": lengths,
        "masked": masked.astype(np.int32),
        "labels": labels,
        "is_next": random.integers(0, 2, batch, np.int32),
    }


def encode(weights: Weights, batch: Batch, keys: Keys) -> jax.Array:
    """The hidden states [batch, length, width]."""
    length = batch["words"].shape[1]
    # Two rows: a product with a one-hot matrix is faster than a gather, and so is its gradient.
    chosen = jax.nn.one_hot(batch["segments"], 2, dtype=weights["segments"].dtype)
    segments = chosen @ weights["segments"]
    x = weights["words"][batch["words"]] + weights["positions"][:length] + segments
    x = drop(keys, normalise_layer(weights["norm"], x, EPSILON), DROPOUT)
    mask = mask_energies(mask_lengths(batch["lengths"], length))
    for layer in weights["layers"]:
        y = drop(keys, attend(layer["attention"], x, x, mask, keys, DROPOUT), DROPOUT)
        x = normalise_layer(layer["attention_norm"], x + y, EPSILON)
        y = apply_dense(layer["outer"], jax.nn.gelu(apply_dense(layer["inner"], x)))
        x = normalise_layer(layer["outer_norm"], x + drop(keys, y, DROPOUT), EPSILON)
    return x


def judge_next_sentence(weights: Weights, hidden: jax.Array) -> jax.Array:
    """Logits [batch, 2], from the hidden state of the first place."""
    return apply_dense(
        weights["next_sentence"], jnp.tanh(apply_dense(weights["pool"], hidden[:, 0]))
    )


def infer(parameters: Parameters, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """(hidden states [batch, length, width], next-sentence log-probabilities [batch, 2])."""
    hidden = encode(parameters.weights, batch, None)
    return hidden, jax.nn.log_softmax(judge_next_sentence(parameters.weights, hidden))


def compute_loss(weights: Weights, batch: Batch, keys: Keys) -> jax.Array:
    """Cross-entropy of the masked words plus that of the next sentence."""
    hidden = encode(weights, batch, keys)
    at_masked = jnp.take_along_axis(hidden, batch["masked"][:, :, None], 1)
    x = jax.nn.gelu(apply_dense(weights["transform"], at_masked))
    x = normalise_layer(weights["transform_norm"], x, EPSILON)
    logits = x @ weights["words"].T + weights["words_bias"]["bias"]
    words = cross_entropy(logits, batch["labels"], jnp.ones(batch["labels"].shape))
    judged = judge_next_sentence(weights, hidden)
    return words + cross_entropy(judged, batch["is_next"], jnp.ones(judged.shape[0]))


def train_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
    """One step of AdamW; dropout depends on the number of the step alone."""
    weights = state.parameters.weights
    key = jax.random.fold_in(jax.random.key(DROPOUT_SEED), state.step)
    keys = split_keys(key, 1 + 3 * len(weights["layers"]))
    loss, gradients = jax.value_and_grad(compute_loss)(weights, batch, keys)
    return take_step(RECIPE, state, gradients, {}), loss
