"""Loops whose turn is one kernel: planned as kernels that turn by themselves.

Takes a while, hands on a TurnsPlan that beats the loop as it would be else, or the reason why there is none.  The idea:
a stitch op computes all of a turn, so that nothing is launched between turns.  One block is the usual plan: its threads
meet in nanoseconds, where blocks take microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from astitch.cost.projected_latency import BARRIER_SKEW_US, project
from astitch.cost.workload import count_workload
from astitch.device.gpu import Gpu
from astitch.device.schedule import Schedule
from astitch.directives import NOTHING
from astitch.errors import AstitchError
from astitch.faults import FaultLog
from astitch.graph.ir import ArrayType, ConstantAttrs, Graph, Node
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import storage_name, storage_type, stored_value
from astitch.kernel import kernel_ir as k
from astitch.kernel.visit_statements import list_statements
from astitch.loops.analysis import LoopRefusal
from astitch.loops.cuts import ASKED_US, PRODUCT_CYCLES, TURN_CYCLES
from astitch.loops.emit_turns import (
    TurnsPlan,
    emit_turns,
    find_repeated,
    in_one_block,
    keep_on_chip,
)
from astitch.loops.plan import LEAST_TRIPS
from astitch.loops.turn_rows import find_rows, take_rows
from astitch.loops.turns import Turns, find_turns
from astitch.loops.unroll import unroll_inner
from astitch.pipeline import Job, Target, run_passes
from astitch.program.steps import FallbackStep
from astitch.rewrite.batched_gathers import batch_gathers
from astitch.rewrite.expand import expand
from astitch.rewrite.simplify import simplify
from astitch.rewrite.small_dots import write_out_dots
from astitch.rewrite.written_branches import write_branches
from astitch.search.plan import LONG_CODE, count_statements, plan_scope
from astitch.show.compilation import Compilation
from astitch.stitch_scope import Scope, Scopes

MOST_NODES = 1500
"""Ops of a turn: planning more takes too long."""

MOST_TERMS = 1 << 20
"""Terms of all sums of a product that a turn may have: a block adds up a million in 10 us."""

MOST_BYTES = 512 << 10
"""Memory that such a kernel may take besides its results."""

MOST_STATE = 64 << 20
"""Besides these, so many bytes of states that XLA writes anew as well."""

MOST_BLOCKS = 8
"""Blocks of an SM among which rows are shared out at most."""

MOST_LEVELS = 3
"""Dimensions of rows."""

SPARE_REGISTERS = 8
"""What a thread may take beyond the estimate."""

GAIN = 0.85
"""A turn must take less than this part of what it takes else: projections err."""

COUNTER_CYCLES = 2400
"""Of the kernel in which XLA's loop counts its turns, or computes its condition.  On an H100 counting takes 1.22 us;
TURN_CYCLES has it."""

MET_IN_BLOCK_US = 0.1
"""What the threads of one block take to meet, and to read anew what others have written."""

BLOCK_OF_SEVERAL = 512
"""Threads of a block that is one of several."""

CLUSTER, CLUSTERS_FROM = 8, 90
"""The most blocks of a cluster that every GPU has that has clusters, and the compute capability of these."""

_Timed = tuple[float, k.Kernel, bool]
"""Microseconds of a turn, its kernel, and whether the blocks are a cluster."""

MET_IN_CLUSTER_US = 0.6
"""What the blocks of a cluster take to meet, and lose as they do not come at once: an estimate."""

FEWER_SMS = 16
"""Blocks on fewer SMs meet in less time."""


def plan_turns(
    graph: Graph,
    node: Node,
    used: Sequence[int],
    gpu: Gpu,
    now_us: float,
    faults: FaultLog,
    kept: bool = False,
) -> TurnsPlan | LoopRefusal:
    """The plan of a while.

    used: the parts of its final state that somebody reads.  now_us: of a turn as it is else.  kept: is it to be a
    kernel, whatever time and memory it takes?
    """
    condition, body = map(write_branches, node.regions)
    body, _ = unroll_inner(body)
    inside = replace(node, regions=(condition, body))
    turns = find_turns(graph, inside, used)
    if isinstance(turns, LoopRefusal):
        return turns
    refused = _why_not(turns)
    if refused is not None and not (kept and refused.is_choice):
        return refused
    turns = replace(turns, graph=expand(batch_gathers(simplify(turns.graph))))
    refusals: list[LoopRefusal] = []
    plans: list[TurnsPlan] = []
    results = tuple(sorted(_read(turns, used)))
    for parted in _list_parts(turns, gpu):
        plan = _plan_part(parted, results, gpu, now_us, faults, kept)
        if isinstance(plan, LoopRefusal):
            refusals.append(plan)
        else:
            plans.append(plan)
    if not plans:
        return replace(refusals[0], is_choice=any(refused.is_choice for refused in refusals))
    best = min(plans, key=lambda plan: plan.turn_us)
    if best.turn_us > GAIN * now_us and not kept:
        reason = f"a turn takes {best.turn_us:.1f} us projected, {now_us:.1f} as XLA's loop"
        return LoopRefusal(node.name, reason, is_choice=True)
    return best


def _list_parts(turns: Turns, gpu: Gpu) -> Iterator[Turns]:
    """The turns with all rows in each block, and with a part of the rows in each."""
    yield turns
    all_rows = find_rows(turns)
    least = -(-all_rows * turns.blocks // (MOST_BLOCKS * gpu.sms))
    divisors = [n for n in range(1, all_rows) if all_rows % n == 0 and n >= least]
    full = [n for n in divisors if all_rows // n >= gpu.sms]
    for rows in dict.fromkeys((*divisors[:1], *full[-1:])):
        taken = take_rows(turns, rows)
        yield taken
        if rows == 1 and len(taken.levels) < MOST_LEVELS and taken.blocks < gpu.sms:
            yield from [parts for parts in _list_parts(taken, gpu) if parts is not taken]


def _plan_part(
    turns: Turns,
    results: tuple[int, ...],
    gpu: Gpu,
    now_us: float,
    faults: FaultLog,
    kept: bool,
) -> TurnsPlan | LoopRefusal:
    """The fastest plan of turns, or why there is none."""
    name = turns.loop.node.name
    found = _find_scope(turns, gpu, faults)
    if isinstance(found, str):
        return LoopRefusal(name, f"a turn is not one kernel: {found}")
    planned, scope = found
    listed = _list_kernels if turns.blocks == 1 else _list_kernels_of_rows
    timed = [
        (us, kernel, cluster)
        for us, kernel, cluster in listed(planned, scope, gpu, turns.blocks)
        if _are_aligned(turns, planned, kernel)
    ]
    if not timed:
        return LoopRefusal(name, "no kernel of a turn fits the device")
    turn_us, kernel, cluster = min(timed, key=lambda item: item[0])
    plan = TurnsPlan(turns, planned, kernel, results, turn_us, now_us, cluster)
    if not _writes_all(plan):
        return LoopRefusal(name, "a turn hands on an array that no kernel computes")
    plan = keep_on_chip(plan, gpu)
    bytes_ = emit_turns(plan, "loop_0").scratch_bytes
    if bytes_ > _allow_bytes(turns, results) and not kept:
        return LoopRefusal(name, f"its state takes {bytes_} B besides", is_choice=True)
    return plan


def _are_aligned(turns: Turns, graph: Graph, kernel: k.Kernel) -> bool:
    """Are vectors whole parts of the slices and rows that follow each other?  Else most of these begin within one."""
    stacks = graph.outputs[len(turns.carried) : len(turns.carried) + len(turns.stacks)]
    moving = {storage_name(graph, name) for name in (*turns.slices, *stacks) if name in graph.nodes}
    sizes = {
        parameter.name: storage_type(graph, parameter.source).size
        for parameter in kernel.arguments
        if turns.blocks > 1 or parameter.source in moving
    }
    return not any(
        isinstance(s, k.LoadVector | k.StoreVector | k.Fetch) and sizes.get(s.array, 0) % s.width
        for s in list_statements(kernel.body)
    )


def _allow_bytes(turns: Turns, results: Sequence[int]) -> int:
    """Memory that the kernel may take besides its results: XLA's loop has a state, and its new value for a while."""
    body = turns.loop.body
    made = {n: body[stored_value(body, body.outputs[n])] for n in turns.carried}
    new = [n for n, node in made.items() if not OPS[node.op].writes_into]
    states = sum(turns.loop.types[n].bytes * (1 if n in results else 2) for n in new)
    return MOST_BYTES + min(states, MOST_STATE)


