"""Steps of a program on a GPU that no kernel and no library call of ours computes: XLA does, or NumPy.

Takes steps for XLA, for a library and for the reference, hands on what launches them.  Where JAX has the GPU,
XLA computes on it; else, with a warning, on the host.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from astitch.errors import EngineUnavailable, FallbackRefused
from astitch.graph.reference import eval_node
from astitch.hlo.export import export_call
from astitch.library.xla_fallback import (
    CompilerOptions,
    FallbackSubgraph,
    compile_fallback,
    find_device,
    has_jax,
    host_device,
    put_array,
)
from astitch.program.steps import (
    ALIGNMENT_BYTES,
    FallbackStep,
    LibraryStep,
    Program,
    ReferenceStep,
    Space,
    View,
)
from astitch.run.device_array import DeviceArray, JaxHandover
from astitch.run.device_memory import DeviceMemory
from astitch.run.gpu_call import Call, PreparedStep
from astitch.run.stream_turns import StreamTurns


class OutsideSteps:
    """Launches what XLA or NumPy computes of a program.

    device: CUDA's number of the current device.  made_by_xla: the buffers whose values lie where XLA puts them.
    compiler_options: see compile_fallback.
    """

    def __init__(
        self,
        program: Program,
        memory: DeviceMemory,
        turns: StreamTurns,
        handover: JaxHandover,
        device: int,
        compiler_options: CompilerOptions = MappingProxyType({}),
    ) -> None:
        self._program, self._device = program, device
        self._compiler_options = compiler_options
        self._memory, self._turns, self._handover = memory, turns, handover
        self.made_by_xla: set[str] = set()

    def prepare_fallback(self, step: FallbackStep) -> PreparedStep:
        """A part that XLA computes."""
        return self._prepare(step.name, step.hlo, step.operands, step.results)

    def prepare_library(self, step: LibraryStep) -> PreparedStep:
        """A step through XLA into the libraries that it calls; through NumPy without JAX."""
        if not has_jax():
            return self.prepare_reference(step)
        hlo = export_call(step.node, [view.type for view in step.operands])
        return self._prepare(f"%{step.node.name}", hlo, step.operands, step.results)

    def prepare_reference(self, step: LibraryStep | ReferenceStep) -> PreparedStep:
        """The step on the host without JAX: its operands fetched, its results sent back.  Slow; explain() lists it."""
        warnings.warn(
            f"{self._program.name}, %{step.node.name}: JAX is not installed, so NumPy computes this on the host; "
            "install jax[cuda13] or jax[cuda12]",
            RuntimeWarning,
            stacklevel=2,
        )

        def interpret(call: Call) -> None:
            operands = [self._fetch(call, view) for view in step.operands]
            results = eval_node(step.node, operands)
            for view, array in zip(step.results, results, strict=True):
                self._memory.write(call.addresses[view.buffer], array, call.stream)

        return PreparedStep(interpret)

    def _prepare(
        self, name: str, hlo: bytes, operands: Sequence[View], results: Sequence[View]
    ) -> PreparedStep:
        """A part that XLA computes, on this GPU where JAX has it, else on the host."""
        what = f"{self._program.name}, {name}"
        device = find_device("gpu", self._device)
        if device is None:
            why = "JAX has no GPU here, so XLA computes this on the host; install jax[cuda13] or jax[cuda12]"
            fallback = compile_fallback(hlo, host_device(), what, self._compiler_options)
            return self._prepare_host_fallback(fallback, operands, results, f"{what}: {why}")
        try:
            fallback = compile_fallback(hlo, device, what, self._compiler_options)
        except FallbackRefused as refused:
            fallback = _compile_for_host(hlo, what, refused)
            why = f"{refused}\n  until then XLA computes it on the host"
            return self._prepare_host_fallback(fallback, operands, results, why)
        self.made_by_xla.update(view.buffer for view in results)

        def run(call: Call) -> None:
            found = fallback.run(self._share(call, operands, fallback))
            for view, array in zip(results, found, strict=True):
                # No copy: the steps that follow read it where XLA put it.
                call.addresses[view.buffer] = (
                    int(array.unsafe_buffer_pointer()) if array.size else 0
                )
                if self._program.buffers[view.buffer].space is Space.OUTPUT:
                    call.outputs[view.buffer] = array
            call.in_use.extend(found)

        return PreparedStep(run)

    def _share(self, call: Call, views: Sequence[View], fallback: FallbackSubgraph) -> list[Any]:
        """The JAX arrays of operands, on the same memory where they lie as XLA wants its own."""
        arrays = [self._align(call, view) for view in views if view.type.size]
        event = self._turns.take_event()
        event.record()
        shared = iter(self._handover.adopt(arrays, fallback.device, event))
        self._turns.return_event(event)
        return [
            next(shared)
            if view.type.size
            else put_array(np.empty(view.type.shape, view.type.dtype.numpy), fallback.device)
            for view in views
        ]

    def _align(self, call: Call, view: View) -> DeviceArray:
        """The array where it lies, or a copy of an argument that is part of a larger array."""
        pointer = call.addresses[view.buffer]
        if not pointer % ALIGNMENT_BYTES:
            return DeviceArray(pointer, view.type, None)
        memory = self._memory.allocate(view.type.bytes, f"a copy of {view.buffer}")
        self._memory.copy(int(memory.ptr), pointer, view.type.bytes, call.stream)
        return DeviceArray(int(memory.ptr), view.type, memory)

    def _prepare_host_fallback(
        self,
        fallback: FallbackSubgraph,
        operands: Sequence[View],
        results: Sequence[View],
        why: str,
    ) -> PreparedStep:
        """The fallback on the host, which a warning tells.  Its operands are fetched, its results sent back."""
        warnings.warn(why, RuntimeWarning, stacklevel=2)

        def run(call: Call) -> None:
            arrays = [self._fetch(call, view) for view in operands]
            found = fallback.run([put_array(array, fallback.device) for array in arrays])
            for view, array in zip(results, found, strict=True):
                self._memory.write(call.addresses[view.buffer], np.asarray(array), call.stream)

        return PreparedStep(run)

    def _fetch(self, call: Call, view: View) -> np.ndarray:
        return DeviceArray(call.addresses[view.buffer], view.type, None).to_numpy()


def _compile_for_host(hlo: bytes, what: str, refused: FallbackRefused) -> FallbackSubgraph:
    """The fallback for the host.  Raises what XLA said of the GPU where it refuses this too."""
    try:
        return compile_fallback(hlo, host_device(), what)
    except (FallbackRefused, EngineUnavailable):
        raise refused from None
