"""Fixtures and rules for all tests: tests marked `gpu` are skipped where CuPy sees no GPU."""

from __future__ import annotations

import functools
import os

import pytest

# An error inside astitch fails the test; tests of the safety net put it up again.
os.environ["ASTITCH_FAULTS"] = "raise"


@functools.cache
def count_gpus() -> int:
    """GPUs that CuPy can use; 0 without CuPy or without a driver."""
    try:
        import cupy

        return int(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # a missing package, driver or device, each with an error of its own
        return 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not count_gpus():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU and CuPy"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the emitted text to tests/golden instead of comparing",
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
