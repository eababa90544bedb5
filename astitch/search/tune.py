"""Scope -> the fastest of its plans, by measuring the few that are projected to be fastest.

What was found is kept on disk as JSON.  Its key is a hash of the scope's ops, of its kernel by the rules and of the
GPU.  The next compilation of the same scope takes the schedule from there and measures nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from astitch import options
from astitch.device.gpu import Gpu
from astitch.device.launch_time import find_fastest
from astitch.device.schedule import DEFAULT, Schedule, schedule_from_json, schedule_to_json
from astitch.errors import AstitchError, EngineUnavailable
from astitch.events import note_tune
from astitch.graph.ir import Graph
from astitch.scope.structure import structure_of
from astitch.search.build_program import make_cuda_kernel
from astitch.search.measure import compile_plans, import_cupy, measure_plans
from astitch.search.plan import Plan, plan_scope, rank_plans
from astitch.stitch_scope import Scope
from astitch.toolchain.kernel_cache import ByteCache
from astitch.toolchain.nvrtc import read_headers

MOST_MEASURED = 8
"""Plans of a scope that are measured, the rules' among them."""

LIMIT_BYTES = 16 * 1024 * 1024
FORMAT = "astitch plan 3"


class TuningCache(ByteCache):
    """Schedules that won, as JSON."""

    form = FORMAT
    lost = "the next process measures its plans anew"

    def load_schedule(self, key: str) -> Schedule | None:
        """The schedule kept under `key`; None where there is none, or one that this version does not understand."""
        data = self.load_bytes(key)
        if data is None:
            return None
        try:
            entry = json.loads(data)
            return schedule_from_json(entry["schedule"]) if entry["format"] == FORMAT else None
        except (ValueError, TypeError, KeyError):
            return None

    def store_schedule(
        self,
        key: str,
        schedule: Schedule,
        time_us: float,
        default_us: float,
        structure: str = "",
        gpu: str = "",
    ) -> None:
        """structure, gpu: see key_of_structure; for export_plans."""
        entry = {
            "format": FORMAT,
            "structure": structure,
            "gpu": gpu,
            "sources": sources(),
            "schedule": schedule_to_json(schedule),
            "time_us": round(time_us, 2),
            "default_us": round(default_us, 2),
        }
        self.store_bytes(key, json.dumps(entry, sort_keys=True).encode())


def open_cache() -> TuningCache:
    """The cache at its place on disk."""
    return TuningCache(options.cache_dir() / "plans", LIMIT_BYTES, ".json")


def key_of_plan(graph: Graph, plan: Plan, gpu: Gpu) -> str:
    """Hash of all that decides which schedule wins; plan: the rules'."""
    parts = [
        FORMAT,
        *(str(graph[member]) for member in plan.scope.members),
        *plan.scope.outputs,
        make_cuda_kernel(plan.kernel).source,
        *(f"{name}\n{text}" for name, text in sorted(read_headers().items())),
        json.dumps(dataclasses.asdict(gpu), sort_keys=True),
    ]
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def key_of_structure(graph: Graph, scope: Scope, gpu: Gpu) -> str:
    """Hash of what a stitch op computes and on which GPU, whatever its kernel's text is."""
    rows = repr(structure_of(graph, scope).rows)
    digest = hashlib.sha256(f"{gpu.name} {gpu.arch} {gpu.sms}\n{rows}".encode())
    return digest.hexdigest()


