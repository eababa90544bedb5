"""A call of a program on a GPU, and what launches a step of it.

The modules that prepare steps hand on functions of a Call; the executor walks them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from astitch.library.cublaslt import Matmul
from astitch.run.device_array import DeviceArray


@dataclass(slots=True)
class Call:
    """One call: its arguments on the device, the memory of its outputs, where every buffer lies, the stream.

    A result that XLA computes lies where XLA put it: its step sets the address.  in_use: what must live until the end,
    JAX arrays and graphs.  tables: where launches that are captured leave the memory of their tables of pointers.
    step: how many steps were launched.
    """

    arguments: Sequence[DeviceArray]
    outputs: dict[str, Any]
    addresses: dict[str, int]
    stream: int
    in_use: list[Any]
    tables: list[Any] | None = None
    step: int = 0


Launch = Callable[[Call], None]


@dataclass(frozen=True, slots=True)
class DirectProduct:
    """A product whose operands are read where they lie.  lhs, rhs, result: buffers."""

    matmul: Matmul
    lhs: str
    rhs: str
    result: str


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """What launches a step.

    can_capture: a CUDA graph can repeat it.  It only enqueues, on the call's stream, and does the same for the same
    addresses; what it allocates is DeviceMemory's.  product: set where the step does nothing but multiply.
    """

    launch: Launch
    can_capture: bool = False
    product: DirectProduct | None = None
