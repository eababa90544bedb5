"""The pipeline of a profile: a target through both compilers, measured where there is a GPU, to a Report.

Takes a function of JAX arrays or an HLO module.  XLA's compiler for a GPU that is not here works in its own process
while ours does.
"""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from astitch.device.gpu import Gpu, preset
from astitch.errors import AstitchError
from astitch.hlo_import import serialize_module
from astitch.library import xla_fallback
from astitch.profiling.ablation import ablate, start_with_xla
from astitch.profiling.counters import add_counters, count_kernels, keep_compiled
from astitch.profiling.inside_xla import compile_inside, join_stitched
from astitch.profiling.measured import measure_ablation, measure_sides
from astitch.profiling.memory import trace_module, trace_program
from astitch.profiling.report import Machine, Memory, Report, Side, Step
from astitch.profiling.stitched import (
    DescribedProgram,
    describe_program,
    describe_refusals,
    find_separations,
    lay_out,
    measure_layers,
    read_excerpts,
    side_of,
)
from astitch.profiling.target import Target, trace_function
from astitch.profiling.xla_ahead import INSTALL, AheadOfTime, find_plugin
from astitch.profiling.xla_kernels import Launches, read_xla_kernels
from astitch.show.compilation import Compilation

DEFAULT_PRESET = "h100"
PACKAGES = (
    "astitch",
    "jax",
    "jaxlib",
    "jax-cuda13-plugin",
    "jax-cuda12-plugin",
    "cupy-cuda13x",
    "cupy-cuda12x",
)

Progress = Callable[[str], None]
"""Told what begins."""


def silent(_: str) -> None:
    """No progress."""


@dataclass(frozen=True, slots=True)
class Options:
    """gpu: a preset, which is compiled for and not measured; None: the GPU that is here, else DEFAULT_PRESET.
    engine: see astitch.jit.  runs: timed batches of each side.  flush_l2: the L2 is overwritten before each call.
    ncu: hardware counters, of the `counted` slowest kernels of each side.  strict: see astitch.jit.  ablation: compile
    (and measure) with less of the compiler too.  memory_limit: see astitch.jit."""

    gpu: str | None = None
    engine: str | None = None
    runs: int = 9
    flush_l2: bool = False
    ncu: bool = False
    counted: int = 10
    strict: bool = False
    ablation: bool = True
    memory_limit: str | float | None = None


def profile(
    fn: Callable[..., Any],
    *args: Any,
    gpu: str | None = None,
    engine: str | None = None,
    runs: int = 9,
    flush_l2: bool = False,
    strict: bool = False,
    ablation: bool = True,
    carries: bool = False,
    memory_limit: str | float | None = None,
) -> Report:
    """XLA and astitch side by side on fn(*args).

    fn: a function of JAX arrays, or an astitch.jit or jax.jit of one.  args: arrays, or jax.ShapeDtypeStructs where
    nothing is run.  gpu: a preset (v100 ... b200): both are compiled for it and nothing is run; None: measured on the
    GPU that is here, or compiled for an H100 where there is none.  engine: of astitch.jit.  runs: timed batches.
    flush_l2: overwrite the L2 before each call.  strict: raise UnsupportedOp for ops that no kernel computes.
    ablation: also with less of the compiler.  carries: each call takes over its first argument and gives the next
    call's as its first result, as a training step does.  memory_limit: of astitch's side, see astitch.jit.

    Raises AstitchError for what cannot be traced or compiled, and for an unknown preset or engine.
    """
    name = str(getattr(fn, "__name__", "function"))
    options = Options(gpu, engine, runs, flush_l2, strict=strict, ablation=ablation)
    options = replace(options, memory_limit=memory_limit)
    return profile_target(replace(trace_function(name, fn, args), carries=carries), options)


def profile_target(target: Target, options: Options, progress: Progress = silent) -> Report:
    """The whole profile.  Raises AstitchError."""
    if choose_gpu(options) is None:
        return compare_compiled(target, options, preset(options.gpu or DEFAULT_PRESET), progress)
    return compare_measured(target, options, progress)


def choose_gpu(options: Options) -> int | None:
    """Number of the GPU on which to measure; None to run nothing.  Raises AstitchError where one was asked for."""
    from astitch.run.executor import count_gpus, current_gpu

    if options.gpu is not None:
        preset(options.gpu)
        if options.ncu:
            raise AstitchError(
                "--ncu counts on the GPU that is here, --gpu names one that is not\n  leave one out"
            )
        return None
    if count_gpus() and options.engine != "host":
        if xla_fallback.find_device("gpu", current_gpu()) is None:
            raise AstitchError(
                "CuPy sees a GPU, JAX does not: XLA's side would run on the CPU\n"
                f"  install jax[cuda13] or jax[cuda12], or give --gpu {DEFAULT_PRESET} to run nothing"
            )
        return current_gpu()
    for option, asked in (
        ("--ncu", options.ncu),
        (f"--engine {options.engine}", options.engine not in (None, "host")),
    ):
        if asked:
            raise AstitchError(
                f"{option} needs a GPU, and CuPy sees none here\n"
                f"  leave it out, and give --gpu {DEFAULT_PRESET} for a comparison of what was compiled"
            )
    return None


