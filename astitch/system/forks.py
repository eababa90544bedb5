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
from collections.abc import Callable, Iterator
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
        """In the child of a fork."""
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


class _Gate:
    """Many may be inside at a time; a fork waits until nobody is, and nobody enters meanwhile."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside: dict[int, int] = {}
        self._forking: int | None = None

    def enter(self) -> None:
        thread = threading.get_ident()
        with self._changed:
            if thread not in self._inside:
                self._changed.wait_for(lambda: self._forking in (None, thread), LONGEST_WAIT_S)
            self._inside[thread] = self._inside.get(thread, 0) + 1

    def leave(self) -> None:
        thread = threading.get_ident()
        with self._changed:
            depth = self._inside.pop(thread, 1) - 1
            if depth:
                self._inside[thread] = depth
            else:
                self._changed.notify_all()

    def close(self) -> None:
        """Before a fork."""
        thread, until = threading.get_ident(), time.monotonic() + LONGEST_WAIT_S
        with self._changed:
            self._changed.wait_for(lambda: self._forking is None, LONGEST_WAIT_S)
            self._forking = thread
            self._changed.wait_for(
                lambda: not self._inside.keys() - {thread}, max(0.0, until - time.monotonic())
            )

    def open(self) -> None:
        """After a fork, in the parent."""
        with self._changed:
            self._forking = None
            self._changed.notify_all()

    def open_in_child(self) -> None:
        thread = threading.get_ident()
        depth = self._inside.get(thread, 0)
        self._forget()
        if depth:
            self._inside[thread] = depth


_gate = _Gate()


@contextlib.contextmanager
def fork_waits() -> Iterator[None]:
    """No other thread forks during the block: for native code that holds locks, and while a process is started.

    A child that is forked between the two steps of a start keeps the ends of its pipes open, and the parent waits for
    their end as long as that child lives.
    """
    _gate.enter()
    try:
        yield
    finally:
        _gate.leave()


_in_child: list[Callable[[], None]] = []


def do_in_child(work: Callable[[], None]) -> None:
    """From now on called in every forked child, before it goes on."""
    _in_child.append(work)


def _begin_child() -> None:
    _gate.open_in_child()
    for lock in list(_locks):
        lock.renew()
    for work in _in_child:
        work()


os.register_at_fork(before=_gate.close, after_in_parent=_gate.open, after_in_child=_begin_child)
