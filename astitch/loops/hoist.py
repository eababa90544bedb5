"""What need not wait for the turn before, out of a loop.

Takes a Graph and a while in it, hands on the Graph with a while that does less, or the reason why there is none.  The
idea: products of what stacks hold are one product over all turns, before the loop; sums of products over the turns
are one product, after it.  What a body computes behind a barrier it computes again to save memory: for all turns at
once it would take that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from astitch.graph.ir import (
    ArrayType,
    ConstantAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    Graph,
    Node,
    ParameterAttrs,
    SliceAttrs,
)
from astitch.graph.ops import OPS, is_addition, monoid_of
from astitch.loops.analysis import Carried, Loop, LoopState, Stack, analyse_loop
from astitch.loops.over_turns import NotOverTurns, OverTurns
from astitch.loops.rewrite import LoopRewrite
from astitch.rewrite.barriers import Opened, find_behind, open_barriers

MOST_NEW_BYTES = 1 << 20
"""The largest stack that a loop without products writes so that a sum may leave it: XLA writes none."""

SHORT_SUM = 16
"""A sum of so few numbers leaves no loop for a larger stack: they may all be one thread's."""


@dataclass(frozen=True, slots=True)
class Hoisted:
    """A graph whose while `name` does less than before.  moved: the products and sums that left it."""

    graph: Graph
    name: str
    moved: tuple[str, ...]


def hoist(graph: Graph, node: Node, sums_alone: bool = False) -> Hoisted | None:
    """The graph with everything that is parallel over the turns of a while out of it; None where nothing is.

    sums_alone: only sums over the turns of what stacks hold anyway: no array is new.
    """
    condition, body = node.regions
    opened = open_barriers(body)
    loop = analyse_loop(graph, replace(node, regions=(condition, opened.graph)))
    if not isinstance(loop, Loop) or not loop.trips:
        return None
    return _Hoister(graph, loop, _find_recomputed(opened), sums_alone).hoist()


def _find_recomputed(opened: Opened) -> set[str]:
    """The nodes of a body that compute something from what is behind a barrier."""
    behind = find_behind(opened.barriers)
    held: set[str] = set()
    found: set[str] = set()
    for node in opened.graph:
        if any(o in held or (node.name, o) in behind for o in node.operands):
            held.add(node.name)
            if not OPS[node.op].keeps_order:
                found.add(node.name)
    return found


