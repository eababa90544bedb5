"""Graph -> Graph: split-K, products of few results and long sums in parts, which the kernels that read them add.

A product of few tiles leaves most of a GPU idle, so XLA cuts its sum, computes the parts side by side and adds them.
Its own fusion adds them where the product is read; in front of a kernel of ours that would be one more kernel.

XLA's scheduler puts what no collective waits for as late as it can.  The parts of such a product, many times as large
as their sum, would be kept until then.  Where they are large, XLA cuts the product itself and adds them at once.  A
product in fewer parts XLA would cut once more, and add by one more kernel.
Such parts tell the scheduler no time, whatever the product told, and by XLA's table they take up to sixty times as long
as they do.  So beside communication a product is cut here into no fewer parts than XLA would make of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from astitch.device.gpu import Gpu
from astitch.graph.collectives import COLLECTIVE_BLOCKS, communicates, find_awaited
from astitch.graph.ir import ArrayType, DotAttrs, DType, Graph, NoAttrs, Node, SliceAttrs
from astitch.graph.matmul import ALIGNED
from astitch.graph.ops import OPS, Kind
from astitch.graph.stitchable import why_not_stitchable
from astitch.rewrite.draft import Draft, Log, is_run
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.simplify import find_arranged_rules, rewrite_graph

TILE = 128
"""Rows and columns of a result that one multiprocessor computes at a time."""

DEPTH_US = 0.008
"""Microseconds for one more element of a tile's sum."""

PART_US = 0.03
"""Microseconds for a tile of one more part, which is written and read."""

CUT_US = 1.0
"""Microseconds once for each product that is cut.  With these four figures of an H100 85 of 100 products are cut into
as many parts as XLA cuts (jax 0.11.2). The products have 8 to 4,096 rows, 64 to 3,072 columns and sums of 256 to 8,192.
In 9 there are fewer parts: XLA then cuts once more, right but slower."""

FEW_ROWS, DEEP = 64, 14336
"""With no more rows, a tile is small: a multiprocessor has several beside each other, which all wait for memory.
Longer sums, as gradients of narrow weights have, were not compared; more parts take more memory."""

MOST_BESIDE, BESIDE_ROWS = 8, 160
"""So many tiles, or as many as have so many rows.  With these two figures 56 of 60 products are cut as XLA cuts them,
and 35 if tiles came one after another.  They are of bf16, and have 8 and 64 rows, 512 to 14,336 columns and sums of
1,024 to 14,336."""

MOST_PARTS = 16
"""A kernel adds no more one by one.  A product of so few results is XLA's to cut, unless XLA would pad it."""

LATE_SHARE = 4
"""What a product reads, as a multiple of its parts, where these may be kept for long."""

XLA_WEIGHTS = {
    "sm_9": (193.1384, 4.36e7),
    "sm_10": (189.711, 1.21563e8),
    "sm_12": (189.711, 1.21563e8),
}
"""What XLA reckons for a byte of the parts that are added, and for the launch that adds them; 100 for an operation of a
multiprocessor (splitk_rewriter.cc).  By architecture."""

XLA_OTHERS = 467.815, 5.65307e7
"""The same on other architectures."""

LEAST_SIDE = 8
"""Rows and columns below which XLA has other kernels for a product."""

_FLOATS = (DType.F32, DType.F16, DType.BF16)


