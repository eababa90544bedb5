"""Row-major arrays in GPU memory, and how they become JAX's and CuPy's.

Takes addresses of GPU memory, hands on arrays of NumPy, CuPy and JAX.  JAX gets them through DLPack, on the same
memory.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astitch.graph.ir import ArrayType, DType
from astitch.library.xla_fallback import find_device
from astitch.run.dlpack_export import Exported
from astitch.run.result_memory import note_array

log = logging.getLogger("astitch")


def is_jax(argument: Any) -> bool:
    """Is an argument, or the owner of a DeviceArray, a JAX array?  JAX is not imported for that."""
    return hasattr(argument, "unsafe_buffer_pointer")


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
        return array.copy() if is_jax(self.owner) else array

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

    def to_jax(self, *, committed: bool = True) -> Any:
        """A JAX array on the same memory where JAX runs on the GPU, else a copy, which is never committed."""
        import jax

        if jax.default_backend() != "gpu" or not self.type.size:
            return jax.device_put(self.to_numpy())
        return self.share_with_jax(committed=committed)

    def share_with_jax(self, *, committed: bool = True) -> Any:
        """A JAX array on the same memory, of at least one element; ready when CuPy's current stream has come here,
        and JAX, which does not own the memory, never gives it to another array."""
        import jax

        array = jax.dlpack.from_dlpack(self._to_dlpack())
        return self._noted(array if committed else _uncommit(array))

    def adopt_by_jax(self, device: Any, queue: int, *, committed: bool = True) -> Any:
        """A JAX array of exactly this type on the same memory, of at least one element.  The device is JAX's, and so is
        the stream, which waits for this array already.

        As jax.dlpack does it, a tenth of whose time goes into the array.
        """
        from jax._src.lib import _jax  # type: ignore[attr-defined]

        capsule = self._to_dlpack().__dlpack__(stream=_NO_WAIT)
        array = _jax.dlpack_managed_tensor_to_buffer(capsule, device, queue, None, _DLPACK_CUDA)
        return self._noted(array if committed else _uncommit(array))

    def _noted(self, array: Any) -> Any:
        """The JAX array that this one became; not where it only shows an argument of a fallback to XLA."""
        if self.owner is not None:
            note_array(self.pointer, array)
        return array

    def _to_dlpack(self) -> Any:
        """The array as an object of DLPack's protocol."""
        import cupy

        dtype = self.type.dtype
        # DLPack names bool and the numbers; the narrow floats travel as words of their size.
        carrier = _DLPACK_CARRIER.get(dtype, dtype.numpy)
        owner = None if self.owner is None else Exported(self.owner)
        memory = cupy.cuda.UnownedMemory(self.pointer, self.type.bytes, owner)
        words = cupy.ndarray(self.type.shape, carrier, cupy.cuda.MemoryPointer(memory, 0))
        is_known = dtype not in _DLPACK_CARRIER and words.__dlpack_device__()[0] != _DLPACK_MANAGED
        return words if is_known else _RenamedDlpack(words, dtype)


def _uncommit(array: Any) -> Any:
    """The same JAX array, free to move to another device.  DLPack's arrays are committed to theirs."""
    return type(array)(array.aval, array.sharding, [array], committed=False, _skip_checks=True)


_DLPACK_CARRIER = {
    DType.BF16: np.dtype(np.uint16),
    DType.F8E4M3FN: np.dtype(np.uint8),
    DType.F8E5M2: np.dtype(np.uint8),
}
_DLPACK_CODE = {DType.BF16: 4, DType.F8E4M3FN: 10, DType.F8E5M2: 12}
"""DLDataTypeCode of the narrow floats (dlpack.h, DLPack 1.1)."""

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


class JaxHandover:
    """Hands arrays in the memory of one GPU to JAX.  Not safe between threads.  gpu: CuPy's device."""

    def __init__(self, cupy: Any, gpu: Any) -> None:
        self._cupy, self._gpu = cupy, gpu
        self._adopts = True  # does JAX take arrays at its back door?

    @functools.cached_property
    def device(self) -> Any | None:
        """JAX's name for this GPU, where its arrays lie unless told otherwise."""
        import jax

        return find_device("gpu", self._gpu.id) if jax.default_backend() == "gpu" else None

    def adopt(
        self, arrays: Sequence[DeviceArray], device: Any, event: Any, *, committed: bool = True
    ) -> list[Any]:
        """The arrays as JAX's of exactly their types, on the same memory, ready when the stream has come to `event`."""
        if self._adopts:
            try:
                # One wait for all: whatever JAX does with them comes after it.
                queue = device.get_stream_for_external_ready_events()
                self._cupy.cuda.runtime.streamWaitEvent(queue, event.ptr)
                return [array.adopt_by_jax(device, queue, committed=committed) for array in arrays]
            except (AttributeError, TypeError, RuntimeError) as error:
                log.warning("arrays go to JAX through jax.dlpack, which takes longer: %s", error)
                self._adopts = False
        import jax

        with jax.enable_x64(True):  # else JAX takes 64-bit numbers for 32-bit ones
            return [array.share_with_jax(committed=committed) for array in arrays]
