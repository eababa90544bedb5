"""reassociate: which reductions are joined, which factors leave their sums, and that the function stays the same."""

from __future__ import annotations

import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphs import GraphBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_arguments, random_graphs

from astitch.graph.check import check_graph
from astitch.graph.ir import ArrayType, Graph, TupleType
from astitch.graph.joint_regions import joint_kind
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.expand import expand
from astitch.rewrite.reassociate import ON_CHIP_BYTES, reassociate
from astitch.rewrite.simplify import simplify
from tests.hlo_runner import lower
from tests.programs import PROGRAMS, load


def fired(graph: Graph) -> Counter[str]:
    """The rules of this stage that apply, without the clean-up of nodes that it builds."""
    rules: Counter[str] = Counter()
    reassociate(graph, lambda rule, name: rules.update([rule]))
    return Counter(
        {r: n for r, n in rules.items() if r.startswith(("join_", "hoist_", "scatter_"))}
    )


def joints(graph: Graph) -> list[str]:
    return [kind for n in graph if n.op == "reduce" and (kind := joint_kind(n.regions[0]))]


def depth(graph: Graph) -> int:
    """Reduces that lie one behind the other."""
    levels: dict[str, int] = {}
    for node in graph:
        levels[node.name] = max((levels[o] for o in node.operands), default=0) + (
            node.op == "reduce"
        )
    return max(levels[o] for o in graph.outputs)


def imported(fn: object, *arguments: np.ndarray) -> Graph:
    return expand(simplify(import_hlo(lower(fn, *arguments))))  # type: ignore[arg-type]


def assert_same_function(graph: Graph, arguments: list[np.ndarray], tolerance: float) -> None:
    after = check_graph(reassociate(graph))
    assert after.parameters == graph.parameters and len(after.outputs) == len(graph.outputs)
    with np.errstate(all="ignore"):
        got, wanted = run_graph(after, arguments), run_graph(graph, arguments)
    for a, b in zip(got, wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        size = np.max(np.abs(b), initial=1.0, where=np.isfinite(b))
        np.testing.assert_allclose(a, b, tolerance, tolerance * size)


# ---- scattered sums


def table_gradients(*wanted: str, dtype: str = "float32") -> tuple[Graph, list[np.ndarray]]:
    """Sums of the gradients of one table of 6 rows that is read by one or two sets of indices and multiplied.

    wanted: "one", "two" reads; "early" or "late" for the product before or after them in the sum; "kept" where a
    scattered sum is a result, too."""

    def loss(table: jax.Array, rows: jax.Array, others: jax.Array, x: jax.Array) -> jax.Array:
        total = jnp.zeros((), table.dtype)
        if "early" in wanted:
            total += jnp.sin(x @ table).sum()
        total += jnp.sin(table[rows]).sum()
        if "two" in wanted:
            total += jnp.cos(table[others]).sum()
        if "late" in wanted:
            total += jnp.sin(x @ table).sum()
        return total

    def gradients(table: jax.Array, rows: jax.Array, others: jax.Array, x: jax.Array) -> object:
        whole = jax.grad(loss)(table, rows, others, x)
        if "kept" not in wanted:
            return whole
        scattered = jnp.zeros_like(table).at[rows].add(x[0, 0])
        return scattered, scattered + jnp.tanh(table)

    rng = np.random.default_rng(0)
    rows, others = (rng.integers(0, 6, n).astype(np.int32) for n in (20, 9))
    table, x = normal(rng, 6, 4).astype(dtype), normal(rng, 5, 6).astype(dtype)
    graph = imported(gradients, table, rows, others, x)
    given = {"table": table, "rows": rows, "others": others, "x": x}
    return graph, [given[name.partition(".")[0]] for name in graph.parameters]


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("wanted", "moved"),
    [
        (("one", "early"), 1),
        (("one", "late"), 1),
        (("two",), 1),
        (("two", "early"), 2),
        (("two", "late"), 2),
        (("one",), 0),
        (("kept",), 0),
    ],
)
def test_scattered_sums_start_with_what_they_are_added_to(
    wanted: tuple[str, ...], moved: int
) -> None:
    graph, arguments = table_gradients(*wanted)
    assert fired(graph) == ({"scatter_into_addend": moved} if moved else {})
    after = reassociate(graph)
    scatters = [n for n in after if n.op == "scatter"]
    assert len(scatters) == (2 if "two" in wanted else 1)
    zeros = [n for n in scatters if after[n.operands[0]].op in ("broadcast", "constant")]
    assert len(zeros) == (wanted in (("two",), ("one",), ("kept",)))
    assert_same_function(graph, arguments, 1e-6)


