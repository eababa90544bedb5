"""The gradient of a pooling that XLA wrote out as a scatter, as element-wise ops."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from astitch.graph.edit import keep_live_nodes
from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    CompareAttrs,
    ConstantAttrs,
    DimensionAttrs,
    GetTupleElementAttrs,
    Graph,
    IotaAttrs,
    Node,
    ParameterAttrs,
    ScatterAttrs,
    SliceAttrs,
    TupleType,
    WindowAttrs,
)
from astitch.graph.ops import OPS
from astitch.rewrite.draft import Draft, read_splat
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.reduction_rules import combiner_op
from astitch.rewrite.select_and_scatter import add_where_selected

CONNECTIVES: Mapping[str, Callable[[Sequence[bool]], bool]] = {
    "and": all,
    "or": any,
    "not": lambda values: not values[0],
}
"""How XLA joins conditions."""


def restore_pooling(node: Node, draft: Draft) -> str | None:
    """scatter(e, where each window of x chose, u) -> select-and-scatter(x, u, e), as element-wise ops

    Of an array y and sums: y + select-and-scatter(x, u, -0), as a U-Net has it, whose maps are read twice.
    None where it would not become element-wise: after the hook XLA no longer takes in a select-and-scatter.
    """
    a, rank = node.attrs, node.array.rank
    if not isinstance(a, ScatterAttrs) or len(node.operands) != 3:
        return None
    base, indices, updates = (draft[o] for o in node.operands)
    start = read_splat(draft, base.name)
    elementwise = ScatterAttrs(tuple(range(1, rank + 1)), (), tuple(range(rank)), 1)
    plain = replace(a, indices_are_sorted=False, unique_indices=False)
    if plain != elementwise or (start is None and combiner_op(node.regions[0]) != "add"):
        return None
    chosen = _find_chosen(draft, indices, node.shape)
    if chosen is None or updates.array.size * rank != indices.array.size:
        return None
    select = _read_selection(chosen)
    if select is None:
        return None
    first, x = _first_type(chosen), draft[chosen.operands[0]]
    if first.size != updates.array.size or x.dtype != select[select.parameters[0]].dtype:
        return None
    each = draft.add(node, "reshape", ArrayType(updates.dtype, first.shape), (updates.name,))
    if start is None:
        # A -0 of y stays one: -0 + 0 would be 0.
        scalar = DraftOps(node, draft).splat(-0.0, base.dtype, ())
    else:
        scalar = base.operands[0] if isinstance(base.attrs, BroadcastAttrs) else base.name
        scalar = draft.add(node, "reshape", ArrayType(base.dtype, ()), (scalar,))
    made = replace(
        node,
        op="select-and-scatter",
        type=ArrayType(node.dtype, x.shape),
        operands=(x.name, each, scalar),
        attrs=chosen.attrs,
        regions=(select, node.regions[0]),
    )
    value = add_where_selected(made, draft)
    if value is None:
        return None
    if x.shape != node.shape:
        # XLA scatters into an array without the padding behind x: what is out of range is dropped.
        cut = SliceAttrs((0,) * rank, node.shape, (1,) * rank)
        value = draft.add(node, "slice", node.array, (value,), cut)
    return value if start is not None else draft.add(node, "add", node.array, (base.name, value))


def _first_type(node: Node) -> ArrayType:
    """Of a node with several results, the type of the first."""
    assert isinstance(node.type, TupleType)
    first = node.type.elements[0]
    assert isinstance(first, ArrayType)
    return first


def _find_chosen(draft: Draft, indices: Node, shape: tuple[int, ...]) -> Node | None:
    """The reduce-window whose results are indices [windows, rank]: where in an array each window chose.

    shape: of the array, which may lack elements at the end of a dimension.
    """
    rank = len(shape)
    joined = _skip_views(draft, indices)
    pieces = [joined]
    if isinstance(joined.attrs, DimensionAttrs):
        if joined.attrs.dimension != joined.array.rank - 1 or joined.shape[-1] != rank:
            return None
        pieces = [_skip_views(draft, draft[o]) for o in joined.operands]
    windows = {piece.operands[0] for piece in pieces if piece.operands}
    numbers = [p.attrs.index if isinstance(p.attrs, GetTupleElementAttrs) else 0 for p in pieces]
    if numbers != list(range(1, rank + 1)) or len(windows) != 1:
        return None
    chosen = draft[windows.pop()]
    if not isinstance(chosen.attrs, WindowAttrs) or len(chosen.operands) != 2 * (rank + 1):
        return None
    x, *places = (draft[o] for o in chosen.operands[: rank + 1])
    if any(n < m for n, m in zip(x.shape, shape, strict=True)):
        return None
    if not all(_counts_along(draft, place, d) for d, place in enumerate(places)):
        return None
    nowhere = (read_splat(draft, o) for o in chosen.operands[rank + 2 :])
    return chosen if all(n is not None and n == -1 for n in nowhere) else None


def _skip_views(draft: Draft, node: Node) -> Node:
    while OPS[node.op].is_view:
        node = draft[node.operands[0]]
    return node


def _counts_along(draft: Draft, node: Node, dimension: int) -> bool:
    """Is each element its own index along a dimension?"""
    if isinstance(node.attrs, IotaAttrs):
        return node.attrs.dimension == dimension
    if isinstance(node.attrs, BroadcastAttrs):
        inner = draft[node.operands[0]]
        if isinstance(inner.attrs, IotaAttrs) and inner.array.rank == 1:
            return node.attrs.dimensions == (dimension,)
    value = read_splat(draft, node.name)
    return value is not None and value == 0 and node.shape[dimension] == 1


def _read_selection(chosen: Node) -> Graph | None:
    """`a, b -> whether a window keeps a`, from a region of (element, place ..) twice.

    The region keeps the first where there is one that is as good, or where there is no second.  Places are -1 where
    there is none.
    """
    (region,) = chosen.regions
    half = len(region.parameters) // 2
    first, second = region.parameters[:half], region.parameters[half:]
    keeps = {region[o].operands[0] for o in region.outputs if len(region[o].operands) == 3}
    picked = [region[o].operands[1:] for o in region.outputs]
    if len(keeps) != 1 or picked != list(zip(first, second, strict=True)):
        return None
    condition = _Condition(region, set(first[1:]), set(second[1:]))
    is_as_good = condition.find_selection(keeps.pop())
    return None if is_as_good is None else _cut_out(region, is_as_good, (first[0], second[0]))


class _Condition:
    """A condition over whether there is a first place, whether there is a second, and one that it leaves open."""

    def __init__(self, region: Graph, first: set[str], second: set[str]) -> None:
        self.region, self.first, self.second = region, first, second
        self.open: set[str] = set()

    def find_selection(self, name: str) -> str | None:
        """The condition that it leaves open, if with that one it is `(as good and a first) or no second`."""
        for as_good, one, two in itertools.product((False, True), repeat=3):
            value = self.evaluate(name, as_good, one, two)
            if value is None or value != ((as_good and one) or not two):
                return None
        return self.open.pop() if len(self.open) == 1 else None

    def evaluate(self, name: str, as_good: bool, one: bool, two: bool) -> bool | None:
        node = self.region[name]
        there = self.is_there(node, one, two)
        if there is not None:
            return there
        if node.op not in CONNECTIVES:
            self.open.add(name)
            return as_good
        values = [self.evaluate(o, as_good, one, two) for o in node.operands]
        known = [v for v in values if v is not None]
        return CONNECTIVES[node.op](known) if len(known) == len(values) else None

    def is_there(self, node: Node, one: bool, two: bool) -> bool | None:
        """The value of a comparison of a place with -1."""
        if not isinstance(node.attrs, CompareAttrs):
            return None
        place, number = node.operands
        if place not in self.first | self.second:
            place, number = number, place
        value = self.region[number]
        if place not in self.first | self.second:
            return None
        if not _is_nowhere(value) or node.attrs.direction not in ("NE", "EQ"):
            return None
        there = one if place in self.first else two
        return there if node.attrs.direction == "NE" else not there


def _is_nowhere(node: Node) -> bool:
    return isinstance(node.attrs, ConstantAttrs) and bool(np.all(node.attrs.value.numpy() == -1))


def _cut_out(region: Graph, output: str, parameters: Sequence[str]) -> Graph | None:
    """The function of these parameters that one value of a region is; None if it is one of others, too."""
    live = keep_live_nodes(
        {name: node for name, node in region.nodes.items() if not node.is_parameter}, (output,)
    )
    read = {o for node in live.values() for o in node.operands if region[o].is_parameter}
    if not read <= set(parameters):
        return None
    own = {
        name: replace(region[name], attrs=ParameterAttrs(i)) for i, name in enumerate(parameters)
    }
    return Graph(f"{region.name}.select", {**own, **live}, tuple(parameters), (output,))
