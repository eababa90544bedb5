"""Finds attention and its gradient in a Graph.

They are told by what they compute, not by how it is written.  Between the two products of attention stands a function
of one row of scores; it is attention if that function is a softmax of the scaled scores, with some of them left out or
shifted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from astitch.attention.choose import EXACT, project
from astitch.attention.dropped import read_dropped
from astitch.attention.layout import Split, choose_split, count_added
from astitch.attention.masks import Masks
from astitch.attention.operands import (
    Reader,
    Tensor,
    count_features,
    find_repeated,
    query_parts,
    read_gradient,
    read_operands,
    read_product,
)
from astitch.attention.rows import Label, RowFunctions, Source
from astitch.attention.softmax import Softmax, fit_gradient, fit_softmax, passes_masks
from astitch.device.gpu import Gpu
from astitch.graph.ir import DotAttrs, DType, Graph, Node
from astitch.graph.matmul import free_dimensions
from astitch.tile.attention import AttentionShape, Layout

LEAST_SCORES = 1 << 20
"""Scores below which the products and the softmax between them stay as they are: a kernel of ours takes longer."""

LEAST_OF_LIBRARY = 8 << 20
"""Scores below which the library is not called.  XLA's graphs of launches hold no call of it, so that each costs the
host 40 us: what the scores of 8 heads of 1,024 positions cost the GPU."""

NO_FORM = "no kernel has its form (docs/attention.md)"
NO_GRADIENT = "our kernels have no gradient beside numbers that are added to scores"
NOT_MEASURED = "no such kernel was measured on this GPU"

MOST_FEATURES, MOST_FEATURES_OF_HOPPER, FEATURES_MULTIPLE = 128, 256, 8
"""The features that cuDNN's kernels take."""

AMPERE, HOPPER = 80, 90
"""The compute capabilities from which cuDNN has these kernels, and has them for more features."""

ABSORBING = (DType.BF16,)
"""The types with a number that is all that is left of a score to which it is added, in f32."""

_OF_TILES = (DType.F16, DType.BF16, DType.F32)
"""The types that our own kernels read."""

LEAST_SAVED = 2
"""The scores must be so many times as large as a bias."""


@dataclass(frozen=True, kw_only=True)
class Attention:
    """What is replaced.

    causal, window: see AttentionAttrs.  mask_as_bias: the mask is no band, so that it is added to the scores.
    split: which parts are batch, heads and positions.  forward: the product with v; None where only the gradient is
    there.  gradients: the products that give dq, dk, dv; none without a gradient.  given: the gradient of the result.
    factor: what dq and dk are multiplied by beyond the library's.  tiles, through_masks: see AttentionAttrs.
    """

    rows: RowFunctions
    q: Tensor
    k: Tensor
    v: Tensor
    softmax: Softmax
    causal: bool
    window: int
    mask_as_bias: bool
    split: Split
    forward: Reader | None
    gradients: tuple[Reader, ...]
    given: Tensor | None
    factor: float
    tiles: str = ""
    through_masks: bool = False

    @property
    def readers(self) -> list[Reader]:
        """The products that are replaced."""
        return [*self.gradients, *([self.forward] if self.forward else [])]

    @property
    def products(self) -> set[str]:
        return {reader.product.name for reader in self.readers}


