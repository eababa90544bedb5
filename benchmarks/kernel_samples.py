"""Kernels to be launched once each under compute-sanitizer: of the suite, the corpus, the models, scans, sums, loops.

Takes sources of programs and a device, hands on Samples: a compiled kernel with what each of its arguments is.  The
sources are compiled without a GPU; what launches them loads neither JAX nor the compiler.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import itertools
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from astitch.device.gpu import Gpu
from astitch.graph.ir import ArrayType, ConstantAttrs, DType, Graph
from astitch.graph.storage import storage_type
from astitch.hlo_import import import_hlo
from astitch.loops.emit import LoopKernel
from astitch.program.steps import CudaKernel
from astitch.search.build_program import make_cuda_kernel
from astitch.search.measure import make_values
from astitch.search.plan import Plan
from astitch.toolchain.kernel_cache import compile_cached
from astitch.toolchain.nvrtc import Request

BEGIN, REFUSED, FAILED, END = "== begin", "== refused", "== failed", "== end"
"""How the process that launches tells how far it is; the first three with the number of a sample."""

FEW_SMS = 4
"""Planned for so few, blocks have many tasks each, and block groups meet, on small data."""


class Fill(enum.Enum):
    """What an argument holds before the launch.  NOTHING: it is written first, so that initcheck sees who reads it."""

    VALUES = "values"
    CONSTANT = "constant"
    NOTHING = "nothing"
    ZEROS = "zeros"


@dataclass(frozen=True, slots=True)
class Argument:
    """type: of as many bytes as are allocated.  seed: of VALUES.  value: a CONSTANT's bytes."""

    type: ArrayType
    fill: Fill
    seed: int = 0
    value: bytes = field(default=b"", repr=False)

    def make(self) -> np.ndarray | None:
        """Its bytes; None where nobody writes them before the kernel."""
        match self.fill:
            case Fill.VALUES:
                values = np.ascontiguousarray(make_values(self.type, self.seed))
                return values.reshape(-1).view(np.uint8)
            case Fill.CONSTANT:
                return np.frombuffer(self.value, np.uint8)
            case Fill.ZEROS:
                return np.zeros(self.type.bytes, np.uint8)
            case Fill.NOTHING:
                return None


@dataclass(frozen=True, slots=True)
class KernelSample:
    """name: source and kernel.  symbol: what the kernel is called in its cubin, and so in a report."""

    name: str
    symbol: str
    kernel: CudaKernel
    arguments: tuple[Argument, ...]
    cubin: bytes = field(repr=False)


# ---- sources -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """A program.  group: suite, corpus, model, scan, sum or loop.  few: planned for FEW_SMS."""

    group: str
    name: str
    few: bool = False

    def __str__(self) -> str:
        return f"{self.group}/{self.name}" + (f"@{FEW_SMS}" if self.few else "")


SHAPES = (3, 5), (700, 33), (64, 4096), (5, 20001), (2053, 7), (9001, 40)
"""Of scans and sums of columns, f32 and bf16."""

MODELS = ("bert", "transformer", "crnn", "asr", "dien")

LOOPS: dict[str, tuple[Any, ...]] = {
    "crnn": ((8, 8, 16, 16, 16, 16, 32), 256, 37, 8, 40, 4),
    "asr": (40, 1, 256, 512, 512, 46, 8, 8, 5),
    "dien": (100, 50, 16, 18, (80, 40), (20, 8), (10, 5), 32, 6),
}
"""Sizes of models whose loops are as wide as at full size, so that several blocks share a row's state, but short."""


def list_sources() -> list[Source]:
    """All of them; what takes long to compile first."""
    from benchmarks.patterns import DTYPES, PATTERNS
    from tests.programs import PROGRAMS

    modes = ("train", "infer")
    names = {
        "loop": [f"{model}-{mode}" for model, mode in itertools.product(LOOPS, modes)],
        "model": [f"{model}-{mode}" for model, mode in itertools.product(MODELS, modes)],
        "suite": [f"{p.name}-{dtype}" for p in PATTERNS for dtype in DTYPES],
        "corpus": list(PROGRAMS),
        "scan": [_name_shape(*row) for row in itertools.product(SHAPES, DTYPES, (0, 1))],
        "sum": [_name_shape(*row) for row in itertools.product(SHAPES, DTYPES)],
    }
    whole = [Source(group, name) for group, found in names.items() for name in found]
    return whole + [
        dataclasses.replace(source, few=True)
        for source in whole
        if source.group not in ("loop", "model")
    ]


