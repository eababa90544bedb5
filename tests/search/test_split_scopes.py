"""Which plans show a symptom, what a split must gain, and that a split program computes the same."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphs import GraphBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import random_arguments

from astitch.compile import compile_graph, compile_hlo, show_pass
from astitch.cost.projected_latency import Projection, project
from astitch.device.gpu import preset
from astitch.errors import IllegalProduct
from astitch.graph.dimensions import is_embedded
from astitch.graph.index import ZERO
from astitch.graph.ir import Graph
from astitch.graph.reference import run_graph
from astitch.kernel import kernel_ir as k
from astitch.run.host_engine import HostEngine
from astitch.scope.remote_stitch import stitch_remotely
from astitch.search import plan_scopes
from astitch.search import split_scopes as module
from astitch.search.check_plan import check_plan
from astitch.search.patterns import estimate_statements
from astitch.search.peak_memory import list_steps, schedule
from astitch.search.plan import Plan, plan_scope
from astitch.search.split_scopes import (
    LONG_CODE,
    MANY_BARRIERS,
    Decisions,
    PlannedScopes,
    Reason,
    Split,
    Symptom,
    count_at_once,
    count_statements,
    split_scopes,
    why_split,
    work_of,
)
from astitch.show.compilation import Compilation
from astitch.stitch_scope import Scope, Scopes
from astitch.toolchain.compile_pool import CompilePool
from astitch.toolchain.nvrtc import Resources
from tests.hlo_runner import lower
from tests.programs import load
from tests.scopes import find_scopes
from tests.whole.test_fuzz import wide_graphs

H100, HOST = preset("h100"), preset("host")


def statistics(count: int = 3, rows: int = 400) -> Graph:
    """Rounds of normalisation of columns, each by what the last one gave."""
    g = GraphBuilder("statistics")
    shape = (rows, 24)
    x = g.parameter(f"f32[{rows},24]")
    for _ in range(count):
        total = g.reduce(x, (0,), "add")
        mean = g.same("multiply", total, g.splat(1 / rows, "f32[24]"))
        x = g.same("tanh", g.same("subtract", x, g.broadcast(mean, shape, (1,))))
    return g.build(x)


def scopes_of(graph: Graph) -> Scopes:
    return stitch_remotely(find_scopes(graph))


def plan_on_h100(graph: Graph, scope: Scope) -> Plan | None:
    plan = plan_scope(graph, scope, H100)
    return plan and check_plan(plan)


def project_plan(plan: Plan, resources: Resources | None) -> Projection:
    return project(plan.kernel, H100, resources)


def split(
    graph: Graph,
    *,
    project: Callable[[Plan, Resources | None], Projection] = project_plan,
    observe: Callable[[Plan], Resources | None] = lambda _: None,
    plan: Callable[[Graph, Scope], Plan | None] = plan_on_h100,
) -> PlannedScopes:
    return split_scopes(scopes_of(graph), H100, plan=plan, project=project, observe=observe)


@cache
def healthy() -> tuple[Plan, Projection]:
    """A plan without a symptom, and its projection."""
    graph = statistics(1, rows=100_000)
    plan = plan_on_h100(graph, scopes_of(graph).scopes[0])
    assert plan is not None
    return plan, replace(project_plan(plan, None), time_us=10.0, barriers_us=1.0, spill_bytes=0)


# ---- symptoms


def test_a_healthy_plan_is_not_looked_at() -> None:
    assert why_split(healthy()[0], H100, healthy()[1]) is None


def test_a_spill_is_a_symptom() -> None:
    plan, projection = healthy()
    spilled = replace(projection, spill_bytes=184, registers=64, compiled=True)
    reason = why_split(plan, H100, spilled)
    assert str(reason) == "register spill: 184 B a thread at 64 registers (compiled)"
    assert why_split(plan, H100, replace(spilled, spill_bytes=8)) is None
    guessed = why_split(plan, H100, replace(spilled, compiled=False))
    assert str(guessed).endswith("(estimated)")


def test_lost_occupancy_is_a_symptom() -> None:
    plan, projection = healthy()
    kernel = replace(plan.kernel, block=128, grid=1000)
    alone = replace(projection, blocks_per_sm=1, registers=200)
    reason = why_split(replace(plan, kernel=kernel), H100, alone)
    assert reason and reason.symptom is Symptom.OCCUPANCY
    assert "200 registers (estimated)" in str(reason) and "6% of an SM's threads" in str(reason)
    few = replace(plan, kernel=replace(kernel, grid=10))
    assert why_split(few, H100, alone) is None  # most SMs are idle anyway


def test_long_code_is_a_symptom() -> None:
    plan, projection = healthy()
    body = (k.Index("i", ZERO),) * (LONG_CODE + 1)
    reason = why_split(replace(plan, kernel=replace(plan.kernel, body=body)), H100, projection)
    assert str(reason) == "code size: 2401 statements, at most 2400 compile fast"


def test_many_barriers_are_a_symptom_where_they_take_long() -> None:
    plan, projection = healthy()
    plan = replace(plan, kernel=replace(plan.kernel, global_barriers=MANY_BARRIERS))
    reason = why_split(plan, H100, replace(projection, barriers_us=6.0))
    assert str(reason) == "global barriers: 5 take 6.0 of 10.0 us"
    assert why_split(plan, H100, replace(projection, barriers_us=6.0, time_us=20.0)) is None


def test_far_from_the_speed_of_light_is_a_symptom() -> None:
    plan, projection = healthy()
    light_us = work_of(plan).bound_us(H100)
    reason = why_split(plan, H100, replace(projection, time_us=5 * light_us + 20))
    assert reason and reason.symptom is Symptom.FAR
    assert f"where {light_us:.1f} us are possible" in str(reason)
    assert why_split(plan, H100, replace(projection, time_us=3 * light_us)) is None


def test_statements_inside_of_others_count() -> None:
    index = k.Index("i", ZERO)
    loop = k.Loop("i", 2, False, (index, k.If((), (index,))))
    choose = k.Choose(
        "v", healthy()[0].kernel.parameters[0].dtype, (k.Branch((), (index,), k.Name("v")),)
    )
    assert count_statements((loop, index)) == 5
    assert count_statements((choose,)) == 2


def test_sections_share_registers_only_where_these_are_bounded() -> None:
    index = k.Index("i", ZERO)
    sections = tuple(k.Section(n, "", 0, 1, 1, 32, (index,) * n) for n in (3, 7))
    kernel = replace(healthy()[0].kernel, body=(index, *sections), blocks_per_sm=0)
    assert count_at_once(kernel) == 1 + 8  # what stands outside, and the longer section
    assert count_at_once(replace(kernel, blocks_per_sm=2)) == 1 + 4 + 8


# ---- decisions


def spill_by_length(plan: Plan) -> Resources:
    """A compiler that spills the more, the more reduces beyond two a kernel has."""
    reduces = sum(plan.arrangement.graph[m].op == "reduce" for m in plan.scope.members)
    spilled = 20_000 * max(reduces - 2, 0)
    return Resources(64, spilled, spilled, spilled, 0)


@pytest.fixture
def always_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OBSERVED_STATEMENTS", 0)


@pytest.mark.usefixtures("always_compiled")
def test_a_spilling_kernel_is_split_until_nothing_spills() -> None:
    planned = split(statistics(6), observe=spill_by_length)
    assert len(planned.plans) >= 3
    assert all(spill_by_length(plan).spill_store_bytes == 0 for plan in planned.plans)
    first = planned.splits[0]
    assert first.reason.symptom is Symptom.SPILL and len(first.parts) > 1
    assert first.parts_us < first.whole_us
    assert "register spill: 160000 B a thread at 64 registers (compiled): split into" in str(
        planned
    )


@pytest.mark.usefixtures("always_compiled")
def test_a_split_that_is_not_faster_is_not_taken() -> None:
    """Every part spills as the whole does."""
    planned = split(statistics(3), observe=lambda _: Resources(64, 4000, 4000, 4000, 0))
    (decision,) = planned.splits
    assert decision.parts == () and decision.parts_us > decision.whole_us
    assert len(planned.plans) == 1 and planned.scopes.scopes == scopes_of(statistics(3)).scopes
    assert ": kept whole (whole " in str(decision)


def test_the_compiler_is_asked_only_in_doubt() -> None:
    asked: list[str] = []

    def observe(plan: Plan) -> None:
        asked.append(plan.scope.name)

    graph = statistics(2)
    assert split(graph, observe=observe).splits == () and asked == []

    def doubtful(plan: Plan, resources: Resources | None) -> Projection:
        return replace(project_plan(plan, resources), spill_bytes=8)

    split(graph, project=doubtful, observe=observe)
    assert asked == ["stitch_0"]


def test_what_has_no_plan_as_a_whole_is_split() -> None:
    def plan(graph: Graph, scope: Scope) -> Plan | None:
        if len(scope.members) > 8:
            raise IllegalProduct(f"{scope.name}: nothing to demote")
        return plan_on_h100(graph, scope)

    planned = split(statistics(3), plan=plan)
    assert len(planned.plans) > 1
    assert planned.splits[0].whole_us == math.inf
    assert str(planned).startswith("stitch_0: no kernel: stitch_0: nothing to demote: split into")


@pytest.fixture
def surely_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SURELY_LONG", 40)
    monkeypatch.setattr(module, "UNSEEN_STATEMENTS", 40)


@pytest.mark.usefixtures("surely_long")
def test_what_is_surely_too_long_is_split_before_it_is_planned() -> None:
    planned_ops: list[int] = []

    def plan(graph: Graph, scope: Scope) -> Plan | None:
        planned_ops.append(len(scope.members))
        return plan_on_h100(graph, scope)

    graph = statistics(5)
    (whole,) = scopes_of(graph).scopes
    planned = split(graph, plan=plan)
    assert max(planned_ops) < len(whole.members)
    assert len(planned_ops) == len(planned.plans) > 1  # no part is planned twice either
    decision = planned.splits[0]
    assert decision.reason.symptom is Symptom.CODE_SIZE and decision.whole_us == math.inf
    assert decision.parts == tuple(scope.name for scope in planned.scopes.scopes)
    detail = f"code size: about {estimate_statements(graph, whole)} statements, at most 2400"
    assert str(decision).startswith(f"stitch_0: {detail} compile fast: split into stitch_0_0")


def assert_divided_early(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, finalize: Callable[[Plan], None] | None = None
) -> None:
    """By threads alone, and as without them."""
    asked: list[threading.Thread] = []
    choose = module.choose_cover

    def noting(*args: Any, **kwargs: Any) -> Any:
        asked.append(threading.current_thread())
        return choose(*args, **kwargs)

    monkeypatch.setattr(module, "choose_cover", noting)
    calls: dict[str, Any] = {"plan": plan_on_h100, "draft": plan_on_h100, "finalize": finalize}
    calls["project"] = lambda plan, _: project(plan.kernel, H100)
    with CompilePool(2) as pool:
        pause = pool.ask(lambda _: time.sleep(0.05))
        calls["observe"] = pause
        found = split_scopes(scopes_of(graph), H100, pool=pool, **calls)
    assert found.splits
    assert asked and threading.main_thread() not in asked
    assert found == split_scopes(scopes_of(graph), H100, **calls | {"observe": lambda _: None})


@pytest.mark.usefixtures("surely_long")
def test_what_is_surely_too_long_is_divided_early(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_divided_early(statistics(5), monkeypatch)


def test_a_split_is_looked_for_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG_CODE", 60)
    assert_divided_early(statistics(5), monkeypatch, lambda _: None)


def test_what_is_not_surely_too_long_is_planned_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = statistics(5)
    (whole,) = scopes_of(graph).scopes
    monkeypatch.setattr(module, "SURELY_LONG", estimate_statements(graph, whole))
    planned = split(graph)
    assert planned.splits == () and planned.scopes.scopes == (whole,)


@pytest.mark.usefixtures("surely_long")
def test_what_cannot_be_divided_is_planned_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNSEEN_STATEMENTS", 10_000)
    g = GraphBuilder()
    x = g.parameter("f32[64,24]")
    for _ in range(50):
        x = g.same("tanh", x)
    planned = split(g.build(x))
    assert planned.splits == () and len(planned.plans) == 1


@pytest.mark.usefixtures("surely_long")
def test_a_program_split_before_it_was_planned_computes_the_same() -> None:
    graph = statistics(5)
    parts = compile_graph(graph, HOST)
    assert len(parts.program.kernels) > 1 and parts.splits[0].whole_us == math.inf
    assert_same(parts, graph)


def test_what_has_no_plan_at_all_is_an_error() -> None:
    def plan(graph: Graph, scope: Scope) -> Plan | None:
        raise IllegalProduct(f"{scope.name}: nothing to demote")

    with pytest.raises(IllegalProduct, match="stitch_0: nothing to demote"):
        split(statistics(2), plan=plan)


def test_no_symptom_is_said() -> None:
    assert str(split(statistics(1))).splitlines()[0] == "no kernel shows a symptom"


def test_a_decision_says_both_times() -> None:
    decision = Split("s", Reason(Symptom.FAR, "x"), 10.0, (), 9.7)
    figures = "(whole 10.00 us, best split 9.70 us)"
    assert str(decision) == f"s: far from the speed of light: x: kept whole {figures}"


@pytest.mark.parametrize(("parts_us", "taken"), [(4.7, True), (4.9, False)])
def test_a_split_must_gain_five_percent(parts_us: float, taken: bool) -> None:
    """A kernel that is far from the speed of light takes 100 us, each of its two parts `parts_us` of a tenth."""
    graph = statistics(2)
    whole = scopes_of(graph).scopes[0].members

    def project(plan: Plan, resources: Resources | None) -> Projection:
        is_whole = plan.scope.members == whole
        time_us = 100.0 if is_whole else 20 * parts_us * len(plan.scope.members) / len(whole)
        return replace(project_plan(plan, resources), time_us=time_us, barriers_us=0.0)

    planned = split(graph, project=project)
    assert planned.splits[0].reason.symptom is Symptom.FAR
    assert bool(planned.splits[0].parts) == taken


@pytest.mark.parametrize(
    ("gain_us", "in_loop", "taken"), [(1.5, True, True), (1.5, False, False), (0.4, True, False)]
)
def test_a_turn_is_worth_less_time(
    monkeypatch: pytest.MonkeyPatch, gain_us: float, in_loop: bool, taken: bool
) -> None:
    """XLA's fusions may take so much less than a kernel of 6 us."""
    graph = statistics(2)
    whole = scopes_of(graph).scopes[0].members

    def project(plan: Plan, resources: Resources | None) -> Projection:
        share = len(plan.scope.members) / len(whole)
        time_us = 6.0 if share == 1 else (6.0 - gain_us) * share
        return replace(project_plan(plan, resources), time_us=time_us, barriers_us=0.0)

    monkeypatch.setattr(module, "why_split", lambda plan, gpu, projection: None)
    planned = split_scopes(
        scopes_of(graph), H100, plan=plan_on_h100, project=project, in_loop=in_loop
    )
    assert any(s.parts for s in planned.splits) is taken


