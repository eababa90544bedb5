"""Products of few rows, alone, among other ops and in chains: jax.jit, astitch.enabled(), torch and torch.compile.

`python -m benchmarks.products --json FILE` on a GPU: one table, a row for each form and size.  Times are of the kernels
of a call by the device's own clock in microseconds, in turns, the weights not in the L2.  Errors are against f64.
`--budget SECONDS` takes a cross-section; `--check` compares only, `--report FILE ...` prints: both also without a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import astitch
from astitch.profiling.kernel_trace import KernelTimes, NothingRecorded, sum_launches
from benchmarks.device_timing import record_batches
from benchmarks.peers import TORCH_MODES, NotMeasured, release_memory
from benchmarks.product_forms import (
    DTYPES,
    ROWS,
    TYPES,
    Apart,
    Form,
    Jax,
    compute,
    cut_rows,
    distance_from,
    evaluate_exactly,
    list_forms,
    list_given,
    make_arrays,
    order,
)
from benchmarks.product_tables import HEADER, LEGEND, Row, format_row, load_rows, summarize
from benchmarks.results import describe
from benchmarks.timing import measure_limits

SIDES = ("xla", "astitch", "torch", "compiled", "apart", "bf16")
"""jax.jit, the same within astitch.enabled(), torch eager, torch.compile, a jax.jit for each call of a chain, and the
same form with weights in bf16 by jax.jit, beside 8 and 4 bits."""

COLD_MB = 160.0
"""Of weights, that are read one after another: three times the L2."""

MOST_COPIES, LEAST_CALLS, TURNS = 64, 8, 3

COMPILE_S = 40.0
"""So long rows that are compiled together are waited for."""

FIRST_ROWS = 4
"""Are compiled together at first; then the seconds of a row are known."""

Call = Callable[[Sequence[Any]], Any]


@dataclass(slots=True)
class Side:
    """What is timed.  call: of one set of arguments.  sets: of which each has weights of its own."""

    name: str
    call: Call
    sets: Sequence[Sequence[Any]]
    wait: Callable[[Any], object]
    read: Callable[[Any], np.ndarray]

    @property
    def calls(self) -> int:
        """Of one batch: each set as often as any other."""
        return len(self.sets) * math.ceil(LEAST_CALLS / len(self.sets))

    def run(self) -> None:
        for number in range(self.calls):
            result = self.call(self.sets[number % len(self.sets)])
        self.wait(result)


@dataclass(slots=True)
class Task:
    """A row on its way: what threads compile and compute for it."""

    row: Row
    compiled: dict[str, Future[Any]] = field(default_factory=dict)
    data: Future[tuple[list[np.ndarray], np.ndarray]] | None = None
    torch_compiled: Call | None = None
    sides: list[Side] = field(default_factory=list)

    @property
    def form(self) -> Form:
        return self.row.form

    def futures(self) -> Iterator[Future[Any]]:
        yield from self.compiled.values()
        if self.data is not None:
            yield self.data


# ---- compiling -------------------------------------------------------------------------------------------------------


def twin(form: Form) -> Form:
    """The same with weights in bf16."""
    return Form(form.kind, "bf16", form.rows, form.widths, form.experts)


def describe_shapes(form: Form) -> list[Any]:
    return [jax.ShapeDtypeStruct(g.shape, DTYPES[g.dtype]) for g in list_given(form)]


def jit_form(form: Form) -> Any:
    return jax.jit(lambda *arguments: compute(Jax(), form, arguments))


def compile_side(side: str, form: Form) -> tuple[Call, float]:
    """A call of arguments, and the MB of temporary arrays."""
    if side == "apart":
        apart = Apart()
        return partial(compute, apart, form), 0.0
    settings = astitch.enabled() if side == "astitch" else astitch.disabled()
    with settings:
        compiled = jit_form(form).lower(*describe_shapes(form)).compile()
    planned = compiled.memory_analysis()
    return lambda arguments: compiled(*arguments), getattr(planned, "temp_size_in_bytes", 0) / 1e6


def make_data(form: Form) -> tuple[list[np.ndarray], np.ndarray]:
    """The arguments, and the exact result of some rows."""
    arrays = make_arrays(form)
    return arrays, evaluate_exactly(form, arrays)


def applies(side: str, form: Form) -> bool:
    """Has the form such a side?  What torch compiles of a product alone is torch's own product."""
    if side == "apart":
        return form.is_chain
    if side == "bf16":
        return bool(form.scaling)
    return side != "compiled" or not form.is_product


def start(form: Form, sides: Sequence[str], pool: ThreadPoolExecutor) -> Task:
    task = Task(Row(form))
    for side in sides:
        if applies(side, form) and side not in ("torch", "compiled"):
            task.compiled[side] = pool.submit(
                compile_side, side, twin(form) if side == "bf16" else form
            )
    task.data = pool.submit(make_data, form)
    return task


