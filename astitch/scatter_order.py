"""Graph -> Graph: scatters whose updates may meet add them in a fixed order.

XLA adds them as they come, with atomics.  Here the updates are sorted by where they go; those of one place are summed
by two running sums, whose difference each place's last update takes; and what is scattered then never meets.  The
sums run in f64, so that what came before a place leaves no trace in it; infinities and NaNs, which would, are counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from astitch.expand import add_column, add_splat
from astitch.ir import (
    ArrayType,
    Attrs,
    CompareAttrs,
    ConstantAttrs,
    DType,
    GatherAttrs,
    Graph,
    IotaAttrs,
    Literal,
    NoAttrs,
    Node,
    PadAttrs,
    ParameterAttrs,
    ScatterAttrs,
    SortAttrs,
    TransposeAttrs,
)
from astitch.ops import monoid_of
from astitch.running import Running, running_window
from astitch.simplify import Draft, Log, rewrite_graph

SUMMED = (DType.F32, DType.F16, DType.BF16)
"""Whose sums depend on their order and are exact in f64, as good as."""

COUNT_BITS = 21
"""Of a word for each of three counts: of infinities, of negative ones, of NaNs."""


def order_scatters(graph: Graph, log: Log | None = None) -> Graph:
    """The same function but for the order in which scatters add; `log` hears of each that has one.

    graph: simplified and expanded.  Taken are sums of f32, f16 and bf16 where each index vector names an element, or a
    row with all that lies in it; others stay as they are, and so do those inside of loops.
    """
    heard: Log = log or (lambda rule, node: None)
    if not any(_is_taken(graph, node) for node in graph):
        return graph

    def order(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if not _is_taken(draft, node):
            return None
        heard("order_scatter", node.name)
        return _Scatter(node, draft).put()

    return rewrite_graph(graph, heard, order)


def _is_taken(nodes: Graph | Draft, node: Node) -> bool:
    a = node.attrs
    if not isinstance(a, ScatterAttrs) or len(node.operands) != 3 or a.unique_indices:
        return False
    if node.dtype not in SUMMED or monoid_of(node.regions[0]) != "add":
        return False
    shape, (x, _, updates) = node.shape, (nodes[o].array for o in node.operands)
    scattered = sorted(a.scatter_dims_to_operand_dims)
    leading = scattered == list(range(len(scattered))) == sorted(a.inserted_window_dims)
    whole = tuple(updates.shape[d] for d in sorted(a.update_window_dims)) == shape[len(scattered) :]
    if not leading or not whole or a.input_batching_dims:
        return False
    if not x.dtype == updates.dtype == node.dtype:
        return False
    rows = math.prod(shape[: len(scattered)])
    count = updates.size // max(math.prod(shape[len(scattered) :]), 1)
    # Places and positions are s32; each update that goes nowhere has a place of its own behind all others.
    return 1 < count < 1 << COUNT_BITS and 0 < rows < (1 << 31) - count


class _Scatter:
    """One of them, with its K index dimensions as one: rows, of `count` updates of `row` elements each."""

    def __init__(self, node: Node, draft: Draft) -> None:
        assert isinstance(node.attrs, ScatterAttrs)
        self.node, self.draft, self.attrs = node, draft, node.attrs
        self.scattered = node.attrs.scatter_dims_to_operand_dims
        self.row = node.shape[len(self.scattered) :]
        self.rows = math.prod(node.shape[: len(self.scattered)])
        self.count = draft[node.operands[2]].array.size // math.prod(self.row)

    def put(self) -> str:
        """The name of the result."""
        node, count = self.node, (self.count,)
        place, position = self.sort(self.number_places())
        updates = self.gather(self.flatten_updates(), position)
        before, after = self.shift(place, 1, -1), self.shift(place, -1, -1)
        numbers = self.add("iota", DType.S32, count, (), IotaAttrs(0))
        starts = self.compare("NE", place, before)
        first = self.run("maximum", self.select(starts, numbers, self.splat(0, DType.S32, count)))
        sums = self.add_segments(updates, first)
        # The last of its place, if that exists, has the sum; the others go behind the end, where nothing is written.
        ends = self.both("and", self.compare("NE", place, after), self.below(place, self.rows))
        nowhere = self.both("add", numbers, self.splat(self.rows, DType.S32, count))
        target = self.reshape(self.select(ends, place, nowhere), (self.count, 1))
        flat = (self.rows, *self.row)
        attrs = ScatterAttrs(tuple(range(1, len(flat))), (0,), (0,), 1, unique_indices=True)
        operands = (self.reshape(node.operands[0], flat), target, sums)
        name = self.draft.add(
            node, "scatter", ArrayType(node.dtype, flat), operands, attrs, node.regions
        )
        return self.reshape(name, node.shape)

    def number_places(self) -> str:
        """s32: the row that each update goes to, `rows` where there is none."""
        inside, place, stride = "", "", 1
        for number in reversed(_by_dimension(self.scattered)):
            extent = self.node.shape[self.scattered[number]]
            column = self.reshape(add_column(self.node, self.draft, number), (self.count,))
            known = self.draft[column].dtype
            here = self.below(column, extent)
            if np.iinfo(known.numpy).min < 0:
                least = self.splat(0, known, (self.count,))
                here = (
                    self.both("and", here, self.compare("GE", column, least))
                    if here
                    else self.compare("GE", column, least)
                )
            scaled = self.both(
                "multiply",
                self.convert(column, DType.S32),
                self.splat(stride, DType.S32, (self.count,)),
            )
            place = self.both("add", place, scaled) if place else scaled
            inside = self.both("and", inside, here) if inside and here else inside or here
            stride *= extent
        if not inside:
            return place
        return self.select(inside, place, self.splat(self.rows, DType.S32, (self.count,)))

    def sort(self, place: str) -> tuple[str, str]:
        """s32: the places in order, and for each the position of its update; of one place the first comes first."""
        bits = (self.count - 1).bit_length()
        word = DType.S32 if (self.rows + 1) << bits <= 1 << 31 else DType.S64
        count = (self.count,)
        shift = self.splat(bits, word, count)
        numbers = self.add("iota", word, count, (), IotaAttrs(0))
        keys = self.both("or", self.both("shift-left", self.convert(place, word), shift), numbers)
        less = _region("compare", word, CompareAttrs("LT"), DType.PRED)
        keys = self.add("sort", word, count, (keys,), SortAttrs(0, False), (less,))
        mask = self.splat((1 << bits) - 1, word, count)
        return (
            self.convert(self.both("shift-right-logical", keys, shift), DType.S32),
            self.convert(self.both("and", keys, mask), DType.S32),
        )

    def flatten_updates(self) -> str:
        """[count, row ...]"""
        updates = self.node.operands[2]
        shape, windows = self.draft[updates].shape, self.attrs.update_window_dims
        order = (*(d for d in range(len(shape)) if d not in windows), *windows)
        if order != tuple(range(len(shape))):
            moved = tuple(shape[d] for d in order)
            updates = self.add(
                "transpose", self.node.dtype, moved, (updates,), TransposeAttrs(order)
            )
        return self.reshape(updates, (self.count, *self.row))

    def add_segments(self, updates: str, first: str) -> str:
        """At each update the sum of those from the first of its place on."""
        shape = (self.count, *self.row)
        finite = self.add("is-finite", DType.PRED, shape, (updates,))
        zero = self.splat(0.0, self.node.dtype, shape)
        plain = self.convert(self.select(finite, updates, zero), DType.F64)
        total = self.convert(self.difference("add", plain, first), self.node.dtype)

        def one(shift: int) -> str:
            return self.splat(1 << shift, DType.S64, shape)

        none = self.splat(0, DType.S64, shape)
        kind = self.select(self.compare("LT", updates, zero), one(COUNT_BITS), one(2 * COUNT_BITS))
        kind = self.select(self.compare("GT", updates, zero), one(0), kind)
        counts = self.difference("add", self.select(finite, none, kind), first)
        mask = self.splat((1 << COUNT_BITS) - 1, DType.S64, shape)

        def any_of(number: int) -> str:
            shift = self.splat(number * COUNT_BITS, DType.S64, shape)
            part = self.both("and", self.both("shift-right-logical", counts, shift), mask)
            return self.compare("GT", part, none)

        high, low, nan = any_of(0), any_of(1), any_of(2)
        nan = self.both("or", nan, self.both("and", high, low))
        for where, value in ((low, -np.inf), (high, np.inf), (nan, np.nan)):
            total = self.select(where, self.splat(value, self.node.dtype, shape), total)
        return total

    def difference(self, op: str, x: str, first: str) -> str:
        """At each position the running sum there, without what came before position `first`."""
        running = self.run(op, x)
        before = self.gather(self.shift(running, 1, 0), first)
        return self.both("subtract", running, before)

    # -- single ops --

    def add(
        self,
        op: str,
        dtype: DType,
        shape: Sequence[int],
        operands: tuple[str, ...],
        attrs: Attrs = NoAttrs(),
        regions: tuple[Graph, ...] = (),
    ) -> str:
        return self.draft.add(
            self.node, op, ArrayType(dtype, tuple(shape)), operands, attrs, regions
        )

    def both(self, op: str, x: str, y: str) -> str:
        return self.add(op, self.draft[x].dtype, self.draft[x].shape, (x, y))

    def compare(self, direction: str, x: str, y: str) -> str:
        return self.add("compare", DType.PRED, self.draft[x].shape, (x, y), CompareAttrs(direction))

    def below(self, x: str, limit: int) -> str:
        """x < limit; the empty name where the type holds nothing else."""
        known = self.draft[x].dtype
        if np.iinfo(known.numpy).max < limit:
            return ""
        return self.compare("LT", x, self.splat(limit, known, self.draft[x].shape))

    def select(self, where: str, x: str, y: str) -> str:
        return self.add("select", self.draft[x].dtype, self.draft[x].shape, (where, x, y))

    def convert(self, x: str, dtype: DType) -> str:
        return self.add("convert", dtype, self.draft[x].shape, (x,))

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        return self.add("reshape", self.draft[x].dtype, shape, (x,))

    def scalar(self, value: int, dtype: DType) -> str:
        attrs = ConstantAttrs(Literal.of(np.asarray(value, dtype.numpy)))
        return self.add("constant", dtype, (), (), attrs)

    def splat(self, value: float, dtype: DType, shape: Sequence[int]) -> str:
        return add_splat(self.node, self.draft, np.asarray(value, dtype.numpy), tuple(shape))

    def shift(self, x: str, by: int, edge: int) -> str:
        """x[i - by] along the first dimension; `edge` where there is none."""
        array = self.draft[x].array
        padding = self.scalar(edge, array.dtype)
        rest = (0,) * (array.rank - 1)
        attrs = PadAttrs((by, *rest), (-by, *rest), (0, *rest))
        return self.add("pad", array.dtype, array.shape, (x, padding), attrs)

    def gather(self, x: str, position: str) -> str:
        """Rows of x."""
        array = self.draft[x].array
        attrs = GatherAttrs(tuple(range(1, array.rank)), (0,), (0,), 1, (1, *array.shape[1:]))
        operands = (x, self.reshape(position, (self.count, 1)))
        return self.add("gather", array.dtype, (self.count, *array.shape[1:]), operands, attrs)

    def run(self, op: str, x: str) -> str:
        """Each row combined with all before it."""
        array = self.draft[x].array
        neutral = 0 if op == "add" else np.iinfo(array.dtype.numpy).min
        init = self.scalar(int(neutral), array.dtype)
        attrs = running_window(array.rank, Running(0, False), self.count)
        region = _region(op, array.dtype)
        return self.add("reduce-window", array.dtype, array.shape, (x, init), attrs, (region,))


def _by_dimension(dimensions: Sequence[int]) -> list[int]:
    return sorted(range(len(dimensions)), key=lambda number: dimensions[number])


def _region(op: str, dtype: DType, attrs: Attrs = NoAttrs(), result: DType | None = None) -> Graph:
    """op of two scalars."""
    scalar = ArrayType(dtype, ())
    nodes = {
        name: Node(name, "parameter", scalar, (), ParameterAttrs(number))
        for number, name in enumerate(("a", "b"))
    }
    nodes["c"] = Node("c", op, replace(scalar, dtype=result or dtype), ("a", "b"), attrs)
    return Graph(op, nodes, ("a", "b"), ("c",))
