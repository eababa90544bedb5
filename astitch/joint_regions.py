"""The regions of joint reductions: several results of one array that wait for each other, reduced in one pass.

A region joins what is known of two sets of elements; reassociate.py puts it into the graph, and the emitted text adds
elements to a state by shorter ways than the region's own, which joint_kind() allows it to.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from astitch.ir import (
    ArrayType,
    Attrs,
    CompareAttrs,
    ConstantAttrs,
    DType,
    Graph,
    Literal,
    Node,
    ParameterAttrs,
)

MOMENTS = "moments"
"""(count, mean, M2): M2 is the sum of squared deviations from the mean.  An element is (1, x, 0)."""

EXPONENTIALS = "exponentials"
"""(max, sum of exp(x - max)).  An element is (x, 1)."""


class _Region:
    """A scalar graph in the making."""

    def __init__(self, name: str, dtype: DType, fields: int):
        self.name, self.type = name, ArrayType(dtype, ())
        self.nodes: dict[str, Node] = {}
        self.parameters = tuple(
            self.put("parameter", attrs=ParameterAttrs(i)) for i in range(2 * fields)
        )

    def put(self, op: str, *operands: str, attrs: Attrs | None = None, pred: bool = False) -> str:
        name = f"{op.replace('-', '_')}.{len(self.nodes)}"
        kind = ArrayType(DType.PRED, ()) if pred else self.type
        node = Node(name, op, kind, operands)
        self.nodes[name] = node if attrs is None else replace(node, attrs=attrs)
        return name

    def number(self, value: float) -> str:
        literal = Literal.of(np.asarray(value, self.type.dtype.numpy))
        return self.put("constant", attrs=ConstantAttrs(literal))

    def graph(self, *outputs: str) -> Graph:
        return Graph(self.name, self.nodes, self.parameters, outputs)


def moments_region(dtype: DType) -> Graph:
    """(n, mean, M2) of two sets -> of their union (Chan, Golub, LeVeque 1979)."""
    r = _Region("join_moments", dtype, 3)
    n1, mean1, m1, n2, mean2, m2 = r.parameters
    n = r.put("add", n1, n2)
    # Two empty sets: a divisor of 1 keeps their zeros.
    share = r.put("divide", n2, r.put("maximum", n, r.number(1)))
    gap = r.put("subtract", mean2, mean1)
    step = r.put("multiply", gap, share)
    mean = r.put("add", mean1, step)
    spread = r.put("multiply", r.put("multiply", step, n1), gap)
    return r.graph(n, mean, r.put("add", r.put("add", m1, m2), spread))


def exponentials_region(dtype: DType) -> Graph:
    """(max, sum of exp(a - max)) of two sets -> of their union (Milakov and Gimelshein 2018)."""
    r = _Region("join_exponentials", dtype, 2)
    max1, sum1, max2, sum2 = r.parameters
    largest = r.put("maximum", max1, max2)
    one = r.number(1)

    def rescale(own: str, total: str) -> str:
        # An equal max needs no factor: infinite ones would make it NaN.
        same = r.put("compare", own, largest, attrs=CompareAttrs("EQ", False), pred=True)
        factor = r.put("exponential", r.put("subtract", own, largest))
        return r.put("multiply", total, r.put("select", same, one, factor))

    return r.graph(largest, r.put("add", rescale(max1, sum1), rescale(max2, sum2)))


@functools.cache
def _known(dtype: DType) -> dict[tuple[object, ...], str]:
    return {
        moments_region(dtype).key: MOMENTS,
        exponentials_region(dtype).key: EXPONENTIALS,
    }


def joint_kind(region: Graph) -> str:
    """MOMENTS or EXPONENTIALS for a region that is one of the above, else ''."""
    if len(region.outputs) < 2:
        return ""
    return _known(region[region.outputs[0]].dtype).get(region.key, "")
