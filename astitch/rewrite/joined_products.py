"""Graph -> Graph: one row times several matrices is one product, of the matrices side by side.

Each product would be a kernel.  XLA joins products of two rows and more itself; those of one row it has turned into
sums before (sums_as_products.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from astitch.graph.ir import DotAttrs, Graph, Node
from astitch.graph.ops import OPS, Kind
from astitch.rewrite.draft import Draft
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.simplify import rewrite_graph

MOST_MATRICES = 4
"""Side by side: a kernel picks its own among them."""


@dataclass
class _Group:
    """Products of one row.  depth_first: do the weights lie as [depth, columns]?  whole: what they became."""

    members: list[Node]
    depth_first: bool
    whole: str = ""

    def find_start(self, name: str) -> int:
        """The first of a member's columns in the whole."""
        number = [member.name for member in self.members].index(name)
        return sum(member.array.size for member in self.members[:number])


def join_products(graph: Graph, names: Collection[str]) -> Graph:
    """The same numbers.  names: of products whose first operand is one row without a batch."""
    early = _find_early(graph)
    groups = _find_groups(graph, names, early)
    if not groups:
        return graph
    order = sorted(graph, key=lambda node: node.name not in early)

    def join(node: Node, draft: Draft, values: Mapping[str, str]) -> str | None:
        group = groups.get(node.name)
        if group is None:
            return None
        ops = DraftOps(node, draft)
        if not group.whole:
            group.whole = _write(group, ops, node, values)
        start = group.find_start(node.name)
        columns = ops.cut(group.whole, (start,), (start + node.array.size,))
        return ops.reshape(columns, node.shape)

    return rewrite_graph(graph, lambda rule, node: None, join, order)


def _find_early(graph: Graph) -> set[str]:
    """What lies in memory from the start, in whatever shape."""
    early: set[str] = set()
    for node in graph:
        is_moved = OPS[node.op].kind is Kind.INDEX and early.issuperset(node.operands)
        if node.is_parameter or node.is_constant or is_moved:
            early.add(node.name)
    return early


def _find_groups(graph: Graph, names: Collection[str], early: Collection[str]) -> dict[str, _Group]:
    """By the name of each member; what can be computed where the first one stands.  early: stands before that."""
    groups: list[_Group] = []
    latest: dict[object, _Group] = {}
    for node in graph:
        if node.name not in names:
            continue
        side = _find_side(graph, node)
        if side is None:
            continue
        key = (node.operands[0], node.dtype, _read_attrs(node).precision, side)
        group = latest.get(key)
        if group is None or len(group.members) == MOST_MATRICES:
            latest[key] = _Group([node], side)
            groups.append(latest[key])
        elif _is_ready(graph, node.operands[1], group.members[0], early):
            group.members.append(node)
    found = [group for group in groups if len(group.members) > 1]
    return {member.name: group for group in found for member in group.members}


def _is_ready(graph: Graph, name: str, first: Node, early: Collection[str]) -> bool:
    return name in early or graph.order[name] < graph.order[first.name]


def _find_side(graph: Graph, node: Node) -> bool | None:
    """Does the depth stand in front of the columns in the second operand?  None: it stands between them, or the first
    operand is no row."""
    a = _read_attrs(node)
    if a.lhs_batch or len(a.rhs_contracting) != 1:
        return None
    row, weights = (graph[operand].array for operand in node.operands)
    if row.size != row.shape[a.lhs_contracting[0]]:
        return None
    return {0: True, weights.rank - 1: False}.get(a.rhs_contracting[0])


def _write(group: _Group, ops: DraftOps, node: Node, values: Mapping[str, str]) -> str:
    """The product of all members: [columns].  node: the first of them.  values: the graph's in the draft."""
    sizes = [member.array.size for member in group.members]
    row = ops.reshape(node.operands[0], (prod(ops.draft[node.operands[0]].shape),))
    (depth,) = ops.draft[row].shape
    matrices = [
        ops.reshape(
            values[member.operands[1]], (depth, size) if group.depth_first else (size, depth)
        )
        for member, size in zip(group.members, sizes, strict=True)
    ]
    joined = ops.concatenate(matrices, int(group.depth_first))
    precision = _read_attrs(node).precision
    attrs = DotAttrs((0,), (int(not group.depth_first),), (), (), precision)
    return ops.add("dot", node.dtype, (sum(sizes),), (row, joined), attrs)


def _read_attrs(node: Node) -> DotAttrs:
    assert isinstance(node.attrs, DotAttrs)
    return node.attrs
