"""The arguments of a call, on one GPU.

Takes arrays of NumPy, CuPy and JAX, hands on DeviceArrays: where they lie if they are there, row-major and aligned,
else copies.  JAX arrays that come call after call in the same place are not looked at again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from astitch.device.gpu import ACCESS_BYTES
from astitch.errors import OtherDevice
from astitch.program.steps import Program
from astitch.run.device_array import DeviceArray, JaxHandover, is_jax
from astitch.run.device_memory import DeviceMemory
from astitch.run.program_binding import ArgumentTypes, ProgramBinding
from astitch.run.result_memory import follows_stream


class GpuArguments:
    """Places the arguments of one program's calls.  Not safe between threads.

    device: CUDA's number of the GPU.  moves: copy JAX arrays that were put on another device, where JAX has this GPU;
    without it they raise OtherDevice.  addresses: the fixed ones with those of the parameters of the latest call.
    """

    def __init__(
        self,
        program: Program,
        binding: ProgramBinding[int],
        memory: DeviceMemory,
        handover: JaxHandover,
        cupy: Any,
        device: int,
        *,
        moves: bool,
    ) -> None:
        self._memory, self._handover, self._cupy = memory, handover, cupy
        self._device, self._moves = device, moves
        self._types = ArgumentTypes(program)
        self._wanted = self._types.wanted
        self._buffers = binding.parameters
        self.addresses = binding.fixed.copy()
        # What is known of the few shardings and layouts that JAX's arrays have.
        self._is_here: dict[Any, bool] = {}
        self._is_row_major: dict[Any, bool] = {}
        # The JAX array that came last as each argument, and where it lies.
        self._recalled: list[Callable[[], Any]] = [_nothing] * len(program.parameters)
        self._placed = [DeviceArray(0, view.type, None) for view in program.parameters]
        self._held: set[int] = set()  # arguments that JAX would give to others while we read them

    def place(self, arguments: Sequence[Any], stream: int) -> tuple[list[DeviceArray], list[Any]]:
        """The arguments on this device, whose addresses are then in `addresses`; and the arrays that must stay alive
        until the call has ended.  Raises ArgumentMismatch, OtherDevice, OutOfMemory."""
        if len(arguments) != len(self._recalled):
            placed = [self._place_argument(n, a, stream) for n, a in enumerate(arguments)]
            self.forget()
            self._types.check([array.type for array in placed])
        # JAX arrays that were ready when they came in the same place before need no second look: weights come call
        # after call.  They do not move or change, but they may be deleted.
        changed = [
            number
            for number, (recall, argument) in enumerate(zip(self._recalled, arguments, strict=True))
            if recall() is not argument or argument is None or argument.is_deleted()
        ]
        placed = self._placed.copy()
        in_use = []
        for number in changed:
            array = placed[number] = self._place_argument(number, arguments[number], stream)
            for name in self._buffers[number]:
                self.addresses[name] = array.pointer
            if is_jax(array.owner) and number not in self._held:
                in_use.append(array.owner)
        if any(placed[number].type is not self._wanted[number] for number in changed):
            self.forget()
            self._types.check([array.type for array in placed])
        in_use += [arguments[number] for number in self._held]
        return placed, in_use

    def forget(self) -> None:
        """The next call looks at all of its arguments."""
        self._recalled = [_nothing] * len(self._recalled)
        self._held.clear()

    def _place_argument(self, number: int, argument: Any, stream: int) -> DeviceArray:
        """The argument on this device: where it lies if it is there, row-major and aligned, else a copy."""
        if number < len(self._recalled):
            self._recalled[number] = _nothing
            self._held.discard(number)
        if isinstance(argument, DeviceArray):
            return argument
        try:
            if isinstance(argument, self._cupy.ndarray):
                return self._place_cupy(argument, number)
            if is_jax(argument):
                return self._place_jax(argument, number, stream)
            if hasattr(argument, "__cuda_array_interface__"):
                return self._place_cupy(self._cupy.asarray(argument), number)
            return self._place_host(np.asarray(argument), number)
        except self._cupy.cuda.memory.OutOfMemoryError as error:  # of a copy that CuPy makes
            raise self._memory.no_room(f"a copy of argument {number}", error) from None

    def _place_host(self, array: np.ndarray, number: int) -> DeviceArray:
        type_ = self._types.find(number, array.dtype.newbyteorder("="), array.shape)
        memory = self._memory.upload(array, f"argument {number}")
        return DeviceArray(int(memory.ptr), type_, memory)

    def _place_cupy(self, array: Any, number: int) -> DeviceArray:
        type_ = self._types.find(number, array.dtype, array.shape)
        if array.device.id != self._device:
            array = self._cupy.asarray(array)  # copies to the current device
        if not array.flags.c_contiguous or (array.data.ptr % ACCESS_BYTES and array.nbytes):
            array = array.copy(order="C")
        return DeviceArray(int(array.data.ptr), type_, array)

    def _place_jax(self, array: Any, number: int, stream: int) -> DeviceArray:
        if array.is_deleted():  # JAX says so here, and crashes where its layout is asked for
            array.block_until_ready()
        type_ = self._types.find(number, array.dtype, array.shape)
        here = self._is_here.get(array.sharding)
        if here is None:
            device, *others = array.devices()
            if others:
                raise OtherDevice(
                    f"argument {number} ({type_}) is spread over {1 + len(others)} devices; astitch runs on one\n"
                    "  bring it to one device with jax.device_put"
                )
            here = device.platform == "gpu" and device.local_hardware_id == self._device
            self._is_here[array.sharding] = here
        if not (here or self._moves) and self._handover.device is not None and array.committed:
            (device,) = array.devices()
            raise OtherDevice(
                f"argument {number} ({type_}) lies on {device}; astitch runs on {self._handover.device}\n"
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


_NOTHING = object()


def _nothing() -> object:
    """What no argument is."""
    return _NOTHING
