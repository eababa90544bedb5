"""Programs that once came out wrong, through the whole compiler and the checked emulation, against XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_hlo
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.run.host_engine import HostEngine
from tests.hlo_runner import lower, parse_hlo_text, random_arguments, run_xla


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def sum_columns_and_scale(x: Any, v: Any) -> Any:
    """The sum of v has no columns: every column tile of the other sum needs the whole of it."""
    return (x * v[:, None]).sum(0) * v.sum()


def sum_rows_of_few_samples(x: Any, z: Any) -> Any:
    """The samples are one tile of packed rows, and the second sum spans the column tiles of the first."""
    return (x * z[:, None, :]).sum(1), z.sum(1)


def reduce_two_with_traced_inits(x: Any, i: Any, a: Any, b: Any) -> Any:
    """A variadic reduce whose identity nobody knows stays outside, and its projections with it."""

    def combine(p: Any, q: Any) -> Any:
        return jnp.maximum(p[0], q[0]), p[1] + q[1]

    largest, total = jax.lax.reduce((x, i), (a, b), combine, (1,))
    return largest * 2, total


def gradient_of_products(x: Any) -> Any:
    """Each level of the scan reads the one before at twice as many indices: a kernel of two megabytes."""
    return jax.grad(lambda x: jnp.sin(jnp.cumprod(x, 1)).sum())(x)


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (sum_columns_and_scale, (normal(8, 4096), normal(8))),
        (gradient_of_products, (1 + 0.1 * normal(5, 65),)),
        (sum_rows_of_few_samples, (normal(2, 4, 512), normal(2, 512))),
        (
            reduce_two_with_traced_inits,
            (normal(9, 20), np.ones((9, 20), np.int32), np.float32(-1), np.int32(3)),
        ),
    ],
)
def test_program_agrees_with_xla(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    arrays = [np.asarray(a) for a in arguments]
    program = compile_hlo(lower(fn, *arrays)).program
    want = jax.tree.leaves(jax.jit(fn)(*arrays))
    for got, expected in zip(HostEngine(program, check=True).run(arrays), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def split_and_join_words(words: Any, octets: Any) -> Any:
    parts = jax.lax.bitcast_convert_type(words, jnp.int16)
    joined = jax.lax.bitcast_convert_type(octets, jnp.uint32)
    return parts, parts.astype(jnp.int32).sum(-1), joined, joined.max(0)


def test_bits_are_split_and_joined_in_a_kernel() -> None:
    random = np.random.default_rng(0)
    words = random.integers(0, 2**32, (33, 7), dtype=np.uint32)
    octets = random.integers(0, 256, (5, 9, 4), dtype=np.uint8)
    program = compile_hlo(lower(split_and_join_words, words, octets)).program
    assert len(program.kernels) == len(program.steps) == 1
    want = jax.jit(split_and_join_words)(words, octets)
    for got, expected in zip(
        HostEngine(program, check=True).run([words, octets]), want, strict=True
    ):
        np.testing.assert_array_equal(got, expected)


def test_precision_is_reduced_within_the_own_range_of_a_narrow_type() -> None:
    """f16 keeps its subnormals when only its mantissa is shortened."""

    def shorten(x: Any) -> Any:
        return jax.lax.reduce_precision(x, exponent_bits=5, mantissa_bits=7)

    x = np.array([6e-8, 1e-6, 3.1e-5, 1.003, -65504.0], np.float16)
    proto = lower(shorten, x)
    (got,) = HostEngine(compile_hlo(proto).program, check=True).run([x])
    (want,) = run_graph(import_hlo(proto), [x])
    np.testing.assert_array_equal(got, want)
    assert got[0] == x[0]


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_reductions_of_f8_round_once_and_start_from_what_f8_holds(dtype: Any) -> None:
    """f8e4m3fn has no infinity to start a maximum from; sums are rounded at the end."""

    def reduce_rows(x: Any) -> Any:
        limit = jnp.finfo(dtype).max
        return (
            jax.lax.reduce(x, dtype(0), jax.lax.add, (1,)),
            jax.lax.reduce(x, dtype(-limit), jax.lax.max, (1,)),
            jax.lax.reduce(x, dtype(limit), jax.lax.min, (0,)),
            jnp.argmax(x, axis=1),
        )

    x = (normal(33, 70) - 3).astype(dtype)
    proto = lower(reduce_rows, x)
    program = compile_hlo(proto).program
    assert len(program.kernels) == len(program.steps) == 1
    for got, want in zip(
        HostEngine(program, check=True).run([x]), run_graph(import_hlo(proto), [x]), strict=True
    ):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "fn",
    [
        lambda: jax.lax.broadcasted_iota(jnp.complex64, (3, 3, 6), 0),
        lambda: jax.lax.broadcasted_iota(jnp.complex64, (3, 3, 6), 0).reshape(9, 6),
        lambda: (jnp.full((4, 5), 1 + 2j, jnp.complex64), jnp.ones(3)),
    ],
    ids=["iota", "another view", "a number"],
)
def test_a_result_that_its_index_alone_tells_is_written(fn: Callable[[], Any]) -> None:
    """Also where no kernel of ours can."""
    found = HostEngine(compile_hlo(lower(fn)).program, check=True).run([])
    for got, want in zip(found, jax.tree.leaves(fn()), strict=True):
        np.testing.assert_array_equal(got, np.asarray(want))


def module(body: str, region: str = "") -> str:
    return f"HloModule m\n{region}\nENTRY e {{\n{body}\n}}"


def join_of(*results: str) -> str:
    """A region of two results: of the pairs (a, c) and (b, d)."""
    parameters = "a = f32[] parameter(0) b = s32[] parameter(1) c = f32[] parameter(2) d = s32[] parameter(3)"
    return f"r {{ {parameters} {' '.join(results)} ROOT t = (f32[], s32[]) tuple(m, s) }}"


LARGEST_AND_SUM = join_of("m = f32[] maximum(a, c)", "s = s32[] add(b, d)")
LARGEST_AND_WHERE = join_of(
    "g = pred[] compare(a, c), direction=GE",
    "m = f32[] select(g, a, c)",
    "s = s32[] select(g, b, d)",
)
SUM_AND_LAST = join_of("m = f32[] add(a, c)", "s = s32[] copy(d)")
SUM_BY_OTHER = join_of("n = f32[] convert(d)", "m = f32[] add(a, n)", "s = s32[] maximum(b, d)")

SCATTER = """
x = f32[6,3] parameter(0)
y = s32[6,3] parameter(1)
i = s32[4,1] parameter(2)
u = f32[4,3] parameter(3)
v = s32[4,3] parameter(4)
k = (f32[6,3], s32[6,3]) scatter(x, y, i, u, v), update_window_dims={1}, inserted_window_dims={0},
  scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=r
