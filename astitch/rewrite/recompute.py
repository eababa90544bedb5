"""Graph, stages -> Graph, stages: values that are cheaper to compute again where they are read than to keep in memory.

A training step's backward half reads what its forward half computed.  A value may be a few operations away from others
that are in memory anyway, such as a product's result or a row's maximum.  Its store and its loads are then saved: each
later stage is given ops of its own.  Which ones is a minimum cut between what memory holds and what the stage reads.  A
cut through a value costs its store and its load; an op that is computed again costs what it executes.

Single numbers are no matter of bytes.  A stage computes those again that take a few ops from what is in memory.  Else
the kernel that stores one is waited for by the others that read it, and its own loops wait at a barrier.  So it is for
a number that is a result, such as the count of an optimizer's steps: what reads it has one of its own.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from astitch.graph.dimensions import array_of, is_embedded, is_uniform
from astitch.graph.edit import free_name, keep_live_nodes
from astitch.graph.evaluations import Evaluations
from astitch.graph.ir import ArrayType, GatherAttrs, Graph, Node
from astitch.graph.ops import OPS, Kind
from astitch.graph.running import is_running
from astitch.graph.storage import stored_value

LEAST_BYTES = 64 << 10
"""The least size of a value that may be computed again.  Smaller ones cost what a load costs, not what a byte does."""

LEAST_GAIN = 1 << 20
"""Bytes that a stage must save: a third of a microsecond on an H100."""

FLOPS_PER_BYTE = 4
"""Operations that take as long as a byte of traffic.  The arithmetic units of a V100, A100 or H100 do 5 to 10 of them
in that time.  The operations that the kernels have already leave about half of it free."""

LONG_LIVED, HELD_PRICE = 4, 2
"""A value that is read more than so many stages later, as many products wait for each other, takes memory meanwhile.
So does one that is kept over a stage in which the most is alive.  Storing and loading it counts so many times."""

DEAR_PRICE = 4
"""The same where a program would take more memory than it may."""

COPIED_PRICE = 3
"""The same for a donated parameter whose memory a result took over before: XLA copies it first."""

NEAR_PEAK = 0.9
"""The share of the most bytes alive from which on a stage counts as one in which the most is alive."""

LEAST_PEAK = 1 << 20
"""Where never so many bytes are kept, none of them has a price of its own."""

TABLE_SHARE = 4
"""How many times larger than its table what is looked up there is, if looking it up again costs nothing."""

LEAST_ROW = 32
"""The least bytes of a row that are looked up again in another table: what memory gives at once."""

MOVES = {"reshape": 0, "slice": 0, "concatenate": 8, "pad": 8}
"""Ops that move data and may be done again, with the operations that an element counts for: the latter two ask for each
element where it comes from, and load it alone.  With 4 a CRNN's pools were computed again, in 44 us in place of 37."""

MOST_OPS_OF_NUMBERS = 32
"""How many ops a stage computes again for a number that it reads: Adam's corrections of both moments take five."""

MOST_EVALUATIONS = 16
"""An op that a stage would evaluate more often, for an element of its own, is stored by the stage."""

