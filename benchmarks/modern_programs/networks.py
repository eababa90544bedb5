"""Narrow networks on many rows, in plain JAX: coordinates, policies, messages of graphs, mixers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.modern_programs.program import BF16, EXACT, F32, Draw, Precision, Program

Layers = list[tuple[jax.Array, jax.Array]]
Activation = Callable[[jax.Array], jax.Array]
LEARNING_RATE = 1e-3


def draw_layers(seed: int, widths: Sequence[int], dtype: Any) -> Layers:
    keys = jax.random.split(jax.random.key(seed), len(widths) - 1)
    return [
        (jax.random.normal(key, (a, b), dtype) * a**-0.5, jnp.zeros(b, dtype))
        for key, a, b in zip(keys, widths[:-1], widths[1:], strict=True)
    ]


def draw(seed: int, *shape: int, dtype: Any) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def apply(layers: Layers, x: jax.Array, activation: Activation) -> jax.Array:
    for weights, bias in layers[:-1]:
        x = activation(x @ weights + bias)
    weights, bias = layers[-1]
    return x @ weights + bias


def descend(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """A step of gradient descent on the first argument; also hands on the loss."""

    def step(layers: Any, *given: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(layers, *given)
        change = jax.tree.map(lambda p, g: p - LEARNING_RATE * g.astype(p.dtype), layers, gradients)
        return change, value

    return step


def make_fit(rows: int, widths: Sequence[int], p: Precision) -> Program:
    """A network is fitted to numbers: a field, a table, an image."""

    def loss(layers: Layers, x: jax.Array, wanted: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(apply(layers, x, jax.nn.relu) - wanted).astype(p.sums))

    def arguments() -> tuple[Any, ...]:
        x, wanted = (
            draw(1, rows, widths[0], dtype=p.compute),
            draw(2, rows, widths[-1], dtype=p.compute),
        )
        return draw_layers(0, widths, p.compute), x, wanted

    return Program(descend(loss), arguments, carried=1)


def make_policy(rows: int, width: int, p: Precision) -> Program:
    """Policy and value by two networks, with the clipped loss of PPO."""
    actions, seen = 6, 24

    def loss(
        layers: tuple[Layers, Layers],
        state: jax.Array,
        chosen: jax.Array,
        before: jax.Array,
        advantage: jax.Array,
        returns: jax.Array,
    ) -> jax.Array:
        logits = jax.nn.log_softmax(apply(layers[0], state, jnp.tanh))
        value = apply(layers[1], state, jnp.tanh)[:, 0]
        likely = jnp.take_along_axis(logits, chosen[:, None], 1)[:, 0]
        ratio = jnp.exp(likely - before)
        gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        entropy = -(jnp.exp(logits) * logits).sum(-1)
        return -gain.mean() + 0.5 * jnp.square(value - returns).mean() - 0.01 * entropy.mean()

    def arguments() -> tuple[Any, ...]:
        networks = tuple(
            draw_layers(seed, (seen, width, width, last), p.compute)
            for seed, last in enumerate((actions, 1))
        )
        chosen = jax.random.randint(jax.random.key(3), (rows,), 0, actions)
        numbers = [draw(seed, rows, dtype=p.compute) for seed in (4, 5, 6)]
        return networks, draw(2, rows, seen, dtype=p.compute), chosen, *numbers

    return Program(descend(loss), arguments, carried=1)


def make_messages(nodes: int, edges: int, width: int, p: Precision) -> Program:
    """One round of messages along the edges of a graph."""

    def pass_messages(
        layers: tuple[Layers, Layers], h: jax.Array, e: jax.Array, ends: jax.Array
    ) -> jax.Array:
        given = jnp.concatenate([h[ends[0]], h[ends[1]], e], -1)
        messages = jax.nn.silu(apply(layers[0], given, jax.nn.silu))
        summed = jax.ops.segment_sum(messages, ends[1], nodes)
        return h + apply(layers[1], jnp.concatenate([h, summed], -1), jax.nn.silu)

    def arguments() -> tuple[Any, ...]:
        layers = (
            draw_layers(0, (2 * width + 16, width, width), p.compute),
            draw_layers(1, (2 * width, width, width), p.compute),
        )
        ends = jax.random.randint(jax.random.key(4), (2, edges), 0, nodes)
        h, e = draw(2, nodes, width, dtype=p.compute), draw(3, edges, 16, dtype=p.compute)
        return layers, h, e, ends

    return Program(pass_messages, arguments)


def make_mixer(rows: int, width: int, p: Precision) -> Program:
    """Two blocks of RMS norm and SwiGLU."""

    def mix(blocks: Any, x: jax.Array) -> jax.Array:
        for scale, wide, narrow in blocks:
            squares = jnp.mean(jnp.square(x), -1, keepdims=True)
            values, gates = jnp.split(x * jax.lax.rsqrt(squares + 1e-6) * scale @ wide, 2, -1)
            x = x + (values * jax.nn.silu(gates)) @ narrow
        return x

    def arguments() -> tuple[Any, ...]:
        blocks = [
            (
                jnp.ones(width, p.compute),
                draw(seed, width, 2 * width, dtype=p.compute) * width**-0.5,
                draw(seed + 2, width, width, dtype=p.compute) * width**-0.5,
            )
            for seed in (0, 1)
        ]
        return blocks, draw(4, rows, width, dtype=p.compute)

    return Program(mix, arguments)


def encode(x: jax.Array, powers: int) -> jax.Array:
    waves = [f(2.0**power * x) for power in range(powers) for f in (jnp.sin, jnp.cos)]
    return jnp.concatenate([x, *waves], -1)


def make_radiance(rays: int, samples: int, width: int, p: Precision) -> Program:
    """A radiance field: colors along rays, composed and fitted to pixels."""

    def loss(
        layers: dict[str, Layers], places: jax.Array, directions: jax.Array, pixels: jax.Array
    ) -> jax.Array:
        coded = encode(places, 10)
        h = jax.nn.relu(apply(layers["first"], coded, jax.nn.relu))
        h = jax.nn.relu(apply(layers["second"], jnp.concatenate([h, coded], -1), jax.nn.relu))
        density = jax.nn.softplus(apply(layers["density"], h, jax.nn.relu)[..., 0])
        seen = encode(directions, 4)[:, None]
        seen = jnp.broadcast_to(seen, (*h.shape[:2], seen.shape[-1]))
        colors = jax.nn.sigmoid(apply(layers["color"], jnp.concatenate([h, seen], -1), jax.nn.relu))
        alpha = 1 - jnp.exp(-density * 0.02)
        passed = jnp.cumprod(1 - alpha + 1e-10, -1)
        weights = alpha * jnp.concatenate([jnp.ones_like(passed[:, :1]), passed[:, :-1]], -1)
        return jnp.mean(jnp.square((weights[..., None] * colors).sum(1) - pixels))

    def arguments() -> tuple[Any, ...]:
        layers = {
            "first": draw_layers(0, (63, width, width), p.compute),
            "second": draw_layers(1, (width + 63, width, width), p.compute),
            "density": draw_layers(2, (width, 1), p.compute),
            "color": draw_layers(3, (width + 27, width // 2, 3), p.compute),
        }
        shapes = ((rays, samples, 3), (rays, 3), (rays, 3))
        numbers = [draw(4 + n, *shape, dtype=p.compute) for n, shape in enumerate(shapes)]
        return layers, *numbers

    return Program(descend(loss), arguments, carried=1)


def make(entry: str, draw_size: Draw, precision: Precision | None = None) -> Program:
    p = precision or (BF16 if entry == "fit-bf16" else F32)
    rows = draw_size.pick("rows", [131072, 65536, 200000, 262144], 256)
    width = draw_size.pick("width", [64, 32, 48], 16)
    match entry:
        case "fit":
            made = make_fit(rows, (width,) * 5, p)
        case "fit-bf16":
            made = make_fit(8 * rows, (width // 2, *(width,) * 4, 16), p)
        case "policy":
            made = make_policy(rows // 2, width, p)
        case "messages":
            made = make_messages(rows // 6, 3 * rows // 2, width, p)
        case "mixer":
            made = make_mixer(rows, width, p)
        case "radiance":
            made = make_radiance(rows // 64, 96, width, p)
        case _:
            raise KeyError(entry)
    return made.described({"rows": rows, "width": width}, lambda: make(entry, draw_size, EXACT))
