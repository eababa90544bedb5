"""Which values of f16 and bf16 are rounded by the vector store that packs them, and that their bits are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astitch import kernel_ir as k
from tests.small_gpu import Planned, few_sms, find_statements, plan_for

BF16, F16 = np.dtype(jnp.bfloat16), np.dtype(np.float16)

H100 = few_sms(132)


def every_code(dtype: np.dtype) -> np.ndarray:
    """All 65,536 of a type."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(64, 1024)


def plan_of(fn: Callable[..., Any], *arguments: np.ndarray) -> tuple[Planned, list[bool]]:
    """The plan, and of each vector that it stores: is it rounded then?"""
    found = plan_for(H100, fn, *arguments)
    stores = find_statements(found.plan.kernel.body, k.StoreVector)
    return found, [store.unrounded for store in stores]


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize(
    "fn",
    [lambda x: x + x, lambda x: x * x - x, lambda x: (x.astype(jnp.float32) / 3).astype(x.dtype)],
    ids=["sum", "several", "convert"],
)
def test_what_is_only_stored_is_rounded_in_pairs(fn: Callable[[Any], Any], dtype: np.dtype) -> None:
    x = every_code(dtype)
    found, unrounded = plan_of(fn, x)
    assert unrounded == [True]
    (got,) = found.run(x)
    with np.errstate(all="ignore"):
        want = np.asarray(fn(x))  # NumPy's: XLA's on the CPU flushes subnormal numbers
    nan = np.isnan(want.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    np.testing.assert_array_equal(got.view(np.uint16)[~nan], want.view(np.uint16)[~nan])


@pytest.mark.parametrize(
    "fn",
    [lambda x: -x, lambda x: jnp.maximum(x, 1), lambda x: x[::-1], lambda x: jnp.abs(x)[:, :512]],
    ids=["negate", "maximum", "reverse", "slice"],
)
def test_what_is_exact_keeps_all_of_its_bits(fn: Callable[[jax.Array], jax.Array]) -> None:
    _, unrounded = plan_of(fn, every_code(BF16))
    assert not any(unrounded)


def test_a_copied_nan_keeps_its_payload() -> None:
    x = every_code(BF16)
    found, _ = plan_of(lambda x: jnp.where(x[:1, :1] == 0, x, -x), x)
    (got,) = found.run(x)
    np.testing.assert_array_equal(got.view(np.uint16), x.view(np.uint16))


def test_what_is_read_again_is_rounded_before() -> None:
    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = x + x
        return y, jnp.exp(y.astype(jnp.float32))

    _, unrounded = plan_of(both, every_code(BF16))
    assert unrounded == [False, False]


def test_of_many_vectors_none_waits_as_floats() -> None:
    def several(x: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(x * n for n in (3, 5, 7, 9, 11))

    _, unrounded = plan_of(several, every_code(BF16))
    assert len(unrounded) == 5 and not any(unrounded)
