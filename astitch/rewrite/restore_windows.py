"""Graph -> Graph: running reductions and gradients of poolings that XLA wrote out, as the ops that they are.

XLA's simplifier runs before its hook.  It makes a tree of short reduce-windows of a running reduction
(ReduceWindowRewriter), and a scatter of a select-and-scatter (SelectAndScatterExpander).  No kernel takes that in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    Graph,
    Node,
    PadAttrs,
    SliceAttrs,
    TransposeAttrs,
    WindowAttrs,
    WindowDimension,
)
from astitch.graph.ops import OPS, Kind, monoid_of
from astitch.graph.ops.windows import Running, find_running, is_trivial, running_window
from astitch.graph.reference import run_graph
from astitch.graph.running import why_not_liftable
from astitch.rewrite.draft import Draft, Log, read_splat, same_bits
from astitch.rewrite.restore_pooling import restore_pooling
from astitch.rewrite.simplify import rewrite_graph

Rule = Callable[[Node, Draft], str | None]
"""The value that stands for the node, of its type; None: it stays."""


def restore_windows(graph: Graph, log: Log = lambda rule, node: None) -> Graph:
    """The graph with those windows restored, in simplest form; the same graph without any.

    graph: in simplest form.
    """
    if not any(isinstance(node.attrs, WindowAttrs) for node in graph):
        return graph

    def change(node: Node, draft: Draft, values: Mapping[str, str]) -> str | None:
        for rule in RULES.get(node.op, ()):
            value = rule(node, draft)
            if value is not None:
                log(rule.__name__, node.name)
                return value
        return None

    return rewrite_graph(graph, log, change)


# ---- running reductions --------------------------------------------------------------------------


def join_pieces(node: Node, draft: Draft) -> str | None:
    """f(running(x), broadcast(what is before each piece)) -> running over the pieces in a row

    x is [.., pieces, elements of a piece].  What is before a piece is f of all elements of the pieces before it.
    """
    if len(node.operands) != 2:
        return None
    for inner, before in (node.operands, node.operands[::-1]):
        pieces, spread = draft[inner], draft[before]
        running = find_running(pieces)
        last = node.array.rank - 1
        if running is None or running.dimension != last or last < 1 or pieces.dtype != node.dtype:
            continue
        if not isinstance(spread.attrs, BroadcastAttrs) or not _is_same_function(node, pieces):
            continue
        if not _starts_neutrally(draft, pieces):
            continue
        if spread.attrs.dimensions != tuple(range(last)):
            continue
        if _is_before_pieces(draft, spread.operands[0], pieces, running):
            return _run_over_pieces(node, draft, pieces, running)
    return None


def _is_same_function(node: Node, pieces: Node) -> bool:
    """Does an element-wise op, or a map, combine two elements as a reduce-window does?"""
    (region,) = pieces.regions
    if node.regions:
        return len(node.regions) == 1 and node.regions[0].key == region.key
    return monoid_of(region) == node.op


SAMPLES = np.array([0, 1, -3, 7, -120])
"""Numbers that every type has, or that wrap around in it."""


def _starts_neutrally(draft: Draft, window: Node) -> bool:
    """Does what a reduce-window starts with change nothing?  A tree starts once for each piece."""
    start = read_splat(draft, window.operands[1])
    (region,) = window.regions
    if start is None or why_not_liftable(window) is not None:
        return False
    samples = SAMPLES.astype(window.dtype.numpy)
    return all(
        np.array_equal(run_graph(region, pair)[0], x)
        for x in samples
        for pair in ((start, x), (x, start))
    )


def _run_over_pieces(node: Node, draft: Draft, pieces: Node, running: Running) -> str:
    x, start = pieces.operands
    extent = node.shape[-2] * node.shape[-1]
    flat = ArrayType(node.dtype, (*node.shape[:-2], extent))
    row = draft.add(node, "reshape", flat, (x,))
    along = replace(running, dimension=len(flat.shape) - 1)
    attrs = running_window(len(flat.shape), along, extent)
    whole = draft.add(node, "reduce-window", flat, (row, start), attrs, pieces.regions)
    return draft.add(node, "reshape", node.array, (whole,))


def _is_before_pieces(draft: Draft, name: str, pieces: Node, running: Running) -> bool:
    """Is the value, for each piece, the reduction of all pieces before it (behind it, if backward)?"""
    cut = draft[name]
    count = pieces.shape[-2]
    first = 1 if running.backward else 0
    if not isinstance(cut.attrs, SliceAttrs) or not _cuts_last(draft, cut, first, count):
        return False
    longer = draft[cut.operands[0]]
    if longer.shape != (*pieces.shape[:-2], count + 1):
        return False
    low, high = (0, 1) if running.backward else (1, 0)
    match longer.attrs:
        case WindowAttrs():
            edges = (count * low, count * high)
            return (
                _is_alike(draft, longer, pieces)
                and _slides(longer, count, edges)
                and _are_totals(draft, longer.operands[0], pieces, running)
            )
        case PadAttrs():
            start = pieces.operands[1]
            return (
                _pads_last(longer, low, high)
                and _is_same_scalar(draft, longer.operands[1], start)
                and _is_running_total(draft, longer.operands[0], pieces, running)
            )
    return False


def _is_running_total(draft: Draft, name: str, pieces: Node, running: Running) -> bool:
    """Is the value the running reduction of the pieces' totals?"""
    node = draft[name]
    if isinstance(node.attrs, SliceAttrs):
        if not _cuts_last(draft, node, 0, pieces.shape[-2]):
            return False
        node = draft[node.operands[0]]
    own = find_running(node)
    if own is None or own != replace(running, dimension=node.array.rank - 1):
        return False
    if not _is_alike(draft, node, pieces):
        return False
    totals = draft[node.operands[0]]
    if isinstance(totals.attrs, PadAttrs):
        count = totals.shape[-1] - draft[totals.operands[0]].shape[-1]
        start = pieces.operands[1]
        if not _pads_last(totals, 0, count) or not _is_same_scalar(
            draft, totals.operands[1], start
        ):
            return False
        totals = draft[totals.operands[0]]
    return _are_totals(draft, totals.name, pieces, running)


