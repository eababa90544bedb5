"""Strategies of column-reduces: the reduced dimensions are strided, and threads own the columns that are kept.

Columns that are needed again after their reduction stay on chip: in a block, or in a block group.  Others
are summed block by block, and their rows are split over blocks where columns leave most of the GPU idle.
"""

from __future__ import annotations

from dataclasses import dataclass

from astitch.graph.dimensions import Atoms
from astitch.tiling.space import (
    SECTOR_BYTES,
    Mapping,
    ceil_div,
    choose_vector,
    power_of_two_at_least,
    size_of,
)
from astitch.tiling.strategy import (
    BLOCK_GROUP_THREAD_BYTES,
    SPLIT_MIN_BYTES,
    Request,
    Strategy,
    always,
)

SPLIT_COLUMN_BYTES = 3 * SPLIT_MIN_BYTES
"""Splitting the rows of a column-reduce must spare a block so many bytes; its threads have several loads on their way.
On an H100 rows of 2053 x 1021 take as long with a barrier as without, 1021 x 1021 a quarter less without."""

OCCUPIED_BYTES = 1 << 20
"""A column-reduce of more bytes in one block is split where blocks are free: a barrier costs less than more blocks on
an SM gain."""

COLUMN_BYTES = 8
"""Bytes of an access of a thread that sums columns of a narrow type.  Each column is a sum to hold and to exchange.
(bf16, 8 bytes beside 16: batch-norm 64x56x56x256 114 us beside 122, column sum 65536x1024 47.9 beside 48.8.)"""

MIN_COLUMN_ELEMENTS = 8
"""Elements that a thread of a column-reduce loads at least, where columns are many."""

FEW_COLUMNS = 8
"""A thread sums fewer columns than that all, where they are no vector.  What a row gives to all of them is computed
once, and no lane is idle."""

ELEMENTS_TOGETHER = 8
"""Elements of a column-reduce that a thread has on their way at once: as many come as soon as one."""

EXCHANGED_BYTES, EXCHANGED_SHARE = 16, 3
"""Bytes of a column's part, three words beside their tag, and their largest share of what a block keeps of a column.
Each member of a block group reads all parts (instance-norm 32x64x64x512: f32, one in 4, 227 us beside 282 when read
twice; bf16, one in 2, 175 beside 155, while lines of shared memory met in one bank)."""

BLOCK_GROUP_BYTES, BLOCK_GROUP_LINE_BYTES = 4, 128
"""Bytes that a thread and a block read of a row whose columns a block group sums and keeps.  Fewer columns in a thread
are fewer sums to combine.  Half the columns in a block are twice the rows, half the parts, a quarter of the
exchange."""


@dataclass(frozen=True, slots=True)
class Columns(Request):
    """A reduction over `row`.  outer, col: see Mapping; col is kept, or in a mixed reduce summed as well.

    outers, rows, cols: elements of the three.
    """

    outer: Atoms
    row: Atoms
    col: Atoms
    outers: int
    rows: int
    cols: int

    @property
    def mixed(self) -> bool:
        return bool(self.col) and self.col[-1] in self.space.reduced


def describe_columns(request: Request, outer: Atoms, row: Atoms, col: Atoms) -> Columns:
    space, gpu, block, wave = request.space, request.gpu, request.block, request.wave
    sizes = size_of(outer), size_of(row), size_of(col)
    return Columns(space, gpu, block, wave, request.schedule, outer, row, col, *sizes)


@dataclass(frozen=True, slots=True)
class BlockTile:
    """The threads of a block, and the columns of its tile; the rows of the tile are chosen after it.

    together: rows that a thread has on their way at once.
    packed: outer threads that stand between the row and the column threads.  1: they stand around both, if any.
    """

    outer_threads: int
    row_threads: int
    col_threads: int
    vector: int
    col_tile: int
    together: int
    packed: int = 1

    def count(self, problem: Columns) -> int:
        """Tiles along the outer axis and the columns."""
        outer_tiles = ceil_div(problem.outers, self.outer_threads)
        return outer_tiles * ceil_div(problem.cols, self.col_tile)

    def map(
        self, problem: Columns, row_tile: int, reason: str, *, cooperative: bool = False
    ) -> Mapping:
        return Mapping(
            problem.outer,
            problem.row,
            problem.col,
            self.outer_threads,
            self.row_threads,
            self.col_threads,
            self.vector,
            row_tile,
            self.col_tile,
            reason,
            packed_inside=self.packed > 1,
            cooperative=cooperative,
        )


def rows_of_part(problem: Columns, row_threads: int, width: float) -> tuple[int, int]:
    """(rows that a block keeps on chip, parts): `width` elements of a row in each thread."""
    rows, split = problem.rows, problem.schedule.split
    held = (
        max(int(BLOCK_GROUP_THREAD_BYTES / (width * problem.space.element_bytes)), 1) * row_threads
    )
    if split is not None:
        held = min(held, ceil_div(ceil_div(rows, split), row_threads) * row_threads)
    return held, ceil_div(rows, held)


