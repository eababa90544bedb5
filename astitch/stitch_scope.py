"""Graph -> Scopes: which memory-intensive ops share a stitch op (paper section 4.1, step S0).

Breadth-first search over the edges between stitchable ops.  An edge is refused when joining its ends would
close a cycle through an op that stays outside (a dot, a sort ...).  The cycle test is a number: the *stage*
of an op, the count of outside ops that must run before it.  Two ops may share a stitch op exactly if they
have one stage, so the search is linear and remote stitching (remote_stitch.py) can merge freely.
An op that only reads what is in memory anyway moves to the stage of its first reader.  It then costs no store and no
load.  Between the two steps here, recompute.py gives stages ops of their own for what is cheaper to compute twice than
to keep.  What is behind a barrier has no earlier stage than all that the barrier waits for; within a stage there are no
barriers.  A kernel ends at once for all its results.  So that no collective waits for more than it reads, stages are
cut further: the ops of one are awaited by the same collectives.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from astitch.graph.collectives import communicates, find_awaited, find_combined
from astitch.graph.dimensions import array_of, is_embedded
from astitch.graph.ir import (
    ArrayType,
    Graph,
    Node,
    TupleType,
)
from astitch.graph.ops import OPS, Kind
from astitch.graph.stitchable import why_not_stitchable
from astitch.graph.storage import stored_value
from astitch.rewrite.barriers import Barrier, is_barrier, is_held, open_barriers, value_behind
from astitch.rewrite.cut_stages import cut_stages
from astitch.rewrite.recompute import Recomputed, Staged

CYCLE = "one kernel for both would close a cycle through"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was not stitched.  `producer` and `consumer` name ops; equal when one op is refused as such.

    undo: the directive that has it stitched after all; empty: there is none.
    """

    producer: str
    consumer: str
    reason: str
    undo: str = field(default="", compare=False)

    def __str__(self) -> str:
        if self.producer == self.consumer:
            return f"not stitched: %{self.producer}: {self.reason}"
        return f"not stitched: %{self.producer} -> %{self.consumer}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Scope:
    """One stitch op.  members: names in topological order.  inputs: values read from memory.
    outputs: members whose value is needed outside.  stage: how many outside ops come before."""

    name: str
    stage: int
    members: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"scope {self.name} (stage {self.stage}): {len(self.members)} ops, "
            f"{len(self.inputs)} inputs, outputs {', '.join('%' + o for o in self.outputs)}"
        )


@dataclass(frozen=True, slots=True)
class Scopes:
    """graph: what was searched, in which an op may stand once for each stage that computes it, without barriers.
    outside: ops that no stitch op computes, each with its reason, in order.  recomputed: by which stages, and why.
    barriers: which there were.  turns: the order in which stitch ops and other steps run, by name; empty: by stages.
    products: see Left.
    """

    graph: Graph
    scopes: tuple[Scope, ...]
    outside: tuple[Refusal, ...]
    refusals: tuple[Refusal, ...]
    recomputed: tuple[Recomputed, ...] = ()
    barriers: tuple[Barrier, ...] = ()
    turns: Mapping[str, int] = field(default_factory=dict)
    products: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(map(str, (*self.scopes, *self.recomputed, *self.outside, *self.refusals)))


@dataclass(frozen=True, slots=True)
class Left:
    """A graph, and the ops in it that no kernel is to compute, each with its reason.

    products: of those that XLA computes as it multiplies or convolves, the product.
    """

    graph: Graph
    reasons: Mapping[str, str] = field(default_factory=dict)
    products: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        left = (f"left to XLA: %{name}: {reason}" for name, reason in self.reasons.items())
        return "\n".join([str(self.graph), *left])


def is_memory_op(node: Node) -> bool:
    """An op that does memory-intensive work: not a source, a library call, control flow or a projection."""
    return OPS[node.op].kind in (
        Kind.ELEMENTWISE,
        Kind.BROADCAST,
        Kind.INDEX,
        Kind.REDUCE,
        Kind.OTHER,
    )


def count_stage(
    node: Node, stage: Mapping[str, int], outside: Collection[str], products: Mapping[str, str]
) -> int:
    """The number of outside ops on the longest path to a node; an outside op counts itself.

    stage: of what is before it.  products: see Left.  What a product takes in counts with the product.
    """
    if node.name not in outside:
        return max((stage[o] for o in node.operands), default=0)
    product = products.get(node.name, node.name)
    return max((stage[o] + (products.get(o, o) != product) for o in node.operands), default=1)


