"""A node that one call of cuDNN or of a tile program computes -> its projected time, which XLA's scheduler is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from astitch.attention.choose import project_library_us
from astitch.device.gpu import Gpu
from astitch.graph.ir import ArrayType, AttentionAttrs, Node, RowRegionAttrs, TupleType
from astitch.hlo.tiled_attention import describe_shape
from astitch.tile import few_queries
from astitch.tile.rates import project_us
from astitch.tile.row_rates import measure_rows, project


def project_call(node: Node, operands: Sequence[ArrayType], gpu: Gpu) -> float:
    """Microseconds of all calls of the node; 0 where nothing is known.  operands: the types of the node's."""
    price = _PRICES.get(node.op)
    return price(node, operands, gpu) if price else 0.0


def _project_forward(node: Node, operands: Sequence[ArrayType], gpu: Gpu) -> float:
    return _project_attention(node, operands, gpu, gradient=False)


def _project_gradient(node: Node, operands: Sequence[ArrayType], gpu: Gpu) -> float:
    """The projections of a gradient hold the forward pass too."""
    both = _project_attention(node, operands, gpu, gradient=True)
    return max(0.0, both - _project_attention(node, operands, gpu, gradient=False))


def _project_attention(
    node: Node, operands: Sequence[ArrayType], gpu: Gpu, *, gradient: bool
) -> float:
    assert isinstance(node.attrs, AttentionAttrs)
    shape = describe_shape(node, operands)
    if shape.share:
        return few_queries.project_us(shape, gpu)
    if node.attrs.tiles:
        return project_us(shape, gpu, gradient=gradient) or 0.0
    return project_library_us(shape, gpu, gradient=gradient)


def _project_rows(node: Node, operands: Sequence[ArrayType], gpu: Gpu) -> float:
    assert isinstance(node.attrs, RowRegionAttrs)
    (body,) = node.regions
    return project(measure_rows(body, node.attrs), node.attrs, gpu)


def _project_traffic(node: Node, operands: Sequence[ArrayType], gpu: Gpu) -> float:
    """A product of few rows takes what its weights take to be read."""
    results = node.type.elements if isinstance(node.type, TupleType) else (node.array,)
    read, written = (sum(array.bytes for array in arrays) for arrays in (operands, results))
    return gpu.launch_us + gpu.stream_us(read, written)


_PRICES: Mapping[str, Callable[[Node, Sequence[ArrayType], Gpu], float]] = {
    "attention": _project_forward,
    "attention-gradient": _project_gradient,
    "narrow-product": _project_traffic,
    "row-region": _project_rows,
}
