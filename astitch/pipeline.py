"""The compiler as one sequence of passes: Graph -> Scopes -> Plans -> kernels -> Program.

PASSES is all of it, in order; whoever runs, times, checks, shows or draws the pipeline reads it there.
`python -m astitch.compile FILE --until PASS` prints what a pass hands on.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from astitch.attention.fuse import fuse_attention
from astitch.device.gpu import Gpu
from astitch.directives import FOLLOWED, NOTHING, Directives, read_directives
from astitch.faults import FaultLog
from astitch.graph.call_layouts import lay_out_calls
from astitch.graph.check import check_graph
from astitch.graph.collectives import find_joined
from astitch.graph.fallback_operands import AS_ITS_OPERAND, find_fallback_operands
from astitch.graph.finished_products import find_finished
from astitch.graph.ir import Graph
from astitch.graph.joined_operands import find_joined_operands
from astitch.library.xla_fallback import adds_products, has_jax
from astitch.loops.carry import carry_as_read
from astitch.loops.chosen_rows import write_chosen_rows
from astitch.loops.joined_rows import loop_over_joined_rows
from astitch.loops.matrix_rows import loop_over_matrices
from astitch.loops.plan import LoopPlanner, hoist_planned, leave_starts
from astitch.loops.restore import restore_loops
from astitch.loops.stack_order import carry_as_given
from astitch.loops.unroll import unroll_searches
from astitch.loops.update_stacks import update_stacks
from astitch.program.steps import CudaKernel, Program
from astitch.rewrite.arrange_exchanges import arrange_exchanges
from astitch.rewrite.clamped_masks import ask_clamped
from astitch.rewrite.convolution_layouts import arrange_convolutions
from astitch.rewrite.equal_segments import reduce_equal_segments
from astitch.rewrite.expand import expand
from astitch.rewrite.few_rows import reduce_few_rows
from astitch.rewrite.fold_scales import fold_scales
from astitch.rewrite.joined_columns import separate_columns
from astitch.rewrite.late_scales import scale_late
from astitch.rewrite.layer_updates import update_rows_of_layers
from astitch.rewrite.narrow_pieces import join_narrow_pieces
from astitch.rewrite.narrow_products import write_narrow_products
from astitch.rewrite.narrow_reductions import reshape_narrow_reductions
from astitch.rewrite.native_scatters import combine_natively
from astitch.rewrite.operands import give_operands
from astitch.rewrite.order_reductions import order_reductions
from astitch.rewrite.packed_words import unpack_words
from astitch.rewrite.padded_convolutions import pad_convolutions
from astitch.rewrite.products import arrange_products
from astitch.rewrite.reassociate import reassociate
from astitch.rewrite.recompute import Staged, recompute
from astitch.rewrite.restore_recurrences import restore_recurrences
from astitch.rewrite.restore_windows import restore_windows
from astitch.rewrite.row_regions import form_row_regions
from astitch.rewrite.row_sorts import sort_rows
from astitch.rewrite.scaled_products import scale_products
from astitch.rewrite.scatter_order import order_scatters
from astitch.rewrite.short_reductions import write_out_short_reductions
from astitch.rewrite.simplify import simplify
from astitch.rewrite.sink_into_loops import sink_into_loops
from astitch.rewrite.sink_slices import sink_slices
from astitch.rewrite.small_dots import decompose_small_dots
from astitch.rewrite.sorted_scatters import reduce_sorted_rows
from astitch.rewrite.split_k import split_products
from astitch.rewrite.top_k import take_largest
from astitch.scope.remote_stitch import stitch_remotely
from astitch.search.bound_arrays import bound_arrays
from astitch.search.bound_memory import MARGIN, beside_arguments, bound_memory, most_of_memory
from astitch.search.build_program import build_program, emit_kernels
from astitch.search.follow_directives import (
    choose_plans,
    cut_as_told,
    leave_as_told,
    move_together,
    stays_whole,
)
from astitch.search.keep_within import keep_within
from astitch.search.peak_memory import estimate_plain_peak, list_steps, schedule
from astitch.search.plan_scopes import (
    CountCopied,
    OnKernel,
    Render,
    check_plans,
    plan_scopes,
    tune_planned,
)
from astitch.search.split_scopes import Decisions, PlannedScopes
from astitch.search.travelling_plans import fingerprint as fingerprint_plans
from astitch.search.travelling_plans import take_imported
from astitch.stitch_scope import Left, Scopes, choose_stages, find_scopes
from astitch.toolchain.override import offer

# ---- for whom one compiles -----------------------------------------------------------------------


class Launcher(enum.Enum):
    """What runs the kernels."""

    OWN = "CuPy, or the emulation on the processor"
    XLA = "a program of XLA's with the kernels in it"
    REGION = "a region of a loop or conditional in such a program"


@dataclass(frozen=True, slots=True)
class RegionRules:
    """How a region is compiled.

    prefix: begins the names of its kernels.  leave: what no kernel is to compute.
    """

    prefix: str
    leave: Callable[[Graph], Left]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """For whom a graph is compiled, and what is called between the passes.

    region: set for Launcher.REGION.
    updates: what XLA computes in a parameter's memory, with the reasons.  It is neither expanded nor in a kernel.
    simplified: the graph comes out of the middle of XLA's compilation.
    attention: may attention, products of few rows and narrow networks be calls of their own (graph/ops/attention.py,
    narrow_product.py, row_region.py)?
    Only where XLA launches them.
    loops: plans the loops that can be one kernel; None: there are none.
    row_groups: plans what is computed of rows of few numbers, as small matrices, as such loops; None: nothing is.
    render: the CUDA source that the engine submits; with it kernels are compiled while others are planned.
    copied: the bytes that the engine copies for a plan's kernel, as it cannot write where it reads.
    on_kernel: is given those.  found: see split_scopes.  directives: what the owner of the program decides.
    after: by the name of a pass, a callback that gets what the pass hands on.
    """

    launcher: Launcher = Launcher.OWN
    region: RegionRules | None = None
    updates: Callable[[Graph], Mapping[str, str]] = lambda graph: {}
    simplified: bool = False
    attention: bool = False
    loops: LoopPlanner | None = None
    row_groups: LoopPlanner | None = None
    render: Render | None = None
    copied: CountCopied = lambda plan: 0
    on_kernel: OnKernel = lambda plan, compiled: None
    found: Decisions | None = None
    directives: Directives = field(default_factory=read_directives)
    after: Mapping[str, Callable[[Any], object]] = field(default_factory=dict)

    @property
    def in_xla(self) -> bool:
        """Does XLA launch the kernels of the whole program?"""
        return self.launcher is Launcher.XLA

    @property
    def orders_scatters(self) -> bool:
        """Do all scatters add in a fixed order?  Through XLA's hook only where somebody asks for it: it is slower."""
        if self.in_xla:
            asked = self.directives.in_order
            return not self.simplified if asked is None else asked
        return self.launcher is Launcher.OWN

    @property
    def names_epilogues(self) -> bool:
        """Are kernels named that a product's library could compute?  XLA finds its products' own."""
        return not self.in_xla


