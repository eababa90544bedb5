"""Graph -> Graph: short loops in which each element goes its own way, written out.

A search among sorted numbers is such a loop: each turn compares, and halves what is left.  Written out it is
element-wise, so that a thread keeps its state in registers, and what stands around it is in the same kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from astitch.graph.edit import is_pure, keep_live_nodes
from astitch.graph.ir import GetTupleElementAttrs, Graph, Node, TupleType
from astitch.graph.ops import OPS, Kind
from astitch.graph.stitchable import why_not_stitchable
from astitch.loops.analysis import count_turns
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.simplify import rewrite_graph, simplify

MOST_TURNS = 32
"""A search among 2^32 numbers."""

MOST_OPS = 1000
"""Of all turns together."""

MOST_INNER_OPS = 4000
"""The same of a loop in the body of another, where each op is of a few numbers."""

MOST_INNER_BYTES = 4 << 20
"""Of the state of such a loop.  To write a larger one takes about as long as a launch, so nothing is gained.  Where a
turn reads it at shifted places, a plan of all turns takes long to make."""


def unroll_searches(
    graph: Graph, stays: Callable[[Graph, Node], bool], log: Log | None = None
) -> Graph:
    """The same function.  stays: is a loop one kernel as it stands, which gains nothing where it is written out?"""
    heard: Log = log or (lambda rule, node: None)
    turns = {
        node.name: found
        for node in graph
        if OPS[node.op].is_loop and (found := _count_short(graph, node)) and not stays(graph, node)
    }
    return _unroll(graph, turns, heard) if turns else graph


def _unroll(graph: Graph, turns: Mapping[str, int], heard: Log) -> Graph:
    """The graph with the loops of these turns written out."""
    ends: dict[str, list[str]] = {}

    def change(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if node.name in turns:
            heard("unroll_searches", node.name)
            ends[node.name] = _write_out(node, turns[node.name], draft)
            return None if isinstance(node.type, TupleType) else ends[node.name][0]
        if node.name in graph.nodes and isinstance(
            a := graph[node.name].attrs, GetTupleElementAttrs
        ):
            (source,) = graph[node.name].operands
            return ends[source][a.index] if source in ends else None
        return None

    return rewrite_graph(graph, heard, change)


def unroll_inner(body: Graph) -> tuple[Graph, int]:
    """A loop's body with its short loops written out, and how often these turn in all; the same body without any."""
    turns = {
        node.name: counted[0]
        for node in body
        if OPS[node.op].is_loop
        and (counted := count_turns(body, node))
        and counted[0] * len(node.regions[1].nodes) <= MOST_INNER_OPS
        and _count_carried(node) <= MOST_INNER_BYTES
    }
    if not turns:
        return body, 0
    return simplify(_unroll(body, turns, lambda rule, node: None)), sum(turns.values())


def _count_carried(node: Node) -> int:
    """The bytes of the state that a turn computes anew, not in place."""
    body = node.regions[1]
    pairs = zip(body.parameters, body.outputs, strict=True)
    return sum(
        body[name].array.bytes
        for name, output in pairs
        if name != output and not OPS[body[output].op].writes_into
    )


def _count_short(graph: Graph, node: Node) -> int:
    """The turns of a loop that may be written out; 0: it may not."""
    _, body = node.regions
    counted = count_turns(graph, node)
    if counted is None or not 0 < counted[0] <= MOST_TURNS:
        return 0
    live = keep_live_nodes(body.nodes, body.outputs)
    computed = [n for n in live.values() if OPS[n.op].kind is not Kind.SOURCE]
    if len(computed) * counted[0] > MOST_OPS or not _goes_by_element(body, live):
        return 0
    return counted[0]


def _goes_by_element(body: Graph, live: Mapping[str, Node]) -> bool:
    """Does each element of the state need only itself, and what the loop leaves as it is?"""
    pairs = zip(body.parameters, body.outputs, strict=True)
    fixed = {parameter for parameter, output in pairs if parameter == output}
    moved = False
    for node in live.values():
        row = OPS[node.op]
        if not node.is_parameter and all(o in fixed for o in node.operands):
            fixed.add(node.name)
        if node.is_parameter:
            continue
        if why_not_stitchable(body, node) or not is_pure(node):
            return False
        if row.kind is Kind.INDEX and not row.is_view:
            if row.chooses or node.operands[0] not in fixed:
                return False
            moved |= node.name not in fixed
        elif row.kind not in (Kind.ELEMENTWISE, Kind.BROADCAST, Kind.SOURCE) and not row.is_view:
            return False
    return moved


def _write_out(node: Node, turns: int, draft: Draft) -> list[str]:
    """The state after the last turn."""
    _, body = node.regions
    ops, state = DraftOps(node, draft), [*node.operands]
    for _ in range(turns):
        state = ops.inline(body, state, body.outputs)
    return state
