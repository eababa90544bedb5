"""Attention and its gradient as tile programs: three kernels, without atomics.

    forward: q, k, v [, bias] -> o, statistics             a block for each head and tile of queries
    gradient_of_keys: ..., statistics, do, delta -> dk, dv  a block for each head of k and tile of keys
    gradient_of_queries: the same -> dq                     a block for each head and tile of queries

Scores live in registers.  The forward pass keeps a running maximum and sum for each row, and rescales what it has
added up (FlashAttention-2, https://arxiv.org/abs/2307.08691).  The gradient computes the scores again, once for dk and
dv and once for dq, so that every sum has a fixed order.  delta is the sum of do * o over the features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from astitch.graph.ir import DType
from astitch.tile.program import Builder, Parameter, Tile, TileProgram

LOG2_E = math.log2(math.e)

LEAST_EXTENT = 16
"""The least extent of a factor of a product."""

LEAST_BIAS = -1e38
"""The least number that is added to a score, but for minus infinity: times log2(e) it is finite."""

LOWEST = -(2.0**100)
"""What a score is that a condition leaves out.  A row of such scores alone has equal probabilities."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How an array lies: elements from one batch, head, position and feature to the next; 0: the same for all.

    size: elements of the array.  features: how many there are.
    """

    dtype: DType
    size: int
    strides: tuple[int, int, int, int]
    features: int


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One attention.  heads: of q.  groups: heads of k and v.

    causal, window: see AttentionAttrs.  q, k, v, o: o's layout is that of its gradient too.  bias: of the scores, by
    batch, head, position of q, position of k; conditions name the scores that are kept.  precision: of the products of
    f32: tf32, tf32x3 or ieee.  through_masks, cap, gain: see
    AttentionAttrs.  drop: what probabilities are multiplied by, as the bias lies.
    """

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    scale: float
    causal: bool
    window: int
    q: Layout
    k: Layout
    v: Layout
    o: Layout
    bias: Layout | None = None
    precision: str = "tf32"
    through_masks: bool = False
    cap: float = 0.0
    drop: Layout | None = None
    gain: float = 0.0

    @property
    def shared(self) -> int:
        """The heads of q that read one head of k and v."""
        return self.heads // self.groups

    @property
    def arrays(self) -> tuple[Layout, ...]:
        """Those that have an element for each score."""
        return tuple(array for array in (self.bias, self.drop) if array)

    @property
    def has_conditions(self) -> bool:
        """Does the bias name the scores that are kept?"""
        return self.bias is not None and self.bias.dtype is DType.PRED

    @property
    def has_numbers(self) -> bool:
        """Is the bias added to the scores?"""
        return self.bias is not None and self.bias.dtype is not DType.PRED


@dataclass(frozen=True, slots=True)
class Tiling:
    """queries, keys: extents of a tile of scores.  warps, stages: see TileProgram."""

    queries: int
    keys: int
    warps: int
    stages: int


def pad_extent(extent: int) -> int:
    """The extent of the tile that holds so many elements."""
    return max(LEAST_EXTENT, 1 << (extent - 1).bit_length())


