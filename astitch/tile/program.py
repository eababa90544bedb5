"""Tile programs: what one block of a grid computes, on whole tiles.

A tile is an array whose extents are powers of two; one without dimensions is a scalar.  A program is a list of
statements in static single assignment form.  It says nothing of threads: triton_ir.py writes it as Triton IR, which
XLA compiles, and interpret.py computes it in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from astitch.errors import IllegalProduct
from astitch.graph.ir import DType

Shape: TypeAlias = tuple[int, ...]

COMPARISONS = frozenset({"less", "less-equal", "greater-equal", "equal", "not-equal"})
ARITHMETIC = frozenset(
    {"add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum"}
    | {"maximum-or-nan", "minimum-or-nan"}
    | {"and", "or", "xor", "shift-right"}
)
FUNCTIONS = frozenset(
    {"exp2", "log2", "tanh", "expm1", "log1p", "sqrt", "rsqrt", "erf"} | {"abs", "floor", "ceil"}
)
"""Of one f32 tile."""


@dataclass(frozen=True, slots=True)
class TileType:
    dtype: DType
    shape: Shape = ()

    def __post_init__(self) -> None:
        if any(extent < 1 or extent & (extent - 1) for extent in self.shape):
            raise IllegalProduct(f"a tile of {self.shape} has extents that are no powers of two")


@dataclass(frozen=True, slots=True)
class Value:
    """number: no other value of the program has it."""

    number: int
    type: TileType


@dataclass(frozen=True, slots=True)
class Compute:
    """One op on tiles.

    code: one of ARITHMETIC, COMPARISONS and FUNCTIONS, or

    | code | operands | gives |
    |---|---|---|
    | program-id | | s32: the number of the block along an axis of the grid |
    | range | | s32 [extent]: 0, 1, ... |
    | constant | | `number`, everywhere |
    | expand | x | x with a dimension of extent 1 at `axis` |
    | broadcast | x | x repeated along its dimensions of extent 1; a scalar everywhere |
    | transpose | x | a matrix with its dimensions exchanged |
    | convert | x | x in another type: float to float, integer to wider integer, s32 to f32 |
    | bitcast | x | the bits of x, in another type of as many |
    | round-to-tf32 | x | x of f32, rounded to the nearest number that a product in TF32 sees |
    | select | condition, x, y | x where the condition holds, else y |
    | dot | x, y, z | z + x y, in f32; `precision` says what becomes of f32 factors |
    | reduce-maximum, reduce-add, reduce-maximum-or-nan, reduce-minimum-or-nan | x | over `axis`, which goes |
    | load | offsets [, mask] | elements of parameter `parameter`; 0 where the mask does not hold |
    | load-one-of | number, offsets [, mask] | likewise, of the parameter `parameter` + number, of `count` |
    """

    result: Value
    code: str
    operands: tuple[Value, ...] = ()
    number: float = 0
    axis: int = 0
    parameter: int = 0
    precision: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Store:
    """Writes a tile to these elements of a parameter, where the mask holds."""

    parameter: int
    offsets: Value
    value: Value
    mask: Value | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """for index in range(lower, upper, step), with values that a turn hands to the next.

    initial: at the first turn.  carried: their names within a turn.  yielded: what the turn makes of them.  results:
    after the last turn.
    """

    index: Value
    lower: Value
    upper: Value
    step: int
    initial: tuple[Value, ...]
    carried: tuple[Value, ...]
    body: tuple[Statement, ...]
    yielded: tuple[Value, ...]
    results: tuple[Value, ...]


Statement: TypeAlias = "Compute | Store | Loop"


@dataclass(frozen=True, slots=True)
class Parameter:
    """An array in memory.  size: elements."""

    dtype: DType
    size: int


@dataclass(frozen=True, slots=True)
class TileProgram:
    """grid: blocks along each axis.  reads: so many parameters are operands; the others are results.

    warps, stages: of a block; how many turns of a loop are loaded ahead.
    Raises IllegalProduct where no statement writes one of the results: it would be what memory holds.
    """

    name: str
    parameters: tuple[Parameter, ...]
    reads: int
    body: tuple[Statement, ...]
    grid: tuple[int, int, int]
    warps: int
    stages: int

    def __post_init__(self) -> None:
        results = range(self.reads, len(self.parameters))
        if missing := set(results).difference(_list_stored(self.body)):
            raise IllegalProduct(f"{self.name} does not write its results {sorted(missing)}")


def _list_stored(body: Iterable[Statement]) -> Iterator[int]:
    """The parameters that statements write."""
    for statement in body:
        if isinstance(statement, Store):
            yield statement.parameter
        elif isinstance(statement, Loop):
            yield from _list_stored(statement.body)


Number: TypeAlias = "Tile | float | int"


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A value while a program is written, with arithmetic."""

    builder: Builder = field(repr=False)
    value: Value

    @property
    def dtype(self) -> DType:
        return self.value.type.dtype

    @property
    def shape(self) -> Shape:
        return self.value.type.shape

    def __add__(self, other: Number) -> Tile:
        return self.builder.elementwise("add", self, other)

    def __sub__(self, other: Number) -> Tile:
        return self.builder.elementwise("subtract", self, other)

    def __mul__(self, other: Number) -> Tile:
        return self.builder.elementwise("multiply", self, other)

    def __truediv__(self, other: Number) -> Tile:
        """Of integers without a sign: rounded down."""
        return self.builder.elementwise("divide", self, other)

    def __mod__(self, other: Number) -> Tile:
        return self.builder.elementwise("remainder", self, other)

    def __and__(self, other: Number) -> Tile:
        return self.builder.elementwise("and", self, other)

    def __or__(self, other: Number) -> Tile:
        return self.builder.elementwise("or", self, other)

    def __xor__(self, other: Number) -> Tile:
        return self.builder.elementwise("xor", self, other)

    def __rshift__(self, other: Number) -> Tile:
        """Of integers with a sign: it is repeated."""
        return self.builder.elementwise("shift-right", self, other)

    def __lt__(self, other: Number) -> Tile:
        return self.builder.elementwise("less", self, other)

    def __le__(self, other: Number) -> Tile:
        return self.builder.elementwise("less-equal", self, other)

    def __ge__(self, other: Number) -> Tile:
        return self.builder.elementwise("greater-equal", self, other)

    def same(self, other: Number) -> Tile:
        return self.builder.elementwise("equal", self, other)

    def column(self) -> Tile:
        """[n] as [n, 1]."""
        return self.builder.expand(self, 1)

    def row(self) -> Tile:
        """[n] as [1, n]."""
        return self.builder.expand(self, 0)


