"""Keeps GPU buffers alive while JAX arrays alias them.

When JAX lets go of an array of ours, what it computes from it may only be enqueued, on a stream of JAX's: XLA frees in
the order of that stream, of which our memory knows nothing.  So whoever writes such memory again has its own stream
wait for all that JAX has enqueued by then.  It waits for an event on JAX's stream, where a custom call of ours knows
that stream.  Else it waits for a computation that JAX enqueues behind all others.
"""

from __future__ import annotations

import functools
import itertools
import logging
import operator
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from astitch.library.xla_fallback import find_device, put_array
from astitch.run.xla_ffi import Handler, answer_metadata, find_stream
from astitch.system.callbacks import Callback, pass_interrupt

log = logging.getLogger("astitch")

LEGACY_STREAM = 1
"""DLPack's name for CUDA's stream 0."""

_turns = itertools.count(1)
_released = [0]


class Exported:
    """Keeps memory for JAX as long as it lives; that it goes is noted before the memory is free."""

    __slots__ = ("_memory",)

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    # Called from wherever a reference goes, in any thread, also when the process ends: without locks and globals.
    def __del__(self, released: list[int] = _released, turns: Iterator[int] = _turns) -> None:
        released[0] = next(turns)


def last_released() -> int:
    """A number that is another one whenever JAX has released memory meanwhile; 0 if it never did."""
    return _released[0]


def wait_for_jax(gpu: int, stream: int) -> None:
    """Lets a stream wait for all that JAX has enqueued on the GPU with CUDA's number; on the host if JAX cannot."""
    queue = _find_queue(gpu)
    if queue is not None:
        queue.let_wait(stream)
        return
    marker = _make_marker(gpu)
    if marker is None:
        return
    executable, operands = marker
    # JAX runs everything in the order of one stream: what comes last there is ready when all is.
    ((last,),) = executable.execute_sharded(operands).disassemble_into_single_device_arrays()
    try:
        last.__dlpack__(stream=stream or LEGACY_STREAM)
    except (BufferError, RuntimeError):  # of JAX's back ends that know no streams
        last.block_until_ready()


# ---- JAX's stream itself ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Queue:
    """The stream on which JAX runs everything on a GPU.

    event: recorded there again for each wait, which is for the record that is the latest when it is enqueued.  Where
    threads take turns in between, that is another thread's: a later point of the same stream, so no lock is needed.
    keep: XLA's executable, and with it the client whose stream it is.
    """

    runtime: Any
    stream: int
    event: Any
    keep: Any

    def let_wait(self, stream: int) -> None:
        self.runtime.eventRecord(self.event.ptr, self.stream)
        self.runtime.streamWaitEvent(stream, self.event.ptr)


TARGET = "astitch_note_stream"
"""The custom call that asks XLA on which stream it runs."""

_noted = threading.local()
"""stream: of the last custom call in this thread."""


def _note_stream(asked: Any) -> None:
    frame = asked.contents
    api = frame.api.contents
    if not answer_metadata(frame, api):
        _noted.stream = find_stream(frame, api)


def _note_nothing(_: Any, error: Exception) -> None:
    log.info("JAX's stream is not known: %s", error)


# Without an answer XLA goes on, and nothing is noted.
_HANDLER = Handler(Callback(_note_stream, _note_nothing))
"""One for the process: XLA keeps its address, and takes no other one by the same name."""


# Threads that come here together for the first time find the same stream, each with an event of its own.  A failure
# is remembered, too, though it may pass (no room): trying again in each call would take longer than the other way.
@functools.cache
def _find_queue(gpu: int) -> _Queue | None:
    """The queue of JAX's GPU with CUDA's number.  None where JAX has no such GPU or does not show its stream, and where
    another thread than the caller's enqueues.  An event covers only what is on the stream when it is recorded.  With
    such a thread that may not be all that JAX was called for; a computation of JAX's always comes behind all."""
    device = find_device("gpu", gpu)
    if device is None:
        return None
    import jax

    why = f"{device} shows no stream to the thread that calls it"
    try:
        from jax import ffi

        # "gpu" means CUDA there: for AMD's no handler is found then, as it should be.
        handler = ffi.pycapsule(_HANDLER)  # type: ignore[no-untyped-call]
        ffi.register_ffi_target(TARGET, handler, platform=device.platform)
        result = jax.ShapeDtypeStruct((), np.int8)  # type: ignore[no-untyped-call]
        executable, operands = _compile(ffi.ffi_call(TARGET, result, has_side_effect=True), device)
        _noted.stream = None
        # What this thread enqueues is noted for it when this returns; another one notes it for itself.
        executable.execute_sharded(operands)
        stream = _noted.stream
    except Exception as error:  # of any JAX: other names, another version of the interface, no room
        pass_interrupt(error)
        stream, why = None, str(error)
    if not stream:
        log.warning("calls wait for JAX by a computation of JAX's, which takes longer: %s", why)
        return None
    import cupy

    with cupy.cuda.Device(gpu):
        event = cupy.cuda.Event(disable_timing=True)
    return _Queue(cupy.cuda.runtime, stream, event, executable)


# ---- a computation behind all others ---------------------------------------------------------------------------


@functools.cache
def _make_marker(gpu: int) -> tuple[Any, list[Any]] | None:
    """The least that JAX can compute on a GPU: XLA's executable and its operands.  None where JAX has no such GPU."""
    device = find_device("gpu", gpu)
    return None if device is None else _compile(operator.neg, device)


def _compile(function: Callable[[Any], Any], device: Any) -> tuple[Any, list[Any]]:
    """A function of a number as XLA's executable for the device, and its operands."""
    import jax

    with jax.ensure_compile_time_eval():  # a function may be traced around this call
        token = put_array(np.zeros((), np.int8), device)
    return jax.jit(function).lower(token).compile().runtime_executable(), [token]
