"""Control flow and the structure of values: loops, branches, calls, projections, barriers."""

# NumPy's stubs give Any for arithmetic on arrays of an unknown dtype, which is what all of this is.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence

from astitch.graph.ir import (
    ArrayType,
    ConditionalAttrs,
    DType,
    GetTupleElementAttrs,
    Node,
    TupleType,
    Type,
)
from astitch.graph.ops.hlo_fields import Attributes, Field
from astitch.graph.ops.row import Kind, Op, share_equal_shapes
from astitch.graph.ops.rules import (
    BrokenRule,
    arrays_of,
    attrs_of,
    check_region,
    elements_of,
    require,
    require_operands,
    result_of,
)


def _infer_while(node: Node, operands: Sequence[Type]) -> Type:
    state = arrays_of(operands)
    check_region(node, 0, state, [ArrayType(DType.PRED, ())])
    check_region(node, 1, state, state)
    return TupleType(tuple(state))


def _infer_conditional(node: Node, operands: Sequence[Type]) -> Type:
    require_operands(len(operands) >= 1, "needs a selector")
    selector, *rest = arrays_of(operands)
    counts = attrs_of(node, ConditionalAttrs).operand_counts
    require_operands(
        selector in (ArrayType(DType.PRED, ()), ArrayType(DType.S32, ())),
        f"the selector is {selector}, not pred[] or s32[]",
    )
    require(
        selector.dtype is DType.S32 or len(counts) == 2, f"pred chooses of 2, not {len(counts)}"
    )
    require(
        len(counts) == len(node.regions) and sum(counts) == len(rest),
        f"operand_counts {counts} for {len(node.regions)} branches and {len(rest)} operands",
    )
    at = 0
    for branch, count in enumerate(counts):
        check_region(node, branch, rest[at : at + count], elements_of(node.type))
        at += count
    return node.type


def _infer_call(node: Node, operands: Sequence[Type]) -> Type:
    check_region(node, 0, arrays_of(operands), elements_of(node.type))
    return node.type


def _infer_get_tuple_element(node: Node, operands: Sequence[Type]) -> Type:
    require_operands(len(operands) == 1, f"has {len(operands)} operands, the op takes 1")
    elements, index = elements_of(operands[0]), attrs_of(node, GetTupleElementAttrs).index
    if not 0 <= index < len(elements):
        raise BrokenRule(f"element {index} of {operands[0]}")
    return elements[index]


def _infer_barrier(node: Node, operands: Sequence[Type]) -> Type:
    """All operands, a tuple where they are several."""
    arrays = arrays_of(operands)
    require(len(arrays) > 0, "a barrier of nothing")
    return result_of(arrays)


ROWS: dict[str, Op] = {
    "get-tuple-element": Op(
        Kind.PROJECTION,
        rule=_infer_get_tuple_element,
        attributes=Attributes(GetTupleElementAttrs, (Field("index", "tuple_index"),)),
        pairs=share_equal_shapes,
    ),
    "while": Op(Kind.CONTROL, rule=_infer_while, regions=2, is_loop=True),
    "conditional": Op(
        Kind.CONTROL,
        rule=_infer_conditional,
        regions=None,
        # Told by the operands, which are tuples in HLO.
        attributes=Attributes(ConditionalAttrs, place="called_computation_ids"),
    ),
    "call": Op(Kind.CONTROL, rule=_infer_call, regions=1),
    "optimization-barrier": Op(Kind.BARRIER, rule=_infer_barrier),
}
