"""ConvolutionAttrs -> a convolution as cuDNN takes it: which of its three forms, where its tensors lie, in which types.

Takes the attributes of HLO's convolution and the types of its arrays, hands on a CanonicalConvolution.  The idea: HLO
has one op, in which the gradients are convolutions with other roles, dilations and paddings; cuDNN has a form for each,
and wants image and kernel of the convolution that they are gradients of.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from astitch.graph.ir import ArrayType, ConvolutionAttrs, DType, WindowDimension

MOST_SPATIAL = 3


class Form(enum.Enum):
    """What cuDNN computes from the other two of image, filter and response; its name there."""

    FORWARD = "conv_fprop"
    INPUT_GRADIENT = "conv_dgrad"
    FILTER_GRADIENT = "conv_wgrad"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as cuDNN gets it, packed with its channels last or first.

    shape: batch (of a filter: output features), features of a group or of all, spatial.  strides: in elements.
    copied: None where it is used where it lies.  Else (elements, stride) of the array's dimensions where it lies, in
    the order in which the copy is packed; a copy before the convolution, or after it for what it computes.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    copied: tuple[tuple[int, int], ...] | None = None

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class CanonicalConvolution:
    """response[n, k, y] = sum over c, r of image[n, c, y * stride + r * dilation - pre_padding] * filter[k, c, r].

    Each in as many dimensions as spatial ones, at least two.  The form says which of the three is computed: a gradient
    is the same sum over what its result does not have.  mirrored: the filter's r counts from its end.
    Groups are as many as image features for one feature of the filter.
    """

    form: Form
    image: Tensor
    filter: Tensor
    response: Tensor
    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    mirrored: bool

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Left operand, right operand and result of HLO's convolution."""
        match self.form:
            case Form.FORWARD:
                return self.image, self.filter, self.response
            case Form.INPUT_GRADIENT:
                return self.response, self.filter, self.image
            case Form.FILTER_GRADIENT:
                return self.image, self.response, self.filter


@dataclass(frozen=True, slots=True)
class NoForm:
    """Why cuDNN does not have a convolution."""

    reason: str


Reading = CanonicalConvolution | NoForm


def canonical_convolution(
    attrs: ConvolutionAttrs, lhs: ArrayType, rhs: ArrayType, result: ArrayType
) -> Reading:
    """cuDNN's form of a convolution of row-major arrays, or why there is none."""
    if not 1 <= len(attrs.window) <= MOST_SPATIAL:
        return NoForm(f"{len(attrs.window)} spatial dimensions, cuDNN has 1 to {MOST_SPATIAL}")
    if not (lhs.size and rhs.size and result.size):
        return NoForm("an array without elements")
    call = _Call(attrs, lhs, rhs, result)
    reasons = []
    for forms in _choose_forms(call):
        readings = [read(call) for read in forms]
        found = [reading for reading in readings if isinstance(reading, CanonicalConvolution)]
        if found:
            # The same product either way.  The arrays of a gradient lie as those of its convolution do: read as that
            # they need few copies.
            return min(found, key=lambda reading: sum(t.size for t in reading.tensors if t.copied))
        reasons += [reading.reason for reading in readings if isinstance(reading, NoForm)]
    return NoForm("; ".join(reasons))


def channels_last(attrs: ConvolutionAttrs, form: Form) -> tuple[tuple[int, ...] | None, ...]:
    """For the left operand, the right operand and the result of a convolution that is meant in a form: the dimensions
    of a packed tensor whose channels come last, in order.  None where groups stand in the middle of a dimension.
    """
    lhs = (attrs.input_batch, *attrs.input_spatial, attrs.input_feature)
    rhs = (attrs.kernel_output_feature, *attrs.kernel_spatial, attrs.kernel_input_feature)
    result = (attrs.output_batch, *attrs.output_spatial, attrs.output_feature)
    match form:
        case Form.FORWARD:
            return lhs, rhs, result
        case Form.INPUT_GRADIENT:
            return lhs, None if attrs.feature_group_count > 1 else _swap_ends(rhs), result
        case Form.FILTER_GRADIENT:
            return _swap_ends(lhs), _swap_ends(rhs), _swap_ends(result)


def _swap_ends(order: tuple[int, ...]) -> tuple[int, ...]:
    first, *spatial, last = order
    return last, *spatial, first


