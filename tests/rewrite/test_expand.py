"""expand: each rule before and after, when it must not apply, and the same bits on random scatters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphs import GraphBuilder, combiner
from hlo_runner import random_arguments
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax

from astitch.graph.check import check_graph
from astitch.graph.ir import (
    ArrayType,
    DType,
    Graph,
    ScatterAttrs,
    WindowAttrs,
    WindowDimension,
)
from astitch.graph.ops import neutral_element
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.expand import FEW_SCANS, LONG_SCAN, SCAN_CHUNK, expand, find_coordinate
from astitch.rewrite.simplify import simplify, start_draft
from tests.scopes import find_scopes


def expand_simplified(graph: Graph) -> Graph:
    return check_graph(expand(simplify(check_graph(graph))))


def lower(fn: Callable[..., Any], *specs: jax.ShapeDtypeStruct) -> bytes:
    """The module of a JAX function as it is for a GPU."""
    module = jax.jit(fn).trace(*specs).lower(lowering_platforms=("cuda",)).compiler_ir("hlo")
    return bytes(module.as_serialized_hlo_module_proto())


def ops_of(graph: Graph) -> list[str]:
    return [node.op for node in graph if node.op not in ("parameter", "constant", "broadcast")]


def assert_same_bits(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        assert np.where(np.isnan(a), 0, a).tobytes() == np.where(np.isnan(b), 0, b).tobytes()


# ---- scatter: where it applies -------------------------------------------------------------------


def test_one_element_of_each_row() -> None:
    """indices = concatenate(iota, labels), as JAX writes z[arange(n), labels]."""
    g = GraphBuilder()
    x, labels, u = g.parameter("f32[4,9]"), g.parameter("s32[4]"), g.parameter("f32[4]")
    indices = g.concatenate(
        [g.reshape(g.iota("s32[4]", 0), (4, 1)), g.reshape(labels, (4, 1))], dimension=1
    )
    attrs = ScatterAttrs((), (0, 1), (0, 1), 1)
    regions = [combiner("add", DType.F32)]
    y = g.op("scatter", "f32[4,9]", x, indices, u, attrs=attrs, regions=regions, name="y")
    shown = str(expand_simplified(g.build(y))).splitlines()[1:]
    assert (
        [line.strip() for line in shown]
        == """\
