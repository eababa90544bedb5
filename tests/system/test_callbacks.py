"""Callbacks that exceptions leave: native code has its answer, and the exception is raised behind it."""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from astitch.system.callbacks import Callback

FAILED, DONE, REFUSED = -1, 1, 2

SOURCE = r"""
#include <signal.h>
typedef long (*Callback)(long);
// Sends signals to this thread, which Python notes and looks at when it runs next, then calls Python.
extern "C" long call(Callback callback, long argument, const int* signals, int count) {
  for (int i = 0; i < count; ++i) raise(signals[i]);
  return callback(argument);
}
extern "C" void call_both(Callback first, Callback second, long* results) {
  results[0] = first(0);
  results[1] = second(0);
}
"""

Native = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = Path(tmp_path_factory.mktemp("callbacks"))
    (folder / "call.cpp").write_text(SOURCE)
    built = folder / "call.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", built, folder / "call.cpp"], check=True)
    loaded = ctypes.CDLL(str(built))
    loaded.call.restype = ctypes.c_long
    return loaded


class First(BaseException):
    pass


class Second(Exception):
    pass


class Third(BaseException):
    pass


RAISED = {signal.SIGUSR1: First, signal.SIGUSR2: Second, signal.SIGALRM: Third}


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    def raise_its_own(number: int, _: Any) -> None:
        raise RAISED[signal.Signals(number)]

    before = {number: signal.signal(number, raise_its_own) for number in RAISED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def guard(answer: Callable[[int], int]) -> Any:
    return Native(Callback(answer, lambda *_: REFUSED, lambda: FAILED))


def call(library: Any, callback: Any, *signals: int) -> int:
    return int(library.call(callback, 0, (ctypes.c_int * len(signals))(*signals), len(signals)))


def catch(work: Callable[[], Any], most: int = 4) -> list[type[BaseException]]:
    """The exceptions that come, one after the other; a later one may come while an earlier one is caught."""
    found: list[BaseException] = []

    def attempt(more: int) -> None:
        try:
            if more:
                attempt(more - 1)
            else:
                work()
            for _ in range(1000):  # looks for what is pending in each turn
                pass
        except BaseException as error:
            found[:0] = (error,)

    attempt(most)
    return [type(error) for error in found]


def test_a_signal_before_the_first_instruction(library: Any, capfd: Any) -> None:
    """CPython looks for signals before any `try` of a callback begins."""
    asked: list[int] = []
    callback = guard(lambda argument: asked.append(argument) or DONE)
    results: list[int] = []
    for number, kind in RAISED.items():
        assert catch(lambda n=number: results.append(call(library, callback, n))) == [kind]
    assert asked == [] and results == []
    assert call(library, callback) == DONE
    assert "ignored" not in capfd.readouterr().err


def test_native_code_gets_what_was_prepared(library: Any) -> None:
    """And goes on undisturbed: the exception waits until it has returned, also where it calls Python once more."""
    results = (ctypes.c_long * 2)()

    def leave(_: int) -> int:
        signal.raise_signal(signal.SIGUSR1)
        return DONE

    def stay(_: int) -> int:
        for _ in range(1000):
            pass
        return DONE

    for first, second, expected in (
        (leave, stay, [FAILED, DONE]),
        (stay, leave, [DONE, FAILED]),
        (stay, stay, [DONE, DONE]),
    ):
        callbacks = guard(first), guard(second)
        found = catch(lambda c=callbacks: library.call_both(*c, results))
        assert list(results) == expected
        assert found == ([First] if FAILED in expected else [])


def test_two_and_three_signals_at_once(library: Any, capfd: Any) -> None:
    callback = guard(lambda _: DONE)
    for numbers in ((signal.SIGUSR1, signal.SIGALRM), tuple(RAISED)):
        for _ in range(3):
            found = catch(lambda n=numbers: call(library, callback, *n))
            assert set(found) == {RAISED[number] for number in numbers} and len(found) == len(
                numbers
            )
            assert call(library, callback) == DONE
    assert "ignored" not in capfd.readouterr().err


def test_errors_of_the_callback_are_answered(library: Any) -> None:
    def fail(_: int) -> int:
        raise Second

    assert call(library, guard(fail)) == REFUSED
    try:
        raise First
    except First:  # what is handled around the call is not what came of it
        assert call(library, guard(fail)) == REFUSED


def test_what_a_handler_raised_is_told_from_errors(library: Any) -> None:
    def wrap(_: int) -> int:
        try:
            signal.raise_signal(signal.SIGUSR2)
        except Second as error:
            raise ValueError("a kernel") from error
        return DONE

    assert catch(lambda: call(library, guard(wrap))) == [Second]


def test_other_threads(library: Any) -> None:
    """An exception that another thread sends into one that is in a callback is raised there, behind it."""
    inside, found = threading.Event(), []
    set_exception = ctypes.pythonapi["PyThreadState_SetAsyncExc"]

    def wait(_: int) -> int:
        inside.set()
        while True:
            time.sleep(0.001)

    callback = guard(wait)

    def work() -> None:
        found.append(catch(lambda: (call(library, callback), time.sleep(0.3))))

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    set_exception(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Third))
    thread.join(10)
    assert found == [[Third]]


def test_a_signal_at_any_time(library: Any) -> None:
    """Every call is answered or interrupted."""
    callback = guard(lambda _: sum(range(5000)) and DONE)
    answers: list[int] = []
    interrupted = 0
    for turn in range(300):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 * (turn + 1))
                answers.append(call(library, callback))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Third:
            interrupted += 1
    assert set(answers) <= {DONE}
    assert len(answers) + interrupted >= 300 and interrupted
