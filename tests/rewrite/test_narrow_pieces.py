"""Functions of narrow pieces side by side: computed behind the concatenation, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from astitch.graph.check import check_graph
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.narrow_pieces import join_narrow_pieces
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower


def rewrite(fn: Callable[..., Any], *arguments: Any) -> tuple[Graph, Graph]:
    graph = simplify(check_graph(import_hlo(lower(fn, *arguments))))
    return graph, check_graph(join_narrow_pieces(graph))


def count(graph: Graph, *ops: str) -> int:
    return sum(node.op in ops for node in graph)


def encode(x: Any) -> Any:
    parts = [x]
    for power in range(6):
        parts += [jnp.sin(2.0**power * x), jnp.cos(2.0**power * x)]
    return jnp.concatenate(parts, -1)


def beside_features(x: Any) -> Any:
    return jnp.concatenate([jnp.tile(x, (1, 20)), encode(x), jnp.tile(x, (1, 10))], -1)


def of_images(x: Any) -> Any:
    return encode(x.reshape(4, 16, 3)) * 2


def of_one_function(x: Any) -> Any:
    return jnp.concatenate([jnp.exp(x), jnp.exp(2 * x), jnp.exp(3 * x), x], -1)


def stacked(x: Any) -> Any:
    return jnp.stack([jnp.tanh(x), jnp.tanh(x + 1), jnp.tanh(x + 2), jnp.tanh(x + 3)], -1)


def of_columns(x: Any) -> Any:
    a, b, c = (x[:, i : i + 1] for i in range(3))
    return jnp.concatenate([jnp.log1p(abs(a)), jnp.log1p(abs(b)), jnp.log1p(abs(c)), a * b], -1)


SPELLINGS = [encode, beside_features, of_images, of_one_function, stacked, of_columns]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("fn", SPELLINGS)
def test_values_are_the_same_to_the_bit(fn: Callable[..., Any], dtype: Any) -> None:
    x = np.random.default_rng(0).standard_normal((64, 3)).astype(dtype)
    with jax.enable_x64(dtype is np.float64):
        graph, changed = rewrite(fn, x)
    assert changed is not graph
    functions = ("sine", "cosine", "exponential", "tanh", "log-plus-one")
    assert count(changed, *functions) <= 2 < count(graph, *functions)
    for one, other in zip(run_graph(graph, [x]), run_graph(changed, [x]), strict=True):
        np.testing.assert_array_equal(one, other)


def halves(x: Any) -> Any:
    return jnp.concatenate([jnp.sin(x), jnp.cos(x)], -1)


def rows(x: Any) -> Any:
    return jnp.concatenate([jnp.sin(x), jnp.cos(x), jnp.sin(2 * x), jnp.cos(2 * x), x], 0)


def wide(x: Any) -> Any:
    return encode(jnp.tile(x, (1, 16)))


def cheap(x: Any) -> Any:
    return jnp.concatenate([x + 1, x * 2, -x, x - 3, abs(x)], -1)


@pytest.mark.parametrize("fn", [halves, rows, wide, cheap])
def test_what_gains_nothing_stays(fn: Callable[..., Any]) -> None:
    graph, changed = rewrite(fn, np.ones((64, 3), np.float32))
    assert changed is graph
