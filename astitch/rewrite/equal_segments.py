"""Graph -> Graph: scatters to segments of one length as reductions, and gathers that repeat rows as broadcasts.

`segment_sum(x, jnp.repeat(jnp.arange(n), k))` adds up k neighbours in memory, and `y[jnp.repeat(jnp.arange(n), k)]`
repeats each row k times.  The indices follow from nothing but their place, so they are computed here.  XLA reads them,
and adds with atomics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from astitch.graph.ir import (
    DType,
    GatherAttrs,
    Graph,
    Node,
    ScatterAttrs,
)
from astitch.graph.ops import OPS, Kind, monoid_of, neutral_element
from astitch.graph.reference import run_graph
from astitch.rewrite.draft import Draft, Log, read_splat
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.scatter_rows import ScatteredRows, scatters_rows
from astitch.rewrite.simplify import rewrite_graph
from astitch.rewrite.sorted_scatters import WORDS

MOST_OPS = 24
"""Ops by which indices follow from their place."""

MOST_INDICES = 1 << 22
"""Of a scatter or gather.  A division of so many takes 0.1 to 0.3 s on one core."""

LEAST_WRITTEN = 0.5
"""The share of rows that a scatter to given ones combines with.  Else XLA writes these alone where they lie."""

_FOLLOWS = frozenset({Kind.SOURCE, Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INDEX})


def reduce_equal_segments(graph: Graph, log: Log | None = None) -> Graph:
    """The same function but for the order in which scatters combine; sums of 16-bit floats are rounded once."""
    heard: Log = log or (lambda rule, node: None)
    if not any(isinstance(node.attrs, ScatterAttrs | GatherAttrs) for node in graph):
        return graph

    known: dict[str, _Segments | None] = {}  # by the indices: several ops read the same

    def change(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        attrs = node.attrs
        if not isinstance(attrs, ScatterAttrs | GatherAttrs):
            return None
        is_gather = isinstance(attrs, GatherAttrs)
        if not (_reads_rows if is_gather else _combines_rows)(node, draft):
            return None
        indices = node.operands[1]
        if indices not in known:
            known[indices] = _find_segments(draft, indices)
        segments = known[indices]
        if segments is None or not _fits(node, draft, segments):
            return None
        heard("reduce_equal_segments", node.name)
        if is_gather:
            return _repeat_rows(node, draft, segments)
        return _Combined([node], draft).put(segments)

    return rewrite_graph(graph, heard, change)


@dataclass(frozen=True, slots=True)
class _Segments:
    """Indices 0, 0, ... 1, 1, ...: the first `rows`, each `length` times."""

    rows: int
    length: int


def _find_segments(draft: Draft, indices: str) -> _Segments | None:
    """None: the indices are others, or it is not known what they are."""
    places = _compute(draft, indices)
    if places is None or not places.size:
        return None
    flat = places.reshape(-1)
    rows = int(flat[-1]) + 1
    if not 0 < rows <= flat.size or flat.size % rows:
        return None
    length = flat.size // rows
    return _Segments(rows, length) if np.array_equal(flat, np.arange(flat.size) // length) else None


def _fits(node: Node, draft: Draft, segments: _Segments) -> bool:
    """Has the array all rows that are named, and is it worth while to write it anew?"""
    target = node.operands[0]
    rows = draft[target].shape[0]
    in_place = isinstance(node.attrs, ScatterAttrs) and read_splat(draft, target) is None
    return (LEAST_WRITTEN * rows if in_place else 0) <= segments.rows <= rows


def _combines_rows(node: Node, draft: Draft) -> bool:
    """Does a scatter combine whole rows, each with one index?"""
    attrs = node.attrs
    assert isinstance(attrs, ScatterAttrs)
    if len(node.operands) != 3 or attrs.scatter_dims_to_operand_dims != (0,):
        return False
    x, _, updates = (draft[o].array for o in node.operands)
    op, word = monoid_of(node.regions[0]), _word(node.dtype)
    combines = op is not None and word is not None and neutral_element(op, word) is not None
    return combines and not attrs.input_batching_dims and scatters_rows(node, x, updates)


def _reads_rows(node: Node, draft: Draft) -> bool:
    """Does a gather read whole rows, each with one index?"""
    attrs = node.attrs
    assert isinstance(attrs, GatherAttrs)
    shape, places = (draft[o].shape for o in node.operands)
    rank = len(places) - (attrs.index_vector_dim < len(places))
    return (
        attrs.start_index_map == attrs.collapsed_slice_dims == (0,)
        and not attrs.operand_batching_dims
        and attrs.slice_sizes == (1, *shape[1:])
        and attrs.offset_dims == tuple(range(rank, node.array.rank))
    )


def _word(dtype: DType) -> DType | None:
    """The type in which rows are combined."""
    return dtype if dtype in (DType.F64, DType.S64, DType.U64) else WORDS.get(dtype)


def _compute(draft: Draft, name: str) -> np.ndarray | None:
    """The numbers of an array that follows from no parameter; None: it does, or by too many ops."""
    nodes: dict[str, Node] = {}
    pending = [name]
    while pending:
        node = draft[pending[-1]]
        follows = OPS[node.op].kind in _FOLLOWS and not node.is_parameter and not node.regions
        if not follows or node.array.size > MOST_INDICES:
            return None
        if left := [o for o in node.operands if o not in nodes and o not in pending]:
            pending += left
        else:
            nodes[pending.pop()] = node
        if len(nodes) + len(pending) > MOST_OPS:
            return None
    (made,) = run_graph(Graph("places", nodes, (), (name,)), [])
    return made


def _repeat_rows(node: Node, draft: Draft, segments: _Segments) -> str:
    """The first rows, each so often."""
    ops, x = DraftOps(node, draft), draft[node.operands[0]]
    row = x.shape[1:]
    first = ops.cut(x.name, (0,) * x.array.rank, (segments.rows, *row))
    shape, places = (segments.rows, segments.length, *row), (0, *range(2, 2 + len(row)))
    return ops.reshape(ops.broadcast(first, shape, places), node.shape)


class _Combined(ScatteredRows):
    """One scatter to segments of one length."""

    def put(self, segments: _Segments) -> str:
        """The name of the result."""
        node = self.origin
        op, word = monoid_of(node.regions[0]), _word(node.dtype)
        assert op is not None and word is not None
        updates = self.convert(self.flatten_updates(node), word)
        terms = self.reshape(updates, (segments.rows, segments.length, *self.row))
        found = self.combine(terms, op, self.neutral(op, word))
        x = self.convert(self.reshape(node.operands[0], (self.rows, *self.row)), word)
        shape = (segments.rows, *self.row)
        zeros = (0,) * len(shape)
        found = self.both(op, self.cut(x, zeros, shape), found)
        if segments.rows < self.rows:
            rest = self.cut(x, (segments.rows, *zeros[1:]), (self.rows, *self.row))
            found = self.concatenate([found, rest], 0)
        return self.reshape(self.convert(found, node.dtype), node.shape)
