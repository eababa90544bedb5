"""order_scatters: the same sums in a fixed order, and which scatters it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.directives import parse
from astitch.graph.check import check_graph
from astitch.graph.ir import Graph, ScatterAttrs
from astitch.graph.reference import run_graph
from astitch.hlo.export import export_nodes
from astitch.hlo_import import import_hlo
from astitch.rewrite import scatter_order
from astitch.rewrite.expand import expand
from astitch.rewrite.scatter_order import MOST_RANKED, order_scatters
from astitch.rewrite.simplify import simplify
from astitch.run.host_engine import HostEngine
from astitch.xla.compile_module import compile_for_xla
from tests.hlo_runner import run_xla

H100 = preset("h100")


def lower(fn: Callable[..., Any], *arguments: np.ndarray) -> Graph:
    module = jax.jit(fn, keep_unused=True).lower(*arguments).compiler_ir("hlo")
    return simplify(check_graph(import_hlo(module.as_serialized_hlo_module_proto())))


@pytest.fixture(autouse=True)
def _any_array_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter_order, "LEAST_IN_PLACE_BYTES", 0)


def order(graph: Graph, *, in_place: bool = True) -> Graph:
    return check_graph(order_scatters(expand(graph), in_place=in_place))


def scatters(graph: Graph) -> Iterator[ScatterAttrs]:
    return (node.attrs for node in graph if isinstance(node.attrs, ScatterAttrs))


def add_rows(x: Any, i: Any, u: Any) -> Any:
    return x.at[i].add(u, mode="drop", wrap_negative_indices=False)


def sum_rows(x: np.ndarray, i: np.ndarray, u: np.ndarray) -> np.ndarray:
    """In f64, in order."""
    total = x.astype(np.float64)
    for place, update in zip(i.reshape(-1), u.reshape(-1, *x.shape[1:]), strict=True):
        if 0 <= place < len(x):
            total[place] += update.astype(np.float64)
    return total


def draw(
    rows: int,
    row: tuple[int, ...],
    count: tuple[int, ...],
    dtype: Any = np.float32,
    index: Any = np.int32,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(rows)
    least = -2 if np.iinfo(index).min < 0 else 0
    places = random.integers(least, min(rows + 3, np.iinfo(index).max), size=count).astype(index)
    x, u = (random.normal(size=s).astype(dtype) for s in ((rows, *row), (*count, *row)))
    return x, places, u


@pytest.mark.parametrize("index", [np.int32, np.int8, np.uint8, np.uint32])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
@pytest.mark.parametrize("row", [(), (5,), (2, 3)])
@pytest.mark.parametrize("in_place", [True, False])
def test_each_row_gets_the_sum_of_its_updates(
    in_place: bool, row: tuple[int, ...], dtype: Any, index: Any
) -> None:
    arguments = draw(11, row, (4, 10), dtype, index)
    ordered = order(lower(add_rows, *arguments), in_place=in_place)
    kept = in_place and dtype is np.float32  # narrower sums are rounded with what they are added to
    assert [a.unique_indices for a in scatters(ordered)] == [True] * kept
    x, i, u = arguments
    want, sizes = sum_rows(*arguments), sum_rows(np.abs(x), i, np.abs(u))
    for found in (run_graph(ordered, arguments)[0], run_in_xla(ordered, arguments)):
        # The updates of a place are summed in f32, that is rounded, and once more when it is added.
        step = 2 * float(jnp.finfo(dtype).eps) + 8 * float(jnp.finfo(jnp.float32).eps)
        assert (np.abs(found.astype(np.float64) - want) <= step * sizes).all()


def run_in_xla(graph: Graph, arguments: Any) -> np.ndarray:
    """The whole graph by XLA, which must take what was made as legal."""
    names = [node.name for node in graph if node.op != "parameter"]
    exported = export_nodes(graph, names, graph.outputs)
    given = [arguments[graph.parameters.index(name)] for name in exported.operands]
    return run_xla(exported.hlo, given)[0]


@pytest.mark.parametrize("count", [2, 3, 7, 8, 9, MOST_RANKED, MOST_RANKED + 1])
def test_rows_find_their_sums_among_any_number(count: int) -> None:
    x, i, u = draw(50, (2,), (count,))
    ordered = order(lower(add_rows, x, i, u), in_place=False)
    ops = {node.op for node in ordered}
    assert "scatter" not in ops and ("sort" in ops) == (count > MOST_RANKED)
    np.testing.assert_allclose(
        run_graph(ordered, [x, i, u])[0], sum_rows(x, i, u), rtol=1e-5, atol=1e-5
    )


def test_a_number_repeated_needs_no_scatter() -> None:
    """Though one might write over it; of a parameter only the rows that change are written."""
    x, i, u = draw(9, (4,), (12,))

    def fn(i: Any, u: Any) -> Any:
        return add_rows(jnp.full(x.shape, 0.5), i, u)

    graph = order(lower(fn, i, u))
    assert not list(scatters(graph))
    want = sum_rows(np.full(x.shape, 0.5), i, u)
    np.testing.assert_allclose(run_graph(graph, [i, u])[0], want, rtol=1e-5, atol=1e-5)


def test_small_arrays_are_not_scattered_to(monkeypatch: pytest.MonkeyPatch) -> None:
    x, i, u = draw(9, (4,), (12,))
    monkeypatch.setattr(scatter_order, "LEAST_IN_PLACE_BYTES", x.nbytes + 1)
    assert not list(scatters(order(lower(add_rows, x, i, u))))
    monkeypatch.setattr(scatter_order, "LEAST_IN_PLACE_BYTES", x.nbytes)
    assert len(list(scatters(order(lower(add_rows, x, i, u))))) == 1


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("dense", [True, False])
def test_what_goes_to_one_array_is_one_sum(in_place: bool, dense: bool) -> None:
    """The gradient of a table that is read three times, once with other shapes, and used as it is where `dense`."""
    random = np.random.default_rng(0)
    table = random.normal(size=(13, 4)).astype("f4")
    reads = [random.integers(0, 13, size=s).astype("i4") for s in ((5,), (2, 9), (3, 1, 4))]
    weights = [random.normal(size=(*i.shape, 4)).astype("f4") for i in reads]

    def total(table: Any, *arguments: Any) -> Any:
        words, others = arguments[:3], arguments[3:]
        found = sum(jnp.sum(table[i] * w) for i, w in zip(words, others, strict=True))
        return found + (jnp.sum(table**2) if dense else 0)

    graph = lower(jax.grad(total), table, *reads, *weights)
    assert sum(node.op == "scatter" for node in graph) == 3
    ordered = order(graph, in_place=in_place)
    assert [a.unique_indices for a in scatters(ordered)] == [True] * (in_place and dense)
    assert sum(node.op == "reduce-window" for node in ordered) == 1
    want = 2 * table.astype("f8") if dense else np.zeros(table.shape)
    for i, w in zip(reads, weights, strict=True):
        np.add.at(want, i, w)
    (found,) = run_graph(ordered, [table, *reads, *weights])
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_a_scattered_sum_that_is_wanted_itself_stays_one() -> None:
    x, i, u = draw(9, (4,), (12,))

    def fn(x: Any, i: Any, u: Any) -> Any:
        first = add_rows(x, i, u)
        return first, add_rows(first, i, 2 * u)

    found = run_graph(order(lower(fn, x, i, u), in_place=False), [x, i, u])
    for factor, result in zip((1, 3), found, strict=True):
        np.testing.assert_allclose(result, sum_rows(x, i, factor * u), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("batch", [(3,), (2, 4)])
def test_each_batch_has_rows_of_its_own(batch: tuple[int, ...], in_place: bool) -> None:
    random = np.random.default_rng(0)
    x, u = (random.normal(size=(*batch, n, 5)).astype("f4") for n in (7, 9))
    i = random.integers(-1, 9, size=(*batch, 9)).astype("i4")
    fn = add_rows
    for _ in batch:
        fn = jax.vmap(fn)
    graph = lower(fn, x, i, u)
    (known,) = scatters(expand(graph))
    assert len(known.input_batching_dims) == len(batch)
    ordered = order(graph, in_place=in_place)
    assert [a.unique_indices for a in scatters(ordered)] == [True] * in_place
    parts = (a.reshape(-1, *a.shape[len(batch) :]) for a in (x, i, u))
    want = np.stack([sum_rows(*each) for each in zip(*parts, strict=True)]).reshape(x.shape)
    for found in (run_graph(ordered, [x, i, u])[0], run_in_xla(ordered, [x, i, u])):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_small_sums_stand_beside_large_ones() -> None:
    x, i = np.zeros(3, np.float32), np.array([1, 0, 2, 1], np.int32)
    u = np.array([1.5, 3e38, 1e-30, -2.0], np.float32)
    (found,) = run_graph(order(lower(add_rows, x, i, u)), [x, i, u])
    np.testing.assert_array_equal(found, np.array([3e38, -0.5, 1e-30], np.float32))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_infinities_and_nans_stay_in_their_rows(data: st.DataObject) -> None:
    special = [0.0, -0.0, 1.5, -2.0, 1e30, np.inf, -np.inf, np.nan]
    rows, count = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 9))
    places = data.draw(st.lists(st.integers(-1, rows), min_size=count, max_size=count))
    values = data.draw(st.lists(st.sampled_from(special), min_size=count, max_size=count))
    starts = data.draw(st.lists(st.sampled_from(special), min_size=rows, max_size=rows))
    arguments = (np.array(a, t) for a, t in ((starts, "f4"), (places, "i4"), (values, "f4")))
    arguments = tuple(arguments)
    with np.errstate(invalid="ignore", over="ignore"):
        want = sum_rows(*arguments).astype(np.float32)
        ordered = order(lower(add_rows, *arguments), in_place=data.draw(st.booleans()))
        (found,) = run_graph(ordered, arguments)
    np.testing.assert_array_equal(found, want)


def test_two_dimensions_of_places_and_updates_in_another_order() -> None:
    random = np.random.default_rng(1)
    x, u = random.normal(size=(6, 5, 3)).astype("f4"), random.normal(size=(3, 40)).astype("f4")
    i, j = (random.integers(0, n + 1, size=40).astype("i4") for n in (6, 5))

    def fn(x: Any, i: Any, j: Any, u: Any) -> Any:
        return x.at[i, j].add(u.T, mode="drop")

    arguments = x, i, j, u
    ordered = order(lower(fn, *arguments))
    assert [a.unique_indices for a in scatters(ordered)] == [True]
    want = x.astype("f8")
    for a, b, update in zip(i, j, u.T.astype("f8"), strict=True):
        if a < 6 and b < 5:
            want[a, b] += update
    np.testing.assert_allclose(run_graph(ordered, arguments)[0], want, rtol=1e-6, atol=1e-6)


def test_places_of_more_than_32_bits_with_their_positions() -> None:
    x, i, u = draw(70_000, (1,), (40_000,))
    ordered = order(lower(add_rows, x, i, u))
    (key,) = (node for node in ordered if node.op == "sort")
    assert key.dtype.value == "s64"
    want = x.astype("f8")
    inside = (i >= 0) & (i < len(x))
    np.add.at(want, i[inside], u[inside].astype("f8"))
    np.testing.assert_allclose(run_graph(ordered, [x, i, u])[0], want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_sum_may_fit_only_with_what_it_is_added_to(in_place: bool) -> None:
    """In f16, whose largest number is 65504: it is rounded once, when both are together."""
    x, u = np.array([-60000, 1], np.float16), np.array([60000, 60000, 1], np.float16)
    i = np.array([0, 0, 1], np.int32)
    (found,) = run_graph(order(lower(add_rows, x, i, u), in_place=in_place), [x, i, u])
    np.testing.assert_array_equal(found, np.array([60000, 2], np.float16))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_dimensions_in_any_order_and_parts_of_any_form(data: st.DataObject) -> None:
    """Of whole numbers, so that the order of a sum is of no account."""
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3)))
    named = data.draw(st.integers(1, len(shape)))
    x = random.integers(-9, 9, size=shape).astype("f4")
    arguments: list[np.ndarray] = [x]
    forms: list[lax.ScatterDimensionNumbers] = []
    for _ in range(data.draw(st.integers(1, 3))):
        order_ = tuple(int(d) for d in random.permutation(named))
        count = data.draw(st.integers(2, 5))
        index = data.draw(st.sampled_from((np.int8, np.int32, np.uint8)))
        low = -2 if np.iinfo(index).min < 0 else 0
        arguments.append(random.integers(low, 6, size=(count, named)).astype(index))
        window_first = data.draw(st.booleans())  # of the updates
        rest = shape[named:]
        size = (*rest, count) if window_first else (count, *rest)
        arguments.append(random.integers(-9, 9, size=size).astype("f4"))
        first = 0 if window_first else 1
        windows = tuple(range(first, first + len(rest)))
        forms.append(lax.ScatterDimensionNumbers(windows, tuple(range(named)), order_))

    def fn(x: Any, *parts: Any) -> Any:
        for i, u, form in zip(parts[::2], parts[1::2], forms, strict=True):
            x = lax.scatter_add(x, i, u, form, mode="drop")
        return x

    graph = lower(fn, *arguments)
    ordered = order(graph, in_place=data.draw(st.booleans()))
    assert all(a.unique_indices for a in scatters(ordered))
    np.testing.assert_array_equal(
        run_graph(ordered, arguments)[0], np.asarray(jax.jit(fn)(*arguments))
    )


NO_INDEX = lax.ScatterDimensionNumbers((1, 2), (), ())

STAY: dict[str, Callable[..., Any]] = {
    "no index": lambda x, i, u: lax.scatter_add(
        x, jnp.zeros((12, 0), jnp.int32), jnp.resize(u, (12, 9, 4)), NO_INDEX
    ),
    "unique": lambda x, i, u: x.at[i].add(u, unique_indices=True, mode="drop"),
    "largest": lambda x, i, u: x.at[i].max(u),
    "products": lambda x, i, u: x.at[i].multiply(u),
    "integers": lambda x, i, u: x.astype(jnp.int32).at[i].add(u.astype(jnp.int32)),
    "one": lambda x, i, u: x.at[i[:1]].add(u[:1]),
    "another dimension": lambda x, i, u: x.T.at[:, i].add(u.T),
}


@pytest.mark.parametrize("case", STAY)
def test_what_has_one_order_or_another_form_stays(case: str) -> None:
    graph = expand(lower(STAY[case], *draw(9, (4,), (12,))))
    assert any(node.op == "scatter" for node in graph) or case == "one"
    assert order_scatters(graph) is graph


def embed(table: Any, words: Any, other: Any) -> Any:
    return jax.grad(lambda t: jnp.sum(jnp.tanh(t[words]) * other))(table) * 0.5


def test_kernels_compute_it_the_same_in_each_run() -> None:
    random = np.random.default_rng(0)
    table, other = (
        random.normal(size=(300, 24)).astype("f4"),
        random.normal(size=(4, 200, 24)).astype("f4"),
    )
    words = np.minimum(random.zipf(1.3, size=(4, 200)) - 1, 299).astype("i4")  # a few take most
    graph = lower(embed, table, words, other)
    compilation = compile_graph(graph, H100)
    assert not compilation.program.outside
    engine = HostEngine(compilation.program)
    first, second = (engine.run([table, words, other])[0] for _ in range(2))
    assert first.tobytes() == second.tobytes()
    want = np.zeros(table.shape)
    values = (1 - np.tanh(table.astype("f8")[words]) ** 2) * other * 0.5
    np.add.at(want, words.reshape(-1), values.reshape(-1, 24))
    np.testing.assert_allclose(first, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ordered", [False, True])
def test_inside_xla_it_is_so_unless_told_otherwise(ordered: bool) -> None:
    table, words = np.zeros((300, 24), np.float32), np.zeros((4, 200), np.int32)
    graph = lower(embed, table, words, np.zeros((4, 200, 24), np.float32))
    told = parse("" if ordered else "in-any-order", "")
    _, module = compile_for_xla(graph, H100, directives=told)
    assert [a.unique_indices for a in scatters(import_hlo(module))] == [False] * (not ordered)


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("index", [(2,), (2, 5)])
def test_windows_of_one_element_are_inserted(
    index: tuple[int, ...], batch: tuple[int, ...]
) -> None:
    """As XLA's simplifier writes a scatter of rows: the updates have a dimension of 1 for each indexed one."""
    named, rows = len(index), tuple(7 for _ in index)
    x = np.random.default_rng(0).normal(size=(*rows, 4)).astype(np.float32)
    places = np.random.default_rng(1).integers(-1, 8, (6, *batch, named)).astype(np.int32)
    u = np.random.default_rng(2).normal(size=(6, *batch, *(1 for _ in index), 4)).astype(np.float32)
    first = 1 + len(batch)

    def scatter(x: Any, places: Any, u: Any) -> Any:
        dims = lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(first, first + named + 1)),
            inserted_window_dims=(),
            scatter_dims_to_operand_dims=tuple(range(named)),
        )
        return lax.scatter_add(x, places, u, dims, mode="drop")

    module = jax.jit(scatter).lower(x, places, u).compiler_ir("hlo")
    plain = import_hlo(module.as_serialized_hlo_module_proto())
    (attrs,) = scatters(expand(plain))
    assert attrs.inserted_window_dims == tuple(range(named))
    (got,), (want,) = (run_graph(g, [x, places, u]) for g in (expand(plain), plain))
    np.testing.assert_array_equal(got, want)
    assert not list(scatters(order(plain, in_place=False)))
