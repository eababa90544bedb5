"""Graph -> Graph: the few largest or smallest of a row by as many maxima, in place of a sort.

An element and its position are one integer, of which no two are equal.  The largest is a maximum over the row; the next
one is the largest of those that are less.  Kernels hold such a row on chip, with what comes before and after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from astitch.graph.ir import (
    DimensionsAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    IotaAttrs,
    Node,
    SliceAttrs,
    SortAttrs,
    TopKAttrs,
)
from astitch.graph.ops import OPS, Kind, neutral_element
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import Region
from astitch.rewrite.simplify import rewrite_graph
from astitch.rewrite.sort_orders import Order, is_count
from astitch.rewrite.sort_words import POSITION_BITS, SortWords

MOST_ROUNDS = 8
"""Maxima of one row.  Each is a phase of a kernel."""

MOST_COLUMNS = 1 << 16
"""Elements of a row: a block reads it again in each round."""


def take_largest(graph: Graph, log: Log | None = None) -> Graph:
    """The same function.  Sorts of which more than some first or last elements are read stay."""
    heard: Log = log or (lambda rule, node: None)
    wanted = {node.name: parts for node in graph if (parts := find_parts(graph, node)) is not None}
    readers = {part.name: part for parts in wanted.values() for part in parts}
    found: dict[str, _Found] = {}

    def change(node: Node, draft: Draft, values: Mapping[str, str]) -> str | None:
        if node.name in wanted:
            rounds = _Rounds(node, draft)
            order = rounds.read()
            if order is not None:
                heard("take_largest", node.name)
                counts = count_ends(wanted[node.name])
                found[node.name] = _Found(rounds, order, rounds.find(order, counts))
            return None
        part = readers.get(node.name)
        return found[part.sort].put(part, node) if part and part.sort in found else None

    return rewrite_graph(graph, heard, change) if wanted else graph


@dataclass(frozen=True, slots=True)
class EndRead:
    """name: of the op that reads so many first or last elements of a result of a sort, in their order or backwards."""

    name: str
    sort: str
    number: int
    count: int
    is_last: bool = False
    backwards: bool = False

    @property
    def is_turned(self) -> bool:
        """Is it read in another order than elements are found: the first in front, or the last?"""
        return self.is_last is not self.backwards


@dataclass(frozen=True, slots=True)
class _Found:
    """words: of the first elements, the first in front, and of the last, the last in front."""

    rounds: _Rounds
    order: Order
    words: Mapping[bool, Sequence[str]]

    def put(self, part: EndRead, node: Node) -> str:
        words = list(self.words[part.is_last][: part.count])
        if part.is_turned:
            words.reverse()
        return self.rounds.put_result(words, self.order, part.number, node)


def find_parts(graph: Graph, node: Node, most: int = MOST_ROUNDS) -> list[EndRead] | None:
    """What reads a sort or topk; None: it is another op, or more than `most` elements are read."""
    if isinstance(a := node.attrs, TopKAttrs):
        users = [graph[name] for name in graph.users[node.name]]
        if node.name in graph.outputs or not 0 < a.k <= most:
            return None
        parts = [
            EndRead(u.name, node.name, u.attrs.index, a.k)
            for u in users
            if isinstance(u.attrs, GetTupleElementAttrs)
        ]
        return parts if parts and len(parts) == len(users) else None
    if not isinstance(node.attrs, SortAttrs):
        return None
    found = [_read_part(graph, node, most, *reader) for reader in _list_readers(graph, node)]
    known = [part for part in found if part is not None]
    return known if known and len(known) == len(found) else None


def count_ends(parts: Sequence[EndRead]) -> dict[bool, int]:
    """How many first elements (False) and last ones (True) are read."""
    counts: dict[bool, int] = {}
    for part in parts:
        counts[part.is_last] = max(part.count, counts.get(part.is_last, 0))
    return counts


def _list_readers(graph: Graph, sort: Node) -> Iterator[tuple[Node | None, int, bool]]:
    """What reads the results, None for whatever hands them on; which result; whether it was turned round before."""
    assert isinstance(sort.attrs, SortAttrs)
    waiting = [(sort.name, 0, False)]
    while waiting:
        name, number, backwards = waiting.pop()
        if name in graph.outputs:
            yield None, number, backwards
        for user in map(graph.__getitem__, graph.users[name]):
            a = user.attrs
            if name == sort.name and isinstance(a, GetTupleElementAttrs):
                waiting.append((user.name, a.index, False))
            elif OPS[user.op].kind is Kind.INDEX and a == DimensionsAttrs((sort.attrs.dimension,)):
                waiting.append((user.name, number, not backwards))
            else:
                yield user, number, backwards


def _read_part(
    graph: Graph, sort: Node, most: int, reader: Node | None, number: int, backwards: bool
) -> EndRead | None:
    """None where it is another op than a slice of at most `most` first or last elements."""
    a = reader.attrs if reader else None
    if reader is None or not isinstance(a, SliceAttrs) or any(stride != 1 for stride in a.strides):
        return None
    assert isinstance(sort.attrs, SortAttrs)
    d = sort.attrs.dimension
    columns = graph[reader.operands[0]].shape[d]
    count, start = reader.shape[d], a.starts[d]
    if not 0 < count <= most or any(s for i, s in enumerate(a.starts) if i != d):
        return None
    if start not in (0, columns - count):
        return None
    is_last = (start > 0) is not backwards
    return EndRead(reader.name, sort.name, number, count, is_last, backwards)


class _Rounds(SortWords):
    """A sort or topk, of which the first and last elements are found one after the other."""

    most_columns = MOST_COLUMNS

    def find(self, order: Order, counts: Mapping[bool, int]) -> dict[bool, list[str]]:
        """The words of so many first elements (False) and last ones (True), each with one column."""
        key = self.order_bits(self.lift_key(order), order)
        if not order.descending:
            key = self.add("not", DType.S32, self.shape, (key,))
        word = DType.S64
        above = self.both(
            "shift-left", self.convert(key, word), self.splat(POSITION_BITS, word, self.shape)
        )
        position = self.add("iota", word, self.shape, (), IotaAttrs(self.dimension))
        behind = self.both("subtract", self.splat(self.columns - 1, word, self.shape), position)
        self.words = self.both("or", above, behind)
        ends = {False: ("maximum", "LT"), True: ("minimum", "GT")}
        return {end: self._find_end(count, *ends[end]) for end, count in counts.items()}

    def _find_end(self, count: int, op: str, direction: str) -> list[str]:
        found = [self._reduce(self.words, op)]
        neutral = neutral_element(op, DType.S64)
        assert neutral is not None
        while len(found) < count:
            is_left = self.compare(direction, self.words, self._spread(found[-1]))
            nothing = self.fill(np.asarray(neutral), self.shape)
            found.append(self._reduce(self.select(is_left, self.words, nothing), op))
        return found

    def put_result(self, words: Sequence[str], order: Order, number: int, node: Node) -> str:
        """The elements of a result that the words name, as a node of the graph before takes them."""
        is_topk = isinstance(self.origin.attrs, TopKAttrs)
        pieces = [self._take(word, order, number, is_topk) for word in words]
        whole = self.concatenate(pieces, self.dimension)
        return self.cut_to(whole, node.shape)

    def _take(self, word: str, order: Order, number: int, is_topk: bool) -> str:
        """The element of a result that a word names, in an array of one column."""
        operand = "" if is_topk and number else self.origin.operands[number]
        if not operand or is_count(self.draft, operand, self.dimension):
            dtype = self.draft[operand].dtype if operand else DType.S32
            return self.convert(self._position(word), dtype)
        if number == order.operand and (decoded := self.decode(word, order)):
            return decoded
        # The bits of the one element that the word stands for.
        x = self.draft[operand].array
        is_own = self.compare("EQ", self.words, self._spread(word))
        bits = _BITS[x.dtype.bytes]
        raw = self.convert(operand, bits) if x.dtype is DType.PRED else self.bitcast(operand, bits)
        none = self.splat(0, bits, self.shape)
        found = self._reduce(self.select(is_own, raw, none), "or")
        if x.dtype is DType.PRED:
            return self.convert(found, x.dtype)
        return self.bitcast(found, x.dtype)

    def _position(self, word: str) -> str:
        shape = self.draft[word].shape
        mask = self.fill(np.asarray((1 << POSITION_BITS) - 1), shape)
        behind = self.both("and", word, mask)
        return self.both("subtract", self.splat(self.columns - 1, DType.S64, shape), behind)

    def _spread(self, one: str) -> str:
        """One column along all."""
        rest = tuple(d for d in range(len(self.shape)) if d != self.dimension)
        flat = self.reshape(one, tuple(self.shape[d] for d in rest))
        return self.broadcast(flat, self.shape, rest)

    def _reduce(self, x: str, op: str) -> str:
        """The largest, or all bits, along the dimension, which becomes one column."""
        dtype = self.draft[x].dtype
        rest = tuple(n for d, n in enumerate(self.shape) if d != self.dimension)
        region = Region(dtype)
        combine = region.end("combine", region.op(op, dtype, ("a", "b")))
        neutral = neutral_element(op, dtype)
        assert neutral is not None
        unit = self.fill(np.asarray(neutral), ())
        attrs = DimensionsAttrs((self.dimension,))
        found = self.add("reduce", dtype, rest, (x, unit), attrs, (combine,))
        shape = (*self.shape[: self.dimension], 1, *self.shape[self.dimension + 1 :])
        return self.reshape(found, shape)


_BITS = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}
"""By bytes."""
