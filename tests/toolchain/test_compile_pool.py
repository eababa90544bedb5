"""Work ahead of its turn: one thread at a time, others while one waits, nothing twice and nothing lost."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from interrupt_at import interrupt_at

from astitch.toolchain import compile_pool as pool_module
from astitch.toolchain.compile_pool import CompilePool


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_nothing_is_begun_without_threads() -> None:
    done: list[str] = []
    with CompilePool(0) as pool:
        pool.start("a", lambda: done.append("a"))
        pool.finish("a")
    assert done == []


def test_work_waits_for_its_turn_and_is_done_once() -> None:
    done: list[str] = []
    with CompilePool(2) as pool:
        pool.start("a", lambda: done.append("first"))
        pool.start("a", lambda: done.append("second"))
        time.sleep(0.05)
        assert done == []  # the block has the turn
        pool.finish("a")
        assert done == ["first"]


def test_while_one_asks_the_others_work() -> None:
    """Three pieces of work that each wait until all three ask: possible only if asking hands the turn on."""
    together = threading.Barrier(3)
    busy = threading.Lock()
    answers: list[str] = []

    def question(name: str) -> str:
        together.wait(10)
        return name

    with CompilePool(3) as pool:
        ask = pool.ask(question)

        def work(name: str) -> None:
            assert busy.acquire(blocking=False)
            time.sleep(0.01)
            busy.release()
            answer = ask(name)
            assert busy.acquire(blocking=False)
            time.sleep(0.01)
            answers.append(answer)
            busy.release()

        for name in "abc":
            pool.start(name, partial(work, name))
        for name in "abc":
            pool.finish(name)
    assert sorted(answers) == ["a", "b", "c"]


def test_what_has_begun_comes_first_then_the_heaviest_and_the_block_last() -> None:
    done: list[str] = []
    asked, go = threading.Event(), threading.Event()

    def wait_for_it(_: str) -> None:
        asked.set()
        go.wait(10)

    with CompilePool(2) as pool:
        ask = pool.ask(wait_for_it)

        def work() -> None:
            ask("")
            done.append("begun")

        pool.start("begun", work)
        pool.ask(lambda _: asked.wait(10))("")
        for weight in (1, 3, 2):
            pool.start(weight, partial(done.append, str(weight)), weight)
        time.sleep(0.05)  # now one thread waits for its turn
        go.set()
        time.sleep(0.05)  # and another
        pool.finish(1)
        done.append("block")
    assert done == ["begun", "3", "2", "1", "block"]


def test_what_no_thread_has_begun_is_left_to_who_asks() -> None:
    begun, go = threading.Event(), threading.Event()
    done: list[str] = []

    def block(_: str) -> bool:
        begun.set()
        return go.wait(10)

    with CompilePool(1) as pool:
        ask = pool.ask(block)
        pool.start("a", lambda: done.append(str(ask("a"))))
        pool.start("b", lambda: done.append("b"))
        pool.ask(lambda _: begun.wait(10))("")
        pool.finish("b")  # returns at once: the one thread is at "a"
        assert done == []
        go.set()
        pool.finish("a")
    assert done == ["True"]


def test_an_error_ahead_is_left_to_who_asks_and_hands_the_turn_on() -> None:
    done: list[str] = []

    def fail() -> None:
        raise ValueError("not yet")

    with CompilePool(1) as pool:
        pool.start("a", fail)
        pool.start("b", lambda: done.append("b"))
        pool.finish("a")
        pool.ask(lambda _: wait_until(lambda: done == ["b"]))("")


def test_an_error_in_the_block_ends_all() -> None:
    done: list[int] = []
    before = threading.active_count()
    with pytest.raises(ValueError, match="in the block"), CompilePool(1) as pool:
        for number in range(100):
            pool.start(number, lambda: (time.sleep(0.01), done.append(1)))
        raise ValueError("in the block")
    assert len(done) < 100
    assert threading.active_count() == before


def test_an_interrupt_leaves_nobody_waiting() -> None:
    """At whichever line, but those of the block's end itself: all threads come to their end."""

    def work(pool: CompilePool) -> None:
        pool.ask(lambda _: time.sleep(0.002))(0)

    for number in itertools.count():
        pool = CompilePool(2)

        def block(pool: CompilePool = pool) -> None:
            with pool:
                for key in range(3):
                    pool.start(key, lambda: work(pool))
                work(pool)
                for key in range(3):
                    pool.finish(key)

        interrupted = interrupt_at(number, [pool_module], block, apart=CompilePool.__exit__)
        assert pool._pool
        threads = tuple(pool._pool._threads)
        wait_until(lambda threads=threads: not any(t.is_alive() for t in threads))
        if not interrupted:
            break
    assert number > 30
