"""Graph -> Graph: sums in another order, so that reductions wait less and scattered sums need no array of zeros.

A reduce may read the result of another over the same elements.  That costs a block barrier where rows stay on chip,
else a global barrier and one more reading of memory.  Five rules, all of them exact in real numbers:

    sum(r * a) = r * sum(a)               r constant along the sum and itself the child of a reduce
    mean(a), sum((a - mean(a))^2)         one reduce of (count, sum, lost, M2), joined by Chan's formula
    max(a), sum(exp(a - max(a)))          one reduce of (max, sum), the sums rescaled to the larger max
    y + scatter(0, i, u)                  scatter(y, i, u), as XLA has it: the gradient of a table that is read twice
    sum over the batches of a product     a product whose sum goes over them: the gradient of a weight in TensorFlow

The first is applied wherever it makes a sum wait for fewer others; the joint ones only where the reduced elements do
not stay on chip, for there two plain passes over registers are quicker and as accurate.  Rounding moves by a few units
in the last place of the accumulation type, as it does with any other order of a sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from astitch.graph.edit import keep_live_nodes
from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    ConstantAttrs,
    DimensionsAttrs,
    DotAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    Literal,
    Node,
    ScatterAttrs,
    TupleType,
)
from astitch.graph.joint_regions import EXPONENTIALS, MOMENTS, exponentials_region, moments_region
from astitch.graph.matmul import canonical_dot
from astitch.graph.ops import OPS, is_addition, monoid_of
from astitch.rewrite.draft import Draft, Log, is_zero, read_splat
from astitch.rewrite.simplify import rewrite_graph, start_draft

SUMMED = frozenset({DType.F32, DType.F64})
"""Types whose sums are rounded so finely that their order is free; narrower ones are summed as one of these."""

MAX_FACTORS = 8
"""Factors that leave one sum: powers of a factor would leave as many times as they are multiplied."""

LEAST_OF_OPERANDS = 4
"""For one product to pay, its operands may be at most so many times larger than the products of all batches.  A long
sum that gives little leaves most of a GPU idle."""

ON_CHIP_BYTES = 64 * 1024
"""A row of at most this size is taken to stay in one block's registers or shared memory."""


def reassociate(graph: Graph, log: Log | None = None) -> Graph:
    """The same function in real arithmetic; the number and order of parameters and outputs stay.

    graph: simplified.  Regions are left as they are.  `log` hears of every rule that fires.
    """
    heard: Log = log or (lambda rule, node: None)
    graph = _contract_batches(scatter_into_addends(graph, heard), heard)
    if sum(OPS[node.op].is_reduce for node in graph) < 2:
        return graph
    return _hoist_factors(_join_reductions(graph, heard), heard)


# ---- what is known of a reduce


def _reduced(node: Node) -> tuple[int, ...]:
    assert isinstance(node.attrs, DimensionsAttrs)
    return node.attrs.dimensions


def _is_reduce(node: Node, monoid: str) -> bool:
    """A reduce of one floating-point array by this monoid."""
    return (
        OPS[node.op].is_reduce
        and len(node.operands) == 2
        and isinstance(node.type, ArrayType)
        and node.dtype in SUMMED
        and monoid_of(node.regions[0]) == monoid
    )


def _stays_on_chip(graph: Graph, name: str, reduced: tuple[int, ...]) -> bool:
    """Do the reduced elements lie side by side, few enough for one block?"""
    array = graph[name].array
    node = graph[name]
    element_bytes = (
        graph[node.operands[0]].dtype.bytes if OPS[node.op].is_conversion else array.dtype.bytes
    )
    rank = len(array.shape)
    rows = tuple(range(rank - len(reduced), rank)) == tuple(sorted(reduced))
    return rows and math.prod(array.shape[d] for d in reduced) * element_bytes <= ON_CHIP_BYTES


# ---- joint reductions


@dataclass(frozen=True, slots=True)
class _Pair:
    """first: the reduce that the second one waits for.  source: what both reduce.  center: what the second one
    subtracts, of the first one's shape.  kind: moments or exponentials."""

    kind: str
    first: str
    second: str
    source: str
    center: str


