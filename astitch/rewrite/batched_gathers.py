"""Graph -> Graph: gathers in which a column of the indices counts along a dimension become batched ones.

`q[arange(rows), arm]` reads of each row one element.  JAX writes the numbers of the rows into the indices, and XLA does
so where JAX has said that rows go apart.  A batching dimension says again that no row reads another's elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from astitch.graph.ir import ArrayType, GatherAttrs, Graph, Node
from astitch.graph.matmul import free_dimensions
from astitch.graph.ops import OPS
from astitch.rewrite.draft import Draft
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.expand import add_column, find_coordinate
from astitch.rewrite.movement_rules import group_dimensions
from astitch.rewrite.simplify import rewrite_graph


def batch_gathers(graph: Graph) -> Graph:
    """The same function."""
    if not any(isinstance(node.attrs, GatherAttrs) for node in graph):
        return graph

    def change(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if not isinstance(node.attrs, GatherAttrs):
            return None
        parted = _part_places(node, draft)
        found = _batch(parted or node, draft)
        return DraftOps(node, draft).reshape(found, node.shape) if parted and found else found

    return rewrite_graph(graph, lambda rule, node: None, change)


def _batch(node: Node, draft: Draft) -> str | None:
    """gather(x, [iota, i]) -> gather(x, [i]), batched along the dimension of x that the iota counts along"""
    a = node.attrs
    assert isinstance(a, GatherAttrs)
    x, indices = (draft[operand] for operand in node.operands)
    places = free_dimensions(indices.array.rank, (a.index_vector_dim,))
    if a.index_vector_dim == indices.array.rank or not node.array.size:
        return None
    columns = [add_column(node, draft, n) for n in range(len(a.start_index_map))]
    batches = dict(zip(a.operand_batching_dims, a.start_indices_batching_dims, strict=True))
    kept: list[str] = []
    starts: list[int] = []
    for d, column in zip(a.start_index_map, columns, strict=True):
        j = find_coordinate(draft, column)
        there = None if j is None else places[j]
        counts = there is not None and there not in batches.values()
        if counts and a.slice_sizes[d] == 1 and x.shape[d] == indices.shape[there or 0]:
            assert there is not None
            batches[d] = there
        else:
            kept.append(column)
            starts.append(d)
    new = [d for d in batches if d not in a.operand_batching_dims]
    if not new or not kept:
        return None
    gone = (*a.collapsed_slice_dims, *a.operand_batching_dims)
    windows = dict(zip(free_dimensions(x.array.rank, gone), a.offset_dims, strict=True))
    dropped = [windows[d] for d in new if d in windows]
    offsets = tuple(
        at - sum(other < at for other in dropped) for at in a.offset_dims if at not in dropped
    )
    attrs = replace(
        a,
        offset_dims=offsets,
        collapsed_slice_dims=tuple(d for d in a.collapsed_slice_dims if d not in new),
        start_index_map=tuple(starts),
        operand_batching_dims=tuple(sorted(batches)),
        start_indices_batching_dims=tuple(batches[d] for d in sorted(batches)),
    )
    shape = tuple(n for at, n in enumerate(node.shape) if at not in dropped)
    joined = _join_columns(node, draft, kept, a.index_vector_dim)
    ops = DraftOps(node, draft)
    found = ops.add("gather", node.dtype, shape, (x.name, joined), attrs)
    return ops.reshape(found, node.shape) if dropped else found


def _part_places(node: Node, draft: Draft) -> Node | None:
    """gather(x, reshape(i)) as a gather of i, whose result is to be reshaped.  XLA numbers places by one dimension."""
    a = node.attrs
    assert isinstance(a, GatherAttrs)
    joined = draft[node.operands[1]]
    if not OPS[joined.op].keeps_order or a.start_indices_batching_dims:
        return None
    source = draft[joined.operands[0]]
    parts = {d: [n] for d, n in enumerate(joined.shape)}
    for before, after in group_dimensions(source.shape, joined.shape):
        if len(after) > 1 and before != after:
            return None
        if len(after) == 1:
            parts[after[0]] = [source.shape[d] for d in before]
    vector = a.index_vector_dim
    if vector == joined.array.rank or len(parts[vector]) > 1:
        return None
    places = [d for d in parts if d != vector]
    if all(len(parts[d]) == 1 for d in places):
        return None
    at = dict(zip(free_dimensions(node.array.rank, a.offset_dims), places, strict=True))
    extents = [parts[at[d]] if d in at else [n] for d, n in enumerate(node.shape)]
    offsets = tuple(sum(map(len, extents[:d])) for d in a.offset_dims)
    attrs = replace(
        a, offset_dims=offsets, index_vector_dim=sum(len(parts[d]) for d in range(vector))
    )
    shape = tuple(n for part in parts.values() for n in part)
    indices = DraftOps(node, draft).reshape(source.name, shape)
    type_ = ArrayType(node.dtype, tuple(n for extent in extents for n in extent))
    return replace(node, type=type_, operands=(node.operands[0], indices), attrs=attrs)


def _join_columns(node: Node, draft: Draft, columns: list[str], vector: int) -> str:
    """Columns as index vectors along a dimension."""
    ops = DraftOps(node, draft)
    shape = draft[columns[0]].shape
    single = (*shape[:vector], 1, *shape[vector:])
    return ops.concatenate([ops.reshape(column, single) for column in columns], vector)
