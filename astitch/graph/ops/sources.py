"""Ops without operands: parameter, constant, iota."""

# NumPy's stubs give Any for arithmetic on arrays of an unknown dtype, which is what all of this is.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astitch.graph.ir import ArrayType, ConstantAttrs, DType, IotaAttrs, Node, ParameterAttrs, Type
from astitch.graph.ops.arrays import Array
from astitch.graph.ops.hlo_fields import ONLY, Attributes, Field
from astitch.graph.ops.row import Kind, Op
from astitch.graph.ops.rules import array_of_result, arrays_of, attrs_of, check_distinct, require


def _infer_parameter(node: Node, operands: Sequence[Type]) -> Type:
    arrays_of(operands, 0)
    return node.type


def _infer_constant(node: Node, operands: Sequence[Type]) -> Type:
    arrays_of(operands, 0)
    literal = attrs_of(node, ConstantAttrs).value
    return ArrayType(literal.dtype, literal.shape)


def _infer_iota(node: Node, operands: Sequence[Type]) -> Type:
    arrays_of(operands, 0)
    result = array_of_result(node)
    check_distinct("iota dimension", (attrs_of(node, IotaAttrs).dimension,), result.rank)
    require(result.dtype is not DType.PRED, "iota of pred has no meaning")
    return result


def meaning_of_constant(node: Node) -> Array:
    return attrs_of(node, ConstantAttrs).value.numpy()


def meaning_of_iota(node: Node) -> Array:
    dimension = attrs_of(node, IotaAttrs).dimension
    counts = np.arange(node.shape[dimension]).reshape(
        [-1 if d == dimension else 1 for d in range(len(node.shape))]
    )
    return np.broadcast_to(counts, node.shape).astype(node.dtype.numpy)


ROWS: dict[str, Op] = {
    "parameter": Op(
        Kind.SOURCE,
        rule=_infer_parameter,
        is_pointwise=True,
        attributes=Attributes(ParameterAttrs, (Field("index", "parameter_number"),)),
    ),
    "constant": Op(
        Kind.SOURCE,
        meaning=meaning_of_constant,
        rule=_infer_constant,
        is_pointwise=True,
        # Elements and their type are read and written together: hlo/literal.py.
        attributes=Attributes(ConstantAttrs, place="literal"),
    ),
    "iota": Op(
        Kind.SOURCE,
        meaning=meaning_of_iota,
        rule=_infer_iota,
        attributes=Attributes(IotaAttrs, (Field("dimension", "dimensions", ONLY),)),
    ),
}
