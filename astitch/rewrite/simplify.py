"""Graph -> Graph: merges, folds, and one canonical form of broadcasts, reshapes and transposes.

The idea: a rule is a small function whose docstring is the equation; it looks only at a node and at
what lies below it, so one bottom-up pass that puts every new node through the rules is a fixpoint.
No rule changes a bit of a result (the payload of a NaN excepted, which HLO leaves open).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from astitch.errors import UnsupportedOp
from astitch.graph.edit import free_name, is_pure, keep_live_nodes
from astitch.graph.ir import (
    ArrayType,
    Attrs,
    BroadcastAttrs,
    CompareAttrs,
    ConditionalAttrs,
    ConstantAttrs,
    ConvolutionAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    DType,
    DynamicSliceAttrs,
    GetTupleElementAttrs,
    Graph,
    IotaAttrs,
    Literal,
    NoAttrs,
    Node,
    PadAttrs,
    SliceAttrs,
    TransposeAttrs,
    TupleType,
)
from astitch.graph.ops import OPS, WIDE_FLOATS, Kind, neutral_element
from astitch.graph.reference import eval_node

FOLD_RESULT_ELEMENTS = 1024
"""A constant is folded into its user as long as the result has no more elements than this."""

FOLD_OPERAND_ELEMENTS = 65536
"""... and no operand has more than this: folding must stay quicker than compiling."""

Log = Callable[[str, str], None]
"""Called with (name of the rule, name of the node) each time that a rule fires."""


def simplify(graph: Graph, log: Log | None = None) -> Graph:
    """The same function of the same parameters with fewer and simpler nodes.

    Parameters stay, dead ones too; so do the number and order of outputs, and the name, op_name
    and source of every node that survives.  Regions are simplified as well.  Applying it again
    changes nothing.  `log` hears of every rule that fires, in regions too.
    """
    return _simplify_graph(graph, log or _ignore, {})


def _ignore(rule: str, node: str) -> None:
    """The log of a caller who does not want one."""


def _simplify_graph(graph: Graph, log: Log, regions: dict[int, Graph]) -> Graph:
    """`regions`: id of a region of the source graph -> its simplified form."""
    draft = Draft(graph, log)
    values: dict[str, str] = {}
    for node in graph:
        for region in node.regions:
            if id(region) not in regions:
                regions[id(region)] = _simplify_graph(region, log, regions)
        operands = tuple(values[o] for o in node.operands)
        node_regions = tuple(regions[id(r)] for r in node.regions)
        if operands != node.operands or node_regions:
            node = replace(node, operands=operands, regions=node_regions)
        values[node.name] = draft.put(node)
    outputs = tuple(values[o] for o in graph.outputs)
    nodes = keep_live_nodes(draft.nodes, outputs)
    for name in draft.nodes:
        if name in graph.nodes and name not in nodes:
            log("drop_dead_nodes", name)
    return Graph(graph.name, nodes, graph.parameters, outputs, graph.aliases)


Change = Callable[[Node, "Draft", Mapping[str, str]], str | None]
"""(node with its new operands, draft, new values by old name) -> the value that stands for it, or None: itself."""


def rewrite_graph(
    graph: Graph, log: Log, change: Change, order: Iterable[Node] | None = None
) -> Graph:
    """The graph with what `change` makes of each node, in simplest form; dead nodes are gone.

    order: of the graph's nodes, operands first; the graph's own where it is None.
    """
    draft = Draft(graph, log)
    values: dict[str, str] = {}
    for node in graph if order is None else order:
        moved = node.read(tuple([values[o] for o in node.operands]))
        changed = change(moved, draft, values)
        values[node.name] = draft.put(moved) if changed is None else changed
    outputs = tuple(values[o] for o in graph.outputs)
    nodes = keep_live_nodes(draft.nodes, outputs)
    return Graph(graph.name, nodes, graph.parameters, outputs, graph.aliases)


def _may_merge(node: Node) -> bool:
    """Whether equal nodes may be one.  Behind barriers stands what shall be computed again."""
    return OPS[node.op].kind is not Kind.BARRIER and is_pure(node)


# ---- the graph in the making


class Draft:
    """Nodes already in simplest form.  `put` is the only way in."""

    def __init__(self, source: Graph, log: Log) -> None:
        self.nodes: dict[str, Node] = {}
        self._log = log
        self._taken = set(source.nodes)
        self._known: dict[tuple[object, ...], str] = {}
        self._edges: dict[str, list[int]] = {}

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def put(self, node: Node) -> str:
        """Append the simplest form of `node`, whose operands are here; the name of its value."""
        simpler = self._apply_rules(node)
        if isinstance(simpler, str):
            return simpler
        key = (
            simpler.op,
            simpler.type,
            simpler.operands,
            simpler.attrs,
            tuple(region.key for region in simpler.regions),
        )
        if simpler.is_parameter or not _may_merge(simpler):
            self.nodes[simpler.name] = simpler
            return simpler.name
        name = self._known.setdefault(key, simpler.name)
        if name == simpler.name:
            self.nodes[name] = simpler
        else:
            self._log("merge_equal_nodes", simpler.name)
        return name

    def _apply_rules(self, node: Node) -> Node | str:
        while True:
            for rule in RULES.get(node.op, _NO_RULES):
                result = rule(node, self)
                if result is None:
                    continue
                self._log(rule.__name__, node.name)
                if isinstance(result, str):
                    return result
                node = result
                break
            else:
                return node

    def add(
        self,
        origin: Node,
        op: str,
        type: ArrayType,
        operands: tuple[str, ...] = (),
        attrs: Attrs = NoAttrs(),
        regions: tuple[Graph, ...] = (),
    ) -> str:
        """Put a new node that a rule needs on the way to `origin`; the name of its value."""
        name = self.fresh(f"{origin.name}.{op}")
        return self.put(
            Node(name, op, type, operands, attrs, regions, origin.op_name, origin.source)
        )

    def edges(self, concatenation: Node) -> list[int]:
        """Where its pieces start along the dimension, and where the last one ends."""
        assert isinstance(concatenation.attrs, DimensionAttrs)
        d = concatenation.attrs.dimension
        if concatenation.name not in self._edges:
            extents = (self[piece].shape[d] for piece in concatenation.operands)
            self._edges[concatenation.name] = [0, *accumulate(extents)]
        return self._edges[concatenation.name]

    def fresh(self, name: str) -> str:
        """`name`, or `name` and a number if that is taken.  Used up by this call."""
        unique = free_name(name, self._taken)
        self._taken.add(unique)
        return unique


Rule = Callable[[Node, Draft], Node | str | None]
"""The value or the simpler node that may stand for the node, of its type; None: does not apply."""


def _become(
    node: Node,
    op: str,
    operands: tuple[str, ...] = (),
    attrs: Attrs = NoAttrs(),
) -> Node:
    """`node` computed in another way: same name and type."""
    return replace(node, op=op, operands=operands, attrs=attrs, regions=())


# ---- what is known of a value


def _read_constant(draft: Draft, name: str) -> np.ndarray | None:
    """The elements of a constant, or of a small broadcast of one."""
    node = draft[name]
    if isinstance(node.attrs, ConstantAttrs):
        return node.attrs.value.numpy() if node.array.size <= FOLD_OPERAND_ELEMENTS else None
    if isinstance(node.attrs, BroadcastAttrs) and node.array.size <= FOLD_RESULT_ELEMENTS:
        value = _read_constant(draft, node.operands[0])
        return None if value is None else _broadcast(value, node.shape, node.attrs.dimensions)
    return None


def _broadcast(
    value: np.ndarray, shape: tuple[int, ...], dimensions: tuple[int, ...]
) -> np.ndarray:
    """`dimensions` ascend, as they do in every broadcast in simplest form."""
    spread = [1] * len(shape)
    for extent, d in zip(value.shape, dimensions, strict=True):
        spread[d] = extent
    return np.broadcast_to(value.reshape(spread), shape)


def read_splat(draft: Draft, name: str) -> np.ndarray | None:
    """The scalar (rank 0) that every element of the value is; None if that is not known."""
    node = draft[name]
    if OPS[node.op].is_broadcast:
        node = draft[node.operands[0]]
    if isinstance(node.attrs, ConstantAttrs) and node.array.size == 1:
        return node.attrs.value.numpy().reshape(())
    return None


def _same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and x.tobytes() == y.tobytes()


def _squeeze(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _ascends(numbers: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


# ---- constants


def fold_empty(node: Node, draft: Draft) -> Node | str | None:
    """f(...) : t[.., 0, ..] -> constant"""
    if isinstance(node.type, TupleType) or node.type.size > 0 or not is_pure(node):
        return None
    if node.dtype.is_opaque:
        return None
    return _become(node, "constant", (), ConstantAttrs(Literal(node.dtype, node.shape, b"")))


def spread_splat_constant(node: Node, draft: Draft) -> Node | str | None:
    """constant [c, c, .. c] -> broadcast(constant c)"""
    assert isinstance(node.attrs, ConstantAttrs)
    literal = node.attrs.value
    if node.array.size <= 1:
        return None
    item = literal.data[: literal.dtype.bytes]
    if not literal.data.startswith(item * 2):
        return None  # most large constants end here, unread
    if literal.data != item * node.array.size:
        return None
    scalar = ConstantAttrs(Literal(literal.dtype, (), item))
    value = draft.add(node, "constant", ArrayType(node.dtype, ()), (), scalar)
    return _become(node, "broadcast", (value,), BroadcastAttrs(()))


def fold_constants(node: Node, draft: Draft) -> Node | str | None:
    """f(constants) -> constant, while the result is small, and no loop in a combiner may go on for ever"""
    if isinstance(node.type, TupleType) or node.type.size > FOLD_RESULT_ELEMENTS:
        return None
    if any(inner.regions for region in node.regions for inner in region):
        return None
    operands = []
    for name in node.operands:
        value = _read_constant(draft, name)
        if value is None:
            return None
        operands.append(value)
    return _evaluate(node, operands)


def fold_splats(node: Node, draft: Draft) -> Node | str | None:
    """f(broadcast(c), broadcast(d)) -> broadcast(f(c, d)) for element-wise f and constants c, d"""
    if node.shape == ():
        return None
    operands = []
    for name in node.operands:
        value = read_splat(draft, name)
        if value is None or draft[name].shape != node.shape:
            return None
        operands.append(value)
    scalar = _evaluate(replace(node, type=ArrayType(node.dtype, ())), operands)
    if scalar is None:
        return None
    value_name = draft.add(node, "constant", scalar.array, (), scalar.attrs)
    return _become(node, "broadcast", (value_name,), BroadcastAttrs(()))


def _evaluate(node: Node, operands: Sequence[np.ndarray]) -> Node | None:
    """The constant that `node` is for these operands; None where the reference cannot say."""
    try:
        (value,) = eval_node(node, operands)
    except UnsupportedOp:
        return None
    return _become(node, "constant", (), ConstantAttrs(Literal.of(value)))


def zero_short_iota(node: Node, draft: Draft) -> Node | str | None:
    """iota along a dimension of one element -> broadcast(0)"""
    assert isinstance(node.attrs, IotaAttrs)
    if node.shape[node.attrs.dimension] != 1:
        return None
    zero = Literal.of(np.zeros((), node.dtype.numpy))
    value = draft.add(node, "constant", ArrayType(node.dtype, ()), (), ConstantAttrs(zero))
    return _become(node, "broadcast", (value,), BroadcastAttrs(()))


# ---- element-wise identities: exact ones only


_ONE_SIDED = frozenset(
    "subtract divide shift-left shift-right-logical shift-right-arithmetic".split()
)


def drop_neutral_operand(node: Node, draft: Draft) -> Node | str | None:
    """x*1, x/1, x-0, x + -0.0, i+0, max(x, -inf), min(x, inf), x&~0, x|0, x^0, x<<0 -> x"""
    neutral = neutral_element(node.op, node.dtype)
    if neutral is None:
        return None
    sides = ((0, 1),) if node.op in _ONE_SIDED else ((0, 1), (1, 0))
    for kept, dropped in sides:
        value = read_splat(draft, node.operands[dropped])
        if value is not None and _same_bits(value, neutral):
            return node.operands[kept]
    return None


def drop_zero_beside_sum(node: Node, draft: Draft) -> Node | str | None:
    """0 + sum(x) -> sum(x): a sum that starts at 0.0 is never -0.0"""
    for kept, zero in (node.operands, node.operands[::-1]):
        value = read_splat(draft, zero)
        if value is None or not _same_bits(value, np.zeros((), node.dtype.numpy)):
            continue
        total = draft[kept]
        while total.op in ("reshape", "broadcast", "transpose"):
            total = draft[total.operands[0]]
        if total.op != "reduce" or len(total.operands) != 2:
            continue
        start = read_splat(draft, total.operands[1])
        if (
            _combiner_op(total.regions[0]) == "add"
            and start is not None
            and _same_bits(start, value)
        ):
            return kept
    return None


def take_absorbing_operand(node: Node, draft: Draft) -> Node | str | None:
    """i*0, i&0 -> 0;  i|~0 -> ~0, for integers and pred"""
    if not (node.dtype.is_integer or node.dtype is DType.PRED):
        return None
    zero = np.zeros((), node.dtype.numpy)
    absorbing = ~zero if node.op == "or" else zero
    for name in node.operands:
        value = read_splat(draft, name)
        if value is not None and _same_bits(value, absorbing):
            return name
    return None


def merge_equal_operands(node: Node, draft: Draft) -> Node | str | None:
    """x&x, x|x, max(x, x), min(x, x) -> x"""
    return node.operands[0] if node.operands[0] == node.operands[1] else None


def cancel_involution(node: Node, draft: Draft) -> Node | str | None:
    """-(-x), ~(~x) -> x"""
    inner = draft[node.operands[0]]
    return inner.operands[0] if inner.op == node.op else None


def drop_copy(node: Node, draft: Draft) -> Node | str | None:
    """copy(x) -> x"""
    operand = node.operands[0]
    return operand if len(node.operands) == 1 and draft[operand].type == node.type else None


def choose_branch(node: Node, draft: Draft) -> Node | str | None:
    """select(true, x, y) -> x;  select(false, x, y) -> y;  select(p, x, x) -> x"""
    predicate, x, y = node.operands
    if x == y:
        return x
    value = read_splat(draft, predicate)
    if value is None:
        return None
    return x if value else y


def drop_convert(node: Node, draft: Draft) -> Node | str | None:
    """convert(x : t) : t -> x;  bitcast-convert(x : t) : t -> x"""
    operand = node.operands[0]
    return operand if draft[operand].type == node.type else None


def decide_compare_by_range(node: Node, draft: Draft) -> Node | str | None:
    """compare(iota, c) -> true or false, where all of 0 .. n - 1 compare to c alike"""
    assert isinstance(node.attrs, CompareAttrs)
    left, right = (_find_range(draft, o) for o in node.operands)
    if left is None or right is None:
        return None
    (a, b), (c, d) = left, right
    match node.attrs.direction:
        case "LT" if b < c or a >= d:
            value = b < c
        case "LE" if b <= c or a > d:
            value = b <= c
        case "GT" if a > d or b <= c:
            value = a > d
        case "GE" if a >= d or b < c:
            value = a >= d
        case "EQ" | "NE" if b < c or a > d:
            value = node.attrs.direction == "NE"
        case _:
            return None
    scalar = ConstantAttrs(Literal.of(np.asarray(value)))
    if node.shape == ():
        return _become(node, "constant", (), scalar)
    name = draft.add(node, "constant", ArrayType(DType.PRED, ()), (), scalar)
    return _become(node, "broadcast", (name,), BroadcastAttrs(()))


def compare_random_bits(node: Node, draft: Draft) -> Node | str | None:
    """compare(f(bitcast-convert(k | bits >> s)), c) -> compare(bits, d), where f never falls: of a random number in
    [0, 1), as jax.random.bernoulli makes and compares it, the bits say as much"""
    assert isinstance(node.attrs, CompareAttrs)
    if node.attrs.total_order:
        return None
    for number, other in (node.operands, node.operands[::-1]):
        limit = read_splat(draft, other)
        found = _find_random_bits(draft, number) if limit is not None else None
        if limit is None or found is None or np.isnan(limit):
            continue
        direction = node.attrs.direction
        if number != node.operands[0]:
            direction = _MIRRORED.get(direction, direction)
        if direction in ("EQ", "NE"):
            continue
        unsigned = draft[found.bits].dtype.numpy
        beyond, shift = _first_beyond(found, limit, direction in ("LE", "GT")), found.shift
        if beyond << shift >= 1 << 8 * unsigned.itemsize:
            continue  # all are on one side: no probability
        constant = ConstantAttrs(Literal.of(np.array(beyond << shift, unsigned)))
        dtype = draft[found.bits].dtype
        value = draft.add(node, "constant", ArrayType(dtype, ()), (), constant)
        if node.shape != ():
            type_ = ArrayType(dtype, node.shape)
            value = draft.add(node, "broadcast", type_, (value,), BroadcastAttrs(()))
        way = CompareAttrs("LT" if direction in ("LT", "LE") else "GE")
        return _become(node, "compare", (found.bits, value), way)
    return None


_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}

_Step = tuple[Node, bool, np.ndarray]
"""An op on scalars, whether the number is its first operand, and the constant that is the other."""


@dataclass(frozen=True, slots=True)
class _RandomNumber:
    """A float made of unsigned bits: `high` | bits >> `shift`, seen as a float, goes through steps that never let it
    fall as the bits grow."""

    steps: tuple[_Step, ...]
    high: int
    shift: int
    bits: str


def _first_beyond(number: _RandomNumber, limit: np.ndarray, strictly: bool) -> int:
    """The least value of the shifted bits of which the number is `limit` or more, or more than that (strictly)."""
    size = limit.dtype.itemsize

    def is_beyond(upper: int) -> bool:
        value = np.array(number.high | upper, f"u{size}").view(limit.dtype)
        for step, first, constant in number.steps:
            (value,) = eval_node(step, (value, constant) if first else (constant, value))
        return bool(value > limit if strictly else value >= limit)

    return bisect_left(range(1 << (8 * size - number.shift)), True, key=is_beyond)


def _find_random_bits(draft: Draft, name: str) -> _RandomNumber | None:
    steps: list[_Step] = []
    node = draft[name]
    while (step := _find_rising_step(node, draft)) is not None:
        steps.append(step[0])
        node = draft[step[1]]
    if node.op != "bitcast-convert" or node.dtype not in _FLOAT_PRECISION_BITS:
        return None
    joined = draft[node.operands[0]]
    if joined.op != "or" or not joined.dtype.is_unsigned or joined.dtype.bytes != node.dtype.bytes:
        return None
    for part, other in (joined.operands, joined.operands[::-1]):
        shifted, high = draft[part], read_splat(draft, other)
        if shifted.op != "shift-right-logical" or high is None:
            continue
        shift = read_splat(draft, shifted.operands[1])
        mantissa = _FLOAT_PRECISION_BITS[node.dtype] - 1
        infinity = int(np.array(np.inf, node.dtype.numpy).view(joined.dtype.numpy))
        if shift is None or not 8 * node.dtype.bytes - mantissa <= shift < 8 * node.dtype.bytes:
            continue
        if int(high) % (1 << mantissa) == 0 and int(high) < infinity:
            return _RandomNumber(tuple(steps[::-1]), int(high), int(shift), shifted.operands[0])
    return None


def _find_rising_step(node: Node, draft: Draft) -> tuple[_Step, str] | None:
    """A step with a constant, and the operand that is none."""
    if node.op not in ("add", "subtract", "multiply", "maximum", "minimum"):
        return None
    for number, other in (node.operands, node.operands[::-1]):
        value = read_splat(draft, other)
        if value is None or read_splat(draft, number) is not None or not np.isfinite(value):
            continue
        first = number == node.operands[0]
        if (node.op == "subtract" and not first) or (node.op == "multiply" and not value > 0):
            continue
        return (replace(node, type=ArrayType(node.dtype, ())), first, value), number
    return None


def _find_range(draft: Draft, name: str) -> tuple[int, int] | None:
    """The least and the largest element of an iota, moved or repeated, or of an integer splat."""
    if not draft[name].dtype.is_integer:
        return None
    value = read_splat(draft, name)
    if value is not None:
        return int(value), int(value)
    node = draft[name]
    while node.op in ("broadcast", "reshape", "transpose", "slice", "reverse"):
        node = draft[node.operands[0]]
    if not isinstance(node.attrs, IotaAttrs):
        return None
    last = node.shape[node.attrs.dimension] - 1
    return (0, last) if last <= np.iinfo(node.dtype.numpy).max else None


def merge_converts(node: Node, draft: Draft) -> Node | str | None:
    """convert(convert(x : a) : b) : c -> convert(x) : c, if every value of a is one of b"""
    inner = draft[node.operands[0]]
    if inner.op != "convert":
        return None
    x = draft[inner.operands[0]]
    if not _is_exact(x.dtype, inner.dtype):
        return None
    # Integers wrap into integers, floats saturate: the way through a float is another function.
    wraps = x.dtype.is_integer and node.dtype.is_integer
    if wraps and inner.dtype.is_float and not _is_exact(x.dtype, node.dtype):
        return None
    return replace(node, operands=(x.name,))


_FLOAT_PRECISION_BITS = {DType.F16: 11, DType.BF16: 8, DType.F32: 24, DType.F64: 53}
_FLOAT_EXPONENT_BITS = {DType.F16: 5, DType.BF16: 8, DType.F32: 8, DType.F64: 11}


def _is_exact(source: DType, target: DType) -> bool:
    """Whether converting keeps every value."""
    if source is target:
        return True
    if source.is_complex or target.is_complex or target is DType.PRED:
        return False
    if source is DType.PRED:
        return target.is_integer or target in WIDE_FLOATS
    if source.is_integer:
        magnitude = 8 * source.bytes - source.is_signed
        if target.is_integer:
            holds_sign = target.is_signed or source.is_unsigned
            return holds_sign and magnitude <= 8 * target.bytes - target.is_signed
        return magnitude <= _FLOAT_PRECISION_BITS.get(target, 0)
    if source in WIDE_FLOATS and target in WIDE_FLOATS:
        return (
            _FLOAT_PRECISION_BITS[source] <= _FLOAT_PRECISION_BITS[target]
            and _FLOAT_EXPONENT_BITS[source] <= _FLOAT_EXPONENT_BITS[target]
        )
    return False


def merge_bitcast_converts(node: Node, draft: Draft) -> Node | str | None:
    """bitcast-convert(bitcast-convert(x)) -> bitcast-convert(x), all of one size"""
    inner = draft[node.operands[0]]
    if inner.op != "bitcast-convert":
        return None
    x = draft[inner.operands[0]]
    if not x.dtype.bytes == inner.dtype.bytes == node.dtype.bytes:
        return None
    return replace(node, operands=(x.name,))


def lift_reshape_over_elementwise(node: Node, draft: Draft) -> Node | str | None:
    """f(reshape(x), reshape(y), broadcast(c)) -> reshape(f(x, y, broadcast(c)))

    for x and y of one shape, which differs from f's in dimensions of 1 only, and constant c.
    """
    shape: tuple[int, ...] | None = None
    for name in node.operands:
        operand = draft[name]
        if OPS[operand.op].is_view:
            below = draft[operand.operands[0]].shape
            if _squeeze(below) != _squeeze(node.shape) or shape not in (None, below):
                return None
            shape = below
        elif read_splat(draft, name) is None:
            return None
    if shape is None or any(draft[o].shape != node.shape for o in node.operands):
        return None
    operands = []
    for name in node.operands:
        operand = draft[name]
        if OPS[operand.op].is_view:
            operands.append(operand.operands[0])
        else:
            type = ArrayType(operand.dtype, shape)
            operands.append(draft.add(node, "reshape", type, (name,)))
    type = ArrayType(node.dtype, shape)
    value = draft.add(node, node.op, type, tuple(operands), node.attrs)
    return _become(node, "reshape", (value,))


# ---- broadcasts: in simplest form they enlarge, dimensions ascend, and none reads another


def sort_broadcast_dimensions(node: Node, draft: Draft) -> Node | str | None:
    """broadcast(x, d) -> broadcast(transpose(x, p), sorted(d)) with sorted(d)[i] = d[p[i]]"""
    assert isinstance(node.attrs, BroadcastAttrs)
    d = node.attrs.dimensions
    if _ascends(d):
        return None
    p = tuple(sorted(range(len(d)), key=d.__getitem__))
    turned = _add_transpose(node, draft, node.operands[0], p)
    return replace(node, operands=(turned,), attrs=BroadcastAttrs(tuple(sorted(d))))


def merge_broadcasts(node: Node, draft: Draft) -> Node | str | None:
    """broadcast(broadcast(x, d), e) -> broadcast(x, e∘d)"""
    assert isinstance(node.attrs, BroadcastAttrs)
    inner, e = draft[node.operands[0]], node.attrs.dimensions
    if not isinstance(inner.attrs, BroadcastAttrs):
        return None
    composed = tuple(e[d] for d in inner.attrs.dimensions)
    return replace(node, operands=inner.operands, attrs=BroadcastAttrs(composed))


def drop_identity_broadcast(node: Node, draft: Draft) -> Node | str | None:
    """broadcast(x, d) that adds dimensions of one element only -> reshape(x)"""
    assert isinstance(node.attrs, BroadcastAttrs)
    x = draft[node.operands[0]]
    if x.array.size != node.array.size or not _ascends(node.attrs.dimensions):
        return None
    return _become(node, "reshape", (x.name,))


def squeeze_broadcast_operand(node: Node, draft: Draft) -> Node | str | None:
    """broadcast(reshape(x), d) -> broadcast(reshape(x) without its dimensions of 1, d')

    A constant counts as a reshape of itself.
    """
    assert isinstance(node.attrs, BroadcastAttrs)
    inner = draft[node.operands[0]]
    squeezed = _squeeze(inner.shape)
    if inner.op not in ("reshape", "constant") or inner.shape == squeezed:
        return None
    d = tuple(d for d, n in zip(node.attrs.dimensions, inner.shape, strict=True) if n != 1)
    type = ArrayType(node.dtype, squeezed)
    operand = draft.add(node, "reshape", type, (inner.name,))
    return replace(node, operands=(operand,), attrs=BroadcastAttrs(d))


# ---- reshapes


def drop_identity_reshape(node: Node, draft: Draft) -> Node | str | None:
    """reshape(x : t) : t -> x"""
    operand = node.operands[0]
    return operand if draft[operand].type == node.type else None


def merge_reshapes(node: Node, draft: Draft) -> Node | str | None:
    """reshape(reshape(x)) -> reshape(x)"""
    inner = draft[node.operands[0]]
    return replace(node, operands=inner.operands) if inner.op == "reshape" else None


def reshape_constant(node: Node, draft: Draft) -> Node | str | None:
    """reshape(constant) -> constant, of any size: the bytes are shared"""
    inner = draft[node.operands[0]]
    if not isinstance(inner.attrs, ConstantAttrs):
        return None
    literal = Literal(node.dtype, node.shape, inner.attrs.value.data)
    return _become(node, "constant", (), ConstantAttrs(literal))


def sink_reshape_below_broadcast(node: Node, draft: Draft) -> Node | str | None:
    """reshape(broadcast(x, d)) -> broadcast(reshape(x), d')

    if no dimension of the result mixes elements of x with copies of them.
    """
    inner = draft[node.operands[0]]
    if not isinstance(inner.attrs, BroadcastAttrs) or node.array.size == 0:
        return None
    owned = set(inner.attrs.dimensions)
    d: list[int] = []
    for before, after in group_dimensions(inner.shape, node.shape):
        of_x = [i in owned for i in before]
        if all(of_x):
            d += after
        elif any(of_x):
            return None
    shape = tuple(node.shape[i] for i in d)
    operand = draft.add(node, "reshape", ArrayType(node.dtype, shape), inner.operands)
    return _become(node, "broadcast", (operand,), BroadcastAttrs(tuple(d)))


def group_dimensions(
    before: Sequence[int], after: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """The finest runs of dimensions of two shapes that hold the same elements, without the ones."""
    left = [i for i, n in enumerate(before) if n != 1]
    right = [i for i, n in enumerate(after) if n != 1]
    groups: list[tuple[list[int], list[int]]] = []
    while left:
        a, b = [left.pop(0)], [right.pop(0)]
        x, y = before[a[0]], after[b[0]]
        while x != y:
            if x < y:
                a.append(left.pop(0))
                x *= before[a[-1]]
            else:
                b.append(right.pop(0))
                y *= after[b[-1]]
        groups.append((a, b))
    return groups


# ---- transposes


def _add_transpose(origin: Node, draft: Draft, x: str, permutation: Sequence[int]) -> str:
    shape = draft[x].shape
    type = ArrayType(draft[x].dtype, tuple(shape[p] for p in permutation))
    return draft.add(origin, "transpose", type, (x,), TransposeAttrs(tuple(permutation)))


def merge_transposes(node: Node, draft: Draft) -> Node | str | None:
    """transpose(transpose(x, p), q) -> transpose(x, p∘q)"""
    assert isinstance(node.attrs, TransposeAttrs)
    inner, q = draft[node.operands[0]], node.attrs.permutation
    if not isinstance(inner.attrs, TransposeAttrs):
        return None
    p = inner.attrs.permutation
    composed = TransposeAttrs(tuple(p[i] for i in q))
    return replace(node, operands=inner.operands, attrs=composed)


def drop_trivial_transpose(node: Node, draft: Draft) -> Node | str | None:
    """transpose(x, p) that moves dimensions of one element only -> reshape(x)"""
    assert isinstance(node.attrs, TransposeAttrs)
    x = draft[node.operands[0]]
    if not _ascends([p for p in node.attrs.permutation if x.shape[p] != 1]):
        return None
    return _become(node, "reshape", (x.name,))


def absorb_transpose_into_broadcast(node: Node, draft: Draft) -> Node | str | None:
    """transpose(broadcast(x, d), p) -> broadcast(x, p⁻¹∘d)"""
    assert isinstance(node.attrs, TransposeAttrs)
    inner, p = draft[node.operands[0]], node.attrs.permutation
    if not isinstance(inner.attrs, BroadcastAttrs):
        return None
    d = tuple(p.index(i) for i in inner.attrs.dimensions)
    return _become(node, "broadcast", inner.operands, BroadcastAttrs(d))


# ---- slice, pad, concatenate, reverse, dynamic-slice


def drop_full_slice(node: Node, draft: Draft) -> Node | str | None:
    """slice(x) of all of x -> x"""
    operand = node.operands[0]
    return operand if draft[operand].type == node.type else None


def tighten_slice(node: Node, draft: Draft) -> Node | str | None:
    """slice(x, [s:l:t]) -> the same elements with the least limit, and stride 1 for one element"""
    assert isinstance(node.attrs, SliceAttrs)
    a, extents = node.attrs, node.shape
    if node.array.size == 0:
        return None
    strides = tuple(1 if n == 1 else t for n, t in zip(extents, a.strides, strict=True))
    limits = tuple(s + (n - 1) * t + 1 for s, n, t in zip(a.starts, extents, strides, strict=True))
    tight = SliceAttrs(a.starts, limits, strides)
    return replace(node, attrs=tight) if tight != a else None


def merge_slices(node: Node, draft: Draft) -> Node | str | None:
    """slice(slice(x, [s:_:t]), [u:_:v]) -> slice(x, [s+t*u:_:t*v])"""
    assert isinstance(node.attrs, SliceAttrs)
    inner, outer = draft[node.operands[0]], node.attrs
    if not isinstance(inner.attrs, SliceAttrs) or node.array.size == 0:
        return None
    below = inner.attrs
    starts = tuple(
        s + t * u for s, t, u in zip(below.starts, below.strides, outer.starts, strict=True)
    )
    strides = tuple(t * v for t, v in zip(below.strides, outer.strides, strict=True))
    limits = tuple(s + (n - 1) * t + 1 for s, n, t in zip(starts, node.shape, strides, strict=True))
    return replace(node, operands=inner.operands, attrs=SliceAttrs(starts, limits, strides))


def sink_slice_below_broadcast(node: Node, draft: Draft) -> Node | str | None:
    """slice(broadcast(x, d)) -> broadcast(slice(x), d)"""
    assert isinstance(node.attrs, SliceAttrs)
    inner, a = draft[node.operands[0]], node.attrs
    if not isinstance(inner.attrs, BroadcastAttrs):
        return None
    d = inner.attrs.dimensions
    attrs = SliceAttrs(
        tuple(a.starts[i] for i in d),
        tuple(a.limits[i] for i in d),
        tuple(a.strides[i] for i in d),
    )
    type = ArrayType(node.dtype, tuple(node.shape[i] for i in d))
    operand = draft.add(node, "slice", type, inner.operands, attrs)
    return _become(node, "broadcast", (operand,), inner.attrs)


def slice_one_piece(node: Node, draft: Draft) -> Node | str | None:
    """slice(concatenate(.., x, ..)) that lies within x -> slice(x)"""
    assert isinstance(node.attrs, SliceAttrs)
    inner, a = draft[node.operands[0]], node.attrs
    if not isinstance(inner.attrs, DimensionAttrs):
        return None
    d, edges = inner.attrs.dimension, draft.edges(inner)
    at = bisect_right(edges, a.starts[d]) - 1
    if at == len(inner.operands) or a.limits[d] > edges[at + 1]:
        return None
    starts, limits = list(a.starts), list(a.limits)
    starts[d] -= edges[at]
    limits[d] -= edges[at]
    attrs = SliceAttrs(tuple(starts), tuple(limits), a.strides)
    return replace(node, operands=(inner.operands[at],), attrs=attrs)


def drop_empty_pad(node: Node, draft: Draft) -> Node | str | None:
    """pad(x, v) by nothing -> x;  pad of an empty x -> broadcast(v)"""
    assert isinstance(node.attrs, PadAttrs)
    x, value = node.operands
    if draft[x].array.size == 0:
        return _become(node, "broadcast", (value,), BroadcastAttrs(()))
    a = node.attrs
    inside = any(i and n > 1 for i, n in zip(a.interior, draft[x].shape, strict=True))
    return None if inside or any(a.low) or any(a.high) else x


def drop_empty_pieces(node: Node, draft: Draft) -> Node | str | None:
    """concatenate(x, empty, y) -> concatenate(x, y);  concatenate(x) -> x"""
    pieces = tuple(o for o in node.operands if draft[o].array.size > 0)
    if len(pieces) == 1:
        return pieces[0]
    return replace(node, operands=pieces) if pieces and pieces != node.operands else None


def drop_trivial_reverse(node: Node, draft: Draft) -> Node | str | None:
    """reverse(x, dimensions of one element) -> x"""
    assert isinstance(node.attrs, DimensionsAttrs)
    d = tuple(sorted(d for d in node.attrs.dimensions if node.shape[d] > 1))
    if not d:
        return node.operands[0]
    return replace(node, attrs=DimensionsAttrs(d)) if d != node.attrs.dimensions else None


def merge_reverses(node: Node, draft: Draft) -> Node | str | None:
    """reverse(reverse(x, d), e) -> reverse(x, d xor e)"""
    assert isinstance(node.attrs, DimensionsAttrs)
    inner = draft[node.operands[0]]
    if inner.op != "reverse":
        return None
    assert isinstance(inner.attrs, DimensionsAttrs)
    d = tuple(sorted(set(inner.attrs.dimensions) ^ set(node.attrs.dimensions)))
    return replace(node, operands=inner.operands, attrs=DimensionsAttrs(d))


def slice_statically(node: Node, draft: Draft) -> Node | str | None:
    """dynamic-slice(x, constants) -> slice(x) at the clamped indices"""
    assert isinstance(node.attrs, DynamicSliceAttrs)
    x, *indices = node.operands
    starts = []
    for index, extent, size in zip(indices, draft[x].shape, node.attrs.sizes, strict=True):
        value = read_splat(draft, index)
        if extent == size:
            starts.append(0)
        elif value is None:
            return None
        else:
            starts.append(min(max(int(value), 0), extent - size))
    limits = tuple(s + n for s, n in zip(starts, node.shape, strict=True))
    attrs = SliceAttrs(tuple(starts), limits, (1,) * len(starts))
    return _become(node, "slice", (x,), attrs)


def drop_full_update(node: Node, draft: Draft) -> Node | str | None:
    """dynamic-update-slice(x, u) with u as large as x -> u;  with u empty -> x"""
    x, update = node.operands[:2]
    if draft[update].array.size == 0:
        return x
    return update if draft[update].type == node.type else None


# ---- reduce


def _combiner_op(region: Graph) -> str | None:
    """The op of a region that is `a, b -> op(a, b)`."""
    if len(region) != 3 or len(region.outputs) != 1:
        return None
    body = region[region.outputs[0]]
    if body.is_parameter or sorted(body.operands) != sorted(region.parameters):
        return None
    return body.op if isinstance(body.attrs, NoAttrs) else None


def drop_trivial_reduce(node: Node, draft: Draft) -> Node | str | None:
    """reduce(x, e, dimensions of one element) -> op(broadcast(e), reshape(x))

    The op goes too where e is neutral; 0.0 is not for the addition of floats (-0.0 + 0.0 is 0.0).
    """
    if len(node.operands) != 2:
        return None
    x, init = draft[node.operands[0]], draft[node.operands[1]]
    op = _combiner_op(node.regions[0])
    if op is None or x.array.size != node.array.size or x.array.size == 0:
        return None
    if not x.dtype == init.dtype == node.dtype:
        return None
    start = draft.add(node, "broadcast", node.array, (init.name,), BroadcastAttrs(()))
    value = draft.add(node, "reshape", node.array, (x.name,))
    body = node.regions[0][node.regions[0].outputs[0]]
    straight = body.operands == node.regions[0].parameters
    return _become(node, op, (start, value) if straight else (value, start))


def start_empty_reduce(node: Node, draft: Draft) -> Node | str | None:
    """reduce(empty, e) -> broadcast(e)"""
    if len(node.operands) != 2 or draft[node.operands[0]].array.size > 0:
        return None
    return _become(node, "broadcast", (node.operands[1],), BroadcastAttrs(()))


def absorb_transpose_into_reduce(node: Node, draft: Draft) -> Node | str | None:
    """reduce(transpose(x, p), e, d) -> reduce(x, e, p∘d)

    if kept and reduced dimensions stay in order among themselves: the elements meet as before.
    """
    assert isinstance(node.attrs, DimensionsAttrs)
    inner = draft[node.operands[0]]
    if len(node.operands) != 2 or not isinstance(inner.attrs, TransposeAttrs):
        return None
    p = inner.attrs.permutation
    reduced = [p[i] for i in range(len(p)) if i in node.attrs.dimensions]
    kept = [p[i] for i in range(len(p)) if i not in node.attrs.dimensions]
    if not (_ascends(reduced) and _ascends(kept)):
        return None
    operands = (inner.operands[0], node.operands[1])
    return replace(node, operands=operands, attrs=DimensionsAttrs(tuple(reduced)))


def sort_reduced_dimensions(node: Node, draft: Draft) -> Node | str | None:
    """reduce(x, e, d) -> reduce(x, e, sorted(d)): the order of d has no meaning"""
    assert isinstance(node.attrs, DimensionsAttrs)
    d = tuple(sorted(node.attrs.dimensions))
    return replace(node, attrs=DimensionsAttrs(d)) if d != node.attrs.dimensions else None


# ---- dot


def absorb_transpose_into_dot(node: Node, draft: Draft) -> Node | str | None:
    """dot(transpose(x, p), y, contracting c, batch b) -> dot(x, y, contracting p∘c, batch p∘b)

    and alike for y, if the free dimensions stay in order, and a library can still read x as one
    strided batch of matrices: batch, contracting and free dimensions are each one run, and the
    last dimension is not a batch dimension.  Else the transpose is better done by its producer.
    """
    a = node.attrs
    assert isinstance(a, DotAttrs)
    left, right = (draft[o] for o in node.operands)
    x = _absorb_transpose(left, a.lhs_contracting, a.lhs_batch)
    if x is not None:
        contracting, batch = x
        attrs = replace(a, lhs_contracting=contracting, lhs_batch=batch)
        return replace(node, operands=(left.operands[0], right.name), attrs=attrs)
    y = _absorb_transpose(right, a.rhs_contracting, a.rhs_batch)
    if y is not None:
        contracting, batch = y
        attrs = replace(a, rhs_contracting=contracting, rhs_batch=batch)
        return replace(node, operands=(left.name, right.operands[0]), attrs=attrs)
    return None


def _absorb_transpose(
    operand: Node, contracting: Sequence[int], batch: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(contracting, batch) as dimensions of the transpose's own operand."""
    if not isinstance(operand.attrs, TransposeAttrs):
        return None
    p = operand.attrs.permutation
    free = [p[i] for i in range(len(p)) if i not in (*contracting, *batch)]
    c, b = tuple(p[i] for i in contracting), tuple(p[i] for i in batch)
    if not (is_run(free) and is_run(c) and is_run(b)) or len(p) - 1 in b:
        return None
    return c, b


def is_run(numbers: Sequence[int]) -> bool:
    return all(b == a + 1 for a, b in pairwise(numbers))


def absorb_reverse_into_convolution(node: Node, draft: Draft) -> Node | str | None:
    """convolution(x, reverse(k, d)) -> convolution(x, k) with its window reversed along d

    where d are spatial and the window is reversed in all its dimensions then, or in none: what libraries have.
    """
    a = node.attrs
    assert isinstance(a, ConvolutionAttrs)
    x, kernel = node.operands
    inner = draft[kernel]
    if inner.op != "reverse":
        return None
    assert isinstance(inner.attrs, DimensionsAttrs)
    along = inner.attrs.dimensions
    if not set(along) <= set(a.kernel_spatial):
        return None
    window = tuple(
        replace(w, reversed=w.reversed != (d in along))
        for d, w in zip(a.kernel_spatial, a.window, strict=True)
    )
    if len({w.reversed for w in window if w.size > 1}) > 1:
        return None
    return replace(node, operands=(x, inner.operands[0]), attrs=replace(a, window=window))


# ---- control


def project_known_result(node: Node, draft: Draft) -> Node | str | None:
    """get-tuple-element(while(x, ..), i) -> x if the loop never runs or hands x on unchanged;
    get-tuple-element(conditional(constant, ..), i) -> result i of that branch;
    get-tuple-element(reduce(empty, .., e, ..), i) -> broadcast(e)
    """
    assert isinstance(node.attrs, GetTupleElementAttrs)
    inner, index = draft[node.operands[0]], node.attrs.index
    if inner.op == "reduce" and draft[inner.operands[0]].array.size == 0:
        init = inner.operands[len(inner.operands) // 2 + index]
        return _become(node, "broadcast", (init,), BroadcastAttrs(()))
    return _known_result(inner, index, draft)


def choose_known_result(node: Node, draft: Draft) -> Node | str | None:
    """the same for a while or a conditional with one result"""
    return None if isinstance(node.type, TupleType) else _known_result(node, 0, draft)


def _known_result(node: Node, index: int, draft: Draft) -> str | None:
    if OPS[node.op].is_loop:
        condition, body = node.regions
        proceed = condition[condition.outputs[0]]
        never = isinstance(proceed.attrs, ConstantAttrs) and not proceed.attrs.value.numpy()
        if never or body.outputs[index] == body.parameters[index]:
            return node.operands[index]
        return None
    if not isinstance(node.attrs, ConditionalAttrs):
        return None
    selector = read_splat(draft, node.operands[0])
    if selector is None or not all(is_pure(n) for r in node.regions for n in r):
        return None
    last = len(node.regions) - 1
    if selector.dtype == np.bool_:
        selector = ~selector  # true takes branch 0
    branch = int(selector) if 0 <= selector <= last else last
    counts = node.attrs.operand_counts
    first = 1 + sum(counts[:branch])
    operands = node.operands[first : first + counts[branch]]
    region = node.regions[branch]
    return _inline(node, region, operands, region.outputs[index], draft)


def _inline(origin: Node, region: Graph, operands: Sequence[str], output: str, draft: Draft) -> str:
    """Put the nodes of `region` that `output` needs into the draft; the name of its value."""
    values = dict(zip(region.parameters, operands, strict=True))
    needed = keep_live_nodes(region.nodes, (output,))
    for inner in needed.values():
        if not inner.is_parameter:
            name = draft.fresh(f"{origin.name}.{inner.name}")
            inner_operands = tuple(values[o] for o in inner.operands)
            values[inner.name] = draft.put(replace(inner, name=name, operands=inner_operands))
    return values[output]


# ---- the table

_NO_RULES: tuple[Rule, ...] = (fold_empty,)

_OWN_RULES: dict[str, tuple[Rule, ...]] = {
    "parameter": (),
    "constant": (spread_splat_constant,),
    "iota": (zero_short_iota,),
    "add": (drop_neutral_operand, drop_zero_beside_sum),
    "subtract": (drop_neutral_operand,),
    "multiply": (drop_neutral_operand, take_absorbing_operand),
    "divide": (drop_neutral_operand,),
    "shift-left": (drop_neutral_operand,),
    "shift-right-arithmetic": (drop_neutral_operand,),
    "shift-right-logical": (drop_neutral_operand,),
    "xor": (drop_neutral_operand,),
    "and": (drop_neutral_operand, take_absorbing_operand, merge_equal_operands),
    "or": (drop_neutral_operand, take_absorbing_operand, merge_equal_operands),
    "maximum": (drop_neutral_operand, merge_equal_operands),
    "minimum": (drop_neutral_operand, merge_equal_operands),
    "negate": (cancel_involution,),
    "not": (cancel_involution,),
    "copy": (drop_copy,),
    "select": (choose_branch,),
    "compare": (decide_compare_by_range, compare_random_bits),
    "convert": (drop_convert, merge_converts),
    "bitcast-convert": (drop_convert, merge_bitcast_converts),
    "broadcast": (
        merge_broadcasts,
        squeeze_broadcast_operand,
        sort_broadcast_dimensions,
        drop_identity_broadcast,
    ),
    "reshape": (
        drop_identity_reshape,
        merge_reshapes,
        reshape_constant,
        sink_reshape_below_broadcast,
    ),
    "transpose": (merge_transposes, drop_trivial_transpose, absorb_transpose_into_broadcast),
    "slice": (
        drop_full_slice,
        merge_slices,
        sink_slice_below_broadcast,
        slice_one_piece,
        tighten_slice,
    ),
    "pad": (drop_empty_pad,),
    "concatenate": (drop_empty_pieces,),
    "reverse": (drop_trivial_reverse, merge_reverses),
    "dynamic-slice": (slice_statically,),
    "dynamic-update-slice": (drop_full_update,),
    "reduce": (
        start_empty_reduce,
        drop_trivial_reduce,
        absorb_transpose_into_reduce,
        sort_reduced_dimensions,
    ),
    "dot": (absorb_transpose_into_dot,),
    "convolution": (absorb_reverse_into_convolution,),
    "while": (choose_known_result,),
    "conditional": (choose_known_result,),
    "get-tuple-element": (project_known_result,),
}


def _rules_of(op: str) -> tuple[Rule, ...]:
    if op == "parameter" or op not in OPS:
        return ()
    own, kind = _OWN_RULES.get(op, ()), OPS[op].kind
    if kind is Kind.ELEMENTWISE:
        return (fold_empty, *own, fold_splats, fold_constants, lift_reshape_over_elementwise)
    if op == "constant":
        return own
    if kind in (Kind.INDEX, Kind.REDUCE):
        return (fold_empty, *own, fold_constants)
    return (fold_empty, *own)


RULES: Mapping[str, tuple[Rule, ...]] = {op: _rules_of(op) for op in OPS}
"""For each op the rules that may apply.  Their order does not matter for what they arrive at."""
