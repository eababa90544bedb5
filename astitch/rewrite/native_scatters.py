"""Graph -> Graph: scatters of XLA's in types that a GPU combines in one instruction.

XLA adds 16-bit floats, takes the largest of floats and combines small integers by compare-and-swap: threads that meet
at a word try again.  A GPU adds f32, and takes the largest 32- and 64-bit integer, in memory itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from astitch.graph.ir import ArrayType, DType, Graph, Node, ScatterAttrs
from astitch.graph.ops import monoid_of
from astitch.rewrite.draft import Draft, Log, read_splat
from astitch.rewrite.draft_ops import DraftOps, Region
from astitch.rewrite.simplify import rewrite_graph

LEAST_SIZE = 1 << 16
"""The least number of updates, in elements: a launch more must pay."""

SMALL = 1 << 20
"""Elements of a result that takes no more than some us to convert.  Updates that meet take longer by far: an H100 took
14 to 30 ms to add 26,000 rows of 18 to a table of bf16, most of them to one row."""

MOST_OF_SMALL, MOST_RESULTS = 8, 2
"""Elements of a small and of a larger result for each update.  The result stands in memory in the wider type until it
is converted.  Of 500,000 x 64 an H100 adds f32 to 50,000 rows in 92 us, bf16 in 332; the largest of f32 takes 227."""

CONTENDED = 128
"""Updates for each element from which their number counts for nothing: threads that meet wait for each other."""


def combine_natively(
    graph: Graph, log: Log | None = None, *, only_splats: bool = False, room: float = math.inf
) -> Graph:
    """The same function, but that sums of 16-bit floats are rounded once.

    only_splats: take only scatters to a number repeated.  What a loop carries XLA scatters to in place, and would have
    to convert each turn.
    room: the bytes that results in wider types may take beside the narrow ones.  Small ones take few.
    """
    heard: Log = log or (lambda rule, node: None)
    if not any(isinstance(node.attrs, ScatterAttrs) for node in graph):
        return graph

    def change(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        form = _find_form(node)
        if form is None or not _pays(node, draft):
            return None
        if only_splats and read_splat(draft, node.operands[0]) is None:
            return None
        if node.array.size > SMALL and node.array.size * form.word.bytes > room:
            return None
        heard("combine_natively", node.name)
        return form.put(DraftOps(node, draft))

    return rewrite_graph(graph, heard, change)


def is_native(op: str, dtype: DType) -> bool:
    """Does a scatter of XLA's combine in one instruction, be it in another type?"""
    return bool(_FORMS.get(op)) and not dtype.is_complex


def is_own_form(scatter: Node) -> bool:
    """Does a GPU combine what it scatters in one instruction, as it stands?"""
    op = monoid_of(scatter.regions[0]) or ""
    return is_native(op, scatter.dtype) and _find_form(scatter) is None


def _pays(node: Node, draft: Draft) -> bool:
    size, updates = node.array.size, draft[node.operands[2]].array.size
    if updates >= CONTENDED * size:
        return True
    most = MOST_OF_SMALL if size <= SMALL else MOST_RESULTS
    return updates >= LEAST_SIZE and size <= most * updates


@dataclass(frozen=True, slots=True)
class _Form:
    """op: what combines two words of `word`.  encode and decode: to such words and back."""

    op: str
    word: DType
    encode: Callable[[DraftOps, str], str]
    decode: Callable[[DraftOps, str], str]

    def put(self, ops: DraftOps) -> str:
        """The name of the result."""
        node = ops.origin
        x, indices, updates = node.operands
        region = Region(self.word)
        combine = region.end("combine", region.op(self.op, self.word, ("a", "b")))
        words = ops.draft.add(
            node,
            "scatter",
            ArrayType(self.word, node.shape),
            (self.encode(ops, x), indices, self.encode(ops, updates)),
            node.attrs,
            (combine,),
        )
        return self.decode(ops, words)


def _find_form(node: Node) -> _Form | None:
    """None where XLA combines natively, or nothing does."""
    a = node.attrs
    if not isinstance(a, ScatterAttrs) or len(node.operands) != 3 or a.unique_indices:
        return None
    make = _FORMS.get(monoid_of(node.regions[0]) or "")
    return make(node.dtype) if make else None


def _sum(dtype: DType) -> _Form | None:
    if dtype in (DType.F16, DType.BF16):
        return _convert("add", dtype, DType.F32)
    return _widen("add", dtype)


def _largest(dtype: DType) -> _Form | None:
    return _compare("maximum", math.nan, dtype) or _widen("maximum", dtype)


def _smallest(dtype: DType) -> _Form | None:
    return _compare("minimum", -math.nan, dtype) or _widen("minimum", dtype)


def _any(dtype: DType) -> _Form | None:
    return _widen("maximum" if dtype is DType.PRED else "or", dtype)


def _all(dtype: DType) -> _Form | None:
    return _widen("minimum" if dtype is DType.PRED else "and", dtype)


def _parity(dtype: DType) -> _Form | None:
    return None if dtype is DType.PRED else _widen("xor", dtype)


_FORMS: Mapping[str, Callable[[DType], _Form | None]] = {
    "add": _sum,
    "maximum": _largest,
    "minimum": _smallest,
    "or": _any,
    "and": _all,
    "xor": _parity,
}
"""By what XLA combines with."""


def _widen(op: str, dtype: DType) -> _Form | None:
    """Small integers wrap in a wider type as in their own, once they are cut off."""
    is_small = dtype.is_integer and dtype.bytes < DType.S32.bytes
    return _convert(op, dtype, DType.S32) if is_small or dtype is DType.PRED else None


def _convert(op: str, dtype: DType, word: DType) -> _Form:
    def encode(ops: DraftOps, x: str) -> str:
        return ops.convert(x, word)

    def decode(ops: DraftOps, words: str) -> str:
        return ops.convert(words, dtype)

    return _Form(op, word, encode, decode)


def _compare(op: str, nan: float, dtype: DType) -> _Form | None:
    """Floats as integers of the same order: the bits, all but the sign flipped where it is set.

    nan: that which wins over all numbers.
    """
    if dtype not in (DType.F16, DType.BF16, DType.F32, DType.F64):
        return None
    wide = DType.F64 if dtype is DType.F64 else DType.F32
    word = DType.S64 if wide is DType.F64 else DType.S32

    def flip(ops: DraftOps, bits: str) -> str:
        shape = ops.draft[bits].shape
        sign = ops.both("shift-right-arithmetic", bits, ops.splat(8 * word.bytes - 1, word, shape))
        rest = ops.splat(np.iinfo(word.numpy).max, word, shape)
        return ops.both("xor", bits, ops.both("and", sign, rest))

    def encode(ops: DraftOps, x: str) -> str:
        x = ops.convert(x, wide)
        # A NaN is the result, whatever its sign.
        winner = ops.splat(nan, wide, ops.draft[x].shape)
        x = ops.select(ops.compare("EQ", x, x), x, winner)
        return flip(ops, ops.add("bitcast-convert", word, ops.draft[x].shape, (x,)))

    def decode(ops: DraftOps, words: str) -> str:
        bits = flip(ops, words)
        found = ops.add("bitcast-convert", wide, ops.draft[bits].shape, (bits,))
        return ops.convert(found, dtype)

    return _Form(op, word, encode, decode)
