"""Stages -> stages that hold no collective back: the ops of one are awaited by the same collectives.

A kernel ends at once for all its results, so that a collective waits for all of a stage.  Small results are an
exception: what reads nothing but what another part reads is computed with it.  Apart, it would keep what both read in
memory until it runs, which may be at the end of the program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from astitch.graph.collectives import communicates, find_awaited
from astitch.graph.dimensions import array_of, is_embedded
from astitch.graph.ir import ArrayType, Graph
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.row import Cost

SMALL_BYTES = 64 << 10
"""The most bytes of a result that is computed with what other collectives wait for: its store takes no time."""

READ_SHARE = 16
"""How many times larger than the result is what it is computed from; else apart it keeps hardly anything."""


def cut_stages(
    graph: Graph, stage: Mapping[str, int], outside: Collection[str]
) -> Mapping[str, int]:
    """Stages whose ops are awaited by the same collectives each, in the order of the given ones.

    outside: ops that no kernel computes.  Within a stage the ops come first that more collectives wait for: an op is
    awaited by whatever awaits its readers.  Ops outside stay in front of what kernels compute in their stage.  Without
    collectives nothing changes.
    """
    if not any(map(communicates, graph)):
        return stage
    awaited = find_awaited(graph)
    for node in graph:
        if OPS[node.op].kind is Kind.PROJECTION:  # it is there as soon as what it belongs to
            awaited[node.name] = awaited[node.operands[0]]
    parts = _Parts(graph, stage, outside, awaited)
    awaited |= parts.find_joined()

    def place(name: str) -> tuple[int, int, int]:
        if not parts.is_stitched(name):
            return stage[name], 0, 0
        mask = awaited[name]
        return stage[name], len(graph) - mask.bit_count(), mask

    places = {name: place(name) for name in graph.nodes}
    numbers = {found: number for number, found in enumerate(sorted(set(places.values())))}
    return {name: numbers[found] for name, found in places.items()}


MOST_AGAIN = 8
"""Ops of earlier stages that are computed again for a small result."""

Part = tuple[int, int]
"""A stage, and the collectives that wait for the ops of this part of it."""


def _count_first(mask: int) -> tuple[int, int]:
    return mask.bit_count(), mask


class _Parts:
    """The parts of stages, and what each reads."""

    def __init__(
        self,
        graph: Graph,
        stage: Mapping[str, int],
        outside: Collection[str],
        awaited: Mapping[str, int],
    ) -> None:
        self.graph, self.outside = graph, outside
        self.of = {n: (stage[n], awaited[n]) for n in graph.nodes if self.is_stitched(n)}
        self.read: dict[Part, set[str]] = {}
        for name, part in self.of.items():
            read = self.read.setdefault(part, set())
            read.update(o for o in graph[name].operands if self.of.get(o) != part)
        self.in_stage: dict[int, list[int]] = {}
        for number, mask in self.read:
            self.in_stage.setdefault(number, []).append(mask)

    def is_stitched(self, name: str) -> bool:
        return name not in self.outside and OPS[self.graph[name].op].kind is not Kind.SOURCE

    def find_joined(self) -> dict[str, int]:
        """For ops that are computed with what more collectives wait for: these collectives."""
        found: dict[str, int] = {}
        for name, (number, mask) in self.of.items():
            if name in found or not self.is_small(name):
                continue
            more = [m for m in self.in_stage[number] if m != mask and m & mask == mask]
            # The part that the fewest collectives wait for.
            for other in sorted(more, key=_count_first):
                if ops := self.find_closure(name, (number, other)):
                    found |= dict.fromkeys(ops, other)
                    break
        return found

    def is_small(self, name: str) -> bool:
        """Is an op a reduction to something small?"""
        node = self.graph[name]
        if OPS[node.op].kind is not Kind.REDUCE or not isinstance(node.type, ArrayType):
            return False
        read = max(array_of(self.graph[o]).bytes for o in node.operands)
        return node.type.bytes <= SMALL_BYTES and READ_SHARE * node.type.bytes <= read

    def find_closure(self, name: str, other: Part) -> list[str]:
        """The ops of the part of `name` that compute it from what another part reads or computes; empty where they
        read anything else.

        Where no collective waits for `name`, light ops of earlier stages may stand between: rewrite/recompute.py
        computes them again.
        """
        part, closure, pending, again = self.of[name], list[str](), [name], set[str]()
        while pending:
            op = pending.pop()
            if op in closure or op in again or is_embedded(self.graph, op):
                continue
            if self.of.get(op) == other or op in self.read[other]:
                continue
            if self.of.get(op) == part:
                closure.append(op)
            elif not part[1] and self.is_light(op) and len(again) < MOST_AGAIN:
                again.add(op)
            else:
                return []
            pending += self.graph[op].operands
        return closure if all(self.is_inner(op, closure) for op in closure[1:]) else []

    def is_inner(self, name: str, closure: Collection[str]) -> bool:
        """Is a value read by nothing but such small results and the ops before them, so that no kernel stores it?

        Small results that share an op have equal closures then, and go to one part.
        """
        if name in self.graph.outputs:
            return False
        return all(user in closure or self.is_small(user) for user in self.graph.users[name])

    def is_light(self, name: str) -> bool:
        row = OPS[self.graph[name].op]
        light = row.kind is Kind.ELEMENTWISE and row.cost is Cost.LIGHT
        return name in self.of and (light or row.kind is Kind.BROADCAST or row.is_view)
