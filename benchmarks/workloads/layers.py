"""The parts that the workloads share: dense layers, norms, dropout, multi-head attention, LSTM, masked losses.

Each takes its own weights (a dict of arrays) and activations [batch, ...], hands on activations; `draw_*` draws the
weights.  Plain jax.numpy, so that the program a compiler sees is the one that is written here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Weights = dict[str, Any]
Batch = dict[str, Any]
Keys = Iterator[jax.Array] | None
"""A key for each dropout, in the order in which they are met; None: nothing is dropped."""

MASKED = -1e9
"""What is added to the energy of a place that must get no attention."""


class Parameters(NamedTuple):
    """weights: what the optimizer changes.  statistics: running means and variances of batch norms, {} without any."""

    weights: Weights
    statistics: Weights


# ---- drawing -------------------------------------------------------------------------------------------------------

# By NumPy: a program that draws a hundred arrays compiles longer than the models do.


def draw_normal(random: np.random.Generator, shape: tuple[int, ...], inputs: int) -> Any:
    """Normal f32 numbers that keep the variance of a sum over `inputs`."""
    return random.standard_normal(shape, np.float32) / np.float32(math.sqrt(inputs))


def draw_dense(random: np.random.Generator, inputs: int, *outputs: int) -> Weights:
    """kernel [inputs, *outputs], bias [*outputs]."""
    kernel = draw_normal(random, (inputs, *outputs), inputs)
    return {"kernel": kernel, "bias": np.zeros(outputs, np.float32)}


def draw_norm(width: int) -> Weights:
    return {"gamma": np.ones(width, np.float32), "beta": np.zeros(width, np.float32)}


def draw_lengths(random: np.random.Generator, batch: int, least: int, most: int) -> Any:
    """s32[batch], each from `least` to `most`; the first has `most`, as the batch was padded for it."""
    lengths = random.integers(least, most + 1, batch, np.int32)
    lengths[0] = most
    return lengths


def draw_frequent(
    random: np.random.Generator, shape: tuple[int, ...], least: int, most: int
) -> Any:
    """s32 from `least` to `most` - 1, low ones as much more frequent as words of a text are (Zipf's law)."""
    ranks = np.exp(random.random(shape) * math.log(most - least)).astype(np.int32) - 1
    return least + np.clip(ranks, 0, most - least - 1)


# ---- layers --------------------------------------------------------------------------------------------------------


def apply_dense(weights: Weights, x: jax.Array) -> jax.Array:
    """[..., inputs] -> [..., outputs]."""
    return jnp.matmul(x, weights["kernel"]) + weights["bias"]


def normalise_layer(weights: Weights, x: jax.Array, epsilon: float) -> jax.Array:
    """LayerNorm over the last dimension."""
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + epsilon) * weights["gamma"] + weights["beta"]


class Moments(NamedTuple):
    """Mean and variance of each channel."""

    mean: Any
    variance: Any


def measure_moments(x: jax.Array) -> Moments:
    """Over all dimensions but the last."""
    axes = tuple(range(x.ndim - 1))
    mean = x.mean(axes)
    return Moments(mean, jnp.square(x - mean).mean(axes))


def start_moments(width: int) -> Moments:
    return Moments(np.zeros(width, np.float32), np.ones(width, np.float32))


def move_moments(running: Moments, found: Moments, momentum: float) -> Moments:
    """The running average after one more batch."""
    mean, variance = (
        momentum * r + (1 - momentum) * f for r, f in zip(running, found, strict=True)
    )
    return Moments(mean, variance)


def normalise_batch(weights: Weights, x: jax.Array, moments: Moments, epsilon: float) -> jax.Array:
    """Batch norm by the moments of this batch (training) or the running ones (inference)."""
    scale = lax.rsqrt(moments.variance + epsilon) * weights["gamma"]
    return (x - moments.mean) * scale + weights["beta"]


def split_keys(key: jax.Array, count: int) -> Iterator[jax.Array]:
    return iter(jax.random.split(key, count))


def drop(keys: Keys, x: jax.Array, rate: float) -> jax.Array:
    """Dropout: zero with probability `rate`, the rest scaled up; x itself without keys."""
    if keys is None:
        return x
    kept = jax.random.bernoulli(next(keys), 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), 0.0)


# ---- attention -----------------------------------------------------------------------------------------------------


