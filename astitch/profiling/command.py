"""`astitch-profile TARGET`: the command line.

Reads options, runs the pipeline under a progress bar and writes what was asked for.  Whatever goes wrong is one line on
stderr and exit status 2; files are written whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from astitch.device.gpu import PRESETS
from astitch.errors import AstitchError
from astitch.options import ENGINES
from astitch.profiling.collection import render_comparison, render_programs
from astitch.profiling.profiler import Options, Progress, choose_gpu, profile_target
from astitch.profiling.report import SCRIPT_SCHEMA, Report
from astitch.profiling.script import MOST_PROGRAMS, is_script, read_script
from astitch.profiling.trace_file import render_trace
from astitch.profiling.xplane import place_in, render_xspace

if TYPE_CHECKING:
    from rich.console import Console

PROGRAM = "astitch-profile"
INSTALL = "pip install 'astitch[profile]'"

REGRESSED, FAILED = 1, 2
"""Exit status: slower than --compare's base; an error."""


class OneLineParser(argparse.ArgumentParser):
    """What is typed wrong is told as every other error is, without the list of options before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(FAILED, f"{self.prog}: {message}; see {self.prog} --help\n")


def make_parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog=PROGRAM,
        description="XLA and astitch side by side on one target: measured on a GPU, compiled for a preset without one.",
        epilog="exit status: 0; 1 where --compare found a regression; 2 after a one-line error",
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="module:function, FILE.py[:function], a script, an HLO file (.pb, .txt, .hlo) or an XLA dump folder; "
        "with --compare also a report that --json wrote",
    )
    parser.add_argument(
        "--args",
        nargs="+",
        default=[],
        metavar="SHAPE",
        help="of a function: shapes like f32[8,128], or an attribute that builds the arguments",
    )
    parser.add_argument(
        "--script-args", default="", metavar="ARGS", help="of a script, as one string"
    )
    parser.add_argument(
        "--programs",
        type=int,
        default=MOST_PROGRAMS,
        metavar="N",
        help=f"of a script: profile the N largest ({MOST_PROGRAMS})",
    )
    parser.add_argument(
        "--carries",
        action="store_true",
        help="a training step: each call takes over its first argument and gives the next call's as first result",
    )
    parser.add_argument("--engine", choices=ENGINES, help="of astitch.jit; host: run nothing")
    parser.add_argument(
        "--gpu",
        metavar="PRESET",
        help=f"compile for a preset and run nothing: {', '.join(n for n in PRESETS if n != 'host')}",
    )
    parser.add_argument("--runs", type=int, default=9, help="timed batches of each side (9)")
    parser.add_argument("--flush-l2", action="store_true", help="overwrite the L2 before each call")
    parser.add_argument(
        "--kernels", type=int, default=10, metavar="N", help="list the N slowest of each side (10)"
    )
    parser.add_argument(
        "--ncu", action="store_true", help="hardware counters of these N by Nsight Compute"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one page")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the timelines for Perfetto, as trace events",
    )
    parser.add_argument(
        "--tensorboard",
        type=Path,
        metavar="DIR",
        help="write them into TensorBoard's logs, for its profile page",
    )
    parser.add_argument("--open", action="store_true", help="show the page in a browser")
    parser.add_argument(
        "--compare", type=Path, metavar="BASE.json", help="regressions since an earlier --json"
    )
    parser.add_argument(
        "--diff", type=Path, metavar="FILE", help="with --compare: write what changed as one page"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=5.0,
        metavar="PERCENT",
        help="of --compare: slower by more is a regression (5)",
    )
    parser.add_argument("--strict", action="store_true", help="fail where an op is left to XLA")
    parser.add_argument(
        "--memory-limit", metavar="BYTES", help="of astitch's side, as 8GB (docs/memory.md)"
    )
    parser.add_argument("--no-ablation", action="store_true", help="leave the ablation out")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    try:
        check_options(options)
        return run(options)
    except AstitchError as error:
        print(f"{PROGRAM}: {in_one_line(error)}", file=sys.stderr)
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "pygments", "jax"):
            raise
        print(f"{PROGRAM}: {error.name} is not installed: {INSTALL}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted; nothing was written", file=sys.stderr)
    return FAILED


def in_one_line(error: AstitchError) -> str:
    """What went wrong, and after a semicolon what to do."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())