def _read(turns: Turns, used: Sequence[int]) -> set[int]:
    """The results: what somebody reads and XLA does not know by itself."""
    made = {*turns.carried, *turns.stacks}
    if not turns.counted:
        made |= {*turns.counters}
    return {*used} & made


def _why_not(turns: Turns) -> LoopRefusal | None:
    loop, nodes = turns.loop, turns.graph.nodes
    for node in turns.graph:
        if OPS[node.op].kind is Kind.CONTROL:
            return LoopRefusal(loop.node.name, f"%{node.name} is a {node.op} in it")
    if turns.counted and loop.trips < LEAST_TRIPS:
        reason = f"it turns {loop.trips} times only"
    elif len(nodes) > MOST_NODES:
        reason = f"a turn has {len(nodes)} ops"
    else:
        return None
    return LoopRefusal(loop.node.name, reason, is_choice=True)


def _find_scope(turns: Turns, gpu: Gpu, faults: FaultLog) -> tuple[Graph, Scope] | str:
    """The graph of a turn as the stitcher sees it, and the stitch op that is all of it; or why there is none."""
    graph = write_out_dots(turns.graph, MOST_TERMS)
    for node in graph:
        if OPS[node.op].kind is Kind.COMPUTE:
            return f"%{node.name} is a {node.op} for a library"
    job = Job(graph.name, gpu, Target(directives=NOTHING), False, faults)
    scopes: Scopes = run_passes(graph, job, until="stitch_remotely")["stitch_remotely"]
    if scopes.outside:
        return str(scopes.outside[0])
    if len(scopes.scopes) != 1:
        return f"it has {len(scopes.scopes)} stitch ops"
    return scopes.graph, scopes.scopes[0]


