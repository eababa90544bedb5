"""cuda/types.cuh and cuda/hlo_math.cuh, compiled for the host, against the NumPy meaning of every op.

One shared library holds a loop for each (op, dtype).  As in an emitted kernel, operands are loaded in their storage
type, the op runs in its compute type, the result is rounded and stored.  Integers, comparisons, conversions and
arithmetic must agree to the bit; functions to a few units in the last place.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astitch.graph.ir import (
    ArrayType,
    Attrs,
    CompareAttrs,
    DType,
    NoAttrs,
    Node,
    ReducePrecisionAttrs,
)
from astitch.graph.ops import OPS, Kind
from astitch.graph.reference import eval_node
from astitch.toolchain.nvrtc import Request, compile_cuda, compile_many_cuda

CPP = {
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
}
ALL = tuple(CPP)
INTEGERS = tuple(d for d in ALL if d.is_integer)
FLOATS = tuple(d for d in ALL if d.is_float)
NUMBERS = INTEGERS + FLOATS

# Which types an op is defined for, where that is not every float.
DTYPES = {
    **dict.fromkeys(("add", "subtract", "multiply", "maximum", "minimum", "clamp"), ALL),
    **dict.fromkeys(("abs", "sign", "negate", "divide", "remainder", "power"), NUMBERS),
    **dict.fromkeys(("and", "or", "xor", "not"), (DType.PRED, *INTEGERS)),
    **dict.fromkeys(("shift-left", "shift-right-arithmetic", "shift-right-logical"), INTEGERS),
    **dict.fromkeys(("popcnt", "count-leading-zeros", "mulhi"), INTEGERS),
    "select": ALL,
    "copy": ALL,
    "complex": (),  # test_complex_math.py
}

# Functions may differ by a few units in the last place; everything else is exact.
ULP = 4
INEXACT = frozenset(
    "power atan2 exponential exponential-minus-one log log-plus-one logistic tanh tan sine cosine rsqrt cbrt erf acos "
    "acosh asin asinh atan atanh cosh sinh".split()
)

HOST = """
#define ASTITCH_HOST 1
#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define FIRST 0
#define STEP 1
#include "hlo_math.cuh"

"""
DEVICE = """
#define FIRST (blockIdx.x * blockDim.x + threadIdx.x)
#define STEP (gridDim.x * blockDim.x)
#include "hlo_math.cuh"

