"""The convolutions of a program on a GPU, through cuDNN where its bindings are installed.

Takes LibrarySteps of convolutions, hands on what launches them.  A convolution that cuDNN names plans for, none of
which runs, is XLA's from its first call on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from astitch.device.launch_time import time_when_ready
from astitch.graph.convolution import (
    CanonicalConvolution,
    ConvolutionTypes,
    NoForm,
    canonical_convolution,
    choose_convolution_types,
)
from astitch.graph.ir import ConvolutionAttrs
from astitch.library.cudnn import Convolution, NoCudnnPlan, Problem, find_convolution
from astitch.program.steps import LibraryStep
from astitch.run.device_memory import DeviceMemory
from astitch.run.gpu_call import Call, Launch, PreparedStep

log = logging.getLogger("astitch")


class ConvolutionSteps:
    """Launches the convolutions of a program.

    device: CUDA's number of the current device.  prepare_by_xla: what launches a step through XLA.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        cupy: Any,
        device: int,
        prepare_by_xla: Callable[[LibraryStep], PreparedStep],
    ) -> None:
        self._memory, self._cupy, self._device = memory, cupy, device
        self._prepare_by_xla = prepare_by_xla
        self._convolutions: dict[tuple[CanonicalConvolution, ConvolutionTypes], Convolution] = {}

    def prepare(self, step: LibraryStep, attrs: ConvolutionAttrs) -> PreparedStep | None:
        """What launches the convolution; None without the bindings or a plan."""
        (lhs, rhs), (result,) = step.operands, step.results
        conv = canonical_convolution(attrs, lhs.type, rhs.type, result.type)
        types = choose_convolution_types(attrs, lhs.type.dtype, rhs.type.dtype, result.type.dtype)
        if isinstance(conv, NoForm) or isinstance(types, NoForm):
            return None
        found = self._convolutions.get((conv, types))
        if found is None:
            properties = self._cupy.cuda.runtime.getDeviceProperties(self._device)
            problem = Problem(conv, types, properties["name"].decode())
            found = find_convolution(
                self._cupy, self._device, problem, partial(time_when_ready, self._cupy)
            )
            if found is None:
                return None
            self._convolutions[conv, types] = found
        convolution, other = found, list[Launch]()

        def convolve_by_xla(call: Call) -> None:
            # Graphs are made for the result's own place by now.
            place, memory = call.addresses[result.buffer], call.outputs.get(result.buffer)
            other[0](call)
            made = call.addresses[result.buffer]
            if made != place:
                self._memory.copy(place, made, result.type.bytes, call.stream)
                call.addresses[result.buffer] = place
                call.outputs.pop(result.buffer, None)
                if memory is not None:
                    call.outputs[result.buffer] = memory

        def convolve(call: Call) -> None:
            if other:
                if self._memory.is_capturing:  # XLA's streams would be drawn into the graph
                    raise RuntimeError(f"%{step.node.name}, which XLA convolves, is in no graph")
                convolve_by_xla(call)
                return
            addresses = [call.addresses[view.buffer] for view in (lhs, rhs, result)]
            memory = self._memory.allocate(convolution.workspace_bytes, "a convolution's workspace")
            try:
                convolution.launch(addresses, int(memory.ptr), call.stream)
            except NoCudnnPlan as error:  # in the first call: what cuDNN names does not run
                log.info("%%%s, which XLA convolves: %s", step.node.name, error)
                other.append(self._prepare_by_xla(step).launch)
                convolve_by_xla(call)

        return PreparedStep(convolve, can_capture=True)