OWN = Target(directives=NOTHING)


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the pipeline.

    name: of the graph.  tune: measure plans on the current GPU.  faults: keeps the errors inside astitch.
    plain: the graph as it was imported; None before the passes run.
    notes: what passes say for people of what they leave to XLA.  directives: those that hold for this graph.
    """

    name: str
    gpu: Gpu
    target: Target
    tune: bool
    faults: FaultLog
    plain: Graph | None = None
    notes: list[str] = field(default_factory=list)
    directives: Directives = NOTHING


# ---- the passes ----------------------------------------------------------------------------------

PASS_LEFT_OUT = "the pass is left out"


@dataclass(frozen=True, slots=True)
class Pass:
    """One step of the pipeline.

    run: takes what the pass before handed on.  when: whether it is run at all.  if_it_fails: what a fault costs; then
    the next pass gets what this one got.  Empty: the whole graph is left to XLA.
    """

    name: str
    run: Callable[[Any, Job], Any]
    when: Callable[[Job], bool] = lambda job: True
    if_it_fails: str = ""


def _rewrite(
    name: str,
    run: Callable[[Graph, Job], Graph],
    when: Callable[[Job], bool] = lambda job: True,
    if_it_fails: str = PASS_LEFT_OUT,
) -> Pass:
    """A pass from graph to graph."""
    return Pass(name, run, when, if_it_fails)


def _hoist(graph: Graph, job: Job) -> Graph:
    assert job.target.loops
    is_limited = math.isfinite(limit_of(job))
    return simplify(check_graph(hoist_planned(graph, job.target.loops, is_limited)))


def _loop_over_matrices(graph: Graph, job: Job) -> Graph:
    assert job.target.row_groups
    looped = loop_over_matrices(graph, job.target.row_groups, job.notes)
    return graph if looped is graph else simplify(check_graph(looped))


def _loop_over_joined_rows(graph: Graph, job: Job) -> Graph:
    assert job.target.row_groups
    looped = loop_over_joined_rows(graph, job.target.row_groups)
    return graph if looped is graph else simplify(check_graph(looped))


def _unroll_searches(graph: Graph, job: Job) -> Graph:
    planner = job.target.loops
    unrolled = unroll_searches(graph, planner.stays if planner else lambda graph, node: False)
    return graph if unrolled is graph else check_graph(unrolled)


def _write_chosen_rows(graph: Graph, job: Job) -> Graph:
    sunk = sink_into_loops(graph)
    planner = job.target.loops
    written = write_chosen_rows(
        sunk, job.target.updates, planner.is_kernel if planner else lambda graph, node: False
    )
    return graph if written is sunk else simplify(check_graph(written))


def _update_stacks(graph: Graph, job: Job) -> Graph:
    planner = job.target.loops
    updated = update_stacks(graph, planner.is_kernel if planner else lambda graph, node: False)
    return graph if updated is graph else simplify(check_graph(updated))


def _carry_as_read(graph: Graph, job: Job) -> Graph:
    planner = job.target.loops
    carried = carry_as_read(graph, planner.is_kernel if planner else lambda graph, node: False)
    return graph if carried is graph else simplify(check_graph(carried))


def _carry_as_given(graph: Graph, job: Job) -> Graph:
    assert job.target.loops
    carried = carry_as_given(graph, job.target.loops)
    return graph if carried is graph else simplify(check_graph(carried))


def _fuse_attention(graph: Graph, job: Job) -> Graph:
    sunk = sink_into_loops(graph)
    fused = fuse_attention(
        sunk,
        job.gpu,
        in_order=job.directives.in_order is True,
        left=job.notes,
        told=job.directives,
    )
    return graph if fused is graph else simplify(check_graph(fused))


def _expand(graph: Graph, job: Job) -> Graph:
    return expand(graph, keep=job.target.updates(graph))


def _form_row_regions(graph: Graph, job: Job) -> Graph:
    formed = form_row_regions(graph, job.gpu)
    return graph if formed is graph else simplify(check_graph(formed))


def _reduce_few_rows(graph: Graph, job: Job) -> Graph:
    reduced = reduce_few_rows(graph, in_order=job.target.orders_scatters)
    return graph if reduced is graph else check_graph(reduced)


def _reduce_sorted_rows(graph: Graph, job: Job) -> Graph:
    """reduce_sorted_rows, whose scans are expanded like others."""
    reduced = reduce_sorted_rows(graph, in_order=job.target.orders_scatters)
    if reduced is graph:
        return graph
    return expand(check_graph(reduced), keep=job.target.updates(reduced))


def _order_scatters(graph: Graph, job: Job) -> Graph:
    """order_scatters, whose running sums are expanded like others."""
    ordered = order_scatters(graph, in_place=job.target.in_xla)
    if ordered is graph:
        return graph
    return expand(check_graph(ordered), keep=job.target.updates(ordered))


def _combine_natively(graph: Graph, job: Job) -> Graph:
    limit = limit_of(job)
    room = limit - estimate_plain_peak(job.plain) if job.plain and limit < math.inf else math.inf
    combined = combine_natively(graph, only_splats=job.target.region is not None, room=room)
    return graph if combined is graph else check_graph(combined)


def _leave(graph: Graph, job: Job) -> Left:
    """What the target computes in another way."""
    region, loops = job.target.region, job.target.loops
    left = region.leave(graph) if region else Left(graph, job.target.updates(graph))
    if loops:
        graph, starts = leave_starts(left.graph)
        left = Left(graph, {**left.reasons, **starts})
    reasons = {**left.reasons, **find_joined(left.graph)}
    if job.target.launcher is not Launcher.OWN:
        apart = find_fallback_operands(left.graph, reasons, _most_of_memory(job))
        left = replace(left, graph=apart.graph)
        reasons |= {n: f"{AS_ITS_OPERAND}{s}" for n, s in apart.products.items()}
    if job.target.launcher is Launcher.OWN:
        return replace(left, reasons=reasons)
    graph, products = left.graph, dict[str, str]()
    finish = partial(find_finished, adds_products=adds_products())
    for find in (find_joined_operands, finish):
        found = find(graph, reasons)
        taken = _without_kept(found.products, job.directives)
        graph, products = found.graph, {**products, **taken}
        reasons |= {n: f"XLA computes it with %{p}" for n, p in taken.items()}
    graph, names = lay_out_calls(graph, reasons)
    return Left(graph, {**reasons, **names}, products)


def _without_kept(products: Mapping[str, str], directives: Directives) -> dict[str, str]:
    """Ops with the products that take them in; a product takes in nothing where one of its ops is to be a kernel's."""
    by_product: dict[str, set[str]] = {}
    for name, product in products.items():
        by_product.setdefault(product, {product}).add(name)
    kept = {p for p, names in by_product.items() if directives.names("keep", names)}
    kept |= {
        p
        for p, names in by_product.items()
        if any(names & set(line.ops) for line in directives.all("together"))
    }
    return {name: product for name, product in products.items() if product not in kept}


