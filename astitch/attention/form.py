"""What attention is, once it was found in a graph: Attention; and what its kernels are written for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from astitch.attention.biases import BiasGradient
from astitch.attention.choose import EXACT
from astitch.attention.conditions import Comparison
from astitch.attention.integers import Scale
from astitch.attention.layers import Layered
from astitch.attention.layout import Split, count_added
from astitch.attention.operands import Reader, Tensor, count_features, find_repeated
from astitch.attention.pages import Pages
from astitch.attention.rows import Label, RowFunctions, Source
from astitch.attention.softmax import NONE, Gradient, Mask, SinkGradient, Softmax
from astitch.graph.ir import DotAttrs, DType, Graph
from astitch.tile.attention_shape import AttentionShape, Layout
from astitch.tile.attention_shape import Comparison as LayoutComparison


@dataclass(frozen=True, kw_only=True)
class Attention:
    """What is replaced.

    causal, window: see AttentionAttrs.  masks, comparisons: what is no band.
    split: which parts are batch, heads and positions.  forward: the product with v; None where only the gradient is
    there.  gradients: the products that give dq, dk, dv; none without a gradient.  given: the gradient of the result.
    factor: what dq and dk are multiplied by beyond the library's.  tiles, through_masks: see AttentionAttrs.
    share, gives: see AttentionAttrs.  layers: of k and v, where both are the same layer of an array each; else none.
    pages: of k and v, where tables find both; else none.
    scales: of k and v, where both are multiplied by some (integers.py), None for one that is not; else nothing.
    gradient: how the program computes that of the scores.
    sinks, bias_gradients: the nodes that give that of a sink for each row, and of a bias.
    """

    rows: RowFunctions
    q: Tensor
    k: Tensor
    v: Tensor
    softmax: Softmax
    causal: bool
    window: int
    masks: tuple[Mask, ...]
    comparisons: tuple[Comparison, ...]
    split: Split
    forward: Reader | None
    gradients: tuple[Reader, ...]
    given: Tensor | None
    factor: float
    gradient: Gradient | None = None
    sinks: tuple[SinkGradient, ...] = ()
    bias_gradients: tuple[BiasGradient, ...] = ()
    tiles: str = ""
    through_masks: bool = False
    share: int = 0
    gives: str = ""
    layers: tuple[Layered, ...] = ()
    scales: tuple[Scale | None, ...] = ()
    pages: tuple[Pages, ...] = ()

    @property
    def added(self) -> list[Source]:
        """What has an element for each score, but for what drops probabilities."""
        compared = [side for c in self.comparisons for side in (c.left, c.right)]
        biases = [bias.source for bias in self.softmax.biases]
        return [*biases, *(mask.source for mask in self.masks), *compared]

    @property
    def has_empty_rows(self) -> bool:
        """See AttentionShape."""
        masked = bool(self.masks or self.comparisons)
        is_empty = self.softmax.empty != NONE and not self.softmax.sink
        return bool(self.tiles) and masked and self.causal and is_empty

    @property
    def readers(self) -> list[Reader]:
        """The products that are replaced."""
        return [*self.gradients, *([self.forward] if self.forward else [])]

    @property
    def products(self) -> set[str]:
        return {reader.product.name for reader in self.readers}


@dataclass(frozen=True)
class MaskForm:
    """The band that masks leave, the part of the queries that is their position, and what is no band."""

    causal: bool
    window: int
    positions: Label
    masks: tuple[Mask, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def others(self) -> bool:
        return bool(self.masks or self.comparisons)


def choose_precision(attention: Attention) -> str:
    """That of the most exact of its products."""
    products = [attention.rows.product, *(reader.product for reader in attention.readers)]
    exact = any(
        isinstance(p.attrs, DotAttrs)
        and (p.attrs.algorithm or any(x != "DEFAULT" for x in p.attrs.precision))
        for p in products
    )
    return EXACT if exact else "tf32"


def describe(attention: Attention, graph: Graph) -> AttentionShape:
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
        size = count_added(attention.rows, split, labels, of_library=False)
        return Layout(graph[source.name].dtype, size, (0, 0, by_row, by_column), 0)

    def lay_out_all(sources: Iterable[Source]) -> list[Layout]:
        return [layout for source in sources if (layout := lay_out_scores(source))]

    softmax = attention.softmax
    drop, sink = softmax.drop, softmax.sink
    scales = [
        Layout(DType.F32, scale.node.array.size if scale else 1, (0, 0, 1, 0), 1)
        for scale in attention.scales
    ]
    biases = lay_out_all(bias.source for bias in softmax.biases)
    masks = [replace(m, dtype=DType.PRED) for m in lay_out_all(m.source for m in attention.masks)]
    comparisons = []
    for c in attention.comparisons:
        left, right = lay_out_all([c.left, c.right])
        comparisons.append(LayoutComparison(c.direction, left, right))
    return AttentionShape(
        batch=batch,
        heads=heads,
        groups=groups,
        queries=queries,
        keys=keys,
        scale=softmax.scale,
        causal=attention.causal,
        window=attention.window,
        q=lay_out(attention.q, rows),
        k=lay_out(attention.k, columns),
        v=lay_out(attention.v, columns),
        o=lay_out(attention.v, rows),
        bias=biases[0] if biases else None,
        other_bias=biases[1] if len(biases) > 1 else None,
        precision=attention.tiles,
        cap=softmax.cap,
        drop=lay_out_scores(drop.source if drop else None),
        gain=drop.gain if drop else 0.0,
        masks=tuple(masks),
        comparisons=tuple(comparisons),
        low=softmax.low,
        gives=attention.gives,
        sink=Layout(DType.F32, heads, (0, 1, 0, 0), 0) if sink else None,
        k_scale=scales[0] if scales else None,
        v_scale=scales[1] if scales else None,
    )
