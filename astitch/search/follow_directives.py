"""Directives obeyed: stages, stitch ops and plans as the owner of a program wants them.

Takes what a pass is about to hand on, hands on the same as the directives say.  A directive that would close a cycle,
or that names what is not there, changes nothing, and its outcome says why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from astitch.device.gpu import Gpu
from astitch.device.schedule import DEFAULT
from astitch.directives import FOLLOWED, Directive, Directives
from astitch.graph.ir import Graph
from astitch.graph.ops import OPS, Kind
from astitch.rewrite.recompute import Staged
from astitch.search.fusion_explorer import make_parts, replace_scope
from astitch.search.plan import Plan, plan_scope, rank_plans
from astitch.search.split_scopes import PlannedScopes
from astitch.stitch_scope import Scope, Scopes

LEFT = "a directive leaves it to XLA"

# ---- together ------------------------------------------------------------------------------------


def move_together(staged: Staged, directives: Directives) -> Staged:
    """The stages in which ops that are to share a kernel have one stage, where no cycle forbids it."""
    for directive in directives.all("together"):
        a, b = directive.ops
        if a not in staged.graph.nodes or b not in staged.graph.nodes:
            continue
        for name in (a, b):
            if reason := staged.outside.get(name) or staged.held.get(name):
                directives.note(directive, f"not followed: no kernel computes %{name}: {reason}")
                break
        else:
            staged = _move(staged, directive, directives)
    return staged


def _move(staged: Staged, directive: Directive, directives: Directives) -> Staged:
    early, late = sorted(directive.ops, key=staged.stage.__getitem__)
    if staged.stage[early] == staged.stage[late]:
        directives.note(directive, FOLLOWED)
        return staged
    later, later_blocker = _find_moved(staged, early, staged.stage[late], later=True)
    if not later_blocker:
        directives.note(directive, FOLLOWED)
        stage = {**staged.stage, **dict.fromkeys(later, staged.stage[late])}
        return replace(staged, stage=stage)
    sooner, blocker = _find_moved(staged, late, staged.stage[early], later=False)
    if not blocker:
        directives.note(directive, FOLLOWED)
        stage = {**staged.stage, **dict.fromkeys(sooner, staged.stage[early])}
        return replace(staged, stage=stage)
    op = staged.graph[blocker].op
    directives.note(
        directive,
        f"not followed: one kernel for both would close a cycle through %{blocker} ({op})",
    )
    return staged


def _find_moved(staged: Staged, start: str, to: int, *, later: bool) -> tuple[set[str], str]:
    """What moves to a stage along with an op, and the op that forbids it; empty: none does."""
    graph, stage = staged.graph, staged.stage
    moved, pending = set[str](), [start]
    while pending:
        name = pending.pop()
        node = graph[name]
        if name in moved or OPS[node.op].kind is Kind.SOURCE:
            continue
        if name in staged.held:
            return moved, name
        if name in staged.outside:
            # It runs after all kernels of the stages below its own, and before those of its own.
            if (stage[name] <= to) if later else (stage[name] > to):
                return moved, name
            continue
        if (stage[name] >= to) if later else (stage[name] <= to):
            continue
        moved.add(name)
        pending += graph.users[name] if later else node.operands
        if OPS[node.op].kind is Kind.PROJECTION:  # the results of one reduce stay together
            pending.append(node.operands[0])
        pending += (u for u in graph.users[name] if OPS[graph[u].op].kind is Kind.PROJECTION)
    return moved, ""


# ---- apart, at-most ------------------------------------------------------------------------------


def cut_as_told(scopes: Scopes, directives: Directives) -> Scopes:
    """The stitch ops, some in parts: two ops that are to have no kernel in common, or at most so many ops in each."""
    for directive in directives.all("apart"):
        one, other = directive.ops
        both = [s for s in scopes.scopes if one in s.members and other in s.members]
        if both:
            scopes = _cut(scopes, both[0], divide(scopes.graph, both[0], one, other))
        if both or {one, other} <= scopes.graph.nodes.keys():
            directives.note(directive, FOLLOWED)
    for directive in directives.all("at-most"):
        for scope in scopes.scopes:
            if directive.ops and directive.ops[0] not in scope.members:
                continue
            directives.note(directive, FOLLOWED)
            if len(scope.members) > directive.number:
                scopes = _cut(scopes, scope, _chunk(scopes.graph, scope, directive.number))
    return scopes


def divide(graph: Graph, scope: Scope, one: str, other: str) -> list[list[str]]:
    """The ops of a stitch op in two parts, the first of which needs nothing of the second.

    The second has what reads one of both, and what only it reads.
    """
    inside = set(scope.members)
    if one in _find_readers(graph, inside, other):
        one, other = other, one
    late = _find_readers(graph, inside, other)
    for name in reversed(scope.members):
        users = graph.users[name]
        if name != one and users and name not in graph.outputs and all(u in late for u in users):
            late.add(name)
    early = [name for name in scope.members if name not in late]
    return [early, [name for name in scope.members if name in late]]


def _find_readers(graph: Graph, inside: Collection[str], name: str) -> set[str]:
    """An op, and those of a stitch op that need it; results of one reduce are not parted."""
    found, pending = set[str](), [name]
    while pending:
        name = pending.pop()
        if name in found or name not in inside:
            continue
        found.add(name)
        pending += graph.users[name]
        if OPS[graph[name].op].kind is Kind.PROJECTION:
            pending.append(graph[name].operands[0])
    return found


def _chunk(graph: Graph, scope: Scope, most: int) -> list[list[str]]:
    """The ops in their order, so many together; a reduce and its results count as one."""
    chunks: list[list[str]] = [[]]
    home: dict[str, int] = {}
    for name in scope.members:
        node = graph[name]
        if OPS[node.op].kind is Kind.PROJECTION and node.operands[0] in home:
            chunks[home[node.operands[0]]].append(name)
            continue
        if len(chunks[-1]) >= most:
            chunks.append([])
        chunks[-1].append(name)
        home[name] = len(chunks) - 1
    return chunks


def _cut(scopes: Scopes, scope: Scope, cover: list[list[str]]) -> Scopes:
    parts = make_parts(scopes.graph, scope, [part for part in cover if part])
    return replace_scope(scopes, scope.name, parts)


# ---- plans ---------------------------------------------------------------------------------------


def stays_whole(scope: Scope, directives: Directives) -> bool:
    """Is a stitch op not to be split?"""
    if directives.names("keep", scope.members, scope.name):
        return True
    return any(set(line.ops) <= set(scope.members) for line in directives.all("together"))


def list_plans(graph: Graph, scope: Scope, gpu: Gpu) -> tuple[Plan, ...]:
    """The plans of a stitch op by their numbers: the rules' own, then the others, by projection the fastest first."""
    default = plan_scope(graph, scope, gpu, DEFAULT)
    if default is None:
        return ()
    ranked = rank_plans(graph, scope, gpu, default=default)
    return (default, *(plan for plan, _ in ranked if plan.kernel != default.kernel))


