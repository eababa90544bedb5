"""Strategies of mixed reduces: strided rows and the contiguous columns of a group are summed.

The dimensions between them are kept.  Normalizations are the usual case: group norm, and batch norm of channels first.
A group that is needed again stays on chip, its rows shared by the members of a block group.
"""

from __future__ import annotations

from astitch.graph.dimensions import Atoms
from astitch.tiling.columns import (
    ELEMENTS_TOGETHER,
    BlockTile,
    Columns,
    map_tile,
    rows_of_part,
    why_not_split,
)
from astitch.tiling.space import (
    SECTOR_BYTES,
    Mapping,
    ceil_div,
    choose_vector,
    power_of_two_at_least,
)
from astitch.tiling.strategy import BLOCK_GROUP_THREAD_BYTES, Strategy, always

NEIGHBOUR_BYTES = 256
"""Bytes of neighbouring rows that a block walks over side by side: as few as keep the memory fast.  A member of a block
group exchanges a part for each row with as many other members.  (Group-norm f32 32x64x64x512 by hand: 256 bytes 187 us,
512 192, 2048 233.)  Where all blocks run at once nothing hides the meetings: then as little as a sector."""


def _is_beside(outer: Atoms, col: Atoms, atoms: Atoms) -> bool:
    """Do the last outer atom and the columns lie side by side in memory?"""
    return bool(outer and col) and atoms.index(col[0]) == atoms.index(outer[-1]) + 1


def _tile_groups(problem: Columns) -> BlockTile:
    """Threads for the columns; then for neighbours on the outer axis, until an access of the block is full; then for
    rows."""
    space, block = problem.space, problem.block
    vector = choose_vector(problem.col, space.element_bytes, space.widest(problem.schedule))
    vectors = ceil_div(problem.cols, vector)
    together = max(ELEMENTS_TOGETHER // vector, 2)
    col_threads = min(block, power_of_two_at_least(vectors))
    col_tile = col_threads * vector * ceil_div(vectors, col_threads)
    most_rows = power_of_two_at_least(problem.rows)

    def pack(packed: int) -> BlockTile:
        row_threads = min(block // (col_threads * packed), most_rows)
        outer_threads = block // (col_threads * row_threads)
        return BlockTile(
            outer_threads, row_threads, col_threads, vector, col_tile, together, packed
        )

    if not _is_beside(problem.outer, problem.col, space.atoms):
        return pack(1)
    packed = max(NEIGHBOUR_BYTES // (col_threads * vector * space.element_bytes), 1)
    packed = min(packed, block // col_threads, power_of_two_at_least(problem.outer[-1].extent))
    tile = pack(packed)
    # Fewer neighbours are more blocks: as long as all of them run at once.
    while (
        tile.packed > 1
        and tile.packed // 2 * col_tile * space.element_bytes >= SECTOR_BYTES
        and tile.count(problem) * _parts(problem, tile)[1] <= problem.wave
    ):
        tile = pack(tile.packed // 2)
    return tile


def _parts(problem: Columns, tile: BlockTile) -> tuple[int, int]:
    """(rows that a member of a block group keeps, members)"""
    return rows_of_part(problem, tile.row_threads, tile.col_tile // tile.col_threads)


def _why_not_cooperative(problem: Columns, tile: BlockTile) -> str | None:
    _, parts = _parts(problem, tile)
    split = problem.schedule.split
    if parts == 1:
        return f"a block keeps all {problem.rows} rows of a group"
    if parts > problem.wave:
        return f"a group has {parts} parts, and {problem.wave} blocks run at once"
    if split is not None and parts > 2 * split:
        return f"{parts} parts stay on chip, and the schedule asks for {split}"
    return None


def _why_not_neighbours(problem: Columns) -> str | None:
    tile = _tile_groups(problem)
    if not _is_beside(problem.outer, problem.col, problem.space.atoms):
        return "groups do not lie side by side in memory"
    if tile.packed == 1:
        return f"a block takes one run of {problem.cols} elements of a row"
    return _why_not_cooperative(problem, tile)


def _why_not_alone(problem: Columns) -> str | None:
    """A group whose runs are long has no neighbours beside it; a run that is too long does not stay on chip."""
    tile = _tile_groups(problem)
    run_bytes = tile.col_tile * problem.space.element_bytes
    if tile.outer_threads > 1:
        return f"a block takes {tile.outer_threads} groups at once"
    if run_bytes > 2 * BLOCK_GROUP_THREAD_BYTES * problem.block:
        return f"a run of {run_bytes} B does not stay on chip"
    if not problem.space.awaited:
        return "no value of the space's size needs the sum, so no block has to wait for it"
    return _why_not_cooperative(problem, tile)


def _map_cooperative(problem: Columns) -> Mapping:
    tile = _tile_groups(problem)
    held, parts = _parts(problem, tile)
    beside = f" x {tile.outer_threads} neighbours" if tile.packed > 1 else ""
    reason = (
        f"mixed reduce: {tile.row_threads} rows{beside} x {tile.col_threads} threads a block, "
        f"rows split over {parts} blocks that keep their parts and meet"
    )
    return tile.map(problem, held, reason, cooperative=True)


def _why_groups_not_split(problem: Columns) -> str | None:
    return why_not_split(problem, _tile_groups(problem))


def _map_groups(problem: Columns) -> Mapping:
    return map_tile(problem, _tile_groups(problem))


GROUPS: tuple[Strategy[Columns], ...] = (
    Strategy("cooperative reduction of neighbouring groups", _why_not_neighbours, _map_cooperative),
    Strategy("cooperative reduction of a group", _why_not_alone, _map_cooperative),
    Strategy("split group reduction", _why_groups_not_split, _map_groups),
    Strategy("group reduction within a block", always, _map_groups),
)
