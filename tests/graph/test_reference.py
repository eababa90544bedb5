"""The reference interpreter against XLA on the CPU, op by op: random and edge values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax

from astitch.errors import ArgumentMismatch, IllegalProduct, UnsupportedOp
from astitch.graph.check import check_graph
from astitch.graph.ir import Node
from astitch.graph.reference import apply_region, eval_node, run_graph
from astitch.hlo_import import import_hlo
from tests.graphs import GraphBuilder, parse_type
from tests.hlo_runner import lower, parse_hlo_text, run_xla

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), BF16]
INTEGERS = [np.dtype(t) for t in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]
ONE_ROUNDING = {np.dtype(np.float16): 2**-10, BF16: 2**-7}


@pytest.fixture(autouse=True)
def _all_dtypes():
    with jax.enable_x64(True):
        yield


def assert_same(
    got: Sequence[np.ndarray], want: Sequence[np.ndarray], tolerance: float = 0.0
) -> None:
    """Same dtype, shape, NaN, infinities and signs of zero; values within `tolerance`."""
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        if g.dtype.kind in "iub":
            np.testing.assert_array_equal(g, w)
            continue
        allowed = max(tolerance, ONE_ROUNDING.get(g.dtype, 0.0) if tolerance else 0.0)
        wide = np.complex128 if g.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(g.astype(wide), w.astype(wide), rtol=allowed, atol=allowed)
        if not tolerance and g.dtype.kind != "c":
            zero = w == 0
            np.testing.assert_array_equal(np.signbit(g)[zero], np.signbit(w)[zero])


def compare(fn: Callable[..., Any], *arguments: np.ndarray, tolerance: float = 0.0) -> None:
    """Runs a JAX function through the importer and the interpreter, and through XLA."""
    compare_hlo(lower(fn, *arguments, keep_unused=True), arguments, tolerance)


def compare_hlo(proto: bytes, arguments: Sequence[np.ndarray], tolerance: float = 0.0) -> None:
    graph = import_hlo(proto)
    check_graph(graph)
    assert_same(run_graph(graph, arguments), run_xla(proto, arguments), tolerance)


def random_floats(seed: int, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def edge_floats(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of special and ordinary values."""
    values = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        3.25,
        100.0,
        -7.75,
        np.inf,
        -np.inf,
        np.nan,
    ]
    x, y = np.meshgrid(values, values)
    return x.ravel().astype(dtype), y.ravel().astype(dtype)


