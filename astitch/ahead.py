"""Planning before its turn, in other threads: while the CUDA compiler works for one, Python works on another.

Takes pieces of work by key, does them in the order in which they come, and lets whoever needs one wait for it.  One
thread at a time runs Python, as the interpreter's lock would have it anyway; it hands on when it asks the compiler.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Ahead:
    """Use it in a `with`: the block, and each piece of work, run one at a time.

    threads: how many pieces of work may wait for the compiler at once; 0: none is begun before it is asked for.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "astitch-plan") if threads else None
        self._jobs: dict[Hashable, Future[None]] = {}
        self._turn = threading.Lock()

    def __enter__(self) -> Ahead:
        self._turn.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._turn.release()
        if self._pool:
            self._pool.shutdown(cancel_futures=True)

    def start(self, key: Hashable, work: Callable[[], object]) -> None:
        """Begins the work, unless work was begun under this key before."""
        if self._pool and key not in self._jobs:
            self._jobs[key] = self._pool.submit(self._take_turn, work)

    def finish(self, key: Hashable) -> None:
        """Waits for the work if a thread is at it; if it only waits for one, it is left to whoever asks.

        What went wrong in it is not told: it goes wrong again for whoever asks.
        """
        job = self._jobs.get(key)
        if job and not job.done() and not job.cancel():
            self._hand_on(lambda: wait([job]))

    def ask(self, question: Callable[[Asked], Answer]) -> Callable[[Asked], Answer]:
        """The same function, during which others have their turn."""
        return lambda asked: self._hand_on(lambda: question(asked))

    def _take_turn(self, work: Callable[[], object]) -> None:
        with self._turn:
            work()

    def _hand_on(self, wait: Callable[[], Answer]) -> Answer:
        self._turn.release()
        try:
            return wait()
        finally:
            self._turn.acquire()
