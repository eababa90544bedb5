"""A handler of XLA's foreign function interface in ctypes: custom calls of TensorFlow's XLA that run Python.

Takes functions of addresses, hands on numbers that a `stablehlo.custom_call @astitch_launch` names in its `handle`.
The structs are those of `xla/ffi/api/c_api.h`, of which only what all of TensorFlow 2.18 to 2.21 agree on is read.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tf_addon.errors import ShimUnavailable

TARGET = "astitch_launch"
"""The name of the custom call."""

Launch = Callable[[int, Sequence[int], Sequence[int]], None]
"""stream (0 on the host), addresses of the operands, addresses of the results"""

_P, _I64, _I32, _SIZE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_size_t
_METADATA_EXTENSION = 1
_INTERNAL = 13  # XLA_FFI_Error_Code_INTERNAL


class _Extension(ctypes.Structure):
    _fields_ = (("size", _SIZE), ("type", ctypes.c_int), ("next", _P))


class _Version(ctypes.Structure):
    _fields_ = (("size", _SIZE), ("ext", _P), ("major", ctypes.c_int), ("minor", ctypes.c_int))


class _Api(ctypes.Structure):
    _fields_ = (
        *(("size", _SIZE), ("ext", _P), ("version", _Version), ("internal", _P)),
        *((name, _P) for name in ("error_create", "error_message", "error_destroy")),
        *((name, _P) for name in ("handler_register", "stream_get")),
    )


class _Buffers(ctypes.Structure):
    """Arguments or results."""

    _fields_ = (("size", _SIZE), ("ext", _P), ("count", _I64), ("types", _P), ("pointers", _P))


class _Attributes(ctypes.Structure):
    _fields_ = (
        *(("size", _SIZE), ("ext", _P), ("count", _I64), ("types", _P)),
        *(("names", _P), ("pointers", _P)),
    )


class _Frame(ctypes.Structure):
    """What a call brings."""

    _fields_ = (
        *(("size", _SIZE), ("ext", _P), ("api", _P), ("context", _P), ("stage", ctypes.c_int)),
        *(("arguments", _Buffers), ("results", _Buffers), ("attributes", _Attributes)),
    )


class _Buffer(ctypes.Structure):
    _fields_ = (("size", _SIZE), ("ext", _P), ("dtype", ctypes.c_int), ("data", _P))


class _Scalar(ctypes.Structure):
    _fields_ = (("dtype", ctypes.c_int), ("value", _P))


class _Metadata(ctypes.Structure):
    _fields_ = (("size", _SIZE), ("version", _Version), ("traits", ctypes.c_uint32))


class _MetadataExtension(ctypes.Structure):
    _fields_ = (("base", _Extension), ("metadata", ctypes.POINTER(_Metadata)))


class _Span(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_char_p), ("length", _SIZE))


class _Registration(ctypes.Structure):
    _fields_ = (
        *(("size", _SIZE), ("ext", _P), ("name", _Span), ("platform", _Span)),
        *((stage, _P) for stage in ("instantiate", "prepare", "initialize", "execute")),
        ("traits", ctypes.c_uint32),
    )


class _ErrorArguments(ctypes.Structure):
    _fields_ = (
        ("size", _SIZE),
        ("ext", _P),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )


class _MessageArguments(ctypes.Structure):
    _fields_ = (("size", _SIZE), ("ext", _P), ("error", _P), ("message", ctypes.c_char_p))


class _StreamArguments(ctypes.Structure):
    _fields_ = (("size", _SIZE), ("ext", _P), ("context", _P), ("stream", _P))


_Handler = ctypes.CFUNCTYPE(_P, ctypes.POINTER(_Frame))
_Entry = ctypes.CFUNCTYPE(_P, _P)


class Handlers:
    """The one handler of the process, and the functions that it calls by their numbers."""

    def __init__(self) -> None:
        self._launches: dict[int, Launch] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._kept: list[Any] = []  # what XLA points to
        self._api: Any = None

    def add(self, launch: Launch) -> int:
        """The number under which the custom call runs `launch`.  Raises ShimUnavailable where XLA takes no handler."""
        with self._lock:
            if self._api is None:
                self._api = _find_api()
                self._register()
            number = next(self._numbers)
            self._launches[number] = launch
            return number

    def _register(self) -> None:
        handler = _Handler(self._handle)
        name = TARGET.encode()
        for platform in (b"Host", b"CUDA"):
            row = _Registration(
                ctypes.sizeof(_Registration),
                None,
                _Span(name, len(name)),
                _Span(platform, len(platform)),
                execute=ctypes.cast(handler, _P).value,
            )
            self._kept += [handler, row]
            error = _Entry(self._api.handler_register)(ctypes.addressof(row))
            if error:
                told = _MessageArguments(ctypes.sizeof(_MessageArguments), None, error, None)
                _Entry(self._api.error_message)(ctypes.addressof(told))
                raise ShimUnavailable(
                    f"tf_addon: TensorFlow's XLA takes no handler for {platform.decode()}: "
                    f"{(told.message or b'').decode(errors='replace')}\n  use the shim: tf_addon.enable()"
                )

    def _handle(self, frame_pointer: Any) -> int | None:
        frame = frame_pointer.contents
        if frame.ext and _Extension.from_address(frame.ext).type == _METADATA_EXTENSION:
            # XLA asks for which version of the interface the handler was made: the one that it has.
            metadata = _MetadataExtension.from_address(frame.ext).metadata.contents
            metadata.version.major = self._api.version.major
            metadata.version.minor = self._api.version.minor
            metadata.traits = 0
            return None
        try:
            scalar = _Scalar.from_address(_P.from_address(frame.attributes.pointers).value or 0)
            number = _I64.from_address(scalar.value).value
            stream = self._find_stream(frame)
            self._launches[number](stream, _read(frame.arguments), _read(frame.results))
        except Exception as error:  # nothing may pass through XLA
            message = f"astitch: {type(error).__name__}: {error}".encode()
            row = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message, _INTERNAL)
            made: int | None = _Entry(self._api.error_create)(ctypes.addressof(row))
            return made
        return None

    def _find_stream(self, frame: _Frame) -> int:
        """The CUstream of the call, 0 on the host."""
        if not _has_cuda():
            return 0
        row = _StreamArguments(ctypes.sizeof(_StreamArguments), None, frame.context, None)
        error = _Entry(self._api.stream_get)(ctypes.addressof(row))
        return 0 if error else int(row.stream or 0)


def _read(buffers: _Buffers) -> list[int]:
    """The addresses of arguments or results."""
    if not buffers.count:
        return []
    pointers = (_P * buffers.count).from_address(buffers.pointers)
    return [int(_Buffer.from_address(pointer).data or 0) for pointer in pointers]


def _has_cuda() -> bool:
    import tensorflow as tf

    return bool(tf.sysconfig.get_build_info().get("is_cuda_build"))


def _find_api() -> Any:
    """XLA's table of functions in the TensorFlow that is installed."""
    import tensorflow as tf

    library = ctypes.CDLL(str(Path(tf.__file__).parent / "libtensorflow_cc.so.2"))
    try:
        get = library._ZN3xla3ffi12GetXlaFfiApiEv
    except AttributeError:
        raise ShimUnavailable(
            f"tf_addon: TensorFlow {tf.__version__} has no foreign function interface of XLA's\n"
            "  install TensorFlow 2.18 to 2.21"
        ) from None
    get.restype = ctypes.POINTER(_Api)
    return get().contents


the_handlers = Handlers()
