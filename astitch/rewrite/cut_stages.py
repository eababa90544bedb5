"""Stages -> stages that hold no collective back: the ops of one are awaited by the same collectives, and wait for such.

A kernel ends at once for all its results, so that a collective waits for all of a stage.  Small results are an
exception: what reads nothing but what another part reads is computed with it.  Apart, it would keep what both read in
memory until it runs, which may be at the end of the program.  Where a step is as long as its communication, those that
take long run beside it nevertheless.

A kernel begins when all is there that it reads, so that it runs beside no collective that one of its ops waits for.
Ops that have nothing to do with each other are therefore apart where they wait for other collectives and take long.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from astitch.graph.collectives import communicates, find_awaited, find_awaiting, find_combined
from astitch.graph.dimensions import array_of, is_embedded
from astitch.graph.ir import ArrayType, Graph
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.row import Cost
from astitch.graph.storage import stored_value

SMALL_BYTES = 64 << 10
"""The most bytes of a result that is computed with what other collectives wait for: its store takes no time."""

READ_SHARE = 16
"""How many times larger than the result is what it is computed from; else apart it keeps hardly anything."""


Part = tuple[int, int]
"""A stage, and the collectives that wait for the ops of this part of it."""

LARGE_BYTES = 8 << 20
"""So many bytes take longer than a launch: what reads or writes them is worth a kernel of its own."""


def cut_stages(
    graph: Graph, stage: Mapping[str, int], outside: Collection[str], *, bound: bool = False
) -> Mapping[str, int]:
    """Stages whose ops are awaited by the same collectives each, in the order of the given ones.

    outside: ops that no kernel computes.  bound: collectives take longer than what can run beside them.

    Within a stage the ops come first that more collectives wait for: an op is awaited by whatever awaits its readers.
    Of those that as many wait for, the ops come first that wait for fewer.  Ops outside stay in front of what kernels
    compute in their stage.  Without collectives nothing changes.
    """
    if not any(map(communicates, graph)):
        return stage
    awaited = find_awaited(graph)
    for node in graph:
        if OPS[node.op].kind is Kind.PROJECTION:  # it is there as soon as what it belongs to
            awaited[node.name] = awaited[node.operands[0]]
    parts = _Parts(graph, stage, outside, awaited, LARGE_BYTES if bound else None)
    awaited |= parts.find_joined()
    awaiting = find_waits(graph, {name: (stage[name], awaited[name]) for name in parts.of})

    def place(name: str) -> tuple[int, ...]:
        if name not in parts.of:
            return stage[name], 0, 0, 0, 0
        mask, waits = awaited[name], awaiting[name]
        return stage[name], len(graph) - mask.bit_count(), mask, waits.bit_count(), waits

    places = {name: place(name) for name in graph.nodes}
    numbers = {found: number for number, found in enumerate(sorted(set(places.values())))}
    return {name: numbers[found] for name, found in places.items()}


def find_waits(graph: Graph, parts: Mapping[str, Part]) -> dict[str, int]:
    """For each op of a part the collectives for which its kernel waits; ops with equal ones share a kernel.

    Ops that hand each other more than numbers have one kernel.  It waits for their own collectives only, if it takes
    long; else for those of one that does, or for all of the part's.
    """
    awaiting, numbers = find_awaiting(graph), _find_numbers(graph)
    combined = {name for group in find_combined(graph) if len(group) > 1 for name in group}
    inside: dict[Part, list[str]] = {}
    for name, part in parts.items():
        inside.setdefault(part, []).append(name)
    found: dict[str, int] = {}
    for names in inside.values():
        waits = _join_waits(graph, names, awaiting, numbers)
        every = functools.reduce(int.__or__, waits.values())
        apart = {waits[n] for n in names if combined.intersection(graph[n].operands)}
        long = sorted({every} | apart | _find_long(graph, waits, numbers), key=_count_first)
        for name in reversed(names):
            mask = next(m for m in long if m & waits[name] == waits[name])
            users = [found[u] for u in graph.users[name] if u in waits] if name in numbers else []
            found[name] = min([*users, every], key=_count_first) if users else mask
    return found


def _find_numbers(graph: Graph) -> set[str]:
    """Values that are made of single numbers: each kernel that reads one computes it again."""
    found = set[str]()
    for node in graph:
        kind = OPS[node.op].kind
        spread = kind in (Kind.BROADCAST, Kind.ELEMENTWISE) or OPS[node.op].is_view
        is_one = isinstance(node.type, ArrayType) and node.type.size == 1
        if is_one or is_embedded(graph, node.name) or (spread and found.issuperset(node.operands)):
            found.add(node.name)
    return found


def _join_waits(
    graph: Graph, names: Sequence[str], awaiting: Mapping[str, int], numbers: Collection[str]
) -> dict[str, int]:
    """For each op of a part the collectives that it waits for, with those that others do with which it shares arrays.

    names: in topological order.
    """
    leader = {name: name for name in names}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = name = leader[leader[name]]
        return name

    edges = [(o, name) for name in names for o in graph[name].operands if o in leader]
    for one, other in edges:
        if one not in numbers:
            leader[find(other)] = find(one)
    waits = dict.fromkeys(map(find, names), 0)
    for name in names:
        waits[find(name)] |= awaiting[name]
    changed = True
    while changed:  # what reads a number waits for all that the number's kernel waits for
        changed = False
        for one, other in edges:
            if more := waits[find(one)] & ~waits[find(other)]:
                waits[find(other)] |= more
                changed = True
    return {name: waits[find(name)] for name in names}


def _find_long(graph: Graph, waits: Mapping[str, int], numbers: Collection[str]) -> set[int]:
    """Of the sets of collectives that ops of one part wait for, those of which a kernel alone takes long.

    What others read as well does not count: each kernel would read it.
    """
    readers: dict[str, set[int]] = {}
    moved = Counter[int]()
    for name, mask in waits.items():
        node = graph[name]
        if OPS[node.op].is_view or name in numbers or not isinstance(node.type, ArrayType):
            continue
        for operand in node.operands:
            stored = stored_value(graph, operand)
            if stored not in waits and stored not in numbers:
                readers.setdefault(stored, set()).add(mask)
        if any(
            value in graph.outputs or _leaves(graph, value, waits) for value in _views(graph, name)
        ):
            moved[mask] += node.type.bytes
    for name, masks in readers.items():
        if len(masks) == 1 and isinstance(graph[name].type, ArrayType):
            moved[next(iter(masks))] += array_of(graph[name]).bytes
    return {mask for mask, count in moved.items() if count >= LARGE_BYTES}


def _views(graph: Graph, name: str) -> list[str]:
    """A value, and all that is stored with it."""
    found = [name]
    for value in found:
        found += (user for user in graph.users[value] if OPS[graph[user].op].is_view)
    return found


def _leaves(graph: Graph, name: str, part: Collection[str]) -> bool:
    """Is a value read outside of a part?"""
    return any(u not in part and not OPS[graph[u].op].is_view for u in graph.users[name])


MOST_AGAIN = 8
"""Ops of earlier stages that are computed again for a small result."""


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
        large: int | None,
    ) -> None:
        self.graph, self.outside, self.large = graph, outside, large
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
        """Is an op a reduction to something small, of what is not too large to be read again?"""
        node = self.graph[name]
        if OPS[node.op].kind is not Kind.REDUCE or not isinstance(node.type, ArrayType):
            return False
        read = max(array_of(self.graph[o]).bytes for o in node.operands)
        if self.large is not None and read >= self.large:
            return False
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
