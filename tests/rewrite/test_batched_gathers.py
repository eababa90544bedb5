"""batch_gathers: gathers that name their row by a number that counts are batched along the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.graph.check import check_graph
from astitch.graph.ir import GatherAttrs, Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.batched_gathers import batch_gathers
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower

RNG = np.random.default_rng(0)
MATRIX = RNG.normal(size=(6, 5)).astype(np.float32)
CUBE = RNG.normal(size=(6, 5, 3)).astype(np.float32)
ONE = np.array([0, 4, 2, 1, 4, 3], np.int32)
FOUR = RNG.integers(0, 3, (6, 4)).astype(np.int32)

Case = tuple[Callable[..., Any], tuple[np.ndarray, ...]]

BATCHED: dict[str, Case] = {
    "an element of a row": (lambda x, i: x[jnp.arange(6), i], (MATRIX, ONE)),
    "numbers of another type": (lambda x, i: x[jnp.arange(6, dtype=jnp.int16), i], (MATRIX, ONE)),
    "windows": (lambda y, i: y[jnp.arange(6), i], (CUBE, ONE)),
    "two columns": (lambda y, i, j: y[jnp.arange(6), i, j], (CUBE, ONE, ONE % 3)),
    "rows of places": (lambda x, j: x[jnp.arange(6)[:, None], j], (MATRIX, FOUR)),
    "the second dimension": (lambda x, i: x.T[i, jnp.arange(6)], (MATRIX, ONE)),
}


def merged(x: Any, j: Any) -> Any:
    """All places along one dimension, as XLA's simplifier has them."""
    places = jnp.stack([jnp.broadcast_to(jnp.arange(6)[:, None], j.shape), j], -1).reshape(-1, 2)
    return lax.gather(x, places, lax.GatherDimensionNumbers((), (0, 1), (0, 1)), (1, 1))


def merged_windows(y: Any, j: Any) -> Any:
    """The same of windows, which lie in front of the places."""
    places = jnp.stack([jnp.broadcast_to(jnp.arange(6)[:, None], j.shape), j], -1).reshape(-1, 2)
    return lax.gather(y, places, lax.GatherDimensionNumbers((0,), (0, 1), (0, 1)), (1, 1, 3))


BATCHED["places in one dimension"] = (merged, (MATRIX, FOUR))
BATCHED["windows before places in one dimension"] = (merged_windows, (CUBE, FOUR))

LEFT: dict[str, Case] = {
    "two of them given": (lambda x, i: x[i, i], (MATRIX, ONE)),
    "some rows": (lambda x, i: x[jnp.arange(4), i], (MATRIX, ONE[:4])),
    "rows backwards": (lambda x, i: x[jnp.arange(6)[::-1], i], (MATRIX, ONE)),
    "only rows": (lambda x, i: x[jnp.arange(6) + 0 * i[0]], (MATRIX, ONE)),
}


def read(case: Case) -> Graph:
    fn, arguments = case
    return simplify(import_hlo(lower(fn, *arguments, keep_unused=True)))


def batches_of(graph: Graph) -> list[tuple[int, ...]]:
    return [n.attrs.operand_batching_dims for n in graph if isinstance(n.attrs, GatherAttrs)]


@pytest.mark.parametrize("name", BATCHED)
def test_a_row_that_is_counted_is_a_batch(name: str) -> None:
    graph, arguments = read(BATCHED[name]), [*BATCHED[name][1]]
    changed = check_graph(batch_gathers(graph))
    assert batches_of(graph) == [()] and batches_of(changed) in ([(0,)], [(1,)])
    for a, b in zip(run_graph(changed, arguments), run_graph(graph, arguments), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", LEFT)
def test_others_stay(name: str) -> None:
    graph, arguments = read(LEFT[name]), [*LEFT[name][1]]
    changed = check_graph(batch_gathers(graph))
    assert batches_of(graph) == batches_of(changed) == [()]
    for a, b in zip(run_graph(changed, arguments), run_graph(graph, arguments), strict=True):
        np.testing.assert_array_equal(a, b)
