"""A program's memory on a GPU: allocations, copies, and what to do when room is short.

Takes numbers of bytes and arrays of the host, hands on memory of CuPy's.  While a launch is captured into a CUDA graph,
memory comes from rooms that all captured launches share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from astitch.device.cuda_driver import StreamAddress
from astitch.errors import AstitchError, OutOfMemory
from astitch.run.cuda_graph import WorkRooms
from astitch.run.dlpack_export import last_released, wait_for_jax
from astitch.run.result_memory import give_back_all

_SHORTAGES = ("OutOfMemoryError", "OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "ALLOC_FAILED")
"""Names of shortage in errors of CuPy, of the driver (a kernel's stack), of the runtime and of cuBLAS (its
workspace)."""


def is_shortage(error: Exception) -> bool:
    """Does the error of another library say that memory is short?"""
    text = f"{type(error).__name__}: {error}"
    return not isinstance(error, AstitchError) and any(word in text for word in _SHORTAGES)


class DeviceMemory:
    """Memory of one GPU for one program, whose name stands in messages.  Not safe between threads.

    device: CUDA's number of the current device.
    """

    def __init__(self, cupy: Any, device: int, program: str) -> None:
        self._cupy, self._device, self._program = cupy, device, program
        self._released = 0  # by JAX, when a stream waited last for what it computes
        # While launches are captured: where they find memory, and the stream of the call.
        self._rooms: WorkRooms | None = None
        self._outside: Any = None
        self._work_rooms = WorkRooms(self.allocate_outside)

    def allocate(self, count: int, what: str) -> Any:
        """Device memory of `count` bytes (at least one, so that it has an address of its own).  Raises OutOfMemory."""
        allocate = self._allocate_unread if self._rooms is None else self._rooms.take
        try:
            return allocate(max(count, 1))
        except self._cupy.cuda.memory.OutOfMemoryError:
            give_back_all()
        try:
            return allocate(max(count, 1))
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise self.no_room(f"{what}, {count} bytes", error) from None

    def allocate_outside(self, count: int) -> Any:
        """Memory that is no part of the graph that is being captured."""
        with self._outside:
            return self._allocate_unread(count)

    def _allocate_unread(self, count: int) -> Any:
        """Memory that the current stream may write.  Asked then: JAX lets go of memory at any time."""
        memory = self._cupy.cuda.alloc(count)
        self.wait_for_readers()
        return memory

    def wait_for_readers(self, stream: Any = None) -> None:
        """What JAX let go of may be written now, in the order of the stream: the current one unless it is given."""
        released = last_released()
        if released != self._released:
            wait_for_jax(self._device, (stream or self._cupy.cuda.get_current_stream()).ptr)
            self._released = released

    def no_room(self, what: str, error: Exception) -> OutOfMemory:
        """The error to raise."""
        return OutOfMemory(
            f"program {self._program}: no room for {what}: {error}\n"
            "  free arrays, call cupy.get_default_memory_pool().free_all_blocks(), or set "
            "XLA_PYTHON_CLIENT_PREALLOCATE=false so that JAX leaves room"
        )

    # -- rooms of captured launches --

    @property
    def is_capturing(self) -> bool:
        """Is a launch being captured?"""
        return self._rooms is not None

    @contextmanager
    def working_in_rooms(self, outside: Any) -> Iterator[None]:
        """While one launch is captured, it allocates where all captured launches do. outside: a stream that is not
        capturing."""
        self._rooms, self._outside = self._work_rooms, outside
        self._work_rooms.begin_launch()
        try:
            yield
        finally:
            self._rooms = self._outside = None

    def leave_rooms(self) -> None:
        """Stop allocating in rooms after a capture that was broken off."""
        self._rooms = self._outside = None

    # -- copies --

    def stream_at(self, address: int) -> Any:
        """CuPy's stream for a CUstream of the caller's."""
        return self._cupy.cuda.Stream.from_external(StreamAddress(address))

    def upload(self, array: np.ndarray, what: str) -> Any:
        """Device memory with the row-major bytes of a host array, ready in the order of the current stream."""
        memory = self.allocate(array.nbytes, what)
        self.write(int(memory.ptr), array, self._cupy.cuda.get_current_stream().ptr)
        return memory

    def write(self, pointer: int, array: np.ndarray, stream: int) -> None:
        """Enqueue a copy of a host array, row-major, in native byte order."""
        host = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        runtime = self._cupy.cuda.runtime
        if host.nbytes:
            # From pageable memory this returns once the bytes are staged: `host` may go.
            runtime.memcpyAsync(
                pointer, host.ctypes.data, host.nbytes, runtime.memcpyHostToDevice, stream
            )

    def copy(self, to: int, source: int, count: int, stream: int) -> None:
        """Enqueue a copy of `count` bytes."""
        runtime = self._cupy.cuda.runtime
        if count:
            runtime.memcpyAsync(to, source, count, runtime.memcpyDeviceToDevice, stream)
