"""What every engine does with a Program before its first step and after its last.

Takes a Program and an engine's own form of memory: an address, an array of bytes.  Hands on the types of arguments, the
place of every buffer, what runs each step, and the results in program order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from astitch.errors import ArgumentMismatch, UnsupportedType
from astitch.graph.ir import ArrayType, DType
from astitch.program.steps import (
    Buffer,
    FallbackStep,
    KernelStep,
    LibraryStep,
    Program,
    ReferenceStep,
    Space,
    Step,
    View,
)

Place = TypeVar("Place")
"""Where a buffer lies, as the engine says it."""

Prepared = TypeVar("Prepared")
"""What an engine makes of a step."""


class ArgumentTypes:
    """The types of a program's arguments.

    Each type is made once, since calls see the same few again and again.  wanted: the type of each parameter, the very
    object that `find` gives for it.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known = {(v.type.dtype.numpy, v.type.shape): v.type for v in program.parameters}
        self.wanted = [self._known[v.type.dtype.numpy, v.type.shape] for v in program.parameters]

    def find(self, number: int, dtype: np.dtype, shape: tuple[int, ...]) -> ArrayType:
        """The type of argument `number`.  dtype: in native byte order.  Raises ArgumentMismatch."""
        known = self._known.get((dtype, shape))
        if known is None:
            try:
                known = ArrayType(DType.of(dtype), shape)
            except UnsupportedType as error:
                raise ArgumentMismatch(
                    f"argument {number}: {error}\n  pass an array of numbers"
                ) from None
            self._known[dtype, shape] = known
        return known

    def check(self, given: Sequence[ArrayType]) -> None:
        """Raises ArgumentMismatch unless there is one argument of the right type for each parameter."""
        self._program.check_arguments(given)


@dataclass(frozen=True, slots=True)
class Result:
    """A result of a program.  is_own: it is the first view of an OUTPUT buffer, and is handed on without a copy."""

    view: View
    is_own: bool


class ProgramBinding(Generic[Place]):
    """Where the buffers of a program lie.

    fixed: the places that no call changes, by buffer: constants, arena, barrier words.  parameters: the buffers of each
    argument.  outputs: the buffers that each call brings.  results: in program order.
    """

    def __init__(
        self,
        program: Program,
        constants: Sequence[Place],
        place_in_arena: Callable[[Buffer], Place],
    ) -> None:
        self.fixed: dict[str, Place] = {}
        self.parameters: list[list[str]] = [[] for _ in program.parameters]
        self.outputs: list[Buffer] = []
        for name, buffer in program.buffers.items():
            match buffer.space:
                case Space.PARAMETER:
                    self.parameters[buffer.index].append(name)
                case Space.CONSTANT:
                    self.fixed[name] = constants[buffer.index]
                case Space.OUTPUT:
                    self.outputs.append(buffer)
                case Space.ARENA | Space.BARRIER:
                    self.fixed[name] = place_in_arena(buffer)
        self.results = order_results(program)


def order_results(program: Program) -> tuple[Result, ...]:
    """The results in program order, of which no two share memory."""
    taken: set[str] = set()
    results = []
    for view in program.outputs:
        is_output = program.buffers[view.buffer].space is Space.OUTPUT
        results.append(Result(view, is_output and view.buffer not in taken))
        taken.add(view.buffer)
    return tuple(results)


def store_constants(program: Program, store: Callable[[np.ndarray, str], Place]) -> list[Place]:
    """Each constant in the engine's memory, once for all calls.  store: of the array and its name in messages."""
    return [store(literal.numpy(), f"constant {name}") for name, literal in program.constants]


@dataclass(frozen=True, slots=True)
class StepMakers(Generic[Prepared]):
    """What an engine makes of a step of each kind."""

    kernel: Callable[[KernelStep], Prepared]
    fallback: Callable[[FallbackStep], Prepared]
    library: Callable[[LibraryStep], Prepared]
    reference: Callable[[ReferenceStep], Prepared]

    def make_all(self, program: Program) -> list[Prepared]:
        """The program's steps, in their order."""
        return [self.make(step) for step in program.steps]

    def make(self, step: Step) -> Prepared:
        """One step."""
        match step:
            case KernelStep():
                return self.kernel(step)
            case FallbackStep():
                return self.fallback(step)
            case LibraryStep():
                return self.library(step)
            case ReferenceStep():
                return self.reference(step)


def name_step(step: Step) -> str:
    """The name of a step in messages."""
    match step:
        case KernelStep(kernel=kernel):
            return kernel.name
        case FallbackStep(name=name):
            return name
        case LibraryStep(node=node) | ReferenceStep(node=node):
            return node.name


def views_of(step: Step) -> tuple[View, ...]:
    """What a step reads and writes."""
    return step.arguments if isinstance(step, KernelStep) else (*step.operands, *step.results)
