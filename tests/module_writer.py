"""HloModuleProtos, instruction by instruction, for passes over them."""

from __future__ import annotations

from typing import Any

from astitch.graph.ops.other import LATENCY
from astitch.hlo import schema
from astitch.hlo.schema import decode
from astitch.xla.write_module import TARGET

F32 = next(number for number, name in schema.ELEMENT_TYPES.items() if name == "f32")


class Writer:
    """A module; its instructions go to the entry, or to the body of a loop in it.  The last one is the root."""

    def __init__(self, *, loop: bool = False) -> None:
        self.module = schema.HloModuleProto(entry_computation_id=1)
        self.computation = self.module.computations.add(id=1)
        if loop:
            node = self.computation.instructions.add(id=100, name=b"loop", opcode=b"while")
            node.called_computation_ids.append(2)
            self.computation = self.module.computations.add(id=2)

    def add(self, name: str, opcode: str, size: int, *operands: str, us: float = 0) -> str:
        """The name.  size: elements of f32.  us: what it tells.  A custom call is one of a kernel."""
        ids = {decode(i.name): i.id for i in self.computation.instructions}
        made = self.computation.instructions.add(
            id=1 + len(ids), name=name.encode(), opcode=opcode.encode()
        )
        made.shape.element_type = F32
        made.shape.dimensions.append(size)
        made.operand_ids.extend(ids[o] for o in operands)
        if opcode == "custom-call":
            made.custom_call_target = TARGET.encode()
        if us:
            made.frontend_attributes.map.add(key=LATENCY, value=b"%d" % round(us * 1e3))
        self.computation.root_id = made.id
        return name

    def __getitem__(self, name: str) -> Any:
        return next(i for i in self.computation.instructions if decode(i.name) == name)

    @property
    def names(self) -> dict[int, str]:
        return {i.id: decode(i.name) for i in self.computation.instructions}

    def list_waits(self) -> dict[str, list[str]]:
        """What instructions wait for by control dependencies; all must stand behind what they wait for."""
        names = self.names
        assert len(names) == len(self.computation.instructions)
        seen: set[int] = set()
        for i in self.computation.instructions:
            assert seen.issuperset((*i.operand_ids, *i.control_predecessor_ids)), i.name
            seen.add(i.id)
        found = {
            decode(i.name): [names[n] for n in i.control_predecessor_ids]
            for i in self.computation.instructions
        }
        return {name: waits for name, waits in found.items() if waits}
