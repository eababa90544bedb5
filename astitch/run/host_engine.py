"""Runs a Program on a machine without a GPU: the emitted CUDA text through the host emulation.

Takes a Program and NumPy arrays, hands on NumPy arrays.  Products run through the reference interpreter, what nothing
of ours computes through XLA.  With `check` every memory access of a kernel is watched and stale memory is poisoned.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astitch.device.gpu import ACCESS_BYTES
from astitch.errors import (
    ArgumentMismatch,
    AstitchError,
    KernelCompileError,
    OutOfMemory,
    UnsupportedType,
)
from astitch.graph.ir import ArrayType, DType
from astitch.graph.reference import eval_node
from astitch.library.xla_fallback import Island, compile_island, host_device, put_array
from astitch.program.steps import (
    ALIGNMENT_BYTES,
    Buffer,
    IslandStep,
    KernelStep,
    LibraryStep,
    Program,
    ReferenceStep,
    Space,
    View,
)
from astitch.run.emulate import HostModule, compile_many
from astitch.system.forks import ForkLock

POISON = 0xFF
"""A byte whose repetition is a NaN in every float type and -1 in every signed integer type."""


class HostEngine:
    """A Program ready to run; may be called from several threads, which take turns.

    check: kernels run in the emulation's check mode (races, bounds, uninitialised reads: 5 to 10 times slower), and
    what a call must not read is filled with POISON before it.  Raises KernelCompileError where g++ is missing,
    EngineUnavailable where JAX is and the program has islands, IslandRefused, OutOfMemory.
    """

    def __init__(self, program: Program, *, check: bool = False) -> None:
        self.program = program
        self.check = check
        sources = list(dict.fromkeys(kernel.source for kernel in program.kernels))
        try:
            compiled = compile_many(sources, check)
        except KernelCompileError as error:
            error.kernel = next((k.name for k in program.kernels if k.source == error.source), "")
            raise
        self._modules: dict[str, HostModule] = dict(zip(sources, compiled, strict=True))
        self._islands = {
            step.name: compile_island(step.hlo, host_device(), f"{program.name}, {step.name}")
            for step in program.steps
            if isinstance(step, IslandStep)
        }
        self._constants = [_copy_aligned(literal.numpy()) for _, literal in program.constants]
        # Zero, so that barrier words start at zero; they then carry over from call to call.
        self._arena = allocate_aligned(program.arena_bytes)
        self._arena.fill(0)
        self._lock = ForkLock()

    def run(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs, new row-major arrays that share memory with nothing.

        arguments: one array for each parameter, of its shape and dtype, on the host; any strides and byte order;
        they are only read.  Raises ArgumentMismatch, OutOfMemory, and KernelFault for what a kernel did wrong.
        """
        arrays = [np.asarray(argument) for argument in arguments]
        self.program.check_arguments([_type_of(number, a) for number, a in enumerate(arrays)])
        with self._lock:
            memory = self._place_buffers([_prepare_argument(a) for a in arrays])
            self._run_steps(memory)
            return self._take_outputs(memory)

    def _place_buffers(self, arguments: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The bytes of every buffer, by name, for one call."""
        if self.check:
            self._poison_arena()
        memory: dict[str, np.ndarray] = {}
        for name, buffer in self.program.buffers.items():
            memory[name] = self._bytes_of(buffer, arguments)
        return memory

    def _bytes_of(self, buffer: Buffer, arguments: Sequence[np.ndarray]) -> np.ndarray:
        match buffer.space:
            case Space.PARAMETER:
                return arguments[buffer.index]
            case Space.CONSTANT:
                return self._constants[buffer.index]
            case Space.OUTPUT:
                fresh = allocate_aligned(buffer.type.bytes)
                if self.check:
                    fresh.fill(POISON)
                return fresh
            case Space.ARENA | Space.BARRIER:
                return self._arena[buffer.offset : buffer.offset + buffer.type.bytes]

    def _poison_arena(self) -> None:
        """Fills the arena with POISON, but not the barrier words, whose state carries over."""
        words = [b for b in self.program.buffers.values() if b.space is Space.BARRIER]
        kept = [(b.offset, self._arena[b.offset : b.offset + b.type.bytes].copy()) for b in words]
        self._arena.fill(POISON)
        for offset, word in kept:
            self._arena[offset : offset + word.size] = word

    def _run_steps(self, memory: dict[str, np.ndarray]) -> None:
        readable = {
            name
            for name, buffer in self.program.buffers.items()
            if buffer.space in (Space.PARAMETER, Space.CONSTANT, Space.BARRIER)
        }
        for number, step in enumerate(self.program.steps):
            try:
                match step:
                    case KernelStep():
                        self._launch(step, memory, readable)
                        readable.update(step.arguments[i].buffer for i in step.written)
                    case IslandStep():
                        _run_island(self._islands[step.name], step, memory)
                        readable.update(view.buffer for view in step.results)
                    case LibraryStep() | ReferenceStep():
                        operands = [_array_of(memory, view) for view in step.operands]
                        results = eval_node(step.node, operands)
                        for view, result in zip(step.results, results, strict=True):
                            np.copyto(_array_of(memory, view), result, casting="no")
                            readable.add(view.buffer)
            except AstitchError as error:
                error.add_note(
                    f"in step {number} of {len(self.program.steps)} of program {self.program.name}"
                )
                raise

    def _launch(self, step: KernelStep, memory: dict[str, np.ndarray], readable: set[str]) -> None:
        kernel = step.kernel
        uninitialised = [i for i, v in enumerate(step.arguments) if v.buffer not in readable]
        self._modules[kernel.source].launch(
            kernel.name,
            kernel.grid,
            kernel.block,
            [_array_of(memory, view) for view in step.arguments],
            shared_bytes=kernel.shared_bytes,
            cooperative=kernel.cooperative,
            pointer_table=kernel.pointer_table,
            uninitialised=uninitialised,
            names=[view.buffer for view in step.arguments],
        )

    def _take_outputs(self, memory: dict[str, np.ndarray]) -> list[np.ndarray]:
        """One array for each output; only the first view of an OUTPUT buffer is handed on without a copy."""
        taken: set[str] = set()
        outputs = []
        for view in self.program.outputs:
            array = _array_of(memory, view)
            own = self.program.buffers[view.buffer].space is Space.OUTPUT
            outputs.append(array if own and view.buffer not in taken else array.copy())
            taken.add(view.buffer)
        return outputs


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


def _type_of(number: int, array: np.ndarray) -> ArrayType:
    try:
        return ArrayType(DType.of(array.dtype.newbyteorder("=")), array.shape)
    except UnsupportedType as error:
        raise ArgumentMismatch(f"argument {number}: {error}\n  pass an array of numbers") from None


def _array_of(memory: dict[str, np.ndarray], view: View) -> np.ndarray:
    return memory[view.buffer].view(view.type.dtype.numpy).reshape(view.type.shape)


def _run_island(island: Island, step: IslandStep, memory: dict[str, np.ndarray]) -> None:
    operands = [put_array(_array_of(memory, view), island.device) for view in step.operands]
    for view, result in zip(step.results, island.run(operands), strict=True):
        np.copyto(_array_of(memory, view), np.asarray(result), casting="no")


def _copy_aligned(array: np.ndarray) -> np.ndarray:
    """The bytes of a row-major copy of `array`."""
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
    flat = array.reshape(-1).view(np.uint8) if ready else _copy_aligned(array)
    flat = flat.view()
    flat.flags.writeable = False
    return flat
