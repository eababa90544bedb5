"""What need not wait for the turn before, out of a loop.

Takes a Graph and a while in it, hands on the Graph with a while that does less, or the reason why there is none.  The
idea: products of what stacks hold are one product over all turns, before the loop; sums of products over the turns
are one product, after it.  What a body computes behind a barrier it computes again to save memory: for all turns at
once it would take that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astitch.graph.edit import free_name, keep_live_nodes
from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    ConstantAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    DynamicSliceAttrs,
    GetTupleElementAttrs,
    Graph,
    Literal,
    Node,
    ParameterAttrs,
    SliceAttrs,
    TransposeAttrs,
    TupleType,
)
from astitch.graph.ops import OPS, Kind, monoid_of
from astitch.loops.analysis import (
    VIEWS,
    Affine,
    Carried,
    Loop,
    LoopState,
    Place,
    Stack,
    analyse_loop,
)
from astitch.rewrite.barriers import Opened, find_behind, open_barriers


@dataclass(frozen=True, slots=True)
class Hoisted:
    """A graph whose while `name` does less than before.  moved: the products and sums that left it."""

    graph: Graph
    name: str
    moved: tuple[str, ...]


def hoist(graph: Graph, node: Node) -> Hoisted | None:
    """The graph with everything that is parallel over the turns of a while out of it; None where nothing is."""
    condition, body = node.regions
    opened = open_barriers(body)
    loop = analyse_loop(graph, replace(node, regions=(condition, opened.graph)))
    if not isinstance(loop, Loop) or not loop.trips:
        return None
    return _Hoister(graph, loop, _find_recomputed(opened)).hoist()


def _find_recomputed(opened: Opened) -> set[str]:
    """The nodes of a body that compute something from what is behind a barrier."""
    behind = find_behind(opened.barriers)
    held: set[str] = set()
    found: set[str] = set()
    for node in opened.graph:
        if any(o in held or (node.name, o) in behind for o in node.operands):
            held.add(node.name)
            if node.op not in VIEWS:
                found.add(node.name)
    return found


class _NotOverTime(Exception):
    """A value that is not known for all turns at once."""


class _Hoister:
    def __init__(self, graph: Graph, loop: Loop, recomputed: Collection[str]) -> None:
        self.graph, self.loop, self.old = graph, loop, loop.body
        self.recomputed = recomputed
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
        self.moved: list[str] = []
        self.carried = self.find_carried()
        self.outer: dict[str, str] = {}
        self.written: dict[str, str] = {}
        self.timed: dict[str, str] = {}
        self.base = self.find_base()

    # ---- what is known of the body ---------------------------------------------------------------------------------

    def find_carried(self) -> set[str]:
        """The nodes of the body that wait for the turn before, or count turns."""
        carried: set[str] = set()
        invariant = {s.parameter for s in self.states if s.parameter == s.output}
        for node in self.old:
            if node.op == "parameter":
                if node.name not in invariant:
                    carried.add(node.name)
            elif node.name in self.loop.slices:
                if node.operands[0] in carried:
                    carried.add(node.name)
            elif any(o in carried for o in node.operands):
                carried.add(node.name)
        return carried

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

    @property
    def index(self) -> Affine:
        """Which slice of a stack belongs to a turn."""
        assert self.base is not None
        return self.base[0].index

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

    # ---- values outside of the loop --------------------------------------------------------------------------------

    def outside(self, name: str) -> str:
        """A value that no turn changes, computed before the loop."""
        if name not in self.outer:
            node = self.old[name]
            if name in self.old.parameters:
                self.outer[name] = self.node.operands[self.old.parameters.index(name)]
            else:
                operands = tuple(self.outside(o) for o in node.operands)
                copy = replace(node, operands=operands)
                self.outer[name] = self.add(self.before, f"{name}.outside", copy)
        return self.outer[name]

    def is_timed(self, name: str) -> bool:
        """Does a value come from slices of stacks, and from nothing that waits for a turn?"""
        pending, seen, sliced = [name], set[str](), False
        while pending:
            node = self.old[pending.pop()]
            if node.name in seen:
                continue
            seen.add(node.name)
            if node.name in self.carried:
                return False
            if node.name in self.loop.slices:
                sliced = True
            else:
                pending += node.operands
        return sliced

    def over_time(self, name: str) -> str:
        """A value that waits for no turn, for all turns: [turns, *its shape], in the order of the stacks.

        Raises _NotOverTime.
        """
        if name not in self.timed:
            self.timed[name] = self.make_over_time(self.old[name])
        return self.timed[name]

    def make_over_time(self, node: Node) -> str:
        if node.name in self.carried or not isinstance(node.type, ArrayType):
            raise _NotOverTime
        if node.name in self.recomputed:
            raise _NotOverTime
        shape = (self.loop.trips, *node.shape)
        type_ = ArrayType(node.dtype, shape)
        if node.name in self.loop.slices:
            place = self.loop.slices[node.name]
            if self.base is None or place != self.base[0]:
                raise _NotOverTime
            source = self.outside(node.operands[0])
            return self.add(
                self.before, f"{node.name}.stack", Node("", "reshape", type_, (source,))
            )
        if not self.is_timed(node.name):
            along = BroadcastAttrs(tuple(range(1, len(shape))))
            repeated = Node("", "broadcast", type_, (self.outside(node.name),), along)
            return self.add(self.before, f"{node.name}.repeated", repeated)
        attrs = node.attrs
        match node.op, attrs:
            case "broadcast", BroadcastAttrs(dimensions):
                attrs = BroadcastAttrs((0, *(d + 1 for d in dimensions)))
            case "transpose", TransposeAttrs(permutation):
                attrs = TransposeAttrs((0, *(p + 1 for p in permutation)))
            case "concatenate", DimensionAttrs(dimension):
                attrs = DimensionAttrs(dimension + 1)
            case "slice", SliceAttrs(starts, limits, strides):
                attrs = SliceAttrs((0, *starts), (shape[0], *limits), (1, *strides))
            case op, _ if op in VIEWS or OPS[op].kind is Kind.ELEMENTWISE:
                scalars = [o for o in node.operands if self.old[o].array.rank != node.array.rank]
                if scalars and op not in VIEWS:
                    raise _NotOverTime
            case _:
                raise _NotOverTime
        operands = tuple(self.over_time(o) for o in node.operands)
        return self.add(
            self.before,
            f"{node.name}.all",
            replace(node, type=type_, operands=operands, attrs=attrs),
        )

    # ---- products before the loop ----------------------------------------------------------------------------------

    def hoist_products(self) -> None:
        for node in self.old:
            if not isinstance(node.attrs, DotAttrs) or node.attrs.lhs_batch or self.base is None:
                continue
            if node.name in self.recomputed:
                continue
            left, right = node.operands
            matrix = self.old[right]
            k = node.attrs.lhs_contracting
            plain = self.old[left].array.rank == 2 and k == (1,) and matrix.array.rank == 2
            if not plain or right in self.carried or self.is_timed(right):
                continue
            try:
                if self.is_timed(left):
                    total = self.read_product(node, self.over_time(left), self.outside(right))
                elif self.old[left].op == "concatenate":
                    total = self.split_product(node)
                else:
                    continue
            except _NotOverTime:
                continue
            self.body[node.name] = replace(self.body[total], name=node.name)
            del self.body[total]
            self.moved.append(node.name)

    def read_product(self, node: Node, stacked: str, matrix: str) -> str:
        """The product of a whole stack, before the loop, and the turn's slice of it, in the body."""
        assert isinstance(node.attrs, DotAttrs) and self.base is not None
        rows, columns = node.shape
        whole = ArrayType(node.dtype, (self.loop.trips, rows, columns))
        attrs = replace(node.attrs, lhs_contracting=(2,))
        product = self.add(
            self.before, f"{node.name}.all", Node("", "dot", whole, (stacked, matrix), attrs)
        )
        parameter = self.add_state(f"{node.name}.stack", whole, product)
        return self.read_slice(parameter, node.array)

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

    def zero(self, type_: ArrayType) -> str:
        literal = Literal.of(np.asarray(0, type_.dtype.numpy))
        zero = Node("", "constant", ArrayType(type_.dtype, ()), attrs=ConstantAttrs(literal))
        return self.add(self.body, "loop.zero", zero)

    def split_product(self, node: Node) -> str:
        """[x, h] @ w = x @ w1 + h @ w2, the first before the loop."""
        assert isinstance(node.attrs, DotAttrs)
        concatenation, right = self.old[node.operands[0]], node.operands[1]
        if concatenation.attrs != DimensionAttrs(1):
            raise _NotOverTime
        (k,) = node.attrs.rhs_contracting
        whole = self.old[right].array
        timed: list[tuple[str, str]] = []
        rest: list[tuple[str, str]] = []
        start = 0
        for operand in concatenation.operands:
            extent = self.old[operand].shape[1]
            starts, limits = [0, 0], list(whole.shape)
            starts[k], limits[k] = start, start + extent
            shape = tuple(b - a for a, b in zip(starts, limits, strict=True))
            cut = Node(
                "",
                "slice",
                ArrayType(whole.dtype, shape),
                (self.outside(right),),
                SliceAttrs(tuple(starts), tuple(limits), (1, 1)),
            )
            piece = self.add(self.before, f"{right}.rows", cut)
            (timed if self.is_timed(operand) else rest).append((operand, piece))
            start += extent
        if not timed or not rest:
            raise _NotOverTime
        stacks = [(self.over_time(operand), piece) for operand, piece in timed]
        terms = [self.read_product(node, stack, piece) for stack, piece in stacks]
        for operand, piece in rest:
            type_ = self.before[piece].array
            parameter = self.add_state(f"{right}.rows", type_, piece)
            product = replace(node, operands=(operand, parameter))
            terms.append(self.add(self.body, f"{node.name}.rest", product))
        total = terms[0]
        for term in terms[1:]:
            total = self.add(
                self.body, f"{node.name}.sum", Node("", "add", node.array, (total, term))
            )
        return total

    # ---- sums after the loop ---------------------------------------------------------------------------------------

    def hoist_sums(self) -> None:
        """acc' = acc + f(turn): the sum of f over all turns, after the loop."""
        for number, (role, state) in enumerate(
            zip(self.loop.roles, list(self.states), strict=False)
        ):
            if not isinstance(role, Carried) or self.base is None:
                continue
            name = state.parameter
            total = self.old[role.value]
            alone = self.old.users[name] == (total.name,) and not self.old.users[total.name]
            if total.op != "add" or not alone or total.operands.count(name) != 1:
                continue
            if self.old.outputs.count(total.name) != 1 or not total.dtype.is_float:
                continue
            (term,) = (o for o in total.operands if o != name)
            try:
                summed = self.sum_over_time(term)
            except _NotOverTime:
                continue
            start = self.node.operands[number]
            self.dropped[number] = self.add(
                self.after, f"{total.name}.all", replace(total, operands=(start, summed))
            )
            self.moved.append(total.name)

    def hoist_stacks(self) -> None:
        """A stack of sums over columns, or of products, that no turn reads: made of a stack of their operands."""
        for number, (role, state) in enumerate(
            zip(self.loop.roles, list(self.states), strict=False)
        ):
            if not isinstance(role, Stack) or self.base is None or role.place != self.base[0]:
                continue
            name = role.value
            while self.old[name].op in VIEWS and len(self.old.users[name]) == 1:
                name = self.old[name].operands[0]
            if len(self.old.users[name]) != 1:
                continue
            try:
                made = self.make_after(self.old[name])
            except _NotOverTime:
                continue
            whole = Node("", "reshape", state.type, (made,))
            self.dropped[number] = self.add(self.after, f"{state.output}.all", whole)
            self.moved.append(name)

    def make_after(self, node: Node) -> str:
        """A sum or product of all turns, after the loop.  Raises _NotOverTime."""
        attrs = node.attrs
        if isinstance(attrs, SliceAttrs) and self.old[node.operands[0]].op == "dot":
            operands: tuple[str, ...] = (self.make_after(self.old[node.operands[0]]),)
            turns = self.loop.trips
            attrs = SliceAttrs((0, *attrs.starts), (turns, *attrs.limits), (1, *attrs.strides))
        elif node.op == "reduce" and isinstance(attrs, DimensionsAttrs) and len(node.operands) == 2:
            start = self.outside(self.constant(node.operands[1]))
            stack = self.stack_of(node.operands[0])
            operands = (stack, start)
            attrs = DimensionsAttrs(tuple(d + 1 for d in attrs.dimensions))
        elif node.op == "dot" and isinstance(attrs, DotAttrs):
            left, right = node.operands
            plain = self.old[left].array.rank == 2 and attrs.lhs_contracting == (1,)
            if not plain or right in self.carried or self.is_timed(right) or attrs.lhs_batch:
                raise _NotOverTime
            operands = (self.stack_of(left), self.outside(right))
            attrs = replace(attrs, lhs_contracting=(2,))
        else:
            raise _NotOverTime
        type_ = ArrayType(node.dtype, (self.loop.trips, *node.shape))
        whole = replace(node, type=type_, operands=operands, attrs=attrs)
        return self.add(self.after, f"{node.name}.all", whole)

    def constant(self, name: str) -> str:
        """A name, if it is a constant's.  Raises _NotOverTime."""
        if not isinstance(self.old[name].attrs, ConstantAttrs):
            raise _NotOverTime
        return name

    def sum_over_time(self, name: str) -> str:
        """The sum of a value over all turns, after the loop.  Raises _NotOverTime."""
        node = self.old[name]
        match node.op, node.attrs:
            case ("transpose", _) | ("reshape", _) | ("bitcast", _):
                source = self.sum_over_time(node.operands[0])
                return self.add(self.after, f"{name}.all", replace(node, operands=(source,)))
            case "dot", DotAttrs() as attrs:
                left, right = (self.stack_of(o) for o in node.operands)
                both = replace(
                    attrs,
                    lhs_batch=tuple(d + 1 for d in attrs.lhs_batch),
                    rhs_batch=tuple(d + 1 for d in attrs.rhs_batch),
                    # Without a contraction the turns were multiplied exactly and added up.
                    precision=attrs.precision if attrs.lhs_contracting else ("HIGHEST", "HIGHEST"),
                    lhs_contracting=(0, *(d + 1 for d in attrs.lhs_contracting)),
                    rhs_contracting=(0, *(d + 1 for d in attrs.rhs_contracting)),
                )
                whole = replace(node, operands=(left, right), attrs=both)
                return self.add(self.after, f"{name}.all", whole)
            case "reduce", DimensionsAttrs(dimensions) if len(node.operands) == 2:
                zero = self.old[node.operands[1]]
                plain = isinstance(zero.attrs, ConstantAttrs) and not zero.attrs.value.numpy().any()
                if monoid_of(node.regions[0]) != "add" or not plain:
                    raise _NotOverTime
                stack = self.stack_of(node.operands[0])
                along = DimensionsAttrs((0, *(d + 1 for d in dimensions)))
                operands = (stack, self.outside(zero.name))
                return self.add(
                    self.after, f"{name}.all", replace(node, operands=operands, attrs=along)
                )
        raise _NotOverTime

    def stack_of(self, name: str) -> str:
        """A value of all turns, after the loop: read from stacks, or written into one by the loop."""
        if self.is_timed(name):
            return self.over_time(name)
        if name not in self.old.nodes or name not in self.carried:
            raise _NotOverTime
        node = self.old[name]
        type_ = ArrayType(node.dtype, (self.loop.trips, *node.shape))
        for number, role in enumerate(self.loop.roles):
            if isinstance(role, Stack) and self.base is not None and role.place == self.base[0]:
                value = role.value
                while self.old[value].op in VIEWS and value != name:
                    value = self.old[value].operands[0]
                if value == name:
                    result = self.project(number)
                    return self.add(
                        self.after, f"{name}.stack", Node("", "reshape", type_, (result,))
                    )
        if name not in self.written:
            self.written[name] = self.project(self.add_stack(name, type_))
        return self.written[name]

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
        """A part of the final state, after the loop; its number is settled when the loop is made."""
        attrs = GetTupleElementAttrs(number)
        type_ = self.states[number].type
        node = Node("", "get-tuple-element", type_, (self.node.name,), attrs)
        return self.add(self.after, f"{self.node.name}.part", node)

    # ---- the graph -------------------------------------------------------------------------------------------------

    def hoist(self) -> Hoisted | None:
        self.hoist_products()
        self.hoist_sums()
        self.hoist_stacks()
        if not self.moved:
            return None
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
        condition = self.node.regions[0]
        tests = {self.loop.body.parameters[i]: p for i, p in enumerate(condition.parameters)}
        of_condition = {
            name: node for name, node in condition.nodes.items() if node.op != "parameter"
        }
        named = [
            replace(s, parameter=tests.get(s.parameter) or self.fresh(f"{s.parameter}.test"))
            for s in states
        ]
        test = order_region(
            condition.name, {s.parameter: s.type for s in named}, of_condition, condition.outputs
        )
        types = tuple(s.type for s in states)
        type_ = types[0] if len(types) == 1 else TupleType(types)
        made = replace(
            self.node,
            type=type_,
            operands=tuple(s.start for s in states),
            regions=(test, body),
        )
        return Hoisted(self.place(made, numbers), self.node.name, tuple(self.moved))

    def drop_unread(self, kept: Sequence[int]) -> list[int]:
        """Without the invariants that no turn reads any more, and nobody after the loop."""
        read: set[str] = set()
        pending = [s.output for i, s in enumerate(self.states) if i in kept]
        pending = [output for output in pending if self.body[output].op != "parameter"]
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
    pending = [*reversed(outputs)]
    while pending:
        wanted = pending[-1]
        if wanted in ordered:
            pending.pop()
            continue
        missing = [o for o in nodes[wanted].operands if o not in ordered]
        if missing:
            pending += missing
            continue
        ordered[wanted] = nodes[wanted]
        pending.pop()
    return Graph(name, ordered, tuple(parameters), tuple(outputs))


def hoist_loops(graph: Graph, worth: Callable[[Graph, Node], bool]) -> Graph:
    """The graph in which every while that is worth it does less.  worth: is the new while?  Of some nothing is left."""
    for name in [node.name for node in graph if node.op == "while"]:
        found = hoist(graph, graph[name]) if name in graph.nodes else None
        if found is not None and (
            name not in found.graph.nodes or worth(found.graph, found.graph[name])
        ):
            graph = found.graph
    return graph
