"""Graph -> which f32 functions end in a value of 16 bits, so that 22 bits of them are enough.

An f32 function may end in f16 or bf16, with only light arithmetic before the conversion.  The special function unit
then approximates it: an error of about 2^-22 disappears in the rounding to 2^-11 or 2^-8.  It would show only where
almost all of the value cancels in a sum; there the function's own rounding would show too.  An exponential below 2^-126
is 0 even if a factor above 1 would bring it back into the range of the narrow type.
"""

from __future__ import annotations

from collections.abc import Sequence

from astitch.graph.ir import DType, Graph
from astitch.graph.ops import OPS


def find_narrow_ends(graph: Graph, members: Sequence[str]) -> frozenset[str]:
    """The f32 functions all of whose uses end in a conversion to f16 or bf16, within `members`, which are
    in topological order."""
    ends: dict[str, bool] = {}
    outputs = frozenset(graph.outputs)
    for node in map(graph.__getitem__, reversed(members)):
        row = OPS[node.op]
        narrow = row.is_approximate or row.carries_narrow
        if not narrow or node.dtype is not DType.F32 or node.name in outputs:
            ends[node.name] = False
            continue
        users = [graph[u] for u in graph.users[node.name]]
        ends[node.name] = bool(users) and all(
            (OPS[u.op].is_conversion and u.dtype in (DType.F16, DType.BF16))
            or (ends.get(u.name, False) and not OPS[u.op].is_approximate)
            for u in users
        )
    return frozenset(
        name for name, yes in ends.items() if yes and OPS[graph[name].op].is_approximate
    )
