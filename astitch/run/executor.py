"""Runs a Program on one NVIDIA GPU through CuPy.

Takes a Program and arrays of NumPy, CuPy or JAX, hands on DeviceArrays.  Everything that can be decided before a
call is: modules are loaded, occupancy is proved, products are put into cuBLAS's form, argument blocks are built.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import statistics
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from astitch import options
from astitch.device.cuda_driver import StreamAddress
from astitch.device.gpu import ACCESS_BYTES
from astitch.device.launch_time import time_launch
from astitch.errors import (
    ArgumentMismatch,
    AstitchError,
    EngineUnavailable,
    IslandRefused,
    KernelCompileError,
    LaunchRefused,
    OtherDevice,
    OutOfMemory,
    UnsupportedType,
)
from astitch.graph.convolution import (
    CanonicalConvolution,
    ConvolutionTypes,
    NoForm,
    canonical_convolution,
    choose_convolution_types,
)
from astitch.graph.ir import ArrayType, ConvolutionAttrs, DotAttrs, DType
from astitch.graph.matmul import (
    CanonicalDot,
    DotOperand,
    ProductTypes,
    canonical_dot,
    choose_product_types,
)
from astitch.graph.reference import eval_node
from astitch.hlo.export import export_call
from astitch.library.cublaslt import (
    PLAIN,
    Addresses,
    Finish,
    Matmul,
    NoAlgorithm,
    Product,
    find_bindings,
)
from astitch.library.cudnn import Convolution, NoPlan, Problem, find_convolution
from astitch.library.xla_fallback import (
    Island,
    compile_island,
    find_device,
    has_jax,
    host_device,
    put_array,
)
from astitch.program.steps import (
    ALIGNMENT_BYTES,
    Buffer,
    CudaKernel,
    Epilogue,
    IslandStep,
    KernelStep,
    LibraryStep,
    Program,
    ReferenceStep,
    Space,
    Step,
    View,
)
from astitch.run.cuda_graph import (
    CapturedRun,
    GraphCache,
    GraphCounts,
    Key,
    WorkRooms,
    capture,
    split_runs,
)
from astitch.run.dlpack_export import Lent, last_returned, wait_for_jax
from astitch.run.result_memory import (
    MOST_FREE,
    ResultPool,
    follows_stream,
    give_back_all,
    note_array,
)
from astitch.system.callbacks import pass_interrupt
from astitch.toolchain.kernel_cache import compile_cached
from astitch.toolchain.nvrtc import CompiledKernel, Request, compile_each_cuda

log = logging.getLogger("astitch")

INSTALL = "pip install astitch[cuda13], or astitch[cuda12] for drivers of CUDA 12"


# ---- CuPy and arrays -------------------------------------------------------------------------------------------


@functools.cache
def count_gpus() -> int:
    """How many GPUs CuPy can use: 0 without CuPy, without a driver or without a device."""
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # each of the three has its own exception, some from the loader
        return 0


def current_gpu() -> int:
    """The number of CuPy's current device.  Raises EngineUnavailable."""
    return int(import_cupy().cuda.runtime.getDevice())


def import_cupy() -> Any:
    """The cupy module.  Raises EngineUnavailable with what to do."""
    try:
        import cupy
    except ImportError as error:
        raise EngineUnavailable(f"the GPU engine needs CuPy: {error}\n  {INSTALL}") from None
    if not count_gpus():
        raise EngineUnavailable(
            "the GPU engine finds no GPU\n  check `nvidia-smi`; without a GPU use astitch.run.host_engine"
        )
    return cupy


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """A row-major array in GPU memory, of any dtype.  owner keeps the memory alive; a JAX array where XLA made it."""

    pointer: int
    type: ArrayType
    owner: Any = field(repr=False)

    def to_cupy(self) -> Any:
        """A CuPy array on the same memory, or on a copy where it is XLA's; f8 types as u8, which CuPy has not."""
        import cupy

        dtype = self.type.dtype.numpy
        if self.type.dtype in (DType.F8E4M3FN, DType.F8E5M2):
            dtype = np.dtype(np.uint8)
        memory = cupy.cuda.UnownedMemory(self.pointer, self.type.bytes, self)
        array = cupy.ndarray(self.type.shape, dtype, cupy.cuda.MemoryPointer(memory, 0))
        # XLA hands memory on in the order of its own streams, CuPy's arrays may go while kernels of ours read them.
        return array.copy() if _is_jax(self.owner) else array

    def to_numpy(self) -> np.ndarray:
        """A copy on the host, after what is under way on the current stream."""
        import cupy

        array = np.empty(self.type.shape, self.type.dtype.numpy)
        if array.nbytes:
            stream = cupy.cuda.get_current_stream()
            runtime = cupy.cuda.runtime
            runtime.memcpyAsync(
                array.ctypes.data,
                self.pointer,
                array.nbytes,
                runtime.memcpyDeviceToHost,
                stream.ptr,
            )
            stream.synchronize()
        return array

    def to_jax(self) -> Any:
        """A JAX array on the same memory where JAX runs on the GPU, else a copy."""
        import jax

        if jax.default_backend() != "gpu" or not self.type.size:
            return jax.device_put(self.to_numpy())
        return self.lend_to_jax()

    def lend_to_jax(self) -> Any:
        """A JAX array on the same memory, of at least one element; ready when CuPy's current stream has come here,
        and JAX, which does not own the memory, never gives it to another array."""
        import jax

        array = jax.dlpack.from_dlpack(self._to_dlpack())
        return self._noted(array)

    def adopt_by_jax(self, device: Any, queue: int) -> Any:
        """A JAX array of exactly this type on the same memory, of at least one element, for a device of JAX's and a
        stream of its own, which waits for this array already.

        As jax.dlpack does it, a tenth of whose time goes into the array.
        """
        from jax._src.lib import _jax  # type: ignore[attr-defined]

        capsule = self._to_dlpack().__dlpack__(stream=_NO_WAIT)
        array = _jax.dlpack_managed_tensor_to_buffer(capsule, device, queue, None, _DLPACK_CUDA)
        return self._noted(array)

    def _noted(self, array: Any) -> Any:
        """The JAX array that this one became; not where it only shows an argument of an island to XLA."""
        if self.owner is not None:
            note_array(self.pointer, array)
        return array

    def _to_dlpack(self) -> Any:
        """The array as an object of DLPack's protocol."""
        import cupy

        dtype = self.type.dtype
        # DLPack names bool and the numbers; the narrow floats travel as words of their size.
        carrier = _DLPACK_CARRIER.get(dtype, dtype.numpy)
        owner = None if self.owner is None else Lent(self.owner)
        memory = cupy.cuda.UnownedMemory(self.pointer, self.type.bytes, owner)
        words = cupy.ndarray(self.type.shape, carrier, cupy.cuda.MemoryPointer(memory, 0))
        is_known = dtype not in _DLPACK_CARRIER and words.__dlpack_device__()[0] != _DLPACK_MANAGED
        return words if is_known else _RenamedDlpack(words, dtype)


