"""The ten model entries for astitch-profile, each a function and what builds its arguments:
`astitch-profile benchmarks.profile_models:crnn_infer --args crnn_infer_args`.

`python -m benchmarks.profile_models [NAME ...] --out FOLDER` writes the report of each as JSON and as a page and prints
its totals; `--models FILE` prints what benchmarks.models measured beside them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from astitch.profiling.profiler import Options, profile_target
from astitch.profiling.report import KINDS, Report
from astitch.profiling.target import Target, read_target
from benchmarks.models import MODES, Entry, ModelRow, choose_entries, load_rows, make_task
from benchmarks.results import describe
from benchmarks.workloads import WORKLOADS

ARGS = "_args"
"""Ends the name of what builds an entry's arguments."""


def find_entry(name: str) -> Entry | None:
    """crnn_infer, dien_train ..."""
    workload, _, mode = name.rpartition("_")
    return Entry(workload, mode, "full") if workload in WORKLOADS and mode in MODES else None


def __getattr__(name: str) -> Any:
    """The function of an entry, or what builds its arguments."""
    entry = find_entry(name.removesuffix(ARGS))
    if entry is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name.endswith(ARGS):
        return partial(_make_arguments, entry)
    return make_task(entry).fn


def _make_arguments(entry: Entry) -> tuple[Any, Any]:
    task = make_task(entry)
    return task.first, task.batch


def read_entry(entry: Entry) -> Target:
    """The target of an entry at full size."""
    name = f"{entry.workload}_{entry.mode}"
    typed = f"{__name__ if __name__ != '__main__' else 'benchmarks.profile_models'}:{name}"
    return read_target(typed, [name + ARGS], carries=entry.mode == "train")


def format_totals(key: str, report: Report, row: ModelRow | None) -> str:
    """us by class of both sides, and what benchmarks.models has."""

    def show(values: Callable[[str, str], float | None]) -> str:
        cells = [
            "/".join(_number(values(side, kind)) for kind in KINDS) for side in ("xla", "astitch")
        ]
        return "  ".join(f"{cell:>20}" for cell in cells)

    sides = {side.name: side for side in report.sides}
    walls = " ".join(_number(s.wall.median if s.wall else None) for s in report.sides)
    lines = [f"{key:24} profile {walls:>14} {show(lambda s, k: sides[s].kernel_us(k))}"]
    if row is not None:
        walls = " ".join(_number(row.wall_us.get(s)) for s in sides)
        lines.append(
            f"{'':24} models  {walls:>14} {show(lambda s, k: row.gpu_us.get(s, {}).get(k))}"
        )
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile_models")
    parser.add_argument("names", nargs="*", help="only entries whose name contains one of these")
    parser.add_argument("--out", type=Path, required=True, help="folder of the reports")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--gpu", help="a preset: compile only")
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--models", type=Path, help="a file of benchmarks.models")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = load_rows(options.models)[1] if options.models else {}
    asked = Options(gpu=options.gpu, runs=options.runs, ablation=options.ablation)
    for entry in choose_entries(options.names, "full"):
        if entry.size != "full":
            continue
        try:
            report = profile_target(read_entry(entry), asked)
        except Exception as error:  # an entry that one side cannot do is a result
            print(f"{entry.key}: {describe(error)}", flush=True)
            continue
        stem = options.out / f"{entry.workload}_{entry.mode}"
        stem.with_suffix(".json").write_text(json.dumps(report.to_dict()))
        stem.with_suffix(".html").write_text(report.to_html())
        print(format_totals(entry.key, report, rows.get(entry.key)), flush=True)


if __name__ == "__main__":
    main()
