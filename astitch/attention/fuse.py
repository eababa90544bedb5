"""Graph -> Graph: softmax(q k^T) v and its gradient as one op each, so that no scores are written to memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from astitch.attention.find import AMPERE, Attention, Search
from astitch.attention.operands import (
    FEATURES,
    Reader,
    Tensor,
    batch_parts,
    find_repeated,
    query_parts,
)
from astitch.attention.rows import Label, RowFunctions
from astitch.attention.softmax import Softmax
from astitch.device.gpu import Gpu
from astitch.graph.edit import free_name, keep_live_nodes, sort_nodes
from astitch.graph.ir import (
    ArrayType,
    AttentionAttrs,
    Attrs,
    BroadcastAttrs,
    ConstantAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    Literal,
    NoAttrs,
    Node,
    Order,
    SliceAttrs,
    TransposeAttrs,
    TupleType,
    Type,
)
from astitch.rewrite.draft import Log

POSITIONS_FIRST: Order = (0, 2, 1, 3)
"""Batch, positions, heads, features: where the heads of a position lie as one product gives them."""

LOWEST = {DType.BF16: -float(2 << 40), DType.F16: -float(2 << 14)}
"""What is added to a score to leave it out.  cuDNN subtracts such numbers, so that they must not be the lowest ones."""


def fuse_attention(
    graph: Graph, gpu: Gpu, log: Log | None = None, *, in_order: bool = False
) -> Graph:
    """The same function but for rounding: scores are not rounded to 16 bits in between.

    graph: simplified.  log: hears of every product that is replaced.
    in_order: all sums have a fixed order, so that the gradient stays: the library adds up dq by atomics.
    """
    if gpu.compute_capability < AMPERE:
        return graph
    found = [a for a in Search(graph, gpu).run() if not (in_order and a.gradients)]
    if not found:
        return graph
    nodes = dict(graph.nodes)
    for attention in found:
        for product in sorted(attention.products):
            if log:
                log("fuse_attention", product)
        _write(nodes, attention)
    live = keep_live_nodes(sort_nodes(nodes, [*graph.nodes, *graph.outputs], {}), graph.outputs)
    return replace(graph, nodes=live)


@dataclass(frozen=True)
class _Classes:
    """Of which parts the batch, the heads, the positions and the features of an array are made, outer ones first."""

    parts: tuple[Label, Label, Label, Label]

    def class_of(self, part: int) -> int:
        return next(c for c, label in enumerate(self.parts) if part in label)

    @staticmethod
    def of(attention: Attention) -> tuple[_Classes, _Classes]:
        """Those of queries, and those of keys.  Queries that share a head of keys are heads of their own."""
        rows = attention.rows
        outer, positions = batch_parts(rows), attention.positions
        batch, heads = outer[:-1], outer[-1:]
        groups = tuple(p for p in query_parts(rows) if p not in positions)
        keys = rows.parts.resolve(rows.key)
        return (
            _Classes((batch, heads + groups, positions, FEATURES)),
            _Classes((batch, heads, keys, FEATURES)),
        )


def _write(nodes: dict[str, Node], attention: Attention) -> None:
    """Puts calls of attention in the place of its products."""
    at = _Place(nodes, attention.rows)
    of_queries, of_keys = _Classes.of(attention)
    origin, softmax = attention.rows.product, attention.softmax
    q, q_order = at.gather(origin, attention.q, of_queries)
    k, k_order = at.gather(origin, attention.k, of_keys)
    v, v_order = at.gather(origin, attention.v, of_keys)
    attrs = AttentionAttrs(
        softmax.scale, attention.causal, attention.window, q_order, k_order, v_order
    )
    types = tuple(nodes[name].array for name in (q, k, v))
    rows = tuple(types[0].shape[d] for d in q_order[:3])
    results = TupleType((types[0], ArrayType(DType.F32, rows)))  # v has as many features as q
    bias = at.add_bias(attention, of_queries)
    call = at.add(origin, "attention", results, (q, k, v, *bias), attrs)
    o = at.project(origin, call, 0)
    if attention.forward:
        at.put_result(attention.forward, o, q_order, of_queries)
    if attention.given is None:
        return
    dq, dk, dv = attention.gradients
    first, factor = dq.product, attention.factor
    given, _ = at.gather(first, attention.given, of_queries, q_order)
    operands = (q, k, v, at.project(origin, call, 1), given, o, *bias)
    back = at.add(first, "attention-gradient", TupleType(types), operands, attrs)
    at.put_result(dq, at.project(first, back, 0), q_order, of_queries, factor)
    at.put_result(dk, at.project(first, back, 1), k_order, of_keys, factor)
    at.put_result(dv, at.project(first, back, 2), v_order, of_keys)


@dataclass(frozen=True)
class _Place:
    """Adds nodes that turn operands of products into those of attention, and its results into theirs."""

    nodes: dict[str, Node]
    rows: RowFunctions

    def add(
        self, origin: Node, op: str, type_: Type, operands: Sequence[str], attrs: Attrs = NoAttrs()
    ) -> str:
        name = free_name(f"{origin.name}.{op}", self.nodes)
        self.nodes[name] = Node(
            name, op, type_, tuple(operands), attrs, (), origin.op_name, origin.source
        )
        return name

    def project(self, origin: Node, value: str, index: int) -> str:
        type_ = self.nodes[value].type
        assert isinstance(type_, TupleType)
        element, attrs = type_.elements[index], GetTupleElementAttrs(index)
        return self.add(origin, "get-tuple-element", element, (value,), attrs)

    def gather(
        self, origin: Node, tensor: Tensor, classes: _Classes, order: Order | None = None
    ) -> tuple[str, Order]:
        """(an array of four dimensions, their order).

        order: the one that is wanted; None: as the tensor lies, where each class of parts is together and the features
        are innermost, else POSITIONS_FIRST.
        """
        tensor = tensor.resolve(self.rows.parts)
        parts = [part for label in tensor.labels for part in label]
        found = list(dict.fromkeys(classes.class_of(part) for part in parts))
        lies = [part for c in found for part in classes.parts[c] if part in parts]
        places = [*(c for c in range(4) if c not in found), *found]
        if order or lies != parts or found[-1] != 3:
            wanted = order or POSITIONS_FIRST
            places = [wanted.index(d) for d in range(4)]
        together = [part for c in places for part in classes.parts[c] if part in parts]
        features = self.nodes[tensor.name].shape[tensor.labels.index(FEATURES)]
        value = self._turn(origin, tensor.name, parts, together, features)
        shape = tuple(prod(self._extent(p, features) for p in classes.parts[c]) for c in places)
        value = self._reshape(origin, value, shape)
        batch, heads, positions, last = (places.index(c) for c in range(4))
        return value, (batch, heads, positions, last)

    def add_bias(self, attention: Attention, classes: _Classes) -> tuple[str, ...]:
        """The bias as [batch or 1, heads or 1, positions, keys]; nothing where there is none."""
        softmax, origin = attention.softmax, attention.rows.product
        source = softmax.mask if attention.mask_as_bias else softmax.bias
        if source is None:
            return ()
        node, labels = find_repeated(self.rows, source)
        keys = self.rows.parts.resolve(self.rows.key)
        narrow = self.nodes[origin.operands[0]].dtype
        four = (*classes.parts[:3], keys)
        parts = [p for label in labels for p in label]
        wanted = [p for label in four for p in label if p in parts]
        shape = tuple(self.rows.parts.extents[p] for p in parts)
        value = self._reshape(origin, self._cut(origin, node, labels), shape)
        value = self._turn(origin, value, parts, wanted, 1)
        # Batch and heads are repeated by the library, but as a whole.
        whole = [c > 1 or any(p in parts for p in label) for c, label in enumerate(four)]
        repeated = [p for c, label in enumerate(four) if whole[c] for p in label]
        extents = tuple(self.rows.parts.extents[p] for p in repeated)
        value = self._make_bias(origin, value, softmax, narrow)
        dimensions = BroadcastAttrs(tuple(repeated.index(p) for p in wanted))
        value = self.add(origin, "broadcast", ArrayType(narrow, extents), (value,), dimensions)
        ends = tuple(
            prod(self.rows.parts.extents[p] for p in label) if whole[c] else 1
            for c, label in enumerate(four)
        )
        return (self._reshape(origin, value, ends),)

    def _cut(self, origin: Node, node: Node, labels: Sequence[Label]) -> str:
        """A node's first elements along the dimensions without a label, where all are the same."""
        limits = tuple(
            extent if label else min(1, extent)
            for extent, label in zip(node.shape, labels, strict=True)
        )
        if limits == node.shape:
            return node.name
        attrs = SliceAttrs((0,) * len(limits), limits, (1,) * len(limits))
        return self.add(origin, "slice", ArrayType(node.dtype, limits), (node.name,), attrs)

    def _make_bias(self, origin: Node, value: str, softmax: Softmax, narrow: DType) -> str:
        """The numbers that are added to scores, of an array of conditions or numbers."""
        array = self.nodes[value].array
        result = ArrayType(narrow, array.shape)
        low = self._splat(origin, LOWEST[narrow], result)
        if array.dtype is DType.PRED:
            zero = self._splat(origin, 0.0, result)
            chosen = (zero, low) if softmax.keeps_true else (low, zero)
            return self.add(origin, "select", result, (value, *chosen))
        if array.dtype is not narrow:
            least = self._splat(origin, LOWEST[narrow], array)
            value = self.add(origin, "maximum", array, (value, least))
            return self.add(origin, "convert", result, (value,))
        return self.add(origin, "maximum", result, (value, low))

    def _splat(self, origin: Node, number: float, array: ArrayType) -> str:
        constant = ConstantAttrs(Literal.of(np.array(number, array.dtype.numpy)))
        scalar = self.add(origin, "constant", ArrayType(array.dtype, ()), (), constant)
        return self.add(origin, "broadcast", array, (scalar,), BroadcastAttrs(()))

    def put_result(
        self, reader: Reader, value: str, order: Order, classes: _Classes, factor: float = 1.0
    ) -> None:
        """Puts a result of attention in the place of a product."""
        product, array = reader.product, self.nodes[value].array
        parts = [p for d in range(4) for p in classes.parts[order.index(d)]]
        parts = [p for p in parts if self._extent(p, array.shape[order[3]]) != 1 or p in FEATURES]
        wanted = [p for label in reader.labels for p in self.rows.parts.resolve(label)]
        value = self._turn(product, value, parts, wanted, array.shape[order[3]])
        if factor != 1.0:
            wide = ArrayType(DType.F32, self.nodes[value].shape)
            value = self.add(product, "convert", wide, (value,))
            value = self.add(product, "multiply", wide, (value, self._splat(product, factor, wide)))
        if self.nodes[value].dtype is not product.dtype:
            type_ = ArrayType(product.dtype, self.nodes[value].shape)
            value = self.add(product, "convert", type_, (value,))
        self.nodes[product.name] = replace(
            product, op="reshape", operands=(value,), attrs=NoAttrs()
        )

    def _extent(self, part: int, features: int) -> int:
        return features if part in FEATURES else self.rows.parts.extents[part]

    def _reshape(self, origin: Node, value: str, shape: tuple[int, ...]) -> str:
        array = self.nodes[value].array
        if array.shape == shape:
            return value
        return self.add(origin, "reshape", ArrayType(array.dtype, shape), (value,))

    def _turn(
        self, origin: Node, value: str, parts: Sequence[int], wanted: Sequence[int], features: int
    ) -> str:
        """An array of these parts with the parts in another order; itself where that is the same."""
        if list(parts) == list(wanted):
            return value
        split = tuple(self._extent(p, features) for p in parts)
        value = self._reshape(origin, value, split)
        permutation = tuple(list(parts).index(p) for p in wanted)
        turned = ArrayType(self.nodes[value].dtype, tuple(split[p] for p in permutation))
        return self.add(origin, "transpose", turned, (value,), TransposeAttrs(permutation))
