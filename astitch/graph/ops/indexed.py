"""Ops that read or write windows at index vectors: gather and scatter."""

# NumPy's stubs give Any for arithmetic on arrays of an unknown dtype, which is what all of this is.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astitch.graph import index as ix
from astitch.graph.index import Symbol
from astitch.graph.ir import ArrayType, GatherAttrs, Graph, Node, ScatterAttrs, Type
from astitch.graph.ops.access import Access, Choice, Dynamic, Index, Read
from astitch.graph.ops.arrays import Array, batch_positions, clamp_start, index_vectors, slide
from astitch.graph.ops.hlo_fields import NUMBERS, Attributes, Field
from astitch.graph.ops.row import Kind, Op, Shape, need_proportion
from astitch.graph.ops.rules import (
    arrays_of,
    attrs_of,
    check_distinct,
    check_region,
    require,
    require_operands,
    result_of,
    scalars_of,
    without,
)


def _check_batching(
    x: ArrayType,
    dimensions: Sequence[int],
    indices: ArrayType,
    indices_dimensions: Sequence[int],
    index_vector_dim: int,
) -> None:
    """Batching dimensions of an operand and of its indices run side by side; x's are known to be dimensions of it."""
    check_distinct(
        "batching and index_vector_dim", (*indices_dimensions, index_vector_dim), indices.rank + 1
    )
    require(
        all(d < indices.rank for d in indices_dimensions)
        and [x.shape[d] for d in dimensions] == [indices.shape[d] for d in indices_dimensions],
        f"batching dimensions {dimensions} of {x} and {indices_dimensions} of {indices} differ",
    )


def _infer_gather(node: Node, operands: Sequence[Type]) -> Type:
    x, indices = arrays_of(operands, 2)
    a = attrs_of(node, GatherAttrs)
    require_operands(indices.dtype.is_integer, f"indices are {indices}")
    require(
        0 <= a.index_vector_dim <= indices.rank,
        f"index_vector_dim {a.index_vector_dim} of indices {indices}",
    )
    require(len(a.slice_sizes) == x.rank, f"{len(a.slice_sizes)} slice sizes for {x}")
    check_distinct("start_index_map", a.start_index_map, x.rank)
    dropped = (*a.collapsed_slice_dims, *a.operand_batching_dims)
    check_distinct("collapsed and batching dimensions", dropped, x.rank)
    for d, size in enumerate(a.slice_sizes):
        require(0 <= size <= x.shape[d], f"slice size {size} of dimension {d} of {x}")
        require(d not in dropped or size <= 1, f"collapsed dimension {d} has slice size {size}")
    vector = 1 if a.index_vector_dim == indices.rank else indices.shape[a.index_vector_dim]
    require(
        vector == len(a.start_index_map),
        f"index vectors have {vector} elements, start_index_map {len(a.start_index_map)}",
    )
    _check_batching(
        x, a.operand_batching_dims, indices, a.start_indices_batching_dims, a.index_vector_dim
    )
    check_distinct(
        "start_index_map and batching", (*a.start_index_map, *a.operand_batching_dims), x.rank
    )
    batch = list(without(indices.shape, (a.index_vector_dim,)))
    window = list(without(a.slice_sizes, dropped))
    rank = len(batch) + len(window)
    check_distinct("offset_dims", a.offset_dims, rank)
    require(len(a.offset_dims) == len(window), f"{len(a.offset_dims)} offset_dims for {window}")
    # Offset dimensions take the window in order, the others the batch.
    shape = tuple(window.pop(0) if d in a.offset_dims else batch.pop(0) for d in range(rank))
    return ArrayType(x.dtype, shape)


