"""The numbers of a row, each of which becomes a value of its own in a new body (see spell_out.py)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    Attrs,
    BroadcastAttrs,
    ConstantAttrs,
    DimensionAttrs,
    DType,
    IotaAttrs,
    Literal,
    NoAttrs,
    Node,
    SliceAttrs,
)
from astitch.graph.ops import OPS
from astitch.loops.analysis import Carried, Loop, Place, Stack
from astitch.loops.lookups import find_table
from astitch.loops.row_dimensions import NotSpelled, counts_up

MOST_NUMBERS = 64
"""Numbers that a row of one value may have in a loop that turns once."""

MOST_MET = 256
"""The same where turns follow each other.  Threads have as many registers, and keep some numbers in memory.  By
estimate XLA's turn is slower all the same: it takes many launches."""

MOST_WRITTEN = 40000
"""Ops of a body before equal ones are merged and known ones computed; spell_out.py limits what is left."""


def change_each(numbers: np.ndarray, change: Callable[[str], object]) -> np.ndarray:
    """What a function makes of each number."""
    made = np.empty(numbers.shape, object)
    for index, number in np.ndenumerate(numbers):
        made[index] = change(number)
    return made


class Numbers(ABC):
    """The numbers of a body's values, while a body is written anew.

    rows: by value, its dimensions of rows.  values: by value, the names of its numbers: an array of its shape, in
    which the dimensions of rows have one element.  A number is an array of the rows, or a scalar.  results: the same of
    tuples.  tables: by what is looked up in, its name in one dimension.  layouts: of each state, see lay_out.
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
        self.tables: dict[str, str] = {}
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
            elif self.body[name].is_parameter:
                self.values[name] = self.cut(name, name, self.layouts[name][1])
            else:
                assert self.waits(name), name
                self.keep(name, self.write(self.body[name]))
        return self.values[name]

    def waits(self, name: str) -> bool:
        """Is a value written where somebody needs its numbers?  Of what is looked up in memory nobody does."""
        node = self.body[name]
        return (node.is_constant or OPS[node.op].keeps_order) and find_table(
            self.body, name
        ) is not None

    @abstractmethod
    def write(self, node: Node) -> np.ndarray | list[np.ndarray]:
        """The numbers of a value, of several for a tuple.  Raises NotSpelled."""

    def find_repeated(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """The numbers of a value that has these rows, or none."""
        return change_each(self.find(name), lambda n: self.repeat(n, shape))

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

        return change_each(numbers, align)
