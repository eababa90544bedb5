"""Thread mappings: the law (each element exactly once) for random spaces, and the paper's cases."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astitch.device.gpu import PRESETS, preset
from astitch.device.schedule import Schedule
from astitch.graph.index import Symbol
from astitch.thread_mapping import map_space, why_not_aligned
from astitch.tiling.columns import BLOCK_GROUP_BYTES, BLOCK_GROUP_LINE_BYTES
from astitch.tiling.groups import NEIGHBOUR_BYTES
from astitch.tiling.rows import MAX_ROW_ELEMENTS
from astitch.tiling.space import (
    SECTOR_BYTES,
    Mapping,
    Space,
    ceil_div,
    choose_vector,
    power_of_two_at_least,
)
from astitch.tiling.strategy import BLOCK_GROUP_THREAD_BYTES, SPLIT_MIN_BYTES

LARGEST = 5000
H100 = preset("h100")


def space(
    shape: tuple[int, ...], reduced: tuple[int, ...] = (), element_bytes: int = 4, held: int = 0
) -> Space:
    atoms = tuple(Symbol(f"d{d}", n) for d, n in enumerate(shape))
    return Space(atoms, frozenset(atoms[d] for d in reduced), element_bytes, held, held, held > 0)


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def covered_elements(mapping: Mapping) -> dict[tuple[int, int, int], int]:
    """How often each (outer, row, col) position is visited: the law says once each."""
    seen: dict[tuple[int, int, int], int] = {}
    for task in range(mapping.tasks):
        for thread in range(mapping.block):
            for element in mapping.elements(task, thread):
                seen[element] = seen.get(element, 0) + 1
    return seen


def check_law(space: Space, mapping: Mapping, block: int) -> None:
    size = math.prod(a.extent for a in space.atoms)
    seen = covered_elements(mapping)
    assert len(seen) == size
    assert set(seen.values()) <= {1}
    for outer, row, col in seen:
        assert outer < mapping.outer_size and row < mapping.row_size and col < mapping.col_size
    axes = (*mapping.outer, *mapping.row, *mapping.col)
    assert sorted(axes, key=str) == sorted(space.atoms, key=str)
    assert mapping.block == block
    threads = (mapping.outer_threads, mapping.row_threads, mapping.col_threads, mapping.vector)
    assert all(is_power_of_two(n) for n in threads)
    assert mapping.vector * space.element_bytes <= 16
    if mapping.col:
        assert mapping.col[-1].extent % mapping.vector == 0
        assert mapping.col_tile % mapping.vector == 0
    for axis in (mapping.outer, mapping.row, mapping.col):
        inside = [a in space.reduced for a in axis]
        assert len(set(inside)) <= 1, "an axis is wholly kept or wholly reduced"
        assert list(axis) == [a for a in space.atoms if a in axis], "major to minor"
    assert mapping.reason


@st.composite
def spaces(draw: st.DrawFn, kinds: str = "ercm") -> Space:
    """e: element-wise, r: row-reduce, c: column-reduce, m: anything."""
    rank = draw(st.integers(1, 4))
    shape: list[int] = []
    for _ in range(rank):
        room = LARGEST // math.prod(shape)
        extents = st.one_of(st.integers(2, 9), st.sampled_from((16, 32, 64, 100, 128, 1000, 4096)))
        extent = draw(extents)
        shape.append(min(extent, room))
    shape = [n for n in shape if n > 1]
    dims = range(len(shape))
    match draw(st.sampled_from(kinds)):
        case "e":
            reduced: set[int] = set()
        case "r":
            reduced = set(list(dims)[-draw(st.integers(1, len(shape))) :]) if shape else set()
        case "c":
            reduced = set(list(dims)[: draw(st.integers(0, len(shape) - 1))]) if shape else set()
        case _:
            reduced = {d for d in dims if draw(st.booleans())}
    found = space(tuple(shape), tuple(reduced), draw(st.sampled_from((1, 2, 4, 8))))
    return replace(found, across=draw(st.sampled_from((None, *found.atoms[:-1]))))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    spaces(),
    st.sampled_from(sorted(PRESETS)),
    st.sampled_from((32, 64, 128, 256, 512, 1024)),
    st.integers(1, 400),
)
def test_every_element_belongs_to_exactly_one_thread(
    space: Space, gpu: str, block: int, wave: int
) -> None:
    mapping = map_space(space, preset(gpu), block, wave)
    check_law(space, mapping, block)
    assert why_not_aligned(space, mapping) is None


@pytest.mark.parametrize(
    ("shape", "across", "element_bytes", "threads"),
    [
        ((8192, 8192), 0, 4, (1, 64, 4)),
        ((8192, 8192), 0, 2, (1, 128, 2)),
        ((8, 128, 12, 64), 1, 4, (1, 64, 4)),
        ((16, 4, 4096), 1, 4, (8, 4, 8)),  # four elements of a sector are there
        ((100, 32, 10), 1, 4, (2, 32, 4)),
        ((4096, 1001), 0, 4, (1, 32, 8)),  # no wide accesses: eight neighbours fill a sector
    ],
)
@pytest.mark.parametrize("reduced", [False, True])
def test_a_warp_covers_whole_sectors_of_two_orders(
    shape: tuple[int, ...],
    across: int,
    element_bytes: int,
    threads: tuple[int, int, int],
    reduced: bool,
) -> None:
    flat = space(shape, tuple(range(len(shape))) if reduced else (), element_bytes)
    found = map_space(replace(flat, across=flat.atoms[across]), H100, 256, 264)
    assert (found.outer_threads, found.row_threads, found.col_threads) == threads
    assert found.row == (flat.atoms[across],) and found.outer == flat.atoms[:across]
    awaited = replace(flat, across=flat.atoms[across], awaited=True)
    assert bool(map_space(awaited, H100, 256, 264).row) != reduced


def test_what_one_block_sums_alone_stays_with_it() -> None:
    small = space((100, 128), (0, 1))
    across = replace(small, across=small.atoms[0])
    assert map_space(across, H100, 256, 264) == map_space(small, H100, 256, 264)
    assert map_space(small, H100, 256, 264).tasks == 1


def test_short_rows_are_in_one_warp_anyway() -> None:
    flat = space((100_000, 3))
    across = replace(flat, across=flat.atoms[0])
    assert map_space(across, H100, 256, 264) == map_space(flat, H100, 256, 264)


SPLITS = [
    (space((2, 4999), (1,)), 32),
    (space((4998,), (0,)), 32),
    (space((4999,), (0,), 2), 64),
    (space((2500, 2), (0,)), 32),
    (space((1250, 4), (0,), 8), 64),
    (space((700, 7), (0,)), 128),
    (space((2, 300, 8), (1,)), 32),
    (space((300, 2, 8), (0, 2)), 64),
    (space((3, 200, 8), (0, 1, 2)), 32),
]


@pytest.mark.parametrize("wave", [8, 33, 160])
@pytest.mark.parametrize(("space", "block"), SPLITS)
def test_the_law_holds_where_reductions_are_split(space: Space, block: int, wave: int) -> None:
    check_law(space, map_space(space, preset("v100"), block, wave), block)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data())
def test_the_law_needs_nothing_but_the_numbers(data: st.DataObject) -> None:
    """Any tiles and threads that fit the axes keep the law, not only those that map_space picks."""
    shape = [data.draw(st.integers(1, n)) for n in (7, 9, 40)]
    vector = data.draw(st.sampled_from([v for v in (1, 2, 4) if shape[2] % v == 0]))
    row_threads = data.draw(st.sampled_from((1, 2, 4)))
    mapping = Mapping(
        *((Symbol(f"d{d}", n),) if n > 1 else () for d, n in enumerate(shape)),
        data.draw(st.sampled_from((1, 2, 4))),
        row_threads,
        data.draw(st.sampled_from((1, 2, 8))),
        vector,
        row_threads * data.draw(st.integers(1, 4)),
        vector * data.draw(st.integers(1, 20)),
        packed_inside=data.draw(st.booleans()),
        rows_last=data.draw(st.booleans()),
    )
    seen = covered_elements(mapping)
    assert len(seen) == math.prod(shape)
    assert set(seen.values()) == {1}


GROUPS = [
    (space((3, 50, 5, 4), (1, 3)), 32),
    (space((2, 61, 3, 2), (1, 3), 2), 64),
    (space((4, 40, 8), (1,)), 64),
    (space((2, 30, 7, 3), (1, 3)), 128),
    (space((90, 6, 8), (0, 2)), 32),
    (space((2, 17_000), (1,), held=1), 512),
    (space((3, 8209), (1,), 8), 256),
    (space((150, 70), (0,), held=2), 64),
    (space((2, 300, 40), (1,), held=1), 128),
    (space((600, 9), (0,), 2, held=1), 128),
    (space((2, 500, 16, 4), (1, 3)), 64),
]


@pytest.mark.parametrize("wave", [4, 16, 40, 264])
@pytest.mark.parametrize(("space", "block"), GROUPS)
def test_the_law_holds_for_groups_and_block_groups(space: Space, block: int, wave: int) -> None:
    mapping = map_space(space, preset("h100"), block, wave)
    check_law(space, mapping, block)
    block_groups = mapping.outer_tiles * (mapping.col_tiles if mapping.rows_last else 1)
    assert mapping.tasks == block_groups * mapping.parts
    if mapping.cooperative:
        assert 1 < mapping.parts <= wave
        held = max(BLOCK_GROUP_THREAD_BYTES, mapping.vector * space.element_bytes)
        assert mapping.elements_per_thread * space.element_bytes <= held
        check_block_groups(mapping, space)
    if mapping.packed_inside:
        assert mapping.outer_threads > 1 and set(mapping.row) <= space.reduced


def check_block_groups(mapping: Mapping, space: Space) -> None:
    """Neighbouring tasks, as many as a block group has blocks, hold all that a result sums; no other block group has
    any of it."""
    axes = (mapping.outer, mapping.row, mapping.col)
    kept = [bool(axis) and axis[0] not in space.reduced for axis in axes]
    block_group_of: dict[tuple[int, ...], int] = {}
    for task in range(mapping.tasks):
        for thread in range(mapping.block):
            for element in mapping.elements(task, thread):
                result = tuple(at for at, keep in zip(element, kept, strict=True) if keep)
                assert (
                    block_group_of.setdefault(result, task // mapping.parts)
                    == task // mapping.parts
                )


def test_groups_and_block_groups_are_among_them() -> None:
    found = [map_space(s, preset("h100"), b, w) for s, b in GROUPS for w in (16, 40, 264)]
    assert any(m.cooperative and m.packed_inside for m in found)
    assert any(m.cooperative and not m.packed_inside and not m.rows_last for m in found)
    assert any(m.cooperative and m.rows_last and m.col_tiles > 1 for m in found)
    assert any(m.packed_inside and not m.cooperative for m in found)


def test_rows_last_orders_the_tasks() -> None:
    """Neighbouring tasks share a column tile: those of a block group."""
    axes = tuple((Symbol(name, n),) for name, n in (("o", 2), ("r", 3), ("c", 2)))
    columns_last = Mapping(*axes, 1, 1, 1, 1, 1, 1)
    rows_last = replace(columns_last, rows_last=True)
    of_task = {
        m: [next(iter(m.elements(t, 0))) for t in range(12)] for m in (columns_last, rows_last)
    }
    assert of_task[columns_last] == [
        (o, r, c) for o in range(2) for r in range(3) for c in range(2)
    ]
    assert of_task[rows_last] == [(o, r, c) for o in range(2) for c in range(2) for r in range(3)]
    assert (columns_last.parts, rows_last.parts) == (6, 3)


def test_packed_inside_orders_the_threads() -> None:
    """Neighbouring threads stand at neighbouring elements of memory: (row, outer, col) instead of (outer, row, col)."""
    axes = tuple((Symbol(name, n),) for name, n in (("o", 4), ("r", 2), ("c", 2)))
    around = Mapping(*axes, 4, 2, 2, 1, 2, 2)
    inside = Mapping(*axes, 4, 2, 2, 1, 2, 2, packed_inside=True)
    of_thread = {m: [next(iter(m.elements(0, t))) for t in range(16)] for m in (around, inside)}
    assert of_thread[around] == [(o, r, c) for o in range(4) for r in range(2) for c in range(2)]
    assert of_thread[inside] == [(o, r, c) for r in range(2) for o in range(4) for c in range(2)]


# ---- the paper's cases


def test_short_rows_are_packed_into_blocks() -> None:
    """<750000,32> (DIEN): XLA's block per row has 32 threads."""
    gpu = preset("v100")
    mapping = map_space(space((750_000, 32), (1,)), gpu, 1024, 160)
    threads_a_row = mapping.col_threads
    assert threads_a_row <= 32  # a reduction within a warp: no shared memory, no barrier
    assert mapping.outer_threads == 1024 // threads_a_row >= 32
    assert mapping.tasks == ceil_div(750_000, mapping.outer_threads) > 160  # vertical packing
    assert mapping.reason == (
        f"row-reduce: {mapping.outer_threads} rows a block, {threads_a_row} threads a row"
    )
    assert mapping.col_tile == 32


