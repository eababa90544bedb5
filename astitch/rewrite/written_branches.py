"""Graph -> Graph: conditionals as selects between the results of all their branches.

For kernels that compute a whole turn of a loop: a branch of a few ops costs less than the turn that XLA would launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from astitch.graph.edit import is_pure
from astitch.graph.ir import (
    ConditionalAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    Node,
    TupleType,
)
from astitch.graph.ops import OPS
from astitch.rewrite.draft import Draft
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.simplify import rewrite_graph


def write_branches(graph: Graph) -> Graph:
    """The same function; conditionals with loops or effects in them stay."""
    if not any(isinstance(node.attrs, ConditionalAttrs) for node in graph):
        return graph
    chosen: dict[str, list[str]] = {}

    def change(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if isinstance(node.attrs, ConditionalAttrs):
            regions = [write_branches(region) for region in node.regions]
            if not all(map(_can_write, regions)):
                return None
            found = _choose(replace(node, regions=tuple(regions)), draft)
            if not isinstance(node.type, TupleType):
                return found[0]
            chosen[node.name] = found
        if isinstance(node.attrs, GetTupleElementAttrs):
            (source,) = graph[node.name].operands
            return chosen[source][node.attrs.index] if source in chosen else None
        return None

    return rewrite_graph(graph, lambda rule, node: None, change)


def _can_write(region: Graph) -> bool:
    return all(
        is_pure(node) and not OPS[node.op].is_loop and not isinstance(node.attrs, ConditionalAttrs)
        for node in region
    )


def _choose(node: Node, draft: Draft) -> list[str]:
    """The results of a conditional."""
    attrs = node.attrs
    assert isinstance(attrs, ConditionalAttrs)
    selector, *operands = node.operands
    ops = DraftOps(node, draft)
    results: list[list[str]] = []
    first = 0
    for count, region in zip(attrs.operand_counts, node.regions, strict=True):
        given = operands[first : first + count]
        results.append(ops.inline(region, given, region.outputs))
        first += count
    *others, last = results
    # One of several branches is named by its number; the last one has all other numbers, too.
    for number, branch in reversed([*enumerate(others)]):
        test = selector
        if draft[selector].dtype is not DType.PRED:
            wanted = ops.splat(number, draft[selector].dtype, ())
            test = ops.compare("EQ", selector, wanted)
        last = [_select(ops, test, a, b) for a, b in zip(branch, last, strict=True)]
    return last


def _select(ops: DraftOps, test: str, a: str, b: str) -> str:
    """select(test, a, b) for one truth.  Equal values need none."""
    if a == b:
        return a
    return ops.select(ops.spread(test, ops.draft[a].shape), a, b)
