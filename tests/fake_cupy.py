"""As much of CuPy as the executor needs for programs without kernels, on the host's memory, which can run short.

Takes the place of the module in `sys.modules`.  `Fake.room` is how many bytes may be allocated at once; an allocation
beyond it raises what CuPy raises.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np


class OutOfMemoryError(MemoryError):
    """In CuPy's words."""


class Memory:
    """An allocation; its bytes are free again when nobody holds it."""

    def __init__(self, fake: Fake, count: int) -> None:
        used = fake.used + count
        if used > fake.room:
            raise OutOfMemoryError(
                f"Out of memory allocating {count:,} bytes (allocated so far: {fake.used:,} bytes)."
            )
        self.fake, self.count = fake, count
        fake.used = used
        self.words = np.zeros(count // 16 + 2, np.complex128)
        self.ptr = self.words.ctypes.data

    def __del__(self) -> None:
        if hasattr(self, "count"):
            self.fake.used -= self.count


class Array:
    """A cupy.ndarray on given memory."""

    def __init__(
        self,
        shape: Any,
        dtype: Any,
        memory: Any,
        view: np.ndarray | None = None,
        strides: Any = None,
    ) -> None:
        self.memory = memory
        if view is None:
            count = int(np.prod(shape)) * np.dtype(dtype).itemsize
            data = (ctypes.c_uint8 * count).from_address(memory.ptr)
            view = np.frombuffer(data, dtype).reshape(shape)
            if strides is not None:
                view = np.lib.stride_tricks.as_strided(view, shape, strides)
        self.view, self.shape, self.data = view, view.shape, memory

    def transpose(self, order: Any) -> Array:
        return Array(None, None, self.memory, self.view.transpose(order))

    def __setitem__(self, where: Any, other: Array) -> None:
        self.view[where] = other.view


class Here:
    """The one device; the one stream, on which all is done at once; an event."""

    ptr = id = 0
    compute_capability = "90"
    mem_info = 1 << 40, 1 << 40
    done = True

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


def _copy(to: int, source: int, count: int, *_: Any) -> None:
    ctypes.memmove(to, source, count)


def _multiply(*given: Any) -> None:
    """cublasGemmStridedBatchedEx for f32, column-major."""
    (
        _,
        op_a,
        op_b,
        m,
        n,
        k,
        _,
        a,
        _,
        lda,
        stride_a,
        b,
        _,
        ldb,
        stride_b,
        _,
        c,
        _,
        ldc,
        stride_c,
        batch,
    ) = given[:21]
    for i in range(batch):
        left = _matrix(a + 4 * i * stride_a, op_a, m, k, lda)
        right = _matrix(b + 4 * i * stride_b, op_b, k, n, ldb)
        _matrix(c + 4 * i * stride_c, "N", m, n, ldc)[...] = left @ right


def _matrix(address: int, operation: str, rows: int, columns: int, leading: int) -> np.ndarray:
    """Element (i, j) at i + j * leading, or at i * leading + j if transposed."""
    last = (columns - 1) * leading + rows if operation == "N" else (rows - 1) * leading + columns
    flat = np.frombuffer((ctypes.c_float * last).from_address(address), np.float32)
    steps = (4, 4 * leading) if operation == "N" else (4 * leading, 4)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), steps)


class Fake:
    """The module."""

    def __init__(self) -> None:
        self.used, self.room = 0, 1 << 40
        here = Here()
        runtime = SimpleNamespace(
            memset=ctypes.memset,
            memcpyAsync=_copy,
            deviceSynchronize=lambda: None,
            memcpyHostToDevice=1,
            memcpyDeviceToHost=2,
            memcpyDeviceToDevice=3,
            CUDA_R_32F=0,
            getDeviceProperties=lambda _: {"name": b"A GPU"},
        )
        self.ndarray = Array
        self.cuda = SimpleNamespace(
            Device=lambda _: here,
            Event=lambda **_: here,
            get_current_stream=lambda: here,
            Stream=SimpleNamespace(from_external=lambda _: here),
            alloc=lambda count: Memory(self, count),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            UnownedMemory=lambda pointer, *_: SimpleNamespace(ptr=pointer),
            MemoryPointer=lambda memory, _: memory,
            runtime=runtime,
            driver=SimpleNamespace(),
            device=SimpleNamespace(get_cublas_handle=lambda: 0),
            cublas=SimpleNamespace(
                CUBLAS_OP_N="N",
                CUBLAS_OP_T="T",
                CUBLAS_COMPUTE_32F_FAST_TF32=0,
                CUBLAS_GEMM_DEFAULT=0,
                gemmStridedBatchedEx=_multiply,
            ),
        )
