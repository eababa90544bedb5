"""BERT and DIEN in TensorFlow: kernels of XLA and of astitch, and what a call costs the host with each.

`python -m benchmarks.tf_models [--size tiny|full] [--json FILE]`, with or without a GPU.

Kernels are counted for a preset (h100): astitch's, and those that XLA makes of the same HLO where JAX's plugin for
NVIDIA GPUs is installed.  The host's cost is measured in one TensorFlow on the CPU.  XLA's call computes; astitch's
makes no launch ("dry"), since without a GPU a launch is an emulation.  So beside the models at their tiny size stands
the signature of a training step alone.  Every variable is scaled by an argument, and all have one element. On a machine
with a GPU the dry call stages its tensors, and a whole call is measured too, until its results are back. Where
TensorFlow itself has a GPU, "steps" are measured as well: what both make of its own tensors there.  --host-only hides
that GPU from TensorFlow.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tf_addon
from astitch.compile import memory_ops
from astitch.device.gpu import preset
from astitch.hlo.schema import HloModuleProto
from astitch.hlo_import import serialize_module
from astitch.profiling.report import PRODUCT
from astitch.profiling.xla_ahead import AheadOfTime, find_plugin
from astitch.profiling.xla_kernels import read_xla_kernels
from astitch.program.steps import FallbackStep
from astitch.run.executor import count_gpus
from benchmarks.tf_workloads import MODELS, make_model
from tf_addon.enabling import takeover
from tf_addon.launch_table import count_steps
from tf_addon.programs import compile_for

PARTS = ("infer", "train_step")
CALLS, ROUNDS = 100, 5
WARM = 5
STEPS = 20
"""Calls issued back to back."""

SIDES = ("xla", "astitch")


@dataclass(frozen=True, slots=True)
class Launches:
    """Of one call.  kernels: memory-intensive ones, copies and fills.  products: matrix products and convolutions."""

    kernels: int
    products: int


@dataclass(frozen=True, slots=True)
class Kernels:
    """A model's function for a preset.

    xla: all of it through XLA; None where XLA's compiler for GPUs is not here, or failed.  stitched, library: kernels
    of astitch, and products that it has a library do.  fallbacks: parts that XLA computes for astitch (loops, for one),
    and what they launch.
    """

    model: str
    part: str
    size: str
    gpu: str
    operations: int
    xla: Launches | None
    stitched: int
    library: int
    fallbacks: int
    in_fallbacks: Launches | None


@dataclass(frozen=True, slots=True)
class Overhead:
    """Microseconds of a call in steady state: the least of ROUNDS medians, in turns, since other programs may take the
    cores for a while.  astitch_us: without launches.  gpu_us: all of it, where there is a GPU."""

    model: str
    part: str
    arrays: int
    xla_us: float
    astitch_us: float
    gpu_us: float | None
    launches: int


@dataclass(frozen=True, slots=True)
class Steps:
    """A model on TensorFlow's GPU, by side: medians of ROUNDS in turns.  host_us: until a call returns that finds the
    GPU idle.  step_us: a call of STEPS that follow each other.  first_s: the first call.  apart: the largest relative
    difference between the sides' results, or losses, of the first WARM calls."""

    model: str
    part: str
    size: str
    host_us: dict[str, float]
    step_us: dict[str, float]
    first_s: dict[str, float]
    apart: float


# ---- kernels -----------------------------------------------------------------------------------------------------


def count_kernels(name: str, part: str, size: str, gpu: str) -> Kernels:
    """Compiles a model's function for a preset, by both."""
    model, batch = make_model(name, size)
    hlo = getattr(model, part).experimental_get_compiler_ir(batch)(stage="hlo_serialized")
    compilation = compile_for(hlo, preset(gpu))
    fallbacks = [step.hlo for step in compilation.program.steps if isinstance(step, FallbackStep)]
    whole, *parts = (count_launches(module, gpu) for module in (hlo, *fallbacks))
    known = [found for found in parts if found is not None]
    inside = None
    if len(known) == len(parts):
        inside = Launches(sum(f.kernels for f in known), sum(f.products for f in known))
    stitched, library, others = count_steps(compilation.program)
    operations = len(memory_ops(compilation.graph))
    return Kernels(name, part, size, gpu, operations, whole, stitched, library, others, inside)


