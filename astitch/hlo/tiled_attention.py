"""Attention by kernels of our own: takes a node, hands on custom calls whose Triton IR XLA compiles.

Operands and results lie as the node has them: a kernel reads any order of dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from astitch.errors import IllegalProduct
from astitch.graph.ir import (
    ArrayType,
    AttentionAttrs,
    DType,
    GetTupleElementAttrs,
    Node,
    Order,
    TupleType,
)
from astitch.graph.ops.attention import COMPARISONS, SCALES, split_operands
from astitch.hlo.tile_call import render_tile_call
from astitch.tile.attention import (
    write_forward,
    write_forward_of_parts,
    write_gradient_of_bias,
    write_gradient_of_keys,
    write_gradient_of_queries,
    write_join,
)
from astitch.tile.attention_shape import AttentionShape, Comparison, Layout
from astitch.tile.few_queries import choose_tiling
from astitch.tile.program import TileProgram
from astitch.tile.rates import find_rates


def render_tiled_attention(
    node: Node, operands: Sequence[ArrayType]
) -> tuple[list[Node], list[str]]:
    """(nodes, the names of the results in order).

    node: attention or attention-gradient, with `tiles`.  operands: the types of its operands.
    Raises IllegalProduct for one of which no tiling is known.
    """
    if node.op == "attention-gradient":
        node, operands = _leave_sink_out(node, operands)
    shape = describe_shape(node, operands)
    assert isinstance(node.type, TupleType)
    results = node.type.elements
    if shape.parts > 1:
        return _call_by_parts(node, shape, results)
    if shape.share:
        return _call(node, "forward", write_forward(shape, choose_tiling(shape)), results)
    rates = find_rates(shape)
    if rates is None:
        raise IllegalProduct(f"no tiles are known for {node}")
    if node.op == "attention":
        return _call(node, "forward", write_forward(shape, rates.forward.tiling), results)
    of_q, *of_keys = results[:3]
    beside = results[3:]
    of_queries = [of_q, *(beside if shape.gives == "scores" else ())]
    program = write_gradient_of_queries(shape, rates.queries.tiling)
    nodes, (name, *last) = _call(node, "queries", program, of_queries)
    others, names = _call(node, "keys", write_gradient_of_keys(shape, rates.keys.tiling), of_keys)
    nodes += others
    if shape.gives == "bias":
        program = write_gradient_of_bias(shape, rates.bias.tiling)
        others, last = _call(node, "bias", program, beside)
        nodes += others
    return nodes, [name, *names, *last]


def _call_by_parts(
    node: Node, shape: AttentionShape, results: Sequence[ArrayType]
) -> tuple[list[Node], list[str]]:
    """The calls of attention whose keys have parts."""
    tiling = choose_tiling(shape)
    rows = (shape.parts, shape.batch, shape.heads, shape.queries)
    given = (ArrayType(DType.F32, (*rows, shape.v.features)), ArrayType(DType.F32, (2, *rows)))
    nodes, names = _call(node, "parts", write_forward_of_parts(shape, tiling), given)
    assert isinstance(node.attrs, AttentionAttrs)
    _, arrays = split_operands(node, node.operands)
    named = zip(node.attrs.arrays, arrays, strict=True)
    sinks = [name for array, name in named if array == "sink"]
    joined = replace(node, operands=(*names, *sinks))
    others, names = _call(joined, "forward", write_join(shape, tiling), results)
    return [*nodes, *others], names


def _leave_sink_out(node: Node, operands: Sequence[ArrayType]) -> tuple[Node, Sequence[ArrayType]]:
    """A gradient without its sink, which the statistics have."""
    a = node.attrs
    assert isinstance(a, AttentionAttrs)
    first = len(operands) - len(a.arrays)
    kept = [p for p in range(len(operands)) if p < first or a.arrays[p - first] != "sink"]
    attrs = replace(a, arrays=tuple(name for name in a.arrays if name != "sink"))
    names = tuple(node.operands[p] for p in kept)
    return replace(node, operands=names, attrs=attrs), [operands[p] for p in kept]


def describe_shape(node: Node, operands: Sequence[ArrayType]) -> AttentionShape:
    """What the kernels are written for."""
    a = node.attrs
    if not isinstance(a, AttentionAttrs):
        raise IllegalProduct(f"{node} is no attention")
    (q, k, v, *_), arrays = split_operands(node, operands)
    layers = k.shape[0] if "layer" in a.arrays else 0
    sizes = k.size, v.size
    if layers:
        k, v = (ArrayType(x.dtype, x.shape[1:]) for x in (k, v))
    layouts = [describe_layout(array, (0, 1, 2, 3)) for array in arrays]
    named = list(zip(a.arrays, layouts, strict=True))
    compared = [(name, layout) for name, layout in named if name in COMPARISONS]
    by_name = dict(named)
    given = [(name, array) for name, array in zip(a.arrays, arrays, strict=True) if name in SCALES]
    scales = {
        name: describe_layout(array, order)
        for (name, array), order in zip(given, a.scales, strict=True)
    }
    batch, heads, queries, _ = (q.shape[d] for d in a.q)
    _, groups, keys, _ = (k.shape[d] for d in a.k)
    if a.page:
        keys = a.page * arrays[a.arrays.index("k-pages")].shape[3]
    o = list(q.shape)
    o[a.q[3]] = v.shape[a.v[3]]
    return AttentionShape(
        batch=batch,
        heads=heads,
        groups=groups,
        queries=queries,
        keys=keys,
        scale=a.scale,
        causal=a.causal,
        window=a.window,
        q=describe_layout(q, a.q),
        k=replace(describe_layout(k, a.k), size=sizes[0]),
        v=replace(describe_layout(v, a.v), size=sizes[1]),
        o=describe_layout(ArrayType(q.dtype, tuple(o)), a.q),
        bias=by_name.get("bias"),
        other_bias=by_name.get("other-bias"),
        precision=a.tiles,
        through_masks=a.through_masks,
        cap=a.cap,
        drop=by_name.get("drop"),
        gain=a.gain,
        masks=tuple(layout for name, layout in named if name == "mask"),
        comparisons=tuple(
            Comparison(name, left, right)
            for (name, left), (_, right) in zip(compared[::2], compared[1::2], strict=True)
        ),
        sink=by_name.get("sink"),
        empty=by_name.get("empty"),
        low=a.low,
        low_first=a.low_first,
        gives=a.gives,
        share=a.share,
        layers=layers,
        k_scale=scales.get("k-scale"),
        v_scale=scales.get("v-scale"),
        page=a.page,
        page_counts=(k.shape[a.k[0]], v.shape[a.v[0]]) if a.page else (0, 0),
        k_pages=by_name.get("k-pages"),
        v_pages=by_name.get("v-pages"),
    )


def describe_layout(array: ArrayType, order: Order) -> Layout:
    """Of a row-major array; dimensions of extent 1 have no step."""
    steps = [
        prod(array.shape[d + 1 :]) if extent > 1 else 0 for d, extent in enumerate(array.shape)
    ]
    batch, heads, positions, features = (steps[d] for d in order)
    return Layout(
        array.dtype, array.size, (batch, heads, positions, features), array.shape[order[3]]
    )


def _call(
    node: Node, part: str, program: TileProgram, results: Sequence[ArrayType]
) -> tuple[list[Node], list[str]]:
    several = len(results) > 1
    name = f"{node.name}.{part}"
    type_ = TupleType(tuple(results)) if several else results[0]
    call = render_tile_call(node, name, type_, program)
    if not several:
        return [call], [name]
    parts = [
        Node(
            f"{name}.{index}",
            "get-tuple-element",
            result,
            (name,),
            GetTupleElementAttrs(index),
        )
        for index, result in enumerate(results)
    ]
    return [call, *parts], [part.name for part in parts]
