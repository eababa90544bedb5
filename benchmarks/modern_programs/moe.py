"""A mixture of experts in Flax NNX: top-2 routing with a capacity, dispatch by scatters, a loss that balances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from benchmarks.modern_programs.program import EXACT, MIXED, Draw, Precision, Program


@dataclass(frozen=True)
class Config:
    """chosen: experts of a token.  room: capacity of an expert over its fair share."""

    width: int
    hidden: int
    experts: int
    chosen: int
    room: float
    tokens: int
    precision: Precision

    @property
    def capacity(self) -> int:
        return int(self.room * self.chosen * self.tokens / self.experts)

    @property
    def types(self) -> dict[str, Any]:
        return {"dtype": self.precision.compute, "param_dtype": self.precision.weights}


class Experts(nnx.Module):
    def __init__(self, c: Config, rngs: nnx.Rngs) -> None:
        self.config = c
        self.norm = nnx.RMSNorm(c.width, **c.types, rngs=rngs)
        self.router = nnx.Linear(c.width, c.experts, use_bias=False, **c.types, rngs=rngs)
        init, dtype = nnx.initializers.lecun_normal(batch_axis=0), c.precision.weights
        shape = (c.experts, c.width, c.hidden)
        self.gate = nnx.Param(init(rngs.params(), shape, dtype))
        self.up = nnx.Param(init(rngs.params(), shape, dtype))
        self.down = nnx.Param(init(rngs.params(), (c.experts, c.hidden, c.width), dtype))

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[tokens, width] -> the same, and the loss that balances the experts."""
        c = self.config
        h = self.norm(x)
        shares = jax.nn.softmax(self.router(h).astype(c.precision.sums))
        weights, experts = jax.lax.top_k(shares, c.chosen)
        weights = weights / weights.sum(-1, keepdims=True)
        # The place of each token in its expert's queue; those behind the capacity are dropped.
        taken = jax.nn.one_hot(experts.reshape(-1), c.experts, dtype=jnp.int32)
        place = (jnp.cumsum(taken, 0) * taken).max(-1) - 1
        expert = experts.reshape(-1)
        place = jnp.where(place < c.capacity, place, c.capacity)
        queues = jnp.zeros((c.experts, c.capacity, c.width), h.dtype)
        queues = queues.at[expert, place].add(jnp.repeat(h, c.chosen, 0), mode="drop")
        dtype = c.precision.compute
        gated = jax.nn.silu(jnp.einsum("ecw,ewh->ech", queues, self.gate[...].astype(dtype)))
        gated = gated * jnp.einsum("ecw,ewh->ech", queues, self.up[...].astype(dtype))
        made = jnp.einsum("ech,ehw->ecw", gated, self.down[...].astype(dtype))
        back = made.at[expert, place].get(mode="fill", fill_value=0)
        back = back.reshape(c.tokens, c.chosen, c.width) * weights[..., None].astype(dtype)
        fraction = taken.reshape(c.tokens, c.chosen, c.experts).sum(1).mean(0)
        balance = c.experts * (fraction * shares.mean(0)).sum()
        return x + back.sum(1), balance


def make(entry: str, draw: Draw, precision: Precision = MIXED) -> Program:
    c = Config(
        width=draw.pick("width", (1024, 768, 1280), 16),
        hidden=draw.pick("hidden", (2048, 1536), 32),
        experts=draw.pick("experts", (8, 16), 4),
        chosen=2,
        room=1.25,
        tokens=draw.pick("tokens", (4096, 3072, 6144), 32),
        precision=precision,
    )

    def build() -> tuple[Experts, nnx.Optimizer]:
        model = Experts(c, nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adamw(3e-4), wrt=nnx.Param)

    graphdef, _ = nnx.split(nnx.eval_shape(build))

    def train_step(state: Any, x: jax.Array, wanted: jax.Array) -> Any:
        model, optimizer = nnx.merge(graphdef, state)

        def loss_fn(model: Experts) -> jax.Array:
            y, balance = model(x)
            error = jnp.square((y - wanted).astype(c.precision.sums)).mean()
            return error + 0.01 * balance

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    def arguments() -> tuple[Any, ...]:
        shape, dtype = (c.tokens, c.width), c.precision.compute
        x, wanted = (jax.random.normal(jax.random.key(n), shape, dtype) for n in (1, 2))
        return nnx.state(build()), x, wanted

    about = {"width": c.width, "experts": c.experts, "tokens": c.tokens}
    program = Program(train_step, arguments, carried=1)
    return program.described(about, lambda: make(entry, draw, EXACT))
