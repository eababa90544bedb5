"""The one op table: everything astitch knows of an opcode is one row, in the module of its family.

row.py says what a row holds.  Consumers ask a row for a property, so that a new op needs its row and nothing else.
"""

from __future__ import annotations

import numpy as np

from astitch.graph.ir import DType, Graph, Node
from astitch.graph.ops import (
    attention,
    compute,
    control,
    elementwise,
    indexed,
    movement,
    narrow_product,
    other,
    reductions,
    row_region,
    sources,
)
from astitch.graph.ops.neutral import WIDE_FLOATS
from astitch.graph.ops.row import Cost, Kind, Op

__all__ = [
    "OPS",
    "WIDE_FLOATS",
    "Cost",
    "Kind",
    "Op",
    "is_addition",
    "monoid_of",
    "neutral_element",
]

OPS: dict[str, Op] = {
    **sources.ROWS,
    **elementwise.ROWS,
    **movement.ROWS,
    **indexed.ROWS,
    **reductions.ROWS,
    **compute.ROWS,
    **attention.ROWS,
    **narrow_product.ROWS,
    **row_region.ROWS,
    **control.ROWS,
    **other.ROWS,
}


def is_addition(node: Node) -> bool:
    return node.op in OPS and OPS[node.op].addend_sign > 0


def is_slice_update(node: Node) -> bool:
    """Is it a dynamic-update-slice?"""
    return OPS[node.op].writes_into and OPS[node.op].chooses


def monoid_of(region: Graph) -> str | None:
    """The opcode of a region that is one commutative op of its two parameters."""
    if len(region.parameters) != 2 or len(region.outputs) != 1:
        return None
    node = region[region.outputs[0]]
    is_monoid = node.op in OPS and OPS[node.op].combiner is not None
    return node.op if is_monoid and set(node.operands) == set(region.parameters) else None


def neutral_element(op: str, dtype: DType) -> np.ndarray | None:
    """The e for which op(x, e) is x, to the bit, for every x; None if there is none."""
    neutral = OPS[op].neutral if op in OPS else None
    return None if neutral is None else neutral(dtype)
