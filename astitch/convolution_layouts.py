"""Graph -> Graph: convolutions whose arrays lie with their channels last, where libraries convolve fastest.

cuDNN's kernels for tensor cores read and write images with the channels innermost and filters with the output features
outermost.  What lies otherwise (JAX's and TensorFlow's HWIO filters, all of an NCHW model) a library or XLA copies
before and behind each convolution.  Written out before ops are stitched these copies are part of the kernels around.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from astitch.convolution import CanonicalConvolution, canonical_convolution, channels_last
from astitch.ir import ArrayType, ConvolutionAttrs, DType, Graph, Node, TransposeAttrs
from astitch.simplify import Draft, Log, rewrite_graph

MOST_SPATIAL = 2
"""Spatial dimensions of what XLA convolves with channels last (gpu_layout_assignment.cc)."""

TYPES = frozenset({DType.F16, DType.BF16, DType.F32})
"""Of the elements, for the same."""


def arrange_convolutions(graph: Graph, log: Log | None = None) -> Graph:
    """The same function; `log` hears of every convolution that gets or gives an array in another order.

    graph: simplified.
    """
    if not any(isinstance(node.attrs, ConvolutionAttrs) for node in graph):
        return graph
    heard: Log = log or (lambda rule, node: None)

    def arrange(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if not isinstance(node.attrs, ConvolutionAttrs):
            return None
        orders = _find_orders(node, node.attrs, draft)
        if not any(orders):
            return None
        heard("arrange_convolution", node.name)
        return _put_arranged(draft, node, node.attrs, orders)

    return rewrite_graph(graph, heard, arrange)


_Orders = tuple[tuple[int, ...] | None, ...]
"""Of the left operand, the right operand and the result: the dimensions as they should lie; None where they do."""


def _find_orders(node: Node, attrs: ConvolutionAttrs, draft: Draft) -> _Orders:
    lhs, rhs = (draft[name].array for name in node.operands)
    arrays = (lhs, rhs, node.array)
    # XLA has channels first elsewhere, and would turn these arrays again.
    if len(attrs.window) > MOST_SPATIAL or not {a.dtype for a in arrays} <= TYPES:
        return (None, None, None)
    reading = canonical_convolution(attrs, *arrays)
    if not isinstance(reading, CanonicalConvolution):
        return (None, None, None)
    wanted = channels_last(attrs, reading.form)
    return tuple(
        None if order is None or _lies(array, order) else order
        for array, order in zip(arrays, wanted, strict=True)
    )


def _lies(array: ArrayType, order: Sequence[int]) -> bool:
    """Would a transpose to that order leave every element where it is?"""
    wide = [d for d in order if array.shape[d] > 1]
    return wide == sorted(wide)


def _put_arranged(draft: Draft, node: Node, attrs: ConvolutionAttrs, orders: _Orders) -> str:
    left, right, result = orders
    operands = list(node.operands)
    for side, order in enumerate((left, right)):
        if order is not None:
            array = _permuted(draft[operands[side]].array, order)
            transposed = TransposeAttrs(order)
            operands[side] = draft.add(node, "transpose", array, (operands[side],), transposed)
    if left is not None:
        at = {d: i for i, d in enumerate(left)}
        attrs = replace(
            attrs,
            input_batch=at[attrs.input_batch],
            input_feature=at[attrs.input_feature],
            input_spatial=tuple(at[d] for d in attrs.input_spatial),
        )
    if right is not None:
        at = {d: i for i, d in enumerate(right)}
        attrs = replace(
            attrs,
            kernel_input_feature=at[attrs.kernel_input_feature],
            kernel_output_feature=at[attrs.kernel_output_feature],
            kernel_spatial=tuple(at[d] for d in attrs.kernel_spatial),
        )
    if result is None:
        return draft.put(replace(node, operands=tuple(operands), attrs=attrs))
    at = {d: i for i, d in enumerate(result)}
    attrs = replace(
        attrs,
        output_batch=at[attrs.output_batch],
        output_feature=at[attrs.output_feature],
        output_spatial=tuple(at[d] for d in attrs.output_spatial),
    )
    array = _permuted(node.array, result)
    arranged = draft.add(node, "convolution", array, tuple(operands), attrs)
    back = TransposeAttrs(tuple(at[d] for d in range(array.rank)))
    return draft.put(replace(node, op="transpose", operands=(arranged,), attrs=back))


def _permuted(array: ArrayType, order: Sequence[int]) -> ArrayType:
    return ArrayType(array.dtype, tuple(array.shape[d] for d in order))
