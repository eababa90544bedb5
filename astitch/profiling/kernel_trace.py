"""GPU time and launches by class of kernel: memory-intensive, products and convolutions, copies.

Takes a function that issues calls, hands on a KernelTimes for one call: JAX's profiler records whatever the process
launches, CuPy's kernels as well as XLA's, and a kernel's name says its class.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astitch.profiling.report import COPY, KINDS, MEMORY, PRODUCT

COPY_NAME = re.compile(r"^\[?(CUDA )?mem(cpy|set)", re.IGNORECASE)

PRODUCT_NAME = re.compile(
    r"gemm|gemv|nvjet|xmma|cutlass|cublas|splitk|cudnn|conv(?!ert)|fprop|dgrad|wgrad|winograd"
    r"|narrow_product|(^|_)dot(_|$)",
    re.IGNORECASE,
)
"""cuBLAS, cuDNN, XLA's, CUTLASS's and our own products.  XLA calls conversions `convert`."""


class NothingRecorded(Exception):
    """The profiler saw no kernel."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel or copy on the GPU.  start_us: since some moment.  details: of a kernel, like `regs:32 grid:8,1,1`.
    module, op: XLA's module and the instruction in it that launched it, "" where XLA does not say."""

    name: str
    us: float
    start_us: float = 0.0
    details: str = ""
    module: str = ""
    op: str = ""


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """The kernels of one call. us, count: by class.  slowest: the names with the most time, and that time in us."""

    us: Mapping[str, float]
    count: Mapping[str, float]
    slowest: Mapping[str, float]

    @property
    def total_us(self) -> float:
        return sum(self.us.values())


def classify_kernel(name: str) -> str:
    """One of KINDS."""
    if COPY_NAME.match(name):
        return COPY
    return PRODUCT if PRODUCT_NAME.search(name) else MEMORY


def sum_launches(launches: Iterable[Launch], calls: int, most: int = 8) -> KernelTimes:
    """The launches of `calls` calls, for one.  most: names to list.  Raises NothingRecorded."""
    us = dict.fromkeys(KINDS, 0.0)
    count = dict.fromkeys(KINDS, 0.0)
    by_name: dict[str, float] = {}
    for launch in launches:
        kind = classify_kernel(launch.name)
        us[kind] += launch.us / calls
        count[kind] += 1 / calls
        by_name[launch.name] = by_name.get(launch.name, 0.0) + launch.us / calls
    if not by_name:
        raise NothingRecorded("the profiler saw no kernel: is there a GPU, and is CUPTI installed?")
    slowest = sorted(by_name.items(), key=lambda item: -item[1])[:most]
    rounded = {kind: round(n, 2) for kind, n in count.items()}
    return KernelTimes(us, rounded, dict(slowest))


def read_launches(profile: Any) -> Iterator[Launch]:
    """The launches in a jax.profiler.ProfileData.  Other lines of a GPU's plane repeat the streams' work by op and
    module."""
    for plane in profile.planes:
        if plane.name.startswith("/device:GPU"):
            for line in plane.lines:
                if line.name.startswith("Stream"):
                    for event in line.events:
                        stats = dict(event.stats)
                        yield Launch(
                            event.name,
                            event.duration_ns / 1e3,
                            event.start_ns / 1e3,
                            str(stats.get("kernel_details", "")),
                            str(stats.get("hlo_module", "")),
                            str(stats.get("hlo_op", "")),
                        )


def record_launches(issue: Callable[[], object]) -> list[Launch]:
    """What was launched while `issue` ran, in the order of the GPU.  issue: waits for what it issued."""
    import jax

    options = jax.profiler.ProfileOptions()
    # What the host does would fill the trace, and slow the calls down.
    options.host_tracer_level = 0
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            issue()
        launches = [
            launch
            for file in Path(folder).rglob("*.xplane.pb")
            for launch in read_launches(jax.profiler.ProfileData.from_file(str(file)))
        ]
    return sorted(launches, key=lambda launch: launch.start_us)


def record_kernels(issue: Callable[[int], object], calls: int) -> KernelTimes:
    """issue: issues that many calls and waits for them.  Raises NothingRecorded."""
    return sum_launches(record_launches(lambda: issue(calls)), calls)
