"""The whole compiler, stage by stage: HLO -> Graph -> Scopes -> Plans -> CUDA text -> Program.

`python -m astitch.compile FILE` compiles a dump without running it and prints what became of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from astitch import kernel_ir as k
from astitch.arena import Lifetime, plan_arena
from astitch.check import check_graph
from astitch.emit_cuda import emit_cuda
from astitch.errors import AstitchError
from astitch.gpu import PRESETS, Gpu, preset
from astitch.hlo_import import import_hlo
from astitch.ir import ArrayType, ConstantAttrs, DType, Graph, Literal, Node, ParameterAttrs, TupleType
from astitch.lower import storage_name, storage_type
from astitch.ops import OPS, Kind
from astitch.plan import Plan, plan_scope
from astitch.program import Buffer, CudaKernel, KernelStep, LibraryStep, Program, ReferenceStep, Space, Step, View
from astitch.remote_stitch import stitch_remotely
from astitch.simplify import simplify
from astitch.stitch_scheme import Scheme
from astitch.stitch_scope import Refusal, Scopes, find_scopes, is_memory_op

STAGES = ("import_hlo", "simplify", "find_scopes", "stitch_remotely", "plan", "emit_cuda", "program")
"""The stages in order; each takes what the one before returned."""


@dataclass(frozen=True)
class Compilation:
    """Everything a compilation produced.  seconds: time of each stage."""

    gpu: Gpu
    graph: Graph
    scopes: Scopes
    plans: tuple[Plan, ...]
    program: Program
    seconds: dict[str, float]

    def explain(self) -> str:
        """Kernels, schemes, barriers and everything that was refused, for people."""
        return "\n".join([kernel_table(self), "", *explain_steps(self)])


@dataclass(frozen=True)
class Emitted:
    """A plan and its text."""

    plan: Plan
    kernel: CudaKernel


def make_cuda_kernel(kernel: k.Kernel) -> CudaKernel:
    """The launchable form of a Kernel."""
    return CudaKernel(
        name=kernel.name,
        source=emit_cuda(kernel),
        grid=kernel.grid,
        block=kernel.block,
        shared_bytes=kernel.shared_bytes,
        global_barriers=kernel.global_barriers,
        blocks_per_sm=kernel.blocks_per_sm,
        pointer_table=kernel.pointer_table,
        reads_bytes=kernel.reads_bytes,
        writes_bytes=kernel.writes_bytes,
    )


def is_alias(graph: Graph, name: str) -> bool:
    """A node without a buffer of its own: a reshape or a projection."""
    return storage_name(graph, name) != name


class _ProgramBuilder:
    """Orders the steps and gives every stored value a buffer."""

    def __init__(self, graph: Graph, scopes: Scopes, plans: Sequence[Plan]):
        self.graph, self.scopes = graph, scopes
        self.plans = {plan.scope.name: plan for plan in plans}
        self.stored: dict[str, ArrayType] = {}
        self.constants: dict[str, Literal] = {}
        self.steps: list[Step] = []
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.barriers: list[str] = []

    def view(self, name: str) -> View:
        """A graph value as an argument of a step."""
        source = storage_name(self.graph, name)
        node = self.graph[source.partition("#")[0]]
        if isinstance(node.attrs, ConstantAttrs):
            self.constants[source] = node.attrs.value
        array = self.graph[name].type
        self.stored[source] = storage_type(self.graph, source)
        return View(source, array if isinstance(array, ArrayType) else self.stored[source])

    def scratch_view(self, kernel: str, source: str, array: ArrayType) -> View:
        name = f"{kernel}/{source}"
        self.stored[name] = array
        return View(name, array)

    def add_kernel(self, plan: Plan) -> None:
        kernel = plan.kernel
        scratch = {s.source: s.type for s in kernel.scratch}
        views = []
        for parameter in kernel.parameters:
            if parameter.source in scratch:
                views.append(self.scratch_view(kernel.name, parameter.source, scratch[parameter.source]))
            else:
                array = storage_type(self.graph, parameter.source)
                node = self.graph[parameter.source.partition("#")[0]]
                if isinstance(node.attrs, ConstantAttrs):
                    self.constants[parameter.source] = node.attrs.value
                self.stored[parameter.source] = array
                views.append(View(parameter.source, array))
        written = {i for i, p in enumerate(kernel.parameters) if p.written}
        if kernel.global_barriers:
            word = f"{kernel.name}/barrier"
            self.barriers.append(word)
            self.stored[word] = ArrayType(DType.U32, (1,))
            written.add(len(views))
            views.append(View(word, self.stored[word]))
        self.add_step(KernelStep(make_cuda_kernel(kernel), tuple(views), frozenset(written)))

    def add_outside(self, node: Node, reason: str) -> None:
        operands = tuple(self.view(o) for o in node.operands)
        if isinstance(node.type, TupleType):
            results = tuple(View(f"{node.name}#{i}", t) for i, t in enumerate(node.type.elements))
        else:
            results = (View(node.name, node.type),)
        for result in results:
            self.stored[result.buffer] = result.type
        if OPS[node.op].kind is Kind.COMPUTE:
            self.add_step(LibraryStep(node, operands, results))
        else:
            self.add_step(ReferenceStep(node, operands, results, reason))

    def add_step(self, step: Step) -> None:
        number = len(self.steps)
        self.steps.append(step)
        views = step.arguments if isinstance(step, KernelStep) else (*step.operands, *step.results)
        for view in views:
            self.first.setdefault(view.buffer, number)
            self.last[view.buffer] = number

    def build(self, name: str) -> Program:
        outside = {refusal.producer: refusal.reason for refusal in self.scopes.outside}
        stage_of_scope = sorted(self.scopes.scopes, key=lambda s: s.stage)
        stages: dict[str, int] = {}
        for scope in self.scopes.scopes:
            stages.update(dict.fromkeys(scope.members, scope.stage))
        for node in self.graph:
            if node.name not in stages:
                before = max((stages[o] for o in node.operands), default=0)
                projection = OPS[node.op].kind is Kind.PROJECTION
                stages[node.name] = before + (node.name in outside and not projection)
        queue: list[tuple[int, int, Callable[[], None]]] = []
        for number, scope in enumerate(stage_of_scope):
            plan = self.plans.get(scope.name)
            if plan is not None:
                queue.append((2 * scope.stage + 1, number, lambda p=plan: self.add_kernel(p)))  # type: ignore[misc]
        for number, node in enumerate(self.graph):
            if node.name in outside and OPS[node.op].kind is not Kind.PROJECTION:
                reason = outside[node.name]
                queue.append((2 * stages[node.name], number, lambda n=node, r=reason: self.add_outside(n, r)))  # type: ignore[misc]
        for _, _, add in sorted(queue, key=lambda q: q[:2]):
            add()
        outputs = tuple(self.view(o) for o in self.graph.outputs)
        return self.assemble(name, outputs)

    def assemble(self, name: str, outputs: tuple[View, ...]) -> Program:
        parameters = []
        for parameter in self.graph.parameters:
            self.stored[parameter] = self.graph[parameter].array
            parameters.append(View(parameter, self.graph[parameter].array))
        numbers = {parameter: i for i, parameter in enumerate(self.graph.parameters)}
        constants = {source: i for i, source in enumerate(self.constants)}
        results: dict[str, int] = {}
        for view in outputs:
            if view.buffer not in numbers and view.buffer not in constants:
                results.setdefault(view.buffer, len(results))
        lifetimes = [
            Lifetime(source, array.bytes, self.first[source], self.last[source])
            for source, array in self.stored.items()
            if source not in numbers
            and source not in constants
            and source not in results
            and source not in self.barriers
            and source in self.first
        ]
        offsets, arena_bytes = plan_arena(lifetimes, barrier_words=self.barriers)
        buffers: dict[str, Buffer] = {}
        for source, array in self.stored.items():
            if source in numbers:
                buffers[source] = Buffer(source, array, Space.PARAMETER, numbers[source])
            elif source in constants:
                buffers[source] = Buffer(source, array, Space.CONSTANT, constants[source])
            elif source in results:
                buffers[source] = Buffer(source, array, Space.OUTPUT, results[source])
            elif source in offsets:
                space = Space.BARRIER if source in self.barriers else Space.ARENA
                buffers[source] = Buffer(source, array, space, 0, offsets[source])
        return Program(
            name, buffers, tuple(parameters), tuple(self.constants.items()), tuple(self.steps), outputs, arena_bytes
        )


def _shape_of(node: Node) -> str:
    return str(node.type)


def compile_graph(graph: Graph, gpu: Gpu, seconds: dict[str, float] | None = None) -> Compilation:
    """Compile an imported Graph for a device."""
    seconds = {} if seconds is None else seconds

    def timed(name: str, start: float) -> None:
        seconds[name] = time.perf_counter() - start

    start = time.perf_counter()
    simple = check_graph(simplify(check_graph(graph)))
    timed("simplify", start)
    start = time.perf_counter()
    scopes = stitch_remotely(find_scopes(simple))
    timed("find_scopes", start)
    start = time.perf_counter()
    plans = tuple(plan for scope in scopes.scopes if (plan := plan_scope(simple, scope, gpu)) is not None)
    timed("plan", start)
    start = time.perf_counter()
    program = _ProgramBuilder(simple, scopes, plans).build(graph.name)
    timed("program", start)
    return Compilation(gpu, simple, scopes, plans, program, seconds)


def compile_hlo(data: bytes | str, *, gpu: str | Gpu = "host") -> Compilation:
    """Compile a serialized HloModuleProto or HLO text for a device or preset.

    Raises MalformedHlo, UnsupportedOp, UnsupportedType or DynamicShape for a module that cannot be read.
    """
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    graph = import_hlo(data)
    seconds["import_hlo"] = time.perf_counter() - start
    return compile_graph(graph, preset(gpu) if isinstance(gpu, str) else gpu, seconds)
