"""An iteration space, and how a Mapping assigns its elements to threads.

A Mapping cuts the space into three axes, each a row of atomic dimensions:

    outer  kept by the dominant reduce; `outer_threads` of them side by side in a block (horizontal packing)
    row    strided part that a block walks over: the reduced dimensions of a column or mixed reduce
    col    contiguous part, spread over `col_threads` threads that access `vector` elements at a time

A task is one tile of outer_threads x row_tile x col_tile; blocks take tasks in a loop (vertical packing).
A reduction is split over blocks by a tile that is smaller than the reduced axis.  The law of a Mapping: every
element of the space belongs to exactly one (task, thread, step, lane).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from astitch.device.schedule import Schedule
from astitch.graph.dimensions import Atoms
from astitch.graph.index import Symbol

WARP = 32

LINE_BYTES, SECTOR_BYTES = 128, 32
"""A line of the caches, and the part of it that memory hands over at once."""

MAX_ALIGNED = 16
"""Elements of an access, at most."""


def size_of(atoms: Iterable[Symbol]) -> int:
    return math.prod(atom.extent for atom in atoms)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def power_of_two_at_least(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True, slots=True)
class NotTaken:
    """A strategy that was tried before the one that gave a mapping.  why: the reason, a plain sentence."""

    strategy: str
    why: str


@dataclass(frozen=True, slots=True)
class Mapping:
    """See the module docstring.  All sizes in elements; the thread counts and `vector` are powers of two.

    reason: how the mapping was chosen, for people.
    packed_inside: the outer threads of a block stand between its row and its column threads, not around both.  That
    suits rows whose neighbours on the outer axis are their neighbours in memory.
    cooperative: as many blocks as an outer tile has tiles, a block group, work on them at the same time.  They exchange
    their parts in each task; a tile is small enough to stay on chip until then.
    rows_last: tasks with neighbouring numbers are row tiles, not column tiles: a block group shares one column tile.
    carried: "row" or "col": a task has all tiles along that axis.  Its block works on one after the other, from the
    first or, backward, from the last.  "": each tile is a task.
    abreast: tiles of a round, each worked on by a block of its own: a block group.
    rows_together: the rows of a tile that a thread visits are neighbours.
    strategy, not_taken: the name of the strategy, and those that were tried before it.  Mappings that differ only in
    these are equal: the same kernel follows from them.
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
    cooperative: bool = False
    rows_last: bool = False
    carried: str = ""
    backward: bool = False
    abreast: int = 1
    rows_together: bool = False
    strategy: str = field(default="", compare=False)
    not_taken: tuple[NotTaken, ...] = field(default=(), compare=False)

    @property
    def crosses_rows(self) -> bool:
        """Do vectors go from one row into the next?  So they do over whole arrays only (Space.flat)."""
        return bool(self.col) and self.col[-1].extent % self.vector != 0

    @property
    def parts(self) -> int:
        """Tiles that share a result: the members of a block group."""
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
    dimensions, and none is dropped.  "sorted": they are put in order.  parted: what is combined may be parted anyhow.
    arrays: how many arrays are read.
    across: the dimension along which most arrays lie that are read or written in another order; or None.
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
