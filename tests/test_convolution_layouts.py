"""Convolutions in the order of memory in which libraries convolve fastest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from astitch.check import check_graph
from astitch.compile import compile_hlo
from astitch.convolution import CanonicalConvolution, canonical_convolution
from astitch.convolution_layouts import arrange_convolutions
from astitch.hlo_import import import_hlo
from astitch.ir import ConvolutionAttrs, Graph
from astitch.program import KernelStep, LibraryStep
from astitch.reference import run_graph
from astitch.simplify import simplify
from tests.hlo_runner import lower

JAXS, FIRST, OWN = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("NHWC", "OHWI", "NHWC")


def whole(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Small whole numbers: sums of their products are exact."""
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(dtype)


def convolve(x: Any, k: Any, layout: Any = JAXS, stride: int = 1, **options: Any) -> Any:
    strides = (stride,) * (x.ndim - 2)
    return lax.conv_general_dilated(x, k, strides, "SAME", dimension_numbers=layout, **options)


def graph_of(fn: Any, *arguments: Any) -> Graph:
    return simplify(import_hlo(lower(fn, *arguments)))


def count_copied(graph: Graph) -> int:
    """Arrays that a library would copy."""
    copied = 0
    for node in graph:
        if isinstance(node.attrs, ConvolutionAttrs):
            arrays = [graph[operand].array for operand in node.operands]
            found = canonical_convolution(node.attrs, *arrays, node.array)
            if isinstance(found, CanonicalConvolution):
                copied += sum(tensor.copied is not None for tensor in found.tensors)
    return copied


def ops_of(graph: Graph) -> list[str]:
    return [node.op for node in graph if node.op != "parameter"]


X, K = whole(2, 6, 5, 4), whole(3, 3, 4, 8)


def test_a_filter_is_transposed_in_front() -> None:
    graph = graph_of(convolve, X, K)
    rules: list[tuple[str, str]] = []
    arranged = arrange_convolutions(graph, lambda rule, node: rules.append((rule, node)))
    (name,) = graph.outputs
    assert rules == [("arrange_convolution", name)] and arranged.outputs == (name,)
    assert ops_of(arranged) == ["transpose", "convolution"]
    assert [arranged[o].shape for o in arranged[name].operands] == [(2, 6, 5, 4), (8, 3, 3, 4)]
    assert (count_copied(graph), count_copied(arranged)) == (1, 0)


def test_what_lies_right_stays() -> None:
    graph = graph_of(lambda x, k: convolve(x, k, OWN), X, whole(8, 3, 3, 4))
    assert ops_of(arrange_convolutions(graph)) == ["convolution"]
    other = graph_of(jnp.exp, X)
    assert arrange_convolutions(other) is other


def test_a_transpose_of_the_users_own_is_taken_back() -> None:
    def fn(x: Any, k: Any) -> Any:
        return convolve(x, k.transpose(1, 2, 3, 0))

    arranged = arrange_convolutions(graph_of(fn, X, whole(8, 3, 3, 4)))
    assert ops_of(arranged) == ["convolution"]


def test_all_of_a_model_with_its_channels_first() -> None:
    def fn(x: Any, k: Any, l: Any) -> Any:
        return jnp.tanh(convolve(jnp.tanh(convolve(x, k, FIRST)), l, FIRST))

    x, k, last = whole(2, 4, 6, 5), whole(8, 4, 3, 3), whole(8, 8, 3, 3)
    graph = arrange_convolutions(graph_of(fn, x, k, last))
    for node in graph:
        if node.op == "convolution":
            assert isinstance(node.attrs, ConvolutionAttrs)
            assert node.attrs.input_feature == node.attrs.output_feature == 3
    program = compile_hlo(lower(fn, x, k, last), gpu="h100").program
    # Only the first kernel is there for the transposes alone.
    kinds = [type(step) for step in program.steps]
    assert kinds == [KernelStep, LibraryStep, KernelStep, LibraryStep, KernelStep]


def test_a_filter_and_both_gradients_share_one_order() -> None:
    def step(x: Any, k: Any, dy: Any) -> Any:
        y, pull = jax.vjp(convolve, x, k)
        return y, *pull(dy)

    graph = graph_of(step, X, K, whole(2, 6, 5, 8))
    assert "reverse" not in ops_of(graph)  # the window is
    arranged = arrange_convolutions(graph)
    assert sorted(ops_of(arranged)) == ["convolution"] * 3 + ["transpose"] * 2
    assert count_copied(arranged) == 0


@pytest.mark.parametrize(
    "fn, arguments",
    [
        (lambda x, k: convolve(x, k, ("NDHWC", "DHWIO", "NDHWC")), (whole(1, 4, 4, 4, 2), whole(3, 3, 3, 2, 4))),
        (convolve, (X.astype(np.int32), K.astype(np.int32))),
    ],
    ids=["three spatial dimensions", "integers"],
)  # fmt: skip
def test_what_libraries_have_with_channels_first_stays(fn: Any, arguments: Any) -> None:
    assert ops_of(arrange_convolutions(graph_of(fn, *arguments))) == ["convolution"]


def test_double_precision_stays() -> None:
    with jax.enable_x64(True):
        graph = graph_of(convolve, X.astype(np.float64), K.astype(np.float64))
    assert ops_of(arrange_convolutions(graph)) == ["convolution"]


@st.composite
def layers(draw: st.DrawFn) -> tuple[Any, list[np.ndarray]]:
    """A layer with its gradients, in any order of dimensions."""
    spatial = draw(st.integers(1, 2))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    sizes = {"N": draw(st.integers(1, 3)), "C": groups * draw(st.integers(1, 3))}
    sizes |= {s: draw(st.integers(1, 6)) for s in "HW"[:spatial]}
    kernel = {"O": groups * draw(st.integers(1, 3)), "I": sizes["C"] // groups}
    kernel |= {s: draw(st.integers(1, 3)) for s in "HW"[:spatial]}
    orders = [
        "".join(draw(st.permutations(names)))
        for names in ("NC" + "HW"[:spatial], "OI" + "HW"[:spatial], "NC" + "HW"[:spatial])
    ]
    options = {
        "window_strides": draw(st.tuples(*[st.integers(1, 2)] * spatial)),
        "padding": "SAME",
        "rhs_dilation": draw(st.tuples(*[st.integers(1, 2)] * spatial)),
        "dimension_numbers": tuple(orders),
        "feature_group_count": groups,
    }

    def layer(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(x, k, **options)

    x, k = whole(*(sizes[d] for d in orders[0])), whole(*(kernel[d] for d in orders[1]))
    dy = whole(*jax.eval_shape(layer, x, k).shape)

    def step(x: Any, k: Any, dy: Any) -> Any:
        y, pull = jax.vjp(layer, x, k)
        return y, *pull(dy)

    return step, [x, k, dy]


@settings(max_examples=60, deadline=None)
@given(layers())
def test_any_layer_and_its_gradients_are_the_same(drawn: tuple[Any, list[np.ndarray]]) -> None:
    step, arguments = drawn
    imported = import_hlo(lower(step, *arguments))
    graph = simplify(imported)
    arranged = check_graph(arrange_convolutions(graph))
    # Only groups in the middle of a filter are left to the library.
    assert count_copied(arranged) <= sum(
        isinstance(node.attrs, ConvolutionAttrs) and node.attrs.feature_group_count > 1
        for node in graph
    )
    for found, want in zip(
        run_graph(arranged, arguments), run_graph(imported, arguments), strict=True
    ):
        np.testing.assert_array_equal(found, want)
