"""What CUDA's driver says of itself and of its devices, without CuPy and without a context; and streams by address.

Opens libcuda where it is installed; hands on numbers.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from astitch.errors import AstitchError


@functools.cache
def open_driver() -> ctypes.CDLL | None:
    """CUDA's driver, None on a machine without one."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class StreamAddress:
    """A CUstream that somebody else made and keeps, for `cupy.cuda.Stream.from_external`."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version 0 of the protocol, and the stream."""
        return 0, self.address


@functools.cache
def driver_version() -> tuple[int, int] | None:
    """The CUDA version of the driver, None on a machine without one."""
    driver, version = open_driver(), ctypes.c_int()
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(version)) or version.value == 0:
        return None
    return version.value // 1000, version.value % 1000 // 10


@functools.cache
def count_devices() -> int:
    """The devices that CUDA_VISIBLE_DEVICES leaves; 0 without a driver or a device."""
    driver, count = open_driver(), ctypes.c_int()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def read_attributes(number: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """Attributes of device `number`.  wanted: CUdevice_attribute by a name of the caller's.

    Raises AstitchError where there is no such device or attribute.
    """
    driver, device, value = open_driver(), ctypes.c_int(), ctypes.c_int()
    if driver is None:
        raise AstitchError("no driver: libcuda.so.1 is not there")
    if not 0 <= number < count_devices():
        raise AstitchError(f"the driver sees {count_devices()} devices")
    _check(driver, driver.cuDeviceGet(ctypes.byref(device), number))
    found = {}
    for name, attribute in wanted.items():
        _check(driver, driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device))
        found[name] = value.value
    return found


def _check(driver: ctypes.CDLL, status: int) -> None:
    if status:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(status, ctypes.byref(name))
        raise AstitchError((name.value or b"error %d" % status).decode())