def _are_totals(draft: Draft, name: str, pieces: Node, running: Running) -> bool:
    """Is the value the last element of each piece (the first, if backward), where its total stands?"""
    node = draft[name]
    if node.shape != pieces.shape[:-1]:
        return False
    if OPS[node.op].is_view:
        node = draft[node.operands[0]]
    last = 0 if running.backward else pieces.shape[-1] - 1
    return (
        isinstance(node.attrs, SliceAttrs)
        and node.operands[0] == pieces.name
        and _cuts_last(draft, node, last, 1)
    )


def _cuts_last(draft: Draft, node: Node, start: int, count: int) -> bool:
    """Does a slice keep the other dimensions whole, and `count` elements of the last one from `start` on?"""
    assert isinstance(node.attrs, SliceAttrs)
    a, shape = node.attrs, draft[node.operands[0]].shape
    whole = all(n == m for n, m in zip(node.shape[:-1], shape[:-1], strict=True))
    return whole and a.starts[-1] == start and a.strides[-1] == 1 and a.limits[-1] == start + count


def _pads_last(node: Node, low: int, high: int) -> bool:
    assert isinstance(node.attrs, PadAttrs)
    a = node.attrs
    others = (*a.low[:-1], *a.high[:-1], *a.interior)
    return not any(others) and (a.low[-1], a.high[-1]) == (low, high)


def _slides(node: Node, size: int, edges: tuple[int, int]) -> bool:
    """Does a plain window of that size slide along the last dimension only?"""
    assert isinstance(node.attrs, WindowAttrs)
    *others, last = node.attrs.window
    expected = WindowDimension(size, padding_low=edges[0], padding_high=edges[1])
    return all(is_trivial(w) for w in others) and last == expected


def _is_alike(draft: Draft, one: Node, other: Node) -> bool:
    """Do two reduce-windows combine elements in the same way, from the same start?"""
    return (
        len(one.operands) == len(other.operands) == 2
        and [r.key for r in one.regions] == [r.key for r in other.regions]
        and _is_same_scalar(draft, one.operands[1], other.operands[1])
    )


def _is_same_scalar(draft: Draft, one: str, other: str) -> bool:
    if one == other:
        return True
    a, b = read_splat(draft, one), read_splat(draft, other)
    return a is not None and b is not None and same_bits(a, b)


def drop_padding(node: Node, draft: Draft) -> str | None:
    """slice(running(pad(x, start))) -> running(x), where the slice cuts off what the pad added behind x"""
    whole = draft[node.operands[0]]
    running = find_running(whole)
    if running is None:
        return None
    padded = draft[whole.operands[0]]
    if not isinstance(padded.attrs, PadAttrs) or not isinstance(node.attrs, SliceAttrs):
        return None
    x = draft[padded.operands[0]]
    ends_with_x = node.shape == x.shape and not any(node.attrs.starts)
    at_start = any((*padded.attrs.low, *padded.attrs.interior))
    along = [d for d, n in enumerate(padded.attrs.high) if n]
    if not ends_with_x or at_start or along != [running.dimension]:
        return None
    if x.shape[running.dimension] < 2:
        return None
    if not _is_same_scalar(draft, padded.operands[1], whole.operands[1]):
        return None
    attrs = running_window(x.array.rank, running, x.shape[running.dimension])
    operands = (x.name, whole.operands[1])
    return draft.add(node, "reduce-window", node.array, operands, attrs, whole.regions)


