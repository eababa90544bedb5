"""Which conditions a mask joins: takes the masks of a softmax, hands on what each score has to meet to be kept.

A mask that is `causal & (q_segment == k_segment) & (k < length)` is a band, a comparison of two rows of numbers, and a
row of conditions.  None of them needs an array with an element for each score.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astitch.attention.indices import DependsOnData, evaluate_at
from astitch.attention.masks import LEAVES_OUT
from astitch.attention.operands import labels_before, query_parts
from astitch.attention.rows import Label, NotARow, RowFunctions, Source, read_scalar
from astitch.attention.softmax import Mask
from astitch.graph.ir import ArrayType, BroadcastAttrs, CompareAttrs, DType, Node
from astitch.graph.ops import OPS, Kind

MOST_CONDITIONS = 6
"""Of one mask that is taken apart; with more it stays one array."""

COMPARED = (DType.PRED, DType.S8, DType.S16, DType.S32, DType.U8, DType.U16)
"""The types of numbers that kernels compare, as S32."""

_TURNED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "EQ": "EQ", "NE": "NE"}
_OPPOSITE = {"LT": "GE", "LE": "GT", "GT": "LE", "GE": "LT", "EQ": "NE", "NE": "EQ"}


@dataclass(frozen=True)
class Comparison:
    """A score is kept where left compares so with right.  left: the same for all keys; right: for all queries."""

    direction: str
    left: Source
    right: Source


def take_apart(rows: RowFunctions, mask: Mask) -> list[Mask]:
    """Masks that keep together what this one keeps; itself where nothing is known of it."""
    try:
        found = list(itertools.islice(_split(rows, mask), MOST_CONDITIONS + 1))
    except NotARow:
        return [mask]
    return found if len(found) <= MOST_CONDITIONS else [mask]


def read_comparison(rows: RowFunctions, mask: Mask) -> Comparison | None:
    """The comparison that a mask is, of numbers of the queries with numbers of the keys; None for another mask."""
    node = rows.graph[mask.source.name]
    attrs = node.attrs
    if not isinstance(attrs, CompareAttrs):
        return None
    sides = [Source(name, mask.source.labels) for name in node.operands]
    if any(rows.graph[side.name].dtype not in COMPARED for side in sides):
        return None
    direction = attrs.direction if mask.keeps_true else _OPPOSITE[attrs.direction]
    key, queries = set(rows.parts.resolve(rows.key)), set(query_parts(rows))
    by_key, by_query = (
        [bool(parts & rows.varying_parts(s)) for s in sides] for parts in (key, queries)
    )
    if by_key == [True, False]:
        sides, by_query, direction = sides[::-1], by_query[::-1], _TURNED[direction]
    elif by_key != [False, True]:
        return None
    return Comparison(direction, *sides) if by_query == [True, False] else None


def follows_from_indices(rows: RowFunctions, source: Source) -> bool:
    """As far as its first element tells."""
    node = rows.graph[source.name]
    try:
        evaluate_at(rows.graph, node.name, [np.zeros(1, np.intp)] * node.array.rank)
    except DependsOnData:
        return False
    return True


def _split(rows: RowFunctions, mask: Mask) -> Iterator[Mask]:
    graph, node, holds = rows.graph, rows.graph[mask.source.name], mask.keeps_true
    labels = tuple(map(rows.parts.resolve, mask.source.labels))
    while True:
        before = _labels_of_operand(rows, node, labels)
        if before is None:
            break
        node, labels = graph[node.operands[0]], before
    varying = [o for o in dict.fromkeys(node.operands) if read_scalar(graph, o) is None]
    is_joined = OPS[node.op].kind is Kind.ELEMENTWISE and bool(varying)
    if node.dtype is not DType.PRED or (is_joined and _is_of_number(rows, varying)):
        inner = _see_through(rows, node, labels, holds)
        if inner is None and node.dtype is not DType.PRED:
            raise NotARow
        yield from _split(rows, inner) if inner else (Mask(Source(node.name, labels), holds),)
        return
    is_joined = is_joined and all(rows.graph[o].dtype is DType.PRED for o in varying)
    wanted = _read_only_case(rows, node, varying, holds) if is_joined else None
    if wanted is None:
        yield Mask(Source(node.name, labels), holds)
        return
    for operand, value in zip(varying, wanted, strict=True):
        yield from _split(rows, Mask(Source(operand, labels), value))


def _is_of_number(rows: RowFunctions, varying: Sequence[str]) -> bool:
    return len(varying) == 1 and rows.graph[varying[0]].dtype is not DType.PRED


def _see_through(
    rows: RowFunctions, node: Node, labels: tuple[Label, ...], holds: bool
) -> Mask | None:
    """The condition that a number follows from, which is 0 or very low, or that a comparison of such a number does.
    None where it follows from something else."""
    graph, steps = rows.graph, list[Node]()
    while not steps or node.dtype is not DType.PRED:
        before = _labels_of_operand(rows, node, labels)
        if before is not None:
            node, labels = graph[node.operands[0]], before
            continue
        varying = [o for o in dict.fromkeys(node.operands) if read_scalar(graph, o) is None]
        if len(varying) != 1 or OPS[node.op].kind is not Kind.ELEMENTWISE:
            return None
        steps.append(node)
        node = graph[varying[0]]
    value = np.array([False, True])
    for step in reversed(steps):
        given = [
            value if read_scalar(graph, o) is None else _scalar(rows, o, (2,))
            for o in step.operands
        ]
        value = _apply(step, given)
    if value.dtype != np.bool_:
        if value.min() > LEAVES_OUT or value.max() != 0:
            return None
        value, holds = value == 0, True
    if value[0] == value[1]:
        return None
    return Mask(Source(node.name, labels), bool(value[1]) == holds)


def _read_only_case(
    rows: RowFunctions, node: Node, varying: Sequence[str], holds: bool
) -> tuple[bool, ...] | None:
    """The values of its operands for which alone an op of conditions gives `holds`; None where there are others."""
    if len(varying) > 2:
        return None
    cases = list(itertools.product((False, True), repeat=len(varying)))
    table = dict(zip(varying, np.array(cases).T, strict=True))
    given = [table[o] if o in table else _scalar(rows, o, (len(cases),)) for o in node.operands]
    fitting = [
        case for case, value in zip(cases, _apply(node, given), strict=True) if value == holds
    ]
    return fitting[0] if len(fitting) == 1 else None


def _scalar(rows: RowFunctions, name: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, read_scalar(rows.graph, name)).astype(rows.graph[name].dtype.numpy)


def _apply(node: Node, given: Sequence[np.ndarray]) -> np.ndarray:
    row = OPS[node.op]
    if row.is_conversion:
        return given[0].astype(node.dtype.numpy)
    if row.meaning is None:
        raise NotARow
    with np.errstate(all="ignore"):
        wide = replace(node, type=ArrayType(node.dtype, given[0].shape))
        return np.asarray(row.meaning(wide, *given))


def _labels_of_operand(
    rows: RowFunctions, node: Node, labels: Sequence[Label]
) -> tuple[Label, ...] | None:
    """The labels of what is repeated or moved; None for another op."""
    if isinstance(node.attrs, BroadcastAttrs):
        shape = rows.graph[node.operands[0]].shape
        pairs = zip(node.attrs.dimensions, shape, strict=True)
        return tuple(labels[d] if n == node.shape[d] else () for d, n in pairs)
    if OPS[node.op].is_conversion:
        return None
    return labels_before(rows.graph, rows.parts, node, tuple(labels))
