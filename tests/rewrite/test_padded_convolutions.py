"""Images that XLA would pad in front of a convolution: which they are, and that nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.graph.check import check_graph
from astitch.graph.ir import ConvolutionAttrs, Graph, PadAttrs
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.pipeline import Launcher, Target
from astitch.rewrite.padded_convolutions import pad_convolutions
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower

Function = Callable[..., Any]
NHWC = ("NHWC", "HWIO", "NHWC")


def whole(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Small whole numbers: sums of their products are exact."""
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(dtype)


def convolve(strides: int, padding: Any, **options: Any) -> Function:
    options.setdefault("dimension_numbers", NHWC)

    def fn(x: jax.Array, k: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, k, (strides,) * (x.ndim - 2), padding, **options)

    return fn


X, K = whole(2, 8, 8, 4), whole(3, 3, 4, 6)
ROW = ("NWC", "WIO", "NWC")

PADDED: dict[str, tuple[Function, np.ndarray, np.ndarray]] = {
    "SAME at stride 2": (convolve(2, "SAME"), X, K),
    "in 16 bits": (convolve(2, "SAME"), whole(2, 8, 8, 4, dtype=np.float16), whole(3, 3, 4, 6, dtype=np.float16)),
    "a window of 4": (convolve(1, "SAME"), X, whole(4, 4, 4, 6)),
    "one axis": (convolve(1, ((2, 0), (1, 1))), X, K),
    "each channel apart": (convolve(2, "SAME", feature_group_count=4), X, whole(3, 3, 1, 4)),
    "channels first": (
        convolve(2, "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")),
        whole(2, 4, 8, 8),
        whole(6, 4, 3, 3),
    ),
    "causal, one dimension": (
        convolve(1, ((2, 0),), dimension_numbers=ROW),
        whole(2, 9, 4),
        whole(3, 4, 6),
    ),
    "transposed": (
        lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME", dimension_numbers=NHWC),
        X,
        K,
    ),
    "transposed without edges": (
        lambda x, k: lax.conv_transpose(x, k, (3, 3), "VALID", dimension_numbers=NHWC),
        X,
        K,
    ),
}  # fmt: skip

LEFT: dict[str, tuple[Function, np.ndarray, np.ndarray]] = {
    "alike on both sides": (convolve(1, "SAME"), X, K),
    "one at each side, stride 2": (convolve(2, ((1, 1), (1, 1))), X, K),
    "no edge": (convolve(2, "VALID"), X, K),
    "spread windows": (convolve(1, ((2, 1), (2, 1)), rhs_dilation=(2, 2)), X, K),
    "cut edges": (convolve(1, ((-1, 0), (1, 0))), X, K),
}


def graph_of(fn: Function, *arguments: np.ndarray) -> Graph:
    return simplify(import_hlo(lower(fn, *arguments)))


def windows_of(graph: Graph) -> list[Any]:
    return [w for n in graph if isinstance(n.attrs, ConvolutionAttrs) for w in n.attrs.window]


def pads_of(graph: Graph) -> list[PadAttrs]:
    return [node.attrs for node in graph if isinstance(node.attrs, PadAttrs)]


@pytest.mark.parametrize("name", PADDED)
def test_the_copy_is_padded(name: str) -> None:
    fn, *arguments = PADDED[name]
    graph = graph_of(fn, *arguments)
    changed = check_graph(pad_convolutions(graph))
    assert len(pads_of(changed)) == 1
    for window in windows_of(changed):
        assert window.padding_low == window.padding_high and window.base_dilation == 1
    (found,), (wanted,) = run_graph(changed, arguments), run_graph(graph, arguments)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", LEFT)
def test_what_cudnn_pads_is_left(name: str) -> None:
    fn, *arguments = LEFT[name]
    assert not pads_of(pad_convolutions(graph_of(fn, *arguments)))


def test_gradients_are_left() -> None:
    """XLA makes calls of their own of them, which pad otherwise."""

    def loss(x: jax.Array, k: jax.Array) -> jax.Array:
        return (convolve(2, "SAME")(x, k) ** 2).sum()

    graph = graph_of(jax.grad(loss, (0, 1)), X, K)
    changed = pad_convolutions(graph)
    assert sum(isinstance(n.attrs, ConvolutionAttrs) for n in graph) == 3
    assert len(pads_of(changed)) == 1  # of the convolution itself


def test_a_kernel_in_front_writes_the_copy() -> None:
    """And nothing else: the image is not read again."""

    def fn(x: jax.Array, k: jax.Array) -> jax.Array:
        return convolve(2, "SAME")(jax.nn.silu(x) * 2, k)

    graph = import_hlo(lower(fn, whole(8, 64, 64, 32), whole(3, 3, 32, 32)))
    compiled = compile_graph(graph, preset("h100"), target=Target(launcher=Launcher.XLA))
    scopes = compiled.scopes
    written = [scopes.graph[o].shape for scope in scopes.scopes for o in scope.outputs]
    assert (8, 65, 65, 32) in written and (8, 64, 64, 32) not in written


def test_it_hears_what_is_padded() -> None:
    heard: list[str] = []
    fn, *arguments = PADDED["SAME at stride 2"]
    pad_convolutions(graph_of(fn, *arguments), lambda rule, node: heard.append(rule))
    assert heard.count("pad_convolution") == 1


def test_random_edges_and_strides() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        edges = tuple(tuple(int(n) for n in rng.integers(0, 3, 2)) for _ in range(2))
        strides, spread = int(rng.integers(1, 4)), tuple(int(n) for n in rng.integers(1, 3, 2))
        fn = convolve(strides, edges, lhs_dilation=spread)
        k = whole(*(int(n) for n in rng.integers(1, 5, 2)), 4, 2)
        graph = graph_of(fn, X, k)
        changed = check_graph(pad_convolutions(graph))
        np.testing.assert_array_equal(run_graph(changed, [X, k])[0], run_graph(graph, [X, k])[0])
        np.testing.assert_array_equal(run_graph(changed, [X, k])[0], jnp.asarray(fn(X, k)))
