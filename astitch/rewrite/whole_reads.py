"""Arrays that are another one with numbers before or behind it: (1, x[0], x[1], ..), over which an exclusive scan runs.

In simplest form a tree of such a scan cuts most steps out of x itself, so that it reads two arrays, and has the number
for the first step.  Here it reads one array again, of which some elements are known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from astitch.graph.edit import sort_nodes
from astitch.graph.ir import DimensionAttrs, Graph, Node, PadAttrs, SliceAttrs
from astitch.graph.ops import OPS
from astitch.rewrite.draft import read_splat
from astitch.rewrite.finite_field import is_in_field

Part = tuple[str, int, int]
"""What is repeated or joined, its first place along a dimension, and the place behind its last."""


def read_wholes(graph: Graph, dimensions: Collection[int]) -> Graph:
    """The same function, in which slices of x are slices of what is x and numbers; the same graph without any.

    dimensions: those along which numbers stand beside x.  All else in such an array is x, so it waits for no slice.
    """
    changed = {
        node.name: node
        for whole in graph
        for dimension in dimensions
        for node in _read(graph, whole, dimension)
    }
    if not changed:
        return graph
    nodes = sort_nodes({**graph.nodes, **changed}, [*graph.nodes], {})
    return Graph(graph.name, nodes, graph.parameters, graph.outputs, graph.aliases)


def list_numbers(
    graph: Graph, name: str, dimension: int | None
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Where along a dimension an array holds numbers of the finite field: first place, the place behind, the number."""
    if dimension is not None:
        for part, start, stop in _list_parts(graph, graph[name], dimension):
            number = read_splat(graph, part)
            if number is not None and is_in_field(number):
                yield start, stop, number


def _list_parts(graph: Graph, whole: Node, dimension: int) -> Iterator[Part]:
    """What an array is made of, one after the other along a dimension; nothing where it is no such array."""
    match whole.attrs:
        case DimensionAttrs(along) if along == dimension and OPS[whole.op].chooses:
            start = 0
            for part in whole.operands:
                stop = start + graph[part].shape[dimension]
                yield part, start, stop
                start = stop
        case PadAttrs(low, high, interior) if not any(interior) and min(*low, *high) == 0:
            edges = zip(low, high, strict=True)
            if [d for d, edge in enumerate(edges) if any(edge)] == [dimension]:
                x, number = whole.operands
                before, behind = low[dimension], whole.shape[dimension] - high[dimension]
                yield number, 0, before
                yield x, before, behind
                yield number, behind, whole.shape[dimension]


def _read(graph: Graph, whole: Node, dimension: int) -> Iterator[Node]:
    """The slices of its only part that is no number; zeros around it are a tree's own."""
    parts = [*_list_parts(graph, whole, dimension)]
    numbers = {part: read_splat(graph, part) for part, _, _ in parts}
    others = [(part, start) for part, start, _ in parts if numbers[part] is None]
    if len(others) != 1 or not all(numbers[part] != 0 for part, _, _ in parts):
        return
    ((part, start),) = others
    for user in graph.users[part]:
        node = graph[user]
        if isinstance(node.attrs, SliceAttrs):
            starts, limits = [*node.attrs.starts], [*node.attrs.limits]
            starts[dimension] += start
            limits[dimension] += start
            attrs = replace(node.attrs, starts=tuple(starts), limits=tuple(limits))
            yield replace(node, operands=(whole.name,), attrs=attrs)
