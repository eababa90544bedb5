"""Two modules -> how long a call of each takes on a GPU of this process: compiled by XLA alone, with arguments made
there, and timed in turns.

Nothing is moved between host and device, so that no guard on transfers and no argument of the user's is touched.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    Attrs,
    BroadcastAttrs,
    CompareAttrs,
    ConstantAttrs,
    DimensionsAttrs,
    DType,
    Graph,
    IotaAttrs,
    Literal,
    NoAttrs,
    Node,
    ParameterAttrs,
)
from astitch.hlo.export import ModuleBuilder
from astitch.library.xla_fallback import compile_module
from astitch.system.callbacks import pass_interrupt
from astitch.toolchain.nvrtc import count_threads
from astitch.xla.rivals import Alone

LIMIT_S = 10.0
"""Seconds after which nothing more is timed for a program."""

CALLS, BATCHES, TRIES, MOST_IN_FLIGHT = 12, 7, 3, 30
"""Calls in a batch, batches of each module, batches that tell whether the device waits for the host, and what JAX
issues before it waits for the first to end."""

HOST_SHARE = 0.7
"""If issuing a batch takes this part of its time, the device may have waited for the host."""

BUSY_ROWS, BUSY_COLUMNS = 1 << 12, 1 << 20
"""The sines that keep a device busy for a few milliseconds: 5 of an H100."""

MEMORY_SHARE = 0.5
"""Of the free memory, what a call of each module may take at most, together."""

DIFFERENT = 1023
"""A mask: arguments count from 0 to this.  So lookups go to different places, and floats are between 0.5 and 1.5."""


@dataclass(slots=True)
class DeviceTimer:
    """device: of JAX's.  busy: rows and columns of what keeps it busy.  spent_s: so far."""

    device: Any
    busy: tuple[int, int] = (BUSY_ROWS, BUSY_COLUMNS)
    spent_s: float = field(default=0.0, init=False)
    _busy: tuple[Callable[[], Any], float] | None = field(default=None, init=False)

    def __call__(self, pairs: Sequence[tuple[Alone, Alone]]) -> list[list[tuple[float, float]]]:
        """Batches of each pair: us of a call of the first module and of the second.  Empty where the time is spent, or
        one of the two cannot be run.  All are compiled at once.

        Raises nothing but interrupts: what goes wrong here only leaves a kernel as it is.
        """
        start = time.perf_counter()
        before_s, times = self.spent_s, list[list[tuple[float, float]]]()
        pool = ThreadPoolExecutor(count_threads(), "astitch-rivals")
        try:
            started = [[pool.submit(self._compile, alone) for alone in pair] for pair in pairs]
            for pair, compiled in zip(pairs, started, strict=True):
                self.spent_s = before_s + time.perf_counter() - start
                try:
                    times.append(self._time(pair, compiled) if self.spent_s <= LIMIT_S else [])
                except Exception as error:
                    pass_interrupt(error)
                    times.append([])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        self.spent_s = before_s + time.perf_counter() - start
        return times

    def _compile(self, call: Alone) -> tuple[Any, Any]:
        """What makes the arguments, and the call itself."""
        made = compile_module(write_arguments(call.parameters), self.device, {})
        return made, compile_module(call.hlo, self.device, {})

    def _time(
        self, pair: Sequence[Alone], compiled: Sequence[Future[tuple[Any, Any]]]
    ) -> list[tuple[float, float]]:
        """Batches of a pair; none where its arguments have no room.  They are free again afterwards."""
        if not self._has_room(pair):
            return []
        first, second = (_bind(*each.result()) for each in compiled)
        return self.time_both(first, second)

    def _has_room(self, pair: Sequence[Alone]) -> bool:
        """Is there memory for the arguments and results of both?"""
        stats = self.device.memory_stats() or {}
        free = stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)
        needed = sum(type_.bytes for alone in pair for type_ in alone.parameters + alone.results)
        return not stats or needed <= MEMORY_SHARE * free

    def time_both(
        self, first: Callable[[], Any], second: Callable[[], Any]
    ) -> list[tuple[float, float]]:
        """us of a call of each on the device, a pair for each batch.  Empty: two batches or more took no time beside
        what keeps the device busy.

        In turns, since the clocks of a device that was idle rise, and since other processes may use it too.
        """
        for call in (first, second):
            wait(call())
        kept = max(self._keep_busy(first), self._keep_busy(second), key=len)
        batches = [(_time_batch(first, kept), _time_batch(second, kept)) for _ in range(BATCHES)]
        timed = [both for both in batches if min(both) > 0]
        return timed if len(timed) >= BATCHES - 1 else []

    def _keep_busy(self, call: Callable[[], Any]) -> list[Callable[[], Any]]:
        """What is issued in front of a batch, so that the device never waits for the host."""
        issued_s, all_s = min((run([call] * CALLS) for _ in range(TRIES)), key=lambda t: t[1])
        if issued_s < HOST_SHARE * all_s:
            return []
        keep_busy, busy_s = self.find_busy()
        return [keep_busy] * max(1, min(math.ceil(1.5 * issued_s / busy_s), MOST_IN_FLIGHT - CALLS))

    def find_busy(self) -> tuple[Callable[[], Any], float]:
        """A call that keeps the device busy while others are issued, and its time in seconds."""
        if self._busy is None:
            executable = compile_module(write_sines(*self.busy), self.device, {})

            def keep_busy() -> Any:
                return executable.execute_sharded([])

            wait(keep_busy())
            self._busy = keep_busy, min(run([keep_busy] * 4)[1] for _ in range(TRIES)) / 4
        return self._busy


