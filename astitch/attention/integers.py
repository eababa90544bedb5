"""Keys and values that are others times a scale: Tensor -> the others, and the scale.

A cache holds integers of 8 bits, k8, and one scale for each position and head.  k8 * scale is what products read, and
XLA writes it to memory first.  A scale that all features of a row share goes behind the product:
q (k8 * s) = (q k8) * s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from astitch.attention.operands import FEATURES, Tensor, find_repeated, labels_before, peel
from astitch.attention.rows import Label, RowFunctions, Source
from astitch.graph.ir import DType, Graph, Node
from astitch.graph.ops import OPS
from astitch.graph.ops.attention import INTEGERS
from astitch.rewrite.draft import read_splat

SCALES = (DType.F16, DType.BF16, DType.F32)
"""The types of scales that kernels read."""


@dataclass(frozen=True, slots=True)
class Scale:
    """node: numbers that all features share.  labels: the parts of its dimensions; none of one that does not vary.

    fills: these are conditions: 1 where they hold, else NaN, as a gather gives what is not there.
    """

    node: Node
    labels: tuple[Label, ...]
    fills: bool = False


@dataclass(frozen=True, slots=True)
class Scaled:
    """tensor: integers of 8 bits, or what a gather gives where there is something.  scale: None where there is none."""

    tensor: Tensor
    scale: Scale | None


def is_multiplication(node: Node) -> bool:
    return OPS[node.op].combiner is np.multiply


def _is_filled(graph: Graph, node: Node) -> bool:
    """Has a value NaN where a condition does not hold?"""
    if len(node.operands) != 3 or graph[node.operands[0]].dtype is not DType.PRED:
        return False
    number = read_splat(graph, node.operands[2])
    return number is not None and math.isnan(number)


def find_scaled(rows: RowFunctions, tensor: Tensor) -> Scaled | None:
    """None where a tensor is not integers of 8 bits, with one scale or none for all features of a position; nor a
    gather's result that is NaN where nothing is."""
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
        elif is_multiplication(node) and scale is None:
            sides = zip(node.operands, reversed(node.operands), strict=True)
            for own, other in sides:
                found = Scale(*find_repeated(rows, Source(other, labels)))
                if FEATURES not in found.labels and found.node.dtype in SCALES:
                    node, scale = graph[own], found
                    break
            else:
                return None
        elif scale is None and _is_filled(graph, node):
            there = find_repeated(rows, Source(node.operands[0], labels))
            gathered = peel(rows, node.operands[1], labels)
            kept = gathered.dtype, graph[gathered.name].dtype
            if FEATURES in there[1] or any(dtype is not tensor.dtype for dtype in kept):
                return None
            return Scaled(gathered, Scale(*there, fills=True))
        else:
            moved = labels_before(graph, rows.parts, node, labels)
            if moved is None:
                return None
            node, labels = graph[node.operands[0]], moved
