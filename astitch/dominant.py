"""Scope -> Groups: dominants, sub-dominants and the Local ops around them (paper section 4.2, step S1).

Candidates are the reduces, the heavy element-wise ops read through a broadcast, the outputs, and ops that
would be recomputed at too many different indices.  Everything else is Local: it lives in the registers of
the thread that needs it.  Candidates that connect through Local ops (in either direction) share a group;
one of them, a reduce if there is one, is the dominant and its thread mapping is the group's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from astitch.device.gpu import ACCESS_BYTES
from astitch.graph.dimensions import array_of, is_embedded, is_uniform
from astitch.graph.evaluations import Evaluations
from astitch.graph.ir import DimensionAttrs, DimensionsAttrs, Graph, Node
from astitch.graph.ops import OPS, Cost, Kind
from astitch.graph.running import is_running
from astitch.graph.storage import stored_value
from astitch.stitch_scope import Scope

MAX_RECOMPUTED_OPS = 96
"""Local ops above a value x the indices at which it is needed: beyond this the value is buffered."""

MAX_DIVERGING_OPS = 32
"""The same where a warp goes through several branches for it, of an interleaving: most of its threads wait in each.
A wavelet transform of five levels and its inverse project 156 us with 32, 187 with 48 to 96 (H100, f32 64x262144)."""

REPEATED = 16
"""A value that varies along a row and is behind a heavy op is kept if it is repeated so often: the weights of a softmax
that weighs vectors.  A row's own statistics are not, since a thread computes them once for its row."""


MOST_PIECES, LEAST_PIECE = 64, 1 << 14
"""Pieces of an output that are written where they lie, at most, and the least elements of each: shorter ones have few
tasks, and a loop over the whole has as many as all of them."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value that is computed once and kept; `reason` says why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A value that lies in an output of the kernel, from its element `start` on, row by row.  whole: that output."""

    name: str
    whole: str
    start: int


@dataclass(frozen=True, slots=True)
class Group:
    """dominant: the op whose thread mapping the group takes.  sub_dominants: the other candidates of the group,
    in topological order.  members: all ops of the group, candidates included."""

    dominant: str
    sub_dominants: tuple[str, ...]
    members: tuple[str, ...]

    @property
    def roots(self) -> tuple[str, ...]:
        return (self.dominant, *self.sub_dominants)


@dataclass(frozen=True, slots=True)
class Groups:
    """pieces: the candidates that are pieces of outputs, by name."""

    scope: Scope
    candidates: tuple[Candidate, ...]
    groups: tuple[Group, ...]
    pieces: Mapping[str, Piece] = field(default_factory=dict)

    def list_returned(self, graph: Graph) -> set[str]:
        """The values that lie in memory behind the kernel: its outputs, or the pieces of those."""
        wholes = {piece.whole for piece in self.pieces.values()}
        return {stored_value(graph, o) for o in self.scope.outputs} - wholes | {*self.pieces}

    def __str__(self) -> str:
        lines = [f"groups of {self.scope.name}:"]
        for group in self.groups:
            subs = ", ".join("%" + s for s in group.sub_dominants) or "none"
            lines.append(
                f"  dominant %{group.dominant}, sub-dominants {subs}, {len(group.members)} ops"
            )
        lines += [f"  %{c.name}: {c.reason}" for c in self.candidates]
        return "\n".join(lines)


def _is_reduce_result(graph: Graph, name: str) -> bool:
    node = graph[name]
    kept = OPS[node.op].is_reduce or is_running(graph, name)
    return kept or OPS[node.op].kind is Kind.PROJECTION


def _read_through_broadcast(graph: Graph, inside: set[str], name: str, least: int = 2) -> bool:
    """Does some reader repeat the value along new dimensions, at least so often?

    A reshape or a transpose in between changes nothing.
    """
    stack = [name]
    while stack:
        current = stack.pop()
        for user in graph.users[current]:
            if user not in inside:
                continue
            grows = array_of(graph[user]).size >= array_of(graph[name]).size * least
            row = OPS[graph[user].op]
            if row.is_broadcast and grows:
                return True
            if row.is_view or row.is_broadcast or row.permutes:
                stack.append(user)
    return False


