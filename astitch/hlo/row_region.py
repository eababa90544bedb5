"""Ops on rows of narrow arrays by our own kernels: takes a node, hands on a custom call with its Triton IR."""

from __future__ import annotations

from astitch.errors import IllegalProduct
from astitch.graph.ir import Node, RowRegionAttrs, TupleType
from astitch.hlo.tile_call import render_tile_call
from astitch.tile.row_rates import choose_tiling
from astitch.tile.row_region import write_row_region


def render_row_region(node: Node) -> Node:
    """The custom call; of one result, where the node's tuple has one.  Raises IllegalProduct where no tiling fits."""
    if not isinstance(node.attrs, RowRegionAttrs) or not isinstance(node.type, TupleType):
        raise IllegalProduct(f"{node} is no row-region")
    (body,) = node.regions
    tiling = choose_tiling(body, node.attrs)
    if tiling is None:
        raise IllegalProduct(f"no tiles fit {node}")
    results = node.type.elements
    type_ = node.type if len(results) > 1 else results[0]
    program = write_row_region(body, node.attrs, tiling)
    return render_tile_call(node, f"{node.name}.rows", type_, program)
