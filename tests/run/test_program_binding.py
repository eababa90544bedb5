"""What every engine does with a program: types of arguments, places of buffers, steps and results in order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import stepped_programs as programs

from astitch.errors import ArgumentMismatch
from astitch.graph.ir import ArrayType, DType, Literal
from astitch.program.steps import FallbackStep, KernelStep, Program, Space
from astitch.run.program_binding import (
    ArgumentTypes,
    ProgramBinding,
    StepMakers,
    name_step,
    store_constants,
    views_of,
)

F32 = DType.F32


def test_types_are_made_once_and_are_the_parameters_own() -> None:
    program = programs.scale_program()
    types = ArgumentTypes(program)
    (view,) = program.parameters
    dtype, shape = view.type.dtype.numpy, view.type.shape
    assert types.find(0, dtype, shape) is types.wanted[0] == view.type
    other = types.find(0, np.dtype(np.int32), (3,))
    assert other == ArrayType(DType.S32, (3,)) and types.find(5, np.dtype("i4"), (3,)) is other
    types.check([types.wanted[0]])
    with pytest.raises(ArgumentMismatch, match="argument 0"):
        types.check([other])
    with pytest.raises(ArgumentMismatch, match="argument 7: dtype object .*\n  pass an array of n"):
        types.find(7, np.dtype(object), ())


def test_buffers_are_found_by_their_space() -> None:
    x, y, z, w = (programs.view(name, 4) for name in "xyzw")
    buffers = programs.buffers(
        (x, Space.PARAMETER, 0), (y, Space.CONSTANT, 0), (z, Space.ARENA, 64), (w, Space.OUTPUT, 0)
    )
    constant = Literal.of(np.arange(4, dtype=np.float32))
    program = Program("all", buffers, (x,), (("y", constant),), (), (w, z, w), 128)
    named: list[str] = []

    def store(array: np.ndarray, what: str) -> int:
        named.append(what)
        return int(array.sum())

    constants = store_constants(program, store)
    binding = ProgramBinding(program, constants, lambda buffer: 1000 + buffer.offset)
    assert named == ["constant y"]
    assert binding.fixed == {"y": 6, "z": 1064}
    assert binding.parameters == [["x"]]
    assert [buffer.name for buffer in binding.outputs] == ["w"]
    assert [(r.view, r.is_own) for r in binding.results] == [(w, True), (z, False), (w, False)]


def test_steps_are_made_by_kind_in_their_order() -> None:
    program = programs.scale_program()
    (kernel,) = program.steps
    assert isinstance(kernel, KernelStep)
    x, factor, y = kernel.arguments
    fallback = FallbackStep("part", b"", (x, factor), (y,), ())
    makers = StepMakers(
        lambda step: f"kernel {name_step(step)}",
        lambda step: f"fallback {name_step(step)}",
        lambda step: f"library {name_step(step)}",
        lambda step: f"reference {name_step(step)}",
    )
    made = makers.make_all(replace(program, steps=(kernel, fallback, kernel)))
    name = kernel.kernel.name
    assert made == [f"kernel {name}", "fallback part", f"kernel {name}"]
    assert views_of(kernel) == views_of(fallback) == (x, factor, y)
