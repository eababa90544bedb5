"""Instructions by the unit that executes them: what an op and an index form cost."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from astitch.graph.index import Linear, Symbol
from astitch.graph.ir import DType
from astitch.graph.ops import OPS, Cost


class Unit(enum.Enum):
    """What executes an instruction."""

    FP32 = "fp32"
    INTEGER = "integer"
    SPECIAL = "special function"
    CONVERSION = "conversion"
    FP64 = "fp64"
    SHUFFLE = "shuffle"
    SHARED = "shared memory"
    MEMORY = "global memory"


Mix = dict[Unit, float]
"""Instructions of one thread by unit."""

_F, _I, _S, _C, _D = Unit.FP32, Unit.INTEGER, Unit.SPECIAL, Unit.CONVERSION, Unit.FP64

# Instructions of one f32 op, read off the SASS of cuda/hlo_math.cuh for sm_90 (--fmad=false), rounded.
_F32_COSTS: Mapping[str, Mix] = {
    "divide": {_F: 6, _I: 2, _S: 1},
    "remainder": {_F: 20, _I: 20, _S: 1},
    "power": {_F: 45, _I: 15, _S: 3},
    "atan2": {_F: 25, _I: 6, _S: 1},
    "exponential": {_F: 6, _I: 2, _S: 1},
    "exponential-minus-one": {_F: 18, _I: 4, _S: 1},
    "log": {_F: 18, _I: 5},
    "log-plus-one": {_F: 20, _I: 6},
    "logistic": {_F: 14, _I: 4, _S: 2},
    "tanh": {_F: 18, _I: 4, _S: 2},
    "sqrt": {_F: 6, _I: 4, _S: 1},
    "rsqrt": {_F: 3, _I: 1, _S: 1},
    "cbrt": {_F: 10, _I: 4, _S: 2},
    "erf": {_F: 22, _I: 4, _S: 1},
    "sine": {_F: 20, _I: 12},
    "cosine": {_F: 20, _I: 12},
    "tan": {_F: 26, _I: 12, _S: 1},
    "sign": {_F: 1, _I: 3},
    "clamp": {_F: 2},
}
# Where the result is rounded to f16 or bf16 (narrow_exp ... in hlo_math.cuh).
_NARROW_COSTS: Mapping[str, Mix] = {
    "divide": {_F: 1, _S: 1},
    "exponential": {_F: 1, _S: 1},
    "log": {_F: 1, _S: 1},
    "logistic": {_F: 2, _S: 2},
    "tanh": {_F: 2, _S: 1},
}
NARROW = (DType.F16, DType.BF16)


def price_op(op: str, dtype: DType, operand_dtypes: Sequence[DType]) -> Mix:
    """Instructions of one element-wise op that gives `dtype`, its rounding included."""
    if OPS[op].is_free:
        return {}
    source = operand_dtypes[0] if operand_dtypes else dtype
    if OPS[op].is_conversion:
        if DType.F64 in (dtype, source):
            return {_C: 1, _D: 1}
        if source in NARROW and dtype not in NARROW:
            return {_I: 1}
        return {_C: 1, _I: 1} if dtype is not source else {}
    if op in ("compare", "select"):
        return {_I: max(source.bytes / 4, 1)}
    if source.is_complex or dtype.is_complex:
        unit = _D if DType.C128 in (source, dtype) else _F
        return {unit: 4.0 * OPS[op].flops}  # both parts of a sum; six for a product
    if dtype is DType.F64:
        return {_D: 12.0 if OPS[op].cost is Cost.HEAVY else 1.0}
    if not (dtype.is_integer or dtype is DType.PRED):
        narrow = dtype in NARROW
        known = (_NARROW_COSTS.get(op) if narrow else None) or _F32_COSTS.get(op)
        mix = dict(known or {_F: 20.0 if OPS[op].cost is Cost.HEAVY else 1.0})
        if dtype.bytes < 4:
            mix[_C] = mix.get(_C, 0) + 1
            mix[_I] = mix.get(_I, 0) + 1
        return mix
    heavy = {"divide": 20, "remainder": 20, "power": 40, "multiply": 2, "mulhi": 2}.get(op, 1)
    return {_I: float(heavy * (3 if dtype.bytes == 8 else 1))}


def price_form(form: Linear, wide: bool) -> float:
    """Integer instructions of an index form; divisors are constants."""
    total = 0.0
    for term, coefficient in form.terms:
        total += 1 if coefficient != 1 or len(form.terms) > 1 else 0.5
        if not isinstance(term, Symbol):
            power = term.divisor & (term.divisor - 1) == 0
            total += (2 if power else 5) + price_form(term.dividend, wide)
    return total * (2 if wide else 1)