def check_options(options: argparse.Namespace) -> None:
    """Raises AstitchError before anything takes time."""
    from astitch.device.gpu import preset
    from astitch.directives import check_option

    if options.gpu == "host":
        raise AstitchError("--gpu host is the emulation, which has no times\n  name a GPU")
    if options.gpu is not None:
        preset(options.gpu)
    if options.diff and not options.compare:
        raise AstitchError("--diff shows what changed since a base\n  name the base with --compare")
    check_option(None, "--memory-limit", memory_limit=options.memory_limit)
    for name, least in (("runs", 1), ("kernels", 0), ("programs", 1)):
        if getattr(options, name) < least:
            raise AstitchError(f"--{name} {getattr(options, name)}: give {least} or more")
    for name in ("compare", "trace", "tensorboard"):
        if getattr(options, name) and options.programs > 1 and is_script(options.target):
            raise AstitchError(
                f"--{name} wants one program, and a script has several\n"
                "  give --programs 1 for the largest, FILE.py:function, or a report's JSON"
            )
    if options.ncu:
        from astitch.profiling.counters import find_ncu

        find_ncu()
    outputs: dict[Path, str] = {}
    for name in ("json", "html", "trace", "diff"):
        path = getattr(options, name)
        if path is None:
            continue
        check_writable(path)
        other = outputs.setdefault(path.resolve(), name)
        if other != name:
            raise AstitchError(f"--{other} and --{name} both name {path}\n  name two files")


def check_writable(path: Path) -> None:
    """Raises AstitchError where a file cannot be written."""
    folder = path.parent
    if path.is_dir():
        raise AstitchError(f"{path} is a folder\n  give the name of a file")
    if not folder.is_dir():
        raise AstitchError(f"{path}: there is no folder {folder}\n  make it, or name another")
    if path.exists() and not path.is_file():  # a device, a pipe: a file would take its place
        raise AstitchError(f"{path} is no ordinary file\n  give the name of a file")
    try:
        # Asked by doing it: some file systems refuse what their permissions allow.
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            refused = path.exists() and not os.access(path, os.W_OK)
    except OSError:
        refused = True
    if refused:
        raise AstitchError(f"{path} cannot be written\n  name a file in a folder of yours")


def make_folder(path: Path) -> None:
    """Raises AstitchError where it cannot be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AstitchError(
            f"{path} cannot be made: {error.strerror}\n  name another folder"
        ) from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Into a file beside it that takes its place at the end.  Raises AstitchError, nothing written."""
    path = path.resolve()  # a link stays, what it points to is replaced
    partial: str | None = None
    try:
        number, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        os.fchmod(number, 0o644)
        with open(number, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(partial, path)
        partial = None
    except OSError as error:
        raise AstitchError(
            f"{path} cannot be written: {error.strerror}\n  name another file"
        ) from None
    finally:
        if partial is not None:
            Path(partial).unlink(missing_ok=True)


def run(options: argparse.Namespace) -> int:
    """Profile or load, show, write, compare."""
    from rich.console import Console

    from astitch.profiling.compare import compare_reports
    from astitch.profiling.terminal import WIDTH, print_comparison, print_report

    # Without a terminal to ask, as wide as it may get; colours go only to a terminal.
    out = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, markup=False)
    out.width = min(out.width, WIDTH)
    base = Report.load(options.compare) if options.compare else None
    if is_script(options.target):
        reports = profile_programs(options)
        if options.programs > 1:
            return show_programs(options, reports, out)
        (report,) = reports
    elif options.target.endswith(".json"):
        report = Report.load(Path(options.target))
    else:
        report = profile_with_progress(options)
    comparison = compare_reports(base, report, options.tolerance / 100) if base else None
    if base and comparison and options.diff:
        write_whole(options.diff, render_comparison(base, report, comparison))
        print(f"wrote {options.diff}", file=sys.stderr)
    page = write_outputs(options, report)  # first: whoever reads the table may stop reading
    print_report(report, out, options.kernels)
    if comparison is not None:
        print_comparison(comparison, out)
    if options.open:
        open_page(page)
    return REGRESSED if comparison is not None and comparison.regressions else 0


