"""The kernels of attention, interpreted: what attention's ops mean, for random shapes, masks, layouts and types."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astitch.graph.ir import ArrayType, AttentionAttrs, DType, Node, Order, TupleType
from astitch.graph.ops.attention import (
    ARRAYS,
    COMPARISONS,
    has_two_statistics,
    meanings_of_attention,
    meanings_of_gradient,
)
from astitch.hlo.tiled_attention import describe_shape
from astitch.tile.attention import (
    write_forward,
    write_forward_of_parts,
    write_gradient_of_bias,
    write_gradient_of_keys,
    write_gradient_of_queries,
    write_join,
)
from astitch.tile.attention_shape import Tiling
from astitch.tile.interpret import interpret
from astitch.tile.triton_ir import write_triton_ir

TOLERANCES = {DType.F32: 2e-6, DType.BF16: 1.5e-2, DType.F16: 2e-3}
TF32 = 3e-3


FULL = AttentionAttrs(0.3, False, 0, *[(0, 1, 2, 3)] * 3, "tf32x3")
SMALL = Tiling(16, 16, 4, 2)


@dataclass(frozen=True)
class Case:
    """extents: batch, heads, groups, queries, keys, features."""

    extents: tuple[int, int, int, int, int, int]
    values: int = 0
    attrs: AttentionAttrs = FULL
    dtype: DType = DType.F32
    arrays: tuple[tuple[str, DType, tuple[bool, bool, bool, bool]], ...] = ()
    tiling: Tiling = SMALL
    kept: float = 0.5

    def draw(self) -> list[np.ndarray]:
        """q, k, v, do and the arrays of scores: of each its name, type, and along which dimensions it varies."""
        batch, heads, groups, queries, keys, features = self.extents
        values = self.values or features
        random = np.random.default_rng(0)

        def normal(order: Order, *extents: int) -> np.ndarray:
            shape = tuple(extents[order.index(d)] for d in range(4))
            return random.standard_normal(shape).astype(self.dtype.numpy)

        a = self.attrs
        arrays = [
            normal(a.q, batch, heads, queries, features),
            normal(a.k, batch, groups, keys, features),
            normal(a.v, batch, groups, keys, values),
            normal(a.q, batch, heads, queries, values),
        ]
        for name, dtype, varies in self.arrays:
            whole = (batch, heads, queries, 1 if name == "sink" else keys)
            shape = tuple(n if v else 1 for n, v in zip(whole, varies, strict=True))
            if dtype is DType.PRED:
                arrays.append(random.random(shape) < self.kept)
            elif dtype is DType.S32:
                arrays.append(random.integers(0, 3, shape).astype(np.int32))
            else:
                arrays.append(random.standard_normal(shape).astype(dtype.numpy))
        return arrays


def type_of(array: np.ndarray) -> ArrayType:
    return ArrayType(next(d for d in DType if d.numpy == array.dtype), array.shape)


def check(case: Case) -> None:
    q, k, v, do, *arrays = case.draw()
    batch, heads, groups, queries, *_ = case.extents
    attrs = replace(case.attrs, arrays=tuple(name for name, *_ in case.arrays))
    twice = (2,) if has_two_statistics(attrs) else ()
    rows = ArrayType(DType.F32, (*twice, batch, heads, queries))
    types = [type_of(x) for x in (q, k, v)]
    node = Node("a", "attention", TupleType((type_of(do), rows)), ("q", "k", "v"), attrs)
    shape = describe_shape(node, [*types, *map(type_of, arrays)])
    wanted = meanings_of_attention(node, q, k, v, *arrays)
    by_kernel = interpret(write_forward(shape, case.tiling), [q, k, v, *arrays])
    bound = TOLERANCES[case.dtype]
    if case.dtype is DType.F32 and case.attrs.tiles == "tf32":
        bound = TF32
    compare(by_kernel, wanted, bound)
    if not (attrs.causal or shape.drop):
        parts = replace(shape, share=case.tiling.keys)
        sums = interpret(write_forward_of_parts(parts, case.tiling), [q, k, v, *arrays])
        sinks = arrays[-1:] if shape.sink else []
        compare(interpret(write_join(parts, case.tiling), [*sums, *sinks]), wanted, bound)
    o, statistics = (x.reshape(t.shape) for x, t in zip(by_kernel, (do, rows), strict=True))
    delta = (do.astype(np.float32) * o.astype(np.float32)).transpose(case.attrs.q).sum(-1)
    if shape.sink:
        arrays, attrs = arrays[:-1], replace(attrs, arrays=attrs.arrays[:-1])
    if shape.has_empty_rows:
        empty = (~np.isfinite(statistics)).reshape(batch, groups, -1).any(-1)[..., None, None]
        arrays, attrs = [*arrays, empty], replace(attrs, arrays=(*attrs.arrays, "empty"))
    given = [q, k, v, statistics, do, delta, *arrays]
    shape = describe_shape(
        replace(node, op="attention-gradient", attrs=attrs), list(map(type_of, given))
    )
    dq, *beside = interpret(write_gradient_of_queries(shape, case.tiling), given)
    dk, dv = interpret(write_gradient_of_keys(shape, case.tiling), given)
    gradients = meanings_of_gradient(node, q, k, v, statistics, do, delta, *case.draw()[4:])
    found = [dq, dk, dv, *beside]
    if attrs.gives == "bias":
        found += interpret(write_gradient_of_bias(shape, case.tiling), given)
    compare(found, gradients, 2 * bound, terms=batch * heads * queries)


def compare(found, wanted, bound: float, terms: int = 1) -> None:
    """terms: so many are added up, which keep their errors where they cancel."""
    for one, other in zip(found, wanted, strict=True):
        x, y = one.astype(np.float64).reshape(-1), other.astype(np.float64).reshape(-1)
        infinite = ~np.isfinite(y)  # of rows without a score
        np.testing.assert_array_equal(x[infinite], y[infinite])
        assert np.isfinite(x[~infinite]).all()
        x, y = x[~infinite], y[~infinite]
        distance, size = np.linalg.norm(x - y), np.linalg.norm(y)
        assert distance <= bound * max(size, np.sqrt(y.size * terms)), (distance, size)


ORDERS = tuple(itertools.permutations(range(4)))


@st.composite
def cases(draw) -> Case:
    groups, shared = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    keys = draw(st.integers(1, 40))
    dtype = draw(st.sampled_from((DType.F32, DType.F32, DType.BF16, DType.F16)))
    causal = draw(st.booleans())
    # With a window rows beyond the keys have no score.
    window = draw(st.integers(0, 20)) if causal else 0
    queries = draw(st.integers(1, keys if window else 40))
    varies = st.tuples(*[st.booleans()] * 4)
    arrays = []
    if draw(st.booleans()):
        arrays.append(("bias", draw(st.sampled_from((DType.F32, dtype))), draw(varies)))
        if draw(st.booleans()):
            arrays.append(("other-bias", draw(st.sampled_from((DType.F32, dtype))), draw(varies)))
    if not (arrays and causal):
        for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
            arrays.append(("mask", DType.PRED, draw(varies)))
        for direction in draw(st.sets(st.sampled_from(sorted(COMPARISONS)), max_size=2)):
            left, right = draw(varies), draw(varies)
            arrays.append((direction, DType.S32, (*left[:3], False)))
            arrays.append((direction, DType.S32, (*right[:2], False, right[3])))
    arrays.sort(key=lambda array: ARRAYS.index(array[0]))
    if draw(st.booleans()):
        arrays.append(("drop", draw(st.sampled_from((DType.F32, DType.PRED))), draw(varies)))
    if draw(st.booleans()):
        arrays.append(("sink", DType.F32, (*draw(varies)[:3], False)))
    orders = [draw(st.sampled_from(ORDERS)) for _ in range(3)]
    tiles = draw(st.sampled_from(("tf32", "tf32x3")))
    cap = draw(st.sampled_from((0.0, 0.0, 0.8)))
    gain = 1.25 if any(name == "drop" for name, *_ in arrays) else 0.0
    passes = draw(st.booleans())
    low = draw(st.sampled_from((-1e9, -30.0, -np.inf)))
    if any(array[:2] == ("drop", DType.PRED) for array in arrays):
        low = -1e9  # rows of which all is dropped out are 0, not NaN, where the formula says so by a condition
    if not (arrays and arrays[0][0] == "bias"):
        low = draw(st.sampled_from((low, np.inf)))
    first = draw(st.booleans())
    # All elements of a bias along queries and keys have a gradient.
    sums = bool(arrays) and arrays[0][0] == "bias" and all(arrays[0][2][2:])
    gives = draw(st.sampled_from(("", "scores", *(["bias"] if sums else []))))
    attrs = AttentionAttrs(
        0.3, causal, window, *orders, tiles, passes, cap, gain, (), low, first, gives
    )
    extents = (draw(st.integers(1, 2)), groups * shared, groups, queries, keys)
    return Case(
        (*extents, draw(st.integers(1, 20))),
        draw(st.integers(1, 20)),
        attrs,
        dtype,
        tuple(arrays),
        Tiling(draw(st.sampled_from((16, 32))), draw(st.sampled_from((16, 32))), 4, 2),
        draw(st.sampled_from((0.1, 0.5, 0.9))),
    )


@settings(max_examples=60, deadline=None)
@given(cases())
def test_kernels_compute_what_the_ops_mean(case: Case) -> None:
    check(case)


def test_rows_without_a_score_have_equal_probabilities() -> None:
    """Their gradient is 0 but for v's, or that of equal probabilities."""
    for passes in (False, True):
        attrs = AttentionAttrs(0.3, False, 0, *[(0, 2, 1, 3)] * 3, "tf32x3", passes)
        check(
            Case(
                (2, 2, 1, 20, 24, 8),
                attrs=attrs,
                arrays=(("mask", DType.PRED, (True, False, True, False)),),
            )
        )


