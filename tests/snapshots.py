"""What astitch decides and emits, as text to compare: the net under every change that should change nothing.

`python -m tests.snapshots write DIR` writes it all, `compare DIR` compares.  It has plans of the large shapes and of
whole modules on every preset.  It has hashes of all that is emitted for them and the corpus on four GPUs, for CuPy and
for XLA. tests/golden/snapshots has those of this commit.  It needs no GPU and no CUDA compiler: one that stands in
accepts every kernel.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import hashlib
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from astitch.compile import compile_hlo
from astitch.cost.projected_latency import project
from astitch.device.gpu import PRESETS, Gpu, preset
from astitch.hlo.schema import HloModuleProto
from astitch.hlo_import import import_hlo
from astitch.program.steps import FallbackStep, Step
from astitch.search.plan import Plan
from astitch.toolchain import kernel_cache, nvrtc
from astitch.xla.compile_module import compile_for_xla
from tests import large_shapes, programs

DATA = Path(__file__).parent / "data"
GPUS = tuple(name for name in PRESETS if name != "host")
EMITTED_FOR = ("v100", "a100", "h100", "b200")

# ---- modules -------------------------------------------------------------------------------------


def real_modules() -> dict[str, Path]:
    """Training and inference steps as JAX and TensorFlow gave them, by name."""
    return {path.name.partition(".")[0]: path for path in sorted((DATA / "hlo").iterdir())}


def read_module(name: str) -> bytes | str:
    """A module by its name: of the large shapes, the corpus or the real ones.  Raises KeyError."""
    if name in large_shapes.LARGE:
        return large_shapes.load(name)
    if name in programs.PROGRAMS:
        return programs.load(name)
    path = real_modules()[name]
    data = gzip.decompress(path.read_bytes())
    return data.decode() if path.suffixes[-2] == ".txt" else data


# ---- a CUDA compiler that accepts everything -----------------------------------------------------

_ENTRY = re.compile(
    r"__global__ void (?:__cluster_dims__\([^)]*\) )?(?:__launch_bounds__\([^)]*\) )?(\w+)\("
)
_STAND_IN = nvrtc.Choice(
    nvrtc.Nvrtc("stand-in", (13, 0), (70, 75, 80, 90, 100), None),  # type: ignore[arg-type]
    "it stands in",
)


def _accept(request: nvrtc.Request) -> nvrtc.CompiledKernel:
    """The text itself as PTX, with the word for what a launch gives, and resources that spill nothing."""
    used = nvrtc.Resources(32, 0, 0, 0, 0)
    given = "// .extern .shared\n" if "ASTITCH_SHARED_ARENA" in request.source else ""
    kernels = MappingProxyType(dict.fromkeys(_ENTRY.findall(request.source), used))
    return nvrtc.CompiledKernel(b"", (request.source + given).encode(), kernels, "", (13, 0))


@contextmanager
def stand_in_compiler() -> Iterator[None]:
    """Within, NVRTC is not called, and nothing is kept on disk: plans are those of the rules and the projection."""
    before = nvrtc.compile_request, nvrtc.choose_nvrtc, os.environ.get("ASTITCH_CACHE_DIR")
    cpus = os.sched_getaffinity
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["ASTITCH_CACHE_DIR"] = folder
        nvrtc.compile_request, nvrtc.choose_nvrtc = _accept, lambda arch: _STAND_IN
        kernel_cache._cache_at.cache_clear()
        # With one thread: of kernels that differ in names only, the first to be compiled gives all of them its names.
        os.sched_getaffinity = lambda pid: {0}
        try:
            yield
        finally:
            os.sched_getaffinity = cpus
            nvrtc.compile_request, nvrtc.choose_nvrtc = before[:2]
            kernel_cache._cache_at.cache_clear()
            if before[2] is None:
                del os.environ["ASTITCH_CACHE_DIR"]
            else:
                os.environ["ASTITCH_CACHE_DIR"] = before[2]


# ---- plans ---------------------------------------------------------------------------------------


def show_plans(name: str, gpu: str) -> str:
    """The launch, schemes and projected time of every kernel of a module on a preset; of large shapes the loops too."""
    with stand_in_compiler():
        compilation = compile_hlo(read_module(name), gpu=gpu)
    steps = Counter(_name_kind(step) for step in compilation.program.steps)
    lines = [f"{_show_counts(steps)}, arena {compilation.program.arena_bytes} B"]
    for plan in compilation.plans:
        lines += show_plan(plan, compilation.gpu, loops=name in large_shapes.LARGE)
    return "\n".join(lines)


def _name_kind(step: Step) -> str:
    """The kind of a step as the stored goldens name it, so that they stay as they are when a class is renamed."""
    return "IslandStep" if isinstance(step, FallbackStep) else type(step).__name__


def _show_step(step: Step) -> str:
    return repr(step).replace(type(step).__name__, _name_kind(step), 1)


def show_plan(plan: Plan, gpu: Gpu, *, loops: bool) -> list[str]:
    """A line for the kernel and, if wanted, one for each of its levels and loops."""
    kernel, arrangement = plan.kernel, plan.arrangement
    projected = project(kernel, gpu, None, plan.work)
    us = projected.time_us
    meets = f"{kernel.global_barriers} grid and {kernel.block_barriers} block barriers"
    block_groups = f", {kernel.block_groups} teams" if kernel.block_groups else ""
    schemes = Counter(place.scheme.value for place in arrangement.placements.values())
    lines = [
        f"{plan.scope.name}: {len(plan.scope.members)} ops, {kernel.grid} x {kernel.block} threads, "
        f"{kernel.blocks_per_sm} blocks an SM, {kernel.shared_bytes} B shared, {meets}{block_groups}, "
        f"{_show_counts(schemes)}, reads {kernel.reads_bytes}, writes {kernel.writes_bytes}, {us:.2f} us; "
        f"{plan.schedule}"
    ]
    if not loops:
        return lines
    for number, level in enumerate(projected.levels):
        busy = ", ".join(f"{name} {us:.2f}" for name, us in sorted(level.throughput))
        lines.append(f"  level {number}: {busy}, latency {level.latency_us:.2f} us")
    for loop in arrangement.loops:
        placed = Counter(
            f"{place.root.kind.value} {place.scheme.value}"
            for place in arrangement.placements.values()
            if place.loop == loop.number
        )
        lines.append(f"  level {loop.level}: {loop.mapping}; {_show_counts(placed)}")
    return lines


def _show_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


# ---- what is emitted -----------------------------------------------------------------------------


def hash_emitted(name: str, gpu: str) -> str:
    """Hashes of a module's kernels as CuPy gets them, of its steps, and of the module that XLA gets."""
    data = read_module(name)
    with stand_in_compiler():
        program = compile_hlo(data, gpu=gpu).program
    texts = (kernel.source for kernel in program.kernels)
    return " ".join(
        [_hash(*texts), _hash(*map(_show_step, program.steps)), _hash(write_for_xla(name, gpu))]
    )


