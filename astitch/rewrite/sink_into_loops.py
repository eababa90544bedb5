"""Graph -> Graph: loop bodies compute what follows from an index alone, or from far smaller arrays; loops no longer
carry it.

XLA moves masks and filled arrays out of loops, so that a body reads them from memory and does not know what they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from astitch.graph.edit import free_name, keep_parts
from astitch.graph.ir import (
    ConstantAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    IotaAttrs,
    Node,
    ParameterAttrs,
    TupleType,
)
from astitch.graph.ops import OPS, Kind

MOST_OPS = 16
"""Ops by which a value may follow from its index."""

LEAST_SPARED = 64
"""So many times as large as the arrays that it follows from is a mask that a body computes."""


@dataclass(frozen=True)
class _Cone:
    """nodes: what computes an array, operands first.  leaves: what they read."""

    nodes: tuple[Node, ...]
    leaves: tuple[Node, ...]


def sink_into_loops(graph: Graph) -> Graph:
    """The same function, in nested loops too; a loop no longer carries what its body computes now."""
    nodes: dict[str, Node] = {}
    numbers: dict[str, dict[int, int]] = {}
    for node in graph:
        if OPS[node.op].is_loop:
            node, numbers[node.name] = _sink(graph, node)
        elif isinstance(node.attrs, GetTupleElementAttrs) and node.operands[0] in numbers:
            kept = numbers[node.operands[0]]
            if kept and node.attrs.index in kept:
                node = replace(node, attrs=GetTupleElementAttrs(kept[node.attrs.index]))
        nodes[node.name] = node
    return replace(graph, nodes=nodes) if numbers else graph


def _sink(graph: Graph, node: Node) -> tuple[Node, dict[int, int]]:
    """(the loop, the new numbers of the parts of its state where it carries fewer)."""
    condition, body = node.regions
    used = _find_used(graph, node.name)
    sunk: dict[int, _Cone] = {}
    for number, name in enumerate(node.operands):
        if body.outputs[number] == body.parameters[number]:
            cone = _find_cone(graph, name)
            is_read = used is None or number in used or _is_kept(condition, body, number)
            if cone and not (cone.leaves and is_read):
                sunk[number] = cone
    node, places = _carry(node, [leaf for cone in sunk.values() for leaf in cone.leaves])
    condition, body = node.regions
    body = sink_into_loops(_add_to(body, sunk, places) if sunk else body)
    node = replace(node, regions=(condition, body))
    dropped = {
        number
        for number in sunk
        if used is not None
        and number not in used
        and not _is_kept(condition, body, number)
        and not body.users[body.parameters[number]]
    }
    kept = [number for number in range(len(node.operands)) if number not in dropped]
    if not dropped or len(kept) < 2 or not isinstance(node.type, TupleType):
        return node, {}
    regions = (keep_parts(condition, kept, is_state=False), keep_parts(body, kept, is_state=True))
    type_ = TupleType(tuple(node.type.elements[number] for number in kept))
    operands = tuple(node.operands[number] for number in kept)
    made = replace(node, type=type_, operands=operands, regions=regions)
    return made, {number: place for place, number in enumerate(kept)}


def _find_used(graph: Graph, name: str) -> set[int] | None:
    """The parts of a loop's state that are read after it; None where it is read as a whole."""
    found = [graph[user].attrs for user in graph.users[name]]
    parts = {attrs.index for attrs in found if isinstance(attrs, GetTupleElementAttrs)}
    whole = name in graph.outputs or not all(isinstance(a, GetTupleElementAttrs) for a in found)
    return None if whole else parts


def _is_kept(condition: Graph, body: Graph, number: int) -> bool:
    """Is a part of the state read by the condition, or handed on as another part too?"""
    tested = condition.parameters[number]
    return bool(
        condition.users[tested]
        or tested in condition.outputs
        or body.outputs.count(body.parameters[number]) > 1
    )