def test_narrow_scattered_sums_stay() -> None:
    """Each addend would be rounded to the type of the other sum."""
    graph, _ = table_gradients("one", "late", dtype="bfloat16")
    assert not fired(graph)


def test_a_scattered_maximum_is_not_a_sum() -> None:
    def largest(x: jax.Array, rows: jax.Array) -> jax.Array:
        return jnp.tanh(x) + jnp.zeros_like(x).at[rows].max(3.0)

    rows = np.array([1, 1, 2, 0, 2], np.int32)
    assert not fired(imported(largest, normal(np.random.default_rng(0), 6, 4), rows))


# ---- mean and variance


def variance(
    shape: tuple[int, ...], dims: tuple[int, ...], *, dtype: str = "f32", count: float = 0
) -> Graph:
    """(mean, sum of squared deviations)"""
    g = GraphBuilder()
    name = f"{dtype}[{','.join(map(str, shape))}]"
    x = g.parameter(name, "x")
    kept = [d for d in range(len(shape)) if d not in dims]
    small = f"{dtype}[{','.join(str(shape[d]) for d in kept)}]"
    total = g.reduce(x, dims, "add", name="total")
    number = count or math.prod(shape[d] for d in dims)
    mean = g.same("divide", total, g.splat(number, small), name="mean")
    gap = g.same("subtract", x, g.broadcast(mean, shape, kept))
    return g.build(mean, g.reduce(g.same("multiply", gap, gap), dims, "add", name="spread"))


