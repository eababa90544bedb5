"""Ops that a library computes: dot and convolution."""

# NumPy's stubs give Any for arithmetic on arrays of an unknown dtype, which is what all of this is.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from astitch.graph.ir import ArrayType, ConvolutionAttrs, DotAttrs, Node, Type, WindowDimension
from astitch.graph.ops.arrays import Array, convert, pad, widen, widen_more
from astitch.graph.ops.hlo_fields import FROM_ONE, NUMBERS, PRECISIONS, WINDOW, Attributes, Field
from astitch.graph.ops.row import Kind, Op
from astitch.graph.ops.rules import (
    array_of_result,
    arrays_of,
    attrs_of,
    check_distinct,
    count_windows,
    require,
    without,
)


def _infer_dot(node: Node, operands: Sequence[Type]) -> Type:
    x, y = arrays_of(operands, 2)
    a = attrs_of(node, DotAttrs)
    check_distinct("lhs dimensions", (*a.lhs_contracting, *a.lhs_batch), x.rank)
    check_distinct("rhs dimensions", (*a.rhs_contracting, *a.rhs_batch), y.rank)
    for what, left, right in (
        ("contracting", a.lhs_contracting, a.rhs_contracting),
        ("batch", a.lhs_batch, a.rhs_batch),
    ):
        require(
            [x.shape[d] for d in left] == [y.shape[d] for d in right],
            f"{what} dimensions {left} of {x} and {right} of {y} differ",
        )
    _check_precision(a.precision)
    shape = (
        *(x.shape[d] for d in a.lhs_batch),
        *without(x.shape, (*a.lhs_contracting, *a.lhs_batch)),
        *without(y.shape, (*a.rhs_contracting, *a.rhs_batch)),
    )
    return ArrayType(array_of_result(node).dtype, shape)


def _check_precision(precision: Sequence[str]) -> None:
    require(len(precision) == 2, f"{len(precision)} precisions, one for each factor was expected")


def _infer_convolution(node: Node, operands: Sequence[Type]) -> Type:
    x, kernel = arrays_of(operands, 2)
    a = attrs_of(node, ConvolutionAttrs)
    rank = len(a.window) + 2
    for what, dimensions, array in (
        ("input", (a.input_batch, a.input_feature, *a.input_spatial), x),
        ("kernel", (a.kernel_input_feature, a.kernel_output_feature, *a.kernel_spatial), kernel),
        ("output", (a.output_batch, a.output_feature, *a.output_spatial), array_of_result(node)),
    ):
        require(
            sorted(dimensions) == list(range(rank)) and array.rank == rank,
            f"{what} dimensions {dimensions} of {array} under a window of rank {len(a.window)}",
        )
    features = kernel.shape[a.kernel_input_feature]
    require(
        x.shape[a.input_feature] == features * a.feature_group_count,
        f"{x.shape[a.input_feature]} input features in {a.feature_group_count} groups, the kernel "
        f"takes {features}",
    )
    for groups, extent, what in (
        (a.feature_group_count, kernel.shape[a.kernel_output_feature], "output features"),
        (a.batch_group_count, kernel.shape[a.kernel_output_feature], "output features"),
        (a.batch_group_count, x.shape[a.input_batch], "images"),
    ):
        require(groups >= 1 and extent % groups == 0, f"{extent} {what} are not in {groups} groups")
    require(
        a.feature_group_count == 1 or a.batch_group_count == 1,
        f"{a.feature_group_count} groups of features and {a.batch_group_count} of images at once",
    )
    _check_precision(a.precision)
    shape = [0] * rank
    shape[a.output_batch] = x.shape[a.input_batch] // a.batch_group_count
    shape[a.output_feature] = kernel.shape[a.kernel_output_feature]
    for i, w in enumerate(a.window):
        size = kernel.shape[a.kernel_spatial[i]]
        require(w.size == size, f"window dimension {i} has {w.size}, the kernel {size} elements")
        shape[a.output_spatial[i]] = count_windows(x.shape[a.input_spatial[i]], w)
    return ArrayType(array_of_result(node).dtype, tuple(shape))


