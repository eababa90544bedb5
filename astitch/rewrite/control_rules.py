"""Rules of simplify for loops, branches and their results."""

from __future__ import annotations

import numpy as np

from astitch.graph.edit import is_pure
from astitch.graph.ir import (
    BroadcastAttrs,
    ConditionalAttrs,
    ConstantAttrs,
    GetTupleElementAttrs,
    Node,
    TupleType,
)
from astitch.graph.ops import OPS
from astitch.rewrite.draft import Draft, become, read_splat
from astitch.rewrite.draft_ops import DraftOps


def project_known_result(node: Node, draft: Draft) -> Node | str | None:
    """get-tuple-element(while(x, ..), i) -> x if the loop never runs or hands x on unchanged;
    get-tuple-element(conditional(constant, ..), i) -> result i of that branch;
    get-tuple-element(reduce(empty, .., e, ..), i) -> broadcast(e)
    """
    assert isinstance(node.attrs, GetTupleElementAttrs)
    inner, index = draft[node.operands[0]], node.attrs.index
    if inner.op == "reduce" and draft[inner.operands[0]].array.size == 0:
        init = inner.operands[len(inner.operands) // 2 + index]
        return become(node, "broadcast", (init,), BroadcastAttrs(()))
    return _known_result(inner, index, draft)


def choose_known_result(node: Node, draft: Draft) -> Node | str | None:
    """the same for a while or a conditional with one result"""
    return None if isinstance(node.type, TupleType) else _known_result(node, 0, draft)


def _known_result(node: Node, index: int, draft: Draft) -> str | None:
    if OPS[node.op].is_loop:
        condition, body = node.regions
        proceed = condition[condition.outputs[0]]
        never = isinstance(proceed.attrs, ConstantAttrs) and not proceed.attrs.value.numpy()
        if never or body.outputs[index] == body.parameters[index]:
            return node.operands[index]
        return None
    if not isinstance(node.attrs, ConditionalAttrs):
        return None
    selector = read_splat(draft, node.operands[0])
    if selector is None or not all(is_pure(n) for r in node.regions for n in r):
        return None
    last = len(node.regions) - 1
    if selector.dtype == np.bool_:
        selector = ~selector  # true takes branch 0
    branch = int(selector) if 0 <= selector <= last else last
    counts = node.attrs.operand_counts
    first = 1 + sum(counts[:branch])
    operands = node.operands[first : first + counts[branch]]
    region = node.regions[branch]
    (found,) = DraftOps(node, draft).inline(region, operands, (region.outputs[index],))
    return found