def draw_attention(random: np.random.Generator, width: int, heads: int) -> Weights:
    """Projections [width, heads, width / heads] of queries, keys and values; and back to [width]."""
    weights = {
        name: draw_dense(random, width, heads, width // heads) for name in ("query", "key", "value")
    }
    output = draw_normal(random, (heads, width // heads, width), width)
    return {**weights, "output": {"kernel": output, "bias": np.zeros(width, np.float32)}}


def attend(
    weights: Weights, x: jax.Array, memory: jax.Array, mask: jax.Array, keys: Keys, rate: float
) -> jax.Array:
    """Scaled dot-product attention of x [batch, n, width] to memory [batch, m, width].

    mask: what is added to the energies, [batch, 1, 1 or n, m].  rate: dropout of the probabilities.
    """

    def project(name: str, y: jax.Array) -> jax.Array:
        return jnp.einsum("bnd,dhk->bnhk", y, weights[name]["kernel"]) + weights[name]["bias"]

    query, key, value = project("query", x), project("key", memory), project("value", memory)
    energies = jnp.einsum("bnhk,bmhk->bhnm", query, key) / math.sqrt(query.shape[-1])
    probabilities = drop(keys, jax.nn.softmax(energies + mask, -1), rate)
    mixed = jnp.einsum("bhnm,bmhk->bnhk", probabilities.astype(value.dtype), value)
    return (
        jnp.einsum("bnhk,hkd->bnd", mixed, weights["output"]["kernel"]) + weights["output"]["bias"]
    )


def mask_lengths(lengths: jax.Array, most: int) -> jax.Array:
    """f32[batch, most]: 1 where a place is within its row's length, else 0."""
    return (jnp.arange(most) < lengths[:, None]).astype(jnp.float32)


def mask_energies(kept: jax.Array) -> jax.Array:
    """f32[batch, m] of ones and zeros -> what `attend` adds, [batch, 1, 1, m]."""
    return (1.0 - kept)[:, None, None, :] * MASKED


# ---- LSTM ----------------------------------------------------------------------------------------------------------


def draw_lstm(random: np.random.Generator, inputs: int, width: int) -> Weights:
    """Gates in the order input, forget, cell, output; the forget gate starts open."""
    bias = np.zeros(4 * width, np.float32)
    bias[width : 2 * width] = 1.0
    return {
        "input": draw_normal(random, (inputs, 4 * width), inputs),
        "hidden": draw_normal(random, (width, 4 * width), width),
        "bias": bias,
    }


class Cell(NamedTuple):
    """hidden, cell: [batch, width]."""

    hidden: jax.Array
    cell: jax.Array


def start_cell(batch: int, width: int, dtype: Any = jnp.float32) -> Cell:
    return Cell(jnp.zeros((batch, width), dtype), jnp.zeros((batch, width), dtype))


def step_lstm(weights: Weights, state: Cell, projected: jax.Array) -> Cell:
    """projected: the input times its weights, plus the bias, [batch, 4 width]."""
    gates = projected + state.hidden @ weights["hidden"]
    i, f, g, o = jnp.split(gates, 4, -1)
    cell = jax.nn.sigmoid(f) * state.cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return Cell(jax.nn.sigmoid(o) * jnp.tanh(cell), cell)


def project_lstm(weights: Weights, x: jax.Array) -> jax.Array:
    """The part of the gates that does not wait for the step before: one product for all steps."""
    return x @ weights["input"] + weights["bias"]


def run_lstm(weights: Weights, x: jax.Array, *, reverse: bool = False) -> jax.Array:
    """[time, batch, inputs] -> the hidden states [time, batch, width]."""

    def step(state: Cell, projected: jax.Array) -> tuple[Cell, jax.Array]:
        state = step_lstm(weights, state, projected)
        return state, state.hidden

    start = start_cell(x.shape[1], weights["hidden"].shape[0], x.dtype)
    return lax.scan(step, start, project_lstm(weights, x), reverse=reverse)[1]


def draw_bilstm(random: np.random.Generator, inputs: int, width: int) -> Weights:
    return {name: draw_lstm(random, inputs, width) for name in ("forward", "backward")}


def run_bilstm(weights: Weights, x: jax.Array) -> jax.Array:
    """[time, batch, inputs] -> [time, batch, 2 width]: one LSTM from each end."""
    forward = run_lstm(weights["forward"], x)
    backward = run_lstm(weights["backward"], x, reverse=True)
    return jnp.concatenate([forward, backward], -1)


# ---- losses --------------------------------------------------------------------------------------------------------


def cross_entropy(
    logits: jax.Array, labels: jax.Array, weight: jax.Array, smoothing: float = 0.0
) -> jax.Array:
    """Mean over the labels of weight 1.  logits [..., classes]; labels, weight [...].

    smoothing: this much of the probability is spread over the other classes (label smoothing).
    """
    classes = logits.shape[-1]
    wanted = jax.nn.one_hot(labels, classes)
    if smoothing:
        other = smoothing / (classes - 1)
        wanted = wanted * (1 - smoothing - other) + other
    losses = -(wanted * jax.nn.log_softmax(logits)).sum(-1)
    return (losses * weight).sum() / weight.sum()
