"""Linear recurrences: h[t] = a[t] * h[t - 1] + b[t] as a running reduction of pairs, which a kernel scans.

A pair is the step h -> a * h + b.  Two steps, one after the other, are a step too: (a1, b1) and (a2, b2) give
(a1 * a2, a2 * b1 + b2).  That is associative and begins with (1, 0).  A reduce-window of both arrays gives the running
products of a, and h from 0 on.  Backward, h[t] = a[t] * h[t + 1] + b[t]: of two pairs the second is the first step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    Attrs,
    ConstantAttrs,
    DType,
    Graph,
    Literal,
    NoAttrs,
    Node,
    PadAttrs,
    ParameterAttrs,
    SliceAttrs,
)
from astitch.graph.ops import OPS
from astitch.graph.ops.windows import find_running

TYPES = frozenset({DType.F32, DType.F64, DType.C64, DType.C128})
"""Element types of recurrences.  Of narrow floats the running products would lose digits at each step."""

STARTS = (1, 0)
"""What a and b begin with."""


@functools.cache
def recurrence_region(dtype: DType, backward: bool) -> Graph:
    """(a1, b1, a2, b2) -> (a1 * a2, a2 * b1 + b2), or (a1 * a2, a1 * b2 + b1) backward; scalars of the type."""
    factor, state, added = ("a1", "b2", "b1") if backward else ("a2", "b1", "b2")
    scalar = ArrayType(dtype, ())
    names = ("a1", "b1", "a2", "b2")
    nodes = {n: Node(n, "parameter", scalar, (), ParameterAttrs(i)) for i, n in enumerate(names)}
    for name, op, operands in (
        ("a", "multiply", ("a1", "a2")),
        ("kept", "multiply", (factor, state)),
        ("b", "add", ("kept", added)),
    ):
        nodes[name] = Node(name, op, scalar, operands)
    return Graph("recurrence", nodes, names, ("a", "b"))


def is_recurrence(node: Node, find: Callable[[str], Node]) -> bool:
    """Is a running reduction of two arrays such a recurrence, from 1 and 0 on?  find: a node by its name."""
    if not joins_steps(node) or find(node.operands[0]).array.dtype not in TYPES:
        return False
    begin = (find(name).attrs for name in node.operands[2:])
    return all(
        isinstance(attrs, ConstantAttrs) and attrs.value.numpy() == start
        for attrs, start in zip(begin, STARTS, strict=True)
    )


def joins_steps(node: Node) -> bool:
    """Is it a running reduction by the region above, whatever the order in which that is written?"""
    running = find_running(node) if len(node.operands) == 4 else None
    if running is None:
        return False
    (region,) = node.regions
    a1, b1, a2, b2 = region.parameters
    factor, state, last = (a1, b2, b1) if running.backward else (a2, b1, b2)
    a, b = (region[name] for name in region.outputs)
    if not _multiplies(a, a1, a2) or OPS[b.op].combiner is not np.add or last not in b.operands:
        return False
    others = [region[name] for name in b.operands if name != last]
    return len(others) == 1 and _multiplies(others[0], factor, state)


def _multiplies(node: Node, x: str, y: str) -> bool:
    return OPS[node.op].combiner is np.multiply and {*node.operands} == {x, y}


def write_out(node: Node, array: ArrayType) -> tuple[list[Node], tuple[str, str]]:
    """A recurrence for XLA, which would compute each element by itself: log2(T) steps, each twice as far as the last.

    node: joins steps.  array: the type of both results.  The nodes, and the names of the results among them.
    """
    running = find_running(node)
    assert running
    d, backward, extent = running.dimension, running.backward, array.shape[running.dimension]
    a, b, one, zero = node.operands
    found: list[Node] = []

    def put(op: str, type_: ArrayType, operands: tuple[str, ...], attrs: Attrs = NoAttrs()) -> str:
        name = f"{node.name}#step{len(found)}"
        found.append(Node(name, op, type_, operands, attrs, (), node.op_name, node.source))
        return name

    def along(number: int) -> tuple[int, ...]:
        return tuple(number if place == d else 0 for place in range(array.rank))

    def before(x: str, start: str, far: int) -> str:
        """Of each element the one so many steps before it."""
        first, last = (along(far), along(0)) if backward else (along(0), along(far))
        limits = tuple(n - cut for n, cut in zip(array.shape, last, strict=True))
        shape = tuple(limit - cut for limit, cut in zip(limits, first, strict=True))
        cut = SliceAttrs(first, limits, (1,) * array.rank)
        kept = put("slice", ArrayType(array.dtype, shape), (x,), cut)
        return put("pad", array, (kept, start), PadAttrs(last, first, along(0)))

    far = 1
    while far < extent:
        carried = put("multiply", array, (a, before(b, zero, far)))
        b = put("add", array, (carried, b))
        a = put("multiply", array, (a, before(a, one, far)))
        far *= 2
    return found, (a, b)


def starts(dtype: DType) -> tuple[Literal, Literal]:
    """1 and 0 in the type."""
    one, zero = (Literal.of(np.asarray(start, dtype.numpy)) for start in STARTS)
    return one, zero