@functools.cache
def sources() -> str:
    """A hash of what is known of astitch's version: its package's sources."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def list_kept() -> dict[str, dict[str, Any]]:
    """The plans that were tuned on this machine, by key_of_structure."""
    cache = open_cache()
    found = {}
    for key in cache.list_keys():
        data = cache.load_bytes(key)
        entry = json.loads(data) if data else {}
        if entry.get("format") == FORMAT and entry.get("structure"):
            found[entry.pop("structure")] = entry
    return found


@dataclass(frozen=True, slots=True)
class _Contest:
    """A scope whose plans are still to be measured."""

    number: int
    key: str
    structure: str
    plans: tuple[Plan, ...]


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr where rich is installed and somebody looks at it."""
    try:
        rich: Any = importlib.import_module("rich.progress")
        console: Any = importlib.import_module("rich.console")
    except ImportError:
        yield lambda: None
        return
    with rich.Progress(
        console=console.Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("measuring plans", total=total)
        yield lambda: bar.advance(task)


def tune_scopes(
    graph: Graph,
    scopes: Sequence[Scope],
    gpu: Gpu,
    *,
    most: int = MOST_MEASURED,
    cache: TuningCache | None = None,
) -> tuple[Plan | None, ...]:
    """The fastest measured plan of each scope (None: it needs no kernel), from the cache where it is there.

    most: plans of a scope that are measured.  Raises EngineUnavailable without CuPy or a GPU of the planned
    architecture.
    """
    cache = cache or open_cache()
    plans: list[Plan | None] = []
    contests: list[_Contest] = []
    for number, scope in enumerate(scopes):
        default = plan_scope(graph, scope, gpu, DEFAULT)
        plans.append(default)
        if default is None:
            continue
        key = key_of_plan(graph, default, gpu)
        known = cache.load_schedule(key)
        if known is not None:
            plans[number] = _plan_again(graph, scope, gpu, known, default)
        else:
            structure = key_of_structure(graph, scope, gpu)
            ranked = rank_plans(graph, scope, gpu, default=default)
            others = [plan for plan, _ in ranked if plan.kernel != default.kernel]
            contests.append(_Contest(number, key, structure, (default, *others[: most - 1])))
    if contests:
        _require_device(gpu)
        with _progress(sum(len(contest.plans) for contest in contests)) as advance:
            compiled = compile_plans([p for c in contests for p in c.plans], gpu.arch)
            for contest in contests:
                mine, compiled = compiled[: len(contest.plans)], compiled[len(contest.plans) :]
                measured = measure_plans(graph, contest.plans, compiled=mine, progress=advance)
                plan, time_us, default_us = choose_fastest(
                    contest.plans, [m.time_us for m in measured]
                )
                cache.store_schedule(
                    contest.key,
                    plan.schedule,
                    time_us,
                    default_us,
                    contest.structure,
                    gpu.name,
                )
                plans[contest.number] = plan
                note_tune(
                    plan.scope.name, plans=len(contest.plans), us=time_us, default_us=default_us
                )
    return tuple(plans)


def choose_fastest(plans: Sequence[Plan], times_us: Sequence[float]) -> tuple[Plan, float, float]:
    """(plan, its time, the first plan's time): the first, unless another is clearly faster."""
    default_us = times_us[0]
    best = find_fastest(times_us)
    measured = sum(math.isfinite(t) for t in times_us)
    note = f"tuned: {measured} plans measured, {times_us[best]:.1f} us; {default_us:.1f} us by the rules"
    plan = plans[best]
    return replace(plan, notes=(*plan.notes, note)), times_us[best], default_us


def _plan_again(graph: Graph, scope: Scope, gpu: Gpu, schedule: Schedule, default: Plan) -> Plan:
    """The plan of a schedule that won in an earlier compilation."""
    try:
        plan = plan_scope(graph, scope, gpu, schedule)
    except AstitchError:  # kept by a version that could lower it
        return default
    note = "tuned: the schedule that won in an earlier compilation"
    return default if plan is None else replace(plan, notes=(*plan.notes, note))


def _require_device(gpu: Gpu) -> None:
    cupy = import_cupy()
    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    if arch != gpu.arch:
        raise EngineUnavailable(
            f"plans for {gpu.arch} cannot be measured on this {arch}\n"
            "  compile for this device (gpu.from_device()), or leave out tune=True"
        )
