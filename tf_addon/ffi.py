"""A handler of XLA's foreign function interface in ctypes: custom calls of TensorFlow's XLA that run Python.

Takes functions of addresses, hands on numbers that a `stablehlo.custom_call @astitch_launch` names in its `handle`.
The structs are those of `xla/ffi/api/c_api.h` that TensorFlow alone needs beside astitch's.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from astitch.run.xla_ffi import (
    I64,
    SIZE,
    Api,
    Buffers,
    Entry,
    Frame,
    P,
    find_stream,
    make_handler,
)
from tf_addon.errors import ShimUnavailable

TARGET = "astitch_launch"
"""The name of the custom call."""

Launch = Callable[[int, Sequence[int], Sequence[int]], None]
"""stream (0 on the host), addresses of the operands, addresses of the results"""


class _Buffer(ctypes.Structure):
    _fields_ = (("size", SIZE), ("ext", P), ("dtype", ctypes.c_int), ("data", P))


class _Scalar(ctypes.Structure):
    _fields_ = (("dtype", ctypes.c_int), ("value", P))


class _Span(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_char_p), ("length", SIZE))


class _Registration(ctypes.Structure):
    _fields_ = (
        *(("size", SIZE), ("ext", P), ("name", _Span), ("platform", _Span)),
        *((stage, P) for stage in ("instantiate", "prepare", "initialize", "execute")),
        ("traits", ctypes.c_uint32),
    )


class _MessageArguments(ctypes.Structure):
    _fields_ = (("size", SIZE), ("ext", P), ("error", P), ("message", ctypes.c_char_p))


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
        handler = make_handler(self._api, self._run)
        name = TARGET.encode()
        for platform in (b"Host", b"CUDA"):
            row = _Registration(
                ctypes.sizeof(_Registration),
                None,
                _Span(name, len(name)),
                _Span(platform, len(platform)),
                execute=ctypes.cast(handler, P).value,
            )
            self._kept += [handler, row]
            error = Entry(self._api.handler_register)(ctypes.addressof(row))
            if error:
                told = _MessageArguments(ctypes.sizeof(_MessageArguments), None, error, None)
                Entry(self._api.error_message)(ctypes.addressof(told))
                raise ShimUnavailable(
                    f"tf_addon: TensorFlow's XLA takes no handler for {platform.decode()}: "
                    f"{(told.message or b'').decode(errors='replace')}\n  use the shim: tf_addon.enable()"
                )

    def _run(self, frame: Frame) -> None:
        scalar = _Scalar.from_address(P.from_address(frame.attributes.pointers).value or 0)
        number = I64.from_address(scalar.value).value
        stream = (find_stream(frame, self._api) or 0) if _has_cuda() else 0
        self._launches[number](stream, _read(frame.arguments), _read(frame.results))


def _read(buffers: Buffers) -> list[int]:
    """The addresses of arguments or results."""
    if not buffers.count:
        return []
    pointers = (P * buffers.count).from_address(buffers.pointers)
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
    get.restype = ctypes.POINTER(Api)
    return get().contents


the_handlers = Handlers()
