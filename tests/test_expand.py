"""expand: each rule before and after, when it must not apply, and the same bits on random scatters."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphs import GraphBuilder, combiner
from hlo_runner import lower
from hypothesis import given, settings
from hypothesis import strategies as st

from astitch.check import check_graph
from astitch.expand import expand, find_coordinate
from astitch.hlo_import import import_hlo
from astitch.ir import DType, Graph, ScatterAttrs
from astitch.reference import run_graph
from astitch.simplify import Draft, simplify

module = importlib.import_module("astitch.expand")


def expand_simplified(graph: Graph) -> Graph:
    return check_graph(expand(simplify(check_graph(graph))))


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
%y.compare = pred[4,9] compare(%y.broadcast, %y.iota) (direction='EQ', total_order=False)
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
    draft = Draft(g.build(wide, narrow, cut), lambda rule, node: None)
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
