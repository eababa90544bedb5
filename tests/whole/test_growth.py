"""How the compiler's work grows with a program: counted calls, not seconds."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest

from astitch.cost.workload import count_workload
from astitch.device.gpu import preset
from astitch.faults import FaultLog
from astitch.graph.ir import Graph
from astitch.hlo_import import import_hlo
from astitch.pipeline import OWN, Job, run_passes
from astitch.program.arena import Lifetime, plan_arena
from astitch.search.check_plan import check_plan
from astitch.search.plan import Plan, Planner
from astitch.stitch_scope import Scopes
from benchmarks import compile_time

H100 = preset("h100")
MOST = 1.15
"""The exponent of calls ~ ops^e that work may have at most."""


def count_calls(work: Callable[[], object]) -> int:
    """Calls of functions, those of C among them."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def import_shape(shape: str, ops: int) -> Graph:
    function, arguments = compile_time.SHAPES[shape](ops)
    return import_hlo(compile_time.lower_for_gpu(function, *arguments))


def find_scopes(graph: Graph) -> Scopes:
    job = Job(graph.name, H100, OWN, tune=False, faults=FaultLog())
    found: Scopes = run_passes(graph, job, until="stitch_remotely")["stitch_remotely"]
    return found


def check_growth(few: tuple[int, int], many: tuple[int, int]) -> None:
    """few, many: ops, and the calls that they take."""
    exponent = compile_time.exponent(few, many)
    assert exponent <= MOST, f"{few} and {many} (ops, calls): ops^{exponent:.2f}"


@pytest.mark.parametrize("shape", sorted(compile_time.SHAPES))
def test_a_graph_four_times_as_large_takes_four_times_the_work(shape: str) -> None:
    """From the import to the stitch ops."""
    graphs = [import_shape(shape, ops) for ops in (200, 800)]
    for graph in graphs:
        find_scopes(graph)  # what is computed once a process
    few, many = ((len(g), count_calls(lambda g=g: find_scopes(g))) for g in graphs)
    check_growth(few, many)


def plan_one(scopes: Scopes) -> Plan:
    """The plan by rule of a graph's only scope, checked."""
    (scope,) = scopes.scopes
    plan = Planner(H100).draft(scopes.graph, scope)
    assert plan
    return check_plan(plan)


@pytest.mark.parametrize("shape", ["arguments", "chain", "outputs", "slices", "updates"])
def test_a_kernel_four_times_as_long_takes_four_times_the_work(shape: str) -> None:
    """Arranging, lowering, counting and checking one stitch op of many task loops."""
    found = [find_scopes(import_shape(shape, ops)) for ops in (100, 400)]
    for scopes in found:
        plan_one(scopes)
    few, many = ((len(s.graph), count_calls(lambda s=s: plan_one(s))) for s in found)
    check_growth(few, many)


def test_counting_a_kernel_walks_each_statement_once() -> None:
    """Sections that follow each other share no registers, so none looks at those before it."""
    kernels = [plan_one(find_scopes(import_shape("slices", ops))).kernel for ops in (150, 600)]
    few, many = ((len(k.body), count_calls(lambda k=k: count_workload(k))) for k in kernels)
    check_growth(few, many)


def test_an_arena_of_many_buffers_asks_for_each_once() -> None:
    lifetimes = [Lifetime(f"b{i}", 256 * (1 + i % 7), i, i + 3) for i in range(2_000)]
    few, many = ((n, count_calls(lambda n=n: plan_arena(lifetimes[:n]))) for n in (500, 2_000))
    check_growth(few, many)
    assert math.isclose(many[1] / few[1], 4, rel_tol=0.2)
