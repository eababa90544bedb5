"""How long a launch takes on the GPU: many of them in one CUDA graph, as a program would replay them.

Takes a function that launches on a stream, hands on microseconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from astitch.device.cuda_driver import StreamAddress

TARGET_US = 1500.0
"""How long a graph of launches shall last, where MIN_LAUNCHES to MAX_LAUNCHES of them do."""

MIN_LAUNCHES, MAX_LAUNCHES = 3, 200
REPEATS = 5

LEAST_GAIN = 0.02
"""Another candidate must be faster than the first by this share: measurements scatter."""


def time_launch(cupy: Any, launch: Callable[[int, bool], None]) -> float:
    """Median microseconds of a launch.

    launch: of the address of a stream, and whether it is captured into a graph.  It has been called before, so that
    its code is loaded, and what it reads is there.
    """
    stream = cupy.cuda.Stream(non_blocking=True)

    def launch_some(stream: Any) -> None:
        for _ in range(MIN_LAUNCHES):
            launch(stream.ptr, False)

    with stream:
        first = _elapsed(cupy, stream, launch_some) / MIN_LAUNCHES
        count = int(min(max(TARGET_US / max(first, 0.1), MIN_LAUNCHES), MAX_LAUNCHES))
        stream.begin_capture()
        try:
            for _ in range(count):
                launch(stream.ptr, True)
        finally:
            graph = stream.end_capture()
        graph.launch(stream)
        times = [_elapsed(cupy, stream, graph.launch) / count for _ in range(REPEATS)]
    return statistics.median(times)


def time_when_ready(cupy: Any, launch: Callable[[int], None], stream: int) -> float:
    """Microseconds of a launch, of the address of a stream, whose operands are there when `stream` has come here."""
    here = cupy.cuda.Stream.from_external(StreamAddress(stream))
    here.synchronize()
    launch(stream)
    here.synchronize()
    return time_launch(cupy, lambda queue, _: launch(queue))


def find_fastest(times_us: Sequence[float]) -> int:
    """Which of some candidates to take: the fastest, but the first where that is about as fast.  times_us: not empty,
    endless for what does not run."""
    best = min(range(len(times_us)), key=times_us.__getitem__)
    return best if times_us[best] <= (1 - LEAST_GAIN) * times_us[0] else 0


def _elapsed(cupy: Any, stream: Any, work: Callable[[Any], None]) -> float:
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record(stream)
    work(stream)
    end.record(stream)
    end.synchronize()
    return 1e3 * float(cupy.cuda.get_elapsed_time(start, end))
