"""S5 training in Equinox: diagonal state spaces with complex states by an associative scan, as in Long Range Arena."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from benchmarks.modern_programs.program import EXACT, F32, Draw, Precision, Program


@dataclass(frozen=True)
class Config:
    layers: int
    width: int
    states: int
    classes: int
    batch: int
    length: int
    precision: Precision


def join(a: Any, b: Any) -> Any:
    return b[0] * a[0], b[0] * a[1] + b[1]


class StateSpace(eqx.Module):
    """rates: real and imaginary parts, [2, states].  Weights: the same, [2, ...]."""

    rates: jax.Array
    write: jax.Array
    read: jax.Array
    through: jax.Array
    step: jax.Array

    def __init__(self, c: Config, key: jax.Array) -> None:
        keys, dtype = jax.random.split(key, 4), c.precision.weights
        imaginary = jnp.pi * jnp.arange(c.states, dtype=dtype)
        self.rates = jnp.stack([jnp.full(c.states, -0.5, dtype), imaginary])
        self.write = jax.random.normal(keys[0], (2, c.states, c.width), dtype) * c.width**-0.5
        self.read = jax.random.normal(keys[1], (2, c.width, c.states), dtype) * c.states**-0.5
        self.through = jax.random.normal(keys[2], (c.width,), dtype)
        low, high = jnp.log(0.001), jnp.log(0.1)
        self.step = jax.random.uniform(keys[3], (c.states,), dtype, low, high)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[length, width] -> the same."""
        rates = jax.lax.complex(-jnp.exp(self.rates[0]), self.rates[1])
        write = jax.lax.complex(self.write[0], self.write[1])
        read = jax.lax.complex(self.read[0], self.read[1])
        decay = jnp.exp(rates * jnp.exp(self.step))
        given = x.astype(write.dtype) @ (((decay - 1) / rates)[:, None] * write).T
        decays = jnp.broadcast_to(decay, given.shape)
        states = jax.lax.associative_scan(join, (decays, given))[1]
        return 2 * (states @ read.T).real + self.through * x


class Layer(eqx.Module):
    norm: eqx.nn.LayerNorm
    space: StateSpace
    gate: eqx.nn.Linear

    def __init__(self, c: Config, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        dtype = c.precision.weights
        self.norm = eqx.nn.LayerNorm(c.width, dtype=dtype)
        self.space = StateSpace(c, first)
        self.gate = eqx.nn.Linear(c.width, c.width, dtype=dtype, key=second)

    def __call__(self, x: jax.Array) -> jax.Array:
        h = jax.nn.gelu(self.space(jax.vmap(self.norm)(x)))
        return x + h * jax.nn.sigmoid(jax.vmap(self.gate)(h))


class S5(eqx.Module):
    enter: eqx.nn.Linear
    layers: list[Layer]
    leave: eqx.nn.Linear

    def __init__(self, c: Config, key: jax.Array) -> None:
        keys, dtype = jax.random.split(key, c.layers + 2), c.precision.weights
        self.enter = eqx.nn.Linear(1, c.width, dtype=dtype, key=keys[0])
        self.layers = [Layer(c, k) for k in keys[2:]]
        self.leave = eqx.nn.Linear(c.width, c.classes, dtype=dtype, key=keys[1])

    def __call__(self, x: jax.Array) -> jax.Array:
        """[length, 1] -> [classes]."""
        x = jax.vmap(self.enter)(x)
        for layer in self.layers:
            x = layer(x)
        return self.leave(x.mean(0))


def make(entry: str, draw: Draw, precision: Precision = F32) -> Program:
    c = Config(
        layers=draw.pick("layers", (6, 4), 1),
        width=draw.pick("width", (256, 192, 128), 8),
        states=draw.pick("states", (192, 128, 96), 6),
        classes=10,
        batch=draw.pick("batch", (16, 24, 12), 2),
        length=draw.pick("length", (1024, 784), 28),
        precision=precision,
    )
    build = lambda: S5(c, jax.random.key(0))  # noqa: E731
    is_shape = lambda a: isinstance(a, jax.ShapeDtypeStruct)  # noqa: E731
    static = eqx.partition(eqx.filter_eval_shape(build), is_shape)[1]
    optimizer = optax.adamw(optax.cosine_decay_schedule(1e-3, 10_000), weight_decay=0.05)

    def train_step(arrays: Any, state: Any, x: jax.Array, labels: jax.Array) -> Any:
        def loss_fn(arrays: Any) -> jax.Array:
            logits = jax.vmap(eqx.combine(arrays, static))(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, grads = jax.value_and_grad(loss_fn)(arrays)
        updates, state = optimizer.update(grads, state, arrays)
        return optax.apply_updates(arrays, updates), state, loss

    def arguments() -> tuple[Any, ...]:
        arrays = eqx.filter(build(), eqx.is_array)
        shape = (c.batch, c.length, 1)
        x = jax.random.normal(jax.random.key(1), shape, c.precision.compute)
        labels = jnp.arange(c.batch, dtype=jnp.int32) % c.classes
        return arrays, optimizer.init(arrays), x, labels

    about = {"layers": c.layers, "width": c.width, "batch": c.batch, "length": c.length}
    program = Program(train_step, arguments, carried=2)
    return program.described(about, lambda: make(entry, draw, EXACT))
