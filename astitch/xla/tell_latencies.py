"""An HLO module -> the same, whose products tell XLA's scheduler how long they take.

The scheduler puts work beside a collective until that takes as long.  XLA looks products up in a table of measured
ones; where it has none of about the size, it says up to fifty times too much, and one product closes the room.
"""

from __future__ import annotations

import math
from typing import Any

from astitch.cost.product_bounds import bound_product
from astitch.cost.speed_of_light import Work
from astitch.device.gpu import Gpu
from astitch.graph.collectives import COLLECTIVES
from astitch.graph.ops.other import LATENCY
from astitch.hlo.schema import ELEMENT_TYPES, decode
from astitch.hlo.shapes import read_type

TIMED = ("sm_9", "sm_10", "sm_12")
"""Architectures on which XLA reckons in microseconds; elsewhere a product counts as a fifth of a collective."""

UNTIMED = frozenset({"collective-broadcast", "ragged-all-to-all"})
"""A module with one of these is not reckoned in microseconds either."""


def tell_latencies(module: Any, gpu: Gpu) -> None:
    """Notes at each product of a module that communicates the least time that it takes.  module: an HloModuleProto.

    What tells its latency already keeps it.
    """
    opcodes = {decode(i.opcode) for c in module.computations for i in c.instructions}
    if not opcodes & COLLECTIVES or opcodes & UNTIMED or not gpu.arch.startswith(TIMED):
        return
    for computation in module.computations:
        shapes = {i.id: i.shape for i in computation.instructions}
        for instruction in computation.instructions:
            if instruction.opcode == b"dot" and not _tells(instruction):
                us = project_dot(instruction, [shapes[o] for o in instruction.operand_ids], gpu)
                told = instruction.frontend_attributes.map
                told.add(key=LATENCY, value=b"%d" % round(us * 1e3))


def _tells(instruction: Any) -> bool:
    return any(entry.key == LATENCY for entry in instruction.frontend_attributes.map)


def project_dot(instruction: Any, operands: list[Any], gpu: Gpu) -> float:
    """The least us of a dot.  operands: their ShapeProtos."""
    left = operands[0].dimensions
    contracted = instruction.dot_dimension_numbers.lhs_contracting_dimensions
    flops = 2 * math.prod((*instruction.shape.dimensions, *(left[d] for d in contracted)))
    read = sum(map(_count_bytes, operands))
    work = Work(read, _count_bytes(instruction.shape), flops)
    return bound_product(work, gpu, ELEMENT_TYPES.get(operands[0].element_type, ""))[0]


def _count_bytes(shape: Any) -> int:
    return getattr(read_type(shape, "a product"), "bytes", 0)
