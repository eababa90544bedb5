"""What a sort compares by -> the keys of its elements, if the region is a comparison of one operand's.

XLA writes the order of floats as integers of the same order, and breaks ties by a count of the elements where the sort
is stable.  Such a region is read as an expression, without names.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from astitch.graph.ir import (
    CompareAttrs,
    ConstantAttrs,
    DType,
    Graph,
    IotaAttrs,
    Node,
    ParameterAttrs,
    SortAttrs,
)
from astitch.graph.ops import OPS
from astitch.rewrite.draft import Draft

Expression = tuple[object, ...]
"""(opcode, dtype, attributes, expressions of the operands); of a parameter (its number,)."""


@dataclass(frozen=True, slots=True)
class Order:
    """operand: the number of what is compared.  key: a region's value, of its parameter 2 * operand, that is compared.
    descending: the largest comes first.  Of equal ones the first comes first, or any."""

    operand: int
    key: str
    descending: bool
    total: bool


def read_order(node: Node, draft: Draft) -> Order | None:
    """How a sort compares; None: in another way than by one value of each element."""
    region = node.regions[0]
    root = region[region.outputs[0]]
    compared = _read_comparison(region, root)
    if compared is not None:
        return compared
    # select(before(a, b) == before(b, a), a's number < b's, before(a, b))
    if len(root.operands) != 3:
        return None
    equal, tie, before = (region[name] for name in root.operands)
    compared, other = _read_comparison(region, before), _read_tie(region, equal, before)
    if compared is None or not other or not _counts(region, tie, node, draft):
        return None
    return compared


def _read_comparison(region: Graph, node: Node) -> Order | None:
    a = node.attrs
    if not isinstance(a, CompareAttrs) or a.direction not in ("LT", "GT"):
        return None
    first, second = (read_expression(region, name) for name in node.operands)
    numbers = find_parameters(first) | find_parameters(second)
    least = min(numbers, default=1)
    if numbers != {least, least + 1} or least % 2:
        return None
    if find_parameters(first) != {least} or replace_parameter(second, least) != first:
        return None
    return Order(least // 2, node.operands[0], a.direction == "GT", a.total_order)


def _read_tie(region: Graph, equal: Node, before: Node) -> bool:
    """Is the first whether the other and its converse are the same?"""
    a = equal.attrs
    if not isinstance(a, CompareAttrs) or a.direction != "EQ" or before.name not in equal.operands:
        return False
    (converse,) = [region[name] for name in equal.operands if name != before.name] or [before]
    return converse.attrs == before.attrs and converse.operands == before.operands[::-1]


def _counts(region: Graph, tie: Node, node: Node, draft: Draft) -> bool:
    """Does the smaller position come first?"""
    a, attrs = tie.attrs, node.attrs
    assert isinstance(attrs, SortAttrs)
    if not isinstance(a, CompareAttrs) or a.direction != "LT":
        return False
    first, second = (region[name].attrs for name in tie.operands)
    if not isinstance(first, ParameterAttrs) or not isinstance(second, ParameterAttrs):
        return False
    if first.index % 2 or second.index != first.index + 1:
        return False
    return is_count(draft, node.operands[first.index // 2], attrs.dimension)


def is_count(draft: Draft, name: str, dimension: int) -> bool:
    """Is each element its own position along the dimension?"""
    node = draft[name]
    if OPS[node.op].is_broadcast and node.operands:
        kept = getattr(node.attrs, "dimensions", ())
        if dimension not in kept:
            return False
        return is_count(draft, node.operands[0], kept.index(dimension))
    return isinstance(node.attrs, IotaAttrs) and node.attrs.dimension == dimension


# ---- expressions


def read_expression(region: Graph, name: str) -> Expression:
    node = region[name]
    if isinstance(node.attrs, ParameterAttrs):
        return (node.attrs.index,)
    attrs = node.attrs
    value: object = attrs.value.numpy().tobytes() if isinstance(attrs, ConstantAttrs) else attrs
    return (node.op, node.dtype, value, tuple(read_expression(region, o) for o in node.operands))


def find_parameters(expression: Expression) -> set[int]:
    if len(expression) == 1:
        (number,) = expression
        assert isinstance(number, int)
        return {number}
    operands = expression[3]
    assert isinstance(operands, tuple)
    return set[int]().union(*map(find_parameters, operands))


def replace_parameter(expression: Expression, number: int) -> Expression:
    """The same of another parameter."""
    if len(expression) == 1:
        return (number,)
    op, dtype, value, operands = expression
    assert isinstance(operands, tuple)
    return (op, dtype, value, tuple(replace_parameter(o, number) for o in operands))


def is_flipped(expression: Expression) -> bool:
    """Is it select(bits < 0, bits ^ max, bits) of an f32's bits?"""
    none = ("constant", DType.S32, np.asarray(0, np.int32).tobytes(), ())
    most = ("constant", DType.S32, np.asarray((1 << 31) - 1, np.int32).tobytes(), ())
    if len(expression) == 1 or not isinstance(expression[3], tuple) or len(expression[3]) != 3:
        return False
    negative, flipped, bits = expression[3]
    from_float = (
        len(bits) == 4 and bits[:2] == ("bitcast-convert", DType.S32) and len(bits[3][0]) == 1
    )
    return bool(
        expression[:2] == ("select", DType.S32)
        and from_float
        and negative == ("compare", DType.PRED, CompareAttrs("LT"), (bits, none))
        and flipped[:2] == ("xor", DType.S32)
        and flipped[3] in ((most, bits), (bits, most))
    )
