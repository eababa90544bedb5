"""Strategies of running reductions (cumsum, cummax ..): each element is read once, and in order.

Along contiguous elements the threads of a row hold vectors side by side and exchange their totals.  Along another
dimension a thread owns columns and walks down neighbouring rows of them.  What is longer than a block holds in
registers is cut into tiles.  A block takes one after the other and carries the total along, or blocks take as many at
once and hand the totals on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from astitch.graph.dimensions import Atoms
from astitch.tiling.rows import (
    COALESCED_LANES,
    MAX_ROW_ELEMENTS,
    is_short_row,
    threads_of_short_row,
)
from astitch.tiling.space import (
    LINE_BYTES,
    SECTOR_BYTES,
    WARP,
    Mapping,
    Space,
    ceil_div,
    choose_vector,
    power_of_two_at_least,
    size_of,
)
from astitch.tiling.strategy import Request, Strategy, always

MAX_STEPS = 16
"""Vectors of a thread that are scanned together; the nest over them is unrolled, so that they are registers."""

MAX_STATES = 64
"""Elements of a thread that are scanned together."""

SORTED_BY_THREAD = 8
"""Elements of a thread that sorts a row with others."""

COLUMN_BYTES = 8
"""Bytes that a thread reads of a row whose columns it scans.  With its neighbours it reads a line at most, a sector at
least."""

BLOCKS_PER_SM = 3
"""Blocks of an SM that wait for memory in turns, each loading a tile and then scanning it."""


@dataclass(frozen=True, slots=True)
class Scan(Request):
    """A running reduction and the tile that a block holds in registers.

    axis: that of the Mapping along which it runs: columns side by side, or down the rows.
    length: elements along it.  tile: those of a tile.  packed, row_threads, col_threads: threads of a block.
    sequences: tasks that need no total of each other's, where a task has all tiles of its row or of its columns.
    """

    axis: Literal["row", "col"]
    outer: Atoms
    row: Atoms
    col: Atoms
    packed: int
    row_threads: int
    col_threads: int
    vector: int
    tile: int
    sequences: int

    @property
    def length(self) -> int:
        return size_of(self.row if self.axis == "row" else self.col)

    @property
    def tiles(self) -> int:
        return ceil_div(self.length, self.tile)

    @property
    def abreast(self) -> int:
        """Tiles that cooperating blocks scan at the same time."""
        return min(self.schedule.split or self.wave, self.wave // self.sequences, self.tiles)


def describe_scan(request: Request) -> Scan:
    """The scan of a space, along its contiguous dimensions or down its columns."""
    space = request.space
    along = tuple(a for a in space.atoms if a in space.reduced)
    first = space.atoms.index(along[0])
    outer, inner = space.atoms[:first], space.atoms[first + len(along) :]
    if space.running == "sorted":
        return _sort_rows(request, outer, along)
    if inner:
        return _scan_down_columns(request, outer, along, inner)
    return _scan_along_rows(request, outer, along)


def _scan_along_rows(request: Request, outer: Atoms, col: Atoms) -> Scan:
    """Threads side by side; as few for a row as keep the GPU busy, so that they exchange little."""
    space, block, schedule = request.space, request.block, request.schedule
    rows, cols = size_of(outer), size_of(col)
    vector = choose_vector(col, space.element_bytes, schedule.access_bytes)
    vectors = ceil_div(cols, vector)
    most_steps = max(min(MAX_ROW_ELEMENTS // vector, schedule.max_steps, MAX_STEPS), 1)
    most = min(block, power_of_two_at_least(vectors))
    threads = max(power_of_two_at_least(ceil_div(vectors, most_steps)), min(COALESCED_LANES, most))
    busy = request.busy_threads
    short = is_short_row(vectors, vector * space.element_bytes)
    if short and rows * COALESCED_LANES >= busy:
        row_bytes = cols * space.element_bytes
        threads = most = min(threads_of_short_row(vectors, row_bytes, most_steps), block)
    while threads < most and (
        rows * threads < busy or ceil_div(vectors, threads) * threads > vectors * 5 // 4
    ):
        threads *= 2
    threads = min(threads, block)
    rounds = ceil_div(vectors, threads * most_steps)
    tile = ceil_div(ceil_div(vectors, rounds), threads) * threads * vector
    return _place_along_rows(request, outer, col, threads, vector, tile)


def _sort_rows(request: Request, outer: Atoms, col: Atoms) -> Scan:
    """Threads side by side that hold a row whole.  Few of them: elements of one thread are sorted in its registers."""
    space, block = request.space, request.block
    rows, cols = size_of(outer), size_of(col)
    vector = choose_vector(col, space.element_bytes, request.schedule.access_bytes)
    vectors = ceil_div(cols, vector)
    most = min(block, power_of_two_at_least(vectors))
    least = power_of_two_at_least(ceil_div(cols, SORTED_BY_THREAD))
    threads = max(min(least, most), power_of_two_at_least(ceil_div(vectors, MAX_STEPS)))
    while threads < min(most, WARP) and rows * threads < request.busy_threads:
        threads *= 2
    threads = min(threads, block)
    steps = power_of_two_at_least(ceil_div(vectors, threads))
    return _place_along_rows(request, outer, col, threads, vector, steps * threads * vector)


def _place_along_rows(
    request: Request, outer: Atoms, col: Atoms, threads: int, vector: int, tile: int
) -> Scan:
    """threads: of a row, side by side.  vector, tile: elements of an access, and that they hold at once."""
    return Scan(
        request.space,
        request.gpu,
        request.block,
        request.wave,
        request.schedule,
        axis="col",
        outer=outer,
        row=(),
        col=col,
        packed=request.block // threads,
        row_threads=1,
        col_threads=threads,
        vector=vector,
        tile=tile,
        sequences=size_of(outer),
    )


def _scan_down_columns(request: Request, outer: Atoms, row: Atoms, col: Atoms) -> Scan:
    """Threads own columns; those that share them have neighbouring rows each."""
    space, gpu, block = request.space, request.gpu, request.block
    rows, cols = size_of(row), size_of(col)
    access_bytes = min(request.schedule.access_bytes, COLUMN_BYTES)
    vector = choose_vector(col, space.element_bytes, access_bytes)
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
    return Scan(
        space,
        gpu,
        block,
        request.wave,
        request.schedule,
        axis="row",
        outer=outer,
        row=row,
        col=col,
        packed=block // (col_threads * row_threads),
        row_threads=row_threads,
        col_threads=col_threads,
        vector=vector,
        tile=steps * row_threads,
        sequences=size_of(outer) * ceil_div(vectors, col_threads),
    )


# ---- strategies


def _why_not_carried(problem: Scan) -> str | None:
    if problem.tile >= problem.length:
        return f"a block holds all {problem.length} elements in registers"
    return None


def _why_not_cooperative(problem: Scan) -> str | None:
    why = _why_not_carried(problem)
    if why is not None:
        return why
    if not problem.space.parted:
        return "its elements must be combined one after the other"
    if problem.schedule.split == 1:
        return "the schedule asks for one block a row"
    if problem.sequences * 2 > problem.wave:
        return f"{problem.sequences} tasks occupy enough of {problem.wave} blocks a wave"
    return None


def _map_scan(problem: Scan, *, carried: bool = False, abreast: int = 1) -> Mapping:
    down = problem.axis == "row"
    return Mapping(
        problem.outer,
        problem.row,
        problem.col,
        problem.packed,
        problem.row_threads,
        problem.col_threads,
        problem.vector,
        problem.tile if down else 1,
        problem.col_threads * problem.vector if down else problem.tile,
        _describe(problem, carried=carried, abreast=abreast),
        carried=problem.axis if carried else "",
        backward=problem.space.running == "backward",
        abreast=abreast,
        cooperative=abreast > 1,
        rows_together=down,
    )


def _describe(problem: Scan, *, carried: bool, abreast: int) -> str:
    rounds = f"in {ceil_div(problem.tiles, abreast)} rounds"
    if abreast > 1:
        rounds += f" of {abreast} blocks, which hand on what came before"
    if problem.axis == "col":
        within = f"{problem.packed} rows a block, {problem.col_threads} threads a row"
        return f"running reduction: {f'a block a row, {rounds}' if carried else within}"
    steps = problem.tile // problem.row_threads
    text = f"running reduction: {problem.row_threads} x {steps} rows, {problem.col_threads} threads wide"
    return f"{text}, {rounds}" if carried else text


def _map_cooperative(problem: Scan) -> Mapping:
    return _map_scan(problem, carried=True, abreast=problem.abreast)


def _map_carried(problem: Scan) -> Mapping:
    return _map_scan(problem, carried=True)


SCANS: tuple[Strategy[Scan], ...] = (
    Strategy("cooperative scan", _why_not_cooperative, _map_cooperative),
    Strategy("tiled scan, totals carried along", _why_not_carried, _map_carried),
    Strategy("scan within a block", always, _map_scan),
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
    if space.running == "sorted" and (
        mapping.col != along or mapping.row or mapping.carried or mapping.packed_inside
    ):
        return "neighbouring threads do not hold its rows whole"
    if mapping.carried and mapping.backward != (space.running == "backward"):
        return "the rounds of the mapping run the other way"
    if mapping.abreast > 1 and not space.parted:
        return "a block group joins the parts of its members in any order"
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
