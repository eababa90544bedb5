"""Node -> Running: a reduce-window whose windows reach back to the start (cumsum, cummax ..) or on to the end.

Every element is combined with all before it along one dimension.  A kernel computes it as a scan in which each element
is read once and written once.
"""

from __future__ import annotations

from astitch.graph.ir import ArrayType, DType, Graph, Node
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.windows import find_running


def is_running(graph: Graph, name: str) -> bool:
    """Is the value a running reduction?"""
    return find_running(graph[name]) is not None


def why_not_liftable(node: Node) -> str | None:
    """None when the region is a scalar element-wise function of one result, of the type of the operands."""
    (region,) = node.regions
    return why_region_not_liftable(region, node.dtype, node.dtype)


def why_region_not_liftable(region: Graph, dtype: DType, result: DType) -> str | None:
    """None when a region is a scalar element-wise function of numbers of a type, with one result of another."""
    if len(region.outputs) != 1:
        return f"its region has {len(region.outputs)} results"
    for inner in region:
        scalar = isinstance(inner.type, ArrayType) and inner.type.rank == 0
        known = (inner.is_parameter or inner.is_constant) or OPS[inner.op].kind is Kind.ELEMENTWISE
        if not scalar or not known:
            return f"its region holds %{inner.name} = {inner.op}, which is not a scalar element-wise op"
        if (inner.name in region.parameters and inner.dtype is not dtype) or (
            inner.name in region.outputs and inner.dtype is not result
        ):
            return f"its region is of {inner.dtype.value}"
    return None
