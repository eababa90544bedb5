"""Graph -> Graph: what multiplies the channels behind a convolution multiplies its filter; what it adds is one bias.

A batch norm in inference is y * a + d with a number a channel for each.  The filter has fewer elements than the result.
With its channels multiplied before, the bias is all that is left.  XLA and cuDNN add it in the convolution, and with it
a residual and an activation.  So the result is written once in place of written, read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from astitch.graph.finished_products import repeats_feature, takes_bias
from astitch.graph.ir import BroadcastAttrs, ConvolutionAttrs, DType, Graph, Node
from astitch.rewrite.draft import Draft, Log
from astitch.rewrite.draft_ops import DraftOps
from astitch.rewrite.simplify import rewrite_graph

MOST_FILTERS, MOST_LYING = 2, 0.5
"""The filter is at most so many times as large as the result, which is written and read once less: a filter that is
turned anyway, and one that would be read as it lies."""


@dataclass(frozen=True, slots=True)
class _Step:
    """An op on each channel.  given: what it reads besides, a number a channel or one number; "" of none.  vector: is
    it a number a channel?  first: does it stand first?"""

    rule: _Rule
    given: str = ""
    vector: bool = False
    first: bool = False


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A convolution and the steps behind it, each of which alone reads the one before; the last is `end`."""

    convolution: Node
    steps: tuple[_Step, ...]
    end: str


def fold_scales(graph: Graph, log: Log | None = None) -> Graph:
    """The same function but for rounding: in bf16 the filter is multiplied in f32 and rounded once, the result too.
    What overflows on the way may be another value.

    graph: simplified.  `log` hears of every convolution whose filter is multiplied.
    """
    heard: Log = log or (lambda rule, node: None)
    convolutions = (node for node in graph if isinstance(node.attrs, ConvolutionAttrs))
    scaled = {found.end: found for node in convolutions if (found := _find_scaled(graph, node))}
    if not scaled:
        return graph

    def fold(node: Node, draft: Draft, names: Mapping[str, str]) -> str | None:
        found = scaled.get(node.name)
        if found is None:
            return None
        heard("fold_scale", found.convolution.name)
        return _put_folded(draft, found, names)

    return rewrite_graph(graph, heard, fold)


def _find_scaled(graph: Graph, node: Node) -> _Scaled | None:
    attrs = node.attrs
    assert isinstance(attrs, ConvolutionAttrs)
    source = _unrounded(graph, node.operands[1])
    if not takes_bias(graph, node) or node.dtype not in (DType.F32, DType.BF16):
        return None  # a multiplied filter may not lie within the range of f16
    if graph[source].dtype is not DType.F32:
        return None
    most = MOST_FILTERS if _is_turned(attrs) else MOST_LYING
    if graph[source].array.bytes > most * node.array.bytes:
        return None
    steps: list[_Step] = []
    found: _Scaled | None = None
    value = node.name
    while value not in graph.outputs and len(graph.users[value]) == 1:
        (user,) = graph.users[value]
        step = _read_step(graph, graph[user], value, attrs.output_feature)
        if step is None or graph[user].dtype not in (node.dtype, DType.F32):
            break
        steps.append(step)
        value = user
        # Numbers alone XLA takes as they are.
        channels = [step.rule for step in steps if step.vector]
        whole = any(r.scales for r in channels) and any(r.shifts for r in channels)
        if whole and graph[value].dtype is node.dtype:
            found = _Scaled(node, tuple(steps), value)
    return found


def _is_turned(attrs: ConvolutionAttrs) -> bool:
    """Does the filter lie in another order than libraries read?"""
    order = (attrs.kernel_output_feature, *attrs.kernel_spatial, attrs.kernel_input_feature)
    return order != tuple(sorted(order))


def _unrounded(graph: Graph | Draft, name: str) -> str:
    """What a filter was before it was rounded to 16 bits."""
    node = graph[name]
    rule = _RULES.get(node.op)
    return node.operands[0] if rule and rule.rounds else name


