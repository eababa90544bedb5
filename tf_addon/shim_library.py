"""The shim as Python sees it: rows, callbacks and entries of `shim/astitch_tf.cc`, by ctypes.

Takes the library, loaded, hands on a Shim.  Names and order of the fields are those of the C++ source.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from astitch.errors import AstitchError

log = logging.getLogger("tf_addon")

PARAMETER, CONSTANT, RESULT, SCRATCH = range(4)
HOST_KERNEL, CUDA_KERNEL, PYTHON_STEP = range(3)
COOPERATIVE, POINTER_TABLE, CAPTURABLE = 1, 2, 4
STITCHED, XLA, OP_BY_OP = range(3)

_i32, _i64, _pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


class BufferRow(ctypes.Structure):
    """A buffer of a program: which parameter or result it is, or where it lies."""

    _fields_ = (("space", _i32), ("index", _i32), ("address", _i64), ("bytes", _i64))


class StepRow(ctypes.Structure):
    """A launch, or a step that Python makes."""

    _fields_ = (
        ("kind", _i32),
        ("flags", _i32),
        ("grid", _i32),
        ("block", _i32),
        ("shared_bytes", _i64),
        ("function", _i64),
        ("table_offset", _i64),
        ("first", _i32),
        ("count", _i32),
    )


class ResultRow(ctypes.Structure):
    """A result: in which buffer it is, and whether it has to be copied from there."""

    _fields_ = (("buffer", _i32), ("copies", _i32), ("bytes", _i64))


class ZeroRow(ctypes.Structure):
    """A part of the scratch memory that is zero when a call begins."""

    _fields_ = (("offset", _i64), ("bytes", _i64))


class ProgramRow(ctypes.Structure):
    """A launch table."""

    _fields_ = (
        ("key", _i64),
        ("staged", _i32),
        ("parameter_count", _i32),
        ("buffer_count", _i32),
        ("step_count", _i32),
        ("operand_count", _i32),
        ("result_count", _i32),
        ("zero_count", _i32),
        ("scratch_bytes", _i64),
        ("context", _pointer),
        ("stream", _pointer),
        ("capture_stream", _pointer),
        ("buffers", _pointer),
        ("steps", _pointer),
        ("operands", _pointer),
        ("results", _pointer),
        ("zeros", _pointer),
    )


class ProductRow(ctypes.Structure):
    """A call of cublasLtMatmul.  workspace: what calls on `stream` may use.  a_buffer ..: numbers of buffers."""

    _fields_ = (
        *((name, _pointer) for name in ("function", "handle", "operation", "one", "a", "b")),
        *((name, _pointer) for name in ("zero", "result", "algorithm", "workspace")),
        ("workspace_bytes", _i64),
        ("stream", _pointer),
        *((name, _i32) for name in ("a_buffer", "b_buffer", "result_buffer")),
    )


class Settings(ctypes.Structure):
    """What the shim takes over, and what it does where it cannot."""

    _fields_ = tuple(
        (name, _i32)
        for name in ("taken", "strict", "uncompiled", "dry", "max_signatures", "engine")
    )


class CudaDriver(ctypes.Structure):
    """Entries of libcuda."""

    _fields_ = tuple(
        (name, _pointer)
        for name in (
            *("push", "pop", "launch", "launch_cooperative"),
            *("copy_to_device", "copy_to_host", "copy", "fill"),
            *("allocate", "release", "allocate_managed", "count_memory", "synchronize"),
            *("begin_capture", "end_capture", "instantiate"),
            *("launch_graph", "destroy_graph", "destroy_executable"),
        )
    )


_Compile = ctypes.CFUNCTYPE(
    _i64, ctypes.c_char_p, ctypes.c_char_p, _pointer, _i64, _i32, _pointer, _i32
)
_Step = ctypes.CFUNCTYPE(_i32, _i64, _i32, _pointer, ctypes.POINTER(_pointer), _pointer, _i32)
_Name = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)
_Refuse = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, _i32)


class _Callbacks(ctypes.Structure):
    _fields_ = (("compile", _Compile), ("step", _Step), ("refuse", _Refuse))


@dataclass(frozen=True, slots=True)
class Handlers:
    """What the shim asks of Python.  Each may be called from any thread, several at a time.

    compile: function, device, HLO, number of the GPU (-1: TensorFlow runs it on the CPU) -> number of a program; raises
    where there is none.  step: key of the program, number of the step, stream, an address for each buffer.
    refuse: function, device, why it is not astitch's, and whose it is (XLA or OP_BY_OP).
    """

    compile: Callable[[str, str, bytes, int], int]
    step: Callable[[int, int, int, Any], None]
    refuse: Callable[[str, str, str, int], None]


class Shim:
    """The library, loaded and installed; at most one in a process."""

    def __init__(self, library: ctypes.CDLL, handlers: Handlers) -> None:
        self._library = library
        self._library.astitch_tf_add_program.restype = _i64
        self._library.astitch_tf_count_runs.restype = _i64
        self._library.astitch_tf_count_graphs.restype = _i64
        self._library.astitch_tf_count_products.restype = _i64
        self._library.astitch_tf_set_host.argtypes = [_pointer]
        # Kept as long as the process: TensorFlow's kernels call them.
        self._callbacks = _make_callbacks(handlers)
        self._library.astitch_tf_install(ctypes.byref(self._callbacks))

    def set(self, settings: Settings) -> None:
        """From the next call on."""
        self._library.astitch_tf_set(ctypes.byref(settings))

    def set_host(self, launch: int) -> None:
        """launch: address of the emulation's `astitch_launch`."""
        self._library.astitch_tf_set_host(launch)

    def set_cuda(self, driver: CudaDriver) -> None:
        """How CUDA kernels are launched."""
        self._library.astitch_tf_set_cuda(ctypes.byref(driver))

    def add_program(self, row: ProgramRow) -> int:
        """The number by which the shim knows the program; it copies the rows."""
        return int(self._library.astitch_tf_add_program(ctypes.byref(row)))

    def set_product(self, program: int, step: int, row: ProductRow) -> None:
        """From now on the shim launches a step of Python's itself, on the row's stream."""
        self._library.astitch_tf_set_product(_i64(program), _i32(step), ctypes.byref(row))

    def count_products(self) -> int:
        """How many products the shim launched itself in this process; one in a graph counts when it is captured."""
        return int(self._library.astitch_tf_count_products())

    def count_runs(self, function: str, device: str, outcome: int) -> int:
        """How many calls of a function ended so (STITCHED, XLA, OP_BY_OP)."""
        return int(self._library.astitch_tf_count_runs(function.encode(), device.encode(), outcome))

    def count_graphs(self) -> tuple[int, int]:
        """How many CUDA graphs were captured, and how often any was launched, in this process."""
        count = self._library.astitch_tf_count_graphs
        return int(count(1)), int(count(0))

    def list_functions(self) -> list[tuple[str, str]]:
        """Name and device of each function that was called since the last reset."""
        found: list[tuple[str, str]] = []

        def tell(function: bytes, device: bytes) -> None:
            found.append((function.decode(), device.decode()))

        self._library.astitch_tf_list_functions(_Name(tell))
        return found

    def reset_runs(self) -> None:
        """Count from zero again."""
        self._library.astitch_tf_reset_runs()


