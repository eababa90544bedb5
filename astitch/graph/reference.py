"""The reference interpreter: takes a Graph and its arguments, hands on its results, by NumPy.

The oracle of the project: every other way of running a graph must agree with it.  A node without a
region is the `meaning` in its op's row; here are the ops that evaluate one.  The scalar body of a
reduce, scatter or sort is evaluated for whole arrays at once wherever it is element-wise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from astitch.errors import ArgumentMismatch, IllegalProduct, OutOfMemory, UnsupportedOp
from astitch.graph.factorizations import (
    compute_cholesky,
    compute_lu,
    compute_permutation,
    find_factorization,
)
from astitch.graph.ir import (
    CholeskyAttrs,
    ConditionalAttrs,
    CustomCallAttrs,
    DimensionsAttrs,
    DType,
    GetTupleElementAttrs,
    Graph,
    LuAttrs,
    Node,
    PivotsAttrs,
    RowRegionAttrs,
    ScatterAttrs,
    SortAttrs,
    TriangularSolveAttrs,
    TupleType,
    WindowAttrs,
    WindowDimension,
)
from astitch.graph.ops import OPS, Kind
from astitch.graph.ops.arrays import (
    Array,
    batch_positions,
    index_vectors,
    pad,
    slide,
    widen,
    widen_more,
)
from astitch.graph.ops.other import meaning_of_triangular_solve
from astitch.graph.ops.windows import Running, find_running

Arrays = tuple[Array, ...]


def run_graph(graph: Graph, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of `graph`, new row-major arrays.

    arguments: one array for each parameter, of its shape and dtype.  Raises ArgumentMismatch when
    they are not, UnsupportedOp for an op that only a device library can compute (custom-call,
    rng-get-and-update-state), OutOfMemory.
    """
    _check_arguments(graph, arguments)
    outputs = _run(graph, tuple(np.asarray(a) for a in arguments))
    try:
        return [np.array(output, order="C") for output in outputs]
    except MemoryError:
        raise _no_room(f"graph {graph.name}", sum(output.nbytes for output in outputs)) from None


def eval_node(node: Node, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """The results of one node, one array for each; a result may share memory with an operand.

    operands: the results of the operand nodes; for get-tuple-element all results of its operand.
    Raises UnsupportedOp, OutOfMemory where the host has no room for them, and IllegalProduct when a result has not
    the type that the node says.
    """
    types = node.type.elements if isinstance(node.type, TupleType) else (node.type,)
    try:
        with np.errstate(all="ignore"):
            results = _results_of(node, tuple(np.asarray(o) for o in operands))
    except MemoryError:
        raise _no_room(str(node), sum(t.bytes for t in types)) from None
    found = tuple((r.shape, r.dtype) for r in results)
    if found != tuple((t.shape, t.dtype.numpy) for t in types):
        shown = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in found)
        raise IllegalProduct(
            f"{node}: its operands give {shown}; the node's type or attributes are wrong"
        )
    return results


def _no_room(what: str, size_bytes: int) -> OutOfMemory:
    return OutOfMemory(
        f"{what}: the host has no room for its results of {size_bytes} bytes and what they are "
        "computed from\n  make the arrays smaller, or run the program on a device"
    )


def _check_arguments(graph: Graph, arguments: Sequence[np.ndarray]) -> None:
    if len(arguments) != len(graph.parameters):
        raise ArgumentMismatch(
            f"graph {graph.name} takes {len(graph.parameters)} arguments, {len(arguments)} were "
            "given; pass one array for each parameter"
        )
    for index, (name, argument) in enumerate(zip(graph.parameters, arguments, strict=True)):
        wanted = graph[name].array
        argument = np.asarray(argument)
        if argument.shape != wanted.shape or argument.dtype != wanted.dtype.numpy:
            raise ArgumentMismatch(
                f"graph {graph.name}, argument {index} (%{name}): {wanted} was expected, "
                f"{argument.dtype}{list(argument.shape)} was given; cast or reshape it"
            )


