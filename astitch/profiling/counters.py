"""Hardware counters of each kernel, by Nsight Compute where it is installed.

Takes a target with both sides as measured, hands on counters of their slowest kernels.  Nsight Compute watches a
process of its own for each side, which calls it once; it replays each kernel, so nothing else is measured.
"""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from astitch.errors import AstitchError
from astitch.profiling.report import COPY, Side
from astitch.profiling.target import Target
from astitch.profiling.wording import rank_kernels

METRICS = {
    "DRAM read transactions": "dram__sectors_read.sum",
    "DRAM write transactions": "dram__sectors_write.sum",
    "instructions": "smsp__inst_executed.sum",
    "achieved occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "SM efficiency": "smsp__cycles_active.avg.pct_of_peak_sustained_elapsed",
}
"""The metrics of the paper's tables and figures, by Nsight Compute's names.  A transaction is a sector of 32 bytes."""

SHARES = ("achieved occupancy", "SM efficiency")
"""The metrics in per cent; the others are counts."""

MOST_LAUNCHES = 3
"""The most launches of a kernel in one launch shape.  Each is replayed several times, and a loop launches the same one
in every turn."""

MOST_SECONDS = 240
"""For one side."""

ENTRY = "import sys; from astitch.profiling.counted import main; main(sys.argv[1:])"


def find_ncu() -> str:
    """The path of Nsight Compute.  Raises AstitchError."""
    found = shutil.which("ncu")
    if found is None:
        raise AstitchError(
            "--ncu needs Nsight Compute, and there is no ncu on the PATH\n  install it, or leave --ncu out"
        )
    return found


@contextmanager
def keep_compiled() -> Iterator[dict[str, str]]:
    """While it lasts, what XLA compiles is kept on disk; hands on the environment in which a process finds it there.

    So a function that was compiled ahead of time is called without compiling it again.  The process that Nsight Compute
    watches runs the very programs that were measured.
    """
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    with tempfile.TemporaryDirectory(prefix="astitch_xla_") as folder:
        settings = {
            "jax_compilation_cache_dir": folder,
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
        }
        before = {name: getattr(jax.config, name) for name in settings}
        _configure(settings)
        reset_cache()  # JAX opens its cache once: it must look at the setting anew
        try:
            yield {name.upper(): str(value) for name, value in settings.items()}
        finally:
            _configure(before)
            reset_cache()


def _configure(settings: Mapping[str, Any]) -> None:
    import jax

    for name, value in settings.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]


def count_kernels(
    target: Target, sides: Sequence[Side], engine: str | None, most: int, shared: Mapping[str, str]
) -> dict[str, dict[str, dict[str, float]]]:
    """By side and kernel the counters of one launch: see sum_up_rows.  Up to MOST_LAUNCHES of each launch shape are
    counted, so one that is launched once weighs as much as one of every turn.

    sides: measured; the `most` slowest kernels of each are counted.  shared: see keep_compiled.  Raises AstitchError
    where nothing can be counted.
    """
    if not target.typed:
        raise AstitchError("counters need a target that can be read again\n  use astitch-profile")
    ncu = find_ncu()
    found: dict[str, dict[str, dict[str, float]]] = {}
    for side in sides:
        found[side.name] = {}
        names = {k.name for k in rank_kernels(side, most) if k.kind != COPY}
        if not names:
            continue
        text, errors = _watch(ncu, names, [side.name, *_entry(target, engine)], shared)
        launches = {kernel.name: kernel.launches for kernel in side.kernels}
        found[side.name] = sum_up_rows(read_rows(text), launches)
        if not found[side.name]:
            said = [line for line in (*text.splitlines(), *errors.splitlines()) if line.strip()]
            complaints = [line for line in said if "==ERROR==" in line or "Error" in line]
            last = (complaints or said or ["it said nothing"])[-1]
            raise AstitchError(f"ncu counted nothing of {side.name}: {last}\n  leave --ncu out")
    return found


def _entry(target: Target, engine: str | None) -> list[str]:
    """What the watched process has to know, beside the side."""
    return [engine or "", str(int(target.carries)), *target.typed]


def _watch(
    ncu: str, names: Iterable[str], arguments: Sequence[str], shared: Mapping[str, str]
) -> tuple[str, str]:
    """What Nsight Compute writes of the kernels of these names, and what it says to stderr.  Raises AstitchError."""
    pattern = "|".join(re.escape(name) for name in sorted(names))
    with tempfile.TemporaryDirectory(prefix="astitch_ncu_") as folder:
        log = Path(folder) / "counters.csv"
        command = [
            ncu,
            "--csv",
            "--page=raw",
            "--print-units=base",
            f"--log-file={log}",
            # Watching what XLA starts as well (its assembler), ncu crashes while cuDNN's algorithms are tried (2025.3).
            "--target-processes=application-only",
            "--profile-from-start=off",
            "--clock-control=none",
            "--cache-control=none",
            "--kernel-name-base=function",
            f"--kernel-name=regex:^({pattern})$",
            "--filter-mode=per-launch-config",
            f"--launch-count={MOST_LAUNCHES}",
            f"--metrics={','.join(METRICS.values())}",
            sys.executable,
            "-c",
            ENTRY,
            *arguments,
        ]
        environment = {
            **os.environ,
            **shared,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            # What is allocated is saved and restored for each replay.
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }
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
            said = log.read_text("utf-8", errors="replace").split("\n") if log.exists() else []
            last = next((line.strip() for line in reversed(said) if line.strip()), "nothing")
            raise AstitchError(
                f"ncu took longer than {MOST_SECONDS} s; it said last: {last}\n"
                "  give smaller shapes or fewer --kernels, or leave --ncu out"
            ) from None
        text = log.read_text("utf-8", errors="replace") if log.exists() else ""
    return text, ran.stderr


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


def sum_up_rows(
    rows: Iterable[tuple[str, dict[str, float]]], launches: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """By kernel, its counters of one launch: the mean where all of a call's launches were counted.  Else it is the
    median, since the first of many finds a colder L2 than the others.  launches: of each kernel in a call."""
    listed: dict[str, list[dict[str, float]]] = {}
    for name, found in rows:
        listed.setdefault(name, []).append(found)
    return {
        name: dict(_sum_up(counted, len(counted) >= launches.get(name, 0.0)))
        for name, counted in listed.items()
    }


def _sum_up(counted: Sequence[Mapping[str, float]], complete: bool) -> Iterator[tuple[str, float]]:
    for name in METRICS:
        values = [launch[name] for launch in counted if name in launch]
        if values:
            yield name, statistics.fmean(values) if complete else statistics.median(values)


def add_counters(side: Side, counters: Mapping[str, Mapping[str, float]]) -> Side:
    """The side with counters of one call, and occupancy and SM efficiency as they were counted."""
    kernels = []
    for kernel in side.kernels:
        found = counters.get(kernel.name)
        if found is None:
            kernels.append(kernel)
            continue
        shares = {name: found[name] / 100 for name in SHARES if name in found}
        counts = {n: value * kernel.launches for n, value in found.items() if n not in SHARES}
        kernels.append(
            replace(
                kernel,
                counters=counts,
                occupancy=shares.get("achieved occupancy", kernel.occupancy),
                sm_efficiency=shares.get("SM efficiency", kernel.sm_efficiency),
            )
        )
    return replace(side, kernels=tuple(kernels))
