"""Steps of Optax's optimizers on the weights of a small GPT, in f32: what a large model does once a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.modern_programs.program import EXACT, F32, Draw, Precision, Program


def adamw() -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=0.1))


OPTIMIZERS: Mapping[str, Callable[[], optax.GradientTransformation]] = {
    "adafactor": lambda: optax.adafactor(1e-3),
    "lamb": lambda: optax.lamb(1e-3, weight_decay=0.01),
    "lion": lambda: optax.lion(1e-4, weight_decay=0.1),
    "muon": lambda: optax.contrib.muon(2e-2),
    "adamw-ema": adamw,
}


def make_weights(layers: int, width: int, words: int, dtype: Any) -> Any:
    def draw(number: int, *shape: int) -> jax.Array:
        return 0.02 * jax.random.normal(jax.random.key(number), shape, dtype)

    def layer(number: int) -> Any:
        return {
            "norms": [jnp.ones(width, dtype) for _ in range(2)],
            "qkv": draw(number, width, 3 * width),
            "out": draw(number + 1, width, width),
            "up": draw(number + 2, width, 4 * width),
            "bias": jnp.zeros(4 * width, dtype),
            "down": draw(number + 3, 4 * width, width),
        }

    return {"words": draw(0, words, width), "layers": [layer(10 * n + 1) for n in range(layers)]}


def make(entry: str, draw: Draw, precision: Precision = F32) -> Program:
    layers = draw.pick("layers", (4, 6), 1)
    width = draw.pick("width", (768, 640, 1024), 16)
    words = draw.pick("words", (32000, 50257), 131)
    optimizer = OPTIMIZERS[entry]()

    def update(weights: Any, state: Any, grads: Any) -> Any:
        updates, state = optimizer.update(grads, state, weights)
        return optax.apply_updates(weights, updates), state

    def update_mean(weights: Any, state: Any, mean: Any, grads: Any) -> Any:
        """With a running mean of the weights."""
        weights, state = update(weights, state, grads)
        return weights, state, optax.incremental_update(weights, mean, 0.001)

    def arguments() -> tuple[Any, ...]:
        weights = make_weights(layers, width, words, precision.weights)
        grads = jax.tree.map(lambda w: 0.1 * w + 1e-3, weights)
        means = [jax.tree.map(jnp.copy, weights)] if entry == "adamw-ema" else []
        return weights, optimizer.init(weights), *means, grads

    carried = 3 if entry == "adamw-ema" else 2
    program = Program(update_mean if carried == 3 else update, arguments, carried=carried)
    about = {"layers": layers, "width": width, "words": words}
    return program.described(about, lambda: make(entry, draw, EXACT))
