"""The indices of a task: every tile of every outer row is one task's, whichever way the mapping numbers them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astitch.graph import index as ix
from astitch.graph.index import Symbol
from astitch.kernel import kernel_ir as k
from astitch.kernel.guards import leader_guard, outer_guard, tile_guard
from astitch.kernel.task_indices import count_steps_inside, index_task
from astitch.tiling.space import Mapping


def make_mapping(outer: int, row: int, col: int, packed: int = 1, **more: object) -> Mapping:
    """Tasks of `packed` outer rows, of tiles of 8 rows by 64 columns."""
    atoms = ((Symbol("o", outer),), (Symbol("r", row),), (Symbol("c", col),))
    plain = Mapping(*atoms, packed, 4, 16, vector=2, row_tile=8, col_tile=64)
    return dataclasses.replace(plain, **more)  # type: ignore[arg-type]


def places_of(m: Mapping) -> Iterator[tuple[int, int, int]]:
    """(outer row, row tile, column tile) of each task, for each of its packed rows."""
    for task in range(m.tasks):
        for packed in range(m.outer_threads if m.outer_size > 1 else 1):
            values = {Symbol("task", m.tasks): task, Symbol("to", m.outer_threads): packed}
            found = {
                s.name: ix.evaluate(s.form, values)
                for s in index_task(m)
                if isinstance(s, k.Index)
                and not any("clamped" in t.name for t in ix.symbols(s.form))
            }
            outer = found.get("outer_raw", found.get("outer", 0))
            yield outer, found.get("row_tile", 0), found.get("col_tile", 0)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 9),
    st.integers(1, 24),
    st.integers(1, 200),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)
def test_each_tile_is_one_tasks(outer: int, row: int, col: int, packed: int, last: bool) -> None:
    m = make_mapping(outer, row, col, packed, rows_last=last)
    found = Counter(place for place in places_of(m) if place[0] < outer)
    tiles = outer * m.row_tiles * m.col_tiles
    assert len(found) == tiles
    assert set(found.values()) == {1}


@pytest.mark.parametrize("size", [1, 7, 8, 9, 31])
def test_steps_inside_are_those_whose_position_is(size: int) -> None:
    threads, steps = 4, 12
    bound = count_steps_inside(size, ix.ZERO, "ty", threads)
    for thread in range(threads):
        inside = [step for step in range(steps) if step * threads + thread < size]
        assert ix.evaluate(bound, {Symbol("ty", threads): thread}) == len(inside)


def test_one_thread_of_those_at_an_element_stores_it() -> None:
    m = make_mapping(5, 8, 300, packed=2)
    assert leader_guard(m, row=True, col=True) == ()
    (columns,) = leader_guard(m, row=True, col=False)
    assert ix.symbols(columns.form) == {Symbol("tx", 16)}
    assert len(leader_guard(m, row=False, col=False)) == 2
    (tiles,) = tile_guard(m, row=False, col=False)
    assert ix.symbols(tiles.form) == {Symbol("col_tile", 5)}
    (packed,) = outer_guard(m)
    assert ix.symbols(packed.form) == {Symbol("outer_raw", m.tasks * 2)}
