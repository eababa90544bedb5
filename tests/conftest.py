"""Fixtures and rules for all tests.

Those marked `gpu` want a GPU that CuPy sees, those marked `xla_hook` XLA's hook."""

from __future__ import annotations

import functools
import os
from importlib import metadata

import pytest

from astitch.run import emulate

# An error inside astitch fails the test; tests of the safety net put it up again.
os.environ["ASTITCH_FAULTS"] = "raise"

# g++ takes a quarter less time, and the numbers are the same; processes that tests start compile as users do.
emulate.FAST_FLAGS = ("-O1",)


@functools.cache
def count_gpus() -> int:
    """GPUs that CuPy can use; 0 without CuPy or without a driver."""
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # a missing package, driver or device, each with an error of its own
        return 0


def choose_xla_flags() -> str:
    """So that XLA for the CPU compiles a small program in a quarter of the time: it is a judge, and mostly compiles.

    Nothing where a GPU or a newer XLA would understand them differently, or not at all."""
    known = version_of("jaxlib") < (0, 11) and version_of("tensorflow-cpu", "tensorflow") >= (2, 21)
    if not known or count_gpus():
        return ""
    return "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


def version_of(*packages: str) -> tuple[int, ...]:
    """Major and minor number of the first that is installed; where none is, nothing is newer."""
    for package in packages:
        try:
            return tuple(map(int, metadata.version(package).split(".")[:2]))
        except metadata.PackageNotFoundError:
            continue
    return (99,)


# XLA reads them once, when the first program is compiled; those of the environment have the last word.
if flags := choose_xla_flags():
    os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}".strip()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not count_gpus():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU and CuPy"))
    hooked = [item for item in items if item.get_closest_marker("xla_hook")]
    if hooked and (reason := why_no_hook()):
        for item in hooked:
            item.add_marker(pytest.mark.skip(reason=f"{reason} (make test-xla)"))


@functools.cache
def why_no_hook() -> str:
    """What is missing to compile for a GPU that is not here, through XLA's hook; nothing: the empty string."""
    from astitch.profiling.xla_ahead import find_plugin

    if find_plugin() is None:
        return "needs XLA's compiler for NVIDIA GPUs"
    from astitch.api.enabling import why_no_hook

    return why_no_hook().partition("\n")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the emitted text to tests/golden instead of comparing",
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def host_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that name no engine run in the emulation, also where there is a GPU; not those of other processes."""
    monkeypatch.setattr("astitch.api.engines.DEFAULT", "host")


@pytest.fixture
def sorts_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel sorts: short sorts stand for what is left to XLA, as long ones are."""
    monkeypatch.setattr("astitch.pipeline.sort_rows", lambda graph: graph)
    monkeypatch.setattr("astitch.graph.ops.windows.MOST_SORTED", 0)
