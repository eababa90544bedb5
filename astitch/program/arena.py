"""Lifetimes -> offsets: every intermediate of a program in one allocation.

Takes when each buffer is first written and last read, hands on its byte offset and the size of the arena.
The idea: largest buffer first, each into the tightest gap between the buffers that live at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from astitch.errors import IllegalProduct
from astitch.program.steps import ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of `bytes` that is in use from step `first_step` to step `last_step`, both included."""

    name: str
    bytes: int
    first_step: int
    last_step: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first_step <= other.last_step and other.first_step <= self.last_step


def plan_arena(
    lifetimes: Sequence[Lifetime], *, barriers: Mapping[str, int] = MappingProxyType({})
) -> tuple[dict[str, int], int]:
    """Offsets in bytes by name, each a multiple of ALIGNMENT_BYTES, and the size of the arena in bytes.

    Two buffers in use at the same step share no byte.  barriers: name -> bytes of barrier words; they come
    first, in their order, and nothing else ever uses their bytes.  A buffer of no bytes gets an offset inside
    the arena or at its end.
    Raises IllegalProduct for a name given twice, a negative size, or a lifetime that ends before it starts.
    """
    _check_lifetimes(lifetimes, barriers)
    offsets: dict[str, int] = {}
    floor = 0
    for name, size in barriers.items():
        offsets[name] = floor
        floor += align(size)
    total = floor
    # One row for each buffer that is placed, by start: start, end, first step, last step.
    placed = np.empty((len(lifetimes), 4), np.int64)
    count = 0
    # Among equals the order of the steps, then of the input: the plan depends on nothing else.
    for lifetime in sorted(lifetimes, key=lambda x: (-x.bytes, x.first_step)):
        size, first, last = align(lifetime.bytes), lifetime.first_step, lifetime.last_step
        rows = placed[:count]
        together = rows[(first <= rows[:, 3]) & (rows[:, 2] <= last)]
        start = _find_gap(together[:, 0], together[:, 1], size, floor)
        offsets[lifetime.name] = start
        if size:
            at = int(np.searchsorted(rows[:, 0], start, "right"))
            placed[at + 1 : count + 1] = placed[at:count].copy()
            placed[at] = start, start + size, first, last
            count += 1
        total = max(total, start + size)
    return offsets, total


def align(count: int) -> int:
    """The multiple of ALIGNMENT_BYTES at or above `count` bytes."""
    return -(-count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _find_gap(starts: np.ndarray, ends: np.ndarray, size: int, floor: int) -> int:
    """The start of the smallest free gap of `size` bytes; the end of all when none is large enough.

    starts, ends: of what is taken, by start; it may overlap.
    """
    free = np.maximum.accumulate(np.concatenate(([floor], ends)))
    widths = starts - free[:-1]
    large = np.flatnonzero((widths >= size) & (widths > 0))
    if not large.size:
        return int(free[-1])
    return int(free[large[np.argmin(widths[large])]])


def _check_lifetimes(lifetimes: Sequence[Lifetime], barriers: Iterable[str]) -> None:
    names = set[str]()
    for name in (*barriers, *(x.name for x in lifetimes)):
        if name in names:
            raise IllegalProduct(f"arena: buffer {name} is given twice; each needs one lifetime")
        names.add(name)
    for x in lifetimes:
        if x.bytes < 0 or x.last_step < x.first_step:
            raise IllegalProduct(
                f"arena: buffer {x.name} of {x.bytes} bytes lives from step {x.first_step} to {x.last_step}"
            )
