"""Attention and its gradient, as libraries and our own kernels compute them: the scores are never written to memory.

    attention(q, k, v, arrays...) -> (o, statistics)
    attention-gradient(q, k, v, statistics, do, o, arrays...) -> (dq, dk, dv [, dbias or dscores])

q and k have as many features each; v may have others.  k and v may have fewer heads than q: so many heads of q share
one of theirs.  statistics: f32 [batch, heads of q, positions of q], the logarithm of the sum of exponentials of a row
of scores.  o is ordered as q is, each gradient as what it is the gradient of.

`arrays` of the attributes says what the last operands are, in the order of this table.  Each is
[batch or 1, heads of q or 1, positions of q or 1, positions of k or 1].

| array | of | its part |
|---|---|---|
| bias, other-bias | numbers | added to scaled scores; the second where there is a first |
| mask | conditions | the scores that are kept; several: those that all of them keep |
| EQ, NE, LT, LE, GT, GE | numbers, twice | a score is kept where both compare so; the first has one column |
| drop | conditions or numbers | probabilities are multiplied by it and by the gain, as dropout does |
| sink | f32, one column | a score more for each row, which no value belongs to |
| empty | conditions, of a head of k | has one a row without a score? of gradients of a band with masks |
| k-scale, v-scale | numbers | keys or values, which may be integers of 8 bits, are multiplied by these |
| k-pages, v-pages | numbers, s32 | k or v has pages in the place of batches, and a sequence has these; bounded |
| layer | a number, s32 | k and v are [layers, ...], and this one is read; bounded as the start of a dynamic-slice |

Scales are [batch or 1, heads of k or 1, positions of k or 1, 1] in the order that the attributes give.  A table is
[batch, 1, 1, pages of a sequence].

Libraries take a bias alone, of the type of q and with all positions.  Our own kernels (`tiles`) take all of them.
Their gradient reads delta in the place of o: f32 as the statistics are, the sum of do * o over the features.
What else it gives is of scores behind a cap: their gradient (`scores`), of the type of q, or that of the bias, f32 of
its shape (`bias`): summed over the batch or the heads that share it.

A row of which masks keep no score has equal probabilities for all keys and statistics of -inf; with a sink it has none.
Where `low` is -inf and there is no sink it is NaN.  Where `low` is inf it has none, and statistics of inf.
Beside a bias what is left out is a score of `low`, and statistics are two of f32,
[2, batch, heads of q, positions of q]: the largest score, and the logarithm to base two of the sum of exponentials
beside it.  One number would lose the second where the first is as low as -1e9.
"""

# NumPy's stubs give Any for arithmetic on arrays of an unknown dtype, which is what all of this is.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from astitch.graph.ir import ArrayType, AttentionAttrs, DType, Node, Order, TupleType, Type
from astitch.graph.ops.arrays import Array, array_types
from astitch.graph.ops.hlo_fields import Attributes
from astitch.graph.ops.row import Kind, Op
from astitch.graph.ops.rules import arrays_of, attrs_of, require, require_operands

T = TypeVar("T")


def _extents(array: ArrayType, order: Order) -> tuple[int, ...]:
    return tuple(array.shape[d] for d in order)


def _with_features(array: ArrayType, order: Order, features: int) -> ArrayType:
    shape = list(array.shape)
    shape[order[3]] = features
    return ArrayType(array.dtype, tuple(shape))


COMPARISONS: Mapping[str, np.ufunc] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}

SCALES = ("k-scale", "v-scale")

INTEGERS = (DType.S8, DType.U8)
"""The types of keys and values that kernels multiply by scales, beside that of q."""

TABLES = ("k-pages", "v-pages")

BIASES = ("bias", "other-bias")

ARRAYS = (*BIASES, "mask", *COMPARISONS, "drop", "sink", "empty", *SCALES, *TABLES, "layer")
"""In the order in which operands have them."""

SEVERAL = ("mask", *COMPARISONS)
"""Those of which there may be more than one."""

COMPARED = (DType.S32, DType.F32)
"""The types of numbers that are compared."""


def split_operands(node: Node, operands: Sequence[T]) -> tuple[list[T], list[T]]:
    """(q, k, v and so on, those that `arrays` names)."""
    count = len(operands) - len(attrs_of(node, AttentionAttrs).arrays)
    return list(operands[:count]), list(operands[count:])


