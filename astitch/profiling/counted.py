"""One side of a target called once: the process that Nsight Compute watches.

Takes the side, the engine, whether the target carries, and what names it; hands on nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from astitch.device.gpu import from_device
from astitch.profiling.measured import prepare
from astitch.profiling.target import read_target


def main(arguments: Sequence[str]) -> None:
    """Prepares the side, which calls it once, then calls it while the profiler counts."""
    import cupy

    from astitch.run.executor import current_gpu

    side, engine, carries, text, *args = arguments
    target = read_target(text, args, carries=carries == "1")
    gpu = from_device(current_gpu())
    runner = prepare(target, side, gpu, engine or None, strict=False).runner
    cupy.cuda.runtime.profilerStart()
    runner.wait(runner.call())
    cupy.cuda.runtime.profilerStop()
