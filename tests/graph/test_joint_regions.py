"""Joint reductions: the regions join states as one pass over all elements would, whatever the split and the order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from graphs import GraphBuilder, arg_max_combiner, combiner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from astitch.graph.check import check_graph
from astitch.graph.ir import DType, Graph
from astitch.graph.joint_regions import (
    EXPONENTIALS,
    MOMENTS,
    exponentials_region,
    joint_kind,
    moments_region,
)
from astitch.graph.ops import monoid_of
from astitch.graph.reference import run_graph

State = tuple[float, ...]

WIDTH = {MOMENTS: 4, EXPONENTIALS: 2}
IDENTITY = {MOMENTS: (0.0, 0.0, 0.0, 0.0), EXPONENTIALS: (-math.inf, 0.0)}
REGION = {
    (kind, dtype): make(dtype)
    for kind, make in ((MOMENTS, moments_region), (EXPONENTIALS, exponentials_region))
    for dtype in (DType.F32, DType.F64)
}


def join(region: Graph, a: State, b: State) -> State:
    dtype = region[region.parameters[0]].dtype.numpy
    with np.errstate(all="ignore"):
        results = run_graph(region, [np.asarray(v, dtype) for v in (*a, *b)])
    return tuple(float(r) for r in results)


def element(kind: str, x: float) -> State:
    return (1.0, x, 0.0, 0.0) if kind == MOMENTS else (x, 1.0)


def fold(kind: str, values: Sequence[float], dtype: DType = DType.F64) -> State:
    """Joined one by one, from the identity."""
    state = IDENTITY[kind]
    for value in values:
        state = join(REGION[kind, dtype], state, element(kind, value))
    return state


def halve(kind: str, values: Sequence[float], dtype: DType = DType.F64) -> State:
    """Joined as a tree."""
    if not values:
        return IDENTITY[kind]
    if len(values) == 1:
        return element(kind, values[0])
    middle = len(values) // 2
    left, right = (halve(kind, part, dtype) for part in (values[:middle], values[middle:]))
    return join(REGION[kind, dtype], left, right)


@pytest.mark.parametrize(("kind", "dtype"), REGION)
def test_regions_are_legal_and_recognised(kind: str, dtype: DType) -> None:
    region = check_graph(REGION[kind, dtype])
    assert len(region.parameters) == 2 * len(region.outputs) == 2 * WIDTH[kind]
    assert joint_kind(region) == kind
    assert monoid_of(region) is None
    assert all(node.dtype in (dtype, DType.PRED) for node in region)


def test_other_regions_are_not_joint() -> None:
    assert joint_kind(combiner("add", DType.F32)) == ""
    assert joint_kind(arg_max_combiner(DType.F32, DType.S32)) == ""
    g = GraphBuilder()  # the exponentials without their rescaling
    a, s, b, t = (g.parameter("f32[]") for _ in range(4))
    assert joint_kind(g.build(g.same("maximum", a, b), g.same("add", s, t))) == ""


VALUES = st.lists(st.floats(-50, 50, width=32), max_size=12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(VALUES)
@example([])
def test_moments_are_those_of_numpy(values: list[float]) -> None:
    for count, total, lost, spread in (fold(MOMENTS, values), halve(MOMENTS, values)):
        assert count == len(values)
        wanted = np.mean(values) if values else 0.0
        assert total + lost == math.fsum(values)
        assert spread == pytest.approx(float(np.sum((np.array(values) - wanted) ** 2)), abs=1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(VALUES)
@example([])
def test_exponentials_are_those_of_numpy(values: list[float]) -> None:
    for largest, total in (fold(EXPONENTIALS, values), halve(EXPONENTIALS, values)):
        assert largest == max(values, default=-math.inf)
        wanted = float(np.sum(np.exp(np.array(values) - largest))) if values else 0.0
        assert total == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(("kind", "dtype"), REGION)
@pytest.mark.parametrize("x", [-3.5, 0.0, 2.0**70])
def test_the_identity_changes_nothing(kind: str, dtype: DType, x: float) -> None:
    region, identity = REGION[kind, dtype], IDENTITY[kind]
    one = tuple(float(np.asarray(v, dtype.numpy)) for v in element(kind, x))
    assert join(region, one, identity) == one
    assert join(region, identity, one) == one
    assert join(region, identity, identity) == identity


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ([-math.inf] * 3, (-math.inf, 3.0)),
        ([math.inf, 1.0], (math.inf, 1.0)),
        ([1.0, math.inf, -math.inf], (math.inf, 1.0)),
        ([math.inf, math.inf], (math.inf, 2.0)),
        ([-math.inf, 2.0], (2.0, 1.0)),
        ([2.0**100, -(2.0**100)], (2.0**100, 1.0)),
    ],
)
def test_infinities_count_where_they_are_the_largest(values: list[float], state: State) -> None:
    """exp(x - max) of an equal max counts 1, also where the difference would be NaN."""
    assert fold(EXPONENTIALS, values, DType.F32) == state
    assert halve(EXPONENTIALS, values, DType.F32) == state


def test_a_nan_stays() -> None:
    for values in ([math.nan, 1.0], [1.0, math.nan], [-math.inf, math.nan, math.inf]):
        assert all(math.isnan(v) for v in fold(EXPONENTIALS, values))
        _, total, _, spread = fold(MOMENTS, values)
        assert math.isnan(total) and math.isnan(spread)


@pytest.mark.parametrize("size", [math.inf, -math.inf])
@pytest.mark.parametrize("place", range(4))
def test_infinities_add_up(size: float, place: int) -> None:
    """Whatever comes before and after; no variance is left."""
    values = [1.0, -2.0, 3.0]
    values.insert(place, size)
    for state in (fold, halve):
        _, total, _, spread = state(MOMENTS, [*values, size], DType.F32)
        assert total == size and math.isnan(spread)
        _, total, _, spread = state(MOMENTS, [*values, -size], DType.F32)
        assert math.isnan(total) and math.isnan(spread)


@pytest.mark.parametrize("value", [0.0, 1 / 3, -1e6, 1e32, 1e-45])
def test_one_value_again_and_again_has_no_variance(value: float) -> None:
    x = float(np.float32(value))
    for count in (1, 2, 3, 7, 100):
        for state in (fold, halve):
            found, total, lost, spread = state(MOMENTS, [x] * count, DType.F32)
            assert (found, total + lost, spread) == (count, count * x, 0)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("size", [0, 1e4, 1e6, 1e7])
def test_a_large_mean_does_not_swallow_the_variance(dtype: DType, size: float) -> None:
    """E[x^2] - E[x]^2 in f32 would be off by more than 1 here; a mean of one f32 by up to half of its last place."""
    scale = 1000 if dtype is DType.F64 else 1
    values = np.random.default_rng(5).normal(size * scale + 0.3, 1, 400).astype(dtype.numpy)
    wide = values.astype(np.longdouble)
    eps = float(np.finfo(dtype.numpy).eps)
    for state in (fold, halve):
        _, total, lost, spread = state(MOMENTS, [float(v) for v in values], dtype)
        exact = np.sum((wide - wide.mean()) ** 2)
        assert abs(spread - exact) <= 8 * eps * exact
        assert abs((np.longdouble(total) + lost) - wide.sum()) <= 1e-6