def _local_ops_above(
    graph: Graph, inside: set[str], kept: Mapping[str, str], name: str, limit: int
) -> int:
    """How many ops a thread computes to get `name` from what is kept or in memory, counted up to `limit`."""
    seen = {name}
    stack = [name]
    while stack and len(seen) < limit:
        for operand in graph[stack.pop()].operands:
            if operand in inside and operand not in kept and operand not in seen:
                seen.add(operand)
                stack.append(operand)
    return sum(OPS[graph[n].op].kind not in (Kind.SOURCE, Kind.INDEX, Kind.BROADCAST) for n in seen)


def _find_repeated(graph: Graph, scope: Scope, inside: set[str]) -> dict[str, str]:
    """Element-wise values of which a thread would compute a heavy op again for each place where they are repeated."""
    found: dict[str, str] = {}
    along: set[str] = set()  # vary along a dimension that a row's statistic is repeated along
    behind: set[str] = set()  # those of them that need a heavy op
    for name in scope.members:
        node, row = graph[name], OPS[graph[name].op]
        if row.is_broadcast and node.array.size > graph[node.operands[0]].array.size > 1:
            along.add(name)
        elif row.kind is Kind.ELEMENTWISE and node.array.size > 1:
            heavy = row.cost is Cost.HEAVY
            if not along.isdisjoint(node.operands):
                along.add(name)
            if heavy and _read_through_broadcast(graph, inside, name):
                found[name] = "heavy element-wise op read through a broadcast"
            elif (heavy or not behind.isdisjoint(node.operands)) and name in along:
                if _read_through_broadcast(graph, inside, name, REPEATED):
                    found[name] = "behind a heavy element-wise op, read through a broadcast"
                else:
                    behind.add(name)
    return found


def find_pieces(graph: Graph, scope: Scope) -> dict[str, Piece]:
    """The values that are put behind each other in outputs of the scope, and can be written where they will lie.

    So threads that compute an element of one compute that of all others.  Threads of the whole would compute what these
    share once for each, or read it from scratch behind a barrier of the grid.
    """
    inside = set(scope.members)
    outputs = dict.fromkeys(stored_value(graph, output) for output in scope.outputs)
    found: dict[str, Piece] = {}
    for whole in outputs:  # in their order: of two that have a piece in common the first gets it
        if whole not in inside or _is_read(graph, whole, inside):
            continue
        pieces = _list_pieces(graph, graph[whole], inside)
        names = {piece.name for piece in pieces}
        if len(names) == len(pieces) and names.isdisjoint(outputs.keys() | found.keys()):
            found |= {piece.name: piece for piece in pieces}
    return found


def _is_read(graph: Graph, name: str, inside: Collection[str]) -> bool:
    """Does one of the ops read a value or a view of it?"""
    return any(
        _is_read(graph, user, inside) if OPS[graph[user].op].is_view else user in inside
        for user in graph.users[name]
    )


def _list_pieces(graph: Graph, whole: Node, inside: set[str]) -> list[Piece]:
    """The pieces of a concatenation that lie behind each other; none where they do not, or another op computes them."""
    if not isinstance(whole.attrs, DimensionAttrs):
        return []
    axis = whole.attrs.dimension
    if math.prod(whole.shape[:axis]) != 1 or not 1 < len(whole.operands) <= MOST_PIECES:
        return []
    pieces = []
    start = 0
    for operand in whole.operands:
        name = stored_value(graph, operand)
        array = graph[operand].array
        computed = name in inside and not is_embedded(graph, name)
        if not computed or _is_reduce_result(graph, name) or array.size < LEAST_PIECE:
            return []
        if start * array.dtype.bytes % ACCESS_BYTES or array != graph[whole.operands[0]].array:
            return []
        pieces.append(Piece(name, whole.name, start))
        start += array.size
    return pieces


