"""Running reductions: a reduce-window whose windows reach back to the start (cumsum, cummax ..) or on to the end.

A sort of whole numbers along the last dimension is one too: each result needs all of its row.
"""

from __future__ import annotations

from dataclasses import dataclass

from astitch.graph.ir import (
    ArrayType,
    CompareAttrs,
    DType,
    Node,
    SortAttrs,
    WindowAttrs,
    WindowDimension,
)

MOST_SORTED = 4096
"""Elements of a row that the threads of a block sort."""

_SORTED_TYPES = (DType.S32, DType.S64)


@dataclass(frozen=True, slots=True)
class Running:
    """dimension: along which.  backward: from each element to the end, not from the start to it.  sorts: a sort."""

    dimension: int
    backward: bool
    sorts: bool = False


def is_trivial(w: WindowDimension) -> bool:
    """One element, at its own place."""
    plain = w.stride == w.base_dilation == w.size == 1
    return plain and not (w.padding_low or w.padding_high)


def find_running(node: Node) -> Running | None:
    """The running reduction that a reduce-window is, or a sort; None for every other node."""
    if isinstance(node.attrs, SortAttrs):
        return _find_sort(node, node.attrs)
    if node.op != "reduce-window":
        return None
    assert isinstance(node.attrs, WindowAttrs)
    moves = [d for d, w in enumerate(node.attrs.window) if not is_trivial(w)]
    if len(moves) != 1:
        return None
    (d,) = moves
    first = node.type if isinstance(node.type, ArrayType) else node.type.elements[0]
    w, n = node.attrs.window[d], first.shape[d]
    plain = w.stride == w.window_dilation == w.base_dilation == 1 and not w.reversed
    edges = (w.padding_low, w.padding_high)
    if not plain or w.size != n or n < 2 or edges not in ((n - 1, 0), (0, n - 1)):
        return None
    return Running(d, edges[0] == 0)


def _find_sort(node: Node, attrs: SortAttrs) -> Running | None:
    """A sort of one array of whole numbers, the least first, that a block can do."""
    if not isinstance(node.type, ArrayType) or len(node.operands) != 1:
        return None
    (region,) = node.regions
    root = region[region.outputs[0]]
    least_first = root.attrs == CompareAttrs("LT") and root.operands == region.parameters
    last = attrs.dimension == node.array.rank - 1
    if not least_first or not last or node.dtype not in _SORTED_TYPES:
        return None
    return Running(attrs.dimension, False, True) if 1 < node.shape[-1] <= MOST_SORTED else None


def running_window(rank: int, running: Running, extent: int) -> WindowAttrs:
    """The window of a running reduction along a dimension of `extent` elements."""
    low, high = (0, extent - 1) if running.backward else (extent - 1, 0)
    own = WindowDimension(extent, padding_low=low, padding_high=high)
    window = (own if d == running.dimension else WindowDimension(1) for d in range(rank))
    return WindowAttrs(tuple(window))
