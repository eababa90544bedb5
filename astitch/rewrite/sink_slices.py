"""Graph -> Graph: what a slice alone reads is computed only where the slice reads it.

`softmax((x @ w)[:, -1])` wants the logits of the last word.  XLA multiplies for all words, and so for the whole last
layer.  Each value has the part that its readers want, where they agree; it is computed from the parts of its operands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import TypeAlias

from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    DimensionsAttrs,
    DotAttrs,
    Graph,
    Node,
    SliceAttrs,
    TransposeAttrs,
)
from astitch.graph.matmul import ALIGNED, free_dimensions
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import stored_value
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.movement_rules import group_dimensions
from astitch.rewrite.simplify import rewrite_graph

Run: TypeAlias = tuple[int, int, int]
"""(start, count, step): numbers of elements along a dimension."""

Part: TypeAlias = tuple[Run, ...]
"""Of an array, by dimension."""

LEAST_GAIN = 2
"""A product is computed in part where so many times fewer elements of it are read."""

MOST_COPIED = 0.5
"""A part of what lies in memory is written and read once more, for a product that is written and read in part."""


def sink_slices(graph: Graph, log: Log | None = None) -> Graph:
    """The same function.  graph: simplified.  log: hears of every product that is computed in part."""
    heard: Log = log or (lambda rule, node: None)
    parts = _find_parts(graph)
    if not parts:
        return graph

    def change(node: Node, draft: Draft, values: Mapping[str, str]) -> str | None:
        wanted, is_cut = parts.get(node.name), isinstance(node.attrs, SliceAttrs)
        if wanted is None and not (is_cut and parts.get(graph[node.name].operands[0])):
            return None
        if isinstance(node.attrs, DotAttrs):
            heard("sink_slice", node.name)
        ops, origin = DraftOps(node, draft), graph[node.name]
        operands = []
        for number, name in enumerate(origin.operands):
            value, part = values[name], _want(graph, origin, number, wanted)
            if part is not None and parts.get(name) != part:
                starts, _, steps = zip(*part, strict=True)
                limits = [start + (count - 1) * step + 1 for start, count, step in part]
                value = ops.cut(value, starts, limits, steps)
            operands.append(value)
        if is_cut:
            return operands[0]
        assert wanted
        shape = [count for _, count, _ in wanted]
        return ops.add(node.op, node.dtype, shape, tuple(operands), node.attrs, node.regions)

    return rewrite_graph(graph, heard, change)


# ---- which part of each value is read


def _find_parts(graph: Graph) -> dict[str, Part]:
    """The parts of values of which nothing else is read; only where they lead to a product that is computed in part."""
    if not any(isinstance(node.attrs, SliceAttrs) for node in graph):
        return {}
    dots = [node for node in graph if isinstance(node.attrs, DotAttrs)]
    whole = set(graph.outputs)
    while True:
        parts = _trace_back(graph, whole)
        dear = {
            n.name for n in dots if (part := parts.get(n.name)) and _is_dear(graph, n, part, parts)
        }
        if not dear:
            break
        whole |= dear
    kept: dict[str, Part] = {}
    for node in graph:
        part = parts.get(node.name)
        if part is None:
            continue
        gains = node.array.size >= LEAST_GAIN * _count(part)
        if (gains and isinstance(node.attrs, DotAttrs)) or any(o in kept for o in node.operands):
            kept[node.name] = part
    return kept


def _trace_back(graph: Graph, whole: Collection[str]) -> dict[str, Part | None]:
    """The part of each value that its readers want; None for all of it.  whole: values that stay so."""
    parts: dict[str, Part | None] = dict.fromkeys(whole)
    for node in reversed([*graph]):
        wanted = parts.get(node.name)
        for number, name in enumerate(node.operands):
            found = None if name in whole else _want(graph, node, number, wanted)
            parts[name] = found if parts.get(name, found) == found else None
    return parts


def _is_dear(graph: Graph, node: Node, part: Part, parts: Mapping[str, Part | None]) -> bool:
    """Would a product in part want a copy of much of an operand, or have an odd number of columns?"""
    columns, whole = part[-1][1] if part else 0, node.shape[-1] if part else 0
    if columns >= ALIGNED and columns % ALIGNED and not whole % ALIGNED:
        return True
    copied = 0
    for number, name in enumerate(node.operands):
        needed, base = _want(graph, node, number, part), graph[stored_value(graph, name)]
        fits = isinstance(base.attrs, DotAttrs) or OPS[base.op].kind in _COMPUTED
        computed = fits and parts.get(base.name) is not None
        if needed and not computed:
            copied += _count(needed) * graph[name].dtype.bytes
    spared = node.array.bytes - _count(part) * node.dtype.bytes
    return copied > MOST_COPIED * spared


_COMPUTED = frozenset({Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INDEX, Kind.REDUCE})
"""What is computed in part, as products are, if its readers want a part."""


def _count(part: Part) -> int:
    return prod(count for _, count, _ in part)


def _part_of(cut: SliceAttrs) -> Part:
    runs = []
    for start, limit, step in zip(cut.starts, cut.limits, cut.strides, strict=True):
        count = max(0, -(-(limit - start) // step))
        runs.append((start, count, step if count > 1 else 1))
    return tuple(runs)


def _whole(shape: Sequence[int]) -> Part:
    return tuple((0, extent, 1) for extent in shape)


def _want(graph: Graph, node: Node, number: int, wanted: Part | None) -> Part | None:
    """The part of an operand that a part of the node needs; None: all of it, or it is no matter."""
    operand = graph[node.operands[number]]
    if not isinstance(operand.type, ArrayType) or not isinstance(node.type, ArrayType):
        return None
    shape, found = operand.shape, None
    if isinstance(node.attrs, SliceAttrs):
        cut = _part_of(node.attrs)
        found = cut if wanted is None else tuple(map(_compose, cut, wanted))
    elif wanted is not None:
        found = _trace(node, operand, number, wanted)
    return None if found is None or found == _whole(shape) else found


def _compose(outer: Run, inner: Run) -> Run:
    """A run of the elements of a run."""
    return outer[0] + inner[0] * outer[2], inner[1], outer[2] * inner[2] if inner[1] > 1 else 1


def _trace(node: Node, operand: Node, number: int, wanted: Part) -> Part | None:
    """See _want; of ops that are no slices."""
    row, a = OPS[node.op], node.attrs
    if row.is_view:
        return _view(node.shape, operand.shape, wanted)
    match a:
        case BroadcastAttrs(dimensions):
            return tuple(wanted[d] for d in dimensions)
        case TransposeAttrs(permutation):
            return tuple(wanted[permutation.index(d)] for d in range(len(permutation)))
        case DotAttrs():
            return _trace_product(a, operand.shape, number, wanted)
        case DimensionsAttrs(reduced) if row.is_reduce:
            if number >= len(node.operands) // 2:
                return None
            kept = iter(wanted)
            return tuple(
                (0, extent, 1) if d in reduced else next(kept)
                for d, extent in enumerate(operand.shape)
            )
    if row.kind is Kind.ELEMENTWISE and operand.shape == node.shape:
        return wanted
    return None


def _trace_product(a: DotAttrs, shape: Sequence[int], number: int, wanted: Part) -> Part:
    batch = a.rhs_batch if number else a.lhs_batch
    contracted = a.rhs_contracting if number else a.lhs_contracting
    free = free_dimensions(len(shape), batch, contracted)
    first = len(wanted) - len(free) if number else len(batch)
    found = dict(zip(batch, wanted, strict=False))
    found |= dict(zip(free, wanted[first : first + len(free)], strict=True))
    return tuple(found.get(d, (0, extent, 1)) for d, extent in enumerate(shape))


def _view(after: Sequence[int], before: Sequence[int], wanted: Part) -> Part | None:
    """The part of an array that a part of the same elements in another shape is; None where it is no part."""
    if 0 in before or not _count(wanted):
        return None
    found: list[Run] = [(0, 1, 1)] * len(before)
    for old, new in group_dimensions(before, after):
        run = _merge([after[d] for d in new], [wanted[d] for d in new])
        runs = run and _split([before[d] for d in old], run)
        if not runs:
            return None
        for d, value in zip(old, runs, strict=True):
            found[d] = value
    return tuple(found)


def _merge(extents: Sequence[int], runs: Sequence[Run]) -> Run | None:
    """Runs along dimensions as one along all of them; None where the elements are not evenly apart."""
    start, count, step, size = 0, 1, 1, 1
    for extent, (first, many, apart) in zip(reversed(extents), reversed(runs), strict=True):
        start += first * size
        if many > 1:
            if count > 1 and apart * size != count * step:
                return None
            step = apart * size if count == 1 else step
            count *= many
        size *= extent
    return start, count, step


def _split(extents: Sequence[int], run: Run) -> list[Run] | None:
    """A run along dimensions that were merged, as one along each; None where it is none."""
    start, count, step = run
    found: list[Run] = []
    for extent in reversed(extents[1:]):
        at = start % extent
        if count == 1 or step % extent == 0:
            found.append((at, 1, 1))
            step = max(step // extent, 1)
        elif extent % step == 0 and at < step and count % (extent // step) == 0:
            found.append((at, extent // step, step))
            count, step = count // (extent // step), 1
        elif at + (count - 1) * step < extent:
            found.append((at, count, step))
            count, step = 1, 1
        else:
            return None
        start //= extent
    return [(start, count, step if count > 1 else 1), *reversed(found)]
