"""Runs of launches as CUDA graphs: one for each set of addresses that a run is called with.

Takes functions that enqueue work on a stream, hands on graphs that launch all of it at once.  A set of addresses that
comes again is captured; the sets that were not used for the longest go.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger("astitch")

LEAST_LAUNCHES = 3
"""Fewer launches are no slower one by one."""

MOST_GRAPHS = 16
"""The most graphs of one run.  Two to four sets of addresses take turns where results become arguments, more where
batches move."""

MOST_SEEN = 64
"""Sets that came once and are remembered."""

Key = tuple[int, ...] | int
"""The addresses of a run that calls change."""


@dataclass(slots=True)
class GraphCounts:
    """What became of a program's runs of launches, and why some are no graphs.

    replayed: launches of graphs.  direct: runs whose steps were launched one by one.
    """

    replayed: int = 0
    direct: int = 0
    captured: int = 0
    dropped: int = 0
    refusals: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """One line, and one for each refusal."""
        head = (
            f"CUDA graphs: {self.captured} captured, {self.replayed} launched, {self.dropped} dropped; "
            f"{self.direct} runs of steps launched one by one"
        )
        return "\n  ".join([head, *self.refusals])


@dataclass(frozen=True, slots=True)
class CapturedRun:
    """A graph of CuPy's.  held: memory that it uses and nothing else keeps."""

    graph: Any
    held: tuple[Any, ...]


class GraphCache:
    """The graphs of one run of launches.  Not safe between threads.  name: of the run, in messages."""

    def __init__(self, name: str, counts: GraphCounts) -> None:
        self.name, self._counts = name, counts
        self._graphs: OrderedDict[Key, CapturedRun] = OrderedDict()
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._refused = False

    def find(self, key: Key) -> CapturedRun | None:
        """The graph for these addresses."""
        found = self._graphs.get(key)
        if found is not None:
            self._graphs.move_to_end(key)
        return found

    def is_due(self, key: Key) -> bool:
        """Should these addresses, which have no graph, be captured?  Not the first time: they may never come again."""
        if self._refused:
            return False
        if key in self._seen:
            del self._seen[key]
            return True
        self._seen[key] = None
        if len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)
        return False

    def keep(self, key: Key, captured: CapturedRun) -> CapturedRun | None:
        """Remembers a graph; hands on the one that goes for it, which may still be running."""
        self._graphs[key] = captured
        self._counts.captured += 1
        if len(self._graphs) <= MOST_GRAPHS:
            return None
        self._counts.dropped += 1
        return self._graphs.popitem(last=False)[1]

    def refuse(self, error: Exception) -> tuple[CapturedRun, ...]:
        """No graphs from now on, which is told once; hands on those that there were."""
        why = (str(error).splitlines() or [""])[0]
        refusal = f"{self.name}: {type(error).__name__}: {why}"
        log.warning("no CUDA graph, steps are launched one by one: %s", refusal)
        self._counts.refusals.append(refusal)
        self._refused = True
        graphs = tuple(self._graphs.values())
        self._graphs.clear()
        return graphs


class WorkRooms:
    """Memory that captured launches work in, like products' workspaces: the same for all launches of all graphs, since
    these follow each other.  It lives as long as this object, so that it outlives every graph.

    allocate: memory of CuPy's for a number of bytes.
    """

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        self._allocate = allocate
        self._rooms: list[tuple[int, Any]] = []
        self._outgrown: list[Any] = []
        self._next = 0

    def begin_launch(self) -> None:
        """What the launches before this one took may be used again."""
        self._next = 0

    def take(self, count: int) -> Any:
        """Memory of at least `count` bytes, the launch's own."""
        number, self._next = self._next, self._next + 1
        if number == len(self._rooms):
            self._rooms.append((count, self._allocate(count)))
        elif self._rooms[number][0] < count:
            larger = self._allocate(count)
            self._outgrown.append(self._rooms[number][1])
            self._rooms[number] = count, larger
        return self._rooms[number][1]


@contextmanager
def capture(stream: Any) -> Iterator[list[Any]]:
    """Captures what is enqueued on a stream of CuPy's inside; the list has the graph afterwards.

    Relaxed: neither allocations here nor what other threads do ends it.
    """
    graphs: list[Any] = []
    try:
        stream.begin_capture()
        yield graphs
    except BaseException:
        # The stream is to be usable again; what went wrong first is what counts.
        try:
            stream.end_capture()
        except Exception:
            pass
        raise
    graphs.append(stream.end_capture())


def split_runs(capturable: Sequence[bool]) -> list[tuple[int, int, bool]]:
    """(first, end, can it be a graph?) of each run of steps: consecutive ones that can be captured are one run."""
    runs: list[tuple[int, int, bool]] = []
    for number, able in enumerate(capturable):
        if runs and runs[-1][2] == able:
            runs[-1] = runs[-1][0], number + 1, able
        else:
            runs.append((number, number + 1, able))
    return [(first, end, able and end - first >= LEAST_LAUNCHES) for first, end, able in runs]
