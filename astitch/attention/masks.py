"""What leaves scores out: which arrays do so, and which of them by the positions of query and key alone.

A mask is a condition, or a number that is added: 0 keeps a score, a very low one leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np

from astitch.attention.indices import DependsOnData, evaluate_at, varying_dimensions
from astitch.attention.operands import query_parts
from astitch.attention.rows import Label, RowFunctions, Source, read_scalar
from astitch.graph.ir import ArrayType, DType, Graph, Node
from astitch.graph.ops import OPS, Kind

LEAVES_OUT = -1e8
"""A number that, added to a score, leaves it out: no score in practice comes near."""

MOST_STEPS = 12
"""Ops from a condition to the number that it is added as."""

MOST_EVALUATED = 1 << 24
"""Elements that are looked at one by one to see whether any leaves a score out."""

AT_ONCE = 1 << 20
"""Elements of a mask that are evaluated together."""

Band = tuple[bool, int]
"""(causal, window): see AttentionAttrs."""


class Masks:
    """The masks of a graph, each read once for all layers."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._is_mask: dict[str, bool] = {}
        self.lows: dict[str, float] = {}  # what masks of numbers leave scores out with
        self._is_low: dict[str, bool] = {}
        self._bands: dict[tuple[object, ...], Band | None] = {}

    def find(self, rows: RowFunctions) -> frozenset[str]:
        """The sources that are masks, by name."""
        return frozenset(name for name in rows.sources if self.is_mask(name))

    def is_mask(self, name: str) -> bool:
        """Is an array of conditions, or of numbers that are 0 or very low?"""
        if name not in self._is_mask:
            node = self.graph[name]
            self._is_mask[name] = node.dtype is DType.PRED or self._find_low(node) is not None
        return self._is_mask[name]

    def _find_low(self, node: Node) -> float | None:
        """The number that leaves scores out, of a mask of numbers; None for what is none."""
        low = _follows_from_condition(self.graph, node)
        if low is None:
            low = _follows_from_indices(self.graph, node)
        if low is not None:
            self.lows[node.name] = low
        return low

    def may_leave_out(self, name: str) -> bool:
        """May an array have numbers that leave a score out?  Not where indices tell that it has none."""
        if name not in self._is_low:
            try:
                # Not a number, as 0 times an infinite one is, may be any.
                self._is_low[name] = not _bound(self.graph, name)[0] > LEAVES_OUT
            except DependsOnData:
                self._is_low[name] = True
        return self._is_low[name]

    def find_band(
        self, rows: RowFunctions, masks: Sequence[tuple[Source, bool]]
    ) -> tuple[Band, Label] | None:
        """The band that masks leave together, and the part of the queries that is their position.

        Of each mask also whether a condition names the scores that are kept.  None for masks of another form.
        """
        for position in query_parts(rows):
            key = rows.parts.resolve(rows.key)
            parts: list[object] = []
            for mask, keeps_true in masks:
                labels = tuple(map(rows.parts.resolve, mask.labels))
                extents = tuple(tuple(rows.parts.extents[p] for p in label) for label in labels)
                places = tuple((position in label, *(p in key for p in label)) for label in labels)
                parts.append((mask.name, keeps_true, extents, places))
            known = tuple(parts)
            if known not in self._bands:
                self._bands[known] = _read_band(rows, masks, position)
            band = self._bands[known]
            if band is not None:
                return band, (position,)
        return None


def as_seen(values: np.ndarray) -> np.ndarray:
    """A mask's elements as conditions.  Raises DependsOnData for numbers that neither keep nor leave out."""
    if values.dtype == np.bool_:
        return values
    seen = values == 0
    if not np.all(seen | (values <= LEAVES_OUT)):
        raise DependsOnData
    return np.asarray(seen)


def _follows_from_condition(graph: Graph, node: Node) -> float | None:
    """The very low one of two numbers, of which a condition says which it is; the other is 0."""
    names: list[str] = [node.name]
    while graph[names[-1]].dtype is not DType.PRED:
        current = graph[names[-1]]
        kind = OPS[current.op].kind
        if kind not in (Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INDEX) or len(names) > MOST_STEPS:
            return None
        others = [o for o in dict.fromkeys(current.operands) if read_scalar(graph, o) is None]
        if len(others) != 1:
            return None
        names.append(others[0])
    found = [_evaluate_steps(graph, names, condition) for condition in (False, True)]
    if None in found:
        return None
    numbers = [number for number in found if number is not None]
    is_mask = [x == 0 for x in sorted(numbers)] == [False, True] and min(numbers) <= LEAVES_OUT
    return min(numbers) if is_mask else None


