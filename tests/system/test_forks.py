"""Forks while other threads compile, start processes and run: the child works, and the parent goes on."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from interrupt_at import interrupt_after

from astitch.system import forks
from astitch.system.forks import ForkLock, cached_property, fork_waits

ROOT = Path(forks.__file__).parents[2]

# Each child has 20 seconds, else it hangs.
FORK_MANY = """
import os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")
{prepare}
stop = threading.Event()
def go_on():
    number = 0
    while not stop.is_set():
        number += 1
        work(number)
threads = [threading.Thread(target=go_on) for _ in range(2)]
for thread in threads:
    thread.start()
for number in range({forks}):
    time.sleep(0.021)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            work(-number - 1)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        print("a child ended with", status, flush=True)
        break
else:
    print("all worked", flush=True)
stop.set()
for thread in threads:
    thread.join(60)
os._exit(0)
"""

NVRTC = """
from pathlib import Path
from astitch.toolchain.kernel_cache import KernelCache, compile_cached
from astitch.toolchain.nvrtc import Request
cache = KernelCache(Path(sys.argv[1]))
def work(number):
    text = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= NUMBER.0f; }'
    compile_cached(Request(text.replace("NUMBER", str(number)), "sm_90"), cache=cache)
work(0)
"""

PLANS = """
import gzip
from astitch.compile import compile_hlo
data = gzip.decompress(open("tests/data/corpus/batch_norm_backward_nchw.hlo.pb.gz", "rb").read())
def work(number):
    assert compile_hlo(data, gpu="h100").program.kernels
work(0)
"""

LAUNCHES = """
import numpy as np
from astitch.run.emulate import compile_host
text = '''#include "astitch.cuh"
extern "C" __global__ void __launch_bounds__(64) add_one(const float* x, float* y)
{ y[blockIdx.x * 64 + threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x] + 1.f; }
'''
module = compile_host(text)
def work(number):
    x, y = np.ones(64 * 64, np.float32), np.zeros(64 * 64, np.float32)
    module.launch("add_one", 64, 64, [x, y], workers=3)
    assert y.sum() == 2 * 64 * 64
work(0)
"""

COMPILERS = """
from astitch.system.kept_libraries import run_compiler
def work(number):
    assert run_compiler(["/bin/echo", str(number)]).stdout == f"{number}\\n"
"""


@pytest.mark.parametrize(
    ("prepare", "count"),
    [(NVRTC, 10), (PLANS, 8), (LAUNCHES, 25), (COMPILERS, 40)],
    ids=["NVRTC", "plans", "launches", "compilers"],
)
def test_a_child_does_what_other_threads_did(prepare: str, count: int, tmp_path: Path) -> None:
    script = FORK_MANY.format(prepare=prepare, forks=count)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, env={**os.environ, "PYTHONPATH": "."},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.stdout == "all worked\n", done.stderr[-2000:]


def test_a_child_that_lives_on_keeps_no_compiler_waiting() -> None:
    """Children that are forked while processes are started must not hold the ends of their pipes."""
    script = (
        "import os, threading, time, warnings\nwarnings.simplefilter('ignore')\n"
        "from astitch.system.kept_libraries import run_compiler\n"
        "threads = [threading.Thread(target=lambda: [run_compiler(['/bin/true']) for _ in range(100)])\n"
        "           for _ in range(2)]\n"
        "for thread in threads:\n    thread.start()\n"
        "children = []\n"
        "while any(thread.is_alive() for thread in threads) and len(children) < 150:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n        time.sleep(100)\n        os._exit(0)\n"
        "    children.append(child)\n"
        "for thread in threads:\n    thread.join(30)\n"
        "print(len(children) > 5, [thread.is_alive() for thread in threads], flush=True)\n"
        "for child in children:\n    os.kill(child, 9)\n    os.waitpid(child, 0)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.stdout == "True [False, False]\n", done.stderr[-2000:]


def in_a_child(work: object) -> int:
    """The status of a forked child that does it; 5 seconds later it is killed."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(work())  # type: ignore[operator]
        finally:
            os._exit(99)
    for _ in range(500):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -9


def held_elsewhere(find_lock: Callable[[], Any]) -> tuple[threading.Thread, threading.Event]:
    """Another thread that is in the lock until the event."""
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with find_lock():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    return thread, leave


def test_a_lock_of_another_thread_is_free_in_the_child() -> None:
    lock = ForkLock()
    thread, leave = held_elsewhere(lambda: lock)

    def take() -> int:
        with lock:
            return 7

    assert in_a_child(take) == 7
    plain = threading.Lock()
    other, leave_other = held_elsewhere(lambda: plain)
    assert in_a_child(lambda: 7 if plain.acquire(timeout=1) else 8) == 8  # as it would be
    for event in (leave, leave_other):
        event.set()
    thread.join()
    other.join()


def test_a_lock_of_the_forking_thread_is_held_in_the_child() -> None:
    lock = ForkLock()

    def is_free() -> bool:
        taken = threading.Event()

        def take() -> None:
            with lock:
                taken.set()

        threading.Thread(target=take, daemon=True).start()
        return taken.wait(0.3)

    def leave() -> int:
        held = not is_free()
        lock.__exit__()
        still = not is_free()
        lock.__exit__()
        return 7 if held and still and is_free() else 8

    with lock, lock:
        assert in_a_child(leave) == 7
    assert is_free()


def test_a_fork_waits_for_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    thread, leave = held_elsewhere(fork_waits)
    threading.Timer(0.3, leave.set).start()
    start = time.monotonic()
    assert in_a_child(lambda: 7) == 7
    assert 0.25 < time.monotonic() - start < 5
    thread.join()

    # But not for ever, and not for itself.
    monkeypatch.setattr(forks, "LONGEST_WAIT_S", 0.2)
    thread, leave = held_elsewhere(fork_waits)
    with fork_waits():
        assert in_a_child(lambda: 7) == 7
    leave.set()
    thread.join()


def test_an_interrupt_leaves_the_gate_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a signal is looked for: on the way in, in the block and on the way out."""
    monkeypatch.setattr(forks, "LONGEST_WAIT_S", 20.0)
    gate = forks._gate

    def enter_twice() -> None:
        with fork_waits(), fork_waits():
            pass

    def enter_first() -> None:
        monkeypatch.setattr(forks, "_own", forks._Own())  # as a thread that was never inside
        enter_twice()

    def fork() -> None:  # all but the child
        gate.close()
        enter_twice()
        gate.open()

    for number in itertools.count():
        interrupted = interrupt_after(number, (forks, threading, contextlib, weakref), enter_first)
        other = threading.Thread(target=fork, daemon=True)
        other.start()
        other.join(5)
        assert not other.is_alive(), f"interrupted at place {number}, a fork waits"
        enter_twice()
        if not interrupted:
            break
    assert number > 4


def test_a_cached_property_is_computed_once_and_has_no_lock() -> None:
    class Slow:
        computed = 0

        @cached_property
        def value(self) -> int:
            type(self).computed += 1
            if threading.current_thread() is not threading.main_thread():
                entered.set()
                leave.wait()
            return 3

    entered, leave = threading.Event(), threading.Event()
    one = Slow()
    assert (one.value, one.value, Slow.computed) == (3, 3, 1)
    assert Slow.value.__doc__ is None
    thread = threading.Thread(target=lambda: Slow().value)
    thread.start()
    entered.wait()
    assert in_a_child(lambda: Slow().value) == 3
    leave.set()
    thread.join()
