"""Graph -> Graph: functions of narrow pieces that are put side by side, computed behind the concatenation.

[sin(x), cos(x), sin(2 x), cos(2 x) ...] of three columns each: the threads of a warp are in eleven pieces, and compute
the function of each of them one after the other.  Behind [x, x, 2 x, 2 x ...] they compute two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from astitch.graph.ir import (
    Attrs,
    ConstantAttrs,
    DimensionAttrs,
    DType,
    Graph,
    Literal,
    Node,
)
from astitch.graph.ops import OPS, Cost, Kind
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.simplify import rewrite_graph

NARROW = 16
"""Columns: of a narrower piece a warp has at least three at a time."""

LEAST_GAIN = 2
"""A function is moved where that leaves less than half of the evaluations."""

Function = tuple[str, Attrs]
"""An op of one operand, of its result's type, and the attributes."""


def join_narrow_pieces(graph: Graph, log: Log | None = None) -> Graph:
    """The same function, to the bit.  graph: simplified.  log: hears of every concatenation that is changed."""
    heard: Log = log or (lambda rule, node: None)
    if not any(_find_runs(graph, node) for node in graph):
        return graph

    def change(node: Node, draft: Draft, values: Mapping[str, str]) -> str | None:
        runs = _find_runs(graph, graph[node.name])
        if not runs:
            return None
        heard("narrow_pieces", node.name)
        return _Place(DraftOps(node, draft), values, graph).put(graph[node.name], runs)

    return rewrite_graph(graph, heard, change)


def _find_runs(graph: Graph, node: Node) -> list[tuple[int, int]]:
    """(first, count) of narrow pieces side by side whose functions are worth moving."""
    if not isinstance(node.attrs, DimensionAttrs) or node.attrs.dimension != node.array.rank - 1:
        return []
    runs, start = [], 0
    for narrow, group in groupby(graph[o].shape[-1] < NARROW for o in node.operands):
        count = len(list(group))
        functions = [_find_function(graph, o) for o in node.operands[start : start + count]]
        moved = [f for f in functions if f is not None]
        if narrow and len(moved) >= LEAST_GAIN * len(set(moved)) + 1:
            runs.append((start, count))
        start += count
    return runs


def _look_through(graph: Graph, name: str) -> Node:
    """What the value is but for its shape."""
    node = graph[name]
    while OPS[node.op].is_view:
        node = graph[node.operands[0]]
    return node


def _find_function(graph: Graph, name: str) -> Function | None:
    """The expensive function of one array that the value is."""
    node = _look_through(graph, name)
    row = OPS[node.op]
    if row.kind is not Kind.ELEMENTWISE or row.cost is not Cost.HEAVY or len(node.operands) != 1:
        return None
    return node.op, node.attrs


class _Place:
    """Where one concatenation is written.  values: what the graph's values are called in the draft."""

    def __init__(self, ops: DraftOps, values: Mapping[str, str], graph: Graph) -> None:
        self.ops, self.values, self.graph = ops, values, graph

    def put(self, node: Node, runs: Sequence[tuple[int, int]]) -> str:
        pieces, at = list[str](), 0
        for start, count in runs:
            pieces += [self.values[o] for o in node.operands[at:start]]
            at = start + count
            pieces.append(self._put_run(node, node.operands[start:at]))
        pieces += [self.values[o] for o in node.operands[at:]]
        return self.ops.concatenate(pieces, node.array.rank - 1)

    def _put_run(self, node: Node, names: Sequence[str]) -> str:
        """The functions of what is put side by side, each where its pieces are."""
        graph = self.graph
        functions = [_find_function(graph, name) for name in names]
        inner = []
        for name, function in zip(names, functions, strict=True):
            if function is None:
                inner.append(self.values[name])
            else:
                operand = self.values[_look_through(graph, name).operands[0]]
                inner.append(self.ops.reshape(operand, graph[name].shape))
        whole = self.ops.concatenate(inner, node.array.rank - 1)
        shape, result = self.ops.draft[whole].shape, whole
        for function in dict.fromkeys(f for f in functions if f is not None):
            op, attrs = function
            places = [
                np.full(graph[name].shape[-1], function == f)
                for name, f in zip(names, functions, strict=True)
            ]
            mask = ConstantAttrs(Literal.of(np.concatenate(places)))
            row = self.ops.add("constant", DType.PRED, shape[-1:], (), mask)
            spread = self.ops.broadcast(row, shape, (len(shape) - 1,))
            computed = self.ops.add(op, node.dtype, shape, (whole,), attrs)
            result = self.ops.select(spread, computed, result)
        return result
