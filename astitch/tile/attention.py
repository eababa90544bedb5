"""Attention and its gradient as tile programs, without atomics.

    forward: q, k, v, arrays... -> o, statistics           a block for each head and tile of queries
    forward_of_parts: the same -> sums, statistics         a block for each part of the keys too
    join: sums, statistics -> o, statistics                a block for each row
    gradient_of_keys: ..., statistics, do, delta -> dk, dv  a block for each head of k and tile of keys
    gradient_of_queries: the same -> dq                     a block for each head and tile of queries
    gradient_of_bias: the same -> dbias                     a block for each tile of the bias

gradient_of_queries gives the gradient of the scores beside dq, where it is asked for.

Scores live in registers.  The forward pass keeps a running maximum and sum for each row, and rescales what it has
added up (FlashAttention-2, https://arxiv.org/abs/2307.08691).  The gradient computes the scores again, once for dk and
dv and once for dq, so that every sum has a fixed order.  delta is the sum of do * o over the features.
graph/ops/attention.py says what the arrays are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from astitch.graph.ir import DType
from astitch.tile.attention_shape import (
    OTHERS,
    AttentionShape,
    Layout,
    Tiling,
    count_tiles,
    pad_extent,
)
from astitch.tile.program import Builder, Parameter, Tile, TileProgram

LOG2_E = math.log2(math.e)

JOIN_WARPS = 4
"""Of a block that joins the parts of a row."""

LOWEST = -(2.0**100)
"""What a score is that a condition leaves out.  A row of such scores alone has equal probabilities."""


def write_forward(shape: AttentionShape, tiling: Tiling) -> TileProgram:
    """q, k, v, arrays... -> (o, statistics)."""
    return _Kernel(shape, tiling).forward()


def write_forward_of_parts(shape: AttentionShape, tiling: Tiling) -> TileProgram:
    """q, k, v, arrays... -> (sums, statistics), both of f32.

    sums: [parts, batch, heads, positions, features], values times exponentials.  statistics: [2, parts, batch, heads,
    positions], the largest score, and the sum of exponentials beside it.  Scores that masks leave out are LOWEST.
    """
    return _PartKernel(shape, tiling).forward_of_parts()


def write_join(shape: AttentionShape, tiling: Tiling) -> TileProgram:
    """sums, statistics, as write_forward_of_parts gives them, the sink if there is one -> (o, statistics)."""
    return _PartKernel(shape, tiling).join()


def write_gradient_of_keys(shape: AttentionShape, tiling: Tiling) -> TileProgram:
    """q, k, v, statistics, do, delta, arrays... -> (dk, dv)."""
    return _Kernel(shape, tiling).gradient_of_keys()


def write_gradient_of_queries(shape: AttentionShape, tiling: Tiling) -> TileProgram:
    """q, k, v, statistics, do, delta, arrays... -> dq, or (dq, dscores)."""
    return _Kernel(shape, tiling).gradient_of_queries()


def write_gradient_of_bias(shape: AttentionShape, tiling: Tiling) -> TileProgram:
    """q, k, v, statistics, do, delta, arrays... -> dbias."""
    return _BiasKernel(shape, tiling).gradient_of_bias()


_Q, _K, _V, _STATISTICS, _DO, _DELTA = range(6)
_FORWARD, _GRADIENT, _JOIN = 3, 6, 2
"""The numbers of the parameters, and how many there are before the arrays of scores."""


@dataclass(frozen=True)
class _Seen:
    """What arrays say of a tile of scores: what is added, which are kept, what probabilities are multiplied by."""

    bias: Tile | None = None
    kept: Tile | None = None
    drop: Tile | None = None


class _Arrays:
    """How blocks read and write the arrays."""

    def __init__(self, shape: AttentionShape, tiling: Tiling) -> None:
        self.shape, self.tiling = shape, tiling
        self.b = Builder()
        self.width, self.value_width = (pad_extent(x.features) for x in (shape.q, shape.v))
        self.row_count = shape.batch * shape.heads * shape.queries
        self.first_array = _FORWARD
        self.held: dict[int, Tile] = {}  # what is loaded in front of the loop, by its parameter

    def _hold(
        self, batch: Tile, head: Tile | None, rows: Tile | None, columns: Tile | None
    ) -> None:
        """Loads what is the same in all turns of the loop.  None: it is not known in front of it."""
        s = self.shape
        for number, layout in enumerate(s.of_scores):
            known = (True, head is not None, rows is not None, columns is not None)
            if all(k or not stride for k, stride in zip(known, layout.strides, strict=True)):
                anywhere = rows or columns or batch  # where there is no step it does not matter
                place = (batch, head or batch, rows or anywhere, columns or anywhere)
                self.held[number] = self._load_array(number, layout, *place, turned=rows is None)

    def _look(
        self, batch: Tile, head: Tile, rows: Tile, columns: Tile, *, turned: bool = False
    ) -> _Seen:
        """What the arrays say of a tile of scores.  turned: keys by queries."""
        b, s, place = self.b, self.shape, (batch, head, rows, columns)

        def load(layout: Layout) -> Tile:
            number = next(numbers)
            held = self.held.get(number)
            return held or self._load_array(number, layout, *place, turned=turned)

        numbers = iter(range(len(s.of_scores)))
        bias = load(s.bias) if s.bias else None
        if bias and s.other_bias:
            bias = b.convert(bias, DType.F32) + b.convert(load(s.other_bias), DType.F32)
        kept = [load(mask) for mask in s.masks]
        for comparison in s.comparisons:
            left, right = load(comparison.left), load(comparison.right)
            kept.append(_compare(b, comparison.direction, left, right))
        together = kept[0] if kept else None
        for one in kept[1:]:
            together = one if together is None else together & one
        return _Seen(bias, together, load(s.drop) if s.drop else None)

    def _load_array(
        self,
        number: int,
        layout: Layout,
        batch: Tile,
        head: Tile,
        rows: Tile,
        columns: Tile,
        *,
        turned: bool,
    ) -> Tile:
        """Of a tile of scores; of one row or column where it is the same for all."""
        b, (of_batch, of_head, of_row, of_column) = self.b, layout.strides
        offsets = batch * of_batch + head * of_head
        mask = None
        for numbers, stride, limit, is_row in (
            (rows, of_row, self.shape.queries, turned),
            (columns, of_column, self.shape.keys, not turned),
        ):
            if stride:
                turn = Tile.row if is_row else Tile.column
                offsets = offsets + turn(numbers) * stride
                inside = self._inside(numbers, limit, numbers.shape[0])
                if inside is not None:
                    mask = turn(inside) if mask is None else mask & turn(inside)
        if not offsets.shape:
            offsets = b.broadcast(offsets, (1, 1))
        return b.load(self.first_array + number, layout.dtype, offsets, mask)

    def _inside(self, numbers: Tile, limit: int, extent: int) -> Tile | None:
        """Which of these are below a limit; None where all are.  extent: of a tile."""
        return numbers < limit if limit % extent else None

    def _places(
        self, layout: Layout, batch: Tile, head: Tile, numbers: Tile, limit: int
    ) -> tuple[Tile, Tile | None]:
        """(offsets of [positions, features], which of them are in the array).

        batch: one number, or the page of each position.
        """
        b, (of_batch, of_head, of_position, of_feature) = self.b, layout.strides
        features = b.range(pad_extent(layout.features))
        if batch.shape:  # the page of each position
            own = batch * of_batch + numbers % self.shape.page * of_position
            offsets = own.column() + head * of_head
        else:
            offsets = batch * of_batch + head * of_head + numbers.column() * of_position
        offsets = offsets + features.row() * of_feature
        inside = self._inside(numbers, limit, numbers.shape[0])
        mask = inside.column() if inside is not None else None
        if layout.features != features.shape[0]:
            real = (features < layout.features).row()
            mask = real if mask is None else mask & real
        return offsets, mask

    def _read_layer(self) -> Tile | None:
        """Which of the layers of k and v is read."""
        b, s = self.b, self.shape
        if not s.layers:
            return None
        given = b.load(self.first_array + len(s.arrays) - 1, DType.S32, b.scalar(0))
        return b.maximum(b.minimum(given, b.scalar(s.layers - 1)), 0)

    def _load(
        self,
        parameter: int,
        layout: Layout,
        batch: Tile,
        head: Tile,
        numbers: Tile,
        limit: int,
        layer: Tile | None = None,
    ) -> Tile:
        """[positions, features]; 0 where there are none."""
        offsets, mask = self._places(layout, batch, head, numbers, limit)
        if layer is not None:
            offsets = offsets + layer * (layout.size // self.shape.layers)
        return self.b.load(parameter, layout.dtype, offsets, mask)

    def _load_keys(
        self, parameter: int, batch: Tile, group: Tile, columns: Tile, layer: Tile | None
    ) -> Tile:
        """Keys or values, in the type of q."""
        b, s = self.b, self.shape
        layout, table = ((s.k, "k_pages"), (s.v, "v_pages"))[parameter - _K]
        if s.page:
            pages = self._load_of_keys(table, batch, batch, columns / s.page, columns)
            last = s.page_counts[parameter - _K] - 1
            pages = b.maximum(b.minimum(pages, b.scalar(last)), 0)
        else:
            pages = batch
        loaded = self._load(parameter, layout, pages, group, columns, s.keys, layer)
        return loaded if layout.dtype.is_float else b.widen_byte(loaded, s.q.dtype)

    def _load_of_keys(
        self, name: str, batch: Tile, group: Tile, places: Tile, columns: Tile
    ) -> Tile:
        """A number for each key.  places: where those of the columns stand."""
        b, s = self.b, self.shape
        layout = getattr(s, name)
        of_batch, of_head, *of_places = layout.strides
        step = max(of_places)
        offsets = batch * of_batch + group * of_head
        if not step:
            return b.load(
                self._find_parameter(name), layout.dtype, b.broadcast(offsets, columns.shape)
            )
        inside = self._inside(columns, s.keys, columns.shape[0])
        return b.load(self._find_parameter(name), layout.dtype, offsets + places * step, inside)

    def _find_parameter(self, name: str) -> int:
        """Of an array that is not of scores."""
        before = OTHERS[: OTHERS.index(name)]
        given = sum(1 for other in before if getattr(self.shape, other) is not None)
        return self.first_array + len(self.shape.of_scores) + given

    def _scale(
        self,
        x: Tile,
        name: str,
        batch: Tile,
        group: Tile,
        columns: Tile,
        *,
        of_rows: bool = False,
    ) -> Tile:
        """[queries, keys] times the scale of each key or value, if there is one.  of_rows: [keys, features]."""
        b = self.b
        if getattr(self.shape, name) is None:
            return x
        scales = b.convert(self._load_of_keys(name, batch, group, columns, columns), DType.F32)
        scaled = b.convert(x, DType.F32) * (scales.column() if of_rows else scales.row())
        return b.convert(scaled, x.dtype)

    def _store(
        self,
        parameter: int,
        layout: Layout,
        batch: Tile,
        head: Tile,
        numbers: Tile,
        limit: int,
        value: Tile,
    ) -> None:
        offsets, mask = self._places(layout, batch, head, numbers, limit)
        self.b.store(parameter, offsets, self.b.convert(value, layout.dtype), mask)

    def _store_tile(
        self,
        parameter: int,
        result: Parameter,
        offsets: Tile,
        rows: Tile,
        columns: Tile,
        value: Tile,
    ) -> None:
        """What lies in the array, of [rows, columns]."""
        inside = self._inside(rows, self.shape.queries, rows.shape[0])
        mask = inside.column() if inside is not None else None
        inside = self._inside(columns, self.shape.keys, columns.shape[0])
        if inside is not None:
            mask = inside.row() if mask is None else mask & inside.row()
        self.b.store(parameter, offsets, self.b.convert(value, result.dtype), mask)

    def _row_places(self, batch: Tile, head: Tile, rows: Tile) -> Tile:
        return (batch * self.shape.heads + head) * self.shape.queries + rows

    def _statistics(self) -> tuple[Parameter, ...]:
        count = 2 if self.shape.has_two_statistics else 1
        return (Parameter(DType.F32, count * self.row_count),)

    def _load_rows(self, batch: Tile, head: Tile, rows: Tile) -> tuple[list[Tile], Tile]:
        """(statistics, delta) of these rows; one statistic alone is a power of two."""
        b = self.b
        places = self._row_places(batch, head, rows)
        inside = self._inside(rows, self.shape.queries, rows.shape[0])
        statistics = b.load(_STATISTICS, DType.F32, places, inside)
        delta = b.load(_DELTA, DType.F32, places, inside)
        if not self.shape.has_two_statistics:
            return [statistics * LOG2_E], delta
        return [statistics, b.load(_STATISTICS, DType.F32, places + self.row_count, inside)], delta


class _Kernel(_Arrays):
    def forward(self) -> TileProgram:
        b, s, t = self.b, self.shape, self.tiling
        batch, head, block = self._locate(s.heads, count_tiles(s.queries, t.queries), s.causal)
        first = block * t.queries
        rows = first + b.range(t.queries)
        most, total, o = self._walk_keys(batch, head, rows, *self._keys_seen(first))
        empty = most <= LOWEST / 2 if s.has_empty_rows and not s.has_nan_rows else None
        o, statistics = self._finish_rows(o / total.column(), most, total)
        if empty is not None:
            o = b.select(empty.column(), self._average(batch, head, rows, empty), o)
        reads = _FORWARD + len(s.arrays)
        self._store(reads, s.o, batch, head, rows, s.queries, o)
        inside = self._inside(rows, s.queries, t.queries)
        for number, statistic in enumerate(statistics):
            places = self._row_places(batch, head, rows)
            places = places + number * self.row_count if number else places
            b.store(reads + 1, places, statistic, inside)
        return self._finish("forward", reads, (s.q, s.k, s.v), (s.o,), self._statistics())

    def _finish_rows(self, o: Tile, most: Tile, total: Tile) -> tuple[Tile, list[Tile]]:
        """(o, statistics) where masks may leave a row no score.  most, total: of [rows], or of one row."""
        b, s = self.b, self.shape
        empty = most <= LOWEST / 2 if s.has_masks and not s.bias else None
        if empty is not None:
            of_o = empty.column() if len(o.shape) > len(empty.shape) > 0 else empty
            if s.has_nan_rows:
                total, o = b.select(empty, math.nan, total), b.select(of_o, math.nan, o)
            elif s.low == math.inf:
                o = b.select(of_o, 0.0, o)
        statistics = [most, b.log2(total)]
        if s.has_two_statistics:
            return o, statistics
        statistics = [(statistics[0] + statistics[1]) * (1 / LOG2_E)]
        if empty is not None and not s.has_nan_rows:
            of_empty = math.inf if s.low == math.inf else -math.inf
            statistics[0] = b.select(empty, of_empty, statistics[0])
        return o, statistics

    def _walk_keys(
        self, batch: Tile, head: Tile, rows: Tile, lower: Tile, upper: Tile
    ) -> tuple[Tile, Tile, Tile]:
        """(the largest score of each row, the sum of exponentials beside it, these times values) of keys from, to."""
        b, s, t = self.b, self.shape, self.tiling
        group = head / s.shared
        q = self._load(_Q, s.q, batch, head, rows, s.queries)
        self._hold(batch, head, rows, None)
        layer = self._read_layer()

        def turn(at: Tile, most: Tile, total: Tile, o: Tile) -> Sequence[Tile]:
            columns = at + b.range(t.keys)
            k = self._load_keys(_K, batch, group, columns, layer)
            seen = self._look(batch, head, rows, columns)
            products = self._multiply(q, b.transpose(k))
            products = self._scale(products, "k_scale", batch, group, columns)
            scores = self._score(products, seen)[0]
            scores = self._leave_out(scores, rows.column(), columns.row(), -math.inf)
            new = b.maximum(most, b.reduce("maximum", scores, 1))
            base = new
            if s.window or s.bias:  # a tile may have no score of a row
                base = b.select(new.same(-math.inf), 0.0, new)
            p, shrink = self._raise(scores - base.column()), self._raise(most - base)
            v = self._load_keys(_V, batch, group, columns, layer)
            weights = self._drop(p, seen.drop)
            if s.q.dtype is DType.F16:  # small weights times small scales would be nothing
                v = self._scale(v, "v_scale", batch, group, columns, of_rows=True)
            else:
                weights = self._scale(weights, "v_scale", batch, group, columns)
            o = self._multiply(weights, v, o * shrink.column())
            return new, total * shrink + b.reduce("add", p, 1), o

        start = (*self._sink(batch, head, rows), b.full((t.queries, self.value_width), 0.0))
        most, total, o = b.loop(lower, upper, t.keys, start, turn)
        return most, total, o

    def gradient_of_queries(self) -> TileProgram:
        b, s, t = self.b, self.shape, self.tiling
        self.first_array = _GRADIENT
        batch, head, block = self._locate(s.heads, count_tiles(s.queries, t.queries), s.causal)
        group = head / s.shared
        first = block * t.queries
        rows = first + b.range(t.queries)
        q = self._load(_Q, s.q, batch, head, rows, s.queries)
        do = self._load(_DO, s.o, batch, head, rows, s.queries)
        statistics, delta = self._load_rows(batch, head, rows)
        lower, upper = self._keys_seen(first)
        if s.through_masks:
            lower, upper = self._see_all(batch, group, lower, upper, s.keys)
        self._hold(batch, head, rows, None)
        reads = _GRADIENT + len(s.arrays)
        gives_scores = s.gives == "scores"
        others = [Parameter(s.q.dtype, s.score_count)] if gives_scores else []

        def store_scores(columns: Tile, value: Tile) -> None:
            offsets = self._row_places(batch, head, rows).column() * s.keys + columns.row()
            self._store_tile(reads + 1, others[0], offsets, rows, columns, value)

        def turn(at: Tile, dq: Tile) -> Sequence[Tile]:
            columns = at + b.range(t.keys)
            k = self._load(_K, s.k, batch, group, columns, s.keys)
            v = self._load(_V, s.v, batch, group, columns, s.keys)
            seen = self._look(batch, head, rows, columns)
            places = rows.column(), columns.row()
            of_rows = [x.column() for x in statistics]
            p, bent = self._probabilities(q, k, seen, of_rows, *places)
            ds = p * (self._drop(self._multiply(do, b.transpose(v)), seen.drop) - delta.column())
            if gives_scores:
                store_scores(columns, ds if s.low_first else self._stop(ds, seen, None, *places))
            return (self._multiply(self._stop(ds, seen, bent, *places), k, dq),)

        start = b.full((t.queries, self.width), 0.0)
        (dq,) = b.loop(lower, upper, t.keys, (start,), turn)
        self._store(reads, s.q, batch, head, rows, s.queries, dq * s.scale)
        if gives_scores and s.causal:  # those that no query of the tile sees have none

            def clear(at: Tile) -> Sequence[Tile]:
                store_scores(at + b.range(t.keys), b.full((t.queries, t.keys), 0.0))
                return ()

            b.loop(b.scalar(0), lower, t.keys, (), clear)
            seen_tiles = (upper - lower + (t.keys - 1)) / t.keys * t.keys
            b.loop(lower + seen_tiles, b.scalar(s.keys), t.keys, (), clear)
        return self._finish("gradient_of_queries", reads, (s.q, s.k, s.v), (s.q,), others)

    def gradient_of_keys(self) -> TileProgram:
        """Scores are transposed: keys by queries.  The heads that share keys are added up in their order."""
        b, s, t = self.b, self.shape, self.tiling
        self.first_array = _GRADIENT
        batch, group, block = self._locate(s.groups, count_tiles(s.keys, t.keys), False)
        first = block * t.keys
        columns = first + b.range(t.keys)
        k = self._load(_K, s.k, batch, group, columns, s.keys)
        v = self._load(_V, s.v, batch, group, columns, s.keys)
        lower, upper = self._queries_seeing(first)
        lower, upper = self._see_all(batch, group, lower, upper, s.queries)
        self._hold(batch, group if s.shared == 1 else None, None, columns)

        def add(at: Tile, head: Tile, dk: Tile, dv: Tile) -> Sequence[Tile]:
            rows = at + b.range(t.queries)
            q = self._load(_Q, s.q, batch, head, rows, s.queries)
            do = self._load(_DO, s.o, batch, head, rows, s.queries)
            statistics, delta = self._load_rows(batch, head, rows)
            seen = self._look(batch, head, rows, columns, turned=True)
            places = rows.row(), columns.column()
            of_rows = [x.row() for x in statistics]
            p, bent = self._probabilities(k, q, seen, of_rows, *places)
            if s.queries % t.queries:  # rows behind the last have no statistics
                p = b.select(rows.row() < s.queries, p, 0.0)
            dv = self._multiply(self._drop(p, seen.drop), do, dv)
            ds = p * (self._drop(self._multiply(v, b.transpose(do)), seen.drop) - delta.row())
            return self._multiply(self._stop(ds, seen, bent, *places), q, dk), dv

        start = (b.full((t.keys, self.width), 0.0), b.full((t.keys, self.value_width), 0.0))
        if s.shared == 1:
            turns = b.loop(lower, upper, t.queries, start, lambda at, *sums: add(at, group, *sums))
        else:
            count = (upper - lower + (t.queries - 1)) / t.queries

            def turn(number: Tile, *sums: Tile) -> Sequence[Tile]:
                head = group * s.shared + number / count
                return add(lower + number % count * t.queries, head, *sums)

            turns = b.loop(b.scalar(0), count * s.shared, 1, start, turn)
        dk, dv = turns
        reads = _GRADIENT + len(s.arrays)
        self._store(reads, s.k, batch, group, columns, s.keys, dk * s.scale)
        self._store(reads + 1, s.v, batch, group, columns, s.keys, dv)
        return self._finish("gradient_of_keys", reads, (s.q, s.k, s.v), (s.k, s.v))

    def _average(self, batch: Tile, head: Tile, rows: Tile, empty: Tile) -> Tile:
        """What rows of equal probabilities give; nothing is read where no row is empty."""
        b, s, t = self.b, self.shape, self.tiling
        some = b.reduce("maximum", b.select(empty, b.full((), 1.0), 0.0), 0)
        upper = b.select(some <= 0.5, b.scalar(0), b.scalar(s.keys))

        def turn(at: Tile, o: Tile) -> Sequence[Tile]:
            columns = at + b.range(t.keys)
            v = self._load(_V, s.v, batch, head / s.shared, columns, s.keys)
            drop = self._look(batch, head, rows, columns).drop
            p = self._drop(b.full((t.queries, t.keys), 1.0), drop)
            return (self._multiply(p, v, o),)

        start = b.full((t.queries, self.value_width), 0.0)
        (o,) = b.loop(b.scalar(0), upper, t.keys, (start,), turn)
        return o * (1 / s.keys)

    def _locate(self, heads: int, tiles: int, last_first: bool) -> tuple[Tile, Tile, Tile]:
        """(batch, head, tile) of this block.  last_first: the last tiles have the most work."""
        place = self.b.program_id(0)
        self.grid = self.shape.batch * heads * tiles
        tile = place % tiles
        if last_first:
            tile = self.b.scalar(tiles - 1) - tile
        return place / (tiles * heads), place / tiles % heads, tile

    def _keys_seen(self, first: Tile) -> tuple[Tile, Tile]:
        """The keys that queries from this one on see: from, to."""
        b, s, t = self.b, self.shape, self.tiling
        lower, upper = b.scalar(0), b.scalar(s.keys)
        if s.causal:
            upper = b.minimum(first + t.queries, upper)
        if s.window:
            lower = b.maximum(first - (s.window - 1), 0) / t.keys * t.keys
        return lower, upper

    def _queries_seeing(self, first: Tile) -> tuple[Tile, Tile]:
        """The queries that see keys from this one on: from, to."""
        b, s, t = self.b, self.shape, self.tiling
        lower, upper = b.scalar(0), b.scalar(s.queries)
        if s.causal:
            lower = b.minimum(first / t.queries * t.queries, upper)
        if s.window:
            upper = b.minimum(first + (t.keys + s.window - 1), upper)
        return lower, upper

    def _sink(self, batch: Tile, head: Tile, rows: Tile) -> tuple[Tile, Tile]:
        """(the largest score of each row, the sum of exponentials beside it), before any key is seen."""
        b, s = self.b, self.shape
        if s.sink is None:
            return b.full(rows.shape, -math.inf), b.full(rows.shape, 0.0)
        of_batch, of_head, of_row, _ = s.sink.strides
        offsets = batch * of_batch + head * of_head
        offsets = offsets + rows * of_row if of_row else b.broadcast(offsets, rows.shape)
        inside = self._inside(rows, s.queries, rows.shape[0]) if of_row else None
        parameter = self.first_array + len(s.of_scores)
        sink = b.convert(b.load(parameter, s.sink.dtype, offsets, inside), DType.F32)
        return (sink if s.bias else sink * LOG2_E), b.full(rows.shape, 1.0)

    def _raise(self, x: Tile) -> Tile:
        """The exponential of a difference of scores."""
        return self.b.exp2(x * LOG2_E if self.shape.bias else x)

    def _see_all(
        self, batch: Tile, group: Tile, lower: Tile, upper: Tile, extent: int
    ) -> tuple[Tile, Tile]:
        """The bounds of the loop where rows without a score see all keys."""
        b, s = self.b, self.shape
        if s.empty is None:
            return lower, upper
        offset = batch * s.empty.strides[0] + group * s.empty.strides[1]
        some = b.load(_GRADIENT + len(s.arrays) - 1, DType.PRED, offset)
        return b.select(some, b.scalar(0), lower), b.select(some, b.scalar(extent), upper)

    def _score(self, products: Tile, seen: _Seen) -> tuple[Tile, Tile | None]:
        """(scores, tanh of the capped ones) of products of queries and keys.

        Scores are times log2(e), but for those beside a bias: as the formula adds it, so that of a row that it leaves
        out as a whole all scores are the same.
        """
        b, s = self.b, self.shape
        unit = 1.0 if s.bias else LOG2_E
        bent = b.tanh(products * (s.scale / s.cap)) if s.cap else None
        scores = products * (s.scale * unit) if bent is None else bent * (s.cap * unit)
        if seen.bias is None:
            return self._keep(seen, scores, LOWEST), bent
        if s.low_first:
            scores = self._keep(seen, scores, s.low)
        scores = scores + b.convert(seen.bias, DType.F32)
        return (scores if s.low_first else self._keep(seen, scores, s.low)), bent

    def _keep(self, seen: _Seen, x: Tile, number: Tile | float) -> Tile:
        """x where masks keep a score, elsewhere a number."""
        return x if seen.kept is None else self.b.select(seen.kept, x, number)

    def _probabilities(
        self,
        left: Tile,
        right: Tile,
        seen: _Seen,
        statistics: Sequence[Tile],
        rows: Tile,
        columns: Tile,
    ) -> tuple[Tile, Tile | None]:
        """(probabilities, tanh of the capped scores) from the scores, which are computed again.

        statistics, rows, columns: as the scores have them.
        """
        b, s = self.b, self.shape
        scores, bent = self._score(self._multiply(left, b.transpose(right)), seen)
        if s.bias:
            most, total = statistics
            below = scores - most
            # Not above the largest score, whatever the order of sums has made of the last bit; NaN stays.
            below = b.select(below >= 0.0, 0.0, below)
            return self._leave_out(b.exp2(below * LOG2_E - total), rows, columns, 0.0), bent
        p = b.exp2(scores - statistics[0])
        if not s.has_masks:
            return self._leave_out(p, rows, columns, 0.0), bent
        of_empty = self._of_empty(statistics[0])
        if not s.empty:
            return self._leave_out(self._keep(seen, p, of_empty), rows, columns, 0.0), bent
        p = self._leave_out(self._keep(seen, p, 0.0), rows, columns, 0.0) + of_empty
        if s.keys % self.tiling.keys:
            p = b.select(columns < s.keys, p, 0.0)
        return p, bent

    def _of_empty(self, statistics: Tile) -> Tile:
        """The probabilities of rows of which masks keep no score; 0 in others."""
        if self.shape.has_nan_rows:
            return statistics * 0.0
        return self.b.select(statistics.same(-math.inf), self.b.full((), 1 / self.shape.keys), 0.0)

    def _stop(self, ds: Tile, seen: _Seen, bent: Tile | None, rows: Tile, columns: Tile) -> Tile:
        """The gradient of scores through their cap, and without that of scores that masks leave out."""
        s = self.shape
        if bent is not None:
            ds = ds - ds * bent * bent
        if not s.has_masks or s.through_masks:
            return ds
        ds = self._keep(seen, ds, 0.0)
        # Beside NaN not even a probability of 0 leaves out what is behind the last key.
        has_nan = s.low == -math.inf
        return self._leave_out(ds, rows, columns, 0.0) if s.empty or has_nan else ds

    def _drop(self, x: Tile, drop: Tile | None) -> Tile:
        """Probabilities, or their gradient, multiplied as dropout does."""
        b, gain = self.b, self.shape.gain
        if drop is None:
            return x
        if drop.dtype is DType.PRED:
            return b.select(drop, x * gain, 0.0)
        return x * (b.convert(drop, DType.F32) * gain)

    def _leave_out(self, x: Tile, rows: Tile, columns: Tile, number: float) -> Tile:
        """x where a row sees a column, elsewhere a number.  rows, columns: as x has them."""
        s = self.shape
        conditions = [columns < s.keys] if s.keys % self.tiling.keys else []
        if s.causal:
            conditions.append(rows >= columns)
        if s.window:
            conditions.append(rows < columns + s.window)
        for condition in conditions:
            x = self.b.select(condition, x, number)
        return x

    def _multiply(self, x: Tile, y: Tile, z: Tile | None = None) -> Tile:
        """z + x y, or x y; x is rounded to y's type."""
        b = self.b
        z = b.full((x.shape[0], y.shape[1]), 0.0) if z is None else z
        return b.dot(b.convert(x, y.dtype), y, z, self.shape.precision)

    def _finish(
        self,
        name: str,
        reads: int,
        operands: Sequence[Layout],
        results: Sequence[Layout],
        rows: Sequence[Parameter] = (),
    ) -> TileProgram:
        s = self.shape
        parameters = [_parameter(layout) for layout in operands]
        if self.first_array == _GRADIENT:
            rows_of_o = Parameter(DType.F32, self.row_count)
            parameters += [*self._statistics(), _parameter(s.o), rows_of_o]
        parameters += [*map(_parameter, s.arrays)]
        parameters += [*map(_parameter, results), *rows]
        return TileProgram(
            f"attention_{name}",
            tuple(parameters),
            reads,
            self.b.statements(),
            (self.grid, 1, 1),
            self.tiling.warps,
            self.tiling.stages,
        )