def edge_integers(dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    info = np.iinfo(dtype)
    values = np.array(
        [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 5, 7, 31, 63, 100], dtype
    )
    values = np.concatenate([values, ~values])
    x, y = np.meshgrid(values, values)
    return x.ravel(), y.ravel()


# ---- element-wise --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_arithmetic(dtype):
    x, y = edge_floats(dtype)

    def program(x, y):
        return (
            x + y,
            x - y,
            x * y,
            lax.div(x, y),
            lax.rem(x, y),
            lax.neg(x),
            lax.abs(x),
            lax.sign(x),
            lax.floor(x),
            lax.ceil(x),
            lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
            lax.round(x),
            lax.is_finite(x),
            lax.eq(x, y),
            lax.ne(x, y),
            lax.lt(x, y),
            lax.le(x, y),
            lax.gt(x, y),
            lax.ge(x, y),
            lax.select(lax.lt(x, y), x, y),
        )

    compare(program, x, y)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_extrema_and_clamp_propagate_nan(dtype):
    x, y = edge_floats(dtype)
    low, high = dtype.type(-1), dtype.type(2)
    compare(lambda x, y: (lax.max(x, y), lax.min(x, y)), x, y, tolerance=1e-30)
    compare(lambda x: lax.clamp(low, x, high), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions(dtype):
    x, y = edge_floats(dtype)
    x = np.concatenate([x, random_floats(1, (500,), dtype)])
    y = np.concatenate([y, random_floats(2, (500,), dtype)])

    def program(x, y):
        one = [
            lax.exp,
            lax.expm1,
            lax.log,
            lax.log1p,
            lax.logistic,
            lax.tanh,
            lax.tan,
            lax.sin,
            lax.cos,
            lax.sqrt,
            lax.rsqrt,
            lax.cbrt,
            lax.erf,
            lax.acos,
            lax.acosh,
            lax.asin,
            lax.asinh,
            lax.atan,
            lax.atanh,
            lax.cosh,
            lax.sinh,
        ]
        return *(f(x) for f in one), lax.pow(x, y), lax.atan2(x, y), lax.erf_inv(x), lax.lgamma(x)

    compare(program, x, y, tolerance={8: 1e-12, 4: 1e-5, 2: 1e-2}[dtype.itemsize])


def test_erf_is_accurate_to_double_precision():
    import math

    x = np.linspace(-7, 7, 5001)
    node = Node("y", "erf", parse_type("f64[5001]"), ("x",))
    (got,) = eval_node(node, [x])
    np.testing.assert_allclose(got, [math.erf(v) for v in x], rtol=4e-16, atol=0)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_arithmetic(dtype):
    x, y = edge_integers(dtype)

    def program(x, y):
        return (
            x + y,
            x - y,
            x * y,
            lax.div(x, y),
            lax.rem(x, y),
            lax.neg(x),
            lax.sign(x),
            lax.max(x, y),
            lax.abs(x) if dtype.kind == "i" else x,
            lax.min(x, y),
            x & y,
            x | y,
            x ^ y,
            ~x,
            lax.shift_left(x, y),
            lax.shift_right_logical(x, y),
            lax.shift_right_arithmetic(x, y),
            lax.population_count(x),
            lax.clz(x),
            lax.lt(x, y),
            lax.ge(x, y),
            lax.clamp(x, y, x),
        )

    compare(program, x, y)


@pytest.mark.parametrize("dtype", [np.dtype("i4"), np.dtype("u1"), np.dtype("i8")], ids=str)
def test_integer_power(dtype):
    x, y = edge_integers(dtype)
    y = np.where(y > 63, 63, y).astype(dtype)
    shape = f"{'s' if dtype.kind == 'i' else 'u'}{dtype.itemsize * 8}[{x.size}]"
    proto = parse_hlo_text(
        f"HloModule p\nENTRY e {{ x = {shape} parameter(0)\n y = {shape} parameter(1)\n"
        f" ROOT z = {shape} power(x, y) }}"
    )
    compare_hlo(proto, [x, y])


def test_booleans():
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    compare(
        lambda x, y: (
            x & y,
            x | y,
            x ^ y,
            ~x,
            lax.max(x, y),
            lax.min(x, y),
            lax.eq(x, y),
            lax.lt(x, y),
        ),
        x,
        y,
    )


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, np.dtype(bool)], ids=str)
def test_conversions(source):
    if source.kind in "iu":
        values = edge_integers(source)[0]
    elif source.kind == "b":
        values = np.array([False, True])
    else:
        wide = [
            0.0,
            -0.0,
            0.5,
            -0.5,
            0.999,
            127.5,
            128.0,
            -128.9,
            -129.0,
            255.9,
            300.0,
            -1.5,
            3e4,
            7e4,
            -7e4,
            2.0**31,
        ]
        wide += [
            -(2.0**31),
            2.0**32,
            2.0**63,
            -(2.0**63),
            2.0**64,
            1e30,
            np.inf,
            -np.inf,
            np.nan,
            1.0009765,
            65519.9,
        ]
        with np.errstate(over="ignore"):
            values = np.array(wide).astype(source)
    targets = [*FLOATS, *INTEGERS, np.dtype(bool)]
    compare(lambda x: tuple(lax.convert_element_type(x, t) for t in targets), values)


def test_conversions_to_and_from_f8():
    x = np.concatenate([edge_floats(np.dtype(np.float32))[0], random_floats(1, (300,)) * 100])
    f8 = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
    compare(lambda x: tuple(lax.convert_element_type(x.astype(t), jnp.float32) for t in f8), x)


def test_bitcasts():
    x = random_floats(3, (4, 6))
    compare(
        lambda x: (
            lax.bitcast_convert_type(x, jnp.int32),
            lax.bitcast_convert_type(x, jnp.uint8),
            lax.bitcast_convert_type(lax.bitcast_convert_type(x, jnp.uint8), jnp.float32),
            lax.bitcast_convert_type(x.reshape(4, 3, 2), jnp.uint64),
            lax.bitcast_convert_type(x[0, 0], jnp.int16),
        ),
        x,
    )


@pytest.mark.parametrize(
    "bits", [(8, 7), (5, 10), (4, 3), (8, 23), (2, 0), (5, 23), (8, 1)], ids=str
)
def test_reduce_precision(bits):
    x = np.concatenate(
        [
            edge_floats(np.dtype(np.float32))[0],
            random_floats(4, (2000,)) * 10.0 ** np.arange(-10, 10).repeat(100),
        ]
    )
    compare(lambda x: lax.reduce_precision(x, *bits), x.astype(np.float32))


def test_complex_numbers():
    x = (random_floats(5, (50,)) + 1j * random_floats(6, (50,))).astype(np.complex64)
    y = x[::-1].copy()
    compare(
        lambda x, y: (
            x + y,
            x * y,
            x / y,
            lax.exp(x),
            lax.log(x),
            lax.sqrt(x),
            lax.tanh(x),
            lax.sin(x),
            jnp.abs(x),
            jnp.sign(x),
            x.real,
            x.imag,
            jnp.conj(x),
            lax.complex(x.real, y.imag),
            lax.eq(x, y),
            lax.pow(x, y),
        ),
        x,
        y,
        tolerance=2e-5,
    )


