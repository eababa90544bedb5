"""GPU time of calls by the device's own clock: JAX's profiler (CUPTI) records what XLA, CuPy, torch and Triton launch.

Takes Runners, hands on a GpuTime for each.  One mechanism for all: the GPU is kept busy while the host queues some
calls, which then run as they would behind other work; their kernels' own clocks are read, no host's and no event's.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from astitch.profiling.kernel_trace import (
    Launch,
    NothingRecorded,
    classify_kernel,
    record_launches,
)
from astitch.profiling.report import PRODUCT
from astitch.profiling.timing import Runner, choose_calls, take_turns
from benchmarks.timing import PLUG_NAME, QUEUE_US, SPIN_NAME, hold_cupy, time_queued_cupy

MARK = "astitch_mark"
"""A kernel before and after each batch of calls."""

EMPTY = "astitch_empty"

MOST_CALLS = 20
"""XLA lets 32 programs be in flight."""

MARGIN = 1.5
"""The GPU is held back this much longer than the host needs to queue the calls."""

MOST_TRIES = 4
"""Batches whose calls were not all queued in time are left out, at most so many less one."""


@dataclass(frozen=True, slots=True)
class GpuTime:
    """Of one call, in the middle of its batches.

    span_us: from the first kernel's start to the last one's end, over the number of calls that were queued back to
    back.  It has kernels and the gaps between them, which are as real: whatever comes next waits for them.  Programs
    are compared by it.  kernel_us: the kernels' and copies' own time, without gaps.  launches: kernels and copies.
    """

    span_us: float
    kernel_us: float
    launches: float


@cache
def _mark() -> Callable[[], None]:
    import cupy

    kernel = cupy.RawKernel(f'extern "C" __global__ void {MARK}() {{}}', MARK)
    wait = cupy.cuda.runtime.deviceSynchronize

    def run() -> None:
        wait()
        kernel((1,), (1,), ())
        wait()

    return run


def split_at_marks(launches: Sequence[Launch]) -> Iterator[list[Launch]]:
    """What ran between the first mark and the second, between the third and the fourth, and so on, in order."""
    inside: list[Launch] | None = None
    for launch in launches:
        if launch.name != MARK:
            if inside is not None:
                inside.append(launch)
        elif inside is None:
            inside = []
        else:
            yield inside
            inside = None


def find_held(launches: Sequence[Launch]) -> int:
    """How many of a batch's launches are what held the GPU back, and what came before that."""
    held = [
        number
        for number, launch in enumerate(launches)
        if launch.name == SPIN_NAME or PLUG_NAME in launch.module
    ]
    if not held:  # XLA does not always say which program a product belongs to
        held = [n for n, launch in enumerate(launches) if classify_kernel(launch.name) == PRODUCT]
    return max(held, default=-1) + 1


def time_of_call(launches: Sequence[Launch], calls: int) -> GpuTime | None:
    """Of one of `calls` calls, without what held the GPU back before them; None where nothing is left."""
    own = launches[find_held(launches) :]
    own = own[len(own) % calls :]  # what else the program of products launches stands first
    if not own:
        return None
    end = max(launch.start_us + launch.us for launch in own)
    busy = sum(launch.us for launch in own)
    return GpuTime((end - own[0].start_us) / calls, busy / calls, len(own) / calls)


def record_batches(batches: Sequence[Callable[[], object]]) -> list[list[Launch]]:
    """What each of them launched, which all wait for what they issue: nothing holds the GPU back.

    Raises NothingRecorded where the profiler sees no kernel.
    """
    if importlib.util.find_spec("cupy") is None:  # no marks: a recording for each
        return [record_launches(batch) for batch in batches]
    mark = _mark()

    def issue() -> None:
        for batch in batches:
            mark()
            try:
                batch()
            finally:
                mark()

    found = list(split_at_marks(record_launches(issue)))
    if len(found) != len(batches):
        raise NothingRecorded("the profiler saw not all kernels: is CUPTI installed?")
    return found


