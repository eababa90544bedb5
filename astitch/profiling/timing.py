"""The wall time of pipelined calls: takes Runners, hands on microseconds.

XLA's stream takes no events of ours, so one clock serves all.  It is the wall time of a batch of calls issued back to
back, whose end is waited for once; runners take turns, so that drifts hit all alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

BATCH_US = 4000.0
"""Work of a batch: long beside the 10 us for which its end is waited."""

IN_FLIGHT = 8
"""The least number of long calls in a batch.  With fewer calls two waits are a good part of the time: the GPU waits for
the first launch, the host for the last end."""

LONGEST_BATCH_US = 400_000.0
"""Work of a batch with no more calls than IN_FLIGHT."""

LEAST_BATCHES = 3


@dataclass(frozen=True, slots=True)
class Runner:
    """One peer on one case.

    call: issues one call and hands on its results.  wait: until those are there.  flatten: the results as JAX
    arrays.  hold: keeps the calls' GPU busy for so many microseconds, if it can, while calls are queued behind that;
    hands on for how many.  None: its GPU time is not measured.  within: entered around the calls of a batch.
    """

    name: str
    call: Callable[[], Any]
    wait: Callable[[Any], object]
    flatten: Callable[[Any], list[Any]]
    hold: Callable[[float], float] | None = None
    within: Callable[[], AbstractContextManager[object]] = nullcontext


def time_batch(runner: Runner, calls: int) -> float:
    """Microseconds of a call, `calls` of them in flight."""
    with runner.within():
        start = time.perf_counter()
        for _ in range(calls):
            results = runner.call()
        runner.wait(results)
        return (time.perf_counter() - start) / calls * 1e6


def take_turns(batches: int, budget_s: float) -> Iterator[int]:
    """The numbers of the batches: all of them, or after LEAST_BATCHES those that begin within the seconds."""
    start = time.perf_counter()
    for number in range(batches):
        if number >= LEAST_BATCHES and time.perf_counter() - start > budget_s:
            return
        yield number


def time_turns(
    runners: Sequence[Runner], batches: int, budget_s: float = math.inf
) -> dict[str, list[float]]:
    """Wall microseconds of a call by runner, one of each batch, the runners taking turns.  budget_s: see take_turns."""
    calls = {}
    for runner in runners:
        time_batch(runner, 2)
        calls[runner.name] = choose_batch(time_batch(runner, 3))
    times: dict[str, list[float]] = {runner.name: [] for runner in runners}
    for _ in take_turns(batches, budget_s):
        for runner in runners:
            times[runner.name].append(time_batch(runner, calls[runner.name]))
    return times


def measure_wall(
    runners: Sequence[Runner], batches: int, budget_s: float = math.inf
) -> dict[str, float]:
    """The median of time_turns by runner."""
    times = time_turns(runners, batches, budget_s)
    return {name: statistics.median(row) for name, row in times.items()}


def choose_calls(us: float, work_us: float, most: int) -> int:
    """Calls of `us` microseconds that make up `work_us`: at least 1, at most `most`."""
    return max(1, min(most, round(work_us / max(us, 1.0))))


def choose_batch(us: float) -> int:
    """Calls of a batch, of `us` microseconds each."""
    return max(choose_calls(us, BATCH_US, 200), choose_calls(us, LONGEST_BATCH_US, IN_FLIGHT))
