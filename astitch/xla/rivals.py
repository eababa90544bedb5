"""Compilation, its kernels -> those that XLA's own version of their ops outruns, measured on the GPU that is here.

A projection errs most where a kernel is far from the speed of light: it waits for what the model does not know.  So
such kernels are timed beside what XLA makes of the same ops, as XLA itself times the algorithms of a product.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from astitch.cost.projected_latency import project
from astitch.errors import AstitchError
from astitch.graph.dimensions import is_embedded
from astitch.graph.ir import ArrayType, Graph
from astitch.hlo.export import export_nodes
from astitch.loops.merge import find_ancestors
from astitch.program.steps import KernelStep, Space
from astitch.scope.structure import Structure, structure_of
from astitch.search.plan import Plan
from astitch.search.split_scopes import work_of
from astitch.show.compilation import Compilation
from astitch.stitch_scope import Scope
from astitch.xla.prepare_kernels import Kernels, XlaKernel, prepare_kernels
from astitch.xla.write_module import export_program

SUSPECT_US, SUSPECT_FACTOR = 50.0, 1.4
"""A kernel is timed if it is projected to take so long, and so many times longer than its speed of light.  A shorter
one gains little, and its launch takes about as long."""

MARGIN, LEAST_GAIN_US = 0.95, 5.0
"""XLA's version is taken if it needs less than this share of the kernel's time, and so much less.  That must hold in
all batches but one: on a GPU that others use, too, one batch says little."""

LEAST_WON = 3
"""Batches that XLA's version must win at the least: fewer say too little."""

MOST_TIMED = 16
"""Different kernels of a program that are timed, those with the largest projections."""


@dataclass(frozen=True, slots=True)
class Alone:
    """A part of a program as a module of its own.  hlo: a serialized HloModuleProto, whose root is a tuple."""

    hlo: bytes
    parameters: tuple[ArrayType, ...]
    results: tuple[ArrayType, ...]


TimePairs = Callable[[Sequence[tuple[Alone, Alone]]], Sequence[Sequence[tuple[float, float]]]]
"""Batches of each pair, timed in turns: us of a call of the first and of the second on the device, with arguments of
any values.  Empty: not measured."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A kernel far from the speed of light.  us: projected."""

    plan: Plan
    step: KernelStep
    kernel: XlaKernel
    us: float


def find_outrun(
    compilation: Compilation,
    kernels: Kernels,
    time_both: TimePairs,
    known: dict[Structure, str],
) -> dict[str, str]:
    """The kernels that XLA's version of their ops outruns, each with the reason to leave it to XLA.

    known: what was found of a structure, the empty string for a kernel that is faster.  It grows, so that equal kernels
    of several bodies are timed once.
    """
    graph = compilation.scopes.graph
    suspects = list_suspects(compilation, kernels)
    structures = [structure_of(graph, suspect.plan.scope) for suspect in suspects]
    new: dict[Structure, Suspect] = {}
    for structure, suspect in zip(structures, suspects, strict=True):
        if structure not in known and len(known) + len(new) < MOST_TIMED:
            new.setdefault(structure, suspect)
    known |= dict(zip(new, _compare(compilation, list(new.values()), time_both), strict=True))
    return {
        suspect.plan.kernel.name: known[structure]
        for structure, suspect in zip(structures, suspects, strict=True)
        if known.get(structure)
    }


def list_suspects(compilation: Compilation, kernels: Kernels) -> list[Suspect]:
    """The kernels to time, the longest first."""
    plans = {plan.kernel.name: plan for plan in compilation.plans}
    found = []
    for step in compilation.program.steps:
        if not isinstance(step, KernelStep):
            continue
        plan, kernel = plans[step.kernel.name], kernels[step.kernel.name]
        if not isinstance(kernel, XlaKernel):
            continue
        us = project(plan.kernel, compilation.gpu, work=plan.work).time_us
        light_us = work_of(plan).bound_us(compilation.gpu)
        if us >= max(SUSPECT_US, SUSPECT_FACTOR * light_us):
            found.append(Suspect(plan, step, kernel, us))
    return sorted(found, key=lambda suspect: -suspect.us)


def _compare(
    compilation: Compilation, suspects: Sequence[Suspect], time_both: TimePairs
) -> list[str]:
    """Why each kernel is left to XLA; the empty string: it is faster, or one of the two cannot be timed."""
    pairs = [_write_pair(compilation, suspect) for suspect in suspects]
    batches = iter(time_both([pair for pair in pairs if pair]) if any(pairs) else ())
    return [_judge(next(batches)) if pair else "" for pair in pairs]


def _write_pair(compilation: Compilation, suspect: Suspect) -> tuple[Alone, Alone] | None:
    """XLA's version and the kernel; None where HLO has no form of an op by itself."""
    try:
        theirs = write_rival(compilation.scopes.graph, suspect.plan.scope)
        return theirs, write_call(compilation, suspect)
    except AstitchError:
        return None


def _judge(batches: Sequence[tuple[float, float]]) -> str:
    """Why a kernel is left to XLA, by batches of both; the empty string: it is not."""
    won = [both for both in batches if both[0] < min(MARGIN * both[1], both[1] - LEAST_GAIN_US)]
    if len(won) < max(LEAST_WON, len(batches) - 1):
        return ""
    theirs, ours = (statistics.median(times) for times in zip(*won, strict=True))
    return f"measured: it takes {ours:.0f} us, and XLA's own kernels {theirs:.0f} us"


def write_rival(graph: Graph, scope: Scope) -> Alone:
    """A stitch op's ops as XLA gets them: what the scope reads are the parameters, its outputs the results."""
    members = set(scope.members)
    embedded = {o for name in members for o in graph[name].operands if is_embedded(graph, o)}
    made_of = {name for value in embedded for name in find_ancestors(graph, value)}
    made = export_nodes(graph, members | embedded | made_of, scope.outputs)
    parameters, results = (
        tuple(graph[name].array for name in names) for names in (made.operands, made.results)
    )
    return Alone(made.hlo, parameters, results)


def write_call(compilation: Compilation, suspect: Suspect) -> Alone:
    """The kernel alone.  No result takes over an argument's memory: XLA would copy it first.  What it writes into a
    slice is an array of its own."""
    program, step = compilation.program, suspect.step
    views = [
        (number in step.written, replace(view, behind=""))
        for number, view in enumerate(step.arguments)
        if program.buffers[view.buffer].space is not Space.BARRIER
    ]
    read = tuple({view.buffer: view for is_written, view in views if not is_written}.values())
    written = tuple(view for is_written, view in views if is_written)
    arguments = tuple(replace(view, behind="") for view in step.arguments)
    alone = replace(
        program,
        parameters=read,
        constants=(),
        steps=(replace(step, arguments=arguments),),
        outputs=written,
    )
    apart = replace(compilation, program=alone)
    kernels: Kernels = {suspect.kernel.name: replace(suspect.kernel, in_place=())}
    if suspect.kernel.slices:
        kernels = prepare_kernels(apart, compilation.gpu)  # the text was compiled with the plan
    hlo = export_program(apart, kernels)
    return Alone(hlo, tuple(view.type for view in read), tuple(view.type for view in written))
