"""A graph network in Flax Linen: messages along edges, softmax attention over incoming edges, sums by segment."""

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
    layers: int
    heads: int
    width: int
    features: int
    classes: int
    nodes: int
    edges: int
    precision: Precision

    @property
    def types(self) -> dict[str, Any]:
        return {"dtype": self.precision.compute, "param_dtype": self.precision.weights}


class GraphAttention(nn.Module):
    """GATv2."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        c = self.config
        given = nn.Dense(c.width, **c.types)(x)[senders]
        taken = nn.Dense(c.width, **c.types)(x)[receivers]
        mixed = nn.leaky_relu(given + taken, 0.2).reshape(c.edges, c.heads, -1)
        init = nn.initializers.lecun_normal()
        weights = self.param("weights", init, mixed.shape[1:], c.precision.weights)
        scores = (mixed * weights).sum(-1)
        most = jax.ops.segment_max(scores, receivers, c.nodes)
        shares = jnp.exp(scores - most[receivers])
        sums = jax.ops.segment_sum(shares, receivers, c.nodes)
        shares = shares / (sums[receivers] + 1e-9)
        messages = given.reshape(c.edges, c.heads, -1) * shares[..., None]
        received = jax.ops.segment_sum(messages.reshape(c.edges, -1), receivers, c.nodes)
        return nn.LayerNorm(**c.types)(x + received)


class Network(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        c = self.config
        x = nn.Dense(c.width, **c.types)(x)
        for _ in range(c.layers):
            x = nn.elu(GraphAttention(c)(x, senders, receivers))
        return nn.Dense(c.classes, **c.types)(x)


def make(entry: str, draw: Draw, precision: Precision = F32) -> Program:
    nodes = draw.pick("nodes", (16384, 10000, 20000), 40)
    c = Config(
        layers=draw.pick("layers", (3, 2), 1),
        heads=draw.pick("heads", (4, 8), 2),
        width=draw.pick("width", (128, 192), 8),
        features=draw.pick("features", (128, 100), 12),
        classes=draw.pick("classes", (40, 47), 5),
        nodes=nodes,
        edges=draw.pick("degree", (16, 12), 4) * nodes,
        precision=precision,
    )
    model = Network(c)

    def build() -> TrainState:
        x, edges = jnp.zeros((c.nodes, c.features)), jnp.zeros(c.edges, jnp.int32)
        params = model.init(jax.random.key(0), x, edges, edges)["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(5e-3))

    def train_step(state: TrainState, graph: Any, labels: jax.Array) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            logits = state.apply_fn({"params": params}, *graph)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    def arguments() -> tuple[Any, ...]:
        keys = jax.random.split(jax.random.key(1), 3)
        x = jax.random.normal(keys[0], (c.nodes, c.features), c.precision.compute)
        senders, receivers = (
            jax.random.randint(k, (c.edges,), 0, c.nodes, jnp.int32) for k in keys[1:]
        )
        labels = jnp.arange(c.nodes, dtype=jnp.int32) % c.classes
        return build(), (x, senders, receivers), labels

    about = {"layers": c.layers, "width": c.width, "nodes": c.nodes, "edges": c.edges}
    program = Program(train_step, arguments, carried=1)
    return program.described(about, lambda: make(entry, draw, EXACT))
