"""The kernels of an optimized module -> projected microseconds, by astitch's latency model for both compilers' kernels.

A kernel of astitch's has a plan.  A fusion of XLA's is planned as if astitch compiled it alone: so both sides are
projected by one rule, which says nothing of how well XLA emits a fusion.  What cannot be planned counts at its bound.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from astitch.compile import compile_hlo
from astitch.cost.projected_latency import project
from astitch.device.gpu import Gpu
from astitch.errors import AstitchError
from astitch.hlo.schema import HloModuleProto
from astitch.profiling.inside_xla import repeat
from astitch.profiling.report import MEMORY, Kernel
from astitch.profiling.stitched import describe_program
from astitch.profiling.xla_kernels import read_xla_kernels
from astitch.search.plan_scopes import observe_plan
from astitch.show.compilation import Compilation
from astitch.toolchain.nvrtc import Resources


def describe_launches(
    module: bytes, compilation: Compilation | None, gpu: Gpu
) -> tuple[Kernel, ...]:
    """What one call launches; memory-intensive kernels with projected_us.

    module: an optimized HloModuleProto.  compilation: astitch's, None where XLA is alone.  Of astitch's kernels the
    least work is that of their ops: a custom call does not say that it reads a part of an operand only.
    """
    planned = {k.name: k for k in list_stitched(compilation)} if compilation else {}
    fusions = Fusions(module, gpu)
    found = []
    for kernel in read_xla_kernels(module, gpu).kernels:
        if kernel.ours and kernel.name in planned:
            kernel = repeat(planned[kernel.name], kernel.launches)
        elif kernel.kind == MEMORY:
            us = fusions.project(kernel.name)
            bound_us = kernel.bound_us or 0.0
            projected_us = bound_us if us is None else us * kernel.launches
            kernel = replace(kernel, projected_us=projected_us)
        found.append(kernel)
    return tuple(found)


def list_stitched(compilation: Compilation) -> Iterator[Kernel]:
    """astitch's kernels, those of loops and of their bodies among them."""
    yield from (k for k in describe_program(compilation, observe(compilation)).kernels if k.ours)
    for body in compilation.bodies:
        yield from list_stitched(body.compilation)


def observe(compilation: Compilation) -> dict[str, Resources]:
    """What the CUDA compiler says of kernels that would spill by estimate; estimates count too many words."""
    found: dict[str, Resources] = {}
    for plan in compilation.plans:
        if project(plan.kernel, compilation.gpu, work=plan.work).spill_bytes:
            if resources := observe_plan(plan, compilation.gpu):
                found[plan.kernel.name] = resources
    return found


class Fusions:
    """The fusions of an optimized module, each compiled by astitch once; equal ones of several layers count as one."""

    def __init__(self, module: bytes, gpu: Gpu) -> None:
        proto = HloModuleProto.FromString(module)
        self._gpu = gpu
        self._computations = {c.id: c for c in proto.computations}
        self._roots = {
            i.name.decode(): i.called_computation_ids[0]
            for c in proto.computations
            for i in c.instructions
            if i.opcode == b"fusion"
        }
        self._known: dict[bytes, float | None] = {}

    def project(self, name: str) -> float | None:
        """us of one launch; None where astitch has no kernel for all of it."""
        if name not in self._roots or self._updates_in_place(self._roots[name]):
            return None  # astitch would copy the array that XLA overwrites in part
        module = bytes(self._extract(self._roots[name]).SerializeToString())
        if module not in self._known:
            self._known[module] = self._compile(module)
        return self._known[module]

    def _updates_in_place(self, number: int) -> bool:
        instructions = self._computations[number].instructions
        return any(i.opcode == b"dynamic-update-slice" for i in instructions)

    def _compile(self, module: bytes) -> float | None:
        before = os.environ.get("ASTITCH_FAULTS")
        os.environ["ASTITCH_FAULTS"] = "raise"
        try:
            compilation = compile_hlo(module, gpu=self._gpu)
        except Exception as error:  # a fusion that astitch cannot read counts at its bound
            if not isinstance(error, AstitchError):
                print(f"a fusion is not planned: {error}")
            return None
        finally:
            if before is None:
                del os.environ["ASTITCH_FAULTS"]
            else:
                os.environ["ASTITCH_FAULTS"] = before
        kernels = describe_program(compilation, observe(compilation)).kernels
        if compilation.program.outside or not kernels:
            return None
        times = [kernel.projected_us for kernel in kernels]
        return None if None in times else sum(us for us in times if us is not None)

    def _extract(self, root: int) -> Any:
        """A fusion's computation as a module; names, numbers and sources of its own, so that equal ones are equal."""
        wanted: list[int] = []
        waiting = [root]
        while waiting:
            number = waiting.pop()
            if number not in wanted:
                wanted.append(number)
                for instruction in self._computations[number].instructions:
                    waiting.extend(instruction.called_computation_ids)
        module = HloModuleProto(name=b"fusion")
        computations = {number: place for place, number in enumerate(reversed(wanted), 1)}
        for number in reversed(wanted):
            copy = module.computations.add()
            copy.CopyFrom(self._computations[number])
            rename(copy, computations)
        entry = module.computations[-1]
        module.entry_computation_id = entry.id
        module.entry_computation_name = entry.name
        module.host_program_shape.CopyFrom(entry.program_shape)
        return module


def rename(computation: Any, computations: Mapping[int, int]) -> None:
    """Numbers everything anew, in order.  computation: an HloComputationProto, changed in place."""
    computation.id = computations[computation.id]
    computation.name = b"c%d" % computation.id
    base = computation.id * 100_000
    counted = itertools.count(base)
    numbers = {i.id: next(counted) for i in computation.instructions}
    for instruction in computation.instructions:
        instruction.id = numbers[instruction.id]
        instruction.name = b"i%d" % instruction.id
        instruction.ClearField("metadata")
        instruction.ClearField("backend_config")
        operands = [numbers[n] for n in instruction.operand_ids]
        del instruction.operand_ids[:]
        instruction.operand_ids.extend(operands)
        called = [computations[n] for n in instruction.called_computation_ids]
        del instruction.called_computation_ids[:]
        instruction.called_computation_ids.extend(called)
    computation.root_id = numbers[computation.root_id]
    for place in range(len(computation.program_shape.parameter_names)):
        computation.program_shape.parameter_names[place] = b"p%d" % place
