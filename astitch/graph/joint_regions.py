"""The regions of joint reductions: several results of one array that wait for each other, reduced in one pass.

A region joins what is known of two sets of elements; reassociate.py puts it into the graph.  The emitted text adds
elements to a state by shorter ways than the region's own, where joint_kind() allows it.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from astitch.graph.ir import (
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
"""(count, sum, lost, M2): the sum is sum + lost, M2 the sum of squared deviations from the mean.

An element is (1, x, 0, 0).  A mean of one number is off by half of its last place, and M2 by the square of that for
each element.  That shows where the mean is a thousand deviations; at millions it exceeds the variance.  A sum of two
numbers gives the mean twice as many digits.  Infinities and NaNs add up in `sum` as in any sum; then M2 is NaN, and
lost has no meaning.
"""

EXPONENTIALS = "exponentials"
"""(max, sum of exp(x - max)).  An element is (x, 1)."""


_SPLITTERS = {DType.F32: 2**12 + 1, DType.F64: 2**27 + 1}
"""The types of joint reductions, and by what a number of each is multiplied to find the first half of its digits."""


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


def _lost_in_sum(r: _Region, a: str, b: str, total: str) -> str:
    """What a + b lost when it was rounded (Knuth)."""
    second = r.put("subtract", total, a)
    first = r.put("subtract", a, r.put("subtract", total, second))
    return r.put("add", first, r.put("subtract", b, second))


def _lost_in_product(r: _Region, a: str, b: str, product: str) -> str:
    """What a * b lost when it was rounded (Dekker): of halves with half of the digits no product is rounded."""
    splitter = r.number(_SPLITTERS[r.type.dtype])

    def halve(value: str) -> tuple[str, str]:
        large = r.put("multiply", value, splitter)
        high = r.put("subtract", large, r.put("subtract", large, value))
        return high, r.put("subtract", value, high)

    (a1, a2), (b1, b2) = halve(a), halve(b)
    left = r.put("subtract", r.put("multiply", a1, b1), product)
    for x, y in ((a1, b2), (a2, b1), (a2, b2)):
        left = r.put("add", left, r.put("multiply", x, y))
    return left


def moments_region(dtype: DType) -> Graph:
    """(n, sum, lost, M2) of two sets -> of their union (Chan, Golub, LeVeque 1979), the means in two numbers each."""
    r = _Region("join_moments", dtype, 4)
    n1, sum1, lost1, m1, n2, sum2, lost2, m2 = r.parameters
    one = r.number(1)

    def filled(count: str) -> str:
        # Empty sets: a divisor of 1 keeps their zeros.
        return r.put("maximum", count, one)

    def mean(count: str, total: str, lost: str) -> tuple[str, str]:
        most = r.put("divide", total, count)
        product = r.put("multiply", most, count)
        left = r.put("subtract", total, product)
        left = r.put("subtract", left, _lost_in_product(r, most, count, product))
        return most, r.put("divide", r.put("add", left, lost), count)

    n = r.put("add", n1, n2)
    total = r.put("add", sum1, sum2)
    lost = r.put("add", r.put("add", lost1, lost2), _lost_in_sum(r, sum1, sum2, total))
    (most1, rest1), (most2, rest2) = mean(filled(n1), sum1, lost1), mean(filled(n2), sum2, lost2)
    gap = r.put("add", r.put("subtract", most2, most1), r.put("subtract", rest2, rest1))
    weight = r.put("multiply", n1, r.put("divide", n2, filled(n)))
    spread = r.put("multiply", r.put("multiply", weight, gap), gap)
    return r.graph(n, total, lost, r.put("add", r.put("add", m1, m2), spread))


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
    if dtype not in _SPLITTERS:
        return {}
    return {
        moments_region(dtype).key: MOMENTS,
        exponentials_region(dtype).key: EXPONENTIALS,
    }


def joint_kind(region: Graph) -> str:
    """MOMENTS or EXPONENTIALS for a region that is one of the above, else ''."""
    if len(region.outputs) < 2:
        return ""
    return _known(region[region.outputs[0]].dtype).get(region.key, "")