def _widen_factors(x: Array, y: Array, result: np.dtype) -> tuple[Array, Array]:
    """Both factors in the type that the sum of products is computed in."""
    if x.dtype.kind in "iub" and result.kind in "iub":
        common = np.dtype(np.int64) if result == np.bool_ else result
        return x.astype(common), y.astype(common)
    wide = np.result_type(_wide_type(x), _wide_type(y))
    return widen(x).astype(wide), widen(y).astype(wide)


def _wide_type(x: Array) -> np.dtype:
    return widen_more(np.empty(0, x.dtype)).dtype


def meaning_of_dot(node: Node, x: Array, y: Array) -> Array:
    a = attrs_of(node, DotAttrs)
    wide_x, wide_y = _widen_factors(x, y, node.dtype.numpy)
    x_free = [d for d in range(x.ndim) if d not in a.lhs_batch and d not in a.lhs_contracting]
    y_free = [d for d in range(y.ndim) if d not in a.rhs_batch and d not in a.rhs_contracting]
    batch = [x.shape[d] for d in a.lhs_batch]
    depth = math.prod(x.shape[d] for d in a.lhs_contracting)
    rows, columns = math.prod(x.shape[d] for d in x_free), math.prod(y.shape[d] for d in y_free)
    left = wide_x.transpose([*a.lhs_batch, *x_free, *a.lhs_contracting]).reshape(
        *batch, rows, depth
    )
    right = wide_y.transpose([*a.rhs_batch, *a.rhs_contracting, *y_free]).reshape(
        *batch, depth, columns
    )
    return convert(np.matmul(left, right).reshape(node.shape), node.dtype.numpy)


