"""Graph -> Graph: products that XLA merged along their rows, each for itself again.

XLA multiplies `x @ w` and `dx @ w` of a forward derivative as one: it puts their rows together, and cuts the result.  A
kernel that keeps rows on chip wants the same rows of both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from astitch.graph.ir import (
    DimensionAttrs,
    DotAttrs,
    Graph,
    Node,
    SliceAttrs,
)
from astitch.rewrite.draft import Draft
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.row_ops import is_row_product
from astitch.rewrite.simplify import rewrite_graph


@dataclass(frozen=True, slots=True)
class Parted:
    """graph: in which merged products are several.  parts: their names there, by the name of the merged product."""

    graph: Graph
    parts: Mapping[str, Collection[str]] = field(default_factory=dict)


def part_rows(graph: Graph, only: Collection[str] | None = None) -> Parted:
    """The same function.  only: the merged products to part; None: all."""
    edges = {
        node.name: found
        for node in graph
        if (only is None or node.name in only) and (found := _find_edges(graph, node))
    }
    if not edges:
        return Parted(graph)
    parts: dict[str, dict[int, str]] = {name: {} for name in edges}

    def put(product: Node, number: int, draft: Draft, values: Mapping[str, str]) -> str:
        joined, matrix = product.operands
        piece = graph[joined].operands[number]
        shape = (graph[piece].shape[0], *product.shape[1:])
        operands, ops = (values[piece], values[matrix]), DraftOps(product, draft)
        return ops.add("dot", product.dtype, shape, operands, product.attrs)

    def change(node: Node, draft: Draft, values: Mapping[str, str]) -> str | None:
        a = node.attrs
        if not isinstance(a, SliceAttrs):
            return None
        (product,) = graph[node.name].operands
        if product not in edges:
            return None
        rows = edges[product]
        number = next(i for i, (_, end) in enumerate(pairwise(rows)) if a.limits[0] <= end)
        made = parts[product]
        if number not in made:
            made[number] = put(graph[product], number, draft, values)
        first = rows[number]
        starts, limits = ((n - first, *rest) for n, *rest in (a.starts, a.limits))
        return DraftOps(node, draft).cut(made[number], starts, limits)

    made = rewrite_graph(graph, lambda rule, node: None, change)
    return Parted(made, {name: tuple(found.values()) for name, found in parts.items()})


def _find_edges(graph: Graph, node: Node) -> list[int]:
    """Where the rows of each product begin, and where the last ones end; nothing for a product that is one."""
    a = node.attrs
    if not isinstance(a, DotAttrs) or not is_row_product(graph, node):
        return []
    joined = graph[node.operands[0]]
    if joined.attrs != DimensionAttrs(0) or joined.array.rank != 2:
        return []
    edges = [*accumulate((graph[o].shape[0] for o in joined.operands), initial=0)]
    users = [graph[user].attrs for user in graph.users[node.name]]
    cut = all(
        isinstance(u, SliceAttrs)
        and set(u.strides) == {1}
        and any(start <= u.starts[0] and u.limits[0] <= end for start, end in pairwise(edges))
        for u in users
    )
    return edges if cut and node.name not in graph.outputs else []
