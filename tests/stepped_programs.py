"""Small Programs written by hand, one for each kind of step and buffer: what the engines must run."""

from __future__ import annotations

import numpy as np

from astitch.graph.ir import ArrayType, DimensionAttrs, DotAttrs, DType, Literal, Node
from astitch.program.arena import align
from astitch.program.steps import (
    ALIGNMENT_BYTES,
    Buffer,
    CudaKernel,
    KernelStep,
    LibraryStep,
    Program,
    ReferenceStep,
    Space,
    Step,
    View,
)

F32 = DType.F32

SCALE = """#include "astitch.cuh"
extern "C" __global__ void __launch_bounds__(64) scale(const float* x, const float* factor, float* y)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < 200) y[i] = x[i] * factor[0];
}
"""

MEAN = """#include "astitch.cuh"
extern "C" __global__ void __launch_bounds__(32) centre(
    const float* x, float* partial, float* y, unsigned* word)
{
    // Each of 4 blocks sums 50 elements; after the barrier every block knows the mean of all 200.
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int i = 0; i < 50; ++i) sum += x[blockIdx.x * 50 + i];
        partial[blockIdx.x] = sum;
    }
    ASTITCH_GLOBAL_BARRIER(word);  // every block reads all partials
    const float mean = (partial[0] + partial[1] + partial[2] + partial[3]) / 200.0f;
    for (int i = threadIdx.x; i < 50; i += 32) {
        y[blockIdx.x * 50 + i] = x[blockIdx.x * 50 + i] - mean;
    }
}
"""

TABLE = """#include "astitch.cuh"
extern "C" __global__ void __launch_bounds__(32) add_all(unsigned char* const* table)
{
    const int i = threadIdx.x;
    if (i >= 20) return;
    float sum = 0;
    for (int k = 0; k < 3; ++k) sum += reinterpret_cast<const float*>(table[k])[i];
    reinterpret_cast<float*>(table[3])[i] = sum;
}
"""


def view(name: str, *shape: int, dtype: DType = F32) -> View:
    return View(name, ArrayType(dtype, shape))


def buffers(*rows: tuple[View, Space, int]) -> dict[str, Buffer]:
    """Rows of (view, space, index or offset)."""
    return {
        v.buffer: Buffer(
            v.buffer,
            v.type,
            space,
            0 if space in (Space.ARENA, Space.BARRIER) else place,
            place if space in (Space.ARENA, Space.BARRIER) else 0,
        )
        for v, space, place in rows
    }


def scale_program() -> Program:
    """x [10, 20] -> (3 x, x, 3): a kernel, a constant, and outputs that view a parameter and a constant."""
    x, factor, y = view("x", 10, 20), view("factor"), view("y", 10, 20)
    kernel = CudaKernel("scale", SCALE, 4, 64, 0, 0, 1)
    return Program(
        "scale",
        buffers((x, Space.PARAMETER, 0), (factor, Space.CONSTANT, 0), (y, Space.OUTPUT, 0)),
        (x,),
        (("factor", Literal.of(np.float32(3))),),
        (KernelStep(kernel, (x, factor, y), frozenset({2})),),
        (y, view("x", 200), factor, view("y", 20, 10)),
        0,
    )


def centre_program() -> Program:
    """x [200] -> x - mean(x): a global barrier, scratch in the arena."""
    x, y = view("x", 200), view("y", 200)
    partial, word = view("partial", 4), view("word", 1, dtype=DType.U32)
    kernel = CudaKernel("centre", MEAN, 4, 32, 0, 1, 1)
    return Program(
        "centre",
        buffers(
            (x, Space.PARAMETER, 0),
            (y, Space.OUTPUT, 0),
            (word, Space.BARRIER, 0),
            (partial, Space.ARENA, ALIGNMENT_BYTES),
        ),
        (x,),
        (),
        (KernelStep(kernel, (x, partial, y, word), frozenset({1, 2, 3})),),
        (y,),
        ALIGNMENT_BYTES + align(16),
    )


def table_program() -> Program:
    """a, b, c [20] -> a + b + c through a table of pointers."""
    a, b, c, y = (view(name, 20) for name in "abcy")
    kernel = CudaKernel("add_all", TABLE, 1, 32, 0, 0, 1, pointer_table=True)
    return Program(
        "table",
        buffers(
            (a, Space.PARAMETER, 0),
            (b, Space.PARAMETER, 1),
            (c, Space.PARAMETER, 2),
            (y, Space.OUTPUT, 0),
        ),
        (a, b, c),
        (),
        (KernelStep(kernel, (a, b, c, y), frozenset({3})),),
        (y,),
        0,
    )


def dot_program(lhs: ArrayType, rhs: ArrayType, result: ArrayType, attrs: DotAttrs) -> Program:
    """lhs, rhs -> dot: a library step alone."""
    views = View("lhs", lhs), View("rhs", rhs), View("product", result)
    node = Node("product", "dot", result, ("lhs", "rhs"), attrs)
    return Program(
        "dot",
        buffers(
            (views[0], Space.PARAMETER, 0),
            (views[1], Space.PARAMETER, 1),
            (views[2], Space.OUTPUT, 0),
        ),
        views[:2],
        (),
        (LibraryStep(node, views[:2], views[2:]),),
        views[2:],
        0,
    )


def chain_program() -> Program:
    """x [10, 20] -> x @ x^T joined with itself: library and reference steps through the arena."""
    x, product, joined = view("x", 10, 20), view("product", 10, 10), view("joined", 20, 10)
    dot = Node("product", "dot", product.type, ("x", "x"), DotAttrs((1,), (1,)))
    join = Node("joined", "concatenate", joined.type, ("product", "product"), DimensionAttrs(0))
    steps: tuple[Step, ...] = (
        LibraryStep(dot, (x, x), (product,)),
        ReferenceStep(join, (product, product), (joined,), "written by hand"),
    )
    return Program(
        "chain",
        buffers((x, Space.PARAMETER, 0), (product, Space.ARENA, 0), (joined, Space.OUTPUT, 0)),
        (x,),
        (),
        steps,
        (joined,),
        align(400),
    )


def empty_program() -> Program:
    """x [0, 5] -> x joined with x along the empty dimension: no element anywhere."""
    x, y = view("x", 0, 5), view("y", 0, 5)
    node = Node("y", "concatenate", y.type, ("x", "x"), DimensionAttrs(0))
    return Program(
        "empty",
        buffers((x, Space.PARAMETER, 0), (y, Space.OUTPUT, 0)),
        (x,),
        (),
        (ReferenceStep(node, (x, x), (y,), "written by hand"),),
        (y,),
        0,
    )
