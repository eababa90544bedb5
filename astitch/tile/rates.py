"""How fast the kernels of attention are, and with which tiles: AttentionShape -> Rates, and a time in microseconds.

The tilings are the best of ten on an H100, 1,024 positions, in the order batch, positions, heads, features.  The rates
are from there and from `python -m benchmarks.attention` (jax 0.11.2, 2026-11-26).  What was not measured is not in the
table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from astitch.device.gpu import Gpu, preset
from astitch.graph.ir import DType
from astitch.tile.attention_shape import AttentionShape, Tiling, count_tiles, pad_extent

HOPPER = 90
"""The compute capability of the GPUs that the rates are for."""

MOST_ELEMENTS = 2**31 - 1
"""Of an array: offsets are 32 bits wide."""

FORWARD_LAUNCH_US, GRADIENT_LAUNCH_US = 9.0, 14.0
"""What a kernel takes beyond its products: launch, prologue and tail; of the gradient also the sums of do * o."""

CACHED = 4
"""So many blocks that are neighbours are taken to read the same rows of an operand from L2; not measured."""

BLOCKS_PER_SM = 2
"""Blocks that an SM needs to reach a rate."""


@dataclass(frozen=True, slots=True)
class Rate:
    """tflops: of the products of the tiles that are computed, masked scores among them."""

    tiling: Tiling
    tflops: float


@dataclass(frozen=True, slots=True)
class Rates:
    """Of the kernels.  bias: not measured; as that of the queries, which reads the same and adds a product."""

    forward: Rate
    keys: Rate
    queries: Rate

    @property
    def bias(self) -> Rate:
        return replace(self.queries, tiling=BIAS_TILING)


def _rate(queries: int, keys: int, warps: int, stages: int, tflops: float) -> Rate:
    return Rate(Tiling(queries, keys, warps, stages), tflops)


_MEASURED: Mapping[tuple[str, int, bool], Rates] = {
    ("tf32", 32, True): Rates(
        _rate(64, 64, 4, 3, 73), _rate(64, 64, 4, 3, 69), _rate(64, 64, 4, 1, 83)
    ),
    ("tf32", 32, False): Rates(
        _rate(128, 64, 8, 3, 89), _rate(64, 64, 4, 3, 93), _rate(64, 64, 4, 3, 109)
    ),
    ("tf32", 64, True): Rates(
        _rate(128, 64, 4, 2, 98), _rate(64, 128, 8, 2, 100), _rate(64, 64, 4, 3, 100)
    ),
    ("tf32", 64, False): Rates(
        _rate(128, 64, 4, 2, 120), _rate(64, 128, 8, 2, 106), _rate(128, 32, 4, 2, 127)
    ),
    ("tf32", 128, True): Rates(
        _rate(128, 64, 8, 3, 84), _rate(64, 32, 4, 2, 56), _rate(128, 64, 8, 1, 76)
    ),
    ("tf32", 128, False): Rates(
        _rate(128, 64, 8, 3, 82), _rate(32, 128, 8, 2, 74), _rate(128, 64, 8, 1, 93)
    ),
    ("tf32x3", 64, True): Rates(
        _rate(128, 64, 8, 3, 38), _rate(64, 32, 4, 2, 38), _rate(64, 64, 4, 1, 44)
    ),
    ("tf32x3", 64, False): Rates(
        _rate(128, 64, 8, 3, 45), _rate(64, 128, 8, 2, 46), _rate(64, 64, 4, 1, 50)
    ),
    ("tf32x3", 128, True): Rates(
        _rate(128, 32, 8, 3, 29), _rate(64, 32, 4, 2, 20), _rate(64, 32, 4, 1, 24)
    ),
    ("tf32x3", 128, False): Rates(
        _rate(128, 32, 8, 3, 37), _rate(32, 64, 4, 2, 20), _rate(64, 64, 4, 1, 27)
    ),
    ("16 bits", 64, True): Rates(
        _rate(64, 64, 4, 3, 245), _rate(64, 64, 4, 3, 320), _rate(64, 64, 4, 3, 335)
    ),
    ("16 bits", 64, False): Rates(
        _rate(64, 64, 4, 3, 353), _rate(64, 64, 4, 3, 396), _rate(64, 64, 4, 3, 484)
    ),
    ("16 bits", 128, True): Rates(
        _rate(64, 64, 4, 3, 308), _rate(64, 64, 4, 2, 420), _rate(64, 64, 4, 2, 355)
    ),
    ("16 bits", 128, False): Rates(
        _rate(128, 64, 8, 3, 273), _rate(64, 64, 4, 2, 382), _rate(64, 64, 4, 2, 353)
    ),
    ("16 bits", 256, True): Rates(
        _rate(64, 64, 4, 3, 186), _rate(64, 32, 4, 2, 179), _rate(64, 64, 4, 2, 197)
    ),
    ("16 bits", 256, False): Rates(
        _rate(128, 32, 8, 3, 287), _rate(64, 32, 4, 2, 225), _rate(128, 32, 8, 2, 301)
    ),
}
"""By (how products are computed, features of a tile, whether a band is).

