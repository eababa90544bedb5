"""Attention and its gradient, as libraries and our own kernels compute them: the scores are never written to memory.

    attention(q, k, v [, bias]) -> (o, statistics)
    attention-gradient(q, k, v, statistics, do, o [, bias]) -> (dq, dk, dv)

q and k have as many features each; v may have others.  k and v may have fewer heads than q: so many heads of q share
one of theirs.  bias: added to the scaled scores, [batch or 1, heads of q or 1, positions of q, positions of k].
statistics: f32 [batch, heads of q, positions of q], the logarithm of the sum of exponentials of a row
of scores.  o is ordered as q is, each gradient as what it is the gradient of.

Our own kernels (`tiles`) take more: a bias may have one row for all queries, or one column for all keys, and another
type than q.  One of conditions names the scores that are kept; a row without any has equal probabilities, and
statistics of -inf.  Their gradient reads delta in the place of o: f32 as the statistics are, the sum of do * o over
the features.  With `gain` the last operand is an array like a bias: probabilities are multiplied by it and by the gain,
as dropout does.
"""

# NumPy's stubs give Any for arithmetic on arrays of an unknown dtype, which is what all of this is.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astitch.graph.ir import ArrayType, AttentionAttrs, DType, Node, Order, TupleType, Type
from astitch.graph.ops.arrays import Array, array_types
from astitch.graph.ops.hlo_fields import Attributes
from astitch.graph.ops.row import Kind, Op
from astitch.graph.ops.rules import arrays_of, attrs_of, require, require_operands


def _extents(array: ArrayType, order: Order) -> tuple[int, ...]:
    return tuple(array.shape[d] for d in order)


def _with_features(array: ArrayType, order: Order, features: int) -> ArrayType:
    shape = list(array.shape)
    shape[order[3]] = features
    return ArrayType(array.dtype, tuple(shape))


def _infer_attention(node: Node, operands: Sequence[Type]) -> Type:
    q, k, v, *bias = arrays_of(operands)
    return _check(node, q, k, v, bias)


def _infer_gradient(node: Node, operands: Sequence[Type]) -> Type:
    q, k, v, statistics, gradient, o, *bias = arrays_of(operands)
    expected = _check(node, q, k, v, bias)
    result, rows = expected.elements
    require_operands(
        o == (rows if attrs_of(node, AttentionAttrs).tiles else result) and statistics == rows,
        f"{o} and {statistics} do not belong to {expected}",
    )
    require_operands(gradient == result, f"the gradient of {result} is {gradient}")
    return TupleType((q, k, v))


def _check(
    node: Node, q: ArrayType, k: ArrayType, v: ArrayType, bias: Sequence[ArrayType]
) -> TupleType:
    """The results of attention to these operands.  Raises BrokenRule where they do not fit together."""
    a = attrs_of(node, AttentionAttrs)
    for array, order in ((q, a.q), (k, a.k), (v, a.v)):
        require_operands(array.rank == 4 and array.dtype is q.dtype, f"an operand is {array}")
        require(sorted(order) == [0, 1, 2, 3], f"the order {order} is none of four dimensions")
    require(a.gain == 0 or (a.gain > 0 and a.tiles != ""), f"a gain of {a.gain}")
    require(a.cap == 0 or (a.cap > 0 and a.tiles != ""), f"a cap of {a.cap}")
    require(a.causal or not a.window, f"a window of {a.window} without a causal mask")
    batch, heads, positions, features = _extents(q, a.q)
    groups, keys = _extents(k, a.k)[1:3]
    require_operands(
        _extents(k, a.k) == (batch, groups, keys, features)
        and _extents(v, a.v)[:3] == (batch, groups, keys)
        and heads % groups == 0,
        f"{q}, {k} and {v} are no queries, keys and values",
    )
    for place, array in enumerate(bias):
        wanted = (batch, heads, positions, keys)
        whole = all(n in (1, m) for n, m in zip(array.shape, wanted, strict=False))
        of_library = array.dtype is q.dtype and array.shape[2:] == wanted[2:]
        require_operands(
            array.rank == 4 and whole and (bool(a.tiles) or of_library),
            f"{array} is no bias of the scores",
        )
        is_bias = place == 0 and len(bias) > (a.gain != 0)
        conditions = is_bias and array.dtype is DType.PRED
        require(not (a.causal and conditions), "conditions beside a causal mask")
    least = int(a.gain != 0)
    require_operands(least <= len(bias) <= least + 1, f"{len(bias)} biases and multipliers")
    o = _with_features(q, a.q, _extents(v, a.v)[3])
    return TupleType((o, ArrayType(DType.F32, (batch, heads, positions))))


