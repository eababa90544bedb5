"""With which tiles products of few rows are computed, and in how many parts: NarrowShape -> NarrowTiling.

The tilings are the best of fourteen by Triton alone on an H100, 2026-11-27.  Those of integers in groups, and of more
than 64 rows, were compared inside XLA (jax 0.11.2, the same day).  Weights in memory, and tiles of more than 32
transposed rows, were compared on an H200, 2026-11-29.  docs/decisions/0047 has the times.
"""

from __future__ import annotations

import math

from astitch.graph.ir import DType
from astitch.tile.narrow_fragments import FragmentTiling, count_columns, count_step, fits
from astitch.tile.narrow_product import NarrowShape, NarrowTiling

HOPPER = 90
"""The compute capability of the GPUs that the rates are for."""

FEW_ROWS = 64
"""Of one tile of rows.  With more, integers would be converted once for each tile."""

MOST_ROWS = 512
"""With so many the kernel is 1.1 times as fast as XLA, which copies the weights first; with more it was not timed."""

MOST_PARTS = 16
"""What follows adds no more."""

BLOCKS_PER_SM = 2
"""So many blocks keep the memory busy."""

FRAGMENT_ROWS = {
    # bits, transposed, in groups: rows
    (8, False, False): 8,
    (8, False, True): 8,
    (8, True, False): 32,
    (8, True, True): 16,
    (4, False, False): 8,
    (4, False, True): 8,
    (4, True, False): 32,
    (4, True, True): 32,
}
"""Of integers: with more, a kernel that is fed from registers reads x too often, and Triton's is faster."""

MANY_FRAGMENT_ROWS = 9
"""Of transposed bytes without groups: for fewer rows in memory XLA's kernel is as fast."""

FRAGMENT_BLOCKS_PER_SM = 4
"""Of weights along the columns, of which a thread has few loads under way.  Bytes in groups take more registers: of
their blocks fewer are resident, and those that are left over would run alone."""

FRAGMENT_STEPS = 4
"""Of a warp, where all SMs have a block: with fewer, adding up the sums of warps and parts takes longer."""

LEAST_FRAGMENT_NUMBERS = 1 << 22
"""Of weights along the columns, and of transposed bytes without groups: fewer Triton's kernels read as fast."""

TURNED_ROWS = 32
"""With more, transposed weights are the right factor of a tile's product: as the left one 15.6 us in place of 13.5."""

FEW_NUMBERS = 1 << 23
"""Of weights in memory: for 2 rows or more of fewer numbers XLA starts another kernel, or is slower."""

MANY_NUMBERS = 1 << 26
"""Of weights in memory: with so many XLA's products reach the memory's speed."""

SOME_ROWS = 16
"""From so many on weights in memory of up to MANY_NUMBERS are read faster than by XLA."""

LEAST_MATRIX = 1 << 20
"""Numbers of one matrix of a batch: with fewer it was not timed."""

LEAST_DEPTH = 16
"""Of a tile: products on tensor cores have no less."""

MOST_ELEMENTS = 2**31 - 1
"""Of an array: offsets are 32 bits wide."""