def test_few_long_rows_are_split() -> None:
    """<64,30000> (Transformer): a block per row uses 64 of 160 blocks; two a row use 128."""
    mapping = map_space(space((64, 30_000), (1,)), preset("v100"), 1024, 160)
    assert mapping.col_tiles == 2
    assert mapping.tasks == 128
    assert mapping.reason.startswith(
        "row-reduce, 64 rows < 160 blocks a wave: each row split over 2 blocks"
    )
    assert mapping.outer_threads == 1
    assert mapping.vector == 4


def test_parts_that_stay_on_chip_meet() -> None:
    """A block group: every block holds a part of the row until all of them are summed."""
    mapping = map_space(space((60, 100_000), (1,), held=1), preset("h100"), 512, 264)
    assert mapping.cooperative
    assert mapping.parts == mapping.col_tiles > 1
    assert mapping.elements_per_thread <= MAX_ROW_ELEMENTS
    assert mapping.parts * 2 <= 264, "several block groups side by side"
    assert mapping.reason.endswith(
        f"split over {mapping.parts} blocks that keep their parts and meet"
    )
    too_long = map_space(space((2, 1 << 24), (1,), held=1), preset("h100"), 512, 264)
    assert not too_long.cooperative and too_long.col_tiles > 1
    as_asked = map_space(
        space((60, 100_000), (1,), held=1), preset("h100"), 512, 264, Schedule(split=2)
    )
    assert not as_asked.cooperative and as_asked.col_tiles == 2, "two parts are too long to stay"
    summed = map_space(space((60, 100_000), (1,)), preset("h100"), 512, 264)
    assert not summed.cooperative and summed.col_tiles > 1, "nothing is kept, so nobody waits"


