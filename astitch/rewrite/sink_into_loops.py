"""Graph -> Graph: loop bodies compute what follows from an index alone; loops no longer carry it.

XLA moves masks and filled arrays out of loops, so that a body reads them from memory and does not know what they are.
"""

from __future__ import annotations

from dataclasses import replace

from astitch.graph.edit import free_name
from astitch.graph.ir import (
    ConstantAttrs,
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
    sunk: dict[int, list[Node]] = {}
    for number, name in enumerate(node.operands):
        if body.outputs[number] == body.parameters[number]:
            cone = _find_cone(graph, name)
            if cone:
                sunk[number] = cone
    body = sink_into_loops(_add_to(body, sunk) if sunk else body)
    node = replace(node, regions=(condition, body))
    used = _find_used(graph, node.name)
    dropped = {
        number
        for number in sunk
        if used is not None
        and number not in used
        and body.outputs.count(body.parameters[number]) == 1
        and not condition.users[condition.parameters[number]]
        and condition.parameters[number] not in condition.outputs
        and not body.users[body.parameters[number]]
    }
    kept = [number for number in range(len(node.operands)) if number not in dropped]
    if not dropped or len(kept) < 2 or not isinstance(node.type, TupleType):
        return node, {}
    regions = (_keep(condition, kept, is_state=False), _keep(body, kept, is_state=True))
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


def _find_cone(graph: Graph, name: str) -> list[Node]:
    """What computes an array from scalar constants and iotas, operands first; nothing where there is more to it."""
    found: dict[str, Node] = {}
    if isinstance(graph[name].type, TupleType) or graph[name].array.size < 2:
        return []
    stack = [name]
    while stack:
        node = graph[stack[-1]]
        row = OPS[node.op]
        scalar = isinstance(node.attrs, ConstantAttrs) and node.array.size == 1
        moves = row.kind in (Kind.ELEMENTWISE, Kind.BROADCAST) or row.permutes or row.is_view
        if not (scalar or moves or isinstance(node.attrs, IotaAttrs)) or len(stack) > MOST_OPS:
            return []
        missing = [o for o in node.operands if o not in found]
        if missing:
            stack += missing
            continue
        found[node.name] = node
        stack.pop()
    return list(found.values()) if len(found) <= MOST_OPS else []


def _add_to(body: Graph, sunk: dict[int, list[Node]]) -> Graph:
    """The body with values in place of the parts of its state with these numbers."""
    nodes: dict[str, Node] = {name: body[name] for name in body.parameters}
    taken, made, renamed = set(body.nodes), dict[str, str](), dict[str, str]()
    for number, cone in sunk.items():
        for node in cone:
            if node.name not in made:
                made[node.name] = free_name(node.name, taken)
                taken.add(made[node.name])
                own = node.read(tuple(made[o] for o in node.operands))
                nodes[made[node.name]] = replace(own, name=made[node.name])
        renamed[body.parameters[number]] = made[cone[-1].name]
    for node in body:
        if not node.is_parameter:
            nodes[node.name] = node.read(tuple(renamed.get(o, o) for o in node.operands))
    return replace(body, nodes=nodes)


def _keep(region: Graph, kept: list[int], *, is_state: bool) -> Graph:
    """A region of a loop that carries only these parts of its state.  is_state: it returns them too."""
    parameters = tuple(region.parameters[number] for number in kept)
    nodes = {
        name: node
        for name, node in region.nodes.items()
        if not node.is_parameter or name in parameters
    }
    for place, name in enumerate(parameters):
        nodes[name] = replace(nodes[name], attrs=ParameterAttrs(place))
    outputs = tuple(region.outputs[n] for n in kept) if is_state else region.outputs
    return replace(region, nodes=nodes, parameters=parameters, outputs=outputs)
