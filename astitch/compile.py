"""HLO in, a Compilation out: runs the passes of pipeline.py, and keeps what they made.

`python -m astitch.compile FILE` compiles a dump without running it and prints what became of it.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from astitch.device.gpu import PRESETS, Gpu, preset
from astitch.directives import check_option, read_directives, warn_of_unfollowed
from astitch.errors import AstitchError, KernelCompileError, MalformedHlo, UnsupportedOp
from astitch.faults import FaultLog, report_faults
from astitch.graph.ir import ConvolutionAttrs, DotAttrs, Graph
from astitch.graph.stitchable import is_own_call
from astitch.hlo.schema import name_of_module
from astitch.hlo_import import import_hlo
from astitch.library.xla_fallback import has_jax
from astitch.loops.plan import describe_loops, find_planned
from astitch.pipeline import NAMES, Emitted, Job, Target, run_passes
from astitch.program.steps import Program
from astitch.search.build_program import NOT_EMITTED, build_program, leave_program
from astitch.search.peak_memory import estimate_factors_stored, estimate_least_plain_peak
from astitch.search.plan_scopes import Render, render_kernel
from astitch.show.compilation import Compilation
from astitch.show.explain import (
    compile_resources,
    explain,
    fallbacks,
    kernel_rows,
    library_steps,
    memory_ops,
    show_directives,
    show_faults,
    show_outside,
    show_table,
)
from astitch.stitch_scope import Scopes
from astitch.toolchain.nvrtc import Resources

IMPORT = "import"
"""What comes before the first pass."""


@contextmanager
def pause_collector() -> Iterator[None]:
    """What the passes make are trees, which need no search for cycles; it would walk all of them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@pause_collector()
def compile_graph(
    graph: Graph,
    gpu: Gpu,
    target: Target | None = None,
    *,
    tune: bool = False,
    strict: bool = False,
    faults: FaultLog | None = None,
) -> Compilation:
    """Compile an imported Graph for a device.  Where JAX is installed XLA computes what nothing of ours does.

    target: for whom; None: for CuPy or the emulation.  tune: measure the best plans on the current GPU.
    strict: raise UnsupportedOp instead, which names the ops and the reasons.
    faults: keeps the errors inside astitch.  Each costs a pass, a loop or a stitch op, at worst all stitch ops of the
    graph.  An error in a region is raised.  Without `faults`, or with strict, errors are raised as
    ASTITCH_FAULTS says.
    """
    faults = faults or FaultLog(strict or None)
    seconds: dict[str, float] = {}
    target = target or Target()
    directives = target.directives if target.region else target.directives.of(graph.name)
    target = replace(target, directives=directives)
    job = Job(graph.name, gpu, target, tune, faults, directives=directives)

    def stitch() -> Compilation:
        return _collect(run_passes(graph, job, seconds=seconds), gpu, seconds)

    if target.region:
        compilation = stitch()
    else:
        compilation = faults.attempt(
            stitch,
            lambda: leave_graph(graph, gpu, seconds),
            stage="compile",
            subject=graph.name,
            cost="XLA computes all of it",
        )
    if strict:
        made = compilation.scopes.graph
        kernels = {node.name for node in made if is_own_call(node)}
        if target.loops:
            kernels |= find_planned(made, target.loops)
        refuse_outside(compilation.program, kernels)
    if target.region:
        return compilation
    told = directives.list_outcomes()
    limit = directives.memory_limit
    plain = stored = 0
    if target.in_xla:
        plain, stored = faults.attempt(
            lambda: _estimate_plain(graph),
            lambda: (0, 0),
            stage="estimate_least_plain_peak",
            subject=graph.name,
            cost="its memory is not compared with that of XLA's own version",
        )
    return replace(
        compilation,
        faults=faults.found,
        directives=told,
        memory_limit=limit,
        plain_bytes=plain,
        stored_bytes=stored,
    )


def _estimate_plain(graph: Graph) -> tuple[int, int]:
    """The bytes that XLA alone takes for a program, at the least, and those where products compute nothing of what they
    read; the latter 0, where they also narrow what they give.  The passes asked for most of it."""
    given = sum(graph[name].array.bytes for name in graph.parameters)
    stored = 0 if _widens_products(graph) else given + estimate_factors_stored(graph)
    return given + estimate_least_plain_peak(graph), stored


def _widens_products(graph: Graph) -> bool:
    """Has a product results of a wider type than its factors?  XLA's own kernels narrow them, libraries store them."""
    products = [node for node in graph if isinstance(node.attrs, DotAttrs | ConvolutionAttrs)]
    return any(node.dtype.bytes > graph[node.operands[0]].dtype.bytes for node in products)


