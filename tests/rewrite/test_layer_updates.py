"""A layer that is put back as a whole: rows are written into the stack, wherever the place lies."""

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
from astitch.rewrite.layer_updates import update_rows_of_layers
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower

STACK = np.arange(3 * 8 * 4, dtype=np.float32).reshape(3, 8, 4)
ROWS = -np.arange(1, 9, dtype=np.float32).reshape(2, 4)


def set_layer(x: Any, rows: Any, i: Any, place: Any) -> Any:
    own = jax.lax.dynamic_index_in_dim(x, i, 0, keepdims=False)
    own = jax.lax.dynamic_update_slice(own, rows, (place, jnp.int32(0)))
    return jax.lax.dynamic_update_index_in_dim(x, own, i, 0), own.sum()


def set_first_and_last(x: Any, rows: Any, i: Any, place: Any) -> Any:
    for layer in (0, 2):
        own = jax.lax.dynamic_update_slice(x[layer], rows, (place, jnp.int32(0)))
        x = jax.lax.dynamic_update_index_in_dim(x, own, jnp.int32(layer), 0)
    return x, i


def set_one_by_one(x: Any, rows: Any, i: Any, place: Any) -> Any:
    own = jax.lax.dynamic_slice(x, (i, jnp.int32(0), jnp.int32(0)), (1, 8, 4))
    starts = (jnp.int32(0), place, jnp.int32(0))
    own = jax.lax.dynamic_update_slice(own, rows[None], starts)
    return jax.lax.dynamic_update_slice(x, own, (i, jnp.int32(0), jnp.int32(0))), i


def set_another(x: Any, rows: Any, i: Any, place: Any) -> Any:
    """The layer goes elsewhere than it comes from."""
    own = jax.lax.dynamic_index_in_dim(x, i, 0, keepdims=False)
    own = jax.lax.dynamic_update_slice(own, rows, (place, jnp.int32(0)))
    return jax.lax.dynamic_update_index_in_dim(x, own, place, 0), i


def set_of_another(x: Any, rows: Any, i: Any, place: Any) -> Any:
    own = jax.lax.dynamic_index_in_dim(2 * x, i, 0, keepdims=False)
    own = jax.lax.dynamic_update_slice(own, rows, (place, jnp.int32(0)))
    return jax.lax.dynamic_update_index_in_dim(x, own, i, 0), i


def set_bits(x: Any, rows: Any, i: Any, place: Any) -> Any:
    """Rows are other numbers there."""
    own = jax.lax.dynamic_index_in_dim(x, i, 0, keepdims=False)
    own = jax.lax.bitcast_convert_type(own, jnp.int32)
    own = jax.lax.dynamic_update_slice(own, rows.astype(jnp.int32), (place, jnp.int32(0)))
    own = jax.lax.bitcast_convert_type(own, jnp.float32)
    return jax.lax.dynamic_update_index_in_dim(x, own, i, 0), i


def rewrite(function: Callable[..., Any]) -> tuple[Graph, Graph]:
    given = (STACK, ROWS, np.int32(0), np.int32(0))
    graph = simplify(import_hlo(lower(function, *given, keep_unused=True)))
    return graph, check_graph(update_rows_of_layers(graph))


@pytest.mark.parametrize("function", [set_layer, set_first_and_last, set_one_by_one])
def test_rows_are_written_into_the_stack(function: Callable[..., Any]) -> None:
    graph, changed = rewrite(function)
    updates = [node for node in changed if node.op == "dynamic-update-slice"]
    of_stack = [node for node in updates if node.shape == STACK.shape]
    assert of_stack and all(changed[n.operands[1]].shape == (1, 2, 4) for n in of_stack)
    for i, place in ((0, 0), (2, 5), (7, 9), (-3, -2)):
        arguments = [STACK, ROWS, np.int32(i), np.int32(place)]
        wanted = run_graph(graph, arguments)
        for found, expected in zip(run_graph(changed, arguments), wanted, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("function", [set_another, set_of_another, set_bits])
def test_other_layers_stay(function: Callable[..., Any]) -> None:
    graph, changed = rewrite(function)
    assert changed is graph
