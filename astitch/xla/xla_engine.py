"""A Program inside XLA: one module in which each stitched kernel is a custom call and XLA does everything else.

Takes a Compilation, hands on HLO whose custom calls hold the kernels' code, and a JAX primitive that lowers to it.
XLA launches kernels by itself, so nothing of ours runs while the program does: no Python, no buffers, no streams.
"""

from __future__ import annotations

import enum
import importlib.metadata
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from astitch import options
from astitch.compile import compile_graph, pause_collector
from astitch.device.cuda_driver import driver_version
from astitch.device.gpu import Gpu
from astitch.emit_cuda import emit_cuda
from astitch.errors import (
    IllegalProduct,
    KernelCompileError,
    UnsupportedOp,
)
from astitch.faults import FaultLog, leave_whole, report_faults
from astitch.graph.index import Symbol
from astitch.graph.ir import (
    ArrayType,
    ConstantAttrs,
    CustomCallAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    Literal,
    Node,
    ParameterAttrs,
    TupleType,
)
from astitch.graph.storage import storage_name, storage_type
from astitch.hlo.export import ModuleBuilder
from astitch.hlo.stablehlo import to_stablehlo
from astitch.hlo_import import import_hlo
from astitch.kernel import kernel_ir as k
from astitch.kernel.entry import LaunchAbi
from astitch.library.epilogues import find_epilogues, fits_into_xla_product
from astitch.library.xla_fallback import default_gpu
from astitch.loops.analysis import Counter, LoopKey, loop_key
from astitch.loops.emit import LoopKernel, emit_loop
from astitch.loops.plan import START, LoopPlanner
from astitch.pipeline import Launcher, Target
from astitch.program.steps import (
    CudaKernel,
    IslandStep,
    KernelStep,
    Step,
    View,
)
from astitch.rewrite.barriers import Barrier, Held, find_behind
from astitch.search.plan import Plan
from astitch.show.compilation import Compilation
from astitch.show.trace import trace_compilation
from astitch.stitch_scope import Left, Scope, Scopes
from astitch.system.forks import ForkLock, cached_property
from astitch.toolchain.driver_assembly import Unit, assemble_ahead
from astitch.toolchain.kernel_cache import compile_cached
from astitch.toolchain.nvrtc import (
    CompiledKernel,
    Request,
    choose_nvrtc,
    compile_each_cuda,
    count_threads,
    show_version,
)
from astitch.xla.library_tuning import find_layouts, tune_ahead
from astitch.xla.module_cache import LONGEST_WAIT_S, open_cache
from astitch.xla.module_cache import key_of as module_key
from astitch.xla.stitch_loops import find_loops, name_loop, read_island
from astitch.xla.stitch_regions import find_unworthy, stitch_bodies, stitched_regions

TARGET = "__gpu$xla.gpu.ptx"
"""The custom call by which XLA launches PTX (xla/service/gpu/custom_kernel_emitter.cc)."""

log = logging.getLogger("astitch")

FIRST_JAX = (0, 11)
"""The first release of JAX whose XLA is known to do so."""

MAX_POINTERS = 1000
"""Parameters of a kernel that XLA packs; CUDA itself allows 4,095 pointers from 12.1 on."""

_TYPED_FFI = 4  # the custom call's API version: its backend_config is an MLIR dictionary
_TOKEN = ArrayType(DType.U32, (1,))


def has_target() -> bool:
    """Does the installed JAX come with an XLA that launches PTX?  It is not imported for that."""
    try:
        version = importlib.metadata.version("jaxlib")
    except importlib.metadata.PackageNotFoundError:
        return False
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= FIRST_JAX


# ---- kernels as XLA launches them ------------------------------------------------------------------------------

XLA = LaunchAbi(pointer_table=False, own_words=True, tokens=True)
"""XLA passes operands and results, each as a parameter, and nothing else."""


@dataclass(frozen=True, slots=True)
class InPlace:
    """A kernel that may write its argument `written` over its argument `read`, which was donated."""

    read: int
    written: int


class Code(enum.Enum):
    """As what XLA gets kernels: compiled, or as PTX, which the driver assembles when it loads them."""

    CUBIN = enum.auto()
    PTX = enum.auto()