def _join_reductions(graph: Graph, log: Log) -> Graph:
    pairs = _find_pairs(graph)
    if not pairs:
        return graph
    by_first = {p.first: p for p in pairs}
    by_second = {p.second: p for p in pairs}
    draft = start_draft(graph, log)
    values: dict[str, str] = {}
    joint: dict[str, str] = {}
    for node in graph:
        if node.name in by_first:
            pair = by_first[node.name]
            log(f"join_{pair.kind}", node.name)
            joint[node.name] = _put_joint(draft, graph, pair, values[pair.source])
            values[node.name] = _first_result(draft, graph, pair, joint[node.name])
        elif node.name in by_second:
            pair = by_second[node.name]
            values[node.name] = _second_result(
                draft, graph, pair, joint[pair.first], values[pair.center], values[pair.first]
            )
        else:
            operands = tuple(values[o] for o in node.operands)
            values[node.name] = draft.put(replace(node, operands=operands))
    outputs = tuple(values[o] for o in graph.outputs)
    nodes = keep_live_nodes(draft.nodes, outputs)
    return Graph(graph.name, nodes, graph.parameters, outputs, graph.aliases)


def _find_pairs(graph: Graph) -> list[_Pair]:
    pairs: list[_Pair] = []
    taken: set[str] = set()
    for node in graph:
        if not _is_reduce(node, "add") or not is_zero(graph, node.operands[1]):
            continue
        pair = _moments(graph, node) or _exponentials(graph, node)
        if pair is None or _stays_on_chip(graph, pair.source, _reduced(node)):
            continue
        if pair.first not in taken:
            taken |= {pair.first, pair.second}
            pairs.append(pair)
    return pairs


def _deviation(graph: Graph, name: str, reduced: tuple[int, ...]) -> tuple[str, str] | None:
    """(a, c) where the value is a - broadcast(c) and c has just the dimensions that are not reduced."""
    node = graph[name]
    if node.op != "subtract":
        return None
    spread = graph[node.operands[1]]
    if not isinstance(spread.attrs, BroadcastAttrs):
        return None
    kept = tuple(d for d in range(len(node.shape)) if d not in reduced)
    return (node.operands[0], spread.operands[0]) if spread.attrs.dimensions == kept else None


def _moments(graph: Graph, second: Node) -> _Pair | None:
    """sum((a - sum(a) / n)^2)"""
    square = graph[second.operands[0]]
    if square.op != "multiply" or square.operands[0] != square.operands[1]:
        return None
    found = _deviation(graph, square.operands[0], _reduced(second))
    if found is None:
        return None
    source, center = found
    mean = graph[center]
    if mean.op not in ("divide", "multiply"):
        return None
    splat = read_splat(graph, mean.operands[1])
    first = graph[mean.operands[0]]
    if splat is None or not _sums_the_same(graph, first, source, second, "add"):
        return None
    factor, count = float(splat), math.prod(graph[source].shape[d] for d in _reduced(second))
    if mean.op == "divide" and not factor:
        return None
    share = 1 / factor if mean.op == "divide" else factor
    if not is_zero(graph, first.operands[1]) or not math.isclose(share * count, 1, rel_tol=1e-6):
        return None
    return _Pair(MOMENTS, first.name, second.name, source, center)


def _exponentials(graph: Graph, second: Node) -> _Pair | None:
    """sum(exp(a - c)), c computed from max(a)"""
    power = graph[second.operands[0]]
    if power.op != "exponential":
        return None
    found = _deviation(graph, power.operands[0], _reduced(second))
    if found is None:
        return None
    source, center = found
    behind, node = {center}, graph[center]
    while not _sums_the_same(graph, node, source, second, "maximum"):
        below = [
            o for o in node.operands if graph[o].type == node.type and not graph[o].is_constant
        ]
        if len(behind) > 8 or not below or OPS[node.op].is_reduce:
            return None
        node = graph[below[-1]] if node.op != "select" else graph[node.operands[1]]
        behind.add(node.name)
    if read_splat(graph, node.operands[1]) != -math.inf:
        return None
    return _Pair(EXPONENTIALS, node.name, second.name, source, center)


