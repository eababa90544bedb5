"""The parts of a stitch op -> what they take together, and what they hand each other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

from astitch.errors import IllegalProduct
from astitch.graph.ir import Graph
from astitch.graph.storage import storage_name, storage_type
from astitch.scope.structure import Structure, structure_of
from astitch.stitch_scope import Scope, Scopes


def list_handed(parts: Scopes, whole: Scope) -> Iterator[int]:
    """The bytes of each value that the parts of a scope hand on, and the whole would not store."""
    stored = {storage_name(parts.graph, name) for name in (*whole.outputs, *whole.inputs)}
    handed = {storage_name(parts.graph, o) for part in parts.scopes for o in part.outputs}
    for buffer in handed - stored:
        yield storage_type(parts.graph, buffer).bytes


def time_of(time: Callable[[Graph, Scope], float], graph: Graph, scope: Scope) -> float:
    """The us of a scope; infinite where it has no plan.  time: as for sum_times."""
    try:
        return time(graph, scope)
    except IllegalProduct:
        return math.inf


def sum_times(
    parts: Scopes,
    time: Callable[[Graph, Scope], float],
    known_us: dict[Structure, float],
    most_us: float = math.inf,
) -> float:
    """The us of all parts; infinite if they are not several, one has no plan, or it is more than `most_us`.

    time: of one; raises IllegalProduct where it has no plan.  known_us: times by structure; the function adds those
    that it asks for.
    """
    if len(parts.scopes) < 2:
        return math.inf
    structures = [structure_of(parts.graph, part) for part in parts.scopes]
    times = Counter(structures)
    total = sum(known_us.get(structure, 0.0) for structure in structures)
    for part, structure in zip(parts.scopes, structures, strict=True):
        if math.isinf(total) or total > most_us:
            return math.inf  # whatever the others take
        if structure not in known_us:
            known_us[structure] = time_of(time, parts.graph, part)
            total += known_us[structure] * times[structure]
    total = sum(known_us[structure] for structure in structures)
    return math.inf if total > most_us else total
