"""Graph -> Graph: what XLA pads in front of a convolution is padded by the kernel that gives it.

cuDNN pads both sides of an image alike, and spreads no image.  "SAME" at stride 2 wants one more row at the end, and a
transposed convolution zeros between the elements.  For these XLA writes a padded copy, behind the hook.  Written out
before ops are stitched, the copy is all that the kernel in front writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from astitch.graph.ir import (
    ConstantAttrs,
    ConvolutionAttrs,
    Graph,
    Node,
    PadAttrs,
    WindowDimension,
)
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.simplify import find_arranged_rules, rewrite_graph


def pad_convolutions(graph: Graph, log: Log | None = None) -> Graph:
    """The same function; `log` hears of every convolution whose image is padded in front of it.

    graph: with arranged convolutions.  Gradients stay as they are: XLA makes other calls of them.
    """
    heard: Log = log or (lambda rule, node: None)

    def pad(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        attrs = node.attrs
        if not isinstance(attrs, ConvolutionAttrs) or not _is_forward(draft, node, attrs):
            return None
        edges = [_edges(window) for window in attrs.window]
        if not any(map(any, edges)):
            return None
        heard("pad_convolution", node.name)
        return _put_padded(draft, node, attrs, edges)

    return rewrite_graph(graph, heard, pad, rules=find_arranged_rules)


def _is_forward(draft: Draft, node: Node, attrs: ConvolutionAttrs) -> bool:
    """Does XLA call it a convolution, and no gradient (xla/service/gpu/transforms/conv_rewriter.cc)?"""
    if attrs.batch_group_count > 1 or attrs.input_batch != attrs.output_batch:
        return False
    window = attrs.window
    if any(
        w.reversed or w.window_dilation > 1 or min(w.padding_low, w.padding_high) < 0
        for w in window
    ):
        return False
    spread = any(w.base_dilation > 1 for w in window)
    filter_ = draft[node.operands[1]]
    return not (
        spread and (isinstance(filter_.attrs, ConstantAttrs) or all(w.size == 1 for w in window))
    )


def _edges(window: WindowDimension) -> tuple[int, int, int]:
    """What cuDNN does not pad, of a dimension: in front, behind, between elements."""
    alike = min(window.padding_low, window.padding_high)
    between = window.base_dilation - 1
    return window.padding_low - alike, window.padding_high - alike, between


def _put_padded(
    draft: Draft, node: Node, attrs: ConvolutionAttrs, edges: list[tuple[int, int, int]]
) -> str:
    image = draft[node.operands[0]].array
    of = dict(zip(attrs.input_spatial, edges, strict=True))
    low, high, interior = zip(*(of.get(d, (0, 0, 0)) for d in range(image.rank)), strict=True)
    shape = tuple(
        extent + before + behind + max(extent - 1, 0) * between
        for extent, before, behind, between in zip(image.shape, low, high, interior, strict=True)
    )
    ops = DraftOps(node, draft)
    given = node.operands[0], ops.splat(0, image.dtype, ())
    padded = ops.add("pad", image.dtype, shape, given, PadAttrs(low, high, interior))
    window = tuple(
        replace(
            w,
            padding_low=w.padding_low - before,
            padding_high=w.padding_high - behind,
            base_dilation=1,
        )
        for w, (before, behind, _) in zip(attrs.window, edges, strict=True)
    )
    return draft.put(
        replace(node, operands=(padded, node.operands[1]), attrs=replace(attrs, window=window))
    )
