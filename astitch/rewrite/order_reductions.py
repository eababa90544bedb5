"""Graph -> Graph: reductions that walk over their operands as these lie in memory.

A product of few rows, written out, is a reduction of element-wise ops over a transposed matrix: attention's weighted
sum of values, which lie one behind the other, is written over values of one feature.  A kernel that walked in that
order would read each element apart.  The order of a reduction's dimensions is free, so it takes that of the larger
operands.

Sums of which all is transposed alike have turned by then: simplify's rule sum_below_transposes, which knows no readers.
Here bytes are weighed: what lies in another order, what else reads a value, and what a result's transpose costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from astitch.graph.dimensions import is_embedded
from astitch.graph.ir import ArrayType, DimensionsAttrs, Graph, Node, TransposeAttrs
from astitch.graph.ops import OPS, Kind
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.reduction_rules import compute_below
from astitch.rewrite.simplify import rewrite_graph

LEAST_BYTES = 64 << 10
"""Smaller arrays are read from the caches in any order."""

Permutation = tuple[int, ...]


def order_reductions(graph: Graph, log: Log | None = None) -> Graph:
    """The same function but for the order in which reductions meet elements.

    graph: simplified.  `log` hears of every reduction that walks in another order.
    """
    heard: Log = log or (lambda rule, node: None)
    turned = {node.name: turn for node in graph if (turn := _find_turn(graph, node))}
    if not turned:
        return graph

    def change(node: Node, draft: Draft, values: Mapping[str, str]) -> str | None:
        turn = turned.get(node.name)
        if turn is None:
            return None
        heard("order_reductions", node.name)
        return _put(node, turn, draft, values)

    return rewrite_graph(graph, heard, change)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a reduction reads is transpose(x, permutation) of what it will read.

    inside: the element-wise ops that it alone needs, which are computed in the new order too.
    """

    permutation: Permutation
    inside: frozenset[str]


def _find_turn(graph: Graph, node: Node) -> _Turn | None:
    """The turn of a reduction after which fewer bytes are read across their order."""
    if not OPS[node.op].is_reduce or not isinstance(node.type, ArrayType):
        return None
    array = graph[node.operands[0]].array
    if array.bytes < LEAST_BYTES:
        return None
    inside = _find_inside(graph, node)
    along: Counter[Permutation] = Counter()
    identity = tuple(range(array.rank))
    for leaf in _list_leaves(graph, node, inside):
        attrs = leaf.attrs
        if isinstance(attrs, TransposeAttrs) and _is_read_once(graph, leaf.name):
            if OPS[graph[leaf.operands[0]].op].kind is Kind.COMPUTE:
                return None  # a product gives its result in any order
            along[attrs.permutation] += leaf.array.bytes
        elif not OPS[leaf.op].is_broadcast and not is_embedded(graph, leaf.name):
            along[identity] += leaf.array.bytes
    if not along:
        return None
    best, held = max(along.items(), key=lambda item: (item[1], item[0]))
    if best == identity or held <= along[identity] + node.array.bytes:
        return None
    return _Turn(best, frozenset(inside))


def _is_read_once(graph: Graph, name: str) -> bool:
    return len(graph.users[name]) == 1 and name not in graph.outputs


def _find_inside(graph: Graph, node: Node) -> set[str]:
    """The element-wise ops between a reduction and what memory holds, that nothing else reads."""
    inside = {node.name}
    waiting = [node.operands[0]]
    while waiting:
        name = waiting.pop()
        other = graph[name]
        alone = name not in graph.outputs and inside.issuperset(graph.users[name])
        if name in inside or OPS[other.op].kind is not Kind.ELEMENTWISE or not alone:
            continue
        inside.add(name)
        waiting += other.operands
    return inside - {node.name}


def _list_leaves(graph: Graph, node: Node, inside: set[str]) -> Iterator[Node]:
    """What a reduction and the ops inside read from outside, each once."""
    read = {node.operands[0], *(o for name in inside for o in graph[name].operands)}
    rank = graph[node.operands[0]].array.rank
    yield from (graph[name] for name in read - inside if graph[name].array.rank == rank)


def _put(node: Node, turn: _Turn, draft: Draft, values: Mapping[str, str]) -> str:
    """The reduction over what is not transposed, and its result in the order that it had.

    node: as the draft reads it.
    """
    assert isinstance(node.attrs, DimensionsAttrs)
    ops, p, dimensions = DraftOps(node, draft), turn.permutation, node.attrs.dimensions
    inside = {values[name] for name in turn.inside}
    operand = compute_below(node, draft, node.operands[0], p, inside)
    kept = [p[d] for d in range(len(p)) if d not in dimensions]
    below = sorted(kept)
    shape = [node.shape[kept.index(d)] for d in below]
    attrs = DimensionsAttrs(tuple(sorted(p[d] for d in dimensions)))
    operands = (operand, node.operands[1])
    result = ops.add("reduce", node.dtype, shape, operands, attrs, node.regions)
    return ops.transpose(result, [below.index(d) for d in kept])