def _most_of_memory(job: Job, margin: float = 1) -> float:
    """The bytes beside its arguments that the program may take.  margin: of what XLA alone would take."""
    if not job.plain:
        return math.inf
    return min(margin * most_of_memory(job.plain), limit_of(job))


def limit_of(job: Job) -> float:
    """The same, as a memory limit alone says.  A region's part of the program's is not known."""
    limit = None if job.target.region else job.directives.memory_limit
    if limit is None or not job.plain:
        return math.inf
    return beside_arguments(job.plain, limit)


def _keep_within(staged: Staged, job: Job) -> Staged:
    def measure(found: Staged) -> int:
        scopes = _bound_memory(
            _stitch_remotely(_find_scopes(_recompute(found, job), job), job), job
        )
        return schedule(list_steps(scopes)).peak

    return keep_within(staged, limit_of(job), measure)


def _recompute(staged: Staged, job: Job) -> Staged:
    return recompute(staged, _most_of_memory(job))


def _find_scopes(staged: Staged, job: Job) -> Scopes:
    return find_scopes(move_together(staged, job.directives))


def _stitch_remotely(found: Scopes, job: Job) -> Scopes:
    everywhere = [line.number for line in job.directives.all("at-most") if not line.ops]
    most = max(everywhere, default=None)
    stitched = stitch_remotely(found, layouts_apart=job.target.in_xla, most=most)
    return cut_as_told(stitched, job.directives)


