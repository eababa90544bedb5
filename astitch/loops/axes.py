"""Which dimension of each value in a loop's body is the batch's and which one holds columns.

Takes a Loop, hands on its Axes or a refusal.  The idea: a product by an invariant matrix tells rows from columns.
Every other op carries that on, so dimensions that must be the same are one class; columns fall into equal parts (the
gates of an LSTM).  The elements at one place of all parts are one unit, which one thread can compute.  A few columns
that are added up in a turn (the places of an attention) are small: every block has all of them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from astitch.graph.ir import (
    BroadcastAttrs,
    ConstantAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    Node,
    PadAttrs,
    SliceAttrs,
    TransposeAttrs,
)
from astitch.graph.ops import OPS, Kind, monoid_of
from astitch.loops.analysis import Carried, Loop, LoopRefusal, Stack
from astitch.loops.flatten import Dimension, JoinedDimensions, can_flatten, flatten_loop
from astitch.loops.lookups import Lookup, find_lookups, list_tables


class Axis(enum.Enum):
    """What a dimension is: of extent 1, of the batch, of the columns, of a few columns."""

    ONE = "one"
    ROW = "row"
    COLUMN = "column"
    SMALL = "small"


MAX_SMALL = 32
"""Small columns: the lanes of a warp."""


class Form(enum.Enum):
    """How a product crosses columns: from all units to all units, from units to small columns, from those to units."""

    ROWS = "rows"
    COLLECT = "collect"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class Product:
    """A dot of the body: state [rows, k] times an invariant matrix [k, columns], or one such matrix for each row.

    left: the operand that is computed in the loop.  matrix: the body's parameter.  k_dimension, column_dimension,
    row_dimension: of the matrix; the last is None where all rows have one matrix.
    """

    name: str
    left: str
    matrix: str
    k_dimension: int
    column_dimension: int
    row_dimension: int | None = None
    form: Form = Form.ROWS


@dataclass(frozen=True)
class Axes:
    """rows: of the batch.  units: columns of one part.  small: the small columns, 1 without any.  of: the axes of each
    value that the loop computes or reads, but for tables.  products: the dots.  lookups: what is read of tables.  live:
    the nodes of the body that its results need.
    """

    rows: int
    units: int
    small: int
    of: Mapping[str, tuple[Axis, ...]]
    products: Mapping[str, Product]
    live: frozenset[str]
    lookups: Mapping[str, Lookup]

    def dimension(self, name: str, axis: Axis) -> int | None:
        """Which dimension of a value is the batch's or the columns'."""
        return self.of[name].index(axis) if axis in self.of[name] else None


NEUTRAL = {"add": 0.0, "maximum": -math.inf, "minimum": math.inf}
"""The start of the reductions that a turn may have."""


class _Refused(Exception):
    """Why the axes of a loop cannot be told."""


def find_axes(loop: Loop, used: Collection[int]) -> Axes | LoopRefusal:
    """The axes of every value in a loop's body.  used: the parts of its final state that somebody reads."""
    try:
        return _Classes(loop, used).resolve()
    except _Refused as refused:
        return LoopRefusal(loop.node.name, str(refused))


def join_dimensions(loop: Loop, used: Collection[int]) -> Loop:
    """A loop without products, with dimensions as one that all its values have side by side; else the same loop."""
    classes = _Classes(loop, used)
    try:
        classes.visit_all()
    except _Refused:
        return loop
    values = classes.live - classes.tables
    if classes.products or not all(can_flatten(loop.body[name]) for name in values):
        return loop
    apart = [key for key, marks in classes.marks.items() if marks]
    flat = flatten_loop(loop, values, classes.find, classes.list_open, apart)
    return loop if flat is None else flat


