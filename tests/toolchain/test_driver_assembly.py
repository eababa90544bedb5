"""PTX that the driver assembles in a background process: what it is asked for, in what order, and that nothing is told.

The driver is a library of a few lines that writes down what it is asked; it assembles while there is no file `busy`.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astitch.toolchain import assemble_ptx, driver_assembly
from astitch.toolchain.driver_assembly import Unit, assemble_in_background

DEVICE = SimpleNamespace(local_hardware_id=3)
UNITS = [Unit(f"k{n}", f"// {n} {'long ' * n}".encode()) for n in range(4)]
SECONDS = 60.0
DUMP = pickle.dump

LIBRARY = r"""
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <unistd.h>

static void note(const char* format, ...) {
  FILE* file = fopen("FOLDER/asked", "a");
  va_list values;
  va_start(values, format);
  vfprintf(file, format, values);
  va_end(values);
  fclose(file);
}

extern "C" {
int cuInit(unsigned) { return 0; }
int cuDeviceGet(int* device, int number) { *device = number; note("device %d\n", number); return number == 7; }
int cuDevicePrimaryCtxRetain(void** context, int device) { return device == 5; }
int cuCtxSetCurrent(void*) { return 0; }
int cuModuleLoadData(void** module, const char* text) {
  note("text %.4s\n", text);
  while (access("FOLDER/busy", F_OK) == 0) usleep(1000);
  *module = (void*)text;
  return strstr(text, "refused") ? 218 : 0;
}
int cuModuleGetFunction(void**, void*, const char* name) { note("kernel %s\n", name); return 0; }
int cuModuleUnload(void*) { note("unload\n"); return 0; }
}
"""


class Driver:
    """What the library in `folder` was asked."""

    def __init__(self, folder: Path) -> None:
        self._asked, self._busy = folder / "asked", folder / "busy"

    def asked(self, what: str) -> list[str]:
        """The values, in order."""
        lines = self._asked.read_text().splitlines() if self._asked.exists() else []
        return [line.partition(" ")[2] for line in lines if line.split()[0] == what]

    def stop(self) -> None:
        self._busy.touch()

    def go_on(self) -> None:
        self._busy.unlink()


@pytest.fixture(scope="module", name="library")
def _library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of libcuda.so.1."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cc").write_text(LIBRARY.replace("FOLDER", str(folder)))
    command = ["g++", "-shared", "-fPIC", "-o", "libcuda.so.1", "driver.cc"]
    subprocess.run(command, cwd=folder, check=True)
    return folder


@pytest.fixture(name="driver")
def _driver(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """No thread may end by an error."""
    for name in ("asked", "busy"):
        (library / name).unlink(missing_ok=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.delenv("CUDA_CACHE_DISABLE", raising=False)
    monkeypatch.setattr(driver_assembly, "open_driver", lambda: "the driver")
    monkeypatch.setattr(driver_assembly, "LEAST_BYTES", len(UNITS[0].ptx))
    errors: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    yield Driver(library)
    assert not errors


def wait_until(done: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < end
        time.sleep(0.002)


def wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("astitch-assemble"):
            thread.join(SECONDS)
            assert not thread.is_alive()


def assemble(device: Any = DEVICE) -> None:
    """All UNITS; waits for it."""
    with assemble_in_background(device) as begin:
        begin(UNITS)
    wait_for_threads()


def test_the_longest_comes_first_and_nothing_stays_loaded(driver: Driver) -> None:
    assemble()
    assert driver.asked("text") == ["// 3", "// 2", "// 1", "// 0"]
    assert driver.asked("kernel") == ["k3", "k2", "k1", "k0"]
    assert driver.asked("device") == ["3"]
    assert len(driver.asked("unload")) == len(UNITS)


def test_a_kernel_that_is_refused_is_left_to_whoever_loads_it(driver: Driver) -> None:
    with assemble_in_background(DEVICE) as begin:
        begin([*UNITS[:2], Unit("bad", b"// refused, and the longest")])
    wait_for_threads()
    assert driver.asked("kernel") == ["k1", "k0"]
    assert len(driver.asked("text")) == 3 and len(driver.asked("unload")) == 2


def test_what_comes_later_waits_its_turn_and_nothing_is_assembled_twice(driver: Driver) -> None:
    driver.stop()
    with assemble_in_background(DEVICE) as begin:
        begin(UNITS[:1])
        wait_until(lambda: driver.asked("text"))
        begin(UNITS[1:2])
        begin(UNITS[3:])
        begin(UNITS)
        driver.go_on()
    wait_for_threads()
    assert driver.asked("kernel") == ["k0", "k3", "k2", "k1"]


def test_units_are_assembled_while_others_are_awaited(driver: Driver) -> None:
    with assemble_in_background(DEVICE) as begin:
        for number, unit in enumerate(UNITS):
            begin([unit])
            wait_until(lambda number=number: len(driver.asked("unload")) == number + 1)
    wait_for_threads()
    assert driver.asked("kernel") == ["k0", "k1", "k2", "k3"]
    assert driver.asked("device") == ["3"]  # one process


def test_what_waits_when_compiling_failed_is_dropped(driver: Driver) -> None:
    driver.stop()
    with pytest.raises(ZeroDivisionError), assemble_in_background(DEVICE) as begin:
        begin(UNITS)
        wait_until(lambda: driver.asked("text"))
        raise ZeroDivisionError
    driver.go_on()
    wait_for_threads()
    assert driver.asked("kernel") == ["k3"]


@pytest.mark.parametrize("number", [5, 7])
def test_a_process_without_its_device_or_a_context_ends(number: int, driver: Driver) -> None:
    assemble(SimpleNamespace(local_hardware_id=number))
    assert driver.asked("device") == [str(number)] and not driver.asked("text")


@pytest.mark.parametrize("executable", ["/nowhere/python", "", None])
def test_a_process_that_cannot_be_begun_is_no_error(
    executable: str | None, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assemble()
    assert not driver.asked("device")


def test_a_process_ends_though_others_keep_its_input_open(driver: Driver) -> None:
    """A process that is forked meanwhile has all that its parent has open."""
    command = [sys.executable, "-I", "-S", assemble_ptx.__file__, "3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        for pair in (("k0", UNITS[0].ptx), None):
            pickle.dump(pair, process.stdin)
        process.stdin.flush()
        assert process.stdout.read(1) == b"." and process.wait(SECONDS) == 0
    assert driver.asked("kernel") == ["k0"]


def test_the_process_is_told_the_end(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(pickle, "dump", lambda pair, pipe: told.append(pair) or DUMP(pair, pipe))
    assemble()
    assert told == [*((unit.name, unit.ptx) for unit in reversed(UNITS)), None]


def test_what_comes_after_the_end_is_left_to_whoever_loads_it(driver: Driver) -> None:
    with assemble_in_background(DEVICE) as begin:
        pass
    begin(UNITS)
    wait_for_threads()
    assert not driver.asked("device")


def test_a_little_is_left_to_whoever_loads_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_assembly, "LEAST_BYTES", sum(len(u.ptx) for u in UNITS))
    with assemble_in_background(DEVICE) as begin:
        begin(UNITS[1:])
        begin(UNITS[1:])
    wait_for_threads()
    assert not driver.asked("device")
    assemble()
    assert len(driver.asked("kernel")) == len(UNITS)


def test_without_a_device_a_driver_or_its_cache_nothing_is_assembled(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assemble(device=None)
    monkeypatch.setenv("CUDA_CACHE_DISABLE", "1")
    assemble()
    monkeypatch.delenv("CUDA_CACHE_DISABLE")
    monkeypatch.setattr(driver_assembly, "open_driver", lambda: None)
    assemble()
    assert not driver.asked("device")