def _bound_memory(scopes: Scopes, job: Job) -> Scopes:
    assert job.plain
    return bound_memory(scopes, job.gpu, job.plain, limit_of(job))


def _rename(scopes: Scopes, job: Job) -> Scopes:
    """The scopes, and with them the kernels, under names that are the region's own."""
    assert job.target.region
    prefix = job.target.region.prefix
    names = {s.name for s in scopes.scopes}
    turns = {prefix + name if name in names else name: at for name, at in scopes.turns.items()}
    renamed = tuple(replace(s, name=prefix + s.name) for s in scopes.scopes)
    return replace(scopes, scopes=renamed, turns=turns)


def _plan(scopes: Scopes, job: Job) -> PlannedScopes:
    return plan_scopes(
        scopes,
        job.gpu,
        render=job.target.render,
        copied=job.target.copied,
        finalizes=not job.tune,  # where plans are measured next, none is final
        on_kernel=job.target.on_kernel,
        faults=job.faults,
        most_bytes=_most_of_memory(job, MARGIN),
        in_loop=job.target.region is not None,
        whole=lambda scope: stays_whole(scope, job.directives),
        divided=lambda scope: bool(job.directives.names("split", scope.members, scope.name)),
        found=job.target.found,
    )


def _follow_directives(planned: PlannedScopes, job: Job) -> PlannedScopes:
    return leave_as_told(choose_plans(planned, job.gpu, job.directives), job.directives)


