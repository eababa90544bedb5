"""Attention on a GPU: what cuDNN computes is as near to f64 as what XLA computes, in both halves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import astitch
from astitch.attention import find
from astitch.hlo.attention import FORWARD, GRADIENT
from tests.attention.spellings import (
    BATCH,
    FEATURES,
    GIVEN,
    GROUPS,
    HEADS,
    PARTLY_SHARED,
    PLAIN,
    QUERIES,
    SHARED,
    make_gradient,
)

pytestmark = pytest.mark.gpu

DTYPES = (jnp.bfloat16, jnp.float16)


@pytest.fixture(autouse=True)
def _small_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "LEAST_SCORES", 1)


def draw(dtype: Any, *given: np.ndarray) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shape = (BATCH, QUERIES, HEADS, FEATURES)
    arrays = [random.standard_normal(shape), random.standard_normal(shape)]
    arrays += [random.standard_normal(shape), *given]
    return [a if a.dtype == np.bool_ else a.astype(dtype) for a in arrays]


def measure_errors(
    function: Callable[..., Any], arrays: list[np.ndarray]
) -> tuple[list[float], list[float], int]:
    """(distances of XLA's results from f64, those of ours, how many calls of the library ours has)."""
    with jax.enable_x64(True), astitch.disabled():
        wide = [a if a.dtype == np.bool_ else a.astype(np.float64) for a in arrays]
        exact = [np.asarray(x) for x in jax.tree.leaves(jax.jit(function)(*wide))]
    found, texts = [], []
    for enabled in (astitch.disabled(), astitch.enabled()):
        with enabled:
            compiled = jax.jit(lambda *given: function(*given)).lower(*arrays).compile()
        texts.append(compiled.as_text())
        found.append([np.asarray(x).astype(np.float64) for x in jax.tree.leaves(compiled(*arrays))])
    errors = [
        [
            float(np.linalg.norm(r - e) / np.linalg.norm(e))
            for r, e in zip(results, exact, strict=True)
        ]
        for results in found
    ]
    calls = sum(texts[1].count(f'"{target}"') for target in (*FORWARD, *GRADIENT))
    return errors[0], errors[1], calls


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*PLAIN, *GIVEN])
def test_both_halves_are_as_near_as_xla_s(name: str, dtype: Any) -> None:
    function, given = (PLAIN | GIVEN)[name]
    arrays = draw(dtype, *([given] if isinstance(given, np.ndarray) else []))
    for which, count in ((function, 1), (make_gradient(function), 2)):
        before, after, calls = measure_errors(which, arrays)
        # In f16 no number masks a score, so that a mask from data stays.
        assert calls == count or (calls == 0 and dtype == jnp.float16 and name in GIVEN)
        assert all(a <= 1.2 * b + 1e-3 for a, b in zip(after, before, strict=True)), (before, after)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*SHARED, *PARTLY_SHARED])
def test_both_halves_of_heads_that_share_keys(name: str, dtype: Any) -> None:
    function = (SHARED | PARTLY_SHARED)[name][0]
    q, k, v = draw(dtype)
    arrays = [q, k[:, :, :GROUPS], v[:, :, :GROUPS]]
    for which, count in ((function, 1), (make_gradient(function), 2)):
        before, after, calls = measure_errors(which, arrays)
        assert calls == count
        assert all(a <= 1.2 * b + 1e-3 for a, b in zip(after, before, strict=True)), (before, after)
