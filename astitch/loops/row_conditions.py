"""Whiles whose turns are not known, but whose rows do not wait for each other.

Takes a while.  Either it turns as long as any row asks for it, as `vmap` of a `while_loop` does.  Then a turn must hand
on each row that does not ask as it was, and such a row never asks again.  Or scalars alone say when it ends, as in a
`fori_loop` up to an argument.  Hands on the while with one state more, and a Loop whose rows turn as often as they ask.
The idea: each thread can tell when its own rows are done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from astitch.graph.edit import free_name, sort_nodes
from astitch.graph.ir import (
    ArrayType,
    Attrs,
    BroadcastAttrs,
    ConstantAttrs,
    DType,
    Graph,
    Literal,
    NoAttrs,
    Node,
    ParameterAttrs,
    TupleType,
)
from astitch.graph.ops import OPS, Kind, monoid_of
from astitch.graph.ops.arrays import array_types
from astitch.loops.analysis import (
    Affine,
    Carried,
    Counter,
    Invariant,
    Loop,
    count_turns,
    count_turns_while,
    find_counters,
    find_integers,
    find_overflow,
    find_starts,
    refuse_effects,
)
from astitch.loops.axes import find_live
from astitch.loops.merge import find_ancestors

ASSUMED_TURNS = 8
"""Turns by which a loop is projected whose number nobody knows: a guess."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which rows ask for a turn: those where a value is `holds`.  limit: the most turns, if any."""

    name: str
    holds: bool = True
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class _Rows:
    """A while whose rows may end by themselves.

    asked: in its body.  counters: the states that count turns, by their numbers.
    """

    node: Node
    asked: _Asked
    counters: Mapping[int, Affine] = field(default_factory=dict)


def find_row_loop(graph: Graph, node: Node, used: Collection[int]) -> tuple[Graph, Loop] | None:
    """The Loop of such a while, and the graph around it; None where it is another one.

    used: the parts of its final state that somebody reads.  The while has one state more, the last one: which rows
    asked for the turn.
    """
    if refuse_effects(node, (*node.regions[0], *node.regions[1])) is not None:
        return None
    if count_turns(graph, node) is not None:
        return None
    rows = _find_rows(graph, node) or _freeze(node)
    if rows is None:
        return None
    body, asked = rows.node.regions[1], rows.asked
    kept = _find_kept(body, asked)
    read = {asked.name, *find_ancestors(body, asked.name)}
    if any(p in read and i not in kept for i, p in enumerate(body.parameters)):
        return None  # a row that does not ask may ask again
    opened, whole = _add_state(graph, rows.node, asked)
    loop = analyse_rows(opened, whole, asked.limit, rows.counters)
    live = find_live(loop, used)
    for index, (role, parameter) in enumerate(zip(loop.roles, body.parameters, strict=False)):
        if isinstance(role, Counter) and index in used:
            return None
        if isinstance(role, Carried) and index not in kept and {role.value, parameter} & live:
            return None
    return opened, loop


def _find_rows(graph: Graph, node: Node) -> _Rows | None:
    """The while as one that turns as long as any row asks, if it is one."""
    condition, body = node.regions
    counters = {i: c for i, c in find_counters(graph, node).items() if c.scale}
    asked = _find_asked(condition, counters)
    own = _find_in_body(condition, body, asked.name) if asked else None
    if asked is None or own is None:
        return None
    asked = replace(asked, name=own)
    if asked.limit is None:
        return _Rows(node, asked)
    is_counted = find_overflow(array_types(node), counters, asked.limit) is None
    if not is_counted or not 1 < asked.limit < 1 << 31:
        return None
    return _Rows(node, asked, counters)


def analyse_rows(
    graph: Graph, node: Node, limit: int | None, counters: Mapping[int, Affine]
) -> Loop:
    """The Loop of a while whose last state says which rows asked.

    limit: the most turns, if any.  counters: the states that count turns, by their numbers.
    """
    body = node.regions[1]
    trips = ASSUMED_TURNS if limit is None else limit
    given = {body.parameters[i]: counter for i, counter in counters.items()}
    roles = tuple(
        Counter(counters[i])
        if i in counters
        else Invariant()
        if output == name
        else Carried(output)
        for i, (name, output) in enumerate(zip(body.parameters, body.outputs, strict=True))
    )
    integers = find_integers(body, given, trips)
    starts = find_starts(graph, node)
    last = len(roles) - 1
    return Loop(node, trips, roles, {}, integers, starts, asked=last, limited=limit is not None)


# ---- the condition ---------------------------------------------------------------------------------------------------


