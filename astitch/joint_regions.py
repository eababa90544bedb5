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
"""(count, mean, rest, M2): the mean is mean + rest, M2 the sum of squared deviations from it.

An element is (1, x, 0, 0).  A mean of one number is off by half of its last place, and M2 by the square of that for each
element: a mean of a thousand deviations shows it, one of a million hides the variance.  Where elements are infinite or
NaN, the mean is as their sum would be; then M2 is NaN, and rest has no meaning.
"""

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
    """(n, mean, rest, M2) of two sets -> of their union (Chan, Golub, LeVeque 1979), the mean in two numbers."""
    r = _Region("join_moments", dtype, 4)
    n1, mean1, rest1, m1, n2, mean2, rest2, m2 = r.parameters
    zero, one = r.number(0), r.number(1)
    n = r.put("add", n1, n2)
    # Two empty sets: a divisor of 1 keeps their zeros.
    share = r.put("divide", n2, r.put("maximum", n, one))
    gap = r.put("add", r.put("subtract", mean2, mean1), r.put("subtract", rest2, rest1))
    # An empty set has no mean, and from an infinite one no way leads back: these add up.
    filled = r.put("compare", n1, zero, attrs=CompareAttrs("GT", False), pred=True)
    finite = r.put("and", *(r.put("is-finite", m, pred=True) for m in (mean1, mean2)), pred=True)
    near = r.put("and", filled, finite, pred=True)
    step = r.put("select", near, r.put("multiply", gap, share), mean2)
    mean = r.put("add", mean1, step)
    rounded_away = r.put("subtract", step, r.put("subtract", mean, mean1))
    rests = r.put("select", near, rest1, r.put("add", rest1, rest2))
    spread = r.put("multiply", r.put("multiply", step, n1), gap)
    return r.graph(
        n, mean, r.put("add", rests, rounded_away), r.put("add", r.put("add", m1, m2), spread)
    )


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
