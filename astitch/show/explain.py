"""Compilation products for people: the table of kernels, the other steps and everything that was refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from astitch.cost.speed_of_light import measure_work
from astitch.device.gpu import Gpu
from astitch.device.schedule import DEFAULT
from astitch.faults import Fault
from astitch.graph.convolution import describe_convolution
from astitch.graph.dimensions import is_embedded
from astitch.graph.ir import (
    AttentionAttrs,
    ConvolutionAttrs,
    DotAttrs,
    Graph,
    NarrowProductAttrs,
    RowRegionAttrs,
    TupleType,
)
from astitch.graph.stitchable import is_own_call
from astitch.graph.storage import storage_name
from astitch.mapping.stitch_scheme import Scheme
from astitch.program.steps import FallbackStep, LibraryStep, Program
from astitch.search.plan import Plan
from astitch.search.split_scopes import Split
from astitch.show.memory import show_memory
from astitch.stitch_scope import Scopes, is_memory_op
from astitch.tiling.space import NotTaken
from astitch.toolchain.kernel_cache import compile_cached
from astitch.toolchain.nvrtc import Request, Resources, compile_many_cuda


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One line of the table.

    loops: task loops (sections).  schemes: how many values of each scheme.  shared_bytes: dynamic shared memory of a
    block.  registers, spill_bytes: from the CUDA compiler, None where it is not installed.  traffic_bytes: inputs read
    once and outputs written once.  speed_of_light_us: the least time of that, of the arithmetic, and of the launch.
    """

    name: str
    ops: int
    loops: int
    global_barriers: int
    block_barriers: int
    schemes: Mapping[str, int]
    grid: int
    block: int
    shared_bytes: int
    registers: int | None
    spill_bytes: int | None
    traffic_bytes: int
    speed_of_light_us: float


def compile_resources(program: Program, gpu: Gpu) -> dict[str, Resources]:
    """What the CUDA compiler says of each kernel.  Raises KernelCompileError without NVRTC or for refused text."""
    requests = [Request(kernel.source, gpu.arch) for kernel in program.kernels]
    compiled = compile_many_cuda(requests, compile_one=compile_cached)
    return {k.name: c.kernels[k.name] for k, c in zip(program.kernels, compiled, strict=True)}


def kernel_rows(
    plans: Sequence[Plan], gpu: Gpu, resources: Mapping[str, Resources] | None = None
) -> tuple[KernelRow, ...]:
    """One row for each stitched kernel, in the order of the scopes."""
    rows = []
    for plan in plans:
        kernel = plan.kernel
        schemes = Counter(p.scheme for p in plan.arrangement.placements.values())
        known = resources.get(kernel.name) if resources else None
        work = measure_work(plan.arrangement.graph, plan.scope.members)
        rows.append(
            KernelRow(
                kernel.name,
                len(plan.scope.members),
                len(plan.arrangement.loops),
                kernel.global_barriers,
                kernel.block_barriers,
                {scheme.value: schemes[scheme] for scheme in Scheme if schemes[scheme]},
                kernel.grid,
                kernel.block,
                kernel.shared_bytes,
                known.registers if known else None,
                known.spill_store_bytes + known.spill_load_bytes if known else None,
                work.bytes,
                work.bound_us(gpu),
            )
        )
    return tuple(rows)


_HEADINGS = (
    "kernel", "ops", "loops", "barriers", "I/L/R/G", "grid", "block", "shared B", "regs", "spill B", "MB", "SOL us"
)  # fmt: skip


def show_table(rows: Sequence[KernelRow]) -> str:
    """The table of kernels.  barriers: global + block.  I/L/R/G: Independent, Local, Regional, Global values."""
    cells = [list(_HEADINGS)]
    for row in rows:
        cells.append(
            [
                row.name,
                str(row.ops),
                str(row.loops),
                f"{row.global_barriers} + {row.block_barriers}",
                "/".join(str(row.schemes.get(scheme.value, 0)) for scheme in Scheme),
                str(row.grid),
                str(row.block),
                str(row.shared_bytes),
                "-" if row.registers is None else str(row.registers),
                "-" if row.spill_bytes is None else str(row.spill_bytes),
                f"{row.traffic_bytes / 1e6:.3f}",
                f"{row.speed_of_light_us:.2f}",
            ]
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADINGS))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def memory_ops(graph: Graph) -> tuple[str, ...]:
    """The memory-intensive ops of a graph that compute something: no reshapes (views), no repeated constants."""
    return tuple(
        n.name
        for n in graph
        if is_memory_op(n)
        and storage_name(graph, n.name) == n.name
        and not is_embedded(graph, n.name)
    )


