"""(Graph, Scope) -> Structure: what a stitch op computes, without names.

Scopes of equal structure (the layers of a model, the parameters of an optimizer) have kernels that differ only in
names.  So what is decided for one holds for all.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from astitch.graph.dimensions import is_embedded, is_uniform
from astitch.graph.ir import Graph
from astitch.graph.storage import storage_name, storage_type
from astitch.stitch_scope import Scope


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """rows: one for each op and each value that comes from outside.  code: their hash, which takes long."""

    rows: tuple[Hashable, ...]
    code: int

    def __hash__(self) -> int:
        return self.code

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Structure) and self.code == other.code and self.rows == other.rows


def structure_of(graph: Graph, scope: Scope) -> Structure:
    """Equal for two scopes exactly if one becomes the other by renaming its ops and what they read.

    Ops are numbered in order; of a value from memory counts its type, and which others share its buffer.
    """
    number: dict[str, int] = {}
    buffers: dict[str, int] = {}
    rows: list[Hashable] = []
    inside = set(scope.members)
    escaping = set(scope.outputs)
    wanted = set(graph.outputs)

    def buffer_of(name: str) -> tuple[int, Hashable]:
        stored = storage_name(graph, name)
        return buffers.setdefault(stored, len(buffers)), storage_type(graph, stored)

    def add_row(name: str, *more: Hashable) -> None:
        node = graph[name]
        operands = tuple(number[o] for o in node.operands)
        regions = tuple(region.key for region in node.regions)
        number[name] = len(rows)
        rows.append((node.op, node.type, operands, node.attrs, regions, *more))

    def add_outside(name: str) -> None:
        if name in number:
            return
        if is_embedded(graph, name):
            for operand in graph[name].operands:
                add_outside(operand)
            add_row(name)
            return
        node = graph[name]
        number[name] = len(rows)
        rows.append((node.op, node.type, is_uniform(graph, name), buffer_of(name)))

    for name in scope.members:
        for operand in graph[name].operands:
            if operand not in inside:
                add_outside(operand)
        add_row(name, name in escaping, name in wanted, len(graph.users[name]) > 0)
    return Structure(tuple(rows), hash(tuple(rows)))