@dataclass(frozen=True, slots=True)
class _Call:
    attrs: ConvolutionAttrs
    lhs: ArrayType
    rhs: ArrayType
    result: ArrayType

    @property
    def reversed(self) -> set[bool]:
        """Which directions the window's dimensions of more than one element have."""
        return {w.reversed for w in self.attrs.window if w.size > 1}

    def image_axes(self) -> list[_Axes]:
        """The axes of the left operand: batch, feature, spatial."""
        a = self.attrs
        return _axes(self.lhs, (a.input_batch, a.input_feature, *a.input_spatial))

    def kernel_axes(self) -> list[_Axes]:
        """The axes of the right operand: output feature, input feature, spatial."""
        a = self.attrs
        order = (a.kernel_output_feature, a.kernel_input_feature, *a.kernel_spatial)
        return _axes(self.rhs, order)

    def output_axes(self) -> list[_Axes]:
        """The axes of the result: batch, feature, spatial."""
        a = self.attrs
        return _axes(self.result, (a.output_batch, a.output_feature, *a.output_spatial))


def _choose_forms(call: _Call) -> tuple[tuple[Callable[[_Call], Reading], ...], ...]:
    """The forms that a convolution can be: first those that are as good as each other, then others in turn."""
    attrs = call.attrs
    if any(w.base_dilation > 1 for w in attrs.window):
        return ((_read_input_gradient,),)
    if attrs.batch_group_count > 1:
        return ((_read_filter_gradient,),)
    if True in call.reversed and all(w.stride == 1 for w in attrs.window):
        # Of stride 1 the gradient is a convolution itself, but as a gradient its filter is not mirrored.
        return (_read_input_gradient,), (_read_forward,)
    if all(w.size == 1 and w.stride == 1 for w in attrs.window):
        # A product, whose filter HWIO lies as that of a gradient does.
        return ((_read_forward, _read_filter_gradient, _read_input_gradient),)
    return (_read_forward, _read_filter_gradient), (_read_input_gradient,)


# ---- the three forms ---------------------------------------------------------------------------------------------


def _read_forward(call: _Call) -> Reading:
    """The convolution itself."""
    window = call.attrs.window
    if len(call.reversed) > 1:
        return NoForm("conv_fprop: the kernel is reversed in some dimensions only")
    return _build(
        Form.FORWARD,
        call.image_axes(),
        call.kernel_axes(),
        call.output_axes(),
        padding=[w.padding_low for w in window],
        stride=[w.stride for w in window],
        dilation=[w.window_dilation for w in window],
        mirrored=True in call.reversed,
    )


def _read_input_gradient(call: _Call) -> Reading:
    """The gradient in the image: the response, spread by the stride, under the reversed filter with its roles swapped.

    out[x] = sum over y, r' of lhs[y] * kernel[r'], y * stride = x + r' * dilation - low;  r = size - 1 - r' is the
    filter's position, so that pre_padding = dilation * (size - 1) - low.
    """
    attrs, window = call.attrs, call.attrs.window
    if any(w.stride > 1 for w in window):
        return NoForm("conv_dgrad: a stride and a dilation of its input")
    if attrs.batch_group_count > 1:
        return NoForm("conv_dgrad: groups of the batch")
    if len(call.reversed) > 1:
        return NoForm("conv_dgrad: the kernel is reversed in some dimensions only")
    (results, by_result), (summed, by_summed) = (axes[0] for axes in call.kernel_axes()[:2])
    groups = attrs.feature_group_count
    features = results // groups
    return _build(
        Form.INPUT_GRADIENT,
        call.output_axes(),
        # HLO's groups stand in what the kernel hands on, the filter's in what it handed on before.
        [
            [(groups, features * by_result), (summed, by_summed)],
            [(features, by_result)],
            *call.kernel_axes()[2:],
        ],
        call.image_axes(),
        padding=[_reach(w) - w.padding_low for w in window],
        stride=[w.base_dilation for w in window],
        dilation=[w.window_dilation for w in window],
        mirrored=call.reversed == {False},
    )


def _read_filter_gradient(call: _Call) -> Reading:
    """The gradient in the filter: the image, features as batch, under the response, which is what slides.

    out[c, k, r] = sum over n, y of lhs[c, n, r * window stride + y * window dilation - low] * rhs[n, k, y].
    """
    attrs, window = call.attrs, call.attrs.window
    if attrs.feature_group_count > 1:
        return NoForm("conv_wgrad: groups of what is summed")
    if True in call.reversed:
        return NoForm("conv_wgrad: a reversed response")
    features, batch, *spatial = call.image_axes()
    kept, outputs, *positions = call.output_axes()
    of_response, summed, *responses = call.kernel_axes()
    return _build(
        Form.FILTER_GRADIENT,
        [batch, features, *spatial],
        [outputs, kept, *positions],
        [summed, of_response, *responses],
        padding=[w.padding_low for w in window],
        stride=[w.window_dilation for w in window],
        dilation=[w.stride for w in window],
        mirrored=False,
    )


