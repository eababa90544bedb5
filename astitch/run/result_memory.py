"""Memory of a program's results: where a call wrote them, a later call writes when the caller let go of all of them.

So the addresses of a program repeat from call to call, all of a set together, as its CUDA graphs want.  Nobody asks an
allocator.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

MOST_FREE = 2
"""Sets that are kept: two take turns where results become the next call's arguments."""

MOST_OPEN, MOST_PARTIAL = 16, 4
"""Sets that callers hold, and those of which they hold a part: the blocks of older ones go their own ways."""

MOST_STREAMS = 4

_owners: dict[int, int] = {}
"""The streams of all blocks that callers hold, by address."""

_arrays: dict[int, weakref.ref[Any]] = {}
"""The JAX arrays on blocks that JAX got, by address."""


class ResultMemory:
    """A block that holds a result.  ptr: its address."""

    __slots__ = ("_block", "_name", "_set", "ptr")

    def __init__(self, name: str, block: Any, results: ResultSet, stream: int) -> None:
        self.ptr = int(block.ptr)
        self._name, self._block, self._set = name, block, results
        _owners[self.ptr] = stream

    def __del__(
        self, owners: dict[int, int] = _owners, arrays: dict[int, weakref.ref[Any]] = _arrays
    ) -> None:
        owners.pop(self.ptr, None)
        arrays.pop(self.ptr, None)
        self._set.take_back(self._name, self._block)


class ResultSet:
    """The blocks of one call that callers let go of.  With the last it is free for another call.

    Called from wherever a reference goes, in any thread: without locks, of which the thread may hold one.
    """

    __slots__ = ("__weakref__", "_count", "_free", "_most", "_parted", "_returned", "_turns")

    def __init__(self, count: int, free: list[dict[str, Any]], most: int) -> None:
        self._count, self._free, self._most = count, free, most
        self._returned: list[tuple[str, Any]] = []
        self._turns = itertools.count(1)
        self._parted = False

    def take_back(self, name: str, block: Any) -> None:
        """One block less that a caller holds."""
        if self._parted:
            return
        self._returned.append((name, block))
        if next(self._turns) == self._count and len(self._free) < self._most:
            blocks = dict(self._returned)
            if len(blocks) == self._count:  # else another thread parts them just now
                self._free.append(blocks)

    @property
    def is_partial(self) -> bool:
        """Did callers let go of some?"""
        return bool(self._returned)

    def part(self) -> None:
        """The blocks that nobody holds go their own ways, as the others will."""
        self._parted = True
        self._returned.clear()


def note_array(address: int, array: Any) -> None:
    """What lies there is a JAX array now."""
    if address in _owners:
        _arrays[address] = weakref.ref(array)


def follows_stream(array: Any, address: int, stream: int) -> bool:
    """Is the JAX array, which lies there, a result that is written only in the order of this stream?  If a result was
    donated to JAX, another array lies there, which JAX's own stream is still to write."""
    if _owners.get(address) != stream:
        return False
    known = _arrays.get(address)
    return known is not None and known() is array


class ResultPool:
    """Memory for a program's results, for each stream.  Whoever reads a result in the order of its stream has read it
    before it is written again.

    sizes: names and bytes of the results.  most: how many free sets are kept.
    """

    def __init__(self, sizes: Sequence[tuple[str, int]], most: int = MOST_FREE) -> None:
        self._sizes, self._most = tuple(sizes), most
        self._streams: OrderedDict[int, list[dict[str, Any]]] = OrderedDict()
        self._open: deque[weakref.ref[ResultSet]] = deque()  # the latest first
        with _pools_lock:
            _pools.add(self)

    def take(self, stream: int, allocate: Callable[[int, str], Any]) -> dict[str, ResultMemory]:
        """A block for each result, to be written in the order of `stream`.  It is from the set that was let go last, or
        what `allocate` gives for bytes and name."""
        free = self._streams.get(stream)
        if free is None:
            free = self._streams[stream] = []
            if len(self._streams) > MOST_STREAMS:
                self._streams.popitem(last=False)
        blocks = free.pop() if free else {n: allocate(count, n) for n, count in self._sizes}
        results = ResultSet(len(blocks), free, self._most)
        self._part_old()
        self._open.appendleft(weakref.ref(results))
        return {n: ResultMemory(n, blocks[n], results, stream) for n, _ in self._sizes}

    def _part_old(self) -> None:
        partial = 0
        for number, known in enumerate(self._open):
            results = known()
            if results is not None:
                partial += results.is_partial
                if partial > MOST_PARTIAL or number == MOST_OPEN - 1:
                    results.part()
        if len(self._open) == MOST_OPEN:
            self._open.pop()

    def clear(self) -> None:
        """Gives all free sets back."""
        for free in list(self._streams.values()):
            free.clear()


_pools: weakref.WeakSet[ResultPool] = weakref.WeakSet()
_pools_lock = threading.Lock()


def give_back_all() -> None:
    """Gives the free sets of all programs back: memory is short."""
    with _pools_lock:
        pools = list(_pools)
    for pool in pools:
        pool.clear()
