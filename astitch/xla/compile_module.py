"""Graph -> its Compilation, and the HLO module with its kernels.

Takes a graph and what is donated, hands on what XLA compiles.  compile_for_xla is the list of the stages: plan, find
memory to use again, compile kernels, bodies and loops, write the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from astitch.compile import compile_graph, pause_collector
from astitch.device.gpu import Gpu
from astitch.directives import Directives, read_directives, warn_of_unfollowed
from astitch.errors import CompilerMissing, UnsupportedOp
from astitch.faults import FaultLog
from astitch.graph.ir import AttentionAttrs, Graph, NarrowProductAttrs, RowRegionAttrs
from astitch.graph.ops import OPS
from astitch.hlo_import import read_part
from astitch.kernel.in_place import LEAST_BYTES_AGAIN, LEAST_BYTES_OVER, InPlace
from astitch.loops.analysis import LoopKey, loop_key
from astitch.loops.emit_turns import TurnsPlan
from astitch.loops.plan import START, LoopPlan, LoopPlanner, Planned
from astitch.pipeline import Launcher, Target
from astitch.program.steps import FallbackStep, Step
from astitch.scope.structure import Structure
from astitch.search.bound_memory import most_of_memory
from astitch.search.peak_memory import (
    estimate_region_peak,
    leave_results_out,
    list_steps,
    schedule,
)
from astitch.search.split_scopes import Decisions
from astitch.show.compilation import Compilation
from astitch.stitch_scope import Left, Scopes
from astitch.toolchain.driver_assembly import Unit
from astitch.toolchain.nvrtc import CompiledKernel, count_threads
from astitch.xla.left_to_products import find_moves
from astitch.xla.memory_reuse import (
    count_copied,
    find_carried_in_place,
    find_in_place,
    find_temporaries_in_place,
)
from astitch.xla.prepare_kernels import (
    Code,
    KernelRefusal,
    Kernels,
    LoopCall,
    XlaKernel,
    emit_plan_for_xla,
    name_entry,
    prepare_kernels,
    prepare_loops,
    start_loops,
)
from astitch.xla.prepare_products import prepare_products
from astitch.xla.rivals import TimePairs, find_outrun
from astitch.xla.slices import SliceWrite, find_slices
from astitch.xla.stitch_loops import find_loops, read_fallback
from astitch.xla.stitch_regions import find_unworthy, stitch_bodies
from astitch.xla.updates import find_carried_transposes, find_donated_updates
from astitch.xla.write_module import export_program


@dataclass(frozen=True, slots=True)
class Found:
    """What planning found of structures: of the program's own, and of those in regions, where less is donated.  What it
    found of loops."""

    in_program: Decisions = field(default_factory=Decisions)
    in_regions: Decisions = field(default_factory=Decisions)
    loops: Planned = field(default_factory=dict)


@pause_collector()
def compile_for_xla(
    graph: Graph,
    gpu: Gpu,
    donated: Sequence[bool] = (),
    *,
    tune: bool = False,
    strict: bool = False,
    code: Code = Code.PTX,
    simplified: bool = False,
    attention: bool = False,
    on_scopes: Callable[[Scopes], object] = lambda scopes: None,
    hand_out: Callable[[Sequence[Unit]], object] = lambda units: None,
    time_both: TimePairs | None = None,
    directives: Directives | None = None,
    found: Found | None = None,
) -> tuple[Compilation, bytes]:
    """The compilation of a graph, and the program with its kernels as a serialized HloModuleProto.

    donated: which of the parameters; none where it is empty.  tune, strict: as for compile_hlo.  code: of the kernels.
    simplified: the graph comes out of the middle of XLA's compilation.  Then the bodies of loops and the branches of
    conditionals are stitched too, where the environment says nothing.
    attention: see Target.
    on_scopes: is given what will have a kernel each, if none of them is split.
    hand_out: is given kernels that are PTX, in parts, from several threads.  It gets most kernels that XLA will load as
    soon as they are compiled, and all of them in the end.  It also gets some that XLA will not load.
    time_both: times parts of the program on its device.  Kernels far from the speed of light are compared with XLA's
    version of their ops, and left to it where that is faster.  None: there is no such device.
    directives: what the owner of the program decides; None: as ASTITCH_STITCHES says.
    found: gets what planning finds, and has what it found when this graph was compiled before.
    An error inside astitch leaves a kernel, a loop or a body to XLA, and is among the compilation's faults; with strict
    it is raised.
    Raises AstitchError.
    """
    told = (read_directives() if directives is None else directives).of(graph.name)
    with_loops = not told.leaves_all_loops
    faults = FaultLog(strict or None)
    found = found or Found()
    job = _Job(
        graph,
        gpu,
        tuple(donated) or (False,) * len(graph.parameters),
        tune,
        strict,
        code,
        hand_out,
        faults,
        LoopPlanner(gpu, faults, told, found.loops) if with_loops else None,
        simplified,
        attention,
        time_both,
        told,
        found,
    )
    compilation = _plan_kernels(job, on_scopes)
    in_place = _find_in_place(job, compilation)
    left = job.without_kept(compilation, _find_moves(job, compilation))
    slices = _find_slices(compilation, faults, loop=False)
    kernels = prepare_kernels(compilation, gpu, in_place, left, code, faults, slices)
    kernels = job.leave_outrun(compilation, kernels)
    job.hand_out_prepared(kernels.values())
    compilation = note_slices(note_refusals(compilation, kernels), kernels)
    if with_loops and (simplified or told.stitches_bodies):
        compilation = stitch_bodies(
            compilation,
            tune=tune,
            attention=attention,
            row_groups=job.planner,
            faults=faults,
            directives=told,
            found=job.found.in_regions,
        )
    compilation, regions = export_bodies(
        compilation, partial(_prepare_body, job), partial(_take_loops, job), job.prepare_products
    )
    compilation, loops = _take_loops(job, compilation)
    products = job.prepare_products(compilation)
    compilation = replace(compilation, faults=faults.found, directives=told.list_outcomes())
    warn_of_unfollowed(graph.name, compilation.directives)
    return compilation, export_program(compilation, kernels, regions, loops, products)


@dataclass(frozen=True, slots=True)
class _Job:
    """What the stages of one compilation share; see compile_for_xla.

    donated: for each parameter.  planner: of the loops; None where XLA runs them all.  timed: what came of the kernels
    that were compared with XLA's.  directives: those that hold for the program.
    """

    graph: Graph
    gpu: Gpu
    donated: tuple[bool, ...]
    tune: bool
    strict: bool
    code: Code
    hand_out: Callable[[Sequence[Unit]], object]
    faults: FaultLog
    planner: LoopPlanner | None
    simplified: bool
    attention: bool
    time_both: TimePairs | None
    directives: Directives
    found: Found
    timed: dict[Structure, str] = field(default_factory=dict)

    def leave_outrun(self, compilation: Compilation, kernels: Kernels) -> Kernels:
        """The kernels without those that XLA's version of their ops outruns."""
        if self.time_both is None:
            return kernels
        time_both = self.time_both
        nothing: dict[str, str] = {}
        outrun = self.faults.attempt(
            lambda: find_outrun(compilation, kernels, time_both, self.timed),
            lambda: nothing,
            stage="find_outrun",
            subject=compilation.program.name,
            cost="no kernel is compared with XLA's",
        )
        outrun = self.without_kept(compilation, outrun)
        return {
            name: KernelRefusal(name, outrun[name], f"keep {name}") if name in outrun else kernel
            for name, kernel in kernels.items()
        }

    def without_kept(self, compilation: Compilation, left: Mapping[str, str]) -> dict[str, str]:
        """The kernels that are left to XLA, with the reasons, without those that a directive keeps."""
        kept = {
            plan.kernel.name
            for plan in compilation.plans
            if plan.kernel.name in left
            and self.directives.names("keep", plan.scope.members, plan.scope.name)
        }
        return {name: reason for name, reason in left.items() if name not in kept}

    def prepare_products(self, compilation: Compilation) -> dict[str, XlaKernel]:
        """The kernels of its products of few rows."""
        try:
            products: dict[str, XlaKernel] = self.faults.attempt(
                lambda: prepare_products(
                    compilation.scopes.graph, self.gpu, self.code, self.faults
                ),
                dict,
                stage="prepare_products",
                subject=compilation.program.name,
                cost="Triton's kernels compute products of few rows",
            )
        except CompilerMissing:  # other kernels say so; Triton's need no compiler of ours
            return {}
        self.hand_out_prepared(products.values())
        return products

    def hand_out_compiled(self, name: str, built: CompiledKernel) -> None:
        if self.code is Code.PTX:
            self.hand_out([Unit(*name_entry(built, name, self.code))])

    def hand_out_prepared(self, kernels: Iterable[XlaKernel | KernelRefusal]) -> None:
        if self.code is Code.PTX:
            self.hand_out([Unit(k.symbol, k.code) for k in kernels if isinstance(k, XlaKernel)])