def count_tiles(extent: int, tile: int) -> int:
    return -(-extent // tile)


def write_forward(shape: AttentionShape, tiling: Tiling) -> TileProgram:
    """q, k, v [, bias] -> (o, statistics)."""
    return _Kernel(shape, tiling).forward()


def write_gradient_of_keys(shape: AttentionShape, tiling: Tiling) -> TileProgram:
    """q, k, v, statistics, do, delta [, bias] -> (dk, dv)."""
    return _Kernel(shape, tiling).gradient_of_keys()


def write_gradient_of_queries(shape: AttentionShape, tiling: Tiling) -> TileProgram:
    """q, k, v, statistics, do, delta [, bias] -> dq."""
    return _Kernel(shape, tiling).gradient_of_queries()


_Q, _K, _V, _STATISTICS, _DO, _DELTA = range(6)
_FORWARD, _GRADIENT = 3, 6
"""The numbers of the parameters, and how many there are before a bias and what probabilities are multiplied by."""


class _Kernel:
    def __init__(self, shape: AttentionShape, tiling: Tiling) -> None:
        self.shape, self.tiling = shape, tiling
        self.b = Builder()
        self.width, self.value_width = (pad_extent(x.features) for x in (shape.q, shape.v))
        self.rows = Parameter(DType.F32, shape.batch * shape.heads * shape.queries)

    def forward(self) -> TileProgram:
        b, s, t = self.b, self.shape, self.tiling
        batch, head, block = self._locate(s.heads, count_tiles(s.queries, t.queries), s.causal)
        group = head / s.shared
        first = block * t.queries
        rows = first + b.range(t.queries)
        q = self._load(_Q, s.q, batch, head, rows, s.queries)
        lower, upper = self._keys_seen(first)

        def turn(at: Tile, most: Tile, total: Tile, o: Tile) -> Sequence[Tile]:
            columns = at + b.range(t.keys)
            k = self._load(_K, s.k, batch, group, columns, s.keys)
            bias, drop = self._load_arrays(_FORWARD, batch, head, rows, columns)
            scores = self._score(self._multiply(q, b.transpose(k)), bias)[0]
            scores = self._leave_out(scores, rows.column(), columns.row(), -math.inf)
            new = b.maximum(most, b.reduce("maximum", scores, 1))
            base = new
            if s.window or s.has_numbers:  # a tile may have no score of a row
                base = b.select(new.same(-math.inf), 0.0, new)
            p, shrink = b.exp2(scores - base.column()), b.exp2(most - base)
            v = self._load(_V, s.v, batch, group, columns, s.keys)
            o = self._multiply(self._drop(p, drop), v, o * shrink.column())
            return new, total * shrink + b.reduce("add", p, 1), o

        start = (
            b.full((t.queries,), -math.inf),
            b.full((t.queries,), 0.0),
            b.full((t.queries, self.value_width), 0.0),
        )
        most, total, o = b.loop(lower, upper, t.keys, start, turn)
        reads = _FORWARD + len(s.arrays)
        self._store(reads, s.o, batch, head, rows, s.queries, o / total.column())
        statistics = (most + b.log2(total)) * (1 / LOG2_E)
        if s.has_conditions:
            statistics = b.select(most <= LOWEST / 2, -math.inf, statistics)
        inside = self._inside(rows, s.queries, t.queries)
        b.store(reads + 1, self._row_places(batch, head, rows), statistics, inside)
        return self._finish("forward", reads, (s.q, s.k, s.v), (s.o,), (self.rows,))

    def gradient_of_queries(self) -> TileProgram:
        b, s, t = self.b, self.shape, self.tiling
        batch, head, block = self._locate(s.heads, count_tiles(s.queries, t.queries), s.causal)
        group = head / s.shared
        first = block * t.queries
        rows = first + b.range(t.queries)
        q = self._load(_Q, s.q, batch, head, rows, s.queries)
        do = self._load(_DO, s.o, batch, head, rows, s.queries)
        statistics, delta = self._load_rows(batch, head, rows)
        lower, upper = self._keys_seen(first)

        def turn(at: Tile, dq: Tile) -> Sequence[Tile]:
            columns = at + b.range(t.keys)
            k = self._load(_K, s.k, batch, group, columns, s.keys)
            v = self._load(_V, s.v, batch, group, columns, s.keys)
            bias, drop = self._load_arrays(_GRADIENT, batch, head, rows, columns)
            places = rows.column(), columns.row()
            p, bent = self._probabilities(q, k, bias, statistics.column(), *places)
            ds = p * (self._drop(self._multiply(do, b.transpose(v)), drop) - delta.column())
            return (self._multiply(self._stop(ds, bias, bent), k, dq),)

        start = b.full((t.queries, self.width), 0.0)
        (dq,) = b.loop(lower, upper, t.keys, (start,), turn)
        reads = _GRADIENT + len(s.arrays)
        self._store(reads, s.q, batch, head, rows, s.queries, dq * s.scale)
        return self._finish("gradient_of_queries", reads, (s.q, s.k, s.v), (s.q,))

    def gradient_of_keys(self) -> TileProgram:
        """Scores are transposed: keys by queries.  The heads that share keys are added up in their order."""
        b, s, t = self.b, self.shape, self.tiling
        batch, group, block = self._locate(s.groups, count_tiles(s.keys, t.keys), False)
        first = block * t.keys
        columns = first + b.range(t.keys)
        k = self._load(_K, s.k, batch, group, columns, s.keys)
        v = self._load(_V, s.v, batch, group, columns, s.keys)
        lower, upper = self._queries_seeing(first)

        def add(at: Tile, head: Tile, dk: Tile, dv: Tile) -> Sequence[Tile]:
            rows = at + b.range(t.queries)
            q = self._load(_Q, s.q, batch, head, rows, s.queries)
            do = self._load(_DO, s.o, batch, head, rows, s.queries)
            statistics, delta = self._load_rows(batch, head, rows)
            bias, drop = self._load_arrays(_GRADIENT, batch, head, rows, columns, turned=True)
            places = rows.row(), columns.column()
            p, bent = self._probabilities(k, q, bias, statistics.row(), *places)
            if s.queries % t.queries:  # rows behind the last have no statistics
                p = b.select(rows.row() < s.queries, p, 0.0)
            dv = self._multiply(self._drop(p, drop), do, dv)
            ds = p * (self._drop(self._multiply(v, b.transpose(do)), drop) - delta.row())
            return self._multiply(self._stop(ds, bias, bent), q, dk), dv

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

    def _score(self, products: Tile, bias: Tile | None) -> tuple[Tile, Tile | None]:
        """(scores times log2(e), tanh of the capped ones) of products of queries and keys."""
        b, s = self.b, self.shape
        bent = b.tanh(products * (s.scale / s.cap)) if s.cap else None
        scores = products * (s.scale * LOG2_E) if bent is None else bent * (s.cap * LOG2_E)
        if bias is not None and s.has_conditions:
            scores = b.select(bias, scores, LOWEST)
        elif bias is not None:
            wide = b.convert(bias, DType.F32)
            low = b.select(wide.same(-math.inf), wide, LEAST_BIAS)
            scores = scores + b.select(wide <= LEAST_BIAS, low, wide) * LOG2_E
        return scores, bent

    def _probabilities(
        self,
        left: Tile,
        right: Tile,
        bias: Tile | None,
        statistics: Tile,
        rows: Tile,
        columns: Tile,
    ) -> tuple[Tile, Tile | None]:
        """(probabilities, tanh of the capped scores) from the scores, which are computed again.

        statistics, rows, columns: as the scores have them.
        """
        b = self.b
        scores, bent = self._score(self._multiply(left, b.transpose(right)), bias)
        p = b.exp2(scores - statistics)
        if bias is not None and self.shape.has_conditions:
            of_empty = b.select(statistics.same(-math.inf), b.full((), 1 / self.shape.keys), 0.0)
            p = b.select(bias, p, of_empty)
        return self._leave_out(p, rows, columns, 0.0), bent

    def _stop(self, ds: Tile, bias: Tile | None, bent: Tile | None) -> Tile:
        """The gradient of scores through their cap, and without that of scores that a condition leaves out."""
        if bent is not None:
            ds = ds - ds * bent * bent
        if bias is None or not self.shape.has_conditions or self.shape.through_masks:
            return ds
        return self.b.select(bias, ds, 0.0)

    def _drop(self, x: Tile, drop: Tile | None) -> Tile:
        """Probabilities, or their gradient, multiplied as dropout does."""
        b, gain = self.b, self.shape.gain
        if drop is None:
            return x
        if drop.dtype is DType.PRED:
            return b.select(drop, x * gain, 0.0)
        return x * (b.convert(drop, DType.F32) * gain)

    def _load_arrays(
        self,
        first: int,
        batch: Tile,
        head: Tile,
        rows: Tile,
        columns: Tile,
        *,
        turned: bool = False,
    ) -> tuple[Tile | None, Tile | None]:
        """(bias, what probabilities are multiplied by) of a tile of scores.

        first: the number of the first such parameter.  turned: keys by queries.
        """
        s, place = self.shape, (batch, head, rows, columns)
        bias = self._load_array(first, s.bias, *place, turned=turned) if s.bias else None
        number = first + len(s.arrays) - 1
        drop = self._load_array(number, s.drop, *place, turned=turned) if s.drop else None
        return bias, drop

    def _load_array(
        self,
        parameter: int,
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
        return b.load(parameter, layout.dtype, offsets, mask)

    def _leave_out(self, x: Tile, rows: Tile, columns: Tile, number: float) -> Tile:
        """x where a row sees a column, elsewhere a number.  rows, columns: as x has them."""
        b, s = self.b, self.shape
        conditions = []
        if s.keys % self.tiling.keys:
            conditions.append(columns < s.keys)
        if s.causal:
            conditions.append(rows >= columns)
        if s.window:
            conditions.append(rows < columns + s.window)
        for condition in conditions:
            x = b.select(condition, x, number)
        return x

    def _multiply(self, x: Tile, y: Tile, z: Tile | None = None) -> Tile:
        """z + x y, or x y; x is rounded to y's type."""
        b = self.b
        z = b.full((x.shape[0], y.shape[1]), 0.0) if z is None else z
        return b.dot(b.convert(x, y.dtype), y, z, self.shape.precision)

    def _inside(self, numbers: Tile, limit: int, extent: int) -> Tile | None:
        """Which of these are below a limit; None where all are.  extent: of a tile."""
        return numbers < limit if limit % extent else None

    def _places(
        self, layout: Layout, batch: Tile, head: Tile, numbers: Tile, limit: int
    ) -> tuple[Tile, Tile | None]:
        """(offsets of [positions, features], which of them are in the array)."""
        b, (of_batch, of_head, of_position, of_feature) = self.b, layout.strides
        features = b.range(pad_extent(layout.features))
        offsets = batch * of_batch + head * of_head + numbers.column() * of_position
        offsets = offsets + features.row() * of_feature
        inside = self._inside(numbers, limit, numbers.shape[0])
        mask = inside.column() if inside is not None else None
        if layout.features != features.shape[0]:
            real = (features < layout.features).row()
            mask = real if mask is None else mask & real
        return offsets, mask

    def _load(
        self, parameter: int, layout: Layout, batch: Tile, head: Tile, numbers: Tile, limit: int
    ) -> Tile:
        """[positions, features]; 0 where there are none."""
        offsets, mask = self._places(layout, batch, head, numbers, limit)
        return self.b.load(parameter, layout.dtype, offsets, mask)

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

    def _row_places(self, batch: Tile, head: Tile, rows: Tile) -> Tile:
        return (batch * self.shape.heads + head) * self.shape.queries + rows

    def _load_rows(self, batch: Tile, head: Tile, rows: Tile) -> tuple[Tile, Tile]:
        """(statistics as powers of two, delta) of these rows."""
        places = self._row_places(batch, head, rows)
        inside = self._inside(rows, self.shape.queries, rows.shape[0])
        statistics, delta = (
            self.b.load(parameter, DType.F32, places, inside) for parameter in (_STATISTICS, _DELTA)
        )
        return statistics * LOG2_E, delta

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
        if reads > _DELTA:
            parameters += [self.rows, _parameter(s.o), self.rows]
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


def _parameter(layout: Layout) -> Parameter:
    return Parameter(layout.dtype, layout.size)
