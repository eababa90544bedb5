"""How long the compiler itself takes: seconds of each stage, and how they grow with the graph.  Needs no GPU.

`python -m benchmarks.compile_time [FILE ...] [--synthetic] [--workloads] [--json OUT]`: HLO dumps, the ten entries of
benchmarks/workloads at full size, and synthetic graphs of 1,000, 3,000 and 10,000 ops.  CPU seconds from the import to
the emitted text; the CUDA compiler is not asked unless `--observe` says so.  `--cold`: all that the engine xla does
until XLA gets the kernels, with an empty cache and every parameter donated.

`--first-calls [NAME ...]` needs a GPU.  It shows where the first call of an entry spends its seconds.  XLA and astitch
each have a process of their own with empty caches; JAX's is as by default: none.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.monitoring
import jax.numpy as jnp

from astitch.compile import compile_hlo, read_module
from astitch.device.gpu import preset
from astitch.hlo_import import import_hlo
from astitch.search import plan_scopes
from astitch.show.compilation import Compilation
from astitch.toolchain.kernel_text import share_text
from astitch.xla.compile_module import compile_for_xla

CACHE, DRIVER_CACHE, JAX_CACHE = "ASTITCH_CACHE_DIR", "CUDA_CACHE_PATH", "JAX_COMPILATION_CACHE_DIR"
OPS = (1_000, 3_000, 10_000)
WIDTH = 1_024
"""Elements of a row."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One compilation.  ops: instructions of the module.  forms: kernels that differ in more than names.  cpu_s: of
    this process; wall_s: by the clock.  stage_s: by the clock, of each stage."""

    name: str
    ops: int
    kernels: int
    forms: int
    cpu_s: float
    wall_s: float
    stage_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Growth:
    """timings: of one shape, the smallest first.  exponent: e of seconds ~ ops^e from the smallest to the largest."""

    shape: str
    timings: Sequence[Timing]
    exponent: float
    stage_exponents: Mapping[str, float] = field(default_factory=dict)


# ---- synthetic graphs --------------------------------------------------------------------------------------------

Function = Callable[..., Any]


def make_chain(ops: int) -> tuple[Function, Sequence[jax.ShapeDtypeStruct]]:
    """One long chain of element-wise ops."""

    def chain(x: jax.Array) -> jax.Array:
        for number in range(ops // 3):
            x = jnp.tanh(x * 1.01) + float(number % 7)
        return x

    return chain, [jax.ShapeDtypeStruct((256, WIDTH), jnp.float32)]


def make_updates(ops: int) -> tuple[Function, Sequence[jax.ShapeDtypeStruct]]:
    """Independent updates of many tensors, as an optimizer has them: 12 ops each, four shapes."""
    shapes = ((WIDTH,), (WIDTH, 64), (256, 256), (WIDTH, 3, 16))
    tensors = ops // 12

    def updates(*arrays: jax.Array) -> list[jax.Array]:
        results = []
        for w, g, m, v in zip(*(arrays[i::4] for i in range(4)), strict=True):
            mean = 0.9 * m + 0.1 * g
            square = 0.999 * v + 0.001 * g * g
            results += [w - 1e-3 * mean / (jnp.sqrt(square) + 1e-8), mean, square]
        return results

    return updates, [
        jax.ShapeDtypeStruct(shapes[number % 4], jnp.float32)
        for number in range(tensors)
        for _ in range(4)
    ]


def make_layers(ops: int) -> tuple[Function, Sequence[jax.ShapeDtypeStruct]]:
    """Layers of a product, a bias, a GELU and a layer norm: library calls between equal stitch ops."""

    def layers(x: jax.Array, w: jax.Array, bias: jax.Array) -> jax.Array:
        for _ in range(ops // 40):
            y = jax.nn.gelu(x @ w + bias) + x
            mean = y.mean(-1, keepdims=True)
            x = (y - mean) * jax.lax.rsqrt(jnp.square(y - mean).mean(-1, keepdims=True) + 1e-5)
        return x

    shapes = ((256, WIDTH), (WIDTH, WIDTH), (WIDTH,))
    return layers, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def make_reduces(ops: int) -> tuple[Function, Sequence[jax.ShapeDtypeStruct]]:
    """Element-wise ops and reduces of rows and columns in one stitch op, each reading what came before."""

    def reduces(x: jax.Array, y: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        sums = []
        for _ in range(ops // 14):
            x = x - x.max(-1, keepdims=True) * 0.5
            sums.append((x * y).sum(0))
            x = jnp.where(x > 0, x, 0.01 * x) + jnp.square(x).mean(-1, keepdims=True)
        return x, sums

    return reduces, [jax.ShapeDtypeStruct((512, WIDTH), jnp.float32)] * 2


def make_outputs(ops: int) -> tuple[Function, Sequence[jax.ShapeDtypeStruct]]:
    """One argument, of which many results are computed."""

    def outputs(x: jax.Array) -> list[jax.Array]:
        return [jnp.tanh(x * (number + 1.0)) + x for number in range(ops // 5)]

    return outputs, [jax.ShapeDtypeStruct((256, WIDTH), jnp.float32)]


def make_arguments(ops: int) -> tuple[Function, Sequence[jax.ShapeDtypeStruct]]:
    """The norm of many arguments."""

    def norm(*arrays: jax.Array) -> jax.Array:
        return jnp.sqrt(sum((jnp.sum(a * a) for a in arrays), jnp.zeros(())))

    return norm, [
        jax.ShapeDtypeStruct((64, 32 + number % 7), jnp.float32) for number in range(ops // 4)
    ]


def make_unused(ops: int) -> tuple[Function, Sequence[jax.ShapeDtypeStruct]]:
    """Many arguments, one of which is read."""

    def read_first(*arrays: jax.Array) -> jax.Array:
        return jax.nn.softmax(arrays[0])

    return read_first, [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * ops


def make_turns(ops: int) -> tuple[Function, Sequence[jax.ShapeDtypeStruct]]:
    """A recurrent network whose turns are written out."""
    turns = ops // 8

    def run(x: jax.Array, w: jax.Array, u: jax.Array, bias: jax.Array) -> jax.Array:
        state, states = jnp.zeros((64, 256)), []
        for turn in range(turns):
            state = jnp.tanh(x[turn] @ w + state @ u + bias)
            states.append(state)
        return jnp.stack(states)

    shapes = ((turns, 64, 128), (128, 256), (256, 256), (256,))
    return run, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def make_slices(ops: int) -> tuple[Function, Sequence[jax.ShapeDtypeStruct]]:
    """An array, of which slice after slice is written."""
    slices = ops // 7

    def write(x: jax.Array, *rows: jax.Array) -> jax.Array:
        for number, row in enumerate(rows):
            x = x.at[number].set(jnp.tanh(row))
        return x

    given = [(slices, 256, 16), *[(256, 16)] * slices]
    return write, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in given]


SHAPES: Mapping[str, Callable[[int], tuple[Function, Sequence[jax.ShapeDtypeStruct]]]] = {
    "arguments": make_arguments,
    "chain": make_chain,
    "updates": make_updates,
    "layers": make_layers,
    "outputs": make_outputs,
    "reduces": make_reduces,
    "slices": make_slices,
    "turns": make_turns,
    "unused": make_unused,
}


def lower_for_gpu(function: Function, *arguments: Any, keep_unused: bool = True) -> bytes:
    """The serialized HLO that JAX would give XLA on a GPU."""
    traced = jax.jit(function, keep_unused=keep_unused).trace(*arguments)
    module: Any = traced.lower(lowering_platforms=("cuda",)).compiler_ir("hlo")
    data: bytes = module.as_serialized_hlo_module_proto()
    return data


def lower_workloads() -> Iterator[tuple[str, bytes]]:
    """(name, HLO) of inference and training of the workloads at full size."""
    from benchmarks import models

    for entry in models.list_entries("full"):
        if entry.size == "full":
            task = models.make_task(entry)
            yield entry.key, lower_for_gpu(task.fn, task.first, task.batch, keep_unused=False)


# ---- timing ------------------------------------------------------------------------------------------------------


def compile_cold(data: bytes | str, gpu: str) -> Compilation:
    """As the engine xla compiles; in `seconds` the PTX of the kernels and XLA's module are the stage "kernels"."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {CACHE: folder}):
        start = time.perf_counter()
        graph = import_hlo(data)
        read_s = time.perf_counter() - start
        donated = [True] * len(graph.parameters)
        compilation, _ = compile_for_xla(graph, preset(gpu), donated)
        stages = compilation.seconds
        stages["import"] = read_s
        stages["kernels"] = time.perf_counter() - start - sum(stages.values())
        return compilation


