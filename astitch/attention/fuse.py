"""Graph -> Graph: softmax(q k^T) v and its gradient as one op each, so that no scores are written to memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np

from astitch.attention.early_scales import find_late_scales, scale_early
from astitch.attention.find import AMPERE, Search
from astitch.attention.form import Attention
from astitch.attention.integers import Scale
from astitch.attention.layout import POSITIONS_FIRST, Classes
from astitch.attention.operands import FEATURES, Tensor, find_repeated
from astitch.attention.pages import Pages
from astitch.attention.results import Result, find_results
from astitch.attention.rows import Label, RowFunctions, Source
from astitch.device.gpu import Gpu
from astitch.directives import NOTHING, Directives
from astitch.graph.edit import free_name, keep_live_nodes, sort_nodes
from astitch.graph.ir import (
    ArrayType,
    AttentionAttrs,
    Attrs,
    BroadcastAttrs,
    CompareAttrs,
    ConstantAttrs,
    DimensionsAttrs,
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
from astitch.graph.ops.attention import (
    ARRAYS,
    BIASES,
    SCALES,
    TABLES,
    has_two_statistics,
)
from astitch.rewrite.draft import Log
from astitch.rewrite.draft_ops import Region, number_zero, write_addition
from astitch.rewrite.product_weights import Layer
from astitch.rewrite.sums_as_products import find_products, write_products

LOWEST = {DType.BF16: -float(2 << 40), DType.F16: -float(2 << 14)}
"""What is added to a score to leave it out.  cuDNN subtracts such numbers, so that they must not be the lowest ones."""


def fuse_attention(
    graph: Graph,
    gpu: Gpu,
    log: Log | None = None,
    *,
    in_order: bool = False,
    left: list[str] | None = None,
    told: Directives = NOTHING,
) -> Graph:
    """The same function but for rounding: scores are not rounded to 16 bits in between.

    graph: simplified.  log: hears of every product that is replaced.
    in_order: all sums have a fixed order, which the library's gradient has not: it adds up dq by atomics.
    left: gets a line for each attention that stays as it is.  told: directives, which leave attention or keep it.
    """
    if gpu.compute_capability < AMPERE:
        return graph
    sums = find_products(graph)
    plain = write_products(graph, sums)
    names = {found.product.name: name for name, found in sums.items()}
    late = find_late_scales(plain)
    while True:
        given = scale_early(plain, late)
        search = Search(given, gpu, in_order=in_order, told=told, names=names)
        found = _search(search, {moved.product for moved in late}, told)
        taken = {name for attention in found for name in _list_products(attention)}
        kept = [moved for moved in late if moved.product in taken]
        if len(kept) == len(late):
            break
        late = kept  # the others are read as they are, by what is taken too
    if left is not None:
        left += search.left
    if not found:
        return graph
    nodes = {**graph.nodes, **given.nodes}
    # What else was a sum stays one.
    nodes |= {name: graph[name] for product, name in names.items() if product not in taken}
    for attention in found:
        for product in sorted(attention.products):
            if log:
                log("fuse_attention", product)
        _write(nodes, attention)
    live = keep_live_nodes(sort_nodes(nodes, [*given.nodes, *graph.outputs], {}), graph.outputs)
    return replace(graph, nodes=live)


def _search(search: Search, of_late: Collection[str], told: Directives) -> list[Attention]:
    """What is found and not left by a directive.

    of_late: products whose scales were moved in front of them, which only kernels that read integers may have.
    """
    found = []
    for attention in search.run():
        products = _list_products(attention)
        if products & {*of_late} and not attention.scales:
            continue
        origin = attention.rows.product.name
        known = {*products, f"{origin}.attention"}
        names = {search.names[name] for name in known if name in search.names}
        if told.covers("leave-attention", known | names):
            search.left.append(f"attention of %{origin}: a directive leaves it as it is")
        else:
            found.append(attention)
    return found


def _list_products(attention: Attention) -> set[str]:
    """Those that are replaced, and the one that gives the scores."""
    return {*attention.products, attention.rows.product.name}


def _write(nodes: dict[str, Node], attention: Attention) -> None:
    """Puts calls of attention in the place of its products."""
    at = _Place(nodes, attention.rows)
    origin, softmax = attention.rows.product, attention.softmax
    of_o = find_results(at.rows, attention.forward) if attention.forward else ()
    of_gradients, are_summed = _find_gradients(attention)
    split = attention.split.resolve(at.rows.parts)  # what was found may have cut them
    of_queries, of_keys = split.of_queries, split.of_keys
    q, q_order = at.gather(origin, attention.q, of_queries)
    k, k_order = at.gather_keys(origin, attention, 0, of_keys)
    v, v_order = at.gather_keys(origin, attention, 1, of_keys)
    attrs = AttentionAttrs(
        softmax.scale,
        attention.causal,
        attention.window,
        q_order,
        k_order,
        v_order,
        attention.tiles,
        attention.through_masks,
        softmax.cap,
        softmax.drop.gain if softmax.drop else 0.0,
        share=attention.share,
    )
    arrays = at.add_arrays(attention, of_queries)
    scales = [at.add_scale(origin, scale, of_keys) for scale in attention.scales]
    arrays += zip(SCALES, (name for name, _ in scales), strict=False)
    tables = [at.add_table(origin, pages, of_keys) for pages in attention.pages]
    arrays += zip(TABLES, tables, strict=False)
    if attention.layers:
        arrays.append(("layer", at.add_layer(origin, attention.layers[0].layer)))
    orders = tuple(order for _, order in scales)
    attrs = replace(attrs, arrays=tuple(name for name, _ in arrays), scales=orders)
    attrs = replace(attrs, page=attention.pages[0].size if attention.pages else 0)
    if attention.masks or attention.comparisons:
        attrs = replace(attrs, low=softmax.low, low_first=softmax.low_first)
    types = tuple(nodes[name].array for name in (q, k, v))
    rows = tuple(types[0].shape[d] for d in q_order[:3])
    if has_two_statistics(attrs):
        rows = (2, *rows)
    results = TupleType((types[0], ArrayType(DType.F32, rows)))  # v has as many features as q
    given_arrays = [value for _, value in arrays]
    call = at.add(origin, "attention", results, (q, k, v, *given_arrays), attrs)
    o = at.project(origin, call, 0)
    at.put(of_o, o, q_order, of_queries)
    if attention.given is None:
        return
    first, factor = attention.gradients[0].product, attention.factor
    given, _ = at.gather(first, attention.given, of_queries, q_order)
    if not are_summed:
        of_keys = split.of_repeated_keys
        k, k_order = at.gather(first, attention.k, of_keys)
        v, v_order = at.gather(first, attention.v, of_keys)
        attrs = replace(attrs, k=k_order, v=v_order)
        types = tuple(nodes[name].array for name in (q, k, v))
    statistics = at.project(origin, call, 1)
    if attention.tiles:
        o = at.add_delta(first, given, o, q_order)
        at.put_sinks(attention, of_queries, statistics, o, dict(arrays).get("sink"))
    if attention.has_empty_rows:
        given_arrays.append(at.add_empty(first, statistics, nodes[k].shape[k_order[1]]))
        attrs = replace(attrs, arrays=(*attrs.arrays, "empty"))
    operands = (q, k, v, statistics, given, o, *given_arrays)
    keys = at.rows.parts.resolve(at.rows.key)
    of_scores = (*of_queries.parts[:3], keys)
    if attention.gives:
        attrs = replace(attrs, gives=attention.gives)
        beside = ArrayType(types[0].dtype, tuple(map(at.rows.parts.extent, of_scores)))
        if attention.gives == "bias":
            beside = ArrayType(DType.F32, nodes[dict(arrays)["bias"]].shape)
        types = (*types, beside)
    back = at.add(first, "attention-gradient", TupleType(types), operands, attrs)
    dq, dk, dv = (at.project(first, back, index) for index in range(3))
    for found in attention.bias_gradients:
        value = at.project(first, back, 3)
        parts = [
            label if extent > 1 else ()
            for label, extent in zip(of_scores, types[3].shape, strict=True)
        ]
        value, parts = at.sum_over(nodes[found.name], value, parts, found.over)
        at.put_rows(nodes[found.name], value, parts, found.labels, found.factor)
    of_dq, of_dk, of_dv = of_gradients
    at.put(of_dq, dq, q_order, of_queries, factor)
    at.put(of_dk, dk, k_order, of_keys, factor)
    at.put(of_dv, dv, v_order, of_keys)


def _find_gradients(attention: Attention) -> tuple[tuple[tuple[Result, ...], ...], bool]:
    """(where dq, dk and dv are read, whether dk and dv are so as sums over the heads that share k and v).

    Where somebody reads the gradient of each repetition, they are not.
    """
    if not attention.gradients:
        return (), False
    rows, (dq, dk, dv) = attention.rows, attention.gradients
    summed = [find_results(rows, reader, attention.split.repeated) for reader in (dk, dv)]
    if all(summed):
        return (find_results(rows, dq), *summed), True
    return tuple(find_results(rows, reader) for reader in (dq, dk, dv)), False


@dataclass(frozen=True)
class _Place:
    """Adds nodes that turn operands of products into those of attention, and its results into theirs."""

    nodes: dict[str, Node]
    rows: RowFunctions

    def add(
        self,
        origin: Node,
        op: str,
        type_: Type,
        operands: Sequence[str],
        attrs: Attrs = NoAttrs(),
        regions: tuple[Graph, ...] = (),
    ) -> str:
        name = free_name(f"{origin.name}.{op}", self.nodes)
        self.nodes[name] = Node(
            name, op, type_, tuple(operands), attrs, regions, origin.op_name, origin.source
        )
        return name

    def project(self, origin: Node, value: str, index: int) -> str:
        type_ = self.nodes[value].type
        assert isinstance(type_, TupleType)
        element, attrs = type_.elements[index], GetTupleElementAttrs(index)
        return self.add(origin, "get-tuple-element", element, (value,), attrs)

    def gather(
        self, origin: Node, tensor: Tensor, classes: Classes, order: Order | None = None
    ) -> tuple[str, Order]:
        """(an array of four dimensions, their order).

        order: the one that is wanted; None: as the tensor lies, where it need not be moved, else POSITIONS_FIRST.
        """
        tensor = tensor.resolve(self.rows.parts)
        parts, array = tensor.parts, self.nodes[tensor.name].array
        places = None if order else classes.places(parts)
        if places is None:
            places = tuple((order or POSITIONS_FIRST).index(d) for d in range(4))
        whole = [part for c in places for part in classes.parts[c]]
        wanted = [tuple(p for p in classes.parts[c] if p in parts) for c in places]
        features = array.shape[tensor.labels.index(FEATURES)]
        value = tensor.name
        if array.dtype is not tensor.dtype:
            value = self.add(origin, "convert", ArrayType(tensor.dtype, array.shape), (value,))
        value = self._turn(origin, value, tensor.labels, wanted, features)
        value = self._repeat(origin, value, [p for c in wanted for p in c], whole, features)
        shape = tuple(prod(self._extent(p, features) for p in classes.parts[c]) for c in places)
        value = self._reshape(origin, value, shape)
        batch, heads, positions, last = (places.index(c) for c in range(4))
        return value, (batch, heads, positions, last)

    def gather_keys(
        self, origin: Node, attention: Attention, number: int, classes: Classes
    ) -> tuple[str, Order]:
        """The same of k (0) or v (1), or of their pages; of layers all, and the order of the dimensions behind."""
        tensor = (attention.k, attention.v)[number].resolve(self.rows.parts)
        if attention.pages:
            pages = attention.pages[number]
            if not attention.layers:
                return self._reshape(origin, pages.array, pages.shape), pages.order
            layered = attention.layers[number]
            shape = (layered.layer.count, *pages.shape)
            return self._reshape(origin, layered.array, shape), pages.order
        if not attention.layers:
            return self.gather(origin, tensor, classes)
        node = self.nodes[tensor.name]
        places = classes.places(tensor.parts)
        assert places is not None
        features = node.shape[tensor.labels.index(FEATURES)]
        layered = attention.layers[number]
        shape = tuple(prod(self._extent(p, features) for p in classes.parts[c]) for c in places)
        batch, heads, positions, last = (places.index(c) for c in range(4))
        value = self._reshape(origin, layered.array, (layered.layer.count, *shape))
        return value, (batch, heads, positions, last)

    def add_scale(self, origin: Node, scale: Scale | None, classes: Classes) -> tuple[str, Order]:
        """(the scales of keys or values as an array of four dimensions, their order).

        Batch, heads and positions are each there as a whole, or have extent 1.
        """
        if scale is None:
            return self._splat(origin, 1.0, ArrayType(DType.F32, (1, 1, 1, 1))), (0, 1, 2, 3)
        labels = tuple(map(self.rows.parts.resolve, scale.labels))
        parts = [p for label in labels for p in label]
        there = [c for c in range(3) if set(classes.parts[c]) & set(parts)]
        there.sort(key=lambda c: min(parts.index(p) for p in classes.parts[c] if p in parts))
        places = (*there, *(c for c in range(4) if c not in there))
        held = [tuple(p for p in classes.parts[c] if p in parts) for c in there]
        value = self._cut(origin, scale.node, labels)
        if scale.fills:
            array = ArrayType(DType.F32, self.nodes[value].shape)
            ends = [self._splat(origin, number, array) for number in (1.0, math.nan)]
            value = self.add(origin, "select", array, (value, *ends))
        value = self._turn(origin, value, labels, held)
        whole = [p for c in there for p in classes.parts[c]]
        value = self._repeat(origin, value, [p for c in held for p in c], whole, 1)
        shape = [prod(self.rows.parts.extents[p] for p in classes.parts[c]) for c in there]
        value = self._reshape(origin, value, (*shape, *(1,) * (4 - len(there))))
        batch, heads, positions, last = (places.index(c) for c in range(4))
        return value, (batch, heads, positions, last)

    def add_table(self, origin: Node, pages: Pages, classes: Classes) -> str:
        """The numbers of the pages, s32 [batch, 1, 1, pages of a sequence]."""
        batch, _, keys, _ = classes.parts
        labels = self.rows.parts.resolve(pages.labels)
        outer = tuple(p for p in keys if p in labels)
        extents = self.rows.parts.extents
        value = self._bound(origin, pages.table, pages.shape[pages.order[0]])
        value = self._reshape(origin, value, tuple(extents[p] for p in labels))
        value = self._turn(origin, value, [(p,) for p in labels], [(p,) for p in (*batch, *outer)])
        count, each = (prod(extents[p] for p in some) for some in (batch, outer))
        return self._reshape(origin, value, (count, 1, 1, each))

    def _bound(self, origin: Node, value: str, count: int) -> str:
        """Numbers of `count` things in 32 bits, bounded first where their type holds more than these with a sign."""
        array = self.nodes[value].array
        if not np.can_cast(array.dtype.numpy, np.int32):
            ends = [self._splat(origin, end, array) for end in (0, count - 1)]
            value = self.add(origin, "clamp", array, (ends[0], value, ends[1]))
        return self._widen(origin, value, dtype=DType.S32)

    def add_layer(self, origin: Node, layer: Layer) -> str:
        """The number of a layer."""
        one = ArrayType(DType.S32, (1, 1, 1, 1))
        if isinstance(layer.number, int):
            return self._splat(origin, layer.number, one)
        return self._reshape(origin, self._bound(origin, layer.number, layer.count), one.shape)

    def add_arrays(self, attention: Attention, classes: Classes) -> list[tuple[str, str]]:
        """(what it is, its name), of each array of scores; of a library the mask is a bias."""
        softmax, origin = attention.softmax, attention.rows.product
        narrow = self.nodes[origin.operands[0]].dtype
        found: list[tuple[str, str]] = []

        def add(name: str, source: Source, make: Callable[[str], str]) -> None:
            found.append((name, self._add_scores(attention, source, classes, make)))

        if not attention.tiles:
            for mask in attention.masks:
                make = partial(self._make_bias, origin, narrow=narrow, keeps_true=mask.keeps_true)
                add("bias", mask.source, make)
            for bias in softmax.biases:
                make = partial(self._make_bias, origin, narrow=narrow, factor=bias.factor)
                add("bias", bias.source, make)
            return found
        for name, bias in zip(BIASES, softmax.biases, strict=False):
            add(name, bias.source, partial(self._multiply, origin, factor=bias.factor))
        for mask in attention.masks:
            make = partial(self._make_conditions, origin, keeps_true=mask.keeps_true)
            add("mask", mask.source, make)
        for comparison in sorted(attention.comparisons, key=lambda c: ARRAYS.index(c.direction)):
            for side in (comparison.left, comparison.right):
                add(comparison.direction, side, partial(self._widen, origin, dtype=DType.S32))
        if drop := softmax.drop:
            kept = drop.keeps_true
            add(
                "drop",
                drop.source,
                lambda v: v if kept else self._make_conditions(origin, v, keeps_true=False),
            )
        if sink := softmax.sink:
            if sink.source:
                add("sink", sink.source, partial(self._widen, origin))
            else:
                one = ArrayType(DType.F32, (1, 1, 1, 1))
                found.append(("sink", self._splat(origin, math.log(sink.weight), one)))
        return found

    def _multiply(self, origin: Node, value: str, *, factor: float) -> str:
        if factor == 1.0:
            return value
        array = self.nodes[value].array
        return self.add(origin, "multiply", array, (value, self._splat(origin, factor, array)))

    def _widen(self, origin: Node, value: str, *, dtype: DType = DType.F32) -> str:
        array = self.nodes[value].array
        if array.dtype is dtype:
            return value
        return self.add(origin, "convert", ArrayType(dtype, array.shape), (value,))

    def put_sinks(
        self,
        attention: Attention,
        classes: Classes,
        statistics: str,
        delta: str,
        sink: str | None,
    ) -> None:
        """Puts what a sink's gradient is for each row in the place of nodes that give it: the negative of delta times
        the sink's probability."""
        if not attention.sinks or sink is None:
            return
        origin = self.nodes[attention.sinks[0].name]
        array = self.nodes[delta].array
        parts = [self.nodes[sink].shape[d] for d in range(3)]
        whole = [d for d in range(3) if parts[d] == array.shape[d]]
        short = self._reshape(origin, sink, tuple(parts[d] for d in whole))
        own = self.add(origin, "broadcast", array, (short,), BroadcastAttrs(tuple(whole)))
        below = self._subtract_statistics(origin, statistics, own)
        of_weight = self._subtract_statistics(origin, statistics, self._splat(origin, 0.0, array))
        for found in attention.sinks:
            node = self.nodes[found.name]
            raised = of_weight if found.of_weight else below
            p = self.add(node, "exponential", array, (raised,))
            product = self.add(node, "multiply", array, (p, delta))
            if not found.factor:
                product = self._splat(node, 0.0, array)
            labels = self.rows.resolved(node.name) or ()
            self.put_rows(node, product, classes.parts[:3], labels, -found.factor or 1.0)

    def put_rows(
        self,
        node: Node,
        value: str,
        given: Sequence[Label],
        wanted: Sequence[Label],
        factor: float,
    ) -> None:
        """Puts numbers whose dimensions have the parts `given`, times a factor, in the place of a node."""
        value = self._turn(node, value, given, list(map(self.rows.parts.resolve, wanted)))
        if factor != 1.0:
            value = self._multiply(node, self._widen(node, value), factor=factor)
        array = self.nodes[value].array
        if node.dtype is not array.dtype:
            value = self.add(node, "convert", ArrayType(node.dtype, array.shape), (value,))
        self.nodes[node.name] = replace(
            node, op="reshape", operands=(value,), attrs=NoAttrs(), regions=()
        )

    def _subtract_statistics(self, origin: Node, statistics: str, x: str) -> str:
        """x without the logarithm of the sum of exponentials of each row."""
        array = self.nodes[x].array
        if self.nodes[statistics].array.rank == array.rank:
            return self.add(origin, "subtract", array, (x, statistics))
        most, total = (self._take_statistic(origin, statistics, i) for i in range(2))
        unit = self._splat(origin, math.log(2), array)
        natural = self.add(origin, "multiply", array, (total, unit))
        below = self.add(origin, "subtract", array, (x, most))
        return self.add(origin, "subtract", array, (below, natural))

    def _take_statistic(self, origin: Node, statistics: str, index: int) -> str:
        array = self.nodes[statistics].array
        starts, limits = (index, 0, 0, 0), (index + 1, *array.shape[1:])
        attrs = SliceAttrs(starts, limits, (1,) * 4)
        type_ = ArrayType(array.dtype, (1, *array.shape[1:]))
        value = self.add(origin, "slice", type_, (statistics,), attrs)
        return self._reshape(origin, value, array.shape[1:])

    def _add_scores(
        self,
        attention: Attention,
        source: Source,
        classes: Classes,
        make: Callable[[str], str],
    ) -> str:
        """A source of the rows as an array of four dimensions.  make: of its values before they are repeated."""
        origin = attention.rows.product
        node, labels = find_repeated(self.rows, source)
        four = (*classes.parts[:3], self.rows.parts.resolve(self.rows.key))
        parts = [p for label in labels for p in label]
        wanted = [p for label in four for p in label if p in parts]
        value = self._cut(origin, node, labels)
        value = self._turn(origin, value, labels, [tuple(p for p in c if p in parts) for c in four])
        value = self._reshape(origin, value, tuple(self.rows.parts.extents[p] for p in wanted))
        # The library repeats batch and heads, our kernels all of them, but each as a whole.
        whole = [
            (c > 1 and not attention.tiles) or any(p in parts for p in label)
            for c, label in enumerate(four)
        ]
        repeated = [p for c, label in enumerate(four) if whole[c] for p in label]
        value = make(value)
        if wanted != repeated:
            dimensions = BroadcastAttrs(tuple(repeated.index(p) for p in wanted))
            extents = tuple(self.rows.parts.extents[p] for p in repeated)
            type_ = ArrayType(self.nodes[value].dtype, extents)
            value = self.add(origin, "broadcast", type_, (value,), dimensions)
        ends = tuple(
            prod(self.rows.parts.extents[p] for p in label) if whole[c] else 1
            for c, label in enumerate(four)
        )
        return self._reshape(origin, value, ends)

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

    def _make_bias(
        self,
        origin: Node,
        value: str,
        *,
        narrow: DType,
        keeps_true: bool = True,
        factor: float = 1.0,
    ) -> str:
        """The numbers that are added to scores, of an array of conditions or numbers."""
        value = self._multiply(origin, value, factor=factor)
        array = self.nodes[value].array
        result = ArrayType(narrow, array.shape)
        low = self._splat(origin, LOWEST[narrow], result)
        if array.dtype is DType.PRED:
            zero = self._splat(origin, 0.0, result)
            chosen = (zero, low) if keeps_true else (low, zero)
            return self.add(origin, "select", result, (value, *chosen))
        if array.dtype is not narrow:
            least = self._splat(origin, LOWEST[narrow], array)
            value = self.add(origin, "maximum", array, (value, least))
            return self.add(origin, "convert", result, (value,))
        return self.add(origin, "maximum", result, (value, low))

    def _make_conditions(self, origin: Node, value: str, *, keeps_true: bool) -> str:
        """What is kept, of conditions or of numbers that are 0 or very low."""
        array = self.nodes[value].array
        result = ArrayType(DType.PRED, array.shape)
        if array.dtype is DType.PRED:
            return value if keeps_true else self.add(origin, "not", result, (value,))
        zero = self._splat(origin, 0.0, array)
        return self.add(origin, "compare", result, (value, zero), CompareAttrs("EQ"))

    def add_empty(self, origin: Node, statistics: str, groups: int) -> str:
        """Which heads of k have a row without a score, whose statistics are not finite: [batch, heads of k, 1, 1]."""
        batch, heads, queries = self.nodes[statistics].shape
        rows = self._reshape(origin, statistics, (batch, groups, heads // groups * queries))
        infinite = ConstantAttrs(Literal.of(np.array(np.inf, np.float32)))
        start = self.add(origin, "constant", ArrayType(DType.F32, ()), (), infinite)
        region = Region(DType.F32)
        attrs = DimensionsAttrs((2,))
        regions = (region.end("minimum", region.op("minimum", DType.F32, ("a", "b"))),)
        array = ArrayType(DType.F32, (batch, groups))
        least = self.add(origin, "reduce", array, (rows, start), attrs, regions)
        conditions = ArrayType(DType.PRED, (batch, groups))
        finite = self.add(origin, "is-finite", conditions, (least,))
        return self._reshape(
            origin, self.add(origin, "not", conditions, (finite,)), (batch, groups, 1, 1)
        )

    def add_delta(self, origin: Node, given: str, o: str, order: Order) -> str:
        """The sum of do * o over the features: f32 [batch, heads, positions]."""
        wide = ArrayType(DType.F32, self.nodes[o].shape)
        factors = [
            name
            if self.nodes[name].dtype is DType.F32
            else self.add(origin, "convert", wide, (name,))
            for name in (given, o)
        ]
        product = self.add(origin, "multiply", wide, factors)
        total = self._sum(origin, product, (order[3],))
        kept = sorted(order[:3])
        rows = self.nodes[total].array
        permutation = tuple(kept.index(d) for d in order[:3])
        if permutation == (0, 1, 2):
            return total
        turned = ArrayType(DType.F32, tuple(rows.shape[d] for d in permutation))
        return self.add(origin, "transpose", turned, (total,), TransposeAttrs(permutation))

    def sum_over(
        self, origin: Node, value: str, labels: Sequence[Label], over: Label
    ) -> tuple[str, list[Label]]:
        """(the sum over what the array still has of these parts, the labels of its dimensions)."""
        parts = [p for label in labels for p in label]
        summed = set(self.rows.parts.resolve(over)).intersection(parts)
        if not summed:
            return value, list(labels)
        array = self.nodes[value].array
        wide = ArrayType(DType.F32, array.shape)
        if array.dtype is not DType.F32:
            value = self.add(origin, "convert", wide, (value,))
        value = self._reshape(origin, value, tuple(self.rows.parts.extents[p] for p in parts))
        places = tuple(d for d, p in enumerate(parts) if p in summed)
        return self._sum(origin, value, places), [(p,) for p in parts if p not in summed]

    def _sum(self, origin: Node, value: str, dimensions: tuple[int, ...]) -> str:
        """Of an array of f32."""
        shape = self.nodes[value].shape
        kept = ArrayType(DType.F32, tuple(n for d, n in enumerate(shape) if d not in dimensions))
        zero = self.add(origin, "constant", ArrayType(DType.F32, ()), (), number_zero(DType.F32))
        attrs, regions = DimensionsAttrs(dimensions), (write_addition(DType.F32),)
        return self.add(origin, "reduce", kept, (value, zero), attrs, regions)

    def _splat(self, origin: Node, number: float, array: ArrayType) -> str:
        constant = ConstantAttrs(Literal.of(np.array(number, array.dtype.numpy)))
        scalar = self.add(origin, "constant", ArrayType(array.dtype, ()), (), constant)
        return self.add(origin, "broadcast", array, (scalar,), BroadcastAttrs(()))

    def put(
        self,
        results: Iterable[Result],
        value: str,
        order: Order,
        classes: Classes,
        factor: float = 1.0,
    ) -> None:
        """Puts a result of attention in the place of nodes that give it."""
        for result in results:
            self._put(result, value, order, classes, factor)

    def _put(
        self, result: Result, value: str, order: Order, classes: Classes, factor: float
    ) -> None:
        node, array = result.node, self.nodes[value].array
        given = [classes.parts[order.index(d)] for d in range(4)]
        wanted = list(map(self.rows.parts.resolve, result.labels))
        value = self._turn(node, value, given, wanted, array.shape[order[3]])
        if factor != 1.0:
            wide = ArrayType(DType.F32, self.nodes[value].shape)
            value = self.add(node, "convert", wide, (value,))
            value = self.add(node, "multiply", wide, (value, self._splat(node, factor, wide)))
        if self.nodes[value].dtype is not node.dtype:
            type_ = ArrayType(node.dtype, self.nodes[value].shape)
            value = self.add(node, "convert", type_, (value,))
        self.nodes[node.name] = replace(
            node, op="reshape", operands=(value,), attrs=NoAttrs(), regions=()
        )

    def _extent(self, part: int, features: int) -> int:
        return features if part in FEATURES else self.rows.parts.extents[part]

    def _reshape(self, origin: Node, value: str, shape: tuple[int, ...]) -> str:
        array = self.nodes[value].array
        if array.shape == shape:
            return value
        return self.add(origin, "reshape", ArrayType(array.dtype, shape), (value,))

    def _repeat(
        self, origin: Node, value: str, parts: Sequence[int], wanted: Sequence[int], features: int
    ) -> str:
        """An array of these parts, repeated along those that it lacks."""
        if list(parts) == list(wanted):
            return value
        split = tuple(self._extent(p, features) for p in parts)
        value = self._reshape(origin, value, split)
        repeated = tuple(self._extent(p, features) for p in wanted)
        attrs = BroadcastAttrs(tuple(list(wanted).index(p) for p in parts))
        type_ = ArrayType(self.nodes[value].dtype, repeated)
        return self.add(origin, "broadcast", type_, (value,), attrs)

    def _turn(
        self,
        origin: Node,
        value: str,
        given: Sequence[Label],
        wanted: Sequence[Label],
        features: int = 1,
    ) -> str:
        """An array whose dimensions have these parts with the parts in another order; itself where that is the same.

        Parts that stay together in one dimension are one of the result, so that transposes around meet a plain one.
        """
        before, after = ([p for label in labels for p in label] for labels in (given, wanted))
        if before == after:
            return value
        pairs = {pair for label in given for pair in pairwise(label)}
        pairs &= {pair for label in wanted for pair in pairwise(label)}
        runs: list[list[int]] = []
        for part in before:
            if runs and (runs[-1][-1], part) in pairs:
                runs[-1].append(part)
            else:
                runs.append([part])
        split = tuple(prod(self._extent(p, features) for p in run) for run in runs)
        value = self._reshape(origin, value, split)
        firsts = [run[0] for run in runs]
        permutation = tuple(firsts.index(p) for p in after if p in firsts)
        turned = ArrayType(self.nodes[value].dtype, tuple(split[d] for d in permutation))
        return self.add(origin, "transpose", turned, (value,), TransposeAttrs(permutation))
