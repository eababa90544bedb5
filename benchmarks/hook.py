"""Programs compiled for a GPU that is not here, in three ways: by JAX alone, by astitch.jit, through XLA's hook.

`JAX_PLATFORMS=cpu python -m benchmarks.hook [NAME ...]` prints what one call of each launches and what memory is
planned.  Wants JAX with XLA's compiler for NVIDIA GPUs (`make test-xla`); no GPU.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from astitch.api import inside_xla
from astitch.device.gpu import preset
from astitch.library.xla_fallback import AROUND_KERNELS
from astitch.profiling.report import COPY, MEMORY, PRODUCT
from astitch.profiling.xla_kernels import read_xla_kernels
from tests.ahead_of_time import GPU, Seen, devices, hooked
from tests.conftest import why_no_hook

WAYS = ("plain", "jit", "hook")
"""By JAX alone, by astitch.jit, through XLA's hook."""


@dataclass(frozen=True, slots=True)
class Row:
    """One program in one of WAYS.

    memory, ours, products, copies: launches of one call; memory counts all that is memory-intensive, ours those of them
    that are kernels of astitch's.  transposes: fusions and ops that only move.  times in s; the rest in bytes.
    """

    program: str
    way: str
    memory: float
    ours: float
    products: float
    copies: float
    transposes: int
    temporary: int
    output: int
    alias: int
    seconds: float
    note: str = ""

    def __str__(self) -> str:
        mb = [f"{size / 1e6:9.2f}" for size in (self.temporary, self.output, self.alias)]
        return (
            f"{self.program:24} {self.way:6} {self.memory:7g} {self.ours:6g} {self.products:8g} {self.copies:6g} "
            f"{self.transposes:6} {' '.join(mb)} {self.seconds:6.1f} {self.note}"
        )


HEAD = (
    f"{'program':24} {'way':6} {'memory':>7} {'ours':>6} {'products':>8} {'copies':>6} {'transp':>6} "
    + " ".join(f"{name:>9}" for name in ("temp MB", "out MB", "alias MB"))
    + f" {'s':>6}"
)


def list_programs(size: str) -> dict[str, Callable[[], Any]]:
    """By name, what makes a Program."""
    from benchmarks.hook_programs import PROGRAMS
    from benchmarks.models import choose_entries

    found: dict[str, Callable[[], Any]] = {
        f"{entry.workload}/{entry.mode}": lambda entry=entry: _make_model(entry)
        for entry in choose_entries([], size)
        if entry.size == size
    }
    for name, make in PROGRAMS.items():
        found[name] = lambda make=make: make(size == "tiny")
    return found


def _make_model(entry: Any) -> Any:
    import jax

    from benchmarks.hook_programs import Program, shaped
    from benchmarks.models import make_task

    task = make_task(entry)
    given = jax.tree.map(lambda a: shaped(a.shape, a.dtype), (task.first, task.batch))
    return Program(task.fn, given, (0,) if task.trains else ())


def compile_ways(name: str, program: Any, ways: Sequence[str], dump: Path | None) -> Iterator[Row]:
    """A row for each way."""
    import jax
    from jax.sharding import SingleDeviceSharding

    import astitch

    place = SingleDeviceSharding(devices()[0])

    def put(a: Any) -> Any:
        make: Any = jax.ShapeDtypeStruct
        return make(a.shape, a.dtype, sharding=place)

    given = jax.tree.map(put, program.arguments)
    for way in ways:
        jax.clear_caches()
        start = time.perf_counter()
        seen = Seen()
        if way == "jit":
            fn: Any = astitch.jit(program.fn, donate_argnums=program.donated)._stitched_jit
            lowered = fn.trace(*given).lower(lowering_platforms=("cuda",))
            compiled = lowered.compile(compiler_options=dict(AROUND_KERNELS))
        else:
            fn = jax.jit(program.fn, donate_argnums=program.donated)
            with hooked(stitches=way == "hook") as seen:
                compiled = fn.trace(*given).lower(lowering_platforms=("cuda",)).compile()
        seconds = time.perf_counter() - start
        if dump:
            _dump(dump, f"{name.replace('/', '-')}.{way}", compiled, seen)
        yield _count(name, way, compiled, seconds, "; ".join(s.reason for s in seen.stitchings))


def _count(name: str, way: str, compiled: Any, seconds: float, note: str) -> Row:
    module = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    kernels = read_xla_kernels(module, preset(GPU)).kernels
    launches = {
        kind: sum(k.launches for k in kernels if k.kind == kind) for kind in (MEMORY, PRODUCT, COPY)
    }
    memory = compiled.memory_analysis()
    return Row(
        name,
        way,
        launches[MEMORY],
        sum(k.launches for k in kernels if k.ours),
        launches[PRODUCT],
        launches[COPY],
        sum("transpose" in k.name for k in kernels if not k.ours),
        memory.temp_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
        seconds,
        note,
    )


def _dump(folder: Path, name: str, compiled: Any, seen: Seen) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text(compiled.as_text())
    for number, module in enumerate(seen.modules):
        (folder / f"{name}.{number}.in.pb").write_bytes(module)
    for number, stitching in enumerate(seen.stitchings):
        (folder / f"{name}.{number}.out.pb").write_bytes(stitching.module or b"")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hook")
    parser.add_argument(
        "names", nargs="*", help="programs whose name contains one of these; or all"
    )
    parser.add_argument("--size", default="full", choices=("full", "tiny"))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--json", type=Path, help="write the rows there")
    parser.add_argument("--dump", type=Path, metavar="FOLDER", help="write the modules there")
    options = parser.parse_args(arguments)
    if missing := why_no_hook():
        raise SystemExit(missing)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # As if the GPU was here: astitch.jit takes its engine in XLA.
    jit_module: Any = importlib.import_module("astitch.jit")
    inside: Any = inside_xla
    jit_module.choose_engine = lambda asked=None: "xla"
    inside.target_gpu = lambda: preset(GPU)
    rows: list[Row] = []
    print(HEAD)
    for name, make in list_programs(options.size).items():
        if options.names and not any(wanted in name for wanted in options.names):
            continue
        for row in compile_ways(name, make(), options.ways, options.dump):
            rows.append(row)
            print(row, flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