def _sums_the_same(graph: Graph, node: Node, source: str, second: Node, monoid: str) -> bool:
    return (
        _is_reduce(node, monoid)
        and node.operands[0] == source
        and set(_reduced(node)) == set(_reduced(second))
    )


def _number(draft: Draft, origin: Node, value: float, dtype: DType) -> str:
    literal = Literal.of(np.asarray(value, dtype.numpy))
    return draft.add(origin, "constant", ArrayType(dtype, ()), (), ConstantAttrs(literal))


def _spread(draft: Draft, origin: Node, value: float, array: ArrayType) -> str:
    number = _number(draft, origin, value, array.dtype)
    return draft.add(origin, "broadcast", array, (number,), BroadcastAttrs(()))


def _put_joint(draft: Draft, graph: Graph, pair: _Pair, source: str) -> str:
    """The variadic reduce; its element is (1, a, 0, 0) or (a, 1), its identity (0, 0, 0, 0) or (-inf, 0)."""
    first = graph[pair.first]
    array = draft[source].array
    dtype = array.dtype
    if pair.kind == MOMENTS:
        ones, zeros = _spread(draft, first, 1, array), _spread(draft, first, 0, array)
        operands: tuple[str, ...] = (ones, source, zeros, zeros)
        inits: tuple[str, ...] = (_number(draft, first, 0, dtype),) * 4
        region = moments_region(dtype)
    else:
        operands = (source, _spread(draft, first, 1, array))
        inits = (_number(draft, first, -math.inf, dtype), _number(draft, first, 0, dtype))
        region = exponentials_region(dtype)
    parts = TupleType((first.array,) * len(operands))
    name = draft.fresh(f"{first.name}.{pair.kind}")
    node = Node(
        name,
        "reduce",
        parts,
        (*operands, *inits),
        first.attrs,
        (region,),
        graph[pair.second].op_name,
        first.source,
    )
    return draft.put(node)


def _field(draft: Draft, origin: Node, joint: str, number: int) -> str:
    return draft.add(
        origin, "get-tuple-element", origin.array, (joint,), GetTupleElementAttrs(number)
    )


def _first_result(draft: Draft, graph: Graph, pair: _Pair, joint: str) -> str:
    """The max; or the sum, whose part that was lost has no meaning where it is infinite or NaN."""
    first = graph[pair.first]
    if pair.kind == EXPONENTIALS:
        return _field(draft, first, joint, 0)
    total, lost = _field(draft, first, joint, 1), _field(draft, first, joint, 2)
    pred = ArrayType(DType.PRED, first.shape)
    finite = draft.add(first, "is-finite", pred, (total,))
    whole = draft.add(first, "add", first.array, (total, lost))
    return draft.add(first, "select", first.array, (finite, whole, total))


def _second_result(
    draft: Draft, graph: Graph, pair: _Pair, joint: str, center: str, first: str
) -> str:
    """M2 itself; or the sum, rescaled from the max to what the graph subtracts: NaN where both are infinite, as
    exp(a - c) would be."""
    second = graph[pair.second]
    if pair.kind == MOMENTS:
        return _field(draft, second, joint, 3)
    total = _field(draft, second, joint, 1)
    gap = draft.add(second, "subtract", second.array, (first, center))
    scale = draft.add(second, "exponential", second.array, (gap,))
    return draft.add(second, "multiply", second.array, (total, scale))


# ---- scattered sums


