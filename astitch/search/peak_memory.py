"""Scopes or a plain graph -> bytes of temporary memory alive at each step, in an order that keeps few alive.

A step reads and writes buffers: a stitch op, a product, a loop.  Both compilers leave the order of the steps to XLA's
scheduler, which runs next what frees the most bytes.  So both sides are ordered by that rule here, and compared.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from astitch.errors import IllegalProduct
from astitch.graph.dimensions import is_embedded
from astitch.graph.ir import ArrayType, Graph, Node, TupleType
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import storage_name, storage_type, stored_value
from astitch.stitch_scope import Scope, Scopes

MOST_READ = 64
"""Arrays that one of XLA's fusions reads, about."""


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """One step.  reads, writes: buffers.  scratch: bytes that it needs for itself while it runs."""

    name: str
    reads: frozenset[str]
    writes: tuple[str, ...]
    scratch: int = 0


@dataclass(frozen=True)
class MemorySteps:
    """All steps of a program, each behind those whose results it reads.

    sizes: bytes of each buffer that a step writes.  over: the parameter whose memory a result of the program takes
    over, by the result's buffer.  results: those that have memory of their own.
    """

    steps: tuple[MemoryStep, ...]
    sizes: Mapping[str, int]
    over: Mapping[str, str] = field(default_factory=dict)
    results: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """order: numbers of the steps, as they run.  alive: bytes while each of them runs, in that order."""

    order: tuple[int, ...]
    alive: tuple[int, ...]

    @property
    def peak(self) -> int:
        return max(self.alive, default=0)

    @property
    def peak_place(self) -> int:
        """The place in the order at which the most bytes are alive."""
        return self.alive.index(self.peak) if self.alive else 0


# ---- steps -------------------------------------------------------------------------------------------------------


def list_steps(scopes: Scopes, scratch: Mapping[str, int] | None = None) -> MemorySteps:
    """The steps of a program in which each stitch op is a kernel.  scratch: bytes of a scope's kernel, by scope."""
    graph, scratch = scopes.graph, scratch or {}
    of: dict[str, Scope] = {m: scope for scope in scopes.scopes for m in scope.members}
    outside = {refusal.producer for refusal in scopes.outside}
    placed: set[str] = set()
    items: list[Scope | Node] = []
    for node in graph:  # a scope stands where its last member does
        scope = of.get(node.name)
        if scope is not None and node.name == scope.members[-1] and scope.name not in placed:
            placed.add(scope.name)
            items.append(scope)
        elif node.name in outside and OPS[node.op].kind is not Kind.PROJECTION:
            items.append(node)
    steps = []
    for item in items:
        if isinstance(item, Scope):
            reads = _stored(graph, item.inputs)
            writes = tuple(dict.fromkeys(storage_name(graph, o) for o in item.outputs))
            writes = tuple(w for w in writes if w not in reads)
            steps.append(MemoryStep(item.name, reads, writes, scratch.get(item.name, 0)))
        else:
            steps.append(_make_step(graph, item))
    return _collect(graph, steps)


def list_plain_steps(graph: Graph, *, stores_shared: bool) -> MemorySteps:
    """The steps of a program as XLA alone would run them, at the least: each value that a kernel stores is a step, and
    element-wise ops in front of it are fused into it.

    stores_shared: element-wise values that several ops read are stored, too.
    """
    stored = {stored_value(graph, o) for o in graph.outputs}
    for node in graph:
        kind = OPS[node.op].kind
        if kind not in _FUSED:
            stored.add(node.name)
            if kind is not Kind.REDUCE:
                stored.update(stored_value(graph, o) for o in node.operands)
        elif stores_shared and kind is Kind.ELEMENTWISE and len(graph.users[node.name]) > 1:
            stored.add(node.name)
    leaves: dict[str, frozenset[str]] = {}  # what a fused value is computed from
    steps: list[MemoryStep] = []
    for node in graph:
        name, kind = node.name, OPS[node.op].kind
        if kind is Kind.PROJECTION:
            continue
        behind: set[str] = set()
        for operand in node.operands:
            base = storage_name(graph, operand)
            behind |= leaves.get(base, frozenset({base}))
        if is_embedded(graph, name):
            leaves[name] = frozenset(behind)
        elif kind is Kind.SOURCE:
            leaves[name] = frozenset({name} if node.is_parameter else ())
        elif (name in stored or len(behind) > MOST_READ) and not OPS[node.op].is_view:
            steps.append(MemoryStep(name, frozenset(behind), _written(graph, node)))
        else:
            leaves[name] = frozenset(behind)
    return _collect(graph, steps)


_FUSED = frozenset({Kind.SOURCE, Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INDEX, Kind.PROJECTION})


def _make_step(graph: Graph, node: Node) -> MemoryStep:
    return MemoryStep(node.name, _stored(graph, node.operands), _written(graph, node))


def _stored(graph: Graph, names: Iterable[str]) -> frozenset[str]:
    return frozenset(storage_name(graph, n) for n in names if not is_embedded(graph, n))


def _written(graph: Graph, node: Node) -> tuple[str, ...]:
    if isinstance(node.type, TupleType):
        return tuple(f"{node.name}#{i}" for i in range(len(node.type.elements)))
    return (node.name,)


def _collect(graph: Graph, steps: Sequence[MemoryStep]) -> MemorySteps:
    results = {storage_name(graph, o) for o in graph.outputs}
    over = {
        storage_name(graph, graph.outputs[output]): graph.parameters[parameter]
        for output, parameter in graph.aliases
    }
    sizes = {w: _bytes_of(graph, w) for step in steps for w in step.writes}
    return MemorySteps(_sort(steps), sizes, over, frozenset(results - over.keys()))