def _run(graph: Graph, arguments: Arrays) -> Arrays:
    """Evaluates the nodes in order and forgets a value after its last use."""
    values: dict[str, Arrays] = {n: (a,) for n, a in zip(graph.parameters, arguments, strict=True)}
    for node, dead in _schedule(_SameGraph(graph)):
        if node.is_parameter:
            continue
        operands = [array for name in node.operands for array in values[name]]
        values[node.name] = eval_node(node, operands)
        for name in dead:
            del values[name]
    return tuple(values[output][0] for output in graph.outputs)


class _SameGraph:
    """A graph compared by identity: comparing contents costs more than the cached schedule."""

    __slots__ = ("graph",)

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameGraph) and other.graph is self.graph

    def __hash__(self) -> int:
        return id(self.graph)


@lru_cache(maxsize=32)
def _schedule(same: _SameGraph) -> tuple[tuple[Node, tuple[str, ...]], ...]:
    """Each node with the names of the values that nobody reads after it."""
    graph = same.graph
    outputs = set(graph.outputs)
    dead: dict[str, list[str]] = {}
    for name, users in graph.users.items():
        if name not in outputs and not graph[name].is_parameter:
            dead.setdefault(users[-1] if users else name, []).append(name)
    return tuple((node, tuple(dead.get(node.name, ()))) for node in graph)


def _results_of(node: Node, operands: Arrays) -> Arrays:
    interpret = _INTERPRETERS.get(node.op)
    if interpret is not None:
        return interpret(node, operands)
    row = OPS.get(node.op)
    if row is None or row.meaning is None:
        raise UnsupportedOp(
            f"%{node.name} = {node.op}: the reference interpreter has no meaning for it; run this "
            "part through XLA"
        )
    result = row.meaning(node, *operands)
    return result if isinstance(result, tuple) else (np.asarray(result),)


def _call_library(node: Node, operands: Arrays) -> Arrays:
    match find_factorization(node):
        case LuAttrs():
            return compute_lu(operands[0])
        case CholeskyAttrs(lower):
            return compute_cholesky(operands[0], lower)
        case PivotsAttrs():
            return (compute_permutation(operands[0], node.shape[-1]),)
        case TriangularSolveAttrs() as attrs:
            return (meaning_of_triangular_solve(replace(node, attrs=attrs), *operands),)
    target = node.attrs.target if isinstance(node.attrs, CustomCallAttrs) else node.op
    raise UnsupportedOp(
        f"%{node.name} = custom-call to {target!r}: what it computes is not in the HLO; run this "
        "part through XLA"
    )


def _project(node: Node, operands: Arrays) -> Arrays:
    assert isinstance(node.attrs, GetTupleElementAttrs)
    return (operands[node.attrs.index],)


# ---- bodies --------------------------------------------------------------------------------------


