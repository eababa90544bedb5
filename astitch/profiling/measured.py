"""Both sides on the GPU that is here: calls in turns, kernels by CUPTI, the ablation by CUDA events.

Takes a target, hands on the two sides.  What is known of a kernel without running it (its work, its plan) is joined to
what the profiler saw under the kernel's name.
"""

from __future__ import annotations

import math
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from astitch.compile import compile_hlo
from astitch.device.gpu import Gpu, from_device
from astitch.directives import check_option
from astitch.errors import AstitchError
from astitch.graph.ir import ArrayType, DType
from astitch.hlo_import import serialize_module
from astitch.profiling.ablation import describe_variant, plan_variants
from astitch.profiling.inside_xla import join_stitched, repeat
from astitch.profiling.kernel_trace import (
    Launch,
    classify_kernel,
    record_launches,
)
from astitch.profiling.memory import trace_module, trace_program
from astitch.profiling.report import (
    COPY,
    MEASURED,
    PRODUCT,
    Ablation,
    Event,
    Kernel,
    Machine,
    Side,
    Spread,
    spread_of,
)
from astitch.profiling.stitched import DescribedProgram, describe_program
from astitch.profiling.target import Target
from astitch.profiling.timing import Runner, choose_calls, time_batch, time_turns
from astitch.profiling.xla_kernels import Launches, read_xla_kernels
from astitch.search.measure import make_values, measure_plans
from astitch.search.plan import Plan
from astitch.show.compilation import Compilation

TRACE_US = 20_000.0
MOST_TRACED = 20
"""Work under the profiler, and calls at most."""

BUDGET_S = 60.0
"""After so many seconds no batch begins."""

FLUSH_NAME = "flush_l2"
FLUSH_BYTES = 256 << 20
"""Larger than any L2."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A side that is ready to be called.

    module: what XLA made of it, serialized; None where XLA does not run it.  compilation: astitch's.
    """

    runner: Runner
    compile_s: float
    module: bytes | None
    planned_bytes: int | None
    compilation: Compilation | None = None


# ---- preparing -------------------------------------------------------------------------------------------------


def prepare_function(
    target: Target,
    side: str,
    engine: str | None,
    *,
    strict: bool,
    memory_limit: str | float | None = None,
) -> Prepared:
    """A JAX function compiled by XLA or astitch, called once.  memory_limit: see astitch.jit.  Raises AstitchError."""
    import jax

    assert target.function is not None
    donated: dict[str, Any] = {"donate_argnums": 0} if target.carries else {}
    arguments = [place(argument) for argument in target.args]
    wait: Callable[[Any], object] = wait_for_jax
    compilation: Compilation | None = None
    start = time.perf_counter()
    if side == "xla":
        jitted: Any = jax.jit(target.function, **donated)
        compiled: Any = jitted.lower(*arguments).compile()
        executed: Any = compiled
    else:
        from astitch.jit import jit

        jitted = jit(
            target.function, engine=engine, strict=strict, memory_limit=memory_limit, **donated
        )
        compiled = jitted.lower(*arguments).compile()
        compilation = compiled.compilation
        executed = getattr(compiled, "jax_compiled", None)
    compile_s = time.perf_counter() - start
    # Called as a program calls it; XLA finds what it just compiled on disk (see keep_compiled).
    function = jitted
    if executed is None:
        function, wait = compiled, wait_for_cupy
    rest = arguments[1:]
    first = arguments[0] if arguments else None

    def call() -> Any:
        nonlocal first
        if not target.carries:
            return function(*arguments)
        first, *others = function(first, *rest)
        return others or first

    wait(call())
    module, planned = (None, None) if executed is None else read_executable(executed)
    return Prepared(
        Runner(side, call, wait, jax.tree.leaves), compile_s, module, planned, compilation
    )


