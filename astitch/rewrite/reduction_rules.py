"""Rules of simplify for reduce, dot and convolution."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from astitch.graph.ir import (
    ArrayType,
    BroadcastAttrs,
    ConvolutionAttrs,
    DimensionsAttrs,
    DotAttrs,
    Graph,
    IotaAttrs,
    NoAttrs,
    Node,
    TransposeAttrs,
)
from astitch.graph.ops import OPS, Kind
from astitch.rewrite.draft import Draft, ascends, become, is_run


def combiner_op(region: Graph) -> str | None:
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
    op = combiner_op(node.regions[0])
    if op is None or x.array.size != node.array.size or x.array.size == 0:
        return None
    if not x.dtype == init.dtype == node.dtype:
        return None
    start = draft.add(node, "broadcast", node.array, (init.name,), BroadcastAttrs(()))
    value = draft.add(node, "reshape", node.array, (x.name,))
    body = node.regions[0][node.regions[0].outputs[0]]
    straight = body.operands == node.regions[0].parameters
    return become(node, op, (start, value) if straight else (value, start))


def start_empty_reduce(node: Node, draft: Draft) -> Node | str | None:
    """reduce(empty, e) -> broadcast(e)"""
    if len(node.operands) != 2 or draft[node.operands[0]].array.size > 0:
        return None
    return become(node, "broadcast", (node.operands[1],), BroadcastAttrs(()))


MUCH_SMALLER = 8
"""What is repeated at least so often, or summed from so many, may be read and written in any order."""


def absorb_transpose_into_reduce(node: Node, draft: Draft) -> Node | str | None:
    """reduce(transpose(x, p), e, d) -> reduce(x, e, p∘d)

    if reduced dimensions stay in order among themselves: the elements meet as before.  Where kept ones do not, a result
    that is much smaller than x is transposed.
    """
    assert isinstance(node.attrs, DimensionsAttrs)
    inner = draft[node.operands[0]]
    if len(node.operands) != 2 or not isinstance(inner.attrs, TransposeAttrs):
        return None
    p = inner.attrs.permutation
    reduced = [p[i] for i in range(len(p)) if i in node.attrs.dimensions]
    kept = [p[i] for i in range(len(p)) if i not in node.attrs.dimensions]
    if not ascends(reduced):
        return None
    operands, attrs = (inner.operands[0], node.operands[1]), DimensionsAttrs(tuple(reduced))
    if ascends(kept):
        return replace(node, operands=operands, attrs=attrs)
    if node.array.size * MUCH_SMALLER > inner.array.size:
        return None
    below = sorted(kept)
    shape = tuple(node.shape[kept.index(d)] for d in below)
    total = draft.add(node, "reduce", ArrayType(node.dtype, shape), operands, attrs, node.regions)
    back = TransposeAttrs(tuple(below.index(d) for d in kept))
    return replace(node, op="transpose", operands=(total,), attrs=back, regions=())


MOST_FLOPS = 32
"""Operations for an element that take as long as to write and read it, four bytes each way."""


def sum_below_transposes(node: Node, draft: Draft) -> Node | str | None:
    """reduce(f(transpose(x, p), broadcast(y), ..), e, d) -> reduce(f(x, broadcast(y'), ..), e, p∘d), element-wise f

    under the condition of absorb_transpose_into_reduce.  y is much smaller than x, and f cheap: others may still read
    it as it was.  So sums over rows of a transposed array read the array along its own rows, and later passes see a
    softmax over columns as one over rows.  rewrite/order_reductions.py weighs the other cases.
    """
    assert isinstance(node.attrs, DimensionsAttrs)
    if len(node.operands) != 2 or draft[node.operands[0]].op == "transpose":
        return None
    below: dict[str, None] = {}
    permutations: set[tuple[int, ...]] = set()
    pending, flops = [node.operands[0]], 0
    while pending:
        inner = draft[pending.pop()]
        if inner.name in below or not isinstance(inner.type, ArrayType) or not inner.array.rank:
            continue
        below[inner.name] = None
        row = OPS.get(inner.op)
        if isinstance(inner.attrs, TransposeAttrs):
            if OPS[draft[inner.operands[0]].op].kind is Kind.COMPUTE:
                return None  # a product gives its result in any order
            permutations.add(inner.attrs.permutation)
        elif isinstance(inner.attrs, BroadcastAttrs):
            if draft[inner.operands[0]].array.size * MUCH_SMALLER > inner.array.size:
                return None
        elif row is not None and row.kind is Kind.ELEMENTWISE and inner.operands:
            flops += row.flops
            if flops > MOST_FLOPS or len(below) > MOST_FLOPS:
                return None
            pending += inner.operands
        else:
            return None
    if len(permutations) != 1:
        return None
    (p,) = permutations
    reduced = [p[i] for i in range(len(p)) if i in node.attrs.dimensions]
    kept = [p[i] for i in range(len(p)) if i not in node.attrs.dimensions]
    if not (ascends(reduced) and ascends(kept)):
        return None
    operands = (compute_below(node, draft, node.operands[0], p, below), node.operands[1])
    return replace(node, operands=operands, attrs=DimensionsAttrs(tuple(reduced)))


def compute_below(
    origin: Node,
    draft: Draft,
    name: str,
    permutation: Sequence[int],
    inside: Collection[str],
) -> str:
    """x, where the value is transpose(x, permutation): the element-wise ops `inside` are computed in the order of x.

    What they read from outside is what was transposed so, or is transposed back.
    """
    inverse = tuple(permutation.index(d) for d in range(len(permutation)))
    made: dict[str, str] = {}

    def find(inner: Node) -> str:
        if not inner.array.rank:
            return inner.name
        type_ = ArrayType(inner.dtype, tuple(inner.shape[d] for d in inverse))
        if isinstance(inner.attrs, TransposeAttrs) and inner.attrs.permutation == permutation:
            return inner.operands[0]
        if isinstance(inner.attrs, IotaAttrs):
            attrs = IotaAttrs(permutation[inner.attrs.dimension])
            return draft.add(origin, "iota", type_, (), attrs)
        if inner.name in inside and OPS[inner.op].kind is Kind.ELEMENTWISE:
            operands = tuple([give(o) for o in inner.operands])
            return draft.add(origin, inner.op, type_, operands, inner.attrs, inner.regions)
        return draft.add(origin, "transpose", type_, (inner.name,), TransposeAttrs(inverse))

    def give(name: str) -> str:
        if name not in made:
            made[name] = find(draft[name])
        return made[name]

    return give(name)


def sort_reduced_dimensions(node: Node, draft: Draft) -> Node | str | None:
    """reduce(x, e, d) -> reduce(x, e, sorted(d)): the order of d has no meaning"""
    assert isinstance(node.attrs, DimensionsAttrs)
    d = tuple(sorted(node.attrs.dimensions))
    return replace(node, attrs=DimensionsAttrs(d)) if d != node.attrs.dimensions else None


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


def absorb_merged_transpose_into_dot(node: Node, draft: Draft) -> Node | str | None:
    """dot(reshape(transpose(x, p)), y) -> dot(reshape(x), y, contracting and batch permuted)

    and alike for y.  The reshape must merge dimensions that lie together in x, and a library must be able to read that:
    see absorb_transpose_into_dot.  XLA writes products of several contracted dimensions so.
    """
    a = node.attrs
    assert isinstance(a, DotAttrs)
    sides = ((a.lhs_contracting, a.lhs_batch), (a.rhs_contracting, a.rhs_batch))
    for side, (contracting, batch) in enumerate(sides):
        merged = _merge_before_transpose(draft, node.operands[side])
        if merged is None:
            continue
        x, shape, permutation = merged
        found = _permute_dimensions(permutation, contracting, batch)
        if found is None:
            continue
        plain = draft.add(node, "reshape", ArrayType(draft[x].dtype, shape), (x,))
        if side:
            attrs = replace(a, rhs_contracting=found[0], rhs_batch=found[1])
            return replace(node, operands=(node.operands[0], plain), attrs=attrs)
        attrs = replace(a, lhs_contracting=found[0], lhs_batch=found[1])
        return replace(node, operands=(plain, node.operands[1]), attrs=attrs)
    return None


def _merge_before_transpose(
    draft: Draft, name: str
) -> tuple[str, tuple[int, ...], tuple[int, ...]] | None:
    """(x, shape, permutation): the value is transpose(reshape(x, shape), permutation).

    None if it is not reshape(transpose(x)), or if the reshape does more than to merge dimensions that lie together.
    """
    reshape = draft[name]
    if not OPS[reshape.op].is_view:
        return None
    transpose = draft[reshape.operands[0]]
    if not isinstance(transpose.attrs, TransposeAttrs):
        return None
    runs: list[list[int]] = []  # of each dimension of the reshape: the dimensions of x
    rest = list(zip(transpose.attrs.permutation, transpose.shape, strict=True))
    for extent in reshape.shape:
        run: list[int] = []
        size = 1
        while rest and (not run or size < extent):
            dimension, own = rest.pop(0)
            run.append(dimension)
            size *= own
        if not run or size != extent or not is_run(run):
            return None
        runs.append(run)
    if rest:
        return None
    order = sorted(range(len(runs)), key=lambda i: runs[i][0])
    shape = tuple(reshape.shape[i] for i in order)
    permutation = tuple(order.index(i) for i in range(len(runs)))
    return transpose.operands[0], shape, permutation


def _absorb_transpose(
    operand: Node, contracting: Sequence[int], batch: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(contracting, batch) as dimensions of the transpose's own operand."""
    if not isinstance(operand.attrs, TransposeAttrs):
        return None
    return _permute_dimensions(operand.attrs.permutation, contracting, batch)


def _permute_dimensions(
    p: Sequence[int], contracting: Sequence[int], batch: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(contracting, batch) of the array in front of a transpose; None where a library cannot read that as matrices."""
    free = [p[i] for i in range(len(p)) if i not in (*contracting, *batch)]
    c, b = tuple(p[i] for i in contracting), tuple(p[i] for i in batch)
    if not (is_run(free) and is_run(c) and is_run(b)) or len(p) - 1 in b:
        return None
    return c, b


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
