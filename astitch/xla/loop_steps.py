"""Loops as steps of a program: for engines that launch kernels themselves.

Takes a Compilation in which XLA would run the loops inside fallbacks.  Hands on a Compilation whose program has a
kernel for each loop that can be one.  A fallback is cut before and after its loops; the arena holds what its parts
hand to each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    ConstantAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    Literal,
    Node,
    ParameterAttrs,
)
from astitch.graph.ops import OPS
from astitch.hlo.export import export_nodes
from astitch.hlo_import import read_part
from astitch.loops.analysis import Counter, LoopKey, find_ends, loop_key
from astitch.loops.emit import LoopKernel
from astitch.loops.plan import LoopPlanner
from astitch.program.steps import (
    ALIGNMENT_BYTES,
    Buffer,
    FallbackStep,
    KernelStep,
    Program,
    Space,
    Step,
    View,
)
from astitch.show.compilation import Compilation
from astitch.xla.stitch_loops import find_loops


def take_loops(compilation: Compilation, planner: LoopPlanner) -> Compilation:
    """The compilation with its loops as kernels of its program, and notes on all of them.

    planner: the one that the compilation was made with.
    """
    loops, notes = find_loops(compilation, planner)
    if not loops:
        return replace(compilation, loops=notes)
    taker = _Taker(compilation.program, loops)
    return replace(compilation, program=taker.rewrite(), loops=notes)


@dataclass(slots=True)
class _Taker:
    """A program being rewritten: its buffers, and how much of the arena is taken."""

    program: Program
    loops: Mapping[LoopKey, LoopKernel]
    buffers: dict[str, Buffer] = field(default_factory=dict)
    constants: list[tuple[str, Literal]] = field(default_factory=list)
    arena_bytes: int = 0

    def rewrite(self) -> Program:
        self.buffers.update(self.program.buffers)
        self.arena_bytes = self.program.arena_bytes
        self.constants += self.program.constants
        steps: list[Step] = []
        for step in self.program.steps:
            steps += self.cut(step) if isinstance(step, FallbackStep) else [step]
        return replace(
            self.program,
            steps=tuple(steps),
            buffers=self.buffers,
            constants=tuple(self.constants),
            arena_bytes=self.arena_bytes,
        )

    def cut(self, step: FallbackStep) -> list[Step]:
        """The steps in place of a fallback: itself where it has no loop of ours."""
        graph = read_part(step.hlo)
        taken = {
            node.name: self.loops[key]
            for node in graph
            if OPS[node.op].is_loop and (key := loop_key(graph, node)) in self.loops
        }
        is_plain = len(set(graph.outputs)) == len(graph.outputs) and not any(
            isinstance(graph[output].attrs, ParameterAttrs) for output in graph.outputs
        )
        if not taken or not is_plain:
            return [step]
        return _Cut(self, step, end_counters(graph, taken), taken).make_steps()

    def add_constant(self, name: str, value: Literal) -> View:
        """An array of numbers beside those of the program."""
        type_ = ArrayType(value.dtype, value.shape)
        self.buffers[name] = Buffer(name, type_, Space.CONSTANT, len(self.constants))
        self.constants.append((name, value))
        return View(name, type_)

    def add_buffer(self, name: str, type_: ArrayType, space: Space = Space.ARENA) -> View:
        """Room of its own at the end of the arena."""
        offset = -(-self.arena_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.buffers[name] = Buffer(name, type_, space, offset=offset)
        self.arena_bytes = offset + type_.bytes
        return View(name, type_)


def fold_ends(graph: Graph) -> Graph:
    """The graph with constants for what is known of a loop's state after it.  A loop may turn as often as one before,
    as the gradient's does in TensorFlow: then its turns are known."""
    nodes: dict[str, Node] = {}
    ends: dict[str, dict[int, np.ndarray]] = {}
    for node in graph:
        nodes[node.name] = node
        if OPS[node.op].is_loop:
            ends[node.name] = find_ends(replace(graph, nodes={**graph.nodes, **nodes}), node)
        elif isinstance(node.attrs, GetTupleElementAttrs):
            end = ends.get(node.operands[0], {}).get(node.attrs.index)
            if end is not None:
                nodes[node.name] = _make_constant(node, end)
    return replace(graph, nodes=nodes)


def _make_constant(node: Node, value: np.ndarray) -> Node:
    """Known values in place of a node."""
    return Node(node.name, "constant", node.type, attrs=ConstantAttrs(Literal.of(value)))


def end_counters(graph: Graph, taken: Mapping[str, LoopKernel]) -> Graph:
    """The graph with constants where somebody reads a counter after its loop."""
    nodes = dict(graph.nodes)
    for node in graph:
        if not isinstance(node.attrs, GetTupleElementAttrs) or node.operands[0] not in taken:
            continue
        plan = taken[node.operands[0]].plan
        role = plan.loop.roles[node.attrs.index]
        if isinstance(role, Counter):
            end = np.full(node.shape, role.value.at(plan.loop.trips), node.array.dtype.numpy)
            nodes[node.name] = _make_constant(node, end)
    return replace(graph, nodes=nodes)