def _count_earliest(
    graph: Graph, outside: Collection[str], products: Mapping[str, str]
) -> dict[str, int]:
    """The stage of each op, counted from the start.

    Collectives that XLA combines end at once: what reads one of them has the stage that the last of them allows.  What
    they read does not wait for that.
    """
    groups = [group for group in find_combined(graph) if len(group) > 1]
    least: dict[str, int] = {}
    counted: dict[str, int] = {}
    for _ in range(len(groups) + 1):  # each round more groups have the stage of their last
        stage: dict[str, int] = {}
        counted = {}
        for node in graph:
            counted[node.name] = count_stage(node, stage, outside, products)
            stage[node.name] = max(counted[node.name], least.get(node.name, 0))
        ends = {name: max(stage[n] for n in group) for group in groups for name in group}
        if ends == least or not groups:
            break
        least = ends
    return counted


def _is_near(
    graph: Graph, name: str, read: Collection[str], in_memory: Callable[[str], bool]
) -> bool:
    """Is a value a few element-wise ops on parameters, and on what is in memory and read anyway?

    Then it is computed again, and not stored (see rewrite/recompute.py).
    """
    pending, seen = [name], {name}
    while pending and len(seen) <= MOST_NEAR:
        node = graph[pending.pop()]
        if OPS[node.op].kind not in (Kind.ELEMENTWISE, Kind.BROADCAST):
            return False
        for operand in node.operands:
            is_there = graph[operand].is_parameter or (operand in read and in_memory(operand))
            if operand not in seen and not is_there and not is_embedded(graph, operand):
                seen.add(operand)
                pending.append(operand)
    return not pending


MOST_NEAR = 32
"""Ops that lead to such a value."""

LEAST_MOVED_BACK = 1 << 20
"""Bytes of a value that is moved back: smaller ones share the kernels of their likes, however late."""


def _is_large(node: Node) -> bool:
    return isinstance(node.type, ArrayType) and node.array.bytes >= LEAST_MOVED_BACK


def _move_back(
    graph: Graph,
    stage: dict[str, int],
    earliest: Mapping[str, int],
    outside: Collection[str],
    in_memory: Callable[[str], bool],
) -> None:
    """Moves results, and ops that libraries read, back to operands that stayed behind: both would be stored, and one
    needs to be."""
    outputs = set(graph.outputs)
    for node in graph:
        here = stage[node.name]
        if here == earliest[node.name] or not _is_large(node):
            continue
        if node.name not in outputs and not any(u in outside for u in graph.users[node.name]):
            continue
        moved, pending, kept = {node.name}, [node.name], set[str]()
        while pending:
            for operand in graph[pending.pop()].operands:
                if is_embedded(graph, operand) or operand in moved:
                    continue
                came_along = stage[operand] == here != earliest[operand]
                if came_along and moved.issuperset(graph.users[operand]):
                    moved.add(operand)
                    pending.append(operand)
                else:
                    kept.add(operand)
        kept -= moved
        first = max([earliest[node.name], *(stage[o] for o in kept)])
        alone = (
            o
            for o in kept
            if not in_memory(o)
            and moved.issuperset(graph.users[o])
            and not _is_near(graph, o, kept, in_memory)
        )
        if first < here and sum(array_of(graph[o]).bytes for o in alone) >= array_of(node).bytes:
            stage.update(dict.fromkeys(moved, first))
    # A number repeated is computed by each of its readers, so it is no later than the first that moved back.
    for node in reversed(list(graph)):
        if node.name not in outside and is_embedded(graph, node.name):
            stage[node.name] = min([stage[node.name], *(stage[u] for u in graph.users[node.name])])


def _needed_stage(stage: int, is_outside: bool) -> int:
    """The last stage in which a value read by an op of `stage` can be computed."""
    return stage - 1 if is_outside else stage


def _keeps_more(
    graph: Graph, stage: Mapping[str, int], outside: Collection[str], node: Node
) -> bool:
    """Does an op that moves to a later stage keep more bytes until then than it hands on?

    These are operands that nobody else reads any more.
    """
    kept = 0
    for operand in dict.fromkeys(node.operands):
        base = graph[stored_value(graph, operand)]
        if base.is_parameter or base.is_constant or is_embedded(graph, operand):
            continue
        readers = (u for u in graph.users[operand] if u != node.name)
        if all(_needed_stage(stage[u], u in outside) <= stage[node.name] for u in readers):
            kept += array_of(graph[operand]).bytes
    return kept > array_of(node).bytes