def prepare_module(
    target: Target, side: str, gpu: Gpu, *, strict: bool, memory_limit: str | float | None = None
) -> Prepared:
    """An HLO module by XLA, or by astitch through CuPy, on values made up for it.  Raises AstitchError."""
    from astitch.hlo_import import import_hlo
    from astitch.library.xla_fallback import compile_fallback, find_device, put_array
    from astitch.run.executor import GpuExecutor, current_gpu

    graph = import_hlo(target.hlo)
    values = [make_values(graph[name].array, seed) for seed, name in enumerate(graph.parameters)]
    device = find_device("gpu", current_gpu())
    if device is None:
        raise AstitchError(
            f"{target.name}: JAX has no GPU here\n  install jax[cuda13] or jax[cuda12]"
        )
    arrays = [put_array(value, device) for value in values]
    wait_for_jax(arrays)
    start = time.perf_counter()
    if side == "xla":
        fallback = compile_fallback(serialize_module(target.hlo), device, target.name)
        compile_s = time.perf_counter() - start

        def run_xla() -> Any:
            return fallback.executable.execute_sharded(arrays)

        def wait_for_xla(results: Any) -> None:
            wait_for_jax(results.disassemble_into_single_device_arrays())

        wait_for_xla(run_xla())
        module = bytes(fallback.executable.hlo_modules()[0].as_serialized_hlo_module_proto())
        return Prepared(Runner(side, run_xla, wait_for_xla, list), compile_s, module, None)
    told = check_option(None, target.name, memory_limit=memory_limit)
    compilation = compile_hlo(target.hlo, gpu=gpu, strict=strict, stitch=told)
    executor = GpuExecutor(compilation.program)
    compile_s = time.perf_counter() - start

    def run_astitch() -> Any:
        return executor.run(arrays)

    wait_for_cupy(run_astitch())
    runner = Runner(side, run_astitch, wait_for_cupy, list)
    return Prepared(runner, compile_s, None, None, compilation)


def prepare(
    target: Target,
    side: str,
    gpu: Gpu,
    engine: str | None,
    *,
    strict: bool,
    memory_limit: str | float | None = None,
) -> Prepared:
    """One side of a target, ready to be called.  memory_limit: see astitch.jit.  Raises AstitchError."""
    try:
        if target.function is None:
            return prepare_module(target, side, gpu, strict=strict, memory_limit=memory_limit)
        return prepare_function(target, side, engine, strict=strict, memory_limit=memory_limit)
    except AstitchError:
        raise
    except Exception as error:  # XLA's own words: out of memory, a shape that does not fit, ...
        told = (str(error).splitlines() or [type(error).__name__])[0]
        raise AstitchError(
            f"{target.name} does not run by {side}: {told}\n  make it run by jax.jit first"
        ) from error


def place(argument: Any) -> Any:
    """The arguments on the device, each leaf a new array; values are made up for shapes."""
    import jax

    def fill(seed_and_leaf: tuple[int, Any]) -> Any:
        seed, leaf = seed_and_leaf
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        dtype = next(d for d in DType if d.numpy == leaf.dtype)
        return make_values(ArrayType(dtype, tuple(leaf.shape)), seed)

    leaves, tree = jax.tree.flatten(argument)
    values = [fill(pair) for pair in enumerate(leaves)]
    placed = jax.device_put(jax.tree.unflatten(tree, values), may_alias=False)
    wait_for_jax(placed)
    return placed


def wait_for_jax(results: Any) -> None:
    """Waits until JAX's arrays are there."""
    import jax

    jax.block_until_ready(results)  # type: ignore[no-untyped-call]


def wait_for_cupy(results: Any) -> None:
    """CuPy's stream fills the results; what JAX adds to them runs on its own."""
    import cupy
    import jax

    cupy.cuda.get_current_stream().synchronize()
    wait_for_jax([r for r in jax.tree.leaves(results) if isinstance(r, jax.Array)])


def read_executable(compiled: Any) -> tuple[bytes, int]:
    """(XLA's optimized module, planned bytes with what is donated counted once) of a jax.stages.Compiled."""
    module = compiled.runtime_executable().hlo_modules()[0]
    stats = compiled.memory_analysis()
    used = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    return bytes(module.as_serialized_hlo_module_proto()), int(used - stats.alias_size_in_bytes)


