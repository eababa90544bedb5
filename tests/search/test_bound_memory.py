"""How much memory a program needs at its peak, and stitch ops that are cut so that it needs no more than XLA alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

from astitch.compile import compile_graph
from astitch.device.gpu import preset
from astitch.faults import FaultLog
from astitch.graph.ir import Graph
from astitch.hlo_import import import_hlo
from astitch.pipeline import OWN, Job, run_passes
from astitch.run.host_engine import HostEngine
from astitch.search import bound_memory as bounding
from astitch.search.bound_memory import bound_memory
from astitch.search.peak_memory import (
    MemoryStep,
    MemorySteps,
    _order_late,
    estimate_least_plain_peak,
    estimate_plain_peak,
    find_alive,
    keeps_to,
    list_plain_steps,
    list_steps,
    measure,
    measure_regions,
    schedule,
)
from astitch.stitch_scope import Scopes
from tests.hlo_runner import lower
from tests.small_gpu import assert_close, by_jax, few_sms


def steps_of(*rows: tuple[str, str, str, int], results: str = "") -> MemorySteps:
    """name, buffers read, buffers written, bytes of each of these."""
    steps = tuple(MemoryStep(n, frozenset(r.split()), tuple(w.split())) for n, r, w, _ in rows)
    sizes = {buffer: size for _, _, w, size in rows for buffer in w.split()}
    return MemorySteps(steps, sizes, {}, frozenset(results.split()))


def test_what_nobody_reads_any_more_is_free() -> None:
    steps = steps_of(("a", "p", "a", 100), ("b", "a", "b", 10), ("c", "b", "c", 100))
    assert measure(steps, (0, 1, 2)).alive == (100, 110, 10)  # nobody reads c


def test_a_result_takes_over_an_equally_large_operand() -> None:
    steps = steps_of(("a", "p", "a", 100), ("b", "a", "b", 100), ("c", "b", "c", 60), results="c")
    assert measure(steps, (0, 1, 2)).alive == (100, 100, 160)


MB = 1 << 20


def make_late(*, is_kernel: bool) -> MemorySteps:
    """z is made of an argument for the product of z and s; s comes of one large value after another."""
    rows = (
        ("z", "p", "z", 200 * MB),
        ("a", "p", "a", 400 * MB),
        ("s", "a", "s", MB),
        ("b", "s", "b", 400 * MB),
        ("w", "a b", "w", MB),
        ("product", "z w", "product", MB),
    )
    made = steps_of(*rows, results="product")
    steps = tuple(replace(step, is_kernel=is_kernel) for step in made.steps)
    return replace(made, steps=steps)


def test_what_is_made_of_little_runs_right_before_it_is_read() -> None:
    program = make_late(is_kernel=True)
    assert [*_order_late(program, range(6), {0})] == [1, 2, 3, 4, 0, 5]
    late = measure(program, [*_order_late(program, range(6), {0})])
    assert late.peak == measure(program, range(6)).peak - 200 * MB


@settings(max_examples=50)
@given(st.data())
def test_late_steps_come_behind_what_they_read(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    rows = []
    for n in range(count):
        read = data.draw(st.sets(st.integers(0, n - 1), max_size=3)) if n else set()
        rows.append((f"s{n}", " ".join(f"v{r}" for r in read), f"v{n}", MB))
    program = steps_of(*rows)
    late = data.draw(st.sets(st.integers(0, count - 1)))
    order = [*_order_late(program, range(count), late)]
    assert sorted(order) == [*range(count)]
    done: set[str] = set()
    for number in order:
        assert program.steps[number].reads <= done
        done.update(program.steps[number].writes)


def test_what_is_read_elsewhere_is_not_taken_over() -> None:
    a = MemoryStep("a", frozenset("p"), ("a",))
    b = MemoryStep("b", frozenset("a"), ("b",), apart=frozenset("a"))
    program = MemorySteps((a, b), {"a": 100, "b": 100}, results=frozenset("b"))
    assert measure(program, (0, 1)).alive == (100, 200)


def import_whole(fn: Callable[..., Any], *arguments: Any) -> Graph:
    return import_hlo(lower(fn, *arguments, keep_unused=True))


def test_a_product_takes_over_nothing_and_element_wise_ops_do() -> None:
    x = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    for fn, arrays in [
        (lambda x: jnp.tanh(x @ x) + 1, 1),
        (lambda x: (x @ x) @ x, 2),
        (lambda x: jnp.tanh((x @ x).T @ x) @ x, 2),
    ]:
        assert estimate_plain_peak(import_whole(fn, x)) == arrays * 512 * 512 * 4


def test_updates_are_computed_as_they_are_scattered() -> None:
    table = jax.ShapeDtypeStruct((64, 8), jnp.float32)
    rows = jax.ShapeDtypeStruct((10_000, 8), jnp.float32)
    index = jax.ShapeDtypeStruct((10_000,), jnp.int32)
    graph = import_whole(lambda t, r, i: t.at[i].add(jnp.tanh(r) * 2), table, rows, index)
    assert estimate_plain_peak(graph) < 10_000 * 8 * 4


@pytest.mark.parametrize(("summed", "arrays"), [(3, 1), (64, 2)])
def test_xla_may_compute_short_sums_for_each_reader(summed: int, arrays: int) -> None:
    """So that a distance is nowhere in memory, where a program is compared with the least that XLA may take."""
    x = jax.ShapeDtypeStruct((512, 512, summed), jnp.float32)

    def fn(x: jax.Array) -> jax.Array:
        near = (x * x).sum(-1)
        return (jnp.sort(near * 2, -1) * near).sum(0)

    graph = import_whole(fn, x)
    small = 64 * 512 * 4
    assert estimate_plain_peak(graph) >= 2 * 512 * 512 * 4
    assert abs(estimate_least_plain_peak(graph) - arrays * 512 * 512 * 4) <= small


@pytest.mark.parametrize("stores", [False, True])
def test_a_factor_is_computed_with_its_product_or_stored(stores: bool) -> None:
    x = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    graph = import_whole(lambda x: jnp.maximum(x @ x, 0) @ x, x)
    steps = list_plain_steps(graph, stores_shared=False, stores_factors=stores)
    assert len(steps.steps) == 2 + stores


def test_bodies_of_loops_and_branches_count() -> None:
    """Both hold a product while they run."""

    def turn(x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ x).sum(0) + x

    def loop(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 8, lambda _, x: turn(x), x)

    def branch(x: jax.Array) -> jax.Array:
        return jax.lax.cond(x[0, 0] > 0, turn, jnp.negative, x)

    x = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    for fn in (loop, branch):
        graph = import_whole(fn, x)
        (held,) = measure_regions(graph).values()
        assert 1 << 20 <= held < 1.1 * (1 << 20)
        assert estimate_plain_peak(graph) >= held
        assert schedule(list_steps(find_whole(fn, x)[1])).peak >= held


def test_scratch_counts_while_its_kernel_runs() -> None:
    steps = (MemoryStep("a", frozenset("p"), ("a",), 1000), MemoryStep("b", frozenset("a"), ("b",)))
    assert measure(MemorySteps(steps, {"a": 8, "b": 4}), (0, 1)).alive == (1008, 8)


def test_a_result_over_a_parameter_needs_none_once_the_parameter_is_read() -> None:
    steps = (
        MemoryStep("new", frozenset({"w"}), ("new",)),
        MemoryStep("y", frozenset({"w"}), ("y",)),
    )
    program = MemorySteps(steps, {"new": 100, "y": 10}, {"new": "w"}, frozenset({"y"}))
    assert measure(program, (0, 1)).alive == (100, 110)
    assert measure(program, (1, 0)).alive == (10, 10)
    assert schedule(program).peak <= 110


def test_the_order_finishes_one_after_the_other() -> None:
    """Products first, as they are listed, would hold all of their results."""
    made = [(f"g{n}", "x", f"g{n}", 100) for n in range(5)]
    used = [(f"w{n}", f"g{n}", f"w{n}", 1) for n in range(5)]
    steps = steps_of(*made, *used, results=" ".join(f"w{n}" for n in range(5)))
    use = schedule(steps)
    assert use.peak < 120
    assert set(find_alive(steps, use)) >= {steps.steps[use.order[use.peak_place]].name}


def test_what_is_small_and_read_late_is_computed_late() -> None:
    """By what frees most next it would come first: a large array takes more."""
    steps = steps_of(
        ("small", "p", "small", 10),
        ("large", "p", "large", 100),
        ("end", "large", "end", 5),
        ("last", "end small", "last", 1),
        results="last",
    )
    use = schedule(steps)
    assert use.peak == 105
    assert [steps.steps[n].name for n in use.order] == ["large", "end", "small", "last"]
    assert runs_behind_what_it_reads(steps, use.order)


# ---- stitch ops ----------------------------------------------------------------------------------


def normalise_and_multiply(weights: list[jax.Array]) -> list[jax.Array]:
    """Muon's step: each matrix for itself, several products each."""

    def turn(x: jax.Array) -> jax.Array:
        square = x @ x.T
        return 3.4 * x - 4.7 * (square @ x) * jnp.tanh(square).mean()

    done = []
    for w in weights:
        x = w / (jnp.linalg.norm(w) + 1e-7)
        done.append(w - 0.1 * turn(turn(x)))
    return done