MOST_KEPT = 16 << 20
"""Bytes that may stay alive until a later stage beyond those that are no more stored for it."""

MOST_OF_SAVED = 64
"""They may be so many times these: sums of parts, but no sums of whole arrays."""


def _find_along(
    graph: Graph,
    stage: Mapping[str, int],
    outside: Collection[str],
    in_memory: Callable[[str], bool],
    place: Mapping[str, int],
    node: Node,
    latest: int,
    saved: int,
) -> Collection[str]:
    """An op and those that only it needs, which may all move to a later stage.

    They end in what is in memory and nobody else reads.  None may where that keeps many more bytes.  So a result in
    bf16 of sums in f32 moves, though the sums alone are larger than the result.
    """
    along: dict[str, None] = {}
    pending, seen = [(-place[node.name], node.name)], {node.name}
    kept = 0
    while pending:
        name = heapq.heappop(pending)[1]  # all readers of it that may move along are known
        others = [u for u in graph.users[name] if u not in along]
        early = [u for u in others if _needed_stage(stage[u], u in outside) < latest]
        if in_memory(name):
            base = graph[stored_value(graph, name)]
            if is_embedded(graph, name):
                continue
            if others or not (base.name in outside or OPS[base.op].kind is Kind.SOURCE):
                return ()  # it would be read twice
            kept += array_of(graph[name]).bytes if base.name in outside else 0
            continue
        stays = early or is_held(graph, graph[name]) or any(is_barrier(graph[u]) for u in others)
        if name != node.name and stays:
            return ()  # it would be stored, or read there beside its kernel
        along[name] = None
        if len(along) > MOST_NEAR or isinstance(graph[name].type, TupleType):
            return ()
        for operand in graph[name].operands:
            if operand not in seen:
                seen.add(operand)
                heapq.heappush(pending, (-place[operand], operand))
    return along if kept - saved <= min(MOST_KEPT, MOST_OF_SAVED * saved) else ()


def _choose_stages(
    graph: Graph, outside: dict[str, str], products: Mapping[str, str]
) -> dict[str, int]:
    """Earliest stages, then ops are moved to their first reader's stage where that saves traffic."""
    earliest = _count_earliest(graph, outside, products)
    stage = dict(earliest)
    last = max((stage[node.name] for node in graph if not _counts(node, outside)), default=0)
    outputs = set(graph.outputs)
    beside = any(map(communicates, graph))
    place = {name: number for number, name in enumerate(graph.nodes)}

    def in_memory(name: str) -> bool:
        """Stored whatever is decided for its reader: a source, an outside result or a graph output."""
        while OPS[graph[name].op].is_view and name not in outputs:
            name = graph[name].operands[0]
        if is_held(graph, graph[name]):
            value = value_behind(graph, graph[name])
            return earliest[value] < earliest[name] or in_memory(value)
        return (
            name in outside
            or name in outputs
            or is_embedded(graph, name)
            or (OPS[graph[name].op].kind is Kind.SOURCE)
        )

    # Where no kernel has to be, one would be launched for what is no less to be stored there.
    has_kernel = {
        earliest[node.name]
        for node in graph
        if node.name not in outside
        and not OPS[node.op].is_view
        and not is_embedded(graph, node.name)
    }
    for node in reversed(list(graph)):
        name = node.name
        if name in outside or OPS[node.op].kind is Kind.SOURCE or is_held(graph, node):
            continue
        users = graph.users[name]
        if earliest[name] and any(is_barrier(graph[user]) for user in users):
            continue  # it was chosen to be kept instead of what it is computed from
        latest = min((_needed_stage(stage[u], u in outside) for u in users), default=last)
        if latest <= stage[name]:
            continue
        if beside and _keeps_more(graph, stage, outside, node):
            continue
        if beside and users and name in outputs and node.array.size == 1:
            continue  # what reads it later would wait for the collectives of its kernel
        stored = [o for o in dict.fromkeys(node.operands) if not in_memory(o)]
        # Moving `name` later stores those operands instead of `name` itself (which an output keeps anyway),
        # unless they have an earlier reader and are stored, or move along because this is their only reader.
        extra = sum(
            array_of(graph[o]).bytes
            for o in stored
            if all(u == name or stage[u] <= earliest[name] for u in graph.users[o])
        )
        saved = 0 if name in outputs and (users or beside) else array_of(node).bytes
        if extra < saved or (extra == saved and (not extra or latest in has_kernel)):
            stage[name] = latest
        elif not beside and latest in has_kernel and latest == stage[name] + 1:
            # Further behind, as from a forward to a backward half, what is kept adds up.
            along = _find_along(graph, stage, outside, in_memory, place, node, latest, saved)
            stage.update(dict.fromkeys(along, latest))
    _move_back(graph, stage, earliest, outside, in_memory)
    # A tuple-valued reduce and its projections stay together.
    for node in graph:
        if OPS[node.op].kind is Kind.PROJECTION and node.operands[0] not in outside:
            group = [node.operands[0], *graph.users[node.operands[0]]]
            together = min(
                stage[n]
                for n in group
                if n == node.operands[0] or OPS[graph[n].op].kind is Kind.PROJECTION
            )
            for n in group:
                if n == node.operands[0] or OPS[graph[n].op].kind is Kind.PROJECTION:
                    stage[n] = together
    return stage


