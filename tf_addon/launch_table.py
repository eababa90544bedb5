"""Programs as launch tables: what the shim walks for each call, without Python.

Takes a Program and what runs its steps (the emulation, or a GPU's driver), hands on the rows of `shim_library.py`.
Kernels are rows; products, and what XLA computes, are steps that the shim asks Python for.  A product whose algorithm
is chosen becomes a row, too, so that a call in steady state needs no interpreter.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

from astitch import options
from astitch.device.cuda_driver import StreamAddress
from astitch.graph.reference import eval_node
from astitch.library.cublaslt import WORKSPACE_BYTES
from astitch.library.xla_fallback import compile_fallback, host_device, put_array
from astitch.program.steps import (
    Buffer,
    CudaKernel,
    FallbackStep,
    KernelStep,
    LibraryStep,
    Program,
    ReferenceStep,
    Space,
    View,
)
from astitch.run.emulate import compile_many, load_runtime
from astitch.run.executor import GpuExecutor, import_cupy
from astitch.run.host_engine import copy_aligned
from astitch.run.program_binding import order_results, store_constants, views_of
from tf_addon import shim_library as rows

_TABLE_ALIGNMENT = 256


class Runner(Protocol):
    """What runs a program's steps.

    kind: HOST_KERNEL or CUDA_KERNEL.  staged: tensors of the host are copied to a GPU and back.
    context, stream: CUDA's, for the launches; the stream is that of staged programs.
    capture_stream: on which runs of steps are captured into CUDA graphs; 0: none are.
    """

    kind: int
    staged: bool
    context: int
    stream: int
    capture_stream: int

    def constant_address(self, index: int) -> int:
        """Where constant `index` of the program lies."""
        ...

    def function_address(self, kernel: CudaKernel) -> int:
        """What is launched for a kernel."""
        ...

    def can_capture(self, number: int) -> bool:
        """Does a step that is no kernel only enqueue work, so that a CUDA graph can repeat it?"""
        ...

    def run_step(self, number: int, addresses: Any, stream: int) -> None:
        """A step that is no kernel.  addresses: of each buffer of the program, in its order.  stream: the runner's
        capture_stream where the step is to become part of a graph."""
        ...

    def find_product(self, number: int, stream: int) -> rows.ProductRow | None:
        """How the shim launches a step itself that ran on a stream; None where it cannot, or was told before."""
        ...


# ---- the emulation -----------------------------------------------------------------------------------------------


class HostRunner:
    """The program's steps on a machine without a GPU: kernels through the emulation, products through the reference,
    the rest through XLA for the CPU.  Raises KernelCompileError, EngineUnavailable, FallbackRefused."""

    kind = rows.HOST_KERNEL
    staged = False
    context = stream = capture_stream = 0

    def __init__(self, program: Program) -> None:
        self._program = program
        sources = list(dict.fromkeys(kernel.source for kernel in program.kernels))
        self._modules = dict(zip(sources, compile_many(sources), strict=True))
        self._constants = store_constants(program, lambda array, _: copy_aligned(array))
        self._numbers = {name: number for number, name in enumerate(program.buffers)}
        self._fallbacks = {
            number: compile_fallback(step.hlo, host_device(), f"{program.name}, {step.name}")
            for number, step in enumerate(program.steps)
            if isinstance(step, FallbackStep)
        }

    def constant_address(self, index: int) -> int:
        return int(self._constants[index].ctypes.data)

    def function_address(self, kernel: CudaKernel) -> int:
        return self._modules[kernel.source].kernels[kernel.name].address

    def can_capture(self, number: int) -> bool:
        return False

    def run_step(self, number: int, addresses: Any, stream: int) -> None:
        step = self._program.steps[number]
        assert not isinstance(step, KernelStep)
        operands = [self._array(view, addresses) for view in step.operands]
        found: Sequence[Any]
        if isinstance(step, FallbackStep):
            fallback = self._fallbacks[number]
            found = fallback.run([put_array(array, fallback.device) for array in operands])
        else:
            found = eval_node(step.node, operands)
        for view, result in zip(step.results, found, strict=True):
            np.copyto(self._array(view, addresses), np.asarray(result), casting="no")

    def find_product(self, number: int, stream: int) -> rows.ProductRow | None:
        return None

    def _array(self, view: View, addresses: Any) -> np.ndarray[Any, Any]:
        """The array that lies at a buffer's address."""
        type_ = view.type
        if not type_.bytes:
            return np.empty(type_.shape, type_.dtype.numpy)
        memory = (ctypes.c_uint8 * type_.bytes).from_address(addresses[self._numbers[view.buffer]])
        return np.ctypeslib.as_array(memory).view(type_.dtype.numpy).reshape(type_.shape)


