"""What XLA would fuse, that parts which share ops compute the same, and that no plan is slower than XLA's fusions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hlo_runner import lower
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import random_arguments

from astitch.cost.projected_latency import project
from astitch.device.gpu import preset
from astitch.graph.check import check_graph
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.hlo_import import import_hlo
from astitch.rewrite.simplify import simplify
from astitch.scope.remote_stitch import stitch_remotely
from astitch.search import split_scopes as splitting
from astitch.search import xla_fusions
from astitch.search.fusion_explorer import make_parts
from astitch.search.patterns import each_vertex, make_fusion_graph
from astitch.search.plan import Planner
from astitch.search.plan_scopes import plan_scopes
from astitch.search.split_scopes import PlannedScopes, Symptom, split_scopes
from astitch.search.xla_fusions import propose, propose_each
from astitch.stitch_scope import Scope, Scopes
from tests.scopes import find_scopes
from tests.whole.test_fuzz import wide_graphs

H100 = preset("h100")
LARGE = (4096, 4096)


def scopes_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Scopes:
    given = (np.zeros(shape, np.float32) for shape in shapes)
    return stitch_remotely(find_scopes(simplify(import_hlo(lower(function, *given)))))


def cover_of(graph: Graph, scope: Scope) -> list[list[str]]:
    fusion = make_fusion_graph(graph, scope, H100)
    proposal = next(propose(graph, scope, fusion, H100), None)
    assert proposal is not None
    return [[n for v in each_vertex(f) for n in fusion.members[v]] for f in proposal.fusions]


def fusions_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> list[list[str]]:
    """The opcodes of the fusions of all stitch ops, views and broadcasts left out."""
    scopes = scopes_of(function, *shapes)
    return [
        [scopes.graph[n].op for n in names]
        for scope in scopes.scopes
        for names in cover_of(scopes.graph, scope)
    ]


def scan(a: jax.Array, b: jax.Array) -> jax.Array:
    """A recurrence by an associative scan, whose levels are slices and interior padding."""

    def join(first: Any, second: Any) -> Any:
        return first[0] * second[0], second[0] * first[1] + second[1]

    return jax.lax.associative_scan(join, (a, b))[1]


def gradient_of_scan(a: jax.Array, b: jax.Array) -> Any:
    return jax.grad(lambda a, b: (scan(a, b) ** 2).sum(), (0, 1))(a, b)


def test_element_wise_ops_are_one_fusion() -> None:
    assert fusions_of(lambda x: jnp.sin(x * 2) + x, LARGE) == [["multiply", "sine", "add"]]


def test_a_reduction_ends_a_fusion() -> None:
    def normalise(x: jax.Array) -> jax.Array:
        return x / jnp.exp(x).sum(1, keepdims=True)

    first, second = fusions_of(normalise, LARGE)
    assert (first, second) == (["exponential", "reduce"], ["divide"])


def test_what_follows_a_reduction_at_its_own_places_is_in_its_fusion() -> None:
    assert fusions_of(lambda x: x.sum(1) * 2 + 1, LARGE) == [["reduce", "multiply", "add"]]


def test_a_cheap_value_is_computed_by_each_of_its_readers() -> None:
    first, second = fusions_of(lambda x: ((x * 2).sum(1), (x * 2).max(0)), LARGE)
    assert {"multiply", "reduce"} == {*first} == {*second}


def test_a_result_that_others_read_is_stored_once() -> None:
    def function(x: jax.Array) -> Any:
        y = x * 2
        return y, y[::-1].T + 1

    found = fusions_of(function, (2048, 4096))
    assert sum(ops.count("multiply") for ops in found) == 1


def test_reductions_of_one_array_are_one_fusion() -> None:
    assert fusions_of(lambda x: (x.sum(1), (x * x).sum(1)), LARGE) == [
        ["reduce", "multiply", "reduce"]
    ]


def turned(x: jax.Array, y: jax.Array, z: jax.Array) -> Any:
    """The gradient of a product in chunks: what is kept beside a sum of its rows reads columns of another product."""
    kept = x * (z.swapaxes(-1, -2) + y)
    return kept * y, (kept * x).sum(-1)


@pytest.mark.parametrize("shape", [(64, 512, 512), (4096, 4096)])
def test_a_transpose_shares_no_fusion_with_a_reduction(shape: tuple[int, ...]) -> None:
    found = fusions_of(turned, shape, shape, shape)
    assert sorted("reduce" in ops for ops in found) == [False, True]
    beside = (*shape[:-1], 8)  # XLA has no tiles for so few rows
    few = fusions_of(turned, beside, beside, (*shape[:-2], 8, shape[-2]))
    assert len(few) == 1


def test_no_element_is_computed_many_times() -> None:
    """The gradient of an associative scan reads each level at twice as many places as the one before."""
    scopes = scopes_of(gradient_of_scan, (256, 4096), (256, 4096))
    scope = max(scopes.scopes, key=lambda s: len(s.members))
    cover = cover_of(scopes.graph, scope)
    assert 4 < len(cover) < len(scope.members) / 4
    most = max(sum(name in names for names in cover) for name in scope.members)
    assert 1 < most < len(cover)


def test_no_fusions_are_proposed_where_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla_fusions, "EFFORT", 10)
    scopes = scopes_of(gradient_of_scan, (16, 1024), (16, 1024))
    scope = max(scopes.scopes, key=lambda s: len(s.members))
    fusion = make_fusion_graph(scopes.graph, scope, H100)
    assert next(propose(scopes.graph, scope, fusion, H100), None) is None


def evict(keys: Any, values: Any, old: Any, key: Any, value: Any, query: Any) -> Any:
    """Attention of one query against caches of which an entry has just been replaced."""
    keys = jnp.where(old[:, None] > 0, key, keys)
    values = jnp.where(old[:, None] > 0, value, values)
    scores = (keys * query).sum(-1)
    return keys, values, (jax.nn.softmax(scores)[:, None] * values).sum(0)


def test_an_updated_array_is_stored_where_a_reduction_reads_it() -> None:
    """Not by one fusion for both arrays, behind which each reduction would read its own again."""
    scopes = scopes_of(evict, *[(1 << 17, 128)] * 2, (1 << 17,), *[(128,)] * 3)
    (scope,) = scopes.scopes
    stored = [
        sum(name in names for name in scope.outputs[:2]) for names in cover_of(scopes.graph, scope)
    ]
    assert max(stored) == 1
    members = [[scopes.graph[n].op for n in m] for m in cover_of(scopes.graph, scope)]
    assert all("reduce" in ops for ops in members if "select" in ops)


def test_fusions_end_at_what_a_kernel_stores() -> None:
    def function(x: jax.Array) -> jax.Array:
        y = jnp.abs(x * 2)
        return jnp.concatenate([y[1:], y[:1]]) * jnp.concatenate([y[-1:], y[:-1]])

    scopes = scopes_of(function, (2048, 4096))
    (scope,) = scopes.scopes
    fusion = make_fusion_graph(scopes.graph, scope, H100)
    (whole,) = cover_of(scopes.graph, scope)
    (kept,) = (name for name in whole if scopes.graph[name].op == "abs")
    (proposal,) = propose_each(scopes.graph, scope, fusion, H100, {kept})
    first, second = (
        [n for v in each_vertex(f) for n in fusion.members[v]] for f in proposal.fusions
    )
    assert kept in first and kept not in second


# ---- every graph


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(wide_graphs(), st.integers(0, 99))
def test_parts_that_share_ops_compute_the_same(graph: Graph, seed: int) -> None:
    scopes = stitch_remotely(find_scopes(graph))
    apart = scopes.graph
    for scope in scopes.scopes:
        cover = cover_of(apart, scope)
        parts = make_parts(apart, scope, cover)
        apart = check_graph(parts.graph)
        made: set[str] = set()
        for part in parts.scopes:  # in an order in which they can run
            members = {m for p in parts.scopes for m in p.members}
            assert not (set(part.inputs) & members) - made
            made |= set(part.members)
        assert made >= set(scope.outputs)
    arguments = random_arguments(graph, seed)
    for expected, got in zip(run_graph(graph, arguments), run_graph(apart, arguments), strict=True):
        np.testing.assert_array_equal(expected, got)


def plan_all(scopes: Scopes, planner: Planner) -> PlannedScopes:
    return split_scopes(
        scopes,
        H100,
        plan=planner.plan,
        draft=planner.draft,
        project=lambda plan, resources: project(plan.kernel, H100, resources, plan.work),
    )


def time_us(planner: Planner, graph: Graph, scope: Scope) -> float:
    plan = planner.plan(graph, scope)
    return project(plan.kernel, H100, work=plan.work).time_us if plan else 0.0


def assert_never_slower(scopes: Scopes) -> None:
    """Against the fusions that XLA would make, projected by the same rule."""
    planner = Planner(H100)
    planned = plan_all(scopes, planner)
    for scope in scopes.scopes:
        ours = [p for p in planned.plans if p.scope.name.startswith(scope.name)]
        ours_us = sum(project(p.kernel, H100, work=p.work).time_us for p in ours)
        parts = make_parts(scopes.graph, scope, cover_of(scopes.graph, scope))
        xla_us = sum(time_us(planner, parts.graph, part) for part in parts.scopes)
        worth = splitting.XLA_WORTH
        if any(s.scope == scope.name and s.reason.symptom is Symptom.SPILL for s in planned.splits):
            worth = splitting.SPILL_WORTH  # projected too slow
        most_us = max(xla_us / worth, xla_us + splitting.XLA_GAIN_US)
        assert ours_us <= most_us * 1.001, (ours_us, xla_us, str(scope))


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(wide_graphs(max_ops=24))
def test_no_plan_is_slower_than_the_fusions_of_xla(graph: Graph) -> None:
    assert_never_slower(stitch_remotely(find_scopes(graph)))


def stencil(x: jax.Array) -> Any:
    for axis in (0, 1, 0):
        ahead = jnp.roll(x, 1, axis) - x
        x = x + 0.1 * jnp.minimum(jnp.abs(ahead), jnp.abs(jnp.roll(ahead, -1, axis)))
    return x, x.max()


def ladder(x: jax.Array) -> Any:
    """Statistics over columns and rows by turns."""
    for _ in range(3):
        x = jnp.tanh(x - x.mean(0))
        x = x * jax.lax.rsqrt((x * x).mean(1, keepdims=True) + 1e-6)
    return x, x.sum(0)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (gradient_of_scan, [(32, 1 << 17)] * 2),
        (stencil, [(2048, 2048)]),
        (ladder, [(8192, 1024)]),
        (lambda x, y: ((x.T @ y).T + x.T, x + y.T), [(1024, 1024)] * 2),
    ],
)
def test_no_plan_of_a_pattern_is_slower(
    function: Callable[..., Any], shapes: list[tuple[int, ...]]
) -> None:
    assert_never_slower(scopes_of(function, *shapes))


@pytest.mark.parametrize("copied", [0, 256 << 20])
def test_copies_in_front_of_a_kernel_are_part_of_its_time(copied: int) -> None:
    """Parts that spare them are faster."""

    def normalise(x: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.square(x).mean(1, keepdims=True))

    planned = plan_scopes(
        scopes_of(normalise, LARGE),
        H100,
        copied=lambda plan: copied if plan.scope.name == "stitch_0" else 0,
    )
    assert (len(planned.plans) > 1) is (copied > 0)


def test_the_gradient_of_a_scan_is_several_kernels() -> None:
    """As one kernel it meets at each level and computes them again at many places."""
    scopes = scopes_of(gradient_of_scan, (128, 1 << 17), (128, 1 << 17))
    planned = plan_all(scopes, Planner(H100))
    split = next(s for s in planned.splits if s.parts)
    assert len(split.parts) > 8 and split.parts_us < 0.9 * split.whole_us


def attend_once(q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array) -> jax.Array:
    """Attention of one query a head against a cache in 16 bits."""
    wide = jnp.float32
    scores = jnp.where(seen > 0, (q[:, None].astype(wide) * k).sum(-1), -1e9)
    p = jax.nn.softmax(scores, -1).astype(q.dtype)
    return (p[..., None].astype(wide) * v).sum(1).astype(q.dtype)


@pytest.mark.parametrize(("heads", "keys"), [(128, 2048), (256, 1024)])
def test_fusions_share_a_kernel_where_no_block_waits(heads: int, keys: int) -> None:
    """XLA's emitters end a fusion at each statistic of a row; a block holds all of the row."""
    shapes = (heads, 64), (heads, keys, 64), (heads, keys, 64), (1, keys)
    arrays = (np.zeros(shape, jnp.bfloat16) for shape in shapes)
    scopes = stitch_remotely(find_scopes(simplify(import_hlo(lower(attend_once, *arrays)))))
    planned = plan_all(scopes, Planner(H100))
    members = [[planned.scopes.graph[n].op for n in p.scope.members] for p in planned.plans]
    assert [ops.count("reduce") for ops in members] == [1, 2, 1]
    assert [plan.kernel.global_barriers for plan in planned.plans] == [0, 0, 0]
