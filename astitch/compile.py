"""The whole compiler, stage by stage: HLO -> Graph -> Scopes -> Plans -> CUDA text -> Program.

`python -m astitch.compile FILE` compiles a dump without running it and prints what became of it.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from astitch import options
from astitch.cost.projected_latency import project
from astitch.device.gpu import PRESETS, Gpu, preset
from astitch.errors import AstitchError, KernelCompileError, MalformedHlo, UnsupportedOp
from astitch.faults import FaultLog, report_faults
from astitch.graph.check import check_graph
from astitch.graph.ir import Graph
from astitch.hlo_import import import_hlo
from astitch.library.xla_fallback import has_jax
from astitch.loops.plan import (
    LoopPlanner,
    describe_loops,
    find_planned,
    hoist_planned,
    leave_starts,
)
from astitch.program.steps import Program
from astitch.rewrite.convolution_layouts import arrange_convolutions
from astitch.rewrite.expand import expand
from astitch.rewrite.narrow_reductions import widen
from astitch.rewrite.products import arrange_products
from astitch.rewrite.reassociate import reassociate
from astitch.rewrite.scatter_order import order_scatters
from astitch.rewrite.simplify import simplify
from astitch.rewrite.small_dots import write_out_products
from astitch.rewrite.split_k import split_products
from astitch.scope.remote_stitch import stitch_remotely
from astitch.search.build_program import NOT_EMITTED, build_program, leave_program, make_cuda_kernel
from astitch.search.check_plan import check_plan
from astitch.search.plan import Plan, Planner
from astitch.search.split_scopes import PlannedScopes, split_scopes
from astitch.search.tune import tune_scopes
from astitch.show.compilation import Compilation
from astitch.show.explain import (
    compile_resources,
    explain,
    islands,
    kernel_rows,
    library_steps,
    memory_ops,
    show_faults,
    show_outside,
    show_table,
)
from astitch.stitch_scope import Left, Scopes, find_scopes
from astitch.toolchain.compile_pool import Ahead
from astitch.toolchain.kernel_cache import compile_cached
from astitch.toolchain.nvrtc import CompiledKernel, Request, Resources, count_threads

Product = TypeVar("Product")


@contextmanager
def pause_collector() -> Iterator[None]:
    """What the stages make are trees, which need no search for cycles; it would walk all of them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


UNORDERED = "sums of scatters may differ from run to run"

LEAST_THREADS = 4
"""From which on one is free for a kernel that may not be wanted."""

STAGES = (
    "import",
    "simplify",
    "expand",
    "order_scatters",
    "reassociate",
    "write_out_products",
    "widen",
    "arrange_products",
    "arrange_convolutions",
    "find_scopes",
    "stitch_remotely",
    "plan",
    "split",
    "emit",
    "program",
)
"""The stages in order; each takes what the one before returned.  `until=` names the last one to run."""


@dataclass(frozen=True, slots=True)
class RegionRules:
    """How a region is compiled.  prefix: begins the names of its kernels.  keep: of a simplified graph, the ops that
    stay as they are.  leave: what no kernel is to compute."""

    prefix: str
    keep: Callable[[Graph], Collection[str]]
    leave: Callable[[Graph], Left]

    def rename(self, scopes: Scopes) -> Scopes:
        """The scopes, and with them the kernels, under names that are the region's own."""
        named = tuple(replace(s, name=self.prefix + s.name) for s in scopes.scopes)
        return replace(scopes, scopes=named)


Spell = Callable[[Plan], str]
"""The text by which an engine has a plan's kernel compiled."""


def spell_kernel(plan: Plan) -> str:
    """The kernel's text as it is emitted."""
    return make_cuda_kernel(plan.kernel).source


def compile_plan(plan: Plan, gpu: Gpu, spell: Spell = spell_kernel) -> CompiledKernel | None:
    """A plan's kernel, compiled; None for the emulated device or without a compiler."""
    if gpu.name == "host":
        return None
    try:
        return compile_cached(Request(spell(plan), gpu.arch))
    except KernelCompileError:
        return None


def observe_plan(plan: Plan, gpu: Gpu, spell: Spell = spell_kernel) -> Resources | None:
    """What the CUDA compiler says of a plan's kernel; None where compile_plan gives none."""
    built = compile_plan(plan, gpu, spell)
    return built.kernels[plan.kernel.name] if built else None


AnnounceKernel = Callable[[Plan, CompiledKernel], object]
"""Is told what became of a plan, in whatever thread had it compiled."""


