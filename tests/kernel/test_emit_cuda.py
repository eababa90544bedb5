"""Emission: numbers that read back to their bits, comments that cannot be left, one text for each statement."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import GraphBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.emit_cuda import MANY_SECTIONS, emit_cuda
from astitch.graph import index as ix
from astitch.graph.index import Linear, Symbol, of_symbol
from astitch.graph.ir import CompareAttrs, DType, Graph, Literal, NoAttrs, ReducePrecisionAttrs
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.access import Divisible, Within
from astitch.graph.stitchable import STITCHABLE_DTYPES
from astitch.kernel import kernel_ir as k
from astitch.kernel.cuda_text import (
    STORAGE,
    comment,
    compute_type,
    render,
    render_form,
    render_guards,
    render_number,
    render_value,
)
from astitch.kernel.reducers import make_reducer
from astitch.run.emulate import compile_host
from astitch.run.host_engine import HostEngine
from astitch.toolchain.nvrtc import compile_cuda

DTYPES = sorted(STORAGE, key=lambda d: d.value)


def test_every_stitchable_type_has_a_rendering() -> None:
    assert set(STORAGE) == STITCHABLE_DTYPES


@pytest.mark.parametrize("dtype", [DType.S8, DType.U32, DType.S32, DType.U64])
@pytest.mark.parametrize("count", [1, 2])
def test_a_shift_by_one_is_opaque_to_the_compiler(dtype: DType, count: int) -> None:
    """Of 32 and 64 bits: its time doubles with each of many that follow each other."""
    amount = k.Number(Literal.of(np.array(count, dtype.numpy)))
    operands = k.Name("x"), amount
    call = k.Call("shift-right-logical", dtype, operands, (dtype, dtype), NoAttrs())
    assert (render(call) == "hlo_halve(x)") == (count == 1 and dtype.bytes >= 4)


@pytest.mark.parametrize("dtype", [DType.U32, DType.S32, DType.U64])
def test_halvings_that_follow_each_other(dtype: DType) -> None:
    type_ = f"{dtype.value}[1000]"
    builder = GraphBuilder()
    halved = builder.parameter(type_)
    one = builder.broadcast(builder.constant(np.array(1, dtype.numpy)), (1000,), ())
    for _ in range(3):
        more = builder.op("add", type_, halved, one)
        halved = builder.op("shift-right-logical", type_, more, one)
    program = compile_graph(builder.build(halved), preset("host")).program
    numbers = np.arange(-500, 500).astype(dtype.numpy)
    (found,) = HostEngine(program, check=True).run([numbers])
    unsigned = numbers.view(f"u{dtype.bytes}")
    for _ in range(3):
        unsigned = (unsigned + unsigned.dtype.type(1)) >> unsigned.dtype.type(1)
    np.testing.assert_array_equal(found, unsigned.view(dtype.numpy))


def test_every_element_wise_op_has_a_rendering() -> None:
    named = {"compare", "convert", "bitcast-convert", "reduce-precision"}
    for name, op in OPS.items():
        if op.kind is Kind.ELEMENTWISE:
            assert bool(op.cuda) != (name in named), name


# ---- numbers


def random_numbers(dtype: DType) -> np.ndarray:
    """Bit patterns of all kinds, the borders of the type among them."""
    if dtype is DType.PRED:
        return np.array([False, True])
    rng = np.random.default_rng(7)
    patterns = rng.integers(0, 256, (200, dtype.bytes), np.uint8)
    numbers = [patterns.reshape(-1).view(dtype.numpy)]
    if dtype.is_float:
        info = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.1,
            1e-45,
            5e-324,
            6e-8,
            65504.0,
            3.4028235e38,
            1.7976931348623157e308,
        ]
        with np.errstate(over="ignore"):
            numbers.append(
                np.array([*info, np.inf, -np.inf, np.nan, 16777217.0, 1e16]).astype(dtype.numpy)
            )
    else:
        limits = np.iinfo(dtype.numpy)
        numbers.append(np.array([limits.min, limits.max, 0, 1, limits.min + 1], dtype.numpy))
    return np.concatenate(numbers)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_compiler_reads_every_number_back(tmp_path: Path) -> None:
    expected: list[str] = []
    lines: list[str] = []
    for dtype in DTYPES:
        if dtype.is_complex:  # which are made of two others
            continue
        held = DType.F32 if dtype.is_narrow_float else dtype
        with np.errstate(invalid="ignore"):
            held_numbers = random_numbers(dtype).astype(held.numpy)
        for number, value in zip(random_numbers(dtype), held_numbers, strict=True):
            text = render_number(Literal.of(number))
            lines.append(f"show<{compute_type(dtype)}>({text});")
            is_nan = bool(np.isnan(value)) if dtype.is_float else False
            expected.append("nan" if is_nan else value.tobytes()[::-1].hex())
    source = tmp_path / "numbers.cpp"
    source.write_text(
        "#include <cstdio>\n#include <cstring>\n"
        "template <class T, class B> T same_bits(B b) { T t; std::memcpy(&t, &b, sizeof t); return t; }\n"
        "template <class T> void show(T t) {\n"
        '  if (t != t) { std::puts("nan"); return; }\n'
        "  unsigned char b[sizeof t]; std::memcpy(b, &t, sizeof t);\n"
        '  for (int i = sizeof t; i--;) std::printf("%02x", b[i]);\n  std::puts("");\n}\n'
        f"int main() {{\n{chr(10).join(lines)}\n}}\n"
    )
    program = tmp_path / "numbers"
    flags = ["-O0", "-Wall", "-Werror", "-Wno-overflow"]
    subprocess.run(["g++", *flags, str(source), "-o", str(program)], check=True)
    shown = subprocess.run([str(program)], check=True, capture_output=True, text=True)
    assert shown.stdout.split() == expected


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_a_complex_number_has_both_parts(dtype: type[np.complexfloating]) -> None:
    number = np.array(complex(-0.0, np.inf), dtype)
    parts = [render_number(Literal.of(np.asarray(part))) for part in (number.real, number.imag)]
    assert render_number(Literal.of(number)) == f"c{number.nbytes * 8}{{{', '.join(parts)}}}"


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_round_trip(value: float) -> None:
    text = render_number(Literal.of(np.float32(value)))
    assert text.endswith("f")
    assert np.float32(text[:-1]).tobytes() == np.float32(value).tobytes()
    assert "." in text or "e" in text


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_round_trip(value: float) -> None:
    text = render_number(Literal.of(np.float64(value)))
    assert not text.endswith("f")
    assert np.float64(text).tobytes() == np.float64(value).tobytes()


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (-(2**31), DType.S32, "(-2147483647 - 1)"),
        (-(2**63), DType.S64, "(-9223372036854775807ll - 1)"),
        (2**64 - 1, DType.U64, "18446744073709551615ull"),
        (-128, DType.S8, "(signed char)((-127 - 1))"),
        (7, DType.S32, "7"),
        (True, DType.PRED, "true"),
        (1e20, DType.F32, "1e+20f"),
        (2.0, DType.BF16, "2.0f"),
        (-0.0, DType.F64, "-0.0"),
        (float("inf"), DType.F32, "same_bits<float>(0x7f800000u)"),
        (float("-inf"), DType.F64, "same_bits<double>(0xfff0000000000000ull)"),
    ],
)
def test_numbers(value: float, dtype: DType, text: str) -> None:
    assert render_number(Literal.of(np.asarray(value).astype(dtype.numpy))) == text


# ---- comments

NASTY = [
    'a "quoted" name',
    "*/ int x; /*",
    "a line\nint y;\n",
    "a continued line \\",
    "#error",
    "carriage\rreturn",
    "paragraph\u2029separator",
    "naïve ü \U0001f600",
    "nul\0byte",
    "tab\tand\x0bvertical\x0cfeeds",
    "x" * 1000,
    "",
]


@pytest.mark.parametrize("text", NASTY)
def test_a_comment_is_one_printable_line(text: str) -> None:
    safe = comment(text)
    assert safe.isascii() and (safe.isprintable() or not safe)
    assert "\\" not in safe
    assert len(safe) <= 160


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text())
def test_no_text_leaves_its_comment(text: str) -> None:
    safe = comment(text)
    assert len(f"// {safe}|".splitlines()) == 1
    assert "\\" not in safe


def nasty_graph() -> Graph:
    """Names and metadata of a hostile module, and a value that a barrier names.  (The importer is stricter.)"""
    g = GraphBuilder('main"; */ \\\n}')
    x = g.parameter("f32[16,64]", NASTY[1])
    total = x
    for number, text in enumerate(NASTY):
        name = text.replace("#", "") + str(number)
        total = g.op("add", "f32[16,64]", total, x, name=name, op_name=f"jit/{text}")
    rows = g.reduce(total, (1,), "add", name='sum */ \\\n"')
    y = g.parameter("f32[64,16]", "0 starts with a digit")
    return g.build(g.same("multiply", y, g.broadcast(rows, (64, 16), (1,)), name="out\nerror"))


def test_names_and_metadata_of_a_hostile_module_compile_and_run() -> None:
    graph = nasty_graph()
    program = compile_graph(graph, preset("host")).program
    (kernel,) = program.kernels
    assert kernel.source.isascii()
    assert "\\" not in kernel.source
    code = [line.partition("//")[0].strip() for line in kernel.source.splitlines()]
    assert {c for c in code if "#" in c} == {'#include "astitch.cuh"', "#pragma unroll"}
    x, y = np.ones((16, 64), np.float32), np.full((64, 16), 2, np.float32)
    (result,) = HostEngine(program, check=True).run([x, y])
    np.testing.assert_array_equal(result, np.full((64, 16), 2 * 64 * (len(NASTY) + 1)))
    assert list(compile_cuda(kernel.source, "sm_90").kernels) == [kernel.name]


def test_equal_graphs_give_equal_text() -> None:
    first, second = (compile_graph(nasty_graph(), preset("h100")).program for _ in range(2))
    assert [c.source for c in first.kernels] == [c.source for c in second.kernels]


# ---- expressions

I, J = Symbol("i", 10), Symbol("j", 4)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (ix.ZERO, "0"),
        (ix.add(ix.scale(of_symbol(I), 4), of_symbol(J), ix.constant(-3)), "i * 4 + j - 3"),
        (ix.divide(ix.offset(of_symbol(I), 1), 3), "((i + 1) / 3)"),
        (ix.divide(ix.offset(of_symbol(I), 1), 4), "((i + 1) >> 2)"),
        (ix.modulo(ix.offset(of_symbol(I), 1), 4), "((i + 1) & 3)"),
        (ix.scale(ix.modulo(of_symbol(I), 3), 2), "((i) % 3) * 2"),
        (ix.scale(of_symbol(I), -1), "i * -1"),
    ],
)
def test_forms(form: Linear, text: str) -> None:
    assert render_form(form) == text


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 9)), min_size=1, max_size=3),
    st.integers(-20, 20),
)  # fmt: skip
def test_a_printed_form_means_the_same(parts: list[tuple[int, int, int]], constant: int) -> None:
    form = ix.constant(constant)
    for a, b, divisor in parts:
        inner = ix.add(form, ix.scale(of_symbol(I), a), ix.scale(of_symbol(J), b))
        form = ix.add(ix.divide(inner, divisor), ix.modulo(inner, divisor + 1))
    text = render_form(form).replace("/", "//")
    for i in range(I.extent):
        for j in range(J.extent):
            assert eval(text, {}, {"i": i, "j": j}) == ix.evaluate(form, {I: i, J: j})


def call(op: str, dtype: DType, *operands: DType, attrs: object = None) -> k.Call:
    names = tuple(k.Name(n) for n, _ in zip("abc", operands, strict=False))
    return k.Call(op, dtype, names, operands, NoAttrs() if attrs is None else attrs)  # type: ignore[arg-type]


F32, BF16 = DType.F32, DType.BF16


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (call("add", F32, F32, F32), "hlo_add(a, b)"),
        (call("select", F32, DType.PRED, F32, F32), "(a ? b : c)"),
        (call("compare", DType.PRED, F32, F32, attrs=CompareAttrs("GE")), "hlo_compare_ge(a, b)"),
        (call("compare", DType.PRED, F32, F32, attrs=CompareAttrs("LT", True)), "hlo_compare_lt_total(a, b)"),
        (call("convert", DType.S8, BF16), "hlo_convert<signed char, bf16>(a)"),
        (call("bitcast-convert", DType.U32, F32), "hlo_bitcast<unsigned int, float>(a)"),
        (call("reduce-precision", F32, F32, attrs=ReducePrecisionAttrs(5, 10)), "hlo_reduce_precision<5, 10>(a)"),
        (k.Position(of_symbol(I), DType.U8), "hlo_convert<unsigned char>(i)"),
        (k.Lane("v", DType.F16), "load_as<float>(v.v[lane])"),
        (k.Lane("v", BF16), "bf16_lane(v, lane)"),
        (k.Element("kept", of_symbol(I), BF16, True), "load_as<float>(kept[i])"),
        (k.Element("kept", of_symbol(I), F32, False), "kept[i]"),
        (k.Field("state", of_symbol(I), 1), "state[i].f1"),
    ],
)  # fmt: skip
def test_expressions(expr: k.Expr, text: str) -> None:
    assert render(expr) == text


@pytest.mark.parametrize(
    ("dtype", "expr", "text"),
    [
        (F32, call("add", F32, F32, F32), "hlo_add(a, b)"),
        (BF16, call("add", BF16, BF16, BF16), "round_to<bf16>(hlo_add(a, b))"),
        (BF16, call("maximum", BF16, BF16, BF16), "hlo_maximum(a, b)"),
        (BF16, k.Name("a"), "a"),
        (DType.F16, k.Field("s", ix.ZERO, 0), "round_to<f16>(s[0].f0)"),
    ],
)
def test_narrow_values_are_rounded_once(dtype: DType, expr: k.Expr, text: str) -> None:
    assert render_value(dtype, expr) == text


@pytest.mark.parametrize(
    ("guards", "text"),
    [
        ((Within(of_symbol(I), 0, 5),), "i < 5"),
        ((Within(of_symbol(I), 3, 10),), "i >= 3"),
        ((Within(ix.offset(of_symbol(I), -2), 0, 4),), "i - 2 >= 0 && i - 2 < 4"),
        ((Within(of_symbol(I), 0, 5), Divisible(of_symbol(J), 2)), "i < 5 && (j) % 2 == 0"),
        ((Within(of_symbol(I), 0, 99),), "i < 99"),
    ],
)
def test_guards(guards: tuple[Within | Divisible, ...], text: str) -> None:
    assert render_guards(guards) == text


# ---- statements

AT = of_symbol(I)
VALUE = k.Name("value")
BODY = (k.Index("x", AT),)
FETCH = k.Fetch("places", AT, BF16, "p", AT, 8)
AREA = k.Area(6, 10, 6, 2)
STATEMENTS: list[tuple[k.Statement, str]] = [
    (k.Index("at", ix.offset(AT, 2)), "const int at = i + 2;"),
    (
        k.ChooseIndex("at", (((Within(AT, 0, 5),), ix.constant(3)), ((), AT))),
        "const int at = i < 5 ? 3 : i;",
    ),
    (
        k.Start("start", VALUE, DType.S32, 9),
        "const int start = (int)hlo_clamp((int)0, (int)value, (int)9);",
    ),
    (
        k.Start("start", VALUE, DType.U32, 9),
        "const int start = (int)hlo_clamp((unsigned int)0, (unsigned int)value, (unsigned int)9);",
    ),
    (
        k.Start("start", VALUE, DType.S32, 1 << 31),
        "const int start = (int)hlo_clamp((long long)0, (long long)value, (long long)2147483648);",
    ),
    (
        k.Start("start", VALUE, DType.U64, 9),
        "const int start = (int)hlo_clamp((unsigned long long)0, "
        "(unsigned long long)value, (unsigned long long)9);",
    ),
    (
        k.Value("v", BF16, call("exponential", BF16, BF16)),
        "const float v = round_to<bf16>(narrow_exp<bf16>(a));",
    ),
    (k.Load("v", BF16, "p", AT), "const float v = load_as<float>(p[i]);"),
    (
        k.LoadVector("v", BF16, "p", AT, 8),
        "const Vec<bf16, 8> v = *reinterpret_cast<const Vec<bf16, 8>*>(p + (i));",
    ),
    (k.VectorVariable("v", F32, 4), "Vec<float, 4> v;"),
    (k.VectorVariable("v", BF16, 4, True), "Lanes<bf16, 4> v;"),
    (k.StoreLane("v", BF16, VALUE), "v.v[lane] = store_exact<bf16>(value);"),
    (k.StoreLane("v", BF16, VALUE, True), "v.v[lane] = value;"),
    (k.StoreVector("p", AT, "v", F32, 4), "*reinterpret_cast<Vec<float, 4>*>(p + (i)) = v;"),
    (k.StoreVector("p", AT, "v", BF16, 4, True), "store_lanes(p + (i), v);"),
    (k.Store("p", AT, DType.PRED, VALUE), "p[i] = store_as<bool>(value);"),
    (k.Keep("kept", BF16, 8, True), "bf16 kept[8];"),
    (k.Keep("kept", BF16, 8, False), "float kept[8];"),
    (k.KeepSet("kept", AT, BF16, VALUE, True), "kept[i] = store_exact<bf16>(value);"),
    (k.KeepSet("kept", AT, BF16, VALUE, False), "kept[i] = value;"),
    (
        k.States("s", 0, 4),
        "Reduce0::State s[4];\n#pragma unroll\nfor (int i = 0; i < 4; ++i) s[i] = Reduce0::identity();",
    ),
    (k.Accumulate("s", AT, 0, (VALUE,)), "s[i] = Reduce0::combine(s[i], Reduce0::State{value});"),
    (
        k.AccumulateState("s", ix.ZERO, 0, ("p",), AT),
        "s[0] = Reduce0::combine(s[0], Reduce0::State{load_as<float>(p[i])});",
    ),
    (k.ReduceAcross((k.Part("s", 1, 0, ""),), 32, 1), "reduce_lanes<Reduce0, 32, 1>(s);"),
    (
        k.ReduceAcross((k.Part("s", 1, 0, "slot"), k.Part("t", 1, 1, "other")), 256, 1),
        "reduce_warps<Reduce0>(s, slot);\nreduce_warps<Reduce1>(t, other);\n__syncthreads();\n"
        "combine_warps<Reduce0, 256, false>(s, slot);\ncombine_warps<Reduce1, 256, false>(t, other);",
    ),
    (
        k.ReduceAcross((k.Part("s", 4, 0, "slot"),), 256, 1, True),
        "reduce_warps<Reduce0>(s, slot);\n__syncthreads();\ncombine_warps<Reduce0, 256, true>(s, slot);",
    ),
    (
        k.ReduceAcross((k.Part("s", 1, 0, "slot"), k.Part("t", 1, 0, "slot")), 256, 1),
        "reduce_warps_together<Reduce0>(slot, s, t);\n__syncthreads();\n"
        "combine_warps_together<Reduce0, 256>(slot, s, t);",
    ),
    (
        k.ReduceAcross((k.Part("s", 4, 0, "slot"),), 8, 32),
        "reduce_strided<Reduce0, 8, 32, 256, 4, false, false>(s, slot);",
    ),
    (
        k.ReduceAcross((k.Part("s", 4, 0, "slot"),), 8, 32, True),
        "reduce_strided<Reduce0, 8, 32, 256, 4, true, false>(s, slot);",
    ),
    (
        k.ReduceAcross((k.Part("s", 4, 0, "slot"),), 8, 32, alone=True),
        "reduce_strided<Reduce0, 8, 32, 256, 4, false, true>(s, slot);",
    ),
    (
        k.ReduceAcross((k.Part("s", 1, 0, "slot"), k.Part("t", 1, 1, "other")), 256, 1, alone=True),
        "reduce_warps<Reduce0>(s, slot);\nreduce_warps<Reduce1>(t, other);\n__syncthreads();\n"
        "if (thread < 32) { combine_warps<Reduce0, 256, false>(s, slot); "
        "combine_warps<Reduce1, 256, false>(t, other); }",
    ),
    (
        k.SortAcross("s", 4, 2, 0, 16, ""),
        "sort_row<Reduce0, 4, 2, 16, 4>(s, nullptr);",
    ),
    (
        k.SortAcross("s", 1, 4, 0, 256, "slot"),
        "sort_row<Reduce0, 1, 4, 256, 4>(s, slot);",
    ),
    (
        k.ScanAcross("s", 4, 2, 0, 16, 1, "", False),
        "scan_row<Reduce0, 4, 2, 16, false>(s, nullptr, no_carry());",
    ),
    (
        k.ScanAcross("s", 4, 2, 0, 256, 1, "slot", True, "c"),
        "scan_row<Reduce0, 4, 2, 256, true>(s, slot, c);",
    ),
    (
        k.ScanAcross("s", 4, 2, 0, 8, 32, "slot", False, "c", columns=True),
        "scan_columns<Reduce0, 4, 2, 8, 32, false>(s, slot, c);",
    ),
    (
        k.ScanAcross(
            "s", 4, 2, 0, 256, 1, "slot", False, "c", handover=k.Handover(AREA, AT, AT, "given")
        ),
        "scan_row_of_team<Reduce0, 4, 2, 256, false, 6>(s, slot, c, exchange + (i * 12 + 6), i, given, tag);",
    ),
    (
        k.ScanAcross(
            "s", 4, 2, 0, 8, 32, "slot", True, "c", True, k.Handover(AREA, AT, AT, "given")
        ),
        "scan_columns_of_team<Reduce0, 4, 2, 8, 32, true, 6>"
        "(s, slot, c, exchange + (i * 12 + 6), i, given, tag);",
    ),
    (
        k.FetchRound(True, "r", 5, False, BODY),
        "{\n  const int r = 0;\n  const int x = i;\n}\ncopy_commit();",
    ),
    (
        k.FetchRound(True, "r", 5, True, BODY),
        "{\n  const int r = 4;\n  const int x = i;\n}\ncopy_commit();",
    ),
    (
        k.FetchRound(False, "r", 5, False, BODY),
        "if (const int next = r + 1; next < 5) {\n  const int r = next;\n  const int x = i;\n}\ncopy_commit();",
    ),
    (
        k.FetchRound(False, "r", 5, True, BODY),
        "if (const int next = r - 1; next >= 0) {\n  const int r = next;\n  const int x = i;\n}\ncopy_commit();",
    ),
    (
        k.Rounds("r", 5, False, BODY),
        "#pragma unroll 1\nfor (int r = 0; r < 5; ++r) {\n  const int x = i;\n}",
    ),
    (
        k.Rounds("r", 5, True, BODY),
        "#pragma unroll 1\nfor (int r = 4; r >= 0; --r) {\n  const int x = i;\n}",
    ),
    (
        k.Finish("s", 2, 0, (VALUE,)),
        "#pragma unroll\nfor (int i = 0; i < 2; ++i) "
        "s[i] = Reduce0::combine(Reduce0::State{value}, s[i]);",
    ),
    (
        k.Loop("l", 8, True, BODY),
        "#pragma unroll\nfor (int l = 0; l < 8; ++l) {\n  const int x = i;\n}",
    ),
    (k.Loop("l", 1, True, BODY), "{\n  const int l = 0;\n  const int x = i;\n}"),
    (
        k.Loop("l", 99, False, BODY),
        "#pragma unroll 8\nfor (int l = 0; l < 99; ++l) {\n  const int x = i;\n}",
    ),
    (
        k.Loop("l", 99, False, BODY, AT),
        "#pragma unroll 8\nfor (int l = 0, l_end = i < 99 ? i : 99; l < l_end; ++l) {\n  const int x = i;\n}",
    ),
    (
        k.TaskLoop(7, False, BODY, 2),
        "int turn = 1;\nfor (int task = first; task < 7; task += gridDim.x) {\n"
        "  turn = turn == 1 ? 0 : turn + 1;\n  const int x = i;\n}",
    ),
    (
        k.TaskLoop(7, False, BODY, 5, 3),
        "int turn = 4;\nfor (int task = first; task < 7 + 3 * gridDim.x; task += gridDim.x) {\n"
        "  turn = turn == 4 ? 0 : turn + 1;\n  const int x = i;\n}",
    ),
    (
        k.Current(7, BODY),
        "if (task < 7) {\n  const int x = i;\n"
        "} else __syncthreads();  // parts what comes before from what comes after, as inside",
    ),
    (
        k.Previous(5, BODY, 3),
        "if (task - 3 * int(gridDim.x) >= first) {\n  const int last_task = task - 3 * int(gridDim.x);\n"
        "  const int last_turn = turn < 3 ? turn + 2 : turn - 3;\n  {\n    const int task = last_task;\n"
        "    const int turn = last_turn;\n    const int x = i;\n  }\n} else __syncthreads();",
    ),
    (
        k.Publish(AREA, AT, of_symbol(J), "s", ix.ZERO, 0),
        "Reduce0::publish(s[0], exchange + (i * 12 + j * 2 + 6), tag);",
    ),
    (
        k.Publish(replace(AREA, elements_inside=True), AT, of_symbol(J), "s", AT, 0),
        "Reduce0::publish(s[i], exchange + (i * 2 + j * 20 + 6), tag);",
    ),
    (
        k.Collect(AREA, AT, "s", AT, 0, 32, of_symbol(J)),
        "collect_parts<Reduce0, 32, 6, 2>(s[i], exchange + (i * 12 + 6), j, tag);",
    ),
    (
        k.Collect(replace(AREA, elements_inside=True), AT, "s", ix.ZERO, 0, 4, of_symbol(J)),
        "collect_parts<Reduce0, 4, 6, 20>(s[0], exchange + (i * 2 + 6), j, tag);",
    ),
    (
        k.Meeting(6, 0, 1, BODY, (k.Total("s", "t", 0, "slot"),)),
        "// parts of 6 blocks\nif (const int warp = thread / 32; warp < 1) {\n  const int to = warp;\n"
        "  const int x = i;\n  if (thread % 32 == 0) slot[to] = s[0];\n}\n__syncthreads();\n"
        "Reduce0::State t[1] = {slot[to]};",
    ),
    (
        k.Meeting(6, 2, 20, BODY, (k.Total("s", "t", 0, "slot"), k.Total("u", "v", 1, "other"))),
        "// parts of 6 blocks, 2 tasks ago\nfor (int warp = thread / 32; warp < 20; warp += 8) {\n"
        "  const int to = warp;\n  const int x = i;\n  if (thread % 32 == 0) slot[to] = s[0];\n"
        "  if (thread % 32 == 0) other[to] = u[0];\n}\n__syncthreads();\n"
        "Reduce0::State t[1] = {slot[to]};\nReduce1::State v[1] = {other[to]};",
    ),
    (k.AccumulateElement("s", AT, 0, VALUE), "add_to_(s[i], value);"),
    (k.Batch("b", F32, 4), "float b[4];"),
    (k.BatchSet("b", F32, VALUE), "b[lane] = value;"),
    (k.AccumulateBatch("s", AT, 0, "b"), "add_batch_to_(s[i], b);"),
    (k.PrefetchRegisters("a", BF16, 8, 2), "words_of<Vec<bf16, 8>>::type a[2];"),
    (k.KeepVector("a", AT, BF16, "v", 8), "a[i] = to_words(v);"),
    (k.KeepVector("places", AT, BF16, "v", 8), "shared_vec<bf16, 8>(places, (i) * 8) = v;"),
    (
        k.AccumulateProduct("s", AT, VALUE, VALUE),
        "s[i].f0 = hlo_multiply_add(value, value, s[i].f0);",
    ),
    (k.Advance("a", "b", 2), "#pragma unroll\nfor (int i = 0; i < 2; ++i) a[i] = b[i];"),
    (
        k.Prefetch(True, 7, BODY, 0),
        "if (const int next = first; next < 7) {\n  const int task = next;\n  const int x = i;\n}",
    ),
    (
        k.Prefetch(False, 7, BODY),
        "if (const int next = task + gridDim.x; next < 7) {\n  const int task = next;\n  const int x = i;\n}",
    ),
    (
        k.Prefetch(False, 7, (FETCH,), 1, 2),
        "if (const int next = task + gridDim.x; next < 7) {\n  const int task = next;\n"
        "  const int next_turn = turn < 1 ? turn + 1 : turn - 1;\n"
        "  copy_async(&shared_vec<bf16, 8>(places, (i) * 8), p + (i));\n}\ncopy_commit();",
    ),
    (
        k.Prefetch(False, 7, (FETCH,), 2, 5),
        "if (const int next = task + 2 * gridDim.x; next < 7) {\n  const int task = next;\n"
        "  const int next_turn = turn < 3 ? turn + 2 : turn - 3;\n"
        "  copy_async(&shared_vec<bf16, 8>(places, (i) * 8), p + (i));\n}\ncopy_commit();",
    ),
    (
        k.Prefetch(True, 7, (FETCH,), 0, 5),
        "if (const int next = first; next < 7) {\n  const int task = next;\n  const int next_turn = 0;\n"
        "  copy_async(&shared_vec<bf16, 8>(places, (i) * 8), p + (i));\n}\ncopy_commit();",
    ),
    (
        k.Prefetch(True, 7, (FETCH,), 1, 5),
        "if (const int next = first + gridDim.x; next < 7) {\n  const int task = next;\n"
        "  const int next_turn = 1;\n"
        "  copy_async(&shared_vec<bf16, 8>(places, (i) * 8), p + (i));\n}\ncopy_commit();",
    ),
    (
        k.Fetch("a", AT, BF16, "p", AT, 8),
        "a[i] = *reinterpret_cast<const words_of<Vec<bf16, 8>>::type*>(p + (i));",
    ),
    (k.CopyWait(0), "copy_wait<0>();"),
    (k.CopyWait(2), "copy_wait<2>();"),
    (k.CopyWait(None), "copy_commit();\ncopy_wait<0>();"),
    (k.TakeVector("v", BF16, "a", AT, 8), "const Vec<bf16, 8> v = from_words<Vec<bf16, 8>>(a[i]);"),
    (
        k.TakeVector("v", BF16, "places", AT, 8),
        "const Vec<bf16, 8> v = shared_vec<bf16, 8>(places, (i) * 8);",
    ),
    (k.If((Within(AT, 0, 5),), BODY), "if (i < 5) {\n  const int x = i;\n}"),
    (
        k.Switch((k.If((Within(AT, 0, 5),), BODY), k.If((Within(AT, 5, 8),), ()), k.If((), BODY))),
        "if (i < 5) {\n  const int x = i;\n} else if (i >= 5 && i < 8) {\n} else {\n  const int x = i;\n}",
    ),
    (
        k.Choose(
            "c",
            F32,
            (
                k.Branch((Within(AT, 0, 5),), BODY, VALUE),
                k.Branch((), (), k.Name("other")),
            ),
        ),
        "float c;\nif (i < 5) {\n  const int x = i;\n  c = value;\n} else {\n  c = other;\n}",
    ),
    (
        k.TaskLoop(7, True, BODY),
        "if (first < 7) {\n  const int task = first;\n  const int x = i;\n}",
    ),
    (
        k.TaskLoop(7, False, BODY),
        "for (int task = first; task < 7; task += gridDim.x) {\n  const int x = i;\n}",
    ),
    (k.Barrier("global", "why\n"), "ASTITCH_GLOBAL_BARRIER(barrier);  // why."),
    (k.Barrier("block", "why"), "__syncthreads();  // why"),
    (
        k.Section(3, "title", 0, 2, 4, 32, BODY),
        "{  // loop 3: title\n  const int thread = threadIdx.x;\n  const int tx = threadIdx.x % 32;\n"
        "  const int ty = threadIdx.x / 32 % 4;\n  const int to = threadIdx.x / 128;\n  const int first = blockIdx.x;\n"
        "  const int x = i;\n}",
    ),
    (k.Common(BODY), "const int x = i;"),
]


def small_kernel(*body: k.Statement) -> k.Kernel:
    g = GraphBuilder()
    total = g.reduce(g.parameter("f32[4]"), (0,), "add")
    reducer = make_reducer(g.build(total), total, 0)
    x, y = k.Parameter("p", F32, "p", False, True), k.Parameter("q", F32, "q", True, False)
    return k.Kernel(
        name="kernel", parameters=(x, y), scratch=(), reducers=(reducer,), slots=(), body=body, grid=2,
        block=256, shared_bytes=0, blocks_per_sm=0, global_barriers=0, block_barriers=0,
        wide_index=False, pointer_table=False, reads_bytes=0, writes_bytes=0, sources=(),
    )  # fmt: skip


@pytest.mark.parametrize(("statement", "text"), STATEMENTS, ids=[t[:40] for _, t in STATEMENTS])
def test_statements(statement: k.Statement, text: str) -> None:
    kernel = small_kernel(statement)
    places = k.Slot("places", BF16, None, 8, 16, (0, 0), (0, 0))
    if "places" in text:
        kernel = replace(kernel, slots=(places,))
    lines = emit_cuda(kernel).splitlines()
    start = lines.index("  assume_threads<256>();") + 1 + len(kernel.slots)
    assert "\n".join(line.removeprefix("  ") for line in lines[start:-1]) == text


def test_not_all_of_many_scalars_are_under_way_at_once() -> None:
    def count_parts(loads: int, at: Linear) -> int:
        body = tuple(k.Load(f"v_{i}", F32, "p", at) for i in range(loads))
        return emit_cuda(small_kernel(k.If((), body))).count("part_loads();")

    assert [count_parts(n, ix.constant(0)) for n in (32, 33, 64, 65)] == [0, 1, 1, 2]
    assert count_parts(100, AT) == 0  # of a nest, whose length is its own matter


def test_every_statement_is_printed_above() -> None:
    assert {type(s) for s, _ in STATEMENTS} == set(k.STATEMENTS)


def test_the_head_of_a_kernel() -> None:
    kernel = replace(
        small_kernel(), blocks_per_sm=2, global_barriers=1, shared_bytes=256,
        slots=(k.Slot("a", BF16, None, 8, 16, (0, 0), (0, 0), 128), k.Slot("b", None, 0, 4, 16, (0, 0), (0, 0), 0)),
        sources=tuple(f"jit/op{i}" for i in range(10)),
    )  # fmt: skip
    text = emit_cuda(kernel)
    assert text.startswith(
        '#include "astitch.cuh"\n// kernel: grid 2 x 256 threads, 256 B shared\n//   jit/op0\n'
    )
    assert "//   and 2 more\n" in text
    assert text.endswith(
        'extern "C" __global__ void __launch_bounds__(256, 2) kernel(\n'
        "    const float* __restrict__ p,\n"
        "    float* __restrict__ q,\n"
        "    unsigned int* barrier) {\n"
        "  assume_threads<256>();\n"
        "  ASTITCH_SHARED_ARENA(256);\n"
        "  ASTITCH_SHARED(bf16, a, 128, 8);\n"
        "  ASTITCH_SHARED(Reduce0::State, b, 0, 4);\n"
        "}\n"
    )


def test_only_the_last_step_over_a_row_is_tested_for_its_end() -> None:
    """A branch around each load would have the loads wait for each other."""
    g = GraphBuilder()
    x = g.parameter("f32[64,30000]")
    row = g.broadcast(g.reduce(x, (1,), "maximum"), (64, 30000), (0,))
    (kernel,) = compile_graph(
        g.build(g.same("exponential", g.same("subtract", x, row))), preset("h100")
    ).program.kernels
    steps = re.findall(r"for \(int l = 0; l < (\d+); \+\+l\)", kernel.source)
    assert {int(count) for count in steps} == {15}

    def count_branches(text: str) -> int:
        return compile_cuda(text, "sm_90").ptx.count(b"bra ")

    loose = kernel.source.replace(f"assume_threads<{kernel.block}>();", "")
    assert count_branches(loose) - count_branches(kernel.source) > 14, "of two loops of 15 steps"


def test_a_kernel_of_block_groups_counts_its_launches() -> None:
    text = emit_cuda(replace(small_kernel(), block_groups=1, tagged_words=12))
    head, _, body = text.rpartition("    unsigned int* barrier) {\n")
    assert body == (
        "  assume_threads<256>();\n"
        "  const unsigned tag = astitch_launch_tag(barrier);\n"
        "  unsigned long long* const exchange = astitch_tagged_words(barrier);\n"
        "  astitch_end_launch(barrier);\n"
        "}\n"
    )
    assert "static constexpr int payload = 1, words = 1;" in head
    assert "words" not in emit_cuda(small_kernel()), "what no block group exchanges needs no words"


def test_a_pointer_that_is_written_and_read_may_have_other_names() -> None:
    both = k.Parameter("q", F32, "q", True, True)
    kernel = replace(small_kernel(), parameters=(small_kernel().parameters[0], both))
    assert "    float* q) {" in emit_cuda(kernel)


def test_a_table_of_pointers() -> None:
    text = emit_cuda(replace(small_kernel(), pointer_table=True))
    assert "kernel(unsigned char* const* pointers) {\n" in text
    assert (
        "  const float* __restrict__ const p = reinterpret_cast<const float*>(pointers[0]);\n"
        in text
    )
    assert list(compile_cuda(text, "sm_90").kernels) == ["kernel"]


def test_a_reducer_of_several_fields() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[4,6]")
    best = g.arg_max(x, g.iota("s32[4,6]", 1), (1,))
    reducer = make_reducer(g.build(g.element(best, 0)), best, 0)
    text = emit_cuda(replace(small_kernel(), reducers=(reducer,)))
    assert "struct State { float f0; int f1; };" in text
    assert "return State{same_bits<float>(0xff800000u), 0};" in text
    assert "return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask)};" in text
    assert "hlo_compare_gt(a.f0, b.f0)" in text
    assert list(compile_cuda(text, "sm_90").kernels) == ["kernel"]


@pytest.mark.parametrize(
    ("value", "index", "payload", "words", "index_kind"),
    [
        ("f32", "s32", 2, 2, "int"), ("f64", "s64", 4, 4, "long long"),
        ("f32", "u64", 3, 2, "unsigned long long"),
    ],
)  # fmt: skip
def test_a_state_travels_as_words(
    value: str, index: str, payload: int, words: int, index_kind: str
) -> None:
    """Two for a field of 8 bytes, in the order of the fields; three beside a tag, in a pair of tagged words."""
    g = GraphBuilder()
    x = g.parameter(f"{value}[4,6]")
    best = g.arg_max(x, g.iota(f"{index}[4,6]", 1), (1,))
    reducer = make_reducer(g.build(g.element(best, 0)), best, 0)
    assert (reducer.payload, reducer.words) == (payload, words)
    text = emit_cuda(
        replace(small_kernel(), reducers=(reducer,), block_groups=1, tagged_words=words)
    )
    assert f"static constexpr int payload = {payload}, words = {words};" in text
    first, second = (text.index(f"words_of_field(next, s.f{i});") for i in range(2))
    assert first < second
    assert f"const {index_kind} f1 = field_of_words<{index_kind}>(words);" in text
    assert list(compile_cuda(text, "sm_90").kernels) == ["kernel"]


# ---- sections of blocks of their own

GRID = 23


def section_of(number: int, offset: int, tasks: int, *, once: bool = True) -> k.Section:
    """Puts its number where its blocks are."""
    first = of_symbol(Symbol("first", GRID))
    task = k.Store(
        "q", ix.add(first, Linear(offset)), F32, k.Number(Literal.of(np.float32(number)))
    )
    loop = k.TaskLoop(
        tasks, once, (k.If((Within(of_symbol(Symbol("thread", 32)), 0, 1),), (task,)),)
    )
    return k.Section(number, f"section {number}", offset, 1, 1, 32, (loop,))


def test_only_blocks_without_a_task_are_asked() -> None:
    def text(*body: k.Statement) -> str:
        return emit_cuda(replace(small_kernel(*body), grid=GRID, block=32))

    assert "if (first" not in text(section_of(0, 0, GRID))
    assert "if (first < 22) {" in text(section_of(0, 0, 22))
    two = text(section_of(0, 0, 9), section_of(1, 9, 14))
    assert "if (first < 9) {" in two and "if (first >= 0) {" in two
    assert "if (first >= 0 && first < 5) {" in text(section_of(1, 9, 5))
    assert "if (first < 20) {" in text(section_of(1, 9, 20)), "its blocks come round again"


@pytest.mark.parametrize("tasks", [(1,) * 23, (5, 1, 1, 9, 2, 3), (4, 4, 4), (10, 1, 1, 1, 1, 1)])
@pytest.mark.parametrize("barriers", [False, True])
def test_sections_are_found_by_halves(tasks: tuple[int, ...], barriers: bool) -> None:
    offsets = [sum(tasks[:n]) for n in range(len(tasks))]
    body: list[k.Statement] = []
    for number, (offset, count) in enumerate(zip(offsets, tasks, strict=True)):
        if barriers and number:
            body.append(k.Barrier("block", "shared memory is taken over"))
        body.append(section_of(number, offset, count))
    kernel = replace(small_kernel(*body), grid=GRID, block=32)
    text = emit_cuda(kernel)
    assert (text.count("} else {") > 0) == (len(tasks) >= MANY_SECTIONS)
    assert "__syncthreads" not in text.partition("__global__")[2], "no block has two of them"
    found = np.full(GRID, -1, np.float32)
    built = compile_host(text, check=True)
    built.launch("kernel", GRID, 32, [np.zeros(4, np.float32), found], shared_bytes=0)
    wanted = np.repeat(np.arange(len(tasks)), tasks)
    np.testing.assert_array_equal(found[: len(wanted)], wanted)
    assert (found[len(wanted) :] == -1).all()


def test_what_a_loop_needs_once_is_for_its_own_blocks() -> None:
    g = GraphBuilder()
    step = g.parameter("f32[]", "step")
    rate = g.same("power", step, step, name="rate")
    results = []
    for extent in (100_000, 30_000):
        x = g.parameter(f"f32[{extent}]")
        results.append(g.same("multiply", x, g.broadcast(rate, (extent,), ())))
    compilation = compile_graph(g.build(*results), preset("h100"))
    (kernel,) = compilation.program.kernels
    lines = [line.strip() for line in kernel.source.splitlines()]
    powers = [i for i, line in enumerate(lines) if "hlo_power(" in line]
    tests = [i for i, line in enumerate(lines) if line.startswith("if (first ")]
    assert len(powers) == len(tests) == 2
    assert all(test < power for test, power in zip(tests, powers, strict=True))


def test_sections_that_share_blocks_are_not_parted() -> None:
    """Because blocks come round again, take several tasks, or have more to do behind the loop."""
    apart = [section_of(n, n, 1) for n in range(8)]
    around = replace(apart[3], offset=GRID - 1, body=(replace(apart[3].body[-1], tasks=2),))
    several = section_of(3, 3, 2 * GRID, once=False)
    behind = replace(apart[3], body=(*apart[3].body, k.Barrier("block", "for the sum")))
    for other in (around, several, behind):
        text = emit_cuda(replace(small_kernel(*apart[:3], other, *apart[4:]), grid=GRID, block=32))
        own = text.index(f"loop {other.number}:")
        assert text[:own].count("{") - text[:own].count("}") == 2, "the kernel's and the section's"
        assert "if (blockIdx.x < 6) {" in text[own:], "those behind it are"


def test_a_barrier_between_sections_parts_them_from_those_before() -> None:
    """Blocks come round: what section 5 left in shared memory, section 21 of the same block takes over."""
    barrier = k.Barrier("block", "shared memory is taken over")
    body: list[k.Statement] = []
    for number in range(24):
        if number in (5, 21):
            body.append(barrier)
        body.append(section_of(number, number % 8, 1))
    kernel = replace(small_kernel(*body), grid=8, block=32)
    text = emit_cuda(kernel).partition("__global__")[2]
    assert text.count("__syncthreads") == 1
    meeting = text.index("__syncthreads")
    assert text.index("loop 15:") < meeting < text.index("loop 16:"), "before all of its round"
    depth = text[:meeting].count("{") - text[:meeting].count("}")
    assert depth == 1, "in the kernel's own body, where all threads come"
