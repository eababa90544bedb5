"""The stitch ops of a graph, as the passes up to planning find them."""

from __future__ import annotations

from astitch import stitch_scope
from astitch.graph.ir import Graph
from astitch.rewrite.recompute import recompute
from astitch.stitch_scope import Left, Scopes, choose_stages


def find_scopes(graph: Graph, *, again: bool = True) -> Scopes:
    """again: may stages compute again what earlier ones have?"""
    staged = choose_stages(Left(graph))
    return stitch_scope.find_scopes(recompute(staged) if again else staged)