@dataclass(slots=True)
class _Cut:
    """One fallback being cut.  taken: its loops that are kernels."""

    taker: _Taker
    step: FallbackStep
    graph: Graph
    taken: Mapping[str, LoopKernel]

    def make_steps(self) -> list[Step]:
        """Alternately what XLA computes and the loops that it feeds."""
        turns = self.find_turns()
        needed = self.find_needed()
        places = self.place_values(turns, needed)
        steps: list[Step] = []
        for turn in range(max(turns.values()) + 1):
            here = [n for n in self.graph if n.name in needed and turns[n.name] == turn]
            steps += self.make_fallback(turn, here, turns, places)
            for node in here:
                if node.name in self.taken:
                    steps.append(self.make_kernel(node, places))
        return steps

    def find_turns(self) -> dict[str, int]:
        """How many loops a node must wait for, one after the other."""
        turns: dict[str, int] = {}
        for node in self.graph:
            before = (turns[o] + (o in self.taken) for o in node.operands)
            turns[node.name] = max(before, default=0)
        return turns

    def find_needed(self) -> set[str]:
        """What the results are made from: a loop's kernel reads not all of its start."""
        needed: set[str] = set()
        waiting = list(self.graph.outputs)
        while waiting:
            name = waiting.pop()
            if name in needed:
                continue
            needed.add(name)
            node = self.graph[name]
            loop = self.taken.get(name)
            waiting += node.operands if loop is None else [node.operands[i] for i in loop.operands]
        return needed

    def place_values(self, turns: Mapping[str, int], needed: set[str]) -> dict[str, View]:
        """The views of the fallback's parameters, of its results, and of the values that one part hands to another."""
        places = dict(zip(self.graph.outputs, self.step.results, strict=True))
        for node in self.graph:
            if isinstance(node.attrs, ParameterAttrs):
                places[node.name] = self.step.operands[node.attrs.index]
        for node in self.graph:
            if node.name not in needed or node.name in self.taken:
                continue
            loop = self.taken.get(node.name)
            read = node.operands if loop is None else [node.operands[i] for i in loop.operands]
            for operand in read:
                if operand in self.taken:
                    self.add_place(places, node.name)  # a part of the loop's final state
                elif turns[operand] < turns[node.name]:
                    self.add_place(places, operand)
        for name, loop in self.taken.items():
            if name in needed:
                for number in loop.operands:
                    self.add_place(places, self.graph[name].operands[number])
        return places

    def add_place(self, places: dict[str, View], name: str) -> None:
        if name not in places:
            places[name] = self.taker.add_buffer(f"{self.step.name}/{name}", self.graph[name].array)

    def make_fallback(
        self,
        turn: int,
        here: list[Node],
        turns: Mapping[str, int],
        places: Mapping[str, View],
    ) -> list[Step]:
        """What XLA computes in a turn; nothing where only loops are left."""
        names = [
            node.name
            for node in here
            if node.name not in self.taken
            and not isinstance(node.attrs, ParameterAttrs)
            and not any(operand in self.taken for operand in node.operands)
        ]
        results = [name for name in names if name in places]
        if not results:
            return []
        exported = export_nodes(self.graph, names, results)
        chosen = set(names)
        return [
            FallbackStep(
                f"{self.step.name}.{turn}",
                exported.hlo,
                tuple(places[name] for name in exported.operands),
                tuple(places[name] for name in exported.results),
                tuple(op for op in self.step.ops if op.name in chosen),
            )
        ]

    def make_kernel(self, node: Node, places: Mapping[str, View]) -> KernelStep:
        """The launch of a loop."""
        loop = self.taken[node.name]
        types = loop.plan.loop.types
        parts = {
            attrs.index: user
            for user in self.graph.users[node.name]
            if isinstance(attrs := self.graph[user].attrs, GetTupleElementAttrs)
        }
        views = [places[node.operands[number]] for number in loop.operands]
        for number, value in enumerate(loop.constants):
            name = f"{self.step.name}/{node.name}/constant.{number}"
            views.append(self.taker.add_constant(name, value))
        first = len(views)
        for number in loop.results:
            part = parts.get(number)
            known = places.get(part) if part is not None else None
            name = f"{self.step.name}/{node.name}#{number}"  # a counter, or what nobody needs
            views.append(known or self.taker.add_buffer(name, types[number]))
        if loop.scratch_bytes:
            scratch = ArrayType(DType.U8, (loop.scratch_bytes,))
            name = f"{self.step.name}/{node.name}/scratch"
            views.append(self.taker.add_buffer(name, scratch))
        if loop.kernel.cooperative:
            words = ArrayType(DType.U32, (loop.kernel.barrier_words,))
            name = f"{self.step.name}/{node.name}/barrier"
            views.append(self.taker.add_buffer(name, words, Space.BARRIER))
        return KernelStep(loop.kernel, tuple(views), frozenset(range(first, len(views))))
