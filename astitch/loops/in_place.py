"""Which results of a loop that turns once may lie where an operand lay: of donated arrays, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from astitch.loops.analysis import Carried, Loop, find_shared
from astitch.loops.axes import Axis
from astitch.loops.cuts import Share


def find_in_place(loop: Loop, shares: Sequence[Share]) -> Iterator[tuple[int, int]]:
    """Pairs of a state that is written and one that is read, which start as one array.

    A thread, or the warp that stages its rows, reads all its rows before it writes one, and no other row.  So one
    result may lie where an array lay, if it is read as one state: other shares have other threads.
    """
    share, *others = shares
    axes = share.axes
    if others or loop.trips != 1 or axes.units != 1 or share.steps.lookups:
        return
    reads = {read.state: read.name for read in share.steps.reads if not read.small}
    readers = Counter(loop.node.operands[read.state] for read in share.steps.reads)
    taken: set[int] = set()
    for written, read in find_shared(loop.node, loop.starts):
        role = loop.roles[written]
        if written not in share.used or read not in reads or not isinstance(role, Carried):
            continue
        if read in taken or readers[loop.node.operands[read]] > 1:
            continue
        places = [
            (axes.dimension(name, Axis.ROW), axes.dimension(name, Axis.COLUMN))
            for name in (role.value, reads[read])
        ]
        shapes = [loop.body[loop.body.parameters[state]].shape for state in (written, read)]
        if places[0] == places[1] and shapes[0] == shapes[1] and places[0][0] is not None:
            taken.add(read)
            yield written, read
