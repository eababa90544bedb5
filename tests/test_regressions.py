"""Programs that once came out wrong, through the whole compiler and the checked emulation, against XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_hlo
from astitch.hlo_import import import_hlo
from astitch.host_engine import HostEngine
from astitch.reference import run_graph
from tests.hlo_runner import lower


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