Of 128 features in 16 bits with a band, the two kernels of the gradient were timed together.
"""

BIAS_TILING = Tiling(64, 32, 4, 2)
"""Of the gradient of a bias, of which a block keeps a tile beside one of scores."""

WITH_BIAS = Tiling(64, 32, 4, 2)
"""The tiling where numbers have an element for each score: their tiles lie in shared memory too, beside all others."""

WIDEST_WITH_CONDITIONS = 64
"""Features in f32 beyond which no room is left for tiles of conditions beside all others."""

RATE_WITH_BIAS = 0.55
"""Of the rate without one.  Measured in 16 bits and forward in f32; the gradient in f32 is taken to be like it."""

RATE_WITH_CONDITIONS: Mapping[bool, float] = {True: 0.82, False: 0.6}
RATE_WITH_ROW: Mapping[bool, float] = {True: 0.93, False: 0.8}
RATE_WITH_CAP: Mapping[bool, float] = {True: 0.73, False: 0.53}
"""Of the rate without conditions that have an element for each score; a row or column of a bias or of conditions; a
cap.  By: is it f32?

A comparison of a row with a column costs as much as a row: segments took 273 us in bf16, padding 253.  A sink costs
nothing here: a block reads one number a row in front of its loop.
"""


def find_rates(shape: AttentionShape) -> Rates | None:
    """None where nothing was measured: of more features than there are in the table."""
    rates = _MEASURED.get((_kind(shape), _width(shape), shape.causal))
    if rates is None:
        return None
    kernels = [rates.forward, rates.keys, rates.queries]
    wide = shape.q.dtype is DType.F32
    biases = [array for array in (shape.bias, shape.other_bias) if array]
    alone = [*biases, *shape.masks, *([shape.drop] if shape.drop else [])]
    whole = [array for array in alone if 0 not in array.strides[2:]]
    conditions = sum(array.dtype is DType.PRED for array in whole)
    rows = len(alone) - len(whole) + len(shape.comparisons)
    if len(whole) > conditions:
        share = RATE_WITH_BIAS ** max(1, sum(array in whole for array in biases))
        kernels = [Rate(WITH_BIAS, share * rate.tflops) for rate in kernels]
    elif wide and _width(shape) > WIDEST_WITH_CONDITIONS:
        kernels = [replace(r, tiling=_drop_stages(r.tiling, conditions)) for r in kernels]
    # One of them was measured; several are taken to cost as much each.
    share = RATE_WITH_CONDITIONS[wide] ** conditions * RATE_WITH_ROW[wide] ** rows
    kernels = [replace(rate, tflops=share * rate.tflops) for rate in kernels]
    if shape.cap:
        share = RATE_WITH_CAP[wide]
        kernels = [Rate(rate.tiling, share * rate.tflops) for rate in kernels]
    return Rates(*kernels)


def _drop_stages(tiling: Tiling, count: int) -> Tiling:
    """With fewer tiles in flight."""
    return replace(tiling, stages=max(1, tiling.stages - count))


def _kind(shape: AttentionShape) -> str:
    return shape.precision if shape.q.dtype is DType.F32 else "16 bits"


def _width(shape: AttentionShape) -> int:
    """The features of the tiles, or the next more that were measured: these take no less time."""
    width = max(pad_extent(x.features) for x in (shape.q, shape.v))
    known = (w for kind, w, _ in _MEASURED if kind == _kind(shape) and w >= width)
    return min(known, default=width)


def project_us(shape: AttentionShape, gpu: Gpu, *, gradient: bool) -> float | None:
    """The time of the forward kernel, with a gradient of all three.

    None where nothing was measured, or an array is too large.
    """
    rates = find_rates(shape)
    arrays = [shape.q, shape.k, shape.v, shape.o, *shape.arrays]
    if any(array.size > MOST_ELEMENTS for array in arrays):
        return None
    if shape.gives == "scores" and shape.score_count > MOST_ELEMENTS:
        return None
    if rates is None or gpu.compute_capability != HOPPER:
        return None
    h100 = preset("h100")
    speed = gpu.sms * gpu.clock_ghz / (h100.sms * h100.clock_ghz)
    of_q, of_k = (shape.q.dtype.bytes * x.size for x in (shape.q, shape.k))
    # Each kernel's products, its blocks, the bytes that it moves.
    forward, keys, queries = (r.tiling for r in (rates.forward, rates.keys, rates.queries))
    of_heads = shape.batch * shape.heads
    kernels = [(rates.forward, 2, of_heads * count_tiles(shape.queries, forward.queries), 2 * of_q)]
    total = FORWARD_LAUNCH_US
    if gradient:
        blocks = shape.batch * shape.groups * count_tiles(shape.keys, keys.keys)
        kernels.append((rates.keys, 4, blocks, 2 * of_q + 2 * of_k))
        blocks = of_heads * count_tiles(shape.queries, queries.queries)
        kernels.append((rates.queries, 3, blocks, 3 * of_q))
        total += 2 * GRADIENT_LAUNCH_US
    # Bytes that no block reads again after another one.
    biases = [array for array in (shape.bias, shape.other_bias) if array]
    of_scores = sum(x.size * x.dtype.bytes for x in biases if x.size == shape.score_count)
    if gradient and shape.gives == "bias" and shape.bias:
        # A block has a tile of the bias, and reads its rows of q, k, v and do for each batch.
        rows, columns = BIAS_TILING.queries, BIAS_TILING.keys
        tiles = count_tiles(shape.queries, rows) * count_tiles(shape.keys, columns)
        again = 2 * (rows + columns) * tiles * of_heads * _width(shape) * shape.q.dtype.bytes
        blocks = shape.bias.size // (shape.queries * shape.keys) * tiles
        kernels.append((rates.bias, 2, blocks, again // CACHED + 4 * shape.bias.size))
        total += GRADIENT_LAUNCH_US
    for rate, products, blocks, moved in kernels:
        scores = of_heads * count_scores(shape, rate.tiling)
        share = min(1.0, blocks / (BLOCKS_PER_SM * gpu.sms))
        flops = 2.0 * products * _width(shape) * scores
        compute_us = flops / (rate.tflops * speed * share * 1e6)
        total += max(compute_us, (moved + 2 * of_k + of_scores) / gpu.bandwidth_gbs / 1e3)
    if gradient and shape.gives == "scores":
        total += shape.score_count * shape.q.dtype.bytes / gpu.bandwidth_gbs / 1e3
    return total


def count_scores(shape: AttentionShape, tiling: Tiling) -> int:
    """The scores of a head that the tiles have, masked ones among them."""
    total = 0
    for first in range(0, shape.queries, tiling.queries):
        upper = min(first + tiling.queries, shape.keys) if shape.causal else shape.keys
        lower = max(first - shape.window + 1, 0) if shape.window else 0
        tiles = count_tiles(upper, tiling.keys) - lower // tiling.keys
        total += tiles * tiling.keys * tiling.queries
    return total
