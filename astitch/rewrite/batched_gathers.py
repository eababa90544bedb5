"""Graph -> Graph: gathers in which a column of the indices counts along a dimension become batched ones.

`q[arange(rows), arm]` reads of each row one element.  JAX writes the numbers of the rows into the indices, and XLA does
so where JAX has said that rows go apart.  A batching dimension says again that no row reads another's elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from astitch.graph.ir import GatherAttrs, Graph, Node
from astitch.graph.matmul import free_dimensions
from astitch.rewrite.draft import Draft
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.expand import add_column, find_coordinate
from astitch.rewrite.simplify import rewrite_graph


def batch_gathers(graph: Graph) -> Graph:
    """The same function."""
    if not any(isinstance(node.attrs, GatherAttrs) for node in graph):
        return graph

    def change(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        return _batch(node, draft) if isinstance(node.attrs, GatherAttrs) else None

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


def _join_columns(node: Node, draft: Draft, columns: list[str], vector: int) -> str:
    """Columns as index vectors along a dimension."""
    ops = DraftOps(node, draft)
    shape = draft[columns[0]].shape
    single = (*shape[:vector], 1, *shape[vector:])
    return ops.concatenate([ops.reshape(column, single) for column in columns], vector)