def _evaluate_steps(graph: Graph, names: Sequence[str], condition: bool) -> float | None:
    """What the first of some ops gives where the last is a condition of this value; None for one without a meaning."""
    known = {names[-1]: np.array(condition)}
    for name in reversed(names[:-1]):
        node = graph[name]
        if OPS[node.op].kind is not Kind.ELEMENTWISE:
            known[name] = known[node.operands[0]]
            continue
        meaning = OPS[node.op].meaning
        if meaning is None:
            return None
        given = [
            known[o] if o in known else np.array(read_scalar(graph, o)).astype(graph[o].dtype.numpy)
            for o in node.operands
        ]
        with np.errstate(all="ignore"):
            known[name] = np.asarray(meaning(replace(node, type=ArrayType(node.dtype, ())), *given))
    return float(known[names[0]])


def _follows_from_indices(graph: Graph, node: Node) -> float | None:
    """The lowest element, where each is told by its index alone to be 0 or very low."""
    low = 0.0
    try:
        for values in _evaluate_by_indices(graph, node):
            as_seen(values)
            low = min(low, float(values.min()))
    except DependsOnData:
        return None
    return low


def _bound(graph: Graph, name: str) -> tuple[float, float]:
    """(no element is less, none is more), NaN where one may be.  Raises DependsOnData where indices do not tell.

    Of many elements that are sums or multiples of fewer, the fewer tell: slopes of heads times distances.
    """
    node = graph[name]
    if prod(node.shape[d] for d in varying_dimensions(graph, name)) <= MOST_EVALUATED:
        ends = [(x.min(), x.max()) for x in _evaluate_by_indices(graph, node)]
        return float(np.min(ends)), float(np.max(ends))
    row = OPS[node.op]
    if len(node.operands) == 1:
        (operand,) = node.operands
        is_wide = node.dtype.bytes >= graph[operand].dtype.bytes
        if row.kind in (Kind.BROADCAST, Kind.INDEX) or (row.is_conversion and is_wide):
            return _bound(graph, operand)
    if row.combiner not in (np.add, np.multiply):
        raise DependsOnData
    left, right = (_bound(graph, operand) for operand in node.operands)
    with np.errstate(all="ignore"):
        found = [row.combiner(x, y) for x, y in product(left, right)]
    return float(np.min(found)), float(np.max(found))


def _evaluate_by_indices(graph: Graph, node: Node) -> Iterator[np.ndarray]:
    """All elements, some at a time.  Raises DependsOnData where their indices do not tell them."""
    varying = sorted(varying_dimensions(graph, node.name))
    shape = tuple(node.shape[d] for d in varying)
    if node.array.size:  # most values depend on data at their first element
        yield evaluate_at(graph, node.name, [np.zeros(1, np.intp)] * node.array.rank)
    for start in range(0, prod(shape) if shape else 0, AT_ONCE):
        flat = np.arange(start, min(start + AT_ONCE, prod(shape)))
        places = dict(zip(varying, np.unravel_index(flat, shape), strict=True))
        index = [places.get(d, np.zeros_like(flat)) for d in range(node.array.rank)]
        yield evaluate_at(graph, node.name, index)


def _read_band(
    rows: RowFunctions, masks: Sequence[tuple[Source, bool]], position: int
) -> Band | None:
    """The band, if the scores that are kept follow from these positions alone and form one."""
    parts, keys = rows.parts, rows.parts.resolve(rows.key)
    if len(keys) != 1:
        return None
    for mask, _ in masks:
        if not rows.varying_parts(mask) <= {position, *keys}:
            return None
    count, columns = parts.extents[position], np.arange(parts.extents[keys[0]])

    def read(numbers: np.ndarray) -> np.ndarray:
        """Which scores of these rows are kept: [rows, keys]."""
        at, along = np.broadcast_arrays(numbers[:, None], columns)
        kept = np.ones(along.shape, np.bool_)
        for mask, keeps_true in masks:
            index: list[np.ndarray] = []
            for label in map(parts.resolve, mask.labels):
                place = np.zeros_like(along)
                for part in label:
                    here = {position: at, keys[0]: along}.get(part, np.zeros_like(along))
                    place = place * parts.extents[part] + here
                index.append(place)
            kept &= as_seen(evaluate_at(rows.graph, mask.name, index)) == keeps_true
        return kept

    diagonal = min(count, len(columns)) - 1  # the first row that has the whole window
    chunk = max(1, AT_ONCE // len(columns))
    try:
        seen = int(read(np.array([diagonal])).sum())
        window = seen if seen <= diagonal else 0
        if window and count > len(columns):
            return None  # rows without a score
        for start in range(0, count, chunk):
            numbers = np.arange(start, min(start + chunk, count))
            distance = numbers[:, None] - columns
            band = (distance >= 0) & (distance < (window or count))
            if not np.array_equal(read(numbers), band):
                return None
    except DependsOnData:
        return None
    return True, window
