"""Matrix products and convolutions -> their work and the least time for it on a device.

Takes shapes, hands on operations and us.  The peaks are the data sheets' (dense, tensor cores where the type has them),
so the times are bounds: no library reaches them.
"""

from __future__ import annotations

import json
import math
from typing import Any

from astitch.cost.speed_of_light import Work
from astitch.device.gpu import Gpu
from astitch.graph.ir import ArrayType, ConvolutionAttrs, DotAttrs, Graph, Node

PEAK_TFLOPS: dict[str, dict[str, float]] = {
    "v100": {"f32": 15.7, "f16": 125, "f64": 7.8},
    "t4": {"f32": 8.1, "f16": 65, "f64": 0.25},
    "a100": {"f32": 156, "f16": 312, "bf16": 312, "f64": 19.5},
    "h100": {"f32": 495, "f16": 990, "bf16": 990, "f64": 67, "f8": 1979},
    "h200": {"f32": 495, "f16": 990, "bf16": 990, "f64": 67, "f8": 1979},
    "b200": {"f32": 1100, "f16": 2250, "bf16": 2250, "f64": 40, "f8": 4500},
}
"""f32 from sm_80 on is TF32, which products at JAX's default precision may use."""


def peak_gflops(gpu: Gpu, dtype: str) -> float:
    """The peak rate of products of a type, in 1e9 operations a second; multiply-adds of f32 for what no data sheet was
    read for."""
    row = PEAK_TFLOPS.get(gpu.name, {})
    known = row.get("f8" if dtype.startswith("f8") else dtype)
    return known * 1e3 if known else gpu.fp32_gflops


def bound_product(work: Work, gpu: Gpu, dtype: str) -> tuple[float, str]:
    """(the least us, what takes it): its bytes at the bandwidth of a copy, or its arithmetic; and its launches."""
    memory_us = work.memory_us(gpu)
    compute_us = work.flops / peak_gflops(gpu, dtype) / 1e3
    launch_us = work.launches * gpu.launch_us
    limit = "DRAM" if memory_us >= compute_us else "tensor cores"
    if launch_us > max(memory_us, compute_us):
        limit = "launch"
    return max(memory_us, compute_us) + launch_us, limit


def count_product_flops(graph: Graph, node: Node) -> int:
    """Operations of a dot or convolution, a multiply-add being two; 0 for other ops."""
    if not isinstance(node.type, ArrayType):
        return 0
    match node.attrs:
        case DotAttrs(lhs_contracting=contracted):
            shape = graph[node.operands[0]].shape
            return 2 * node.array.size * math.prod(shape[d] for d in contracted)
        case ConvolutionAttrs(kernel_input_feature=feature, kernel_spatial=spatial):
            kernel = graph[node.operands[1]].shape
            taps = kernel[feature] * math.prod(kernel[d] for d in spatial)
            return 2 * node.array.size * taps
    return 0


def measure_product(graph: Graph, node: Node) -> Work:
    """Operands read once, the result written once."""
    read = sum(graph[o].array.bytes for o in dict.fromkeys(node.operands))
    return Work(read, node.array.bytes, count_product_flops(graph, node))


def contracted_by_library(backend_config: bytes) -> tuple[int, ...]:
    """Contracted dimensions of the left operand of XLA's call of a library; none where it does not say."""
    try:
        config: Any = json.loads(backend_config)
        numbers = config["gemm_backend_config"]["dot_dimension_numbers"]
        return tuple(int(d) for d in numbers["lhs_contracting_dimensions"])
    except (ValueError, KeyError, TypeError):
        return ()
