"""Strategies by name: what one is, and how the first of a list that applies is taken.

A list of strategies belongs to one kind of reduction.  Each strategy has a name, a function that says why it does
not apply, and a function that gives the Mapping.  The reasons against those before it stay with the Mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from astitch.device.gpu import Gpu
from astitch.device.schedule import Schedule
from astitch.tiling.space import Mapping, NotTaken, Space

SPLIT_MIN_BYTES = 64 * 1024
"""Shorter rows are never split over blocks: one block reads them in less time than meeting at a barrier takes.
(The paper's bound is 1024 columns on a V100; an SM of an H100 reads some 50 bytes a nanosecond.)"""

BLOCK_GROUP_THREAD_BYTES = 64
"""Bytes that a thread keeps of its row in a member of a block group.  Three tasks of so many bytes lie in the shared
memory of two blocks of 512 threads on an SM.  Fewer bytes, also of narrow types, are more parts, and each block reads
all parts."""

Problem = TypeVar("Problem", contravariant=True)


@dataclass(frozen=True, slots=True)
class Request:
    """What a mapping is wanted for.

    block: threads in a block, a power of two.  wave: blocks that the GPU holds at once.  schedule: what is asked for
    instead of the rules.
    """

    space: Space
    gpu: Gpu
    block: int
    wave: int
    schedule: Schedule

    @property
    def busy_threads(self) -> int:
        """Threads that keep the GPU busy: half of those that it holds."""
        return self.gpu.sms * self.gpu.max_threads_per_sm // 2


@dataclass(frozen=True, slots=True)
class Strategy(Generic[Problem]):
    """A way to map a kind of problem: a Request, with what the strategies of a list derive from it.

    why_not: the reason why it does not apply, a plain sentence; None: it applies.
    map: the mapping; asked only where the strategy applies.
    """

    name: str
    why_not: Callable[[Problem], str | None]
    map: Callable[[Problem], Mapping]


def always(problem: object) -> None:
    """The `why_not` of the last strategy of a list: it applies to every problem."""


def take_first(strategies: Sequence[Strategy[Problem]], problem: Problem) -> Mapping:
    """The mapping of the first strategy that applies, with the reasons against those before it."""
    refused: list[NotTaken] = []
    for strategy in strategies:
        why = strategy.why_not(problem)
        if why is None:
            found = strategy.map(problem)
            return replace(found, strategy=strategy.name, not_taken=tuple(refused))
        refused.append(NotTaken(strategy.name, why))
    raise AssertionError("the last strategy of a list applies to every problem")
