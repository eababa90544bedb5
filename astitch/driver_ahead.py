"""Kernels assembled by the CUDA driver while XLA still compiles the program around them.

Takes PTX, hands on nothing.  The idea: XLA loads kernels one after the other when a program first runs, asks for a
verbose log of each, and the driver assembles them then; but it keeps on disk what it has assembled, whoever asked.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from astitch.cuda_driver import open_driver


@dataclass(frozen=True, slots=True)
class Unit:
    """PTX with one kernel, and what that is called in it."""

    name: str
    ptx: bytes = field(repr=False)


def assemble_ahead(units: Iterable[Unit], device: Any) -> None:
    """Begins to assemble PTX for a device of JAX's, the longest first; returns at once.

    An error is not told: XLA meets it again when it loads the kernel.  Nothing is done where there is no driver, or
    where it was told to keep nothing.
    """
    driver = open_driver()
    if driver is None or os.environ.get("CUDA_CACHE_DISABLE", "0") == "1":
        return
    pool = ThreadPoolExecutor(1, "astitch-assemble")  # the driver assembles one at a time
    for unit in sorted(units, key=lambda unit: -len(unit.ptx)):
        pool.submit(_load_once, driver, unit, device.local_hardware_id)
    pool.shutdown(wait=False)


def _load_once(driver: ctypes.CDLL, unit: Unit, number: int) -> None:
    """Loads a kernel into the device's primary context, which JAX's client is in, and gives it back."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuDeviceGet(ctypes.byref(device), number):
        return
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return
    try:
        driver.cuCtxSetCurrent(context)
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        if driver.cuModuleLoadData(ctypes.byref(module), unit.ptx):
            return
        # Where modules are loaded lazily, this is what assembles them.
        driver.cuModuleGetFunction(ctypes.byref(kernel), module, unit.name.encode())
        driver.cuModuleUnload(module)
    finally:
        driver.cuCtxSetCurrent(None)
        driver.cuDevicePrimaryCtxRelease_v2(device)