class DeviceTimes:
    """What is measured in one recording.  Calls of XLA's must launch no products: those hold the GPU back.

    exposed: keys whose last calls the host could not queue in time, so that its gaps are in their spans.
    """

    def __init__(self) -> None:
        self.runs: list[tuple[Hashable, int]] = []
        self.exposed: set[Hashable] = set()
        self._host_us: dict[Hashable, float] = {}

    def run(self, key: Hashable, runner: Runner, calls: int) -> None:
        """Queues `calls` calls of a runner, once; fewer where the GPU cannot be held back for so long.  Only while
        `record` runs.  The runner must have a `hold`."""
        calls = min(calls, MOST_CALLS)
        runner.wait(runner.call())
        for number in range(MOST_TRIES):
            last = number == MOST_TRIES - 1
            queued = self._queue(key, runner, calls, last=last)
            if queued:
                self.exposed.discard(key)
                return
            calls = max(1, calls // 2)
        self.exposed.add(key)

    def _queue(self, key: Hashable, runner: Runner, calls: int, *, last: bool) -> bool:
        """Were all calls queued while the GPU was held back?  If not they do not count, unless it is the last try."""
        assert runner.hold is not None
        wanted_us = MARGIN * calls * self._host_us.get(key, 0.0)
        done = 0
        _mark()()
        try:
            held_us = runner.hold(max(wanted_us, QUEUE_US))
            start = time.perf_counter()
            for _ in range(calls):
                results = runner.call()
            issued_us = (time.perf_counter() - start) * 1e6
            runner.wait(results)
            queued = issued_us <= held_us
            self._host_us[key] = issued_us / calls
            done = calls if queued or last else 0
        finally:  # a mark without its pair would shift the batches of all that is run after it
            _mark()()
            self.runs.append((key, done))
        return queued

    def record(self, measure: Callable[[], Any]) -> dict[Hashable, GpuTime]:
        """Runs `measure`, which calls `run`; the time of a call by key, the median of the times that a key was run.

        Raises NothingRecorded where the profiler sees no kernel.
        """
        launches = record_launches(measure)
        if self.runs and all(launch.name != MARK for launch in launches):
            raise NothingRecorded("the profiler saw no kernel: is CUPTI installed?")
        found: dict[Hashable, list[GpuTime]] = {}
        for (key, calls), group in zip(self.runs, split_at_marks(launches), strict=True):
            time_ = time_of_call(group, calls) if calls else None
            if time_ is not None:
                found.setdefault(key, []).append(time_)
        return {key: _middle(times) for key, times in found.items()}


def _middle(times: Sequence[GpuTime]) -> GpuTime:
    return GpuTime(
        statistics.median(t.span_us for t in times),
        statistics.median(t.kernel_us for t in times),
        statistics.median(t.launches for t in times),
    )


def split_times(times: Mapping[str, GpuTime]) -> dict[str, Any]:
    """The fields of a results.Row that hold them."""
    return {
        "gpu_us": {name: t.span_us for name, t in times.items()},
        "kernel_us": {name: t.kernel_us for name, t in times.items()},
        "launches": {name: t.launches for name, t in times.items()},
    }


def measure_gpu(
    runners: Sequence[Runner],
    wall_us: Mapping[str, float],
    batches: int,
    budget_s: float = math.inf,
) -> tuple[dict[str, GpuTime], dict[str, str]]:
    """The time of a call by runner, those in turns that have a `hold`; and notes by runner.  Raises NothingRecorded."""
    held = [runner for runner in runners if runner.hold is not None]
    if not held:
        return {}, {}
    spans = DeviceTimes()

    def measure() -> None:
        for _ in take_turns(batches, budget_s):
            for runner in held:
                calls = choose_calls(wall_us[runner.name], QUEUE_US, MOST_CALLS)
                spans.run(runner.name, runner, calls)

    found = {str(name): time_ for name, time_ in spans.record(measure).items()}
    late = "GPU time with gaps of the host's, which queues calls slower than they can be held back"
    return found, {str(name): late for name in spans.exposed}


def measure_gap() -> dict[str, float]:
    """Microseconds between two empty kernels in a stream: "profiler", recorded as all is here; "events": between two
    CUDA events, nothing recorded.  What the first is more is what recording adds to each gap."""
    import cupy

    kernel = cupy.RawKernel(f'extern "C" __global__ void {EMPTY}() {{}}', EMPTY)

    def call() -> None:
        kernel((1,), (1,), ())

    def wait(_: Any) -> None:
        cupy.cuda.runtime.deviceSynchronize()

    call()
    runner = Runner(EMPTY, call, wait, list, hold_cupy)
    found, _ = measure_gpu([runner], {EMPTY: 1.0}, 9)
    own_us = found[EMPTY].kernel_us
    by_events = statistics.median(time_queued_cupy(call, MOST_CALLS, 20.0) for _ in range(9))
    gaps = MOST_CALLS - 1
    return {
        "profiler": (found[EMPTY].span_us - own_us) * MOST_CALLS / gaps,
        "events": by_events - own_us,
    }
