"""Scopes or a plain graph -> bytes of temporary memory alive at each step, in an order that keeps few alive.

A step reads and writes buffers: a stitch op, a product, a loop.  Both compilers leave the order of the steps to XLA's
scheduler, which runs next what frees the most bytes.  So both sides are ordered by that rule here, and compared.
"""

from __future__ import annotations

import heapq
import math
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from astitch.errors import IllegalProduct
from astitch.graph.dimensions import array_of, is_embedded
from astitch.graph.ir import ArrayType, DotAttrs, Graph, Node, SortAttrs, TupleType
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import storage_name, storage_type, stored_value
from astitch.kernel.in_place import LEAST_BYTES_AGAIN
from astitch.stitch_scope import Scope, Scopes

MOST_READ = 64
"""Arrays that one of XLA's fusions reads, about."""


MOST_OF_PROLOGUE = 8
"""Element-wise ops that XLA computes with a product that reads them, about."""


MOST_OF_SHORT_SUM = 8
"""Elements of a sum that XLA's fusions compute for each reader, about."""


MOST_TOTAL = 1 << 60
"""Bytes behind a step that are told from more."""


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """One step.  reads, writes: buffers.  scratch: bytes that it needs for itself while it runs.

    apart: buffers that it reads and no result of its own takes over.
    is_kernel: of ours, so that it may be made to wait (see xla/run_late.py).
    """

    name: str
    reads: frozenset[str]
    writes: tuple[str, ...]
    scratch: int = 0
    apart: frozenset[str] = frozenset()
    is_kernel: bool = False


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


def list_steps(
    scopes: Scopes,
    scratch: Mapping[str, int] | None = None,
    regions: Mapping[str, int] | None = None,
) -> MemorySteps:
    """The steps of a program in which each stitch op is a kernel.

    scratch: bytes of a scope's kernel, by scope.  regions: see measure_regions.
    """
    graph, scratch = scopes.graph, scratch or {}
    regions = measure_regions(graph) if regions is None else regions
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
    nodes = [item for item in items if isinstance(item, Node)]
    stored = _find_stored(graph, nodes, stores_shared=True)
    stored |= {stored_value(graph, name) for scope in scopes.scopes for name in scope.inputs}
    fusing = _Fusing(graph, stored, regions)
    for item in items:
        if isinstance(item, Scope):
            fusing.steps.append(_make_kernel_step(graph, item, scratch.get(item.name, 0)))
        else:
            fusing.add(item)
    return _collect(graph, fusing.steps)


def _make_kernel_step(graph: Graph, scope: Scope, scratch: int) -> MemoryStep:
    reads = _stored(graph, scope.inputs)
    writes = tuple(dict.fromkeys(storage_name(graph, o) for o in scope.outputs))
    writes = tuple(w for w in writes if w not in reads)
    apart = find_apart(graph, scope.members, reads, writes)
    return MemoryStep(scope.name, reads, writes, scratch, apart, is_kernel=True)


def find_apart(
    graph: Graph, members: Collection[str], reads: Collection[str], writes: Iterable[str]
) -> frozenset[str]:
    """The buffers that a kernel of ours reads and none of its results takes over: small ones, and those of which it
    computes no result element by element."""
    inside = set(members)
    pending = [buffer.partition("#")[0] for buffer in writes]
    seen = set(pending)
    over: set[str] = set()
    while pending:
        node = graph[pending.pop()]
        row = OPS[node.op]
        if node.name not in inside:
            over.add(storage_name(graph, node.name))
            continue
        if row.writes_into:
            operands = node.operands[:1]
        elif row.kind is Kind.ELEMENTWISE or row.is_view:
            size = node.array.size
            operands = tuple(o for o in node.operands if array_of(graph[o]).size == size)
        else:
            continue
        pending += (o for o in operands if o not in seen)
        seen.update(operands)
    return frozenset(b for b in reads if b not in over or _bytes_of(graph, b) < LEAST_BYTES_AGAIN)


