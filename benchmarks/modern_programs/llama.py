"""Llama in Equinox: grouped heads, rotary positions, RMS norms, SwiGLU; training, a word by the cache, and sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from benchmarks.modern_programs.program import BF16, EXACT, MIXED, Draw, Precision, Program


@dataclass(frozen=True)
class Config:
    """groups: heads of keys and values.  turns: words that `generate` draws."""

    layers: int
    heads: int
    groups: int
    size: int
    hidden: int
    words: int
    batch: int
    length: int
    turns: int
    precision: Precision

    @property
    def width(self) -> int:
        return self.heads * self.size


def linear(width: int, out: int, c: Config, key: jax.Array) -> eqx.nn.Linear:
    return eqx.nn.Linear(width, out, use_bias=False, dtype=c.precision.weights, key=key)


def rotate(x: jax.Array, places: jax.Array) -> jax.Array:
    """x: [length, heads, size].  places: [length]."""
    size = x.shape[-1]
    rates = 10000.0 ** (-jnp.arange(0, size, 2) / size)
    angles = places[:, None] * rates
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    a, b = jnp.split(x.astype(cos.dtype), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


class Attention(eqx.Module):
    query: eqx.nn.Linear
    key: eqx.nn.Linear
    value: eqx.nn.Linear
    out: eqx.nn.Linear
    size: int = eqx.field(static=True)

    def __init__(self, c: Config, key: jax.Array) -> None:
        keys = jax.random.split(key, 4)
        self.query = linear(c.width, c.width, c, keys[0])
        self.key = linear(c.width, c.groups * c.size, c, keys[1])
        self.value = linear(c.width, c.groups * c.size, c, keys[2])
        self.out = linear(c.width, c.width, c, keys[3])
        self.size = c.size

    def project(self, x: jax.Array, places: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        parts = (self.query, self.key, self.value)
        q, k, v = (jax.vmap(part)(x).reshape(len(x), -1, self.size) for part in parts)
        return rotate(q, places), rotate(k, places), v

    def __call__(self, x: jax.Array) -> jax.Array:
        q, k, v = self.project(x, jnp.arange(len(x)))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        return jax.vmap(self.out)(mixed.reshape(len(x), -1))

    def step(self, x: jax.Array, cache: Any, place: jax.Array) -> tuple[jax.Array, Any]:
        """One word.  x: [width].  cache: keys and values, [length, groups, size]."""
        q, k, v = self.project(x[None], place[None])
        keys = jax.lax.dynamic_update_slice_in_dim(cache[0], k, place, 0)
        values = jax.lax.dynamic_update_slice_in_dim(cache[1], v, place, 0)
        mask = (jnp.arange(len(keys)) <= place)[None, None]
        mixed = jax.nn.dot_product_attention(q, keys, values, mask=mask)
        return self.out(mixed.reshape(-1)), (keys, values)


class Block(eqx.Module):
    attention: Attention
    gate: eqx.nn.Linear
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    norms: tuple[eqx.nn.RMSNorm, eqx.nn.RMSNorm]

    def __init__(self, c: Config, key: jax.Array) -> None:
        keys = jax.random.split(key, 4)
        self.attention = Attention(c, keys[0])
        self.gate = linear(c.width, c.hidden, c, keys[1])
        self.up = linear(c.width, c.hidden, c, keys[2])
        self.down = linear(c.hidden, c.width, c, keys[3])
        types = {"use_bias": False, "dtype": c.precision.weights}
        self.norms = eqx.nn.RMSNorm(c.width, **types), eqx.nn.RMSNorm(c.width, **types)

    def perceptron(self, x: jax.Array) -> jax.Array:
        h = self.norms[1](x)
        return x + self.down(jax.nn.silu(self.gate(h)) * self.up(h))

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(jax.vmap(self.norms[0])(x))
        return jax.vmap(self.perceptron)(x)

    def step(self, x: jax.Array, cache: Any, place: jax.Array) -> tuple[jax.Array, Any]:
        mixed, cache = self.attention.step(self.norms[0](x), cache, place)
        return self.perceptron(x + mixed), cache


class Llama(eqx.Module):
    embedding: eqx.nn.Embedding
    blocks: list[Block]
    norm: eqx.nn.RMSNorm
    head: eqx.nn.Linear

    def __init__(self, c: Config, key: jax.Array) -> None:
        keys = jax.random.split(key, c.layers + 2)
        self.embedding = eqx.nn.Embedding(c.words, c.width, dtype=c.precision.weights, key=keys[0])
        self.blocks = [Block(c, k) for k in keys[2:]]
        self.norm = eqx.nn.RMSNorm(c.width, use_bias=False, dtype=c.precision.weights)
        self.head = linear(c.width, c.words, c, keys[1])

    def __call__(self, words: jax.Array) -> jax.Array:
        """[length] -> [length, words]."""
        x = jax.vmap(self.embedding)(words)
        for block in self.blocks:
            x = block(x)
        return jax.vmap(lambda x: self.head(self.norm(x)))(x)

    def step(self, word: jax.Array, caches: Any, place: jax.Array) -> tuple[jax.Array, Any]:
        """[] -> [words], and the caches with this word."""
        x, kept = self.embedding(word), []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, cache = block.step(x, cache, place)
            kept.append(cache)
        return self.head(self.norm(x)), kept


def cast(model: Any, dtype: Any) -> Any:
    """Its arrays in a dtype: weights in f32, computation in bf16."""
    return jax.tree.map(lambda a: a.astype(dtype) if eqx.is_inexact_array(a) else a, model)


def split_model(c: Config) -> tuple[Any, Any]:
    """(what makes the arrays, the rest)."""
    build = lambda: Llama(c, jax.random.key(0))  # noqa: E731
    static = eqx.partition(
        eqx.filter_eval_shape(build), lambda a: isinstance(a, jax.ShapeDtypeStruct)
    )[1]
    return lambda: eqx.filter(build(), eqx.is_array), static


def make_training(c: Config) -> Program:
    make_arrays, static = split_model(c)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(optax.cosine_decay_schedule(3e-4, 10_000), b2=0.95, weight_decay=0.1),
    )

    def train_step(arrays: Any, state: Any, words: jax.Array) -> Any:
        def loss_fn(arrays: Any) -> jax.Array:
            model = cast(eqx.combine(arrays, static), c.precision.compute)
            logits = jax.vmap(model)(words[:, :-1]).astype(c.precision.sums)
            return optax.softmax_cross_entropy_with_integer_labels(logits, words[:, 1:]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(arrays)
        updates, state = optimizer.update(grads, state, arrays)
        return optax.apply_updates(arrays, updates), state, loss

    def arguments() -> tuple[Any, ...]:
        arrays = make_arrays()
        shape = (c.batch, c.length + 1)
        words = jax.random.randint(jax.random.key(1), shape, 0, c.words, jnp.int32)
        return arrays, optimizer.init(arrays), words

    return Program(train_step, arguments, carried=2)


def make_caches(c: Config) -> Any:
    shape = (c.batch, c.length, c.groups, c.size)
    keys = jax.random.split(jax.random.key(2), (c.layers, 2))
    return [tuple(jax.random.normal(k, shape, c.precision.compute) for k in pair) for pair in keys]


def make_decoding(c: Config) -> Program:
    """The most likely next word of each sequence; the caches are overwritten."""
    make_arrays, static = split_model(c)

    def decode_step(state: Any, arrays: Any) -> Any:
        caches, words, place = state
        model = eqx.combine(arrays, static)
        logits, caches = jax.vmap(model.step, in_axes=(0, 0, None))(words, caches, place)
        words = jnp.argmax(logits, -1).astype(words.dtype)
        place = jnp.minimum(place + 1, c.length - 1)
        return (caches, words, place), logits

    def arguments() -> tuple[Any, ...]:
        words = jnp.arange(c.batch, dtype=jnp.int32)
        return (make_caches(c), words, jnp.asarray(c.length // 2, jnp.int32)), make_arrays()

    return Program(decode_step, arguments, carried=1)


def make_generation(c: Config) -> Program:
    """Several words in a scan, each drawn from the 40 most likely."""
    make_arrays, static = split_model(c)

    def generate(state: Any, arrays: Any) -> Any:
        model = eqx.combine(arrays, static)

        def turn(state: Any, _: None) -> Any:
            caches, words, place, key = state
            logits, caches = jax.vmap(model.step, in_axes=(0, 0, None))(words, caches, place)
            best, at = jax.lax.top_k(logits.astype(c.precision.sums) / 0.8, 40)
            key, drawn = jax.random.split(key)
            chosen = jax.random.categorical(drawn, best)
            words = jnp.take_along_axis(at, chosen[:, None], -1)[:, 0].astype(words.dtype)
            return (caches, words, (place + 1) % c.length, key), words

        return jax.lax.scan(turn, state, None, length=c.turns)

    def arguments() -> tuple[Any, ...]:
        words = jnp.arange(c.batch, dtype=jnp.int32)
        place = jnp.asarray(c.length // 2, jnp.int32)
        return (make_caches(c), words, place, jax.random.key_data(jax.random.key(3))), make_arrays()

    return Program(generate, arguments, carried=1)


def choose_config(entry: str, draw: Draw, precision: Precision) -> Config:
    trains = entry == "train"
    return Config(
        layers=draw.pick("layers", (8, 6, 10), 2),
        heads=draw.pick("heads", (16, 12, 20), 4),
        groups=draw.pick("groups", (4, 2), 2),
        size=draw.pick("size", (64, 128), 8),
        hidden=draw.pick("hidden", (2816, 2752, 4096), 88),
        words=draw.pick("words", (32000, 32768, 49152), 131),
        batch=draw.pick(f"{entry} batch", (4, 3, 6) if trains else (8, 1, 32), 2),
        length=draw.pick("length", (1024, 1536, 768), 24),
        turns=draw.pick("turns", (32, 20), 4),
        precision=precision,
    )


def make(entry: str, draw: Draw, precision: Precision | None = None) -> Program:
    usual = MIXED if entry == "train" else BF16
    c = choose_config(entry, draw, precision or usual)
    makers = {"train": make_training, "decode": make_decoding, "generate": make_generation}
    about = {"layers": c.layers, "width": c.width, "batch": c.batch, "length": c.length}
    # What is drawn depends on the dtype of the noise.
    exact = None if entry == "generate" else lambda: make(entry, draw, EXACT)
    return makers[entry](c).described(about, exact)
