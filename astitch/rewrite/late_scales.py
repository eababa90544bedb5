"""Graph -> Graph: what scales the weights of a product of few rows scales its result, or its rows.

    x @ (w * s[None, :])  ->  (x @ w) * s[None, :]
    x @ (w * s[:, None])  ->  (x * s[None, :]) @ w

XLA reads weights of other types within a product, but what is multiplied it writes to memory first.  The rows and the
result are smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from astitch.graph.ir import ArrayType, DotAttrs, DType, Graph, Node
from astitch.graph.matmul import free_dimensions
from astitch.graph.ops import OPS
from astitch.rewrite.draft import Draft, Log, ascends
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.product_weights import (
    BATCH,
    COLUMN,
    DEPTH,
    Part,
    Parts,
    Sides,
    Stored,
    count_along,
    lies_in_memory,
    merge_parts,
    read_stored,
    step_back,
    take_apart,
    tell_sides,
    without_ones,
)
from astitch.rewrite.simplify import rewrite_graph

MOST_ROWS = 64
"""With more, a product takes longer than its weights take to be written."""

LEAST_NUMBERS = 1 << 18
"""Of the weights.  Fewer stay in the cache."""

SMALLER = 4
"""The rows, and the result, have at most so much less numbers than the weights."""


@dataclass(frozen=True, slots=True)
class _Scaled:
    """weights: what is scaled.  moves: the ops between that and the product, those next to the product first.
    label: COLUMN or DEPTH, along which the scales differ.  dimensions: of the result, or of x, which they have."""

    sides: Sides
    weights: str
    scales: Stored
    moves: tuple[Node, ...]
    label: str
    dimensions: tuple[int, ...]


def scale_late(graph: Graph, log: Log | None = None) -> Graph:
    """The same function but for rounding: the weights are not rounded after they are scaled.

    graph: simplified.  log: hears of every product whose scales are moved.
    """
    heard: Log = log or (lambda rule, node: None)
    found = {node.name: f for node in graph if (f := _find(graph, node))}
    if not found:
        return graph

    def write(node: Node, draft: Draft, values: Mapping[str, str]) -> str | None:
        if node.name not in found:
            return None
        heard("scale_late", node.name)
        return _put(DraftOps(node, draft), found[node.name], values)

    return rewrite_graph(graph, heard, write)


def _find(graph: Graph, node: Node) -> _Scaled | None:
    sides = tell_sides(graph, node)
    if sides is None or sides.rows > MOST_ROWS:
        return None
    name, parts = node.operands[sides.weights], sides.parts
    size, x = graph[name].array.size, graph[node.operands[1 - sides.weights]]
    if size < LEAST_NUMBERS or SMALLER * max(node.array.size, x.array.size) > size:
        return None
    moves: list[Node] = []
    while graph[name].op != "multiply":
        moved = _move(graph, graph[name], parts)
        if moved is None:
            return None
        moves.append(graph[name])
        name, parts = graph[name].operands[0], moved
    if not _is_for_one(graph, name):
        return None
    return _take(graph, node, sides, name, parts, tuple(moves))


def _move(graph: Graph, node: Node, parts: Parts) -> Parts | None:
    """The parts of what is only moved or converted, for one reader; nothing of integers is scaled."""
    row = OPS.get(node.opcode)
    moves = row is not None and (row.is_view or row.permutes or row.is_conversion)
    if not moves or not _is_for_one(graph, node.name):
        return None
    before = graph[node.operands[0]].type
    if not isinstance(before, ArrayType) or not before.dtype.is_float:
        return None
    return step_back(graph, node, parts)


def _is_for_one(graph: Graph, name: str) -> bool:
    return len(graph.users[name]) == 1 and name not in graph.outputs


def _take(
    graph: Graph, node: Node, sides: Sides, name: str, parts: Parts, moves: tuple[Node, ...]
) -> _Scaled | None:
    taken = take_apart(graph, graph[name], parts)
    if taken is None:
        return None
    weights, scales = taken
    stored = read_stored(graph, weights, parts)
    if stored is None or not scales.dtype.is_float:
        return None
    if not lies_in_memory(graph, stored.name):
        return None  # the kernel that computes it scales it too
    labels = {part.label for part in scales.parts} - {BATCH}
    if len(labels) > 1:
        return None
    label = labels.pop() if labels else COLUMN
    factor = graph[node.operands[0]].dtype
    if label == DEPTH and factor is DType.F16:
        return None  # small scales lie beyond its range
    dimensions = _find_dimensions(graph, node, sides, scales, label)
    if dimensions is None:
        return None
    return _Scaled(sides, weights, scales, moves, label, dimensions)


def _find_dimensions(
    graph: Graph, node: Node, sides: Sides, scales: Stored, label: str
) -> tuple[int, ...] | None:
    """Of the result, or of x, those that scales have; None where scales are for groups, or lie in another order."""
    a = node.attrs
    assert isinstance(a, DotAttrs)
    batches = (a.lhs_batch, a.rhs_batch)
    contracted = (a.lhs_contracting, a.rhs_contracting)
    w, x = sides.weights, 1 - sides.weights
    own = {part.label for part in scales.parts}
    whole = [
        Part(each, count_along(sides.parts, each), 1) for each in (BATCH, label) if each in own
    ]
    if merge_parts(scales.parts) != without_ones(whole):
        return None
    found: list[int] = []
    if label == COLUMN:
        free = [
            len(
                free_dimensions(
                    graph[node.operands[side]].array.rank, batches[side], contracted[side]
                )
            )
            for side in (0, 1)
        ]
        first = len(batches[0]) + (free[0] if w else 0)
        of_label = list(range(first, first + free[w]))
        of_batch = list(range(len(batches[0])))
    else:
        pairs = sorted(zip(contracted[w], contracted[x], strict=True))
        of_label = [pair[1] for pair in pairs]
        of_batch = list(batches[x])
    found += of_batch if BATCH in own else []
    found += of_label if label in own else []
    return tuple(found) if ascends(found) else None


def _put(ops: DraftOps, found: _Scaled, values: Mapping[str, str]) -> str:
    node, draft = ops.origin, ops.draft
    w, x = found.sides.weights, 1 - found.sides.weights
    operands = [values[name] for name in node.operands]
    factor = draft[operands[x]].dtype
    weights = values[found.weights]
    for move in reversed(found.moves):
        if OPS[move.op].is_conversion:
            weights = ops.convert(weights, move.dtype)
        else:
            weights = ops.add(move.op, draft[weights].dtype, move.shape, (weights,), move.attrs)
    operands[w] = ops.convert(weights, factor)
    if found.label == DEPTH:
        operands[x] = ops.convert(_scale(ops, found, values, operands[x]), factor)
        return ops.add("dot", node.dtype, node.shape, tuple(operands), node.attrs)
    made = ops.add("dot", DType.F32, node.shape, tuple(operands), node.attrs)
    return ops.convert(_scale(ops, found, values, made), node.dtype)


def _scale(ops: DraftOps, found: _Scaled, values: Mapping[str, str], value: str) -> str:
    """In f32."""
    shape = ops.draft[value].shape
    scales = ops.convert(values[found.scales.value], DType.F32)
    scales = ops.reshape(scales, [shape[d] for d in found.dimensions])
    spread = ops.broadcast(scales, shape, found.dimensions)
    return ops.both("multiply", ops.convert(value, DType.F32), spread)
