"""Shows a compilation: lines on stderr by ASTITCH_DEBUG, a folder of files by ASTITCH_DUMP.

Takes a finished Compilation and the module it came from, hands on nothing; what is shown changes no result.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from astitch import options
from astitch.compile import Compilation
from astitch.gpu import PRESETS
from astitch.program import IslandStep, KernelStep, LibraryStep, ReferenceStep

REPRO = """\
\"\"\"Compiles the module beside this file again, and prints what became of it.\"\"\"

from pathlib import Path

import astitch
{device}
module = Path(__file__).with_name("module.hlo.pb").read_bytes()
print(astitch.compile_hlo(module, gpu={gpu}).explain())
"""


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
    own = _make_numbered(folder, _file_name(compilation.program.name))
    (own / "module.hlo.pb").write_bytes(hlo)
    (own / "graph.txt").write_text(f"{compilation.graph}\n", "utf-8")
    (own / "explain.txt").write_text(
        f"{describe(compilation, 1)}\n\n{compilation.explain()}\n", "utf-8"
    )
    (own / "repro.py").write_text(REPRO.format(**_device_of(compilation.gpu.name)), "utf-8")
    for number, kernel in enumerate(compilation.program.kernels):
        (own / f"{number:02}_{_file_name(kernel.name)}.cu").write_text(kernel.source, "utf-8")
    return own


def _device_of(name: str) -> dict[str, str]:
    """How repro.py names the device: a preset, else the device that it runs on."""
    if name in PRESETS:
        return {"device": "", "gpu": repr(name)}
    return {"device": "from astitch.gpu import from_device\n", "gpu": "from_device()"}


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


def _file_name(name: str) -> str:
    """A name from an HLO module as part of a file name: no separators, bounded."""
    return re.sub(r"[^\w.-]", "_", name)[:60]
