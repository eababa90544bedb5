"""Measuring: what is made up for a kernel's arguments, and what is said without a GPU."""

import dataclasses

import jax
import numpy as np
import pytest
from hlo_runner import lower

import astitch
from astitch.device.gpu import from_device, measure_copy_gbs
from astitch.device.schedule import DEFAULT
from astitch.errors import EngineUnavailable
from astitch.graph.ir import ArrayType, DType
from astitch.hlo_import import import_hlo
from astitch.rewrite.simplify import simplify
from astitch.run import executor
from astitch.search.measure import import_cupy, make_values, measure_plans
from astitch.search.plan import plan_scope, rank_plans
from tests.scopes import find_scopes

needs_no_gpu = pytest.mark.skipif(executor.count_gpus() > 0, reason="a GPU is there")


def softmax(x):
    return jax.nn.softmax(x, axis=-1)


@pytest.mark.parametrize("dtype", [d for d in DType if not d.is_complex and not d.is_opaque])
def test_values_are_safe_for_logarithms_and_for_indices(dtype: DType) -> None:
    values = make_values(ArrayType(dtype, (1000,)), 0)
    assert values.dtype == dtype.numpy
    wide = values.astype(np.float64)
    assert np.isfinite(wide).all()
    if dtype is DType.PRED or dtype.is_integer:
        assert (wide >= 0).all()
        assert wide.max() < 8
    else:
        assert wide.min() > 0.08
        assert wide.max() <= 1


def test_equal_seeds_give_equal_values() -> None:
    array = ArrayType(DType.F32, (10,))
    assert (make_values(array, 3) == make_values(array, 3)).all()
    assert (make_values(array, 3) != make_values(array, 4)).any()


@needs_no_gpu
def test_without_a_gpu_measuring_says_what_to_do() -> None:
    with pytest.raises(EngineUnavailable, match="leave out tune=True"):
        import_cupy()


@pytest.mark.gpu
def test_measured_plans_agree_and_take_time() -> None:
    gpu = from_device()
    graph = simplify(import_hlo(lower(softmax, np.zeros((4096, 2048), np.float32))))
    (scope,) = find_scopes(graph).scopes
    plans = [plan for plan, _ in rank_plans(graph, scope, gpu, budget=6)]
    measured = measure_plans(graph, plans)
    assert [m.fault for m in measured] == [""] * len(plans)
    least_us = 2 * 4096 * 2048 * 4 / gpu.l2_gbs / 1e3
    for found in measured:
        assert least_us / 2 < found.time_us < 1000
        assert found.resources is not None
        assert found.blocks_per_sm >= 1


@pytest.mark.gpu
def test_a_kernel_with_other_results_is_no_candidate() -> None:
    gpu = from_device()
    graph = simplify(import_hlo(lower(softmax, np.zeros((512, 512), np.float32))))
    (scope,) = find_scopes(graph).scopes
    plan = plan_scope(graph, scope, gpu, DEFAULT)
    assert plan is not None
    nothing = dataclasses.replace(plan, kernel=dataclasses.replace(plan.kernel, body=()))
    right, wrong = measure_plans(graph, [plan, nothing])
    assert right.fault == ""
    assert "NaN" in wrong.fault
    assert wrong.time_us == float("inf")


@pytest.mark.gpu
def test_tuned_programs_compute_the_same(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    x = np.random.default_rng(0).random((2048, 4096), np.float32)
    tuned = astitch.jit(softmax, tune=True)
    np.testing.assert_allclose(np.asarray(tuned(x)), jax.nn.softmax(x, -1), rtol=1e-5)
    assert len(list((tmp_path / "plans").iterdir())) == 1
    compiled = astitch.jit(softmax, tune=True).lower(x).compile()
    assert "an earlier compilation" in compiled.compilation.plans[0].notes[-1]


@pytest.mark.gpu
def test_the_copys_bandwidth_is_near_the_presets() -> None:
    assert 0.7 < measure_copy_gbs() / from_device().bandwidth_gbs < 1.3
    assert from_device(measure=True).bandwidth_gbs != from_device().bandwidth_gbs
