"""The products around the scores of attention: which arrays they multiply, and along which dimensions.

An array is known by what lies in front of transposes and reshapes, and by the parts that each of its dimensions is
made of.  So two spellings of one operand are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from astitch.attention.indices import varying_dimensions
from astitch.attention.rows import Label, NotARow, Parts, RowFunctions, Source
from astitch.graph.ir import BroadcastAttrs, DotAttrs, DType, Graph, Node, TransposeAttrs
from astitch.graph.matmul import free_dimensions
from astitch.graph.ops import OPS, Kind

FEATURES: Label = (-1,)
"""The label of the dimension of the features."""


@dataclass(frozen=True)
class Tensor:
    """An operand of a product, before transposes and repetitions.

    labels: the parts of each dimension.  dtype: what the product reads; the array may have another type.
    """

    name: str
    labels: tuple[Label, ...]
    dtype: DType

    def resolve(self, parts: Parts) -> Tensor:
        """With the finest parts."""
        return replace(self, labels=tuple(map(parts.resolve, self.labels)))

    @property
    def parts(self) -> Label:
        """In the order in which they lie."""
        return tuple(part for label in self.labels for part in label)


@dataclass(frozen=True)
class Reader:
    """A product that reads what is computed from scores.

    over_keys: sums over the keys; else over the queries.  other: its other operand.  labels: of its result.
    """

    product: Node
    value: str
    over_keys: bool
    other: Tensor
    labels: tuple[Label, ...]


def count_features(graph: Graph, tensor: Tensor) -> int:
    return graph[tensor.name].shape[tensor.labels.index(FEATURES)]


def read_product(
    graph: Graph, rows: RowFunctions, product: Node, value: str, keys: Label
) -> Reader | None:
    """How a product reads a value of the rows; None where it is neither of attention nor of its gradient."""
    attrs, labels = product.attrs, rows.resolved(value)
    assert isinstance(attrs, DotAttrs)
    if labels is None or product.operands[0] == product.operands[1]:
        return None
    side = product.operands.index(value)
    batches, contracted = (
        (attrs.lhs_batch, attrs.rhs_batch),
        (attrs.lhs_contracting, attrs.rhs_contracting),
    )
    over = tuple(p for d in contracted[side] for p in labels[d])
    batch = tuple(p for d in batches[side] for p in labels[d])
    wanted = batch_parts(rows)
    queries = query_parts(rows)
    if sorted(batch) != sorted(wanted) or sorted(over) not in (sorted(keys), sorted(queries)):
        return None
    other = graph[product.operands[1 - side]].array
    free = free_dimensions(other.rank, batches[1 - side], contracted[1 - side])
    narrow = graph[rows.product.operands[0]].dtype
    if len(free) != 1 or not _is_rounded(graph, product, narrow):
        return None
    theirs: list[Label] = [FEATURES] * other.rank
    for mine, its in zip(
        (*batches[side], *contracted[side]),
        (*batches[1 - side], *contracted[1 - side]),
        strict=True,
    ):
        theirs[its] = labels[mine]
    own = [labels[d] for d in free_dimensions(len(labels), batches[side], contracted[side])]
    result = [*own, FEATURES] if side == 0 else [FEATURES, *own]
    return Reader(
        product,
        value,
        sorted(over) == sorted(keys),
        peel(rows, product.operands[1 - side], tuple(theirs)),
        (*(labels[d] for d in batches[side]), *result),
    )


def _is_rounded(graph: Graph, node: Node, dtype: DType) -> bool:
    """Is a value of this type, or all that is read of it?  What is read in f32 would lose digits."""
    if node.dtype is dtype:
        return True
    if node.name in graph.outputs:
        return False
    for user in map(graph.__getitem__, graph.users[node.name]):
        row = OPS[user.op]
        if row.is_conversion:
            if user.dtype is not dtype:
                return False
        elif not (row.permutes or row.is_view) or not _is_rounded(graph, user, dtype):
            return False
    return True


def batch_parts(rows: RowFunctions) -> Label:
    """The parts of the batch dimensions of the scores."""
    attrs = rows.product.attrs
    assert isinstance(attrs, DotAttrs)
    labels = rows.resolved(rows.product.name) or ()
    return tuple(p for label in labels[: len(attrs.lhs_batch)] for p in label)


def query_parts(rows: RowFunctions) -> Label:
    """The parts of the dimensions of the scores that are neither of the batch nor of the keys."""
    attrs = rows.product.attrs
    assert isinstance(attrs, DotAttrs)
    labels = rows.resolved(rows.product.name) or ()
    free = range(len(attrs.lhs_batch), len(labels))
    return tuple(p for d in free if d != rows.key_dimension for p in labels[d])


def read_operands(rows: RowFunctions, product: Node, labels: Sequence[Label]) -> list[Tensor]:
    """The operands of a product whose result has these labels."""
    graph, attrs = rows.graph, product.attrs
    assert isinstance(attrs, DotAttrs)
    found: list[Tensor] = []
    place = len(attrs.lhs_batch)
    for name, batch, contracted in (
        (product.operands[0], attrs.lhs_batch, attrs.lhs_contracting),
        (product.operands[1], attrs.rhs_batch, attrs.rhs_contracting),
    ):
        array = graph[name].array
        own: list[Label] = [FEATURES] * array.rank
        for number, d in enumerate(batch):
            own[d] = labels[number]
        for d in free_dimensions(array.rank, batch, contracted):
            own[d] = labels[place]
            place += 1
        found.append(peel(rows, name, tuple(own)))
    return found


def peel(rows: RowFunctions, name: str, labels: tuple[Label, ...]) -> Tensor:
    """The array in front of what moves no element away from its row, and of conversions that lose nothing.

    Nor does what repeats an array along parts of the batch.  One that rounds is passed where a repetition is in front
    of it: the smaller array is rounded to the same numbers.
    """
    graph, parts = rows.graph, rows.parts
    node = graph[name]
    while True:
        before = _labels_repeated(rows, node, labels)
        if before is None:
            before = labels_before(graph, parts, node, labels)
        if before is None:
            return Tensor(node.name, labels, node.dtype)
        if OPS[node.op].is_conversion and not _widens(graph, node):
            here = Tensor(node.name, labels, node.dtype)
            ahead = peel(rows, node.operands[0], labels)
            is_converted_once = graph[ahead.name].dtype is ahead.dtype
            is_repeated = len(ahead.resolve(parts).parts) < len(here.resolve(parts).parts)
            return replace(ahead, dtype=node.dtype) if is_converted_once and is_repeated else here
        node, labels = graph[node.operands[0]], before


def _labels_repeated(
    rows: RowFunctions, node: Node, labels: Sequence[Label]
) -> tuple[Label, ...] | None:
    """The labels of what is repeated along parts of the batch alone; None for another op."""
    if not isinstance(node.attrs, BroadcastAttrs):
        return None
    before = rows.graph[node.operands[0]].shape
    kept = {
        target
        for target, extent in zip(node.attrs.dimensions, before, strict=True)
        if extent == node.shape[target]
    }
    lost = {p for d, label in enumerate(labels) if d not in kept for p in rows.parts.resolve(label)}
    if not lost.issubset(batch_parts(rows)):
        return None
    return tuple(labels[d] if d in kept else () for d in node.attrs.dimensions)


def labels_before(
    graph: Graph, parts: Parts, node: Node, labels: tuple[Label, ...]
) -> tuple[Label, ...] | None:
    """The labels of what is only moved or converted; None for another op."""
    if OPS[node.op].is_conversion:
        return labels
    if isinstance(node.attrs, TransposeAttrs):
        moved = list(labels)
        for target, source in enumerate(node.attrs.permutation):
            moved[source] = labels[target]
        return tuple(moved)
    if OPS[node.op].is_view and OPS[node.op].kind is Kind.INDEX:
        return regroup(parts, labels, node.shape, graph[node.operands[0]].shape)
    return None


def regroup(
    parts: Parts, labels: Sequence[Label], shape: Sequence[int], before: Sequence[int]
) -> tuple[Label, ...] | None:
    """The labels of the operand of a reshape; None where it splits the features or joins them to others."""

    def join(some: Sequence[Label]) -> Label:
        return tuple(part for label in some for part in label)

    try:
        if FEATURES not in labels:
            return parts.regroup(join(labels), before)
        place = list(labels).index(FEATURES)
        front, features = prod(shape[:place]), shape[place]
        for d, extent in enumerate(before):
            if prod(before[:d]) == front and extent == features:
                first = parts.regroup(join(labels[:place]), before[:d])
                last = parts.regroup(join(labels[place + 1 :]), before[d + 1 :])
                return (*first, FEATURES, *last)
    except NotARow:
        return None
    return None


def _widens(graph: Graph, node: Node) -> bool:
    if not OPS[node.op].is_conversion or not node.dtype.is_float:
        return False
    before = graph[node.operands[0]].dtype
    return before.is_float and before.bytes < node.dtype.bytes


def read_gradient(graph: Graph, rows: RowFunctions, source: Source) -> tuple[Tensor, Tensor] | None:
    """(the gradient of the result, v) of the product that gives the gradient of the probabilities."""
    node = graph[source.name]
    labels = tuple(map(rows.parts.resolve, source.labels))
    while before := labels_before(graph, rows.parts, node, labels):
        node, labels = graph[node.operands[0]], before
    if not isinstance(node.attrs, DotAttrs) or len(node.attrs.lhs_contracting) != 1:
        return None
    batch = [p for label in labels[: len(node.attrs.lhs_batch)] for p in rows.parts.resolve(label)]
    if sorted(batch) != sorted(batch_parts(rows)):
        return None
    left, right = read_operands(rows, node, labels)
    keys = rows.parts.resolve(rows.key)
    if keys in right.resolve(rows.parts).labels:
        return left, right
    return (right, left) if keys in left.resolve(rows.parts).labels else None


def find_repeated(rows: RowFunctions, source: Source) -> tuple[Node, tuple[Label, ...]]:
    """What a source repeats, with the labels of its dimensions; none where its elements are all the same."""
    node, labels = rows.graph[source.name], tuple(map(rows.parts.resolve, source.labels))
    while True:
        if isinstance(node.attrs, BroadcastAttrs):
            before: tuple[Label, ...] | None = tuple(labels[d] for d in node.attrs.dimensions)
        elif OPS[node.op].is_conversion and not _widens(rows.graph, node):
            break
        else:
            before = labels_before(rows.graph, rows.parts, node, labels)
        if before is None:
            break
        node, labels = rows.graph[node.operands[0]], before
    varying = varying_dimensions(rows.graph, node.name)
    return node, tuple(label if d in varying else () for d, label in enumerate(labels))
