"""Scales of weights: which move behind a product, or to its rows, in which spellings, and what is computed then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from astitch.graph.check import check_graph
from astitch.graph.ir import DotAttrs, Graph, Node
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.late_scales import scale_late
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower

RNG = np.random.default_rng(0)
DEPTH, COLUMNS, HEADS = 512, 1024, 8
BF16 = ml_dtypes.bfloat16


def normal(*shape: int, dtype: Any = BF16) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def integers(*shape: int) -> np.ndarray:
    return RNG.integers(-127, 128, shape).astype(np.int8)


def scales(count: int, dtype: Any = BF16) -> np.ndarray:
    return (0.01 * (0.5 + RNG.random(count))).astype(dtype)


def rewrite(fn: Callable[..., Any], *arguments: Any) -> tuple[Graph, Graph]:
    graph = simplify(check_graph(import_hlo(lower(fn, *arguments))))
    return graph, simplify(check_graph(scale_late(graph)))


def product_of(graph: Graph) -> Node:
    (dot,) = (node for node in graph if isinstance(node.attrs, DotAttrs))
    return dot


def weights_of(graph: Graph) -> list[str]:
    """The ops between the larger operand of the product and its array."""
    name = max(product_of(graph).operands, key=lambda o: graph[o].array.size)
    found = []
    while not graph[name].is_parameter:
        found.append(graph[name].op)
        name = graph[name].operands[0]
    return found


def compare(graph: Graph, changed: Graph, arguments: tuple[Any, ...], most: float = 1e-2) -> None:
    (want,), (got,) = (run_graph(g, list(arguments)) for g in (graph, changed))
    assert got.dtype == want.dtype and got.shape == want.shape
    distance = np.linalg.norm(np.asarray(got, np.float64) - np.asarray(want, np.float64))
    assert distance <= most * np.linalg.norm(np.asarray(want, np.float64))


def of_columns(x: Any, q: Any, s: Any) -> Any:
    return x @ (q.astype(x.dtype) * s.astype(x.dtype))


def in_f32(x: Any, q: Any, s: Any) -> Any:
    return x @ (q.astype(jnp.float32) * s[None].astype(jnp.float32)).astype(x.dtype)


def transposed(x: Any, q: Any, s: Any) -> Any:
    """The columns in front, as torch keeps them."""
    wide = q.T.astype(x.dtype) * s[:, None].astype(x.dtype)
    return jnp.einsum("bk,nk->bn", x, wide)


def of_heads(x: Any, q: Any, s: Any) -> Any:
    wide = (s.astype(x.dtype) * q.astype(x.dtype)).reshape(DEPTH, HEADS, -1)
    return jnp.einsum("bd,dhf->bhf", x, wide)


def of_heads_first(x: Any, q: Any, s: Any) -> Any:
    by_head = q.reshape(DEPTH, HEADS, -1).swapaxes(0, 1).astype(x.dtype)
    return jnp.einsum("bd,hdf->bhf", x, by_head * s.reshape(HEADS, 1, -1).astype(x.dtype))


def weights_first(x: Any, q: Any, s: Any) -> Any:
    return lax.dot_general(q.astype(x.dtype) * s.astype(x.dtype), x, (((0,), (1,)), ((), ())))


def result_in_f32(x: Any, q: Any, s: Any) -> Any:
    wide = q.astype(x.dtype) * s.astype(x.dtype)
    return jnp.matmul(x, wide, preferred_element_type=jnp.float32)


def of_one_number(x: Any, q: Any, s: Any) -> Any:
    return x @ (q.astype(x.dtype) * s[0].astype(x.dtype))


def of_a_layer(x: Any, q: Any, s: Any) -> Any:
    """Scales of several matrices in one array."""
    layers = jnp.stack([2 * s, s])
    return x @ (q.astype(x.dtype) * layers[1].astype(x.dtype))


OF_COLUMNS = (
    of_a_layer,
    of_columns,
    in_f32,
    transposed,
    of_heads,
    of_heads_first,
    weights_first,
    result_in_f32,
    of_one_number,
)


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
@pytest.mark.parametrize("fn", OF_COLUMNS)
def test_scales_of_columns_stand_behind(fn: Callable[..., Any], dtype: Any) -> None:
    arguments = (normal(8, DEPTH, dtype=dtype), integers(DEPTH, COLUMNS), scales(COLUMNS, dtype))
    graph, changed = rewrite(fn, *arguments)
    assert "multiply" in weights_of(graph) or fn is of_one_number
    assert "multiply" not in weights_of(changed)
    assert changed[product_of(changed).name].dtype.numpy == np.float32
    compare(graph, changed, arguments)


def of_rows(x: Any, q: Any, s: Any) -> Any:
    return x @ (s[:, None].astype(x.dtype) * q.astype(x.dtype))


def of_rows_transposed(x: Any, q: Any, s: Any) -> Any:
    return jnp.einsum("bk,nk->bn", x, q.T.astype(x.dtype) * s.astype(x.dtype))


def of_two_depths(x: Any, q: Any, s: Any) -> Any:
    """The depth is two dimensions."""
    wide = q.reshape(4, -1, COLUMNS).astype(x.dtype) * s.reshape(4, -1, 1).astype(x.dtype)
    return jnp.einsum("bhk,hkn->bn", x.reshape(len(x), 4, -1), wide)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("fn", [of_rows, of_rows_transposed, of_two_depths])
def test_scales_of_rows_stand_at_the_rows(fn: Callable[..., Any], dtype: Any) -> None:
    arguments = (normal(8, DEPTH, dtype=dtype), integers(DEPTH, COLUMNS), scales(DEPTH, dtype))
    graph, changed = rewrite(fn, *arguments)
    assert "multiply" in weights_of(graph) and "multiply" not in weights_of(changed)
    compare(graph, changed, arguments)


@pytest.mark.parametrize("along", ["column", "row"])
def test_of_each_expert(along: str) -> None:
    def fn(x: Any, q: Any, s: Any) -> Any:
        spread = s[:, None, :] if along == "column" else s[:, :, None]
        return jnp.einsum("ebd,edf->ebf", x, q.astype(x.dtype) * spread)

    count = COLUMNS if along == "column" else DEPTH
    arguments = (
        normal(3, 4, DEPTH),
        integers(3, DEPTH, COLUMNS),
        scales(3 * count).reshape(3, count),
    )
    graph, changed = rewrite(fn, *arguments)
    assert "multiply" in weights_of(graph) and "multiply" not in weights_of(changed)
    compare(graph, changed, arguments)


def test_floats_of_eight_bits_and_of_their_own_type() -> None:
    for weights in (normal(DEPTH, COLUMNS, dtype=ml_dtypes.float8_e4m3fn), normal(DEPTH, COLUMNS)):
        arguments = (normal(8, DEPTH), weights, scales(COLUMNS))
        graph, changed = rewrite(of_columns, *arguments)
        assert "multiply" not in weights_of(changed)
        compare(graph, changed, arguments)


def test_it_is_nearer_to_the_exact_result() -> None:
    arguments = (normal(8, DEPTH), integers(DEPTH, COLUMNS), scales(COLUMNS))
    exact = of_columns(*(np.asarray(a, np.float64) for a in arguments))
    errors = [
        np.linalg.norm(np.asarray(run_graph(g, list(arguments))[0], np.float64) - exact)
        for g in rewrite(of_columns, *arguments)
    ]
    assert errors[1] <= errors[0]


def is_left(fn: Callable[..., Any], *arguments: Any) -> bool:
    graph = simplify(check_graph(import_hlo(lower(fn, *arguments))))
    return scale_late(graph) is graph


def test_what_is_left() -> None:
    q, s = integers(DEPTH, COLUMNS), scales(COLUMNS)
    assert is_left(of_columns, normal(512, DEPTH), q, s), "many rows"
    assert is_left(of_columns, normal(8, 64), integers(64, 64), scales(64)), "small weights"
    assert is_left(of_rows, normal(8, DEPTH, dtype=np.float16), q, scales(DEPTH)), "beyond f16"

    def read_twice(x: Any, q: Any, s: Any) -> Any:
        wide = q.astype(x.dtype) * s
        return x @ wide, wide.sum(0)

    def in_groups(x: Any, q: Any, s: Any) -> Any:
        groups = q.reshape(4, -1, COLUMNS).astype(x.dtype) * s.reshape(4, 1, -1)
        return x @ groups.reshape(DEPTH, COLUMNS)

    def computed(x: Any, q: Any, s: Any) -> Any:
        return x @ (jnp.sin(q.astype(x.dtype)) * s)

    def of_each(x: Any, q: Any, s: Any) -> Any:
        return x @ (q.astype(x.dtype) * s)

    def of_a_sort(x: Any, q: Any, s: Any) -> Any:
        wide, _ = lax.sort((q.astype(jnp.float32), q), num_keys=1)
        return x @ wide.astype(x.dtype)

    def of_a_tuple(x: Any, q: Any, s: Any) -> Any:
        """An op with several results gives the weights."""
        wide = jnp.repeat(jnp.linalg.qr(q[:, :DEPTH].astype(jnp.float32))[0], 2, 1)
        return x @ wide.astype(x.dtype)

    x = normal(8, DEPTH)
    assert is_left(of_a_tuple, x, q, s)
    assert is_left(of_a_sort, x, q, s)
    assert is_left(read_twice, x, q, s)
    assert is_left(in_groups, x, q, scales(4 * COLUMNS))
    assert is_left(computed, x, q, s)
    assert is_left(of_each, x, q, normal(DEPTH, COLUMNS))
