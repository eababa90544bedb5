"""Group -> Mapping: which thread of which block computes which element (paper section 4.3).

The kind of a reduction decides which strategies are tried: astitch/tiling has a list for each kind.  The first
strategy of the list that applies gives the Mapping, which keeps the reasons against those before it.

    nothing is reduced              tiling/elementwise.py
    the contiguous dimensions       tiling/rows.py         a row-reduce
    strided dimensions              tiling/columns.py      a column-reduce
    both, with others between them  tiling/groups.py       a mixed reduce
    a running reduction (cumsum)    tiling/scans.py
"""

from __future__ import annotations

from astitch.device.gpu import Gpu
from astitch.device.schedule import DEFAULT, Schedule
from astitch.tiling.columns import COLUMNS, describe_columns
from astitch.tiling.elementwise import ELEMENTWISE
from astitch.tiling.groups import GROUPS
from astitch.tiling.rows import ROWS, describe_rows
from astitch.tiling.scans import SCANS, describe_scan
from astitch.tiling.space import (
    Mapping,
    Space,
)
from astitch.tiling.strategy import Request, take_first


def map_space(
    space: Space, gpu: Gpu, block: int, wave: int, schedule: Schedule = DEFAULT
) -> Mapping:
    """Adaptive thread mapping of a dominant: by the first strategy that applies to its kind of reduction.

    block: threads in a block, a power of two.  wave: blocks that the GPU holds at once; 1: they never wait for each
    other.
    """
    request = Request(space, gpu, block, wave, schedule)
    if space.running:
        return take_first(SCANS, describe_scan(request))
    if not space.reduced:
        return take_first(ELEMENTWISE, request)
    contiguous = space.atoms[-1] in space.reduced
    run = _minor_run(space, reduced=contiguous)
    col = space.atoms[len(space.atoms) - run :]
    row = tuple(a for a in space.atoms if a in space.reduced and a not in col)
    if not row:
        return take_first(ROWS, describe_rows(request))
    outer = tuple(a for a in space.atoms if a not in row and a not in col)
    problem = describe_columns(request, outer, row, col)
    return take_first(GROUPS if contiguous else COLUMNS, problem)


def _minor_run(space: Space, *, reduced: bool) -> int:
    """How many atoms, from the last on, are all reduced, or all kept."""
    length = 0
    while length < len(space.atoms) and (space.atoms[-1 - length] in space.reduced) == reduced:
        length += 1
    return length


def why_not_aligned(space: Space, mapping: Mapping) -> str | None:
    """None when a root of `space` can be computed by the threads of `mapping`, else the reason.

    Propagation of a mapping.  The outer axis must be wholly in the space, row and col each wholly in it or wholly
    absent; and an axis is wholly kept or wholly reduced.  Where row or col is absent and tiled, the value is computed
    in every tile along it, and counted or stored in one.
    """
    here = frozenset(space.atoms)
    axes = {"outer": mapping.outer, "row": mapping.row, "col": mapping.col}
    covered = frozenset(a for axis in axes.values() for a in axis)
    if not here <= covered:
        return "it has dimensions that the mapping does not walk over"
    for name, axis in axes.items():
        inside = [a for a in axis if a in here]
        if inside and len(inside) < len(axis):
            return f"it has only a part of the {name} axis"
        if not inside and axis and name == "outer":
            return "it would be recomputed for every outer index"
        reduced = [a for a in inside if a in space.reduced]
        if reduced and len(reduced) < len(inside):
            return f"it reduces only a part of the {name} axis"
    return None