def _collect(products: Mapping[str, Any], gpu: Gpu, seconds: dict[str, float]) -> Compilation:
    """What the passes handed on, as one value."""
    emitted: Emitted = products["emit"]
    planned = emitted.planned
    names = [plan.scope.name for plan in planned.plans]
    lost = {name: NOT_EMITTED for name in names if name not in emitted.kernels}
    return Compilation(
        gpu,
        products["leave"].graph,
        planned.scopes,
        tuple(plan for plan in planned.plans if plan.scope.name not in lost),
        products["program"],
        seconds,
        planned.splits,
        left={**planned.left, **lost},
    )


def leave_graph(graph: Graph, gpu: Gpu, seconds: dict[str, float]) -> Compilation:
    """The compilation of a graph without a stitch op, all of which is left to XLA."""
    reason = "an error inside astitch left the whole program to XLA"
    program = leave_program(graph, reason, fallbacks=has_jax())
    return Compilation(gpu, graph, Scopes(graph, (), (), ()), (), program, seconds)


def leave_kernels(compilation: Compilation, left: Mapping[str, str]) -> Compilation:
    """The compilation without some of its kernels.  left: their names, each with the reason."""
    reasons = {
        p.scope.name: left[p.kernel.name] for p in compilation.plans if p.kernel.name in left
    }
    plans = tuple(plan for plan in compilation.plans if plan.kernel.name not in left)
    all_left = {**compilation.left, **reasons}
    scopes = compilation.scopes
    taken = {epilogue.kernel for epilogue in compilation.program.epilogues}
    kernels = {plan.scope.name: plan.kernel.name for plan in plans}
    program = build_program(
        scopes.graph,
        scopes,
        plans,
        fallbacks=has_jax(),
        left=all_left,
        stays=lambda scope: kernels.get(scope.name) not in taken,
        gpu=compilation.gpu,
    )
    return replace(compilation, plans=plans, program=program, left=all_left)


def refuse_outside(program: Program, kernels: Collection[str] = ()) -> None:
    """Raises UnsupportedOp if there is an op that no stitched kernel and no library computes.

    kernels: the ops that are kernels or library calls of their own though a step for XLA holds them.
    """
    if outside := [op for op in program.outside if op.name not in kernels and not op.product]:
        listed = "".join(f"\n  {op}" for op in outside)
        raise UnsupportedOp(
            f"program {program.name}: strict was asked for, and no stitched kernel or library computes{listed}\n"
            "  rewrite them, or leave strict out: XLA computes them then"
        )


def compile_hlo(
    data: bytes | str,
    *,
    gpu: str | Gpu = "host",
    tune: bool | None = None,
    strict: bool = False,
    render: Render | None = None,
    trusted: bool = False,
    stitch: str | Sequence[str] | None = None,
) -> Compilation:
    """Compile an HLO module for a device.

    data: a serialized HloModuleProto, or HLO text.  gpu: a Gpu, or the name of a preset; "host" is the emulation.
    tune: measure the best plans of each kernel on the current GPU and keep the fastest on disk.
    strict: raise UnsupportedOp for ops that no stitched kernel and no library computes; else XLA computes them.
    render: see Target.  trusted: see import_hlo.  stitch: directives (docs/directives.md), after those of
    ASTITCH_STITCHES.

    Hands on a Compilation: `.program` for an engine, `.explain()` for people.  An error inside astitch leaves a part of
    the program to XLA with a FaultWarning; strict raises the error.
    Raises MalformedHlo, UnsupportedOp, UnsupportedType or DynamicShape for a module that cannot be read, and
    AstitchError for an unknown preset.  With tune it raises EngineUnavailable where the GPU is missing or of another
    architecture.
    """
    start = time.perf_counter()
    graph = import_hlo(data, trusted=trusted)
    import_s = time.perf_counter() - start
    device = preset(gpu) if isinstance(gpu, str) else gpu
    name = name_of_module(data)
    directives = read_directives(check_option(stitch, "compile_hlo"), name).of(name)
    target = Target(render=render, directives=directives)
    compilation = compile_graph(graph, device, target, tune=bool(tune), strict=strict)
    warn_of_unfollowed(graph.name, compilation.directives)
    compilation = replace(compilation, seconds={IMPORT: import_s, **compilation.seconds})
    report_faults(graph.name, data, device.name, compilation.faults)
    return compilation


def show_pass(data: bytes | str, gpu: Gpu, until: str) -> str:
    """What a pass hands on, printed, and the faults up to there.  until: "import" or the name of a pass."""
    graph = import_hlo(data)
    if until == IMPORT:
        return str(graph)
    target = Target()
    directives = target.directives.of(graph.name)
    job = Job(graph.name, gpu, target, tune=False, faults=FaultLog(), directives=directives)
    with pause_collector():
        shown = str(run_passes(graph, job, until=until)[until])
    return "\n\n".join([shown, *show_faults(job.faults.found)])


