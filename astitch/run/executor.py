"""Runs a Program on one NVIDIA GPU through CuPy.

Takes a Program and arrays of NumPy, CuPy or JAX, hands on DeviceArrays.  Everything that can be decided before a
call is: modules are loaded, occupancy is proved, products are put into cuBLAS's form, argument blocks are built.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from astitch.errors import EngineUnavailable, OutOfMemory, UnsupportedType
from astitch.graph.ir import ConvolutionAttrs, DotAttrs
from astitch.library.xla_fallback import CompilerOptions
from astitch.program.steps import Buffer, CudaKernel, KernelStep, LibraryStep, Program
from astitch.run.cuda_graph import GraphCounts
from astitch.run.device_array import DeviceArray, JaxHandover
from astitch.run.device_memory import DeviceMemory, is_shortage
from astitch.run.gpu_arguments import GpuArguments
from astitch.run.gpu_call import Call, DirectProduct, PreparedStep
from astitch.run.gpu_convolutions import ConvolutionSteps
from astitch.run.gpu_fallbacks import OutsideSteps
from astitch.run.gpu_kernels import KernelSteps
from astitch.run.gpu_products import ProductSteps
from astitch.run.graph_runs import GraphReplay, make_runs
from astitch.run.program_binding import ProgramBinding, StepMakers, name_step, store_constants
from astitch.run.result_memory import MOST_FREE, ResultPool, give_back_all
from astitch.run.stream_turns import StreamTurns, wait_for_event

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


# ---- the executor ----------------------------------------------------------------------------------------------


SMALL_BYTES, MOST_SMALL = 1024, 8
"""Small results are what callers keep, losses for one.  They are copied out of a place that stays the same, so that the
other addresses of a call can repeat.  Of a program with more of them than that, they are not."""

_WORD_BYTES = 4

KEPT_SHARE = 16
"""Free memory of results is kept up to this part of the GPU's."""


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
    compiler_options: see compile_fallback.
    Raises EngineUnavailable without CuPy or a GPU, and UnsupportedType for buffers of types that CuPy does not know.
    Raises KernelCompileError, FallbackRefused and OutOfMemory.  Raises LaunchRefused for a kernel whose blocks wait for
    each other but cannot all be resident.
    """

    def __init__(
        self,
        program: Program,
        device: int | None = None,
        *,
        moves: bool = True,
        compiler_options: CompilerOptions = MappingProxyType({}),
    ) -> None:
        _refuse_opaque_buffers(program)
        cupy = self.cupy = import_cupy()
        self.program = program
        self._compiler_options = compiler_options
        self.device = cupy.cuda.Device(device)
        self.graph_counts = GraphCounts()
        self._lock = threading.Lock()
        self._handover = JaxHandover(cupy, self.device)
        with self.device:
            memory = self._memory = DeviceMemory(cupy, self.device.id, program.name)
            self._binding = self._bind_memory()
            self._arguments = GpuArguments(
                program, self._binding, memory, self._handover, cupy, self.device.id, moves=moves
            )
            self._turns = StreamTurns(cupy, memory, self._arguments.forget)
            self._prepare_steps()
            # The zeroed arena and the constants are there before any stream uses them.
            cupy.cuda.runtime.deviceSynchronize()
        # What is under way when the last reference goes uses arena, constants and graphs.
        weakref.finalize(self, wait_for_event, self._turns.end).atexit = False

    # -- before the first call --

    def _bind_memory(self) -> ProgramBinding[int]:
        """The addresses of arena and constants, whose memory lives as long as this."""
        program, memory = self.program, self._memory
        self._arena = memory.allocate(program.arena_bytes, "the arena")
        self.cupy.cuda.runtime.memset(self._arena.ptr, 0, program.arena_bytes)
        self._constants = store_constants(program, memory.upload)
        addresses = [int(constant.ptr) for constant in self._constants]
        return ProgramBinding(program, addresses, lambda b: int(self._arena.ptr) + b.offset)

    def _prepare_steps(self) -> None:
        """What launches each step, and in which runs."""
        program, memory, cupy, number = self.program, self._memory, self.cupy, self.device.id
        self._kernels = KernelSteps(program, memory, cupy, self.device)
        self._fallbacks = OutsideSteps(
            program, memory, self._turns, self._handover, number, self._compiler_options
        )
        self._products = ProductSteps(memory, cupy, number)
        self._convolutions = ConvolutionSteps(memory, cupy, number, self._fallbacks.prepare_library)
        makers = StepMakers(
            self._kernels.prepare,
            self._fallbacks.prepare_fallback,
            self._prepare_library,
            self._fallbacks.prepare_reference,
        )
        self._apart = makers.make_all(program)
        joined = self._products.join_epilogues(program, self._apart)
        self._steps = joined.steps
        made_by_xla = self._fallbacks.made_by_xla
        outputs = [b for b in self._binding.outputs if b.name not in made_by_xla]
        small = _find_small_results(outputs)
        # What XLA makes lies where XLA puts it, whatever place its buffer has.
        still = {*self._binding.fixed, *(b.name for b in small)} - made_by_xla
        self._runs = make_runs(program, self._steps, still, joined.read, self.graph_counts)
        if any(run.graphs is not None for run in self._runs):
            self._land_small_results(small)
            outputs = [b for b in outputs if b not in small]
            self._replay = GraphReplay(cupy, memory, self.graph_counts)
        sizes = [(b.name, b.type.bytes) for b in outputs]
        kept = self.device.mem_info[1] // KEPT_SHARE // max(sum(n for _, n in sizes), 1)
        self._results = ResultPool(sizes, min(MOST_FREE, kept))

    def _prepare_library(self, step: LibraryStep) -> PreparedStep:
        """Through a library that is called from here, else through XLA."""
        found = None
        if isinstance(step.node.attrs, DotAttrs):
            found = self._products.prepare(step, step.node.attrs)
        if isinstance(step.node.attrs, ConvolutionAttrs):
            found = self._convolutions.prepare(step, step.node.attrs)
        return self._fallbacks.prepare_library(step) if found is None else found

    def _land_small_results(self, small: Sequence[Buffer]) -> None:
        """Gives small results a place that stays the same."""
        landing = self._landing = self._memory.allocate(SMALL_BYTES * len(small), "small results")
        for number, buffer in enumerate(small):
            self._arguments.addresses[buffer.name] = int(landing.ptr) + SMALL_BYTES * number

    # -- calls --

    def run(self, arguments: Sequence[Any]) -> list[DeviceArray]:
        """The outputs, new arrays that share memory with no argument; ready in the order of CuPy's current stream.

        arguments: one array for each parameter, of its shape and dtype: NumPy arrays are copied to the device,
        DeviceArrays, CuPy and JAX arrays are used where they lie.  They are only read.  Raises ArgumentMismatch,
        OutOfMemory, after which the next call finds all as it was.
        """
        with self.device, self._lock:
            stream = self.cupy.cuda.get_current_stream()
            self._turns.begin(stream)
            call = self._place_buffers(arguments, stream.ptr)
            try:
                for run in self._runs:
                    if run.graphs is None or not self._replay.replay(run, run.graphs, call, stream):
                        for launch in run.launches:
                            launch(call)
                            call.step += 1
                return self._take_outputs(call)
            except Exception as error:
                if isinstance(error, OutOfMemory) or is_shortage(error):
                    call.outputs.clear()
                    give_back_all()
                if not is_shortage(error):
                    raise
                names = [*map(name_step, self.program.steps), "the results"]
                raise self._memory.no_room(f"step {call.step}, {names[call.step]}", error) from None
            finally:  # what was launched before a failure still uses the arena and the arguments
                self._turns.finish(stream, call.in_use)

    def run_to_jax(self, arguments: Sequence[Any], *, committed: bool = True) -> list[Any]:
        """What run gives, as JAX arrays: on the same memory where JAX runs on this GPU, else copies.

        committed: is that memory where the arrays stay?  Copies are not committed.
        """
        results = self.run(arguments)
        device = self._handover.device
        if device is None:
            return [array.to_jax() for array in results]
        # JAX may have to narrow wider numbers, and shares no array without elements.
        alike = [a for a in results if a.type.size and a.type.dtype.bytes <= _WORD_BYTES]
        with self.device:
            end = self._turns.end
            adopted = iter(self._handover.adopt(alike, device, end, committed=committed))
        return [
            next(adopted)
            if a.type.size and a.type.dtype.bytes <= _WORD_BYTES
            else a.to_jax(committed=committed)
            for a in results
        ]

    # -- for engines that launch the kernels themselves --

    def constant_address(self, index: int) -> int:
        """Where constant `index` of the program lies."""
        return int(self._constants[index].ptr)

    def function_address(self, kernel: CudaKernel) -> int:
        """The CUfunction of one of the program's kernels, its shared memory allowed and its residency proved."""
        return self._kernels.function_address(kernel)

    def can_capture(self, number: int) -> bool:
        """Can a CUDA graph repeat this step?"""
        return self._apart[number].can_capture

    def find_product(self, number: int) -> DirectProduct | None:
        """The product that a step is, if it is nothing else."""
        return self._apart[number].product

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
        with self.device, self._lock, self._memory.stream_at(stream) as there:
            self._memory.leave_rooms()  # those of a step that was broken off
            call = Call((), {}, dict(addresses), stream, [])
            if captured:
                with self._memory.working_in_rooms(self.cupy.cuda.Stream.null):
                    self._apart[number].launch(call)
                return
            self._apart[number].launch(call)
            for view in step.results:
                found = call.addresses[view.buffer]
                if found != addresses[view.buffer]:  # XLA puts its results where it likes
                    self._memory.copy(addresses[view.buffer], found, view.type.bytes, stream)
            if call.in_use:
                self._turns.keep(call.in_use, there)
            self._turns.let_go()

    # -- memory of a call --

    def _place_buffers(self, arguments: Sequence[Any], stream: int) -> Call:
        placed, in_use = self._arguments.place(arguments, stream)
        outputs: dict[str, Any] = dict(self._results.take(stream, self._memory.allocate))
        self._memory.wait_for_readers()
        addresses = self._arguments.addresses.copy()
        for name, memory in outputs.items():
            addresses[name] = memory.ptr
        # The call holds `placed` until all is launched.  Copies of host arguments then go back to CuPy's pool,
        # which hands memory on in the order of the stream.
        return Call(placed, outputs, addresses, stream, in_use)

    def _take_outputs(self, call: Call) -> list[DeviceArray]:
        """One array for each output; a small result, too, is copied out of its place."""
        outputs = []
        for result in self._binding.results:
            view = result.view
            pointer, memory = call.addresses[view.buffer], call.outputs.get(view.buffer)
            if memory is None or not result.is_own:
                memory = self._memory.allocate(view.type.bytes, f"output {view.buffer}")
                self._memory.copy(int(memory.ptr), pointer, view.type.bytes, call.stream)
                pointer = int(memory.ptr)
            outputs.append(DeviceArray(pointer, view.type, memory))
        return outputs


def _find_small_results(outputs: Sequence[Buffer]) -> list[Buffer]:
    small = [buffer for buffer in outputs if buffer.type.bytes <= SMALL_BYTES]
    return small if len(small) <= MOST_SMALL else []