def choose_code(arch: str) -> Code:
    """Cubins, which the driver only has to load; it assembles one kernel after the other.

    XLA passes what it was given as PTX to the driver's loader, which tells them apart.  But where JAX keeps executables
    on disk they hold that as a string of UTF-8, which no cubin is.  A driver knows no PTX of a newer NVRTC: then JAX
    cannot read again what it keeps.  Raises KernelCompileError where no NVRTC compiles for `arch`.
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
    before it and its own.  in_place: which arguments of the step share memory.
    """

    name: str
    symbol: str
    code: bytes = field(repr=False)
    grid: int
    block: int
    shared_bytes: int
    ordered: bool
    in_place: tuple[InPlace, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelRefusal:
    """A kernel that XLA cannot launch, and why; XLA computes its ops by itself."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} is left to XLA: {self.reason}"


def emit_for_xla(kernel: k.Kernel, in_place: Sequence[InPlace] = ()) -> str:
    """The text of a kernel that XLA launches.

    in_place: pairs of parameters that share memory: the compiler must not move their accesses past each other.
    """
    aliased = frozenset(number for pair in in_place for number in (pair.read, pair.written))
    return emit_cuda(kernel, replace(XLA, aliased=aliased))


def emit_loop_for_xla(loop: LoopKernel) -> str:
    """The text of a loop's kernel that XLA launches."""
    return emit_loop(loop.plan, loop.kernel.name, XLA).kernel.source


Kernels = Mapping[str, XlaKernel | KernelRefusal]
"""The kernels of a program by their names, in the order of its steps."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A kernel to be compiled for XLA.  emit: gives its text.  in_place: see XlaKernel."""

    kernel: CudaKernel
    emit: Callable[[], str]
    in_place: tuple[InPlace, ...] = ()


def prepare_kernels(
    compilation: Compilation,
    gpu: Gpu,
    in_place: Mapping[str, Sequence[InPlace]] = MappingProxyType({}),
    left: Mapping[str, str] = MappingProxyType({}),
    code: Code = Code.PTX,
    faults: FaultLog | None = None,
) -> Kernels:
    """Each kernel of a compilation's program compiled for a device, or why not.

    in_place: see find_in_place.  left: what is XLA's anyway, with the reasons.  faults: keeps the errors that leave a
    kernel's ops to XLA.  Raises CompilerMissing.
    """
    planned = {plan.kernel.name: plan.kernel for plan in compilation.plans}
    prepared: dict[str, XlaKernel | KernelRefusal] = {}
    wanted: list[_Wanted] = []
    steps = [step for step in compilation.program.steps if isinstance(step, KernelStep)]
    for step in steps:
        name, count = step.kernel.name, len(step.arguments) + step.kernel.cooperative
        if name in left:
            prepared[name] = KernelRefusal(name, left[name])
        elif count > MAX_POINTERS:
            prepared[name] = KernelRefusal(name, f"{count} arrays, XLA passes {MAX_POINTERS}")
        else:
            pairs = tuple(in_place.get(name, ()))
            emit = partial(emit_for_xla, planned[name], pairs)
            wanted.append(_Wanted(step.kernel, emit, pairs))
    prepared |= _compile_for_xla(wanted, gpu, code, faults or FaultLog())
    return {step.kernel.name: prepared[step.kernel.name] for step in steps}


def _compile_for_xla(
    wanted: Sequence[_Wanted], gpu: Gpu, code: Code, faults: FaultLog
) -> dict[str, XlaKernel | KernelRefusal]:
    """The kernels in the form that XLA launches, by name.  Raises CompilerMissing."""
    prepared: dict[str, XlaKernel | KernelRefusal] = {}
    emitted: list[tuple[_Wanted, str]] = []
    for one in wanted:
        try:
            emitted.append((one, one.emit()))
        except Exception as error:
            prepared[one.kernel.name] = _refuse_kernel(one.kernel.name, error, faults)
    requests = [Request(text, gpu.arch) for _, text in emitted]
    compiled = compile_each_cuda(requests, compile_one=compile_cached)
    for (one, _), result in zip(emitted, compiled, strict=True):
        prepared[one.kernel.name] = (
            _refuse_kernel(one.kernel.name, result, faults)
            if isinstance(result, KernelCompileError)
            else _admit(one.kernel, result, gpu, code, one.in_place)
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
    compiled = _compile_for_xla(wanted, gpu, code, faults or FaultLog())
    prepared, notes = {}, []
    for key, loop in loops.items():
        kernel = compiled[loop.kernel.name]
        if isinstance(kernel, XlaKernel):
            prepared[key] = LoopCall(loop, kernel)
        else:
            notes.append(str(kernel))
    return prepared, tuple(notes)


def find_moves(compilation: Compilation) -> dict[str, str]:
    """The kernels that only permute what products give or take, with the reason: XLA has products do so."""
    moved = find_layouts(compilation.scopes)
    return {
        plan.kernel.name: "it only permutes what products give or take"
        for plan in compilation.plans
        if moved.issuperset(plan.scope.members)
    }


def find_finished(compilation: Compilation, in_place: Collection[str]) -> dict[str, str]:
    """The kernels that only finish a product, with the reason: XLA does so as it multiplies.

    in_place: kernels whose results take over memory, where XLA would copy.
    """
    scopes = {plan.kernel.name: plan.scope for plan in compilation.plans}
    found, _ = find_epilogues(compilation.scopes.graph, scopes, compilation.program.steps)
    return {
        epilogue.kernel: f"it only finishes a product: {epilogue}"
        for epilogue in found
        if fits_into_xla_product(epilogue) and epilogue.kernel not in in_place
    }


def _admit(
    kernel: CudaKernel,
    compiled: CompiledKernel,
    gpu: Gpu,
    code: Code,
    in_place: tuple[InPlace, ...] = (),
) -> XlaKernel | KernelRefusal:
    """The kernel, if it can be launched and its blocks, where they wait for each other, are resident together.

    XLA has no cooperative launch that would check it.  A cubin has the registers seen here; of PTX the driver's
    assembler keeps to the launch bounds whatever its version, so residency follows from them and from shared memory.
    """
    used = compiled.kernels[kernel.name]
    shared = used.static_shared_bytes + kernel.shared_bytes
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
        kernel.shared_bytes,
        kernel.cooperative,
        in_place,
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


def write_backend_config(kernel: XlaKernel, results: Sequence[int]) -> bytes:
    """The MLIR dictionary by which XLA launches the kernel.

    results: for each result of the custom call, which parameter of the kernel it is; the operands are the others.
    """
    numbers = {
        "grid_x": kernel.grid,
        "grid_y": 1,
        "grid_z": 1,
        "block_x": kernel.block,
        "block_y": 1,
        "block_z": 1,
        "shared_mem_bytes": kernel.shared_bytes,
    }
    fields = [f"name = {_quote(kernel.symbol.encode())}", 'kernel_type = "ptx"']
    fields.append(f"kernel_data = {_quote(kernel.code)}")
    fields += [f"{name} = {number} : i32" for name, number in numbers.items()]
    fields.append(f"output_indices = [{', '.join(f'{i} : i32' for i in results)}]")
    return f"{{{', '.join(fields)}}}".encode()


def _quote(data: bytes) -> str:
    """An MLIR string literal: what is not printable ASCII goes by its byte's number; of what is no text every byte."""
    if b"\0" in data:
        return '"\\' + data.hex("\\") + '"'
    escaped = _UNPRINTABLE.sub(lambda found: b"\\%02x" % ord(found[0]), data)
    return f'"{escaped.decode()}"'


_UNPRINTABLE = re.compile(rb'[^ -~]|["\\]')


# ---- memory that is used again ---------------------------------------------------------------------------------

LEAST_BYTES_AGAIN = 16 << 20
"""Of a temporary array whose memory a result takes over.  Below, the peak hardly moves, and two pointers that may be
one leave the compiler less freedom."""


def find_in_place(compilation: Compilation, donated: Sequence[bool]) -> dict[str, list[InPlace]]:
    """By kernel, the results that take over the memory of donated parameters, or of large temporary arrays that nothing
    else reads.

    XLA lets a custom call's result share memory only where the call says so; else it copies each result of a donated
    parameter to it afterwards.  Which result goes with which parameter is JAX's rule: the first of the same type.
    """
    return _find_in_place(compilation, _match_donated(compilation.scopes.graph, donated))


def find_carried_in_place(compilation: Compilation) -> dict[str, list[InPlace]]:
    """The same for the state of a loop, whose body hands on result i where it found parameter i."""
    program = compilation.program
    into: dict[str, str] = {}
    for parameter, output in zip(program.parameters, program.outputs, strict=True):
        if parameter.type == output.type:
            into.setdefault(output.buffer, parameter.buffer)
    return _find_in_place(compilation, into)


def _match_donated(graph: Graph, donated: Sequence[bool]) -> dict[str, str]:
    """The buffer that a result may take over, by the result's buffer."""
    waiting: dict[ArrayType, list[str]] = {}
    for parameter, given in zip(graph.parameters, donated, strict=True):
        if given:
            waiting.setdefault(graph[parameter].array, []).append(parameter)
    return {
        storage_name(graph, output): waiting[graph[output].array].pop(0)
        for output in graph.outputs
        if waiting.get(graph[output].array)
    }


def _find_in_place(compilation: Compilation, into: Mapping[str, str]) -> dict[str, list[InPlace]]:
    """into: the buffer that a result may take over, by the result's buffer."""
    program, graph = compilation.program, compilation.scopes.graph
    last = {v.buffer: number for number, step in enumerate(program.steps) for v in _read_by(step)}
    plans = {plan.kernel.name: plan for plan in compilation.plans}
    found: dict[str, list[InPlace]] = {}
    for number, step in enumerate(program.steps):
        if isinstance(step, KernelStep):
            plan = plans[step.kernel.name]
            final = {v.buffer for v in _read_by(step) if last[v.buffer] == number}
            if pairs := _find_pairs(plan.kernel, graph, plan.scope, into, final.__contains__):
                found[plan.kernel.name] = pairs
    return found


def _find_pairs(
    kernel: k.Kernel,
    graph: Graph,
    scope: Scope,
    into: Mapping[str, str],
    reads_last: Callable[[str], bool],
) -> list[InPlace]:
    """scope: the kernel's.  into: see _match_donated.  reads_last: does nobody read what a buffer holds after the
    kernel?"""
    arguments = kernel.arguments
    numbers = {p.source: i for i, p in enumerate(arguments)}
    written = [i for i in numbers.values() if arguments[i].written]
    candidates: list[InPlace] = []
    for source, number in numbers.items():
        read = numbers.get(into.get(source, "")) if number in written else None
        if read is not None and read not in written and reads_last(into[source]):
            candidates.append(InPlace(read, number))
    for source, number in numbers.items():
        array = None if number in written else _used_up(graph, scope, source)
        for result in written if array else ():
            if storage_type(graph, arguments[result].source) == array:
                candidates.append(InPlace(number, result))
    names = {arguments[i].name for pair in candidates for i in (pair.read, pair.written)}
    uses = _find_uses(kernel.body, names) if candidates else {}
    pairs: list[InPlace] = []
    taken: set[int] = set()  # memory has one heir, and a result one place
    for pair in candidates:
        both = {pair.read, pair.written}
        if not both & taken and writes_where_it_read(kernel, pair, uses):
            pairs.append(pair)
            taken |= both
    return pairs


def _used_up(graph: Graph, scope: Scope, buffer: str) -> ArrayType | None:
    """The type of a large array that some other step computes and only the scope reads; None if it is not one."""
    base = graph[buffer.partition("#")[0]]
    type_ = storage_type(graph, buffer)
    if base.op in ("parameter", "constant") or type_.bytes < LEAST_BYTES_AGAIN:
        return None
    inside = set(scope.members)
    pending = [base.name]
    while pending:
        name = pending.pop()
        if name in graph.outputs:
            return None
        for user in graph.users[name]:
            if storage_name(graph, user) == buffer or isinstance(base.type, TupleType):
                pending.append(user)
            elif user not in inside:
                return None
    return type_


def spell_plan(plan: Plan, donated: Sequence[bool]) -> str:
    """The text that prepare_kernels will have compiled, as far as that is known of a plan alone.

    It may be another where what is read in place is read by ops that neither come before the kernel nor are in it.
    """
    graph = plan.arrangement.graph
    into = _match_donated(graph, donated)
    scope = plan.scope
    pairs = _find_pairs(plan.kernel, graph, scope, into, partial(_reads_last, graph, scope))
    return emit_for_xla(plan.kernel, pairs)


def _reads_last(graph: Graph, scope: Scope, parameter: str) -> bool:
    """Do all readers of a parameter belong to a scope or come before it?"""
    inside = set(scope.members)
    pending, readers = [parameter], set[str]()
    while pending:
        for user in graph.users[pending.pop()]:
            if storage_name(graph, user) == parameter:
                pending.append(user)
            elif user not in inside:
                readers.add(user)
    before: set[str] = set()
    pending = list(scope.inputs)
    while readers and pending:
        name = pending.pop()
        if name not in before:
            before.add(name)
            pending += graph[name].operands
    return readers <= before


def _read_by(step: Step) -> list[View]:
    if isinstance(step, KernelStep):
        return [view for i, view in enumerate(step.arguments) if i not in step.written]
    return list(step.operands)


def writes_where_it_read(kernel: k.Kernel, pair: InPlace, uses: Mapping[str, Uses]) -> bool:
    """Is each element of one parameter read only by the thread that writes that element of the other, and before?

    Seen from the statements: the loads of the one and the store of the other stand in one body, at one position, the
    loads first; or in two nests of equal loops and guards, one after the other in the turn of a task, at positions
    that are the same function of these loops.  (Each element is stored once: that is the law of mappings.  Whoever
    reads it again wants the new one.)
    Where only some threads store, what the others loaded, maybe too late, must be of no use to them.
    """
    loads = uses[kernel.arguments[pair.read].name]
    stores = [
        use
        for use in uses[kernel.arguments[pair.written].name]
        if not isinstance(use[-1].statement, k.Load | k.LoadVector)
    ]
    if len(stores) != 1 or not loads:
        return False
    (store,) = stores
    return all(_precedes(load[-1], store) or _in_equal_nests(load, store) for load in loads)


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A statement, and where it stands in its body."""

    body: tuple[Any, ...]
    number: int

    @property
    def statement(self) -> Any:
        return self.body[self.number]


Uses = list[tuple[_Place, ...]]
"""The statements that name an array, each after those that it stands in, from the outermost."""


def _find_uses(body: tuple[Any, ...], names: Collection[str]) -> dict[str, Uses]:
    """The uses of each array."""
    found: dict[str, Uses] = {name: [] for name in names}
    _collect_uses(body, (), found)
    return found


def _collect_uses(
    body: tuple[Any, ...], around: tuple[_Place, ...], found: dict[str, Uses]
) -> None:
    for number, statement in enumerate(body):
        place, own = (*around, _Place(body, number)), set[str]()
        for name in statement.__dataclass_fields__:
            value = getattr(statement, name)
            if isinstance(value, tuple) and value and all(map(is_dataclass, value)):
                _collect_uses(value, place, found)
            else:
                own.update(_list_names(value))
        for name in own & found.keys():
            found[name].append(place)


def _list_names(value: Any) -> Iterator[str]:
    """Every string in a part of a statement."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _list_names(item)
    elif is_dataclass(value):
        for name in value.__dataclass_fields__:
            yield from _list_names(getattr(value, name))


def _precedes(load: _Place, store: tuple[_Place, ...]) -> bool:
    """Does the thread that stores an element load it before, and nobody use a load that may come later?"""
    if not _moves_alike(load.statement, store[-1].statement):
        return False
    for depth, place in enumerate(store):
        if place.body is load.body and load.number < place.number:
            inside = store[depth:]
            if len(inside) == 1:
                return True
            guard = place.statement
            return (
                len(inside) == 2
                and isinstance(guard, k.If)
                and _stays_under(load.body[load.number + 1 :], {load.statement.name}, guard.guards)
            )
    return False


def _stays_under(body: Sequence[Any], tainted: set[str], guards: tuple[Any, ...]) -> bool:
    """Do only bodies under these guards use the names, and what is computed from them?  tainted: grows."""
    for statement in body:
        if not _names(statement, tainted):
            continue
        match statement:
            case k.If() if statement.guards == guards:
                pass
            case k.Value(name=name) | k.StoreLane(vector=name):
                tainted.add(name)
            case k.Loop():
                if not _stays_under(statement.body, tainted, guards):
                    return False
            case _:
                return False
    return True


def _in_equal_nests(load: tuple[_Place, ...], store: tuple[_Place, ...]) -> bool:
    """Do load and store stand in nests of one task, the load's first, that visit the same positions in each thread?"""
    depth = 0
    while load[depth].body is store[depth].body and load[depth].number == store[depth].number:
        depth += 1
        if depth == min(len(load), len(store)):
            return False
    if load[depth].body is not store[depth].body or load[depth].number > store[depth].number:
        return False
    if not any(isinstance(place.statement, k.TaskLoop) for place in store[:depth]):
        return False
    read, written = _spell_nest(load[depth:]), _spell_nest(store[depth:])
    return read is not None and read == written


def _spell_nest(path: tuple[_Place, ...]) -> tuple[Any, ...] | None:
    """Loops, guards and the position, in which each index that the nest defines is written out; None where something
    else stands in it."""
    known: dict[str, Any] = {}
    spelled: list[Any] = []
    for depth, place in enumerate(path[:-1]):
        match statement := place.statement:
            case k.Loop(variable=variable):
                known[variable] = ("turn", depth)
                spelled.append(("loop", statement.count, _spell(statement.bound, known)))
            case k.If(guards=guards):
                spelled.append(("if", _spell(guards, known)))
            case _:
                return None
        inner = path[depth + 1]
        for before in inner.body[: inner.number]:
            if isinstance(before, k.Index):
                known[before.name] = _spell(before.form, known)
    match path[-1].statement:
        case k.Load(position=position) | k.Store(position=position):
            return (*spelled, 1, _spell(position, known))
        case k.LoadVector(position=position, width=w) | k.StoreVector(position=position, width=w):
            return (*spelled, w, _spell(position, known))
        case k.Fetch(position=position, width=w):
            # In such a nest into registers, for a later phase.
            return (*spelled, w, _spell(position, known))
    return None


def _spell(value: Any, known: Mapping[str, Any]) -> Any:
    """A part of a statement as nested tuples.  known: what stands for a symbol."""
    if isinstance(value, Symbol):
        return known.get(value.name, value.name)
    if isinstance(value, tuple):
        return tuple(_spell(part, known) for part in value)
    if is_dataclass(value):
        names = (field.name for field in fields(value) if field.compare)
        return (type(value).__name__, *(_spell(getattr(value, name), known) for name in names))
    return value


def _moves_alike(load: k.Statement, store: k.Statement) -> bool:
    match load, store:
        case k.Load(position=a), k.Store(position=b):
            return a == b
        case k.LoadVector(position=a, width=w), k.StoreVector(position=b, width=v):
            return a == b and w == v
    return False


def _names(value: Any, names: Collection[str]) -> bool:
    """Does a statement, or a part of one, hold one of the names?"""
    return any(name in names for name in _list_names(value))


# ---- the program as HLO ----------------------------------------------------------------------------------------


def export_program(
    compilation: Compilation,
    kernels: Kernels,
    regions: Mapping[Graph, Graph] = MappingProxyType({}),
    loops: Mapping[LoopKey, LoopCall] = MappingProxyType({}),
) -> bytes:
    """The whole program as a serialized HloModuleProto: its parameters in order, its outputs as one tuple.

    regions: what to write for regions of loops and conditionals.  loops: those that are one kernel.
    """
    writer = _ModuleWriter(compilation, kernels, regions, loops)
    for step in compilation.program.steps:
        writer.add_step(step)
    return writer.finish()


def export_bodies(
    compilation: Compilation, prepare: Callable[[Compilation, bool, Mapping[str, str]], Kernels]
) -> tuple[Compilation, dict[Graph, Graph]]:
    """For each region that was compiled, one that calls its kernels; the bodies get notes of kernels left to XLA.

    prepare: the kernels of a body, given whether it is a loop's and which are left to XLA, with the reasons.  A region
    without kernels is no part of what is returned.

    Kernels whose blocks meet follow each other within a body by their tokens, which end there: XLA runs a loop or
    conditional as one step of its main stream, and by default takes neither into a CUDA graph, so that nothing outside
    runs beside it and no turn beside the next.
    """
    bodies, regions = [], {}
    for body in compilation.bodies:
        left = find_unworthy(body.compilation)
        kernels = prepare(body.compilation, body.op == "while", left)
        inner, inside = export_bodies(_note_refusals(body.compilation, kernels), prepare)
        bodies.append(replace(body, compilation=inner))
        if inside or any(isinstance(kernel, XlaKernel) for kernel in kernels.values()):
            regions[body.region] = import_hlo(export_program(inner, kernels, inside), trusted=True)
    return replace(compilation, bodies=tuple(bodies)), regions


def _note_refusals(compilation: Compilation, kernels: Kernels) -> Compilation:
    refused = [str(kernel) for kernel in kernels.values() if isinstance(kernel, KernelRefusal)]
    program = compilation.program
    return replace(compilation, program=replace(program, notes=(*program.notes, *refused)))


def _note_loops(
    compilation: Compilation, calls: Mapping[LoopKey, LoopCall], notes: tuple[str, ...]
) -> Compilation:
    """The compilation with notes on its loops; those that are kernels are no ops of XLA's any more."""
    program = compilation.program
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, IslandStep):
            graph = read_island(step.hlo)
            taken = {n.name for n in graph if n.op == "while" and loop_key(graph, n) in calls}
            left = (op for op in step.ops if op.name not in taken and op.reason != START)
            step = replace(step, ops=tuple(left))
        steps.append(step)
    return replace(compilation, program=replace(program, steps=tuple(steps)), loops=notes)


class _ModuleWriter:
    """Writes the steps of a program one after the other; knows which HLO value is in which buffer."""

    def __init__(
        self,
        compilation: Compilation,
        kernels: Kernels,
        regions: Mapping[Graph, Graph],
        loops: Mapping[LoopKey, LoopCall],
    ) -> None:
        self.regions, self.loops = regions, loops
        self.program = compilation.program
        self.graph = compilation.scopes.graph
        self.members = {plan.kernel.name: plan.scope.members for plan in compilation.plans}
        self.kernels = kernels
        self.builder = ModuleBuilder(self.program.name)
        self.values: dict[str, tuple[str, ArrayType]] = {}
        self.views: dict[tuple[View, str], str] = {}
        self.barriers = {barrier.name: barrier for barrier in compilation.scopes.barriers}
        self.behind: dict[str, dict[str, str]] = {}
        self.read_behind = find_behind(compilation.scopes.barriers)
        self.token = ""
        for view in self.program.parameters:
            self.builder.add_parameter(f"parameter/{view.buffer}", view.type)
            self.write(view.buffer, f"parameter/{view.buffer}", view.type)
        for name, literal in self.program.constants:
            type_ = ArrayType(literal.dtype, literal.shape)
            self.builder.add_node(
                Node(f"constant/{name}", "constant", type_, attrs=ConstantAttrs(literal))
            )
            self.write(name, f"constant/{name}", type_)

    def write(self, buffer: str, value: str, type_: ArrayType) -> None:
        """The buffer now holds an HLO value."""
        if buffer in self.values:
            raise IllegalProduct(f"program {self.program.name}: {buffer} is written a second time")
        self.values[buffer] = value, type_

    def read(self, view: View) -> str:
        """The HLO value of a view: row-major arrays of the same elements are reshapes of each other."""
        value, type_ = self.values[view.buffer]
        if view.behind:
            value = self.pass_barrier(view.behind, view.buffer)
        if type_ == view.type:
            return value
        key = view, view.behind
        if key not in self.views:
            if type_.dtype is not view.type.dtype:
                raise IllegalProduct(
                    f"program {self.program.name}: {view.buffer}, {type_}, is read as {view.type}"
                )
            name = f"view.{len(self.views)}/{view.buffer}"
            self.builder.add_node(Node(name, "reshape", view.type, (value,)))
            self.views[key] = name
        return self.views[key]

    def pass_barrier(self, name: str, buffer: str) -> str:
        """What a buffer holds, handed on by a barrier that waits for all that the program's waits for.

        Of that, what a kernel computes for itself is not there: the barrier waits for what that is computed from.
        """
        passed = self.behind.setdefault(name, {})
        if buffer not in passed:
            waits = {buffer: ""} | self.find_waits(self.barriers[name])
            values = {
                b: self.pass_barrier(before, b) if before else self.values[b][0]
                for b, before in waits.items()
            }
            types = [self.values[b][1] for b in values]
            type_ = types[0] if len(types) == 1 else TupleType(tuple(types))
            unique = f"barrier.{sum(map(len, self.behind.values()))}/{name}"
            node = Node(unique, "optimization-barrier", type_, tuple(values.values()))
            passed.update(zip(values, self.builder.add_results(node), strict=True))
        return passed[buffer]

    def find_waits(self, barrier: Barrier) -> dict[str, str]:
        """The buffers that a barrier waits for, each with the barrier before behind which it is read."""
        found: dict[str, str] = {}
        pending, seen = list(reversed(barrier.waits)), set[str]()
        while pending:
            held = pending.pop()
            if held.value in seen or held.value not in self.graph.nodes:
                continue
            seen.add(held.value)
            buffer = storage_name(self.graph, held.value)
            if buffer in self.values:
                found.setdefault(buffer, held.behind)
            else:
                pending += (Held(o, held.behind) for o in self.graph[held.value].operands)
        return found

    def add_step(self, step: Step) -> None:
        if isinstance(step, KernelStep):
            kernel = self.kernels[step.kernel.name]
            if isinstance(kernel, XlaKernel):
                self.add_kernel(step, kernel)
            else:
                self.add_ops(step)
        elif isinstance(step, IslandStep):
            self.add_island(step)
        else:
            operands = tuple(self.read(view) for view in step.operands)
            node = replace(step.node, name=f"step/{step.node.name}", operands=operands)
            for view, value in zip(step.results, self.builder.add_results(node), strict=True):
                self.write(view.buffer, value, view.type)

    def add_kernel(self, step: KernelStep, kernel: XlaKernel) -> None:
        """A custom call: what the kernel only reads are its operands, what it writes its results."""
        arguments = list(enumerate(step.arguments))
        if kernel.ordered:
            arguments.pop()  # the barrier words
        written = [(i, view) for i, view in arguments if i in step.written]
        read = [(i, view) for i, view in arguments if i not in step.written]
        reads, indices = [i for i, _ in read], [i for i, _ in written]
        aliases = tuple((indices.index(p.written), reads.index(p.read)) for p in kernel.in_place)
        operands = [(self.read(view), view.type) for _, view in read]
        results = [(i, view.type) for i, view in written]
        names = self.add_call(f"kernel/{kernel.name}", kernel, operands, results, aliases)
        for (_, view), name in zip(written, names, strict=False):
            self.write(view.buffer, name, view.type)

    def add_call(
        self,
        name: str,
        kernel: XlaKernel,
        operands: Sequence[tuple[str, ArrayType]],
        results: Sequence[tuple[int, ArrayType]],
        aliases: tuple[tuple[int, int], ...] = (),
    ) -> tuple[str, ...]:
        """A custom call; the names of its results.  results: which parameter of the kernel each is."""
        indices = [i for i, _ in results]
        types = [type_ for _, type_ in results]
        given = list(operands)
        if kernel.ordered:
            indices.append(len(operands) + len(results) + 1)
            given.append((self.token or self.first_token(), _TOKEN))
            types.append(_TOKEN)
        attrs = CustomCallAttrs(
            TARGET,
            write_backend_config(kernel, indices),
            _TYPED_FFI,
            aliases=aliases,
            operand_layouts=tuple(_row_major(type_.rank) for _, type_ in given),
            result_layouts=tuple(_row_major(type_.rank) for type_ in types),
        )
        type_ = types[0] if len(types) == 1 else TupleType(tuple(types))
        call = Node(name, "custom-call", type_, tuple(value for value, _ in given), attrs)
        names = self.builder.add_results(call)
        if kernel.ordered:
            self.token = names[-1]
        return names

    def add_loop(self, name: str, node: Node, operands: Sequence[str], call: LoopCall) -> list[str]:
        """The results of a while that is one kernel, by their number; what nobody reads is its start."""
        loop = call.loop
        types = loop.plan.loop.types
        read = [(operands[i], types[i]) for i in loop.operands]
        written = [(len(read) + i, types[state]) for i, state in enumerate(loop.results)]
        made = self.add_call(f"{name}/{call.kernel.name}", call.kernel, read, written)
        results = list(operands)
        for state, value in zip(loop.results, made, strict=False):
            results[state] = value
        for state, role in enumerate(loop.plan.loop.roles):
            if isinstance(role, Counter):
                end = np.asarray(role.value.at(loop.plan.loop.trips), types[state].dtype.numpy)
                attrs = ConstantAttrs(Literal.of(end.reshape(types[state].shape)))
                results[state] = f"{name}/end.{state}"
                self.builder.add_node(Node(results[state], "constant", types[state], attrs=attrs))
        return results

    def first_token(self) -> str:
        """What the first ordered kernel takes: a constant that it does not touch."""
        literal = Literal(_TOKEN.dtype, _TOKEN.shape, bytes(_TOKEN.bytes))
        self.builder.add_node(Node("token", "constant", _TOKEN, attrs=ConstantAttrs(literal)))
        return "token"

    def add_island(self, step: IslandStep) -> None:
        """What XLA was to compile by itself, as a part of the module."""
        graph = read_island(step.hlo)
        names: dict[str, str] = {}
        results: dict[str, list[str]] = {}
        for node in graph:
            if isinstance(node.attrs, ParameterAttrs):
                names[node.name] = self.read(step.operands[node.attrs.index])
                continue
            if isinstance(node.attrs, GetTupleElementAttrs) and node.operands[0] in results:
                names[node.name] = results[node.operands[0]][node.attrs.index]
                continue
            names[node.name] = f"{step.name}/{node.name}"
            operands = tuple(names[o] for o in node.operands)
            if node.op == "while" and (call := self.loops.get(loop_key(graph, node))):
                results[node.name] = self.add_loop(names[node.name], node, operands, call)
                continue
            called = node.regions
            if stitched_regions(node):
                called = tuple(self.regions.get(region, region) for region in called)
            added = replace(node, name=names[node.name], operands=operands, regions=called)
            self.builder.add_node(added)
        for view, output in zip(step.results, graph.outputs, strict=True):
            self.write(view.buffer, names[output], graph[output].array)

    def add_ops(self, step: KernelStep) -> None:
        """The ops of a kernel that XLA cannot launch."""
        part = _Part(self, step.kernel.name, frozenset(self.members[step.kernel.name]))
        for index in sorted(step.written):
            view = step.arguments[index]
            base, _, number = view.buffer.partition("#")
            if base in self.graph.nodes:  # else it is scratch of the kernel
                value = part.compute(base)
                if number:
                    value = self.builder.add_projection(value, int(number), view.type)
                self.write(view.buffer, value, view.type)

    def finish(self) -> bytes:
        return self.builder.finish([self.read(view) for view in self.program.outputs])


class _Part:
    """Graph nodes of one stitch op as HLO, those in front of them first."""

    def __init__(self, writer: _ModuleWriter, prefix: str, members: frozenset[str]) -> None:
        self.writer, self.prefix, self.members = writer, prefix, members
        self.names: dict[
            tuple[str, str], str
        ] = {}  # by node, and the barrier behind which it is read

    def compute(self, wanted: str) -> str:
        """The HLO value of a node: from its buffer where a step before filled it, else computed here."""
        graph, pending = self.writer.graph, [(wanted, "")]
        while pending:
            name, behind = key = pending[-1]
            if key not in self.names:
                node = graph[name]
                if name not in self.members and (value := self.find(graph, node, behind)):
                    self.names[key] = value
                elif missing := [v for v in self.list_read(node, behind) if v not in self.names]:
                    pending += missing
                    continue
                else:
                    self.names[key] = f"{self.prefix}/{name}" + (f"/{behind}" if behind else "")
                    operands = tuple(self.names[value] for value in self.list_read(node, behind))
                    if behind:
                        node = Node(name, "optimization-barrier", node.type)
                    added = replace(node, name=self.names[key], operands=operands)
                    self.writer.builder.add_node(added)
            pending.pop()
        return self.names[wanted, ""]

    def list_read(self, node: Node, behind: str) -> list[tuple[str, str]]:
        """What a node is computed from; what it is handed on from, where it is read behind a barrier."""
        if behind:
            return [(node.name, "")]
        return [(o, self.writer.read_behind.get((node.name, o), "")) for o in node.operands]

    def find(self, graph: Graph, node: Node, behind: str) -> str | None:
        if isinstance(node.type, TupleType):
            return None
        view = View(storage_name(graph, node.name), node.type, behind)
        return self.writer.read(view) if view.buffer in self.writer.values else None


def _row_major(rank: int) -> tuple[int, ...]:
    return tuple(reversed(range(rank)))


# ---- the program in JAX ----------------------------------------------------------------------------------------


@pause_collector()
def compile_for_xla(
    graph: Graph,
    gpu: Gpu,
    donated: Sequence[bool] = (),
    *,
    tune: bool = False,
    strict: bool = False,
    code: Code = Code.PTX,
    announce_scopes: Callable[[Scopes], object] = lambda scopes: None,
    hand_out: Callable[[Sequence[Unit]], object] = lambda units: None,
) -> tuple[Compilation, bytes]:
    """The compilation of a graph, and the program with its kernels as a serialized HloModuleProto.

    donated: which of the parameters; none where it is empty.  tune, strict: as for compile_hlo.  code: of the kernels.
    announce_scopes: is given what will have a kernel each, if none of
    them is split.  hand_out: is given kernels that are PTX, in parts: most of those that XLA will
    load as soon as they are compiled, from several threads, all of them in the end, and some that it will not load.
    An error inside astitch leaves a kernel, a loop or a body to XLA, and is among the compilation's faults; with strict
    it is raised.
    Raises AstitchError.
    """
    donated = tuple(donated) or (False,) * len(graph.parameters)
    wanted = options.loops()
    faults = FaultLog(strict or None)
    planner = None if wanted is options.Loops.NONE else LoopPlanner(gpu, faults)
    pool = ThreadPoolExecutor(count_threads(), "astitch-loops")

    if code is not Code.PTX:
        hand_out = lambda units: None  # noqa: E731

    def hand_out_compiled(name: str, built: CompiledKernel) -> None:
        hand_out([Unit(*name_entry(built, name, code))])

    def hand_out_prepared(kernels: Iterable[XlaKernel | KernelRefusal]) -> None:
        hand_out([Unit(k.symbol, k.code) for k in kernels if isinstance(k, XlaKernel)])

    def begin(left: Left) -> None:
        if planner:
            _start_loops(left.graph, planner, pool, hand_out_compiled)

    try:
        target = Target(
            launcher=Launcher.XLA,
            loops=planner,
            render=lambda plan: spell_plan(plan, donated),
            on_kernel=lambda plan, built: hand_out_compiled(plan.kernel.name, built),
            after={"leave": begin, "stitch_remotely": announce_scopes},
        )
        compilation = compile_graph(graph, gpu, target, tune=tune, strict=strict, faults=faults)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown(wait=False)  # whoever asks for a kernel waits for it
    nothing_in_place: dict[str, list[InPlace]] = {}
    in_place = faults.attempt(
        lambda: find_in_place(compilation, donated),
        lambda: nothing_in_place,
        stage="find_in_place",
        subject=graph.name,
        cost="no result takes over an argument's memory",
    )
    nothing_left: dict[str, str] = {}
    left = faults.attempt(
        lambda: {**find_moves(compilation), **find_finished(compilation, in_place)},
        lambda: nothing_left,
        stage="find_moves",
        subject=graph.name,
        cost="no kernel is joined to a product",
    )
    kernels = prepare_kernels(compilation, gpu, in_place, left, code, faults)
    hand_out_prepared(kernels.values())
    compilation = _note_refusals(compilation, kernels)
    if wanted is options.Loops.BODIES:
        compilation = stitch_bodies(compilation, tune=tune, faults=faults)
    compilation, regions = export_bodies(compilation, partial(_prepare_body, code, faults))
    loops: dict[LoopKey, LoopCall] = {}
    if planner:
        found, notes = find_loops(compilation, planner)
        loops, refused = prepare_loops(found, gpu, code, faults)
        hand_out_prepared(call.kernel for call in loops.values())
        if strict and refused:
            raise UnsupportedOp(
                f"program {compilation.program.name}: strict was asked for, and XLA runs a loop\n  "
                + "\n  ".join(refused)
            )
        compilation = _note_loops(compilation, loops, (*notes, *refused))
    compilation = replace(compilation, faults=faults.found)
    return compilation, export_program(compilation, kernels, regions, loops)


def _start_loops(
    graph: Graph,
    planner: LoopPlanner,
    pool: Executor,
    hand_out: Callable[[str, CompiledKernel], object],
) -> None:
    """Has the kernels of a graph's loops compiled while other things are planned, the longest first: the cache has them
    when they are asked for.  What goes wrong goes wrong again then.

    hand_out: is given each with the name that it will have, if the program has the loops in the order of the graph.
    """
    plans = {loop_key(graph, plan.loop.node): plan for plan in planner.find_plans(graph)}
    kernels = [emit_loop(plan, name_loop(n), XLA).kernel for n, plan in enumerate(plans.values())]

    def build(name: str, text: str) -> None:
        hand_out(name, compile_cached(Request(text, planner.gpu.arch)))

    texts = {kernel.name: kernel.source for kernel in kernels}
    for name, text in sorted(texts.items(), key=lambda item: -len(item[1])):
        pool.submit(build, name, text)


def _prepare_body(
    code: Code, faults: FaultLog, body: Compilation, loop: bool, left: Mapping[str, str]
) -> Kernels:
    in_place = find_carried_in_place(body) if loop else {}
    return prepare_kernels(body, body.gpu, in_place, left, code, faults)


class Stitched:
    """A function traced for one signature, compiled by astitch once XLA wants its module.

    lowered: the function lowered by JAX for CUDA.  jaxpr: the same as JAX computes it elsewhere.  donated: which of its
    parameters.  gpu: the device that kernels are planned for.  tune, strict: as for compile_hlo.
    hlo: the serialized HloModuleProto.  graph: the same as astitch reads it; raises AstitchError for what it cannot.
    """

    def __init__(
        self,
        lowered: Any,
        jaxpr: Any,
        donated: Sequence[bool],
        gpu: Gpu,
        tune: bool | None,
        strict: bool,
    ) -> None:
        self.lowered, self.jaxpr, self.gpu = lowered, jaxpr, gpu
        self.donated = tuple(donated)
        self._tune, self._strict = tune, strict
        self._lock = ForkLock()
        self._made: tuple[Compilation, bytes] | None = None
        self._kept: bytes | None = None
        self.hlo = bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
        with pause_collector():
            self.graph = import_hlo(self.hlo, trusted=True)

    @cached_property
    def _code(self) -> Code:
        return choose_code(self.gpu.arch)

    @property
    def compilation(self) -> Compilation:
        """What astitch makes of it.  Raises AstitchError."""
        return self._make()[0]

    @property
    def module(self) -> bytes:
        """The program with its kernels, as StableHLO: what an earlier process made of it, where there is that.  Raises
        AstitchError."""
        key = None
        if not (options.tune() if self._tune is None else self._tune):
            key = module_key(
                self.hlo,
                self.graph,
                self.donated,
                self.gpu,
                strict=self._strict,
                code=self._code.name,
            )
        if key is None:
            return self._make()[1]
        with self._lock:
            if self._made is None and self._kept is None:
                self._kept = open_cache().load(key)
        if self._kept is None:
            with open_cache().turn(key, LONGEST_WAIT_S):
                kept = self._kept or open_cache().load(key)
                if kept is None:
                    compilation, kept = self._make()
                    # Another process may have no faults, and says so if it has.
                    if not compilation.faults:
                        open_cache().store(key, kept)
                self._kept = kept
        return self._kept

    def _make(self) -> tuple[Compilation, bytes]:
        with self._lock:
            if self._made is None:
                tune = options.tune() if self._tune is None else self._tune
                # While plans are measured nothing else may run on the GPU.
                ahead = None if tune else default_gpu()
                with (
                    tune_ahead(ahead) as begin_to_tune,
                    assemble_ahead(ahead) as assemble,
                ):
                    compilation, module = compile_for_xla(
                        self.graph,
                        self.gpu,
                        self.donated,
                        tune=tune,
                        strict=self._strict,
                        code=self._code,
                        announce_scopes=begin_to_tune,
                        hand_out=assemble,
                    )
                    trace_compilation(self.hlo, compilation)
                    self._made = compilation, to_stablehlo(module)
                    report_faults(
                        self.graph.name,
                        self.hlo,
                        self.gpu.name,
                        compilation.faults,
                        inside_xla=True,
                    )
        return self._made

    def leave(self, error: Exception) -> None:
        """Says that XLA computes all of it for this error; see leave_whole for what is raised."""
        leave_whole(
            self.graph.name,
            self.hlo,
            self.gpu.name,
            error,
            strict=self._strict,
            inside_xla=True,
        )

    def __repr__(self) -> str:
        return f"<stitched for {self.gpu.name}>"


def call_stitched(stitched: Stitched, arguments: Sequence[Any]) -> list[Any]:
    """The results, inside a JAX trace: on CUDA the program with its kernels, elsewhere the function itself."""
    return list(_primitive().bind(*arguments, stitched=stitched))


def find_stitched(jaxpr: Any) -> Stitched | None:
    """The call in a closed jaxpr that call_stitched left there."""
    for equation in jaxpr.eqns:
        if equation.primitive is _primitive():
            found: Stitched = equation.params["stitched"]
            return found
    return None


@cache
def _primitive() -> Any:
    """The primitive, made when JAX is there."""
    from jax.extend import core
    from jax.interpreters import mlir

    primitive: Any = core.Primitive("stitched_call")
    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *_, stitched: stitched.jaxpr.out_avals)

    primitive.def_impl(_compute)
    mlir.register_lowering(primitive, mlir.lower_fun(_compute, multiple_results=True))
    mlir.register_lowering(primitive, _lower_call, platform="cuda")
    return primitive


