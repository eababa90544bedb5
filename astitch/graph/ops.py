"""The one op table: everything astitch knows of an opcode is one row.

kind: what the stitcher does with it.  cost: LIGHT or HEAVY (paper section 2: heavy ops are worth a buffer
before a broadcast).  cuda: how the scalar is spelled in CUDA, `{0}` `{1}` `{2}` being the operands in their
compute type (float for f16 and bf16); the functions are in cuda/hlo_math.cuh.  narrow_cuda: the same where the result
is rounded to f16 or bf16, `{T}` being that storage type.  flops: rough work of one element.
meaning: the op in NumPy, from semantics.py; none for parameter and ops with a region: reference.py interprets those.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import numpy as np

from astitch.graph.ir import DType, Graph
from astitch.graph.semantics import MEANINGS, Meaning


class Kind(enum.Enum):
    """What the stitcher may do with an op."""

    SOURCE = "source"  # parameter, constant, iota: no operands
    ELEMENTWISE = "elementwise"  # result[i] = f(operands[i])
    BROADCAST = "broadcast"  # one-to-many
    INDEX = "index"  # result[i] = operand[g(i)]: reshape, transpose, slice, pad, concatenate ...
    REDUCE = "reduce"  # many-to-one
    COMPUTE = "compute"  # dot, convolution: a library call
    PROJECTION = "projection"  # get-tuple-element
    CONTROL = "control"  # while, conditional, call
    BARRIER = "barrier"  # optimization-barrier: its operands, which nothing is merged across
    OTHER = "other"  # sort, scatter, fft ...: a step of its own for now


class Cost(enum.Enum):
    LIGHT = "light"
    HEAVY = "heavy"


@dataclass(frozen=True, slots=True)
class Op:
    kind: Kind
    cost: Cost = Cost.LIGHT
    cuda: str = ""
    flops: int = 1
    narrow_cuda: str = ""
    meaning: Meaning | None = None


def _light(cuda: str, flops: int = 1) -> Op:
    return Op(Kind.ELEMENTWISE, Cost.LIGHT, cuda, flops)


def _heavy(function: str, flops: int = 20, arity: int = 1, *, narrow: str = "") -> Op:
    operands = ", ".join(f"{{{i}}}" for i in range(arity))
    narrow_cuda = f"{narrow}<{{T}}>({operands})" if narrow else ""
    return Op(Kind.ELEMENTWISE, Cost.HEAVY, f"{function}({operands})", flops, narrow_cuda)


OPS: dict[str, Op] = {
    # sources
    "parameter": Op(Kind.SOURCE),
    "constant": Op(Kind.SOURCE),
    "iota": Op(Kind.SOURCE),
    # light element-wise
    "add": _light("hlo_add({0}, {1})"),
    "subtract": _light("hlo_subtract({0}, {1})"),
    "multiply": _light("hlo_multiply({0}, {1})"),
    "mulhi": _light("hlo_mulhi({0}, {1})", 2),
    "maximum": _light("hlo_maximum({0}, {1})"),
    "minimum": _light("hlo_minimum({0}, {1})"),
    "negate": _light("hlo_negate({0})"),
    "abs": _light("hlo_abs({0})"),
    "sign": _light("hlo_sign({0})"),
    "floor": _light("hlo_floor({0})"),
    "ceil": _light("hlo_ceil({0})"),
    "round-nearest-even": _light("hlo_round_nearest_even({0})"),
    "round-nearest-afz": _light("hlo_round_nearest_afz({0})"),
    "and": _light("hlo_and({0}, {1})"),
    "or": _light("hlo_or({0}, {1})"),
    "xor": _light("hlo_xor({0}, {1})"),
    "not": _light("hlo_not({0})"),
    "shift-left": _light("hlo_shift_left({0}, {1})"),
    "shift-right-arithmetic": _light("hlo_shift_right_arithmetic({0}, {1})"),
    "shift-right-logical": _light("hlo_shift_right_logical({0}, {1})"),
    "popcnt": _light("hlo_popcnt({0})"),
    "count-leading-zeros": _light("hlo_clz({0})"),
    "is-finite": _light("hlo_is_finite({0})"),
    "compare": _light(""),  # spelled by direction, see emit_cuda
    "select": _light("({0} ? {1} : {2})"),
    "clamp": _light("hlo_clamp({0}, {1}, {2})"),
    "convert": _light(""),  # spelled by the two types
    "bitcast-convert": _light(
        ""
    ),  # spelled by the two types; between sizes a dimension of parts comes or goes
    "reduce-precision": _light(""),
    "copy": _light("{0}"),
    # heavy element-wise
    "divide": _heavy("hlo_divide", 8, 2, narrow="narrow_divide"),
    "remainder": _heavy("hlo_remainder", 16, 2),
    "power": _heavy("hlo_power", 40, 2),
    "atan2": _heavy("hlo_atan2", 40, 2),
    "exponential": _heavy("hlo_exp", narrow="narrow_exp"),
    "exponential-minus-one": _heavy("hlo_expm1"),
    "log": _heavy("hlo_log", narrow="narrow_log"),
    "log-plus-one": _heavy("hlo_log1p"),
    "logistic": _heavy("hlo_logistic", narrow="narrow_logistic"),
    "tanh": _heavy("hlo_tanh", narrow="narrow_tanh"),
    "tan": _heavy("hlo_tan"),
    "sine": _heavy("hlo_sin"),
    "cosine": _heavy("hlo_cos"),
    "sqrt": _heavy("hlo_sqrt", 8),
    "rsqrt": _heavy("hlo_rsqrt", 4),
    "cbrt": _heavy("hlo_cbrt"),
    "erf": _heavy("hlo_erf"),
    "acos": _heavy("hlo_acos"),
    "acosh": _heavy("hlo_acosh"),
    "asin": _heavy("hlo_asin"),
    "asinh": _heavy("hlo_asinh"),
    "atan": _heavy("hlo_atan"),
    "atanh": _heavy("hlo_atanh"),
    "cosh": _heavy("hlo_cosh"),
    "sinh": _heavy("hlo_sinh"),
    # complex numbers: not emitted yet
    "complex": Op(Kind.OTHER),
    "real": Op(Kind.OTHER),
    "imag": Op(Kind.OTHER),
    # one-to-many and index maps
    "broadcast": Op(Kind.BROADCAST),
    "reshape": Op(Kind.INDEX),
    "transpose": Op(Kind.INDEX),
    "slice": Op(Kind.INDEX),
    "pad": Op(Kind.INDEX),
    "concatenate": Op(Kind.INDEX),
    "reverse": Op(Kind.INDEX),
    "dynamic-slice": Op(Kind.INDEX),
    "dynamic-update-slice": Op(Kind.INDEX),
    "gather": Op(Kind.INDEX),
    # many-to-one
    "reduce": Op(Kind.REDUCE),
    # library calls
    "dot": Op(Kind.COMPUTE),
    "convolution": Op(Kind.COMPUTE),
    # structure
    "get-tuple-element": Op(Kind.PROJECTION),
    "while": Op(Kind.CONTROL),
    "conditional": Op(Kind.CONTROL),
    "call": Op(Kind.CONTROL),
    "optimization-barrier": Op(Kind.BARRIER),
    # a step of its own
    "map": Op(Kind.OTHER),
    "scatter": Op(Kind.OTHER),
    "sort": Op(Kind.OTHER),
    "topk": Op(Kind.OTHER),
    "reduce-window": Op(Kind.OTHER),
    "select-and-scatter": Op(Kind.OTHER),
    "rng": Op(Kind.OTHER),
    "rng-bit-generator": Op(Kind.OTHER),
    "rng-get-and-update-state": Op(Kind.OTHER),
    "batch-norm-training": Op(Kind.OTHER),
    "batch-norm-inference": Op(Kind.OTHER),
    "batch-norm-grad": Op(Kind.OTHER),
    "fft": Op(Kind.OTHER),
    "triangular-solve": Op(Kind.OTHER),
    "cholesky": Op(Kind.OTHER),
    "custom-call": Op(Kind.OTHER),
    "opaque": Op(Kind.OTHER),  # an instruction that only XLA reads, see OpaqueAttrs
}

OPS = {opcode: replace(row, meaning=MEANINGS.get(opcode)) for opcode, row in OPS.items()}


def monoid_of(region: Graph) -> str | None:
    """The opcode of a region that is one commutative op of its two parameters."""
    if len(region.parameters) != 2 or len(region.outputs) != 1:
        return None
    node = region[region.outputs[0]]
    known = {"add", "multiply", "maximum", "minimum", "and", "or", "xor"}
    return node.op if node.op in known and set(node.operands) == set(region.parameters) else None


WIDE_FLOATS = (DType.F16, DType.BF16, DType.F32, DType.F64)
"""The types whose neutral elements are those of real numbers."""


def neutral_element(op: str, dtype: DType) -> np.ndarray | None:
    """The e for which op(x, e) is x, to the bit, for every x; None if there is none."""
    number = dtype in WIDE_FLOATS or dtype.is_integer
    bits = dtype.is_integer or dtype is DType.PRED
    value: object
    match op:
        case "add" if number:
            value = -0.0 if dtype.is_float else 0  # -0.0 + 0.0 is 0.0
        case "subtract" if number:
            value = 0
        case "multiply" | "divide" if number:
            value = 1
        case "or" | "xor" if bits:
            value = 0
        case "shift-left" | "shift-right-logical" | "shift-right-arithmetic" if bits:
            value = 0
        case "and" if bits:
            return ~np.zeros((), dtype.numpy)
        case "maximum" if number or bits:
            return _bound(dtype, least=True)
        case "minimum" if number or bits:
            return _bound(dtype, least=False)
        case _:
            return None
    return np.asarray(value, dtype.numpy)


def _bound(dtype: DType, least: bool) -> np.ndarray:
    if dtype is DType.PRED:
        return np.asarray(not least)
    if dtype.is_float:
        return np.asarray(-np.inf if least else np.inf, dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return np.asarray(info.min if least else info.max, dtype.numpy)
