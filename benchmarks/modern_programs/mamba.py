"""Mamba training in Flax NNX: gated blocks with a short convolution and a selective scan, by an associative scan."""

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
    """states: of each channel.  taps: of the convolution."""

    layers: int
    width: int
    states: int
    taps: int
    words: int
    batch: int
    length: int
    precision: Precision

    @property
    def inner(self) -> int:
        return 2 * self.width

    @property
    def rank(self) -> int:
        return max(1, self.width // 16)

    @property
    def types(self) -> dict[str, Any]:
        return {"dtype": self.precision.compute, "param_dtype": self.precision.weights}


def scan_states(decay: jax.Array, given: jax.Array) -> jax.Array:
    """h[t] = decay[t] h[t-1] + given[t] along axis 1."""

    def join(a: Any, b: Any) -> Any:
        return a[0] * b[0], b[0] * a[1] + b[1]

    return jax.lax.associative_scan(join, (decay, given), axis=1)[1]


class Mixer(nnx.Module):
    def __init__(self, c: Config, rngs: nnx.Rngs) -> None:
        self.config = c
        self.enter = nnx.Linear(c.width, 2 * c.inner, use_bias=False, **c.types, rngs=rngs)
        self.conv = nnx.Conv(
            c.inner,
            c.inner,
            (c.taps,),
            padding="CAUSAL",
            feature_group_count=c.inner,
            **c.types,
            rngs=rngs,
        )
        outputs = c.rank + 2 * c.states
        self.choose = nnx.Linear(c.inner, outputs, use_bias=False, **c.types, rngs=rngs)
        self.step = nnx.Linear(c.rank, c.inner, **c.types, rngs=rngs)
        rates = jnp.arange(1, c.states + 1, dtype=c.precision.weights)
        self.rates = nnx.Param(jnp.log(jnp.broadcast_to(rates, (c.inner, c.states))))
        self.through = nnx.Param(jnp.ones(c.inner, c.precision.weights))
        self.leave = nnx.Linear(c.inner, c.width, use_bias=False, **c.types, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        c, sums = self.config, self.config.precision.sums
        x, gate = jnp.split(self.enter(x), 2, axis=-1)
        x = nnx.silu(self.conv(x))
        low, write, read = jnp.split(self.choose(x), [c.rank, c.rank + c.states], axis=-1)
        step = jax.nn.softplus(self.step(low).astype(sums))
        decay = jnp.exp(-step[..., None] * jnp.exp(self.rates[...].astype(sums)))
        given = (step * x.astype(sums))[..., None] * write.astype(sums)[..., None, :]
        states = scan_states(decay, given)
        y = jnp.einsum("blds,bls->bld", states, read.astype(sums))
        y = (y + self.through[...] * x.astype(sums)).astype(x.dtype)
        return self.leave(y * nnx.silu(gate))


class Mamba(nnx.Module):
    def __init__(self, c: Config, rngs: nnx.Rngs) -> None:
        self.words = nnx.Embed(c.words, c.width, **c.types, rngs=rngs)
        self.norms = nnx.List([nnx.RMSNorm(c.width, **c.types, rngs=rngs) for _ in range(c.layers)])
        self.mixers = nnx.List([Mixer(c, rngs) for _ in range(c.layers)])
        self.norm = nnx.RMSNorm(c.width, **c.types, rngs=rngs)

    def __call__(self, words: jax.Array) -> jax.Array:
        x = self.words(words)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))
        return self.words.attend(self.norm(x))


def make(entry: str, draw: Draw, precision: Precision = MIXED) -> Program:
    c = Config(
        layers=draw.pick("layers", (4, 3), 1),
        width=draw.pick("width", (768, 512, 640), 16),
        states=draw.pick("states", (16, 8), 4),
        taps=4,
        words=draw.pick("words", (50280, 32000), 131),
        batch=draw.pick("batch", (2, 3), 2),
        length=draw.pick("length", (1024, 768), 24),
        precision=precision,
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(6e-4, weight_decay=0.1))

    def build() -> tuple[Mamba, nnx.Optimizer]:
        model = Mamba(c, nnx.Rngs(0))
        return model, nnx.Optimizer(model, optimizer, wrt=nnx.Param)

    graphdef, _ = nnx.split(nnx.eval_shape(build))

    def train_step(state: Any, words: jax.Array) -> Any:
        model, optimizer = nnx.merge(graphdef, state)

        def loss_fn(model: Mamba) -> jax.Array:
            logits = model(words[:, :-1]).astype(c.precision.sums)
            return optax.softmax_cross_entropy_with_integer_labels(logits, words[:, 1:]).mean()

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    def arguments() -> tuple[Any, ...]:
        shape = (c.batch, c.length + 1)
        words = jax.random.randint(jax.random.key(1), shape, 0, c.words, jnp.int32)
        return nnx.state(build()), words

    about = {"layers": c.layers, "width": c.width, "batch": c.batch, "length": c.length}
    program = Program(train_step, arguments, carried=1)
    return program.described(about, lambda: make(entry, draw, EXACT))
