"""How fast ops on rows of narrow arrays are: the body of a row-region -> RowTiling, and times in microseconds.

The rates are those of networks of 32 to 256 features on an H100 (jax 0.11.2, 2026-11-27).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, prod

from astitch.device.gpu import Gpu
from astitch.graph.ir import DotAttrs, DType, GatherAttrs, Graph, IotaAttrs, Node, RowRegionAttrs
from astitch.graph.ops import OPS
from astitch.tile.elementwise import TILE_OPS
from astitch.tile.row_region import RowTiling, widen

HOPPER = 90
"""The compute capability of the GPUs that the rates are for."""

MOST_ELEMENTS = 2**31 - 1
"""Of an array: offsets are 32 bits wide."""

_BLOCKS_PER_SM = 2
"""Of a kernel with sums."""

MOST_SUMS = 80 << 10
"""Bytes of sums that the registers of a block have room for beside its rows."""

_ROOM = 4 * 32 * 220 * 4
"""Bytes of values that the registers of four warps hold."""

_TILINGS = (RowTiling(128, 4), RowTiling(64, 4), RowTiling(32, 4))
"""The best first.  Eight warps were slower in 9 of 11 bodies, and 2 % faster in the others."""

_WITH_SUMS = RowTiling(32, 4)

_LOOKED_UP = 0.4
"""Of a byte from memory, what one costs that is looked up in a matrix, of which the L2 has most."""

_BEHIND_STARTS = 3.0
"""Microseconds of a kernel beside its work."""

_COPY_SHARE = 0.9
"""Of the bandwidth of a copy, what kernels of products reach."""


@dataclass(frozen=True, slots=True)
class RowWork:
    """What a row-region does.

    row_bytes: of values of one row that are alive at once, at most.  sum_bytes: of one part of all sums.
    bytes: read and written.  flops: of products, with what fills the tiles.  functions_us: of functions alone.
    width: of the widest tile that a product writes.  factor: the type of products.
    """

    row_bytes: int
    sum_bytes: int
    bytes: int
    flops: float
    functions_us: float
    width: int
    factor: DType


def choose_tiling(body: Graph, attrs: RowRegionAttrs) -> RowTiling | None:
    """None where the values of a row have no room."""
    return fit_tiling(measure_rows(body, attrs), attrs)


def fit_tiling(work: RowWork, attrs: RowRegionAttrs) -> RowTiling | None:
    """choose_tiling, of what is measured."""
    if attrs.sums:
        room = work.row_bytes * _WITH_SUMS.rows + work.sum_bytes <= 1.25 * _ROOM
        return _WITH_SUMS if room and work.sum_bytes <= MOST_SUMS else None
    tilings = _TILINGS if work.factor is DType.F32 else _TILINGS[1:]
    return next((t for t in tilings if work.row_bytes * t.rows <= _ROOM), None)


def count_parts(rows: int, gpu: Gpu) -> int:
    """Of each sum: one for each block."""
    return min(_BLOCKS_PER_SM * gpu.sms, -(-rows // _WITH_SUMS.rows))


def project(work: RowWork, attrs: RowRegionAttrs, gpu: Gpu) -> float:
    """Microseconds of the kernel.  So few warps hide no load behind a product."""
    compute = work.flops / _find_rate(work, attrs) / 1e6
    memory = work.bytes / (gpu.bandwidth_gbs * _COPY_SHARE) / 1e3
    return memory + compute + work.functions_us + _BEHIND_STARTS


def _find_rate(work: RowWork, attrs: RowRegionAttrs) -> float:
    """TFLOP/s."""
    if work.factor is DType.F32:
        if attrs.sums:
            return 50
        return 110 if work.width <= 64 else 75
    return 130 if attrs.sums else 330


def measure_rows(body: Graph, attrs: RowRegionAttrs) -> RowWork:
    """What the kernel of a body does."""
    first_sum = len(body.outputs) - attrs.sums
    stored, summed = body.outputs[:first_sum], body.outputs[first_sum:]
    read = sum(body[name].array.bytes for name in body.parameters)
    looked_up = sum(node.array.bytes for node in body if isinstance(node.attrs, GatherAttrs))
    written = sum(body[name].array.bytes for name in stored)
    sums = sum(prod(map(widen, body[name].shape)) for name in summed) * DType.F32.bytes
    dots = [node for node in body if isinstance(node.attrs, DotAttrs)]
    functions = sum(
        attrs.rows * _count_columns(node) / op.rate
        for node in body
        if (op := TILE_OPS.get(node.op)) and node.shape[:1] == (attrs.rows,)
    )
    return RowWork(
        row_bytes=_find_peak(body, attrs.rows),
        sum_bytes=sums,
        bytes=read + written + 2 * attrs.parts * sums + int(_LOOKED_UP * looked_up),
        flops=sum(_count_flops(body, node, attrs.rows) for node in dots),
        functions_us=functions,
        width=max((widen(n) for dot in dots for n in dot.shape[-1:]), default=0),
        factor=body[dots[0].operands[0]].dtype if dots else DType.F32,
    )


def is_function(node: Node) -> bool:
    """Does it take time beside the memory, as an exponential does?"""
    op = TILE_OPS.get(node.op)
    return op is not None and isfinite(op.rate)


def _count_columns(node: Node) -> int:
    """Of the tiles of a value of rows."""
    return widen(node.shape[1]) if node.array.rank == 2 else 1


def _count_flops(body: Graph, node: Node, rows: int) -> float:
    x, y = (body[o] for o in node.operands)
    other = node if node.shape[:1] == (rows,) else y
    return 2.0 * rows * _count_columns(x) * _count_columns(other)


def _find_peak(body: Graph, rows: int) -> int:
    """Bytes of the values of a row that are alive at once, at most."""
    first, last = dict[str, int](), dict[str, int]()
    for number, node in enumerate(body):
        for o in node.operands:
            first.setdefault(o, number)
            last[o] = number
    alive, peak = dict[str, int](), 0
    for number, node in enumerate(body):
        for o in node.operands:
            if first[o] == number and body[o].is_parameter:
                alive.update(_sizes(body[o], rows))
        if not node.is_parameter and last.get(node.name, number) > number:
            alive.update(_sizes(node, rows))
        elif not node.is_parameter:
            peak = max(peak, sum(alive.values()) + sum(n for _, n in _sizes(node, rows)))
        peak = max(peak, sum(alive.values()))
        for o in {*node.operands}:
            if last[o] == number:
                alive.pop(o, None)
    return peak


def _sizes(node: Node, rows: int) -> Iterator[tuple[str, int]]:
    """(its name, bytes of a row) of a value of rows.  What an instruction makes anew takes no room."""
    if (
        node.shape[:1] == (rows,)
        and not OPS[node.op].is_broadcast
        and not isinstance(node.attrs, IotaAttrs)
    ):
        # Conditions take as many registers as numbers.
        each = DType.F32.bytes if node.dtype is DType.PRED else node.dtype.bytes
        yield node.name, _count_columns(node) * each
