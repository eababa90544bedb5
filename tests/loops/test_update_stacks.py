"""Loops that update slices of stacks: one stack where they had two, updates of rows, and the same values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.graph.check import check_graph
from astitch.graph.ir import DynamicSliceAttrs, Graph, Node, ScatterAttrs
from astitch.graph.ops import OPS
from astitch.graph.ops.arrays import array_types
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.loops import update_stacks as module
from astitch.loops.update_stacks import update_stacks
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower

LAYERS, BATCH, WORDS, SIZE = 4, 2, 6, 3
CACHE = (LAYERS, BATCH, WORDS, SIZE)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", 0)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def rewrite(
    fn: Callable[..., Any], *arguments: Any, is_kernel: bool = False
) -> tuple[Graph, Graph]:
    graph = simplify(check_graph(import_hlo(lower(fn, *arguments))))
    return graph, check_graph(update_stacks(graph, lambda graph, node: is_kernel))


def loop_of(graph: Graph) -> Node:
    return next(node for node in graph if OPS[node.op].is_loop)


def updates_of(graph: Graph) -> list[tuple[int, ...]]:
    """The shapes of what a loop's body writes into other arrays."""
    body = loop_of(graph).regions[1]
    return [body[n.operands[1]].shape for n in body if OPS[n.op].writes_into and not n.regions]


def row(x: Any, place: Any) -> Any:
    return jnp.tanh(x[:, None]) + place


def attend(x: Any, cache: Any) -> Any:
    return x + jnp.tanh(cache).mean(1)


def updated(x: Any, cache: Any, i: Any, place: Any) -> Any:
    """Slice i with a new row."""
    old = lax.dynamic_index_in_dim(cache, i, keepdims=False)
    return lax.dynamic_update_slice(old, row(x, place), (0, place, 0))


def of_scan(x: Any, cache: Any, place: Any) -> Any:
    def turn(x: Any, slice_: Any) -> tuple[Any, Any]:
        new = lax.dynamic_update_slice(slice_, row(x, place), (0, place, 0))
        return attend(x, new), new

    return lax.scan(turn, x, cache)


def reversed_(x: Any, cache: Any, place: Any) -> Any:
    def turn(x: Any, slice_: Any) -> tuple[Any, Any]:
        new = lax.dynamic_update_slice(slice_, row(x, place), (0, place, 0))
        return attend(x, new), new

    return lax.scan(turn, x, cache, reverse=True)


def of_two(x: Any, cache: Any, place: Any) -> Any:
    """Keys and values."""

    def turn(x: Any, slices: Any) -> tuple[Any, Any]:
        one, other = slices
        one = lax.dynamic_update_slice(one, row(x, place), (0, place, 0))
        other = lax.dynamic_update_slice(other, row(2 * x, place), (0, place, 0))
        return attend(attend(x, one), other), (one, other)

    return lax.scan(turn, x, (cache * 3, cache * 2))


def in_pieces(x: Any, cache: Any, place: Any) -> Any:
    """A place for each sequence."""

    def turn(x: Any, slice_: Any) -> tuple[Any, Any]:
        for b in range(BATCH):
            slice_ = lax.dynamic_update_slice(slice_, row(x, place)[b : b + 1], (b, place - b, 0))
        return attend(x, slice_), slice_

    return lax.scan(turn, x, cache)


def dropped(x: Any, cache: Any, place: Any) -> Any:
    """A row beyond the end is not written: the old one is read in its place, as XLA's simplifier has it."""

    def turn(i: Any, state: Any) -> Any:
        x, cache = state
        i = jnp.clip(i, 0, LAYERS - 1)
        old = lax.dynamic_slice(cache, (i, 0, place, 0), (1, BATCH, 1, cache.shape[-1]))
        new = jnp.where(place < cache.shape[2], row(x, place), old[0])
        whole = lax.dynamic_index_in_dim(cache, i, keepdims=False)
        whole = lax.dynamic_update_slice(whole, new, (0, place, 0))
        return attend(x, whole), lax.dynamic_update_index_in_dim(cache, whole, i, 0)

    return lax.fori_loop(0, LAYERS, turn, (x, cache))