def test_mean_and_variance_of_columns_are_one_reduce() -> None:
    graph = variance((300, 8), (0,))
    after = reassociate(graph)
    assert fired(graph) == {"join_moments": 1}
    assert joints(after) == ["moments"] and depth(after) == 1 < depth(graph)
    (node,) = [n for n in after if n.op == "reduce"]
    assert node.name == "total.moments"
    assert node.type == TupleType((ArrayType(node.type.elements[0].dtype, (8,)),) * 4)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("shape", "dims", "joined"),
    [
        ((4, ON_CHIP_BYTES // 4), (1,), False),
        ((4, ON_CHIP_BYTES // 4 + 1), (1,), True),
        ((2, 64, 300), (1, 2), True),
        ((2, 64, 128), (1, 2), False),
        ((4, 300, 8), (1,), True),
        ((4, 30, 5, 2), (1, 3), True),
        ((6, 5), (0, 1), False),
        ((200, 200), (0, 1), True),
    ],
)
def test_reductions_join_where_their_elements_do_not_stay_on_chip(
    shape: tuple[int, ...], dims: tuple[int, ...], joined: bool
) -> None:
    assert fired(variance(shape, dims)) == ({"join_moments": 1} if joined else {})


def test_a_converted_row_counts_as_it_lies_in_memory() -> None:
    def standardise(x: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        return jnp.square(y - y.mean(-1, keepdims=True)).mean(-1)

    columns = ON_CHIP_BYTES // 2
    assert not fired(imported(standardise, np.zeros((3, columns), jnp.bfloat16)))
    assert fired(imported(standardise, np.zeros((3, columns), np.float32)))["join_moments"] == 1


@pytest.mark.parametrize(
    "graph",
    [
        variance((300, 8), (0,), dtype="bf16"),
        variance((300, 8), (0,), dtype="f16"),
        variance((300, 8), (0,), count=299),
        variance((300, 8), (0,), count=30),
    ],
    ids=["bf16", "f16", "unbiased mean", "another count"],
)
def test_what_is_no_mean_of_wide_floats_stays(graph: Graph) -> None:
    assert not fired(graph)
    assert reassociate(simplify(graph)).key == simplify(graph).key


def deviation_from(what: str) -> Graph:
    """Sums of squares that look like a variance but are none."""
    g = GraphBuilder()
    x, y = g.parameter("f32[300,8]"), g.parameter("f32[300,8]")
    other = g.parameter("f32[8]")
    start = g.constant(1.0, "f32") if what == "another start" else None
    total = g.reduce(x, (0,), "add", start)
    mean = g.same("divide", total, g.splat(300.0, "f32[8]"))
    center = {"another array": mean, "a given center": other}.get(what, mean)
    source = y if what == "another array" else x
    spread = g.broadcast(center, (300, 8), (1,))
    gap = g.same("subtract", source, spread)
    if what == "backwards":
        gap = g.same("subtract", spread, source)
    square = g.same("multiply", gap, y if what == "a covariance" else gap)
    return g.build(mean, g.reduce(square, (0,), "add"))


@pytest.mark.parametrize(
    "what", ["another array", "a given center", "another start", "backwards", "a covariance"]
)
def test_what_only_looks_like_a_variance_stays(what: str) -> None:
    graph = deviation_from(what)
    assert not fired(graph)["join_moments"]
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(graph[p].shape).astype(np.float32) for p in graph.parameters]
    assert_same_function(graph, arguments, 1e-5)


# ---- max and sum of exponentials


def test_softmax_and_logsumexp_of_columns_are_one_reduce() -> None:
    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.nn.softmax(x, axis=0), jax.nn.logsumexp(x, axis=0)

    graph = imported(lambda x: both(x)[0], np.zeros((300, 8), np.float32))
    assert joints(reassociate(graph)) == ["exponentials"] and depth(reassociate(graph)) == 1
    # logsumexp subtracts the max where it is finite: another center, but the same pair of reduces.
    graph = imported(lambda x: both(x)[1], np.zeros((300, 8), np.float32))
    assert fired(graph)["join_exponentials"] == 1 and depth(reassociate(graph)) == 1


def shifted_exponentials(init: float, source: str = "x") -> Graph:
    g = GraphBuilder()
    x = g.parameter("f32[50,8]", "x")
    y = g.parameter("f32[50,8]", "y")
    largest = g.reduce(x, (0,), "maximum", g.constant(init, "f32"))
    gap = g.same("subtract", {"x": x, "y": y}[source], g.broadcast(largest, (50, 8), (1,)))
    return g.build(largest, g.reduce(g.same("exponential", gap), (0,), "add"))


def test_another_start_or_another_array_is_no_softmax() -> None:
    assert fired(shifted_exponentials(-math.inf)) == {"join_exponentials": 1}
    assert not fired(shifted_exponentials(0.0))
    assert not fired(shifted_exponentials(-math.inf, "y"))


@pytest.mark.parametrize(
    "fill", [None, -math.inf, math.inf, math.nan, "mixed"], ids=lambda v: f"{v}"
)
def test_nans_and_infinities_come_out_as_before(fill: float | str | None) -> None:
    x = np.random.default_rng(1).standard_normal((40, 6)).astype(np.float32)
    if fill == "mixed":
        x[:, 0], x[3, 1], x[5, 2], x[7, 3] = -np.inf, np.nan, np.inf, -np.inf
        x[8, 2], x[9, 1] = -np.inf, np.inf
    elif fill is not None:
        x[:, 1], x[2:9, 3], x[0, 5] = fill, fill, fill

    def everything(x: jax.Array) -> tuple[jax.Array, ...]:
        return jax.nn.softmax(x, axis=0), jax.nn.log_softmax(x, axis=0), jax.nn.logsumexp(x, axis=0)

    for number in range(3):
        graph = imported(lambda v, n=number: everything(v)[n], x)
        assert fired(graph)["join_exponentials"] == 1
        assert_same_function(graph, [x], 1e-5)


# ---- factors out of sums


def scaled_sum(*factors: str) -> Graph:
    """sum(x * y, each factor applied): r a reduce of x, q an input, both broadcast along the sum."""
    g = GraphBuilder()
    x, y = g.parameter("f32[16,64]", "x"), g.parameter("f32[16,64]", "y")
    q = g.broadcast(g.parameter("f32[16]", "q"), (16, 64), (0,))
    r = g.broadcast(g.reduce(x, (1,), "add", name="r"), (16, 64), (0,))
    c = g.broadcast(g.reduce(x, (0,), "add", name="c"), (16, 64), (1,))
    values = {"r": r, "q": q, "c": c}
    value = g.same("multiply", x, y)
    for factor in factors:
        if factor == "-":
            value = g.same("negate", value)
        elif factor.startswith("/"):
            value = g.same("divide", value, values[factor[1:]])
        else:
            value = g.same("multiply", values[factor], value)
    return g.build(g.reduce(value, (1,), "add", name="sum"))


@pytest.mark.parametrize(
    ("factors", "hoisted", "levels"),
    [
        (("r",), True, 1),
        (("/r",), True, 1),
        (("-", "r", "-", "-"), True, 1),
        (("r", "/r", "q"), True, 1),
        (("q",), False, 1),
        (("-",), False, 1),
        (("c",), False, 2),
        (("r", "c"), False, 2),
        (("/c", "r"), False, 2),
    ],
)
def test_factors_leave_a_sum_that_need_not_wait_for_them(
    factors: tuple[str, ...], hoisted: bool, levels: int
) -> None:
    """r is constant along the sum; c varies along it, and the sum waits for it anyway."""
    graph = scaled_sum(*factors)
    after = reassociate(graph)
    assert fired(graph)["hoist_factors"] == hoisted
    assert depth(after) == levels
    arguments = [
        np.random.default_rng(n).uniform(0.5, 1.5, graph[p].shape).astype(np.float32)
        for n, p in enumerate(graph.parameters)
    ]
    assert_same_function(graph, arguments, 1e-5)


def test_a_sum_of_factors_alone_stays() -> None:
    g = GraphBuilder()
    x = g.parameter("f32[16,64]")
    r = g.broadcast(g.reduce(x, (1,), "add"), (16, 64), (0,))
    graph = g.build(g.reduce(g.same("multiply", r, r), (1,), "add"))
    assert not fired(graph)


def test_one_reduce_alone_is_left_as_it_is() -> None:
    g = GraphBuilder()
    graph = g.build(g.reduce(g.parameter("f32[300,8]"), (0,), "add"))
    assert reassociate(graph) is graph


# ---- patterns of models


@pytest.mark.parametrize(
    ("name", "rules", "before", "after"),
    [
        ("softmax_first", {"join_exponentials": 1}, 2, 1),
        ("softmax_one_row", {"join_exponentials": 1}, 2, 1),
        ("logsumexp_two_axes", {"join_exponentials": 1}, 2, 1),
        ("attention_softmax_backward", {"hoist_factors": 1}, 3, 2),
        ("layer_norm_backward", {"hoist_factors": 2}, 3, 3),
        ("layer_norm_4x20000", {"join_moments": 1}, 2, 1),
        ("group_norm_nhwc", {"join_moments": 1}, 2, 1),
        ("batch_norm_backward_nchw", {"join_moments": 1, "hoist_factors": 1}, 4, 2),
        ("layer_norm", {}, 2, 2),
        ("softmax_last", {}, 2, 2),
    ],
)
def test_reductions_one_behind_the_other(
    name: str, rules: dict[str, int], before: int, after: int
) -> None:
    graph = expand(simplify(import_hlo(load(name))))
    assert fired(graph) == rules
    assert (depth(graph), depth(reassociate(graph))) == (before, after)
    assert_same_function(graph, PROGRAMS[name].make_inputs(0), 1e-4)


# ---- every graph


@st.composite
def waiting_reductions(draw: st.DrawFn) -> Graph:
    """Means, variances, softmaxes and scaled sums of one array along random dimensions, each fed to the next."""
    g = GraphBuilder()
    rank = draw(st.integers(2, 3))
    shape = tuple(draw(st.sampled_from((2, 3, 5, 8))) for _ in range(rank))
    dtype = draw(st.sampled_from(("f32", "f64")))
    full = f"{dtype}[{','.join(map(str, shape))}]"
    x = g.parameter(full, "x")
    outputs: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        dims = tuple(draw(st.sets(st.integers(0, rank - 1), min_size=1, max_size=rank)))
        dims = tuple(sorted(dims))
        kept = [d for d in range(rank) if d not in dims]
        small = f"{dtype}[{','.join(str(shape[d]) for d in kept)}]"
        count = math.prod(shape[d] for d in dims)

        def wide(value: str, kept: list[int] = kept) -> str:
            return g.broadcast(value, shape, kept)

        match draw(st.sampled_from(("moments", "softmax", "scaled", "quotient"))):
            case "moments":
                share = draw(st.booleans())
                total = g.reduce(x, dims, "add")
                op, number = ("multiply", 1 / count) if share else ("divide", count)
                mean = g.same(op, total, g.splat(number, small))
                gap = g.same("subtract", x, wide(mean))
                spread = g.reduce(g.same("multiply", gap, gap), dims, "add")
                outputs += [mean, spread]
                x = g.same("divide", gap, wide(g.same("add", spread, g.splat(1.0, small))))
            case "softmax":
                largest = g.reduce(x, dims, "maximum")
                e = g.same("exponential", g.same("subtract", x, wide(largest)))
                total = g.reduce(e, dims, "add")
                outputs += [largest, total]
                x = g.same("divide", e, wide(total))
            case "scaled":
                r = g.reduce(x, dims, "add")
                outputs.append(
                    g.reduce(g.same("multiply", g.same("negate", x), wide(r)), dims, "add")
                )
            case _:
                r = g.same(
                    "add", g.reduce(g.same("multiply", x, x), dims, "add"), g.splat(1.0, small)
                )
                outputs.append(g.reduce(g.same("divide", x, wide(r)), dims, "add"))
                x = g.same("multiply", x, wide(outputs[-1]))
    return g.build(x, *outputs)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(waiting_reductions(), st.integers(0, 3))
def test_reassociation_keeps_the_function(graph: Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    simple = simplify(graph)
    x = rng.standard_normal(graph["x"].shape).astype(graph["x"].dtype.numpy)
    tolerance = 1e-9 if graph["x"].dtype.bytes == 8 else 2e-4
    assert_same_function(simple, [x], tolerance)
    assert depth(reassociate(simple)) <= depth(simple)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(random_graphs(20), st.integers(0, 3))
def test_random_graphs_keep_their_types_and_names_of_parameters(graph: Graph, seed: int) -> None:
    simple = simplify(graph)
    after = check_graph(reassociate(simple))
    assert after.parameters == simple.parameters
    assert [after[o].type for o in after.outputs] == [simple[o].type for o in simple.outputs]
    if after.key == simple.key:
        return
    arguments = random_arguments(graph, seed)
    with np.errstate(all="ignore"):
        assert len(run_graph(after, arguments)) == len(run_graph(simple, arguments))


def test_a_tower_of_squares_is_walked_once() -> None:
    """x^(2^20): as a tree it would have a million leaves."""
    g = GraphBuilder()
    x = g.parameter("f32[8,16]", "x")
    largest = g.reduce(x, (1,), "maximum", name="largest")
    value = g.same("multiply", x, g.broadcast(largest, (8, 16), (0,)))
    for _ in range(20):
        value = g.same("multiply", value, value)
    graph = g.build(g.reduce(value, (1,), "add", name="total"))
    assert len(reassociate(simplify(graph))) < 2 * len(graph)


# ---- sums of products


def normals(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [normal(rng, *shape) for shape in shapes]


BATCHES = {
    # TensorFlow's gradient of a dense layer: a product for each sequence, then their sum.
    "weights": ("bsm,bsn->bmn", (0,), [(3, 5, 4), (3, 5, 6)], "dot"),
    "little of much": ("bsm,bsn->bmn", (0,), [(3, 60, 4), (3, 60, 6)], "reduce"),
    "of two": ("absm,absn->abmn", (0, 1), [(2, 3, 5, 4), (2, 3, 5, 6)], "dot"),
    "outer of two": ("absm,absn->abmn", (0,), [(2, 3, 5, 4), (2, 3, 5, 6)], "reduce"),
    "rows": ("bsm,bsn->bmn", (1,), [(3, 5, 4), (3, 5, 6)], "reduce"),
    "in another order": ("sbm,bsn->bmn", (0,), [(5, 3, 4), (3, 5, 6)], "reduce"),
}


@pytest.mark.parametrize("case", BATCHES)
def test_sums_over_batches_of_a_product_are_one_product(case: str) -> None:
    """Where both operands lie so that a library reads them in place: what would be copied first is summed later."""
    subscripts, axes, shapes, wanted = BATCHES[case]
    arguments = normals(*shapes)
    graph = imported(lambda x, y: jnp.einsum(subscripts, x, y).sum(axes), *arguments)
    after = reassociate(graph)
    assert after[after.outputs[0]].op == wanted
    assert fired(graph) == {}
    found = run_graph(check_graph(after), arguments)[0]
    want = np.einsum(subscripts, *(a.astype("f8") for a in arguments)).sum(axes)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_a_product_that_others_read_stays() -> None:
    def fn(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = jnp.einsum("bsm,bsn->bmn", x, y)
        return z.sum(0), jnp.tanh(z)

    after = reassociate(imported(fn, *normals((3, 5, 4), (3, 5, 6))))
    assert sum(node.op == "reduce" for node in after) == 1