def meaning_of_convolution(node: Node, x: Array, kernel: Array) -> Array:
    """A product over features for each kernel position, or output position if fewer."""
    a = attrs_of(node, ConvolutionAttrs)
    x, kernel = _widen_factors(x, kernel, node.dtype.numpy)
    groups = a.feature_group_count * a.batch_group_count
    # images: (group, batch, spatial ..., feature); kernel: (group, spatial ..., input feature,
    # output feature)
    images = x.transpose([a.input_batch, *a.input_spatial, a.input_feature])
    images = _dilate_and_pad(images, a.window)
    if a.batch_group_count > 1:
        images = images.reshape(groups, -1, *images.shape[1:])
    else:
        images = np.moveaxis(
            images.reshape(*images.shape[:-1], groups, images.shape[-1] // groups), -2, 0
        )
    kernel = kernel.transpose([*a.kernel_spatial, a.kernel_input_feature, a.kernel_output_feature])
    kernel = np.flip(kernel, tuple(i for i, w in enumerate(a.window) if w.reversed))
    kernel = np.moveaxis(
        kernel.reshape(*kernel.shape[:-1], groups, kernel.shape[-1] // groups), -2, 0
    )
    spatial = tuple(node.shape[d] for d in a.output_spatial)
    extents = tuple(w.size for w in a.window)
    batch, inputs, outputs = images.shape[1], kernel.shape[-2], kernel.shape[-1]
    result = np.zeros((groups, batch, *spatial, outputs), np.result_type(images, kernel))
    if 0 not in result.shape and math.prod(extents) <= math.prod(spatial):
        for k in np.ndindex(*extents):
            where = [
                slice(
                    i * w.window_dilation, i * w.window_dilation + (n - 1) * w.stride + 1, w.stride
                )
                for i, n, w in zip(k, spatial, a.window, strict=True)
            ]
            patch = images[(slice(None), slice(None), *where)].reshape(groups, -1, inputs)
            result += np.matmul(patch, kernel[(slice(None), *k)]).reshape(result.shape)
    elif 0 not in result.shape:
        flat_kernel = kernel.reshape(groups, -1, outputs)
        for o in np.ndindex(*spatial):
            where = [
                slice(
                    i * w.stride,
                    i * w.stride + (w.size - 1) * w.window_dilation + 1,
                    w.window_dilation,
                )
                for i, w in zip(o, a.window, strict=True)
            ]
            patch = images[(slice(None), slice(None), *where)].reshape(groups, batch, -1)
            result[(slice(None), slice(None), *o)] = np.matmul(patch, flat_kernel)
    merged = np.moveaxis(result, 0, -2).reshape(batch, *spatial, groups * outputs)
    order = [a.output_batch, *a.output_spatial, a.output_feature]
    return convert(merged.transpose([order.index(d) for d in range(len(order))]), node.dtype.numpy)


def _dilate_and_pad(images: Array, window: Sequence[WindowDimension]) -> Array:
    low = [0, *(w.padding_low for w in window), 0]
    high = [0, *(w.padding_high for w in window), 0]
    interior = [0, *(w.base_dilation - 1 for w in window), 0]
    return pad(images, np.zeros((), images.dtype), low, high, interior)


_NUMBERS_OF_DOT = "dot_dimension_numbers"
_DOT = Attributes(
    DotAttrs,
    (
        Field("lhs_contracting", f"{_NUMBERS_OF_DOT}.lhs_contracting_dimensions", NUMBERS),
        Field("rhs_contracting", f"{_NUMBERS_OF_DOT}.rhs_contracting_dimensions", NUMBERS),
        Field("lhs_batch", f"{_NUMBERS_OF_DOT}.lhs_batch_dimensions", NUMBERS),
        Field("rhs_batch", f"{_NUMBERS_OF_DOT}.rhs_batch_dimensions", NUMBERS),
        Field("precision", "precision_config.operand_precision", PRECISIONS),
        Field("algorithm", "precision_config.algorithm"),
    ),
)
_NUMBERS_OF_CONVOLUTION = "convolution_dimension_numbers"
_CONVOLUTION = Attributes(
    ConvolutionAttrs,
    (
        Field("input_batch", f"{_NUMBERS_OF_CONVOLUTION}.input_batch_dimension"),
        Field("input_feature", f"{_NUMBERS_OF_CONVOLUTION}.input_feature_dimension"),
        Field("input_spatial", f"{_NUMBERS_OF_CONVOLUTION}.input_spatial_dimensions", NUMBERS),
        Field("kernel_input_feature", f"{_NUMBERS_OF_CONVOLUTION}.kernel_input_feature_dimension"),
        Field(
            "kernel_output_feature", f"{_NUMBERS_OF_CONVOLUTION}.kernel_output_feature_dimension"
        ),
        Field("kernel_spatial", f"{_NUMBERS_OF_CONVOLUTION}.kernel_spatial_dimensions", NUMBERS),
        Field("output_batch", f"{_NUMBERS_OF_CONVOLUTION}.output_batch_dimension"),
        Field("output_feature", f"{_NUMBERS_OF_CONVOLUTION}.output_feature_dimension"),
        Field("output_spatial", f"{_NUMBERS_OF_CONVOLUTION}.output_spatial_dimensions", NUMBERS),
        Field("window", "window.dimensions", WINDOW),
        Field("feature_group_count", "feature_group_count", FROM_ONE),
        Field("batch_group_count", "batch_group_count", FROM_ONE),
        Field("precision", "precision_config.operand_precision", PRECISIONS),
    ),
)

ROWS: dict[str, Op] = {
    "dot": Op(Kind.COMPUTE, meaning=meaning_of_dot, rule=_infer_dot, attributes=_DOT),
    "convolution": Op(
        Kind.COMPUTE,
        meaning=meaning_of_convolution,
        rule=_infer_convolution,
        attributes=_CONVOLUTION,
    ),
}
