"""Groups of ops, one for each kernel -> the same, with what a kernel would store in vain moved to who reads it.

A group's kernel stores what is read outside.  Where that is element-wise on arrays that are stored anyway, its reader
computes it: 1 - h * h beside h, which the gradient of the weights reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from astitch.graph.ir import Graph
from astitch.graph.ops import OPS, Kind


def sink(graph: Graph, groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """groups: of names in the graph's order; so are those that it hands on."""
    owners = {name: number for number, names in enumerate(groups) for name in names}
    for names in groups:
        for name in reversed(names):
            if name in owners:
                _Sinking(graph, owners, name).run()
    moved: list[list[str]] = [[] for _ in groups]
    for node in graph:
        if node.name in owners:
            moved[owners[node.name]].append(node.name)
    return moved


class _Sinking:
    """One value that a group stores.  owners: the group of each op, which changes."""

    def __init__(self, graph: Graph, owners: dict[str, int], name: str) -> None:
        self.graph, self.owners, self.name = graph, owners, name
        self.group = owners[name]

    def run(self) -> None:
        """Moves the value, and what is computed for it alone, to the group that reads it; or out of all."""
        if not self._may_sink(self.name, set()) or not self._is_stored(self.name):
            return
        moved = self._find_moved()
        read = {o for name in moved for o in self.graph[name].operands} - moved
        added = [o for o in read if self._is_inside(o) and not self._is_stored(o, moved)]
        if self._count_bytes(added) >= self._count_bytes([self.name]):
            return
        readers = {self.owners.get(user) for user in self.graph.users[self.name]}
        target = readers.pop() if len(readers) == 1 else None
        for name in moved:
            del self.owners[name]
            if target is not None:
                self.owners[name] = target

    def _find_moved(self) -> set[str]:
        """The value with the ops of its group that nothing else in the group reads, as far as they are element-wise."""
        moved = {self.name}
        while True:
            read = {o for name in moved for o in self.graph[name].operands} - moved
            more = {
                o
                for o in read
                if self._is_inside(o) and self._may_sink(o, moved) and not self._is_stored(o, moved)
            }
            if not more:
                return moved
            moved |= more

    def _may_sink(self, name: str, moved: set[str]) -> bool:
        """Is it element-wise, and read by nothing in the group but what is moved?"""
        graph = self.graph
        if OPS[graph[name].op].kind is not Kind.ELEMENTWISE or name in graph.outputs:
            return False
        return all(user in moved or not self._is_inside(user) for user in graph.users[name])

    def _is_inside(self, name: str) -> bool:
        return self.owners.get(name) == self.group

    def _is_stored(self, name: str, moved: set[str] | None = None) -> bool:
        """Does something outside read it?  moved: does not count."""
        users = [user for user in self.graph.users[name] if user not in (moved or ())]
        return name in self.graph.outputs or any(not self._is_inside(user) for user in users)

    def _count_bytes(self, names: Sequence[str]) -> int:
        return sum(self.graph[name].array.bytes for name in names)