def _find_asked(condition: Graph, counters: Mapping[int, Affine]) -> _Asked | None:
    """What a condition says of rows: that any asks, and besides that a counter has not come to its end."""
    given = {condition.parameters[i]: counter for i, counter in counters.items()}
    limits: list[int] = []
    found: list[_Asked] = []
    pending = [condition.outputs[0]]
    while pending:
        node = condition[pending.pop()]
        if OPS[node.op].keeps_order or OPS[node.op].combiner is np.bitwise_and:
            pending += node.operands
        elif (rows := _read_rows(condition, node)) is not None:
            found.append(rows)
        elif (count := count_turns_while(condition, node.name, given)) is not None:
            limits.append(count)
        else:
            return None
    if len(found) != 1:
        return None
    return replace(found[0], limit=min(limits) if limits else None)


def _read_rows(condition: Graph, node: Node) -> _Asked | None:
    """Does a truth say that any row asks, or that not all are done?"""
    holds, node = _skip_nots(condition, node, True)
    if not OPS[node.op].is_reduce or len(node.operands) != 2 or node.array.rank:
        return None
    asked, start = (condition[operand] for operand in node.operands)
    if not isinstance(start.attrs, ConstantAttrs) or asked.dtype is not DType.PRED:
        return None
    if monoid_of(node.regions[0]) != ("or" if holds else "and"):
        return None
    if bool(start.attrs.value.numpy()) is holds:
        return None
    holds, asked = _skip_nots(condition, asked, holds)
    return _Asked(asked.name, holds)


def _skip_nots(graph: Graph, node: Node, holds: bool) -> tuple[bool, Node]:
    """What must hold of the value that a truth is of, whether it is negated or not."""
    while OPS[node.op].keeps_order or OPS[node.op].negates:
        holds = holds is not OPS[node.op].negates
        node = graph[node.operands[0]]
    return holds, node


def _find_in_body(condition: Graph, body: Graph, asked: str) -> str | None:
    """The value of a body with the formula that a value of the condition has."""
    wanted, last = _cut_out(condition, asked), _describe(condition[asked])
    alike = (node.name for node in body if _describe(node) == last)
    return next((name for name in alike if _cut_out(body, name) == wanted), None)


def _describe(node: Node) -> tuple[object, ...]:
    """An op without its operands."""
    return node.op, node.type, node.attrs


def _cut_out(region: Graph, name: str) -> Graph:
    """A value of the state, alone."""
    first = {p: region[p] for p in region.parameters}
    nodes = sort_nodes(region.nodes, [name], first)
    return Graph(region.name, nodes, region.parameters, (name,))


# ---- scalars that ask ------------------------------------------------------------------------------------------------


def _freeze(node: Node) -> _Rows | None:
    """The while with a turn that changes nothing where its condition does not hold; None where more than scalars
    decides that."""
    condition, body = node.regions
    alike = _find_alike(body)
    read = {i for i, p in enumerate(condition.parameters) if condition.users[p]}
    read |= {i for i, p in enumerate(condition.parameters) if p in condition.outputs}
    if not read <= alike or not all(map(_is_scalar, condition)):
        return None
    nodes, names = dict(body.nodes), dict(zip(condition.parameters, body.parameters, strict=True))

    def add(op: str, type_: ArrayType, operands: Sequence[str], attrs: Attrs = NoAttrs()) -> str:
        name = free_name("asks", nodes)
        nodes[name] = Node(name, op, type_, tuple(operands), attrs)
        return name

    for inner in condition:
        if not inner.is_parameter:
            operands = [names[o] for o in inner.operands]
            names[inner.name] = add(inner.op, inner.array, operands, inner.attrs)
    asks = names[condition.outputs[0]]
    outputs = []
    for parameter, output in zip(body.parameters, body.outputs, strict=True):
        if output != parameter:
            type_ = body[output].array
            test = ArrayType(DType.PRED, type_.shape)
            along = add("broadcast", test, [asks], BroadcastAttrs(())) if type_.rank else asks
            output = add("select", type_, [along, output, parameter])
        outputs.append(output)
    frozen = Graph(body.name, nodes, body.parameters, tuple(outputs))
    return _Rows(replace(node, regions=(condition, frozen)), _Asked(asks))


def _find_alike(body: Graph) -> set[int]:
    """The scalars of the state that each thread can compute by itself."""
    found = {i for i, p in enumerate(body.parameters) if not body[p].array.rank}
    while True:
        given = {body.parameters[i] for i in found}
        known: set[str] = set()
        for node in body:
            computed = node.name in given if node.is_parameter else known.issuperset(node.operands)
            if computed and _is_scalar(node):
                known.add(node.name)
        left = {i for i in found if body.outputs[i] in known}
        if left == found:
            return found
        found = left


def _is_scalar(node: Node) -> bool:
    """Is it a number, computed from numbers?  What a condition is not asked with may be an array."""
    if node.is_parameter:
        return True
    plain = OPS[node.op].kind is Kind.ELEMENTWISE or node.is_constant or OPS[node.op].keeps_order
    return plain and isinstance(node.type, ArrayType) and not node.array.rank


