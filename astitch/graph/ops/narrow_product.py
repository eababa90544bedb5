"""Products of few rows, as kernels of our own compute them: what they read is the weights, in the type that these have.

    narrow-product(x, weights ... [, offsets ...] [, scales ...] [, layer]) -> parts

| operand | shape | |
|---|---|---|
| x | [batch, rows, depth], or [1, rows, depth] for all of a batch | f32, bf16 or f16 |
| weights | [layers, batch, depth, columns]; transposed: [layers, batch, columns, depth] | the type of x, or integers |
| offsets | [layers, batch, groups, columns]; transposed: [layers, batch, columns, groups] | the type of x |
| scales | as offsets | the type of x, or f32 |
| layer | [] | s32; bounded as the start of a dynamic-slice |

There are as many weights, offsets and scales as `matrices` says; their columns lie side by side in the result.
Integers of four bits lie in bytes, two along the last dimension, the lower half first.  Where that is the depth, x is
[2, batch, rows, depth / 2]: its even elements, then the odd ones.

    parts[p, b, m, n] = sum over k in part p of x[b, m, k] * ((weights[k, n] - offsets[g, n]) * scales[g, n])

g is the group of k: each has depth / groups elements.  Part p has the elements from p * share on.  Result: f32, or
where there is one part the type of x, [parts, batch, rows, all columns].
"""

# NumPy's stubs give Any for arithmetic on arrays of an unknown dtype, which is what all of this is.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from astitch.graph.ir import ArrayType, DType, NarrowProductAttrs, Node, Type
from astitch.graph.ops.arrays import Array
from astitch.graph.ops.hlo_fields import Attributes
from astitch.graph.ops.row import Kind, Op
from astitch.graph.ops.rules import array_of_result, arrays_of, attrs_of, require, require_operands

T = TypeVar("T")

FACTORS = (DType.F32, DType.BF16, DType.F16)
PACKED = (DType.S4, DType.U4)
INTEGERS = (DType.S8, DType.U8, *PACKED)


@dataclass(frozen=True)
class Operands(Generic[T]):
    """The operands of a narrow product, by what they are."""

    x: T
    weights: tuple[T, ...]
    offsets: tuple[T, ...]
    scales: tuple[T, ...]
    layer: T | None


def split_operands(a: NarrowProductAttrs, operands: Sequence[T]) -> Operands[T]:
    """Raises BrokenRule where there are too few or too many."""
    count = a.matrices
    sizes = (1, count, count * a.offset, count * a.scale, int(a.layer))
    require_operands(
        len(operands) == sum(sizes), f"{len(operands)} operands in place of {sum(sizes)}"
    )
    parts, start = [], 0
    for size in sizes:
        parts.append(tuple(operands[start : start + size]))
        start += size
    (x,), weights, offsets, scales, layer = parts
    return Operands(x, weights, offsets, scales, layer[0] if layer else None)


@dataclass(frozen=True)
class Extents:
    """columns: of each matrix.  batch: of the weights.  given: of x, 1 where all of the batch have the same rows."""

    layers: int
    batch: int
    given: int
    rows: int
    depth: int
    columns: tuple[int, ...]
    groups: int


def is_packed_along_depth(a: NarrowProductAttrs) -> bool:
    return a.transposed and a.weights in PACKED


def measure(a: NarrowProductAttrs, operands: Operands[ArrayType]) -> Extents:
    """The extents of a narrow product, whose operands have as many dimensions as they must."""
    *_, given, rows, depth = operands.x.shape
    if is_packed_along_depth(a):
        depth *= 2
    layers, batch = operands.weights[0].shape[:2]
    scales = operands.scales or operands.offsets
    groups = scales[0].shape[3 if a.scales_transposed else 2] if scales else 1
    packed = 2 if a.weights in PACKED and not a.transposed else 1
    columns = tuple(w.shape[2 if a.transposed else 3] * packed for w in operands.weights)
    return Extents(layers, batch, given, rows, depth, columns, groups)


def find_type_of_scales(operands: Operands[ArrayType]) -> DType:
    """That of x where there are none."""
    return (operands.scales or (operands.x,))[0].dtype


