"""Programs as users write them today, by jax.jit, astitch.jit, XLA's hook (astitch.enabled()) and torch.compile.

`python -m benchmarks.modern` measures on the GPU that is here.  Where there is none, or with --ahead, both compilers
compile for an H100 that is not here: launches, speed of light, projection and planned memory.  `--check` compares
results only.  Each program runs in a process of its own: what fails or takes too long costs one row.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from astitch.run.executor import count_gpus
from benchmarks.modern_ahead import AheadRow, compile_both
from benchmarks.modern_gpu import SIDES, GpuRow, measure_program
from benchmarks.modern_programs import list_names
from benchmarks.modern_tables import (
    AHEAD_HEADER,
    AHEAD_LEGEND,
    GPU_HEADER,
    GPU_LEGEND,
    format_ahead,
    format_gpu,
    summarise_ahead,
    summarise_gpu,
)

SCHEMA = "modern 1"

MEMORY_SHARE = 0.75
"""The share of the GPU's memory that the programs of a run get together, as JAX takes it by itself."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Programs that one command runs.

    module: the command's.  purpose: its docstring.  in_order: programs of which each side adds in a fixed order.
    timeout_s: for one program.
    """

    module: str
    purpose: str
    names: Sequence[str]
    in_order: Sequence[str] = ()
    timeout_s: float = 180.0


MODERN = Suite("benchmarks.modern", __doc__, list_names())


def run_alone(name: str, options: argparse.Namespace, suite: Suite = MODERN) -> AheadRow | GpuRow:
    """The row of one program, made in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="modern_") as folder:
        out = Path(folder) / "row.json"
        command = [sys.executable, "-m", suite.module, "--alone", name, "--json", str(out)]
        command += ["--size", options.size, "--seed", str(options.seed)]
        command += ["--sides", *options.sides]
        flags = ("ahead", "no-attention", "check", "only-time")
        command += [f"--{flag}" for flag in flags if getattr(options, flag.replace("-", "_"))]
        if options.dump:
            command += ["--dump", str(options.dump)]
        if options.turns:
            command += ["--turns", str(options.turns)]
        # As users have it: memory that grows piece by piece lies elsewhere, so that graphs of launches are updated.
        share = f"{MEMORY_SHARE / options.jobs:.4f}"
        settings = {"ASTITCH_CACHE_DIR": folder, "XLA_PYTHON_CLIENT_MEM_FRACTION": share}
        if options.ahead:
            settings["JAX_PLATFORMS"] = "cpu"
        if name in suite.in_order:
            directives = Path(folder) / "stitches"
            directives.write_text("in-order\n")
            settings["ASTITCH_STITCHES"] = str(directives)
        process = subprocess.Popen(
            command,
            env={**os.environ, **settings},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _, errors = process.communicate(timeout=options.timeout)
            said = [line for line in errors.splitlines() if line.strip()]
            note = said[-1] if said else f"it ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            note = f"stopped after {options.timeout:.0f} s"
        found = json.loads(out.read_text()) if out.exists() else None
    failed = process.returncode != 0
    if options.ahead:
        row = AheadRow.read(found) if found else AheadRow(name)
        return row.noting(note) if failed else row
    measured = GpuRow(**found) if found else GpuRow(name)
    if failed:
        measured.notes["process"] = note
    return measured


def make_parser(suite: Suite = MODERN) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {suite.module}", description=suite.purpose)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="only names that contain one of these"
    )
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--seed", type=int, default=0, help="0: usual sizes; others draw them")
    parser.add_argument("--ahead", action="store_true", help="compile for an H100 that is not here")
    parser.add_argument("--check", action="store_true", help="compare results, measure nothing")
    parser.add_argument("--only-time", action="store_true", help="measure, compare no results")
    parser.add_argument(
        "--no-attention", action="store_true", help="the hook gives no attention to cuDNN"
    )
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument(
        "--timeout", type=float, default=suite.timeout_s, help="seconds for one program"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="programs that compile at a time (their compile s say less) and share the memory; each is timed alone",
    )
    parser.add_argument("--turns", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write the rows there, after each program")
    parser.add_argument(
        "--resume", action="store_true", help="leave out programs that it has in full"
    )
    parser.add_argument(
        "--dump", type=Path, metavar="FOLDER", help="with --ahead: explanations and modules"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="print this file instead")
    parser.add_argument("--list", action="store_true", help="list the programs and stop")
    parser.add_argument("--alone", metavar="NAME", help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None, suite: Suite = MODERN) -> None:
    parser = make_parser(suite)
    options = parser.parse_args(arguments)
    small = options.size == "small"
    if options.alone:
        if options.ahead:
            compile_both(
                options.alone,
                small,
                options.seed,
                options.json,
                options.dump,
                attention=not options.no_attention,
            )
        else:
            what = "check" if options.check else "time" if options.only_time else "both"
            measure_program(
                options.alone,
                small,
                options.seed,
                options.json,
                options.sides,
                what,
                attention=not options.no_attention,
                turns=options.turns,
            )
        return
    if options.report:
        data = json.loads(options.report.read_text())
        print_rows(read_rows(data), data["ahead"])
        return
    names = [n for n in suite.names if not options.only or any(w in n for w in options.only)]
    if not names:
        parser.error("no program of that name: --list lists them")
    if options.list:
        print(*names, sep="\n")
        return
    if not options.ahead and not options.check and not count_gpus():
        print("no GPU here: compiled for one that is not here, nothing is run\n")
        options.ahead = True
    run_all(names, options, suite)


def run_all(names: Sequence[str], options: argparse.Namespace, suite: Suite = MODERN) -> None:
    """Runs, prints and saves program by program."""
    rows: list[AheadRow | GpuRow] = []
    if options.resume and options.json and options.json.exists():
        rows = [row for row in read_rows(json.loads(options.json.read_text())) if row.is_whole]
    done = {row.name for row in rows}
    print_head(options.ahead)
    with (
        tempfile.TemporaryDirectory(prefix="modern_") as folder,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        options.turns = Path(folder) / "turns"
        for row in pool.map(
            lambda name: run_alone(name, options, suite),
            [name for name in names if name not in done],
        ):
            rows.append(row)
            print(format_row(row), flush=True)
            if options.json:
                data = {"schema": SCHEMA, "seed": options.seed, "size": options.size}
                data |= {"ahead": options.ahead, "rows": [asdict(row) for row in rows]}
                options.json.write_text(json.dumps(data, indent=1) + "\n")
    print("", *summarise(rows), sep="\n")


def read_rows(data: dict[str, Any]) -> list[AheadRow | GpuRow]:
    """Raises ValueError for a file that is not of this program's."""
    if data.get("schema") != SCHEMA:
        raise ValueError(f"no results of benchmarks.modern (schema {SCHEMA!r})")
    return [AheadRow.read(row) if data["ahead"] else GpuRow(**row) for row in data["rows"]]


def print_rows(rows: Sequence[AheadRow | GpuRow], ahead: bool) -> None:
    print_head(ahead)
    print(*map(format_row, rows), "", *summarise(rows), sep="\n")


def print_head(ahead: bool) -> None:
    parts = (AHEAD_LEGEND, "", AHEAD_HEADER) if ahead else (GPU_LEGEND, "", GPU_HEADER)
    print(*parts, sep="\n", flush=True)


def format_row(row: AheadRow | GpuRow) -> str:
    return format_ahead(row) if isinstance(row, AheadRow) else format_gpu(row)


def summarise(rows: Sequence[AheadRow | GpuRow]) -> list[str]:
    ahead = [row for row in rows if isinstance(row, AheadRow)]
    return (
        summarise_ahead(ahead)
        if ahead
        else summarise_gpu([r for r in rows if isinstance(r, GpuRow)])
    )


if __name__ == "__main__":
    main()
