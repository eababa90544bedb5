"""The Program: ordered steps over buffers, ready for an engine.

A Program says everything an engine needs: which buffers exist and where they live.  It lists kernels, library calls and
fallbacks to XLA in their order, with their buffers.  Engines decide nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from astitch.errors import ArgumentMismatch
from astitch.graph.ir import ArrayType, Literal, Node

ALIGNMENT_BYTES = 256
"""Every buffer in the arena starts at a multiple of this, so that 16-byte accesses are legal."""


class Space(enum.Enum):
    """Where a buffer lives."""

    PARAMETER = "parameter"  # argument `index` of the program, read only
    CONSTANT = "constant"  # constant `index` of the program, read only, uploaded once
    OUTPUT = "output"  # allocated for each call, handed to the caller
    ARENA = "arena"  # intermediate at byte `offset` of the one arena; shares space by liveness
    BARRIER = "barrier"  # barrier words at byte `offset` of the arena; zero before the first launch, never shared


@dataclass(frozen=True, slots=True)
class Buffer:
    """Contiguous row-major memory for `type`.

    index: position in Program.parameters / Program.constants / the output allocations (0 for arena buffers).
    offset: bytes from the start of the arena (0 unless ARENA or BARRIER).
    """

    name: str
    type: ArrayType
    space: Space
    index: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """A buffer read or written as an array of `type` (same number of bytes as the buffer, maybe another shape).

    behind: the barrier behind which a step reads it, which it therefore comes after; empty: none.  XLA is told of it.
    """

    buffer: str
    type: ArrayType
    behind: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """One kernel as text, and how it must be launched.

    source: the whole translation unit after `#include "astitch.cuh"`; the entry is `extern "C" __global__` `name`.
    Parameters are pointers only, in the order of KernelStep.arguments; with `pointer_table` the kernel takes one
    parameter, the device address of an array of those pointers.
    grid, block: number of blocks and threads (one-dimensional).  shared_bytes: dynamic shared memory per block.
    global_barriers: grid-wide barriers inside.  barrier_words: 32-bit words of the last argument, zero at first,
    at which blocks meet.  Where one of them is not 0 all `grid` blocks must be resident together.
    blocks_per_sm: what the plan assumed for residency.  reads_bytes/writes_bytes: least possible traffic.
    """

    name: str
    source: str
    grid: int
    block: int
    shared_bytes: int
    global_barriers: int
    blocks_per_sm: int
    pointer_table: bool = False
    reads_bytes: int = 0
    writes_bytes: int = 0
    barrier_words: int = 0

    @property
    def cooperative(self) -> bool:
        """Do blocks wait for each other?"""
        return self.global_barriers > 0 or self.barrier_words > 0

    @property
    def launch(self) -> str:
        """How it is launched, in words."""
        return f"{self.grid} blocks of {self.block} threads, {self.shared_bytes} B of shared memory"


@dataclass(frozen=True, slots=True)
class KernelStep:
    """Launch `kernel` on `arguments`, one View for each pointer parameter.

    written: numbers of the arguments that it writes.
    """

    kernel: CudaKernel
    arguments: tuple[View, ...]
    written: frozenset[int]


@dataclass(frozen=True, slots=True)
class LibraryStep:
    """A dot or convolution done by a vendor library (or by the reference on the host).

    latency_ns: its projected time, where the program communicates and something is known of such a call; else 0.
    """

    node: Node
    operands: tuple[View, ...]
    results: tuple[View, ...]
    latency_ns: int = 0


@dataclass(frozen=True, slots=True)
class OutsideOp:
    """An op that no emitted kernel and no library computes, and why.  Never silent: explain() lists them.

    product: the product or convolution whose kernel computes it, if one does.
    """

    name: str
    op: str
    reason: str
    product: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"%{self.name} = {self.op}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FallbackStep:
    """A part of the graph that XLA compiles for the engine's device.

    hlo: a serialized HloModuleProto.  operands: in the order of its parameters.  results: in the order of its root
    tuple.  ops: what it computes, reshapes, projections and constants left out.
    """

    name: str
    hlo: bytes = field(repr=False)
    operands: tuple[View, ...]
    results: tuple[View, ...]
    ops: tuple[OutsideOp, ...]

    @property
    def reason(self) -> str:
        """Why no emitted kernel computes it, op by op."""
        return "; ".join(map(str, self.ops))


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """The same for one op where JAX is not installed: runs through reference.py, on the host."""

    node: Node
    operands: tuple[View, ...]
    results: tuple[View, ...]
    reason: str


Step = KernelStep | LibraryStep | FallbackStep | ReferenceStep


class Activation(enum.Enum):
    """What is done to each element of a product last.  GELU: by its approximation with tanh."""

    NONE = "none"
    RELU = "ReLU"
    GELU = "GELU"


@dataclass(frozen=True, slots=True)
class Epilogue:
    """A kernel that only computes activation(product + residual + bias), in this order, and rounds it to its result's
    type.  A library can do so before it writes the product; an engine without one runs both steps.

    product: the node of its LibraryStep, whose result only the kernel reads; its operands are there until the kernel.
    residual: as many elements as the product.  bias: one for each column of the row-major product.
    """

    product: str
    kernel: str
    result: View
    residual: View | None
    bias: View | None
    activation: Activation

    def __str__(self) -> str:
        terms = [f"%{view.buffer}" for view in (self.residual, self.bias) if view]
        name = None if self.activation is Activation.NONE else self.activation.value
        rendered = " + ".join([f"%{self.product}", *terms])
        return f"{self.kernel} = {f'{name}({rendered})' if name else rendered}"


@dataclass(frozen=True, slots=True)
class Program:
    """parameters, constants: buffer names in order.  outputs: a View for each result, in order (may repeat, and may
    view a parameter or constant).  arena_bytes: size of the one allocation that holds all ARENA and BARRIER buffers.
    notes: what was left to XLA, and why.  epilogues: products and kernels that may be one step.
    no_epilogues: other kernels that read products, each with the reason why not.
    """

    name: str
    buffers: dict[str, Buffer]
    parameters: tuple[View, ...]
    constants: tuple[tuple[str, Literal], ...]
    steps: tuple[Step, ...]
    outputs: tuple[View, ...]
    arena_bytes: int
    notes: tuple[str, ...] = field(default=())
    epilogues: tuple[Epilogue, ...] = field(default=())
    no_epilogues: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        return "\n".join(f"{number}: {step}" for number, step in enumerate(self.steps))

    @property
    def kernels(self) -> tuple[CudaKernel, ...]:
        """The stitched kernels in launch order."""
        return tuple(s.kernel for s in self.steps if isinstance(s, KernelStep))

    @property
    def outside(self) -> tuple[OutsideOp, ...]:
        """The ops that no emitted kernel and no library computes, in the order of the steps."""
        found: list[OutsideOp] = []
        for step in self.steps:
            if isinstance(step, FallbackStep):
                found += step.ops
            elif isinstance(step, ReferenceStep):
                found.append(OutsideOp(step.node.name, step.node.opcode, step.reason))
        return tuple(found)

    def check_arguments(self, given: Sequence[ArrayType]) -> None:
        """Raises ArgumentMismatch unless there is one argument of the right dtype and shape for each parameter."""
        if len(given) != len(self.parameters):
            raise ArgumentMismatch(
                f"program {self.name} takes {len(self.parameters)} arguments, {len(given)} were given\n"
                "  pass one array for each parameter, in the order of the parameters"
            )
        for number, (view, found) in enumerate(zip(self.parameters, given, strict=True)):
            if found is not view.type and found != view.type:
                what = "dtype" if found.dtype is not view.type.dtype else "shape"
                raise ArgumentMismatch(
                    f"program {self.name}, argument {number} (%{view.buffer}): "
                    f"{view.type} was compiled for, {found} was given\n"
                    f"  convert the argument, or compile again for this {what}"
                )