def _infer_scatter(node: Node, operands: Sequence[Type]) -> Type:
    arrays = arrays_of(operands)
    a = attrs_of(node, ScatterAttrs)
    require_operands(len(arrays) >= 3 and len(arrays) % 2 == 1, f"has {len(arrays)} operands")
    half = len(arrays) // 2
    inputs, indices, updates = arrays[:half], arrays[half], arrays[half + 1 :]
    require_operands(indices.dtype.is_integer, f"indices are {indices}")
    require(
        0 <= a.index_vector_dim <= indices.rank,
        f"index_vector_dim {a.index_vector_dim} of indices {indices}",
    )
    vector = 1 if a.index_vector_dim == indices.rank else indices.shape[a.index_vector_dim]
    require(
        vector == len(a.scatter_dims_to_operand_dims),
        f"index vectors have {vector} elements, scatter_dims_to_operand_dims {len(a.scatter_dims_to_operand_dims)}",
    )
    indexed = (*a.scatter_dims_to_operand_dims, *a.input_batching_dims)
    check_distinct("scatter_dims_to_operand_dims and batching", indexed, inputs[0].rank)
    _check_batching(
        inputs[0],
        a.input_batching_dims,
        indices,
        a.scatter_indices_batching_dims,
        a.index_vector_dim,
    )
    for x, update in zip(inputs, updates, strict=True):
        require_operands(x.shape == inputs[0].shape, f"inputs {inputs[0]} and {x} differ in shape")
        check_distinct("update_window_dims", a.update_window_dims, update.rank)
        inserted = (*a.inserted_window_dims, *a.input_batching_dims)
        check_distinct("inserted and batching dimensions", inserted, x.rank)
        window = [update.shape[d] for d in a.update_window_dims]
        room = without(x.shape, inserted)
        require(
            len(window) == len(room) and all(m <= n for m, n in zip(window, room, strict=True)),
            f"update windows {window} do not fit into {x}",
        )
        batch = without(update.shape, a.update_window_dims)
        require(
            batch == without(indices.shape, (a.index_vector_dim,)),
            f"the updates {update} have batch {batch}, the indices are {indices}",
        )
    check_region(node, 0, [*scalars_of(inputs), *scalars_of(updates)], scalars_of(inputs))
    return result_of(inputs)


def meaning_of_gather(node: Node, x: Array, indices: Array) -> Array:
    a = attrs_of(node, GatherAttrs)
    if 0 in node.shape:
        return np.zeros(node.shape, x.dtype)
    vectors = index_vectors(indices, a.index_vector_dim)
    batch = vectors.shape[:-1]
    starts = [np.zeros(batch, np.int64) for _ in x.shape]
    for i, d in enumerate(a.start_index_map):
        starts[d] = clamp_start(vectors[..., i], x.shape[d] - a.slice_sizes[d])
    for d, b in zip(a.operand_batching_dims, a.start_indices_batching_dims, strict=True):
        starts[d] = batch_positions(vectors, b, a.index_vector_dim)
    windows = slide(x, a.slice_sizes)[tuple(starts)] if x.ndim else np.broadcast_to(x, batch)
    dropped = set(a.collapsed_slice_dims) | set(a.operand_batching_dims)
    windows = windows.squeeze(tuple(len(batch) + d for d in sorted(dropped)))
    window_axes = iter(range(len(batch), windows.ndim))
    batch_axes = iter(range(len(batch)))
    return windows.transpose(
        [next(window_axes if d in a.offset_dims else batch_axes) for d in range(windows.ndim)]
    )


def _share_gathered(node: Node, source: Shape, target: Shape, number: int) -> list[tuple[int, int]]:
    gather = attrs_of(node, GatherAttrs)
    batch = [d for d in range(len(target)) if d not in gather.offset_dims]
    if number == 1:  # the start indices: their dimensions but the index vector's
        rows = [d for d in range(len(source)) if d != gather.index_vector_dim]
        return list(zip(rows, batch, strict=True))
    gone = (*gather.collapsed_slice_dims, *gather.operand_batching_dims)
    windows = [d for d in range(len(source)) if d not in gone]
    pairs = zip(windows, gather.offset_dims, strict=True)
    return [(d, r) for d, r in pairs if gather.slice_sizes[d] == source[d]]


