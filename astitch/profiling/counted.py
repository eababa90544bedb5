"""Both sides of a target called once, a mark between them: the process that Nsight Compute watches.

Takes the engine, whether the target carries, and what names it; hands on nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from astitch.gpu import from_device
from astitch.profiling.counters import MARK
from astitch.profiling.measured import prepare
from astitch.profiling.report import SIDES
from astitch.profiling.target import read_target


def main(arguments: Sequence[str]) -> None:
    """Prepares both, which calls each once, then calls them while the profiler counts."""
    import cupy

    from astitch.executor import current_gpu

    engine, carries, text, *args = arguments
    target = read_target(text, args, carries=carries == "1")
    gpu = from_device(current_gpu())
    runners = [prepare(target, s, gpu, engine or None, strict=False).runner for s in SIDES]
    mark = cupy.RawKernel(f'extern "C" __global__ void {MARK}() {{}}', MARK)
    mark.compile()
    cupy.cuda.runtime.profilerStart()
    for number, runner in enumerate(runners):
        if number:
            mark((1,), (1,), ())
            cupy.cuda.runtime.deviceSynchronize()
        runner.wait(runner.call())
    cupy.cuda.runtime.profilerStop()
