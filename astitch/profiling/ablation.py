"""How much each part of the compiler is worth: the same memory-intensive ops planned with less of it (paper, Table 4).

Takes a Compilation, hands on one row for each step: XLA -> thread mapping -> stitching -> dominant merging -> the rest.
The first cuts where XLA's fusion does, at every reduce and before every heavy op that is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from astitch.cost.projected_latency import project
from astitch.device.gpu import Gpu
from astitch.device.schedule import DEFAULT
from astitch.dominant import Group, Groups, choose_dominants, find_candidates
from astitch.errors import IllegalProduct
from astitch.graph.ir import Graph
from astitch.graph.ops import OPS, Kind
from astitch.profiling.report import MEMORY, PROJECTED, Ablation, Side
from astitch.search.plan import Plan, plan_groups
from astitch.show.compilation import Compilation
from astitch.stitch_scope import Scope, make_scope

MAPPING, STITCHING, MERGING, WHOLE = (
    "+ thread mapping",
    "+ stitching",
    "+ dominant merging",
    "+ search and splits",
)
NOTES = {
    MAPPING: "kernels end where XLA's fusion ends, with astitch's thread mappings",
    STITCHING: "one kernel for each stitch op, every dominant with a loop of its own",
    MERGING: "dominants that share values share a thread mapping",
    WHOLE: "as compiled: schedules searched, stitch ops with a symptom split",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """The plans of the memory-intensive part, planned with less.  failures: why some have none."""

    name: str
    plans: tuple[Plan, ...]
    failures: tuple[str, ...] = ()


def plan_variants(compilation: Compilation) -> Iterator[Variant]:
    """The variants of a plan, from the least of stitching to all of it."""
    graph, gpu = compilation.scopes.graph, compilation.gpu
    scopes = [plan.scope for plan in compilation.plans]
    parts = [part for scope in scopes for part in cut_like_xla(graph, scope)]
    yield _plan_all(MAPPING, parts, lambda s: _plan_default(graph, s, gpu))
    yield _plan_all(STITCHING, scopes, lambda s: _plan_default(graph, s, gpu, merged=False))
    yield _plan_all(MERGING, scopes, lambda s: _plan_default(graph, s, gpu))
    yield Variant(WHOLE, compilation.plans)


def _plan_all(name: str, scopes: Iterable[Scope], plan: Callable[[Scope], Plan | None]) -> Variant:
    plans: list[Plan] = []
    failures: list[str] = []
    for scope in scopes:
        try:
            found = plan(scope)
        except IllegalProduct as error:  # without merging a kernel may not fit the device
            failures.append((str(error).splitlines() or [""])[0])
            continue
        if found is not None:
            plans.append(found)
    return Variant(name, tuple(plans), tuple(failures))


def _plan_default(graph: Graph, scope: Scope, gpu: Gpu, *, merged: bool = True) -> Plan | None:
    groups = choose_dominants(graph, scope)
    if not groups.groups:
        return None
    return plan_groups(graph, groups if merged else separate_dominants(groups), gpu, DEFAULT)


def separate_dominants(groups: Groups) -> Groups:
    """The same candidates without dominant merging: each is the dominant of a group of its own.

    What merging is worth is seen by planning these beside the merged ones.  Local ops stand in the group of the first
    candidate that follows them.
    """
    kept = {candidate.name for candidate in groups.candidates}
    separate: list[Group] = []
    waiting: list[str] = []
    for name in groups.scope.members:
        waiting.append(name)
        if name in kept:
            separate.append(Group(name, (), tuple(waiting)))
            waiting = []
    if separate and waiting:
        last = separate[-1]
        separate[-1] = Group(last.dominant, (), (*last.members, *waiting))
    return replace(groups, groups=tuple(separate))


def cut_like_xla(graph: Graph, scope: Scope) -> tuple[Scope, ...]:
    """The parts of a stitch op between its reduces and repeated heavy ops; ops that are not connected stay apart."""
    inside = set(scope.members)
    ends = {c.name for c in find_candidates(graph, scope) if not c.reason.startswith("output")}
    level: dict[str, int] = {}
    for name in scope.members:
        node = graph[name]
        after = [
            level[o] + _ends_kernel(graph, o, name, ends) for o in node.operands if o in inside
        ]
        level[name] = max(after, default=0)
    outputs = set(scope.outputs)
    for name in reversed(scope.members):  # what nobody reads yet is computed where it is read
        readers = [level[u] for u in graph.users[name] if u in inside]
        fixed = name in ends or name in outputs or OPS[graph[name].op].kind is Kind.PROJECTION
        if readers and not fixed:
            level[name] = max(level[name], min(readers))
    return tuple(
        make_scope(graph, f"{scope.name}_{number}", scope.stage, members)
        for number, members in enumerate(_find_connected(graph, scope.members, level))
    )


def _ends_kernel(graph: Graph, operand: str, reader: str, ends: set[str]) -> int:
    """1 where the reader is in a later kernel than the operand.  A reduce of several results ends with those."""
    if OPS[graph[reader].op].kind is Kind.PROJECTION:
        return 0
    return int(operand in ends or OPS[graph[operand].op].kind is Kind.PROJECTION)


def _find_connected(graph: Graph, members: Sequence[str], level: dict[str, int]) -> list[list[str]]:
    """Members of one level that read each other, in the order of their first ops."""
    home: dict[str, list[str]] = {}
    for name in members:
        own = [name]
        for operand in graph[name].operands:
            if operand not in home or level[operand] != level[name] or home[operand] is own:
                continue
            other = home[operand]
            other.extend(own)
            for moved in own:
                home[moved] = other
            own = other
        home[name] = own
    order = {name: number for number, name in enumerate(members)}
    found = {id(part): part for part in home.values()}.values()
    return sorted(
        (sorted(part, key=order.__getitem__) for part in found),
        key=lambda part: (level[part[0]], order[part[0]]),
    )


def ablate(compilation: Compilation) -> Iterator[Ablation]:
    """The rows of astitch's side, projected."""
    for variant in plan_variants(compilation):
        times = [project(p.kernel, compilation.gpu, work=p.work).time_us for p in variant.plans]
        yield describe_variant(variant, sum(times), PROJECTED)


def describe_variant(variant: Variant, us: float | None, basis: str) -> Ablation:
    note = NOTES[variant.name]
    if variant.failures:
        note += f"; {len(variant.failures)} without a kernel: {variant.failures[0]}"
    return Ablation(
        name=variant.name,
        kernels=len(variant.plans) if not variant.failures else None,
        us=us if not variant.failures else None,
        barriers=sum(plan.kernel.global_barriers for plan in variant.plans),
        basis=basis,
        note=note,
    )


def start_with_xla(xla: Side, rows: Iterable[Ablation]) -> Iterator[Ablation]:
    """The rows, XLA's own first.  Its time is only told where it was measured: our latency model does not know it."""
    measured = xla.kernel_us(MEMORY) if xla.basis != PROJECTED else None
    note = xla.missing or ("" if measured is not None else "time: only measured on a GPU")
    yield Ablation("XLA", xla.count(MEMORY), measured, 0, xla.basis, note)
    yield from rows