%p0 = f32[4,9] parameter() (index=0)
%p1 = s32[4] parameter() (index=1)
%p2 = f32[4] parameter() (index=2)
%y.broadcast = s32[4,9] broadcast(%p1) (dimensions=(0,))
%y.iota = s32[4,9] iota() (dimension=1)
%y.compare = pred[4,9] compare(%y.broadcast, %y.iota) (direction='EQ')
%y.broadcast.2 = f32[4,9] broadcast(%p2) (dimensions=(0,))
%y.add = f32[4,9] add(%p0, %y.broadcast.2)
%y = f32[4,9] select(%y.compare, %y.add, %p0)
return %y""".splitlines()
    )


PER_ROW = {
    "take_along_axis": lambda z, i: jnp.take_along_axis(z, i[:, None], -1)[:, 0],
    "clip": lambda z, i: jnp.take_along_axis(z, i[:, None], -1, mode="clip")[:, 0],
    "arange": lambda z, i: z[jnp.arange(6), i],
    "numpy arange": lambda z, i: z[np.arange(6), i],
    "vmap": lambda z, i: jax.vmap(lambda r, j: r[j])(z, i),
    "first axis": lambda z, i: jnp.take_along_axis(z.T, i[None], 0)[0],
}


@pytest.mark.parametrize("form", PER_ROW)
def test_no_scatter_is_left_in_the_gradient_of(form: str) -> None:
    """Whatever the labels: in range, negative (they wrap), or out of range (dropped or clipped)."""
    pick = PER_ROW[form]
    specs = jax.ShapeDtypeStruct((6, 10), "float32"), jax.ShapeDtypeStruct((6,), "int32")
    graph = import_hlo(lower(jax.grad(lambda z, i: (pick(z, i) * z[:, 0]).sum()), *specs))
    assert "scatter" in ops_of(graph)
    expanded = expand_simplified(graph)
    assert "scatter" not in ops_of(expanded)
    rng = np.random.default_rng(0)
    for labels in ([0, 9, 3, 3, 5, 1], [-1, -10, 2, -3, 9, 0], [-11, 10, 99, -99, 4, 2**31 - 1]):
        z = rng.standard_normal((6, 10)).astype(np.float32)
        arguments = [z, np.array(labels, np.int32)]
        assert_same_bits(run_graph(expanded, arguments), run_graph(graph, arguments))


def test_rows_and_columns_of_a_batch() -> None:
    def update(x: jax.Array, i: jax.Array) -> jax.Array:
        rows, columns = jnp.arange(3)[:, None], jnp.arange(4)[None, :]
        return x.at[rows, columns, i].max(7.0)

    specs = jax.ShapeDtypeStruct((3, 4, 5), "float32"), jax.ShapeDtypeStruct((3, 4), "int32")
    graph = import_hlo(lower(update, *specs))
    expanded = expand_simplified(graph)
    assert "scatter" not in ops_of(expanded)
    arguments = [np.zeros(specs[0].shape, np.float32), np.arange(12, dtype=np.int32).reshape(3, 4)]
    assert_same_bits(run_graph(expanded, arguments), run_graph(graph, arguments))


@pytest.mark.parametrize("batch", [(6,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("windows", [True, False])
def test_index_vectors_in_one_row_are_told_apart(batch: tuple[int, ...], windows: bool) -> None:
    """As XLA's simplifier writes the gradient of a cross-entropy over logits of several dimensions."""
    g, rank = GraphBuilder(), len(batch) + 1
    shape = (*batch, 5)
    x, labels = g.parameter(ArrayType(DType.F32, shape)), g.parameter(ArrayType(DType.S32, batch))
    u = g.parameter(ArrayType(DType.F32, (6,) + (1,) * rank if windows else (6,)))
    columns = ArrayType(DType.S32, (*batch, 1))
    pieces = [g.iota(columns, d) for d in range(len(batch))]
    stacked = g.concatenate([*pieces, g.reshape(labels, columns.shape)], dimension=len(batch))
    every = tuple(range(rank))
    attrs = ScatterAttrs(
        tuple(d + 1 for d in every) if windows else (), () if windows else every, every, 1
    )
    regions = [combiner("add", DType.F32)]
    type_ = ArrayType(DType.F32, shape)
    indices = g.reshape(stacked, (6, rank))
    graph = g.build(g.op("scatter", type_, x, indices, u, attrs=attrs, regions=regions))
    expanded = expand_simplified(graph)
    assert "scatter" not in ops_of(expanded)
    rng = np.random.default_rng(0)
    for of_rows in ([0, 4, 3, 3, 2, 1], [-1, 5, 99, -99, 4, 2**31 - 1]):
        arguments = [
            rng.standard_normal(shape).astype(np.float32),
            np.array(of_rows, np.int32).reshape(batch),
            rng.standard_normal(graph[u].shape).astype(np.float32),
        ]
        assert_same_bits(run_graph(expanded, arguments), run_graph(graph, arguments))


def test_index_vectors_in_one_row_that_may_meet_stay_a_scatter() -> None:
    g = GraphBuilder()
    x, labels, u = g.parameter("f32[4,9]"), g.parameter("s32[2,3,2]"), g.parameter("f32[6]")
    attrs = ScatterAttrs((), (0, 1), (0, 1), 1)
    regions = [combiner("add", DType.F32)]
    indices = g.reshape(labels, (6, 2))
    graph = g.build(g.op("scatter", "f32[4,9]", x, indices, u, attrs=attrs, regions=regions))
    assert ops_of(expand_simplified(graph)).count("scatter") == 1


def test_narrow_indices_are_compared_in_a_type_that_holds_every_position() -> None:
    graph = scatter_graph((1, 300), "s8", ["label"], "add", "f32")
    expanded = expand_simplified(graph)
    x, u = np.zeros((1, 300), np.float32), np.ones((1,), np.float32)
    for label in (-56, 0, 127):  # -56 is 200 in s8
        (found,) = run_graph(expanded, [x, u, np.array([label], np.int8)])
        assert found.nonzero()[1].tolist() == [label] * (label >= 0)


