"""Graph -> Graph: products of what is put together of columns multiply columns that are alike in all rows once.

A network that is told the time, or a code of what it draws, has them beside its features: `concatenate([h, t]) @ w`.
That is `h @ w[:-1] + t * w[-1]`: a bias.  The array is not written, and its product has an even number of columns.  The
gradient of `w` is put together of two products likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from math import prod

from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    DimensionAttrs,
    DotAttrs,
    DType,
    Graph,
    Node,
    PadAttrs,
)
from astitch.graph.matmul import ALIGNED
from astitch.rewrite.draft import Draft, Log, is_zero
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.simplify import rewrite_graph

TYPES = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16})

LEAST_BYTES = 1 << 20
"""A smaller array is as well put together."""

MOST_READ = 2
"""The other operand is read once more: it has at most so many times the bytes of what is not written."""

LEAST_ROWS = 64
"""What is alike in fewer rows is as well multiplied in each of them."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Columns from start on.  value: what they are; of columns that are alike, what is repeated."""

    value: str
    start: int
    extent: int
    repeated: BroadcastAttrs | None = None


def separate_columns(graph: Graph, log: Log | None = None) -> Graph:
    """The same function but for rounding.  graph: simplified.  log: hears of every product that is written anew."""
    heard: Log = log or (lambda rule, node: None)
    joined = {node.name: found for node in graph if (found := _find_pieces(graph, node))}
    if not joined:
        return graph

    def change(node: Node, draft: Draft, values: Mapping[str, str]) -> str | None:
        attrs = node.attrs
        if not isinstance(attrs, DotAttrs):
            return None
        read = graph[node.name].operands
        side = next((s for s, name in enumerate(read) if name in joined), None)
        if side is None:
            return None
        heard("separate_columns", node.name)
        dimension, found = joined[read[side]]
        pieces = [replace(piece, value=values[piece.value]) for piece in found]
        return _Product(DraftOps(node, draft), attrs, side, dimension, pieces).put()

    return rewrite_graph(graph, heard, change)


def _find_pieces(graph: Graph, node: Node) -> tuple[int, list[_Piece]] | None:
    """The pieces of an array that is put together for products alone, and along which dimension they lie.  Some of them
    are alike in all rows."""
    if not isinstance(node.type, ArrayType) or node.dtype not in TYPES:
        return None
    if node.array.bytes < LEAST_BYTES or node.name in graph.outputs:
        return None
    match node.attrs:
        case DimensionAttrs(dimension):
            pieces = _list_joined(graph, node, dimension)
        case PadAttrs():
            dimension, pieces = _list_padded(graph, node)
        case _:
            return None
    alike = [piece.repeated is not None for piece in pieces]
    users = [graph[user] for user in graph.users[node.name]]
    fits = all(_reads_pieces(graph, user, node.name, dimension) for user in users)
    return (dimension, pieces) if users and fits and any(alike) and not all(alike) else None


def _list_joined(graph: Graph, node: Node, dimension: int) -> list[_Piece]:
    extents = [graph[o].shape[dimension] for o in node.operands]
    found = []
    for name, start, extent in zip(
        node.operands, accumulate(extents, initial=0), extents, strict=False
    ):
        spread = graph[name].attrs
        if isinstance(spread, BroadcastAttrs) and _is_alike(node, spread, dimension):
            found.append(_Piece(graph[name].operands[0], start, extent, spread))
        else:
            found.append(_Piece(name, start, extent))
    return found


def _list_padded(graph: Graph, node: Node) -> tuple[int, list[_Piece]]:
    """A number beside an array.  Zeros up to aligned columns are there for the product's sake."""
    a, (x, number) = node.attrs, node.operands
    assert isinstance(a, PadAttrs)
    padded = [d for d in range(node.array.rank) if a.low[d] or a.high[d]]
    everywhere = BroadcastAttrs(())
    if len(padded) != 1 or any(a.interior) or min(*a.low, *a.high) < 0:
        return 0, []
    (d,) = padded
    before, after = graph[x].shape[d], node.shape[d]
    aligns = is_zero(graph, number) and before % ALIGNED and not after % ALIGNED
    if aligns or not _is_alike(node, everywhere, d):
        return d, []
    low, high = a.low[d], a.high[d]
    edges = ((0, low), (low + before, high))
    pieces = [_Piece(number, start, count, everywhere) for start, count in edges if count]
    return d, sorted([*pieces, _Piece(x, low, before)], key=lambda piece: piece.start)


def _is_alike(node: Node, spread: BroadcastAttrs, dimension: int) -> bool:
    """Is a broadcast along the dimension alike in all rows?"""
    rows = [extent for d, extent in enumerate(node.shape) if d != dimension]
    return set(spread.dimensions) <= {dimension} and prod(rows) >= LEAST_ROWS