def split_products(graph: Graph, gpu: Gpu, log: Log | None = None) -> Graph:
    """The same function but for the order of sums; `log` hears of each product that is computed in parts.

    graph: simplified, its products arranged.
    """
    heard: Log = log or (lambda rule, node: None)
    late, sends = _find_late(graph), any(map(communicates, graph))
    parts: dict[str, int] = {}
    for node in graph:
        count = _count_parts(graph, node, gpu, sends)
        if count > 1 and not (node.name in late and _are_large(graph, node, count)):
            parts[node.name] = count
    if not parts:
        return graph

    def split(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if node.name not in parts:
            return None
        heard("split_product", node.name)
        return _put_sum(draft, node, parts[node.name])

    return rewrite_graph(graph, heard, split, rules=find_arranged_rules)


def _are_large(graph: Graph, node: Node, count: int) -> bool:
    """Do so many parts take more than a share of what the product reads?"""
    read = sum(graph[o].array.bytes for o in node.operands)
    return count * node.array.size * DType.F32.bytes > read // LATE_SHARE


def _find_late(graph: Graph) -> set[str]:
    """Ops that no collective waits for, where there are any."""
    if not any(map(communicates, graph)):
        return set()
    return {name for name, mask in find_awaited(graph).items() if not mask}


def _count_parts(graph: Graph, node: Node, gpu: Gpu, sends: bool) -> int:
    """sends: does the program communicate?"""
    attrs = node.attrs
    if not isinstance(attrs, DotAttrs) or not node.array.size:
        return 1
    lhs, rhs = (graph[o].array for o in node.operands)
    if not all(array.dtype in _FLOATS for array in (lhs, rhs, node.array)):
        return 1
    if "HIGHEST" in attrs.precision or attrs.algorithm or not _is_added(graph, node.name):
        return 1
    if attrs.lhs_batch:
        return 1  # two batch dimensions that are not neighbours: XLA would copy both operands
    if not all(map(is_run, _sort_pairs(attrs))):
        return 1
    depth = math.prod(lhs.shape[d] for d in attrs.lhs_contracting)
    rows, columns = (array.size // max(1, depth) for array in (lhs, rhs))
    if min(rows, columns) < LEAST_SIDE:
        return 1
    parts = choose_split_k(rows, columns, depth, gpu.sms)
    if sends:
        parts = max(parts, count_parts_of_xla(rows, columns, depth, node.dtype.bytes, gpu))
    if depth % (parts * ALIGNED) == 0:
        return parts if parts <= MOST_PARTS else 1
    word = 16 // max(lhs.dtype.bytes, rhs.dtype.bytes)
    return _fit_parts(depth, parts) if depth % (parts * word) else 1


def _fit_parts(depth: int, wanted: int) -> int:
    """Of the numbers of parts that cut a sum evenly the nearest one to `wanted`, within a factor of two; else 1.

    Where none does XLA pads both operands: it copies what a kernel of ours has stored.
    """
    words = depth // ALIGNED
    fitting = [n for n in range(-(-wanted // 2), 2 * wanted + 1) if words % n == 0]
    if depth % ALIGNED or not fitting:
        return 1
    return min(fitting, key=lambda n: max(n / wanted, wanted / n))


def _sort_pairs(attrs: DotAttrs) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The contracted dimensions of both sides, in the order of the left: pairs have none of their own."""
    pairs = sorted(zip(attrs.lhs_contracting, attrs.rhs_contracting, strict=True))
    return tuple(left for left, _ in pairs), tuple(right for _, right in pairs)


def _is_added(graph: Graph, name: str) -> bool:
    """Is all that reads the value part of kernels of ours, which can add it up?"""
    users = [graph[user] for user in graph.users[name]]
    if name in graph.outputs or not users:
        return False
    for user in users:
        kind = OPS[user.op].kind
        if why_not_stitchable(graph, user) is not None:
            return False
        if kind is Kind.INDEX and not _is_added(graph, user.name):
            return False
        if kind not in (Kind.INDEX, Kind.ELEMENTWISE, Kind.REDUCE):
            return False
    return True


def choose_split_k(rows: int, columns: int, depth: int, sms: int) -> int:
    """Into how many parts, a power of two, the sums of [rows, depth] x [depth, columns] are cut."""
    tiles = math.ceil(rows / TILE) * math.ceil(columns / TILE)
    few = min(rows, columns)
    is_small, beside = few <= FEW_ROWS and depth <= DEEP, min(MOST_BESIDE, BESIDE_ROWS / few)

    def estimate_us(parts: int) -> float:
        waves = parts * tiles / sms
        waves = max(1.0, waves / beside) if is_small else math.ceil(waves)
        cut_us = CUT_US + parts * tiles * PART_US if parts > 1 else 0.0
        return waves * depth / parts * DEPTH_US + cut_us

    return min((1, 2, 4, 8, 16, 32, 64, 128), key=estimate_us)


def count_parts_of_xla(rows: int, columns: int, depth: int, result_bytes: int, gpu: Gpu) -> int:
    """Into how many parts XLA cuts the sums of [rows, depth] x [depth, columns]; what it reads decides nothing.

    result_bytes: of an element.  gpu: without the multiprocessors that collectives may take.
    """
    tiles = math.ceil(rows / TILE) * math.ceil(columns / TILE)
    tile = min(rows, TILE) * min(columns, TILE)
    at_once = (gpu.sms + COLLECTIVE_BLOCKS) * TILE * TILE / tile
    by_arch = (weights for arch, weights in XLA_WEIGHTS.items() if gpu.arch.startswith(arch))
    added_byte, added = next(by_arch, XLA_OTHERS)

    def estimate(parts: int) -> float:
        waves = max(1.0, parts * tiles / at_once)
        computed = 100 * waves * 2 * tile * math.ceil(depth / parts)
        moved = rows * columns * (parts * DType.F32.bytes + result_bytes)
        return computed + (added + moved * added_byte if parts > 1 else 0.0)

    return min((1 << power for power in range(12)), key=estimate)


def _put_sum(draft: Draft, dot: Node, parts: int) -> str:
    """The parts as one batched product in f32, and their sum in pairs."""
    attrs = dot.attrs
    assert isinstance(attrs, DotAttrs)
    lhs_contracting, rhs_contracting = _sort_pairs(attrs)
    batched = replace(
        attrs,
        lhs_contracting=(lhs_contracting[0] + 1,),
        rhs_contracting=(rhs_contracting[0] + 1,),
        lhs_batch=(lhs_contracting[0],),
        rhs_batch=(rhs_contracting[0],),
    )
    operands = (
        _cut_operand(draft, dot, 0, lhs_contracting, parts),
        _cut_operand(draft, dot, 1, rhs_contracting, parts),
    )
    type_ = ArrayType(DType.F32, (parts, *dot.shape))
    whole = draft.add(dot, "dot", type_, operands, batched)
    total = put_total(draft, dot, whole, parts)
    if dot.dtype is DType.F32:
        return total
    return draft.put(replace(dot, op="convert", operands=(total,), attrs=NoAttrs()))


def put_total(draft: Draft, dot: Node, whole: str, parts: int) -> str:
    """The sum of the parts: in pairs where there are few, else as a reduction."""
    if parts > MOST_PARTS:
        return DraftOps(dot, draft).sum(whole, (0,))
    sums = [_put_part(draft, dot, whole, number) for number in range(parts)]
    type_ = ArrayType(DType.F32, dot.shape)
    while len(sums) > 1:
        pairs = zip(sums[::2], sums[1::2], strict=False)
        last = sums[-1:] if len(sums) % 2 else []
        sums = [draft.add(dot, "add", type_, pair) for pair in pairs] + last
    return sums[0]


def _cut_operand(
    draft: Draft, dot: Node, side: int, contracting: tuple[int, ...], parts: int
) -> str:
    """The operand with two dimensions where the contracted ones were: the parts, and what is left to sum."""
    operand = draft[dot.operands[side]].array
    first, last = contracting[0], contracting[-1]
    depth = math.prod(operand.shape[d] for d in contracting)
    shape = (*operand.shape[:first], parts, depth // parts, *operand.shape[last + 1 :])
    return draft.add(dot, "reshape", ArrayType(operand.dtype, shape), (dot.operands[side],))


def _put_part(draft: Draft, dot: Node, whole: str, number: int) -> str:
    shape = draft[whole].shape
    starts, limits = [0] * len(shape), list(shape)
    starts[0], limits[0] = number, number + 1
    attrs = SliceAttrs(tuple(starts), tuple(limits), (1,) * len(shape))
    part = draft.add(dot, "slice", ArrayType(DType.F32, (1, *dot.shape)), (whole,), attrs)
    return draft.add(dot, "reshape", ArrayType(DType.F32, dot.shape), (part,))
