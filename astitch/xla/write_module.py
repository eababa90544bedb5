"""Compilation and kernels -> the HLO module: each kernel is a custom call, and XLA does everything else.

XLA launches the kernels by itself, so nothing of astitch runs while the program does: no Python, no buffers, no
streams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from astitch.cost.projected_latency import project
from astitch.errors import IllegalProduct
from astitch.graph.collectives import communicates
from astitch.graph.ir import (
    ArrayType,
    ConstantAttrs,
    CustomCallAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    Literal,
    Node,
    ParameterAttrs,
    TupleType,
)
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import storage_name
from astitch.hlo.export import ModuleBuilder
from astitch.hlo.mlir_text import TYPED_FFI, quote
from astitch.loops.analysis import Counter, LoopKey, loop_key
from astitch.program.steps import FallbackStep, KernelStep, LibraryStep, Program, Step, View
from astitch.rewrite.barriers import Barrier, Held, find_behind
from astitch.show.compilation import Compilation
from astitch.xla.order_meetings import order_steps
from astitch.xla.prepare_kernels import Kernels, LoopCall, XlaKernel
from astitch.xla.stitch_loops import read_fallback
from astitch.xla.stitch_regions import stitched_regions

TARGET = "__gpu$xla.gpu.ptx"
"""The custom call by which XLA launches PTX (xla/service/gpu/custom_kernel_emitter.cc)."""

_TOKEN = ArrayType(DType.U32, (1,))

LEAST_KEPT_BYTES = 1 << 20
"""The least size of a value that XLA may not compute again, see find_kept."""


def export_program(
    compilation: Compilation,
    kernels: Kernels,
    regions: Mapping[Graph, Graph] = MappingProxyType({}),
    loops: Mapping[LoopKey, LoopCall] = MappingProxyType({}),
    products: Mapping[str, XlaKernel] = MappingProxyType({}),
) -> bytes:
    """The whole program as a serialized HloModuleProto: its parameters in order, its outputs as one tuple.

    regions: what to write for regions of loops and conditionals.  loops: those that are one kernel.  products: the
    kernels of narrow products by their names, in place of tile programs.
    """
    writer = _ModuleWriter(compilation, kernels, regions, loops, products)
    for step in writer.list_steps():
        writer.add_step(step)
    return writer.finish()


class _ModuleWriter:
    """Writes the steps of a program one after the other; knows which HLO value is in which buffer."""

    def __init__(
        self,
        compilation: Compilation,
        kernels: Kernels,
        regions: Mapping[Graph, Graph],
        loops: Mapping[LoopKey, LoopCall],
        products: Mapping[str, XlaKernel],
    ) -> None:
        self.regions, self.loops, self.products = regions, loops, products
        self.program = compilation.program
        self.graph = compilation.scopes.graph
        self.members = {plan.kernel.name: plan.scope.members for plan in compilation.plans}
        self.kernels = kernels
        self.latencies_ns = _project_latencies(compilation, loops)
        self.builder = ModuleBuilder(self.program.name, late=True)
        self.values: dict[str, tuple[str, ArrayType]] = {}
        self.views: dict[tuple[View, str], str] = {}
        self.barriers = {barrier.name: barrier for barrier in compilation.scopes.barriers}
        self.behind: dict[str, dict[str, str]] = {}
        self.read_behind = find_behind(compilation.scopes.barriers)
        self.kept = find_kept(self.program)
        self.token = ""
        self.constants: dict[ConstantAttrs, str] = {}  # those of ops that are left to XLA
        self.slices: dict[str, str] = {}  # the array with its slice, by the slice's buffer
        self.told = _Part(self, "told", frozenset())  # what says where slices start
        for view in self.program.parameters:
            self.builder.add_parameter(f"parameter/{view.buffer}", view.type)
            self.write(view.buffer, f"parameter/{view.buffer}", view.type)
        for name, literal in self.program.constants:
            type_ = ArrayType(literal.dtype, literal.shape)
            self.builder.add_node(
                Node(f"constant/{name}", "constant", type_, attrs=ConstantAttrs(literal))
            )
            self.write(name, f"constant/{name}", type_)

    def list_steps(self) -> Sequence[Step]:
        """The steps of the program, in an order in which the tokens of kernels hold no collective back.

        What a barrier waits for is what was written before it, so that a program with barriers keeps its order.
        """
        if self.barriers:
            return self.program.steps
        found = self.kernels.items()
        meeting = frozenset(n for n, k in found if isinstance(k, XlaKernel) and k.ordered)
        return order_steps(self.program.steps, self.graph, self.members, meeting)

    def write(self, buffer: str, value: str, type_: ArrayType) -> None:
        """The buffer now holds an HLO value."""
        if buffer in self.values:
            raise IllegalProduct(f"program {self.program.name}: {buffer} is written a second time")
        self.values[buffer] = value, type_

    def read(self, view: View) -> str:
        """The HLO value of a view: row-major arrays of the same elements are reshapes of each other."""
        value, type_ = self.values[view.buffer]
        if view.behind:
            value = self.pass_barrier(view.behind, view.buffer)
        if type_ == view.type:
            return value
        key = view, view.behind
        if key not in self.views:
            if type_.dtype is not view.type.dtype:
                raise IllegalProduct(
                    f"program {self.program.name}: {view.buffer}, {type_}, is read as {view.type}"
                )
            name = f"view.{len(self.views)}/{view.buffer}"
            self.builder.add_node(Node(name, "reshape", view.type, (value,)))
            self.views[key] = name
        return self.views[key]

    def pass_barrier(self, name: str, buffer: str) -> str:
        """The value of a buffer behind a barrier that waits for the same values as the program's barrier.

        A value that a kernel computes for itself is in no buffer: the barrier waits for what it is computed from.
        """
        passed = self.behind.setdefault(name, {})
        if buffer not in passed:
            waits = {buffer: ""} | self.find_waits(self.barriers[name])
            values = {
                b: self.pass_barrier(before, b) if before else self.values[b][0]
                for b, before in waits.items()
            }
            types = [self.values[b][1] for b in values]
            type_ = types[0] if len(types) == 1 else TupleType(tuple(types))
            unique = f"barrier.{sum(map(len, self.behind.values()))}/{name}"
            node = Node(unique, "optimization-barrier", type_, tuple(values.values()))
            passed.update(zip(values, self.builder.add_results(node), strict=True))
        return passed[buffer]

    def find_waits(self, barrier: Barrier) -> dict[str, str]:
        """The buffers that a barrier waits for, each with the barrier before behind which it is read."""
        found: dict[str, str] = {}
        pending, seen = list(reversed(barrier.waits)), set[str]()
        while pending:
            held = pending.pop()
            if held.value in seen or held.value not in self.graph.nodes:
                continue
            seen.add(held.value)
            buffer = storage_name(self.graph, held.value)
            if buffer in self.values:
                found.setdefault(buffer, held.behind)
            else:
                pending += (Held(o, held.behind) for o in self.graph[held.value].operands)
        return found

    def add_step(self, step: Step) -> None:
        if isinstance(step, KernelStep):
            kernel = self.kernels[step.kernel.name]
            if isinstance(kernel, XlaKernel):
                self.add_kernel(step, kernel)
            else:
                self.add_ops(step)
        elif isinstance(step, FallbackStep):
            self.add_fallback(step)
        else:
            operands = tuple(self.read(view) for view in step.operands)
            node = replace(step.node, name=f"step/{step.node.name}", operands=operands)
            told = step.latency_ns if isinstance(step, LibraryStep) else 0
            names = self.builder.add_results(node, told)
            for view, value in zip(step.results, names, strict=True):
                self.write(view.buffer, value, view.type)

    def add_kernel(self, step: KernelStep, kernel: XlaKernel) -> None:
        """A custom call: what the kernel only reads are its operands, what it writes its results."""
        arguments = list(enumerate(step.arguments))
        if kernel.ordered:
            arguments.pop()  # the barrier words
        written = [(i, view) for i, view in arguments if i in step.written]
        read = [(i, view) for i, view in arguments if i not in step.written]
        reads, indices = [i for i, _ in read], [i for i, _ in written]
        aliases = tuple((indices.index(p.written), reads.index(p.read)) for p in kernel.in_place)
        # What shares memory has one type in XLA.
        types = {p.read: step.arguments[p.written].type for p in kernel.in_place}
        views = [replace(view, type=types.get(i, view.type)) for i, view in read]
        operands = [(self.read(view), view.type) for view in views]
        cuts = {cut.written: cut for cut in kernel.slices}
        wholes = {i: self.graph[cut.update].array for i, cut in cuts.items()}
        results = [(i, wholes.get(i, view.type)) for i, view in written]
        for i, cut in cuts.items():
            aliases = (*aliases, (indices.index(i), len(operands)))
            given = (cut.whole, *cut.starts)
            operands += [(self.told.compute(n), self.graph[n].array) for n in given]
        origin = self.find_origin(kernel.name)
        names = self.add_call(f"kernel/{kernel.name}", kernel, operands, results, aliases, origin)
        for (i, view), name in zip(written, names, strict=False):
            if i in cuts:
                self.slices[view.buffer] = name
            else:
                self.write(view.buffer, name, view.type)

    def find_origin(self, kernel: str) -> Node | None:
        """The last op of a stitch op of which the user's program is known."""
        nodes = (self.graph[name] for name in reversed(self.members[kernel]))
        return next((node for node in nodes if node.op_name), None)

    def add_call(
        self,
        name: str,
        kernel: XlaKernel,
        operands: Sequence[tuple[str, ArrayType]],
        results: Sequence[tuple[int, ArrayType]],
        aliases: tuple[tuple[int, int], ...] = (),
        origin: Node | None = None,
    ) -> tuple[str, ...]:
        """A custom call; the names of its results.

        results: which parameter of the kernel each is.  origin: the op by which profilers find the user's line.
        """
        indices = [i for i, _ in results]
        types = [type_ for _, type_ in results]
        given = list(operands)
        if kernel.ordered:
            indices.append(len(operands) + len(results) + 1)
            given.append((self.token or self.first_token(), _TOKEN))
            types.append(_TOKEN)
        attrs = CustomCallAttrs(
            TARGET,
            write_backend_config(kernel, indices),
            TYPED_FFI,
            aliases=aliases,
            operand_layouts=tuple(_row_major(type_.rank) for _, type_ in given),
            result_layouts=tuple(_row_major(type_.rank) for type_ in types),
            latency_ns=self.latencies_ns.get(kernel.name, 0),
        )
        type_ = types[0] if len(types) == 1 else TupleType(tuple(types))
        call = Node(name, "custom-call", type_, tuple(value for value, _ in given), attrs)
        if origin is not None:
            call = replace(call, op_name=origin.op_name, source=origin.source)
        names = self.builder.add_results(call)
        if kernel.ordered:
            self.token = names[-1]
        return names

    def add_loop(self, name: str, node: Node, operands: Sequence[str], call: LoopCall) -> list[str]:
        """The results of a while that is one kernel, by their number; what nobody reads is its start."""
        loop = call.loop
        types = loop.plan.loop.types
        read = [(operands[i], types[i]) for i in loop.operands]
        for number, literal in enumerate(loop.constants):
            constant, type_ = f"{name}/constant.{number}", ArrayType(literal.dtype, literal.shape)
            self.builder.add_node(Node(constant, "constant", type_, attrs=ConstantAttrs(literal)))
            read.append((constant, type_))
        written = [(len(read) + i, types[state]) for i, state in enumerate(loop.results)]
        if loop.scratch_bytes:
            scratch = ArrayType(DType.U8, (loop.scratch_bytes,))
            written.append((len(read) + len(written), scratch))
        label = f"{name}/{call.kernel.name}"
        made = self.add_call(label, call.kernel, read, written, loop.in_place, origin=node)
        results = list(operands)
        for state, value in zip(loop.results, made, strict=False):
            results[state] = value
        for state, role in enumerate(loop.plan.loop.roles):
            if isinstance(role, Counter):
                end = np.asarray(role.value.at(loop.plan.loop.trips), types[state].dtype.numpy)
                attrs = ConstantAttrs(Literal.of(end.reshape(types[state].shape)))
                results[state] = f"{name}/end.{state}"
                self.builder.add_node(Node(results[state], "constant", types[state], attrs=attrs))
        return results

    def add_product(self, name: str, call: Node, operands: Sequence[str]) -> None:
        """A kernel in place of a call that computes a narrow product by a tile program."""
        kernel, product = self.products[call.name], self.graph[call.name]
        if isinstance(call.attrs, CustomCallAttrs):
            self.latencies_ns[kernel.name] = call.attrs.latency_ns  # names tell extents, no types
        read = [
            (operand, self.graph[given].array)
            for operand, given in zip(operands, product.operands, strict=True)
        ]
        self.add_call(name, kernel, read, [(len(read), product.array)], origin=product)

    def first_token(self) -> str:
        """What the first ordered kernel takes: a constant that it does not touch."""
        literal = Literal(_TOKEN.dtype, _TOKEN.shape, bytes(_TOKEN.bytes))
        self.builder.add_node(Node("token", "constant", _TOKEN, attrs=ConstantAttrs(literal)))
        return "token"

    def add_fallback(self, step: FallbackStep) -> None:
        """What XLA was to compile by itself, as a part of the module."""
        graph = read_fallback(step.hlo)
        names: dict[str, str] = {}
        results: dict[str, list[str]] = {}
        written: dict[str, str] = {}  # the array with a slice, by what is read of the slice
        for node in graph:
            if isinstance(node.attrs, ParameterAttrs):
                view = step.operands[node.attrs.index]
                if view.buffer in self.slices:
                    written[node.name] = self.slices[view.buffer]
                else:
                    names[node.name] = self.read(view)
                continue
            if made := next((written[o] for o in node.operands if o in written), ""):
                if OPS[node.op].writes_into:
                    names[node.name] = made
                else:
                    written[node.name] = made
                continue
            if isinstance(node.attrs, GetTupleElementAttrs) and node.operands[0] in results:
                names[node.name] = results[node.operands[0]][node.attrs.index]
                continue
            if isinstance(node.attrs, ConstantAttrs) and node.attrs in self.constants:
                # XLA's passes over collectives take equal numbers for equal only where they are one instruction.
                names[node.name] = self.constants[node.attrs]
                continue
            names[node.name] = f"{step.name}/{node.name}"
            if isinstance(node.attrs, ConstantAttrs):
                self.constants[node.attrs] = names[node.name]
            operands = tuple(names[o] for o in node.operands)
            if OPS[node.op].is_loop and (call := self.loops.get(loop_key(graph, node))):
                results[node.name] = self.add_loop(names[node.name], node, operands, call)
                continue
            if node.name in self.products:
                self.add_product(names[node.name], node, operands)
                continue
            called = node.regions
            if stitched_regions(node):
                called = tuple(self.regions.get(region, region) for region in called)
            added = replace(node, name=names[node.name], operands=operands, regions=called)
            self.builder.add_node(added)
        for view, output in zip(step.results, graph.outputs, strict=True):
            value, array = names[output], graph[output].array
            if view.buffer in self.kept and OPS[graph[output].op].kind is Kind.ELEMENTWISE:
                value = f"{value}/kept"
                node = Node(value, "optimization-barrier", array, (names[output],))
                self.builder.add_node(node)
            self.write(view.buffer, value, array)

    def add_ops(self, step: KernelStep) -> None:
        """The ops of a kernel that XLA cannot launch."""
        part = _Part(self, step.kernel.name, frozenset(self.members[step.kernel.name]))
        for index in sorted(step.written):
            view = step.arguments[index]
            base, _, number = view.buffer.partition("#")
            if base in self.graph.nodes:  # else it is scratch of the kernel
                value = part.compute(base)
                if number:
                    value = self.builder.add_projection(value, int(number), view.type)
                self.write(view.buffer, value, view.type)

    def finish(self) -> bytes:
        return self.builder.finish([self.read(view) for view in self.program.outputs])


