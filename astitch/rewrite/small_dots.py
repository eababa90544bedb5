"""Graph -> Graph: small products written out as multiplications and sums, which stitch ops compute.

A matrix times a vector, an outer product or a sum of few terms does little arithmetic: reading its operands from memory
takes longer.  A library computes it in a launch of its own, reads what a kernel has just written and writes what the
next one reads; written out it is part of these kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from astitch.device.gpu import Gpu
from astitch.graph.ir import ArrayType, DotAttrs, DType, Graph, Node, TransposeAttrs
from astitch.graph.matmul import label_product
from astitch.graph.ops import OPS, Kind, is_addition
from astitch.graph.stitchable import is_computed
from astitch.graph.storage import stored_value
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.packed_words import is_unknown_conversion, is_unpackable
from astitch.rewrite.product_weights import Part, Parts, list_parts, skip_moves
from astitch.rewrite.simplify import rewrite_graph

FEW = 4
"""Terms of a sum, or rows or columns of a result, that are few."""

READ_AGAIN_BYTES = 256 << 10
"""An operand of no more is read once for each of the few rows or columns, from the caches; of more only for one.  A
result of no more, or of no more than the operands, may read its terms element by element."""

LEAST_TRANSPOSED_BYTES = 8 << 20
"""The least size of a matrix that would be transposed in memory first, and that is read once for few rows or columns
side by side.  A smaller one goes through memory in less time than kernels wait for each other."""

LONG = 1024
"""Terms of a long sum.  Of a result of few rows and few columns a library adds it up in one block, term after term."""

READ_AGAIN_SHARE = 4
"""Of the L2: what the operands of such a product may take if its kernel reads them again from there."""

NO_LABEL = -1
"""Of a dimension of one element."""

LEAST_BESIDE = 32
"""Terms that lie side by side in memory where each number of the result is a sum of its own: a vector for each lane of
a warp at least."""

SUMMED = frozenset(
    {DType.F64, DType.F32, DType.F16, DType.BF16, *(d for d in DType if d.is_integer)}
)
"""Element types of products that are written out."""


def decompose_small_dots(
    graph: Graph, gpu: Gpu, log: Log | None = None, *, in_region: bool = False
) -> Graph:
    """The same function but for the order of sums, in f32 where a library may multiply in TF32.

    graph: simplified.  `log` hears of every product that is written out.
    in_region: is it a body or branch of XLA's?  Matrices times vectors stay there, and what XLA adds to an argument.
    """
    heard: Log = log or (lambda rule, node: None)
    small = {
        name: form
        for name in graph.nodes
        if (form := _find_small(graph, name, gpu))
        and not (in_region and _is_better_in_xla(graph, name, form))
    }
    if not small:
        return graph

    def write_out(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        form = small.get(node.name)
        if form is None:
            return None
        heard("write_out_product", node.name)
        return _put(draft, node, form)

    return rewrite_graph(graph, heard, write_out)


def write_out_dots(graph: Graph, most_terms: int) -> Graph:
    """The same with all products written out that have no more terms: for a kernel that can wait for no library."""
    forms = {
        node.name: form
        for node in graph
        if isinstance(node.attrs, DotAttrs) and (form := _find_summed(graph, node, most_terms))
    }

    def write_out(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        form = forms.get(node.name)
        if form is None:
            return None
        return _put(draft, node, form)

    return rewrite_graph(graph, lambda rule, node: None, write_out) if forms else graph


def _find_summed(graph: Graph, node: Node, most_terms: int) -> _Form | None:
    """The form of a product of so few terms, if its types can be added up."""
    attrs = node.attrs
    assert isinstance(attrs, DotAttrs)
    lhs, rhs = arrays = tuple(graph[operand].array for operand in node.operands)
    total = _type_of_sums(node)
    if attrs.algorithm or not _can_sum((*arrays, node.array), total):
        return None
    form = _label(attrs, lhs.shape, rhs.shape)
    return form if form.depth and node.array.size * form.depth <= most_terms else None


def _can_sum(arrays: Iterable[ArrayType], total: DType) -> bool:
    """Can products of these types be added up in another one?"""
    return all(
        array.dtype in SUMMED
        and array.dtype.is_float == total.is_float
        and array.dtype.bytes <= total.bytes
        for array in arrays
    )


@dataclass(frozen=True, slots=True)
class _Apart:
    """A product of few rows and columns of which both operands lie in one order.

    Dimensions of one element have a label that nothing else has.
    """

    operands: tuple[str, str]
    form: _Form


@dataclass(frozen=True, slots=True)
class _Form:
    """A product as sums over labels.  lhs, rhs: the label of each dimension of an operand: its place in the result, or
    from `rank` on one that is summed.  sizes: of the labels.  source: the labels of the larger operand in the order in
    which they lie in memory, where it is a transpose that is left out; else empty.  apart: the same product of the
    operands as they lie in memory, where each number of the result is a sum of its own; else None."""

    rank: int
    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    sizes: Mapping[int, int]
    source: tuple[int, ...] = ()
    apart: _Apart | None = None

    def count(self, labels: Sequence[int]) -> int:
        return math.prod(self.sizes[label] for label in labels)

    @property
    def summed(self) -> tuple[int, ...]:
        return tuple(sorted(label for label in self.sizes if label >= self.rank))

    @property
    def depth(self) -> int:
        """Terms of a sum."""
        return self.count(self.summed)

    @property
    def rows(self) -> tuple[int, ...]:
        """Labels of the left operand alone."""
        return tuple(label for label in self.lhs if label not in self.rhs)

    @property
    def columns(self) -> tuple[int, ...]:
        """Labels of the right operand alone."""
        return tuple(label for label in self.rhs if label not in self.lhs)

    @property
    def few(self) -> int:
        """Rows or columns, whichever are fewer."""
        return min(self.count(self.rows), self.count(self.columns))

    @property
    def is_gram(self) -> bool:
        """Few rows and few columns, each the sum of many terms: such as a covariance."""
        most = max(self.count(self.rows), self.count(self.columns))
        return most <= FEW and self.depth >= LONG


# ---- which are small ---------------------------------------------------------------------------------------------


def _find_small(graph: Graph, name: str, gpu: Gpu) -> _Form | None:
    """The form of a product that costs no more in the kernels around it than its way through memory and its launch."""
    node = graph[name]
    attrs = node.attrs
    if not isinstance(attrs, DotAttrs) or attrs.algorithm or not node.array.size:
        return None
    lhs, rhs = operands = tuple(graph[operand].array for operand in node.operands)
    total = _type_of_sums(node)
    if not _can_sum((*operands, node.array), total):
        return None
    form = _label(attrs, lhs.shape, rhs.shape)
    few = form.few
    again = max(lhs.bytes, rhs.bytes) > READ_AGAIN_BYTES and not _reads_gram(form, operands, gpu)
    if again and (apart := _find_apart(graph, node, form)):
        form = replace(form, apart=apart)
    elif form.depth > FEW and few > 1 and again:
        form = replace(form, source=_find_source(graph, node, form))
        if not form.source or few > FEW:
            return None
    elif min(few, form.depth) > FEW:
        return None
    if not form.depth or not _meets_kernel(graph, node):
        return None
    if any(_is_beyond_kernels(graph, operand) for operand in node.operands):
        return None
    large = node.array.bytes > max(READ_AGAIN_BYTES, sum(array.bytes for array in operands))
    if form.depth <= FEW and large and _walks_apart(form):
        return None
    lanes = gpu.sms * (gpu.fp64_lanes if total is DType.F64 else gpu.fp32_lanes_per_sm)
    arithmetic_us = 2 * node.array.size * form.depth / lanes / gpu.clock_ghz / 1e3
    memory_us = sum(array.bytes for array in (*operands, node.array)) / gpu.bandwidth_gbs / 1e3
    small = arithmetic_us <= memory_us + gpu.launch_us
    return form if small else None


def _reads_gram(form: _Form, operands: Sequence[ArrayType], gpu: Gpu) -> bool:
    """Can a kernel read the operands of such a product again for each row or column?  Where rows or columns lie side
    by side, neighbours in a warp read the same; else the L2 must have them."""
    if not form.is_gram:
        return False
    beside = all(labels[-1] < form.rank for labels in (form.lhs, form.rhs))
    return beside or sum(a.bytes for a in operands) <= gpu.l2_bytes // READ_AGAIN_SHARE


def _find_apart(graph: Graph, node: Node, form: _Form) -> _Apart | None:
    """The product of what its operands are moved from.

    None where a kernel that adds up the terms of each number apart would not read what lies side by side.
    """
    if not form.is_gram or form.few < 2:
        return None
    sides: list[tuple[str, Parts]] = []
    for name, labels in zip(node.operands, (form.lhs, form.rhs), strict=True):
        sides.append(skip_moves(graph, name, list_parts(graph[name].shape, [*map(str, labels)])))
    (lhs, summed), (rhs, of_rhs) = (_split_sums(parts, form) for _, parts in sides)
    if summed != of_rhs or any(len({*labels}) < len(labels) for labels in (lhs, rhs)):
        return None  # in another order, or a row or column is two dimensions
    sizes = {label: form.sizes[label] for label in (*lhs, *rhs)} | {NO_LABEL: 1}
    sizes |= {form.rank + i: part.extent for i, part in enumerate(summed)}
    x, y = (tuple(_relabel(part, summed, form) for part in parts) for _, parts in sides)
    if min(_count_beside(labels, sizes, form.rank) for labels in (x, y)) < LEAST_BESIDE:
        return None
    as_they_lie = _Form(form.rank, x, y, sizes)
    return _Apart((sides[0][0], sides[1][0]), as_they_lie)


def _split_sums(parts: Parts, form: _Form) -> tuple[list[int], list[Part]]:
    """Labels that the result has, and the parts that are summed."""
    held = [part for part in parts if part]
    kept = [label for part in held if (label := int(part.label)) < form.rank]
    return kept, [part for part in held if int(part.label) >= form.rank]


def _count_beside(labels: Sequence[int], sizes: Mapping[int, int], rank: int) -> int:
    """Terms of a sum that lie side by side in memory."""
    behind = itertools.takewhile(lambda label: label == NO_LABEL or label >= rank, reversed(labels))
    return math.prod(sizes[label] for label in behind)


def _relabel(part: Part | None, summed: Sequence[Part], form: _Form) -> int:
    if part is None:
        return NO_LABEL
    return form.rank + summed.index(part) if part in summed else int(part.label)


def _is_better_in_xla(graph: Graph, name: str, form: _Form) -> bool:
    """In a region: a product that XLA adds to an argument, which a loop carries, in place; or a matrix and a vector."""
    if form.depth > FEW and not form.is_gram:
        return True
    while len(users := graph.users[name]) == 1 and OPS[graph[users[0]].op].kind is Kind.INDEX:
        (name,) = users
    for user in graph.users[name]:
        others = (o for o in graph[user].operands if o != name)
        if is_addition(graph[user]) and any(_is_argument(graph, other) for other in others):
            return True
    return False


def _is_argument(graph: Graph, name: str) -> bool:
    node = graph[name]
    while OPS[node.op].kind is Kind.INDEX:
        node = graph[node.operands[0]]
    return node.is_parameter


def _is_beyond_kernels(graph: Graph, name: str) -> bool:
    """Does XLA alone convert what the operand is made of?  It does so as it multiplies; for a kernel it would store
    what it converts."""
    waiting, seen = [name], {name}
    while waiting:
        node = graph[waiting.pop()]
        if is_unknown_conversion(graph, node):
            if not is_unpackable(graph, node):
                return True
        elif OPS[node.op].kind in (Kind.ELEMENTWISE, Kind.INDEX, Kind.BROADCAST):
            waiting += [o for o in node.operands if o not in seen]
            seen.update(node.operands)
    return False


def _type_of_sums(node: Node) -> DType:
    return DType.F32 if node.dtype.is_narrow_float else node.dtype


def _label(attrs: DotAttrs, lhs: Sequence[int], rhs: Sequence[int]) -> _Form:
    left, right = label_product(attrs, len(lhs), len(rhs))
    rank = len(lhs) + len(rhs) - len(attrs.lhs_batch) - 2 * len(attrs.lhs_contracting)
    sizes = dict(zip((*left, *right), (*lhs, *rhs), strict=True))
    return _Form(rank, left, right, sizes)


def _find_source(graph: Graph, node: Node, form: _Form) -> tuple[int, ...]:
    """The labels of the larger operand as it lies in memory, if the product alone reads it transposed.

    What a kernel of ours computes it may as well write in another order.
    """
    by_rows = form.count(form.rows) >= form.count(form.columns)
    operand = graph[node.operands[0 if by_rows else 1]]
    if not isinstance(operand.attrs, TransposeAttrs) or graph.users[operand.name] != (node.name,):
        return ()
    if operand.array.bytes < LEAST_TRANSPOSED_BYTES:
        return ()
    if is_computed(graph, graph[stored_value(graph, operand.operands[0])]):
        return ()
    labels, permutation = (form.lhs if by_rows else form.rhs), operand.attrs.permutation
    return tuple(labels[permutation.index(d)] for d in range(len(labels)))


def _walks_apart(form: _Form) -> bool:
    """Do terms of neighbours in the result lie as far apart in an operand as there are terms?  No vector has them."""
    along = [labels for labels in (form.lhs, form.rhs) if form.rank - 1 in labels]
    return any(labels[-1] >= form.rank and form.sizes[labels[-1]] > 1 for labels in along)


def _meets_kernel(graph: Graph, node: Node) -> bool:
    """Does a kernel compute what the product reads, or read what it gives?  Alone it would be a launch all the same."""

    def finds(names: Sequence[str], neighbours: Callable[[str], Sequence[str]]) -> bool:
        waiting, seen = [*names], set(names)
        while waiting:
            other = graph[waiting.pop()]
            if is_computed(graph, other):
                return True
            if OPS[other.op].kind in (Kind.INDEX, Kind.BROADCAST):
                found = [name for name in neighbours(other.name) if name not in seen]
                waiting += found
                seen.update(found)
        return False

    above = finds(node.operands, lambda name: graph[name].operands)
    return above or finds(graph.users[node.name], lambda name: graph.users[name])


# ---- how they are written ----------------------------------------------------------------------------------------


def _put(draft: Draft, node: Node, form: _Form) -> str:
    if form.apart:
        return _put_numbers(draft, node, form.apart)
    return (_put_terms if form.depth <= FEW else _put_sums)(draft, node, form)


def _put_terms(draft: Draft, node: Node, form: _Form) -> str:
    """Each term of the sum at the shape of the result, one added to the other."""
    ops, total = DraftOps(node, draft), _type_of_sums(node)
    sides = zip(node.operands, (form.lhs, form.rhs), strict=True)
    lhs, rhs = (_cut_terms(ops, name, labels, form, total) for name, labels in sides)
    result = ""
    for x, y in zip(lhs, rhs, strict=True):
        term = ops.both("multiply", x, y)
        result = ops.both("add", result, term) if result else term
    return ops.convert(result, node.dtype)


def _cut_terms(
    ops: DraftOps, name: str, labels: Sequence[int], form: _Form, dtype: DType
) -> Iterator[str]:
    """What an operand gives to each term, in one order for both."""
    for index in itertools.product(*(range(form.sizes[label]) for label in form.summed)):
        at = dict(zip(form.summed, index, strict=True))
        part = _cut(ops, name, labels, form, at, dtype)
        yield _spread(ops, part, labels, form, range(form.rank))


def _put_sums(draft: Draft, node: Node, form: _Form) -> str:
    """All terms at once in the order of the larger operand, the few rows or columns beside its own; and their sums."""
    ops, total = DraftOps(node, draft), _type_of_sums(node)
    by_rows = form.count(form.rows) >= form.count(form.columns)
    larger, own, few = (
        (form.lhs, form.rows, form.columns) if by_rows else (form.rhs, form.columns, form.rows)
    )
    order = list(form.source or larger)
    if form.source:
        order[-1:-1] = few
    elif form.count(few) > 1:
        place = order.index(own[-1]) + 1 if by_rows else order.index(own[0])
        order[place:place] = few

    def read(name: str, labels: tuple[int, ...]) -> str:
        if form.source and labels == larger:
            name = ops.transpose(name, [labels.index(label) for label in form.source])
            labels = form.source
        return _spread(ops, ops.convert(name, total), labels, form, order)

    x, y = map(read, node.operands, (form.lhs, form.rhs))
    summed = [place for place, label in enumerate(order) if label >= form.rank]
    result = ops.sum(ops.both("multiply", x, y), summed)
    kept = [label for label in order if label < form.rank]
    result = ops.transpose(result, [kept.index(label) for label in sorted(kept)])
    return ops.reshape(ops.convert(result, node.dtype), node.shape)


def _put_numbers(draft: Draft, node: Node, apart: _Apart) -> str:
    """Each number of the few rows and columns as a sum of its own: their kernel reads each element once."""
    ops, total, form = DraftOps(node, draft), _type_of_sums(node), apart.form
    own = [label for label in (*form.rows, *form.columns) if label != NO_LABEL]
    order = [label for label in form.lhs if label not in (*own, NO_LABEL)]
    summed = [place for place, label in enumerate(order) if label >= form.rank]
    kept = [label for label in order if label < form.rank]

    def write(at: Mapping[int, int], labels: Sequence[int]) -> str:
        """The numbers at these places of the labels before, and at all places of `labels`."""
        if labels:
            first, *others = labels
            places = range(form.sizes[first])
            return ops.concatenate([write({**at, first: i}, others) for i in places], first)
        sides = zip(apart.operands, (form.lhs, form.rhs), strict=True)
        x, y = (
            _spread(ops, _cut(ops, name, lies, form, at, total), lies, form, order)
            for name, lies in sides
        )
        number = ops.sum(ops.both("multiply", x, y), summed)
        number = ops.transpose(number, [kept.index(label) for label in sorted(kept)])
        return ops.reshape(number, [form.sizes[d] if d in kept else 1 for d in range(form.rank)])

    return ops.convert(write({}, own), node.dtype)


def _cut(
    ops: DraftOps,
    name: str,
    labels: Sequence[int],
    form: _Form,
    at: Mapping[int, int],
    dtype: DType,
) -> str:
    """An operand at these places of some labels."""
    starts = [at.get(label, 0) for label in labels]
    limits = [at[label] + 1 if label in at else form.sizes[label] for label in labels]
    return ops.convert(ops.cut(name, starts, limits), dtype)


def _spread(
    ops: DraftOps, name: str, labels: Sequence[int], form: _Form, order: Sequence[int]
) -> str:
    """A value over the labels in an order of which it has some; others that it has are of one element."""
    kept = [label for label in labels if label in order]
    value = ops.reshape(name, [ops.draft[name].shape[labels.index(label)] for label in kept])
    places = [order.index(label) for label in kept]
    return ops.broadcast(value, [form.sizes[label] for label in order], places)
