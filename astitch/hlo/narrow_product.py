"""Products of few rows by kernels of our own: takes a node, hands on a custom call whose Triton IR XLA compiles."""

from __future__ import annotations

from collections.abc import Sequence

from astitch.errors import IllegalProduct
from astitch.graph.ir import ArrayType, NarrowProductAttrs, Node
from astitch.graph.ops.narrow_product import find_type_of_scales, measure, split_operands
from astitch.hlo.tile_call import render_tile_call
from astitch.tile.narrow_product import NarrowShape, write_narrow_product
from astitch.tile.narrow_rates import choose_tiling


def render_narrow_product(node: Node, operands: Sequence[ArrayType]) -> Node:
    """The custom call.  operands: the types of the node's.  Raises IllegalProduct where no tiling is known."""
    shape = describe_shape(node, operands)
    tiling = choose_tiling(shape)
    if tiling is None:
        raise IllegalProduct(f"no tiles are known for {node}")
    return render_tile_call(node, node.name, node.type, write_narrow_product(shape, tiling))


def describe_shape(node: Node, operands: Sequence[ArrayType]) -> NarrowShape:
    """What the kernel is written for."""
    a = node.attrs
    if not isinstance(a, NarrowProductAttrs):
        raise IllegalProduct(f"{node} is no narrow product")
    given = split_operands(a, operands)
    e = measure(a, given)
    return NarrowShape(
        factor=given.x.dtype,
        weights=a.weights,
        result=node.array.dtype,
        layers=e.layers,
        batch=e.batch,
        rows=e.rows,
        depth=e.depth,
        columns=e.columns,
        groups=e.groups,
        share=a.share,
        transposed=a.transposed,
        offset=a.offset,
        scale=a.scale,
        scales=find_type_of_scales(given),
        scales_transposed=a.scales_transposed,
        layer=a.layer,
        shared=e.given < e.batch,
    )
