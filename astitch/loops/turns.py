"""A `while` as a graph of one turn, for loops whose whole body is one kernel that turns by itself.

Takes a while and the graph around it, hands on Turns or the reason why there are none.  The idea: what a body
computes of a state is a graph like any other, so a stitch op computes it.  Only where its parameters lie changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from astitch.graph.edit import free_name
from astitch.graph.ir import ArrayType, DynamicSliceAttrs, Graph, Node, ParameterAttrs
from astitch.graph.ops import OPS, Kind
from astitch.loops.analysis import (
    Affine,
    Carried,
    Counter,
    Invariant,
    Loop,
    LoopRefusal,
    Place,
    Role,
    Stack,
    analyse_loop,
    count_turns,
    find_counters,
    find_integers,
    find_starts,
    refuse_effects,
)


@dataclass(frozen=True, slots=True)
class Level:
    """A dimension of rows, shared out among `blocks`, each of which has `rows` of them.

    split, slices: the parts of the state, and the slices, that have the dimension.  first_row: the parameter of the
    turn that is the number of a block's first row; empty: there is none.
    """

    blocks: int
    rows: int
    split: frozenset[int]
    slices: frozenset[str]
    first_row: str


@dataclass(frozen=True)
class Turns:
    """A while, and its turn as a graph of its own.

    loop: its roles; those of counters are Carried where nobody knows how often it turns.
    graph: the turn.  Its parameters are the body's.  Its outputs are the new values of `carried`, then the slices of
    `stacks`; with `asks` also whether the state that the turn began with was to turn.
    counters: the parts of the state that the number of the turn decides.
    counted: is it known how often the loop turns?
    condition: where it is not, and single numbers decide: the region that says so of a state.
    slices: parameters of the graph besides, each a slice of an invariant: of which state, and where.

    levels: how rows that never meet are shared out among blocks, the outer dimension first (see turn_rows.py).
    """

    loop: Loop
    graph: Graph
    carried: tuple[int, ...]
    stacks: tuple[int, ...]
    counters: Mapping[int, Affine]
    counted: bool
    condition: Graph | None = None
    slices: Mapping[str, tuple[int, Place]] = field(default_factory=dict)
    levels: tuple[Level, ...] = ()

    @property
    def blocks(self) -> int:
        """The blocks among which the rows are shared out."""
        return math.prod(level.blocks for level in self.levels)

    @property
    def asks(self) -> bool:
        """Does the turn itself compute whether it was to be?"""
        return not self.counted and self.condition is None


def find_turns(graph: Graph, node: Node, used: Collection[int]) -> Turns | LoopRefusal:
    """The turns of a while.  used: the parts of its final state that somebody reads."""
    condition, body = node.regions
    if (refused := refuse_effects(node, (*condition, *body))) is not None:
        return refused
    if count_turns(graph, node) is not None:
        found = analyse_loop(graph, node, carries=True)
        if isinstance(found, LoopRefusal):
            return found
        roles = tuple(_keep_slices(found.body, n, role) for n, role in enumerate(found.roles))
        counters = {n: role.value for n, role in enumerate(roles) if isinstance(role, Counter)}
        return _make_turns(replace(found, roles=roles), counters, used, counted=True)
    counters = {n: value for n, value in find_counters(graph, node).items() if value.scale}
    roles = tuple(
        Invariant() if parameter == output else Carried(output)
        for parameter, output in zip(body.parameters, body.outputs, strict=True)
    )
    slices = _find_slices(body, counters)
    loop = Loop(node, 0, roles, slices, {}, find_starts(graph, node))
    return _make_turns(loop, counters, used, counted=False)


def _find_slices(body: Graph, counters: Mapping[int, Affine]) -> dict[str, Place]:
    """The slices that a body cuts out of invariants where its counters say.  How far they count nobody knows, so that a
    start may have to be clamped."""
    given = {body.parameters[n]: value for n, value in counters.items()}
    limits = [
        (np.iinfo(body[name].dtype.numpy).max - value.offset) // value.scale
        for name, value in given.items()
        if value.scale > 0 and value.offset >= 0
    ]
    if len(limits) < len(given) or not given:
        return {}
    integers = find_integers(body, given, max(min(limits), 1))
    found: dict[str, Place] = {}
    for node in body:
        if not isinstance(node.attrs, DynamicSliceAttrs):
            continue
        source, *indices = node.operands
        fixed = source in body.parameters and body.outputs[body.parameters.index(source)] == source
        cut = [d for d, n in enumerate(body[source].shape) if n != node.shape[d]]
        if fixed and len(cut) == 1 and node.shape[cut[0]] == 1 and indices[cut[0]] in integers:
            found[node.name] = Place(cut[0], integers[indices[cut[0]]])
    return found


def _keep_slices(body: Graph, number: int, role: Role) -> Role:
    """A stack whose slices lie together in memory; another one is carried like other arrays."""
    if not isinstance(role, Stack):
        return role
    shape = body[body.parameters[number]].shape
    together = all(extent == 1 for extent in shape[: role.place.dimension])
    return role if together else Carried(body.outputs[number])


def _make_turns(
    loop: Loop, counters: Mapping[int, Affine], used: Collection[int], *, counted: bool
) -> Turns:
    condition, body = loop.node.regions
    single = not counted and _is_single(condition)
    nodes = dict(body.nodes)
    slices = _cut_slices(loop, nodes)
    asked = [] if counted else [_inline(condition, body, nodes)]
    needed = {n for n in used if isinstance(loop.roles[n], Carried | Stack) and n not in counters}
    while True:
        outputs = [_value_of(loop, n) for n in sorted(needed)]
        live = _find_live(nodes, (*outputs, *asked))
        more = needed | {
            n
            for n, parameter in enumerate(body.parameters)
            if parameter in live and n not in counters and isinstance(loop.roles[n], Carried)
        }
        if more == needed:
            break
        needed = more
    carried = tuple(n for n in sorted(needed) if isinstance(loop.roles[n], Carried))
    stacks = tuple(n for n in sorted(needed) if isinstance(loop.roles[n], Stack))
    outputs = [_value_of(loop, n) for n in (*carried, *stacks)]
    if not single:
        outputs += asked
    live = _find_live(nodes, outputs)
    slices = {name: slice_ for name, slice_ in slices.items() if name in live}
    parameters = (*body.parameters, *slices)
    for number, name in enumerate(parameters):
        nodes[name] = replace(nodes[name], attrs=ParameterAttrs(number))
    kept = {name: node for name, node in nodes.items() if name in live or name in parameters}
    turn = Graph(body.name, kept, parameters, tuple(outputs))
    single_numbers = condition if single else None
    return Turns(loop, turn, carried, stacks, counters, counted, single_numbers, slices)


def _cut_slices(loop: Loop, nodes: dict[str, Node]) -> dict[str, tuple[int, Place]]:
    """The slices of invariants that lie together in memory, as parameters among the nodes of a body."""
    body = loop.body
    found: dict[str, tuple[int, Place]] = {}
    for name, place in loop.slices.items():
        source = body[name].operands[0]
        if all(extent == 1 for extent in body[source].shape[: place.dimension]):
            found[name] = body.parameters.index(source), place
            nodes[name] = Node(name, "parameter", body[name].type, attrs=ParameterAttrs(0))
    return found


def _is_single(condition: Graph) -> bool:
    """Does a condition compute single numbers only, from single numbers of the state?"""
    return all(
        isinstance(node.type, ArrayType)
        and node.type.size == 1
        and (OPS[node.op].kind in (Kind.ELEMENTWISE, Kind.SOURCE) or OPS[node.op].keeps_order)
        for node in map(condition.__getitem__, _find_live(condition.nodes, condition.outputs))
    )


def _find_live(nodes: Mapping[str, Node], outputs: Iterable[str]) -> set[str]:
    """What these values are computed from, and they themselves."""
    live: set[str] = set()
    pending = [*outputs]
    while pending:
        name = pending.pop()
        if name not in live:
            live.add(name)
            pending += nodes[name].operands
    return live


def _value_of(loop: Loop, state: int) -> str:
    role = loop.roles[state]
    assert isinstance(role, Carried | Stack)
    return role.value


def _inline(condition: Graph, body: Graph, nodes: dict[str, Node]) -> str:
    """The condition among the nodes of a body; the name of what it says."""
    names = dict(zip(condition.parameters, body.parameters, strict=True))
    for node in condition:
        if not node.is_parameter:
            name = names[node.name] = free_name(f"{node.name}.asked", nodes)
            nodes[name] = replace(node, name=name, operands=tuple(names[o] for o in node.operands))
    return names[condition.outputs[0]]