def find_kept(program: Program) -> frozenset[str]:
    """The buffers that a kernel and a product read.

    XLA would compute such a value again with the product, from what it is computed from.  Then memory holds both.
    """
    by_kernels: set[str] = set()
    by_products: set[str] = set()
    for step in program.steps:
        if isinstance(step, KernelStep):
            by_kernels.update(v.buffer for v in step.arguments)
        elif isinstance(step, LibraryStep):
            by_products.update(v.buffer for v in step.operands)
    kept = by_kernels & by_products
    return frozenset(b for b in kept if program.buffers[b].type.bytes >= LEAST_KEPT_BYTES)


class _Part:
    """Graph nodes of one stitch op as HLO, those in front of them first."""

    def __init__(self, writer: _ModuleWriter, prefix: str, members: frozenset[str]) -> None:
        self.writer, self.prefix, self.members = writer, prefix, members
        self.names: dict[
            tuple[str, str], str
        ] = {}  # by node, and the barrier behind which it is read

    def compute(self, wanted: str) -> str:
        """The HLO value of a node: from its buffer where a step before filled it, else computed here."""
        graph, pending = self.writer.graph, [(wanted, "")]
        while pending:
            name, behind = key = pending[-1]
            if key not in self.names:
                node = graph[name]
                if name not in self.members and (value := self.find(graph, node, behind)):
                    self.names[key] = value
                elif missing := [v for v in self.list_read(node, behind) if v not in self.names]:
                    pending += missing
                    continue
                else:
                    self.names[key] = f"{self.prefix}/{name}" + (f"/{behind}" if behind else "")
                    operands = tuple(self.names[value] for value in self.list_read(node, behind))
                    if behind:
                        node = Node(name, "optimization-barrier", node.type)
                    added = replace(node, name=self.names[key], operands=operands)
                    self.writer.builder.add_node(added)
            pending.pop()
        return self.names[wanted, ""]

    def list_read(self, node: Node, behind: str) -> list[tuple[str, str]]:
        """What a node is computed from; what it is handed on from, where it is read behind a barrier."""
        if behind:
            return [(node.name, "")]
        return [(o, self.writer.read_behind.get((node.name, o), "")) for o in node.operands]

    def find(self, graph: Graph, node: Node, behind: str) -> str | None:
        if isinstance(node.type, TupleType):
            return None
        view = View(storage_name(graph, node.name), node.type, behind)
        return self.writer.read(view) if view.buffer in self.writer.values else None


