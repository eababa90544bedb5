"""Stages -> stages that hold no collective back: the ops of one are awaited by the same collectives, and wait for such.

A kernel ends at once for all its results, so that a collective waits for all of a stage.  It begins when all is there
that it reads, so that it runs beside no collective that one of its ops waits for.  Ops that have nothing to do with
each other are therefore apart where they wait for other collectives and take long.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import networkx as nx

from astitch.graph.collectives import communicates, find_awaited, find_awaiting, find_combined
from astitch.graph.dimensions import array_of, is_embedded
from astitch.graph.ir import ArrayType, Graph, Node
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import stored_value

T = TypeVar("T")

Part = tuple[int, int]
"""A stage, and the collectives that wait for the ops of this part of it."""

Place = tuple[int, ...]
"""What ops of one stage have in common, and what the stages are sorted by; a stage comes first."""

LARGE_BYTES = 8 << 20
"""So many bytes take longer than a launch: what reads or writes them is worth a kernel of its own."""

PASSING_BYTES, SUMMED_SHARE = 2 << 20, 512
"""A value of so many bytes, and so many times as large as its sum, is not stored for the sum alone."""

SHORT_BYTES = 64 << 10
"""So many bytes take no time beside a launch: a kernel that is there anyway computes them."""

LONG_BYTES = 32 << 20
"""So many bytes take ten times as long as a launch, or longer."""


def cut_stages(
    graph: Graph, stage: Mapping[str, int], outside: Collection[str]
) -> Mapping[str, int]:
    """Stages whose ops are awaited by the same collectives each, in the order of the given ones.

    outside: ops that no kernel computes.

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
    parts = {
        node.name: (stage[node.name], awaited[node.name])
        for node in graph
        if node.name not in outside and OPS[node.op].kind is not Kind.SOURCE
    }
    awaiting = find_awaiting(graph)
    for name, mask in _find_passing(graph, parts, awaiting):
        awaited[name], parts[name] = mask, (stage[name], mask)
    kernels, apart = find_waits(graph, parts, awaiting), find_long_ends(graph, parts)

    def place(name: str) -> Place:
        if name not in parts:
            return stage[name], 0, 0, 0, 0, 0
        mask, waits = awaited[name], kernels[name]
        fewer = len(graph) - mask.bit_count()
        return stage[name], fewer, mask, waits.bit_count(), waits, apart.get(name, 0)

    places = _move_short(graph, parts, {name: place(name) for name in graph.nodes}, awaiting)
    numbers = {found: number for number, found in enumerate(sorted(set(places.values())))}
    return {name: numbers[found] for name, found in places.items()}


def _find_passing(
    graph: Graph, parts: Mapping[str, Part], awaiting: Mapping[str, int]
) -> Iterator[tuple[str, int]]:
    """Ops that move to the part that computes what they sum up, each with the collectives that wait for that part.

    The part would store a large value for its sums alone.  Memory would hold it until XLA runs the sums, for which a
    late collective waits, as one for the loss does.  Sums of one value move together.  No collective starts later: with
    a sum, the part waits for no more collectives, and reads no more bytes than it would have stored.
    """
    members, numbers = _list_parts(parts), _find_numbers(graph)
    sums = (_find_moved(graph, parts, members, awaiting, numbers, node) for node in graph)
    found = [moved for moved in sums if moved is not None]
    while True:
        there = {moved.part: set(members[moved.part]) for moved in found}
        for moved in found:
            there[moved.part] |= moved.ops
        kept = [moved for moved in found if there[moved.part] >= moved.readers]
        if len(kept) == len(found):
            break
        found = kept
    for moved in found:
        yield from ((name, moved.part[1]) for name in moved.ops)


@dataclass(frozen=True, slots=True)
class _Moved:
    """A sum that may move.

    ops: the sum, and those between it and the part that computes what is summed up.  part: where they go.  readers: of
    the large values that the part would store.
    """

    ops: frozenset[str]
    part: Part
    readers: frozenset[str]


def _find_moved(
    graph: Graph,
    parts: Mapping[str, Part],
    members: Mapping[Part, Collection[str]],
    awaiting: Mapping[str, int],
    numbers: Collection[str],
    node: Node,
) -> _Moved | None:
    """How a sum may move, if nothing else reads what it sums up; None where it may not, and for other ops.

    members: of each part.  awaiting: see find_awaiting.  numbers: see _find_numbers.
    """
    part = parts.get(node.name)
    if part is None or not part[1] or not OPS[node.op].is_reduce or len(node.operands) != 2:
        return None
    between, values = _trace_part(graph, parts, node)
    before = {parts[name] for name in values if name in parts and parts[name][0] == part[0]}
    first = before.pop() if len(before) == 1 else None
    if first is None or part[1] & ~first[1]:
        return None
    least = max(PASSING_BYTES, SUMMED_SHARE * _count_bytes(graph, node.name))
    there = set(members[first])
    joined = values & there
    passing = {name for name in joined if _count_bytes(graph, name) >= least}
    added = {stored_value(graph, name) for name in values - joined}
    read = sum(_count_bytes(graph, v) for v in added if there.isdisjoint(graph.users[v]))
    inner = between - {node.name}
    if (
        not passing
        or read > sum(_count_bytes(graph, name) for name in passing)
        or any(awaiting[name] != awaiting[node.name] for name in joined.difference(numbers))
        or (inner | passing).intersection(graph.outputs)
        or not all(between.issuperset(graph.users[name]) for name in inner)
    ):
        return None
    readers = frozenset(user for value in passing for user in graph.users[value])
    return _Moved(frozenset(between), first, readers)