def profile_programs(options: argparse.Namespace) -> list[Report]:
    """Of the programs of a script, the largest first.  Raises AstitchError."""
    asked = read_options(options)
    device = choose_gpu(asked)
    if device is None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    targets = read_script(options.target, shlex.split(options.script_args), options.programs)
    reports = []
    for target in targets:
        with show_progress(count_stages(asked, measured=device is not None)) as tell, quiet():
            tell(f"{target.name} is read")
            reports.append(profile_target(target, asked, tell))
    return reports


def show_programs(options: argparse.Namespace, reports: Sequence[Report], out: Console) -> int:
    """Show and write the reports of a script."""
    from astitch.profiling.terminal import print_report

    page: Path | None = options.html
    if options.open and page is None:
        page = Path(tempfile.mkdtemp(prefix="astitch_profile_")) / "report.html"
    if options.json:
        plain = {"schema": SCRIPT_SCHEMA, "reports": [report.to_dict() for report in reports]}
        write_whole(options.json, json.dumps(plain, separators=(",", ":")) + "\n")
        print(f"wrote {options.json}", file=sys.stderr)
    if page:
        alone = len(reports) == 1
        text = reports[0].to_html() if alone else render_programs(options.target, reports)
        write_whole(page, text)
        print(f"wrote {page}", file=sys.stderr)
    for report in reports:
        print_report(report, out, options.kernels)
        out.print()
    if options.open:
        open_page(page)
    return 0


def write_outputs(options: argparse.Namespace, report: Report) -> Path | None:
    """The files, each whole; nothing is written before all of them are made.  The page, where there is one."""
    page: Path | None = options.html
    if options.open and page is None:
        page = Path(tempfile.mkdtemp(prefix="astitch_profile_")) / "report.html"
    texts: dict[Path, str | bytes] = {}
    if options.json:
        texts[options.json] = json.dumps(report.to_dict(), separators=(",", ":")) + "\n"
    if page:
        texts[page] = report.to_html()
    if options.trace:
        texts[options.trace] = render_trace(report)
    if options.tensorboard:
        place = place_in(options.tensorboard, report)
        texts[place] = render_xspace(report)
        make_folder(place.parent)
    for path, text in texts.items():
        write_whole(path, text)
        print(f"wrote {path}", file=sys.stderr)
    return page


def open_page(page: Path | None) -> None:
    """Shows a page in a browser.  Raises AstitchError where none could be started."""
    import webbrowser

    if page is not None and not webbrowser.open(page.resolve().as_uri()):
        raise AstitchError(f"no browser could be started\n  open {page}")


def read_options(options: argparse.Namespace) -> Options:
    """What is asked of each profile."""
    return Options(
        options.gpu,
        options.engine,
        options.runs,
        options.flush_l2,
        options.ncu,
        options.kernels,
        options.strict,
        not options.no_ablation,
        options.memory_limit,
    )


def profile_with_progress(options: argparse.Namespace) -> Report:
    """The report, what is under way shown on stderr if that is a terminal."""
    from astitch.profiling.target import read_target

    asked = read_options(options)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # both sides share the GPU
    device = choose_gpu(asked)
    with show_progress(count_stages(asked, measured=device is not None)) as tell, quiet():
        if device is None:
            # JAX only traces then; a driver or plugin that does not work is none of its business.
            os.environ.setdefault("JAX_PLATFORMS", "cpu")
        tell("target is read")
        target = read_target(options.target, options.args, carries=options.carries)
        return profile_target(target, asked, tell)


def count_stages(asked: Options, *, measured: bool) -> int:
    """How often the pipeline tells what begins."""
    return (5 + asked.ncu if measured else 3) + asked.ablation


@contextmanager
def show_progress(stages: int) -> Iterator[Progress]:
    """Hands on what tells the bar what is under way.  stages: how often it will be told."""
    from rich import progress
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description:32}"), BarColumn(), TimeElapsedColumn()
    with progress.Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=stages, completed=-1)

        def tell(what: str) -> None:
            bar.update(task, description=what, advance=1)

        yield tell


@contextmanager
def quiet() -> Iterator[None]:
    """The report says what is missing; warnings would say it again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


if __name__ == "__main__":
    sys.exit(main())
