"""A Compilation -> the rows of astitch's side: each kernel with its plan, its projection and its speed of light.

Takes what the compiler made, hands on values of the Report.  Nothing is run.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astitch.cost.product_bounds import bound_product, count_product_flops, measure_product
from astitch.cost.projected_latency import Projection, project
from astitch.cost.speed_of_light import Work, measure_work
from astitch.device.gpu import Gpu
from astitch.graph.ir import Graph, Node
from astitch.graph.ops import OPS
from astitch.hlo_import import read_part
from astitch.kernel import kernel_ir as k
from astitch.kernel.visit_statements import list_statements
from astitch.loops.analysis import loop_key
from astitch.loops.emit import LoopKernel
from astitch.mapping.stitch_scheme import Scheme
from astitch.profiling.layers import count_layers
from astitch.profiling.report import (
    MEMORY,
    PRODUCT,
    Event,
    Group,
    Kernel,
    Refusal,
    Side,
    Step,
    Stitch,
    Value,
)
from astitch.profiling.wording import format_ops, shorten_path
from astitch.program.steps import (
    CudaKernel,
    FallbackStep,
    KernelStep,
    LibraryStep,
    Program,
    ReferenceStep,
    Space,
    View,
)
from astitch.program.steps import Step as ProgramStep
from astitch.search.plan import Plan
from astitch.show.compilation import Compilation
from astitch.show.share import measure_part
from astitch.stitch_scope import Refusal as ScopeRefusal
from astitch.toolchain.nvrtc import Resources
from astitch.xla.stitch_loops import find_loops

MOST_MEMBERS = 200
"""Ops of a group that are listed."""


@dataclass(frozen=True, slots=True)
class DescribedProgram:
    """kernels: in launch order, products and loops that are kernels among them.  steps: of the program."""

    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    planned_bytes: int


def describe_program(
    compilation: Compilation, resources: Mapping[str, Resources] | None
) -> DescribedProgram:
    """Every step of the compiled program.  resources: by the CUDA compiler, None where it is not installed."""
    plans = {plan.kernel.name: plan for plan in compilation.plans}
    graph = compilation.scopes.graph
    loops = find_loop_steps(compilation)
    kernels: list[Kernel] = []
    for number, step in enumerate(compilation.program.steps):
        match step:
            case KernelStep(kernel=kernel):
                known = resources.get(kernel.name) if resources else None
                kernels.append(describe_kernel(plans[kernel.name], kernel, compilation.gpu, known))
            case LibraryStep(node=node):
                kernels.append(describe_product(graph, node, compilation.gpu))
            case _:
                found = loops.get(number, ())
                kernels += [describe_loop(loop, compilation.gpu) for loop in found]
    steps = tuple(describe_steps(compilation, loops))
    return DescribedProgram(tuple(kernels), steps, plan_bytes(compilation.program))


def find_loop_steps(compilation: Compilation) -> dict[int, tuple[LoopKernel, ...]]:
    """The loops that are one kernel each, by the number of the step in which XLA would run them."""
    taken: dict[int, list[LoopKernel]] = {}
    known: dict[Any, LoopKernel] | None = None
    for number, step in enumerate(compilation.program.steps):
        if not isinstance(step, FallbackStep):
            continue
        left = {op.name for op in step.ops}
        graph = read_part(step.hlo)
        for node in graph:
            if OPS[node.op].is_loop and node.name not in left and graph.users[node.name]:
                if known is None:
                    known = find_loops(compilation)[0]
                if loop := known.get(loop_key(graph, node)):
                    taken.setdefault(number, []).append(loop)
    return {number: tuple(loops) for number, loops in taken.items()}


def plan_bytes(program: Program) -> int:
    """Device memory of arguments, constants, results and the arena."""
    shared = (Space.ARENA, Space.BARRIER)
    own = sum(b.type.bytes for b in program.buffers.values() if b.space not in shared)
    return own + program.arena_bytes


def describe_kernel(
    plan: Plan, kernel: CudaKernel, gpu: Gpu, resources: Resources | None
) -> Kernel:
    """One stitched kernel."""
    graph = plan.arrangement.graph
    work = measure_work(graph, plan.scope.members)
    projection = project(plan.kernel, gpu, resources, plan.work)
    resident = min(projection.blocks_per_sm, -(-kernel.grid // gpu.sms))
    busy = kernel.grid / (-(-kernel.grid // gpu.sms) * gpu.sms)
    return Kernel(
        name=kernel.name,
        kind=MEMORY,
        launches=1.0,
        projected_us=projection.time_us,
        bound_us=work.bound_us(gpu),
        limit=find_limit(projection),
        read_bytes=work.read_bytes,
        written_bytes=work.written_bytes,
        flops=work.flops,
        grid=kernel.grid,
        block=kernel.block,
        registers=resources.registers if resources else None,
        shared_bytes=kernel.shared_bytes + (resources.static_shared_bytes if resources else 0),
        spill_bytes=resources.spill_store_bytes + resources.spill_load_bytes if resources else None,
        occupancy=min(resident * kernel.block / gpu.max_threads_per_sm, 1.0),
        sm_efficiency=busy,
        source=tuple(list_sources(graph, plan.scope.members)),
        ours=True,
        stitch=describe_stitch(plan, kernel, projection),
    )


def find_limit(projection: Projection) -> str:
    """What takes most of a kernel's projected time."""
    parts = {"launch": projection.launch_us, "barriers": projection.barriers_us}
    for level in projection.levels:
        name, us = level.busiest
        name, us = ("latency", level.latency_us) if level.latency_us > us else (name, us)
        parts[name] = parts.get(name, 0.0) + us
    return max(parts, key=lambda name: parts[name])


