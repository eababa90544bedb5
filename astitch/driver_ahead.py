"""Kernels assembled by the CUDA driver while XLA still compiles the program around them.

Takes PTX as XLA will load it, hands on nothing.  The idea: XLA loads kernels one after the other when a program first
runs, and the driver assembles each then; but it keeps on disk what it has assembled, and threads can ask for it before.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from astitch.nvrtc import count_threads, open_driver

_ERROR_LOG, _ERROR_LOG_BYTES, _INFO_LOG, _INFO_LOG_BYTES, _VERBOSE = 5, 6, 3, 4, 12
_LOG_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Unit:
    """PTX with one kernel, and what that is called in it."""

    name: str
    ptx: str = field(repr=False)


def assemble_ahead(units: Iterable[Unit], device: Any) -> None:
    """Begins to assemble PTX for a device of JAX's, the longest first; returns at once.

    An error is not told: XLA meets it again when it loads the kernel.  Nothing is done where there is no driver, or
    where it was told to keep nothing.
    """
    driver = open_driver()
    if driver is None or os.environ.get("CUDA_CACHE_DISABLE", "0") == "1":
        return
    pool = ThreadPoolExecutor(count_threads(), "astitch-assemble")
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
        options, values, logs = _xla_options()
        text = unit.ptx.encode()
        if driver.cuModuleLoadDataEx(ctypes.byref(module), text, len(options), options, values):
            return
        del logs  # which had to live until now
        # Where modules are loaded lazily, this is what assembles them.
        driver.cuModuleGetFunction(ctypes.byref(kernel), module, unit.name.encode())
        driver.cuModuleUnload(module)
    finally:
        driver.cuCtxSetCurrent(None)
        driver.cuDevicePrimaryCtxRelease_v2(device)


def _xla_options() -> tuple[Any, Any, Any]:
    """The options with which XLA loads PTX (xla/stream_executor/cuda/cuda_executor.cc): names, values, and the logs
    that these point to."""
    logs = [ctypes.create_string_buffer(_LOG_BYTES) for _ in range(2)]
    chosen = {
        _ERROR_LOG_BYTES: _LOG_BYTES,
        _ERROR_LOG: ctypes.addressof(logs[0]),
        _INFO_LOG_BYTES: _LOG_BYTES,
        _INFO_LOG: ctypes.addressof(logs[1]),
        _VERBOSE: 1,
    }
    count = len(chosen)
    return (ctypes.c_int * count)(*chosen), (ctypes.c_void_p * count)(*chosen.values()), logs