def _bind(make_arguments: Any, executable: Any) -> Callable[[], Any]:
    """The call, with arguments that it keeps alive."""
    arguments = wait(make_arguments.execute_sharded([]))
    return lambda: executable.execute_sharded(arguments)


def _time_batch(call: Callable[[], Any], kept: list[Callable[[], Any]]) -> float:
    """us of a call, issued behind what keeps the device busy; may be below 0."""
    all_s = run(kept + [call] * CALLS)[1]
    return (all_s - (run(kept)[1] if kept else 0.0)) / CALLS * 1e6


def run(calls: Sequence[Callable[[], Any]]) -> tuple[float, float]:
    """Seconds until all calls are issued, and until the last is done."""
    start = time.perf_counter()
    for call in calls:
        results = call()
    issued = time.perf_counter()
    wait(results)
    return issued - start, time.perf_counter() - start


def wait(results: Any) -> list[Any]:
    """The arrays that a call gives, when it is done."""
    shards = results.disassemble_into_single_device_arrays()
    return [shard[0].block_until_ready() for shard in shards]


def write_sines(rows: int, columns: int) -> bytes:
    """A module without parameters that sums the sines of so many numbers, and moves next to nothing."""
    builder = ModuleBuilder("sines")
    whole, column = ArrayType(DType.F32, (rows, columns)), ArrayType(DType.F32, (rows,))
    scalar = ArrayType(DType.F32, ())
    zero = ConstantAttrs(Literal.of(np.asarray(0, np.float32)))
    builder.add_node(Node("numbers", "iota", whole, attrs=IotaAttrs(1)))
    builder.add_node(Node("sines", "sine", whole, ("numbers",)))
    builder.add_node(Node("zero", "constant", scalar, attrs=zero))
    x, y = (Node(name, "parameter", scalar, attrs=ParameterAttrs(i)) for i, name in enumerate("xy"))
    both = Node("both", "add", scalar, ("x", "y"))
    region = Graph("sum", {n.name: n for n in (x, y, both)}, ("x", "y"), ("both",))
    attrs = DimensionsAttrs((1,))
    builder.add_node(Node("sum", "reduce", column, ("sines", "zero"), attrs, regions=(region,)))
    return builder.finish(["sum"])


def write_arguments(types: Sequence[ArrayType]) -> bytes:
    """A module without parameters that makes an array of each type, none of them alike to the compiler."""
    builder = ModuleBuilder("arguments")
    return builder.finish(
        [_add_argument(builder, f"argument.{number}", type_) for number, type_ in enumerate(types)]
    )


def _add_argument(builder: ModuleBuilder, name: str, type_: ArrayType) -> str:
    """Counts along the array, and begins again."""

    def add(op: str, made: ArrayType, *operands: str, attrs: Attrs = NoAttrs()) -> str:
        node = Node(f"{name}.{next(numbers)}", op, made, operands, attrs)
        builder.add_node(node)
        return node.name

    def fill(value: float, made: ArrayType) -> str:
        literal = Literal.of(np.asarray(value, made.dtype.numpy))
        scalar = add("constant", ArrayType(made.dtype, ()), attrs=ConstantAttrs(literal))
        return add("broadcast", made, scalar, attrs=BroadcastAttrs(()))

    numbers = itertools.count()
    flat = ArrayType(DType.S32, (type_.size,))
    value = add("and", flat, add("iota", flat, attrs=IotaAttrs(0)), fill(DIFFERENT, flat))
    typed = ArrayType(type_.dtype, flat.shape)
    if type_.dtype is DType.PRED:
        value = add("compare", typed, value, fill(DIFFERENT // 2, flat), attrs=CompareAttrs("GT"))
    elif type_.dtype.is_float or type_.dtype.is_complex:
        real = ArrayType(DType.F32, flat.shape)
        scaled = add("multiply", real, add("convert", real, value), fill(1 / (DIFFERENT + 1), real))
        value = add("convert", typed, add("add", real, scaled, fill(0.5, real)))
    else:
        value = add("convert", typed, value)
    return add("reshape", type_, value)
