"""Products of few rows, compiled in the form in which XLA launches kernels.

Takes the graph of a program, hands on a kernel for each of its narrow products of which narrow_rates.py knows one that
is fed from registers.  The others are tile programs, which XLA compiles (hlo/narrow_product.py); so is one whose kernel
does not compile.
"""

from __future__ import annotations

from astitch.device.gpu import Gpu
from astitch.errors import KernelCompileError
from astitch.faults import FaultLog
from astitch.graph.ir import Graph, NarrowProductAttrs
from astitch.hlo.narrow_product import describe_shape
from astitch.tile.narrow_fragments import FragmentKernel, fits, write_fragment_kernel
from astitch.tile.narrow_rates import choose_fragments
from astitch.toolchain.kernel_cache import compile_cached
from astitch.toolchain.nvrtc import Request, compile_each_cuda
from astitch.xla.prepare_kernels import Code, XlaKernel, name_entry


def find_fragment_kernels(graph: Graph) -> dict[str, FragmentKernel]:
    """The kernels that are fed from registers, by the names of their products."""
    found = {}
    for node in graph:
        if isinstance(node.attrs, NarrowProductAttrs):
            shape = describe_shape(node, [graph[operand].array for operand in node.operands])
            tiling = choose_fragments(shape)
            if tiling and fits(shape, tiling):
                found[node.name] = write_fragment_kernel(shape, tiling)
    return found


def prepare_products(graph: Graph, gpu: Gpu, code: Code, faults: FaultLog) -> dict[str, XlaKernel]:
    """The kernels compiled for a device, by the names of their products.

    faults: keeps the errors that leave a product to a tile program.  Raises CompilerMissing.
    """
    found = find_fragment_kernels(graph)
    requests = [Request(kernel.text, gpu.arch) for kernel in found.values()]
    compiled = compile_each_cuda(requests, compile_one=compile_cached)
    prepared = {}
    for (product, kernel), result in zip(found.items(), compiled, strict=True):
        if isinstance(result, KernelCompileError):
            cost = "Triton's kernel computes it"
            faults.note(result, stage="compile the text", subject=f"product {product}", cost=cost)
            continue
        symbol, data = name_entry(result, kernel.name, code)
        launch = kernel.grid, kernel.block, 0
        prepared[product] = XlaKernel(kernel.name, symbol, data, *launch, ordered=False)
    return prepared
