"""Which threads and tasks do what several would do alike: conditions around statements.

Threads that stand at the same element hold the same value; one of them stores it or counts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from astitch.graph import index as ix
from astitch.graph.index import Symbol
from astitch.graph.ops.access import Guard, Within
from astitch.kernel import kernel_ir as k
from astitch.kernel.states import kept_axes
from astitch.mapping.stitch_scheme import Placement
from astitch.tiling.space import Mapping


def guarded(guards: tuple[Guard, ...], body: Iterable[k.Statement]) -> Iterator[k.Statement]:
    """The statements behind the guards, if there are any of both."""
    statements = tuple(body)
    if not statements:
        return
    if guards:
        yield k.If(guards, statements)
    else:
        yield from statements


def guard_sums(body: Iterable[k.Statement], guard: Guard) -> Iterator[k.Statement]:
    """The body of a nest, of which only what it adds to sums stands behind a guard."""
    sums = (
        k.Accumulate,
        k.AccumulateProduct,
        k.AccumulateElement,
        k.AccumulateBatch,
        k.AccumulateState,
    )
    for statement in body:
        if isinstance(statement, k.Loop | k.If):
            yield replace(statement, body=tuple(guard_sums(statement.body, guard)))
        elif isinstance(statement, sums):
            yield k.If((guard,), (statement,))
        else:
            yield statement


def outer_guard(m: Mapping) -> tuple[Guard, ...]:
    """Threads beyond the last packed row compute along with it but must not store or count."""
    if m.outer_threads > 1 and m.outer_size == 1:
        return (Within(ix.of_symbol(Symbol("to", m.outer_threads)), 0, 1),)
    if m.outer_threads > 1 and m.outer_size % m.outer_threads:
        raw = ix.of_symbol(Symbol("outer_raw", m.tasks * m.outer_threads))
        return (Within(raw, 0, m.outer_size),)
    return ()


def leader_guard(
    m: Mapping, *, row: bool, col: bool, in_nest: bool = False, in_each_tile: bool = False
) -> tuple[Guard, ...]:
    """One thread of those that stand at the same element: along axes that the value does not vary over.

    in_nest: the statement stands inside the row loop if it varies along the columns.  in_each_tile: one of each
    tile of rows, not of the first one alone.
    """
    guards: list[Guard] = []
    if not col and m.col_threads > 1:
        guards.append(Within(ix.of_symbol(Symbol("tx", m.col_threads)), 0, 1))
    if in_nest and col and not row and m.row_size > 1:
        first = ix.of_symbol(Symbol("row", ix.UNBOUNDED))
        if in_each_tile and m.row_tiles > 1:
            tile = ix.of_symbol(Symbol("row_tile", m.row_tiles))
            first = ix.add(first, ix.scale(tile, -m.row_tile))
        guards.append(Within(first, 0, 1))
    elif not row and m.row_threads > 1:
        guards.append(Within(ix.of_symbol(Symbol("ty", m.row_threads)), 0, 1))
    return tuple(guards)


def tile_guard(m: Mapping, *, row: bool, col: bool) -> tuple[Guard, ...]:
    """One tile of those that would compute the same value."""
    guards: list[Guard] = []
    if not row and m.row_tiles > 1:
        guards.append(Within(ix.of_symbol(Symbol("row_tile", m.row_tiles)), 0, 1))
    if not col and m.col_tiles > 1:
        guards.append(Within(ix.of_symbol(Symbol("col_tile", m.col_tiles)), 0, 1))
    return tuple(guards)


def result_guard(m: Mapping, place: Placement) -> tuple[Guard, ...]:
    """One thread of those that hold an element of a reduce's result."""
    row, col = kept_axes(m, place)
    leaders = leader_guard(m, row=row, col=col)
    if any(a in place.root.space.kept for a in m.outer):
        return (*outer_guard(m), *leaders)
    if m.outer_threads == 1:
        return leaders
    return (Within(ix.of_symbol(Symbol("to", m.outer_threads)), 0, 1), *leaders)