def fallbacks(program: Program) -> tuple[FallbackStep, ...]:
    """The parts that XLA compiles."""
    return tuple(s for s in program.steps if isinstance(s, FallbackStep))


def library_steps(program: Program) -> tuple[LibraryStep, ...]:
    return tuple(s for s in program.steps if isinstance(s, LibraryStep))


def show_outside(program: Program, own: Collection[str] = ()) -> list[str]:
    """The ops that nothing of ours computes, each with its reason, under the fallback that it belongs to.

    own: ops that are calls of ours in a program of XLA's, though a fallback holds them here."""
    steps = [(s, [op for op in s.ops if op.name not in own]) for s in fallbacks(program)]
    if not steps:
        runner = " (the NumPy reference runs them: JAX is not installed)" if program.outside else ""
        return [f"other ops: {len(program.outside)}{runner}", *(f"  {o}" for o in program.outside)]
    left = [(step, ops) for step, ops in steps if ops]
    lines = [f"XLA fallbacks: {len(left)}"]
    for step, ops in left:
        lines.append(f"  {step.name}: {len(ops)} ops")
        for op in ops:
            lines += [f"    {op}", *_undo(f"keep %{op.name}" if op.product else "", "      ")]
    return lines


def show_convolutions(program: Program) -> list[str]:
    """Which of cuDNN's forms the convolutions are where CuPy launches the program, and why others are left to XLA."""
    lines = []
    for step in library_steps(program):
        attrs = step.node.attrs
        if isinstance(attrs, ConvolutionAttrs):
            types = [view.type for view in (*step.operands, *step.results)]
            lines.append(f"  %{step.node.name}: {describe_convolution(attrs, *types)}")
    return ["convolutions, where CuPy launches them and cuDNN is there:", *lines] if lines else []


def show_epilogues(program: Program, plans: Sequence[Plan]) -> list[str]:
    """Which kernels are epilogues of products, each with how that is reversed, and why others that read products are
    not."""
    if not program.epilogues and not program.no_epilogues:
        return []
    lines = [f"epilogues, where cuBLASLt is there and faster: {len(program.epilogues)}"]
    names = {plan.kernel.name: name_of(plan) for plan in plans}
    for epilogue in program.epilogues:
        lines += [f"  {epilogue}", *_undo(f"keep %{names[epilogue.kernel]}")]
    return [*lines, *(f"  {note}" for note in program.no_epilogues)]


def show_faults(faults: Sequence[Fault]) -> list[str]:
    """How many errors inside astitch there were, and what each cost; nothing where there were none."""
    if not faults:
        return []
    lines = [f"errors inside astitch: {len(faults)}; XLA makes up for them, please report them"]
    return ["\n".join([*lines, *(f"  {fault}" for fault in faults)])]


FORWARD_RESULTS = 2
"""Of attention; its gradient has three."""


def _show_attention(graph: Graph) -> list[str]:
    """The calls of attention, and how each is undone."""
    lines = []
    for node in graph:
        if isinstance(node.attrs, AttentionAttrs):
            who = "our own kernels" if node.attrs.tiles else "cuDNN"
            lines += ["", f"attention: %{node.name}, by {who}"]
            if isinstance(node.type, TupleType) and len(node.type.elements) == FORWARD_RESULTS:
                lines += _undo(f"leave-attention %{node.name}", "  ")
    return lines


def _show_narrow_products(graph: Graph) -> list[str]:
    """The products whose weights kernels of our own read, and how that is undone."""
    names = [f"%{node.name}" for node in graph if isinstance(node.attrs, NarrowProductAttrs)]
    if not names:
        return []
    head = f"products of few rows, by our own kernels: {len(names)}"
    return ["", head, *(f"  {name}" for name in names), *_undo("without narrow_products", "  ")]


def _show_row_regions(graph: Graph) -> list[str]:
    """The kernels of our own that compute products of narrow arrays, and how that is undone."""
    found = [node for node in graph if isinstance(node.attrs, RowRegionAttrs)]
    if not found:
        return []
    lines = [
        "",
        f"products of narrow arrays and what is between them, by our own kernels: {len(found)}",
    ]
    for node in found:
        assert isinstance(node.attrs, RowRegionAttrs)
        products = [inner.name for inner in node.regions[0] if isinstance(inner.attrs, DotAttrs)]
        lines.append(
            f"  %{node.name}: {node.attrs.rows} rows, {', '.join(f'%{p}' for p in products)}"
        )
    return [*lines, *_undo("without row_regions", "  ")]


