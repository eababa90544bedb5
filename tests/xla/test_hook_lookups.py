"""Loops that look numbers up in tables, through XLA's hook: one kernel, which reads a table where it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.ahead_of_time import needs_hook
from tests.hook_evaluation import stitch_through_hook

pytestmark = needs_hook

RNG = np.random.default_rng(0)
ROWS = 80
WORDS = RNG.integers(0, 2**32, 256, np.uint32)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def below(most: int, *shape: int, dtype: Any = np.int32) -> Any:
    return RNG.integers(0, most, shape).astype(dtype)


def check_words(data: Any) -> Any:
    """CRC-32: the table is a constant of the program's."""
    table = jnp.asarray(WORDS)

    def turn(word: Any, byte: Any) -> Any:
        return table[(word ^ byte) & 0xFF] ^ (word >> 8), None

    return ~lax.scan(turn, jnp.full(data.shape[1], 0xFFFFFFFF, jnp.uint32), data)[0]


def hash_words(table: Any, word: Any) -> Any:
    return lax.fori_loop(0, 40, lambda _, h: (h << 1) ^ table[h >> 24], word)


def trace(field: Any, place: Any) -> Any:
    """Particles in a field that stands still, from cell to cell."""

    def turn(_: Any, p: Any) -> Any:
        i = jnp.clip(jnp.floor(p).astype(jnp.int32), 0, 31)
        return jnp.clip(p + 0.3 * field[i[:, 0], i[:, 1]], 0, 31)

    return lax.fori_loop(0, 40, turn, place)


def trace_between(field: Any, place: Any) -> Any:
    """The same between the corners of a cell, by a method of two stages."""

    def sample(p: Any) -> Any:
        q = jnp.clip(p, 0, 30.99)
        i = q.astype(jnp.int32)
        w = q - i
        near = (1 - w[1]) * field[i[0], i[1]] + w[1] * field[i[0], i[1] + 1]
        far = (1 - w[1]) * field[i[0] + 1, i[1]] + w[1] * field[i[0] + 1, i[1] + 1]
        return (1 - w[0]) * near + w[0] * far

    def turn(p: Any, _: Any) -> Any:
        p = p + 0.2 * sample(p + 0.1 * sample(p))
        return p, p

    return lax.scan(turn, place, None, length=36)


def march(volume: Any, start: Any, direction: Any) -> Any:
    """A ray through a volume, until it is dark."""

    def turn(state: Any) -> Any:
        t, light, n = state
        p = jnp.clip(start + t * direction, 0, 15).astype(jnp.int32)
        return t + 0.4, light * jnp.exp(-0.4 * volume[p[0], p[1], p[2]]), n + 1

    return lax.while_loop(lambda s: (s[1] > 1e-2) & (s[2] < 40), turn, (0.0, 1.0, 0))


def draw(chances: Any, state: Any, uniform: Any) -> Any:
    """A Markov chain: a row of the table is compared with a random number."""
    sums = jnp.cumsum(chances, 1)

    def turn(state: Any, u: Any) -> Any:
        state = jnp.sum(sums[state] < u[:, None], 1).astype(jnp.int32)
        return state, state

    return lax.scan(turn, state, uniform)


def read_word(table: Any, accepts: Any, state: Any, letters: Any) -> Any:
    """An automaton, which reads two tables."""

    def turn(state: Any, letter: Any) -> Any:
        state = table[state, letter.astype(jnp.int32)]
        return state, accepts[state]

    return lax.scan(turn, state, letters)


def follow(table: Any, place: Any) -> Any:
    """Each row has a table of its own."""

    def turn(i: Any, _: Any) -> Any:
        i = jnp.take_along_axis(table, i[:, None], 1)[:, 0]
        return i, i

    return lax.scan(turn, place, None, length=36)


def out_of_bounds(table: Any, place: Any) -> Any:
    def turn(state: Any, _: Any) -> Any:
        i, x = state
        for mode in ("clip", "wrap", "fill"):
            x = x + jnp.nan_to_num(jnp.take(table, i, mode=mode))
        return ((i * 13 + 7) % 97 - 30, x), x

    return lax.scan(turn, (place, jnp.zeros(place.shape)), None, length=34)


def slide(signal: Any, place: Any) -> Any:
    """Windows of three."""

    def turn(p: Any, _: Any) -> Any:
        return (p * 5 + 3) % 90, lax.dynamic_slice(signal, (p,), (3,)) @ jnp.array([0.25, 0.5, 0.2])

    return lax.scan(turn, place, None, length=35)


def between(table: Any, i: Any, j: Any) -> Any:
    """Windows along the dimension in the middle."""

    def turn(state: Any, _: Any) -> Any:
        i, j, h = state
        return ((i + 2) % 10, (j * 3 + 1) % 11, h + table[i, :, j]), h.sum(-1)

    start = i, j, jnp.zeros((i.shape[0], 6))
    return lax.scan(turn, start, None, length=40)


def rotate(table: Any, place: Any) -> Any:
    def turn(state: Any, _: Any) -> Any:
        i, z = state
        z = z * 0.9 + table[i]
        return ((i * 3 + 1) % 40, z), z

    return lax.scan(turn, (place, jnp.zeros(place.shape, table.dtype)), None, length=36)


