"""Steps of a program -> the order in which they are written, so that meeting kernels hold no collective back.

Kernels whose blocks wait for each other follow each other by tokens.  A token makes a kernel wait for the one before.
Each collective that waits for the kernel then waits for both.  So a kernel comes behind those that more than its own
collectives wait for.  Of two kernels that different collectives wait for, that one comes first whose collective is
ready first.  One collective for the gains of all layers then keeps no layer's weights.

A kernel that no collective waits for would come last, and memory would hold until then what it reads.  Where it makes
little of much, it comes behind the first collective for which its operands are computed (run_beside.py).
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from astitch.graph.collectives import communicates, find_awaited, find_combined
from astitch.graph.ir import Graph
from astitch.program.steps import KernelStep, Step, View

LEAST_BYTES = 1 << 20
"""The least that memory holds for a kernel alone."""

READ_SHARE = 16
"""How many times larger than its results is what memory holds for a kernel that makes little of much."""


def order_steps(
    steps: Sequence[Step],
    graph: Graph,
    members: Mapping[str, Iterable[str]],
    meeting: frozenset[str],
) -> Sequence[Step]:
    """The steps in an order in which each still follows those whose buffers it reads.

    members: ops of the graph, by kernel.  meeting: kernels that follow each other by tokens, by name.  Where nothing
    communicates the order stays.
    """
    if len(meeting) < 2 or not any(map(communicates, graph)):
        return steps
    awaited = find_awaited(graph)
    writer = {view.buffer: number for number, step in enumerate(steps) for view in _written(step)}
    before = [{writer[v.buffer] for v in _read(step) if v.buffer in writer} for step in steps]
    meet = {
        number: step
        for number, step in enumerate(steps)
        if isinstance(step, KernelStep) and step.kernel.name in meeting
    }
    own = {number: _join(awaited, members[step.kernel.name]) for number, step in meet.items()}
    ops_before = _count_before(graph)
    early = {
        number: own[number] or _find_next(graph, awaited, step, ops_before)
        for number, step in meet.items()
    }
    # A kernel is awaited by all that awaits its readers, so that the tokens go the way of the values.  One that no
    # collective waits for may come before a small sum that it reads: then all such come last.
    for masks in (early, own):
        linked = [set(numbers) for numbers in before]
        for one, other in itertools.pairwise(_order_kernels(masks, ops_before)):
            linked[other].add(one)
        sorted_ = _sort(linked)
        if len(sorted_) == len(steps):
            return [steps[number] for number in sorted_]
    return steps


def _order_kernels(masks: Mapping[int, int], ops_before: Sequence[int]) -> list[int]:
    """The numbers of kernels, each behind those that more than its own collectives wait for, else by when
    the first of its collectives is ready.

    masks: by number, the collectives that wait for the kernel.  ops_before: see _count_before.
    """

    def place(number: int) -> tuple[float, int, int]:
        mask = masks[number]
        first = min((ops_before[group] for group in _list_groups(mask)), default=math.inf)
        return first, -mask.bit_count(), number

    return sorted(masks, key=place)


def _count_before(graph: Graph) -> list[int]:
    """For each group of find_combined how many ops it waits for, which stands for when it is ready."""
    place = {name: number for number, name in enumerate(graph.nodes)}
    before: dict[str, int] = {}
    for node in graph:
        before[node.name] = 1 << place[node.name] | _join(before, node.operands)
    return [_join(before, group).bit_count() for group in find_combined(graph)]


def _find_next(
    graph: Graph, awaited: Mapping[str, int], step: KernelStep, ops_before: Sequence[int]
) -> int:
    """The collectives that wait for what a kernel reads, without the first; 0 unless it makes little of much."""
    made = sum(view.type.bytes for view in _written(step))
    names = (
        view.buffer.partition("#")[0] for view in _read(step) if view.type.bytes >= LEAST_BYTES
    )
    read = [name for name in names if name in graph.nodes and not graph[name].is_parameter]
    if not read or READ_SHARE * made > sum(view.type.bytes for view in _read(step)):
        return 0
    mask = functools.reduce(int.__and__, (awaited[name] for name in read))
    first = min(_list_groups(mask), key=ops_before.__getitem__, default=None)
    return mask if first is None else mask & ~(1 << first)


def _list_groups(mask: int) -> list[int]:
    return [number for number in range(mask.bit_length()) if mask >> number & 1]


def _join(masks: Mapping[str, int], names: Iterable[str]) -> int:
    """The bits of all the ops, joined."""
    joined = 0
    for name in names:
        joined |= masks.get(name, 0)
    return joined


def _sort(before: Sequence[set[int]]) -> list[int]:
    """Numbers so that each follows those in its set, else as they were."""
    waiting = [set(numbers) for numbers in before]
    users: dict[int, list[int]] = {}
    for number, numbers in enumerate(waiting):
        for other in numbers:
            users.setdefault(other, []).append(number)
    ready = [number for number, numbers in enumerate(waiting) if not numbers]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(number)
        for user in users.get(number, ()):
            waiting[user].discard(number)
            if not waiting[user]:
                heapq.heappush(ready, user)
    return order


def _read(step: Step) -> list[View]:
    if isinstance(step, KernelStep):
        return [view for i, view in enumerate(step.arguments) if i not in step.written]
    return list(step.operands)


def _written(step: Step) -> list[View]:
    if isinstance(step, KernelStep):
        return [view for i, view in enumerate(step.arguments) if i in step.written]
    return list(step.results)