def test_large_scores_keep_their_maximum() -> None:
    """Scores of some hundreds: exponentials of them are not finite."""
    attrs = AttentionAttrs(100.0, True, 0, *[(0, 1, 2, 3)] * 3, "tf32x3")
    q, k, v, _ = (case := Case((1, 2, 2, 40, 40, 8), attrs=attrs)).draw()
    node = Node(
        "a",
        "attention",
        TupleType((type_of(q), ArrayType(DType.F32, (1, 2, 40)))),
        ("q", "k", "v"),
        attrs,
    )
    shape = describe_shape(node, [type_of(x) for x in (q, k, v)])
    found = interpret(write_forward(shape, case.tiling), [q, k, v])
    compare(found, meanings_of_attention(node, q, k, v), 1e-4)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_no_number_stays_in_its_row(number: float) -> None:
    case = Case((1, 1, 1, 20, 20, 8))
    q, k, v, _ = case.draw()
    q[0, 0, 3, 2] = number
    node = Node(
        "a",
        "attention",
        TupleType((type_of(q), ArrayType(DType.F32, (1, 1, 20)))),
        ("q", "k", "v"),
        case.attrs,
    )
    shape = describe_shape(node, [type_of(x) for x in (q, k, v)])
    o, _ = interpret(write_forward(shape, case.tiling), [q, k, v])
    bad = np.isnan(o.reshape(20, 8)).all(1)
    assert list(np.flatnonzero(bad)) == [3]
    assert np.isfinite(np.delete(o.reshape(20, 8), 3, 0)).all()


def test_the_text_of_a_kernel_is_that_of_its_program() -> None:
    """One line for each statement at least, and as many loops, products and stores as the program has."""
    case = Case((1, 2, 1, 20, 24, 8))
    q, k, v, do = case.draw()
    node = Node(
        "a",
        "attention",
        TupleType((type_of(do), ArrayType(DType.F32, (1, 2, 20)))),
        ("q", "k", "v"),
        case.attrs,
    )
    shape = describe_shape(node, [type_of(x) for x in (q, k, v)])
    for write, products, stores in (
        (write_forward, 2, 2),
        (write_gradient_of_keys, 4, 2),
        (write_gradient_of_queries, 3, 1),
    ):
        text = write_triton_ir(write(shape, case.tiling))
        assert text.count("tt.dot ") == products
        assert text.count("tt.store ") == stores
        assert text.count("scf.for ") == 1
        assert text.count("inputPrecision = tf32x3") == products