# ---- scatter: where it does not ------------------------------------------------------------------


def test_updates_that_may_meet_stay_a_scatter() -> None:
    specs = [jax.ShapeDtypeStruct(s, d) for s, d in (((9, 4), "f4"), ((5,), "i4"), ((5, 4), "f4"))]
    graph = import_hlo(lower(lambda x, i, u: x.at[i].add(u), *specs))
    assert ops_of(expand_simplified(graph)).count("scatter") == 1


def test_a_shifted_iota_proves_nothing() -> None:
    """Rows i and i + 1 both exist: an element is not at its own position of the indices."""
    specs = [jax.ShapeDtypeStruct(s, d) for s, d in (((9, 4), "f4"), ((5,), "i4"))]
    graph = import_hlo(lower(lambda x, i: x.at[jnp.arange(5) + 1, i].add(1.0), *specs))
    assert ops_of(expand_simplified(graph)).count("scatter") == 1


def test_two_rows_of_indices_with_one_iota_stay_a_scatter() -> None:
    """The iota tells one coordinate of an update, not both."""
    specs = [jax.ShapeDtypeStruct(s, d) for s, d in (((9, 4), "f4"), ((5, 2), "i4"))]
    graph = import_hlo(lower(lambda x, i: x.at[jnp.arange(5)[:, None], i].add(1.0), *specs))
    assert ops_of(expand_simplified(graph)).count("scatter") == 1


def test_a_window_that_moves_stays_a_scatter() -> None:
    g = GraphBuilder()
    x, i, u = g.parameter("f32[9]"), g.parameter("s32[1]"), g.parameter("f32[3]")
    attrs = ScatterAttrs((0,), (), (0,), 0)
    regions = [combiner("add", DType.F32)]
    y = g.op("scatter", "f32[9]", x, i, u, attrs=attrs, regions=regions)
    assert ops_of(expand_simplified(g.build(y))) == ["scatter"]


def test_an_iota_that_wraps_tells_no_position() -> None:
    g = GraphBuilder()
    wide, narrow = g.iota("s32[300]", 0), g.iota("s8[300]", 0)
    cut = g.convert(wide, "s8")
    draft = start_draft(g.build(wide, narrow, cut), lambda rule, node: None)
    for node in g.nodes.values():
        draft.put(node)
    assert [find_coordinate(draft, name) for name in (wide, narrow, cut)] == [0, None, None]


# ---- scatter: random -----------------------------------------------------------------------------


def scatter_graph(
    shape: tuple[int, ...], index: str, columns: list[str], op: str, dtype: str, rows: int = 0
) -> Graph:
    """x[columns[0], columns[1]] op= u for `rows` updates (default: shape[0]).

    A column is `label` (a parameter), `iota` or `constant` (an iota that is written out); a label
    alone indexes the second dimension, and the first is a batching dimension.
    """
    rows = rows or shape[0]
    g = GraphBuilder()
    x = g.parameter(f"{dtype}{list(shape)}".replace(" ", ""))
    batching = columns == ["label"]
    u = g.parameter(f"{dtype}[{rows}]")
    pieces = []
    for kind in columns:
        if kind == "label":
            piece = g.parameter(f"{index}[{rows}]")
        elif kind == "iota":
            piece = g.iota(f"{index}[{rows}]", 0)
        else:
            piece = g.constant(np.arange(rows).astype(DType(index).numpy))
        pieces.append(g.reshape(piece, (rows, 1)))
    indices = g.concatenate(pieces, 1) if len(pieces) > 1 else pieces[0]
    if batching:
        attrs = ScatterAttrs((), tuple(range(1, len(shape))), (1,), 1, (0,), (0,))
    else:
        every = tuple(range(len(columns)))
        attrs = ScatterAttrs((), every, every, 1)
    regions = [combiner(op, DType(dtype)) if op != "set" else overwrite(dtype)]
    type = f"{dtype}{list(shape)}".replace(" ", "")
    return g.build(g.op("scatter", type, x, indices, u, attrs=attrs, regions=regions))


