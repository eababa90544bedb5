"""Bounds before lowering, and the search that they serve."""

from __future__ import annotations

import dataclasses
import math
import threading

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hlo_runner import lower

from astitch.cost.projected_latency import project
from astitch.cost.prune import Bound, bound_plan
from astitch.cost.speed_of_light import measure_work
from astitch.device.gpu import preset
from astitch.device.schedule import DEFAULT, Keep, Schedule
from astitch.dominant import choose_dominants
from astitch.hlo_import import import_hlo
from astitch.mapping.roots import RootReads
from astitch.rewrite.simplify import simplify
from astitch.search import plan as planning
from astitch.search import plan_scopes as compiling
from astitch.search.check_plan import check_plan
from astitch.search.plan import enumerate_schedules, plan_scope, rank_plans
from astitch.toolchain.nvrtc import Resources
from tests.scopes import find_scopes

F32, BF16 = np.float32, ml_dtypes.bfloat16
H100 = preset("h100")


def scope_of(function, *arrays):
    specs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in arrays]
    graph = simplify(import_hlo(lower(function, *specs)))
    (scope,) = find_scopes(graph).scopes
    return graph, scope


def bound(function, *arrays, schedule: Schedule = DEFAULT, gpu=H100) -> Bound:
    graph, scope = scope_of(function, *arrays)
    groups = choose_dominants(graph, scope)
    launch, arrangement = planning._arrange(RootReads(graph, groups), gpu, schedule)
    return bound_plan(arrangement, launch, schedule, gpu, measure_work(graph, scope.members))


def softmax(x):
    return jax.nn.softmax(x, axis=-1)


def column_sum(x):
    return x.sum(0)


def normalise_columns(x):
    return (x - x.mean(0)) * jax.lax.rsqrt(jnp.square(x - x.mean(0)).mean(0) + 1e-5)


SCOPES = {
    "softmax": (softmax, ((8192, 4096), F32)),
    "softmax_bf16": (softmax, ((8192, 4096), BF16)),
    "softmax_long": (softmax, ((16, 1 << 20), F32)),
    "softmax_few": (softmax, ((64, 30_000), F32)),
    "softmax_short": (softmax, ((100_000, 32), F32)),
    "column_sum": (column_sum, ((65536, 1024), F32)),
    "sum": (jnp.sum, ((1 << 26,), F32)),
    "normalise_columns": (normalise_columns, ((65536, 512), F32)),
    "gelu": (jax.nn.gelu, ((1 << 24,), BF16)),
}


@pytest.mark.parametrize("name", SCOPES)
def test_no_plan_is_projected_to_beat_its_bound(name):
    graph, scope = scope_of(*SCOPES[name])
    groups = choose_dominants(graph, scope)
    work = measure_work(graph, scope.members)
    schedules = enumerate_schedules(graph, scope, H100)
    assert len(schedules) >= 10
    for schedule in schedules:
        launch, arrangement = planning._arrange(RootReads(graph, groups), H100, schedule)
        found = bound_plan(arrangement, launch, schedule, H100, work)
        projected_us = project(plan_scope(graph, scope, H100, schedule).kernel, H100).time_us
        assert found.least_us <= projected_us, f"{schedule}: {found}"


def test_a_column_sum_of_few_blocks_leaves_the_memory_idle():
    whole = bound(column_sum, ((65536, 1024), F32), schedule=Schedule(split=1))
    parts = bound(column_sum, ((65536, 1024), F32))
    assert whole.gm_ratio < 0.7
    assert parts.gm_ratio == 1
    assert whole.least_us > 1.4 * parts.least_us


def test_reading_again_shows_where_the_l2_is_the_limit():
    kept = bound(softmax, ((1024, 4096), F32), schedule=Schedule(block=512))
    again = bound(softmax, ((1024, 4096), F32), schedule=Schedule(block=512, keep=Keep.NOTHING))
    assert again.gm_ratio < kept.gm_ratio


