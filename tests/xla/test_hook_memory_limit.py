"""memory_limit= through XLA's hook: what XLA plans then, compiled for a GPU that is not here."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import astitch
from astitch.api import fitting
from astitch.api.transformation import journal
from astitch.faults import FaultWarning
from astitch.show.memory import MemoryLimitWarning
from tests.ahead_of_time import GPU, devices, needs_hook

pytestmark = needs_hook

ROWS, WIDTH, LAYERS = 8192, 256, 6
LAYER = ROWS * WIDTH * 2
"""Bytes of a layer's activations."""


@pytest.fixture(autouse=True)
def planned_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes out of the cache of an earlier process, which keeps no explanations."""
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))


def make_step(act: Any) -> Any:
    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = act(x @ w.astype(x.dtype))
        return jnp.square(x.astype(jnp.float32)).mean()

    def step(weights: Any, x: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return [a - 1e-3 * b for a, b in zip(weights, gradients, strict=True)], value

    return step


def plan(step: Any, limit: Any = None, *, stitches: bool = True) -> int:
    from jax.sharding import SingleDeviceSharding

    place = SingleDeviceSharding(devices()[0])
    weights = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32, sharding=place)] * LAYERS
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16, sharding=place)
    jax.clear_caches()
    with astitch.enabled(gpu=GPU, memory_limit=limit) if stitches else nullcontext():
        traced = jax.jit(step, donate_argnums=0).trace(weights, x)
        compiled = traced.lower(lowering_platforms=("cuda",)).compile()
    planned = fitting.planned_bytes(compiled.runtime_executable())
    assert planned is not None
    return planned


@pytest.mark.parametrize("act", [jax.nn.gelu, jax.nn.silu, jax.nn.softplus])
def test_planned_memory_keeps_to_the_limit(act: Any) -> None:
    step = make_step(act)
    usual = plan(step)
    before = journal.report().stitched
    limit = usual - 2 * LAYER
    with warnings.catch_warnings():
        warnings.simplefilter("error", MemoryLimitWarning)
        planned = plan(step, limit)
    assert usual - 4 * LAYER < planned <= limit
    report = journal.report()
    assert report.stitched == before + 1, "of a program that is compiled again the last one counts"
    assert "to keep to the memory limit" in report.programs[-1].explain()
    assert plan(step, 2 * usual) == plan(step) == usual


def test_what_does_not_fit_is_said(recwarn: pytest.WarningsRecorder) -> None:
    step = make_step(jax.nn.gelu)
    usual = plan(step)
    planned = plan(step, "1 MB")
    assert planned < usual - 2 * LAYER
    (said,) = [w for w in recwarn if w.category is MemoryLimitWarning]
    text = str(said.message)
    assert f"{planned / 1e6:.1f} MB are planned, where memory_limit asks for 1.0 MB" in text
    assert "jax.checkpoint" in text and "read by" in text


def test_a_fault_costs_only_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    step = make_step(jax.nn.gelu)
    usual = plan(step)

    def fail(*_: Any) -> Any:
        raise KeyError("wrong")

    monkeypatch.setenv("ASTITCH_FAULTS", "")
    monkeypatch.setattr("astitch.pipeline.keep_within", fail)
    with pytest.warns(FaultWarning, match="nothing is computed again for the memory limit"):
        assert plan(step, usual - 2 * LAYER) <= usual


def test_a_compile_that_fails_leaves_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try is estimated to fit, and does not."""
    step = make_step(jax.nn.gelu)
    usual = plan(step)
    monkeypatch.setattr(fitting, "planned_bytes", lambda made: usual)
    calls = []

    class Compiling:
        memory_limit, stitched, off, is_alone, entry, name = (
            10 * LAYER,
            True,
            False,
            True,
            None,
            "f",
        )

        def keep(self) -> tuple[Any, ...]:
            return ("first",)

        def start_anew(self, less: int) -> None:
            calls.append(less)

        def go_back(self, kept: tuple[Any, ...]) -> None:
            calls.append(kept)

    def fail() -> Any:
        raise RuntimeError("XLA is out of order")

    with pytest.warns(FaultWarning, match="less memory cannot be had"):
        assert fitting.fit_memory("made", fail, Compiling()) == "made"  # type: ignore[arg-type]
    assert calls[-1] == ("first",)
