"""Dimensions that a loop's values always have side by side, as one: [rows, heads, width] as [rows * heads * width].

Takes a Loop and the classes of its dimensions, hands on a Loop whose body has fewer of them.  An array's elements lie
in memory as before, so the kernel may take what the while takes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    DimensionAttrs,
    DynamicSliceAttrs,
    GatherAttrs,
    Graph,
    Node,
    SliceAttrs,
    TransposeAttrs,
)
from astitch.graph.ops import OPS, Kind
from astitch.loops.analysis import Carried, Loop, Place, Stack

Dimension = tuple[str, int]
"""Of a value of the body, by its name, one dimension."""


class JoinedDimensions:
    """Dimensions that must be of one kind, by union and find."""

    def __init__(self) -> None:
        self.parent: dict[Dimension, Dimension] = {}

    def find(self, key: Dimension) -> Dimension:
        while (above := self.parent.get(key, key)) != key:
            self.parent[key] = self.parent.get(above, above)
            key = above
        return key

    def join(self, a: Dimension, b: Dimension) -> None:
        one, other = self.find(a), self.find(b)
        if one != other:
            self.parent[one] = other


def flatten_loop(
    loop: Loop,
    live: Collection[str],
    find: Callable[[Dimension], Dimension],
    list_open: Callable[[Node], Sequence[int]],
    apart: Collection[Dimension],
) -> Loop | None:
    """The loop with its dimensions joined; None where none can be.

    live: the values that count.  find: the class of a dimension.  list_open: the dimensions of a value that have one.
    apart: classes that stay as they are.
    """
    sequences: dict[str, list[tuple[int, Dimension]]] = {}
    for node in loop.body:
        if node.name in live:
            sequences[node.name] = [(d, find((node.name, d))) for d in list_open(node)]
    for parameter, role in zip(loop.body.parameters, loop.roles, strict=True):
        # What a turn makes lies in the state as it lies in the value, stack or not.
        if isinstance(role, Carried | Stack) and role.value in sequences:
            sequences.setdefault(parameter, sequences[role.value])
    bonds = find_bonds(loop.body, sequences, apart)
    if not bonds:
        return None
    joined = {
        name: [d for (d, a), (_, b) in itertools.pairwise(pairs) if (a, b) in bonds]
        for name, pairs in sequences.items()
    }
    return _Flattener(loop, joined).flatten()


def find_bonds(
    body: Graph,
    sequences: Mapping[str, Sequence[tuple[int, Dimension]]],
    apart: Collection[Dimension],
) -> set[tuple[Dimension, Dimension]]:
    """The pairs of classes of which every value has both, one right before the other, or none."""
    after: dict[Dimension, set[Dimension | None]] = {}
    before: dict[Dimension, set[Dimension | None]] = {}
    for name, pairs in sequences.items():
        shape = body[name].shape
        for (d, a), (e, b) in itertools.pairwise(pairs):
            # Between them there may be dimensions of one element, but no stack's.
            near = math.prod(shape[d + 1 : e]) == 1
            after.setdefault(a, set()).add(b if near else None)
            before.setdefault(b, set()).add(a if near else None)
        if pairs:
            after.setdefault(pairs[-1][1], set()).add(None)
            before.setdefault(pairs[0][1], set()).add(None)
    return {
        (a, b)
        for a, followers in after.items()
        for b in followers
        if b is not None
        and a != b
        and followers == {b}
        and before[b] == {a}
        and a not in apart
        and b not in apart
    }


class _Flattener:
    """Rewrites a body.  joined: by value, the dimensions that become one with the next of more than one element."""

    def __init__(self, loop: Loop, joined: Mapping[str, Sequence[int]]) -> None:
        self.loop, self.joined = loop, joined
        self.kept = {node.name: self.list_kept(node) for node in loop.body if is_array(node)}

    def list_kept(self, node: Node) -> list[list[int]]:
        """The old dimensions that each new one is made of."""
        groups: list[list[int]] = []
        open_group = False
        joined = self.joined.get(node.name, ())
        for d, extent in enumerate(node.shape):
            if open_group:
                groups[-1].append(d)
                open_group = extent == 1 or d in joined
            else:
                groups.append([d])
                open_group = d in joined
        return groups

    def place(self, name: str, dimension: int) -> int:
        """The new number of a dimension."""
        return next(i for i, group in enumerate(self.kept[name]) if dimension in group)

    def type_of(self, node: Node) -> ArrayType:
        shape = tuple(math.prod(node.shape[d] for d in group) for group in self.kept[node.name])
        return ArrayType(node.dtype, shape)

    def flatten(self) -> Loop:
        body = self.loop.body
        nodes = {node.name: self.rewrite(node) if is_array(node) else node for node in body}
        made = Graph(body.name, nodes, body.parameters, body.outputs)
        node = self.loop.node
        roles = tuple(
            replace(role, place=self.move(output, role.place)) if isinstance(role, Stack) else role
            for role, output in zip(self.loop.roles, body.parameters, strict=True)
        )
        slices = {
            name: self.move(body[name].operands[0], place)
            for name, place in self.loop.slices.items()
        }
        node = replace(node, regions=(node.regions[0], made))
        return replace(self.loop, node=node, roles=roles, slices=slices)

    def move(self, stack: str, place: Place) -> Place:
        return replace(place, dimension=self.place(stack, place.dimension))

    def rewrite(self, node: Node) -> Node:
        """A node of fewer dimensions."""
        type_, attrs, operands = self.type_of(node), node.attrs, node.operands
        first = operands[0] if operands else ""
        match attrs:
            case BroadcastAttrs(dimensions):
                moved = [self.place(node.name, dimensions[g[0]]) for g in self.kept[first]]
                attrs = BroadcastAttrs(tuple(moved))
            case TransposeAttrs(permutation):
                groups = self.kept[node.name]
                attrs = TransposeAttrs(tuple(self.place(first, permutation[g[0]]) for g in groups))
            case DimensionAttrs(dimension):
                attrs = DimensionAttrs(self.place(node.name, dimension))
            case SliceAttrs(starts, limits, strides):
                groups = self.kept[node.name]
                cuts = [
                    (starts[g[0]], limits[g[0]], strides[g[0]]) if len(g) == 1 else (0, extent, 1)
                    for g, extent in zip(groups, type_.shape, strict=True)
                ]
                attrs = SliceAttrs(
                    tuple(a for a, _, _ in cuts),
                    tuple(b for _, b, _ in cuts),
                    tuple(c for _, _, c in cuts),
                )
            case DynamicSliceAttrs():
                indices = [operands[1 + group[0]] for group in self.kept[node.name]]
                attrs, operands = DynamicSliceAttrs(type_.shape), (first, *indices)
            case GatherAttrs():
                attrs = replace(attrs, index_vector_dim=type_.rank)  # a lookup
        return replace(node, type=type_, attrs=attrs, operands=operands)


def is_array(node: Node) -> bool:
    return isinstance(node.type, ArrayType)


def can_flatten(node: Node) -> bool:
    """Is an op known here?"""
    row = OPS[node.op]
    known = isinstance(
        node.attrs,
        BroadcastAttrs
        | TransposeAttrs
        | DynamicSliceAttrs
        | SliceAttrs
        | DimensionAttrs
        | GatherAttrs,
    )
    plain = row.kind is Kind.ELEMENTWISE or row.keeps_order
    return known or plain or node.is_parameter or node.is_constant
