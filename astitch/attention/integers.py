"""Keys and values that are integers of 8 bits times a scale: Tensor -> the integers, and the scale.

A cache holds k8 and one scale for each position and head.  k8 * scale is what products read, and XLA writes it to
memory first.  A scale that all features of a row share goes behind the product: q (k8 * s) = (q k8) * s.
"""

from __future__ import annotations

from dataclasses import dataclass

from astitch.attention.operands import FEATURES, Tensor, find_repeated, labels_before, peel
from astitch.attention.rows import Label, RowFunctions, Source
from astitch.graph.ir import DType, Node
from astitch.graph.ops import OPS

INTEGERS = (DType.S8, DType.U8)


@dataclass(frozen=True, slots=True)
class Scale:
    """node: numbers that all features share.  labels: the parts of its dimensions; none of one that does not vary."""

    node: Node
    labels: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Scaled:
    """tensor: the integers.  scale: None where they are multiplied by none."""

    tensor: Tensor
    scale: Scale | None


def find_scaled(rows: RowFunctions, tensor: Tensor) -> Scaled | None:
    """None where a tensor is not integers of 8 bits, with one scale or none for all features of a position."""
    graph = rows.graph
    node, labels = graph[tensor.name], tensor.labels
    scale: Scale | None = None
    while True:
        if OPS[node.op].is_conversion:
            before = graph[node.operands[0]]
            if before.dtype in INTEGERS:
                return Scaled(peel(rows, before.name, labels), scale)
            if not before.dtype.is_float:
                return None
            node = before
        elif node.op == "multiply" and scale is None:
            sides = zip(node.operands, reversed(node.operands), strict=True)
            for own, other in sides:
                found = Scale(*find_repeated(rows, Source(other, labels)))
                if FEATURES not in found.labels:
                    node, scale = graph[own], found
                    break
            else:
                return None
        else:
            moved = labels_before(graph, rows.parts, node, labels)
            if moved is None:
                return None
            node, labels = graph[node.operands[0]], moved
