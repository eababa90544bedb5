"""Ops on rows of narrow arrays, by a kernel of our own: products go from tile to tile, not through memory.

    row-region(operands ...) -> (arrays of rows ..., sums over all rows ...)

Its region computes the results from the operands.  A value of it is

| value | shape | |
|---|---|---|
| matrix of rows | [rows, columns] | |
| number for each row | [rows] | |
| anything else | [], [columns], [depth, columns] | a parameter, or a constant of one element |

The element-wise ops are those of tile/elementwise.py; rewrite/row_ops.py names the others.
The last `sums` outputs are products or reductions over all rows.  Of each there are `parts`, in f32: [parts, ...].
They add up to what the region says; what follows adds them.
"""

from __future__ import annotations

from collections.abc import Sequence

from astitch.graph.ir import ArrayType, DType, Node, RowRegionAttrs, TupleType, Type
from astitch.graph.ops.hlo_fields import Attributes
from astitch.graph.ops.row import Kind, Op
from astitch.graph.ops.rules import arrays_of, attrs_of, check_region, require


def type_of_results(outputs: Sequence[ArrayType], a: RowRegionAttrs) -> TupleType:
    """outputs: of the region."""
    first_sum = len(outputs) - a.sums
    sums = (ArrayType(DType.F32, (a.parts, *array.shape)) for array in outputs[first_sum:])
    return TupleType((*outputs[:first_sum], *sums))


def _infer(node: Node, operands: Sequence[Type]) -> Type:
    a = attrs_of(node, RowRegionAttrs)
    region = node.regions[0]
    outputs = [region[name].array for name in region.outputs]
    check_region(node, 0, arrays_of(operands), outputs)
    require(a.rows > 0 and a.parts > 0, f"{a.rows} rows, {a.parts} parts of sums")
    require(0 <= a.sums <= len(outputs), f"{a.sums} sums of {len(outputs)} results")
    stored = outputs[: len(outputs) - a.sums]
    require(
        all(array.shape[:1] == (a.rows,) for array in stored),
        f"a result that is no array of {a.rows} rows",
    )
    return type_of_results(outputs, a)


ROWS: dict[str, Op] = {
    "row-region": Op(Kind.OTHER, rule=_infer, regions=1, attributes=Attributes(RowRegionAttrs)),
}
