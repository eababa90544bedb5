"""part_rows: products that XLA merged along their rows are several again, and give the same."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from astitch.device.gpu import preset
from astitch.graph.check import check_graph
from astitch.graph.ir import DotAttrs, Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.merged_rows import part_rows
from astitch.rewrite.row_regions import form_row_regions
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower

ROWS, WIDTH = 32768, 64


def normal(*shape: int) -> Any:
    return (np.random.default_rng(len(shape)).standard_normal(shape) / 8).astype(np.float32)


def layer(x: Any, dx: Any, w: Any) -> Any:
    """tanh(x @ w) and its derivative along dx, as XLA merges them."""
    both = jnp.concatenate([dx, x]) @ w
    y = jnp.tanh(both[ROWS:])
    return y, both[:ROWS] * (1 - y * y)


def derivative(x: Any, dx: Any, w: Any, v: Any) -> Any:
    y, dy = layer(*layer(x, dx, w), v)
    return y, dy


def graph_of(fn: Any, *arguments: Any) -> Graph:
    return simplify(check_graph(import_hlo(lower(fn, *arguments))))


def rows_of(graph: Graph) -> list[int]:
    return [node.shape[0] for node in graph if isinstance(node.attrs, DotAttrs)]


ARGUMENTS = [normal(ROWS, WIDTH), normal(ROWS, WIDTH), normal(WIDTH, WIDTH), normal(WIDTH, WIDTH)]


def test_each_product_is_one_again() -> None:
    graph = graph_of(derivative, *ARGUMENTS)
    parted = part_rows(graph)
    assert rows_of(graph) == [2 * ROWS] * 2
    assert rows_of(check_graph(parted.graph, graph)) == [ROWS] * 4
    assert sorted(map(len, parted.parts.values())) == [2, 2]
    for got, want in zip(
        run_graph(parted.graph, ARGUMENTS), run_graph(graph, ARGUMENTS), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_one_of_them() -> None:
    graph = graph_of(derivative, *ARGUMENTS)
    first = next(node.name for node in graph if isinstance(node.attrs, DotAttrs))
    assert sorted(rows_of(part_rows(graph, [first]).graph)) == [ROWS, ROWS, 2 * ROWS]


STAY = {
    "all rows are read": lambda x, dx, w, v: jnp.concatenate([dx, x]) @ w,
    "rows of both are read": lambda x, dx, w, v: (jnp.concatenate([dx, x]) @ w)[9:-9],
    "every second row is read": lambda x, dx, w, v: (jnp.concatenate([dx, x]) @ w)[:ROWS:2],
    "columns are put together": lambda x, dx, w, v: (
        jnp.concatenate([dx, x], 1) @ jnp.concatenate([w, v])
    )[:ROWS],
}


@pytest.mark.parametrize("name", STAY)
def test_stays(name: str) -> None:
    graph = graph_of(STAY[name], *ARGUMENTS)
    assert part_rows(graph).graph is graph


def test_a_network_and_its_derivative_are_one_kernel() -> None:
    graph = graph_of(derivative, *ARGUMENTS)
    formed = check_graph(form_row_regions(graph, preset("h100")))
    assert not rows_of(formed)
    assert sum(node.op == "row-region" for node in formed) == 1


def test_what_no_kernel_takes_stays_merged() -> None:
    """A product behind a sort: its kernel would have no other."""

    def sorted_first(x: Any, dx: Any, w: Any, v: Any) -> Any:
        order = jnp.argsort(x.sum(1))
        y, dy = layer(x[order[::-1]], jnp.sort(dx, 0), v)
        return derivative(x, dx, w, v), jnp.sort(y, 0), jnp.sort(dy, 0)

    graph = graph_of(sorted_first, *ARGUMENTS)
    assert rows_of(graph) == [2 * ROWS] * 3
    formed = check_graph(form_row_regions(graph, preset("h100")))
    assert rows_of(formed) == [2 * ROWS]
    assert sum(node.op == "row-region" for node in formed) == 1