def test_total_order_comparison():
    x, y = edge_floats(np.dtype(np.float32))
    directions = ("LT", "LE", "EQ", "GE")
    lines = "\n".join(
        f" c{d} = pred[{x.size}] compare(x, y), direction={d}, type=TOTALORDER" for d in directions
    )
    proto = parse_hlo_text(
        f"HloModule t\nENTRY e {{ x = f32[{x.size}] parameter(0)\n y = f32[{x.size}] parameter(1)\n"
        f"{lines}\n ROOT r = ({', '.join([f'pred[{x.size}]'] * 4)}) "
        f"tuple({', '.join(f'c{d}' for d in directions)}) }}"
    )
    compare_hlo(proto, [x, y])


# ---- index maps ----------------------------------------------------------------------------------


def test_shapes():
    x = random_floats(7, (3, 4, 5))
    compare(
        lambda x: (
            x.reshape(12, 5),
            x.transpose(2, 0, 1),
            lax.broadcast_in_dim(x, (3, 2, 4, 5), (0, 2, 3)),
            x[1:, ::2, 1:4],
            lax.rev(x, (0, 2)),
            lax.concatenate([x, x[:, :2]], 1),
            lax.iota(jnp.int8, 7),
            lax.broadcasted_iota(jnp.float32, (3, 4), 1),
            jnp.float32(2) + x[0, 0, 0],
            lax.optimization_barrier((x, x)),
        ),
        x,
    )


@pytest.mark.parametrize(
    "config",
    [
        ((1, 2, 0), (0, 1, 2)),
        ((-1, -2, 0), (-1, 1, 0)),
        ((2, -1, 1), (0, 2, 3)),
        ((-3, 0, 0), (-3, 0, 5)),
    ],
    ids=str,
)
def test_pad(config):
    x = random_floats(8, (4, 5))
    compare(lambda x: lax.pad(x, np.float32(9), config), x)


def test_dynamic_slices_clamp_their_start():
    x = random_floats(9, (6, 7))
    for start in (-5, 0, 3, 100):
        at = np.int32(start)
        compare(
            lambda x, at: (
                lax.dynamic_slice(x, (at, at), (2, 3)),
                lax.dynamic_update_slice(x, x[:3, :2], (at, at)),
            ),
            x,
            at,
        )


def test_empty_arrays_and_scalars():
    empty = np.zeros((0, 3), np.float32)
    compare(
        lambda e, s: (
            e + 1,
            e.sum(0),
            e.sum(1),
            e.T,
            lax.dot(e, np.ones((3, 2), np.float32)),
            jnp.sort(e, 0),
            s * 2,
            lax.reduce_max(e, (0,)),
            jnp.concatenate([e, np.ones((1, 3), np.float32)]),
            s.reshape(1, 1),
            e[:, 0],
            lax.dot(e.T, e),
            jnp.take(np.ones((4, 2), np.float32), np.zeros((0,), np.int32), 0),
        ),
        empty,
        np.float32(3),
    )


# ---- gather, scatter -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["clip", "fill", "promise_in_bounds"])
def test_take(mode):
    x = random_floats(10, (7, 4))
    indices = (
        np.array([[0, 6], [3, 3]]) if mode == "promise_in_bounds" else np.array([[-9, 6], [3, 100]])
    )
    compare(lambda x, i: x.at[i, 1].get(mode=mode), x, indices)


def test_general_gather():
    x = random_floats(11, (5, 6, 7))
    indices = np.array([[0, 1], [4, 9], [-3, 2]], np.int32)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(0, 2), collapsed_slice_dims=(1,), start_index_map=(2, 0)
    )
    compare(
        lambda x, i: lax.gather(x, i, numbers, (2, 1, 3), mode=lax.GatherScatterMode.CLIP),
        x,
        indices,
    )


def test_batched_gather_and_scatter():
    x = random_floats(12, (3, 5, 4))
    indices = np.random.default_rng(0).integers(0, 5, (3, 2, 4)).astype(np.int32)
    updates = random_floats(13, (3, 2, 4))

    def program(x, i, u):
        taken = jnp.take_along_axis(x, i, 1)
        return taken, jax.vmap(lambda a, b, c: a.at[b[:, 0]].add(c))(x, i, u)

    compare(program, x, indices, updates, tolerance=1e-6)


@pytest.mark.parametrize("method", ["set", "add", "multiply", "min", "max"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BF16, np.dtype(np.int32)], ids=str)
def test_scatter(method, dtype):
    x = random_floats(14, (6, 4), np.float32).astype(dtype)
    updates = random_floats(15, (5, 4), np.float32).astype(dtype)
    indices = np.array([0, 3, 3, 77, -8], np.int32)
    compare(lambda x, i, u: getattr(x.at[i], method)(u), x, indices, updates, tolerance=1e-6)