def of_scatter(x: Any, cache: Any, place: Any) -> Any:
    """Rows of each sequence at a place of its own, which may be beyond the end."""

    def turn(x: Any, slice_: Any) -> tuple[Any, Any]:
        places = place + jnp.arange(BATCH)
        new = slice_.at[jnp.arange(BATCH), places].set(row(x, place)[:, 0])
        new = new.at[:, place // 2].add(1.0)
        return attend(x, new), new

    return lax.scan(turn, x, cache)


def of_fori(x: Any, cache: Any, place: Any) -> Any:
    def turn(i: Any, state: Any) -> Any:
        x, cache = state
        new = updated(x, cache, i, place)
        return attend(x, new), lax.dynamic_update_index_in_dim(cache, new, i, 0)

    return lax.fori_loop(0, LAYERS, turn, (x, cache))


def some_layers(x: Any, cache: Any, place: Any) -> Any:
    def turn(i: Any, state: Any) -> Any:
        x, cache = state
        old = lax.dynamic_slice_in_dim(cache, i, 1)
        new = lax.dynamic_update_slice(old, row(x, place)[None], (0, 0, place, 0))
        return attend(x, new[0]), lax.dynamic_update_slice_in_dim(cache, new, i, 0)

    return lax.fori_loop(1, LAYERS - 1, turn, (x, cache))


def nested(x: Any, cache: Any, place: Any) -> Any:
    def step(carry: Any, _: Any) -> tuple[Any, Any]:
        x, cache = carry
        x, cache = of_scan(x, cache, place)
        return (x, cache), x.sum()

    return lax.scan(step, (x, cache), None, length=2)


ONE = {
    "scan": of_scan,
    "reverse": reversed_,
    "two": of_two,
    "pieces": in_pieces,
    "dropped": dropped,
    "fori": of_fori,
    "some layers": some_layers,
}
OTHERS = {"nested": nested, "scatter": of_scatter}


def read_as_written(x: Any, cache: Any, place: Any) -> Any:
    """The stack that is written is read whole: slices that are not written yet are zeros."""

    def turn(i: Any, state: Any) -> Any:
        x, cache, other = state
        new = updated(x, cache, i, place)
        other = lax.dynamic_update_index_in_dim(other, new, i, 0)
        return x + other.sum((0, 2)), cache, other

    return lax.fori_loop(0, LAYERS, turn, (x, cache, jnp.zeros_like(cache)))[::2]


def beyond_the_last(x: Any, cache: Any, place: Any) -> Any:
    """The last slice again: where scatters would drop their rows."""

    def turn(i: Any, state: Any) -> Any:
        x, cache = state
        old = lax.dynamic_slice_in_dim(cache, i, 1)
        new = old[0].at[jnp.arange(BATCH), place].set(row(x, place)[:, 0])
        return attend(x, new), lax.dynamic_update_slice_in_dim(cache, new[None], i, 0)

    return lax.fori_loop(2, LAYERS + 2, turn, (x, cache))


def of_places(dtype: Any, of_layers: Any) -> Callable[..., Any]:
    def fn(x: Any, cache: Any, place: Any) -> Any:
        place = place.astype(dtype) - np.asarray(15, dtype)  # without a sign, huge

        def turn(i: Any, state: Any) -> Any:
            x, cache = state
            i = i.astype(of_layers)
            zero = np.zeros((), dtype)
            old = lax.dynamic_slice_in_dim(cache, i, 1)
            new = lax.dynamic_update_slice(old, row(x, 1.0)[None], (zero, zero, place, zero))
            return attend(x, new[0]), lax.dynamic_update_slice_in_dim(cache, new, i, 0)

        return lax.fori_loop(0, LAYERS, turn, (x, cache))

    return fn


def of_few_bits(x: Any, cache: Any, place: Any) -> Any:
    """More layers than the type of the places has numbers."""
    layers = jnp.tile(cache[:, 0], (75, 1, 1))
    numbers = lax.ScatterDimensionNumbers((0,), (0,), (0,))

    def turn(i: Any, state: Any) -> Any:
        x, layers = state
        old = lax.dynamic_index_in_dim(layers, i, keepdims=False)
        new = lax.scatter(old, place.astype(np.uint8)[None], jnp.tanh(x[0]), numbers)
        return x + new.sum() / 1e3, lax.dynamic_update_index_in_dim(layers, new, i, 0)

    return lax.fori_loop(0, layers.shape[0], turn, (x, layers))


@pytest.mark.parametrize(
    "fn",
    [
        read_as_written,
        beyond_the_last,
        of_places(np.uint32, np.int32),
        of_places(np.int32, np.uint32),
        of_places(np.int8, np.int16),
        of_places(np.int16, np.int8),
        of_few_bits,
    ],
    ids=["read", "beyond", "u32 in s32", "s32 in u32", "s8 in s16", "s16 in s8", "few bits"],
)
def test_what_would_be_other_places(fn: Callable[..., Any]) -> None:
    arguments = (normal(BATCH, SIZE), normal(*CACHE), np.int32(4))
    graph, changed = rewrite(fn, *arguments)
    for want, got in zip(*(run_graph(g, list(arguments)) for g in (graph, changed)), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("place", [0, 4, WORDS + 3])  # beyond the end: bounded
@pytest.mark.parametrize("name", [*ONE, *OTHERS])
def test_values_are_the_same(name: str, place: int) -> None:
    arguments = (normal(BATCH, SIZE), normal(*CACHE), np.int32(place))
    graph, changed = rewrite({**ONE, **OTHERS}[name], *arguments)
    assert changed is not graph
    for want, got in zip(*(run_graph(g, list(arguments)) for g in (graph, changed)), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ONE)
def test_rows_are_written_and_stacks_are_carried_once(name: str) -> None:
    arguments = (normal(BATCH, SIZE), normal(*CACHE), np.int32(4))
    graph, changed = rewrite(ONE[name], *arguments)
    rows = {(1, 1 if name == "pieces" else BATCH, 1, SIZE)}
    assert {*updates_of(changed)} == rows != {*updates_of(graph)}
    stacks = [
        sum(array.shape == CACHE for array in array_types(loop_of(g))) for g in (graph, changed)
    ]
    by_itself = name in ("dropped", "fori", "some layers")
    assert stacks[1] == (stacks[0] if by_itself else stacks[0] // 2)


def test_scatters_are_into_the_stack() -> None:
    arguments = (normal(BATCH, SIZE), normal(*CACHE), np.int32(4))
    _, changed = rewrite(of_scatter, *arguments)
    body = loop_of(changed).regions[1]
    scatters = [node for node in body if isinstance(node.attrs, ScatterAttrs)]
    assert [node.shape for node in scatters] == [CACHE, CACHE] and not updates_of(changed)


def test_an_index_that_counts_is_within_its_array() -> None:
    """cache[i], for which NumPy counts negative numbers from the end."""

    def fn(x: Any, cache: Any) -> Any:
        return lax.fori_loop(0, LAYERS, lambda i, x: x + cache[i].sum(1), x)

    _, changed = rewrite(fn, normal(BATCH, SIZE), normal(*CACHE))
    body = loop_of(changed).regions[1]
    (slice_,) = (node for node in body if isinstance(node.attrs, DynamicSliceAttrs))
    assert slice_.operands[1] in body.parameters


def reads_old(x: Any, cache: Any, place: Any) -> Any:
    """The slice before its update too."""

    def turn(x: Any, slice_: Any) -> tuple[Any, Any]:
        new = lax.dynamic_update_slice(slice_, row(x, place), (0, place, 0))
        return attend(x, new) + slice_.sum(1), new

    return lax.scan(turn, x, cache)


def computes_from_old(x: Any, cache: Any, place: Any) -> Any:
    def turn(x: Any, slice_: Any) -> tuple[Any, Any]:
        new = lax.dynamic_update_slice(slice_, slice_[:, :1] * 2, (0, place, 0))
        return attend(x, new), new

    return lax.scan(turn, x, cache)


def read_later(x: Any, cache: Any, place: Any) -> Any:
    x, new = of_scan(x, cache, place)
    return x + cache.sum((0, 2)), new


def replaced(x: Any, cache: Any, place: Any) -> Any:
    """All of each slice is new."""

    def turn(x: Any, slice_: Any) -> tuple[Any, Any]:
        new = jnp.tanh(slice_) + place
        return attend(x, new), new

    return lax.scan(turn, x, cache)


def of_another_layer(x: Any, cache: Any, place: Any) -> Any:
    def turn(i: Any, state: Any) -> Any:
        x, cache = state
        new = updated(x, cache, i, place)
        return attend(x, new), lax.dynamic_update_index_in_dim(cache, new, LAYERS - 1 - i, 0)

    return lax.fori_loop(0, LAYERS, turn, (x, cache))


def not_all(x: Any, cache: Any, place: Any) -> Any:
    """The stack that is written begins with numbers that stay in its last slice."""

    def turn(i: Any, state: Any) -> Any:
        x, other = state
        new = updated(x, cache, i, place)
        return attend(x, new), lax.dynamic_update_index_in_dim(other, new, i, 0)

    return lax.fori_loop(0, LAYERS - 1, turn, (x, jnp.ones_like(cache)))


LEFT = {
    "reads old": reads_old,
    "computes from old": computes_from_old,
    "read later": read_later,
    "replaced": replaced,
    "another layer": of_another_layer,
    "not all": not_all,
}


@pytest.mark.parametrize("name", LEFT)
def test_what_stays(name: str) -> None:
    arguments = (normal(BATCH, SIZE), normal(*CACHE), np.int32(4))
    graph, changed = rewrite(LEFT[name], *arguments)
    assert updates_of(changed) == updates_of(graph)
    assert loop_of(changed).type == loop_of(graph).type


def test_a_loop_that_is_one_kernel_stays() -> None:
    arguments = (normal(BATCH, SIZE), normal(*CACHE), np.int32(4))
    graph, changed = rewrite(of_scan, *arguments, is_kernel=True)
    assert changed is graph


def test_small_slices_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", 4 * BATCH * WORDS * SIZE + 1)
    arguments = (normal(BATCH, SIZE), normal(*CACHE), np.int32(4))
    graph, changed = rewrite(of_scan, *arguments)
    assert changed is graph


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*ONE, *OTHERS, *LEFT])
def test_values_on_a_gpu(name: str) -> None:
    import astitch

    fn = {**ONE, **LEFT, **OTHERS}[name]
    shape = (LAYERS, BATCH, 512, 64)
    for place in (0, 300, 600):
        arguments = (normal(BATCH, 64), normal(*shape), np.int32(place))
        want = jax.jit(fn)(*arguments)
        with astitch.enabled():
            for donated in ((), (1,)):
                given = tuple(jnp.array(a) for a in arguments)
                jitted = jax.jit(lambda *a: fn(*a), donate_argnums=donated)
                got = jitted(*given)
                for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
                    np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
