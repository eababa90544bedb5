"""Graph -> Graph: scatters whose updates may meet add them in a fixed order.

XLA adds them as they come, with atomics.  Here the updates are sorted by where they go; those of one place are summed
by one running sum over all, which starts anew at each place; the last update of a place has its sum.  Either each row
of the result looks for its own update: then no scatter is left, and kernels read the sums where they need them.  Or
what is scattered never meets.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    CompareAttrs,
    ConstantAttrs,
    DType,
    Graph,
    IotaAttrs,
    Literal,
    Node,
    PadAttrs,
    ScatterAttrs,
    SortAttrs,
)
from astitch.graph.ops import OPS, monoid_of
from astitch.graph.storage import stored_value
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import Region
from astitch.rewrite.reassociate import scatter_into_addends
from astitch.rewrite.scatter_rows import count_named, scatters_rows
from astitch.rewrite.simplify import rewrite_graph
from astitch.rewrite.sorted_rows import MOST_UPDATES, SortedRows

SUMMED = (DType.F32, DType.F16, DType.BF16)
"""Whose sums depend on their order, and fit half of a word."""

MOST_RANKED = 2048
"""Updates that are ranked by comparing each with each, in kernels.  More of them XLA sorts, in launches of its own: by
projection the ranks of 4096 take an H100 as long as those."""

LEAST_TO_REDUCE = 2
"""Updates for each row from which each row goes through its own; below, one scan goes over all updates."""

LEAST_IN_PLACE_BYTES = 16 << 20
"""The least size of an array that XLA scatters to.  Below, a kernel that reads the result reads all of the array in
less time."""


def order_scatters(graph: Graph, log: Log | None = None, *, in_place: bool = True) -> Graph:
    """The same function but for the order in which scatters add; `log` hears of each that has one.

    graph: simplified and expanded.  The pass takes sums of f32, f16 and bf16.  In each batch each index vector must
    name an element, or a row with all that lies in it; others stay as they are, and so do those inside of loops.
    Scatters into the same array one after the other are one sum.  The gradients of a table that is read several times
    are such scatters.
    in_place: a scatter may stay, which writes over its operand where nothing else reads that, and touches the rows of
    its updates only; else none does.
    """
    heard: Log = log or (lambda rule, node: None)
    if not any(_is_taken(graph, node) for node in graph):
        return graph
    graph = scatter_into_addends(graph, heard)
    taken = {node.name for node in graph if _is_taken(graph, node)}
    inner = {name for name in taken if _is_continued(graph, name, taken)}
    kept = {
        name
        for name in taken - inner
        if in_place and _pays_in_place(graph, graph[_start(graph, name, inner)])
    }

    def order(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if node.name not in taken - inner:
            return None
        heard("order_scatter", node.name)
        parts = [node]
        while (before := draft[parts[0].operands[0]]).name in inner:
            parts.insert(0, before)
        return _Scatter(parts, draft).put(scatters=node.name in kept)

    return rewrite_graph(graph, heard, order)


def _is_continued(graph: Graph, name: str, taken: Collection[str]) -> bool:
    """Is a scatter only what another one adds to?"""
    if name in graph.outputs or len(graph.users[name]) != 1:
        return False
    (user,) = graph.users[name]
    return (
        user in taken
        and graph[user].operands[0] == name
        and name not in graph[user].operands[1:]
        and count_named(graph[user]) == count_named(graph[name])
    )


def _start(graph: Graph, name: str, inner: Collection[str]) -> str:
    """What the first of the scatters adds to."""
    while (operand := graph[name].operands[0]) in inner:
        name = operand
    return operand


def _pays_in_place(graph: Graph, operand: Node) -> bool:
    """Is it worth a launch of XLA's to leave most of an array as it is?  Not of one number repeated, which would have
    to be written first.  Nor of a type that is summed in a wider one: a sum may fit only with what it is added to.
    """
    start = graph[stored_value(graph, operand.name)]
    is_splat = OPS[start.op].is_broadcast and start.name in graph.embedded
    wide = operand.dtype is DType.F32
    return wide and not is_splat and operand.array.bytes >= LEAST_IN_PLACE_BYTES


def adds_floats(scatter: Node) -> bool:
    """Does it add what is summed in order?"""
    return scatter.dtype in SUMMED and monoid_of(scatter.regions[0]) == "add"


def _is_taken(graph: Graph, node: Node) -> bool:
    a = node.attrs
    if not isinstance(a, ScatterAttrs) or len(node.operands) != 3 or a.unique_indices:
        return False
    if not adds_floats(node):
        return False
    x, _, updates = (graph[o].array for o in node.operands)
    return scatters_rows(node, x, updates)


class _Scatter(SortedRows):
    """Some scatters, one into the other, in order."""

    def put(self, *, scatters: bool) -> str:
        """The name of the result.  scatters: the sums are scattered; else rows look for theirs."""
        place, position = self.sort(
            self.concatenate([self.number_places(part, self.rows) for part in self.parts], 0)
        )
        updates = self.concatenate([self.flatten_updates(part) for part in self.parts], 0)
        if not scatters and LEAST_TO_REDUCE * self.rows <= self.count <= MOST_UPDATES:
            return self.reduce_rows(place, position, updates)
        found = self.convert(self.gather(updates, position), DType.F32)
        sums = self.scan_rows(found, place, "add")
        return self.scatter(place, sums) if scatters else self.find_sums(place, sums)

    def reduce_rows(self, place: str, position: str, updates: str) -> str:
        """Each row with a reduction over its updates."""
        wide = self.convert(updates, DType.F32)
        found = self.combine_rows(place, wide, "add", position)
        x = self.reshape(self.parts[0].operands[0], (self.rows, *self.row))
        both = self.both("add", self.convert(x, DType.F32), found)
        both = self.convert(both, self.origin.dtype)  # rounded once
        return self.reshape(both, self.origin.shape)

    def find_sums(self, place: str, sums: str) -> str:
        """Each row with the sum that is its own: of the updates that go no further than to it the last one has it."""
        rows, flat = (self.rows,), (self.rows, *self.row)
        row = self.add("iota", DType.S32, rows, (), IotaAttrs(0))
        found = self.splat(0, DType.S32, rows)  # so many updates go no further
        step = 1 << (self.count.bit_length() - 1)
        while step:
            more = self.both("add", found, self.splat(step, DType.S32, rows))
            last = self.gather(place, self.both("subtract", more, self.splat(1, DType.S32, rows)))
            exists = self.compare("LE", more, self.splat(self.count, DType.S32, rows))
            further = self.both("and", exists, self.compare("LE", last, row))
            found = self.select(further, more, found)
            step //= 2
        # Where there is none it is the first update, which goes further.
        one = self.splat(1, DType.S32, rows)
        last = self.both("subtract", self.both("maximum", found, one), one)
        is_own = self.compare("EQ", self.gather(place, last), row)
        if self.row:
            is_own = self.broadcast(is_own, flat, (0,))
        x = self.reshape(self.parts[0].operands[0], flat)
        both = self.both("add", self.convert(x, DType.F32), self.gather(sums, last))
        both = self.convert(both, self.origin.dtype)  # rounded once
        return self.reshape(self.select(is_own, both, x), self.origin.shape)

    def scatter(self, place: str, sums: str) -> str:
        """The sums where they go."""
        node, count = self.origin, (self.count,)
        after = self.shift_left(place)
        numbers = self.add("iota", DType.S32, count, (), IotaAttrs(0))
        # The last of its place, if that exists, has the sum; the others go behind the end, where nothing is written.
        rows = self.splat(self.rows, DType.S32, count)
        is_last = self.compare("NE", place, after)
        ends = self.both("and", is_last, self.compare("LT", place, rows))
        nowhere = self.both("add", numbers, rows)
        target = self.reshape(self.select(ends, place, nowhere), (self.count, 1))
        flat = (self.rows, *self.row)
        attrs = ScatterAttrs(tuple(range(1, len(flat))), (0,), (0,), 1, unique_indices=True)
        operands = (self.reshape(self.parts[0].operands[0], flat), target, sums)
        name = self.draft.add(
            node, "scatter", ArrayType(node.dtype, flat), operands, attrs, node.regions
        )
        return self.reshape(name, node.shape)

    def sort(self, place: str) -> tuple[str, str]:
        """s32: the places in order, and for each the position of its update; of one place the first comes first."""
        bits = (self.count - 1).bit_length()
        word = DType.S32 if (self.rows + 1) << bits <= 1 << 31 else DType.S64
        count = (self.count,)
        shift = self.splat(bits, word, count)
        numbers = self.add("iota", word, count, (), IotaAttrs(0))
        keys = self.both("or", self.both("shift-left", self.convert(place, word), shift), numbers)
        if self.count <= MOST_RANKED:
            position = self.order_by_ranks(keys)
            return self.gather(place, position), position
        keys = self.add("sort", word, count, (keys,), SortAttrs(0, False), (_less(word),))
        mask = self.splat((1 << bits) - 1, word, count)
        return (
            self.convert(self.both("shift-right-logical", keys, shift), DType.S32),
            self.convert(self.both("and", keys, mask), DType.S32),
        )

    def order_by_ranks(self, keys: str) -> str:
        """s32: where each of the sorted keys stands, of which no two are equal."""
        square = (self.count, self.count)
        own, other = (self.broadcast(keys, square, (d,)) for d in (0, 1))
        rank = self.sum(self.convert(self.compare("LT", other, own), DType.S32), (1,))
        rank = self.broadcast(rank, square, (1,))
        wanted, number = (self.add("iota", DType.S32, square, (), IotaAttrs(d)) for d in (0, 1))
        is_there = self.compare("EQ", rank, wanted)
        return self.sum(self.select(is_there, number, self.splat(0, DType.S32, square)), (1,))

    def shift_left(self, x: str) -> str:
        """x[i + 1]; -1 behind the end."""
        array = self.draft[x].array
        edge = ConstantAttrs(Literal.of(np.asarray(-1, array.dtype.numpy)))
        padding = self.add("constant", array.dtype, (), (), edge)
        return self.add("pad", array.dtype, array.shape, (x, padding), PadAttrs((-1,), (1,), (0,)))


def _less(dtype: DType) -> Graph:
    """a < b, of scalars."""
    region = Region(dtype)
    return region.end("less", region.op("compare", DType.PRED, ("a", "b"), CompareAttrs("LT")))