def test_scatter_of_windows_drops_those_that_leave_the_array():
    x = np.zeros((5, 6), np.float32)
    updates = random_floats(16, (3, 2, 3))
    indices = np.array([[0, 0], [1, 2], [4, 0]], np.int32)  # the last window would end at row 6
    numbers = lax.ScatterDimensionNumbers((1, 2), (), (0, 1))
    compare(lambda x, i, u: lax.scatter_add(x, i, u, numbers), x, indices, updates, tolerance=1e-6)


def test_scatter_with_a_general_body():
    text = """HloModule s
body { a = f32[] parameter(0)
 b = f32[] parameter(1)
 two = f32[] constant(2)
 c = f32[] multiply(a, two)
 ROOT d = f32[] add(c, b) }
ENTRY e { x = f32[4] parameter(0)
 i = s32[3] parameter(1)
 u = f32[3] parameter(2)
 ROOT r = f32[4] scatter(x, i, u), update_window_dims={},
   inserted_window_dims={0}, scatter_dims_to_operand_dims={0},
   index_vector_dim=1, to_apply=body }"""
    x, u = random_floats(17, (4,)), random_floats(18, (3,))
    compare_hlo(parse_hlo_text(text), [x, np.array([1, 1, 3], np.int32), u])


# ---- reductions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype("i4"), np.dtype("u1")], ids=str)
def test_reductions(dtype):
    x = (random_floats(19, (5, 6, 7), np.float32) * 3).astype(dtype)
    compare(
        lambda x: (
            lax.reduce_sum(x, (1,)),
            lax.reduce_max(x, (0, 2)),
            lax.reduce_min(x, (2,)),
            lax.reduce_prod(x, (0,)),
            lax.reduce_sum(x, (0, 1, 2)),
            jnp.argmax(x, 1),
            jnp.argmin(x, 2),
            jnp.any(x > 0, 0),
            jnp.all(x > 0, 1),
        ),
        x,
        tolerance={8: 1e-12, 4: 1e-5}.get(dtype.itemsize, 2e-2),
    )


def test_reduction_with_nan_and_infinity():
    x = np.array([[1, np.nan, 2], [np.inf, -np.inf, 0], [np.inf, 1, 2]], np.float32)
    compare(lambda x: (x.sum(1), x.max(1), x.min(1), jnp.argmax(x, 1), jnp.argmin(x, 1)), x)


def test_integer_sum_wraps():
    x = np.full((1000,), 2**30, np.int32)
    compare(lambda x: lax.reduce_sum(x, (0,)), x)


@pytest.mark.parametrize("length", [0, 1, 2, 7, 64])
def test_reduction_with_a_general_body_keeps_the_order(length):
    def first_and_last(a, b):
        return jnp.where(a[0] < 0, b[0], a[0]), jnp.where(b[1] < 0, a[1], b[1])

    x = np.arange(length * 3, dtype=np.int32).reshape(length, 3)
    minus = np.int32(-1)
    compare(lambda x: lax.reduce((x, x), (minus, minus), first_and_last, (0,)), x)


def test_cumulative_ops():
    x = random_floats(20, (4, 9))
    compare(
        lambda x: (jnp.cumsum(x, 1), lax.cummax(x, 1), lax.cumlogsumexp(x, 1)), x, tolerance=1e-5
    )


@pytest.mark.parametrize("padding", ["VALID", "SAME", ((1, 2), (0, 3))], ids=str)
def test_reduce_window(padding):
    x = random_floats(21, (7, 8))
    compare(
        lambda x: (
            lax.reduce_window(x, -np.inf, lax.max, (2, 3), (2, 1), padding),
            lax.reduce_window(x, np.float32(0), lax.add, (3, 2), (1, 2), padding, (1, 1), (1, 2)),
            lax.reduce_window(x, np.float32(1), lax.mul, (2, 2), (1, 1), padding, (2, 3), (2, 1)),
        ),
        x,
        tolerance=1e-5,
    )


def test_variadic_reduce_window():
    x = random_floats(22, (6, 6))
    places = np.arange(36, dtype=np.int32).reshape(6, 6)

    def larger(a, b):
        take = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return jnp.where(take, a[0], b[0]), jnp.where(take, a[1], b[1])

    compare(
        lambda x, i: lax.reduce_window(
            (x, i), (np.float32(-np.inf), np.int32(99)), larger, (2, 3), (2, 2), "SAME"
        ),
        x,
        places,
    )


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_select_and_scatter(padding):
    x = random_floats(23, (2, 7, 8, 3))

    def pool(x):
        return lax.reduce_window(x, -np.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), padding)

    compare(lambda x: jax.grad(lambda x: (pool(x) * x.sum()).sum())(x), x, tolerance=1e-4)