def write_for_xla(name: str, gpu: str) -> bytes:
    """The module that XLA gets, serialized; every second parameter is donated, so that some results find memory to take
    over and some do not."""
    with stand_in_compiler():
        graph = import_hlo(read_module(name))
        donated = [number % 2 == 0 for number in range(len(graph.parameters))]
        return compile_for_xla(graph, preset(gpu), donated)[1]


def _hash(*texts: str | bytes) -> str:
    data = b"\0".join(text.encode() if isinstance(text, str) else text for text in texts)
    return hashlib.sha256(data).hexdigest()[:16]


_CODE = re.compile(rb'kernel_data = "((?:[^"\\]|\\[0-9A-Fa-f]{2})*)"')
_ESCAPED = re.compile(rb"\\([0-9A-Fa-f]{2})")


def show_for_xla(name: str, gpu: str) -> str:
    """The instructions of the module that XLA gets; below each kernel its launch and its text."""
    module = HloModuleProto.FromString(write_for_xla(name, gpu))
    lines = []
    for computation in module.computations:
        lines.append(f"{computation.name.decode()}:")
        names = {i.id: i.name.decode() for i in computation.instructions}
        for i in computation.instructions:
            operands = ", ".join(names[number] for number in i.operand_ids)
            lines.append(
                f"  {i.name.decode()} = {_show_shape(i.shape)} {i.opcode.decode()}({operands})"
            )
            for alias in i.output_operand_aliasing:
                places = [*alias.output_shape_index], alias.operand_index
                lines.append(f"    result {places[0]} over operand {places[1]}")
            if found := _CODE.search(i.backend_config):
                launch = i.backend_config.replace(found[0], b"...").decode()
                code = _ESCAPED.sub(lambda byte: bytes([int(byte[1], 16)]), found[1]).decode()
                lines += [f"    {launch}", *(f"    {line}".rstrip() for line in code.splitlines())]
    return "\n".join(lines)


