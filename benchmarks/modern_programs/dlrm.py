"""DLRM in Flax Linen: bags of embeddings, pairwise products, perceptrons; training with Adagrad."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from benchmarks.modern_programs.program import EXACT, F32, Draw, Precision, Program


@dataclass(frozen=True)
class Config:
    """bag: ids of one feature."""

    tables: int
    rows: int
    width: int
    bag: int
    dense: int
    batch: int
    hidden: int
    precision: Precision

    @property
    def types(self) -> dict[str, Any]:
        return {"dtype": self.precision.compute, "param_dtype": self.precision.weights}


class Perceptron(nn.Module):
    config: Config
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in self.widths[:-1]:
            x = nn.relu(nn.Dense(width, **self.config.types)(x))
        return nn.Dense(self.widths[-1], **self.config.types)(x)


class DLRM(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, dense: jax.Array, ids: jax.Array) -> jax.Array:
        """dense: [batch, dense].  ids: [batch, tables, bag]."""
        c = self.config
        first = nn.relu(Perceptron(c, (2 * c.hidden, c.hidden, c.width))(jnp.log1p(dense)))
        init = nn.initializers.normal(c.rows**-0.5)
        tables = self.param("tables", init, (c.tables, c.rows, c.width), c.precision.weights)
        found = jax.vmap(lambda table, ids: table[ids], in_axes=(0, 1), out_axes=1)(tables, ids)
        vectors = jnp.concatenate([first[:, None], found.sum(2)], axis=1)
        products = jnp.einsum("bif,bjf->bij", vectors, vectors)
        lower = jnp.tril_indices(c.tables + 1, -1)
        x = jnp.concatenate([first, products[:, lower[0], lower[1]]], axis=-1)
        return Perceptron(c, (4 * c.hidden, 2 * c.hidden, c.hidden, 1))(x)[:, 0]


def make(entry: str, draw: Draw, precision: Precision = F32) -> Program:
    c = Config(
        tables=draw.pick("tables", (26, 13), 3),
        rows=draw.pick("rows", (100_000, 50_000), 50),
        width=draw.pick("width", (64, 128, 48), 8),
        bag=draw.pick("bag", (1, 4), 2),
        dense=13,
        batch=draw.pick("batch", (4096, 2048, 6144), 8),
        hidden=draw.pick("hidden", (256, 192), 16),
        precision=precision,
    )
    model = DLRM(c)

    def build() -> TrainState:
        dense, ids = jnp.zeros((1, c.dense)), jnp.zeros((1, c.tables, c.bag), jnp.int32)
        params = model.init(jax.random.key(0), dense, ids)["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adagrad(0.01))

    def train_step(state: TrainState, dense: jax.Array, ids: jax.Array, clicks: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            logits = state.apply_fn({"params": params}, dense, ids)
            return optax.sigmoid_binary_cross_entropy(logits, clicks).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    def arguments() -> tuple[Any, ...]:
        keys, dtype = jax.random.split(jax.random.key(1), 3), c.precision.compute
        dense = jax.random.uniform(keys[0], (c.batch, c.dense), dtype)
        ids = jax.random.randint(keys[1], (c.batch, c.tables, c.bag), 0, c.rows, jnp.int32)
        clicks = (jnp.arange(c.batch) % 4 == 0).astype(dtype)
        return build(), dense, ids, clicks

    about = {"tables": c.tables, "rows": c.rows, "width": c.width, "batch": c.batch}
    program = Program(train_step, arguments, carried=1)
    return program.described(about, lambda: make(entry, draw, EXACT))
