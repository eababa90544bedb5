"""An HloModuleProto -> which of its kernels run beside the next collective, by control dependencies.

XLA's scheduler goes from the end of a program to its start, and puts what no collective waits for as late as it can.
Memory holds until then what such a kernel reads.  So a kernel that makes little of much, as the sums for gain and bias
do, runs beside the first collective that starts without it and takes as long.  The next kernel that waits for the
collective follows it.  So the collective starts no later, and what is behind it begins no later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astitch.device.gpu import Gpu
from astitch.graph.collectives import COLLECTIVES
from astitch.graph.ops.other import LATENCY
from astitch.hlo.schema import ELEMENT_TYPES, decode
from astitch.xla.control_dependencies import add_control_dependencies, list_before
from astitch.xla.instructions import (
    SOURCES,
    VIEWS,
    count_bytes,
    find_base,
    is_kernel,
    list_readers,
)
from astitch.xla.order_meetings import LEAST_BYTES, READ_SHARE

LEAST_US = 10.0
"""What a collective of few bytes takes between GPUs of one host."""

U32 = next(number for number, name in ELEMENT_TYPES.items() if name == "u32")

PARTS = (b"get-tuple-element", b"tuple")


def run_beside(module: Any, gpu: Gpu) -> None:
    """Adds control dependencies to the entry of a module, and puts its instructions in an order that keeps them.

    module: an HloModuleProto whose kernels tell their times.  Nothing changes where nothing communicates.
    """
    entry = next(c for c in module.computations if c.id == module.entry_computation_id)
    if not any(decode(i.opcode) in COLLECTIVES for i in entry.instructions):
        return
    pairs = _Search(entry.instructions, gpu).find_pairs()
    if pairs:
        add_control_dependencies(entry, pairs)


class _Search:
    """Finds kernels to run beside collectives.

    before: for each instruction those that it waits for, an int with a bit for each.  awaited: those of whose results
    a collective waits for one; by the tokens that order kernels it may wait for others too.  computed: the bits of all
    that takes time.  left_us: of each collective the time in which nothing runs beside it by this search.
    """

    def __init__(self, instructions: Sequence[Any], gpu: Gpu) -> None:
        self.instructions = instructions
        self.by_id = {i.id: i for i in instructions}
        self.place = {i.id: number for number, i in enumerate(instructions)}
        self.users: dict[int, list[int]] = {i.id: [] for i in instructions}
        self.before: dict[int, int] = {}
        for i in instructions:
            mask = 0
            for other in list_before(i):
                if not _is_token(self.by_id[other]):
                    self.users[other].append(i.id)
                mask |= self.before[other] | (1 << self.place[other])
            self.before[i.id] = mask
        self.left_us = {
            i.id: project_sent(i, self.by_id, gpu)
            for i in instructions
            if decode(i.opcode) in COLLECTIVES
        }
        computed = (i for i in instructions if i.opcode not in (*SOURCES, *VIEWS, *PARTS))
        self.computed = sum(1 << self.place[i.id] for i in computed)
        self.awaited: set[int] = set()
        for i in reversed(instructions):
            if any(u in self.left_us or u in self.awaited for u in self.users[i.id]):
                self.awaited.add(i.id)

    def find_pairs(self) -> list[tuple[int, int]]:
        """Kernels, each with one that follows it."""
        found: list[tuple[int, int]] = []
        for i in self.instructions:
            if is_kernel(i) and i.id not in self.awaited and self.keeps_much(i):
                found += ((i.id, reader) for reader in self.find_reader(i))
        return found

    def keeps_much(self, kernel: Any) -> bool:
        """Does memory hold much for a kernel alone, of which it makes little?"""
        kept = 0
        for number in dict.fromkeys(find_base(self.by_id, o) for o in kernel.operand_ids):
            base = self.by_id[number]
            if base.opcode not in SOURCES and all(
                reader == kernel.id or reader in self.awaited
                for reader in list_readers(self.by_id, self.users, number)
            ):
                kept += count_bytes(base)
        return kept >= max(LEAST_BYTES, READ_SHARE * count_bytes(kernel))

    def find_reader(self, kernel: Any) -> list[int]:
        """The first kernel behind the first collective that takes as long as one, and starts when all is there that the
        latter reads; else nothing."""
        us, read = read_us(kernel, float("inf")), self.before[kernel.id]
        for sent, left in self.left_us.items():
            bit = 1 << self.place[sent]
            if us > left or read & bit or read & ~self.before[sent] & self.computed:
                continue
            for i in self.instructions[self.place[sent] :]:
                if is_kernel(i) and self.before[i.id] & bit and i.id in self.awaited:
                    self.left_us[sent] -= us
                    return [i.id]
        return []


def _is_token(instruction: Any) -> bool:
    """Is a value what orders kernels (write_module.py)?"""
    shape = instruction.shape
    is_part = instruction.opcode == b"get-tuple-element"
    return bool(is_part and (shape.element_type, [*shape.dimensions]) == (U32, [1]))


def read_us(instruction: Any, untold: float) -> float:
    """The time that an instruction tells; untold: of one that tells none."""
    told = (e.value for e in instruction.frontend_attributes.map if e.key == LATENCY)
    return next((int(value) / 1e3 for value in told), untold)


def project_sent(collective: Any, by_id: Any, gpu: Gpu) -> float:
    """The least us of a collective.  An all-reduce sends parts of sums, and then the sums."""
    given = sum(count_bytes(by_id[o]) for o in collective.operand_ids)
    is_sum = collective.opcode == b"all-reduce"
    sent = 2 * given if is_sum else max(given, count_bytes(collective))
    return LEAST_US + sent / gpu.link_gbs / 1e3
