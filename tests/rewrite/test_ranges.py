"""What integers lie between: against every value that they may have, and where bounds of indices always hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from graphs import GraphBuilder, combiner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

from astitch.graph.check import check_graph
from astitch.graph.ir import DimensionsAttrs, DType, DynamicSliceAttrs, Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.draft import Draft
from astitch.rewrite.ranges import Range, find_range, has_range
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower

_FUZZ = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def ranges_of(graph: Graph) -> dict[str, Range]:
    """Of every integer and truth value, as the graph stands: no rule changes a node."""
    draft = Draft(graph, lambda rule, node: None, lambda op: ())
    for node in graph:
        draft.nodes[node.name] = node
    return {node.name: find_range(draft, node.name) for node in graph if has_range(node)}


def run_all(graph: Graph, arguments: list[np.ndarray]) -> dict[str, np.ndarray]:
    names = [node.name for node in graph if has_range(node)]
    every = Graph(graph.name, graph.nodes, graph.parameters, tuple(names))
    return dict(zip(names, run_graph(every, arguments), strict=True))


# ---- one op, for all pairs of 8 bits: the interval is the least one, or holds all results

EXACT = {
    "add": lambda g, x, y: g.same("add", x, y),
    "subtract": lambda g, x, y: g.same("subtract", x, y),
    "multiply": lambda g, x, y: g.same("multiply", x, y),
    "maximum": lambda g, x, y: g.same("maximum", x, y),
    "minimum": lambda g, x, y: g.same("minimum", x, y),
    "clamp": lambda g, x, y: g.same("clamp", y, x, x),
    "lt": lambda g, x, y: g.compare("LT", x, y),
    "le": lambda g, x, y: g.compare("LE", x, y),
    "gt": lambda g, x, y: g.compare("GT", x, y),
    "ge": lambda g, x, y: g.compare("GE", x, y),
    "eq": lambda g, x, y: g.compare("EQ", x, y),
    "ne": lambda g, x, y: g.compare("NE", x, y),
    "not": lambda g, x, y: g.same("not", x),
    "negate": lambda g, x, y: g.same("negate", x),
    "abs": lambda g, x, y: g.same("abs", x),
    "sign": lambda g, x, y: g.same("sign", x),
    "to pred": lambda g, x, y: g.convert(x, "pred"),
    "to s32": lambda g, x, y: g.convert(x, "s32"),
}
SOUND = {
    "divide": lambda g, x, y: g.same("divide", x, y),
    "remainder": lambda g, x, y: g.same("remainder", x, y),
    "and": lambda g, x, y: g.same("and", x, y),
    "or": lambda g, x, y: g.same("or", x, y),
    "xor": lambda g, x, y: g.same("xor", x, y),
    "shift-left": lambda g, x, y: g.same("shift-left", x, y),
    "shift-right-logical": lambda g, x, y: g.same("shift-right-logical", x, y),
    "shift-right-arithmetic": lambda g, x, y: g.same("shift-right-arithmetic", x, y),
    "popcnt": lambda g, x, y: g.same("popcnt", x),
    "clz": lambda g, x, y: g.same("count-leading-zeros", x),
    "to other 8 bits": lambda g, x, y: g.convert(x, "u8" if g.array(x).dtype.is_signed else "s8"),
}


@pytest.mark.parametrize("dtype", ["s8", "u8"])
@pytest.mark.parametrize("name", [*EXACT, *SOUND])
@settings(_FUZZ, max_examples=8)
@given(data=st.data())
def test_an_op_of_two_intervals(name: str, dtype: str, data: st.DataObject) -> None:
    limits = np.iinfo(DType(dtype).numpy)
    numbers = st.integers(int(limits.min), int(limits.max))
    small = st.integers(max(int(limits.min), -9), 9)
    ends = [sorted(data.draw(st.tuples(e, e))) for e in (numbers | small, numbers | small)]
    if dtype == "u8" and name in ("negate", "abs", "sign"):
        return
    g = GraphBuilder()
    given_: list[np.ndarray] = []
    operands = []
    values = [np.arange(low, high + 1) for low, high in ends]
    pairs = np.array(list(itertools.product(*values)))
    for (low, high), column in zip(ends, pairs.T, strict=True):
        x = g.parameter(f"{dtype}[{len(pairs)}]")
        shape = f"{dtype}[{len(pairs)}]"
        operands.append(g.same("clamp", g.splat(low, shape), x, g.splat(high, shape)))
        given_.append(column.astype(limits.dtype))
    make = EXACT.get(name) or SOUND[name]
    result = make(g, *operands)
    graph = check_graph(g.build(result))
    found = ranges_of(graph)[result].whole
    (value,) = run_graph(graph, given_)
    least, most = int(value.min()), int(value.max())
    assert found.low <= least
    assert most <= found.high
    exact = name in EXACT
    whole = graph[result].dtype.is_integer and (found.low, found.high) == _ends(graph[result].dtype)
    assert not exact or whole or (found.low, found.high) == (least, most)


def _ends(dtype: Any) -> tuple[int, int]:
    limits = np.iinfo(dtype.numpy)
    return int(limits.min), int(limits.max)


# ---- vectors of indices, as programs make them


@st.composite
def index_graphs(draw: st.DrawFn) -> Graph:
    """Small vectors, each op on what is there; parameters may be anything."""
    g = GraphBuilder()
    dtype = draw(st.sampled_from(["s8", "u8", "s32", "s64", "u64"]))
    limits = np.iinfo(DType(dtype).numpy)
    numbers = st.integers(int(limits.min), int(limits.max)) | st.integers(0, 5)
    n = draw(st.integers(1, 4))
    vectors = [g.parameter(f"{dtype}[{n}]"), g.iota(f"{dtype}[{n}]", 0)]
    vectors.append(g.constant(draw(st.lists(numbers, min_size=n, max_size=n)), dtype))
    truths = [g.constant(draw(st.lists(st.booleans(), min_size=n, max_size=n)), "pred")]
    number, truth = st.sampled_from(vectors), st.sampled_from(truths)

    def shuffle(x: str, array: str) -> str:
        """Through other shapes, and back."""
        way = draw(st.sampled_from(["concatenate", "pad", "reverse", "reshape", "slice", "repeat"]))
        if way == "concatenate":
            at = draw(st.integers(0, n))
            pieces = [g.slice(x, [at], [n]), g.slice(x, [0], [at])]
            return g.concatenate(pieces, 0)
        if way == "pad":
            value = g.constant(draw(numbers), dtype) if array == dtype else g.constant(True, "pred")
            low = draw(st.integers(0, 2))
            return g.slice(g.pad(x, value, [low], [1], [1]), [0], [n])
        if way == "reverse":
            return g.reverse(x, (0,))
        if way == "reshape":
            row = g.reshape(x, (1, n))
            return g.reshape(g.transpose(row, (1, 0)), (n,))
        if way == "slice":
            at = draw(st.integers(0, n - 1))
            return g.broadcast(g.reshape(g.slice(x, [at], [at + 1]), ()), (n,))
        wide = g.broadcast(x, (n, 70), (0,))  # one interval for all
        return g.slice(g.reshape(wide, (n * 70,)), [0], [n])

    for _ in range(draw(st.integers(3, 12))):
        kind = draw(
            st.sampled_from(["two", "clamp", "compare", "select", "truths", "move", "reduce"])
        )
        if kind == "two":
            names = ["add", "subtract", "multiply", "maximum", "minimum", "remainder", "divide"]
            names += ["and", "or", "shift-right-logical", "shift-right-arithmetic"]
            vectors.append(g.same(draw(st.sampled_from(names)), draw(number), draw(number)))
        elif kind == "clamp":
            vectors.append(g.same("clamp", draw(number), draw(number), draw(number)))
        elif kind == "compare":
            way = draw(st.sampled_from(["LT", "LE", "GT", "GE", "EQ", "NE"]))
            truths.append(g.compare(way, draw(number), draw(number)))
        elif kind == "select":
            vectors.append(g.same("select", draw(truth), draw(number), draw(number)))
        elif kind == "truths":
            truths.append(g.same(draw(st.sampled_from(["and", "or"])), draw(truth), draw(truth)))
            truths.append(g.same("not", draw(truth)))
        elif kind == "move":
            vectors.append(shuffle(draw(number), dtype))
            truths.append(shuffle(draw(truth), "pred"))
        else:
            for of, type_, ways in (
                (number, dtype, ["add", "maximum", "minimum"]),
                (truth, "pred", ["and", "or"]),
            ):
                way = draw(st.sampled_from(ways))
                total = g.op(
                    "reduce",
                    f"{type_}[]",
                    draw(of),
                    g.constant(draw(st.booleans()) if type_ == "pred" else draw(numbers), type_),
                    attrs=DimensionsAttrs((0,)),
                    regions=[
                        combiner(way, g.array(vectors[0] if type_ == dtype else truths[0]).dtype)
                    ],
                )
                (vectors if type_ == dtype else truths).append(g.broadcast(total, (n,)))
    return g.build(vectors[-1], truths[-1])


@_FUZZ
@given(index_graphs(), st.integers(0, 999))
def test_every_value_lies_in_its_range(graph: Graph, seed: int) -> None:
    check_graph(graph)
    found = ranges_of(graph)
    shape, dtype = graph[graph.parameters[0]].shape, graph[graph.parameters[0]].dtype.numpy
    limits = np.iinfo(dtype)
    random = np.random.default_rng(seed)
    for turn in range(12):
        argument = random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        if turn < 3:
            argument = np.full(shape, (limits.min, limits.max, 0)[turn], dtype)
        for name, value in run_all(graph, [argument]).items():
            numbers = (value * 1).astype(object)  # a truth value is a number
            assert np.all(found[name].low <= numbers), graph[name]
            assert np.all(numbers <= found[name].high), graph[name]


@_FUZZ
@given(index_graphs(), st.integers(0, 999))
def test_what_is_decided_is_so(graph: Graph, seed: int) -> None:
    shape, dtype = graph[graph.parameters[0]].shape, graph[graph.parameters[0]].dtype.numpy
    limits = np.iinfo(dtype)
    argument = np.random.default_rng(seed).integers(limits.min, limits.max, shape, dtype)
    simple = check_graph(simplify(graph))
    for got, wanted in zip(
        run_graph(simple, [argument]), run_graph(graph, [argument]), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)
    assert str(simplify(simple)) == str(simple)


# ---- bounds that always hold, in the spellings of programs

CACHE = (3, 8, 2)
STEP = (3, 1, 2)


def by_one_vector(cache: Any, new: Any, place: Any) -> Any:
    """As XLA writes a scatter of one slice out whose start was held inside."""
    limits = jnp.array([cache.shape[1] - 1, 0], place.dtype)
    start = lax.clamp(jnp.zeros(2, place.dtype), jnp.pad(place[None], (0, 1)), limits)
    start = jnp.concatenate([jnp.zeros(1, place.dtype), start])
    most = jnp.array([cache.shape[0] - 3, cache.shape[1] - 1, 0], place.dtype)
    inside = jnp.logical_and(start >= 0, start <= most).all()
    old = lax.dynamic_slice(cache, tuple(start), STEP)
    return lax.dynamic_update_slice(cache, jnp.where(inside, new, old), tuple(start))


def by_scalars(cache: Any, new: Any, place: Any) -> Any:
    last = jnp.array(cache.shape[1] - 1, place.dtype)
    at = jnp.minimum(jnp.maximum(place, 0), last)
    inside = ~((at < 0) | (at > last))
    zero = jnp.zeros((), place.dtype)
    old = lax.dynamic_slice(cache, (zero, at, zero), STEP)
    new = lax.select(jnp.broadcast_to(inside, STEP), new, old)
    return lax.dynamic_update_slice(cache, new, (zero, at, zero))


def by_a_remainder(cache: Any, new: Any, place: Any) -> Any:
    """A ring."""
    at = lax.rem(jnp.maximum(place, 0), jnp.array(cache.shape[1], place.dtype))
    inside = (at >= 0) & (at < cache.shape[1])
    zero = jnp.zeros((), at.dtype)
    old = lax.dynamic_slice(cache, (zero, at, zero), STEP)
    return lax.dynamic_update_slice(cache, jnp.where(inside, new, old), (zero, at, zero))


def from_the_end(cache: Any, new: Any, place: Any) -> Any:
    """Kept in the lower half by a shift, then counted from the end."""
    half = jnp.clip(place, 0, 2 * cache.shape[1] - 1) >> 1
    at = (cache.shape[1] - 1) - half
    inside = jnp.stack([at >= 0, at <= cache.shape[1] - 1]).min()
    zero = jnp.zeros((), at.dtype)
    old = lax.dynamic_slice(cache, (zero, at, zero), STEP)
    return lax.dynamic_update_slice(cache, jnp.where(inside, new, old), (zero, at, zero))


SPELLINGS = [by_one_vector, by_scalars, by_a_remainder, from_the_end]


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint32])
@pytest.mark.parametrize("write", SPELLINGS)
def test_an_update_whose_bounds_hold_reads_nothing_old(
    write: Callable[..., Any], dtype: Any
) -> None:
    random = np.random.default_rng(0)
    cache, new = random.standard_normal(CACHE), random.standard_normal(STEP)
    limits = np.iinfo(dtype)
    for place in (5, 0, 100, int(limits.max), int(limits.min), int(limits.max) - 3):
        given_ = [cache.astype(np.float32), new.astype(np.float32), np.asarray(place, dtype)]
        graph = import_hlo(lower(write, *given_))
        simple = simplify(graph)
        assert "dynamic-slice" not in [node.op for node in simple]
        for got, wanted in zip(run_graph(simple, given_), run_graph(graph, given_), strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("first", [0, 1])
def test_bounds_that_may_fail_stay(first: int) -> None:
    """One place too far, or none below zero held back."""

    def write(cache: Any, new: Any, place: Any) -> Any:
        at = jnp.minimum(place, 7) if first else jnp.clip(place, 0, 8)
        inside = (at >= 0) & (at <= 7)
        old = lax.dynamic_slice(cache, (0, at, 0), STEP)
        return lax.dynamic_update_slice(cache, jnp.where(inside, new, old), (0, at, 0))

    given_ = [np.zeros(CACHE, np.float32), np.ones(STEP, np.float32), np.asarray(3, np.int32)]
    graph = simplify(import_hlo(lower(write, *given_)))
    assert "dynamic-slice" in [node.op for node in graph]


def test_a_sum_that_wraps_is_anything() -> None:
    g = GraphBuilder()
    x = g.same("maximum", g.parameter("s32[]"), g.constant(0, "s32"))
    graph = g.build(g.compare("GE", g.same("add", x, g.constant(1, "s32")), g.constant(0, "s32")))
    assert "compare" in [node.op for node in simplify(graph)]
    most = np.asarray(np.iinfo(np.int32).max, np.int32)
    assert not run_graph(simplify(graph), [most])[0]


def test_an_index_of_an_iota_is_the_index() -> None:
    """A scan over jnp.arange: the turn's number, held inside."""
    g = GraphBuilder()
    i = g.parameter("s32[]")
    at = g.op("dynamic-slice", "s32[1]", g.iota("s32[6]", 0), i, attrs=DynamicSliceAttrs((1,)))
    graph = g.build(at)
    simple = simplify(graph)
    assert [node.op for node in simple if node.op in ("iota", "dynamic-slice")] == []
    for value in (-3, 0, 4, 5, 6, 2**31 - 1):
        np.testing.assert_array_equal(
            run_graph(simple, [np.int32(value)]), [[min(max(value, 0), 5)]]
        )


@pytest.mark.parametrize(("index", "element", "extent"), [("s8", "s32", 300), ("s32", "s8", 300)])
def test_an_iota_that_its_types_do_not_count_is_sliced(
    index: str, element: str, extent: int
) -> None:
    g = GraphBuilder()
    attrs = DynamicSliceAttrs((1,))
    iota = g.iota(f"{element}[{extent}]", 0)
    at = g.op("dynamic-slice", f"{element}[1]", iota, g.parameter(f"{index}[]"), attrs=attrs)
    assert "dynamic-slice" in [node.op for node in simplify(g.build(at))]


def test_a_large_array_has_one_interval() -> None:
    g = GraphBuilder()
    x = g.same("clamp", g.splat(0, "s32[9,9]"), g.parameter("s32[9,9]"), g.splat(7, "s32[9,9]"))
    y = g.concatenate([x, g.splat(-2, "s32[9,1]")], 1)
    found = ranges_of(g.build(y))[y]
    assert (found.low.shape, found.low, found.high) == ((), -2, 7)
