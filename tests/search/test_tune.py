"""Tuning: which plan wins, what is kept, and that a kept schedule is taken without a GPU."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from hlo_runner import lower

import astitch
from astitch.compile import compile_hlo
from astitch.device.gpu import preset
from astitch.device.schedule import DEFAULT, Schedule
from astitch.errors import EngineUnavailable
from astitch.run import executor
from astitch.search import tune
from astitch.search.measure import Measurement
from astitch.system.private_files import seal, unseal

needs_no_gpu = pytest.mark.skipif(executor.count_gpus() > 0, reason="a GPU is there")
SOFTMAX = lower(lambda x: jax.nn.softmax(x, -1), np.zeros((4096, 8192), np.float32))


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))


def measure_as(monkeypatch: pytest.MonkeyPatch, time_of) -> list[Schedule]:
    """Replace the GPU by a function of the schedule; returns what it was asked to measure."""
    asked: list[Schedule] = []

    def measure(graph, plans, *, compiled, progress):
        found = []
        for plan in plans:
            asked.append(plan.schedule)
            progress()
            found.append(Measurement(time_of(plan.schedule), None, 1))
        return found

    monkeypatch.setattr(tune, "measure_plans", measure)
    monkeypatch.setattr(tune, "compile_plans", lambda plans, arch: [None] * len(plans))
    monkeypatch.setattr(tune, "_require_device", lambda gpu: None)
    return asked


def test_the_fastest_measured_plan_is_taken_and_kept(monkeypatch, tmp_path):
    asked = measure_as(monkeypatch, lambda s: 50.0 if s != DEFAULT else 100.0)
    (plan,) = compile_hlo(SOFTMAX, gpu="h100", tune=True).plans
    assert asked[0] == DEFAULT
    assert 2 <= len(asked) <= tune.MOST_MEASURED
    assert plan.schedule == asked[1]
    assert plan.notes[-1] == (f"tuned: {len(asked)} plans measured, 50.0 us; 100.0 us by the rules")
    (entry,) = (tmp_path / "plans").iterdir()
    kept = json.loads(unseal(entry.read_bytes(), tune.FORMAT, entry.stem) or "{}")
    assert (kept["time_us"], kept["default_us"]) == (50.0, 100.0)
    # The second compilation measures nothing.
    asked.clear()
    (again,) = compile_hlo(SOFTMAX, gpu="h100", tune=True).plans
    assert (again.schedule, again.kernel) == (plan.schedule, plan.kernel)
    assert not asked


def test_noise_and_refused_kernels_leave_the_rules_plan(monkeypatch):
    measure_as(monkeypatch, lambda s: 99.0 if s == DEFAULT else math.inf)
    (plan,) = compile_hlo(SOFTMAX, gpu="h100", tune=True).plans
    assert plan.schedule == DEFAULT
    assert plan.notes[-1] == "tuned: 1 plans measured, 99.0 us; 99.0 us by the rules"


def test_a_gain_within_the_noise_is_none(monkeypatch):
    measure_as(monkeypatch, lambda s: 100.0 if s == DEFAULT else 99.0)
    (plan,) = compile_hlo(SOFTMAX, gpu="h100", tune=True).plans
    assert plan.schedule == DEFAULT


def test_another_gpu_is_measured_anew(monkeypatch):
    asked = measure_as(monkeypatch, lambda s: 1.0)
    compile_hlo(SOFTMAX, gpu="h100", tune=True)
    first = len(asked)
    compile_hlo(SOFTMAX, gpu="a100", tune=True)
    assert len(asked) > first


@pytest.mark.parametrize("damage", ["", "{}", '{"format": "astitch plan 3", "schedule": {"x": 1}}'])
def test_a_damaged_entry_is_measured_anew(monkeypatch, tmp_path, damage):
    asked = measure_as(monkeypatch, lambda s: 1.0)
    compile_hlo(SOFTMAX, gpu="h100", tune=True)
    first = len(asked)
    (entry,) = (tmp_path / "plans").iterdir()
    entry.write_bytes(seal(damage.encode(), tune.FORMAT, entry.stem))
    compile_hlo(SOFTMAX, gpu="h100", tune=True)
    assert len(asked) == 2 * first


def test_nobody_asks_for_it(monkeypatch):
    asked = measure_as(monkeypatch, lambda s: 1.0)
    compile_hlo(SOFTMAX, gpu="h100")
    assert not asked


@needs_no_gpu
def test_without_a_gpu_tuning_is_refused():
    with pytest.raises(EngineUnavailable, match="leave out tune=True"):
        compile_hlo(SOFTMAX, gpu=preset("h100"), tune=True)


@needs_no_gpu
def test_jit_tunes_on_gpus_only():
    sys.modules["astitch.api.engines"]._warn_no_gpu.cache_clear()  # it is said once in a process
    with pytest.warns(RuntimeWarning, match="no GPU found"):
        tuned = astitch.jit(lambda x: x + 1, tune=True)(np.ones(3, np.float32))
    assert (np.asarray(tuned) == 2).all()
