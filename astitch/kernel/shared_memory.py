"""Slots -> offsets: one shared arena for each kernel, reused by liveness (paper section 4.4, step S4).

A kernel's loops and phases form a flow graph.  A slot may take the bytes of another when each step that uses it
is dominated by a step that comes after the other's last use: then a block barrier lies in between.  Dominance
comes from networkx's immediate_dominators (Cooper, Harvey, Kennedy).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import networkx as nx

from astitch.kernel.kernel_ir import Slot

SLOT_ALIGNMENT_BYTES = 16

Step = tuple[int, int]


def _flow_graph(slots: Sequence[Slot]) -> nx.DiGraph:
    """Steps (loop, phase) in order, with the back edge of every task loop."""
    last: dict[int, int] = {}
    for slot in slots:
        for loop, phase in (slot.first, slot.last):
            last[loop] = max(last.get(loop, 0), phase)
    graph = nx.DiGraph()
    entry: Step = (-1, 0)
    previous = entry
    graph.add_node(entry)
    for loop in sorted(last):
        for phase in range(last[loop] + 1):
            graph.add_edge(previous, (loop, phase))
            previous = (loop, phase)
        graph.add_edge(previous, (loop, 0))
    return graph


def _dominates(idom: dict[Step, Step], a: Step, b: Step) -> bool:
    """Does every path to b pass through a?"""
    while b != a:
        above = idom.get(b)
        if above is None or above == b:
            return False
        b = above
    return True


def _may_share(idom: dict[Step, Step], a: Slot, b: Slot) -> bool:
    """b starts after a has been read, in another loop: the loops are separated by a barrier.

    Within one loop the back edge makes every step reach every other, and slots stay apart.
    """
    return a.last[0] < b.first[0] and _dominates(idom, a.last, b.first)


def place_shared(slots: Sequence[Slot]) -> tuple[tuple[Slot, ...], int]:
    """Offsets for all slots and the size of the arena in bytes: largest first, each at the lowest free offset."""
    if not slots:
        return (), 0
    graph = _flow_graph(slots)
    idom = dict(nx.immediate_dominators(graph, (-1, 0)))
    placed: list[Slot] = []
    for slot in sorted(slots, key=lambda s: (-s.bytes, s.first, s.name)):
        busy = sorted(
            (p.offset, p.offset + p.bytes)
            for p in placed
            if not _may_share(idom, p, slot) and not _may_share(idom, slot, p)
        )
        offset = 0
        for start, end in busy:
            if offset + slot.bytes <= start:
                break
            offset = max(offset, -(-end // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES)
        placed.append(replace(slot, offset=offset))
    by_name = {s.name: s for s in placed}
    total = max(s.offset + s.bytes for s in placed)
    return tuple(by_name[s.name] for s in slots), -(
        -total // SLOT_ALIGNMENT_BYTES
    ) * SLOT_ALIGNMENT_BYTES