"""


@dataclass(frozen=True)
class Case:
    """One op on one set of operand types.  expression: {0} {1} {2} are operands in their compute type."""

    op: str
    operands: tuple[DType, ...]
    result: DType
    expression: str
    attrs: Attrs = NoAttrs()
    variant: str = ""

    @property
    def name(self) -> str:
        details = [d.value for d in self.operands]
        if isinstance(self.attrs, CompareAttrs):
            details += [self.attrs.direction + ("_total" if self.attrs.total_order else "")]
        if isinstance(self.attrs, ReducePrecisionAttrs):
            details += [f"e{self.attrs.exponent_bits}m{self.attrs.mantissa_bits}"]
        if self.variant:
            details += [self.variant]
        return "_".join([self.op.replace("-", "_"), *details, "to", self.result.value])

    @property
    def loop(self) -> str:
        """A C function `name(operands, result, n)` that computes n elements."""
        values = [
            f"load_as<compute_of<{CPP[d]}>>(static_cast<const {CPP[d]}*>(in[{i}])[k])"
            for i, d in enumerate(self.operands)
        ]
        result = CPP[self.result]
        return (
            f'extern "C" __global__ void {self.name}(const void* const* in, void* out, long long n)\n'
            f"{{ for (long long k = FIRST; k < n; k += STEP) static_cast<{result}*>(out)[k] = "
            f"store_as<{result}>({self.expression.format(*values)}); }}\n"
        )


def _table_cases() -> Iterator[Case]:
    """Every element-wise row of the op table that renders its CUDA, for every type it is defined on."""
    for op, row in OPS.items():
        if row.kind is not Kind.ELEMENTWISE or not row.cuda:
            continue
        arity = 1 + max(int(place) for place in re.findall(r"\{(\d)\}", row.cuda))
        for dtype in DTYPES.get(op, FLOATS):
            operands = (DType.PRED, dtype, dtype) if op == "select" else (dtype,) * arity
            yield Case(op, operands, DType.PRED if op == "is-finite" else dtype, row.cuda)


def _typed_cases() -> Iterator[Case]:
    """Ops that are rendered by their attributes and types."""
    for dtype, direction, total in itertools.product(
        ALL, ("EQ", "NE", "LT", "LE", "GT", "GE"), (False, True)
    ):
        function = f"hlo_compare_{direction.lower()}{'_total' if total else ''}"
        yield Case(
            "compare",
            (dtype,) * 2,
            DType.PRED,
            function + "({0}, {1})",
            CompareAttrs(direction, total),
        )
    for to, source in itertools.product(ALL, ALL):
        yield Case("convert", (source,), to, f"hlo_convert<{CPP[to]}, {CPP[source]}>({{0}})")
        if to.bytes == source.bytes and DType.PRED not in (to, source):
            yield Case(
                "bitcast-convert", (source,), to, f"hlo_bitcast<{CPP[to]}, {CPP[source]}>({{0}})"
            )
    for exponent, mantissa in ((5, 10), (8, 7), (5, 2), (4, 3), (8, 23), (2, 20), (8, 0), (11, 52)):
        for dtype in (DType.F32, DType.F64, DType.F16, DType.BF16):
            function = f"hlo_reduce_precision<{exponent}, {mantissa}, {CPP[dtype]}>({{0}})"
            yield Case(
                "reduce-precision",
                (dtype,),
                dtype,
                function,
                ReducePrecisionAttrs(exponent, mantissa),
            )


CASES = {case.name: case for case in (*_table_cases(), *_typed_cases())}


def _narrow_cases() -> Iterator[Case]:
    """What is rendered otherwise where the result is rounded to 16 bits."""
    for op, row in OPS.items():
        if row.narrow_cuda:
            for dtype in (DType.F16, DType.BF16):
                operands = (dtype,) * (1 + ("{1}" in row.narrow_cuda))
                rendered = row.narrow_cuda.replace("{T}", CPP[dtype])
                yield Case(op, operands, dtype, rendered, variant="narrow")
    # An f32 function that only a conversion to 16 bits reads.
    for op in sorted(op for op, row in OPS.items() if row.is_approximate):
        rendered = OPS[op].narrow_cuda.replace("{T}", CPP[DType.F16])
        for dtype in (DType.F16, DType.BF16):
            yield Case(
                op, (DType.F32,), dtype, f"round_to<{CPP[dtype]}>({rendered})", variant="end"
            )


NARROW = {case.name: case for case in _narrow_cases()}

F32_PAIR = (DType.F32, DType.F32)
SHARED = Case("divide", F32_PAIR, DType.F32, "hlo_divide_shared({0}, {1})", variant="shared")
ROUNDED = {
    case.name: case
    for d in FLOATS
    if d is not DType.F64
    for case in (
        Case("convert", (DType.F32,), d, f"round_to<{CPP[d]}>({{0}})", variant="rounded"),
        Case(
            "convert",
            (DType.F32,),
            d,
            f"load_as<compute_of<{CPP[d]}>>(store_exact<{CPP[d]}>(round_to<{CPP[d]}>({{0}})))",
            variant="exact",
        ),
    )
}
OTHERS = {**NARROW, **ROUNDED, SHARED.name: SHARED}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All cases in one shared library, in as many translation units as there are processors to compile them."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("hlo_math")
    loops = [case.loop for case in (*CASES.values(), *OTHERS.values())]
    flags = "-std=c++17 -O1 -fPIC -ffp-contract=off -Wall -Wextra -Werror -Wno-bool-compare".split()
    include = f"-I{Path(__file__).parents[2] / 'astitch' / 'cuda'}"
    parts = 2
    running = []
    for part in range(parts):
        source = folder / f"part{part}.cpp"
        source.write_text(HOST + "".join(loops[part::parts]))
        running.append(
            subprocess.Popen(["g++", *flags, include, "-c", source, "-o", f"{source}.o"])
        )
    assert [process.wait() for process in running] == [0] * parts
    path = folder / "library.so"
    subprocess.run(
        ["g++", "-shared", *(f"{folder}/part{p}.cpp.o" for p in range(parts)), "-o", path],
        check=True,
    )
    return ctypes.CDLL(os.fspath(path))


def _run(library: ctypes.CDLL, case: Case, operands: list[np.ndarray]) -> np.ndarray:
    operands = [np.ascontiguousarray(x) for x in operands]
    result = np.empty(operands[0].shape, case.result.numpy)
    pointers = (ctypes.c_void_p * len(operands))(*[x.ctypes.data for x in operands])
    getattr(library, case.name)(
        pointers, ctypes.c_void_p(result.ctypes.data), ctypes.c_longlong(result.size)
    )
    return result


# ---- operands ----------------------------------------------------------------------------------------

_FLOAT_EDGES = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 0.49999997, 127.5, -128.5, 255.9, 256.0, 32767.5, 65519.9,
    65520.0, 464.0, 465.0, 61440.0, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 2.0**24 + 1, 1e-5, 1e-8,
    88.8, -104.0, 700.0, 1e38, 3.4028235e38, 1e300, 1.1754944e-38, 1e-40, 1e-45, 5e-324, 2.2250738585072014e-308,
    1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-11 + 2.0**-45, 1 - 2.0**-24, np.pi, np.inf, -np.inf, np.nan, -np.nan,
]  # fmt: skip


def _edges(dtype: DType) -> np.ndarray:
    """Values at which semantics change."""
    if dtype is DType.PRED:
        return np.array([False, True])
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        width = info.bits
        near = [
            0,
            1,
            2,
            3,
            5,
            7,
            width - 1,
            width,
            width + 1,
            63,
            info.max,
            info.max - 1,
            info.max // 2,
        ]
        if dtype.is_signed:
            near += [-1, -2, -3, -7, -width, info.min, info.min + 1]
        return np.array([v for v in near if info.min <= v <= info.max], dtype.numpy)
    with np.errstate(all="ignore"):
        return np.array(_FLOAT_EDGES).astype(dtype.numpy)


def _values(dtype: DType, seed: int, count: int = 4000) -> np.ndarray:
    """Edge values, random bit patterns (of 8- and 16-bit types: all of them) and ordinary numbers."""
    if dtype is DType.PRED:
        return np.resize(_edges(dtype), count)
    random = np.random.default_rng(seed)
    unsigned = np.dtype(f"u{dtype.bytes}")
    if dtype.bytes <= 2:
        bits = np.arange(256**dtype.bytes, dtype=unsigned)
    else:
        bits = random.integers(0, np.iinfo(unsigned).max, count, unsigned, endpoint=True)
    ordinary = random.normal(0, 4, count)
    ordinary = (
        ordinary.astype(dtype.numpy)
        if dtype.is_float
        else ordinary.astype(np.int8).astype(dtype.numpy)
    )
    return np.concatenate([_edges(dtype), bits.view(dtype.numpy), ordinary])


def _operands(case: Case) -> list[np.ndarray]:
    """Unary: many values.  Otherwise all pairs (triples) of edges, then random ones."""
    if len(case.operands) == 1:
        return [_values(case.operands[0], 0)]
    edges = [_edges(d) for d in case.operands]
    if len(edges) == 3:
        edges = [e[::2] if e.size > 16 else e for e in edges]
    grid = [g.ravel() for g in np.meshgrid(*edges, indexing="ij")]
    random = np.random.default_rng(7)
    free = [
        random.permutation(np.resize(_values(d, i + 1), 20_000))
        for i, d in enumerate(case.operands)
    ]
    operands = [np.concatenate(pair) for pair in zip(grid, free, strict=True)]
    if (
        case.op == "power" and case.result.is_integer
    ):  # beyond, only six bits count: tested by itself
        operands[1] = np.minimum(operands[1], operands[1].dtype.type(63))
    return operands


# ---- comparison --------------------------------------------------------------------------------------


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x


def _ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance in representable values of the dtype; NaN agrees with NaN, +0 with -0 is 0 apart."""
    integer = np.dtype(f"i{got.dtype.itemsize}")

    def ordered(x: np.ndarray) -> np.ndarray:
        bits = (
            np.ascontiguousarray(x)
            .view(integer)
            .astype(object if integer.itemsize == 8 else np.int64)
        )
        top = 1 << (8 * integer.itemsize - 1)
        return np.where(bits < 0, -(bits + top), bits)

    distance = np.abs(ordered(got) - ordered(want)).astype(np.float64)
    both_nan = np.isnan(_wide(got)) & np.isnan(_wide(want))
    one_nan = np.isnan(_wide(got)) != np.isnan(_wide(want))
    return np.where(both_nan, 0.0, np.where(one_nan, np.inf, distance))


