"""Gathers in the form that XLA's kernels read: any is brought into it, and gives the same elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from astitch.graph.ir import GatherAttrs, Graph
from astitch.graph.reference import run_graph
from astitch.hlo.export import ModuleBuilder
from astitch.hlo.gather import is_simplified
from astitch.hlo_import import import_hlo
from tests.hlo_runner import lower
from tests.opcode_draws import draw_gather


def write_late(graph: Graph) -> Graph:
    """The graph as XLA gets it from the middle of its compilation."""
    builder = ModuleBuilder(graph.name, late=True)
    for node in graph:
        builder.add_node(node)
    return import_hlo(builder.finish(graph.outputs))


def expect_simplified(fn: Callable[..., Any], *arguments: Any) -> None:
    graph = import_hlo(lower(fn, *arguments))
    late = write_late(graph)
    gathers = [node for node in late if isinstance(node.attrs, GatherAttrs)]
    assert len(gathers) == sum(isinstance(node.attrs, GatherAttrs) for node in graph)
    assert all(is_simplified(node, late[node.operands[1]].array) for node in gathers)
    given = [
        np.asarray(argument, graph[name].dtype.numpy)
        for name, argument in zip(graph.parameters, arguments, strict=True)
    ]
    for found, wanted in zip(run_graph(late, given), run_graph(graph, given), strict=True):
        np.testing.assert_array_equal(found, wanted)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_gather(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    case = draw_gather(data.draw, np.random.default_rng(0), x)
    expect_simplified(case.function, *case.arguments)


X = np.arange(2 * 6 * 5, dtype=np.float32).reshape(2, 6, 5)
I = np.array([[1, 0, 5, 7], [2, 2, -1, 3]], np.int32)

SPELLINGS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows": (lambda x, i: x[:, i[0]], (X, I)),
    "along an axis": (lambda x, i: jnp.take_along_axis(x, i[..., None], 1), (X, I)),
    "in order": (lambda x: jnp.take_along_axis(x, jnp.argsort(-x, 2), 2), (X,)),
    "vmap": (lambda x, i: jax.vmap(lambda row, at: row[at])(x, i), (X, I)),
    "vmap over the last": (lambda x, i: jax.vmap(lambda c: c[i[0]], 2, 2)(x), (X, I)),
    "numbers of a byte": (lambda x, i: x[:, i[0].astype(np.int8)], (X, I)),
    "slices": (
        lambda x, i: jax.vmap(lambda row, at: jax.lax.dynamic_slice(row, (at, 0), (2, 3)))(
            x, i[:, 0]
        ),
        (X, I),
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str) -> None:
    fn, arguments = SPELLINGS[name]
    expect_simplified(fn, *arguments)
