"""Masks by position: takes what leaves scores out, hands on the band that it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from astitch.attention.indices import DependsOnData, evaluate_at
from astitch.attention.operands import query_parts
from astitch.attention.rows import Label, RowFunctions
from astitch.attention.softmax import Softmax, as_seen
from astitch.graph.ir import Graph

CHECKED_ROWS, CHECKED_ELEMENTS = 4096, 1 << 20
"""Rows of a mask that are compared whole; of more, that many of them.  So many elements are compared at once."""


def find_mask(graph: Graph, rows: RowFunctions, softmax: Softmax) -> tuple[bool, int, Label] | None:
    """(causal, window, the part of the queries that is their position); None for a mask of another form."""
    queries = query_parts(rows)
    if softmax.mask is None:
        return False, 0, queries[-1:]
    for position in queries:
        shape = _read_band(graph, rows, softmax, position)
        if shape is not None:
            return (*shape, (position,))
    return None


def _read_band(
    graph: Graph, rows: RowFunctions, softmax: Softmax, position: int
) -> tuple[bool, int] | None:
    """(causal, window) if a score is left out by these two positions alone, in the form of a band."""
    keys = rows.parts.resolve(rows.key)
    if softmax.mask is None or len(keys) != 1:
        return None
    count, columns = rows.parts.extents[position], np.arange(rows.parts.extents[keys[0]])
    numbers = _choose_rows(count)
    diagonal = min(count, len(columns)) - 1  # the first row that has the whole window
    chunk = max(1, CHECKED_ELEMENTS // len(columns))
    try:
        reading = _MaskReading(graph, rows, softmax, position, keys[0])
        seen = int(reading.read(np.array([diagonal]), columns).sum())
        window = seen if seen <= diagonal else 0
        if window and count > len(columns):
            return None  # rows without a score
        for start in range(0, len(numbers), chunk):
            distance = numbers[start : start + chunk, None] - columns
            band = (distance >= 0) & (distance < (window or count))
            if not np.array_equal(reading.read(numbers[start : start + chunk], columns), band):
                return None
    except DependsOnData:
        return None
    return True, window


def _choose_rows(count: int) -> np.ndarray:
    """All of them, or the ends and some between."""
    if count <= CHECKED_ROWS:
        return np.arange(count)
    ends = CHECKED_ROWS // 8
    between = np.random.default_rng(0).integers(0, count, CHECKED_ROWS - 2 * ends)
    return np.unique([*range(ends), *range(count - ends, count), *between])


@dataclass(frozen=True)
class _MaskReading:
    """A mask by the positions of query and key.  Raises DependsOnData where it follows from more."""

    graph: Graph
    rows: RowFunctions
    softmax: Softmax
    position: int
    key: int

    def read(self, numbers: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Which scores of these rows are seen: [rows, keys]."""
        first, last = (self._read_at(numbers, columns, end) for end in (0, 1))
        if not np.array_equal(first, last):
            raise DependsOnData
        return first

    def _read_at(self, numbers: np.ndarray, columns: np.ndarray, end: int) -> np.ndarray:
        """At the first (end 0) or last (1) index of all other dimensions."""
        mask, parts = self.softmax.mask, self.rows.parts
        assert mask is not None
        numbers, columns = np.broadcast_arrays(numbers[:, None], columns)
        index: list[np.ndarray] = []
        for label in mask.labels:
            at = np.zeros_like(columns)
            for part in parts.resolve(label):
                extent = parts.extents[part]
                here = {self.position: numbers, self.key: columns}.get(part, end * (extent - 1))
                at = at * extent + here
            index.append(at)
        seen = as_seen(evaluate_at(self.graph, mask.name, index))
        return seen if self.softmax.seen else ~seen