_DLPACK_CARRIER = {
    DType.BF16: np.dtype(np.uint16),
    DType.F8E4M3FN: np.dtype(np.uint8),
    DType.F8E5M2: np.dtype(np.uint8),
}
_DLPACK_CODE = {DType.BF16: 4, DType.F8E4M3FN: 10, DType.F8E5M2: 12}
"""DLDataTypeCode of the narrow floats (dlpack.h, DLPack 1.1)."""

_WORD_BYTES = 4

_NO_WAIT = -1
"""For __dlpack__: whoever takes the array has seen to it that it is ready."""

_DLPACK_CUDA, _DLPACK_MANAGED = 2, 13
"""DLDeviceType of a GPU's memory, and of memory that it shares with the host."""

_DLPACK_DEVICE_OFFSET, _DLPACK_DTYPE_OFFSET = 8, 20
"""Where DLTensor.device.device_type and DLTensor.dtype.code stand: after the data pointer; after the device, two 32-bit
integers, and ndim."""


class _RenamedDlpack:
    """A CuPy array that says of itself, through DLPack, what JAX knows: words that they are narrow floats, managed
    memory that it is a GPU's."""

    def __init__(self, words: Any, dtype: DType) -> None:
        self._words = words
        self._code = _DLPACK_CODE.get(dtype)

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        capsule = self._words.__dlpack__(stream=stream)
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
        get_pointer.restype, get_pointer.argtypes = (
            ctypes.c_void_p,
            [ctypes.py_object, ctypes.c_char_p],
        )
        tensor = get_pointer(capsule, b"dltensor")
        device = ctypes.c_int32.from_address(tensor + _DLPACK_DEVICE_OFFSET)
        if device.value == _DLPACK_MANAGED:
            device.value = _DLPACK_CUDA
        if self._code is not None:
            ctypes.c_uint8.from_address(tensor + _DLPACK_DTYPE_OFFSET).value = self._code
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._words.__dlpack_device__()
        return _DLPACK_CUDA if kind == _DLPACK_MANAGED else kind, number


# ---- the executor ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Call:
    """One call: its arguments on the device, the memory of its outputs, where every buffer lies, the stream.

    A result that XLA computes lies where XLA put it: its step sets the address.  lent: what is in use until the end,
    JAX arrays and graphs.  tables: where launches that are captured leave the memory of their tables of pointers.
    step: how many steps were launched.
    """

    arguments: Sequence[DeviceArray]
    outputs: dict[str, Any]
    addresses: dict[str, int]
    stream: int
    lent: list[Any]
    tables: list[Any] | None = None
    step: int = 0


Launch = Callable[[_Call], None]


@dataclass(frozen=True, slots=True)
class DirectProduct:
    """A product whose operands are read where they lie.  lhs, rhs, result: buffers."""

    matmul: Matmul
    lhs: str
    rhs: str
    result: str


@dataclass(frozen=True, slots=True)
class Capturable:
    """A launch that a CUDA graph can repeat: it only enqueues, on the call's stream, and does the same for the same
    addresses.  What it allocates is the executor's (`_allocate`).

    product: what it multiplies, where that is all that it does.
    """

    launch: Launch
    product: DirectProduct | None = None


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive steps.  read: the addresses that calls change, of those that they work on.  graphs: None where they
    cannot be a graph."""

    launches: tuple[Launch, ...]
    read: Callable[[Mapping[str, int]], Key]
    graphs: GraphCache | None


SMALL_BYTES, MOST_SMALL = 1024, 8
"""Small results are what callers keep, losses for one: they are copied out of a place that stays the same, so that
the other addresses of a call can repeat.  Of a program with more of them than that, they are not."""

KEPT_SHARE = 16
"""Free memory of results is kept up to this part of the GPU's."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a step takes on the GPU, in microseconds, the median over the repeats."""

    name: str
    kind: str
    time_us: float


def _refuse_opaque_buffers(program: Program) -> None:
    """Raises UnsupportedType for values between steps that CuPy's arrays cannot hold; XLA packs some of them."""
    for buffer in program.buffers.values():
        if buffer.type.dtype.is_opaque:
            raise UnsupportedType(
                f"program {program.name}: %{buffer.name} is {buffer.type}, which CuPy has no arrays of\n"
                "  use the engine xla, or convert it to a type that kernels know"
            )


