"""Scopes -> a checked plan for each: planning, splitting and, where asked for, measuring.

The CUDA compiler works beside the planner, in other threads.  It compiles kernels that the planner will likely ask
about, and plans that will hardly be replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from astitch.cost.projected_latency import Projection, project
from astitch.device.gpu import Gpu
from astitch.errors import KernelCompileError
from astitch.faults import FaultLog
from astitch.search.build_program import make_cuda_kernel
from astitch.search.check_plan import check_plan
from astitch.search.plan import Plan, Planner
from astitch.search.split_scopes import Decisions, PlannedScopes, split_scopes
from astitch.search.tune import tune_scopes
from astitch.stitch_scope import Scope, Scopes
from astitch.toolchain.compile_pool import CompilePool
from astitch.toolchain.kernel_cache import compile_cached
from astitch.toolchain.nvrtc import CompiledKernel, Request, Resources, count_threads

LEAST_THREADS = 4
"""With so many threads one is free for a kernel that may not be wanted."""

Render = Callable[[Plan], str]
"""The CUDA source an engine submits to NVRTC for a plan."""

CountCopied = Callable[[Plan], int]
"""The bytes that an engine copies in front of a plan's kernel; see Target.copied."""

OnKernel = Callable[[Plan, CompiledKernel], object]
"""Callback(plan, compiled); may run on a worker thread."""


def render_kernel(plan: Plan) -> str:
    """The kernel's text as it is emitted for CuPy."""
    return make_cuda_kernel(plan.kernel).source


def compile_plan(plan: Plan, gpu: Gpu, render: Render = render_kernel) -> CompiledKernel | None:
    """A plan's kernel, compiled; None for the emulated device or without a compiler."""
    if gpu.name == "host":
        return None
    try:
        return compile_cached(Request(render(plan), gpu.arch))
    except KernelCompileError:
        return None


def observe_plan(plan: Plan, gpu: Gpu, render: Render = render_kernel) -> Resources | None:
    """What the CUDA compiler says of a plan's kernel; None where compile_plan gives none."""
    built = compile_plan(plan, gpu, render)
    return built.kernels[plan.kernel.name] if built else None


def plan_scopes(
    scopes: Scopes,
    gpu: Gpu,
    *,
    render: Render | None = None,
    copied: CountCopied = lambda plan: 0,
    finalizes: bool = True,
    on_kernel: OnKernel = lambda plan, compiled: None,
    faults: FaultLog | None = None,
    most_bytes: float = math.inf,
    whole: Callable[[Scope], bool] = lambda scope: False,
    divided: Callable[[Scope], bool] = lambda scope: False,
    in_loop: bool = False,
    found: Decisions | None = None,
) -> PlannedScopes:
    """A plan for each scope, or for the parts of one whose kernel shows a symptom (see split_scopes.py).

    render: the texts that an engine will submit, which the CUDA compiler is asked about.  With it, and finalizes, one
    kernel of each structure is compiled once its plan will hardly be replaced, and given to on_kernel.
    copied: these copies are part of a kernel's time, so that parts which spare them are faster.
    faults: keeps the errors that leave a scope without a plan.  most_bytes, whole, divided, in_loop,
    found: see split_scopes.
    """
    faults = faults or FaultLog()
    text_of, found = render or render_kernel, found or Decisions()
    threads = 0 if gpu.name == "host" else count_threads()
    with CompilePool(threads) as pool:

        def ask_compiler(plan: Plan) -> Resources | None:
            return observe_plan(plan, gpu, text_of)

        def finalize(plan: Plan) -> None:
            if built := compile_plan(plan, gpu, text_of):
                on_kernel(plan, built)

        observe = pool.ask(ask_compiler)

        def compile_early(plan: Plan) -> None:
            if threads >= LEAST_THREADS:
                pool.start(object(), partial(observe, plan))

        def project_with_copies(plan: Plan, resources: Resources | None) -> Projection:
            kernel = project(plan.kernel, gpu, resources, plan.work)
            copies_us = time_copies(copied(plan), gpu)
            return replace(kernel, time_us=kernel.time_us + copies_us) if copies_us else kernel

        planner = Planner(gpu, observe, compile_early, faults, found.schedules)
        return split_scopes(
            scopes,
            gpu,
            plan=planner.plan,
            draft=planner.draft,
            project=project_with_copies,
            observe=observe,
            finalize=pool.ask(finalize) if render and finalizes else None,
            pool=pool,
            faults=faults,
            most_bytes=most_bytes,
            in_loop=in_loop,
            whole=whole,
            divided=divided,
            found=found,
        )


def time_copies(copied_bytes: int, gpu: Gpu) -> float:
    """The us that a copy of so many bytes takes."""
    if not copied_bytes:
        return 0.0
    return 2 * copied_bytes / gpu.bandwidth_gbs / 1e3 + gpu.launch_us


def tune_planned(planned: PlannedScopes, gpu: Gpu) -> PlannedScopes:
    """The scopes with the plans that are measured fastest on the current GPU (see tune.py)."""
    kept = [scope for scope in planned.scopes.scopes if scope.name not in planned.left]
    plans = tune_scopes(planned.scopes.graph, kept, gpu)
    return replace(planned, plans=tuple(plan for plan in plans if plan is not None))


def check_plans(planned: PlannedScopes, faults: FaultLog) -> PlannedScopes:
    """The scopes with those of the plans that pass check_plan; the others are left."""
    kept: list[Plan] = []
    left = dict(planned.left)

    def keep(plan: Plan) -> None:
        kept.append(check_plan(plan))

    def leave(plan: Plan) -> None:
        left[plan.scope.name] = "an error inside astitch: its kernel breaks a rule"

    for plan in planned.plans:
        faults.attempt(
            partial(keep, plan),
            partial(leave, plan),
            stage="check_plan",
            subject=str(plan.scope),
            cost="its ops are left to XLA",
        )
    return replace(planned, plans=tuple(kept), left=left)
