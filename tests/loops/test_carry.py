"""Loops that carry arrays as the products of their bodies read them: which arrays, and the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from astitch.graph.check import check_graph
from astitch.graph.ir import DotAttrs, Graph, TransposeAttrs
from astitch.graph.ops import OPS
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.loops.carry import carry_as_read
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower

BATCH, WORDS, HEADS, SIZE, QUERIES, TURNS = 2, 6, 3, 4, 5, 5
CACHE = (BATCH, WORDS, HEADS, SIZE)
_RANDOM = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (_RANDOM.standard_normal(shape) / 2).astype(dtype)


@pytest.fixture(autouse=True)
def small_arrays_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.loops.carry.LEAST_BYTES", 0)


def loop(turn: Callable[..., Any], turns: int = TURNS) -> Callable[..., Any]:
    """turn: (cache, x, place) -> the next cache and x [batch, heads, queries, size]."""

    def fn(cache: Any, x: Any, place: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            cache, x, place = state
            cache, x = turn(cache, x, place)
            return (cache, x, place + 1), x.sum((2, 3))

        return lax.scan(step, (cache, x, place), None, length=turns)

    return fn


def put(cache: Any, x: Any, place: Any, axis: int = 1) -> Any:
    new = jnp.moveaxis(x[:, :, :1], 1, 2) if axis == 1 else x[:, :, :1]
    return lax.dynamic_update_slice_in_dim(cache, jnp.tanh(new), place, axis)


def keys(cache: Any, x: Any, place: Any) -> Any:
    cache = put(cache, x, place)
    scores = jnp.einsum("bgrd,blgd->bgrl", x, cache)
    return cache, jnp.tanh(x + scores.sum(-1, keepdims=True))


def values(cache: Any, x: Any, place: Any) -> Any:
    """Before the update, through a transpose of its own."""
    weights = jnp.ones((BATCH, HEADS, QUERIES, WORDS), x.dtype) * x[..., :1]
    mixed = jnp.einsum("bgrl,bgdl->bgrd", weights, cache.transpose(0, 2, 3, 1))
    return put(cache, x, place), jnp.tanh(x + mixed)


def read_twice(cache: Any, x: Any, place: Any) -> Any:
    """Two updates one behind the other, and two products of one order; the second has the cache on its left."""
    cache = put(put(cache, x, place), x * 2, place - 1)
    scores = jnp.einsum("blgd,bgrd->bglr", cache, x)
    return cache, jnp.einsum("bglr,blgd->bgrd", jnp.tanh(scores), cache)


def three_words(cache: Any, x: Any, place: Any) -> Any:
    """A longer slice, at two indices."""
    new = jnp.tanh(x[:1, :, :3]).transpose(0, 2, 1, 3)
    cache = lax.dynamic_update_slice(cache, new, (place % 2, place, 0, 0))
    return cache, jnp.tanh(x + jnp.einsum("bgrd,blgd->bgrl", x, cache).max(-1, keepdims=True))


CARRIED = [keys, values, read_twice, three_words]


def first_heads(cache: Any, x: Any, place: Any) -> Any:
    """As a product reads it already."""
    cache = put(cache, x, place, 2)
    return cache, jnp.tanh(x + jnp.einsum("bgrd,bgld->bgrl", x, cache).sum(-1, keepdims=True))


def also_summed(cache: Any, x: Any, place: Any) -> Any:
    cache, x = keys(cache, x, place)
    return cache, x + cache.sum()


def in_two_orders(cache: Any, x: Any, place: Any) -> Any:
    cache, x = keys(cache, x, place)
    by_word = jnp.einsum("blgd,blhd->blgh", cache, cache * 0 + 1)
    return cache, x + by_word.sum()


def never_updated(cache: Any, x: Any, place: Any) -> Any:
    return cache, keys(cache, x, place)[1]


def written_anew(cache: Any, x: Any, place: Any) -> Any:
    cache, x = keys(cache, x, place)
    return jnp.tanh(cache), x


def one_sequence(cache: Any, x: Any, place: Any) -> Any:
    """Rows, heads, columns: a library steps over the other heads."""
    new = jnp.tanh(x[0, :, :1]).transpose(1, 0, 2)
    cache = lax.dynamic_update_slice_in_dim(cache, new, place, 0)
    scores = jnp.einsum("bgrd,lgd->bgrl", x, cache)
    return cache, jnp.tanh(x + scores.sum(-1, keepdims=True))


def of_one_batch(cache: Any, x: Any, place: Any) -> Any:
    cache = put(cache, x[:1], place)
    scores = jnp.einsum("grd,blgd->bgrl", x[0], cache)
    return cache, jnp.tanh(x + scores.sum(-1, keepdims=True))


LEFT = [
    one_sequence,
    of_one_batch,
    first_heads,
    also_summed,
    in_two_orders,
    never_updated,
    written_anew,
]


CACHES = {
    first_heads: (BATCH, HEADS, WORDS, SIZE),
    one_sequence: CACHE[1:],
    of_one_batch: (1, *CACHE[1:]),
}


def carry(turn: Callable[..., Any], turns: int = TURNS, **given: Any) -> tuple[Graph, Graph]:
    """(the simplified graph, what becomes of it)."""
    cache: tuple[int, ...] = CACHES.get(turn, CACHE)
    dtype = given.get("dtype", np.float32)
    arguments = normal(*cache, dtype=dtype), normal(BATCH, HEADS, QUERIES, SIZE, dtype=dtype)
    graph = simplify(import_hlo(lower(loop(turn, turns), *arguments, np.int32(1))))
    carried = carry_as_read(graph, given.get("is_kernel", lambda graph, node: False))
    return graph, carried


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("turn", CARRIED)
def test_a_cache_lies_as_products_read_it(turn: Callable[..., Any], dtype: Any) -> None:
    graph, carried = carry(turn, dtype=dtype)
    assert carried is not graph
    made = simplify(check_graph(carried))
    (node,) = [node for node in made if OPS[node.op].is_loop]
    turned = (BATCH, HEADS, WORDS, SIZE)
    body = node.regions[1]
    assert turned in [body[name].shape for name in body.parameters]
    assert CACHE not in [body[name].shape for name in body.parameters]
    for inner in body:
        if isinstance(inner.attrs, DotAttrs):
            sides = inner.attrs.lhs_batch, inner.attrs.rhs_batch
            read = zip(inner.operands, sides, strict=True)
            assert all(batch == (0, 1) for name, batch in read if body[name].shape == turned)
        if isinstance(inner.attrs, TransposeAttrs) and inner.array.size == np.prod(CACHE):
            assert inner.attrs.permutation[:2] == (0, 1)  # within a matrix, which products read so
    arguments = [normal(*graph[name].shape, dtype=dtype) for name in graph.parameters[:2]]
    arguments.append(np.asarray(1, np.int32))
    for got, wanted in zip(run_graph(made, arguments), run_graph(graph, arguments), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("turn", LEFT)
def test_other_arrays_stay(turn: Callable[..., Any]) -> None:
    graph, carried = carry(turn)
    assert carried is graph


def test_a_few_turns_are_not_worth_it() -> None:
    graph, carried = carry(keys, 3)
    assert carried is graph


def test_a_loop_that_is_one_kernel_stays() -> None:
    graph, carried = carry(keys, is_kernel=lambda graph, node: True)
    assert carried is graph


def test_small_arrays_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astitch.loops.carry.LEAST_BYTES", 4 * np.prod(CACHE) + 1)
    graph, carried = carry(keys)
    assert carried is graph


def until(more: Callable[..., Any]) -> tuple[Callable[..., Any], Graph, list[np.ndarray]]:
    """A loop that ends when its values say so, its graph, and arguments.  more: of its state."""

    def fn(cache: Any, x: Any, place: Any) -> Any:
        def step(state: Any) -> Any:
            cache, x, place = state
            return *keys(cache, x, place), place + 1

        return lax.while_loop(more, step, (cache, x, place))

    arguments = [normal(*CACHE), normal(BATCH, HEADS, QUERIES, SIZE), np.asarray(0, np.int32)]
    return fn, simplify(import_hlo(lower(fn, *arguments))), arguments


def test_a_loop_that_ends_when_its_values_say_so() -> None:
    fn, graph, arguments = until(lambda state: (state[2] < 5) & (state[1].sum() < 1e9))
    carried = carry_as_read(graph, lambda graph, node: False)
    assert carried is not graph
    for got, wanted in zip(run_graph(carried, arguments), jax.jit(fn)(*arguments), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_the_condition_reads_a_cache() -> None:
    _, graph, _ = until(lambda state: (state[2] < 5) & (state[0][0, 0, 0, 0] < 1e9))
    assert carry_as_read(graph, lambda graph, node: False) is graph


def test_a_product_of_a_state_with_itself_keeps_its_order() -> None:
    """One side could be read in another order, the other could not: its free dimensions would change places."""

    def fn(k: Any, x: Any) -> Any:
        def turn(place: Any, state: Any) -> Any:
            k, x = state
            k = lax.dynamic_update_slice(k, x, (place, 0, 0, 0, 0))
            y = lax.dot_general(k, k, (((4,), (3,)), ((1,), (2,))))
            return k, y.reshape(-1)[: x.size].reshape(x.shape) * 0.01

        return lax.fori_loop(0, 5, turn, (k, x))

    arguments = normal(3, 3, 3, 3, 3), normal(1, 3, 3, 3, 3)
    graph = simplify(import_hlo(lower(fn, *arguments)))
    carried = carry_as_read(graph, lambda *_: False)
    for got, want in zip(run_graph(carried, arguments), run_graph(graph, arguments), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