# ---- rows that do not ask --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Same:
    """A value that is, in such rows, what a state is: that of the parameter of this number."""

    state: int


_Known = _Same | complex | None
"""What a value is in rows that do not ask: a state, a number everywhere, or nobody knows."""


def _find_kept(body: Graph, asked: _Asked) -> set[int]:
    """The states that a turn leaves as they are in rows that do not ask."""
    own, told = asked.name, not asked.holds
    known: dict[str, _Known] = {}
    for node in body:
        if node.name == own:
            known[node.name] = complex(told)
        elif node.is_parameter:
            known[node.name] = _Same(body.parameters.index(node.name))
        elif isinstance(node.type, ArrayType):
            known[node.name] = _fold(node, [known.get(operand) for operand in node.operands])
    pairs = enumerate(zip(body.parameters, body.outputs, strict=True))
    return {
        i
        for i, (parameter, output) in pairs
        if output == parameter
        or known.get(output) == _Same(i)
        or (parameter == own and known.get(output) == told)
    }


def _fold(node: Node, operands: list[_Known]) -> _Known:
    if isinstance(node.attrs, ConstantAttrs):
        value = node.attrs.value.numpy().reshape(-1)
        return complex(value[0]) if value.size and not (value != value[0]).any() else None
    if isinstance(node.attrs, BroadcastAttrs) or OPS[node.op].keeps_order:
        return None if isinstance(operands[0], _Same) else operands[0]
    if OPS[node.op].is_conversion:
        return operands[0] if operands[0] in (0, 1) else None  # every type has these
    rule = _FOLDS.get(node.op)
    return rule(node, operands) if rule else None


def _choose(node: Node, operands: list[_Known]) -> _Known:
    test, one, other = operands
    if one == other:
        return one
    return None if test is None or isinstance(test, _Same) else one if test else other


def _fold_truth(decides: int, node: Node, operands: list[_Known]) -> _Known:
    """Of two truths one decides, or the other one is what counts."""
    if node.dtype is not DType.PRED:
        return None
    if decides in operands:
        return complex(decides)
    return _leave_out(operands, 1 - decides)


def _fold_not(node: Node, operands: list[_Known]) -> _Known:
    known = operands[0]
    if node.dtype is not DType.PRED or known is None or isinstance(known, _Same):
        return None
    return complex(not known)


def _fold_add(node: Node, operands: list[_Known]) -> _Known:
    return _leave_out(operands, 0) if node.dtype.is_integer else None


def _fold_subtract(node: Node, operands: list[_Known]) -> _Known:
    return operands[0] if node.dtype.is_integer and operands[1] == 0 else None


def _leave_out(operands: list[_Known], neutral: int) -> _Known:
    """What is left of two operands if one changes nothing."""
    one, other = operands
    return other if one == neutral else one if other == neutral else None


_FOLDS: Mapping[str, Callable[[Node, list[_Known]], _Known]] = {
    "select": _choose,
    "and": partial(_fold_truth, 0),
    "or": partial(_fold_truth, 1),
    "not": _fold_not,
    "add": _fold_add,
    "subtract": _fold_subtract,
}


# ---- the state of rows that ask --------------------------------------------------------------------------------------


def _add_state(graph: Graph, node: Node, asked: _Asked) -> tuple[Graph, Node]:
    """The while with one state more, which says which rows asked, in the graph around it."""
    own = asked.name
    condition, body = node.regions
    type_ = body[own].array
    regions = []
    for region, outputs in ((condition, condition.outputs), (body, (*body.outputs, own))):
        name = free_name("asked", region.nodes)
        number = len(region.parameters)
        parameter = Node(name, "parameter", type_, (), ParameterAttrs(number))
        nodes = {**region.nodes, name: parameter}
        if region is body and not asked.holds:
            asks = free_name("asks", nodes)
            nodes[asks] = Node(asks, "not", type_, (own,))
            outputs = (*body.outputs, asks)
        regions.append(Graph(region.name, nodes, (*region.parameters, name), outputs))
    holds_at_first = ConstantAttrs(Literal.of(np.asarray(True)))
    true, start = (free_name(name, graph.nodes) for name in ("true", "asked"))
    added = {
        true: Node(true, "constant", ArrayType(DType.PRED, ()), (), holds_at_first),
        start: Node(start, "broadcast", type_, (true,), BroadcastAttrs(())),
    }
    types = TupleType((*array_types(node), type_))
    node = replace(node, type=types, operands=(*node.operands, start), regions=tuple(regions))
    around: dict[str, Node] = {}
    for name, other in graph.nodes.items():
        if name == node.name:
            around |= added
        around[name] = node if name == node.name else other
    return Graph(graph.name, around, graph.parameters, graph.outputs), node