@dataclass(frozen=True, slots=True)
class Emitted:
    """Planned scopes, and the kernels of those plans that could be emitted, by scope."""

    planned: PlannedScopes
    kernels: Mapping[str, CudaKernel]

    def __str__(self) -> str:
        return "\n".join(kernel.source for kernel in self.kernels.values())


def _emit(planned: PlannedScopes, job: Job) -> Emitted:
    kernels = emit_kernels(planned.plans, job.faults)
    if job.target.launcher is Launcher.OWN:
        for kernel in kernels.values():
            offer(job.name, kernel.name, kernel.source, kernel.launch)
    return Emitted(planned, kernels)


def _build(emitted: Emitted, job: Job) -> Program:
    planned = emitted.planned
    program = build_program(
        planned.scopes.graph,
        planned.scopes,
        planned.plans,
        fallbacks=has_jax(),
        epilogues=job.target.names_epilogues,
        left=planned.left,
        kernels=emitted.kernels,
        stays=lambda scope: bool(job.directives.names("keep", scope.members, scope.name)),
        gpu=job.gpu,
    )
    return replace(program, notes=(*program.notes, *job.notes))


def _restore(graph: Graph, job: Job) -> Graph:
    assert job.target.loops
    return restore_loops(graph, job.target.loops)


PASSES: tuple[Pass, ...] = (
    _rewrite(
        "restore_products",
        _restore,
        lambda job: job.target.simplified and job.target.loops is not None,
    ),
    _rewrite("simplify", lambda graph, job: simplify(graph)),
    _rewrite(
        "restore_windows",
        lambda graph, job: restore_windows(graph),
        lambda job: job.target.simplified,
    ),
    _rewrite("restore_recurrences", lambda graph, job: restore_recurrences(graph)),
    _rewrite("sink_slices", lambda graph, job: sink_slices(graph)),
    _rewrite("write_chosen_rows", _write_chosen_rows, lambda job: job.target.in_xla),
    _rewrite(
        "update_rows_of_layers",
        lambda graph, job: update_rows_of_layers(graph),
        lambda job: job.target.in_xla,
    ),
    _rewrite("fuse_attention", _fuse_attention, lambda job: job.target.attention),
    _rewrite("unroll_searches", _unroll_searches),
    _rewrite(
        "loop_over_matrices",
        _loop_over_matrices,
        lambda job: job.target.row_groups is not None,
    ),
    _rewrite(
        "loop_over_joined_rows",
        _loop_over_joined_rows,
        lambda job: job.target.row_groups is not None,
    ),
    _rewrite("hoist_loops", _hoist, lambda job: job.target.loops is not None),
    _rewrite("update_stacks", _update_stacks, lambda job: job.target.in_xla),
    _rewrite("carry_as_read", _carry_as_read, lambda job: job.target.in_xla),
    _rewrite(
        "carry_as_given",
        _carry_as_given,
        lambda job: job.target.in_xla and job.target.loops is not None,
    ),
    _rewrite("expand", _expand),
    _rewrite("reduce_equal_segments", lambda graph, job: reduce_equal_segments(graph)),
    _rewrite("take_largest", lambda graph, job: take_largest(graph)),
    _rewrite("sort_rows", lambda graph, job: sort_rows(graph)),
    _rewrite("reduce_few_rows", _reduce_few_rows),
    _rewrite("reduce_sorted_rows", _reduce_sorted_rows),
    _rewrite(
        "order_scatters",
        _order_scatters,
        # What a loop carries XLA scatters to in place.
        lambda job: job.target.region is None and job.target.orders_scatters,
        "sums of scatters may differ from run to run",
    ),
    _rewrite("combine_natively", _combine_natively),
    _rewrite("reassociate", lambda graph, job: reassociate(graph)),
    _rewrite("scale_products", lambda graph, job: scale_products(graph)),
    _rewrite(
        "fold_scales",
        lambda graph, job: fold_scales(graph),
        # In a loop filters would be multiplied in each turn.
        lambda job: job.target.in_xla and job.target.region is None,
    ),
    _rewrite("separate_columns", lambda graph, job: separate_columns(graph)),
    _rewrite("join_narrow_pieces", lambda graph, job: join_narrow_pieces(graph)),
    _rewrite("row_regions", _form_row_regions, lambda job: job.target.attention),
    _rewrite(
        "narrow_products",
        lambda graph, job: write_narrow_products(graph, job.gpu),
        lambda job: job.target.attention,
    ),
    _rewrite("scale_late", lambda graph, job: scale_late(graph), lambda job: job.target.in_xla),
    _rewrite(
        "decompose_small_dots",
        lambda graph, job: decompose_small_dots(
            graph, job.gpu, in_region=job.target.region is not None
        ),
    ),
    _rewrite("unpack_words", lambda graph, job: unpack_words(graph), lambda job: job.target.in_xla),
    _rewrite("write_out_short_reductions", lambda graph, job: write_out_short_reductions(graph)),
    _rewrite("ask_clamped", lambda graph, job: ask_clamped(graph)),
    _rewrite("order_reductions", lambda graph, job: order_reductions(graph)),
    _rewrite("reshape_narrow_reductions", lambda graph, job: reshape_narrow_reductions(graph)),
    _rewrite(
        "arrange_exchanges",
        lambda graph, job: arrange_exchanges(graph),
        lambda job: job.target.in_xla,
    ),
    _rewrite("arrange_products", lambda graph, job: arrange_products(graph)),
    _rewrite("arrange_convolutions", lambda graph, job: arrange_convolutions(graph, job.gpu)),
    _rewrite(
        "pad_convolutions",
        lambda graph, job: pad_convolutions(graph),
        lambda job: job.target.in_xla,
    ),
    _rewrite(
        "split_products",
        lambda graph, job: split_products(graph, job.gpu),
        lambda job: job.target.launcher is not Launcher.OWN,
    ),
    Pass("leave", _leave),
    Pass("choose_stages", lambda left, job: choose_stages(left)),
    Pass(
        "keep_within",
        _keep_within,
        lambda job: math.isfinite(limit_of(job)),
        "nothing is computed again for the memory limit",
    ),
    Pass("recompute", _recompute, if_it_fails=PASS_LEFT_OUT),
    Pass(
        "give_operands",
        lambda staged, job: give_operands(staged),
        lambda job: job.target.in_xla,
        PASS_LEFT_OUT,
    ),
    Pass("find_scopes", _find_scopes),
    Pass("stitch_remotely", _stitch_remotely, if_it_fails=PASS_LEFT_OUT),
    Pass("bound_memory", _bound_memory, if_it_fails="kernels of many tensors may take more memory"),
    Pass(
        "bound_arrays",
        lambda scopes, job: bound_arrays(scopes, job.gpu),
        lambda job: job.target.in_xla,
        "XLA computes stitch ops of more arrays than it passes",
    ),
    Pass("rename_scopes", _rename, lambda job: job.target.region is not None),
    Pass("plan", _plan),
    Pass(
        "tune",
        lambda planned, job: tune_planned(planned, job.gpu),
        lambda job: job.tune,
        "its plans are not measured",
    ),
    Pass(
        "take_imported",
        lambda planned, job: replace(planned, plans=take_imported(planned.plans, job.gpu)),
        lambda job: bool(fingerprint_plans()),
        "imported plans are not used",
    ),
    Pass("follow_directives", _follow_directives, lambda job: bool(job.directives)),
    Pass("check_plans", lambda planned, job: check_plans(planned, job.faults)),
    Pass("emit", _emit),
    Pass("program", _build),
)
"""The compiler.  Each pass takes what the one before handed on; the first takes the imported graph."""