def test_what_does_not_fit_has_no_time():
    none = dataclasses.replace(bound(softmax, ((8192, 4096), F32)), coef=0.0)
    assert none.limit == 0
    assert none.least_us == math.inf


def test_too_few_registers_do_not_fit():
    small = dataclasses.replace(H100, registers_per_sm=16384)
    crowded = Schedule(block=512, blocks_per_sm=4)
    assert bound(softmax, ((8192, 4096), F32), schedule=crowded, gpu=small).coef == 0
    assert bound(softmax, ((8192, 4096), F32), schedule=crowded).coef == 1


def test_barriers_are_in_the_bound():
    split = bound(normalise_columns, ((65536, 512), F32))
    assert split.fixed_us >= H100.barrier_us
    assert bound(softmax, ((8192, 4096), F32)).fixed_us == 0


def test_a_bound_says_what_limits():
    assert str(bound(column_sum, ((65536, 1024), F32), schedule=Schedule(split=1))).startswith(
        "at most 0."
    )


# ---- the search -------------------------------------------------------------------------------------------------


def test_ranked_plans_are_sorted_checked_and_of_different_kernels():
    graph, scope = scope_of(*SCOPES["softmax"])
    ranked = rank_plans(graph, scope, H100)
    times = [projection.time_us for _, projection in ranked]
    assert times == sorted(times)
    assert len({plan.kernel for plan, _ in ranked}) == len(ranked) > 3
    assert DEFAULT in {plan.schedule for plan, _ in ranked}
    for plan, projection in ranked:
        check_plan(plan)
        assert plan.search.projected_us == projection.time_us


def test_candidates_with_a_hopeless_bound_are_never_lowered():
    graph, scope = scope_of(*SCOPES["column_sum"])
    plan = rank_plans(graph, scope, H100)[0][0]
    assert plan.pruned >= 3
    assert plan.search.lowered + plan.pruned <= plan.search.considered
    assert f"{plan.pruned} pruned" in str(plan)


def test_the_budget_is_kept():
    graph, scope = scope_of(*SCOPES["softmax"])
    assert rank_plans(graph, scope, H100, budget=3)[0][0].search.lowered <= 3


def test_short_kernels_and_large_scopes_are_left_to_the_rules(monkeypatch):
    monkeypatch.setattr(planning, "rank_plans", None)  # not to be called
    graph, scope = scope_of(softmax, ((128, 128), F32))
    assert plan_scope(graph, scope, H100).schedule == DEFAULT
    graph, scope = scope_of(*SCOPES["softmax"])
    monkeypatch.setattr(planning, "CANDIDATES", len(scope.members))
    assert plan_scope(graph, scope, H100).schedule == DEFAULT


def test_another_schedule_must_be_clearly_faster(monkeypatch):
    graph, scope = scope_of(*SCOPES["softmax"])
    rules = plan_scope(graph, scope, H100, DEFAULT)

    def project_as(share):
        def projected(kernel, gpu, work=None):
            found = project(kernel, gpu)
            factor = 1.0 if kernel == rules.kernel else share
            return dataclasses.replace(found, time_us=100.0 * factor)

        monkeypatch.setattr(planning, "project", projected)
        return plan_scope(graph, scope, H100)

    assert project_as(0.95).schedule == DEFAULT
    other = project_as(0.8)
    assert other.schedule != DEFAULT
    assert (other.search.default_us, other.search.projected_us) == (100, 80)
    assert "80.0 us, 100.0 us by the rules" in str(other)


def spilling(*schedules: Schedule):
    """A compiler that says that the kernels of these schedules spill, and what it was asked."""
    asked = []

    def observe(plan):
        asked.append(plan.schedule)
        spilled = 8 if plan.schedule in schedules else 0
        return Resources(64, spilled, spilled, spilled, 0)

    return observe, asked


