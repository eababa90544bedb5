"""Scopes -> Scopes: stitch ops without data dependence become one kernel (paper section 4.1, remote stitching).

Two stitch ops of one stage never depend on each other through an outside op, so all of a stage can share a
kernel.  A cap on ops keeps the text of one kernel within what a compiler handles well.  What only lays out parameters
for products can stay alone: XLA's products read them where they are.
"""

from __future__ import annotations

from dataclasses import replace

from astitch.graph.ir import DotAttrs, Graph
from astitch.graph.ops import OPS
from astitch.graph.storage import stored_value
from astitch.stitch_scope import Refusal, Scope, Scopes, make_scope

MAX_OPS = 2400
"""More ops than this in one kernel: the CUDA compiler's time grows faster than the launches saved are worth."""


def stitch_remotely(
    scopes: Scopes, *, layouts_apart: bool = False, most: int | None = None
) -> Scopes:
    """Merge the scopes of each stage, in order, up to so many ops a kernel.

    most: None: MAX_OPS.  layouts_apart: but not those that lay out parameters for products.
    """
    graph, most = scopes.graph, most or MAX_OPS
    order = graph.order
    bins: dict[int, list[list[Scope]]] = {}
    filled: dict[int, int] = {}  # ops of the last bin of each stage
    refusals = list(scopes.refusals)
    alone: dict[int, list[list[Scope]]] = {}
    for scope in sorted(scopes.scopes, key=lambda s: (s.stage, order[s.members[0]])):
        if layouts_apart and lays_out(graph, scope):
            alone.setdefault(scope.stage, []).append([scope])
            continue
        stage = bins.setdefault(scope.stage, [])
        if stage and filled[scope.stage] + len(scope.members) <= most:
            stage[-1].append(scope)
            filled[scope.stage] += len(scope.members)
            continue
        if stage:
            refusals.append(
                Refusal(
                    stage[-1][0].members[0],
                    scope.members[0],
                    f"remote stitching would make a kernel of more than {most} ops",
                    f"at-most {2 * most}",
                )
            )
        stage.append([scope])
        filled[scope.stage] = len(scope.members)
    merged = []
    stages = sorted({*bins, *alone})
    kernels = ((k, g) for k in stages for g in (*alone.get(k, ()), *bins.get(k, ())))
    for number, (stage_number, group) in enumerate(kernels):
        members = sorted((m for s in group for m in s.members), key=order.__getitem__)
        merged.append(make_scope(graph, f"stitch_{number}", stage_number, members))
    return replace(scopes, scopes=tuple(merged), refusals=tuple(refusals))


def lays_out(graph: Graph, scope: Scope) -> bool:
    """Does a stitch op nothing but lay out parameters for products?"""
    moves = scope.outputs and all(OPS[graph[name].op].lays_out for name in scope.members)
    read = {stored_value(graph, name) for name in scope.inputs}
    if not moves or any(not graph[name].is_parameter for name in read):
        return False
    return not any(
        name in graph.outputs
        or any(
            not isinstance(graph[user].attrs, DotAttrs)
            for user in graph.users[name]
            if user not in scope.members
        )
        for name in scope.members
    )