first = f32[6,3] get-tuple-element(k), index=0
second = s32[6,3] get-tuple-element(k), index=1
wide = f32[6,3] convert(second)
ROOT o = f32[6,3] add(first, wide)
"""

MODULES: dict[str, tuple[str, int, int]] = {
    "gather from batches of a padded array": (
        module("""
p = f32[7,3,6,8,5] parameter(0)
z = f32[] constant(0)
x = f32[9,3,8,8,8] pad(p, z), padding=2_0x0_0x2_0x0_0x2_1
i = s32[8,9,2,8] parameter(1)
ROOT o = f32[8,8,9,2,8] gather(x, i), offset_dims={1}, collapsed_slice_dims={1}, start_index_map={1},
  index_vector_dim=4, slice_sizes={1,1,8,1,1}, operand_batching_dims={0,3,4}, start_indices_batching_dims={1,3,0}
"""),
        1,
        0,
    ),
    "clamp between numbers": (
        module("""
low = f32[] parameter(0)
x = f32[5,8] parameter(1)
high = f32[] parameter(2)
ROOT o = f32[5,8] clamp(low, x, high)
"""),
        1,
        0,
    ),
    "clamp between a number and an array": (
        module("""
low = s16[] constant(-3)
x = s16[40] parameter(0)
high = s16[40] parameter(1)
ROOT o = s16[40] clamp(low, x, high)
"""),
        1,
        0,
    ),
    "select by one truth": (
        module("""
p = pred[] parameter(0)
x = f16[3,9] parameter(1)
y = f16[3,9] parameter(2)
ROOT o = f16[3,9] select(p, x, y)
"""),
        1,
        0,
    ),
    "reduce of two arrays without rows": (
        module(
            """
x = f32[0,4] parameter(0)
i = s32[0,4] parameter(1)
low = f32[] parameter(2)
start = s32[] constant(3)
ROOT o = (f32[4], s32[4]) reduce(x, i, low, start), dimensions={0}, to_apply=r
""",
            LARGEST_AND_SUM,
        ),
        1,
        0,
    ),
    "argmax of an empty cut": (
        module(
            """
x = f32[3,7] parameter(0)
i = s32[3,7] iota(), iota_dimension=1
none = f32[3,0] slice(x), slice={[0:3], [2:2]}
nowhere = s32[3,0] slice(i), slice={[0:3], [2:2]}
low = f32[] parameter(1)
start = s32[] constant(-1)
k = (f32[3], s32[3]) reduce(none, nowhere, low, start), dimensions={1}, to_apply=r
first = f32[3] get-tuple-element(k), index=0
second = s32[3] get-tuple-element(k), index=1
wide = f32[3] convert(second)
ROOT o = f32[3] add(first, wide)
""",
            LARGEST_AND_WHERE,
        ),
        1,
        0,
    ),
    "scatter of two, each by its own": (module(SCATTER, SUM_AND_LAST), 2, 1),
    "scatter of two, the one decides about both": (module(SCATTER, LARGEST_AND_WHERE), 1, 1),
    "scatter of two, the one added to the other": (module(SCATTER, SUM_BY_OTHER), 1, 1),
    "scatter of two, one row": (
        module(
            """
x = f32[6,3] parameter(0)
y = s32[6,3] parameter(1)
i = s32[1] constant({4})
u = f32[3] parameter(2)
v = s32[3] parameter(3)
ROOT o = (f32[6,3], s32[6,3]) scatter(x, y, i, u, v), update_window_dims={0}, inserted_window_dims={0},
  scatter_dims_to_operand_dims={0}, index_vector_dim=0, to_apply=r
""",
            SUM_AND_LAST,
        ),
        1,
        0,
    ),
}
"""Module, kernels, ops outside of kernels."""


@pytest.mark.parametrize("name", MODULES)
def test_module_agrees_with_xla_and_the_reference(name: str) -> None:
    text, kernels, outside = MODULES[name]
    graph = import_hlo(text)
    arguments = random_arguments(graph, index_limit=6)
    program = compile_hlo(text).program
    assert (len(program.kernels), len(program.outside)) == (kernels, outside)
    assert compile_hlo(text, gpu="h100").program.kernels or not kernels
    want = run_xla(parse_hlo_text(text), arguments)
    got = HostEngine(program, check=True).run(arguments)
    for result, xla, reference in zip(got, want, run_graph(graph, arguments), strict=True):
        np.testing.assert_allclose(reference, xla, rtol=1e-6)
        np.testing.assert_allclose(result, xla, rtol=1e-6)
