"""Graph -> Graph: sorts of rows that a block holds as sorts of whole numbers, which kernels do.

An element and its position are one word, as in top_k.py.  The threads of a row sort the words.  What goes with them is
read at their positions.  A topk of longer rows is one of pieces, then of the largest of each; so is a sort of which
some first or last elements are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from astitch.graph.ir import (
    ArrayType,
    CompareAttrs,
    DimensionsAttrs,
    DType,
    GatherAttrs,
    GetTupleElementAttrs,
    Graph,
    IotaAttrs,
    Node,
    PadAttrs,
    SortAttrs,
    TopKAttrs,
)
from astitch.graph.ops.windows import MOST_SORTED, find_running
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import Region
from astitch.rewrite.simplify import rewrite_graph
from astitch.rewrite.sort_orders import Order, is_count
from astitch.rewrite.sort_words import POSITION_BITS, SortWords
from astitch.rewrite.top_k import EndRead, count_ends, find_parts

MOST_LARGEST = 128
"""Of a row that is longer than a block sorts."""

MOST_PIECES = 1 << 16
"""Elements of such a row."""

PIECE = 1024
"""Elements of a piece of it."""

SHORT, MANY = 128, 1 << 20
"""The columns of a row beyond which so many elements, and more, are left to XLA's own topk.  On an H100 a softmax and
the 32 largest of 8,192 rows of 256 took 50.9 us here and 47.8 by XLA, nine of 8,192 rows of 64 60.7 and 69.3."""


def sort_rows(graph: Graph, log: Log | None = None) -> Graph:
    """The same function.

    Sorts by other than one value of each element stay; so do those of long rows, unless ends are all that is read.
    """
    heard: Log = log or (lambda rule, node: None)
    found: dict[str, _Sorted] = {}
    ends: dict[str, _Ends] = {}
    sorts = [n for n in graph if isinstance(n.attrs, SortAttrs | TopKAttrs)]
    parts = {
        n.name: of
        for n in sorts
        if _is_long(graph, n) and (of := find_parts(graph, n, MOST_LARGEST))
    }
    readers = {part.name: part for of in parts.values() for part in of}

    def change(node: Node, draft: Draft, values: Mapping[str, str]) -> str | None:
        if node.name in parts:
            words = _Words(node, draft)
            order = words.read()
            if order is not None:
                heard("sort_rows", node.name)
                ends[node.name] = _Ends.find(words, order, parts[node.name])
            return None
        if (part := readers.get(node.name)) and part.sort in ends:
            return ends[part.sort].put(part, node)
        if isinstance(node.attrs, SortAttrs | TopKAttrs):
            sort = _read(graph, node, draft)
            if sort is None:
                return None
            heard("sort_rows", node.name)
            if isinstance(node.type, ArrayType):
                return sort.put_result(0)
            found[node.name] = sort
            return None
        a = node.attrs
        if isinstance(a, GetTupleElementAttrs) and node.operands[0] in found:
            return found[node.operands[0]].put_result(a.index)
        return None

    return rewrite_graph(graph, heard, change) if sorts else graph


def _is_long(graph: Graph, node: Node) -> bool:
    """Is it a sort of rows that no block sorts?"""
    a = node.attrs
    if not isinstance(a, SortAttrs) or find_running(node) is not None:
        return False
    return graph[node.operands[0]].shape[a.dimension] > MOST_SORTED


def _read(graph: Graph, node: Node, draft: Draft) -> _Sorted | None:
    """None where the op stays."""
    if find_running(node) is not None:
        return None  # a sort of words already
    if not isinstance(node.type, ArrayType):
        if node.name in graph.outputs:
            return None
        users = [graph[name] for name in graph.users[node.name]]
        if not all(isinstance(u.attrs, GetTupleElementAttrs) for u in users):
            return None
    words = _Words(node, draft)
    order = words.read()
    if order is None:
        return None
    k = node.attrs.k if isinstance(node.attrs, TopKAttrs) else words.columns
    if words.columns > MOST_SORTED and not 0 < k <= MOST_LARGEST:
        return None
    if isinstance(node.attrs, TopKAttrs) and words.columns > SHORT:
        if graph[node.operands[0]].array.size > MANY:
            return None
    return _Sorted(words, order, words.sort(order, k)) if k > 0 else None


@dataclass(frozen=True, slots=True)
class _Sorted:
    """words: of the first elements, along the last dimension."""

    ops: _Words
    order: Order
    words: str

    def put_result(self, number: int) -> str:
        return self.ops.put_result(self.words, self.order, number)


@dataclass(frozen=True, slots=True)
class _Ends:
    """words: of the first elements (False) and of the last ones, the last in front, along the last dimension."""

    ops: _Words
    order: Order
    words: Mapping[bool, str]

    @classmethod
    def find(cls, ops: _Words, order: Order, parts: Sequence[EndRead]) -> _Ends:
        counts = count_ends(parts)
        return cls(ops, order, {end: ops.sort(order, counts[end], last=end) for end in counts})

    def put(self, part: EndRead, node: Node) -> str:
        """What a slice reads, which may also leave out the last rows."""
        words = self.ops.take_first(self.words[part.is_last], part.count)
        if part.is_turned:
            words = self.ops.reverse_last(words)
        return self.ops.cut_to(self.ops.put_result(words, self.order, part.number), node.shape)


class _Words(SortWords):
    """A sort or topk whose words are sorted."""

    most_columns = MOST_PIECES

    def sort(self, order: Order, k: int, *, last: bool = False) -> str:
        """The words of the k first elements in each row.  last: of the k last, the last in front."""
        key = self.order_bits(self.lift_key(order), order)
        if order.descending:
            key = self.add("not", DType.S32, self.shape, (key,))
        if len(self.origin.operands) == 1 and self.columns <= MOST_SORTED and self.is_told(order):
            if not isinstance(self.origin.attrs, TopKAttrs):
                return self._lift(self._sort(self._turn(key)))  # no position is asked for
        word = DType.S64
        above = self._lift(key)
        position = self.add("iota", word, self.shape, (), IotaAttrs(self.dimension))
        words = self._turn(self.both("or", above, position))
        if last:
            words = self._invert(words)
        while self.draft[words].shape[-1] > MOST_SORTED:
            words = self._sort_pieces(words, k)
        words = self.take_first(self._sort(words), k)
        return self._invert(words) if last else words

    def _invert(self, words: str) -> str:
        return self.add("not", DType.S64, self.draft[words].shape, (words,))

    def reverse_last(self, words: str) -> str:
        shape = self.draft[words].shape
        return self.add("reverse", DType.S64, shape, (words,), DimensionsAttrs((len(shape) - 1,)))

    def _lift(self, key: str) -> str:
        """Words with a key in their upper half."""
        shape = self.draft[key].shape
        shift = self.splat(POSITION_BITS, DType.S64, shape)
        return self.both("shift-left", self.convert(key, DType.S64), shift)

    def _sort_pieces(self, words: str, k: int) -> str:
        """The k first of each piece of a row, side by side."""
        *rest, n = self.draft[words].shape
        pieces = -(-n // PIECE)
        if pieces * PIECE > n:
            most = self.fill(np.asarray(np.iinfo(np.int64).max), ())
            zeros = (0,) * (len(rest) + 1)
            attrs = PadAttrs(zeros, (*zeros[1:], pieces * PIECE - n), zeros)
            words = self.add("pad", DType.S64, (*rest, pieces * PIECE), (words, most), attrs)
        words = self.take_first(self._sort(self.reshape(words, (*rest, pieces, PIECE))), k)
        return self.reshape(words, (*rest, pieces * k))

    def _sort(self, words: str) -> str:
        array = self.draft[words].array
        region = Region(array.dtype)
        before = region.op("compare", DType.PRED, ("a", "b"), CompareAttrs("LT"))
        attrs = SortAttrs(array.rank - 1, False)
        return self.add(
            "sort", array.dtype, array.shape, (words,), attrs, (region.end("before", before),)
        )

    def take_first(self, words: str, k: int) -> str:
        shape = self.draft[words].shape
        if shape[-1] == k:
            return words
        return self.cut(words, [0] * len(shape), (*shape[:-1], k))

    def put_result(self, words: str, order: Order, number: int) -> str:
        """A result of the op."""
        is_topk = isinstance(self.origin.attrs, TopKAttrs)
        operand = "" if is_topk and number else self.origin.operands[number]
        if not operand or is_count(self.draft, operand, self.dimension):
            dtype = self.draft[operand].dtype if operand else DType.S32
            return self._turn(self.convert(self._position(words), dtype))
        if number == order.operand:
            # Words of top_k.py have the other sign: their largest is the first.
            if decoded := self.decode(self._invert(words), order):
                return self._turn(decoded)
        return self._turn(self._gather(self._turn(operand), self._position(words)))

    def _position(self, words: str) -> str:
        mask = self.fill(np.asarray((1 << POSITION_BITS) - 1), self.draft[words].shape)
        return self.convert(self.both("and", words, mask), DType.S32)

    def _gather(self, x: str, position: str) -> str:
        """x[..., position] of each row."""
        shape = self.draft[position].shape
        rows, last = tuple(range(len(shape) - 1)), len(shape) - 1
        sizes = (1,) * len(shape)
        attrs = GatherAttrs((), (last,), (last,), len(shape), sizes, rows, rows)
        indices = self.reshape(position, (*shape, 1))
        return self.add("gather", self.draft[x].dtype, shape, (x, indices), attrs)

    def _turn(self, x: str) -> str:
        """The rows as the last dimension, or back where they were."""
        rank, d = len(self.shape), self.dimension
        if d == rank - 1:
            return x
        order: Sequence[int] = [*range(rank)]
        order = [*order[:d], rank - 1, *order[d + 1 : rank - 1], d]
        return self.transpose(x, order)
