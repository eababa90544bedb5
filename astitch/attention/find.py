"""Finds attention and its gradient in a Graph.

They are told by what they compute, not by how it is written.  Between the two products of attention stands a function
of one row of scores; it is attention if that function is a softmax of the scaled scores, with some of them left out or
shifted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from astitch.attention.masks import find_mask
from astitch.attention.operands import (
    Reader,
    Tensor,
    count_features,
    find_repeated,
    free_dimensions,
    query_parts,
    read_gradient,
    read_operands,
    read_product,
)
from astitch.attention.rows import Label, RowFunctions, Source
from astitch.attention.softmax import Softmax, fit_gradient, fit_softmax
from astitch.device.gpu import Gpu
from astitch.graph.ir import DotAttrs, DType, Graph, Node

LEAST_SCORES = 1 << 20
"""Scores below which the products and the softmax between them stay as they are: a call of the library takes longer."""

MOST_FEATURES, MOST_FEATURES_OF_HOPPER, FEATURES_MULTIPLE = 128, 256, 8
"""The features that cuDNN's kernels take."""

AMPERE, HOPPER = 80, 90
"""The compute capabilities from which cuDNN has these kernels, and has them for more features."""

LEAST_SAVED = 2
"""The scores must be so many times as large as a bias."""


@dataclass(frozen=True)
class Attention:
    """What is replaced.  forward: the product with v; None where only the gradient is there.

    masked: the mask is a bias to the library, as it follows from data.
    gradients: the products that give dq, dk, dv; none without a gradient.  factor: what dq and dk are multiplied by
    beyond the library's.
    """

    graph: Graph
    rows: RowFunctions
    q: Tensor
    k: Tensor
    v: Tensor
    softmax: Softmax
    causal: bool
    window: int
    masked: bool
    positions: Label  # the part of the queries that is their position
    forward: Reader | None
    gradients: tuple[Reader, ...]
    factor: float
    gradient: Tensor | None

    @property
    def products(self) -> set[str]:
        readers = [*self.gradients, *([self.forward] if self.forward else [])]
        return {reader.product.name for reader in readers}


def find_attention(
    graph: Graph, scores: Node, key: int, order: Mapping[str, int]
) -> Attention | None:
    rows = RowFunctions(graph, scores, key, order)
    readers = _find_readers(graph, rows)
    if not readers or _escapes(graph, rows, {r.product.name for r in readers}):
        return None
    softmax, kinds = None, dict[str, str]()
    values = list(dict.fromkeys(reader.value for reader in readers))
    for value in values:
        fitted = fit_softmax(rows, value)
        if fitted and softmax in (None, fitted):
            softmax = fitted
            kinds[value] = "softmax"
    if softmax is None:
        return None
    gradient_source, factor = None, 1.0
    for value in values:
        if value in kinds:
            continue
        fit = fit_gradient(rows, value, softmax)
        if fit is None or gradient_source not in (None, fit[0]):
            return None
        gradient_source, factor = fit
        kinds[value] = "gradient"
    by_kind: dict[tuple[str, bool], list[Reader]] = {}
    for reader in readers:
        by_kind.setdefault((kinds[reader.value], reader.over_keys), []).append(reader)
    if any(len(same) > 1 for same in by_kind.values()):
        return None
    forward = by_kind.get(("softmax", True), [None])[0]
    wanted = (("gradient", True), ("gradient", False), ("softmax", False))
    gradients = tuple(by_kind[w][0] for w in wanted if w in by_kind)
    if len(gradients) not in (0, 3) or not (forward or gradients):
        return None
    return _assemble(graph, rows, key, softmax, forward, gradients, gradient_source, factor)


def may_be_scores(graph: Graph, node: Node, gpu: Gpu) -> bool:
    attrs = node.attrs
    if not isinstance(attrs, DotAttrs) or len(attrs.lhs_contracting) != 1:
        return False
    if node.array.size < LEAST_SCORES or not node.dtype.is_float:
        return False
    operands = [graph[o] for o in node.operands]
    features = operands[0].shape[attrs.lhs_contracting[0]]
    most = MOST_FEATURES_OF_HOPPER if gpu.compute_capability >= HOPPER else MOST_FEATURES
    narrow = operands[0].dtype in (DType.F16, DType.BF16) and operands[0].dtype is operands[1].dtype
    return narrow and features % FEATURES_MULTIPLE == 0 and features <= most