def list_plain_steps(
    graph: Graph,
    *,
    stores_shared: bool,
    stores_factors: bool = True,
    stores_short: bool = True,
    regions: Mapping[str, int] | None = None,
) -> MemorySteps:
    """The steps of a program as XLA alone would run them, at the least: each value that a kernel stores is a step, and
    element-wise ops in front of it are fused into it.

    stores_shared: element-wise values that several ops read are stored, too.  stores_factors, stores_short: see
    _find_stored.  regions: see measure_regions.
    """
    regions = measure_regions(graph) if regions is None else regions
    nodes = [node for node in graph if OPS[node.op].kind is not Kind.PROJECTION]
    stored = _find_stored(
        graph,
        nodes,
        stores_shared=stores_shared,
        stores_factors=stores_factors,
        stores_short=stores_short,
    )
    fusing = _Fusing(graph, stored, regions)
    for node in nodes:
        fusing.add(node)
    return _collect(graph, fusing.steps)


_FUSED = frozenset({Kind.SOURCE, Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INDEX, Kind.PROJECTION})


def _find_stored(
    graph: Graph,
    nodes: Iterable[Node],
    *,
    stores_shared: bool,
    stores_factors: bool = True,
    stores_short: bool = True,
) -> set[str]:
    """The values among the nodes that XLA stores: results, and what it does not fuse with its readers.

    It computes what it reduces or scatters with the reduction or scatter.
    stores_factors: does it store what a product computes from one array as it reads that?  stores_short: does it store
    sums of few elements?
    """
    stored = {stored_value(graph, o) for o in graph.outputs}
    for node in nodes:
        row = OPS[node.op]
        if row.kind not in _FUSED:
            if stores_short or not _is_short(graph, node):
                stored.add(node.name)
            if row.writes_into:
                stored.add(stored_value(graph, node.operands[0]))
            elif row.kind is not Kind.REDUCE:
                found = (stored_value(graph, o) for o in node.operands)
                computes = isinstance(node.attrs, DotAttrs) and not stores_factors
                stored.update(o for o in found if not computes or not _is_prologue(graph, o))
        elif stores_shared and row.kind is Kind.ELEMENTWISE and len(graph.users[node.name]) > 1:
            stored.add(node.name)
    return stored


def _is_short(graph: Graph, node: Node) -> bool:
    """Does a reduction take few elements each?"""
    if OPS[node.op].kind is not Kind.REDUCE or isinstance(node.type, TupleType):
        return False
    return array_of(graph[node.operands[0]]).size <= MOST_OF_SHORT_SUM * node.array.size


def _is_prologue(graph: Graph, factor: str) -> bool:
    """Is a factor a few element-wise ops on one array of its size?  XLA's products compute it where they read that."""
    size, arrays, waiting = array_of(graph[factor]).size, set[str](), [factor]
    for _ in range(MOST_OF_PROLOGUE):
        if not waiting:
            break
        node = graph[waiting.pop()]
        for operand in node.operands if OPS[node.op].kind is Kind.ELEMENTWISE else ():
            kind = OPS[graph[operand].op].kind
            if kind is Kind.ELEMENTWISE:
                waiting.append(operand)
            elif kind is not Kind.BROADCAST and array_of(graph[operand]).size == size:
                arrays.add(stored_value(graph, operand))
    return not waiting and len(arrays) <= 1 and OPS[graph[factor].op].kind is Kind.ELEMENTWISE


class _Fusing:
    """Steps of XLA's, of which each computes what it reads and is not stored."""

    def __init__(self, graph: Graph, stored: Collection[str], regions: Mapping[str, int]) -> None:
        self.graph, self.stored, self.regions = graph, stored, regions
        self.leaves: dict[str, frozenset[str]] = {}  # what a fused value is computed from
        self.steps: list[MemoryStep] = []

    def add(self, node: Node) -> None:
        name, row = node.name, OPS[node.op]
        behind: set[str] = set()
        for operand in node.operands:
            base = storage_name(self.graph, operand)
            behind |= self.leaves.get(base, frozenset({base}))
        if is_embedded(self.graph, name):
            self.leaves[name] = frozenset()
        elif row.kind is Kind.SOURCE:
            self.leaves[name] = frozenset({name} if node.is_parameter else ())
        elif (name in self.stored or len(behind) > MOST_READ) and not row.is_view:
            self.steps.append(self.make_step(node, frozenset(behind)))
        else:
            self.leaves[name] = frozenset(behind)

    def make_step(self, node: Node, reads: frozenset[str]) -> MemoryStep:
        row = OPS[node.op]
        in_place = row.kind in _IN_PLACE or row.writes_into or isinstance(node.attrs, SortAttrs)
        apart = frozenset() if in_place else reads
        written, scratch = _written(self.graph, node), self.regions.get(node.name, 0)
        return MemoryStep(node.name, reads, written, scratch, apart)