# ---- columns that are needed again


@dataclass(frozen=True, slots=True)
class _Kept:
    """Columns that blocks keep.  held: rows of a block.  parts: blocks that share columns.  tasks: blocks in all."""

    row_threads: int
    col_threads: int
    vector: int
    held: int
    parts: int
    tasks: int


def _cut_kept(problem: Columns) -> _Kept:
    """The tile of the narrowest blocks that run all at once, but no narrower than a sector."""
    space, block = problem.space, problem.block
    widest = min(space.widest(problem.schedule), BLOCK_GROUP_BYTES)
    vector = choose_vector(problem.col, space.element_bytes, widest)
    lanes = max(BLOCK_GROUP_LINE_BYTES // (vector * space.element_bytes), 1)
    col_threads = min(lanes, block, power_of_two_at_least(ceil_div(problem.cols, vector)))
    width = vector * max(space.again_words * 4 / space.element_bytes, 1)

    def cut(col_threads: int) -> _Kept:
        row_threads = block // col_threads
        held, parts = rows_of_part(problem, row_threads, width)
        tiles = problem.outers * ceil_div(problem.cols, col_threads * vector)
        return _Kept(row_threads, col_threads, vector, held, parts, tiles * parts)

    narrowest = max(SECTOR_BYTES // (vector * space.element_bytes), 1)
    while col_threads // 2 >= narrowest and cut(col_threads // 2).tasks <= problem.wave:
        col_threads //= 2
    found = cut(col_threads)
    bytes_ = problem.rows * width * space.element_bytes * col_threads
    if problem.schedule.split is None and found.tasks <= problem.wave and bytes_ <= SPLIT_MIN_BYTES:
        return _Kept(
            found.row_threads, col_threads, vector, problem.rows, 1, found.tasks // found.parts
        )
    return found


NOT_AGAIN = "no array is read again after the reduction"


def _why_not_cooperative(problem: Columns) -> str | None:
    if not problem.space.again_words:
        return NOT_AGAIN
    cut, wave, split = _cut_kept(problem), problem.wave, problem.schedule.split
    if cut.parts == 1:
        return f"a block keeps all {problem.rows} rows of its columns"
    if cut.parts > wave:
        return f"columns have {cut.parts} parts, and {wave} blocks run at once"
    # Every member reads the parts of all.
    if cut.parts * EXCHANGED_BYTES * EXCHANGED_SHARE > cut.held * problem.space.element_bytes:
        return f"exchanging {cut.parts} parts takes too long beside the {cut.held} rows of a part"
    if problem.rows <= wave:
        return f"columns of {problem.rows} rows are too short to share among {wave} blocks a wave"
    if split is not None and split * 2 < cut.parts:
        return f"{cut.parts} parts stay on chip, and the schedule asks for {split}"
    return None


def _why_not_kept_by_block(problem: Columns) -> str | None:
    if not problem.space.again_words:
        return NOT_AGAIN
    cut = _cut_kept(problem)
    if cut.parts > 1:
        return f"columns of {problem.rows} rows do not stay on chip: a block keeps {cut.held}"
    if cut.tasks > problem.wave:
        return f"narrow blocks would be {cut.tasks}, and {problem.wave} run at once"
    if problem.rows < 2 * cut.row_threads:
        return f"{problem.rows} rows are less than two for each of {cut.row_threads} threads"
    return None


def _map_kept(problem: Columns) -> Mapping:
    cut = _cut_kept(problem)
    reason = f"column-reduce: {cut.row_threads} rows x {cut.col_threads} threads a block"
    held = ceil_div(problem.rows, cut.row_threads) * cut.row_threads
    if cut.parts > 1:
        held = cut.held
        reason += f", rows split over {cut.parts} blocks that keep their parts and meet"
    return Mapping(
        problem.outer,
        problem.row,
        problem.col,
        1,
        cut.row_threads,
        cut.col_threads,
        cut.vector,
        held,
        cut.col_threads * cut.vector,
        reason,
        cooperative=cut.parts > 1,
        rows_last=cut.parts > 1,
    )


# ---- columns that are summed


def _tile_columns(problem: Columns) -> BlockTile:
    """Threads share columns only as far as columns do not fill the GPU (a wave of 1 says that they never do)."""
    space, block, wave, rows = problem.space, problem.block, problem.wave, problem.rows
    widest = space.widest(problem.schedule)
    if space.element_bytes < 4:
        widest = min(widest, COLUMN_BYTES)
    vector = choose_vector(problem.col, space.element_bytes, widest)
    few = ceil_div(problem.cols, vector) if problem.cols < FEW_COLUMNS else 1
    vectors = ceil_div(problem.cols, vector * few)
    together = max(ELEMENTS_TOGETHER // (vector * few), 2)
    columns = vectors * problem.outers
    full = wave > 1 and columns >= wave * block
    most_rows = power_of_two_at_least(ceil_div(rows, together))
    shared_rows = 1 if full else min(block // min(32, block), most_rows)
    col_threads = min(block // shared_rows, power_of_two_at_least(vectors))
    steps = few
    if full and few == 1:
        wanted = MIN_COLUMN_ELEMENTS // max(rows * vector, 1)
        steps = max(min(wanted, columns // (wave * block)), 1)
    if wave > 1 and problem.schedule.split is None:
        least = max(block // most_rows, 1)
        col_threads = _narrow_columns(problem, col_threads, least, vector)
    row_threads = min(block // col_threads, most_rows)
    outer_threads = block // (col_threads * row_threads)
    col_tile = col_threads * vector * steps
    return BlockTile(outer_threads, row_threads, col_threads, vector, col_tile, together)


def _narrow_columns(problem: Columns, col_threads: int, least: int, vector: int) -> int:
    """Threads side by side, at least `least`: fewer where more blocks then read columns that need not be split."""
    element_bytes = problem.space.element_bytes
    # Rows that do not begin with a sector have parts in one more.
    aligned = problem.cols * element_bytes % SECTOR_BYTES == 0
    narrowest = SECTOR_BYTES if aligned else 2 * SECTOR_BYTES
    threads = col_threads
    while threads // 2 >= least and threads // 2 * vector * element_bytes >= narrowest:
        tiles = problem.outers * ceil_div(problem.cols, threads // 2 * vector)
        if tiles > problem.gpu.sms:
            break
        threads //= 2
    whole = problem.rows * threads * vector * element_bytes <= SPLIT_MIN_BYTES
    return threads if whole else col_threads


def _wanted_parts(problem: Columns, tile: BlockTile) -> int:
    """Parts of the rows: as asked, or as many as fill the GPU where more blocks pay for another barrier."""
    if problem.schedule.split is not None:
        return problem.schedule.split
    sms, wave, tiles = problem.gpu.sms, problem.wave, tile.count(problem)
    tile_bytes = _tile_bytes(problem, tile)
    if tile_bytes >= OCCUPIED_BYTES and tiles * 2 <= wave:
        return wave // tiles
    # Blocks of one SM share what it can read.
    few = tile_bytes * (1 - tiles / sms) > SPLIT_COLUMN_BYTES
    return sms // tiles if few else 1


def _split_rows(problem: Columns, tile: BlockTile) -> int:
    """Rows of a tile: all of them, or those of a part."""
    rows, wanted = problem.rows, _wanted_parts(problem, tile)
    parts = max(min(wanted, ceil_div(rows, tile.row_threads * tile.together)), 1)
    return ceil_div(ceil_div(rows, parts), tile.row_threads) * tile.row_threads


def _tile_bytes(problem: Columns, tile: BlockTile) -> int:
    """What a block reads where rows are not split."""
    return problem.rows * min(tile.col_tile, problem.cols) * problem.space.element_bytes


def why_not_split(problem: Columns, tile: BlockTile) -> str | None:
    """None where the rows of a tile are split over blocks, each of which leaves partial sums."""
    if _split_rows(problem, tile) < problem.rows:
        return None
    if problem.schedule.split == 1:
        return "the schedule asks for whole columns"
    if _wanted_parts(problem, tile) > 1:
        return f"one step of a block takes all of its columns, {problem.rows} elements each"
    tiles, tile_bytes = tile.count(problem), _tile_bytes(problem, tile)
    if tile_bytes <= SPLIT_COLUMN_BYTES:
        return f"one block sums {tile_bytes} B in less time than a barrier takes"
    sms, wave = problem.gpu.sms, problem.wave
    return f"{tiles} tiles occupy enough of {sms} SMs, and of {wave} blocks a wave"


def map_tile(problem: Columns, tile: BlockTile) -> Mapping:
    """The mapping of a tile, with its rows split over blocks where that pays."""
    kind = "mixed reduce" if problem.mixed else "column-reduce"
    row_tile = _split_rows(problem, tile)
    reason = f"{kind}: {tile.row_threads} rows x {tile.col_threads} threads a block"
    if row_tile < problem.rows:
        why = f"{tile.count(problem)} tiles < {problem.wave} blocks a wave"
        why = why if problem.schedule.split is None else "as asked"
        reason += f", {why}: rows split over {ceil_div(problem.rows, row_tile)} blocks"
    return tile.map(problem, row_tile, reason)


def _why_columns_not_split(problem: Columns) -> str | None:
    return why_not_split(problem, _tile_columns(problem))


def _map_columns(problem: Columns) -> Mapping:
    return map_tile(problem, _tile_columns(problem))


COLUMNS: tuple[Strategy[Columns], ...] = (
    Strategy("cooperative column reduction", _why_not_cooperative, _map_kept),
    Strategy("column reduction kept in a block", _why_not_kept_by_block, _map_kept),
    Strategy("split column reduction", _why_columns_not_split, _map_columns),
    Strategy("column reduction within a block", always, _map_columns),
)
