"""take_largest: the few largest of a row by maxima in place of a sort."""

from __future__ import annotations

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
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.expand import expand
from astitch.rewrite.simplify import simplify
from astitch.rewrite.top_k import MOST_ROUNDS, take_largest
from astitch.run.host_engine import HostEngine

TYPES = (np.float32, np.float16, jnp.bfloat16, np.int32, np.uint32, np.int8, np.uint16)


def lower(fn: Any, *arguments: np.ndarray) -> Graph:
    module = jax.jit(fn, keep_unused=True).lower(*arguments).compiler_ir("hlo")
    return expand(simplify(check_graph(import_hlo(module.as_serialized_hlo_module_proto()))))


def has_sort(graph: Graph) -> bool:
    return any(isinstance(node.attrs, SortAttrs | TopKAttrs) for node in graph)


def draw(dtype: Any, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """With elements that are equal, and with all that a float can be."""
    random = np.random.default_rng(seed)
    if jnp.issubdtype(dtype, jnp.floating):
        x = random.normal(size=shape).round(1).astype(dtype)
        special = [np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0]
        x[random.random(shape) < 0.1] = np.asarray(special[seed % 6], np.float64).astype(dtype)
        return x
    info = np.iinfo(dtype)
    x = random.integers(0, 6, shape).astype(dtype)
    x[random.random(shape) < 0.2] = random.choice([info.min, info.max])
    return x


def top_k(k: int) -> Any:
    return lambda x: lax.top_k(x, k)


def first_of_sort(k: int, axis: int) -> Any:
    def fn(x: Any) -> Any:
        first = lax.slice_in_dim(jnp.argsort(x, axis), 0, k, axis=axis)
        return lax.slice_in_dim(jnp.sort(x, axis), 0, 1, axis=axis), first

    return fn


def last_of_sort(k: int, axis: int) -> Any:
    """Ends of ascending and descending sorts, in their order and backwards."""

    def fn(x: Any) -> Any:
        n = x.shape[axis]
        rising, falling = jnp.sort(x, axis), jnp.argsort(x, axis, descending=True)
        return (
            lax.slice_in_dim(rising, n - k, n, axis=axis),
            lax.slice_in_dim(falling, 0, k, axis=axis),
            lax.slice_in_dim(jnp.flip(jnp.argsort(x, axis), axis), 0, 1, axis=axis),
            lax.slice_in_dim(falling, n - 1, n, axis=axis),
        )

    return fn


def first_of_pairs(k: int) -> Any:
    """Sorted by the second of three operands; the others go with it."""

    def fn(x: Any) -> Any:
        found = lax.sort((x.astype(jnp.float32) * 2, x, x == x), dimension=-1, num_keys=1)
        return [lax.slice_in_dim(f, 0, k, axis=-1) for f in found]

    return fn


def same_bits(found: Any, wanted: Any) -> bool:
    found, wanted = np.asarray(found), np.asarray(wanted)
    return found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(6))
def test_the_same_bits(dtype: Any, seed: int) -> None:
    x = draw(dtype, (11, 40), seed)
    for fn in (
        top_k(3),
        first_of_sort(2, 1),
        first_of_sort(3, 0),
        last_of_sort(2, 1),
        first_of_pairs(2),
    ):
        graph = lower(fn, x)
        taken = check_graph(take_largest(graph))
        assert not has_sort(taken)
        for found, wanted in zip(run_graph(taken, [x]), run_graph(graph, [x]), strict=True):
            assert same_bits(found, wanted)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_random_rows(data: Any) -> None:
    dtype = data.draw(st.sampled_from(TYPES))
    columns = data.draw(st.integers(MOST_ROUNDS + 1, 70))
    shape = (*data.draw(st.sampled_from([(), (3,), (2, 2)])), columns)
    k, seed = data.draw(st.integers(1, MOST_ROUNDS)), data.draw(st.integers(0, 999))
    x = draw(dtype, shape, seed)
    fn = data.draw(st.sampled_from([top_k(k), first_of_sort(k, len(shape) - 1), first_of_pairs(k)]))
    graph = lower(fn, x)
    taken = take_largest(graph)
    assert not has_sort(taken)
    for found, wanted in zip(run_graph(taken, [x]), run_graph(graph, [x]), strict=True):
        assert same_bits(found, wanted)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_a_router_is_one_kernel(dtype: Any) -> None:
    """Shares, the two largest, their sum to one, and how many words each expert gets."""

    def route(x: Any) -> Any:
        shares, experts = lax.top_k(jax.nn.softmax(x, -1), 2)
        shares = shares / shares.sum(-1, keepdims=True)
        chosen = jax.nn.one_hot(experts, x.shape[-1], dtype=jnp.float32)
        return shares, experts, chosen.sum((0, 1))

    x = np.random.default_rng(0).normal(size=(96, 16)).astype(dtype)
    compilation = compile_graph(lower(route, x), preset("h100"))
    assert len(compilation.plans) == 1
    assert not compilation.program.outside
    shares, experts, counts = HostEngine(compilation.program).run([x])
    wanted = jax.jit(route)(x)
    assert (np.asarray(experts) == wanted[1]).all()
    assert (np.asarray(counts) == wanted[2]).all()
    np.testing.assert_allclose(
        np.asarray(shares, np.float32), np.asarray(wanted[0], np.float32), rtol=1e-2
    )


def test_what_stays() -> None:
    x = np.zeros((4, 40), np.float32)
    assert has_sort(take_largest(lower(top_k(MOST_ROUNDS + 1), x)))
    assert has_sort(take_largest(lower(lambda x: jnp.sort(x, -1), x)))
    assert has_sort(take_largest(lower(lambda x: jnp.sort(x, -1)[:, 1:3], x)))
    assert has_sort(take_largest(lower(lambda x: jnp.sort(x, -1)[:, ::2], x)))

    def by_two(x: Any) -> Any:
        return lax.sort((x, x + 1), dimension=-1, num_keys=2)[0][:, :2]

    assert has_sort(take_largest(lower(by_two, x)))
