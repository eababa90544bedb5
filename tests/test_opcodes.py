"""The meaning of every HLO opcode in common use: astitch beside XLA on the CPU, over drawn attributes and values.

Two levels: the reference interpreter on the graph as it is read and as the compiler rewrites it, and
(test names ending in `compiled`) the whole compiler with its emulated kernels.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jax import lax

from tests import opcode_draws as draws

from tests.opcode_cases import (
    CANCELLING, COMPLEX, EVERY, EXACT, F8, F16, F32, F64, BF16, FLOATS, FUNCTION, INTEGERS, PRED, ROUNDED, SIGNED, Case, Error,
    draw_bits, draw_edges, draw_numbers, find_faults,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _all_dtypes():
    with jax.enable_x64(True):
        yield


def batches(examples: int) -> settings:
    """A batch names the case that is at fault, with its attributes: there is nothing to shrink."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


def assert_no_faults(cases, *, emulate=False):
    faults = find_faults(cases, emulate=emulate)
    if faults:
        pytest.fail(f"{len(faults)} faults:\n" + "\n".join(faults), pytrace=False)


seeds = st.integers(0, 2**32 - 1)

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

FAMILIES = {  # family: (examples of 25 cases, of which compiled)
    draws.movements: (8, 3), draws.scatters: (5, 1), draws.indexed_updates: (3, 1), draws.reductions: (5, 3),
    draws.windows: (4, 1), draws.running: (4, 2), draws.poolings: (2, 1), draws.sorts: (3, 1), draws.products: (4, 1),
    draws.convolutions: (3, 1), draws.transforms: (2, 0),
}  # fmt: skip