def has_two_statistics(a: AttentionAttrs) -> bool:
    """Are the largest score of a row and the logarithm of its sum kept apart?"""
    return bool(a.tiles) and "bias" in a.arrays


def _as_gathered(array: ArrayType, order: Order, page: int, table: ArrayType) -> ArrayType:
    """The type of the keys or values that a table finds in pages."""
    require_operands(
        array.rank == table.rank == 4 and array.shape[order[2]] == page, f"{array} are no pages"
    )
    shape = list(array.shape)
    shape[order[0]], shape[order[2]] = table.shape[0], table.shape[3] * page
    return ArrayType(array.dtype, tuple(shape))


def _in_order(array: ArrayType, order: Order) -> ArrayType:
    return ArrayType(array.dtype, _extents(array, order))


def _infer_attention(node: Node, operands: Sequence[Type]) -> Type:
    given, arrays = split_operands(node, arrays_of(operands))
    require_operands(len(given) == 3, f"{len(given)} operands beside arrays of scores")
    q, k, v = given
    return _check(node, q, k, v, arrays)


def _infer_gradient(node: Node, operands: Sequence[Type]) -> Type:
    given, arrays = split_operands(node, arrays_of(operands))
    require_operands(len(given) == 6, f"{len(given)} operands beside arrays of scores")
    q, k, v, statistics, gradient, o = given
    result, rows = _check(node, q, k, v, arrays).elements
    require_operands(statistics == rows, f"{statistics} do not belong to {rows}")
    if attrs_of(node, AttentionAttrs).tiles:
        result_or_delta: Type = ArrayType(DType.F32, arrays_of([rows])[0].shape[-3:])
    else:
        result_or_delta = result
    require_operands(o == result_or_delta, f"{o} does not belong to {result}")
    require_operands(gradient == result, f"the gradient of {result} is {gradient}")
    a = attrs_of(node, AttentionAttrs)
    if not a.gives:
        return TupleType((q, k, v))
    bias = dict(zip(a.arrays, arrays, strict=True)).get("bias")
    scores = (*_extents(q, a.q)[:3], _extents(k, a.k)[2])
    require(bool(a.tiles) and a.gives in ("bias", "scores"), f"a gradient of {a.gives}")
    if a.gives == "scores":
        return TupleType((q, k, v, ArrayType(q.dtype, scores)))
    require_operands(
        bias is not None and bias.shape[2:] == scores[2:], f"no gradient of {bias} is summed"
    )
    return TupleType((q, k, v, ArrayType(DType.F32, bias.shape if bias else ())))


