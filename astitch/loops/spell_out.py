"""A loop whose rows go their own way, each row's numbers spelled out: a state [rows, 4, 4] is sixteen numbers a row.

Takes a Loop, hands on its while with a body of element-wise ops on rows, or the reason why there is none.  The idea: a
Kalman filter multiplies 4 x 4 matrices, a sampler adds up eight coordinates.  A thread can hold all of a row, and
then products, transposes, sums and tables of a few numbers are names and arithmetic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    ConstantAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    DType,
    DynamicSliceAttrs,
    GetTupleElementAttrs,
    Graph,
    IotaAttrs,
    Node,
    PadAttrs,
    ScatterAttrs,
    SliceAttrs,
    SortAttrs,
    TransposeAttrs,
    WindowAttrs,
)
from astitch.graph.matmul import free_dimensions, label_product
from astitch.graph.ops import OPS, Kind
from astitch.loops.analysis import Carried, Loop, Stack
from astitch.loops.row_dimensions import (
    NotSpelled,
    RowDimensions,
    counts_up,
    is_varied,
)
from astitch.loops.row_numbers import change_each
from astitch.loops.row_places import Places
from astitch.loops.spell_factorizations import spell_factorization
from astitch.rewrite.simplify import simplify

LEAST_ROWS = (17, 2)
"""How long dimensions of rows are: short ones are spelled out where they can be, for they may lie on the other side of
others that must be."""

Rows = Mapping[str, tuple[int, ...]]
"""By value, its dimensions of rows."""

MOST_SORTED = 16
"""Numbers that a row sorts: their square half exchanges."""

MOST_OPS = 10000
"""Ops of a body.  NVRTC takes 1.8 s for 4,000 of them."""


def spell_out(loop: Loop, live: Collection[str], rows: Rows) -> Node:
    """The while with a body that computes the live values number by number.  What it carries lies in memory as before;
    states that nobody needs are handed on.  rows: of each value, as find_rows gives them.  Raises NotSpelled."""
    body = simplify(_Speller(loop, live, rows).spell())
    if len(body.nodes) > MOST_OPS:
        raise NotSpelled("a turn has too many ops, number by number")
    return replace(loop.node, regions=(loop.node.regions[0], body))


def find_rows(loop: Loop, live: Collection[str], least: int) -> Rows:
    """The dimensions of rows of each live value, of at least so many if one is as long.  Raises NotSpelled."""
    return RowDimensions(loop, live).find_rows(least)


# ---- the body number by number -------------------------------------------------------------------------------------


class _Speller(Places):
    """Writes the ops of a body as ops on its numbers."""

    def spell(self) -> Graph:
        for parameter in self.body.parameters:
            node = self.body[parameter]
            self.nodes[parameter] = replace(
                node, type=ArrayType(node.dtype, self.layouts[parameter][0])
            )
        for node in self.body:
            written = node.is_parameter or self.is_counted(node) or self.waits(node.name)
            if node.name in self.live and not written:
                self.keep(node.name, self.write(node))
        outputs = []
        for parameter, output, role in zip(
            self.body.parameters, self.body.outputs, self.loop.roles, strict=True
        ):
            match role:
                case Carried(value) if value in self.live:
                    outputs.append(self.gather(parameter, value, None))
                case Stack(value, place) if value in self.live:
                    made = self.gather(parameter, value, place)
                    outputs.append(self.update(parameter, made, self.body[output], place))
                case Carried(value) | Stack(value):
                    if value in self.loop.integers:
                        raise NotSpelled(f"%{value} is a number that the turn decides")
                    outputs.append(parameter)
                case _:
                    outputs.append(self.copy(output))
        return Graph(self.body.name, self.nodes, self.body.parameters, tuple(outputs))

    def write(self, node: Node) -> np.ndarray | list[np.ndarray]:
        if OPS[node.op].kind is Kind.ELEMENTWISE:
            rows = self.row_shape(node.name)
            operands = [self.find_repeated(o, rows) for o in node.operands]
            return self.combine(node, operands, self.form(node.name), rows)
        return _WRITES[node.op](self, node)

    def combine(
        self,
        node: Node,
        operands: Sequence[np.ndarray],
        form: tuple[int, ...],
        rows: tuple[int, ...],
    ) -> np.ndarray:
        """An element-wise op, number by number."""
        made = np.empty(form, object)
        spread = [np.broadcast_to(operand, form) for operand in operands]
        type_ = ArrayType(node.dtype, rows)
        for index in np.ndindex(form):
            numbers = [str(operand[index]) for operand in spread]
            made[index] = self.put(node.op, type_, numbers, node.attrs, f"{node.name}.number")
        return made

    def write_constant(self, node: Node) -> np.ndarray:
        assert isinstance(node.attrs, ConstantAttrs)
        value, form = node.attrs.value, self.form(node.name)
        if not is_varied(value):
            number = self.put_constant(value.numpy().reshape(-1)[0], node.dtype)
            return np.full(form, self.repeat(number, self.row_shape(node.name)), object)
        made = np.empty(form, object)
        for index, number in np.ndenumerate(value.numpy()):
            made[index] = self.put_constant(number, node.dtype)
        return made

    def write_iota(self, node: Node) -> np.ndarray:
        assert isinstance(node.attrs, IotaAttrs)
        form, rows, dimension = (
            self.form(node.name),
            self.row_shape(node.name),
            node.attrs.dimension,
        )
        if dimension in self.rows[node.name]:
            attrs = IotaAttrs(self.rows[node.name].index(dimension))
            return np.full(form, self.put("iota", ArrayType(node.dtype, rows), attrs=attrs), object)
        made = np.empty(form, object)
        for index in np.ndindex(form):
            made[index] = self.repeat(
                self.put_constant(np.asarray(index[dimension]), node.dtype), rows
            )
        return made

    def count(self, node: Node) -> np.ndarray:
        """The numbers of elements in order: of a row's first, and from there on."""
        type_ = ArrayType(node.dtype, self.row_shape(node.name))
        strides = [math.prod(node.shape[d + 1 :]) for d in range(node.array.rank)]
        first = self.repeat(self.put_constant(np.zeros(()), node.dtype), type_.shape)
        for place, d in enumerate(self.rows[node.name]):
            row = self.put("iota", type_, attrs=IotaAttrs(place))
            stride = self.repeat(self.put_constant(np.asarray(strides[d]), node.dtype), type_.shape)
            first = self.put("add", type_, (first, self.put("multiply", type_, (row, stride))))
        made = np.empty(self.form(node.name), object)
        for index in np.ndindex(made.shape):
            more = self.put_constant(np.asarray(np.dot(index, strides)), node.dtype)
            made[index] = self.put("add", type_, (first, self.repeat(more, type_.shape)))
        return made

    def write_broadcast(self, node: Node) -> np.ndarray:
        assert isinstance(node.attrs, BroadcastAttrs)
        source, dimensions = node.operands[0], node.attrs.dimensions
        numbers, rows, shape = self.find(source), self.rows[node.name], self.row_shape(node.name)
        if source in self.loop.integers:
            at: list[int] = []
        else:
            at = [rows.index(dimensions[d]) for d in self.rows[source]]
        open_ = [1] * node.array.rank
        for extent, d in zip(numbers.shape, dimensions, strict=True):
            open_[d] = extent
        placed = np.transpose(numbers, np.argsort(dimensions)).reshape(open_)
        spread = change_each(placed, lambda n: self.repeat(n, shape, at))
        return np.broadcast_to(spread, self.form(node.name))

    def write_transpose(self, node: Node) -> np.ndarray:
        assert isinstance(node.attrs, TransposeAttrs)
        (source,), permutation = node.operands, node.attrs.permutation
        numbers = np.transpose(self.find(source), permutation)
        order = tuple(self.rows[source].index(permutation[d]) for d in self.rows[node.name])
        if order == tuple(range(len(order))):
            return numbers
        type_ = ArrayType(node.dtype, self.row_shape(node.name))
        attrs = TransposeAttrs(order)
        return change_each(numbers, lambda n: self.put("transpose", type_, (n,), attrs))

    def write_reshape(self, node: Node) -> np.ndarray:
        if counts_up(self.body, node):
            return self.count(node)
        return self.find(node.operands[0]).reshape(self.form(node.name))

    def write_slice(self, node: Node) -> np.ndarray:
        assert isinstance(node.attrs, SliceAttrs)
        cuts = tuple(
            slice(None) if d in self.rows[node.name] else slice(*cut)
            for d, cut in enumerate(
                zip(node.attrs.starts, node.attrs.limits, node.attrs.strides, strict=True)
            )
        )
        return self.find(node.operands[0])[cuts]

    def write_pad(self, node: Node) -> np.ndarray:
        assert isinstance(node.attrs, PadAttrs)
        source, edge = node.operands
        form = self.form(node.name)
        (number,) = self.find_repeated(edge, self.row_shape(node.name)).ravel()
        made = np.full(form, number, object)
        for index, name in np.ndenumerate(self.find(source)):
            steps = zip(index, node.attrs.low, node.attrs.interior, strict=True)
            at = tuple(low + i * (inner + 1) for i, low, inner in steps)
            if all(0 <= i < n for i, n in zip(at, form, strict=True)):
                made[at] = name
        return made

    def write_reverse(self, node: Node) -> np.ndarray:
        assert isinstance(node.attrs, DimensionsAttrs)
        return np.flip(self.find(node.operands[0]), node.attrs.dimensions)

    def write_concatenate(self, node: Node) -> np.ndarray:
        assert isinstance(node.attrs, DimensionAttrs)
        return np.concatenate([self.find(o) for o in node.operands], node.attrs.dimension)

    def write_dynamic_slice(self, node: Node) -> np.ndarray:
        source = node.operands[0]
        place = self.loop.slices.get(node.name)
        if place is None:
            return self.read_window(node)
        shape, numbers, turns = self.layouts[source]
        sizes = tuple(1 if d == turns else n for d, n in enumerate(shape))
        operands = (source, *self.list_indices(source, node, 1, place))
        type_ = ArrayType(node.dtype, sizes)
        slice_ = self.put("dynamic-slice", type_, operands, DynamicSliceAttrs(sizes))
        return self.cut(slice_, node.name, numbers)

    def write_update(self, node: Node) -> np.ndarray:
        """A few numbers with others among them, wherever these are."""
        target, update = node.operands[:2]
        rows, sizes, shape = self.row_shape(node.name), self.body[update].shape, node.shape
        made, written = self.find(target).copy(), self.find_repeated(update, rows)
        starts = self.read_starts(node, 2, sizes, target)
        limits = [extent - size for extent, size in zip(shape, sizes, strict=True)]
        type_ = ArrayType(node.dtype, rows)
        options = [
            range(limit + 1) if isinstance(start, str) else [min(max(start, 0), limit)]
            for start, limit in zip(starts, limits, strict=True)
        ]
        for place in itertools.product(*options):
            tests = [
                self.compare(start, "LE" if not at else "GE" if at == limit else "EQ", at, rows)
                for start, at, limit in zip(starts, place, limits, strict=True)
                if isinstance(start, str)
            ]
            for index, number in np.ndenumerate(written):
                at = tuple(a + i for a, i in zip(place, index, strict=True))
                old = self.repeat(made[at], rows)
                for test in tests:
                    number = self.put("select", type_, (test, number, old))
                made[at] = number
        return made

    def write_scatter(self, node: Node) -> np.ndarray:
        attrs = node.attrs
        assert isinstance(attrs, ScatterAttrs)
        target, indices, updates = node.operands
        made = self.find(target).copy()
        sizes, rows = self.body[updates].shape, self.row_shape(node.name)
        type_ = ArrayType(node.dtype, rows)
        gone = (*attrs.inserted_window_dims, *attrs.input_batching_dims)
        whole = free_dimensions(node.array.rank, gone)
        offsets = dict(zip(whole, attrs.update_window_dims, strict=True))
        limits = [
            extent - (sizes[offsets[d]] if d in offsets else 1)
            for d, extent in enumerate(node.shape)
        ]
        outside = free_dimensions(len(sizes), attrs.update_window_dims)
        of_places = free_dimensions(self.body[indices].array.rank, [attrs.index_vector_dim])
        batches = {
            d: outside[of_places.index(at)]
            for d, at in zip(
                attrs.input_batching_dims, attrs.scatter_indices_batching_dims, strict=True
            )
        }
        # Where dimensions of the updates and of the places lie in the target.
        of_update = {u: d for d, u in offsets.items()} | {u: d for d, u in batches.items()}
        of_index = {
            at: of_update[u] for at, u in zip(of_places, outside, strict=True) if u in of_update
        }
        here = self.rows[node.name].index
        written = self.align(
            self.find(updates), [here(of_update[d]) for d in self.rows.get(updates, ())], rows
        )
        places = self.align(
            self.read_places(indices, attrs.index_vector_dim),
            [here(of_index[d]) for d in self.rows.get(indices, ())],
            rows,
        )
        for index, number in np.ndenumerate(written):
            starts: list[int | str] = [0] * node.array.rank
            place = places[tuple(index[d] for d in outside)]
            for d, start in zip(attrs.scatter_dims_to_operand_dims, place, strict=True):
                starts[d] = start
            for d, at_update in batches.items():
                starts[d] = index[at_update]
            # A window that is not within bounds is not written.
            options = [
                [at for at in range(limit + 1) if isinstance(start, str) or at == start]
                for start, limit in zip(starts, limits, strict=True)
            ]
            for known in itertools.product(*options):
                at = tuple(
                    a + (index[offsets[d]] if d in offsets else 0) for d, a in enumerate(known)
                )
                old = self.repeat(made[at], rows)
                (new,) = self.reduce_once(node.regions[0], [old, number], rows)
                for start, a in zip(starts, known, strict=True):
                    if isinstance(start, str):
                        test = self.compare(start, "EQ", a, rows)
                        new = self.put("select", type_, (test, new, old))
                made[at] = new
        return made

    def write_dot(self, node: Node) -> np.ndarray:
        """Products and their sums, in f32 where the type is narrower."""
        attrs = node.attrs
        assert isinstance(attrs, DotAttrs)
        labels = label_product(attrs, *(self.body[o].array.rank for o in node.operands))
        form, rows = self.form(node.name), self.row_shape(node.name)
        total = DType.F32 if node.dtype.is_narrow_float else node.dtype
        type_ = ArrayType(total, rows)
        sides = [
            self.read_side(o, label, self.rows[node.name], rows, total)
            for o, label in zip(node.operands, labels, strict=True)
        ]
        depth = [self.body[node.operands[0]].shape[d] for d in attrs.lhs_contracting]
        made = np.empty(form, object)
        for index in np.ndindex(form):
            sum_ = ""
            for inner in np.ndindex(*depth):
                at = (*index, *inner)
                factors = [
                    numbers[tuple(at[label] for label in own)]
                    for numbers, own in zip(sides, labels, strict=True)
                ]
                term = self.put("multiply", type_, factors)
                sum_ = self.put("add", type_, (sum_, term)) if sum_ else term
            made[index] = sum_ or self.repeat(self.put_constant(np.zeros(()), total), rows)
        return self.convert(made, node.dtype)

    def read_side(
        self,
        operand: str,
        labels: Sequence[int],
        at: Sequence[int],
        rows: tuple[int, ...],
        total: DType,
    ) -> np.ndarray:
        """The numbers of a product's side along all rows of the result, in the type of its sums."""
        own = [at.index(labels[d]) for d in self.rows[operand]]
        if own != sorted(own):
            raise NotSpelled(f"%{operand} has its rows in another order than a product of it")
        spread = change_each(self.find(operand), lambda n: self.repeat(n, rows, own))
        return self.convert(spread, total)

    def convert(self, numbers: np.ndarray, dtype: DType) -> np.ndarray:
        def convert(name: str) -> str:
            node = self.nodes[name]
            same = node.dtype is dtype
            return name if same else self.put("convert", ArrayType(dtype, node.shape), (name,))

        return change_each(numbers, convert)

    def write_reduce(self, node: Node) -> np.ndarray | list[np.ndarray]:
        """The numbers one after the other, by the ops of the reduction's region."""
        assert isinstance(node.attrs, DimensionsAttrs)
        count, dimensions = len(node.operands) // 2, node.attrs.dimensions
        first = node.operands[0]
        rest = free_dimensions(self.body[first].array.rank, dimensions)
        rows = self.row_shape(first)
        sources = []
        for operand in node.operands[:count]:
            numbers = self.find(operand).transpose(*rest, *dimensions)
            sources.append(numbers.reshape(*numbers.shape[: len(rest)], -1))
        starts = [self.find_repeated(o, rows).ravel()[0] for o in node.operands[count:]]
        made = [np.empty(sources[0].shape[:-1], object) for _ in range(count)]
        for index in np.ndindex(made[0].shape):
            terms = [list(of_one) for of_one in zip(*(s[index] for s in sources), strict=True)]
            totals = self.combine_terms(node.regions[0], [starts, *terms], rows)
            for result, total in zip(made, totals, strict=True):
                result[index] = total
        return made if count > 1 else made[0]

    def write_window(self, node: Node) -> np.ndarray:
        """The numbers in each window, as a running sum has them."""
        attrs = node.attrs
        assert isinstance(attrs, WindowAttrs)
        source, rows = self.find(node.operands[0]), self.row_shape(node.name)
        (start,) = self.find_repeated(node.operands[1], rows).ravel()
        made = np.empty(self.form(node.name), object)
        for index in np.ndindex(made.shape):
            terms = [[start]]
            for inner in np.ndindex(*(w.size for w in attrs.window)):
                at = [
                    divmod(i * w.stride - w.padding_low + k * w.window_dilation, w.base_dilation)
                    for i, k, w in zip(index, inner, attrs.window, strict=True)
                ]
                inside = (0 <= i < n for (i, _), n in zip(at, source.shape, strict=True))
                if all(inside) and not any(between for _, between in at):
                    terms.append([source[tuple(i for i, _ in at)]])
            (made[index],) = self.combine_terms(node.regions[0], terms, rows)
        return made

    def combine_terms(
        self, region: Graph, terms: Sequence[list[str]], rows: tuple[int, ...]
    ) -> list[str]:
        """All terms as one: neighbours first, so that few wait for others; in their order, as a reduction may ask."""
        while len(terms) > 1:
            pairs = itertools.pairwise(terms)
            met = [self.reduce_once(region, [*a, *b], rows) for a, b in list(pairs)[::2]]
            terms = met + list(terms[2 * len(met) :])
        return terms[0]

    def reduce_once(
        self, region: Graph, arguments: Sequence[str], rows: tuple[int, ...]
    ) -> list[str]:
        """The region of a reduction for all rows at once."""
        values = dict(zip(region.parameters, arguments, strict=True))
        for node in region:
            if node.is_parameter:
                continue
            if node.is_constant:
                assert isinstance(node.attrs, ConstantAttrs)
                number = self.put_constant(node.attrs.value.numpy(), node.dtype)
                values[node.name] = self.repeat(number, rows)
            elif OPS[node.op].kind is Kind.ELEMENTWISE and not node.array.rank:
                operands = [values[o] for o in node.operands]
                values[node.name] = self.put(
                    node.op, ArrayType(node.dtype, rows), operands, node.attrs
                )
            else:
                raise NotSpelled(f"%{node.name} of a reduction is a {node.op}")
        return [values[output] for output in region.outputs]

    def write_sort(self, node: Node) -> np.ndarray | list[np.ndarray]:
        """Neighbours are exchanged that are not in order, so that equal ones stay as they are."""
        assert isinstance(node.attrs, SortAttrs)
        first = node.operands[0]
        rows, dimension = self.row_shape(first), node.attrs.dimension
        count = self.body[first].shape[dimension]
        if count > MOST_SORTED:
            raise NotSpelled(f"%{node.name} sorts {count} numbers")
        made = [np.moveaxis(self.find(o), dimension, -1).copy() for o in node.operands]
        region = node.regions[0]
        for index in np.ndindex(made[0].shape[:-1]):
            for stage in range(count):
                for at in range(stage % 2, count - 1, 2):
                    pairs = [(part[index][at], part[index][at + 1]) for part in made]
                    asked = [number for a, b in pairs for number in (b, a)]
                    (later,) = self.reduce_once(region, asked, rows)
                    for part, (a, b), operand in zip(made, pairs, node.operands, strict=True):
                        type_ = ArrayType(self.body[operand].dtype, rows)
                        part[index][at] = self.put("select", type_, (later, b, a))
                        part[index][at + 1] = self.put("select", type_, (later, a, b))
        results = [np.moveaxis(part, -1, dimension) for part in made]
        return results if len(results) > 1 else results[0]

    def write_projection(self, node: Node) -> np.ndarray:
        assert isinstance(node.attrs, GetTupleElementAttrs)
        return self.results[node.operands[0]][node.attrs.index]


_WRITES: Mapping[str, Callable[[_Speller, Node], np.ndarray | list[np.ndarray]]] = {
    "constant": _Speller.write_constant,
    "iota": _Speller.write_iota,
    "broadcast": _Speller.write_broadcast,
    "transpose": _Speller.write_transpose,
    "reshape": _Speller.write_reshape,
    "slice": _Speller.write_slice,
    "pad": _Speller.write_pad,
    "reverse": _Speller.write_reverse,
    "concatenate": _Speller.write_concatenate,
    "dynamic-slice": _Speller.write_dynamic_slice,
    "dynamic-update-slice": _Speller.write_update,
    "gather": _Speller.write_gather,
    "scatter": _Speller.write_scatter,
    "dot": _Speller.write_dot,
    "reduce": _Speller.write_reduce,
    "reduce-window": _Speller.write_window,
    "get-tuple-element": _Speller.write_projection,
    "sort": _Speller.write_sort,
    "cholesky": spell_factorization,
    "triangular-solve": spell_factorization,
    "custom-call": spell_factorization,
}