def _assert_agree(
    case: Case,
    operands: list[np.ndarray],
    got: np.ndarray,
    want: np.ndarray,
    exact: bool = True,
) -> None:
    """exact: basic operations agree to the bit; else to ULP, as a GPU's division in f32 does."""
    assert got.dtype == want.dtype
    if not case.result.is_float:
        wrong = got != want
    elif case.op in INEXACT or not exact:
        wrong = _ulps(got, want) > ULP
        if case.op == "logistic":  # 1 + exp(-x) overflows where the result would be subnormal
            wrong &= ~((got == 0) & (np.abs(_wide(want)) < np.finfo(_wide(want).dtype).tiny))
    else:
        unsigned = np.dtype(f"u{got.dtype.itemsize}")
        same = got.view(unsigned) == want.view(unsigned)
        wrong = ~same & ~(np.isnan(_wide(got)) & np.isnan(_wide(want)))
    where = np.flatnonzero(wrong)
    shown = [
        f"  {case.op}({', '.join(str(x[k]) for x in operands)}) = {got[k]}, expected {want[k]}"
        for k in where[:8]
    ]
    assert not where.size, f"{case.name}: {where.size} of {got.size} wrong\n" + "\n".join(shown)


OPCODES = sorted({case.op for case in CASES.values()})


