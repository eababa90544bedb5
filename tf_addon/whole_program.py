"""Programs as functions of addresses, for the custom call of `ffi.py`.

Takes a Program and where it runs, hands on a function that reads its operands and writes its results where XLA has
them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from astitch.device.cuda_driver import StreamAddress
from astitch.graph.ir import ArrayType
from astitch.program.steps import Program
from astitch.run.device_array import DeviceArray
from astitch.run.executor import GpuExecutor, import_cupy
from astitch.run.host_engine import HostEngine
from tf_addon.ffi import Launch
from tf_addon.programs import Place


def make_launch(program: Program, place: Place) -> Launch:
    """The program ready to run.  Raises what HostEngine and GpuExecutor raise."""
    inputs = [view.type for view in program.parameters]
    outputs = [view.type for view in program.outputs]
    if place.gpu is None:
        host = HostEngine(program)

        def run_on_host(_: int, operands: Sequence[int], results: Sequence[int]) -> None:
            found = host.run([view_host(a, t) for a, t in zip(operands, inputs, strict=True)])
            for address, type_, array in zip(results, outputs, found, strict=True):
                view_host(address, type_)[...] = array

        return run_on_host
    executor = GpuExecutor(program, place.gpu)
    if place.staged:

        def run_staged(_: int, operands: Sequence[int], results: Sequence[int]) -> None:
            found = executor.run([view_host(a, t) for a, t in zip(operands, inputs, strict=True)])
            for address, type_, array in zip(results, outputs, found, strict=True):
                view_host(address, type_)[...] = array.to_numpy()

        return run_staged

    cupy = import_cupy()

    def run_in_place(stream: int, operands: Sequence[int], results: Sequence[int]) -> None:
        with cupy.cuda.Device(place.gpu), cupy.cuda.Stream.from_external(StreamAddress(stream)):
            given = [DeviceArray(a, t, None) for a, t in zip(operands, inputs, strict=True)]
            for address, array in zip(results, executor.run(given), strict=True):
                if array.type.bytes:
                    to_device = cupy.cuda.runtime.memcpyDeviceToDevice
                    cupy.cuda.runtime.memcpyAsync(
                        address, array.pointer, array.type.bytes, to_device, stream
                    )

    return run_in_place


def view_host(address: int, type_: ArrayType) -> np.ndarray[Any, Any]:
    """The array that lies at an address of the host."""
    if not type_.bytes:
        return np.empty(type_.shape, type_.dtype.numpy)
    memory = (ctypes.c_uint8 * type_.bytes).from_address(address)
    return np.ctypeslib.as_array(memory).view(type_.dtype.numpy).reshape(type_.shape)
