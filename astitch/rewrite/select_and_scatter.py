"""select-and-scatter, what a pooling by maximum hands back, as element-wise ops: kernels add in a fixed order.

Takes the op in a Draft, hands on the value in its place.  The idea: each window compares its elements and knows the
number of the one that it chose; each element looks whether it is that one in the windows in which it stands.  Those
are, along a dimension, the window that begins in the element's own stride and some before it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from astitch.graph.ir import (
    DType,
    IotaAttrs,
    Node,
    PadAttrs,
    WindowAttrs,
    WindowDimension,
)
from astitch.graph.ops import monoid_of, neutral_element
from astitch.graph.ops.windows import is_trivial
from astitch.graph.running import why_region_not_liftable
from astitch.rewrite.draft import Draft, read_splat
from astitch.rewrite.draft_ops import UNROLLED_ELEMENTS, DraftOps

MOST_WINDOWS = 32
"""Windows of which an element stands in more are not written out: each is a term of its sum, and the kernel spills."""


def add_where_selected(node: Node, draft: Draft) -> str | None:
    """select-and-scatter(x, u, e) -> f(f(e, u1 where x was chosen), u2 where x was chosen) .., in the windows' order"""
    assert isinstance(node.attrs, WindowAttrs)
    window, (select, scatter) = node.attrs.window, node.regions
    op = monoid_of(scatter)
    unit = None if op is None else neutral_element(op, node.dtype)
    plain = all(w.window_dilation == w.base_dilation == 1 and not w.reversed for w in window)
    if op is None or unit is None or not plain:
        return None
    if why_region_not_liftable(select, node.dtype, DType.PRED) is not None:
        return None
    if not all(draft[name].array.size for name in node.operands):
        return None
    start = read_splat(draft, node.operands[2])
    if start is not None and start == unit:
        unit = start  # sums that begin with -0 stay so
    spreader = _Spreader(node, draft, window, op, unit.item())
    if math.prod(w.size for w in window) > UNROLLED_ELEMENTS:
        return None
    if math.prod(spreader.turns) > MOST_WINDOWS or spreader.numbers >= 1 << 31:
        return None
    return spreader.result()


class _Spreader(DraftOps):
    """Writes one select-and-scatter.  op: adds the updates.  unit: changes nothing."""

    def __init__(
        self, node: Node, draft: Draft, window: Sequence[WindowDimension], op: str, unit: float
    ) -> None:
        super().__init__(node, draft)
        self.op, self.unit = op, unit
        self.x, self.updates, self.initial = node.operands
        # A window alone has no stride; by its own size no element stands in others.
        counts = draft[self.updates].shape
        self.window = [
            replace(w, stride=w.size) if n == 1 else w for n, w in zip(counts, window, strict=True)
        ]
        # As the reference: sums of short floats are rounded once.
        narrow = node.dtype.is_float and node.dtype.bytes < 4 and op in ("add", "multiply")
        self.dtype = DType.F32 if narrow else node.dtype
        self.moving = [d for d, w in enumerate(self.window) if not is_trivial(w)]
        self.turns = [-(-w.size // w.stride) for w in self.window]
        """How many windows an element stands in at most, along each dimension."""

        # Elements as far as the last stride have numbers too, which no window chooses.
        self.weights, self.numbers = [0] * len(self.window), 1
        """What a step along each dimension adds to the number of an element in a window; how many there are."""

        for d in reversed(self.moving):
            self.weights[d] = self.numbers
            self.numbers *= self.turns[d] * self.window[d].stride

    def number(self, place: Sequence[int]) -> int:
        return sum(w * p for w, p in zip(self.weights, place, strict=True))

    def pad(self, x: str, value: float, low: Sequence[int], high: Sequence[int]) -> str:
        if not any((*low, *high)):
            return x
        node = self.draft[x]
        shape = [n + a + b for n, a, b in zip(node.shape, low, high, strict=True)]
        attrs = PadAttrs(tuple(low), tuple(high), (0,) * len(shape))
        operands = (x, self.splat(value, node.dtype, ()))
        return self.add("pad", node.dtype, shape, operands, attrs)

    def choose(self) -> str:
        """The number of the element that each window chose, s32; of one without elements -1."""
        shape = self.draft[self.updates].shape
        low = [w.padding_low for w in self.window]
        high = [w.padding_high for w in self.window]
        padded = self.pad(self.x, 0, low, high)
        elements = self.slice_windows(padded, self.window, shape)
        if all(edge <= 0 for edge in (*low, *high)):
            place, best = next(elements)
            chosen = self.splat(self.number(place), DType.S32, shape)
            for place, element in elements:
                keeps = self.lift(self.origin.regions[0], (best, element))
                best = self.select(keeps, best, element)
                number = self.splat(self.number(place), DType.S32, shape)
                chosen = self.select(keeps, chosen, number)
            return chosen
        real = self.pad(self.splat(True, DType.PRED, self.draft[self.x].shape), False, low, high)
        chosen = self.splat(-1, DType.S32, shape)
        best, found = "", self.splat(False, DType.PRED, shape)
        reals = self.slice_windows(real, self.window, shape)
        for (place, element), (_, there) in zip(elements, reals, strict=True):
            takes = there
            if best:
                keeps = self.lift(self.origin.regions[0], (best, element))
                stays = self.both("and", found, keeps)
                takes = self.both("and", there, self.add("not", DType.PRED, shape, (stays,)))
            best = self.select(takes, element, best) if best else element
            number = self.splat(self.number(place), DType.S32, shape)
            chosen = self.select(takes, number, chosen)
            found = self.both("or", found, there)
        return chosen

    def result(self) -> str:
        """Its value.

        First each moving dimension is one of windows and behind it one of their strides.  What stands at (w, i) belongs
        to element w * stride + i, less the padding; of the window that is j before w, to the element j strides on.
        """
        split: list[int] = []
        homes, behind = [], {}
        for d, windows in enumerate(self.draft[self.updates].shape):
            homes.append(len(split))
            split.append(windows)
            if d in self.moving:
                behind[d] = len(split)
                split.append(self.window[d].stride)
        chosen = self.broadcast(self.choose(), split, homes)
        updates = self.broadcast(self.convert(self.updates, self.dtype), split, homes)
        own = self.splat(0, DType.S32, split)
        for d in self.moving:
            step = self.add("iota", DType.S32, split, (), IotaAttrs(behind[d]))
            weight = self.splat(self.weights[d], DType.S32, split)
            own = self.both("add", own, self.both("multiply", step, weight))
        nothing = self.splat(self.unit, self.dtype, split)
        total = self.spread(self.convert(self.initial, self.dtype), self.origin.shape)
        for turn in itertools.product(*(reversed(range(n)) for n in self.turns)):
            strides = [j * w.stride for j, w in zip(turn, self.window, strict=True)]
            number = self.both("add", own, self.splat(self.number(strides), DType.S32, split))
            there = self.select(self.compare("EQ", chosen, number), updates, nothing)
            total = self.both(self.op, total, self.place(there, strides))
        return self.convert(total, self.origin.dtype)

    def place(self, split: str, strides: Sequence[int]) -> str:
        """What stands at windows and their strides, where it belongs in the result."""
        updates = self.draft[self.updates].shape
        shape = [n * w.stride for n, w in zip(updates, self.window, strict=True)]
        low = [s - w.padding_low for s, w in zip(strides, self.window, strict=True)]
        ends = zip(self.origin.shape, shape, low, strict=True)
        high = [n - joined - edge for n, joined, edge in ends]
        return self.pad(self.reshape(split, shape), self.unit, low, high)