def choose_tiling(shape: NarrowShape) -> NarrowTiling | None:
    """None where no tiling fits: rows of the weights must be whole words of 16 bytes."""
    if shape.rows > _count_most_rows(shape):
        return None
    half = 2 if shape.is_packed else 1
    columns, depth, stages = 64, 64, 4
    if shape.transposed:
        unit = shape.depth // half * shape.stored.bytes
        columns, depth = (128, 64) if shape.is_packed else (64, 128)
    else:
        unit = math.gcd(*(n // half * shape.stored.bytes for n in shape.columns))
        if shape.is_packed:
            depth, stages = 128, 3
        elif not shape.weights.is_float:
            columns = 128
    packed = (shape.depth,) if shape.transposed else shape.columns
    if unit % 16 or any(n % half for n in packed):
        return None
    if shape.groups > 1:
        # A tile lies in one group.
        along = half if shape.transposed else 1
        depth = math.gcd(depth * along, shape.depth // shape.groups) // along
        if depth < LEAST_DEPTH:
            return None
    turned = shape.transposed and shape.weights.is_float
    if turned and (shape.factor is DType.F32 or shape.rows > TURNED_ROWS):
        depth = min(depth, 64)
    if shape.rows > FEW_ROWS:
        return NarrowTiling(64, 64, 4, 4, rows=128)
    return NarrowTiling(columns, depth, 4, stages, turned and shape.rows <= TURNED_ROWS)


def choose_fragments(shape: NarrowShape) -> FragmentTiling | None:
    """The tiling of a kernel that feeds the tensor cores from registers; None where Triton's is taken.

    The best of eight for each kind, and for which rows, on an H200, 2026-11-30.
    """
    if shape.weights.is_float:
        return None
    kind = 4 if shape.is_packed else 8, shape.transposed, shape.groups > 1
    if shape.rows > FRAGMENT_ROWS[kind]:
        return None
    numbers = shape.batch * shape.depth * sum(shape.columns)
    if (not shape.transposed or kind == (8, True, False)) and numbers < LEAST_FRAGMENT_NUMBERS:
        return None
    if not shape.transposed:
        tiling = FragmentTiling(warps=8, vector=8, ahead=1)
    elif shape.is_packed:
        tiling = FragmentTiling(8, 16, 1) if shape.rows <= 16 else FragmentTiling(4, 16, 2)
    else:
        tiling = FragmentTiling(8, 16, 2 if shape.rows <= 16 else 1)
    return tiling if fits(shape, tiling) else None


def beats_products(shape: NarrowShape) -> bool:
    """Is the kernel faster than XLA where that has the weights in memory, as floats of 16 bits or as integers?

    One row XLA multiplies and sums without tensor cores.  A stitch op of such sums has barriers, or computes the row
    once for each block.
    """
    numbers = shape.depth * sum(shape.columns)
    if not shape.weights.is_float:
        as_xla_likes = shape.transposed and not shape.is_packed and shape.groups == 1
        if as_xla_likes and shape.rows < MANY_FRAGMENT_ROWS:
            return False
        return choose_fragments(shape) is not None
    if shape.weights is not shape.factor or shape.factor is DType.F32 or shape.rows > FEW_ROWS:
        return False
    if numbers * shape.batch > MANY_NUMBERS or (shape.batch > 1 and numbers < LEAST_MATRIX):
        return False
    if shape.rows == 1:
        return shape.batch == 1
    return shape.rows >= SOME_ROWS or shape.batch > 1 or numbers <= FEW_NUMBERS


def _count_most_rows(shape: NarrowShape) -> int:
    """Many rows were measured of floats of 16 bits alone."""
    narrow = shape.weights is shape.factor and shape.factor is not DType.F32
    return MOST_ROWS if narrow else FEW_ROWS


def choose_share(shape: NarrowShape, tiling: NarrowTiling, sms: int) -> int:
    """Elements of the depth that a block adds up, in whole tiles; few enough that there are blocks for all SMs.

    Whole tiles of Triton's kernel are whole steps of one that is fed from registers.
    """
    half = 2 if shape.is_packed else 1
    along_columns, step, per_sm = tiling.columns, tiling.depth, BLOCKS_PER_SM
    if shape.transposed:
        step *= half
    else:
        along_columns *= half
    row_tiles = -(-shape.rows // tiling.rows)
    turns, least = -(-shape.depth // step), 1
    if fragments := choose_fragments(shape):
        along_columns, row_tiles = count_columns(shape, fragments), 1
        if not shape.transposed:
            if shape.is_packed or shape.groups == 1:
                per_sm = FRAGMENT_BLOCKS_PER_SM
            least = FRAGMENT_STEPS * fragments.warps * count_step(shape, fragments)
    blocks = row_tiles * shape.batch * sum(-(-n // along_columns) for n in shape.columns)
    parts = 1
    while parts < MOST_PARTS and blocks * parts * 1.5 < per_sm * sms and turns >= 4 * parts:
        if blocks * parts >= sms and shape.depth < 2 * parts * least:
            break
        parts *= 2
    return -(-turns // parts) * step
