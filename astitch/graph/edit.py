"""What every pass needs to write a graph anew: names that are free, the nodes that are needed, and their order."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import replace

from astitch.errors import IllegalProduct
from astitch.graph.factorizations import find_factorization
from astitch.graph.ir import Graph, Node, OpaqueAttrs, ParameterAttrs
from astitch.graph.ops import OPS


def free_name(name: str, taken: Container[str]) -> str:
    """`name`, or `name` and the lowest number from 2 with which it is not taken."""
    unique, number = name, 1
    while unique in taken:
        number += 1
        unique = f"{name}.{number}"
    return unique


def keep_live_nodes(nodes: Mapping[str, Node], outputs: Sequence[str]) -> dict[str, Node]:
    """The nodes that an output, a parameter or an effect needs, in their order."""
    live = set(outputs)
    for node in reversed(list(nodes.values())):
        if node.name in live or node.is_parameter or not is_pure(node):
            live.add(node.name)
            live.update(node.operands)
    return {name: node for name, node in nodes.items() if name in live}


def sort_nodes(
    nodes: Mapping[str, Node], wanted: Sequence[str], first: Mapping[str, Node]
) -> dict[str, Node]:
    """The wanted nodes and what they are computed from, each after its operands, behind the first ones.

    Raises IllegalProduct for a node that is computed from itself.
    """
    found, opened = dict(first), set[str]()
    pending = [*reversed(wanted)]
    while pending:
        name = pending[-1]
        if name in found:
            pending.pop()
            continue
        missing = [o for o in nodes[name].operands if o not in found]
        if not missing:
            found[name] = nodes[name]
            continue
        if name in opened:
            raise IllegalProduct(f"%{name} is computed from itself")
        opened.add(name)
        pending += missing
    return found


def waits_for(graph: Graph, name: str, other: str) -> bool:
    """Is a node computed from another one, or that one?"""
    order, seen, pending = graph.order, {name}, [name]
    while pending:
        current = pending.pop()
        if current == other:
            return True
        if order[current] > order[other]:
            new = [o for o in graph[current].operands if o not in seen]
            seen.update(new)
            pending += new
    return False


def is_pure(node: Node) -> bool:
    """Whether equal nodes have equal results, and a dead one may go."""
    if isinstance(node.attrs, OpaqueAttrs):
        return not node.attrs.has_effect
    if find_factorization(node) is not None:
        return True
    return OPS[node.op].is_pure and all(is_pure(n) for r in node.regions for n in r)


def keep_parts(region: Graph, kept: Sequence[int], *, is_state: bool) -> Graph:
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


def find_later(graph: Graph, names: Collection[str]) -> set[str]:
    """These ops, and all that waits for one of them."""
    later = {*names}
    for node in graph:
        if not later.isdisjoint(node.operands):
            later.add(node.name)
    return later
