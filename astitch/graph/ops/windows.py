"""Running reductions: a reduce-window whose windows reach back to the start (cumsum, cummax ..) or on to the end."""

from __future__ import annotations

from dataclasses import dataclass

from astitch.graph.ir import ArrayType, Node, WindowAttrs, WindowDimension


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
