"""One side of a target called once between two marks: the process that Nsight Compute watches.

Takes the side, the engine, whether it carries, and what names the target; hands on nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from astitch.gpu import from_device
from astitch.profiling.measured import prepare
from astitch.profiling.target import read_target


def main(arguments: Sequence[str]) -> None:
    """Prepares the side, warms it up and calls it once while the profiler counts."""
    import cupy

    from astitch.executor import current_gpu

    side, engine, carries, text, *args = arguments
    target = read_target(text, args, carries=carries == "1")
    prepared = prepare(target, side, from_device(current_gpu()), engine or None, strict=False)
    runner = prepared.runner
    runner.wait(runner.call())
    cupy.cuda.runtime.profilerStart()
    runner.wait(runner.call())
    cupy.cuda.runtime.profilerStop()