def _carry(node: Node, leaves: Sequence[Node]) -> tuple[Node, dict[str, str]]:
    """(the loop with these arrays in its state, the names that its body has for them)."""
    condition, body = node.regions
    places: dict[str, str] = {}
    for leaf in leaves:
        for number, name in enumerate(node.operands):
            if name == leaf.name and body.outputs[number] == body.parameters[number]:
                places[name] = body.parameters[number]
    new = [
        leaf for leaf in {leaf.name: leaf for leaf in leaves}.values() if leaf.name not in places
    ]
    if not new or not isinstance(node.type, TupleType):
        return node, places
    regions: list[Graph] = []
    for region in (condition, body):
        nodes, parameters = dict(region.nodes), list(region.parameters)
        for leaf in new:
            name = free_name(leaf.name, nodes)
            attrs = ParameterAttrs(len(parameters))
            nodes[name] = Node(name, "parameter", leaf.type, attrs=attrs)
            parameters.append(name)
        outputs = region.outputs
        if region is body:
            outputs = (*outputs, *parameters[len(region.parameters) :])
        regions.append(replace(region, nodes=nodes, parameters=tuple(parameters), outputs=outputs))
    own = regions[1].parameters[len(body.parameters) :]
    places |= {leaf.name: name for leaf, name in zip(new, own, strict=True)}
    elements = (*node.type.elements, *(leaf.array for leaf in new))
    operands = (*node.operands, *(leaf.name for leaf in new))
    made = replace(node, type=TupleType(elements), operands=operands, regions=tuple(regions))
    return made, places


def _find_cone(graph: Graph, name: str) -> _Cone | None:
    """What computes an array from scalar constants, iotas and, if it is a mask, from arrays that are far smaller; None
    where there is more to it."""
    found: dict[str, Node] = {}
    leaves: dict[str, Node] = {}
    if isinstance(graph[name].type, TupleType) or graph[name].array.size < 2:
        return None
    is_mask = graph[name].dtype is DType.PRED
    most = graph[name].array.size // LEAST_SPARED if is_mask else 0
    stack = [name]
    while stack:
        node = graph[stack[-1]]
        row = OPS[node.op]
        scalar = isinstance(node.attrs, ConstantAttrs) and node.array.size == 1
        moves = row.kind in (Kind.ELEMENTWISE, Kind.BROADCAST) or row.permutes or row.is_view
        if len(stack) > MOST_OPS:
            return None
        if not (scalar or moves or isinstance(node.attrs, IotaAttrs)):
            if isinstance(node.type, TupleType) or node.array.size > most:
                return None
            leaves[node.name] = node
            stack.pop()
            continue
        missing = [o for o in node.operands if o not in found and o not in leaves]
        if missing:
            stack += missing
            continue
        found[node.name] = node
        stack.pop()
    small = sum(leaf.array.size for leaf in leaves.values()) <= most
    if len(found) > MOST_OPS or not found or (leaves and not small):
        return None
    return _Cone(tuple(found.values()), tuple(leaves.values()))


def _add_to(body: Graph, sunk: Mapping[int, _Cone], places: Mapping[str, str]) -> Graph:
    """The body with values in place of the parts of its state with these numbers.  places: of arrays that they read."""
    nodes: dict[str, Node] = {name: body[name] for name in body.parameters}
    taken, made, renamed = set(body.nodes), dict(places), dict[str, str]()
    for number, cone in sunk.items():
        for node in cone.nodes:
            if node.name not in made:
                made[node.name] = free_name(node.name, taken)
                taken.add(made[node.name])
                own = node.read(tuple(made[o] for o in node.operands))
                nodes[made[node.name]] = replace(own, name=made[node.name])
        renamed[body.parameters[number]] = made[cone.nodes[-1].name]
    for node in body:
        if not node.is_parameter:
            nodes[node.name] = node.read(tuple(renamed.get(o, o) for o in node.operands))
    return replace(body, nodes=nodes)
