"""What cuDNN is told of a convolution: interpreted on the host, it is HLO's convolution."""

from __future__ import annotations

import collections
import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from convolve import interpret
from hlo_runner import lower
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from jax import lax

from astitch.graph.convolution import (
    CanonicalConvolution,
    ConvolutionTypes,
    Form,
    NoForm,
    canonical_convolution,
    choose_convolution_types,
)
from astitch.graph.ir import ArrayType, ConvolutionAttrs, DType, Graph, Node, WindowDimension
from astitch.graph.reference import eval_node
from astitch.hlo_import import import_hlo

MODULES = Path(__file__).parents[1] / "data" / "hlo"


def find_convolutions(graph: Graph) -> list[tuple[Node, ConvolutionAttrs, list[ArrayType]]]:
    return [
        (node, node.attrs, [graph[operand].array for operand in node.operands])
        for node in graph
        if isinstance(node.attrs, ConvolutionAttrs)
    ]


def read(node: Node, attrs: ConvolutionAttrs, types: list[ArrayType]) -> Any:
    return canonical_convolution(attrs, types[0], types[1], node.array)


def check_meaning(conv: CanonicalConvolution, node: Node, types: list[ArrayType]) -> None:
    """Whole numbers, so that the order of sums is nothing to the result."""
    rng = np.random.default_rng(3)
    arrays = [rng.integers(-3, 4, t.shape).astype(np.float64) for t in types]
    wide = replace(node, type=replace(node.array, dtype=DType.F64))
    result = np.full(node.shape, np.nan)
    interpret(conv, *arrays, result)
    np.testing.assert_array_equal(result, eval_node(wide, arrays)[0])


# ---- the meaning -------------------------------------------------------------------------------------------------


