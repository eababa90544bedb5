"""The benchmark of the compiler itself: what it counts, and that it leaves the cache of whoever runs it alone."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

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
@pytest.mark.usefixtures("host_engine")
def test_a_first_call_is_told_by_its_steps(
    side: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(compile_time.CACHE, str(tmp_path))
    jax.clear_caches()  # what another test traced is no first call
    found = compile_time.time_first_call("dien/infer/tiny", side)
    assert found.entry == "dien/infer/tiny" and found.side == side
    assert found.trace_s > 0 and found.lower_s > 0
    steps = found.trace_s + found.lower_s + found.xla_s + found.rest_s
    assert steps == pytest.approx(found.total_s)
    assert f"{found.total_s:.1f} s" in str(found)


def test_every_first_call_has_a_process_and_empty_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compile_time.JAX_CACHE, "somewhere")
    told = compile_time.FirstCall("crnn/infer/full", "xla", 3.0, 0.5, 0.5, 1.0, 1.0)
    places: list[str] = []

    def run(command: list[str], env: dict[str, str], **_: object) -> SimpleNamespace:
        assert command[-3] == "--first-call" and compile_time.JAX_CACHE not in env
        places.extend(env[name] for name in (compile_time.CACHE, compile_time.DRIVER_CACHE))
        return SimpleNamespace(stdout=f"a warning\n{json.dumps(asdict(told))}\n")

    monkeypatch.setattr(subprocess, "run", run)
    calls = list(compile_time.time_first_calls(["crnn/infer"]))
    assert calls == [told, told] and len(set(places)) == 4
    assert not any(Path(place).exists() for place in places)