class _Hoister:
    """Moves products and sums out of one loop.  moved: what has left it.  written: stacks that it writes for that.
    sums_alone: see hoist."""

    def __init__(
        self, graph: Graph, loop: Loop, recomputed: Collection[str], sums_alone: bool
    ) -> None:
        self.sums_alone = sums_alone
        self.loop, self.old, self.node = loop, loop.body, loop.node
        self.recomputed = recomputed
        self.made = LoopRewrite(graph, loop)
        self.values = OverTurns(self.made, recomputed)
        self.moved: list[str] = []
        self.written: dict[str, str] = {}
        self.multiplies = any(isinstance(node.attrs, DotAttrs) for node in self.old)

    def hoist(self) -> Hoisted | None:
        """The graph with a loop that does less; None where nothing can leave it."""
        if self.sums_alone:
            self.hoist_sums()
        else:
            self.hoist_products()
            self.widen_sums()
            self.hoist_sums()
            self.hoist_stacks()
        if not self.moved:
            return None
        return Hoisted(self.made.finish(), self.node.name, tuple(self.moved))

    # ---- products before the loop ----------------------------------------------------------------------------------

    def hoist_products(self) -> None:
        for node in self.old:
            if (
                not isinstance(node.attrs, DotAttrs)
                or node.attrs.lhs_batch
                or self.made.base is None
            ):
                continue
            if node.name in self.recomputed:
                continue
            left, right = node.operands
            matrix = self.old[right]
            k = node.attrs.lhs_contracting
            plain = self.old[left].array.rank == 2 and k == (1,) and matrix.array.rank == 2
            if not plain or right in self.values.carried or self.values.is_timed(right):
                continue
            try:
                if self.values.is_timed(left):
                    total = self.read_product(
                        node, self.values.over_turns(left), self.values.outside(right)
                    )
                elif isinstance(self.old[left].attrs, DimensionAttrs):
                    total = self.split_product(node)
                else:
                    continue
            except NotOverTurns:
                continue
            self.made.body[node.name] = replace(self.made.body[total], name=node.name)
            del self.made.body[total]
            self.moved.append(node.name)

    def read_product(self, node: Node, stacked: str, matrix: str) -> str:
        """The product of a whole stack, before the loop, and the turn's slice of it, in the body."""
        assert isinstance(node.attrs, DotAttrs) and self.made.base is not None
        rows, columns = node.shape
        whole = ArrayType(node.dtype, (self.loop.trips, rows, columns))
        attrs = replace(node.attrs, lhs_contracting=(2,))
        product = self.made.add(
            self.made.before, f"{node.name}.all", Node("", "dot", whole, (stacked, matrix), attrs)
        )
        parameter = self.made.add_state(f"{node.name}.stack", whole, product)
        return self.made.read_slice(parameter, node.array)

    def split_product(self, node: Node) -> str:
        """[x, h] @ w = x @ w1 + h @ w2, the first before the loop."""
        assert isinstance(node.attrs, DotAttrs)
        concatenation, right = self.old[node.operands[0]], node.operands[1]
        if concatenation.attrs != DimensionAttrs(1):
            raise NotOverTurns
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
                (self.values.outside(right),),
                SliceAttrs(tuple(starts), tuple(limits), (1, 1)),
            )
            piece = self.made.add(self.made.before, f"{right}.rows", cut)
            (timed if self.values.is_timed(operand) else rest).append((operand, piece))
            start += extent
        if not timed or not rest:
            raise NotOverTurns
        stacks = [(self.values.over_turns(operand), piece) for operand, piece in timed]
        terms = [self.read_product(node, stack, piece) for stack, piece in stacks]
        for operand, piece in rest:
            type_ = self.made.before[piece].array
            parameter = self.made.add_state(f"{right}.rows", type_, piece)
            product = replace(node, operands=(operand, parameter))
            terms.append(self.made.add(self.made.body, f"{node.name}.rest", product))
        total = terms[0]
        for term in terms[1:]:
            total = self.made.add(
                self.made.body, f"{node.name}.sum", Node("", "add", node.array, (total, term))
            )
        return total

    # ---- sums element by element -----------------------------------------------------------------------------------

    def widen_sums(self) -> None:
        """acc' = acc + sum(x) + sum(y): the loop adds up x + y element by element, and their sum is made after it.

        Only where nothing is multiplied: a thread has its elements' totals in registers, and no element meets another.
        """
        if self.multiplies:
            return
        for number, (role, state) in enumerate(
            zip(self.loop.roles, list(self.made.states), strict=True)
        ):
            if not isinstance(role, Carried):
                continue
            sums = self.find_sums(state.parameter, role.value)
            if not sums:
                continue
            terms = [self.old[node.operands[0]] for node in sums]
            type_ = terms[0].array
            total = self.made.fresh(f"{state.output}.wide")
            self.made.body = {
                total: Node(total, "parameter", type_, attrs=ParameterAttrs(0)),
                **self.made.body,
            }
            output = total
            for term in terms:
                added = Node("", "add", type_, (output, term.name))
                output = self.made.add(self.made.body, f"{total}.sum", added)
            start = self.made.broadcast_number(self.made.before, type_, 0)
            self.made.states.append(LoopState(total, output, type_, start))
            whole = self.made.project(len(self.made.states) - 1)
            zero = self.values.outside(sums[0].operands[1])
            summed = self.made.add(
                self.made.after, f"{output}.all", replace(sums[0], operands=(whole, zero))
            )
            shaped = Node("", "reshape", state.type, (summed,))
            summed = self.made.add(self.made.after, f"{output}.shaped", shaped)
            old = self.node.operands[number]
            self.made.dropped[number] = self.made.add(
                self.made.after,
                f"{state.output}.all",
                Node("", "add", state.type, (old, summed)),
            )
            self.moved.append(state.output)

    def find_sums(self, parameter: str, value: str) -> list[Node]:
        """The sums along equal dimensions of equal arrays that a turn adds to a state, and nothing else; none where
        somebody else reads the state."""
        sums: list[Node] = []
        pending, adds, found = [value], 0, False
        while pending:
            node = self.old[pending.pop()]
            if node.name == parameter and not found:
                found = len(self.old.users[parameter]) == 1
                continue
            expected = 1 if node.name == value else 0
            if self.old.outputs.count(node.name) != expected:
                return []
            if is_addition(node) and (node.dtype.bytes >= 4 or not node.dtype.is_float):
                if len(self.old.users[node.name]) != 1 - expected:
                    return []
                pending += node.operands
                adds += 1
                continue
            while OPS[node.op].keeps_order:
                node = self.old[node.operands[0]]
            if not self.is_plain_sum(node):
                return []
            sums.append(node)
        alike = {(self.old[n.operands[0]].array, n.attrs) for n in sums}
        return sums if found and adds and len(alike) == 1 else []

    def is_plain_sum(self, node: Node) -> bool:
        """Is a node a sum that starts at zero?"""
        if not OPS[node.op].is_reduce or len(node.operands) != 2:
            return False
        zero = self.old[node.operands[1]].attrs
        plain = isinstance(zero, ConstantAttrs) and not zero.value.numpy().any()
        return plain and monoid_of(node.regions[0]) == "add"

    # ---- sums after the loop ---------------------------------------------------------------------------------------

    def hoist_sums(self) -> None:
        """acc' = acc + f(turn): the sum of f over all turns, after the loop."""
        for number, (role, state) in enumerate(
            zip(self.loop.roles, list(self.made.states), strict=False)
        ):
            if not isinstance(role, Carried) or self.made.base is None:
                continue
            if number in self.made.dropped:
                continue
            name = state.parameter
            total = self.old[role.value]
            alone = self.old.users[name] == (total.name,) and not self.old.users[total.name]
            if not is_addition(total) or not alone or total.operands.count(name) != 1:
                continue
            if self.old.outputs.count(total.name) != 1 or not total.dtype.is_float:
                continue
            (term,) = (o for o in total.operands if o != name)
            try:
                summed = self.sum_over_turns(term)
            except NotOverTurns:
                continue
            start = self.node.operands[number]
            self.made.dropped[number] = self.made.add(
                self.made.after, f"{total.name}.all", replace(total, operands=(start, summed))
            )
            self.moved.append(total.name)

    def hoist_stacks(self) -> None:
        """A stack of sums over columns, or of products, that no turn reads: made of a stack of their operands."""
        for number, (role, state) in enumerate(
            zip(self.loop.roles, list(self.made.states), strict=False)
        ):
            if (
                not isinstance(role, Stack)
                or self.made.base is None
                or role.place != self.made.base[0]
            ):
                continue
            name = role.value
            while OPS[self.old[name].op].keeps_order and len(self.old.users[name]) == 1:
                name = self.old[name].operands[0]
            if len(self.old.users[name]) != 1:
                continue
            try:
                made = self.make_after(self.old[name])
            except NotOverTurns:
                continue
            whole = Node("", "reshape", state.type, (made,))
            self.made.dropped[number] = self.made.add(self.made.after, f"{state.output}.all", whole)
            self.moved.append(name)

    def make_after(self, node: Node) -> str:
        """A sum or product of all turns, after the loop.  Raises NotOverTurns."""
        attrs = node.attrs
        if isinstance(attrs, SliceAttrs) and isinstance(self.old[node.operands[0]].attrs, DotAttrs):
            operands: tuple[str, ...] = (self.make_after(self.old[node.operands[0]]),)
            turns = self.loop.trips
            attrs = SliceAttrs((0, *attrs.starts), (turns, *attrs.limits), (1, *attrs.strides))
        elif (
            OPS[node.op].is_reduce
            and isinstance(attrs, DimensionsAttrs)
            and len(node.operands) == 2
        ):
            start = self.values.outside(self.constant(node.operands[1]))
            summed = self.old[node.operands[0]].array
            is_short = summed.size <= SHORT_SUM * node.array.size
            stack = self.stack_of(node.operands[0], writes_much=not is_short)
            operands = (stack, start)
            attrs = DimensionsAttrs(tuple(d + 1 for d in attrs.dimensions))
        elif isinstance(attrs, DotAttrs):
            left, right = node.operands
            plain = self.old[left].array.rank == 2 and attrs.lhs_contracting == (1,)
            if (
                not plain
                or right in self.values.carried
                or self.values.is_timed(right)
                or attrs.lhs_batch
            ):
                raise NotOverTurns
            operands = (self.stack_of(left), self.values.outside(right))
            attrs = replace(attrs, lhs_contracting=(2,))
        else:
            raise NotOverTurns
        type_ = ArrayType(node.dtype, (self.loop.trips, *node.shape))
        whole = replace(node, type=type_, operands=operands, attrs=attrs)
        return self.made.add(self.made.after, f"{node.name}.all", whole)

    def constant(self, name: str) -> str:
        """A name, if it is a constant's.  Raises NotOverTurns."""
        if not isinstance(self.old[name].attrs, ConstantAttrs):
            raise NotOverTurns
        return name

    def sum_over_turns(self, name: str) -> str:
        """The sum of a value over all turns, after the loop.  Raises NotOverTurns."""
        node = self.old[name]
        row = OPS[node.op]
        match node.attrs:
            case _ if row.permutes:
                source = self.sum_over_turns(node.operands[0])
                return self.made.add(
                    self.made.after, f"{name}.all", replace(node, operands=(source,))
                )
            case DotAttrs() as attrs:
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
                return self.made.add(self.made.after, f"{name}.all", whole)
            case DimensionsAttrs(dimensions) if row.is_reduce and len(node.operands) == 2:
                if not self.is_plain_sum(node):
                    raise NotOverTurns
                stack = self.stack_of(node.operands[0])
                along = DimensionsAttrs((0, *(d + 1 for d in dimensions)))
                operands = (stack, self.values.outside(node.operands[1]))
                return self.made.add(
                    self.made.after, f"{name}.all", replace(node, operands=operands, attrs=along)
                )
        raise NotOverTurns

    def stack_of(self, name: str, *, writes_much: bool = True) -> str:
        """A value of all turns, after the loop: read from stacks, or written into one by the loop.

        writes_much: may this be more than MOST_NEW_BYTES?  Raises NotOverTurns.
        """
        if self.values.is_timed(name) and (not self.sums_alone or self.is_slice(name)):
            return self.values.over_turns(name)
        if name not in self.old.nodes or name not in self.values.carried:
            raise NotOverTurns
        node = self.old[name]
        type_ = ArrayType(node.dtype, (self.loop.trips, *node.shape))
        for number, role in enumerate(self.loop.roles):
            if (
                isinstance(role, Stack)
                and self.made.base is not None
                and role.place == self.made.base[0]
            ):
                if self.find_source(role.value) == self.find_source(name):
                    result = self.made.project(number)
                    return self.made.add(
                        self.made.after, f"{name}.stack", Node("", "reshape", type_, (result,))
                    )
        if name not in self.written:
            if self.sums_alone:
                raise NotOverTurns
            may_be_large = writes_much and self.multiplies
            if not may_be_large and type_.bytes > MOST_NEW_BYTES:
                raise NotOverTurns
            self.written[name] = self.made.project(self.made.add_stack(name, type_))
        return self.written[name]

    def find_source(self, name: str) -> str:
        """The value whose elements a value has in the same order."""
        while OPS[self.old[name].op].keeps_order and name not in self.loop.slices:
            name = self.old[name].operands[0]
        return name

    def is_slice(self, name: str) -> bool:
        """Is a value a slice of a stack, as it lies there?"""
        return self.find_source(name) in self.loop.slices


def hoist_loops(
    graph: Graph, worth: Callable[[Graph, Node], bool], no_arrays: bool = False
) -> Graph:
    """The graph in which every while that is worth it does less.  worth: is the new while?  Of some nothing is left.

    Of the others sums leave that need no new array.  A product of few rows that is added up in each turn reads and
    writes the whole sum: the gradient of a recurrent matrix, which is one large product after the loop.
    no_arrays: that is all that leaves a while which is worth it so.
    """
    for name in [node.name for node in graph if OPS[node.op].is_loop]:
        if name in graph.nodes:
            graph = _hoist_one(graph, name, worth, no_arrays)
    return graph


def _hoist_one(
    graph: Graph, name: str, worth: Callable[[Graph, Node], bool], no_arrays: bool
) -> Graph:
    def is_worth(made: Graph) -> bool:
        return name not in made.nodes or worth(made, made[name])

    def hoist_sums() -> Graph:
        found = hoist(graph, graph[name], sums_alone=True)
        return found.graph if found else graph

    if no_arrays and is_worth(made := hoist_sums()):
        return made
    found = hoist(graph, graph[name])
    if found is None:
        return graph
    return found.graph if is_worth(found.graph) else hoist_sums()