def test_a_kernel_that_spills_gives_way_to_the_next_in_rank(monkeypatch):
    monkeypatch.setattr(planning, "DOUBTFUL_REGISTERS", 256)
    graph, scope = scope_of(*SCOPES["column_sum"])
    first = plan_scope(graph, scope, H100)
    observe, asked = spilling(first.schedule)
    second = plan_scope(graph, scope, H100, observe=observe)
    assert second.kernel != first.kernel
    assert first.schedule in asked
    assert asked[-1] == second.schedule
    observe, asked = spilling(first.schedule, second.schedule)
    third = plan_scope(graph, scope, H100, observe=observe)
    assert third.kernel not in (first.kernel, second.kernel)


def test_where_all_spill_the_first_choice_stays(monkeypatch):
    monkeypatch.setattr(planning, "DOUBTFUL_REGISTERS", 256)
    graph, scope = scope_of(*SCOPES["softmax"])
    asked = []

    def observe(plan):
        asked.append(plan)
        return Resources(64, 8, 8, 8, 0)

    assert plan_scope(graph, scope, H100, observe=observe) == plan_scope(graph, scope, H100)
    assert len(asked) <= planning.MOST_OBSERVED + 1


def test_the_compiler_is_asked_only_where_registers_are_near_their_bound(monkeypatch):
    monkeypatch.setattr(planning, "DOUBTFUL_REGISTERS", -256)
    graph, scope = scope_of(*SCOPES["softmax"])
    observe, asked = spilling(DEFAULT)
    plan_scope(graph, scope, H100, observe=observe)
    assert not asked


def test_while_the_compiler_looks_at_what_likely_spills_it_is_given_the_next(monkeypatch):
    monkeypatch.setattr(planning, "DOUBTFUL_REGISTERS", 256)
    graph, scope = scope_of(*SCOPES["column_sum"])
    observe, asked = spilling(*(plan.schedule for plan, _ in rank_plans(graph, scope, H100)))
    early = []

    def compile_early(plan):
        assert not asked  # before anything is waited for
        early.append(plan.schedule)

    plan_scope(graph, scope, H100, observe=observe, compile_early=compile_early)
    assert len(asked) == planning.MOST_OBSERVED and not early
    del asked[:]
    monkeypatch.setattr(planning, "LIKELY_REGISTERS", 256)
    plan = plan_scope(graph, scope, H100, observe=observe, compile_early=compile_early)
    assert early == asked[1:2]
    # The plan is the same, whether the next is asked for early or not.
    assert plan == plan_scope(graph, scope, H100, observe=observe)


def test_a_kernel_of_enough_registers_is_not_compiled_early(monkeypatch):
    monkeypatch.setattr(planning, "LIKELY_REGISTERS", 256)
    monkeypatch.setattr(planning, "DOUBTFUL_REGISTERS", -256)
    graph, scope = scope_of(*SCOPES["column_sum"])
    early = []
    plan_scope(graph, scope, H100, observe=spilling()[0], compile_early=early.append)
    assert not early


def test_two_kernels_of_one_scope_are_with_the_compiler_at_once(monkeypatch):
    monkeypatch.setattr(planning, "DOUBTFUL_REGISTERS", 256)
    monkeypatch.setattr(planning, "LIKELY_REGISTERS", 256)
    scopes = find_scopes(scope_of(*SCOPES["column_sum"])[0])
    spills = Resources(64, 8, 8, 8, 0)
    together, seen = threading.Barrier(2), set()

    def observe(plan, gpu, render):
        if plan.schedule not in seen and len(seen) < 2:
            seen.add(plan.schedule)
            together.wait(10)
        return spills

    monkeypatch.setattr(compiling, "count_threads", lambda: compiling.LEAST_THREADS)
    monkeypatch.setattr(compiling, "observe_plan", observe)
    at_once = compiling.plan_scopes(scopes, H100).plans
    monkeypatch.setattr(compiling, "count_threads", lambda: compiling.LEAST_THREADS - 1)
    monkeypatch.setattr(compiling, "observe_plan", lambda *_: spills)
    assert at_once == compiling.plan_scopes(scopes, H100).plans


def test_planning_is_repeatable():
    graph, scope = scope_of(*SCOPES["softmax_long"])
    assert plan_scope(graph, scope, H100) == plan_scope(graph, scope, H100)
