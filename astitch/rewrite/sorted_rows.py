"""Updates in the order of their rows -> what each row has of them: two reductions, and a scan that is short.

The updates are cut into pieces of one length.  A row begins in one piece and ends there, or in a later one.  It takes
in what it has of the first piece by itself.  Each piece sums what continues a row from the piece before; a scan over
pieces joins these.  So no loop's length depends on values, each update is read once, and the order is fixed.
"""

from __future__ import annotations

import numpy as np

from astitch.graph.ir import (
    CompareAttrs,
    ConstantAttrs,
    DType,
    GatherAttrs,
    Graph,
    IotaAttrs,
    Literal,
    PadAttrs,
)
from astitch.graph.ops.windows import Running, running_window
from astitch.rewrite.draft_ops import Region
from astitch.rewrite.scatter_rows import ScatteredRows

LEAST_PIECE, MOST_PIECE = 8, 256
"""Updates of a piece.  A row reads as many, of which it masks those that are not its own."""

MOST_UPDATES = 1 << 30
"""The end of the last piece is an s32 too."""

PLACE_BITS = 32
"""A word of the scan: the row in its upper half, below it what was combined of that row.  Negative: nothing."""


class SortedRows(ScatteredRows):
    """Scatters whose updates are in the order of their rows, or are put in it."""

    def gather(self, x: str, position: str) -> str:
        """Rows of x, of which there are as many as the shape of `position` has elements."""
        array, shape = self.draft[x].array, self.draft[position].shape
        window = array.shape[1:]
        offsets = tuple(range(len(shape), len(shape) + len(window)))
        attrs = GatherAttrs(offsets, (0,), (0,), len(shape), (1, *window))
        operands = (x, self.reshape(position, (*shape, 1)))
        return self.add("gather", array.dtype, (*shape, *window), operands, attrs)

    def count_below(self, place: str, wanted: str) -> str:
        """s32: how many of the sorted places are less than each wanted one, by a binary search."""
        shape = self.draft[wanted].shape
        (count,) = self.draft[place].shape
        found = self.splat(0, DType.S32, shape)
        step = 1 << (count.bit_length() - 1)
        while step:
            more = self.both("add", found, self.splat(step, DType.S32, shape))
            last = self.gather(place, self.both("subtract", more, self.splat(1, DType.S32, shape)))
            exists = self.compare("LE", more, self.splat(count, DType.S32, shape))
            further = self.both("and", exists, self.compare("LT", last, wanted))
            found = self.select(further, more, found)
            step //= 2
        return found

    def combine_rows(self, place: str, updates: str, op: str, position: str | None) -> str:
        """[rows, row ...] of the type of the updates: what each row has of them, the neutral element where it has none.

        place: s32, sorted; what is no row goes nowhere.  updates: [count, row ...].  position: s32, where
        the update of each place stands; None: at the same index.
        """
        dtype = self.draft[updates].dtype
        size = self._choose_piece()
        unit = self.neutral(op, dtype)
        rows = (self.rows,)
        numbers = self.add("iota", DType.S32, (self.rows + 1,), (), IotaAttrs(0))
        bounds = self.count_below(place, numbers)
        start, end = self.cut(bounds, [0], rows), self.cut(bounds, [1], (self.rows + 1,))
        sizes, one = self.splat(size, DType.S32, rows), self.splat(1, DType.S32, rows)
        first = self.both("divide", start, sizes)
        limit = self.both("multiply", self.both("add", first, one), sizes)
        own = self.both("subtract", self.both("minimum", end, limit), start)

        pairs = (self.rows, size)
        step = self.add("iota", DType.S32, pairs, (), IotaAttrs(1))
        is_own = self.compare("LT", step, self.broadcast(own, pairs, (0,)))
        at = self.both("add", self.broadcast(start, pairs, (0,)), step)
        at = self.select(is_own, at, self.splat(0, DType.S32, pairs))
        head = self._reduce(is_own, self._read(updates, at, position), op, unit)

        last = self.both("subtract", end, one)
        piece = self.both(
            "divide", self.both("maximum", last, self.splat(0, DType.S32, rows)), sizes
        )
        goes_on = self.compare("GT", piece, first)
        is_empty = self.compare("LE", end, start)
        goes_on = self.select(is_empty, self.splat(0, DType.PRED, rows), goes_on)
        rest = self.gather(self._continue(place, updates, op, unit, position, size), piece)
        flat = (self.rows, *self.row)
        if self.row:
            goes_on = self.broadcast(goes_on, flat, (0,))
        return self.select(goes_on, self.both(op, head, rest), head)

    def _choose_piece(self) -> int:
        """Twice as many updates as a row has in the mean, as a power of two."""
        mean = self.count // max(self.rows, 1)
        return min(max(1 << mean.bit_length(), LEAST_PIECE), MOST_PIECE)

    def _read(self, updates: str, at: str, position: str | None) -> str:
        return self.gather(updates, at if position is None else self.gather(position, at))

    def _reduce(self, where: str, terms: str, op: str, unit: str) -> str:
        """Over the second dimension, of the terms where the condition on the first two holds."""
        array = self.draft[terms].array
        if array.rank > 2:
            where = self.broadcast(where, array.shape, (0, 1))
        terms = self.select(where, terms, self.spread(unit, array.shape))
        return self.combine(terms, op, unit)

    def _continue(
        self, place: str, updates: str, op: str, unit: str, position: str | None, size: int
    ) -> str:
        """For each piece what the row with which it begins has of all pieces before, but for its first, and of it."""
        pieces = -(-self.count // size)
        pairs = (pieces, size)
        nowhere = self.add(
            "constant",
            DType.S32,
            (),
            (),
            ConstantAttrs(Literal.of(np.asarray(self.rows, np.int32))),
        )
        padded = self._pad(place, nowhere, pieces * size)
        places = self.reshape(padded, pairs)
        begin = self.reshape(self.cut(places, (0, 0), (pieces, 1)), (pieces,))
        stop = self.reshape(self.cut(places, (0, size - 1), pairs), (pieces,))
        edge = ConstantAttrs(Literal.of(np.asarray(-2, np.int32)))
        none = self.add("constant", DType.S32, (), (), edge)
        attrs = PadAttrs((1,), (-1,), (0,))
        before = self.add("pad", DType.S32, (pieces,), (stop, none), attrs)
        continues = self.broadcast(self.compare("EQ", begin, before), pairs, (0,))
        is_first = self.compare("EQ", places, self.broadcast(begin, pairs, (0,)))
        where = self.both("and", continues, is_first)
        if position is None and not self.row:
            terms = self.reshape(self._pad(updates, unit, pieces * size), pairs)
        else:
            number = self.add("iota", DType.S32, (pieces * size,), (), IotaAttrs(0))
            # A row that is not asked for is the first one, which caches hold.
            nothing = self.splat(0, DType.S32, pairs)
            at = self.select(where, self.reshape(number, pairs), nothing)
            terms = self._read(updates, at, position)
        return self.scan_rows(self._reduce(where, terms, op, unit), begin, op)

    def _pad(self, x: str, value: str, count: int) -> str:
        """The first dimension filled up with a value."""
        array = self.draft[x].array
        if array.shape[0] == count:
            return x
        none = (0,) * array.rank
        high = (count - array.shape[0], *none[1:])
        shape = (count, *array.shape[1:])
        return self.add("pad", array.dtype, shape, (x, value), PadAttrs(none, high, none))

    def scan_rows(self, updates: str, place: str, op: str) -> str:
        """At each update what its place has so far.  updates: [n, row ...] of 32 bits.  place: s32 [n], sorted."""
        array = self.draft[updates].array
        shape = array.shape
        places = self.convert(place, DType.S64)
        if self.row:
            places = self.broadcast(places, shape, (0,))
        above = self.both("shift-left", places, self.splat(PLACE_BITS, DType.S64, shape))
        bits = self.add("bitcast-convert", DType.U32, shape, (updates,))
        words = self.both("or", above, self.convert(bits, DType.S64))
        nothing = np.asarray(-1 << PLACE_BITS, np.int64)
        init = self.add("constant", DType.S64, (), (), ConstantAttrs(Literal.of(nothing)))
        attrs = running_window(len(shape), Running(0, False), shape[0])
        join = _join(op, array.dtype)
        words = self.add("reduce-window", DType.S64, shape, (words, init), attrs, (join,))
        return self.add("bitcast-convert", array.dtype, shape, (self.convert(words, DType.U32),))


def _join(op: str, dtype: DType) -> Graph:
    """Two words of a scan, in any order: of one place what is combined, else the one with the larger, later place."""
    region, word = Region(DType.S64), DType.S64
    literal = Literal.of(np.asarray(PLACE_BITS, np.int64))
    shift = region.op("constant", word, (), ConstantAttrs(literal))
    here, there = (region.op("shift-right-arithmetic", word, (x, shift)) for x in ("a", "b"))
    bits = [region.op("convert", DType.U32, (x,)) for x in ("a", "b")]
    x, y = (region.op("bitcast-convert", dtype, (half,)) for half in bits)
    total = region.op("bitcast-convert", DType.U32, (region.op(op, dtype, (x, y)),))
    place = region.op("shift-left", word, (here, shift))
    both = region.op("or", word, (place, region.op("convert", word, (total,))))
    is_one = region.op("compare", DType.PRED, (here, there), CompareAttrs("EQ"))
    later = region.op("maximum", word, ("a", "b"))
    return region.end("join", region.op("select", word, (is_one, both, later)))
