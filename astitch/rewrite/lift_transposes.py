"""Element-wise ops over transposed values, computed before the transpose: f(transpose(x), ..) -> transpose(f(x, ..)).

So what kernels keep for each other lies as the values that it is computed from, and a transpose meets its inverse.
Applied to values that a caller notes, and to what is made of them; other transposes stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    Node,
    SliceAttrs,
    TransposeAttrs,
)
from astitch.graph.ops import OPS, Kind
from astitch.rewrite.draft import Draft, ascends
from astitch.rewrite.movement_rules import group_dimensions


class Lift:
    """Which values of a draft are transposes that may move: name -> (operand, permutation).

    turns_others: what meets such a value in an op is transposed to its order, whatever it is.
    """

    def __init__(self, *, turns_others: bool = False) -> None:
        self._turns_others = turns_others
        self._lifted: dict[str, tuple[str, tuple[int, ...]]] = {}

    def note(self, draft: Draft, name: str, operand: str, permutation: Sequence[int]) -> str:
        """`name`, which is transpose(operand, permutation) and may move."""
        if draft[name].array.rank == len(permutation):
            self._lifted[name] = operand, tuple(permutation)
        return name

    def put(self, node: Node, draft: Draft) -> str | None:
        """The node as the transpose of an op over what is not transposed; None where that is not possible."""
        noted = [self._lifted[o] for o in node.operands if o in self._lifted]
        if not noted:
            return None
        permutation = noted[0][1]
        if OPS[node.op].is_reduce:
            return self._put_reduce(node, draft, permutation) if self._turns_others else None
        if not isinstance(node.type, ArrayType):
            return None
        if isinstance(node.attrs, TransposeAttrs):
            composed = tuple(permutation[d] for d in node.attrs.permutation)
            return self.note(draft, draft.put(node), noted[0][0], composed)
        if OPS[node.op].is_view:
            return self._put_view(node, draft, *noted[0])
        rank = len(permutation)
        if node.array.rank != rank:
            return None
        attrs = node.attrs
        if isinstance(attrs, SliceAttrs):
            inverse = [permutation.index(d) for d in range(rank)]
            parts = (attrs.starts, attrs.limits, attrs.strides)
            attrs = SliceAttrs(*(tuple(part[d] for d in inverse) for part in parts))
        elif OPS[node.op].kind is Kind.INDEX and isinstance(attrs, DimensionAttrs):
            if OPS[node.op].permutes or len(noted) != len(node.operands):
                return None
            attrs = DimensionAttrs(permutation[attrs.dimension])
        elif OPS[node.op].kind is not Kind.ELEMENTWISE:
            return None
        operands = [self._untransposed(draft, node, o, permutation) for o in node.operands]
        if None in operands:
            return None
        shape = tuple(node.shape[permutation.index(d)] for d in range(rank))
        below = tuple(o for o in operands if o is not None)
        name = draft.add(node, node.op, ArrayType(node.dtype, shape), below, attrs, node.regions)
        return self._put_transposed(node, draft, name, permutation)

    def _put_transposed(
        self, node: Node, draft: Draft, name: str, permutation: tuple[int, ...]
    ) -> str:
        attrs = TransposeAttrs(permutation)
        above = replace(node, op="transpose", operands=(name,), attrs=attrs, regions=())
        return self.note(draft, draft.put(above), name, permutation)

    def _untransposed(
        self, draft: Draft, origin: Node, name: str, permutation: tuple[int, ...]
    ) -> str | None:
        """x of a value that is transpose(x, permutation), if that costs nothing."""
        if name in self._lifted:
            operand, own = self._lifted[name]
            if own == permutation:
                return operand
            if not self._turns_others:
                return None
        node = draft[name]
        if node.array.rank == 0:
            return name
        if isinstance(node.attrs, TransposeAttrs) and node.attrs.permutation == permutation:
            return node.operands[0]
        if not (self._turns_others or isinstance(node.attrs, BroadcastAttrs)):
            return None
        shape = tuple(node.shape[permutation.index(d)] for d in range(len(permutation)))
        attrs = TransposeAttrs(tuple(permutation.index(d) for d in range(len(permutation))))
        return draft.add(origin, "transpose", ArrayType(node.dtype, shape), (name,), attrs)

    def _put_reduce(self, node: Node, draft: Draft, permutation: tuple[int, ...]) -> str | None:
        """reduce(transpose(x, p), .., e, d) -> reduce(x, .., e, p∘d), if kept and reduced dimensions stay in order"""
        count = len(node.operands) // 2
        if not isinstance(node.attrs, DimensionsAttrs):
            return None
        if any(draft[o].array.rank != len(permutation) for o in node.operands[:count]):
            return None
        reduced = [d for i, d in enumerate(permutation) if i in node.attrs.dimensions]
        kept = [d for i, d in enumerate(permutation) if i not in node.attrs.dimensions]
        if not (ascends(reduced) and ascends(kept)):
            return None
        below = [self._untransposed(draft, node, o, permutation) for o in node.operands[:count]]
        operands = (*(o for o in below if o is not None), *node.operands[count:])
        if None in below:
            return None
        attrs = DimensionsAttrs(tuple(reduced))
        return draft.put(replace(node, operands=operands, attrs=attrs))

    def _put_view(
        self, node: Node, draft: Draft, operand: str, permutation: tuple[int, ...]
    ) -> str | None:
        """reshape(transpose(x, p)) -> transpose(reshape(x), q)

        The reshape splits dimensions, or merges such as lie together in x too.
        """
        x = draft[operand]
        before = tuple(x.shape[d] for d in permutation)
        if not node.array.size:
            return None
        groups = []
        for old, new in group_dimensions(before, node.shape):
            own = [permutation[d] for d in old]
            between = [d for d in range(own[0], own[-1] + 1) if x.shape[d] != 1]
            if own != between:
                return None
            groups.append((own, new))
        ones = [d for d, extent in enumerate(node.shape) if extent == 1]
        order = [d for _, new in sorted(groups) for d in new] + ones
        shape = tuple(node.shape[d] for d in order)
        name = draft.add(node, "reshape", ArrayType(node.dtype, shape), (operand,))
        return self._put_transposed(
            node, draft, name, tuple(order.index(d) for d in range(len(order)))
        )
