"""Reads behind a select by position: which elements are needed, and that the rest is not loaded."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch.compile import compile_hlo
from astitch.device.gpu import preset
from astitch.run.host_engine import HostEngine
from astitch.show.compilation import Compilation

ROWS, COLUMNS = 24, 64


def rows() -> jax.Array:
    return jax.lax.broadcasted_iota(jnp.int32, (ROWS, COLUMNS), 0)


def columns() -> jax.Array:
    return jax.lax.broadcasted_iota(jnp.int32, (ROWS, COLUMNS), 1)


def below(x: jax.Array) -> jax.Array:
    return jnp.where(columns() <= rows(), x, -jnp.inf)


def above(x: jax.Array) -> jax.Array:
    return jnp.where(columns() < rows(), 0.0, x)


def band(x: jax.Array) -> jax.Array:
    near = (columns() - rows() <= 9) & (columns() - rows() >= -3)
    return jnp.where(near, 2 * x, 1.0)


def diagonal(x: jax.Array) -> jax.Array:
    return jnp.where(columns() == rows() + 5, x, 0.0)


def padded(x: jax.Array) -> jax.Array:
    return jnp.where(~(columns().astype(jnp.uint32) >= jnp.uint32(40)), x, 3.0)


def causal_softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.where(columns() <= rows(), x / 8, -jnp.inf), -1)


def either(x: jax.Array) -> jax.Array:
    return jnp.where((columns() <= 3) | (columns() >= 60), x, 0.0)


def by_data(x: jax.Array) -> jax.Array:
    return jnp.where(x > 0, x, 0.0)


def read_twice(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return below(x), jnp.exp(x)


def unequal(x: jax.Array) -> jax.Array:
    return jnp.where(columns() != rows(), x, 0.0)


def compile_for(fn: Callable[..., object], x: np.ndarray) -> Compilation:
    lowered = jax.jit(fn).lower(x)
    return compile_hlo(
        lowered.compiler_ir("hlo").as_serialized_hlo_module_proto(), gpu=preset("h100")
    )


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("fn", [below, above, band, diagonal, padded, causal_softmax])
def test_hidden_elements_are_not_loaded(fn: Callable[..., jax.Array], dtype: type) -> None:
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(dtype)
    found = compile_for(fn, x)
    (kernel,) = found.program.kernels
    assert "{};\n" in kernel.source  # a vector of zeros, loaded under a condition
    (got,) = HostEngine(found.program).run([x])
    want = np.asarray(jax.jit(fn)(x), np.float64)
    np.testing.assert_allclose(
        np.asarray(got, np.float64), want, rtol=1e-2 if dtype != np.float32 else 1e-6, atol=1e-6
    )


@pytest.mark.parametrize("fn", [either, by_data, read_twice, unequal])
def test_what_may_be_needed_is_loaded(fn: Callable[..., object]) -> None:
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    found = compile_for(fn, x)
    assert all("{};\n" not in kernel.source for kernel in found.program.kernels)
    got = HostEngine(found.program).run([x])
    for a, b in zip(got, jax.tree.leaves(jax.jit(fn)(x)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_hidden_elements_are_never_touched() -> None:
    """Rows of a causal softmax are right whatever lies above the diagonal, NaN too."""
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    x[np.triu_indices(ROWS, 1, COLUMNS)] = np.nan
    (got,) = HostEngine(compile_for(causal_softmax, x).program).run([x])
    np.testing.assert_allclose(got, jax.jit(causal_softmax)(x), rtol=1e-6)
