"""The cost models against plans that were measured on an H100 (tests/data/measured_plans.json).

`python -m benchmarks.measure_plans` writes that file; here the same plans are made and projected again without a GPU.
Bounds leave room for another measurement: docs/decisions/0006-cost-models.md has the figures.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import statistics
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from astitch.compile import compile_hlo
from astitch.cost.projected_latency import project
from astitch.cost.prune import bound_plan
from astitch.cost.speed_of_light import measure_work
from astitch.cost.workload import count_workload
from astitch.device.gpu import preset
from astitch.device.schedule import schedule_from_json
from astitch.dominant import choose_dominants
from astitch.mapping.roots import RootReads
from astitch.search import plan as planning
from astitch.search.plan import SEARCH_FROM_US, SEARCH_MARGIN
from astitch.toolchain.nvrtc import Resources

DATA = json.loads((Path(__file__).parents[1] / "data" / "measured_plans.json").read_text())
GPU = preset(DATA["gpu"]["name"])
PATTERNS = tuple(p["name"] for p in DATA["patterns"])

NOISE = 0.03
"""Two plans that lie closer together than this are equally fast."""


@dataclass(frozen=True)
class Row:
    """estimated_us: projected with estimated registers.  projected_us: with the compiler's.  least_us: the bound."""

    schedule: str
    measured_us: float
    estimated_us: float
    projected_us: float
    least_us: float
    spills: bool


@functools.cache
def rows(name: str) -> tuple[Row, ...]:
    """Every measured plan of a pattern, projected again; the rules' plan first."""
    entry = next(p for p in DATA["patterns"] if p["name"] == name)
    compilation = compile_hlo(zlib.decompress(base64.b64decode(entry["hlo"])), gpu=GPU)
    graph = compilation.graph
    scope = max(compilation.scopes.scopes, key=lambda s: len(s.members))
    groups = choose_dominants(graph, scope)
    work = measure_work(graph, scope.members)
    found = []
    for stored in entry["plans"]:
        if stored["us"] is None:
            continue
        schedule = schedule_from_json(stored["schedule"])
        launch, arrangement = planning._arrange(RootReads(graph, groups), GPU, schedule)
        plan = planning.plan_scope(graph, scope, GPU, schedule)
        assert plan is not None
        kernel = plan.kernel
        counted = count_workload(kernel)
        spills = stored["spill_bytes"]
        used = Resources(stored["registers"], spills // 2, spills - spills // 2, spills, 0)
        found.append(
            Row(
                str(schedule),
                stored["us"],
                project(kernel, GPU, work=counted).time_us,
                project(kernel, GPU, used, counted).time_us,
                bound_plan(arrangement, launch, schedule, GPU, work).least_us,
                spills > 0,
            )
        )
    return tuple(found)


def every_row() -> list[Row]:
    return [row for name in PATTERNS for row in rows(name)]


def measured(name: str) -> list[float]:
    return [row.measured_us for row in rows(name)]


def rank(values: Sequence[float]) -> np.ndarray:
    """Ranks with ties shared."""
    array = np.asarray(values)
    return np.array([(array < v).sum() + ((array == v).sum() - 1) / 2 for v in array])


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    return float(np.corrcoef(rank(a), rank(b))[0, 1])


def choose(name: str) -> Row:
    """What the search would take: the plan projected fastest that does not spill, if it is worth leaving the rules."""
    default, *others = rows(name)
    best = min((r for r in others if not r.spills), key=lambda row: row.estimated_us)
    worth = best.estimated_us < default.estimated_us * (1 - SEARCH_MARGIN)
    return best if worth and default.estimated_us >= SEARCH_FROM_US else default


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.mean(map(math.log, values)))


def test_there_are_enough_plans():
    assert sum(len(rows(name)) for name in PATTERNS) >= 400
    assert len(PATTERNS) >= 20


@pytest.mark.parametrize("known", ["estimated_us", "projected_us"])
def test_projections_rank_the_plans_of_all_patterns(known):
    every = every_row()
    found = spearman([getattr(r, known) for r in every], [r.measured_us for r in every])
    assert found > 0.95


def test_projections_are_of_the_right_size():
    errors = [abs(math.log(row.projected_us / row.measured_us)) for row in every_row()]
    assert statistics.mean(errors) < math.log(1.15)
    assert statistics.median(errors) < math.log(1.08)


@pytest.mark.parametrize("name", PATTERNS)
def test_projections_of_each_pattern_are_of_the_right_size(name):
    errors = [abs(math.log(row.projected_us / row.measured_us)) for row in rows(name)]
    assert statistics.median(errors) < math.log(1.45)


def test_projections_rank_the_plans_of_each_pattern():
    """Where the choice matters: the slowest plan takes 1.3 times as long as the fastest, or more."""
    matters = [n for n in PATTERNS if max(measured(n)) > 1.3 * min(measured(n))]
    found = {n: spearman([r.projected_us for r in rows(n)], measured(n)) for n in matters}
    assert len(matters) >= 10
    assert statistics.median(found.values()) > 0.65, found


@pytest.mark.parametrize("name", PATTERNS)
def test_no_bound_is_beaten(name):
    for row in rows(name):
        assert row.least_us < row.measured_us * (1 + NOISE), row


@pytest.mark.parametrize("name", PATTERNS)
def test_no_pruned_plan_would_have_won(name):
    best_us = min(row.estimated_us for row in rows(name))
    rest = [row.measured_us for row in rows(name) if row.least_us < best_us]
    for row in rows(name):
        if row.least_us >= best_us:
            assert row.measured_us > min(rest) * (1 - NOISE), row


def test_some_plans_are_pruned():
    pruned = 0
    for name in PATTERNS:
        best_us = min(row.estimated_us for row in rows(name))
        pruned += sum(row.least_us >= best_us for row in rows(name))
    assert pruned >= 8


def test_what_the_search_chooses_is_seldom_slower_than_the_rules():
    losses = {n: choose(n).measured_us / rows(n)[0].measured_us - 1 for n in PATTERNS}
    assert max(losses.values()) < 0.15, losses
    assert sum(loss > NOISE for loss in losses.values()) <= 2, losses


def test_searching_pays():
    """How far from the fastest measured plan the rules' and the chosen ones are."""
    rules = geometric_mean([rows(n)[0].measured_us / min(measured(n)) for n in PATTERNS])
    chosen = geometric_mean([choose(n).measured_us / min(measured(n)) for n in PATTERNS])
    assert chosen < rules
    assert chosen < 1.06
