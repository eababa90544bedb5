"""The combiner of a reduce: its state, its identity, and whether the region is one known operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from astitch.graph.dimensions import array_of
from astitch.graph.ir import (
    ArrayType,
    ConstantAttrs,
    DType,
    Graph,
    Literal,
    Node,
    ParameterAttrs,
    SortAttrs,
)
from astitch.graph.joint_regions import joint_kind
from astitch.graph.ops import monoid_of
from astitch.kernel.kernel_ir import Reducer


def _extreme(dtype: DType, *, largest: bool) -> np.ndarray:
    if dtype is DType.PRED:
        return np.array(largest)
    if dtype.is_float:
        largest_value = 448.0 if dtype is DType.F8E4M3FN else np.inf  # it has no infinity
        return np.array(largest_value if largest else -largest_value).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return np.array(info.max if largest else info.min, dtype.numpy)


IDENTITIES: Mapping[str, Callable[[DType], np.ndarray]] = {
    "add": lambda dtype: np.zeros((), dtype.numpy),
    "or": lambda dtype: np.zeros((), dtype.numpy),
    "xor": lambda dtype: np.zeros((), dtype.numpy),
    "multiply": lambda dtype: np.ones((), dtype.numpy),
    "maximum": lambda dtype: _extreme(dtype, largest=False),
    "minimum": lambda dtype: _extreme(dtype, largest=True),
    "and": lambda dtype: np.array(dtype is DType.PRED or -1).astype(dtype.numpy),
}
"""What a state of a known operation begins with."""


def make_reducer(graph: Graph, name: str, number: int) -> Reducer:
    """The combiner of a reduce.  Sums and products of floats below 32 bits accumulate in f32, as XLA's do."""
    node = graph[name]
    if isinstance(node.attrs, SortAttrs):
        return _reducer_of_sort(node.dtype, number)
    region = node.regions[0]
    count = len(node.operands) // 2
    dtypes = [array_of(graph[o]).dtype for o in node.operands[:count]]
    op = monoid_of(region)
    if op is None:
        inits = [graph[o].attrs for o in node.operands[count:]]
        values = tuple(a.value for a in inits if isinstance(a, ConstantAttrs))
        return Reducer(number, tuple(dtypes), region, values, joint=joint_kind(region))
    dtype = dtypes[0]
    wide = dtype.is_narrow_float and op in ("add", "multiply")
    state = DType.F32 if wide else dtype
    identity = Literal.of(IDENTITIES[op](state))
    return Reducer(number, (state,), region, (identity,), commutative=True)


def _reducer_of_sort(dtype: DType, number: int) -> Reducer:
    """The states of a sort: each begins as the largest, which stands behind a row's own elements."""
    scalar = ArrayType(dtype, ())
    nodes = {n: Node(n, "parameter", scalar, (), ParameterAttrs(i)) for i, n in enumerate("ab")}
    nodes["least"] = Node("least", "minimum", scalar, ("a", "b"))
    region = Graph("least", nodes, ("a", "b"), ("least",))
    identity = Literal.of(IDENTITIES["minimum"](dtype))
    return Reducer(number, (dtype,), region, (identity,), commutative=True)
