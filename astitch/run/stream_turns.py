"""The order of a program's calls: one arena, whatever streams they come on, and arrays in use until a call has ended.

Takes the stream of each call and what it reads, hands on when that may go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from astitch.run.device_memory import DeviceMemory


def wait_for_event(event: Any) -> None:
    """Lets the GPU come to an event."""
    try:
        event.synchronize()
    except Exception:  # a GPU that failed has nothing under way
        pass


class StreamTurns:
    """Lets the calls of one program follow each other.  Not safe between threads.

    forget_arguments: makes the next call look at all of its arguments.  end: the end of the latest call, as an event.
    """

    def __init__(
        self, cupy: Any, memory: DeviceMemory, forget_arguments: Callable[[], None]
    ) -> None:
        self._cupy, self._memory, self._forget_arguments = cupy, memory, forget_arguments
        self._last: Any = None  # the stream of the latest call
        self.end: Any = cupy.cuda.Event(disable_timing=True)
        # Arrays of JAX that a call reads, with the event of its end: JAX knows nothing of our streams,
        # and would give their memory to others.
        self._in_use: list[tuple[Any, list[Any]]] = []
        self._free_events: list[Any] = []
        self._broken_off = False  # an exception ended the latest call before its end was recorded

    def begin(self, stream: Any) -> None:
        """There is one arena: a call on another stream starts when the latest call has ended.

        A call may be broken off, for instance by a signal handler's exception.  Then the next call looks at everything
        anew: the broken one may have noted one thing of two that belong together.
        """
        self._memory.leave_rooms()
        if self._broken_off:
            self._forget_arguments()
            self._cupy.cuda.runtime.deviceSynchronize()
        self._broken_off = True
        if self._last is not None and self._last.ptr != stream.ptr:
            stream.wait_event(self.end)
            self._forget_arguments()  # who is held, and until when, is asked anew
        self._memory.wait_for_readers(stream)
        if self._in_use:
            self.let_go()

    def finish(self, stream: Any, in_use: list[Any]) -> None:
        """The call is enqueued.  in_use: what must live until it has ended."""
        # Recorded now: by the next call the stream may be gone.
        self._last = stream
        self.end.record(stream)
        if in_use:
            self.keep(in_use, stream)
        self._broken_off = False

    def keep(self, in_use: list[Any], stream: Any) -> None:
        """Keeps arrays until the stream has come here."""
        event = self.take_event()
        event.record(stream)
        self._in_use.append((event, in_use))

    def let_go(self) -> None:
        """Drops what ended calls kept."""
        while self._in_use and self._in_use[0][0].done:
            self._free_events.append(self._in_use.pop(0)[0])

    def take_event(self) -> Any:
        """An event that nobody uses."""
        if self._free_events:
            return self._free_events.pop()
        return self._cupy.cuda.Event(disable_timing=True)

    def return_event(self, event: Any) -> None:
        """An event that was enqueued, and may be recorded again."""
        self._free_events.append(event)