def _plan_kernels(job: _Job, on_scopes: Callable[[Scopes], object]) -> Compilation:
    """The compilation without its bodies and loops; the kernels of loops are compiled while it is made."""
    pool = ThreadPoolExecutor(count_threads(), "astitch-loops")

    def begin(left: Left) -> None:
        if job.planner:
            start_loops(left.graph, job.planner, pool, job.hand_out_compiled)

    target = Target(
        launcher=Launcher.XLA,
        updates=lambda graph: (
            find_donated_updates(graph, job.donated) | find_carried_transposes(graph, job.donated)
        ),
        simplified=job.simplified,
        attention=job.attention,
        loops=job.planner,
        row_groups=job.planner,
        render=lambda plan: emit_plan_for_xla(plan, job.donated),
        copied=lambda plan: count_copied(plan, job.donated),
        on_kernel=lambda plan, built: job.hand_out_compiled(plan.kernel.name, built),
        directives=job.directives,
        found=job.found.in_program,
        after={"leave": begin, "stitch_remotely": on_scopes},
    )
    try:
        compilation = compile_graph(
            job.graph, job.gpu, target, tune=job.tune, strict=job.strict, faults=job.faults
        )
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown(wait=False)  # whoever asks for a kernel waits for it
    return compilation


def _find_in_place(job: _Job, compilation: Compilation) -> dict[str, list[InPlace]]:
    """The results that take over an argument's memory, by kernel."""
    nothing: dict[str, list[InPlace]] = {}
    return job.faults.attempt(
        lambda: find_in_place(compilation, job.donated, _find_least(job, compilation)),
        lambda: nothing,
        stage="find_in_place",
        subject=job.graph.name,
        cost="no result takes over an argument's memory",
    )