def count_launches(hlo: bytes, gpu: str) -> Launches | None:
    """What XLA makes of a module for a preset; the turns of a loop count each."""
    if find_plugin() is None:
        return None
    found = AheadOfTime(drop_copies(hlo), preset(gpu), {}).result()
    if isinstance(found, str):
        print(found)
        return None
    kernels = read_xla_kernels(found.module, preset(gpu)).kernels
    products = sum(kernel.launches for kernel in kernels if kernel.kind == PRODUCT)
    return Launches(round(sum(kernel.launches for kernel in kernels) - products), round(products))


def drop_copies(hlo: bytes) -> bytes:
    """The module with reshapes for copies, which TensorFlow's loops have, and JAX's way to that compiler cannot say."""
    module = HloModuleProto.FromString(serialize_module(hlo))
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == b"copy":
                instruction.opcode = b"reshape"
    return bytes(module.SerializeToString())


# ---- the host's cost ---------------------------------------------------------------------------------------------


def make_skeleton(name: str) -> tuple[Callable[[Any], Any], Any]:
    """A function of the signature of a model's training step, whose arrays have one element each."""
    model, batch = make_model(name, "tiny")
    variables = [tf.Variable(tf.ones([1], v.dtype)) for v in model.variables]
    small = tf.nest.map_structure(lambda t: tf.ones([1], t.dtype), batch)

    @tf.function(jit_compile=True)
    def skeleton(batch: Any) -> Any:
        factor = tf.add_n([tf.cast(t, tf.float32) for t in tf.nest.flatten(batch)])
        for variable in variables:
            variable.assign(variable * tf.cast(factor, variable.dtype))
        return factor

    return skeleton, small


def time_call(call: Callable[[], Any], calls: int) -> float:
    """Median microseconds of a call."""
    for _ in range(WARM):
        call()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def measure_overhead(name: str, part: str, calls: int) -> Overhead:
    """A model's function, or its "signature", through XLA and through astitch without launches."""
    if part == "signature":
        function, batch = make_skeleton(name)
    else:
        model, batch = make_model(name, "tiny")
        function = getattr(model, part)
    tf_addon.disable()
    tf_addon.report(reset=True)
    engine = "gpu" if count_gpus() else "host"
    xla_us, astitch_us, gpu_us = [], [], []
    for _ in range(ROUNDS):
        xla_us.append(time_call(lambda: function(batch), calls))
        with tf_addon.enabled(engine=engine):
            if engine == "gpu":
                gpu_us.append(time_call(lambda: function(batch), calls))
            takeover.set(replace(takeover.wishes, dry=True))
            astitch_us.append(time_call(lambda: function(batch), calls))
    found = tf_addon.report(reset=True)
    if found.fallbacks:
        raise RuntimeError(f"{name} {part}: not astitch's\n{found}")
    (compiled,) = (one for f in found.functions for one in f.compiled)
    program = compiled.compilation.program
    arrays = len(program.parameters) + len(program.outputs)
    whole = min(gpu_us) if gpu_us else None
    return Overhead(name, part, arrays, min(xla_us), min(astitch_us), whole, len(program.steps))


# ---- TensorFlow's own GPU ----------------------------------------------------------------------------------------


def measure_steps(name: str, part: str, size: str) -> Steps:
    """Each side trains, or infers with, a model of its own."""
    tf_addon.report(reset=True)
    calls: dict[str, Callable[[], Any]] = {}
    first_s, results = {}, {}
    for side in SIDES:
        choose_side(side)
        model, batch = make_model(name, size)
        calls[side] = functools.partial(getattr(model, part), batch)
        start = time.perf_counter()
        results[side] = [wait(calls[side]())]
        first_s[side] = time.perf_counter() - start
        results[side] += [wait(calls[side]()) for _ in range(WARM - 1)]
    want, got = (np.asarray(results[side], np.float64) for side in SIDES)
    host: dict[str, list[float]] = {side: [] for side in SIDES}
    step: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(ROUNDS):
        for side, call in calls.items():
            choose_side(side)
            for _ in range(WARM):
                wait(call())
                start = time.perf_counter()
                result = call()
                host[side].append(time.perf_counter() - start)
                wait(result)
            start = time.perf_counter()
            for _ in range(STEPS):
                result = call()
            wait(result)
            step[side].append((time.perf_counter() - start) / STEPS)
    found = tf_addon.report(reset=True)
    tf_addon.disable()
    if found.fallbacks:
        raise RuntimeError(f"{name} {part}: not astitch's\n{found}")
    return Steps(
        name,
        part,
        size,
        {side: 1e6 * statistics.median(times) for side, times in host.items()},
        {side: 1e6 * statistics.median(times) for side, times in step.items()},
        first_s,
        float(np.abs(want - got).max() / np.abs(want).max()),
    )


