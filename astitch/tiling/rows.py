"""Strategies of row-reduces: the reduced dimensions are the contiguous ones.

Long rows that are few are split over blocks.  Others stay within a block, which takes as many as its threads allow.
"""

from __future__ import annotations

from dataclasses import dataclass

from astitch.graph.dimensions import Atoms
from astitch.tiling.elementwise import TWO_ORDERS
from astitch.tiling.space import (
    LINE_BYTES,
    WARP,
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

MOST_ACCESSES, MOST_LOOKUPS = 5, 24
"""The most accesses of a thread for its row, and the most lines that its warp looks up for all of its rows.  The warp
walks over all lines again with every access (H100, rows of 7 to 33 floats: up to 24 at 94 to 100 % of a copy's speed,
33 to 45 at 58 to 98 %, 49 at 32 to 46 %; rows of 3 to 6 are at 88 to 98 % at best)."""

MAX_HELD_WORDS = 32
"""32-bit registers of a thread for the elements of a row that it holds from phase to phase, and for its column sums."""

MAX_ROW_ELEMENTS = 16
"""The most elements of a row in one thread.  Narrow ones too are worked on as 32-bit values.  More of them leave half
of an H100's warps without registers (softmax and LayerNorm of bf16)."""

COALESCED_LANES = 8
"""Neighbouring threads that read one row at least, where it is long enough: 8 accesses of 16 bytes fill a line."""

NARROW_BYTES = 8
"""The widest access of rows that are not read coalesced."""


@dataclass(frozen=True, slots=True)
class Rows(Request):
    """A row-reduce.

    outer: the dimensions that are kept; rows: how many elements they have.  col, cols: those of a row.
    vector: elements of an access.  vectors: accesses of a row.
    """

    outer: Atoms
    col: Atoms
    rows: int
    cols: int
    vector: int
    vectors: int

    @property
    def row_bytes(self) -> int:
        return self.cols * self.space.element_bytes

    @property
    def vector_bytes(self) -> int:
        return self.vector * self.space.element_bytes

    @property
    def resident_parts(self) -> int:
        """Parts of a row, the fewest that stay on chip, one for each member of a block group."""
        return ceil_div(
            self.vectors, self.block * max(BLOCK_GROUP_THREAD_BYTES // self.vector_bytes, 1)
        )


def describe_rows(request: Request) -> Rows:
    """The row-reduce of a space whose reduced atoms are its last."""
    space = request.space
    outer, col = space.kept, tuple(a for a in space.atoms if a in space.reduced)
    vector = choose_vector(col, space.element_bytes, space.widest(request.schedule))
    rows, cols = size_of(outer), size_of(col)
    vectors = ceil_div(cols, vector)
    gpu, block, wave, schedule = request.gpu, request.block, request.wave, request.schedule
    return Rows(space, gpu, block, wave, schedule, outer, col, rows, cols, vector, vectors)


# ---- rows that are split over blocks


def _wanted_parts(problem: Rows) -> int:
    """Parts that a row is to be cut into: as asked, or as many as fill the GPU and as stay on chip."""
    rows, wave, resident = problem.rows, problem.wave, problem.resident_parts
    wanted = problem.schedule.split
    if wanted is None:
        wanted = max(wave // rows, resident if resident * 2 <= wave else 1)
    if rows * wanted > 2 * wave and wanted > 2 * resident:
        # Blocks of many tasks each, all short: as long as registers last, for what a meeting costs.
        return resident
    return wanted


def _part_of_row(problem: Rows) -> int:
    """Elements of a row that each block takes: whole steps of all of its threads."""
    parts = min(_wanted_parts(problem), ceil_div(problem.vectors, problem.block))
    steps = ceil_div(ceil_div(problem.vectors, parts), problem.block)
    return steps * problem.block * problem.vector


def _why_not_split(problem: Rows) -> str | None:
    rows, row_bytes, gpu = problem.rows, problem.row_bytes, problem.gpu
    if problem.schedule.split is None:
        if rows * 2 > problem.wave:
            return f"{rows} rows are enough tasks for {problem.wave} blocks a wave"
        if row_bytes <= SPLIT_MIN_BYTES:
            return f"one block reads a row of {row_bytes} B in less time than a barrier takes"
        # A row that one block can keep is split only where rows leave most of the GPU idle.
        if row_bytes * 4 <= gpu.shared_per_block_bytes * 3 and rows * 3 > gpu.sms:
            return (
                f"one block keeps a row of {row_bytes} B, and {rows} rows occupy enough "
                f"of {gpu.sms} SMs"
            )
    elif problem.schedule.split == 1:
        return "the schedule asks for whole rows"
    if _wanted_parts(problem) <= 1:
        return f"one block keeps a row, and {problem.schedule.split} parts are many for {rows} rows"
    if _part_of_row(problem) >= problem.cols:
        return f"one step of a block takes a whole row of {problem.cols} elements"
    return None


def _why_not_cooperative(problem: Rows) -> str | None:
    why = _why_not_split(problem)
    if why is not None:
        return why
    parts = ceil_div(problem.cols, _part_of_row(problem))
    if not problem.space.awaited:
        return "no value of the space's size needs the sum, so no block has to wait for it"
    if parts < problem.resident_parts:
        return f"one of {parts} parts of a row does not stay on chip"
    if parts > problem.wave:
        return f"a row has {parts} parts, and {problem.wave} blocks run at once"
    return None


def _map_split(problem: Rows, *, cooperative: bool = False) -> Mapping:
    tile = _part_of_row(problem)
    why = "as asked"
    if problem.schedule.split is None:
        why = f"{problem.rows} rows < {problem.wave} blocks a wave"
    reason = f"row-reduce, {why}: each row split over {ceil_div(problem.cols, tile)} blocks"
    reason += " that keep their parts and meet" if cooperative else ""
    outer, col, block = problem.outer, problem.col, problem.block
    return Mapping(
        outer, (), col, 1, 1, block, problem.vector, 1, tile, reason, cooperative=cooperative
    )


def _map_cooperative(problem: Rows) -> Mapping:
    return _map_split(problem, cooperative=True)


# ---- rows within a block


def is_short_row(vectors: int, vector_bytes: int) -> bool:
    """Has a row no wide accesses, and fewer than a warp has lanes?"""
    return vectors <= WARP and vector_bytes <= NARROW_BYTES


def _why_not_short(problem: Rows) -> str | None:
    if not is_short_row(problem.vectors, problem.vector_bytes):
        return f"a row takes {problem.vectors} accesses of {problem.vector_bytes} B, which coalesce"
    if problem.rows * COALESCED_LANES < problem.busy_threads:
        return f"{problem.rows} rows leave threads idle even with {COALESCED_LANES} threads each"
    return None


def threads_of_short_row(vectors: int, row_bytes: int, max_steps: int) -> int:
    """Threads of a row that is shorter than a warp's access and has no wide ones, where rows are many.

    Idle lanes and shuffles cost issue slots, many accesses cost lookups of cache lines: as few threads as do not look
    up too many.  (bf16 rows fill few lines, but more than five accesses of a row wait for each other all the same.)
    """
    threads = 1
    while threads < vectors:
        steps = ceil_div(vectors, threads)
        lines = WARP / threads * min(row_bytes / LINE_BYTES, 1.0)
        if steps <= min(max_steps, MOST_ACCESSES) and lines * steps <= MOST_LOOKUPS:
            break
        threads *= 2
    return threads


def _map_short(problem: Rows) -> Mapping:
    max_steps = problem.schedule.max_steps
    return _pack_rows(problem, threads_of_short_row(problem.vectors, problem.row_bytes, max_steps))


def _map_within_block(problem: Rows) -> Mapping:
    """Gives a row as few threads as keep the GPU busy.  So the reduction stays within a warp where it can."""
    vectors, vector, space = problem.vectors, problem.vector, problem.space
    most = min(problem.block, power_of_two_at_least(vectors))
    fewest = power_of_two_at_least(ceil_div(vectors, problem.schedule.max_steps))
    threads = max(fewest, min(COALESCED_LANES, most))
    while threads < most and (
        problem.rows * threads < problem.busy_threads
        or ceil_div(vectors, threads) * threads > vectors * 5 // 4
        or ceil_div(vectors, threads) * vector > MAX_ROW_ELEMENTS
        or ceil_div(vectors, threads) * vector * space.held_words > MAX_HELD_WORDS
    ):
        threads *= 2
    return _pack_rows(problem, threads)


def _pack_rows(problem: Rows, threads: int) -> Mapping:
    """`threads` for a row, and as many rows as a block has threads for."""
    threads = min(threads, problem.block)
    packed = problem.block // threads
    tile = ceil_div(problem.vectors, threads) * threads * problem.vector
    reason = "row-reduce: a block a row"
    if packed > 1:
        reason = f"row-reduce: {packed} rows a block, {threads} threads a row"
    outer, col = problem.outer, problem.col
    return Mapping(outer, (), col, packed, 1, threads, problem.vector, 1, tile, reason)


ROWS: tuple[Strategy[Rows], ...] = (
    TWO_ORDERS,
    Strategy("cooperative row reduction", _why_not_cooperative, _map_cooperative),
    Strategy("split row reduction", _why_not_split, _map_split),
    Strategy("short rows, few threads each", _why_not_short, _map_short),
    Strategy("row reduction within a block", always, _map_within_block),
)