def overwrite(dtype: str) -> Graph:
    g = GraphBuilder("overwrite")
    g.parameter(f"{dtype}[]")
    return g.build(g.parameter(f"{dtype}[]"))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_random_scatters_keep_their_bits(data: st.DataObject) -> None:
    rows, extents = data.draw(st.integers(1, 5)), st.integers(1, 5)
    shape = (data.draw(extents), data.draw(extents))
    columns = data.draw(
        st.sampled_from([["iota", "label"], ["label", "iota"], ["constant", "label"]])
        | st.sampled_from([["iota", "iota"], ["label"]])
    )
    if columns == ["label"]:
        rows = shape[0]
    op = data.draw(st.sampled_from(["add", "multiply", "maximum", "minimum", "set"]))
    dtype = data.draw(st.sampled_from(["f32", "bf16", "f16", "f64"]))
    index = data.draw(st.sampled_from(["s32", "s8", "u8", "s64", "u32"]))
    graph = check_graph(scatter_graph(shape, index, columns, op, dtype, rows))
    expanded = expand_simplified(graph)
    assert "scatter" not in ops_of(expanded)
    special = st.sampled_from([0.0, -0.0, 1.5, -2.25, float("nan"), float("inf"), 3e-5, 1 / 3])
    arguments = []
    for name in graph.parameters:
        array = graph[name].array
        element = special
        if array.dtype.is_integer:
            info = np.iinfo(array.dtype.numpy)
            element = st.integers(-2, 6) | st.sampled_from([info.min, info.max])
            element = element.map(lambda v, i=info: min(max(v, i.min), i.max))
        values = data.draw(st.lists(element, min_size=array.size, max_size=array.size))
        arguments.append(np.array(values).astype(array.dtype.numpy).reshape(array.shape))
    found, wanted = run_graph(expanded, arguments), run_graph(graph, arguments)
    if op in ("maximum", "minimum"):  # of two zeros the reference's scatter takes either
        found, wanted = [x + x.dtype.type(0) for x in found], [x + x.dtype.type(0) for x in wanted]
    assert_same_bits(found, wanted)


# ---- windows -------------------------------------------------------------------------------------


