"""The kernels of a Compilation and of its loops, compiled in the form in which XLA launches them.

Takes kernels as planned, emits their text under XLA's ABI, has it compiled, and hands on cubins or PTX with their
launches.  What the device cannot run becomes a refusal with its reason; XLA computes its ops.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from astitch.device.cuda_driver import driver_version
from astitch.device.gpu import Gpu
from astitch.emit_cuda import emit_cuda
from astitch.errors import KernelCompileError
from astitch.faults import FaultLog
from astitch.graph.ir import Graph
from astitch.kernel import kernel_ir as k
from astitch.kernel.entry import LaunchAbi
from astitch.kernel.in_place import InPlace
from astitch.kernel.pieces import spread_parameter
from astitch.loops.analysis import LoopKey, loop_key
from astitch.loops.emit import LoopKernel, emit_loop
from astitch.loops.plan import LoopPlanner
from astitch.program.steps import CudaKernel, KernelStep
from astitch.search.plan import Plan
from astitch.show.compilation import Compilation
from astitch.toolchain.kernel_cache import compile_cached
from astitch.toolchain.nvrtc import (
    CompiledKernel,
    Request,
    choose_nvrtc,
    compile_each_cuda,
    show_version,
)
from astitch.toolchain.override import offer
from astitch.xla.memory_reuse import find_plan_in_place
from astitch.xla.slices import SliceWrite
from astitch.xla.stitch_loops import name_loop

log = logging.getLogger("astitch")

MAX_POINTERS = 1000
"""Parameters of a kernel that XLA packs; CUDA itself allows 4,095 pointers from 12.1 on."""

XLA = LaunchAbi(pointer_table=False, own_words=True, tokens=True, static_shared=True)
"""XLA passes operands and results, each as a parameter, and nothing else.

To a kernel that it gives shared memory it leaves little L1 cache (CudaKernel::UpdateMaxDynamicSharedMemoryBytes).
"""


class Code(enum.Enum):
    """The form in which XLA gets kernels: compiled, or as PTX, which the driver assembles when it loads them."""

    CUBIN = enum.auto()
    PTX = enum.auto()


def choose_code(arch: str) -> Code:
    """Cubins, which the driver only has to load; it assembles one kernel after the other.

    XLA passes what it was given as PTX to the driver's loader, which tells them apart.  But where JAX keeps executables
    on disk, they hold the text as a UTF-8 string, and a cubin is none.  A driver knows no PTX of a newer NVRTC: then
    JAX cannot read again what it keeps.  Raises KernelCompileError where no NVRTC compiles for `arch`.
    """
    import jax

    settings: Any = jax.config
    if not (settings.jax_enable_compilation_cache and settings.jax_compilation_cache_dir):
        return Code.CUBIN
    version, driver = choose_nvrtc(arch).nvrtc.version, driver_version()
    if driver is None or version <= driver:
        return Code.PTX
    _warn_of_newer_nvrtc(show_version(version), show_version(driver))
    return Code.CUBIN


@cache
def _warn_of_newer_nvrtc(version: str, driver: str) -> None:
    """Once in a process."""
    log.warning(
        "NVRTC %s is newer than the driver (%s): JAX cannot read programs with astitch's kernels from its cache "
        "on disk; install an NVRTC that is not (nvidia-cuda-nvrtc, for CUDA 12 nvidia-cuda-nvrtc-cu12)",
        version,
        driver,
    )


@dataclass(frozen=True, slots=True)
class XlaKernel:
    """A kernel as XLA launches it.  Its parameters are those of the KernelStep, without the barrier words.

    symbol: what it is called in the code.  code: a cubin, or PTX.
    ordered: its blocks wait for each other.  Two such kernels must not run at once, since each may hold the place that
    the other waits for; so it takes two more parameters, which it does not touch: the token of the ordered kernel
    before it and its own.  in_place: which arguments of the step share memory.  slices: which are slices of arrays.
    """

    name: str
    symbol: str
    code: bytes = field(repr=False)
    grid: int
    block: int
    shared_bytes: int
    ordered: bool
    in_place: tuple[InPlace, ...] = ()
    slices: tuple[SliceWrite, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelRefusal:
    """A kernel that XLA cannot launch or does as well, and why; XLA computes its ops by itself.

    undo: the directive that has it launched after all; empty: there is none.
    """

    name: str
    reason: str
    undo: str = field(default="", compare=False)

    def __str__(self) -> str:
        undo = f"\n    to reverse it: {self.undo}" if self.undo else ""
        return f"{self.name} is left to XLA: {self.reason}{undo}"


def emit_for_xla(
    kernel: k.Kernel, in_place: Sequence[InPlace] = (), slices: Sequence[SliceWrite] = ()
) -> str:
    """The text of a kernel that XLA launches.

    in_place: pairs of parameters that share memory: the compiler must not move their accesses past each other.
    slices: see XlaKernel.
    """
    aliased = frozenset(number for pair in in_place for number in (pair.read, pair.written))
    cuts = tuple(one.slice for one in slices)
    for one in slices:
        if one.run:
            kernel = spread_parameter(kernel, one.written, one.run, one.step)
    return emit_cuda(kernel, replace(XLA, aliased=aliased, slices=cuts))


def emit_loop_for_xla(loop: LoopKernel) -> str:
    """The text of a loop's kernel that XLA launches."""
    return emit_loop(loop.plan, loop.kernel.name, XLA).kernel.source