class GpuExecutor:
    """A Program ready to run on one GPU; may be called from several threads, which take turns to launch.

    Work goes to CuPy's current stream.  JAX arrays that a call reads stay alive until a later call finds that it ended.
    What XLA computes runs on the same GPU where JAX has it, else, with a warning, on the host.
    Consecutive kernels and products are launched as one CUDA graph where their addresses are those of an earlier call;
    graph_counts says what became of it.
    moves: copy JAX arrays that were put on another device, where JAX has this GPU; without it they raise OtherDevice.
    Raises EngineUnavailable without CuPy or a GPU, UnsupportedType for buffers of types that CuPy does not know,
    KernelCompileError, IslandRefused, OutOfMemory, and LaunchRefused for a kernel whose blocks wait for each other but
    cannot all be resident.
    """

    def __init__(self, program: Program, device: int | None = None, *, moves: bool = True) -> None:
        _refuse_opaque_buffers(program)
        self.cupy = import_cupy()
        self._moves = moves
        self.program = program
        self.device = self.cupy.cuda.Device(device)
        self._lock = threading.Lock()
        self._types = {(v.type.dtype.numpy, v.type.shape): v.type for v in program.parameters}
        self._last: Any = None  # the stream of the latest call
        self._end: Any = None  # its end, as an event
        # Arrays of JAX that a call reads, with the event of its end: JAX knows nothing of our streams,
        # and would give their memory to others.
        self._borrowed: list[tuple[Any, list[Any]]] = []
        self._free_events: list[Any] = []
        # What is known of the few shardings and layouts that JAX's arrays have.
        self._is_here: dict[Any, bool] = {}
        self._is_row_major: dict[Any, bool] = {}
        # The JAX array that came last as each argument, and where it lies.
        self._recalled: list[Callable[[], Any]] = [_nothing] * len(program.parameters)
        self._placed = [DeviceArray(0, view.type, None) for view in program.parameters]
        self._held: set[int] = set()  # arguments that JAX would give to others while we read them
        self._wanted = [self._types[v.type.dtype.numpy, v.type.shape] for v in program.parameters]
        self._adopts = True  # does JAX take arrays at its back door?
        self._returned = 0  # by JAX, when a stream waited last for what it computes
        self._broken_off = False  # an exception ended the latest call before its end was recorded
        self.graph_counts = GraphCounts()
        # While launches are captured: where they find memory, and the stream of the call.
        self._rooms: WorkRooms | None = None
        self._outside: Any = None
        self._work_rooms = WorkRooms(self._allocate_outside)
        with self.device:
            self._end = self.cupy.cuda.Event(disable_timing=True)
            self._arena = self._allocate(program.arena_bytes, "the arena")
            self.cupy.cuda.runtime.memset(self._arena.ptr, 0, program.arena_bytes)
            self._constants = [
                self._upload(literal.numpy(), f"constant {name}")
                for name, literal in program.constants
            ]
            self._parameters: list[list[str]] = [[] for _ in program.parameters]
            for b in self._in_space(Space.PARAMETER):
                self._parameters[b.index].append(b.name)
            # The addresses that no call changes.
            self._fixed = {
                b.name: int(self._constants[b.index].ptr) for b in self._in_space(Space.CONSTANT)
            }
            for b in self._in_space(Space.ARENA, Space.BARRIER):
                self._fixed[b.name] = int(self._arena.ptr) + b.offset
            self._functions = self._load_kernels()
            self._made_by_xla: set[str] = set()
            self._matmuls: dict[tuple[CanonicalDot, ProductTypes, Finish], Matmul] = {}
            self._convolutions: dict[
                tuple[CanonicalConvolution, ConvolutionTypes], Convolution
            ] = {}
            prepared = [self._prepare_step(step) for step in program.steps]
            self._apart = [p.launch if isinstance(p, Capturable) else p for p in prepared]
            self._capturable = [isinstance(p, Capturable) for p in prepared]
            self._products = [p.product if isinstance(p, Capturable) else None for p in prepared]
            prepared = self._join_epilogues(prepared)
            self._launches = [p.launch if isinstance(p, Capturable) else p for p in prepared]
            self._outputs = [
                b for b in self._in_space(Space.OUTPUT) if b.name not in self._made_by_xla
            ]
            self._runs = self._make_runs([isinstance(p, Capturable) for p in prepared])
            if any(run.graphs is not None for run in self._runs):
                self._land_small_results()
                self._capture_stream = self.cupy.cuda.Stream(non_blocking=True)
            # The fixed addresses with those of the parameters of the latest call.
            self._latest = self._fixed.copy()
            sizes = [(b.name, b.type.bytes) for b in self._outputs]
            kept = self.device.mem_info[1] // KEPT_SHARE // max(sum(n for _, n in sizes), 1)
            self._results = ResultPool(sizes, min(MOST_FREE, kept))
            # The zeroed arena and the constants are there before any stream uses them.
            self.cupy.cuda.runtime.deviceSynchronize()
        # What is under way when the last reference goes uses arena, constants and graphs.
        weakref.finalize(self, _wait_for, self._end).atexit = False

    def run(self, arguments: Sequence[Any]) -> list[DeviceArray]:
        """The outputs, new arrays that share memory with no argument; ready in the order of CuPy's current stream.

        arguments: one array for each parameter, of its shape and dtype: NumPy arrays are copied to the device,
        DeviceArrays, CuPy and JAX arrays are used where they lie.  They are only read.  Raises ArgumentMismatch,
        OutOfMemory, after which the next call finds all as it was.
        """
        with self.device, self._lock:
            stream = self.cupy.cuda.get_current_stream()
            self._begin_call(stream)
            call = self._place_buffers(arguments, stream.ptr)
            try:
                for run in self._runs:
                    if run.graphs is None or not self._replay(run, run.graphs, call, stream):
                        for launch in run.launches:
                            launch(call)
                            call.step += 1
                return self._take_outputs(call)
            except Exception as error:
                if isinstance(error, OutOfMemory) or _is_shortage(error):
                    call.outputs.clear()
                    give_back_all()
                if not _is_shortage(error):
                    raise
                names = [*map(_name_of, self.program.steps), "the results"]
                raise self._no_room(f"step {call.step}, {names[call.step]}", error) from None
            finally:  # what was launched before a failure still uses the arena and the arguments
                self._finish_call(stream, call.lent)

    def run_to_jax(self, arguments: Sequence[Any]) -> list[Any]:
        """What run gives, as JAX arrays: on the same memory where JAX runs on this GPU, else copies."""
        results = self.run(arguments)
        if self._jax_device is None:
            return [array.to_jax() for array in results]
        # JAX may have to narrow wider numbers, and shares no array without elements.
        alike = [a for a in results if a.type.size and a.type.dtype.bytes <= _WORD_BYTES]
        with self.device:
            adopted = iter(self._adopt(alike, self._jax_device, self._end))
        return [
            next(adopted) if a.type.size and a.type.dtype.bytes <= _WORD_BYTES else a.to_jax()
            for a in results
        ]

    @functools.cached_property
    def _jax_device(self) -> Any | None:
        """JAX's name for this GPU, where its arrays lie unless told otherwise."""
        import jax

        return find_device("gpu", self.device.id) if jax.default_backend() == "gpu" else None

    def _adopt(self, arrays: Sequence[DeviceArray], device: Any, event: Any) -> list[Any]:
        """The arrays as JAX's of exactly their types, on the same memory, ready when the stream has come to `event`."""
        if self._adopts:
            try:
                # One wait for all: whatever JAX does with them comes after it.
                queue = device.get_stream_for_external_ready_events()
                self.cupy.cuda.runtime.streamWaitEvent(queue, event.ptr)
                return [array.adopt_by_jax(device, queue) for array in arrays]
            except (AttributeError, TypeError, RuntimeError) as error:
                log.warning("arrays go to JAX through jax.dlpack, which takes longer: %s", error)
                self._adopts = False
        import jax

        with jax.enable_x64(True):  # else JAX takes 64-bit numbers for 32-bit ones
            return [array.lend_to_jax() for array in arrays]

    def time_steps(self, arguments: Sequence[Any], repeats: int = 20) -> list[StepTime]:
        """GPU time of each step: the median of `repeats` runs of the whole program, after one to warm up."""
        with self.device, self._lock:
            stream = self.cupy.cuda.get_current_stream()
            self._begin_call(stream)
            call = self._place_buffers(arguments, stream.ptr)
            events = [self.cupy.cuda.Event() for _ in range(len(self._launches) + 1)]
            times: list[list[float]] = [[] for _ in self._launches]
            for repeat in range(repeats + 1):
                events[0].record(stream)
                for launch, event in zip(self._launches, events[1:], strict=True):
                    launch(call)
                    event.record(stream)
                events[-1].synchronize()
                if repeat:
                    for row, (start, end) in zip(times, pairwise(events), strict=True):
                        row.append(1e3 * self.cupy.cuda.get_elapsed_time(start, end))
            self._finish_call(stream, call.lent)
        return [
            StepTime(_name_of(step), type(step).__name__, statistics.median(row))
            for step, row in zip(self.program.steps, times, strict=True)
        ]

    # -- for engines that launch the kernels themselves --

    def constant_address(self, index: int) -> int:
        """Where constant `index` of the program lies."""
        return int(self._constants[index].ptr)

    def function_address(self, kernel: CudaKernel) -> int:
        """The CUfunction of one of the program's kernels, its shared memory allowed and its residency proved."""
        return int(self._functions[kernel].ptr)

    def can_capture(self, number: int) -> bool:
        """Can a CUDA graph repeat this step?"""
        return self._capturable[number]

    def find_product(self, number: int) -> DirectProduct | None:
        """The product that a step is, if it is nothing else."""
        return self._products[number]

    def run_step(
        self,
        number: int,
        addresses: Mapping[str, int],
        stream: int,
        *,
        captured: bool = False,
    ) -> None:
        """Enqueue one step that is no kernel on `stream`, a CUstream of the caller's.

        addresses: where the buffers that it reads and writes lie, each with room for its bytes.  captured: the stream
        is capturing, and the step, which has run before, becomes part of a graph of the caller's.
        """
        step = self.program.steps[number]
        assert not isinstance(step, KernelStep)
        with self.device, self._lock, self._stream_at(stream):
            self._rooms = self._outside = None  # those of a step that was broken off
            call = _Call((), {}, dict(addresses), stream, [])
            if captured:
                with self._working_in_rooms(self.cupy.cuda.Stream.null):
                    self._apart[number](call)
                return
            self._apart[number](call)
            for view in step.results:
                found = call.addresses[view.buffer]
                if found != addresses[view.buffer]:  # XLA puts its results where it likes
                    self._copy(addresses[view.buffer], found, view.type.bytes, stream)
            if call.lent:
                event = self._take_event()
                event.record()
                self._borrowed.append((event, call.lent))
            while self._borrowed and self._borrowed[0][0].done:
                self._free_events.append(self._borrowed.pop(0)[0])

    # -- CUDA graphs --

    def _make_runs(self, capturable: Sequence[bool]) -> list[_Run]:
        """The steps in parts that are launched as one graph, or one by one."""
        runs = []
        allowed = options.graphs()
        for first, end, able in split_runs(capturable):
            steps = self.program.steps[first:end]
            used = dict.fromkeys(view.buffer for step in steps for view in _views_of(step))
            for name in map(_name_of, steps):  # of products in place of kernels
                used.update(dict.fromkeys(self._multiplied.get(name, ())))
            small = self._small_results()
            # What XLA makes lies where XLA puts it, whatever place its buffer has.
            still = {*self._fixed, *small} - self._made_by_xla
            moving = [name for name in used if name not in still]
            read = itemgetter(*moving) if moving else _no_addresses
            name = f"{self.program.name}, steps {first} to {end - 1}"
            graphs = GraphCache(name, self.graph_counts) if able and allowed else None
            runs.append(_Run(tuple(self._launches[first:end]), read, graphs))
        return runs

    def _small_results(self) -> list[str]:
        small = [b.name for b in self._outputs if b.type.bytes <= SMALL_BYTES]
        return small if len(small) <= MOST_SMALL else []

    def _land_small_results(self) -> None:
        """Gives small results a place that stays the same."""
        small = self._small_results()
        landing = self._landing = self._allocate(SMALL_BYTES * len(small), "small results")
        for number, name in enumerate(small):
            self._fixed[name] = int(landing.ptr) + SMALL_BYTES * number
        self._outputs = [b for b in self._outputs if b.name not in small]

    def _replay(self, run: _Run, graphs: GraphCache, call: _Call, stream: Any) -> bool:
        """The run as a graph, if there is one for these addresses, or if it is time for one."""
        key = run.read(call.addresses)
        captured = graphs.find(key)
        if captured is None:
            captured = self._capture(run, graphs, key, call, stream) if graphs.is_due(key) else None
        if captured is not None:
            try:
                captured.graph.launch(stream)
            except Exception as error:
                pass_interrupt(error)
                call.lent.extend(graphs.refuse(error))
            else:
                self.graph_counts.replayed += 1
                call.step += len(run.launches)
                return True
        self.graph_counts.direct += 1
        return False

    def _capture(
        self, run: _Run, graphs: GraphCache, key: Key, call: _Call, stream: Any
    ) -> CapturedRun | None:
        """A graph of the run for the addresses of this call; None where it cannot be, which is told once."""
        tables: list[Any] = []
        captured_call = replace(call, stream=self._capture_stream.ptr, tables=tables)
        try:
            with self._capture_stream, capture(self._capture_stream) as found:
                for launch in run.launches:
                    with self._working_in_rooms(stream):
                        launch(captured_call)
        except Exception as error:
            pass_interrupt(error)
            if not isinstance(error, OutOfMemory) and not _is_shortage(error):
                call.lent.extend(graphs.refuse(error))
            return None
        for table, pointers in tables:
            self._write(int(table.ptr), pointers, call.stream)
        captured = CapturedRun(found[0], tuple(table for table, _ in tables))
        dropped = graphs.keep(key, captured)
        if dropped is not None:
            call.lent.append(dropped)
        return captured

    @contextmanager
    def _working_in_rooms(self, outside: Any) -> Iterator[None]:
        """While one launch is captured: it allocates where all of them do.  outside: a stream that is not capturing."""
        self._rooms, self._outside = self._work_rooms, outside
        self._work_rooms.begin_launch()
        try:
            yield
        finally:
            self._rooms = self._outside = None

    def _begin_call(self, stream: Any) -> None:
        """After a call that was broken off, by a signal handler's exception for one, all is looked at anew: it may have
        noted one thing of two that belong together."""
        self._rooms = self._outside = None
        if self._broken_off:
            self._forget_arguments()
            self.cupy.cuda.runtime.deviceSynchronize()
        self._broken_off = True
        self._wait_for_last_call(stream)

    def _wait_for_last_call(self, stream: Any) -> None:
        """There is one arena: a call on another stream starts when the latest call has ended."""
        if self._last is not None and self._last.ptr != stream.ptr:
            stream.wait_event(self._end)
            self._forget_arguments()  # who is held, and until when, is asked anew
        self._wait_for_readers(stream)
        while self._borrowed and self._borrowed[0][0].done:
            self._free_events.append(self._borrowed.pop(0)[0])

    def _wait_for_readers(self, stream: Any = None) -> None:
        """What JAX let go of may be written now, in the order of the stream: the current one unless it is given."""
        returned = last_returned()
        if returned != self._returned:
            wait_for_jax(self.device.id, (stream or self.cupy.cuda.get_current_stream()).ptr)
            self._returned = returned

    def _finish_call(self, stream: Any, lent: list[Any]) -> None:
        # Recorded now: by the next call the stream may be gone.
        self._last = stream
        self._end.record(stream)
        if lent:
            event = self._take_event()
            event.record(stream)
            self._borrowed.append((event, lent))
        self._broken_off = False

    def _take_event(self) -> Any:
        if self._free_events:
            return self._free_events.pop()
        return self.cupy.cuda.Event(disable_timing=True)

    # -- memory --

    def _allocate(self, count: int, what: str) -> Any:
        """Device memory of `count` bytes (at least one, so that it has an address of its own)."""
        allocate = self._allocate_unread if self._rooms is None else self._rooms.take
        try:
            return allocate(max(count, 1))
        except self.cupy.cuda.memory.OutOfMemoryError:
            give_back_all()
        try:
            return allocate(max(count, 1))
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            raise self._no_room(f"{what}, {count} bytes", error) from None

    def _allocate_outside(self, count: int) -> Any:
        """Memory that is no part of the graph that is being captured."""
        with self._outside:
            return self._allocate_unread(count)

    def _allocate_unread(self, count: int) -> Any:
        """Memory that the current stream may write.  Asked then: JAX lets go of memory at any time."""
        memory = self.cupy.cuda.alloc(count)
        self._wait_for_readers()
        return memory

    def _no_room(self, what: str, error: Exception) -> OutOfMemory:
        return OutOfMemory(
            f"program {self.program.name}: no room for {what}: {error}\n"
            "  free arrays, call cupy.get_default_memory_pool().free_all_blocks(), or set "
            "XLA_PYTHON_CLIENT_PREALLOCATE=false so that JAX leaves room"
        )

    def _upload(self, array: np.ndarray, what: str) -> Any:
        """Device memory with the row-major bytes of a host array, ready in the order of the current stream."""
        memory = self._allocate(array.nbytes, what)
        self._write(int(memory.ptr), array, self.cupy.cuda.get_current_stream().ptr)
        return memory

    def _write(self, pointer: int, array: np.ndarray, stream: int) -> None:
        host = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        runtime = self.cupy.cuda.runtime
        if host.nbytes:
            # From pageable memory this returns once the bytes are staged: `host` may go.
            runtime.memcpyAsync(
                pointer, host.ctypes.data, host.nbytes, runtime.memcpyHostToDevice, stream
            )

    def _copy(self, to: int, source: int, count: int, stream: int) -> None:
        runtime = self.cupy.cuda.runtime
        if count:
            runtime.memcpyAsync(to, source, count, runtime.memcpyDeviceToDevice, stream)

    def _place_buffers(self, arguments: Sequence[Any], stream: int) -> _Call:
        if len(arguments) != len(self._recalled):
            placed = [self._place_argument(n, a, stream) for n, a in enumerate(arguments)]
            self._forget_arguments()
            self.program.check_arguments([array.type for array in placed])
        # JAX arrays that were ready when they came in the same place before need no second look: weights come call
        # after call.  They do not move or change, but they may be deleted.
        changed = [
            number
            for number, (recall, argument) in enumerate(zip(self._recalled, arguments, strict=True))
            if recall() is not argument or argument is None or argument.is_deleted()
        ]
        placed = self._placed.copy()
        lent = []
        for number in changed:
            array = placed[number] = self._place_argument(number, arguments[number], stream)
            for name in self._parameters[number]:
                self._latest[name] = array.pointer
            if _is_jax(array.owner) and number not in self._held:
                lent.append(array.owner)
        if any(placed[number].type is not self._wanted[number] for number in changed):
            self._forget_arguments()
            self.program.check_arguments([array.type for array in placed])
        lent += [arguments[number] for number in self._held]
        outputs: dict[str, Any] = dict(self._results.take(stream, self._allocate))
        self._wait_for_readers()
        addresses = self._latest.copy()
        for name, memory in outputs.items():
            addresses[name] = memory.ptr
        # The call holds `placed` until all is launched.  Copies of host arguments then go back to CuPy's pool,
        # which hands memory on in the order of the stream.
        return _Call(placed, outputs, addresses, stream, lent)

    def _forget_arguments(self) -> None:
        """The next call looks at all of its arguments."""
        self._recalled = [_nothing] * len(self._recalled)
        self._held.clear()

    def _in_space(self, *spaces: Space) -> list[Buffer]:
        return [b for b in self.program.buffers.values() if b.space in spaces]

    def _type_of(self, dtype: np.dtype, shape: tuple[int, ...]) -> ArrayType:
        """The ArrayType, made once for each: calls see the same few again and again."""
        key = dtype, shape
        if key not in self._types:
            self._types[key] = ArrayType(DType.of(dtype), shape)
        return self._types[key]

    def _place_argument(self, number: int, argument: Any, stream: int) -> DeviceArray:
        """The argument on this device: where it lies if it is there, row-major and aligned, else a copy."""
        if number < len(self._recalled):
            self._recalled[number] = _nothing
            self._held.discard(number)
        if isinstance(argument, DeviceArray):
            return argument
        try:
            if isinstance(argument, self.cupy.ndarray):
                return self._place_cupy(argument)
            if _is_jax(argument):
                return self._place_jax(argument, number, stream)
            if hasattr(argument, "__cuda_array_interface__"):
                return self._place_cupy(self.cupy.asarray(argument))
            return self._place_host(np.asarray(argument), number)
        except self.cupy.cuda.memory.OutOfMemoryError as error:  # of a copy that CuPy makes
            raise self._no_room(f"a copy of argument {number}", error) from None
        except UnsupportedType as error:
            raise ArgumentMismatch(
                f"argument {number}: {error}\n  pass an array of numbers"
            ) from None

    def _place_host(self, array: np.ndarray, number: int) -> DeviceArray:
        type_ = self._type_of(array.dtype.newbyteorder("="), array.shape)
        memory = self._upload(array, f"argument {number}")
        return DeviceArray(int(memory.ptr), type_, memory)

    def _place_cupy(self, array: Any) -> DeviceArray:
        type_ = self._type_of(array.dtype, array.shape)
        if array.device.id != self.device.id:
            array = self.cupy.asarray(array)  # copies to the current device
        if not array.flags.c_contiguous or (array.data.ptr % ACCESS_BYTES and array.nbytes):
            array = array.copy(order="C")
        return DeviceArray(int(array.data.ptr), type_, array)

    def _place_jax(self, array: Any, number: int, stream: int) -> DeviceArray:
        if array.is_deleted():  # JAX says so here, and crashes where its layout is asked for
            array.block_until_ready()
        type_ = self._type_of(array.dtype, array.shape)
        here = self._is_here.get(array.sharding)
        if here is None:
            device, *others = array.devices()
            if others:
                raise OtherDevice(
                    f"argument {number} ({type_}) is spread over {1 + len(others)} devices; astitch runs on one\n"
                    "  bring it to one device with jax.device_put"
                )
            here = device.platform == "gpu" and device.local_hardware_id == self.device.id
            self._is_here[array.sharding] = here
        if not (here or self._moves) and self._jax_device is not None and array.committed:
            (device,) = array.devices()
            raise OtherDevice(
                f"argument {number} ({type_}) lies on {device}; astitch runs on {self._jax_device}\n"
                "  bring it there with jax.device_put"
            )
        if not here or not type_.size or (type_.rank > 1 and not self._has_rows(array, type_.rank)):
            return self._place_host(np.asarray(array), number)
        pointer = int(array.unsafe_buffer_pointer())
        if not follows_stream(array, pointer, stream):
            # JAX computes on streams of its own: the array must be finished before ours may read it.
            array.block_until_ready()
        # One of a wrong type is not known again: another argument may end this call before types are checked.
        if number < len(self._recalled) and type_ is self._wanted[number]:
            self._recalled[number] = weakref.ref(array)
            self._placed[number] = DeviceArray(pointer, type_, None)
            # JAX knows nothing of our streams; a result of ours is written again only in the order of its own.
            if not follows_stream(array, pointer, stream):
                self._held.add(number)
        return DeviceArray(pointer, type_, None)

    def _has_rows(self, array: Any, rank: int) -> bool:
        """Is a JAX array row-major?  Its own layout object, where JAX shows it, saves making one for each question."""
        layout = getattr(array, "_pjrt_layout", None)
        known = self._is_row_major.get((layout, rank)) if layout is not None else None
        if known is None:
            known = array.format.layout.major_to_minor == tuple(range(rank))
            if layout is not None:
                self._is_row_major[layout, rank] = known
        return known

    def _take_outputs(self, call: _Call) -> list[DeviceArray]:
        """One array for each output; only the first view of an OUTPUT buffer is handed on without a copy."""
        taken: set[str] = set()
        outputs = []
        for view in self.program.outputs:
            pointer, memory = call.addresses[view.buffer], call.outputs.get(view.buffer)
            if memory is None or view.buffer in taken:
                memory = self._allocate(view.type.bytes, f"output {view.buffer}")
                self._copy(int(memory.ptr), pointer, view.type.bytes, call.stream)
                pointer = int(memory.ptr)
            taken.add(view.buffer)
            outputs.append(DeviceArray(pointer, view.type, memory))
        return outputs

    # -- kernels --

    def _load_kernels(self) -> dict[CudaKernel, Any]:
        """CuPy's function for each kernel, its shared memory allowed and its residency proved."""
        kernels = dict.fromkeys(self.program.kernels)
        sources = list(dict.fromkeys(kernel.source for kernel in kernels))
        arch = f"sm_{self.device.compute_capability}"
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
            modules[cubin] = self.cupy.cuda.function.Module()
            try:
                modules[cubin].load(cubin)
            except Exception as error:
                if not _is_shortage(error):
                    raise
                raise self._no_room(f"a kernel, {len(cubin)} bytes", error) from None
        functions = {
            k: modules[(result := results[k.source]).cubin].get_function(result.symbol(k.name))
            for k in kernels
        }
        for kernel, function in functions.items():
            self._allow_launch(kernel, int(function.ptr))
        return functions

    def _allow_launch(self, kernel: CudaKernel, function: int) -> None:
        """Raises LaunchRefused for a launch that would fail, or hang at a global barrier."""
        driver, attributes = self.cupy.cuda.driver, self.device.attributes
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

    def _prepare_kernel(self, step: KernelStep) -> Capturable:
        kernel, driver = step.kernel, self.cupy.cuda.driver
        function = int(self._functions[kernel].ptr)
        names = [view.buffer for view in step.arguments]
        pointers: Any = (ctypes.c_uint64 * max(len(names), 1))()
        pointer_bytes = 8 * len(names)
        table = self._allocate(pointer_bytes, "a pointer table") if kernel.pointer_table else None
        # cuLaunchKernel takes the address of each parameter: of each pointer, or of the table's address.
        values: Any = pointers if table is None else (ctypes.c_uint64 * 1)(int(table.ptr))
        slots = (ctypes.c_void_p * len(values))(
            *[ctypes.addressof(values) + 8 * i for i in range(len(values))]
        )
        block = ctypes.addressof(slots)
        grid_and_block = (kernel.grid, 1, 1, kernel.block, 1, 1, kernel.shared_bytes)
        runtime = self.cupy.cuda.runtime

        read = itemgetter(*names) if len(names) > 1 else None
        written: tuple[int, ...] = ()  # what the table holds

        # `keep`: what `block` points into lives as long as the function.
        def launch(call: _Call, keep: Any = (values, slots)) -> None:
            nonlocal written
            addresses = call.addresses
            given = read(addresses) if read else tuple([addresses[name] for name in names])
            if table is None:
                pointers[: len(names)] = given
            elif call.tables is not None:
                # A graph has a table of its own, filled once it is known to be a graph.
                own = self._allocate_outside(pointer_bytes)
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

        return Capturable(launch)

    # -- products and the rest --

    def _prepare_step(self, step: Step) -> Launch | Capturable:
        """The step as a function of a call, marked where a CUDA graph can repeat it."""
        if isinstance(step, KernelStep):
            return self._prepare_kernel(step)
        if isinstance(step, LibraryStep) and isinstance(step.node.attrs, DotAttrs):
            (lhs, rhs), (result,) = step.operands, step.results
            types = choose_product_types(
                step.node.attrs, lhs.type.dtype, rhs.type.dtype, result.type.dtype
            )
            if types is not None:
                launch = self._prepare_dot(step.node.attrs, types, lhs, rhs, result)
                if launch is not None:
                    return launch
        if isinstance(step, LibraryStep) and isinstance(step.node.attrs, ConvolutionAttrs):
            convolve = self._prepare_convolution(step, step.node.attrs)
            if convolve is not None:
                return convolve
        return self._prepare_other(step)

    def _prepare_other(self, step: Step) -> Launch:
        """A step that no library does which is called from here."""
        assert not isinstance(step, KernelStep)
        if isinstance(step, IslandStep):
            return self._prepare_island(step.name, step.hlo, step.operands, step.results)
        if isinstance(step, LibraryStep) and has_jax():
            # Through XLA into the libraries that it calls.
            hlo = export_call(step.node, [view.type for view in step.operands])
            return self._prepare_island(f"%{step.node.name}", hlo, step.operands, step.results)
        return self._prepare_reference(step)

    def _prepare_dot(
        self, attrs: DotAttrs, types: ProductTypes, lhs: View, rhs: View, result: View
    ) -> Launch | Capturable | None:
        """Through cuBLASLt where its bindings are installed, else through cuBLAS; None where neither has it."""
        dot = canonical_dot(attrs, lhs.type, rhs.type, contiguous_depth=types.only_lt)
        runtime = self.cupy.cuda.runtime
        if not result.type.size or not dot.k:

            def clear(call: _Call) -> None:
                if result.type.size:
                    runtime.memsetAsync(
                        call.addresses[result.buffer], 0, result.type.bytes, call.stream
                    )

            return Capturable(clear)
        other = None if types.only_lt else self._prepare_gemm(dot, types, lhs, rhs, result)
        matmul = self._find_matmul(dot, types)
        return (
            other if matmul is None else self._prepare_matmul(matmul, dot, lhs, rhs, result, other)
        )

    def _find_matmul(
        self, dot: CanonicalDot, types: ProductTypes, finish: Finish = PLAIN
    ) -> Matmul | None:
        """cuBLASLt's product, one for equal products; None without the bindings or an algorithm."""
        bindings = find_bindings(self.device.id)
        if bindings is None:
            return None
        found = self._matmuls.get((dot, types, finish))
        if found is None:
            properties = self.cupy.cuda.runtime.getDeviceProperties(self.device.id)
            product = Product(dot, types, properties["name"].decode(), finish)
            try:
                found = Matmul(bindings, product, self._time_launch)
            except NoAlgorithm:
                return None
            self._matmuls[dot, types, finish] = found
        return found

    def _stream_at(self, address: int) -> Any:
        """CuPy's stream for a CUstream of the caller's."""
        return self.cupy.cuda.Stream.from_external(StreamAddress(address))

    def _time_launch(self, launch: Callable[[int], None], stream: int) -> float:
        """Microseconds of a launch whose operands are there when `stream` has come here."""
        self._stream_at(stream).synchronize()
        launch(stream)
        self._stream_at(stream).synchronize()
        return time_launch(self.cupy, lambda queue, _: launch(queue))

    def _prepare_matmul(
        self,
        matmul: Matmul,
        dot: CanonicalDot,
        lhs: View,
        rhs: View,
        result: View,
        other: Launch | None,
    ) -> Capturable:
        """other: where none of cuBLASLt's algorithms turns out to run."""

        def multiply(call: _Call) -> None:
            a, a_memory = self._transpose(call, lhs, dot.lhs)
            b, b_memory = self._transpose(call, rhs, dot.rhs)
            memory = self._allocate(matmul.workspace_bytes, "a product's workspace")
            addresses = Addresses(a, b, call.addresses[result.buffer], int(memory.ptr))
            try:
                matmul.launch(addresses, call.stream)
            except NoAlgorithm:
                if other is None:
                    raise
                other(call)
            # To the pool, which hands them on in the order of the stream.
            del a_memory, b_memory, memory

        copied = dot.lhs.permutation is not None or dot.rhs.permutation is not None
        names = (lhs.buffer, rhs.buffer, result.buffer)
        return Capturable(multiply, None if copied else DirectProduct(matmul, *names))

    def _prepare_convolution(self, step: LibraryStep, attrs: ConvolutionAttrs) -> Capturable | None:
        """Through cuDNN where its bindings are installed and have the convolution, else None."""
        (lhs, rhs), (result,) = step.operands, step.results
        conv = canonical_convolution(attrs, lhs.type, rhs.type, result.type)
        types = choose_convolution_types(attrs, lhs.type.dtype, rhs.type.dtype, result.type.dtype)
        if isinstance(conv, NoForm) or isinstance(types, NoForm):
            return None
        found = self._convolutions.get((conv, types))
        if found is None:
            properties = self.cupy.cuda.runtime.getDeviceProperties(self.device.id)
            problem = Problem(conv, types, properties["name"].decode())
            found = find_convolution(self.cupy, self.device.id, problem, self._time_launch)
            if found is None:
                return None
            self._convolutions[conv, types] = found
        convolution, other = found, list[Launch]()

        def convolve_by_xla(call: _Call) -> None:
            # Graphs are made for the result's own place by now.
            place, memory = call.addresses[result.buffer], call.outputs.get(result.buffer)
            other[0](call)
            made = call.addresses[result.buffer]
            if made != place:
                self._copy(place, made, result.type.bytes, call.stream)
                call.addresses[result.buffer] = place
                call.outputs.pop(result.buffer, None)
                if memory is not None:
                    call.outputs[result.buffer] = memory

        def convolve(call: _Call) -> None:
            if other:
                if self._rooms is not None:  # XLA's streams would be drawn into the graph
                    raise RuntimeError(f"%{step.node.name}, which XLA convolves, is in no graph")
                convolve_by_xla(call)
                return
            addresses = [call.addresses[view.buffer] for view in (lhs, rhs, result)]
            memory = self._allocate(convolution.workspace_bytes, "a convolution's workspace")
            try:
                convolution.launch(addresses, int(memory.ptr), call.stream)
            except NoPlan as error:  # in the first call: what cuDNN names does not run
                log.info("%%%s, which XLA convolves: %s", step.node.name, error)
                other.append(self._prepare_other(step))
                convolve_by_xla(call)

        return Capturable(convolve)

    def _join_epilogues(self, prepared: Sequence[Launch | Capturable]) -> list[Launch | Capturable]:
        """The steps, where products that cuBLASLt can finish are launched in place of the kernels behind them.

        Notes the buffers that these read then."""
        places = {_name_of(step): number for number, step in enumerate(self.program.steps)}
        joined = list(prepared)
        self._multiplied: dict[str, list[str]] = {}
        for epilogue in self.program.epilogues:
            first, second = places[epilogue.product], places[epilogue.kernel]
            step = self.program.steps[first]
            assert isinstance(step, LibraryStep)
            both = self._prepare_epilogue(step, epilogue, self._apart[first], self._apart[second])
            if both is not None:
                joined[first], joined[second] = map(Capturable, both)
                self._multiplied[epilogue.kernel] = [view.buffer for view in step.operands]
        return joined

    def _prepare_epilogue(
        self, step: LibraryStep, epilogue: Epilogue, product: Launch, kernel: Launch
    ) -> tuple[Launch, Launch] | None:
        """What to do in place of the product and of the kernel; None without cuBLASLt or an algorithm."""
        (lhs, rhs), result, attrs = step.operands, epilogue.result, step.node.attrs
        assert isinstance(attrs, DotAttrs)
        types = choose_product_types(attrs, lhs.type.dtype, rhs.type.dtype, result.type.dtype)
        dot = canonical_dot(attrs, lhs.type, rhs.type)
        residual, bias = epilogue.residual, epilogue.bias
        finish = Finish(residual is not None, bias is not None, epilogue.activation)
        if types is None or not result.type.size or not dot.k:
            return None
        matmul = self._find_matmul(dot, types, finish)
        if matmul is None:
            return None
        # Until the first call has timed both, the product is written first, for the kernel.
        is_joined, is_apart = matmul.is_settled, False

        def multiply(call: _Call) -> None:
            if not is_joined:
                product(call)

        def multiply_and_finish(call: _Call) -> None:
            nonlocal is_joined, is_apart
            if is_apart:
                kernel(call)
                return
            a, a_memory = self._transpose(call, lhs, dot.lhs)
            b, b_memory = self._transpose(call, rhs, dot.rhs)
            memory = self._allocate(matmul.workspace_bytes, "a product's workspace")
            addresses = Addresses(
                a,
                b,
                call.addresses[result.buffer],
                int(memory.ptr),
                call.addresses[residual.buffer] if residual else 0,
                call.addresses[bias.buffer] if bias else 0,
            )

            def launch_apart(stream: int) -> None:
                there = replace(call, stream=stream)
                product(there)
                kernel(there)

            try:
                matmul.launch(addresses, call.stream, launch_apart)
                is_joined = True
            except NoAlgorithm:
                is_apart = True
                kernel(call)
            # To the pool, which hands them on in the order of the stream.
            del a_memory, b_memory, memory

        return multiply, multiply_and_finish

    def _prepare_gemm(
        self, dot: CanonicalDot, types: ProductTypes, lhs: View, rhs: View, result: View
    ) -> Launch:
        runtime, cublas = self.cupy.cuda.runtime, self.cupy.cuda.cublas
        left, right, product = (
            getattr(runtime, name) for name in (types.lhs, types.rhs, types.result)
        )
        compute, algorithm = getattr(cublas, types.compute), cublas.CUBLAS_GEMM_DEFAULT
        operations = {False: cublas.CUBLAS_OP_N, True: cublas.CUBLAS_OP_T}
        one, zero = np.ones(1, types.scalar), np.zeros(1, types.scalar)

        def multiply(call: _Call) -> None:
            a, a_memory = self._transpose(call, lhs, dot.lhs)
            b, b_memory = self._transpose(call, rhs, dot.rhs)
            # cuBLAS is column-major, where our row-major product is its transpose: rhs^T lhs^T.
            cublas.gemmStridedBatchedEx(
                self.cupy.cuda.device.get_cublas_handle(),
                operations[dot.rhs.transposed],
                operations[dot.lhs.transposed],
                dot.n,
                dot.m,
                dot.k,
                one.ctypes.data,
                b,
                right,
                dot.rhs.leading,
                dot.rhs.stride,
                a,
                left,
                dot.lhs.leading,
                dot.lhs.stride,
                zero.ctypes.data,
                call.addresses[result.buffer],
                product,
                dot.n,
                dot.m * dot.n,
                dot.batch,
                compute,
                algorithm,
            )
            del a_memory, b_memory  # to the pool, which hands them on in the order of the stream

        return multiply

    def _transpose(self, call: _Call, view: View, operand: DotOperand) -> tuple[int, Any]:
        """The address of an operand in the order it needs, and the memory of the copy if there is one."""
        pointer, type_ = call.addresses[view.buffer], view.type
        if operand.permutation is None:
            return pointer, None
        word = _WORD[type_.dtype.bytes]
        memory = self.cupy.cuda.UnownedMemory(pointer, type_.bytes, self)
        array = self.cupy.ndarray(type_.shape, word, self.cupy.cuda.MemoryPointer(memory, 0))
        array = array.transpose(operand.permutation)
        room = self._allocate(type_.bytes, f"{view.buffer} in the order of the product")
        copy = self.cupy.ndarray(array.shape, word, room)
        copy[...] = array
        return int(copy.data.ptr), copy

    def _prepare_island(
        self, name: str, hlo: bytes, operands: Sequence[View], results: Sequence[View]
    ) -> Launch:
        """A part that XLA computes, on this GPU where JAX has it, else on the host."""
        what = f"{self.program.name}, {name}"
        device = find_device("gpu", self.device.id)
        if device is None:
            why = "JAX has no GPU here, so XLA computes this on the host; install jax[cuda13] or jax[cuda12]"
            island = compile_island(hlo, host_device(), what)
            return self._prepare_host_island(island, operands, results, f"{what}: {why}")
        try:
            island = compile_island(hlo, device, what)
        except IslandRefused as refused:
            island = _compile_for_host(hlo, what, refused)
            why = f"{refused}\n  until then XLA computes it on the host"
            return self._prepare_host_island(island, operands, results, why)
        self._made_by_xla.update(view.buffer for view in results)

        def run(call: _Call) -> None:
            found = island.run(self._lend(call, operands, island))
            for view, array in zip(results, found, strict=True):
                # No copy: the steps that follow read it where XLA put it.
                call.addresses[view.buffer] = (
                    int(array.unsafe_buffer_pointer()) if array.size else 0
                )
                if self.program.buffers[view.buffer].space is Space.OUTPUT:
                    call.outputs[view.buffer] = array
            call.lent.extend(found)

        return run

    def _lend(self, call: _Call, views: Sequence[View], island: Island) -> list[Any]:
        """The JAX arrays of operands, on the same memory where they lie as XLA wants its own."""
        arrays = [self._align(call, view) for view in views if view.type.size]
        event = self._take_event()
        event.record()
        lent = iter(self._adopt(arrays, island.device, event))
        self._free_events.append(event)
        return [
            next(lent)
            if view.type.size
            else put_array(np.empty(view.type.shape, view.type.dtype.numpy), island.device)
            for view in views
        ]

    def _align(self, call: _Call, view: View) -> DeviceArray:
        """The array where it lies, or a copy of an argument that is part of a larger array."""
        pointer = call.addresses[view.buffer]
        if not pointer % ALIGNMENT_BYTES:
            return DeviceArray(pointer, view.type, None)
        memory = self._allocate(view.type.bytes, f"a copy of {view.buffer}")
        self._copy(int(memory.ptr), pointer, view.type.bytes, call.stream)
        return DeviceArray(int(memory.ptr), view.type, memory)

    def _prepare_host_island(
        self, island: Island, operands: Sequence[View], results: Sequence[View], why: str
    ) -> Launch:
        """The island on the host, which a warning tells.  Its operands are fetched, its results sent back."""
        warnings.warn(why, RuntimeWarning, stacklevel=2)

        def run(call: _Call) -> None:
            arrays = [self._fetch(call, view) for view in operands]
            found = island.run([put_array(array, island.device) for array in arrays])
            for view, array in zip(results, found, strict=True):
                self._write(call.addresses[view.buffer], np.asarray(array), call.stream)

        return run

    def _fetch(self, call: _Call, view: View) -> np.ndarray:
        return DeviceArray(call.addresses[view.buffer], view.type, None).to_numpy()

    def _prepare_reference(self, step: LibraryStep | ReferenceStep) -> Launch:
        """The step on the host without JAX: its operands fetched, its results sent back.  Slow; explain() lists it."""
        warnings.warn(
            f"{self.program.name}, %{step.node.name}: JAX is not installed, so NumPy computes this on the host; "
            "install jax[cuda13] or jax[cuda12]",
            RuntimeWarning,
            stacklevel=2,
        )

        def interpret(call: _Call) -> None:
            operands = [self._fetch(call, view) for view in step.operands]
            results = eval_node(step.node, operands)
            for view, array in zip(step.results, results, strict=True):
                self._write(call.addresses[view.buffer], array, call.stream)

        return interpret