class _BiasKernel(_Kernel):
    def gradient_of_bias(self) -> TileProgram:
        """The batches, and the heads that share a bias, are added up in their order."""
        b, s, t = self.b, self.shape, self.tiling
        assert s.bias
        self.first_array = _GRADIENT
        own_batches, own_heads = (
            n if step else 1 for n, step in zip((s.batch, s.heads), s.bias.strides[:2], strict=True)
        )
        row_tiles, column_tiles = count_tiles(s.queries, t.queries), count_tiles(s.keys, t.keys)
        place = b.program_id(0)
        self.grid = own_batches * own_heads * row_tiles * column_tiles
        column_block, row_block = place % column_tiles, place / column_tiles % row_tiles
        own = place / (column_tiles * row_tiles)
        first_row, first_column = row_block * t.queries, column_block * t.keys
        rows, columns = first_row + b.range(t.queries), first_column + b.range(t.keys)
        turns = s.batch * s.heads // (own_batches * own_heads)
        upper = b.scalar(turns)
        if s.causal:  # nothing where no query sees a key
            upper = b.select(first_column < first_row + t.queries, upper, b.scalar(0))
        if s.window:
            upper = b.select(first_row < first_column + (t.keys - 1 + s.window), upper, b.scalar(0))

        def locate(number: Tile) -> tuple[Tile, Tile]:
            """(batch, head) of a turn."""
            if own_batches == own_heads == 1:
                return number / s.heads, number % s.heads
            if own_batches == 1:
                return number, own
            if own_heads == 1:
                return own, number
            return own / s.heads, own % s.heads

        def turn(number: Tile, total: Tile) -> Sequence[Tile]:
            batch, head = locate(number)
            group = head / s.shared
            q = self._load(_Q, s.q, batch, head, rows, s.queries)
            k = self._load(_K, s.k, batch, group, columns, s.keys)
            v = self._load(_V, s.v, batch, group, columns, s.keys)
            do = self._load(_DO, s.o, batch, head, rows, s.queries)
            statistics, delta = self._load_rows(batch, head, rows)
            seen = self._look(batch, head, rows, columns)
            places = rows.column(), columns.row()
            p, _ = self._probabilities(q, k, seen, [x.column() for x in statistics], *places)
            ds = p * (self._drop(self._multiply(do, b.transpose(v)), seen.drop) - delta.column())
            return (total + (ds if s.low_first else self._stop(ds, seen, None, *places)),)

        start = b.full((t.queries, t.keys), 0.0)
        (total,) = b.loop(b.scalar(0), upper, 1, (start,), turn)
        offsets = own * (s.queries * s.keys) + rows.column() * s.keys + columns.row()
        reads = _GRADIENT + len(s.arrays)
        result = Parameter(DType.F32, s.bias.size)
        self._store_tile(reads, result, offsets, rows, columns, total)
        return self._finish("gradient_of_bias", reads, (s.q, s.k, s.v), (), (result,))