Kernels = Mapping[str, XlaKernel | KernelRefusal]
"""The kernels of a program by their names, in the order of its steps."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A kernel to be compiled for XLA.  emit: gives its text.  in_place, slices: see XlaKernel."""

    kernel: CudaKernel
    emit: Callable[[], str]
    in_place: tuple[InPlace, ...] = ()
    slices: tuple[SliceWrite, ...] = ()


def prepare_kernels(
    compilation: Compilation,
    gpu: Gpu,
    in_place: Mapping[str, Sequence[InPlace]] = MappingProxyType({}),
    left: Mapping[str, str] = MappingProxyType({}),
    code: Code = Code.PTX,
    faults: FaultLog | None = None,
    slices: Mapping[str, Sequence[SliceWrite]] = MappingProxyType({}),
) -> Kernels:
    """Each kernel of a compilation's program compiled for a device, or why not.

    in_place: see find_in_place.  slices: see find_slices.  left: what is XLA's anyway, with the reasons.
    faults: keeps the errors that leave a kernel's ops to XLA.  Raises CompilerMissing.
    """
    planned = {plan.kernel.name: plan.kernel for plan in compilation.plans}
    prepared: dict[str, XlaKernel | KernelRefusal] = {}
    wanted: list[_Wanted] = []
    steps = [step for step in compilation.program.steps if isinstance(step, KernelStep)]
    for step in steps:
        name, cuts = step.kernel.name, tuple(slices.get(step.kernel.name, ()))
        count = len(step.arguments) + step.kernel.cooperative
        count += sum(1 + len(cut.starts) for cut in cuts)
        if name in left:
            prepared[name] = KernelRefusal(name, left[name], f"keep {name}")
        elif count > MAX_POINTERS:
            prepared[name] = KernelRefusal(name, f"{count} arrays, XLA passes {MAX_POINTERS}")
        else:
            inside = {cut.written for cut in cuts}
            pairs = tuple(p for p in in_place.get(name, ()) if p.written not in inside)
            emit = partial(emit_for_xla, planned[name], pairs, cuts)
            wanted.append(_Wanted(step.kernel, emit, pairs, cuts))
    prepared |= _compile_wanted(wanted, gpu, code, faults or FaultLog(), compilation.program.name)
    return {step.kernel.name: prepared[step.kernel.name] for step in steps}


def _compile_wanted(
    wanted: Sequence[_Wanted], gpu: Gpu, code: Code, faults: FaultLog, program: str = "loops"
) -> dict[str, XlaKernel | KernelRefusal]:
    """The kernels in the form that XLA launches, by name.  Raises CompilerMissing."""
    prepared: dict[str, XlaKernel | KernelRefusal] = {}
    emitted: list[tuple[_Wanted, str]] = []
    for one in wanted:
        try:
            emitted.append((one, one.emit()))
        except Exception as error:
            prepared[one.kernel.name] = _refuse_kernel(one.kernel.name, error, faults)
    for one, text in emitted:
        offer(program, one.kernel.name, text, one.kernel.launch)
    requests = [Request(text, gpu.arch) for _, text in emitted]
    compiled = compile_each_cuda(requests, compile_one=compile_cached)
    for (one, _), result in zip(emitted, compiled, strict=True):
        prepared[one.kernel.name] = (
            _refuse_kernel(one.kernel.name, result, faults)
            if isinstance(result, KernelCompileError)
            else _admit(one, result, gpu, code)
        )
    return prepared


def _refuse_kernel(name: str, error: Exception, faults: FaultLog) -> KernelRefusal:
    """The refusal of a kernel that an error inside astitch keeps from being compiled."""
    cost = "its ops are left to XLA"
    fault = faults.note(error, stage="compile the text", subject=f"kernel {name}", cost=cost)
    return KernelRefusal(name, f"an error inside astitch: {fault.error}")


@dataclass(frozen=True, slots=True)
class LoopCall:
    """A loop as a kernel that XLA can launch."""

    loop: LoopKernel
    kernel: XlaKernel


