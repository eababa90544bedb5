"""What a loop's stacks hold, told in ways that the analysis of loops knows.

Takes a Graph, hands on one whose whiles read stacks that no turn writes, and write stacks that no turn reads.  The
idea: a gradient's loop, as TensorFlow writes it, does needless work.  It pops numbers that are known, clears what it
has read, adds up padded slices, and hands on what nobody reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from astitch.graph.edit import free_name, is_pure
from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    ConstantAttrs,
    DType,
    DynamicSliceAttrs,
    GetTupleElementAttrs,
    Graph,
    Literal,
    Node,
    TupleType,
)
from astitch.graph.ops import OPS, is_addition, is_slice_update
from astitch.loops.analysis import (
    MOST_LISTED_TURNS,
    Affine,
    LoopState,
    Place,
    count_turns,
    find_integers,
    find_place,
    find_starts,
    find_used,
)
from astitch.loops.rewrite import order_region


def straighten_stacks(graph: Graph) -> Graph:
    """The graph with its whiles straightened, as far as their turns are known.  Same results, bit for bit."""
    for name in [node.name for node in graph if OPS[node.op].is_loop]:
        node = graph[name]
        pure = is_pure(node)
        projected = all(
            isinstance(graph[user].attrs, GetTupleElementAttrs) for user in graph.users[name]
        )
        turns = count_turns(graph, node)
        if turns and pure and projected and name not in graph.outputs:
            graph = _Straightener(graph, node, *turns).rewrite()
    return graph


class _Straightener:
    """One while being rewritten.  counters: the parts of its state that count."""

    def __init__(
        self, graph: Graph, node: Node, trips: int, counters: Mapping[int, Affine]
    ) -> None:
        self.graph, self.node, self.trips = graph, node, trips
        body = node.regions[1]
        self.body = dict(body.nodes)
        self.taken = {*body.nodes}
        self.starts = find_starts(graph, node)
        self.counters = {body.parameters[i]: counter for i, counter in counters.items()}
        self.states = [
            LoopState(parameter, output, body[parameter].array, start)
            for parameter, output, start in zip(
                body.parameters, body.outputs, node.operands, strict=True
            )
        ]

    def rewrite(self) -> Graph:
        while self.look_up_numbers():
            pass
        self.update_slices()
        self.read_starts()
        return self.place(self.find_live())

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def add(self, node: Node, hint: str) -> str:
        """A node of the body under a new name."""
        name = free_name(hint, self.taken)
        self.taken.add(name)
        self.body[name] = replace(node, name=name)
        return name

    def add_number(self, type_: ArrayType, value: Literal, hint: str) -> Node:
        """A number everywhere in an array, not in the body yet."""
        scalar = Node("", "constant", ArrayType(type_.dtype, ()), attrs=ConstantAttrs(value))
        if not type_.rank:
            return scalar
        return Node("", "broadcast", type_, (self.add(scalar, hint),), BroadcastAttrs(()))

    def see_body(self) -> Graph:
        """The body as it is now."""
        return order_region(
            self.node.regions[1].name,
            {s.parameter: s.type for s in self.states},
            self.body,
            [s.output for s in self.states],
        )

    # ---- numbers -------------------------------------------------------------------------------------------------

    def look_up_numbers(self) -> bool:
        """table[i] -> scale * turn + offset, for a known table whose numbers are read in even steps.  Was there one?"""
        body = self.see_body()
        integers = find_integers(body, self.counters, self.trips)
        found = False
        for node in body:
            if not isinstance(node.attrs, DynamicSliceAttrs) or node.array.size != 1:
                continue
            table = self.find_table(node.operands[0])
            indices = [integers.get(index) for index in node.operands[1:]]
            known = [index for index in indices if index is not None]
            if table is None or len(known) < len(indices):
                continue
            value = self.read_table(table, known)
            if value is not None and self.compute(node, value):
                found = True
        return found

    def find_table(self, name: str) -> np.ndarray | None:
        """The integers that a value of the body has in all turns, if they are known."""
        graph: Mapping[str, Node] = self.body
        node = self.body[name]
        if node.is_parameter:
            (state,) = (state for state in self.states if state.parameter == name)
            if state.output != name:
                return None
            graph, node = self.graph.nodes, self.graph[state.start]
        while OPS[node.op].keeps_order:
            node = graph[node.operands[0]]
        if not isinstance(node.attrs, ConstantAttrs) or not node.dtype.is_integer:
            return None
        return node.attrs.value.numpy().reshape(self.body[name].shape)

    def read_table(self, table: np.ndarray, indices: list[Affine]) -> Affine | None:
        """What the turns read, one after the other, if that is a straight line."""
        if self.trips > MOST_LISTED_TURNS:
            return None
        read = []
        for turn in range(self.trips):
            at = (index.at(turn) for index in indices)
            place = (min(max(i, 0), n - 1) for i, n in zip(at, table.shape, strict=True))
            read.append(int(table[tuple(place)]))
        if not read:
            return None
        line = Affine(read[1] - read[0] if len(read) > 1 else 0, read[0])
        return line if all(line.at(turn) == value for turn, value in enumerate(read)) else None

    def compute(self, node: Node, value: Affine) -> bool:
        """Puts arithmetic on a counter in a node's place.  False where no counter has steps of one and its type."""
        for name, counter in self.counters.items():
            type_ = self.body[name].array
            if abs(counter.scale) == 1 and type_.dtype is node.dtype and not type_.rank:
                # turn = counter.scale * (counter - counter.offset)
                factor = value.scale * counter.scale
                offset = value.offset - factor * counter.offset
                total = name
                for op, number in (("multiply", factor), ("add", offset)):
                    literal = Literal.of(_wrap(number, type_.dtype))
                    constant = self.add(self.add_number(type_, literal, ""), f"{node.name}.number")
                    total = self.add(Node("", op, type_, (total, constant)), f"{node.name}.{op}")
                self.body[node.name] = Node(node.name, "reshape", node.type, (total,))
                return True
        return False

    # ---- stacks --------------------------------------------------------------------------------------------------

    def update_slices(self) -> None:
        """stack + pad(value) -> stack with stack[i] + value at i, where no element is -0 (-0 + 0 is 0)."""
        for number, state in enumerate(self.states):
            total = self.body[state.output]
            start = self.starts.get(number)
            if not is_addition(total) or start is None or _is_minus_zero(start):
                continue
            for other, padded in (total.operands, total.operands[::-1]):
                update = self.body[padded]
                if other != state.parameter or not is_slice_update(update):
                    continue
                into, value, *indices = update.operands
                if not self.is_zero(into):
                    continue
                sizes = self.body[value].shape
                type_ = self.body[value].array
                attrs = DynamicSliceAttrs(sizes)
                before = Node("", "dynamic-slice", type_, (state.parameter, *indices), attrs)
                terms = (self.add(before, f"{padded}.before"), value)
                after = self.add(Node("", "add", type_, terms), f"{padded}.after")
                self.body[total.name] = replace(
                    update, name=total.name, operands=(state.parameter, after, *indices)
                )

    def is_zero(self, name: str) -> bool:
        """Is a value of the body +0 everywhere?"""
        node = self.body[name]
        while OPS[node.op].keeps_order or OPS[node.op].is_broadcast:
            node = self.body[node.operands[0]]
        if not isinstance(node.attrs, ConstantAttrs):
            return False
        value = node.attrs.value
        return not value.numpy().any() and not _is_minus_zero(value)

    def read_starts(self) -> None:
        """What a turn reads of a stack before any turn writes there was there at the start.  So the loop reads one
        stack and writes another."""
        body = self.see_body()
        integers = find_integers(body, self.counters, self.trips)
        for number, state in enumerate(list(self.states)):
            update = body[state.output]
            users = [body[user] for user in body.users[state.parameter] if user != update.name]
            if not is_slice_update(update) or update.operands[0] != state.parameter:
                continue
            if not users or any(not isinstance(user.attrs, DynamicSliceAttrs) for user in users):
                continue
            shape = body[update.operands[1]].shape
            write = find_place(body, update, update.operands[2:], shape, integers, self.trips)
            reads = [
                find_place(body, user, user.operands[1:], user.shape, integers, self.trips)
                for user in users
            ]
            if write is None or not all(
                read and self.reads_unwritten(read, write) for read in reads
            ):
                continue
            known = self.starts.get(number)
            source = "" if known is not None else self.add_invariant(state)
            for user in users:
                if known is not None:
                    fill = self.add_number(user.array, known, f"{user.name}.start")
                    self.body[user.name] = replace(fill, name=user.name)
                else:
                    operands = (source, *user.operands[1:])
                    self.body[user.name] = replace(user, operands=operands)

    def reads_unwritten(self, read: Place, write: Place) -> bool:
        """Does each turn read where no turn before it wrote?"""
        if read.dimension != write.dimension or self.trips > MOST_LISTED_TURNS:
            return False
        written: set[int] = set()
        for turn in range(self.trips):
            if read.index.at(turn) in written:
                return False
            written.add(write.index.at(turn))
        return True

    def add_invariant(self, state: LoopState) -> str:
        """A part of the state that keeps what another starts with; the body's parameter."""
        name = free_name(f"{state.parameter}.start", self.taken)
        self.taken.add(name)
        self.body[name] = Node(name, "parameter", state.type)
        self.states.append(LoopState(name, name, state.type, state.start))
        return name

    # ---- the graph -----------------------------------------------------------------------------------------------

    def find_live(self) -> list[int]:
        """The parts of the state that the condition reads, somebody after the loop, or a turn for one of these."""
        condition = self.node.regions[0]
        live = set(find_used(self.graph, self.node))
        for number, name in enumerate(condition.parameters):
            if condition.users[name] or name in condition.outputs:
                live.add(number)
        numbers = {state.parameter: i for i, state in enumerate(self.states)}
        seen: set[str] = set()
        pending = [self.states[number].output for number in live]
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            pending += self.body[name].operands
            if name in numbers and numbers[name] not in live:
                live.add(numbers[name])
                pending.append(self.states[numbers[name]].output)
        return sorted(live)

    def place(self, live: list[int]) -> Graph:
        """The graph with the loop of these parts in place of the old one."""
        old = self.node.regions[0]
        states = [self.states[number] for number in live]
        body = order_region(
            self.node.regions[1].name,
            {s.parameter: s.type for s in states},
            self.body,
            [s.output for s in states],
        )
        taken = {*old.nodes}
        tests = [
            old.parameters[i]
            if i < len(old.parameters)
            else free_name(f"{s.parameter}.test", taken)
            for i, s in zip(live, states, strict=True)
        ]
        types = {name: s.type for name, s in zip(tests, states, strict=True)}
        condition = order_region(old.name, types, old.nodes, old.outputs)
        made = replace(
            self.node,
            type=TupleType(tuple(s.type for s in states)),
            operands=tuple(s.start for s in states),
            regions=(condition, body),
        )
        nodes = {**self.graph.nodes, made.name: made}
        for user in self.graph.users[made.name]:
            attrs = self.graph[user].attrs
            assert isinstance(attrs, GetTupleElementAttrs)
            attrs = GetTupleElementAttrs(live.index(attrs.index))
            nodes[user] = replace(self.graph[user], attrs=attrs)
        return replace(self.graph, nodes=nodes)


def _is_minus_zero(value: Literal) -> bool:
    number = value.numpy()
    return value.dtype.is_float and bool((number == 0).all() and np.signbit(number).all())


def _wrap(number: int, dtype: DType) -> np.ndarray:
    """The integer as arithmetic of its type has it, which wraps around."""
    size = dtype.numpy.itemsize
    return np.asarray(number % (1 << 8 * size), f"u{size}").view(dtype.numpy)
