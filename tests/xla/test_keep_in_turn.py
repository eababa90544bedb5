"""Reduce-scatters that end in the turn of a loop in which they start."""

from __future__ import annotations

from typing import Any

import pytest

from astitch.device.gpu import preset
from astitch.graph.ops.other import LATENCY
from astitch.hlo import schema
from astitch.hlo.schema import decode
from astitch.xla.keep_in_turn import keep_in_turn

F32 = 11
SENT = 1 << 20


class Body:
    """A module whose entry is a loop, instruction by instruction of its body."""

    def __init__(self) -> None:
        self.module = schema.HloModuleProto(entry_computation_id=1)
        entry = self.module.computations.add(id=1)
        loop = entry.instructions.add(id=100, name=b"loop", opcode=b"while")
        loop.called_computation_ids.append(2)
        self.body = self.module.computations.add(id=2)

    def add(self, name: str, opcode: str, size: int, *operands: str, us: float = 0) -> str:
        """size: elements of f32.  us: what it tells."""
        ids = {i.name: i.id for i in self.body.instructions}
        made = self.body.instructions.add(
            id=1 + len(ids), name=name.encode(), opcode=opcode.encode()
        )
        made.shape.element_type = F32
        made.shape.dimensions.append(size)
        made.operand_ids.extend(ids[o.encode()] for o in operands)
        if us:
            made.frontend_attributes.map.add(key=LATENCY, value=b"%d" % round(us * 1e3))
        return name

    def keep(self) -> dict[str, list[str]]:
        """What reads each barrier."""
        keep_in_turn(self.module, preset("h100"))
        names = {i.id: decode(i.name) for i in self.body.instructions}
        assert len(names) == len(self.body.instructions)
        seen: set[int] = set()
        for i in self.body.instructions:
            assert seen.issuperset(i.operand_ids), i.name
            seen.add(i.id)
        barriers = [i for i in self.body.instructions if i.opcode == b"opt-barrier"]
        return {
            names[b.operand_ids[0]]: [
                names[i.id] for i in self.body.instructions if b.id in i.operand_ids
            ]
            for b in barriers
        }


def write(
    *, count: int = 2, us: float = 20, size: int = SENT, kind: str = "", stacked: bool = True
) -> Any:
    """A turn that sends gradients of `count` weights; the product that hands on another gradient takes `us`.

    size: elements of a gradient.  kind: what sends them; "slice": sums of which a slice is read.  stacked: are they
    written into what the loop carries?
    """
    b = Body()
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
    assert write(kind=kind).keep() == {"part.0": ["row.0"], "part.1": ["row.1"]}


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
    assert write(**case).keep() == {}


def test_work_that_the_products_wait_for_does_not_count():
    b = Body()
    state, place = b.add("state", "parameter", SENT), b.add("place", "parameter", 1)
    before = b.add("before", "dot", SENT, state, us=100)
    for n in range(2):
        part = b.add(f"part.{n}", "reduce-scatter", SENT // 8, b.add(f"w.{n}", "dot", SENT, before))
        stack = b.add(f"stack.{n}", "dynamic-update-slice", SENT, state, part, place)
    b.add("after", "dot", SENT, stack, us=100)
    assert b.keep() == {}