def _infer(node: Node, operands: Sequence[Type]) -> Type:
    a = attrs_of(node, NarrowProductAttrs)
    given = split_operands(a, arrays_of(operands))
    x = given.x
    require_operands(x.dtype in FACTORS, f"factors of {x.dtype.value}")
    require(a.weights is x.dtype or a.weights in INTEGERS, f"weights of {a.weights.value}")
    require_operands(x.rank == 3 + is_packed_along_depth(a), f"x has {x.rank} dimensions")
    require_operands(
        all(w.rank == 4 for w in (*given.weights, *given.offsets, *given.scales)),
        "weights and scales have four dimensions",
    )
    e = measure(a, given)
    require_operands(e.given in (1, e.batch), f"rows for {e.given} of a batch of {e.batch}")
    require(
        a.share > 0 and e.depth % e.groups == 0, f"{e.depth} elements of depth are no whole groups"
    )
    stored = {DType.S4: DType.S8, DType.U4: DType.U8}.get(a.weights, a.weights)
    half = 2 if a.weights in PACKED else 1
    for columns, array in zip(e.columns, given.weights, strict=True):
        wanted = (columns, e.depth // half) if a.transposed else (e.depth, columns // half)
        _require_array(array, stored, (e.layers, e.batch, *wanted))
    of_scales = find_type_of_scales(given)
    require_operands(of_scales in (x.dtype, DType.F32), f"scales of {of_scales.value}")
    for arrays, dtype in ((given.offsets, x.dtype), (given.scales, of_scales)):
        for columns, array in zip(e.columns, arrays, strict=False):
            wanted = (columns, e.groups) if a.scales_transposed else (e.groups, columns)
            _require_array(array, dtype, (e.layers, e.batch, *wanted))
    if given.layer is None:
        require_operands(e.layers == 1, f"{e.layers} layers, and none is chosen")
    else:
        require_operands(given.layer == ArrayType(DType.S32, ()), "the layer is a number")
    parts, dtype = -(-e.depth // a.share), array_of_result(node).dtype
    require(
        dtype is DType.F32 or (dtype is x.dtype and parts == 1),
        f"{parts} parts of {dtype.value}",
    )
    return ArrayType(dtype, (parts, e.batch, e.rows, sum(e.columns)))


def _require_array(array: ArrayType, dtype: DType, shape: tuple[int, ...]) -> None:
    wanted = ArrayType(dtype, shape)
    require_operands(array == wanted, f"{array} in place of {wanted}")


def unpack(bytes_: Array, dtype: DType) -> Array:
    """Numbers of four bits, two of each byte along the last dimension."""
    low, high = bytes_ & 15, (bytes_ >> 4) & 15
    both = np.stack([low, high], axis=-1).astype(np.int32)
    both = both.reshape(*bytes_.shape[:-1], -1)
    return (both ^ 8) - 8 if dtype is DType.S4 else both


def meaning_of_narrow_product(node: Node, *operands: Array) -> Array:
    """In f64, rounded once."""
    a = attrs_of(node, NarrowProductAttrs)
    given = split_operands(a, operands)
    types = [ArrayType(DType.F32, array.shape) for array in operands]
    e = measure(a, split_operands(a, types))
    x = given.x.astype(np.float64)
    if is_packed_along_depth(a):
        x = np.moveaxis(x, 0, -1).reshape(e.given, e.rows, e.depth)
    layer = 0 if given.layer is None else int(np.clip(given.layer, 0, e.layers - 1))

    def read(array: Array, transposed: bool) -> Array:
        chosen = array[layer].astype(np.float64)
        return chosen.swapaxes(-1, -2) if transposed else chosen

    results = []
    for number, array in enumerate(given.weights):
        whole = unpack(array, a.weights) if a.weights in PACKED else array
        weights = read(whole, a.transposed)
        each = e.depth // e.groups
        if a.offset:
            weights -= np.repeat(read(given.offsets[number], a.scales_transposed), each, axis=1)
        if a.scale:
            weights *= np.repeat(read(given.scales[number], a.scales_transposed), each, axis=1)
        starts = range(0, e.depth, a.share)
        results.append([x[..., k : k + a.share] @ weights[:, k : k + a.share] for k in starts])
    assert isinstance(node.type, ArrayType)
    return np.concatenate([np.stack(parts) for parts in results], -1).astype(node.type.dtype.numpy)


ROWS: dict[str, Op] = {
    "narrow-product": Op(
        Kind.OTHER,
        meaning=meaning_of_narrow_product,
        rule=_infer,
        attributes=Attributes(NarrowProductAttrs),
    )
}