def find_candidates(
    graph: Graph, scope: Scope, pieces: Mapping[str, Piece] = MappingProxyType({})
) -> tuple[Candidate, ...]:
    """Every value that deserves a buffer, in topological order, each with its reason.  pieces: see find_pieces."""
    inside = set(scope.members)
    kept: dict[str, str] = {}
    for name in scope.members:
        if OPS[graph[name].op].is_reduce:
            kept[name] = "reduce"
        elif is_running(graph, name):
            kept[name] = "running reduction"
    kept |= _find_repeated(graph, scope, inside)
    wholes = {piece.whole for piece in pieces.values()}
    for output in scope.outputs:
        stored = stored_value(graph, output)
        if stored in inside and stored not in wholes and not _is_reduce_result(graph, stored):
            kept.setdefault(stored, "output of the stitch op")
    for piece in pieces.values():
        kept.setdefault(piece.name, f"a piece of the output %{piece.whole}")
    evaluations = Evaluations(graph, inside, MAX_RECOMPUTED_OPS)
    for name in reversed(scope.members):
        is_kept = name in kept or _is_reduce_result(graph, name)
        if is_kept or array_of(graph[name]).size == 1:
            evaluations.begin(name)
            continue
        count = evaluations.count(name)
        if count > 1 and OPS[graph[name].op].kind is Kind.ELEMENTWISE:
            above = _local_ops_above(graph, inside, kept, name, MAX_RECOMPUTED_OPS)
            most = MAX_DIVERGING_OPS if evaluations.diverges(name) else MAX_RECOMPUTED_OPS
            if count * above > most:
                kept[name] = f"read at {count} indices, {above} ops would be recomputed for each"
                evaluations.begin(name)
    return tuple(Candidate(name, kept[name]) for name in scope.members if name in kept)


def choose_dominants(graph: Graph, scope: Scope, *, in_pieces: bool = True) -> Groups:
    """Dominant merging: candidates connected through Local ops form a group with one dominant.

    in_pieces: are outputs written in pieces that may be (find_pieces)?
    """
    inside = set(scope.members)
    pieces = find_pieces(graph, scope) if in_pieces else {}
    candidates = find_candidates(graph, scope, pieces)
    kept = {c.name for c in candidates}
    parent = {name: name for name in scope.members}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    def grows(producer: str, consumer: str) -> bool:
        larger = array_of(graph[consumer]).size > array_of(graph[producer]).size
        return OPS[graph[consumer].op].is_broadcast and larger

    reader: dict[str, str] = {}
    for name in scope.members:
        for operand in graph[name].operands:
            # A buffered value is the border of its group where it is repeated; elsewhere the group goes on.
            border = stored_value(graph, operand) in kept and grows(operand, name)
            if is_uniform(graph, operand) or is_embedded(graph, operand):
                continue
            if operand in inside:
                if not border:
                    parent[root(operand)] = root(name)
            # Two readers of one input connect as well: it is then loaded once.
            elif array_of(graph[operand]).size > 1 and not grows(operand, name):
                parent[root(reader.setdefault(operand, name))] = root(name)
    order = {name: number for number, name in enumerate(scope.members)}
    members: dict[str, list[str]] = {}
    for name in scope.members:
        members.setdefault(root(name), []).append(name)

    def weight(name: str) -> tuple[bool, int, int, int]:
        """A reduce before an element-wise op, the most elements first, rows before columns, then the earliest.

        A row mapping also serves column sums (partials in registers), not the other way round; that of a running
        reduction serves others along the same dimension.
        """
        node = graph[name]
        if is_running(graph, name):
            return True, array_of(node).size, 2, -order[name]
        if not isinstance(node.attrs, DimensionsAttrs) or not OPS[node.op].is_reduce:
            return False, array_of(node).size, 0, -order[name]
        source = array_of(graph[node.operands[0]])
        minor = max((d for d, extent in enumerate(source.shape) if extent != 1), default=-1)
        return True, source.size, int(minor in node.attrs.dimensions), -order[name]

    groups = []
    for names in members.values():
        roots = [n for n in names if n in kept]
        if not roots:
            continue  # only aliases (reshapes of inputs): nothing to compute
        dominant = max(roots, key=weight)
        groups.append(Group(dominant, tuple(r for r in roots if r != dominant), tuple(names)))
    groups.sort(key=lambda g: min(order[r] for r in g.roots))
    return Groups(scope, candidates, tuple(groups), pieces)