FREE_VERTICES, VERTICES_PER_OP = 10_000, 3
"""How large the networks of all stages may be together, for a search that is linear in the graph.  Stages beyond that
keep what they read.  A Transformer's training step of 5,500 ops takes a fifth of it."""


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What a stage computes again.  names: the ops, as other stages know them.  saved_bytes: of traffic, about; what
    lives long counts twice, and single numbers nothing.  to_fit: the program would else exceed its memory limit."""

    stage: int
    names: tuple[str, ...]
    saved_bytes: int
    to_fit: bool = False

    def __str__(self) -> str:
        shown = ", ".join(f"%{name}" for name in self.names[:8])
        more = f" and {len(self.names) - 8} more" if len(self.names) > 8 else ""
        saved = f", which saves {self.saved_bytes} B of traffic" if self.saved_bytes else ""
        fit = ", to keep to the memory limit" if self.to_fit else ""
        return f"stage {self.stage} computes {shown}{more} again{saved}{fit}"


@dataclass(frozen=True, slots=True)
class Staged:
    """A graph whose ops have stages, see stitch_scope.py.

    graph: once recomputed, with an op for each stage that computes a value.  stage: of each op.  uncut: the number of
    the stage that a stage is a part of, where collectives cut stages.
    outside: ops that no stitch op computes, each with its reason.  held: barriers and their results, likewise.
    products: of those that XLA computes with a product, the product.  kept: values that are stored, see keep_less.py.
    """

    graph: Graph
    stage: Mapping[str, int]
    outside: Mapping[str, str]
    held: Mapping[str, str] = field(default_factory=dict)
    recomputed: tuple[Recomputed, ...] = ()
    uncut: Mapping[int, int] = field(default_factory=dict)
    products: Mapping[str, str] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()

    @property
    def parts(self) -> frozenset[int]:
        """The stages that are parts of one."""
        counted = Counter(self.uncut.values())
        return frozenset(number for number, whole in self.uncut.items() if counted[whole] > 1)

    def __str__(self) -> str:
        by_stage: dict[int, list[str]] = {}
        for node in self.graph:
            if OPS[node.op].kind is not Kind.SOURCE:
                shown = f"%{node.name} = {node.op}" + (" (outside)" * (node.name in self.outside))
                by_stage.setdefault(self.stage[node.name], []).append(shown)
        lines = [f"stage {number}: {', '.join(ops)}" for number, ops in sorted(by_stage.items())]
        return "\n".join([*lines, *map(str, self.recomputed)])


def recompute(staged: Staged, most_bytes: float = math.inf) -> Staged:
    """The same function; later stages compute again what is not worth keeping.

    most_bytes: where stages would keep more for others than so many bytes, memory is dearer.
    An op that no stage but later ones needs any more is theirs: the first of them has its name.  So is a result of the
    program.  No stage reads a donated parameter again once a result has taken over its memory: XLA would copy it first.
    """
    found = _recompute(staged, HELD_PRICE)
    kept = count_kept(found) if math.isfinite(most_bytes) else 0
    if kept <= most_bytes:
        return found
    dear = _recompute(staged, DEAR_PRICE)
    return dear if count_kept(dear) < kept else found


def count_kept(staged: Staged) -> int:
    """The most bytes that are kept behind a stage for later ones."""
    traffic = Traffic(staged.graph, staged.stage, {**staged.outside, **staged.held}, frozenset())
    return max(traffic.list_kept().values(), default=0)


def _recompute(staged: Staged, price: int) -> Staged:
    outside = {**staged.outside, **staged.held}
    again, notes = _choose_all(staged, outside, frozenset(), price)
    if lost := _find_lost(staged, outside, again):
        again, notes = _choose_all(staged, outside, lost, price)
    if again:
        graph, stage = _write(staged.graph, staged.stage, outside, again)
        recomputed = (*staged.recomputed, *notes)
        staged = replace(staged, graph=graph, stage=stage, recomputed=recomputed)
    return _part_numbers(staged)


def _part_numbers(staged: Staged) -> Staged:
    """The same function; ops that read a stored number of their stage read one that is not stored, if it takes a few
    ops from what is in memory.

    A kernel that stores a number and reads it again would do that in two loops with a barrier between them.  Adam's
    moments would be loaded again behind it, for the step that waits for the count.
    """
    outside = {**staged.outside, **staged.held}
    graph, stage = staged.graph, dict(staged.stage)
    traffic = Traffic(graph, stage, outside, frozenset())
    spread = _find_spread(traffic)
    ops: dict[str, frozenset[str]] = {}  # of each number of a few ops, those that it takes
    own: dict[str, str] = {}
    nodes: dict[str, Node] = {}
    taken = set(graph.nodes)
    for node in graph:
        name = node.name
        nodes[name] = node
        if not traffic.is_stitched(name):
            continue
        mine = (own[o] if o in own and stage[o] == stage[name] else o for o in node.operands)
        again = replace(node, operands=tuple(mine))
        # A view of what is stored is stored with it.
        is_view = OPS[node.op].is_view and again != node
        if not is_view:
            nodes[name] = again
        if not isinstance(node.type, ArrayType) or node.array.size != 1:
            continue
        here = [o for o in node.operands if not traffic.is_earlier(o, stage[name])]
        if not traffic.may_repeat(name) or not all(o in ops for o in here):
            continue
        ops[name] = frozenset({name}).union(*(ops[o] for o in here))
        if len(ops[name]) > MOST_OPS_OF_NUMBERS:
            del ops[name]
        elif name in spread and (is_view or name in traffic.kept):
            own[name] = free_name(f"{name}.again", taken)
            taken.add(own[name])
            nodes[own[name]] = replace(again, name=own[name])
            stage[own[name]] = stage[name]
    if not own:
        return staged
    live = keep_live_nodes(nodes, graph.outputs)
    written = Graph(graph.name, live, graph.parameters, graph.outputs, graph.aliases)
    return replace(staged, graph=written, stage={name: stage[name] for name in live})


def _find_spread(traffic: Traffic) -> set[str]:
    """The numbers that ops of arrays read, perhaps by way of other numbers."""
    graph, spread = traffic.graph, set[str]()
    for node in reversed(list(graph)):
        if isinstance(node.type, ArrayType) and node.array.size == 1:
            users = (graph[user] for user in graph.users[node.name] if traffic.is_stitched(user))
            if any(user.name in spread or array_of(user).size > 1 for user in users):
                spread.add(node.name)
    return spread


def _choose_all(
    staged: Staged, outside: Mapping[str, str], lost: frozenset[str], price: int
) -> tuple[dict[int, frozenset[str]], list[Recomputed]]:
    """The ops that each stage computes again.  lost: see _find_lost.  price: of what is held, see HELD_PRICE."""
    traffic = Traffic(staged.graph, staged.stage, outside, lost, price, staged.kept)
    again: dict[int, frozenset[str]] = {}
    notes: list[Recomputed] = []
    left = FREE_VERTICES + VERTICES_PER_OP * len(staged.graph.nodes)
    parts = staged.parts
    shared: dict[int, set[str]] = {}  # what parts of a stage read
    for number in sorted(traffic.read_by):
        whole = staged.uncut.get(number, number)
        traffic.shared, traffic.here = shared.get(whole, set()), number
        names, saved, vertices = _choose(traffic, number, 0 if number in parts else LEAST_GAIN)
        names |= _choose_numbers(traffic, number, names)
        left -= vertices
        if left < 0:
            break
        shared.setdefault(whole, set()).update(traffic.list_read(number, names))
        if names:
            again[number] = names
            ordered = sorted(names, key=traffic.order.__getitem__)
            notes.append(Recomputed(number, tuple(ordered), saved))
    return again, notes


def _find_lost(
    staged: Staged, outside: Mapping[str, str], again: Mapping[int, frozenset[str]]
) -> frozenset[str]:
    """The donated parameters that a stage reads to compute something again, after a result took over their memory."""
    graph, stage = staged.graph, staged.stage
    stages_of = _list_stages(again)
    stays = _find_staying(graph, stage, outside, again, stages_of)
    read_last: dict[str, int] = {}
    for number, names in sorted(again.items()):
        operands = (o for name in names for o in graph[name].operands)
        read_last |= dict.fromkeys((stored_value(graph, o) for o in operands), number)
    lost = set()
    for output, parameter in graph.aliases:
        heir, donated = stored_value(graph, graph.outputs[output]), graph.parameters[parameter]
        moves = heir in stages_of and heir not in stays
        written = stages_of[heir][0] if moves else stage[heir]
        if read_last.get(donated, written) > written:
            lost.add(donated)
    return frozenset(lost)


# ---- what to compute again ---------------------------------------------------------------------------------------


class Traffic:
    """What each stage reads of earlier ones, and what a value's store and load cost."""

    def __init__(
        self,
        graph: Graph,
        stage: Mapping[str, int],
        outside: Mapping[str, str],
        lost: frozenset[str],
        held_price: int = HELD_PRICE,
        stored: frozenset[str] = frozenset(),
    ) -> None:
        self.graph, self.stage, self.outside, self.lost = graph, stage, outside, lost
        self.held_price = held_price
        self.order = {name: number for number, name in enumerate(graph.nodes)}
        read = (o for name in outside for o in graph[name].operands)
        self.kept = {stored_value(graph, name) for name in (*graph.outputs, *read)} | stored
        self.shared: set[str] = set()  # what another part of the stage at hand keeps
        self.here = 0  # the stage at hand
        self.last: dict[str, int] = {}  # the stage that is the last to read a value
        self.members: dict[int, list[str]] = {}  # the ops of a stage that stitch ops compute
        self.read_by: dict[int, set[str]] = {}
        self.readers: dict[str, set[int]] = {}
        for node in graph:
            for operand in node.operands:
                base = stored_value(graph, operand)
                self.last[base] = max(self.last.get(base, 0), stage[node.name])
            if not self.is_stitched(node.name):
                continue
            here = stage[node.name]
            self.members.setdefault(here, []).append(node.name)
            for operand in node.operands:
                if is_embedded(graph, operand) or not self.is_earlier(operand, here):
                    continue
                self.read_by.setdefault(here, set()).add(operand)
                self.readers.setdefault(stored_value(graph, operand), set()).add(here)
        self.full = sorted(self.find_full())
        self.only = self.find_only()

    def list_kept(self, *, embedded: bool = True) -> dict[int, int]:
        """The bytes that are kept for later stages, by the stages behind which they change.

        embedded: repeated numbers count, which no kernel stores.
        """
        grows: Counter[int] = Counter()
        for base, last in self.last.items():
            node = self.graph[base]
            if OPS[node.op].kind is Kind.SOURCE or not isinstance(node.type, ArrayType):
                continue
            if not embedded and is_embedded(self.graph, base):
                continue
            if last > self.stage[base]:
                grows[self.stage[base]] += self.bytes_of(base)
                grows[last] -= self.bytes_of(base)
        alive, kept = 0, {}
        for number in sorted(grows):
            alive += grows[number]
            kept[number] = alive
        return kept

    def find_full(self) -> set[int]:
        """The stages behind which about the most bytes are kept for later ones."""
        kept = self.list_kept()
        most = max(kept.values(), default=0)
        if most < LEAST_PEAK:
            return set()
        return {number for number, size in kept.items() if size >= NEAR_PEAK * most}

    def find_only(self) -> dict[str, int]:
        """Of ops that one later stage alone needs, that stage.  It computes them in the place of their own."""
        only: dict[str, int] = {}
        results = set(self.graph.outputs)
        for node in reversed(list(self.graph)):
            name, here = node.name, self.stage[node.name]
            if name in results or not self.may_repeat(name):
                continue
            users = self.graph.users[name]
            wanted = {only.get(u, self.stage[u]) if self.is_stitched(u) else here for u in users}
            if len(wanted) == 1 and here not in wanted:
                (only[name],) = wanted
        return only

    def is_held(self, since: int) -> bool:
        """Does a value take memory that counts if it is kept for the stage at hand since another one?"""
        if self.here > since + LONG_LIVED:
            return True
        at = bisect_left(self.full, since)
        return at < len(self.full) and self.full[at] < self.here

    def is_stitched(self, name: str) -> bool:
        kind = OPS[self.graph[name].op].kind
        return name not in self.outside and kind is not Kind.SOURCE

    def is_earlier(self, name: str, here: int) -> bool:
        return not self.is_stitched(name) or self.stage[name] < here

    def in_memory(self, name: str) -> bool:
        """Stored, whatever is decided here?"""
        base = stored_value(self.graph, name)
        return base in self.kept or base in self.shared or not self.is_stitched(base)

    def list_read(self, here: int, names: frozenset[str]) -> Iterator[str]:
        """The values in memory that a stage reads which computes `names` again."""
        read = {o for name in names for o in self.graph[name].operands} | self.read_by[here]
        for name in read - names:
            if not is_embedded(self.graph, name) and self.is_earlier(name, here):
                yield stored_value(self.graph, name)

    def bytes_of(self, name: str) -> int:
        return array_of(self.graph[name]).bytes

    def cost(self, name: str) -> int:
        """Bytes for the stage at hand to read a value: its load, and its share of the store.  What lives long costs
        more."""
        size, base = self.bytes_of(name), stored_value(self.graph, name)
        if base in self.lost:
            return size * COPIED_PRICE
        if self.in_memory(name):
            kept_until = self.here if self.graph[base].is_parameter else self.last.get(base, 0)
            return size * self.held_price if self.is_held(kept_until) else size
        moved = size + size // max(len(self.readers.get(base, ())), 1)
        return moved * self.held_price if self.is_held(self.stage[base]) else moved

    def effort(self, node: Node) -> int:
        """The same for computing it: nothing where no other stage does."""
        if self.only.get(node.name) == self.here:
            return 0
        if isinstance(node.attrs, GatherAttrs):  # what is not in the cache is loaded once more
            return 0 if self.is_small_table(node) else self.bytes_of(node.name)
        row = OPS[node.op]
        flops = row.flops if row.kind is Kind.ELEMENTWISE else MOVES.get(node.op, 0)
        return flops * array_of(node).size // FLOPS_PER_BYTE

    def is_small_table(self, gather: Node) -> bool:
        """Is the table read so many times that it stays in the cache?"""
        return TABLE_SHARE * self.bytes_of(gather.operands[0]) <= self.bytes_of(gather.name)

    def may_repeat(self, name: str) -> bool:
        """Is it an op whose result depends on the elements at its own place alone, or finds them in a table?"""
        node = self.graph[name]
        if not self.is_stitched(name) or not isinstance(node.type, ArrayType):
            return False
        if isinstance(node.attrs, GatherAttrs):
            return self.is_small_table(node) or _row_bytes(node, node.attrs) >= LEAST_ROW
        kind = OPS[node.op].kind
        return kind in (Kind.ELEMENTWISE, Kind.BROADCAST) or node.op in MOVES


