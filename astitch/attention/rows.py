"""What is computed from the scores of one row at a time, between the products of attention.

Takes a product of matrices, finds the ops that compute each row of an array from the same row of the product and of
others, and evaluates them for rows of random numbers.  Two ways to write one function are told to be equal by what
they give, whatever they are made of.  Functions in one piece that agree at random points to eight digits are equal;
large and small points are drawn to expose those in several pieces, as a clip is.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Self

import numpy as np

from astitch.attention.indices import varying_dimensions
from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    ConstantAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DType,
    Graph,
    Node,
    PadAttrs,
    SliceAttrs,
    TransposeAttrs,
    TupleType,
)
from astitch.graph.ops import OPS, Kind, monoid_of

MOST_DERIVED = 16
"""Ops between a source and those that it is computed from."""

MOST_OPS = 256
"""Ops after which a search ends: the functions between two products of attention have far fewer."""

ROWS, KEYS = 12, 8
"""The rows of random numbers, and the elements of each."""

LEFT_OUT = -1e9
"""A number that, added to a score, leaves it out."""

_REDUCERS: Mapping[str, np.ufunc] = {"add": np.add, "maximum": np.maximum, "minimum": np.minimum}

MOST_MULTIPLIER = 1e3
"""Larger numbers leave scores out to which they are added."""

Label = tuple[int, ...]
"""The parts of a dimension by their numbers, outer ones first.  A dimension of extent 1 has none."""


class NotARow(Exception):
    """The op computes a row from more than that row."""


@dataclass
class Parts:
    """The dimensions of the product, cut as finely as a reshape asks for.

    extents: of each part.  cuts: the parts of one that was cut.
    """

    extents: list[int] = field(default_factory=list)
    cuts: dict[int, Label] = field(default_factory=dict)

    def add(self, extent: int) -> int:
        self.extents.append(extent)
        return len(self.extents) - 1

    def resolve(self, label: Label) -> Label:
        """The finest parts."""
        found: list[int] = []
        for part in label:
            found += self.resolve(self.cuts[part]) if part in self.cuts else (part,)
        return tuple(found)

    def extent(self, label: Label) -> int:
        return prod(self.extents[p] for p in self.resolve(label))

    def regroup(self, label: Label, shape: Sequence[int]) -> tuple[Label, ...]:
        """The parts of the dimensions of a reshape of what has the parts `label`.  Raises NotARow."""
        left = list(self.resolve(label))
        found: list[Label] = []
        for extent in shape:
            taken: list[int] = []
            while self.extent(tuple(taken)) < extent:
                if not left:
                    raise NotARow
                wanted, rest = divmod(extent, self.extent(tuple(taken)))
                if rest:
                    raise NotARow
                part = left.pop(0)
                size = self.extents[part]
                if size > wanted:
                    if size % wanted:
                        raise NotARow
                    inner = self.add(size // wanted)
                    self.cuts[part] = (self.add(wanted), inner)
                    part = self.cuts[part][0]
                    left.insert(0, inner)
                taken.append(part)
            if self.extent(tuple(taken)) != extent:
                raise NotARow
            found.append(tuple(taken))
        if left:
            raise NotARow
        return tuple(found)


@dataclass(frozen=True)
class Source:
    """What a row function reads beside the product.

    name: of the node.  labels: of its dimensions as the first reader has them.
    """

    name: str
    labels: tuple[Label, ...]


class _Rows:
    """The ops that compute rows from the rows of a product, what they read beside it, and what they give.

    key: the number of the product's dimension along which a row lies.
    lows: what masks of numbers leave scores out with, by name; it may be filled later.
    """

    def __init__(
        self,
        graph: Graph,
        product: Node,
        key: int,
        order: Mapping[str, int],
        lows: Mapping[str, float],
    ) -> None:
        self.graph, self.product, self.key_dimension = graph, product, key
        self.lows = lows
        self.parts = Parts()
        labels = tuple(() if n == 1 else (self.parts.add(n),) for n in product.shape)
        self.key = labels[key]
        self.labels: dict[str, tuple[Label | None, ...]] = {product.name: labels}
        self.sources: dict[str, Source] = {}
        self.aliases: dict[str, str] = {}  # what repeats an array as another source does
        self._repeated: dict[tuple[str, tuple[Label, ...]], str] = {}
        self.reads: dict[str, frozenset[str]] = {product.name: frozenset()}
        self.reduced: set[str] = set()  # what follows from a sum or maximum of a row
        self._derived: set[str] = set()  # ops between sources that are left and those that are not
        self._fixed: dict[str, np.ndarray] = {}
        self._gain = 1.0
        self._float: np.dtype[Any] = np.dtype(np.float64)
        self._longer: dict[int, tuple[int, int]] = {}
        """Parts of rows with numbers more: how many in front of the scores and behind them."""
        self._find(order)

    # ---- which ops they are

    def _find(self, order: Mapping[str, int]) -> None:
        queue = [(order[u], u) for u in self.graph.users[self.product.name]]
        heapq.heapify(queue)
        seen = {name for _, name in queue}
        while queue and len(self.labels) < MOST_OPS:
            _, name = heapq.heappop(queue)
            node = self.graph[name]
            try:
                labels = self._label(node)
            except NotARow:
                continue
            self.labels[name] = labels
            inside = [o for o in node.operands if o in self.labels]
            outside = [self.aliases.get(o, o) for o in node.operands if o not in self.labels]
            sources = frozenset(name for name in outside if name in self.sources)
            read = sources.union(*(self.reads[o] for o in inside))
            self.reads[name] = read
            if OPS[node.op].is_reduce or not self.reduced.isdisjoint(inside):
                self.reduced.add(name)
            for user in self.graph.users[name]:
                if user not in seen:
                    seen.add(user)
                    heapq.heappush(queue, (order[user], user))

    def _label(self, node: Node) -> tuple[Label | None, ...]:
        """The parts of each dimension of what an op computes.  Raises NotARow."""
        if isinstance(node.type, TupleType):
            raise NotARow
        row = OPS[node.op]
        first = self.labels.get(node.operands[0])
        if row.is_conversion and node.dtype.is_float and node.dtype.bytes < 2:
            raise NotARow  # so few bits are another function
        if row.kind is Kind.ELEMENTWISE:
            return self._join(node)
        if isinstance(node.attrs, DimensionAttrs):
            return self._append(node)
        if first is None:
            raise NotARow
        if isinstance(node.attrs, BroadcastAttrs):
            found: list[Label | None] = [() if n == 1 else None for n in node.shape]
            source = self.graph[node.operands[0]].shape
            for d, (label, extent) in enumerate(zip(first, source, strict=True)):
                target = node.attrs.dimensions[d]
                if extent == node.shape[target]:
                    found[target] = label
            return tuple(found)
        if isinstance(node.attrs, TransposeAttrs):
            return tuple(first[d] for d in node.attrs.permutation)
        if row.is_view and row.kind is Kind.INDEX:
            if any(label is None for label in first):
                raise NotARow
            return self.parts.regroup(
                tuple(p for label in first if label for p in label), node.shape
            )
        if row.is_reduce and isinstance(node.attrs, DimensionsAttrs) and len(node.operands) == 2:
            return self._reduce(node, first)
        if isinstance(node.attrs, SliceAttrs):
            return self._cut_off(node, first)
        if isinstance(node.attrs, PadAttrs):
            return self._lengthen(node, first)
        raise NotARow

    def _reduce(self, node: Node, first: tuple[Label | None, ...]) -> tuple[Label | None, ...]:
        assert isinstance(node.attrs, DimensionsAttrs)
        reduced = [first[d] for d in node.attrs.dimensions]
        if monoid_of(node.regions[0]) not in _REDUCERS or any(r is None for r in reduced):
            raise NotARow
        parts = self.parts.resolve(tuple(p for label in reduced if label for p in label))
        if sorted(parts) != sorted(self.parts.resolve(self.key)) and not self.is_longer(parts):
            raise NotARow
        start = self.graph[node.operands[1]]
        if not isinstance(start.attrs, ConstantAttrs):
            raise NotARow
        kept = [d for d in range(len(first)) if d not in node.attrs.dimensions]
        return tuple(first[d] for d in kept)

    def leave_out(self, known: Collection[str]) -> None:
        """Leaves out what reads other sources than these."""
        foreign = {name for name, read in self.reads.items() if not read <= {*known}}
        self.labels = {name: x for name, x in self.labels.items() if name not in foreign}

    def keep_leading_to(self, values: Collection[str]) -> None:
        """Leaves out what leads neither to these values nor to one number a row: that reads rows as a whole."""
        pending = [*values, *(name for name in self.labels if not self.varies(name))]
        found = set[str]()
        while pending:
            name = pending.pop()
            if name in self.labels and name not in found:
                found.add(name)
                pending += self.graph[name].operands
        self.labels = {name: x for name, x in self.labels.items() if name in found}

    def varies(self, name: str) -> bool:
        """Is it more than one number a row?"""
        labels, key = self.resolved(name), set(self.parts.resolve(self.key))
        return labels is None or any(key & set(label) or self.is_longer(label) for label in labels)

    def is_longer(self, label: Label | None) -> bool:
        return label is not None and len(label) == 1 and label[0] in self._longer

    def _is_key(self, label: Label | None) -> bool:
        return label is not None and self.parts.resolve(label) == self.parts.resolve(self.key)

    def _find_longer(self, low: int, high: int) -> Label:
        """The label of rows with so many numbers more."""
        for part, known in self._longer.items():
            if known == (low, high):
                return (part,)
        part = self.parts.add(low + self.parts.extent(self.key) + high)
        self._longer[part] = (low, high)
        return (part,)

    def _append(self, node: Node) -> tuple[Label | None, ...]:
        """Rows with a number of another array behind each, as an attention sink is."""
        assert isinstance(node.attrs, DimensionAttrs)
        d = node.attrs.dimension
        inside = [o for o in node.operands if o in self.labels]
        if len(node.operands) != 2 or len(inside) != 1:
            raise NotARow
        place = node.operands.index(inside[0])
        other, labels = node.operands[1 - place], self.labels[inside[0]]
        if not self._is_key(labels[d]) or self.graph[other].shape[d] != 1:
            raise NotARow
        if read_scalar(self.graph, other) is None:
            self._add_source(other, [() if e == d else x for e, x in enumerate(labels)])
        longer = self._find_longer(place, 1 - place)
        return tuple(longer if e == d else x for e, x in enumerate(labels))

    def _cut_off(self, node: Node, first: tuple[Label | None, ...]) -> tuple[Label | None, ...]:
        """The scores of longer rows, or the number beside them."""
        assert isinstance(node.attrs, SliceAttrs)
        shape = self.graph[node.operands[0]].shape
        cut = [d for d, extent in enumerate(shape) if node.shape[d] != extent]
        if len(cut) != 1 or not self.is_longer(first[cut[0]]) or set(node.attrs.strides) != {1}:
            raise NotARow
        low, high = self._longer[(first[cut[0]] or ())[0]]
        start, stop = node.attrs.starts[cut[0]], node.attrs.limits[cut[0]]
        keys = shape[cut[0]] - low - high
        if (start, stop) == (low, low + keys):
            found: Label = self.key
        elif stop - start == 1 and (stop <= low or start >= low + keys):
            found = ()
        else:
            raise NotARow
        return tuple(found if d == cut[0] else label for d, label in enumerate(first))

    def _lengthen(self, node: Node, first: tuple[Label | None, ...]) -> tuple[Label | None, ...]:
        """Rows as long as those with a number more, which is 0."""
        attrs = node.attrs
        assert isinstance(attrs, PadAttrs)
        padded = [d for d in range(len(first)) if attrs.low[d] or attrs.high[d]]
        if (
            any(attrs.interior)
            or len(padded) != 1
            or read_scalar(self.graph, node.operands[1]) != 0
        ):
            raise NotARow
        (d,) = padded
        low, high = attrs.low[d], attrs.high[d]
        if not self._is_key(first[d]) or (low, high) not in self._longer.values():
            raise NotARow
        return tuple(self._find_longer(low, high) if e == d else x for e, x in enumerate(first))

    def _width(self, name: str) -> int:
        """The numbers that each drawn row of an op's result has."""
        for label in self.labels.get(name, ()):
            if self.is_longer(label):
                return KEYS + sum(self._longer[(label or ())[0]])
        return KEYS

    def _join(self, node: Node) -> tuple[Label | None, ...]:
        """The labels of an element-wise op: its operands of the row must agree.  Others become sources."""
        found: list[Label | None] = [() if n == 1 else None for n in node.shape]
        outside: list[str] = []
        for operand in node.operands:
            known = self.labels.get(operand)
            if known is None:
                outside.append(operand)
                continue
            if len(known) != len(found):
                raise NotARow  # a scalar condition
            for d, label in enumerate(known):
                if label is None:
                    continue
                if found[d] is not None and self.parts.resolve(
                    found[d] or ()
                ) != self.parts.resolve(label):
                    raise NotARow
                found[d] = label
        outside = [name for name in outside if read_scalar(self.graph, name) is None]
        if outside and found.count(None) == 1:
            # One number a row, repeated beside an array: along the row.
            repeated = found.index(None)
            if node.shape[repeated] == self.parts.extent(self.key):
                found[repeated] = self.key
            for part in self._longer:
                if node.shape[repeated] == self.parts.extents[part]:
                    found[repeated] = (part,)
        for operand in outside:
            self._add_source(operand, found)
        return tuple(found)

    def _add_source(self, name: str, labels: Sequence[Label | None]) -> None:
        node = self.graph[name]
        if isinstance(node.type, TupleType) or not (
            node.dtype.is_float or node.dtype is DType.PRED
        ):
            raise NotARow
        if len(node.shape) != len(labels) or any(label is None for label in labels):
            raise NotARow
        found = tuple(label or () for label in labels)
        varying = varying_dimensions(self.graph, name)
        if any(self.is_longer(found[d]) for d in varying):
            self._add_lengthened(node, found)
            return
        same = self._repeated.setdefault(_find_base(self.graph, self.parts, name, found), name)
        if same != name:
            self.aliases[name] = same
            return
        known = self.sources.setdefault(name, Source(name, found))
        if tuple(map(self.parts.resolve, known.labels)) != tuple(map(self.parts.resolve, found)):
            raise NotARow

    def _add_lengthened(self, node: Node, labels: tuple[Label, ...]) -> None:
        """A source of longer rows, where it has a 0 behind each row of one as long as the scores."""
        (inside, *_) = node.operands or ("",)
        if OPS[node.op].is_conversion:
            self._add_source(inside, labels)
            before = self.reads.get(inside, frozenset())
        elif isinstance(node.attrs, PadAttrs):
            inner = tuple(self.key if self.is_longer(label) else label for label in labels)
            self._add_source(inside, inner)
            if self._lengthen(node, inner) != labels:
                raise NotARow
            before = frozenset((self.aliases.get(inside, inside),))
        else:
            raise NotARow
        self.labels[node.name], self.reads[node.name] = labels, before

    def resolved(self, name: str) -> tuple[Label, ...] | None:
        """The parts of each dimension of an op's result; None where one is not known."""
        labels = self.labels.get(name)
        if labels is None or any(label is None for label in labels):
            return None
        return tuple(self.parts.resolve(label or ()) for label in labels)

    # ---- what they compute

    def varying_parts(self, source: Source) -> set[int]:
        """The parts along which the elements of a source may differ."""
        varying = varying_dimensions(self.graph, source.name)
        return {part for d in varying for part in self.parts.resolve(source.labels[d])}

    def varies_along_key(self, source: Source) -> bool:
        """May the elements of a source's row differ?"""
        return bool(set(self.parts.resolve(self.key)) & self.varying_parts(source))

    def draw(
        self, seed: int, masks: Container[str] = (), deviation: float = 2.0, mean: float = 0.0
    ) -> dict[str, np.ndarray]:
        """Random rows of the product, normal with this deviation and mean, and of all sources.

        masks: the sources that are conditions, or numbers that are 0 or LEFT_OUT.
        """
        random = np.random.default_rng(seed)
        drawn = {self.product.name: mean + deviation * random.standard_normal((ROWS, KEYS))}
        for source in self.sources.values():
            size = (ROWS, KEYS if self.varies_along_key(source) else 1)
            if source.name not in masks:
                drawn[source.name] = random.standard_normal(size)
                continue
            value: np.ndarray = random.random(size) < 0.6
            if size[1] > 1:  # each row has both
                value[:, 0], value[:, 1] = True, False
                value = random.permuted(value, axis=1)
            is_condition = self.graph[source.name].dtype is DType.PRED
            drawn[source.name] = value if is_condition else np.where(value, 0.0, LEFT_OUT)
        drawn.update({name: drawn[same] for name, same in self.aliases.items()})
        return drawn

    def replace_drawn(
        self, drawn: Mapping[str, np.ndarray], source: Source, values: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The same rows with other values of a source."""
        same = (alias for alias, name in self.aliases.items() if name == source.name)
        return {**drawn, **dict.fromkeys((source.name, *same), values)}

    def list_low(self) -> list[float]:
        """Numbers that may stand for scores that are left out."""
        read = {
            number
            for name in (*self.labels, *self._derived)
            for operand in self.graph[name].operands
            if operand not in self.labels
            and (number := read_scalar(self.graph, operand)) is not None
            and number <= -MOST_MULTIPLIER
        }
        read |= {self.lows[name] for name in self.sources if name in self.lows}
        return sorted({float(np.float32(number)) for number in read} | {LEFT_OUT}, reverse=True)

    def without_gain(self) -> Self:
        """The same functions, divided by nothing."""
        plain = copy.copy(self)
        plain._gain = 1.0
        return plain

    def in_f32(self) -> Self:
        """The same functions, each op rounded to f32."""
        narrow = copy.copy(self)
        narrow._float = np.dtype(np.float32)
        return narrow

    def evaluate(self, name: str, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """What an op gives for these rows, in f64: [ROWS, KEYS], or [ROWS, 1] where it is one number a row."""
        known = {
            name: x if x.dtype == np.bool_ else x.astype(self._float)
            for name, x in {**rows, **self._fixed}.items()
        }
        with np.errstate(all="ignore"):
            return self._evaluate(name, known, self._derived) / self._gain

    def fixing(self, source: Source, value: float, gain: float = 1.0) -> Self:
        """The same functions where a source has one value; what they give is divided by gain."""
        fixed = copy.copy(self)
        array = np.full((1, 1), value, self.graph[source.name].dtype.numpy)
        array = array.astype(np.float64) if array.dtype != np.bool_ else array
        same = (alias for alias, name in self.aliases.items() if name == source.name)
        fixed._fixed = dict.fromkeys((source.name, *same), array)
        fixed._gain = gain
        fixed.reads = {name: read - {source.name} for name, read in self.reads.items()}
        return fixed

    def _evaluate(
        self, name: str, known: dict[str, np.ndarray], derived: Container[str]
    ) -> np.ndarray:
        wanted = [name]
        while wanted:
            current = wanted[-1]
            if current in known:
                wanted.pop()
                continue
            node = self.graph[current]
            if current not in self.labels and current not in derived:
                scalar = read_scalar(self.graph, current)
                assert scalar is not None
                known[current] = np.full((1, 1), scalar, self._float)
                continue
            is_alone = OPS[node.op].is_reduce or isinstance(node.attrs, PadAttrs)
            operands = node.operands[:1] if is_alone else node.operands
            missing = [o for o in operands if o not in known]
            if missing:
                wanted += missing
                continue
            known[current] = self.apply(node, [known[o] for o in operands])
        return known[name]

    def apply(self, node: Node, operands: list[np.ndarray]) -> np.ndarray:
        """What one op gives for the rows of its operands."""
        row = OPS[node.op]
        if row.is_reduce:
            ufunc = _REDUCERS[monoid_of(node.regions[0]) or ""]
            whole = np.broadcast_to(operands[0], (ROWS, self._width(node.operands[0])))
            return np.asarray(ufunc.reduce(whole, axis=1, keepdims=True))
        if isinstance(node.attrs, (DimensionAttrs, SliceAttrs, PadAttrs)):
            return self._apply_longer(node, operands)
        if row.kind is not Kind.ELEMENTWISE:
            return operands[0]
        equal = np.broadcast_arrays(*operands)
        if row.is_conversion:
            return equal[0].astype(self._float if node.dtype.is_float else node.dtype.numpy)
        assert row.meaning is not None
        wide_type = DType.F64 if self._float == np.float64 else DType.F32
        dtype = wide_type if node.dtype.is_float else node.dtype
        wide = replace(node, type=ArrayType(dtype, equal[0].shape))
        found = np.asarray(row.meaning(wide, *equal))
        return found.astype(self._float) if node.dtype.is_float else found

    def _apply_longer(self, node: Node, operands: list[np.ndarray]) -> np.ndarray:
        """What appends a number to rows, cuts it off, or puts a 0 there."""
        if isinstance(node.attrs, DimensionAttrs):
            widths = [KEYS if o in self.labels else 1 for o in node.operands]
            whole = [np.broadcast_to(x, (ROWS, n)) for x, n in zip(operands, widths, strict=True)]
            return np.concatenate(whole, axis=1)
        if isinstance(node.attrs, PadAttrs):
            (label,) = (x for x in self.labels[node.name] if self.is_longer(x))
            whole = [np.broadcast_to(operands[0], (ROWS, KEYS))]
            return np.pad(whole[0], ((0, 0), self._longer[(label or ())[0]]))
        labels, attrs = self.labels[node.operands[0]], node.attrs
        assert isinstance(attrs, SliceAttrs)
        (d,) = (d for d, label in enumerate(labels) if self.is_longer(label))
        rows = np.broadcast_to(operands[0], (ROWS, self._width(node.operands[0])))
        low, _ = self._longer[(labels[d] or ())[0]]
        if self._is_key(self.labels[node.name][d]):
            return rows[:, low : low + KEYS]
        start = attrs.starts[d]
        return rows[:, [start if start < low else start - self.graph[node.operands[0]].shape[d]]]


class RowFunctions(_Rows):
    """The same, with sources that follow from others told by these.

    is_mask: of an array's name; given, sums of a bias and a mask are taken apart.
    """

    def __init__(
        self,
        graph: Graph,
        product: Node,
        key: int,
        order: Mapping[str, int],
        lows: Mapping[str, float],
        is_mask: Callable[[str], bool] | None = None,
    ) -> None:
        super().__init__(graph, product, key, order, lows)
        self._is_mask = is_mask
        self.takes_apart = False  # a sum of a bias and a mask
        self._derive_sources(order)

    def _derive_sources(self, order: Mapping[str, int]) -> None:
        """Of sources that are sums or multiples of other sources, only these are left: a number that rows are
        multiplied by may stand in front of some of their readers, and behind others.  Of those that are 0 or one other
        number, the condition is: it takes a byte."""
        aliased = set(self.aliases.values())
        read: dict[str, frozenset[str]] = {}
        for name in sorted(self.sources, key=lambda name: order[name]):
            if name in aliased:
                continue
            derived = (
                self._read_derived(name)
                or self._read_multiplier(name)
                or self._read_exponential(name)
                or self._read_masked_bias(name)
            )
            if derived is None:
                continue
            ops, read[name] = derived
            self._derived |= ops
            del self.sources[name]
        for name, sources in self.reads.items():
            leaves = [read.get(source, frozenset((source,))) for source in sources]
            self.reads[name] = frozenset().union(*leaves)

    def _read_derived(self, name: str) -> tuple[set[str], frozenset[str]] | None:
        """(the ops, the sources that they read), of a source that can be computed from others."""
        labels = tuple(map(self.parts.resolve, self.sources[name].labels))
        ops, read, pending = set[str](), set[str](), [name]
        while pending:
            node = self.graph[pending.pop()]
            if not _is_linear(node):
                return None
            ops.add(node.name)
            if len(ops) > MOST_DERIVED:
                return None
            for operand in node.operands:
                source = self.sources.get(self.aliases.get(operand, operand))
                if source is not None and source.name != name:
                    if tuple(map(self.parts.resolve, source.labels)) != labels:
                        return None
                    read.add(source.name)
                elif read_scalar(self.graph, operand) is None and operand not in ops:
                    pending.append(operand)
        return (ops, frozenset(read)) if read else None

    def _read_multiplier(self, name: str) -> tuple[set[str], frozenset[str]] | None:
        """(the ops, the condition), of a source that is 0 where a condition does not hold, and else one number; the
        condition becomes a source."""
        source, ops, current = self.sources[name], set[str](), name
        while self.graph[current].dtype is not DType.PRED:
            node = self.graph[current]
            varying = [o for o in node.operands if read_scalar(self.graph, o) is None]
            if not _is_linear(node) or len(varying) != 1 or len(ops) > MOST_DERIVED:
                return None
            ops.add(current)
            (current,) = varying
        same = self._repeated.get(
            _find_base(self.graph, self.parts, current, source.labels), current
        )
        if ops and same != current and same in self.sources:
            self.aliases[current] = same
            current = same
        condition = Source(current, source.labels)
        known = self.sources.get(current, condition)
        if not ops or current in self.aliases or known.labels != condition.labels:
            return None
        values = self._evaluate(name, {current: np.array([[True, False]])}, ops)
        if values[0, 1] != 0 or not 0 < values[0, 0] <= MOST_MULTIPLIER:
            return None
        self.sources[current] = condition
        return ops, frozenset((current,))

    def _read_exponential(self, name: str) -> tuple[set[str], frozenset[str]] | None:
        """(the ops, what they are of), of a source that repeats exponentials along rows; what these are of becomes a
        source: a sink is one in the exponent."""
        source = self.sources[name]
        if self.varies_along_key(source):
            return None
        repeated = self._list_repeated(source)
        node, labels = repeated[-1]
        if not _is_exponential(node):
            return None
        inner = Source(node.operands[0], labels)
        if self.sources.setdefault(inner.name, inner).labels != inner.labels:
            return None
        return {node.name for node, _ in repeated}, frozenset((inner.name,))

    def _read_masked_bias(self, name: str) -> tuple[set[str], frozenset[str]] | None:
        """(the ops, a bias and a mask), of a source that repeats their sum; both become sources.

        Apart they are smaller: a bias of all batches and a mask of all heads have a sum of each score.
        """
        source = self.sources[name]
        if self._is_mask is None or not self.varies_along_key(source):
            return None
        *above, (added, labels) = self._list_repeated(source)
        widths = [self.graph[node.name].dtype.bytes for node, _ in above]
        if any(width < added.dtype.bytes for width in widths):
            return None  # a narrower type may have no such low number
        if not _is_linear(added) or OPS[added.op].combiner is not np.add:
            return None
        if any(read_scalar(self.graph, o) is not None for o in added.operands):
            return None
        if sorted(map(self._is_mask, added.operands)) != [False, True]:
            return None
        ops = {added.name, *(node.name for node, _ in above)}
        known = dict(self.sources), dict(self.aliases), dict(self._repeated)
        try:
            for operand in added.operands:
                self._add_source(operand, labels)
        except NotARow:
            self.sources, self.aliases, self._repeated = known
            return None
        self.takes_apart = True
        return ops, frozenset(self.aliases.get(o, o) for o in added.operands)

    def _list_repeated(self, source: Source) -> list[tuple[Node, tuple[Label, ...]]]:
        """A source and what it repeats or converts, with the labels of their dimensions, outermost first."""
        node, labels = self.graph[source.name], tuple(map(self.parts.resolve, source.labels))
        found = [(node, labels)]
        while True:
            if isinstance(node.attrs, BroadcastAttrs):
                labels = tuple(labels[d] for d in node.attrs.dimensions)
            elif OPS[node.op].is_view and OPS[node.op].kind is Kind.INDEX:
                whole = tuple(p for label in labels for p in label)
                try:
                    labels = self.parts.regroup(whole, self.graph[node.operands[0]].shape)
                except NotARow:
                    return found
            elif not OPS[node.op].is_conversion:
                return found
            node = self.graph[node.operands[0]]
            found.append((node, labels))


def _find_base(
    graph: Graph, parts: Parts, name: str, labels: Sequence[Label]
) -> tuple[str, tuple[Label, ...]]:
    """(what an array repeats, the labels of its dimensions)."""
    node, places = graph[name], list(map(parts.resolve, labels))
    while isinstance(node.attrs, BroadcastAttrs):
        places = [places[d] for d in node.attrs.dimensions]
        node = graph[node.operands[0]]
    return node.name, tuple(places)


def _is_exponential(node: Node) -> bool:
    row = OPS[node.op]
    if row.kind is not Kind.ELEMENTWISE or row.is_conversion or not node.dtype.is_float:
        return False
    if len(node.operands) != 1 or row.meaning is None:
        return False
    points = np.array([-1.0, 0.0, 2.0])
    wide = replace(node, type=ArrayType(DType.F64, points.shape))
    with np.errstate(all="ignore"):
        return bool(np.allclose(row.meaning(wide, points), np.exp(points)))


def _is_linear(node: Node) -> bool:
    """May it stand between sources?  Comparisons may not: what is drawn for their operands does not expose them."""
    if isinstance(node.type, TupleType) or not OPS[node.op].is_linear:
        return False
    return node.dtype.is_float and node.dtype.bytes >= 2


def read_scalar(graph: Graph, name: str) -> float | None:
    """The number that each element of a constant is, repeated or not; None for what is no constant."""
    node = graph[name]
    while isinstance(node.attrs, BroadcastAttrs):
        node = graph[node.operands[0]]
    if not isinstance(node.attrs, ConstantAttrs):
        return None
    value = node.attrs.value.numpy()
    if not value.size or np.any(value != value.flat[0]):
        return None
    return float(value.flat[0].astype(np.float64))