def show_directives(outcomes: Sequence[str]) -> list[str]:
    """What came of each directive; nothing where there were none."""
    if not outcomes:
        return []
    return ["\n".join([f"directives: {len(outcomes)}", *(f"  {line}" for line in outcomes)])]


def _undo(line: str, margin: str = "    ") -> list[str]:
    """How a decision is reversed: the directive, if there is one."""
    return [f"{margin}to reverse it: {line}"] if line else []


def show_loops(notes: Sequence[str]) -> list[str]:
    """Notes on loops; under those that are one kernel, or take several turns in one, how that is reversed."""
    lines = []
    for note in notes:
        taken = re.match(r"\w*loop_\d+ = %([^\s:]+)|%([^\s:]+): \d+ turns are one", note)
        lines += [f"  {note}", *_undo(f"leave-loops %{taken[1] or taken[2]}" if taken else "")]
    return lines


def show_strategies(plan: Plan) -> list[str]:
    """The strategy by which each task loop got its threads, and why those before it in the list do not apply."""
    lines = ["  thread mapping:"]
    for loop in plan.arrangement.loops:
        lines.append(f"    loop {loop.number}: {loop.mapping.strategy}")
        lines += [f"      not {line}" for line in _join_reasons(loop.mapping.not_taken)]
    return lines


def _join_reasons(not_taken: Sequence[NotTaken]) -> list[str]:
    """A line for each reason, with all strategies against which it speaks."""
    by_reason: dict[str, list[str]] = {}
    for refused in not_taken:
        by_reason.setdefault(refused.why, []).append(refused.strategy)
    return [f"{', '.join(strategies)}: {why}" for why, strategies in by_reason.items()]


def name_of(plan: Plan) -> str:
    """The op by which directives name a kernel: its last result, which hardly another kernel computes."""
    return plan.scope.outputs[-1] if plan.scope.outputs else plan.scope.members[-1]


def explain(
    scopes: Scopes,
    plans: Sequence[Plan],
    program: Program,
    gpu: Gpu,
    resources: Mapping[str, Resources] | None,
    splits: Sequence[Split] = (),
    memory_limit: int | None = None,
) -> str:
    """Kernels, decisions of every scheme, strategies of thread mapping, library calls, other steps, memory at its peak,
    splits, refusals and notes, as text."""
    lines = [f"{program.name} for {gpu.name}: {len(program.kernels)} stitched kernels", ""]
    lines.append(show_table(kernel_rows(plans, gpu, resources)))
    lines += [
        "",
        f"library calls: {len(library_steps(program))}",
        *show_outside(program, [node.name for node in scopes.graph if is_own_call(node)]),
        *show_convolutions(program),
        *show_epilogues(program, plans),
    ]
    for plan in plans:
        work = measure_work(plan.arrangement.graph, plan.scope.members)
        lines += ["", str(plan), *show_strategies(plan)]
        lines.append(f"  speed of light: {work.bound_us(gpu):.2f} us: {work}")
        lines += _undo(f"leave %{name_of(plan)}", "  ")
        number = 0 if plan.schedule != DEFAULT else 1
        lines.append(f"  to take another plan: plan %{name_of(plan)} {number}")
    lines += _show_attention(scopes.graph)
    lines += _show_narrow_products(scopes.graph)
    lines += _show_row_regions(scopes.graph)
    if alive := show_memory(scopes, plans, memory_limit):
        lines += ["", *alive]
    if splits:
        lines += ["", f"kernels with a symptom: {len(splits)}"]
        for split in splits:
            lines += [f"  {split}", *_undo(split.undo)]
    if scopes.recomputed:
        lines += ["", f"computed again: by {len(scopes.recomputed)} stages"]
        lines += [f"  {note}" for note in scopes.recomputed]
        lines += _undo("without recompute", "  ")
    if scopes.refusals:
        lines += ["", f"refusals: {len(scopes.refusals)}"]
        for refusal in scopes.refusals:
            lines += [f"  {refusal}", *_undo(refusal.undo)]
    if program.notes:
        lines += ["", f"left to XLA: {len(program.notes)}"]
        lines += [f"  {note}" for note in program.notes]
    return "\n".join(lines)