def _meaning(case: Case, operands: list[np.ndarray]) -> np.ndarray:
    names = tuple(f"x{i}" for i in range(len(operands)))
    node = Node("result", case.op, ArrayType(case.result, operands[0].shape), names, case.attrs)
    with np.errstate(all="ignore"):
        return np.asarray(eval_node(node, operands)[0])


@pytest.mark.parametrize("op", OPCODES)
def test_op_agrees_with_its_meaning(library: ctypes.CDLL, op: str) -> None:
    for case in (case for case in CASES.values() if case.op == op):
        operands = _operands(case)
        _assert_agree(case, operands, _run(library, case, operands), _meaning(case, operands))


def test_every_rendered_op_is_covered() -> None:
    rendered = {op for op, row in OPS.items() if row.kind is Kind.ELEMENTWISE and row.cuda}
    assert rendered - {case.op for case in CASES.values()} == {"complex"}


# ---- what XLA does where the meaning is not obvious --------------------------------------------------


def _call(library: ctypes.CDLL, name: str, *operands: object) -> list[object]:
    case = CASES[name]
    arrays = [np.array(x, d.numpy) for x, d in zip(operands, case.operands, strict=True)]
    result: list[object] = _run(library, case, arrays).tolist()
    return result


def test_integer_power_reads_six_bits_of_the_exponent(library: ctypes.CDLL) -> None:
    """As XLA's CPU and GPU backends do: 5^100 is 5^36, wrapped."""
    got = _call(
        library,
        "power_s32_s32_to_s32",
        [5, 2, -1, -1, 2, 0, 1, -3],
        [100, 31, 100, -3, -2, -1, -5, -1],
    )
    assert got == [1530182129, -(2**31), 1, -1, 0, 0, 1, 0]


