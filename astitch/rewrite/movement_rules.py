"""Rules of simplify for ops that repeat or move elements.

In simplest form broadcasts enlarge, their dimensions ascend, and none reads another.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    ConstantAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DynamicSliceAttrs,
    IotaAttrs,
    Literal,
    Node,
    PadAttrs,
    SliceAttrs,
    TransposeAttrs,
)
from astitch.graph.ops import OPS, Kind
from astitch.rewrite.draft import Draft, ascends, become, read_splat, squeeze


def sort_broadcast_dimensions(node: Node, draft: Draft) -> Node | str | None:
    """broadcast(x, d) -> broadcast(transpose(x, p), sorted(d)) with sorted(d)[i] = d[p[i]]"""
    assert isinstance(node.attrs, BroadcastAttrs)
    d = node.attrs.dimensions
    if ascends(d):
        return None
    p = tuple(sorted(range(len(d)), key=d.__getitem__))
    turned = _add_transpose(node, draft, node.operands[0], p)
    return replace(node, operands=(turned,), attrs=BroadcastAttrs(tuple(sorted(d))))


def merge_broadcasts(node: Node, draft: Draft) -> Node | str | None:
    """broadcast(broadcast(x, d), e) -> broadcast(x, e∘d)"""
    assert isinstance(node.attrs, BroadcastAttrs)
    inner, e = draft[node.operands[0]], node.attrs.dimensions
    if not isinstance(inner.attrs, BroadcastAttrs):
        return None
    composed = tuple(e[d] for d in inner.attrs.dimensions)
    return replace(node, operands=inner.operands, attrs=BroadcastAttrs(composed))


def drop_identity_broadcast(node: Node, draft: Draft) -> Node | str | None:
    """broadcast(x, d) that adds dimensions of one element only -> reshape(x)"""
    assert isinstance(node.attrs, BroadcastAttrs)
    x = draft[node.operands[0]]
    if x.array.size != node.array.size or not ascends(node.attrs.dimensions):
        return None
    return become(node, "reshape", (x.name,))


def squeeze_broadcast_operand(node: Node, draft: Draft) -> Node | str | None:
    """broadcast(reshape(x), d) -> broadcast(reshape(x) without its dimensions of 1, d')

    A constant counts as a reshape of itself.
    """
    assert isinstance(node.attrs, BroadcastAttrs)
    inner = draft[node.operands[0]]
    squeezed = squeeze(inner.shape)
    if inner.op not in ("reshape", "constant") or inner.shape == squeezed:
        return None
    d = tuple(d for d, n in zip(node.attrs.dimensions, inner.shape, strict=True) if n != 1)
    type = ArrayType(node.dtype, squeezed)
    operand = draft.add(node, "reshape", type, (inner.name,))
    return replace(node, operands=(operand,), attrs=BroadcastAttrs(d))


def merge_reshapes(node: Node, draft: Draft) -> Node | str | None:
    """reshape(reshape(x)) -> reshape(x)"""
    inner = draft[node.operands[0]]
    return replace(node, operands=inner.operands) if inner.op == "reshape" else None


def reshape_constant(node: Node, draft: Draft) -> Node | str | None:
    """reshape(constant) -> constant, of any size: the bytes are shared"""
    inner = draft[node.operands[0]]
    if not isinstance(inner.attrs, ConstantAttrs):
        return None
    literal = Literal(node.dtype, node.shape, inner.attrs.value.data)
    return become(node, "constant", (), ConstantAttrs(literal))


def sink_reshape_below_broadcast(node: Node, draft: Draft) -> Node | str | None:
    """reshape(broadcast(x, d)) -> broadcast(reshape(x), d')

    if no dimension of the result mixes elements of x with copies of them.
    """
    inner = draft[node.operands[0]]
    if not isinstance(inner.attrs, BroadcastAttrs) or node.array.size == 0:
        return None
    owned = set(inner.attrs.dimensions)
    d: list[int] = []
    for before, after in group_dimensions(inner.shape, node.shape):
        of_x = [i in owned for i in before]
        if all(of_x):
            d += after
        elif any(of_x):
            return None
    shape = tuple(node.shape[i] for i in d)
    operand = draft.add(node, "reshape", ArrayType(node.dtype, shape), inner.operands)
    return become(node, "broadcast", (operand,), BroadcastAttrs(tuple(d)))


def group_dimensions(
    before: Sequence[int], after: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """The finest runs of dimensions of two shapes that hold the same elements, without the ones."""
    left = [i for i, n in enumerate(before) if n != 1]
    right = [i for i, n in enumerate(after) if n != 1]
    groups: list[tuple[list[int], list[int]]] = []
    while left and right:
        a, b = [left.pop(0)], [right.pop(0)]
        x, y = before[a[0]], after[b[0]]
        while x != y:
            if x < y:
                a.append(left.pop(0))
                x *= before[a[-1]]
            else:
                b.append(right.pop(0))
                y *= after[b[-1]]
        groups.append((a, b))
    return groups


def _add_transpose(origin: Node, draft: Draft, x: str, permutation: Sequence[int]) -> str:
    shape = draft[x].shape
    type = ArrayType(draft[x].dtype, tuple(shape[p] for p in permutation))
    return draft.add(origin, "transpose", type, (x,), TransposeAttrs(tuple(permutation)))


def merge_transposes(node: Node, draft: Draft) -> Node | str | None:
    """transpose(transpose(x, p), q) -> transpose(x, p∘q)"""
    assert isinstance(node.attrs, TransposeAttrs)
    inner, q = draft[node.operands[0]], node.attrs.permutation
    if not isinstance(inner.attrs, TransposeAttrs):
        return None
    p = inner.attrs.permutation
    composed = TransposeAttrs(tuple(p[i] for i in q))
    return replace(node, operands=inner.operands, attrs=composed)


def drop_trivial_transpose(node: Node, draft: Draft) -> Node | str | None:
    """transpose(x, p) that moves dimensions of one element only -> reshape(x)"""
    assert isinstance(node.attrs, TransposeAttrs)
    x = draft[node.operands[0]]
    if not ascends([p for p in node.attrs.permutation if x.shape[p] != 1]):
        return None
    return become(node, "reshape", (x.name,))


def absorb_transpose_into_broadcast(node: Node, draft: Draft) -> Node | str | None:
    """transpose(broadcast(x, d), p) -> broadcast(x, p⁻¹∘d)"""
    assert isinstance(node.attrs, TransposeAttrs)
    inner, p = draft[node.operands[0]], node.attrs.permutation
    if not isinstance(inner.attrs, BroadcastAttrs):
        return None
    d = tuple(p.index(i) for i in inner.attrs.dimensions)
    return become(node, "broadcast", inner.operands, BroadcastAttrs(d))


def sink_transpose_below_outer(node: Node, draft: Draft) -> Node | str | None:
    """transpose(f(broadcast(x, d), broadcast(y, e)), p) -> f(broadcast(x, p⁻¹∘d), broadcast(y, p⁻¹∘e))

    Where x and y stay as they lie, and nobody else reads f.  Then no op that moves elements stands between what is
    computed from x and y and its readers: they compute it.
    """
    assert isinstance(node.attrs, TransposeAttrs)
    inner, p = draft[node.operands[0]], node.attrs.permutation
    if OPS[inner.op].kind is not Kind.ELEMENTWISE or not draft.is_read_once(inner.name):
        return None
    turned: list[tuple[Node, tuple[int, ...]]] = []
    for operand in inner.operands:
        spread = draft[operand]
        if not isinstance(spread.attrs, BroadcastAttrs):
            return None
        turned.append((spread, tuple(p.index(i) for i in spread.attrs.dimensions)))
    if not all(ascends(d) for _, d in turned):
        return None
    operands = (
        draft.add(node, "broadcast", ArrayType(x.dtype, node.shape), x.operands, BroadcastAttrs(d))
        for x, d in turned
    )
    return replace(inner, name=node.name, type=node.type, operands=tuple(operands))


def tighten_slice(node: Node, draft: Draft) -> Node | str | None:
    """slice(x, [s:l:t]) -> the same elements with the least limit, and stride 1 for one element"""
    assert isinstance(node.attrs, SliceAttrs)
    a, extents = node.attrs, node.shape
    if node.array.size == 0:
        return None
    strides = tuple(1 if n == 1 else t for n, t in zip(extents, a.strides, strict=True))
    limits = tuple(s + (n - 1) * t + 1 for s, n, t in zip(a.starts, extents, strides, strict=True))
    tight = SliceAttrs(a.starts, limits, strides)
    return replace(node, attrs=tight) if tight != a else None


def merge_slices(node: Node, draft: Draft) -> Node | str | None:
    """slice(slice(x, [s:_:t]), [u:_:v]) -> slice(x, [s+t*u:_:t*v])"""
    assert isinstance(node.attrs, SliceAttrs)
    inner, outer = draft[node.operands[0]], node.attrs
    if not isinstance(inner.attrs, SliceAttrs) or node.array.size == 0:
        return None
    below = inner.attrs
    starts = tuple(
        s + t * u for s, t, u in zip(below.starts, below.strides, outer.starts, strict=True)
    )
    strides = tuple(t * v for t, v in zip(below.strides, outer.strides, strict=True))
    limits = tuple(s + (n - 1) * t + 1 for s, n, t in zip(starts, node.shape, strides, strict=True))
    return replace(node, operands=inner.operands, attrs=SliceAttrs(starts, limits, strides))


def sink_slice_below_broadcast(node: Node, draft: Draft) -> Node | str | None:
    """slice(broadcast(x, d)) -> broadcast(slice(x), d)"""
    assert isinstance(node.attrs, SliceAttrs)
    inner, a = draft[node.operands[0]], node.attrs
    if not isinstance(inner.attrs, BroadcastAttrs):
        return None
    d = inner.attrs.dimensions
    attrs = SliceAttrs(
        tuple(a.starts[i] for i in d),
        tuple(a.limits[i] for i in d),
        tuple(a.strides[i] for i in d),
    )
    type = ArrayType(node.dtype, tuple(node.shape[i] for i in d))
    operand = draft.add(node, "slice", type, inner.operands, attrs)
    return become(node, "broadcast", (operand,), inner.attrs)


def slice_one_piece(node: Node, draft: Draft) -> Node | str | None:
    """slice(concatenate(.., x, ..)) that lies within x -> slice(x)"""
    assert isinstance(node.attrs, SliceAttrs)
    inner, a = draft[node.operands[0]], node.attrs
    if not isinstance(inner.attrs, DimensionAttrs):
        return None
    d, edges = inner.attrs.dimension, draft.edges(inner)
    at = bisect_right(edges, a.starts[d]) - 1
    if at == len(inner.operands) or a.limits[d] > edges[at + 1]:
        return None
    starts, limits = list(a.starts), list(a.limits)
    starts[d] -= edges[at]
    limits[d] -= edges[at]
    attrs = SliceAttrs(tuple(starts), tuple(limits), a.strides)
    return replace(node, operands=(inner.operands[at],), attrs=attrs)


def drop_empty_pad(node: Node, draft: Draft) -> Node | str | None:
    """pad(x, v) by nothing -> x;  pad of an empty x -> broadcast(v)"""
    assert isinstance(node.attrs, PadAttrs)
    x, value = node.operands
    if draft[x].array.size == 0:
        return become(node, "broadcast", (value,), BroadcastAttrs(()))
    a = node.attrs
    inside = any(i and n > 1 for i, n in zip(a.interior, draft[x].shape, strict=True))
    return None if inside or any(a.low) or any(a.high) else x


def drop_empty_pieces(node: Node, draft: Draft) -> Node | str | None:
    """concatenate(x, empty, y) -> concatenate(x, y);  concatenate(x) -> x"""
    pieces = tuple(o for o in node.operands if draft[o].array.size > 0)
    if len(pieces) == 1:
        return pieces[0]
    return replace(node, operands=pieces) if pieces and pieces != node.operands else None


def drop_trivial_reverse(node: Node, draft: Draft) -> Node | str | None:
    """reverse(x, dimensions of one element) -> x"""
    assert isinstance(node.attrs, DimensionsAttrs)
    d = tuple(sorted(d for d in node.attrs.dimensions if node.shape[d] > 1))
    if not d:
        return node.operands[0]
    return replace(node, attrs=DimensionsAttrs(d)) if d != node.attrs.dimensions else None


def merge_reverses(node: Node, draft: Draft) -> Node | str | None:
    """reverse(reverse(x, d), e) -> reverse(x, d xor e)"""
    assert isinstance(node.attrs, DimensionsAttrs)
    inner = draft[node.operands[0]]
    if inner.op != "reverse":
        return None
    assert isinstance(inner.attrs, DimensionsAttrs)
    d = tuple(sorted(set(inner.attrs.dimensions) ^ set(node.attrs.dimensions)))
    return replace(node, operands=inner.operands, attrs=DimensionsAttrs(d))


def slice_statically(node: Node, draft: Draft) -> Node | str | None:
    """dynamic-slice(x, constants) -> slice(x) at the clamped indices"""
    assert isinstance(node.attrs, DynamicSliceAttrs)
    x, *indices = node.operands
    starts = []
    for index, extent, size in zip(indices, draft[x].shape, node.attrs.sizes, strict=True):
        value = read_splat(draft, index)
        if extent == size:
            starts.append(0)
        elif value is None:
            return None
        else:
            starts.append(min(max(int(value), 0), extent - size))
    limits = tuple(s + n for s, n in zip(starts, node.shape, strict=True))
    attrs = SliceAttrs(tuple(starts), limits, (1,) * len(starts))
    return become(node, "slice", (x,), attrs)


def start_iota_at_index(node: Node, draft: Draft) -> Node | str | None:
    """dynamic-slice(iota[.., n, ..], .., i, ..) of one element along n -> broadcast(clamp(0, i, n - 1))"""
    assert isinstance(node.attrs, DynamicSliceAttrs)
    iota = draft[node.operands[0]]
    if not isinstance(iota.attrs, IotaAttrs) or not node.dtype.is_integer or node.array.size == 0:
        return None
    d = iota.attrs.dimension
    index, last = draft[node.operands[1 + d]], iota.shape[d] - 1
    holds = min(np.iinfo(t.numpy).max for t in (node.dtype, index.dtype))
    if node.shape[d] != 1 or last > holds:
        return None
    bounds = [
        draft.add(node, "constant", index.array, (), ConstantAttrs(Literal.of(value)))
        for value in (np.zeros((), index.dtype.numpy), np.array(last, index.dtype.numpy))
    ]
    place = draft.add(node, "clamp", index.array, (bounds[0], index.name, bounds[1]))
    if index.dtype is not node.dtype:
        place = draft.add(node, "convert", ArrayType(node.dtype, ()), (place,))
    return become(node, "broadcast", (place,), BroadcastAttrs(()))


def drop_full_update(node: Node, draft: Draft) -> Node | str | None:
    """dynamic-update-slice(x, u) with u as large as x -> u;  with u empty -> x"""
    x, update = node.operands[:2]
    if draft[update].array.size == 0:
        return x
    return update if draft[update].type == node.type else None
