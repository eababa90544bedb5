"""Shows a compilation: lines on stderr by ASTITCH_DEBUG, a folder of files by ASTITCH_DUMP.

Takes a finished Compilation and the module it came from, hands on nothing; what is shown changes no result.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from astitch import options
from astitch.faults import file_name, write_repro
from astitch.program.steps import FallbackStep, KernelStep, LibraryStep, ReferenceStep
from astitch.show.compilation import Compilation
from astitch.system.private_files import PrivateFolder


def trace_compilation(hlo: bytes, compilation: Compilation) -> None:
    """Shows what the environment asks for; warns of a folder that cannot be written.  Raises InvalidOption."""
    if level := options.debug_level():
        print(describe(compilation, level), file=sys.stderr)
    if folder := options.dump_dir():
        try:
            dump(hlo, compilation, folder)
        except OSError as error:
            warnings.warn(
                f"{compilation.program.name} is not dumped: {error}\n"
                "  point ASTITCH_DUMP at a folder of your own with room",
                RuntimeWarning,
                stacklevel=2,
            )


def describe(compilation: Compilation, level: int) -> str:
    """1: one line a kernel; 2: also decisions and refusals; 3: also the graph; 4: also the CUDA text."""
    program = compilation.program
    parts = [
        "\n".join(
            [
                f"astitch: {program.name} for {compilation.gpu.name}: {compilation.share.headline}",
                *(f"  {line.strip()}" for line in compilation.share.lines[1:]),
                *_list_steps(compilation),
            ]
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
            case FallbackStep():
                what = f"XLA {step.name}: {step.reason}"
            case ReferenceStep(node=node, reason=reason):
                what = f"reference {node.op} %{node.name}: {node.type}: {reason}"
        lines.append(f"  step {number}: {what}")
    return lines


def dump(hlo: bytes, compilation: Compilation, folder: Path) -> Path:
    """Writes module, graph, explanation, kernels and repro.py into a new folder in `folder`; its path.

    Folders are numbered in the order of the compilations, also those of other processes.  Only this user may read and
    write them.  Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = _make_numbered(folder, file_name(compilation.program.name))
    write_repro(own, hlo, compilation.gpu.name)
    texts = {
        "graph.txt": f"{compilation.graph}\n",
        "explain.txt": f"{describe(compilation, 1)}\n\n{compilation.explain()}\n",
        **{
            f"{number:02}_{file_name(kernel.name)}.cu": kernel.source
            for number, kernel in enumerate(compilation.program.kernels)
        },
    }
    for name, text in texts.items():
        PrivateFolder(own).write(name, text.encode())
    return own


def _make_numbered(folder: Path, name: str) -> Path:
    number = sum(1 for _ in folder.iterdir())
    while True:
        own = folder / f"{number:03}_{name}"
        try:
            own.mkdir(0o700)
        except FileExistsError:
            number += 1
        else:
            return own