def _reads_pieces(graph: Graph, node: Node, name: str, dimension: int) -> bool:
    """Is it a product of which each piece is multiplied by itself, or a part of the result?"""
    a = node.attrs
    if not isinstance(a, DotAttrs) or a.algorithm or a.lhs_batch or node.dtype not in TYPES:
        return False
    if node.operands.count(name) != 1:
        return False
    side = node.operands.index(name)
    contracted = (a.lhs_contracting, a.rhs_contracting)[side]
    joined, other = graph[name].array, graph[node.operands[1 - side]].array
    if contracted == (dimension,):
        return 2 * other.bytes <= MOST_READ * joined.bytes  # its rows are written once more, too
    rows = {*range(joined.rank)} - {dimension}
    return {*contracted} == rows and other.bytes <= MOST_READ * joined.bytes


@dataclass
class _Product:
    """A product of which one operand is put together.  side: which.  dimension: along which its pieces lie."""

    ops: DraftOps
    attrs: DotAttrs
    side: int
    dimension: int
    pieces: Sequence[_Piece]

    def __post_init__(self) -> None:
        node = self.ops.origin
        self.dtype = node.dtype
        self.exact = DType.F32 if node.dtype.is_narrow_float else node.dtype
        self.other = node.operands[1 - self.side]
        both = (self.attrs.lhs_contracting, self.attrs.rhs_contracting)
        self.own, self.others = both[self.side], both[1 - self.side]

    def put(self) -> str:
        return self._put_sum() if self.own == (self.dimension,) else self._put_side_by_side()

    def _put_sum(self) -> str:
        """The product adds over the columns: those that are alike give a row that is added to all."""
        ops, shape = self.ops, self.ops.origin.shape
        rest = [piece for piece in self.pieces if not piece.repeated]
        x = ops.concatenate([piece.value for piece in rest], self.dimension)
        y = ops.concatenate([self._cut(piece) for piece in rest], self.others[0])
        total = self._multiply(x, y, self.exact, shape)
        free = len(ops.draft[self.other].shape) - 1
        first = 0 if self.side else len(shape) - free
        for piece in self.pieces:
            if piece.repeated:
                factors = ops.convert(self._cut(piece), self.exact)
                places = self.others if piece.repeated.dimensions else ()
                value = ops.convert(piece.value, self.exact)
                value = ops.broadcast(value, ops.draft[factors].shape, places)
                row = ops.sum(ops.both("multiply", value, factors), self.others)
                spread = ops.broadcast(row, shape, range(first, first + free))
                total = ops.both("add", total, spread)
        return ops.convert(total, self.dtype)

    def _put_side_by_side(self) -> str:
        """The product adds over the rows: each piece gives a part of the result."""
        ops, shape = self.ops, self.ops.origin.shape
        at = len(shape) - 1 if self.side else 0
        parts = list[str]()
        for alike, group in groupby(self.pieces, lambda piece: piece.repeated is not None):
            pieces = [*group]
            if alike:
                parts += [self._put_alike(piece, at) for piece in pieces]
                continue
            x = ops.concatenate([piece.value for piece in pieces], self.dimension)
            extent = sum(piece.extent for piece in pieces)
            parts.append(self._multiply(x, self.other, self.dtype, _with(shape, at, extent)))
        return ops.concatenate(parts, at)

    def _put_alike(self, piece: _Piece, at: int) -> str:
        """What all rows have, times the sum of the rows of the other operand."""
        ops = self.ops
        shape = _with(ops.origin.shape, at, piece.extent)
        assert piece.repeated
        value = ops.convert(piece.value, self.exact)
        value = ops.broadcast(value, shape, (at,) if piece.repeated.dimensions else ())
        total = ops.sum(ops.convert(self.other, self.exact), self.others)
        total = ops.broadcast(total, shape, [d for d in range(len(shape)) if d != at])
        return ops.convert(ops.both("multiply", value, total), self.dtype)

    def _cut(self, piece: _Piece) -> str:
        """The rows of the other operand that a piece is multiplied by."""
        (d,) = self.others
        limits = list(self.ops.draft[self.other].shape)
        starts = [0] * len(limits)
        starts[d], limits[d] = piece.start, piece.start + piece.extent
        return self.ops.cut(self.other, starts, limits)

    def _multiply(self, x: str, y: str, dtype: DType, shape: Sequence[int]) -> str:
        operands = (y, x) if self.side else (x, y)
        return self.ops.add("dot", dtype, shape, operands, self.attrs)


def _with(shape: Sequence[int], at: int, extent: int) -> list[int]:
    return [extent if d == at else n for d, n in enumerate(shape)]
