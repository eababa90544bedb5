"""Ops that combine many elements by a region: reduce, reduce-window, select-and-scatter, sort, map."""

# NumPy's stubs give Any for arithmetic on arrays of an unknown dtype, which is what all of this is.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence

from astitch.graph.ir import ArrayType, DimensionsAttrs, DType, Node, SortAttrs, Type, WindowAttrs
from astitch.graph.ops.hlo_fields import DIMENSIONS, ONLY, WINDOW, Attributes, Field
from astitch.graph.ops.row import Kind, Op, Shape, need_proportion
from astitch.graph.ops.rules import (
    array_of_result,
    arrays_of,
    attrs_of,
    check_distinct,
    check_region,
    count_windows,
    require,
    require_operands,
    result_of,
    scalars_of,
    without,
)
from astitch.graph.ops.windows import find_running


def _split_inits(node: Node, operands: Sequence[Type]) -> tuple[list[ArrayType], list[ArrayType]]:
    """(inputs, inits) of reduce and reduce-window, with its combiner checked."""
    arrays = arrays_of(operands)
    require_operands(
        len(arrays) >= 2 and len(arrays) % 2 == 0,
        f"has {len(arrays)} operands, needs as many initial values as inputs",
    )
    half = len(arrays) // 2
    inputs, inits = arrays[:half], arrays[half:]
    for i in range(half):
        require_operands(inits[i].shape == (), f"initial value {i} is {inits[i]}, not a scalar")
        require_operands(
            inputs[i].shape == inputs[0].shape, f"input {i} is {inputs[i]}, input 0 {inputs[0]}"
        )
    check_region(node, 0, [*inits, *scalars_of(inputs)], inits)
    return inputs, inits


def _infer_reduce(node: Node, operands: Sequence[Type]) -> Type:
    inputs, inits = _split_inits(node, operands)
    dimensions = attrs_of(node, DimensionsAttrs).dimensions
    check_distinct("dimensions", dimensions, inputs[0].rank)
    shape = without(inputs[0].shape, dimensions)
    return result_of([ArrayType(init.dtype, shape) for init in inits])


def _infer_reduce_window(node: Node, operands: Sequence[Type]) -> Type:
    inputs, inits = _split_inits(node, operands)
    window = attrs_of(node, WindowAttrs).window
    require(len(window) == inputs[0].rank, f"a window of rank {len(window)} over {inputs[0]}")
    shape = tuple(count_windows(n, w) for n, w in zip(inputs[0].shape, window, strict=True))
    return result_of([ArrayType(init.dtype, shape) for init in inits])


def _infer_select_and_scatter(node: Node, operands: Sequence[Type]) -> Type:
    x, source, init = arrays_of(operands, 3)
    window = attrs_of(node, WindowAttrs).window
    require(len(window) == x.rank, f"a window of rank {len(window)} over {x}")
    shape = tuple(count_windows(n, w) for n, w in zip(x.shape, window, strict=True))
    require_operands(
        source.shape == shape, f"the source is {source}, the window has {shape} positions"
    )
    require_operands(
        init == ArrayType(x.dtype, ()), f"the initial value is {init}, the operand {x}"
    )
    scalar = scalars_of([x])
    check_region(node, 0, scalar * 2, [ArrayType(DType.PRED, ())])
    check_region(node, 1, scalar * 2, scalar)
    return x


def _infer_sort(node: Node, operands: Sequence[Type]) -> Type:
    arrays = arrays_of(operands)
    require_operands(len(arrays) > 0, "sort of nothing")
    check_distinct("dimension", (attrs_of(node, SortAttrs).dimension,), arrays[0].rank)
    for i, array in enumerate(arrays):
        require_operands(
            array.shape == arrays[0].shape, f"operand {i} is {array}, operand 0 {arrays[0]}"
        )
    pairs = [s for s in scalars_of(arrays) for _ in range(2)]
    check_region(node, 0, pairs, [ArrayType(DType.PRED, ())])
    return result_of(arrays)


def _infer_map(node: Node, operands: Sequence[Type]) -> Type:
    arrays = arrays_of(operands)
    result = array_of_result(node)
    for i, array in enumerate(arrays):
        require_operands(
            array.shape == result.shape, f"operand {i} is {array}, the result {result}"
        )
    check_region(node, 0, scalars_of(arrays), scalars_of([result]))
    return result


def _share_kept(node: Node, source: Shape, target: Shape, number: int) -> list[tuple[int, int]]:
    reduced = attrs_of(node, DimensionsAttrs).dimensions
    kept = [d for d in range(len(source)) if d not in reduced]
    return list(zip(kept, range(len(kept)), strict=True)) if source else []


def _share_running(node: Node, source: Shape, target: Shape, number: int) -> list[tuple[int, int]]:
    """A running reduction shares all dimensions: a kernel computes it as a scan."""
    if number >= max(len(node.operands) // 2, 1) or find_running(node) is None:
        return []
    return [(d, d) for d in range(len(source))]


_WINDOW = Attributes(WindowAttrs, (Field("window", "window.dimensions", WINDOW),))
_SORT = Attributes(
    SortAttrs, (Field("dimension", "dimensions", ONLY), Field("is_stable", "is_stable"))
)

ROWS: dict[str, Op] = {
    "reduce": Op(
        Kind.REDUCE,
        rule=_infer_reduce,
        regions=1,
        attributes=DIMENSIONS,
        pairs=_share_kept,
        needed=need_proportion,
    ),
    "reduce-window": Op(
        Kind.OTHER, rule=_infer_reduce_window, regions=1, attributes=_WINDOW, pairs=_share_running
    ),
    "select-and-scatter": Op(
        Kind.OTHER, rule=_infer_select_and_scatter, regions=2, attributes=_WINDOW
    ),
    "sort": Op(Kind.OTHER, rule=_infer_sort, regions=1, attributes=_SORT, pairs=_share_running),
    "map": Op(Kind.OTHER, rule=_infer_map, regions=1, attributes=DIMENSIONS),
}
