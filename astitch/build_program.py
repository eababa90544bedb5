"""Graph, Scopes and Plans -> Program: the order of the steps and a buffer for every stored value.

A step runs in the stage of its scope or op; intermediates share one arena by liveness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from astitch import kernel_ir as k
from astitch.arena import Lifetime, plan_arena
from astitch.emit_cuda import emit_cuda
from astitch.ir import ArrayType, ConstantAttrs, DType, Graph, Literal, Node, TupleType
from astitch.ops import OPS, Kind
from astitch.plan import Plan
from astitch.program import (
    Buffer,
    CudaKernel,
    KernelStep,
    LibraryStep,
    Program,
    ReferenceStep,
    Space,
    Step,
    View,
)
from astitch.stitch_scope import Scopes
from astitch.storage import storage_name, storage_type


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
        barrier_words=kernel.barrier_words,
    )


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
        self.barriers: dict[str, int] = {}

    def view(self, name: str) -> View:
        """A graph value as an argument of a step."""
        stored = self.stored_view(storage_name(self.graph, name))
        array = self.graph[name].type
        return View(stored.buffer, array) if isinstance(array, ArrayType) else stored

    def stored_view(self, source: str) -> View:
        """The buffer under a storage name, as it is stored."""
        attrs = self.graph[source.partition("#")[0]].attrs
        if isinstance(attrs, ConstantAttrs):
            self.constants[source] = attrs.value
        self.stored[source] = storage_type(self.graph, source)
        return View(source, self.stored[source])

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
                views.append(
                    self.scratch_view(kernel.name, parameter.source, scratch[parameter.source])
                )
            else:
                views.append(self.stored_view(parameter.source))
        written = {i for i, p in enumerate(kernel.parameters) if p.written}
        launched = make_cuda_kernel(kernel)
        if launched.cooperative:
            word = f"{kernel.name}/barrier"
            self.stored[word] = ArrayType(DType.U32, (launched.barrier_words,))
            self.barriers[word] = self.stored[word].bytes
            written.add(len(views))
            views.append(View(word, self.stored[word]))
        self.add_step(KernelStep(launched, tuple(views), frozenset(written)))

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
        stages: dict[str, int] = {}
        for scope in self.scopes.scopes:
            stages.update(dict.fromkeys(scope.members, scope.stage))
        for node in self.graph:
            if node.name not in stages:
                before = max((stages[o] for o in node.operands), default=0)
                projection = OPS[node.op].kind is Kind.PROJECTION
                stages[node.name] = before + (node.name in outside and not projection)
        queue: list[
            tuple[int, int, Callable[[], None]]
        ] = []  # (turn, order within it, what to add)
        for number, scope in enumerate(self.scopes.scopes):
            if scope.name in self.plans:
                plan = self.plans[scope.name]
                queue.append((2 * scope.stage + 1, number, partial(self.add_kernel, plan)))
        for number, node in enumerate(self.graph):
            if node.name in outside and OPS[node.op].kind is not Kind.PROJECTION:
                step = partial(self.add_outside, node, outside[node.name])
                queue.append((2 * stages[node.name], number, step))
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
        offsets, arena_bytes = plan_arena(lifetimes, barriers=self.barriers)
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
            name,
            buffers,
            tuple(parameters),
            tuple(self.constants.items()),
            tuple(self.steps),
            outputs,
            arena_bytes,
        )


def build_program(graph: Graph, scopes: Scopes, plans: Sequence[Plan]) -> Program:
    """The program that computes the graph's outputs with one kernel for each plan."""
    return _ProgramBuilder(graph, scopes, plans).build(graph.name)
