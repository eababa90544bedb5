"""Ops of trees in a finite field: what restore_recurrences.py compares polynomials with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from astitch.graph.ir import Node, PadAttrs, SliceAttrs

PRIME = (1 << 31) - 1
"""The field's size.  A tree over 16,384 steps is of degree 16,385: two points err together once in 10^10."""

Vector = np.ndarray
"""[lanes of each summed dimension .., steps], uint64 below PRIME.  All other dimensions are alike.  What is the same at
each step has one."""


def is_in_field(number: np.ndarray) -> bool:
    """Is it a whole number that the field tells from others?"""
    return bool(number == np.round(number.real) and abs(number) < PRIME)


def to_field(number: np.ndarray) -> int:
    return int(number.real) % PRIME


@dataclass(frozen=True, slots=True)
class Meaning:
    """run: an op in the field, along a dimension.  operands: how many it reads as vectors; 0: all."""

    run: Callable[[Node, int, Sequence[Vector]], Vector]
    operands: int = 0


def _slice(node: Node, d: int, x: Sequence[Vector]) -> Vector:
    assert isinstance(node.attrs, SliceAttrs)
    return x[0][..., node.attrs.starts[d] : node.attrs.limits[d] : node.attrs.strides[d]]


def _pad(node: Node, d: int, x: Sequence[Vector]) -> Vector:
    assert isinstance(node.attrs, PadAttrs)
    low, high, gap = node.attrs.low[d], node.attrs.high[d], node.attrs.interior[d] + 1
    *lanes, steps = x[0].shape
    spread = np.zeros((*lanes, max((steps - 1) * gap + 1, 0)), np.uint64)
    spread[..., ::gap] = x[0]
    edges = [(0, 0)] * len(lanes) + [(max(low, 0), max(high, 0))]
    padded = np.pad(spread, edges)
    return padded[..., max(-low, 0) : padded.shape[-1] - max(-high, 0)]


def _concatenate(node: Node, d: int, x: Sequence[Vector]) -> Vector:
    lanes = np.broadcast_shapes(*(piece.shape[:-1] for piece in x))
    return np.concatenate([np.broadcast_to(p, (*lanes, p.shape[-1])) for p in x], -1)


EVALUATED: dict[str, Meaning] = {
    "add": Meaning(lambda node, d, x: (x[0] + x[1]) % PRIME),
    "subtract": Meaning(lambda node, d, x: (x[0] + PRIME - x[1]) % PRIME),
    "multiply": Meaning(lambda node, d, x: x[0] * x[1] % PRIME),
    "negate": Meaning(lambda node, d, x: (PRIME - x[0]) % PRIME),
    "convert": Meaning(lambda node, d, x: x[0]),
    "copy": Meaning(lambda node, d, x: x[0]),
    "reshape": Meaning(lambda node, d, x: x[0]),
    "slice": Meaning(_slice),
    "pad": Meaning(_pad, 1),
    "concatenate": Meaning(_concatenate),
    "reverse": Meaning(lambda node, d, x: x[0][..., ::-1]),
    "broadcast": Meaning(lambda node, d, x: x[0]),
    "reduce": Meaning(lambda node, d, x: x[0], 1),
}
"""The ops of trees.  Conversions between floats round; a polynomial does not.  _Point sums the lanes."""


def run_recurrences(a: Vector, b: Vector, start: Vector) -> Vector:
    """h[t] = a[t] * h[t - 1] + b[t] along the last dimension, from `start` on: in pieces, all of them side by side."""
    *outer, steps = a.shape
    length = math.isqrt(steps - 1) + 1
    count = -(-steps // length)
    edges = [(0, 0)] * len(outer) + [(0, count * length - steps)]
    a, b = (np.pad(x, edges).reshape(*outer, count, length) for x in (a, b))
    products, states = np.empty_like(a), np.empty_like(b)
    product, state = np.ones(a.shape[:-1], np.uint64), np.zeros(b.shape[:-1], np.uint64)
    for step in range(length):
        state = (a[..., step] * state + b[..., step]) % PRIME
        product = a[..., step] * product % PRIME
        states[..., step], products[..., step] = state, product
    carried = np.broadcast_to(start, outer)
    for piece in range(count):
        own = (states[..., piece, :] + products[..., piece, :] * carried[..., None]) % PRIME
        states[..., piece, :], carried = own, own[..., -1]
    return states.reshape(*outer, count * length)[..., :steps]


def grow(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def move_on(x: Vector, backward: bool, start: int) -> Vector:
    """Each element where the next step is; the first step has `start`."""
    first = np.full((*x.shape[:-1], 1), start, np.uint64)
    return np.concatenate([x[..., 1:], first] if backward else [first, x[..., :-1]], -1)


def raise_to(x: Vector, power: int) -> Vector:
    """power: of two."""
    for _ in range(power.bit_length() - 1):
        x = x * x % np.uint64(PRIME)
    return x