def choose_side(side: str) -> None:
    if side == "astitch":
        tf_addon.enable(engine="gpu")
    else:
        tf_addon.disable()


def wait(result: Any) -> Any:
    """Until a call's first result is there; on the GPU it is the call's end."""
    return tf.nest.flatten(result)[0].numpy()


# ---- tables ------------------------------------------------------------------------------------------------------


def show_kernels(rows: list[Kernels]) -> str:
    """As a table of Markdown."""
    lines = [
        "| model | memory-intensive ops | XLA: kernels, products | astitch: kernels, products "
        "| left to XLA: kernels, products |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.model} {row.part}, {row.size} | {row.operations} | {_show(row.xla)} "
            f"| {row.stitched}, {row.library} | {row.fallbacks} parts: {_show(row.in_fallbacks)} |"
        )
    return "\n".join(lines)


def _show(found: Launches | None) -> str:
    return "-" if found is None else f"{found.kernels}, {found.products}"


def show_overheads(rows: list[Overhead]) -> str:
    """As a table of Markdown."""
    lines = [
        "| model | arrays | steps | XLA, us a call | astitch without launches, us a call "
        "| astitch on the GPU, us a call |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        whole = "-" if row.gpu_us is None else f"{row.gpu_us:.0f}"
        lines.append(
            f"| {row.model} {row.part} | {row.arrays} | {row.launches} | {row.xla_us:.0f} | {row.astitch_us:.0f} "
            f"| {whole} |"
        )
    return "\n".join(lines)


STEPS_HEADER = """\
| model | us a step, XLA / astitch | XLA over astitch | host, us a call | first call s | apart |
|---|---|---|---|---|---|"""


def show_steps(row: Steps) -> str:
    """As a row of Markdown."""

    def pair(by_side: dict[str, float], digits: int = 0) -> str:
        return " / ".join(f"{by_side[side]:,.{digits}f}" for side in SIDES)

    ratio = row.step_us["xla"] / row.step_us["astitch"]
    return (
        f"| {row.model} {row.part}, {row.size} | {pair(row.step_us)} | {ratio:.2f} | {pair(row.host_us)} "
        f"| {pair(row.first_s, 1)} | {row.apart:.0e} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--size", default="full", choices=("tiny", "full"), help="for the kernels and steps"
    )
    parser.add_argument("--gpu", default="h100", help="the preset for the kernels")
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--no-kernels", action="store_true", help="the host's cost only")
    parser.add_argument("--no-calls", action="store_true", help="not the host's cost")
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--host-only", action="store_true", help="TensorFlow sees no GPU")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    if options.host_only:
        tf.config.set_visible_devices([], "GPU")
    kernels = []
    if not options.no_kernels:
        for name in options.models:
            kernels += [count_kernels(name, part, options.size, options.gpu) for part in PARTS]
        print(show_kernels(kernels), end="\n\n")
    overheads, steps = [], []
    if not options.no_calls:
        for name in options.models:
            overheads += [
                measure_overhead(name, part, options.calls) for part in (*PARTS, "signature")
            ]
        print(show_overheads(overheads), end="\n\n")
    if tf.config.get_visible_devices("GPU"):
        print(STEPS_HEADER)
        for name, part in itertools.product(options.models, PARTS):
            steps.append(measure_steps(name, part, options.size))
            print(show_steps(steps[-1]), flush=True)
    if options.json:
        rows: dict[str, Any] = {
            "tensorflow": tf.__version__,
            "kernels": [asdict(row) for row in kernels],
            "host": [asdict(row) for row in overheads],
            "steps": [asdict(row) for row in steps],
        }
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
