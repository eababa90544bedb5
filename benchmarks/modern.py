"""Programs as users write them today, by jax.jit, by astitch.jit and through XLA's hook (astitch.enabled()).

`python -m benchmarks.modern --ahead` compiles each for an H100 that is not here and compares launches, speed of light,
projection and planned memory.  Each program runs in a process of its own: what fails or takes too long costs one row.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.modern_ahead import AheadRow
from benchmarks.modern_programs import list_names
from benchmarks.results import geometric_mean

SCHEMA = "modern 1"
NICE = 10
LEAST = 0.98
"""A ratio below it is a miss, in memory too: 1.02 times as much."""

COLUMNS = {
    "light ms": ("light_ms", 2),
    "projected ms": ("projected_ms", 2),
    "all light ms": ("all_light_ms", 2),
    "planned MB": ("planned_mb", 0),
}
"""Of the table, by their titles: the field of AheadSide and its digits."""

HEADER = (
    f"{'program':21} {'memory':>13} {'ours':>5} {'products':>13} | "
    + " | ".join(f"{title:>15} {'/':>5}" for title in COLUMNS)
    + f" | {'compile s':>9}"
)
LEGEND = """\
XLA / astitch of one call: launches of memory-intensive kernels, those of them that are astitch's, launches of products
and convolutions | memory-intensive kernels at the speed of light | as projected | all kernels at the speed of light |
memory as planned: arguments, results and temporaries | s to compile.  /: XLA's over astitch's; above 1 astitch needs
less."""


def format_row(row: AheadRow) -> str:
    """One line of the table, and one for each note."""
    x, a = row.xla, row.astitch
    if x is None or a is None:
        return "\n".join([f"{row.name:21} failed", *(f"    {note}" for note in row.notes)])
    cells = []
    for field, digits in COLUMNS.values():
        theirs, ours = getattr(x, field), getattr(a, field)
        ratio = f"{theirs / ours:.2f}" if ours else "-"
        cells.append(f"{f'{theirs:.{digits}f} / {ours:.{digits}f}':>15} {ratio:>5}")
    line = (
        f"{row.name:21} {f'{x.memory:g} / {a.memory:g}':>13} {a.ours:5g} "
        f"{f'{x.products:g} / {a.products:g}':>13} | {' | '.join(cells)} | "
        f"{f'{x.compile_s:.0f} / {a.compile_s:.0f}':>9}"
    )
    return "\n".join([line, *(f"    {note}" for note in (*row.notes, *row.outside))])


def summarise(rows: Sequence[AheadRow]) -> list[str]:
    """Geometric means of XLA's value over astitch's, and the rows on the wrong side."""
    lines = []
    for title, (field, _) in COLUMNS.items():
        ratios = {}
        for row in rows:
            theirs, ours = (getattr(side, field, None) for side in (row.xla, row.astitch))
            if theirs and ours:
                ratios[row.name] = theirs / ours
        mean = geometric_mean(list(ratios.values()))
        shown = "-" if mean is None else f"{mean:.3f}"
        lines.append(f"{title}: geometric mean of XLA / astitch {shown} of {len(ratios)} programs")
        worse = sorted((ratio, name) for name, ratio in ratios.items() if ratio < LEAST)
        told = ", ".join(f"{name} {ratio:.2f}" for ratio, name in worse) or "none"
        lines.append(f"  below {LEAST} ({len(worse)}): {told}")
    failed = [row.name for row in rows if row.xla is None or row.astitch is None]
    lines.append(f"failed ({len(failed)}): {', '.join(failed) or 'none'}")
    return lines


# ---- the command line --------------------------------------------------------------------------------------------


def run_alone(name: str, options: argparse.Namespace) -> AheadRow:
    """The row of one program, made in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="modern_") as folder:
        out = Path(folder) / "row.json"
        command = [sys.executable, "-m", "benchmarks.modern", "--ahead", "--alone", name]
        command += ["--size", options.size, "--seed", str(options.seed), "--json", str(out)]
        if options.dump:
            command += ["--dump", str(options.dump)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "ASTITCH_CACHE_DIR": folder}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            _, errors = process.communicate(timeout=options.timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            row = AheadRow.read(json.loads(out.read_text())) if out.exists() else AheadRow(name)
            return row.noting(f"stopped after {options.timeout:.0f} s")
        if out.exists():
            return AheadRow.read(json.loads(out.read_text()))
        said = [line for line in errors.splitlines() if line.strip()]
        return AheadRow(name).noting(said[-1] if said else f"ended with {process.returncode}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.modern", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="names that contain one"
    )
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--seed", type=int, default=0, help="0: usual sizes; others draw them")
    parser.add_argument("--ahead", action="store_true", help="compile for an H100 that is not here")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one program")
    parser.add_argument("--json", type=Path, help="write the rows there, after each program")
    parser.add_argument(
        "--dump", type=Path, metavar="FOLDER", help="write explanations and modules there"
    )
    parser.add_argument("--list", action="store_true", help="list the programs and stop")
    parser.add_argument("--alone", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.alone:
        from benchmarks.modern_ahead import compile_both

        os.nice(NICE)
        compile_both(
            options.alone, options.size == "small", options.seed, options.json, options.dump
        )
        return
    names = [n for n in list_names() if not options.only or any(w in n for w in options.only)]
    if not names:
        parser.error("no program of that name: --list lists them")
    if options.list:
        print(*names, sep="\n")
        return
    print(LEGEND, "", HEADER, sep="\n", flush=True)
    rows: list[AheadRow] = []
    for name in names:
        rows.append(run_alone(name, options))
        print(format_row(rows[-1]), flush=True)
        if options.json:
            data = {"schema": SCHEMA, "seed": options.seed, "size": options.size}
            data["rows"] = [asdict(row) for row in rows]
            options.json.write_text(json.dumps(data, indent=1) + "\n")
    print("", *summarise(rows), sep="\n")


if __name__ == "__main__":
    main()
