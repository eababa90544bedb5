"""Graph -> Graph: a loop carries an array in the order in which the products of its body read it.

A cache [batch, words, heads, size] that a product reads head by head goes through memory in each turn, to lie
[batch, heads, words, size].  Here the loop carries it so: it is transposed once in front of the loop and once behind
it, and the body updates it in the new order.  XLA's layout assignment does the same for some bodies and not for others,
and never where a custom call updates the array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from astitch.graph.edit import free_name
from astitch.graph.ir import (
    ArrayType,
    DotAttrs,
    DynamicSliceAttrs,
    GetTupleElementAttrs,
    Graph,
    Node,
    TransposeAttrs,
    TupleType,
)
from astitch.graph.ops import OPS
from astitch.loops.analysis import count_turns
from astitch.rewrite.draft import ascends

LEAST_BYTES = 256 << 10
"""A smaller array is transposed in each turn in less time than a launch takes: an estimate."""

LEAST_TURNS = 4
"""In front of a loop and behind it an array is transposed, else at least once a turn."""

Permutation = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class State:
    """An array that a loop carries: transpose(it, permutation) is what it shall carry.

    held: the state and its updates.  readers: the products, transposes and slices that read them.
    """

    permutation: Permutation
    held: frozenset[str]
    readers: frozenset[str]


def carry_as_read(graph: Graph, is_kernel: Callable[[Graph, Node], bool]) -> Graph:
    """The same function.  is_kernel: will a while be one kernel, which reads its state in any order?

    Nested loops stay as they are: each turn around them would transpose.
    """
    for name in [node.name for node in graph if OPS[node.op].is_loop]:
        node = graph[name]
        states = _find_states(graph, node)
        if not states or is_kernel(graph, node):
            continue
        turns = count_turns(graph, node)
        if turns is None or turns[0] >= LEAST_TURNS:
            graph = carry(graph, node, states)
    return graph


def _find_states(graph: Graph, node: Node) -> dict[int, State]:
    """By its number, what a loop had better carry in another order."""
    found = {number: _find_state(node.regions[1], number) for number in list_movable(graph, node)}
    return {number: state for number, state in found.items() if state is not None}


def list_movable(graph: Graph, loop: Node) -> list[int]:
    """The numbers of what a loop may carry in another order: its condition does not read them, and nobody reads its
    state as a whole."""
    users = [graph[user].attrs for user in graph.users[loop.name]]
    projected = all(isinstance(attrs, GetTupleElementAttrs) for attrs in users)
    if not isinstance(loop.type, TupleType) or not projected or loop.name in graph.outputs:
        return []
    condition = loop.regions[0]
    return [
        number
        for number, name in enumerate(condition.parameters)
        if not condition.users[name] and name not in condition.outputs
    ]


def _find_state(body: Graph, number: int) -> State | None:
    """The order of a state that is updated in place, and else only read by products: all in this one order."""
    parameter, output = body.parameters[number], body.outputs[number]
    array = body[parameter].array
    if array.bytes < LEAST_BYTES or output == parameter:
        return None
    held, readers, orders = {parameter: None}, set[str](), set[Permutation]()
    pending = [parameter]
    while pending:
        name = pending.pop()
        if body.outputs.count(name) != (name == output):
            return None
        for user in map(body.__getitem__, body.users[name]):
            if _updates(user, name):
                held[user.name] = None
                pending.append(user.name)
                continue
            read = list(_list_orders(body, user, name))
            if not read:
                return None
            readers.add(user.name)
            orders.update(read)
    identity = tuple(range(array.rank))
    if output not in held or len(orders) != 1 or orders == {identity}:
        return None
    return State(orders.pop(), frozenset(held), frozenset(readers))


def _updates(node: Node, name: str) -> bool:
    """Does a node update a slice of a value, and read it for nothing else?"""
    row = OPS[node.op]
    return (
        row.writes_into
        and not node.regions
        and node.operands.count(name) == 1
        and (node.operands[0] == name)
    )


def _list_orders(body: Graph, node: Node, name: str) -> Iterator[Permutation]:
    """In which order of the value's dimensions each product that reads it through a node would read it as it lies.

    Nothing where something else reads it.
    """
    array = body[name].array
    if isinstance(node.attrs, DotAttrs):
        yield from _list_product_orders(node, array, name, tuple(range(array.rank)))
    elif isinstance(node.attrs, TransposeAttrs) and node.name not in body.outputs:
        found: list[Permutation] = []
        for user in map(body.__getitem__, body.users[node.name]):
            if not isinstance(user.attrs, DotAttrs):
                return
            orders = list(_list_product_orders(user, array, node.name, node.attrs.permutation))
            if not orders:
                return
            found += orders
        yield from found


def _list_product_orders(
    node: Node, array: ArrayType, name: str, permutation: Permutation
) -> Iterator[Permutation]:
    """The order for each side of a product that reads a value; none where no order would do for one of them.

    array: what the product's operand is made of.  permutation: from the operand's dimensions to the array's.
    A library reads a batch of matrices: the batch's dimensions side by side in front or in the middle, then those that
    are summed over side by side, and the others.
    """
    attrs = node.attrs
    assert isinstance(attrs, DotAttrs)
    sides = (
        (attrs.lhs_batch, attrs.lhs_contracting),
        (attrs.rhs_batch, attrs.rhs_contracting),
    )
    found: list[Permutation] = []
    for operand, (batch, contracting) in zip(node.operands, sides, strict=True):
        if operand != name:
            continue
        first = [permutation[d] for d in batch]
        summed = {permutation[d] for d in contracting}
        rest = [d for d in range(array.rank) if d not in first]
        roles = dict.fromkeys(rest, "free") | dict.fromkeys(summed, "summed")
        in_order = ascends([d for d in first if array.shape[d] > 1])
        lies = _list_runs(array, roles, range(array.rank))
        runs = _list_runs(array, roles, rest)
        if in_order and lies[-1:] != ["batch"] and len(lies) == len(set(lies)):
            found.append(tuple(range(array.rank)))
        elif len(runs) == len(set(runs)):
            found.append((*first, *rest))
        else:
            return
    yield from found


def _list_runs(array: ArrayType, roles: Mapping[int, str], dimensions: Sequence[int]) -> list[str]:
    """What dimensions are to a product, one after the other: each once for those side by side."""
    named = [roles.get(d, "batch") for d in dimensions if array.shape[d] > 1]
    return [role for role, _ in groupby(named)]


# ---- the loop anew


@dataclass(slots=True)
class _Writer:
    """Nodes being written; a new one gets a name that is free."""

    nodes: dict[str, Node] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def transpose(self, value: str, array: ArrayType, permutation: Permutation, name: str) -> str:
        """The transpose of a value; array: its type before."""
        unique = free_name(name, self.taken)
        self.taken.add(unique)
        type_, attrs = _turn(array, permutation), TransposeAttrs(permutation)
        self.nodes[unique] = Node(unique, "transpose", type_, (value,), attrs)
        return unique


def _turn(array: ArrayType, permutation: Permutation) -> ArrayType:
    return ArrayType(array.dtype, tuple(array.shape[d] for d in permutation))


def invert(permutation: Permutation) -> Permutation:
    """The permutation that undoes one."""
    return tuple(permutation.index(d) for d in range(len(permutation)))


def carry(graph: Graph, loop: Node, states: Mapping[int, State]) -> Graph:
    """The graph with transposes around a loop that carries states in other orders.

    states: by number, see list_movable.
    """
    made = _Writer(taken=set(graph.nodes))
    for node in graph:
        if node.name == loop.name:
            made.nodes[node.name] = _turn_loop(graph, node, states, made)
            continue
        number = node.attrs.index if isinstance(node.attrs, GetTupleElementAttrs) else -1
        if loop.name not in node.operands or number not in states:
            made.nodes[node.name] = node
            continue
        permutation = states[number].permutation
        turned = free_name(f"{node.name}.carried", made.taken)
        made.taken.add(turned)
        array = _turn(node.array, permutation)
        made.nodes[turned] = replace(node, name=turned, type=array)
        back = TransposeAttrs(invert(permutation))
        made.nodes[node.name] = replace(node, op="transpose", operands=(turned,), attrs=back)
    return replace(graph, nodes=made.nodes)


def _turn_loop(graph: Graph, loop: Node, states: Mapping[int, State], made: _Writer) -> Node:
    operands = list(loop.operands)
    for number, state in states.items():
        before = operands[number]
        name = f"{before}.carried"
        operands[number] = made.transpose(before, graph[before].array, state.permutation, name)
    condition, body = loop.regions
    types = tuple(made.nodes[o].array if o in made.nodes else graph[o].array for o in operands)
    nodes = dict(condition.nodes)
    for number in states:
        name = condition.parameters[number]
        nodes[name] = replace(nodes[name], type=types[number])
    regions = (replace(condition, nodes=nodes), _turn_body(body, states))
    return replace(loop, type=TupleType(types), operands=tuple(operands), regions=regions)


def _turn_body(body: Graph, states: Mapping[int, State]) -> Graph:
    held = {name: state.permutation for state in states.values() for name in state.held}
    readers = {name for state in states.values() for name in state.readers}
    made = _Writer(taken=set(body.nodes))
    for node in body:
        if node.name in held:
            permutation = held[node.name]
            turned = replace(node, type=_turn(node.array, permutation))
            if not node.is_parameter:
                whole, update, *starts = node.operands
                name = f"{update}.carried"
                update = made.transpose(update, body[update].array, permutation, name)
                starts = [starts[d] for d in permutation]
                turned = replace(turned, operands=(whole, update, *starts))
            made.nodes[node.name] = turned
        elif node.name in readers and isinstance(node.attrs, DynamicSliceAttrs):
            _turn_slice(node, held[node.operands[0]], made)
        elif node.name in readers:
            made.nodes[node.name] = _turn_reader(node, held)
        else:
            made.nodes[node.name] = node
    return replace(body, nodes=made.nodes)


def _turn_slice(node: Node, permutation: Permutation, made: _Writer) -> None:
    """A slice of a value that lies in another order now, and its transpose in the order before."""
    assert isinstance(node.attrs, DynamicSliceAttrs)
    whole, *starts = node.operands
    attrs = DynamicSliceAttrs(tuple(node.attrs.sizes[d] for d in permutation))
    name = free_name(f"{node.name}.carried", made.taken)
    made.taken.add(name)
    operands = (whole, *(starts[d] for d in permutation))
    made.nodes[name] = replace(
        node, name=name, type=_turn(node.array, permutation), operands=operands, attrs=attrs
    )
    back = TransposeAttrs(invert(permutation))
    made.nodes[node.name] = replace(node, op="transpose", operands=(name,), attrs=back)


def _turn_reader(node: Node, held: Mapping[str, Permutation]) -> Node:
    """A product or transpose of values that lie in another order now."""
    if isinstance(node.attrs, TransposeAttrs):
        permutation = held[node.operands[0]]
        moved = tuple(permutation.index(d) for d in node.attrs.permutation)
        return replace(node, attrs=TransposeAttrs(moved))
    attrs = node.attrs
    assert isinstance(attrs, DotAttrs)
    sides = [(attrs.lhs_batch, attrs.lhs_contracting), (attrs.rhs_batch, attrs.rhs_contracting)]
    for side, operand in enumerate(node.operands):
        if operand in held:
            permutation = held[operand]
            batch, contracting = (tuple(map(permutation.index, part)) for part in sides[side])
            sides[side] = batch, contracting
    (lhs_batch, lhs_contracting), (rhs_batch, rhs_contracting) = sides
    return replace(
        node,
        attrs=replace(
            attrs,
            lhs_batch=lhs_batch,
            lhs_contracting=lhs_contracting,
            rhs_batch=rhs_batch,
            rhs_contracting=rhs_contracting,
        ),
    )
