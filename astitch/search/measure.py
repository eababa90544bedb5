"""Plans -> microseconds: each plan's kernel launched on arguments made up for it (the third cost model).

Takes plans of one scope, hands on a Measurement for each.  The idea: launches are captured in a CUDA graph, so that the
host's time does not count.  Every kernel must give what the first one gives, or it is no candidate.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from astitch.device.launch_time import time_launch
from astitch.errors import AstitchError, EngineUnavailable, KernelCompileError
from astitch.graph.ir import ArrayType, ConstantAttrs, DType, Graph
from astitch.graph.storage import storage_type
from astitch.program.steps import CudaKernel
from astitch.search.build_program import make_cuda_kernel
from astitch.search.plan import Plan
from astitch.toolchain.kernel_cache import compile_cached
from astitch.toolchain.nvrtc import CompiledKernel, Request, Resources, compile_each_cuda

TOLERANCE = {DType.F16: 2e-2, DType.BF16: 4e-2, DType.F8E4M3FN: 0.3, DType.F8E5M2: 0.6}
"""How far a result may lie from the first plan's, relative to the largest: sums are taken in another order.  Other
floats: 1e-3; integers and booleans: not at all."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """time_us: median of one launch; infinite for a kernel that was refused or gave another result.

    resources: by the CUDA compiler, None if it refused.  blocks_per_sm: resident, by the driver.  fault: why it is no
    candidate, "" if it is one.
    """

    time_us: float
    resources: Resources | None
    blocks_per_sm: int
    fault: str = ""


def import_cupy() -> Any:
    """The cupy module where there is a GPU.  Raises EngineUnavailable."""
    try:
        cupy = importlib.import_module("cupy")
        found = int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:  # no CuPy, no driver, no device: each has its own exception
        raise EngineUnavailable(
            f"measuring plans needs a GPU and CuPy: {error}\n  without them leave out tune=True"
        ) from None
    if not found:
        raise EngineUnavailable(
            "measuring plans needs a GPU, and there is none\n  leave out tune=True"
        )
    return cupy


def make_values(array: ArrayType, seed: int) -> np.ndarray:
    """Made-up values of a type: floats (and real parts) between 0.1 and 1, small integers from 0 on, booleans."""
    rng = np.random.default_rng(seed)
    dtype = array.dtype
    if dtype is DType.PRED:
        return rng.integers(0, 2, array.shape).astype(np.bool_)
    if dtype.is_integer:
        return rng.integers(0, 8, array.shape).astype(dtype.numpy)
    values = rng.random(array.shape, np.float32) * np.float32(0.9) + np.float32(0.1)
    if dtype.is_complex:
        return (values + 1j * rng.random(array.shape, np.float32)).astype(dtype.numpy)
    return values.astype(dtype.numpy)


class Arguments:
    """Device arrays for the kernels of one scope: inputs shared by all plans, outputs and scratch of each."""

    def __init__(self, graph: Graph) -> None:
        self.cupy = import_cupy()
        self.graph = graph
        self.inputs: dict[str, Any] = {}

    def input(self, source: str) -> Any:
        """The bytes of an input on the device: a constant's own, or made up."""
        if source not in self.inputs:
            attrs = self.graph[source.partition("#")[0]].attrs
            if isinstance(attrs, ConstantAttrs):
                values = attrs.value.numpy()
            else:
                values = make_values(storage_type(self.graph, source), len(self.inputs))
            words = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            self.inputs[source] = self.cupy.asarray(words) if words.size else self.empty(16)
        return self.inputs[source]

    def empty(self, size: int) -> Any:
        return self.cupy.full(max(size, 16), 0xFF, self.cupy.uint8)

    def of_plan(self, plan: Plan) -> tuple[list[Any], dict[str, Any]]:
        """(array of each pointer, outputs by name); outputs start as NaNs, so that what is not written shows."""
        arrays: list[Any] = []
        outputs: dict[str, Any] = {}
        for parameter in plan.kernel.arguments:
            if parameter.written:
                array = self.empty(storage_type(self.graph, parameter.source).bytes)
                outputs[parameter.source] = array
                arrays.append(array)
            else:
                arrays.append(self.input(parameter.source))
        if plan.kernel.scratch:
            arrays.append(self.empty(plan.kernel.scratch_bytes))
        if plan.kernel.cooperative:
            arrays.append(self.cupy.zeros(plan.kernel.barrier_words, self.cupy.uint32))
        return arrays, outputs


def _as_float(cupy: Any, words: Any, dtype: DType) -> Any:
    """An array's bytes on the device as numbers that can be compared."""
    if dtype is DType.BF16:
        return (words.view(cupy.uint16).astype(cupy.uint32) << 16).view(cupy.float32)
    if dtype in (DType.F8E4M3FN, DType.F8E5M2):
        table = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32)
        return cupy.asarray(table)[words]
    return words.view(dtype.numpy)


def why_different(cupy: Any, got: Any, want: Any, array: ArrayType) -> str:
    """ "" when two arrays of bytes on the device agree as far as another order of sums lets them, else how not."""
    got, want = got[: array.bytes], want[: array.bytes]
    dtype = array.dtype
    if dtype is DType.PRED or dtype.is_integer:
        return "" if bool((got == want).all()) else "other integers"
    a, b = _as_float(cupy, got, dtype), _as_float(cupy, want, dtype)
    missing = cupy.isnan(a) != cupy.isnan(b)
    if bool(missing.any()):
        return f"{int(missing.sum())} elements are NaN in one of the two"
    same = (a == b) | cupy.isnan(a)
    scale = float(cupy.abs(cupy.where(cupy.isfinite(b), b, 0)).max()) or 1.0
    error = float(cupy.where(same, 0, cupy.abs(a - b)).max()) / scale
    allowed = TOLERANCE.get(dtype, 1e-3)
    return "" if error <= allowed else f"error {error:.1e} of the largest, {allowed:.0e} is allowed"