def find_live(loop: Loop, used: Collection[int]) -> frozenset[str]:
    """The nodes of the body that the used parts of the final state need."""
    body, live = loop.body, set[str]()
    made = (Carried, Stack)
    needed = {*used} if loop.asked is None else {*used, loop.asked}
    pending = [role.value for i in needed if isinstance(role := loop.roles[i], made)]
    while pending:
        name = pending.pop()
        if name in live or name in loop.integers:
            continue
        live.add(name)
        if name in body.parameters:
            role = loop.roles[body.parameters.index(name)]
            pending += [role.value] if isinstance(role, Carried) else []
        operands = body[name].operands
        pending += operands[:1] if name in loop.slices else operands
    return frozenset(live)


def find_product(loop: Loop, node: Node) -> Product | None:
    """A dot with one operand that no turn changes, of two dimensions, the other of at most two."""
    attrs = node.attrs
    if not isinstance(attrs, DotAttrs):
        return None
    if attrs.lhs_batch:
        return _find_row_product(loop, node, attrs)
    sides = [
        (node.operands[0], node.operands[1], attrs.lhs_contracting, attrs.rhs_contracting),
        (node.operands[1], node.operands[0], attrs.rhs_contracting, attrs.lhs_contracting),
    ]
    for left, right, left_k, right_k in sides:
        matrix, permutation = right, [0, 1]
        while isinstance(turned := loop.body[matrix].attrs, TransposeAttrs):
            permutation = [turned.permutation[p] for p in permutation]
            matrix = loop.body[matrix].operands[0]
        state = loop.body[left]
        if matrix not in loop.body.parameters or loop.body[matrix].array.rank != 2:
            continue
        kept = loop.body.outputs[loop.body.parameters.index(matrix)] == matrix
        if kept and len(left_k) == 1 and state.array.rank <= 2:
            k_dimension = permutation[right_k[0]]
            return Product(node.name, left, matrix, k_dimension, 1 - k_dimension)
    return None


def _find_row_product(loop: Loop, node: Node, attrs: DotAttrs) -> Product | None:
    """The same with a matrix for each row, and few columns on one side."""
    left, matrix = node.operands
    body = loop.body
    if matrix not in body.parameters or body[matrix].array.rank != 3 or body[left].array.rank != 2:
        return None
    kept = body.outputs[body.parameters.index(matrix)] == matrix
    if not kept or attrs.lhs_batch != (0,) or attrs.lhs_contracting != (1,):
        return None
    (row,), (k,) = attrs.rhs_batch, attrs.rhs_contracting
    column = 3 - row - k
    shape = body[matrix].shape
    if min(shape[k], shape[column]) > MAX_SMALL:
        return None
    form = Form.SPREAD if shape[k] <= shape[column] else Form.COLLECT
    return Product(node.name, left, matrix, k, column, row, form)