# ---- whole programs


def assert_same(compiled: Compilation, graph: Graph, seed: int = 0) -> None:
    arguments = random_arguments(graph, seed)
    with np.errstate(all="ignore"):
        got = HostEngine(compiled.program, check=True).run(arguments)
        want = run_graph(graph, arguments)
    for g, w in zip(got, want, strict=True):
        if w.dtype.kind in "biu":
            np.testing.assert_array_equal(g, w)
        else:
            low = w.dtype.itemsize == 2
            np.testing.assert_allclose(
                g.astype(np.float64), w.astype(np.float64), rtol=3e-2 if low else 1e-4, atol=3e-2 if low else 1e-4
            )  # fmt: skip


def test_a_program_split_for_its_code_size_computes_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = statistics(5)
    whole = compile_graph(graph, HOST)
    assert len(whole.program.kernels) == 1 and whole.splits == ()
    monkeypatch.setattr(module, "LONG_CODE", 80)
    monkeypatch.setattr(module, "CODE_SIZE_WORTH", 10.0)
    parts = compile_graph(graph, HOST)
    assert len(parts.program.kernels) > 1
    assert max(count_statements(p.kernel.body) for p in parts.plans) < count_statements(
        whole.plans[0].kernel.body
    )
    assert_same(parts, graph)
    text = parts.explain()
    assert "\nkernels with a symptom: " in text
    assert "  stitch_0: code size: " in text and ": split into stitch_0_0, stitch_0_1" in text
    assert "not stitched: %" in text and "explored: one kernel for both" in text