def time_compilation(
    name: str,
    data: bytes | str,
    gpu: str,
    repeats: int,
    compile_one: Callable[..., Compilation] = compile_hlo,
) -> Timing:
    """The fastest of `repeats` compilations."""
    best: Timing | None = None
    for _ in range(repeats):
        gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        compilation = compile_one(data, gpu=gpu)
        cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
        kernels = compilation.program.kernels
        found = Timing(
            name,
            len(compilation.graph),
            len(kernels),
            len({share_text(kernel.source).form for kernel in kernels}),
            round(cpu_s, 3),
            round(wall_s, 3),
            {stage: round(s, 4) for stage, s in compilation.seconds.items()},
        )
        if best is None or found.cpu_s < best.cpu_s:
            best = found
    assert best is not None
    return best


# ---- first calls -------------------------------------------------------------------------------------------------

SIDES = ("xla", "astitch")
STEPS = {
    "trace_s": "/jax/core/compile/jaxpr_trace_duration",
    "lower_s": "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "xla_s": "/jax/core/compile/backend_compile_duration",
}
"""What JAX calls its own steps."""


@dataclass(frozen=True, slots=True)
class FirstCall:
    """Where the first call spends its seconds.  trace_s: tracing.  lower_s: lowering, in which astitch plans and has
    its kernels compiled.  xla_s: XLA's compiler, with what it measures.  rest_s: loading kernels and running once."""

    entry: str
    side: str
    total_s: float
    trace_s: float
    lower_s: float
    xla_s: float
    rest_s: float

    def __str__(self) -> str:
        return (
            f"{self.entry:24} {self.side:8} {self.total_s:6.1f} s   trace {self.trace_s:5.1f}  "
            f"lower {self.lower_s:5.1f}  xla {self.xla_s:5.1f}  rest {self.rest_s:5.1f}"
        )


