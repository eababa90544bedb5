"""astitch's program as XLA launches it: what is beside the stitched kernels once XLA has compiled the whole.

Takes a target, hands on the module with the kernels as custom calls.  It joins what XLA made of that module with what
is known of each kernel.  So both sides of a report are counted in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from astitch.compile import compile_hlo
from astitch.device.gpu import Gpu
from astitch.directives import check_option, read_directives
from astitch.errors import KernelCompileError
from astitch.hlo_import import import_hlo
from astitch.profiling.report import Kernel
from astitch.profiling.target import Target
from astitch.profiling.xla_kernels import Launches
from astitch.show.compilation import Compilation
from astitch.xla.compile_module import compile_for_xla
from astitch.xla.stitched_call import has_target


def compile_inside(
    target: Target, gpu: Gpu, *, strict: bool, memory_limit: str | float | None = None
) -> tuple[Compilation, bytes | str]:
    """astitch's compilation, and the module that XLA would get; a sentence where XLA does not launch our kernels.

    memory_limit: see astitch.jit.  Nothing is donated, on either side.  Raises AstitchError for what astitch cannot
    compile.
    """
    told = check_option(None, "astitch-profile", memory_limit=memory_limit)
    if not has_target():
        older = "this JAX is older than 0.11, whose XLA launches stitched kernels"
        return compile_hlo(target.hlo, gpu=gpu, strict=strict, stitch=told), older
    graph = import_hlo(target.hlo)
    try:
        return compile_for_xla(graph, gpu, strict=strict, directives=read_directives(told))
    except KernelCompileError as error:  # no CUDA compiler: the plans are known all the same
        why = (str(error).splitlines() or [""])[0]
        return compile_hlo(target.hlo, gpu=gpu, strict=strict, stitch=told), why


def join_stitched(launches: Launches, stitched: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """XLA's launches, those of stitched kernels with all that is known of these."""
    known = {kernel.name: kernel for kernel in stitched if kernel.stitch}
    return tuple(
        repeat(known[k.name], k.launches) if k.name in known else k for k in launches.kernels
    )


def repeat(kernel: Kernel, times: float) -> Kernel:
    """The row of a kernel for so many times as many launches."""
    if times == 1.0:
        return kernel

    def scale(value: float | None) -> float | None:
        return None if value is None else value * times

    def count(value: int | None) -> int | None:
        return None if value is None else round(value * times)

    return replace(
        kernel,
        launches=kernel.launches * times,
        projected_us=scale(kernel.projected_us),
        bound_us=scale(kernel.bound_us),
        read_bytes=count(kernel.read_bytes),
        written_bytes=count(kernel.written_bytes),
        flops=count(kernel.flops),
    )
