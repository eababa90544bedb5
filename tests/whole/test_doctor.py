"""What those who run astitch on many machines see of it: doctor, status, events and counters."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import astitch
from astitch import doctor, events, options
from astitch.api import installation
from astitch.faults import FaultLog, leave_to_xla, report_faults
from tests.conftest import count_gpus


@pytest.fixture(autouse=True)
def count_anew(host_engine: None) -> None:
    events._counts.clear()


def normalise(x):
    import jax.numpy as jnp

    return x / jnp.sqrt(jnp.square(x).sum(-1, keepdims=True))


def test_the_doctor_runs_a_kernel_on_what_is_here() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "astitch.doctor", "--json"], capture_output=True, text=True
    )
    said = json.loads(ran.stdout)
    parts = {finding["part"]: finding for finding in said["findings"]}
    assert said["works"]
    assert parts["host"]["good"] and "compiled and ran a kernel" in parts["host"]["says"]
    if not count_gpus():
        assert parts["executor"]["good"] is None


@pytest.mark.gpu
def test_the_doctor_runs_a_kernel_on_the_gpu() -> None:
    assert doctor.try_engine("executor").good


def test_a_dead_engine_takes_nobody_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTITCH_CACHE_DIR", "/proc/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")  # no g++
    found = doctor.try_engine("host")
    assert found.good is False
    assert "g++" in found.says + found.advice


def test_a_driver_that_is_too_old_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "driver_version", lambda: (12, 2))
    installation.warn_of_installation.cache_clear()
    with pytest.warns(
        installation.InstallationWarning,
        match=r"the driver is of CUDA 12\.2, and kernels need 12\.3\n  install a newer NVIDIA driver",
    ):
        astitch.jit(normalise, engine="gpu").__class__  # noqa: B018
        installation.warn_of_installation()
    installation.warn_of_installation.cache_clear()


def test_a_name_that_nothing_reads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTITCH_CHECK", "1")
    found = installation._check_names()
    assert found.good is False
    assert found.says == "nothing reads ASTITCH_CHECK"
    assert found.advice == "ASTITCH_CHECK: astitch.enable(check=True)"


def test_a_compile_is_an_event(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    monkeypatch.setenv("ASTITCH_LOG", str(log))
    astitch.jit(normalise)(np.ones((8, 16), np.float32))
    (event,) = map(json.loads, log.read_text().splitlines())
    assert event["event"] == "compile"
    assert event["program"] == "jit_normalise"
    assert (event["outcome"], event["kernels"], event["engine"]) == ("stitched", 1, "host")
    assert set(event) >= {"time", "host", "pid", "seconds"}


def test_a_fallback_is_an_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "astitch.events")
    with pytest.warns(RuntimeWarning, match="XLA computes all of f"):
        leave_to_xla("f", "it has effects")
    (record,) = caplog.records
    event = json.loads(record.getMessage())
    assert event["event"] == "fallback"
    assert (event["program"], event["cause"]) == ("f", "unsupported")
    assert event["reason"] == "it has effects"


def test_a_fault_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASTITCH_DUMP", str(tmp_path))
    faults = FaultLog(raises=False)
    faults.note(ZeroDivisionError("by zero"), stage="plan", subject="stitch_0", cost="XLA's")
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        report_faults("f", "HloModule f", "host", faults.found)
    assert events.read_counters()['astitch_fallbacks_total{cause="fault"}'] == 1


def test_a_log_that_cannot_be_written_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTITCH_LOG", "/proc/nowhere/log")
    with pytest.warns(events.LogWarning, match="ASTITCH_LOG names a file"):
        events.note_tune("stitch_0", plans=8, us=10.0, default_us=12.0)


def test_counters_are_prometheus_text() -> None:
    astitch.jit(normalise)(np.ones((8, 16), np.float32))
    text = astitch.metrics()
    line = re.compile(r'# (HELP|TYPE) astitch_\w+ .+|astitch_\w+(\{\w+="\w+"\})? [0-9.e+-]+')
    assert all(line.fullmatch(part) for part in text.splitlines())
    assert 'astitch_compiles_total{outcome="stitched"} 1\n' in text
    assert "astitch_kernels_total 1\n" in text
    assert "astitch_tunes_total 0\n" in text
    assert text.endswith("\n")


def test_status_is_a_value_and_a_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASTITCH_CACHE_DIR", str(tmp_path))
    astitch.jit(normalise)(np.ones((8, 16), np.float32))
    found = astitch.status()
    assert found.environment["ASTITCH_CACHE_DIR"] == str(tmp_path)
    assert not found.enabled
    assert json.loads(json.dumps(found.to_dict()))["counters"]["astitch_kernels_total"] == 1
    assert 'astitch_compiles_total{outcome="stitched"} 1' in str(found)


def test_status_says_that_without_a_gpu_all_programs_are_xlas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("astitch.api.status.driver_version", lambda: None)
    found = replace(astitch.status(), enabled=True)
    assert "there is no GPU: XLA compiles them as ever" in str(found)
    assert "there is no GPU" not in str(replace(found, driver="13.0"))
    assert "there is no GPU" not in str(replace(found, enabled=False))


def test_names_that_went_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTITCH_CHECK", "1")
    options._warn_of_replaced.cache_clear()
    with pytest.warns(RuntimeWarning, match="ASTITCH_CHECK is not read any more\n  astitch.enable"):
        options.debug_level()
    options.debug_level()  # silent: pytest makes warnings of the second one errors below
    options._warn_of_replaced.cache_clear()
