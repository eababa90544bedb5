"""Graph -> Graph: the few largest of a row by as many maxima, in place of a sort.

An element and its position are one integer, of which no two are equal.  The largest is a maximum over the row; the next
one is the largest of those that are less.  Kernels hold such a row on chip, with what comes before and after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from astitch.graph.ir import (
    ConstantAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    IotaAttrs,
    Literal,
    Node,
    SliceAttrs,
    SortAttrs,
    TopKAttrs,
)
from astitch.graph.ops import neutral_element
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import DraftOps, Region
from astitch.rewrite.simplify import rewrite_graph
from astitch.rewrite.sort_orders import (
    Order,
    is_count,
    is_flipped,
    read_expression,
    read_order,
)

MOST_ROUNDS = 8
"""Maxima of one row.  Each is a phase of a kernel."""

MOST_COLUMNS = 1 << 16
"""Elements of a row: a block reads it again in each round."""

POSITION_BITS = 32
"""A word: the key in its upper half, below it how many elements stand behind this one."""

_KEYS = (
    DType.S8,
    DType.S16,
    DType.S32,
    DType.U8,
    DType.U16,
    DType.U32,
    DType.F16,
    DType.BF16,
    DType.F32,
)


def take_largest(graph: Graph, log: Log | None = None) -> Graph:
    """The same function.  Sorts of which more than some first elements are read stay."""
    heard: Log = log or (lambda rule, node: None)
    wanted = dict(_find_wanted(graph))
    if not wanted:
        return graph
    found: dict[str, _Found] = {}

    def change(node: Node, draft: Draft, values: Mapping[str, str]) -> str | None:
        if node.name in wanted and isinstance(node.attrs, SortAttrs | TopKAttrs):
            rounds = _Rounds(node, draft)
            order = rounds.read()
            if order is not None:
                heard("take_largest", node.name)
                found[node.name] = _Found(rounds, rounds.find(order, wanted[node.name]), order)
            return None
        source = _find_source(graph, graph[node.name]) if node.name in graph.nodes else None
        if source is None or source[0] not in found:
            return None
        name, number = source
        made = found[name]
        return made.rounds.put_result(made.words, made.order, number, node)

    return rewrite_graph(graph, heard, change)


@dataclass(frozen=True, slots=True)
class _Found:
    rounds: _Rounds
    words: list[str]
    order: Order


def _find_wanted(graph: Graph) -> Iterator[tuple[str, int]]:
    """Sorts of which only so many first elements are read."""
    for node in graph:
        if isinstance(node.attrs, TopKAttrs):
            is_read = node.name not in graph.outputs and all(
                isinstance(graph[r].attrs, GetTupleElementAttrs) for r in graph.users[node.name]
            )
            if is_read and 0 < node.attrs.k <= MOST_ROUNDS:
                yield node.name, node.attrs.k
        elif isinstance(node.attrs, SortAttrs):
            slices = list(_list_readers(graph, node))
            counts = [_count_first(reader, node.attrs.dimension) for reader in slices]
            if counts and all(0 < count <= MOST_ROUNDS for count in counts):
                yield node.name, max(counts)


def _list_readers(graph: Graph, sort: Node) -> Iterator[Node | None]:
    """What reads the results; None for whatever hands them on."""
    waiting = [sort.name]
    while waiting:
        name = waiting.pop()
        if name in graph.outputs:
            yield None
        for user in map(graph.__getitem__, graph.users[name]):
            if name == sort.name and isinstance(user.attrs, GetTupleElementAttrs):
                waiting.append(user.name)
            else:
                yield user


def _count_first(reader: Node | None, dimension: int) -> int:
    """How many first elements a slice takes; 0: it is another op, or takes others."""
    a = reader.attrs if reader else None
    if not isinstance(a, SliceAttrs):
        return 0
    whole = all(s == 0 for s in a.starts) and all(s == 1 for s in a.strides)
    return a.limits[dimension] if whole else 0


def _find_source(graph: Graph, node: Node) -> tuple[str, int] | None:
    """The sort or topk of which the node is such a part, and the number of its result."""
    if isinstance(node.attrs, GetTupleElementAttrs):
        source = graph[node.operands[0]]
        return (source.name, node.attrs.index) if isinstance(source.attrs, TopKAttrs) else None
    if not isinstance(node.attrs, SliceAttrs):
        return None
    source, number = graph[node.operands[0]], 0
    if isinstance(a := source.attrs, GetTupleElementAttrs):
        source, number = graph[source.operands[0]], a.index
    return (source.name, number) if isinstance(source.attrs, SortAttrs) else None


class _Rounds(DraftOps):
    """A sort or topk.  Its operand that is compared has the shape of `first`."""

    def __init__(self, origin: Node, draft: Draft) -> None:
        super().__init__(origin, draft)
        array = draft[origin.operands[0]].array
        a = origin.attrs
        self.shape = array.shape
        self.dimension = a.dimension if isinstance(a, SortAttrs) else array.rank - 1
        self.columns = self.shape[self.dimension]

    def read(self) -> Order | None:
        """None where the op stays."""
        a = self.origin.attrs
        if not 1 < self.columns <= MOST_COLUMNS:
            return None
        if isinstance(a, TopKAttrs):
            order: Order | None = Order(0, "", a.largest, total=True)
        else:
            order = read_order(self.origin, self.draft)
        if order is None:
            return None
        return order if self._key_dtype(order) in _KEYS else None

    def _key_dtype(self, order: Order) -> DType:
        if order.key:
            return self.origin.regions[0][order.key].dtype
        return self.draft[self.origin.operands[order.operand]].dtype

    def find(self, order: Order, count: int) -> list[str]:
        """The words of so many first elements, each with one column."""
        key = self._order_bits(self._lift_key(order), order)
        if not order.descending:
            key = self.add("not", DType.S32, self.shape, (key,))
        word = DType.S64
        above = self.both(
            "shift-left", self.convert(key, word), self.splat(POSITION_BITS, word, self.shape)
        )
        position = self.add("iota", word, self.shape, (), IotaAttrs(self.dimension))
        behind = self.both("subtract", self.splat(self.columns - 1, word, self.shape), position)
        self.words = self.both("or", above, behind)
        found = [self._reduce(self.words, "maximum")]
        least = np.iinfo(np.int64).min
        while len(found) < count:
            last = self._spread(found[-1])
            less = self.compare("LT", self.words, last)
            rest = self.select(less, self.words, self._fill(np.asarray(least), self.shape))
            found.append(self._reduce(rest, "maximum"))
        return found

    def put_result(self, words: list[str], order: Order, number: int, node: Node) -> str:
        """The first elements of a result, as a node of the graph before takes them."""
        count = node.shape[self.dimension]
        is_topk = isinstance(self.origin.attrs, TopKAttrs)
        pieces = [self._take(word, order, number, is_topk) for word in words[:count]]
        dtype = self.draft[pieces[0]].dtype
        shape = (*self.shape[: self.dimension], count, *self.shape[self.dimension + 1 :])
        if count == 1:
            return pieces[0]
        attrs = DimensionAttrs(self.dimension)
        whole = self.add("concatenate", dtype, shape, tuple(pieces), attrs)
        if shape == node.shape:
            return whole
        return self.cut(whole, [0] * len(shape), node.shape)

    def _take(self, word: str, order: Order, number: int, is_topk: bool) -> str:
        """The element of a result that a word names, in an array of one column."""
        operand = "" if is_topk and number else self.origin.operands[number]
        if not operand or is_count(self.draft, operand, self.dimension):
            dtype = self.draft[operand].dtype if operand else DType.S32
            return self.convert(self._position(word), dtype)
        if number == order.operand and (decoded := self._decode(word, order)):
            return decoded
        # The bits of the one element that the word stands for.
        x = self.draft[operand].array
        is_own = self.compare("EQ", self.words, self._spread(word))
        bits = _BITS[x.dtype.bytes]
        raw = self.convert(operand, bits) if x.dtype is DType.PRED else self._bitcast(operand, bits)
        none = self.splat(0, bits, self.shape)
        found = self._reduce(self.select(is_own, raw, none), "or")
        if x.dtype is DType.PRED:
            return self.convert(found, x.dtype)
        return self._bitcast(found, x.dtype)

    def _position(self, word: str) -> str:
        shape = self.draft[word].shape
        mask = self._fill(np.asarray((1 << POSITION_BITS) - 1), shape)
        behind = self.both("and", word, mask)
        return self.both("subtract", self.splat(self.columns - 1, DType.S64, shape), behind)

    def _decode(self, word: str, order: Order) -> str | None:
        """The compared value itself, where its key tells it."""
        dtype = self.draft[self.origin.operands[order.operand]].dtype
        shape = self.draft[word].shape
        shift = self.splat(POSITION_BITS, DType.S64, shape)
        key = self.convert(self.both("shift-right-arithmetic", word, shift), DType.S32)
        if not order.descending:
            key = self.add("not", DType.S32, shape, (key,))
        if order.key:
            expression = read_expression(self.origin.regions[0], order.key)
            if len(expression) > 1:
                return self._bitcast(self._flip(key), dtype) if is_flipped(expression) else None
            if dtype.is_float and not order.total:
                return None  # -0 counts as 0
        if dtype.is_float:
            return self.convert(self._bitcast(self._flip(key), DType.F32), dtype)
        if dtype is DType.U32:
            sign = self._fill(np.asarray(-(1 << 31), np.int32), shape)
            return self._bitcast(self.both("xor", key, sign), dtype)
        return self.convert(key, dtype)

    def _lift_key(self, order: Order) -> str:
        """What is compared, of all elements."""
        operand = self.origin.operands[order.operand]
        if not order.key:
            return operand
        region = self.origin.regions[0]
        alone = Graph(region.name, region.nodes, region.parameters, (order.key,))
        return self.lift(
            alone, [self.origin.operands[n // 2] for n in range(len(region.parameters))]
        )

    def _order_bits(self, key: str, order: Order) -> str:
        """s32 of the same order.  A NaN is the largest or the smallest, by its sign; -0 is 0 unless the order is
        total."""
        dtype, shape = self.draft[key].dtype, self.shape
        if dtype.is_float:
            key = self.convert(key, DType.F32)
            if not order.total:
                zero = self.splat(0, DType.F32, shape)
                key = self.select(self.compare("EQ", key, zero), zero, key)
            return self._flip(self._bitcast(key, DType.S32))
        if dtype is DType.U32:
            sign = self._fill(np.asarray(-(1 << 31), np.int32), shape)
            return self.both("xor", self._bitcast(key, DType.S32), sign)
        return self.convert(key, DType.S32)

    def _flip(self, bits: str) -> str:
        """All but the sign, where it is set: floats as integers, and back."""
        shape = self.draft[bits].shape
        sign = self.both("shift-right-arithmetic", bits, self.splat(31, DType.S32, shape))
        rest = self._fill(np.asarray((1 << 31) - 1, np.int32), shape)
        return self.both("xor", bits, self.both("and", sign, rest))

    def _bitcast(self, x: str, dtype: DType) -> str:
        if self.draft[x].dtype is dtype:
            return x
        return self.add("bitcast-convert", dtype, self.draft[x].shape, (x,))

    def _fill(self, value: np.ndarray, shape: tuple[int, ...]) -> str:
        literal = ConstantAttrs(Literal.of(value))
        return self.spread(self.add("constant", DType.of(value.dtype), (), (), literal), shape)

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
        unit = self._fill(np.asarray(neutral), ())
        attrs = DimensionsAttrs((self.dimension,))
        found = self.add("reduce", dtype, rest, (x, unit), attrs, (combine,))
        shape = (*self.shape[: self.dimension], 1, *self.shape[self.dimension + 1 :])
        return self.reshape(found, shape)


_BITS = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}
"""By bytes."""
