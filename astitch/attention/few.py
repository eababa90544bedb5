"""Attention of few queries, as a step of decoding has: a kernel of our own reads keys and values once, as they lie.

Takes an Attention that was found, hands on the same with the keys of a part, or why it stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from astitch.attention.form import Attention, choose_precision, describe
from astitch.attention.integers import find_scaled
from astitch.attention.layers import Layered, find_layered
from astitch.attention.operands import Tensor
from astitch.attention.pages import Pages, find_pages
from astitch.device.gpu import Gpu
from astitch.graph.ir import ArrayType, CustomCallAttrs, DType, Graph, Node
from astitch.graph.ops import OPS, Kind
from astitch.graph.storage import stored_value
from astitch.tile.few_queries import (
    choose_share,
    is_of_few,
    project_plain_us,
    project_us,
)
from astitch.tile.rates import HOPPER, MOST_ELEMENTS

LEAST_BYTES = 1 << 20
"""Of the keys.  Fewer are read in less time than a kernel takes to start."""

GAIN = 0.95
"""A kernel must take less than this part of what the plain ops take: projections err."""


@dataclass(frozen=True, slots=True)
class Stays:
    """Why attention stays as it is; empty: nothing speaks against it yet.

    is_choice: for its size or time.  Then the directive keep makes it a kernel, if it can be one.
    """

    why: str = ""
    is_choice: bool = False


def choose_few(
    graph: Graph, gpu: Gpu, attention: Attention, kept: bool = False
) -> Attention | Stays:
    """The same for a kernel of few queries; else why it stays.  kept: whatever its size and time."""
    if attention.forward is None:
        return Stays()
    reader = attention.forward.product.name
    attention = _read_scales(attention)
    pages = _find_pages(graph, attention)
    held = [stored_value(graph, of.array) for of in pages]
    held = held or [of.name for of in (attention.k, attention.v)]
    k, v = (find_layered(graph, graph[name], reader) for name in held)
    layers = (k, v) if k and v and k.layer == v.layer else ()
    precision = choose_precision(attention)
    found = replace(attention, tiles=precision, layers=layers, pages=pages)
    shape = describe(found, graph)
    if not is_of_few(shape) or found.gradients:
        return Stays()
    if reason := _why_not(graph, found):
        return Stays(reason)
    if gpu.compute_capability != HOPPER:
        return Stays("no such kernel was measured on this GPU")
    sizes = [array.size for array in (shape.q, shape.k, shape.v, *shape.arrays)]
    sizes += [graph[of.array].array.size for of in pages]
    if max(sizes) * max((of.layer.count for of in layers), default=1) > MOST_ELEMENTS:
        return Stays("an array is too large")
    size = shape.k.size * shape.k.dtype.bytes
    if size < LEAST_BYTES and not kept:
        return Stays(f"{size:,} bytes of keys are few: a kernel takes longer", is_choice=True)
    shape = replace(shape, share=choose_share(shape, gpu))
    us = project_us(shape, gpu)
    sums = not attention.split.positions
    plain_us = project_plain_us(shape, gpu, moves=_moves(found), sums=sums)
    if us > GAIN * plain_us and not kept:
        why = f"{plain_us:.0f} us are projected, and {us:.0f} us of a kernel of few queries"
        return Stays(why, is_choice=True)
    return replace(found, share=shape.share)


def _read_scales(attention: Attention) -> Attention:
    """With keys and values as what scales multiply, if both are."""
    if attention.q.dtype not in (DType.F16, DType.BF16):
        return attention
    k, v = (find_scaled(attention.rows, tensor) for tensor in (attention.k, attention.v))
    if k is None or v is None:
        return attention
    return replace(attention, k=k.tensor, v=v.tensor, scales=(k.scale, v.scale))


def _find_pages(graph: Graph, attention: Attention) -> tuple[Pages, ...]:
    """Of keys and values, if both have pages of one size."""
    parts, split = attention.rows.parts, attention.split
    k, v = (find_pages(graph, parts, split, tensor) for tensor in (attention.k, attention.v))
    return (k, v) if k and v and k.size == v.size else ()


def _why_not(graph: Graph, attention: Attention) -> str:
    """Why the kernel cannot compute it, or would read what others have to write first; empty: it can."""
    softmax = attention.softmax
    biases = [graph[bias.name].dtype for bias in softmax.biases]
    if attention.causal or softmax.drop:
        return "no kernel of few queries has its form"
    if any(dtype not in (DType.F16, DType.BF16, DType.F32) for dtype in biases):
        return "no kernel of few queries has its form"
    tensors = attention.k, attention.v
    held: Sequence[Layered | Pages] = attention.layers or attention.pages
    arrays = [of.array for of in held] or [tensor.name for tensor in tensors]
    for tensor, name in zip(tensors, arrays, strict=True):
        is_kept = graph[name].dtype is tensor.dtype and _is_in_memory(graph, name)
        if not is_kept or not (attention.pages or _keeps_order(attention, tensor)):
            return f"%{tensor.name} would be written to memory first"
    return ""


def _is_in_memory(graph: Graph, name: str) -> bool:
    """Do the products read an array, not what is computed from fewer bytes, gathered or cut out of another?"""
    whole = graph[name].array
    pending, seen = [name], {name}
    found = False
    while pending:
        node = graph[pending.pop()]
        if not isinstance(node.type, ArrayType) or node.array.size != whole.size:
            continue
        row = OPS[node.op]
        passes = row.kind is Kind.ELEMENTWISE or row.is_view or row.permutes
        if passes or row.writes_into:
            new = [name for name in node.operands[: None if passes else 1] if name not in seen]
            seen.update(new)
            pending += new
            continue
        if node.array.bytes < whole.bytes or not _is_handed_in(node):
            return False
        found = True
    return found


def _is_handed_in(node: Node) -> bool:
    """Is it an argument, a state, or what a library or a call gives?  What else XLA would write in any order."""
    kinds = Kind.COMPUTE, Kind.PROJECTION, Kind.CONTROL
    return (
        node.is_parameter or OPS[node.op].kind in kinds or isinstance(node.attrs, CustomCallAttrs)
    )


def _keeps_order(attention: Attention, tensor: Tensor) -> bool:
    """Need the kernel's operand not be moved?"""
    parts = attention.rows.parts
    split = attention.split.resolve(parts)
    return split.of_keys.places(tensor.resolve(parts).parts) is not None


def _moves(attention: Attention) -> bool:
    """Are keys or values in another order than products of a library read, or cut out of an array for them?"""
    if attention.pages or (attention.layers and attention.split.positions):
        return True
    parts = attention.rows.parts
    split = attention.split.resolve(parts)
    of_heads = {*split.batch, *split.heads}
    for tensor in (attention.k, attention.v):
        lies = tensor.resolve(parts).parts
        outer = [part for part in lies if part in of_heads]
        if lies[: len(outer)] != tuple(outer) and len(outer) > 1:
            return True
    return False
