"""Values of a loop's body for all of its turns at once, before the loop."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    DimensionAttrs,
    Node,
    SliceAttrs,
    TransposeAttrs,
)
from astitch.graph.ops import OPS, Kind
from astitch.loops.rewrite import LoopRewrite


class NotOverTurns(Exception):
    """A value that is not known for all turns at once."""


class OverTurns:
    """What of a body is known before the loop.

    carried: nodes that wait for the turn before, or count turns.  recomputed: nodes that the body computes again to
    save memory.
    """

    def __init__(self, made: LoopRewrite, recomputed: Collection[str]) -> None:
        self.made, self.recomputed = made, recomputed
        self.loop, self.old, self.node = made.loop, made.old, made.node
        self.carried = self.find_carried()
        self.outer: dict[str, str] = {}
        self.timed: dict[str, str] = {}

    def find_carried(self) -> set[str]:
        """The nodes of the body that wait for the turn before, or count turns."""
        carried: set[str] = set()
        invariant = {s.parameter for s in self.made.states if s.parameter == s.output}
        for node in self.old:
            if node.is_parameter:
                if node.name not in invariant:
                    carried.add(node.name)
            elif node.name in self.loop.slices:
                if node.operands[0] in carried:
                    carried.add(node.name)
            elif any(o in carried for o in node.operands):
                carried.add(node.name)
        return carried

    def outside(self, name: str) -> str:
        """A value that no turn changes, computed before the loop."""
        if name not in self.outer:
            node = self.old[name]
            if name in self.old.parameters:
                self.outer[name] = self.node.operands[self.old.parameters.index(name)]
            else:
                operands = tuple(self.outside(o) for o in node.operands)
                copy = replace(node, operands=operands)
                self.outer[name] = self.made.add(self.made.before, f"{name}.outside", copy)
        return self.outer[name]

    def is_timed(self, name: str) -> bool:
        """Does a value come from slices of stacks, and from nothing that waits for a turn?"""
        pending, seen, sliced = [name], set[str](), False
        while pending:
            node = self.old[pending.pop()]
            if node.name in seen:
                continue
            seen.add(node.name)
            if node.name in self.carried:
                return False
            if node.name in self.loop.slices:
                sliced = True
            else:
                pending += node.operands
        return sliced

    def over_turns(self, name: str) -> str:
        """A value that waits for no turn, for all turns: [turns, *its shape], in the order of the stacks.

        Raises NotOverTurns.
        """
        if name not in self.timed:
            self.timed[name] = self.make_over_turns(self.old[name])
        return self.timed[name]

    def make_over_turns(self, node: Node) -> str:
        if node.name in self.carried or not isinstance(node.type, ArrayType):
            raise NotOverTurns
        if node.name in self.recomputed:
            raise NotOverTurns
        shape = (self.loop.trips, *node.shape)
        type_ = ArrayType(node.dtype, shape)
        if node.name in self.loop.slices:
            place = self.loop.slices[node.name]
            if self.made.base is None or place != self.made.base[0]:
                raise NotOverTurns
            source = self.outside(node.operands[0])
            return self.made.add(
                self.made.before, f"{node.name}.stack", Node("", "reshape", type_, (source,))
            )
        if not self.is_timed(node.name):
            along = BroadcastAttrs(tuple(range(1, len(shape))))
            repeated = Node("", "broadcast", type_, (self.outside(node.name),), along)
            return self.made.add(self.made.before, f"{node.name}.repeated", repeated)
        attrs, row = node.attrs, OPS[node.op]
        match attrs:
            case BroadcastAttrs(dimensions):
                attrs = BroadcastAttrs((0, *(d + 1 for d in dimensions)))
            case TransposeAttrs(permutation):
                attrs = TransposeAttrs((0, *(p + 1 for p in permutation)))
            case DimensionAttrs(dimension):
                attrs = DimensionAttrs(dimension + 1)
            case SliceAttrs(starts, limits, strides):
                attrs = SliceAttrs((0, *starts), (shape[0], *limits), (1, *strides))
            case _ if row.keeps_order or row.kind is Kind.ELEMENTWISE:
                scalars = [o for o in node.operands if self.old[o].array.rank != node.array.rank]
                if scalars and not row.keeps_order:
                    raise NotOverTurns
            case _:
                raise NotOverTurns
        operands = tuple(self.over_turns(o) for o in node.operands)
        return self.made.add(
            self.made.before,
            f"{node.name}.all",
            replace(node, type=type_, operands=operands, attrs=attrs),
        )
