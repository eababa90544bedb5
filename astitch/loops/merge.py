"""Two loops that do not wait for each other, as one that turns as often.

Takes a Graph and two whiles, hands on the Graph with one in their place.  The idea: the loops of a bidirectional layer
need half of the device each, or leave half of the time of an exchange idle; side by side they take the time of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from astitch.graph.ir import ArrayType, GetTupleElementAttrs, Graph, Node, ParameterAttrs, TupleType
from astitch.loops.analysis import Loop, analyse_loop


def merge_loops(graph: Graph, first: str, second: str) -> Graph | None:
    """The graph with the state of both whiles in one, under the second's name; None where one waits for the other or
    turns more often."""
    one, other = graph[first], graph[second]
    types = [_list_parts(graph, node) for node in (one, other)]
    if not all(types):
        return None
    loops = [analyse_loop(graph, node) for node in (one, other)]
    trips = {loop.trips if isinstance(loop, Loop) else None for loop in loops}
    if len(trips) > 1 or None in trips:
        return None
    if first in find_ancestors(graph, second) or second in find_ancestors(graph, first):
        return None
    merged = replace(
        other,
        type=TupleType((*types[0], *types[1])),
        operands=(*one.operands, *other.operands),
        regions=(
            _join_regions(one.regions[0], other.regions[0], one.regions[0].outputs),
            _join_regions(one.regions[1], other.regions[1], None),
        ),
    )
    nodes: dict[str, Node] = {}
    for node in graph:
        if node.name == first:
            continue
        nodes[node.name] = (
            merged if node.name == second else _project_from(node, merged, first, len(types[0]))
        )
    return replace(graph, nodes={node.name: node for node in _order(nodes)})


def _list_parts(graph: Graph, node: Node) -> tuple[ArrayType, ...]:
    """The types of a while's state, none where somebody reads it by other means than its parts."""
    readers = [graph[user].op for user in graph.users[node.name]]
    whole = node.name in graph.outputs or any(op != "get-tuple-element" for op in readers)
    return () if whole or not isinstance(node.type, TupleType) else node.type.elements


def find_ancestors(graph: Graph, name: str) -> set[str]:
    """What a node waits for."""
    found: set[str] = set()
    pending = [name]
    while pending:
        for operand in graph[pending.pop()].operands:
            if operand not in found:
                found.add(operand)
                pending.append(operand)
    return found


def _project_from(node: Node, merged: Node, first: str, count: int) -> Node:
    """A node with its projections of the two whiles made those of the merged one."""
    if not isinstance(node.attrs, GetTupleElementAttrs):
        return node
    if node.operands == (first,):
        return replace(node, operands=(merged.name,))
    if node.operands == (merged.name,):
        return replace(node, attrs=GetTupleElementAttrs(node.attrs.index + count))
    return node


def _join_regions(one: Graph, other: Graph, outputs: Sequence[str] | None) -> Graph:
    """Both regions in one, the first's parameters and outputs in front.  outputs: the names to give; None: all."""
    taken = set(one.nodes)
    names: dict[str, str] = {}
    for name in other.nodes:
        fresh, number = name, 1
        while fresh in taken:
            number += 1
            fresh = f"{name}.{number}"
        taken.add(fresh)
        names[name] = fresh
    nodes = dict(one.nodes)
    for node in other:
        attrs = node.attrs
        if isinstance(attrs, ParameterAttrs):
            attrs = ParameterAttrs(attrs.index + len(one.parameters))
        operands = tuple(names[o] for o in node.operands)
        nodes[names[node.name]] = replace(
            node, name=names[node.name], operands=operands, attrs=attrs
        )
    both = (*one.outputs, *(names[o] for o in other.outputs))
    parameters = (*one.parameters, *(names[p] for p in other.parameters))
    return Graph(one.name, nodes, parameters, both if outputs is None else tuple(outputs))


def _order(nodes: Mapping[str, Node]) -> Iterator[Node]:
    """The nodes as they stand, but each after its operands."""
    done: set[str] = set()
    for name in nodes:
        pending = [name]
        while pending:
            node = nodes[pending[-1]]
            missing = [o for o in node.operands if o not in done]
            if node.name in done:
                pending.pop()
            elif missing:
                pending += missing
            else:
                done.add(node.name)
                yield node
                pending.pop()