def report(
    compilation: Compilation, resources: dict[str, Resources] | None, compile_s: float
) -> dict[str, object]:
    """What `--json` prints.

    mem_ops: memory-intensive ops; mem_ops_outside: those that no stitched kernel computes.  mem_kernels: stitched
    kernels.  recomputed: what later stages compute again.  other_steps: what neither they nor a library compute, each
    with its reason.  xla_fallbacks: how many parts XLA computes them in.  loops: which of the loops among them are one
    kernel each inside a program of XLA's.
    """
    inside = {member for plan in compilation.plans for member in plan.scope.members}
    ops = memory_ops(compilation.graph)
    return {
        "module": compilation.program.name,
        "gpu": compilation.gpu.name,
        "mem_ops": len(ops),
        "mem_ops_outside": [name for name in ops if name not in inside],
        "mem_kernels": len(compilation.program.kernels),
        "library_calls": len(library_steps(compilation.program)),
        "xla_fallbacks": len(fallbacks(compilation.program)),
        "other_steps": [asdict(op) for op in compilation.program.outside],
        "loops": describe_loops(compilation.graph, compilation.gpu),
        "recomputed": [str(note) for note in compilation.scopes.recomputed],
        "refusals": [str(refusal) for refusal in compilation.scopes.refusals],
        "splits": [str(split) for split in compilation.splits],
        "faults": [str(fault) for fault in compilation.faults],
        "arena_bytes": compilation.program.arena_bytes,
        "kernels": [
            asdict(row) for row in kernel_rows(compilation.plans, compilation.gpu, resources)
        ],
        "compile_s": round(compile_s, 3),
        "stage_s": {name: round(value, 4) for name, value in compilation.seconds.items()},
    }


def read_module(path: str) -> bytes | str:
    """The bytes of a proto dump or the text of an HLO file.  Raises AstitchError when it cannot be read."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise AstitchError(
            f"{path}: {error.strerror}\n  give the path of an HLO dump (.pb or .txt)"
        ) from None
    if not path.endswith((".txt", ".hlo")):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedHlo(
            f"{path}: byte {error.start} is no UTF-8\n  HLO text is UTF-8; a serialized module is called *.pb"
        ) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.  Returns the exit status: 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(
        prog="python -m astitch.compile",
        description="Compile an HLO dump without running it and print its kernels.",
    )
    parser.add_argument("file", help="serialized HloModuleProto (.pb) or HLO text (.txt, .hlo)")
    parser.add_argument(
        "--gpu", default="h100", choices=sorted(PRESETS), help="the device to compile for"
    )
    parser.add_argument(
        "--until", choices=(IMPORT, *NAMES), help="print what this pass hands on and stop"
    )
    parser.add_argument(
        "--stitch", action="append", metavar="DIRECTIVE", help="a directive, as 'apart %%a %%b'"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--explain", action="store_true", help="print every decision and refusal")
    options = parser.parse_args(arguments)
    gpu = preset(options.gpu)
    try:
        data = read_module(options.file)
        if options.until:
            print(show_pass(data, gpu, options.until))
            return 0
        start = time.perf_counter()
        compilation = compile_hlo(data, gpu=gpu, render=render_kernel, stitch=options.stitch)
        missing = ""
        resources: dict[str, Resources] | None = None
        try:
            resources = compile_resources(compilation.program, gpu)
        except KernelCompileError as error:
            missing = str(error).splitlines()[0]
        compile_s = time.perf_counter() - start
    except AstitchError as error:
        first, *rest = str(error).splitlines()
        print(f"astitch: {first}", *rest, sep="\n", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(report(compilation, resources, compile_s), indent=2))
        return 0
    if options.explain:
        shown = compilation.scopes, compilation.plans, compilation.program
        print(explain(*shown, gpu, resources, compilation.splits))
        for line in show_directives(compilation.directives):
            print(f"\n{line}")
        for shown_faults in show_faults(compilation.faults):
            print(f"\n{shown_faults}")
    else:
        print(show_table(kernel_rows(compilation.plans, gpu, resources)))
        print(f"\nlibrary calls: {len(library_steps(compilation.program))}")
        print("\n".join(show_outside(compilation.program)))
        if loops := describe_loops(compilation.graph, gpu):
            print(
                "\n".join(["loops, inside a program of XLA's:", *(f"  {loop}" for loop in loops)])
            )
        print(
            f"{len(compilation.scopes.refusals)} refusals (--explain lists them); compiled in {compile_s:.2f} s"
        )
    if missing:
        print(f"registers unknown: {missing}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
