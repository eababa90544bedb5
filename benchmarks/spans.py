"""GPU time of short calls: from the first kernel's start to the last one's end, as JAX's profiler recorded them.

Takes Runners and how often to call them, hands on microseconds of a call by key.  A clock on the host cannot tell 3 us
from 2 where XLA lets only a few calls be in flight.  The GPU is kept busy while the calls are queued, so that they run
as they would behind other work, with the gaps between kernels that the GPU itself needs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from typing import Any

from astitch.profiling.kernel_trace import PRODUCT, Launch, classify_kernel, record_launches
from astitch.profiling.timing import Runner
from benchmarks.timing import SPIN_NAME, hold_cupy, hold_xla

MARK = "astitch_mark"
"""A kernel before and after each batch of calls."""

MOST_CALLS = 20
"""XLA lets 32 programs be in flight."""


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


def time_of_call(launches: Sequence[Launch], calls: int) -> float | None:
    """Microseconds of one of `calls` calls without what held the GPU back before; None where nothing is left."""
    held = [
        number
        for number, launch in enumerate(launches)
        if launch.name == SPIN_NAME or classify_kernel(launch.name) == PRODUCT
    ]
    own = launches[max(held, default=-1) + 1 :]
    own = own[len(own) % calls :]  # what else the program of products launches stands first
    if not own:
        return None
    return (max(launch.start_us + launch.us for launch in own) - own[0].start_us) / calls


class Spans:
    """What is measured in one recording.  Calls must launch no products: those hold the GPU back."""

    def __init__(self) -> None:
        self.runs: list[tuple[Hashable, int]] = []

    def run(self, key: Hashable, runner: Runner, calls: int) -> None:
        """Queues `calls` calls of a runner of astitch's or XLA's, once.  Only while `record` runs."""
        calls = min(calls, MOST_CALLS)
        runner.wait(runner.call())
        done = 0
        _mark()()
        try:
            (hold_xla if runner.name.startswith("xla") else hold_cupy)()
            for _ in range(calls):
                results = runner.call()
            runner.wait(results)
            done = calls
        finally:  # a mark without its pair would shift the batches of all that is run after it
            _mark()()
            self.runs.append((key, done))

    def record(self, measure: Callable[[], Any]) -> dict[Hashable, float]:
        """Runs `measure`, which calls `run`; us of a call by key, the median of the times that a key was run."""
        launches = record_launches(measure)
        found: dict[Hashable, list[float]] = {}
        for (key, calls), group in zip(self.runs, split_at_marks(launches), strict=True):
            us = time_of_call(group, calls) if calls else None
            if us is not None:
                found.setdefault(key, []).append(us)
        return {key: statistics.median(times) for key, times in found.items()}
