"""Attention on a GPU: what cuDNN and our own kernels compute is as near to f64 as what XLA does, in both halves."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import astitch
from astitch.api.engines import target_gpu
from astitch.attention import few, find
from astitch.attention.choose import Projection
from astitch.hlo.attention import FORWARD, GRADIENT
from astitch.hlo.tile_call import TRITON
from astitch.rewrite import sums_as_products
from tests.attention.biased import LEARNED
from tests.attention.few_spellings import (
    BF16,
    F32,
    LATE,
    OF_GROUPS,
    PAGED,
    SPELLINGS,
    make,
    make_integers,
    make_pages,
    scaled_in_16_bits,
)
from tests.attention.few_spellings import HEADS as HEADS_OF_FEW
from tests.attention.spellings import (
    BATCH,
    FEATURES,
    GIVEN,
    GROUPS,
    HEADS,
    OTHERS,
    PARTLY_SHARED,
    PLAIN,
    QUERIES,
    SHARED,
    dropped,
    make_gradient,
)

pytestmark = pytest.mark.gpu

DTYPES = (jnp.bfloat16, jnp.float16)


@pytest.fixture(autouse=True)
def _small_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "LEAST_SCORES", 1)
    monkeypatch.setattr(find, "LEAST_OF_LIBRARY", 1)
    monkeypatch.setattr(find, "project", lambda *given, **named: Projection(inf, 1.0, 0.0))


def draw(dtype: Any, *given: np.ndarray) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    shape = (BATCH, QUERIES, HEADS, FEATURES)
    arrays = [random.standard_normal(shape), random.standard_normal(shape)]
    arrays += [random.standard_normal(shape), *given]
    return [a if a.dtype == np.bool_ else a.astype(dtype) for a in arrays]


def measure_errors(
    function: Callable[..., Any], arrays: list[Any]
) -> tuple[list[float], list[float], int]:
    """(distances of XLA's results from f64, those of ours, how many calls of attention ours has)."""
    host = jax.devices("cpu")[0]  # no library multiplies all shapes in f64 on a GPU
    with jax.enable_x64(True), astitch.disabled(), jax.default_device(host):
        wide = jax.tree.map(
            lambda a: a.astype(np.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a, arrays
        )
        exact = [np.asarray(x) for x in jax.tree.leaves(jax.jit(function)(*wide))]
    found, texts = [], []
    for enabled in (astitch.disabled(), astitch.enabled()):
        with enabled:
            compiled = jax.jit(lambda *given: function(*given)).lower(*arrays).compile()
        texts.append(compiled.as_text() or "")
        found.append([np.asarray(x).astype(np.float64) for x in jax.tree.leaves(compiled(*arrays))])
    errors = [
        [
            float(np.linalg.norm(r - e) / np.linalg.norm(e))
            for r, e in zip(results, exact, strict=True)
        ]
        for results in found
    ]
    calls = sum(texts[1].count(f'"{target}"') for target in (*FORWARD, *GRADIENT, TRITON))
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


HOPPER = 90


@pytest.fixture
def _own_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))  # others keep calls of cuDNN there
    monkeypatch.setattr(find, "project", lambda *given, **named: Projection(0.0, 1.0))
    if target_gpu().compute_capability != HOPPER:
        pytest.skip("our own kernels are for Hopper")


def bound(dtype: Any, precision: str, error: float) -> float:
    """The least that an error may be: of XLA's error, and of what a type rounds."""
    if dtype != jnp.float32:
        return 1.2 * error + 1e-3
    return 1.2 * error + (5e-5 if precision == "default" else 5e-7)