def _name_shape(shape: tuple[int, int], dtype: str, axis: int = 0) -> str:
    return f"{shape[0]}x{shape[1]}-{dtype}-{axis}"


def lower_source(source: Source) -> bytes:
    """Its HLO, serialized."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from benchmarks.patterns import DTYPES, PATTERNS

    first, _, last = source.name.rpartition("-")
    match source.group:
        case "corpus":
            from tests.programs import load

            return load(source.name)
        case "suite":
            (pattern,) = [p for p in PATTERNS if p.name == first]
            case = pattern.case("small", last)
            return _lower(case.fn, *(argument.spec for argument in case.arguments))
        case "model":
            from benchmarks.models import Entry, make_task

            task = make_task(Entry(first, last, "tiny"))
            return _lower(task.fn, task.first, task.batch)
        case "loop":
            return _lower_model(first, last)
        case _:
            shape, dtype = first.split("-")
            rows, columns = map(int, shape.split("x"))
            x = jax.ShapeDtypeStruct((rows, columns), DTYPES[dtype])
            axis = int(last)

            def scan(x: Any) -> Any:
                return lax.cumsum(x, axis) * 2, lax.cummax(x, axis, reverse=True)

            def add(x: Any) -> Any:
                return x.sum(0), jnp.square(x.astype(jnp.float32)).sum(0)

            return _lower(scan if source.group == "scan" else add, x)


def _lower(fn: Callable[..., Any], *arguments: Any) -> bytes:
    import jax

    lowered = jax.jit(fn).trace(*arguments).lower(lowering_platforms=("cuda",))
    return bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())


def _lower_model(name: str, mode: str) -> bytes:
    from benchmarks.models import BATCH_KEY, PARAMETER_KEY
    from benchmarks.workloads import WORKLOADS
    from benchmarks.workloads.adam import start_training

    module = WORKLOADS[name]
    size = module.Size(*LOOPS[name])
    parameters, batch = (
        module.make_parameters(PARAMETER_KEY, size),
        module.make_batch(BATCH_KEY, size),
    )
    if mode == "train":
        return _lower(module.train_step, start_training(parameters), batch)
    return _lower(module.infer, parameters, batch)


# ---- compiling ---------------------------------------------------------------------------------------------------


def collect(source: Source, gpu: Gpu) -> list[KernelSample]:
    """The kernels of a source: of the group "loop" those of loops alone.  Raises AstitchError."""
    from astitch.compile import compile_hlo
    from astitch.xla.compile_module import compile_for_xla
    from astitch.xla.stitch_loops import find_loops

    if source.few:
        gpu = dataclasses.replace(gpu, sms=FEW_SMS, name=f"{gpu.name} of {FEW_SMS} SMs")
    graph = import_hlo(hlo := lower_source(source))
    found: list[tuple[CudaKernel, tuple[Argument, ...]]] = []
    if any(node.op == "while" for node in graph):
        compilation, _ = compile_for_xla(graph, gpu)
        loops = find_loops(compilation)[0].values()
        found += [(loop.kernel, bind_loop(loop)) for loop in loops]
    else:
        compilation = compile_hlo(hlo, gpu=gpu)
    if source.group != "loop":
        for plan in compilation.plans:
            kernel = make_cuda_kernel(plan.kernel)
            found.append((kernel, bind_plan(compilation.scopes.graph, plan, kernel)))
    samples = []
    for kernel, arguments in found:
        compiled = compile_cached(Request(kernel.source, gpu.arch))
        symbol = compiled.symbol(kernel.name)
        name = f"{source} {kernel.name}"
        samples.append(KernelSample(name, symbol, kernel, arguments, compiled.cubin))
    return samples


def bind_plan(graph: Graph, plan: Plan, kernel: CudaKernel) -> tuple[Argument, ...]:
    """What each pointer of a stitched kernel is, in their order."""
    arguments: list[Argument] = []
    for number, parameter in enumerate(plan.kernel.arguments):
        type_ = storage_type(graph, parameter.source)
        attrs = graph[parameter.source.partition("#")[0]].attrs
        if parameter.written:
            arguments.append(Argument(type_, Fill.NOTHING))
        elif isinstance(attrs, ConstantAttrs):
            words = np.ascontiguousarray(attrs.value.numpy()).tobytes()
            arguments.append(Argument(type_, Fill.CONSTANT, value=words))
        else:
            arguments.append(Argument(type_, Fill.VALUES, number))
    if plan.kernel.scratch:
        scratch = ArrayType(DType.U8, (plan.kernel.scratch_bytes,))
        arguments.append(Argument(scratch, Fill.NOTHING))
    return (*arguments, *bind_barrier(kernel))


def bind_loop(loop: LoopKernel) -> tuple[Argument, ...]:
    """What each parameter of a loop's kernel is, in their order."""
    types = loop.plan.loop.types
    operands = [Argument(types[i], Fill.VALUES, i) for i in loop.operands]
    results = [Argument(types[i], Fill.NOTHING) for i in loop.results]
    return (*operands, *results, *bind_barrier(loop.kernel))