class Search:
    """Looks for attention in a graph.  in_order: all sums have a fixed order, which cuDNN's gradient has not."""

    def __init__(self, graph: Graph, gpu: Gpu, *, in_order: bool = False) -> None:
        self.graph, self.gpu, self.in_order = graph, gpu, in_order
        self.order = {name: number for number, name in enumerate(graph.nodes)}
        self.masks = Masks(graph)
        self.why = ""  # the softmax at hand has no kernel
        self.left: list[str] = []  # those without, each with the reason

    def run(self) -> Iterator[Attention]:
        """All that share no product, in the order of their scores."""
        taken: set[str] = set()
        for node in self.graph:
            if not may_be_scores(self.graph, node, self.gpu):
                continue
            self.why = ""
            for key in _key_dimensions(node, self.graph):
                attention = self.find(node, key)
                if attention and not taken & attention.products:
                    taken |= attention.products
                    yield attention
                    break
            else:
                if self.why:
                    self.left.append(f"%{node.name}: attention stays as it is: {self.why}")

    def find(self, scores: Node, key: int) -> Attention | None:
        """The attention of which a product gives the scores, the keys lying along a dimension of them."""
        graph = self.graph
        rows = RowFunctions(graph, scores, key, self.order)
        readers = _find_readers(graph, rows)
        if not readers or _escapes(graph, rows, {r.product.name for r in readers}):
            return None
        masks = self.masks.find(rows)
        softmax, kinds = None, dict[str, str]()
        values = list(dict.fromkeys(reader.value for reader in readers))
        for value in values:
            fitted = fit_softmax(rows, value, masks)
            if fitted and softmax in (None, fitted):
                softmax = fitted
                kinds[value] = "softmax"
        if softmax is None:
            return None
        self.why = NO_FORM
        source, factor, fits = None, 1.0, None
        for value in values:
            if value in kinds:
                continue
            fit = fit_gradient(rows, value, softmax, masks)
            if fit is None or fits not in (None, fit):
                return None
            fits = fit
            source, factor = fit
            drop = softmax.drop
            if drop and drop.source.name not in rows.reads[value]:
                dropped = read_dropped(rows, source, drop)
                if dropped is None:
                    return None
                source, factor = dropped[0], factor * dropped[1]
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
        return self.assemble(rows, softmax, forward, gradients, source, factor)

    def assemble(
        self,
        rows: RowFunctions,
        softmax: Softmax,
        forward: Reader | None,
        gradients: tuple[Reader, ...],
        source: Source | None,
        factor: float,
    ) -> Attention | None:
        """Attention, if the operands of all products are the same q, k, v and gradient, and the library takes them.

        source: the gradient of the probabilities.
        """
        graph, parts, scores = self.graph, rows.parts, rows.product
        left, right = read_operands(rows, scores, rows.resolved(scores.name) or ())
        q, k = (left, right) if rows.key_dimension == scores.array.rank - 1 else (right, left)
        v = forward.other if forward else None
        given = None
        if gradients:
            dq, dk, dv = gradients
            read = read_gradient(graph, rows, source) if source else None
            if read is None:
                return None
            given, values = read
            v = v or values
            same = ((values, v), (dq.other, k), (dk.other, q), (dv.other, given))
            if any(one.resolve(parts) != other.resolve(parts) for one, other in same):
                return None
            if self.waits_for(v.name, dv.product.name):
                return None  # the gradient needs v
        assert v is not None
        narrow = graph[scores.operands[0]].dtype
        tensors = [q, k, v, *([given] if given else [])]
        if any(tensor.dtype is not narrow for tensor in tensors):
            return None
        if count_features(graph, v) != count_features(graph, q):
            return None
        mask, bias = softmax.mask, softmax.bias
        found = self.masks.find_band(rows, mask, softmax.keeps_true) if mask else None
        (causal, window), positions = found or ((False, 0), _choose_positions(rows))
        mask_as_bias = mask is not None and found is None
        if mask_as_bias and (bias or not softmax.is_uniform):
            return None
        drop = softmax.drop.source if softmax.drop else None
        if drop and graph[drop.name].dtype not in (*_OF_TILES, DType.PRED):
            return None
        added = mask if mask_as_bias else bias
        varying = find_repeated(rows, added)[1] if added else None
        queries = [q, *([given] if given else [])]
        split = choose_split(rows, positions, queries, [k, v], varying)
        if added and count_added(rows, split, varying or ()) * LEAST_SAVED > scores.array.size:
            return None
        attention = Attention(
            rows=rows,
            q=q,
            k=k,
            v=v,
            softmax=softmax,
            causal=causal,
            window=window,
            mask_as_bias=mask_as_bias,
            split=split,
            forward=forward,
            gradients=gradients,
            given=given,
            factor=factor,
        )
        return self.choose(attention, added)

    def choose(self, attention: Attention, added: Source | None) -> Attention | None:
        """As our own kernels or the library have it; None where the plain ops are projected to take the least time.

        added: the mask or bias.
        """
        own = self.prepare_for_tiles(attention, added)
        library = attention if self.fits_library(attention, added) else None
        shape = _describe(replace(attention, tiles=_choose_precision(attention)), self.graph, added)
        projection = project(shape, self.gpu, gradient=bool(attention.gradients))
        if projection is None:
            if own:
                self.why = NOT_MEASURED
            return library
        known = [(projection.tiles_us, own), (projection.library_us, library)]
        found = [(us, form) for us, form in known if form]
        if not found:
            return None
        us, chosen = min(found, key=lambda pair: pair[0])
        if us < projection.plain_us:
            return chosen
        plain = f"{projection.plain_us:.0f} us are projected"
        self.why = f"{plain}, and {us:.0f} us of kernels of attention"
        return None

    def fits_library(self, attention: Attention, added: Source | None) -> bool:
        """Has cuDNN such a kernel?  added: the mask or bias."""
        narrow, features = attention.q.dtype, count_features(self.graph, attention.q)
        hopper = self.gpu.compute_capability >= HOPPER
        if (
            narrow not in (DType.F16, DType.BF16)
            or attention.rows.product.array.size < LEAST_OF_LIBRARY
            or features % FEATURES_MULTIPLE
            or features > (MOST_FEATURES_OF_HOPPER if hopper else MOST_FEATURES)
            or (self.in_order and attention.gradients)
            or attention.softmax.cap
            or attention.softmax.drop
            or (attention.mask_as_bias and narrow not in ABSORBING)
        ):
            return False
        if added is None:
            return True
        split, rows = attention.split, attention.rows
        queries, keys = (rows.parts.extent(label) for label in (split.positions, split.keys))
        if attention.gradients and (queries % 2 or keys % 2):
            return False
        return attention.mask_as_bias or find_repeated(rows, added)[0].dtype is narrow

    def prepare_for_tiles(self, attention: Attention, added: Source | None) -> Attention | None:
        """As our own kernels have it; None where they lack its form."""
        if added and not attention.mask_as_bias:
            if attention.gradients:  # one f32 a row is too little where all of it is left out
                self.why = NO_GRADIENT
                return None
            if self.graph[added.name].dtype not in _OF_TILES:
                return None
        found = replace(attention, tiles=_choose_precision(attention))
        if not (attention.mask_as_bias and attention.gradients):
            return found
        if attention.softmax.drop:
            return None
        value, masks = attention.gradients[0].value, self.masks.find(attention.rows)
        passes = passes_masks(attention.rows, value, attention.softmax, attention.factor, masks)
        return None if passes is None else replace(found, through_masks=passes)

    def waits_for(self, name: str, other: str) -> bool:
        """Is a node computed from another one?"""
        seen, stack = {name}, [name]
        while stack:
            current = stack.pop()
            if current == other:
                return True
            if self.order[current] > self.order[other]:
                new = [o for o in self.graph[current].operands if o not in seen]
                seen.update(new)
                stack += new
        return False