def compare_compiled(target: Target, options: Options, gpu: Gpu, progress: Progress) -> Report:
    """Both compiled for a preset, nothing run."""
    notes = list(target.notes)
    if options.gpu is None:
        notes.append(f"no GPU here: compiled for the preset {gpu.name}; nothing was run")
    with xla_ahead(serialize_module(target.hlo), gpu) as ahead:
        progress("astitch compiles")
        start = time.perf_counter()
        compilation, module = compile_inside(
            target, gpu, strict=options.strict, memory_limit=options.memory_limit
        )
        resources = compilation.resources()
        compile_s = time.perf_counter() - start
        stitched = describe_program(compilation, resources)
        with xla_ahead(module, gpu, xla_fallback.AROUND_KERNELS) as ahead_inside:
            rows = []
            if options.ablation:
                progress("ablation")
                rows = list(ablate(compilation))
            progress("XLA compiles")
            xla = describe_ahead("xla", ahead, gpu)
            inside = describe_ahead("astitch", ahead_inside, gpu)
    return Report(
        target=target.name,
        date=now(),
        engine="static",
        machine=describe_preset(gpu),
        xla=xla,
        astitch=join_sides(inside, stitched, compile_s, trace_program(compilation.program)),
        steps=stitched.steps,
        ablation=tuple(start_with_xla(xla, rows)) if rows else (),
        **describe_decisions(compilation, stitched.steps),
        notes=tuple(notes),
    )


def compare_measured(target: Target, options: Options, progress: Progress) -> Report:
    """Both run on the GPU that is here."""
    with keep_compiled() as shared:
        found = measure_sides(
            target,
            options.engine,
            options.runs,
            flush_l2=options.flush_l2,
            strict=options.strict,
            memory_limit=options.memory_limit,
            progress=progress,
        )
        sides = {"xla": found.xla, "astitch": found.astitch}
        if options.ncu:
            progress("hardware counters")
            both = [found.xla, found.astitch]
            counted = count_kernels(target, both, options.engine, options.counted, shared)
            sides = {name: add_counters(side, counted[name]) for name, side in sides.items()}
    notes = list(target.notes)
    rows = []
    if options.ablation:
        progress("ablation")
        rows = list(measure_ablation(found.compilation))
    return Report(
        target=target.name,
        date=now(),
        engine=name_engine(target, options.engine),
        machine=replace(found.machine, versions=list_versions()),
        xla=sides["xla"],
        astitch=sides["astitch"],
        steps=found.stitched.steps,
        ablation=tuple(start_with_xla(sides["xla"], rows)) if rows else (),
        **describe_decisions(found.compilation, found.stitched.steps),
        notes=tuple(notes),
    )


def name_engine(target: Target, asked: str | None) -> str:
    """xla or executor: what ran astitch's side."""
    from astitch.api.engines import choose_engine

    return "executor" if target.function is None else choose_engine(asked)


def join_sides(inside: Side, stitched: DescribedProgram, compile_s: float, memory: Memory) -> Side:
    """astitch's side: as XLA launches it where its compiler is here, else as the program's own steps.

    memory: of these.
    """
    if inside.missing:
        note = (
            f"products as the program calls them, not as XLA would compile them: {inside.missing}"
        )
        return replace(side_of(stitched, compile_s, [note]), memory=memory)
    kernels = join_stitched(Launches(tuple(inside.kernels)), stitched.kernels)
    return replace(
        inside,
        kernels=kernels,
        timeline=lay_out(kernels),
        compile_s=compile_s + (inside.compile_s or 0.0),
    )


def describe_decisions(compilation: Compilation, steps: Sequence[Step]) -> dict[str, Any]:
    """Fields of the report that say what the compiler decided.  steps: of the program."""
    graph = compilation.scopes.graph
    refusals = (
        *describe_refusals(graph, compilation.scopes.refusals),
        *find_separations(compilation, steps),
    )
    return {
        "refusals": refusals,
        "excerpts": read_excerpts(graph, refusals),
        "whole_us": measure_layers(compilation),
        "share": tuple(compilation.share.lines),
        "outside": tuple(map(str, compilation.program.outside)),
        "splits": tuple(map(str, compilation.splits)),
        "loops": compilation.loops,
        "stage_s": dict(compilation.seconds),
    }


@contextmanager
def xla_ahead(
    module: bytes | str, gpu: Gpu, options: Mapping[str, bool | int] = MappingProxyType({})
) -> Iterator[AheadOfTime | str]:
    """XLA's compilation of a module under way, or why there is none.  module: a sentence where there is none."""
    if find_plugin() is None:
        yield f"XLA's compiler for NVIDIA GPUs is not installed: {INSTALL}"
    elif isinstance(module, str):
        yield module
    else:
        ahead = AheadOfTime(module, gpu, options)
        try:
            yield ahead
        finally:
            ahead.close()


def describe_ahead(name: str, ahead: AheadOfTime | str, gpu: Gpu) -> Side:
    """A side where nothing was run."""
    found = ahead if isinstance(ahead, str) else ahead.result()
    if isinstance(found, str):
        return Side(name, missing=found)
    launches = read_xla_kernels(found.module, gpu)
    notes = ["compiled without a GPU: XLA could not time its choices (autotuning)"]
    if launches.unknown_loops:
        notes.append(
            f"{launches.unknown_loops} loops whose turns XLA does not know count as one turn"
        )
    if launches.conditionals:
        notes.append(f"of {launches.conditionals} conditionals the first branch is counted")
    return Side(
        name,
        kernels=launches.kernels,
        timeline=lay_out(launches.kernels),
        compile_s=found.seconds,
        planned_bytes=found.planned_bytes,
        notes=tuple(notes),
        memory=trace_module(found.module),
    )


def describe_preset(gpu: Gpu) -> Machine:
    return Machine(
        gpu=f"{gpu.name} (preset, nothing was run)",
        preset=gpu.name,
        sms=gpu.sms,
        peak_gbs=gpu.bandwidth_gbs,
        fp32_gflops=gpu.fp32_gflops,
        launch_us=gpu.launch_us,
        versions=list_versions(),
    )


def list_versions() -> dict[str, str]:
    """The versions of everything that took part."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def now() -> str:
    """ISO 8601, UTC."""
    return datetime.now(UTC).replace(microsecond=0).isoformat()
