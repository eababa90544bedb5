"""part_products: what XLA merged to multiply it at once is parted again, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.graph.check import check_graph
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.loops.part_products import part_products
from tests.hlo_runner import lower

ROWS = 40


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-4, 5, shape).astype(np.float32)


def joined_columns(p: Any, x: Any, f: Any) -> Any:
    """F @ P and F @ x."""
    both = f @ jnp.concatenate([p.transpose(1, 0, 2).reshape(3, -1), x.T], 1)
    return both[:, : 3 * ROWS].reshape(3, ROWS, 3), both[:, 3 * ROWS :].T


def joined_rows(p: Any, x: Any, f: Any) -> Any:
    both = jnp.concatenate([p.reshape(-1, 3), x, jnp.sin(x)]) @ f
    return both[: 3 * ROWS].reshape(p.shape), both[3 * ROWS : 4 * ROWS], both[4 * ROWS :]


def of_batches(p: Any, x: Any, f: Any) -> Any:
    """Each row has a matrix of its own."""
    both = jnp.concatenate([p, x[:, None], p + 1], 1)
    return jnp.einsum("rij,rjk->rik", both, p), jnp.einsum("rjk,rij->rki", p, both)


def in_the_middle(p: Any, x: Any, f: Any) -> Any:
    """The dimension that is summed lies between others, which are merged on both sides."""
    wide = jnp.stack([p, p * 2], 1).reshape(2, ROWS, 3, 3)
    return jnp.einsum("abij,ik->abjk", wide, f), wide.reshape(2 * ROWS, 3, 3) @ f


def parted_dimension(p: Any, x: Any, f: Any) -> Any:
    return p.reshape(4, ROWS // 4, 3, 3) @ f, (x.reshape(5, ROWS // 5, 3) @ f).reshape(ROWS, 3)


def of_one_element(p: Any, x: Any, f: Any) -> Any:
    return x.reshape(ROWS, 1, 3) @ f, x[:, :1].reshape(1, ROWS, 1) @ f[:1]


def summed_dimension(p: Any, x: Any, f: Any) -> Any:
    """Rows and columns of a matrix are summed together: this stays merged."""
    return p.reshape(ROWS, 9) @ jnp.concatenate([f, f, f]), f.reshape(9) @ p.reshape(ROWS, 9).T


def joined_sum(p: Any, x: Any, f: Any) -> Any:
    return jnp.concatenate([x, x], 1) @ jnp.concatenate([f, f])


PROGRAMS = (
    joined_columns,
    joined_rows,
    of_batches,
    in_the_middle,
    parted_dimension,
    of_one_element,
    summed_dimension,
    joined_sum,
)


def read(fn: Callable[..., Any]) -> tuple[Graph, list[np.ndarray]]:
    arguments = [draw(ROWS, 3, 3), draw(ROWS, 3), draw(3, 3)]
    return import_hlo(lower(fn, *arguments, keep_unused=True)), arguments


@pytest.mark.parametrize("fn", PROGRAMS)
def test_the_function_stays(fn: Callable[..., Any]) -> None:
    graph, arguments = read(fn)
    parted = part_products(graph)
    check_graph(parted)
    for got, wanted in zip(run_graph(parted, arguments), run_graph(graph, arguments), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("fn", [joined_columns, joined_rows, parted_dimension])
def test_rows_and_numbers_of_a_row_are_apart(fn: Callable[..., Any]) -> None:
    parted = part_products(read(fn)[0])
    for node in parted:
        if node.op == "dot":
            shapes = [parted[operand].shape for operand in node.operands]
            assert all(n <= ROWS for shape in (*shapes, node.shape) for n in shape), node
    assert not any(node.op == "concatenate" for node in parted)


@pytest.mark.parametrize("fn", [lambda p, x, f: x @ f, jax.grad(lambda p, x, f: (p @ f).sum(), 2)])
def test_what_is_not_merged_stays_as_it_is(fn: Callable[..., Any]) -> None:
    graph, _ = read(fn)
    assert part_products(graph) is graph
