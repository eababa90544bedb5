"""Which ops an emitted kernel can compute, and why it cannot compute the others."""

from __future__ import annotations

from collections.abc import Sequence

from astitch.graph.dimensions import array_of
from astitch.graph.ir import (
    ArrayType,
    AttentionAttrs,
    ConstantAttrs,
    CustomCallAttrs,
    DType,
    Graph,
    NarrowProductAttrs,
    Node,
    OpaqueAttrs,
    RowRegionAttrs,
    SortAttrs,
)
from astitch.graph.ops import OPS, Kind, monoid_of, neutral_element
from astitch.graph.ops.windows import find_running
from astitch.graph.recurrences import is_recurrence
from astitch.graph.running import why_not_liftable

STITCHABLE_DTYPES = frozenset(d for d in DType if not d.is_opaque)
"""Element types that the emitter renders."""


def is_computed(graph: Graph, node: Node) -> bool:
    """Does a kernel of ours do more with the op than to move elements?"""
    computes = OPS[node.op].kind in (Kind.ELEMENTWISE, Kind.REDUCE)
    return computes and why_not_stitchable(graph, node) is None


def is_own_call(node: Node) -> bool:
    """Is it, inside a program of XLA's, a kernel of tiles of ours or a library's that we call?"""
    return isinstance(node.attrs, (AttentionAttrs, NarrowProductAttrs, RowRegionAttrs))


def why_not_stitchable(graph: Graph, node: Node) -> str | None:
    """None when an emitted kernel can compute the node, else the reason."""
    kind = OPS[node.op].kind
    if isinstance(node.attrs, OpaqueAttrs):
        return node.attrs.reason
    if isinstance(node.attrs, AttentionAttrs):
        return "attention: kernels of its own" if node.attrs.tiles else "attention: a library call"
    if isinstance(node.attrs, NarrowProductAttrs):
        return "a product of few rows: a kernel of its own"
    if isinstance(node.attrs, RowRegionAttrs):
        return "products of narrow arrays and what is between them: a kernel of its own"
    if isinstance(node.attrs, CustomCallAttrs):
        return f"a call of {node.attrs.target!r}"
    if kind is Kind.COMPUTE:
        return "compute-intensive: a library call"
    if kind is Kind.CONTROL:
        return f"'{node.op}' is XLA's; inside a program of XLA's a loop may be one kernel"
    if kind is Kind.OTHER and find_running(node) is None:
        return f"'{node.op}' has no emitted form"
    if kind is Kind.PROJECTION:
        return (
            None
            if OPS[graph[node.operands[0]].op].is_reduce or find_running(graph[node.operands[0]])
            else "a result of an op that is not stitched"
        )
    if OPS[node.op].is_view:
        return None  # another view of its operand's buffer, whatever the element type
    types = [array_of(node), *(array_of(graph[o]) for o in node.operands)]
    for array in types:
        if array.dtype not in STITCHABLE_DTYPES:
            return f"element type {array.dtype.value} has no emitted form"
    if kind is Kind.ELEMENTWISE and not _has_form(node, types):
        return f"'{node.op}' of complex numbers has no emitted form"
    if kind is Kind.OTHER:
        return _why_not_running(graph, node)
    if kind is Kind.REDUCE:
        for inner in node.regions[0]:
            scalar = isinstance(inner.type, ArrayType) and inner.type.rank == 0
            if not scalar or OPS[inner.op].kind not in (Kind.ELEMENTWISE, Kind.SOURCE):
                return f"its region holds %{inner.name} = {inner.op}, which is not a scalar element-wise op"
            used = [array_of(node.regions[0][o]) for o in inner.operands]
            if OPS[inner.op].kind is Kind.ELEMENTWISE and not _has_form(inner, used):
                return (
                    f"its region holds '{inner.op}' of complex numbers, which has no emitted form"
                )
        inits = [graph[o] for o in node.operands[len(node.operands) // 2 :]]
        if monoid_of(node.regions[0]) is None and not all(
            isinstance(init.attrs, ConstantAttrs) for init in inits
        ):
            return "the identity of its region is unknown and its init value is not a constant"
    return None


def _has_form(node: Node, types: Sequence[ArrayType]) -> bool:
    """Has the element-wise op an emitted form for operands and results of these types?"""
    return OPS[node.op].takes_complex or not any(array.dtype.is_complex for array in types)


def _why_not_running(graph: Graph, node: Node) -> str | None:
    """None when a kernel can compute the running reduction: it starts from the identity of its region."""
    if isinstance(node.attrs, SortAttrs):
        return None
    if len(node.operands) > 2:
        known = is_recurrence(node, graph.nodes.__getitem__)
        return None if known else "it runs over several arrays, and is no linear recurrence"
    init, monoid = graph[node.operands[1]].attrs, monoid_of(node.regions[0])
    if not isinstance(init, ConstantAttrs):
        return "its init value is not a constant"
    unit = None if monoid is None else neutral_element(monoid, node.dtype)
    if monoid is not None and (unit is None or init.value.numpy() != unit):
        return "its init value changes the result"
    return why_not_liftable(node)