def compile_by_torch(tasks: Sequence[Task], mode: str) -> None:
    """In this thread, while others compile: torch takes one function at a time."""
    from benchmarks import product_torch

    device, began = product_torch.prepare(), time.perf_counter()
    for task in tasks:
        if not applies("compiled", task.form):
            continue
        try:
            if time.perf_counter() - began > COMPILE_S:
                raise NotMeasured(f"not compiled within {COMPILE_S:.0f} s")
            call = product_torch.make_compiled(task.form, mode=mode)
            call(product_torch.make_zeros(task.form, device))
            task.torch_compiled = call
        except Exception as error:  # what one side cannot do is a result
            task.row.notes["compiled"] = describe(error)


def warm_up() -> None:
    """What is done once is done before threads compile."""
    form = Form("norm+silu", "bf16", 8, (256, 64))
    for side in ("xla", "astitch"):
        compile_side(side, form)


# ---- sides -----------------------------------------------------------------------------------------------------------


def count_copies(form: Form) -> int:
    """So many sets of arguments are more than the L2 holds."""
    held = sum(given.bytes for given in list_given(form))
    return max(1, min(MOST_COPIES, math.ceil(COLD_MB * 1e6 / held)))


def copy_sets(form: Form, place: Callable[[int], Any], copies: int) -> list[list[Any]]:
    """So many sets of arguments, each with its own of all that is large.  place: a new one, by number."""
    sizes = [given.bytes for given in list_given(form)]
    first = [place(number) for number in range(len(sizes))]
    return [first] + [
        [place(n) if size > 0.01 * sum(sizes) else first[n] for n, size in enumerate(sizes)]
        for _ in range(copies - 1)
    ]


def add_jax_sides(task: Task, arrays: Sequence[np.ndarray], copies: int) -> None:
    """Those whose program is there: all sides share their arguments."""
    placed: dict[str, list[list[Any]]] = {}
    for name, future in task.compiled.items():
        try:
            if not future.done():
                raise NotMeasured(f"not compiled within {COMPILE_S:.0f} s")
            call, task.row.temporary_mb[name] = future.result()
            form = twin(task.form) if name == "bf16" else task.form
            if form.dtype not in placed:
                given = make_arrays(form) if name == "bf16" else arrays
                put = partial(_put, given)
                placed[form.dtype] = copy_sets(form, put, copies)
            task.sides.append(Side(name, call, placed[form.dtype], jax.block_until_ready, read_jax))
        except Exception as error:  # what one side cannot do is a result
            task.row.notes[name] = describe(error)


def _put(arrays: Sequence[np.ndarray], number: int) -> Any:
    return jax.device_put(arrays[number], may_alias=False)


def read_jax(result: Any) -> np.ndarray:
    return np.asarray(result).astype(np.float64)


def add_torch_sides(
    task: Task, arrays: Sequence[np.ndarray], copies: int, names: Sequence[str]
) -> None:
    if not {"torch", "compiled"} & set(names):
        return
    from benchmarks import product_torch

    form = task.form
    device = product_torch.prepare()
    moved = product_torch.move(form, arrays, device)
    sets = copy_sets(form, lambda number: moved[number].clone(), copies)
    for name, call in (
        ("torch", product_torch.make_eager(form) if "torch" in names else None),
        ("compiled", task.torch_compiled),
    ):
        if call is None:
            continue
        try:
            own = sets
            if name == "torch" and device == "cuda" and product_torch.is_of_library(form):
                own = [product_torch.lay_out_for_library(arguments) for arguments in sets]
                call = product_torch.call_library
            side = Side(
                name, call, own, lambda _: product_torch.synchronize(), product_torch.to_numpy
            )
            task.sides.append(side)
        except Exception as error:
            task.row.notes[name] = describe(error)


def try_sides(task: Task, exact: np.ndarray) -> None:
    """One call of each, which compares it; what fails is left out."""
    for side in list(task.sides):
        try:
            result = side.call(side.sets[0])
            side.wait(result)
            if side.name != "bf16":  # of other numbers
                found = cut_rows(side.read(result), task.form.along)
                task.row.errors[side.name] = distance_from(exact, found)
        except Exception as error:
            task.row.notes[side.name] = describe(error)
            task.sides.remove(side)


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(tasks: Sequence[Task]) -> None:
    """Fills in the times of the sides that there are, in one recording, the sides of a row in turns."""
    batches = [(task, side) for task in tasks for _ in range(TURNS) for side in task.sides]
    if not batches:
        return
    try:
        recorded = record_batches([side.run for _, side in batches])
    except Exception as error:  # a broken recording costs these rows, not the run
        for task in tasks:
            task.row.notes["times"] = describe(error)
        return
    found: dict[tuple[int, str], list[KernelTimes]] = {}
    for (task, side), launches in zip(batches, recorded, strict=True):
        try:
            times = sum_launches(launches, side.calls)
        except NothingRecorded as error:
            task.row.notes[side.name] = describe(error)
            continue
        found.setdefault((id(task), side.name), []).append(times)
    for task in tasks:
        for side in task.sides:
            if own := found.get((id(task), side.name)):
                fill_in(task.row, side.name, own)


