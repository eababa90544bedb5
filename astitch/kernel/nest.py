"""Nest depths, and the axes of a mapping as variables of the kernel.

A value belongs at the outermost depth at which all symbols of its index are known.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from astitch.graph import index as ix
from astitch.graph.index import Linear, Symbol
from astitch.graph.ops.access import Index
from astitch.tiling.space import Mapping

LANE = Symbol("lane", 1 << 30)
"""The number of an element within a vector; its true extent never matters, for lanes are only ever added."""


def at_first_lane(form: Linear) -> Linear:
    """The form where the lane is 0; one that divides by something keeps the lane inside."""
    return ix.leave_out(form, LANE)


class Depth(enum.IntEnum):
    """Where a statement stands: each depth is a loop inside the one before."""

    KERNEL = 0
    TASK = 1
    ROW = 2
    COLUMN = 3
    LANE = 4
    AFTER = 5  # after the lanes of a vector: stores


class Axis:
    """One axis of a mapping and the variable that holds the thread's flat position on it."""

    def __init__(self, name: str, atoms: Sequence[Symbol], depth: Depth):
        self.name, self.atoms, self.depth = name, tuple(atoms), depth
        self.size = math.prod(a.extent for a in atoms)
        self.variable = Symbol(name, self.size)


Key = tuple[str, Index]
"""A value at an index: what the caches are keyed by."""


def make_axes(mapping: Mapping) -> tuple[Axis, Axis, Axis]:
    """The three axes of a mapping."""
    return (
        Axis("outer", mapping.outer, Depth.TASK),
        Axis("row", mapping.row, Depth.ROW),
        Axis("col", mapping.col, Depth.COLUMN),
    )


def depth_of_index(mapping: Mapping, index: Index) -> Depth:
    """The depth of an index by its atoms alone; start indices known at run time count as innermost."""
    innermost = Depth.LANE if mapping.vector > 1 else Depth.COLUMN
    depths = dict.fromkeys(mapping.outer, Depth.TASK)
    depths |= dict.fromkeys(mapping.row, Depth.ROW)
    depths |= dict.fromkeys(mapping.col, Depth.COLUMN)
    if mapping.col:
        depths[mapping.col[-1]] = innermost
    found = (depths.get(s, innermost) for form in index for s in ix.symbols(form))
    return max(found, default=Depth.TASK)
