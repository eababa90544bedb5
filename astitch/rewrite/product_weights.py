"""How the larger operand of a product is made of arrays in memory: Graph -> Weights.

    ((weights - offsets) * scales)[k, n]

weights may be integers, offsets and scales the same for a group of neighbours along k.  Between these ops there may be
reshapes, transposes, broadcasts and conversions, in any order; the innermost array may be one layer of several, and the
whole may be several matrices side by side along n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import numpy as np

from astitch.graph.ir import (
    BroadcastAttrs,
    DimensionAttrs,
    DotAttrs,
    DType,
    DynamicSliceAttrs,
    Graph,
    Node,
    SliceAttrs,
    TransposeAttrs,
)
from astitch.graph.matmul import free_dimensions
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.narrow_product import FACTORS
from astitch.rewrite.draft import ascends, is_zero
from astitch.rewrite.movement_rules import group_dimensions

BATCH, DEPTH, COLUMN = "batch", "depth", "column"

_STEPS = (Kind.COMPUTE, Kind.PROJECTION, Kind.CONTROL, Kind.OTHER)
"""What these compute is in memory."""


@dataclass(frozen=True, slots=True)
class Part:
    """A dimension as a part of an index: (index of `label` // stride) % extent."""

    label: str
    extent: int
    stride: int


Parts: TypeAlias = "tuple[Part | None, ...]"
"""Of each dimension of an array; None: of one element."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One of `count` layers: a number, or a value of the graph."""

    count: int
    number: int | str


@dataclass(frozen=True, slots=True)
class Stored:
    """An array in memory and what its dimensions index, major to minor, those of one element left out.

    layer: it has a dimension more in front, of layers.  value: the array, or that layer of it.
    """

    name: str
    dtype: DType
    parts: tuple[Part, ...]
    layer: Layer | None = None
    value: str = ""


@dataclass(frozen=True, slots=True)
class Matrix:
    weights: Stored
    offsets: Stored | None = None
    scales: Stored | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """Matrices side by side.  columns: of each."""

    matrices: tuple[Matrix, ...]
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sides:
    """Both operands of a product.  weights: the larger one's number, with the parts of its dimensions.

    x_order: the other's dimensions as batches, rows, depth in the order of the weights.
    """

    weights: int
    parts: tuple[Part | None, ...]
    x_order: tuple[int, ...]
    rows: int


def tell_sides(graph: Graph, node: Node) -> Sides | None:
    """Which operand of a product is its weights, and how its dimensions lie; None for what is no product of operands of
    one type, at a precision that a kernel of ours has."""
    a = node.attrs
    if not isinstance(a, DotAttrs) or a.algorithm or not node.array.size:
        return None
    arrays = [graph[o].array for o in node.operands]
    factor = arrays[0].dtype
    if factor not in FACTORS or arrays[1].dtype is not factor:
        return None
    if node.dtype not in (factor, DType.F32):
        return None
    if factor is DType.F32 and set(a.precision) != {"DEFAULT"}:
        return None
    side = int(arrays[1].size > arrays[0].size)
    batches = (a.lhs_batch, a.rhs_batch)
    if not ascends(batches[side]):
        return None
    pairs = sorted(zip(*_turn(side, a.lhs_contracting, a.rhs_contracting), strict=True))
    labels = [COLUMN] * arrays[side].rank
    for d, _ in pairs:
        labels[d] = DEPTH
    for d in batches[side]:
        labels[d] = BATCH
    x, contracted = arrays[1 - side], [pair[1] for pair in pairs]
    free = free_dimensions(x.rank, batches[1 - side], contracted)
    return Sides(
        side,
        list_parts(arrays[side].shape, labels),
        (*batches[1 - side], *free, *contracted),
        prod(x.shape[d] for d in free),
    )


def _turn(
    side: int, left: tuple[int, ...], right: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (right, left) if side else (left, right)


def find_weights(graph: Graph, name: str, parts: Parts) -> Weights | None:
    """What an operand is made of; parts: of its dimensions.  None where it is anything else."""
    pieces = list(_list_pieces(graph, name, parts))
    columns = tuple(count for _, _, count in pieces)
    matrices = [_read_matrix(graph, piece, of_piece) for piece, of_piece, _ in pieces]
    if not all(matrices):
        return None
    return Weights(tuple(m for m in matrices if m), columns)


def list_parts(shape: Sequence[int], labels: Sequence[str]) -> Parts:
    """Parts of an array whose dimensions have these labels, those of one label major to minor."""
    parts: list[Part | None] = []
    behind: dict[str, int] = {}
    for extent, label in zip(reversed(shape), reversed(labels), strict=True):
        stride = behind.get(label, 1)
        parts.append(Part(label, extent, stride) if extent > 1 else None)
        behind[label] = stride * extent
    return tuple(reversed(parts))


def count_along(parts: Sequence[Part | None], label: str) -> int:
    return prod(part.extent for part in parts if part and part.label == label)


def lies_in_memory(graph: Graph, name: str) -> bool:
    """Is a value an argument, a constant, or of a step of its own, also as a view?  What else is computed may be
    multiplied and summed in the kernel that computes it."""
    node = graph[name]
    while OPS[node.op].kind is Kind.INDEX and len(node.operands) == 1:
        node = graph[node.operands[0]]
    return node.is_parameter or node.is_constant or OPS[node.op].kind in _STEPS


def without_ones(parts: Sequence[Part]) -> list[Part]:
    """The parts of more than one element."""
    return [part for part in parts if part.extent > 1]


# ---- ops that move elements


def skip_moves(graph: Graph, name: str, parts: Parts) -> tuple[str, Parts]:
    """What an operand is transposed and reshaped from, and the parts of its dimensions."""

    def permutes(node: Node) -> bool:
        row = OPS.get(node.opcode)
        return row is not None and row.permutes

    return _walk(graph, name, parts, permutes)


def _walk(
    graph: Graph, name: str, parts: Parts, passes: Callable[[Node], bool]
) -> tuple[str, Parts]:
    """Past ops that only move or convert elements, while `passes` says so."""
    while passes(graph[name]) and (moved := step_back(graph, graph[name], parts)) is not None:
        name, parts = graph[name].operands[0], moved
    return name, parts


def _list_pieces(graph: Graph, name: str, parts: Parts) -> Iterator[tuple[str, Parts, int]]:
    """(value, its parts, its columns) of what is side by side along the columns."""
    node = graph[name]
    if isinstance(node.attrs, DimensionAttrs) and _is_concatenation(node):
        d = node.attrs.dimension
        along = parts[d]
        if along and along.label == COLUMN and _is_outermost(parts, along):
            for operand in node.operands:
                extent = graph[operand].shape[d]
                own = replace(along, extent=extent) if extent > 1 else None
                yield from _list_pieces(graph, operand, (*parts[:d], own, *parts[d + 1 :]))
            return
    moved = step_back(graph, node, parts) if _leads_to_pieces(graph, name) else None
    if moved is None:
        yield name, parts, count_along(parts, COLUMN)
    else:
        yield from _list_pieces(graph, node.operands[0], moved)


def _is_outermost(parts: Parts, along: Part) -> bool:
    """Does this part have the largest stride of its label?"""
    return count_along(parts, along.label) == along.extent * along.stride


def _leads_to_pieces(graph: Graph, name: str) -> bool:
    """Is a concatenation behind ops that move or convert elements only?"""
    node = graph[name]
    if _is_concatenation(node):
        return True
    row = OPS.get(node.opcode)
    moves = row is not None and (row.is_view or row.permutes or row.is_conversion)
    return moves and _leads_to_pieces(graph, node.operands[0])


def _is_concatenation(node: Node) -> bool:
    return isinstance(node.attrs, DimensionAttrs) and OPS[node.op].kind is Kind.INDEX


def step_back(graph: Graph, node: Node, parts: Parts) -> Parts | None:
    """The parts of the operand of an op that only moves or converts elements; None for any other."""
    attrs = node.attrs
    if isinstance(attrs, TransposeAttrs):
        moved: list[Part | None] = [None] * len(parts)
        for at, d in enumerate(attrs.permutation):
            moved[d] = parts[at]
        return tuple(moved)
    if isinstance(attrs, BroadcastAttrs) and OPS[node.op].is_broadcast:
        return tuple(parts[d] for d in attrs.dimensions)
    row = OPS.get(node.opcode)  # also of types that only XLA computes with
    if row is None:
        return None
    if row.is_view and not row.is_bitcast:
        return _reshape(node.shape, parts, graph[node.operands[0]].shape)
    return parts if row.is_conversion and node.dtype in FACTORS else None


def _reshape(shape: Sequence[int], parts: Parts, before: Sequence[int]) -> Parts | None:
    """The parts of what has been reshaped to `shape`; None where a dimension of its would have parts of two labels."""
    moved: list[Part | None] = [None] * len(before)
    for outer, inner in group_dimensions(before, shape):
        held = [part for d in inner if (part := parts[d])]
        divided = _divide(held, [before[d] for d in outer])
        if divided is None:
            return None
        for d, part in zip(outer, divided, strict=True):
            moved[d] = part
    return tuple(moved)


def _divide(parts: Sequence[Part], extents: Sequence[int]) -> list[Part] | None:
    """The same index over other extents."""
    if [part.extent for part in parts] == list(extents):
        return list(parts)
    merged = merge_parts(parts)
    if len(merged) != 1:
        return None
    divided, stride = [], merged[0].stride
    for extent in reversed(extents):
        divided.append(Part(merged[0].label, extent, stride))
        stride *= extent
    return divided[::-1]


def merge_parts(parts: Sequence[Part]) -> list[Part]:
    """With neighbours that are one index as one."""
    merged: list[Part] = []
    for part in parts:
        before = merged[-1] if merged else None
        if before and before.label == part.label and before.stride == part.stride * part.extent:
            merged[-1] = Part(part.label, before.extent * part.extent, part.stride)
        else:
            merged.append(part)
    return merged


# ---- one matrix


def _read_matrix(graph: Graph, name: str, parts: Parts) -> Matrix | None:
    scales = offsets = None
    name, parts = _skip(graph, name, parts)
    if OPS[graph[name].op].combiner is np.multiply:
        found = take_apart(graph, graph[name], parts)
        if found is None:
            return None
        name, scales = found
        name, parts = _skip(graph, name, parts)
    if OPS[graph[name].op].addend_sign < 0:
        first, second = graph[name].operands
        offsets = read_stored(graph, second, parts)
        if offsets is None:
            return None
        name, parts = _skip(graph, first, parts)
    weights = read_stored(graph, name, parts)
    return Matrix(weights, offsets, scales) if weights else None


def _skip(graph: Graph, name: str, parts: Parts) -> tuple[str, Parts]:
    """Past what moves or converts floats, up to integers."""

    def passes(node: Node) -> bool:
        row = OPS.get(node.opcode)
        if row is not None and row.is_conversion:
            return graph[node.operands[0]].dtype.is_float
        return not OPS[node.op].is_broadcast

    return _walk(graph, name, parts, passes)


def take_apart(graph: Graph, node: Node, parts: Parts) -> tuple[str, Stored] | None:
    """(weights, scales) of a product: scales are repeated."""
    for weights, scales in (node.operands, node.operands[::-1]):
        stored = read_stored(graph, scales, parts)
        if stored and prod(p.extent for p in stored.parts) < graph[weights].array.size:
            return weights, stored
    return None


def read_stored(graph: Graph, name: str, parts: Parts) -> Stored | None:
    """The array that a value is, but for moves, conversions and repetitions."""
    dtype: DType | None = None
    while True:
        node = graph[name]
        row = OPS.get(node.opcode)
        moved = step_back(graph, node, parts)
        if moved is None:
            break
        if row is not None and row.is_conversion:
            if dtype is not None:
                return None  # rounded twice
            dtype = graph[node.operands[0]].dtype
        name, parts = node.operands[0], moved
    layer, value = find_layer(graph, node), name
    if layer is not None:
        name = node.operands[0]
        parts = parts[1:]
    dtype = dtype or node.dtype
    kept = tuple(part for part in parts if part)
    return Stored(name, dtype, kept, layer, value)


def find_layer(graph: Graph, node: Node) -> Layer | None:
    """Is it one layer of an array, of all its other elements?"""
    if not (isinstance(node.attrs, SliceAttrs) or node.opcode in _DYNAMIC_SLICES):
        return None
    before = graph[node.operands[0]].shape
    if len(before) < 2 or node.shape[:1] != (1,) or node.shape[1:] != before[1:]:
        return None
    if isinstance(node.attrs, SliceAttrs):
        return Layer(before[0], node.attrs.starts[0])
    _, first, *others = node.operands
    return Layer(before[0], first) if all(is_zero(graph, o) for o in others) else None


_DYNAMIC_SLICES = {op for op, row in OPS.items() if row.attributes.of is DynamicSliceAttrs}
"""Also of types that only XLA computes with, whose attributes are not read."""
