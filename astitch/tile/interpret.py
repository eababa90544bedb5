"""Tile program + arrays -> what it computes, in NumPy: the meaning of a tile program.

Every block runs, one after the other.  Each load and store is checked to lie in its array, and each element of a
result to be written once.
"""

# NumPy's stubs give Any for arithmetic on arrays of an unknown dtype, which is what all of this is.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from astitch.errors import AstitchError
from astitch.tile.program import Compute, Loop, Statement, Store, TileProgram, Value

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


class WrongAccess(AstitchError):
    """A tile program reads or writes what it must not."""


def interpret(program: TileProgram, operands: Sequence[Array]) -> list[Array]:
    """The results, flat.  operands: flat or not, row-major, of the types of the parameters.

    Raises WrongAccess for an element outside of an array, one that is written twice, and one that is never written.
    """
    given = [np.ascontiguousarray(x).reshape(-1) for x in operands]
    wanted = program.parameters[: program.reads]
    if [(x.size, x.dtype) for x in given] != [(p.size, p.dtype.numpy) for p in wanted]:
        raise WrongAccess(
            f"{program.name} takes {wanted}, not {[(x.size, x.dtype) for x in given]}"
        )
    made = [np.zeros(p.size, p.dtype.numpy) for p in program.parameters[program.reads :]]
    written = [np.zeros(x.size, np.bool_) for x in made]
    for block in itertools.product(*map(range, program.grid)):
        with np.errstate(all="ignore"):
            _Block(program, block, [*given, *made], written).run(program.body)
    for number, array in enumerate(written):
        if not array.all():
            raise WrongAccess(f"{program.name} leaves out elements of its result {number}")
    return made


class _Block:
    def __init__(
        self,
        program: TileProgram,
        block: Sequence[int],
        memory: Sequence[Array],
        written: Sequence[Array],
    ) -> None:
        self.program, self.block, self.memory, self.written = program, block, memory, written
        self.values: dict[int, Array] = {}

    def run(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            if isinstance(statement, Loop):
                self._run_loop(statement)
            elif isinstance(statement, Store):
                self._store(statement)
            else:
                given = [self[operand] for operand in statement.operands]
                self._set(statement.result, self._compute(statement, given))

    def __getitem__(self, value: Value) -> Array:
        return self.values[value.number]

    def _set(self, value: Value, array: Array) -> None:
        dtype = value.type.dtype.numpy
        if array.shape != value.type.shape or array.dtype != dtype:
            raise WrongAccess(f"{value} is {array.dtype} {array.shape}")
        self.values[value.number] = array

    def _run_loop(self, loop: Loop) -> None:
        state = [self[value] for value in loop.initial]
        for index in range(int(self[loop.lower]), int(self[loop.upper]), loop.step):
            self._set(loop.index, np.asarray(index, np.int32))
            for value, array in zip(loop.carried, state, strict=True):
                self._set(value, array)
            self.run(loop.body)
            state = [self[value] for value in loop.yielded]
        for value, array in zip(loop.results, state, strict=True):
            self._set(value, array)

    def _compute(self, c: Compute, given: Sequence[Array]) -> Array:
        shape, dtype = c.result.type.shape, c.result.type.dtype.numpy
        match c.code:
            case "program-id":
                return np.asarray(self.block[c.axis], np.int32)
            case "range":
                return np.arange(shape[0], dtype=np.int32)
            case "constant":
                return np.full(shape, c.number).astype(dtype)
            case "expand":
                return np.expand_dims(given[0], c.axis)
            case "broadcast":
                return np.broadcast_to(given[0], shape)
            case "transpose":
                return given[0].T
            case "convert":
                return given[0].astype(dtype)
            case "bitcast":
                return given[0].view(dtype)
            case "round-to-tf32":
                return round_factor(given[0], "tf32")
            case "select":
                return np.where(*given)
            case "dot":
                x, y = (round_factor(a, c.precision) for a in given[:2])
                return given[2] + x @ y
            case "reduce-maximum":
                return np.fmax.reduce(given[0], axis=c.axis)
            case "reduce-maximum-or-nan":
                return np.maximum.reduce(given[0], axis=c.axis)
            case "reduce-minimum-or-nan":
                return np.minimum.reduce(given[0], axis=c.axis)
            case "reduce-add":
                return given[0].sum(axis=c.axis, dtype=dtype)
            case "load":
                return self._load(c.parameter, *given)
            case "load-one-of":
                return self._load(c.parameter + int(given[0]), *given[1:])
        return np.asarray(_ELEMENTWISE[c.code](*given))

    def _places(self, parameter: int, offsets: Array, mask: Array | None) -> Array:
        """The offsets where the mask holds; raises WrongAccess where one is outside of the array."""
        places = offsets if mask is None else offsets[mask]
        size = self.program.parameters[parameter].size
        if places.size and (places.min() < 0 or places.max() >= size):
            where = f"parameter {parameter} of {size} elements"
            raise WrongAccess(
                f"block {self.block} of {self.program.name} reads or writes "
                f"{places.min()} to {places.max()} of {where}"
            )
        return places

    def _load(self, parameter: int, offsets: Array, mask: Array | None = None) -> Array:
        array = self.memory[parameter]
        if mask is None:
            return array[self._places(parameter, offsets, mask)]
        loaded = np.zeros(offsets.shape, array.dtype)
        loaded[mask] = array[self._places(parameter, offsets, mask)]
        return loaded

    def _store(self, s: Store) -> None:
        mask = self[s.mask] if s.mask else None
        places = self._places(s.parameter, self[s.offsets], mask)
        written = self.written[s.parameter - self.program.reads]
        if np.any(written[places]) or np.unique(places).size != places.size:
            raise WrongAccess(f"block {self.block} of {self.program.name} writes an element again")
        written[places] = True
        value = self[s.value]
        self.memory[s.parameter][places] = value if mask is None else value[mask]


def round_factor(x: Array, precision: str) -> Array:
    """A factor of a product as the tensor cores see it, in f32.

    tf32: of f32 ten bits of the mantissa are left.  tf32x3, ieee: all of them, in effect.
    """
    if x.dtype != np.float32:
        return x.astype(np.float32)
    if precision != "tf32":
        return x
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(
        0xFFFFE000
    )
    return np.where(np.isfinite(x), rounded.view(np.float32), x)


def _divide(x: Array, y: Array) -> Array:
    return x // y if x.dtype == np.int32 else x / y


_ELEMENTWISE: Mapping[str, Callable[..., Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": _divide,
    "remainder": np.remainder,
    "maximum": np.fmax,
    "minimum": np.fmin,
    "maximum-or-nan": np.maximum,
    "minimum-or-nan": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shift-right": np.right_shift,
    "less": np.less,
    "less-equal": np.less_equal,
    "greater-equal": np.greater_equal,
    "equal": np.equal,
    "not-equal": np.not_equal,
    "exp2": np.exp2,
    "log2": np.log2,
    "tanh": np.tanh,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: (1 / np.sqrt(x)).astype(x.dtype),
    "erf": lambda x: np.vectorize(math.erf, otypes=[x.dtype])(x),
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
}
