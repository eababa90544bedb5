"""The kernels of a program on a GPU: loaded, allowed their shared memory, proved to be resident, launched.

Takes a program's CudaKernels and KernelSteps, hands on their CUfunctions and what launches a step.
"""

from __future__ import annotations

import ctypes
from operator import itemgetter
from typing import Any

import numpy as np

from astitch.errors import KernelCompileError, LaunchRefused
from astitch.program.steps import CudaKernel, KernelStep, Program
from astitch.run.device_memory import DeviceMemory, is_shortage
from astitch.run.gpu_call import Call, PreparedStep
from astitch.toolchain.kernel_cache import compile_cached
from astitch.toolchain.nvrtc import CompiledKernel, Request, compile_each_cuda


class KernelSteps:
    """Launches the kernels of a program.  device: CuPy's, the current one.

    Raises KernelCompileError, OutOfMemory, and LaunchRefused for a kernel whose blocks wait for each other but cannot
    all be resident.
    """

    def __init__(self, program: Program, memory: DeviceMemory, cupy: Any, device: Any) -> None:
        self.program, self._memory, self._cupy, self._device = program, memory, cupy, device
        self._functions = self._load()

    def function_address(self, kernel: CudaKernel) -> int:
        """The CUfunction of one of the program's kernels, its shared memory allowed and its residency proved."""
        return int(self._functions[kernel].ptr)

    def _load(self) -> dict[CudaKernel, Any]:
        """CuPy's function for each kernel, its shared memory allowed and its residency proved."""
        kernels = dict.fromkeys(self.program.kernels)
        sources = list(dict.fromkeys(kernel.source for kernel in kernels))
        arch = f"sm_{self._device.compute_capability}"
        requests = [Request(source, arch) for source in sources]
        compiled: list[CompiledKernel] = []
        for source, result in zip(
            sources, compile_each_cuda(requests, compile_one=compile_cached), strict=True
        ):
            if isinstance(result, KernelCompileError):
                result.kernel = next(kernel.name for kernel in kernels if kernel.source == source)
                raise result
            compiled.append(result)
        results = dict(zip(sources, compiled, strict=True))
        modules = {}
        for cubin in dict.fromkeys(result.cubin for result in compiled):
            modules[cubin] = self._cupy.cuda.function.Module()
            try:
                modules[cubin].load(cubin)
            except Exception as error:
                if not is_shortage(error):
                    raise
                raise self._memory.no_room(f"a kernel, {len(cubin)} bytes", error) from None
        functions = {
            k: modules[(result := results[k.source]).cubin].get_function(result.symbol(k.name))
            for k in kernels
        }
        for kernel, function in functions.items():
            self._allow_launch(kernel, int(function.ptr))
        return functions

    def _allow_launch(self, kernel: CudaKernel, function: int) -> None:
        """Raises LaunchRefused for a launch that would fail, or hang at a global barrier."""
        driver, attributes = self._cupy.cuda.driver, self._device.attributes
        static_bytes = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function)
        most_bytes = attributes["MaxSharedMemoryPerBlockOptin"] - static_bytes
        if kernel.shared_bytes > most_bytes:
            raise _refuse_launch(
                kernel,
                f"kernel {kernel.name}: {kernel.shared_bytes} bytes of shared memory a block, "
                f"this device has {most_bytes}\n  compile for this device: gpu.from_device()",
            )
        driver.funcSetAttribute(
            function, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most_bytes
        )
        if not kernel.cooperative:
            return
        blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(
            function, kernel.block, kernel.shared_bytes
        )
        sms = attributes["MultiProcessorCount"]
        if blocks * sms < kernel.grid:
            raise _refuse_launch(
                kernel,
                f"kernel {kernel.name} has a global barrier and {kernel.grid} blocks, but only {blocks} x {sms} = "
                f"{blocks * sms} can be resident (the plan assumed {kernel.blocks_per_sm} a multiprocessor)\n"
                "  compile for this device: gpu.from_device()",
            )

    def prepare(self, step: KernelStep) -> PreparedStep:
        """What launches a step."""
        kernel, driver = step.kernel, self._cupy.cuda.driver
        function = self.function_address(kernel)
        names = [view.buffer for view in step.arguments]
        pointers: Any = (ctypes.c_uint64 * max(len(names), 1))()
        pointer_bytes = 8 * len(names)
        table = (
            self._memory.allocate(pointer_bytes, "a pointer table")
            if kernel.pointer_table
            else None
        )
        # cuLaunchKernel takes the address of each parameter: of each pointer, or of the table's address.
        values: Any = pointers if table is None else (ctypes.c_uint64 * 1)(int(table.ptr))
        slots = (ctypes.c_void_p * len(values))(
            *[ctypes.addressof(values) + 8 * i for i in range(len(values))]
        )
        block = ctypes.addressof(slots)
        grid_and_block = (kernel.grid, 1, 1, kernel.block, 1, 1, kernel.shared_bytes)
        runtime = self._cupy.cuda.runtime

        read = itemgetter(*names) if len(names) > 1 else None
        written: tuple[int, ...] = ()  # what the table holds

        # `keep`: what `block` points into lives as long as the function.
        def launch(call: Call, keep: Any = (values, slots)) -> None:
            nonlocal written
            addresses = call.addresses
            given = read(addresses) if read else tuple([addresses[name] for name in names])
            if table is None:
                pointers[: len(names)] = given
            elif call.tables is not None:
                # A graph has a table of its own, filled once it is known to be a graph.
                own = self._memory.allocate_outside(pointer_bytes)
                call.tables.append((own, np.array(given, np.uint64)))
                values[0] = int(own.ptr)
            else:
                values[0] = int(table.ptr)
                if given != written:
                    pointers[: len(names)] = given
                    runtime.memcpyAsync(
                        table.ptr,
                        ctypes.addressof(pointers),
                        pointer_bytes,
                        runtime.memcpyHostToDevice,
                        call.stream,
                    )
                    written = given
            if kernel.cooperative:
                driver.launchCooperativeKernel(function, *grid_and_block, call.stream, block)
            else:
                driver.launchKernel(function, *grid_and_block, call.stream, block, 0)

        return PreparedStep(launch, can_capture=True)


def _refuse_launch(kernel: CudaKernel, text: str) -> LaunchRefused:
    error = LaunchRefused(text)
    error.kernel = kernel.name
    return error