def _list_kernels_of_rows(graph: Graph, scope: Scope, gpu: Gpu, blocks: int) -> Iterator[_Timed]:
    """Kernels of the rows of a block, each with the microseconds of a turn of all blocks."""
    alone = replace(gpu, sms=1)
    for block in (32, 64, 128, 256, 512, 1024):
        kernel = _plan(graph, scope, alone, Schedule(block=block, blocks_per_sm=1, persistent=True))
        if kernel is None or kernel.grid > 1:
            continue
        kernel = in_one_block(kernel)
        work = count_workload(kernel)
        projection = project(kernel, gpu, work=work)
        registers = min(work.registers + SPARE_REGISTERS, gpu.max_registers(block, 1))
        most = max(gpu.blocks_per_sm(block, registers, kernel.shared_bytes), 1)
        together = min(-(-blocks // gpu.sms), most)
        waves = -(-blocks // (gpu.sms * together))
        busy_us = sum(level.busiest[1] for level in projection.levels)
        l2_us = projection.l2_bytes * gpu.sms * together / (gpu.l2_gbs * 1e3)
        alone_us = projection.time_us - projection.launch_us + MET_IN_BLOCK_US
        yield (
            waves * max(alone_us, together * busy_us, l2_us),
            replace(kernel, blocks_per_sm=together),
            False,
        )


def _list_kernels(graph: Graph, scope: Scope, gpu: Gpu, _: int = 1) -> Iterator[_Timed]:
    """Kernels of a turn, each with the microseconds of one."""
    alone = replace(gpu, sms=1)
    for block in (256, 512, 1024):
        kernel = _plan(graph, scope, alone, Schedule(block=block, blocks_per_sm=1, persistent=True))
        if kernel is not None and kernel.grid == 1:
            kernel = in_one_block(kernel)
            yield _time(kernel, gpu) + MET_IN_BLOCK_US, kernel, False
    for block in (256, 512) if gpu.compute_capability >= CLUSTERS_FROM else ():
        few = replace(gpu, sms=min(CLUSTER, gpu.sms))
        kernel = _plan(graph, scope, few, Schedule(block=block, blocks_per_sm=1, persistent=True))
        if kernel is not None and kernel.grid in (2, 4, CLUSTER):
            yield _time_of_cluster(kernel, gpu), kernel, True
    for sms in (FEWER_SMS, gpu.sms):
        few = replace(gpu, sms=min(sms, gpu.sms))
        schedule = Schedule(block=BLOCK_OF_SEVERAL, blocks_per_sm=1, persistent=True)
        kernel = _plan(graph, scope, few, schedule)
        if kernel is not None and kernel.grid > 1:
            met = gpu.barrier_cost_us(kernel.grid) + BARRIER_SKEW_US
            yield _time(kernel, gpu) + met, kernel, False


def _time_of_cluster(kernel: k.Kernel, gpu: Gpu) -> float:
    """Microseconds of a turn of blocks that meet by the hardware."""
    projection = project(kernel, gpu, work=count_workload(kernel))
    apart = projection.time_us - projection.launch_us - projection.barriers_us
    return apart + (kernel.global_barriers + 1) * MET_IN_CLUSTER_US


def _plan(graph: Graph, scope: Scope, gpu: Gpu, schedule: Schedule) -> k.Kernel | None:
    try:
        # The memory of a result is another one in each turn, so that nothing may lie at a place in it.
        plan = plan_scope(graph, scope, gpu, replace(schedule, pieces=False))
    except AstitchError:
        return None
    if plan is None or plan.kernel.block_groups or plan.kernel.pointer_table:
        return None
    if count_statements(plan.kernel.body) > LONG_CODE:
        return None
    return replace(plan.kernel, blocks_per_sm=max(plan.kernel.blocks_per_sm, 1))


def _time(kernel: k.Kernel, gpu: Gpu) -> float:
    """Microseconds of a turn, without the launch."""
    projection = project(kernel, gpu, work=count_workload(kernel))
    return projection.time_us - projection.launch_us


def _writes_all(plan: TurnsPlan) -> bool:
    """Does the kernel write each value of the state, or can it be copied?"""
    graph, turns = plan.graph, plan.turns
    written = {p.source for p in plan.kernel.arguments if p.written}
    known = {*written, *graph.parameters}
    outputs = graph.outputs[: len(turns.carried) + len(turns.stacks)]
    sources = [storage_name(graph, output) for output in outputs]
    if turns.asks and storage_name(graph, graph.outputs[-1]) not in written:
        return False
    return all(s in known or find_repeated(graph, s) is not None for s in sources)


# ---- what a loop takes else ----------------------------------------------------------------------------------------


def estimate_turn(compilation: Compilation, graph: Graph, node: Node, counted: bool) -> float:
    """Microseconds of a turn of XLA's loop, with the kernels of its body where it is compiled."""
    gpu = compilation.gpu
    body = next((b for b in compilation.bodies if b.region == node.regions[1]), None)
    asked_us = 0.0 if counted else ASKED_US
    turn_us, product_us = (c / gpu.clock_ghz / 1e3 for c in (TURN_CYCLES, PRODUCT_CYCLES))
    if body is None:
        products = sum(OPS[n.op].kind is Kind.COMPUTE for n in node.regions[1])
        reductions = sum(OPS[n.op].is_reduce for n in node.regions[1])
        return turn_us + product_us * products + gpu.launch_us * reductions + asked_us
    inner = body.compilation
    us = sum(project(p.kernel, gpu, work=p.work).time_us for p in inner.plans)
    for step in inner.program.steps:
        if isinstance(step, FallbackStep):
            us += sum(_time_outside(inner.scopes.graph, op.name, gpu) for op in step.ops)
    counter_us = COUNTER_CYCLES / gpu.clock_ghz / 1e3
    return max(us + counter_us, turn_us) + asked_us


def _time_outside(graph: Graph, name: str, gpu: Gpu) -> float:
    node = graph.nodes.get(name)
    if node is None or isinstance(node.attrs, ConstantAttrs):
        return 0.0
    if OPS[node.op].kind is Kind.COMPUTE:
        return PRODUCT_CYCLES / gpu.clock_ghz / 1e3
    if isinstance(node.type, ArrayType) and node.type.size == 1:
        return 0.0
    return gpu.launch_us
