"""Strategies of spaces whose elements may be visited in any order: element-wise, or summed up wholly.

Where all arrays lie alike, a block takes a flat run of elements.  Where some lie along another dimension, it takes
a two-dimensional tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from astitch.graph.dimensions import Atoms
from astitch.graph.index import Symbol
from astitch.tiling.space import (
    SECTOR_BYTES,
    WARP,
    Mapping,
    Space,
    ceil_div,
    choose_vector,
    power_of_two_at_least,
    size_of,
)
from astitch.tiling.strategy import SPLIT_MIN_BYTES, Request, Strategy, always

ACROSS_BYTES = SECTOR_BYTES
"""Bytes that a warp covers of arrays that lie along another dimension than its own vectors."""


def why_not_any_order(space: Space) -> str | None:
    """None where tasks may have any elements: there is no reduction, or a long one of everything that nothing of its
    size waits for."""
    if not space.reduced:
        return None
    if space.kept:
        return "it has a result for each row, not one in all"
    if space.awaited:
        return "a value of the space's size needs the result"
    if size_of(space.atoms) * space.element_bytes <= SPLIT_MIN_BYTES:
        return f"one block reduces all of the {size_of(space.atoms) * space.element_bytes} B"
    return None


@dataclass(frozen=True, slots=True)
class _TwoOrders:
    """The axes of a two-dimensional tile.  vector: elements along `col` of an access.  sector: elements of a sector."""

    outer: Atoms
    row: Atoms
    col: Atoms
    vector: int
    sector: int


def _cut_across(request: Request, across: Symbol) -> _TwoOrders:
    space = request.space
    place = space.atoms.index(across)
    col = space.atoms[place + 1 :]
    vector = choose_vector(col, space.element_bytes, space.widest(request.schedule))
    sector = max(ACROSS_BYTES // space.element_bytes, 1)
    return _TwoOrders(space.atoms[:place], (across,), col, vector, sector)


def _why_not_two_orders(request: Request) -> str | None:
    space = request.space
    if space.across is None:
        return "no array lies along another dimension than the last"
    why = why_not_any_order(space)
    if why is not None:
        return why
    cut = _cut_across(request, space.across)
    if size_of(cut.col) * cut.sector <= WARP * cut.vector:
        return f"a warp's flat tile has {cut.sector} rows of {size_of(cut.col)}, which fill sectors of both orders"
    return None


def _map_two_orders(request: Request) -> Mapping:
    """A warp covers whole sectors of both orders.

    In flat tiles each element of the one order is in a sector of its own: eight times the bytes from the L2.  (H100,
    f32 8192x8192 and a transposed one added: 600 us in flat tiles, where a copy's bandwidth takes 260.)
    """
    space, block = request.space, request.block
    assert space.across is not None
    cut = _cut_across(request, space.across)
    extent = space.across.extent
    rows = power_of_two_at_least(extent)
    narrow = max(WARP // min(cut.sector, rows), cut.sector // cut.vector, 1)
    vectors = ceil_div(size_of(cut.col), cut.vector)
    narrow = min(narrow, block, power_of_two_at_least(vectors))
    row_threads = min(block // narrow, rows)
    packed = power_of_two_at_least(size_of(cut.outer))
    outer_threads = min(block // (row_threads * narrow), packed)
    col_threads = block // (row_threads * outer_threads)
    col_tile = col_threads * cut.vector
    return Mapping(
        cut.outer,
        cut.row,
        cut.col,
        outer_threads,
        row_threads,
        col_threads,
        cut.vector,
        row_threads,
        col_tile,
        f"arrays along {extent} and along {size_of(cut.col)}: {row_threads} x {col_tile} a block",
    )


def _map_flat(request: Request) -> Mapping:
    space, block = request.space, request.block
    total = size_of(space.atoms)
    run = (Symbol("flat", total),) if space.flat else space.atoms
    vector = choose_vector(run, space.element_bytes, space.widest(request.schedule))
    # Two vectors a thread only where the GPU is full anyway, and a thread has one load on its way otherwise (H100, one
    # beside two: RoPE bf16 8x2048x32x128, of three arrays, 191 us beside 195, f32 2x1024x16x128 23.7 beside 24.3,
    # bias + GELU f32 8192x16384 355 beside 357).
    full = total > block * vector * 2 * request.gpu.sms * 8
    steps = request.schedule.elementwise_steps or (2 if full and space.arrays == 1 else 1)
    reason = "element-wise: flat tiles"
    return Mapping((), (), space.atoms, 1, 1, block, vector, 1, block * vector * steps, reason)


TWO_ORDERS = Strategy("two-dimensional tiles", _why_not_two_orders, _map_two_orders)

ELEMENTWISE: tuple[Strategy[Request], ...] = (
    TWO_ORDERS,
    Strategy("flat tiles", always, _map_flat),
)