def test_groups_whose_neighbours_are_neighbours_in_memory_are_packed_inside() -> None:
    """Group norm of NHWC: the channels of a group are few, those of the next group follow them."""
    x = space((16, 4096, 32, 10), (1, 3))
    mapping = map_space(x, preset("h100"), 512, 264)
    assert mapping.packed_inside and mapping.cooperative
    assert (mapping.outer_size, mapping.row_size, mapping.col_size) == (16 * 32, 4096, 10)
    assert mapping.outer_threads * mapping.col_threads == 32, "a warp reads one run of memory"
    assert mapping.parts == mapping.row_tiles > 1
    apart = map_space(space((16, 32, 4096, 10), (2, 3)), preset("h100"), 512, 264)
    assert not apart.packed_inside, "its groups lie far from each other"


def test_short_rows_are_never_split() -> None:
    gpu = preset("h100")
    whole = map_space(space((2, SPLIT_MIN_BYTES // 4), (1,)), gpu, 512, 264)
    assert whole.col_tiles == 1
    assert whole.reason == "row-reduce: a block a row"
    assert map_space(space((2, SPLIT_MIN_BYTES * 2), (1,)), gpu, 512, 264).col_tiles > 1


def test_enough_rows_are_never_split() -> None:
    mapping = map_space(space((264, 100_000), (1,)), preset("h100"), 512, 264)
    assert mapping.col_tiles == 1
    assert mapping.tasks == 264


def test_a_tall_column_reduce_splits_its_rows() -> None:
    mapping = map_space(space((100_000, 64), (0,)), preset("h100"), 512, 264)
    assert mapping.col_threads * mapping.vector == 64
    assert mapping.row_threads == 512 // mapping.col_threads
    assert mapping.row_tiles > 100
    assert mapping.tasks <= 264
    assert "column-reduce" in mapping.reason
    assert f"rows split over {mapping.row_tiles} blocks" in mapping.reason


def test_columns_that_are_needed_again_are_a_block_group_s() -> None:
    """Its blocks share some columns, a run of memory in each row, and each keeps its rows of them."""
    mapping = map_space(space((4096, 8192), (0,), held=1), preset("h100"), 512, 264)
    assert mapping.cooperative and mapping.rows_last and mapping.parts == mapping.row_tiles > 1
    assert (
        mapping.vector * 4 <= BLOCK_GROUP_BYTES and mapping.col_tile * 4 == BLOCK_GROUP_LINE_BYTES
    )
    assert mapping.elements_per_thread <= MAX_ROW_ELEMENTS
    assert mapping.reason.startswith("column-reduce: ")
    assert mapping.reason.endswith(
        f"rows split over {mapping.parts} blocks that keep their parts and meet"
    )
    sums_only = map_space(space((4096, 256), (0,)), preset("h100"), 512, 264)
    assert not sums_only.cooperative, "what is not read again need not stay"
    too_tall = map_space(space((1 << 22, 256), (0,), held=1), preset("h100"), 512, 264)
    assert not too_tall.cooperative and too_tall.row_tiles > 1
    split = map_space(
        space((4096, 8192), (0,), held=1), preset("h100"), 512, 264, Schedule(split=18)
    )
    assert split.cooperative and 16 < split.parts <= 18


def test_few_columns_are_kept_by_narrow_blocks() -> None:
    """Where all blocks run at once: what a meeting takes is more than narrow accesses lose."""
    gpu = preset("h100")
    kept = map_space(space((1024, 2048), (0,), held=1), gpu, 512, 264)
    assert not kept.cooperative and kept.tasks == 256 and kept.col_tile * 4 == SECTOR_BYTES
    assert kept.row_tile == 1024 and kept.elements_per_thread <= MAX_ROW_ELEMENTS
    few = map_space(space((1568, 64), (0,), held=1), gpu, 512, 264)
    assert not few.cooperative and few.tasks == 8, "64 KB of a block need not stay in registers"
    tall = map_space(space((4096, 256), (0,), held=1), gpu, 512, 264)
    assert tall.cooperative and tall.col_tile * 4 == SECTOR_BYTES and tall.tasks <= 264
    short = map_space(space((300, 2048), (0,), held=1), gpu, 512, 264)
    assert not short.cooperative and short.row_steps == 5, "no more steps than rows"
    flat = map_space(space((100, 2048), (0,), held=1), gpu, 512, 264)
    assert flat.vector == 4, "a thread has less than two rows of so narrow a block"


@pytest.mark.parametrize(("columns", "wanted"), [(256, 8), (250, 16), (33, 16), (4096, 32)])
def test_few_columns_are_summed_by_narrow_blocks(columns: int, wanted: int) -> None:
    """Blocks of a sector of each row, or of two where rows begin anywhere, need not be split over rows."""
    gpu = preset("h100")
    mapping = map_space(space((512, columns), (0,)), gpu, 256, 1056)
    assert mapping.row_tiles == 1 and mapping.tasks <= gpu.sms
    assert mapping.col_tile == wanted
    split = map_space(space((512, columns), (0,)), gpu, 256, 1056, Schedule(split=2))
    assert split.row_tiles == 2, "as asked"
    tall = map_space(space((1 << 16, columns), (0,)), gpu, 256, 1056)
    assert tall.row_tiles > 1 and tall.col_tile * 4 >= min(columns * 4, 128)


def test_groups_without_neighbours_are_a_block_group_s_if_they_are_awaited() -> None:
    gpu = preset("h100")
    channels = map_space(space((64, 256, 3136), (0, 2), held=1), gpu, 512, 264)
    assert channels.cooperative and channels.outer_threads == 1 and not channels.packed_inside
    assert channels.parts == channels.row_tiles == 32 and channels.col_tiles == 1
    assert "neighbours" not in channels.reason
    alone = replace(space((64, 256, 3136), (0, 2), held=1), awaited=False)
    assert not map_space(alone, gpu, 512, 264).cooperative
    long = map_space(space((64, 16, 1 << 18), (0, 2), held=1), gpu, 512, 264)
    assert not long.cooperative, "a run of a megabyte does not stay on chip"


def test_neighbours_of_groups_are_few_where_all_blocks_run_at_once() -> None:
    gpu = preset("h100")
    groups = map_space(space((8, 1024, 32, 8), (1, 3), held=1), gpu, 512, 264)
    assert not groups.cooperative and groups.tasks == 256 and not groups.packed_inside
    many = map_space(space((32, 4096, 32, 16), (1, 3), held=1), gpu, 512, 264)
    assert many.cooperative and many.outer_threads * 16 * 4 == NEIGHBOUR_BYTES
    narrow = map_space(space((32, 4096, 32, 16), (1, 3), 2, held=1), gpu, 512, 264)
    assert narrow.outer_threads * 16 * 2 == NEIGHBOUR_BYTES
    assert narrow.elements_per_thread * 2 == BLOCK_GROUP_THREAD_BYTES


def test_a_wide_column_reduce_keeps_its_rows() -> None:
    mapping = map_space(space((128, 100_000), (0,)), preset("h100"), 512, 264)
    assert mapping.row_tiles == 1
    assert mapping.tasks == ceil_div(100_000, mapping.col_tile)
    assert mapping.reason.startswith("column-reduce: ")
    assert "split" not in mapping.reason


def test_a_mixed_reduce_has_rows_and_columns() -> None:
    mapping = map_space(space((32, 64, 56), (0, 2)), preset("h100"), 512, 264)
    assert [a.extent for a in mapping.outer] == [64]
    assert [a.extent for a in mapping.row] == [32]
    assert [a.extent for a in mapping.col] == [56]
    assert mapping.reason.startswith("mixed reduce: ")


def test_a_full_reduce_spreads_over_the_device() -> None:
    mapping = map_space(space((1000, 1000), (0, 1)), preset("h100"), 512, 264)
    assert mapping.outer == mapping.row == ()
    assert mapping.col_tiles > 200


def test_flat_tiles_take_more_steps_only_when_the_device_is_full() -> None:
    gpu = preset("h100")
    small, large = (map_space(space((n,)), gpu, 256, 1056) for n in (1 << 20, 1 << 26))
    assert small.col_steps == 1 < large.col_steps
    several = map_space(replace(space((1 << 26,)), arrays=3), gpu, 256, 1056)
    assert several.col_steps == 1, "three loads are on their way as it is"
    assert small.tasks == (1 << 20) // (256 * 4)
    assert large.reason == "element-wise: flat tiles"


@pytest.mark.parametrize(
    ("minor", "element_bytes", "vector"),
    [(128, 4, 4), (128, 2, 8), (128, 1, 16), (128, 8, 2), (6, 4, 2), (7, 4, 1), (12, 2, 4), (4, 1, 4)],
)  # fmt: skip
def test_vectors_divide_the_contiguous_extent(minor: int, element_bytes: int, vector: int) -> None:
    assert choose_vector((Symbol("a", 3), Symbol("b", minor)), element_bytes) == vector


def test_nothing_contiguous_is_read_one_by_one() -> None:
    assert choose_vector((), 4) == 1
    assert map_space(space(()), preset("h100"), 256, 100).tasks == 1


@pytest.mark.parametrize(
    ("n", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (1024, 1024), (1025, 2048)]
)
def test_power_of_two_at_least(n: int, power: int) -> None:
    assert power_of_two_at_least(n) == power


# ---- propagation of a mapping to other roots

A, B, C, D = (Symbol(name, n) for name, n in (("a", 8), ("b", 16), ("c", 32), ("d", 4)))
ROWS = Mapping((A, B), (), (C,), 8, 1, 32, 1, 1, 32)
COLUMNS = Mapping((A,), (B,), (C,), 1, 8, 32, 1, 16, 32)


@pytest.mark.parametrize(
    ("mapping", "root", "reason"),
    [
        (ROWS, Space((A, B, C), frozenset({C}), 4), None),
        (ROWS, Space((A, B, C), frozenset({A, B}), 4), None),
        (ROWS, Space((A, B), frozenset(), 4), None),
        (ROWS, Space((A, B, D), frozenset(), 4), "it has dimensions that the mapping does not walk over"),
        (ROWS, Space((A, C), frozenset(), 4), "it has only a part of the outer axis"),
        (ROWS, Space((C,), frozenset(), 4), "it would be recomputed for every outer index"),
        (ROWS, Space((A, B, C), frozenset({A}), 4), "it reduces only a part of the outer axis"),
        (COLUMNS, Space((A, B, C), frozenset({B}), 4), None),
        (COLUMNS, Space((A, C), frozenset(), 4), None),
        (COLUMNS, Space((B, C), frozenset(), 4), "it would be recomputed for every outer index"),
    ],
)  # fmt: skip
def test_who_may_use_a_mapping(mapping: Mapping, root: Space, reason: str | None) -> None:
    assert why_not_aligned(root, mapping) == reason


def test_a_mapping_prints_its_numbers() -> None:
    assert str(map_space(space((64, 30_000), (1,), held=1), preset("v100"), 1024, 160)) == (
        "outer 64 / 1 threads, row 1 / 1 threads x 1, col 30000 / 1024 threads x 4 x 4; 128 tasks; "
        "row-reduce, 64 rows < 160 blocks a wave: each row split over 2 blocks that keep their parts and meet"
    )