def key_dimensions(node: Node, graph: Graph) -> Iterator[int]:
    """The dimensions of the scores that may be those of the keys: all that one operand has for itself."""
    attrs = node.attrs
    assert isinstance(attrs, DotAttrs)
    left, right = (graph[o].array for o in node.operands)
    lefts = free_dimensions(left, attrs.lhs_batch, attrs.lhs_contracting)
    rights = free_dimensions(right, attrs.rhs_batch, attrs.rhs_contracting)
    if len(rights) == 1 and node.shape[-1] > 1:
        yield node.array.rank - 1
    if len(lefts) == 1 and node.shape[len(attrs.lhs_batch)] > 1:
        yield len(attrs.lhs_batch)


def _assemble(
    graph: Graph,
    rows: RowFunctions,
    key: int,
    softmax: Softmax,
    forward: Reader | None,
    gradients: tuple[Reader, ...],
    gradient_source: Source | None,
    factor: float,
) -> Attention | None:
    """Attention, if the operands of all products are the same q, k, v and gradient."""
    scores = rows.product
    left, right = read_operands(graph, rows.parts, scores, rows.resolved(scores.name) or ())
    q, k = (left, right) if key == scores.array.rank - 1 else (right, left)
    v = forward.other if forward else None
    gradient = None
    if gradients:
        dq, dk, dv = gradients
        assert gradient_source is not None
        read = read_gradient(graph, rows, gradient_source)
        if read is None:
            return None
        gradient, values = read
        v = v or values
        same = ((values, v), (dq.other, k), (dk.other, q), (dv.other, gradient))
        if any(one.resolve(rows.parts) != other.resolve(rows.parts) for one, other in same):
            return None
        if _waits_for(graph, v.name, dv.product.name):
            return None  # the gradient needs v
    assert v is not None
    tensors = [q, k, v, *([gradient] if gradient else [])]
    if len({graph[t.name].dtype for t in tensors}) > 1:
        return None
    if count_features(graph, v) != count_features(graph, q):
        return None
    shape = find_mask(graph, rows, softmax)
    masked = shape is None
    if masked and (softmax.bias or not softmax.takes_empty_rows):
        return None
    causal, window, positions = shape or (False, 0, query_parts(rows)[-1:])
    if (masked or softmax.bias) and not _takes_bias(graph, rows, softmax, positions, gradients):
        return None
    return Attention(
        graph,
        rows,
        q,
        k,
        v,
        softmax,
        causal,
        window,
        masked,
        positions,
        forward,
        gradients,
        factor,
        gradient,
    )


def _waits_for(graph: Graph, name: str, other: str) -> bool:
    """Is a node computed from another one?"""
    seen, stack = {name}, [name]
    while stack:
        current = stack.pop()
        if current == other:
            return True
        new = [o for o in graph[current].operands if o not in seen]
        seen.update(new)
        stack += new
    return False


def _takes_bias(
    graph: Graph,
    rows: RowFunctions,
    softmax: Softmax,
    positions: Label,
    gradients: Sequence[Reader],
) -> bool:
    """Is the library's form of a bias smaller than the scores, and of a type that loses nothing?"""
    queries, keys = (rows.parts.extent(label) for label in (positions, rows.key))
    if gradients and (queries % 2 or keys % 2):
        return False
    narrow = graph[rows.product.operands[0]].dtype
    if softmax.bias and find_repeated(rows, softmax.bias)[0].dtype is not narrow:
        return False
    source = softmax.bias or softmax.mask
    assert source is not None
    present = {p for label in find_repeated(rows, source)[1] for p in label}
    repeated = present | set(positions) | set(rows.parts.resolve(rows.key))
    elements = prod(rows.parts.extents[p] for p in repeated)
    return elements * LEAST_SAVED <= rows.product.array.size


def _find_readers(graph: Graph, rows: RowFunctions) -> list[Reader]:
    """The products of what is computed from the scores; none if one of them is of another form."""
    found: list[Reader] = []
    keys = rows.parts.resolve(rows.key)
    for value in rows.labels:
        for user in graph.users[value]:
            product = graph[user]
            if user in rows.labels or not isinstance(product.attrs, DotAttrs):
                continue
            reader = read_product(graph, rows, product, value, keys)
            if reader is None:
                return []
            found.append(reader)
    return found


def _escapes(graph: Graph, rows: RowFunctions, products: Iterable[str]) -> bool:
    """Does anything but these products read what is computed from the scores?"""
    inside = {*rows.labels, *products}
    outputs = set(graph.outputs)
    return any(name in outputs or not inside.issuperset(graph.users[name]) for name in rows.labels)