def _move_short(
    graph: Graph,
    parts: Mapping[str, Part],
    places: Mapping[str, Place],
    awaiting: Mapping[str, int],
) -> dict[str, Place]:
    """The places; an op of few bytes gets the place of the kernel that computes all it reads.

    A normalization's gradient wants a few ops of the statistics of rows, which no collective waits for.  A kernel of
    their own would take a launch.  What they read has one place and waits for the same, so no kernel waits for more.
    """
    moved = dict(places)
    for node in graph:
        if node.name not in parts or OPS[node.op].kind is not Kind.ELEMENTWISE:
            continue
        read = [o for o in node.operands if not is_embedded(graph, o)]
        before = {(moved[o], awaiting[o]) for o in read}
        if len(before) != 1 or not all(o in parts for o in read):
            continue
        first, _ = before.pop()
        count = sum(_count_bytes(graph, name) for name in (node.name, *read))
        if first[0] == moved[node.name][0] and count <= SHORT_BYTES:
            moved[node.name] = first
    return moved


def _trace_part(graph: Graph, parts: Mapping[str, Part], node: Node) -> tuple[set[str], set[str]]:
    """The ops of a node's part that it waits for, with itself; the values of other parts that these read."""
    between, values, pending = set[str](), set[str](), [node.name]
    while pending:
        name = pending.pop()
        if parts.get(name) != parts[node.name]:
            values.add(name)
        elif name not in between:
            between.add(name)
            pending += (o for o in graph[name].operands if not is_embedded(graph, o))
    return between, values


def find_waits(
    graph: Graph, parts: Mapping[str, Part], awaiting: Mapping[str, int]
) -> dict[str, int]:
    """For each op of a part the collectives for which its kernel waits; ops with equal ones share a kernel.

    Ops that hand each other more than numbers have one kernel.  It waits for their own collectives only, if it takes
    long; else for those of one that does, or for all of the part's.  awaiting: see find_awaiting.
    """
    numbers = _find_numbers(graph)
    combined = {name for group in find_combined(graph) if len(group) > 1 for name in group}
    found: dict[str, int] = {}
    for names in _list_parts(parts).values():
        waits = _join_waits(graph, names, awaiting, numbers)
        every = functools.reduce(int.__or__, waits.values())
        apart = {waits[n] for n in names if combined.intersection(graph[n].operands)}
        long = sorted({every} | apart | _find_long(graph, waits, numbers), key=_count_first)
        for name in reversed(names):
            mask = next(m for m in long if m & waits[name] == waits[name])
            users = [found[u] for u in graph.users[name] if u in waits] if name in numbers else []
            found[name] = min([*users, every], key=_count_first) if users else mask
    return found


def find_long_ends(graph: Graph, parts: Mapping[str, Part]) -> dict[str, int]:
    """Numbers, from 1 on, for ops that have kernels of their own, as the updates of large weights have.

    They hand no other op of their part anything, and move so much that a launch takes little time beside.  XLA's
    scheduler has short kernels in place of a long one, of which it puts beside a collective as many as fit.  Ops that
    read one large array share a kernel where a collective waits for them, since each kernel would read it; else where
    they also write as much, as an update does with a new momentum.  Else neither result could lie over what both read.
    """
    numbers = _find_numbers(graph)
    found: dict[str, int] = {}
    for (_, awaited), names in _list_parts(parts).items():
        first = _find_leaders(graph, names, numbers)
        first = _join_readers(graph, first, numbers, writers_only=not awaited)
        moved = _count_moved(graph, first, numbers)
        edges = ((first.get(o, ""), first[name]) for name in names for o in graph[name].operands)
        read = {one for one, other in edges if one != other}
        ends = [one for one, count in moved.items() if count >= LONG_BYTES and one not in read]
        order = {one: number for number, one in enumerate(ends, 1)}
        found |= {name: order[one] for name, one in first.items() if one in order}
    return found