def emulation_address() -> int:
    """Where the emulation's `astitch_launch` is.  Raises KernelCompileError without g++."""
    address = ctypes.cast(load_runtime().astitch_launch, ctypes.c_void_p).value
    assert address is not None
    return address


# ---- a GPU -------------------------------------------------------------------------------------------------------


class CudaRunner:
    """The program's steps on one GPU: the shim launches kernels through the driver, the executor does the rest.

    staged: TensorFlow knows only the host.  Raises what GpuExecutor raises.
    """

    kind = rows.CUDA_KERNEL

    def __init__(self, program: Program, device: int, *, staged: bool) -> None:
        # The shim brings the scratch memory of each call; the executor needs none of its own.
        self._executor = GpuExecutor(replace(program, arena_bytes=0), device)
        numbers = {name: number for number, name in enumerate(program.buffers)}
        self._places = [
            ()
            if isinstance(step, KernelStep)
            else tuple({v.buffer: numbers[v.buffer] for v in views_of(step)}.items())
            for step in program.steps
        ]
        self.staged = staged
        self.context, *self._owned = open_streams(device)
        self.stream, captured = (int(stream.ptr) for stream in self._owned)
        self.capture_stream = captured if options.graphs() else 0
        self._device, self._numbers = device, numbers
        self._told: set[int] = set()

    def constant_address(self, index: int) -> int:
        return self._executor.constant_address(index)

    def function_address(self, kernel: CudaKernel) -> int:
        return self._executor.function_address(kernel)

    def can_capture(self, number: int) -> bool:
        return self._executor.can_capture(number)

    def run_step(self, number: int, addresses: Any, stream: int) -> None:
        placed = {name: addresses[place] or 0 for name, place in self._places[number]}
        self._executor.run_step(number, placed, stream, captured=stream == self.capture_stream)

    def find_product(self, number: int, stream: int) -> rows.ProductRow | None:
        product = self._executor.find_product(number)
        if product is None or number in self._told or stream == self.capture_stream:
            return None
        call = product.matmul.find_call()
        if call is None:
            return None
        self._told.add(number)  # also where there is no room: Python goes on multiplying
        workspace = find_workspace(self._device, stream) if call.workspace_bytes else 0
        if workspace is None:
            return None
        return rows.ProductRow(
            **{field.name: getattr(call, field.name) for field in fields(call)},
            workspace=workspace,
            stream=stream,
            a_buffer=self._numbers[product.rhs],
            b_buffer=self._numbers[product.lhs],
            result_buffer=self._numbers[product.result],
        )


_DRIVER = {
    "push": "cuCtxPushCurrent_v2",
    "pop": "cuCtxPopCurrent_v2",
    "launch": "cuLaunchKernel",
    "launch_cooperative": "cuLaunchCooperativeKernel",
    "copy_to_device": "cuMemcpyHtoDAsync_v2",
    "copy_to_host": "cuMemcpyDtoHAsync_v2",
    "copy": "cuMemcpyDtoDAsync_v2",
    "fill": "cuMemsetD8Async",
    "allocate": "cuMemAllocAsync",
    "release": "cuMemFreeAsync",
    "allocate_managed": "cuMemAllocManaged",
    "count_memory": "cuMemGetInfo_v2",
    "synchronize": "cuStreamSynchronize",
}

