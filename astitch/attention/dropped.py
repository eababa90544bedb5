"""The gradient of probabilities that are multiplied by an array behind the softmax, as dropout does.

It is the product of the result's gradient and the values, multiplied by the same array.  Ops of the graph do so in
front of the rows, since scores have no part in it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from astitch.attention.rows import NotARow, RowFunctions, Source, read_scalar
from astitch.attention.softmax import GRADIENT_TOLERANCE, Drop
from astitch.graph.ir import BroadcastAttrs, DotAttrs, DType, Graph
from astitch.graph.ops import OPS, Kind

DRAWN = 64
"""Elements for which the ops are evaluated."""

SIZES = (1.0, 1e-6, 1e6)
"""Those of the products that are drawn: clips and thresholds are exposed."""


def read_dropped(rows: RowFunctions, source: Source, drop: Drop) -> tuple[Source, float] | None:
    """(the product, t) where a source is t times a product times what probabilities are multiplied by, else None."""
    product, factors = "", []
    masks = {drop.source.name} if rows.graph[drop.source.name].dtype is DType.PRED else set[str]()
    for seed, size in enumerate(SIZES):
        random = np.random.default_rng(seed)
        given = rows.draw(seed, masks)[drop.source.name].reshape(-1)
        array = np.resize(given, (1, DRAWN))
        reader = _Reader(rows, drop, array, size * random.standard_normal((1, DRAWN)))
        try:
            found = reader.evaluate(source.name)
        except NotARow:
            return None
        wanted = reader.product_values * drop.read({drop.source.name: array})
        if reader.product is None or not wanted.any():
            return None
        factor = float((found * wanted).sum() / (wanted * wanted).sum())
        if np.max(abs(found - factor * wanted)) > GRADIENT_TOLERANCE * np.max(abs(found)):
            return None
        product = reader.product
        factors.append(factor)
    least, most = min(factors), max(factors)
    if least <= 0 or most - least > GRADIENT_TOLERANCE * most:
        return None
    return replace(source, name=product), least


class _Reader:
    """Evaluates element-wise ops of one product and the multiplier."""

    def __init__(
        self, rows: RowFunctions, drop: Drop, array: np.ndarray, product_values: np.ndarray
    ) -> None:
        self.rows, self.drop, self.product_values = rows, drop, product_values
        self.product: str | None = None
        self.known: dict[str, np.ndarray] = {drop.source.name: array}
        self.shape = rows.graph[drop.source.name].shape

    def evaluate(self, name: str) -> np.ndarray:
        """Raises NotARow for other ops."""
        graph, node = self.rows.graph, self.rows.graph[name]
        if name in self.known:
            return self.known[name]
        scalar = read_scalar(graph, name)
        row = OPS[node.op]
        if scalar is not None:
            value = np.full((1, 1), scalar)
        elif node.shape != self.shape:
            raise NotARow
        elif _is_same(graph, name, self.drop.source.name):
            value = self.known[self.drop.source.name]
        elif isinstance(node.attrs, DotAttrs) and self.product in (None, name):
            self.product, value = name, self.product_values
        elif row.kind is Kind.ELEMENTWISE:
            value = self.rows.apply(node, [self.evaluate(o) for o in node.operands])
        else:
            raise NotARow
        self.known[name] = value
        return value


def _is_same(graph: Graph, one: str, other: str) -> bool:
    """Do two nodes repeat the same array in the same way?"""
    a, b = graph[one], graph[other]
    return (
        isinstance(a.attrs, BroadcastAttrs)
        and a.attrs == b.attrs
        and a.operands == b.operands
        and a.type == b.type
    )
