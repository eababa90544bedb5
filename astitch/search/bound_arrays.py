"""Scopes -> Scopes: no stitch op has more arrays than XLA passes to a kernel.

A step of hundreds of tensors is one stitch op, since all of them read a learning rate.  It is cut into pieces that have
no large value in common, and the pieces are put together again as far as their arrays can be passed.  What joins the
parts is computed again in each, or passed from one to the next.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from astitch.device.gpu import Gpu
from astitch.graph.ir import Graph
from astitch.graph.storage import storage_name
from astitch.search.bound_memory import cut_scope
from astitch.search.fusion_explorer import make_parts, replace_scope
from astitch.search.patterns import FusionGraph
from astitch.stitch_scope import Refusal, Scope, Scopes
from astitch.tiling.space import ceil_div

MOST_ARRAYS = 900
"""Operands and results of a kernel.  XLA passes 1,024 pointers, tokens and starts of slices among them."""


def bound_arrays(scopes: Scopes, gpu: Gpu, most: int = MOST_ARRAYS) -> Scopes:
    """The scopes, those of too many arrays in parts."""
    for scope in scopes.scopes:
        arrays = count_arrays(scopes.graph, scope)
        if arrays > most:
            scopes = _cut(scopes, scope, gpu, ceil_div(arrays, ceil_div(arrays, most)), most)
    return scopes


def count_arrays(graph: Graph, scope: Scope) -> int:
    """The operands and the results of a scope."""
    inputs, outputs = (
        {storage_name(graph, name) for name in names} for names in (scope.inputs, scope.outputs)
    )
    return len(inputs) + len(outputs)


def _cut(scopes: Scopes, scope: Scope, gpu: Gpu, even: int, most: int) -> Scopes:
    """The scopes with one of them in parts of about `even` arrays."""
    graph = scopes.graph
    pieces = cut_scope(graph, scope, gpu)
    if any(len(_list_arrays(pieces, piece)) > most for piece in range(len(pieces))):
        pieces = cut_scope(graph, scope, gpu, by_results=True)
    cover = [
        [name for piece in group for name in pieces.members[piece]]
        for group in _group(pieces, even)
    ]
    if len(cover) < 2:
        return scopes
    parts = make_parts(graph, scope, cover)
    why = f"one kernel for all of {scope.name} would have more than {most} arrays"
    refusals = tuple(
        Refusal(one.members[-1], other.members[0], why, "without bound_arrays")
        for one, other in itertools.pairwise(parts.scopes)
    )
    return replace_scope(scopes, scope.name, replace(parts, refusals=refusals))


def _list_arrays(pieces: FusionGraph, piece: int) -> set[str]:
    """What a piece reads, and what it leaves for others."""
    read = {pieces.values[number].buffer for number in pieces.reads[piece]}
    left = (pieces.values[number] for number in pieces.makes[piece])
    return read | {v.buffer for v in left if v.escapes or v.readers & ~(1 << piece)}


def _group(pieces: FusionGraph, most: int) -> list[range]:
    """The pieces in order, as many together as have so many arrays."""
    groups: list[range] = []
    start = 0
    while start < len(pieces):
        groups.append(range(start, _find_end(pieces, start, most)))
        start = groups[-1].stop
    return groups


def _find_end(pieces: FusionGraph, start: int, most: int) -> int:
    """The last end of a group of pieces that have at most so many arrays; one piece may have more."""
    inside, end = 0, start + 1
    read: set[str] = set()
    left: set[str] = set()  # for pieces that are not in the group yet, or for others
    for piece in range(start, len(pieces)):
        inside |= 1 << piece
        for number in (*pieces.makes[piece], *pieces.reads[piece]):
            value = pieces.values[number]
            if value.producer < start:
                read.add(value.buffer)
            elif value.escapes or value.readers & ~inside:
                left.add(value.buffer)
            else:
                left.discard(value.buffer)
        if len(read) > most:
            break
        if len(read) + len(left) <= most:
            end = piece + 1
    return max(end, start + 1)
