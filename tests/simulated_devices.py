"""Several devices on one processor: a module of one device, run on each of them in step.

Kernels run in the emulation, collectives in NumPy, all else by the reference interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf.unknown_fields import UnknownFieldSet

from astitch.graph.ir import GetTupleElementAttrs, Graph, Node, OpaqueAttrs
from astitch.graph.reference import eval_node
from astitch.hlo.device_groups import Groups, read_groups
from astitch.hlo.schema import HloInstructionProto
from astitch.hlo_import import import_from_compiler
from astitch.show.compilation import Compilation
from astitch.xla import compile_module
from astitch.xla.hook import read_module, stitch_module
from astitch.xla.prepare_kernels import XlaKernel, prepare_kernels
from tests.ahead_of_time import GPU, preset
from tests.emulated_xla import is_kernel, launch, with_text

Array = np.ndarray[Any, Any]
OnDevices = list[Sequence[Array]]
"""For each device the results of an op."""


def stitch_for_emulation(data: bytes, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """A module as XLA hands it over, with kernels that the emulation runs.  data: a serialized HloModuleProto."""

    def prepare(compilation: Compilation, *rest: Any) -> Any:
        planned = {plan.kernel.name: plan.kernel for plan in compilation.plans}
        kernels = prepare_kernels(compilation, *rest)
        return {
            name: with_text(planned[name], kernel.in_place, kernel.slices)
            if isinstance(kernel, XlaKernel)
            else kernel
            for name, kernel in kernels.items()
        }

    monkeypatch.setattr(compile_module, "prepare_kernels", prepare)
    stitching = stitch_module(read_module(data), preset(GPU))
    assert stitching.module
    return import_from_compiler(read_module(stitching.module))


def run_on_devices(graph: Graph, arguments: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """For each device its results.  arguments: for each device its parameters."""
    count = len(arguments)
    values: dict[str, OnDevices] = {}
    for number, name in enumerate(graph.parameters):
        values[name] = [[given[number]] for given in arguments]
    for node in graph:
        if node.op == "parameter":
            continue
        operands = [values[o] for o in node.operands]
        if isinstance(node.attrs, GetTupleElementAttrs):
            index = node.attrs.index
            values[node.name] = [[results[index]] for results in operands[0]]
            continue
        single = [[operand[device][0] for operand in operands] for device in range(count)]
        if isinstance(node.attrs, OpaqueAttrs):
            values[node.name] = communicate(node, single)
        else:
            run: Callable[..., Sequence[Array]] = launch if is_kernel(node) else eval_node
            values[node.name] = [run(node, given) for given in single]
    return [[values[name][device][0] for name in graph.outputs] for device in range(count)]


def communicate(node: Node, operands: Sequence[Sequence[Array]]) -> OnDevices:
    """What each device gets of a collective.  operands: of each device."""
    assert isinstance(node.attrs, OpaqueAttrs)
    instruction = HloInstructionProto.FromString(node.attrs.instruction)
    count = len(operands)
    if node.attrs.opcode == "partition-id":
        return [[np.uint32(device)] for device in range(count)]  # type: ignore[list-item]
    received: dict[int, Sequence[Array]] = {}
    for group in _find_groups(instruction) or [tuple(range(count))]:
        given = [operands[device] for device in group]
        results = _exchange(node, instruction, given)
        received |= dict(zip(group, results, strict=True))
    return [received[device] for device in range(count)]


def _find_groups(instruction: Any) -> Groups | None:
    found = (
        read_groups(field.field_number, field.data)
        for field in UnknownFieldSet(instruction)
        if isinstance(field.data, bytes)
    )
    return next(filter(None, found), None)


def _exchange(node: Node, instruction: Any, given: Sequence[Sequence[Array]]) -> OnDevices:
    """What each device of a group gets of a collective.  given: by each of them."""
    assert isinstance(node.attrs, OpaqueAttrs)
    count = len(given)
    columns = list(zip(*given, strict=True))  # for each operand what the devices give
    match node.attrs.opcode:
        case "all-reduce":
            sums = [sum(column[1:], column[0]) for column in columns]
            return [sums for _ in range(count)]
        case "all-gather":
            (along,) = instruction.dimensions
            whole = [np.concatenate(column, along) for column in columns]
            return [whole for _ in range(count)]
        case "reduce-scatter":
            (along,) = instruction.dimensions
            parts = [np.split(sum(c[1:], c[0]), count, along) for c in columns]
            return [[part[device] for part in parts] for device in range(count)]
        case "all-to-all" if not instruction.dimensions:  # an operand for each device
            return [[one[device] for one in given] for device in range(count)]
        case "all-to-all":
            (along,) = instruction.dimensions
            cut = [[np.split(part, count, along) for part in column] for column in columns]
            return [
                [np.concatenate([parts[device] for parts in column], along) for column in cut]
                for device in range(count)
            ]
    raise AssertionError(f"%{node.name}: {node.attrs.opcode} is not simulated")