def _build(
    form: Form,
    image: list[_Axes],
    filter_: list[_Axes],
    response: list[_Axes],
    *,
    padding: list[int],
    stride: list[int],
    dilation: list[int],
    mirrored: bool,
) -> Reading:
    if len(padding) == 1:  # cuDNN starts at two spatial dimensions
        image, filter_, response = ([*a[:2], [(1, 1)], *a[2:]] for a in (image, filter_, response))
        padding, stride, dilation = [0, *padding], [1, *stride], [1, *dilation]
    tensors = _place_tensor(image), _place_tensor(filter_), _place_tensor(response)
    if min(padding) < 0:
        return NoForm(f"{form.value}: a padding of {min(padding)} elements")
    post = []
    for i, (pre, step, apart) in enumerate(zip(padding, stride, dilation, strict=True)):
        width, size, count = (tensor.shape[2 + i] for tensor in tensors)
        # The last position of the response ends here or less than a step before.
        least = (count - 1) * step + apart * (size - 1) + 1 - width - pre
        most = least + step - 1
        if most < 0:
            return NoForm(f"{form.value}: {-most} elements at the end that nothing reads")
        # As at the start where that is the same: more algorithms have it.
        post.append(max(least, 0, min(pre, most)))
    return CanonicalConvolution(
        form, *tensors, tuple(padding), tuple(post), tuple(stride), tuple(dilation), mirrored
    )


def _reach(window: WindowDimension) -> int:
    """Elements from the first to the last position of the window."""
    return window.window_dilation * (window.size - 1)


# ---- tensors -----------------------------------------------------------------------------------------------------

_Axes = list[tuple[int, int]]
"""The array's dimensions that one of cuDNN's is made of, outermost first: elements and stride."""


def _axes(type_: ArrayType, order: Sequence[int]) -> list[_Axes]:
    """The extent and stride of each dimension of a row-major array, in this order."""
    shape = type_.shape
    return [[(shape[d], math.prod(shape[d + 1 :]))] for d in order]


def _place_tensor(axes: list[_Axes]) -> Tensor:
    """The tensor where it lies if it is packed in one of cuDNN's two orders, else its copy with channels last."""
    shape = tuple(math.prod(count for count, _ in axis) for axis in axes)
    last = (0, *range(2, len(axes)), 1)
    for order in (last, range(len(axes))):
        packed = _pack(shape, order)
        if all(_merge(axis) in (None, stride) for axis, stride in zip(axes, packed, strict=True)):
            return Tensor(shape, packed)
    return Tensor(shape, _pack(shape, last), tuple(part for d in last for part in axes[d]))


def _pack(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a packed tensor whose dimensions lie in this order, the outermost first."""
    strides, stride = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = stride
        stride *= shape[d]
    return tuple(strides)


def _merge(axis: _Axes) -> int | None:
    """The stride of dimensions that are one; 0 where they cannot be, None for one element."""
    wide = [(count, stride) for count, stride in axis if count > 1]
    for (_, outer), (count, inner) in pairwise(wide):
        if outer != count * inner:
            return 0
    return wide[-1][1] if wide else None


# ---- types -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConvolutionTypes:
    """cuDNN's names of the type of all three tensors and of that of the sum.  exact: without tensor cores, which round
    f32 to TF32."""

    tensor: str
    compute: str
    exact: bool = False


def choose_convolution_types(
    attrs: ConvolutionAttrs, lhs: DType, rhs: DType, result: DType
) -> ConvolutionTypes | NoForm:
    """cuDNN's types for a convolution; 16-bit types are summed in f32.

    f32 may use TF32 unless an operand asks for HIGHEST, as XLA does.
    """
    if not lhs is rhs is result:
        return NoForm(f"types that differ: {lhs.value}, {rhs.value} -> {result.value}")
    if lhs not in _TYPES:
        return NoForm(f"{lhs.value}, for which cuDNN is not asked")
    compute = "DOUBLE" if lhs is DType.F64 else "FLOAT"
    exact = lhs is DType.F32 and "HIGHEST" in attrs.precision
    return ConvolutionTypes(_TYPES[lhs], compute, exact)


_TYPES = {
    DType.F16: "HALF",
    DType.BF16: "BFLOAT16",
    DType.F32: "FLOAT",
    DType.F64: "DOUBLE",
}


def describe_convolution(
    attrs: ConvolutionAttrs, lhs: ArrayType, rhs: ArrayType, result: ArrayType
) -> str:
    """cuDNN's form, and what is copied for it; or why XLA does it."""
    conv = canonical_convolution(attrs, lhs, rhs, result)
    types = choose_convolution_types(attrs, lhs.dtype, rhs.dtype, result.dtype)
    for found in (conv, types):
        if isinstance(found, NoForm):
            return f"XLA's: {found.reason}"
    assert isinstance(conv, CanonicalConvolution)
    names = ("left operand", "right operand", "result")
    copied = [name for name, t in zip(names, conv.tensors, strict=True) if t.copied]
    mirrored = ", of the mirrored filter" if conv.mirrored else ""
    return f"{conv.form.value}{mirrored}, {' and '.join(copied) or 'nothing'} copied"
