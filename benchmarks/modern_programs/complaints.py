"""Programs that users of JAX reported as slow on a GPU: each as its issue says, with the sizes of the issue.

By issue and program, what makes it.  Programs of one report differ in type, order or shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.modern_programs.program import EXACT, F32, Draw, Precision, Program

Make = Callable[[Draw, Precision], Program]


def key(number: int) -> jax.Array:
    return jax.random.key(number)


def widened(dtype: Any, precision: Precision) -> Any:
    """The type of the report, or f64 where the program is the reference."""
    return jnp.float64 if precision is EXACT else dtype


# ---- loops -------------------------------------------------------------------------------------------------------


def multiply_in_scan(draw: Draw, precision: Precision) -> Program:
    """jax#2491: one multiplication a turn.  The report has ten million turns; the time is linear in them."""
    turns = draw.pick("turns", (1_000_000, 10_000_000), 50)

    def run(x: jax.Array) -> jax.Array:
        return lax.scan(lambda x, _: (x * 0.999999, None), x, None, length=turns)[0]

    def make() -> tuple[Any, ...]:
        return (jnp.asarray(1.5, precision.compute),)

    return Program(run, make).described({"turns": turns})


def map_in_scan(draw: Draw, precision: Precision) -> Program:
    """jax#2491: the logistic map, each turn's value kept.  No number of digits follows it: nothing is compared."""
    turns = draw.pick("turns", (1_000_000, 10_000_000), 50)

    def run(x: jax.Array) -> jax.Array:
        def turn(x: jax.Array, _: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = 4.0 * x * (1.0 - x)
            return x, x

        return lax.scan(turn, x, jnp.arange(turns))[1]

    def make() -> tuple[Any, ...]:
        return (jnp.asarray(0.1, precision.compute),)

    return Program(run, make).described({"turns": turns})


def accumulate(axis: int, draw: Draw, precision: Precision) -> Program:
    """jax#28097."""
    shape = draw.pick("shape", ((65536, 1024), (1024, 65536)), (40, 12))

    def run(x: jax.Array) -> jax.Array:
        return jnp.bitwise_xor.accumulate(x, axis=axis)

    def make() -> tuple[Any, ...]:
        return (jax.random.bits(key(0), shape, jnp.uint32),)

    return Program(run, make).described({"shape": shape})


def train_gru(draw: Draw, precision: Precision) -> Program:
    """jax#18867: loss and gradient of a recurrent network."""
    steps, batch, width = draw.pick("sizes", ((256, 128, 256), (512, 64, 128)), (5, 3, 8))

    def cell(weights: Any, h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        into, back, bias = weights
        a, b = jnp.split(x @ into + bias, [2 * width], axis=-1)
        c, d = jnp.split(h @ back, [2 * width], axis=-1)
        reset, update = jnp.split(jax.nn.sigmoid(a + c), 2, axis=-1)
        h = (1 - update) * jnp.tanh(b + reset * d) + update * h
        return h, h

    def loss(weights: Any, x: jax.Array, wanted: jax.Array) -> jax.Array:
        first = jnp.zeros((batch, width), precision.compute)
        _, found = lax.scan(partial(cell, weights), first, x)
        return jnp.square(found - wanted).mean()

    def make() -> tuple[Any, ...]:
        def normal(number: int, *shape: int, scale: float = 1.0) -> jax.Array:
            return scale * jax.random.normal(key(number), shape, precision.compute)

        weights = (
            normal(0, width, 3 * width, scale=width**-0.5),
            normal(1, width, 3 * width, scale=width**-0.5),
            normal(2, 3 * width, scale=0.1),
        )
        return weights, normal(3, steps, batch, width), normal(4, steps, batch, width)

    about = {"steps": steps, "batch": batch, "width": width}
    return Program(jax.value_and_grad(loss), make).described(about)


def perceptron_in_while(draw: Draw, precision: Precision) -> Program:
    """jax#7024: a small perceptron, whose weights pass through a softplus, and noise in each turn."""
    turns, widths = draw.pick("sizes", ((1000, (20, 20, 20)), (500, (64, 64, 64))), (4, (5, 6, 5)))
    pairs = list(itertools.pairwise(widths))

    def run(weights: Any, x: jax.Array, random: jax.Array) -> jax.Array:
        def goes_on(state: Any) -> jax.Array:
            return state[0] < turns

        def turn(state: Any) -> Any:
            number, x, random = state
            random, own = jax.random.split(random)
            for w in weights:
                x = jax.nn.sigmoid(x @ jax.nn.softplus(w))
            noise = jax.random.normal(own, x.shape, jnp.float32)
            return number + 1, x + 0.01 * noise.astype(x.dtype), random

        found: jax.Array = lax.while_loop(goes_on, turn, (0, x, random))[1]
        return found

    def make() -> tuple[Any, ...]:
        weights = [
            jax.random.normal(key(i), pair, precision.compute) for i, pair in enumerate(pairs)
        ]
        x = jax.random.normal(key(7), (1, widths[0]), precision.compute)
        return weights, x, key(8)

    return Program(run, make).described({"turns": turns, "widths": widths})


# ---- segments and scatters ---------------------------------------------------------------------------------------


def softmax_of_segments(draw: Draw, precision: Precision) -> Program:
    """jax#37511: segments of one length, in order."""
    sizes = ((10_000, 256), (10_000, 64), (10_000, 128), (50_000, 128))
    segments, length = draw.pick("segments", sizes, (6, 5))

    def run(scores: jax.Array, ids: jax.Array) -> jax.Array:
        most = jax.ops.segment_max(scores, ids, segments)
        shares = jnp.exp(scores - most[ids])
        sums: jax.Array = jax.ops.segment_sum(shares, ids, segments)
        return shares / sums[ids]

    def make() -> tuple[Any, ...]:
        scores = jax.random.normal(key(0), (segments * length,), precision.compute)
        return scores, jnp.repeat(jnp.arange(segments, dtype=jnp.int32), length)

    return Program(run, make).described({"segments": segments, "length": length})


def scatter_rows(same: bool, draw: Draw, precision: Precision) -> Program:
    """xla#46225.  same: all updates go to one row."""
    rows, width, count = draw.pick("sizes", ((399, 128, 40_960), (399, 512, 40_960)), (9, 5, 60))

    def run(table: jax.Array, ids: jax.Array, updates: jax.Array) -> jax.Array:
        return table.at[ids].add(updates)

    def make() -> tuple[Any, ...]:
        ids = jax.random.randint(key(0), (count,), 0, rows, jnp.int32)
        updates = jax.random.normal(key(1), (count, width), precision.compute)
        table = jnp.zeros((rows, width), precision.compute)
        return table, jnp.zeros_like(ids) if same else ids, updates

    return Program(run, make).described({"table": (rows, width), "updates": count})


def sum_columns(out_axes: int, draw: Draw, precision: Precision) -> Program:
    """xla#47203: one segment sum for each column, by vmap."""
    rows, width, count = draw.pick("sizes", ((12_123, 1024, 100_000),), (7, 6, 30))

    def run(x: jax.Array, ids: jax.Array) -> jax.Array:
        def sum_column(column: jax.Array) -> jax.Array:
            found: jax.Array = jax.ops.segment_sum(column, ids, rows)
            return found

        found: jax.Array = jax.vmap(sum_column, in_axes=1, out_axes=out_axes)(x)
        return found

    def make() -> tuple[Any, ...]:
        ids = jax.random.randint(key(0), (count,), 0, rows, jnp.int32)
        return jax.random.normal(key(1), (count, width), precision.compute), ids

    return Program(run, make).described({"sums": (rows, width), "updates": count})


def sum_segments(dtype: Any, in_order: bool, draw: Draw, precision: Precision) -> Program:
    """jax#26227: a hundred numbers a segment; in order it is a hundred times slower in f16."""
    count, segments = draw.pick("sizes", ((100_000_000, 1_000_000),), (200, 20))

    def run(x: jax.Array, ids: jax.Array) -> jax.Array:
        found: jax.Array = jax.ops.segment_sum(x, ids, segments, indices_are_sorted=in_order)
        return found

    def make() -> tuple[Any, ...]:
        ids = jax.random.randint(key(0), (count,), 0, segments, jnp.int32)
        x = jax.random.uniform(key(1), (count,), dtype).astype(widened(dtype, precision))
        return x, jnp.sort(ids) if in_order else ids

    return Program(run, make).described({"updates": count, "segments": segments})


def sum_segments_of_batches(draw: Draw, precision: Precision) -> Program:
    """jax#20186: vmap over 64 arrays of bf16 whose segments are in order."""
    batch, segments, length = draw.pick("sizes", ((64, 1700, 508),), (3, 7, 6))
    dtype = widened(jnp.bfloat16, precision)

    def run(x: jax.Array, ids: jax.Array) -> jax.Array:
        def sum_one(x: jax.Array) -> jax.Array:
            found: jax.Array = jax.ops.segment_sum(x, ids, segments, indices_are_sorted=True)
            return found

        found: jax.Array = jax.vmap(sum_one)(x)
        return found

    def make() -> tuple[Any, ...]:
        ids = jnp.sort(jax.random.randint(key(0), (segments * length,), 0, segments, jnp.int32))
        return jax.random.uniform(key(1), (batch, ids.size), jnp.bfloat16).astype(dtype), ids

    return Program(run, make).described({"batch": batch, "segments": segments, "length": length})


def scatter_into_few(dtype: Any, draw: Draw, precision: Precision) -> Program:
    """xla#26371: a million updates of ten elements, along the last dimension."""
    batch, size, count = draw.pick("sizes", ((10, 10, 1_000_000),), (3, 4, 50))

    def run(sums: jax.Array, ids: jax.Array, updates: jax.Array) -> jax.Array:
        return sums.at[:, ids].add(updates)

    def make() -> tuple[Any, ...]:
        wide = widened(dtype, precision)
        ids = jax.random.randint(key(0), (count,), 0, size, jnp.int32)
        updates = jax.random.uniform(key(1), (batch, count), dtype).astype(wide)
        return jnp.zeros((batch, size), wide), ids, updates

    return Program(run, make).described({"sums": (batch, size), "updates": count})


def scatter_in_batches(draw: Draw, precision: Precision) -> Program:
    """jax#17844: images of 64 x 64, four updates a pixel, under vmap.  XLA is asked for a fixed order, too."""
    batch, size = draw.pick("sizes", ((64, 64 * 64), (256, 64 * 64)), (2, 12))

    def run(images: jax.Array, ids: jax.Array, updates: jax.Array) -> jax.Array:
        numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
        return jax.vmap(partial(lax.scatter_add, dimension_numbers=numbers, mode="drop"))(
            images, ids, updates
        )

    def make() -> tuple[Any, ...]:
        ids = jax.random.randint(key(0), (batch, 4 * size, 1), 0, size, jnp.int32)
        updates = jax.random.normal(key(1), (batch, 4 * size), precision.compute)
        return jnp.zeros((batch, size), precision.compute), ids, updates

    about = {"batch": batch, "pixels": size, "updates": 4 * size}
    options = {"xla_gpu_deterministic_ops": True}
    return Program(run, make, xla_options=options).described(about)


def sum_bags(gradient: bool, draw: Draw, precision: Precision) -> Program:
    """jax#3206: weighted sums of embeddings; gradient: the table's, too."""
    sizes = ((500_000, 64, 8192, 20), (30_000, 128, 4096, 50))
    rows, width, batch, bag = draw.pick("sizes", sizes, (11, 6, 4, 3))

    def sums(table: jax.Array, ids: jax.Array, weights: jax.Array) -> jax.Array:
        return (table[ids] * weights[..., None]).sum(1)

    def loss(table: jax.Array, ids: jax.Array, weights: jax.Array) -> jax.Array:
        return jnp.square(sums(table, ids, weights)).mean()

    def make() -> tuple[Any, ...]:
        table = jax.random.normal(key(0), (rows, width), precision.compute)
        ids = jax.random.randint(key(1), (batch, bag), 0, rows, jnp.int32)
        return table, ids, jax.random.uniform(key(2), (batch, bag), precision.compute)

    about = {"table": (rows, width), "bags": batch, "bag": bag}
    return Program(jax.grad(loss) if gradient else sums, make).described(about)


# ---- products and what follows them ------------------------------------------------------------------------------


def loss_of_head(draw: Draw, precision: Precision) -> Program:
    """jax#35906: linear and cross entropy over 128k classes, loss and gradient."""
    sizes = ((8192, 4096, 128_256), (8192, 2048, 202_048))
    words, width, classes = draw.pick("sizes", sizes, (6, 8, 30))
    dtype = widened(jnp.bfloat16, precision)

    def loss(w: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
        logits = (x @ w.T).astype(widened(jnp.float32, precision))
        found = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(found, labels[:, None], axis=-1).mean()

    def make() -> tuple[Any, ...]:
        def normal(number: int, *shape: int) -> jax.Array:
            return jax.random.normal(key(number), shape, jnp.bfloat16).astype(dtype)

        labels = jax.random.randint(key(2), (words,), 0, classes, jnp.int32)
        return normal(0, classes, width) * width**-0.5, normal(1, words, width), labels

    about = {"words": words, "width": width, "classes": classes}
    return Program(jax.value_and_grad(loss, argnums=(0, 1)), make).described(about)


def attend(head: int, draw: Draw, precision: Precision) -> Program:
    """jax#24934: attention as the formula has it."""
    sizes = ((8, 1024, 16), (8, 2048, 16), (8, 1024, 32))
    batch, length, heads = draw.pick("sizes", sizes, (2, 16, 2))
    dtype = widened(jnp.bfloat16, precision)

    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("bqhc,bkhc->bhqk", q, k) * head**-0.5
        return jnp.einsum("bhqk,bkhc->bqhc", jax.nn.softmax(scores), v)

    def make() -> tuple[Any, ...]:
        shape = (batch, length, heads, head)
        return tuple(jax.random.normal(key(i), shape, jnp.bfloat16).astype(dtype) for i in range(3))

    return Program(run, make).described({"shape": (batch, length, heads, head)})


MAKE: Mapping[str, Make] = {
    "jax-2491/multiply": multiply_in_scan,
    "jax-2491/map": map_in_scan,
    "jax-28097/rows": partial(accumulate, 0),
    "jax-28097/columns": partial(accumulate, 1),
    "jax-37511/softmax": softmax_of_segments,
    "xla-46225/uniform": partial(scatter_rows, False),
    "xla-46225/one-row": partial(scatter_rows, True),
    "xla-47203/out-0": partial(sum_columns, 0),
    "xla-47203/out-1": partial(sum_columns, 1),
    "jax-26227/f16": partial(sum_segments, jnp.float16, False),
    "jax-26227/f16-sorted": partial(sum_segments, jnp.float16, True),
    "jax-26227/f32-sorted": partial(sum_segments, jnp.float32, True),
    "jax-20186/bf16": sum_segments_of_batches,
    "xla-26371/bf16": partial(scatter_into_few, jnp.bfloat16),
    "xla-26371/f32": partial(scatter_into_few, jnp.float32),
    "jax-17844/vmap": scatter_in_batches,
    "jax-3206/bags": partial(sum_bags, False),
    "jax-3206/gradient": partial(sum_bags, True),
    "jax-35906/loss": loss_of_head,
    "jax-24934/64": partial(attend, 64),
    "jax-24934/128": partial(attend, 128),
    "jax-18867/gru": train_gru,
    "jax-7024/mlp": perceptron_in_while,
}
"""By issue and program."""

IN_ORDER = ("jax-17844/vmap",)
"""Whose sides all add in a fixed order."""

WAIT_FOR_LOOPS = ("jax-28097/rows", "jax-28097/columns")
"""A turn writes a row of an array, which no kernel of a loop does yet."""

NOT_COMPARED = ("jax-2491/map", "jax-7024/mlp", "jax-28097/rows", "jax-28097/columns")
"""Chaotic, with random numbers of another precision, or of integers."""


def make(name: str, draw: Draw, precision: Precision = F32) -> Program:
    program = MAKE[name](draw, precision)
    exact = None if name in NOT_COMPARED else lambda: make(name, draw, EXACT)
    return program.described(dict(program.about), exact)
