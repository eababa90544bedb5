"""The states of a reduce in a thread: how many it has, and which of them is the element's at which the nest stands."""

from __future__ import annotations

from astitch.graph import index as ix
from astitch.graph.index import Linear, Symbol
from astitch.kernel import kernel_ir as k
from astitch.kernel.declarations import Declarations
from astitch.kernel.nest import LANE, Depth
from astitch.mapping.stitch_scheme import Placement
from astitch.tiling.space import Mapping


def kept_axes(m: Mapping, place: Placement) -> tuple[bool, bool]:
    """Does the result still vary along (row, col)?"""
    kept = frozenset(place.root.result_atoms)
    return any(a in kept for a in m.row), any(a in kept for a in m.col)


def space_axes(m: Mapping, place: Placement) -> tuple[bool, bool]:
    """Does the root's space have (row, col) at all?  `kept_axes` says no for an axis that it reduces, this yes."""
    here = frozenset(place.root.space.atoms)
    return any(a in here for a in m.row), any(a in here for a in m.col)


def count_states(m: Mapping, place: Placement) -> int:
    """States of one thread."""
    rows, cols = kept_axes(m, place)
    count = m.row_steps if rows else 1
    return count * (m.col_steps * m.vector if cols else 1)


def find_state(m: Mapping, place: Placement) -> tuple[Linear, Depth]:
    """The number of the state that holds the nest's current element, and the depth that knows it."""
    rows, cols = kept_axes(m, place)
    form, depth = ix.ZERO, Depth.TASK
    if rows:
        form = ix.of_symbol(Symbol("k", m.row_steps))
        depth = Depth.ROW
    if cols:
        form = ix.scale(form, m.col_steps * m.vector)
        form = ix.add(form, ix.scale(ix.of_symbol(Symbol("l", m.col_steps)), m.vector))
        depth = Depth.COLUMN
        if m.vector > 1:
            form, depth = ix.add(form, ix.of_symbol(LANE)), Depth.LANE
    return form, depth


class States:
    """The variables that hold the states of a loop's reduces.  names: by root."""

    def __init__(self, declarations: Declarations, mapping: Mapping) -> None:
        self.declarations, self.mapping = declarations, mapping
        self.names: dict[str, str] = {}

    def declare(self, place: Placement) -> k.Statement:
        """A new variable for the states of a reduce, each the identity."""
        reducer = self.declarations.reducer(place.root.name)
        name = self.declarations.fresh(f"{place.root.name}_state")
        self.names[place.root.name] = name
        return k.States(name, reducer.number, count_states(self.mapping, place))
