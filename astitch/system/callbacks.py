"""Python functions that native code calls: an exception may not pass through that code, and is raised again behind it.

Takes a function of one argument, hands on what ctypes can call.  A signal handler may raise at any instruction, also at
the first one of a callback: CPython looks for signals when it enters a function, before a `try` of that function has
begun.  A generator that waits inside a `try` has begun it already, so callbacks are sent to one.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import operator
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

log = logging.getLogger("astitch")


def _nothing(*_: Any) -> None:
    pass


class Callback(threading.local):
    """A function for ctypes to call, of one argument, from any thread.

    answer: may raise.  fail: is given the argument and an error of `answer`'s own, and answers in its place.  Any other
    exception (KeyboardInterrupt, SystemExit, what a signal handler raised) is raised again in this thread.  That
    happens as soon as native code has returned to Python there.
    prepare: makes the answer for such a call, before there is one; native code must take it for a failure.  release: is
    given what was prepared and not used.
    """

    # Looked up and called by the interpreter's own code, with no instruction in between.
    __call__ = property(operator.attrgetter("_send"))

    def __init__(
        self,
        answer: Callable[[Any], Any],
        fail: Callable[[Any, Exception], Any],
        prepare: Callable[[], Any] = _nothing,
        release: Callable[[Any], None] = _nothing,
    ) -> None:
        """Called once for each thread, by threading.local."""
        self._send = _Server(answer, fail, prepare, release).begin()

    @contextmanager
    def deaf(self, otherwise: Callable[[Any], Any]) -> Iterator[None]:
        """Within the block calls that come from this thread go to `otherwise`."""
        before, self._send = self._send, otherwise
        try:
            yield
        finally:
            self._send = before


_AT_ONCE = 6
"""So many signal handlers may raise one after the other, each while the exception before it is caught."""


class _Server:
    """Answers the calls of one thread, one after the other."""

    def __init__(
        self,
        answer: Callable[[Any], Any],
        fail: Callable[[Any, Exception], Any],
        prepare: Callable[[], Any],
        release: Callable[[Any], None],
    ) -> None:
        self._answer, self._fail, self._prepare, self._release = answer, fail, prepare, release
        self._next: Any = None
        self._prepared = prepare()
        self._left: tuple[BaseException, Any] | None = None  # and what was left before it

    def begin(self) -> Callable[[Any], Any]:
        """What takes a call's argument and gives its answer."""
        server = self._serve(_AT_ONCE)
        next(server)
        return server.send

    def _serve(self, more: int) -> Generator[Any, Any, None]:
        """more: how many generators stand inside this one, which catches what comes while they catch."""
        while True:
            try:
                if more:
                    yield from self._serve(more - 1)
                while self._left is not None:
                    raise_behind(self._left[0])
                    self._left = self._left[1]
                if self._next is self._prepared:
                    self._prepared = self._prepare()
                asked = yield self._next
                self._next = self._prepared
                self._next = self._answer_or_fail(asked)
            except GeneratorExit:
                if not more:
                    self._release(self._prepared)
                return
            except BaseException as error:
                self._left, self._next = (error, self._left), self._prepared

    def _answer_or_fail(self, asked: Any) -> Any:
        around = sys.exception()
        try:
            return self._answer(asked)
        except Exception as error:
            interrupt = find_interrupt(error, around)
            if interrupt is None:
                return self._fail(asked, error)
        raise interrupt


def is_interrupt(error: BaseException) -> bool:
    """Did it come from outside: no Exception, or raised by a signal handler?"""
    if not isinstance(error, Exception):
        return True
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return _passed(error, handlers)


def find_interrupt(
    error: BaseException, around: BaseException | None = None
) -> BaseException | None:
    """The interrupt among an exception and those that it was raised for; None where there is none.  It says nothing of
    the work that it ended.  around: what was being handled before that work began."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and link is not around and id(link) not in seen:
        if is_interrupt(link):
            return link
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return None


def pass_interrupt(error: Exception) -> None:
    """Raises what came from outside.  For an `except Exception` that remembers a failure, or goes on."""
    if is_interrupt(error):
        raise error


def _code_of(handler: Any) -> CodeType | None:
    """The code of a function, a method, a partial function or a callable object; None for others."""
    if handler is None or isinstance(handler, int | type):  # none of Python's, SIG_DFL, SIG_IGN
        return None
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not hasattr(handler, "__code__"):
        handler = vars(type(handler)).get("__call__")
    return getattr(handler, "__code__", None)


def _passed(error: BaseException, codes: set[CodeType | None]) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


# ---- raising behind native code ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Left:
    """What left a callback.  caller: the frame that called the native code, and at which instruction."""

    error: BaseException
    caller: FrameType | None
    instruction: int


_left: deque[_Left] = deque()
"""What the main thread has yet to raise."""


class _Pending:
    """What CPython asks for its truth between two instructions of the main thread: an exception is raised there."""

    def __init__(self) -> None:
        self._is_asked = False

    def ask(self) -> None:
        """Has CPython ask, if it is not about to."""
        if not self._is_asked:
            while _add_pending_call(_IS_TRUE, id(self)):
                pass  # no room: other calls are pending, and made between two instructions of the main thread
            self._is_asked = True

    def __bool__(self) -> bool:
        self._is_asked = False
        if not _left:
            return False
        # Native code may call Python before it returns, to make an error of its own for one.
        frame, caller = sys._getframe(1), _left[0].caller
        if frame is not caller and _is_below(caller, frame):
            self.ask()
            return False
        error = _left.popleft().error
        if _left:
            self.ask()
        raise error


_PENDING = _Pending()

# int Py_AddPendingCall(int (*)(void *), void *) and int PyObject_IsTrue(PyObject *), which is such a function.
_add_pending_call = ctypes.pythonapi["Py_AddPendingCall"]
_add_pending_call.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
_IS_TRUE = ctypes.cast(ctypes.pythonapi["PyObject_IsTrue"], ctypes.c_void_p)

# int PyThreadState_SetAsyncExc(unsigned long id, PyObject *exc): into how many threads.
_set_exception = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
_set_exception.argtypes = (ctypes.c_ulong, ctypes.py_object)

_LOOKS_EVERY_S = 0.001


def raise_behind(error: BaseException) -> None:
    """Raises an exception in this thread as soon as native code has returned to Python there; itself it returns.

    In another thread than the main one, where only PyThreadState_SetAsyncExc raises what no code caught, its type is
    raised.  A thread of native code's has no Python to return to: there it is logged.
    """
    caller: FrameType | None = sys._getframe()
    while caller is not None and caller.f_globals is globals():
        caller = caller.f_back
    left = _Left(error, caller, caller.f_lasti if caller else -1)
    if threading.get_ident() == threading.main_thread().ident:
        if all(error is not other.error for other in _left):
            _left.append(left)
        _PENDING.ask()
    elif caller is None:
        log.warning("%s ended a callback without Python around it", type(error).__name__)
    else:
        given = threading.get_ident(), left
        threading.Thread(target=_raise_in, args=given, name="astitch-raise", daemon=True).start()


def _raise_in(thread: int, left: _Left) -> None:
    while frame := sys._current_frames().get(thread):
        returned = frame is left.caller and frame.f_lasti != left.instruction
        if returned or not _is_below(left.caller, frame):
            _set_exception(thread, type(left.error))
            return
        time.sleep(_LOOKS_EVERY_S)


def _is_below(caller: FrameType | None, frame: FrameType | None) -> bool:
    """Is the caller on the stack that ends with the frame?"""
    while frame is not None and frame is not caller:
        frame = frame.f_back
    return frame is not None