def slice_before_transpose(node: Node, draft: Draft) -> str | None:
    """slice(transpose(running(..))) -> transpose(slice(running(..)))"""
    turned = draft[node.operands[0]]
    a = node.attrs
    if not isinstance(turned.attrs, TransposeAttrs) or not isinstance(a, SliceAttrs):
        return None
    whole = draft[turned.operands[0]]
    if find_running(whole) is None:
        return None
    p = turned.attrs.permutation
    back = [p.index(d) for d in range(len(p))]
    attrs = SliceAttrs(
        tuple(a.starts[d] for d in back),
        tuple(a.limits[d] for d in back),
        tuple(a.strides[d] for d in back),
    )
    type = ArrayType(node.dtype, tuple(node.shape[d] for d in back))
    cut = Node(draft.fresh(f"{node.name}.slice"), "slice", type, (whole.name,), attrs)
    value = drop_padding(cut, draft) or draft.put(cut)
    turned = replace(turned, name=node.name, type=node.array, operands=(value,))
    return run_along_other(turned, draft) or draft.put(turned)


def run_along_other(node: Node, draft: Draft) -> str | None:
    """transpose(f(running(transpose(x, p), d)), q) -> f(running(x, p(d))), where q undoes p

    f is element-wise and has one operand besides numbers.  Reshapes before and behind it undo each other.
    """
    inner = draft[node.operands[0]]
    shape, steps = inner.shape, list[Node]()
    while find_running(inner) is None:
        operand = _single_operand(inner, draft)
        if operand is None:
            return None
        if not OPS[inner.op].is_view:
            steps.append(inner)
        inner = draft[operand]
    whole, running = inner, find_running(inner)
    if running is None or whole.shape != shape or not isinstance(node.attrs, TransposeAttrs):
        return None
    turned = draft[whole.operands[0]]
    if not isinstance(turned.attrs, TransposeAttrs):
        return None
    p, q = turned.attrs.permutation, node.attrs.permutation
    if any(p[d] != i for i, d in enumerate(q)):
        return None
    along = replace(running, dimension=p[running.dimension])
    attrs = running_window(node.array.rank, along, node.shape[along.dimension])
    operands = (turned.operands[0], whole.operands[1])
    type = ArrayType(whole.dtype, node.shape)
    value = draft.add(node, "reduce-window", type, operands, attrs, whole.regions)
    for step in reversed(steps):
        value = _put_again(step, value, draft, node)
    return value


def _single_operand(node: Node, draft: Draft) -> str | None:
    """What a reshape, or an element-wise op on one array and numbers, reads."""
    if OPS[node.op].is_view:
        return node.operands[0]
    if OPS[node.op].kind is not Kind.ELEMENTWISE:
        return None
    arrays = [o for o in node.operands if not _is_number(draft[o])]
    return arrays[0] if len(arrays) == 1 else None


def _is_number(node: Node) -> bool:
    """Is it a number, or one repeated?"""
    return (node.is_constant and node.array.rank == 0) or node.attrs == BroadcastAttrs(())


def _put_again(step: Node, value: str, draft: Draft, node: Node) -> str:
    """An element-wise op on another value, in the place of the array that it reads."""
    shape, operands = draft[value].shape, list[str]()
    for operand in step.operands:
        number = draft[operand]
        if not _is_number(number):
            operand = value
        elif number.array.rank:
            type = ArrayType(number.dtype, shape)
            operand = draft.add(node, "broadcast", type, number.operands, number.attrs)
        operands.append(operand)
    type = ArrayType(step.dtype, shape)
    return draft.add(node, step.op, type, tuple(operands), step.attrs, step.regions)


RULES: Mapping[str, tuple[Rule, ...]] = {
    **{name: (join_pieces,) for name, op in OPS.items() if op.combiner is not None},
    "map": (join_pieces,),
    "slice": (drop_padding, slice_before_transpose),
    "transpose": (run_along_other,),
    "scatter": (restore_pooling,),
}
"""For each op the rules that are tried, in order."""
