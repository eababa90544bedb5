"""Listen, Attend and Spell (Chan et al., 2015): speech recognition by a pyramid of bidirectional LSTMs and attention.

Takes filter-bank frames [batch, time, features] and a transcript.  Hands on the log-probabilities [characters, batch,
classes] of each character after those before it: the scoring pass over a transcript, which training maximises.
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
    MASKED,
    Batch,
    Cell,
    Parameters,
    Weights,
    apply_dense,
    cross_entropy,
    draw_bilstm,
    draw_dense,
    draw_frequent,
    draw_lengths,
    draw_lstm,
    draw_normal,
    mask_lengths,
    project_lstm,
    run_bilstm,
    start_cell,
    step_lstm,
)


@dataclass(frozen=True, slots=True)
class Size:
    """pyramid: LSTM layers above the lowest, each of half the time.  listener: hidden states of an LSTM in one
    direction.  speller: of each of its two LSTMs.  attention: width in which states are compared.
    """

    features: int
    pyramid: int
    listener: int
    speller: int
    attention: int
    classes: int
    batch: int
    time: int
    characters: int


SIZES: Mapping[str, Size] = {
    "tiny": Size(4, 2, 4, 6, 5, 9, 2, 8, 4),
    "full": Size(40, 3, 256, 512, 512, 46, 8, 256, 32),
}

SPECIAL = 3
"""Indices below it are no characters: padding, start, end."""
START, END = 1, 2

RECIPE = Recipe(lambda time: 1e-3, most_norm=5.0)


def make_parameters(key: int, size: Size) -> Parameters:
    random, heard = np.random.default_rng(key), 2 * size.listener
    weights = {
        "lowest": draw_bilstm(random, size.features, size.listener),
        "pyramid": [draw_bilstm(random, 2 * heard, size.listener) for _ in range(size.pyramid)],
        "characters": draw_normal(random, (size.classes, size.speller), 1),
        "lower": draw_lstm(random, size.speller + heard, size.speller),
        "upper": draw_lstm(random, size.speller, size.speller),
        "query": draw_dense(random, size.speller, size.attention),
        "key": draw_dense(random, heard, size.attention),
        "inner": draw_dense(random, size.speller + heard, size.speller),
        "output": draw_dense(random, size.speller, size.classes),
    }
    return Parameters(weights, {})


def make_batch(key: int, size: Size) -> Batch:
    """Frames of mean 0 and variance 1 and their lengths; shifted: START and the characters but the last; characters:
    with END, padded with 0, as many as the frames' length has room for.
    """
    random = np.random.default_rng(key)
    lengths = draw_lengths(random, size.batch, size.time // 2, size.time)
    frames = random.standard_normal((size.batch, size.time, size.features), np.float32)
    frames[np.arange(size.time) >= lengths[:, None]] = 0.0
    characters = draw_frequent(random, (size.batch, size.characters), SPECIAL, size.classes)
    last = np.maximum(1, lengths * size.characters // size.time)[:, None] - 1
    places = np.arange(size.characters)
    characters = np.where(places == last, END, np.where(places > last, 0, characters))
    shifted = np.concatenate([np.full((size.batch, 1), START), characters[:, :-1]], 1)
    return {
        "frames": frames,
        "lengths": lengths,
        "shifted": shifted.astype(np.int32),
        "characters": characters.astype(np.int32),
    }


def listen(weights: Weights, frames: jax.Array) -> jax.Array:
    """[batch, time, features] -> [time / 2 ** layers, batch, heard]: a layer of the pyramid joins two steps to one."""
    x = run_bilstm(weights["lowest"], frames.transpose(1, 0, 2))
    for layer in weights["pyramid"]:
        time, batch, width = x.shape
        pairs = x.reshape(time // 2, 2, batch, width).transpose(0, 2, 1, 3)
        x = run_bilstm(layer, pairs.reshape(time // 2, batch, 2 * width))
    return x


def spell(weights: Weights, heard: jax.Array, mask: jax.Array, shifted: jax.Array) -> jax.Array:
    """Logits [characters, batch, classes].

    heard [time, batch, width]; mask: added to the energies, [batch, time]; shifted [batch, characters].
    """
    memory = heard.transpose(1, 0, 2)
    keys = apply_dense(weights["key"], memory)
    batch, width = memory.shape[0], weights["upper"]["hidden"].shape[0]

    def step(
        state: tuple[Cell, Cell, jax.Array], character: jax.Array
    ) -> tuple[tuple[Cell, Cell, jax.Array], jax.Array]:
        lower, upper, context = state
        x = jnp.concatenate([character, context], -1)
        lower = step_lstm(weights["lower"], lower, project_lstm(weights["lower"], x))
        upper = step_lstm(weights["upper"], upper, project_lstm(weights["upper"], lower.hidden))
        query = apply_dense(weights["query"], upper.hidden)
        energies = jnp.einsum("ba,bta->bt", query, keys) + mask
        shares = jax.nn.softmax(energies, -1).astype(memory.dtype)
        context = jnp.einsum("bt,btw->bw", shares, memory)
        return (lower, upper, context), jnp.concatenate([upper.hidden, context], -1)

    start = (
        start_cell(batch, width, memory.dtype),
        start_cell(batch, width, memory.dtype),
        jnp.zeros((batch, memory.shape[-1]), memory.dtype),
    )
    characters = weights["characters"][shifted].transpose(1, 0, 2)
    _, states = lax.scan(step, start, characters)
    return apply_dense(weights["output"], jnp.tanh(apply_dense(weights["inner"], states)))


def compute_logits(weights: Weights, batch: Batch) -> jax.Array:
    """[characters, batch, classes]."""
    heard = listen(weights, batch["frames"])
    times = batch["frames"].shape[1] // heard.shape[0]
    lengths = (batch["lengths"] + times - 1) // times
    mask = (1.0 - mask_lengths(lengths, heard.shape[0])) * MASKED
    return spell(weights, heard, mask, batch["shifted"])


def infer(parameters: Parameters, batch: Batch) -> jax.Array:
    """The log-probabilities [characters, batch, classes] of a transcript's next characters."""
    return jax.nn.log_softmax(compute_logits(parameters.weights, batch))


def compute_loss(weights: Weights, batch: Batch) -> jax.Array:
    characters = batch["characters"].T
    weight = (characters != 0).astype(jnp.float32)
    return cross_entropy(compute_logits(weights, batch), characters, weight)


def train_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
    """One step of Adam, clipped by the global norm."""
    loss, gradients = jax.value_and_grad(compute_loss)(state.parameters.weights, batch)
    return take_step(RECIPE, state, gradients, {}), loss