def permute(table: Any) -> Any:
    """What it looks up in is where it starts, too."""
    return lax.fori_loop(0, 40, lambda _, x: table[x], table)


def walk(following: Any, place: Any) -> Any:
    """Lists, each to its end."""

    def turn(state: Any) -> Any:
        return following[state[0]], state[1] + 1

    return lax.while_loop(lambda s: (s[0] != 0) & (s[1] < 200), turn, (place, 0))


def in_each_turn(table: Any, place: Any) -> Any:
    def turn(i: Any, _: Any) -> Any:
        i = lax.fori_loop(0, 3, lambda k, i: table[(i + k) % 50], i)
        return i, i

    return lax.scan(turn, place, None, length=12)


def slope(table: Any, x: Any) -> Any:
    """A table's line between its points, differentiated."""

    def run(x: Any) -> Any:
        def turn(x: Any, _: Any) -> Any:
            i = jnp.clip(jnp.floor(x).astype(jnp.int32), 0, 30)
            return x + 0.1 * ((1 - x + i) * table[i] + (x - i) * table[i + 1]), None

        return lax.scan(turn, x, None, length=34)[0] ** 2

    return jax.value_and_grad(run)(x)


def vmap_last(function: Callable[..., Any], shared: int) -> Callable[..., Any]:
    """Of all rows.  shared: how many arguments, from the first on, they have in common."""

    def mapped(*arguments: Any) -> Any:
        axes = [None if i < shared else 0 for i in range(len(arguments))]
        return jax.vmap(function, axes)(*arguments)

    return mapped


PLACES = below(50, ROWS)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a constant": (check_words, (below(256, 64, ROWS, dtype=np.uint32),)),
    "unsigned places": (hash_words, (WORDS, below(2**32, ROWS, dtype=np.uint32))),
    "cells": (trace, (normal(32, 32, 2), 31 * RNG.random((ROWS, 2), np.float32))),
    "corners": (
        vmap_last(trace_between, 1),
        (normal(32, 32, 2), 31 * RNG.random((ROWS, 2), np.float32)),
    ),
    "half precision": (trace, (normal(32, 32, 2, dtype=np.float16), abs(normal(ROWS, 2)))),
    "rays": (
        vmap_last(march, 1),
        (RNG.random((16, 16, 16), np.float32), 9 * abs(normal(ROWS, 3)), normal(ROWS, 3)),
    ),
    "rows of a table": (
        draw,
        (
            RNG.dirichlet(np.ones(12), 12).astype(np.float32),
            below(12, ROWS),
            RNG.random((40, ROWS), np.float32),
        ),
    ),
    "two tables": (
        read_word,
        (
            below(20, 20, 7),
            RNG.random(20) < 0.3,
            below(20, ROWS),
            below(7, 50, ROWS, dtype=np.uint8),
        ),
    ),
    "a table for each row": (follow, (below(50, ROWS, 50), PLACES)),
    "out of bounds": (out_of_bounds, (normal(50), PLACES - 20)),
    "windows": (vmap_last(slide, 1), (normal(100), below(99, ROWS))),
    "windows in the middle": (between, (normal(10, 6, 11), below(10, ROWS), below(11, ROWS))),
    "complex numbers": (rotate, (normal(40) + 1j * normal(40), below(40, ROWS))),
    "its own start": (permute, (below(500, 500),)),
    "rows that end": (
        vmap_last(walk, 1),
        (np.r_[0, below(40, 199)].astype(np.int32), below(200, ROWS)),
    ),
    "a loop in a turn": (in_each_turn, (below(50, 50), PLACES)),
    "gradients": (vmap_last(slope, 1), (normal(32), 30 * RNG.random(ROWS, np.float32))),
    "one row": (
        lambda t, i: lax.fori_loop(0, 64, lambda _, i: t[i], i),
        (below(64, 64), np.int32(5)),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loop_looks_numbers_up(name: str) -> None:
    function, arguments = PROGRAMS[name]
    hooked = stitch_through_hook(function, *arguments)
    assert hooked.stitching and not any(node.op == "while" for node in hooked.graph)
    plans = hooked.stitching.compilation.explain()
    assert "turns in one kernel" in plans or "each row asks for" in plans
    wanted = jax.tree.leaves(jax.jit(function)(*arguments))
    found = hooked.run(jax.tree.leaves(arguments), check=True)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got.reshape(want.shape), want, rtol=2e-5, atol=2e-5)


def test_a_short_search_is_written_out() -> None:
    """It stands in one kernel with what is around it."""
    table, x = np.sort(normal(1000)), normal(5000)

    def find(table: Any, x: Any) -> Any:
        i = jnp.searchsorted(table, jnp.sin(x), method="scan")
        return jnp.cos(i * 0.1) + x

    hooked = stitch_through_hook(find, table, x)
    assert hooked.kernels == 1 and not any(node.op == "while" for node in hooked.graph)
    np.testing.assert_allclose(hooked.run([table, x])[0], find(table, x), rtol=1e-5, atol=1e-5)


def test_a_table_that_a_turn_changes_is_no_table() -> None:
    x = below(50, 50)

    def exchange(x: Any) -> Any:
        return lax.fori_loop(0, 40, lambda k, x: x[(x + k) % 50], x)

    hooked = stitch_through_hook(exchange, x)
    np.testing.assert_array_equal(hooked.run([x])[0], jax.jit(exchange)(x))
