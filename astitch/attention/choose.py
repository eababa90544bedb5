"""Who computes an attention that was found: cuDNN, kernels of our own, or the plain ops as before.

cuDNN's calls are taken where they fit.  Our own kernels are, where their projected time is below that of the plain
ops: the traffic of the scores, and the products at the speed of light.
"""

from __future__ import annotations

from dataclasses import dataclass

from astitch.device.gpu import Gpu
from astitch.tile.attention import AttentionShape
from astitch.tile.rates import project_us

FORWARD_PASSES, GRADIENT_PASSES = 3.8, 6.2
"""How often the plain ops read or write all scores; measured of XLA on an H100, 2026-11-26, at the speed of a copy."""

PLAIN_LAUNCH_US = 3.0
"""What each of the plain kernels takes beyond that: three forward, six more for the gradient."""

TF32_TFLOPS, NARROW_TFLOPS = 494.0, 989.0
"""The products of an H100 at the most."""

EXACT = "tf32x3"
"""The precision in the place of products in f32, which XLA computes without tensor cores."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Microseconds of our own kernels and of the plain ops."""

    tiles_us: float
    plain_us: float

    @property
    def is_faster(self) -> bool:
        return self.tiles_us < self.plain_us


def project(shape: AttentionShape, gpu: Gpu, *, gradient: bool) -> Projection | None:
    """None where nothing was measured of such kernels.  gradient: with the forward pass."""
    tiles_us = project_us(shape, gpu, gradient=gradient)
    if tiles_us is None:
        return None
    return Projection(tiles_us, project_plain_us(shape, gpu, gradient=gradient))


def project_plain_us(shape: AttentionShape, gpu: Gpu, *, gradient: bool) -> float:
    scores = shape.batch * shape.heads * shape.queries * shape.keys
    passes = FORWARD_PASSES + (GRADIENT_PASSES if gradient else 0)
    moved = passes * scores * shape.q.dtype.bytes
    wide = shape.q.dtype.bytes > 2
    tflops = TF32_TFLOPS if wide else NARROW_TFLOPS
    if wide and shape.precision == EXACT:
        tflops = gpu.fp32_gflops / 1e3
    products = 6 if gradient else 2
    flops = 2.0 * products * scores * shape.q.features
    launches = (9 if gradient else 3) * PLAIN_LAUNCH_US
    return gpu.stream_us(moved / 2, moved / 2) + flops / tflops / 1e6 + launches