def permuted(draw: st.DrawFn, rank: int) -> tuple[int, ...]:
    return tuple(draw(st.permutations(range(rank))))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Node, ConvolutionAttrs, list[ArrayType]]:
    """A convolution of any attributes, one of cuDNN's forms or not."""
    spatial = draw(st.integers(1, 3))
    most = 6 if spatial < 3 else 4
    one = st.just(1)
    spread, strided = draw(st.sampled_from([(one, st.integers(1, 3)), (st.integers(1, 3), one)]))
    turned = draw(st.booleans())
    window, extents, counts = [], [], []
    for _ in range(spatial):
        extent, base, dilation = draw(st.integers(1, most)), draw(spread), draw(st.integers(1, 2))
        low, high = draw(st.integers(-1, 3)), draw(st.integers(-1, 3))
        room = (extent - 1) * base + 1 + low + high
        assume(room > 0)
        size = draw(st.integers(1, min(4, (room - 1) // dilation + 1)))
        stride = draw(strided)
        counts.append((room - dilation * (size - 1) - 1) // stride + 1)
        window.append(WindowDimension(size, stride, low, high, dilation, base, turned))
        extents.append(extent)
    groups, batch_groups = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (3, 1), (1, 2)]))
    batch, inputs = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    outputs = groups * batch_groups * draw(st.integers(1, 2))
    orders = [permuted(draw, 2 + spatial) for _ in range(3)]
    shapes = [
        (batch * batch_groups, inputs * groups, *extents),
        (outputs, inputs, *(w.size for w in window)),
        (batch, outputs, *counts),
    ]
    image, kernel, output = orders
    attrs = ConvolutionAttrs(
        tuple(window), image[0], image[1], image[2:], kernel[1], kernel[0], kernel[2:], output[0], output[1],
        output[2:], groups, batch_groups,
    )  # fmt: skip
    types = []
    for order, shape in zip(orders, shapes, strict=True):
        types.append(ArrayType(DType.F64, tuple(shape[order.index(d)] for d in range(len(order)))))
    return Node("c", "convolution", types.pop(), ("x", "k"), attrs), attrs, types


@settings(max_examples=400, deadline=None)
@given(convolutions())
def test_what_cudnn_is_told_is_what_hlo_says(drawn: Any) -> None:
    node, attrs, types = drawn
    conv = read(node, attrs, types)
    if isinstance(conv, NoForm):
        event("no form")
        assert conv.reason
        return
    event(conv.form.name)
    check_meaning(conv, node, types)


@st.composite
def layers(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """(a layer of a network, its image, its kernel)."""
    spatial = draw(st.integers(1, 3))
    letters = "HWD"[:spatial]
    layouts = (
        (f"N{letters}C", f"{letters}IO", f"N{letters}C"),
        (f"NC{letters}", f"OI{letters}", f"NC{letters}"),
    )
    layout = draw(st.sampled_from(layouts))
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    stride = [draw(st.integers(1, 3)) for _ in letters]
    dilation = [draw(st.integers(1, 2)) for _ in letters]
    padding = [(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in letters]
    sizes = [draw(st.integers(1, 3)) for _ in letters]
    extents = [
        d * (s - 1) + 1 + draw(st.integers(0, 5)) for d, s in zip(dilation, sizes, strict=True)
    ]
    image = dict(zip(f"NC{letters}", [2, 4, *extents], strict=True))
    kernel = dict(zip(f"OI{letters}", [8, 4 // groups, *sizes], strict=True))

    def convolve(x: jax.Array, k: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x,
            k,
            stride,
            padding,
            None,
            dilation,
            dimension_numbers=layout,
            feature_group_count=groups,
        )

    arrays = [
        np.zeros([sizes[c] for c in name], np.float32)
        for name, sizes in zip(layout, (image, kernel), strict=False)
    ]
    return convolve, *arrays


@settings(max_examples=40, deadline=None)
@given(layers())
def test_layers_and_their_gradients_have_forms(drawn: Any) -> None:
    convolve, x, k = drawn

    def step(x: jax.Array, k: jax.Array) -> Any:
        y, pull = jax.vjp(convolve, x, k)
        return y, pull(y)

    found = find_convolutions(import_hlo(lower(step, x, k)))
    assert len(found) == 3
    for call in found:
        conv = read(*call)
        if isinstance(
            conv, NoForm
        ):  # the only thing that a gradient may crop is what its layer did not read
            assert "padding of -" in conv.reason or "nothing reads" in conv.reason
        else:
            check_meaning(conv, call[0], call[2])


# ---- which form --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_layer_and_its_gradients(layout: Any, stride: int) -> None:
    last = layout[0] == "NHWC"

    def step(x: jax.Array, k: jax.Array) -> Any:
        y, pull = jax.vjp(
            lambda x, k: lax.conv_general_dilated(
                x, k, (stride, stride), "SAME", dimension_numbers=layout
            ),
            x,
            k,
        )
        return y, pull(y)

    shapes = ((8, 16, 16, 32), (3, 3, 32, 64)) if last else ((8, 32, 16, 16), (64, 32, 3, 3))
    found = find_convolutions(import_hlo(lower(step, *(np.zeros(s, np.float32) for s in shapes))))
    convs = [read(*call) for call in found]
    # Of stride 1 the gradient in the image is a convolution itself.
    in_image = Form.FORWARD if stride == 1 else Form.INPUT_GRADIENT
    assert [c.form for c in convs] == [Form.FORWARD, in_image, Form.FILTER_GRADIENT]
    for conv in convs:
        assert conv.image.copied is conv.response.copied is None
        assert conv.image.strides[1 if last else -1] == 1
    assert convs[2].image.shape == (8, 32, 16, 16) and convs[2].filter.shape == (64, 32, 3, 3)
    # HWIO is none of cuDNN's orders, nor is OIHW with I and O exchanged.
    copied = [c.filter.copied is not None for c in convs]
    assert copied == ([True] * 3 if last else [False, stride == 1, False])
    assert convs[0].pre_padding == ((1, 1) if stride == 1 else (0, 0))
    assert convs[0].post_padding == (1, 1)


def test_a_kernel_of_one_position_is_not_copied() -> None:
    def convolve(x: jax.Array, k: jax.Array) -> Any:
        return lax.conv_general_dilated(
            x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    module = lower(
        convolve, np.zeros((8, 16, 16, 32), np.float32), np.zeros((1, 1, 32, 64), np.float32)
    )
    (call,) = find_convolutions(import_hlo(module))
    conv = read(*call)
    assert conv.form is Form.INPUT_GRADIENT and not conv.mirrored
    assert all(tensor.copied is None for tensor in conv.tensors)
    check_meaning(conv, call[0], call[2])


def test_a_training_step_of_crnn() -> None:
    graph = import_hlo(gzip.decompress((MODULES / "crnn_train.hlo.pb.gz").read_bytes()))
    convs = [read(*call) for call in find_convolutions(graph)]
    assert collections.Counter(c.form for c in convs) == {Form.FORWARD: 13, Form.FILTER_GRADIENT: 7}
    # Images lie with channels last; kernels, height x width x input x output, are copied.
    assert all(c.image.copied is c.response.copied is None for c in convs)
    assert [c.filter.copied is not None for c in convs].count(True) == 20


ATTRS = ConvolutionAttrs(
    (WindowDimension(3, padding_low=1, padding_high=1), WindowDimension(3)),
    0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2),
)  # fmt: skip


def with_window(*changes: dict[str, Any]) -> ConvolutionAttrs:
    window = [replace(w, **change) for w, change in zip(ATTRS.window, changes, strict=True)]
    return replace(ATTRS, window=tuple(window))


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        (with_window({"reversed": True}, {}), "reversed in some dimensions only"),
        (with_window({"padding_low": -1, "stride": 2}, {}), "a padding of -1 elements"),
        (
            with_window({"base_dilation": 2, "stride": 2}, {}),
            "a stride and a dilation of its input",
        ),
        (
            with_window({"padding_high": -3, "stride": 2}, {}),
            "2 elements at the end that nothing reads",
        ),
    ],
)
def test_what_has_no_form(attrs: ConvolutionAttrs, reason: str) -> None:
    heights = [(9 - 1) * w.base_dilation + 1 + w.padding_low + w.padding_high for w in attrs.window]
    counts = [(n - 3) // w.stride + 1 for n, w in zip(heights, attrs.window, strict=True)]
    types = [ArrayType(DType.F32, s) for s in ((2, 9, 9, 4), (3, 3, 4, 8), (2, *counts, 8))]
    found = canonical_convolution(attrs, *types)
    assert isinstance(found, NoForm) and reason in found.reason


def test_dimensions_that_cudnn_does_not_have() -> None:
    none = replace(ATTRS, window=(), input_spatial=(), kernel_spatial=(), output_spatial=())
    types = [ArrayType(DType.F32, s) for s in ((2, 4), (4, 8), (2, 8))]
    assert canonical_convolution(none, *types) == NoForm("0 spatial dimensions, cuDNN has 1 to 3")
    empty = [ArrayType(DType.F32, s) for s in ((0, 9, 9, 4), (3, 3, 4, 8), (0, 9, 7, 8))]
    assert canonical_convolution(ATTRS, *empty) == NoForm("an array without elements")


# ---- types -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "precision", "types"),
    [
        (DType.F16, "DEFAULT", ConvolutionTypes("HALF", "FLOAT")),
        (DType.BF16, "HIGHEST", ConvolutionTypes("BFLOAT16", "FLOAT")),
        (DType.F32, "DEFAULT", ConvolutionTypes("FLOAT", "FLOAT")),
        (DType.F32, "HIGH", ConvolutionTypes("FLOAT", "FLOAT")),
        (DType.F32, "HIGHEST", ConvolutionTypes("FLOAT", "FLOAT", exact=True)),
        (DType.F64, "DEFAULT", ConvolutionTypes("DOUBLE", "DOUBLE")),
    ],
)
def test_types(dtype: DType, precision: str, types: ConvolutionTypes) -> None:
    attrs = replace(ATTRS, precision=("DEFAULT", precision))
    assert choose_convolution_types(attrs, dtype, dtype, dtype) == types


def test_types_that_cudnn_is_not_asked_for() -> None:
    assert choose_convolution_types(ATTRS, DType.BF16, DType.BF16, DType.F32) == NoForm(
        "types that differ: bf16, bf16 -> f32"
    )
    assert choose_convolution_types(ATTRS, DType.S8, DType.S8, DType.S8) == NoForm(
        "s8, for which cuDNN is not asked"
    )
