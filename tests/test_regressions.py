"""Programs that once came out wrong, through the whole compiler and the checked emulation, against XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_hlo
from astitch.host_engine import HostEngine
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


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        (sum_columns_and_scale, (normal(8, 4096), normal(8))),
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
