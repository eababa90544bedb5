"""Planning before its turn, in other threads: while the CUDA compiler works for one, Python works on another.

Takes pieces of work by key, does the heaviest first, and lets whoever needs one wait for it.  One thread at a time
runs Python, as the interpreter's lock would have it anyway; it hands on when it asks the compiler.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import math
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class _Rank(enum.IntEnum):
    """Whose turn comes first: what the compiler takes long for should reach it early."""

    BEGUN = enum.auto()
    NEW = enum.auto()
    BLOCK = enum.auto()


class _Turn:
    """A lock.  Of the threads that wait the first by rank gets it; of equal ranks the one that came first.  Nobody else
    is woken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: list[tuple[_Rank, int, threading.Lock]] = []
        self._taken = self._open = False

    def take(self, rank: _Rank) -> None:
        with self._lock:
            if not self._taken or self._open:
                self._taken = True
                return
            gate = threading.Lock()
            gate.acquire()
            heapq.heappush(self._waiting, (rank, next(self._numbers), gate))
        gate.acquire()

    def give(self) -> None:
        with self._lock:
            if self._waiting:
                heapq.heappop(self._waiting)[-1].release()
            else:
                self._taken = False

    def open(self) -> None:
        """Let nobody wait from now on: the work that is still to end has no block beside it."""
        with self._lock:
            self._open = True
            while self._waiting:
                heapq.heappop(self._waiting)[-1].release()


class CompilePool:
    """Use it in a `with`: the block, and each piece of work, run one at a time, the block when nothing else can.

    threads: how many pieces of work may wait for the compiler at once; 0: none is begun before it is asked for.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "astitch-plan") if threads else None
        self._jobs: dict[Hashable, Future[None]] = {}
        self._waiting: list[tuple[float, int, Future[None], Callable[[], object]]] = []
        self._turn = _Turn()
        self._block = 0

    def __enter__(self) -> CompilePool:
        self._block = threading.get_ident()
        self._turn.take(_Rank.BLOCK)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end(wait=True)
        except BaseException:  # a signal handler's
            # Threads that wait for a turn would wait for ever.
            self._end(wait=False)
            raise

    def _end(self, *, wait: bool) -> None:
        self._waiting.clear()
        self._turn.open()
        if self._pool:
            self._pool.shutdown(wait=wait, cancel_futures=True)

    def start(self, key: Hashable, work: Callable[[], object], weight: float = math.inf) -> None:
        """Begins the work, unless work was begun under this key before.  weight: the heaviest comes first."""
        if self._pool and key not in self._jobs:
            job = self._jobs[key] = Future[None]()
            heapq.heappush(self._waiting, (-weight, len(self._jobs), job, work))
            self._pool.submit(self._do_next)

    def finish(self, key: Hashable) -> None:
        """Waits for the work if a thread is at it; if all threads are at other work, it is left to whoever asks.

        What went wrong in it is not told: it goes wrong again for whoever asks.
        """
        job = self._jobs.get(key)
        if job and not job.done():
            self._hand_on(lambda: None)
            if not job.done() and not job.cancel():
                self._hand_on(lambda: wait([job]))

    def ask(self, question: Callable[[Asked], Answer]) -> Callable[[Asked], Answer]:
        """The same function, during which others have their turn."""
        return lambda asked: self._hand_on(lambda: question(asked))

    def _do_next(self) -> None:
        self._turn.take(_Rank.NEW)
        try:
            if self._waiting:
                _, _, job, work = heapq.heappop(self._waiting)
                if job.set_running_or_notify_cancel():
                    try:
                        work()
                    finally:
                        job.set_result(None)
        finally:
            self._turn.give()

    def _hand_on(self, wait: Callable[[], Answer]) -> Answer:
        self._turn.give()
        try:
            return wait()
        finally:
            inside = threading.get_ident() == self._block
            self._turn.take(_Rank.BLOCK if inside else _Rank.BEGUN)
