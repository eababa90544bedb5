"""Slots -> offsets: one shared arena for each kernel, reused by liveness (paper section 4.4, step S4).

The order of first and last use decides.  The task loops of a kernel run one after the other, with a block barrier
between two of them.  So slots whose lives share no loop may share bytes.  Within a loop all slots stay apart, because a
warp may begin the next task while another still reads in this one.  So no dominance in a flow graph is needed: a chain
of loops has no other order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from astitch.kernel.kernel_ir import Slot

SLOT_ALIGNMENT_BYTES = 16


def _share_a_loop(a: Slot, b: Slot) -> bool:
    """Is there a task loop in which both are in use?"""
    return a.first[0] <= b.last[0] and b.first[0] <= a.last[0]


def _align(size_bytes: int) -> int:
    return -(-size_bytes // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES


def place_shared(slots: Sequence[Slot]) -> tuple[tuple[Slot, ...], int]:
    """Offsets for all slots and the size of the arena in bytes: largest first, each at the lowest free offset."""
    placed: dict[str, Slot] = {}
    for slot in sorted(slots, key=lambda s: (-s.bytes, s.first, s.name)):
        beside = [p for p in placed.values() if _share_a_loop(p, slot)]
        offset = 0
        for start, end in sorted((p.offset, p.offset + p.bytes) for p in beside):
            if offset + slot.bytes <= start:
                break
            offset = max(offset, _align(end))
        placed[slot.name] = replace(slot, offset=offset)
    total = max((s.offset + s.bytes for s in placed.values()), default=0)
    return tuple(placed[s.name] for s in slots), _align(total)