def _canonical(x: Array, order: Order, heads: int) -> Array:
    """[batch, heads, positions, features] in f64; heads that are shared stand several times."""
    turned = x.astype(np.float64).transpose(order)
    return np.repeat(turned, heads // turned.shape[1], axis=1)


def _restore(x: Array, order: Order, heads: int, dtype: np.dtype) -> Array:
    """From _canonical; heads that are shared get the sum."""
    batch, many, positions, features = x.shape
    summed = x.reshape(batch, heads, many // heads, positions, features).sum(2)
    return summed.transpose(np.argsort(order)).astype(dtype)


def _scores(q: Array, k: Array, bias: Sequence[Array], a: AttentionAttrs) -> Array:
    scores = a.scale * np.einsum("bntf,bnsf->bnts", q, k)
    scores = a.cap * np.tanh(scores / a.cap) if a.cap else scores
    for array in bias:
        if array.dtype == np.bool_:
            empty = ~np.broadcast_to(array, scores.shape).any(-1, keepdims=True)
            scores = np.where(empty, 0.0, np.where(array, scores, -np.inf))
            continue
        # In f32, as the library adds it: of a row that is left out as a whole all scores are the same.
        scores = (scores + array.astype(np.float64)).astype(np.float32).astype(np.float64)
    if a.causal:
        distance = np.arange(q.shape[2])[:, None] - np.arange(k.shape[2])
        seen = (distance >= 0) & (distance < (a.window or q.shape[2] + 1))
        scores = np.where(seen, scores, -np.inf)
    return scores


def _split_off_drop(
    rest: Sequence[Array], a: AttentionAttrs
) -> tuple[Sequence[Array], Array | float]:
    """(the bias if there is one, what probabilities are multiplied by) of the last operands."""
    if not a.gain:
        return rest, 1.0
    return rest[:-1], a.gain * rest[-1].astype(np.float64)


def _softmax(scores: Array) -> tuple[Array, Array]:
    """(probabilities, logarithm of each row's sum).  The maximum may be so large that it absorbs the logarithm."""
    most = scores.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):  # a row of minus infinities has no probabilities
        p = np.exp(scores - most)
    total = p.sum(-1, keepdims=True)
    return p / total, (most + np.log(total))[..., 0]


def meanings_of_attention(node: Node, *operands: Array) -> tuple[Array, ...]:
    """In f64, rounded once."""
    a = attrs_of(node, AttentionAttrs)
    types = array_types(node)
    heads = operands[0].shape[a.q[1]]
    q, k, v = (
        _canonical(x, order, heads) for x, order in zip(operands[:3], (a.q, a.k, a.v), strict=True)
    )
    bias, drop = _split_off_drop(operands[3:], a)
    scores = _scores(q, k, bias, a)
    p, statistics = _softmax(scores)
    o = np.einsum("bnts,bnsf->bntf", drop * p, v)
    for array in bias:
        if array.dtype == np.bool_:
            kept = np.broadcast_to(array, scores.shape).any(-1)
            statistics = np.where(kept, statistics, -np.inf)
    return (_restore(o, a.q, heads, types[0].dtype.numpy), statistics.astype(np.float32))


def meanings_of_gradient(node: Node, *operands: Array) -> tuple[Array, ...]:
    """In f64, rounded once; what attention gave is computed again."""
    a = attrs_of(node, AttentionAttrs)
    dtype = operands[0].dtype
    heads, groups = operands[0].shape[a.q[1]], operands[1].shape[a.k[1]]
    orders = (a.q, a.k, a.v, a.q)
    q, k, v, do = (
        _canonical(x, order, heads)
        for x, order in zip((*operands[:3], operands[4]), orders, strict=True)
    )
    bias, drop = _split_off_drop(operands[6:], a)
    scores = _scores(q, k, bias, a)
    p, _ = _softmax(scores)
    dp = drop * np.einsum("bntf,bnsf->bnts", do, v)
    ds = a.scale * p * (dp - (p * dp).sum(-1, keepdims=True))
    if a.cap:
        ds = ds * (1 - np.tanh(a.scale / a.cap * np.einsum("bntf,bnsf->bnts", q, k)) ** 2)
    for array in bias:
        if array.dtype == np.bool_ and not a.through_masks:
            ds = np.where(array, ds, 0.0)
    return (
        _restore(np.einsum("bnts,bnsf->bntf", ds, k), a.q, heads, dtype),
        _restore(np.einsum("bnts,bntf->bnsf", ds, q), a.k, groups, dtype),
        _restore(np.einsum("bnts,bntf->bnsf", drop * p, do), a.v, groups, dtype),
    )


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
