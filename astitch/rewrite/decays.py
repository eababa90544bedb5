"""Numbers of a tree -> which of them are powers of one: the decay that a recurrence has at each step.

`associative_scan` of pairs whose factor is a number multiplies numbers, so a compiler computes them: 0.96, 0.9216, ...
Each level of the tree has the square of the one before, rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from astitch.graph.ir import Graph
from astitch.graph.ops import OPS
from astitch.rewrite.draft import read_splat
from astitch.rewrite.finite_field import is_in_field

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
"""Narrower ones round too much to tell a power."""


def find_decays(graph: Graph, names: Iterable[str]) -> tuple[str, dict[str, int]] | None:
    """The scalar with the decay, and by name the power of it that a value is; None where the values' numbers are none.

    Powers are of two.  Whole numbers are no decays.
    """
    numbers = {name: number for name in names if (number := read_splat(graph, name)) is not None}
    numbers = {name: number for name, number in numbers.items() if not is_in_field(number)}
    if not numbers or any(n.dtype not in FLOATS or not 0 < n < 2 for n in numbers.values()):
        return None
    first = min(numbers, key=lambda name: abs(math.log(numbers[name])))
    base, powers = float(numbers[first]), dict[str, int]()
    for name, number in numbers.items():
        ratio = math.log(number) / math.log(base)
        if ratio <= 0:
            return None
        power = 1 << round(math.log2(ratio))
        near = power * float(np.finfo(number.dtype).eps)  # each square doubles what is rounded
        if abs(float(number) - base**power) > near * base**power:
            return None
        powers[name] = power
    node = graph[first]
    scalar = node.operands[0] if OPS[node.op].is_broadcast else first
    return scalar, powers
