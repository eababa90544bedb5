"""Gathers in the one form that XLA's kernels read: takes a node, hands on ops that compute the same.

XLA brings gathers into this form in front of its hook, and ends the process where a later one has another: vectors of
indices side by side, no batching and no collapsed dimension, indexed dimensions first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from astitch.graph.ir import (
    ArrayType,
    Attrs,
    DimensionAttrs,
    DType,
    GatherAttrs,
    IotaAttrs,
    NoAttrs,
    Node,
    TransposeAttrs,
)
from astitch.graph.matmul import free_dimensions

_COUNTED = (DType.S32, DType.S64, DType.U32, DType.U64)
"""Types in which any place can be counted; narrower indices become the first."""


def is_simplified(node: Node, indices: ArrayType) -> bool:
    """Is it a gather that XLA's kernels read?"""
    a = node.attrs
    assert isinstance(a, GatherAttrs)
    windows = tuple(range(1, len(a.slice_sizes) + 1))
    plain = not (a.collapsed_slice_dims or a.operand_batching_dims)
    counted = a.start_index_map == tuple(range(len(a.start_index_map)))
    return (
        plain
        and counted
        and a.offset_dims == windows
        and (indices.rank, a.index_vector_dim) == (2, 1)
    )


def render_gather(node: Node, types: Sequence[ArrayType]) -> tuple[Node, ...]:
    """The ops in order; the last has the node's name.  types: of its operands."""
    x, indices = types
    return _Rendering(node, x, indices).render()


@dataclass
class _Rendering:
    node: Node
    x: ArrayType
    indices: ArrayType
    parts: list[Node] = field(default_factory=list)

    def render(self) -> tuple[Node, ...]:
        a = self.node.attrs
        assert isinstance(a, GatherAttrs)
        places = free_dimensions(self.indices.rank, (a.index_vector_dim,))
        batch = tuple(self.indices.shape[d] for d in places)
        x, count = self.node.operands[0], prod(batch)
        first = (*a.operand_batching_dims, *a.start_index_map)
        vectors = self._join(self._list_columns(a, places, batch), (count, len(first)))
        order = (*first, *(d for d in range(self.x.rank) if d not in first))
        shape = tuple(self.x.shape[d] for d in order)
        if order != tuple(range(self.x.rank)):
            x = self._add("transpose", self.x.dtype, shape, (x,), TransposeAttrs(order))
        sizes = tuple(a.slice_sizes[d] for d in order)
        attrs = GatherAttrs(
            tuple(range(1, self.x.rank + 1)),
            (),
            tuple(range(len(first))),
            1,
            sizes,
            indices_are_sorted=a.indices_are_sorted and not a.operand_batching_dims,
        )
        found = self._add("gather", self.x.dtype, (count, *sizes), (x, vectors), attrs)
        self._put_in_order(found, a, order)
        self.parts[-1] = replace(self.parts[-1], name=self.node.name)
        return tuple(self.parts)

    def _list_columns(
        self, a: GatherAttrs, places: Sequence[int], batch: tuple[int, ...]
    ) -> list[str]:
        """Columns of [vectors, n]: places along batching dimensions, and the indices.

        places, batch: the other dimensions of the indices than that of vectors, and their extents.
        """
        dtype = self.indices.dtype
        name, shape = self.node.operands[1], self.indices.shape
        if dtype not in _COUNTED:
            dtype = _COUNTED[0]
            name = self._add("convert", dtype, shape, (name,))
        if a.index_vector_dim < len(shape) - 1:
            order = (*places, a.index_vector_dim)
            moved = tuple(shape[d] for d in order)
            name = self._add("transpose", dtype, moved, (name,), TransposeAttrs(order))
        columns = []
        for d in a.start_indices_batching_dims:
            axis = [*places].index(d)
            counts = self._add("iota", dtype, batch, (), IotaAttrs(axis))
            columns.append(self._add("reshape", dtype, (prod(batch), 1), (counts,)))
        vectors = (prod(batch), len(a.start_index_map))
        return [*columns, self._add("reshape", dtype, vectors, (name,))]

    def _join(self, columns: Sequence[str], shape: tuple[int, ...]) -> str:
        if len(columns) == 1:
            return columns[0]
        dtype = self.parts[-1].dtype
        return self._add("concatenate", dtype, shape, tuple(columns), DimensionAttrs(1))

    def _put_in_order(self, found: str, a: GatherAttrs, order: Sequence[int]) -> None:
        """Drops the dimensions that the result lacks, and puts the others where it has them."""
        dropped = {*a.collapsed_slice_dims, *a.operand_batching_dims}
        kept = [d for d in range(self.x.rank) if d not in dropped]
        windows = [d for d in order if d not in dropped]
        array = self.node.array
        places = free_dimensions(array.rank, a.offset_dims)
        inner = [*places, *(a.offset_dims[kept.index(d)] for d in windows)]
        shape = tuple(array.shape[d] for d in inner)
        value = self._add("reshape", array.dtype, shape, (found,))
        if inner != sorted(inner):
            back = TransposeAttrs(tuple(inner.index(d) for d in range(array.rank)))
            self._add("transpose", array.dtype, array.shape, (value,), back)

    def _add(
        self,
        op: str,
        dtype: DType,
        shape: tuple[int, ...],
        operands: tuple[str, ...] = (),
        attrs: Attrs = NoAttrs(),
    ) -> str:
        name, origin = f"{self.node.name}/{len(self.parts)}", self.node
        node = Node(name, op, ArrayType(dtype, shape), operands, attrs)
        self.parts.append(replace(node, op_name=origin.op_name, source=origin.source))
        return name
