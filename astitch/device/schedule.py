"""Schedule: the choices that a plan leaves open, as one value.

The default says nothing anywhere: every choice is then made by the rules of thread_mapping.py, launch_config.py and
plan.py.  What is set here wins over the rule.  plan.py enumerates schedules and ranks them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


class Keep(enum.Enum):
    """Where values that several phases of a task need may stay."""

    REGISTERS = "registers"  # where they fit, else in shared memory, else read again
    SHARED = "shared memory"  # where they fit, else read again
    NOTHING = "memory"  # read and computed again in each phase


@dataclass(frozen=True, slots=True)
class Schedule:
    """None: the rule decides.

    block: threads in a block, a power of two from 32 to 1024.  Rule: 256, or 512 where rows are long or blocks meet.
    blocks_per_sm: blocks that an SM shall hold at once.  Launch bounds make the compiler keep registers for it, and no
        block uses more shared memory than its share.  Rule: what 64 registers a thread give; launch bounds only where
        blocks meet at a global barrier.
    access_bytes: widest access of a thread, 16, 8, 4 or less.  Rule: 16.
    max_steps: vectors of a row that one thread loads; fewer threads a row when it is large.  Rule: 8.
    split: parts that a long row, or the rows of a column reduction, are cut into, each for a block; 1: never.
        Rule: as many as fill the device, where rows are long and few.
    keep: see Keep.  Rule: registers.
    elementwise_steps: vectors of one thread in a group without a reduce.  Rule: 2 where the device is full and one
        array is read, else 1.
    prefetch: load what the next task needs before this one is worked on.  Rule: where a block has many tasks and its
        threads wait for each other in each.
    pieces: what an output is put together of is written where it will lie (find_pieces).  Rule: where that is no
        slower, and by a tenth faster where the whole may lie over an argument.
    persistent: no more blocks than the device holds at once, each with many tasks; False: a block for each task
        wherever no global barrier forbids it.  Rule: False.
    """

    block: int | None = None
    blocks_per_sm: int | None = None
    access_bytes: int = 16
    max_steps: int = 8
    split: int | None = None
    keep: Keep = Keep.REGISTERS
    elementwise_steps: int | None = None
    prefetch: bool | None = None
    persistent: bool = False
    pieces: bool = True

    def __str__(self) -> str:
        """What differs from the default: `block 512, split 1`."""
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                shown = value.value if isinstance(value, Keep) else value
                name = field.name.replace("_", " ")
                plain = name if value is True else f"{name} {shown}"
                parts.append(f"no {name}" if value is False and field.default is True else plain)
        return ", ".join(parts) or "default"


DEFAULT = Schedule()


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """What differs from the default, in JSON's types."""
    values = {f.name: getattr(schedule, f.name) for f in fields(schedule)}
    changed = {name: v for name, v in values.items() if v != getattr(DEFAULT, name)}
    return {name: v.value if isinstance(v, Keep) else v for name, v in changed.items()}


def schedule_from_json(values: Mapping[str, Any]) -> Schedule:
    """The schedule that schedule_to_json wrote.  Raises TypeError or ValueError for another version's."""
    known = dict(values)
    if "keep" in known:
        known["keep"] = Keep(known["keep"])
    return Schedule(**known)
