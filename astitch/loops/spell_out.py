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
    Attrs,
    BroadcastAttrs,
    CompareAttrs,
    ConstantAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    DType,
    DynamicSliceAttrs,
    GatherAttrs,
    GetTupleElementAttrs,
    Graph,
    IotaAttrs,
    Literal,
    NoAttrs,
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
from astitch.loops.analysis import Carried, Loop, Place, Stack
from astitch.loops.row_dimensions import (
    NotSpelled,
    RowDimensions,
    counts_up,
    is_varied,
)
from astitch.loops.spell_factorizations import spell_factorization
from astitch.rewrite.simplify import simplify

LEAST_ROWS = (17, 2)
"""How long dimensions of rows are: short ones are spelled out where they can be, for they may lie on the other side of
others that must be."""

Rows = Mapping[str, tuple[int, ...]]
"""By value, its dimensions of rows."""

MOST_NUMBERS = 64
"""Numbers that a row of one value may have in a loop that turns once."""

MOST_MET = 256
"""The same where turns follow each other.  Threads have as many registers, and keep some numbers in memory.  By
estimate XLA's turn is slower all the same: it takes many launches."""

MOST_SORTED = 16
"""Numbers that a row sorts: their square half exchanges."""

MOST_OPS = 10000
"""Ops of a body.  NVRTC takes 1.8 s for 4,000 of them."""

MOST_WRITTEN = 40000
"""The same before equal ones are merged and known ones computed."""


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


def _each(numbers: np.ndarray, change: Callable[[str], object]) -> np.ndarray:
    """What a function makes of each number."""
    made = np.empty(numbers.shape, object)
    for index, number in np.ndenumerate(numbers):
        made[index] = change(number)
    return made


