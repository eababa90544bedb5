"""Who computes an attention that was found: cuDNN, kernels of our own, or the plain ops as before.

The one with the least projected time is.  Of the plain ops that is the traffic of the scores and of what is transposed
around the products, and these at the speed of light.  What cuDNN takes was measured on an H100, as our own kernels
were: on other GPUs its calls are taken where they fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from astitch.device.gpu import Gpu
from astitch.tile.attention_shape import AttentionShape, Tiling
from astitch.tile.rates import count_scores, project_us

FORWARD_PASSES, GRADIENT_PASSES = 3.5, 5.9
"""How often the plain ops read or write all scores; measured on an H100, 2026-11-26, at the speed of a copy."""

BIAS_PASSES = 2.0
"""What numbers that are added to all scores take beyond that, forward: 2.4 to 2.9 were measured on the same day, and
as many with a gradient."""

FORWARD_ARRAYS, GRADIENT_ARRAYS = 12, 14
"""How often they read or write an array as large as q: the products want them transposed."""

PLAIN_LAUNCH_US = 3.0
"""What each of the plain kernels takes beyond that: three forward, six more for the gradient."""

TF32_TFLOPS, NARROW_TFLOPS = 494.0, 989.0
"""The products of an H100 at the most."""

EXACT = "tf32x3"
"""The precision in the place of products in f32, which XLA computes without tensor cores."""


@dataclass(frozen=True, slots=True)
class LibraryRates:
    """Of cuDNN's calls on an H100, 2026-11-26, in 16 bits.

    tflops: of the products of scores that are kept.  launch_us: beyond that and the traffic; arrays: how many of the
    size of q are read or written.  with_bias: of the rate without one.
    """

    tflops: float
    tflops_of_many_features: float
    launch_us: float
    launch_of_band_us: float
    arrays: int
    with_bias: float


LIBRARY_FORWARD = LibraryRates(500.0, 700.0, 12.0, 12.0, 4, 0.5)
LIBRARY_GRADIENT = LibraryRates(480.0, 620.0, 60.0, 100.0, 14, 0.62)

MANY_FEATURES = 64
"""Of more cuDNN has faster kernels."""

LIBRARY_TILE = 128
"""The tiles of a band that cuDNN computes."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Microseconds of our own kernels, of the plain ops and of cuDNN's calls."""

    tiles_us: float
    plain_us: float
    library_us: float = math.inf


def project(shape: AttentionShape, gpu: Gpu, *, gradient: bool) -> Projection | None:
    """None where nothing was measured of such kernels.  gradient: with the forward pass."""
    tiles_us = project_us(shape, gpu, gradient=gradient)
    if tiles_us is None:
        return None
    return Projection(
        tiles_us,
        project_plain_us(shape, gpu, gradient=gradient),
        project_library_us(shape, gpu, gradient=gradient),
    )


def project_plain_us(shape: AttentionShape, gpu: Gpu, *, gradient: bool) -> float:
    scores = shape.batch * shape.heads * shape.queries * shape.keys
    passes = FORWARD_PASSES + (GRADIENT_PASSES if gradient else 0)
    if shape.bias and 0 not in shape.bias.strides[2:]:
        passes += BIAS_PASSES
    arrays = FORWARD_ARRAYS + (GRADIENT_ARRAYS if gradient else 0)
    moved = (passes * scores + arrays * shape.q.size) * shape.q.dtype.bytes
    wide = shape.q.dtype.bytes > 2
    tflops = TF32_TFLOPS if wide else NARROW_TFLOPS
    if wide and shape.precision == EXACT:
        tflops = gpu.fp32_gflops / 1e3
    products = 6 if gradient else 2
    flops = 2.0 * products * scores * shape.q.features
    launches = (9 if gradient else 3) * PLAIN_LAUNCH_US
    return gpu.stream_us(moved / 2, moved / 2) + flops / tflops / 1e6 + launches


def project_library_us(shape: AttentionShape, gpu: Gpu, *, gradient: bool) -> float:
    tiling = Tiling(LIBRARY_TILE, LIBRARY_TILE, 0, 0)
    scores = shape.batch * shape.heads * count_scores(shape, tiling)
    flops = 4.0 * scores * shape.q.features
    total = 0.0
    for rates, share in ((LIBRARY_FORWARD, 1.0), (LIBRARY_GRADIENT, 2.5))[: 1 + gradient]:
        is_wide = shape.q.features > MANY_FEATURES
        tflops = rates.tflops_of_many_features if is_wide else rates.tflops
        tflops *= rates.with_bias if shape.of_scores else 1.0
        moved = rates.arrays * shape.q.size * shape.q.dtype.bytes
        total += rates.launch_of_band_us if shape.causal else rates.launch_us
        total += moved / gpu.bandwidth_gbs / 1e3 + share * flops / tflops / 1e6
    return total
