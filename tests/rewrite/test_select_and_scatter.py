"""select-and-scatter as element-wise ops: the reference's values, whatever the windows, and what kernels make of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax

import astitch
from astitch.graph.check import check_graph
from astitch.graph.ir import ArrayType, CompareAttrs, DType, Graph, WindowAttrs, WindowDimension
from astitch.graph.reference import run_graph
from astitch.rewrite.draft_ops import UNROLLED_ELEMENTS
from astitch.rewrite.expand import expand
from astitch.rewrite.select_and_scatter import MOST_WINDOWS
from astitch.rewrite.simplify import simplify
from tests.graphs import GraphBuilder, combiner


def selector(direction: str, dtype: DType) -> Graph:
    g = GraphBuilder(f"select_{direction}")
    scalar = ArrayType(dtype, ())
    a, b = g.parameter(scalar, "a"), g.parameter(scalar, "b")
    return g.build(g.op("compare", ArrayType(DType.PRED, ()), a, b, attrs=CompareAttrs(direction)))


def select_graph(
    shape: Sequence[int],
    window: Sequence[WindowDimension],
    dtype: str,
    *,
    direction: str = "GE",
    op: str = "add",
    start: float = 0.0,
) -> Graph:
    """select-and-scatter of two parameters."""
    g = GraphBuilder()
    type_ = ArrayType(DType(dtype), tuple(shape))
    counts = [
        max((n + w.padding_low + w.padding_high - w.size) // w.stride + 1, 0)
        for n, w in zip(shape, window, strict=True)
    ]
    x, source = g.parameter(type_), g.parameter(ArrayType(DType(dtype), tuple(counts)))
    regions = [selector(direction, type_.dtype), combiner(op, type_.dtype)]
    attrs = WindowAttrs(tuple(window))
    initial = g.constant(start, dtype)
    result = g.op("select-and-scatter", type_, x, source, initial, attrs=attrs, regions=regions)
    return check_graph(g.build(result))


def expand_graph(graph: Graph) -> Graph:
    return check_graph(expand(simplify(graph)))


def holds(graph: Graph) -> bool:
    return any(node.op == "select-and-scatter" for node in graph)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_random_windows_give_the_references_values(data: st.DataObject) -> None:
    """Overlapping or with gaps between them, over padding, over edges that are cut off, over NaN and equal elements."""
    shape, window = [], []
    for _ in range(2):
        w = WindowDimension(
            data.draw(st.integers(1, 4)),
            data.draw(st.integers(1, 4)),
            data.draw(st.integers(-2, 3)),
            data.draw(st.integers(-2, 3)),
        )
        n = data.draw(st.integers(1, 8))
        assume(n + w.padding_low + w.padding_high >= w.size)
        assume(n + min(w.padding_low, 0) + min(w.padding_high, 0) > 0)
        shape.append(n)
        window.append(w)
    dtype = data.draw(st.sampled_from(["s32", "u8", "f64", "f32", "bf16", "f16"]))
    graph = select_graph(
        shape,
        window,
        dtype,
        direction=data.draw(st.sampled_from(["GE", "LE", "GT", "NE"])),
        op=data.draw(st.sampled_from(["add", "maximum", "multiply"])),
        start=data.draw(st.sampled_from([0, 1, 3])),
    )
    few = [0, 1, 2, 3] if not DType(dtype).is_float else [0.0, -0.0, 1.5, -2.25, np.nan, -np.inf]
    updates = [0, 1, 2, 3, 5] if not DType(dtype).is_float else [0.0, -0.0, 0.1, -2.25, 3.0, 1e-3]
    arguments = []
    for name, values in zip(graph.parameters, (few, updates), strict=True):
        array = graph[name].array
        drawn = data.draw(
            st.lists(st.sampled_from(values), min_size=array.size, max_size=array.size)
        )
        arguments.append(np.array(drawn).astype(array.dtype.numpy).reshape(array.shape))
    expanded = expand_graph(graph)
    assert not holds(expanded)
    (found,), (wanted,) = run_graph(expanded, arguments), run_graph(graph, arguments)
    assert found.dtype == wanted.dtype
    # The reference adds up f32 in f64, and f32 in place of a short float; both are rounded once.
    rtol = {"f32": 1e-6, "bf16": 2**-8, "f16": 2**-11}.get(dtype, 0)
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=rtol
    )


def test_short_floats_are_rounded_once() -> None:
    """256 + 1 + 1 is 258; rounded to bf16 after each sum it would be 256."""
    graph = select_graph((3,), [WindowDimension(2)], "bf16", start=256.0)
    x = np.array([0, 1, 0]).astype(DType.BF16.numpy)
    ones = np.ones(2).astype(DType.BF16.numpy)
    assert run_graph(expand_graph(graph), [x, ones])[0].tolist() == [256, 258, 256]


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(select_graph((70,), [WindowDimension(UNROLLED_ELEMENTS + 1)], "f32"), id="long"),
        pytest.param(select_graph((1,), [WindowDimension(2)], "f32"), id="no window"),
        pytest.param(select_graph((4,), [WindowDimension(2)], "f32", op="subtract"), id="subtract"),
        pytest.param(select_graph((50,), [WindowDimension(MOST_WINDOWS + 1)], "f32"), id="many windows"),
        pytest.param(select_graph((2, 2), [WindowDimension(1, 1 << 16, 0, 1 << 16)] * 2, "f32"), id="strides"),
    ],
)  # fmt: skip
def test_what_no_kernel_adds_stays(graph: Graph) -> None:
    assert holds(expand_graph(graph))


@pytest.mark.parametrize("stride", [1, 3, 1 << 20])
def test_a_window_alone_has_no_stride(stride: int) -> None:
    """Pooling over the whole image: no element looks for other windows."""
    same = select_graph((3, 7, 7), [WindowDimension(1), *[WindowDimension(7, stride)] * 2], "f32")
    graph = expand_graph(same)
    assert not holds(graph) and sum(node.op == "pad" for node in graph) == 0
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (3, 7, 7)).astype(np.float32)
    updates = rng.normal(size=(3, 1, 1)).astype(np.float32)
    np.testing.assert_array_equal(run_graph(graph, [x, updates]), run_graph(same, [x, updates]))


def pool(
    size: tuple[int, int], stride: tuple[int, int], padding: str
) -> Callable[[jax.Array], jax.Array]:
    def pooled(x: jax.Array) -> jax.Array:
        y = jax.nn.relu(x + 0.5)
        return lax.reduce_window(y, -jnp.inf, lax.max, (1, *size, 1), (1, *stride, 1), padding)

    return pooled


@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [
        ((2, 2), (2, 2), "VALID"),
        ((3, 3), (2, 2), "SAME"),
        ((2, 2), (2, 1), "SAME"),
        ((2, 3), (3, 4), "VALID"),
        ((3, 3), (1, 1), "SAME"),
    ],
)
def test_the_gradient_of_pooling_is_kernels_only(
    size: tuple[int, int], stride: tuple[int, int], padding: str
) -> None:
    """Of an activation, so that equal elements meet in a window."""
    pooled = pool(size, stride, padding)

    def gradient(x: jax.Array, u: jax.Array) -> jax.Array:
        return jax.vjp(pooled, x)[1](u)[0] * 2

    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 11, 13, 5)).astype(np.float32)
    u = rng.normal(size=jax.eval_shape(pooled, x).shape).astype(np.float32)
    stitched: Any = astitch.jit(gradient, strict=True)
    np.testing.assert_allclose(stitched(x, u), jax.jit(gradient)(x, u), rtol=1e-6, atol=1e-6)
    assert not stitched.lower(x, u).compile().compilation.program.outside