def unequal(weights: list[jax.Array]) -> list[jax.Array]:
    """Every other one is finished early."""
    return [
        jnp.sin(w @ jnp.cos(w).T) @ w + i if i % 2 else w * jnp.square(jnp.tanh(w)).sum()
        for i, w in enumerate(weights)
    ]


def draw(*shapes: tuple[int, ...], dtype: Any = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def find_whole(fn: Callable[..., Any], *arguments: Any) -> tuple[Graph, Scopes]:
    """The graph as imported, and its stitch ops before memory bounds them."""
    graph = import_hlo(lower(fn, *arguments, keep_unused=True))
    job = Job("program", preset("h100"), OWN, tune=False, faults=FaultLog(True))
    return graph, run_passes(graph, job, until="stitch_remotely")["stitch_remotely"]


def peak_of(scopes: Scopes) -> int:
    steps = list_steps(scopes)
    use = schedule(steps)
    assert runs_behind_what_it_reads(steps, use.order)
    return use.peak


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_limit_is_kept_to_from_the_peak_on(count: int) -> None:
    """No order of the steps is looked at for longer than it takes to tell."""
    weights = [jax.ShapeDtypeStruct((512, 1024), jnp.float32)] * count
    steps = list_steps(find_whole(normalise_and_multiply, weights)[1])
    peak = schedule(steps).peak
    assert [keeps_to(steps, peak + more) for more in (-1, 0, 1)] == [False, True, True]


def runs_behind_what_it_reads(program: MemorySteps, order: tuple[int, ...]) -> bool:
    written = {w for step in program.steps for w in step.writes}
    done: set[str] = set()
    for number in order:
        step = program.steps[number]
        if not step.reads & written <= done:
            return False
        done.update(step.writes)
    return sorted(order) == list(range(len(program.steps)))


def allow(whole: Scopes, graph: Graph) -> float:
    """Bytes that the peak may have: by the estimate of XLA alone, or with each piece apart."""
    given_bytes = sum(graph[name].array.bytes for name in graph.parameters)
    search = bounding._Search(whole, preset("h100"), list_steps(whole))
    apart = search.order(search.take_apart())[1].peak
    least = given_bytes + max(estimate_plain_peak(graph), apart)
    return max(bounding.MARGIN * least - given_bytes, bounding.LEAST_PEAK)


def test_matrices_are_finished_one_after_the_other() -> None:
    shapes = [(512, 1024)] * 4 + [(768, 512)] * 4
    weights = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    graph, whole = find_whole(normalise_and_multiply, weights)
    bounded = bound_memory(whole, preset("h100"), graph)
    assert peak_of(bounded) <= allow(whole, graph) < 0.8 * peak_of(whole)
    assert len(whole.scopes) < len(bounded.scopes) < 8 * len(whole.scopes)
    assert set(bounded.turns) >= {scope.name for scope in bounded.scopes}
    again = bound_memory(whole, preset("h100"), graph)
    assert again == bounded


@pytest.mark.parametrize(
    ("small", "large"), [((512, 1024), (4096, 2048)), ((640, 768), (3072, 2048))]
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_large_matrix_lends_the_others_no_memory(
    small: tuple[int, int], large: tuple[int, int], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step alone has the peak, below which the kernels of all the others might join."""
    monkeypatch.setattr(bounding, "MOST_MARGIN_BYTES", 1 << 20)
    monkeypatch.setattr(bounding, "SHARE", 1.0)
    weights = [jax.ShapeDtypeStruct(shape, dtype) for shape in [small] * 12 + [large]]
    graph, whole = find_whole(normalise_and_multiply, weights)
    search = bounding._Search(whole, preset("h100"), list_steps(whole))
    apart = search.order(search.take_apart())[1].peak
    bounded = bound_memory(whole, preset("h100"), graph)
    assert peak_of(bounded) <= apart + (1 << 20)
    assert len(bounded.scopes) < 4 * len(whole.scopes)


@pytest.mark.parametrize("fn", [normalise_and_multiply, unequal])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_results_are_the_same(
    fn: Callable[..., Any], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounding, "LEAST_PEAK", 0)
    monkeypatch.setattr(bounding, "LARGE_BYTES", 64)
    monkeypatch.setattr(bounding, "SHARE", 0.0)  # all pieces apart
    monkeypatch.setattr(bounding, "MARGIN", 0.0)
    weights = draw(*[(16, 24)] * 3, *[(24, 16)] * 2, dtype=dtype)
    compilation = compile_graph(import_hlo(lower(fn, weights, keep_unused=True)), few_sms(4))
    assert compilation.scopes.turns
    got = HostEngine(compilation.program).run(weights)
    assert_close(got, by_jax(fn, weights), 1e-4 if dtype is np.float32 else 5e-2)


def test_a_group_is_listed_behind_what_it_waits_for() -> None:
    """A piece that joins an earlier one may wait for what is listed between them: here a norm, for its quotient."""

    def fn(w: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        return jax.nn.softmax(w), y / jnp.linalg.norm(x)

    array = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    _, whole = find_whole(fn, array, array, array)
    search = bounding._Search(whole, preset("h100"), list_steps(whole))
    ((name, pieces),) = search.pieces.items()
    behind = nx.DiGraph((v, c) for v, found in enumerate(pieces.consumers) for c in found)
    (softmax,) = set(range(len(pieces))) - set(behind)
    *before, quotient = nx.topological_sort(behind)
    program, use = search.order({name: [*([v] for v in before), [softmax, quotient]]})
    assert runs_behind_what_it_reads(program, tuple(range(len(program.steps))))
    assert runs_behind_what_it_reads(program, use.order)


def test_a_scatter_waits_for_the_piece_that_stores_its_start() -> None:
    """Pieces read no repeated number of each other's, so it is none of their values; the scatter reads it."""

    def fn(x: jax.Array, y: jax.Array, places: jax.Array) -> Any:
        start = jnp.full(x.shape, 7.0)
        return start.at[places].max(jnp.sin(x)), jnp.cos(y), jnp.sort(x)

    array = jax.ShapeDtypeStruct((1 << 18,), jnp.float32)
    _, whole = find_whole(fn, array, array, jax.ShapeDtypeStruct(array.shape, jnp.int32))
    steps = list_steps(whole)
    search = bounding._Search(whole, preset("h100"), steps)
    apart = search.list_divided(search.take_apart())
    (scatter,) = (node for node in whole.graph if node.op == "scatter")
    start = scatter.operands[0]
    assert start in whole.graph.embedded
    assert [start in step.writes for step in apart.steps].count(True) == 1
    assert runs_behind_what_it_reads(apart, search.order(search.take_apart())[1].order)


@pytest.mark.parametrize("shared", ["identity", "mask", "bias"])
def test_a_small_array_keeps_no_batches_together(shared: str) -> None:
    """Shampoo's roots of two batches of matrices: one batch is divided only when the products of the other are done."""

    def prepare(g: jax.Array, small: jax.Array) -> jax.Array:
        square = jnp.einsum("lij,lkj->lik", g, g) * 0.5 + small
        return square / jnp.sqrt((square * square).sum((1, 2), keepdims=True))

    def root(x: jax.Array) -> jax.Array:
        return (x @ jnp.sin(x)) @ jnp.cos(x)

    def fn(g: jax.Array, h: jax.Array, bias: jax.Array) -> Any:
        rows = jnp.arange(512)
        small = {
            "identity": 1e-4 * jnp.eye(512),
            "mask": jnp.where(rows[:, None] >= rows, 0.0, -1.0),
            "bias": bias,
        }[shared]
        return root(prepare(g, small)), root(prepare(h, small))

    batch = jax.ShapeDtypeStruct((16, 512, 512), jnp.float32)
    matrix = jax.ShapeDtypeStruct((512, 512), jnp.float32)
    graph, whole = find_whole(fn, batch, batch, matrix)
    cut = [bounding.cut_scope(whole.graph, scope, preset("h100")) for scope in whole.scopes]
    norms = [
        {
            at
            for at, names in enumerate(fusion.members)
            if any(whole.graph[n].op == "reduce" for n in names)
        }
        for fusion in cut
    ]
    assert max(map(len, norms)) == 2, (
        "both norms are in one stitch op, and each in a piece of its own"
    )
    bounded = bound_memory(whole, preset("h100"), graph)
    assert peak_of(bounded) < 0.9 * peak_of(whole)


@pytest.mark.parametrize("likelihood", [jnp.square, jnp.exp, jnp.tanh])
def test_what_each_particle_has_keeps_no_likelihoods_together(likelihood: Any) -> None:
    """A step of a sampler compares the likelihoods of all points at two places, each for itself, and weighs both."""

    def fn(x: jax.Array, moved: jax.Array, points: jax.Array, weights: jax.Array) -> Any:
        def target(x: jax.Array) -> jax.Array:
            return likelihood(x @ points.T).sum(1) * weights

        return jnp.where((target(moved) > target(x))[:, None], moved, x)

    particles = jax.ShapeDtypeStruct((32768, 16), jnp.float32)
    points = jax.ShapeDtypeStruct((512, 16), jnp.float32)
    weights = jax.ShapeDtypeStruct((32768,), jnp.float32)
    graph, whole = find_whole(fn, particles, particles, points, weights)
    likelihoods = 32768 * 512 * 4
    assert weights.size * 4 >= bounding.LARGE_BYTES
    assert peak_of(whole) > 2 * likelihoods
    assert peak_of(bound_memory(whole, preset("h100"), graph)) < 1.1 * likelihoods


def test_what_fits_stays_whole() -> None:
    """Element-wise work frees as much as it takes, and each statistic needs all of its operand."""

    def norms(x: jax.Array, y: jax.Array) -> Any:
        return jax.nn.softmax(x), y / jnp.linalg.norm(y), x.sum() + y.sum()

    array = jax.ShapeDtypeStruct((2048, 2048), jnp.float32)
    graph, whole = find_whole(norms, array, array)
    assert bound_memory(whole, preset("h100"), graph) is whole


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_no_more_than_apart_or_than_xla_alone(data: st.DataObject) -> None:
    """Random steps of independent tensors of random sizes, with products in between."""
    count = data.draw(st.integers(1, 5), "tensors")
    rows = [128 * data.draw(st.integers(1, 8), "rows") for _ in range(count)]
    kinds = [data.draw(st.sampled_from("mnsr"), "kind") for _ in range(count)]
    depth = data.draw(st.integers(1, 3), "depth")
    ends = data.draw(st.booleans(), "share a norm")

    def step(weights: list[jax.Array]) -> Any:
        done = []
        for w, kind in zip(weights, kinds, strict=True):
            x = w / jnp.linalg.norm(w) if kind == "n" else w
            for _ in range(depth):
                if kind in "mn":
                    x = jnp.tanh(x @ (x.T @ x)) + x
                elif kind == "s":
                    x = jax.nn.softmax(x) * x
                else:
                    x = x - x.sum(0) * x.max(1, keepdims=True)
            done.append(x)
        if ends:
            norm = jnp.sqrt(sum(jnp.square(x).sum() for x in done))
            done = [x / norm for x in done]
        return done

    weights = [jax.ShapeDtypeStruct((r, 256), jnp.float32) for r in rows]
    graph, whole = find_whole(step, weights)
    bounded = bound_memory(whole, preset("h100"), graph)
    assert peak_of(bounded) <= min(allow(whole, graph), peak_of(whole))
    for shared in (False, True):
        plain = list_plain_steps(graph, stores_shared=shared)
        assert runs_behind_what_it_reads(plain, schedule(plain).order)


def test_what_is_alive_at_the_peak_is_named() -> None:
    """A product, and what it multiplies: neither takes over the other's memory."""

    def fn(x: jax.Array, y: jax.Array) -> jax.Array:
        products = [x @ y, y @ x, x @ x]
        return jax.nn.softmax(products[0] * products[1] - products[2])

    array = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    compilation = compile_graph(import_hlo(lower(fn, array, array)), few_sms(4))
    text = compilation.explain()
    assert "memory at its peak: 16.8 MB beside the arguments, in dot_general" in text
    shown = text.partition("memory at its peak")[2]
    # Two of the products are one, as they share an operand.
    assert "8.4 MB %dot_general" in shown and "= f32[1024,2048]: of dot_general" in shown
    assert ".concatenate = f32[1024,2048]: of stitch_0" in shown and ", read by stitch_" in shown
    small = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    little = compile_graph(import_hlo(lower(fn, small, small)), few_sms(4))
    assert "memory at its peak" not in little.explain()
