"""Products of few rows with weights of 8 and 4 bits as CUDA kernels: tensor cores that are fed from registers.

Triton's compiler takes such weights through shared memory, byte by byte where they lie along the columns, and spends
five to seven instructions on each.  Here a thread loads the weights that it multiplies (cuda/narrow_product.cuh), and
spends two and a half.  graph/ops/narrow_product.py says what is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from astitch.graph.ir import DType
from astitch.tile.narrow_product import NARROW_PRODUCT, NarrowShape

_CUDA = {DType.BF16: "bf16", DType.F16: "f16", DType.F32: "float"}


@dataclass(frozen=True, slots=True)
class FragmentTiling:
    """warps: of a block; they divide its part of the depth.  vector: bytes of a load of weights.  ahead: steps that are
    loaded ahead.  pairs: of columns of a thread where the weights are transposed; else a load has all its columns."""

    warps: int
    vector: int
    ahead: int
    pairs: int = 2


@dataclass(frozen=True, slots=True)
class FragmentKernel:
    """text: a translation unit.  grid, block: of the launch, which gives no shared memory."""

    name: str
    text: str
    grid: int
    block: int


def count_lane_columns(shape: NarrowShape, tiling: FragmentTiling) -> int:
    """Columns of a thread."""
    return 2 * tiling.pairs if shape.transposed else tiling.vector * _count_per_byte(shape)


def count_columns(shape: NarrowShape, tiling: FragmentTiling) -> int:
    """Columns of a block."""
    return 8 * count_lane_columns(shape, tiling)


def count_step(shape: NarrowShape, tiling: FragmentTiling) -> int:
    """Elements of the depth that a warp takes at once."""
    return 4 * tiling.vector * _count_per_byte(shape) if shape.transposed else 16


def _count_per_byte(shape: NarrowShape) -> int:
    return 2 if shape.is_packed else 1


def fits(shape: NarrowShape, tiling: FragmentTiling) -> bool:
    """Are the parts of the depth and its groups whole steps, and does each load lie within a row of the weights?

    Of a shape without a share the parts are left out.
    """
    step = count_step(shape, tiling)
    along = (shape.depth,) if shape.transposed else shape.columns
    unit = tiling.vector * _count_per_byte(shape)
    return (
        not shape.weights.is_float
        and shape.factor in (DType.BF16, DType.F16)
        and not any(n % unit for n in along)
        and not any(n % step for n in (shape.depth, shape.depth // shape.groups, shape.share))
    )


def write_fragment_kernel(shape: NarrowShape, tiling: FragmentTiling) -> FragmentKernel:
    """x, weights, offsets, scales, layer -> parts, as write_narrow_product.  tiling: one that fits."""
    name = f"{NARROW_PRODUCT}_{shape.rows}x{shape.depth}x{sum(shape.columns)}"
    tiles = [-(-n // count_columns(shape, tiling)) for n in shape.columns]
    shared = 4 * tiling.warps * 2 * count_lane_columns(shape, tiling) * 32
    lines = [*_write_description(shape, tiling), *_write_entry(name, shape, tiling, tiles, shared)]
    blocks = sum(tiles) * shape.parts * shape.batch
    return FragmentKernel(name, "\n".join(lines), blocks, 32 * tiling.warps)


def _write_description(s: NarrowShape, t: FragmentTiling) -> Iterator[str]:
    """What the templates are instantiated for."""
    yield '#include "astitch.cuh"'
    yield '#include "narrow_product.cuh"'
    yield "struct Product {"
    numbers = {
        "rows": s.rows,
        "depth": s.depth,
        "share": s.share,
        "groups": s.groups,
        "all_columns": sum(s.columns),
        "bits": 4 if s.is_packed else 8,
        "warps": t.warps,
        "vector_bytes": t.vector,
        "ahead": t.ahead,
        "pairs": t.pairs,
    }
    flags = {
        "is_signed": s.weights in (DType.S8, DType.S4),
        "transposed": s.transposed,
        "scale": s.scale,
        "offset": s.offset,
        "scales_transposed": s.scales_transposed,
        "ragged": any(n % count_columns(s, t) for n in s.columns),
    }
    for name, number in numbers.items():
        yield f"    static constexpr int {name} = {number};"
    # Of x, from an even element of the depth to the odd one behind it.
    yield f"    static constexpr long long odd_stride = {s.given * s.rows * (s.depth // 2)}LL;"
    for name, flag in flags.items():
        yield f"    static constexpr bool {name} = {str(flag).lower()};"
    yield "};"


def _write_entry(
    name: str, s: NarrowShape, t: FragmentTiling, tiles: list[int], shared: int
) -> Iterator[str]:
    """tiles: of the columns of each matrix."""
    x, scale, out = _CUDA[s.factor], _CUDA[s.scales], _CUDA[s.result]
    matrices = range(len(s.columns))
    given = [f"const {x}* __restrict__ x"]
    given += [f"const unsigned char* __restrict__ w{i}" for i in matrices]
    given += [f"const {x}* __restrict__ o{i}" for i in matrices if s.offset]
    given += [f"const {scale}* __restrict__ s{i}" for i in matrices if s.scale]
    given += ["const int* __restrict__ chosen"] * s.layer
    given.append(f"{out}* __restrict__ parts")
    yield f'extern "C" __global__ void __launch_bounds__({32 * t.warps}) {name}('
    yield f"    {', '.join(given)})"
    yield "{"
    yield f"    ASTITCH_STATIC_ARENA({shared});"
    yield f"    ASTITCH_SHARED(float, sums, 0, {shared // 4});"
    yield f"    const int tile = int(blockIdx.x) % {sum(tiles)}, above = int(blockIdx.x) / {sum(tiles)};"
    yield f"    const int part = above % {s.parts}, batch = above / {s.parts};"
    layer = f"clamped(*chosen < 0 ? 0 : *chosen, {s.layers - 1})" if s.layer else "0"
    yield f"    const long long whole = (long long)({layer}) * {s.batch} + batch;"
    rows = 0 if s.shared else s.rows * (s.depth // 2 if s.halves_depth else s.depth)
    yield f"    const {x}* const own = x + (long long)batch * {rows};"
    size = s.rows * sum(s.columns)
    yield f"    {out}* const to = parts + ((long long)part * {s.batch} + batch) * {size};"
    first = [end - n for n, end in zip(tiles, accumulate(tiles), strict=True)]
    left = [end - n for n, end in zip(s.columns, accumulate(s.columns), strict=True)]
    stored = [s.depth * n // _count_per_byte(s) for n in s.columns]
    weights = [f"w{i} + whole * {stored[i]}LL" for i in matrices]
    beside = [f"whole * {s.groups * n}LL" for n in s.columns]
    offsets = [f"o{i} + {beside[i]}" if s.offset else f"(const {x}*)nullptr" for i in matrices]
    scales = [f"s{i} + {beside[i]}" if s.scale else f"(const {scale}*)nullptr" for i in matrices]
    yield f"    const unsigned char* const weights = {_pick(first, weights)};"
    yield f"    const {x}* const offsets = {_pick(first, offsets)};"
    yield f"    const {scale}* const scales = {_pick(first, scales)};"
    yield f"    const int mine = tile - ({_pick(first, first)}), width = {_pick(first, s.columns)};"
    yield f"    const int left = {_pick(first, left)};"
    yield "    narrow_product<Product>(own, weights, offsets, scales, to, sums, part, mine, width, left);"
    yield "}"
    yield ""


def _pick(first: list[int], values: list[str] | list[int] | tuple[int, ...]) -> str:
    """The value of the matrix that the tile is of.  first: the first tile of each matrix."""
    picked = str(values[0])
    for start, value in zip(first[1:], values[1:], strict=True):
        picked = f"tile >= {start} ? {value} : ({picked})"
    return picked