def _row_bytes(gather: Node, attrs: GatherAttrs) -> int:
    """How many bytes lie side by side in what a gather looks up."""
    last = len(attrs.slice_sizes) - 1
    is_collapsed = last in attrs.collapsed_slice_dims or last in attrs.operand_batching_dims
    if is_collapsed or gather.array.rank - 1 not in attrs.offset_dims:
        return 0
    return attrs.slice_sizes[last] * gather.array.bytes // max(gather.array.size, 1)


def _choose(traffic: Traffic, stage: int, least: int) -> tuple[frozenset[str], int, int]:
    """The ops that a stage computes again, the bytes saved, and the number of vertices searched.

    least: bytes that it must save.
    """
    read = traffic.read_by[stage]
    wanted = [
        name
        for name in sorted(read, key=traffic.order.__getitem__)
        if traffic.may_repeat(name)
        and not traffic.in_memory(name)
        and traffic.bytes_of(name) >= LEAST_BYTES
    ]
    if not wanted:
        return frozenset(), 0, 0
    names, saved, vertices = _cut(traffic, wanted, read - set(wanted), {})
    if efforts := _count_efforts(traffic, stage, names):
        names, saved, more = _cut(traffic, wanted, read - set(wanted), efforts)
        vertices += more
    if saved < least:
        names, saved = frozenset(), 0
    return names, saved, vertices


