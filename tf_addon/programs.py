"""What the shim asks of the compiler: HLO in, the number of a launch table out.

Takes serialized HloModuleProtos, hands on numbers; equal modules share one program.  Chooses where programs run: on
TensorFlow's GPU, on a GPU that TensorFlow does not know (tensors are staged), or in the emulation.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import logging
import re
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from astitch.api.engines import choose_launcher, name_wanted
from astitch.compile import compile_graph
from astitch.device.gpu import Gpu, from_device, preset
from astitch.directives import read_directives, warn_of_unfollowed
from astitch.errors import EngineUnavailable
from astitch.faults import FaultLog, report_faults
from astitch.hlo import schema
from astitch.hlo.opaque import discard_unread_fields
from astitch.hlo.schema import name_of_module
from astitch.hlo_import import import_hlo
from astitch.loops.plan import LoopPlanner
from astitch.loops.stacks import straighten_stacks
from astitch.pipeline import Target
from astitch.program.steps import Program
from astitch.rewrite.simplify import simplify
from astitch.run.executor import count_gpus, current_gpu
from astitch.search.plan_scopes import render_kernel
from astitch.show.compilation import Compilation
from astitch.xla.loop_steps import fold_ends, take_loops
from tf_addon import kept_programs
from tf_addon.errors import UnsupportedSignature
from tf_addon.ffi import TARGET
from tf_addon.launch_table import (
    CudaRunner,
    HostRunner,
    Runner,
    count_steps,
    emulation_address,
    find_driver,
    keep_scratch,
    make_table,
    shares_memory,
)
from tf_addon.report import OWNERS, Compiled, Records, clean_reason
from tf_addon.shim_library import FAILED_ITSELF, CudaDriver, Handlers, Shim

log = logging.getLogger("tf_addon")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a function's programs run.  gpu: CUDA's number, None for the emulation.  staged: TensorFlow has it not."""

    gpu: int | None
    staged: bool


def check_cublas() -> None:
    """Raises EngineUnavailable where products would fail in this process.

    TensorFlow's wheel for GPUs has functions by the names of cuBLAS's, which CuPy's calls find before those of its own
    library.  They hand them on to the CUDA libraries that the wheel is made for; without these they only give errors.
    """
    found = getattr(ctypes.CDLL(None), "cublasGetProperty", None)
    if found is not None and found(0, ctypes.byref(ctypes.c_int())):
        raise EngineUnavailable(
            "TensorFlow's wheel is made for GPUs and finds no CUDA libraries, and its functions hide CuPy's cuBLAS\n"
            "  install tensorflow-cpu in its place, or tensorflow[and-cuda], or run the emulation: engine='host'"
        )


def choose_place(tensorflow_gpu: int, engine: str | None) -> Place:
    """tensorflow_gpu: where TensorFlow runs the function, -1 for the host.  engine: "host", "gpu" or None, a GPU where
    there is one.  Raises EngineUnavailable."""
    if tensorflow_gpu >= 0:
        if name_wanted(engine) == "host":
            raise EngineUnavailable(
                f"the emulation was asked for, and TensorFlow runs the function on GPU {tensorflow_gpu}\n"
                "  leave engine='host' out, or call it under tf.device('CPU')"
            )
        check_cublas()
        return Place(tensorflow_gpu, staged=False)
    if choose_launcher(engine) == "host":
        return Place(None, staged=False)
    check_cublas()
    return Place(current_gpu(), staged=True)


