"""Rewritten reductions are as near to the exact result as XLA's: at most twice its error, of any mean and type.

The errors are those of benchmarks/numerics.py, in the emulation, beside XLA on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import astitch
from benchmarks import numerics
from benchmarks.numerics import ONE_LONG, Case, Errors, measure, moments_case, rules_fired
from tests.small_gpu import few_sms, plan_for

CASES = numerics.cases()

TRIED = [
    *(c for c in CASES if "[2000000]" in c.name and "deviation 10" not in c.name),
    *(c for c in CASES if c.rule == "join_moments" and ", mean 1000000, " in c.name),
    *(c for c in CASES if "float16[4096,64" in c.name or "float64[4096,64" in c.name),
    *(c for c in CASES if "float32[4096,32]" in c.name or "over (1,), one above" in c.name),
    *(c for c in CASES if c.rule not in ("join_moments", "join_exponentials")),
]
"""The table's worst: the rest is measured by command."""


def assert_near(found: list[Errors]) -> None:
    for errors in found:
        assert errors.astitch <= errors.limit, errors


@pytest.mark.parametrize("title", dict.fromkeys(case.title for case in TRIED))
def test_errors_are_at_most_twice_those_of_xla(title: str) -> None:
    (case,) = (case for case in CASES if case.title == title)
    assert case.rule in rules_fired(case)
    assert_near(measure(case))


def on_few_sms(case: Case, sms: int = 4) -> Callable[..., Any]:
    """Where blocks have many tasks, and parts of a reduction meet at a barrier or in a block group."""
    with jax.enable_x64(True):
        return plan_for(few_sms(sms), case.function, *case.arguments(0)).run


@pytest.mark.parametrize(
    ("shape", "axes", "mean", "dtype"),
    [
        ((600_000,), (0,), 0.0, np.float32),
        ((600_000,), (0,), 1e7, np.float32),
        ((3, 90_000), (1,), 1e6, np.float32),
        ((5000, 48), (0,), 1e6, np.float32),
        ((6, 40, 9, 64), (0, 1, 2), 1e6, np.float32),
        ((6, 16, 1000), (0, 2), 1e6, np.float32),
        ((5000, 48), (0,), 1e13, np.float64),
    ],
)
def test_parts_of_a_variance_meet_without_loss(
    shape: tuple[int, ...], axes: tuple[int, ...], mean: float, dtype: Any
) -> None:
    case = moments_case(shape, axes, mean, 10.0 if mean == 1e7 else 1.0, dtype)
    assert_near(measure(case, on_few_sms(case)))


def variances(x: Any) -> tuple[Any, Any]:
    return jnp.mean(x, 0), jnp.var(x, 0)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 999, 4096])
@pytest.mark.parametrize("value", [0.0, 1 / 3, 1e6, -1e30])
def test_constant_data_have_no_variance(rows: int, value: float) -> None:
    x = np.full((rows, 40), value, np.float32)
    mean, variance = (np.asarray(r) for r in astitch.jit(variances)(x))
    if rows:
        np.testing.assert_array_equal(variance, 0)
        np.testing.assert_allclose(mean, x[0], rtol=3e-7)
    else:
        assert np.isnan(mean).all() and np.isnan(variance).all()


@pytest.mark.parametrize("shape", [(1,), (300_001,), (4096, 40)])
def test_a_variance_is_never_negative(shape: tuple[int, ...]) -> None:
    """Neighbouring numbers of f32, of which most are equal."""
    x = np.full(shape, 1e6, np.float32)
    x.ravel()[::1000] = np.nextafter(np.float32(1e6), np.float32(2e6))
    for places in (x, x[::-1].copy()):
        variance = np.asarray(astitch.jit(lambda v: jnp.var(v, 0))(places))
        exact = np.asarray(places.astype(np.float64).var(0))
        assert np.all(variance >= 0)
        np.testing.assert_allclose(variance, exact, rtol=1e-6)


@pytest.mark.parametrize("shape", [(300_001,), (4096, 6), (2, 4096, 6)])
@pytest.mark.parametrize(
    "extremes", [(np.nan,), (np.inf,), (-np.inf,), (np.inf, np.inf), (np.inf, -np.inf)], ids=str
)
def test_nans_and_infinities_are_those_of_the_plain_formula(
    shape: tuple[int, ...], extremes: tuple[float, ...]
) -> None:
    axes = tuple(range(max(len(shape) - 1, 1)))

    def function(x: Any) -> tuple[Any, Any]:
        return jnp.mean(x, axes), jnp.var(x, axes)

    rng = np.random.default_rng(len(extremes))
    columns = shape[-1] if len(shape) > 1 else 1
    mine, by_xla = astitch.jit(function), jax.jit(function)
    for _ in range(3):
        x = rng.standard_normal(shape).astype(np.float32)
        rows = x.reshape(-1, columns)  # a view
        for value in extremes:
            rows[rng.integers(len(rows)), 0] = value
        for found, wanted in zip(mine(x), by_xla(x), strict=True):
            np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), 1e-5, 1e-5)


def test_a_sum_over_zero_is_no_mean() -> None:
    def function(x: Any) -> Any:
        return jnp.square(x - jnp.sum(x, 0) / 0.0).sum(0)

    x = np.ones((300, 8), np.float32)
    np.testing.assert_array_equal(astitch.jit(function)(x), jax.jit(function)(x))


def test_the_case_of_two_million_elements_is_one_reading() -> None:
    case = moments_case(*ONE_LONG, 1e6, 1.0, np.float32)
    (plan,) = plan_for(few_sms(132), case.function, *case.arguments(0)).plans
    assert plan.kernel.reads_bytes < 1.01 * 4 * ONE_LONG[0][0]