def _cut(
    traffic: Traffic, wanted: list[str], free: set[str], efforts: Mapping[str, int]
) -> tuple[frozenset[str], int, int]:
    """The ops that are computed again by a minimum cut, the bytes saved, and the number of vertices searched.

    efforts: of ops that a stage evaluates more than once; see _count_efforts.
    """
    network, opened = _build_network(traffic, wanted, free, efforts)
    paid, (_, needed) = nx.minimum_cut(network, _MEMORY, _STAGE, flow_func=boykov_kolmogorov)
    saved = sum(map(traffic.cost, wanted)) - paid
    return frozenset(n for n in opened if (n, False) in needed), saved, len(network)


def _count_efforts(traffic: Traffic, stage: int, names: frozenset[str]) -> dict[str, int]:
    """What it costs a stage, in bytes, to compute ops again that it evaluates more than once.

    An op that would be evaluated too often is stored by the stage, so it costs that and a load.
    """
    if not names:
        return {}
    own = traffic.members[stage]
    evaluations = Evaluations(traffic.graph, {*own, *names}, MOST_EVALUATIONS)
    efforts: dict[str, int] = {}
    for name in sorted({*own, *names}, key=traffic.order.__getitem__, reverse=True):
        if name not in names and _is_stored(traffic, name):
            evaluations.begin(name)
            continue
        times, stored_bytes = evaluations.count(name), 0
        if times > MOST_EVALUATIONS:
            evaluations.begin(name)
            times, stored_bytes = 1, 2 * traffic.bytes_of(name)
        if name in names and (times > 1 or stored_bytes):
            efforts[name] = times * traffic.effort(traffic.graph[name]) + stored_bytes
    return efforts