def describe_stitch(plan: Plan, kernel: CudaKernel, projection: Projection) -> Stitch:
    """The decisions behind a kernel."""
    arrangement = plan.arrangement
    graph = arrangement.graph
    counted = Counter(p.scheme for p in arrangement.placements.values())
    groups = []
    for group in arrangement.groups.groups:
        placed = arrangement.placements.get(group.dominant)
        mapping = arrangement.loops[placed.loop].mapping if placed else None
        members = [str(graph[name]) for name in group.members[:MOST_MEMBERS]]
        if len(group.members) > MOST_MEMBERS:
            members.append(f"... {len(group.members) - MOST_MEMBERS} more")
        groups.append(
            Group(group.dominant, group.sub_dominants, tuple(members), str(mapping or "none"))
        )
    values = tuple(
        Value(
            name,
            p.scheme.value,
            p.loop,
            arrangement.loops[p.loop].level,
            str(graph[p.root.name].type),
            p.reason,
        )
        for name, p in arrangement.placements.items()
    )
    decisions = [
        f"schedule: {plan.schedule}",
        *([f"search: {plan.search}"] if plan.search.considered else []),
        f"launch: {plan.launch.reason}",
        *plan.notes,
        *str(projection).splitlines(),
    ]
    return Stitch(
        ops=len(plan.scope.members),
        loops=len(arrangement.loops),
        global_barriers=kernel.global_barriers,
        block_barriers=plan.kernel.block_barriers,
        barrier_us=projection.barriers_us,
        schemes={scheme.value: counted[scheme] for scheme in Scheme if counted[scheme]},
        groups=tuple(groups),
        values=values,
        barriers=tuple(find_barriers(plan.kernel.body)),
        decisions=tuple(line.strip() for line in decisions),
        cuda=kernel.source,
    )