def _read_step(graph: Graph, node: Node, value: str, feature: int) -> _Step | None:
    rule = _RULES.get(node.op)
    if rule is None or not node.dtype.is_float or node.operands.count(value) != 1:
        return None
    if len(node.operands) == 1:
        return _Step(rule)
    first = node.operands.index(value) == 1
    other = graph[node.operands[0 if first else 1]]
    if (first and not rule.either) or not isinstance(other.attrs, BroadcastAttrs):
        return None
    (given,) = other.operands
    vector = repeats_feature(graph, other, feature)
    if not vector and graph[given].array.size != 1:
        return None
    return _Step(rule, given, vector, first)


def _put_folded(draft: Draft, found: _Scaled, names: Mapping[str, str]) -> str:
    """The convolution with its filter multiplied, and the bias added."""
    node = found.convolution
    attrs, ops = node.attrs, DraftOps(node, draft)
    assert isinstance(attrs, ConvolutionAttrs)
    channels = (node.shape[attrs.output_feature],)
    scale, bias = (ops.splat(number, DType.F32, channels) for number in (1.0, 0.0))
    for step in found.steps:
        given = _widen(ops, names, step, channels)
        scale, bias = step.rule.apply(ops, scale, bias, given, first=step.first)
    image, filter_ = (names[o] for o in node.operands)
    source, dtype = _unrounded(draft, filter_), draft[filter_].dtype
    shape = draft[filter_].shape
    factors = ops.broadcast(scale, shape, (attrs.kernel_output_feature,))
    multiplied = ops.convert(ops.both("multiply", source, factors), dtype)
    result = ops.add("convolution", node.dtype, node.shape, (image, multiplied), attrs)
    added = ops.broadcast(ops.convert(bias, node.dtype), node.shape, (attrs.output_feature,))
    return ops.both("add", result, added)


def _widen(ops: DraftOps, names: Mapping[str, str], step: _Step, channels: tuple[int, ...]) -> str:
    """What a step reads, in f32, for each channel."""
    if not step.given:
        return ""
    given = ops.convert(names[step.given], DType.F32)
    array = ops.draft[given].array
    if array.shape == channels:
        return given
    return ops.spread(ops.reshape(given, ()), channels)


# ---- steps: what they make of the scale and the bias -----------------------------------------------------------------


def _multiply(ops: DraftOps, scale: str, bias: str, given: str, *, first: bool) -> tuple[str, str]:
    return ops.both("multiply", scale, given), ops.both("multiply", bias, given)


def _divide(ops: DraftOps, scale: str, bias: str, given: str, *, first: bool) -> tuple[str, str]:
    return ops.both("divide", scale, given), ops.both("divide", bias, given)


def _add(ops: DraftOps, scale: str, bias: str, given: str, *, first: bool) -> tuple[str, str]:
    return scale, ops.both("add", bias, given)


def _subtract(ops: DraftOps, scale: str, bias: str, given: str, *, first: bool) -> tuple[str, str]:
    if first:
        return ops.negate(scale), ops.both("subtract", given, bias)
    return scale, ops.both("subtract", bias, given)


def _negate(ops: DraftOps, scale: str, bias: str, given: str, *, first: bool) -> tuple[str, str]:
    return ops.negate(scale), ops.negate(bias)


def _keep(ops: DraftOps, scale: str, bias: str, given: str, *, first: bool) -> tuple[str, str]:
    return scale, bias


@dataclass(frozen=True, slots=True)
class _Rule:
    """scales, shifts, rounds: does the op multiply, add, convert?  either: may what it reads besides stand first?"""

    apply: Callable[..., tuple[str, str]]
    scales: bool = False
    shifts: bool = False
    rounds: bool = False
    either: bool = True


_RULES: Mapping[str, _Rule] = {
    "multiply": _Rule(_multiply, scales=True),
    "divide": _Rule(_divide, scales=True, either=False),
    "add": _Rule(_add, shifts=True),
    "subtract": _Rule(_subtract, shifts=True),
    "negate": _Rule(_negate),
    "convert": _Rule(_keep, rounds=True),
}