def _find_least(job: _Job, compilation: Compilation) -> int:
    """The least bytes of a temporary array that a result takes over: few where the program would take more than XLA
    alone is estimated to."""
    scratch = {plan.scope.name: plan.kernel.scratch_bytes for plan in compilation.plans}
    peak = schedule(list_steps(compilation.scopes, scratch)).peak
    return LEAST_BYTES_AGAIN if peak <= most_of_memory(job.graph) else LEAST_BYTES_OVER


def find_least_in_region(body: Compilation) -> int:
    """The same as _find_least in the body of a loop or a branch, beside what it gets and gives."""
    scratch = {plan.scope.name: plan.kernel.scratch_bytes for plan in body.plans}
    steps = list_steps(body.scopes, scratch)
    peak = schedule(leave_results_out(steps, body.scopes.graph)).peak
    return (
        LEAST_BYTES_AGAIN if peak <= estimate_region_peak(body.scopes.graph) else LEAST_BYTES_OVER
    )


def _find_moves(job: _Job, compilation: Compilation) -> dict[str, str]:
    """The kernels that XLA's products do as well, with the reasons."""
    nothing: dict[str, str] = {}
    return job.faults.attempt(
        lambda: find_moves(compilation),
        lambda: nothing,
        stage="find_moves",
        subject=job.graph.name,
        cost="no kernel is joined to a product",
    )


def _take_loops(
    job: _Job, compilation: Compilation, prefix: str = ""
) -> tuple[Compilation, dict[LoopKey, LoopCall]]:
    """The compilation with notes on its loops, and the loops that are one kernel.  prefix: begins their names.

    Raises UnsupportedOp where strict was asked for and a loop's kernel does not run on the device.
    """
    if not job.planner:
        return compilation, {}
    found, notes = find_loops(compilation, job.planner, prefix)
    loops, refused = prepare_loops(found, job.gpu, job.code, job.faults)
    job.hand_out_prepared(call.kernel for call in loops.values())
    if job.strict and refused:
        raise UnsupportedOp(
            f"program {compilation.program.name}: strict was asked for, and XLA runs a loop\n  "
            + "\n  ".join(refused)
        )
    return _note_loops(compilation, loops, (*notes, *refused)), loops


def _prepare_body(job: _Job, body: Compilation, loop: bool) -> Kernels:
    """The kernels of a body.  loop: is it a loop's?"""
    find = find_carried_in_place if loop else find_temporaries_in_place
    in_place = find(body, find_least_in_region(body))
    slices = _find_slices(body, job.faults, loop=True) if loop else {}
    left = job.without_kept(body, find_unworthy(body, slices))
    kernels = prepare_kernels(body, body.gpu, in_place, left, job.code, job.faults, slices)
    return job.leave_outrun(body, kernels)


def _find_slices(
    compilation: Compilation, faults: FaultLog, *, loop: bool
) -> dict[str, list[SliceWrite]]:
    """What the kernels write into slices of a loop's state, or of donated arguments."""
    nothing: dict[str, list[SliceWrite]] = {}
    return faults.attempt(
        lambda: find_slices(compilation, loop=loop),
        lambda: nothing,
        stage="find_slices",
        subject=compilation.program.name,
        cost="XLA copies what kernels write into slices of larger arrays",
    )