class Programs:
    """Compiles for the shim, and runs the steps that it leaves to Python.  Safe to call from any thread."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.engine: str | None = None
        self.strict = False
        self._shim: Shim | None = None
        self._lock = threading.Lock()
        self._turns: dict[bytes, threading.Lock] = {}
        self._made: dict[bytes, tuple[int, Made]] = {}
        self._runners: dict[int, Runner] = {}
        self._numbers: dict[int, int] = {}
        self._keys = itertools.count()
        self._prepared: set[bool] = set()

    @property
    def handlers(self) -> Handlers:
        """What the shim is installed with."""
        return Handlers(self.compile, self.run_step, self.note_refused)

    def attach(self, shim: Shim) -> None:
        """The shim that knows the programs."""
        self._shim = shim

    def compile(self, function: str, device: str, hlo: bytes, tensorflow_gpu: int) -> int:
        """The number of the program for a module.  Raises AstitchError for what astitch cannot compile or run."""
        if TARGET.encode() in hlo:
            raise UnsupportedSignature(
                "it is astitch's already: XLA calls the kernels of a function of tier='python'"
            )
        place = choose_place(tensorflow_gpu, self.engine)
        module = read_module(hlo)
        key = hashlib.sha256(repr((place, self.strict)).encode() + module.content).digest()
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        start = time.perf_counter()
        with turn:
            known = self._made.get(key)
            if known is None:
                known = self._made[key] = self._make(module, place)
        seconds = time.perf_counter() - start
        number, made = known
        note_compiled(self.records, function, device, made, seconds)
        return number

    def _make(self, module: Module, place: Place) -> tuple[int, Made]:
        made = compile_module(module, place, strict=self.strict)
        program = made.program
        self._prepare_launches(place)
        runner = make_runner(program, place)
        key = next(self._keys)
        self._runners[key] = runner
        table = make_table(program, runner, key)
        assert self._shim is not None
        number = self._numbers[key] = self._shim.add_program(table.row)
        return number, made

    def _prepare_launches(self, place: Place) -> None:
        """Tells the shim, once, how kernels are launched there."""
        on_gpu = place.gpu is not None
        with self._lock:
            if on_gpu in self._prepared:
                return
            assert self._shim is not None
            if place.gpu is None:
                self._shim.set_host(emulation_address())
            else:
                self._shim.set_cuda(find_cuda())
            self._prepared.add(on_gpu)

    def run_step(self, key: int, number: int, stream: int, addresses: Any) -> None:
        """A step of a program that is no kernel; a product whose algorithm is known now is the shim's from then on."""
        runner = self._runners[key]
        runner.run_step(number, addresses, stream)
        product = runner.find_product(number, stream)
        if product is not None:
            assert self._shim is not None
            self._shim.set_product(self._numbers[key], number, product)

    def note_refused(self, function: str, device: str, reason: str, outcome: int) -> None:
        """A signature that is not astitch's."""
        note_refused(self.records, function, device, reason, outcome)


@dataclass(frozen=True, slots=True)
class Module:
    """hlo: under readable names.  content: what it computes, the same bytes whatever its ops are called."""

    hlo: bytes
    content: bytes


@dataclass(frozen=True, slots=True)
class Made:
    """A module's program.  aliases: results that are the new values of parameters.  kept: was it found on disk?

    stitched_us, left_us: projected memory-intensive time, in kernels and outside of them.
    compile: all that the compiler knows of it; compiles again what was found.
    """

    program: Program
    aliases: tuple[tuple[int, int], ...]
    stitched_us: float
    left_us: float
    kept: bool
    compile: Callable[[], Compilation]


MOST_COMPILATIONS = 32
"""Of the latest so many modules all that the compiler knows stays in memory."""


@dataclass(frozen=True, eq=False, slots=True)
class Compiling:
    """A module's Compilation: made when it is asked for, and again if that was long ago.

    packed: the module, compressed, since it stays as long as the process.
    """

    packed: bytes
    gpu: Gpu
    strict: bool

    def __call__(self) -> Compilation:
        return _compile_recent(self)


@functools.lru_cache(maxsize=MOST_COMPILATIONS)
def _compile_recent(asked: Compiling) -> Compilation:
    return compile_for(zlib.decompress(asked.packed), asked.gpu, strict=asked.strict)


def compile_module(module: Module, place: Place, *, strict: bool) -> Made:
    """The program of a module for where it runs, from disk where an earlier process kept it.  Raises AstitchError."""
    gpu = preset("host") if place.gpu is None else from_device(place.gpu)
    compile_now = Compiling(zlib.compress(module.hlo), gpu, strict)
    key = kept_programs.key_of(module.content, gpu, strict=strict)
    if key is None:
        return _make_now(compile_now)
    kept = kept_programs.load(key)
    if kept is None:
        with kept_programs.turn(key):
            kept = kept_programs.load(key)
            if kept is None:
                made = _make_now(compile_now)
                if not compile_now().faults:  # another process may have none, and says so if it has
                    kept_programs.store(key, kept_of(made))
                return made
    return Made(
        kept.program, kept.aliases, kept.stitched_us, kept.left_us, kept=True, compile=compile_now
    )


