"""Where a result of attention is read: behind its product, through what moves, converts or adds up.

The gradients of k and v are often added up over heads that share them.  A library gives the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from astitch.attention.operands import Reader, regroup
from astitch.attention.rows import Label, Parts, RowFunctions, read_scalar
from astitch.graph.ir import DimensionsAttrs, DType, Graph, Node, TransposeAttrs
from astitch.graph.ops import OPS, Kind, monoid_of


@dataclass(frozen=True)
class Result:
    """A node that gives a result of attention.  labels: of its dimensions."""

    node: Node
    labels: tuple[Label, ...]


def find_results(rows: RowFunctions, reader: Reader, over: Label = ()) -> tuple[Result, ...]:
    """The nodes that give what a product gives, added up over these parts and over no others.

    The first is the product itself, or the sum; each of the others is all that is read of the one before.  Empty where
    something else than such a sum is read of the product.
    """
    graph, parts = rows.graph, rows.parts
    narrow = graph[rows.product.operands[0]].dtype
    node, labels = reader.product, tuple(map(parts.resolve, reader.labels))
    left = set(parts.resolve(over))
    found: list[Result] = []
    while True:
        if not left:
            found.append(Result(node, labels))
        users = graph.users[node.name]
        if len(users) != 1 or node.name in graph.outputs:
            break
        user = graph[users[0]]
        after = _labels_after(graph, parts, node, user, labels, narrow)
        if after is None:
            break
        before, kept = (
            {p for label in some for p in parts.resolve(label)} for some in (labels, after)
        )
        left = set(parts.resolve(tuple(left)))
        if not before - kept <= left:
            break
        left -= before - kept
        node, labels = user, after
    return tuple(found)


def _labels_after(
    graph: Graph,
    parts: Parts,
    node: Node,
    user: Node,
    labels: Sequence[Label],
    narrow: DType,
) -> tuple[Label, ...] | None:
    """The labels of what moves, converts or adds up a node; None for another op."""
    row = OPS[user.op]
    if row.is_conversion:
        wide = user.dtype.is_float and user.dtype.bytes > narrow.bytes
        return tuple(labels) if wide or user.dtype is narrow else None
    if isinstance(user.attrs, TransposeAttrs):
        return tuple(labels[d] for d in user.attrs.permutation)
    if row.is_view and row.kind is Kind.INDEX:
        return regroup(parts, labels, node.shape, user.shape)
    if not (row.is_reduce and isinstance(user.attrs, DimensionsAttrs) and len(user.operands) == 2):
        return None
    if user.operands[0] != node.name or monoid_of(user.regions[0]) != "add":
        return None
    if read_scalar(graph, user.operands[1]) != 0:
        return None
    return tuple(label for d, label in enumerate(labels) if d not in user.attrs.dimensions)