def apply_region(region: Graph, arguments: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """A region of scalars at each position of arrays of one shape: an array per output."""
    shape = np.broadcast_shapes(*(a.shape for a in arguments))
    with np.errstate(all="ignore"):
        results = _apply_everywhere(region, arguments) if _is_elementwise(region) else None
    if results is not None:
        return tuple(np.broadcast_to(r, shape) for r in results)
    types = [region[o].dtype.numpy for o in region.outputs]
    filled = tuple(np.empty(shape, t) for t in types)
    spread = [np.broadcast_to(a, shape) for a in arguments]
    for position in np.ndindex(*shape):
        scalars = _run(region, tuple(np.asarray(a[position]) for a in spread))
        for target, scalar in zip(filled, scalars, strict=True):
            target[position] = scalar
    return filled


@lru_cache(maxsize=512)
def _is_elementwise(region: Graph) -> bool:
    """Whether each node works position by position: then arrays may stand for scalars."""
    return all(
        OPS[node.op].kind is Kind.ELEMENTWISE
        or OPS[node.op].is_pointwise
        or (_keeps_scalar(node) and node.shape == () == region[node.operands[0]].shape)
        for node in region
        if not isinstance(node.type, TupleType)
    ) and not any(isinstance(node.type, TupleType) for node in region)


def _keeps_scalar(node: Node) -> bool:
    """Does the op hand on its operand where both are scalars?"""
    return OPS[node.op].is_view or OPS[node.op].is_broadcast


def _apply_everywhere(region: Graph, arguments: Sequence[Array]) -> Arrays:
    values = dict(zip(region.parameters, arguments, strict=True))
    for node in region:
        if node.is_parameter:
            continue
        operands = [values[o] for o in node.operands]
        if _keeps_scalar(node):
            values[node.name] = operands[0]
        else:
            meaning = OPS[node.op].meaning
            assert meaning is not None
            values[node.name] = np.asarray(meaning(node, *operands))
    return tuple(values[o] for o in region.outputs)


def _find_combiner(region: Graph) -> np.ufunc | None:
    """The ufunc of a body that is one associative op of its parameters, conversions aside."""
    if len(region.outputs) != 1 or len(region.parameters) != 2:
        return None
    node = _skip_widening(region, region.outputs[0])
    combiner = OPS[node.op].combiner
    leaves = {_skip_widening(region, o).name for o in node.operands}
    return combiner if leaves == set(region.parameters) else None


def _skip_widening(region: Graph, name: str) -> Node:
    """The node that computes the value, float conversions and scalar reshapes aside."""
    node = region[name]
    while OPS[node.op].is_view or (
        OPS[node.op].is_conversion
        and node.dtype.is_float
        and region[node.operands[0]].dtype.is_float
    ):
        node = region[node.operands[0]]
    return node


# ---- reduce --------------------------------------------------------------------------------------


def _reduce(node: Node, operands: Arrays) -> Arrays:
    assert isinstance(node.attrs, DimensionsAttrs)
    count = len(operands) // 2
    inputs, initial = operands[:count], operands[count:]
    dimensions = node.attrs.dimensions
    kept = [d for d in range(inputs[0].ndim) if d not in dimensions]
    shape = tuple(inputs[0].shape[d] for d in kept)
    length = math.prod(inputs[0].shape[d] for d in dimensions)
    region = node.regions[0]
    rows = [x.transpose([*dimensions, *kept]).reshape(length, *shape) for x in inputs]
    combiner = _find_combiner(region)
    if combiner is not None:
        return (_reduce_with(combiner, rows[0], initial[0]),)
    return tuple(np.asarray(r) for r in _reduce_by_tree(region, rows, initial, shape))


def _reduce_with(combiner: np.ufunc, rows: Array, initial: Array) -> Array:
    """The sum is taken in f64 (c128, and the integer's own type) and rounded once."""
    wide = widen_more(rows) if combiner in (np.add, np.multiply) else widen(rows)
    start = initial.astype(wide.dtype)
    total = combiner.reduce(wide, axis=0, dtype=wide.dtype, initial=None if len(rows) else start)
    return np.asarray(combiner(start, total) if len(rows) else total).astype(rows.dtype)


def _reduce_by_tree(
    region: Graph, rows: Sequence[Array], initial: Sequence[Array], shape: tuple[int, ...]
) -> Sequence[Array]:
    """Combines neighbours, then their results ...: associative, and the order is kept."""
    starts = [np.broadcast_to(i, shape) for i in initial]
    while len(rows[0]) > 1:
        paired = len(rows[0]) // 2 * 2
        combined = apply_region(
            region, [x[0:paired:2] for x in rows] + [x[1:paired:2] for x in rows]
        )
        rows = [np.concatenate([c, x[paired:]]) for c, x in zip(combined, rows, strict=True)]
    return apply_region(region, [*starts, *(x[0] for x in rows)]) if len(rows[0]) else starts


# ---- windows -------------------------------------------------------------------------------------


def _window_slices(
    offset: Sequence[int], window: Sequence[WindowDimension], shape: Sequence[int]
) -> tuple[slice, ...]:
    """For each output position the padded input's element at `offset` of its window."""
    return tuple(
        slice(o * w.window_dilation, o * w.window_dilation + (n - 1) * w.stride + 1, w.stride)
        for o, w, n in zip(offset, window, shape, strict=True)
    )


def _pad_for_window(x: Array, value: Array, window: Sequence[WindowDimension]) -> Array:
    return pad(
        x,
        value,
        [w.padding_low for w in window],
        [w.padding_high for w in window],
        [w.base_dilation - 1 for w in window],
    )


def _reduce_window(node: Node, operands: Arrays) -> Arrays:
    """Combines the initial value with the window's elements in row-major order; padding does not count.

    (StableHLO leaves open how often the initial value does: XLA takes it once.)  A single combiner
    accumulates in the wide type and rounds once.
    """
    assert isinstance(node.attrs, WindowAttrs)
    window = node.attrs.window
    count = len(operands) // 2
    inputs, initial = operands[:count], operands[count:]
    shape = (node.type.elements[0] if isinstance(node.type, TupleType) else node.type).shape
    if 0 in shape:
        return tuple(np.empty(shape, x.dtype) for x in inputs)
    combiner = _find_combiner(node.regions[0])
    running = find_running(node)
    if running is not None and combiner is not None:
        return (_accumulate(combiner, running, inputs[0], initial[0]),)
    if running is not None:
        return _accumulate_by_doubling(node.regions[0], running, inputs, initial)
    dtypes = [x.dtype for x in inputs]
    if combiner is not None:
        inputs, initial = tuple(map(widen_more, inputs)), tuple(map(widen_more, initial))
    padded = [_pad_for_window(x, i, window) for x, i in zip(inputs, initial, strict=True)]
    inside = None
    if any(w.padding_low > 0 or w.padding_high > 0 or w.base_dilation > 1 for w in window):
        if combiner is None or combiner.identity is None or initial[0] != combiner.identity:
            inside = _pad_for_window(
                np.ones(inputs[0].shape, np.bool_), np.zeros((), np.bool_), window
            )
    totals: Sequence[Array] = [np.broadcast_to(i, shape) for i in initial]
    for offset in np.ndindex(*(w.size for w in window)):
        mirrored = [
            w.size - 1 - o if w.reversed else o for o, w in zip(offset, window, strict=True)
        ]
        where = _window_slices(mirrored, window, shape)
        elements = [p[where] for p in padded]
        if combiner is not None:
            joined: Sequence[Array] = [np.asarray(combiner(totals[0], elements[0]))]
        else:
            joined = apply_region(node.regions[0], [*totals, *elements])
        if inside is None:
            totals = joined
        else:
            counts = inside[where]
            totals = [np.where(counts, j, t) for j, t in zip(joined, totals, strict=True)]
    return tuple(np.asarray(t).astype(d, copy=False) for t, d in zip(totals, dtypes, strict=True))


def _accumulate(combiner: np.ufunc, running: Running, x: Array, initial: Array) -> Array:
    """A running reduction in the wide type, rounded once."""
    d = running.dimension
    wide = np.flip(widen_more(x), d) if running.backward else widen_more(x)
    total = combiner(widen_more(initial), combiner.accumulate(wide, d, wide.dtype))
    ordered = np.flip(total, d) if running.backward else total
    return np.asarray(ordered).astype(x.dtype, copy=False)


def _accumulate_by_doubling(
    region: Graph, running: Running, inputs: Arrays, initial: Arrays
) -> Arrays:
    """y[i] = f(y[i - s], y[i]) for s = 1, 2, 4 ..: f is associative, and the order is kept."""
    arrays = [np.moveaxis(x, running.dimension, 0) for x in inputs]
    reach = 1
    while reach < len(arrays[0]):
        joined = apply_region(region, [*(x[:-reach] for x in arrays), *(x[reach:] for x in arrays)])
        own = (x[-reach:] if running.backward else x[:reach] for x in arrays)
        arrays = [
            np.concatenate([j, o] if running.backward else [o, j])
            for j, o in zip(joined, own, strict=True)
        ]
        reach *= 2
    first = [np.broadcast_to(i, x.shape) for i, x in zip(initial, arrays, strict=True)]
    totals = apply_region(region, [*first, *arrays])
    return tuple(np.asarray(np.moveaxis(t, 0, running.dimension)) for t in totals)


def _select_and_scatter(node: Node, operands: Arrays) -> Arrays:
    """Each source element goes to the element that `select` keeps; never to padding."""
    assert isinstance(node.attrs, WindowAttrs)
    window = node.attrs.window
    x, source, initial = operands
    select, scatter = node.regions
    inside = _pad_for_window(np.ones(x.shape, np.bool_), np.zeros((), np.bool_), window)
    padded = _pad_for_window(x, np.zeros((), x.dtype), window)
    places = _pad_for_window(np.arange(x.size).reshape(x.shape), np.zeros((), np.int64), window)
    chosen = np.zeros(source.shape, x.dtype)
    place = np.zeros(source.shape, np.int64)
    filled = np.zeros(source.shape, np.bool_)
    if source.size:
        for offset in np.ndindex(*(w.size for w in window)):
            where = _window_slices(offset, window, source.shape)
            keeps = apply_region(select, [chosen, padded[where]])[0]
            takes = inside[where] & (~filled | ~keeps)
            chosen = np.where(takes, padded[where], chosen)
            place = np.where(takes, places[where], place)
            filled |= inside[where]
    result = np.full(x.size, initial, x.dtype)
    updates, targets = source[filled], place[filled]
    combiner = _find_combiner(scatter)
    if combiner is not None:
        return (_combine_at(combiner, result, (targets,), updates).reshape(x.shape),)
    for target, update in zip(targets, updates, strict=True):
        result[target] = apply_region(scatter, [result[target], update])[0]
    return (result.reshape(x.shape),)


def _combine_at(combiner: np.ufunc, x: Array, where: tuple[Array, ...], updates: Array) -> Array:
    """x with every update combined in, accumulated in the wide type and rounded once."""
    wide = widen_more(x)
    wide = wide.copy() if wide is x else wide
    combiner.at(wide, where, widen_more(updates))
    return wide.astype(x.dtype, copy=False)


# ---- scatter, sort, map --------------------------------------------------------------------------


def _scatter(node: Node, operands: Arrays) -> Arrays:
    assert isinstance(node.attrs, ScatterAttrs)
    a = node.attrs
    count = len(operands) // 2
    inputs, indices, updates = operands[:count], operands[count], operands[count + 1 :]
    shape = inputs[0].shape
    vectors = index_vectors(indices, a.index_vector_dim)
    batch = vectors.shape[:-1]
    batch_axes = [d for d in range(updates[0].ndim) if d not in a.update_window_dims]
    windowed = [
        d
        for d in range(len(shape))
        if d not in a.inserted_window_dims and d not in a.input_batching_dims
    ]
    sizes = [1] * len(shape)
    for d, u in zip(windowed, a.update_window_dims, strict=True):
        sizes[d] = updates[0].shape[u]
    moved = [
        u.transpose([*batch_axes, *a.update_window_dims]).reshape((*batch, *sizes)) for u in updates
    ]
    if 0 in moved[0].shape or 0 in shape:
        return inputs
    starts = [np.zeros(batch, np.int64) for _ in shape]
    valid = np.ones(batch, np.bool_)
    for i, d in enumerate(a.scatter_dims_to_operand_dims):
        last = shape[d] - sizes[d]
        index = vectors[..., i]
        valid &= (index >= 0) & (index <= last)
        starts[d] = np.where(valid, index, 0).astype(np.int64)
    for d, b in zip(a.input_batching_dims, a.scatter_indices_batching_dims, strict=True):
        starts[d] = batch_positions(vectors, b, a.index_vector_dim)
    kept_starts = tuple(s[valid] for s in starts)
    kept_updates = [m[valid] for m in moved]
    region = node.regions[0]
    if count == 1 and region.outputs == (region.parameters[1],):
        result = inputs[0].copy()
        if shape:
            slide(result, sizes, writeable=True)[kept_starts] = kept_updates[0]
        elif len(kept_updates[0]):
            result[()] = kept_updates[0][-1]
        return (result,)
    combiner = _find_combiner(region) if count == 1 and shape else None
    if combiner is not None:
        wide = widen_more(inputs[0])
        wide = wide.copy() if wide is inputs[0] else wide
        view = slide(wide, sizes, writeable=True)
        combiner.at(view, kept_starts, widen_more(kept_updates[0]))
        return (wide.astype(inputs[0].dtype, copy=False),)
    results = [x.copy() for x in inputs]
    for i in range(int(valid.sum())):
        where = tuple(
            slice(int(s[i]), int(s[i]) + n) for s, n in zip(kept_starts, sizes, strict=True)
        )
        new = apply_region(region, [r[where] for r in results] + [u[i] for u in kept_updates])
        for result, value in zip(results, new, strict=True):
            result[where] = value
    return tuple(results)


def _sort(node: Node, operands: Arrays) -> Arrays:
    """A stable sort by a bitonic network: a comparison takes half of the array at once."""
    assert isinstance(node.attrs, SortAttrs)
    axis = node.attrs.dimension
    length = operands[0].shape[axis]
    if operands[0].size == 0:
        return operands
    order = _find_order(node.regions[0], [np.moveaxis(x, axis, 0) for x in operands], length)
    return tuple(np.take_along_axis(x, np.moveaxis(order, 0, axis), axis) for x in operands)


def _find_order(comparator: Graph, arrays: Sequence[Array], length: int) -> Array:
    """For each column its positions in sorted order; equal elements keep their order."""
    padded_length = 1 << (length - 1).bit_length()
    order = np.arange(padded_length).reshape(-1, *[1] * (arrays[0].ndim - 1))
    order = np.broadcast_to(order, (padded_length, *arrays[0].shape[1:])).copy()
    span = 2
    while span <= padded_length:
        partners = [
            np.arange(padded_length) ^ (span - 1)
        ]  # mirrored, so that every span ends up ascending
        step = span // 4
        while step:
            partners.append(np.arange(padded_length) ^ step)
            step //= 2
        for partner in partners:
            first = np.flatnonzero(np.arange(padded_length) < partner)
            second = partner[first]
            a, b = order[first], order[second]
            swap = _comes_before(comparator, arrays, b, a, length)
            order[first], order[second] = np.where(swap, b, a), np.where(swap, a, b)
        span *= 2
    return order[:length]


def _comes_before(
    comparator: Graph, arrays: Sequence[Array], a: Array, b: Array, length: int
) -> Array:
    """Whether elements `a` go before elements `b`; from `length` on there is padding."""
    real_a, real_b = np.minimum(a, length - 1), np.minimum(b, length - 1)
    left = [np.take_along_axis(x, real_a, 0) for x in arrays]
    right = [np.take_along_axis(x, real_b, 0) for x in arrays]
    less = apply_region(comparator, [v for pair in zip(left, right, strict=True) for v in pair])[0]
    greater = apply_region(comparator, [v for pair in zip(right, left, strict=True) for v in pair])[
        0
    ]
    before = np.where(less == greater, a < b, less)
    return np.where(a >= length, False, np.where(b >= length, True, before))


def _map(node: Node, operands: Arrays) -> Arrays:
    return tuple(np.asarray(r) for r in apply_region(node.regions[0], operands))


# ---- control -------------------------------------------------------------------------------------


def _while(node: Node, operands: Arrays) -> Arrays:
    condition, body = node.regions
    state = operands
    while bool(_run(condition, state)[0]):
        state = _run(body, state)
    return state


def _conditional(node: Node, operands: Arrays) -> Arrays:
    """A predicate takes branch 0 when true; an integer out of range takes the last branch."""
    assert isinstance(node.attrs, ConditionalAttrs)
    selector = operands[0]
    branches = len(node.regions)
    if selector.dtype == DType.PRED.numpy:
        branch = 0 if selector else 1
    else:
        branch = int(selector) if 0 <= int(selector) < branches else branches - 1
    before = 1 + sum(node.attrs.operand_counts[:branch])
    return _run(node.regions[branch], operands[before : before + node.attrs.operand_counts[branch]])


def _call(node: Node, operands: Arrays) -> Arrays:
    return _run(node.regions[0], operands)


def _row_region(node: Node, operands: Arrays) -> Arrays:
    """All of a sum is in its first part."""
    assert isinstance(node.attrs, RowRegionAttrs)
    results = _run(node.regions[0], operands)
    first_sum = len(results) - node.attrs.sums
    others = node.attrs.parts - 1
    sums = (
        np.stack([r.astype(np.float32), *[np.zeros(r.shape, np.float32)] * others])
        for r in results[first_sum:]
    )
    return (*results[:first_sum], *sums)


_INTERPRETERS: dict[str, Callable[[Node, Arrays], Arrays]] = {
    "get-tuple-element": _project,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "scatter": _scatter,
    "sort": _sort,
    "map": _map,
    "while": _while,
    "conditional": _conditional,
    "call": _call,
    "row-region": _row_region,
    "custom-call": _call_library,
    "optimization-barrier": lambda node, operands: operands,
}
