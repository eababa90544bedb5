"""Running sums and products, and linear recurrences, as nodes of a draft."""

from __future__ import annotations

from astitch.graph.ir import ConstantAttrs, GetTupleElementAttrs, Node, TupleType
from astitch.graph.ops.windows import Running, running_window
from astitch.graph.recurrences import recurrence_region, starts
from astitch.rewrite.draft_ops import DraftOps, Region


def put_recurrence(ops: DraftOps, a: str, b: str, running: Running, result: int = 1) -> str:
    """h[t] = a[t] * h[t - 1] + b[t] of two arrays of one shape and type (graph/recurrences.py).

    result: 0 for the products of a instead.
    """
    array = ops.draft[b].array
    begin = [
        ops.add("constant", array.dtype, (), (), ConstantAttrs(start))
        for start in starts(array.dtype)
    ]
    pair = Node(
        ops.draft.fresh(f"{ops.origin.name}.recurrence"),
        "reduce-window",
        TupleType((array, array)),
        (a, b, *begin),
        running_window(array.rank, running, array.shape[running.dimension]),
        (recurrence_region(array.dtype, running.backward),),
        ops.origin.op_name,
        ops.origin.source,
    )
    both = ops.draft.put(pair)
    return ops.add(
        "get-tuple-element", array.dtype, array.shape, (both,), GetTupleElementAttrs(result)
    )


def put_running(ops: DraftOps, x: str, running: Running, op: str, start: int) -> str:
    """A running sum or product."""
    array = ops.draft[x].array
    region = Region(array.dtype)
    combine = region.end(op, region.op(op, array.dtype, ("a", "b")))
    attrs = running_window(array.rank, running, array.shape[running.dimension])
    begin = ops.splat(start, array.dtype, ())
    return ops.add("reduce-window", array.dtype, array.shape, (x, begin), attrs, (combine,))
