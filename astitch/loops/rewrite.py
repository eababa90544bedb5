"""A loop that is rewritten: nodes before it, in its body and after it, and the state that it carries.

Takes a Graph and a Loop in it, hands on the Graph with a loop that carries and does something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from astitch.graph.edit import free_name, keep_live_nodes, sort_nodes
from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    ConstantAttrs,
    DynamicSliceAttrs,
    GetTupleElementAttrs,
    Graph,
    Literal,
    Node,
    ParameterAttrs,
    TupleType,
)
from astitch.loops.analysis import Loop, LoopState, Place, Stack


class LoopRewrite:
    """The parts of a new loop.

    old: the body as it was.  before, after, body: new nodes by name; body begins as the old one.  states: what the loop
    carries, new ones behind.  dropped: by number of a state that the loop need not carry, the node that has its final
    value.  base: where most stacks are read or written, and the indices that say so in the body.
    """

    def __init__(self, graph: Graph, loop: Loop) -> None:
        self.graph, self.loop, self.old = graph, loop, loop.body
        self.node = loop.node
        self.taken = {*graph.nodes, *loop.body.nodes, *loop.node.regions[0].nodes}
        self.before: dict[str, Node] = {}
        self.after: dict[str, Node] = {}
        self.body: dict[str, Node] = dict(loop.body.nodes)
        self.states = [
            LoopState(p, o, t, start)
            for p, o, t, start in zip(
                loop.body.parameters, loop.body.outputs, loop.types, loop.node.operands, strict=True
            )
        ]
        self.dropped: dict[int, str] = {}
        self.base = self.find_base()

    def find_base(self) -> tuple[Place, tuple[str, ...]] | None:
        """Where most stacks are read or written, in order, and the indices that say so in the body."""
        found: dict[tuple[Place, tuple[str, ...]], int] = {}
        for name, place in self.loop.slices.items():
            shape = self.old[self.old[name].operands[0]].shape
            if place.dimension == 0 and shape[0] == self.loop.trips and abs(place.index.scale) == 1:
                key = place, self.old[name].operands[1:2]
                found[key] = found.get(key, 0) + 1
        for role, state in zip(self.loop.roles, self.states, strict=True):
            if isinstance(role, Stack) and role.place.dimension == 0:
                key = role.place, self.old[state.output].operands[2:3]
                found[key] = found.get(key, 0) + 1
        return max(found, key=lambda key: found[key]) if found else None

    # ---- new nodes -------------------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        name = free_name(hint, self.taken)
        self.taken.add(name)
        return name

    def add(self, into: dict[str, Node], hint: str, node: Node) -> str:
        """A node under a new name."""
        name = self.fresh(hint)
        into[name] = replace(node, name=name)
        return name

    def add_state(self, hint: str, type_: ArrayType, start: str) -> str:
        """An invariant part of the state; the body's parameter."""
        name = self.fresh(hint)
        self.body = {name: Node(name, "parameter", type_, attrs=ParameterAttrs(0)), **self.body}
        self.states.append(LoopState(name, name, type_, start))
        return name

    def broadcast_number(self, into: dict[str, Node], type_: ArrayType, number: int) -> str:
        literal = Literal.of(np.asarray(number, type_.dtype.numpy))
        scalar = ArrayType(type_.dtype, ())
        name = self.add(
            into, "loop.number", Node("", "constant", scalar, attrs=ConstantAttrs(literal))
        )
        return self.add(
            into, "loop.fill", Node("", "broadcast", type_, (name,), BroadcastAttrs(()))
        )

    def zero(self, type_: ArrayType) -> str:
        literal = Literal.of(np.asarray(0, type_.dtype.numpy))
        zero = Node("", "constant", ArrayType(type_.dtype, ()), attrs=ConstantAttrs(literal))
        return self.add(self.body, "loop.zero", zero)

    def read_slice(self, parameter: str, type_: ArrayType) -> str:
        """The turn's slice of a stack, as an array of a type."""
        assert self.base is not None
        (index,) = self.base[1]
        zeros = (self.zero(self.old[index].array),) * type_.rank
        one = ArrayType(type_.dtype, (1, *type_.shape))
        cut = Node(
            "", "dynamic-slice", one, (parameter, index, *zeros), DynamicSliceAttrs(one.shape)
        )
        slice_ = self.add(self.body, f"{parameter}.slice", cut)
        return self.add(self.body, f"{parameter}.turn", Node("", "reshape", type_, (slice_,)))

    def add_stack(self, name: str, type_: ArrayType) -> int:
        """A stack that the loop writes; the number of the state."""
        assert self.base is not None
        (index,) = self.base[1]
        parameter = self.fresh(f"{name}.stack")
        self.body = {
            parameter: Node(parameter, "parameter", type_, attrs=ParameterAttrs(0)),
            **self.body,
        }
        one = ArrayType(type_.dtype, (1, *type_.shape[1:]))
        slice_ = self.add(self.body, f"{name}.slice", Node("", "reshape", one, (name,)))
        zeros = (self.zero(self.old[index].array),) * (type_.rank - 1)
        update = Node("", "dynamic-update-slice", type_, (parameter, slice_, index, *zeros))
        output = self.add(self.body, f"{name}.update", update)
        start = self.broadcast_number(self.before, type_, 0)
        self.states.append(LoopState(parameter, output, type_, start))
        return len(self.states) - 1

    def project(self, number: int) -> str:
        """A part of the final state, after the loop; its number is known when the loop is made."""
        attrs = GetTupleElementAttrs(number)
        type_ = self.states[number].type
        node = Node("", "get-tuple-element", type_, (self.node.name,), attrs)
        return self.add(self.after, f"{self.node.name}.part", node)

    # ---- the graph -------------------------------------------------------------------------------------------------

    def finish(self) -> Graph:
        """The graph with the new loop."""
        kept = [number for number in range(len(self.states)) if number not in self.dropped]
        kept = self.drop_unread(kept)
        numbers = {number: i for i, number in enumerate(kept)}
        states = [self.states[number] for number in kept]
        body = order_region(
            self.old.name,
            {s.parameter: s.type for s in states},
            self.body,
            [s.output for s in states],
        )
        test = self.make_test(states)
        types = tuple(s.type for s in states)
        type_ = types[0] if len(types) == 1 else TupleType(types)
        starts = tuple(s.start for s in states)
        made = replace(self.node, type=type_, operands=starts, regions=(test, body))
        return self.place(made, numbers)

    def make_test(self, states: Sequence[LoopState]) -> Graph:
        """The condition, for the new state."""
        condition = self.node.regions[0]
        tests = {self.old.parameters[i]: p for i, p in enumerate(condition.parameters)}
        inner = {name: node for name, node in condition.nodes.items() if not node.is_parameter}
        names = [tests.get(s.parameter) or self.fresh(f"{s.parameter}.test") for s in states]
        types = {name: s.type for name, s in zip(names, states, strict=True)}
        return order_region(condition.name, types, inner, condition.outputs)

    def drop_unread(self, kept: Sequence[int]) -> list[int]:
        """Without the invariants that no turn reads any more, and nobody after the loop."""
        read: set[str] = set()
        pending = [s.output for i, s in enumerate(self.states) if i in kept]
        pending = [output for output in pending if not self.body[output].is_parameter]
        while pending:
            for operand in self.body[pending.pop()].operands:
                if operand not in read:
                    read.add(operand)
                    pending.append(operand)
        after = {
            node.attrs.index
            for node in [*self.graph, *self.after.values()]
            if isinstance(node.attrs, GetTupleElementAttrs) and node.operands[0] == self.node.name
        }
        tested = set(self.tested())
        return [
            i
            for i in kept
            if self.states[i].parameter != self.states[i].output
            or self.states[i].parameter in read
            or i in after
            or i in tested
        ]

    def tested(self) -> list[int]:
        """The parts of the state that the condition reads."""
        condition = self.node.regions[0]
        return [
            i
            for i, name in enumerate(condition.parameters)
            if condition.users[name] or name in condition.outputs
        ]

    def place(self, made: Node, numbers: Mapping[int, int]) -> Graph:
        """The graph with the new loop, and what stands before and after it."""
        nodes: dict[str, Node] = {}
        renamed: dict[str, str] = {}

        def renumber(node: Node) -> Node:
            if not isinstance(node.attrs, GetTupleElementAttrs) or node.operands != (made.name,):
                return node
            if isinstance(made.type, ArrayType):
                renamed[node.name] = made.name
                return node
            return replace(node, attrs=GetTupleElementAttrs(numbers[node.attrs.index]))

        def put(node: Node) -> None:
            nodes[node.name] = node.read(tuple([renamed.get(o, o) for o in node.operands]))

        for node in self.graph:
            if node.name == made.name:
                for other in self.before.values():
                    put(other)
                put(made)
                for other in self.after.values():
                    put(renumber(other))
            elif (
                isinstance(node.attrs, GetTupleElementAttrs)
                and node.operands == (made.name,)
                and node.attrs.index in self.dropped
            ):
                renamed[node.name] = self.dropped[node.attrs.index]
            else:
                put(renumber(node))
        outputs = tuple(renamed.get(o, o) for o in self.graph.outputs)
        live = keep_live_nodes(nodes, outputs)
        return Graph(self.graph.name, live, self.graph.parameters, outputs, self.graph.aliases)


def order_region(
    name: str,
    parameters: Mapping[str, ArrayType],
    nodes: Mapping[str, Node],
    outputs: Sequence[str],
) -> Graph:
    """A region: parameters in order, then the nodes that its outputs need, each after its operands."""
    ordered: dict[str, Node] = {
        parameter: Node(parameter, "parameter", type_, attrs=ParameterAttrs(i))
        for i, (parameter, type_) in enumerate(parameters.items())
    }
    ordered = sort_nodes(nodes, outputs, ordered)
    return Graph(name, ordered, tuple(parameters), tuple(outputs))