def _is_stored(traffic: Traffic, name: str) -> bool:
    """Is it surely computed once by its own stage?"""
    node = traffic.graph[name]
    return name in traffic.kept or OPS[node.op].is_reduce or is_running(traffic.graph, name)


def _choose_numbers(traffic: Traffic, stage: int, names: frozenset[str]) -> frozenset[str]:
    """The ops of the numbers, repeated or not, that a stage computes again.  names: what it computes again besides."""
    graph = traffic.graph
    read = {o for name in names for o in graph[name].operands} | traffic.read_by[stage]
    chosen: set[str] = set()
    for name in read - names:
        ops, pending, is_near = set[str](), [name], True
        while pending and is_near:
            value = pending.pop()
            if value in ops or is_embedded(graph, value):
                continue
            if traffic.in_memory(value):
                is_near = stored_value(graph, value) not in traffic.lost
                continue
            ops.add(value)
            pending += graph[value].operands
            is_number = array_of(graph[value]).size == 1 or is_uniform(graph, value)
            is_near = is_number and traffic.may_repeat(value) and len(ops) <= MOST_OPS_OF_NUMBERS
        if is_near:
            chosen |= ops
    return frozenset(chosen)


_MEMORY, _STAGE = "memory", "stage"


def _build_network(
    traffic: Traffic, wanted: list[str], free: set[str], efforts: Mapping[str, int]
) -> tuple[nx.DiGraph, list[str]]:
    """The network, and the names of the values that could be computed again.  Each value has a vertex (name, True),
    behind what it costs to read.  Those that could be computed again have a vertex (name, False) before it.

    wanted: what the stage reads and might compute.  free: what it reads in any case.
    """
    graph = traffic.graph
    network = nx.DiGraph()
    opened: list[str] = []
    # Nothing is worth more than it costs to read: what is left of that, where an op is behind others, at the best.
    left = {name: traffic.cost(name) for name in wanted}
    queue = [(-traffic.order[name], name) for name in wanted]
    heapq.heapify(queue)
    while queue:
        _, name = heapq.heappop(queue)
        node = graph[name]
        price, effort = traffic.cost(name), efforts.get(name, traffic.effort(node))
        is_small = traffic.bytes_of(name) < LEAST_BYTES
        if is_small or effort > left[name] or not traffic.may_repeat(name):
            network.add_edge(_MEMORY, (name, True), capacity=price)
            continue
        opened.append(name)
        network.add_edge((name, False), (name, True), capacity=price)
        network.add_edge(_MEMORY, (name, False), capacity=effort)
        for operand in dict.fromkeys(node.operands):
            if operand in free or is_embedded(graph, operand):
                continue  # costs nothing more
            network.add_edge((operand, True), (name, False))
            if operand not in left:
                heapq.heappush(queue, (-traffic.order[operand], operand))
            worth = min(left[name] - effort, traffic.cost(operand))
            left[operand] = max(left.get(operand, 0), worth)
    for name in wanted:
        network.add_edge((name, True), _STAGE)
    return network, opened


