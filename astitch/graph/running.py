"""Node -> Running: a reduce-window whose windows reach back to the start (cumsum, cummax ..) or on to the end.

Every element is combined with all before it along one dimension.  A kernel computes it as a scan in which each element
is read once and written once.
"""

from __future__ import annotations

from dataclasses import dataclass

from astitch.graph.ir import ArrayType, DType, Graph, Node, WindowAttrs, WindowDimension
from astitch.graph.ops import OPS, Kind


@dataclass(frozen=True, slots=True)
class Running:
    """dimension: along which.  backward: from each element to the end, not from the start to it."""

    dimension: int
    backward: bool


def is_trivial(w: WindowDimension) -> bool:
    """One element, at its own place."""
    plain = w.stride == w.base_dilation == w.size == 1
    return plain and not (w.padding_low or w.padding_high)


def find_running(node: Node) -> Running | None:
    """The running reduction that a reduce-window of one operand is; None for every other node."""
    if node.op != "reduce-window" or not isinstance(node.type, ArrayType):
        return None
    assert isinstance(node.attrs, WindowAttrs)
    moves = [d for d, w in enumerate(node.attrs.window) if not is_trivial(w)]
    if len(moves) != 1:
        return None
    (d,) = moves
    w, n = node.attrs.window[d], node.shape[d]
    plain = w.stride == w.window_dilation == w.base_dilation == 1 and not w.reversed
    edges = (w.padding_low, w.padding_high)
    if not plain or w.size != n or n < 2 or edges not in ((n - 1, 0), (0, n - 1)):
        return None
    return Running(d, edges[0] == 0)


def running_window(rank: int, running: Running, extent: int) -> WindowAttrs:
    """The window of a running reduction along a dimension of `extent` elements."""
    low, high = (0, extent - 1) if running.backward else (extent - 1, 0)
    own = WindowDimension(extent, padding_low=low, padding_high=high)
    window = (own if d == running.dimension else WindowDimension(1) for d in range(rank))
    return WindowAttrs(tuple(window))


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
        known = inner.op in ("parameter", "constant") or OPS[inner.op].kind is Kind.ELEMENTWISE
        if not scalar or not known:
            return f"its region holds %{inner.name} = {inner.op}, which is not a scalar element-wise op"
        if (inner.name in region.parameters and inner.dtype is not dtype) or (
            inner.name in region.outputs and inner.dtype is not result
        ):
            return f"its region is of {inner.dtype.value}"
    return None
