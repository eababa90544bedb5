"""Compiles cases in several processes before one process measures them, so that it finds all caches warm.

Takes Jobs and the number of processes, hands on a note for each job that failed.  Jobs run side by side as long as
the device memory that they name fits a budget; when `run_jobs` returns, every process that it started has ended.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import jax

from astitch import options
from astitch.run.executor import import_cupy
from benchmarks.results import describe

CONTEXT_BYTES = 1_500_000_000
"""Device memory of a process beside its arrays: the CUDA context, and the code that JAX, torch and CuPy load."""

USABLE = 0.85
"""Of the memory beside the contexts: allocators round up and fragment."""

STALLED_S = 240.0
"""Where no job ends for so long, those that run are given up."""

SLOWEST = 5
"""Jobs that the summary names."""


@dataclass(frozen=True, slots=True)
class Job:
    """work, in a process of its own: compiles, and hands on what failed (peer: note).  It must pickle.

    bytes: the most device memory that it has at a time.
    """

    key: str
    bytes: int
    work: Callable[[], Mapping[str, str]]


# ---- caches ------------------------------------------------------------------------------------------------------


def open_caches(folder: Path) -> None:
    """Every peer keeps what it compiles under the folder, in this process and in those that it starts.

    To be called before JAX compiles for the first time and before torch is imported.  What torch and XLA choose by
    timing is not kept by itself: it would have been timed beside other processes.
    """
    names = {
        "JAX_COMPILATION_CACHE_DIR": folder / "xla",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0,
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": -1,
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
        "TORCHINDUCTOR_CACHE_DIR": folder / "inductor",
        "TORCHINDUCTOR_FX_GRAPH_CACHE": 1,
        "TORCHINDUCTOR_AUTOTUNE_LOCAL_CACHE": 0,
        # The processes are side by side already: no pool of compilers in each.
        "TORCHINDUCTOR_COMPILE_THREADS": 1,
        "TRITON_CACHE_DIR": folder / "triton",
    }
    for name, value in names.items():
        os.environ.setdefault(name, str(value))
    # JAX has read its environment.
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def default_folder(with_xla: bool) -> Path:
    """Beside astitch's own caches: ASTITCH_CACHE_DIR moves all.

    with_xla: XLA's programs are prepared too.  XLA times kernels as it compiles and keeps the fastest in the program;
    those chosen beside other processes stay apart, so that no later run takes them for chosen in quiet.
    """
    return options.cache_dir() / ("peers-side-by-side" if with_xla else "peers")


def add_options(parser: argparse.ArgumentParser) -> None:
    """--prepare, --prepare-xla and --dry."""
    parser.add_argument(
        "--prepare",
        type=int,
        default=0,
        metavar="N",
        help="compile in N processes first; XLA's programs in quiet, when they are measured",
    )
    parser.add_argument(
        "--prepare-xla",
        action="store_true",
        help="XLA's too: sooner done, but XLA chooses kernels by timing them, then beside others",
    )
    parser.add_argument(
        "--dry", action="store_true", help="list what would be measured, with its memory, and stop"
    )


def _start_worker() -> None:
    """What is asked of a process that only compiles."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    # JAX's own allocator would keep what it had; this one hands it back after each job.
    os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"


def choose_budget(workers: int) -> int:
    """Bytes for the arrays of `workers` processes together, of what is free on the current device."""
    free, _ = import_cupy().cuda.runtime.memGetInfo()
    return max(0, int((free - workers * CONTEXT_BYTES) * USABLE))


def format_jobs(jobs: Sequence[Job]) -> str:
    """A line for each, and their number."""
    lines = [f"{job.bytes / 1e9:8.3f} GB  {job.key}" for job in jobs]
    return "\n".join([*lines, f"{len(jobs)} to measure"])


# ---- running -----------------------------------------------------------------------------------------------------


def prepare(jobs: Sequence[Job], workers: int, with_xla: bool) -> None:
    """Opens the caches, runs the jobs and prints what failed and what took long."""
    start = time.perf_counter()
    open_caches(default_folder(with_xla))
    notes, seconds = run_jobs(jobs, workers, choose_budget(workers))
    for key, note in notes.items():
        print(f"preparing {key}: {note}")
    spent = sorted(seconds, key=lambda key: seconds[key], reverse=True)
    slowest = ", ".join(f"{key} {seconds[key]:.1f}" for key in spent[:SLOWEST])
    median = statistics.median(seconds.values()) if seconds else 0.0
    print(
        f"prepared {len(seconds)} of {len(jobs)} in {time.perf_counter() - start:.0f} s by {workers} processes; "
        f"seconds: median {median:.1f}, most {slowest or 'none'}\n",
        flush=True,
    )


def run_jobs(
    jobs: Sequence[Job], workers: int, budget_bytes: int
) -> tuple[dict[str, str], dict[str, float]]:
    """Notes by key for what failed, seconds by key for what ended.

    The next job is the first given that fits beside those that run; one beyond the budget runs alone.  A process that
    dies takes the jobs that ran then with it; the others go on in new processes.
    """
    waiting = list(jobs)
    notes: dict[str, str] = {}
    seconds: dict[str, float] = {}
    while waiting:
        waiting = _run_pool(waiting, workers, budget_bytes, notes, seconds)
    return notes, seconds


def _run_pool(
    jobs: Sequence[Job],
    workers: int,
    budget_bytes: int,
    notes: dict[str, str],
    seconds: dict[str, float],
) -> list[Job]:
    """The jobs that have not been started when all are done or a process died.  Adds to notes and seconds."""
    waiting = list(jobs)
    running: dict[Future[tuple[Mapping[str, str], float]], Job] = {}
    broken = False
    # Spawned: a CUDA context does not survive a fork.
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)), multiprocessing.get_context("spawn"), _start_worker
    )
    with pool:
        while running or (waiting and not broken):
            while not broken and len(running) < workers:
                job = _choose_next(waiting, list(running.values()), budget_bytes)
                if job is None:
                    break
                try:
                    running[pool.submit(_run_job, job)] = job
                except BrokenExecutor:  # a process died just now
                    broken = True
                else:
                    waiting.remove(job)
            done, _ = wait(running, STALLED_S, FIRST_COMPLETED)
            if not done:
                for process in multiprocessing.active_children():
                    process.kill()  # which breaks the pool: the jobs get their notes below
            for future in done:
                job = running.pop(future)
                try:
                    failed, spent = future.result()
                except Exception as error:
                    notes[job.key] = describe(error)
                    broken = broken or isinstance(error, BrokenExecutor)
                else:
                    seconds[job.key] = spent
                    if failed:
                        notes[job.key] = "; ".join(f"{peer}: {n}" for peer, n in failed.items())
    return waiting


def _choose_next(waiting: Sequence[Job], running: Sequence[Job], budget_bytes: int) -> Job | None:
    """The first job that fits beside those that run; any job fits where none runs."""
    used = sum(job.bytes for job in running)
    fitting = (job for job in waiting if not running or used + job.bytes <= budget_bytes)
    return next(fitting, None)


def _run_job(job: Job) -> tuple[Mapping[str, str], float]:
    start = time.perf_counter()
    return job.work(), time.perf_counter() - start
