"""Index propagation: (op, index of its result) -> what it reads, at which index, under which guard.

This is the one place that knows how an op maps result indices to operand indices (paper section 4.3; PAI V2's
index cache).  The scheme choice walks it symbolically, the lowering walks it to emit code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from astitch.graph import index as ix
from astitch.graph.index import Linear, Symbol
from astitch.graph.ir import (
    BroadcastAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DynamicSliceAttrs,
    GatherAttrs,
    Graph,
    NoAttrs,
    Node,
    PadAttrs,
    SliceAttrs,
    TransposeAttrs,
)

Index = tuple[Linear, ...]


@dataclass(frozen=True, slots=True)
class Within:
    """low <= form < high."""

    form: Linear
    low: int
    high: int

    def verdict(self) -> bool | None:
        """True or False when the bounds of the form decide it, else None."""
        least, most = ix.bounds(self.form)
        if self.low <= least and most < self.high:
            return True
        return False if most < self.low or least >= self.high else None


@dataclass(frozen=True, slots=True)
class Divisible:
    """form % by == 0, for a form that is not negative."""

    form: Linear
    by: int

    def verdict(self) -> bool | None:
        rest = ix.modulo(self.form, self.by)
        return rest.constant == 0 if rest.is_constant else None


Guard = Within | Divisible


@dataclass(frozen=True, slots=True)
class Read:
    """operand is needed at index."""

    operand: str
    index: Index


@dataclass(frozen=True, slots=True)
class Dynamic:
    """symbol = the value of operand at index, clamped to [0, symbol.extent - 1]: a start index known at run time."""

    symbol: Symbol
    operand: str
    index: Index


@dataclass(frozen=True, slots=True)
class Choice:
    """If all guards hold, the value is computed from these reads."""

    guards: tuple[Guard, ...]
    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """What a value at an index is made of.  The first choice whose guards hold applies; the last has none."""

    choices: tuple[Choice, ...]
    dynamics: tuple[Dynamic, ...] = ()


def _forward(operand: str, index: Iterable[Linear]) -> Access:
    return Access((Choice((), (Read(operand, tuple(index)),)),))


def _decide(choices: Iterable[Choice], dynamics: tuple[Dynamic, ...] = ()) -> Access:
    """Drop guards that always hold and choices that never apply."""
    kept = []
    for choice in choices:
        verdicts = [(guard, guard.verdict()) for guard in choice.guards]
        if any(v is False for _, v in verdicts):
            continue
        kept.append(Choice(tuple(g for g, v in verdicts if v is None), choice.reads))
        if not kept[-1].guards:
            break
    return Access(tuple(kept), dynamics)


def _dynamic_starts(
    node: Node, operands: tuple[str, ...], rooms: Iterable[int]
) -> tuple[Dynamic, ...]:
    return tuple(
        Dynamic(Symbol(f"{node.name}.start{d}", room + 1), operand, ())
        for d, (operand, room) in enumerate(zip(operands, rooms, strict=True))
    )


def _pad(graph: Graph, node: Node, attrs: PadAttrs, index: Index) -> Access:
    source = graph[node.operands[0]].shape
    guards: list[Guard] = []
    inner: list[Linear] = []
    for position, low, interior, extent in zip(
        index, attrs.low, attrs.interior, source, strict=True
    ):
        moved = ix.offset(position, -low)
        step = interior + 1
        guards.append(Within(moved, 0, max((extent - 1) * step + 1, 0)))
        if step > 1:
            guards.append(Divisible(moved, step))
        inner.append(ix.divide(moved, step))
    return _decide(
        (
            Choice(tuple(guards), (Read(node.operands[0], tuple(inner)),)),
            Choice((), (Read(node.operands[1], ()),)),
        )
    )


def _concatenate(graph: Graph, node: Node, dimension: int, index: Index) -> Access:
    choices, start = [], 0
    for operand in node.operands:
        extent = graph[operand].shape[dimension]
        moved = ix.offset(index[dimension], -start)
        inner = (*index[:dimension], moved, *index[dimension + 1 :])
        if extent:
            choices.append(Choice((Within(moved, 0, extent),), (Read(operand, inner),)))
        start += extent
    return _decide((*choices[:-1], Choice((), choices[-1].reads)))


def _dynamic_update(graph: Graph, node: Node, index: Index) -> Access:
    source, update = graph[node.operands[0]].shape, graph[node.operands[1]].shape
    rooms = [a - b for a, b in zip(source, update, strict=True)]
    dynamics = _dynamic_starts(node, node.operands[2:], rooms)
    moved = tuple(
        ix.add(position, ix.scale(ix.of_symbol(d.symbol), -1)) if d.symbol.extent > 1 else position
        for position, d in zip(index, dynamics, strict=True)
    )
    guards = tuple(Within(m, 0, extent) for m, extent in zip(moved, update, strict=True))
    return _decide(
        (
            Choice(guards, (Read(node.operands[1], moved),)),
            Choice((), (Read(node.operands[0], index),)),
        ),
        tuple(d for d in dynamics if d.symbol.extent > 1),
    )


def _gather(graph: Graph, node: Node, attrs: GatherAttrs, index: Index) -> Access:
    operand, starts = graph[node.operands[0]], graph[node.operands[1]]
    batch = [index[d] for d in range(len(index)) if d not in attrs.offset_dims]
    gone = (*attrs.collapsed_slice_dims, *attrs.operand_batching_dims)
    windows = iter(attrs.offset_dims)
    position = [ix.ZERO if d in gone else index[next(windows)] for d in range(operand.array.rank)]
    vector_dim = attrs.index_vector_dim
    for here, there in zip(
        attrs.operand_batching_dims, attrs.start_indices_batching_dims, strict=True
    ):
        position[here] = batch[there if there < vector_dim else there - 1]
    dynamics = []
    where = ",".join(map(str, batch))
    for k, d in enumerate(attrs.start_index_map):
        at = (
            tuple(batch)
            if vector_dim == starts.array.rank
            else (*batch[:vector_dim], ix.constant(k), *batch[vector_dim:])
        )
        room = operand.shape[d] - attrs.slice_sizes[d]
        dynamic = Dynamic(Symbol(f"{node.name}.start{k}[{where}]", room + 1), node.operands[1], at)
        if room:
            dynamics.append(dynamic)
            position[d] = ix.add(position[d], ix.of_symbol(dynamic.symbol))
    return Access((Choice((), (Read(node.operands[0], tuple(position)),)),), tuple(dynamics))


def _bitcast_reads(graph: Graph, node: Node, index: Index) -> tuple[Read, ...]:
    """The operand at the same index; the element that a narrower one is a part of; or all parts of a wider one."""
    (operand,) = node.operands
    parts = node.dtype.bytes // graph[operand].dtype.bytes
    if parts > 1:
        return tuple(Read(operand, (*index, ix.constant(part))) for part in range(parts))
    return (Read(operand, index[: graph[operand].array.rank]),)


CHOOSING = frozenset({"pad", "concatenate", "dynamic-update-slice"})
"""Ops whose elements come from one operand or another, by their index."""


def access(graph: Graph, node: Node, index: Index) -> Access:
    """What the value of `node` at `index` is computed from.  Not for sources, reduces and projections."""
    if isinstance(node.attrs, NoAttrs) and node.op not in _MOVING:
        return _at_same_index(graph, node, index)
    match node.attrs:
        case BroadcastAttrs(dimensions):
            source = graph[node.operands[0]].shape
            return _forward(
                node.operands[0],
                (index[r] if source[d] != 1 else ix.ZERO for d, r in enumerate(dimensions)),
            )
        case TransposeAttrs(permutation):
            inner: list[Linear] = [ix.ZERO] * len(permutation)
            for r, d in enumerate(permutation):
                inner[d] = index[r]
            return _forward(node.operands[0], inner)
        case SliceAttrs(starts, _, strides):
            return _forward(
                node.operands[0],
                (
                    ix.offset(ix.scale(i, s), a)
                    for i, a, s in zip(index, starts, strides, strict=True)
                ),
            )
        case PadAttrs() as pad:
            return _pad(graph, node, pad, index)
        case DimensionAttrs(dimension) if node.op == "concatenate":
            return _concatenate(graph, node, dimension, index)
        case DimensionsAttrs(dimensions) if node.op == "reverse":
            return _forward(
                node.operands[0],
                (
                    ix.offset(ix.scale(i, -1), extent - 1) if d in dimensions else i
                    for d, (i, extent) in enumerate(zip(index, node.shape, strict=True))
                ),
            )
        case DynamicSliceAttrs(sizes):
            source = graph[node.operands[0]].shape
            rooms = [a - b for a, b in zip(source, sizes, strict=True)]
            dynamics = _dynamic_starts(node, node.operands[1:], rooms)
            moved = (
                ix.add(i, ix.of_symbol(d.symbol)) if d.symbol.extent > 1 else i
                for i, d in zip(index, dynamics, strict=True)
            )
            plain = _forward(node.operands[0], moved)
            return Access(plain.choices, tuple(d for d in dynamics if d.symbol.extent > 1))
        case GatherAttrs() as gather:
            return _gather(graph, node, gather, index)
    if node.op == "dynamic-update-slice":
        return _dynamic_update(graph, node, index)
    if node.op == "reshape":
        source = graph[node.operands[0]].shape
        return _forward(node.operands[0], ix.delinearize(ix.linearize(index, node.shape), source))
    if node.op == "bitcast-convert":
        return Access((Choice((), _bitcast_reads(graph, node, index)),))
    return _at_same_index(graph, node, index)


_MOVING = frozenset({"dynamic-update-slice", "reshape", "bitcast-convert"})
"""Ops that move elements and whose attributes do not say so."""


def _at_same_index(graph: Graph, node: Node, index: Index) -> Access:
    """Element-wise; clamp's bounds and select's predicate may be scalars."""
    nodes, rank = graph.nodes, len(index)
    reads = [Read(o, index if nodes[o].array.rank == rank else ()) for o in node.operands]
    return Access((Choice((), tuple(reads)),))


def walk_reads(
    graph: Graph,
    starts: Iterable[Read],
    stop: Callable[[str], bool],
    visit: Callable[[Read, bool], None],
) -> None:
    """Depth-first over everything that the starts need; `visit(read, stopped)` once for each (node, index).

    `stop(name)` says which values are read rather than recomputed.
    """
    seen: set[Read] = set()
    stack = list(starts)
    while stack:
        read = stack.pop()
        if read in seen:
            continue
        seen.add(read)
        halted = stop(read.operand)
        visit(read, halted)
        if halted:
            continue
        found = access(graph, graph[read.operand], read.index)
        stack.extend(Read(d.operand, d.index) for d in found.dynamics)
        stack.extend(r for choice in found.choices for r in choice.reads)
