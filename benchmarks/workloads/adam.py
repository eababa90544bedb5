"""The optimizer of the workloads: Adam with decoupled weight decay and clipping by the global norm, written plainly.

Takes a State and gradients, hands on the next State.  A step is the same program for every workload; what differs
(learning rate, betas, decay, norm) is a Recipe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.workloads.layers import Parameters, Weights

UNDECAYED = ("bias", "gamma", "beta")
"""Names of weights that are not decayed: biases and norms."""


class State(NamedTuple):
    """What a training step takes and hands on.  mean, square: Adam's moments.  step: s32[], steps done."""

    parameters: Parameters
    mean: Weights
    square: Weights
    step: Any


@dataclass(frozen=True, slots=True)
class Recipe:
    """rate: learning rate by the number of the step (f32[], from 1).  decay: of the weights, 0: none.
    most_norm: gradients of a larger global norm are scaled down to it.
    """

    rate: Callable[[jax.Array], jax.Array | float]
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    decay: float = 0.0
    most_norm: float | None = None


def start_training(parameters: Parameters) -> State:
    """The state before the first step, of NumPy arrays as make_parameters gives them."""
    mean, square = (jax.tree.map(np.zeros_like, parameters.weights) for _ in range(2))
    return State(parameters, mean, square, np.zeros((), np.int32))


def take_step(recipe: Recipe, state: State, gradients: Weights, statistics: Weights) -> State:
    """One update.  statistics: of the batch norms, after this step."""
    if recipe.most_norm is not None:
        gradients = clip_norm(gradients, recipe.most_norm)
    step = state.step + 1
    time = step.astype(jnp.float32)
    rate = recipe.rate(time)
    b1, b2 = recipe.beta1, recipe.beta2
    mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, gradients)
    square = jax.tree.map(lambda s, g: b2 * s + (1 - b2) * g * g, state.square, gradients)
    unbiased_mean, unbiased_square = 1 - b1**time, 1 - b2**time

    def move(path: tuple[Any, ...], w: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
        change = (m / unbiased_mean) / (jnp.sqrt(s / unbiased_square) + recipe.epsilon)
        if recipe.decay and path[-1].key not in UNDECAYED:
            change = change + recipe.decay * w
        return w - rate * change

    weights = jax.tree_util.tree_map_with_path(move, state.parameters.weights, mean, square)
    return State(Parameters(weights, statistics), mean, square, step)


def clip_norm(gradients: Weights, most: float) -> Weights:
    """Scaled so that the root of the sum of all squares is at most `most`."""
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(gradients)))
    scale = jnp.minimum(1.0, most / jnp.maximum(norm, 1e-12))
    return jax.tree.map(lambda g: g * scale, gradients)
