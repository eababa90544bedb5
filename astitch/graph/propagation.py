"""Index propagation: (op, index of its result) -> what it reads, at which index, under which guard.

The row of an op knows how it maps result indices to operand indices (paper section 4.3; PAI V2's index cache).  The
scheme choice walks it symbolically, the lowering walks it to emit code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from astitch.graph.ir import Graph, Node
from astitch.graph.ops import OPS
from astitch.graph.ops.access import Access, Index, Read


def access(graph: Graph, node: Node, index: Index) -> Access:
    """What the value of `node` at `index` is computed from.  Not for sources, reduces and projections."""
    return OPS[node.op].index_map(graph, node, index)


def walk_reads(
    graph: Graph,
    starts: Iterable[Read],
    stop: Callable[[str], bool],
    visit: Callable[[Read, bool], None],
) -> None:
    """Depth-first over everything that the starts need; `visit(read, stopped)` once for each (node, index).

    `stop(name)` says which values are read rather than recomputed.
    """
    seen: set[Read] = set()
    stack = list(starts)
    while stack:
        read = stack.pop()
        if read in seen:
            continue
        seen.add(read)
        halted = stop(read.operand)
        visit(read, halted)
        if halted:
            continue
        found = access(graph, graph[read.operand], read.index)
        stack.extend(Read(d.operand, d.index) for d in found.dynamics)
        stack.extend(r for choice in found.choices for r in choice.reads)