def test_a_program_split_for_its_spills_computes_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "OBSERVED_STATEMENTS", 0)
    monkeypatch.setattr(plan_scopes, "observe_plan", lambda plan, *_: spill_by_length(plan))
    graph = statistics(6)
    compiled = compile_graph(graph, HOST)
    assert len(compiled.program.kernels) >= 3
    assert all(split.reason.symptom is Symptom.SPILL for split in compiled.splits)
    assert_same(compiled, graph)


def test_a_broadcast_that_two_parts_read_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG_CODE", 10)
    monkeypatch.setattr(module, "CODE_SIZE_WORTH", 100.0)
    g = GraphBuilder()
    shape = "f32[64,24]"
    x, bias = g.parameter(shape), g.parameter("f32[24]")
    spread = g.broadcast(g.same("tanh", bias), (64, 24), (1,), "spread")
    for _ in range(4):
        total = g.reduce(g.same("multiply", x, spread), (0,), "add")
        x = g.same("tanh", g.same("add", x, g.broadcast(total, (64, 24), (1,))))
    graph = g.build(x)
    compiled = compile_graph(graph, HOST)
    copies = [n for n in compiled.scopes.graph.nodes if n.startswith("spread.")]
    assert len(compiled.program.kernels) > 1 and copies
    assert not any(is_embedded(compiled.scopes.graph, c) for c in copies)
    assert_same(compiled, graph)


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(wide_graphs(), st.integers(0, 99))
def test_random_graphs_in_many_parts_compute_the_same(graph: Graph, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONG_CODE", 20)
        patch.setattr(module, "CODE_SIZE_WORTH", 100.0)
        compiled = compile_graph(graph, HOST)
    assert_same(compiled, graph, seed)


def test_compiling_again_splits_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG_CODE", 80)
    monkeypatch.setattr(module, "CODE_SIZE_WORTH", 10.0)
    first, second = (compile_graph(statistics(5), HOST) for _ in range(2))
    assert repr(first.program) == repr(second.program)
    assert first.splits == second.splits != ()


def test_planning_early_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a compiler that sees spills by chance, once for each text."""
    monkeypatch.setattr(module, "OBSERVED_STATEMENTS", 0)
    asked: list[str] = []

    def observe(plan: Plan, *_: Any) -> Resources:
        asked.append(plan.kernel.name)
        time.sleep(0.002)
        return spill_by_length(plan)

    monkeypatch.setattr(plan_scopes, "observe_plan", observe)
    graph = statistics(6)
    found = []
    for threads in (0, 1, 4):
        monkeypatch.setattr(plan_scopes, "count_threads", lambda threads=threads: threads)
        compiled = compile_graph(graph, H100)
        found.append((compiled.splits, repr(compiled.program), compiled.plans, sorted(asked)))
        asked.clear()
    assert found[0][0] != ()
    assert found[1:] == found[:1] * 2


@pytest.mark.parametrize("share", [0.0, 1.0, 100.0])
def test_parts_hand_on_no_more_than_memory_allows(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """share: of what a kernel in three parts would take.  A kernel for all holds its result alone."""
    graph = statistics(6)
    array = 400 * 24 * 4
    limit = share * 2 * array

    def project(plan: Plan, resources: Resources | None) -> Projection:
        whole = plan.scope.name == "stitch_0"
        spill, us = (1000, 100.0) if whole else (0, 3.0)
        return replace(healthy()[1], spill_bytes=spill, time_us=us)

    monkeypatch.setattr(module._Splitter, "find_peak_of_fusions", lambda *_: 0)
    found = split_scopes(
        scopes_of(graph), H100, plan=plan_on_h100, project=project, most_bytes=limit
    )
    peak = schedule(list_steps(found.scopes)).peak
    assert (len(found.plans) > 1) is (share > 0)
    assert peak <= max(limit, array)
    kept = "kept whole, as its parts would hold more than memory allows (whole 100.00 us"
    assert (kept in str(found.splits[0])) is (share == 0)


def pad(x: Any, axis: int) -> Any:
    widths = [(int(d == axis),) * 2 for d in range(x.ndim)]
    return jnp.pad(x, widths, mode="edge")


def apply(u: Any, k: Any) -> Any:
    """Conductances between neighbours times their differences."""
    total = jnp.zeros_like(u)
    for axis in range(u.ndim):
        size = u.shape[axis]
        for start in (0, 2):
            near, of = (
                jax.lax.slice_in_dim(pad(a, axis), start, start + size, axis=axis) for a in (u, k)
            )
            total = total + 2 / (1 / k + 1 / of) * (u - near)
    return total


def relax(u: Any, f: Any, k: Any) -> Any:
    for _ in range(6):
        u = u + 0.1 * jnp.tanh(f - apply(u, k))
    return u


def relax_by_colours(u: Any, f: Any, k: Any) -> Any:
    colour = sum(jnp.indices(u.shape)) % 2
    for turn in range(6):
        u = jnp.where(colour == turn % 2, u + 0.1 * jnp.sin(f - apply(u, k)), u)
    return u


@pytest.mark.parametrize("fn", [relax, relax_by_colours])
@pytest.mark.parametrize("shape", [(1024, 1024), (96, 96, 96)])
def test_what_many_parts_read_is_computed_again_where_memory_is_short(
    fn: Callable[..., Any], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SURELY_LONG", 100)
    data = lower(fn, *[jax.ShapeDtypeStruct(shape, np.float32)] * 3)

    def find_peak() -> int:
        compiled = compile_hlo(data, gpu=H100)
        scratch = {plan.scope.name: plan.kernel.scratch_bytes for plan in compiled.plans}
        return schedule(list_steps(compiled.scopes, scratch)).peak

    peak = find_peak()
    monkeypatch.setattr(module, "propose_thrifty", lambda *_: ())
    stored = find_peak()
    assert peak <= stored / (2 if len(shape) > 2 else 1)


@pytest.mark.parametrize(("part_us", "looked_at"), [(7.0, False), (3.0, True)])
def test_a_split_whose_draft_is_hopeless_is_not_planned(part_us: float, looked_at: bool) -> None:
    """A spilling kernel of 20 us is split below 12 us only."""
    planned: list[str] = []

    def plan(graph: Graph, scope: Scope) -> Plan | None:
        planned.append(scope.name)
        return plan_on_h100(graph, scope)

    def project(plan: Plan, resources: Resources | None) -> Projection:
        if plan.scope.name == "stitch_0":
            return replace(healthy()[1], spill_bytes=1000, time_us=20.0)
        return replace(healthy()[1], time_us=part_us)

    scopes = scopes_of(statistics(6))
    found = split_scopes(scopes, H100, plan=plan, draft=plan_on_h100, project=project)
    assert planned[0] == "stitch_0" and (len(planned) > 1) is looked_at
    if not looked_at:
        (decision,) = found.splits
        assert decision.parts == () and 12.0 < decision.parts_us < math.inf


@pytest.mark.parametrize("rows", [400, 4096, 100_000])
def test_what_was_found_of_structures_is_not_looked_for_again(rows: int) -> None:
    """A program that is compiled again, with other names, has the same plans."""
    drafted: list[str] = []

    def draft(graph: Graph, scope: Scope) -> Plan | None:
        drafted.append(scope.name)
        return plan_on_h100(graph, scope)

    def project(plan: Plan, resources: Resources | None) -> Projection:
        if plan.scope.name == "stitch_0":
            return replace(project_plan(plan, None), time_us=1000.0, spill_bytes=1000)
        return project_plan(plan, resources)

    known, scopes = Decisions(), scopes_of(statistics(6, rows))
    first, second = (
        split_scopes(scopes, H100, plan=plan_on_h100, draft=draft, project=project, found=known)
        for _ in range(2)
    )
    assert first == second and first.splits[0].parts
    assert drafted and len(drafted) == len(known.drafted_us)


@pytest.mark.parametrize(("part_us", "early"), [(60.0, True), (20.0, False)])
def test_a_kernel_that_will_hardly_be_split_is_compiled_meanwhile(
    part_us: float, early: bool
) -> None:
    """Of 100 us: what its parts take is looked at all the same."""
    events: list[tuple[str, str]] = []

    class Noting(CompilePool):
        def start(
            self, key: Hashable, work: Callable[[], object], weight: float = math.inf
        ) -> None:
            if isinstance(key, str):
                events.append(("compiled", key))

    def plan(graph: Graph, scope: Scope) -> Plan | None:
        events.append(("planned", scope.name))
        return plan_on_h100(graph, scope)

    def project(plan: Plan, resources: Resources | None) -> Projection:
        whole = plan.scope.name == "stitch_0"
        return replace(healthy()[1], time_us=100.0 if whole else part_us)

    with Noting(0) as pool:
        found = split_scopes(
            scopes_of(statistics(6)),
            H100,
            plan=plan,
            draft=plan_on_h100,
            project=project,
            finalize=lambda _: None,
            pool=pool,
        )
    assert events[0] == ("planned", "stitch_0") and len(events) > 3
    assert (events[1] == ("compiled", "stitch_0")) is early
    assert (found.splits[0].parts == ()) is early
    compiled = [name for event, name in events if event == "compiled"]
    assert len(compiled) == len(set(compiled)) == len(found.plans)


# ---- what is printed


def test_the_stage_prints_the_decisions() -> None:
    text = show_pass(load("layer_norm"), H100, "plan")
    assert text.startswith("no kernel shows a symptom\nscope stitch_0 (stage 0): ")


def test_explain_says_how_fast_light_is() -> None:
    compiled = compile_hlo(load("layer_norm"), gpu="h100")
    (plan,) = compiled.plans
    work = work_of(plan)
    line = f"  speed of light: {work.bound_us(H100):.2f} us: {work}"
    assert line in compiled.explain().splitlines()
    assert work.bytes > 0 and work.flops > 0
