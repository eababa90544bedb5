"""Graph -> Graph: scatters to segments of one length as reductions, and gathers that repeat rows as broadcasts.

`segment_sum(x, jnp.repeat(jnp.arange(n), k))` adds up k neighbours in memory, and `y[jnp.repeat(jnp.arange(n), k)]`
repeats each row k times.  The indices follow from nothing but their place, so they are computed here.  XLA reads them,
and adds with atomics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from astitch.graph.ir import (
    ConstantAttrs,
    DimensionsAttrs,
    DType,
    GatherAttrs,
    Graph,
    Literal,
    Node,
    ScatterAttrs,
)
from astitch.graph.ops import OPS, Kind, monoid_of, neutral_element
from astitch.graph.reference import run_graph
from astitch.rewrite.draft import Draft, Log, read_splat
from astitch.rewrite.draft_ops import DraftOps, Region
from astitch.rewrite.scatter_rows import ScatteredRows, scatters_rows
from astitch.rewrite.simplify import rewrite_graph
from astitch.rewrite.sorted_scatters import WORDS

MOST_OPS = 24
"""Ops by which indices follow from their place."""

MOST_INDICES = 1 << 24
"""Of a scatter or gather: 40 ms to compute them."""

LEAST_WRITTEN = 0.5
"""The share of rows that a scatter to given ones combines with.  Else XLA writes these alone where they lie."""

_FOLLOWS = frozenset({Kind.SOURCE, Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INDEX})


def reduce_equal_segments(graph: Graph, log: Log | None = None) -> Graph:
    """The same function but for the order in which scatters combine; sums of 16-bit floats are rounded once."""
    heard: Log = log or (lambda rule, node: None)
    if not any(isinstance(node.attrs, ScatterAttrs | GatherAttrs) for node in graph):
        return graph

    def change(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        length = _find_length(node, draft)
        if length is None:
            return None
        heard("reduce_equal_segments", node.name)
        if isinstance(node.attrs, GatherAttrs):
            return _repeat_rows(node, draft, length)
        return _Segments([node], draft).put(length)

    return rewrite_graph(graph, heard, change)


def _find_length(node: Node, draft: Draft) -> int | None:
    """How many updates each row has, or how often it is repeated: the rows in order, from the first on."""
    attrs = node.attrs
    if isinstance(attrs, ScatterAttrs):
        known = _combines_rows(node, attrs, draft)
    else:
        known = isinstance(attrs, GatherAttrs) and _reads_rows(node, attrs, draft)
    places = _compute(draft, node.operands[1]) if known else None
    if places is None or not places.size:
        return None
    flat = places.reshape(-1)
    named = int(flat[-1]) + 1
    rows = draft[node.operands[0]].shape[0]
    if not 0 < named <= rows or flat.size % named:
        return None
    in_place = isinstance(attrs, ScatterAttrs) and read_splat(draft, node.operands[0]) is None
    if in_place and named < LEAST_WRITTEN * rows:
        return None
    length = flat.size // named
    return length if np.array_equal(flat, np.arange(flat.size) // length) else None


def _combines_rows(node: Node, attrs: ScatterAttrs, draft: Draft) -> bool:
    """Does a scatter combine whole rows, each with one index?"""
    if len(node.operands) != 3 or attrs.scatter_dims_to_operand_dims != (0,):
        return False
    x, _, updates = (draft[o].array for o in node.operands)
    op, word = monoid_of(node.regions[0]), _word(node.dtype)
    combines = op is not None and word is not None and neutral_element(op, word) is not None
    return combines and not attrs.input_batching_dims and scatters_rows(node, x, updates)


def _reads_rows(node: Node, attrs: GatherAttrs, draft: Draft) -> bool:
    """Does a gather read whole rows, each with one index?"""
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
        row = OPS[node.op]
        follows = row.kind in _FOLLOWS and not node.is_parameter and not node.regions
        if not follows or (not row.keeps_order and node.array.size > MOST_INDICES):
            return None
        if left := [o for o in node.operands if o not in nodes and o not in pending]:
            pending += left
        else:
            nodes[pending.pop()] = node
        if len(nodes) + len(pending) > MOST_OPS:
            return None
    (made,) = run_graph(Graph("places", nodes, (), (name,)), [])
    return made


def _repeat_rows(node: Node, draft: Draft, length: int) -> str:
    """Each of the first rows so often."""
    ops, x = DraftOps(node, draft), draft[node.operands[0]]
    row = x.shape[1:]
    named = node.array.size // (length * max(math.prod(row), 1))
    first = ops.cut(x.name, (0,) * x.array.rank, (named, *row))
    places = (0, *range(2, 2 + len(row)))
    return ops.reshape(ops.broadcast(first, (named, length, *row), places), node.shape)


class _Segments(ScatteredRows):
    """One scatter to segments of one length."""

    def put(self, length: int) -> str:
        """The name of the result."""
        node = self.origin
        op, word = monoid_of(node.regions[0]), _word(node.dtype)
        assert op is not None and word is not None
        updates = self.convert(self.flatten_updates(node), word)
        named = self.count // length
        found = self.reshape(updates, (named, length, *self.row))
        neutral = neutral_element(op, word)
        assert neutral is not None
        unit = self.add("constant", word, (), (), ConstantAttrs(Literal.of(np.asarray(neutral))))
        region = Region(word)
        combine = region.end("combine", region.op(op, word, ("a", "b")))
        shape = (named, *self.row)
        found = self.add("reduce", word, shape, (found, unit), DimensionsAttrs((1,)), (combine,))
        x = self.convert(self.reshape(node.operands[0], (self.rows, *self.row)), word)
        zeros = (0,) * len(shape)
        found = self.both(op, self.cut(x, zeros, shape), found)
        if named < self.rows:
            rest = self.cut(x, (named, *zeros[1:]), (self.rows, *self.row))
            found = self.concatenate([found, rest], 0)
        return self.reshape(self.convert(found, node.dtype), node.shape)
