"""What benchmarks.sharded_on_gpus says of results that are apart, and what it gives programs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.modern_gpu import find_error
from benchmarks.sharded_on_gpus import draw_arguments
from benchmarks.sharded_programs import P, Sharded, shape, split_devices


@pytest.mark.parametrize(
    ("other", "apart"),
    [([3.0, 4.0], 0.0), ([3.0, 4.5], 0.1), ([3.0, np.nan], np.inf)],
)
def test_results_are_apart_by_a_part_of_their_norm(other, apart):
    key = jax.random.key(0)
    one = {"a": jnp.array([3.0, 4.0]), "b": jnp.zeros(2), "key": key}
    assert find_error(one | {"a": jnp.array(other)}, one) == pytest.approx(apart)


@pytest.mark.parametrize("signed", [True, False])
def test_arguments_are_small(signed):
    mesh = split_devices(jax.devices()[:1], "d")
    given = [shape(mesh, P(), 64, dtype=dtype) for dtype in (np.float32, jnp.bfloat16, np.int32)]
    program = Sharded(lambda *_: None, (*given, shape(mesh, P(), dtype=np.int32)))
    single, half, numbers, count = draw_arguments(program, signed=signed)
    assert (single.dtype, half.dtype) == (jnp.float32, jnp.bfloat16)
    assert bool((single < 0).any()) == signed
    assert float(abs(half).max()) < 0.2
    assert 0 <= int(numbers.min()) <= int(numbers.max()) < 8
    assert int(count) == 1
