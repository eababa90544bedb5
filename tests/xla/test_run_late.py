"""Kernels that wait until their results are read, by control dependencies."""

from __future__ import annotations

from typing import Any

import pytest

from astitch.xla.run_late import run_late
from tests.module_writer import Writer

MUCH = 1 << 20


def order(w: Writer) -> dict[str, list[str]]:
    """What instructions wait for by control dependencies."""
    run_late(w.module)
    return w.list_waits()


def write(
    *,
    made: int = MUCH,
    read: int = 64,
    reader: str = "dot",
    over: bool = False,
    needs: bool = False,
) -> Writer:
    """A product reads what a kernel makes of little, and a gradient.

    made, read: elements of the kernel's result and of what it reads.  over: it writes over that.
    needs: the gradient is computed from the kernel's result.
    """
    w = Writer()
    w.add("x", "parameter", MUCH)
    w.add("small", "add", read, "x")
    w.add("again", "custom-call", made, "small")
    if over:
        w["again"].output_operand_aliasing.add(operand_index=0)
    w.add("gradient", "custom-call", 64, "again" if needs else "x")
    w.add("view", "bitcast", made, "again")
    w.add("product", reader, 64, "view", "gradient")
    w.add("root", "tuple", 64, "product")
    return w


def test_a_kernel_that_makes_much_of_little_waits_for_what_is_read_with_it() -> None:
    assert order(write()) == {"again": ["gradient"]}


@pytest.mark.parametrize(
    "how",
    [
        {"made": 1 << 10},  # not worth it
        {"read": MUCH},  # what it reads would stay as long
        {"over": True, "read": MUCH},
        {"needs": True},  # they would wait for each other
        {"reader": "all-reduce"},  # run_beside.py decides
    ],
)
def test_others_wait_for_nothing(how: Any) -> None:
    assert order(write(**how)) == {}


def test_only_kernels_are_waited_for() -> None:
    """XLA fuses and replaces other instructions, and fails where one of those is waited for."""
    w = Writer()
    w.add("x", "parameter", 64)
    w.add("first", "custom-call", 64, "x")
    w.add("sum", "add", 64, "first", "x")
    w.add("gradient", "dot", 64, "sum", "x")
    w.add("again", "custom-call", MUCH, "x")
    w.add("product", "dot", 64, "again", "gradient")
    w.add("root", "tuple", 64, "product")
    assert order(w) == {"again": ["first"]}


def test_two_operands_of_one_reader_do_not_wait_for_each_other() -> None:
    w = Writer()
    w.add("x", "parameter", 64)
    w.add("one", "custom-call", MUCH, "x")
    w.add("other", "custom-call", MUCH, "x")
    w.add("product", "dot", 64, "one", "other")
    w.add("root", "tuple", 64, "product")
    assert order(w) == {"one": ["other"]}


def test_results_of_the_program_do_not_wait() -> None:
    w = write()
    w.add("all", "tuple", 64, "product", "again")
    assert order(w) == {}