def describe_loop(loop: LoopKernel, gpu: Gpu) -> Kernel:
    """A loop that is one kernel.  What it reads and writes counts once, its products in each turn."""
    plan, kernel = loop.plan, loop.kernel
    types, body = plan.loop.types, plan.loop.body
    flops = plan.loop.trips * sum(count_product_flops(body, node) for node in body)
    work = Work(
        sum(types[i].bytes for i in loop.operands), sum(types[i].bytes for i in loop.results), flops
    )
    resident = min(plan.blocks_per_sm, -(-kernel.grid // gpu.sms))
    compute_us = flops / gpu.fp32_gflops / 1e3  # multiply-adds, not on tensor cores
    return Kernel(
        name=kernel.name,
        kind=MEMORY,
        launches=1.0,
        projected_us=plan.us,
        bound_us=max(work.memory_us(gpu), compute_us) + gpu.launch_us,
        limit="turns",
        read_bytes=work.read_bytes,
        written_bytes=work.written_bytes,
        flops=work.flops,
        grid=kernel.grid,
        block=kernel.block,
        shared_bytes=kernel.shared_bytes,
        occupancy=min(resident * kernel.block / gpu.max_threads_per_sm, 1.0),
        sm_efficiency=kernel.grid / (-(-kernel.grid // gpu.sms) * gpu.sms),
        source=tuple(list_sources(body, (node.name for node in body))),
        ours=True,
        stitch=Stitch(
            ops=len(body.nodes),
            loops=1,
            global_barriers=0,
            block_barriers=0,
            barrier_us=0.0,
            schemes={},
            groups=(),
            values=(),
            barriers=(),
            decisions=(str(plan),),
            cuda=kernel.source,
            turns=plan.loop.trips,
        ),
    )


def find_barriers(body: Iterable[k.Statement]) -> Iterator[str]:
    """Level and reason of the barriers in statements, in order: each one of the grid, so that the nth stands before
    level n; each reason of a block's once."""
    seen: set[str] = set()
    for statement in list_statements(body):
        if isinstance(statement, k.Barrier):
            text = f"{statement.level}: {statement.reason}"
            if text not in seen or statement.level == "global":
                seen.add(text)
                yield text


def describe_product(graph: Graph, node: Node, gpu: Gpu) -> Kernel:
    """A product or convolution that a library computes."""
    work = measure_product(graph, node)
    bound_us, limit = bound_product(work, gpu, graph[node.operands[0]].dtype.value)
    return Kernel(
        name=node.name,
        kind=PRODUCT,
        launches=1.0,
        bound_us=bound_us,
        limit=limit,
        read_bytes=work.read_bytes,
        written_bytes=work.written_bytes,
        flops=work.flops,
        source=tuple(list_sources(graph, [node.name])),
    )


def describe_steps(
    compilation: Compilation, loops: Mapping[int, Sequence[LoopKernel]]
) -> Iterator[Step]:
    """The program as a graph: each step with the earlier steps whose results it reads.  loops: see find_loop_steps."""
    writers: dict[str, int] = {}
    scopes = {plan.kernel.name: plan for plan in compilation.plans}
    for number, step in enumerate(compilation.program.steps):
        reads, writes = split_views(step)
        producers = sorted({writers[v.buffer] for v in reads if v.buffer in writers})
        writers.update((view.buffer, number) for view in writes)
        match step:
            case KernelStep(kernel=kernel):
                plan = scopes[kernel.name]
                label = format_ops(len(plan.scope.members))
                if kernel.global_barriers:
                    plural = "s" if kernel.global_barriers > 1 else ""
                    label += f", {kernel.global_barriers} barrier{plural}"
                yield Step(number, "kernel", kernel.name, label, producers)
            case LibraryStep(node=node):
                yield Step(number, "library", node.name, f"{node.op} {node.type}", producers)
            case FallbackStep():
                found = loops.get(number, ())
                label = f"{format_ops(len(step.ops))} left to XLA" if step.ops else "start values"
                if found and not step.ops:
                    names = ", ".join(dict.fromkeys(loop.kernel.name for loop in found))
                    turns = max(loop.plan.loop.trips for loop in found)
                    yield Step(number, "kernel", names, f"a loop of {turns} turns", producers)
                else:
                    label += "".join(f", {loop.kernel.name}" for loop in found)
                    yield Step(number, "xla", step.name, label, producers)
            case ReferenceStep(node=node):
                yield Step(number, "reference", node.name, node.op, producers)


def split_views(step: ProgramStep) -> tuple[list[View], list[View]]:
    """(what a step reads, what it writes)."""
    if isinstance(step, KernelStep):
        numbered = list(enumerate(step.arguments))
        return [v for i, v in numbered if i not in step.written], [
            v for i, v in numbered if i in step.written
        ]
    return list(step.operands), list(step.results)


def list_sources(graph: Graph, names: Iterable[str]) -> Iterator[str]:
    """Where ops came from in the user's program: "FILE:LINE op_name", each once."""
    seen: set[str] = set()
    for name in names:
        text = describe_source(graph[name])
        if text and text not in seen:
            seen.add(text)
            yield text


def describe_source(node: Node) -> str:
    return f"{shorten_path(node.source)} {node.op_name}".strip()


def describe_refusals(graph: Graph, refusals: Iterable[ScopeRefusal]) -> Iterator[Refusal]:
    """Each with the source lines of its two ops."""
    for refusal in refusals:
        names = dict.fromkeys((refusal.producer, refusal.consumer))
        known = [name for name in names if name in graph.nodes]
        yield Refusal(
            refusal.producer,
            refusal.consumer,
            refusal.reason,
            tuple(list_sources(graph, known)),
        )


def measure_layers(compilation: Compilation) -> dict[str, float]:
    """Of each layer of the model: its part of the stitch ops that it has ops in, were these one kernel.

    That kernel's speed of light is divided among layers as a kernel's time is.
    """
    graph = compilation.scopes.graph
    sources = {
        plan.scope.name: tuple(list_sources(graph, plan.scope.members))
        for plan in compilation.plans
    }
    members = {plan.scope.name: plan.scope.members for plan in compilation.plans}
    inside: dict[str, list[str]] = {}
    for name, places in sources.items():
        for layer in count_layers(places):
            inside.setdefault(layer, []).append(name)
    lights: dict[tuple[str, ...], float] = {}
    found = {}
    for layer, names in inside.items():
        key = tuple(names)
        if key not in lights:
            together = [member for name in names for member in members[name]]
            lights[key] = measure_part(graph, together, compilation.gpu)
        parts = count_layers(place for name in names for place in sources[name])
        found[layer] = lights[key] * parts[layer] / sum(parts.values())
    return found


LINES_AROUND = 2
"""Of a line that a refusal names, before and behind it."""

MOST_EXCERPTS = 100


def read_excerpts(graph: Graph, refusals: Iterable[Refusal]) -> dict[str, tuple[str, ...]]:
    """The lines around those that refusals name, numbered, by "FILE:LINE"; of files that can be read."""
    named = {source.partition(" ")[0] for refusal in refusals for source in refusal.sources}
    places = {shorten_path(node.source): node.source for node in graph if node.source}
    found: dict[str, tuple[str, ...]] = {}
    for place, whole in places.items():
        path, _, line = whole.rpartition(":")
        if place not in named or not line.isdecimal() or len(found) == MOST_EXCERPTS:
            continue
        number = int(line)
        first = max(number - LINES_AROUND, 1)
        lines = linecache.getlines(path)[first - 1 : number + LINES_AROUND]
        if lines and number < first + len(lines):
            wide = len(str(first + len(lines)))
            found[place] = tuple(
                f"{first + i:{wide}} {text.rstrip()}" for i, text in enumerate(lines)
            )
    return found


def find_separations(compilation: Compilation, steps: Sequence[Step]) -> Iterator[Refusal]:
    """Pairs of stitched kernels that one step of a library or of XLA stands between.  steps: of the program."""
    program, graph = compilation.program, compilation.scopes.graph
    for step in steps:
        made = program.steps[step.number]
        if isinstance(made, KernelStep):
            continue
        what = {"library": "a library call", "kernel": "a kernel of its own"}.get(
            step.kind, "XLA's"
        )
        before = [steps[n] for n in step.reads if steps[n].kind == "kernel"]
        after = [s for s in steps if step.number in s.reads and s.kind == "kernel"]
        names = [made.node.name] if isinstance(made, LibraryStep | ReferenceStep) else []
        if isinstance(made, FallbackStep):
            names = [op.name for op in made.ops if op.name in graph.nodes]
        for first in before:
            for second in after:
                reason = f"%{step.name} ({step.label}) runs in between: {what}"
                sources = tuple(list_sources(graph, names[:4]))
                yield Refusal(first.name, second.name, reason, sources)


def lay_out(kernels: Iterable[Kernel]) -> tuple[Event, ...]:
    """One after the other, each as long as its speed of light: the timeline of what was not run."""
    events: list[Event] = []
    now = 0.0
    for kernel in kernels:
        us = kernel.bound_us or 0.0
        events.append(Event(kernel.name, kernel.kind, now, us))
        now += us
    return tuple(events)


def side_of(stitched: DescribedProgram, compile_s: float, notes: Iterable[str] = ()) -> Side:
    """astitch's side where nothing was run."""
    return Side(
        "astitch",
        kernels=stitched.kernels,
        timeline=lay_out(stitched.kernels),
        compile_s=compile_s,
        planned_bytes=stitched.planned_bytes,
        notes=tuple(notes),
    )