def plan_scopes(
    scopes: Scopes,
    gpu: Gpu,
    *,
    tune: bool = False,
    spell: Spell | None = None,
    announce_kernel: AnnounceKernel = lambda plan, built: None,
    faults: FaultLog | None = None,
) -> PlannedScopes:
    """A checked plan for each scope, or for the parts of one whose kernel shows a symptom (see split_scopes.py).

    tune: the plans of what that leaves are measured on the GPU (see tune.py).  spell, announce_kernel, faults: see
    compile_graph.
    """
    faults = faults or FaultLog()
    threads = 0 if gpu.name == "host" else count_threads()
    with Ahead(threads) as ahead:

        def ask_compiler(plan: Plan) -> Resources | None:
            return observe_plan(plan, gpu, spell or spell_kernel)

        def settle(plan: Plan) -> None:
            if built := compile_plan(plan, gpu, spell or spell_kernel):
                announce_kernel(plan, built)

        observe = ahead.ask(ask_compiler)

        def foresee(plan: Plan) -> None:
            if threads >= LEAST_THREADS:
                ahead.start(object(), partial(observe, plan))

        planner = Planner(gpu, observe, foresee, faults)
        planned = split_scopes(
            scopes,
            gpu,
            plan=planner.plan,
            draft=planner.draft,
            project=lambda plan, resources: project(plan.kernel, gpu, resources, plan.work),
            observe=observe,
            settle=ahead.ask(settle) if spell and not tune else None,
            ahead=ahead,
            faults=faults,
        )
    graph = check_graph(planned.scopes.graph)
    plans: Iterable[Plan | None] = planned.plans
    if tune:
        kept = [scope for scope in planned.scopes.scopes if scope.name not in planned.left]
        plans = faults.attempt(
            lambda: tune_scopes(graph, kept, gpu),
            lambda: planned.plans,
            stage="tune",
            subject=graph.name,
            cost="its plans are not measured",
        )
    return _check_plans(planned, [plan for plan in plans if plan is not None], faults)


def _check_plans(planned: PlannedScopes, plans: Iterable[Plan], faults: FaultLog) -> PlannedScopes:
    """The scopes with those of the plans that pass check_plan; the others are left."""
    kept: list[Plan] = []
    left = dict(planned.left)

    def keep(plan: Plan) -> None:
        kept.append(check_plan(plan))

    def leave(plan: Plan) -> None:
        left[plan.scope.name] = "an error inside astitch: its kernel breaks a rule"

    for plan in plans:
        faults.attempt(
            partial(keep, plan),
            partial(leave, plan),
            stage="check_plan",
            subject=str(plan.scope),
            cost="its ops are left to XLA",
        )
    return replace(planned, plans=tuple(kept), left=left)


