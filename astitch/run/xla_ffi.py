"""What a handler of XLA's foreign function interface reads and answers, in ctypes.

Takes the frame of a call and XLA's table of functions, hands on the stream of the call.  The structs are the heads of
those of `xla/ffi/api/c_api.h`, as far as TensorFlow 2.18 to 2.21 and JAX 0.10 to 0.12 agree on them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from astitch.system.callbacks import Callback

P, I64, SIZE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t
_METADATA_EXTENSION = 1
_CANCELLED, _INTERNAL = 1, 13  # XLA_FFI_Error_Code


class Extension(ctypes.Structure):
    _fields_ = (("size", SIZE), ("type", ctypes.c_int), ("next", P))


class Version(ctypes.Structure):
    _fields_ = (("size", SIZE), ("ext", P), ("major", ctypes.c_int), ("minor", ctypes.c_int))


class Api(ctypes.Structure):
    """XLA's table of functions."""

    _fields_ = (
        *(("size", SIZE), ("ext", P), ("version", Version), ("internal", P)),
        *((name, P) for name in ("error_create", "error_message", "error_destroy")),
        *((name, P) for name in ("handler_register", "stream_get")),
    )


class Buffers(ctypes.Structure):
    """Arguments or results."""

    _fields_ = (("size", SIZE), ("ext", P), ("count", I64), ("types", P), ("pointers", P))


class Attributes(ctypes.Structure):
    _fields_ = (
        *(("size", SIZE), ("ext", P), ("count", I64), ("types", P)),
        *(("names", P), ("pointers", P)),
    )


class Frame(ctypes.Structure):
    """What a call brings."""

    _fields_ = (
        *(("size", SIZE), ("ext", P), ("api", ctypes.POINTER(Api)), ("context", P)),
        *(("stage", ctypes.c_int), ("arguments", Buffers), ("results", Buffers)),
        ("attributes", Attributes),
    )


class Metadata(ctypes.Structure):
    _fields_ = (("size", SIZE), ("version", Version), ("traits", ctypes.c_uint32))


class MetadataExtension(ctypes.Structure):
    _fields_ = (("base", Extension), ("metadata", ctypes.POINTER(Metadata)))


class ErrorCreation(ctypes.Structure):
    _fields_ = (("size", SIZE), ("ext", P), ("message", ctypes.c_char_p), ("code", ctypes.c_int))


class ErrorDestruction(ctypes.Structure):
    _fields_ = (("size", SIZE), ("ext", P), ("error", P))


class StreamQuestion(ctypes.Structure):
    _fields_ = (("size", SIZE), ("ext", P), ("context", P), ("stream", P))


Handler = ctypes.CFUNCTYPE(P, ctypes.POINTER(Frame))
"""Gives an error of XLA's, or None."""

Entry = ctypes.CFUNCTYPE(P, P)
"""A function of the table: takes the address of a struct of its own."""


def answer_metadata(frame: Frame, api: Api) -> bool:
    """Is this no call, but XLA's question what the handler is made for?  The version of the interface that XLA has, and
    no command buffers: the stream would be that of a capture."""
    if not frame.ext or Extension.from_address(frame.ext).type != _METADATA_EXTENSION:
        return False
    metadata = MetadataExtension.from_address(frame.ext).metadata.contents
    metadata.version.major = api.version.major
    metadata.version.minor = api.version.minor
    metadata.traits = 0
    return True


def find_stream(frame: Frame, api: Api) -> int | None:
    """The CUstream of a call; None on the host."""
    row = StreamQuestion(ctypes.sizeof(StreamQuestion), None, frame.context, None)
    error = Entry(api.stream_get)(ctypes.addressof(row))
    if not error:
        return int(row.stream or 0)
    _destroy_error(api, error)
    return None


def make_handler(api: Api, run: Callable[[Frame], None]) -> Any:
    """A handler that runs a function for each call; XLA gets an error unless it returns.

    run: may raise; see Callback.  Whoever gives the handler to XLA keeps it.
    """

    def answer(frame: Any) -> None:
        if not answer_metadata(frame.contents, api):
            run(frame.contents)

    def fail(_: Any, error: Exception) -> int | None:
        return _make_error(api, f"astitch: {type(error).__name__}: {error}", _INTERNAL)

    def prepare() -> int | None:
        return _make_error(api, "astitch: interrupted", _CANCELLED)

    return Handler(Callback(answer, fail, prepare, lambda error: _destroy_error(api, error)))


def _make_error(api: Api, message: str, code: int) -> int | None:
    """What a handler gives back in place of an exception; XLA destroys it."""
    size = ctypes.sizeof(ErrorCreation)
    row = ErrorCreation(size, None, message.encode(errors="replace"), code)
    made: int | None = Entry(api.error_create)(ctypes.addressof(row))
    return made


def _destroy_error(api: Api, error: int | None) -> None:
    gone = ErrorDestruction(ctypes.sizeof(ErrorDestruction), None, error)
    Entry(api.error_destroy)(ctypes.addressof(gone))