def _check(
    node: Node, q: ArrayType, k: ArrayType, v: ArrayType, arrays: Sequence[ArrayType]
) -> TupleType:
    """The results of attention to these operands.  Raises BrokenRule where they do not fit together."""
    a = attrs_of(node, AttentionAttrs)
    if "layer" in a.arrays:
        require_operands(k.rank == v.rank == 5 and k.shape[0] == v.shape[0], "no layers of k and v")
        require(a.tiles != "" and node.op == "attention", "a layer of keys")
        k, v = (ArrayType(x.dtype, x.shape[1:]) for x in (k, v))
    require(bool(a.page) == ("k-pages" in a.arrays), f"pages of {a.page} positions")
    if a.page:
        require(a.share > 0 and {*TABLES} <= {*a.arrays}, "pages of k and v for few queries")
        tables = dict(zip(a.arrays, arrays, strict=True))
        k = _as_gathered(k, a.k, a.page, tables["k-pages"])
        v = _as_gathered(v, a.v, a.page, tables["v-pages"])
    for array, order, scale in ((q, a.q, ""), (k, a.k, "k-scale"), (v, a.v, "v-scale")):
        fits = array.dtype is q.dtype or (scale in a.arrays and array.dtype in INTEGERS)
        require_operands(array.rank == 4 and fits, f"an operand is {array}")
        require(sorted(order) == [0, 1, 2, 3], f"the order {order} is none of four dimensions")
    require((a.gain > 0) == ("drop" in a.arrays), f"a gain of {a.gain} with {a.arrays}")
    require(a.cap == 0 or (a.cap > 0 and a.tiles != ""), f"a cap of {a.cap}")
    require(a.causal or not a.window, f"a window of {a.window} without a causal mask")
    require(
        all(name in ARRAYS for name in a.arrays)
        and list(a.arrays) == sorted(a.arrays, key=ARRAYS.index)
        and all(a.arrays.count(name) <= 1 for name in ARRAYS if name not in SEVERAL)
        and all(a.arrays.count(name) % 2 == 0 for name in COMPARISONS),
        f"no attention has the arrays {a.arrays}",
    )
    beside = {*a.arrays} & {"drop", "empty"}
    require(
        a.share == 0
        or (
            a.share > 0 and a.tiles != "" and not a.causal and not beside and node.op == "attention"
        ),
        f"parts of {a.share} keys",
    )
    scaled = [name for name in a.arrays if name in SCALES]
    require(
        len(scaled) == len(a.scales) and (not scaled or a.share > 0),
        f"orders of {scaled} are given",
    )
    require("other-bias" not in a.arrays or "bias" in a.arrays, "a second bias without a first")
    masked = any(name in ("mask", *COMPARISONS) for name in a.arrays)
    require(not (masked and a.causal and "bias" in a.arrays), "masks beside a bias and a band")
    batch, heads, positions, features = _extents(q, a.q)
    groups, keys = _extents(k, a.k)[1:3]
    require_operands(
        _extents(k, a.k) == (batch, groups, keys, features)
        and _extents(v, a.v)[:3] == (batch, groups, keys)
        and heads % groups == 0,
        f"{q}, {k} and {v} are no queries, keys and values",
    )
    compared = [array for name, array in zip(a.arrays, arrays, strict=True) if name in COMPARISONS]
    for left, right in zip(compared[::2], compared[1::2], strict=True):
        require_operands(
            left.dtype is right.dtype and left.dtype in COMPARED and left.shape[3] == 1,
            f"{left} and {right} are not compared",
        )
    orders = iter(a.scales)
    for name, array in zip(a.arrays, arrays, strict=True):
        wanted = (batch, heads, positions, keys)
        if name in SCALES:
            wanted, array = (batch, groups, keys, 1), _in_order(array, next(orders))
        if name == "sink":
            wanted = (batch, heads, positions, 1)
        if name == "empty":
            wanted = (batch, groups, 1, 1)
        if name in TABLES:
            wanted = (batch, 1, 1, keys // a.page)
            require_operands(array.dtype is DType.S32, f"{array} is no table of pages")
        if name == "layer":
            wanted = (1, 1, 1, 1)
            require_operands(array.dtype is DType.S32, f"{array} is no number of a layer")
        whole = all(n in (1, m) for n, m in zip(array.shape, wanted, strict=False))
        of_library = (
            a.arrays == ("bias",) and array.dtype is q.dtype and array.shape[2:] == wanted[2:]
        )
        conditions = name in ("mask", "empty")
        require_operands(
            array.rank == 4
            and whole
            and (bool(a.tiles) or of_library)
            and (name in ("drop", *COMPARISONS) or (array.dtype is DType.PRED) == conditions),
            f"{array} is no {name} of the scores",
        )
    o = _with_features(q, a.q, _extents(v, a.v)[3])
    twice = (2,) if has_two_statistics(a) else ()
    return TupleType((o, ArrayType(DType.F32, (*twice, batch, heads, positions))))


def _canonical(x: Array, order: Order, heads: int) -> Array:
    """[batch, heads, positions, features] in f64; heads that are shared stand several times."""
    turned = x.astype(np.float64).transpose(order)
    return np.repeat(turned, heads // turned.shape[1], axis=1)


def _restore(x: Array, order: Order, heads: int, dtype: np.dtype) -> Array:
    """From _canonical; heads that are shared get the sum."""
    batch, many, positions, features = x.shape
    summed = x.reshape(batch, heads, many // heads, positions, features).sum(2)
    return summed.transpose(np.argsort(order)).astype(dtype)


@dataclass(frozen=True)
class _Rows:
    """What is known of all scores, in f64.

    bias: None without one.  kept: by masks and a band.  empty: rows without a score that have equal probabilities.
    drop: what probabilities are multiplied by, conditions or numbers.  sink: a score for each row; None without one.
    """

    gain: float
    bias: Array | None
    kept: Array
    empty: Array
    drop: Array | None
    sink: Array | None

    def drop_out(self, x: Array) -> Array:
        """Probabilities, or their gradient, multiplied as dropout does."""
        if self.drop is None:
            return x
        if self.drop.dtype == np.bool_:
            return np.where(self.drop, self.gain * x, 0.0)
        return self.gain * self.drop.astype(np.float64) * x


def _read_arrays(a: AttentionAttrs, arrays: Sequence[Array], shape: tuple[int, ...]) -> _Rows:
    named = list(zip(a.arrays, arrays, strict=True))
    kept: Array = np.full(shape, True)
    if a.causal:
        distance = np.arange(shape[2])[:, None] - np.arange(shape[3])
        kept &= (distance >= 0) & (distance < (a.window or shape[2] + 1))
    compared = [(name, array) for name, array in named if name in COMPARISONS]
    for (name, left), (_, right) in zip(compared[::2], compared[1::2], strict=True):
        kept = np.logical_and(kept, COMPARISONS[name](left, right))
    for name, array in named:
        if name == "mask":
            kept = np.logical_and(kept, array)
    by_name = dict(named)
    empty: Array = ~np.any(kept, axis=-1, keepdims=True)
    if "bias" in by_name or "sink" in by_name:
        empty = np.zeros_like(empty)
    wide = {name: by_name[name].astype(np.float64) for name in (*BIASES, "sink") if name in by_name}
    bias, other = (wide.get(name) for name in BIASES)
    if bias is not None and other is not None:
        bias = _to_f32(bias + other)
    return _Rows(a.gain, bias, kept, empty, by_name.get("drop"), wide.get("sink"))


def _scores(q: Array, k: Array, a: AttentionAttrs, rows: _Rows) -> Array:
    scores = a.scale * np.einsum("bntf,bnsf->bnts", q, k)
    scores = a.cap * np.tanh(scores / a.cap) if a.cap else scores
    if rows.bias is None:
        of_empty = {-np.inf: np.nan, np.inf: -np.inf}.get(a.low, 0.0)
        return np.where(rows.empty, of_empty, np.where(rows.kept, scores, -np.inf))
    if a.causal:  # there are no masks beside a band and a bias
        return np.where(rows.kept, _to_f32(scores + rows.bias), -np.inf)
    if a.low_first:
        return _to_f32(np.where(rows.kept, scores, a.low) + rows.bias)
    return np.where(rows.kept, _to_f32(scores + rows.bias), a.low)


def _to_f32(x: Array) -> Array:
    """As kernels add numbers: of a row that is left out as a whole all scores are the same."""
    return x.astype(np.float32).astype(np.float64)


def _softmax(scores: Array, sink: Array | None) -> tuple[Array, Array, Array]:
    """(probabilities, the largest score of each row, the sum of exponentials beside it)."""
    most = scores.max(-1, keepdims=True)
    if sink is not None:
        most = np.maximum(most, sink)
    base = np.where(np.isneginf(most), 0.0, most)
    p = np.exp(scores - base)
    total = p.sum(-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink - base)
    with np.errstate(invalid="ignore"):  # a row of minus infinities has no probabilities
        return p / total, most[..., 0], total[..., 0]


def _weigh(scores: Array, a: AttentionAttrs, rows: _Rows) -> Array:
    """Probabilities."""
    p, *_ = _softmax(scores, rows.sink)
    return np.where(rows.empty, 0.0, p) if a.low == np.inf else p


def _read_operands(a: AttentionAttrs, operands: Sequence[Array]) -> list[Array]:
    heads = operands[0].shape[a.q[1]]
    orders = (a.q, a.k, a.v, a.q)
    return [_canonical(x, order, heads) for x, order in zip(operands, orders, strict=False)]


def _gather(pages: Array, order: Order, table: Array) -> Array:
    """The keys or values that a table finds, as the pages lie."""
    numbers = np.clip(table[:, 0, 0], 0, pages.shape[order[0]] - 1)
    found = pages.transpose(order)[numbers]  # [batch, pages, heads, positions, features]
    batch, count, heads, positions, features = found.shape
    whole = found.transpose(0, 2, 1, 3, 4).reshape(batch, heads, count * positions, features)
    return whole.transpose(np.argsort(order))


def _scale(x: Array, a: AttentionAttrs, arrays: Sequence[Array], name: str) -> Array:
    """Keys or values times their scales, if they have any."""
    if name not in a.arrays:
        return x
    order = a.scales[-1 if name == SCALES[-1] else 0]
    scales = arrays[a.arrays.index(name)].astype(np.float64).transpose(order)
    many = x.shape[1] // scales.shape[1] if scales.shape[1] > 1 else 1
    return x * np.repeat(scales, many, axis=1)


def meanings_of_attention(node: Node, *operands: Array) -> tuple[Array, ...]:
    """In f64, rounded once."""
    a = attrs_of(node, AttentionAttrs)
    given, arrays = split_operands(node, operands)
    if "layer" in a.arrays:
        number = arrays[a.arrays.index("layer")].item()
        given[1:] = [x[min(max(number, 0), len(x) - 1)] for x in given[1:]]
    if a.page:
        tables = [arrays[a.arrays.index(name)] for name in TABLES]
        k, v = (_gather(*of) for of in zip(given[1:], (a.k, a.v), tables, strict=True))
        given[1:] = [k, v]
    q, k, v = _read_operands(a, given)
    k, v = (_scale(x, a, arrays, name) for x, name in zip((k, v), SCALES, strict=True))
    rows = _read_arrays(a, arrays, (*q.shape[:3], k.shape[2]))
    scores = _scores(q, k, a, rows)
    _, most, total = _softmax(scores, rows.sink)
    p = _weigh(scores, a, rows)
    o = np.einsum("bnts,bnsf->bntf", rows.drop_out(p), v)
    with np.errstate(divide="ignore", invalid="ignore"):
        if has_two_statistics(a):
            statistics = np.stack([most, np.log2(total)])
        else:
            of_empty = {-np.inf: np.nan, np.inf: np.inf}.get(a.low, -np.inf)
            statistics = np.where(rows.empty[..., 0], of_empty, most + np.log(total))
    dtype = array_types(node)[0].dtype.numpy
    return _restore(o, a.q, q.shape[1], dtype), statistics.astype(np.float32)


def meanings_of_gradient(node: Node, *operands: Array) -> tuple[Array, ...]:
    """In f64, rounded once; what attention gave is computed again."""
    a = attrs_of(node, AttentionAttrs)
    given, arrays = split_operands(node, operands)
    dtype, groups = given[0].dtype, given[1].shape[a.k[1]]
    q, k, v, do = _read_operands(a, (*given[:3], given[4]))
    rows = _read_arrays(a, arrays, (*q.shape[:3], k.shape[2]))
    p = _weigh(_scores(q, k, a, rows), a, rows)
    dp = rows.drop_out(np.einsum("bntf,bnsf->bnts", do, v))
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    added = ds if a.low_first or a.through_masks else np.where(rows.kept, ds, 0.0)
    ds = a.scale * ds
    if a.cap:
        ds = ds * (1 - np.tanh(a.scale / a.cap * np.einsum("bntf,bnsf->bnts", q, k)) ** 2)
    if not a.through_masks:
        ds = np.where(rows.kept, ds, 0.0)
    results = (
        _restore(np.einsum("bnts,bnsf->bntf", ds, k), a.q, q.shape[1], dtype),
        _restore(np.einsum("bnts,bntf->bnsf", ds, q), a.k, groups, dtype),
        _restore(np.einsum("bnts,bntf->bnsf", rows.drop_out(p), do), a.v, groups, dtype),
    )
    if not a.gives:
        return results
    if a.gives == "scores":
        return (*results, added.astype(dtype))
    bias = arrays[a.arrays.index("bias")]
    shared = tuple(d for d in range(2) if bias.shape[d] == 1)
    return (*results, added.sum(shared, keepdims=True).astype(np.float32))


ROWS: dict[str, Op] = {
    "attention": Op(
        Kind.OTHER,
        meaning=meanings_of_attention,
        rule=_infer_attention,
        attributes=Attributes(AttentionAttrs),
    ),
    "attention-gradient": Op(
        Kind.OTHER,
        meaning=meanings_of_gradient,
        rule=_infer_gradient,
        attributes=Attributes(AttentionAttrs),
    ),
}
