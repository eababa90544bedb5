"""Types, numbers, index forms, guards and expressions of a kernel as CUDA text.

Names, metadata and strings from the HLO reach the text only through `comment` and the identifiers of declarations.py.
So nothing in a module can leave its comment or its name.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from astitch.device.gpu import ACCESS_BYTES
from astitch.graph import index as ix
from astitch.graph.index import Linear, Quotient, Remainder, Symbol, Term
from astitch.graph.ir import CompareAttrs, DType, Literal, ReducePrecisionAttrs
from astitch.graph.ops import OPS
from astitch.graph.ops.access import Divisible, Guard, Within
from astitch.kernel import kernel_ir as k
from astitch.kernel.nest import LANE

STORAGE = {
    DType.PRED: "bool",
    DType.S8: "signed char",
    DType.S16: "short",
    DType.S32: "int",
    DType.S64: "long long",
    DType.U8: "unsigned char",
    DType.U16: "unsigned short",
    DType.U32: "unsigned int",
    DType.U64: "unsigned long long",
    DType.F16: "f16",
    DType.BF16: "bf16",
    DType.F32: "float",
    DType.F64: "double",
    DType.F8E4M3FN: "f8e4m3fn",
    DType.F8E5M2: "f8e5m2",
    DType.C64: "c64",
    DType.C128: "c128",
}
"""The C++ type of an element in memory."""

F8 = frozenset({DType.F8E4M3FN, DType.F8E5M2})
"""Types whose vectors wait as floats (Lanes) until they are stored: conversion takes two elements at once."""


def compute_type(dtype: DType) -> str:
    """The C++ type of a value in a register: floats of 8 and 16 bits are held as float."""
    return "float" if dtype.is_narrow_float else STORAGE[dtype]


def comment(text: str) -> str:
    """Text that is safe after //: printable ASCII, no backslash (it would continue the line), bounded."""
    safe = "".join(c if c.isascii() and c.isprintable() and c != "\\" else "." for c in text)
    return safe if len(safe) <= 160 else safe[:157] + "..."


# ---- expressions -----------------------------------------------------------------------------------------------


def render_term(term: Term) -> str:
    match term:
        case Symbol(name, _):
            return name
        case Quotient(dividend, divisor):
            if is_cut(dividend, divisor):
                return f"({render_form(dividend)}) >> {divisor.bit_length() - 1}"
            return f"({render_form(dividend)}) / {divisor}"
        case Remainder(dividend, divisor):
            if is_cut(dividend, divisor):
                return f"({render_form(dividend)}) & {divisor - 1}"
            return f"({render_form(dividend)}) % {divisor}"


def is_cut(dividend: Linear, divisor: int) -> bool:
    """Do quotient and remainder consist of the dividend's bits?  The compiler would ask a signed one for its sign."""
    return divisor & (divisor - 1) == 0 and ix.bounds(dividend)[0] >= 0


def render_form(form: Linear) -> str:
    parts = []
    # Lanes and loop counters are ints: what they are multiplied with, and the first term of a sum, say how wide it is.
    wide = not _is_int(form)
    for number, (term, coefficient) in enumerate(form.terms):
        text = render_term(term)
        if not isinstance(term, Symbol):
            text = f"({text})"
        if wide and (number == 0 or not _is_int(Linear(0, ((term, coefficient),)))):
            text = f"{text} * {coefficient}LL"
        elif coefficient != 1:
            text = f"{text} * {coefficient}"
        parts.append(text)
    if form.constant or not parts:
        parts.append(render_integer(form.constant))
    return " + ".join(parts).replace("+ -", "- ")


@functools.lru_cache(maxsize=1 << 14)
def _is_int(form: Linear) -> bool:
    """Does a sum of ints give it, also before the constant is added?  A symbol without a bound is a variable,
    as wide as its declaration says."""
    bounded = tuple(
        (_LANE if term == LANE else term, coefficient)
        for term, coefficient in form.terms
        if all(s.extent < ix.UNBOUNDED for s in ix.symbols(Linear(0, ((term, 1),))))
    )
    low, high = ix.bounds(Linear(0, bounded))
    reached = (low, high, low + form.constant, high + form.constant)
    return all(-(2**31) < value < 2**31 for value in reached)


_LANE = Symbol(LANE.name, ACCESS_BYTES)
"""No vector has more lanes."""


def render_integer(value: int) -> str:
    """The text of an int, or of a long long beyond 32 bits: hlo_math.cuh knows that type, and C++ would choose long."""
    return str(value) if -(2**31) < value < 2**31 else f"{value}LL"


