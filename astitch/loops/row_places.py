"""A row looks numbers up at places that it computes: among few by selects, in an array by a read.

The part of spell_out.py that writes gathers and windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    CompareAttrs,
    ConstantAttrs,
    DType,
    GatherAttrs,
    IotaAttrs,
    Literal,
    Node,
)
from astitch.graph.matmul import free_dimensions
from astitch.loops.lookups import LOOKED_UP, MOST_IN_TABLE, find_table
from astitch.loops.row_numbers import Numbers, change_each

LEAST_LOOKED_UP = 9
"""Numbers among which a turn chooses by reading one of them in memory: of fewer it takes the right one by selects."""


class Places(Numbers):
    """Looks numbers up at places that each row computes."""

    def read_window(self, node: Node) -> np.ndarray:
        """A slice of a few numbers, wherever it is."""
        source, rows = node.operands[0], self.row_shape(node.name)
        shape = self.body[source].shape
        starts = self.read_starts(node, 1, node.shape, source)
        limits = [extent - size for extent, size in zip(shape, node.shape, strict=True)]
        made = np.empty(self.form(node.name), object)
        along = {d: self.rows[node.name].index(d) for d in self.rows.get(source, ())}
        looks_up = self.is_looked_up(source, starts, limits)
        for index in np.ndindex(made.shape):
            if looks_up:
                made[index] = self.look_up(source, starts, limits, index, rows, along)
            else:
                made[index] = self.choose(self.find(source), starts, limits, index, rows)
        return made

    def is_looked_up(self, source: str, starts: Sequence[int | str], limits: Sequence[int]) -> bool:
        """Is a number at such starts read in memory?"""
        options = math.prod(
            limit + 1 for start, limit in zip(starts, limits, strict=True) if isinstance(start, str)
        )
        return (
            self.loop.trips > 1
            and options >= LEAST_LOOKED_UP
            and self.body[source].array.size <= MOST_IN_TABLE
            and find_table(self.body, source) is not None
        )

    def look_up(
        self,
        source: str,
        starts: Sequence[int | str],
        limits: Sequence[int],
        index: Sequence[int],
        rows: tuple[int, ...],
        along: Mapping[int, int],
    ) -> str:
        """The number of a window at an index, read where it lies.  starts, limits: as for `choose`.  along: for each
        dimension of rows that the table has, which one of the result's it is."""
        shape, type_ = self.body[source].shape, ArrayType(DType.S32, rows)
        known, terms = 0, list[str]()
        for d, (start, limit) in enumerate(zip(starts, limits, strict=True)):
            stride = math.prod(shape[d + 1 :])
            known += index[d] * stride
            if d in along:
                terms.append(self.scale(self.put("iota", type_, attrs=IotaAttrs(along[d])), stride))
            elif isinstance(start, str):
                terms.append(self.scale(self.hold(start, limit, rows), stride))
            else:
                known += min(max(start, 0), limit) * stride
        if known or not terms:
            terms.append(self.repeat(self.put_constant(np.asarray(known), DType.S32), rows))
        place = terms[0]
        for term in terms[1:]:
            place = self.put("add", type_, (place, term))
        attrs = replace(LOOKED_UP, index_vector_dim=len(rows))
        found = ArrayType(self.body[source].dtype, rows)
        return self.put("gather", found, (self.table(source), place), attrs)

    def hold(self, start: str, limit: int, rows: tuple[int, ...]) -> str:
        """A start, within bounds, as an integer of 32 bits."""
        dtype = self.nodes[start].dtype
        start = self.repeat(start, rows)
        least, most = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
        for op, bound, binds in (("maximum", 0, least < 0), ("minimum", limit, limit < most)):
            if binds:
                number = self.repeat(self.put_constant(np.asarray(bound), dtype), rows)
                start = self.put(op, ArrayType(dtype, rows), (start, number))
        if dtype is DType.S32:
            return start
        return self.put("convert", ArrayType(DType.S32, rows), (start,))

    def scale(self, number: str, stride: int) -> str:
        """An integer, times a stride."""
        if stride == 1:
            return number
        type_ = self.nodes[number].array
        factor = self.repeat(self.put_constant(np.asarray(stride), type_.dtype), type_.shape)
        return self.put("multiply", type_, (number, factor))

    def table(self, source: str) -> str:
        """A table in one dimension."""
        root = find_table(self.body, source)
        assert root is not None
        if root not in self.tables:
            node, shape = self.body[root], (self.body[root].array.size,)
            if isinstance(node.attrs, ConstantAttrs):
                value = node.attrs.value
                attrs = ConstantAttrs(Literal.of(value.numpy().reshape(shape)))
                made = self.put("constant", ArrayType(node.dtype, shape), attrs=attrs)
            else:
                made = self.reshape(root, shape)
            self.tables[root] = made
        return self.tables[root]

    def compare(self, number: str, direction: str, with_: int, rows: tuple[int, ...]) -> str:
        """Is a number, along these rows, less than another one, the same, or more?"""
        node = self.nodes[number]
        constant = self.repeat(self.put_constant(np.asarray(with_), node.dtype), node.shape)
        type_ = ArrayType(DType.PRED, node.shape)
        test = self.put("compare", type_, (number, constant), CompareAttrs(direction))
        return self.repeat(test, rows)

    def choose(
        self,
        numbers: np.ndarray,
        starts: Sequence[int | str],
        limits: Sequence[int],
        index: Sequence[int],
        rows: tuple[int, ...],
    ) -> str:
        """The number of a window at an index.  starts: of the window, some of them numbers of the rows'.  limits: the
        last ones within bounds."""
        for d, start in enumerate(starts):
            if not isinstance(start, str):
                continue
            chosen = ""
            for at in range(limits[d] + 1):
                option = self.choose(
                    numbers, [*starts[:d], at, *starts[d + 1 :]], limits, index, rows
                )
                if chosen:
                    test, type_ = self.compare(start, "GE", at, rows), self.nodes[option].array
                    option = self.put("select", type_, (test, option, chosen))
                chosen = option
            return chosen
        known = [
            min(max(int(start), 0), limit) for start, limit in zip(starts, limits, strict=True)
        ]
        return self.repeat(numbers[tuple(a + i for a, i in zip(known, index, strict=True))], rows)

    def read_starts(
        self, node: Node, first: int, sizes: Sequence[int], source: str
    ) -> list[int | str]:
        """Where a slice or an update is: numbers of the rows' where that is not known."""
        starts: list[int | str] = []
        for d, (index, size) in enumerate(zip(node.operands[first:], sizes, strict=True)):
            place = self.loop.integers.get(index)
            if size == self.body[source].shape[d]:
                starts.append(0)
            elif place is not None and not place.scale:
                starts.append(place.offset)
            else:
                starts += self.find(index).ravel().tolist()
        return starts

    def read_places(self, name: str, vector: int) -> np.ndarray:
        """The places of windows, numbers of the rows' where they are not known; the numbers of one place last."""

        def read(number: str) -> int | str:
            attrs = self.nodes[number].attrs
            return int(attrs.value.numpy()) if isinstance(attrs, ConstantAttrs) else number

        integer = self.loop.integers.get(name)
        if integer is not None and not integer.scale:
            places = np.full(self.body[name].shape, integer.offset, object)
        else:
            places = change_each(self.find(name), read)
        return places[..., None] if vector == places.ndim else np.moveaxis(places, vector, -1)

    def write_gather(self, node: Node) -> np.ndarray:
        attrs = node.attrs
        assert isinstance(attrs, GatherAttrs)
        source, indices = node.operands
        rows, shape = self.row_shape(node.name), self.body[source].shape
        outside = free_dimensions(node.array.rank, attrs.offset_dims)
        of_places = free_dimensions(self.body[indices].array.rank, [attrs.index_vector_dim])
        gone = (*attrs.collapsed_slice_dims, *attrs.operand_batching_dims)
        whole = free_dimensions(len(shape), gone)
        # Where dimensions of the places and of the table lie in the result.
        of_index = dict(zip(of_places, outside, strict=True))
        of_table = dict(zip(whole, attrs.offset_dims, strict=True)) | {
            d: of_index[at]
            for d, at in zip(
                attrs.operand_batching_dims, attrs.start_indices_batching_dims, strict=True
            )
        }
        here = self.rows[node.name].index
        along = {d: here(of_table[d]) for d in self.rows.get(source, ())}
        places = self.align(
            self.read_places(indices, attrs.index_vector_dim),
            [here(of_index[d]) for d in self.rows.get(indices, ())],
            rows,
        )
        limits = [extent - size for extent, size in zip(shape, attrs.slice_sizes, strict=True)]
        made = np.empty(self.form(node.name), object)
        numbers: np.ndarray | None = None
        for index in np.ndindex(made.shape):
            starts: list[int | str] = [0] * len(shape)
            place = places[tuple(index[d] for d in outside)]
            for d, start in zip(attrs.start_index_map, place, strict=True):
                starts[d] = start if limits[d] else 0
            for d in attrs.operand_batching_dims:
                starts[d] = 0
            inside = [index[of_table[d]] if d in of_table else 0 for d in range(len(shape))]
            if self.is_looked_up(source, starts, limits):
                made[index] = self.look_up(source, starts, limits, inside, rows, along)
                continue
            if numbers is None:
                numbers = self.align(self.find(source), list(along.values()), rows)
            made[index] = self.choose(numbers, starts, limits, inside, rows)
        return made
