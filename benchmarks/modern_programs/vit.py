"""A Vision Transformer in Flax Linen, bf16 with weights in f32: training with AdamW, and classifying."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from benchmarks.modern_programs.program import EXACT, MIXED, Draw, Precision, Program


@dataclass(frozen=True)
class Config:
    """side, patch: pixels."""

    layers: int
    heads: int
    size: int
    side: int
    patch: int
    classes: int
    batch: int
    precision: Precision

    @property
    def width(self) -> int:
        return self.heads * self.size

    @property
    def types(self) -> dict[str, Any]:
        return {"dtype": self.precision.compute, "param_dtype": self.precision.weights}


class Encoder(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config
        h = nn.LayerNorm(**c.types)(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=c.heads, **c.types)(h)
        h = nn.LayerNorm(**c.types)(x)
        h = nn.gelu(nn.Dense(4 * c.width, **c.types)(h))
        return x + nn.Dense(c.width, **c.types)(h)


class ViT(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        c = self.config
        shape = (c.patch, c.patch)
        x = nn.Conv(c.width, shape, strides=shape, padding="VALID", **c.types)(images)
        x = x.reshape(x.shape[0], -1, c.width)
        first = self.param("class", nn.initializers.zeros, (1, 1, c.width), c.precision.weights)
        first = jnp.broadcast_to(first, (x.shape[0], 1, c.width)).astype(x.dtype)
        x = jnp.concatenate([first, x], axis=1)
        init = nn.initializers.normal(0.02)
        places = self.param("places", init, (1, x.shape[1], c.width), c.precision.weights)
        x = x + places.astype(x.dtype)
        for _ in range(c.layers):
            x = Encoder(c)(x)
        x = nn.LayerNorm(**c.types)(x[:, 0])
        return nn.Dense(c.classes, **c.types)(x).astype(c.precision.sums)


def make_images(c: Config) -> jax.Array:
    """uint8, as a loader hands them on."""
    shape = (c.batch, c.side, c.side, 3)
    return jax.random.randint(jax.random.key(1), shape, 0, 256).astype(jnp.uint8)


def normalise(c: Config, images: jax.Array) -> jax.Array:
    return (images.astype(c.precision.compute) / 255 - 0.5) / 0.25


def make_training(c: Config) -> Program:
    model = ViT(c)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 10_000)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.05)
    )

    def build() -> TrainState:
        params = model.init(jax.random.key(0), normalise(c, make_images(c))[:1])["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    def train_step(state: TrainState, images: jax.Array, labels: jax.Array) -> Any:
        def loss_fn(params: Any) -> tuple[jax.Array, jax.Array]:
            logits = state.apply_fn({"params": params}, normalise(c, images))
            wanted = optax.smooth_labels(jax.nn.one_hot(labels, c.classes), 0.1)
            return optax.softmax_cross_entropy(logits, wanted).mean(), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        metrics = {"loss": loss, "accuracy": (logits.argmax(-1) == labels).mean()}
        return state.apply_gradients(grads=grads), metrics

    def arguments() -> tuple[Any, ...]:
        labels = jnp.arange(c.batch, dtype=jnp.int32) % c.classes
        return build(), make_images(c), labels

    return Program(train_step, arguments, carried=1)


def make_inference(c: Config) -> Program:
    model = ViT(c)

    def classify(params: Any, images: jax.Array) -> Any:
        shares = jax.nn.softmax(model.apply({"params": params}, normalise(c, images)))
        return jax.lax.top_k(shares, 5)[0], shares

    def arguments() -> tuple[Any, ...]:
        images = make_images(c)
        return model.init(jax.random.key(0), normalise(c, images[:1]))["params"], images

    return Program(classify, arguments)


def choose_config(entry: str, draw: Draw, precision: Precision) -> Config:
    return Config(
        layers=draw.pick("layers", (12, 8, 10), 2),
        heads=draw.pick("heads", (6, 12, 3), 2),
        size=draw.pick("size", (64,), 8),
        side=draw.pick("side", (224, 256, 192), 16),
        patch=draw.pick("patch", (16, 32), 4),
        classes=draw.pick("classes", (1000, 365), 10),
        batch=draw.pick(f"{entry} batch", (64, 48, 96), 2),
        precision=precision,
    )


def make(entry: str, draw: Draw, precision: Precision = MIXED) -> Program:
    c = choose_config(entry, draw, precision)
    about = {"layers": c.layers, "width": c.width, "batch": c.batch, "side": c.side}
    program = {"train": make_training, "infer": make_inference}[entry](c)
    return program.described(about, lambda: make(entry, draw, EXACT))