def window_graph(
    type: str, window: Sequence[WindowDimension], op: str, init: float | bool | None = None
) -> Graph:
    """reduce-window of one parameter; the init value is by default neutral."""
    g = GraphBuilder()
    x = g.parameter(type)
    array = g.array(x)
    neutral = neutral_element(op, array.dtype)
    assert neutral is not None
    start = g.constant(neutral if init is None else init, array.dtype.value)
    extents = []
    for n, w in zip(array.shape, window, strict=True):
        padded = (n - 1) * w.base_dilation + 1 + w.padding_low + w.padding_high
        extents.append((padded - (w.size - 1) * w.window_dilation - 1) // w.stride + 1)
    result = ArrayType(array.dtype, tuple(max(n, 0) for n in extents))
    attrs = WindowAttrs(tuple(window))
    regions = [combiner(op, array.dtype)]
    return g.build(g.op("reduce-window", result, x, start, attrs=attrs, regions=regions, name="y"))


def test_a_small_window_is_a_combination_of_slices() -> None:
    graph = window_graph("f32[9]", [WindowDimension(3, stride=2, padding_low=1)], "maximum")
    shown = str(expand_simplified(graph)).splitlines()[1:]
    assert (
        [line.strip() for line in shown]
        == """\
%p0 = f32[9] parameter() (index=0)
%constant.1 = f32[] constant() -inf
%y.pad = f32[10] pad(%p0, %constant.1) (low=(1,), high=(0,), interior=(0,))
%y.slice = f32[4] slice(%y.pad) (starts=(0,), limits=(7,), strides=(2,))
%y.slice.2 = f32[4] slice(%y.pad) (starts=(1,), limits=(8,), strides=(2,))
%y.maximum.2 = f32[4] maximum(%y.slice, %y.slice.2)
%y.slice.3 = f32[4] slice(%y.pad) (starts=(2,), limits=(9,), strides=(2,))
%y.maximum.3 = f32[4] maximum(%y.maximum.2, %y.slice.3)
return %y.maximum.3""".splitlines()
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_random_windows_keep_their_bits(data: st.DataObject) -> None:
    """Written out, the elements are combined in the order of the reference: sums agree to the bit."""
    small, edge = st.integers(1, 3), st.integers(-2, 3)
    window, shape = [], []
    for _ in range(2):
        w = WindowDimension(
            size=data.draw(st.integers(1, 4)),
            stride=data.draw(small),
            padding_low=data.draw(edge),
            padding_high=data.draw(edge),
            window_dilation=data.draw(small),
            base_dilation=data.draw(small),
            reversed=data.draw(st.booleans()),
        )
        n = data.draw(st.integers(1, 6))
        inside = (n - 1) * w.base_dilation + 1 + min(w.padding_low, 0) + min(w.padding_high, 0)
        assume(inside > 0)
        window.append(w)
        shape.append(n)
    dtype = data.draw(st.sampled_from(["s32", "u8", "bf16", "f16", "f64"]))
    op = data.draw(st.sampled_from(["add", "multiply", "maximum", "minimum"]))
    init = data.draw(st.sampled_from([None, 1, 3]))
    graph = check_graph(window_graph(f"{dtype}[{shape[0]},{shape[1]}]", window, op, init))
    fired: list[str] = []
    expanded = check_graph(expand(simplify(graph), lambda rule, node: fired.append(rule)))
    (x,) = random_arguments(graph, 0, index_limit=7)
    (found,), (wanted,) = run_graph(expanded, [x]), run_graph(graph, [x])
    if "unroll_window" in fired or DType(dtype).is_integer:
        np.testing.assert_array_equal(found, wanted)
    else:  # one whole window and a running sum are added in another order
        wide = [y.astype(np.float64) for y in (found, wanted)]
        np.testing.assert_allclose(*wide, rtol=2e-2, atol=2e-2)
    assert "reduce-window" not in ops_of(expanded)


def accumulate(op: str, x: np.ndarray, forward: bool) -> np.ndarray:
    ufunc = {"add": np.add, "maximum": np.maximum, "multiply": np.multiply}[op]
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x
    total = ufunc.accumulate(wide if forward else wide[::-1], axis=0, dtype=wide.dtype)
    return total if forward else total[::-1]


def running_graph(type: str, op: str, extent: int, forward: bool) -> Graph:
    low, high = (extent - 1, 0) if forward else (0, extent - 1)
    first = WindowDimension(extent, padding_low=low, padding_high=high)
    rank = type.count(",") + 1
    return window_graph(type, [first] + [WindowDimension(1)] * (rank - 1), op)


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("extent", [9, 100, LONG_SCAN // 2])
@pytest.mark.parametrize(
    ("dtype", "op"), [("s32", "add"), ("f32", "maximum"), ("f32", "add"), ("u8", "multiply")]
)
def test_scans_stay_for_kernels(dtype: str, op: str, extent: int, forward: bool) -> None:
    graph = running_graph(f"{dtype}[{extent},2]", op, extent, forward)
    expanded = expand_simplified(graph)
    assert ops_of(expanded) == ["reduce-window"]
    (x,) = random_arguments(expanded, 0, index_limit=7)
    (found,) = run_graph(expanded, [x])
    tolerance = 2e-4 if op == "add" and dtype == "f32" else 0
    np.testing.assert_allclose(found, accumulate(op, x, forward), rtol=1e-6, atol=tolerance)


@pytest.mark.parametrize("type", ["f32[300000]", "f32[2,300000]", "f32[300000,2]"])
def test_known_ops_are_scanned_whole(type: str) -> None:
    """Members of a block group hand on their totals."""
    shape = [int(n) for n in type[4:-1].split(",")]
    d = shape.index(300_000)
    own = WindowDimension(300_000, padding_low=299_999)
    window = [own if i == d else WindowDimension(1) for i in range(len(shape))]
    assert ops_of(expand_simplified(window_graph(type, window, "add"))) == ["reduce-window"]


def test_sums_of_bf16_round_once() -> None:
    expanded = expand_simplified(running_graph("bf16[20000,2]", "add", 20_000, True))
    assert ops_of(expanded) == ["reduce-window"]  # which accumulates in f32 by itself
    x = np.full((20_000, 2), 1.0, DType.BF16.numpy)
    (found,) = run_graph(expanded, [x])
    want = np.arange(1, 20_001).astype(DType.BF16.numpy)
    np.testing.assert_array_equal(found, np.stack([want, want], 1))


@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("shape", [(LONG_SCAN + 1,), (40_960,), (2, 50_021), (50_021, 2)])
def test_few_long_scans_of_a_region_go_in_pieces(shape: tuple[int, ...], reverse: bool) -> None:
    """Its order counts, which a block group does not keep."""
    axis = int(np.argmax(shape))
    specs = jax.ShapeDtypeStruct(shape, "float32")
    graph = import_hlo(lower(lambda x: lax.cumlogsumexp(x, axis, reverse=reverse), specs))
    expanded = expand_simplified(graph)
    assert ops_of(expanded).count("reduce-window") == 2  # in the pieces and over their sums
    windows = [n.attrs.window for n in expanded if n.op == "reduce-window"]
    assert max(w.size for window in windows for w in window) <= SCAN_CHUNK
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    ordered = np.flip(x, axis) if reverse else x
    want = np.logaddexp.accumulate(ordered.astype(np.float64), axis)
    want = np.flip(want, axis) if reverse else want
    np.testing.assert_allclose(run_graph(expanded, [x])[0], want, rtol=1e-5, atol=1e-5)


def test_few_short_scans_are_written_out() -> None:
    graph = running_graph("s32[8,2]", "add", 8, True)
    expanded = expand_simplified(graph)
    assert set(ops_of(expanded)) <= {"pad", "slice", "add"}
    (x,) = random_arguments(expanded, 0, index_limit=7)
    np.testing.assert_array_equal(run_graph(expanded, [x])[0], accumulate("add", x, True))
    many = running_graph("s32[8,33]", "add", 8, True)
    assert ops_of(expand_simplified(many)) == ["reduce-window"]


def test_many_long_scans_of_a_region_stay_whole() -> None:
    specs = jax.ShapeDtypeStruct((FEW_SCANS, LONG_SCAN + 1), "float32")
    graph = import_hlo(lower(lambda x: lax.cumlogsumexp(x, 1), specs))
    assert ops_of(expand_simplified(graph)) == ["reduce-window"]


def test_an_associative_region_is_scanned_too() -> None:
    specs = jax.ShapeDtypeStruct((3, 70), "float32")
    graph = import_hlo(lower(lambda x: lax.cumlogsumexp(x, axis=1), specs))
    expanded = expand_simplified(graph)
    assert ops_of(expanded) == ["reduce-window"]
    assert find_scopes(expanded).outside == ()
    x = np.linspace(-9, 9, 210, dtype=np.float32).reshape(3, 70)
    wanted = np.logaddexp.accumulate(x.astype(np.float64), axis=1)
    np.testing.assert_allclose(run_graph(expanded, [x])[0], wanted, rtol=1e-5)


STAY = {
    "a running sum whose init value is added each time": (
        "f32[70]",
        [WindowDimension(70, padding_low=69)],
        5.0,
    ),
    "a window of more than 64 elements": ("f32[100]", [WindowDimension(65)], None),
    "a running sum with a stride": ("f32[70]", [WindowDimension(70, 2, padding_low=69)], None),
    "not from the start": ("f32[70]", [WindowDimension(70, padding_low=68)], None),
}


@pytest.mark.parametrize("name", STAY)
def test_stays_a_window(name: str) -> None:
    type, window, init = STAY[name]
    assert ops_of(expand_simplified(window_graph(type, window, "add", init))) == ["reduce-window"]


# ---- the pass ------------------------------------------------------------------------------------


def test_a_graph_without_such_ops_is_itself() -> None:
    g = GraphBuilder()
    graph = simplify(g.build(g.same("tanh", g.parameter("f32[4]"))))
    assert expand(graph) is graph


def test_expanding_again_changes_nothing_and_the_log_hears_the_rules() -> None:
    graph = simplify(scatter_graph((4, 9), "s32", ["iota", "label"], "add", "f32"))
    heard: list[tuple[str, str]] = []
    once = expand(graph, lambda *event: heard.append(event))
    assert ("place_scatter_elementwise", graph.outputs[0]) in heard
    assert str(expand(once)) == str(simplify(once)) == str(once)