_GRAPH_DRIVER = {
    "begin_capture": "cuStreamBeginCapture_v2",
    "end_capture": "cuStreamEndCapture",
    "instantiate": "cuGraphInstantiateWithFlags",
    "launch_graph": "cuGraphLaunch",
    "destroy_graph": "cuGraphDestroy",
    "destroy_executable": "cuGraphExecDestroy",
}
"""CUDA 11.4's; without one of them there are no graphs."""


@functools.cache
def open_streams(device: int) -> tuple[int, Any, Any]:
    """The primary context of a GPU, and two streams of our own on it, the same for all programs.  One is for work, on
    the other graphs are captured."""
    cupy = import_cupy()
    with cupy.cuda.Device(device):
        streams = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        return int(cupy.cuda.driver.ctxGetCurrent()), *streams


def find_workspace(device: int, stream: int) -> int | None:
    """The address of memory for the products that the shim launches on a stream, one after the other; None where there
    is no room."""
    with _workspaces_lock:
        if (device, stream) not in _workspaces:
            cupy = import_cupy()
            there = cupy.cuda.Stream.from_external(StreamAddress(stream))
            try:
                with cupy.cuda.Device(device), there:
                    _workspaces[device, stream] = cupy.cuda.alloc(WORKSPACE_BYTES)
            except cupy.cuda.memory.OutOfMemoryError:
                return None
        return int(_workspaces[device, stream].ptr)


_workspaces: dict[tuple[int, int], Any] = {}
"""Workspaces by GPU and stream.  They live as long as the process, since the shim keeps their addresses."""

_workspaces_lock = threading.Lock()


def find_driver(library: ctypes.CDLL, *, managed: bool = True) -> rows.CudaDriver:
    """libcuda's entries that the shim calls.  managed: may the host use managed memory while kernels run?"""
    driver = rows.CudaDriver()
    for field, symbol in _DRIVER.items():
        if managed or field != "allocate_managed":
            setattr(driver, field, ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value)
    if all(hasattr(library, symbol) for symbol in _GRAPH_DRIVER.values()):
        for field, symbol in _GRAPH_DRIVER.items():
            setattr(driver, field, ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value)
    return driver


def shares_memory(device: int) -> bool:
    """May the host use managed memory of a GPU while kernels run there?  Not so on Windows and on some virtual GPUs."""
    return bool(import_cupy().cuda.Device(device).attributes["ConcurrentManagedAccess"])


def keep_scratch(library: ctypes.CDLL, device: int) -> None:
    """Has the driver keep the memory that calls gave back.  Else it unmaps it whenever a stream is waited for, and maps
    it anew in the next call.  A driver that refuses is only slower."""
    pool, most = ctypes.c_void_p(), ctypes.c_uint64(2**64 - 1)
    if library.cuDeviceGetDefaultMemPool(ctypes.byref(pool), device) == 0:
        library.cuMemPoolSetAttribute(pool, _RELEASE_THRESHOLD, ctypes.byref(most))


_RELEASE_THRESHOLD = 4
"""CU_MEMPOOL_ATTR_RELEASE_THRESHOLD of cuda.h."""


# ---- rows --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaunchTable:
    """A program's rows.  row: points into the others, which must live while the shim copies them."""

    row: rows.ProgramRow
    parts: tuple[Any, ...]


