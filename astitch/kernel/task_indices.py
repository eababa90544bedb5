"""Which task a block works on: the indices of its row, its tiles and its round, and what bounds its steps."""

from __future__ import annotations

from collections.abc import Iterator

from astitch.graph import index as ix
from astitch.graph.index import Linear, Quotient, Symbol
from astitch.kernel import kernel_ir as k
from astitch.mapping.stitch_scheme import Placement
from astitch.tiling.space import Mapping


def count_steps_inside(size: int, minus_tile: Linear, thread: str, threads: int) -> Linear:
    """How many of the positions tile + step * threads + thread are below `size`, by step."""
    left = ix.add(
        ix.constant(size + threads - 1),
        minus_tile,
        ix.scale(ix.of_symbol(Symbol(thread, threads)), -1),
    )
    return ix.of_symbol(Quotient(left, threads)) if threads > 1 else left


def clamp(name: str, last: int) -> Linear:
    """The index `name`, at most `last`."""
    return ix.of_symbol(Symbol(f"clamped({name}, {last})", last + 1))


def index_task(m: Mapping) -> Iterator[k.Statement]:
    """The outer row and the tiles of the task `task`."""
    row_tiles = m.abreast if m.carried == "row" else m.row_tiles
    col_tiles = m.abreast if m.carried == "col" else m.col_tiles
    tiles = row_tiles * col_tiles
    task = ix.of_symbol(Symbol("task", m.tasks))
    outer_tile = ix.divide(task, tiles)
    if m.outer_size > 1:
        if m.outer_threads > 1:
            to = ix.of_symbol(Symbol("to", m.outer_threads))
            raw = ix.add(ix.scale(outer_tile, m.outer_threads), to)
            if m.outer_size % m.outer_threads:
                yield k.Index("outer_raw", raw)
                yield k.Index("outer", clamp("outer_raw", m.outer_size - 1))
            else:
                yield k.Index("outer", raw)
        else:
            yield k.Index("outer", outer_tile)
    row_task, col_task = ix.divide(task, col_tiles), task
    if m.rows_last or m.carried == "row":
        row_task, col_task = task, ix.divide(task, row_tiles)
    if row_tiles > 1 and m.carried != "row":
        yield k.Index("row_tile", ix.modulo(row_task, row_tiles))
    if col_tiles > 1 and m.carried != "col":
        yield k.Index("col_tile", ix.modulo(col_task, col_tiles))


def number_part(m: Mapping) -> Linear:
    """Which of the tiles that cooperating blocks work on at once is this block's."""
    task = ix.of_symbol(Symbol("task", m.tasks))
    return ix.modulo(task, m.abreast)


def index_own_tile(m: Mapping) -> k.Statement:
    """The tile of this block in a round of cooperating blocks."""
    turn = ix.of_symbol(Symbol("round", m.rounds))
    return k.Index(f"{m.carried}_tile", ix.add(ix.scale(turn, m.abreast), number_part(m)))


def number_partial(m: Mapping, place: Placement) -> Linear:
    """The number of this task's partial among those of one result element."""
    part = ix.ZERO
    axes = (
        ("outer", m.outer, m.outer_tiles),
        ("row", m.row, m.row_tiles),
        ("col", m.col, m.col_tiles),
    )
    for name, atoms, tiles in axes:
        if tiles > 1 and any(a in place.root.space.reduced for a in atoms):
            if name == "outer":
                task = ix.of_symbol(Symbol("task", m.tasks))
                number = ix.divide(task, m.tasks // m.outer_tiles)
            else:
                number = ix.of_symbol(Symbol(f"{name}_tile", tiles))
            part = ix.add(ix.scale(part, tiles), number)
    return part


def wrap_rounds(
    m: Mapping,
    body: tuple[k.Statement, ...],
    carried: tuple[k.Statement, ...],
    fetches: tuple[k.Statement, ...],
) -> list[k.Statement]:
    """The tiles of a task in order, around what is done for each.

    carried: the states handed on from tile to tile.  fetches: the copies of the first round and of each next one.
    """
    if m.abreast == 1:
        turn = k.Rounds(f"{m.carried}_tile", m.rounds, m.backward, body)
        return [*carried, turn]
    first = fetches[:1]
    copied = [*fetches[1:], k.CopyWait(1)] if first else []
    inside = (index_own_tile(m), *copied, *body)
    turns = k.Rounds("round", m.rounds, m.backward, inside)
    return [*carried, *first, turns]
