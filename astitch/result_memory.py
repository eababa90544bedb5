"""Memory of a program's results: what a caller let go of is where the same result of a later call lies.

So the addresses of a program repeat from call to call, as its CUDA graphs want, and nobody asks an allocator.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

MOST_FREE = 2
"""Blocks that are kept for one result: two sets take turns where results become the next call's arguments."""

MOST_STREAMS = 4

_owners: dict[int, int] = {}
"""The streams of all blocks that callers hold, by address."""


class ResultMemory:
    """A block that holds a result.  ptr: its address.  When nobody holds it, it goes where its like is free."""

    __slots__ = ("_block", "_free", "_most", "ptr")

    def __init__(self, block: Any, free: list[Any], most: int, stream: int) -> None:
        self.ptr = int(block.ptr)
        self._block, self._free, self._most = block, free, most
        _owners[self.ptr] = stream

    def __del__(self, owners: dict[int, int] = _owners) -> None:
        owners.pop(self.ptr, None)
        if len(self._free) < self._most:
            self._free.append(self._block)


def follows_stream(address: int, stream: int) -> bool:
    """Is this the address of a result that is used again only in the order of this stream?"""
    return _owners.get(address) == stream


class ResultPool:
    """The free blocks of a program's results, for each stream: whoever reads a result in the order of its stream has
    read it before it is written again.  most: how many for each result."""

    def __init__(self, most: int = MOST_FREE) -> None:
        self._most = most
        self._streams: OrderedDict[int, dict[str, list[Any]]] = OrderedDict()
        with _pools_lock:
            _pools.add(self)

    def take(self, name: str, stream: int, allocate: Callable[[], Any]) -> ResultMemory:
        """A block for result `name`, to be written in the order of `stream`; the one that was let go last."""
        lists = self._streams.get(stream)
        if lists is None:
            lists = self._streams[stream] = {}
            if len(self._streams) > MOST_STREAMS:
                self._streams.popitem(last=False)
        free = lists.setdefault(name, [])
        block = free.pop() if free else allocate()
        return ResultMemory(block, free, self._most, stream)

    def clear(self) -> None:
        """Gives all free blocks back."""
        for lists in list(self._streams.values()):
            for free in lists.values():
                free.clear()


_pools: weakref.WeakSet[ResultPool] = weakref.WeakSet()
_pools_lock = threading.Lock()


def give_back_all() -> None:
    """Gives the free blocks of all programs back: memory is short."""
    with _pools_lock:
        pools = list(_pools)
    for pool in pools:
        pool.clear()
