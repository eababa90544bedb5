"""What os.fork leaves of astitch in the child: nothing that another thread of the parent held.

Takes nothing, hands on locks that are free in a child, and blocks during which a fork waits.  The idea: a fork copies
one thread and all locks.  Locks of Python's are made anew; for those inside of native code the fork waits.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

Answer = TypeVar("Answer")

LONGEST_WAIT_S = 60.0
"""A fork that has waited so long for native code goes on without it."""


class ForkLock(_thread.RLock):  # type: ignore[misc] # final for typeshed, not for Python
    """A threading.RLock; in a forked child it is free, unless the thread that forked held it.

    No method of Python's stands between: a signal that comes as it is taken or given finds it taken or given.
    """

    def __init__(self) -> None:
        _locks.add(self)

    def renew(self) -> None:
        """Make the lock anew, in the child of a fork."""
        lock: Any = self
        if not lock._is_owned():
            lock._at_fork_reinit()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


class cached_property(functools.cached_property[Answer]):  # noqa: N801 - it stands where functools' stood
    """functools.cached_property without the lock that Python 3.11 has in it, which a fork would leave taken.

    Two threads may compute the same value; it must be one that may be computed twice.
    """

    def __init__(self, function: Callable[[Any], Answer]) -> None:
        super().__init__(function)
        self.lock = contextlib.nullcontext()


def once(function: Callable[[], Answer]) -> Callable[[], Answer]:
    """functools.cache for a function without arguments that may not run twice: threads that ask meanwhile wait."""
    lock, answer = ForkLock(), functools.cache(function)

    @functools.wraps(function)
    def ask() -> Answer:
        with lock:
            return answer()

    return ask


class _Gate:
    """Many threads may be inside at a time; a fork waits until no other is, and none enters meanwhile.

    Inside is who holds a lock of its own: no method of Python's stands between, so that a signal cannot come there.
    """

    def __init__(self) -> None:
        self._adding = ForkLock()  # a fork holds it too
        self._own: list[weakref.ref[ForkLock]] = []
        self._held: dict[int, list[ForkLock]] = {}  # by thread that forks

    def add(self, lock: ForkLock) -> None:
        """One more thread's."""
        with self._adding:
            self._own = [known for known in self._own if known() is not None]
            self._own.append(weakref.ref(lock))

    def close(self) -> None:
        """Close before a fork.  Takes all locks that it gets in LONGEST_WAIT_S together."""
        until = time.monotonic() + LONGEST_WAIT_S
        held = self._held.setdefault(threading.get_ident(), [])
        for lock in (self._adding, *(known() for known in list(self._own))):
            if lock and lock.acquire(timeout=max(0.0, until - time.monotonic())):
                held.append(lock)

    def open(self) -> None:
        """Release the locks after a fork, in the parent and in the child."""
        for lock in self._held.pop(threading.get_ident(), ()):
            lock.release()


_gate = _Gate()


class _Own(threading.local):
    """A thread's lock, free while it is outside."""

    def __init__(self) -> None:
        self.lock = ForkLock()
        _gate.add(self.lock)


_own = _Own()


def fork_waits() -> AbstractContextManager[object]:
    """No other thread forks during the block: for native code that holds locks, and while a process is started.

    A child that is forked between the two steps of a start keeps the ends of its pipes open.  The parent then waits for
    their end as long as that child lives.  The block is the calling thread's: it cannot be entered in another.
    """
    return _own.lock


_in_child: list[Callable[[], None]] = []


def do_in_child(work: Callable[[], None]) -> None:
    """Have `work` called in every forked child, before the child goes on."""
    _in_child.append(work)


def _begin_child() -> None:
    _gate.open()
    for lock in list(_locks):
        lock.renew()
    for work in _in_child:
        work()


os.register_at_fork(before=_gate.close, after_in_parent=_gate.open, after_in_child=_begin_child)
