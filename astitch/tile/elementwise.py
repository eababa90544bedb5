"""Element-wise ops of HLO on tiles: which there are, how they are written, how fast they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from astitch.graph.ir import ArrayType, CompareAttrs, DType, Node
from astitch.graph.ops import OPS
from astitch.tile.program import Builder, Tile

LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453

_KNOWN = frozenset({DType.F32, DType.BF16, DType.F16, DType.S32, DType.PRED})

Write = Callable[[Builder, Node, Sequence[Tile]], Tile]
"""(builder, the op, tiles of its operands, floats in f32) -> the tile of its result, a float in f32."""


@dataclass(frozen=True, slots=True)
class TileOp:
    """integers, conditions: does it compute s32, pred?  rate: elements a microsecond on an H100, beside the memory."""

    write: Write
    integers: bool = False
    conditions: bool = False
    rate: float = math.inf


def why_no_tile(node: Node, operands: Sequence[ArrayType]) -> str | None:
    """None where a tile program computes this element-wise op, else the reason."""
    types = {array.dtype for array in (*operands, node.array)}
    op = TILE_OPS.get(node.op)
    if types - _KNOWN:
        return f"{node.op} of {', '.join(sorted(t.value for t in types - _KNOWN))}"
    if op is None:
        return f"{node.op} is no op on tiles"
    if OPS[node.op].is_conversion and node.dtype in (DType.S32, DType.PRED):
        return f"a conversion to {node.dtype.value}"
    if DType.S32 in types and not op.integers:
        return f"{node.op} of integers"
    if node.dtype is DType.PRED and not op.conditions:
        return f"{node.op} of conditions"
    if isinstance(node.attrs, CompareAttrs) and operands[0].dtype is DType.PRED:
        return "a comparison of conditions"
    return None


def write_elementwise(b: Builder, node: Node, given: Sequence[Tile]) -> Tile:
    """Floats of 16 bits are computed in f32 and rounded after each op, as HLO says.

    So equal values stay equal: the gradient of max(x, y) asks which of them it is.
    """
    wide = [b.convert(x, DType.F32) if x.dtype.is_float else x for x in given]
    result = TILE_OPS[node.op].write(b, node, wide)
    return b.convert(result, node.dtype) if node.dtype.is_float else result


# ---- how they are written


def _as(code: str) -> Write:
    """By one op of a tile program."""
    return lambda b, node, given: b.elementwise(code, *given)


def _bound(code: str) -> Write:
    """maximum or minimum.  Of floats one that is no number is the result."""

    def write(b: Builder, node: Node, given: Sequence[Tile]) -> Tile:
        return b.elementwise(f"{code}-or-nan" if given[0].dtype.is_float else code, *given)

    return write


def _negate(b: Builder, node: Node, given: Sequence[Tile]) -> Tile:
    return b.elementwise("subtract", -0.0, given[0])


def _exponential(b: Builder, node: Node, given: Sequence[Tile]) -> Tile:
    return b.exp2(given[0] * LOG2_E)


def _log(b: Builder, node: Node, given: Sequence[Tile]) -> Tile:
    return b.log2(given[0]) * LN_2


def _logistic(b: Builder, node: Node, given: Sequence[Tile]) -> Tile:
    return b.elementwise("divide", 1.0, b.exp2(given[0] * -LOG2_E) + 1.0)


_COMPARISONS = {
    "LT": ("less", False),
    "LE": ("less-equal", False),
    "GT": ("less", True),
    "GE": ("less-equal", True),
    "EQ": ("equal", False),
    "NE": ("not-equal", False),
}
"""(the tile's op, are its operands exchanged?)"""


def _compare(b: Builder, node: Node, given: Sequence[Tile]) -> Tile:
    assert isinstance(node.attrs, CompareAttrs)
    code, exchanged = _COMPARISONS[node.attrs.direction]
    return b.elementwise(code, *(reversed(given) if exchanged else given))


def _select(b: Builder, node: Node, given: Sequence[Tile]) -> Tile:
    return b.select(*given)


def _clamp(b: Builder, node: Node, given: Sequence[Tile]) -> Tile:
    low, value, high = given
    return b.elementwise("minimum-or-nan", b.elementwise("maximum-or-nan", value, low), high)


def _not(b: Builder, node: Node, given: Sequence[Tile]) -> Tile:
    return b.elementwise("equal", given[0], 0)


def _convert(b: Builder, node: Node, given: Sequence[Tile]) -> Tile:
    (x,) = given
    return b.select(x, b.full(x.shape, 1), 0) if x.dtype is DType.PRED else b.convert(x, DType.F32)


def _copy(b: Builder, node: Node, given: Sequence[Tile]) -> Tile:
    return given[0]


_EXPENSIVE, _SLOW = 4e6, 1.5e6

TILE_OPS: Mapping[str, TileOp] = {
    "abs": TileOp(_as("abs")),
    "add": TileOp(_as("add"), integers=True),
    "and": TileOp(_as("and"), conditions=True),
    "ceil": TileOp(_as("ceil")),
    "clamp": TileOp(_clamp),
    "compare": TileOp(_compare, integers=True, conditions=True),
    "convert": TileOp(_convert, integers=True),
    "copy": TileOp(_copy, integers=True, conditions=True),
    "divide": TileOp(_as("divide"), rate=_EXPENSIVE),
    "erf": TileOp(_as("erf"), rate=_SLOW),
    "exponential": TileOp(_exponential, rate=_EXPENSIVE),
    "exponential-minus-one": TileOp(_as("expm1"), rate=_SLOW),
    "floor": TileOp(_as("floor")),
    "log": TileOp(_log, rate=_EXPENSIVE),
    "log-plus-one": TileOp(_as("log1p"), rate=_SLOW),
    "logistic": TileOp(_logistic, rate=_EXPENSIVE),
    "maximum": TileOp(_bound("maximum")),
    "minimum": TileOp(_bound("minimum")),
    "multiply": TileOp(_as("multiply"), integers=True),
    "negate": TileOp(_negate),
    "not": TileOp(_not, conditions=True),
    "or": TileOp(_as("or"), conditions=True),
    "rsqrt": TileOp(_as("rsqrt"), rate=_EXPENSIVE),
    "select": TileOp(_select, integers=True, conditions=True),
    "sqrt": TileOp(_as("sqrt"), rate=_EXPENSIVE),
    "subtract": TileOp(_as("subtract"), integers=True),
    "tanh": TileOp(_as("tanh"), rate=_SLOW),
    "xor": TileOp(_as("xor"), conditions=True),
}