def _sort(steps: Sequence[MemoryStep]) -> tuple[MemoryStep, ...]:
    """The steps, each behind those whose results it reads, else as they are.

    A stitch op may have readers in front of its last member.
    """
    writer = {w: number for number, step in enumerate(steps) for w in step.writes}
    behind: list[set[int]] = [set() for _ in steps]
    waits = [0] * len(steps)
    for number, step in enumerate(steps):
        for before in {writer[b] for b in step.reads if b in writer}:
            behind[before].add(number)
            waits[number] += 1
    ready = [number for number, count in enumerate(waits) if not count]
    found: list[MemoryStep] = []
    while ready:
        number = heapq.heappop(ready)
        found.append(steps[number])
        for other in behind[number]:
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(ready, other)
    if len(found) < len(steps):
        raise IllegalProduct("steps of a program read each other's results in a circle")
    return tuple(found)


def _bytes_of(graph: Graph, buffer: str) -> int:
    base = graph[buffer.partition("#")[0]]
    if isinstance(base.type, ArrayType) or "#" in buffer:
        return storage_type(graph, buffer).bytes
    return 0  # a token


# ---- their order -------------------------------------------------------------------------------------------------


def schedule(program: MemorySteps) -> MemoryUse:
    """The better of two orders: as the steps are listed, and by what frees the most bytes next."""
    listed = measure(program, range(len(program.steps)))
    greedy = measure(program, tuple(_order_greedily(program)))
    return min(listed, greedy, key=lambda use: use.peak)


def measure(program: MemorySteps, order: Sequence[int]) -> MemoryUse:
    """The bytes alive while each step runs.  A result takes over the memory of an equally large operand that nobody
    reads any more."""
    readers: dict[str, int] = {}
    for step in program.steps:
        for buffer in step.reads:
            readers[buffer] = readers.get(buffer, 0) + 1
    alive, profile = 0, []
    held: set[str] = set()
    for number in order:
        step = program.steps[number]
        dying: list[int] = []
        for buffer in step.reads:
            readers[buffer] -= 1
            if not readers[buffer] and buffer in held:
                dying.append(program.sizes[buffer])
                held.remove(buffer)
        more, shared = 0, 0
        for buffer in step.writes:
            size = program.sizes[buffer]
            parameter = program.over.get(buffer)
            if parameter is not None:
                # Else it lies there until it can be copied.
                more += size if readers.get(parameter) else 0
                continue
            if not readers.get(buffer) and buffer not in program.results:
                continue
            if size in dying:
                dying.remove(size)
                shared += size
            more += size
            if buffer not in program.results:
                held.add(buffer)
        freed = sum(dying) + shared
        profile.append(alive + more - shared + step.scratch)
        alive += more - freed
    return MemoryUse(tuple(order), tuple(profile))


def _order_greedily(program: MemorySteps) -> Iterator[int]:
    """Among the steps that can run, the one next that frees the most bytes beyond what it takes; then as listed."""
    steps, sizes = program.steps, dict(program.sizes)
    writer = {w: number for number, step in enumerate(steps) for w in step.writes}
    left: dict[str, set[int]] = {}
    for number, step in enumerate(steps):
        for buffer in step.reads:
            left.setdefault(buffer, set()).add(number)
    waits = [len({writer[b] for b in step.reads if b in writer}) for step in steps]
    readers: list[set[int]] = [set() for _ in steps]
    for number, step in enumerate(steps):
        for buffer in step.reads:
            if buffer in writer:
                readers[writer[buffer]].add(number)
    over = program.over
    taken = [sum(sizes[w] for w in step.writes if w not in over) for step in steps]
    sizes = {buffer: size for buffer, size in sizes.items() if buffer not in program.results}
    freed = [sum(sizes.get(b, 0) for b in step.reads if len(left[b]) == 1) for step in steps]
    ready = [(taken[n] - freed[n], n) for n in range(len(steps)) if not waits[n]]
    heapq.heapify(ready)
    done = [False] * len(steps)
    while ready:
        cost, number = heapq.heappop(ready)
        if done[number]:
            continue
        if cost != taken[number] - freed[number]:
            heapq.heappush(ready, (taken[number] - freed[number], number))
            continue
        done[number] = True
        yield number
        for buffer in steps[number].reads:
            rest = left[buffer]
            rest.discard(number)
            if len(rest) == 1:
                (last,) = rest
                freed[last] += sizes.get(buffer, 0)
                if not waits[last] and not done[last]:
                    heapq.heappush(ready, (taken[last] - freed[last], last))
        for reader in readers[number]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, (taken[reader] - freed[reader], reader))


def estimate_plain_peak(graph: Graph) -> int:
    """Bytes of temporary memory that XLA alone needs, at the least."""
    ways = (list_plain_steps(graph, stores_shared=shared) for shared in (False, True))
    return min(schedule(way).peak for way in ways)


def find_alive(program: MemorySteps, use: MemoryUse) -> Collection[str]:
    """The buffers that are alive at the peak."""
    place = use.peak_place
    position = {number: p for p, number in enumerate(use.order)}
    born = {w: position[n] for n, step in enumerate(program.steps) for w in step.writes}
    last: dict[str, int] = {}
    for number, step in enumerate(program.steps):
        for buffer in step.reads:
            last[buffer] = max(last.get(buffer, 0), position[number])
    return [
        buffer
        for buffer in program.sizes
        if born[buffer] <= place <= last.get(buffer, born[buffer])
    ]
