"""Runs a Program on a machine without a GPU: the emitted CUDA text through the host emulation.

Takes a Program and NumPy arrays, hands on NumPy arrays.  Products run through the reference interpreter, what nothing
of ours computes through XLA.  With `check` every memory access of a kernel is watched and stale memory is poisoned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from astitch.device.gpu import ACCESS_BYTES
from astitch.errors import AstitchError, KernelCompileError, OutOfMemory
from astitch.graph.reference import eval_node
from astitch.library.xla_fallback import (
    CompilerOptions,
    compile_fallback,
    host_device,
    put_array,
)
from astitch.program.steps import (
    ALIGNMENT_BYTES,
    FallbackStep,
    KernelStep,
    LibraryStep,
    Program,
    ReferenceStep,
    Space,
    View,
)
from astitch.run.emulate import HostModule, compile_many
from astitch.run.program_binding import (
    ArgumentTypes,
    ProgramBinding,
    StepMakers,
    store_constants,
)
from astitch.system.forks import ForkLock

POISON = 0xFF
"""A byte whose repetition is a NaN in every float type and -1 in every signed integer type."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One call.  memory: the bytes of every buffer, by name.  readable: the buffers that steps may read by now."""

    memory: dict[str, np.ndarray]
    readable: set[str]

    def view(self, view: View) -> np.ndarray:
        """The array that a view shows."""
        return self.memory[view.buffer].view(view.type.dtype.numpy).reshape(view.type.shape)

    def write(self, views: Sequence[View], arrays: Sequence[np.ndarray]) -> None:
        """The results of a step, in their buffers."""
        for view, array in zip(views, arrays, strict=True):
            np.copyto(self.view(view), array, casting="no")
            self.readable.add(view.buffer)


Launch = Callable[[_Call], None]