def _join_readers(
    graph: Graph, leaders: Mapping[str, str], numbers: Collection[str], *, writers_only: bool
) -> dict[str, str]:
    """The leaders, one for those that read one large array from memory.  leaders: see _find_leaders.

    writers_only: only those that write an array of as many bytes as well.
    """
    written: dict[str, set[int]] = {}
    for name, leader in leaders.items():
        if name in graph.outputs:
            written.setdefault(leader, set()).add(_count_bytes(graph, name))
    alike = nx.Graph()
    for name, readers in _list_readers(graph, leaders, numbers).items():
        size = _count_bytes(graph, name)
        joined = [r for r in sorted(readers) if not writers_only or size in written.get(r, ())]
        if len(joined) > 1 and size >= LARGE_BYTES:
            nx.add_path(alike, joined)
    leader_of = {one: min(joined) for joined in nx.connected_components(alike) for one in joined}
    return {name: leader_of.get(one, one) for name, one in leaders.items()}


def _list_parts(parts: Mapping[str, Part]) -> dict[Part, list[str]]:
    """The ops of each part, in topological order.  parts: likewise."""
    found: dict[Part, list[str]] = {}
    for name, part in parts.items():
        found.setdefault(part, []).append(name)
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
    leader = _find_leaders(graph, names, numbers)
    edges = [(o, name) for name in names for o in graph[name].operands if o in leader]
    waits = dict.fromkeys(leader.values(), 0)
    for name in names:
        waits[leader[name]] |= awaiting[name]
    changed = True
    while changed:  # what reads a number waits for all that the number's kernel waits for
        changed = False
        for one, other in edges:
            if more := waits[leader[one]] & ~waits[leader[other]]:
                waits[leader[other]] |= more
                changed = True
    return {name: waits[leader[name]] for name in names}


def _find_leaders(graph: Graph, names: Sequence[str], numbers: Collection[str]) -> dict[str, str]:
    """For each op of a part one that stands for all with which it shares arrays.  names: in topological order."""
    leader = {name: name for name in names}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = name = leader[leader[name]]
        return name

    for name in names:
        for operand in graph[name].operands:
            if operand in leader and operand not in numbers:
                leader[find(name)] = find(operand)
    return {name: find(name) for name in names}


def _find_long(graph: Graph, waits: Mapping[str, int], numbers: Collection[str]) -> set[int]:
    """Of the sets of collectives that ops of one part wait for, those of which a kernel alone takes long."""
    moved = _count_moved(graph, waits, numbers)
    return {mask for mask, count in moved.items() if count >= LARGE_BYTES}


def _count_moved(graph: Graph, kernels: Mapping[str, T], numbers: Collection[str]) -> Counter[T]:
    """The bytes that kernels of one part read and write.

    kernels: for each op of the part in which kernel it is.  What others read as well does not count: each kernel would
    read it.
    """
    moved = Counter[T]()
    for name, kernel in _list_computing(graph, kernels, numbers):
        if any(
            value in graph.outputs or _leaves(graph, value, kernels)
            for value in _views(graph, name)
        ):
            moved[kernel] += array_of(graph[name]).bytes
    for name, found in _list_readers(graph, kernels, numbers).items():
        if len(found) == 1:
            moved[next(iter(found))] += _count_bytes(graph, name)
    return moved


def _list_readers(
    graph: Graph, kernels: Mapping[str, T], numbers: Collection[str]
) -> dict[str, set[T]]:
    """The values that kernels of one part read from memory, each with its readers.  kernels: see _count_moved."""
    readers: dict[str, set[T]] = {}
    for name, kernel in _list_computing(graph, kernels, numbers):
        for operand in graph[name].operands:
            stored = stored_value(graph, operand)
            if stored not in kernels and stored not in numbers:
                readers.setdefault(stored, set()).add(kernel)
    return readers


def _list_computing(
    graph: Graph, kernels: Mapping[str, T], numbers: Collection[str]
) -> Iterator[tuple[str, T]]:
    """The ops of one part that read or write arrays, each with its kernel."""
    for name, kernel in kernels.items():
        node = graph[name]
        if not OPS[node.op].is_view and name not in numbers and isinstance(node.type, ArrayType):
            yield name, kernel


def _count_bytes(graph: Graph, name: str) -> int:
    """0 for a tuple."""
    return array_of(graph[name]).bytes if isinstance(graph[name].type, ArrayType) else 0


def _views(graph: Graph, name: str) -> list[str]:
    """A value, and all that is stored with it."""
    found = [name]
    for value in found:
        found += (user for user in graph.users[value] if OPS[graph[user].op].is_view)
    return found


def _leaves(graph: Graph, name: str, part: Collection[str]) -> bool:
    """Is a value read outside of a part?"""
    return any(u not in part and not OPS[graph[u].op].is_view for u in graph.users[name])


def _count_first(mask: int) -> tuple[int, int]:
    return mask.bit_count(), mask
