"""Reduce-scatters that end in the turn of a loop in which they start."""

from __future__ import annotations

import pytest

from astitch.device.gpu import preset
from astitch.xla.keep_in_turn import keep_in_turn
from tests.module_writer import Writer

SENT = 1 << 20


def keep(b: Writer) -> dict[str, list[str]]:
    """What reads each barrier."""
    keep_in_turn(b.module, preset("h100"))
    assert b.list_waits() == {}
    names, instructions = b.names, b.computation.instructions
    return {
        names[bar.operand_ids[0]]: [names[i.id] for i in instructions if bar.id in i.operand_ids]
        for bar in instructions
        if bar.opcode == b"opt-barrier"
    }


def write(
    *, count: int = 2, us: float = 20, size: int = SENT, kind: str = "", stacked: bool = True
) -> Writer:
    """A turn that sends gradients of `count` weights; the product that hands on another gradient takes `us`.

    size: elements of a gradient.  kind: what sends them; "slice": sums of which a slice is read.  stacked: are they
    written into what the loop carries?
    """
    b = Writer(loop=True)
    state, place = b.add("state", "parameter", SENT), b.add("place", "parameter", 1)
    behind = b.add("behind", "dot", SENT, state, us=us)
    for n in range(count):
        product = b.add(f"product.{n}", "dot", size, state, us=10)
        if kind == "slice":
            total = b.add(f"sum.{n}", "all-reduce", size, product)
            part = b.add(f"part.{n}", "dynamic-slice", size // 8, total, place)
        else:
            part = b.add(f"part.{n}", kind or "reduce-scatter", size // 8, product)
        if stacked:
            row = b.add(f"row.{n}", "reshape", size // 8, part)
            b.add(f"stack.{n}", "dynamic-update-slice", size, state, row, place)
        else:
            b.add(f"other.{n}", "negate", size // 8, part)
    b.add("root", "tuple", 1, behind)
    return b


@pytest.mark.parametrize("kind", ["reduce-scatter", "slice"])
def test_a_turn_with_other_work_keeps_what_it_sends(kind):
    assert keep(write(kind=kind)) == {"part.0": ["row.0"], "part.1": ["row.1"]}


@pytest.mark.parametrize(
    "case",
    [
        {"us": 5},  # there is nothing to run beside it: each takes 19 us
        {"count": 1},  # XLA has the next product beside it in the plain program too
        {"size": 1 << 14},  # memory holds little
        {"kind": "all-reduce"},  # XLA pipelines none
        {"stacked": False},  # nor what is written into no stack
    ],
)
def test_else_xla_moves_it(case):
    assert keep(write(**case)) == {}


def test_work_that_the_products_wait_for_does_not_count():
    b = Writer(loop=True)
    state, place = b.add("state", "parameter", SENT), b.add("place", "parameter", 1)
    before = b.add("before", "dot", SENT, state, us=100)
    for n in range(2):
        part = b.add(f"part.{n}", "reduce-scatter", SENT // 8, b.add(f"w.{n}", "dot", SENT, before))
        stack = b.add(f"stack.{n}", "dynamic-update-slice", SENT, state, part, place)
    b.add("after", "dot", SENT, stack, us=100)
    assert keep(b) == {}