@pause_collector()
def compile_graph(
    graph: Graph,
    gpu: Gpu,
    seconds: dict[str, float] | None = None,
    *,
    tune: bool = False,
    strict: bool = False,
    region: RegionRules | None = None,
    loops: LoopPlanner | None = None,
    announce: Callable[[Graph], object] = lambda graph: None,
    announce_scopes: Callable[[Scopes], object] = lambda scopes: None,
    announce_kernel: AnnounceKernel = lambda plan, built: None,
    spell: Spell | None = None,
    layouts_apart: bool = False,
    split_k: bool = False,
    epilogues: bool = True,
    ordered_scatters: bool = True,
    scatters_in_place: bool = False,
    faults: FaultLog | None = None,
) -> Compilation:
    """Compile an imported Graph for a device.  Where JAX is installed XLA computes what nothing of ours does.

    strict: raise UnsupportedOp instead, which names the ops and the reasons.  region: the graph is one of a loop or
    conditional.  loops: those that can be one kernel, as it plans them, do only what must wait for the turn before.
    announce: is given the graph that kernels are planned for, announce_scopes what will have a kernel each, if none of
    them is split, announce_kernel (with spell) one kernel of each structure once its plan will hardly be replaced.
    spell: the texts that will be compiled: the cache gets them while other kernels are planned.
    layouts_apart: parameters are laid out for products by stitch ops of their own, see stitch_remotely.
    split_k: kernels add the parts of products that fill the device only in parts, see split_products.
    epilogues: name the kernels that a product's library could compute, see epilogues.py.
    ordered_scatters: scatters add in a fixed order, see scatter_order.py.  scatters_in_place: XLA may write them over
    their operands.
    faults: keeps the errors inside astitch, each of which costs a pass, a loop or a stitch op, at worst all stitch ops
    of the graph (of a region: it is raised).  Without it, or with strict, they are raised as ASTITCH_FAULTS says.
    """
    seconds = {} if seconds is None else seconds
    faults = faults or FaultLog(strict or None)

    def timed(name: str, stage: Callable[[], Product]) -> Product:
        start = time.perf_counter()
        product = stage()
        seconds[name] = time.perf_counter() - start
        return product

    def rewrite(name: str, rewrites: Callable[[Graph], Graph], before: Graph) -> Graph:
        """The graph after a pass; as it was where a fault stops the pass."""
        return timed(
            name,
            lambda: faults.attempt(
                lambda: rewrites(before),
                lambda: before,
                stage=name,
                subject=graph.name,
                cost=UNORDERED if name == "order_scatters" else "the pass is left out",
            ),
        )

    def tell(stage: str, teller: Callable[[Product], object], product: Product) -> None:
        """Has work begun that another stage would do later."""
        faults.attempt(
            lambda: teller(product),
            lambda: None,
            stage=stage,
            subject=graph.name,
            cost="it is not begun ahead",
        )

    def hoist(made: Graph) -> Graph:
        return simplify(check_graph(hoist_planned(made, loops))) if loops else made

    def stitch() -> Compilation:
        assert not (region and ordered_scatters), "scatters of a region write over what it carries"
        made = check_graph(graph)
        for name, rewrites, when in (
            ("simplify", simplify, True),
            ("hoist", hoist, loops is not None),
            ("expand", lambda g: expand(g, keep=region.keep(g) if region else ()), True),
            (
                "order_scatters",
                partial(_put_scatters_in_order, in_place=scatters_in_place),
                ordered_scatters,
            ),
            ("reassociate", reassociate, True),
            # XLA adds a product to what a loop carries, which two kernels would do apart.
            ("write_out_products", _checked(write_out_products, gpu), not region),
            ("widen", _checked(widen), True),
            ("arrange_products", _checked(arrange_products), True),
            ("arrange_convolutions", _checked(arrange_convolutions, gpu), True),
            ("split_products", _checked(split_products, gpu), split_k),
        ):
            if when:
                made = rewrite(name, rewrites, made)
        left = region.leave(made) if region else Left(made, {})
        if loops:
            left = Left(*leave_starts(left.graph))
        tell("announce", announce, left.graph)
        found = timed("find_scopes", lambda: find_scopes(check_graph(left.graph), left.reasons))
        scopes = timed(
            "stitch_remotely",
            lambda: faults.attempt(
                lambda: stitch_remotely(found, layouts_apart=layouts_apart),
                lambda: found,
                stage="stitch_remotely",
                subject=graph.name,
                cost="the pass is left out",
            ),
        )
        if region:
            scopes = region.rename(scopes)
        tell("announce_scopes", announce_scopes, scopes)
        planned = timed(
            "plan",
            lambda: plan_scopes(
                scopes,
                gpu,
                tune=tune,
                spell=spell,
                announce_kernel=announce_kernel,
                faults=faults,
            ),
        )
        split, plans = planned.scopes, planned.plans
        program = timed(
            "program",
            lambda: build_program(
                split.graph,
                split,
                plans,
                islands=has_jax(),
                epilogues=epilogues,
                left=planned.left,
                faults=faults,
            ),
        )
        emitted = {kernel.name for kernel in program.kernels}
        lost = {p.scope.name: NOT_EMITTED for p in plans if p.kernel.name not in emitted}
        plans = tuple(plan for plan in plans if plan.scope.name not in lost)
        return Compilation(
            gpu,
            left.graph,
            split,
            plans,
            program,
            seconds,
            planned.splits,
            left={**planned.left, **lost},
        )

    if region:
        compilation = stitch()
    else:
        compilation = faults.attempt(
            stitch,
            lambda: leave_whole(graph, gpu, seconds),
            stage="compile",
            subject=graph.name,
            cost="XLA computes all of it",
        )
    if strict:
        made, program = compilation.scopes.graph, compilation.program
        refuse_outside(program, find_planned(made, loops) if loops else ())
    return compilation if region else replace(compilation, faults=faults.found)


def _checked(rewrites: Callable[..., Graph], *more: object) -> Callable[[Graph], Graph]:
    """The pass, and a check of what it hands on.  more: what it takes besides the graph."""
    return lambda graph: check_graph(rewrites(graph, *more))


def leave_whole(graph: Graph, gpu: Gpu, seconds: dict[str, float]) -> Compilation:
    """The compilation of a graph without a stitch op, all of which is left to XLA."""
    reason = "an error inside astitch left the whole program to XLA"
    program = leave_program(graph, reason, islands=has_jax())
    return Compilation(gpu, graph, Scopes(graph, (), (), ()), (), program, seconds)


