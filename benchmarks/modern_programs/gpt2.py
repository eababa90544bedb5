"""GPT-2 training in bf16 with weights in f32: unrolled in Flax NNX, by scan and remat in Flax Linen; Optax's AdamW."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.training.train_state import TrainState

from benchmarks.modern_programs.program import EXACT, MIXED, Draw, Precision, Program


@dataclass(frozen=True)
class Config:
    layers: int
    heads: int
    words: int
    batch: int
    length: int
    precision: Precision

    @property
    def width(self) -> int:
        return 64 * self.heads if self.heads > 2 else 16 * self.heads


def make_optimizer() -> optax.GradientTransformation:
    schedule = optax.warmup_cosine_decay_schedule(0.0, 6e-4, 100, 10_000, 6e-5)
    decayed = lambda params: jax.tree.map(lambda p: p.ndim > 1, params)  # noqa: E731
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(schedule, b1=0.9, b2=0.95, weight_decay=0.1, mask=decayed),
    )


def cross_entropy(config: Config, logits: jax.Array, words: jax.Array) -> jax.Array:
    logits = logits.astype(config.precision.sums)
    return optax.softmax_cross_entropy_with_integer_labels(logits, words).mean()


# ---- Flax NNX, layer by layer ------------------------------------------------------------------------------------


class Attention(nnx.Module):
    def __init__(self, c: Config, rngs: nnx.Rngs) -> None:
        types = {"dtype": c.precision.compute, "param_dtype": c.precision.weights, "rngs": rngs}
        self.heads = c.heads
        self.qkv = nnx.Linear(c.width, 3 * c.width, **types)
        self.out = nnx.Linear(c.width, c.width, **types)

    def __call__(self, x: jax.Array) -> jax.Array:
        batch, length, width = x.shape
        q, k, v = jnp.split(self.qkv(x), 3, axis=-1)
        q, k, v = (a.reshape(batch, length, self.heads, -1) for a in (q, k, v))
        x = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return self.out(x.reshape(batch, length, width))


class Block(nnx.Module):
    def __init__(self, c: Config, rngs: nnx.Rngs) -> None:
        types = {"dtype": c.precision.compute, "param_dtype": c.precision.weights, "rngs": rngs}
        self.norm1 = nnx.LayerNorm(c.width, **types)
        self.attention = Attention(c, rngs)
        self.norm2 = nnx.LayerNorm(c.width, **types)
        self.up = nnx.Linear(c.width, 4 * c.width, **types)
        self.down = nnx.Linear(4 * c.width, c.width, **types)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class GPT(nnx.Module):
    def __init__(self, c: Config, rngs: nnx.Rngs) -> None:
        types = {"dtype": c.precision.compute, "param_dtype": c.precision.weights, "rngs": rngs}
        self.words = nnx.Embed(c.words, c.width, **types)
        self.places = nnx.Embed(c.length, c.width, **types)
        self.blocks = nnx.List([Block(c, rngs) for _ in range(c.layers)])
        self.norm = nnx.LayerNorm(c.width, **types)

    def __call__(self, words: jax.Array) -> jax.Array:
        x = self.words(words) + self.places(jnp.arange(words.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.words.attend(self.norm(x))


def make_unrolled(c: Config) -> Program:
    def build() -> tuple[GPT, nnx.Optimizer]:
        model = GPT(c, nnx.Rngs(0))
        return model, nnx.Optimizer(model, make_optimizer(), wrt=nnx.Param)

    graphdef, _ = nnx.split(nnx.eval_shape(build))

    def train_step(state: Any, words: jax.Array) -> Any:
        model, optimizer = nnx.merge(graphdef, state)

        def loss_fn(model: GPT) -> jax.Array:
            return cross_entropy(c, model(words[:, :-1]), words[:, 1:])

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    return Program(train_step, lambda: (nnx.state(build()), make_words(c)), carried=1)


# ---- Flax Linen, layers in a scan, each computed again in the backward pass ------------------------------------------


class LinenBlock(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> tuple[jax.Array, None]:
        c = self.config
        types = {"dtype": c.precision.compute, "param_dtype": c.precision.weights}
        h = nn.LayerNorm(**types)(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=c.heads, **types)(h, mask=mask)
        h = nn.LayerNorm(**types)(x)
        h = nn.gelu(nn.Dense(4 * c.width, **types)(h))
        return x + nn.Dense(c.width, **types)(h), None


class LinenGPT(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, words: jax.Array) -> jax.Array:
        c = self.config
        types = {"dtype": c.precision.compute, "param_dtype": c.precision.weights}
        embed = nn.Embed(c.words, c.width, **types)
        places = nn.Embed(c.length, c.width, **types)
        x = embed(words) + places(jnp.arange(words.shape[1]))
        layers = nn.scan(
            nn.remat(LinenBlock, prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,
            length=c.layers,
        )
        x, _ = layers(c)(x, nn.make_causal_mask(words))
        return embed.attend(nn.LayerNorm(**types)(x))


def make_scanned(c: Config) -> Program:
    model, optimizer = LinenGPT(c), make_optimizer()

    def build() -> TrainState:
        words = jnp.zeros((1, c.length), jnp.int32)
        params = model.init(jax.random.key(0), words)["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    def train_step(state: TrainState, words: jax.Array) -> tuple[TrainState, jax.Array]:
        def loss_fn(params: Any) -> jax.Array:
            logits = state.apply_fn({"params": params}, words[:, :-1])
            return cross_entropy(c, logits, words[:, 1:])

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    return Program(train_step, lambda: (build(), make_words(c)), carried=1)


# ---- entries -----------------------------------------------------------------------------------------------------


def make_words(c: Config) -> jax.Array:
    return jax.random.randint(jax.random.key(1), (c.batch, c.length + 1), 0, c.words, jnp.int32)


def choose_config(draw: Draw, precision: Precision) -> Config:
    return Config(
        layers=draw.pick("layers", (12, 10, 8), 2),
        heads=draw.pick("heads", (12, 16, 10), 2),
        words=draw.pick("words", (50257, 50304, 32000), 131),
        batch=draw.pick("batch", (8, 6, 12), 2),
        length=draw.pick("length", (1024, 768, 640), 24),
        precision=precision,
    )


def make(entry: str, draw: Draw, precision: Precision = MIXED) -> Program:
    c = choose_config(draw, precision)
    program = {"train": make_unrolled, "train-scan": make_scanned}[entry](c)
    return program.described(
        {"layers": c.layers, "width": c.width, "batch": c.batch, "length": c.length},
        lambda: make(entry, draw, EXACT),
    )
