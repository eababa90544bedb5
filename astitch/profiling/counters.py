"""Hardware counters of each kernel, by Nsight Compute where it is installed.

Takes a target and a side, hands on counters by kernel.  Nsight Compute runs a process of its own that calls the side
once between two marks; it replays each kernel, so nothing else is measured there.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from astitch.errors import AstitchError
from astitch.profiling.report import Side
from astitch.profiling.target import Target

METRICS = {
    "DRAM read transactions": "dram__sectors_read.sum",
    "DRAM write transactions": "dram__sectors_write.sum",
    "instructions": "smsp__inst_executed.sum",
    "achieved occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "SM efficiency": "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed",
}
"""What the paper's tables and figures have, by Nsight Compute's names.  A transaction is a sector of 32 bytes."""

SHARES = ("achieved occupancy", "SM efficiency")
"""In per cent; the others are counts."""

MOST_SECONDS = 480

ENTRY = "import sys; from astitch.profiling.counted import main; main(sys.argv[1:])"


def find_ncu() -> str:
    """The path of Nsight Compute.  Raises AstitchError."""
    found = shutil.which("ncu")
    if found is None:
        raise AstitchError(
            "--ncu needs Nsight Compute, and there is no ncu on the PATH\n  install it, or leave --ncu out"
        )
    return found


def count_kernels(target: Target, side: str, engine: str | None) -> dict[str, dict[str, float]]:
    """Counters of each kernel of one call by name: counts summed over its launches, shares averaged.

    Raises AstitchError where Nsight Compute cannot count.
    """
    if not target.typed:
        raise AstitchError("counters need a target that can be read again\n  use astitch-profile")
    ncu = find_ncu()
    with tempfile.TemporaryDirectory(prefix="astitch_ncu_") as folder:
        log = Path(folder) / "counters.csv"
        command = [
            ncu,
            "--csv",
            "--page=raw",
            "--print-units=base",
            f"--log-file={log}",
            "--profile-from-start=off",
            "--target-processes=all",
            "--clock-control=none",
            "--cache-control=none",
            f"--metrics={','.join(METRICS.values())}",
            sys.executable,
            "-c",
            ENTRY,
            side,
            engine or "",
            str(int(target.carries)),
            *target.typed,
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        try:
            ran = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=MOST_SECONDS,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            raise AstitchError(
                f"ncu took longer than {MOST_SECONDS} s for {side}\n  give smaller shapes"
            ) from None
        text = log.read_text("utf-8", errors="replace") if log.exists() else ""
    found = sum_rows(read_rows(text))
    if not found:
        said = [line for line in (*text.splitlines(), *ran.stderr.splitlines()) if line.strip()]
        errors = [line for line in said if "==ERROR==" in line or "Error" in line]
        last = (errors or said or ["it said nothing"])[-1]
        raise AstitchError(f"ncu counted nothing for {side}: {last}\n  leave --ncu out")
    return found


def read_rows(text: str) -> Iterator[tuple[str, dict[str, float]]]:
    """(kernel, counters) of each launch in what `ncu --csv --page=raw` prints."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.reader(io.StringIO("\n".join(lines))))
    if len(rows) < 3:
        return
    head, _, *launches = rows
    if "Kernel Name" not in head:
        return
    for row in launches:
        named = dict(zip(head, row, strict=False))
        found = {}
        for name, metric in METRICS.items():
            try:
                found[name] = float(named.get(metric, "").replace(",", ""))
            except ValueError:  # n/a
                continue
        yield named["Kernel Name"].partition("(")[0].strip(), found


def sum_rows(rows: Iterator[tuple[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """By kernel: counts summed, shares averaged."""
    listed: dict[str, list[dict[str, float]]] = {}
    for name, found in rows:
        listed.setdefault(name, []).append(found)
    return {name: dict(_combine(launches)) for name, launches in listed.items()}


def _combine(launches: Sequence[Mapping[str, float]]) -> Iterator[tuple[str, float]]:
    for name in METRICS:
        values = [launch[name] for launch in launches if name in launch]
        if values:
            yield name, sum(values) / (len(values) if name in SHARES else 1)


def add_counters(side: Side, counters: Mapping[str, Mapping[str, float]]) -> Side:
    """The side with counters, and occupancy and SM efficiency as they were counted."""
    kernels = []
    for kernel in side.kernels:
        found = counters.get(kernel.name)
        if found is None:
            kernels.append(kernel)
            continue
        shares = {name: found[name] / 100 for name in SHARES if name in found}
        counts = {name: value for name, value in found.items() if name not in SHARES}
        kernels.append(
            replace(
                kernel,
                counters=counts,
                occupancy=shares.get("achieved occupancy", kernel.occupancy),
                sm_efficiency=shares.get("SM efficiency", kernel.sm_efficiency),
            )
        )
    missing = sorted(set(counters) - {kernel.name for kernel in side.kernels})
    note = (f"counted, but not timed: {', '.join(missing)}",) if missing else ()
    return replace(side, kernels=tuple(kernels), notes=(*side.notes, *note))
