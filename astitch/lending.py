"""Memory of ours that JAX reads.

When JAX lets go of an array of ours, what it computes from it may only be enqueued, on a stream of JAX's: XLA frees in
the order of that stream, of which our memory knows nothing.  So whoever writes such memory again has its own stream
wait for all that JAX has enqueued by then.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from astitch.xla_island import find_device, put_array

LEGACY_STREAM = 1
"""DLPack's name for CUDA's stream 0."""

_turns = itertools.count(1)
_returned = [0]


class Lent:
    """Keeps memory for JAX as long as it lives; that it goes is noted before the memory is free."""

    __slots__ = ("_memory",)

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    # Called from wherever a reference goes, in any thread, also when the process ends: without locks and globals.
    def __del__(self, returned: list[int] = _returned, turns: Iterator[int] = _turns) -> None:
        returned[0] = next(turns)


def last_returned() -> int:
    """A number that is another one whenever JAX has let go of memory meanwhile; 0 if it never did."""
    return _returned[0]


def wait_for_jax(gpu: int, stream: int) -> None:
    """Lets a stream wait for all that JAX has enqueued on the GPU with CUDA's number; on the host if JAX cannot."""
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


@functools.cache
def _make_marker(gpu: int) -> tuple[Any, list[Any]] | None:
    """The least that JAX can compute on a GPU: XLA's executable and its operands.  None where JAX has no such GPU."""
    device = find_device("gpu", gpu)
    if device is None:
        return None
    import jax

    with jax.ensure_compile_time_eval():  # a function may be traced around this call
        token = put_array(np.zeros((), np.int8), device)
    return jax.jit(operator.neg).lower(token).compile().runtime_executable(), [token]
