"""The meaning of every HLO opcode in common use: astitch beside XLA on the CPU, over drawn attributes and values.

Each case at three stages: the reference interpreter on the graph as it is read, the same on the graph as the compiler
rewrites it, and the compiled program with its emulated kernels (opcode_cases.find_faults).
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.numpy import linalg as np_linalg

from astitch.errors import DynamicShape, UnsupportedOp
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from tests import opcode_draws as draws
from tests.hlo_runner import lower, parse_hlo_text
from tests.opcode_cases import (
    CANCELLING,
    EVERY,
    EXACT,
    F8,
    F32,
    F64,
    FUNCTION,
    PRED,
    ROUNDED,
    Case,
    Error,
    draw_bits,
    draw_edges,
    draw_numbers,
    find_faults,
)


@pytest.fixture(autouse=True)
def _all_dtypes():
    with jax.enable_x64(True):
        yield


def assert_no_faults(cases):
    faults = find_faults(cases)
    if faults:
        pytest.fail(f"{len(faults)} faults:\n" + "\n".join(faults), pytrace=False)


# ---- element-wise --------------------------------------------------------------------------------

_ROUND = lax.RoundingMethod
UNARY = {
    "abs": (lax.abs, EXACT), "neg": (lax.neg, EXACT), "sign": (lax.sign, EXACT),
    "floor": (lax.floor, EXACT), "ceil": (lax.ceil, EXACT),
    "round_afz": (lambda x: lax.round(x, _ROUND.AWAY_FROM_ZERO), EXACT),
    "round_even": (lambda x: lax.round(x, _ROUND.TO_NEAREST_EVEN), EXACT),
    "is_finite": (lax.is_finite, EXACT), "not": (lax.bitwise_not, EXACT),
    "popcnt": (lax.population_count, EXACT), "clz": (lax.clz, EXACT),
    "square": (lax.square, ROUNDED), "sqrt": (lax.sqrt, Error(2)), "rsqrt": (lax.rsqrt, Error(4)),
    "cbrt": (lax.cbrt, FUNCTION), "exp": (lax.exp, FUNCTION), "exp2": (lax.exp2, FUNCTION),
    "expm1": (lax.expm1, FUNCTION), "log": (lax.log, FUNCTION), "log1p": (lax.log1p, FUNCTION),
    "logistic": (lax.logistic, FUNCTION), "tanh": (lax.tanh, FUNCTION), "tan": (lax.tan, FUNCTION),
    "sin": (lax.sin, FUNCTION), "cos": (lax.cos, FUNCTION), "sinh": (lax.sinh, FUNCTION),
    "cosh": (lax.cosh, FUNCTION), "asin": (lax.asin, FUNCTION), "acos": (lax.acos, FUNCTION),
    "atan": (lax.atan, FUNCTION), "asinh": (lax.asinh, FUNCTION), "acosh": (lax.acosh, FUNCTION),
    "atanh": (lax.atanh, FUNCTION), "erf": (lax.erf, FUNCTION), "erfc": (lax.erfc, FUNCTION),
    "erf_inv": (lax.erf_inv, FUNCTION), "lgamma": (lax.lgamma, CANCELLING),
    "digamma": (lax.digamma, CANCELLING),
    "bessel_i0e": (lax.bessel_i0e, FUNCTION), "bessel_i1e": (lax.bessel_i1e, FUNCTION),
    "integer_pow": (lambda x: lax.integer_pow(x, 3), Error(4)), "real": (lax.real, EXACT),
    "integer_pow_neg": (lambda x: lax.integer_pow(x, -2), Error(8)), "imag": (lax.imag, EXACT),
    "conj": (lax.conj, EXACT), "copy": (lambda x: x, EXACT),
    "optimization_barrier": (lax.optimization_barrier, EXACT),
}  # fmt: skip
BINARY = {
    "add": (lax.add, ROUNDED), "sub": (lax.sub, ROUNDED), "mul": (lax.mul, ROUNDED), "div": (lax.div, Error(2)),
    "rem": (lax.rem, EXACT), "max": (lax.max, EXACT), "min": (lax.min, EXACT), "pow": (lax.pow, FUNCTION),
    "atan2": (lax.atan2, FUNCTION), "and": (lax.bitwise_and, EXACT), "or": (lax.bitwise_or, EXACT),
    "xor": (lax.bitwise_xor, EXACT), "shl": (lax.shift_left, EXACT), "sra": (lax.shift_right_arithmetic, EXACT),
    "srl": (lax.shift_right_logical, EXACT), "nextafter": (lax.nextafter, EXACT), "complex": (lax.complex, EXACT),
    "eq": (lax.eq, EXACT), "ne": (lax.ne, EXACT), "lt": (lax.lt, EXACT), "le": (lax.le, EXACT), "gt": (lax.gt, EXACT),
    "ge": (lax.ge, EXACT), "eq_to": (lax.eq_to_p.bind, EXACT), "le_to": (lax.le_to_p.bind, EXACT),
    "lt_to": (lax.lt_to_p.bind, EXACT),
}  # fmt: skip

# What JAX or XLA make of other ops.
COMPOSED = frozenset("erfc erf_inv lgamma digamma bessel_i0e bessel_i1e nextafter".split())


def is_legal(function, *arguments):
    try:
        jax.eval_shape(function, *arguments)
        return True
    except TypeError:
        return False


def elementwise_cases(dtype, seed, count=200):
    """Every op that JAX allows on the dtype, each on values of its own."""
    rng = np.random.default_rng(seed)
    cases = []
    for table, arity in ((UNARY, 1), (BINARY, 2)):
        for name, (function, error) in table.items():
            arguments = tuple(draw_edges(rng, dtype, count) for _ in range(arity))
            if dtype.kind == "c" and error.ulps + (name in ("abs", "sign")):
                error = Error(64, floor=1.0)  # of magnitudes and angles, computed one by one
                if name == "atan2":  # zeros lie on its branch cuts
                    arguments = tuple(draw_numbers(rng, dtype, (count,)) for _ in arguments)
            if dtype == F64 and error.ulps >= FUNCTION.ulps:
                error = Error(300, floor=error.floor)  # XLA's own have some 2e-14
            if (dtype.kind == "c" and name == "eq_to") or (dtype in F8 and name in COMPOSED):
                continue  # JAX allows them, and XLA's CPU compiler has none of the one, not all of the others
            if is_legal(function, *arguments):
                cases.append(Case(f"{name} {dtype}", function, arguments, error))
    x, low, high = (draw_edges(rng, dtype, count) for _ in range(3))
    which = rng.integers(0, 2, count).astype(bool)
    if dtype.kind != "c":
        cases.append(Case(f"clamp {dtype}", lax.clamp, (low, x, high)))
        cases.append(Case(f"clamp {dtype} to scalars", lax.clamp, (low[0], x, high[0])))
    cases.append(Case(f"select {dtype}", lax.select, (which, x, low)))
    cases.append(
        Case(f"select {dtype} by a scalar", lambda p, x, y: lax.select(p, x, y), (which[0], x, low))
    )
    return cases


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_elementwise(dtype):
    assert_no_faults(elementwise_cases(dtype, EVERY.index(dtype)))


@pytest.mark.parametrize("source", EVERY, ids=str)
def test_convert_to_every_type(source):
    rng = np.random.default_rng(EVERY.index(source))
    assert_no_faults([
        Case(f"convert {source} to {target}", _convert_to(target), (draw_edges(rng, source, 200),))
        for target in EVERY
    ])  # fmt: skip


def _convert_to(target):
    if target.kind == "c":
        return lambda x: lax.convert_element_type(x, target)
    return lambda x: lax.convert_element_type(lax.real(x) if x.dtype.kind == "c" else x, target)


def _of_bytes(size):
    return [d for d in EVERY if d.itemsize == size and d.kind != "c" and d != PRED]


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_bitcast_convert_between_all_widths(size):
    rng = np.random.default_rng(size)
    cases = []
    for source in _of_bytes(size):
        for width in (1, 2, 4, 8):
            for target in _of_bytes(width):
                shape = (3, 2, width // size) if width > size else (3, 4)
                x = draw_bits(rng, source, shape)
                cases.append(Case(f"bitcast {source} to {target}", _bitcast_to(target), (x,)))
    assert_no_faults(cases)


def _bitcast_to(target):
    return lambda x: lax.bitcast_convert_type(x, target)


# ---- families with attributes ----------------------------------------------------------------------

FAMILIES = {  # family: (batches, cases in a batch)
    "movements": (10, 32),
    "scatters": (7, 25),
    "indexed_updates": (4, 25),
    "reductions": (7, 25),
    "windows": (5, 25),
    "running": (4, 14),
    "poolings": (3, 6),
    "sorts": (4, 25),
    "products": (5, 30),
    "convolutions": (4, 15),
    "transforms": (4, 25),
    "controls": (4, 20),
    "samples": (2, 15),
    "generators": (1, 20),
    "activations": (4, 25),
    "texts": (4, 25),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family):
    """A batch names the case that is at fault, with its attributes: there is nothing to shrink."""
    examples, size = FAMILIES[family]

    @settings(
        max_examples=examples + 1,  # the first is the same simple case many times
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(getattr(draws, family)(), min_size=size, max_size=size))
    def check(cases):
        assert_no_faults(list({case.name: case for case in cases}.values()))

    check()


@pytest.mark.parametrize("part", range(5))
def test_array_ops(part):
    assert_no_faults(draws.make_array_ops(seed=part)[part::5])


# ---- what is refused -----------------------------------------------------------------------------


def refuse(body, error):
    """The message of the error with which a module of one computation is refused."""
    regions = "add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }\n"
    with pytest.raises(error) as caught:
        import_hlo(
            parse_hlo_text(f"HloModule m\n{regions}ENTRY e {{ x = f32[3] parameter(0)\n {body} }}")
        )
    return str(caught.value)


REFUSED = {  # opcode: (instructions on x = f32[3], the one that is named)
    "infeed": (
        "t = token[] after-all()\n i = (f32[3], token[]) infeed(t)\n ROOT r = f32[3] add(x, x)",
        "i",
    ),
    "outfeed": (
        "t = token[] after-all()\n o = token[] outfeed(x, t)\n ROOT r = f32[3] add(x, x)",
        "o",
    ),
    "send": (
        "t = token[] after-all()\n s = (f32[3], u32[], token[]) send(x, t), channel_id=1\n"
        "d = token[] send-done(s), channel_id=1\n ROOT r = f32[3] add(x, x)",
        "s",
    ),
    "all-reduce": ("ROOT r = f32[3] all-reduce(x), replica_groups={}, to_apply=add", "r"),
    "all-gather": ("ROOT r = f32[3] all-gather(x), replica_groups={}, dimensions={0}", "r"),
    "collective-permute": (
        "ROOT r = f32[3] collective-permute(x), source_target_pairs={{0,1}}",
        "r",
    ),
    "partition-id": ("ROOT r = u32[] partition-id()", "r"),
}


@pytest.mark.parametrize("opcode", REFUSED)
def test_an_opcode_that_speaks_to_others_is_refused_by_name(opcode):
    body, name = REFUSED[opcode]
    assert refuse(body, UnsupportedOp) == (
        f"HLO computation e, instruction %{name}: no entry for '{opcode}' in astitch/graph/ops\n"
        "  rewrite the program without it, or run it through XLA"
    )


@pytest.mark.parametrize(
    "body",
    [
        "n = s32[] parameter(1)\n ROOT r = f32[<=3] set-dimension-size(x, n), dimensions={0}",
        "n = s32[] parameter(1)\n ROOT r = f32[<=3] dynamic-reshape(x, n)",
        "r = f32[<=3] parameter(1)\n ROOT s = f32[<=3] negate(r)",
        "r = f32[<=3] parameter(1)\n ROOT s = s32[] get-dimension-size(r), dimensions={0}",
    ],
)
def test_a_dynamic_shape_is_refused(body):
    message = refuse(body, DynamicShape)
    assert message.startswith("HLO computation e, instruction %r: ")
    assert message.endswith("compile for a fixed shape")


def test_tokens_without_an_effect_are_nothing():
    text = (
        "HloModule m\nENTRY e { x = f32[3] parameter(0)\n t = token[] after-all()\n"
        " y = f32[3] add-dependency(x, t)\n ROOT r = f32[3] negate(y) }"
    )
    assert [node.op for node in import_hlo(parse_hlo_text(text))] == ["parameter", "negate"]


def test_a_custom_call_with_a_side_effect_is_refused():
    assert refuse(
        'c = f32[3] custom-call(x), custom_call_target="log", custom_call_has_side_effect=true\n'
        " ROOT r = f32[3] add(x, x)",
        UnsupportedOp,
    ) == (
        "HLO computation e, instruction %c.1: custom-call to 'log' has a side effect, which astitch might leave out "
        "or repeat\n  take it out of the function, or run the function through XLA"
    )


def _print_first(x):
    jax.debug.print("{}", x[0])
    return x * 2


def _call_python(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize("function", [_print_first, _call_python])
def test_a_call_of_a_python_function_is_refused(function):
    """Its module holds the address of the function, which means nothing to whoever reads the module."""
    with pytest.raises(
        UnsupportedOp, match="calls a Python function .* which is not in the module"
    ):
        import_hlo(lower(function, np.ones(3, F32)))


@pytest.mark.parametrize(
    "function, target",
    [
        (np_linalg.qr, "lapack_sgeqrf_ffi"), (np_linalg.svd, "lapack_sgesdd_ffi"),
        (np_linalg.eigh, "lapack_ssyevd_ffi"), (np_linalg.eig, "lapack_sgeev_ffi"),
    ],
)  # fmt: skip
def test_the_reference_names_the_library_function_that_it_does_not_have(function, target):
    x = np.eye(3, dtype=F32)
    graph = import_hlo(lower(function, x))
    with pytest.raises(
        UnsupportedOp,
        match=f"custom-call to '{target}': what it computes is not in the HLO; run this",
    ):
        run_graph(graph, [x])


def test_a_complex_reshape_of_a_parameter():
    x = np.arange(6, dtype=np.complex64)
    assert_no_faults([Case("reshape", lambda x: lax.reshape(x, (3, 2)), (x,))])
