"""A program of today on the GPU that is here, by jax.jit, astitch.jit, XLA's hook and torch.compile -> GpuRow.

All sides run in one process and take turns.  Results are compared with the same program in f64.
"""

from __future__ import annotations

import fcntl
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from astitch.profiling.kernel_trace import record_kernels
from astitch.profiling.timing import Runner, choose_calls, measure_wall, time_batch
from benchmarks.models import (
    HOST_CALLS,
    SLOW_US,
    TRACE_US,
    count_planned_bytes,
    time_host,
    time_queueing,
    use_empty_caches,
    wait_for_cupy,
)
from benchmarks.modern_programs import make_program
from benchmarks.modern_programs.program import Program
from benchmarks.results import describe

What = Literal["both", "check", "time"]

SIDES = ("xla", "jit", "hook", "torch")
"""jax.jit, astitch.jit as a decorator, jax.jit within astitch.enabled(), torch.compile."""

IN_TORCH = ("gpt2", "llama", "vit", "resnet")
"""Families that benchmarks.modern_torch has too."""


@dataclass(slots=True)
class GpuRow:
    """One program.  The outer keys are SIDES.

    wall_us: a call, pipelined.  gpu_us, kernels: of a call, by class of kernel.  host_us: until a call returns, the GPU
    idle; queued_us: among calls in its queue.  compile_s: the first call.  planned_mb: of torch the most allocated.
    output_error: norm of the difference from f64 over the norm, the worst result; update_error: likewise of the change
    of what is carried from call to call, all arrays together.  stitched: kernels of astitch's, by the hook's report.
    """

    name: str
    about: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""
    wall_us: dict[str, float] = field(default_factory=dict)
    gpu_us: dict[str, Mapping[str, float]] = field(default_factory=dict)
    kernels: dict[str, Mapping[str, float]] = field(default_factory=dict)
    slowest: dict[str, Mapping[str, float]] = field(default_factory=dict)
    host_us: dict[str, float] = field(default_factory=dict)
    queued_us: dict[str, float] = field(default_factory=dict)
    compile_s: dict[str, float] = field(default_factory=dict)
    planned_mb: dict[str, float] = field(default_factory=dict)
    output_error: dict[str, float] = field(default_factory=dict)
    update_error: dict[str, float] = field(default_factory=dict)
    stitched: int = 0
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Did nothing fail?"""
        return bool(self.compile_s) and not self.notes.keys() - {"comparison", "torch"}


@dataclass(frozen=True, slots=True)
class Side:
    """step: the call as a user makes it.  plan: the compiled function of arguments, for its memory.
    within: what holds for both."""

    name: str
    step: Callable[..., Any]
    wait: Callable[[Any], object]
    plan: Callable[..., Any]
    within: Callable[[], AbstractContextManager[object]] = nullcontext


def measure_program(
    name: str,
    small: bool,
    seed: int,
    out: Path,
    sides: Sequence[str],
    what: What,
    *,
    attention: bool = True,
    turns: Path | None = None,
) -> None:
    """Writes the row to `out`.

    what: "check" compares results only, also without a GPU; "time" compares none.  attention: see astitch.enable.
    turns: a file that processes lock: one measures at a time, while none compiles.
    """
    row = GpuRow(name, device=jax.devices()[0].device_kind)
    if jax.default_backend() != "gpu" and what != "check":
        raise SystemExit("JAX sees no GPU here: give --ahead or --check")
    with use_empty_caches():
        for _ in fill_row(row, small, seed, sides, what, attention, turns):
            partial = out.with_suffix(".part")  # what is known stays if the process is stopped
            partial.write_text(json.dumps(asdict(row)))
            partial.replace(out)


@contextmanager
def hold(turns: Path | None, *, alone: bool) -> Iterator[None]:
    """Waits until no other process holds the file alone, or none at all if this one wants it alone."""
    if turns is None:
        yield
        return
    with turns.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def fill_row(
    row: GpuRow,
    small: bool,
    seed: int,
    names: Sequence[str],
    what: What,
    attention: bool,
    turns: Path | None,
) -> Iterator[None]:
    """Yields whenever more of the row is known."""

    @contextmanager
    def noting(stage: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # what one side cannot do is a result
            row.notes[stage] = describe(error)

    sides: list[Side] = []
    runners: list[Runner] = []
    with hold(turns, alone=False):
        program = make_program(row.name, small=small, seed=seed)
        row.about = program.about
        given = jax.device_get(jax.jit(program.make)())
        for name in names:
            if name == "torch":
                continue
            with noting(name):
                side = make_side(name, program, attention)
                arguments = place(given)
                start = time.perf_counter()
                with side.within():
                    side.wait(side.step(*arguments))
                row.compile_s[name] = time.perf_counter() - start
                sides.append(side)
                runners.append(make_runner(side, program, given))
            yield
        if "hook" in names:
            import astitch

            row.stitched = sum(entry.kernels for entry in astitch.report().programs)
        if what != "check" and "torch" in names:
            with noting("torch"):
                runners += prepare_torch(row, small, seed)
    if what != "check":
        with hold(turns, alone=True):
            measure(row, sides, runners, given, noting)
        yield
    if what == "time":
        return
    with noting("comparison"):
        compare(row, sides, program, given)
    yield


def make_side(name: str, program: Program, attention: bool) -> Side:
    import astitch
    from astitch.api.engines import choose_engine

    if name == "jit":
        ours = astitch.jit(program.fn, donate_argnums=program.donated)
        wait = jax.block_until_ready if choose_engine() in ("host", "xla") else wait_for_cupy
        return Side(name, ours, wait, lambda *a: ours.lower(*a).compile())
    options = program.xla_options if name == "xla" else {}
    jitted = jax.jit(program.fn, donate_argnums=program.donated, compiler_options=options)
    within = partial(astitch.enabled, attention=attention) if name == "hook" else nullcontext
    return Side(name, jitted, jax.block_until_ready, lambda *a: jitted.lower(*a).compile(), within)


def place(given: Any) -> Any:
    """New copies on the device."""
    placed = jax.device_put(given, may_alias=False)
    jax.block_until_ready(placed)
    return placed


def make_runner(side: Side, program: Program, given: Any) -> Runner:
    """Calls that each go on from what the last one handed on."""
    arguments = list(place(given))

    def call() -> Any:
        results = side.step(*arguments)
        if (
            program.carried
        ):  # else the results may be one array, of which a slice is a program of its own
            arguments[: program.carried] = results[: program.carried]
        return results

    return Runner(side.name, call, side.wait, jax.tree.leaves, within=side.within)


# ---- right and wrong ---------------------------------------------------------------------------------------------


def compare(row: GpuRow, sides: Sequence[Side], program: Program, given: Any) -> None:
    """The errors of one call of each side against f64."""
    if program.exact is None:
        row.notes["comparison"] = "f64 draws other random numbers, or takes another number of turns"
        return
    with jax.enable_x64(True):
        exact = program.exact()
        wanted = jax.device_get(jax.jit(exact.fn)(*place(widen(given, exact))))
    for side in sides:
        with side.within():
            results = side.step(*place(given))
        side.wait(results)
        got = jax.device_get(results)
        count = program.carried
        if not count:
            row.output_error[side.name] = find_error(got, wanted)
            continue
        if len(got) > count:
            row.output_error[side.name] = find_error(got[count:], wanted[count:])
        before = given[:count]
        row.update_error[side.name] = find_update_error(got[:count], wanted[:count], before)


def widen(given: Any, exact: Program) -> Any:
    """The arguments with floating-point arrays in f64; what is no array (a model's apply) is that of `exact`."""
    leaves = [a.astype(np.float64) if is_floating(a) else a for a in jax.tree.leaves(given)]
    return jax.tree.unflatten(jax.tree.structure(jax.eval_shape(exact.make)), leaves)


def is_floating(a: Any) -> bool:
    return bool(jax.numpy.issubdtype(a.dtype, jax.numpy.floating))


def list_floats(tree: Any) -> list[np.ndarray]:
    return [np.asarray(a, np.float64) for a in jax.tree.leaves(tree) if is_floating(a)]


def norm(arrays: Sequence[np.ndarray]) -> float:
    return math.sqrt(sum(float(np.square(a).sum()) for a in arrays))


def find_error(got: Any, wanted: Any) -> float:
    """The worst of the results: norm of the difference over the norm."""
    errors = [0.0]
    for g, w in zip(list_floats(got), list_floats(wanted), strict=True):
        error = norm([g - w]) / max(norm([w]), 1e-30)
        errors.append(error if error == error else math.inf)
    return max(errors)


def find_update_error(got: Any, wanted: Any, before: Any) -> float:
    """Norm of the difference over that of the change, all arrays together."""
    triples = list(zip(*map(list_floats, (got, wanted, before)), strict=True))
    error = norm([g - w for g, w, _ in triples]) / max(norm([w - b for _, w, b in triples]), 1e-30)
    return error if error == error else math.inf


# ---- measuring ---------------------------------------------------------------------------------------------------


def prepare_torch(row: GpuRow, small: bool, seed: int) -> list[Runner]:
    """Its compiled step; nothing where torch has no form of the program."""
    if row.name.partition("/")[0] not in IN_TORCH:
        return []
    from benchmarks.modern_torch import make_step

    start = time.perf_counter()
    made = make_step(row.name, small=small, seed=seed)
    if made is None:
        return []
    made.wait(made.step())
    row.compile_s["torch"] = time.perf_counter() - start
    made.wait(made.step())
    row.planned_mb["torch"] = made.most_mb()
    return [Runner("torch", made.step, made.wait, list)]


def measure(
    row: GpuRow,
    sides: Sequence[Side],
    runners: Sequence[Runner],
    given: Any,
    noting: Callable[[str], Any],
) -> None:
    """Fills in what is timed, of the sides that there are."""
    for runner in runners:
        with noting(f"{runner.name}, first calls"):
            time_batch(runner, 1)
            row.wall_us[runner.name] = time_batch(runner, 1)
    with noting("wall time"):
        in_turns = [r for r in runners if row.wall_us.get(r.name, math.inf) <= SLOW_US]
        row.wall_us |= measure_wall(in_turns, 9, budget_s=60.0)
    for runner in runners:
        name = runner.name
        if name not in row.wall_us:
            continue
        with noting(f"{name}, host time"):
            calls = HOST_CALLS if row.wall_us[name] <= SLOW_US else 1
            row.host_us[name] = time_host(runner, calls)
            row.queued_us[name] = time_queueing(runner, calls)
        if row.wall_us[name] > SLOW_US:  # a million launches, all of which the profiler would keep
            continue
        with noting(f"{name}, kernels"):
            calls = choose_calls(row.wall_us[name], TRACE_US, HOST_CALLS)
            found = record_kernels(lambda n, runner=runner: time_batch(runner, n), calls)  # type: ignore[misc]
            row.gpu_us[name], row.kernels[name] = found.us, found.count
            row.slowest[name] = found.slowest
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), given)
    for side in sides:
        with noting(f"{side.name}, memory"):
            with side.within():
                stats = side.plan(*shapes).memory_analysis()
            row.planned_mb[side.name] = count_planned_bytes(stats) / 1e6