_IN_PLACE = frozenset({Kind.ELEMENTWISE, Kind.CONTROL, Kind.BARRIER})
"""What XLA may compute in the memory of an operand."""


def measure_regions(graph: Graph) -> dict[str, int]:
    """Bytes of temporary memory in the bodies of loops and the branches of conditionals, by op: at the least."""
    return {
        node.name: max(estimate_region_peak(region) for region in node.regions)
        for node in graph
        if OPS[node.op].kind is Kind.CONTROL and node.regions
    }


def estimate_region_peak(region: Graph) -> int:
    """Bytes beside what a region gets and gives, as XLA alone would run it."""
    regions = measure_regions(region)

    def measure_way(shared: bool) -> int:
        steps = list_plain_steps(region, stores_shared=shared, regions=regions)
        return schedule(leave_results_out(steps, region)).peak

    return min(measure_way(shared) for shared in (False, True))


def leave_results_out(steps: MemorySteps, graph: Graph) -> MemorySteps:
    """The steps, with results of the graph that take no memory."""
    given = {storage_name(graph, output) for output in graph.outputs}
    sizes = {b: 0 if b in given else size for b, size in steps.sizes.items()}
    return replace(steps, sizes=sizes)


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
    """The best of three orders: as the steps are listed, by what frees the most bytes next, and each step behind all
    that it alone waits for.  Or of the same with kernels of ours that make much of little as late as they can run."""
    return min((measure(program, order) for order in _orders(program)), key=lambda use: use.peak)


def keeps_to(program: MemorySteps, most_bytes: float) -> bool:
    """Is the peak of `schedule` at most so many bytes?  An order that fits is enough."""
    return any(measure(program, order, most_bytes).peak <= most_bytes for order in _orders(program))


def _orders(program: MemorySteps) -> Iterator[Sequence[int]]:
    orders: list[Sequence[int]] = []
    for find in (_order_as_listed, _order_greedily, _order_by_depth):
        orders.append(tuple(find(program)))
        yield orders[-1]
    if late := {n for n, step in enumerate(program.steps) if _makes_much(program, step)}:
        yield from (tuple(_order_late(program, order, late)) for order in orders)


MUCH_SHARE = 2
"""So many times what it reads of computed values a kernel makes that waits for what is read with its results."""

LEAST_MUCH = 1 << 20
"""Bytes that are worth it."""


def makes_much(made: int, read: int) -> bool:
    """Does a kernel of ours run as late as it can?  made: bytes of its results, beside those over arguments.  read: of
    what others compute for it, which memory holds as long."""
    return made >= max(LEAST_MUCH, MUCH_SHARE * read)


def _makes_much(program: MemorySteps, step: MemoryStep) -> bool:
    if not step.is_kernel or program.results.intersection(step.writes):
        return False
    sizes, over = program.sizes, program.over
    made = sum(sizes[w] for w in step.writes if w not in over)
    return makes_much(made, sum(sizes.get(b, 0) for b in step.reads))


def _order_late(program: MemorySteps, order: Sequence[int], late: Collection[int]) -> Iterator[int]:
    """The same order, but each of the `late` right before the first step that reads what it makes."""
    steps = program.steps
    writer = {w: number for number, step in enumerate(steps) for w in step.writes}
    awaited = {writer[b] for step in steps for b in step.reads if b in writer}
    done = [False] * len(steps)
    for first in (*(n for n in order if n not in late or n not in awaited), *order):
        waiting = [first]
        while waiting:
            number = waiting[-1]
            before = {writer[b] for b in steps[number].reads if b in writer}
            if done[number] or not (left := sorted(n for n in before if not done[n])):
                waiting.pop()
                if not done[number]:
                    done[number] = True
                    yield number
            else:
                waiting += left


