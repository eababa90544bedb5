"""Graph -> Graph: products of few rows by a kernel of our own, where XLA takes longer.

Such a product takes as long as its weights take to be read.  XLA copies one layer out of the layers of a scan, and
computes integers with a scale for each group in memory.  A kernel of our own reads the weights where they lie, in the
type that they have (tile/narrow_product.py).  Where XLA reads them so too, it is faster for some shapes alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astitch.device.gpu import Gpu
from astitch.graph.ir import ArrayType, DType, Graph, NarrowProductAttrs, Node
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.narrow_product import INTEGERS
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.joined_products import join_products
from astitch.rewrite.product_weights import (
    BATCH,
    COLUMN,
    DEPTH,
    Layer,
    Matrix,
    Part,
    Sides,
    Stored,
    Weights,
    count_along,
    find_weights,
    lies_in_memory,
    merge_parts,
    tell_sides,
    without_ones,
)
from astitch.rewrite.simplify import rewrite_graph
from astitch.rewrite.split_k import put_total
from astitch.rewrite.sums_as_products import find_products, write_products
from astitch.tile.narrow_product import NarrowShape
from astitch.tile.narrow_rates import (
    HOPPER,
    MOST_ELEMENTS,
    MOST_ROWS,
    beats_products,
    choose_share,
    choose_tiling,
)

LEAST_NUMBERS = 1 << 20
"""Of the weights.  Fewer are read in less time than a kernel takes to start."""

LEAST_PIECE = 1 << 18
"""Of one matrix among several that the same row is multiplied by."""


def write_narrow_products(graph: Graph, gpu: Gpu, log: Log | None = None) -> Graph:
    """The same function but for rounding: weights are not rounded after they are scaled.

    graph: simplified.  log: hears of every product that is replaced.
    """
    heard: Log = log or (lambda rule, node: None)
    if gpu.compute_capability != HOPPER:
        return graph
    graph = _restore_sums(graph, gpu)
    found = {node.name: f for node in graph if (f := _find(graph, node, gpu))}
    if not found:
        return graph

    def write(node: Node, draft: Draft, values: Mapping[str, str]) -> str | None:
        if node.name not in found:
            return None
        heard("narrow_product", node.name)
        return _Place(DraftOps(node, draft), values, found[node.name]).put()

    return rewrite_graph(graph, heard, write)


def _restore_sums(graph: Graph, gpu: Gpu) -> Graph:
    """Sums that XLA wrote in the place of products of one row are products again where they are to be replaced."""
    sums = {
        name: found
        for name, found in find_products(graph).items()
        if lies_in_memory(graph, found.product.operands[1])
        and _feeds_sums(graph, found.product.operands[1])
        and _find(graph, found.product, gpu, LEAST_PIECE)
    }
    numbers: Counter[str] = Counter()
    for found in sums.values():
        row, weights = found.product.operands
        numbers[row] += graph[weights].array.size
    wanted = {
        name: found
        for name, found in sums.items()
        if numbers[found.product.operands[0]] >= LEAST_NUMBERS
    }
    return join_products(
        write_products(graph, wanted), {found.product.name for found in wanted.values()}
    )


def _feeds_sums(graph: Graph, name: str) -> bool:
    """Is it read for sums of products alone?  Another reader in the same kernel would read it a second time."""
    for user in (graph[user] for user in graph.users[name]):
        row = OPS[user.op]
        if row.is_conversion or user.op == "multiply":
            if not _feeds_sums(graph, user.name):
                return False
        elif not row.is_reduce and row.kind is not Kind.COMPUTE:
            return False
    return name not in graph.outputs


# ---- finding one


@dataclass(frozen=True, slots=True)
class _Found:
    sides: Sides
    weights: Weights
    shape: NarrowShape

    @property
    def layer(self) -> Layer | None:
        return self.weights.matrices[0].weights.layer


def _find(graph: Graph, node: Node, gpu: Gpu, least: int = LEAST_NUMBERS) -> _Found | None:
    """A product that is to be replaced; None for any other node.  least: numbers of its weights."""
    sides = tell_sides(graph, node)
    if sides is None or sides.rows > MOST_ROWS:
        return None
    name = node.operands[sides.weights]
    if graph[name].array.size < least:
        return None
    weights = find_weights(graph, name, sides.parts)
    if weights is None:
        return None
    shape = _describe(weights, sides, graph[name].dtype, node.dtype)
    if shape is None:
        return None
    found = _Found(sides, weights, shape)
    tiling = choose_tiling(shape)
    if tiling is None or not _is_faster(found):
        return None
    shape = replace(shape, share=choose_share(shape, tiling, gpu.sms))
    if shape.parts * shape.batch * shape.rows * sum(shape.columns) > MOST_ELEMENTS:
        return None
    return replace(found, shape=shape)


def _is_faster(found: _Found) -> bool:
    """Would XLA write the weights to memory before it multiplies, or multiply more slowly?"""
    shape, layer = found.shape, found.layer
    if shape.weights.is_float or shape.groups == 1:
        is_copied = layer is not None and isinstance(layer.number, str)
        is_transposed = shape.shared and shape.rows > 1
        is_computed = shape.scale and shape.rows > 1 and (shape.is_packed or len(shape.columns) > 1)
        return is_copied or is_transposed or is_computed or beats_products(shape)
    # One row of bytes that Triton would compute our other kernels read faster.
    return shape.rows > 1 or shape.is_packed or beats_products(shape)


def _describe(weights: Weights, sides: Sides, factor: DType, result: DType) -> NarrowShape | None:
    """The shape without a share; None where matrices side by side differ, or no kernel knows how one lies.

    result: of one part; several are f32.
    """
    batch, depth = (count_along(sides.parts, label) for label in (BATCH, DEPTH))
    kinds = {
        _describe_matrix(matrix, batch, depth, columns)
        for matrix, columns in zip(weights.matrices, weights.columns, strict=True)
    }
    kind = kinds.pop()
    if kinds or kind is None:
        return None
    dtype = kind.dtype
    if dtype not in INTEGERS and (dtype is not factor or kind.scales or kind.offsets):
        return None
    if kind.offsets not in (None, factor):
        return None  # they would be rounded to the type of x before they are subtracted
    layers = kind.layer.count if kind.layer else 1
    if layers * batch * depth * max(weights.columns) > MOST_ELEMENTS:
        return None
    columns = weights.columns
    if kind.pieces > 1:
        if len(columns) > 1:
            return None
        batch, columns = kind.pieces, (columns[0] // kind.pieces,)
    return NarrowShape(
        factor=factor,
        weights=dtype,
        result=result,
        layers=layers,
        batch=batch,
        rows=sides.rows,
        depth=depth,
        columns=columns,
        scales=factor if kind.scales in (None, factor) else DType.F32,
        groups=kind.groups,
        transposed=kind.transposed,
        offset=kind.offsets is not None,
        scale=kind.scales is not None,
        scales_transposed=kind.scales_transposed,
        layer=kind.layer is not None,
        shared=kind.pieces > 1,
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """What matrices side by side must have in common.  scales, offsets: their types, None where there are none.

    pieces: [pieces, depth, columns / pieces] lie in memory: a batch of matrices, which are multiplied by the same rows.
    """

    dtype: DType
    layer: Layer | None
    transposed: bool
    groups: int
    scales_transposed: bool
    scales: DType | None
    offsets: DType | None
    pieces: int = 1


def _describe_matrix(matrix: Matrix, batch: int, depth: int, columns: int) -> _Kind | None:
    whole = (Part(BATCH, batch, 1), Part(DEPTH, depth, 1), Part(COLUMN, columns, 1))
    merged = merge_parts(matrix.weights.parts)
    orders = [without_ones(whole), without_ones((whole[0], whole[2], whole[1]))]
    if merged not in orders:
        return _describe_pieces(matrix, merged, depth, columns)
    beside = [stored for stored in (matrix.scales, matrix.offsets) if stored]
    if any(stored.layer != matrix.weights.layer for stored in beside):
        return None
    groupings = {_find_groups(stored, whole) for stored in beside} or {(1, False)}
    grouping = groupings.pop()
    if groupings or grouping is None:
        return None
    return _Kind(
        matrix.weights.dtype,
        matrix.weights.layer,
        merged != orders[0],
        *grouping,
        matrix.scales.dtype if matrix.scales else None,
        matrix.offsets.dtype if matrix.offsets else None,
    )


def _describe_pieces(
    matrix: Matrix, merged: Sequence[Part], depth: int, columns: int
) -> _Kind | None:
    if len(merged) != 3 or matrix.scales or matrix.offsets:
        return None
    width = merged[2].extent
    pieces = columns // width
    wanted = [Part(COLUMN, pieces, width), Part(DEPTH, depth, 1), Part(COLUMN, width, 1)]
    if [*merged] != wanted:
        return None
    weights = matrix.weights
    return _Kind(weights.dtype, weights.layer, False, 1, False, None, None, pieces)


def _find_groups(stored: Stored, whole: tuple[Part, Part, Part]) -> tuple[int, bool] | None:
    """(groups along the depth, do they lie along the unit stride?) of scales."""
    if not stored.dtype.is_float:
        return None
    batch, depth, columns = whole
    merged = merge_parts(stored.parts)
    groups = next((part for part in merged if part.label == DEPTH), Part(DEPTH, 1, depth.extent))
    if groups.extent * groups.stride != depth.extent:
        return None
    if merged == without_ones((batch, groups, columns)):
        return groups.extent, False
    return (groups.extent, True) if merged == without_ones((batch, columns, groups)) else None


# ---- writing it


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one product is written.  values: what the graph's values are called in the draft."""

    ops: DraftOps
    values: Mapping[str, str]
    found: _Found

    def put(self) -> str:
        s, matrices = self.found.shape, self.found.weights.matrices
        operands = [self._put_x(), *self._put_weights()]
        operands += self._put_beside([m.offsets for m in matrices if m.offsets], s.factor)
        operands += self._put_beside([m.scales for m in matrices if m.scales], s.scales)
        if self.found.layer is not None:
            operands.append(self._put_layer(self.found.layer))
        attrs = NarrowProductAttrs(
            s.weights,
            s.share,
            len(matrices),
            s.transposed,
            s.offset,
            s.scale,
            s.scales_transposed,
            s.layer,
        )
        dtype = s.result if s.parts == 1 else DType.F32
        extents = (s.parts, s.batch, s.rows, sum(s.columns))
        whole = self.ops.add("narrow-product", dtype, extents, tuple(operands), attrs)
        return self._put_result(whole)

    def _put_x(self) -> str:
        s, ops = self.found.shape, self.ops
        node = ops.origin
        x = ops.transpose(node.operands[1 - self.found.sides.weights], self.found.sides.x_order)
        if not (s.is_packed and s.transposed):
            return ops.reshape(x, (s.given, s.rows, s.depth))
        halves = ops.reshape(x, (s.given, s.rows, s.depth // 2, 2))
        return ops.transpose(halves, (3, 0, 1, 2))

    def _put_weights(self) -> Iterator[str]:
        """Of each matrix; of numbers of four bits the bytes."""
        s, ops = self.found.shape, self.ops
        for matrix, columns in zip(self.found.weights.matrices, s.columns, strict=True):
            value = self.values[matrix.weights.name]
            inner = (columns, s.depth) if s.transposed else (s.depth, columns)
            *outer, last = (s.layers, s.batch, *inner)
            if s.is_packed:
                pairs = ops.reshape(value, (*outer, last // 2, 2))
                yield ops.add("bitcast-convert", s.stored, (*outer, last // 2), (pairs,))
            else:
                yield ops.reshape(value, (*outer, last))

    def _put_beside(self, arrays: Sequence[Stored], dtype: DType) -> list[str]:
        """Scales or offsets of each matrix, in this type."""
        s, ops = self.found.shape, self.ops
        placed = []
        for stored, columns in zip(arrays, s.columns, strict=False):
            inner = (columns, s.groups) if s.scales_transposed else (s.groups, columns)
            whole = ops.reshape(self.values[stored.name], (s.layers, s.batch, *inner))
            placed.append(ops.convert(whole, dtype))
        return placed

    def _put_layer(self, layer: Layer) -> str:
        """Bounded before it is converted, where its type holds more than 32 bits with a sign."""
        ops = self.ops
        if not isinstance(layer.number, str):
            return ops.splat(layer.number, DType.S32, ())
        number = self.values[layer.number]
        dtype = ops.draft[number].dtype
        if not np.can_cast(dtype.numpy, np.int32):
            ends = [ops.splat(end, dtype, ()) for end in (0, layer.count - 1)]
            number = ops.add("clamp", dtype, (), (ends[0], number, ends[1]))
        return ops.convert(number, DType.S32)

    def _put_result(self, whole: str) -> str:
        """The sum of the parts, in the order of the product's dimensions."""
        s, ops = self.found.shape, self.ops
        node, draft = ops.origin, ops.draft
        inner = ArrayType(draft[whole].dtype, draft[whole].shape[1:])
        if s.parts == 1:
            total = ops.reshape(whole, inner.shape)
        else:
            total = put_total(draft, replace(node, type=inner), whole, s.parts)
        if self.found.sides.weights == 0:
            total = ops.transpose(total, (0, 2, 1))
        elif s.shared:
            total = ops.transpose(total, (1, 0, 2))
        return ops.reshape(ops.convert(total, node.dtype), node.shape)
