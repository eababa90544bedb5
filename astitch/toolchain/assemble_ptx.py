"""Has the CUDA driver assemble PTX, in a process of its own, so that the driver keeps it on disk for others.

`python assemble_ptx.py DEVICE` works for the device of that number.  It reads pickled (name, PTX) pairs from standard
input until `None`, and writes one status byte per pair to standard output.  driver_assembly.py starts it by its path:
it imports nothing of astitch, because that would take longer than assembling.  `None` ends it because the end of
standard input may never come: a process that was forked meanwhile keeps the pipe open.
"""

from __future__ import annotations

import ctypes
import pickle
import sys


def main() -> None:
    """Answers nothing where there is no such device, or no room on it for a context."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), int(sys.argv[1]))
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        or driver.cuCtxSetCurrent(context)
    ):
        return
    for name, ptx in iter(lambda: pickle.load(sys.stdin.buffer), None):
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        if not driver.cuModuleLoadData(ctypes.byref(module), ptx):
            # Where modules are loaded lazily, this is what assembles them.
            driver.cuModuleGetFunction(ctypes.byref(kernel), module, name.encode())
            driver.cuModuleUnload(module)
        sys.stdout.buffer.write(b".")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
