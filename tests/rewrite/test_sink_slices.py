"""sink_slices: products, and all in front of them, are computed where a slice reads them; nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from astitch.graph.check import check_graph
from astitch.graph.ir import DotAttrs, Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.simplify import simplify
from astitch.rewrite.sink_slices import _view, sink_slices
from tests.hlo_runner import lower

Function = Callable[..., Any]


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def sink(fn: Function, *arguments: Any) -> tuple[Graph, Graph]:
    graph = simplify(check_graph(import_hlo(lower(fn, *arguments))))
    return graph, simplify(check_graph(sink_slices(graph), graph))


def count_products(graph: Graph) -> list[int]:
    return [node.array.size for node in graph if isinstance(node.attrs, DotAttrs)]


def norm(x: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def block(x: Any, u: Any, d: Any) -> Any:
    return x + jax.nn.silu(norm(x) @ u) @ d


def last_word(x: Any, u: Any, d: Any, w: Any) -> Any:
    return (norm(block(x, u, d)) @ w)[:, -1]


def last_word_kept(x: Any, u: Any, d: Any, w: Any) -> Any:
    return jax.nn.softmax((norm(block(x, u, d)) @ w).astype(jnp.float32)[:, -1:], -1)


def first_word_by_vmap(x: Any, u: Any, d: Any, w: Any) -> Any:
    return jax.vmap(lambda x: (norm(block(x, u, d)) @ w)[0])(x)


def of_one_row(x: Any, u: Any, d: Any, w: Any) -> Any:
    flat = block(x.reshape(-1, x.shape[-1]), u, d) @ w
    return jax.lax.slice_in_dim(flat.reshape(*x.shape[:2], -1), 5, 6, axis=1)


def words_on_the_right(x: Any, u: Any, d: Any, w: Any) -> Any:
    return jnp.einsum("btd,dv->vbt", block(x, u, d), w)[:, :, 3]


SPELLINGS = [last_word, last_word_kept, first_word_by_vmap, of_one_row, words_on_the_right]
SHAPES = [(4, 8, 16), (16, 32), (32, 16), (16, 24)]


@pytest.mark.parametrize("fn", SPELLINGS)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_a_word_s_logits_are_computed_alone(fn: Function, dtype: Any) -> None:
    arguments = [normal(*shape, dtype=dtype) for shape in SHAPES]
    before, after = sink(fn, *arguments)
    assert sorted(count_products(before)) == [4 * 8 * 16, 4 * 8 * 24, 4 * 8 * 32]
    assert sorted(count_products(after)) == [4 * 16, 4 * 24, 4 * 32]
    exact = 2e-2 if dtype is not np.float32 else 1e-5
    for got, want in zip(run_graph(after, arguments), run_graph(before, arguments), strict=True):
        np.testing.assert_allclose(
            got.astype(np.float32), want.astype(np.float32), rtol=exact, atol=exact
        )


def attend(x: Any, w: Any, v: Any) -> Any:
    q, k, h = jnp.split(x @ w, 3, -1)
    scores = jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k), -1)
    return (jnp.einsum("bts,bsd->btd", scores, h) @ v)[:, -1]


def test_attention_of_the_last_word_has_one_row_of_scores() -> None:
    arguments = [normal(2, 8, 16), normal(16, 48), normal(16, 4)]
    before, after = sink(attend, *arguments)
    assert sorted(count_products(after)) == [2 * 4, 2 * 8, 2 * 16, 2 * 8 * 48]
    (got,), (want,) = run_graph(after, arguments), run_graph(before, arguments)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def convolve(x: Any, w: Any) -> Any:
    numbers = ("NWC", "WIO", "NWC")
    return jax.lax.conv_general_dilated(
        x, jnp.stack([w] * 3), (1,), "SAME", dimension_numbers=numbers
    )


STAY: dict[str, Function] = {
    "all is read": lambda x, w: x @ w,
    "most is read": lambda x, w: (x @ w)[:, 1:],
    "two parts are read": lambda x, w: ((x @ w)[:, 0], (x @ w)[:, 1]),
    "the whole is a result": lambda x, w: (lambda y: (y[:, 0], y))(x @ w),
    "the sum reads all": lambda x, w: (lambda y: y[:, 0] * y.sum(1))(x @ w),
    "no product": lambda x, w: (x * 2)[:, 0] + w[0],
    "the factor is cut": lambda x, w: x[:, 0] @ w,
    "half of a matrix in memory would be copied": lambda x, w: (x.sum(0) @ w)[:, :8],
    "half of a convolution would be copied": lambda x, w: (convolve(x, w) @ w)[:2],
    "half of the batches would be copied": lambda x, w: jnp.einsum("btd,bsd->bts", x, x * 2)[:2],
    "an odd number of columns": lambda x, w: (jnp.tanh(x) @ jnp.tile(w, (1, 16)))[:, :, :9],
}


@pytest.mark.parametrize("name", STAY)
def test_what_is_read_stays(name: str) -> None:
    graph = simplify(check_graph(import_hlo(lower(STAY[name], normal(4, 8, 16), normal(16, 16)))))
    assert sink_slices(graph) is graph


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_part_in_another_shape_has_the_same_elements(data: st.DataObject) -> None:
    """Where it is a part at all."""
    factors = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    size = int(np.prod(factors))

    def group() -> list[int]:
        shape, rest = [1], list(factors)
        while rest:
            if data.draw(st.booleans()):
                shape.append(1)
            shape[-1] *= rest.pop(0)
        return shape

    before, after = group(), group()
    part = []
    for extent in after:
        start = data.draw(st.integers(0, extent - 1))
        step = data.draw(st.integers(1, extent))
        part.append((start, data.draw(st.integers(1, (extent - 1 - start) // step + 1)), step))
    found = _view(after, before, tuple(part))

    def read(shape: list[int], runs: Any) -> Any:
        index = tuple(slice(a, a + (n - 1) * s + 1, s) for a, n, s in runs)
        return np.arange(size).reshape(shape)[index].reshape(-1)

    squeezed = [extent for extent in before if extent > 1]
    same = squeezed == [extent for extent in after if extent > 1]
    single = all(count == 1 for _, count, _ in part)
    whole = all(run == (0, extent, 1) for run, extent in zip(part, after, strict=True))
    if found is None:
        assert not (same or single or whole)
    else:
        np.testing.assert_array_equal(read(before, found), read(after, part))
