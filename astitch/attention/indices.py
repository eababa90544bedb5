"""Arrays whose elements follow from their indices alone, as masks by position do.

Takes a node and indices, hands on the elements there: nothing is computed but what is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    ConstantAttrs,
    Graph,
    IotaAttrs,
    Node,
    SliceAttrs,
    TransposeAttrs,
    TupleType,
)
from astitch.graph.ops import OPS, Kind

MOST_OPS = 64
"""Ops of a mask, beyond which it is not evaluated."""


class DependsOnData(Exception):
    """An element does not follow from its index."""


def evaluate_at(graph: Graph, name: str, index: Sequence[np.ndarray]) -> np.ndarray:
    """The elements of a node at indices: integer arrays of one shape, one for each dimension.

    Raises DependsOnData where they follow from a parameter, or from an op that is not element-wise and moves nothing.
    """
    return _Evaluation(graph).run(graph[name], tuple(index))


def varying_dimensions(graph: Graph, name: str) -> frozenset[int]:
    """The dimensions of a node along which its elements may differ, as far as broadcasts tell."""
    return _find_varying(graph, graph[name], MOST_OPS)


def _find_varying(graph: Graph, node: Node, budget: int) -> frozenset[int]:
    attrs = node.attrs
    if isinstance(attrs, IotaAttrs):
        return frozenset({attrs.dimension})
    if budget and isinstance(attrs, BroadcastAttrs):
        inner = _find_varying(graph, graph[node.operands[0]], budget - 1)
        shape = graph[node.operands[0]].shape
        return frozenset(attrs.dimensions[d] for d in inner if shape[d] > 1)
    if budget and isinstance(attrs, TransposeAttrs):
        inner = _find_varying(graph, graph[node.operands[0]], budget - 1)
        return frozenset(d for d, source in enumerate(attrs.permutation) if source in inner)
    if budget and OPS[node.op].kind is Kind.ELEMENTWISE:
        operands = [graph[o] for o in node.operands]
        budget = (budget - 1) // len(operands)
        inner = frozenset[int]().union(*(_find_varying(graph, o, budget) for o in operands))
        if all(o.array.rank == node.array.rank for o in operands):
            return inner
    shape = () if isinstance(node.type, TupleType) else node.shape
    return frozenset(d for d, extent in enumerate(shape) if extent > 1)


class _Evaluation:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops = 0

    def run(self, node: Node, index: tuple[np.ndarray, ...]) -> np.ndarray:
        self.ops += 1
        if self.ops > MOST_OPS or isinstance(node.type, TupleType):
            raise DependsOnData
        shape = np.broadcast_shapes(*(i.shape for i in index)) if index else ()
        attrs, row = node.attrs, OPS[node.op]
        if isinstance(attrs, ConstantAttrs):
            value = attrs.value.numpy()
            return np.asarray(value[index] if index else value)
        if isinstance(attrs, IotaAttrs):
            return index[attrs.dimension].astype(node.dtype.numpy)
        operands = [self.graph[o] for o in node.operands]
        if row.kind is Kind.ELEMENTWISE and row.meaning is not None:
            values = [
                np.broadcast_to(self.run(o, index if o.array.rank else ()), shape) for o in operands
            ]
            with np.errstate(all="ignore"):
                wide = replace(node, type=ArrayType(node.dtype, shape))
                return np.asarray(row.meaning(wide, *values))
        if len(operands) != 1:
            raise DependsOnData
        return self.run(operands[0], _move(node, operands[0], index))


def _move(node: Node, operand: Node, index: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Where in the operand the elements lie.  Raises DependsOnData for an op that does more than to move them."""
    attrs = node.attrs
    if isinstance(attrs, BroadcastAttrs):
        return tuple(
            index[d] if extent != 1 else np.zeros_like(index[d])
            for d, extent in zip(attrs.dimensions, operand.shape, strict=True)
        )
    if isinstance(attrs, TransposeAttrs):
        places = np.argsort(attrs.permutation)
        return tuple(index[int(p)] for p in places)
    if isinstance(attrs, SliceAttrs):
        return tuple(
            i * stride + start
            for i, start, stride in zip(index, attrs.starts, attrs.strides, strict=True)
        )
    if OPS[node.op].is_view:
        if not index or not operand.shape:
            return tuple(np.zeros((), np.int64) for _ in operand.shape)
        flat = np.ravel_multi_index(np.broadcast_arrays(*index), node.shape)
        return tuple(np.unravel_index(flat, operand.shape))
    raise DependsOnData
