"""Ops that repeat or move elements: broadcast and index maps."""

# NumPy's stubs give Any for arithmetic on arrays of an unknown dtype, which is what all of this is.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from astitch.graph import index as ix
from astitch.graph.index import Linear, Symbol
from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DynamicSliceAttrs,
    Graph,
    Node,
    PadAttrs,
    SliceAttrs,
    TransposeAttrs,
    Type,
)
from astitch.graph.ops.access import (
    Access,
    Choice,
    Divisible,
    Dynamic,
    Guard,
    Index,
    Read,
    Within,
    decide,
    forward,
)
from astitch.graph.ops.arrays import Array, clamp_start, pad
from astitch.graph.ops.hlo_fields import DIMENSIONS, NUMBERS, ONLY, Attributes, Field, each
from astitch.graph.ops.row import Kind, Op, Shape
from astitch.graph.ops.rules import (
    BrokenRule,
    array_of_result,
    arrays_of,
    attrs_of,
    check_distinct,
    require,
    require_operands,
    without,
)


def _check_index(types: Sequence[ArrayType]) -> None:
    for i, type in enumerate(types):
        if type.shape or not type.dtype.is_integer:
            raise BrokenRule(f"index {i} is {type}, not an integer scalar")


def _infer_broadcast(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = arrays_of(operands, 1)
    result, dimensions = array_of_result(node), attrs_of(node, BroadcastAttrs).dimensions
    check_distinct("dimensions", dimensions, result.rank)
    if len(dimensions) != x.rank:
        raise BrokenRule(f"{len(dimensions)} dimensions for an operand of {x}")
    for i, d in enumerate(dimensions):
        if x.shape[i] != result.shape[d]:
            raise BrokenRule(
                f"operand dimension {i} has {x.shape[i]} elements, result dimension {d} has "
                f"{result.shape[d]}"
            )
    return ArrayType(x.dtype, result.shape)


def _infer_reshape(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = arrays_of(operands, 1)
    result = array_of_result(node)
    if x.size != result.size:
        raise BrokenRule(f"{x} has {x.size} elements, the result {result.size}")
    return ArrayType(x.dtype, result.shape)


def _infer_transpose(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = arrays_of(operands, 1)
    permutation = attrs_of(node, TransposeAttrs).permutation
    require(
        sorted(permutation) == list(range(x.rank)),
        f"{permutation} is no permutation of {x.rank} dimensions",
    )
    return ArrayType(x.dtype, tuple(x.shape[p] for p in permutation))


def _infer_slice(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = arrays_of(operands, 1)
    a = attrs_of(node, SliceAttrs)
    require(
        len(a.starts) == len(a.limits) == len(a.strides) == x.rank,
        f"starts, limits and strides are not {x.rank} each",
    )
    for i, (start, limit, stride) in enumerate(zip(a.starts, a.limits, a.strides, strict=True)):
        if not (0 <= start <= limit <= x.shape[i] and stride >= 1):
            raise BrokenRule(f"[{start}:{limit}:{stride}] of dimension {i} of {x}")
    spans = zip(a.starts, a.limits, a.strides, strict=True)
    return ArrayType(x.dtype, tuple(-((start - limit) // stride) for start, limit, stride in spans))


def _infer_pad(node: Node, operands: Sequence[Type]) -> Type:
    x, value = arrays_of(operands, 2)
    a = attrs_of(node, PadAttrs)
    require_operands(
        value == ArrayType(x.dtype, ()), f"the padding value is {value}, the operand {x}"
    )
    require(
        len(a.low) == len(a.high) == len(a.interior) == x.rank,
        f"low, high and interior are not {x.rank} each",
    )
    require(all(i >= 0 for i in a.interior), f"negative interior padding {a.interior}")
    shape = tuple(
        n + low + high + max(n - 1, 0) * between
        for n, low, high, between in zip(x.shape, a.low, a.high, a.interior, strict=True)
    )
    require(all(n >= 0 for n in shape), f"padding leaves {shape}")
    return ArrayType(x.dtype, shape)


def _infer_concatenate(node: Node, operands: Sequence[Type]) -> Type:
    arrays = arrays_of(operands)
    require_operands(len(arrays) > 0, "concatenate of nothing")
    first, d = arrays[0], attrs_of(node, DimensionAttrs).dimension
    check_distinct("dimension", (d,), first.rank)
    for i, array in enumerate(arrays):
        fits = array.dtype == first.dtype and array.rank == first.rank
        require(
            fits and without(array.shape, (d,)) == without(first.shape, (d,)),
            f"operand {i} is {array}, operand 0 is {first}: they differ beyond dimension {d}",
        )
    shape = list(first.shape)
    shape[d] = sum(array.shape[d] for array in arrays)
    return ArrayType(first.dtype, tuple(shape))


def _infer_reverse(node: Node, operands: Sequence[Type]) -> Type:
    (x,) = arrays_of(operands, 1)
    check_distinct("dimensions", attrs_of(node, DimensionsAttrs).dimensions, x.rank)
    return x


def _infer_dynamic_slice(node: Node, operands: Sequence[Type]) -> Type:
    require_operands(len(operands) >= 1, "needs an operand")
    x, *indices = arrays_of(operands)
    sizes = attrs_of(node, DynamicSliceAttrs).sizes
    require(len(indices) == len(sizes) == x.rank, f"indices and sizes are not {x.rank} each")
    _check_index(indices)
    fits = all(0 <= size <= n for size, n in zip(sizes, x.shape, strict=True))
    require(fits, f"sizes {sizes} exceed {x}")
    return ArrayType(x.dtype, sizes)


def _infer_dynamic_update_slice(node: Node, operands: Sequence[Type]) -> Type:
    require_operands(len(operands) >= 2, "needs an operand and an update")
    x, update, *indices = arrays_of(operands)
    require_operands(len(indices) == x.rank, f"{len(indices)} indices for {x}")
    _check_index(indices)
    require_operands(
        update.dtype == x.dtype
        and update.rank == x.rank
        and all(m <= n for m, n in zip(update.shape, x.shape, strict=True)),
        f"the update {update} does not fit into {x}",
    )
    return x


def meaning_of_broadcast(node: Node, x: Array) -> Array:
    dimensions = attrs_of(node, BroadcastAttrs).dimensions
    order = sorted(range(len(dimensions)), key=lambda i: dimensions[i])
    shape = [1] * len(node.shape)
    for i, d in enumerate(dimensions):
        shape[d] = x.shape[i]
    return np.broadcast_to(x.transpose(order).reshape(shape), node.shape)


def meaning_of_reshape(node: Node, x: Array) -> Array:
    return x.reshape(node.shape)


def meaning_of_transpose(node: Node, x: Array) -> Array:
    return x.transpose(attrs_of(node, TransposeAttrs).permutation)


def meaning_of_slice(node: Node, x: Array) -> Array:
    a = attrs_of(node, SliceAttrs)
    return x[tuple(slice(*t) for t in zip(a.starts, a.limits, a.strides, strict=True))]


def meaning_of_pad(node: Node, x: Array, value: Array) -> Array:
    a = attrs_of(node, PadAttrs)
    return pad(x, value, a.low, a.high, a.interior)


def meaning_of_concatenate(node: Node, *operands: Array) -> Array:
    return np.concatenate(operands, attrs_of(node, DimensionAttrs).dimension)


def meaning_of_reverse(node: Node, x: Array) -> Array:
    return np.flip(x, attrs_of(node, DimensionsAttrs).dimensions)


def _window_at(x: Array, sizes: Sequence[int], starts: Sequence[Array]) -> tuple[slice, ...]:
    begins = [int(clamp_start(s, n - k)) for s, n, k in zip(starts, x.shape, sizes, strict=True)]
    return tuple(slice(b, b + k) for b, k in zip(begins, sizes, strict=True))


def meaning_of_dynamic_slice(node: Node, x: Array, *starts: Array) -> Array:
    return x[_window_at(x, attrs_of(node, DynamicSliceAttrs).sizes, starts)]


def meaning_of_dynamic_update_slice(node: Node, x: Array, update: Array, *starts: Array) -> Array:
    result = x.copy()
    result[_window_at(x, update.shape, starts)] = update
    return result


def _dynamic_starts(
    node: Node, operands: tuple[str, ...], rooms: Iterable[int]
) -> tuple[Dynamic, ...]:
    return tuple(
        Dynamic(Symbol(f"{node.name}.start{d}", room + 1), operand, ())
        for d, (operand, room) in enumerate(zip(operands, rooms, strict=True))
    )


def _access_pad(graph: Graph, node: Node, index: Index) -> Access:
    attrs = attrs_of(node, PadAttrs)
    source = graph[node.operands[0]].shape
    guards: list[Guard] = []
    inner: list[Linear] = []
    for position, low, interior, extent in zip(
        index, attrs.low, attrs.interior, source, strict=True
    ):
        moved = ix.offset(position, -low)
        step = interior + 1
        guards.append(Within(moved, 0, max((extent - 1) * step + 1, 0)))
        if step > 1:
            guards.append(Divisible(moved, step))
        inner.append(ix.divide(moved, step))
    return decide(
        (
            Choice(tuple(guards), (Read(node.operands[0], tuple(inner)),)),
            Choice((), (Read(node.operands[1], ()),)),
        )
    )


def _access_concatenate(graph: Graph, node: Node, index: Index) -> Access:
    dimension = attrs_of(node, DimensionAttrs).dimension
    choices, start = [], 0
    for operand in node.operands:
        extent = graph[operand].shape[dimension]
        moved = ix.offset(index[dimension], -start)
        inner = (*index[:dimension], moved, *index[dimension + 1 :])
        if extent:
            choices.append(Choice((Within(moved, 0, extent),), (Read(operand, inner),)))
        start += extent
    return decide((*choices[:-1], Choice((), choices[-1].reads)))


def _access_dynamic_update(graph: Graph, node: Node, index: Index) -> Access:
    source, update = graph[node.operands[0]].shape, graph[node.operands[1]].shape
    rooms = [a - b for a, b in zip(source, update, strict=True)]
    dynamics = _dynamic_starts(node, node.operands[2:], rooms)
    moved = tuple(
        ix.add(position, ix.scale(ix.of_symbol(d.symbol), -1)) if d.symbol.extent > 1 else position
        for position, d in zip(index, dynamics, strict=True)
    )
    guards = tuple(Within(m, 0, extent) for m, extent in zip(moved, update, strict=True))
    return decide(
        (
            Choice(guards, (Read(node.operands[1], moved),)),
            Choice((), (Read(node.operands[0], index),)),
        ),
        tuple(d for d in dynamics if d.symbol.extent > 1),
    )


def _access_broadcast(graph: Graph, node: Node, index: Index) -> Access:
    source = graph[node.operands[0]].shape
    pairs = enumerate(attrs_of(node, BroadcastAttrs).dimensions)
    return forward(node.operands[0], (index[r] if source[d] != 1 else ix.ZERO for d, r in pairs))


def _access_reshape(graph: Graph, node: Node, index: Index) -> Access:
    source = graph[node.operands[0]].shape
    return forward(node.operands[0], ix.delinearize(ix.linearize(index, node.shape), source))


def _access_transpose(graph: Graph, node: Node, index: Index) -> Access:
    permutation = attrs_of(node, TransposeAttrs).permutation
    inner: list[Linear] = [ix.ZERO] * len(permutation)
    for r, d in enumerate(permutation):
        inner[d] = index[r]
    return forward(node.operands[0], inner)


def _access_slice(graph: Graph, node: Node, index: Index) -> Access:
    a = attrs_of(node, SliceAttrs)
    steps = zip(index, a.starts, a.strides, strict=True)
    return forward(
        node.operands[0], (ix.offset(ix.scale(i, stride), start) for i, start, stride in steps)
    )


def _access_reverse(graph: Graph, node: Node, index: Index) -> Access:
    dimensions = attrs_of(node, DimensionsAttrs).dimensions
    return forward(
        node.operands[0],
        (
            ix.offset(ix.scale(i, -1), extent - 1) if d in dimensions else i
            for d, (i, extent) in enumerate(zip(index, node.shape, strict=True))
        ),
    )


def _access_dynamic_slice(graph: Graph, node: Node, index: Index) -> Access:
    source, sizes = graph[node.operands[0]].shape, attrs_of(node, DynamicSliceAttrs).sizes
    rooms = [a - b for a, b in zip(source, sizes, strict=True)]
    dynamics = _dynamic_starts(node, node.operands[1:], rooms)
    moved = (
        ix.add(i, ix.of_symbol(d.symbol)) if d.symbol.extent > 1 else i
        for i, d in zip(index, dynamics, strict=True)
    )
    plain = forward(node.operands[0], moved)
    return Access(plain.choices, tuple(d for d in dynamics if d.symbol.extent > 1))


def _share_repeated(node: Node, source: Shape, target: Shape, number: int) -> list[tuple[int, int]]:
    pairs = enumerate(attrs_of(node, BroadcastAttrs).dimensions)
    return [(d, r) for d, r in pairs if source[d] == target[r]]


def _share_permuted(node: Node, source: Shape, target: Shape, number: int) -> list[tuple[int, int]]:
    return [(d, r) for r, d in enumerate(attrs_of(node, TransposeAttrs).permutation)]


def _share_whole(node: Node, source: Shape, target: Shape, number: int) -> list[tuple[int, int]]:
    a = attrs_of(node, SliceAttrs)
    cuts = zip(a.starts, a.limits, a.strides, source, strict=True)
    return [(d, d) for d, (a, b, s, n) in enumerate(cuts) if (a, b, s) == (0, n, 1)]


def _share_unpadded(node: Node, source: Shape, target: Shape, number: int) -> list[tuple[int, int]]:
    if number:
        return []
    a = attrs_of(node, PadAttrs)
    edges = zip(a.low, a.high, a.interior, strict=True)
    return [(d, d) for d, edge in enumerate(edges) if edge == (0, 0, 0)]


def _share_unjoined(node: Node, source: Shape, target: Shape, number: int) -> list[tuple[int, int]]:
    joined = attrs_of(node, DimensionAttrs).dimension
    return [(d, d) for d in range(len(source)) if d != joined]


def _share_unreversed(
    node: Node, source: Shape, target: Shape, number: int
) -> list[tuple[int, int]]:
    reversed_ = attrs_of(node, DimensionsAttrs).dimensions
    return [(d, d) for d in range(len(source)) if d not in reversed_]


def _share_equal_extents(
    node: Node, source: Shape, target: Shape, number: int
) -> list[tuple[int, int]]:
    """A window whose start is known at run time shares the dimensions that it covers wholly."""
    if len(source) != len(target):
        return []
    return [(d, d) for d in range(len(source)) if source[d] == target[d]]


def _share_sliced(node: Node, source: Shape, target: Shape, number: int) -> list[tuple[int, int]]:
    return _share_equal_extents(node, source, target, number) if number == 0 else []


def _share_updated(node: Node, source: Shape, target: Shape, number: int) -> list[tuple[int, int]]:
    return _share_equal_extents(node, source, target, number) if number < 2 else []


def _need_window(needed: int, sizes: Sequence[int], result: int, number: int) -> int:
    """The window, and all start indices."""
    return sizes[number] if number else needed


def _need_around_update(needed: int, sizes: Sequence[int], result: int, number: int) -> int:
    """Needed are the part of the array that the update leaves, as much of the update as of the result, and all start
    indices."""
    if number == 0:
        return max(needed - sizes[1], 0)
    return needed if number == 1 else sizes[number]


ROWS: dict[str, Op] = {
    "broadcast": Op(
        Kind.BROADCAST,
        meaning=meaning_of_broadcast,
        rule=_infer_broadcast,
        attributes=Attributes(BroadcastAttrs, (Field("dimensions", "dimensions", NUMBERS),)),
        pairs=_share_repeated,
        index_map=_access_broadcast,
        carries_narrow=True,
    ),
    # A reshape splits loops: dimensions.py treats it apart.
    "reshape": Op(
        Kind.INDEX,
        meaning=meaning_of_reshape,
        rule=_infer_reshape,
        index_map=_access_reshape,
        carries_narrow=True,
        is_view=True,
        keeps_order=True,
        permutes=True,
        lays_out=True,
    ),
    "transpose": Op(
        Kind.INDEX,
        meaning=meaning_of_transpose,
        rule=_infer_transpose,
        attributes=Attributes(TransposeAttrs, (Field("permutation", "dimensions", NUMBERS),)),
        pairs=_share_permuted,
        index_map=_access_transpose,
        carries_narrow=True,
        permutes=True,
        lays_out=True,
    ),
    "slice": Op(
        Kind.INDEX,
        meaning=meaning_of_slice,
        rule=_infer_slice,
        attributes=Attributes(
            SliceAttrs,
            (
                Field("starts", "slice_dimensions", each("start")),
                Field("limits", "slice_dimensions", each("limit")),
                Field("strides", "slice_dimensions", each("stride", default=1)),
            ),
        ),
        pairs=_share_whole,
        index_map=_access_slice,
        carries_narrow=True,
    ),
    "pad": Op(
        Kind.INDEX,
        meaning=meaning_of_pad,
        rule=_infer_pad,
        attributes=Attributes(
            PadAttrs,
            (
                Field("low", "padding_config.dimensions", each("edge_padding_low"), False),
                Field("high", "padding_config.dimensions", each("edge_padding_high"), False),
                Field("interior", "padding_config.dimensions", each("interior_padding"), False),
            ),
        ),
        pairs=_share_unpadded,
        index_map=_access_pad,
        chooses=True,
    ),
    "concatenate": Op(
        Kind.INDEX,
        meaning=meaning_of_concatenate,
        rule=_infer_concatenate,
        attributes=Attributes(DimensionAttrs, (Field("dimension", "dimensions", ONLY),)),
        pairs=_share_unjoined,
        index_map=_access_concatenate,
        lays_out=True,
        chooses=True,
    ),
    "reverse": Op(
        Kind.INDEX,
        meaning=meaning_of_reverse,
        rule=_infer_reverse,
        attributes=DIMENSIONS,
        pairs=_share_unreversed,
        index_map=_access_reverse,
    ),
    "dynamic-slice": Op(
        Kind.INDEX,
        meaning=meaning_of_dynamic_slice,
        rule=_infer_dynamic_slice,
        attributes=Attributes(DynamicSliceAttrs, (Field("sizes", "dynamic_slice_sizes", NUMBERS),)),
        pairs=_share_sliced,
        index_map=_access_dynamic_slice,
        needed=_need_window,
    ),
    "dynamic-update-slice": Op(
        Kind.INDEX,
        meaning=meaning_of_dynamic_update_slice,
        rule=_infer_dynamic_update_slice,
        pairs=_share_updated,
        index_map=_access_dynamic_update,
        needed=_need_around_update,
        chooses=True,
        writes_into=True,
    ),
}
