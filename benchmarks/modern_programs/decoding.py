"""A step of a decoder in plain JAX, one word for each sequence, with its cache in the forms that people give it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.modern_programs.program import BF16, EXACT, Draw, Precision, Program


@dataclass(frozen=True)
class Config:
    """groups: heads of keys and values."""

    layers: int
    heads: int
    groups: int
    size: int
    hidden: int
    words: int
    batch: int
    length: int
    precision: Precision

    @property
    def width(self) -> int:
        return self.heads * self.size


def norm(x: jax.Array, weight: jax.Array, c: Config) -> jax.Array:
    x = x.astype(c.precision.sums)
    return (x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight).astype(
        c.precision.compute
    )


def attend(q: jax.Array, keys: jax.Array, values: jax.Array, seen: jax.Array, c: Config) -> Any:
    """q: [batch, width].  keys, values: [batch, length, groups, size].  seen: [batch or 1, length]."""
    q = q.reshape(len(q), c.groups, -1, c.size)
    scores = jnp.einsum("bgrd,blgd->bgrl", q, keys).astype(c.precision.sums) / c.size**0.5
    scores = jnp.where(seen[:, None, None], scores, -1e30)
    shares = jax.nn.softmax(scores, -1).astype(values.dtype)
    return jnp.einsum("bgrl,blgd->bgrd", shares, values).reshape(len(q), -1)


Update = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""cache, [batch, groups, size], place -> the cache with this word."""


def write_at_one_place(cache: jax.Array, new: jax.Array, place: jax.Array) -> jax.Array:
    zero = jnp.zeros_like(place)  # of the same type, also where numbers have 64 bits
    return lax.dynamic_update_slice(cache, new[:, None], (zero, place, zero, zero))