# ---- sort ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 5, 33])
def test_sort(length):
    x = random_floats(24, (3, length)).round(1)
    x[0, 0] = np.nan
    x[1, -1] = -0.0
    compare(
        lambda x: (
            jnp.sort(x, 1),
            jnp.argsort(x, 1),
            jnp.sort(x, 0),
            jnp.sort(x, 1, descending=True),
        ),
        x,
    )


def test_sort_of_several_arrays_is_stable():
    keys = np.random.default_rng(0).integers(0, 4, (50,)).astype(np.int32)
    second = np.random.default_rng(1).integers(0, 3, (50,)).astype(np.uint8)
    places = np.arange(50, dtype=np.int32)
    compare(
        lambda k, s, p: (lax.sort((k, s, p), num_keys=2), lax.sort((k, p), num_keys=1)),
        keys,
        second,
        places,
    )


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BF16, np.dtype(np.int32)], ids=str)
def test_top_k(dtype):
    x = random_floats(25, (4, 30)).round(1) * 10
    if dtype.kind != "i":
        x[0, 3], x[1, 5] = np.nan, np.inf
    compare(lambda x: lax.top_k(x, 5), x.astype(dtype))


# ---- products ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtypes",
    [
        ("f4", "f4"),
        ("f8", "f8"),
        (BF16, "f4"),
        (BF16, BF16),
        ("f2", "f2"),
        ("i1", "i4"),
        ("c8", "c8"),
    ],
    ids=str,
)
def test_dot_general(dtypes):
    source, result = map(np.dtype, dtypes)
    x = (random_floats(26, (3, 4, 5, 6)) * 5).astype(source)
    y = (random_floats(27, (6, 3, 7, 4)) * 5).astype(source)
    dims = (((3, 1), (0, 3)), ((0,), (1,)))
    compare(
        lambda x, y: (
            lax.dot_general(x, y, dims, preferred_element_type=result),
            lax.dot_general(
                x[0, 0, 0], y[0, 0, 0], (((), ()), ((), ())), preferred_element_type=result
            ),
            lax.dot_general(x, y, (((3,), (0,)), ((), ())), preferred_element_type=result),
        ),
        x,
        y,
        tolerance=2e-2 if result.itemsize == 2 else 1e-4,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"window_strides": (1, 1), "padding": "SAME"},
        {"window_strides": (2, 1), "padding": ((1, 2), (0, 3))},
        {
            "window_strides": (1, 2),
            "padding": ((-1, 1), (2, -1)),
            "lhs_dilation": (2, 1),
            "rhs_dilation": (1, 2),
        },
        {"window_strides": (1, 1), "padding": "VALID", "feature_group_count": 2},
        {"window_strides": (1, 1), "padding": "VALID", "batch_group_count": 2},
    ],
    ids=["same", "stride", "dilation", "feature groups", "batch groups"],
)
@pytest.mark.parametrize(
    "layout",
    [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("CHWN", "IHWO", "HWNC")],
    ids=str,
)
def test_convolution(options, layout):
    groups = options.get("feature_group_count", 1)
    sizes = {"N": 4, "H": 7, "W": 6, "C": 4}
    kernel_sizes = {"H": 3, "W": 2, "I": 4 // groups, "O": 6}
    x = random_floats(28, tuple(sizes[c] for c in layout[0]))
    kernel = random_floats(29, tuple(kernel_sizes[c] for c in layout[1]))
    compare(
        lambda x, k: lax.conv_general_dilated(x, k, dimension_numbers=layout, **options),
        x,
        kernel,
        tolerance=1e-4,
    )


def test_convolution_gradients():
    """The kernel's gradient has a large window and few outputs; the input's reverses the kernel."""
    x, kernel = random_floats(30, (2, 9, 8, 3)), random_floats(31, (3, 2, 3, 5))

    def loss(x, k):
        return (
            lax.conv_general_dilated(
                x, k, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            ** 2
        ).sum()

    compare(lambda x, k: jax.grad(loss, (0, 1))(x, k), x, kernel, tolerance=1e-4)


# ---- control -------------------------------------------------------------------------------------


def test_loops_and_branches():
    x = random_floats(32, (4, 3))

    def program(x, n):
        total = lax.fori_loop(0, n, lambda i, s: s + x[i % 4] * i, jnp.zeros(3, jnp.float32))
        carry, rows = lax.scan(
            lambda c, row: (c * 0.5 + row, c.sum()), jnp.zeros(3, jnp.float32), x
        )
        branch = lax.switch(n, [lambda x: x + 1, lambda x: x * 2, lambda x: -x], x)
        either = lax.cond(n > 3, lambda x, y: x + y, lambda x, y: x - y, x, total)
        return total, carry, rows, branch, either

    for n in (0, 1, 7):
        compare(program, x, np.int32(n), tolerance=1e-6)


def test_conditional_with_an_index_out_of_range_takes_the_last_branch():
    text = """HloModule c
a { p = f32[] parameter(0)
 ROOT r = f32[] negate(p) }
b { p = f32[] parameter(0)
 ROOT r = f32[] exponential(p) }
ENTRY e { i = s32[] parameter(0)
 x = f32[] parameter(1)
 ROOT r = f32[] conditional(i, x, x), branch_computations={a, b} }"""
    for index in (-1, 0, 1, 2):
        compare_hlo(parse_hlo_text(text), [np.int32(index), np.float32(1)], tolerance=1e-6)


def test_map():
    text = """HloModule m
f { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT c = f32[] multiply(a, b) }
ENTRY e { x = f32[3,4] parameter(0)
 ROOT r = f32[3,4] map(x, x), dimensions={0,1}, to_apply=f }"""
    compare_hlo(parse_hlo_text(text), [random_floats(33, (3, 4))])


def test_region_that_is_not_elementwise_runs_position_by_position():
    g = GraphBuilder()
    a, b = g.parameter("f32[]"), g.parameter("f32[]")
    both = g.op(
        "concatenate",
        "f32[2]",
        g.op("reshape", "f32[1]", a),
        g.op("reshape", "f32[1]", b),
        attrs=_dimension(0),
    )
    region = g.build(g.reduce(both, (0,), "maximum"))
    x, y = random_floats(34, (3, 2)), random_floats(35, (3, 2))
    np.testing.assert_array_equal(apply_region(region, [x, y])[0], np.maximum(x, y))


def _dimension(dimension: int) -> Any:
    from astitch.graph.ir import DimensionAttrs

    return DimensionAttrs(dimension)


# ---- geometry drawn at random -------------------------------------------------------------------

GEOMETRIES = settings(max_examples=25, deadline=None, derandomize=True)


@st.composite
def window_dimensions(draw, extent: int) -> tuple[int, int, tuple[int, int], int, int]:
    """(size, stride, padding, base dilation, window dilation) that leave at least one position."""
    base = draw(st.integers(1, 3))
    low, high = draw(st.integers(-1, 3)), draw(st.integers(-1, 3))
    padded = (extent - 1) * base + 1 + low + high
    dilation = draw(st.integers(1, 3))
    size = draw(st.integers(1, max(1, min(4, (padded - 1) // dilation + 1))))
    return size, draw(st.integers(1, 3)), (low, high), base, dilation


@GEOMETRIES
@given(st.data())
def test_reduce_window_of_any_geometry(data):
    windows = [data.draw(window_dimensions(extent)) for extent in (6, 5)]
    size, stride, padding, base, dilation = zip(*windows, strict=True)
    x = random_floats(45, (6, 5))
    compare(
        lambda x: lax.reduce_window(
            x, np.float32(0), lax.add, size, stride, padding, base, dilation
        ),
        x,
        tolerance=1e-5,
    )


@GEOMETRIES
@given(st.data())
def test_convolution_of_any_geometry(data):
    windows = [data.draw(window_dimensions(extent)) for extent in (6, 5)]
    size, stride, padding, base, dilation = zip(*windows, strict=True)
    groups = data.draw(st.sampled_from([1, 2, 4]))
    x, kernel = random_floats(46, (2, 6, 5, 4)), random_floats(47, (*size, 4 // groups, 4))
    compare(
        lambda x, k: lax.conv_general_dilated(
            x,
            k,
            stride,
            padding,
            base,
            dilation,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        ),
        x,
        kernel,
        tolerance=1e-4,
    )


@GEOMETRIES
@given(
    st.lists(
        st.tuples(st.integers(-4, 3), st.integers(-4, 3), st.integers(0, 2)), min_size=2, max_size=2
    )
)
def test_pad_of_any_geometry(config):
    extents = (4, 5)
    assume(
        all(
            (n - 1) * (i + 1) + 1 + lo + hi >= 0
            for n, (lo, hi, i) in zip(extents, config, strict=True)
        )
    )
    compare(lambda x: lax.pad(x, np.float32(9), config), random_floats(48, extents))


@GEOMETRIES
@given(st.permutations(range(3)), st.integers(0, 2), st.integers(0, 2), st.data())
def test_gather_of_any_geometry(order, indexed, collapsed, data):
    shape = (3, 4, 5)
    sizes = [1 if d in order[:collapsed] else data.draw(st.integers(1, shape[d])) for d in range(3)]
    index_map = tuple(order[: indexed + 1])
    vector_dim = data.draw(st.integers(0, 2))
    index_shape = [2, 3]
    index_shape.insert(vector_dim, len(index_map))
    rank = 2 + 3 - collapsed
    offsets = data.draw(st.sampled_from(list(itertools.combinations(range(rank), 3 - collapsed))))
    indices = np.random.default_rng(0).integers(-2, 7, index_shape).astype(np.int32)
    x = random_floats(49, shape)
    text = (
        f"HloModule g\nENTRY e {{ x = f32[3,4,5] parameter(0)\n"
        f" i = s32[{_list(index_shape)}] parameter(1)\n"
        f" ROOT r = f32[{_list(_gather_shape(rank, offsets, sizes, order[:collapsed]))}] "
        "gather(x, i), "
        f"offset_dims={{{_list(offsets)}}}, "
        f"collapsed_slice_dims={{{_list(sorted(order[:collapsed]))}}}, "
        f"start_index_map={{{_list(index_map)}}}, index_vector_dim={vector_dim}, "
        f"slice_sizes={{{_list(sizes)}}} }}"
    )
    compare_hlo(parse_hlo_text(text), [x, indices])


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _gather_shape(
    rank: int, offsets: Sequence[int], sizes: Sequence[int], collapsed: Sequence[int]
) -> list[int]:
    windows = iter([n for d, n in enumerate(sizes) if d not in collapsed])
    batch = iter([2, 3])
    return [next(windows if d in offsets else batch) for d in range(rank)]


# ---- random numbers ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (4, 6), (3, 5, 7)], ids=str)
def test_threefry_bits(dtype, shape):
    key = np.array([0x123456789ABCDEF, 2**64 - 3], np.uint64)
    compare(
        lambda k: lax.rng_bit_generator(k, shape, dtype, lax.RandomAlgorithm.RNG_THREE_FRY), key
    )


@pytest.mark.parametrize("dtype", ["u8", "u32", "u64"])
@pytest.mark.parametrize("algorithm", ["rng_philox", "rng_default"])
@pytest.mark.parametrize("words", [2, 3])
def test_philox_bits(dtype, algorithm, words):
    state = np.array([0xDEADBEEFCAFE, 2**64 - 2, 7][:words], np.uint64)
    for shape in ("", "3", "5,9"):
        proto = parse_hlo_text(
            f"HloModule p\nENTRY e {{ s = u64[{words}] parameter(0)\n"
            f" ROOT r = (u64[{words}], {dtype}[{shape}]) rng-bit-generator(s), "
            f"algorithm={algorithm} }}"
        )
        compare_hlo(proto, [state])


def test_jax_random():
    def program(key):
        a, b = jax.random.split(jax.random.wrap_key_data(key))
        return (
            jax.random.normal(a, (7, 3)),
            jax.random.uniform(b, (11,)),
            jax.random.bernoulli(a, 0.3, (9,)),
        )

    compare(program, np.array([1, 2], np.uint32), tolerance=1e-5)


def test_rng_has_the_distribution_asked_for():
    text = """HloModule r
ENTRY e { a = f32[] constant(2)
 b = f32[] constant(5)
 u = f32[20000] rng(a, b), distribution=rng_uniform
 n = f32[20000] rng(a, b), distribution=rng_normal
 c = s32[] constant(-3)
 d = s32[] constant(4)
 i = s32[20000] rng(c, d), distribution=rng_uniform
 ROOT r = (f32[20000], f32[20000], s32[20000]) tuple(u, n, i) }"""
    uniform, normal, integers = run_graph(import_hlo(text), [])
    assert uniform.min() >= 2 and uniform.max() < 5 and abs(uniform.mean() - 3.5) < 0.05
    assert abs(normal.mean() - 2) < 0.2 and abs(normal.std() - 5) < 0.2
    assert set(integers.tolist()) == set(range(-3, 4))


# ---- linear algebra, statistics ------------------------------------------------------------------


def test_fft():
    x = (random_floats(36, (3, 8, 6)) + 1j * random_floats(37, (3, 8, 6))).astype(np.complex64)
    real = x.real.copy()
    compare(
        lambda x, r: (
            lax.fft(x, "FFT", (8, 6)),
            lax.fft(x, "IFFT", (6,)),
            lax.fft(r, "RFFT", (8, 6)),
            lax.fft(x, "IRFFT", (8, 10)),
        ),
        x,
        real,
        tolerance=1e-4,
    )


@pytest.mark.parametrize("lower_triangle", [True, False])
def test_cholesky(lower_triangle):
    a = random_floats(38, (2, 4, 4))
    matrix = a @ a.swapaxes(1, 2) + 4 * np.eye(4, dtype=np.float32)
    text = f"""HloModule c
ENTRY e {{ a = f32[2,4,4] parameter(0)
 ROOT c = f32[2,4,4] cholesky(a), lower={str(lower_triangle).lower()} }}"""
    (got,) = run_graph(import_hlo(text), [matrix])
    want = np.linalg.cholesky(matrix)
    np.testing.assert_allclose(
        got, want if lower_triangle else want.swapaxes(1, 2), rtol=1e-4, atol=1e-5
    )
    assert np.isnan(run_graph(import_hlo(text), [-matrix])[0]).all()


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower_triangle", [True, False])
@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE"])
def test_triangular_solve(left, lower_triangle, transpose):
    a = random_floats(39, (2, 4, 4)) + 4 * np.eye(4, dtype=np.float32)
    b = random_floats(40, (2, 4, 3) if left else (2, 3, 4))
    shape = ",".join(map(str, b.shape))
    for unit in (False, True):
        proto = parse_hlo_text(
            f"HloModule t\nENTRY e {{ a = f32[2,4,4] parameter(0)\n b = f32[{shape}] parameter(1)\n"
            f" ROOT r = f32[{shape}] triangular-solve(a, b), left_side={str(left).lower()}, "
            f"lower={str(lower_triangle).lower()}, unit_diagonal={str(unit).lower()}, "
            f"transpose_a={transpose} }}"
        )
        (x,) = run_graph(import_hlo(proto), [a, b])
        matrix = np.tril(a) if lower_triangle else np.triu(a)
        if unit:
            matrix = matrix * (1 - np.eye(4, dtype=np.float32)) + np.eye(4, dtype=np.float32)
        matrix = matrix.swapaxes(1, 2) if transpose == "TRANSPOSE" else matrix
        np.testing.assert_allclose(matrix @ x if left else x @ matrix, b, rtol=1e-3, atol=1e-4)


def test_batch_norm():
    x, g = random_floats(41, (5, 3, 4)), random_floats(42, (5, 3, 4))
    scale, offset = random_floats(43, (3,)), random_floats(44, (3,))
    text = """HloModule b
ENTRY e { x = f32[5,3,4] parameter(0)
 s = f32[3] parameter(1)
 o = f32[3] parameter(2)
 g = f32[5,3,4] parameter(3)
 t = (f32[5,3,4], f32[3], f32[3]) batch-norm-training(x, s, o), epsilon=0.001, feature_index=1
 y = f32[5,3,4] get-tuple-element(t), index=0
 m = f32[3] get-tuple-element(t), index=1
 v = f32[3] get-tuple-element(t), index=2
 i = f32[5,3,4] batch-norm-inference(x, s, o, m, v), epsilon=0.001, feature_index=1
 d = (f32[5,3,4], f32[3], f32[3]) batch-norm-grad(x, s, m, v, g), epsilon=0.001, feature_index=1
 dx = f32[5,3,4] get-tuple-element(d), index=0
 ds = f32[3] get-tuple-element(d), index=1
 do = f32[3] get-tuple-element(d), index=2
 ROOT r = (f32[5,3,4], f32[5,3,4], f32[5,3,4], f32[3], f32[3]) tuple(y, i, dx, ds, do) }"""

    def forward(x, scale, offset):
        mean, variance = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
        return (x - mean) * lax.rsqrt(variance + 0.001) * scale[:, None] + offset[:, None]

    y, back = jax.vjp(forward, x, scale, offset)
    want = [np.asarray(a) for a in (y, y, *back(jnp.asarray(g)))]
    assert_same(run_graph(import_hlo(text), [x, scale, offset, g]), want, tolerance=1e-4)


# ---- refusals ------------------------------------------------------------------------------------


def test_custom_call_is_refused():
    text = """HloModule c
ENTRY e { x = f32[2] parameter(0)
 ROOT r = f32[2] custom-call(x), custom_call_target="secret" }"""
    with pytest.raises(UnsupportedOp) as error:
        run_graph(import_hlo(text), [np.zeros(2, np.float32)])
    assert str(error.value) == (
        "%r = custom-call to 'secret': what it computes is not in the HLO; run this part through "
        "XLA"
    )


def test_arguments_must_fit():
    g = GraphBuilder()
    graph = g.build(g.op("negate", "f32[2]", g.parameter("f32[2]", name="x")))
    with pytest.raises(ArgumentMismatch, match="takes 1 arguments, 0 were given"):
        run_graph(graph, [])
    with pytest.raises(
        ArgumentMismatch, match=r"argument 0 \(%x\): f32\[2\] was expected, float32\[3\] was given"
    ):
        run_graph(graph, [np.zeros(3, np.float32)])
    with pytest.raises(ArgumentMismatch, match=r"f32\[2\] was expected, float64\[2\] was given"):
        run_graph(graph, [np.zeros(2)])


def test_node_with_a_wrong_type_is_an_illegal_product():
    node = Node("y", "add", parse_type("f32[3]"), ("a", "b"))
    with pytest.raises(IllegalProduct, match="its operands give float32"):
        eval_node(node, [np.zeros(2, np.float32), np.zeros(2, np.float32)])


def test_results_do_not_share_memory_with_arguments():
    g = GraphBuilder()
    x = np.arange(3, dtype=np.float32)
    (y,) = run_graph(g.build(g.parameter("f32[3]")), [x])
    y[0] = 9
    assert x[0] == 0
