"""Group -> Mapping: which thread of which block computes which element (paper section 4.3).

The iteration space of a group is cut into three axes, each a row of atomic dimensions:

    outer  kept by the dominant reduce; `outer_threads` of them side by side in a block (horizontal packing)
    row    strided part that a block walks over: the reduced dimensions of a column or mixed reduce
    col    contiguous part, spread over `col_threads` threads that access `vector` elements at a time

A task is one tile of outer_threads x row_tile x col_tile; blocks take tasks in a loop (vertical packing).
Splitting a reduction over blocks is a tile smaller than the reduced axis.  The law of a Mapping: every
element of the space belongs to exactly one (task, thread, step, lane).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from astitch.device.gpu import Gpu
from astitch.device.schedule import DEFAULT, Schedule
from astitch.graph.dimensions import Atoms
from astitch.graph.index import Symbol

SPLIT_MIN_BYTES = 64 * 1024
"""Shorter rows are never split over blocks: one block reads them in less time than meeting at a barrier takes.
(The paper's bound is 1024 columns on a V100; an SM of an H100 reads some 50 bytes a nanosecond.)"""

SPLIT_COLUMN_BYTES = 3 * SPLIT_MIN_BYTES
"""What splitting the rows of a column-reduce must spare a block, whose threads have several loads on their way (H100:
rows of 2053 x 1021 take as long with a barrier as without, 1021 x 1021 a quarter less without)."""

OCCUPIED_BYTES = 1 << 20
"""Of a column-reduce in one block: beyond, the barrier is lost beside what more blocks on an SM gain."""

WARP = 32

LINE_BYTES = 128

MAX_ALIGNED = 16
"""Elements of an access, at most."""

MOST_ACCESSES, MOST_LOOKUPS = 5, 24
"""Of a thread for its row, and lines that its warp looks up for all of its rows: it walks over all of them again with
every access (H100, rows of 7 to 33 floats: up to 24 at 94 to 100 % of a copy's speed, 33 to 45 at 58 to 98 %, 49 at 32
to 46 %; rows of 3 to 6 are at 88 to 98 % at best)."""

MAX_HELD_WORDS = 32
"""32-bit registers of a thread for the elements of a row that it holds from phase to phase, and for its column sums."""

MAX_ROW_ELEMENTS = 16
"""Elements of a row in one thread: narrow ones too are worked on as 32-bit values, and more of them leave half of an
H100's warps without registers (softmax and LayerNorm of bf16)."""

TEAM_THREAD_BYTES = 64
"""What a thread keeps of its row in a block of a team: three tasks of so much lie in the shared memory of two blocks of
512 threads on an SM.  Fewer bytes, also of narrow types, are more parts, and each block reads those of all."""

NEIGHBOUR_BYTES, SECTOR_BYTES = 256, 32
"""Of neighbouring rows that a block walks over side by side: as much as keeps the memory fast, since a block of a team
exchanges a part for each of them with as many more blocks (group-norm f32 32x64x64x512 by hand: 256 bytes 187 us, 512
192, 2048 233).  And where all blocks run at once, so that nothing hides what meeting takes: as little as that."""

COLUMN_BYTES = 8
"""An access of a thread that sums columns of a narrow type: each column is a sum to hold and to exchange (bf16, 8 bytes
beside 16: batch-norm 64x56x56x256 114 us beside 122, column sum 65536x1024 47.9 beside 48.8)."""

MIN_COLUMN_ELEMENTS = 8
"""Elements that a thread of a column-reduce loads at least, where columns are many."""

ELEMENTS_TOGETHER = 8
"""Elements of a column-reduce that a thread has on their way at once: as many come as soon as one."""

EXCHANGED_BYTES, EXCHANGED_SHARE = 16, 3
"""A column's part, three words beside their tag, of which each block of a team reads all: of what it keeps of a column
they may be one in so many (instance-norm 32x64x64x512: f32, one in 4, 227 us beside 282 when read twice; bf16, one
in 2, 175 beside 155, while lines of shared memory met in one bank)."""

TEAM_BYTES, TEAM_LINE_BYTES = 4, 128
"""What a thread and a block read of a row whose columns a team sums and keeps.  Fewer columns in a thread are fewer
sums to combine, and half the columns in a block are twice the rows, half the parts, a quarter of the exchange."""

COALESCED_LANES = 8
"""Neighbouring threads that read one row at least, where it is long enough: 8 accesses of 16 bytes fill a line."""


ACROSS_BYTES = SECTOR_BYTES
"""What a warp covers of arrays that lie along another dimension than its own vectors do."""


def size_of(atoms: Iterable[Symbol]) -> int:
    return math.prod(atom.extent for atom in atoms)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def power_of_two_at_least(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True, slots=True)
class Mapping:
    """See the module docstring.  All sizes in elements; the thread counts and `vector` are powers of two.

    reason: how the mapping was chosen, for people.
    packed_inside: the outer threads of a block stand between its row and its column threads, not around both: for
    rows whose neighbours on the outer axis are their neighbours in memory.
    team: the tiles of one outer tile are worked on at the same time by as many blocks, a team, which exchange their
    parts in each task; a tile is small enough to stay on chip until then.
    rows_last: tasks with neighbouring numbers are row tiles, not column tiles: a team shares one column tile.
    carried: "row" or "col": a task has all tiles along that axis, which its block works on one after the other, from
    the first or, backward, from the last.  "": each is a task.
    abreast: tiles of a round, each worked on by a block of its own: a team.
    rows_together: the rows of a tile that a thread visits are neighbours.
    """

    outer: Atoms
    row: Atoms
    col: Atoms
    outer_threads: int
    row_threads: int
    col_threads: int
    vector: int
    row_tile: int
    col_tile: int
    reason: str = ""
    packed_inside: bool = False
    team: bool = False
    rows_last: bool = False
    carried: str = ""
    backward: bool = False
    abreast: int = 1
    rows_together: bool = False

    @property
    def crosses_rows(self) -> bool:
        """Do vectors go from one row into the next?  So they do over whole arrays only (Space.flat)."""
        return bool(self.col) and self.col[-1].extent % self.vector != 0

    @property
    def parts(self) -> int:
        """Tiles that share a result: the blocks of a team."""
        if self.carried:
            return self.abreast
        return self.row_tiles if self.rows_last else self.row_tiles * self.col_tiles

    @property
    def block(self) -> int:
        """Threads in a block."""
        return self.outer_threads * self.row_threads * self.col_threads

    @property
    def outer_size(self) -> int:
        return size_of(self.outer)

    @property
    def row_size(self) -> int:
        return size_of(self.row)

    @property
    def col_size(self) -> int:
        return size_of(self.col)

    @property
    def outer_tiles(self) -> int:
        return ceil_div(self.outer_size, self.outer_threads)

    @property
    def row_tiles(self) -> int:
        return ceil_div(self.row_size, self.row_tile)

    @property
    def col_tiles(self) -> int:
        return ceil_div(self.col_size, self.col_tile)

    @property
    def tasks(self) -> int:
        """Tiles of the space; task number = (outer tile * row_tiles + row tile) * col_tiles + col tile, or with
        rows_last (outer tile * col_tiles + col tile) * row_tiles + row tile.  Of the carried axis, which is the last,
        the tiles abreast."""
        row_tiles = self.abreast if self.carried == "row" else self.row_tiles
        col_tiles = self.abreast if self.carried == "col" else self.col_tiles
        return self.outer_tiles * row_tiles * col_tiles

    @property
    def rounds(self) -> int:
        """Tiles of a task."""
        tiles = {"row": self.row_tiles, "col": self.col_tiles}
        return ceil_div(tiles.get(self.carried, 1), self.abreast)

    @property
    def row_steps(self) -> int:
        """Rows of a tile that one thread visits."""
        return ceil_div(self.row_tile, self.row_threads)

    @property
    def col_steps(self) -> int:
        """Vectors of a row of a tile that one thread visits."""
        return ceil_div(self.col_tile, self.col_threads * self.vector)

    @property
    def walked_steps(self) -> int:
        """Steps of a thread along the rows of its tile, or along the vectors of a row where it visits one row."""
        return self.row_steps if self.row_steps > 1 else self.col_steps

    @property
    def elements_per_thread(self) -> int:
        """Elements of one task that one thread visits."""
        return self.row_steps * self.col_steps * self.vector

    def elements(self, task: int, thread: int) -> Iterator[tuple[int, int, int]]:
        """(outer, row, col) positions that a thread computes in a task: the meaning of the Mapping."""
        if self.carried:
            whole = replace(self, carried="")
            above, beside = divmod(task, self.abreast)
            outer_part, col_part = divmod(above, 1 if self.carried == "col" else self.col_tiles)
            for turn in range(self.rounds)[:: -1 if self.backward else 1]:
                tile = turn * self.abreast + beside
                if self.carried == "col" and tile < self.col_tiles:
                    yield from whole.elements(outer_part * self.col_tiles + tile, thread)
                elif self.carried == "row" and tile < self.row_tiles:
                    row_part = outer_part * self.row_tiles + tile
                    yield from whole.elements(row_part * self.col_tiles + col_part, thread)
            return
        if self.rows_last:
            tile, row_part = divmod(task, self.row_tiles)
            outer_part, col_part = divmod(tile, self.col_tiles)
        else:
            tile, col_part = divmod(task, self.col_tiles)
            outer_part, row_part = divmod(tile, self.row_tiles)
        rest, tx = divmod(thread, self.col_threads)
        if self.packed_inside:
            ty, to = divmod(rest, self.outer_threads)
        else:
            to, ty = divmod(rest, self.row_threads)
        outer = outer_part * self.outer_threads + to
        if outer >= self.outer_size:
            return
        for k in range(self.row_steps):
            step = ty * self.row_steps + k if self.rows_together else k * self.row_threads + ty
            row = row_part * self.row_tile + step
            if row >= min(self.row_size, (row_part + 1) * self.row_tile):
                continue
            for j in range(self.col_steps):
                base = col_part * self.col_tile + (j * self.col_threads + tx) * self.vector
                for col in range(base, base + self.vector):
                    if col < min(self.col_size, (col_part + 1) * self.col_tile):
                        yield outer, row, col

    def __str__(self) -> str:
        def axis(atoms: Atoms) -> str:
            return "x".join(str(a.extent) for a in atoms) or "1"

        return (
            f"outer {axis(self.outer)} / {self.outer_threads} threads, row {axis(self.row)} / "
            f"{self.row_threads} threads x {self.row_steps}, col {axis(self.col)} / {self.col_threads} threads x "
            f"{self.col_steps} x {self.vector}; {self.tasks} tasks; {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class Space:
    """The iteration space of one root: its atoms (major to minor) and which of them a reduce sums over.

    element_bytes: the widest element that is read or written along the space.
    held_words: 32-bit words that a thread holds for each element of its row while it works on a task.
    again_words: those of arrays that are read again after the reduction.
    awaited: does something of the space's size need the reduction's result?
    flat: all arrays are walked over from their first element to their last.
    aligned: elements of the widest access for which most of what is read begins at a multiple of it.
    running: "forward" or "backward": every element is combined with those before it, or after it, along the reduced
    dimensions, and none is dropped.  parted: what is combined may be parted anyhow.
    arrays: how many arrays are read.
    across: the dimension along which most of that lies which is read or written in another order; or None.
    """

    atoms: Atoms
    reduced: frozenset[Symbol]
    element_bytes: int
    held_words: float = 0.0
    again_words: float = 0.0
    awaited: bool = True
    flat: bool = False
    aligned: int = MAX_ALIGNED
    running: str = ""
    parted: bool = False
    arrays: int = 1
    across: Symbol | None = None

    @property
    def kept(self) -> Atoms:
        return tuple(a for a in self.atoms if a not in self.reduced)

    def widest(self, schedule: Schedule) -> int:
        """Bytes of the widest access that the schedule and the alignment allow."""
        return min(schedule.access_bytes, self.aligned * self.element_bytes)


def choose_vector(col: Atoms, element_bytes: int, access_bytes: int = 16) -> int:
    """Elements of one access: up to `access_bytes`, dividing the contiguous extent so that no access straddles it."""
    if not col:
        return 1
    vector = max(access_bytes // element_bytes, 1)
    while col[-1].extent % vector:
        vector //= 2
    return vector


def _minor_run(atoms: Atoms, wanted: frozenset[Symbol]) -> int:
    """Length of the longest suffix of `atoms` that lies in `wanted`."""
    length = 0
    while length < len(atoms) and atoms[-1 - length] in wanted:
        length += 1
    return length


def map_space(
    space: Space, gpu: Gpu, block: int, wave: int, schedule: Schedule = DEFAULT
) -> Mapping:
    """Adaptive thread mapping of a dominant, for its kind of reduce.

    block: threads in a block, a power of two.  wave: blocks that the GPU holds at once.
    """
    if space.across is not None and _may_be_in_any_order(space):
        across = _map_across(space, space.across, block, schedule)
        if across is not None:
            return across
    if not space.reduced:
        return _map_elementwise(space, gpu, block, schedule)
    if space.atoms[-1] in space.reduced:
        run = _minor_run(space.atoms, space.reduced)
        col = space.atoms[len(space.atoms) - run :]
        row = tuple(a for a in space.atoms[: len(space.atoms) - run] if a in space.reduced)
        if not row:
            return _map_rows(space, col, gpu, block, wave, schedule)
    else:
        kept = frozenset(space.kept)
        run = _minor_run(space.atoms, kept)
        col = space.atoms[len(space.atoms) - run :]
        row = tuple(a for a in space.atoms if a in space.reduced)
    outer = tuple(a for a in space.atoms if a not in row and a not in col)
    return _map_columns(space, outer, row, col, gpu, block, wave, schedule)


def _map_elementwise(space: Space, gpu: Gpu, block: int, schedule: Schedule) -> Mapping:
    total = size_of(space.atoms)
    run = (Symbol("flat", total),) if space.flat else space.atoms
    vector = choose_vector(run, space.element_bytes, space.widest(schedule))
    # Two vectors a thread only where the GPU is full anyway, and a thread has one load on its way otherwise (H100, one
    # beside two: RoPE bf16 8x2048x32x128, of three arrays, 191 us beside 195, f32 2x1024x16x128 23.7 beside 24.3,
    # bias + GELU f32 8192x16384 355 beside 357).
    full = total > block * vector * 2 * gpu.sms * 8
    steps = schedule.elementwise_steps or (2 if full and space.arrays == 1 else 1)
    return Mapping(
        (),
        (),
        space.atoms,
        1,
        1,
        block,
        vector,
        1,
        block * vector * steps,
        "element-wise: flat tiles",
    )


def _may_be_in_any_order(space: Space) -> bool:
    """Is it element-wise, or a reduction of everything that is too long for one block and that nothing of its size
    waits for?"""
    if not space.reduced:
        return True
    large = size_of(space.atoms) * space.element_bytes > SPLIT_MIN_BYTES
    return large and not space.kept and not space.awaited


def _map_across(space: Space, across: Symbol, block: int, schedule: Schedule) -> Mapping | None:
    """Element-wise, or a reduction of everything, of arrays in two orders: a warp covers whole sectors of both.

    In flat tiles each element of the one order is in a sector of its own, eight times the bytes from the L2 (H100, f32
    8192x8192 and a transposed one added: 600 us in flat tiles, where a copy's bandwidth takes 260).  None where rows
    are so short that a warp's flat tile has a sector of them.
    """
    place = space.atoms.index(across)
    outer, row, col = space.atoms[:place], (across,), space.atoms[place + 1 :]
    vector = choose_vector(col, space.element_bytes, space.widest(schedule))
    vectors = ceil_div(size_of(col), vector)
    rows = power_of_two_at_least(across.extent)
    sector = max(ACROSS_BYTES // space.element_bytes, 1)
    if size_of(col) * sector <= WARP * vector:
        return None
    narrow = max(WARP // min(sector, rows), sector // vector, 1)
    narrow = min(narrow, block, power_of_two_at_least(vectors))
    row_threads = min(block // narrow, rows)
    packed = power_of_two_at_least(size_of(outer))
    outer_threads = min(block // (row_threads * narrow), packed)
    col_threads = block // (row_threads * outer_threads)
    return Mapping(
        outer,
        row,
        col,
        outer_threads,
        row_threads,
        col_threads,
        vector,
        row_threads,
        col_threads * vector,
        f"arrays along {across.extent} and along {size_of(col)}: "
        f"{row_threads} x {col_threads * vector} a block",
    )


def _map_rows(
    space: Space, col: Atoms, gpu: Gpu, block: int, wave: int, schedule: Schedule
) -> Mapping:
    """Row-reduce: pack short rows into a block, split long ones over blocks."""
    outer = tuple(a for a in space.atoms if a not in col)
    rows, cols = size_of(outer), size_of(col)
    vector = choose_vector(col, space.element_bytes, space.widest(schedule))
    vectors = ceil_div(cols, vector)
    wanted = schedule.split
    # Parts that stay on chip; a row of more than one that fewer blocks than the GPU holds could work on whole.
    resident = ceil_div(
        vectors, block * max(TEAM_THREAD_BYTES // (vector * space.element_bytes), 1)
    )
    row_bytes = cols * space.element_bytes
    # A row that one block can keep is split only where rows leave most of the GPU idle.
    whole = row_bytes * 4 <= gpu.shared_per_block_bytes * 3 and rows * 3 > gpu.sms
    few = rows * 2 <= wave and row_bytes > SPLIT_MIN_BYTES and not whole
    if wanted is None:
        wanted = max(wave // rows, resident if resident * 2 <= wave else 1) if few else 1
    if rows * wanted > 2 * wave and wanted > 2 * resident:
        # Blocks of many tasks each, all short: as long as registers last, for what a meeting costs.
        wanted = resident
    if wanted > 1:
        parts = min(wanted, ceil_div(vectors, block))
        tile = ceil_div(ceil_div(vectors, parts), block) * block * vector
        if tile < cols:
            split = ceil_div(cols, tile)
            why = f"{rows} rows < {wave} blocks a wave" if schedule.split is None else "as asked"
            reason = f"row-reduce, {why}: each row split over {split} blocks"
            # Where nothing waits for the sum, blocks do not either.
            team = resident <= split <= wave and space.awaited
            reason += " that keep their parts and meet" if team else ""
            return Mapping(outer, (), col, 1, 1, block, vector, 1, tile, reason, team=team)
    # As few threads a row as keep the GPU busy, so that the reduction stays within a warp where it can.
    most = min(block, power_of_two_at_least(vectors))
    threads = max(
        power_of_two_at_least(ceil_div(vectors, schedule.max_steps)), min(COALESCED_LANES, most)
    )
    busy = gpu.sms * gpu.max_threads_per_sm // 2
    if vectors <= WARP and vector * space.element_bytes <= 8 and rows * COALESCED_LANES >= busy:
        threads = most = threads_of_short_row(vectors, row_bytes, schedule.max_steps)
    while threads < most and (
        rows * threads < busy
        or ceil_div(vectors, threads) * threads > vectors * 5 // 4
        or ceil_div(vectors, threads) * vector > MAX_ROW_ELEMENTS
        or ceil_div(vectors, threads) * vector * space.held_words > MAX_HELD_WORDS
    ):
        threads *= 2
    threads = min(threads, block)
    packed = block // threads
    steps = ceil_div(vectors, threads)
    reason = (
        f"row-reduce: {packed} rows a block, {threads} threads a row"
        if packed > 1
        else "row-reduce: a block a row"
    )
    return Mapping(outer, (), col, packed, 1, threads, vector, 1, steps * threads * vector, reason)


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


def _map_columns(
    space: Space,
    outer: Atoms,
    row: Atoms,
    col: Atoms,
    gpu: Gpu,
    block: int,
    wave: int,
    schedule: Schedule,
) -> Mapping:
    """Column-reduce and mixed reduce: threads own columns, blocks walk over rows; few tiles -> rows are split."""
    rows, cols = size_of(row), size_of(col)
    mixed = bool(col) and col[-1] in space.reduced
    widest = space.widest(schedule)
    if not mixed and space.element_bytes < 4:
        widest = min(widest, COLUMN_BYTES)
    vector = choose_vector(col, space.element_bytes, widest)
    vectors = ceil_div(cols, vector)
    together = max(ELEMENTS_TOGETHER // vector, 2)
    if not mixed and space.again_words:
        kept = _map_kept_columns(space, outer, row, col, block, wave, schedule)
        if kept is not None:
            return kept
    if mixed:
        col_threads = min(block, power_of_two_at_least(vectors))
        steps = ceil_div(vectors, col_threads)
        most_rows = block
    else:
        # Threads share columns only as far as columns do not fill the GPU (a wave of 1 says that they never do).
        columns = vectors * size_of(outer)
        full = wave > 1 and columns >= wave * block
        shared_rows = power_of_two_at_least(ceil_div(rows, together))
        most_rows = 1 if full else min(block // min(32, block), shared_rows)
        col_threads = min(block // most_rows, power_of_two_at_least(vectors))
        wanted = MIN_COLUMN_ELEMENTS // max(rows * vector, 1)
        steps = max(min(wanted, columns // (wave * block)), 1) if full else 1
        if wave > 1 and schedule.split is None:
            least = max(block // shared_rows, 1)
            col_threads = _narrow_columns(space, outer, rows, cols, col_threads, least, vector, gpu)
    beside = mixed and _is_beside(outer, col, space.atoms)
    packed = 1
    if beside:  # neighbouring rows of the outer axis fill an access of the block
        packed = max(NEIGHBOUR_BYTES // (col_threads * vector * space.element_bytes), 1)
        packed = min(packed, block // col_threads, power_of_two_at_least(outer[-1].extent))
    most_rows = power_of_two_at_least(rows if mixed else ceil_div(rows, together))
    col_tile = col_threads * vector * steps
    while True:
        row_threads = min(block // (col_threads * packed), most_rows)
        outer_threads = block // (col_threads * row_threads)
        tiles = ceil_div(size_of(outer), outer_threads) * ceil_div(cols, col_tile)
        held, parts = _rows_of_part(rows, row_threads, col_tile // col_threads, space, schedule)
        narrower = packed // 2 * col_tile * space.element_bytes
        if not beside or tiles * parts > wave or packed == 1 or narrower < SECTOR_BYTES:
            break
        packed //= 2
    inside = packed > 1
    # A group whose runs are long has no neighbours beside it; a run that is too long does not stay on chip.
    fits = col_tile * space.element_bytes <= 2 * TEAM_THREAD_BYTES * block
    alone = mixed and outer_threads == 1 and fits and space.awaited
    if inside or alone:
        if 1 < parts <= wave and (schedule.split is None or parts <= 2 * schedule.split):
            beside_it = f" x {outer_threads} neighbours" if inside else ""
            reason = (
                f"mixed reduce: {row_threads} rows{beside_it} x {col_threads} threads a block, "
                f"rows split over {parts} blocks that keep their parts and meet"
            )
            return Mapping(
                outer,
                row,
                col,
                outer_threads,
                row_threads,
                col_threads,
                vector,
                held,
                col_tile,
                reason,
                packed_inside=inside,
                team=True,
            )
    split = schedule.split
    if split is None:
        tile_bytes = rows * min(col_tile, cols) * space.element_bytes
        # Blocks of one SM share what it can read.
        few = tile_bytes * (1 - tiles / gpu.sms) > SPLIT_COLUMN_BYTES
        large = tile_bytes >= OCCUPIED_BYTES and tiles * 2 <= wave
        split = wave // tiles if large else gpu.sms // tiles if few else 1
    parts = max(min(split, ceil_div(rows, row_threads * together)), 1)
    row_tile = ceil_div(ceil_div(rows, parts), row_threads) * row_threads
    kind = "mixed reduce" if mixed else "column-reduce"
    reason = f"{kind}: {row_threads} rows x {col_threads} threads a block"
    if row_tile < rows:
        why = f"{tiles} tiles < {wave} blocks a wave" if schedule.split is None else "as asked"
        reason += f", {why}: rows split over {ceil_div(rows, row_tile)} blocks"
    return Mapping(
        outer,
        row,
        col,
        outer_threads,
        row_threads,
        col_threads,
        vector,
        row_tile,
        col_tile,
        reason,
        inside,
    )


def _narrow_columns(
    space: Space,
    outer: Atoms,
    rows: int,
    cols: int,
    col_threads: int,
    least: int,
    vector: int,
    gpu: Gpu,
) -> int:
    """Threads side by side, at least `least`: fewer where more blocks then read columns that need not be split."""
    # Rows that do not begin with a sector have parts in one more.
    aligned = cols * space.element_bytes % SECTOR_BYTES == 0
    narrowest = SECTOR_BYTES if aligned else 2 * SECTOR_BYTES
    threads = col_threads
    while threads // 2 >= least and threads // 2 * vector * space.element_bytes >= narrowest:
        if size_of(outer) * ceil_div(cols, threads // 2 * vector) > gpu.sms:
            break
        threads //= 2
    whole = rows * threads * vector * space.element_bytes <= SPLIT_MIN_BYTES
    return threads if whole else col_threads


def _rows_of_part(
    rows: int, row_threads: int, width: float, space: Space, schedule: Schedule
) -> tuple[int, int]:
    """(rows that a block keeps on chip, parts): width elements of a row in each thread."""
    held = max(int(TEAM_THREAD_BYTES / (width * space.element_bytes)), 1) * row_threads
    if schedule.split is not None:
        held = min(held, ceil_div(ceil_div(rows, schedule.split), row_threads) * row_threads)
    return held, ceil_div(rows, held)


def _map_kept_columns(
    space: Space, outer: Atoms, row: Atoms, col: Atoms, block: int, wave: int, schedule: Schedule
) -> Mapping | None:
    """Columns whose elements are needed again after their reduction: teams of blocks keep them, or where few columns do
    not fill the GPU single blocks.  None where rows are few, or too many for a team."""
    rows, cols = size_of(row), size_of(col)
    vector = choose_vector(col, space.element_bytes, min(space.widest(schedule), TEAM_BYTES))
    lanes = max(TEAM_LINE_BYTES // (vector * space.element_bytes), 1)
    col_threads = min(lanes, block, power_of_two_at_least(ceil_div(cols, vector)))
    width = vector * max(space.again_words * 4 / space.element_bytes, 1)

    def cut(col_threads: int) -> tuple[int, int, int]:
        """(rows that a block keeps, parts, tasks)"""
        row_threads = block // col_threads
        held, parts = _rows_of_part(rows, row_threads, width, space, schedule)
        return held, parts, size_of(outer) * ceil_div(cols, col_threads * vector) * parts

    narrowest = max(SECTOR_BYTES // (vector * space.element_bytes), 1)
    while col_threads // 2 >= narrowest and cut(col_threads // 2)[2] <= wave:
        col_threads //= 2
    held, parts, tasks = cut(col_threads)
    row_threads = block // col_threads
    column_bytes = rows * width * space.element_bytes
    small = tasks <= wave and column_bytes * col_threads <= SPLIT_MIN_BYTES
    if small and schedule.split is None:
        held, parts, tasks = rows, 1, tasks // parts
    if parts == 1:
        if tasks > wave or rows < 2 * row_threads:
            return None
        held = ceil_div(rows, row_threads) * row_threads
    else:
        # Every block of a team reads the parts of all.
        few = parts * EXCHANGED_BYTES * EXCHANGED_SHARE <= held * space.element_bytes
        enough = rows > wave and (schedule.split or parts) * 2 >= parts
        if not (parts <= wave and few and enough):
            return None
    reason = f"column-reduce: {row_threads} rows x {col_threads} threads a block"
    if parts > 1:
        reason += f", rows split over {parts} blocks that keep their parts and meet"
    return Mapping(
        outer,
        row,
        col,
        1,
        row_threads,
        col_threads,
        vector,
        held,
        col_threads * vector,
        reason,
        team=parts > 1,
        rows_last=parts > 1,
    )


def _is_beside(outer: Atoms, col: Atoms, atoms: Atoms) -> bool:
    """Do the last outer atom and the columns lie side by side in memory?"""
    return bool(outer and col) and atoms.index(col[0]) == atoms.index(outer[-1]) + 1


def why_not_aligned(space: Space, mapping: Mapping) -> str | None:
    """None when a root of `space` can be computed by the threads of `mapping`, else the reason.

    Propagation of a mapping: the outer axis must be wholly in the space, row and col each wholly in it or wholly
    absent, and an axis wholly kept or reduced.  Where row or col is absent and tiled, the value is computed in every
    tile along it, and counted or stored in one.
    """
    here = frozenset(space.atoms)
    axes = {"outer": mapping.outer, "row": mapping.row, "col": mapping.col}
    covered = frozenset(a for axis in axes.values() for a in axis)
    if not here <= covered:
        return "it has dimensions that the mapping does not walk over"
    for name, axis in axes.items():
        inside = [a for a in axis if a in here]
        if inside and len(inside) < len(axis):
            return f"it has only a part of the {name} axis"
        if not inside and axis and name == "outer":
            return "it would be recomputed for every outer index"
        reduced = [a for a in inside if a in space.reduced]
        if reduced and len(reduced) < len(inside):
            return f"it reduces only a part of the {name} axis"
    return None
