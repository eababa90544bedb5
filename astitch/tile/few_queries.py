"""Attention of few queries: AttentionShape -> the keys of a part, the tiling, microseconds.

The time is that of the keys and values, which are read once.  So there are parts for all SMs.
The numbers are from an H200 (jax 0.11.2, 2026-11-29): twelve shapes, each with seven tilings; docs/decisions/0054 has
the times.
"""

from __future__ import annotations

from astitch.device.gpu import Gpu
from astitch.graph.ir import DType
from astitch.tile.attention_shape import (
    LEAST_EXTENT,
    AttentionShape,
    Tiling,
    count_tiles,
    pad_extent,
)

MOST_QUERIES = 4 * LEAST_EXTENT
"""Of one tile.  More than 16 were timed in whole programs alone."""

NARROW, WIDE = 128, 256
"""Bytes of a row of keys."""

KEYS_OF_A_QUERY = 8
"""At least; fewer keys are rows of the scores as others, which are read and written."""

BLOCKS_PER_SM = 2
"""So many blocks keep the memory busy."""

MOST_PARTS = 64
"""What follows joins no more."""

START_US, JOIN_US = 4.0, 2.0
"""What the kernel takes beyond its traffic, and what joins the parts: 3.5 and 1.7 were measured."""

EXACT_READS = 2.5
"""Three products of TF32 for one take so many times what the keys and values take to be read."""


def is_of_few(shape: AttentionShape) -> bool:
    """Has a head few queries, and many more keys?"""
    return shape.queries <= min(MOST_QUERIES, shape.keys // KEYS_OF_A_QUERY)


def choose_tiling(shape: AttentionShape) -> Tiling:
    """By the bytes of a row as products read it; of f32 and of more bytes one tiling alone was timed."""
    row = max(pad_extent(x.features) for x in (shape.k, shape.v)) * shape.q.dtype.bytes
    queries = pad_extent(shape.queries)
    if row <= NARROW:
        return Tiling(queries, 128, 4, 2)
    return Tiling(queries, 64, 4, 3) if row <= WIDE else Tiling(queries, 32, 4, 2)


def choose_share(shape: AttentionShape, gpu: Gpu) -> int:
    """The keys of a part: all of them where there are blocks enough for all SMs with one."""
    tile = choose_tiling(shape).keys
    tiles = count_tiles(shape.keys, tile)
    wanted = BLOCKS_PER_SM * gpu.sms // (shape.batch * shape.heads)
    parts = max(min(wanted, tiles, MOST_PARTS), 1)
    return -(-tiles // parts) * tile


def project_us(shape: AttentionShape, gpu: Gpu) -> float:
    """Microseconds of the kernel and the join of its parts."""
    whole = sum(x.size * x.dtype.bytes for x in (shape.k, shape.v)) // max(shape.layers, 1)
    read = whole + sum(x.size * x.dtype.bytes for x in (shape.q, *shape.arrays))
    blocks, slots = shape.batch * shape.heads * shape.parts, BLOCKS_PER_SM * gpu.sms
    times = count_tiles(blocks, slots) * slots / blocks if blocks < slots else 1.0
    if shape.k.dtype is DType.F32 and shape.precision != "tf32":
        times *= EXACT_READS
    return START_US + times * gpu.stream_us(read, 0) + (JOIN_US if shape.parts > 1 else 0.0)


PLAIN = {
    (False, True): (8.0, 3.6),
    (True, True): (11.0, 1.25),
    (False, False): (8.0, 1.08),
    (True, False): (4.5, 1.05),
}
"""Microseconds of the plain ops beyond their traffic, and how often they take what keys and values take to be read.
By: are they sums in the place of products of one row, as kernels of ours compute them?  Do they read keys and values in
another order than these lie, which XLA writes first for products?"""


def project_plain_us(shape: AttentionShape, gpu: Gpu, *, moves: bool, sums: bool) -> float:
    """Microseconds of the products and the softmax between them.  moves, sums: see PLAIN."""
    kept = sum(x.size * x.dtype.bytes for x in (shape.k, shape.v))
    start, passes = PLAIN[sums, moves]
    if shape.k_scale and not sums:  # products read what is written in their type first
        wide = sum(x.size * shape.q.dtype.bytes for x in (shape.k, shape.v))
        return start + gpu.stream_us(kept, wide) + gpu.stream_us(wide, 0)
    return start + passes * gpu.stream_us(kept, 0)
