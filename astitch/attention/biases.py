"""The gradient of a bias: that of the scores, summed over the batch or the heads that share the bias, if any do.

Takes what is read of the rows besides products, hands on the nodes that give it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from astitch.attention.rows import Label, RowFunctions, read_scalar
from astitch.attention.softmax import (
    NOTHING,
    Gradient,
    Softmax,
    draw_empty_rows,
    draw_gradients,
    fit_factor,
)
from astitch.graph.ir import DimensionsAttrs, Node
from astitch.graph.ops import OPS, monoid_of


@dataclass(frozen=True)
class BiasGradient:
    """name: a node that sums `value`, factor * p * (dp - sum(p * dp)), over these parts; `value` itself over none.

    labels: of the node.
    """

    name: str
    value: str
    over: Label
    labels: tuple[Label, ...]
    factor: float = 1.0


def find_bias_gradients(
    rows: RowFunctions, value: str, products: Container[str]
) -> tuple[BiasGradient, ...] | None:
    """What is read of a value of the rows, beside products and the rows: sums, or else the value itself.

    None where the value's dimensions are not those of the scores.
    """
    graph, labels = rows.graph, rows.resolved(value)
    if labels is None or any(map(rows.is_longer, labels)):
        return None
    users = (graph[user] for user in graph.users[value])
    others = [node for node in users if node.name not in rows.labels and node.name not in products]
    sums = [found for node in others if (found := _read_sum(rows, node, value, labels))]
    if value in graph.outputs or len(sums) < len(others):
        return (BiasGradient(value, value, (), labels),)
    return tuple(sums)


def _read_sum(
    rows: RowFunctions, node: Node, value: str, labels: Sequence[Label]
) -> BiasGradient | None:
    """What a node sums of a value; None where it is no sum over the batch, the heads or the queries."""
    graph, attrs = rows.graph, node.attrs
    if not (OPS[node.op].is_reduce and isinstance(attrs, DimensionsAttrs)):
        return None
    if len(node.operands) != 2 or monoid_of(node.regions[0]) != "add":
        return None
    if node.operands[0] != value or read_scalar(graph, node.operands[1]) != 0:
        return None
    over = tuple(p for d in attrs.dimensions for p in labels[d])
    if set(over) & set(rows.parts.resolve(rows.key)):
        return None
    kept = tuple(label for d, label in enumerate(labels) if d not in attrs.dimensions)
    return BiasGradient(node.name, value, over, kept)


def fit_bias_gradient(
    rows: RowFunctions, value: str, softmax: Softmax, gradient: Gradient, masks: Container[str]
) -> float | None:
    """factor, where a value is factor * p * (dp - sum(p * dp)); None where it is not."""
    drop, source = softmax.drop, gradient.source
    known = {*softmax.sources, source.name, *([drop.source.name] if drop else [])}
    if not rows.reads[value] <= known:
        return None
    drops = drop is not None and drop.source.name in rows.reads[gradient.name]

    def evaluate() -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
        for drawn, p, dp in draw_gradients(rows, softmax, masks, source, drops=drops):
            full = softmax.list_full(drawn)
            wanted = p * (dp - (p * dp).sum(1, keepdims=True))
            given = np.broadcast_to(rows.evaluate(value, drawn), p.shape)
            yield given[full], wanted[full], NOTHING * np.max(abs(dp))

    return fit_factor(evaluate(), signed=True)


def passes_masks(
    rows: RowFunctions, value: str, softmax: Softmax, masks: Container[str]
) -> bool | None:
    """Has a bias a gradient in rows of which masks leave out all scores?  None where some have and some have not."""
    answers = {
        bool(rows.in_f32().evaluate(value, drawn).any())
        for drawn in draw_empty_rows(rows, masks, softmax)
    }
    return answers.pop() if len(answers) == 1 else None if answers else False
