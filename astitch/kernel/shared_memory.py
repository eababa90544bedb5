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


def list_loops(slot: Slot) -> range:
    """The numbers of the task loops in which a slot is in use."""
    return range(slot.first[0], slot.last[0] + 1)


def _align(size_bytes: int) -> int:
    return -(-size_bytes // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES


def place_shared(slots: Sequence[Slot]) -> tuple[tuple[Slot, ...], int]:
    """Offsets for all slots and the size of the arena in bytes: largest first, each at the lowest free offset."""
    placed: dict[str, Slot] = {}
    used_in: dict[int, list[str]] = {}  # what is placed, by loop
    for slot in sorted(slots, key=lambda s: (-s.bytes, s.first, s.name)):
        names = {name for loop in list_loops(slot) for name in used_in.get(loop, ())}
        beside = [placed[name] for name in names]
        offset = 0
        for start, end in sorted((p.offset, p.offset + p.bytes) for p in beside):
            if offset + slot.bytes <= start:
                break
            offset = max(offset, _align(end))
        placed[slot.name] = replace(slot, offset=offset)
        for loop in list_loops(slot):
            used_in.setdefault(loop, []).append(slot.name)
    total = max((s.offset + s.bytes for s in placed.values()), default=0)
    return tuple(placed[s.name] for s in slots), _align(total)
