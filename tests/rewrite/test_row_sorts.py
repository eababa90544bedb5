"""sort_rows: sorts of rows that a block holds, in kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.check import check_graph
from astitch.graph.ir import Graph, SortAttrs, TopKAttrs
from astitch.graph.ops.windows import MOST_SORTED, find_running
from astitch.graph.reference import run_graph
from astitch.program.steps import KernelStep
from astitch.rewrite.row_sorts import MOST_LARGEST, sort_rows
from astitch.run.host_engine import HostEngine
from tests.rewrite.test_top_k import TYPES, draw, lower


def is_left(graph: Graph) -> bool:
    """Is there a sort that no kernel does?"""
    sorts = [n for n in graph if isinstance(n.attrs, SortAttrs | TopKAttrs)]
    return any(find_running(node) is None for node in sorts)


def same(found: Any, wanted: Any) -> bool:
    """In all bits, but for those that NaNs differ by."""
    x, y = np.asarray(found), np.asarray(wanted)
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    if x.dtype.kind in "iub":
        return bool(np.array_equal(x, y))
    x, y = x.astype(np.float64), y.astype(np.float64)
    return bool(
        np.array_equal(
            np.where(np.isnan(x), np.nan, x).view(np.int64),
            np.where(np.isnan(y), np.nan, y).view(np.int64),
        )
    )


def assert_has_the_bits_of_jax(fn: Callable[..., Any], *arguments: Any) -> None:
    """By the kernels for an H100, in the emulation."""
    program = compile_graph(lower(fn, *arguments), gpu=preset("h100")).program
    wanted = jax.tree.leaves(jax.jit(fn)(*arguments))
    for found, result in zip(HostEngine(program).run([*arguments]), wanted, strict=True):
        assert same(found, result)


def both_ways(axis: int) -> Callable[[Any], Any]:
    return lambda x: (
        jnp.sort(x, axis),
        jnp.argsort(x, axis, descending=True),
        jnp.sort(x, axis, descending=True),
        jnp.argsort(x, axis),
    )


def with_others(x: Any, y: Any) -> Any:
    return lax.sort((x, y, x < 1), dimension=-1, num_keys=1)


def top_k(k: int) -> Callable[[Any], Any]:
    return lambda x: lax.top_k(x, k)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(6))
def test_sorts_have_the_bits_of_jax(dtype: Any, seed: int) -> None:
    x = draw(dtype, (3, 5, 19), seed)
    for axis in (0, 1, 2):
        graph = lower(both_ways(axis), x)
        changed = check_graph(sort_rows(graph))
        assert not is_left(changed)
        wanted = jax.jit(both_ways(axis))(x)
        for found, result in zip(run_graph(changed, (x,)), wanted, strict=True):
            assert same(found, result)


@pytest.mark.parametrize(
    "shape", [(1, 2), (7, 5), (40, 8), (3, 33), (2, 100), (1, 300), (2, 1025), (1, MOST_SORTED)]
)
def test_kernels_sort_rows(shape: tuple[int, int]) -> None:
    x = draw(np.float32, shape, 4)
    compilation = compile_graph(lower(both_ways(1), x), gpu=preset("h100"))
    assert all(isinstance(step, KernelStep) for step in compilation.program.steps)
    wanted = jax.jit(both_ways(1))(x)
    for found, result in zip(HostEngine(compilation.program).run([x]), wanted, strict=True):
        assert same(found, result)


def test_truths_are_sorted() -> None:
    x = np.random.default_rng(0).random((6, 50)) < 0.5
    graph = sort_rows(lower(both_ways(1), x))
    assert not is_left(graph)
    for found, result in zip(run_graph(graph, (x,)), jax.jit(both_ways(1))(x), strict=True):
        assert same(found, result)
    assert_has_the_bits_of_jax(both_ways(1), x)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jax.vmap(jnp.sort)(x),
        lambda x: jnp.sort(x.reshape(2, 2, 9, 10), 2),
        lambda x: jax.grad(lambda y: (jnp.sort(y) * jnp.arange(90.0)).sum())(x),
        lambda x: jnp.take_along_axis(x, jnp.argsort(-x), 1),
        lambda x: lax.sort((x.astype(np.int8), x, x > 0), num_keys=1, is_stable=True),
    ],
    ids=["vmap", "in the middle", "gradient", "taken along", "three"],
)
def test_other_spellings(fn: Any) -> None:
    x = np.random.default_rng(1).permutation(360).astype(np.float32).reshape(4, 90) / 10
    assert not is_left(sort_rows(lower(fn, x)))
    assert_has_the_bits_of_jax(fn, x)


def test_what_goes_with_a_sort_is_read_at_its_positions() -> None:
    x, y = draw(np.int32, (6, 70), 1), draw(np.float32, (6, 70), 2)
    compilation = compile_graph(lower(with_others, x, y), gpu=preset("h100"))
    assert [type(step) for step in compilation.program.steps] == [KernelStep]
    wanted = jax.jit(with_others)(x, y)
    for found, result in zip(HostEngine(compilation.program).run([x, y]), wanted, strict=True):
        assert same(found, result)


@pytest.mark.parametrize("shape, k", [((3, 64), 9), ((2, 256), 128), ((2, 5000), 50), ((1, 9001), 128)])  # fmt: skip
def test_top_k_is_sorted_in_pieces_where_rows_are_long(shape: tuple[int, int], k: int) -> None:
    x = draw(np.float32, shape, 2)
    compilation = compile_graph(lower(top_k(k), x), gpu=preset("h100"))
    assert all(isinstance(step, KernelStep) for step in compilation.program.steps)
    wanted = jax.jit(top_k(k))(x)
    for found, result in zip(HostEngine(compilation.program).run([x]), wanted, strict=True):
        assert same(found, result)


def largest_by_names(x: Any) -> Any:
    """As XLA writes a top_k: numbers and their places, the largest first."""
    places = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    values, places = lax.sort((-x, places), num_keys=1)
    return -values[:, :40], places[:, :40]


@pytest.mark.parametrize(
    "fn",
    [
        largest_by_names,
        lambda x: jnp.sort(x)[:, -50:],
        lambda x: jnp.argsort(-x, -1)[:, :20],
        lambda x: jnp.sort(x, descending=True)[:, :128],
        lambda x: jnp.argsort(x, -1)[:, ::-1][:, :9],
        lambda x: (jnp.sort(x.T, 0)[:30].T, jnp.sort(x)[:, -12:]),
        lambda x: lax.sort((x, x.astype(np.int16), x > 0), num_keys=1)[1][:, -10:],
        lambda x: jnp.sort(x)[:1, :20] + 1,
        lambda x: (jnp.sort(x)[0, -40:], jnp.argsort(x.T, 0)[:20, 0]),
    ],
    ids=["names", "last", "places", "falling", "reversed", "both ends", "three", "rows", "a row"],
)
def test_ends_of_long_sorts_are_sorted_in_pieces(fn: Any) -> None:
    x = draw(np.float32, (2, 5000), 3).round(2)
    x[np.isnan(x)] = 1
    assert not is_left(sort_rows(lower(fn, x)))
    assert_has_the_bits_of_jax(fn, x)


def test_more_of_a_long_sort_stays_xla_s() -> None:
    long = np.zeros((2, 5000), np.float32)
    for fn in (
        lambda x: jnp.sort(x)[:, : MOST_LARGEST + 1],
        lambda x: jnp.sort(x)[:, 100:120],
        lambda x: (jnp.sort(x)[:, :20], jnp.sort(x).sum(-1)),
    ):
        assert is_left(sort_rows(lower(fn, long)))


def nucleus(logits: Any) -> Any:
    """Top-p sampling as it is often written."""
    falling = jnp.sort(logits, -1, descending=True)
    shares = jax.nn.softmax(falling)
    before = jnp.cumsum(shares, -1) - shares
    least = jnp.min(jnp.where(before < 0.9, falling, jnp.inf), -1, keepdims=True)
    return jnp.where(logits < least, -jnp.inf, logits)


def nucleus_by_positions(logits: Any) -> Any:
    shares = jax.nn.softmax(logits)
    order = jnp.argsort(-shares, -1)
    falling = jnp.take_along_axis(shares, order, -1)
    kept = jnp.cumsum(falling, -1) - falling < 0.9
    return jnp.where(kept, falling, 0), order


@pytest.mark.parametrize("fn", [nucleus, nucleus_by_positions])
def test_nucleus_sampling_has_kernels_only(fn: Any) -> None:
    x = np.random.default_rng(0).normal(size=(4, 300)).astype(np.float32)
    compilation = compile_graph(lower(fn, x), gpu=preset("h100"))
    assert all(isinstance(step, KernelStep) for step in compilation.program.steps)
    wanted = jax.tree.leaves(jax.jit(fn)(x))
    for found, result in zip(HostEngine(compilation.program).run([x]), wanted, strict=True):
        np.testing.assert_allclose(found, result, rtol=2e-6, atol=1e-7)


def test_long_rows_and_several_keys_stay() -> None:
    long = np.zeros((2, MOST_SORTED + 1), np.float32)
    assert is_left(sort_rows(lower(both_ways(1), long)))
    assert is_left(sort_rows(lower(top_k(MOST_LARGEST + 1), long)))
    graph = lower(lambda x, y: lax.sort((x, y), num_keys=2), long[:, :9], long[:, :9])
    assert is_left(sort_rows(graph))


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(2, 600),
    seed=st.integers(0, 99),
    down=st.booleans(),
)
def test_any_shape_is_sorted(rows: int, columns: int, seed: int, down: bool) -> None:
    x = draw(TYPES[seed % len(TYPES)], (columns, rows) if down else (rows, columns), seed)
    assert_has_the_bits_of_jax(both_ways(0 if down else 1), x)
