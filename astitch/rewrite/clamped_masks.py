"""Graph -> Graph: what is asked of a value is asked of the clamped value: x > 0 -> max(x, 0) > 0.

The gradient of a ReLU wants to know where its operand was positive.  The result, which the next product reads and the
backward half needs anyway, says that too.  So neither the operand nor the condition is kept.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from astitch.graph.edit import sort_nodes
from astitch.graph.ir import ArrayType, CompareAttrs, Graph, Node
from astitch.rewrite.draft import Log, read_splat

Array = np.ndarray

_PRESERVED: Mapping[tuple[str, str], Callable[[Array, Array], bool]] = {
    ("maximum", "GT"): operator.le,
    ("maximum", "LE"): operator.le,
    ("maximum", "GE"): operator.lt,
    ("maximum", "LT"): operator.lt,
    ("minimum", "LT"): operator.ge,
    ("minimum", "GE"): operator.ge,
    ("minimum", "LE"): operator.gt,
    ("minimum", "GT"): operator.gt,
}
"""What holds of the bound and the number that x is compared with, where comparing the clamped x says the same.  A NaN
stays one in both ops, and compares as before."""

_TURNED = {"GT": "LT", "LT": "GT", "GE": "LE", "LE": "GE"}


def ask_clamped(graph: Graph, log: Log | None = None) -> Graph:
    """The same function, to the bit; comparisons with a number read the last value of a chain of clamps.

    `log` hears of every comparison that is changed.
    """
    heard: Log = log or (lambda rule, node: None)
    nodes = dict(graph.nodes)
    for node in graph:
        if not isinstance(node.attrs, CompareAttrs) or node.attrs.total_order:
            continue
        for side, name in enumerate(node.operands):
            direction = _TURNED.get(node.attrs.direction) if side else node.attrs.direction
            number = read_splat(graph, node.operands[1 - side])
            if number is None or direction is None:
                continue
            clamped = _find_clamped(graph, name, direction, number)
            if clamped != name:
                operands = (clamped, node.operands[1]) if not side else (node.operands[0], clamped)
                nodes[node.name] = replace(node, operands=operands)
                heard("ask_clamped", node.name)
    if all(nodes[name] is node for name, node in graph.nodes.items()):
        return graph
    parameters = {name: nodes[name] for name in graph.parameters}
    ordered = sort_nodes(nodes, tuple(nodes), parameters)
    return Graph(graph.name, ordered, graph.parameters, graph.outputs, graph.aliases)


def _find_clamped(graph: Graph, name: str, direction: str, number: Array) -> str:
    """The last value of a chain of clamps of x that compares with the number as x does; x where there is none."""
    while longer := next(_clamp_once(graph, name, direction, number), None):
        name = longer
    return name


def _clamp_once(graph: Graph, name: str, direction: str, number: Array) -> Iterator[str]:
    for user in graph.users[name]:
        node: Node = graph[user]
        holds = _PRESERVED.get((node.op, direction))
        if holds is None or not isinstance(node.type, ArrayType):
            continue
        other = node.operands[1] if node.operands[0] == name else node.operands[0]
        bound = read_splat(graph, other)
        if bound is not None and holds(bound, number):
            yield user
