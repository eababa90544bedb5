"""ResNet-50 in Flax Linen with batch norms: training with momentum, and classifying, in f32 and in bf16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training import train_state

from benchmarks.modern_programs.program import EXACT, F32, MIXED, Draw, Precision, Program


@dataclass(frozen=True)
class Config:
    """stages: blocks of each.  side: pixels."""

    stages: Sequence[int]
    filters: int
    side: int
    classes: int
    batch: int
    precision: Precision


class Bottleneck(nn.Module):
    filters: int
    strides: int
    conv: Any
    norm: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        strides = (self.strides, self.strides)
        y = nn.relu(self.norm()(self.conv(self.filters, (1, 1))(x)))
        y = nn.relu(self.norm()(self.conv(self.filters, (3, 3), strides)(y)))
        y = self.norm(scale_init=nn.initializers.zeros)(self.conv(4 * self.filters, (1, 1))(y))
        if x.shape != y.shape:
            x = self.norm()(self.conv(4 * self.filters, (1, 1), strides)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        c = self.config
        types = {"dtype": c.precision.compute, "param_dtype": c.precision.weights}
        conv = partial(nn.Conv, use_bias=False, **types)
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9, **types)
        x = conv(c.filters, (7, 7), (2, 2), padding=[(3, 3), (3, 3)])(x)
        x = nn.relu(norm()(x))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for stage, blocks in enumerate(c.stages):
            for block in range(blocks):
                strides = 2 if stage and not block else 1
                x = Bottleneck(c.filters * 2**stage, strides, conv, norm)(x)
        return nn.Dense(c.classes, **types)(x.mean((1, 2))).astype(c.precision.sums)


class TrainState(train_state.TrainState):
    batch_stats: Any


def make_images(c: Config) -> jax.Array:
    shape = (c.batch, c.side, c.side, 3)
    return jax.random.normal(jax.random.key(1), shape, c.precision.compute)


def make_training(c: Config) -> Program:
    model = ResNet(c)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 100, 10_000)
    optimizer = optax.sgd(schedule, momentum=0.9, nesterov=True)

    def build() -> TrainState:
        made = model.init(jax.random.key(0), make_images(c)[:1], train=False)
        return TrainState.create(
            apply_fn=model.apply,
            params=made["params"],
            batch_stats=made["batch_stats"],
            tx=optimizer,
        )

    def train_step(state: TrainState, images: jax.Array, labels: jax.Array) -> Any:
        def loss_fn(params: Any) -> tuple[jax.Array, Any]:
            variables = {"params": params, "batch_stats": state.batch_stats}
            logits, updated = state.apply_fn(variables, images, train=True, mutable=["batch_stats"])
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
            decay = sum(jnp.sum(p**2) for p in jax.tree.leaves(params) if p.ndim > 1)
            return loss + 0.5e-4 * decay, (updated["batch_stats"], logits)

        (loss, found), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        batch_stats, logits = found
        metrics = {"loss": loss, "accuracy": (logits.argmax(-1) == labels).mean()}
        return state.apply_gradients(grads=grads, batch_stats=batch_stats), metrics

    def arguments() -> tuple[Any, ...]:
        return build(), make_images(c), jnp.arange(c.batch, dtype=jnp.int32) % c.classes

    return Program(train_step, arguments, carried=1)


def make_inference(c: Config) -> Program:
    model = ResNet(c)

    def classify(variables: Any, images: jax.Array) -> jax.Array:
        return jax.nn.softmax(model.apply(variables, images, train=False))

    def arguments() -> tuple[Any, ...]:
        images = make_images(c)
        return model.init(jax.random.key(0), images[:1], train=False), images

    return Program(classify, arguments)


def choose_config(entry: str, draw: Draw, precision: Precision | None) -> Config:
    mode, _, dtype = entry.partition("-")
    return Config(
        stages=draw.pick("stages", ((3, 4, 6, 3),), (1, 1)),
        filters=draw.pick("filters", (64,), 8),
        side=draw.pick("side", (224, 192, 256), 16),
        classes=draw.pick("classes", (1000, 365), 10),
        batch=draw.pick(f"{mode} batch", (64, 48, 96), 2),
        precision=precision or {"f32": F32, "bf16": MIXED}[dtype],
    )


def make(entry: str, draw: Draw, precision: Precision | None = None) -> Program:
    c = choose_config(entry, draw, precision)
    program = {"train": make_training, "infer": make_inference}[entry.partition("-")[0]](c)
    about = {"batch": c.batch, "side": c.side, "classes": c.classes}
    return program.described(about, lambda: make(entry, draw, EXACT))
