"""The benchmark of the compiler itself: what it counts, and that it leaves the cache of whoever runs it alone."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from benchmarks import compile_time


def test_growth_is_a_power() -> None:
    assert compile_time.exponent((1_000, 0.5), (10_000, 5.0)) == pytest.approx(1.0)
    assert compile_time.exponent((1_000, 0.5), (10_000, 50.0)) == pytest.approx(2.0)
    assert compile_time.exponent((1_000, 0.0), (10_000, 5.0)) == 0.0


@pytest.mark.parametrize("shape", sorted(compile_time.SHAPES))
def test_synthetic_graphs_have_about_as_many_ops(shape: str) -> None:
    function, arguments = compile_time.SHAPES[shape](240)
    data = compile_time.lower_for_gpu(function, *arguments)
    found = compile_time.time_compilation(shape, data, "host", 1)
    assert 80 <= found.ops <= 500 and found.kernels > 0
    assert 0 < found.forms <= found.kernels and found.stage_s["plan"] > 0


def test_a_cold_compilation_makes_every_kernel_in_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(compile_time.CACHE, str(tmp_path))
    x = jax.ShapeDtypeStruct((64, 256), jnp.float32)
    data = compile_time.lower_for_gpu(jax.nn.softmax, x)
    compiled = []

    def compile_one(data: bytes, gpu: str) -> compile_time.Compilation:
        compiled.append(compile_time.compile_cold(data, gpu))
        return compiled[-1]

    found = compile_time.time_compilation("softmax", data, "h100", 1, compile_one)
    assert found.kernels == len(compiled[0].program.kernels) == 1
    assert found.stage_s["kernels"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("side", compile_time.SIDES)
def test_a_first_call_is_told_by_its_steps(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTITCH_ENGINE", "host")
    found = compile_time.time_first_call("dien/infer/tiny", side)
    assert found.entry == "dien/infer/tiny" and found.side == side
    assert found.trace_s > 0 and found.lower_s > 0
    steps = found.trace_s + found.lower_s + found.xla_s + found.rest_s
    assert steps == pytest.approx(found.total_s)
    assert f"{found.total_s:.1f} s" in str(found)
