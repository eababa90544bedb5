"""Shows a compilation: lines on stderr by ASTITCH_DEBUG, a folder of files by ASTITCH_DUMP.

Takes a finished Compilation and the module it came from, hands on nothing; what is shown changes no result.
"""

from __future__ import annotations

import sys
from pathlib import Path

from astitch import options
from astitch.compile import Compilation
from astitch.faults import file_name, write_repro
from astitch.program import IslandStep, KernelStep, LibraryStep, ReferenceStep


def trace_compilation(hlo: bytes, compilation: Compilation) -> None:
    """Shows what the environment asks for.  Raises InvalidOption, and OSError for a folder that cannot be written."""
    if level := options.debug_level():
        print(describe(compilation, level), file=sys.stderr)
    if folder := options.dump_dir():
        dump(hlo, compilation, folder)


def describe(compilation: Compilation, level: int) -> str:
    """1: one line a kernel; 2: also decisions and refusals; 3: also the graph; 4: also the CUDA text."""
    program = compilation.program
    parts = [
        "\n".join(
            [f"astitch: {program.name} for {compilation.gpu.name}", *_list_steps(compilation)]
        )
    ]
    if level >= 2:
        parts.append(compilation.explain())
    if level >= 3:
        parts.append(str(compilation.graph))
    if level >= 4:
        parts += [kernel.source for kernel in program.kernels]
    return "\n\n".join(parts)


def _list_steps(compilation: Compilation) -> list[str]:
    lines = []
    for number, step in enumerate(compilation.program.steps):
        match step:
            case KernelStep(kernel=kernel):
                what = f"kernel {kernel.name}: grid {kernel.grid}, block {kernel.block}, shared {kernel.shared_bytes} B"
                what += f", {kernel.global_barriers} global barriers"
            case LibraryStep(node=node):
                what = f"library {node.op} %{node.name}: {node.type}"
            case IslandStep():
                what = f"XLA {step.name}: {step.reason}"
            case ReferenceStep(node=node, reason=reason):
                what = f"reference {node.op} %{node.name}: {node.type}: {reason}"
        lines.append(f"  step {number}: {what}")
    return lines


def dump(hlo: bytes, compilation: Compilation, folder: Path) -> Path:
    """Writes module, graph, explanation, kernels and repro.py into a new folder in `folder`; its path.

    Folders are numbered in the order of the compilations, also those of other processes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = _make_numbered(folder, file_name(compilation.program.name))
    write_repro(own, hlo, compilation.gpu.name)
    (own / "graph.txt").write_text(f"{compilation.graph}\n", "utf-8")
    (own / "explain.txt").write_text(
        f"{describe(compilation, 1)}\n\n{compilation.explain()}\n", "utf-8"
    )
    for number, kernel in enumerate(compilation.program.kernels):
        (own / f"{number:02}_{file_name(kernel.name)}.cu").write_text(kernel.source, "utf-8")
    return own


def _make_numbered(folder: Path, name: str) -> Path:
    number = sum(1 for _ in folder.iterdir())
    while True:
        own = folder / f"{number:03}_{name}"
        try:
            own.mkdir()
        except FileExistsError:
            number += 1
        else:
            return own