def bind_barrier(kernel: CudaKernel) -> Iterator[Argument]:
    """The words at which blocks meet, if they do."""
    if kernel.cooperative:
        yield Argument(ArrayType(DType.U32, (kernel.barrier_words,)), Fill.ZEROS)


# ---- launching: in a process that compute-sanitizer watches ------------------------------------------------------


def launch_all(file: Path, part: int, parts: int, after: int) -> None:
    """Every `parts`-th sample of a pickled list, from number `part` on, beyond number `after`: each once.

    Tells on stdout what begins, and exits with status 3 after the first that breaks the CUDA context.
    """
    import cupy

    samples: Sequence[KernelSample] = pickle.loads(file.read_bytes())
    cupy.cuda.Device().use()
    cupy.cuda.runtime.free(0)  # the context
    for number in range(part, len(samples), parts):
        if number > after:
            print(f"{BEGIN} {number}", flush=True)
            try:
                refused = launch(cupy, samples[number])
                if refused:
                    print(f"{REFUSED} {number} {refused}", flush=True)
            except Exception as error:  # CUDA's: nothing can be launched any more
                print(f"{FAILED} {number} {' '.join(str(error).split())}", flush=True)
                sys.exit(3)
    print(END, flush=True)


def launch(cupy: Any, sample: KernelSample) -> str:
    """One launch, waited for.  Why it was refused, "" if it was not.

    Each argument is an allocation of its own, exactly as large as it is, and is filled by copies.  No kernel but the
    sample runs, and what lies beyond an array belongs to nobody.
    """
    kernel = sample.kernel
    driver, runtime = cupy.cuda.driver, cupy.cuda.runtime
    module = cupy.cuda.function.Module()
    module.load(sample.cubin)
    function = int(module.get_function(sample.symbol).ptr)
    driver.funcSetAttribute(
        function, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared_bytes
    )
    if kernel.cooperative:
        resident = driver.occupancyMaxActiveBlocksPerMultiprocessor(
            function, kernel.block, kernel.shared_bytes
        )
        room = resident * cupy.cuda.Device().attributes["MultiProcessorCount"]
        if room < kernel.grid:
            return f"{kernel.grid} blocks wait for each other, {room} are resident"
    memories = [place(cupy, argument.make(), argument.type.bytes) for argument in sample.arguments]
    pointers = np.array([memory.ptr for memory in memories], np.uint64)
    if kernel.pointer_table:
        table = place(cupy, pointers.view(np.uint8), pointers.nbytes)
        memories.append(table)
        pointers = np.array([table.ptr], np.uint64)
    slots = (ctypes.c_void_p * max(len(pointers), 1))(
        *(pointers.ctypes.data + 8 * i for i in range(len(pointers)))
    )
    shape = (kernel.grid, 1, 1, kernel.block, 1, 1, kernel.shared_bytes)
    stream = 0
    if kernel.cooperative:
        driver.launchCooperativeKernel(function, *shape, stream, ctypes.addressof(slots))
    else:
        driver.launchKernel(function, *shape, stream, ctypes.addressof(slots), 0)
    runtime.deviceSynchronize()
    return ""


def place(cupy: Any, words: np.ndarray | None, size: int) -> Any:
    """Device memory of exactly `size` bytes, by cudaMalloc and not from a pool, with `words` in it if there are any."""
    memory = cupy.cuda.Memory(max(size, 1))
    if words is not None and words.size:
        assert words.size == size, (words.size, size)
        to_device = cupy.cuda.runtime.memcpyHostToDevice
        cupy.cuda.runtime.memcpy(memory.ptr, words.ctypes.data, size, to_device)
    return memory