class _Launcher:
    """One compiled kernel with its arguments bound.  Raises EngineUnavailable where it cannot be launched."""

    def __init__(
        self, cupy: Any, kernel: CudaKernel, compiled: CompiledKernel, arrays: Sequence[Any]
    ) -> None:
        self.cupy, self.kernel, self.arrays = cupy, kernel, list(arrays)
        driver = cupy.cuda.driver
        self.module = cupy.cuda.function.Module()
        self.module.load(compiled.cubin)
        self.function = int(self.module.get_function(compiled.symbol(kernel.name)).ptr)
        driver.funcSetAttribute(
            self.function,
            driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            kernel.shared_bytes,
        )
        self.blocks_per_sm = int(
            driver.occupancyMaxActiveBlocksPerMultiprocessor(
                self.function, kernel.block, kernel.shared_bytes
            )
        )
        sms = cupy.cuda.Device().attributes["MultiProcessorCount"]
        if kernel.cooperative and self.blocks_per_sm * sms < kernel.grid:
            raise EngineUnavailable(
                f"{kernel.grid} blocks meet at a barrier, {self.blocks_per_sm * sms} are resident"
            )
        pointers = [int(array.data.ptr) for array in self.arrays]
        if kernel.pointer_table:
            table = cupy.asarray(np.array(pointers, np.uint64))
            self.arrays.append(table)
            pointers = [int(table.data.ptr)]
        self.values = (ctypes.c_uint64 * max(len(pointers), 1))(*pointers)
        start = ctypes.addressof(self.values)
        self.slots = (ctypes.c_void_p * len(self.values))(
            *[start + 8 * i for i in range(len(self.values))]
        )

    def launch(self, stream: int, *, captured: bool = False) -> None:
        """One launch.  captured: into a graph, whose kernels run alone, so that all blocks of one are resident."""
        kernel, driver = self.kernel, self.cupy.cuda.driver
        shape = (kernel.grid, 1, 1, kernel.block, 1, 1, kernel.shared_bytes)
        block = ctypes.addressof(self.slots)
        if kernel.cooperative and not captured:
            driver.launchCooperativeKernel(self.function, *shape, stream, block)
        else:
            driver.launchKernel(self.function, *shape, stream, block, 0)

    def time_us(self) -> float:
        """Median time of a launch among many."""
        return time_launch(
            self.cupy, lambda stream, captured: self.launch(stream, captured=captured)
        )


def compile_plans(plans: Sequence[Plan], arch: str) -> list[CompiledKernel | KernelCompileError]:
    """Each plan's kernel compiled, side by side; the error of one does not stop the others."""
    requests = [Request(make_cuda_kernel(plan.kernel).source, arch) for plan in plans]
    return compile_each_cuda(requests, compile_one=compile_cached)


def measure_plans(
    graph: Graph,
    plans: Sequence[Plan],
    *,
    compiled: Sequence[CompiledKernel | KernelCompileError] | None = None,
    progress: Callable[[], None] = lambda: None,
) -> list[Measurement]:
    """Time the plans of one scope of `graph` on CuPy's current device; the results of the first are the standard.

    compiled: what compile_plans gives for them, if it was asked before.  progress: called after each plan.
    Raises EngineUnavailable without a GPU, and AstitchError where the first plan itself cannot run.
    """
    cupy = import_cupy()
    device = cupy.cuda.Device()
    compiled = compiled or compile_plans(plans, f"sm_{device.compute_capability}")
    arguments = Arguments(graph)
    measured: list[Measurement] = []
    standard: Mapping[str, Any] | None = None
    for plan, kernel in zip(plans, compiled, strict=True):
        if isinstance(kernel, KernelCompileError):
            measured.append(Measurement(float("inf"), None, 0, str(kernel).splitlines()[0]))
        else:
            found, outputs = _measure_plan(cupy, arguments, plan, kernel, standard)
            standard = outputs if standard is None else standard
            measured.append(found)
        if standard is None:
            raise AstitchError(
                f"{plan.scope.name}: the first plan cannot be measured: {measured[0].fault}\n"
                "  leave out tune=True, and report the kernel (ASTITCH_DUMP)"
            )
        progress()
    return measured


def _measure_plan(
    cupy: Any,
    arguments: Arguments,
    plan: Plan,
    compiled: CompiledKernel,
    standard: Mapping[str, Any] | None,
) -> tuple[Measurement, Mapping[str, Any] | None]:
    """The measurement, and the outputs if the kernel ran."""
    resources = compiled.kernels[plan.kernel.name]
    arrays, outputs = arguments.of_plan(plan)
    try:
        launcher = _Launcher(cupy, make_cuda_kernel(plan.kernel), compiled, arrays)
    except EngineUnavailable as error:
        return Measurement(float("inf"), resources, 0, str(error)), None
    refused = Measurement(float("inf"), resources, launcher.blocks_per_sm)
    stream = cupy.cuda.get_current_stream()
    launcher.launch(stream.ptr)
    stream.synchronize()
    for source, want in (standard or {}).items():
        array = storage_type(arguments.graph, source)
        why = why_different(cupy, outputs[source], want, array)
        if why:
            return replace(refused, fault=f"%{source}: {why}"), outputs
    return replace(refused, time_us=launcher.time_us()), outputs