def leave_kernels(compilation: Compilation, left: Mapping[str, str]) -> Compilation:
    """The compilation without some of its kernels.  left: their names, each with the reason."""
    reasons = {
        p.scope.name: left[p.kernel.name] for p in compilation.plans if p.kernel.name in left
    }
    plans = tuple(plan for plan in compilation.plans if plan.kernel.name not in left)
    all_left = {**compilation.left, **reasons}
    scopes = compilation.scopes
    program = build_program(scopes.graph, scopes, plans, islands=has_jax(), left=all_left)
    return replace(compilation, plans=plans, program=program, left=all_left)


def _put_scatters_in_order(graph: Graph, *, in_place: bool = False) -> Graph:
    """order_scatters, whose running sums are expanded like others."""
    ordered = order_scatters(graph, in_place=in_place)
    return graph if ordered is graph else expand(check_graph(ordered))


def refuse_outside(program: Program, kernels: Collection[str] = ()) -> None:
    """Raises UnsupportedOp if there is an op that no stitched kernel and no library computes.

    kernels: the ops that are kernels of their own though a step for XLA holds them.
    """
    if outside := [op for op in program.outside if op.name not in kernels]:
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
    spell: Spell | None = None,
    trusted: bool = False,
) -> Compilation:
    """Compile a serialized HloModuleProto or HLO text for a device or preset.

    tune: measure the best plans of each kernel on the current GPU and take the fastest, which is remembered on disk
    (None: as ASTITCH_TUNE says).  strict: raise UnsupportedOp for ops that no stitched kernel and no library computes,
    which are otherwise left to XLA.  spell: see compile_graph.  trusted: see import_hlo.  An error inside astitch
    leaves a part of the program to XLA with a FaultWarning; strict raises it.
    Raises MalformedHlo, UnsupportedOp, UnsupportedType or DynamicShape for a module that cannot be read; with tune
    EngineUnavailable where that GPU is missing or of another architecture.
    """
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    graph = import_hlo(data, trusted=trusted)
    seconds["import"] = time.perf_counter() - start
    device = preset(gpu) if isinstance(gpu, str) else gpu
    measured = options.tune() if tune is None else tune
    compilation = compile_graph(graph, device, seconds, tune=measured, strict=strict, spell=spell)
    report_faults(graph.name, data, device.name, compilation.faults)
    return compilation


def show_stage(data: bytes | str, gpu: Gpu, until: str) -> str:
    """The product of a stage, printed."""
    rewritten = graph = import_hlo(data)
    if until == "import":
        return str(graph)
    rewrites: dict[str, Callable[[Graph], Graph]] = {
        "simplify": simplify,
        "expand": expand,
        "order_scatters": _put_scatters_in_order,
        "reassociate": reassociate,
        "write_out_products": partial(write_out_products, gpu=gpu),
        "widen": widen,
        "arrange_products": arrange_products,
        "arrange_convolutions": partial(arrange_convolutions, gpu=gpu),
    }
    for stage, rewrite in rewrites.items():
        rewritten = rewrite(rewritten)
        if until == stage:
            return str(rewritten)
    compilation = compile_graph(graph, gpu)
    match until:
        case "find_scopes":
            return str(find_scopes(compilation.graph))
        case "stitch_remotely":
            return str(stitch_remotely(find_scopes(compilation.graph)))
        case "plan":
            return "\n\n".join(map(str, compilation.plans))
        case "split":
            return str(PlannedScopes(compilation.scopes, compilation.plans, compilation.splits))
        case "emit":
            return "\n".join(kernel.source for kernel in compilation.program.kernels)
    return "\n".join(f"{number}: {step}" for number, step in enumerate(compilation.program.steps))


def report(
    compilation: Compilation, resources: dict[str, Resources] | None, compile_s: float
) -> dict[str, object]:
    """What `--json` prints.

    mem_ops: memory-intensive ops; mem_ops_outside: those that no stitched kernel computes.  mem_kernels: stitched
    kernels.  recomputed: what later stages compute again.  other_steps: what neither they nor a library compute, each
    with its reason.  xla_islands: how many parts XLA computes them in.  loops: which of the loops among them are one
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
        "xla_islands": len(islands(compilation.program)),
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
    parser.add_argument("--until", choices=STAGES, help="print the product of this stage and stop")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--explain", action="store_true", help="print every decision and refusal")
    options = parser.parse_args(arguments)
    gpu = preset(options.gpu)
    try:
        data = read_module(options.file)
        if options.until:
            print(show_stage(data, gpu, options.until))
            return 0
        start = time.perf_counter()
        compilation = compile_hlo(data, gpu=gpu, spell=spell_kernel)
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
