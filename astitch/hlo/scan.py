"""HLO's scan: a running sum or product as a reduce-window, which is what JAX lowers jnp.cumsum to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    ConstantAttrs,
    Graph,
    Literal,
    NoAttrs,
    Node,
    ParameterAttrs,
    SliceAttrs,
    WindowAttrs,
)
from astitch.graph.ops.windows import Running, running_window

_NEUTRAL = {"add": 0, "multiply": 1}
"""What each op of a running reduction must start from: its window is padded with the initial value."""


def find_running_op(
    regions: Sequence[Graph], nodes: Callable[[str], Node], operands: Sequence[str], results: int
) -> str | None:
    """The op of a scan of one input and one carry, which is also the result and starts neutral; None for others."""
    if len(regions) != 1 or len(operands) != 2 or results != 2:
        return None
    step, init = regions[0], nodes(operands[1])
    joins = {(step[o].op, frozenset(step[o].operands)) for o in step.outputs}
    if len(step.parameters) != 2 or len(step.outputs) != 2 or len(joins) != 1:
        return None
    op, joined = joins.pop()
    start = nodes(init.operands[0]) if isinstance(init.attrs, BroadcastAttrs) else init
    if (
        joined != set(step.parameters)
        or op not in _NEUTRAL
        or not isinstance(start.attrs, ConstantAttrs)
        or (start.attrs.value.numpy() != _NEUTRAL[op]).any()
    ):
        return None
    return op


def add_running(
    op: str,
    source: str,
    array: ArrayType,
    carry: ArrayType,
    running: Running,
    name: str,
    add: Callable[..., str],
) -> tuple[str, str]:
    """Adds the nodes of a running reduction; the names of all its results and of the last one.

    array, carry: the types of the two.  add: (name, op, type, operands, attrs, regions) -> the name of a new node.
    """
    scalar = ArrayType(array.dtype, ())
    names = tuple(
        Node(f"{name}.{side}", "parameter", scalar, attrs=ParameterAttrs(i))
        for i, side in enumerate("ab")
    )
    join = Node(f"{name}.join", op, scalar, tuple(n.name for n in names))
    nodes = {n.name: n for n in (*names, join)}
    region = Graph(f"{name}.region", nodes, tuple(n.name for n in names), (join.name,))
    extent = array.shape[running.dimension]
    literal = Literal.of(np.asarray(_NEUTRAL[op], array.dtype.numpy))
    begin = add(f"{name}.start", "constant", scalar, (), ConstantAttrs(literal), ())
    window: WindowAttrs = running_window(array.rank, running, extent)
    total = add(name, "reduce-window", array, (source, begin), window, (region,))
    place = 0 if running.backward else extent - 1
    starts = tuple(place if d == running.dimension else 0 for d in range(array.rank))
    limits = tuple(place + 1 if d == running.dimension else n for d, n in enumerate(array.shape))
    cut = SliceAttrs(starts, limits, (1,) * array.rank)
    shape = tuple(1 if d == running.dimension else n for d, n in enumerate(array.shape))
    last = add(f"{name}.last", "slice", ArrayType(array.dtype, shape), (total,), cut, ())
    return total, add(f"{name}.carry", "reshape", carry, (last,), NoAttrs(), ())