NAMES = tuple(step.name for step in PASSES)


# ---- running them --------------------------------------------------------------------------------


def run_passes(
    graph: Graph, job: Job, *, until: str = NAMES[-1], seconds: dict[str, float] | None = None
) -> dict[str, Any]:
    """What each pass up to `until` handed on, by name; a pass that was not run handed on what it got.

    seconds: gets the time of each pass that was run.  Raises what a pass without a way out raises, and with `tune`
    EngineUnavailable.
    """
    product: Any = check_graph(graph)
    job = replace(job, plain=graph)
    products: dict[str, Any] = {}
    for step in PASSES:
        if step.when(job) and not _is_left_out(step, job):
            start = time.perf_counter()
            product = _run(step, product, job)
            if seconds is not None:
                seconds[step.name] = time.perf_counter() - start
            _tell(step.name, product, job)
        products[step.name] = product
        if step.name == until:
            break
    return products


def _is_left_out(step: Pass, job: Job) -> bool:
    """Does a directive leave out a pass that can be?"""
    for line in job.directives.all("without"):
        if line.word == step.name:
            job.directives.note(
                line, FOLLOWED if step.if_it_fails else "not followed: no program without this pass"
            )
            return bool(step.if_it_fails)
    return False


def _run(step: Pass, product: Any, job: Job) -> Any:
    if not step.if_it_fails:
        return _check(step.run(product, job), product)
    return job.faults.attempt(
        lambda: _check(step.run(product, job), product),
        lambda: product,
        stage=step.name,
        subject=job.name,
        cost=step.if_it_fails,
    )


def _check(product: Any, before: Any) -> Any:
    """The product of a pass, after a check of the graph in it.  before: the product of the pass before."""
    graph = _graph_in(product)
    if graph is not None:
        check_graph(graph, _graph_in(before))
    return product


def _graph_in(product: Any) -> Graph | None:
    """The graph in a pass's product; None where there is none."""
    match product:
        case Graph():
            return product
        case Left() | Staged() | Scopes():
            return product.graph
        case PlannedScopes():
            return product.scopes.graph
    return None


def _tell(name: str, product: Any, job: Job) -> None:
    """Begins work that would else wait until the program is made."""
    if name in job.target.after:
        job.faults.attempt(
            lambda: job.target.after[name](product),
            lambda: None,
            stage=f"after {name}",
            subject=job.name,
            cost="it begins later",
        )