class Builder:
    """Writes the statements of one tile program."""

    def __init__(self) -> None:
        self._count = 0
        self._statements: list[Statement] = []

    def statements(self) -> tuple[Statement, ...]:
        return tuple(self._statements)

    def program_id(self, axis: int) -> Tile:
        return self._compute("program-id", TileType(DType.S32), axis=axis)

    def range(self, extent: int) -> Tile:
        return self._compute("range", TileType(DType.S32, (extent,)))

    def full(self, shape: Shape, number: float, dtype: DType = DType.F32) -> Tile:
        return self._compute("constant", TileType(dtype, shape), number=number)

    def scalar(self, number: int) -> Tile:
        return self.full((), number, DType.S32)

    def expand(self, x: Tile, axis: int) -> Tile:
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        return self._compute("expand", TileType(x.dtype, shape), x, axis=axis)

    def broadcast(self, x: Tile, shape: Shape) -> Tile:
        if x.shape == shape:
            return x
        fits = len(x.shape) == len(shape) and all(
            a in (1, b) for a, b in zip(x.shape, shape, strict=True)
        )
        if x.shape and not fits:
            raise IllegalProduct(f"a tile of {x.shape} is not repeated to {shape}")
        return self._compute("broadcast", TileType(x.dtype, shape), x)

    def transpose(self, x: Tile) -> Tile:
        rows, columns = x.shape
        return self._compute("transpose", TileType(x.dtype, (columns, rows)), x)

    def convert(self, x: Tile, dtype: DType) -> Tile:
        return x if x.dtype is dtype else self._compute("convert", TileType(dtype, x.shape), x)

    def widen_byte(self, x: Tile, dtype: DType) -> Tile:
        """Integers of 8 bits as floats: 2**23 + n in f32 is 0x4B000000 | n."""
        signed = x.dtype is DType.S8
        wide = self.convert(x, DType.S32)
        bits = (wide + 128 if signed else wide) | 0x4B000000
        return self.convert(self.bitcast(bits, DType.F32) - (2.0**23 + 128 * signed), dtype)

    def bitcast(self, x: Tile, dtype: DType) -> Tile:
        return self._compute("bitcast", TileType(dtype, x.shape), x)

    def round_to_tf32(self, x: Tile) -> Tile:
        return self._compute("round-to-tf32", x.value.type, x)

    def elementwise(self, code: str, *given: Number) -> Tile:
        """Tiles of one type, repeated to one shape; numbers become constants."""
        dtype = next(x.dtype for x in given if isinstance(x, Tile))
        tiles = self._align(dtype, given)
        result = DType.PRED if code in COMPARISONS else dtype
        return self._compute(code, TileType(result, tiles[0].shape), *tiles)

    def maximum(self, x: Number, y: Number) -> Tile:
        return self.elementwise("maximum", x, y)

    def minimum(self, x: Number, y: Number) -> Tile:
        return self.elementwise("minimum", x, y)

    def exp2(self, x: Tile) -> Tile:
        return self.elementwise("exp2", x)

    def log2(self, x: Tile) -> Tile:
        return self.elementwise("log2", x)

    def tanh(self, x: Tile) -> Tile:
        return self.elementwise("tanh", x)

    def select(self, condition: Tile, x: Number, y: Number) -> Tile:
        dtype = next(v.dtype for v in (x, y) if isinstance(v, Tile))
        tiles = self._align(dtype, (x, y))
        shape = _common(tiles[0].shape, condition.shape)
        given = [self.broadcast(v, shape) for v in tiles]
        chosen = self.broadcast(condition, shape)
        return self._compute("select", TileType(dtype, shape), chosen, *given)

    def dot(self, x: Tile, y: Tile, z: Tile, precision: str) -> Tile:
        """z + x y."""
        if (
            x.shape[1] != y.shape[0]
            or z.shape != (x.shape[0], y.shape[1])
            or x.dtype is not y.dtype
        ):
            raise IllegalProduct(f"no product of {x.value.type} and {y.value.type}")
        return self._compute("dot", z.value.type, x, y, z, precision=precision)

    def reduce(self, code: str, x: Tile, axis: int) -> Tile:
        """code: maximum, add, maximum-or-nan or minimum-or-nan."""
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        return self._compute(f"reduce-{code}", TileType(x.dtype, shape), x, axis=axis)

    def load(self, parameter: int, dtype: DType, offsets: Tile, mask: Tile | None = None) -> Tile:
        given = (offsets,) if mask is None else (offsets, self.broadcast(mask, offsets.shape))
        type_ = TileType(dtype, offsets.shape)
        return self._compute("load", type_, *given, parameter=parameter)

    def load_one_of(
        self,
        first: int,
        count: int,
        number: Tile,
        dtype: DType,
        offsets: Tile,
        mask: Tile | None = None,
    ) -> Tile:
        """load, of parameter `first` + number, of `count`; number: a scalar."""
        if count == 1:
            return self.load(first, dtype, offsets, mask)
        given = [number, offsets]
        if mask is not None:
            given.append(self.broadcast(mask, offsets.shape))
        type_ = TileType(dtype, offsets.shape)
        return self._compute("load-one-of", type_, *given, parameter=first, count=count)

    def store(self, parameter: int, offsets: Tile, value: Tile, mask: Tile | None = None) -> None:
        held = None if mask is None else self.broadcast(mask, offsets.shape).value
        self._statements.append(Store(parameter, offsets.value, value.value, held))

    def loop(
        self,
        lower: Tile,
        upper: Tile,
        step: int,
        initial: Sequence[Tile],
        turn: Callable[..., Sequence[Tile]],
    ) -> list[Tile]:
        """turn: of the index and the carried tiles -> what the next turn gets."""
        index = self._name(lower.value.type)
        carried = [self._name(x.value.type) for x in initial]
        outer, self._statements = self._statements, []
        yielded = turn(index, *carried)
        body, self._statements = self._statements, outer
        results = [self._name(x.value.type) for x in yielded]
        if [x.value.type for x in yielded] != [x.value.type for x in initial]:
            raise IllegalProduct("a loop hands on tiles of other types than it takes")

        def values(tiles: Sequence[Tile]) -> tuple[Value, ...]:
            return tuple(tile.value for tile in tiles)

        self._statements.append(
            Loop(
                index.value,
                lower.value,
                upper.value,
                step,
                values(initial),
                values(carried),
                tuple(body),
                values(yielded),
                values(results),
            )
        )
        return results

    def _name(self, type_: TileType) -> Tile:
        self._count += 1
        return Tile(self, Value(self._count, type_))

    def _compute(
        self,
        code: str,
        type_: TileType,
        *operands: Tile,
        number: float = 0,
        axis: int = 0,
        parameter: int = 0,
        precision: str = "",
        count: int = 1,
    ) -> Tile:
        result = self._name(type_)
        values = tuple(x.value for x in operands)
        self._statements.append(
            Compute(result.value, code, values, number, axis, parameter, precision, count)
        )
        return result

    def _align(self, dtype: DType, given: Sequence[Number]) -> list[Tile]:
        """These as tiles of one type and shape."""
        tiles = [x if isinstance(x, Tile) else self.full((), x, dtype) for x in given]
        shape: Shape = ()
        for x in tiles:
            if x.dtype is not dtype:
                raise IllegalProduct(f"one op on {dtype.value} and {x.dtype.value}")
            shape = _common(shape, x.shape)
        return [self.broadcast(x, shape) for x in tiles]


def _common(one: Shape, other: Shape) -> Shape:
    """The shape to which two tiles are repeated."""
    if not one or not other:
        return one or other
    return tuple(max(a, b) for a, b in zip(one, other, strict=True))