class _Numbers:
    """The numbers of a body's values, while a body is written anew.

    rows: by value, its dimensions of rows.  values: by value, the names of its numbers: an array of its shape, in
    which the dimensions of rows have one element.  A number is an array of the rows, or a scalar.
    """

    def __init__(
        self, loop: Loop, live: Collection[str], rows: Mapping[str, tuple[int, ...]]
    ) -> None:
        self.loop, self.body, self.live, self.rows = loop, loop.body, live, rows
        self.nodes: dict[str, Node] = {}
        self.taken = {*self.body.nodes}
        self.numbered: dict[str, int] = {}
        self.values: dict[str, np.ndarray] = {}
        self.results: dict[str, list[np.ndarray]] = {}
        self.spread: dict[tuple[str, tuple[int, ...], tuple[int, ...]], str] = {}
        self.layouts = {p: self.lay_out(p) for p in self.body.parameters}

    def keep(self, name: str, numbers: np.ndarray | list[np.ndarray]) -> None:
        if isinstance(numbers, list):
            self.results[name] = numbers
        else:
            self.values[name] = numbers

    def is_counted(self, node: Node) -> bool:
        """Do only reshapes read an iota?"""
        users = [self.body[user] for user in self.body.users[node.name] if user in self.live]
        return isinstance(node.attrs, IotaAttrs) and all(
            OPS[user.op].keeps_order and counts_up(self.body, user) for user in users
        )

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def put(
        self,
        op: str,
        type_: ArrayType,
        operands: Sequence[str] = (),
        attrs: Attrs = NoAttrs(),
        hint: str = "",
    ) -> str:
        if len(self.nodes) > MOST_WRITTEN:
            raise NotSpelled("a turn has too many ops, number by number")
        name = self.name(hint or f"{op}.number")
        self.nodes[name] = Node(name, op, type_, tuple(operands), attrs)
        return name

    def name(self, hint: str) -> str:
        """free_name, without the numbers that are known to be taken: there are thousands of one name."""
        number = self.numbered.get(hint, 1)
        while (name := hint if number == 1 else f"{hint}.{number}") in self.taken:
            number += 1
        self.numbered[hint] = number + 1
        self.taken.add(name)
        return name

    def put_constant(self, value: np.ndarray, dtype: DType) -> str:
        literal = Literal.of(np.asarray(value, dtype.numpy).reshape(()))
        return self.put("constant", ArrayType(dtype, ()), attrs=ConstantAttrs(literal))

    def copy(self, name: str) -> str:
        """A node of the old body as it is, behind what it needs: an integer that the turn decides."""
        if name not in self.nodes:
            for operand in self.body[name].operands:
                self.copy(operand)
            self.nodes[name] = self.body[name]
        return name

    def reshape(self, name: str, shape: tuple[int, ...]) -> str:
        node = self.nodes[name]
        type_ = ArrayType(node.dtype, shape)
        return name if node.shape == shape else self.put("reshape", type_, (name,))

    def row_shape(self, name: str) -> tuple[int, ...]:
        """The shape of a number of a value."""
        return tuple(self.body[name].shape[d] for d in self.rows[name])

    def form(self, name: str) -> tuple[int, ...]:
        """The shape of the array of a value's numbers."""
        rows = self.rows[name]
        shape = self.body[name].shape
        made = tuple(1 if d in rows else extent for d, extent in enumerate(shape))
        if math.prod(made) > (MOST_MET if self.loop.trips > 1 else MOST_NUMBERS):
            raise NotSpelled(f"%{name} has {math.prod(made)} numbers that meet")
        return made

    def repeat(self, name: str, shape: tuple[int, ...], dimensions: Sequence[int] = ()) -> str:
        """A number along more rows.  dimensions: where its own are."""
        own = self.nodes[name].shape
        if own == shape:
            return name
        assert len(own) == len(dimensions), f"%{name} has {len(own)} dimensions of rows"
        key = (name, shape, tuple(dimensions))
        if key not in self.spread:
            type_ = ArrayType(self.nodes[name].dtype, shape)
            attrs = BroadcastAttrs(tuple(dimensions))
            self.spread[key] = self.put("broadcast", type_, (name,), attrs)
        return self.spread[key]

    # ---- states ----------------------------------------------------------------------------------------------------

    def lay_out(self, parameter: str) -> tuple[tuple[int, ...], int | None, int | None]:
        """The new shape of a state, in which all that is not rows or turns is one dimension; where its numbers and
        where its turns are, if it has such dimensions."""
        role = self.loop.roles[self.body.parameters.index(parameter)]
        places = {p.dimension for s, p in self.loop.slices.items() if self.reads(s, parameter)}
        if isinstance(role, Stack):
            places.add(role.place.dimension)
        value = role.value if isinstance(role, Carried | Stack) else parameter
        rows, shape = self.rows.get(value, ()), self.body[parameter].shape
        if len(places) > 1:
            raise NotSpelled(f"%{parameter} is cut along two dimensions")
        if parameter in self.loop.integers or value not in self.rows:
            return shape, None, None
        made: list[int] = []
        numbers: int | None = None
        turns: int | None = None
        near = False
        for d, extent in enumerate(shape):
            if d in rows or d in places:
                turns = len(made) if d in places else turns
                made.append(extent)
                near = False
            elif extent > 1:
                if numbers is not None and not near:
                    raise NotSpelled(f"%{parameter} has numbers on two sides of its rows")
                if numbers is None:
                    numbers = len(made)
                    made.append(1)
                made[numbers] *= extent
                near = True
        return tuple(made), numbers, turns

    def reads(self, slice_: str, parameter: str) -> bool:
        return slice_ in self.live and self.body[slice_].operands[0] == parameter

    def cut(self, source: str, name: str, numbers: int | None) -> np.ndarray:
        """The numbers of a value that a node of the new body holds; `numbers`: its dimension of numbers."""
        form, rows = self.form(name), self.row_shape(name)
        made = np.empty(math.prod(form), object)
        shape = self.nodes[source].shape
        for i in range(made.size):
            part = source
            if numbers is not None:
                starts = [i if d == numbers else 0 for d in range(len(shape))]
                limits = [i + 1 if d == numbers else n for d, n in enumerate(shape)]
                attrs = SliceAttrs(tuple(starts), tuple(limits), (1,) * len(shape))
                sizes = tuple(b - a for a, b in zip(starts, limits, strict=True))
                part = self.put("slice", ArrayType(self.body[name].dtype, sizes), (source,), attrs)
            made[i] = self.reshape(part, rows)
        return made.reshape(form)

    def gather(self, parameter: str, value: str, place: Place | None) -> str:
        """The numbers of a value side by side, as a state has them, or the slice of one of a stack's turns."""
        shape, numbers, turns = self.layouts[parameter]
        sizes = tuple(1 if d == turns and place else n for d, n in enumerate(shape))
        single = tuple(1 if d == numbers else n for d, n in enumerate(sizes))
        parts = [self.reshape(name, single) for name in self.find(value).ravel()]
        if numbers is None:
            return parts[0]
        type_ = ArrayType(self.body[value].dtype, sizes)
        return (
            self.put("concatenate", type_, parts, DimensionAttrs(numbers))
            if len(parts) > 1
            else parts[0]
        )

    def list_indices(self, parameter: str, node: Node, first: int, place: Place) -> list[str]:
        """The indices of a slice of a stack or of an update: of the turn, and zeros."""
        shape, _, turns = self.layouts[parameter]
        own = self.copy(node.operands[first + place.dimension])
        zero = self.put_constant(np.zeros(()), self.body[own].dtype)
        return [own if d == turns else zero for d in range(len(shape))]

    def update(self, parameter: str, value: str, node: Node, place: Place) -> str:
        """The stack with the slice of this turn."""
        operands = (parameter, value, *self.list_indices(parameter, node, 2, place))
        return self.put("dynamic-update-slice", self.nodes[parameter].array, operands)

    # ---- values ----------------------------------------------------------------------------------------------------

    def find(self, name: str) -> np.ndarray:
        """The numbers of a value."""
        if name not in self.values:
            if name in self.loop.integers:
                scalar = self.reshape(self.copy(name), ())
                self.values[name] = np.full(self.body[name].shape, scalar, object)
            else:
                assert self.body[name].is_parameter, name
                self.values[name] = self.cut(name, name, self.layouts[name][1])
        return self.values[name]

    def find_repeated(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The numbers of a value that has these rows, or none."""
        return _each(self.find(name), lambda n: self.repeat(n, shape))

    def align(
        self, numbers: np.ndarray, places: Sequence[int], rows: tuple[int, ...]
    ) -> np.ndarray:
        """Numbers of a value along all rows of another one; integers stay.  places: of its own rows among these.
        Raises NotSpelled."""
        if list(places) != sorted(places):
            raise NotSpelled("rows are looked up in another order than they lie in")

        def align(number: int | str) -> int | str:
            if not isinstance(number, str):
                return number
            return self.repeat(number, rows, places if self.nodes[number].shape else ())

        return _each(numbers, align)


class _Places(_Numbers):
    """Looks numbers up at places that each row computes."""

    def read_window(self, node: Node) -> np.ndarray:
        """A slice of a few numbers, wherever it is."""
        source, rows = node.operands[0], self.row_shape(node.name)
        numbers, shape = self.find(source), self.body[source].shape
        starts = self.read_starts(node, 1, node.shape, source)
        limits = [extent - size for extent, size in zip(shape, node.shape, strict=True)]
        made = np.empty(self.form(node.name), object)
        for index in np.ndindex(made.shape):
            made[index] = self.choose(numbers, starts, limits, index, rows)
        return made

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
            places = _each(self.find(name), read)
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
        numbers = self.align(
            self.find(source), [here(of_table[d]) for d in self.rows.get(source, ())], rows
        )
        places = self.align(
            self.read_places(indices, attrs.index_vector_dim),
            [here(of_index[d]) for d in self.rows.get(indices, ())],
            rows,
        )
        limits = [extent - size for extent, size in zip(shape, attrs.slice_sizes, strict=True)]
        made = np.empty(self.form(node.name), object)
        for index in np.ndindex(made.shape):
            starts: list[int | str] = [0] * len(shape)
            place = places[tuple(index[d] for d in outside)]
            for d, start in zip(attrs.start_index_map, place, strict=True):
                starts[d] = start if limits[d] else 0
            for d in attrs.operand_batching_dims:
                starts[d] = 0
            inside = [index[of_table[d]] if d in of_table else 0 for d in range(len(shape))]
            made[index] = self.choose(numbers, starts, limits, inside, rows)
        return made


class _Speller(_Places):
    """Writes the ops of a body as ops on its numbers."""

    def spell(self) -> Graph:
        for parameter in self.body.parameters:
            node = self.body[parameter]
            self.nodes[parameter] = replace(
                node, type=ArrayType(node.dtype, self.layouts[parameter][0])
            )
        for node in self.body:
            if node.name in self.live and not node.is_parameter and not self.is_counted(node):
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
        """The numbers of a value, of several for a tuple."""
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
        spread = _each(placed, lambda n: self.repeat(n, shape, at))
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
        return _each(numbers, lambda n: self.put("transpose", type_, (n,), attrs))

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
        spread = _each(self.find(operand), lambda n: self.repeat(n, rows, own))
        return self.convert(spread, total)

    def convert(self, numbers: np.ndarray, dtype: DType) -> np.ndarray:
        def convert(name: str) -> str:
            node = self.nodes[name]
            same = node.dtype is dtype
            return name if same else self.put("convert", ArrayType(dtype, node.shape), (name,))

        return _each(numbers, convert)

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