# ---- measuring -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Traced:
    """What the profiler saw in one call.  launches: with us and counts of one call, by name.  gpu: of all kernels.
    timeline: of one call in the middle.  ops: by XLA's instruction, us and counts of one call by name."""

    launches: Mapping[str, tuple[float, float, Launch]]
    gpu: Spread
    timeline: tuple[Event, ...]
    ops: Mapping[str, Mapping[str, tuple[float, float]]]


def make_flush() -> Callable[[], Any]:
    """A call that overwrites the L2; its kernels belong to the module jit_flush_l2."""
    import jax
    import jax.numpy as jnp

    words = jnp.zeros(FLUSH_BYTES // 4, jnp.uint32)

    def flush_l2(x: Any) -> Any:
        return x + jnp.uint32(1)

    flush = jax.jit(flush_l2)
    wait_for_jax(flush(words))
    return lambda: flush(words)


def trace_calls(runner: Runner, us: float, flush: Callable[[], Any] | None) -> Traced:
    """Runs some calls under the profiler. us: of one, roughly.  Raises AstitchError where nothing was recorded."""
    calls = choose_calls(us, TRACE_US, MOST_TRACED)

    def issue() -> None:
        if flush is None:
            time_batch(runner, calls)
            return
        for _ in range(calls):
            wait_for_jax(flush())
            runner.wait(runner.call())

    launches = [x for x in record_launches(issue) if FLUSH_NAME not in x.module]
    if not launches:
        raise AstitchError(
            "the profiler saw no kernel\n  install CUPTI (jax[cuda13] brings it along)"
        )
    return sum_calls(launches, calls)


def sum_calls(launches: Sequence[Launch], calls: int) -> Traced:
    """launches: of so many calls, in the order of the GPU."""
    found: dict[str, tuple[float, float, Launch]] = {}
    ops: dict[str, dict[str, tuple[float, float]]] = {}
    for launch in launches:
        us, count, first = found.get(launch.name, (0.0, 0.0, launch))
        found[launch.name] = (us + launch.us / calls, count + 1 / calls, first)
        if launch.op:
            of_op = ops.setdefault(render_as_xla(launch.op), {})
            us, count = of_op.get(launch.name, (0.0, 0.0))
            of_op[launch.name] = (us + launch.us / calls, count + 1 / calls)
    parts = [launches]
    if len(launches) % calls == 0:
        each = len(launches) // calls
        parts = [launches[i * each : (i + 1) * each] for i in range(calls)]
        gpu = spread_of([sum(launch.us for launch in part) for part in parts])
    else:  # calls that launch different kernels
        mean = sum(launch.us for launch in launches) / calls
        gpu = Spread(mean, mean, mean, 1)
        parts = [launches[: math.ceil(len(launches) / calls)]]
    middle = sorted(parts, key=lambda part: sum(x.us for x in part))[len(parts) // 2]
    start = min(launch.start_us for launch in middle)
    timeline = tuple(
        Event(x.name, classify_kernel(x.name), x.start_us - start, x.us) for x in middle
    )
    return Traced(found, gpu, timeline, ops)


def render_as_xla(name: str) -> str:
    """An HLO instruction's name as XLA names its kernel."""
    return re.sub(r"[^\w]", "_", name)


def read_details(details: str) -> dict[str, float]:
    """CUPTI's words on a launch: regs, static_shared, dynamic_shared, grid, block, occ_pct; triples multiplied."""
    found: dict[str, float] = {}
    for name, value in re.findall(r"(\w+):([\d.,]+)", details):
        parts = [float(part) for part in value.split(",") if part]
        found[name] = math.prod(parts)
    return found


def join_traced(traced: Traced, known: Launches, gpu: Gpu) -> tuple[Kernel, ...]:
    """One row for each name that the profiler saw, with what is known of it besides."""
    by_name: dict[str, Kernel] = {}
    for kernel in known.kernels:
        by_name.setdefault(render_as_xla(kernel.name), kernel)
    called = {**find_in_order(traced, known), **find_called(traced, by_name)}
    rows = []
    for name, (us, count, first) in traced.launches.items():
        kernel = (
            by_name.get(render_as_xla(name))
            or called.get(name)
            or Kernel(name, classify_kernel(name), count)
        )
        rows.append(describe_launch(kernel, name, us, count, first, gpu))
    return tuple(sorted(rows, key=lambda row: -(row.us or 0.0)))


def find_called(traced: Traced, known: Mapping[str, Kernel]) -> dict[str, Kernel]:
    """The work of XLA's instructions that called a library, by the name of its kernel. known: work by XLA's name of the
    instruction.  Of several kernels of one instruction the longest does its work.
    """
    parts: dict[str, list[Kernel]] = {}
    for op, names in traced.ops.items():
        if op in known and not any(render_as_xla(name) in known for name in names):
            name = max(names, key=lambda name: names[name][0])
            called = known[op]
            parts.setdefault(name, []).append(repeat(called, names[name][1] / called.launches))
    return {name: join_called(name, calls) for name, calls in parts.items()}


def find_in_order(traced: Traced, known: Launches) -> dict[str, Kernel]:
    """The work of XLA's instructions that called a library, by the name of its kernel.  Where the profiler names none,
    as in a CUDA graph, the same place in the schedule decides.

    A landmark is a kernel with a name of XLA's or ours that a call launches once, and whose instruction runs once.  So
    the launch is certain to be the instruction's.  What stands between two landmarks that are neighbours on both sides
    is one stretch of the program.  Each library call in it launched a kernel or more, and whatever else launched one
    without a name adds to them; so where there are as many such launches as calls, each call launched one.  A stretch
    with more or fewer is left out, and no other suffers from it.

    The schedule's order is taken within a stretch.  XLA may record a graph whose nodes do not all depend on each other.
    Where the GPU exchanges two calls of one stretch, each gets the work of the other; in different stretches only where
    it exchanges as many for as many.
    """
    own = {render_as_xla(kernel.name) for kernel in known.kernels}
    seen = Counter(render_as_xla(event.name) for event in traced.timeline)
    landmarks = {
        name for name in map(render_as_xla, known.once - known.libraries) if seen[name] == 1
    }
    libraries = known.libraries & known.once
    scheduled = ((render_as_xla(k.name), k if k.name in libraries else None) for k in known.kernels)
    launched = ((render_as_xla(e.name), e) for e in traced.timeline)
    calls = cut_at(landmarks, scheduled)
    nameless = cut_at(
        landmarks, ((n, None if n in own or e.kind == COPY else e) for n, e in launched)
    )
    # Where calls differ in what they launch, the timeline is none of them: it has no ends.
    whole = round(sum(count for _, count, _ in traced.launches.values()), 2) == len(traced.timeline)
    parts: dict[str, list[Kernel]] = {}
    for between, events in nameless.items():
        made = calls.get(between, [])
        if len(made) == len(events) and (whole or END not in between):
            for call, event in zip(made, events, strict=True):
                parts.setdefault(event.name, []).append(call)
    # A row is of all launches of a name.  Those that are not known can be of other shapes: nothing is made of a part.
    return {
        name: join_called(name, called)
        for name, called in parts.items()
        if len(called) == round(traced.launches[name][1], 2)
    }


END = ""
"""Stands for a landmark at both ends of a call."""

T = TypeVar("T")


def cut_at(
    landmarks: Collection[str], things: Iterable[tuple[str, T | None]]
) -> dict[tuple[str, str], list[T]]:
    """By the landmarks on its left and right, each stretch between; things without a value are in none."""
    found: dict[tuple[str, str], list[T]] = {}
    left: str = END
    stretch: list[T] = []
    for name, thing in (*things, (END, None)):
        if name == END or name in landmarks:
            found[left, name] = stretch
            left, stretch = name, []
        elif thing is not None:
            stretch.append(thing)
    return found


def list_launches(stitched: DescribedProgram) -> Launches:
    """The launches of the program's own steps, each of which runs once."""
    named = Counter(kernel.name for kernel in stitched.kernels)
    return Launches(
        stitched.kernels,
        once=frozenset(name for name, times in named.items() if times == 1),
        libraries=frozenset(kernel.name for kernel in stitched.kernels if kernel.kind == PRODUCT),
    )


def join_called(name: str, calls: Sequence[Kernel]) -> Kernel:
    """The row of a library's kernel that several instructions call."""

    def total(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    longest = max(calls, key=lambda call: call.bound_us or 0.0)
    return replace(
        longest,
        name=name,
        launches=sum(call.launches for call in calls),
        bound_us=total([call.bound_us for call in calls]),
        read_bytes=sum(call.read_bytes or 0 for call in calls),
        written_bytes=sum(call.written_bytes or 0 for call in calls),
        flops=sum(call.flops or 0 for call in calls),
        source=tuple(dict.fromkeys(line for call in calls for line in call.source)),
    )


def describe_launch(
    kernel: Kernel, name: str, us: float, count: float, launch: Launch, gpu: Gpu
) -> Kernel:
    """What is known of a kernel with what was measured; its work is of as many launches as were seen."""
    told = read_details(launch.details)
    known = repeat(kernel, count / kernel.launches) if kernel.launches else kernel
    grid = round(told["grid"]) if "grid" in told else kernel.grid
    shared = told.get("static_shared", 0.0) + told.get("dynamic_shared", 0.0)
    return replace(
        known,
        name=name,
        kind=classify_kernel(name),
        launches=round(count, 2),
        us=us,
        grid=grid,
        block=round(told["block"]) if "block" in told else kernel.block,
        registers=round(told["regs"]) if "regs" in told else kernel.registers,
        shared_bytes=round(shared) if told else kernel.shared_bytes,
        occupancy=find_occupancy(told, gpu) if "occ_pct" in told else kernel.occupancy,
        sm_efficiency=grid / (-(-grid // gpu.sms) * gpu.sms) if grid else kernel.sm_efficiency,
    )


def find_occupancy(told: Mapping[str, float], gpu: Gpu) -> float:
    """Share of the threads that the SMs can hold: by the kernel's resources, and no more than the grid has."""
    threads = told.get("grid", math.inf) * told.get("block", 1.0)
    return min(told["occ_pct"] / 100, threads / (gpu.sms * gpu.max_threads_per_sm))


@dataclass(frozen=True, slots=True)
class Measured:
    """What measuring both sides gives to a report."""

    xla: Side
    astitch: Side
    stitched: DescribedProgram
    compilation: Compilation
    machine: Machine


def measure_sides(
    target: Target,
    engine: str | None,
    runs: int,
    *,
    flush_l2: bool,
    strict: bool,
    memory_limit: str | float | None = None,
    progress: Callable[[str], None],
) -> Measured:
    """Both sides in turns on CuPy's current device.  Raises AstitchError."""
    from astitch.run.executor import current_gpu

    gpu = from_device(current_gpu())
    prepared: dict[str, Prepared] = {}
    for name, shown in (("xla", "XLA compiles"), ("astitch", "astitch compiles")):
        progress(shown)
        prepared[name] = prepare(
            target, name, gpu, engine, strict=strict, memory_limit=memory_limit
        )
    compilation = prepared["astitch"].compilation
    assert compilation is not None
    stitched = describe_program(compilation, compilation.resources())
    progress("calls are timed in turns")
    runners = [side.runner for side in prepared.values()]
    walls = {name: spread_of(t) for name, t in time_turns(runners, runs, BUDGET_S).items()}
    progress("kernels are timed")
    flush = make_flush() if flush_l2 else None
    sides = {}
    for name, side in prepared.items():
        traced = trace_calls(side.runner, walls[name].median, flush)
        known, memory = Launches(()), trace_program(compilation.program)
        if side.module is not None:
            known, memory = read_xla_kernels(side.module, gpu), trace_module(side.module)
        if name == "astitch":
            known = (
                replace(known, kernels=join_stitched(known, stitched.kernels))
                if known.kernels
                else list_launches(stitched)
            )
        sides[name] = Side(
            name,
            basis=MEASURED,
            kernels=join_traced(traced, known, gpu),
            timeline=traced.timeline,
            wall=None
            if flush_l2
            else walls[name],  # calls are timed back to back, with the L2 warm
            gpu=traced.gpu,
            compile_s=side.compile_s,
            planned_bytes=side.planned_bytes
            or (stitched.planned_bytes if name == "astitch" else None),
            memory=memory,
        )
    machine = describe_machine(gpu, flush_l2=flush_l2)
    return Measured(sides["xla"], sides["astitch"], stitched, compilation, machine)


# ---- the ablation ------------------------------------------------------------------------------------------------


def measure_ablation(compilation: Compilation) -> Iterator[Ablation]:
    """The rows of astitch's side: each kernel alone in a CUDA graph between two events, on made-up values."""
    times: dict[str, float] = {}
    graph = compilation.scopes.graph
    for variant in plan_variants(compilation):
        try:
            total = sum(_measure_once(times, graph, plan) for plan in variant.plans)
        except AstitchError as error:
            row = describe_variant(variant, None, MEASURED)
            yield replace(row, note=f"{row.note}; {(str(error).splitlines() or [''])[0]}")
        else:
            yield describe_variant(variant, total, MEASURED)


def _measure_once(times: dict[str, float], graph: Any, plan: Plan) -> float:
    """The same text is measured once."""
    from astitch.search.build_program import make_cuda_kernel

    key = make_cuda_kernel(plan.kernel).source.replace(plan.kernel.name, "kernel")
    if key not in times:
        (measured,) = measure_plans(graph, [plan])
        if measured.fault:
            raise AstitchError(measured.fault)
        times[key] = measured.time_us
    return times[key]


# ---- the machine -------------------------------------------------------------------------------------------------


def describe_machine(gpu: Gpu, *, flush_l2: bool) -> Machine:
    """The GPU as it is right after measuring."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    name = properties["name"]
    driver, clocks = ask_nvidia_smi(cupy.cuda.Device().pci_bus_id)
    return Machine(
        gpu=name.decode() if isinstance(name, bytes) else str(name),
        preset=gpu.name,
        sms=gpu.sms,
        peak_gbs=gpu.bandwidth_gbs,
        fp32_gflops=gpu.fp32_gflops,
        launch_us=gpu.launch_us,
        driver=driver,
        clocks=clocks,
        l2="flushed" if flush_l2 else "warm",
    )


SMI_FIELDS = {
    "SM clock": "clocks.sm",
    "memory clock": "clocks.mem",
    "most SM clock": "clocks.max.sm",
    "power limit (W)": "power.limit",
}


def ask_nvidia_smi(bus: str) -> tuple[str, dict[str, float]]:
    """(driver, clocks in MHz) of the GPU at a PCI bus id; nothing where nvidia-smi is missing, fails or does not
    answer."""
    query = ",".join(("pci.bus_id", "driver_version", *SMI_FIELDS.values()))
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "", {}
    rows = [[value.strip() for value in line.split(",")] for line in ran.stdout.splitlines()]
    # CUDA writes the domain in four digits, nvidia-smi in eight.
    own = [row for row in rows if len(row) > 1 and row[0].lower().endswith(bus.lower())]
    if not own:
        return "", {}
    _, driver, *values = own[0]
    clocks = {}
    for name, value in zip(SMI_FIELDS, values, strict=False):
        try:
            clocks[name] = float(value)
        except ValueError:  # [N/A]
            continue
    return driver, clocks
