"""Space of a running reduction -> Mapping: which thread has which elements, so that each is read once and in order.

Along contiguous elements the threads of a row hold vectors side by side and exchange their totals.  Along another
dimension a thread owns columns and walks down neighbouring rows of them.  What is longer than a block holds in
registers is cut into tiles, which the block takes one after the other and whose totals it carries along.
"""

from __future__ import annotations

from astitch.device.gpu import Gpu
from astitch.device.schedule import DEFAULT, Schedule
from astitch.graph.dimensions import Atoms
from astitch.thread_mapping import (
    COALESCED_LANES,
    MAX_ROW_ELEMENTS,
    WARP,
    Mapping,
    Space,
    ceil_div,
    choose_vector,
    power_of_two_at_least,
    size_of,
    threads_of_short_row,
)

MAX_STEPS = 16
"""Vectors of a thread that are scanned together; the nest over them is unrolled, so that they are registers."""

MAX_STATES = 64
"""Elements of a thread that are scanned together."""

COLUMN_BYTES, LINE_BYTES, SECTOR_BYTES = 8, 128, 32
"""What a thread reads of a row whose columns it scans, what its neighbours and it do at most, and at least."""

BLOCKS_PER_SM = 3
"""Blocks of an SM that wait for memory in turns, each loading a tile and then scanning it."""


def map_running(
    space: Space, gpu: Gpu, block: int, wave: int, schedule: Schedule = DEFAULT
) -> Mapping:
    """The mapping of a running reduction.

    block: threads in a block, a power of two.  wave: blocks that the GPU holds at once; 1: no teams.
    """
    along = tuple(a for a in space.atoms if a in space.reduced)
    first = space.atoms.index(along[0])
    outer, inner = space.atoms[:first], space.atoms[first + len(along) :]
    if inner:
        return _map_down_columns(space, outer, along, inner, gpu, block, wave, schedule)
    return _map_along_rows(space, outer, along, gpu, block, wave, schedule)


