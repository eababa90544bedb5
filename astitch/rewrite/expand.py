"""Graph -> Graph: scatters, windows, what pooling hands back and random bits as ops that a kernel can hold.

A scatter that writes each element at most once is a select over its result.  Every element looks for the one update
that may be meant for it.  A small window is a combination of shifted slices; one that reaches back to the start
(cumsum) a kernel scans as it is, or in pieces.  Needs a simplified graph and hands on a simplified one; an op for which
the graph does not prove what a rule asks for stays, and runs through the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astitch.graph.edit import keep_live_nodes
from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    CompareAttrs,
    ConstantAttrs,
    DimensionsAttrs,
    DType,
    GatherAttrs,
    GetTupleElementAttrs,
    Graph,
    IotaAttrs,
    NoAttrs,
    Node,
    PadAttrs,
    ParameterAttrs,
    ScatterAttrs,
    SliceAttrs,
    TransposeAttrs,
    TupleType,
    WindowAttrs,
    WindowDimension,
)
from astitch.graph.ops import OPS, monoid_of, neutral_element
from astitch.graph.ops.windows import Running, find_running, is_trivial, running_window
from astitch.graph.running import why_not_liftable
from astitch.rewrite.draft import Draft, Log, read_splat
from astitch.rewrite.draft_ops import UNROLLED_ELEMENTS, DraftOps
from astitch.rewrite.movement_rules import group_dimensions
from astitch.rewrite.random_ops import draw_bits
from astitch.rewrite.select_and_scatter import add_where_selected
from astitch.rewrite.simplify import rewrite_graph


def expand(graph: Graph, log: Log | None = None, keep: Collection[str] = ()) -> Graph:
    """The same function; the number and order of parameters and outputs stay.

    graph: simplified.  Regions of a while, a conditional or a call are left as they are: no kernel
    computes them.  `log` hears of every rule that fires, those of simplify too.  keep: ops that stay as they are.
    """
    if not any(RULES.get(node.op) for node in graph):
        return graph
    heard: Log = log or (lambda rule, node: None)

    def apply_rules(node: Node, draft: Draft, _: Mapping[str, str]) -> str | None:
        for rule in RULES.get(node.op, ()) if node.name not in keep else ():
            expanded = rule(node, draft)
            if expanded is not None:
                heard(rule.__name__, node.name)
                return expanded if isinstance(expanded, str) else draft.put(expanded)
        return None

    return rewrite_graph(graph, heard, apply_rules)


# ---- scatter


def place_scatter_elementwise(node: Node, draft: Draft) -> Node | str | None:
    """scatter(x, indices, u) -> select(start == iota and .., f(x, u'), x)

    if every element of x gets at most one update: each dimension of the indices that runs over updates
    is a batching dimension, or one of their columns is its iota, so that an element of the result knows
    the one index vector that can hit it.
    """
    plan = None if isinstance(node.type, TupleType) else _plan_scatter(node, draft)
    if plan is None:
        return None
    x, _, updates = node.operands
    if draft[updates].array.size == 0:
        return x
    columns, homes, conditions = plan
    a, shape = _scatter_attrs(node), node.shape
    tests = []
    for d in sorted(conditions):
        rows = range(draft[columns[d]].array.rank)
        start = _spread(node, draft, columns[d], [homes.get(j) for j in rows])
        tests.append(_compare_with_iota(node, draft, "EQ", start, d, conditions[d]))
    batch = [d for d in range(draft[updates].array.rank) if d not in a.update_window_dims]
    windowed = _window_dimensions(a, len(shape))
    home: dict[int, int | None] = dict(zip(a.update_window_dims, windowed, strict=True))
    home |= {u: homes.get(j) for j, u in enumerate(batch)}
    for u in batch:
        extent, place = draft[updates].shape[u], home[u]
        if place is not None and extent < shape[place]:
            limit = DraftOps(node, draft).splat(extent, DType.S32, shape)
            tests.append(_compare_with_iota(node, draft, "GT", limit, place, shape[place]))
    update = _spread(node, draft, updates, [home[u] for u in range(len(home))])
    value = DraftOps(node, draft).lift(node.regions[0], (x, update))
    if not tests:
        return value
    hit, *others = tests
    for other in others:
        hit = draft.add(node, "and", ArrayType(DType.PRED, shape), (hit, other))
    return Node(node.name, "select", node.type, (hit, value, x), op_name=node.op_name)


def split_rows_of_scatter(node: Node, draft: Draft) -> Node | str | None:
    """scatter(x, reshape(indices), u) -> scatter(x, indices, reshape(u)), if that can be placed element by element

    So XLA's simplifier writes all scatters: their index vectors in one row.  Which column counts along which of the
    dimensions that it merged cannot be told any more.
    """
    a = node.attrs
    if not isinstance(a, ScatterAttrs) or len(node.operands) != 3 or a.input_batching_dims:
        return None
    merged, updates = draft[node.operands[1]], draft[node.operands[2]]
    if merged.op != "reshape" or merged.array.rank != 2 or a.index_vector_dim != 1:
        return None
    indices = draft[merged.operands[0]]
    rows = [u for u in range(updates.array.rank) if u not in a.update_window_dims]
    if indices.array.rank < 2 or indices.shape[-1] != merged.shape[-1] or len(rows) != 1:
        return None
    (u,), split = rows, indices.shape[:-1]
    shape = (*updates.shape[:u], *split, *updates.shape[u + 1 :])
    more = len(split) - 1
    attrs = replace(
        a,
        index_vector_dim=len(split),
        update_window_dims=tuple(w + more * (w > u) for w in a.update_window_dims),
    )
    spread = draft.add(node, "reshape", ArrayType(updates.dtype, shape), (updates.name,))
    operands = (node.operands[0], indices.name, spread)
    return place_scatter_elementwise(replace(node, operands=operands, attrs=attrs), draft)


def insert_unit_windows(node: Node, draft: Draft) -> Node | str | None:
    """scatter(x, indices, u) with windows of one element along an indexed dimension -> that dimension is inserted

    So JAX writes a scatter of rows; XLA's simplifier keeps the dimension of 1 in the updates.  Not in simplify: where
    a gradient of pooling is recognised (restore_pooling.py), it has XLA's form.
    """
    a = node.attrs
    if not isinstance(a, ScatterAttrs) or len(node.operands) != 3:
        return None
    updates, kept = draft[node.operands[2]], (*a.inserted_window_dims, *a.input_batching_dims)
    windows = [d for d in range(len(node.shape)) if d not in kept]
    gone = {
        u: d
        for u, d in zip(sorted(a.update_window_dims), windows, strict=True)
        if updates.shape[u] == 1 and d in a.scatter_dims_to_operand_dims
    }
    if not gone:
        return None
    shape = tuple(n for u, n in enumerate(updates.shape) if u not in gone)
    rows = draft.add(node, "reshape", ArrayType(updates.dtype, shape), (updates.name,))
    attrs = replace(
        a,
        update_window_dims=tuple(
            u - sum(g < u for g in gone) for u in sorted(a.update_window_dims) if u not in gone
        ),
        inserted_window_dims=tuple(sorted((*a.inserted_window_dims, *gone.values()))),
    )
    return replace(node, operands=(*node.operands[:2], rows), attrs=attrs)


def scatter_apart(node: Node, draft: Draft) -> Node | str | None:
    """get-tuple-element(scatter(x.., indices, u..), k) -> scatter(x_k, indices, u_k)

    where the region makes each result of its own operand and update alone.  Other results stay together: one of their
    updates may decide about all.
    """
    assert isinstance(node.attrs, GetTupleElementAttrs)
    whole = draft[node.operands[0]]
    if whole.op != "scatter":
        return None
    count, k = len(whole.operands) // 2, node.attrs.index
    (region,) = whole.regions
    parts = [_cut_region(region, i, (i, count + i)) for i in range(count)]
    own = parts[k]
    if own is None or None in parts:
        return None
    operands = (whole.operands[k], whole.operands[count], whole.operands[count + 1 + k])
    apart = replace(whole, name=node.name, type=node.type, operands=operands, regions=(own,))
    return place_scatter_elementwise(apart, draft) or apart


def _cut_region(region: Graph, result: int, parameters: Sequence[int]) -> Graph | None:
    """The region of one result and those parameters; None if the result needs others."""
    own = [region.parameters[p] for p in parameters]
    output = region.outputs[result]
    needed = keep_live_nodes(region.nodes, (output,))
    read = {output, *(o for n in needed.values() for o in n.operands)}
    if any(name in read and name not in own for name in region.parameters):
        return None
    numbered = {
        name: replace(region[name], attrs=ParameterAttrs(number)) for number, name in enumerate(own)
    }
    inner = {n: node for n, node in needed.items() if n not in region.parameters}
    return Graph(region.name, {**numbered, **inner}, tuple(own), (output,))


def _scatter_attrs(node: Node) -> ScatterAttrs:
    assert isinstance(node.attrs, ScatterAttrs)
    return node.attrs


def _window_dimensions(a: ScatterAttrs, rank: int) -> list[int]:
    """The dimensions of the operand over which a window of the updates extends."""
    gone = (*a.inserted_window_dims, *a.input_batching_dims)
    return [d for d in range(rank) if d not in gone]


def _plan_scatter(
    node: Node, draft: Draft
) -> tuple[dict[int, str], dict[int, int], dict[int, int]] | None:
    """(column of start indices for each scattered dimension, home of each batch dimension, conditions).

    The home of a batch dimension of the indices is the dimension of the result along which an element
    reads off its position there.  conditions: scattered dimension -> the positions that its start is
    compared with: all of them, or just 0 where the window has the whole extent.
    """
    a, shape = _scatter_attrs(node), node.shape
    if len(node.operands) != 3 or why_not_liftable(node) is not None:
        return None
    x, indices, updates = (draft[o] for o in node.operands)
    if not x.dtype == updates.dtype == node.dtype:
        return None
    sizes = [1] * len(shape)
    windows = zip(_window_dimensions(a, len(shape)), a.update_window_dims, strict=True)
    for d, u in windows:
        sizes[d] = updates.shape[u]
    scattered = a.scatter_dims_to_operand_dims
    for d, extent in enumerate(shape):
        whole = sizes[d] == extent
        if not whole and (sizes[d] != 1 or d not in (*scattered, *a.input_batching_dims)):
            return None
    rows = [d for d in range(indices.array.rank) if d != a.index_vector_dim]
    homes = {
        rows.index(there): here
        for here, there in zip(a.input_batching_dims, a.scatter_indices_batching_dims, strict=True)
    }
    columns = {d: add_column(node, draft, number) for number, d in enumerate(scattered)}
    conditions = {}
    for d, column in columns.items():
        j = find_coordinate(draft, column) if sizes[d] == 1 else None
        if j is not None and j not in homes:
            homes[j] = d
        else:
            conditions[d] = shape[d] if sizes[d] == 1 else 1
    free = [j for j, r in enumerate(rows) if indices.shape[r] > 1 and j not in homes]
    return None if free and updates.array.size else (columns, homes, conditions)


def add_column(node: Node, draft: Draft, number: int) -> str:
    """Component `number` of all index vectors of a gather or scatter, in the shape of the indices without that
    dimension."""
    assert isinstance(node.attrs, GatherAttrs | ScatterAttrs)
    indices, vector = draft[node.operands[1]], node.attrs.index_vector_dim
    if vector == indices.array.rank:
        return indices.name
    starts = [number if d == vector else 0 for d in range(indices.array.rank)]
    limits = [number + 1 if d == vector else n for d, n in enumerate(indices.shape)]
    ops = DraftOps(node, draft)
    rest = (*indices.shape[:vector], *indices.shape[vector + 1 :])
    return ops.reshape(ops.cut(indices.name, starts, limits), rest)


def find_coordinate(draft: Draft, name: str) -> int | None:
    """The dimension of an integer value along which each element is its own position; None: none known."""
    node = draft[name]
    if not node.dtype.is_integer:
        return None
    if isinstance(node.attrs, IotaAttrs):
        d: int | None = node.attrs.dimension
        return d if node.shape[node.attrs.dimension] - 1 <= np.iinfo(node.dtype.numpy).max else None
    if isinstance(node.attrs, ConstantAttrs):
        return _find_counting_dimension(node.attrs.value.numpy())
    if node.op not in ("broadcast", "reshape", "transpose", "slice", "convert"):
        return None
    below = draft[node.operands[0]]
    d = find_coordinate(draft, below.name)
    if d is None:
        return None
    match node.attrs:
        case BroadcastAttrs(dimensions):
            return dimensions[d]
        case TransposeAttrs(permutation):
            return permutation.index(d)
        case SliceAttrs(starts, _, strides):
            return d if starts[d] == 0 and strides[d] == 1 else None
    if OPS[node.op].is_conversion:
        return d if below.shape[d] - 1 <= np.iinfo(node.dtype.numpy).max else None
    pairs = group_dimensions(below.shape, node.shape)
    return next((after[0] for before, after in pairs if before == [d] and len(after) == 1), None)


COUNTED_ELEMENTS = 65536
"""A constant of more elements is not searched for a dimension along which it counts."""


def _find_counting_dimension(value: np.ndarray) -> int | None:
    if 1 < value.size <= COUNTED_ELEMENTS:
        for d, extent in enumerate(value.shape):
            spread = [1] * value.ndim
            spread[d] = extent
            if extent > 1 and np.array_equal(
                value, np.broadcast_to(np.arange(extent).reshape(spread), value.shape)
            ):
                return d
    return None


def _spread(origin: Node, draft: Draft, name: str, home: Sequence[int | None]) -> str:
    """A value repeated over the result of `origin`: its dimension i is the result's dimension home[i].

    A dimension without a home has one element.  One that is too long is cut, one that is too short is
    filled up with zeros.
    """
    x, shape = draft[name], origin.shape
    kept = [(i, d) for i, d in enumerate(home) if d is not None and x.shape[i] > 1]
    ops, extents = DraftOps(origin, draft), tuple(x.shape[i] for i, _ in kept)
    cut = tuple(min(n, shape[d]) for n, (_, d) in zip(extents, kept, strict=True))
    name = ops.cut(ops.reshape(name, extents), (0,) * len(cut), cut)
    whole = tuple(n if n == 1 else shape[d] for n, (_, d) in zip(cut, kept, strict=True))
    if whole != cut:
        zero = ops.splat(0, x.dtype, ())
        room = tuple(n - m for n, m in zip(whole, cut, strict=True))
        edges = PadAttrs((0,) * len(cut), room, (0,) * len(cut))
        name = draft.add(origin, "pad", ArrayType(x.dtype, whole), (name, zero), edges)
    return ops.broadcast(name, shape, [d for _, d in kept])


def _compare_with_iota(
    origin: Node, draft: Draft, direction: str, x: str, d: int, positions: int
) -> str:
    """x `direction` the position along d, of which there are `positions`, in a type that holds both."""
    dtype, shape = draft[x].dtype, origin.shape
    if positions - 1 > np.iinfo(dtype.numpy).max:
        dtype = DType.S64
        x = draft.add(origin, "convert", ArrayType(dtype, shape), (x,))
    if positions == 1:
        position = DraftOps(origin, draft).splat(0, dtype, shape)
    else:
        position = draft.add(origin, "iota", ArrayType(dtype, shape), (), IotaAttrs(d))
    type = ArrayType(DType.PRED, shape)
    return draft.add(origin, "compare", type, (x, position), CompareAttrs(direction))


# ---- reduce-window

SCAN_CHUNK = 4096
"""Elements of a piece of a scan, at most."""

SHORT_SCAN, SMALL_SCAN = 8, 256
"""A scan of so few elements each, and in all, is written out: every reader adds them up without waiting for anyone."""

LONG_SCAN, FEW_SCANS = 32768, 128
"""The most elements that one block scans, and the least number of scans.  Longer scans are cut into pieces where there
are fewer: so few blocks would take longer than reading everything twice."""

SECTOR_BYTES = 32
"""Bytes of neighbouring columns, which a block scans together."""


@dataclass(frozen=True, slots=True)
class Folding:
    """How the elements of a window are combined.

    dtype: sums and products of f16, bf16 and f8 accumulate in f32 and are rounded once, as the reference
    does it.  op: the one op that the region is, or None.  neutral: the init value changes nothing.
    padding: what stands where there is no element; of an unknown function that is the init value, which HLO
    expects to be its identity.
    """

    origin: Node
    draft: Draft
    op: str | None
    dtype: DType
    init: str
    neutral: bool
    padding: str

    def combine(self, first: str, second: str) -> str:
        """f(first, second), of which `first` has the elements that come earlier."""
        if self.op is not None:
            type = ArrayType(self.dtype, self.draft[first].shape)
            return self.draft.add(self.origin, self.op, type, (first, second))
        return DraftOps(self.origin, self.draft).lift(self.origin.regions[0], (first, second))

    def region(self) -> Graph:
        """The combiner on scalars of `dtype`."""
        region, type = self.origin.regions[0], ArrayType(self.dtype, ())
        if self.dtype is self.origin.dtype:
            return region
        nodes = {inner.name: replace(inner, type=type) for inner in region}
        return Graph(f"{region.name}.{self.dtype.value}", nodes, region.parameters, region.outputs)

    def pad(self, x: str, low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> str:
        """x padded with values that change nothing."""
        edges = zip(self.draft[x].shape, low, high, interior, strict=True)
        shape = tuple(n + a + b + max(n - 1, 0) * i for n, a, b, i in edges)
        attrs = PadAttrs(tuple(low), tuple(high), tuple(interior))
        return self.draft.add(
            self.origin, "pad", ArrayType(self.dtype, shape), (x, self.padding), attrs
        )

    def shift(self, x: str, d: int, by: int) -> str:
        """x[i - by] along dimension d; what changes nothing where there is none."""
        shape = self.draft[x].shape
        zeros = [0] * len(shape)
        low, high = list(zeros), list(zeros)
        low[d], high[d] = by, -by
        return self.pad(x, low, high, zeros)

    def round(self, x: str) -> Node | str:
        """The result in the type of the window."""
        if self.dtype is self.origin.dtype:
            return x
        return replace(self.origin, op="convert", operands=(x,), attrs=NoAttrs(), regions=())


def _fold_window(
    node: Node, draft: Draft
) -> tuple[Folding, str, tuple[WindowDimension, ...]] | None:
    """(folding, operand in the folding's type, window) of a reduce-window with one operand."""
    assert isinstance(node.attrs, WindowAttrs)
    if len(node.operands) != 2 or why_not_liftable(node) is not None:
        return None
    x, init = node.operands
    if not draft[x].dtype is draft[init].dtype is node.dtype or draft[x].array.size == 0:
        return None
    op, dtype = monoid_of(node.regions[0]), node.dtype
    start, unit = read_splat(draft, init), None if op is None else neutral_element(op, dtype)
    neutral = start is not None and unit is not None and bool(start == unit)
    if dtype.is_float and dtype.bytes < 4 and op in ("add", "multiply"):
        dtype = DType.F32
        x, init = (
            draft.add(node, "convert", ArrayType(dtype, draft[o].shape), (o,)) for o in (x, init)
        )
    padding = init
    if unit is not None and not neutral:
        padding = DraftOps(node, draft).splat(unit.item(), dtype, ())
    return Folding(node, draft, op, dtype, init, neutral, padding), x, node.attrs.window


def reduce_whole_window(node: Node, draft: Draft) -> Node | str | None:
    """reduce-window(x, e) with one window -> reshape(reduce(pad(x, e), e))"""
    found = _fold_window(node, draft)
    if found is None:
        return None
    folding, x, window = found
    moves = [d for d, w in enumerate(window) if not is_trivial(w)]
    if not moves or any(node.shape[d] > 1 or window[d].window_dilation > 1 for d in moves):
        return None
    x = _pad_by_window(folding, x, window)
    shape = draft[x].shape
    if any(shape[d] != window[d].size for d in moves) or folding.op is None:
        return None
    kept = ArrayType(folding.dtype, tuple(n for d, n in enumerate(shape) if d not in moves))
    attrs = DimensionsAttrs(tuple(moves))
    total = draft.add(node, "reduce", kept, (x, folding.init), attrs, (folding.region(),))
    return folding.round(draft.add(node, "reshape", ArrayType(folding.dtype, node.shape), (total,)))


def _pad_by_window(folding: Folding, x: str, window: Sequence[WindowDimension]) -> str:
    return folding.pad(
        x,
        [w.padding_low for w in window],
        [w.padding_high for w in window],
        [w.base_dilation - 1 for w in window],
    )


def unroll_window(node: Node, draft: Draft) -> Node | str | None:
    """reduce-window(x, e) -> f(f(f(e, x0), x1) .., xk), xi the slice of element i of every window"""
    found = _fold_window(node, draft)
    if found is None:
        return None
    folding, x, window = found
    if math.prod(w.size for w in window) > UNROLLED_ELEMENTS:
        return None
    padded = _pad_by_window(folding, x, window)
    shape = node.shape
    if 0 in shape:
        return None
    ops = DraftOps(node, draft)
    total = ops.spread(folding.init, shape)
    for _, element in ops.slice_windows(padded, window, shape):
        total = folding.combine(total, element)
    return folding.round(total)


def scan_in_pieces(node: Node, draft: Draft) -> Node | str | None:
    """reduce-window(x, e) from the start to each element, or from each to the end: itself, which a kernel scans.

    A region that no block group scans together, in few long scans, would leave most of a GPU idle.  So y[i, j] =
    f(scan(sums of the pieces)[i - 1], scan(x[i])[j]).  f must be associative, as HLO asks of it.
    """
    running, found = find_running(node), _fold_window(node, draft)
    if running is None or found is None:
        return None
    folding, x, _ = found
    constant = isinstance(draft[node.operands[1]].attrs, ConstantAttrs)
    if not constant or (folding.op is not None and not folding.neutral):
        return None
    d, shape = running.dimension, node.shape
    if shape[d] <= SHORT_SCAN and node.array.size <= SMALL_SCAN:
        return None
    if folding.op is not None:
        return node  # a block group scans a long row together, or long columns
    beside = math.prod(shape[d + 1 :])
    width = min(beside, SECTOR_BYTES // node.dtype.bytes)
    blocks = math.prod(shape[:d]) * -(-beside // width)
    if shape[d] * width <= LONG_SCAN or blocks >= FEW_SCANS:
        return node
    return folding.round(_scan_pieces(folding, x, running))


def _scan(folding: Folding, x: str, running: Running) -> str:
    """Each element combined with all before it, or after it."""
    array = folding.draft[x].array
    n = array.shape[running.dimension]
    if n == 1:
        return x
    attrs = running_window(array.rank, running, n)
    operands, regions = (x, folding.init), (folding.region(),)
    return folding.draft.add(folding.origin, "reduce-window", array, operands, attrs, regions)


def _scan_pieces(folding: Folding, x: str, running: Running) -> str:
    draft, origin, dtype = folding.draft, folding.origin, folding.dtype
    d, forward = running.dimension, not running.backward
    shape = draft[x].shape
    n = shape[d]
    chunk = _choose_chunk(n)
    count = -(-n // chunk)
    zeros = [0] * len(shape)
    room = [count * chunk - n if i == d else 0 for i in range(len(shape))]
    long = draft[folding.pad(x, zeros, room, zeros)]
    pieces = (*shape[:d], count, chunk, *shape[d + 1 :])
    x = draft.add(origin, "reshape", ArrayType(dtype, pieces), (long.name,))
    sums_type = ArrayType(dtype, (*shape[:d], count, *shape[d + 1 :]))
    attrs = DimensionsAttrs((d + 1,))
    sums = draft.add(origin, "reduce", sums_type, (x, folding.init), attrs, (folding.region(),))
    before = folding.shift(_scan(folding, sums, running), d, 1 if forward else -1)
    ops = DraftOps(origin, draft)
    before = ops.broadcast(before, pieces, [i for i in range(len(pieces)) if i != d + 1])
    inner = _scan(folding, x, Running(d + 1, running.backward))
    both = folding.combine(before, inner) if forward else folding.combine(inner, before)
    return ops.cut(ops.reshape(both, long.shape), zeros, shape)


def _choose_chunk(n: int) -> int:
    """The largest divisor of n from a quarter of SCAN_CHUNK on; SCAN_CHUNK itself if there is none."""
    divisors = (c for c in range(SCAN_CHUNK, SCAN_CHUNK // 4 - 1, -1) if n % c == 0)
    return next(divisors, SCAN_CHUNK)


# ---- the table

Rule = Callable[[Node, Draft], Node | str | None]
"""The value or the node that stands for the node, of its type; None: it stays."""

RULES: Mapping[str, tuple[Rule, ...]] = {
    "get-tuple-element": (draw_bits, scatter_apart),
    "scatter": (place_scatter_elementwise, split_rows_of_scatter, insert_unit_windows),
    "reduce-window": (reduce_whole_window, scan_in_pieces, unroll_window),
    "select-and-scatter": (add_where_selected,),
}
"""For each op the rules that are tried, in order."""
