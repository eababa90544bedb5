"""Kernels that run beside the next collective, by control dependencies."""

from __future__ import annotations

from typing import Any

import pytest

from astitch.device.gpu import preset
from astitch.xla.run_beside import run_beside
from tests.module_writer import Writer

H100 = preset("h100")


def order(w: Writer) -> dict[str, list[str]]:
    """What instructions wait for by control dependencies."""
    run_beside(w.module, H100)
    return w.list_waits()


MUCH = 1 << 20


def write(
    *,
    us: float = 4.0,
    made: int = 256,
    also: str = "",
    gradient: int = MUCH,
    part: bool = False,
) -> Writer:
    """Two sums behind each other; a kernel reads the first, and no collective waits for it.

    us, made: the kernel's time, and the elements of its result.  also: what reads the first sum besides.  part: the
    kernel reads a part of the sum's result.
    """
    w = Writer()
    x = w.add("x", "parameter", MUCH)
    first = w.add("first", "all-reduce", MUCH, w.add("start", "custom-call", MUCH, x, us=1))
    between = w.add("between", "custom-call", gradient, first, us=1)
    second = w.add("second", "all-reduce", gradient, w.add("product", "dot", gradient, between))
    behind = w.add("behind", "custom-call", MUCH, w.add("view", "bitcast", gradient, second), us=1)
    third = w.add("third", "all-reduce", MUCH, behind)
    read = w.add("part", "get-tuple-element", MUCH, first) if part else first
    total = w.add("total", "custom-call", made, read, us=us)
    results = [third, total]
    if also:
        results.append(w.add(also, "dot", MUCH, first))
    w.add("root", "tuple", 1, *results)
    return w


def test_what_makes_little_of_much_runs_beside_the_next_collective() -> None:
    assert order(write()) == {"behind": ["total"]}


def test_a_part_of_a_result_is_there_with_the_others() -> None:
    assert order(write(part=True)) == {"behind": ["total"]}


@pytest.mark.parametrize(
    "given",
    [{"made": MUCH}, {"also": "product_of_weights"}, {"us": 100.0}, {"us": 11.0, "gradient": 64}],
    ids=["makes much", "memory holds it anyway", "takes long", "the collective is short"],
)
def test_other_kernels_run_when_xla_wants(given: dict[str, Any]) -> None:
    assert order(write(**given)) == {}


@pytest.mark.parametrize(("us", "found"), [(12.0, ["total", "other"]), (20.0, ["total"])])
def test_kernels_beside_one_collective_take_no_longer_than_it(us: float, found: list[str]) -> None:
    """It takes 28.6 us: 10, and 4.2 MB twice at 450 GB/s."""
    w = write(us=us)
    w.add("other", "custom-call", 256, "between", us=us)
    assert order(w) == {"behind": found}


def test_what_reads_the_collective_itself_is_no_kernel_beside_it() -> None:
    w = Writer()
    x = w.add("x", "parameter", MUCH)
    first = w.add("first", "all-reduce", MUCH, x)
    w.add("last", "custom-call", 256, first, us=4)
    assert order(w) == {}


def test_without_collectives_nothing_changes() -> None:
    w = Writer()
    w.add("total", "custom-call", 256, w.add("x", "parameter", MUCH), us=4)
    before = w.module.SerializeToString()
    assert order(w) == {} and w.module.SerializeToString() == before