def choose_plans(planned: PlannedScopes, gpu: Gpu, directives: Directives) -> PlannedScopes:
    """The plans, of some stitch ops those of the numbers that were asked for."""
    plans = []
    for plan in planned.plans:
        for line in directives.names("plan", plan.scope.members, plan.scope.name):
            known = list_plans(planned.scopes.graph, plan.scope, gpu)
            if line.number < len(known):
                note = f"plan {line.number} of {len(known)}, by a directive"
                plan = replace(known[line.number], notes=(*known[line.number].notes, note))
            else:
                directives.outcomes[str(line)] = f"not followed: it has {len(known)} plans"
        plans.append(plan)
    return replace(planned, plans=tuple(plans))


def leave_as_told(planned: PlannedScopes, directives: Directives) -> PlannedScopes:
    """The stitch ops without the plans of those that XLA is to compute."""
    left = {
        plan.scope.name: LEFT
        for plan in planned.plans
        if _is_left(directives, plan.scope.members, plan.scope.name)
    }
    plans = tuple(plan for plan in planned.plans if plan.scope.name not in left)
    return replace(planned, plans=plans, left={**planned.left, **left})


def _is_left(directives: Directives, ops: Iterable[str], kernel: str) -> bool:
    for line in directives.all("leave"):
        if not line.ops:
            directives.note(line, FOLLOWED)
            return True
    return bool(directives.names("leave", ops, kernel))