def _counts(node: Node, outside: Collection[str]) -> bool:
    """Is it an outside op of one number, as a loop's counter?  A kernel behind it would gain nothing."""
    return node.name in outside and isinstance(node.type, ArrayType) and node.array.size == 1


class _Blockers:
    """Outside ops between two ops.  Sets of them are ints with a bit for each, so that no path is walked twice.

    behind: by producer, what was found behind it so far, and the walk that finds the rest.
    """

    def __init__(self, graph: Graph, outside: Mapping[str, str]) -> None:
        self.graph = graph
        self.bit = {name: 1 << number for number, name in enumerate(outside)}
        self.before: dict[str, int] = {}
        self.after: dict[str, int] = {}
        self.consumer, self.before_consumer = "", 0
        self.behind: dict[str, tuple[list[str], Iterator[str]]] = {}
        for node in graph:
            found = self.bit.get(node.name, 0)
            for operand in node.operands:
                found |= self.before[operand]
            self.before[node.name] = found
        for node in reversed(list(graph)):
            found = self.bit.get(node.name, 0)
            for user in graph.users[node.name]:
                found |= self.after[user]
            self.after[node.name] = found

    def find(self, producer: str, consumer: str) -> str:
        """The one next to the producer, for the message; '' when there is none."""
        if consumer != self.consumer:
            self.consumer, self.before_consumer = consumer, 0
            for operand in self.graph[consumer].operands:
                self.before_consumer |= self.before[operand]
        between = self.before_consumer & self.after[producer]
        if not between:
            return ""
        if producer not in self.behind:
            self.behind[producer] = [], self.walk(producer)
        seen, more = self.behind[producer]
        for name in seen:
            if self.bit[name] & between:
                return name
        for name in more:
            seen.append(name)
            if self.bit[name] & between:
                return name
        raise AssertionError("what is behind the producer is found behind it")

    def walk(self, producer: str) -> Iterator[str]:
        """The outside ops behind a producer, those next to it first."""
        seen = {producer}
        queue = deque([producer])
        while queue:
            name = queue.popleft()
            if name in self.bit:
                yield name
            for user in self.graph.users[name]:
                if user not in seen and self.after[user]:
                    seen.add(user)
                    queue.append(user)


class _Awaited:
    """Finds which collectives wait for an op."""

    def __init__(self, graph: Graph) -> None:
        self.collectives = [group[0] for group in find_combined(graph)]
        self.masks = find_awaited(graph) if self.collectives else {}

    def find(self, producer: str, consumer: str) -> str:
        """The first that waits for the producer and not for the consumer; '' when there is none."""
        more = self.masks.get(producer, 0) & ~self.masks.get(consumer, 0)
        return self.collectives[(more & -more).bit_length() - 1] if more else ""


def _refused_edge(
    blockers: _Blockers,
    outside: dict[str, str],
    stage: Mapping[str, int],
    awaited: _Awaited,
    producer: str,
    consumer: str,
) -> str:
    """Why two neighbours of different stages are two kernels."""
    graph = blockers.graph
    apart = stage[consumer] - stage[producer]
    if blocker := blockers.find(producer, consumer):
        return f"{CYCLE} %{blocker} ({graph[blocker].op})"
    if collective := awaited.find(producer, consumer):
        return f"%{collective} can start before %{consumer} is computed"
    if any(_needed_stage(stage[u], u in outside) <= stage[producer] for u in graph.users[producer]):
        return (
            f"%{producer} is needed {apart} library or other steps before %{consumer}, which is computed "
            "where it is read"
        )
    return (
        f"they run {apart} library or other steps apart, and moving %{producer} later would keep more "
        "bytes in memory"
    )