def _project_latencies(
    compilation: Compilation, loops: Mapping[LoopKey, LoopCall]
) -> dict[str, int]:
    """The projected times of kernels in nanoseconds, where XLA's scheduler has communication to hide behind them."""
    if not any(map(communicates, compilation.scopes.graph)):
        return {}
    times_us = {
        plan.kernel.name: project(plan.kernel, compilation.gpu, work=plan.work).time_us
        for plan in compilation.plans
    }
    times_us |= {call.kernel.name: call.loop.plan.us for call in loops.values()}
    return {name: round(us * 1e3) for name, us in times_us.items()}


def _row_major(rank: int) -> tuple[int, ...]:
    return tuple(reversed(range(rank)))


def write_backend_config(kernel: XlaKernel, results: Sequence[int]) -> bytes:
    """The MLIR dictionary by which XLA launches the kernel.

    results: for each result of the custom call, which parameter of the kernel it is; the operands are the others.
    """
    numbers = {
        "grid_x": kernel.grid,
        "grid_y": 1,
        "grid_z": 1,
        "block_x": kernel.block,
        "block_y": 1,
        "block_z": 1,
        "shared_mem_bytes": kernel.shared_bytes,
    }
    fields = [f"name = {quote(kernel.symbol.encode())}", 'kernel_type = "ptx"']
    fields.append(f"kernel_data = {quote(kernel.code)}")
    fields += [f"{name} = {number} : i32" for name, number in numbers.items()]
    fields.append(f"output_indices = [{', '.join(f'{i} : i32' for i in results)}]")
    return f"{{{', '.join(fields)}}}".encode()