def fill_in(row: Row, side: str, times: Sequence[KernelTimes]) -> None:
    row.us[side] = statistics.median(t.total_us for t in times)
    row.launches[side] = statistics.median(sum(t.count.values()) for t in times)
    row.slowest[side] = dict(times[0].slowest)


def take_together(
    forms: Sequence[Form],
    options: argparse.Namespace,
    pool: ThreadPoolExecutor,
    names: Sequence[str],
) -> list[Row]:
    """Rows that are compiled side by side, then measured in quiet."""
    tasks = [start(form, names, pool) for form in forms]
    if "compiled" in names:
        compile_by_torch(tasks, TORCH_MODES["torch-max" if options.max_autotune else "torch"])
    wait([f for task in tasks for f in task.futures()], timeout=COMPILE_S)
    for task in tasks:
        assert task.data is not None
        if not task.data.done():
            task.row.notes["data"] = f"not there within {COMPILE_S:.0f} s"
            continue
        arrays, exact = task.data.result()
        try:
            copies = 1 if options.check else count_copies(task.form)
            add_jax_sides(task, arrays, copies)
            add_torch_sides(task, arrays, copies, names)
            try_sides(task, exact)
        except Exception as error:  # such as too little memory
            task.row.notes["row"] = describe(error)
    if not options.check:
        measure(tasks)
    for task in tasks:
        task.sides.clear()
    release_memory()
    return [task.row for task in tasks]


def choose_names(options: argparse.Namespace) -> list[str]:
    """The sides that can be here."""
    names = list(options.sides)
    if importlib.util.find_spec("torch") is None:
        names = [n for n in names if n not in ("torch", "compiled")]
        print("there is no torch here", flush=True)
    return names


def choose_forms(options: argparse.Namespace) -> list[Form]:
    """A cross-section first."""
    forms = [
        form
        for form in list_forms()
        if (not options.rows or form.rows in options.rows)
        and (
            not options.types
            or form.dtype in options.types
            or form.dtype.split()[0] in options.types
        )
        and (not options.only or any(word in form.name for word in options.only))
    ]
    return order(forms)


def run_all(options: argparse.Namespace) -> list[Row]:
    """Prints each row as it comes, and stops where the next ones would go beyond the budget."""
    began = time.perf_counter()
    forms, names, rows = choose_forms(options), choose_names(options), list[Row]()
    copy_gbs = None if options.check or jax.default_backend() != "gpu" else measure_copy()
    print(
        f"{len(forms)} forms; copy {copy_gbs or math.nan:.0f} GB/s\n{LEGEND}\n{HEADER}", flush=True
    )
    warm_up()
    done, seconds = 0, 0.0  # of a row, by the last ones
    with ThreadPoolExecutor(options.jobs) as pool:
        while done < len(forms):
            left = options.budget - (time.perf_counter() - began)
            together = (
                FIRST_ROWS if not done else min(options.together, int(left / max(seconds, 1e-3)))
            )
            if together < 1 or left <= 0:
                break
            start_s = time.perf_counter()
            made = take_together(forms[done : done + together], options, pool, names)
            seconds = (time.perf_counter() - start_s) / len(made)
            done += len(made)
            for row in made:
                row.copy_gbs = copy_gbs
                print(format_row(row), flush=True)
            rows += made
            if options.json:
                save(options.json, rows)
        pool.shutdown(wait=False, cancel_futures=True)
    spent = time.perf_counter() - began
    print(f"{done} of {len(forms)} forms in {spent:.0f} s", flush=True)
    return rows


def measure_copy() -> float | None:
    """1e9 bytes a second, read and written; None without CuPy."""
    if importlib.util.find_spec("cupy") is None:
        return None
    return measure_limits().copy_gbs


def save(path: Path, rows: Sequence[Row]) -> None:
    partial_ = path.with_suffix(".part")  # what is known stays if the process is stopped
    partial_.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    partial_.replace(path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.products", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="forms whose name has one of these")
    parser.add_argument(
        "--rows", nargs="+", type=int, default=[], help=f"of {ROWS} and those of chains"
    )
    parser.add_argument(
        "--types", nargs="+", default=[], help=f"of {', '.join(TYPES)}; s8, s4: all of them"
    )
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--max-autotune", action="store_true", help="torch.compile's mode")
    parser.add_argument("--check", action="store_true", help="compare results, measure nothing")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds for all rows")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="threads that compile")
    parser.add_argument(
        "--together", type=int, default=16, help="rows that are compiled, then measured"
    )
    parser.add_argument("--json", type=Path, help="write the rows there, as they come")
    parser.add_argument("--report", nargs="+", type=Path, help="print such files, measure nothing")
    options = parser.parse_args(arguments)
    if options.report:
        known = {row.form: row for path in options.report for row in load_rows(path)}
        lines = (format_row(row) for row in known.values())
        print("\n".join([LEGEND, HEADER, *lines, *summarize(list(known.values()))]))
        return
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch wants memory too
    if jax.default_backend() != "gpu" and not options.check:
        raise SystemExit("JAX sees no GPU here: give --check")
    rows = run_all(options)
    print("\n".join(summarize(rows)), flush=True)


if __name__ == "__main__":
    main()
