"""Strategies by name: each has a shape for which it is taken, and a reason where it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from astitch.device.gpu import preset
from astitch.device.schedule import DEFAULT, Schedule
from astitch.graph.index import Symbol
from astitch.thread_mapping import map_space
from astitch.tiling.columns import COLUMNS
from astitch.tiling.elementwise import ELEMENTWISE
from astitch.tiling.groups import GROUPS
from astitch.tiling.rows import ROWS
from astitch.tiling.scans import SCANS
from astitch.tiling.space import Mapping, Space
from astitch.tiling.strategy import Strategy, always, take_first

H100 = preset("h100")
LISTS: dict[str, tuple[Strategy[Any], ...]] = {
    "element-wise": ELEMENTWISE,
    "row-reduce": ROWS,
    "column-reduce": COLUMNS,
    "mixed reduce": GROUPS,
    "running reduction": SCANS,
}


def map_shape(
    *shape: int,
    reduced: tuple[int, ...] = (),
    across: int | None = None,
    schedule: Schedule = DEFAULT,
    **asked: Any,
) -> Mapping:
    """The mapping of f32 elements in 264 blocks of 512 threads on an H100."""
    atoms = tuple(Symbol(f"d{d}", n) for d, n in enumerate(shape))
    space = Space(atoms, frozenset(atoms[d] for d in reduced), 4)
    space = replace(space, across=None if across is None else atoms[across], **asked)
    return map_space(space, H100, 512, 264, schedule)


def again(*shape: int, reduced: tuple[int, ...], **asked: Any) -> Mapping:
    """The mapping where one array is read before and after the reduction."""
    return map_shape(*shape, reduced=reduced, held_words=1.0, again_words=1.0, **asked)


def scan(*shape: int, along: int, **asked: Any) -> Mapping:
    return map_shape(*shape, reduced=(along,), running="forward", parted=True, **asked)


TAKEN = [
    ("element-wise", "two-dimensional tiles", map_shape(8192, 8192, across=0)),
    ("element-wise", "flat tiles", map_shape(8192, 8192)),
    (
        "row-reduce",
        "two-dimensional tiles",
        map_shape(8192, 8192, reduced=(0, 1), across=0, awaited=False),
    ),
    ("row-reduce", "cooperative row reduction", map_shape(60, 100_000, reduced=(1,))),
    ("row-reduce", "split row reduction", map_shape(60, 100_000, reduced=(1,), awaited=False)),
    ("row-reduce", "short rows, few threads each", map_shape(100_000, 7, reduced=(1,))),
    ("row-reduce", "row reduction within a block", map_shape(4096, 1024, reduced=(1,))),
    ("column-reduce", "cooperative column reduction", again(4096, 8192, reduced=(0,))),
    ("column-reduce", "column reduction kept in a block", again(1024, 2048, reduced=(0,))),
    ("column-reduce", "split column reduction", map_shape(100_000, 64, reduced=(0,))),
    ("column-reduce", "column reduction within a block", map_shape(128, 100_000, reduced=(0,))),
    (
        "mixed reduce",
        "cooperative reduction of neighbouring groups",
        map_shape(16, 4096, 32, 10, reduced=(1, 3)),
    ),
    ("mixed reduce", "cooperative reduction of a group", map_shape(64, 256, 3136, reduced=(0, 2))),
    (
        "mixed reduce",
        "split group reduction",
        map_shape(64, 256, 3136, reduced=(0, 2), awaited=False, schedule=Schedule(split=8)),
    ),
    ("mixed reduce", "group reduction within a block", map_shape(32, 64, 56, reduced=(0, 2))),
    ("running reduction", "cooperative scan", scan(4, 1 << 20, along=1)),
    ("running reduction", "tiled scan, totals carried along", scan(500, 1 << 20, along=1)),
    ("running reduction", "scan within a block", scan(4096, 1000, along=1)),
]

REFUSED = [
    (map_shape(64, 64), "two-dimensional tiles", "no array lies along another dimension than the last"),
    (
        map_shape(100_000, 3, across=0),
        "two-dimensional tiles",
        "a warp's flat tile has 8 rows of 3, which fill sectors of both orders",
    ),
    (
        map_shape(100, 128, reduced=(0, 1), across=0, awaited=False),
        "two-dimensional tiles",
        "one block reduces all of the 51200 B",
    ),
    (
        map_shape(8192, 8192, reduced=(0, 1), across=0),
        "two-dimensional tiles",
        "a value of the space's size needs the result",
    ),
    (
        map_shape(8192, 8192, reduced=(1,), across=0),
        "two-dimensional tiles",
        "it has a result for each row, not one in all",
    ),
    (
        map_shape(60, 100_000, reduced=(1,), awaited=False),
        "cooperative row reduction",
        "no value of the space's size needs the sum, so no block has to wait for it",
    ),
    (
        map_shape(60, 100_000, reduced=(1,), schedule=Schedule(split=2)),
        "cooperative row reduction",
        "one of 2 parts of a row does not stay on chip",
    ),
    (
        map_shape(4096, 1024, reduced=(1,)),
        "split row reduction",
        "4096 rows are enough tasks for 264 blocks a wave",
    ),
    (
        map_shape(2, 16_384, reduced=(1,)),
        "split row reduction",
        "one block reads a row of 65536 B in less time than a barrier takes",
    ),
    (
        map_shape(100, 40_000, reduced=(1,)),
        "split row reduction",
        "one block keeps a row of 160000 B, and 100 rows occupy enough of 132 SMs",
    ),
    (
        map_shape(60, 100_000, reduced=(1,), schedule=Schedule(split=1)),
        "split row reduction",
        "the schedule asks for whole rows",
    ),
    (
        map_shape(4096, 1024, reduced=(1,)),
        "short rows, few threads each",
        "a row takes 256 accesses of 16 B, which coalesce",
    ),
    (
        map_shape(1000, 7, reduced=(1,)),
        "short rows, few threads each",
        "1000 rows leave threads idle even with 8 threads each",
    ),
    (
        map_shape(4096, 256, reduced=(0,)),
        "cooperative column reduction",
        "no array is read again after the reduction",
    ),
    (
        again(1024, 2048, reduced=(0,)),
        "cooperative column reduction",
        "a block keeps all 1024 rows of its columns",
    ),
    (
        again(1 << 22, 256, reduced=(0,)),
        "cooperative column reduction",
        "columns have 16384 parts, and 264 blocks run at once",
    ),
    (
        again(1 << 22, 256, reduced=(0,)),
        "column reduction kept in a block",
        "columns of 4194304 rows do not stay on chip: a block keeps 256",
    ),
    (
        again(100, 2048, reduced=(0,)),
        "column reduction kept in a block",
        "100 rows are less than two for each of 64 threads",
    ),
    (
        map_shape(128, 100_000, reduced=(0,)),
        "split column reduction",
        "one block sums 65536 B in less time than a barrier takes",
    ),
    (
        map_shape(100_000, 64, reduced=(0,), schedule=Schedule(split=1)),
        "split column reduction",
        "the schedule asks for whole columns",
    ),
    (
        map_shape(64, 256, 3136, reduced=(0, 2)),
        "cooperative reduction of neighbouring groups",
        "a block takes one run of 3136 elements of a row",
    ),
    (
        map_shape(64, 256, 3136, reduced=(0, 2), awaited=False),
        "cooperative reduction of a group",
        "no value of the space's size needs the sum, so no block has to wait for it",
    ),
    (
        map_shape(64, 16, 1 << 18, reduced=(0, 2)),
        "cooperative reduction of a group",
        "a run of 1048576 B does not stay on chip",
    ),
    (
        map_shape(32, 64, 56, reduced=(0, 2)),
        "split group reduction",
        "one block sums 7168 B in less time than a barrier takes",
    ),
    (
        scan(4096, 1000, along=1),
        "tiled scan, totals carried along",
        "a block holds all 1000 elements in registers",
    ),
    (
        scan(500, 1 << 20, along=1),
        "cooperative scan",
        "500 tasks occupy enough of 264 blocks a wave",
    ),
    (
        scan(4, 1 << 20, along=1, schedule=Schedule(split=1)),
        "cooperative scan",
        "the schedule asks for one block a row",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "mapping"), TAKEN, ids=[f"{k}: {n}" for k, n, _ in TAKEN])
def test_each_strategy_is_taken_for_some_shape(kind: str, name: str, mapping: Mapping) -> None:
    names = [strategy.name for strategy in LISTS[kind]]
    assert mapping.strategy == name
    assert [refused.strategy for refused in mapping.not_taken] == names[: names.index(name)]


def test_no_strategy_is_left_out() -> None:
    taken = {(kind, name) for kind, name, _ in TAKEN}
    assert taken == {(kind, s.name) for kind, found in LISTS.items() for s in found}


@pytest.mark.parametrize(("mapping", "name", "why"), REFUSED, ids=[f"{n}: {w}" for _, n, w in REFUSED])  # fmt: skip
def test_a_strategy_says_why_it_is_not_taken(mapping: Mapping, name: str, why: str) -> None:
    assert {refused.strategy: refused.why for refused in mapping.not_taken}[name] == why


def test_every_strategy_but_the_last_is_refused_somewhere() -> None:
    refused = {name for _, name, _ in REFUSED}
    assert refused >= {s.name for found in LISTS.values() for s in found[:-1]}


@pytest.mark.parametrize("kind", LISTS)
def test_the_last_strategy_always_applies(kind: str) -> None:
    assert LISTS[kind][-1].why_not is always
    assert all(strategy.why_not is not always for strategy in LISTS[kind][:-1])


def test_the_first_that_applies_is_taken() -> None:
    mapping = map_shape(64, 64)
    asked: list[str] = []

    def refuse(problem: str) -> str:
        asked.append(problem)
        return "it is even"

    strategies = [
        Strategy("odd", refuse, lambda _: mapping),
        Strategy("any", always, lambda _: mapping),
        Strategy("never reached", refuse, lambda _: mapping),
    ]
    found = take_first(strategies, "two")
    assert found.strategy == "any" and asked == ["two"]
    assert [(n.strategy, n.why) for n in found.not_taken] == [("odd", "it is even")]
    with pytest.raises(AssertionError, match="applies to every problem"):
        take_first(strategies[:1], "four")


def test_mappings_of_two_strategies_are_equal_if_their_numbers_are() -> None:
    """A plan is not searched again because another reason was given."""
    mapping = map_shape(64, 64)
    renamed = replace(mapping, strategy="another", not_taken=())
    assert renamed == mapping and hash(renamed) == hash(mapping)
    assert str(renamed) == str(mapping)