def _make_callbacks(handlers: Handlers) -> _Callbacks:
    def compile_hlo(
        function: bytes, device: bytes, hlo: int, size: int, gpu: int, message: int, room: int
    ) -> int:
        try:
            data = ctypes.string_at(hlo, size)
            return handlers.compile(function.decode(), device.decode(), data, gpu)
        except Exception as error:  # nothing may pass through C++
            if not isinstance(error, AstitchError):
                log.exception("a bug in astitch: %s is left to XLA", function.decode())
            _write_message(error, message, room)
            return -1

    def run_step(
        key: int, number: int, stream: int | None, addresses: Any, message: int, room: int
    ) -> int:
        try:
            handlers.step(key, number, stream or 0, addresses)
        except Exception as error:
            _write_message(error, message, room)
            return 1
        return 0

    def refuse(function: bytes, device: bytes, reason: bytes, outcome: int) -> None:
        handlers.refuse(
            function.decode(), device.decode(), reason.decode(errors="replace"), outcome
        )

    return _Callbacks(_Compile(compile_hlo), _Step(run_step), _Refuse(refuse))


def _write_message(error: Exception, address: int, room: int) -> None:
    text = f"{type(error).__name__}: {error}".encode()[: room - 1] + b"\0"
    ctypes.memmove(address, text, len(text))