def _compute(*arguments: Any, stitched: Stitched) -> Any:
    """The function itself, as JAX traced it."""
    from jax.extend import core

    return core.jaxpr_as_fun(stitched.jaxpr)(*arguments)


def _lower_call(ctx: Any, *operands: Any, stitched: Stitched) -> Any:
    """A call of the program, which becomes a function of JAX's module."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir  # type: ignore[attr-defined]
    from jax._src.lib.mlir.dialects import func

    try:
        module = stitched.module
    except Exception as error:
        stitched.leave(error)
        inline: Any = mlir.lower_fun(_compute, multiple_results=True)
        return inline(ctx, *operands, stitched=stitched)
    into = ctx.module_context
    into.add_keepalive(stitched)  # and with it the host's functions that the module calls
    part = ir.Module.parse(module, into.context)
    name = f"stitched_{stitched.graph.name}"
    part.operation.walk(drop_tilings)
    main: Any = ir.SymbolTable(part.operation)["main"]
    types = main.type.results
    name = mlir.merge_mlir_modules(into.module, name, part, dst_symtab=into.symbol_table)
    return func.CallOp(types, ir.FlatSymbolRefAttr.get(name), operands).results


def drop_tilings(operation: Any) -> Any:
    """Tilings of layouts, all empty on a GPU: the form in which modules travel to XLA's plugin does not know them."""
    from jax._src.lib.mlir import ir  # type: ignore[attr-defined]

    if "result_tilings" in operation.attributes:
        del operation.attributes["result_tilings"]
    return ir.WalkResult.ADVANCE