def measure(program: MemorySteps, order: Sequence[int], most_bytes: float = math.inf) -> MemoryUse:
    """The bytes alive while each step runs, up to the first one above `most_bytes`.  A result takes over the memory of
    an equally large operand that nobody reads any more."""
    readers: dict[str, int] = {}
    for step in program.steps:
        for buffer in step.reads:
            readers[buffer] = readers.get(buffer, 0) + 1
    alive, profile = 0, []
    held: set[str] = set()
    for number in order:
        step = program.steps[number]
        dying: list[int] = []
        freed = 0
        for buffer in step.reads:
            readers[buffer] -= 1
            if not readers[buffer] and buffer in held:
                if buffer in step.apart:
                    freed += program.sizes[buffer]
                else:
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
        freed += sum(dying) + shared
        profile.append(alive + more - shared + step.scratch)
        if profile[-1] > most_bytes:
            break
        alive += more - freed
    return MemoryUse(tuple(order), tuple(profile))


def _order_as_listed(program: MemorySteps) -> Iterator[int]:
    yield from range(len(program.steps))


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


def _order_by_depth(program: MemorySteps) -> Iterator[int]:
    """From the last steps back: first what each waits for, of this what has the most bytes behind it, then the step."""
    steps, sizes = program.steps, program.sizes
    writer = {w: number for number, step in enumerate(steps) for w in step.writes}
    behind = [sorted({writer[b] for b in step.reads if b in writer}) for step in steps]
    total: list[int] = []  # steps are listed behind what they wait for
    for number, step in enumerate(steps):
        size = sum(sizes[w] for w in step.writes) + sum(total[n] for n in behind[number])
        total.append(min(size, MOST_TOTAL))  # what several steps wait for counts several times
    waited = {number for numbers in behind for number in numbers}
    stack = [(n, False) for n in reversed(range(len(steps))) if n not in waited]
    done = [False] * len(steps)
    while stack:
        number, is_ready = stack.pop()
        if done[number]:
            continue
        if is_ready:
            done[number] = True
            yield number
            continue
        stack.append((number, True))
        ranked = sorted(behind[number], key=lambda n: (total[n], -n))
        stack += [(n, False) for n in ranked if not done[n]]


def estimate_plain_peak(graph: Graph) -> int:
    """Bytes of temporary memory that XLA alone needs, at the least.  Several passes ask."""
    return min(_estimate_both_ways(graph))


def estimate_factors_stored(graph: Graph) -> int:
    """The same, if products compute nothing of what they read, as those of libraries."""
    return _estimate_both_ways(graph)[1]


def _estimate_both_ways(graph: Graph) -> tuple[int, int]:
    """The least peaks where products compute their factors, and where these are stored."""
    known = _KNOWN_PEAKS.get(id(graph))
    if known and known[0]() is graph:
        return known[1]
    regions = measure_regions(graph)

    def measure_way(*, factors: bool) -> int:
        ways = (
            list_plain_steps(graph, stores_shared=shared, stores_factors=factors, regions=regions)
            for shared in (False, True)
        )
        return min(schedule(way).peak for way in ways)

    peaks = measure_way(factors=False), measure_way(factors=True)
    if len(_KNOWN_PEAKS) >= MOST_KNOWN:
        _KNOWN_PEAKS.clear()
    _KNOWN_PEAKS[id(graph)] = weakref.ref(graph), peaks
    return peaks


def estimate_least_plain_peak(graph: Graph) -> int:
    """The bytes of estimate_plain_peak, or fewer where XLA may compute sums of few elements for each reader."""
    regions = measure_regions(graph)
    ways = (
        list_plain_steps(
            graph, stores_shared=False, stores_factors=factors, stores_short=False, regions=regions
        )
        for factors in (False, True)
    )
    return min(estimate_plain_peak(graph), *(schedule(way).peak for way in ways))


_KNOWN_PEAKS: dict[int, tuple[weakref.ref[Graph], tuple[int, int]]] = {}
MOST_KNOWN = 64


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
