"""Work ahead of its turn: one thread at a time, others while one waits, nothing twice and nothing lost."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from interrupt_at import interrupt_at

from astitch.toolchain import compile_pool as ahead_module
from astitch.toolchain.compile_pool import Ahead


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_nothing_is_begun_without_threads() -> None:
    done: list[str] = []
    with Ahead(0) as ahead:
        ahead.start("a", lambda: done.append("a"))
        ahead.finish("a")
    assert done == []


def test_work_waits_for_its_turn_and_is_done_once() -> None:
    done: list[str] = []
    with Ahead(2) as ahead:
        ahead.start("a", lambda: done.append("first"))
        ahead.start("a", lambda: done.append("second"))
        time.sleep(0.05)
        assert done == []  # the block has the turn
        ahead.finish("a")
        assert done == ["first"]


def test_while_one_asks_the_others_work() -> None:
    """Three pieces of work that each wait until all three ask: possible only if asking hands the turn on."""
    together = threading.Barrier(3)
    busy = threading.Lock()
    answers: list[str] = []

    def question(name: str) -> str:
        together.wait(10)
        return name

    with Ahead(3) as ahead:
        ask = ahead.ask(question)

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
            ahead.start(name, partial(work, name))
        for name in "abc":
            ahead.finish(name)
    assert sorted(answers) == ["a", "b", "c"]


def test_what_has_begun_comes_first_then_the_heaviest_and_the_block_last() -> None:
    done: list[str] = []
    asked, go = threading.Event(), threading.Event()

    def wait_for_it(_: str) -> None:
        asked.set()
        go.wait(10)

    with Ahead(2) as ahead:
        ask = ahead.ask(wait_for_it)

        def work() -> None:
            ask("")
            done.append("begun")

        ahead.start("begun", work)
        ahead.ask(lambda _: asked.wait(10))("")
        for weight in (1, 3, 2):
            ahead.start(weight, partial(done.append, str(weight)), weight)
        time.sleep(0.05)  # now one thread waits for its turn
        go.set()
        time.sleep(0.05)  # and another
        ahead.finish(1)
        done.append("block")
    assert done == ["begun", "3", "2", "1", "block"]


def test_what_no_thread_has_begun_is_left_to_who_asks() -> None:
    begun, go = threading.Event(), threading.Event()
    done: list[str] = []

    def block(_: str) -> bool:
        begun.set()
        return go.wait(10)

    with Ahead(1) as ahead:
        ask = ahead.ask(block)
        ahead.start("a", lambda: done.append(str(ask("a"))))
        ahead.start("b", lambda: done.append("b"))
        ahead.ask(lambda _: begun.wait(10))("")
        ahead.finish("b")  # returns at once: the one thread is at "a"
        assert done == []
        go.set()
        ahead.finish("a")
    assert done == ["True"]


def test_an_error_ahead_is_left_to_who_asks_and_hands_the_turn_on() -> None:
    done: list[str] = []

    def fail() -> None:
        raise ValueError("not yet")

    with Ahead(1) as ahead:
        ahead.start("a", fail)
        ahead.start("b", lambda: done.append("b"))
        ahead.finish("a")
        ahead.ask(lambda _: wait_until(lambda: done == ["b"]))("")


def test_an_error_in_the_block_ends_all() -> None:
    done: list[int] = []
    before = threading.active_count()
    with pytest.raises(ValueError, match="in the block"), Ahead(1) as ahead:
        for number in range(100):
            ahead.start(number, lambda: (time.sleep(0.01), done.append(1)))
        raise ValueError("in the block")
    assert len(done) < 100
    assert threading.active_count() == before


def test_an_interrupt_leaves_nobody_waiting() -> None:
    """At whichever line, but those of the block's end itself: all threads come to their end."""

    def work(ahead: Ahead) -> None:
        ahead.ask(lambda _: time.sleep(0.002))(0)

    for number in itertools.count():
        ahead = Ahead(2)

        def block(ahead: Ahead = ahead) -> None:
            with ahead:
                for key in range(3):
                    ahead.start(key, lambda: work(ahead))
                work(ahead)
                for key in range(3):
                    ahead.finish(key)

        interrupted = interrupt_at(number, [ahead_module], block, apart=Ahead.__exit__)
        assert ahead._pool
        threads = tuple(ahead._pool._threads)
        wait_until(lambda threads=threads: not any(t.is_alive() for t in threads))
        if not interrupted:
            break
    assert number > 30
