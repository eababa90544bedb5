"""Strategies for tests/whole/test_opcodes.py: one op of a family with drawn attributes, as a Case.

Takes hypothesis' draws, hands on cases.  Attributes are any that JAX accepts; extents are small, and may be 0 or 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from astitch.graph.ir import DType
from tests.opcode_cases import (
    BF16,
    COMPLEX,
    EVERY,
    EXACT,
    F8,
    F16,
    F32,
    F64,
    FLOATS,
    INTEGERS,
    PRED,
    SIGNED,
    SUM,
    Case,
    Error,
    TextCase,
    draw_bits,
    draw_edges,
    draw_numbers,
)

T = TypeVar("T")
Draw = st.DrawFn

seeds = st.integers(0, 2**32 - 1)
INDEX_TYPES = tuple(np.dtype(t) for t in ("i4", "i4", "i8", "u1", "i1", "u4"))


def pick(draw: Draw, options: Sequence[T]) -> T:
    return options[draw(st.integers(0, len(options) - 1))]


def draw_rng(draw: Draw) -> np.random.Generator:
    return np.random.default_rng(draw(seeds))


def draw_shape(draw: Draw, low: int = 0, high: int = 4, extent: int = 6) -> tuple[int, ...]:
    """Mostly of extents 2 and more."""
    smallest = pick(draw, (0, 1, 2, 2, 2, 2, 2))
    rank = draw(st.integers(low, high))
    return tuple(draw(st.integers(smallest, extent)) for _ in range(rank))


def draw_indices(
    draw: Draw, rng: np.random.Generator, shape: Sequence[int], limit: int, dtype: np.dtype | None
) -> np.ndarray:
    """Indices into an extent of `limit`, a part of them outside on either side."""
    dtype = dtype or pick(draw, INDEX_TYPES)
    beyond = pick(draw, (0, 0, 3))
    low, high = (-beyond if dtype.kind == "i" else 0), max(limit, 1) + beyond
    indices = rng.integers(low, high, shape)
    if beyond:
        info = np.iinfo(dtype)
        indices = np.where(
            rng.random(shape) < 0.1, rng.choice([info.min, info.max], shape), indices
        )
    return np.asarray(indices).astype(dtype)


# ---- index maps ----------------------------------------------------------------------------------


@st.composite
def movements(draw: Draw) -> Case:
    """An op that moves elements: any dtype, any bits."""
    rng, dtype = draw_rng(draw), pick(draw, EVERY)
    shape = draw_shape(draw)
    x = draw_bits(rng, dtype, shape)
    kind = pick(draw, tuple(_MOVEMENTS))
    return _MOVEMENTS[kind](draw, rng, x)


def _slice(draw: Draw, rng: np.random.Generator, x: np.ndarray) -> Case:
    starts = [draw(st.integers(0, n)) for n in x.shape]
    limits = [draw(st.integers(s, n)) for s, n in zip(starts, x.shape, strict=True)]
    strides = [draw(st.integers(1, 4)) for _ in x.shape]
    name = f"slice {x.shape} {starts} {limits} {strides}"
    return Case(name, lambda x: lax.slice(x, starts, limits, strides), (x,))


def _transpose(draw: Draw, rng: np.random.Generator, x: np.ndarray) -> Case:
    order = draw(st.permutations(range(x.ndim)))
    return Case(f"transpose {x.shape} {order}", lambda x: lax.transpose(x, order), (x,))


def _reverse(draw: Draw, rng: np.random.Generator, x: np.ndarray) -> Case:
    dimensions = [d for d in range(x.ndim) if draw(st.booleans())]
    return Case(f"rev {x.shape} {dimensions}", lambda x: lax.rev(x, dimensions), (x,))


def _reshape(draw: Draw, rng: np.random.Generator, x: np.ndarray) -> Case:
    rest, shape = x.size, []
    while rest > 1 and len(shape) < 4:
        factor = pick(draw, [f for f in range(1, rest + 1) if rest % f == 0])
        shape.append(factor)
        rest //= factor
    shape = draw(st.permutations([*shape, rest])) if x.ndim or rest > 1 else []
    order = draw(st.permutations(range(x.ndim))) if draw(st.booleans()) else None
    name = f"reshape {x.shape} to {shape}, dimensions {order}"
    return Case(name, lambda x: lax.reshape(x, shape, order), (x,))


def _broadcast(draw: Draw, rng: np.random.Generator, x: np.ndarray) -> Case:
    places = sorted(draw(st.permutations(range(x.ndim + 2)))[: x.ndim])
    shape = [draw(st.integers(0, 4)) for _ in range(x.ndim + 2)]
    for d, n in zip(places, x.shape, strict=True):
        shape[d] = draw(st.integers(1, 3)) if n == 1 else n
    name = f"broadcast_in_dim {x.shape} {shape} {places}"
    return Case(name, lambda x: lax.broadcast_in_dim(x, shape, places), (x,))


def _pad(draw: Draw, rng: np.random.Generator, x: np.ndarray) -> Case:
    config = []
    for n in x.shape:
        interior = draw(st.integers(0, 2))
        spread = n + max(n - 1, 0) * interior
        low = draw(st.integers(-spread, 3))
        config.append((low, draw(st.integers(-(spread + min(low, 0)), 3)), interior))
    value = draw_bits(rng, x.dtype, ())
    return Case(f"pad {x.shape} {config}", lambda x, v: lax.pad(x, v, config), (x, value))


def _concatenate(draw: Draw, rng: np.random.Generator, x: np.ndarray) -> Case:
    if not x.ndim:
        x = x.reshape(1)
    axis, count = draw(st.integers(0, x.ndim - 1)), draw(st.integers(1, 4))
    pieces = [x]
    for _ in range(count - 1):
        shape = [draw(st.integers(0, 5)) if d == axis else n for d, n in enumerate(x.shape)]
        pieces.append(draw_bits(rng, x.dtype, shape))
    name = f"concatenate {[p.shape for p in pieces]} along {axis}"
    return Case(name, lambda *pieces: lax.concatenate(pieces, axis), tuple(pieces))


def _dynamic_slice(draw: Draw, rng: np.random.Generator, x: np.ndarray) -> Case:
    sizes = [draw(st.integers(0, n)) for n in x.shape]
    dtype = pick(draw, INDEX_TYPES)
    starts = [draw_indices(draw, rng, (), n, dtype) for n in x.shape]
    name = f"dynamic-slice {x.shape} {sizes} at {starts}"
    return Case(name, lambda x, *at: lax.dynamic_slice(x, at, sizes), (x, *starts))


def _dynamic_update_slice(draw: Draw, rng: np.random.Generator, x: np.ndarray) -> Case:
    update = draw_bits(rng, x.dtype, [draw(st.integers(0, n)) for n in x.shape])
    dtype = pick(draw, INDEX_TYPES)
    starts = [draw_indices(draw, rng, (), n, dtype) for n in x.shape]
    name = f"dynamic-update-slice {x.shape} {update.shape} at {starts}"
    return Case(name, lambda x, u, *at: lax.dynamic_update_slice(x, u, at), (x, update, *starts))


def _iota(draw: Draw, rng: np.random.Generator, x: np.ndarray) -> Case:
    shape, dtype = (x.shape or (3,)), x.dtype if x.dtype != PRED else F32
    d = draw(st.integers(0, len(shape) - 1))
    return Case(f"iota {dtype}{shape} {d}", lambda: lax.broadcasted_iota(dtype, shape, d), ())


def _select_n(draw: Draw, rng: np.random.Generator, x: np.ndarray) -> Case:
    count = draw(st.integers(1, 4))
    which = rng.integers(0, count, pick(draw, (x.shape, ()))).astype(np.int32)
    cases = [draw_bits(rng, x.dtype, x.shape) for _ in range(count)]
    return Case(f"select_n of {count}", lambda i, *c: lax.select_n(i, *c), (which, *cases))


def draw_gather(draw: Draw, rng: np.random.Generator, x: np.ndarray) -> Case:
    """Any dimension numbers: each dimension of x is sliced, collapsed or batched; indexed or not."""
    kinds = [draw(st.sampled_from("ssscb")) if n else "s" for n in x.shape]
    batching = [d for d, k in enumerate(kinds) if k == "b"]
    collapsed = [d for d, k in enumerate(kinds) if k == "c"]
    sizes = [
        1 if k in "cb" else draw(st.integers(min(n, 1), n))
        for k, n in zip(kinds, x.shape, strict=True)
    ]
    indexed = [d for d in draw(st.permutations(range(x.ndim))) if kinds[d] != "b"]
    indexed = indexed[: draw(st.integers(0, len(indexed)))]
    batch = [x.shape[d] for d in batching]
    batch += [draw(st.integers(0, 4)) for _ in range(draw(st.integers(0, 2)))]
    order = draw(st.permutations(range(len(batch))))
    index_batching = [order.index(i) for i in range(len(batching))]
    index_shape = [batch[i] for i in order]
    rank = len(batch) + kinds.count("s")
    offsets = sorted(draw(st.permutations(range(rank)))[: kinds.count("s")])
    dtype = pick(draw, INDEX_TYPES)
    columns = [draw_indices(draw, rng, index_shape, x.shape[d], dtype) for d in indexed]
    indices = np.stack(columns, -1) if columns else np.zeros((*index_shape, 0), dtype)
    numbers = lax.GatherDimensionNumbers(
        tuple(offsets), tuple(collapsed), tuple(indexed), tuple(batching), tuple(index_batching)
    )
    mode = pick(draw, (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP))
    if x.dtype in F8:  # JAX has nothing to fill them with
        mode = lax.GatherScatterMode.CLIP
    name = f"gather {x.dtype}{x.shape} {dtype}{indices.shape} {numbers} {sizes} {mode}"
    return Case(name, lambda x, i: lax.gather(x, i, numbers, sizes, mode=mode), (x, indices))


_MOVEMENTS = {
    "slice": _slice, "transpose": _transpose, "reverse": _reverse, "reshape": _reshape, "broadcast": _broadcast,
    "pad": _pad, "concatenate": _concatenate, "dynamic-slice": _dynamic_slice, "iota": _iota, "select_n": _select_n,
    "dynamic-update-slice": _dynamic_update_slice, "gather": draw_gather, "gather again": draw_gather,
}  # fmt: skip


# ---- scatter -------------------------------------------------------------------------------------

_SCATTERS = {
    "set": lax.scatter, "add": lax.scatter_add, "mul": lax.scatter_mul, "min": lax.scatter_min,
    "max": lax.scatter_max, "sub": lax.scatter_sub,
}  # fmt: skip


@st.composite
def scatters(draw: Draw) -> Case:
    """Any dimension numbers and combiner; hints only where they are true."""
    rng, kind = draw_rng(draw), pick(draw, tuple(_SCATTERS))
    dtypes = (
        (*INTEGERS, *FLOATS, *COMPLEX) if kind in ("add", "sub", "mul") else (*INTEGERS, *FLOATS)
    )
    dtype = pick(draw, (PRED, *dtypes) if kind == "set" else dtypes)
    shape = tuple(max(n, 1) for n in draw_shape(draw, 0, 3, 5))
    kinds = [draw(st.sampled_from("ssiib")) for _ in shape]
    batching = [d for d, k in enumerate(kinds) if k == "b"]
    inserted = [d for d, k in enumerate(kinds) if k == "i"]
    windows = [
        draw(st.sampled_from((1, n, draw(st.integers(1, n)))))
        for n, k in zip(shape, kinds, strict=True)
        if k == "s"
    ]
    indexed = [d for d in draw(st.permutations(range(len(shape)))) if kinds[d] != "b"]
    indexed = indexed[: draw(st.integers(0, len(indexed)))]
    batch = [shape[d] for d in batching]
    if indexed:  # without, and with several updates, XLA's CPU compiler applies one of them
        batch += [draw(st.integers(0, 4)) for _ in range(draw(st.integers(0, 2)))]
    order = draw(st.permutations(range(len(batch))))
    index_batching = [order.index(i) for i in range(len(batching))]
    index_shape = [batch[i] for i in order]
    rank = len(batch) + len(windows)
    places = sorted(draw(st.permutations(range(rank)))[: len(windows)])
    index_dtype = pick(draw, INDEX_TYPES)
    columns = [draw_indices(draw, rng, index_shape, shape[d], index_dtype) for d in indexed]
    indices = np.stack(columns, -1) if columns else np.zeros((*index_shape, 0), index_dtype)
    sizes, batches_left = iter(windows), iter(index_shape)
    update_shape = [next(sizes if d in places else batches_left) for d in range(rank)]
    x, updates = draw_numbers(rng, dtype, shape), draw_numbers(rng, dtype, update_shape)
    numbers = lax.ScatterDimensionNumbers(
        tuple(places), tuple(inserted), tuple(indexed), tuple(batching), tuple(index_batching)
    )
    mode = pick(draw, (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP))
    # One update writes no element twice.
    alone = math.prod(index_shape) <= 1
    scatter = _SCATTERS[kind]
    name = f"scatter-{kind} {dtype}{shape} {index_dtype}{indices.shape} {updates.shape} {numbers} {mode}"
    error = SUM if kind in ("add", "sub", "mul") and dtype.kind not in "iu" else EXACT
    return Case(
        name,
        lambda x, i, u: scatter(
            x, i, u, numbers, mode=mode, unique_indices=alone, indices_are_sorted=alone
        ),
        (x, indices, updates),
        error,
    )


@st.composite
def indexed_updates(draw: Draw) -> Case:
    """x.at[i].op(u): distinct and sorted indices with their hints, rows or elements."""
    rng, dtype = draw_rng(draw), pick(draw, (*INTEGERS, *FLOATS))
    rows, columns, count = (draw(st.integers(1, 7)) for _ in range(3))
    method = pick(
        draw, ("set", "add", "subtract", "multiply", "divide", "power", "min", "max", "apply")
    )
    if method in ("divide", "power") and dtype not in FLOATS:
        method = "add"
    unique = method in ("divide", "power", "apply") or draw(st.booleans())
    # JAX wraps negative indices, so that -1 and the last would be the same.
    indices = rng.permutation(2 * rows)[:count] if unique else rng.integers(-rows, rows + 2, count)
    is_sorted = draw(st.booleans())
    if is_sorted:
        indices = np.sort(np.abs(indices))
    mode = pick(draw, ("drop", "clip") if not unique else ("drop",))
    x = np.abs(draw_numbers(rng, dtype, (rows, columns))) + dtype.type(1)
    updates = draw_numbers(rng, dtype, (len(indices), columns))
    options = {"mode": mode, "unique_indices": unique, "indices_are_sorted": is_sorted}

    def update(x: Any, i: Any, u: Any) -> Any:
        at = x.at[i]
        return (
            at.apply(jnp.negative, **options)
            if method == "apply"
            else getattr(at, method)(u, **options)
        )

    name = f"x.at[].{method} {dtype}{x.shape} {indices} {options}"
    error = EXACT if dtype not in FLOATS or method in ("set", "min", "max") else SUM
    return Case(name, update, (x, indices.astype(np.int32), updates), error)


# ---- reductions ----------------------------------------------------------------------------------


@st.composite
def reductions(draw: Draw) -> Case:
    rng = draw_rng(draw)
    shape = draw_shape(draw, 1, 4, pick(draw, (5, 5, 33)))
    if math.prod(shape) > 20000:
        shape = shape[:2]
    axes = [d for d in range(len(shape)) if draw(st.booleans())]
    kind = pick(
        draw,
        (
            "sum",
            "prod",
            "max",
            "min",
            "any",
            "all",
            "xor",
            "argmax",
            "argmin",
            "pair",
            "mean",
            "var",
        ),
    )
    if kind in ("any", "all"):
        dtype = pick(draw, (PRED, *INTEGERS))
    elif kind == "xor":
        dtype = pick(draw, INTEGERS)
    elif kind in ("mean", "var"):
        dtype = pick(draw, FLOATS)
    else:
        dtype = pick(draw, (*INTEGERS, *FLOATS, *(COMPLEX if kind in ("sum", "prod") else ())))
    x = draw_numbers(rng, dtype, shape)
    if kind in ("max", "min", "argmax", "argmin") and dtype in FLOATS:
        # Equal elements, NaN and infinities.
        special = rng.choice(np.array([0.0, -0.0, 1.0, np.inf, -np.inf], np.float64), shape)
        x = np.where(rng.random(shape) < 0.5, special.astype(dtype), x)
        if draw(st.booleans()) and x.size:
            # One: among several, argmax may name any.
            x = x.copy()
            x.flat[rng.integers(x.size)] = dtype.type(np.nan)
    error = SUM if kind in ("sum", "mean", "var", "prod") and dtype.kind not in "iub" else EXACT
    if kind in ("argmax", "argmin"):
        axis, index = (
            draw(st.integers(0, len(shape) - 1)),
            pick(draw, (np.int32, np.int64, np.uint8)),
        )
        function = lax.argmax if kind == "argmax" else lax.argmin
        if shape[axis] == 0:
            return Case("argmax of nothing", jnp.sum, (x,), SUM)
        name = f"{kind} {dtype}{shape} {axis} {index.__name__}"
        return Case(name, lambda x: function(x, axis, index), (x,))
    if kind == "pair":
        y, start = draw_numbers(rng, dtype, shape), np.asarray([_least(dtype), 0], dtype)
        name = f"reduce of two {dtype}{shape} {axes}"
        return Case(
            name,
            lambda x, y: lax.reduce(
                (x, y), (start[0], start[1]), lambda a, b: (lax.max(a[0], b[0]), a[1] + b[1]), axes
            ),
            (x, y),
            EXACT if dtype.kind in "iu" else SUM,
        )
    bodies = {
        "sum": (lax.add, 0), "prod": (lax.mul, 1), "max": (lax.max, _least(dtype)), "min": (lax.min, _most(dtype)),
        "any": (lax.bitwise_or, 0), "all": (lax.bitwise_and, True if dtype == PRED else -1),
        "xor": (lax.bitwise_xor, 0),
    }  # fmt: skip
    name = f"{kind} {dtype}{shape} {axes}"
    if kind in ("mean", "var"):
        return Case(name, lambda x: getattr(jnp, kind)(x, axes), (x,), error)
    body, start = bodies[kind]
    # HLO leaves it open whether an init counts where there is one element: XLA may drop it.
    neutral = math.prod(shape[a] for a in axes) == 1 or draw(st.booleans())
    initial = np.asarray(start).astype(dtype) if neutral else draw_numbers(rng, dtype, ())
    return Case(name, lambda x: lax.reduce(x, initial, body, axes), (x,), error)


def _least(dtype: np.dtype) -> Any:
    return -np.inf if dtype.kind not in "iub" else False if dtype == PRED else np.iinfo(dtype).min


def _most(dtype: np.dtype) -> Any:
    return np.inf if dtype.kind not in "iub" else True if dtype == PRED else np.iinfo(dtype).max


# ---- windows -------------------------------------------------------------------------------------


def draw_window(draw: Draw, extent: int) -> tuple[int, int, tuple[int, int], int, int]:
    """(size, stride, padding, base dilation, window dilation) with at least one position."""
    base = draw(st.integers(1, 3))
    low, high = draw(st.integers(-1, 3)), draw(st.integers(-1, 3))
    padded = (extent - 1) * base + 1 + low + high
    dilation = draw(st.integers(1, 3))
    size = draw(st.integers(1, max(1, min(4, (padded - 1) // dilation + 1))))
    return size, draw(st.integers(1, 3)), (low, high), base, dilation


@st.composite
def windows(draw: Draw) -> Case:
    rng, kind = draw_rng(draw), pick(draw, ("add", "mul", "max", "min", "or", "pair", "general"))
    dtype = PRED if kind == "or" else pick(draw, (*FLOATS, *FLOATS, *INTEGERS))
    shape = tuple(draw(st.integers(3, 7)) for _ in range(draw(st.integers(1, 3))))
    drawn = [
        draw_window(draw, n) if draw(st.integers(0, 3)) else (1, 1, (0, 0), 1, 1) for n in shape
    ]
    size, stride, padding, base, dilation = zip(*drawn, strict=True)
    x = draw_numbers(rng, dtype, shape)
    name = f"reduce-window {kind} {dtype}{shape} {drawn}"
    error = SUM if kind in ("add", "mul", "pair", "general") and dtype in FLOATS else EXACT
    if kind == "pair":
        y = draw_numbers(rng, dtype, shape)
        zero = dtype.type(0)
        return Case(
            name,
            lambda x, y: lax.reduce_window(
                (x, y), (zero, zero), lambda a, b: (lax.max(a[0], b[0]), a[1] + b[1]),
                size, stride, padding, base, dilation,
            ),
            (x, y),
            error,
        )  # fmt: skip
    bodies = {"add": (lax.add, 0), "mul": (lax.mul, 1), "max": (lax.max, _least(dtype)), "min": (lax.min, _most(dtype)),
              "or": (lax.bitwise_or, False), "general": (lambda a, b: a + b + b * 0, 0)}  # fmt: skip
    body, start = bodies[kind]
    initial = np.asarray(start).astype(dtype)
    if draw(st.integers(0, 3)) == 0 and kind in ("add", "max"):
        initial = draw_numbers(rng, dtype, ())
    return Case(
        name,
        lambda x: lax.reduce_window(x, initial, body, size, stride, padding, base, dilation),
        (x,),
        error,
    )


@st.composite
def running(draw: Draw) -> Case:
    """cumsum and its kin."""
    rng = draw_rng(draw)
    function = pick(draw, (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp))
    dtypes = FLOATS if function is lax.cumlogsumexp else (*FLOATS, *INTEGERS)
    if function in (lax.cumsum, lax.cumprod):
        dtypes = (*dtypes, *COMPLEX)
    dtype = pick(draw, dtypes)
    shape = tuple(draw(st.integers(1, 6)) for _ in range(draw(st.integers(0, 2))))
    axis = draw(st.integers(0, len(shape)))
    shape = (*shape[:axis], draw(st.sampled_from((0, 1, 2, 7, 33, 130))), *shape[axis:])
    backward = draw(st.booleans())
    x = draw_numbers(rng, dtype, shape, 0.7)
    exact = dtype.kind in "iu" or function in (lax.cummax, lax.cummin)
    name = f"{function.__name__} {dtype}{shape} {axis} {'reverse' if backward else ''}"
    error = EXACT if exact else Error(4.0 * (32 + shape[axis]) if dtype in (F32, F64) else 32, True)
    return Case(name, lambda x: function(x, axis=axis, reverse=backward), (x,), error)


@st.composite
def poolings(draw: Draw) -> Case:
    """Pooling and its gradient: select-and-scatter, or windows over a dilated base."""
    rng, dtype = draw_rng(draw), pick(draw, (F32, F64, F32, BF16, F16))
    kind = pick(draw, ("max", "min", "add"))
    shape = (draw(st.integers(1, 2)), draw(st.integers(4, 7)), draw(st.integers(4, 7)), 2)
    size = (1, draw(st.integers(1, 4)), draw(st.integers(1, 4)), 1)
    stride = (1, draw(st.integers(1, 3)), draw(st.integers(1, 3)), 1)
    padding = pick(draw, ("VALID", "SAME"))
    body, start = {"max": (lax.max, -np.inf), "min": (lax.min, np.inf), "add": (lax.add, 0.0)}[kind]
    initial = np.asarray(start, dtype)
    # All different: of equal elements the first wins, which jax and XLA leave open in the tie.
    x = rng.permutation(math.prod(shape)).reshape(shape).astype(np.float32).astype(
        dtype
    ) / dtype.type(7)

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, initial, body, size, stride, padding)

    def both(x: Any) -> Any:
        y, pull = jax.vjp(pool, x)
        return y, pull(y * 2 + 1)

    return Case(f"{kind} pooling {dtype}{shape} {size} {stride} {padding}", both, (x,), SUM)


# ---- order ---------------------------------------------------------------------------------------


@st.composite
def sorts(draw: Draw) -> Case:
    rng, dtype = draw_rng(draw), pick(draw, (PRED, *INTEGERS, *FLOATS))
    shape = draw_shape(draw, 1, 3, pick(draw, (5, 5, 40)))
    axis = draw(st.integers(0, len(shape) - 1))
    x = draw_edges(rng, dtype, math.prod(shape)).reshape(shape)
    kind = pick(draw, ("sort", "argsort", "several", "top_k", "descending", "by value"))
    name = f"{kind} {dtype}{shape} {axis}"
    if kind == "top_k":
        if dtype == PRED or not shape[-1]:
            return Case(name, lambda x: lax.sort(x, dimension=axis), (x,))
        k = draw(st.integers(1, shape[-1]))
        return Case(f"{name} k={k}", lambda x: lax.top_k(x, k), (x,))
    if kind == "argsort":
        stable, descending = True, draw(st.booleans())
        return Case(
            f"{name} descending={descending}",
            lambda x: jnp.argsort(x, axis, stable=stable, descending=descending),
            (x,),
        )
    if kind == "several":
        keys = draw(st.integers(1, 3))
        few = [rng.integers(0, 3, shape).astype(dtype) for _ in range(keys)]
        arrays = (*few, x, rng.integers(0, 100, shape))
        return Case(
            f"{name} {keys} keys",
            lambda *a: lax.sort(a, axis, is_stable=True, num_keys=keys),
            arrays,
        )
    if kind == "descending":
        return Case(name, lambda x: jnp.sort(x, axis, descending=True), (x,))
    if kind == "by value" and shape[axis] > 1 and dtype != PRED:
        return Case(name, lambda x: jnp.partition(x, shape[axis] // 2, axis), (x,))
    return Case(name, lambda x: lax.sort(x, dimension=axis), (x,))


# ---- products ------------------------------------------------------------------------------------


@st.composite
def products(draw: Draw) -> Case:
    """dot_general with any number of batch and contracting dimensions, in any order."""
    rng = draw_rng(draw)
    batch, contracting, left, right = (draw(st.integers(0, 2)) for _ in range(4))
    extents = [draw(st.integers(1, 5)) for _ in range(batch + contracting + left + right)]
    if draw(st.integers(0, 9)) == 0:
        extents[0:1] = [0] * len(extents[:1])
    shared, own = list(range(batch + contracting)), batch + contracting
    x_labels = draw(st.permutations([*shared, *range(own, own + left)]))
    y_labels = draw(st.permutations([*shared, *range(own + left, own + left + right)]))
    numbers = (
        ([x_labels.index(i) for i in shared[batch:]], [y_labels.index(i) for i in shared[batch:]]),
        ([x_labels.index(i) for i in shared[:batch]], [y_labels.index(i) for i in shared[:batch]]),
    )
    x_dtype, y_dtype, preferred = pick(draw, _PRODUCTS)
    x = draw_numbers(rng, np.dtype(x_dtype), [extents[i] for i in x_labels])
    y = draw_numbers(rng, np.dtype(y_dtype), [extents[i] for i in y_labels])
    name = f"dot_general {x_dtype}{x.shape} {y_dtype}{y.shape} {numbers} to {preferred}"
    exact = np.dtype(preferred or x_dtype).kind in "iu"
    return Case(
        name,
        lambda x, y: lax.dot_general(x, y, numbers, preferred_element_type=preferred),
        (x, y),
        EXACT if exact else SUM,
    )


_PRODUCTS = (
    (F32, F32, None), (F32, F32, None), (F64, F64, None), (BF16, BF16, F32), (BF16, BF16, None), (F16, F16, None),
    (F16, F16, F32), (COMPLEX[0], COMPLEX[0], None), (COMPLEX[1], COMPLEX[1], None), (SIGNED[2], SIGNED[2], None),
    (SIGNED[0], SIGNED[0], SIGNED[2]), (SIGNED[3], SIGNED[3], None), (INTEGERS[4], INTEGERS[4], INTEGERS[6]),
    (F32, F32, F64), (SIGNED[1], SIGNED[1], None),
)  # fmt: skip


@st.composite
def convolutions(draw: Draw) -> Case:
    """Any geometry and layout; or the gradient of a plain one in its image and its kernel."""
    rng, dtype = draw_rng(draw), pick(draw, (F32, F32, F64, BF16, F16, SIGNED[2]))
    spatial = draw(st.integers(1, 2))
    groups, batch_groups = pick(draw, ((1, 1), (1, 1), (2, 1), (4, 1), (1, 2)))
    extents = tuple(draw(st.integers(4, 7)) for _ in range(spatial))
    drawn = [draw_window(draw, n) for n in extents]
    gradient = dtype.kind != "i" and batch_groups == 1 and draw(st.booleans())
    if gradient:
        drawn = [(s, t, (max(lo, 0), max(hi, 0)), 1, 1) for s, t, (lo, hi), _, _ in drawn]
    size, stride, padding, base, dilation = zip(*drawn, strict=True)
    sizes = {"N": 2 * batch_groups, "C": 4, **dict(zip("HW", extents, strict=False))}
    kernel = {"I": 4 // groups, "O": 4, **dict(zip("HW", size, strict=False))}
    layout = tuple(
        "".join(draw(st.permutations(letters + "HW"[:spatial]))) for letters in ("NC", "IO", "NC")
    )
    x = draw_numbers(rng, dtype, [sizes[c] for c in layout[0]])
    k = draw_numbers(rng, dtype, [kernel[c] for c in layout[1]])

    def convolve(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(
            x, k, stride, padding, base, dilation, dimension_numbers=layout,
            feature_group_count=groups, batch_group_count=batch_groups,
        )  # fmt: skip

    def differentiate(x: Any, k: Any) -> Any:
        y, pull = jax.vjp(convolve, x, k)
        return pull(jnp.sin(y))

    name = f"convolution {dtype} {layout} {drawn} {groups} {batch_groups} {'gradient' if gradient else ''}"
    error = EXACT if dtype.kind == "i" else Error(64, of_largest=True)
    return Case(name, differentiate if gradient else convolve, (x, k), error)


@st.composite
def transforms(draw: Draw) -> Case:
    rng = draw_rng(draw)
    kind = pick(draw, ("fft", "ifft", "fftn", "rfft", "irfft", "rfftn", "irfftn", "ifftn"))
    dtype = pick(draw, (F32, F64)) if kind.startswith("r") else pick(draw, COMPLEX)
    shape = tuple(draw(st.integers(1, 9)) for _ in range(draw(st.integers(1, 3))))
    x = draw_numbers(rng, dtype, shape)
    axes = range(-draw(st.integers(1, len(shape))), 0)
    function = getattr(jnp.fft, kind)
    if kind.startswith("i") and "r" in kind:
        x = np.concatenate([x, x[..., :1]], -1)
    if kind.endswith("n"):
        return Case(
            f"{kind} {x.shape} {list(axes)}", lambda x: function(x, axes=tuple(axes)), (x,), SUM
        )
    return Case(f"{kind} {x.shape}", function, (x,), SUM)


# ---- control -------------------------------------------------------------------------------------


@st.composite
def controls(draw: Draw) -> Case:
    """Loops with counts that are known, or that the data decides, nested; branches; calls with rules of their own."""
    rng = draw_rng(draw)
    dtype = pick(draw, (F32, F64, SIGNED[2], BF16))
    x = draw_numbers(rng, dtype, draw_shape(draw, 1, 2, 4))
    count, inner = np.int32(draw(st.integers(-1, 5))), draw(st.integers(0, 4))
    which = np.int32(draw(st.integers(-2, 5)))
    kind = pick(draw, tuple(_CONTROLS))
    function = _CONTROLS[kind]
    name = f"{kind} {dtype}{x.shape} {count} {inner} {which}"
    return Case(name, lambda x, n, i: function(x, n, inner, i), (x, count, which), Error(64, True))


def _until_large(x: Any, n: Any, inner: int, which: Any) -> Any:
    return lax.while_loop(
        lambda s: (jnp.abs(s[0]).sum() < 100) & (s[1] < 8),
        lambda s: (s[0] + s[0] // 2 + 1, s[1] + 1),
        (x, jnp.int32(0)),
    )


def _nest(x: Any, n: Any, inner: int, which: Any) -> Any:
    def outer(i: Any, s: Any) -> Any:
        return lax.fori_loop(0, inner, lambda j, t: t - (i + j).astype(t.dtype), s)

    return lax.fori_loop(0, n, outer, x)


def _scan(x: Any, n: Any, inner: int, which: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        return carry * 2 - row, (carry, row.sum())

    return lax.scan(step, jnp.zeros(x.shape[1:], x.dtype), x, reverse=inner % 2 == 1)


def _scan_in_map(x: Any, n: Any, inner: int, which: Any) -> Any:
    return lax.map(
        lambda row: lax.associative_scan(jnp.maximum, row), x.reshape(-1, max(1, x.shape[-1]))
    )


def _conditional(x: Any, n: Any, inner: int, which: Any) -> Any:
    return lax.cond(n > 1, lambda x: (x + 1, x.sum()), lambda x: (-x, x.prod()), x)


def _switch(x: Any, n: Any, inner: int, which: Any) -> Any:
    branches = [lambda x, k=k: x * k + x[:1].sum() for k in range(max(1, inner))]
    return lax.switch(which, branches, x)


def _conditional_in_loop(x: Any, n: Any, inner: int, which: Any) -> Any:
    def step(i: Any, s: Any) -> Any:
        return lax.cond(i % 2 == 0, lambda s: s + i.astype(s.dtype), lambda s: s * 2, s)

    return lax.fori_loop(0, jnp.minimum(n, 4), step, x)


def _update_rows(x: Any, n: Any, inner: int, which: Any) -> Any:
    def step(i: Any, s: Any) -> Any:
        row = lax.dynamic_index_in_dim(s, i, 0, keepdims=False)
        return lax.dynamic_update_index_in_dim(s, row * 2 + 1, i + 1, 0)

    return lax.fori_loop(0, x.shape[0], step, x) if x.shape[0] else x


@jax.custom_jvp
def _clipped(x: Any) -> Any:
    return jnp.minimum(x * x, 4)


@_clipped.defjvp
def _clipped_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return _clipped(x), 3 * t * x


def _derivatives(x: Any, n: Any, inner: int, which: Any) -> Any:
    y = x.astype(jnp.float32)
    return jax.grad(lambda y: jax.checkpoint(_clipped)(y).sum())(y), jax.jit(_clipped)(y)


def _two_carries(x: Any, n: Any, inner: int, which: Any) -> Any:
    def step(i: Any, s: Any) -> Any:
        a, (b, flag) = s
        return b, (a + 1, ~flag)

    return lax.fori_loop(jnp.int32(0), n, step, (x, (x * 2, jnp.array(True))))


_CONTROLS = {
    "while until large": _until_large, "nested loops": _nest, "scan": _scan, "map of scans": _scan_in_map,
    "conditional": _conditional, "switch": _switch, "conditional in a loop": _conditional_in_loop,
    "rows updated in a loop": _update_rows, "custom derivative": _derivatives, "carries change places": _two_carries,
}  # fmt: skip


# ---- random numbers ------------------------------------------------------------------------------

_SAMPLERS = {
    "bits": lambda k, s: jax.random.bits(k, s),
    "bits8": lambda k, s: jax.random.bits(k, s, np.uint8),
    "bits16": lambda k, s: jax.random.bits(k, s, np.uint16),
    "bits64": lambda k, s: jax.random.bits(k, s, np.uint64),
    "uniform": lambda k, s: jax.random.uniform(k, s, F32, -2, 3),
    "uniform16": lambda k, s: jax.random.uniform(k, s, BF16),
    "uniform64": lambda k, s: jax.random.uniform(k, s, F64),
    "normal": lambda k, s: jax.random.normal(k, s, F32),
    "normal16": lambda k, s: jax.random.normal(k, s, F16),
    "randint": lambda k, s: jax.random.randint(k, s, -7, 1000),
    "bernoulli": lambda k, s: jax.random.bernoulli(k, 0.3, s),
    "permutation": lambda k, s: jax.random.permutation(k, max(1, math.prod(s))),
    "choice": lambda k, s: jax.random.choice(k, 17, s),
    "categorical": lambda k, s: jax.random.categorical(k, jnp.arange(5.0), shape=s),
    "exponential": lambda k, s: jax.random.exponential(k, s, F32),
    "gumbel": lambda k, s: jax.random.gumbel(k, s, F32),
    "laplace": lambda k, s: jax.random.laplace(k, s, F32),
    "logistic": lambda k, s: jax.random.logistic(k, s, F32),
    "truncated": lambda k, s: jax.random.truncated_normal(k, -1.0, 2.0, s, F32),
    "cauchy": lambda k, s: jax.random.cauchy(k, s, F32),
    "rademacher": lambda k, s: jax.random.rademacher(k, s),
    "split": lambda k, s: jax.random.key_data(jax.random.split(k, 3)),
    "fold_in": lambda k, s: jax.random.key_data(jax.random.fold_in(k, 12345)),
    "gamma": lambda k, s: jax.random.gamma(k, 2.5, s[:1], F32),
    "poisson": lambda k, s: jax.random.poisson(k, 3.0, s[:1]),
}
_ALSO_FLOAT_MATH = frozenset(
    "uniform normal normal16 exponential gumbel laplace logistic truncated cauchy gamma".split()
)


@st.composite
def samples(draw: Draw) -> Case:
    """jax.random with each generator: the bits are exact."""
    kind, shape = pick(draw, tuple(_SAMPLERS)), draw_shape(draw, 0, 3, 5)
    generator = pick(draw, ("threefry2x32", "threefry2x32", "rbg", "unsafe_rbg"))
    if kind in ("poisson", "gamma"):
        generator = "threefry2x32"
    words = 4 if "rbg" in generator else 2
    data = np.asarray(draw_rng(draw).integers(0, 2**32, words), np.uint32)

    def sample(data: Any) -> Any:
        return _SAMPLERS[kind](jax.random.wrap_key_data(data, impl=generator), shape)

    error = Error(64, True) if kind in _ALSO_FLOAT_MATH else EXACT
    return Case(f"{kind} {generator} {shape}", sample, (data,), error)


@st.composite
def generators(draw: Draw) -> Case:
    """rng-bit-generator itself."""
    algorithm = pick(draw, tuple(lax.RandomAlgorithm))
    dtype, shape = pick(draw, INTEGERS[4:]), draw_shape(draw, 0, 3, 7)
    state = np.asarray(draw_rng(draw).integers(0, 2**64, 2, np.uint64))
    name = f"rng-bit-generator {algorithm.name} {dtype}{shape}"
    return Case(name, lambda s: lax.rng_bit_generator(s, shape, dtype, algorithm), (state,))


# ---- what jax.nn and jax.numpy lower to ----------------------------------------------------------

ACTIVATIONS = (
    "relu relu6 sigmoid softplus sparse_plus sparse_sigmoid soft_sign silu swish log_sigmoid leaky_relu hard_sigmoid "
    "hard_silu hard_swish hard_tanh elu celu selu gelu squareplus mish identity softmax log_softmax logsumexp "
    "standardize logmeanexp glu gelu_exact softmax_where one_hot relu_grad gelu_grad softmax_grad silu_grad "
    "log_softmax_grad attention attention_causal layer_norm rms_norm"
).split()


@st.composite
def activations(draw: Draw) -> Case:
    rng, dtype = draw_rng(draw), pick(draw, (F32, F32, BF16, F16, F64))
    kind = pick(draw, ACTIVATIONS)
    shape = tuple(draw(st.integers(1, 9)) for _ in range(draw(st.integers(1, 3))))
    axis = draw(st.integers(-len(shape), -1))
    name = f"{kind} {dtype}{shape} {axis}"
    x = draw_numbers(rng, dtype, shape, 3.0)
    error = Error(128 if dtype in (F32, F64) else 4, of_largest=True, floor=1.0)
    if kind.startswith("attention") and dtype != F16:  # which XLA's CPU compiler has no product for
        q, k, v = (draw_numbers(rng, dtype, (2, n, 2, 4)) for n in (shape[0], 5, 5))
        causal = kind.endswith("causal")
        return Case(name, lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=causal), (q, k, v),
                    Error(64 if dtype in (F32, F64) else 8, of_largest=True, floor=1.0))  # fmt: skip
    if kind == "one_hot":
        i = rng.integers(-1, 6, shape).astype(np.int32)
        return Case(name, lambda i: jax.nn.one_hot(i, 5, dtype=dtype), (i,))
    if kind == "glu":
        x = draw_numbers(rng, dtype, (*shape, 4))
        return Case(name, jax.nn.glu, (x,), error)
    if kind.startswith("attention"):
        kind = "softmax"
    special = {
        "gelu_exact": lambda x: jax.nn.gelu(x, approximate=False),
        "softmax_where": lambda x: jax.nn.softmax(x, axis, where=x > 0),
        "layer_norm": lambda x: (
            (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        ),
        "rms_norm": lambda x: x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5),
    }
    if kind in special:
        return Case(name, special[kind], (x,), error)
    base = kind.removesuffix("_grad")
    function = getattr(jax.nn, base)
    if base in ("softmax", "log_softmax", "logsumexp", "standardize", "logmeanexp"):
        function = _along(function, axis)
    if kind.endswith("_grad"):
        return Case(name, jax.grad(lambda x: (function(x) ** 2).sum()), (x,), error)
    return Case(name, function, (x,), error)


def _along(function: Any, axis: int) -> Any:
    return lambda x: function(x, axis=axis)


_ARRAY_OPS = {
    "argsort": lambda x, i: jnp.argsort(x),
    "sort": lambda x, i: jnp.sort(x, 0),
    "cumsum": lambda x, i: jnp.cumsum(x, 0),
    "unique": lambda x, i: jnp.unique(
        i, size=5, fill_value=-1, return_counts=True, return_inverse=True
    ),
    "searchsorted": lambda x, i: jnp.searchsorted(jnp.sort(x[0]), x[1]),
    "searchsorted_right": lambda x, i: jnp.searchsorted(
        jnp.sort(x[0]), x[1], side="right", method="sort"
    ),
    "take": lambda x, i: jnp.take(x, i, axis=1),
    "take_clip": lambda x, i: jnp.take(x, i, axis=0, mode="clip"),
    "take_wrap": lambda x, i: jnp.take(x, i, axis=1, mode="wrap"),
    "take_along_axis": lambda x, i: jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
    "index": lambda x, i: x[:, i],
    "index_two": lambda x, i: x[i % 3, i],
    "index_mask": lambda x, i: jnp.where(x[:, :1] > 0, x, -x),
    "where_three": lambda x, i: jnp.where(x > 0, x, 7),
    "nonzero": lambda x, i: jnp.nonzero(x > 0, size=4),
    "einsum_ij_kj": lambda x, i: jnp.einsum("ij,kj->ik", x, x),
    "einsum_ij_ij": lambda x, i: jnp.einsum("ij,ij->", x, x),
    "einsum_diagonal": lambda x, i: jnp.einsum("ii->i", x[:3, :3]),
    "einsum_outer": lambda x, i: jnp.einsum("ij,kl->kijl", x, x),
    "norm": lambda x, i: jnp.linalg.norm(x),
    "norm_rows": lambda x, i: jnp.linalg.norm(x, axis=1, ord=1),
    "norm_inf": lambda x, i: jnp.linalg.norm(x, ord=jnp.inf),
    "percentile": lambda x, i: jnp.percentile(x, 37.0, axis=1),
    "quantile": lambda x, i: jnp.quantile(x, jnp.array([0.1, 0.9], F32), method="nearest"),
    "median": lambda x, i: jnp.median(x, axis=0),
    "histogram": lambda x, i: jnp.histogram(x, 5, (-3.0, 3.0)),
    "bincount": lambda x, i: jnp.bincount(jnp.abs(i), length=6),
    "roll": lambda x, i: jnp.roll(x, 2, 1),
    "roll_by": lambda x, i: jnp.roll(x, i[0], 0),
    "flip": lambda x, i: jnp.flip(x),
    "tile": lambda x, i: jnp.tile(x, (2, 3)),
    "repeat": lambda x, i: jnp.repeat(x, 3, 1),
    "repeat_by": lambda x, i: jnp.repeat(x, jnp.abs(i[:3]), 0, total_repeat_length=7),
    "pad_edge": lambda x, i: jnp.pad(x, 2, "edge"),
    "pad_reflect": lambda x, i: jnp.pad(x, 1, "reflect"),
    "pad_wrap": lambda x, i: jnp.pad(x, 2, "wrap"),
    "pad_symmetric": lambda x, i: jnp.pad(x, 2, "symmetric"),
    "pad_mean": lambda x, i: jnp.pad(x, 2, "mean"),
    "pad_ramp": lambda x, i: jnp.pad(x, 2, "linear_ramp"),
    "pad_max": lambda x, i: jnp.pad(x, 2, "maximum"),
    "interp": lambda x, i: jnp.interp(x[0], jnp.sort(x[1]), x[2]),
    "diff": lambda x, i: jnp.diff(x),
    "gradient": lambda x, i: jnp.gradient(x),
    "convolve": lambda x, i: jnp.convolve(x[0], x[1, :3]),
    "correlate": lambda x, i: jnp.correlate(x[0], x[1, :3], "full"),
    "trapezoid": lambda x, i: jnp.trapezoid(x),
    "cov": lambda x, i: jnp.cov(x),
    "corrcoef": lambda x, i: jnp.corrcoef(x),
    "kron": lambda x, i: jnp.kron(x[:2], x[1:]),
    "outer": lambda x, i: jnp.outer(x, x[0]),
    "cross": lambda x, i: jnp.cross(x[:, :3], x[:, 1:4]),
    "trace": lambda x, i: jnp.trace(x),
    "diag": lambda x, i: jnp.diag(x[0]),
    "tril": lambda x, i: jnp.tril(x, 1),
    "triu": lambda x, i: jnp.triu(x, -1),
    "eye": lambda x, i: jnp.eye(4, 5, 1) + i[0],
    "meshgrid": lambda x, i: jnp.meshgrid(x[0], x[1]),
    "linspace": lambda x, i: jnp.linspace(x[0, 0], x[0, 1], 7),
    "polyval": lambda x, i: jnp.polyval(x[0], x[1]),
    "nan_to_num": lambda x, i: jnp.nan_to_num(x / (x > 0)),
    "nanmean": lambda x, i: jnp.nanmean(jnp.where(x > 1, jnp.nan, x), 1),
    "nanmax": lambda x, i: jnp.nanmax(jnp.where(x > 1, jnp.nan, x), 0),
    "ptp": lambda x, i: jnp.ptp(x, 0),
    "std": lambda x, i: jnp.std(x, 1),
    "average": lambda x, i: jnp.average(x, 0, jnp.arange(1.0, 4.0)),
    "digitize": lambda x, i: jnp.digitize(x, jnp.array([-1.0, 0.0, 1.0])),
    "rot90": lambda x, i: jnp.rot90(x),
    "stack": lambda x, i: jnp.stack([x, -x], 1),
    "split": lambda x, i: jnp.split(x, 3),
    "block": lambda x, i: jnp.block([[x, x], [x, -x]]),
    "mod": lambda x, i: jnp.mod(x, 0.7),
    "floor_divide": lambda x, i: i // 3,
    "mod_int": lambda x, i: i % 3,
    "divmod": lambda x, i: jnp.divmod(i, -2),
    "round_two": lambda x, i: jnp.round(x, 2),
    "sinc": lambda x, i: jnp.sinc(x),
    "hypot": lambda x, i: jnp.hypot(x, x[:1]),
    "logaddexp": lambda x, i: jnp.logaddexp(x, x[:1]),
    "heaviside": lambda x, i: jnp.heaviside(x, 0.5),
    "copysign": lambda x, i: jnp.copysign(x, -x),
    "frexp": lambda x, i: jnp.frexp(x),
    "ldexp": lambda x, i: jnp.ldexp(x, 3),
    "modf": lambda x, i: jnp.modf(x),
    "signbit": lambda x, i: jnp.signbit(x),
    "gcd": lambda x, i: jnp.gcd(i, 12),
    "power_int": lambda x, i: jnp.power(i, 3),
    "power_ints": lambda x, i: jnp.power(i, jnp.abs(i)),
    "float_power": lambda x, i: jnp.abs(x) ** 1.5,
    "isin": lambda x, i: jnp.isin(i, jnp.array([1, 2])),
    "argwhere": lambda x, i: jnp.argwhere(x > 0, size=3),
    "compress": lambda x, i: jnp.compress(i[:3] > 0, x, 0, size=2),
    "put_along_axis": lambda x, i: jnp.put_along_axis(
        x, jnp.abs(i[None, :1]) % 3, 9.0, 0, inplace=False
    ),
    "igamma": lambda x, i: lax.igamma(jnp.abs(x) + 0.5, jnp.abs(x[:1]) + 0.1),
    "igammac": lambda x, i: lax.igammac(jnp.abs(x) + 0.5, jnp.abs(x[:1])),
    "betainc": lambda x, i: lax.betainc(jnp.abs(x) + 1, jnp.abs(x) + 0.5, jax.nn.sigmoid(x)),
    "zeta": lambda x, i: lax.zeta(jnp.abs(x) + 1.5, jnp.abs(x) + 0.5),
    "polygamma": lambda x, i: lax.polygamma(jnp.ones_like(x), jnp.abs(x) + 1),
    "ndtr": lambda x, i: jax.scipy.special.ndtr(x),
    "ndtri": lambda x, i: jax.scipy.special.ndtri(jax.nn.sigmoid(x)),
    "xlogy": lambda x, i: jax.scipy.special.xlogy(x, jnp.abs(x)),
    "entr": lambda x, i: jax.scipy.special.entr(x),
    "segment_sum": lambda x, i: jax.ops.segment_sum(x, jnp.abs(i[:3]), 4),
    "segment_max": lambda x, i: jax.ops.segment_max(x, jnp.abs(i[:3]), 4),
    "packbits": lambda x, i: jnp.packbits(x > 0),
    "unpackbits": lambda x, i: jnp.unpackbits(i.astype(np.uint8)),
    "lexsort": lambda x, i: jnp.lexsort((x[0], x[1] > 0)),
    "fftshift": lambda x, i: jnp.fft.fftshift(x),
    "rfft_power": lambda x, i: jnp.abs(jnp.fft.rfft(x)) ** 2,
    "angle": lambda x, i: jnp.angle(x + 1j * x[:1]),
    "matrix_power": lambda x, i: jnp.linalg.matrix_power(x[:3, :3], 3),
    "vander": lambda x, i: jnp.vander(x[0]),
    "approx_max": lambda x, i: lax.approx_max_k(x, 2),
    "resize": lambda x, i: jax.image.resize(x, (6, 9), "bilinear"),
    "resize_nearest": lambda x, i: jax.image.resize(x, (5, 3), "nearest"),
    "map_coordinates": lambda x, i: jax.scipy.ndimage.map_coordinates(x, [x[0], x[1]], 1),
    "reduce_and": lambda x, i: jnp.bitwise_and.reduce(i),
    "ravel_multi_index": lambda x, i: jnp.ravel_multi_index((i, i + 1), (3, 4), mode="clip"),
    "unravel_index": lambda x, i: jnp.unravel_index(jnp.abs(i), (3, 4)),
    "vmap_gather": lambda x, i: jax.vmap(lambda row, k: row[k])(x, i[:3]),
    "vmap_update": lambda x, i: jax.vmap(lambda row, k: row.at[k].add(1.0))(x, i[:3]),
    "vmap_slice": lambda x, i: jax.vmap(lambda row, k: lax.dynamic_slice(row, (k,), (2,)))(
        x, i[:3]
    ),
    "hessian": lambda x, i: jax.hessian(lambda r: (jnp.sin(r) * r[0]).sum())(x[0]),
    "choose": lambda x, i: jnp.choose(jnp.abs(i[:5]) % 3, x[:, :5], mode="clip"),
    "extract": lambda x, i: jnp.extract(x > 0, x, size=3, fill_value=0),
}


def make_array_ops(seed: int) -> list[Case]:
    """Every program of jax.numpy and its neighbours above, on rows of 5 to 8 floats and five integers."""
    rng = np.random.default_rng(seed)
    cases = []
    for kind, function in _ARRAY_OPS.items():
        dtype = (F32, F32, F64)[rng.integers(3)]
        x = draw_numbers(rng, dtype, (3, int(rng.integers(5, 9))))
        i = rng.integers(-4, 5, 5).astype(np.int32)
        name = f"{kind} {dtype}{x.shape} {i}"
        cases.append(Case(name, function, (x, i), Error(256, True, floor=1e-3)))
    return cases


# ---- HLO that JAX does not write -----------------------------------------------------------------


def _list(numbers: Sequence[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def _show(dtype: np.dtype, shape: Sequence[int]) -> str:
    return f"{DType.of(dtype).value}[{','.join(map(str, shape))}]"


@st.composite
def texts(draw: Draw) -> TextCase:
    kind = pick(draw, tuple(_TEXTS))
    return _TEXTS[kind](draw, draw_rng(draw))


def _text_compare(draw: Draw, rng: np.random.Generator) -> TextCase:
    dtype = pick(draw, (*FLOATS, *INTEGERS))
    direction = pick(draw, ("EQ", "NE", "LT", "LE", "GT", "GE"))
    # The order of everything: also of the signs of NaN and zero.
    x, y = (draw_edges(rng, dtype, 60) for _ in range(2))
    y = np.where(rng.random(60) < 0.3, x, y)
    total = ", type=TOTALORDER" if dtype in FLOATS else ""
    line = f"$r = pred[60] compare($0, $1), direction={direction}{total}"
    return TextCase(f"{dtype} {line}", line, ("$r",), (x, y))


def _text_power(draw: Draw, rng: np.random.Generator) -> TextCase:
    dtype = pick(draw, INTEGERS)
    x, y = draw_edges(rng, dtype, 60), (draw_bits(rng, dtype, (60,)) & dtype.type(63)).astype(dtype)
    line = f"$r = {_show(dtype, (60,))} power($0, $1)"
    return TextCase(line, line, ("$r",), (x, y))


def _text_map(draw: Draw, rng: np.random.Generator) -> TextCase:
    dtype, shape = pick(draw, (F32, BF16, SIGNED[2])), draw_shape(draw, 1, 3, 4)
    x, y = (draw_numbers(rng, dtype, shape) for _ in range(2))
    scalar, whole = _show(dtype, ()), _show(dtype, shape)
    region = (
        f"$f {{ $a = {scalar} parameter(0)\n $b = {scalar} parameter(1)\n $c = {scalar} multiply($a, $b)\n"
        f" $d = pred[] compare($a, $b), direction=LT\n ROOT $e = {scalar} select($d, $c, $b) }}"
    )
    line = f"$r = {whole} map($0, $1), dimensions={_list(range(len(shape)))}, to_apply=$f"
    return TextCase(line, line, ("$r",), (x, y), regions=region)


def _text_sort(draw: Draw, rng: np.random.Generator) -> TextCase:
    """By the magnitude of the first, then descending by the second."""
    shape = draw_shape(draw, 1, 2, 12)
    axis = draw(st.integers(0, len(shape) - 1))
    x, y = rng.integers(-3, 4, shape).astype(F32), rng.integers(0, 3, shape).astype(np.int32)
    z = rng.integers(0, 100, shape).astype(np.int8)
    region = """$less { $a = f32[] parameter(0)
 $b = f32[] parameter(1)
 $c = s32[] parameter(2)
 $d = s32[] parameter(3)
 $e = s8[] parameter(4)
 $f = s8[] parameter(5)
 $g = f32[] abs($a)
 $h = f32[] abs($b)
 $i = pred[] compare($g, $h), direction=LT
 $j = pred[] compare($g, $h), direction=EQ
 $k = pred[] compare($c, $d), direction=GT
 $l = pred[] and($j, $k)
 ROOT $m = pred[] or($i, $l) }"""
    types = [_show(a.dtype, shape) for a in (x, y, z)]
    line = (
        f"$s = ({', '.join(types)}) sort($0, $1, $2), dimensions={{{axis}}}, is_stable=true, to_apply=$less\n"
        + "\n".join(f"$r{i} = {t} get-tuple-element($s), index={i}" for i, t in enumerate(types))
    )
    return TextCase(line, line, ("$r0", "$r1", "$r2"), (x, y, z), regions=region)


def _text_top_k(draw: Draw, rng: np.random.Generator) -> TextCase:
    dtype = pick(draw, (F32, BF16, SIGNED[2]))
    rows, n = draw(st.integers(1, 3)), draw(st.integers(1, 20))
    k = draw(st.integers(1, n))
    x = rng.permutation(rows * n).reshape(rows, n).astype(np.float32).astype(dtype)
    values, places = _show(dtype, (rows, k)), f"s32[{rows},{k}]"
    line = (
        f"$t = ({values}, {places}) topk($0), k={k}, largest={str(draw(st.booleans())).lower()}\n"
        f"$r = {values} get-tuple-element($t), index=0\n$i = {places} get-tuple-element($t), index=1"
    )
    return TextCase(line, line, ("$r", "$i"), (x,))


def _text_batch_norm(draw: Draw, rng: np.random.Generator) -> TextCase:
    kind = pick(draw, ("training", "inference", "grad"))
    shape = tuple(draw(st.integers(2, 5)) for _ in range(draw(st.integers(2, 4))))
    feature = draw(st.integers(0, len(shape) - 1))
    x, vector = _show(F32, shape), _show(F32, shape[feature : feature + 1])
    whole = [draw_numbers(rng, F32, shape) for _ in range(2)]
    scale, offset, mean, variance = (
        np.abs(draw_numbers(rng, F32, (shape[feature],))) + np.float32(0.1) for _ in range(4)
    )
    end = f"epsilon=0.01, feature_index={feature}"
    if kind == "inference":
        line = f"$r = {x} batch-norm-inference($0, $1, $2, $3, $4), {end}"
        return TextCase(line, line, ("$r",), (whole[0], scale, offset, mean, variance), SUM)
    operands, given = "$0, $1, $2", (whole[0], scale, offset)
    if kind == "grad":
        operands, given = "$0, $1, $2, $3, $4", (whole[0], scale, mean, variance, whole[1])  # type: ignore[assignment]
    line = f"$t = ({x}, {vector}, {vector}) batch-norm-{kind}({operands}), {end}\n" + "\n".join(
        f"$r{i} = {t} get-tuple-element($t), index={i}" for i, t in enumerate((x, vector, vector))
    )
    return TextCase(line, line, ("$r0", "$r1", "$r2"), given, Error(128, of_largest=True))


def _text_reduce_precision(draw: Draw, rng: np.random.Generator) -> TextCase:
    dtype = pick(draw, FLOATS)
    exponent, mantissa = draw(st.integers(2, 11)), draw(st.integers(0, 30))
    line = f"$r = {_show(dtype, (80,))} reduce-precision($0), exponent_bits={exponent}, mantissa_bits={mantissa}"
    return TextCase(line, line, ("$r",), (draw_edges(rng, dtype, 80),))


def _text_triangular_solve(draw: Draw, rng: np.random.Generator) -> TextCase:
    dtype, n, m = pick(draw, (F32, F64, *COMPLEX)), draw(st.integers(1, 6)), draw(st.integers(1, 4))
    batch = pick(draw, ((), (2,)))
    left, lower, unit = (draw(st.booleans()) for _ in range(3))
    transposed = pick(draw, ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"))
    a = draw_numbers(rng, dtype, (*batch, n, n)) * dtype.type(0.3) + np.eye(
        n, dtype=dtype
    ) * dtype.type(2)
    b = draw_numbers(rng, dtype, (*batch, *((n, m) if left else (m, n))))
    flags = ", ".join(
        f"{name}={str(value).lower()}"
        for name, value in (("left_side", left), ("lower", lower), ("unit_diagonal", unit))
    )
    line = (
        f"$r = {_show(dtype, b.shape)} triangular-solve($0, $1), {flags}, transpose_a={transposed}"
    )
    return TextCase(line, line, ("$r",), (a, b), Error(512, of_largest=True))


def _text_cholesky(draw: Draw, rng: np.random.Generator) -> TextCase:
    dtype, n = pick(draw, (F32, F64)), draw(st.integers(1, 6))
    a = draw_numbers(rng, dtype, (2, n, n))
    a = np.matmul(a, np.swapaxes(a, 1, 2)) + np.eye(n, dtype=dtype)
    flag = str(draw(st.booleans())).lower()
    # The other triangle of the result is unspecified.
    kept = "LE" if flag == "true" else "GE"
    shape = _show(dtype, a.shape)
    line = (
        f"$c = {shape} cholesky($0), lower={flag}\n$i = s32[2,{n},{n}] iota(), iota_dimension=2\n"
        f"$j = s32[2,{n},{n}] iota(), iota_dimension=1\n$k = pred[2,{n},{n}] compare($i, $j), direction={kept}\n"
        f"$z = {_show(dtype, ())} constant(0)\n$b = {shape} broadcast($z), dimensions={{}}\n"
        f"$r = {shape} select($k, $c, $b)"
    )
    return TextCase(line, line, ("$r",), (a,), Error(512, of_largest=True))


def _text_reduce(draw: Draw, rng: np.random.Generator) -> TextCase:
    """A region that is no plain op: the element of the largest magnitude; the first of equals."""
    dtype, shape = pick(draw, (F32, SIGNED[2], BF16)), draw_shape(draw, 1, 3, 6)
    kept = [d for d in range(len(shape)) if draw(st.booleans())]
    scalar = _show(dtype, ())
    region = (
        f"$f {{ $a = {scalar} parameter(0)\n $b = {scalar} parameter(1)\n $c = {scalar} abs($a)\n"
        f" $d = {scalar} abs($b)\n $e = pred[] compare($c, $d), direction=GE\n"
        f" ROOT $g = {scalar} select($e, $a, $b) }}"
    )
    gone = [d for d in range(len(shape)) if d not in kept]
    line = (
        f"$z = {scalar} constant(0)\n$r = {_show(dtype, [shape[d] for d in kept])} "
        f"reduce($0, $z), dimensions={_list(gone)}, to_apply=$f"
    )
    x = rng.permutation(math.prod(shape)).reshape(shape).astype(np.float32).astype(dtype)
    return TextCase(line, line, ("$r",), (x,), regions=region)


def _text_select_and_scatter(draw: Draw, rng: np.random.Generator) -> TextCase:
    shape = (draw(st.integers(3, 7)), draw(st.integers(3, 7)))
    windows = [
        (draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(0, 1))) for _ in shape
    ]
    counts = [
        (n + 2 * p - size) // stride + 1
        for n, (size, stride, p) in zip(shape, windows, strict=True)
    ]
    dtype = pick(draw, (F32, SIGNED[2]))
    scalar = _show(dtype, ())
    pair = f"$a = {scalar} parameter(0)\n $b = {scalar} parameter(1)\n"
    region = (
        f"$s {{ {pair} ROOT $c = pred[] compare($a, $b), direction=GE }}\n"
        f"$t {{ {pair} ROOT $c = {scalar} add($a, $b) }}"
    )
    window = " ".join(
        f"{key}={'x'.join(values)}"
        for key, values in (
            ("size", [str(w[0]) for w in windows]),
            ("stride", [str(w[1]) for w in windows]),
            ("pad", [f"{w[2]}_{w[2]}" for w in windows]),
        )
    )
    line = (
        f"$z = {scalar} constant(0)\n$r = {_show(dtype, shape)} select-and-scatter($0, $1, $z), "
        f"window={{{window}}}, select=$s, scatter=$t"
    )
    x = rng.permutation(math.prod(shape)).reshape(shape).astype(dtype)
    return TextCase(line, line, ("$r",), (x, draw_numbers(rng, dtype, counts)), SUM if dtype == F32 else EXACT,
                    region)  # fmt: skip


_TEXTS = {
    "compare": _text_compare, "power": _text_power, "map": _text_map, "sort": _text_sort, "topk": _text_top_k,
    "batch-norm": _text_batch_norm, "reduce-precision": _text_reduce_precision, "reduce": _text_reduce,
    "triangular-solve": _text_triangular_solve, "cholesky": _text_cholesky,
    "select-and-scatter": _text_select_and_scatter,
}  # fmt: skip
