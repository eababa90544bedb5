"""Graph, Scopes and Plans -> Program: the order of the steps and a buffer for every stored value.

A step runs in the stage of its scope or op; ops that nothing else computes and that follow each other are one fallback
of XLA's.  Intermediates share one arena by liveness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import networkx as nx

from astitch.cost.call_times import project_call
from astitch.device.gpu import Gpu
from astitch.emit_cuda import emit_cuda
from astitch.faults import FaultLog
from astitch.graph.collectives import communicates
from astitch.graph.dimensions import is_embedded
from astitch.graph.edit import is_pure
from astitch.graph.ir import (
    ArrayType,
    ConstantAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    Literal,
    Node,
    ParameterAttrs,
    TupleType,
)
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import storage_name, storage_type, stored_value
from astitch.hlo.export import export_nodes
from astitch.kernel import kernel_ir as k
from astitch.library.epilogues import find_epilogues
from astitch.program.arena import Lifetime, plan_arena
from astitch.program.steps import (
    Buffer,
    CudaKernel,
    Epilogue,
    FallbackStep,
    KernelStep,
    LibraryStep,
    OutsideOp,
    Program,
    ReferenceStep,
    Space,
    Step,
    View,
)
from astitch.rewrite.barriers import close_barriers, find_behind
from astitch.search.plan import Plan
from astitch.stitch_scope import Scope, Scopes, count_stage

NOT_EMITTED = "an error inside astitch while its kernel was emitted"

EMBEDDED_BYTES = 1024
"""A constant of at most so many bytes is part of the fallback that reads it, where XLA can reckon with its value."""


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


def emit_kernels(plans: Iterable[Plan], faults: FaultLog) -> dict[str, CudaKernel]:
    """The kernels of plans by the names of their scopes, without those that a fault keeps from being emitted."""
    emitted: dict[str, CudaKernel] = {}
    for plan in plans:
        kernel = faults.attempt(
            partial(make_cuda_kernel, plan.kernel),
            lambda: None,
            stage="emit",
            subject=str(plan.scope),
            cost="its ops are left to XLA",
        )
        if kernel is not None:
            emitted[plan.scope.name] = kernel
    return emitted


class _ProgramBuilder:
    """Orders the steps and gives every stored value a buffer."""

    def __init__(
        self,
        graph: Graph,
        scopes: Scopes,
        plans: Sequence[Plan],
        *,
        fallbacks: bool,
        epilogues: bool,
        left: Mapping[str, str],
        kernels: Mapping[str, CudaKernel],
        stays: Callable[[Scope], bool] = lambda scope: False,
        gpu: Gpu | None = None,
    ) -> None:
        self.gpu = gpu
        self.graph, self.scopes, self.fallbacks = graph, scopes, fallbacks
        self.communicates = any(map(communicates, graph))
        self.wants_epilogues, self.stays = epilogues, stays
        self.left, self.kernels = left, kernels
        self.epilogues: tuple[Epilogue, ...] = ()
        self.no_epilogues: tuple[str, ...] = ()
        self.outside = {refusal.producer: refusal.reason for refusal in scopes.outside}
        self.reasons = dict(self.outside)  # those of stitch ops without a kernel join them
        # Of the stitch ops that join the next fallback: their ops, and what they compute for themselves alone.
        self.joining: set[str] = set()
        self.repeated: set[str] = set()
        self.behind = find_behind(scopes.barriers)
        self.barrier_stages = {barrier.name: barrier.stage for barrier in scopes.barriers}
        self.plans = {plan.scope.name: plan for plan in plans}
        self.stored: dict[str, ArrayType] = {}
        self.constants: dict[str, Literal] = {}
        self.steps: list[Step] = []
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.barriers: dict[str, int] = {}
        self.fallback_count = 0

    def view(self, name: str, behind: str = "") -> View:
        """A graph value as an argument of a step."""
        stored = self.stored_view(storage_name(self.graph, name), behind)
        array = self.graph[name].type
        return View(stored.buffer, array, behind) if isinstance(array, ArrayType) else stored

    def stored_view(self, source: str, behind: str = "") -> View:
        """The buffer under a storage name, as it is stored."""
        attrs = self.graph[source.partition("#")[0]].attrs
        if isinstance(attrs, ConstantAttrs):
            self.constants[source] = attrs.value
        self.stored[source] = storage_type(self.graph, source)
        return View(source, self.stored[source], behind)

    def find_barriers(self, readers: Iterable[str]) -> dict[str, str]:
        """The last barrier behind which one of the readers reads a buffer, by buffer."""
        found: dict[str, str] = {}
        for name in readers:
            for operand in self.graph[name].operands:
                if barrier := self.barrier_before(name, operand):
                    source = storage_name(self.graph, operand)
                    known = found.get(source, barrier)
                    found[source] = max(known, barrier, key=self.barrier_stages.__getitem__)
        return found

    def barrier_before(self, reader: str, operand: str) -> str:
        """The last barrier between an op and the buffer that it reads; empty where there is none."""
        while not (barrier := self.behind.get((reader, operand), "")):
            if not OPS[self.graph[operand].op].is_view:
                return ""
            reader, operand = operand, self.graph[operand].operands[0]
        return barrier

    def leave(self, scope: Scope, reason: str) -> list[Node]:
        """The ops of a stitch op that has no kernel, after the repeated constants and iotas that it reads."""
        wanted = set(scope.members)
        pending = list(scope.members)
        while pending:
            for operand in self.graph[pending.pop()].operands:
                if operand not in wanted and is_embedded(self.graph, operand):
                    wanted.add(operand)
                    pending.append(operand)
        self.joining.update(scope.members)
        self.repeated |= wanted - self.joining - self.outside.keys()
        nodes = [
            node
            for node in self.graph
            if node.name in wanted and OPS[node.op].kind is not Kind.PROJECTION
        ]
        self.reasons.update((node.name, reason) for node in nodes if node.name not in self.reasons)
        return [node for node in nodes if not isinstance(node.attrs, ConstantAttrs)]

    def add_kernel(self, plan: Plan, launched: CudaKernel) -> None:
        kernel = plan.kernel
        behind = self.find_barriers(plan.scope.members)
        views = [
            self.stored_view(p.source, "" if p.written else behind.get(p.source, ""))
            for p in kernel.arguments
        ]
        written = {i for i, p in enumerate(kernel.arguments) if p.written}
        if kernel.scratch:
            scratch = f"{kernel.name}/scratch"
            self.stored[scratch] = ArrayType(DType.U8, (kernel.scratch_bytes,))
            written.add(len(views))
            views.append(View(scratch, self.stored[scratch]))
        if launched.cooperative:
            word = f"{kernel.name}/barrier"
            self.stored[word] = ArrayType(DType.U32, (launched.barrier_words,))
            self.barriers[word] = self.stored[word].bytes
            written.add(len(views))
            views.append(View(word, self.stored[word]))
        self.add_step(KernelStep(launched, tuple(views), frozenset(written)))

    def add_library_call(self, node: Node) -> None:
        self.add_step(LibraryStep(node, *self.views_of(node), self.project_ns(node, self.graph)))

    def project_ns(self, node: Node, graph: Graph) -> int:
        """What XLA's scheduler is told of a call, where there is communication to hide behind it; 0: nothing.

        graph: in which the node stands.
        """
        if self.gpu is None or not self.communicates:
            return 0
        types = [graph[o].type for o in node.operands]
        arrays = [type_ for type_ in types if isinstance(type_, ArrayType)]
        return round(project_call(node, arrays, self.gpu) * 1e3)

    def add_others(self, nodes: Sequence[Node]) -> None:
        """Ops that follow each other and that nothing of ours computes."""
        nodes = list({node.name: node for node in nodes}.values())  # stitch ops share some
        if self.fallbacks and nodes:
            for part in self.split(nodes):
                self.add_fallback(part)
            self.joining.clear()
            self.repeated.clear()
            return
        for node in nodes:
            if storage_name(self.graph, node.name) == node.name or node.name in self.outside:
                operands, results = self.views_of(node)
                self.add_step(ReferenceStep(node, operands, results, self.reasons[node.name]))

    def split(self, nodes: Sequence[Node]) -> list[Sequence[Node]]:
        """The ops of one fallback, or of several where devices exchange data.

        What waits for a fallback waits for all of it: beside a collective, an op that does not read it would be late.
        """
        if not self.communicates:
            return [nodes]
        order = {node.name: number for number, node in enumerate(nodes)}
        network = nx.Graph()
        network.add_nodes_from(order)
        for node in nodes:
            for operand in node.operands:
                made = operand
                while self.is_view(made) or OPS[self.graph[made].op].kind is Kind.PROJECTION:
                    made = self.graph[made].operands[0]
                if made in order:
                    network.add_edge(node.name, made)
        parts = [sorted(order[name] for name in part) for part in nx.connected_components(network)]
        return [[nodes[number] for number in part] for part in sorted(parts)]

    def reads_any(self, reader: Plan | Node, nodes: Sequence[Node]) -> bool:
        """Does a kernel or library call read a result of one of the nodes?"""
        if isinstance(reader, Node):
            sources = [storage_name(self.graph, o) for o in reader.operands]
        else:
            sources = [parameter.source for parameter in reader.kernel.parameters]
        made = {node.name for node in nodes}
        return any(source.partition("#")[0] in made for source in sources)

    def views_of(self, node: Node) -> tuple[tuple[View, ...], tuple[View, ...]]:
        """The operands and the results of a node that is a step of its own."""
        operands = tuple(self.view(o, self.barrier_before(node.name, o)) for o in node.operands)
        if isinstance(node.type, TupleType):
            results = tuple(View(f"{node.name}#{i}", t) for i, t in enumerate(node.type.elements))
        else:
            results = (View(node.name, node.type),)
        for result in results:
            self.stored[result.buffer] = result.type
        return operands, results

    def add_fallback(self, nodes: Sequence[Node]) -> None:
        members = self.close_fallback(nodes)
        # One value for each buffer that somebody else reads.
        results: dict[str, str] = {}
        outputs = {*self.graph.outputs, *(stored_value(self.graph, o) for o in self.graph.outputs)}
        for node in self.graph:
            if node.name not in members or isinstance(node.type, TupleType):
                continue
            if node.name in self.repeated and node.name not in self.joining:
                continue
            users = self.graph.users[node.name]
            if node.name in outputs or any(user not in members for user in users):
                repeated = self.repeats(node) and node.name not in outputs
                stored = storage_name(self.graph, node.name)
                elsewhere = stored.partition("#")[0] not in members
                if not isinstance(node.attrs, ConstantAttrs) and not repeated and not elsewhere:
                    results.setdefault(stored, node.name)
        if not results and all(map(is_pure, nodes)):
            return
        closed = close_barriers(self.graph, members, self.scopes.barriers)
        inner = members | (closed.nodes.keys() - self.graph.nodes.keys())
        part = export_nodes(
            closed, inner, tuple(results.values()), lambda node: self.project_ns(node, closed)
        )
        behind = self.find_barriers(members)
        self.fallback_count += 1
        self.add_step(
            FallbackStep(
                f"island_{self.fallback_count}",
                part.hlo,
                tuple(
                    self.view(name, behind.get(storage_name(self.graph, name), ""))
                    for name in part.operands
                ),
                tuple(self.view(name) for name in part.results),
                tuple(self.describe(node) for node in nodes),
            )
        )

    def describe(self, node: Node) -> OutsideOp:
        """What is said of an op that nothing of ours computes."""
        reason, product = self.reasons[node.name], self.scopes.products.get(node.name, "")
        return OutsideOp(node.name, node.opcode, reason, product)

    def close_fallback(self, nodes: Sequence[Node]) -> set[str]:
        """The names of the nodes, of the views through which they read each other, and of small constants."""
        members = {node.name for node in nodes}
        members |= {
            n.name
            for n in self.graph
            if isinstance(n.attrs, GetTupleElementAttrs) and n.operands[0] in members
        }
        for operand in dict.fromkeys(o for node in nodes for o in node.operands):
            chain = [operand]
            while self.is_view(chain[-1]) and chain[-1] not in members:
                chain.append(self.graph[chain[-1]].operands[0])
            attrs = self.graph[chain[-1]].attrs
            small = isinstance(attrs, ConstantAttrs) and len(attrs.value.data) <= EMBEDDED_BYTES
            if small or chain[-1] in members:
                members.update(chain)
        return members

    def is_view(self, name: str) -> bool:
        """Is it a part of whatever fallback reads it: a reshape, or a number repeated?"""
        return OPS[self.graph[name].op].is_view or self.repeats(self.graph[name])

    def repeats(self, node: Node) -> bool:
        """Is it a number repeated that no kernel writes?  Each fallback that reads it has its own."""
        outside = OPS[node.op].is_broadcast and node.name in self.outside
        return outside and node.name in self.graph.embedded

    def add_step(self, step: Step) -> None:
        number = len(self.steps)
        self.steps.append(step)
        views = step.arguments if isinstance(step, KernelStep) else (*step.operands, *step.results)
        for view in views:
            self.first.setdefault(view.buffer, number)
            self.last[view.buffer] = number

    def build(self, name: str) -> Program:
        stages: dict[str, int] = {}
        for scope in self.scopes.scopes:
            stages.update(dict.fromkeys(scope.members, scope.stage))
        for node in self.graph:
            if node.name not in stages:
                projection = OPS[node.op].kind is Kind.PROJECTION
                outside = () if projection else self.outside
                counted = count_stage(node, stages, outside, self.scopes.products)
                held = (self.barrier_before(node.name, o) for o in node.operands)
                waited = max((self.barrier_stages[b] for b in held if b), default=0)
                stages[node.name] = max(counted, waited + (node.name in outside))
        queue: list[tuple[int, int, Plan | Scope | Node]] = []  # (turn, order within, what to add)
        turns = self.find_turns(stages)
        for number, scope in enumerate(self.scopes.scopes):
            if scope.name in self.plans:
                queue.append((turns[scope.members[0]], number, self.plans[scope.name]))
            elif scope.name in self.left:
                queue.append((turns[scope.members[0]], number, scope))
        for number, node in enumerate(self.graph):
            if node.name in self.outside and OPS[node.op].kind is not Kind.PROJECTION:
                # Library calls first, so that the rest is together.  Of one turn only these and what they take in
                # depend on each other.
                library = OPS[node.op].kind is Kind.COMPUTE or node.name in self.scopes.products
                order = number - len(self.graph) if library else number
                queue.append((turns[node.name], order, node))
        others: list[Node] = []
        for _, _, item in sorted(queue, key=lambda q: q[:2]):
            if isinstance(item, Node) and OPS[item.op].kind is not Kind.COMPUTE:
                others.append(item)
                continue
            if isinstance(item, Scope):
                others += self.leave(item, self.left[item.name])
                continue
            # What does not wait for them goes first, so that more of them come together.
            if others and self.reads_any(item, others):
                self.add_others(others)
                others = []
            if isinstance(item, Node):
                self.add_library_call(item)
            else:
                self.add_kernel(item, self.kernels[item.scope.name])
        self.add_others(others)
        if self.wants_epilogues:
            self.find_epilogues()
        outputs = tuple(self.view(o) for o in self.graph.outputs)
        return self.assemble(name, outputs)

    def find_turns(self, stages: Mapping[str, int]) -> dict[str, int]:
        """When each op of a stitch op and each outside op runs: by its stage, or as the scopes say.

        Scopes.turns names the steps that store a value.  An op that XLA computes with its readers runs with the first.
        """
        named = self.scopes.turns
        turns: dict[str, int] = {}
        for scope in self.scopes.scopes:
            turn = self.find_named_turn(scope.name, 2 * scope.stage + 1)
            turns |= dict.fromkeys(scope.members, turn)
        for node in reversed(list(self.graph)):
            if node.name in self.outside:
                users = self.graph.users[node.name] if named else ()
                readers = (turns[user] for user in users if user in turns)
                with_first = min(readers, default=2 * stages[node.name])
                turns[node.name] = named.get(node.name, with_first)
        return turns

    def find_named_turn(self, scope: str, otherwise: int) -> int:
        """When a stitch op runs, where Scopes.turns says so; a part of one when that would."""
        while scope and scope not in self.scopes.turns:
            scope = scope.rpartition("_")[0]
        return self.scopes.turns.get(scope, otherwise)

    def build_whole(self, name: str, reason: str) -> Program:
        """The program in which nothing of ours computes anything."""
        nodes = [n for n in self.graph if OPS[n.op].kind is not Kind.PROJECTION]
        nodes = [n for n in nodes if not isinstance(n.attrs, ParameterAttrs | ConstantAttrs)]
        self.reasons.update((node.name, reason) for node in nodes)
        self.add_others(nodes)
        return self.assemble(name, tuple(self.view(o) for o in self.graph.outputs))

    def find_epilogues(self) -> None:
        """Notes them, and keeps the operands of their products until the kernel, which may multiply."""
        scopes = {plan.kernel.name: plan.scope for plan in self.plans.values()}
        self.epilogues, self.no_epilogues = find_epilogues(
            self.graph, scopes, self.steps, self.stays
        )
        kernels = {
            step.kernel.name: number
            for number, step in enumerate(self.steps)
            if isinstance(step, KernelStep)
        }
        until = {epilogue.product: kernels[epilogue.kernel] for epilogue in self.epilogues}
        for step in self.steps:
            if isinstance(step, LibraryStep) and step.node.name in until:
                for view in step.operands:
                    self.last[view.buffer] = max(self.last[view.buffer], until[step.node.name])

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
            epilogues=self.epilogues,
            no_epilogues=self.no_epilogues,
        )


def build_program(
    graph: Graph,
    scopes: Scopes,
    plans: Sequence[Plan],
    *,
    fallbacks: bool = False,
    epilogues: bool = True,
    left: Mapping[str, str] = MappingProxyType({}),
    kernels: Mapping[str, CudaKernel] | None = None,
    stays: Callable[[Scope], bool] = lambda scope: False,
    gpu: Gpu | None = None,
) -> Program:
    """The program that computes the graph's outputs with one kernel for each plan.

    fallbacks: leave what no kernel and no library computes to XLA; else to the reference interpreter.
    epilogues: name the kernels that a product's library could compute.  left: scopes whose ops XLA (or the
    reference) computes in place of a kernel, by name, each with the reason.  kernels: those of the plans, by scope, if
    they are emitted already; a plan without one is left.  stays: is a kernel to stay one that a product could take in?
    gpu: for which the calls of a program that communicates tell their times.
    """
    if kernels is None:
        kernels = emit_kernels(plans, FaultLog())
    lost = {p.scope.name: NOT_EMITTED for p in plans if p.scope.name not in kernels}
    builder = _ProgramBuilder(
        graph,
        scopes,
        [plan for plan in plans if plan.scope.name not in lost],
        fallbacks=fallbacks,
        epilogues=epilogues,
        left={**left, **lost},
        kernels=kernels,
        stays=stays,
        gpu=gpu,
    )
    return builder.build(graph.name)


def leave_program(graph: Graph, reason: str, *, fallbacks: bool = False) -> Program:
    """The program of a graph in which XLA, or without fallbacks the reference interpreter, computes all."""
    scopes = Scopes(graph, (), (), ())
    builder = _ProgramBuilder(
        graph, scopes, (), fallbacks=fallbacks, epilogues=False, left={}, kernels={}
    )
    return builder.build_whole(graph.name, reason)