def choose_stages(left: Left) -> Staged:
    """The stage of each op: how many library or other calls must come before it.  Every op that no kernel computes has
    a reason."""
    graph = left.graph
    outside: dict[str, str] = {}
    held = {node.name: "held by a barrier" for node in graph if is_held(graph, node)}
    for node in graph:
        if node.is_parameter or node.is_constant or node.name in held:
            continue
        reason = left.reasons.get(node.name) or why_not_stitchable(graph, node)
        if reason is None and OPS[node.op].kind is Kind.PROJECTION and node.operands[0] in outside:
            reason = "a result of an op that is not stitched"
        if reason is not None:
            outside[node.name] = reason
    uncut = _choose_stages(graph, outside, left.products)
    stage = cut_stages(graph, uncut, outside)
    wholes = {stage[name]: uncut[name] for name in graph.nodes} if stage is not uncut else {}
    return Staged(graph, stage, outside, held, uncut=wholes, products=left.products)


def find_scopes(staged: Staged) -> Scopes:
    """Breadth-first search for stitch ops; every refused edge and every op left outside has a reason."""
    opened = open_barriers(staged.graph)
    graph, stage = opened.graph, staged.stage
    outside = {name: reason for name, reason in staged.outside.items() if name in graph.nodes}

    embedded = {node.name for node in graph if is_embedded(graph, node.name)}
    # A reshape is another view of its operand's buffer, so the operand is what somebody has to write.
    read = (o for name in outside for o in graph[name].operands)
    in_memory = {stored_value(graph, name) for name in (*graph.outputs, *read)}

    def can_stitch(name: str) -> bool:
        node = graph[name]
        if name in outside:
            return False
        if name in embedded:
            return name in in_memory and not node.is_constant
        return not (node.is_parameter or node.is_constant)

    refusals: list[Refusal] = []
    scope_of: dict[str, int] = {}
    found: list[list[str]] = []
    for node in graph:
        if not can_stitch(node.name) or node.name in scope_of:
            continue
        members: list[str] = []
        queue = deque([node.name])
        scope_of[node.name] = len(found)
        while queue:
            name = queue.popleft()
            members.append(name)
            for other in (*graph[name].operands, *graph.users[name]):
                if not can_stitch(other) or other in scope_of:
                    continue
                if name in embedded or other in embedded:
                    continue  # its readers do not read it from memory
                if stage[other] == stage[name]:
                    scope_of[other] = len(found)
                    queue.append(other)
        found.append(members)
    blockers, awaited = _Blockers(graph, outside), _Awaited(graph)
    for node in graph:
        if not can_stitch(node.name):
            continue
        for operand in dict.fromkeys(node.operands):
            if operand in embedded or not can_stitch(operand):
                continue
            if stage[operand] != stage[node.name]:
                reason = _refused_edge(blockers, outside, stage, awaited, operand, node.name)
                is_cycle = reason.startswith(CYCLE)
                undo = "" if is_cycle else f"together %{operand} %{node.name}"
                refusals.append(Refusal(operand, node.name, reason, undo))
    order = graph.order
    scopes = tuple(
        make_scope(
            graph, f"stitch_{number}", stage[members[0]], sorted(members, key=order.__getitem__)
        )
        for number, members in enumerate(found)
    )
    leftover = tuple(Refusal(name, name, reason) for name, reason in outside.items())
    return Scopes(
        graph,
        scopes,
        leftover,
        tuple(refusals),
        staged.recomputed,
        tuple(replace(barrier, stage=stage[barrier.name]) for barrier in opened.barriers),
        products=staged.products,
    )


def make_scope(graph: Graph, name: str, stage: int, members: list[str]) -> Scope:
    """The scope with the given members (topological order): its inputs and outputs follow from the graph."""
    inside = set(members)
    inputs = dict.fromkeys(
        operand
        for member in members
        for operand in graph[member].operands
        if operand not in inside and not is_embedded(graph, operand)
    )
    wanted = set(graph.outputs)
    outputs = [
        member
        for member in members
        if not isinstance(graph[member].type, TupleType)
        and (member in wanted or any(u not in inside for u in graph.users[member]))
    ]
    return Scope(name, stage, tuple(members), tuple(inputs), tuple(outputs))