def test_integer_division_never_faults(library: ctypes.CDLL) -> None:
    low = -(2**31)
    assert _call(library, "divide_s32_s32_to_s32", [7, low, -7, low], [0, -1, 2, 0]) == [
        -1,
        low,
        -3,
        -1,
    ]
    assert _call(library, "remainder_s32_s32_to_s32", [7, low, -7, low], [0, -1, 2, 0]) == [
        7,
        0,
        -1,
        low,
    ]
    assert _call(library, "divide_u8_u8_to_u8", [7], [0]) == [255]


def test_double_becomes_half_in_one_rounding_and_bfloat_in_two(library: ctypes.CDLL) -> None:
    assert _call(library, "convert_f64_to_f16", [1 + 2.0**-11 + 2.0**-45]) == [1 + 2.0**-10]
    case = CASES["convert_f64_to_bf16"]
    got = _run(library, case, [np.array([1 + 2.0**-8 + 2.0**-40])])
    assert got.astype(np.float64).tolist() == [1.0]


def _nearest_f8(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Round to nearest, ties to the even code, by search; what rounds beyond the largest value overflows."""
    codes = np.arange(128, dtype=np.uint8).view(dtype.numpy).astype(np.float64)
    sizes = codes[np.isfinite(codes)]
    sizes = np.append(sizes, 2 * sizes[-1] - sizes[-2])
    size = np.minimum(np.abs(x), sizes[-1])
    above = np.searchsorted(sizes, np.where(np.isnan(x), 0, size))
    below = np.maximum(above - 1, 0)
    up, down = sizes[above] - size, size - sizes[below]
    code = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    overflow = np.nan if dtype is DType.F8E4M3FN else np.inf
    result = np.where(code < sizes.size - 1, sizes[code], overflow)
    return np.copysign(np.where(np.isnan(x), np.nan, result), x).astype(dtype.numpy)


@pytest.mark.parametrize("source", [DType.F32, DType.F64, DType.F16, DType.BF16])
@pytest.mark.parametrize("to", [DType.F8E4M3FN, DType.F8E5M2])
def test_f8_rounds_to_even_at_every_boundary(
    library: ctypes.CDLL, to: DType, source: DType
) -> None:
    """All values of the type, the points between two, and their neighbours in the source type."""
    codes = np.arange(256, dtype=np.uint8).view(to.numpy).astype(np.float64)
    values = np.unique(codes[np.isfinite(codes)])
    middles = (values[1:] + values[:-1]) / 2
    beyond = values[-1] * np.array([1 + 2.0**-5, 1 + 2.0**-4, 1 + 2.0**-3, 1.5, 2.0, 1e9])
    points = np.concatenate([values, middles, beyond, -beyond, codes])
    with np.errstate(all="ignore"):
        exact = points.astype(source.numpy)
        bits = exact.view(np.dtype(f"i{source.bytes}"))
        near = [exact, (bits + 1).view(source.numpy), (bits - 1).view(source.numpy)]
        operand = np.concatenate(near)
        case = CASES[f"convert_{source.value}_to_{to.value}"]
        wanted = _nearest_f8(operand.astype(np.float64), to)
        _assert_agree(case, [operand], _run(library, case, [operand]), wanted)
        _assert_agree(case, [operand], _meaning(case, [operand]), wanted)
        if source is not DType.F64:  # ml_dtypes rounds f64 twice, XLA once
            _assert_agree(case, [operand], operand.astype(to.numpy), wanted)


# ---- other renderings of an op -------------------------------------------------------------------------


def _assert_narrow(
    case: Case, got: np.ndarray, operands: list[np.ndarray], near_ties: float
) -> None:
    """At most the neighbouring value, and that for a small share.  Subnormals of bf16 may be 0; quotients by them may
    be anything, since their reciprocal is no float."""
    wide = [x.astype(np.float64) for x in operands]
    node = Node("r", case.op, ArrayType(DType.F64, wide[0].shape), tuple("ab"[: len(wide)]))
    tiny = float(np.finfo(np.float32).tiny)
    with np.errstate(all="ignore"):
        exact = np.asarray(eval_node(node, wide)[0])
        distance = _ulps(got, exact.astype(case.result.numpy))
        distance[(np.abs(exact) < tiny) & (got == 0)] = 0
        if case.op == "divide":
            distance[np.abs(wide[1]) < tiny] = 0
            distance[np.abs(wide[1]) > 1 / tiny] = 0
    where = np.flatnonzero(distance > 1)
    shown = [f"{[x[k] for x in operands]}: {got[k]}, expected {exact[k]}" for k in where[:5]]
    assert not where.size, f"{case.name}: {where.size} wrong\n" + "\n".join(shown)
    assert np.mean(distance == 1) <= near_ties, case.name


@pytest.mark.parametrize("name", NARROW)
def test_narrow_functions_round_to_the_value_or_its_neighbour(
    library: ctypes.CDLL, name: str
) -> None:
    """Unary ones on all 65536 values of a 16-bit type."""
    case = NARROW[name]
    operands = _operands(case)
    _assert_narrow(case, _run(library, case, operands), operands, 0.01)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_functions_keep_signs_of_zero_and_limits(library: ctypes.CDLL, dtype: str) -> None:
    def call(op: str, values: list[float]) -> list[float]:
        case = NARROW[f"{op}_{dtype}_narrow_to_{dtype}"]
        got = _run(library, case, [np.array(values, case.operands[0].numpy)])
        return [float(v) for v in got]

    def same(a: list[float], b: list[float]) -> bool:
        return np.array(a).tobytes() == np.array(b).tobytes()

    limits = [-np.inf, -0.0, 0.0, np.inf]
    assert same(call("tanh", limits), [-1, -0.0, 0, 1])
    assert same(call("exponential", limits), [0, 1, 1, np.inf])
    assert same(call("logistic", limits), [0, 0.5, 0.5, 1])
    assert same(call("log", [0.0, 1.0, np.inf]), [-np.inf, 0, np.inf])
    for op in ("tanh", "exponential", "logistic", "log"):
        assert np.isnan(call(op, [np.nan])[0])


def _f32_quotients() -> list[np.ndarray]:
    edges = _edges(DType.F32)
    largest = np.float32([3.4e38, -3.4e38, 2.0**126, 2.0**127, 1e-38, 1e-44, -1e-45])
    grid = np.meshgrid(np.concatenate([edges, largest]), np.concatenate([edges, largest]))
    random = [_values(DType.F32, seed, 20_000) for seed in (1, 2)]
    size = min(len(r) for r in random)
    return [np.concatenate([g.ravel(), r[:size]]) for g, r in zip(grid, random, strict=True)]


def _assert_quotients(got: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        want = a / b
    wrong = _ulps(got, want) > 2
    shown = [f"{a[k]} / {b[k]} = {got[k]}, not {want[k]}" for k in np.flatnonzero(wrong)[:8]]
    assert not wrong.any(), "\n".join(shown)
    assert np.array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


def test_a_shared_divisor_is_within_two_units_over_the_whole_range(library: ctypes.CDLL) -> None:
    """Subnormal and huge divisors, zeros and infinities too."""
    a, b = _f32_quotients()
    _assert_quotients(_run(library, SHARED, [a, b]), a, b)


@pytest.mark.parametrize("name", ROUNDED)
def test_rounding_is_the_conversion(library: ctypes.CDLL, name: str) -> None:
    """round_to gives what the type holds; store_exact loses nothing of it, NaN stays NaN."""
    case = ROUNDED[name]
    x = _values(DType.F32, 5, 30_000)
    with np.errstate(all="ignore"):
        ties = (np.arange(1 << 16, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
        x = np.concatenate([x, ties])
    plain = CASES[f"convert_f32_to_{case.result.value}"]
    _assert_agree(case, [x], _run(library, case, [x]), _run(library, plain, [x]))


# ---- on the device -----------------------------------------------------------------------------------


def test_a_device_compiles_every_op() -> None:
    """The same loops through NVRTC, for one type of each kind."""
    sample = [case for case in CASES.values() if case.operands[-1] in (DType.BF16, DType.S16)]
    text = DEVICE + "".join(case.loop for case in sample)
    assert set(compile_cuda(text, "sm_90").kernels) == {case.name for case in sample}


@pytest.fixture(scope="session")
def kernels() -> dict[str, Any]:
    """All cases compiled for the GPU of this machine, as CuPy functions by name."""
    import cupy

    arch = f"sm_{cupy.cuda.Device(0).compute_capability}"
    by_op = [[case for case in CASES.values() if case.op == op] for op in OPCODES]
    parts = [cases[i : i + 20] for cases in by_op for i in range(0, len(cases), 20)]
    others = list(OTHERS.values())
    parts += [others[i : i + 20] for i in range(0, len(others), 20)]
    compiled = compile_many_cuda(
        Request(DEVICE + "".join(c.loop for c in part), arch) for part in parts
    )
    functions = {}
    for result in compiled:
        module = cupy.cuda.function.Module()
        module.load(result.cubin)
        functions |= {name: module.get_function(name) for name in result.kernels}
    return functions


def _run_on_device(kernels: dict[str, Any], case: Case, operands: list[np.ndarray]) -> np.ndarray:
    import cupy

    inputs = [cupy.asarray(np.ascontiguousarray(x).view(np.uint8)) for x in operands]
    size = operands[0].size
    output = cupy.empty(size * case.result.bytes, np.uint8)
    table = cupy.asarray(np.array([x.data.ptr for x in inputs], np.uint64))
    kernels[case.name]((64,), (256,), (table, output, np.int64(size)))
    result: np.ndarray = output.get().view(case.result.numpy)
    return result


@pytest.mark.gpu
@pytest.mark.parametrize("name", NARROW)
def test_narrow_functions_on_the_device(kernels: dict[str, Any], name: str) -> None:
    """The special function unit: tanh has 11 bits, the others 22."""
    case = NARROW[name]
    operands = _operands(case)
    near_ties = 0.3 if case.op == "tanh" else 0.02
    _assert_narrow(case, _run_on_device(kernels, case, operands), operands, near_ties)


@pytest.mark.gpu
def test_a_shared_divisor_on_the_device(kernels: dict[str, Any]) -> None:
    a, b = _f32_quotients()
    _assert_quotients(_run_on_device(kernels, SHARED, [a, b]), a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPCODES)
def test_op_on_the_device_agrees_with_its_meaning(kernels: dict[str, Any], op: str) -> None:
    for case in (case for case in CASES.values() if case.op == op):
        operands = _operands(case)
        if op == "bitcast-convert" or (op == "compare" and case.operands[0] is DType.F16):
            # The conversion instructions of f16 and bf16 keep NaN, but neither its sign nor its payload.
            operands = [np.where(x != x, np.ones_like(x), x) for x in operands]
        if op == "bitcast-convert" and case.result.is_float:
            continue
        got = _run_on_device(kernels, case, operands)
        _assert_agree(case, operands, got, _meaning(case, operands), exact=op != "divide")
