"""Every kernel once under compute-sanitizer: `python -m benchmarks.sanitize [NAME ...]`, on a GPU.

Compiles the suite at small sizes, the corpus, the models at tiny sizes, scans, column sums and loops side by side.  The
smaller ones are also compiled as for a GPU of few SMs; launches each kernel that is not just like another under each
tool, and prints a table, kernel by tool.  Exit status 1 where something was found or could not be run, 2 without
compute-sanitizer.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from astitch.device.gpu import Gpu, from_device, preset
from astitch.errors import AstitchError
from benchmarks.kernel_samples import (
    BEGIN,
    END,
    FAILED,
    REFUSED,
    KernelSample,
    Source,
    collect,
    list_sources,
)
from benchmarks.results import describe

TOOLS = {
    "memcheck": ("--report-api-errors", "no"),
    "racecheck": (),
    "synccheck": (),
    "initcheck": (),
}
"""With options of their own."""

USUAL_PATHS = ("/usr/local/cuda/bin", "/opt/cuda/bin")

ENTRY = (
    "import sys; from pathlib import Path; from benchmarks.kernel_samples import launch_all;"
    "launch_all(Path(sys.argv[1]), *map(int, sys.argv[2:]))"
)
"""What the watched process runs."""

SYMBOL = re.compile(r"\bstitch_[0-9a-f]{32}(_\d+)?\b")

NO_FINDING = re.compile(
    r"(COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY|LEAK SUMMARY|Target application|"
    r"No (attachable|CUDA)|This process|Error: process)"
)
"""Lines of a report at its margin that tell of no fault in a kernel."""

SHOWN = 3
"""Findings of a kernel and tool whose words are printed."""


# ---- reports -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Log:
    """What a tool said.  begun, ended: numbers of samples.  findings: by number, each with its first lines; under -1
    what no kernel could be told for.  refused: why a sample could not be launched.  whole: it came to its end."""

    begun: list[int] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    findings: dict[int, list[str]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    whole: bool = False

    def add(self, number: int, words: str) -> None:
        self.findings.setdefault(number, []).append(words)

    def merge(self, other: Log) -> None:
        self.begun += other.begun
        self.ended |= other.ended
        self.refused |= other.refused
        for number, found in other.findings.items():
            self.findings.setdefault(number, []).extend(found)


def read_log(lines: Iterable[str], numbers: Mapping[str, int]) -> Log:
    """numbers: of the samples by symbol.  A finding begins at the margin of the report; the lines that belong to it
    are indented, and one of them names the kernel.  One that names none is of the sample that was running."""
    log = Log()
    finding: list[str] = []

    def close() -> None:
        if finding:
            named = [numbers[m[0]] for m in SYMBOL.finditer(" ".join(finding)) if m[0] in numbers]
            running = log.begun[-1] if log.begun else -1
            log.add(named[0] if named else running, "; ".join(finding[:SHOWN]))
            finding.clear()

    for line in lines:
        text = line.rstrip("\n")
        if text.startswith("========="):
            words = text.removeprefix("=========").removeprefix(" ")
            if words.startswith(" "):
                if finding:
                    finding.append(words.strip())
            else:
                close()
                if words.strip() and not NO_FINDING.match(words):
                    finding.append(words.strip())
        elif text.startswith("== "):
            close()
            _read_progress(text, log)
    close()
    return log


def _read_progress(text: str, log: Log) -> None:
    if text.startswith(END):
        log.whole = True
        log.ended.update(log.begun)
        return
    for mark in (BEGIN, REFUSED, FAILED):
        if text.startswith(mark):
            number, _, words = text.removeprefix(mark).strip().partition(" ")
            if mark == BEGIN:
                log.ended.update(log.begun)
                log.begun.append(int(number))
            elif mark == REFUSED:
                log.refused[int(number)] = words
            else:
                log.add(int(number), f"the launch failed: {words}")


# ---- running -----------------------------------------------------------------------------------------------------


def find_sanitizer() -> str:
    """Its path.  Raises AstitchError."""
    path = os.pathsep.join((os.environ.get("PATH", ""), *USUAL_PATHS))
    found = shutil.which("compute-sanitizer", path=path)
    if found is None:
        raise AstitchError(
            "there is no compute-sanitizer on the PATH\n  it comes with the CUDA toolkit: install that, "
            "or give --collect FILE to compile the kernels only"
        )
    return found


def run_tool(
    tool: str, samples: Sequence[KernelSample], file: Path, jobs: int, seconds: float
) -> Log:
    """All samples under a tool, in `jobs` processes side by side; those that do not end in time are not in `ended`.

    file: the pickled samples.
    """
    numbers = {sample.symbol: number for number, sample in enumerate(samples)}
    deadline = time.monotonic() + seconds
    parts = min(jobs, max(len(samples), 1))
    whole = Log()
    with ThreadPoolExecutor(parts) as pool:
        for log in pool.map(
            lambda part: run_part(tool, file, numbers, part, parts, deadline), range(parts)
        ):
            whole.merge(log)
    return whole


def run_part(
    tool: str, file: Path, numbers: Mapping[str, int], part: int, parts: int, deadline: float
) -> Log:
    """A part of the samples, in a new process after each that breaks the CUDA context."""
    whole, after = Log(), -1
    while (left := deadline - time.monotonic()) > 0:
        command = [
            find_sanitizer(),
            "--tool",
            tool,
            *TOOLS[tool],
            "--print-limit",
            "1000",
            "--show-backtrace",
            "no",
            sys.executable,
            "-c",
            ENTRY,
            str(file),
            *map(str, (part, parts, after)),
        ]
        text, in_time = run_command(command, left)
        log = read_log(text.splitlines(), numbers)
        whole.merge(log)
        if log.whole or not in_time:
            break
        if not log.begun:  # it could not even start
            lines = [line for line in text.splitlines() if line.strip()]
            whole.add(-1, " ".join(lines[-2:]) or "it said nothing")
            break
        after = log.begun[-1]
        if not log.findings.get(after):
            whole.add(after, "the process ended while it ran")
        whole.ended.add(after)
    return whole


def run_command(command: Sequence[str], seconds: float) -> tuple[str, bool]:
    """(stdout and stderr, did it end in time?).  What it started ends with it."""
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(seconds)
            in_time = True
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            in_time = False
        out.seek(0)
        return out.read(), in_time


# ---- compiling ---------------------------------------------------------------------------------------------------


def collect_all(
    sources: Sequence[Source], gpu: Gpu, jobs: int
) -> tuple[list[KernelSample], dict[str, str]]:
    """The samples, one of those that are alike, and by source what failed."""
    found: dict[str, KernelSample] = {}
    failed: dict[str, str] = {}
    # Spawned: a CUDA context does not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(sources)), context, _start_worker) as pool:
        futures = [pool.submit(collect, source, gpu) for source in sources]
        for source, future in zip(sources, futures, strict=True):
            try:
                for sample in future.result():
                    found.setdefault(sample.symbol, sample)
            except Exception as error:  # the others go on
                failed[str(source)] = describe(error)
    return sorted(found.values(), key=lambda sample: sample.name), failed


def _start_worker() -> None:
    """What is asked of a process that only compiles."""
    os.environ["JAX_PLATFORMS"] = "cpu"


# ---- the table ---------------------------------------------------------------------------------------------------


def format_table(samples: Sequence[KernelSample], logs: Mapping[str, Log]) -> list[str]:
    """A line for each kernel: ok, the number of findings, refused, or a dash where it did not run to its end."""
    width = max((len(sample.name) for sample in samples), default=6)
    lines = [f"{'kernel':{width}} {'grid':>6} {'block':>5}" + "".join(f"{t:>11}" for t in logs)]
    for number, sample in enumerate(samples):
        kernel = sample.kernel
        cells = "".join(f"{_verdict(log, number):>11}" for log in logs.values())
        lines.append(f"{sample.name:{width}} {kernel.grid:6} {kernel.block:5}{cells}")
    return lines


def _verdict(log: Log, number: int) -> str:
    if log.findings.get(number):
        return f"{len(log.findings[number])} found"
    if number in log.refused:
        return "refused"
    return "ok" if number in log.ended else "-"


def format_findings(samples: Sequence[KernelSample], logs: Mapping[str, Log]) -> list[str]:
    """The words of what was found or refused."""
    lines = []
    for tool, log in logs.items():
        for number in sorted({*log.findings, *log.refused}):
            name = samples[number].name if number >= 0 else "(no kernel)"
            told = log.findings.get(number, [])[:SHOWN]
            if number in log.refused:
                told = [*told, f"refused: {log.refused[number]}"]
            lines += [f"{tool}, {name}: {words}" for words in told]
    return lines


def count_unclean(samples: Sequence[KernelSample], logs: Mapping[str, Log]) -> dict[str, int]:
    """By tool, the kernels that are not ok, and what was found of none."""
    return {
        tool: sum(_verdict(log, n) != "ok" for n in range(len(samples)))
        + len(log.findings.get(-1, ()))
        for tool, log in logs.items()
    }


# ---- the command line --------------------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sanitize",
        description="Every kernel once under compute-sanitizer.",
    )
    parser.add_argument("names", nargs="*", help="only sources whose name contains one of these")
    parser.add_argument("--tools", default=",".join(TOOLS), help=f"of {','.join(TOOLS)}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compiling processes")
    parser.add_argument(
        "--watched", type=int, default=4, help="processes of a tool, side by side on the GPU (4)"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="the most for each tool (60)")
    parser.add_argument("--gpu", help="a preset; compile for it, not for the GPU that is here")
    parser.add_argument("--collect", type=Path, metavar="FILE", help="compile into FILE and stop")
    parser.add_argument("--kernels", type=Path, metavar="FILE", help="take what --collect wrote")
    parser.add_argument("--list", action="store_true", help="list the sources and stop")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    tools = [word for word in options.tools.split(",") if word]
    if unknown := [tool for tool in tools if tool not in TOOLS]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(TOOLS)}")
    sources = [
        source
        for source in list_sources()
        if not options.names or any(name in str(source) for name in options.names)
    ]
    if not sources:
        parser.error("no source of that name: --list lists them")
    if options.list:
        print("\n".join(map(str, sources)))
        return 0
    try:
        if not options.collect:
            find_sanitizer()
        return run(sources, tools, options)
    except AstitchError as error:
        print(f"{parser.prog}: {'; '.join(str(error).split(chr(10)))}", file=sys.stderr)
        return 2


def run(sources: Sequence[Source], tools: Sequence[str], options: argparse.Namespace) -> int:
    """Compiles, launches, prints."""
    start = time.monotonic()
    failed: dict[str, str] = {}
    if options.kernels:
        samples: list[KernelSample] = pickle.loads(options.kernels.read_bytes())
    else:
        gpu = preset(options.gpu) if options.gpu else from_device()
        samples, failed = collect_all(sources, gpu, options.jobs)
        print(
            f"{len(samples)} kernels of {len(sources)} programs compiled for {gpu.name} in "
            f"{time.monotonic() - start:.0f} s"
        )
    for name, words in failed.items():
        print(f"{name}: {words}")
    if options.collect:
        options.collect.write_bytes(pickle.dumps(samples))
        return 1 if failed else 0
    logs: dict[str, Log] = {}
    with tempfile.TemporaryDirectory(prefix="astitch_sanitize_") as folder:
        file = Path(folder) / "kernels.pickle"
        file.write_bytes(pickle.dumps(samples))
        for tool in tools:
            begun = time.monotonic()
            logs[tool] = run_tool(tool, samples, file, options.watched, options.seconds)
            print(f"{tool}: {time.monotonic() - begun:.0f} s", flush=True)
    print(*format_table(samples, logs), *format_findings(samples, logs), sep="\n")
    unclean = count_unclean(samples, logs)
    print(*(f"{tool}: {len(samples)} kernels, {n} not ok" for tool, n in unclean.items()), sep="\n")
    return 1 if failed or any(unclean.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
