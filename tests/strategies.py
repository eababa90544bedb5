"""Hypothesis strategies: hand on random valid Graphs of stitchable ops, and arguments for them.

The idea: two right implementations of such a graph agree to the dtype's tolerance.  So the builder
knows of every value how large it may be and whether all implementations agree on its bits; it clamps before an op that
would overflow or leave its domain.  Ops with jumps (floor, compare, float -> integer) get only values that are agreed
to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from graphs import GraphBuilder
from hypothesis import strategies as st

from astitch.graph.ir import (
    ArrayType,
    CompareAttrs,
    DType,
    DynamicSliceAttrs,
    GatherAttrs,
    Graph,
    ReducePrecisionAttrs,
)

T = TypeVar("T")

FLOATS = (DType.F16, DType.BF16, DType.F32, DType.F64)
SIGNED = (DType.S8, DType.S16, DType.S32, DType.S64)
UNSIGNED = (DType.U8, DType.U16, DType.U32, DType.U64)
INTEGERS = SIGNED + UNSIGNED
DTYPES = (*FLOATS, DType.PRED, *INTEGERS)

MAX_ELEMENTS = 2000
"""No value of a random graph has more."""

_ARGUMENT_BOUND = 4.0
_BOUND = 64.0  # floats beyond this are clamped before arithmetic


def random_graphs(max_ops: int = 12, dtypes: Sequence[DType] = DTYPES) -> st.SearchStrategy[Graph]:
    """Graphs of up to max_ops random ops (and the constants they need) with 1..4 outputs."""
    return _random_graphs(max_ops, tuple(dtypes))


def random_arguments(graph: Graph, seed: int) -> list[np.ndarray]:
    """An array for each parameter: floats are multiples of 1/8 within ±4, integers of all sizes."""
    rng = np.random.default_rng(seed)
    return [np.asarray(_random_array(rng, graph[name].array)) for name in graph.parameters]


def _random_array(rng: np.random.Generator, type: ArrayType) -> np.ndarray:
    dtype = type.dtype
    if dtype is DType.PRED:
        return rng.integers(0, 2, type.shape).astype(np.bool_)
    if dtype.is_float:
        return (rng.integers(-32, 33, type.shape) / 8).astype(dtype.numpy)
    small = rng.integers(-9 if dtype.is_signed else 0, 10, type.shape)
    info = np.iinfo(dtype.numpy)
    large = rng.integers(info.min, info.max, type.shape, dtype.numpy, endpoint=True)
    return np.where(rng.integers(0, 4, type.shape) > 0, small.astype(dtype.numpy), large)


@dataclass(frozen=True)
class _Fact:
    """bound: no |element| is larger (floats).  agreed: every implementation gives the same bits."""

    bound: float
    agreed: bool


class _RandomGraph:
    """The graph so far: `b` builds it, `facts` are its values that later ops may read."""

    def __init__(self, draw: st.DrawFn, dtypes: Sequence[DType]) -> None:
        self.draw = draw
        self.dtypes = dtypes
        self.b = GraphBuilder("random")
        self.facts: dict[str, _Fact] = {}

    # ---- choosing

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choose(self, options: Sequence[T]) -> T:
        return options[self.number(0, len(options) - 1)]

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.number(0, 4) if rank is None else rank
        shape: list[int] = []
        for _ in range(rank):
            extent = self.choose((3, 1, 2, 4, 5, 8, 1, 9, 7, 6, 3, 1, 2, 4, 1, 8, 0))
            shape.append(extent if math.prod(shape) * extent <= 600 else 1)
        return tuple(shape)

    def values(self, dtypes: Sequence[DType], agreed: bool = False) -> list[str]:
        return [
            v
            for v, fact in self.facts.items()
            if self.b.array(v).dtype in dtypes and (fact.agreed or not agreed)
        ]

    def value(self, dtypes: Sequence[DType] = DTYPES, agreed: bool = False) -> str:
        """A value of one of `dtypes`: one that is there, or a new parameter."""
        dtypes = [d for d in dtypes if d in self.dtypes] or list(dtypes)
        known = self.values(dtypes, agreed)
        if known and self.number(0, 9) > 0:
            return self.choose(known[::-1])
        return self.parameter(ArrayType(self.choose(dtypes), self.shape()))

    def partner(self, x: str, agreed: bool = False) -> str:
        """A value of the type of x: another one, a parameter, or a constant."""
        type = self.b.array(x)
        known = [v for v in self.values((type.dtype,), agreed) if self.b.array(v) == type]
        match self.number(0, 4):
            case 0:
                return self.parameter(type)
            case 1:
                return self.splat(type)
            case 2 if type.size <= 64:
                return self.constant(type)
        return self.choose(known) if known else self.parameter(type)

    # ---- appending

    def note(self, value: str, bound: float = 0.0, agreed: bool = True) -> str:
        self.facts[value] = _Fact(bound, agreed)
        return value

    def note_like(self, value: str, *sources: str) -> str:
        """`value` holds only elements of `sources`."""
        facts = [self.facts[s] for s in sources]
        return self.note(value, max(f.bound for f in facts), all(f.agreed for f in facts))

    def parameter(self, type: ArrayType) -> str:
        return self.note(self.b.parameter(type), _ARGUMENT_BOUND)

    def constant(self, type: ArrayType) -> str:
        rng = np.random.default_rng(self.number(0, 99))
        return self.note(
            self.b.constant(_random_array(rng, type), type.dtype.value), _ARGUMENT_BOUND
        )

    def splat(self, type: ArrayType) -> str:
        if type.dtype is DType.PRED:
            value = self.b.splat(self.choose((True, False)), str(type))
        elif type.dtype.is_float:
            value = self.b.splat(self.choose((1.0, 0.0, -0.0, 0.5, -1.0, 3.0)), str(type))
        else:
            value = self.b.splat(self.choose((1, 0, 2, 7)), str(type))
        return self.note(value, 3.0)

    def clamp(self, x: str, low: float, high: float) -> str:
        type = self.b.array(x)
        value = self.b.op(
            "clamp", type, self.b.splat(low, str(type)), x, self.b.splat(high, str(type))
        )
        return self.note(value, max(abs(low), abs(high)), self.facts[x].agreed)

    def tame(self, x: str, bound: float = 8.0) -> str:
        """x, clamped if it may be larger than `bound`."""
        return x if self.facts[x].bound <= bound else self.clamp(x, -bound, bound)


# ---- the ops: each function appends one


def _add_arithmetic(r: _RandomGraph) -> None:
    x = r.value(FLOATS)
    y = r.partner(x)
    op = r.choose(("add", "subtract", "multiply", "maximum", "minimum", "divide"))
    if op in ("maximum", "minimum"):
        r.note_like(r.b.same(op, x, y), x, y)
    elif op == "divide":
        y = r.clamp(y, 0.5, 4.0)
        x = r.tame(x, _BOUND / 2)
        r.note(r.b.same(op, x, y), r.facts[x].bound * 2, False)
    elif op == "multiply":
        x, y = r.tame(x), r.tame(y)
        r.note(r.b.same(op, x, y), r.facts[x].bound * r.facts[y].bound, False)
    else:
        x, y = r.tame(x, _BOUND), r.tame(y, _BOUND)
        agreed = r.facts[x].agreed and r.facts[y].agreed
        r.note(r.b.same(op, x, y), r.facts[x].bound + r.facts[y].bound, agreed)


def _add_integer(r: _RandomGraph) -> None:
    x = r.value(INTEGERS)
    y = r.partner(x)
    ops = (
        "add subtract multiply mulhi divide remainder maximum minimum and or xor shift-left "
        "shift-right-arithmetic shift-right-logical"
    )
    r.note(r.b.same(r.choose(ops.split()), x, y))


def _add_integer_unary(r: _RandomGraph) -> None:
    op = r.choose(("negate", "abs", "sign", "not", "popcnt", "count-leading-zeros"))
    r.note(r.b.same(op, r.value(SIGNED if op in ("abs", "sign") else INTEGERS)))


def _add_logic(r: _RandomGraph) -> None:
    x = r.value((DType.PRED,))
    op = r.choose(("and", "or", "xor", "not"))
    r.note(r.b.same(op, x) if op == "not" else r.b.same(op, x, r.partner(x)))


_SMOOTH = {  # op -> the interval that its operand is clamped to, and a bound of the result there
    "exponential": (-3.0, 3.0, 21.0),
    "exponential-minus-one": (-3.0, 3.0, 21.0),
    "log": (0.25, 8.0, 3.0),
    "log-plus-one": (-0.5, 8.0, 3.0),
    "logistic": (-8.0, 8.0, 1.0),
    "tanh": (-8.0, 8.0, 1.0),
    "tan": (-1.0, 1.0, 2.0),
    "sine": (-8.0, 8.0, 1.0),
    "cosine": (-8.0, 8.0, 1.0),
    "sqrt": (0.0, 64.0, 8.0),
    "rsqrt": (0.25, 64.0, 2.0),
    "cbrt": (-64.0, 64.0, 4.0),
    "erf": (-4.0, 4.0, 1.0),
    "acos": (-0.75, 0.75, 3.2),
    "acosh": (1.25, 8.0, 3.0),
    "asin": (-0.75, 0.75, 1.6),
    "asinh": (-8.0, 8.0, 3.0),
    "atan": (-8.0, 8.0, 1.6),
    "atanh": (-0.75, 0.75, 1.0),
    "cosh": (-3.0, 3.0, 11.0),
    "sinh": (-3.0, 3.0, 11.0),
}


def _add_smooth(r: _RandomGraph) -> None:
    op = r.choose(tuple(_SMOOTH))
    low, high, bound = _SMOOTH[op]
    r.note(r.b.same(op, r.clamp(r.value(FLOATS), low, high)), bound, False)


def _add_power(r: _RandomGraph) -> None:
    x = r.value(FLOATS)
    y = r.clamp(r.partner(x), -2.0, 2.0)
    if r.choose((True, False)):
        r.note(r.b.same("power", r.clamp(x, 0.5, 4.0), y), 16.0, False)
    else:
        r.note(r.b.same("atan2", r.clamp(x, 0.25, 4.0), y), 3.2, False)


def _add_exact_unary(r: _RandomGraph) -> None:
    """Ops of floats that every implementation does to the bit."""
    op = r.choose(("negate", "abs", "copy"))
    x = r.value(FLOATS)
    r.note_like(r.b.same(op, x), x)


def _add_jump(r: _RandomGraph) -> None:
    op = r.choose(("floor", "ceil", "round-nearest-even", "round-nearest-afz", "sign", "is-finite"))
    x = r.value(FLOATS, agreed=True)
    if op == "is-finite":
        r.note(r.b.op(op, ArrayType(DType.PRED, r.b.shape(x)), x))
    else:
        r.note(r.b.same(op, x), r.facts[x].bound + 1)


def _add_reduce_precision(r: _RandomGraph) -> None:
    x = r.value((DType.F32,), agreed=True)
    attrs = ReducePrecisionAttrs(*r.choose(((8, 7), (5, 10), (8, 3))))
    r.note(r.b.op("reduce-precision", r.b.array(x), x, attrs=attrs), r.facts[x].bound * 2)


def _add_remainder(r: _RandomGraph) -> None:
    x = r.value(FLOATS, agreed=True)
    y = r.clamp(r.partner(x, agreed=True), 0.5, 4.0)
    r.note(r.b.same("remainder", x, y), 4.0)


def _add_compare(r: _RandomGraph) -> None:
    x = r.value(DTYPES, agreed=True)
    y = r.partner(x, agreed=True)
    direction = r.choose(("EQ", "NE", "LT", "LE", "GT", "GE"))
    total = r.b.array(x).dtype.is_float and r.choose((False, False, True))
    type = ArrayType(DType.PRED, r.b.shape(x))
    r.note(r.b.op("compare", type, x, y, attrs=CompareAttrs(direction, total)))


def _add_select(r: _RandomGraph) -> None:
    x = r.value()
    y = r.partner(x)
    type = ArrayType(DType.PRED, r.b.shape(x))
    known = [v for v in r.facts if r.b.array(v) == type]
    predicate = r.choose(known) if known else r.parameter(type)
    r.note_like(r.b.same("select", predicate, x, y), x, y)


def _add_clamp(r: _RandomGraph) -> None:
    low = r.value((*FLOATS, *INTEGERS))
    x, high = r.partner(low), r.partner(low)
    r.note_like(r.b.same("clamp", low, x, high), low, x, high)


def _add_convert(r: _RandomGraph) -> None:
    target = r.choose(r.dtypes)
    to_float = target.is_float
    x = r.value(DTYPES, agreed=not to_float)
    source = r.b.array(x).dtype
    if source.is_float and target.is_integer:
        x = r.clamp(x, 0.0 if target.is_unsigned else -100.0, 100.0)
    fact = r.facts[x]
    # Integers may be large: all round them to the same float, but the sum of two may be inf.
    bound = fact.bound if source.is_float else 1.0 if source is DType.PRED else math.inf
    if source.is_integer and target is DType.F16:
        small = r.b.same("clamp", *_integer_interval(r, x))
        x, bound = r.note(small), 1000.0
    r.note(r.b.convert(x, target.value), bound * 1.01, fact.agreed)


def _integer_interval(r: _RandomGraph, x: str) -> tuple[str, str, str]:
    """(low, x, high) that f16 holds."""
    type = r.b.array(x)
    info = np.iinfo(type.dtype.numpy)
    low, high = max(info.min, -1000), min(info.max, 1000)
    return r.b.splat(low, str(type)), x, r.b.splat(high, str(type))


def _add_bitcast_convert(r: _RandomGraph) -> None:
    x = r.value((*FLOATS, *INTEGERS), agreed=True)
    size = r.b.array(x).dtype.bytes
    target = r.choose([d for d in INTEGERS if d.bytes == size])
    r.note(r.b.op("bitcast-convert", ArrayType(target, r.b.shape(x)), x))


def _add_broadcast(r: _RandomGraph) -> None:
    x = r.value()
    shape = r.b.shape(x)
    if len(shape) == 4 and r.number(0, 2) > 0:
        return
    rank = r.number(len(shape), 4)
    kept = sorted(r.draw(st.permutations(range(rank)))[: len(shape)])
    extents = list(r.shape(rank))
    for extent, d in zip(shape, kept, strict=True):
        extents[d] = extent
    for d in set(range(rank)) - set(kept):
        if math.prod(extents) > MAX_ELEMENTS:
            extents[d] = 1
    r.note_like(r.b.broadcast(x, extents, kept), x)


def _add_reshape(r: _RandomGraph) -> None:
    """Splits off factors at random, and adds or drops dimensions of one element."""
    x = r.value()
    shape = r.b.shape(x)
    if 0 in shape:
        extents = [0, 3][: r.number(1, 2)]
    else:
        left, extents = math.prod(shape), []
        for _ in range(r.number(0, 3)):
            factor = r.choose([f for f in (1, 2, 3, 4, 5, 8, 9) if left % f == 0])
            extents.append(factor)
            left //= factor
        if left > 1 or (not extents and r.number(0, 1)):
            extents.insert(r.number(0, len(extents)), left)
    r.note_like(r.b.reshape(x, extents), x)


def _add_transpose(r: _RandomGraph) -> None:
    x = r.value()
    r.note_like(r.b.transpose(x, r.draw(st.permutations(range(len(r.b.shape(x)))))), x)


def _add_slice(r: _RandomGraph) -> None:
    x = r.value()
    starts = [r.number(0, n) if r.number(0, 1) else 0 for n in r.b.shape(x)]
    limits = [
        r.number(s, n) if r.number(0, 1) else n for s, n in zip(starts, r.b.shape(x), strict=True)
    ]
    strides = [r.choose((1, 1, 2, 3)) for _ in starts]
    r.note_like(r.b.slice(x, starts, limits, strides), x)


def _add_pad(r: _RandomGraph) -> None:
    x = r.value()
    type = r.b.array(x)
    value = r.partner(r.splat(ArrayType(type.dtype, ())))
    low, high, interior = [], [], []
    for n in type.shape:
        between = r.choose((0, 0, 0, 1, 2))
        spread = n + max(n - 1, 0) * between
        before = r.number(-min(spread, 2), 3)
        after = max(r.number(-2, 3), -(spread + before))
        low.append(before)
        high.append(after)
        interior.append(between)
    extents = [
        n + max(n - 1, 0) * i + a + b
        for n, a, b, i in zip(type.shape, low, high, interior, strict=True)
    ]
    if math.prod(extents) <= MAX_ELEMENTS:
        r.note_like(r.b.pad(x, value, low, high, interior), x, value)


def _add_concatenate(r: _RandomGraph) -> None:
    x = r.value()
    type = r.b.array(x)
    if not type.rank:
        return
    d = r.number(0, type.rank - 1)
    pieces = [x]
    for _ in range(r.number(0, 2)):
        shape = list(type.shape)
        shape[d] = r.number(0, 4)
        like = [
            v
            for v in r.values((type.dtype,))
            if len(r.b.shape(v)) == type.rank
            and [n for i, n in enumerate(r.b.shape(v)) if i != d]
            == [n for i, n in enumerate(shape) if i != d]
        ]
        new = r.number(0, 1)
        pieces.append(r.parameter(ArrayType(type.dtype, tuple(shape))) if new else r.choose(like))
    if sum(r.b.array(p).size for p in pieces) <= MAX_ELEMENTS:
        r.note_like(r.b.concatenate(pieces, d), *pieces)


def _add_reverse(r: _RandomGraph) -> None:
    x = r.value()
    d = [i for i in range(len(r.b.shape(x))) if r.number(0, 1)]
    r.note_like(r.b.reverse(x, d), x)


def _add_iota(r: _RandomGraph) -> None:
    shape = r.shape(r.number(1, 4))
    dtype = r.choose([d for d in r.dtypes if d is not DType.PRED])
    value = r.b.iota(str(ArrayType(dtype, shape)), r.number(0, len(shape) - 1))
    r.note(value, 9.0)


def _index_scalars(r: _RandomGraph, count: int) -> list[str]:
    """In range and out of it."""
    dtype = r.choose((DType.S32, DType.S64, DType.U32))
    scalars = []
    for _ in range(count):
        if r.number(0, 1):
            scalars.append(r.b.constant(r.number(0 if dtype is DType.U32 else -3, 9), dtype.value))
        else:
            scalars.append(r.b.parameter(ArrayType(dtype, ())))
    return scalars


def _add_dynamic_slice(r: _RandomGraph) -> None:
    x = r.value()
    shape = r.b.shape(x)
    sizes = tuple(r.number(0, n) if r.number(0, 1) else n for n in shape)
    type = ArrayType(r.b.array(x).dtype, sizes)
    indices = _index_scalars(r, len(shape))
    r.note_like(r.b.op("dynamic-slice", type, x, *indices, attrs=DynamicSliceAttrs(sizes)), x)


def _add_dynamic_update_slice(r: _RandomGraph) -> None:
    x = r.value()
    shape = r.b.shape(x)
    sizes = tuple(r.number(0, n) if r.number(0, 1) else n for n in shape)
    update = r.parameter(ArrayType(r.b.array(x).dtype, sizes))
    indices = _index_scalars(r, len(shape))
    value = r.b.op("dynamic-update-slice", r.b.array(x), x, update, *indices)
    r.note_like(value, x, update)


def _add_gather(r: _RandomGraph) -> None:
    """Rows of a table by an array of indices, as an embedding reads them."""
    table = r.value()
    type = r.b.array(table)
    if not type.rank or type.shape[0] == 0:
        return
    batch = r.shape(r.number(0, 2))
    if math.prod(batch) * type.size > MAX_ELEMENTS or len(batch) + type.rank > 5:
        return
    index_type = ArrayType(r.choose((DType.S32, DType.S64, DType.U32)), (*batch, 1))
    indices = r.parameter(index_type)
    attrs = GatherAttrs(
        offset_dims=tuple(range(len(batch), len(batch) + type.rank - 1)),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
        index_vector_dim=len(batch),
        slice_sizes=(1, *type.shape[1:]),
    )
    result = ArrayType(type.dtype, (*batch, *type.shape[1:]))
    r.note_like(r.b.op("gather", result, table, indices, attrs=attrs), table)


def _add_reduce(r: _RandomGraph) -> None:
    op = r.choose(("add", "maximum", "minimum", "multiply", "and", "or"))
    dtypes = (DType.PRED, *INTEGERS) if op in ("and", "or") else (*FLOATS, *INTEGERS)
    x = r.value(dtypes)
    shape, is_float = r.b.shape(x), r.b.array(x).dtype.is_float
    d = [i for i in range(len(shape)) if r.number(0, 1)]
    count = math.prod(shape[i] for i in d)
    init = r.partner(r.splat(ArrayType(r.b.array(x).dtype, ()))) if r.number(0, 3) == 0 else None
    if init is not None:
        r.facts.setdefault(init, _Fact(_ARGUMENT_BOUND, True))
    start = r.facts[init] if init is not None else _Fact(0.0, True)
    if op == "multiply" and is_float:
        x = r.clamp(x, 0.75, 1.25)
        bound = 1.25 ** min(count, 100) * max(start.bound, 1.0)
        if bound > 1e4 or (init is not None and start.bound > _BOUND):
            return
        r.note(r.b.reduce(x, d, op, init), bound, False)
    elif op == "add" and is_float:
        x = r.tame(x)
        if init is not None:
            init = r.tame(init)
        r.note(r.b.reduce(x, d, op, init), r.facts[x].bound * (count + 1) + 8.0, False)
    else:
        # The neutral element of max and min is infinite, and it is the result where nothing is.
        bound = max(r.facts[x].bound, start.bound) if count or init is not None else math.inf
        r.note(r.b.reduce(x, d, op, init), bound, r.facts[x].agreed and start.agreed)


def _add_arg_max(r: _RandomGraph) -> None:
    x = r.value((*FLOATS, *INTEGERS), agreed=True)
    shape = r.b.shape(x)
    d = [i for i in range(len(shape)) if r.number(0, 1)]
    if not d or 0 in shape:
        return
    indices = r.b.iota(str(ArrayType(DType.S32, shape)), d[-1])
    both = r.b.arg_max(x, indices, d)
    r.note(r.b.element(both, 0), r.facts[x].bound)
    r.note(r.b.element(both, 1))


ADDERS: tuple[Callable[[_RandomGraph], None], ...] = (
    _add_arithmetic,
    _add_broadcast,
    _add_reduce,
    _add_reshape,
    _add_transpose,
    _add_integer,
    _add_integer_unary,
    _add_logic,
    _add_smooth,
    _add_power,
    _add_exact_unary,
    _add_jump,
    _add_reduce_precision,
    _add_remainder,
    _add_compare,
    _add_select,
    _add_clamp,
    _add_convert,
    _add_bitcast_convert,
    _add_slice,
    _add_pad,
    _add_concatenate,
    _add_reverse,
    _add_iota,
    _add_dynamic_slice,
    _add_dynamic_update_slice,
    _add_gather,
    _add_arg_max,
)


@st.composite
def _random_graphs(draw: st.DrawFn, max_ops: int, dtypes: tuple[DType, ...]) -> Graph:
    r = _RandomGraph(draw, dtypes)
    r.parameter(ArrayType(r.choose(dtypes), r.shape()))
    for _ in range(r.number(1, max_ops)):
        r.choose(ADDERS)(r)
    last = list(r.facts)[-1]
    more = [r.choose(list(r.facts)) for _ in range(r.number(0, 3))]
    return r.b.build(last, *more)
