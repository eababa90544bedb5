"""CRNN (Shi et al., 2015): words in images by convolutions, two bidirectional LSTM layers and the CTC loss.

Takes grey images [batch, 32, width, 1], hands on the log-probabilities [time, batch, classes] of each column; a
training step maximises the probability of the labels over all alignments (Graves et al., 2006), summed in a scan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.workloads.adam import Recipe, State, take_step
from benchmarks.workloads.layers import (
    Batch,
    Moments,
    Parameters,
    Weights,
    apply_dense,
    draw_bilstm,
    draw_dense,
    draw_lengths,
    draw_norm,
    draw_normal,
    measure_moments,
    move_moments,
    normalise_batch,
    run_bilstm,
    start_moments,
)

HEIGHT = 32
"""Of an image: the convolutions bring it down to 1."""


@dataclass(frozen=True, slots=True)
class Size:
    """channels: of the seven convolutions.  hidden: of an LSTM in one direction.  classes: with the blank, which is 0.
    letters: of the longest word.
    """

    channels: tuple[int, ...]
    hidden: int
    classes: int
    batch: int
    width: int
    letters: int


SIZES: Mapping[str, Size] = {
    "tiny": Size((2, 3, 4, 4, 6, 6, 8), 5, 7, 2, 20, 3),
    "full": Size((64, 128, 256, 256, 512, 512, 512), 256, 37, 64, 100, 12),
}

POOLS: tuple[tuple[tuple[int, int], tuple[int, int]] | None, ...] = (
    ((2, 2), (0, 0)),
    ((2, 2), (0, 0)),
    None,
    ((2, 1), (0, 1)),
    None,
    ((2, 1), (0, 1)),
    None,
)
"""After each convolution: stride of a 2 x 2 max pooling, and the columns of padding left and right (here both)."""

NORMED = (2, 4, 5)
"""The convolutions that a batch norm follows."""

EPSILON = 1e-5
MOMENTUM = 0.9
IMPOSSIBLE = -1e30
"""The log-probability of what cannot be; finite, so that differences of two of them are."""

RECIPE = Recipe(lambda time: 1e-3)


def make_parameters(key: int, size: Size) -> Parameters:
    random = np.random.default_rng(key)
    convolutions = []
    statistics: Weights = {}
    inputs = 1
    for number, outputs in enumerate(size.channels):
        side = 2 if number == len(size.channels) - 1 else 3
        # Half of the variance is lost in a ReLU.
        kernel = draw_normal(random, (side, side, inputs, outputs), side * side * inputs // 2)
        layer: Weights = {"kernel": kernel, "bias": np.zeros(outputs, np.float32)}
        if number in NORMED:
            layer["norm"] = draw_norm(outputs)
            statistics[str(number)] = start_moments(outputs)
        convolutions.append(layer)
        inputs = outputs
    weights = {
        "convolutions": convolutions,
        "lower": draw_bilstm(random, inputs, size.hidden),
        "between": draw_dense(random, 2 * size.hidden, size.hidden),
        "upper": draw_bilstm(random, size.hidden, size.hidden),
        "output": draw_dense(random, 2 * size.hidden, size.classes),
    }
    return Parameters(weights, statistics)


def make_batch(key: int, size: Size) -> Batch:
    """Images from -1 to 1; labels from 1, padded with 0, of at least a quarter of the longest word."""
    random = np.random.default_rng(key)
    lengths = draw_lengths(random, size.batch, max(1, size.letters // 4), size.letters)
    letters = random.integers(1, size.classes, (size.batch, size.letters), np.int32)
    letters[np.arange(size.letters) >= lengths[:, None]] = 0
    images = 2 * random.random((size.batch, HEIGHT, size.width, 1), np.float32) - 1
    return {"images": images, "labels": letters, "lengths": lengths}


def see_columns(
    parameters: Parameters, images: jax.Array, *, training: bool
) -> tuple[jax.Array, Weights]:
    """(features [time, batch, channels], statistics after this batch)."""
    x, statistics = images, dict(parameters.statistics)
    layers = parameters.weights["convolutions"]
    for number, (layer, pool) in enumerate(zip(layers, POOLS, strict=True)):
        padding = "VALID" if number == len(layers) - 1 else "SAME"
        x = lax.conv_general_dilated(
            x, layer["kernel"], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = x + layer["bias"]
        if number in NORMED:
            moments = Moments(*parameters.statistics[str(number)])
            if training:
                found = measure_moments(x)
                statistics[str(number)] = move_moments(moments, found, MOMENTUM)
                moments = found
            x = normalise_batch(layer["norm"], x, moments, EPSILON)
        x = jax.nn.relu(x)
        if pool is not None:
            stride, columns = pool
            sides = ((0, 0), (0, 0), (columns[1], columns[1]), (0, 0))
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, *stride, 1), sides)
    return x[:, 0].transpose(1, 0, 2), lax.stop_gradient(statistics)


def read_columns(weights: Weights, columns: jax.Array) -> jax.Array:
    """Features [time, batch, channels] -> log-probabilities [time, batch, classes]."""
    x = apply_dense(weights["between"], run_bilstm(weights["lower"], columns))
    return jax.nn.log_softmax(apply_dense(weights["output"], run_bilstm(weights["upper"], x)))


def infer(parameters: Parameters, batch: Batch) -> jax.Array:
    """The log-probabilities [time, batch, classes], by the running statistics."""
    columns, _ = see_columns(parameters, batch["images"], training=False)
    return read_columns(parameters.weights, columns)


def ctc_loss(log_probabilities: jax.Array, labels: jax.Array, lengths: jax.Array) -> jax.Array:
    """Minus the mean log-probability of the labels, of all the ways to spread them over the time.

    log_probabilities [time, batch, classes]; labels [batch, letters], padded; lengths [batch], at least 1.
    A word's states are its letters with a blank before, between and behind: 2 letters + 1.
    """
    batch, letters = labels.shape
    states = jnp.zeros((batch, 2 * letters + 1), jnp.int32).at[:, 1::2].set(labels)
    chosen = jax.nn.one_hot(states, log_probabilities.shape[-1])
    # Exact: one product with 1 a sum, which reduced precision would round.
    emitted = jnp.einsum("tbc,bsc->tbs", log_probabilities, chosen, precision=lax.Precision.HIGHEST)
    # A blank may be left out between two letters that differ.
    before = jnp.pad(states, ((0, 0), (2, 0)))[:, :-2]
    may_skip = (states != 0) & (states != before)

    def shift(x: jax.Array, count: int) -> jax.Array:
        return jnp.pad(x, ((0, 0), (count, 0)), constant_values=IMPOSSIBLE)[:, :-count]

    def step(alpha: jax.Array, emission: jax.Array) -> tuple[jax.Array, None]:
        moved = jnp.logaddexp(alpha, shift(alpha, 1))
        skipped = jnp.where(may_skip, shift(alpha, 2), IMPOSSIBLE)
        return jnp.logaddexp(moved, skipped) + emission, None

    start = jnp.where(jnp.arange(states.shape[1]) < 2, emitted[0], IMPOSSIBLE)
    alpha, _ = lax.scan(step, start, emitted[1:])
    places = jnp.arange(states.shape[1])
    ends = (places == 2 * lengths[:, None]) | (places == 2 * lengths[:, None] - 1)
    return -jax.nn.logsumexp(jnp.where(ends, alpha, IMPOSSIBLE), -1).mean()


def compute_loss(weights: Weights, statistics: Weights, batch: Batch) -> tuple[jax.Array, Weights]:
    """(loss, statistics after this batch)."""
    columns, statistics = see_columns(
        Parameters(weights, statistics), batch["images"], training=True
    )
    read = read_columns(weights, columns)
    return ctc_loss(read, batch["labels"], batch["lengths"]), statistics


def train_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
    """One step of Adam."""
    weights, statistics = state.parameters
    differentiate = jax.value_and_grad(compute_loss, has_aux=True)
    (loss, statistics), gradients = differentiate(weights, statistics, batch)
    return take_step(RECIPE, state, gradients, statistics), loss
