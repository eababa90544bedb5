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
from astitch.system.callbacks import Callback

log = logging.getLogger("tf_addon")

PARAMETER, CONSTANT, RESULT, SCRATCH = range(4)
HOST_KERNEL, CUDA_KERNEL, PYTHON_STEP = range(3)
COOPERATIVE, POINTER_TABLE, CAPTURABLE = 1, 2, 4
STITCHED, XLA, OP_BY_OP, FAILED_ITSELF = range(4)

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


MESSAGE_BYTES = 2048
INTERRUPTED, DONE, FAILED = range(3)


class CompileCall(ctypes.Structure):
    """What is to be compiled, and the answer; `ending` is set last."""

    _fields_ = (
        ("function", ctypes.c_char_p),
        ("device", ctypes.c_char_p),
        ("hlo", _pointer),
        ("hlo_bytes", _i64),
        ("gpu", _i32),
        ("ending", _i32),
        ("program", _i64),
        ("message", ctypes.c_char * MESSAGE_BYTES),
    )


class StepCall(ctypes.Structure):
    """Which step is to be run on what, and the answer; `ending` is set last."""

    _fields_ = (
        ("key", _i64),
        ("stream", _pointer),
        ("addresses", ctypes.POINTER(_pointer)),
        ("step", _i32),
        ("ending", _i32),
        ("message", ctypes.c_char * MESSAGE_BYTES),
    )


class RefuseCall(ctypes.Structure):
    """A signature that is not astitch's."""

    _fields_ = (
        *((name, ctypes.c_char_p) for name in ("function", "device", "reason")),
        ("outcome", _i32),
    )


class NameCall(ctypes.Structure):
    """A function on a device."""

    _fields_ = (("function", ctypes.c_char_p), ("device", ctypes.c_char_p))


_Compile = ctypes.CFUNCTYPE(None, ctypes.POINTER(CompileCall))
_Step = ctypes.CFUNCTYPE(None, ctypes.POINTER(StepCall))
_Refuse = ctypes.CFUNCTYPE(None, ctypes.POINTER(RefuseCall))
_Name = ctypes.CFUNCTYPE(None, ctypes.POINTER(NameCall))


class _Callbacks(ctypes.Structure):
    _fields_ = (("compile", _Compile), ("step", _Step), ("refuse", _Refuse))


@dataclass(frozen=True, slots=True)
class Handlers:
    """What the shim asks of Python.  Each may be called from any thread, several at a time.  What is no Exception, or
    comes from a signal handler, ends the call that asked, and is raised again behind it.

    compile: function, device, HLO, number of the GPU (-1: TensorFlow runs it on the CPU) -> number of a program; raises
    where there is none.  step: key of the program, number of the step, stream, an address for each buffer.
    refuse: function, device, why it is not astitch's, and whose it is (XLA, OP_BY_OP, or FAILED_ITSELF: an error of the
    function's own).
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
        """Hands the settings to the shim; they hold from the next call on."""
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
        """Have the shim launch a step of Python's itself from now on, on the row's stream."""
        self._library.astitch_tf_set_product(_i64(program), _i32(step), ctypes.byref(row))

    def count_products(self) -> int:
        """How many products the shim launched itself in this process; one in a graph counts when it is captured."""
        return int(self._library.astitch_tf_count_products())

    def count_runs(self, function: str, device: str, outcome: int) -> int:
        """How many calls of a function ended so (STITCHED, XLA, OP_BY_OP, FAILED_ITSELF)."""
        return int(self._library.astitch_tf_count_runs(function.encode(), device.encode(), outcome))

    def count_graphs(self) -> tuple[int, int]:
        """How many CUDA graphs were captured, and how often any was launched, in this process."""
        count = self._library.astitch_tf_count_graphs
        return int(count(1)), int(count(0))

    def list_functions(self) -> list[tuple[str, str]]:
        """Name and device of each function that was called since the last reset."""
        found: list[tuple[str, str]] = []

        def tell(asked: Any) -> None:
            call = asked.contents
            found.append((_text(call.function), _text(call.device)))

        self._library.astitch_tf_list_functions(_Name(Callback(tell, _log_fault)))
        return found

    def reset_runs(self) -> None:
        """Count from zero again."""
        self._library.astitch_tf_reset_runs()


def _make_callbacks(handlers: Handlers) -> _Callbacks:
    def compile_hlo(asked: Any) -> None:
        call = asked.contents
        hlo = ctypes.string_at(call.hlo, call.hlo_bytes)
        call.program = handlers.compile(_text(call.function), _text(call.device), hlo, call.gpu)
        call.ending = DONE

    def refuse_to_compile(asked: Any, error: Exception) -> None:
        if not isinstance(error, AstitchError):
            function = _text(asked.contents.function)
            log.error("a bug in astitch: %s is left to XLA", function, exc_info=error)
        _fail(asked, error)

    def run_step(asked: Any) -> None:
        call = asked.contents
        handlers.step(call.key, call.step, call.stream or 0, call.addresses)
        call.ending = DONE

    def refuse(asked: Any) -> None:
        call = asked.contents
        texts = _text(call.function), _text(call.device), _text(call.reason)
        handlers.refuse(*texts, call.outcome)

    return _Callbacks(
        _Compile(Callback(compile_hlo, refuse_to_compile)),
        _Step(Callback(run_step, _fail)),
        _Refuse(Callback(refuse, _log_fault)),
    )


def _fail(asked: Any, error: Exception) -> None:
    """Answers with an error."""
    text = f"{type(error).__name__}: {error}".encode(errors="replace")
    asked.contents.message = text[: MESSAGE_BYTES - 1]
    asked.contents.ending = FAILED


def _log_fault(_: Any, error: Exception) -> None:
    log.error("a bug in astitch: the report misses something", exc_info=error)


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