def _access_gather(graph: Graph, node: Node, index: Index) -> Access:
    attrs = attrs_of(node, GatherAttrs)
    operand, starts = graph[node.operands[0]], graph[node.operands[1]]
    batch = [index[d] for d in range(len(index)) if d not in attrs.offset_dims]
    gone = (*attrs.collapsed_slice_dims, *attrs.operand_batching_dims)
    windows = iter(attrs.offset_dims)
    position = [ix.ZERO if d in gone else index[next(windows)] for d in range(operand.array.rank)]
    vector_dim = attrs.index_vector_dim
    for here, there in zip(
        attrs.operand_batching_dims, attrs.start_indices_batching_dims, strict=True
    ):
        position[here] = batch[there if there < vector_dim else there - 1]
    dynamics = []
    where = ",".join(map(str, batch))
    for k, d in enumerate(attrs.start_index_map):
        at = (
            tuple(batch)
            if vector_dim == starts.array.rank
            else (*batch[:vector_dim], ix.constant(k), *batch[vector_dim:])
        )
        room = operand.shape[d] - attrs.slice_sizes[d]
        dynamic = Dynamic(Symbol(f"{node.name}.start{k}[{where}]", room + 1), node.operands[1], at)
        if room:
            dynamics.append(dynamic)
            position[d] = ix.add(position[d], ix.of_symbol(dynamic.symbol))
    return Access((Choice((), (Read(node.operands[0], tuple(position)),)),), tuple(dynamics))


_GATHER = Attributes(
    GatherAttrs,
    (
        Field("offset_dims", "gather_dimension_numbers.offset_dims", NUMBERS),
        Field("collapsed_slice_dims", "gather_dimension_numbers.collapsed_slice_dims", NUMBERS),
        Field("start_index_map", "gather_dimension_numbers.start_index_map", NUMBERS),
        Field("index_vector_dim", "gather_dimension_numbers.index_vector_dim"),
        Field("slice_sizes", "gather_slice_sizes", NUMBERS),
        Field("operand_batching_dims", "gather_dimension_numbers.operand_batching_dims", NUMBERS),
        Field(
            "start_indices_batching_dims",
            "gather_dimension_numbers.start_indices_batching_dims",
            NUMBERS,
        ),
        Field("indices_are_sorted", "indices_are_sorted"),
    ),
)
_SCATTER = Attributes(
    ScatterAttrs,
    (
        Field("update_window_dims", "scatter_dimension_numbers.update_window_dims", NUMBERS),
        Field("inserted_window_dims", "scatter_dimension_numbers.inserted_window_dims", NUMBERS),
        Field(
            "scatter_dims_to_operand_dims",
            "scatter_dimension_numbers.scatter_dims_to_operand_dims",
            NUMBERS,
        ),
        Field("index_vector_dim", "scatter_dimension_numbers.index_vector_dim"),
        Field("input_batching_dims", "scatter_dimension_numbers.input_batching_dims", NUMBERS),
        Field(
            "scatter_indices_batching_dims",
            "scatter_dimension_numbers.scatter_indices_batching_dims",
            NUMBERS,
        ),
        Field("indices_are_sorted", "indices_are_sorted"),
        Field("unique_indices", "unique_indices"),
    ),
)


def _need_gathered(needed: int, sizes: Sequence[int], result: int, number: int) -> int:
    """One element of the table for each of the result, and their part of the indices."""
    return need_proportion(needed, sizes, result, number) if number else needed


ROWS: dict[str, Op] = {
    "gather": Op(
        Kind.INDEX,
        meaning=meaning_of_gather,
        rule=_infer_gather,
        attributes=_GATHER,
        pairs=_share_gathered,
        index_map=_access_gather,
        needed=_need_gathered,
    ),
    "scatter": Op(
        Kind.OTHER, rule=_infer_scatter, regions=1, attributes=_SCATTER, writes_into=True
    ),
}