class _PartKernel(_Kernel):
    def forward_of_parts(self) -> TileProgram:
        """Blocks of one head are neighbours, and read keys that lie side by side."""
        b, s, t = self.b, self.shape, self.tiling
        tiles = count_tiles(s.queries, t.queries)
        place = b.program_id(0)
        self.grid = s.batch * s.heads * tiles * s.parts
        part, place = place % s.parts, place / s.parts
        batch, head = place / (tiles * s.heads), place / tiles % s.heads
        rows = place % tiles * t.queries + b.range(t.queries)
        lower = part * s.share
        upper = b.minimum(lower + s.share, b.scalar(s.keys))
        most, total, o = self._walk_keys(batch, head, rows, lower, upper)
        reads = _FORWARD + len(s.arrays)
        whole = part * s.batch + batch
        self._store(reads, self.sums, whole, head, rows, s.queries, o)
        places = self._row_places(whole, head, rows)
        inside = self._inside(rows, s.queries, t.queries)
        b.store(reads + 1, places, most, inside)
        b.store(reads + 1, places + s.parts * self.row_count, total, inside)
        of_rows = (self.statistics,)
        return self._finish("forward_of_parts", reads, (s.q, s.k, s.v), (self.sums,), of_rows)

    @property
    def sums(self) -> Layout:
        """Of the parts, whose batches follow each other."""
        s = self.shape
        features, of_head = s.v.features, s.queries * s.v.features
        size = s.parts * self.row_count * features
        return Layout(DType.F32, size, (s.heads * of_head, of_head, features, 1), features)

    @property
    def statistics(self) -> Parameter:
        return Parameter(DType.F32, 2 * self.shape.parts * self.row_count)

    def _sink(self, batch: Tile, head: Tile, rows: Tile) -> tuple[Tile, Tile]:
        """The join knows it."""
        return self.b.full(rows.shape, -math.inf), self.b.full(rows.shape, 0.0)

    def join(self) -> TileProgram:
        b, s = self.b, self.shape
        self.grid, self.first_array = self.row_count, _JOIN
        row = b.program_id(0)
        batch, head = row / (s.heads * s.queries), row / s.queries % s.heads
        query = row % s.queries
        parts = b.range(1 << (s.parts - 1).bit_length())
        inside = self._inside(parts, s.parts, parts.shape[0])
        places = parts * self.row_count + row
        most = b.load(1, DType.F32, places, inside)
        if inside is not None:
            most = b.select(inside, most, -math.inf)
        total = b.load(1, DType.F32, places + s.parts * self.row_count, inside)
        largest = b.reduce("maximum", most, 0)
        sink = self._load_sink(batch, head, query)
        if sink is not None:
            largest = b.maximum(largest, sink)
        base = b.select(largest.same(-math.inf), 0.0, largest)
        weights = self._raise(most - base)
        whole = b.reduce("add", weights * total, 0)
        if sink is not None:
            whole = whole + self._raise(sink - base)
        features = b.range(pad_extent(s.v.features))
        real = self._inside(features, s.v.features, features.shape[0])
        mask = inside.column() if inside is not None else None
        if real is not None:
            mask = real.row() if mask is None else mask & real.row()
        offsets = places.column() * s.v.features + features.row()
        sums = b.load(0, DType.F32, offsets, mask)
        o = b.reduce("add", sums * weights.column(), 0) / whole
        o, statistics = self._finish_rows(o, largest, whole)
        of_batch, of_head, of_position, of_feature = s.o.strides
        first = batch * of_batch + head * of_head + query * of_position
        reads = _JOIN + bool(s.sink)
        b.store(reads, first + features * of_feature, b.convert(o, s.o.dtype), real)
        for number, statistic in enumerate(statistics):
            b.store(reads + 1, row + number * self.row_count, statistic)
        given = (_parameter(self.sums), self.statistics, *map(_parameter, self._list_sinks()))
        parameters = (*given, _parameter(s.o), *self._statistics())
        return TileProgram(
            "attention_join", parameters, reads, b.statements(), (self.grid, 1, 1), JOIN_WARPS, 1
        )

    def _list_sinks(self) -> list[Layout]:
        return [self.shape.sink] if self.shape.sink else []

    def _load_sink(self, batch: Tile, head: Tile, query: Tile) -> Tile | None:
        """That of one row, in the unit of scores."""
        b, s = self.b, self.shape
        if s.sink is None:
            return None
        of_batch, of_head, of_row, _ = s.sink.strides
        offset = batch * of_batch + head * of_head + query * of_row
        sink = b.convert(b.load(_JOIN, s.sink.dtype, offset), DType.F32)
        return sink if s.bias else sink * LOG2_E


_COMPARISONS = {
    "EQ": "equal",
    "NE": "not-equal",
    "LT": "less",
    "LE": "less-equal",
    "GE": "greater-equal",
}


def _compare(b: Builder, direction: str, left: Tile, right: Tile) -> Tile:
    if direction == "GT":
        return b.elementwise("less", right, left)
    return b.elementwise(_COMPARISONS[direction], left, right)


def _parameter(layout: Layout) -> Parameter:
    return Parameter(layout.dtype, layout.size)