def _compile_for_host(hlo: bytes, what: str, refused: IslandRefused) -> Island:
    """The island for the host.  Raises what XLA said of the GPU where it refuses this too."""
    try:
        return compile_island(hlo, host_device(), what)
    except (IslandRefused, EngineUnavailable):
        raise refused from None


_WORD = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
"""A type of so many bytes whose copies keep the bits."""


_SHORTAGES = ("OutOfMemoryError", "OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "ALLOC_FAILED")
"""In the errors of CuPy, of the driver (a kernel's stack), of the runtime and of cuBLAS (its workspace)."""


def _is_shortage(error: Exception) -> bool:
    text = f"{type(error).__name__}: {error}"
    return not isinstance(error, AstitchError) and any(word in text for word in _SHORTAGES)


_NOTHING = object()


def _nothing() -> object:
    """What no argument is."""
    return _NOTHING


def _no_addresses(_: Mapping[str, int]) -> Key:
    """Of a run that works on nothing that calls change."""
    return ()


def _wait_for(event: Any) -> None:
    """Lets the GPU come to an event."""
    try:
        event.synchronize()
    except Exception:  # a GPU that failed has nothing under way
        pass


def _views_of(step: Step) -> tuple[View, ...]:
    return step.arguments if isinstance(step, KernelStep) else (*step.operands, *step.results)


def _is_jax(argument: Any) -> bool:
    return hasattr(argument, "unsafe_buffer_pointer")


def _name_of(step: Step) -> str:
    match step:
        case KernelStep(kernel=kernel):
            return kernel.name
        case IslandStep(name=name):
            return name
        case LibraryStep(node=node) | ReferenceStep(node=node):
            return node.name


def _refuse_launch(kernel: CudaKernel, text: str) -> LaunchRefused:
    error = LaunchRefused(text)
    error.kernel = kernel.name
    return error