def _map_along_rows(
    space: Space, outer: Atoms, col: Atoms, gpu: Gpu, block: int, wave: int, schedule: Schedule
) -> Mapping:
    """Threads side by side; as few for a row as keep the GPU busy, so that they exchange little."""
    rows, cols = size_of(outer), size_of(col)
    vector = choose_vector(col, space.element_bytes, schedule.access_bytes)
    vectors = ceil_div(cols, vector)
    most_steps = max(min(MAX_ROW_ELEMENTS // vector, schedule.max_steps, MAX_STEPS), 1)
    most = min(block, power_of_two_at_least(vectors))
    threads = max(power_of_two_at_least(ceil_div(vectors, most_steps)), min(COALESCED_LANES, most))
    busy = gpu.sms * gpu.max_threads_per_sm // 2
    row_bytes = cols * space.element_bytes
    narrow = vectors <= WARP and vector * space.element_bytes <= 8
    if narrow and rows * COALESCED_LANES >= busy:
        threads = most = min(threads_of_short_row(vectors, row_bytes, most_steps), block)
    while threads < most and (
        rows * threads < busy or ceil_div(vectors, threads) * threads > vectors * 5 // 4
    ):
        threads *= 2
    threads = min(threads, block)
    rounds = ceil_div(vectors, threads * most_steps)
    steps = ceil_div(ceil_div(vectors, rounds), threads)
    tile = steps * threads * vector
    packed = block // threads
    reason = f"running reduction: {packed} rows a block, {threads} threads a row"
    abreast = 1
    if tile < cols:
        tiles = ceil_div(cols, tile)
        abreast = _blocks_of_team(space, rows, tiles, wave, schedule)
        reason = f"running reduction: a block a row, {_describe_rounds(tiles, abreast)}"
    return Mapping(
        outer,
        (),
        col,
        packed,
        1,
        threads,
        vector,
        1,
        tile,
        reason,
        carried="col" if tile < cols else "",
        backward=space.running == "backward",
        abreast=abreast,
        team=abreast > 1,
    )


def _blocks_of_team(space: Space, teams: int, tiles: int, wave: int, schedule: Schedule) -> int:
    """Blocks that work on tiles of one row, or of the same columns, side by side: 1 where rows fill the GPU."""
    if not space.parted or teams * 2 > wave or schedule.split == 1:
        return 1
    return min(schedule.split or wave, wave // teams, tiles)


def _describe_rounds(tiles: int, abreast: int) -> str:
    text = f"in {ceil_div(tiles, abreast)} rounds"
    return f"{text} of {abreast} blocks, which hand on what came before" if abreast > 1 else text


def _map_down_columns(
    space: Space,
    outer: Atoms,
    row: Atoms,
    col: Atoms,
    gpu: Gpu,
    block: int,
    wave: int,
    schedule: Schedule,
) -> Mapping:
    """Threads own columns; those that share them have neighbouring rows each."""
    rows, cols = size_of(row), size_of(col)
    vector = choose_vector(col, space.element_bytes, min(schedule.access_bytes, COLUMN_BYTES))
    vectors = ceil_div(cols, vector)
    width = vector * space.element_bytes
    col_threads = min(block, power_of_two_at_least(vectors), max(LINE_BYTES // width, 1))
    # As narrow as it takes to keep the GPU busy, but no narrower than what memory hands over.
    while (
        col_threads * width > SECTOR_BYTES
        and size_of(outer) * ceil_div(vectors, col_threads) < BLOCKS_PER_SM * gpu.sms
    ):
        col_threads //= 2
    most_steps = max(min(MAX_ROW_ELEMENTS // vector, MAX_STEPS), 1)
    steps = min(most_steps, power_of_two_at_least(rows))
    row_threads = min(block // col_threads, power_of_two_at_least(ceil_div(rows, steps)))
    packed = block // (col_threads * row_threads)
    tile = steps * row_threads
    reason = f"running reduction: {row_threads} x {steps} rows, {col_threads} threads wide"
    abreast = 1
    if tile < rows:
        tiles = ceil_div(rows, tile)
        abreast = _blocks_of_team(
            space, size_of(outer) * ceil_div(vectors, col_threads), tiles, wave, schedule
        )
        reason += f", {_describe_rounds(tiles, abreast)}"
    return Mapping(
        outer,
        row,
        col,
        packed,
        row_threads,
        col_threads,
        vector,
        tile,
        col_threads * vector,
        reason,
        carried="row" if tile < rows else "",
        backward=space.running == "backward",
        abreast=abreast,
        team=abreast > 1,
        rows_together=True,
    )


def why_not_in_order(space: Space, mapping: Mapping) -> str | None:
    """None when the threads of a mapping that walks over the space of a running reduction can scan it."""
    along = tuple(a for a in space.atoms if a in space.reduced)
    if not {*mapping.row, *mapping.col} <= {*space.atoms}:
        return "threads that walk side by side would each scan the same"
    if mapping.row_steps * mapping.col_steps > MAX_STEPS:
        return f"a thread has {mapping.row_steps * mapping.col_steps} vectors, {MAX_STEPS} are scanned together"
    if mapping.row_steps * mapping.col_steps * mapping.vector > MAX_STATES:
        return f"a thread has more than the {MAX_STATES} elements that are scanned together"
    if mapping.carried and mapping.backward != (space.running == "backward"):
        return "the rounds of the mapping run the other way"
    if mapping.abreast > 1 and not space.parted:
        return "what the blocks of a team have is joined in any order"
    if mapping.col == along and not mapping.row:
        if mapping.col_tiles > 1 and mapping.carried != "col":
            return "the blocks that share a row do not hand on their totals"
        return None
    if mapping.row != along:
        return "it does not scan along an axis of the mapping"
    if mapping.row_tiles > 1 and mapping.carried != "row":
        return "the blocks that share a column do not hand on their totals"
    if mapping.row_threads > 1 and (not mapping.rows_together or mapping.packed_inside):
        return "the threads that share a column have no neighbouring rows"
    return None
