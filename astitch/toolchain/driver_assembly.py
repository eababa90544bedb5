"""Kernels assembled by the CUDA driver while others are planned and XLA compiles the program around them.

Takes PTX, hands on nothing.  The idea: XLA loads kernels one after the other when a program first runs, asks for a
verbose log of each, and the driver assembles them then; but it keeps on disk what it has assembled, whoever asked.
The assembly has a process of its own.  While a driver assembles, nothing else is loaded in its process, and XLA, which
loads what it measures, would wait.
"""

from __future__ import annotations

import heapq
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from astitch.device.cuda_driver import open_driver
from astitch.system.forks import fork_waits
from astitch.toolchain import assemble_ptx

log = logging.getLogger("astitch")

LEAST_BYTES = 128 << 10
"""The least bytes of PTX for which a process is begun.  The driver takes 0.2 s for them, a process 0.4 s until it can
begin."""


@dataclass(frozen=True, slots=True)
class Unit:
    """PTX with one kernel, and what that is called in it."""

    name: str
    ptx: bytes = field(repr=False)


Assemble = Callable[[Iterable[Unit]], object]
"""Has PTX assembled some time; returns at once."""


@contextmanager
def assemble_in_background(device: Any) -> Iterator[Assemble]:
    """Lets the block hand PTX to the driver, for a device of JAX's.  The longest text that waits is next; what was
    given before is not assembled again.  What still waits when the block ends is assembled after it, unless an error
    ended it.  An error of the driver's is not told: XLA meets it again when it loads the kernel.  Nothing is done
    without a device, a driver or an interpreter to begin, or where the driver was told to keep nothing.
    """
    keeps = os.environ.get("CUDA_CACHE_DISABLE", "0") != "1"
    if device is None or open_driver() is None or not keeps or not sys.executable:
        yield lambda units: None
        return
    queue = _Queue(device.local_hardware_id)
    try:
        yield queue.add
    except BaseException:
        queue.close(drop=True)
        raise
    queue.close()


class _Queue:
    """What waits for a process, and the thread that talks to it.  number: CUDA's, of the device."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, str, bytes]] = []
        self._given: set[bytes] = set()
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, units: Iterable[Unit]) -> None:
        """Begins a process when it is worth one.  Nothing is done when the queue is closed."""
        with self._changed:
            if self._closed:
                return
            for unit in units:
                if unit.ptx not in self._given:
                    self._given.add(unit.ptx)
                    heapq.heappush(self._waiting, (-len(unit.ptx), unit.name, unit.ptx))
            self._changed.notify()
            if self._thread is None and sum(map(len, self._given)) >= LEAST_BYTES:
                # A daemon, since nobody waits for what it does; without it the process comes to its end.
                self._thread = threading.Thread(
                    target=self._talk, name="astitch-assemble", daemon=True
                )
                self._thread.start()

    def close(self, *, drop: bool = False) -> None:
        """Nothing more comes.  drop: nor is what waits assembled."""
        with self._changed:
            self._closed = True
            if drop:
                self._waiting.clear()
            self._changed.notify()

    def _talk(self) -> None:
        command = [sys.executable, "-I", "-S", assemble_ptx.__file__, str(self._number)]
        try:
            with fork_waits():
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            with process:
                assert process.stdin and process.stdout
                pair = self._next()
                while pair:
                    pickle.dump(pair, process.stdin)
                    process.stdin.flush()
                    if not process.stdout.read(1):
                        return
                    pair = self._next()
                pickle.dump(None, process.stdin)
        except OSError as error:
            log.debug("no process assembles kernels in the background: %s", error)

    def _next(self) -> tuple[str, bytes] | None:
        """The longest that waits, as soon as there is one; None when nothing more comes."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            return heapq.heappop(self._waiting)[1:] if self._waiting else None
