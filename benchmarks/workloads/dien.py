"""DIEN (Zhou et al., 2018): click-through rates from a history, by a GRU, attention and a GRU gated by it (AUGRU).

Takes users, candidate items and histories of clicks [batch, time], hands on the probabilities [batch, 2] of a click;
training adds the auxiliary loss, that each interest state tells the next click from an item that was not clicked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.workloads.adam import Recipe, State, take_step
from benchmarks.workloads.layers import (
    MASKED,
    Batch,
    Moments,
    Parameters,
    Weights,
    apply_dense,
    draw_dense,
    draw_frequent,
    draw_lengths,
    draw_norm,
    mask_lengths,
    measure_moments,
    move_moments,
    normalise_batch,
    start_moments,
)


@dataclass(frozen=True, slots=True)
class Size:
    """embedding: of a user, an item, a category; an item comes with its category.  The other widths are those of the
    dense layers, in their order.
    """

    users: int
    items: int
    categories: int
    embedding: int
    attention: tuple[int, int]
    top: tuple[int, int]
    auxiliary: tuple[int, int]
    batch: int
    time: int

    @property
    def width(self) -> int:
        """Of an item with its category, and of the states of both GRUs."""
        return 2 * self.embedding


SIZES: Mapping[str, Size] = {
    "tiny": Size(20, 30, 6, 3, (8, 5), (10, 6), (7, 4), 4, 6),
    "full": Size(10_000, 50_000, 1_600, 18, (80, 40), (200, 80), (100, 50), 256, 100),
}

EPSILON = 1e-6
MOMENTUM = 0.9
RECIPE = Recipe(lambda time: 1e-3)


def draw_gru(random: np.random.Generator, inputs: int, width: int) -> Weights:
    """gates: reset and update, from input and state, half open; candidate: from input and reset state."""
    gates = draw_dense(random, inputs + width, 2 * width)
    gates["bias"] += 1.0
    return {"gates": gates, "candidate": draw_dense(random, inputs + width, width)}


def draw_network(
    random: np.random.Generator, inputs: int, inner: tuple[int, int], outputs: int
) -> list[Weights]:
    """Three dense layers."""
    widths = (inputs, *inner, outputs)
    return [draw_dense(random, widths[i], widths[i + 1]) for i in range(3)]


def make_parameters(key: int, size: Size) -> Parameters:
    random = np.random.default_rng(key)
    width, together = size.width, size.embedding + 4 * size.width

    def draw_table(rows: int) -> Any:
        return np.float32(0.3) * random.standard_normal((rows, size.embedding), np.float32)

    def draw_slopes(width: int) -> Any:
        return np.full(width, 0.25, np.float32)

    weights = {
        "users": draw_table(size.users),
        "items": draw_table(size.items),
        "categories": draw_table(size.categories),
        "interest": draw_gru(random, width, width),
        "query": draw_dense(random, width, width),
        "query_slope": draw_slopes(width),
        "attention": draw_network(random, 4 * width, size.attention, 1),
        "evolution": draw_gru(random, width, width),
        "top_norm": draw_norm(together),
        "top": draw_network(random, together, size.top, 2),
        "slopes": [draw_slopes(inner) for inner in size.top],
        "auxiliary": draw_network(random, 2 * width, size.auxiliary, 1),
    }
    statistics = {
        "top": start_moments(together),
        "dice": [start_moments(inner) for inner in size.top],
    }
    return Parameters(weights, statistics)


def make_batch(key: int, size: Size) -> Batch:
    """Histories of at least a tenth of the time, popular items more often; skipped: shown and not clicked."""
    random = np.random.default_rng(key)
    lengths = draw_lengths(random, size.batch, max(2, size.time // 10), size.time)
    beyond = np.arange(size.time) >= lengths[:, None]

    def draw(rows: int) -> Any:
        return draw_frequent(random, (size.batch,), 0, rows)

    def draw_history(rows: int) -> Any:
        indices = draw_frequent(random, (size.batch, size.time), 0, rows)
        indices[beyond] = 0
        return indices

    return {
        "user": draw(size.users),
        "item": draw(size.items),
        "category": draw(size.categories),
        "items": draw_history(size.items),
        "categories": draw_history(size.categories),
        "skipped_items": draw_history(size.items),
        "skipped_categories": draw_history(size.categories),
        "lengths": lengths,
        "clicked": random.integers(0, 2, size.batch, np.int32),
    }


def embed_items(weights: Weights, items: jax.Array, categories: jax.Array) -> jax.Array:
    """[..., width]."""
    return jnp.concatenate([weights["items"][items], weights["categories"][categories]], -1)


def run_gru(
    weights: Weights, x: jax.Array, within: jax.Array, attention: jax.Array | None = None
) -> jax.Array:
    """[time, batch, inputs] -> the states [time, batch, width]; a row keeps its state beyond its length.

    within: f32[time, batch].  attention: f32[time, batch], how far a step may change the state (AUGRU).
    """
    width = weights["candidate"]["bias"].shape[0]
    scores = jnp.ones_like(within) if attention is None else attention

    def step(
        state: jax.Array, inputs: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        x, kept, score = inputs
        both = jnp.concatenate([x, state], -1)
        reset, update = jnp.split(jax.nn.sigmoid(apply_dense(weights["gates"], both)), 2, -1)
        candidate = apply_dense(weights["candidate"], jnp.concatenate([x, reset * state], -1))
        if attention is not None:
            update = score[:, None].astype(update.dtype) * update
        new = (1.0 - update) * state + update * jnp.tanh(candidate)
        state = jnp.where(kept[:, None] > 0, new, state)
        return state, state

    start = jnp.zeros((x.shape[1], width), x.dtype)
    return lax.scan(step, start, (x, within, scores))[1]


def rectify(slope: jax.Array, x: jax.Array) -> jax.Array:
    """PReLU."""
    return jnp.where(x > 0, x, slope * x)


def dice(slope: jax.Array, x: jax.Array, moments: Moments) -> jax.Array:
    """PReLU whose step is soft and stands where the data is (Zhou et al., 2017)."""
    chance = jax.nn.sigmoid((x - moments.mean) * lax.rsqrt(moments.variance + EPSILON))
    return chance * x + (1.0 - chance) * slope * x


def weigh_history(
    weights: Weights, candidate: jax.Array, states: jax.Array, within: jax.Array
) -> jax.Array:
    """Attention [batch, time] of the candidate [batch, width] to the states [batch, time, width]."""
    query = rectify(weights["query_slope"], apply_dense(weights["query"], candidate))
    queries = jnp.broadcast_to(query[:, None], states.shape)
    x = jnp.concatenate([queries, states, queries - states, queries * states], -1)
    first, second, last = weights["attention"]
    x = jax.nn.sigmoid(apply_dense(first, x))
    x = jax.nn.sigmoid(apply_dense(second, x))
    return jax.nn.softmax(apply_dense(last, x)[..., 0] + (1.0 - within) * MASKED, -1)


def judge_next(weights: Weights, states: jax.Array, items: jax.Array) -> jax.Array:
    """The auxiliary network: logits [batch, time] that an item follows a state."""
    first, second, last = weights["auxiliary"]
    x = jax.nn.sigmoid(apply_dense(first, jnp.concatenate([states, items], -1)))
    return apply_dense(last, jax.nn.sigmoid(apply_dense(second, x)))[..., 0]


def compute_logits(
    parameters: Parameters, batch: Batch, *, training: bool
) -> tuple[jax.Array, jax.Array, Weights]:
    """(logits [batch, 2], interest states [batch, time, width], statistics after this batch)."""
    weights, statistics = parameters
    history = embed_items(weights, batch["items"], batch["categories"])
    candidate = embed_items(weights, batch["item"], batch["category"])
    within = mask_lengths(batch["lengths"], history.shape[1])
    interest = run_gru(weights["interest"], history.transpose(1, 0, 2), within.T)
    states = interest.transpose(1, 0, 2)
    attention = weigh_history(weights, candidate, states, within)
    final = run_gru(weights["evolution"], interest, within.T, attention.T)[-1]
    total = (history * within[:, :, None]).sum(1)
    user = weights["users"][batch["user"]]
    x = jnp.concatenate([user, candidate, total, candidate * total, final], -1)

    def choose_moments(x: jax.Array, running: Moments) -> tuple[Moments, Moments]:
        """(those to use, the running ones after this batch)."""
        if not training:
            return Moments(*running), Moments(*running)
        found = measure_moments(x)
        return found, lax.stop_gradient(move_moments(Moments(*running), found, MOMENTUM))

    moments, top = choose_moments(x, statistics["top"])
    x = normalise_batch(weights["top_norm"], x, moments, EPSILON)
    moved = []
    first, second, last = weights["top"]
    for layer, slope, running in zip(
        (first, second), weights["slopes"], statistics["dice"], strict=True
    ):
        x = apply_dense(layer, x)
        moments, after = choose_moments(x, running)
        x = dice(slope, x, moments)
        moved.append(after)
    return apply_dense(last, x), states, {"top": top, "dice": moved}


def infer(parameters: Parameters, batch: Batch) -> jax.Array:
    """The probabilities [batch, 2] of no click and of a click, by the running statistics."""
    return jax.nn.softmax(compute_logits(parameters, batch, training=False)[0])


def compute_loss(weights: Weights, statistics: Weights, batch: Batch) -> tuple[jax.Array, Weights]:
    """(cross-entropy of the click plus the auxiliary loss, statistics after this batch)."""
    logits, states, statistics = compute_logits(
        Parameters(weights, statistics), batch, training=True
    )
    wanted = jax.nn.one_hot(batch["clicked"], 2)
    click = -(wanted * jax.nn.log_softmax(logits)).sum(-1).mean()
    clicked = embed_items(weights, batch["items"], batch["categories"])[:, 1:]
    skipped = embed_items(weights, batch["skipped_items"], batch["skipped_categories"])[:, 1:]
    within = mask_lengths(batch["lengths"], states.shape[1])[:, 1:]
    yes = jax.nn.log_sigmoid(judge_next(weights, states[:, :-1], clicked))
    no = jax.nn.log_sigmoid(-judge_next(weights, states[:, :-1], skipped))
    auxiliary = -((yes + no) * within).sum() / within.sum()
    return click + auxiliary, statistics


def train_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
    """One step of Adam."""
    weights, statistics = state.parameters
    differentiate = jax.value_and_grad(compute_loss, has_aux=True)
    (loss, statistics), gradients = differentiate(weights, statistics, batch)
    return take_step(RECIPE, state, gradients, statistics), loss