# ---- the new graph -----------------------------------------------------------------------------------------------


def _write(
    graph: Graph,
    stage: Mapping[str, int],
    outside: Mapping[str, str],
    again: Mapping[int, frozenset[str]],
) -> tuple[Graph, Mapping[str, int]]:
    """The graph with an op for each stage that computes a value, and the stages of its ops."""
    stages_of = _list_stages(again)
    stays = _find_staying(graph, stage, outside, again, stages_of)
    own: dict[
        tuple[str, int], str
    ] = {}  # (op, stage) -> the op that this stage computes in its place
    taken = set(graph.nodes)
    for name in graph.nodes:
        for number in stages_of.get(name, ()):
            known = name
            if name in stays or number != stages_of[name][0]:
                known = free_name(f"{name}.again", taken)
                taken.add(known)
            own[name, number] = known
    nodes: dict[str, Node] = {}
    new_stage: dict[str, int] = {}

    def put(node: Node, name: str, number: int) -> None:
        operands = tuple(own.get((o, number), o) for o in node.operands)
        nodes[name] = replace(node, name=name, operands=operands)
        new_stage[name] = number

    for node in graph:
        name = node.name
        if name in outside:
            nodes[name], new_stage[name] = node, stage[name]
            continue
        if name in stays or name not in stages_of:
            put(node, name, stage[name])
        for number in stages_of.get(name, ()):
            put(node, own[name, number], number)
    live = keep_live_nodes(nodes, graph.outputs)
    written = Graph(graph.name, live, graph.parameters, graph.outputs, graph.aliases)
    return written, {name: new_stage[name] for name in live}


def _list_stages(again: Mapping[int, frozenset[str]]) -> dict[str, list[int]]:
    """The stages that compute an op again, the first one first."""
    found: dict[str, list[int]] = {}
    for number, names in sorted(again.items()):
        for name in names:
            found.setdefault(name, []).append(number)
    return found


def _find_staying(
    graph: Graph,
    stage: Mapping[str, int],
    outside: Mapping[str, str],
    again: Mapping[int, frozenset[str]],
    stages_of: Mapping[str, list[int]],
) -> set[str]:
    """The ops that are still needed in their own stage, or stored for one that does not compute them again."""
    nothing: frozenset[str] = frozenset()
    stays = {name for name in graph.outputs if name not in stages_of}
    for node in reversed(list(graph)):
        name = node.name
        for user in graph.users[name]:
            if user in outside:
                stays.add(name)
                continue
            places = list(stages_of.get(user, ()))
            if user in stays or user not in stages_of:
                places.append(stage[user])
            if any(name not in again.get(number, nothing) for number in places):
                stays.add(name)
    return stays
