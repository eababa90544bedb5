"""An HloModuleProto -> which of its kernels wait until their results are read, by control dependencies.

A kernel that makes much of little, as the operand of a product that is computed once more, may run at any time before
its reader.  XLA's schedulers may run it long before.  So it waits for the kernels from which all else comes that the
reader reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import networkx as nx

from astitch.graph.collectives import COLLECTIVES
from astitch.hlo.schema import decode
from astitch.search.peak_memory import makes_much
from astitch.xla.control_dependencies import add_control_dependencies, list_before
from astitch.xla.instructions import (
    SOURCES,
    VIEWS,
    count_bytes,
    find_base,
    is_kernel,
    list_readers,
)

SAME_MEMORY = (*VIEWS, b"get-tuple-element")
"""Views and parts of what is in memory."""


def run_late(module: Any) -> None:
    """Adds control dependencies to the entry of a module, and puts its instructions in an order that keeps them.

    module: an HloModuleProto.  Nothing changes where it communicates: there run_beside.py decides.
    """
    entry = next(c for c in module.computations if c.id == module.entry_computation_id)
    if any(decode(i.opcode) in COLLECTIVES for i in entry.instructions):
        return
    if pairs := list(_Search(entry).find_pairs()):
        add_control_dependencies(entry, pairs)


class _Search:
    """Finds what kernels wait for.

    waits: each instruction behind those for which it waits, by id.  places: of the instructions in the entry.
    """

    def __init__(self, entry: Any) -> None:
        self.by_id = {i.id: i for i in entry.instructions}
        self.places = {number: at for at, number in enumerate(self.by_id)}
        self.root = entry.root_id
        self.users: dict[int, list[int]] = {i.id: [] for i in entry.instructions}
        self.waits: nx.DiGraph[int] = nx.DiGraph()
        self.waits.add_nodes_from(self.by_id)
        for i in entry.instructions:
            for operand in dict.fromkeys(i.operand_ids):
                self.users[operand].append(i.id)
            self.waits.add_edges_from((other, i.id) for other in list_before(i))

    def find_pairs(self) -> Iterator[tuple[int, int]]:
        """Instructions, each with a kernel that waits for it."""
        for kernel in self.by_id.values():
            if not self.is_late(kernel):
                continue
            reader = min(
                self.list_readers(kernel.id), key=self.places.__getitem__, default=self.root
            )
            if reader == self.root:
                continue
            behind = nx.descendants(self.waits, kernel.id)
            for other in self.list_kernels(self.by_id[reader].operand_ids):
                if other == kernel.id or other in behind:
                    continue
                if not nx.has_path(self.waits, other, kernel.id):
                    self.waits.add_edge(other, kernel.id)
                    yield other, kernel.id

    def list_readers(self, number: int) -> list[int]:
        return list_readers(self.by_id, self.users, number, SAME_MEMORY)

    def list_kernels(self, numbers: Iterable[int]) -> list[int]:
        """The last kernels that lead to some values.

        XLA replaces other instructions later, and fails where one is waited for.
        """
        found: list[int] = []
        pending = list(dict.fromkeys(numbers))
        seen = set(pending)
        while pending:
            number = pending.pop()
            if is_kernel(self.by_id[number]):
                found.append(number)
                continue
            before = [n for n in self.by_id[number].operand_ids if n not in seen]
            pending += before
            seen.update(before)
        return found

    def is_late(self, kernel: Any) -> bool:
        """Does a kernel make much of little, and no result of the program?"""
        if not is_kernel(kernel):
            return False
        over = {a.operand_index for a in kernel.output_operand_aliasing}
        made = count_bytes(kernel) - sum(
            count_bytes(self.by_id[kernel.operand_ids[number]]) for number in over
        )
        bases = dict.fromkeys(find_base(self.by_id, o, SAME_MEMORY) for o in kernel.operand_ids)
        computed = [self.by_id[b] for b in bases if self.by_id[b].opcode not in SOURCES]
        read = sum(map(count_bytes, computed))
        return makes_much(made, read) and self.root not in self.list_readers(kernel.id)
