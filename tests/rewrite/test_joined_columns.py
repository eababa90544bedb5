"""separate_columns: what is alike in all rows is multiplied once, in whatever spelling, and gives the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.graph.check import check_graph
from astitch.graph.ir import DotAttrs, Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.joined_columns import separate_columns
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower

Function = Callable[..., Any]
ROWS, FEATURES, WIDTH = 8192, 64, 32


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def separate(fn: Function, *arguments: Any) -> tuple[Graph, Graph]:
    graph = simplify(check_graph(import_hlo(lower(fn, *arguments))))
    return graph, simplify(check_graph(separate_columns(graph), graph))


def depths(graph: Graph) -> list[int]:
    """Of products: how much each adds up."""
    found = []
    for node in graph:
        if isinstance(node.attrs, DotAttrs):
            shape = graph[node.operands[0]].shape
            found.append(int(np.prod([shape[d] for d in node.attrs.lhs_contracting])))
    return sorted(found)


def time_behind(x: Any, w: Any, t: Any) -> Any:
    return jnp.concatenate([x, jnp.broadcast_to(t, (ROWS, 1))], -1) @ w[: FEATURES + 1]


def time_in_front(x: Any, w: Any, t: Any) -> Any:
    return jax.vmap(lambda row: jnp.append(t, row) @ w[: FEATURES + 1])(x)


def a_number(x: Any, w: Any, t: Any) -> Any:
    return jax.vmap(lambda row: jnp.append(row, 0.3) @ w[: FEATURES + 1])(x) * t


def no_number(x: Any, w: Any, t: Any) -> Any:
    return jnp.pad(x, ((0, 0), (0, 1))) @ w[: FEATURES + 1] * t


def a_code(x: Any, w: Any, t: Any) -> Any:
    code = jnp.broadcast_to(w[0, :16] * t, (ROWS, 16))
    return jnp.concatenate([code, x], -1) @ w


def on_the_left(x: Any, w: Any, t: Any) -> Any:
    joined = jnp.concatenate([x.T, jnp.full((1, ROWS), t)])
    return jnp.einsum("fo,fr->or", w[: FEATURES + 1], joined)


SPELLINGS = [time_behind, time_in_front, a_number, no_number, a_code, on_the_left]


@pytest.mark.parametrize("fn", SPELLINGS)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_a_bias_in_the_place_of_columns(fn: Function, dtype: Any) -> None:
    arguments = normal(ROWS, FEATURES, dtype=dtype), normal(80, WIDTH, dtype=dtype), dtype(0.7)
    before, after = separate(fn, *arguments)
    assert depths(after) == [FEATURES]
    check_same(before, after, arguments, dtype)


def check_same(before: Graph, after: Graph, arguments: Any, dtype: Any) -> None:
    bound = 1e-5 if dtype is np.float32 else 2e-2
    for got, want in zip(run_graph(after, arguments), run_graph(before, arguments), strict=True):
        got, want = got.astype(np.float64), want.astype(np.float64)
        assert np.linalg.norm(got - want) <= bound * np.linalg.norm(want)


@pytest.mark.parametrize("fn", [time_behind, a_number, time_in_front])
def test_gradients_put_the_matrix_together(fn: Function) -> None:
    def loss(w: Any, x: Any, t: Any) -> Any:
        return jnp.square(fn(x, w, t)).mean()

    arguments = normal(80, WIDTH), normal(ROWS, FEATURES), np.float32(0.7)
    before, after = separate(jax.grad(loss), *arguments)
    assert depths(after) == [FEATURES, ROWS]
    check_same(before, after, arguments, np.float32)


def test_sums_of_16_bits_are_rounded_once() -> None:
    x, w = normal(ROWS, FEATURES, dtype=jnp.bfloat16), normal(80, WIDTH, dtype=jnp.bfloat16)
    _, after = separate(time_behind, x, w, jnp.bfloat16(0.7))
    (found,) = run_graph(after, [x, w, jnp.bfloat16(0.7)])
    joined = np.concatenate([x, np.full((ROWS, 1), 0.7, jnp.bfloat16)], 1).astype(np.float64)
    exact = joined @ w[: FEATURES + 1].astype(np.float64)
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2**-8, atol=1e-4)


def test_what_is_infinite_stays_so() -> None:
    x, w = normal(ROWS, FEATURES), normal(80, WIDTH)
    w[FEATURES] = np.inf
    _, after = separate(no_number, x, w, np.float32(1))
    (found,) = run_graph(after, [x, w, np.float32(1)])
    assert np.isnan(found).all()


STAY: dict[str, Function] = {
    "columns of each row": lambda x, w, t: (
        jnp.concatenate([x, x[:, :1] * t], -1) @ w[: FEATURES + 1]
    ),
    "it is a result": lambda x, w, t: (lambda y: (y, y @ w[: FEATURES + 1]))(
        jnp.pad(x, ((0, 0), (0, 1)), constant_values=1)
    ),
    "a sum reads it too": lambda x, w, t: (lambda y: (y.sum(0), y @ w[: FEATURES + 1]))(
        jnp.pad(x, ((0, 0), (0, 1)), constant_values=1)
    ),
    "up to a round number": lambda x, w, t: jnp.pad(x[:, :-2], ((0, 0), (0, 2))) @ w[:FEATURES],
    "a batch of matrices": lambda x, w, t: jnp.einsum(
        "brf,bfo->bro",
        jnp.pad(x.reshape(4, -1, FEATURES), ((0, 0), (0, 0), (0, 1))),
        jnp.stack([w[: FEATURES + 1]] * 4),
    ),
    "times itself": lambda x, w, t: (lambda y: y @ y.T)(
        jnp.pad(x, ((0, 0), (0, 1)), constant_values=1)
    ),
    "a small array": lambda x, w, t: (
        jnp.pad(x[:1024], ((0, 0), (0, 1)), constant_values=1) @ w[: FEATURES + 1]
    ),
    "a larger matrix": lambda x, w, t: (
        jnp.pad(x, ((0, 0), (0, 1)), constant_values=1) @ jnp.tile(w, (1, 512))[: FEATURES + 1]
    ),
    "few rows": lambda x, w, t: jnp.pad(x[:32], ((0, 0), (0, 1))) @ w[: FEATURES + 1],
}


@pytest.mark.parametrize("name", STAY)
def test_stays(name: str) -> None:
    arguments = normal(ROWS, FEATURES), normal(80, WIDTH), np.float32(0.7)
    graph = simplify(check_graph(import_hlo(lower(STAY[name], *arguments))))
    assert separate_columns(graph) is graph