def make_table(program: Program, runner: Runner, key: int) -> LaunchTable:
    """The program as the shim runs it.  key: what its steps are called with."""
    numbers = {name: number for number, name in enumerate(program.buffers)}
    operands: list[int] = []
    steps: list[rows.StepRow] = []
    scratch_bytes = program.arena_bytes
    for number, step in enumerate(program.steps):
        if not isinstance(step, KernelStep):
            flags = rows.CAPTURABLE * runner.can_capture(number)
            steps.append(rows.StepRow(kind=rows.PYTHON_STEP, flags=flags))
            continue
        kernel = step.kernel
        flags = rows.COOPERATIVE * kernel.cooperative | rows.POINTER_TABLE * kernel.pointer_table
        table_offset = 0
        if kernel.pointer_table and runner.kind == rows.CUDA_KERNEL:
            table_offset = -(-scratch_bytes // _TABLE_ALIGNMENT) * _TABLE_ALIGNMENT
            scratch_bytes = table_offset + ctypes.sizeof(ctypes.c_void_p) * len(step.arguments)
        steps.append(
            rows.StepRow(
                kind=runner.kind,
                flags=flags,
                grid=kernel.grid,
                block=kernel.block,
                shared_bytes=kernel.shared_bytes,
                function=runner.function_address(kernel),
                table_offset=table_offset,
                first=len(operands),
                count=len(step.arguments),
            )
        )
        operands += [numbers[view.buffer] for view in step.arguments]
    results, owners = _make_results(program, numbers)
    buffers = [_make_buffer(buffer, runner, owners) for buffer in program.buffers.values()]
    zeros = _find_zeros(program)
    parts = (
        (rows.BufferRow * len(buffers))(*buffers),
        (rows.StepRow * len(steps))(*steps),
        (ctypes.c_int32 * len(operands))(*operands),
        (rows.ResultRow * len(results))(*results),
        (rows.ZeroRow * len(zeros))(*zeros),
    )
    row = rows.ProgramRow(
        key,
        runner.staged,
        len(program.parameters),
        len(buffers),
        len(steps),
        len(operands),
        len(results),
        len(zeros),
        scratch_bytes,
        runner.context,
        runner.stream,
        runner.capture_stream,
        *(ctypes.addressof(part) for part in parts),
    )
    return LaunchTable(row, parts)


def _make_results(
    program: Program, numbers: dict[str, int]
) -> tuple[list[rows.ResultRow], dict[str, int]]:
    """A row for each result, and the number of the result that each OUTPUT buffer is."""
    ordered = order_results(program)
    owners = {r.view.buffer: number for number, r in enumerate(ordered) if r.is_own}
    results = [
        rows.ResultRow(numbers[r.view.buffer], not r.is_own, r.view.type.bytes) for r in ordered
    ]
    return results, owners


def _find_zeros(program: Program) -> list[rows.ZeroRow]:
    """The words of barriers, those that lie behind each other as one: each row is a call of the driver's."""
    zeros: list[rows.ZeroRow] = []
    barriers = [b for b in program.buffers.values() if b.space is Space.BARRIER]
    for buffer in sorted(barriers, key=lambda b: b.offset):
        if zeros and zeros[-1].offset + zeros[-1].bytes == buffer.offset:
            zeros[-1].bytes += buffer.type.bytes
        else:
            zeros.append(rows.ZeroRow(buffer.offset, buffer.type.bytes))
    return zeros


def _make_buffer(buffer: Buffer, runner: Runner, owners: dict[str, int]) -> rows.BufferRow:
    bytes_ = buffer.type.bytes
    match buffer.space:
        case Space.PARAMETER:
            return rows.BufferRow(rows.PARAMETER, buffer.index, 0, bytes_)
        case Space.CONSTANT:
            return rows.BufferRow(rows.CONSTANT, 0, runner.constant_address(buffer.index), bytes_)
        case Space.OUTPUT:
            return rows.BufferRow(rows.RESULT, owners[buffer.name], 0, bytes_)
        case Space.ARENA | Space.BARRIER:
            return rows.BufferRow(rows.SCRATCH, 0, buffer.offset, bytes_)


def count_steps(program: Program) -> tuple[int, int, int]:
    """Stitched kernels, library calls, and parts that XLA or the reference computes."""
    library = sum(isinstance(step, LibraryStep) for step in program.steps)
    others = sum(isinstance(step, FallbackStep | ReferenceStep) for step in program.steps)
    return len(program.kernels), library, others
