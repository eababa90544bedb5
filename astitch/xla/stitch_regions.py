"""The bodies of loops and the branches of conditionals as compilations of their own, recursively.

Takes a Compilation, hands on the same with one Body for each such region.  What XLA updates in place in a loop's state
stays XLA's, and so does what is computed from its counter.  A launch must be worth its time in each turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from astitch.compile import compile_graph
from astitch.device.gpu import Gpu
from astitch.directives import NOTHING, Directives
from astitch.faults import FaultLog, is_fault
from astitch.graph.collectives import communicates
from astitch.graph.dimensions import array_of
from astitch.graph.edit import keep_live_nodes
from astitch.graph.ir import ArrayType, ConditionalAttrs, Graph, Node
from astitch.graph.ops import OPS, Kind, is_addition
from astitch.graph.ops.windows import find_running
from astitch.graph.stitchable import why_not_stitchable
from astitch.hlo_import import read_part
from astitch.loops.plan import LoopPlanner
from astitch.pipeline import Launcher, RegionRules, Target
from astitch.program.steps import FallbackStep
from astitch.search.patterns import make_fusion_graph
from astitch.search.split_scopes import Decisions
from astitch.search.xla_fusions import propose
from astitch.show.compilation import Body, Compilation
from astitch.show.share import ONE_SIZE, ONLY_MOVES, SINGLE, list_regions
from astitch.stitch_scope import Left, Scope
from astitch.system.callbacks import pass_interrupt
from astitch.xla.slices import SliceWrite
from astitch.xla.updates import find_state_updates, find_turned_states


def stitched_regions(node: Node) -> Sequence[Graph]:
    """The regions of a node that run as often as the node says: a loop's body, the branches of a conditional."""
    if OPS[node.op].is_loop:
        return node.regions[1:]
    return node.regions if isinstance(node.attrs, ConditionalAttrs) else ()


def stitch_bodies(
    compilation: Compilation,
    path: str = "",
    *,
    tune: bool = False,
    attention: bool = False,
    row_groups: LoopPlanner | None = None,
    faults: FaultLog | None = None,
    directives: Directives = NOTHING,
    found: Decisions | None = None,
) -> Compilation:
    """The compilation with its bodies.  path: begins the names of their kernels.  tune: see compile_hlo.
    attention, row_groups, directives, found: see Target.  faults: keeps the errors that leave a region to XLA."""
    faults = faults or FaultLog()
    bodies: dict[Graph, Body] = {}
    notes: list[str] = []
    for step in compilation.program.steps:
        if not isinstance(step, FallbackStep):
            continue
        graph = read_part(step.hlo)
        for node in graph:
            if OPS[node.op].is_loop and row_groups and row_groups.is_kernel(graph, node):
                continue  # nobody runs its body
            for region, times in list_regions(graph, node):
                if region in bodies:
                    runs = bodies[region].runs
                    runs = {**runs, node.name: runs.get(node.name, 0.0) + times}
                    bodies[region] = replace(bodies[region], runs=runs)
                    continue
                name = f"{path}body_{len(bodies)}_"
                rules = RegionRules(name, leave_region)
                try:
                    target = Target(
                        launcher=Launcher.REGION,
                        region=rules,
                        updates=find_state_updates,
                        attention=attention,
                        row_groups=row_groups,
                        directives=directives,
                        found=found,
                    )
                    inner = compile_graph(region, compilation.gpu, target, tune=tune, faults=faults)
                except Exception as error:
                    pass_interrupt(error)
                    notes.append(f"%{node.name}: a region is left to XLA: {error}")
                    if is_fault(error):
                        where = f"a region of %{node.name}"
                        faults.note(error, stage="compile", subject=where, cost="XLA computes it")
                    continue
                inner = stitch_bodies(
                    inner,
                    name,
                    tune=tune,
                    attention=attention,
                    row_groups=row_groups,
                    faults=faults,
                    directives=directives,
                    found=found,
                )
                bodies[region] = Body(node.name, node.op, region, inner, {node.name: times})
    program = replace(compilation.program, notes=(*compilation.program.notes, *notes))
    return replace(compilation, program=program, bodies=tuple(bodies.values()))


