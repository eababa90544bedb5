"""Plans that travel: what was tuned on one machine, in a file, for others and for later releases.

Takes the schedules of the tuning cache, hands on a file; takes such a file, hands on schedules by what a stitch op
computes.  So they outlive a release that writes another kernel text, as long as the plan can still be made and passes
its checks.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import astitch.search.tune as tune
from astitch.device.gpu import Gpu
from astitch.device.schedule import Schedule, schedule_from_json
from astitch.errors import AstitchError, InvalidOption
from astitch.graph.ir import Graph
from astitch.search.plan import Plan, plan_scope
from astitch.stitch_scope import Scope
from astitch.system.forks import ForkLock

FORM = "astitch plans 1"


class PlansWarning(UserWarning):
    """Plans of a file are not used, or a file has none."""


@dataclass(frozen=True, slots=True)
class Travelling:
    """A schedule that won elsewhere.  gpu: the GPU's name.  astitch: the hash of the sources that made it."""

    schedule: Schedule
    gpu: str
    astitch: str
    time_us: float
    default_us: float


_imported: dict[str, Travelling] = {}
_lock = ForkLock()


def export_plans(file: str | Path) -> int:
    """Writes all plans that were tuned on this machine into a file, for import_plans; returns how many.

    The file holds JSON: for each plan the hash of what it computes, the schedule, the GPU, the times and the sources of
    astitch; and a checksum of all.  Warns where there is none.  Raises OSError.
    """
    entries = tune.list_kept()
    if not entries:
        warnings.warn(
            f"astitch: {file} has no plan: nothing was tuned on this machine\n"
            "  run with tune=True on a GPU, with the same ASTITCH_CACHE_DIR",
            PlansWarning,
            stacklevel=2,
        )
    body = json.dumps({"form": FORM, "plans": entries}, sort_keys=True)
    text = json.dumps({"sha256": _sign(body), "body": body})
    Path(file).write_text(text + "\n", "utf-8")
    return len(entries)


def import_plans(file: str | Path) -> int:
    """From now on stitch ops that the file has plans for get these; returns how many plans it has for any GPU.

    Nothing is measured for them.  A plan is used on the GPU that it was tuned on, where it can still be made and passes
    its checks; else the compiler plans as ever.
    Raises InvalidOption for a file that cannot be read, is not whole, or of another form.
    """
    try:
        text = Path(file).read_text("utf-8")
    except OSError as error:
        raise InvalidOption(
            f"astitch.import_plans: {file} cannot be read: {error.strerror}\n"
            "  give a file that astitch.export_plans wrote"
        ) from None
    try:
        found = json.loads(text)
        body = found["body"]
        entries = json.loads(body)
        if found["sha256"] != _sign(body) or entries["form"] != FORM:
            raise ValueError(
                "its checksum is another" if entries["form"] == FORM else "its form is another"
            )
        plans = {key: _read(entry) for key, entry in entries["plans"].items()}
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidOption(
            f"astitch.import_plans: {file} is no file of plans: {error}\n  astitch.export_plans writes them"
        ) from None
    with _lock:
        _imported.update({key: plan for key, plan in plans.items() if plan is not None})
    left = sum(plan is None for plan in plans.values())
    if left:
        warnings.warn(
            f"astitch: {left} of {len(plans)} plans in {file} have choices that this version does not know",
            PlansWarning,
            stacklevel=2,
        )
    return len(plans) - left


def forget_plans() -> None:
    """From now on no imported plan is used."""
    with _lock:
        _imported.clear()


def _sign(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _read(entry: Mapping[str, Any]) -> Travelling | None:
    try:
        schedule = schedule_from_json(entry["schedule"])
    except (TypeError, ValueError):
        return None
    times = float(entry["time_us"]), float(entry["default_us"])
    return Travelling(schedule, entry["gpu"], entry["sources"], *times)


def fingerprint() -> str:
    """A hash of the imported plans, for keys of caches; the empty string: there are none."""
    with _lock:
        known = dict(_imported)
    text = repr(sorted((key, plan.schedule) for key, plan in known.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16] if known else ""


def take_imported(plans: Iterable[Plan], gpu: Gpu) -> tuple[Plan, ...]:
    """The plans, those of stitch ops that were tuned elsewhere as they were tuned there."""
    with _lock:
        known = dict(_imported)
    taken = []
    for plan in plans:
        found = known.get(tune.key_of_structure(plan.arrangement.graph, plan.scope, gpu))
        taken.append(_take(plan, found, gpu) if found else plan)
    return tuple(taken)


def _take(plan: Plan, found: Travelling, gpu: Gpu) -> Plan:
    graph: Graph = plan.arrangement.graph
    scope: Scope = plan.scope
    try:
        made = plan_scope(graph, scope, gpu, found.schedule)
    except AstitchError as error:
        note = f"imported: the plan that was tuned cannot be made any more: {error}".partition(
            "\n"
        )[0]
        return replace(plan, notes=(*plan.notes, note))
    if made is None:
        return plan
    other = "" if found.astitch == tune.sources() else ", by other sources of astitch"
    times = f"{found.time_us:.1f} us there, {found.default_us:.1f} us by the rules"
    note = f"imported: tuned on {found.gpu}{other}: {times}"
    return replace(made, notes=(*made.notes, note))
