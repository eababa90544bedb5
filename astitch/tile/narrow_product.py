"""Products of few rows as tile programs: the weights are read once, in the type that they have.

A block has a tile of columns, and a part of the sum over the depth; what follows adds the parts.  Integers become
numbers by their bits, which is cheaper than conversions: 0x4300 | n is 128 + n in bf16 for n < 128.
graph/ops/narrow_product.py says what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from astitch.graph.ir import DType
from astitch.tile.program import Builder, Parameter, Tile, TileProgram

NARROW_PRODUCT = "narrow_product"
"""What the names of these kernels begin with."""

LEAST_ROWS, LEAST_COLUMNS = 16, 8
"""Of a product; so few columns only of 16 bits: Triton's of f32 was wrong (an H100, jax 0.11.2)."""


@dataclass(frozen=True, slots=True)
class NarrowShape:
    """A narrow product.  Extents and flags: see NarrowProductAttrs and the operands in graph/ops/narrow_product.py.

    factor: the type of x.  weights: of the numbers; those of four bits lie in bytes.  result: of the parts.
    scales: of the scales, that of x or f32.
    columns: of each matrix.  shared: do all of the batch have the same rows?
    """

    factor: DType
    weights: DType
    result: DType
    layers: int
    batch: int
    rows: int
    depth: int
    columns: tuple[int, ...]
    scales: DType
    groups: int = 1
    share: int = 0
    transposed: bool = False
    offset: bool = False
    scale: bool = False
    scales_transposed: bool = False
    layer: bool = False
    shared: bool = False

    @property
    def given(self) -> int:
        """The batch of x."""
        return 1 if self.shared else self.batch

    @property
    def is_packed(self) -> bool:
        return self.weights in (DType.S4, DType.U4)

    @property
    def halves_columns(self) -> bool:
        """Are two columns of a row in one byte?"""
        return self.is_packed and not self.transposed

    @property
    def halves_depth(self) -> bool:
        """Are two elements of a column in one byte?"""
        return self.is_packed and self.transposed

    @property
    def stored(self) -> DType:
        """The type of an element of the weights in memory."""
        return {DType.S4: DType.S8, DType.U4: DType.U8}.get(self.weights, self.weights)

    @property
    def parts(self) -> int:
        return -(-self.depth // self.share)


@dataclass(frozen=True, slots=True)
class NarrowTiling:
    """columns, depth: extents of a tile of weights as they are stored.  turned: is it the left factor of products?

    rows: of a tile of x, at most.  warps, stages: see TileProgram.
    """

    columns: int
    depth: int
    warps: int
    stages: int
    turned: bool = False
    rows: int = 64


def write_narrow_product(shape: NarrowShape, tiling: NarrowTiling) -> TileProgram:
    """x, weights, offsets, scales, layer -> parts."""
    return _Writer(shape, tiling).write()


@dataclass
class _Writer:
    shape: NarrowShape
    tiling: NarrowTiling
    b: Builder = field(default_factory=Builder)

    def write(self) -> TileProgram:
        s = self.shape
        self._write_block()
        return TileProgram(
            f"{NARROW_PRODUCT}_{s.rows}x{s.depth}x{sum(s.columns)}",
            self.parameters,
            len(self.parameters) - 1,
            self.b.statements(),
            (sum(self._count_tiles()) * self.row_tiles, s.parts, s.batch),
            self.tiling.warps,
            self.tiling.stages,
        )

    @property
    def rows(self) -> int:
        """Of a tile of x."""
        narrow = self.tiling.turned and self.shape.factor is not DType.F32
        least = LEAST_COLUMNS if narrow else LEAST_ROWS
        return min(max(least, 1 << (self.shape.rows - 1).bit_length()), self.tiling.rows)

    @property
    def row_tiles(self) -> int:
        return -(-self.shape.rows // self.rows)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The operands in order, the number of the layer last, and the result."""
        s = self.shape
        whole = s.layers * s.batch
        half = 2 if s.is_packed else 1
        weights = [Parameter(s.stored, whole * s.depth * n // half) for n in s.columns]
        beside = [whole * s.groups * n for n in s.columns]
        return (
            Parameter(s.factor, s.given * s.rows * s.depth),
            *weights,
            *(Parameter(s.factor, size) for size in beside if s.offset),
            *(Parameter(s.scales, size) for size in beside if s.scale),
            *((Parameter(DType.S32, 1),) if s.layer else ()),
            Parameter(s.result, s.parts * s.batch * s.rows * sum(s.columns)),
        )

    def find_first(self, number: int) -> int:
        """The first parameter of the weights (0), the offsets (1) or the scales (2)."""
        s, count = self.shape, len(self.shape.columns)
        return 1 + count * (number > 0) + count * (number > 1 and s.offset)

    def _count_tiles(self) -> list[int]:
        """Tiles of columns of each matrix."""
        half = 2 if self.shape.halves_columns else 1
        return [-(-n // half // self.tiling.columns) for n in self.shape.columns]

    def _write_block(self) -> None:
        s, t, b = self.shape, self.tiling, self.b
        block, part, batch = (b.program_id(axis) for axis in range(3))
        # Blocks that read the same weights are neighbours.
        tile, across = block / self.row_tiles, block % self.row_tiles
        rows = across * self.rows + b.range(self.rows)
        counts = self._count_tiles()
        ends = list(accumulate(counts))
        number = b.scalar(0)
        for end in ends[:-1]:
            number = number + b.select(tile >= end, b.scalar(1), 0)
        first = self._pick(number, [end - count for end, count in zip(ends, counts, strict=True)])
        width = self._pick(number, s.columns)
        above = self._pick(
            number, [n - m for n, m in zip(accumulate(s.columns), s.columns, strict=True)]
        )
        summing = _Block(self, rows, number, width, batch, self._read_layer())
        columns = (tile - first) * t.columns + b.range(t.columns)
        lower = part * s.share
        upper = lower + s.share
        if s.depth % s.share:
            upper = b.minimum(upper, s.depth)
        sums = summing.add_up(columns, lower, upper)
        halves = [columns * 2, columns * 2 + 1] if self.shape.halves_columns else [columns]
        for half, total in zip(halves, sums, strict=True):
            self._store(part, batch, rows, half, width, above, total)

    def _read_layer(self) -> Tile:
        s, b = self.shape, self.b
        if not s.layer:
            return b.scalar(0)
        given = b.load(len(self.parameters) - 2, DType.S32, b.scalar(0))
        return b.maximum(b.minimum(given, s.layers - 1), 0)

    def _pick(self, number: Tile, values: Sequence[int]) -> Tile:
        """values[number], as a tile."""
        b = self.b
        chosen = b.scalar(values[0])
        for other, value in enumerate(values):
            if value != values[0]:
                chosen = b.select(number.same(other), b.scalar(value), chosen)
        return chosen

    def _store(
        self,
        part: Tile,
        batch: Tile,
        rows: Tile,
        columns: Tile,
        width: Tile,
        above: Tile,
        total: Tile,
    ) -> None:
        """total: [rows, columns], or turned."""
        s, b = self.shape, self.b
        turned = self.tiling.turned
        inside = rows < s.rows
        row, column = (rows.row(), columns.column()) if turned else (rows.column(), columns.row())
        mask = (inside.row() if turned else inside.column()) if s.rows % self.rows else None
        if any(n % (self.tiling.columns * (1 + self.shape.halves_columns)) for n in s.columns):
            real = columns < width
            shown = real.column() if turned else real.row()
            mask = shown if mask is None else mask & shown
        offsets = ((part * s.batch + batch) * s.rows + row) * sum(s.columns) + (column + above)
        b.store(len(self.parameters) - 1, offsets, b.convert(total, s.result), mask)


@dataclass
class _Block:
    """What the block of one matrix, one batch and one layer computes."""

    writer: _Writer
    rows: Tile
    number: Tile
    width: Tile
    batch: Tile
    layer: Tile

    def __post_init__(self) -> None:
        self.shape, self.tiling, self.b = self.writer.shape, self.writer.tiling, self.writer.b
        self.halves = 2 if self.shape.is_packed else 1

    def add_up(self, columns: Tile, lower: Tile, upper: Tile) -> list[Tile]:
        """The sums over this part of the depth, of both halves of the columns where they are packed.

        A turn loads the scales of the next one: Triton itself loads ahead only what products read.
        """
        s, t, b = self.shape, self.tiling, self.b
        rows = self.writer.rows
        extents = (t.columns, rows) if t.turned else (rows, t.columns)
        places = [columns * 2, columns * 2 + 1] if self.shape.halves_columns else [columns]
        step = t.depth * (2 if self.shape.halves_depth else 1)
        zeros = [b.full(extents, 0.0) for _ in places]

        def read_scales(k: Tile) -> list[Tile]:
            return [self._read_beside(2, s.scales, place, k) for place in places] if s.scale else []

        def turn(k: Tile, *carried: Tile) -> list[Tile]:
            sums, scales = carried[: len(places)], carried[len(places) :]
            behind = read_scales(b.minimum(k + step, s.depth - 1))
            starts = zeros if s.scale else sums
            totals = self._add_turn(columns, places, k, starts)
            if s.scale:
                scaled = zip(sums, totals, scales, strict=True)
                totals = [before + self._scale(total, scale) for before, total, scale in scaled]
            return [*totals, *behind]

        return b.loop(lower, upper, step, [*zeros, *read_scales(lower)], turn)[: len(places)]

    def _add_turn(
        self, columns: Tile, places: Sequence[Tile], k: Tile, starts: Sequence[Tile]
    ) -> list[Tile]:
        """The starts, and what a turn adds to each of them without scales.  places: the columns of each half."""
        pieces = self._read_weights(columns, k)
        if self.shape.halves_depth:
            (total,) = starts
            for half, piece in enumerate(pieces):
                given = self._subtract(piece, places[0], k)
                total = self._multiply(self._read_x(k, half), given, total)
            return [total]
        x = self._read_x(k, 0)
        return [
            self._multiply(x, self._subtract(piece, place, k), start)
            for piece, place, start in zip(pieces, places, starts, strict=True)
        ]

    def _multiply(self, x: Tile, weights: Tile, total: Tile) -> Tile:
        """total + x weights; x: [rows, depth].  weights: as they lie, [depth, columns] or [columns, depth]."""
        b, turned = self.b, self.tiling.turned
        across = weights if self.shape.transposed else b.transpose(weights)
        if turned:
            return b.dot(across, b.transpose(x), total, "tf32")
        down = b.transpose(weights) if self.shape.transposed else weights
        return b.dot(x, down, total, "tf32")

    def _read_x(self, k: Tile, half: int) -> Tile:
        """[rows, depth] from k on; of packed depth the even or the odd elements."""
        s, t, b = self.shape, self.tiling, self.b
        depth, first, whole = s.depth, k, b.scalar(0) if s.shared else self.batch
        if self.shape.halves_depth:
            depth, first, whole = s.depth // 2, k / 2, whole + half * s.given
        places = first + b.range(t.depth)
        offsets = (whole * s.rows + self.rows.column()) * depth + places.row()
        mask = (self.rows < s.rows).column() if s.rows % self.writer.rows else None
        if depth % t.depth:
            real = (places < depth).row()
            mask = real if mask is None else mask & real
        x = b.load(0, s.factor, offsets, mask)
        return b.round_to_tf32(x) if s.factor is DType.F32 else x

    def _read_weights(self, columns: Tile, k: Tile) -> list[Tile]:
        """As they lie; of packed ones the lower halves of the bytes, then the upper ones."""
        s, t, b = self.shape, self.tiling, self.b
        start = self.layer * s.batch + self.batch
        if s.transposed:
            depth = s.depth // self.halves
            places = k / self.halves + b.range(t.depth)
            offsets = (start * self.width + columns.column()) * depth + places.row()
            limits = self._limit(columns.column(), places.row(), self.width, depth)
        else:
            width = self.width / 2 if s.is_packed else self.width
            depth, places = s.depth, k + b.range(t.depth)
            offsets = (start * depth + places.column()) * width + columns.row()
            limits = self._limit(columns.row(), places.column(), width, depth)
        loaded = self._load(0, s.stored, offsets, limits)
        return self._make_numbers(loaded)

    def _load(self, which: int, dtype: DType, offsets: Tile, mask: Tile | None) -> Tile:
        """Of the weights (0), the offsets (1) or the scales (2) of this block's matrix."""
        first, count = self.writer.find_first(which), len(self.shape.columns)
        return self.b.load_one_of(first, count, self.number, dtype, offsets, mask)

    def _limit(self, columns: Tile, places: Tile, width: Tile, depth: int) -> Tile | None:
        t, half = self.tiling, 2 if self.shape.halves_columns else 1
        mask = None
        if any(n // half % t.columns for n in self.shape.columns):
            mask = columns < width
        if depth % t.depth:
            real = places < depth
            mask = real if mask is None else self._both(mask, real)
        return mask

    def _both(self, one: Tile, other: Tile) -> Tile:
        extents = tuple(max(a, b) for a, b in zip(one.shape, other.shape, strict=True))
        return self.b.broadcast(one, extents) & self.b.broadcast(other, extents)

    def _make_numbers(self, loaded: Tile) -> list[Tile]:
        s, b = self.shape, self.b
        if s.weights is DType.F32:
            return [b.round_to_tf32(loaded)]
        if s.weights.is_float:
            return [loaded]
        if not s.is_packed:
            return [b.widen_byte(loaded, s.factor)]
        wide = b.convert(loaded, DType.S16)
        return [self._convert_nibble(x & 15) for x in (wide, wide >> 4)]

    def _convert_nibble(self, nibble: Tile) -> Tile:
        """0x4300 | n is 128 + n in bf16, 0x6400 | n is 1024 + n in f16; n: from 0 to 15."""
        b, signed = self.b, self.shape.weights is DType.S4
        factor = self.shape.factor
        dtype = DType.BF16 if factor is DType.F32 else factor
        first, bits = (128, 0x4300) if dtype is DType.BF16 else (1024, 0x6400)
        offset = nibble ^ 8 if signed else nibble
        number = b.bitcast(offset | bits, dtype) - (first + 8 * signed)
        return b.convert(number, factor)

    def _subtract(self, weights: Tile, columns: Tile, k: Tile) -> Tile:
        s = self.shape
        if not s.offset:
            return weights
        offsets = self._read_beside(1, s.factor, columns, k)
        difference = weights - (offsets.column() if s.transposed else offsets.row())
        return self.b.round_to_tf32(difference) if s.factor is DType.F32 else difference

    def _scale(self, total: Tile, scales: Tile) -> Tile:
        factors = self.b.convert(scales, DType.F32)
        return total * (factors.column() if self.tiling.turned else factors.row())

    def _read_beside(self, which: int, dtype: DType, columns: Tile, k: Tile) -> Tile:
        """The offsets (1) or the scales (2) of the group of k: [columns]."""
        s = self.shape
        group = k / (s.depth // s.groups)
        start = self.layer * s.batch + self.batch
        if s.scales_transposed:
            offsets = (start * self.width + columns) * s.groups + group
        else:
            offsets = (start * s.groups + group) * self.width + columns
        half = 1 + self.shape.halves_columns
        ragged = any(n % (self.tiling.columns * half) for n in s.columns)
        mask = columns < self.width if ragged else None
        return self._load(which, dtype, offsets, mask)
