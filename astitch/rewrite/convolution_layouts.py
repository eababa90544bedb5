"""Graph -> Graph: convolutions whose arrays lie with their channels last, where libraries convolve fastest.

cuDNN's kernels for tensor cores read and write images with the channels innermost and filters with the output features
outermost.  What lies otherwise (JAX's and TensorFlow's HWIO filters, all of an NCHW model) a library or XLA copies
before and behind each convolution.  Written out before ops are stitched these copies are part of the kernels around.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from astitch.device.gpu import Gpu
from astitch.graph.convolution import (
    CanonicalConvolution,
    Form,
    canonical_convolution,
    channels_last,
)
from astitch.graph.ir import (
    ArrayType,
    ConvolutionAttrs,
    DType,
    Graph,
    Node,
    TransposeAttrs,
    WindowDimension,
)
from astitch.graph.ops import OPS, Kind
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.lift_transposes import Lift
from astitch.rewrite.simplify import find_arranged_rules, rewrite_graph

HOPPER = 90
"""The compute capability from which XLA convolves f32, and in one dimension, with channels last."""


def arrange_convolutions(graph: Graph, gpu: Gpu, log: Log | None = None) -> Graph:
    """The same function; `log` hears of every convolution that gets or gives an array in another order.

    graph: simplified.
    """
    if not any(isinstance(node.attrs, ConvolutionAttrs) for node in graph):
        return graph
    heard: Log = log or (lambda rule, node: None)

    def arrange(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        attrs = node.attrs
        if not isinstance(attrs, ConvolutionAttrs):
            return None
        arrays = [*(draft[name].array for name in node.operands), node.array]
        if not _has_channels_last(attrs, arrays, gpu):
            return None
        orders = _find_orders(attrs, arrays)
        if not any(orders):
            return None
        heard("arrange_convolution", node.name)
        return _put_arranged(draft, node, attrs, orders)

    arranged = rewrite_graph(graph, heard, arrange, rules=find_arranged_rules)
    return _compute_as_they_lie(arranged, heard)


def _compute_as_they_lie(graph: Graph, log: Log) -> Graph:
    """Ops between convolutions, over arrays as the convolutions give and take them.

    Gradients of filters go to an optimizer, whose arrays lie as the parameters do: they are transposed behind.
    """
    results = {node.name for node in graph if _is_given_back(graph, node)}
    if not results:
        return graph
    lift = Lift(turns_others=True)

    def compute(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if node.name not in results:
            return lift.put(node, draft)
        assert isinstance(node.attrs, TransposeAttrs)
        log("compute_as_it_lies", node.name)
        return lift.note(draft, draft.put(node), node.operands[0], node.attrs.permutation)

    return rewrite_graph(graph, log, compute, rules=find_arranged_rules)


def _is_given_back(graph: Graph, node: Node) -> bool:
    """Is it a transposed result of a convolution, of which element-wise ops make an operand that is transposed back?"""
    if not isinstance(node.attrs, TransposeAttrs):
        return False
    if not isinstance(graph[node.operands[0]].attrs, ConvolutionAttrs):
        return False
    back = TransposeAttrs(tuple(map(node.attrs.permutation.index, range(node.array.rank))))
    seen, waiting = {node.name}, [node.name]
    while waiting:
        for user in (graph[name] for name in graph.users[waiting.pop()]):
            if user.attrs == back:
                return True
            if user.name not in seen and OPS[user.op].kind is Kind.ELEMENTWISE:
                seen.add(user.name)
                waiting.append(user.name)
    return False


def _has_channels_last(attrs: ConvolutionAttrs, arrays: Sequence[ArrayType], gpu: Gpu) -> bool:
    """Does XLA convolve so (xla/service/gpu/transforms/layout_assignment.cc)?  Else it would turn the arrays again."""
    dtypes = {array.dtype for array in arrays}
    if gpu.compute_capability >= HOPPER:
        return len(attrs.window) <= 2 and dtypes <= {DType.F16, DType.BF16, DType.F32}
    return len(attrs.window) == 2 and dtypes <= {DType.F16, DType.BF16}


_Orders = tuple[tuple[int, ...] | None, ...]
"""For the left operand, the right operand and the result: the order in which the dimensions should lie; None where they
do."""


def _find_orders(attrs: ConvolutionAttrs, arrays: Sequence[ArrayType]) -> _Orders:
    lhs, rhs, result = arrays
    reading = canonical_convolution(attrs, lhs, rhs, result)
    if not isinstance(reading, CanonicalConvolution):
        return (None, None, None)
    # A product of matrices is all three forms.  Read as a gradient it needs no copy of its filter, but XLA does not.
    product = all(replace(w, reversed=False) == WindowDimension(1) for w in attrs.window)
    form = Form.FORWARD if product and attrs.batch_group_count == 1 else reading.form
    return tuple(
        None if order is None or _lies(array, order) else order
        for array, order in zip(arrays, channels_last(attrs, form), strict=True)
    )


def _lies(array: ArrayType, order: Sequence[int]) -> bool:
    """Would a transpose to that order leave every element where it is?"""
    wide = [d for d in order if array.shape[d] > 1]
    return wide == sorted(wide)


def _put_arranged(draft: Draft, node: Node, attrs: ConvolutionAttrs, orders: _Orders) -> str:
    """The convolution of operands in these orders, and its result in the node's own."""
    operands = tuple(
        name if order is None else draft.add(node, "transpose", *_transposed(draft, name, order))
        for name, order in zip(node.operands, orders[:2], strict=True)
    )
    images, kernels, results = map(_places, orders)
    attrs = replace(
        attrs,
        input_batch=images(attrs.input_batch),
        input_feature=images(attrs.input_feature),
        input_spatial=tuple(map(images, attrs.input_spatial)),
        kernel_input_feature=kernels(attrs.kernel_input_feature),
        kernel_output_feature=kernels(attrs.kernel_output_feature),
        kernel_spatial=tuple(map(kernels, attrs.kernel_spatial)),
        output_batch=results(attrs.output_batch),
        output_feature=results(attrs.output_feature),
        output_spatial=tuple(map(results, attrs.output_spatial)),
    )
    order = orders[2]
    if order is None:
        return draft.put(replace(node, operands=operands, attrs=attrs))
    arranged = draft.add(node, "convolution", _permuted(node.array, order), operands, attrs)
    back = TransposeAttrs(tuple(map(results, range(node.array.rank))))
    return draft.put(replace(node, op="transpose", operands=(arranged,), attrs=back))


def _transposed(
    draft: Draft, name: str, order: tuple[int, ...]
) -> tuple[ArrayType, tuple[str], TransposeAttrs]:
    """Type, operands and attributes of a transpose."""
    return _permuted(draft[name].array, order), (name,), TransposeAttrs(order)


def _permuted(array: ArrayType, order: Sequence[int]) -> ArrayType:
    return ArrayType(array.dtype, tuple(array.shape[d] for d in order))


def _places(order: Sequence[int] | None) -> Callable[[int], int]:
    """Where a dimension stands in an order; None leaves all where they are."""
    return (lambda d: d) if order is None else order.index