def render_number(literal: Literal) -> str:
    """A literal that the compiler reads back to exactly the same bits (NaNs: a NaN)."""
    dtype, value = literal.dtype, literal.numpy().reshape(())
    if dtype is DType.PRED:
        return "true" if value else "false"
    if dtype.is_integer:
        number = int(value)
        suffix = {DType.U32: "u", DType.S64: "ll", DType.U64: "ull"}.get(dtype, "")
        text = f"(-{-(number + 1)}{suffix} - 1)" if number < 0 else f"{number}{suffix}"
        narrow = dtype.bytes < 4
        return f"({STORAGE[dtype]})({text})" if narrow else text
    if dtype.is_complex:
        parts = (render_number(Literal.of(np.asarray(part))) for part in (value.real, value.imag))
        return f"{STORAGE[dtype]}{{{', '.join(parts)}}}"
    wide = dtype is DType.F64
    number_f = float(value)
    if not math.isfinite(number_f):
        bits = np.asarray(number_f, np.float64 if wide else np.float32)
        return (
            f"same_bits<double>({int(bits.view(np.uint64)):#x}ull)"
            if wide
            else f"same_bits<float>({int(bits.view(np.uint32)):#x}u)"
        )
    text = repr(number_f) if wide else str(np.float32(number_f))
    if "." not in text and "e" not in text:
        text += ".0"
    return text if wide else text + "f"


def render_call(call: k.Call, operands: Sequence[str]) -> str:
    match call.op, call.attrs:
        case "compare", CompareAttrs(direction, total_order):
            suffix = "_total" if total_order else ""
            return f"hlo_compare_{direction.lower()}{suffix}({', '.join(operands)})"
        case "convert", _:
            return f"hlo_convert<{STORAGE[call.dtype]}, {STORAGE[call.operand_dtypes[0]]}>({operands[0]})"
        case "bitcast-convert", _:
            to, source = call.dtype, call.operand_dtypes[0]
            kind = (
                "" if to.bytes == source.bytes else "_part" if to.bytes < source.bytes else "_join"
            )
            return f"hlo_bitcast{kind}<{STORAGE[to]}, {STORAGE[source]}>({', '.join(operands)})"
        case "reduce-precision", ReducePrecisionAttrs(exponent, mantissa):
            own = f", {STORAGE[call.dtype]}" if call.dtype.is_narrow_float else ""
            return f"hlo_reduce_precision<{exponent}, {mantissa}{own}>({operands[0]})"
        case "shift-right-logical", _ if call.dtype.bytes >= 4 and operands[1].rstrip("ul") == "1":
            return f"hlo_halve({operands[0]})"
    if call.shared_divisor:
        return f"hlo_divide_shared({', '.join(operands)})"
    row = OPS[call.op]
    if row.narrow_cuda and call.ends_narrow:
        return row.narrow_cuda.format(*operands, T=STORAGE[DType.F16])
    if row.narrow_cuda and call.dtype in (DType.F16, DType.BF16):
        return row.narrow_cuda.format(*operands, T=STORAGE[call.dtype])
    return row.cuda.format(*operands)


def render_store(dtype: DType, expr: k.Expr) -> str:
    """The element of storage type that holds the expression; a name is a value of `dtype` already."""
    exact = dtype is DType.BF16 and isinstance(expr, k.Name | k.Number | k.Lane)
    return f"{'store_exact' if exact else 'store_as'}<{STORAGE[dtype]}>({render(expr)})"


def render(expr: k.Expr) -> str:
    """A scalar in its compute type."""
    match expr:
        case k.Name(name):
            return name
        case k.Number(value):
            return render_number(value)
        case k.Call():
            return render_call(expr, [render(o) for o in expr.operands])
        case k.Position(form, dtype):
            return f"hlo_convert<{STORAGE[dtype]}>({render_form(form)})"
        case k.Lane(vector, DType.BF16):
            return f"bf16_lane({vector}, lane)"
        case k.Lane(vector, dtype):
            return f"load_as<{compute_type(dtype)}>({vector}.v[lane])"
        case k.Element(array, position, dtype, raw):
            element = f"{array}[{render_form(position)}]"
            return f"load_as<{compute_type(dtype)}>({element})" if raw else element
        case k.Field(state, position, number):
            return f"{state}[{render_form(position)}].f{number}"


def render_value(dtype: DType, expr: k.Expr) -> str:
    """The expression, rounded once to its HLO dtype."""
    narrow = dtype.is_narrow_float
    exact = (isinstance(expr, k.Call) and expr.op in k.EXACT) or isinstance(
        expr, k.Lane | k.Element | k.Name | k.Number
    )
    text = render(expr)
    return f"round_to<{STORAGE[dtype]}>({text})" if narrow and not exact else text


def render_guard(guard: Guard) -> str:
    match guard:
        case Within(form, low, high):
            least, most = ix.bounds(form)
            text = render_form(form)
            tests = [f"{text} >= {low}"] if least < low else []
            tests += [f"{text} < {high}"] if most >= high or not tests else []
            return " && ".join(tests)
        case Divisible(form, by):
            return f"({render_form(form)}) % {by} == 0"


def render_guards(guards: Sequence[Guard]) -> str:
    return " && ".join(render_guard(g) for g in guards)
