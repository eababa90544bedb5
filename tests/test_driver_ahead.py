"""PTX that the driver assembles ahead: what it is asked for, in what order, and that nothing is told."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from astitch import driver_ahead
from astitch.driver_ahead import Unit, assemble_ahead

DEVICE = SimpleNamespace(local_hardware_id=3)
UNITS = [Unit(f"k{n}", f"// {'long ' * n}".encode()) for n in range(4)]


class Driver:
    """CUDA's, which notes what it is asked.  refused: the texts that it cannot assemble."""

    def __init__(self, *refused: bytes) -> None:
        self.refused, self.lock = refused, threading.Lock()
        self.texts: list[bytes] = []
        self.kernels: list[str] = []
        self.devices: list[int] = []
        self.retained = self.unloaded = 0

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        self.devices.append(number)
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        with self.lock:
            self.retained += 1
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: Any) -> int:  # noqa: N802
        with self.lock:
            self.retained -= 1
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:  # noqa: N802
        return 0

    def cuModuleLoadData(self, module: Any, text: bytes) -> int:  # noqa: N802
        with self.lock:
            self.texts.append(text)
        return 218 if text in self.refused else 0

    def cuModuleGetFunction(self, kernel: Any, module: Any, name: bytes) -> int:  # noqa: N802
        with self.lock:
            self.kernels.append(name.decode())
        return 0

    def cuModuleUnload(self, module: Any) -> int:  # noqa: N802
        with self.lock:
            self.unloaded += 1
        return 0


def assemble(driver: Driver | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """All UNITS; waits for it."""
    monkeypatch.setattr(driver_ahead, "open_driver", lambda: driver)
    assemble_ahead(UNITS, DEVICE)
    for thread in threading.enumerate():
        if thread.name.startswith("astitch-assemble"):
            thread.join(60)


def test_the_longest_comes_first_and_nothing_stays_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    assemble(driver, monkeypatch)
    assert driver.texts == [unit.ptx for unit in reversed(UNITS)]
    assert driver.kernels == [unit.name for unit in reversed(UNITS)]
    assert driver.devices == [3] * len(UNITS)
    assert driver.retained == 0 and driver.unloaded == len(UNITS)


def test_a_kernel_that_is_refused_is_left_to_whoever_loads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver(UNITS[2].ptx)
    assemble(driver, monkeypatch)
    assert sorted(driver.kernels) == ["k0", "k1", "k3"]
    assert driver.retained == 0 and driver.unloaded == 3


def test_without_a_driver_or_its_cache_nothing_is_assembled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assemble(None, monkeypatch)
    monkeypatch.setenv("CUDA_CACHE_DISABLE", "1")
    driver = Driver()
    assemble(driver, monkeypatch)
    assert not driver.texts