def prepare_loops(
    loops: Mapping[LoopKey, LoopKernel],
    gpu: Gpu,
    code: Code = Code.PTX,
    faults: FaultLog | None = None,
) -> tuple[dict[LoopKey, LoopCall], tuple[str, ...]]:
    """The kernels of loops compiled for a device, and notes on those that it cannot run.

    faults: keeps the errors that leave a loop to XLA.  Raises CompilerMissing.
    """
    wanted = [_Wanted(loop.kernel, partial(emit_loop_for_xla, loop)) for loop in loops.values()]
    compiled = _compile_wanted(wanted, gpu, code, faults or FaultLog())
    prepared, notes = {}, []
    for key, loop in loops.items():
        kernel = compiled[loop.kernel.name]
        if isinstance(kernel, XlaKernel):
            prepared[key] = LoopCall(loop, kernel)
        else:
            notes.append(str(kernel))
    return prepared, tuple(notes)


def _admit(
    wanted: _Wanted, compiled: CompiledKernel, gpu: Gpu, code: Code
) -> XlaKernel | KernelRefusal:
    """The kernel, if it can be launched and its blocks, where they wait for each other, are resident together.

    XLA has no cooperative launch that would check it.  A cubin has the registers seen here; of PTX the driver's
    assembler keeps to the launch bounds whatever its version, so residency follows from them and from shared memory.
    """
    kernel = wanted.kernel
    used = compiled.kernels[kernel.name]
    # Not all that is static is LaunchAbi's: a hand-edited text may have some beside what the launch gives.
    given = kernel.shared_bytes if compiled.is_given_shared else 0
    shared = used.static_shared_bytes + given
    resident = gpu.blocks_per_sm(kernel.block, used.registers, shared)
    if not resident:
        return KernelRefusal(
            kernel.name, f"no block fits {gpu.name}: {used.registers} registers, {shared} B shared"
        )
    if kernel.cooperative:
        bound = gpu.max_registers(kernel.block, max(kernel.blocks_per_sm, 1))
        resident = min(resident, gpu.blocks_per_sm(kernel.block, bound, shared))
        if resident * gpu.sms < kernel.grid:
            return KernelRefusal(
                kernel.name,
                f"{kernel.grid} blocks wait for each other, {resident} x {gpu.sms} are resident",
            )
    symbol, data = name_entry(compiled, kernel.name, code)
    return XlaKernel(
        kernel.name,
        symbol,
        data,
        kernel.grid,
        kernel.block,
        given,
        kernel.cooperative,
        wanted.in_place,
        wanted.slices,
    )


def name_entry(compiled: CompiledKernel, name: str, code: Code) -> tuple[str, bytes]:
    """What a kernel is called in its code, and the code: it has the kernel's own name, which profilers show.

    In a cubin it is written over the one that all texts of one form share, if it is no longer than that.
    """
    symbol = compiled.symbol(name)
    if code is Code.PTX:
        return name, compiled.ptx.replace(symbol.encode(), name.encode())
    if len(name) > len(symbol):
        return symbol, compiled.cubin
    # Names in its tables end with a zero, and so do those of the sections that belong to an entry.
    old, new = (f"{text}\0".encode() for text in (symbol, name))
    return name, compiled.cubin.replace(old, new.ljust(len(old), b"\0"))


def emit_plan_for_xla(plan: Plan, donated: Sequence[bool]) -> str:
    """The text that prepare_kernels will have compiled, as far as that is known of a plan alone.

    It may be another where what is read in place is read by ops that neither come before the kernel nor are in it.
    """
    return emit_for_xla(plan.kernel, find_plan_in_place(plan, donated))


def start_loops(
    graph: Graph,
    planner: LoopPlanner,
    pool: Executor,
    hand_out: Callable[[str, CompiledKernel], object],
) -> None:
    """Compiles the kernels of a graph's loops in a pool, the longest first, while other kernels are planned.

    The kernel cache has them when prepare_loops asks for them; an error here happens again there, and is noted then.

    hand_out: is given each with the name that it will have, if the program has the loops in the order of the graph.
    """
    plans = {loop_key(graph, plan.loop.node): plan for plan in planner.find_plans(graph)}
    kernels = [emit_loop(plan, name_loop(n), XLA).kernel for n, plan in enumerate(plans.values())]

    def build(name: str, text: str) -> None:
        hand_out(name, compile_cached(Request(text, planner.gpu.arch)))

    texts = {kernel.name: kernel.source for kernel in kernels}
    for name, text in sorted(texts.items(), key=lambda item: -len(item[1])):
        pool.submit(build, name, text)
