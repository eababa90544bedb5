"""Scopes -> Scopes: stitch ops without data dependence become one kernel (paper section 4.1, remote stitching).

Two stitch ops of one stage never depend on each other through an outside op, so all of a stage can share a
kernel.  A cap on ops keeps the text of one kernel within what a compiler handles well.
"""

from __future__ import annotations

from dataclasses import replace

from astitch.stitch_scope import Refusal, Scope, Scopes, make_scope

MAX_OPS = 2400
"""More ops than this in one kernel: the CUDA compiler's time grows faster than the launches saved are worth."""


def stitch_remotely(scopes: Scopes) -> Scopes:
    """Merge the scopes of each stage, in order, up to MAX_OPS ops a kernel."""
    graph = scopes.graph
    order = {name: number for number, name in enumerate(graph.nodes)}
    bins: dict[int, list[list[Scope]]] = {}
    filled: dict[int, int] = {}  # ops of the last bin of each stage
    refusals = list(scopes.refusals)
    for scope in sorted(scopes.scopes, key=lambda s: (s.stage, order[s.members[0]])):
        stage = bins.setdefault(scope.stage, [])
        if stage and filled[scope.stage] + len(scope.members) <= MAX_OPS:
            stage[-1].append(scope)
            filled[scope.stage] += len(scope.members)
            continue
        if stage:
            refusals.append(
                Refusal(
                    stage[-1][0].members[0],
                    scope.members[0],
                    f"remote stitching would make a kernel of more than {MAX_OPS} ops",
                )
            )
        stage.append([scope])
        filled[scope.stage] = len(scope.members)
    merged = []
    for number, (stage_number, group) in enumerate((k, g) for k in sorted(bins) for g in bins[k]):
        members = sorted((m for s in group for m in s.members), key=order.__getitem__)
        merged.append(make_scope(graph, f"stitch_{number}", stage_number, members))
    return replace(scopes, scopes=tuple(merged), refusals=tuple(refusals))