TakeLoops = Callable[[Compilation, str], tuple[Compilation, dict[LoopKey, LoopCall]]]
"""The compilation with notes on its loops, and those that are kernels, given what begins their names."""


def leave_products(_: Compilation) -> dict[str, XlaKernel]:
    """All are tile programs."""
    return {}


def leave_loops(compilation: Compilation, _: str) -> tuple[Compilation, dict[LoopKey, LoopCall]]:
    """No loop is a kernel."""
    return compilation, {}


def export_bodies(
    compilation: Compilation,
    prepare: Callable[[Compilation, bool], Kernels],
    take: TakeLoops = leave_loops,
    products: Callable[[Compilation], Mapping[str, XlaKernel]] = leave_products,
    path: str = "",
) -> tuple[Compilation, dict[Graph, Graph]]:
    """For each region that was compiled, one that calls its kernels; the bodies get notes of kernels left to XLA.

    prepare: the kernels of a body, given whether it is a loop's.  take: its loops.  products: its narrow products.
    path: begins the names of loops.  A region without kernels is no part of what is returned.

    Kernels whose blocks meet follow each other within a body by their tokens, which end there: XLA runs a loop or
    conditional as one step of its main stream, and by default takes neither into a CUDA graph.  So nothing outside runs
    beside it and no turn beside the next.
    """
    bodies, regions = [], {}
    for number, body in enumerate(compilation.bodies):
        kernels = prepare(body.compilation, OPS[body.op].is_loop)
        noted = note_slices(note_refusals(body.compilation, kernels), kernels)
        own = f"{path}body_{number}_"
        inner, inside = export_bodies(noted, prepare, take, products, own)
        inner, loops = take(inner, own)
        bodies.append(replace(body, compilation=inner))
        attends = any(
            isinstance(node.attrs, (AttentionAttrs, NarrowProductAttrs, RowRegionAttrs))
            for node in inner.scopes.graph
        )
        launched = any(isinstance(k, XlaKernel) for k in kernels.values())
        if inside or attends or loops or launched:
            module = export_program(inner, kernels, inside, loops, products(inner))
            regions[body.region] = read_part(module)
    return replace(compilation, bodies=tuple(bodies)), regions


def note_refusals(compilation: Compilation, kernels: Kernels) -> Compilation:
    """The compilation with notes on the kernels that are left to XLA."""
    refused = {n: kernel for n, kernel in kernels.items() if isinstance(kernel, KernelRefusal)}
    program = compilation.program
    notes = (*program.notes, *map(str, refused.values()))
    reasons = {name: kernel.reason for name, kernel in refused.items()}
    return replace(compilation, program=replace(program, notes=notes), refused=reasons)


def note_slices(compilation: Compilation, kernels: Kernels) -> Compilation:
    """The compilation without the updates of slices that its kernels write."""
    taken = {
        cut.update
        for kernel in kernels.values()
        if isinstance(kernel, XlaKernel)
        for cut in kernel.slices
    }
    steps = tuple(
        replace(step, ops=tuple(op for op in step.ops if op.name not in taken))
        if isinstance(step, FallbackStep)
        else step
        for step in compilation.program.steps
    )
    return replace(compilation, program=replace(compilation.program, steps=steps))


def _note_loops(
    compilation: Compilation, calls: Mapping[LoopKey, LoopCall], notes: tuple[str, ...]
) -> Compilation:
    """The compilation with notes on its loops; those that are kernels are no ops of XLA's any more."""
    program = compilation.program
    steps: list[Step] = []
    plans: dict[str, LoopPlan | TurnsPlan] = {}
    for step in program.steps:
        if isinstance(step, FallbackStep):
            graph = read_fallback(step.hlo)
            keys = {n.name: loop_key(graph, n) for n in graph if OPS[n.op].is_loop}
            taken = {name: calls[key].loop.plan for name, key in keys.items() if key in calls}
            plans |= taken
            left = (op for op in step.ops if op.name not in taken and op.reason != START)
            step = replace(step, ops=tuple(left))
        steps.append(step)
    bodies = tuple(
        replace(body, runs={name: n for name, n in body.runs.items() if name not in plans})
        for body in compilation.bodies
    )
    program = replace(program, steps=tuple(steps))
    return replace(
        compilation,
        program=program,
        bodies=bodies,
        loops=notes,
        loop_us=tuple(plan.us for plan in plans.values()),
        spared_us=sum(plan.spared_us for plan in plans.values()),
    )