def find_accumulations(graph: Graph) -> dict[str, str]:
    """Sums of a parameter and a product or a collective, with what lies between.

    XLA has the product add to the parameter.  It adds up what the turns of a loop communicate, and communicates once.
    """
    found: dict[str, str] = {}
    for node in graph:
        if not is_addition(node) or node.name not in graph.outputs:
            continue
        for one, other in (node.operands, node.operands[::-1]):
            chain = [one]
            while OPS[graph[chain[-1]].op].permutes:
                chain.append(graph[chain[-1]].operands[0])
            last = graph[chain[-1]]
            product = OPS[last.op].kind is Kind.COMPUTE or communicates(last)
            alone = all(len(graph.users[name]) == 1 and name not in graph.outputs for name in chain)
            if product and alone and graph[other].is_parameter:
                reason = f"XLA has %{last.name} add to the loop's state"
                found.update(dict.fromkeys([*chain[:-1], node.name], reason))
    return found


def leave_region(graph: Graph) -> Left:
    """The region with what is left to XLA named, and scalars computed a second time for what XLA does with them.

    So a kernel has its own indices, XLA sees how the counter counts, and no kernel writes a scalar for the other.
    """
    left = find_state_updates(graph) | find_accumulations(graph) | find_turned_states(graph)
    small = _find_small(graph)
    clones: dict[str, str] = {}
    nodes: dict[str, Node] = {}
    for node in graph:
        if node.name in small:
            clone = f"{node.name}.scalar"
            operands = tuple(clones.get(o, o) for o in node.operands)
            nodes[clone] = replace(node, name=clone, operands=operands)
            clones[node.name] = clone
        elif node.name in left or why_not_stitchable(graph, node):
            operands = tuple(clones.get(o, o) for o in node.operands)
            nodes[node.name] = replace(node, operands=operands)
            continue
        nodes[node.name] = node
    outputs = tuple(clones.get(o, o) for o in graph.outputs)
    live = keep_live_nodes(nodes, outputs)
    left |= dict.fromkeys(clones.values(), "a scalar that only XLA's ops read")
    found = Graph(graph.name, live, graph.parameters, outputs, graph.aliases)
    return Left(found, {name: reason for name, reason in left.items() if name in live})


def _find_small(graph: Graph) -> set[str]:
    """Ops on single elements that come from parameters and constants by nothing else."""
    kinds = {Kind.ELEMENTWISE, Kind.BROADCAST, Kind.INDEX}
    single: set[str] = set()
    for node in graph:
        if not isinstance(node.type, ArrayType) or node.type.size != 1:
            continue
        source = OPS[node.op].kind is Kind.SOURCE
        if source or (OPS[node.op].kind in kinds and all(o in single for o in node.operands)):
            single.add(node.name)
    return {name for name in single if OPS[graph[name].op].kind is not Kind.SOURCE}


def _is_reduction(node: Node) -> bool:
    return OPS[node.op].kind is Kind.REDUCE or find_running(node) is not None


def _is_one_fusion(graph: Graph, scope: Scope, gpu: Gpu) -> bool:
    """Would XLA make one kernel of the ops of a scope, too, for all that is known?"""
    proposal = next(propose(graph, scope, make_fusion_graph(graph, scope, gpu), gpu), None)
    return proposal is None or len(proposal.fusions) < 2


def find_unworthy(
    compilation: Compilation, slices: Mapping[str, Sequence[SliceWrite]]
) -> dict[str, str]:
    """Kernels of a body that XLA's own fusion makes as well, with the reason.

    They move elements, work on single ones, or write arrays of one size without a reduction.  XLA then also adds up the
    parts of a product, and computes an update of the loop's state where it writes it.  But it launches a fusion for
    each update; a kernel that computes several writes them.  So it is with what XLA makes several fusions of, as the
    step of a stencil.  slices: see find_slices.
    """
    graph = compilation.scopes.graph
    found: dict[str, str] = {}
    for plan in compilation.plans:
        members = [graph[name] for name in plan.scope.members]
        if all(OPS[m.op].kind in (Kind.INDEX, Kind.BROADCAST) for m in members):
            found[plan.kernel.name] = ONLY_MOVES
        elif all(
            not _is_reduction(m) and (OPS[m.op].kind is Kind.PROJECTION or array_of(m).size == 1)
            for m in members
        ):
            found[plan.kernel.name] = SINGLE
        elif (
            not any(map(_is_reduction, members))
            and len({array_of(graph[name]).size for name in plan.scope.outputs}) == 1
            and len(slices.get(plan.kernel.name, ())) < 2
            and _is_one_fusion(graph, plan.scope, compilation.gpu)
        ):
            found[plan.kernel.name] = ONE_SIZE
    return found