class HostEngine:
    """A Program ready to run; may be called from several threads, which take turns.

    check: kernels run in the emulation's check mode (races, bounds, uninitialised reads), 5 to 10 times slower.  What a
    call must not read is filled with POISON before it.  compiler_options: see compile_fallback.
    Raises KernelCompileError where g++ is missing, EngineUnavailable where JAX is and the program has fallbacks,
    FallbackRefused, OutOfMemory.
    """

    def __init__(
        self,
        program: Program,
        *,
        check: bool = False,
        compiler_options: CompilerOptions = MappingProxyType({}),
    ) -> None:
        self.program = program
        self.check = check
        self._compiler_options = compiler_options
        sources = list(dict.fromkeys(kernel.source for kernel in program.kernels))
        try:
            compiled = compile_many(sources, check)
        except KernelCompileError as error:
            error.kernel = next((k.name for k in program.kernels if k.source == error.source), "")
            raise
        self._modules: dict[str, HostModule] = dict(zip(sources, compiled, strict=True))
        makers = StepMakers(
            self._prepare_kernel, self._prepare_fallback, _prepare_reference, _prepare_reference
        )
        self._launches = makers.make_all(program)
        constants = store_constants(program, lambda array, _: copy_aligned(array))
        # Zero, so that barrier words start at zero; they then carry over from call to call.
        self._arena = allocate_aligned(program.arena_bytes)
        self._arena.fill(0)
        self._types = ArgumentTypes(program)
        self._binding = ProgramBinding(
            program, constants, lambda b: self._arena[b.offset : b.offset + b.type.bytes]
        )
        self._readable_at_first = frozenset(
            name
            for name, buffer in program.buffers.items()
            if buffer.space in (Space.PARAMETER, Space.CONSTANT, Space.BARRIER)
        )
        self._lock = ForkLock()

    def run(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs, new row-major arrays that share memory with nothing.

        arguments: one array for each parameter, of its shape and dtype, on the host; any strides and byte order;
        they are only read.  Raises ArgumentMismatch, OutOfMemory, and KernelFault for what a kernel did wrong.
        """
        arrays = [np.asarray(argument) for argument in arguments]
        self._types.check(
            [self._types.find(i, a.dtype.newbyteorder("="), a.shape) for i, a in enumerate(arrays)]
        )
        with self._lock:
            call = self._place_buffers([_prepare_argument(a) for a in arrays])
            self._run_steps(call)
            return self._take_outputs(call)

    def _place_buffers(self, arguments: Sequence[np.ndarray]) -> _Call:
        if self.check:
            self._poison_arena()
        memory = self._binding.fixed.copy()
        for names, argument in zip(self._binding.parameters, arguments, strict=True):
            memory.update(dict.fromkeys(names, argument))
        for buffer in self._binding.outputs:
            memory[buffer.name] = allocate_aligned(buffer.type.bytes)
            if self.check:
                memory[buffer.name].fill(POISON)
        return _Call(memory, set(self._readable_at_first))

    def _poison_arena(self) -> None:
        """Fills the arena with POISON, but not the barrier words, whose state carries over."""
        words = [b for b in self.program.buffers.values() if b.space is Space.BARRIER]
        kept = [(b.offset, self._arena[b.offset : b.offset + b.type.bytes].copy()) for b in words]
        self._arena.fill(POISON)
        for offset, word in kept:
            self._arena[offset : offset + word.size] = word

    def _run_steps(self, call: _Call) -> None:
        for number, launch in enumerate(self._launches):
            try:
                launch(call)
            except AstitchError as error:
                error.add_note(
                    f"in step {number} of {len(self.program.steps)} of program {self.program.name}"
                )
                raise

    def _prepare_kernel(self, step: KernelStep) -> Launch:
        kernel = step.kernel
        names = [view.buffer for view in step.arguments]

        def launch(call: _Call) -> None:
            self._modules[kernel.source].launch(
                kernel.name,
                kernel.grid,
                kernel.block,
                [call.view(view) for view in step.arguments],
                shared_bytes=kernel.shared_bytes,
                cooperative=kernel.cooperative,
                pointer_table=kernel.pointer_table,
                uninitialised=[i for i, name in enumerate(names) if name not in call.readable],
                names=names,
            )
            call.readable.update(names[i] for i in step.written)

        return launch

    def _prepare_fallback(self, step: FallbackStep) -> Launch:
        what = f"{self.program.name}, {step.name}"
        fallback = compile_fallback(step.hlo, host_device(), what, self._compiler_options)

        def run(call: _Call) -> None:
            operands = [put_array(call.view(view), fallback.device) for view in step.operands]
            call.write(step.results, [np.asarray(result) for result in fallback.run(operands)])

        return run

    def _take_outputs(self, call: _Call) -> list[np.ndarray]:
        return [
            call.view(result.view) if result.is_own else call.view(result.view).copy()
            for result in self._binding.results
        ]


def _prepare_reference(step: LibraryStep | ReferenceStep) -> Launch:
    def interpret(call: _Call) -> None:
        call.write(step.results, eval_node(step.node, [call.view(view) for view in step.operands]))

    return interpret


def allocate_aligned(count: int) -> np.ndarray:
    """`count` bytes (u8) whose address is a multiple of ALIGNMENT_BYTES.  Raises OutOfMemory."""
    try:
        room = np.empty(count + ALIGNMENT_BYTES, np.uint8)
    except MemoryError:
        raise OutOfMemory(
            f"the host has no room for {count} bytes of a program\n"
            "  free memory, or run the program on a device that holds its arrays"
        ) from None
    start = -room.ctypes.data % ALIGNMENT_BYTES
    return room[start : start + count]


def copy_aligned(array: np.ndarray) -> np.ndarray:
    """The bytes (u8) of a row-major copy of `array`, at a multiple of ALIGNMENT_BYTES.  Raises OutOfMemory."""
    fresh = allocate_aligned(array.nbytes)
    np.copyto(fresh.view(array.dtype.newbyteorder("=")).reshape(array.shape), array)
    return fresh


def _prepare_argument(array: np.ndarray) -> np.ndarray:
    """The bytes of an argument as a kernel can read them, read-only: its own where they are row-major, native
    and aligned, else a copy's.
    """
    ready = (
        array.flags.c_contiguous and array.dtype.isnative and not array.ctypes.data % ACCESS_BYTES
    )
    flat = array.reshape(-1).view(np.uint8) if ready else copy_aligned(array)
    flat = flat.view()
    flat.flags.writeable = False
    return flat
