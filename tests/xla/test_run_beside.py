"""Kernels that run beside the next collective, by control dependencies."""

from __future__ import annotations

from typing import Any

import pytest

from astitch.device.gpu import preset
from astitch.graph.ops.other import LATENCY
from astitch.hlo import schema
from astitch.hlo.schema import decode
from astitch.xla.run_beside import run_beside
from astitch.xla.write_module import TARGET

F32 = 11
H100 = preset("h100")


class Writer:
    """An HloModuleProto, instruction by instruction."""

    def __init__(self) -> None:
        self.module = schema.HloModuleProto(entry_computation_id=1)
        self.entry = self.module.computations.add(id=1)

    def add(self, name: str, opcode: str, size: int, *operands: str, us: float = 0) -> str:
        """size: elements of f32.  us: what a kernel tells."""
        ids = {i.name: i.id for i in self.entry.instructions}
        made = self.entry.instructions.add(
            id=1 + len(ids), name=name.encode(), opcode=opcode.encode()
        )
        made.shape.element_type = F32
        made.shape.dimensions.append(size)
        made.operand_ids.extend(ids[o.encode()] for o in operands)
        if us:
            made.custom_call_target = TARGET.encode()
            made.frontend_attributes.map.add(key=LATENCY, value=b"%d" % round(us * 1e3))
        return name

    def order(self) -> dict[str, list[str]]:
        """What instructions wait for by control dependencies, in the order of the instructions."""
        run_beside(self.module, H100)
        names = {i.id: decode(i.name) for i in self.entry.instructions}
        seen: set[int] = set()
        for i in self.entry.instructions:
            assert seen.issuperset((*i.operand_ids, *i.control_predecessor_ids)), i.name
            seen.add(i.id)
        found = {
            decode(i.name): [names[n] for n in i.control_predecessor_ids]
            for i in self.entry.instructions
        }
        return {name: waits for name, waits in found.items() if waits}


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
    w.entry.root_id = len(w.entry.instructions)
    return w


def test_what_makes_little_of_much_runs_beside_the_next_collective() -> None:
    assert write().order() == {"behind": ["total"]}


def test_a_part_of_a_result_is_there_with_the_others() -> None:
    assert write(part=True).order() == {"behind": ["total"]}


@pytest.mark.parametrize(
    "given",
    [{"made": MUCH}, {"also": "product_of_weights"}, {"us": 100.0}, {"us": 11.0, "gradient": 64}],
    ids=["makes much", "memory holds it anyway", "takes long", "the collective is short"],
)
def test_other_kernels_run_when_xla_wants(given: dict[str, Any]) -> None:
    assert write(**given).order() == {}


@pytest.mark.parametrize(("us", "found"), [(12.0, ["total", "other"]), (20.0, ["total"])])
def test_kernels_beside_one_collective_take_no_longer_than_it(us: float, found: list[str]) -> None:
    """It takes 28.6 us: 10, and 4.2 MB twice at 450 GB/s."""
    w = write(us=us)
    w.add("other", "custom-call", 256, "between", us=us)
    assert w.order() == {"behind": found}


def test_what_reads_the_collective_itself_is_no_kernel_beside_it() -> None:
    w = Writer()
    x = w.add("x", "parameter", MUCH)
    first = w.add("first", "all-reduce", MUCH, x)
    w.add("last", "custom-call", 256, first, us=4)
    assert w.order() == {}


def test_without_collectives_nothing_changes() -> None:
    w = Writer()
    w.add("total", "custom-call", 256, w.add("x", "parameter", MUCH), us=4)
    before = w.module.SerializeToString()
    assert w.order() == {} and w.module.SerializeToString() == before
