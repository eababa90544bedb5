"""Scope -> kernels that end where values are read at shifted places: the steps of a stencil.

What a reader wants at several places is stored: to compute it again at each costs too much.  One kernel for two steps
moves no less than two kernels.  It has a barrier of the grid, long code, and scratch beside what it reads and writes.
So the steps are proposed as kernels of their own.  Equal ones have equal plans.
"""

from __future__ import annotations

from astitch.device.gpu import Gpu
from astitch.search.patterns import FusionGraph
from astitch.search.xla_fusions import Proposal, Vertex, find_least_us

DEAR_FLOPS = 128
"""Operations of a value from which it is not computed again at each place; a read at another place counts as 32."""


def propose_steps(fusion: FusionGraph, vertices: tuple[Vertex, ...], gpu: Gpu) -> Proposal | None:
    """The vertices by how often, on their way from what the scope reads, a dear value is read at shifted places.

    None where that is so for none.  vertices: of the fusion graph (read_vertices).
    """
    steps = _number_steps(vertices)
    found = [0] * (max(steps, default=0) + 1)
    for v, step in enumerate(steps):
        found[step] |= 1 << v
    if len(found) < 2:
        return None
    return Proposal(tuple(found), sum(_find_least_us(fusion, part, gpu) for part in found))


def _number_steps(vertices: tuple[Vertex, ...]) -> list[int]:
    """The step of each vertex."""
    steps: list[int] = []
    flops: list[float] = []  # of a value, from what its step reads
    for vertex in vertices:
        step = 0
        for edge in vertex.edges:
            if edge.producer >= 0:
                producer = vertices[edge.producer]
                dear = flops[edge.producer] >= DEAR_FLOPS and not producer.shifts
                step = max(step, steps[edge.producer] + (edge.shifted and dear))
        own = {e.producer: e.each for e in vertex.edges if e.producer >= 0}
        inside = sum(flops[p] * each for p, each in own.items() if steps[p] == step)
        steps.append(step)
        flops.append(vertex.flops + inside)
    return steps


def _find_least_us(fusion: FusionGraph, part: int, gpu: Gpu) -> float:
    """What no kernel for these vertices stays below."""
    moved = 0
    for value in fusion.values:
        made = value.producer >= 0 and bool(part >> value.producer & 1)
        if made and (value.escapes or value.readers & ~part):
            moved += value.bytes
        elif not made and value.readers & part:
            moved += value.read_bytes
    return find_least_us(moved, gpu)