def _choose_positions(rows: RowFunctions) -> Label:
    """Where no mask tells, the largest part of the queries is their position: the others are groups of heads."""
    queries = query_parts(rows)
    return (max(queries, key=lambda part: rows.parts.extents[part]),) if queries else ()


def may_be_scores(graph: Graph, node: Node, gpu: Gpu) -> bool:
    """Is a node a product of types and sizes of which there may be kernels of attention?"""
    attrs = node.attrs
    if not isinstance(attrs, DotAttrs) or len(attrs.lhs_contracting) != 1:
        return False
    if node.array.size < LEAST_SCORES or not node.dtype.is_float:
        return False
    operands = [graph[o] for o in node.operands]
    features = operands[0].shape[attrs.lhs_contracting[0]]
    known = operands[0].dtype in _OF_TILES
    return known and operands[0].dtype is operands[1].dtype and features <= MOST_FEATURES_OF_HOPPER


def _choose_precision(attention: Attention) -> str:
    """That of the most exact of its products."""
    products = [attention.rows.product, *(reader.product for reader in attention.readers)]
    exact = any(
        isinstance(p.attrs, DotAttrs)
        and (p.attrs.algorithm or any(x != "DEFAULT" for x in p.attrs.precision))
        for p in products
    )
    return EXACT if exact else "tf32"


def _describe(attention: Attention, graph: Graph, added: Source | None) -> AttentionShape:
    """The attention as far as times depend on it."""
    parts, split = attention.rows.parts, attention.split
    extents = [parts.extent(label) for label in (split.batch, split.heads, split.positions)]
    batch, heads, queries = extents
    groups, keys = parts.extent(split.of_keys.parts[1]), parts.extent(split.keys)
    rows, columns = batch * heads * queries, batch * groups * keys

    def lay_out(tensor: Tensor, count: int) -> Layout:
        features = count_features(graph, tensor)
        return Layout(tensor.dtype, count * features, (0, 0, 0, 1), features)

    def lay_out_scores(source: Source | None) -> Layout | None:
        if source is None:
            return None
        labels = find_repeated(attention.rows, source)[1]
        varying = {p for label in labels for p in parts.resolve(label)}
        by_row, by_column = (
            int(not varying.isdisjoint(parts.resolve(label)))
            for label in (split.positions, split.keys)
        )
        size = count_added(attention.rows, split, labels)
        return Layout(graph[source.name].dtype, size, (0, 0, by_row, by_column), 0)

    drop = attention.softmax.drop
    return AttentionShape(
        batch=batch,
        heads=heads,
        groups=groups,
        queries=queries,
        keys=keys,
        scale=attention.softmax.scale,
        causal=attention.causal,
        window=attention.window,
        q=lay_out(attention.q, rows),
        k=lay_out(attention.k, columns),
        v=lay_out(attention.v, columns),
        o=lay_out(attention.v, rows),
        bias=lay_out_scores(added),
        precision=attention.tiles,
        cap=attention.softmax.cap,
        drop=lay_out_scores(drop.source if drop else None),
        gain=drop.gain if drop else 0.0,
    )


def _key_dimensions(node: Node, graph: Graph) -> Iterator[int]:
    """The dimensions of the scores that may be those of the keys: all that one operand has for itself."""
    attrs = node.attrs
    assert isinstance(attrs, DotAttrs)
    left, right = (graph[o].array for o in node.operands)
    lefts = free_dimensions(left.rank, attrs.lhs_batch, attrs.lhs_contracting)
    rights = free_dimensions(right.rank, attrs.rhs_batch, attrs.rhs_contracting)
    if len(rights) == 1 and node.shape[-1] > 1:
        yield node.array.rank - 1
    if len(lefts) == 1 and node.shape[len(attrs.lhs_batch)] > 1:
        yield len(attrs.lhs_batch)


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
