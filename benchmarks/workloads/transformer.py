"""The Transformer (Vaswani et al., 2017): encoder and decoder for translation, shared embedding, label smoothing.

Takes source and target words [batch, length], hands on the log-probabilities of each next word over the whole
vocabulary; a training step has dropout, a label-smoothed loss and Adam with the warm-up of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.workloads.adam import Recipe, State, take_step
from benchmarks.workloads.layers import (
    MASKED,
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
    draw_normal,
    drop,
    mask_energies,
    mask_lengths,
    normalise_layer,
    split_keys,
)


@dataclass(frozen=True, slots=True)
class Size:
    """layers: of the encoder, and as many of the decoder.  source, target: words of a padded sentence."""

    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    batch: int
    source: int
    target: int


SIZES: Mapping[str, Size] = {
    "tiny": Size(1, 16, 2, 32, 70, 2, 7, 6),
    "full": Size(2, 512, 8, 2048, 30000, 16, 64, 64),
}

EPSILON = 1e-6
DROPOUT = 0.1
DROPOUT_SEED = 18
SMOOTHING = 0.1
WARM_UP = 4000.0
SPECIAL = 3
"""Indices below it are no words: padding, start, end."""
START, END = 1, 2

RATE_WIDTH = 512
"""The width of the paper's base model, which scales its learning rate."""

RECIPE = Recipe(
    lambda time: RATE_WIDTH**-0.5 * jnp.minimum(time**-0.5, time * WARM_UP**-1.5),
    beta2=0.98,
    epsilon=1e-9,
)


def make_parameters(key: int, size: Size) -> Parameters:
    random, width = np.random.default_rng(key), size.width

    def draw_inner() -> Weights:
        return {
            "inner": draw_dense(random, width, size.inner),
            "outer": draw_dense(random, size.inner, width),
            "outer_norm": draw_norm(width),
        }

    def draw_attending(name: str) -> Weights:
        return {name: draw_attention(random, width, size.heads), f"{name}_norm": draw_norm(width)}

    layers = range(size.layers)
    return Parameters(
        {
            "words": draw_normal(random, (size.vocabulary, width), width),
            "encoder": [{**draw_attending("self"), **draw_inner()} for _ in layers],
            "decoder": [
                {**draw_attending("self"), **draw_attending("source"), **draw_inner()}
                for _ in layers
            ],
        },
        {},
    )


def make_batch(key: int, size: Size) -> Batch:
    """source and its lengths; shifted: START and the target without its last word; target: words and END, padded."""
    random = np.random.default_rng(key)
    lengths = draw_lengths(random, size.batch, size.source // 2, size.source)
    last = draw_lengths(random, size.batch, size.target // 2, size.target)[:, None] - 1
    source = draw_frequent(random, (size.batch, size.source), SPECIAL, size.vocabulary)
    target = draw_frequent(random, (size.batch, size.target), SPECIAL, size.vocabulary)
    places = np.arange(size.target)
    target = np.where(places == last, END, np.where(places > last, 0, target)).astype(np.int32)
    start = np.full((size.batch, 1), START, np.int32)
    return {
        "source": np.where(np.arange(size.source) < lengths[:, None], source, 0).astype(np.int32),
        "lengths": lengths,
        "shifted": np.concatenate([start, target[:, :-1]], 1),
        "target": target,
    }


def embed(weights: Weights, words: jax.Array, keys: Keys) -> jax.Array:
    """Words, scaled, plus the sines and cosines of their places."""
    width = weights["words"].shape[1]
    places = jnp.arange(words.shape[1], dtype=jnp.float32)[:, None]
    rates = jnp.exp(jnp.arange(0, width, 2, dtype=jnp.float32) * (-math.log(10000.0) / width))
    waves = jnp.concatenate([jnp.sin(places * rates), jnp.cos(places * rates)], -1)
    x = weights["words"][words] * math.sqrt(width)
    return drop(keys, x + waves.astype(x.dtype), DROPOUT)


def transform(layer: Weights, x: jax.Array, keys: Keys) -> jax.Array:
    """The position-wise network of a layer, with its residual and norm."""
    y = apply_dense(layer["outer"], jax.nn.relu(apply_dense(layer["inner"], x)))
    return normalise_layer(layer["outer_norm"], x + drop(keys, y, DROPOUT), EPSILON)


def compute_logits(weights: Weights, batch: Batch, keys: Keys) -> jax.Array:
    """[batch, target, vocabulary]; the output product shares the embedding's weights."""
    mask = mask_energies(mask_lengths(batch["lengths"], batch["source"].shape[1]))
    x = embed(weights, batch["source"], keys)
    for layer in weights["encoder"]:
        y = drop(keys, attend(layer["self"], x, x, mask, keys, DROPOUT), DROPOUT)
        x = transform(layer, normalise_layer(layer["self_norm"], x + y, EPSILON), keys)
    memory = x
    x = embed(weights, batch["shifted"], keys)
    places = jnp.arange(x.shape[1])
    causal = jnp.where(places[:, None] >= places, 0.0, MASKED)[None, None]
    for layer in weights["decoder"]:
        y = drop(keys, attend(layer["self"], x, x, causal, keys, DROPOUT), DROPOUT)
        x = normalise_layer(layer["self_norm"], x + y, EPSILON)
        y = drop(keys, attend(layer["source"], x, memory, mask, keys, DROPOUT), DROPOUT)
        x = transform(layer, normalise_layer(layer["source_norm"], x + y, EPSILON), keys)
    return x @ weights["words"].T


def infer(parameters: Parameters, batch: Batch) -> jax.Array:
    """The log-probabilities [batch, target, vocabulary] of each next word, the words before it given."""
    return jax.nn.log_softmax(compute_logits(parameters.weights, batch, None))


def compute_loss(weights: Weights, batch: Batch, keys: Keys) -> jax.Array:
    logits = compute_logits(weights, batch, keys)
    weight = (batch["target"] != 0).astype(jnp.float32)
    return cross_entropy(logits, batch["target"], weight, SMOOTHING)


def train_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
    """One step of Adam; dropout depends on the number of the step alone."""
    weights = state.parameters.weights
    key = jax.random.fold_in(jax.random.key(DROPOUT_SEED), state.step)
    keys = split_keys(key, 2 + 3 * len(weights["encoder"]) + 5 * len(weights["decoder"]))
    loss, gradients = jax.value_and_grad(compute_loss)(weights, batch, keys)
    return take_step(RECIPE, state, gradients, {}), loss
