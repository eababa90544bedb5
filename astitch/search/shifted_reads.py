"""Scope -> kernels that end where values are read at shifted places: the steps of a stencil.

What a reader wants at several places is stored: to compute it again at each costs too much.  One kernel for two steps
moves no less than two kernels.  It has a barrier of the grid, long code, and scratch beside what it reads and writes.
So the steps are proposed as kernels of their own.  Equal ones have equal plans.
"""

from __future__ import annotations

from astitch.device.gpu import Gpu
from astitch.search.patterns import FusionGraph, each_vertex
from astitch.search.xla_fusions import Proposal, Vertex, find_least_us

DEAR_FLOPS = 128
"""Operations of a value from which it is not computed again at each place; a read at another place counts as 32.  An
estimate: a step of a lattice has some hundreds, a rotated or differenced value less.  What is proposed is rated."""


def propose_steps(fusion: FusionGraph, vertices: tuple[Vertex, ...], gpu: Gpu) -> Proposal | None:
    """The vertices by how often, on their way from what the scope reads, a dear value is read at shifted places.

    None where that is so for none, or where there are reductions: their levels are cuts already, and steps across them
    were worth nothing.  vertices: of the fusion graph (read_vertices).
    """
    if any(vertex.ends for vertex in vertices):
        return None
    steps = _number_steps(vertices)
    found = [0] * (max(steps, default=0) + 1)
    for v, step in enumerate(steps):
        found[step] |= 1 << v
    if len(found) < 2:
        return None
    return Proposal(tuple(found), sum(_find_least_us(fusion, part, gpu) for part in found))


def _number_steps(vertices: tuple[Vertex, ...]) -> list[int]:
    """The step of each vertex.  What only puts values together for others outside, as a stack of fields, ends none."""
    read = {edge.producer for vertex in vertices for edge in vertex.edges}
    steps: list[int] = []
    inside: list[int] = []  # by vertex, it and what it needs of its own step
    for number, vertex in enumerate(vertices):
        producers = [edge for edge in vertex.edges if edge.producer >= 0]
        shifts = number in read or not vertex.shifts
        step = 0
        for edge in producers:
            dear = edge.shifted and shifts and not vertices[edge.producer].shifts
            dear = dear and _is_dear(vertices, edge.producer, inside[edge.producer])
            step = max(step, steps[edge.producer] + dear)
        own = 1 << number
        for edge in producers:
            if steps[edge.producer] == step:
                own |= inside[edge.producer]
        steps.append(step)
        inside.append(own)
    return steps


def _is_dear(vertices: tuple[Vertex, ...], number: int, inside: int) -> bool:
    """Does an element of a value take many operations?  inside: the vertices of its step that it needs."""
    total, size = 0.0, max(vertices[number].size, 1)
    for vertex in map(vertices.__getitem__, each_vertex(inside)):
        total += vertex.flops * vertex.size / size
        if total >= DEAR_FLOPS:
            return True
    return False


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