def time_first_call(name: str, side: str) -> FirstCall:
    """In this process, with the caches that it has.  name: key of an entry.

    Of each step the longest event counts: what is traced or compiled on the way stands inside of it, or is small.
    """
    from benchmarks import models

    (entry,) = models.choose_entries([name], name.rpartition("/")[2])
    task = models.make_task(entry)
    longest = dict.fromkeys(STEPS, 0.0)

    def listen(event: str, seconds: float, **_: Any) -> None:
        for step, known in STEPS.items():
            if event == known:
                longest[step] = max(longest[step], seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        total_s = models.prepare_side(side, task, check=False).compile_s
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    rest_s = total_s - sum(longest.values())
    return FirstCall(entry.key, side, total_s, **longest, rest_s=rest_s)


def time_first_calls(names: Sequence[str]) -> Iterator[FirstCall]:
    """Of the entries at full size whose keys contain one of the names, each in a process that did nothing before."""
    from benchmarks import models

    for entry in models.choose_entries(names, "full"):
        for side in SIDES:
            command = [
                sys.executable,
                "-m",
                "benchmarks.compile_time",
                "--first-call",
                entry.key,
                side,
            ]
            with tempfile.TemporaryDirectory() as folder:
                caches = {CACHE: f"{folder}/astitch", DRIVER_CACHE: f"{folder}/driver"}
                environment = {**os.environ, **caches}
                # An empty name would still have XLA keep what it measured, in the current folder.
                environment.pop(JAX_CACHE, None)
                told = subprocess.run(
                    command, check=True, stdout=subprocess.PIPE, text=True, env=environment
                ).stdout
            yield FirstCall(**json.loads(told.splitlines()[-1]))


def exponent(first: tuple[int, float], last: tuple[int, float]) -> float:
    """e of seconds ~ ops^e through two points; 0 where one of them took no time."""
    (ops, seconds), (more, longer) = first, last
    if min(seconds, longer) <= 0 or more == ops:
        return 0.0
    return math.log(longer / seconds) / math.log(more / ops)


def time_growth(shape: str, sizes: Sequence[int], gpu: str, repeats: int) -> Growth:
    """Compilations of one synthetic shape."""
    timings = []
    for ops in sizes:
        function, arguments = SHAPES[shape](ops)
        data = lower_for_gpu(function, *arguments)
        timings.append(time_compilation(f"{shape}/{ops}", data, gpu, repeats))
        print(format_timing(timings[-1]), flush=True)
    first, last = timings[0], timings[-1]
    stages = {
        stage: round(exponent((first.ops, first.stage_s[stage]), (last.ops, s)), 2)
        for stage, s in last.stage_s.items()
        if first.stage_s[stage] >= 0.005
    }
    overall = exponent((first.ops, first.cpu_s), (last.ops, last.cpu_s))
    return Growth(shape, timings, round(overall, 2), stages)


def format_timing(timing: Timing) -> str:
    stages = "  ".join(f"{stage} {s:.2f}" for stage, s in timing.stage_s.items() if s >= 0.005)
    return (
        f"{timing.name:32} {timing.ops:6} ops {timing.kernels:4} kernels ({timing.forms} forms)  "
        f"{timing.cpu_s:7.2f} CPU s {timing.wall_s:7.2f} s   {stages}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time")
    parser.add_argument("files", nargs="*", help="HLO dumps (.pb, .txt)")
    parser.add_argument("--synthetic", action="store_true", help="graphs of growing size")
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=sorted(SHAPES))
    parser.add_argument("--ops", nargs="+", type=int, default=list(OPS))
    parser.add_argument("--workloads", action="store_true", help="the training steps, full size")
    parser.add_argument("--gpu", default="h100")
    parser.add_argument("--repeats", type=int, default=1, help="the fastest counts")
    parser.add_argument(
        "--observe", action="store_true", help="let the CUDA compiler judge plans, as users do"
    )
    parser.add_argument(
        "--cold", action="store_true", help="with the kernels, into an empty cache; modules only"
    )
    parser.add_argument("--first-calls", nargs="*", metavar="NAME", help="of these entries, or all")
    parser.add_argument("--first-call", nargs=2, metavar=("KEY", "SIDE"), help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args(arguments)
    if options.first_call:
        print(json.dumps(asdict(time_first_call(*options.first_call))))
        return
    calls = []
    for call in () if options.first_calls is None else time_first_calls(options.first_calls):
        calls.append(call)
        print(call, flush=True)
    if not (options.observe or options.cold):
        plan_scopes.observe_plan = lambda *_: None
    modules = [(Path(file).name, read_module(file)) for file in options.files]
    if options.workloads:
        modules += lower_workloads()
    timings = []
    for name, data in modules:
        compile_one = compile_cold if options.cold else compile_hlo
        timings.append(time_compilation(name, data, options.gpu, options.repeats, compile_one))
        print(format_timing(timings[-1]), flush=True)
    growths = []
    for shape in options.shapes if options.synthetic else ():
        growths.append(time_growth(shape, sorted(options.ops), options.gpu, options.repeats))
        found = growths[-1]
        print(f"{shape}: ops^{found.exponent} {dict(found.stage_exponents)}", flush=True)
    if options.json:
        result = {
            "observed": options.observe,
            "first_calls": [asdict(call) for call in calls],
            "modules": [asdict(timing) for timing in timings],
            "growth": [asdict(growth) for growth in growths],
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