def kept_of(made: Made) -> kept_programs.Kept:
    """What of it is written to disk."""
    return kept_programs.Kept(made.program, made.aliases, made.stitched_us, made.left_us)


def _make_now(compile_now: Callable[[], Compilation]) -> Made:
    compilation = compile_now()
    share = compilation.share
    return Made(
        compilation.program,
        compilation.graph.aliases,
        share.stitched_us,
        share.left_us,
        kept=False,
        compile=compile_now,
    )


def note_refused(records: Records, function: str, device: str, reason: str, outcome: int) -> None:
    """One more signature that is XLA's or TensorFlow's, by the shim's outcome."""
    records.note_refused(function, device, reason, outcome)
    first, *_ = clean_reason(reason).splitlines() or [""]
    if outcome == FAILED_ITSELF:
        log.info("%s on %s fails of itself: %s", function, device, first)
    else:
        log.warning("%s on %s is left to %s: %s", function, device, OWNERS[outcome], first)


def note_compiled(records: Records, function: str, device: str, made: Made, seconds: float) -> None:
    """One more signature that astitch runs."""
    types = ", ".join(str(view.type) for view in made.program.parameters)
    row = Compiled(
        f"({types})",
        *count_steps(made.program),
        seconds,
        made.kept,
        made.stitched_us,
        made.left_us,
        made.compile,
    )
    records.note_compiled(function, device, row)
    how = "found on disk" if made.kept else "compiled"
    log.info("%s: %s on %s in %.2f s", how, function, device, seconds)


def compile_for(hlo: bytes, gpu: Gpu, *, strict: bool = False) -> Compilation:
    """A module compiled for a device, loops that can be one kernel as steps of the program.

    An error inside astitch leaves a kernel or a loop to XLA, with a FaultWarning; strict raises it.  Raises
    AstitchError."""
    faults = FaultLog(strict or None)
    told = read_directives().of(name_of_module(hlo))
    planner = None if told.leaves_all_loops else LoopPlanner(gpu, faults, told)
    graph = import_hlo(hlo, trusted=True)
    if planner and sum(node.op == "while" for node in graph) > 1:
        imported = graph
        graph = faults.attempt(
            lambda: straighten_stacks(fold_ends(simplify(imported))),
            lambda: imported,
            stage="straighten_stacks",
            subject=graph.name,
            cost="the pass is left out",
        )
    target = Target(loops=planner, render=render_kernel, directives=told)
    compilation = compile_graph(graph, gpu, target, strict=strict, faults=faults)
    if planner is not None:
        plain, taken_by = compilation, planner
        compilation = faults.attempt(
            lambda: take_loops(plain, taken_by),
            lambda: plain,
            stage="take_loops",
            subject=graph.name,
            cost="XLA runs its loops",
        )
    report_faults(graph.name, hlo, gpu.name, faults.found)
    outcomes = told.list_outcomes()
    warn_of_unfollowed(name_of_module(hlo), outcomes)
    return replace(compilation, faults=faults.found, directives=outcomes)


def make_runner(program: Program, place: Place) -> Runner:
    """What runs a program's steps where it is to run."""
    if place.gpu is None:
        return HostRunner(program)
    return CudaRunner(program, place.gpu, staged=place.staged)


def find_cuda() -> CudaDriver:
    """libcuda's entries on this machine, for all of its GPUs: managed memory only where every one of them shares it."""
    library = ctypes.CDLL("libcuda.so.1")
    gpus = range(count_gpus())
    for gpu in gpus:
        keep_scratch(library, gpu)
    return find_driver(library, managed=all(map(shares_memory, gpus)))


def read_module(hlo: bytes) -> Module:
    """A module as TensorFlow serialized it."""
    module = schema.HloModuleProto.FromString(hlo)
    discard_unread_fields(module)
    module.ClearField("id")
    for computation in module.computations:
        # TensorFlow puts attributes behind a function's name.
        computation.name = re.sub(rb"\[.*\]", b"", computation.name).strip(b"_")
    named = bytes(module.SerializeToString())
    for field in ("name", "entry_computation_name", "stack_frame_index"):
        module.ClearField(field)
    for computation in module.computations:
        computation.ClearField("name")
        for instruction in computation.instructions:
            instruction.ClearField("name")
            instruction.ClearField("metadata")
    schema.sort_maps(module)
    return Module(named, bytes(module.SerializeToString(deterministic=True)))