@pytest.mark.usefixtures("_own_kernels")
@pytest.mark.parametrize(
    "dtype, precision",
    [(jnp.float32, "default"), (jnp.float32, "highest"), (jnp.bfloat16, "default")],
)
@pytest.mark.parametrize(
    "name",
    [*PLAIN, *GIVEN, "repeated", "by_vmap_over_sharing_heads", "capped", "f32_bias", "dropped"],
)
def test_our_own_kernels_are_as_near_as_xla_s(name: str, dtype: Any, precision: str) -> None:
    others = {other: (function, None) for other, function in OTHERS.items()}
    others["dropped"] = dropped, None
    function, given = (PLAIN | GIVEN | SHARED | others)[name]
    arrays = draw(dtype, *([given] if isinstance(given, np.ndarray) else []))
    if name in SHARED:
        arrays[1:] = [x[:, :, :GROUPS] for x in arrays[1:]]
    for which, count in ((function, 1), (make_gradient(function), 3)):
        with jax.default_matmul_precision(precision):
            before, after, calls = measure_errors(which, arrays)
        assert calls == count
        bounds = [bound(dtype, precision, error) for error in before]
        assert all(a <= b for a, b in zip(after, bounds, strict=True)), (before, after)


@pytest.mark.usefixtures("_own_kernels")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", LEARNED)
def test_gradients_of_biases_are_as_near_as_xla_s(name: str, dtype: Any) -> None:
    function, given = LEARNED[name]
    arrays = draw(dtype, given)
    before, after, calls = measure_errors(make_gradient(function, 4), arrays)
    assert calls in (3, 4)
    bounds = [bound(dtype, "default", error) for error in before]
    if name == "a slope for each head":
        # A sum over keys that cancels, 3.3e-4 by TF32: docs/attention.md, "Numbers".
        bounds[3] = max(bounds[3], 5e-4)
    assert all(a <= b for a, b in zip(after, bounds, strict=True)), (before, after)


@pytest.mark.usefixtures("_own_kernels")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_our_own_gradients_are_the_same_in_each_run(dtype: Any) -> None:
    arrays = [jnp.asarray(x) for x in draw(dtype)]
    with astitch.enabled():
        compiled = jax.jit(make_gradient(PLAIN["where"][0])).lower(*arrays).compile()
    first, *others = ([np.asarray(x) for x in compiled(*arrays)] for _ in range(5))
    for other in others:
        for one, two in zip(first, other, strict=True):
            assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize("dtype", [F32, BF16, np.dtype(np.float16)], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_few_queries_are_as_near_as_xla_s(
    name: str, dtype: np.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(few, "LEAST_BYTES", 1)
    monkeypatch.setattr(sums_as_products, "LEAST_NUMBERS", 1)
    monkeypatch.setattr(few, "project_plain_us", lambda *given, **named: inf)
    function = SPELLINGS[name]
    arrays = make(dtype, heads=OF_GROUPS.get(function, HEADS_OF_FEW))
    before, after, calls = measure_errors(function, arrays)
    assert calls == 2
    assert all(a <= 1.2 * b + 1e-3 for a, b in zip(after, before, strict=True)), (before, after)


CACHES: dict[str, Callable[..., Any]] = {
    **{name: scaled_in_16_bits(function) for name, function in SPELLINGS.items()},
    **{function.__name__: function for function in (*LATE, *PAGED)},
}


@pytest.mark.parametrize("name", CACHES)
def test_caches_of_8_bits_and_of_pages_are_as_near_as_xla_s(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(few, "LEAST_BYTES", 1)
    monkeypatch.setattr(sums_as_products, "LEAST_NUMBERS", 1)
    monkeypatch.setattr(few, "project_plain_us", lambda *given, **named: inf)
    function = CACHES[name]
    if function in PAGED:
        arrays: list[Any] = make_pages(function)
    else:
        arrays = make_integers(LATE.get(function) or OF_GROUPS.get(SPELLINGS[name], HEADS_OF_FEW))
    before, after, calls = measure_errors(function, arrays)
    assert calls == 2
    assert all(a <= 1.2 * b + 1e-3 for a, b in zip(after, before, strict=True)), (before, after)