class _Classes(JoinedDimensions):
    """marks: what the dimensions of a class hold."""

    def __init__(self, loop: Loop, used: Collection[int]) -> None:
        super().__init__()
        self.loop, self.body = loop, loop.body
        self.marks: dict[Dimension, set[Axis]] = {}
        self.products: dict[str, Product] = {}
        self.live = find_live(loop, used)
        self.lookups = find_lookups(self.body, self.live)
        self.tables = list_tables(self.body, self.live, self.lookups)
        self.matrices: set[str] = {*self.tables}
        self.edges: list[tuple[str, int, int]] = []
        self.shifts = False

    def join(self, a: Dimension, b: Dimension) -> None:
        one, other = self.find(a), self.find(b)
        if one != other:
            super().join(one, other)
            self.marks.setdefault(other, set()).update(self.marks.pop(one, set()))

    def mark(self, name: str, dimension: int, axis: Axis) -> None:
        self.marks.setdefault(self.find((name, dimension)), set()).add(axis)

    def resolve(self) -> Axes:
        body = self.body
        self.visit_all()
        if not self.products and not self.shifts:
            self.mark_places()
        of: dict[str, tuple[Axis, ...]] = {}
        self.spread_marks()
        for node in body:
            if node.name in self.live and node.name not in self.matrices:
                of[node.name] = tuple(self.axis(node, d) for d in range(node.array.rank))
        rows, units, small = 1, 0, 1
        for name, axes in of.items():
            columns = axes.count(Axis.COLUMN) + axes.count(Axis.SMALL)
            if axes.count(Axis.ROW) > 1 or columns > 1:
                raise _Refused(f"%{name} has two dimensions of rows or of columns")
            if isinstance(body[name].attrs, DimensionAttrs) and Axis.SMALL in axes:
                raise _Refused(f"%{name} joins small columns")
            if isinstance(body[name].attrs, SliceAttrs):
                source = of.get(body[name].operands[0], axes)
                single = (Axis.SMALL, Axis.ONE) in zip(source, axes, strict=True)
                if single and not self.is_first_padded(body[name]):
                    raise _Refused(f"%{name} takes one of small columns")
            for axis, extent in zip(axes, body[name].shape, strict=True):
                if axis is Axis.ROW:
                    if rows not in (1, extent):
                        raise _Refused(f"%{name} has {extent} rows, others {rows}")
                    rows = extent
                elif axis is Axis.COLUMN:
                    units = math.gcd(units, extent)
                elif axis is Axis.SMALL:
                    if extent > MAX_SMALL:
                        raise _Refused(f"%{name} adds up or shifts {extent} columns")
                    if small not in (1, extent) and any(
                        p.form is not Form.ROWS for p in self.products.values()
                    ):
                        raise _Refused(f"%{name} has {extent} small columns, others {small}")
                    small = max(small, extent)
        for name, dimension, edge in self.edges:
            if of[name][dimension] is not Axis.SMALL:
                units = math.gcd(units, edge)
        if not units and self.products:
            raise _Refused("no product has columns of its own")
        return Axes(rows, max(units, 1), small, of, self.products, self.live, self.lookups)

    def is_first_padded(self, node: Node) -> bool:
        """Does a slice take what the first lane has, for pads, which ask no other lane for it?"""
        assert isinstance(node.attrs, SliceAttrs)
        users = [self.body[user] for user in self.body.users[node.name] if user in self.live]
        return not any(node.attrs.starts) and all(isinstance(u.attrs, PadAttrs) for u in users)

    def visit_all(self) -> None:
        """Joins the dimensions that ops and the next turn have in common."""
        body, computed = self.body, self.live - self.tables
        for node in body:
            if node.name in computed and node.name not in self.loop.integers:
                self.visit(node)
        for parameter, role in zip(body.parameters, self.loop.roles, strict=True):
            if isinstance(role, Carried) and parameter in self.live:
                for d in range(body[parameter].array.rank):
                    self.join((parameter, d), (role.value, d))

    def mark_places(self) -> None:
        """Marks the dimensions of a loop without products, whose elements never meet: the last ones hold columns."""
        single: list[tuple[str, int]] = []
        computed = self.live - self.tables
        self.spread_marks()
        for node in self.body:
            if node.name not in computed:
                continue
            open_ = self.list_open(node)
            if len(open_) > 2:
                raise _Refused(
                    f"%{node.name} has {len(open_)} dimensions, and nothing is multiplied"
                )
            known = any(self.marks.get(self.find((node.name, d))) for d in open_)
            if len(open_) == 2 and not known:
                for d, axis in zip(open_, (Axis.ROW, Axis.COLUMN), strict=True):
                    self.mark(node.name, d, axis)
            single += [(node.name, d) for d in open_]
        self.spread_marks()
        for name, d in single:
            if not self.marks.get(self.find((name, d))):
                self.mark(name, d, Axis.COLUMN)

    def list_open(self, node: Node) -> list[int]:
        """The dimensions of more than one element, except those along which turns read or write."""
        return [
            d
            for d, extent in enumerate(node.shape)
            if extent > 1 and not self.is_stack_dimension(node.name, d)
        ]

    def spread_marks(self) -> None:
        """Marks the unmarked dimensions: beside rows there are columns, beside columns rows."""
        changed = True
        while changed:
            changed = False
            for node in self.body:
                name = node.name
                if name not in self.live or name in self.matrices:
                    continue
                open_ = self.list_open(node)
                if len(open_) != 2:
                    continue
                for d, beside in (open_, open_[::-1]):
                    told = self.marks.get(self.find((name, beside)), set())
                    if told and not self.marks.get(self.find((name, d))):
                        self.mark(name, d, Axis.COLUMN if Axis.ROW in told else Axis.ROW)
                        changed = True

    def axis(self, node: Node, dimension: int) -> Axis:
        if node.shape[dimension] == 1:
            return Axis.ONE
        if node.name in self.body.parameters and self.is_stack_dimension(node.name, dimension):
            return Axis.ONE
        marks = self.marks.get(self.find((node.name, dimension)), set())
        if marks == {Axis.COLUMN, Axis.SMALL}:
            return Axis.SMALL
        if len(marks) != 1:
            what = "both rows and columns" if marks else "neither rows nor columns"
            raise _Refused(f"dimension {dimension} of %{node.name} holds {what}")
        return next(iter(marks))

    def is_stack_dimension(self, name: str, dimension: int) -> bool:
        return any(
            self.body[slice_].operands[0] == name and place.dimension == dimension
            for slice_, place in self.loop.slices.items()
        )

    def visit(self, node: Node) -> None:
        """The dimensions that an op has in common with its operands."""
        body = self.body
        if OPS[node.op].kind is Kind.ELEMENTWISE:
            for operand in node.operands:
                if operand not in self.loop.integers and body[operand].array.rank:
                    for d in range(node.array.rank):
                        self.join((operand, d), (node.name, d))
            return
        visit = _VISITS.get(node.op)
        if visit is None:
            raise _Refused(f"%{node.name} is a {node.op}")
        visit(self, node)

    def visit_source(self, node: Node) -> None:
        if node.is_constant and node.array.size > 1:
            raise _Refused(f"%{node.name} is a constant of several elements")

    def visit_broadcast(self, node: Node) -> None:
        assert isinstance(node.attrs, BroadcastAttrs)
        if node.operands[0] not in self.loop.integers:
            for i, d in enumerate(node.attrs.dimensions):
                self.join((node.operands[0], i), (node.name, d))

    def visit_transpose(self, node: Node) -> None:
        assert isinstance(node.attrs, TransposeAttrs)
        for d, i in enumerate(node.attrs.permutation):
            self.join((node.operands[0], i), (node.name, d))

    def visit_slice(self, node: Node) -> None:
        assert isinstance(node.attrs, SliceAttrs)
        starts, limits, strides = node.attrs.starts, node.attrs.limits, node.attrs.strides
        for d in range(node.array.rank):
            if node.shape[d] != self.body[node.operands[0]].shape[d]:
                if strides[d] != 1:
                    raise _Refused(f"%{node.name} leaves out elements in between")
                self.mark(node.name, d, Axis.COLUMN)
                self.edges += [(node.name, d, starts[d]), (node.name, d, limits[d])]
            self.join((node.operands[0], d), (node.name, d))

    def visit_concatenate(self, node: Node) -> None:
        assert isinstance(node.attrs, DimensionAttrs)
        dimension = node.attrs.dimension
        for operand in node.operands:
            for d in range(node.array.rank):
                self.join((operand, d), (node.name, d))
            self.edges.append((node.name, dimension, self.body[operand].shape[dimension]))
        self.mark(node.name, dimension, Axis.COLUMN)

    def visit_pad(self, node: Node) -> None:
        assert isinstance(node.attrs, PadAttrs)
        if any(node.attrs.interior):
            raise _Refused(f"%{node.name} is a {node.op}")
        for d in range(node.array.rank):
            self.join((node.operands[0], d), (node.name, d))
            if node.attrs.low[d] or node.attrs.high[d]:
                self.mark(node.name, d, Axis.SMALL)
                self.shifts = True

    def visit_dynamic_slice(self, node: Node) -> None:
        if node.name not in self.loop.slices:
            raise _Refused(f"%{node.name} is a {node.op}")
        place = self.loop.slices[node.name]
        for d in range(node.array.rank):
            if d != place.dimension:
                self.join((node.operands[0], d), (node.name, d))

    def visit_reduce(self, node: Node) -> None:
        assert isinstance(node.attrs, DimensionsAttrs)
        if len(node.operands) != 2:
            raise _Refused(f"%{node.name} is a {node.op}")
        self.visit_sum(node, node.attrs.dimensions)

    def visit_gather(self, node: Node) -> None:
        lookup = self.lookups.get(node.name)
        if lookup is None or node.operands[0] not in self.tables:
            raise _Refused(f"%{node.name} is a {node.op}")
        for d in range(node.array.rank):
            self.join((lookup.places, d), (node.name, d))

    def visit_view(self, node: Node) -> None:
        source = self.body[node.operands[0]]
        before = [d for d, extent in enumerate(source.shape) if extent != 1]
        after = [d for d, extent in enumerate(node.shape) if extent != 1]
        if [source.shape[d] for d in before] != [node.shape[d] for d in after]:
            raise _Refused(f"%{node.name} reshapes {source.array} to {node.array}")
        for i, d in zip(before, after, strict=True):
            self.join((source.name, i), (node.name, d))

    def visit_sum(self, node: Node, dimensions: tuple[int, ...]) -> None:
        """A reduction along columns, which must be few."""
        source, start = (self.body[o] for o in node.operands)
        monoid = monoid_of(node.regions[0])
        neutral = NEUTRAL.get(monoid or "")
        plain = isinstance(start.attrs, ConstantAttrs) and start.attrs.value.numpy() == neutral
        if neutral is None or not plain or not node.dtype.is_float:
            raise _Refused(f"%{node.name} is a reduction by other means than a sum or maximum")
        rest = [d for d in range(source.array.rank) if d not in dimensions]
        for i, d in enumerate(rest):
            self.join((source.name, d), (node.name, i))
        for d in dimensions:
            if source.shape[d] > 1:
                self.mark(source.name, d, Axis.SMALL)

    def visit_product(self, node: Node) -> None:
        product = find_product(self.loop, node)
        if product is None:
            raise _Refused(f"%{node.name} is no product of rows and a matrix that no turn changes")
        attrs = node.attrs
        assert isinstance(attrs, DotAttrs)
        if product.row_dimension is not None:
            self.products[node.name] = product
            self.matrices.add(product.matrix)
            collects = product.form is Form.COLLECT
            self.mark(product.left, 1, Axis.COLUMN if collects else Axis.SMALL)
            self.mark(node.name, 1, Axis.SMALL if collects else Axis.COLUMN)
            self.mark(product.left, 0, Axis.ROW)
            self.join((product.left, 0), (node.name, 0))
            return
        first = product.left == node.operands[0]
        k = (attrs.lhs_contracting if first else attrs.rhs_contracting)[0]
        self.products[node.name] = product
        self.matrices.add(product.matrix)
        chain = node.operands[1 if first else 0]
        while chain != product.matrix:
            self.matrices.add(chain)
            chain = self.body[chain].operands[0]
        self.mark(product.left, k, Axis.COLUMN)
        column = node.array.rank - 1 if first else 0
        self.mark(node.name, column, Axis.COLUMN)
        if self.body[product.left].array.rank == 2:
            self.mark(product.left, 1 - k, Axis.ROW)
            self.join((product.left, 1 - k), (node.name, 1 - column))


_VISITS: Mapping[str, Callable[[_Classes, Node], None]] = {
    "parameter": _Classes.visit_source,
    "constant": _Classes.visit_source,
    "iota": _Classes.visit_source,
    "broadcast": _Classes.visit_broadcast,
    "transpose": _Classes.visit_transpose,
    "slice": _Classes.visit_slice,
    "concatenate": _Classes.visit_concatenate,
    "pad": _Classes.visit_pad,
    "dynamic-slice": _Classes.visit_dynamic_slice,
    "dot": _Classes.visit_product,
    "gather": _Classes.visit_gather,
    "reduce": _Classes.visit_reduce,
    "reshape": _Classes.visit_view,
}
