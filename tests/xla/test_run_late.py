"""Kernels that wait until their results are read, by control dependencies."""

from __future__ import annotations

from typing import Any

import pytest

from astitch.hlo import schema
from astitch.hlo.schema import decode
from astitch.xla.run_late import run_late
from astitch.xla.write_module import TARGET

F32 = 11
MUCH = 1 << 20


class Writer:
    """An HloModuleProto, instruction by instruction; the last one is its root."""

    def __init__(self) -> None:
        self.module = schema.HloModuleProto(entry_computation_id=1)
        self.entry = self.module.computations.add(id=1)

    def add(self, name: str, opcode: str, size: int, *operands: str) -> Any:
        """size: elements of f32."""
        ids = {decode(i.name): i.id for i in self.entry.instructions}
        made = self.entry.instructions.add(
            id=1 + len(ids), name=name.encode(), opcode=opcode.encode()
        )
        made.shape.element_type = F32
        made.shape.dimensions.append(size)
        made.operand_ids.extend(ids[o] for o in operands)
        if opcode == "custom-call":
            made.custom_call_target = TARGET.encode()
        self.entry.root_id = made.id
        return made

    def order(self) -> dict[str, list[str]]:
        """What instructions wait for by control dependencies; all must stand behind what they wait for."""
        run_late(self.module)
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
    again = w.add("again", "custom-call", made, "small")
    if over:
        again.output_operand_aliasing.add(operand_index=0)
    w.add("gradient", "custom-call", 64, "again" if needs else "x")
    w.add("view", "bitcast", made, "again")
    w.add("product", reader, 64, "view", "gradient")
    w.add("root", "tuple", 64, "product")
    return w


def test_a_kernel_that_makes_much_of_little_waits_for_what_is_read_with_it() -> None:
    assert write().order() == {"again": ["gradient"]}


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
    assert write(**how).order() == {}


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
    assert w.order() == {"again": ["first"]}


def test_two_operands_of_one_reader_do_not_wait_for_each_other() -> None:
    w = Writer()
    w.add("x", "parameter", 64)
    w.add("one", "custom-call", MUCH, "x")
    w.add("other", "custom-call", MUCH, "x")
    w.add("product", "dot", 64, "one", "other")
    w.add("root", "tuple", 64, "product")
    assert w.order() == {"one": ["other"]}


def test_results_of_the_program_do_not_wait() -> None:
    w = write()
    w.add("all", "tuple", 64, "product", "again")
    assert w.order() == {}