def write_heads_first(cache: jax.Array, new: jax.Array, place: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(cache, new[:, :, None], place, 2)


def write_at_places(cache: jax.Array, new: jax.Array, places: jax.Array) -> jax.Array:
    return cache.at[jnp.arange(len(cache)), places].set(new)


def run_layer(
    x: jax.Array, cache: Any, place: jax.Array, w: Any, c: Config, write: Update
) -> tuple[jax.Array, Any]:
    q, k, v = (norm(x, w["norm"], c) @ w[name] for name in ("query", "key", "value"))
    new = (a.reshape(len(x), c.groups, c.size) for a in (k, v))
    keys, values = (write(a, b, place) for a, b in zip(cache, new, strict=True))
    read = (a.swapaxes(1, 2) if write is write_heads_first else a for a in (keys, values))
    seen = jnp.arange(c.length) <= jnp.atleast_1d(place)[:, None]
    x = x + attend(q, *read, seen, c) @ w["out"]
    h = norm(x, w["second"], c)
    return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"], (keys, values)


def finish(x: jax.Array, weights: Any, place: jax.Array, c: Config) -> tuple[Any, Any, jax.Array]:
    """(the next words, their place, logits)."""
    logits = norm(x, weights["norm"], c) @ weights["embedding"].T
    words = jnp.argmax(logits, -1).astype(jnp.int32)
    return words, jnp.minimum(place + 1, c.length - 1), logits


def step_through(c: Config, write: Update) -> Callable[..., Any]:
    def step(state: Any, weights: Any) -> Any:
        caches, words, place = state
        x, kept = weights["embedding"][words], []
        for cache, w in zip(caches, weights["layers"], strict=True):
            x, cache = run_layer(x, cache, place, w, c, write)
            kept.append(cache)
        words, place, logits = finish(x, weights, place, c)
        return (kept, words, place), logits

    return step


def scan_layers(c: Config) -> Callable[..., Any]:
    """One cache of all layers, carried through a scan over them."""

    def step(state: Any, weights: Any) -> Any:
        caches, words, place = state

        def turn(carry: Any, given: Any) -> Any:
            x, caches = carry
            w, layer = given
            own = tuple(lax.dynamic_index_in_dim(a, layer, 0, keepdims=False) for a in caches)
            x, own = run_layer(x, own, place, w, c, write_at_one_place)
            new = (lax.dynamic_slice_in_dim(a, place, 1, 1)[None] for a in own)
            zero = jnp.zeros_like(place)
            at = (layer, zero, place, zero, zero)
            return (x, tuple(map(lambda a, b: lax.dynamic_update_slice(a, b, at), caches, new))), ()

        given = weights["layers"], jnp.arange(c.layers, dtype=jnp.int32)
        (x, caches), _ = lax.scan(turn, (weights["embedding"][words], caches), given)
        words, place, logits = finish(x, weights, place, c)
        return (caches, words, place), logits

    return step


STEPS: Mapping[str, Callable[[Config], Callable[..., Any]]] = {
    "heads": lambda c: step_through(c, write_at_one_place),
    "heads-first": lambda c: step_through(c, write_heads_first),
    "groups": lambda c: step_through(c, write_at_one_place),
    "places": lambda c: step_through(c, write_at_places),
    "layers": scan_layers,
}


def make_weights(c: Config) -> Any:
    own = c.groups * c.size
    shapes = {"query": (c.width, c.width), "key": (c.width, own), "value": (c.width, own)}
    shapes |= {"out": (c.width, c.width), "down": (c.hidden, c.width)}
    shapes |= {"gate": (c.width, c.hidden), "up": (c.width, c.hidden)}

    def draw(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        return (jax.random.normal(key, shape) * shape[0] ** -0.5).astype(c.precision.weights)

    def layer(key: jax.Array) -> Any:
        keys = jax.random.split(key, len(shapes))
        drawn = {name: draw(k, s) for k, (name, s) in zip(keys, shapes.items(), strict=True)}
        ones = jnp.ones(c.width, c.precision.sums)
        return {**drawn, "norm": ones, "second": ones}

    keys = jax.random.split(jax.random.key(0), c.layers + 1)
    embedding = draw(keys[0], (c.words, c.width))
    return {
        "embedding": embedding,
        "norm": jnp.ones(c.width, c.precision.sums),
        "layers": [layer(key) for key in keys[1:]],
    }


def make_arguments(entry: str, c: Config) -> tuple[Any, ...]:
    weights = make_weights(c)
    shape: tuple[int, ...] = (c.batch, c.length, c.groups, c.size)
    if entry == "heads-first":
        shape = (c.batch, c.groups, c.length, c.size)
    keys = jax.random.split(jax.random.key(1), (c.layers, 2))
    caches = [tuple(jax.random.normal(k, shape, c.precision.compute) for k in two) for two in keys]
    place = jnp.asarray(c.length // 2, jnp.int32)
    if entry == "places":
        place = place - jnp.arange(c.batch, dtype=jnp.int32)
    if entry == "layers":
        weights["layers"] = jax.tree.map(lambda *a: jnp.stack(a), *weights["layers"])
        caches = jax.tree.map(lambda *a: jnp.stack(a), *caches)
    return (caches, jnp.arange(c.batch, dtype=jnp.int32), place), weights


def make(entry: str, draw: Draw, precision: Precision | None = None) -> Program:
    heads = draw.pick("heads", (16, 12, 20), 4)
    c = Config(
        layers=draw.pick("layers", (8, 6, 10), 2),
        heads=heads,
        groups=draw.pick("groups", (4, 2), 2) if entry == "groups" else heads,
        size=draw.pick("size", (64, 128), 8),
        hidden=draw.pick("hidden", (2816, 2752, 4096), 88),
        words=draw.pick("words", (32000, 32768, 49152), 131),
        batch=draw.pick("batch", (8, 4, 32), 2),
        length=draw.pick("length", (2048, 1536, 3072), 24),
        precision=precision or BF16,
    )
    about = {"layers": c.layers, "width": c.width, "batch": c.batch, "length": c.length}
    made = Program(STEPS[entry](c), lambda: make_arguments(entry, c), carried=1)
    return made.described(about, lambda: make(entry, draw, EXACT))