def scatter_into_addends(graph: Graph, log: Log | None = None) -> Graph:
    """y + scatter(0, i, u) -> scatter(y, i, u), also through several scatters, one into the other."""
    log = log or (lambda rule, node: None)
    if not any(isinstance(node.attrs, ScatterAttrs) for node in graph):
        return graph
    stands_for: dict[str, str] = {}  # a new sum -> the node of the graph that it replaces

    def is_read_once(name: str) -> bool:
        return _is_read_once(graph, stands_for.get(name, name))

    def find_scatters(draft: Draft, name: str) -> list[Node]:
        """The scatters from a sum down to the zeros that they start with; none where it is something else."""
        found: list[Node] = []
        while _adds_scattered(node := draft[name]) and is_read_once(name):
            found.append(node)
            name = node.operands[0]
        value = read_splat(draft, name) if found else None
        return found if value is not None and not value.any() else []

    def move(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if not is_addition(node) or node.dtype not in SUMMED:
            return None
        for side in (0, 1):
            scatters = find_scatters(draft, node.operands[side])
            if not scatters:
                continue
            log("scatter_into_addend", node.name)
            total = node.operands[1 - side]
            for number, scatter in enumerate(reversed(scatters), 1):
                last = number == len(scatters)
                name = node.name if last else draft.fresh(f"{node.name}.{scatter.name}")
                operands = (total, *scatter.operands[1:])
                total = draft.put(replace(scatter, name=name, operands=operands))
                stands_for[total] = node.name if last else scatter.name
            return total
        return None

    return rewrite_graph(graph, log, move)


def _adds_scattered(node: Node) -> bool:
    return (
        isinstance(node.attrs, ScatterAttrs)
        and isinstance(node.type, ArrayType)
        and monoid_of(node.regions[0]) == "add"
    )


# ---- sums of products


def _contract_batches(graph: Graph, log: Log) -> Graph:
    """sum(dot(x, y), batch dimensions) -> dot(x, y) that contracts them; no product of a batch is written."""
    if not {"dot", "reduce"} <= {node.op for node in graph}:
        return graph

    def contract(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if not (_is_reduce(node, "add") and is_zero(draft, node.operands[1])):
            return None
        product = draft[node.operands[0]]
        a = product.attrs
        if not isinstance(a, DotAttrs) or not _is_read_once(graph, product.name):
            return None
        reduced = _reduced(node)
        if not all(d < len(a.lhs_batch) for d in reduced):
            return None
        pairs = list(zip(a.lhs_batch, a.rhs_batch, strict=True))
        kept = [pair for d, pair in enumerate(pairs) if d not in reduced]
        summed = [
            *(pairs[d] for d in reduced),
            *zip(a.lhs_contracting, a.rhs_contracting, strict=True),
        ]
        attrs = replace(
            a,
            lhs_contracting=tuple(pair[0] for pair in summed),
            rhs_contracting=tuple(pair[1] for pair in summed),
            lhs_batch=tuple(pair[0] for pair in kept),
            rhs_batch=tuple(pair[1] for pair in kept),
        )
        types = [draft[operand].array for operand in product.operands]
        if product.array.size * LEAST_OF_OPERANDS < sum(type_.size for type_ in types):
            return None
        if _count_copies(attrs, *types) > _count_copies(a, *types):
            return None
        log("contract_batches", node.name)
        return draft.put(Node(node.name, "dot", node.type, product.operands, attrs))

    return rewrite_graph(graph, log, contract)


def _is_read_once(graph: Graph, name: str) -> bool:
    return name in graph.nodes and len(graph.users[name]) == 1 and name not in graph.outputs


def _count_copies(attrs: DotAttrs, lhs: ArrayType, rhs: ArrayType) -> int:
    """Operands that a library's product reads as copies in another order."""
    dot = canonical_dot(attrs, lhs, rhs)
    return sum(operand.permutation is not None for operand in (dot.lhs, dot.rhs))


# ---- factors out of sums


def _hoist_factors(graph: Graph, log: Log) -> Graph:
    levels: dict[str, int] = {}

    def hoist(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        if not (_is_reduce(node, "add") and is_zero(draft, node.operands[1])):
            return None
        hoisted = _hoist(node, draft, levels)
        if hoisted is not None:
            log("hoist_factors", node.name)
        return hoisted

    return rewrite_graph(graph, log, hoist)


def _level(draft: Draft, name: str, levels: dict[str, int]) -> int:
    """How many reduces lie one behind the other before the value."""
    stack = [name]
    while stack:
        top = stack[-1]
        node = draft[top]
        missing = [o for o in node.operands if o not in levels]
        if top in levels:
            stack.pop()
        elif missing:
            stack += missing
        else:
            below = max((levels[o] for o in node.operands), default=0)
            levels[top] = below + OPS[node.op].is_reduce
            stack.pop()
    return levels[name]


@dataclass(frozen=True, slots=True)
class _Product:
    """rest * factors, negated or not.  rest: what stays in the sum.  factors: (multiply or divide, broadcast)."""

    rest: str | None
    factors: tuple[tuple[str, str], ...] = ()
    negative: bool = False


def _hoist(node: Node, draft: Draft, levels: dict[str, int]) -> str | None:
    """sum(r * a) -> r * sum(a), where a waits for fewer reduces than r."""
    reduced = _reduced(node)
    product = _split(draft, node, node.operands[0], reduced, levels, {})
    if product.rest is None or not product.factors:
        return None
    if _level(draft, product.rest, levels) >= _level(draft, node.operands[0], levels):
        return None
    plain = replace(
        node, name=draft.fresh(f"{node.name}.plain"), operands=(product.rest, node.operands[1])
    )
    result = draft.put(plain)
    for op, factor in product.factors:
        result = draft.add(
            node, op, node.array, (result, _keep_dimensions(draft, node, factor, reduced))
        )
    return draft.add(node, "negate", node.array, (result,)) if product.negative else result


def _split(
    draft: Draft,
    origin: Node,
    name: str,
    reduced: tuple[int, ...],
    levels: dict[str, int],
    known: dict[str, _Product],
) -> _Product:
    """A product as what varies along the sum and what does not.  known: what was split already."""
    if name not in known:
        known[name] = _split_once(draft, origin, name, reduced, levels, known)
    return known[name]


def _split_once(
    draft: Draft,
    origin: Node,
    name: str,
    reduced: tuple[int, ...],
    levels: dict[str, int],
    known: dict[str, _Product],
) -> _Product:
    node = draft[name]
    if _is_constant_along(draft, name, reduced) and _level(draft, name, levels):
        return _Product(None, (("multiply", name),))
    if node.op == "negate":
        inner = _split(draft, origin, node.operands[0], reduced, levels, known)
        return replace(inner, negative=not inner.negative) if inner.factors else _Product(name)
    if node.op == "multiply":
        sides = [_split(draft, origin, o, reduced, levels, known) for o in node.operands]
        factors = (*sides[0].factors, *sides[1].factors)
        if not 0 < len(factors) <= MAX_FACTORS:
            return _Product(name)
        left, right = (s.rest for s in sides)
        rest = left or right
        if left and right:
            rest = draft.add(origin, "multiply", node.array, (left, right))
        return _Product(rest, factors, sides[0].negative != sides[1].negative)
    if node.op == "divide" and _is_constant_along(draft, node.operands[1], reduced):
        inner = _split(draft, origin, node.operands[0], reduced, levels, known)
        if _level(draft, node.operands[1], levels) and len(inner.factors) < MAX_FACTORS:
            return replace(inner, factors=(*inner.factors, ("divide", node.operands[1])))
    return _Product(name)


def _is_constant_along(draft: Draft, name: str, reduced: tuple[int, ...]) -> bool:
    attrs = draft[name].attrs
    return isinstance(attrs, BroadcastAttrs) and not set(attrs.dimensions) & set(reduced)


def _keep_dimensions(draft: Draft, node: Node, factor: str, reduced: tuple[int, ...]) -> str:
    """The broadcast factor at the shape of the reduce's result."""
    spread = draft[factor]
    assert isinstance(spread.attrs, BroadcastAttrs)
    kept = [d for d in range(len(spread.shape)) if d not in reduced]
    dimensions = tuple(kept.index(d) for d in spread.attrs.dimensions)
    return draft.add(node, "broadcast", node.array, spread.operands, BroadcastAttrs(dimensions))
