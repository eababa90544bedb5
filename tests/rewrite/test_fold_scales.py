"""Batch norms in inference and their like become a filter and a bias: which, and that nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.graph.check import check_graph
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.fold_scales import fold_scales
from astitch.rewrite.simplify import simplify

Function = Callable[..., Any]
NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
IMAGE, FILTER, OTHER = (4, 12, 12, 6), (3, 3, 6, 16), (4, 12, 12, 16)


def convolve(x: Any, w: Any, order: Any = NHWC, stride: int = 1) -> Any:
    return lax.conv_general_dilated(
        x, w.astype(x.dtype), (stride, stride), "SAME", dimension_numbers=order
    )


def norm(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    """As Flax and Haiku write it."""
    y = (convolve(x, w) - m) * (lax.rsqrt(v + 1e-5) * g) + b
    return jax.nn.relu(y.astype(x.dtype))


def norm_divided(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    return jnp.tanh(g * ((convolve(x, w) - m) / jnp.sqrt(v + 1e-3)) + b)


def norm_of_rows(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    """Channels first."""
    turned = jnp.moveaxis(x, -1, 1), jnp.transpose(w, (3, 2, 0, 1))
    y = convolve(*turned, NCHW)
    return y * g[:, None, None] + (b - m * g)[:, None, None] * v[:, None, None]


def numbers_alone(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    """XLA has a place for them."""
    return convolve(x, w) * 0.5 + b


def a_number_added(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    return convolve(x, w) * g + 1.0


def rounded_between(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    return convolve(x, w).astype(jnp.float8_e4m3fn).astype(F32) * g + b


def norm_f16(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    """A filter may not lie within its range when it is multiplied."""
    return norm(x.astype(F16), w, g, b, m, v)


def filter_as_read(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    """A filter that need not be turned would be read and written once more."""
    lying = jnp.reshape(w, (16, 3, 3, 6))
    y = lax.conv_general_dilated(
        x[:1, :8, :8], lying, (1, 1), "SAME", dimension_numbers=("NHWC", "OHWI", "NHWC")
    )
    return y * g + b


def number_first(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    return jnp.maximum(b - convolve(x, w, stride=2) * 0.5 * g, 0)


def negated(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    return -(convolve(x, w) * g) - b


FOLDED: dict[str, tuple[Function, Any]] = {
    "norm": (norm, F32),
    "norm bf16": (norm, BF16),
    "divided": (norm_divided, F32),
    "channels first": (norm_of_rows, F32),
    "a number, and the bias first": (number_first, F32),
    "negated": (negated, F32),
}


def draw(dtype: Any, *others: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = (IMAGE, FILTER, *[FILTER[-1:]] * 4, *others)
    drawn = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    drawn[5] = np.abs(drawn[5]) + 0.5
    return [a.astype(dtype) if a.ndim == 4 and a.shape != FILTER else a for a in drawn]


def lower(fn: Function, arguments: list[np.ndarray]) -> Graph:
    module = jax.jit(fn, keep_unused=True).lower(*arguments).compiler_ir("hlo")
    return simplify(import_hlo(module.as_serialized_hlo_module_proto()))


def find_folded(graph: Graph) -> list[str]:
    heard: list[str] = []
    fold_scales(graph, lambda rule, node: heard.append(node) if rule == "fold_scale" else None)
    return heard


def behind(graph: Graph) -> list[str]:
    """The ops behind the convolution, in order."""
    (name,) = [node.name for node in graph if node.op == "convolution"]
    found = []
    while users := graph.users[name]:
        (name,) = users
        found.append(graph[name].op)
    return found


@pytest.mark.parametrize("name", FOLDED)
def test_a_bias_is_all_that_is_left(name: str) -> None:
    fn, dtype = FOLDED[name]
    arguments = draw(dtype)
    graph = lower(fn, arguments)
    folded = check_graph(fold_scales(graph))
    assert len(find_folded(graph)) == 1
    assert behind(folded)[0] == "add" and "multiply" not in behind(folded)
    (wanted,), (found,) = run_graph(graph, arguments), run_graph(folded, arguments)
    assert found.dtype == wanted.dtype
    close = 1e-5 if dtype is F32 else 4e-2
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), rtol=close, atol=close
    )


def test_in_bf16_it_is_as_near_as_before() -> None:
    """The filter is rounded once in both; the sums are rounded once in place of twice."""
    arguments = draw(BF16)
    graph = lower(norm, arguments)
    with jax.enable_x64(True):
        exact = np.asarray(norm(*(np.asarray(a, np.float64) for a in arguments)))
    errors = [
        np.linalg.norm(run_graph(g, arguments)[0].astype(np.float64) - exact)
        for g in (graph, fold_scales(graph))
    ]
    assert errors[1] <= 1.05 * errors[0]


def trained(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    """With statistics of its own result."""
    y = convolve(x, w)
    mean, variance = y.mean((0, 1, 2)), y.var((0, 1, 2))
    return (y - mean) * lax.rsqrt(variance + 1e-5) * g + b


def grouped(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    y = lax.conv_general_dilated(
        x, w[:, :, :1], (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=6
    )
    return y * g[:12] + b[:12]


def read_twice(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    y = convolve(x, w)
    return y * g + b, y


def without_bias(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    return jnp.tanh(convolve(x, w) * g)


def along_rows(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    return convolve(x, w) * jnp.arange(12.0)[:, None] + b


def rounded_filter(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    """A filter that is given in 16 bits would be rounded once more."""
    return convolve(x.astype(BF16), lax.optimization_barrier(w.astype(BF16))) * g.astype(
        BF16
    ) + b.astype(BF16)


def large_filter(x: Any, w: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    return convolve(x[:1, :1, :1], w) * g + b


@pytest.mark.parametrize(
    "fn",
    [
        trained,
        grouped,
        read_twice,
        without_bias,
        along_rows,
        rounded_filter,
        rounded_between,
        norm_f16,
        numbers_alone,
        a_number_added,
        filter_as_read,
        large_filter,
    ],
)
def test_others_stay(fn: Function) -> None:
    if fn is grouped:
        arguments = draw(F32)
        arguments[1] = arguments[1][:, :, :, :12]
    else:
        arguments = draw(F32)
    assert find_folded(lower(fn, arguments)) == []