def _show_shape(shape: Any) -> str:
    if shape.tuple_shapes:
        return f"({', '.join(map(_show_shape, shape.tuple_shapes))})"
    return f"{shape.element_type}{list(shape.dimensions)}"


# ---- all of it -----------------------------------------------------------------------------------


def take(
    make: Callable[[str, str], str], wanted: Sequence[tuple[str, str]], workers: int
) -> dict[tuple[str, str], str]:
    """make(module, gpu) of each pair; the long ones begin first."""
    first = sorted(wanted, key=lambda pair: pair[0] not in real_modules())
    if workers == 1:
        return {pair: make(*pair) for pair in first}
    with ProcessPoolExecutor(workers) as pool:
        made = dict(zip(first, pool.map(partial(_make, make), first), strict=True))
    return {pair: made[pair] for pair in wanted}


def _make(make: Callable[[str, str], str], pair: tuple[str, str]) -> str:
    return make(*pair)


def take_all(workers: int) -> Mapping[str, str]:
    """All snapshots by file name."""
    plans = [(name, gpu) for gpu in GPUS for name in [*large_shapes.LARGE, *real_modules()]]
    hashed = [
        (name, gpu)
        for gpu in EMITTED_FOR
        for name in [*programs.PROGRAMS, *large_shapes.LARGE, *real_modules()]
    ]
    shown = take(show_plans, plans, workers)
    hashes = take(hash_emitted, hashed, workers)
    files = {
        f"plans_{gpu}.txt": join_sections({n: t for (n, g), t in shown.items() if g == gpu})
        for gpu in GPUS
    }
    files["emitted.txt"] = "".join(f"{name} {gpu} {text}\n" for (name, gpu), text in hashes.items())
    return files


def join_sections(sections: Mapping[str, str]) -> str:
    """One text: each section under its name."""
    return "".join(f"== {name}\n{text}\n" for name, text in sections.items())


def split_sections(text: str) -> dict[str, str]:
    """What join_sections was given."""
    parts = (part.partition("\n") for part in text.removeprefix("== ").split("\n== "))
    return {name: body.removesuffix("\n") for name, _, body in parts}


def show_difference(before: str, after: str, name: str) -> list[str]:
    """The lines in which two texts differ, with those around them; none where they are equal."""
    texts = before.splitlines(), after.splitlines()
    return list(difflib.unified_diff(*texts, f"{name} before", f"{name} after", lineterm="", n=2))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.  Returns 1 where something differs."""
    parser = argparse.ArgumentParser(
        description="Plans and emitted text, to compare two checkouts."
    )
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    taken = take_all(options.workers)
    if options.action == "write":
        options.folder.mkdir(parents=True, exist_ok=True)
        for name, text in taken.items():
            (options.folder / name).write_text(text)
        return 0
    differing = [
        line
        for name, text in taken.items()
        for line in show_difference((options.folder / name).read_text(), text, name)
    ]
    print("\n".join(differing) or f"{len(taken)} files are equal")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
